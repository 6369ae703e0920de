"""A kernel's machine code: made from Numba's typed statements, and kept. ``PreparedLaunch`` asks for it."""

import ctypes

import numpy as np
from llvmlite import ir
from numba import types

from .....compiler import inference
from ...native.codegen.coroutine import ENTRY
from ...native.codegen.jit import machine_code
from .arithmetic import caster
from .cuda_module import CudaModule
from .math_functions import MATH
from .name_binding import NameBinding
from .native_functions import NumbaCoroutine


class Code:
    """A kernel's machine code, and what it asks of Python."""

    def __init__(self, found):
        module = ir.Module("kernel")
        made = NumbaCoroutine(module, found)
        self.requests, self.sites, self.kinds = made.requests, made.sites, found.args
        self.joint = np.array([0, *(request.joint for request in made.requests)], np.int64)
        head = f'define ptr @"{ENTRY}"(i64 %".1", i64 %".2")'
        text = str(module)
        assert text.count(head) == 1
        text = text.replace(head, f"{head} presplitcoroutine") + DESTROY
        others = {name: where for name, (where, _) in made.checks.items() if name in module.globals}
        self.engine = machine_code(text, others)
        address = self.engine.get_function_address
        self.start = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address(ENTRY))
        self.destroy = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(address("destroy"))


DESTROY = """
declare void @llvm.coro.destroy(ptr)
define void @destroy(ptr %h) { call void @llvm.coro.destroy(ptr %h) ret void }
"""


def compiled(function, kinds, key):
    """The :class:`Code` of a kernel's function for the types of its arguments; None where there can be none.
    ``key`` is what tells it from others: the function may come again with other constants around it."""
    if key not in CODES:
        if len(CODES) >= KEPT:
            del CODES[next(iter(CODES))]
        try:
            CODES[key] = Code(inference.infer(function, tuple(kinds)))
        except Exception:  # it is enough that the interpreter can run it
            CODES[key] = None
    return CODES[key]


CODES, KEPT = {}, 64  # key -> Code or None, of so many


class Models:
    """The interpreter's functions for what machine code asks of it, in one execution."""

    def __init__(self, execution):
        self.replace = NameBinding(CudaModule(execution)).replace

    def model(self, function, result):
        """The interpreter's function for one of Numba's or of Python's."""
        convert = caster(result) if isinstance(result, types.Number) else None
        replaced = MATH.get(function)
        if replaced is None:
            replaced = self.replace(function)
            if replaced is not function and function not in (round, pow):
                return replaced
        return replaced if convert is None else lambda *args: convert(replaced(*args))

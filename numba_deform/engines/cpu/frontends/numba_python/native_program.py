"""A kernel of Numba's as a program of which there is machine code. ``PreparedLaunch`` makes it."""

from numba import types

from .....compiler import inference
from .arithmetic import caster
from .cuda_module import CudaModule
from .math_functions import MATH
from .name_binding import NameBinding
from .native_functions import NumbaCoroutine
from .program import typed_form


class NumbaProgram:
    """A kernel's function for Numba's types of its arguments. ``key`` is what this process tells it from others
    by, ``outline`` what all processes do; ``typed`` is its typed form."""

    def __init__(self, function, kinds):
        self.function, self.kinds = function, tuple(kinds)
        self.key = inference.identity(function), self.kinds
        self.typed, self.outline = typed_form(function, kinds, self.key)

    def coroutine(self, module):
        """Its thread in LLVM."""
        return NumbaCoroutine(module, inference.infer(self.function, self.kinds))

    @staticmethod
    def models(execution):
        """The functions that answer its requests."""
        return Models(execution)


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

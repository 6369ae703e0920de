"""Machine code of whole kernels: made from a coroutine that a front end writes, and kept in memory and on disk.
``PreparedLaunch`` asks for it."""

import ctypes
import traceback
from dataclasses import dataclass

import numpy as np
from llvmlite import ir

from .coroutine import ENTRY, site_of
from .ir_values import NotLowered
from .jit import check_functions, kept_code, machine_code
from .object_cache import machine_words, object_key


@dataclass(frozen=True)
class Lowered:
    """What is kept of a kernel beside LLVM's code: what that asks of Python, its places in the kernel as
    ``site_of`` takes them, the types of the arguments, the functions of ``runtime`` that it calls, its key."""

    requests: list
    places: list
    kinds: tuple
    called: list
    key: str


class Code:
    """A kernel's machine code, and what it asks of Python."""

    def __init__(self, lowered, engine, sites):
        self.lowered, self.engine, self.sites = lowered, engine, sites
        self.requests, self.kinds = lowered.requests, lowered.kinds
        self.joint = np.array([0, *(request.joint for request in self.requests)], np.int64)
        address = engine.get_function_address
        self.start = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address(ENTRY))
        self.destroy = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(address("destroy"))

    @classmethod
    def made(cls, program):
        """Of a front end's program."""
        module = ir.Module("kernel")
        made = program.coroutine(module)
        head = f'define ptr @"{ENTRY}"(i64 %".1", i64 %".2")'
        text = str(module)
        assert text.count(head) == 1
        text = text.replace(head, f"{head} presplitcoroutine") + DESTROY
        called = [name for name in made.checks if name in module.globals]
        lines = [code.co_firstlineno for code, _ in made.sites]
        places = [(*place, line) for place, line in zip(made.numbers, lines, strict=True)]
        lowered = Lowered(made.requests, places, made.kinds, called, object_key(text, 1))
        return cls(lowered, machine_code(text, _addresses(called)), made.sites)

    @classmethod
    def from_disk(cls, lowered):
        """Of what was kept; None if LLVM's code was not."""
        engine = kept_code(lowered.key, _addresses(lowered.called))
        return engine and cls(lowered, engine, [site_of(*place) for place in lowered.places])


def _addresses(names):
    return {name: check_functions()[name][0] for name in names}


DESTROY = """
declare void @llvm.coro.destroy(ptr)
define void @destroy(ptr %h) { call void @llvm.coro.destroy(ptr %h) ret void }
"""
CODES, KEPT = {}, 64  # key of a program -> Code, or a text that says why there is none; of so many
FAILURES = []  # tracebacks of what went wrong where code was made, or ran, and the interpreter goes on
KIND = "native"


def is_known(program):
    """Whether ``compiled`` need not make anything: it is in memory, or on disk."""
    return program.key in CODES or program.outline.has(KIND, *machine_words())


def compiled(program):
    """The :class:`Code` of a front end's program, or a text that says why there is none. Its ``key`` is what
    tells it from others: the function may come again with other constants around it. Its ``outline`` knows it
    on disk, and ``coroutine`` writes it into a module."""
    key = program.key
    if key not in CODES:
        if len(CODES) >= KEPT:
            del CODES[next(iter(CODES))]
        CODES[key] = _from_disk(program.outline) or _made(program)
    return CODES[key]


def _from_disk(outline):
    lowered = outline.load(KIND, *machine_words())
    return lowered and Code.from_disk(lowered)


def _made(program):
    try:
        code = Code.made(program)
    except NotLowered as error:
        return str(error)
    except Exception as error:  # the interpreter can run it; to the tests it is an error
        FAILURES.append(traceback.format_exc())
        return f"{type(error).__name__}: {error}"
    program.outline.store(KIND, code.lowered, *machine_words())
    return code

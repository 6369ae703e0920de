"""Runs a kernel natively, compiled by Numba for the CPU, and checks nothing but the bounds of arrays.

    run = Unchecked(function, kinds)       # NotRunnable where it cannot be run so
    bad = run(grid, block, args, dynamic_bytes, ranges)

It is there for the blocks of a large launch that are not judged: their results have to be right, and soon.
``cuda`` in the kernel becomes a stand-in whose functions Numba compiles for the CPU. The threads of a block run
one after the other; in a kernel with ``syncthreads`` each has a stack of its own, and gives way there.
Blocks run in ascending order, on all cores. What waits for other blocks cannot be run so.
"""

import ast
import contextlib
import inspect
import math
import os
import queue
import textwrap
import threading
import types as python

import numba
import numpy as np
from numba import cuda, njit, types
from numba.core.errors import NumbaError
from numba.cuda.dispatcher import CUDADispatcher

from . import unchecked_cuda
from .unchecked_cuda import CONTEXT_WORDS, DYNAMIC, NAMES, SHARED, context_functions

SHARED_BYTES = 256 << 10  # more than a block can have
STACK = 64 << 10
CHUNKS = 32  # pieces of work for each core


class NotRunnable(Exception):
    """The kernel cannot be run without the engine; the text says why, behind "it"."""


class Unchecked:
    """A kernel's function for arguments of these types. Called with grid and block (three numbers each), the
    arguments, the bytes of dynamic shared memory and ranges (first, stop) of blocks, it runs these and returns
    the lowest that has failed, such as by an index outside an array, or None."""

    def __init__(self, function, kinds):
        self.made = {}
        self.stand_in = unchecked_cuda.StandIn()
        kernel = self._compiled(function)
        try:
            kernel.compile(tuple(kinds))
            self.block = context_functions(kernel.overloads[tuple(kinds)], self.stand_in.has_barriers)
            self.block.compile((types.int64[::1], types.uint8[:, ::1], *[types.int64] * 2, types.Tuple(kinds)))
        except (NumbaError, NotImplementedError, TypeError, ValueError, AttributeError, KeyError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise NotRunnable(f"is nothing that Numba compiles for the CPU: {' '.join(lines[:2])}") from None

    # --- the kernel with another ``cuda`` -----------------------------------------------------------
    def _compiled(self, function):
        if waiting := waits(function):
            raise NotRunnable(waiting)
        names = set(_names(function.__code__))
        scope = {k: self._replaced(v) for k, v in function.__globals__.items() if k in names}
        cells = tuple(python.CellType(self._replaced(c.cell_contents)) for c in function.__closure__ or ())
        same = python.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, cells)
        same.__module__, same.__qualname__ = function.__module__, function.__qualname__
        return njit(boundscheck=True, error_model="numpy", nogil=True)(same)

    def _replaced(self, value):
        if value is numba:
            module = python.ModuleType("numba")
            vars(module).update(vars(numba), cuda=self.stand_in.module)
            return module
        if value is cuda:
            return self.stand_in.module
        if id(value) in NAMES:
            return self.stand_in.named(NAMES[id(value)])
        if isinstance(value, CUDADispatcher):
            if id(value) not in self.made:
                self.made[id(value)] = self._compiled(value.py_func)
            return self.made[id(value)]
        if hasattr(value, "__cuda_array_interface__"):
            raise NotRunnable("takes a device array by a name")
        return value

    # --- running ------------------------------------------------------------------------------------
    def __call__(self, grid, block, args, dynamic_bytes, ranges, progress=lambda blocks: None, cores=None):
        if cores is None:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        pieces = queue.SimpleQueue()
        for piece in _pieces(ranges, max(1, sum(b - a for a, b in ranges) // (CHUNKS * cores))):
            pieces.put(piece)
        ended, lowest = queue.SimpleQueue(), []

        def work():
            words, stacks, shared = self._context(grid, block, dynamic_bytes)
            try:
                while True:
                    first, stop = pieces.get_nowait()
                    ended.put((stop - first, self.block(words, stacks, first, stop, tuple(args))))
            except queue.Empty:
                ended.put(None)
            except BaseException as error:
                ended.put(error)

        # Nobody can stop machine code: after Ctrl-C the program's end must not wait for it.
        for _ in range(cores):
            threading.Thread(target=work, daemon=True).start()
        try:
            while cores:
                with contextlib.suppress(queue.Empty):
                    result = ended.get(timeout=0.2)
                    if isinstance(result, BaseException):
                        raise result
                    if result is None:
                        cores -= 1
                        continue
                    progress(result[0])
                    lowest.append(result[1])
        except BaseException:
            with contextlib.suppress(queue.Empty):
                while True:
                    pieces.get_nowait()
            raise
        return min((number for number in lowest if number >= 0), default=None)

    def _context(self, grid, block, dynamic_bytes):
        """(words, stacks, shared memory) of one core."""
        words, shared = np.zeros(CONTEXT_WORDS, np.int64), np.zeros(SHARED_BYTES, np.uint8)
        size = (STACK + 4 * self.stand_in.local_bytes) // 16 * 16
        stacks = np.empty((math.prod(block), size) if self.stand_in.has_barriers else (1, 16), np.uint8)
        words[6:9], words[9:12] = block, grid
        static = (self.stand_in.shared_bytes + 15) // 16 * 16
        words[SHARED], words[DYNAMIC] = shared.ctypes.data, dynamic_bytes
        words[DYNAMIC + 1] = shared.ctypes.data + static
        return words, stacks, shared


def _pieces(ranges, size):
    for first, stop in ranges:
        for start in range(first, stop, size):
            yield start, min(start + size, stop)


def _names(code):
    yield from code.co_names
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _names(constant)


def waits(function):
    """Why a function may wait for another thread in a loop, as far as its text shows; else ""."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return "has no source"
    scope = inspect.getclosurevars(function)
    readers = {name for name, value in {**scope.globals, **scope.nonlocals}.items() if _reads(value)}
    for loop in ast.walk(tree):
        if not isinstance(loop, ast.While):
            continue
        words = {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(loop)}
        looks = ast.walk(loop if isinstance(loop.test, ast.Constant) else loop.test)
        looked = any(isinstance(n, ast.Subscript) or getattr(n, "id", "") in readers for n in looks)
        if words & {"atomic", "cas", "nanosleep", "threadfence", "threadfence_block"} or looked:
            return f"may wait for another thread (line {loop.lineno} of {function.__name__})"
    return ""


def _reads(value):
    """Whether it is a device function with an array's element in its text."""
    try:
        return isinstance(value, CUDADispatcher) and "[" in inspect.getsource(value.py_func)
    except OSError:
        return True

"""What a kernel sees as ``cuda`` on the CPU engine, and as ``int32``, ``float32`` and the like.

Integers are Python's: a sum of two int32 does not wrap until ``int32(...)`` says so, which is how
Numba-CUDA types it (int64). Floats are NumPy scalars, so that float32 arithmetic rounds as on the GPU.
"""

import dis
import sys
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
from greenlet import getcurrent
from numba.np.numpy_support import as_dtype

from ...device.half2 import fused
from .arrays import LocalArray
from .values import dtype_of, wrap


class Unsupported(AttributeError):
    """The kernel uses a part of ``numba.cuda`` that the CPU engine does not model."""


class Index(NamedTuple):
    """``threadIdx`` and its like; one-dimensional, so y and z are 0 or 1."""

    x: int
    y: int
    z: int


def cast(numba_type):
    """A Numba number type as a kernel uses it: called, it converts; named, it is a dtype.
    Its NumPy type is ``.numpy``, or it is one itself."""
    dtype = as_dtype(numba_type)
    bits = 8 * dtype.itemsize
    mask, half = (1 << bits) - 1, 1 << (bits - 1)

    def unsigned(x):
        return x & mask if type(x) is int else wrap(x, dtype)

    def signed(x):
        return x if type(x) is int and -half <= x < half else wrap(x, dtype)

    if dtype.kind not in "ui":
        return dtype.type
    convert = unsigned if dtype.kind == "u" else signed
    convert.numpy = dtype
    return convert


def _assigned_name(code, offset):
    """The variable that takes the result of the call at ``offset``."""
    for instruction in dis.get_instructions(code):
        if instruction.offset > offset and instruction.opname.startswith("STORE"):
            name = instruction.argval
            return name[0] if isinstance(name, tuple) else str(name)  # 3.13 stores two at once
    return "shared array"


def _fmaf(a, b, c):
    return np.float32(fused(float(np.float32(a)), float(np.float32(b)), float(np.float32(c))))


def _fma(a, b, c):
    """Rounded once for float32; float64 has no such product here."""
    return _fmaf(a, b, c) if type(a) is type(b) is type(c) is np.float32 else a * b + c


class FakeCuda:
    """Stands for the module ``numba.cuda`` in one launch."""

    warpsize = 32

    def __init__(self, launch):
        self.launch = launch
        self.gridDim, self.blockDim = Index(launch.blocks, 1, 1), Index(launch.threads, 1, 1)
        self._sites = {}
        self.shared = SimpleNamespace(array=self._shared_array)
        self.local = SimpleNamespace(
            array=lambda shape, dtype, alignment=None: LocalArray(shape, dtype_of(dtype))
        )
        self.atomic = SimpleNamespace(
            add=self._atomic(lambda old, v: old + v), sub=self._atomic(lambda old, v: old - v),
            max=self._atomic(max), min=self._atomic(min), and_=self._atomic(lambda old, v: old & v),
            or_=self._atomic(lambda old, v: old | v), xor=self._atomic(lambda old, v: old ^ v),
            exch=self._atomic(lambda old, v: v, reads=False),
            inc=self._atomic(lambda old, v: 0 if old >= v else old + 1),
            dec=self._atomic(lambda old, v: v if old == 0 or old > v else old - 1), cas=self._cas,
            compare_and_swap=lambda view, old, v: self._cas(view, 0, old, v)
        )
        self.libdevice = SimpleNamespace(
            floorf=lambda x: np.floor(np.float32(x)), fmaf=_fmaf, fabsf=lambda x: abs(np.float32(x)),
            fminf=lambda a, b: np.fmin(np.float32(a), np.float32(b)),
            fmaxf=lambda a, b: np.fmax(np.float32(a), np.float32(b)),
            rsqrtf=lambda x: np.float32(1 / np.sqrt(np.float64(np.float32(x)))),
            expf=lambda x: np.float32(np.exp(np.float64(np.float32(x))))
        )

        self.popc = lambda x: (int(x) & (1 << 64) - 1).bit_count()
        self.ffs = lambda x: (int(x) & -int(x)).bit_length()
        self.clz = lambda x: 32 - (int(x) & 0xFFFFFFFF).bit_length()
        self.fma = _fma
        self.selp = lambda condition, a, b: a if condition else b

    def __getattr__(self, name):
        raise Unsupported(f"cuda.{name} is not modelled by the CPU engine")

    @property
    def threadIdx(self):
        return Index(getcurrent().tid, 0, 0)

    @property
    def blockIdx(self):
        return Index(getcurrent().block.index, 0, 0)

    @property
    def laneid(self):
        return getcurrent().lane

    def grid(self, dimensions):
        """``cuda.grid(1)``: this thread's number in the whole grid."""
        if dimensions != 1:
            raise Unsupported("the CPU engine runs one-dimensional grids: cuda.grid(1)")
        thread = getcurrent()
        return thread.block.index * self.launch.threads + thread.tid

    def gridsize(self, dimensions):
        """``cuda.gridsize(1)``: the number of threads in the grid."""
        return self.launch.blocks * self.launch.threads

    def _shared_array(self, shape, dtype, alignment=None):
        thread = getcurrent()
        frame = sys._getframe(1)
        # The same code may stand in several functions of one factory; their globals tell them apart.
        key = (frame.f_code, frame.f_lasti, id(frame.f_globals))
        if key not in self._sites:
            self._sites[key] = _assigned_name(*key[:2])
        shape = tuple(int(n) for n in shape) if isinstance(shape, tuple) else (int(shape),)
        return thread.block.shared.array(thread, key, self._sites[key], shape, dtype_of(dtype), alignment)

    def syncthreads(self):
        thread = getcurrent()
        thread.block.syncthreads(thread)

    def syncwarp(self, mask=0xFFFFFFFF):
        getcurrent().collective("syncwarp", mask, None)

    def threadfence(self):
        getcurrent().fence_acq_rel()

    threadfence_block = threadfence_system = threadfence

    def nanosleep(self, nanoseconds):
        getcurrent().poll()

    def shfl_sync(self, mask, value, source):
        return getcurrent().shuffle(mask, value, int(source))

    def shfl_xor_sync(self, mask, value, distance):
        thread = getcurrent()
        return thread.shuffle(mask, value, thread.lane ^ int(distance))

    def shfl_up_sync(self, mask, value, distance):
        return self.shfl_down_sync(mask, value, -int(distance))

    def shfl_down_sync(self, mask, value, distance):
        thread = getcurrent()
        source = thread.lane + int(distance)
        return thread.shuffle(mask, value, source if 0 <= source < 32 else thread.lane)

    def ballot_sync(self, mask, predicate):
        values = getcurrent().collective("vote", mask, bool(predicate))
        return sum(1 << lane for lane, vote in values.items() if vote)

    def any_sync(self, mask, predicate):
        return int(self.ballot_sync(mask, predicate) != 0)

    def all_sync(self, mask, predicate):
        return int(all(getcurrent().collective("vote", mask, bool(predicate)).values()))

    def eq_sync(self, mask, predicate):
        return int(len(set(getcurrent().collective("vote", mask, bool(predicate)).values())) == 1)

    def match_any_sync(self, mask, value):
        values = getcurrent().collective("match", mask, value)
        return sum(1 << lane for lane, other in values.items() if other == value)

    def match_all_sync(self, mask, value):
        same = len(set(getcurrent().collective("match", mask, value).values())) == 1
        return (mask if same else 0), same

    def activemask(self):
        """The lanes that have not exited: the most that can be active together."""
        thread = getcurrent()
        return thread.block.warps[thread.warp].alive

    def lanemask_lt(self):
        return (1 << getcurrent().lane) - 1

    @staticmethod
    def _atomic(change, reads=True):
        """``reads=False``: the operation makes sense on memory that nothing has written."""

        def operation(view, index, value):
            dtype = view.dtype

            def apply(old):
                if view.integer:
                    return wrap(change(old.item(), wrap(value, dtype)), dtype)
                return dtype.type(change(old, dtype.type(value)))

            return getcurrent().atomic(view, index, apply, reads)

        return operation

    @staticmethod
    def _cas(view, index, expected, value):
        def apply(old):
            return wrap(value, view.dtype) if old == wrap(expected, view.dtype) else None

        return getcurrent().atomic(view, index, apply)

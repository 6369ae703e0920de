"""What a kernel sees as ``cuda`` on the CPU engine, and as ``int32``, ``float32`` and the like.

What comes back is a number as ``typed_code`` has it: a Python int, a float64 as Python's, a float32 or float16
as NumPy's. Where a result wraps or is converted, that is written into the kernel.
"""

import dis
import functools
import importlib
import itertools
import sys
from collections import namedtuple
from operator import attrgetter
from types import SimpleNamespace

import numpy as np
from greenlet import getcurrent
from numba import types
from numba.cuda import stubs
from numba.np.numpy_support import as_dtype

from ...memory.arrays import ArrayView, LocalArray
from ...memory.scalars import Unsupported, dtype_of, wrap
from . import narrow_floats
from .libdevice import Halves, Libdevice, fma
from .math_functions import brev, clz, plain, popc

TAKES_OPERANDS = True  # see reports.error_origin: what goes wrong here is mostly about what a kernel hands over


class Index:
    """``blockDim`` and its like: three numbers by their names alone, as Numba has them."""

    __slots__ = ("x", "y", "z")

    def __init__(self, x, y, z):
        self.x, self.y, self.z = x, y, z

    def __repr__(self):
        return f"({self.x}, {self.y}, {self.z})"


class Place(Index):
    """``threadIdx`` or ``blockIdx``: of the thread that asks, whose ``number`` runs over ``shape``, x first."""

    __slots__ = ("number", "shape")

    def __init__(self, number, shape):
        self.number, self.shape = attrgetter(number), shape

    x = property(lambda self: self.number(getcurrent()) % self.shape.x)
    y = property(lambda self: self.number(getcurrent()) // self.shape.x % self.shape.y)
    z = property(lambda self: self.number(getcurrent()) // (self.shape.x * self.shape.y))


def cast(numba_type):
    """A Numba number type as a kernel uses it: called, it converts; named, it is a dtype.
    Its NumPy type is ``.numpy``, or it is one itself."""
    if str(numba_type) == narrow_floats.NAME:
        return narrow_floats.convert
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


@functools.lru_cache(4096)
def _assigned_name(code, offset):
    """The variable that takes the result of the call at ``offset``."""
    for instruction in dis.get_instructions(code):
        if instruction.offset > offset and instruction.opname.startswith("STORE"):
            name = instruction.argval
            return name[0] if isinstance(name, tuple) else str(name)  # 3.13 stores two at once
    return "shared array"


def vector(kind, count):
    """The constructor of ``float32x4`` and the like: of numbers and shorter vectors, one behind the other."""
    convert, made = cast(kind), namedtuple(f"{kind}x{count}", tuple("xyzw"[:count]))

    def new(*parts):
        numbers = [x for part in parts for x in (part if isinstance(part, tuple) else (part,))]
        return made(*map(convert, numbers))

    return new


VECTORS = {
    name: (getattr(types, kind), int(count))
    for stub in stubs._vector_type_stubs
    for kind, _, count in [stub.__name__.rpartition("x")]
    for name in (stub.__name__, *stub.aliases)
}
MOST_PRINTED = 32
PRINTS = True  # not in a process whose output nobody is going to see


class Prints(BaseException):
    """The kernel has something to print, and this process must not."""


def printed(*values):
    """``print`` in a kernel, which writes floats as C's ``%f``."""
    if not PRINTS:
        raise Prints
    if len(values) > MOST_PRINTED:  # vprintf takes no more: Numba prints the format in their place
        kinds = {int: "%lld", float: "%f"}
        print(*(kinds.get(type(value), "%f" if isinstance(value, np.floating) else "%s") for value in values))
    else:
        print(*map(_text, values))


def zipped(*parts):
    """``zip`` in a kernel. It reads no element of an array where a shorter part has ended: nothing uses it, and
    compilers leave the read out."""
    sized = [len(part) for part in parts if hasattr(part, "__len__")]
    ended = (itertools.islice(p, min(sized)) if hasattr(p, "__len__") else p for p in parts)
    return zip(*ended, strict=False)


def _text(value):
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))}{',' * (len(value) == 1)})"
    if isinstance(value, (float, np.floating)) or type(value).__module__ == "ml_dtypes":
        return f"{float(value):f}"
    return str(value)


# The new value for the old one and the operand; the kinds of numbers that Numba has it for.
ATOMICS = {
    "add": (lambda old, v: old + v,), "sub": (lambda old, v: old - v,), "max": (max,), "min": (min,),
    "nanmax": (lambda old, v: max(old, v) if old == old else v,),
    "nanmin": (lambda old, v: min(old, v) if old == old else v,),
    "and_": (lambda old, v: old & v, "iu"), "or_": (lambda old, v: old | v, "iu"),
    "xor": (lambda old, v: old ^ v, "iu"), "exch": (lambda old, v: v, "iu", False),
    "inc": (lambda old, v: 0 if old >= v else old + 1, "u"),
    "dec": (lambda old, v: v if old == 0 or old > v else old - 1, "u"),
}  # fmt: skip


class CudaModule:
    """Stands for the module ``numba.cuda`` in one launch."""

    def __init__(self, launch):
        self._launch, self._swap = launch, lambda module: module
        self.gridDim, self.blockDim = Index(*launch.grid_shape), Index(*launch.block_shape)
        self.threadIdx, self.blockIdx = Place("tid", self.blockDim), Place("block.index", self.gridDim)
        self._sites = {}
        self.shared = SimpleNamespace(array=self._shared_array)
        self.local = SimpleNamespace(
            array=lambda shape, dtype, alignment=None: LocalArray(shape, dtype_of(dtype))
        )
        self.const = SimpleNamespace(array_like=lambda array: array)  # what a name holds is constant as it is
        self.atomic = SimpleNamespace(
            cas=self._cas, compare_and_swap=lambda view, old, v: self._cas(view, 0, old, v),
            **{name: self._atomic(name, *how) for name, how in ATOMICS.items()}
        )
        self.cg = SimpleNamespace(this_grid=lambda: SimpleNamespace(sync=self._sync_grid))

    warpsize, libdevice, fp16 = 32, Libdevice(), Halves()
    bf16, fp8 = map(narrow_floats.Functions, ("bf16", "fp8"))
    bfloat16 = staticmethod(narrow_floats.convert)
    ffs = staticmethod(lambda x: (x & -x).bit_length())
    popc, clz, brev, fma, cbrt = map(staticmethod, (popc, clz, brev, fma, plain(np.cbrt)))
    selp = staticmethod(lambda condition, a, b: a if condition else b)
    literal_unroll = staticmethod(lambda values: values)
    # Loads and stores with a cache operator: what they read and write is the same.
    ldca = ldcg = ldcs = ldlu = ldcv = staticmethod(lambda array, i: array[i])
    stcg = stcs = stwb = stwt = staticmethod(lambda array, i, value: array.__setitem__(i, value))

    def __getattr__(self, name):
        kind = getattr(types, name, None)
        if isinstance(kind, (types.Number, types.Boolean)):
            value = cast(kind)  # numba.cuda has the number types, too
        elif name in VECTORS:
            value = vector(*VECTORS[name])
        elif name == "random":  # device functions in Python
            value = self._swap(importlib.import_module("numba.cuda.random"))
        else:
            raise Unsupported(f"cuda.{name} is not modelled by the CPU engine")
        self.__dict__[name] = value
        return value

    @property
    def laneid(self):
        return getcurrent().lane

    def grid(self, dimensions):
        """This thread's number in the whole grid; a tuple of them in two or three dimensions."""
        return self._along(dimensions, lambda x: getattr(self.threadIdx, x)
                           + getattr(self.blockIdx, x) * getattr(self.blockDim, x))  # fmt: skip

    def gridsize(self, dimensions):
        """The number of threads in the grid; a tuple of them in two or three dimensions."""
        return self._along(dimensions, lambda x: getattr(self.blockDim, x) * getattr(self.gridDim, x))

    @staticmethod
    def _along(dimensions, number):
        if dimensions not in (1, 2, 3):
            raise ValueError("argument can only be 1, 2, 3")
        return number("x") if dimensions == 1 else tuple(map(number, "xyz"[:dimensions]))

    def _shared_array(self, shape, dtype, alignment=None, name=None):
        thread = getcurrent()
        frame = sys._getframe(1)
        # The same code may stand in several functions of one factory; their globals tell them apart.
        key = (id(frame.f_code), frame.f_lasti, id(frame.f_globals))
        if (made := thread.block.shared.views.get(key)) is not None:
            return made
        if key not in self._sites:
            self._sites[key] = name or _assigned_name(frame.f_code, frame.f_lasti)
        shape = tuple(int(n) for n in shape) if isinstance(shape, tuple) else (int(shape),)
        return thread.block.shared.array(thread, key, self._sites[key], shape, dtype_of(dtype), alignment)

    def syncthreads(self):
        thread = getcurrent()
        thread.block.syncthreads(thread)

    @staticmethod
    def syncthreads_count(predicate):
        thread = getcurrent()
        return sum(thread.block.syncthreads(thread, bool(predicate)))

    @staticmethod
    def syncthreads_and(predicate):
        thread = getcurrent()
        return int(all(thread.block.syncthreads(thread, bool(predicate))))

    @staticmethod
    def syncthreads_or(predicate):
        thread = getcurrent()
        return int(any(thread.block.syncthreads(thread, bool(predicate))))

    def _sync_grid(self):
        self._launch.sync_grid(getcurrent())

    def syncwarp(self, mask=0xFFFFFFFF):
        getcurrent().collective("syncwarp", mask, None)

    def threadfence(self):
        """``membar.gl``, which is ``fence.sc.gpu`` (PTX ISA 9.7.13.4)."""
        getcurrent().fence_acq_rel(sc=True)

    threadfence_system = threadfence

    def threadfence_block(self):
        getcurrent().fence_acq_rel(wide=False)

    def nanosleep(self, nanoseconds):
        getcurrent().poll()

    def shfl_sync(self, mask, value, source):
        return getcurrent().shuffle(mask, value, int(source))

    def shfl_xor_sync(self, mask, value, distance):
        thread = getcurrent()
        return thread.shuffle(mask, value, thread.lane ^ int(distance), "shfl.bfly")

    def shfl_up_sync(self, mask, value, distance):
        return self._shifted(mask, value, -int(distance), "shfl.up")

    def shfl_down_sync(self, mask, value, distance):
        return self._shifted(mask, value, int(distance), "shfl.down")

    @staticmethod
    def _shifted(mask, value, distance, kind):
        thread = getcurrent()
        source = thread.lane + distance
        return thread.shuffle(mask, value, source if 0 <= source < 32 else thread.lane, kind)

    @staticmethod
    def _votes(mask, predicate, kind):
        return getcurrent().collective(kind, mask, bool(predicate))

    def ballot_sync(self, mask, predicate):
        return _lanes(lane for lane, vote in self._votes(mask, predicate, "vote.ballot").items() if vote)

    def any_sync(self, mask, predicate):
        return int(any(self._votes(mask, predicate, "vote.any").values()))

    def all_sync(self, mask, predicate):
        return int(all(self._votes(mask, predicate, "vote.all").values()))

    def eq_sync(self, mask, predicate):
        return int(len(set(self._votes(mask, predicate, "vote.uni").values())) == 1)

    def match_any_sync(self, mask, value):
        values = getcurrent().collective("match.any", mask, value)
        return _lanes(lane for lane, other in values.items() if other == value)

    def match_all_sync(self, mask, value):
        values = getcurrent().collective("match.all", mask, value)
        same = len(set(values.values())) == 1
        return _lanes(values) if same else 0, same

    def activemask(self):
        return getcurrent().active_mask()

    def lanemask_lt(self):
        return (1 << getcurrent().lane) - 1

    @staticmethod
    def _atomic(name, change, kinds="iuf", reads=True):
        """``kinds`` are the numbers that it takes; ``reads=False``: nobody need have written before."""

        def operation(view, index, value):
            dtype = _checked(name, view, kinds)

            def apply(old):
                if view.integer:
                    return wrap(change(old.item(), wrap(value, dtype)), dtype)
                return dtype.type(change(old, dtype.type(value)))

            return getcurrent().atomic(view, whole(index), apply, reads)

        return operation

    @staticmethod
    def _cas(view, index, expected, value):
        dtype = _checked("cas", view, "iu")

        def apply(old):
            return wrap(value, dtype) if old == wrap(expected, dtype) else None

        return getcurrent().atomic(view, whole(index), apply)


def whole(index):
    """The index of an atomic operation: Numba makes floats of an int64 and a uint64 in one tuple."""
    if isinstance(index, tuple):
        return tuple(map(whole, index))
    return int(index) if isinstance(index, (float, np.floating)) else index


def _lanes(lanes):
    """The mask of some lanes, an int32 as Numba says of votes and matches."""
    mask = sum(1 << lane for lane in lanes)
    return mask - (1 << 32) if mask >> 31 else mask


def _checked(name, view, kinds):
    """The type of an array for which Numba has the atomic operation."""
    if not isinstance(view, ArrayView) or not hasattr(view.space, "flags"):
        raise TypeError(f"cuda.atomic.{name} needs an array in shared or global memory")
    dtype = view.dtype
    if dtype.kind not in kinds or not 4 <= dtype.itemsize <= 8:
        raise TypeError(f"cuda.atomic.{name} is not for arrays of {dtype}")
    return dtype

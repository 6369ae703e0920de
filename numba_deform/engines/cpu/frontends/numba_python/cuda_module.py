"""What a kernel sees as ``cuda`` on the CPU engine, and as ``int32``, ``float32`` and the like.

What comes back is a number as ``typed_code`` has it: a Python int, a float64 as Python's, a float32 or float16
as NumPy's. Where a result wraps or is converted, that is written into the kernel.
"""

import importlib
import itertools
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
from greenlet import getcurrent
from numba import types
from numba.cuda import stubs
from numba.np.numpy_support import as_dtype

from ...memory.arrays import ArrayView, LocalArray
from ...memory.scalars import Unsupported, dtype_of, wrap
from .. import threads
from ..math_functions import brev, clz, plain, popc
from ..rounding import fma
from . import narrow_floats
from .libdevice import Libdevice


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


def vector(kind, count):
    """Return the constructor of a vector type such as ``float32x4``; it joins numbers and shorter vectors."""
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


def printed(*values):
    """``print`` in a kernel, which writes floats as C's ``%f``."""
    if not threads.PRINTS:
        raise threads.Prints
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


class CudaModule(threads.Threads):
    """Stands for the module ``numba.cuda`` in one launch."""

    def __init__(self, launch):
        super().__init__(launch)
        self._swap = lambda module: module
        self.shared = SimpleNamespace(array=self.shared_array)
        self.local = SimpleNamespace(
            array=lambda shape, dtype, alignment=None: LocalArray(shape, dtype_of(dtype))
        )
        self.const = SimpleNamespace(array_like=lambda array: array)  # what a name holds is constant as it is
        self.atomic = SimpleNamespace(
            cas=self._cas, compare_and_swap=lambda view, old, v: self._cas(view, 0, old, v),
            **{name: self._atomic(name, *how) for name, how in ATOMICS.items()}
        )
        grid = SimpleNamespace(sync=lambda: launch.sync_grid(getcurrent()))
        self.cg = SimpleNamespace(this_grid=lambda: grid)

    warpsize, libdevice = 32, Libdevice()
    fp16, bf16, fp8 = map(narrow_floats.Functions, ("fp16", "bf16", "fp8"))
    bfloat16 = staticmethod(narrow_floats.convert)
    ffs = staticmethod(lambda x: (x & -x).bit_length())
    lanemask_lt = staticmethod(lambda: (1 << getcurrent().lane) - 1)
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

        thread, space = getcurrent(), view.space
        old = thread.atomic(view, whole(index), apply)
        thread.pause(old == wrap(expected, dtype) and space is not thread.shared)
        return old


def whole(index):
    """The index of an atomic operation: Numba makes floats of an int64 and a uint64 in one tuple."""
    if isinstance(index, tuple):
        return tuple(map(whole, index))
    return int(index) if isinstance(index, (float, np.floating)) else index


def _checked(name, view, kinds):
    """The type of an array for which Numba has the atomic operation."""
    if not isinstance(view, ArrayView) or not hasattr(view.space, "flags"):
        raise TypeError(f"cuda.atomic.{name} needs an array in shared or global memory")
    dtype = view.dtype
    if dtype.kind not in kinds or not 4 <= dtype.itemsize <= 8:
        raise TypeError(f"cuda.atomic.{name} is not for arrays of {dtype}")
    return dtype

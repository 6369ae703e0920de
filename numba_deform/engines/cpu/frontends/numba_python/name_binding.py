"""What the names of a kernel stand for on the CPU engine: modules, number types, functions. ``program`` and
machine code's requests ask it."""

import enum
import types as python

import numpy as np
from numba import cuda, types
from numba.core.errors import NumbaNotImplementedError
from numba.cuda import cg, libdevice
from numba.np.numpy_support import from_dtype

from .....device.ptx import Intrinsic
from ...memory.arrays import constant_array
from ...memory.scalars import Unsupported
from ..math_functions import MATH
from ..threads import inside
from .arithmetic import elementwise_by_values, is_array
from .cuda_module import cast


def _module_of(value):
    return str(getattr(value, "__module__", None) or "")


def refused(name):
    """What stands for a function that the engine does not model: calling it says so."""

    def function(*_, **__):
        raise Unsupported(f"{name} is not modelled by the CPU engine")

    return function


def _shaped(function):
    """What stands for ``carray`` or ``farray``, an array where a pointer leads; None for another function."""
    name = getattr(function, "__name__", "")
    if name not in ("carray", "farray") or not _module_of(function).endswith("np.numpy_support"):
        return None
    return lambda pointer, shape, dtype=None: pointer.shaped(shape, dtype, name[0].upper())


def _paths():
    """{id of a function or stub of numba.cuda: the names that lead to it}"""
    spaces = {(): cuda, ("libdevice",): libdevice, ("cg",): cg}
    spaces |= {(name,): getattr(cuda, name) for name in ("atomic", "shared", "local", "const")}
    return {
        id(value): (*path, name)
        for path, space in spaces.items()
        for name, value in vars(space).items()
        if callable(value) and not name.startswith("_") and not isinstance(value, types.Type)
        and getattr(value, "__module__", "").startswith("numba.cuda")
    }  # fmt: skip


PATHS = _paths()


class Module:
    """Stands for a module: what a kernel takes out of it goes through ``swap``."""

    def __init__(self, module, swap):
        self.__dict__.update(_module=module, _swap=swap)

    def __getattr__(self, name):
        value = getattr(self._module, name)
        if self._module.__name__.partition(".")[0] == "numpy":
            value = _of_numpy(name, value)
        value = self.__dict__[name] = self._swap(value)
        return value


class NameBinding:
    """What stands for the values of a kernel's names in one launch, whose ``numba.cuda`` is ``fake``; ``held``:
    for values by their id."""

    def __init__(self, fake, held=()):
        self.fake, self.casts, self.held = fake, {}, dict(held)
        fake.types = Module(types, self.replace)

    def replace(self, value):
        if isinstance(value, Intrinsic):
            return inside(value.model)
        if id(value) in self.held:
            return self.held[id(value)]
        if isinstance(value, (types.Number, types.Boolean)):
            if value not in self.casts:
                try:
                    self.casts[value] = cast(value)
                except NumbaNotImplementedError:  # one that NumPy has not
                    self.casts[value] = refused(f"cuda.{str(value).removeprefix('__nv_')}")
            return self.casts[value]
        if isinstance(value, type) and issubclass(value, enum.Enum):
            return value
        if isinstance(value, type) and issubclass(value, (np.number, np.bool_)):
            return self.replace(from_dtype(np.dtype(value)))
        if isinstance(value, np.integer) and not isinstance(value, np.timedelta64):
            return int(value)
        if isinstance(value, np.ndarray):
            return constant_array(value)
        if type(value) is tuple and any(isinstance(part, np.ndarray) for part in value):
            return tuple(map(self.replace, value))
        if isinstance(value, python.BuiltinFunctionType):
            return MATH.get(value, value)
        if _module_of(value).endswith("np.unsafe.ndarray") and value.__name__ == "to_fixed_tuple":
            return lambda array, count: tuple(array[i] for i in range(count))
        if shaped := _shaped(value):
            return shaped
        path = PATHS.get(id(value))
        where, _, internal = _module_of(value).partition("._internal.cuda_")
        if where == "numba.cuda" and internal:  # fp16, bf16, fp8
            path = internal, getattr(value, "__name__", str(value)).removeprefix("__")
        return value if path is None else self._of_cuda(path)

    def module(self, module, swap):
        if module is cuda:
            self.fake._swap = swap
            return self.fake
        path, _, name = module.__name__.rpartition(".")
        if path == "numba.cuda" and name in ("libdevice", "cg", "fp16"):
            return getattr(self.fake, name)
        return Module(module, swap)

    def _of_cuda(self, path):
        found = self.fake
        try:
            for name in path:
                found = getattr(found, name)
        except Unsupported:
            return refused(".".join(("cuda", *path)))
        return found


def is_modelled(function):
    """True if the engine implements ``function``, which a kernel calls, itself."""
    if function is isinstance:  # of Numba's types, which Numba knows
        return False
    own = (type, np.ufunc, python.BuiltinFunctionType, Intrinsic)
    return isinstance(function, own) or id(function) in PATHS or _shaped(function) is not None


# --- numpy ----------------------------------------------------------------------------------------
OF_ARRAYS = ("sum", "min", "max")  # methods of the engine's arrays, where Numba has no Python code for them


def _of_numpy(name, value):
    """What stands for ``np.name``: kernels may use its types, numbers and functions of numbers."""
    if isinstance(value, np.ufunc):
        return _of_numbers(value)
    if name in OF_ARRAYS:
        return lambda array: getattr(array, name)()
    if name == "asarray":
        return lambda array, dtype=None: array
    if name == "nditer":
        return lambda array: array.places()
    if isinstance(value, type) or not callable(value):
        return value  # a type, np.pi, np.newaxis, np.ndindex
    return refused(f"np.{name}")


def _of_numbers(function):
    """Integers come back as Python's, which do not overflow."""

    def apply(*args):
        if any(map(is_array, args)):
            return elementwise_by_values(function, args)(*args)
        value = function(*args)
        return int(value) if isinstance(value, np.integer) else value

    return apply

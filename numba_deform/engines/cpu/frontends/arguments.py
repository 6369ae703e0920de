"""The arguments of a launch: checked, as memory, and as the kernel's Python code is going to see them.
``PreparedLaunch`` and ``Execution`` ask."""

import ctypes
import enum
import inspect

import numpy as np
from numba import typeof, types

from ... import argument_types
from ...tensormap import TensorMapArray
from ..memory.arrays import ArrayView
from ..memory.global_memory import Extent
from ..memory.scalars import bounds_of, start_of
from .numba_python.cuda_module import cast

NUMBERS = (int, float, complex, np.number, np.bool_, np.datetime64, np.timedelta64, enum.Enum)


def parts(args, names):
    """(argument, its name) of all arguments, the parts of tuples one by one."""
    for arg, name in zip(args, names, strict=True):
        if isinstance(arg, tuple):
            yield from parts(arg, [f"{name}[{i}]" for i in range(len(arg))])
        else:
            yield arg, name


def _array(arg):
    """A record as an array without dimensions, over its own bytes, which a kernel may write."""
    if not isinstance(arg, np.void):
        return arg
    own = (ctypes.c_ubyte * arg.nbytes).from_address(start_of(np.ndarray((), arg.dtype, arg)))
    return np.ndarray((), arg.dtype, own)


def extents(args, names, by_address=()):
    """Of all arrays that a kernel can reach: arguments, tensor maps, and what lies behind those.
    ``by_address``: the names of those of which it knows the address alone."""
    found = []
    for arg, name in parts(args, names):
        if isinstance(arg, (np.ndarray, np.void)):
            extent = Extent.of(_array(arg), name)
            found.append(extent._replace(view=None) if name in by_address else extent)
        elif isinstance(arg, TensorMapArray):
            found.append(Extent.of(arg.host, name))
            behind = [(i, tensor) for i, tensor in enumerate(arg) if tensor.array is not None]
            found += [Extent.behind(tensor, f"{name}[{i}].tensor") for i, tensor in behind]
    return found


def maps_of(args):
    """The tensor map arrays among arguments."""
    return [arg for arg, _ in parts(args, [""] * len(args)) if isinstance(arg, TensorMapArray)]


def writeable(args):
    """The arrays that a kernel can change, those behind tensor maps included."""
    arrays = [_array(arg) for arg, _ in parts(args, [""] * len(args))]
    arrays += [array for maps in maps_of(args) for array in (maps.host, *(one.array for one in maps.maps))]
    return list({id(a): a for a in arrays if isinstance(a, np.ndarray) and a.flags.writeable}.values())


def check(function, signature, args):
    """(names, Numba types or None) of the parameters. Raises ValueError for what cannot be launched."""
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) != len(args):
        wanted = f"{len(parameters)} arguments ({', '.join(parameters)})"
        raise ValueError(f"{function.__name__} takes {wanted}, {len(args)} were given")
    kinds = signature.args if signature else [None] * len(args)
    if len(kinds) != len(args):
        raise ValueError(f"{function.__name__} has {len(args)} parameters, its signature {signature}")
    for arg, name in parts(args, parameters):
        if isinstance(arg, (np.ndarray, np.void)):
            if arg.dtype.hasobject or not _native(arg.dtype):
                raise ValueError(f"argument {name} has dtype {arg.dtype}, which no GPU can read")
        elif not isinstance(arg, (*NUMBERS, TensorMapArray)):
            takes = "takes numbers, NumPy arrays and records, tuples of these, Enum, TensorMapArray"
            raise ValueError(f"argument {name} is a {type(arg).__name__}; the CPU engine {takes}")
    for name, arg, kind in zip(parameters, args, kinds, strict=True):
        argument_types.check(name, arg, kind)
    return parameters, kinds


def _native(dtype):
    if dtype.subdtype:
        return _native(dtype.subdtype[0])
    return dtype.isnative if dtype.names is None else all(_native(dtype[name]) for name in dtype.names)


def prepared(execution, arg, name, kind):
    """One argument as the kernel's Python code is going to see it."""
    if isinstance(arg, tuple):
        inner = enumerate(zip(arg, kind or [None] * len(arg), strict=True))
        parts = [prepared(execution, part, f"{name}[{i}]", inner_kind) for i, (part, inner_kind) in inner]
        return arg._make(parts) if hasattr(arg, "_make") else tuple(parts)
    if isinstance(arg, TensorMapArray):
        return arg.address
    if isinstance(arg, (np.ndarray, np.void)):
        data = _array(arg)
        if kind == types.uint64:
            return start_of(data)
        first, stop = bounds_of(data)
        region = execution.globals.find(None, first, stop - first, "") if data.nbytes else None
        view = ArrayView(region, start_of(data), data, name)
        return view[()] if isinstance(arg, np.void) else view
    if isinstance(kind, types.Number):
        return cast(kind)(arg)
    whole = isinstance(arg, (np.integer, np.bool_)) and not isinstance(arg, np.timedelta64)
    return arg.item() if whole else arg


def type_of(arg):
    """Numba's type of an argument."""
    if isinstance(arg, TensorMapArray):
        return types.uint64
    if isinstance(arg, tuple):
        parts = tuple(map(type_of, arg))
        return types.BaseTuple.from_types(parts, type(arg) if hasattr(arg, "_fields") else None)
    kind = typeof(arg)
    return kind.copy(readonly=False) if isinstance(kind, types.Array) else kind

"""Whether the arguments of a launch fit the types that a kernel declares. A Launch asks, and the CPU engine."""

import numpy as np
from numba import types
from numba.np.numpy_support import as_dtype

from .tensormap import TensorMapArray

WHOLE = int, np.integer, np.bool_
REAL = *WHOLE, float, np.floating
HAVE_ADDRESS = np.ndarray, np.void, TensorMapArray


def check(name, arg, kind):
    """Raise ValueError for an argument that does not fit the type of its parameter, where that is known.
    A whole number has to fit into the bits of its type, with or without a sign."""
    if isinstance(arg, tuple) and isinstance(kind, types.BaseTuple) and len(kind) == len(arg):
        for i, (part, inner) in enumerate(zip(arg, kind, strict=True)):
            check(f"{name}[{i}]", part, inner)
        return
    rule = next((rule for of, rule in RULES.items() if isinstance(kind, of)), None)
    if rule and (cure := rule(name, arg, kind)) is not None:
        raise ValueError(f"argument {name}{_told(arg)}, the kernel says {_told(kind)[4:]}{cure}")


# Each returns None for what fits, else what would, or nothing.
def _array(name, arg, kind):
    if not isinstance(arg, np.ndarray) or arg.ndim != kind.ndim:
        return ""
    if isinstance(kind.dtype, (types.Number, types.Boolean)) and arg.dtype != as_dtype(kind.dtype):
        return f": give {name}.astype(np.{kind.dtype})"
    fits = kind.layout == "A" or arg.flags[f"{kind.layout}_CONTIGUOUS"]
    return None if fits else f", in {kind.layout} order: give np.asarray({name}, order='{kind.layout}')"


def _integer(name, arg, kind):
    if kind == types.uint64 and isinstance(arg, HAVE_ADDRESS):
        return None
    if not isinstance(arg, REAL):
        return ": a number, or the address of an array or a TensorMapArray" if kind == types.uint64 else ""
    if not isinstance(arg, WHOLE) and arg != np.trunc(arg):
        return ": a whole number"
    return None if -1 << kind.bitwidth - 1 <= arg < 1 << kind.bitwidth else f": {kind.bitwidth} bits"


RULES = {
    types.Array: _array, types.Integer: _integer, types.BaseTuple: lambda *given: "",
    types.Complex: lambda name, arg, kind: None if isinstance(arg, (*REAL, complex, np.number)) else "",
    (types.Number, types.Boolean): lambda name, arg, kind: None if isinstance(arg, REAL) else "",
}  # fmt: skip


def _told(thing):
    """An argument, or a type, behind a name: ``=7.5``, `` is int64[:, :]``."""
    if isinstance(thing, (np.ndarray, types.Array)):
        return f" is {thing.dtype}[{', '.join([':'] * thing.ndim)}]"
    if isinstance(thing, (types.Type, *REAL)):
        return f"={thing}" if isinstance(thing, REAL) else f" is {thing}"
    return f" is a {f'tuple of {len(thing)}' if isinstance(thing, tuple) else type(thing).__name__}"

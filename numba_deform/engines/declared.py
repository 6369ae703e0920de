"""Whether the arguments of a launch fit the types that a kernel declares. A Launch asks, and the CPU engine."""

import numpy as np
from numba import types
from numba.np.numpy_support import as_dtype

from .tensormap import TensorMapArray

WHOLE = int, np.integer, np.bool_
REAL = *WHOLE, float, np.floating
HAVE_ADDRESS = np.ndarray, np.void, TensorMapArray
CONTIGUOUS = {"C": "np.ascontiguousarray", "F": "np.asfortranarray"}


def check(name, arg, kind):
    """Raise ValueError for an argument that does not fit the type of its parameter, where that is known.
    A whole number has to fit into the bits of its type, with or without a sign."""
    if isinstance(arg, tuple) and isinstance(kind, types.BaseTuple) and len(kind) == len(arg):
        for i, (part, inner) in enumerate(zip(arg, kind, strict=True)):
            check(f"{name}[{i}]", part, inner)
        return
    rule = next((rule for of, rule in RULES.items() if isinstance(kind, of)), None)
    cure = rule and rule(name, arg, kind)
    if cure is not None:
        raise ValueError(f"argument {name}{_told(arg)}, the kernel says {_spelt(kind)}{cure}")


# Each returns None for what fits, else what would, or nothing.
def _array(name, arg, kind):
    if not isinstance(arg, np.ndarray) or arg.ndim != kind.ndim:
        return ""
    if isinstance(kind.dtype, (types.Number, types.Boolean)) and arg.dtype != as_dtype(kind.dtype):
        return f": give {name}.astype(np.{kind.dtype})"
    fits = kind.layout == "A" or arg.flags[f"{kind.layout}_CONTIGUOUS"]
    return None if fits else f": give {CONTIGUOUS[kind.layout]}({name})"


def _integer(name, arg, kind):
    if kind == types.uint64 and isinstance(arg, HAVE_ADDRESS):
        return None
    if not isinstance(arg, REAL):
        return ": a number, or the address of an array or a TensorMapArray" if kind == types.uint64 else ""
    if not isinstance(arg, WHOLE) and arg != np.trunc(arg):
        return ": a whole number"
    return None if -1 << kind.bitwidth - 1 <= arg < 1 << kind.bitwidth else f": {kind.bitwidth} bits"


def _number(name, arg, kind):
    return None if isinstance(arg, (*REAL, *[complex] * isinstance(kind, types.Complex))) else ""


RULES = {types.Array: _array, types.Integer: _integer, (types.Number, types.Boolean): _number,
         types.BaseTuple: lambda *given: ""}  # fmt: skip


def _told(arg):
    """An argument behind its name: ``=7.5``, `` is int64[:]``."""
    if isinstance(arg, np.ndarray):
        layout = next((layout for layout in CONTIGUOUS if arg.flags[f"{layout}_CONTIGUOUS"]), "A")
        return f" is {_brackets(arg.dtype, arg.ndim, layout)}"
    what = f"tuple of {len(arg)}" if isinstance(arg, tuple) else type(arg).__name__
    return f"={arg}" if isinstance(arg, REAL) else f" is a {what}"


def _spelt(kind):
    return _brackets(kind.dtype, kind.ndim, kind.layout) if isinstance(kind, types.Array) else kind


def _brackets(dtype, ndim, layout):
    """As an annotation has it: ``float32[:, ::1]``."""
    parts = ["::1" if i == {"C": ndim - 1, "F": 0}.get(layout) else ":" for i in range(ndim)]
    return f"{dtype}[{', '.join(parts)}]"

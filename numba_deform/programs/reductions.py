"""``cuda.reduce`` in a program that is checked: Numba hands its operation the operands in an order of its own.
The other one is tried once, on neighbours of the array."""

import contextlib
import linecache

import numpy as np
from numba import cuda

from ..engines.cpu import SimFault, simulate
from ..engines.faults import NotCommutative

PAIRS = 32


def reduce(self, original, note, tried, arr, *args, **options):
    """In place of ``Reduce.__call__``. ``note`` is called with a fault and the operation's name; ``tried``: the
    operations that have been, with the types of their operands."""
    key = self._functor, arr.dtype
    if key not in tried and arr.ndim == 1 and arr.size > 1:
        tried.add(key)
        first = arr[: PAIRS + 1]
        values = first.copy_to_host() if hasattr(first, "copy_to_host") else np.array(first)
        if fault := _other_order(self._functor, values):
            note(fault, self._functor.__qualname__)
    return original(self, arr, *args, **options)


def _other_order(function, values):
    """The fault of an operation for which it matters which of two operands comes first; or None."""
    operation = cuda.jit(device=True)(function)

    def both(values, out):
        i = cuda.threadIdx.x
        if i + 1 < values.size:
            out[0, i] = operation(values[i], values[i + 1])
            out[1, i] = operation(values[i + 1], values[i])

    out = np.zeros((2, PAIRS), values.dtype)
    with contextlib.suppress(SimFault):  # the launch of the reduction itself says that
        simulate(both, 1, PAIRS, (values, out))
    exact = out.dtype.kind in "iub"
    same = out[0] == out[1] if exact else np.isclose(*out, rtol=1e-5, atol=0, equal_nan=True)
    if same.all():
        return None
    i, code = int(np.argmin(same)), function.__code__
    a, b, here, there = (number.item() for number in (*values[i : i + 2], *out[:, i]))
    what = f"{function.__name__}({a}, {b}) is {here}, and {function.__name__}({b}, {a}) is {there}"
    source = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    return NotCommutative(what, where=f"{code.co_filename}:{code.co_firstlineno}", source=source)

"""Large launches: which of their blocks are judged, and the rest without."""

import math
import random

from numba import typeof, types

from ..engines.cpu.frontends.ptx.kernels import PtxKernel
from ..engines.shapes import shape_of
from .unchecked import NotRunnable, Unchecked

LARGE = 1 << 17  # threads; a launch of more is sampled. The engine takes some seconds for so many short ones.
RANDOM = 4  # blocks of a sample that stand nowhere in particular


def sample(grid):
    """Numbers of blocks of a grid (three sizes), ascending: its corners, which have the first and the last, one
    in the middle of each face, where a ragged edge is, and some at random, the same each time."""
    dice, last = random.Random(0), [n - 1 for n in grid]
    places = {(x, y, z) for x in (0, last[0]) for y in (0, last[1]) for z in (0, last[2])}
    for axis, end in enumerate(last):
        for edge in (0, end) if end else ():
            place = [dice.randint(0, n) for n in last]
            place[axis] = edge
            places.add(tuple(place))
    places |= {tuple(dice.randint(0, n) for n in last) for _ in range(RANDOM)}
    return sorted(x + grid[0] * (y + grid[1] * z) for x, y, z in places)


def gaps(numbers, stop):
    """Ranges (first, stop) of what is not among ascending numbers below ``stop``."""
    starts, ends = [0, *(n + 1 for n in numbers)], [*numbers, stop]
    return [(first, end) for first, end in zip(starts, ends, strict=True) if first < end]


class UnjudgedBlocks:
    """The blocks of a launch that are not judged. NotRunnable where they cannot be run without the engine."""

    kept = {}  # (function, types): Unchecked, or the words of NotRunnable

    def __init__(self, launched):
        kernel, self.launched = launched.kernel, launched
        if isinstance(kernel, PtxKernel):
            raise NotRunnable("comes as PTX, which nothing runs without checks")
        if kernel.held:
            raise NotRunnable("takes a device array by a name")
        self.values = [_value(k, v) for k, v in zip(kernel.signature.args, launched.args, strict=True)]
        try:
            kinds = tuple(map(typeof, self.values))
        except (TypeError, ValueError) as error:
            raise NotRunnable(f"takes what Numba has no type for: {error}") from None
        key = kernel.py_func, kinds
        if key not in self.kept:
            try:
                self.kept[key] = Unchecked(kernel.py_func, kinds)
            except NotRunnable as error:
                self.kept[key] = str(error)
        self.run = self.kept[key]
        if isinstance(self.run, str):
            raise NotRunnable(self.run)

    def __call__(self, judged, progress, cores=None):
        """Run all blocks but those, on so many cores; the lowest that has failed, or None."""
        grid, block = shape_of("grid", self.launched.grid), shape_of("block", self.launched.block)
        ranges = gaps(judged, math.prod(grid))
        return self.run(grid, block, self.values, self.launched.shared_bytes, ranges, progress, cores)


def _value(kind, value):
    """An argument of the type that the kernel is compiled for."""
    if isinstance(kind, types.Boolean):
        return bool(value)
    from numba.cuda.np.numpy_support import as_dtype  # not above: Numba's own numba.cuda has none
    return as_dtype(kind).type(value) if isinstance(kind, types.Number) else value

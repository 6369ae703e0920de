"""A block's tensor memory as a part of its layout (``layout.py``): columns by name."""

from numba import cuda, uint32

from .memory import ld_shared_b32
from .namespace import Namespace
from .sync import warp
from .tcgen05 import (
    tcgen05_alloc,
    tcgen05_alloc_pair,
    tcgen05_dealloc,
    tcgen05_dealloc_pair,
    tcgen05_relinquish_alloc_permit,
    tcgen05_relinquish_alloc_permit_pair,
)

ALLOCATIONS = 32, 64, 128, 256, 512  # columns that can be had
OF_ALL = "at", "free", "columns"  # what a TensorMemory has itself


class TensorMemory:
    """Columns of tensor memory by name: ``TensorMemory(sums=128)``; ``sums=(2, 128)`` are two of 128 columns.

    They lie behind one another in one allocation, so that together they are 32, 64, 128, 256 or 512;
    ValueError for others. ``shared.init()`` has the block's first warp allocate them, and give up the permit
    for more; with ``pair=True`` those of both blocks of a pair, together. In a kernel, called ``memory``:

    memory.sums.at(), .at(i)   the address of the first column, of the i-th where there are several
    memory.sums.warp_at(..)    the same, in the lanes that the calling warp reaches: for tcgen05_ld and _st
    memory.sums.columns        of each
    memory.at()                the address of all columns, whose number is ``memory.columns``
    memory.free()              by all lanes of one warp, when nobody uses them any more: before the block ends
    """

    alignment = bytes = 4  # of the place in shared memory that tcgen05.alloc writes the address to

    def __init__(self, *, pair=False, **parts):
        self.pair, self.parts, self.columns = pair, {}, 0  # name -> (first column, how many each has)
        for name, given in parts.items():
            count, columns = given if isinstance(given, tuple) and len(given) == 2 else (1, given)
            if name.startswith("_") or name in OF_ALL:
                raise ValueError(f"{name}= cannot be a part of tensor memory: that name is taken")
            if not all(isinstance(n, int) and n > 0 for n in (count, columns)):
                raise ValueError(f"{name}={given!r} must be a number of columns, or how many times how many")
            self.parts[name] = self.columns, columns
            self.columns += count * columns
        if self.columns not in ALLOCATIONS:
            more = next((n for n in ALLOCATIONS if n >= self.columns), None)
            cure = f"name {more - self.columns} more to have {more}" if more else "an SM has 512"
            sizes = ", ".join(f"{name}={given}" for name, given in parts.items()) or "none"
            raise ValueError(f"{self.columns} columns of tensor memory ({sizes}): they are allocated by "
                             f"{', '.join(map(str, ALLOCATIONS))}; {cure}")  # fmt: skip

    def init(self, offset):
        """A device function of an address: a warp allocates the columns, and has their address written
        ``offset`` bytes behind it."""
        FIRST, COLUMNS = offset, self.columns
        allocate = tcgen05_alloc_pair if self.pair else tcgen05_alloc
        relinquish = tcgen05_relinquish_alloc_permit_pair if self.pair else tcgen05_relinquish_alloc_permit

        @cuda.jit(device=True, forceinline=True)
        def init(start):
            allocate(uint32(start + uint32(FIRST)), uint32(COLUMNS))
            relinquish()

        return init

    def functions(self, name, start, offset):
        """The Namespace for kernels; the address of the columns stands ``offset`` bytes behind ``start()``."""
        OFFSET, COLUMNS = offset, self.columns
        deallocate = tcgen05_dealloc_pair if self.pair else tcgen05_dealloc

        @cuda.jit(device=True, forceinline=True)
        def at():
            return ld_shared_b32(uint32(start() + uint32(OFFSET)))

        @cuda.jit(device=True, forceinline=True)
        def free():
            deallocate(at(), uint32(COLUMNS))

        parts = {part: _functions(part, at, *place) for part, place in self.parts.items()}
        return Namespace(name, at=at, free=free, columns=COLUMNS, **parts)

    def name_of(self, name, offset):
        return f"{name}'s address"


def _functions(name, start, first, columns):
    """The Namespace for kernels of the columns from ``first`` on, of those at ``start()``."""
    FIRST, COLUMNS = first, columns

    @cuda.jit(device=True, forceinline=True)
    def column_at(index):
        return uint32(start() + uint32(FIRST) + uint32(index) * uint32(COLUMNS))

    @cuda.jit(device=True, inline="always")
    def at(index=0):
        return column_at(index)

    @cuda.jit(device=True, inline="always")
    def warp_at(index=0):
        return uint32(column_at(index) + (uint32(warp() & 3) << uint32(21)))

    return Namespace(name, at=at, warp_at=warp_at, columns=COLUMNS)

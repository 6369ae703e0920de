"""32-bit integer arithmetic (PTX ISA 9.7.1).

In Numba ``int32 // int32`` is a 64-bit division, which is a call of a hundred instructions; these are
two dozen, and :func:`quotient`, by a number known when the kernel is compiled, a few.
"""

from numba import cuda, int32, uint32

from .ptx import intrinsic, u32


@cuda.jit(device=True, inline="always")
def quotient(x, n):
    """``x // n`` as an int32, of numbers below 2**31 that are not negative. Where the compiler knows n, it
    multiplies or shifts."""
    return int32(uint32(x) // uint32(n))


@cuda.jit(device=True, inline="always")
def tile_at(number, down, across, group=8):
    """(row, column) of tile ``number`` of ``down`` x ``across``, in an order for L2: column by column through
    ``group`` rows, then through those below, so that blocks that run at once share what they read. All roles
    of a persistent kernel go ``for number in range(cuda.blockIdx.x, down * across, cuda.gridDim.x)``."""
    above = int32(quotient(number, group * across) * group)
    rows, place = min(int32(group), int32(down - above)), int32(number - above * across)
    column = quotient(place, rows)
    return int32(above + place - column * rows), column


@intrinsic(u32(u32, u32), pure=True)
def div_u32(x, y):
    """``div.u32``: ``x // y``, both unsigned; undefined for ``y = 0``. PTX ISA 9.7.1.8."""
    return (x & 0xFFFFFFFF) // (y & 0xFFFFFFFF)


@intrinsic(u32(u32, u32), pure=True)
def rem_u32(x, y):
    """``rem.u32``: ``x % y``, both unsigned; undefined for ``y = 0``. PTX ISA 9.7.1.9."""
    return (x & 0xFFFFFFFF) % (y & 0xFFFFFFFF)

"""32-bit integer arithmetic (PTX ISA 9.7.1).

In Numba ``int32 // int32`` is a 64-bit division, which is a call of a hundred instructions; these are
a dozen.
"""

from .ptx import intrinsic, u32


@intrinsic(u32(u32, u32), pure=True)
def div_u32(x, y):
    """``div.u32``: ``x // y``, both unsigned; undefined for ``y = 0``. PTX ISA 9.7.1.8."""
    return (x & 0xFFFFFFFF) // (y & 0xFFFFFFFF)


@intrinsic(u32(u32, u32), pure=True)
def rem_u32(x, y):
    """``rem.u32``: ``x % y``, both unsigned; undefined for ``y = 0``. PTX ISA 9.7.1.9."""
    return (x & 0xFFFFFFFF) % (y & 0xFFFFFFFF)

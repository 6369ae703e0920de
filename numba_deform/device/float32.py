"""fp32 arithmetic with a rounding of its own (PTX ISA 9.7.3)."""

import numpy as np

from .half2 import fused
from .ptx import f32, intrinsic


@intrinsic(f32(f32, f32), pure=True)
def add_rm_f32(x, y):
    """``add.rm.f32``: ``x + y`` rounded towards minus infinity. PTX ISA 9.7.3.3."""
    x, y = np.float32(x), np.float32(y)
    exact = fused(float(x), 1.0, float(y))
    if exact == 0:
        return np.float32(-0.0) if np.signbit(x) or np.signbit(y) else np.float32(0)
    with np.errstate(over="ignore"):
        nearest = np.float32(exact)
        down = np.nextafter(nearest, np.float32(-np.inf))
    return down if float(nearest) > exact else nearest

"""From a plain Python function to machine code, with or without a GPU."""

from numba.core.types import float16, float32, float64, int32, int64, uint8, uint16, uint32, uint64

from .build import Kernel, built, function, i32, kernel, u32, u64
from .rewrite import static_range

__all__ = [
    "float16",
    "float32",
    "float64",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "Kernel",
    "built",
    "function",
    "i32",
    "kernel",
    "static_range",
    "u32",
    "u64",
]

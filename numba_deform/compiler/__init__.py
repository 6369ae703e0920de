"""From a plain Python function to machine code, with or without a GPU."""

from .build import Kernel, built, function, i32, kernel, u32, u64
from .rewrite import static_range

__all__ = ["Kernel", "built", "function", "i32", "kernel", "static_range", "u32", "u64"]

"""From a plain Python function to machine code, with or without a GPU."""

from .build import Kernel, i32, kernel, u32, u64

__all__ = ["Kernel", "i32", "kernel", "u32", "u64"]

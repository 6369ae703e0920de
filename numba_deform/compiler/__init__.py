"""From a plain Python function to machine code, with or without a GPU."""

from .build import Kernel, kernel

__all__ = ["Kernel", "kernel"]

"""From a plain Python function to machine code, with or without a GPU."""

import importlib
import pkgutil

from numba.core.types import float16, float32, float64, int32, int64, uint8, uint16, uint32, uint64

from .. import device
from .build import Kernel, built, function, i32, kernel, u32, u64
from .rewrite import static_range

# Numba has to know every intrinsic before it compiles, also those that a kernel is the first to ask nd for.
for _module in pkgutil.iter_modules(device.__path__):
    importlib.import_module(f"{device.__name__}.{_module.name}")

__all__ = [
    "float16", "float32", "float64", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "Kernel", "built", "function", "i32", "kernel", "static_range", "u32", "u64",
]  # fmt: skip

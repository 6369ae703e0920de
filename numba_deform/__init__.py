"""Multi-scale deformable attention on Hopper, in Numba CUDA Python, with TMA and mbarrier.

The public names stand in ``__init__.pyi``. Each is imported when it is first asked for: the command line's help
and completion need neither Numba nor NumPy."""

import ast
import importlib
from pathlib import Path

__version__ = "0.1.0"
_MODULES = {
    alias.name: f".{statement.module}"
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text()).body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
}
__all__ = sorted(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__():
    """The public names, and those that every module has."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})

"""Multi-scale deformable attention on Hopper, in Numba CUDA Python, with TMA and mbarrier.

A pipeline of one's own, in ``import numba_deform as nd`` (``help(nd.Ring)`` and so on tell of each):

    numba-deform new FILE.py   on the command line: a pipeline that is right, to begin with
    nd.Shared, nd.Array        the shared memory of a block, by names
    nd.Ring, nd.Barrier        stages with their full and empty barriers; a barrier alone
    nd.kernel, nd.function     make a kernel, and what kernels call
    nd.TensorMap, nd.TensorMapArray
                               what TMA has to know of an array
    nd.Launch                  a kernel with its arguments and the right results
    nd.simulate, nd.explore    run it on the CPU and name what breaks a rule: by chance, in every order
    nd.pipeline                a function that returns a Launch, for the command line and the tools

The public names stand in ``__init__.pyi``. Each is imported when it is first asked for: the command line's help
and completion need neither Numba nor NumPy."""

import ast
import difflib
import importlib
import sys
from pathlib import Path

__version__ = "0.1.0"
_MODULES = {
    alias.name: f".{statement.module}"
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text()).body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
}
__all__ = sorted(_MODULES)


class _RowStack:
    """Gives NumPy ``row_stack`` again, another name of ``vstack`` that 2.5 removed, before numba-cuda 0.30
    overloads it: when it first compiles. To be removed when numba-cuda does without."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "numba.cuda.np.arrayobj":
            import numpy

            vars(numpy).setdefault("row_stack", numpy.vstack)
        return None


sys.meta_path.insert(0, _RowStack)


def __getattr__(name):
    if name not in _MODULES:
        close = [] if name.startswith("_") else difflib.get_close_matches(name, __all__, 1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{meant}")
    value = getattr(importlib.import_module(_MODULES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__():
    """The public names, and those that every module has."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})

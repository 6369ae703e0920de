"""For Python programs that a program under ``check`` starts: Python imports this before anything of theirs."""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _here]
_this = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # the one that this one hides  # noqa: F401
except ImportError:
    sys.modules["sitecustomize"] = _this
try:
    from numba_deform.programs.children import start
    from numba_deform.programs.session import Session, stand_ins
except ImportError:  # an interpreter without Numba launches no kernels
    pass
else:
    start(Session, stand_ins)

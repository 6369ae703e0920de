"""Multi-scale deformable attention on Hopper, in Numba CUDA Python, with TMA and mbarrier."""

from .op import OperatorError, ms_deform_attn
from .prepared import Prepared, prepare
from .reference import reference, relative_error
from .sim import SimFault, simulate
from .variants import VARIANTS, ConfigError
from .workload import PRESETS, Workload, preset

__all__ = [
    "PRESETS",
    "VARIANTS",
    "ConfigError",
    "OperatorError",
    "Prepared",
    "SimFault",
    "Workload",
    "ms_deform_attn",
    "prepare",
    "preset",
    "reference",
    "relative_error",
    "simulate",
]
__version__ = "0.1.0"

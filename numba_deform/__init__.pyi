# The public names and where they come from. __init__.py reads this file, and so does an editor.

from .attention.call import OperatorError, ms_deform_attn
from .attention.prepared import Prepared, prepare
from .attention.reference import reference, relative_error
from .engines.cpu import SimFault, explore, simulate
from .kernels.problem import ConfigError
from .kernels.registry import VARIANTS
from .workloads.presets import PRESETS, preset
from .workloads.workload import Workload

__all__ = [
    "PRESETS",
    "VARIANTS",
    "ConfigError",
    "OperatorError",
    "Prepared",
    "SimFault",
    "Workload",
    "explore",
    "ms_deform_attn",
    "prepare",
    "preset",
    "reference",
    "relative_error",
    "simulate",
]
__version__: str


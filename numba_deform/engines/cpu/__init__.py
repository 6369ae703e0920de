"""The CPU engine: runs a kernel's own Python code, thread by thread, and knows the rules.

    from numba_deform.engines.cpu import simulate
    report = simulate(kernel, grid=2, block=256, args=(value, out, 100), schedules=20)

``simulate`` runs schedules by chance, ``explore`` all that a small kernel has. A broken rule ends the
run with a subclass of ``SimFault`` that says what happened and where.
"""

from ..faults import SimFault
from .schedules.explore import Exploration, explore
from .schedules.simulate import Report, simulate

__all__ = ["Exploration", "Report", "SimFault", "explore", "simulate"]

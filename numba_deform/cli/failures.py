"""What a command raised, for a person: refusals, faults of the CPU engine, a GPU that fails."""

import sys
import traceback

from ..compiler.sass import ToolMissing
from ..engines.cpu import SimFault
from ..engines.gpu.device import GpuMissing, is_cuda_error
from ..engines.tensormap import DriverMissing
from ..kernels.registry import loaded_files
from .commands import refuse
from .output import verdict


def report(error):
    """The exit status, after the error was told; None for a bug of ours."""
    if isinstance(error, SimFault):
        return _report_fault(error)
    if isinstance(error, GpuMissing):
        return refuse(f"{str(error).rstrip('.')}; engine=cpu needs no GPU")
    if isinstance(error, MemoryError):
        return refuse(f"this does not fit in memory: {error}")
    if isinstance(error, OSError) and error.filename:
        return refuse(f"{error.filename}: {error.strerror}")
    if isinstance(error, ModuleNotFoundError) and error.name in ("matplotlib", "PIL"):
        return refuse(f"{error}; pip install matplotlib brings it")
    if isinstance(error, (ValueError, DriverMissing, ToolMissing, ImportError, OSError)):
        return refuse(error)
    if isinstance(error, RuntimeError) or is_cuda_error(error):
        print(f"numba-deform: the GPU or its tools failed: {error}", file=sys.stderr)
        return verdict(False)
    return _report_own(error)


def _report_own(error):
    """A mistake in a file that load= has brought, with its line; None for one of ours."""
    files = loaded_files()
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    if not own:
        return None
    told = f"{type(error).__name__}: {str(error).strip()}"
    return refuse(f"{own[-1].filename}:{own[-1].lineno}: {told}, in: {own[-1].line}")


def _report_fault(fault):
    """The CPU engine has found a broken rule: all of its text, and how to see it again."""
    print(fault, file=sys.stderr)
    if (seed := getattr(fault, "seed", None)) is not None:
        print(f"  replay schedule_seed={seed} landing={getattr(fault, 'landing', None)}", file=sys.stderr)
    return verdict(False)

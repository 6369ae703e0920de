"""Whose error it is: the kernel's Python code may raise, and the engine may have a mistake of its own. The
scheduler asks when a block ends with an exception that is no fault."""

from pathlib import Path

import numpy as np
from numba.core.errors import NumbaError

from ... import faults
from ..memory.arrays import LocalArray
from ..memory.scalars import UndefinedUse
from ..reports.call_sites import ARRAY, INDEX, KERNEL, describe_site, frames_of, raised_at
from .accesses import undefined_use

ENGINES = Path(__file__).parents[2]
DEVICE = ENGINES.parent / "device"
# Modules of the engine whose errors are mostly about what the kernel hands them.
ENTRANCES = ("memory.arrays", "memory.scalars", "frontends.threads", "frontends.math_functions",
             "frontends.ptx.operations", *(f"frontends.numba_python.{name}" for name in (
                 "arithmetic", "cuda_module", "libdevice", "name_binding", "narrow_floats")))  # fmt: skip
OPERANDS = (TypeError, ValueError, IndexError, ArithmeticError, AttributeError, NotImplementedError, NumbaError)


# What Numba and the GPU do where Python raises, and what to write; of two rows that fit the later one counts.
OUTSIDE_NUMBA = (
    "The CPU engine has no such operation; Numba may have it, or not for these types.",
    "Write it by operations that the engine has (bench/ENGINE.md), or run the kernel on a GPU.",
)
MEANINGS = {
    TypeError: OUTSIDE_NUMBA, AttributeError: OUTSIDE_NUMBA, NotImplementedError: OUTSIDE_NUMBA,
    OverflowError: (
        "A GPU raises no error where a number is too large for its type: the result is some number, or inf.",
        "Test the number first, or take a wider type.",
    ),
}  # fmt: skip


def blamed(error, execution):
    """What to raise for an exception that ended a block: KernelError, or EngineError if it is the engine's."""
    site, what, thread = raised_at(error), f"{type(error).__name__}: {error}", execution.running
    if outside := _outside_local_array(error):
        return thread.fault_at(faults.OutOfRange, outside, site)
    if isinstance(error, UndefinedUse):
        return undefined_use(error.args[0], thread, site)
    if not _is_own(error):
        fault = thread.fault_at(faults.KernelError, what, site)
        for kind, (rule, cure) in MEANINGS.items():
            if isinstance(error, kind) and not (fault.source or "").startswith("raise"):  # not by itself
                fault.rule, fault.cure = rule, cure
        return fault
    return faults.EngineError(
        f"the CPU engine itself failed ({what}) in thread {thread.tid} of block {thread.block.index}, at "
        f"{describe_site(site)}, seed {str(execution.seed)!r}, landing {execution.landing}. This is a mistake "
        "of the engine and says nothing about the kernel; please report it with the kernel and the traceback."
    )


def _outside_local_array(error):
    """In words, that typed code has looked for an element that a local array does not have; else ""."""
    names = frames_of(error)[-1][0].f_locals if isinstance(error, IndexError) else {}
    array = names.get(ARRAY)
    if not isinstance(array, LocalArray) or not str(error).startswith(("list", "cannot fit")):
        return ""
    return f"index {(names[INDEX],)} of a local array {array.shape}"


def _is_own(error):
    """Whether the engine failed, and not the kernel's own code or by what that handed it."""
    frames = [frame for frame, _ in frames_of(error)]
    last = max((i for i, frame in enumerate(frames) if KERNEL in frame.f_globals), default=None)
    if last is None:
        return True
    ours = [(frame, Path(frame.f_code.co_filename)) for frame in frames[last + 1 :]]
    ours = [(frame, path) for frame, path in ours if ENGINES in path.parents or DEVICE in path.parents]
    if not ours:
        return False
    if any(path.parent == DEVICE and not _numbers(frame) for frame, path in ours):
        return False  # an intrinsic takes nothing else
    frame, path = ours[-1]
    entrance = path.parent == DEVICE or frame.f_globals.get("__name__", "").endswith(ENTRANCES)
    return not (entrance and isinstance(error, OPERANDS))


def _numbers(frame):
    """Whether the arguments of the function of ``frame`` are numbers."""
    code = frame.f_code
    given = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
    return all(isinstance(value, (int, float, np.number, np.bool_)) for value in given)

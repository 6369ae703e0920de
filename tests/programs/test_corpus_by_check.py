"""Every other program of the corpus by this door: launched as a program launches, it gets the verdict that it
gets by ``simulate``."""

import contextlib
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import cuda
from numba.core.errors import NumbaError

import numba_deform as nd
from numba_deform.compiler import Kernel
from numba_deform.engines.cpu import SimFault
from numba_deform.engines.faults import NotCompiled

pytest.importorskip("numba_cuda", reason="programs are numba-cuda's")
sys.path.insert(0, str(Path(__file__).parents[1] / "corpus"))
from base import load  # noqa: E402

SIMPLE = (np.ndarray, np.generic, int, float, bool)


def launched(program):
    """Whether a program of Numba CUDA can launch it: with arrays and numbers alone, and no options of ours."""
    plain = not isinstance(program.kernel, Kernel) and not program.cluster and not program.options
    return plain and all(isinstance(a, SIMPLE) and np.asarray(a).flags.contiguous for a in program.args())


PROGRAMS = {name: program for name, program in load().items() if launched(program)}
EVERY_OTHER, SOME = tuple(PROGRAMS)[::2], tuple(PROGRAMS)[::40]


@pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in SOME else pytest.mark.full) for n in EVERY_OTHER]
)
def test_the_same_verdict(name):
    program = PROGRAMS[name]
    try:
        program.run()
        told = None
    except SimFault as fault:
        told = type(fault), fault.where
    args, kernel = program.args(), cuda.jit(program.function)
    refused = contextlib.nullcontext()  # what Numba does not compile it refuses itself, in its own words
    if told and NotCompiled in program.faults:
        refused, told = pytest.raises((NumbaError, AttributeError)), None
    with nd.check() as session, refused:
        kernel[program.grid, program.block, 0, program.shared_bytes](*args)
    assert [(type(f.fault), f.fault.where) for f in session.faults] == ([told] if told else [])
    assert program.faults or program.wrong(args) == 0

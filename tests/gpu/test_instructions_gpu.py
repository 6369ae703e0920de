"""Each instruction that pipelines are made of, on a real GPU: random data against NumPy."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "corpus"))

from base import load  # noqa: E402

from numba_deform.engines.gpu.in_place import launch_in_place  # noqa: E402
from numba_deform.engines.gpu.launch import launch  # noqa: E402

PROGRAMS = load("whole", "instructions")
RIGHT = [name for name, program in PROGRAMS.items() if not program.faults]


@pytest.mark.parametrize("name", RIGHT)
def test_right_on_the_gpu(hopper, name):
    """The guarded form never hangs: a wait that takes too long ends the test with what was waited for. It has
    no clusters."""
    program = PROGRAMS[name]
    args = program.args()
    options = {"launch": launch, "cluster": program.cluster} if program.cluster else {}
    launch_in_place(hopper, program.typed(), program.grid, args, program.shared_bytes, **options)
    assert program.wrong(args) == 0

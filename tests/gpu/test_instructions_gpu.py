"""Each instruction that pipelines are made of, on a real GPU: random data against NumPy."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "corpus"))

from base import load  # noqa: E402

from numba_deform.engines.gpu.device import DeviceArray  # noqa: E402
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


def test_the_driver_has_our_rules_for_im2col_mode(hopper):
    """Each is asked on both sides of its limit."""
    spec = importlib.util.spec_from_file_location("tensormap_rules", ROOT / "bench" / "tensormap_rules.py")
    sweep = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = sweep  # dataclasses look their module up
    spec.loader.exec_module(sweep)
    room = DeviceArray(hopper, (1 << 20,), np.uint8)
    differ = []
    for case in sweep.im2col_cases():
        ours, theirs = sweep.our_answer(case, room.address)[0], sweep.driver_answer(case, room.address)
        if theirs is not None and (ours == "ok") != (theirs == "CUDA_SUCCESS"):
            differ.append(f"{case.name}: {ours}, {theirs}")
    assert not differ

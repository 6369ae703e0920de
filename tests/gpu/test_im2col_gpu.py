"""The rules of tensor maps in im2col mode, asked of a driver with a GPU."""

import importlib.util
import sys
from pathlib import Path

import numpy as np

from numba_deform.engines.gpu.device import DeviceArray


def load_sweep():
    """bench/tensormap_rules.py as a module: it holds the two sides of every rule."""
    path = Path(__file__).resolve().parents[2] / "bench" / "tensormap_rules.py"
    spec = importlib.util.spec_from_file_location("tensormap_rules", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_driver_has_our_rules(hopper):
    sweep, room, differ = load_sweep(), DeviceArray(hopper, (1 << 20,), np.uint8), []
    for case in sweep.im2col_cases():
        ours, theirs = sweep.our_answer(case, room.address)[0], sweep.driver_answer(case, room.address)
        if theirs is not None and (ours == "ok") != (theirs == "CUDA_SUCCESS"):
            differ.append(f"{case.name}: {ours}, {theirs}")
    assert not differ

"""The kernels that measure single constants break no rule, and the model plays them as its table says."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def calibrate():
    spec = importlib.util.spec_from_file_location("calibrate", BENCH / "calibrate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("fence, maps", [("warp", 1), ("warp", 2), ("stage", 2), ("block", 2)])
def test_copies_break_no_rule(calibrate, fence, maps):
    name = "256 bytes, 2 pieces"
    kernel = calibrate.build_copies(calibrate.BOXES[name][0], 2, 3, 2, fence, maps)
    run = calibrate.Runs(None, model=False)
    assert (run(kernel, 2, np.zeros(4, np.int64), 4, before=[calibrate.source_of(name, maps, 64)]) > 0).all()


def test_the_model_plays_them_as_the_table_says(calibrate):
    """After a change of the model: ``python bench/calibrate.py --engine model``."""
    rows = json.loads((BENCH / "results" / "calibration.json").read_text())["rows"]
    told = {row["what"]: row["model"] for row in rows if "model" in row and "box" not in row}
    run, rounds = calibrate.Runs(None, model=True), calibrate.ROUNDS
    shuffles = run(calibrate.shuffles, 1, np.zeros(2, np.int64))[0] / rounds
    handover = run(calibrate.build_handover(), 1, np.zeros(1, np.int64))[0] / rounds / 2
    assert [shuffles, handover] == pytest.approx([told["shuffle"], told["handover"]], abs=0.01)


@pytest.mark.full
def test_they_compile(calibrate):
    kernels = [calibrate.loads, calibrate.shared_loads, calibrate.turns, calibrate.blocks]
    kernels += [calibrate.build_phases(), calibrate.build_handover()]
    ways = "warp", "stage", "block", "none"
    kernels += [calibrate.build_copies((32, 2, 2), 4, 8, 2, fence, 4) for fence in ways]
    assert len({kernel.compile().cubin for kernel in kernels}) == len(kernels)

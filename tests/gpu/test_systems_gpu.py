"""The probe and the tile copy on a real GPU, and the driver's view of the encode rules."""

import numpy as np

from numba_deform.measure.systems import run_probe, run_tile_copy


def test_probe(hopper):
    result = run_probe("gpu")
    assert result.passed, result.reason
    assert np.allclose(result.first, np.arange(8) / 100)


def test_probe_over_the_border(hopper):
    assert run_probe("gpu", corner=(-1, 99)).passed


def test_tile_copy(hopper):
    result = run_tile_copy("gpu")
    assert result.passed and result.milliseconds > 0

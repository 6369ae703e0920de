"""Shared by all tests: GPU tests skip themselves where there is none, saying so."""

from pathlib import Path

import pytest

from numba_deform.attention import tuned
from numba_deform.engines.gpu.device import GpuMissing, find_gpu


@pytest.fixture(scope="session")
def hopper():
    """The GPU, or a skip that says what is missing."""
    try:
        gpu = find_gpu()
    except GpuMissing as error:
        pytest.skip(str(error))
    if gpu.capability < (9, 0):
        pytest.skip(f"needs compute capability 9.0 or newer, found {gpu.describe()}")
    return gpu


@pytest.fixture(autouse=True)
def untuned(monkeypatch, tmp_path):
    """What somebody has tuned on this machine is none of the tests' business."""
    monkeypatch.setenv(tuned.VARIABLE, str(tmp_path / "tuned.json"))


@pytest.fixture(scope="session")
def root():
    return Path(__file__).resolve().parents[1]

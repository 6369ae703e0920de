"""All tests of lessons run on the CPU engine; tests/gpu runs the notebooks on the GPU."""

import pytest


@pytest.fixture(autouse=True)
def on_the_cpu_engine(monkeypatch):
    monkeypatch.setenv("NUMBA_DEFORM_ENGINE", "cpu")

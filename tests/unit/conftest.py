"""Shared by the tests of host code."""

import pytest

from numba_deform.cli import inputs
from numba_deform.compiler.sass import ToolMissing


@pytest.fixture
def no_registers(monkeypatch):
    """Leave the compiler out, which costs two seconds for each new kernel."""

    def missing(kernel, architecture):
        raise ToolMissing("not in this test")

    monkeypatch.setattr(inputs, "inspect_kernel", missing)

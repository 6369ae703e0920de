"""Shared by the tests of host code."""

import pytest

from numba_deform.cli import inputs, main
from numba_deform.compiler.sass import ToolMissing
from numba_deform.engines.gpu import device as host_gpu
from numba_deform.engines.gpu.device import GpuMissing


@pytest.fixture
def no_gpu(monkeypatch):
    """The same on every machine: no GPU, unless a test puts one there."""

    def find(number):
        raise GpuMissing("no CUDA GPU can be used: no driver.")

    monkeypatch.setattr(host_gpu, "_find", find)


@pytest.fixture
def call(capsys):
    """``call("run batch=1")``, or with a list of words -> (exit status, stdout, stderr)."""

    def run(words):
        status = main(words.split() if isinstance(words, str) else words)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return status, captured.out, captured.err

    return run


@pytest.fixture
def no_registers(monkeypatch):
    """Leave the compiler out, which costs two seconds for each new kernel."""

    def missing(kernel, architecture):
        raise ToolMissing("not in this test")

    monkeypatch.setattr(inputs, "inspect_kernel", missing)

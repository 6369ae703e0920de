"""Shared by all tests: one compile cache for all workers; GPU tests that skip themselves, saying why."""

import gc
import itertools
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import slow
from hypothesis import HealthCheck, given, settings, strategies

from numba_deform.attention import tuned
from numba_deform.engines.cpu.native.codegen import code_cache
from numba_deform.engines.gpu.device import GpuMissing, find_gpu

CACHE = "NUMBA_DEFORM_CACHE"
# The same examples on every machine, however slow it is.
settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")
_made = pytest.StashKey[str]()
_numbers = itertools.count()
# Types and machine code of thousands of kernels stay: a collection that looks at all of them takes a second.
gc.set_threshold(700, 10, 1000)


def pytest_configure(config):
    """The first process makes the cache's directory; its workers and their children inherit the name."""
    if not os.environ.get(CACHE):
        os.environ[CACHE] = config.stash[_made] = tempfile.mkdtemp(prefix="numba-deform-tests-")


@pytest.hookimpl(trylast=True)
def pytest_sessionstart():
    """Before its first test Hypothesis has the garbage collector look twice at all that there is, for whoever
    refers to its random numbers: six seconds, once there are thousands of kernels. Now there is little."""
    settings(max_examples=1)(given(strategies.none())(lambda nothing: None))()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What ``slow.txt`` names is exhaustive."""
    names = slow.names()
    for item in items:
        if {item.nodeid, item.nodeid.partition("[")[0]} & names:  # one case, or all of a test
            item.add_marker(pytest.mark.full)


def pytest_unconfigure(config):
    """Remove what this process made. It ends sooner if nobody looks for garbage among it, three times over."""
    gc.freeze()
    if place := config.stash.get(_made, None):
        del os.environ[CACHE]
        shutil.rmtree(place, ignore_errors=True)


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
def untuned(monkeypatch, tmp_path_factory):
    """What somebody has tuned on this machine is none of the tests' business."""
    place = tmp_path_factory.getbasetemp() / f"tuned-{next(_numbers)}"  # made by a test that tunes
    monkeypatch.setenv(tuned.VARIABLE, str(place / "tuned.json"))


@pytest.fixture(autouse=True)
def code_is_made():
    """Where there is no machine code, that is meant: an error while it is made fails the test."""
    yield
    found, code_cache.FAILURES[:] = list(code_cache.FAILURES), []
    assert not found, found[0]


@pytest.fixture(scope="session")
def root():
    return Path(__file__).resolve().parents[1]

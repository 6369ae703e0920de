"""The right twin of every planted fault on a real GPU, and the faults that hang: stopped, not waited for."""

import pytest

from numba_deform.bugs import BUGS
from numba_deform.bugs.gpu import run_on_gpu


@pytest.mark.parametrize("name", BUGS)
def test_right_twin(hopper, name):
    assert run_on_gpu(BUGS[name], fixed=True).kind == "right"


def test_a_hang_is_stopped(hopper):
    """Seed 002's block-wide barrier that the tail never reaches; the GPU works afterwards."""
    assert run_on_gpu(BUGS["tail_skips_barrier"]).kind == "hang"
    assert run_on_gpu(BUGS["tail_skips_barrier"], fixed=True).kind == "right"

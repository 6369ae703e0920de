"""The right twin of every planted fault on a real GPU, and the faults that hang: stopped, or reported."""

import pytest

from numba_deform.course.bugs import BUGS
from numba_deform.course.bugs.gpu import run_on_gpu
from numba_deform.engines.faults import SimFault

HANGING = (  # those that hang on an H200 every time
    "no_full_wait", "parity_inverted", "parity_two_behind", "expect_too_many", "count_too_high",
    "init_again", "index_past_array", "tail_skips_barrier", "divergent_syncthreads",
    "named_barrier_count", "flag_never_set",
)  # fmt: skip


@pytest.mark.parametrize("debug", [False, True], ids=["plain", "guarded"])
@pytest.mark.parametrize("name", BUGS)
def test_right_twin(hopper, name, debug):
    assert run_on_gpu(BUGS[name], fixed=True, debug=debug).kind == "right"


def test_a_hang_is_stopped(hopper):
    """Seed 002's block-wide barrier that the tail never reaches; the GPU works afterwards."""
    assert run_on_gpu(BUGS["tail_skips_barrier"]).kind == "hang"
    assert run_on_gpu(BUGS["tail_skips_barrier"], fixed=True).kind == "right"


@pytest.mark.parametrize("name", HANGING)
def test_a_bounded_hang_is_reported(hopper, name):
    """Within 5 s, at a line of the fault's own file that waits, and the process goes on using the GPU."""
    outcome = run_on_gpu(BUGS[name], debug=True)
    assert outcome.kind == "report" and outcome.usable, outcome.text
    fault = outcome.fault
    assert isinstance(fault, SimFault) and fault.where.startswith(BUGS[name].file)
    assert any(word in fault.source for word in ("wait", "sync")), fault.source
    assert fault.waits and fault.threads and type(fault).cure in outcome.text

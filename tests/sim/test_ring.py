"""The ring: right, it is clean under every schedule; each of its ten faults is told by its own name."""

import numpy as np
import pytest
from helpers import LANDINGS
from ring import THREADS, arguments, ring

from numba_deform.engines import faults
from numba_deform.engines.cpu import SimFault, simulate

full = pytest.mark.full


@pytest.mark.parametrize("landing", LANDINGS)
@pytest.mark.parametrize("seeds", [3, pytest.param(20, marks=full)])
def test_the_right_ring_is_clean_and_right(landing, seeds):
    args, expected = arguments()
    kernel = ring()
    for seed in range(seeds):
        args[1][:] = np.nan
        report = simulate(kernel, 1, THREADS, args, seed=seed, landing=landing)
        np.testing.assert_allclose(args[1], expected, atol=1e-4)
        assert report.copies == 32


def test_short_and_odd_lengths():
    for iterations in (4, 5, 7, 11):
        args, expected = arguments(iterations, seed=iterations)
        simulate(ring(), 1, THREADS, args, schedules=2)
        np.testing.assert_allclose(args[1], expected, atol=1e-4)


# options of the ring, fault, words of its message, the source line it names
FAULTS = {
    "too many bytes expected": (
        {"bytes": 2048}, faults.MissingBytes,
        ["bars[0], parity 0: phase 0, pending 0 of 1, tx-count 1024", "1024 bytes expected that no",
         "A  threads 0-255", "A itself (thread 0): issued copies here before"],
        "mbarrier_wait(full + 8 * s, parity)",
    ),
    "too few bytes expected": (
        {"bytes": 512}, faults.MoreBytesThanExpected,
        ["signal bars[0] bring 1024 bytes", "thread 0 announces 512 bytes here"],
        "mbarrier_arrive_expect_tx(full + 8 * s, expected)",
    ),
    "one arrival too few expected": (
        {"empty_count": THREADS - 1}, faults.TooManyArrivals,
        ["arrives on bars[4]", "the 255 expected arrivals were made by others"],
        "mbarrier_arrive(empty + 8 * s)",
    ),
    "one arrival too many expected": (
        {"empty_count": THREADS + 1}, faults.MissingArrivals,
        ["A  thread 0", "phase 0, pending 1 of 257", "1 arrival missing", "nobody is left who could",
         "B  threads 1-255", "A (thread 0): arrived here before"],
        "mbarrier_wait(empty + 8 * s, parity)",
    ),
    "initialised twice": (
        {"init_twice": True}, faults.LiveBarrierInit,
        ["initialises bars[0] again", "phase 0, pending 1 of 1"],
        "mbarrier_init(full, 1)",
    ),
    "no wait on full": (
        {"full_wait": "none"}, faults.InFlightRead,
        ["reads tile[", "TMA load at (0,) issued by", "has not waited for it",
         "completes phase 0 of bars[0]"],
        "total += tile[s, tid]",
    ),
    "parity never flips": (
        {"full_wait": "never_flips"}, faults.StaleWait,
        ["it completes phase 1 of bars[0]", "returned for phase 0"],
        "total += tile[s, tid]",
    ),
    "parity inverted": (
        {"full_wait": "inverted"}, faults.FreshBarrierPassed,
        ["completes phase 0 of bars[0]", "returned before any phase was complete"],
        "total += tile[s, tid]",
    ),
    "no wait on empty": (
        {"empty_wait": "none"}, faults.RefillRace,
        ["issues a TMA load at (1024,) into tile[byte 0]", "nothing says that the read is over"],
        "cp_async_bulk_tensor_1d(",
    ),
    "empty parity inverted": (
        {"empty_wait": "inverted"}, faults.StaleRefill,
        ["issues a TMA load at (1024,) into tile[byte 0]", "its last wait on bars[4]",
         "returned before any phase was complete"],
        "cp_async_bulk_tensor_1d(",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_has_its_name(name):
    options, kind, words, source = FAULTS[name]
    args, _ = arguments()
    with pytest.raises(SimFault) as caught:
        simulate(ring(**options), 1, THREADS, args)
    fault = caught.value
    assert type(fault) is kind, fault
    for word in words:
        assert word in str(fault), (word, str(fault))
    assert fault.source == source
    assert "/ring.py:" in fault.where
    assert (fault.block, fault.seed, fault.landing) == (0, 0, "late")
    assert kind.rule in str(fault) and fault.cure and fault.cure in str(fault)


# Where who comes first decides which rule is broken first. All others have one verdict.
OTHER_VERDICTS = {
    # The thread that nobody waits for either reads while the stage is refilled, or arrives too late.
    "one arrival too few expected": {"RefillRace", "StaleRefill", "MissingArrivals"},
    # A thread that runs ahead reads old data, which is no fault, and then arrives twice; one that comes late
    # waits for a phase that is over, and for ever.
    "parity never flips": {"TooManyArrivals", "UnobservedPhase", "MissingArrivals"},
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("seeds", [1, pytest.param(5, marks=full)])
def test_each_fault_is_found_under_every_schedule(name, seeds):
    options, kind, _, _ = FAULTS[name]
    kernel, (args, _) = ring(**options), arguments(12)
    allowed = {kind.__name__} | OTHER_VERDICTS.get(name, set())
    for landing in LANDINGS:
        for seed in range(seeds):
            with pytest.raises(SimFault) as caught:
                simulate(kernel, 1, THREADS, args, seed=seed, landing=landing)
            assert type(caught.value).__name__ in allowed, (seed, landing, caught.value)

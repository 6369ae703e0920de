"""mbarrier, named barriers and syncthreads; and what is said when nobody gets on."""

import inspect
import re
from types import FunctionType

import numpy as np
import pytest
from helpers import LANDINGS, aligned, always, clean, device, expect, fault_of, floats, nans, run
from numba import cuda, float32, int32, uint8, uint32, uint64

from numba_deform.device.layout import Shared
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_count,
    mbarrier_arrive_expect_tx,
    mbarrier_expect_tx,
    mbarrier_init,
    mbarrier_inval,
    mbarrier_test_wait_parity,
    mbarrier_try_wait_parity,
)
from numba_deform.device.memory import (
    global_address,
    ld_acquire_cta_shared_b32,
    ld_shared_b32,
    shared_address,
    st_shared_b32,
)
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.rings import Ring
from numba_deform.device.sync import bar_arrive, bar_sync, fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import cp_async_bulk_load
from numba_deform.engines import faults
from numba_deform.engines.cpu import SimFault, explore
from numba_deform.engines.cpu.async_units.mbarrier import MBarrier
from numba_deform.engines.cpu.frontends.threads import Threads
from numba_deform.engines.cpu.machine.block import Block

MAX = (1 << 20) - 1


@cuda.jit(device=True)
def one_barrier(count):
    """The address of a barrier that all threads may use."""
    bars = cuda.shared.array(1, uint64)
    bar = shared_address(bars)
    if cuda.threadIdx.x == 0:
        mbarrier_init(bar, count)
    cuda.syncthreads()
    return bar


# --- init and inval -------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [1, MAX])
def test_counts_in_range(count):
    def kernel(out):
        bar = one_barrier(count)
        if cuda.threadIdx.x == 0:
            mbarrier_arrive_count(bar, count)
            out[0] = mbarrier_test_wait_parity(bar, 0)

    out = nans(1)
    clean(kernel, out)
    assert out[0] == 1


U32 = 0xFFFFFFFF  # what a parameter of type u32 makes of a negative number


@pytest.mark.parametrize("count", [0, MAX + 1, -1])
def test_counts_out_of_range(count):
    def init():
        one_barrier(count)

    def arrive():
        mbarrier_arrive_count(one_barrier(5), count)

    expect(faults.BadCount, init, words=f"initialises bars[byte 0] with a count of {count & U32}")
    expect(faults.BadCount, arrive, block=1, words=f"arrives {count & U32} times on bars[0]")


OPERATIONS = {
    "arrive": lambda bar: mbarrier_arrive(bar),
    "arrive_count": lambda bar: mbarrier_arrive_count(bar, 1),
    "arrive_expect_tx": lambda bar: mbarrier_arrive_expect_tx(bar, 16),
    "expect_tx": lambda bar: mbarrier_expect_tx(bar, 16),
    "test_wait": lambda bar: mbarrier_test_wait_parity(bar, 0),
    "try_wait": lambda bar: mbarrier_try_wait_parity(bar, 0),
    "inval": lambda bar: mbarrier_inval(bar),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_on_what_is_no_barrier(name):
    operation = device(OPERATIONS[name])

    def kernel(at):
        bars = cuda.shared.array(4, uint64)
        bar = shared_address(bars)
        if cuda.threadIdx.x == 0:
            mbarrier_init(bar, 1)
        cuda.syncthreads()
        operation(bar + at)

    for at, what in ((8, "bars[byte 8]"), (24, "bars[byte 24]"), (32, "shared address")):
        always(faults.NotABarrier, kernel, at, seeds=2, words=[f"uses {what}", "not an init"])
    for at in (4, 1, -3):
        expect(faults.Misaligned, kernel, at, words="not a multiple of 8")


def test_a_misaligned_init():
    def kernel():
        area = cuda.shared.array(64, uint8, alignment=8)
        mbarrier_init(shared_address(area) + 4, 1)

    expect(faults.Misaligned, kernel, block=1, words=["mbarrier at area[byte 4]"])

    def beyond():
        area = cuda.shared.array(16, uint8, alignment=8)
        mbarrier_init(shared_address(area) + 16, 1)

    expect(faults.OutOfRange, beyond, block=1, words="no array is there")


def test_inval_and_reuse():
    def kernel(out):
        tid = cuda.threadIdx.x
        area = cuda.shared.array(64, uint8, alignment=8)
        bar = shared_address(area)
        for life in range(3):
            if tid == 0:
                mbarrier_init(bar, 32)
            cuda.syncthreads()
            mbarrier_arrive(bar)
            mbarrier_wait(bar, 0)
            cuda.syncthreads()
            if tid == 7:
                mbarrier_inval(bar)
            cuda.syncthreads()
            area[tid] = life  # ordinary memory again
            cuda.syncthreads()
            out[tid] = area[31 - tid]
            cuda.syncthreads()

    out = np.zeros(32, np.int32)
    clean(kernel, out)
    assert (out == 2).all()


def test_after_inval_the_bytes_are_garbage():
    def kernel(out):
        bar = one_barrier(1)
        if cuda.threadIdx.x == 0:
            mbarrier_inval(bar)
            out[0] = ld_shared_b32(bar)

    always(faults.UninitialisedRead, kernel, nans(1), words="bars[0]")


def test_inval_out_of_order():
    def waited(out):
        bar = one_barrier(1)
        tid = cuda.threadIdx.x
        if tid == 0:
            mbarrier_arrive(bar)
        if tid < 2:
            mbarrier_wait(bar, 0)
        if tid == 0:
            mbarrier_inval(bar)

    def waiting(out):
        bar = one_barrier(1)
        if cuda.threadIdx.x == 1:
            mbarrier_wait(bar, 0)
        elif cuda.threadIdx.x == 0:
            mbarrier_inval(bar)

    def arrived(out):
        bar = one_barrier(2)
        if cuda.threadIdx.x == 1:
            mbarrier_arrive(bar)
        elif cuda.threadIdx.x == 0:
            mbarrier_inval(bar)

    def reused(out):
        bar = one_barrier(1)
        if cuda.threadIdx.x == 0:
            mbarrier_inval(bar)
        elif cuda.threadIdx.x == 1:
            st_shared_b32(bar, 1)

    for seed in range(6):
        for kernel in (waited, waiting, arrived):
            fault = fault_of(kernel, nans(1), seed=seed)
            assert type(fault) in (faults.InvalNotOrdered, faults.NotABarrier), fault
        fault = fault_of(reused, nans(1), seed=seed)
        assert type(fault) in (faults.DataRace, faults.LiveBarrierAccess), fault
    words = ["invalidates bars[0]", "thread 1 waits at", "nothing orders that before this"]
    assert any(
        all(w in str(fault_of(waited, nans(1), seed=seed)) for w in words) for seed in range(6)
    )


def test_inval_under_a_copy():
    def kernel(values):
        bar = one_barrier(1)
        tile = cuda.shared.array(4, float32, alignment=16)
        if cuda.threadIdx.x == 0:
            fence_mbarrier_init()
            mbarrier_arrive_expect_tx(bar, 16)
            cp_async_bulk_load(shared_address(tile), global_address(values), 16, bar)
            mbarrier_inval(bar)

    expect(faults.InvalNotOrdered, kernel, aligned(floats(4)), words="a copy in flight is going to")


def test_ordinary_access_to_a_live_barrier():
    def read(out):
        out[0] = ld_shared_b32(one_barrier(1) + 4)

    def write(out):
        st_shared_b32(one_barrier(1), 1)

    def through_an_array(out):
        bars = cuda.shared.array(1, uint64)
        mbarrier_init(shared_address(bars), 1)
        out[0] = bars[0]

    def acquire(out):
        ld_acquire_cta_shared_b32(one_barrier(1))

    def atomic(out):
        bars = cuda.shared.array(1, uint64)
        mbarrier_init(shared_address(bars), 1)
        cuda.atomic.add(bars, 0, 1)

    for kernel in (read, write, through_an_array, acquire, atomic):
        always(faults.LiveBarrierAccess, kernel, nans(1), block=1, seeds=2,
               words="the bytes of live barrier bars[0]")  # fmt: skip


def test_use_of_an_init_that_is_not_ordered():
    def kernel(user):
        bars = cuda.shared.array(1, uint64)
        bar = shared_address(bars)
        if cuda.threadIdx.x == 0:
            mbarrier_init(bar, 1)
        if cuda.threadIdx.x == user:
            mbarrier_arrive(bar)

    for user in (1, 40):
        always(faults.InitNotOrdered, kernel, user, block=64,
               words=["uses bars[0], which thread 0 initialised at", "nothing orders"],
               source="mbarrier_arrive(bar)")  # fmt: skip
    clean(kernel, 0, block=64)


def test_syncwarp_is_enough_for_a_warps_own_barrier():
    def kernel(out):
        tid = cuda.threadIdx.x
        bars = cuda.shared.array(2, uint64)
        bar = shared_address(bars) + 8 * (tid // 32)
        if tid % 32 == 0:
            mbarrier_init(bar, 32)
        cuda.syncwarp()
        mbarrier_arrive(bar)
        mbarrier_wait(bar, 0)
        out[tid] = 1

    out = np.zeros(64, np.int32)
    clean(kernel, out, block=64)
    assert out.all()


# --- arrivals -------------------------------------------------------------------------------------
def test_an_mbarrier_orders_memory():
    def kernel(out, skip):
        tile = cuda.shared.array(64, int32)
        bar = one_barrier(64 - skip)
        tid = cuda.threadIdx.x
        tile[tid] = tid
        if tid >= skip:
            mbarrier_arrive(bar)
        mbarrier_wait(bar, 0)
        out[tid] = tile[63 - tid]

    out = np.zeros(64, np.int32)
    clean(kernel, out, 0, block=64)
    np.testing.assert_array_equal(out, 63 - np.arange(64))
    for seed in range(4):  # thread 0 does not arrive, so nothing orders what it wrote
        expect(faults.DataRace, kernel, out, 1, block=64, seed=seed, words="thread 0 wrote")


def test_many_phases():
    def kernel(out):
        turn = cuda.shared.array(1, int32)
        bar = one_barrier(32)
        tid = cuda.threadIdx.x
        parity = 0
        for i in range(40):
            if tid == i % 32:
                turn[0] = i
            mbarrier_arrive(bar)
            mbarrier_wait(bar, parity)
            parity ^= 1
            out[i, tid] = turn[0]
            mbarrier_arrive(bar)
            mbarrier_wait(bar, parity)
            parity ^= 1

    out = np.zeros((40, 32), np.int32)
    clean(kernel, out)
    assert (out == np.arange(40)[:, None]).all()


def test_arrivals_with_a_count():
    def kernel(counts, out):
        bar = one_barrier(32)
        tid = cuda.threadIdx.x
        if tid < len(counts):
            mbarrier_arrive_count(bar, counts[tid])
        if tid == 31:
            mbarrier_wait(bar, 0)
            out[0] = 1

    out = np.zeros(1, np.int32)
    clean(kernel, np.array([10, 20, 2], np.int32), out)
    assert out[0] == 1
    expect(faults.MissingArrivals, kernel, np.array([10, 20], np.int32), out,
           words=["pending 2 of 32", "2 arrivals missing", "A  thread 31 (warp 0)"])  # fmt: skip
    fault = expect(faults.TooManyArrivals, kernel, np.array([10, 20, 3], np.int32), out)
    assert "arrives 3x on bars[0] in phase 0, where 2 of 32 arrivals are left" in str(fault)


def test_too_many_arrivals_in_any_order():
    def kernel():
        bar = one_barrier(31)
        mbarrier_arrive(bar)

    always(faults.TooManyArrivals, kernel, words=["bars[0]", "31 expected arrivals"])


def test_knowledge_of_a_phase_may_come_through_another_barrier():
    def kernel(through):
        bar = one_barrier(1)
        tid = cuda.threadIdx.x
        if tid == 0:
            mbarrier_arrive(bar)
            mbarrier_wait(bar, 0)
        if through:
            cuda.syncthreads()
        if tid == 1:
            mbarrier_arrive(bar)

    clean(kernel, True)
    always(faults.TooManyArrivals, kernel, False)


def by_hand(values, out, first, empties, fulls):
    """A ring of two stages without Ring: the parity of waits on empty barriers begins with ``first``; where
    ``empties`` or ``fulls`` is 0 the parity of those never changes."""
    rows = cuda.shared.array((2, 32), float32, alignment=128)
    full, empty = cuda.shared.array(2, uint64), cuda.shared.array(2, uint64)
    tid = cuda.threadIdx.x
    if tid == 0:
        for stage in range(2):
            mbarrier_init(shared_address(full) + 8 * stage, 1)
            mbarrier_init(shared_address(empty) + 8 * stage, 32)
        fence_mbarrier_init()
    cuda.syncthreads()
    total = float32(0)
    for step in range(6):
        stage, parity = step % 2, step // 2 & 1
        if tid == 32:
            mbarrier_wait(shared_address(empty) + 8 * stage, first ^ parity & empties)
            mbarrier_arrive_expect_tx(shared_address(full) + 8 * stage, 128)
            place, signal = shared_address(rows) + 128 * stage, shared_address(full) + 8 * stage
            cp_async_bulk_load(place, global_address(values) + 128 * step, 128, signal)
        elif tid < 32:
            mbarrier_wait(shared_address(full) + 8 * stage, parity & fulls)
            total += rows[stage, tid]
            fence_proxy_async()
            mbarrier_arrive(shared_address(empty) + 8 * stage)
    if tid < 32:
        out[tid] = total


def test_parities_of_a_ring_made_by_hand():
    values, out = aligned(floats(6 * 32)), nans(32)
    run(by_hand, values, out, 1, 1, 1, block=64)
    np.testing.assert_allclose(out, values.reshape(6, 32).sum(0), rtol=1e-5)
    seen = set()
    for landing in LANDINGS:
        begun = fault_of(by_hand, values, out, 0, 1, 1, block=64, landing=landing)
        assert type(begun) is faults.MissingArrivals
        assert begun.cure.startswith("Nobody has arrived on empty[0] or full[0] yet. A wait for a stage to be ")
        for flips, wait, arrival in (((1, 0), "full", "empty"), ((0, 1), "empty", "full")):
            for seed in range(3):
                fault = fault_of(by_hand, values, out, 1, *flips, block=64, seed=seed, landing=landing)
                assert "parity" in fault.cure, fault
                if isinstance(fault, (faults.TooManyArrivals, faults.UnobservedPhase)):
                    assert f"{arrival}[0]" in fault.what
                    again = {"full": "for phase 0 of full.0. again", "empty": "again before any phase of em"}
                    said = rf"The wait at .* has returned {again[wait]}.* Change its parity"
                    assert re.match(said, fault.cure)
                    seen.add((wait, type(fault)))
    assert len(seen) == 3


def test_a_wait_that_is_made_again_is_no_wait_for_a_stage():
    """Two arrivals too many are no matter of a third barrier on which a thread waits in each round."""

    def kernel():
        bars = cuda.shared.array(3, uint64)
        bar, tid = shared_address(bars), cuda.threadIdx.x
        if tid == 0:
            for i in range(3):
                mbarrier_init(bar + 8 * i, 1)
            mbarrier_arrive(bar + 16)
        cuda.syncthreads()
        if tid == 0:
            for _ in range(2):
                mbarrier_wait(bar + 16, 0)
                mbarrier_arrive(bar)

    fault = expect(faults.UnobservedPhase, kernel, words="its arrival in that was at")
    assert fault.cure == faults.UnobservedPhase.cure


# --- bytes ----------------------------------------------------------------------------------------
def test_expected_bytes_hold_a_phase_up():
    def kernel(values, out):
        bar = one_barrier(1)
        tile = cuda.shared.array(8, float32, alignment=16)
        if cuda.threadIdx.x == 0:
            fence_mbarrier_init()
            mbarrier_expect_tx(bar, 16)
            mbarrier_arrive_expect_tx(bar, 16)
            out[0] = mbarrier_test_wait_parity(bar, 0)
            cp_async_bulk_load(shared_address(tile), global_address(values), 16, bar)
            out[1] = mbarrier_test_wait_parity(bar, 0)
            cp_async_bulk_load(shared_address(tile) + 16, global_address(values), 16, bar)
        mbarrier_wait(bar, 0)
        if cuda.threadIdx.x == 0:
            out[2] = tile[0] + tile[4]

    values = aligned(floats(4))
    for landing in LANDINGS:
        out = nans(3)
        run(kernel, values, out, landing=landing)
        np.testing.assert_array_equal(out, [0, 0, 2 * values[0]])


def test_bytes_may_land_before_they_are_expected():
    """The tx-count is negative for a while, which is fine as long as an arrival is missing."""

    def kernel(values, out):
        bar = one_barrier(2)
        tile = cuda.shared.array(4, float32, alignment=16)
        tid = cuda.threadIdx.x
        if tid == 0:
            fence_mbarrier_init()
            cp_async_bulk_load(shared_address(tile), global_address(values), 16, bar)
            mbarrier_arrive(bar)
            mbarrier_expect_tx(bar, 16)
            mbarrier_arrive(bar)
        mbarrier_wait(bar, 0)
        if tid < 4:
            out[tid] = tile[tid]

    values, out = aligned(floats(4)), nans(4)
    clean(kernel, values, out)
    np.testing.assert_array_equal(out, values)


def test_bytes_are_announced_as_their_copies_go():
    """Each time before the copy that is under way is issued, so that the phase lacks bytes meanwhile; or of two
    threads, where the one that arrives comes later."""

    def one_ahead(values, out):
        bar = one_barrier(1)
        tile = cuda.shared.array(8, float32, alignment=16)
        if cuda.threadIdx.x == 0:
            fence_mbarrier_init()
            mbarrier_arrive_expect_tx(bar, 16)
            mbarrier_expect_tx(bar, 16)
            cp_async_bulk_load(shared_address(tile), global_address(values), 16, bar)
            cp_async_bulk_load(shared_address(tile) + 16, global_address(values), 16, bar)
        mbarrier_wait(bar, 0)
        if cuda.threadIdx.x < 4:
            out[cuda.threadIdx.x] = tile[4 + cuda.threadIdx.x]

    def by_two(values, out):
        bar = one_barrier(1)
        tile = cuda.shared.array(4, float32, alignment=16)
        tid = cuda.threadIdx.x
        fence_mbarrier_init()
        if tid == 0:
            mbarrier_expect_tx(bar, 16)
            cp_async_bulk_load(shared_address(tile), global_address(values), 16, bar)
        cuda.syncwarp()
        if tid == 1:
            mbarrier_arrive(bar)
        mbarrier_wait(bar, 0)
        if tid < 4:
            out[tid] = tile[tid]

    values = aligned(floats(4))
    for kernel in one_ahead, by_two:
        out = nans(4)
        clean(kernel, values, out)
        np.testing.assert_array_equal(out, values)


def test_bytes_are_not_announced_when_the_phase_may_be_over():
    """The copy of the bytes announced first may have landed before the others are."""

    def kernel(values):
        bar = one_barrier(1)
        tile = cuda.shared.array(8, float32, alignment=16)
        if cuda.threadIdx.x == 0:
            fence_mbarrier_init()
            mbarrier_arrive_expect_tx(bar, 16)
            cp_async_bulk_load(shared_address(tile), global_address(values), 16, bar)
            mbarrier_expect_tx(bar, 16)
            cp_async_bulk_load(shared_address(tile) + 16, global_address(values), 16, bar)
        mbarrier_wait(bar, 0)

    always(faults.UnobservedPhase, kernel, aligned(floats(4)), source="mbarrier_expect_tx(bar, 16)")


def test_bytes_that_nobody_expects():
    def kernel(values):
        bar = one_barrier(1)
        tile = cuda.shared.array(4, float32, alignment=16)
        if cuda.threadIdx.x == 0:
            fence_mbarrier_init()
            cp_async_bulk_load(shared_address(tile), global_address(values), 16, bar)
            mbarrier_arrive(bar)
            mbarrier_wait(bar, 0)
            tile[0]

    values = aligned(floats(4))
    # Late, the phase is over before the bytes land, which the read notices.
    always(faults.MoreBytesThanExpected, kernel, values, source="cp_async_bulk_load",
           words="bars[0] bring 16 bytes, of which nobody has announced any")  # fmt: skip


@pytest.mark.parametrize("count", [-1, MAX + 1, 1 << 30])
def test_expected_bytes_out_of_range(count):
    def expect_tx():
        mbarrier_expect_tx(one_barrier(1), count)

    def arrive_expect_tx():
        mbarrier_arrive_expect_tx(one_barrier(1), count)

    for kernel in (expect_tx, arrive_expect_tx):
        expect(faults.BadCount, kernel, block=1, words=f"expects {count & U32} bytes on bars[0]")


def test_the_sum_of_expected_bytes_out_of_range():
    def kernel():
        bar = one_barrier(1)
        mbarrier_expect_tx(bar, MAX)
        mbarrier_expect_tx(bar, 1)

    expect(faults.BadCount, kernel, block=1, words=f"tx-count of bars[0] becomes {MAX + 1}")


# --- waiting --------------------------------------------------------------------------------------
def test_a_fresh_barrier_passes_parity_1():
    def kernel(out):
        bar = one_barrier(1)
        tid = cuda.threadIdx.x
        out[tid, 0] = mbarrier_test_wait_parity(bar, 1)
        out[tid, 1] = mbarrier_test_wait_parity(bar, 0)
        mbarrier_wait(bar, 1)
        cuda.syncthreads()
        if tid == 0:
            mbarrier_arrive(bar)
        mbarrier_wait(bar, 0)
        out[tid, 2] = mbarrier_test_wait_parity(bar, 0)
        out[tid, 3] = mbarrier_test_wait_parity(bar, 1)

    for landing in LANDINGS:
        for seed in range(3):
            out = np.full((32, 4), -1, np.int32)
            run(kernel, out, seed=seed, landing=landing)
            assert (out == [1, 0, 1, 0]).all()


@pytest.mark.parametrize("parity", [2, -1, 3])
def test_a_parity_is_one_bit(parity):
    def kernel():
        mbarrier_test_wait_parity(one_barrier(1), parity)

    expect(faults.BadCount, kernel, block=1, words=f"waits on bars[0] for parity {parity & U32}")


def test_test_wait_never_waits():
    """Even when the only thing left to do is the copy it asks for."""

    def kernel(values, out):
        bar = one_barrier(1)
        tile = cuda.shared.array(4, float32, alignment=16)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(bar, 16)
        cp_async_bulk_load(shared_address(tile), global_address(values), 16, bar)
        out[0] = mbarrier_test_wait_parity(bar, 0)
        polls = 0
        while mbarrier_test_wait_parity(bar, 0) == 0:
            polls += 1
        out[1] = tile[0]

    values, out = aligned(floats(4)), nans(2)
    run(kernel, values, out, block=1)
    np.testing.assert_array_equal(out, [0, values[0]])
    run(kernel, values, out, block=1, landing="earliest")
    np.testing.assert_array_equal(out, [1, values[0]])


def test_try_wait_may_come_back_early():
    def kernel(out):
        bar = one_barrier(1)
        tid = cuda.threadIdx.x
        if tid == 0:
            for i in range(50):
                cuda.nanosleep(i)
            mbarrier_arrive(bar)
        tries = 0
        while mbarrier_try_wait_parity(bar, 0) == 0:
            tries += 1
        out[tid] = tries

    out = np.zeros(32, np.int32)
    run(kernel, out)
    assert (out == 0).all()  # in turn: it suspends
    early = 0
    for seed in range(1, 5):
        run(kernel, out, seed=seed)
        early += out.max() > 0
    assert early == 4


def test_a_phase_that_ends_before_its_waiter_looks():
    """Thread 0 drives the barrier on its own, so the others may miss any phase."""

    def kernel(poll):
        bar = one_barrier(1)
        tid = cuda.threadIdx.x
        parity = 0
        for _ in range(6):
            if tid == 0:
                mbarrier_arrive(bar)
            if poll:
                while mbarrier_test_wait_parity(bar, parity) == 0:
                    pass
            else:
                mbarrier_wait(bar, parity)
            parity ^= 1

    for poll in (False, True):
        always(faults.MissedPhase, kernel, poll, words=["waits on bars[0] for phase"],
               source="mbarrier_")  # fmt: skip


def test_a_late_thread_skips_phases():
    def kernel():
        bar = one_barrier(1)
        tid = cuda.threadIdx.x
        if tid == 0:
            for i in range(3):
                mbarrier_arrive(bar)
                mbarrier_wait(bar, i & 1)
            cuda.nanosleep(1)
        elif tid == 1:
            for _ in range(5):
                cuda.nanosleep(1)
            mbarrier_wait(bar, 0)

    expect(faults.MissedPhase, kernel, words="waits on bars[0] for phase 0")


@pytest.mark.parametrize("meet", ["before the wait", "behind the wait"])
def test_a_phase_that_one_of_two_warps_may_end(meet):
    """Warp 0 answers for both: the producer goes on though warp 1 may not have looked. That is right only where
    the warps meet between the wait and the answer."""

    def kernel(out):
        bar, tid = one_barrier(1), int32(cuda.threadIdx.x)
        answered = shared_address(cuda.shared.array(1, uint64))
        if tid == 0:
            mbarrier_init(answered, 1)
        cuda.syncthreads()
        if tid >= 64:
            for i in range(4):
                mbarrier_wait(answered, i & 1 ^ 1)
                cuda.syncwarp()
                if tid == 64:
                    mbarrier_arrive(bar)
        else:
            for i in range(4):
                if meet == "before the wait":
                    bar_sync(1, 64)
                mbarrier_wait(bar, i & 1)
                if meet == "behind the wait":
                    bar_sync(1, 64)
                cuda.syncwarp()
                if tid == 0:
                    mbarrier_arrive(answered)
            out[tid] = 1

    if meet == "before the wait":
        always(faults.MissedPhase, kernel, nans(64), words=["waits on bars[0] for phase"], block=96,
               source="mbarrier_wait(bar, i & 1)")  # fmt: skip
    else:
        clean(kernel, nans(64), block=96)


def test_a_vote_tells_others_of_a_wait():
    """Lane 0 answers for its warp once all lanes have voted: that orders nothing, but each has looked."""

    def kernel(out):
        bar, lane = one_barrier(1), int32(cuda.threadIdx.x)
        for i in range(4):
            if lane == 0:
                mbarrier_arrive(bar)
            mbarrier_wait(bar, i & 1)
            cuda.all_sync(0xFFFFFFFF, 1)
        out[lane] = 1

    clean(kernel, nans(32))


@pytest.mark.parametrize("told", [True, False])
def test_a_phase_that_waits_for_a_copy(told):
    """Thread 0 arrives in phase 1 before thread 1 may have looked at phase 0; the phase needs a copy as well,
    whose thread has been ``told`` of that wait, or has not."""

    def kernel(values, out):
        tile = cuda.shared.array(4, float32, alignment=16)
        bars = shared_address(cuda.shared.array(2, uint64))
        looked, tid = bars + uint32(8), int32(cuda.threadIdx.x)
        if tid == 0:
            mbarrier_init(bars, 1)
            mbarrier_init(looked, 1)
            fence_mbarrier_init()
        cuda.syncthreads()
        if tid == 0:
            mbarrier_arrive(bars)
            mbarrier_wait(bars, 0)
            mbarrier_arrive_expect_tx(bars, 16)
        elif tid == 1:
            mbarrier_wait(bars, 0)
            mbarrier_arrive(looked)
        else:
            if told:
                mbarrier_wait(looked, 0)
            else:
                mbarrier_wait(bars, 0)
            cp_async_bulk_load(shared_address(tile), global_address(values), 16, bars)
            mbarrier_wait(bars, 1)
            out[0] = tile[3]

    values = aligned(floats(4))
    if told:
        out = nans(1)
        clean(kernel, values, out, block=3)
        assert out[0] == values[3]
    else:
        always(faults.MissedPhase, kernel, values, nans(1), block=3, words=["waits on bars[0] for phase 0"])


def phases_seen_by_others(told, copied=False, poll=False):
    """Threads 0 and 1 take three phases of a barrier in turn, and thread 2 waits for the last of them: what
    completed the others comes before it if it has been ``told``."""

    def kernel(values, out):
        tile = cuda.shared.array(4, float32, alignment=16)
        bars = cuda.shared.array(3, uint64)
        tid, bar = cuda.threadIdx.x, shared_address(bars)
        if tid == 0:
            for i in range(3):
                mbarrier_init(bar + 8 * i, 2 if i < 2 else 1)
            fence_mbarrier_init()
        cuda.syncthreads()
        if tid < 2:
            for i in range(3):
                if copied and i == 1 and tid == 0:
                    mbarrier_arrive_expect_tx(bar, 16)
                    cp_async_bulk_load(shared_address(tile), global_address(values), 16, bar)
                else:
                    mbarrier_arrive(bar)
                if i == 1:
                    mbarrier_arrive(bar + 8)  # says that this thread has arrived, not that the phase is over
                if i < 2:
                    mbarrier_wait(bar, i & 1)
                if i == 2 and tid == 0:
                    mbarrier_wait(bar, 0)
                    mbarrier_arrive(bar + 16)
        elif tid == 2:
            if told:
                mbarrier_wait(bar + 8, 0)
            for _ in range(20):
                cuda.nanosleep(1)
            if poll:
                while mbarrier_test_wait_parity(bar, 0) == 0:
                    pass
            else:
                mbarrier_wait(bar, 0)
            out[0] = 1
        mbarrier_wait(bar + 16, 0)

    return kernel


@pytest.mark.parametrize("poll", [False, True])
def test_a_phase_is_over_for_those_after_all_its_arrivals(poll):
    values, out = aligned(floats(4)), nans(1)
    clean(phases_seen_by_others(told=True, poll=poll), values, out)
    assert out[0] == 1
    explore(phases_seen_by_others(told=True, poll=poll), 1, 3, (values, out), limit=100)
    words = "waits on bars[0] for phase"
    expect(faults.MissedPhase, phases_seen_by_others(False, poll=poll), values, out, words=words)
    # Bytes that complete a phase are known by a wait alone.
    expect(faults.MissedPhase, phases_seen_by_others(True, True, poll), values, out, words=words)


def test_a_poll_may_fail_in_two_phases_of_one_parity():
    """Between the two looks the thread learns that both phases are over."""

    def kernel(out):
        bar, tid = one_barrier(31), cuda.threadIdx.x
        for i in range(3):
            if tid == 0:
                out[i] = mbarrier_test_wait_parity(bar, 0)
            cuda.syncwarp()
            for k in range(2 - i):
                if tid > 0:
                    mbarrier_arrive(bar)
                    mbarrier_wait(bar, k)
            cuda.syncwarp()

    out = np.zeros(3, np.int32)
    clean(kernel, out)
    assert list(out) == [0, 0, 1]


# --- named barriers -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "number, threads", [(16, 64), (-1, 64), (1, 0), (1, 48), (1, 96), (1, -32)]
)
def test_wrong_numbers_of_a_named_barrier(number, threads):
    def sync():
        bar_sync(number, threads)

    def arrive():
        bar_arrive(number, threads)

    for kernel in (sync, arrive):
        expect(faults.NamedBarrierMisuse, kernel, block=64,
               words=f"named barrier {number & U32} with {threads & U32} threads in a block of 64")  # fmt: skip


def test_a_named_barrier_from_one_lane():
    def sync():
        if cuda.threadIdx.x % 32 == 0:
            bar_sync(1, 64)
        cuda.syncwarp()

    def arrive():
        if cuda.threadIdx.x == 0:
            bar_arrive(1, 64)
        elif cuda.threadIdx.x >= 32:
            bar_sync(1, 64)
        cuda.syncwarp()

    def many_times():
        tid = cuda.threadIdx.x
        if tid == 0:
            for _ in range(32):
                bar_arrive(1, 64)
        elif tid >= 32:
            bar_sync(1, 64)
        cuda.syncwarp()

    always(faults.NamedBarrierMisuse, sync, block=64, words="only some lanes", seeds=2)
    always(faults.NamedBarrierMisuse, arrive, block=64, seeds=2,
           words="of its warp exits without doing so", source="bar_arrive(1, 64)")  # fmt: skip
    always(
        faults.NamedBarrierMisuse, many_times, block=64, words="arrives at named barrier 1 again"
    )


def test_a_named_barrier_for_more_threads_than_come():
    def kernel(others):
        tid = cuda.threadIdx.x
        if tid < 64 or tid == 64 and others:
            bar_sync(1, 96)

    said = "The count of named barrier 1 is 96, and no others than threads 0-63 have come to it: make it 64"
    always(faults.Deadlock, kernel, False, block=96, seeds=2, words=said)
    assert "make it" not in fault_of(kernel, True, block=96).cure


def test_mixed_counts():
    def kernel():
        bar_sync(3, 64 if cuda.threadIdx.x < 32 else 96)

    always(faults.NamedBarrierMisuse, kernel, block=96, words="named barrier 3 with")


def test_syncthreads_and_bar_sync_0_are_one_barrier():
    def kernel():
        if cuda.threadIdx.x < 32:
            bar_sync(0, 64)
        else:
            bar_sync(0, 32)

    always(faults.NamedBarrierMisuse, kernel, block=64, words="named barrier 0")


def test_a_named_barrier_that_nobody_completes():
    def kernel():
        if cuda.threadIdx.x < 32:
            bar_sync(4, 64)

    always(faults.Deadlock, kernel, block=96, source="bar_sync(4, 64)",
           words=["A  threads 0-31 (warp 0)", "waits on bar.sync (barrier 4): 32 of 64",
                  "threads 32-95 have exited"])  # fmt: skip


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("block, threads, ends", [(96, 96, False), (128, 128, False), (96, 64, True),
                                                  (128, 96, True)])  # fmt: skip
def test_a_count_is_waited_for_though_a_warp_has_exited(number, block, threads, ends):
    """As an H200 does it. Lanes that have left a warp still count with it."""

    def kernel():
        tid = cuda.threadIdx.x
        if tid < 32 or tid == 40:
            return
        bar_sync(number, threads)

    if ends:
        clean(kernel, block=block)
    else:
        always(faults.Deadlock, kernel, block=block, source="bar_sync(number, threads)",
               words=["32 threads missing", "threads 0-31 could (not at this", "have exited"])  # fmt: skip


# --- syncthreads ----------------------------------------------------------------------------------
def test_syncthreads_that_some_never_reach():
    def kernel():
        if cuda.threadIdx.x != 3:
            cuda.syncthreads()
        else:
            cuda.syncwarp(8)
            bar_sync(1, 64)

    always(faults.DivergentBarrier, kernel, block=64, source="cuda.syncthreads()",
           words=["A  threads 0-2, 4-63 (warps 0-1)", "63 of 64 threads", "of warp 0 only some lanes",
                  "-> B (thread 3)"])  # fmt: skip


def test_syncthreads_in_loops_and_device_functions():
    @cuda.jit(device=True)
    def exchange(tile, tid, value):
        tile[tid] = value
        cuda.syncthreads()
        got = tile[tid ^ 1]
        cuda.syncthreads()
        return got

    def kernel(out):
        tile = cuda.shared.array(64, int32)
        tid = cuda.threadIdx.x
        value = tid
        for _ in range(3):
            value = exchange(tile, tid, value)
        value = exchange(tile, tid, value + 1)
        out[tid] = value

    out = np.zeros(64, np.int32)
    clean(kernel, out, block=64)
    np.testing.assert_array_equal(out, np.arange(64) + 1)


# --- no progress ----------------------------------------------------------------------------------
def test_a_deadlock_says_who_waits_where_for_what():
    def kernel():
        bars = cuda.shared.array(3, uint64)
        bar = shared_address(bars)
        tid = cuda.threadIdx.x
        if tid == 0:
            for i in range(3):
                mbarrier_init(bar + 8 * i, 2 + i)
        cuda.syncthreads()
        if tid < 4:
            mbarrier_wait(bar, 0)
        elif tid < 6:
            mbarrier_arrive(bar + 16)
            mbarrier_wait(bar + 16, 0)
        elif tid == 9:
            mbarrier_wait(bar + 8, 0)
        elif tid < 32:
            cuda.syncthreads()

    for seed in range(3):
        expect(faults.MissingArrivals, kernel, seed=seed, source="mbarrier_wait(bar + 16, 0)", words=[
            "no thread can run and no copy is in flight",
            "A  threads 0-3 (warp 0)",
            "waits on bars[0], parity 0: phase 0, pending 2 of 2, tx-count 0",
            "2 arrivals missing",
            "B  threads 4-5 (warp 0)",
            "bars[2], parity 0: phase 0, pending 2 of 4",
            "thread 9 (warp 0)",
            "bars[1], parity 0: phase 0, pending 3 of 3",
            "threads 6-8, 10-31 (warp 0)",
            "on syncthreads (barrier 0): 25 of 32 threads have arrived, of warp 0 only some lanes",
        ])  # fmt: skip


def test_a_wait_for_a_phase_that_is_past():
    def kernel():
        bar = one_barrier(1)
        if cuda.threadIdx.x == 0:
            mbarrier_arrive(bar)
            mbarrier_wait(bar, 0)
            mbarrier_wait(bar, 1)

    always(faults.MissingArrivals, kernel, words=["phase 1, pending 1 of 1", "A  thread 0"])


def test_a_wait_for_the_phase_before_is_the_readers_fault_and_no_refill():
    """Constant parity: the second wait returns for phase 0 again. What comes then, the read of old numbers, the
    refill or another release, is a matter of luck."""

    def kernel(values, out):
        tile = cuda.shared.array(32, float32, alignment=128)
        bars = cuda.shared.array(2, uint64)
        full, tid, total = shared_address(bars), cuda.threadIdx.x, float32(0)
        empty = full + 8
        if tid == 0:
            mbarrier_init(full, 1)
            mbarrier_init(empty, 32)
            fence_mbarrier_init()
        cuda.syncthreads()
        for t in range(3):
            if tid >= 32:
                mbarrier_wait(full, 0)
                total += tile[tid - 32]
                for _ in range(4):
                    cuda.syncwarp()
                mbarrier_arrive(empty)
            elif tid == 0:
                mbarrier_wait(empty, t & 1 ^ 1)
                mbarrier_arrive_expect_tx(full, 128)
                cp_async_bulk_load(shared_address(tile), global_address(values) + uint64(128 * t), 128, full)
        out[tid] = total

    found = [fault_of(kernel, aligned(floats(96)), nans(64), block=64, seed=seed, landing=landing)
             for landing in LANDINGS for seed in range(6)]  # fmt: skip
    assert faults.StaleRefill not in {type(fault) for fault in found}
    again = [fault for fault in found if "returned for phase 0 of bars[0] again, after its " in str(fault)]
    assert {fault.source for fault in again} == {"total += tile[tid - 32]"}
    assert all("wait with parity 1?" in fault.cure for fault in found if type(fault) is faults.MissingArrivals)


def test_lanes_that_release_twice_are_named_and_not_who_refills_or_comes_late():
    def kernel(values, out):
        tile = cuda.shared.array(32, float32, alignment=128)
        bars = cuda.shared.array(2, uint64)
        full, tid = shared_address(bars), cuda.threadIdx.x
        empty, total = full + 8, float32(0)
        if tid == 0:
            mbarrier_init(full, 1)
            mbarrier_init(empty, 32)
            fence_mbarrier_init()
        cuda.syncthreads()
        if tid >= 32:
            mbarrier_wait(full, 0)
            for _ in range(4 if tid < 48 else 0):
                cuda.syncwarp(0xFFFF)
            total += tile[tid - 32]
            mbarrier_arrive(empty)
            if tid >= 48:
                mbarrier_arrive(empty)  # too many
        elif tid == 0:
            for t in range(2):
                mbarrier_wait(empty, t & 1 ^ 1)
                mbarrier_arrive_expect_tx(full, 128)
                cp_async_bulk_load(shared_address(tile), global_address(values) + uint64(128 * t), 128, full)
        out[tid] = total

    for seed in range(6):
        expect(faults.TooManyArrivals, kernel, aligned(floats(64)), nans(64), block=64, seed=seed,
               source="too many", words=["arrived twice in phase 0 of bars[1]", "one of the two"])  # fmt: skip


def test_lanes_that_leave_out_their_arrival_are_named():
    """They wait on another barrier by now, beside those who have arrived: that barrier has no fault."""

    def kernel(rows):
        bars = cuda.shared.array(2, uint64)
        full = shared_address(bars)
        empty, tid = full + 8, cuda.threadIdx.x
        if tid == 0:
            mbarrier_init(full, 32)
            mbarrier_init(empty, 32)
        cuda.syncthreads()
        for t in range(3):
            if tid >= 32:
                mbarrier_wait(full, t & 1)
                mbarrier_arrive(empty)
            else:
                mbarrier_wait(empty, t & 1 ^ 1)
                if tid < rows[t]:
                    mbarrier_arrive(full)

    words = ["bars[0] has 29 of the 32 arrivals of phase {}", "threads 0-28 have arrived",
             "threads 29-31, at test_barriers.py:", "A  threads 0-31"]  # fmt: skip
    for phase, rows in enumerate(([29, 32, 32], [32, 29, 32])):
        always(faults.MissingArrivals, kernel, np.array(rows, np.int32), block=64, seeds=2,
               source="mbarrier_wait(full", words=[w.format(phase) for w in words])  # fmt: skip


def test_spinning_on_a_flag_that_nobody_sets():
    def plain(flags):
        while flags[0] == 0:
            pass

    def acquire():
        flags = cuda.shared.array(1, uint32)
        flags[0] = 0
        while ld_acquire_cta_shared_b32(shared_address(flags)) == 0:
            pass

    def atomic(flags):
        while cuda.atomic.cas(flags, 0, 1, 2) != 1:
            pass

    def two_flags(flags):
        while flags[0] == 0 and flags[1] == 0:
            pass

    def sleeping(flags):
        while True:
            cuda.nanosleep(100)

    for elements in (4, 5000):
        for kernel in (plain, atomic, two_flags, sleeping):
            expect(faults.Livelock, kernel, np.zeros(elements, np.int32), block=4, timeout=600,
                   words=["A  threads 0-3", "see no change"])  # fmt: skip
    for seed in range(3):
        expect(faults.Livelock, acquire, block=1, seed=seed, source="while ld_acquire")
        expect(faults.Livelock, atomic, np.zeros(1, np.int32), seed=seed, timeout=600)


def test_spinning_on_a_barrier_that_nobody_completes():
    def kernel():
        bar = one_barrier(2)
        tid = cuda.threadIdx.x
        if tid == 0:
            mbarrier_arrive(bar)
        if tid % 2:
            while mbarrier_test_wait_parity(bar, 0) == 0:
                pass
        else:
            mbarrier_wait(bar, 0)

    always(faults.Livelock, kernel, block=4, source="mbarrier_test_wait_parity",
           words=["A  threads 0, 2", "B  threads 1, 3"])  # fmt: skip


def test_a_poll_that_gives_up_is_no_livelock():
    def kernel(out):
        bar = one_barrier(1)
        tries = 0
        while mbarrier_test_wait_parity(bar, 0) == 0:
            tries += 1
            if tries == 3000:
                break
        out[cuda.threadIdx.x] = tries

    out = np.zeros(2, np.int32)
    run(kernel, out, block=2)
    assert (out == 3000).all()


def test_long_work_on_one_value_is_no_livelock():
    def kernel(values, out):
        tile = cuda.shared.array(1, float32)
        tile[0] = float32(1)
        total = 0.0
        for _ in range(8000):
            total += tile[0] + values[0]
        out[0] = total

    out = nans(1)
    run(kernel, np.ones(1, np.float32), out, block=1)
    assert out[0] == 16000


def test_many_barriers_do_not_make_threads_forget():
    """The vector clocks grow with the barriers; what was known before, and has arrived before, stays known."""

    def kernel(out):
        before, words = cuda.shared.array(64, int32), cuda.shared.array(64, int32)
        bars = cuda.shared.array(300, uint64)
        bar, tid = shared_address(bars), int32(cuda.threadIdx.x)
        before[tid] = tid
        if tid == 0:
            mbarrier_init(bar, 63)
        cuda.syncthreads()
        if tid == 0:
            for i in range(1, 300):
                mbarrier_init(bar + 8 * i, 1)
            mbarrier_wait(bar, 0)
            for i in range(1, 64):
                out[i] = before[i] + words[i]
        else:
            words[tid] = tid
            mbarrier_arrive(bar)

    out = np.zeros(64, np.int32)
    clean(kernel, out, block=64)
    assert (out == 2 * np.arange(64)).all()


def test_an_endless_loop_ends_by_its_timeout():
    def kernel(out):
        n = 0
        while True:
            n += 1

    def nested(out):
        for _ in range(1 << 60):
            inner(3)

    @cuda.jit(device=True)
    def inner(n):
        while n:
            for _ in range(100):
                n = n + 1

    for code, line in (
        (kernel, ("while True:", "n += 1")),
        (nested, ("while n:", "for _", "n = n")),
    ):
        fault = expect(faults.Unfinished, code, nans(1), timeout=0.5, words="after 0.5 s")
        assert fault.source.startswith(line) and fault.thread == 0


def test_an_endless_loop_with_barriers_ends_too():
    def kernel(out):
        while True:
            cuda.syncthreads()

    fault = expect(faults.Unfinished, kernel, nans(1), timeout=0.5, words="after 0.5 s")
    assert fault.thread is not None


def test_more_blocks_than_there_is_time_for():
    """That is known before the first one."""

    def kernel(out):
        out[0] = 1

    words = ["1,000,000,000 blocks", "timeout is 60 s", "by only="]
    expect(faults.Unfinished, kernel, np.zeros(2, np.int32), grid=10**9, block=1, words=words)
    run(kernel, np.zeros(2, np.int32), grid=10**9, block=1, only=[7])


def test_a_timeout_does_not_reach_the_next_run():
    def long(out):
        while out[0] == 0:
            out[1] += 1

    def short(out):
        out[0] = 1

    for _ in range(3):
        expect(faults.Unfinished, long, np.zeros(2, np.int32), block=1, timeout=0.05)
        out = np.zeros(2, np.int32)
        for _ in range(20):
            run(short, out, block=1)
    # A run that ends just when its time is up: it either ends or says so, and nothing else.
    for i in range(60):
        try:
            run(short, np.zeros(2, np.int32), block=1, timeout=0.0002 * (i % 8))
        except faults.Unfinished:
            pass


# --- Python's own errors --------------------------------------------------------------------------
def test_an_exception_in_the_kernel():
    def kernel(out, i):
        if cuda.threadIdx.x == 5:
            out[0] = (1, 2)[i]

    for seed in range(3):
        fault = expect(faults.KernelError, kernel, nans(1), 7, seed=seed, source="out[0] = (1, 2)[i]",
                       words="IndexError: tuple index out of range")  # fmt: skip
        assert isinstance(fault.__cause__, IndexError) and fault.thread == 5


def test_an_exception_in_a_device_function_names_its_line():
    @cuda.jit(device=True)
    def chosen(i):
        return (1, 2)[i]

    def kernel(out, i):
        cuda.syncthreads()
        out[0] = chosen(i)

    expect(faults.KernelError, kernel, nans(1), 7, block=1, source="return (1, 2)[i]")


def test_what_the_engine_does_not_know():
    def attribute(out):
        cuda.synchronize()

    def variable(out):
        out[0] = undefined  # noqa: F821

    expect(faults.NotCompiled, attribute, nans(1), words="Unknown attribute 'synchronize'")
    expect(faults.NotCompiled, variable, nans(1), words="NameError", source="undefined")


@pytest.mark.parametrize("given", ["state.stage", "0"])
def test_a_number_in_place_of_a_rings_state(given):
    """It is told at the kernel's line, not where the library wants the number's stage."""
    source = f"ring.release({given})"
    ring = Shared(ring=Ring(2)).ring

    def stage(out):
        state = ring.start()
        ring.release(state.stage)

    def number(out):
        ring.release(0)

    kernel = number if given == "0" else stage
    words = "Unknown attribute 'stage'", "A ring's functions take a state"
    expect(faults.NotCompiled, kernel, nans(1), words=words, source=source)


@pytest.mark.parametrize("where", ["array", "shared", "cuda", "intrinsic", "array for a number"])
def test_what_the_kernel_hands_the_engine_is_the_kernels_own_error(where):
    def kernel(out):
        if where == "array":
            out[1.5] = 1
        elif where == "shared":
            cuda.shared.array(4, "no type")
        elif where == "cuda":
            cuda.ffs(out)
        elif where == "intrinsic":
            mbarrier_init(None, 1)
        else:
            mbarrier_wait(out, 0)

    by_numba = where in ("array", "shared", "cuda")
    expect(faults.NotCompiled if by_numba else faults.KernelError, kernel, nans(1), block=1)


@pytest.mark.parametrize("error", [IndexError, TypeError, KeyError, AssertionError])
def test_errors_of_the_engine_are_no_faults_of_the_kernel(monkeypatch, error):
    def broken(*_):
        raise error

    def kernel(out):
        mbarrier_arrive(one_barrier(32))

    for owner, name in ((MBarrier, "arrive"), (Block, "_check_copies_done")):
        with monkeypatch.context() as patch:
            code = broken.__code__.replace(co_filename=inspect.getfile(owner))
            patch.setattr(owner, name, FunctionType(code, {}, closure=broken.__closure__))
            with pytest.raises(faults.EngineError, match="the CPU engine itself failed") as caught:
                run(kernel, nans(1), seed=3)
        assert not isinstance(caught.value, SimFault) and type(caught.value.__cause__) is error
        assert "seed '3', landing late" in str(caught.value) and "report" in str(caught.value)
    run(kernel, nans(1), seed=3)


def test_stopping_early_leaves_the_process_as_it_was(monkeypatch):
    """What is no Exception still ends all threads."""

    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Threads, "threadfence", interrupt)

    def kernel(out):
        if cuda.threadIdx.x == 3:
            cuda.threadfence()
        cuda.syncthreads()

    def fine(out):
        cuda.syncthreads()

    with pytest.raises(KeyboardInterrupt):
        run(kernel, nans(1))
    clean(fine, nans(1))

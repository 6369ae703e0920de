"""What a report says: the fields of a fault, the drawing of who waits for whom, and who is blamed."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from helpers import LANDINGS, aligned, always, expect, fault_of, floats, nans
from numba import cuda, float32, int32, uint32, uint64

import numba_deform as nd
from numba_deform.course.bugs import BUGS
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_drop,
    mbarrier_arrive_expect_tx,
    mbarrier_expect_tx,
    mbarrier_init,
    mbarrier_inval,
    mbarrier_test_wait_parity,
)
from numba_deform.device.memory import (
    cp_async_cg_16,
    cp_async_commit_group,
    cp_async_wait_group,
    global_address,
    ld_acquire_cta_shared_b32,
    shared_address,
    st_release_cta_shared_b32,
)
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import bar_sync, fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_load,
    cp_async_bulk_store,
    cp_async_bulk_wait_group_read,
)
from numba_deform.engines import faults
from numba_deform.engines.cpu import SimFault, simulate
from numba_deform.engines.waiting import GROUPS, WIDTH, Wait, blame, circles, draw

LINE = "kernel.py:7"


def planted(name, **options):
    """The fault of a planted bug."""
    bug, kernel = BUGS[name], BUGS[name].kernel()
    launch = bug.arguments()
    with pytest.raises(SimFault) as caught:
        simulate(kernel, launch.grid, kernel.threads, launch.args, launch.shared_bytes, **options)
    return caught.value


def wait(first, last, by=(), **fields):
    fields = {"kind": "mbarrier", "on": "bars[0]", **fields}
    where, source = f"/some/where/{LINE}", "mbarrier_wait(bar, 0)"
    return Wait(tuple(range(first, last + 1)), where, source, by=tuple(by), **fields)


@cuda.jit(device=True)
def two_barriers(count0, count1):
    """The address of two barriers that all threads may use."""
    bars = cuda.shared.array(2, uint64)
    bar = shared_address(bars)
    if cuda.threadIdx.x == 0:
        mbarrier_init(bar, count0)
        mbarrier_init(bar + 8, count1)
        fence_mbarrier_init()
    cuda.syncthreads()
    return bar


# --- fields ---------------------------------------------------------------------------------------
# planted fault -> barrier, state, threads of its fault
FIELDS = {
    "count_too_high": ("bars[2]", "phase 0, pending 1 of 33, tx-count 0", (0,)),
    "tail_skips_barrier": ("bars[0]", "phase 0, pending 32 of 64, tx-count 0", tuple(range(32))),
    "expect_too_many": ("bars[0]", "phase 0, pending 0 of 1, tx-count 64", tuple(range(24))),
    "expect_too_few": ("bars[0]", "phase 0, pending 0 of 1, tx-count -96", (0,)),
    "init_again": ("bars[1]", "phase 0, pending 1 of 1, tx-count 0", (0,)),
    "no_init_fence": ("bars[0]", "phase 0, pending 0 of 1, tx-count 128", (0,)),
    "no_full_wait": ("bars[0]", "phase 0, pending 0 of 1, tx-count 128", None),
    "no_empty_wait": ("bars[0]", "phase 1, pending 0 of 1, tx-count 256", None),
    "parity_inverted": ("bars[0]", "phase 0, pending 0 of 1, tx-count 128", None),
    "exit_in_flight": ("bars[0]", "phase 3, pending 0 of 1, tx-count 128", (0,)),
    "index_past_array": ("shared address 0x5e8", None, (0,)),
    "misaligned_barrier": ("area[byte 132]", None, (0,)),
    "metadata_unwritten": (None, None, (30,)),  # a local array, which has no name
    "no_proxy_fence": ("tile[byte 0]", None, (0,)),
    "named_barrier_count": (
        "named barrier 1", "64 of 96 threads have arrived", tuple(range(64)),
    ),
    "named_barrier_one_lane": (
        "named barrier 1", "2 of 64 threads have arrived, of warp 0 only some lanes", (0, 32),
    ),
    "flag_never_set": ("ready[0]", None, tuple(range(32, 64))),
    "flag_without_release": ("ready[0]", None, None),
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_the_fields_of_planted_faults(name):
    barrier, state, threads = FIELDS[name]
    fault = planted(name)
    assert fault.barrier == barrier
    assert fault.state == state
    assert threads in (None, fault.threads)
    assert fault.thread == fault.threads[0] and isinstance(fault.threads, tuple)
    assert (f"  state  {barrier}: {state}" in str(fault)) is (state is not None)
    assert bool(fault.waits) is isinstance(fault, (faults.Deadlock, faults.DivergentBarrier,
                                                   faults.NamedBarrierMisuse, faults.Livelock))  # fmt: skip


def test_the_fields_of_memory_faults():
    def outside(out):
        out[40] = 1

    def column(out):
        tile = cuda.shared.array((4, 8), float32)
        tile[3, 8] = 1

    def race(out):
        tile = cuda.shared.array(4, float32)
        tile[1] = cuda.threadIdx.x

    def unwritten(out):
        tile = cuda.shared.array(4, float32)
        out[0] = tile[2]

    def copy(out):
        bar = two_barriers(1, 1)
        tile = cuda.shared.array(4, float32, alignment=16)
        cp_async_bulk_load(shared_address(tile), global_address(out) + 4, 16, bar)

    for kind, kernel, name in (
        (faults.OutOfRange, outside, "out[40]"),
        (faults.OutOfRange, column, "tile[3, 8]"),
        (faults.DataRace, race, "tile[1]"),
        (faults.UninitialisedRead, unwritten, "tile[2]"),
        (faults.Misaligned, copy, "out[1]"),
    ):
        fault = expect(kind, kernel, aligned(floats(32)))
        assert (fault.barrier, fault.state, fault.waits) == (name, None, ())
        assert len(fault.threads) == 1


def test_every_mbarrier_fault_names_its_barrier():
    """The second barrier, so that none says bars[0] out of habit."""

    def using(function):
        operation = cuda.jit(device=True)(function)

        def kernel():
            operation(two_barriers(1, 1) + 8)

        return kernel

    def too_many(bar):
        mbarrier_arrive(bar)
        mbarrier_wait(bar, 0)
        mbarrier_arrive(bar)
        mbarrier_arrive(bar)

    def unobserved(bar):
        mbarrier_arrive(bar)
        mbarrier_arrive(bar)

    def parity(bar):
        mbarrier_test_wait_parity(bar, 2)

    def bytes_(bar):
        mbarrier_expect_tx(bar, 1 << 21)

    def again(bar):
        mbarrier_init(bar, 1)

    def left(bar):
        mbarrier_arrive_drop(bar)

    def waits(bar):
        mbarrier_wait(bar, 0)

    def late_bytes(bar):
        mbarrier_arrive_expect_tx(bar, 16)
        mbarrier_wait(bar, 0)

    for operation, kind, state in (
        (too_many, faults.UnobservedPhase, "phase 2, pending 1 of 1, tx-count 0"),
        (unobserved, faults.UnobservedPhase, "phase 1, pending 1 of 1, tx-count 0"),
        (parity, faults.BadCount, "phase 0, pending 1 of 1, tx-count 0"),
        (bytes_, faults.BadCount, "phase 0, pending 1 of 1, tx-count 0"),
        (again, faults.LiveBarrierInit, "phase 0, pending 1 of 1, tx-count 0"),
        (left, faults.NobodyLeft, "phase 0, pending 1 of 1, tx-count 0"),
        (waits, faults.MissingArrivals, "phase 0, pending 1 of 1, tx-count 0"),
        (late_bytes, faults.MissingBytes, "phase 0, pending 0 of 1, tx-count 16"),
    ):
        fault = expect(kind, using(operation), block=1)
        assert (fault.barrier, fault.state) == ("bars[1]", state), operation

    def after_inval():
        bar = two_barriers(1, 1) + 8
        mbarrier_inval(bar)
        mbarrier_arrive(bar)

    assert expect(faults.NotABarrier, after_inval, block=1).barrier == "bars[byte 8]"


def test_faults_can_be_pickled():
    caught = [planted(name) for name in FIELDS]
    caught.append(fault_of(lambda out: out[0] / 0, np.zeros(1, np.int32), block=1))
    caught.append(faults.BadLaunch("grid=0"))
    for fault in caught:
        again = pickle.loads(pickle.dumps(fault))
        assert type(again) is type(fault)
        assert vars(again) == vars(fault)
        assert str(again) == str(fault) and again.args == fault.args
    assert any(fault.waits for fault in caught)


# --- groups ---------------------------------------------------------------------------------------
READ, WRITE, EXIT = "reads", "writes", "exits"


@pytest.mark.parametrize(
    "steps, then, kind, said, cure",
    [
        ("", READ, faults.InFlightRead, "has not committed it", "Call cp_async_commit_group() and then"),
        ("w", READ, faults.InFlightRead, "has not committed it", "Call cp_async_commit_group() and then"),
        ("c", READ, faults.InFlightRead, "has not waited for its group", "Call cp_async_wait_group(0)"),
        ("cs", READ, faults.InFlightRead, "has not waited for its group", "need a barrier (syncthreads) after"),
        ("csw", READ, faults.InFlightRead, "nothing orders that wait", "between cp_async_wait_group and this"),
        ("cw", READ, faults.InFlightRead, "nothing orders that wait", "between cp_async_wait_group and this"),
        ("cs", WRITE, faults.DataRace, "has not waited for its group", "Call cp_async_wait_group(0)"),
        ("", EXIT, faults.CopyOutlivesBlock, "has not committed it", "Call cp_async_commit_group() and then"),
        ("c", EXIT, faults.CopyOutlivesBlock, "has not waited for its group", "Call cp_async_wait_group(0)"),
    ],
)
def test_cp_async_is_explained_by_its_group(steps, then, kind, said, cure):
    """Each thread copies 16 bytes and turns to those of its neighbour: c commits, w waits, s is syncthreads."""

    def kernel(values, out):
        tile = cuda.shared.array((64, 4), float32, alignment=16)
        tid = cuda.threadIdx.x
        cp_async_cg_16(shared_address(tile) + 16 * tid, global_address(values) + 16 * tid, 16)
        for step in steps:
            if step == "c":
                cp_async_commit_group()
            elif step == "w":
                cp_async_wait_group(0)
            else:
                cuda.syncthreads()
        cuda.nanosleep(100)  # all have issued
        other = tid ^ 32
        if then == READ:
            out[tid] = tile[other, 0]
        elif then == WRITE:
            tile[other, 0] = 1

    args = aligned(floats(256)), nans(64)
    for landing in ("late", "earliest"):
        fault = expect(kind, kernel, *args, block=64, words=[said, cure], landing=landing)
        assert "full barrier" not in str(fault) and faults.DataRace.cure not in str(fault)


def test_a_refill_by_cp_async_is_not_told_of_empty_barriers():
    def kernel(values, out):
        tile = cuda.shared.array(4, float32, alignment=16)
        tid = cuda.threadIdx.x
        for _ in range(2):
            if tid == 0:
                cp_async_cg_16(shared_address(tile), global_address(values), 16)
                cp_async_commit_group()
                cp_async_wait_group(0)
            cuda.syncthreads()
            out[tid] = tile[tid & 3]

    fault = expect(faults.RefillRace, kernel, aligned(floats(4)), nans(64), block=64)
    assert fault.cure == "Put a barrier (syncthreads) between the last read of these bytes and the cp.async."


@pytest.mark.parametrize(
    "steps, other, said, cure",
    [
        ("", False, "this thread has not committed it", "Call cp_async_bulk_commit_group() and then"),
        ("c", False, "this thread has not waited for its group", "(its .read form is enough)"),
        ("c", True, "thread 0 has not waited for its group", "need a barrier (syncthreads) after it"),
        ("cr", True, "nothing orders that wait", "between cp_async_bulk_wait_group and this"),
    ],
)
def test_a_write_under_a_bulk_store_is_explained_by_its_group(steps, other, said, cure):
    def kernel(out):
        tile = cuda.shared.array(4, float32, alignment=16)
        tid = cuda.threadIdx.x
        if tid == 0:
            for i in range(4):
                tile[i] = i
            fence_proxy_async()
            cp_async_bulk_store(global_address(out), shared_address(tile), 16)
        cuda.syncwarp()
        if tid == 0:
            if "c" in steps:
                cp_async_bulk_commit_group()
            if "r" in steps:
                cp_async_bulk_wait_group_read(0)
        if other:
            cuda.nanosleep(10)
        if tid == int32(other):
            tile[0] = 5

    expect(faults.DataRace, kernel, aligned(nans(4)), words=["may still be reading", said, cure])


def test_a_write_under_a_load_asks_for_a_wait():
    def kernel(values, source):
        bar = two_barriers(1, 1)
        tile = cuda.shared.array(4, float32, alignment=16)
        if cuda.threadIdx.x == 0:
            mbarrier_arrive_expect_tx(bar, 16)
            cp_async_bulk_load(shared_address(tile), global_address(values), 16, bar)
            if source:
                values[1] = 1
            else:
                tile[1] = 1
        mbarrier_wait(bar, 0)

    expect(faults.DataRace, kernel, aligned(floats(4)), False, words="cure   Wait on bars[0], for the phase")
    expect(faults.DataRace, kernel, aligned(floats(4)), True, words="cure   Wait on the barrier that the copy")


# --- states of a ring -----------------------------------------------------------------------------
def turns(consumers=1, first=0, last=None, step=None, filled=1, stages=4):
    """A kernel and its arguments: a copy through a ring whose uses so many warps read in turn. The first starts
    at use ``first``, each other one behind the one before, and the last at ``last``; they advance by ``step``,
    and the producer by ``filled``."""
    tiles = nd.Array((stages, 1, 32), nd.uint32, alignment=128)
    shared = nd.Shared(tiles=tiles, ring=nd.Ring(stages, empty=32))
    last, step = first + consumers - 1 if last is None else last, step or consumers

    @nd.kernel(threads=32 + 32 * consumers, shared=shared)
    def kernel(data: nd.u64, out: nd.uint32[:, :], steps: nd.i32):
        shared.init()
        ring, tiles = shared.ring, shared.tiles.view()
        if nd.warp() == 0:
            state = ring.start()
            if nd.lane() == 0:
                for i in range(steps):
                    ring.acquire(state)
                    ring.expect(state, 128)
                    tile = shared.tiles.at(state.stage)
                    nd.cp_async_bulk_load(tile, data + uint64(128 * i), 128, ring.full(state))
                    state = ring.advance(state, filled)
        else:
            number = int32(nd.warp() - 1)
            state = ring.start(last if number == consumers - 1 else first + number)
            for i in range(number, steps, consumers):
                ring.wait(state)
                out[i, nd.lane()] = tiles[state.stage, 0, nd.lane()]
                ring.release(state)
                state = ring.advance(state, step)

    return kernel, (np.arange(256, dtype=np.uint32), np.zeros((8, 32), np.uint32), 8)


@pytest.mark.parametrize("options", [{}, {"consumers": 2}, {"consumers": 4}])
def test_states_that_go_together(options):
    kernel, args = turns(**options)
    for seed, landing in enumerate(LANDINGS):
        args[1][:] = 0
        simulate(kernel, 1, args=args, seed=seed, landing=landing)
        np.testing.assert_array_equal(args[1].ravel(), args[0])


@pytest.mark.parametrize(
    "options, words",
    [
        ({"first": 1}, ("use 4 is to be read by threads 32-63", "never waited for use 0")),  # of the next lap
        ({"step": 2}, ("nobody reads use 1",)),
        ({"filled": 2}, ("use 1 is to be read by threads 32-63", "use 6 is to be filled by thread 0")),
        ({"consumers": 2, "last": 0}, ("all arrive in use 0",)),
        ({"consumers": 2, "first": 1, "last": 1}, ("all arrive in use 1",)),
        ({"consumers": 2, "step": 1}, ("all arrive in use 1",)),
        ({"first": 4}, ("use 4 is to be read by threads",)),
    ],
)
def test_the_state_that_differs_is_named_by_its_use(options, words):
    kernel, args = turns(**options)
    fault = fault_of(kernel, *args, block=None)
    for text in (*words, "Each state starts at use 0, ring.start(), and advances by one", "of n that take"):
        assert text in fault.cure, fault.cure


# --- deadlocks ------------------------------------------------------------------------------------
def test_a_consumer_that_forgets_to_release_closes_a_circle():
    def kernel():
        full = two_barriers(1, 32)
        empty, tid = full + 8, cuda.threadIdx.x
        if tid == 0:
            for i in range(2):
                mbarrier_wait(empty, i & 1 ^ 1)
                mbarrier_arrive(full)
        elif tid >= 32:
            for i in range(2):
                mbarrier_wait(full, i & 1)

    always(faults.MissingArrivals, kernel, block=64, source="mbarrier_wait(empty", words=[
        "A  thread 0 (warp 0)",
        "waits on bars[1], parity 0: phase 0, pending 32 of 32, tx-count 0",
        "-> B (threads 32-63): not arrived in this phase",
        "B  threads 32-63 (warp 1)",
        "waits on bars[0], parity 1: phase 1, pending 1 of 1, tx-count 0",
        "-> A (thread 0): arrived here before",
        "circle: A -> B -> A",
        "threads 1-31 have exited",
    ])  # fmt: skip
    producer, consumers = fault_of(kernel, block=64).waits
    assert (producer.kind, producer.on, producer.by) == (
        "mbarrier", "bars[1], parity 0", (*range(1, 64),)
    )  # fmt: skip
    assert (consumers.threads, consumers.by) == (tuple(range(32, 64)), (0,))
    assert consumers.where.startswith(__file__) and consumers.source == "mbarrier_wait(full, i & 1)"


def test_a_consumer_that_exits_is_named_and_its_producer_blamed():
    def kernel(leaver):
        full = two_barriers(1, 32)
        empty, tid = full + 8, cuda.threadIdx.x
        if tid < 32:
            for i in range(1 if tid == leaver else 3):
                mbarrier_wait(full, i & 1)
                mbarrier_arrive(empty)
        elif tid == 32:
            for i in range(3):
                mbarrier_wait(empty, i & 1 ^ 1)
                mbarrier_arrive(full)

    always(faults.MissingArrivals, kernel, 8, block=64, source="mbarrier_wait(empty", words=[
        "A  threads 0-7, 9-31 (warp 0)",
        "-> B (thread 32): arrived here before",
        "-> thread 8 could (arrived here before), but has exited",
        "by     block 0, thread 32 (warp 1, lane 0)",
    ])  # fmt: skip
    fault = fault_of(kernel, 8, block=64)
    assert "circle" not in str(fault)
    assert [w.root for w in fault.waits] == [False, True]
    assert fault.waits[1].missing == "1 arrival missing"


def test_missing_bytes_are_blamed_where_they_are_waited_for():
    """The producer's wait, of the lowest thread, is a consequence."""

    def kernel(values):
        full = two_barriers(1, 32)
        tile = cuda.shared.array(4, float32, alignment=16)
        empty, tid = full + 8, cuda.threadIdx.x
        if tid == 0:
            mbarrier_arrive_expect_tx(full, 48)
            cp_async_bulk_load(shared_address(tile), global_address(values), 16, full)
            mbarrier_wait(empty, 0)
        elif tid >= 32:
            mbarrier_wait(full, 0)
            mbarrier_arrive(empty)

    values = aligned(floats(4))
    always(faults.MissingBytes, kernel, values, block=64, source="mbarrier_wait(full", words=[
        "32 bytes expected that no copy brings",
        "-> A (thread 0): issued copies here before",
        "by     block 0, threads 32-63",
        "state  bars[0]: phase 0, pending 0 of 1, tx-count 32",
    ])  # fmt: skip

    def nobody():
        bar = two_barriers(1, 1)
        if cuda.threadIdx.x == 0:
            mbarrier_arrive_expect_tx(bar, 48)
        mbarrier_wait(bar, 0)

    expect(faults.MissingBytes, nobody,
           words="nobody is known who could: no thread has issued a copy here")  # fmt: skip


def test_who_has_dropped_out_is_no_longer_expected():
    def kernel():
        bar, tid = two_barriers(3, 1), cuda.threadIdx.x
        if tid == 2:
            mbarrier_arrive_drop(bar)
        elif tid < 2:
            mbarrier_arrive(bar)
            mbarrier_wait(bar, 0)
            if tid == 0:
                mbarrier_arrive(bar)
                mbarrier_wait(bar, 1)

    fault = expect(faults.MissingArrivals, kernel, words="-> thread 1 could (arrived here before)")
    assert fault.waits[0].by == (1,)


def test_a_wait_of_all_who_have_arrived():
    def kernel():
        bar = two_barriers(33, 1)
        mbarrier_arrive(bar)
        mbarrier_wait(bar, 0)

    always(faults.MissingArrivals, kernel, words="-> nobody is left who could")


def test_a_syncthreads_that_half_the_threads_never_reach():
    def kernel():
        bar = two_barriers(1, 1)
        if cuda.threadIdx.x < 32:
            mbarrier_wait(bar, 0)
        cuda.syncthreads()

    def split(out):
        bar = two_barriers(32, 1)
        if cuda.threadIdx.x < 32:
            cuda.syncthreads()
            mbarrier_arrive(bar)
        else:
            mbarrier_wait(bar, 0)

    for seed in range(3):
        fault = expect(faults.DivergentBarrier, split, nans(1), block=64, seed=seed, words=[
            "waits on syncthreads (barrier 0): 32 of 64 threads have arrived",
            "32 threads missing",
            "-> B (threads 32-63): not at this barrier",
            "circle: A -> B -> A",
        ])  # fmt: skip
        assert fault.barrier == "barrier 0 (syncthreads)"
        assert fault.waits[0].by == tuple(range(32, 64))
        expect(faults.MissingArrivals, kernel, block=64, seed=seed,
               words="-> A (threads 0-31): not at this barrier")  # fmt: skip


def test_a_named_barrier_waits_for_other_warps_only_if_they_are_missing():
    def kernel(lanes):
        bar, tid = two_barriers(1, 1), cuda.threadIdx.x
        if tid < 32 + lanes:
            bar_sync(1, 64)
        else:
            mbarrier_wait(bar, 0)

    for lanes, by, kind in (
        (0, (*range(32, 96),), faults.Deadlock),
        (30, (62, 63), faults.NamedBarrierMisuse),
    ):
        fault = expect(kind, kernel, lanes, block=96)
        assert fault.waits[0].by == by


def test_a_syncwarp_with_a_missing_lane():
    def kernel():
        bar = two_barriers(1, 1)
        if cuda.threadIdx.x == 37:
            mbarrier_wait(bar, 0)
        cuda.syncwarp()
        if cuda.threadIdx.x == 32:
            mbarrier_arrive(bar)

    always(faults.WarpDivergence, kernel, block=64, source="cuda.syncwarp()", words=[
        "A  threads 32-36, 38-63 (warp 1)",
        "waits on syncwarp with mask 0xffffffff: lanes 0-4, 6-31 of warp 1 have come",
        "lane 5 never comes",
        "-> B (thread 37): not at this place",
        "-> A (threads 32-36, 38-63): not arrived in this phase",
        "circle: A -> B -> A",
        "threads 0-31 have exited",
    ])  # fmt: skip
    fault = fault_of(kernel, block=64)
    assert (fault.barrier, fault.state, fault.waits[0].kind) == (None, None, "syncwarp")


# --- livelocks ------------------------------------------------------------------------------------
def test_a_poll_of_a_flag_names_who_wrote_it():
    def kernel():
        flag = cuda.shared.array(2, uint32)
        tid = cuda.threadIdx.x
        if tid < 2:
            flag[tid] = 0
        cuda.syncthreads()
        if tid == 40:
            st_release_cta_shared_b32(shared_address(flag) + 4, uint32(7))
        elif tid < 32:
            while ld_acquire_cta_shared_b32(shared_address(flag) + 4) != 8:
                pass

    for seed in range(3):
        fault = expect(faults.Livelock, kernel, block=64, seed=seed, words=[
            "A  threads 0-31 (warp 0)",
            "waits on flag[1]: holds 7",
            "-> thread 40 could (wrote it before, at test_reports.py:",
            "but has exited",
        ])  # fmt: skip
        assert fault.barrier == "flag[1]"
        assert (fault.waits[0].kind, fault.waits[0].by) == ("flag", (40,))


def test_polls_of_one_line_are_one_group():
    def kernel(flags, out):
        tid = cuda.threadIdx.x
        if tid < 8:
            while flags[tid] == 0:
                pass
        cuda.syncthreads()
        out[tid] = 1

    fault = expect(faults.Livelock, kernel, np.zeros(8, np.int32), nans(32), words=[
        "A  threads 0-7 (warp 0)", "flags[0] and 7 more",
        "nobody is known who could: no thread of the block has written it",
        "B  threads 8-31 (warp 0)", "-> A (threads 0-7): not at this barrier",
    ])  # fmt: skip
    assert fault.source == "while flags[tid] == 0:"
    assert [w.kind for w in fault.waits] == ["spin", "syncthreads"]


def test_a_poll_is_blamed_though_others_wait_for_it():
    """Of a livelock it is always a polling thread."""

    def kernel(out):
        bar, tid = two_barriers(2, 1), cuda.threadIdx.x
        if tid == 31:
            while mbarrier_test_wait_parity(bar, 0) == 0:
                pass
            mbarrier_arrive(bar + 8)
        else:
            mbarrier_wait(bar + 8, 0)

    always(faults.Livelock, kernel, nans(1), source="mbarrier_test_wait_parity", words=[
        "by     block 0, thread 31", "A  threads 0-30", "state  bars[0]: phase 0, pending 2 of 2",
    ])  # fmt: skip


# --- a phase that was missed ----------------------------------------------------------------------
@pytest.mark.parametrize("step, kind", [(0, faults.RefillRace), (16, faults.MissedPhase)])
def test_a_missed_phase_is_a_refill_only_where_its_own_bytes_were_replaced(step, kind):
    def kernel(values):
        bar = two_barriers(1, 1)
        tile = cuda.shared.array(8, float32, alignment=16)
        tid = cuda.threadIdx.x
        if tid == 0:
            for i in range(2):
                mbarrier_arrive_expect_tx(bar, 16)
                at = shared_address(tile) + int32(step * i)
                cp_async_bulk_load(at, global_address(values), 16, bar)
                mbarrier_wait(bar, i & 1)
        elif tid == 1:
            for _ in range(20):
                cuda.nanosleep(1)
            mbarrier_wait(bar, 0)

    fault = expect(kind, kernel, aligned(floats(4)), landing="earliest")
    assert fault.barrier == "bars[0]"
    assert fault.thread == (0 if kind is faults.RefillRace else 1)


# --- the drawing and the blame, by themselves -----------------------------------------------------
def test_a_drawing():
    waits = [
        wait(0, 0, range(32, 64), state="pending 1 of 2", missing="1 arrival missing"),
        wait(32, 63, [0, 5, 70], on="bars[1]", why="arrived here before"),
    ]
    assert draw(waits, exited=[5]).splitlines() == [
        "A  thread 0 (warp 0)",
        f"   at    {LINE}  mbarrier_wait(bar, 0)",
        "   waits on bars[0]: pending 1 of 2",
        "         1 arrival missing",
        "   -> B (threads 32-63)",
        "B  threads 32-63 (warp 1)",
        f"   at    {LINE}  mbarrier_wait(bar, 0)",
        "   waits on bars[1]",
        "   -> A (thread 0): arrived here before",
        "   -> thread 5 could (arrived here before), but has exited",
        "   -> thread 70: arrived here before; not known to wait",
        "circle: A -> B -> A",
        "thread 5 has exited",
    ]


def test_a_drawing_of_many_groups_stays_narrow():
    everybody = [8 * i for i in range(128)]
    waits = [wait(t, t, everybody, state="pending 1 of 2 " * 20) for t in everybody]
    lines = draw(waits, range(1, 1024, 2)).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) < 10 * GROUPS and f"and {128 - GROUPS} groups more" in lines
    assert "   -> B, C, D, E, F, G, H, I, .. (threads 8, 16" in "\n".join(lines)


def test_a_drawing_splits_no_word():
    """A source line that is too long ends between words, and says that it goes on; a long name stays whole."""
    source = "mbarrier_wait(" + " + ".join(f"part{i:02}" for i in range(30)) + ")"
    name = "a_barrier_with_a_name_that_is_longer_than_one_line_" + 60 * "x"
    lines = draw([replace(wait(0, 0, []), source=source, on=f"{name}[0]")]).splitlines()
    assert lines[1].endswith(" ..") and len(lines[1]) <= WIDTH
    assert set(lines[1].split()) <= {"at", LINE, "..", *source.split()}
    assert any(f"{name}[0]" in line for line in lines)


@pytest.mark.parametrize(
    "edges, found, blamed",
    [
        ([[1], [2], [0]], [[0, 1, 2]], 0),  # all in a circle
        ([[1], [2], [1]], [[1, 2]], 1),  # the first waits for a circle
        ([[1], [2], []], [], 2),  # the last is the root
        ([[1], [0], []], [[0, 1]], 2),  # a root goes before a circle
        ([[0], []], [], 0),  # who waits for itself is a root
        ([[1], [0, 1]], [[0, 1]], 0),
        ([[9], [0]], [], 0),  # for a thread that does not wait
        ([[1], [0], [3], [2]], [[0, 1], [2, 3]], 0),
    ],
)
def test_circles_and_blame(edges, found, blamed):
    waits = [wait(i, i, by) for i, by in enumerate(edges)]
    assert circles(waits) == found
    assert blame(waits) is waits[blamed]
    assert blame(waits[::-1]) is waits[blamed]


def test_a_sure_cause_is_blamed_before_a_lower_thread_in_a_circle():
    waits = [wait(0, 0, [1]), wait(1, 1, [0], root=True)]
    assert blame(waits) is waits[1]


def test_arrays_made_in_one_statement_have_their_own_names():
    def neighbours(out):
        first, size, second = cuda.shared.array(32, float32), 32, cuda.shared.array(32, float32)
        second[cuda.threadIdx.x] = 1.0
        out[cuda.threadIdx.x] = first[size - 1]

    def beside_an_address(out):
        bar, i = shared_address(cuda.shared.array(1, uint64)), cuda.threadIdx.x
        if i == 0:
            mbarrier_init(bar, 0)

    expect(faults.UninitialisedRead, neighbours, nans(32), words="reads first[31]")
    expect(faults.BadCount, beside_an_address, nans(32), words="initialises bar[byte 0]")


def test_a_producer_that_passes_a_fresh_barrier_is_not_blamed_for_a_race():
    """It reads a number behind its copy, which a consumer changes: its wait for the empty stage is right."""

    def kernel(values, out):
        bar, tid = two_barriers(1, 32), cuda.threadIdx.x
        tile, note = cuda.shared.array(4, float32, alignment=16), cuda.shared.array(1, float32)
        if tid == 0:
            note[0] = 1
        cuda.syncthreads()
        if tid == 0:
            mbarrier_wait(bar + 8, 1)
            mbarrier_arrive_expect_tx(bar, 16)
            cp_async_bulk_load(shared_address(tile), global_address(values), 16, bar)
            out[32] = note[0]
        elif tid >= 32:
            mbarrier_wait(bar, 0)
            if tid == 32:
                note[0] = 2
            out[tid - 32] = tile[tid % 4]
            mbarrier_arrive(bar + 8)

    fault = expect(faults.DataRace, kernel, aligned(floats(4)), nans(33), block=64)
    assert fault.source in ("note[0] = 2", "out[32] = note[0]")


@pytest.mark.parametrize("rounds", (4, 0))
@pytest.mark.parametrize("seed", range(6))
def test_a_branch_is_blamed_only_where_it_was_not_taken(rounds, seed):
    def kernel(out, rounds):
        tile = cuda.shared.array(64, int32)
        i = cuda.threadIdx.x
        for k in range(4):
            tile[i] = k
            if rounds > 0:
                cuda.syncthreads()
            out[i] += tile[63 - i]

    with pytest.raises(faults.DataRace) as caught:
        simulate(kernel, 1, 64, [np.zeros(64, np.int32), rounds], seed=seed)
    assert ("out of its branch" in caught.value.cure) == (not rounds)
    assert "at the end of each round of the loop" in caught.value.cure


@pytest.mark.parametrize(("line", "step", "wait", "said", "cure"), [
    ("one", 0, False, "has not committed it", "One line issues both"),
    ("two", 0, False, "has not committed it", "Give each of the two a place of its own"),
    ("one", 1, False, "thread 0 has not waited for its group", "The ring is overrun. To wait here would"),
    ("one", 1, True, "nothing orders that wait", "read what the earlier copy has brought does so before that"),
])  # fmt: skip
def test_a_copy_of_another_thread_over_one_that_nobody_has_read(line, step, wait, said, cure):
    def kernel(values):
        tile = cuda.shared.array(4, float32, alignment=16)
        place, tid = shared_address(tile), cuda.threadIdx.x
        if tid and step:
            cp_async_commit_group()
        if line == "one" and tid < 2:
            cuda.nanosleep(10 * tid)
            cp_async_cg_16(place, global_address(values), 16)
        elif tid == 0:
            cp_async_cg_16(place, global_address(values), 16)
        elif tid == 1:
            cuda.nanosleep(10)
            cp_async_cg_16(place, global_address(values), 16)
        if step:
            cp_async_commit_group()
        if wait:
            cp_async_wait_group(0)

    expect(faults.CopyCollision, kernel, aligned(floats(4)), words=[said, cure])

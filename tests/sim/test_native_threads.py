"""What threads do together as machine code: turns, shuffles and votes, barriers, mbarriers. As interpreted."""

import random

import numpy as np
import pytest
from helpers import alike, outcome
from numba import cuda, float32, float64, int32, int64, uint32, uint64

from numba_deform.device.cluster import cluster_arrive, cluster_wait
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_count,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    mbarrier_inval,
    mbarrier_test_wait_parity,
    mbarrier_try_wait_parity,
)
from numba_deform.device.memory import (
    global_address,
    ld_acquire_gpu_global_b32,
    shared_address,
    st_release_gpu_global_b32,
)
from numba_deform.device.sync import (
    bar_sync,
    elect_sync,
    fence_mbarrier_init,
    shfl_sync_bfly_f32,
    shfl_sync_idx_b32,
    shfl_sync_idx_f32,
    thread_exit,
)
from numba_deform.device.tma import cp_async_bulk_load
from numba_deform.engines import faults
from numba_deform.engines.cpu import simulate
from numba_deform.engines.cpu.native.runtime import layout
from numba_deform.engines.cpu.native.state.block import NativeThread
from numba_deform.engines.cpu.native.state.ready_queue import Draws

FULL = 0xFFFFFFFF
SEEDS = (0, 1, 2)


# --- threads that ask Python for nothing ------------------------------------------------------------
@pytest.mark.parametrize("seed", SEEDS)
def test_most_threads_are_no_objects(monkeypatch, seed):
    """The one that makes the shared array is, and the first that writes to global memory; in a kernel whose
    threads each ask for something all are."""
    made, begin = [], NativeThread.__init__

    def noted(thread, run, block, tid):
        made.append((block.index, tid))
        begin(thread, run, block, tid)

    monkeypatch.setattr(NativeThread, "__init__", noted)
    assert alike(through_shared, np.zeros(64, np.int32), 1, 3, block=64, seed=seed)[1]
    assert len(set(made)) <= 2
    made.clear()
    assert alike(in_order, np.zeros(1, np.int32), np.zeros(192, np.int32), 2, grid=2, block=48, seed=seed)[1]
    assert len(made) == len(set(made)) == 96


def some_leave(out):
    if cuda.threadIdx.x >= 40:
        return
    cluster_arrive()
    cluster_wait()
    out[cuda.threadIdx.x] = 1


def test_threads_that_exit_before_a_barrier_that_nobody_has_come_to():
    """That of a cluster of one block waits for the others."""
    assert alike(some_leave, np.zeros(64, np.int32), block=64)[1]


def in_rounds(out, rounds):
    for i in range(rounds):
        out[i, cuda.grid(1)] = i
        cuda.syncthreads()


@pytest.mark.full
def test_more_records_than_a_set_of_readers_once_began_with():
    """They were taken for sets, and the process ended."""
    out = np.zeros((17, 1 << 20), np.uint8)
    report = simulate(in_rounds, out.shape[1] // 32, 32, (out, 17), compiled=True)
    assert report.compiled and (out == np.arange(17)[:, None]).all()


# --- turns ------------------------------------------------------------------------------------------
def test_numbers_drawn_in_advance_are_those_of_python():
    plain, words = random.Random("1/0"), [0] * layout.BLOCK_WORDS
    draws = Draws(random.Random("1/0"), words)
    for i in range(3000):
        limit = 1 + i * i % 1000
        assert draws.randrange(limit) == plain.randrange(limit)
        if i % 3 == 0:
            assert draws.random() == plain.random()


def in_order(turn, order, rounds):
    """Notes in which order the threads came."""
    for _ in range(rounds):
        order[cuda.atomic.add(turn, 0, 1)] = cuda.grid(1)
        cuda.syncwarp()


def test_every_seed_has_an_order_of_its_own():
    orders = {}
    for seed in range(6):
        order = np.zeros(768, np.int32)
        (_, _, arrays), ended = alike(in_order, np.zeros(1, np.int32), order, 6, block=128, seed=seed)
        assert ended
        orders[arrays[1]] = seed
    assert len(orders) == 6


@pytest.mark.parametrize("landing", ("late", "random", "earliest"))
def test_copies_land_when_they_are_due(landing):
    """In the midst of switches that machine code makes by itself."""

    def copied(data, out, seen):
        tile, bars = cuda.shared.array((4, 32), uint32, alignment=16), cuda.shared.array(4, uint64)
        at, bar, t = shared_address(tile), shared_address(bars), int32(cuda.threadIdx.x)
        if t < 4:
            mbarrier_init(bar + 8 * t, 1)
            fence_mbarrier_init()
        cuda.syncthreads()
        if t < 4:
            mbarrier_arrive_expect_tx(bar + 8 * t, 128)
            cp_async_bulk_load(at + 128 * t, global_address(data) + uint64(128 * t), 128, bar + 8 * t)
        for i in range(4):
            for turn in range(20):
                cuda.syncwarp()
                if mbarrier_test_wait_parity(bar + 8 * i, 0) != 0:
                    seen[t, i] = turn
                    break
            while mbarrier_try_wait_parity(bar + 8 * i, 0) == 0:
                pass
            out[t] += tile[i, t % 32]

    data = np.arange(128, dtype=np.uint32)
    results = set()
    for seed in SEEDS:
        args = data, np.zeros(64, np.int64), np.full((64, 4), -1, np.int32)
        (_, _, arrays), ended = alike(copied, *args, block=64, seed=seed, landing=landing)
        assert ended
        results.add(arrays[2])
    assert len(results) == 1 if landing == "earliest" else len(results) > 1


def test_copies_land_at_the_same_switch():
    """Who waits for them goes on between the same steps of others."""

    def between(data, turn, order):
        tile, bars = cuda.shared.array(32, uint32, alignment=16), cuda.shared.array(1, uint64)
        at, bar, t = shared_address(tile), shared_address(bars), cuda.threadIdx.x
        if t == 0:
            mbarrier_init(bar, 1)
            fence_mbarrier_init()
        cuda.syncthreads()
        if t >= 32:
            for _ in range(100):
                order[cuda.atomic.add(turn, 0, 1)] = t
                cuda.syncwarp(3)
        elif t == 0:
            for i in range(4):
                mbarrier_arrive_expect_tx(bar, 128)
                cp_async_bulk_load(at, global_address(data), 128, bar)
                while mbarrier_try_wait_parity(bar, uint32(i & 1)) == 0:
                    pass
                order[cuda.atomic.add(turn, 0, 1)] = t

    orders = set()
    for seed in range(6):
        args = np.arange(32, dtype=np.uint32), np.zeros(1, np.int32), np.full(204, -1, np.int32)
        (_, _, arrays), ended = alike(between, *args, block=34, seed=seed, landing="random")
        assert ended
        orders.add(arrays[2])
    assert len(orders) > 3


def test_a_thread_that_leaves_from_within():
    def leaves(out):
        t = cuda.threadIdx.x
        out[t] = 1
        if t % 3 == 0:
            thread_exit()
        cuda.syncthreads()
        out[t] += shfl_sync_idx_b32(FULL & ~0x49249249 if t < 32 else FULL & ~0x92492492, 5, 2)

    assert alike(leaves, np.zeros(64, np.int64), block=64)[1]


def test_an_endless_loop_of_switches_is_stopped():
    def forever(out):
        while out[cuda.threadIdx.x] >= 0:
            cuda.syncwarp()

    told, _ = outcome(forever, (np.zeros(32, np.int64),), timeout=0.3, compiled=True)
    assert told[0] is faults.Unfinished


# --- of a warp --------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("block", (32, 64, 48))
def test_shuffles(block, seed):
    def shuffles(out, f, d):
        t, lane = cuda.grid(1), cuda.laneid
        mask = FULL if block == 64 or t < 32 else (1 << (block - 32)) - 1
        mask = FULL if block == 32 else mask
        x = int32(-7 * t + 3)
        last = 31 if mask == FULL else block - 33
        out[t, 0] = cuda.shfl_sync(mask, x, (lane * 5) % (last + 1))
        out[t, 1] = cuda.shfl_xor_sync(mask, int64(x) << int64(33), 3)
        out[t, 2] = cuda.shfl_up_sync(mask, float32(t), 34)  # as 2
        out[t, 3] = cuda.shfl_down_sync(mask, x, 1) if block != 48 else x
        out[t, 4] = shfl_sync_idx_b32(mask, uint32(x), uint32(last - lane))
        f[t, 0] = shfl_sync_idx_f32(mask, float32(x) / float32(3), uint32(lane) + uint32(32))  # wraps
        f[t, 1] = shfl_sync_bfly_f32(mask, float32(x) / float32(7), uint32(1))
        d[t] = cuda.shfl_sync(mask, float64(x) / 9.0, 0)

    args = np.zeros((block, 5), np.int64), np.zeros((block, 2), np.float32), np.zeros(block)
    told, ended = alike(shuffles, *args, block=block, seed=seed)
    assert ended, told


@pytest.mark.parametrize("seed", SEEDS)
def test_votes(seed):
    def votes(data, out):
        t, lane = cuda.threadIdx.x, cuda.laneid
        for turn in range(4):
            yes = data[turn, t] > 0
            out[turn, t, 0] = uint32(cuda.ballot_sync(FULL, yes))
            out[turn, t, 1] = cuda.any_sync(FULL, yes)
            out[turn, t, 2] = cuda.all_sync(FULL, yes)
            out[turn, t, 3] = cuda.eq_sync(FULL, yes)
            out[turn, t, 4] = elect_sync(FULL)
            half = 0xFFFF if lane < 16 else 0xFFFF0000
            out[turn, t, 5] = uint32(cuda.ballot_sync(half, data[turn, t]))  # a number: one bit is enough
            out[turn, t, 6] = elect_sync(half)
            out[turn, t, 7] = cuda.syncthreads_count(data[turn, t])
            out[turn, t, 8] = cuda.syncthreads_and(int32(yes))
            out[turn, t, 9] = cuda.syncthreads_or(int32(yes))

    data = np.random.default_rng(1).integers(0, 5, (4, 64)).astype(np.int32)
    data[0], data[1] = 0, 2
    told, ended = alike(votes, data, np.zeros((4, 64, 10), np.int64), block=64, seed=seed)
    assert ended, told


def through_shared(out, how, rounds):
    """A lane writes a word that another one reads; ``how``: what stands between, and after."""
    tile, t = cuda.shared.array(64, int32), cuda.threadIdx.x
    for r in range(rounds):
        tile[t] = t + r
        if how == 0:
            cuda.syncwarp()
        elif how == 1:
            cuda.syncthreads()
        elif how == 2:
            shfl_sync_idx_b32(FULL, 1, 2)
        elif how == 3:
            cuda.any_sync(FULL, 1)
        elif how == 4:
            elect_sync(FULL)
        else:
            bar_sync(1, 64)
        out[t] += tile[t ^ 5]
        if how == 1:
            cuda.syncthreads()
        else:
            cuda.syncwarp()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how, right", [(0, True), (1, True), (2, False), (3, False), (4, False), (5, True)])
def test_what_orders_memory(how, right, seed):
    """Barriers do; shuffles, votes and elections order nothing."""
    told, ended = alike(through_shared, np.zeros(64, np.int64), how, 3, block=64, seed=seed)
    assert ended == right
    assert right or told[0] is faults.DataRace


@pytest.mark.parametrize("seed", SEEDS)
def test_a_syncwarp_of_half_a_warp_orders_that_half(seed):
    def halves(out, mine):
        tile, t = cuda.shared.array(32, int32), cuda.threadIdx.x
        tile[t] = t
        cuda.syncwarp(0xFFFF if t < 16 else 0xFFFF0000)
        out[t] = tile[t ^ mine]

    assert alike(halves, np.zeros(32, np.int64), 15, seed=seed)[1]
    assert alike(halves, np.zeros(32, np.int64), 16, seed=seed)[0][0] is faults.DataRace


def test_lanes_that_do_different_things():
    def different(out, what):
        t = cuda.threadIdx.x
        if what == 0 and t < 16:
            out[t] = cuda.ballot_sync(FULL, 1)
        elif what == 1 and t < 16:
            out[t] = shfl_sync_idx_f32(FULL, float32(1), 0)
        elif what == 2 and t < 16:
            out[t] = shfl_sync_idx_b32(0xFFFF0000, 1, 0)
        else:
            out[t] = shfl_sync_idx_b32(FULL, 1, 0)

    for what, kind in enumerate((faults.WarpDivergence, faults.KernelError, faults.WarpDivergence)):
        assert alike(different, np.zeros(32, np.int64), what)[0][0] is kind
    assert alike(different, np.zeros(32, np.int64), 3)[1]


def test_a_shuffle_from_nowhere_is_left_to_the_interpreter():
    def nowhere(out, stores):
        t = cuda.threadIdx.x
        if t < 20:
            value = shfl_sync_idx_b32(0xFFFFF, t, 25)
            out[t] = value if stores else 1

    told, ended = alike(nowhere, np.zeros(32, np.int64), 0)
    assert told[2] and not ended
    assert alike(nowhere, np.zeros(32, np.int64), 1)[0][0] is faults.UninitialisedRead


@pytest.mark.parametrize("seed", SEEDS)
def test_lanes_that_exit_while_others_wait(seed):
    def exits(out, n):
        t = cuda.threadIdx.x
        if t >= n:
            return
        if t % 7 == 3:
            for _ in range(4):
                cuda.syncwarp(1 << (t % 32))
            return
        out[t] = uint32(cuda.ballot_sync(FULL, t % 2))
        cuda.syncwarp()
        if t < 64:
            out[t] += cuda.syncthreads_count(t % 3)
        else:
            for _ in range(3):
                cuda.syncwarp()

    assert alike(exits, np.zeros(96, np.int64), 90, block=96, seed=seed)[1]


def test_more_meetings_than_there_is_room_for():
    """Eight masks at a time in one warp: the interpreter knows no limit."""

    def many(out):
        t = cuda.threadIdx.x
        out[t] = uint32(cuda.ballot_sync(0x1010101 << (t % 8), t > 10))

    told, ended = alike(many, np.zeros(32, np.int64))
    assert told[2] and not ended


# --- of a block -------------------------------------------------------------------------------------
def test_syncthreads_at_two_places_and_by_some():
    def places(out, what):
        t = cuda.threadIdx.x
        if what == 0 and t < 32:
            cuda.syncthreads()
        elif what == 1 and t < 32:
            out[t] = 1
        elif what == 2 and t < 32:
            bar_sync(0, 64)
        else:
            cuda.syncthreads()
        if what == 1 and t < 32:
            while cuda.atomic.add(out, 63, 0) == 0:
                pass
        out[t] += 1

    assert alike(places, np.zeros(64, np.int64), 0, block=64)[0][0] is faults.DivergentBarrier
    assert issubclass(alike(places, np.zeros(64, np.int64), 1, block=64)[0][0], faults.SimFault)
    assert not alike(places, np.zeros(64, np.int64), 2, block=64)[1]
    assert alike(places, np.zeros(64, np.int64), 3, block=64)[1]


@pytest.mark.parametrize("ordered", (True, False))
def test_syncthreads_hands_on_what_threads_know_of_other_blocks(ordered):
    def between(flag, data, out):
        at, t = global_address(flag), cuda.threadIdx.x
        if cuda.blockIdx.x == 1:
            data[t] = t
            cuda.syncthreads()
            if t == 0:
                st_release_gpu_global_b32(at, 1)
        else:
            if t == 0:
                while ld_acquire_gpu_global_b32(at) == 0:
                    pass
            if ordered:
                cuda.syncthreads()
            out[t] = data[t ^ 33]

    args = np.zeros(1, np.uint32), np.zeros(64, np.int32), np.zeros(64, np.int32)
    for seed in SEEDS:
        told, ended = alike(between, *args, grid=2, block=64, seed=seed)
        assert ended if ordered else told[0] is faults.DataRace


# --- mbarriers --------------------------------------------------------------------------------------
def ring(out, rounds, what):
    """Warp 0 fills a slot that warp 1 empties; ``what`` is left out, or done wrong."""
    tile, bars = cuda.shared.array(32, int32), cuda.shared.array(2, uint64)
    bar, t, lane = shared_address(bars), cuda.threadIdx.x, cuda.threadIdx.x % 32
    full, empty = bar, bar + 8
    if t == 0:
        mbarrier_init(full, 64)
        mbarrier_init(empty, 32)
    cuda.syncthreads()
    for r in range(rounds):
        parity = uint32(r & 1)
        if t < 32:
            if what != 1:
                while mbarrier_try_wait_parity(empty, parity ^ 1) == 0:
                    pass
            tile[lane] = r + lane
            mbarrier_arrive_count(full, 3 if what == 3 and r == 1 else 2)
        else:
            if what != 2:
                while mbarrier_try_wait_parity(full, parity) == 0:
                    pass
            out[lane] += tile[31 - lane]
            if what != 4:
                mbarrier_arrive(empty)


@pytest.mark.parametrize("what", range(5))
def test_a_ring_of_one_slot(what):
    kinds = {1: faults.SimFault, 2: faults.SimFault, 3: faults.TooManyArrivals, 4: faults.MissingArrivals}
    for seed in SEEDS:
        told, ended = alike(ring, np.zeros(32, np.int64), 6, what, block=64, seed=seed)
        assert ended if what == 0 else issubclass(told[0], kinds[what]), told


@pytest.mark.parametrize("late", (0, 1))
def test_what_comes_after_an_arrival_is_not_handed_on(late):
    def hands_on(out, late):
        tile, bars = cuda.shared.array(1, int32), cuda.shared.array(1, uint64)
        bar, t = shared_address(bars), cuda.threadIdx.x
        if t == 0:
            mbarrier_init(bar, 2)
        cuda.syncthreads()
        if t == 0 and not late:
            tile[0] = 1
        if t < 2:
            mbarrier_arrive(bar)
        if t == 0 and late:
            tile[0] = 1
        if t == 1:
            while mbarrier_try_wait_parity(bar, 0) == 0:
                pass
            out[t] = tile[0]

    for seed in SEEDS:
        told, ended = alike(hands_on, np.zeros(2, np.int64), late, seed=seed)
        assert ended if not late else told[0] in (faults.DataRace, faults.UninitialisedRead)


@pytest.mark.parametrize("waits", (1, 0))
def test_an_arrival_in_a_phase_that_nobody_has_seen_begin(waits):
    """The other one sees it, and arrives later: nothing else is wrong."""

    def twice(out, waits):
        bars, t = cuda.shared.array(1, uint64), cuda.threadIdx.x
        bar = shared_address(bars)
        if t == 0:
            mbarrier_init(bar, 2)
        cuda.syncwarp()
        mbarrier_arrive(bar)
        cuda.nanosleep(1)
        while (t > 0 or waits) and mbarrier_try_wait_parity(bar, 0) == 0:
            pass
        if t > 0:
            cuda.nanosleep(1)
        mbarrier_arrive(bar)
        out[t] = 1

    for seed in SEEDS:
        told, ended = alike(twice, np.zeros(2, np.int64), waits, block=2, seed=seed)
        assert ended if waits else issubclass(told[0], faults.SimFault), told
    assert waits or alike(twice, np.zeros(2, np.int64), waits, block=2)[0][0] is faults.UnobservedPhase


@pytest.mark.parametrize("ordered", (True, False))
def test_an_inval_after_waits(ordered):
    def ends(out, ordered):
        bars, t = cuda.shared.array(1, uint64), cuda.threadIdx.x
        bar = shared_address(bars)
        for _ in range(2):
            if t == 0:
                mbarrier_init(bar, 32)
            cuda.syncwarp()
            mbarrier_arrive(bar)
            while mbarrier_try_wait_parity(bar, 0) == 0:
                pass
            if ordered:
                cuda.syncwarp()
            if t == 0:
                cuda.nanosleep(1)  # the others have waited by now
                mbarrier_inval(bar)
            cuda.syncwarp()
        out[t] = 1

    for seed in SEEDS:
        told, ended = alike(ends, np.zeros(32, np.int64), ordered, seed=seed)
        assert ended if ordered else told[0] is faults.InvalNotOrdered


def test_a_barrier_that_its_user_does_not_know():
    def unknown(out, ordered):
        bars, t = cuda.shared.array(1, uint64), cuda.threadIdx.x
        bar = shared_address(bars)
        if t == 0:
            mbarrier_init(bar, 32)
        if ordered:
            cuda.syncwarp()
        mbarrier_arrive(bar)
        while mbarrier_try_wait_parity(bar, 0) == 0:
            pass
        out[t] = 1

    for seed in SEEDS:
        assert alike(unknown, np.zeros(32, np.int64), 1, seed=seed)[1]
        told, _ = alike(unknown, np.zeros(32, np.int64), 0, seed=seed)
        assert told[0] in (faults.InitNotOrdered, faults.NotABarrier)

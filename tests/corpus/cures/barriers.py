"""Barriers, warps and waits that nobody can end: what the report has to say of each, and the mend beside it."""
# ruff: noqa: F401  some names are for the mends alone

import numpy as np
from base import wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.cp_async import cp_async_ca_4, cp_async_mbarrier_arrive, cp_async_mbarrier_arrive_noinc
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_drop,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
)
from numba_deform.device.memory import global_address, shared_address, shared_at, st_global_b32
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.registers import setmaxnreg_dec
from numba_deform.device.sync import bar_arrive, bar_sync, fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import cp_async_bulk_load
from numba_deform.device.tokens import mbarrier_arrive_state, mbarrier_try_wait
from numba_deform.engines import faults

WARP, TILES, BYTES = 32, 4, 128
FULL_MASK = 0xFFFFFFFF
PING_PONG = np.arange(3)[:, None, None] * 100 + np.arange(2)[:, None] * 10 + np.arange(31, -1, -1)


def numbers(count=64, room=64):
    """Arguments: so many numbers, and room for results."""
    return lambda: [np.arange(count, dtype=np.uint32), np.zeros(room, np.uint32)]


def ints(count=64):
    return lambda: [np.arange(count, dtype=np.int32), np.zeros(count, np.int32)]


# --- operations of a whole warp, in a branch ----------------------------------------------------------
@wrong(
    faults.WarpDivergence, source="srush/GPU-Puzzles; CUDA guide, warp shuffle functions", block=64,
    args=ints(), expect=lambda data, out: [(out, np.where(np.arange(64) % WARP < 16, 0, data ^ 1))],
    names=("shfl", "lanes 0-15 never come", "branch"), hardware="no",
)  # fmt: skip
def shuffle_of_the_upper_half(data, out):
    """The lanes of half a warp exchange numbers with the mask of all; the others are at the next barrier."""
    i = cuda.threadIdx.x
    value = data[i]
    # cure: other = cuda.shfl_xor_sync(FULL_MASK, value, 1)
    if i % WARP >= 16:
        other = cuda.shfl_xor_sync(FULL_MASK, value, 1)  # cure: pass  # <- fault
        out[i] = other
    cuda.syncthreads()


@wrong(
    faults.WarpDivergence, source="CUDA guide, warp match functions", block=64, args=ints(),
    expect=lambda data, out: [(out[8:WARP], 1)], names=("match_any", "lanes 0-7 never come", "branch"),
    hardware="no",
)  # fmt: skip
def match_in_a_branch(data, out):
    """As the shuffle: a match with the mask of all, by some."""
    i = cuda.threadIdx.x
    key = data[i]
    # cure: same = cuda.match_any_sync(FULL_MASK, key)
    if i % WARP >= 8:
        same = cuda.match_any_sync(FULL_MASK, key)  # cure: pass  # <- fault
        out[i] = cuda.popc(same)
    cuda.syncthreads()


@wrong(
    faults.NamedBarrierMisuse, source="deepseek-ai/FlashMLA pull request 57", block=64, args=ints(),
    expect=lambda data, out: [(out[WARP:], data[:WARP])], names=("warp 0", "bar.arrive", "every lane"),
    hardware="no",
)  # fmt: skip
def one_lane_signals_for_its_warp(data, out):
    """One lane arrives at a named barrier for its warp, as it may at an mbarrier."""
    tile = cuda.shared.array(WARP, int32)
    i = cuda.threadIdx.x
    if i < WARP:
        tile[i] = data[i]
        if i == 0:  # cure: if True:
            bar_arrive(1, 64)  # <- fault
    else:
        bar_sync(1, 64)
        out[i] = tile[i - WARP]
    cuda.syncthreads()


@wrong(
    faults.NamedBarrierMisuse, source="PTX ISA 9.7.13.1: the count of a named barrier", block=128,
    args=ints(128),
    expect=lambda data, out: [(out[:96], data[:96].sum())], names=("96 threads", "32"), hardware="no",
)  # fmt: skip
def named_barrier_for_too_few(data, out):
    """Three warps meet at a named barrier whose count is that of one."""
    tile = cuda.shared.array(128, int32)
    i = cuda.threadIdx.x
    tile[i] = data[i]
    if i < 96:
        bar_sync(1, 32)  # cure: bar_sync(1, 96)  # <- fault
        total = int32(0)
        for j in range(96):
            total += tile[j]
        out[i] = total


@wrong(
    faults.NamedBarrierMisuse, source="NVIDIA/cutlass: NamedBarrier::arrive and sync in turn", block=64,
    args=ints(128), expect=lambda data, out: [(out, data)],
    names=("again before its 64 threads", "warp 0 wait", "another named barrier", "bar_sync(n, 64)"),
    hardware="guarded",
)  # fmt: skip
def producer_laps_a_named_barrier(data, out):
    """A producer says by bar.arrive that a tile is there, and goes on to the next: bar.arrive does not wait."""
    tile = cuda.shared.array(WARP, int32)
    i = cuda.threadIdx.x
    for t in range(TILES):
        if i < WARP:
            # cure: if t: bar_sync(2, 64)
            tile[i] = data[WARP * t + i]
            bar_arrive(1, 64)  # <- fault
        else:
            bar_sync(1, 64)
            out[WARP * t + i - WARP] = tile[i - WARP]
            # cure: if t + 1 < TILES: bar_arrive(2, 64)


@wrong(
    faults.NamedBarrierMisuse, source="NVIDIA/cutlass: NamedBarrier::arrive by one role, sync by another",
    block=96, args=numbers(), expect=lambda data, out: [(out, data)],
    names=("arrives at named barrier 1 again", "warp 1 wait", "bar_sync(n, 64)"),
    hardware="guarded",
)  # fmt: skip
def two_tiles_may_be_there_at_once(data: u64, out: u64):
    """One warp says by bar.arrive that a tile has come. In most orders the reader comes in between; once both
    tiles are there before it, the second arrival is one too many."""
    tile, bars = cuda.shared.array((2, WARP), uint32, alignment=128), cuda.shared.array(2, uint64)
    first, full, i = shared_address(tile), shared_address(bars), uint32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        mbarrier_init(full + 8, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    for t in range(2):
        if i == 0:
            mbarrier_arrive_expect_tx(full + 8 * t, BYTES)
            cp_async_bulk_load(first + BYTES * t, data + uint64(BYTES * t), BYTES, full + 8 * t)
        elif i // WARP == 1:
            mbarrier_wait(full + 8 * t, 0)
            # cure: if t: bar_sync(2, 64)
            bar_arrive(1, 64)  # <- fault
        elif i // WARP == 2:
            bar_sync(1, 64)
            st_global_b32(out + uint64(BYTES * t + 4 * (i - 64)), tile[t, i - 64])
            # cure: if t == 0: bar_arrive(2, 64)


def but_for_the_third(data, out):
    return [(out, data[np.r_[0:64, 32:64, 96:128]])]


@wrong(
    faults.MissingArrivals, source="CUTLASS: PipelineTmaAsync, a producer with a predicated tile", block=64,
    args=numbers(128, 128), expect=but_for_the_third,
    names=("arrival on bars[0]", "depends on the if of line", "without bytes"), hardware="guarded",
)  # fmt: skip
def a_tile_is_skipped_with_its_arrival(data: u64, out: u64):
    """The third tile is not needed, so that the producer does not fetch it, and its reader waits for it."""
    tile, bars = cuda.shared.array(WARP, uint32, alignment=128), cuda.shared.array(2, uint64)
    full, i = shared_address(bars), uint32(cuda.threadIdx.x)
    empty = full + uint32(8)
    if i == 0:
        mbarrier_init(full, 1)
        mbarrier_init(empty, WARP)
        fence_mbarrier_init()
    cuda.syncthreads()
    for t in range(TILES):
        if i == 0:
            mbarrier_wait(empty, t & 1 ^ 1)
            if t != 2:
                mbarrier_arrive_expect_tx(full, BYTES)
                cp_async_bulk_load(shared_address(tile), data + uint64(BYTES * t), BYTES, full)
            # cure: else: mbarrier_arrive(full)
        elif i >= WARP:
            mbarrier_wait(full, t & 1)  # <- fault
            st_global_b32(out + uint64(BYTES * t + 4 * (i - WARP)), tile[i - WARP])
            fence_proxy_async()
            mbarrier_arrive(empty)


@wrong(
    faults.MissingArrivals, source="CUTLASS: PipelineTmaAsync, a producer with a predicated tile", block=64,
    args=numbers(128, 128), expect=but_for_the_third,
    names=("arrival on bars[0]", "depends on the if of line", "without bytes"), hardware="guarded",
)  # fmt: skip
def goes_on_to_the_next_tile_without_arriving(data, out):
    """The same by continue, and by threads that write the tile themselves."""
    tile, bars = cuda.shared.array(WARP, uint32), cuda.shared.array(2, uint64)
    full, i = shared_address(bars), cuda.threadIdx.x
    empty = full + uint32(8)
    if i == 0:
        mbarrier_init(full, WARP)
        mbarrier_init(empty, WARP)
        fence_mbarrier_init()
    cuda.syncthreads()
    for t in range(TILES):
        if i < WARP:
            mbarrier_wait(empty, t & 1 ^ 1)
            if t == 2:
                # cure: mbarrier_arrive(full)
                continue
            tile[i] = data[WARP * t + i]
            mbarrier_arrive(full)
        else:
            mbarrier_wait(full, t & 1)  # <- fault
            out[WARP * t + i - WARP] = tile[i - WARP]
            mbarrier_arrive(empty)


@wrong(
    faults.NamedBarrierMisuse, source="NVIDIA/cutlass: OrderedSequenceBarrier, turns of two groups", block=64,
    args=ints(128), expect=lambda data, out: [(out, data)],
    names=("again before its 64 threads", "warp 0 wait", "bar_sync(n, 64)"), hardware="guarded",
)  # fmt: skip
def turn_not_waited_for(data, out):
    """Two warps work in turn: the second waits for the first, which does not wait for the second."""
    tile = cuda.shared.array(WARP, int32)
    i = cuda.threadIdx.x
    for t in range(0, TILES, 2):
        if i < WARP:
            # cure: if t: bar_sync(2, 64)
            tile[i] = data[WARP * t + i]
            out[WARP * t + i] = tile[WARP - 1 - i ^ 31]
            bar_arrive(1, 64)  # <- fault
        else:
            bar_sync(1, 64)
            tile[i - WARP] = data[WARP * t + i]
            out[WARP * t + i] = tile[WARP - 1 - (i - WARP) ^ 31]
            # cure: if t + 2 < TILES: bar_arrive(2, 64)


@wrong(
    faults.RegisterMisuse, source="PTX ISA 9.7.19.5: setmaxnreg, all warps of a warpgroup", block=256,
    args=numbers(256, 256), expect=lambda data, out: [(out, 1)], names=("warps 0 to 3, a warpgroup",),
    hardware="no",
)  # fmt: skip
def one_warp_gives_registers_back(data: u64, out: u64):
    """The producer is one warp, and gives its registers back alone."""
    i = int32(cuda.threadIdx.x)
    if i < WARP:  # cure: if i < 128:
        setmaxnreg_dec(40)  # <- fault
    st_global_b32(out + uint64(4 * i), uint32(1))


# --- counts -----------------------------------------------------------------------------------------


@wrong(
    faults.MissingArrivals, source="facebookexperimental/triton pull request 104", block=64, args=numbers(128),
    expect=lambda data, out: [(out[WARP:], data.reshape(-1, WARP).sum(axis=0))],
    names=("empty[0]", "33", "32 threads", "can never"), hardware="guarded",
)  # fmt: skip
def empty_counts_the_producer_too(data: u64, out: u64):
    """32 consumers release a stage, and its empty barrier waits for 33: in the end all wait for each other."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    full = cuda.shared.array(2, uint64)
    empty = cuda.shared.array(2, uint64)
    fulls, empties, i = shared_address(full), shared_address(empty), int32(cuda.threadIdx.x)
    if i == 63:
        for s in range(2):
            mbarrier_init(fulls + uint32(8 * s), 1)
            mbarrier_init(empties + uint32(8 * s), 33)  # cure: mbarrier_init(empties + uint32(8 * s), 32)
        fence_mbarrier_init()
    cuda.syncthreads()
    if i == 0:
        for t in range(TILES):
            bar = fulls + uint32(8 * (t % 2))
            mbarrier_wait(empties + uint32(8 * (t % 2)), t // 2 & 1 ^ 1)  # <- fault
            mbarrier_arrive_expect_tx(bar, BYTES)
            place = shared_at(shared_address(tile), t % 2, BYTES)
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)
    elif i >= WARP:
        total = uint32(0)
        for t in range(TILES):
            mbarrier_wait(fulls + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, i % WARP]
            fence_proxy_async()
            mbarrier_arrive(empties + uint32(8 * (t % 2)))
        st_global_b32(out + uint64(4 * i), uint32(total))
    cuda.syncthreads()


@wrong(
    faults.MissingArrivals, source="facebookexperimental/triton pull request 104", block=64, args=numbers(128),
    expect=lambda data, out: [(out[:WARP], data.reshape(-1, WARP).sum(axis=0))],
    names=("empty[0]", "33", "32 threads", "can never"), hardware="guarded",
)  # fmt: skip
def empty_counts_too_many_below(data: u64, out: u64):
    """The same with the consumers in the lower warp, so that they have the lower numbers."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    full = cuda.shared.array(2, uint64)
    empty = cuda.shared.array(2, uint64)
    fulls, empties, i = shared_address(full), shared_address(empty), int32(cuda.threadIdx.x)
    if i == 63:
        for s in range(2):
            mbarrier_init(fulls + uint32(8 * s), 1)
            mbarrier_init(empties + uint32(8 * s), 33)  # cure: mbarrier_init(empties + uint32(8 * s), 32)
        fence_mbarrier_init()
    cuda.syncthreads()
    if i == 32:
        for t in range(TILES):
            bar = fulls + uint32(8 * (t % 2))
            mbarrier_wait(empties + uint32(8 * (t % 2)), t // 2 & 1 ^ 1)  # <- fault
            mbarrier_arrive_expect_tx(bar, BYTES)
            place = shared_at(shared_address(tile), t % 2, BYTES)
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)
    elif i < WARP:
        total = uint32(0)
        for t in range(TILES):
            mbarrier_wait(fulls + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, i % WARP]
            fence_proxy_async()
            mbarrier_arrive(empties + uint32(8 * (t % 2)))
        st_global_b32(out + uint64(4 * i), uint32(total))
    cuda.syncthreads()


@wrong(
    faults.MissingArrivals, source="NVIDIA/cutlass: PipelineTmaAsync, num_consumers of a ping-pong kernel",
    block=96, args=numbers(128, 160),
    expect=lambda data, out: [(out[:WARP], data.reshape(-1, WARP).sum(axis=0)), (out[128:], 7)],
    names=("empty[0]", "expects 64", "32 threads (threads 32-63)", "Initialise it for 32"), hardware="guarded",
)  # fmt: skip
def ring_counts_two_groups(data: u64, out: u64):
    """Both groups are counted, one of them reads the tiles, and the other waits behind a named barrier until
    that has ended."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    full = cuda.shared.array(2, uint64)
    empty = cuda.shared.array(2, uint64)
    fulls, empties, i = shared_address(full), shared_address(empty), int32(cuda.threadIdx.x)
    if i == 64:
        for s in range(2):
            mbarrier_init(fulls + uint32(8 * s), 1)
            mbarrier_init(empties + uint32(8 * s), 64)  # cure: mbarrier_init(empties + uint32(8 * s), 32)
        fence_mbarrier_init()
    cuda.syncthreads()
    if i < WARP:
        bar_sync(2, 64)
        st_global_b32(out + uint64(4 * (128 + i)), uint32(7))
    elif i < 2 * WARP:
        total = uint32(0)
        for t in range(TILES):
            mbarrier_wait(fulls + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, i % WARP]
            fence_proxy_async()
            mbarrier_arrive(empties + uint32(8 * (t % 2)))
        st_global_b32(out + uint64(4 * (i - WARP)), uint32(total))
        bar_arrive(2, 64)
    elif i == 64:
        for t in range(TILES):
            bar = fulls + uint32(8 * (t % 2))
            mbarrier_wait(empties + uint32(8 * (t % 2)), t // 2 & 1 ^ 1)  # <- fault
            mbarrier_arrive_expect_tx(bar, BYTES)
            place = shared_at(shared_address(tile), t % 2, BYTES)
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)


# --- arrivals of a pipeline of ordinary stores ------------------------------------------------------
@wrong(
    faults.DataRace, source="NVIDIA/cutlass: consumer_release before the last read",
    block=64, args=numbers(128, 128), expect=lambda data, out: [(out, data)],
    names=("after its arrival in that phase", "arrive behind its last read"), hardware="guarded",
)  # fmt: skip
def releases_before_it_reads(data, out):
    """A tile of ordinary stores is given back before it is read."""
    tile = cuda.shared.array(WARP, uint32)
    full, i = shared_address(cuda.shared.array(2, uint64)), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, WARP)
        mbarrier_init(full + uint32(8), WARP)
        fence_mbarrier_init()
    cuda.syncthreads()
    for t in range(TILES):
        if i < WARP:
            mbarrier_wait(full + uint32(8), t & 1 ^ 1)
            tile[i] = data[WARP * t + i]  # <- fault
            mbarrier_arrive(full)
        else:
            mbarrier_wait(full, t & 1)
            mbarrier_arrive(full + uint32(8))  # cure: pass
            out[WARP * t + i - WARP] = tile[i - WARP]  # <- fault
            # cure: mbarrier_arrive(full + uint32(8))


@wrong(
    faults.TooManyArrivals, faults.DataRace, faults.MissedPhase, faults.UnobservedPhase,
    source="PTX ISA 9.7.13.15.14: mbarrier.arrive_drop",
    block=64, args=numbers(128, 128), expect=lambda data, out: [(out, data)],
    names=("Thread 3 drops out of", "one arrival less", "without dropping out"), hardware="guarded",
)  # fmt: skip
def drops_out_and_comes_again(data, out):
    """A lane says by arrive_drop that it has no more to write, and writes on."""
    tile = cuda.shared.array(WARP, uint32)
    full, i = shared_address(cuda.shared.array(2, uint64)), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, WARP)
        mbarrier_init(full + uint32(8), WARP)
        fence_mbarrier_init()
    cuda.syncthreads()
    for t in range(TILES):
        if i < WARP:
            mbarrier_wait(full + uint32(8), t & 1 ^ 1)
            tile[i] = data[WARP * t + i]
            if i == 3 and t == 1:  # cure: if False:
                mbarrier_arrive_drop(full)  # <- fault
            else:
                mbarrier_arrive(full)
        else:
            mbarrier_wait(full, t & 1)
            out[WARP * t + i - WARP] = tile[i - WARP]
            mbarrier_arrive(full + uint32(8))


# --- tokens -----------------------------------------------------------------------------------------
@wrong(
    faults.StaleWait, source="PTX ISA 9.7.13.15.16: a token is of one phase", block=64, args=numbers(64, 96),
    expect=lambda data, out: [(out[WARP:64], np.arange(WARP) + 1)],
    names=("token", "phase 0", "mbarrier_arrive_state"),
)  # fmt: skip
def waits_with_an_old_token(data: u64, out: u64):
    """The token of the first meeting is used for the second as well."""
    tile = cuda.shared.array(WARP, uint32)
    bars = cuda.shared.array(1, uint64)
    bar, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, 64)
        fence_mbarrier_init()
    cuda.syncthreads()
    if i < WARP:
        tile[i] = uint32(i)
    token = mbarrier_arrive_state(bar)
    while mbarrier_try_wait(bar, token) == 0:
        pass
    seen = uint32(0)
    if i >= WARP:
        seen = tile[i - WARP]
    mbarrier_arrive_state(bar)  # cure: token = mbarrier_arrive_state(bar)
    while mbarrier_try_wait(bar, token) == 0:  # <- fault
        pass
    if i < WARP:
        tile[i] = uint32(7)
    st_global_b32(out + uint64(4 * i), uint32(seen + uint32(1)))


# --- counts -----------------------------------------------------------------------------------------
@wrong(
    faults.MissingArrivals, source="PTX ISA 9.7.13.15.15: cp.async.mbarrier.arrive, .noinc", block=64,
    args=numbers(128, 128), expect=lambda data, out: [(out, data)], hardware="guarded",
    names=("raise the pending count before they lower it", "cp_async_mbarrier_arrive_noinc there"),
)  # fmt: skip
def arrivals_of_cp_async_that_raise_the_count(data, out):
    """The barrier expects an arrival of each lane, and those of cp.async come on top of them."""
    tile, bars = cuda.shared.array(64, uint32, alignment=128), cuda.shared.array(4, uint64)
    full, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i < 4:
        mbarrier_init(full + 8 * i, WARP)
    cuda.syncthreads()
    for n in range(TILES):
        s, odd = n % 2, n // 2 & 1
        if i < WARP:
            mbarrier_wait(full + 16 + 8 * s, odd ^ 1)
            cp_async_ca_4(shared_address(tile) + 128 * s + 4 * i, global_address(data) + 128 * n + 4 * i, 4)
            cp_async_mbarrier_arrive(full + 8 * s)  # cure: cp_async_mbarrier_arrive_noinc(full + 8 * s)
        else:
            mbarrier_wait(full + 8 * s, odd)  # <- fault
            out[WARP * n + i - WARP] = tile[WARP * s + i - WARP]
            fence_proxy_async()
            mbarrier_arrive(full + 16 + 8 * s)


@wrong(
    faults.InFlightRead, source="PTX ISA 9.7.13.15.15: the arrival is for cp.async issued before it", block=32,
    args=numbers(32, 32), expect=lambda data, out: [(out, data[::-1])], hardware="guarded",
    names=("Leave the arrival on the barrier", "behind this copy", "comes before the copy"),
)  # fmt: skip
def arrival_before_its_copy(data, out):
    """Nothing has been issued when the arrival is left: it counts at once."""
    tile, bars, i = cuda.shared.array(32, uint32), cuda.shared.array(1, uint64), int32(cuda.threadIdx.x)
    place, source = shared_address(tile) + 4 * i, global_address(data) + 4 * i
    full = shared_address(bars)
    if i == 0:
        mbarrier_init(full, WARP)
    cuda.syncthreads()
    cp_async_mbarrier_arrive_noinc(full)  # cure: cp_async_ca_4(place, source, 4)
    cp_async_ca_4(place, source, 4)  # cure: cp_async_mbarrier_arrive_noinc(full)
    mbarrier_wait(full, 0)
    out[i] = tile[31 - i]  # <- fault


@wrong(
    faults.NamedBarrierMisuse, source="PTX ISA 9.7.13.1: bar.arrive and bar.sync name one number", block=64,
    args=numbers(1, 192), expect=lambda data, out: [(out.reshape(3, 2, 32), PING_PONG)], hardware="guarded",
    names=("Call it with 64", "named barrier 1 is for 32 threads", "and for 64"),
)  # fmt: skip
def meets_by_two_numbers(data, out):
    """Two warps take turns: each waits at its own barrier for 32 threads, the other arrives there for 64."""
    scratch, w, i = cuda.shared.array(32, uint32), cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    if w == 1:
        bar_arrive(1, 64)
    for n in range(3):
        bar_sync(1 + w, 32)  # cure: bar_sync(1 + w, 64)  # <- fault
        scratch[i] = 100 * n + 10 * w + i
        cuda.syncwarp()
        out[64 * n + 32 * w + i] = scratch[31 - i]
        if w == 0 or n < 2:
            bar_arrive(2 - w, 64)

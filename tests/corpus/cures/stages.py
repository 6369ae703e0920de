"""Rings of two stages: the index of a stage, warps that differ, and arrays at addresses of one's own: what the
report has to say of each, and the mend beside it."""
# ruff: noqa: F401  some names are for the mends alone

import numpy as np
from base import wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_drop,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
)
from numba_deform.device.memory import dynamic_start, shared_address, shared_array, st_global_b32
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import cp_async_bulk_load
from numba_deform.engines import faults

WARP, TILES, BYTES = 32, 8, 128


def tiles():
    """Arguments: tiles of 32 numbers, and room for results."""
    return lambda: [np.arange(WARP * TILES, dtype=np.uint32), np.zeros(3 * WARP, np.uint32)]


def summed(data):
    return data.reshape(-1, WARP).sum(axis=0)


def sum_of_tiles(data, out):
    """Of one warp of consumers, or of the first of two."""
    return [(out[WARP : 2 * WARP], summed(data))]


def sum_of_tiles_first(data, out):
    return [(out[:WARP], summed(data))]


def sum_of_tiles_turned(data, out):
    return [(out[WARP : 2 * WARP], summed(data)[::-1])]


def sum_of_two_operands(data, out):
    return [(out[WARP : 2 * WARP], 2 * summed(data))]


def sum_of_tiles_but_one(data, out):
    """One lane stops early."""
    return [(np.delete(out[WARP : 2 * WARP], 8), np.delete(summed(data), 8))]


@cuda.jit(device=True)
def start_ring(full, producers, consumers):
    """The barriers of two stages, first the full ones, are ready for all threads."""
    if cuda.threadIdx.x == 0:
        for s in range(2):
            mbarrier_init(full + uint32(8 * s), producers)
            mbarrier_init(full + uint32(16 + 8 * s), consumers)
        fence_mbarrier_init()
    cuda.syncthreads()


ONE_INDEX = {
    "source": "NVIDIA/cutlass: one index for the barriers and the memory of a stage", "args": tiles(),
    "hardware": "guarded",
}  # fmt: skip
OWN_OFFSETS = {
    "source": "CUDA guide, dynamic shared memory: arrays at offsets of one's own", "args": tiles(),
    "hardware": "guarded", "shared_bytes": 1024,
}  # fmt: skip


# --- the index of a stage ---------------------------------------------------------------------------
@wrong(
    faults.DataRace, **ONE_INDEX, block=64, expect=sum_of_tiles_first,
    names=("by one stage index", "the arrival that comes after this", "and the wait at",),
)  # fmt: skip
def writes_into_the_other_stage(data, out):
    """The writer waits and arrives by the stage, and writes into the other one."""
    tile = cuda.shared.array((2, WARP), uint32)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, WARP, WARP)
    if i < WARP:
        for t in range(TILES):
            bar = full + uint32(8 * (t % 2))
            mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
            # cure: tile[t % 2, i] = data[WARP * t + i]
            tile[(t + 1) % 2, i] = data[WARP * t + i]  # cure: pass  # <- fault
            mbarrier_arrive(bar)
    else:
        for t in range(TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, i - WARP]  # <- fault
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        out[i - WARP] = total


@wrong(
    faults.DataRace, **ONE_INDEX, block=64, expect=sum_of_tiles_first,
    names=("by one stage index", "the arrival that comes after this", "and the wait at",),
)  # fmt: skip
def reads_from_the_other_stage(data, out):
    """Tiles of ordinary stores: the reader waits and arrives by the stage, and reads the other one."""
    tile = cuda.shared.array((2, WARP), uint32)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, WARP, WARP)
    if i < WARP:
        for t in range(TILES):
            bar = full + uint32(8 * (t % 2))
            mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
            tile[t % 2, i] = data[WARP * t + i]  # <- fault
            mbarrier_arrive(bar)
    else:
        for t in range(TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[(t + 1) % 2, i - WARP]  # cure: total += tile[t % 2, i - WARP]  # <- fault
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        out[i - WARP] = total


@wrong(
    faults.DataRace, **ONE_INDEX, block=64, expect=sum_of_tiles_first,
    names=("by one stage index", "the arrival that comes after this", "and the wait at",),
)  # fmt: skip
def one_place_for_two_stages(data, out):
    """Two stages of barriers, and the tile of one: the other's is never used."""
    tile = cuda.shared.array((2, WARP), uint32)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, WARP, WARP)
    if i < WARP:
        for t in range(TILES):
            bar = full + uint32(8 * (t % 2))
            mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
            tile[0, i] = data[WARP * t + i]  # cure: tile[t % 2, i] = data[WARP * t + i]  # <- fault
            mbarrier_arrive(bar)
    else:
        for t in range(TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[0, i - WARP]  # cure: total += tile[t % 2, i - WARP]  # <- fault
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        out[i - WARP] = total


@wrong(
    faults.UnobservedPhase, **ONE_INDEX, block=64, expect=sum_of_tiles_first,
    names=("Thread 0 waits on bars[", "and then arrives on bars[", "by one stage index",),
)  # fmt: skip
def writer_arrives_for_the_other_stage(data, out):
    """The writer waits for a stage, and says of the other one that it is full."""
    tile = cuda.shared.array((2, WARP), uint32)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, WARP, WARP)
    if i < WARP:
        for t in range(TILES):
            bar = full + uint32(8 * (t % 2))
            mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
            tile[t % 2, i] = data[WARP * t + i]
            # cure: mbarrier_arrive(bar)
            mbarrier_arrive(full + uint32(8 * ((t + 1) % 2)))  # cure: pass  # <- fault
    else:
        for t in range(TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, i - WARP]
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        out[i - WARP] = total


@wrong(
    faults.UnobservedPhase, **ONE_INDEX, block=64, expect=sum_of_tiles_first,
    names=("Thread 32 waits on bars[", "and then arrives on bars[", "by one stage index",),
)  # fmt: skip
def reader_waits_for_the_other_stage(data, out):
    """The reader waits for a stage, and reads and gives back the other one."""
    tile = cuda.shared.array((2, WARP), uint32)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, WARP, WARP)
    if i < WARP:
        for t in range(TILES):
            bar = full + uint32(8 * (t % 2))
            mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
            tile[t % 2, i] = data[WARP * t + i]
            mbarrier_arrive(bar)  # <- fault
    else:
        for t in range(TILES):
            # cure: mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            mbarrier_wait(full + uint32(8 * ((t + 1) % 2)), t // 2 & 1)  # cure: pass
            total += tile[t % 2, i - WARP]
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        out[i - WARP] = total


@wrong(
    faults.UnobservedPhase, **ONE_INDEX, block=64, expect=sum_of_tiles,
    names=("Thread 32 waits on bars[", "and then arrives on bars[", "by one stage index",),
)  # fmt: skip
def releases_the_other_stage(data: u64, out: u64):
    """The consumers of copies read a stage, and give the other one back."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, 1, WARP)
    if i == 0:
        for t in range(TILES):
            bar = full + uint32(8 * (t % 2))
            mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
            mbarrier_arrive_expect_tx(bar, BYTES)
            place = shared_address(tile) + uint32(BYTES * (t % 2))
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)
    elif i >= WARP:
        for t in range(TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, i % WARP]
            fence_proxy_async()
            # cure: mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
            mbarrier_arrive(full + uint32(16 + 8 * ((t + 1) % 2)))  # cure: pass  # <- fault
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.UnobservedPhase, faults.TooManyArrivals, **ONE_INDEX, block=64, expect=sum_of_tiles,
    names=("Thread 0 waits on bars[", "and then arrives on bars[", "by one stage index",),
)  # fmt: skip
def arms_the_other_stage(data: u64, out: u64):
    """The producer waits for a stage and fills it, and arms the other one."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, 1, WARP)
    if i == 0:
        for t in range(TILES):
            bar = full + uint32(8 * (t % 2))
            mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
            # cure: mbarrier_arrive_expect_tx(bar, BYTES)
            mbarrier_arrive_expect_tx(full + uint32(8 * ((t + 1) % 2)), BYTES)  # cure: pass  # <- fault
            place = shared_address(tile) + uint32(BYTES * (t % 2))
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)
    elif i >= WARP:
        for t in range(TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, i % WARP]
            fence_proxy_async()
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        st_global_b32(out + uint64(4 * i), uint32(total))


# --- warps that differ ------------------------------------------------------------------------------


@wrong(
    faults.InFlightRead, **ONE_INDEX, block=96, expect=sum_of_tiles,
    names=("Wait on bars[0]", "was on bars[1]",),
)  # fmt: skip
def second_warp_waits_for_the_other_stage(data: u64, out: u64):
    """Two warps consume, and the second one takes its barrier by its own number, too."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, 1, 2 * WARP)
    if i == 0:
        for t in range(TILES):
            bar = full + uint32(8 * (t % 2))
            mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
            mbarrier_arrive_expect_tx(bar, BYTES)
            place = shared_address(tile) + uint32(BYTES * (t % 2))
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)
    elif i >= WARP:
        for t in range(TILES):
            # cure: mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            mbarrier_wait(full + uint32(8 * ((t + i // 64) % 2)), t // 2 & 1)  # cure: pass
            total += tile[t % 2, i % WARP]  # <- fault
            fence_proxy_async()
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.UnobservedPhase, **ONE_INDEX, block=96, expect=sum_of_tiles,
    names=("Thread 64 waits on bars[", "and then arrives on bars[", "by one stage index",),
)  # fmt: skip
def second_warp_releases_the_other_stage(data: u64, out: u64):
    """Two warps consume, and the second one gives back by its own number, too."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, 1, 2 * WARP)
    if i == 0:
        for t in range(TILES):
            bar = full + uint32(8 * (t % 2))
            mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
            mbarrier_arrive_expect_tx(bar, BYTES)
            place = shared_address(tile) + uint32(BYTES * (t % 2))
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)
    elif i >= WARP:
        for t in range(TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, i % WARP]
            fence_proxy_async()
            # cure: mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
            mbarrier_arrive(full + uint32(16 + 8 * ((t + i // 64) % 2)))  # cure: pass  # <- fault
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.MissingArrivals,
    source="PTX ISA 9.7.13.15.14: mbarrier.arrive_drop",
    block=64, args=tiles(), expect=sum_of_tiles_but_one, hardware="guarded",
    names=("Who ends before others drops out (mbarrier_arrive_drop)",),
)  # fmt: skip
def one_lane_ends_without_dropping_out(data: u64, out: u64):
    """A lane of the consumers has enough after some tiles, and just ends."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, 1, WARP)
    if i == 0:
        for t in range(TILES):
            bar = full + uint32(8 * (t % 2))
            mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)  # <- fault
            mbarrier_arrive_expect_tx(bar, BYTES)
            place = shared_address(tile) + uint32(BYTES * (t % 2))
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)
    elif i >= WARP:
        for t in range(TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, i % WARP]
            fence_proxy_async()
            if i == 40 and t == TILES // 2:
                # cure: mbarrier_arrive_drop(full + uint32(16))
                # cure: mbarrier_wait(full + uint32(8), t // 2 & 1)
                # cure: mbarrier_arrive_drop(full + uint32(24))
                break
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        st_global_b32(out + uint64(4 * i), uint32(total))


# --- arrays at addresses of one's own ----------------------------------------------------------------


@wrong(
    faults.LiveBarrierAccess, **OWN_OFFSETS, block=64, expect=sum_of_tiles,
    names=("the array of 256 bytes", "reaches 64 bytes into", "64 bytes on", "in bytes",),
)  # fmt: skip
def barriers_inside_the_tile(data: u64, out: u64):
    """The barriers begin behind the first half of the tile's bytes and a half."""
    start = dynamic_start(128)
    tile = shared_array(start, 2 * WARP, uint32)
    # cure: bars = shared_array(start + uint32(2 * BYTES), 4, uint64)
    bars = shared_array(start + uint32(6 * WARP), 4, uint64)  # cure: pass
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, 1, WARP)
    if i == 0:
        for t in range(TILES):
            bar = full + uint32(8 * (t % 2))
            mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
            mbarrier_arrive_expect_tx(bar, BYTES)
            place = shared_address(tile) + uint32(BYTES * (t % 2))
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)  # <- fault
    elif i >= WARP:
        for t in range(TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2 * WARP + i - WARP]
            fence_proxy_async()
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.CopyCollision, **OWN_OFFSETS, block=64, expect=sum_of_two_operands,
    names=("the array of 256 bytes", "reaches 128 bytes into", "128 bytes on", "in bytes",),
)  # fmt: skip
def second_operand_begins_inside_the_first(data: u64, out: u64):
    """The offset of the second operand is that of one of the first one's two stages."""
    start = dynamic_start(128)
    tile = shared_array(start, 2 * WARP, uint32)
    # cure: more = shared_array(start + uint32(2 * BYTES), 2 * WARP, uint32)
    more = shared_array(start + uint32(BYTES), 2 * WARP, uint32)  # cure: pass
    bars = shared_array(start + uint32(4 * BYTES), 4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, 1, WARP)
    if i == 0:
        for t in range(TILES):
            bar = full + uint32(8 * (t % 2))
            mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
            mbarrier_arrive_expect_tx(bar, 2 * BYTES)
            place = shared_address(tile) + uint32(BYTES * (t % 2))
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)  # <- fault
            place = shared_address(more) + uint32(BYTES * (t % 2))
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)  # <- fault
    elif i >= WARP:
        for t in range(TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            at = t % 2 * WARP + i - WARP
            total += tile[at] + more[at]
            fence_proxy_async()
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.DataRace, **OWN_OFFSETS, block=64, expect=sum_of_tiles_turned,
    names=("the array of 256 bytes", "reaches 128 bytes into", "128 bytes on", "in bytes",),
)  # fmt: skip
def room_to_turn_in_the_second_stage(data: u64, out: u64):
    """What the consumers write in between lies where the second stage is."""
    start = dynamic_start(128)
    tile = shared_array(start, 2 * WARP, uint32)
    # cure: turned = shared_array(start + uint32(2 * BYTES), WARP, uint32)
    turned = shared_array(start + uint32(BYTES), WARP, uint32)  # cure: pass
    bars = shared_array(start + uint32(3 * BYTES), 4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, 1, WARP)
    if i == 0:
        for t in range(TILES):
            bar = full + uint32(8 * (t % 2))
            mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
            mbarrier_arrive_expect_tx(bar, BYTES)
            place = shared_address(tile) + uint32(BYTES * (t % 2))
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)
    elif i >= WARP:
        for t in range(TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            turned[i - WARP] = tile[t % 2 * WARP + i - WARP]  # <- fault
            cuda.syncwarp()
            total += turned[63 - i]
            cuda.syncwarp()
            fence_proxy_async()
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.RefillRace, source="NVIDIA/cutlass: an arrival for each warp, num_consumers", block=96, args=tiles(),
    expect=lambda data, out: [(out[32:].reshape(2, WARP), np.stack([summed(data)] * 2))],
    names=("on empty[", "thread 32 alone", "arrive there behind its last read"),
)  # fmt: skip
def one_lane_releases_for_two_warps(data: u64, out: u64):
    """Two warps read each tile, and a lane of the first alone gives it back."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    full = cuda.shared.array(2, uint64)
    empty = cuda.shared.array(2, uint64)
    fulls, empties, i = shared_address(full), shared_address(empty), int32(cuda.threadIdx.x)
    if i == 0:
        for s in range(2):
            mbarrier_init(fulls + uint32(8 * s), 1)
            mbarrier_init(empties + uint32(8 * s), 1)  # cure: mbarrier_init(empties + uint32(8 * s), 64)
        fence_mbarrier_init()
    cuda.syncthreads()
    if i == 0:
        for t in range(TILES):
            bar = fulls + uint32(8 * (t % 2))
            mbarrier_wait(empties + uint32(8 * (t % 2)), t // 2 & 1 ^ 1)
            fence_proxy_async()
            mbarrier_arrive_expect_tx(bar, BYTES)
            place = shared_address(tile) + uint32(BYTES * (t % 2))
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)  # <- fault
    elif i >= WARP:
        total = uint32(0)
        for t in range(TILES):
            mbarrier_wait(fulls + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, i % WARP]
            cuda.syncwarp()
            if i == WARP:  # cure: if True:
                mbarrier_arrive(empties + uint32(8 * (t % 2)))
        st_global_b32(out + uint64(4 * i), uint32(total))

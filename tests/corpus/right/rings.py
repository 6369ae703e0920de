"""Rings of stages with unusual producers, consumers and states."""

import numpy as np
from base import right
from numba import cuda, float32, int32, uint32, uint64

from numba_deform.device.cp_async import cp_async_ca_4, cp_async_mbarrier_arrive_noinc
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    mbarrier_inval,
    mbarrier_test_wait_parity,
)
from numba_deform.device.memory import (
    cp_async_commit_group,
    cp_async_wait_group,
    global_address,
    shared_address,
)
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import cp_async_bulk_load

WARP, STAGES, TILES = 32, 3, 9
FLOATS = STAGES * WARP
FOUR, FOUR_FLOATS = 4, 4 * WARP
TWO, TWO_FLOATS = 2, 2 * WARP
STEPS, ROUNDS = 3, 3  # of a sum, and how many sums: together as many tiles as there are


def tiles_and(*shape):
    """Arguments: the numbers of all tiles, and an output."""
    return lambda: [np.arange(TILES * WARP, dtype=np.float32), np.zeros(shape, np.float32)]


def total(data, out):
    return [(out, data.reshape(TILES, WARP).sum(0))]


@cuda.jit(device=True)
def init_ring(full, empty, stages, arrivals):
    """One thread initialises both kinds of barriers; the block waits for it."""
    if cuda.threadIdx.x == 0:
        for s in range(stages):
            mbarrier_init(full + uint32(8 * s), 1)
            mbarrier_init(empty + uint32(8 * s), arrivals)
        fence_mbarrier_init()
    cuda.syncthreads()


@cuda.jit(device=True)
def fill(tiles, full, stage, data, tile):
    """One tile of 128 bytes is asked for."""
    bar = full + uint32(8 * stage)
    mbarrier_arrive_expect_tx(bar, 128)
    cp_async_bulk_load(tiles + uint32(128 * stage), data + uint64(128 * tile), 128, bar)


@right(
    source="CUTLASS pingpong kernels, where two producers take turns at one ring",
    block=96, args=tiles_and(WARP), expect=total,
)  # fmt: skip
def two_producers_in_turn(data, out):
    """Two producers fill every other stage of a ring of three, so each skips phases of every empty barrier; the
    consumer's arrivals that both have seen tell them that those phases are over."""
    tiles = cuda.shared.array(FLOATS, float32, alignment=128)
    full = shared_address(cuda.shared.array(STAGES, uint64))
    empty = shared_address(cuda.shared.array(STAGES, uint64))
    thread = int32(cuda.threadIdx.x)
    warp, lane = thread // 32, thread % 32
    if thread == 0:
        for s in range(STAGES):
            mbarrier_init(full + uint32(8 * s), 1)
            mbarrier_init(empty + uint32(8 * s), 32)
        fence_mbarrier_init()
    cuda.syncthreads()
    if warp < 2:
        if lane == 0:
            for t in range(warp, TILES, 2):
                stage, turn = t % STAGES, t // STAGES
                bar = full + uint32(8 * stage)
                mbarrier_wait(empty + uint32(8 * stage), uint32(turn & 1 ^ 1))
                mbarrier_arrive_expect_tx(bar, 128)
                tile = shared_address(tiles) + uint32(128 * stage)
                cp_async_bulk_load(tile, global_address(data) + uint64(128 * t), 128, bar)
    else:
        total = float32(0)
        for t in range(TILES):
            stage, turn = t % STAGES, t // STAGES
            mbarrier_wait(full + uint32(8 * stage), uint32(turn & 1))
            total += tiles[32 * stage + lane]
            fence_proxy_async()
            mbarrier_arrive(empty + uint32(8 * stage))
        out[lane] = total


@right(
    source="CUTLASS include/cutlass/pipeline/sm90_pipeline.hpp, a PipelineState that starts ahead",
    block=64, args=tiles_and(WARP), expect=total,
)  # fmt: skip
def three_producing_threads_in_turn(data, out):
    """Three lanes of one warp fill a ring of four in turn. A lane comes back to a stage after three of its
    phases, and knows of those in between only by the arrivals behind the one that it has waited for."""
    tiles = cuda.shared.array(FOUR_FLOATS, float32, alignment=128)
    full = shared_address(cuda.shared.array(FOUR, uint64))
    empty = shared_address(cuda.shared.array(FOUR, uint64))
    thread = int32(cuda.threadIdx.x)
    init_ring(full, empty, FOUR, 32)
    if thread < 3:
        for t in range(thread, TILES, 3):
            mbarrier_wait(empty + uint32(8 * (t % FOUR)), uint32(t // FOUR & 1 ^ 1))
            fill(shared_address(tiles), full, t % FOUR, global_address(data), t)
    elif thread >= 32:
        total = float32(0)
        for t in range(TILES):
            mbarrier_wait(full + uint32(8 * (t % FOUR)), uint32(t // FOUR & 1))
            total += tiles[32 * (t % FOUR) + thread - 32]
            fence_proxy_async()
            mbarrier_arrive(empty + uint32(8 * (t % FOUR)))
        out[thread - 32] = total


@right(
    source="CUTLASS include/cutlass/pipeline/sm90_pipeline.hpp, OrderedSequenceBarrier; "
           "sm90_gemm_tma_warpspecialized_pingpong.hpp",
    block=96, args=tiles_and(2, WARP),
    expect=lambda data, out: [(out[0], data.reshape(TILES, WARP)[0::2].sum(0)),
                              (out[1], data.reshape(TILES, WARP)[1::2].sum(0))],
)  # fmt: skip
def two_consumers_in_turn(data, out):
    """Two warps consume every other tile of a ring of three. Neither waits for all phases of a full barrier:
    each knows of the other's by the barriers that order their turns."""
    tiles = cuda.shared.array(FLOATS, float32, alignment=128)
    full = shared_address(cuda.shared.array(STAGES, uint64))
    empty = shared_address(cuda.shared.array(STAGES, uint64))
    order = shared_address(cuda.shared.array(2, uint64))
    thread = int32(cuda.threadIdx.x)
    warp, lane = thread // 32, thread % 32
    if thread == 0:
        mbarrier_init(order, 32)
        mbarrier_init(order + uint32(8), 32)
    init_ring(full, empty, STAGES, 32)
    if warp == 2:
        if lane == 0:
            for t in range(TILES):
                mbarrier_wait(empty + uint32(8 * (t % STAGES)), uint32(t // STAGES & 1 ^ 1))
                fill(shared_address(tiles), full, t % STAGES, global_address(data), t)
    else:
        total = float32(0)
        for t in range(warp, TILES, 2):
            # The first warp goes first: it does not wait for the second one's phase -1.
            mbarrier_wait(order + uint32(8 * warp), uint32(t // 2 & 1 ^ 1 ^ warp))
            mbarrier_wait(full + uint32(8 * (t % STAGES)), uint32(t // STAGES & 1))
            total += tiles[32 * (t % STAGES) + lane]
            mbarrier_arrive(order + uint32(8 * (1 - warp)))
            fence_proxy_async()
            mbarrier_arrive(empty + uint32(8 * (t % STAGES)))
        out[warp, lane] = total


@right(
    source="deepseek-ai/DeepGEMM, deep_gemm/include/deep_gemm/impls/sm90_fp8_gemm_1d2d.cuh",
    block=96, args=tiles_and(2, WARP),
    expect=lambda data, out: [(out[0], data.reshape(TILES, WARP).sum(0)),
                              (out[1], data.reshape(TILES, WARP).max(0))],
)  # fmt: skip
def one_arrival_for_each_warp(data, out):
    """The empty barriers count warps, not threads: lane 0 arrives for its warp, after a syncwarp that orders
    the other lanes' reads before it."""
    tiles = cuda.shared.array(TWO_FLOATS, float32, alignment=128)
    full = shared_address(cuda.shared.array(TWO, uint64))
    empty = shared_address(cuda.shared.array(TWO, uint64))
    thread = int32(cuda.threadIdx.x)
    warp, lane = thread // 32, thread % 32
    init_ring(full, empty, TWO, 2)
    if warp == 2:
        if lane == 0:
            for t in range(TILES):
                mbarrier_wait(empty + uint32(8 * (t % TWO)), uint32(t // TWO & 1 ^ 1))
                fill(shared_address(tiles), full, t % TWO, global_address(data), t)
    else:
        result = float32(0)
        for t in range(TILES):
            mbarrier_wait(full + uint32(8 * (t % TWO)), uint32(t // TWO & 1))
            x = tiles[32 * (t % TWO) + lane]
            result = max(result, x) if warp else result + x
            fence_proxy_async()
            cuda.syncwarp()
            if lane == 0:
                mbarrier_arrive(empty + uint32(8 * (t % TWO)))
        out[warp, lane] = result


@right(
    source="CUTLASS include/cutlass/pipeline/sm90_pipeline.hpp, producer_tail; rchardx/hopper-gemm issue 3",
    block=64, args=tiles_and(2, WARP),
    expect=lambda data, out: [(out[0], data.reshape(TILES, WARP).sum(0)), (out[1], np.arange(WARP))],
)  # fmt: skip
def producer_waits_for_the_last_release(data, out):
    """After its last copy the producer waits until every stage is empty. Then nobody uses the ring any more: it
    ends the barriers' lives, and its warp writes ordinary numbers where the tiles were."""
    tiles = cuda.shared.array(FLOATS, float32, alignment=128)
    full = shared_address(cuda.shared.array(STAGES, uint64))
    empty = shared_address(cuda.shared.array(STAGES, uint64))
    thread = int32(cuda.threadIdx.x)
    lane = thread % 32
    init_ring(full, empty, STAGES, 32)
    if thread < 32:
        if lane == 0:
            for t in range(TILES + STAGES):
                mbarrier_wait(empty + uint32(8 * (t % STAGES)), uint32(t // STAGES & 1 ^ 1))
                if t < TILES:
                    fill(shared_address(tiles), full, t % STAGES, global_address(data), t)
            for s in range(STAGES):
                mbarrier_inval(full + uint32(8 * s))
                mbarrier_inval(empty + uint32(8 * s))
        cuda.syncwarp()
        tiles[31 - lane] = float32(31 - lane)
        cuda.syncwarp()
        out[1, lane] = tiles[lane]
    else:
        total = float32(0)
        for t in range(TILES):
            mbarrier_wait(full + uint32(8 * (t % STAGES)), uint32(t // STAGES & 1))
            total += tiles[32 * (t % STAGES) + lane]
            fence_proxy_async()
            mbarrier_arrive(empty + uint32(8 * (t % STAGES)))
        out[0, lane] = total


@right(
    source="NVIDIA/Fuser pull request 3155 and csrc/device_lower/pass/circular_buffer.cpp",
    block=64, args=tiles_and(WARP), expect=total,
)  # fmt: skip
def refill_behind_syncthreads(data, out):
    """There are no empty barriers. The prologue fills all stages but one; each step asks for the tile that goes
    where the step before has read, and the syncthreads in between says that it has."""
    tiles = cuda.shared.array(FLOATS, float32, alignment=128)
    full = shared_address(cuda.shared.array(STAGES, uint64))
    thread = int32(cuda.threadIdx.x)
    if thread == 0:
        for s in range(STAGES):
            mbarrier_init(full + uint32(8 * s), 1)
        fence_mbarrier_init()
        for t in range(STAGES - 1):
            fill(shared_address(tiles), full, t, global_address(data), t)
    cuda.syncthreads()
    total = float32(0)
    for t in range(TILES):
        ahead = t + STAGES - 1
        if thread == 0 and ahead < TILES:
            fill(shared_address(tiles), full, ahead % STAGES, global_address(data), ahead)
        mbarrier_wait(full + uint32(8 * (t % STAGES)), uint32(t // STAGES & 1))
        total += tiles[32 * (t % STAGES) + thread % 32]
        fence_proxy_async()
        cuda.syncthreads()
    if thread < 32:
        out[thread] = total


@right(
    source="CUTLASS include/cutlass/pipeline/sm90_pipeline.hpp, consumer_try_wait and its token",
    block=64, args=tiles_and(WARP), expect=total,
)  # fmt: skip
def peek_at_the_next_stage(data, out):
    """The consumer asks whether the next tile is there before it is done with this one, and waits later only if
    the answer was no. Lanes of a warp may get different answers."""
    tiles = cuda.shared.array(TWO_FLOATS, float32, alignment=128)
    full = shared_address(cuda.shared.array(TWO, uint64))
    empty = shared_address(cuda.shared.array(TWO, uint64))
    thread = int32(cuda.threadIdx.x)
    init_ring(full, empty, TWO, 32)
    if thread == 32:
        for t in range(TILES):
            mbarrier_wait(empty + uint32(8 * (t % TWO)), uint32(t // TWO & 1 ^ 1))
            fill(shared_address(tiles), full, t % TWO, global_address(data), t)
    elif thread < 32:
        total, there = float32(0), uint32(0)
        for t in range(TILES):
            if there == 0:
                mbarrier_wait(full + uint32(8 * (t % TWO)), uint32(t // TWO & 1))
            if t + 1 < TILES:
                bar = full + uint32(8 * ((t + 1) % TWO))
                there = mbarrier_test_wait_parity(bar, uint32((t + 1) // TWO & 1))
            total += tiles[32 * (t % TWO) + thread]
            fence_proxy_async()
            mbarrier_arrive(empty + uint32(8 * (t % TWO)))
        out[thread] = total


@right(
    source="HazyResearch/ThunderKittens, prototype/lcf: the phases of all semaphores are bits of one word",
    block=64, args=tiles_and(WARP), expect=total,
)  # fmt: skip
def parities_are_bits_of_a_word(data, out):
    """The parity of each stage is a bit of one register, flipped after each wait; those of the empty barriers
    start as ones. No count of tiles is kept."""
    tiles = cuda.shared.array(FLOATS, float32, alignment=128)
    full = shared_address(cuda.shared.array(STAGES, uint64))
    empty = shared_address(cuda.shared.array(STAGES, uint64))
    thread = int32(cuda.threadIdx.x)
    init_ring(full, empty, STAGES, 32)
    bits, stage = uint32(0xFFFF0000), int32(0)
    total = float32(0)
    for t in range(TILES):
        if thread == 32:
            mbarrier_wait(empty + uint32(8 * stage), uint32(bits >> uint32(16 + stage) & uint32(1)))
            bits = uint32(bits ^ uint32(1) << uint32(16 + stage))
            fill(shared_address(tiles), full, stage, global_address(data), t)
        elif thread < 32:
            mbarrier_wait(full + uint32(8 * stage), uint32(bits >> uint32(stage) & uint32(1)))
            bits = uint32(bits ^ uint32(1) << uint32(stage))
            total += tiles[32 * stage + thread]
            fence_proxy_async()
            mbarrier_arrive(empty + uint32(8 * stage))
        stage = int32((stage + 1) % STAGES)
    if thread < 32:
        out[thread] = total


@right(
    source="deepseek-ai/DeepGEMM, persistent scheduler: the pipeline's state goes on over output tiles",
    block=64, args=tiles_and(ROUNDS, WARP),
    expect=lambda data, out: [(out, data.reshape(ROUNDS, STEPS, WARP).sum(1))],
)  # fmt: skip
def the_state_goes_on_over_output_tiles(data, out):
    """Each output is a sum of three tiles that come through a ring of two, so the second output starts in the
    middle of the ring, at another stage and parity than the first."""
    tiles = cuda.shared.array(TWO_FLOATS, float32, alignment=128)
    full = shared_address(cuda.shared.array(TWO, uint64))
    empty = shared_address(cuda.shared.array(TWO, uint64))
    thread = int32(cuda.threadIdx.x)
    init_ring(full, empty, TWO, 32)
    stage, parity = int32(0), int32(0)
    for r in range(ROUNDS):
        total = float32(0)
        for k in range(STEPS):
            if thread == 32:
                mbarrier_wait(empty + uint32(8 * stage), uint32(parity ^ 1))
                fill(shared_address(tiles), full, stage, global_address(data), r * STEPS + k)
            elif thread < 32:
                mbarrier_wait(full + uint32(8 * stage), uint32(parity))
                total += tiles[32 * stage + thread]
                fence_proxy_async()
                mbarrier_arrive(empty + uint32(8 * stage))
            stage += 1
            if stage == TWO:
                stage, parity = int32(0), int32(parity ^ 1)
        if thread < 32:
            out[r, thread] = total


@right(
    source="PTX ISA 9.7.13.15.15 (cp.async.mbarrier.arrive); CUTLASS sm80-style loads in PipelineAsync: "
           "producer_commit by cpasync_barrier_arrive_noinc",
    block=64, args=tiles_and(WARP), expect=total,
)  # fmt: skip
def arrivals_left_to_copies_in_a_ring(data, out):
    """Only arrivals that cp.async copies make complete the full barriers, and the producers wait on empty
    before each refill. A consumer's wait has seen the phase before; no producer waits for its own arrivals."""
    tiles = cuda.shared.array(FLOATS, float32, alignment=128)
    full = shared_address(cuda.shared.array(STAGES, uint64))
    empty = shared_address(cuda.shared.array(STAGES, uint64))
    thread = int32(cuda.threadIdx.x)
    if thread == 0:
        for s in range(STAGES):
            mbarrier_init(full + uint32(8 * s), WARP)
            mbarrier_init(empty + uint32(8 * s), WARP)
        fence_mbarrier_init()
    cuda.syncthreads()
    lane = thread % WARP
    if thread < WARP:
        for t in range(TILES):
            stage, turn = t % STAGES, t // STAGES
            mbarrier_wait(empty + uint32(8 * stage), uint32(turn & 1 ^ 1))
            slot = shared_address(tiles) + uint32(4 * (WARP * stage + lane))
            cp_async_ca_4(slot, global_address(data) + uint64(4 * (WARP * t + lane)), 4)
            cp_async_mbarrier_arrive_noinc(full + uint32(8 * stage))
    else:
        total = float32(0)
        for t in range(TILES):
            stage, turn = t % STAGES, t // STAGES
            mbarrier_wait(full + uint32(8 * stage), uint32(turn & 1))
            total += tiles[WARP * stage + lane]
            mbarrier_arrive(empty + uint32(8 * stage))
        out[lane] = total


@right(
    source="deepseek-ai/DeepEP pull request 642, behind it: the fence between the wait and the load", block=64,
    args=tiles_and(WARP), expect=total,
)  # fmt: skip
def who_refills_fences_behind_its_wait(data, out):
    """The reads are those of one warp, and the fence that lets the copy engine overwrite what was read stands
    in the other one, behind its wait for their arrivals: on the way from each read to the copy."""
    tile = cuda.shared.array(WARP, float32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    empty = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    init_ring(full, empty, 1, WARP)
    if thread == 0:
        for t in range(TILES):
            mbarrier_wait(empty, uint32(t & 1 ^ 1))
            fence_proxy_async()
            fill(shared_address(tile), full, 0, global_address(data), t)
    elif thread >= WARP:
        total = float32(0)
        for t in range(TILES):
            mbarrier_wait(full, uint32(t & 1))
            total += tile[thread - WARP]
            mbarrier_arrive(empty)
        out[thread - WARP] = total


@right(
    source="NVIDIA/TransformerEngine pull request 2695, behind it: readers fence before they release", block=64,
    args=tiles_and(WARP), expect=total,
)  # fmt: skip
def one_lane_fences_for_its_warp(data, out):
    """The lanes meet behind their reads, and the one that arrives for them all fences for them all: their reads
    come before its fence, and that before the copy."""
    tile = cuda.shared.array(WARP, float32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    empty = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    init_ring(full, empty, 1, 1)
    if thread == 0:
        for t in range(TILES):
            mbarrier_wait(empty, uint32(t & 1 ^ 1))
            fill(shared_address(tile), full, 0, global_address(data), t)
    elif thread >= WARP:
        total = float32(0)
        for t in range(TILES):
            mbarrier_wait(full, uint32(t & 1))
            total += tile[thread - WARP]
            cuda.syncwarp()
            if thread == WARP:
                fence_proxy_async()
                mbarrier_arrive(empty)
        out[thread - WARP] = total


@right(
    source="CUTLASS sm80 mainloops: cp.async refills what ldmatrix has read behind __syncthreads", block=WARP,
    args=tiles_and(WARP), expect=total,
)  # fmt: skip
def cp_async_refills_without_a_fence(data, out):
    """Stages that cp.async fills again need no proxy fence: it is none of the copy engine's, and comes behind
    what a barrier of threads orders before it."""
    tiles = cuda.shared.array(TWO_FLOATS, float32)
    lane, total = int32(cuda.threadIdx.x), float32(0)
    for t in range(-1, TILES):
        if t + 1 < TILES:
            place, ahead = shared_address(tiles) + uint32(128 * (t + 1 & 1)), uint64(128 * (t + 1))
            cp_async_ca_4(place + uint32(4 * lane), global_address(data) + ahead + uint64(4 * lane), 4)
        cp_async_commit_group()
        if t >= 0:
            cp_async_wait_group(1)
            cuda.syncwarp()
            total += tiles[32 * (t & 1) + (lane ^ 1)]
            cuda.syncwarp()
    out[lane ^ 1] = total

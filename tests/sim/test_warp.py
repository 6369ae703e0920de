"""Indices, and what the lanes of a warp do together."""

import numpy as np
import pytest
from helpers import always, clean, expect, nans, run
from numba import cuda, float32, int32, uint32

from numba_deform.device.sync import (
    bar_sync,
    elect_sync,
    shfl_sync_bfly_f32,
    shfl_sync_idx_b32,
    shfl_sync_idx_f32,
)
from numba_deform.engines import faults

FULL = 0xFFFFFFFF
LANES = np.arange(32)


# --- indices --------------------------------------------------------------------------------------
@pytest.mark.parametrize("grid, block", [(1, 1), (3, 1), (1, 1024), (2, 33), (5, 100), (4, 64)])
def test_indices(grid, block):
    def kernel(out):
        i = cuda.grid(1)
        out[i, 0] = cuda.threadIdx.x
        out[i, 1] = cuda.blockIdx.x
        out[i, 2] = cuda.blockDim.x
        out[i, 3] = cuda.gridDim.x
        out[i, 4] = cuda.gridsize(1)
        out[i, 5] = cuda.laneid
        out[i, 6] = cuda.threadIdx.y + cuda.threadIdx.z + cuda.blockIdx.y + cuda.blockIdx.z
        out[i, 7] = cuda.blockDim.y * cuda.blockDim.z * cuda.gridDim.y * cuda.gridDim.z
        out[i, 8] = cuda.warpsize

    out = np.full((grid * block, 9), -1, np.int32)
    report = run(kernel, out, grid=grid, block=block, schedules=2)
    i = np.arange(grid * block)
    expected = [i % block, i // block, block, grid, grid * block, i % block % 32, 0, 1, 32]
    np.testing.assert_array_equal(out, np.stack(np.broadcast_arrays(*expected), axis=1))
    assert (report.blocks, report.threads, report.schedules) == (grid, block, 2)


def test_more_dimensions_are_refused():
    def grid2(out):
        out[0] = cuda.grid(2)[0]

    expect(faults.KernelError, grid2, nans(1), words="one-dimensional", source="cuda.grid(2)")


# --- shuffles -------------------------------------------------------------------------------------
def shuffled(call, *, block=32, dtype=np.int32):
    """Each thread's result of ``call(value, lane)``, where a thread's value is 10 x its number."""
    device = cuda.jit(call, device=True)

    def kernel(out):
        tid = cuda.threadIdx.x
        out[tid] = device(10 * tid, tid & 31)

    out = np.zeros(block, dtype)
    clean(kernel, out, block=block)
    return out // 10 if dtype == np.int32 else out


def test_shuffle_from_a_lane():
    source = (LANES * 7) % 32
    got = shuffled(lambda v, lane: cuda.shfl_sync(FULL, v, (lane * 7) % 32))
    np.testing.assert_array_equal(got, source)
    got = shuffled(lambda v, lane: shfl_sync_idx_b32(FULL, v, (lane * 7) % 32), block=64)
    np.testing.assert_array_equal(got, np.concatenate([source, source + 32]))
    got = shuffled(lambda v, lane: cuda.shfl_sync(-1, v, 5))
    assert (got == 5).all()


@pytest.mark.parametrize("distance", [0, 1, 3, 16, 31])
def test_shuffles_by_distance(distance):
    up = shuffled(lambda v, lane: cuda.shfl_up_sync(FULL, v, distance))
    np.testing.assert_array_equal(up, np.where(LANES >= distance, LANES - distance, LANES))
    down = shuffled(lambda v, lane: cuda.shfl_down_sync(FULL, v, distance))
    np.testing.assert_array_equal(down, np.where(LANES + distance < 32, LANES + distance, LANES))
    xor = shuffled(lambda v, lane: cuda.shfl_xor_sync(FULL, v, distance))
    np.testing.assert_array_equal(xor, LANES ^ distance)


def test_shuffle_intrinsics_take_and_give_their_own_types():
    def kernel(out, words):
        lane = cuda.threadIdx.x
        out[lane] = shfl_sync_bfly_f32(FULL, 1 / 3 + lane, 16)  # a float64 is rounded on its way in
        out[lane + 32] = shfl_sync_idx_f32(FULL, float32(lane), lane + 33)  # taken modulo 32
        words[lane] = shfl_sync_idx_b32(FULL, -lane, 3)

    out, words = nans(64), np.zeros(32, np.int64)
    clean(kernel, out, words)
    np.testing.assert_array_equal(out[:32], (1 / 3 + (LANES ^ 16)).astype(np.float32))
    np.testing.assert_array_equal(out[32:], (LANES + 1) % 32)
    assert (words == 2**32 - 3).all()


def test_a_butterfly_adds_up_a_warp():
    def kernel(values, out):
        total = values[cuda.grid(1)]
        distance = 16
        while distance:
            total += shfl_sync_bfly_f32(uint32(FULL), total, uint32(distance))
            distance //= 2
        out[cuda.grid(1)] = total

    values, out = np.arange(128, dtype=np.float32), nans(128)
    clean(kernel, values, out, block=64, grid=2)
    np.testing.assert_array_equal(out, values.reshape(4, 32).sum(axis=1).repeat(32))


# --- votes and matches ----------------------------------------------------------------------------
def test_votes():
    def kernel(out):
        lane = cuda.threadIdx.x
        out[lane, 0] = cuda.all_sync(FULL, lane < 32)
        out[lane, 1] = cuda.all_sync(FULL, lane < 31)
        out[lane, 2] = cuda.any_sync(FULL, lane == 7)
        out[lane, 3] = cuda.any_sync(FULL, lane == 70)
        out[lane, 4] = cuda.eq_sync(FULL, lane & 1)
        out[lane, 5] = cuda.eq_sync(FULL, 0)
        out[lane, 6] = cuda.ballot_sync(FULL, lane % 3 == 0)
        out[lane, 7] = cuda.match_any_sync(FULL, lane // 10)
        mask, same = cuda.match_all_sync(FULL, lane // 32)
        out[lane, 8] = mask * same
        mask, same = cuda.match_all_sync(FULL, lane // 31)
        out[lane, 9] = mask + same
        out[lane, 10] = cuda.activemask()
        out[lane, 11] = cuda.lanemask_lt()
        out[lane, 12] = elect_sync(FULL)

    out = np.zeros((32, 13), np.int64)
    clean(kernel, out)
    assert (out[:, :7] == [1, 0, 1, 0, 0, 1, sum(1 << i for i in range(0, 32, 3))]).all()
    groups = [sum(1 << j for j in range(32) if j // 10 == i // 10) for i in range(32)]
    np.testing.assert_array_equal(out[:, 7], groups)
    assert (out[:, 8:11] == [FULL, 0, FULL]).all()
    np.testing.assert_array_equal(out[:, 11], (1 << LANES) - 1)
    np.testing.assert_array_equal(out[:, 12], LANES == 0)


def test_bit_helpers():
    def kernel(out):
        x = 0b1011000
        out[0], out[1], out[2] = cuda.popc(x), cuda.ffs(x), cuda.clz(x)
        out[3], out[4], out[5] = cuda.ffs(0), cuda.clz(0), cuda.popc(-1)
        out[6], out[7] = cuda.selp(True, 1, 2), cuda.selp(False, 1, 2)
        out[8] = int32(cuda.fma(float32(2), float32(3), float32(4)))

    out = np.zeros(9, np.int32)
    run(kernel, out, block=1)
    assert list(out) == [3, 4, 25, 0, 32, 64, 1, 2, 10]


# --- partial masks --------------------------------------------------------------------------------
def test_halves_of_a_warp_on_their_own():
    def kernel(out):
        lane = cuda.threadIdx.x
        if lane < 16:
            out[lane] = cuda.shfl_xor_sync(0xFFFF, lane, 1)
        else:
            out[lane] = cuda.shfl_xor_sync(0xFFFF0000, lane, 3)

    out = np.zeros(32, np.int32)
    clean(kernel, out)
    np.testing.assert_array_equal(out, np.where(LANES < 16, LANES ^ 1, LANES ^ 3))


def test_the_mask_of_a_ballot():
    def kernel(out):
        lane = cuda.threadIdx.x
        odd = lane & 1
        mask = cuda.ballot_sync(FULL, odd)
        if odd:
            out[lane] = elect_sync(mask) + 10 * cuda.popc(mask) + cuda.all_sync(mask, lane & 1)

    out = np.zeros(32, np.int32)
    clean(kernel, out)
    np.testing.assert_array_equal(out, np.where(LANES & 1, 161 + (LANES == 1), 0))


@pytest.mark.parametrize("block", [1, 7, 31, 33, 48, 97])
def test_blocks_that_are_no_multiple_of_a_warp(block):
    """The full mask names lanes that the last warp does not have; they are not waited for."""

    def kernel(out):
        tid = cuda.threadIdx.x
        cuda.syncwarp()
        votes = cuda.ballot_sync(FULL, True)
        cuda.syncthreads()
        bar_sync(1, -(-block // 32) * 32)
        out[tid, 0] = votes
        out[tid, 1] = cuda.activemask()
        out[tid, 2] = cuda.shfl_xor_sync(votes, tid, 0)

    out = np.zeros((block, 3), np.int64)
    clean(kernel, out, block=block)
    masks = [(1 << min(32, block - t // 32 * 32)) - 1 for t in range(block)]
    np.testing.assert_array_equal(out[:, 0], masks)
    np.testing.assert_array_equal(out[:, 1], masks)
    np.testing.assert_array_equal(out[:, 2], np.arange(block))


def test_a_shuffle_from_a_lane_that_is_not_there():
    def kernel(out):
        tid = cuda.threadIdx.x
        out[tid] = cuda.shfl_down_sync(FULL, tid, 16)

    clean(kernel, np.zeros(32, np.int32))
    expect(faults.WarpDivergence, kernel, np.zeros(48, np.int32), block=48,
           words="which is not in mask 0xffffffff", source="shfl_down_sync")  # fmt: skip


def test_a_shuffle_from_outside_the_mask():
    def kernel(out):
        lane = cuda.threadIdx.x
        if lane < 16:
            out[lane] = cuda.shfl_sync(0xFFFF, lane, 20)

    always(faults.WarpDivergence, kernel, np.zeros(32, np.int32),
           words=["shuffles from lane 20", "mask 0xffff"])  # fmt: skip


# --- lanes that have left -------------------------------------------------------------------------
def test_lanes_that_have_exited_are_not_waited_for():
    def kernel(out):
        lane = cuda.threadIdx.x
        if lane % 4 == 3:
            return
        cuda.syncwarp()
        out[lane] = cuda.ballot_sync(FULL, True)
        cuda.syncthreads()
        out[lane + 32] = cuda.activemask()
        cuda.syncwarp()

    out = np.zeros(64, np.int64)
    clean(kernel, out)
    mask = sum(1 << i for i in range(32) if i % 4 != 3)
    np.testing.assert_array_equal(out.reshape(2, 32), [np.where(LANES % 4 == 3, 0, mask)] * 2)


def test_lanes_that_exit_while_others_wait():
    def leave(out):
        lane = cuda.threadIdx.x
        if lane >= 8:
            cuda.nanosleep(10)
            return
        cuda.syncwarp()
        out[lane] = 1

    out = np.zeros(32, np.int32)
    clean(leave, out)
    assert out.sum() == 8


# --- divergence -----------------------------------------------------------------------------------
def test_a_mask_without_the_caller():
    def kernel(out):
        cuda.syncwarp(0xFFFF)

    words = ["syncwarp with mask 0xffff, which leaves out the caller", "lane"]
    always(faults.WarpDivergence, kernel, nans(1), words=words, source="cuda.syncwarp(0xFFFF)")

    def elected(out):
        elect_sync(2)

    always(faults.WarpDivergence, elected, nans(1), words="elect with mask 0x2")


def test_different_operations():
    def kernel(out):
        lane = cuda.threadIdx.x
        if lane < 16:
            cuda.syncwarp()
        else:
            cuda.ballot_sync(FULL, True)

    always(faults.WarpDivergence, kernel, nans(1), words=["syncwarp", "vote", "wait in"])


def test_the_same_operation_at_two_places():
    def exchange(out):
        if cuda.threadIdx.x < 16:
            out[cuda.threadIdx.x] = cuda.shfl_sync(FULL, 1, 0)
        else:
            out[cuda.threadIdx.x] = cuda.shfl_sync(FULL, 2, 0)

    always(faults.WarpDivergence, exchange, np.zeros(32, np.int32),
           words="shfl with mask 0xffffffff, while lanes")  # fmt: skip

    def meet(out):
        if cuda.threadIdx.x < 16:
            cuda.syncwarp()
        else:
            cuda.syncwarp()

    clean(meet, nans(1))  # bar.warp.sync asks for the same mask, not for the same place


def test_part_of_a_warp_meets_before_all_do():
    def kernel(out):
        lane = cuda.threadIdx.x
        tile = cuda.shared.array(32, int32)
        if lane < 4:
            tile[lane] = lane
            cuda.syncwarp(0xF)
            out[lane] = tile[3 - lane]
            cuda.syncwarp(0xF)
        elif lane >= 28:
            tile[lane] = lane
            cuda.syncwarp(0xF0000000)
            out[lane] = tile[59 - lane]
        cuda.syncwarp()
        out[lane] = out[lane] + cuda.shfl_xor_sync(FULL, lane, 31)

    out = np.zeros(32, np.int32)
    run(kernel, out)
    expected = 31 - LANES
    expected[:4] += 3 - LANES[:4]
    expected[28:] += 59 - LANES[28:]
    np.testing.assert_array_equal(out, expected)
    for seed in range(1, 9):
        run(kernel, np.zeros(32, np.int32), seed=seed)


def test_masks_that_do_not_match():
    def kernel(out):
        cuda.syncwarp(0x3 if cuda.threadIdx.x < 1 else 0x6)
        cuda.syncthreads()

    always(faults.WarpDivergence, kernel, nans(1), block=3, source="cuda.syncwarp(0x3 if",
           words=["A  thread 0", "on syncwarp with mask 0x3: lane 0 of warp 0 has come",
                  "lane 1 never comes", "-> B (thread 1)", "B  threads 1-2"])  # fmt: skip


def test_a_lane_that_never_comes():
    def kernel(out):
        lane = cuda.threadIdx.x
        if lane == 5:
            cuda.syncthreads()
        else:
            cuda.syncwarp()

    always(faults.WarpDivergence, kernel, nans(1), source="cuda.syncwarp()",
           words=["A  threads 0-4, 6-31", "on syncwarp with mask 0xffffffff", "lane 5 never comes",
                  "B  thread 5", "on syncthreads"])  # fmt: skip


def test_a_lane_in_an_earlier_round_of_a_loop():
    """Lane 3 leaves the loop one round early and meets the others in another operation."""

    def kernel(out):
        lane = cuda.threadIdx.x
        for _ in range(2 if lane == 3 else 3):
            cuda.syncwarp()
        out[lane] = cuda.shfl_sync(FULL, lane, 0)

    always(faults.WarpDivergence, kernel, np.zeros(32, np.int32), words=["syncwarp", "shfl"])


def test_a_thousand_threads():
    def kernel(out):
        tid = cuda.threadIdx.x
        shared = cuda.shared.array(1024, int32)
        shared[tid] = cuda.shfl_xor_sync(FULL, tid, 31)
        cuda.syncthreads()
        out[tid] = shared[1023 - tid]

    out = np.zeros(1024, np.int32)
    run(kernel, out, block=1024, schedules=2)
    np.testing.assert_array_equal(out, (1023 - np.arange(1024)) ^ 31)


def test_values_of_many_kinds():
    def kernel(out):
        lane = cuda.threadIdx.x
        pair = cuda.shfl_sync(FULL, float32(lane) / float32(3), 9)
        out[lane] = pair

    out = nans(32)
    clean(kernel, out)
    assert (out == np.float32(9) / np.float32(3)).all()

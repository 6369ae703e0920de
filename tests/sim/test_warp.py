"""Indices, and what the lanes of a warp do together."""

import numpy as np
import pytest
from helpers import always, clean, expect, nans, run
from numba import cuda, float32, int32, uint32

from numba_deform.device.memory import global_address, st_global_b32
from numba_deform.device.sync import (
    bar_sync,
    elect_sync,
    shfl_sync_bfly_f32,
    shfl_sync_idx_b32,
    shfl_sync_idx_f32,
)
from numba_deform.engines import faults
from numba_deform.engines.cpu import explore

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


@pytest.mark.parametrize("grid, block", [(1, 1), (3, (8, 4)), ((2, 3), (4, 2, 5)), ((2, 1, 2), (1, 33))])
def test_more_dimensions(grid, block):
    """Threads and blocks are numbered with x fastest; warps are 32 of them in that order."""
    shape, sizes = ((tuple(np.atleast_1d(n)) + (1, 1))[:3] for n in (grid, block))

    def kernel(out):
        tid, bid, dim, blocks = cuda.threadIdx, cuda.blockIdx, cuda.blockDim, cuda.gridDim
        x, y, z = cuda.grid(3)
        row = out[bid.x + blocks.x * (bid.y + blocks.y * bid.z), tid.x + dim.x * (tid.y + dim.y * tid.z)]
        row[0], row[1], row[2], row[3] = tid.x, tid.y, tid.z, cuda.laneid
        row[4], row[5], row[6] = x - bid.x * dim.x, y - bid.y * dim.y, z - bid.z * dim.z
        row[7], row[8], row[9] = bid.x, bid.y, bid.z
        row[10], row[11] = cuda.gridsize(3)[1], cuda.grid(2)[1] - y

    blocks, threads = np.prod(shape), np.prod(sizes)
    out = np.full((blocks, threads, 12), -1, np.int32)
    report = run(kernel, out, grid=grid, block=block)
    assert (report.blocks, report.threads) == (blocks, threads)
    z, y, x = np.unravel_index(np.arange(threads), sizes[::-1])
    bz, by, bx = (part[:, None] for part in np.unravel_index(np.arange(blocks), shape[::-1]))
    lane = np.arange(threads) % 32
    expected = [x, y, z, lane, x, y, z, bx, by, bz, shape[1] * sizes[1], 0]
    np.testing.assert_array_equal(out, np.stack(np.broadcast_arrays(*expected, x + bx)[:-1], axis=-1))


def test_an_index_has_names_only():
    def kernel(out):
        x, y, z = cuda.threadIdx

    expect(faults.NotCompiled, kernel, nans(1), source="cuda.threadIdx", words="failed to unpack Dim3")


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


def test_a_mask_is_told_without_a_sign():
    def kernel(out):
        if cuda.threadIdx.x >= 16:
            out[0] = cuda.shfl_sync(-1 << 16, cuda.threadIdx.x, 5)

    expect(faults.UninitialisedRead, kernel, np.zeros(1, np.int32), words="which is not in mask 0xffff0000")


def test_shuffle_from_a_lane():
    source = (LANES * 7) % 32
    got = shuffled(lambda v, lane: cuda.shfl_sync(FULL, v, (lane * 7) % 32))
    np.testing.assert_array_equal(got, source)
    got = shuffled(lambda v, lane: shfl_sync_idx_b32(FULL, v, (lane * 7) % 32), block=64)
    np.testing.assert_array_equal(got, np.concatenate([source, source + 32]))
    got = shuffled(lambda v, lane: cuda.shfl_sync(-1, v, 5))
    assert (got == 5).all()


@pytest.mark.parametrize("distance", [0, 1, 3, 16, 31, 35])
def test_shuffles_by_distance(distance):
    """Of a distance the lowest five bits count (PTX 9.7.9.6)."""
    up = shuffled(lambda v, lane: cuda.shfl_up_sync(FULL, v, distance))
    down = shuffled(lambda v, lane: cuda.shfl_down_sync(FULL, v, distance))
    xor = shuffled(lambda v, lane: cuda.shfl_xor_sync(FULL, v, distance))
    distance &= 31
    np.testing.assert_array_equal(up, np.where(LANES >= distance, LANES - distance, LANES))
    np.testing.assert_array_equal(down, np.where(LANES + distance < 32, LANES + distance, LANES))
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
        out[lane, 10] = cuda.lanemask_lt()
        out[lane, 11] = elect_sync(FULL)

    out = np.zeros((32, 12), np.int64)
    clean(kernel, out)
    assert (out[:, :7] == [1, 0, 1, 0, 0, 1, sum(1 << i for i in range(0, 32, 3))]).all()
    groups = [sum(1 << j for j in range(32) if j // 10 == i // 10) for i in range(32)]
    np.testing.assert_array_equal(out[:, 7] & FULL, groups)  # int32 in Numba
    assert (out[:, 8:10] == [-1, 0]).all()
    np.testing.assert_array_equal(out[:, 10], (1 << LANES) - 1)
    np.testing.assert_array_equal(out[:, 11], LANES == 0)


def test_bit_helpers():
    def kernel(out):
        x = 0b1011000
        out[0], out[1], out[2] = cuda.popc(x), cuda.ffs(x), cuda.clz(x)
        out[3], out[4], out[5] = cuda.ffs(0), cuda.clz(0), cuda.popc(-1)
        out[6], out[7] = cuda.selp(True, 1, 2), cuda.selp(False, 1, 2)
        out[8] = int32(cuda.fma(float32(2), float32(3), float32(4)))

    out = np.zeros(9, np.int32)
    run(kernel, out, block=1)
    assert list(out) == [3, 4, 57, 0, 64, 64, 1, 2, 10]  # of int64, which literals are


# --- partial masks --------------------------------------------------------------------------------
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
        out[tid, 1] = cuda.match_all_sync(FULL, 1)[0]
        out[tid, 2] = cuda.shfl_xor_sync(votes, tid, 0)

    out = np.zeros((block, 3), np.int64)
    clean(kernel, out, block=block)
    masks = [(1 << min(32, block - t // 32 * 32)) - 1 for t in range(block)]
    np.testing.assert_array_equal(out[:, 0] & FULL, masks)
    np.testing.assert_array_equal(out[:, 1] & FULL, masks)
    np.testing.assert_array_equal(out[:, 2], np.arange(block))


NOWHERE = {  # how a kernel comes to shuffle from a lane that takes no part -> what is said
    "outside": "reads lane 20, which is not in mask 0xffff",
    "exited": "reads lane 5, which has exited",
    "never there": "reads lane 31, which does not exist",
}


@pytest.mark.parametrize("how", NOWHERE)
@pytest.mark.parametrize("kind", [int32, float32])
def test_a_shuffle_from_nowhere_is_undefined(how, kind):
    """Its value may go unused, also after arithmetic and another shuffle; it may not be stored."""

    def kernel(out, stores):
        lane = cuda.threadIdx.x & 31
        value = kind(lane)
        if how == "outside":
            if lane >= 16:
                return
            x = cuda.shfl_sync(0xFFFF, value, 20)
        elif how == "exited":
            if lane == 5:
                return
            x = cuda.shfl_sync(FULL, value, 5 if lane == 3 else 6)
        else:
            x = cuda.shfl_xor_sync(FULL, value, 16)
        mask = 0xFFFF if how == "outside" else FULL
        y = cuda.shfl_sync(mask, kind(kind(x + kind(1)) * kind(2)), 3 if how != "never there" else 15)
        if stores == 0:
            out[lane] = kind(lane)
        elif stores == 1 and lane == (15 if how == "never there" else 3):
            out[lane] = x
        elif stores == 2:
            out[lane] = kind(kind(2) - y)

    for dtype in (np.int32, np.float32):
        out = np.zeros(32, dtype)
        clean(kernel, out, 0, block=20)
        for stores in (1, 2):
            always(faults.UninitialisedRead, kernel, out, stores, block=20, seeds=2,
                   words=["stores an undefined value in out[", NOWHERE[how] if stores == 1 else "a shuffle"],
                   source="out[lane] = ")  # fmt: skip


def test_an_undefined_word_is_not_stored():
    def kernel(out):
        x = shfl_sync_idx_b32(0xF, 7, 9) if cuda.threadIdx.x < 4 else 0
        st_global_b32(global_address(out), uint32(x + 1))

    expect(faults.UninitialisedRead, kernel, np.zeros(4, np.uint32), block=4, source="st_global_b32",
           words="reads lane 9, which is not in mask 0xf")  # fmt: skip


@pytest.mark.parametrize("lanes", [4, 16, 20, 31])
def test_a_sum_of_some_lanes_ignores_what_the_upper_ones_shuffle_in(lanes):
    """The usual loop over distances: lanes above the middle read from outside the mask, unused."""
    mask, first = (1 << lanes) - 1, 1 << (lanes - 1).bit_length() - 1

    def kernel(out):
        lane = cuda.threadIdx.x
        if lane < lanes:
            total, distance = float32(lane), first
            while distance:
                other = cuda.shfl_down_sync(mask, total, distance)
                if lane + distance < lanes:
                    total += other
                distance //= 2
            if lane == 0:
                out[0] = total

    out = nans(1)
    clean(kernel, out)
    assert out[0] == sum(range(lanes))


# --- activemask -----------------------------------------------------------------------------------
def test_lanes_that_stand_together_share_one_atomic():
    """Opportunistic programming, as the CUDA guide has it: whoever is here takes part."""

    def kernel(out, taken):
        lane = cuda.threadIdx.x
        if lane % 3 == 0:
            return
        if lane % 3 == 1:
            mask = cuda.activemask()
            leader, first = cuda.ffs(mask) - 1, int32(0)
            if lane == leader:
                first = cuda.atomic.add(taken, 0, cuda.popc(mask))
            first = cuda.shfl_sync(mask, first, leader)
            out[first + cuda.popc(mask & cuda.lanemask_lt())] = lane
        cuda.syncwarp()

    for seed in range(6):
        out, taken = np.zeros(11, np.int32), np.zeros(1, np.int32)
        run(kernel, out, taken, seed=seed)
        assert taken[0] == 11 and sorted(out) == list(range(1, 32, 3))
    taken[:] = 0
    explore(kernel, 1, 32, (out, taken), limit=20)


def test_activemask_has_any_grouping():
    def kernel(out):
        lane = cuda.threadIdx.x
        if lane & 1:
            out[lane] = cuda.activemask()

    odd, seen = 0xAAAAAAAA, set()
    for seed in range(10):
        out = np.zeros(32, np.int64)
        run(kernel, out, seed=seed)
        assert all(mask >> lane & 1 and not mask & ~odd for lane, mask in enumerate(out.tolist()) if lane & 1)
        seen.add(tuple(out.tolist()))
        assert seed or set(out[1::2]) == {odd & 0xFFFF, odd & 0xFFFF0000}
    assert len(seen) > 2 and any(set(masks[1::2]) == {odd} for masks in seen)


# --- lanes that have left -------------------------------------------------------------------------
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


def test_the_same_operation_at_two_places():
    """PTX asks for the same instruction and mask; an H200 exchanges the values."""

    def exchange(out):
        if cuda.threadIdx.x < 16:
            out[cuda.threadIdx.x] = cuda.shfl_xor_sync(FULL, 1, 16)
        else:
            out[cuda.threadIdx.x] = cuda.shfl_xor_sync(FULL, 2, 16) + 10

    out = np.zeros(32, np.int32)
    run(exchange, out)
    assert out.tolist() == [2] * 16 + [11] * 16

    def up_and_down(out):
        if cuda.threadIdx.x < 16:
            out[cuda.threadIdx.x] = cuda.shfl_up_sync(FULL, 1, 1)
        else:
            out[cuda.threadIdx.x] = cuda.shfl_down_sync(FULL, 2, 1)

    always(faults.WarpDivergence, up_and_down, np.zeros(32, np.int32), words=["shfl.up", "shfl.down"])

    def meet(out):
        if cuda.threadIdx.x < 16:
            cuda.syncwarp()
        else:
            cuda.syncwarp()

    clean(meet, nans(1))  # bar.warp.sync asks for the same mask, not for the same place


@pytest.mark.parametrize("first", [True, False])
def test_of_two_operations_the_one_in_the_branch_is_blamed(first):
    """The lanes of the other have passed it by, whoever came first."""

    def vote(out):
        if (cuda.threadIdx.x < 16) == first:
            cuda.ballot_sync(FULL, True)
        cuda.syncwarp()

    def meet(out):
        if (cuda.threadIdx.x < 16) == first:
            cuda.syncwarp()
        out[cuda.threadIdx.x] = cuda.shfl_sync(FULL, 1, 0)

    def again(out):
        for _ in range(3):
            cuda.syncwarp()
            if (cuda.threadIdx.x < 16) == first:
                cuda.any_sync(FULL, True)

    for kernel, source, words in (
        (vote, "ballot_sync", ["vote.ballot with mask 0xffffffff", "syncwarp"]),
        (meet, "syncwarp", ["syncwarp with mask 0xffffffff", "shfl"]),
        (again, "any_sync", ["vote.any with mask 0xffffffff", "syncwarp"]),
    ):
        always(faults.WarpDivergence, kernel, np.zeros(32, np.int32), source=source, words=words)
    fault = expect(faults.WarpDivergence, vote, nans(1))
    assert fault.threads == (tuple(range(16)) if first else (16,))


def test_exited_lanes_are_called_exited():
    def kernel(out):
        lane = cuda.threadIdx.x
        if lane == 3:
            return
        if lane == 5:
            cuda.syncthreads()
        cuda.syncwarp()

    always(faults.DivergentBarrier, kernel, nans(1), block=6, source="cuda.syncthreads()",
           words=["lanes 0-2, 4 of warp 0 have come, lane 3 has exited", "lane 5 never comes"])  # fmt: skip


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


@cuda.jit(device=True)
def sum_of_the_warp(value):
    step = 16
    while step > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, step)
        step //= 2
    return value


def test_a_helper_that_some_lanes_do_not_call():
    """Its shuffle is to blame, however deep it stands in its own function, and not the barrier of the others; a
    barrier in a branch is to blame beside a helper that all call."""

    def some_call_it(out):
        i = cuda.threadIdx.x
        value = float32(i)
        if i < 48:
            value = sum_of_the_warp(value)
        cuda.syncthreads()
        out[i] = value

    def some_come_to_the_barrier(out):
        i = cuda.threadIdx.x
        if i < 16:
            cuda.syncthreads()
        out[i] = sum_of_the_warp(float32(i))

    expect(faults.WarpDivergence, some_call_it, nans(64), block=64, words="lanes 16-31 never come",
           source="shfl_down_sync")  # fmt: skip
    expect(faults.DivergentBarrier, some_come_to_the_barrier, nans(64), block=64, source="cuda.syncthreads()")

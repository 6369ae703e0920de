"""What the lanes of a warp do together: shuffles, votes, matches, and lanes that are not there."""

import math

import numpy as np
from base import right
from numba import cuda, float32, float64, int8, int32, uint32

from numba_deform.device.half2 import add_rn_f16x2
from numba_deform.device.sync import bar_sync, elect_sync, shfl_sync_bfly_f32, shfl_sync_idx_b32

ALL = 0xFFFFFFFF
WARP, FEW = 32, 20
KEYS = np.arange(WARP, dtype=np.int32) * 7 % 5


def numbers(count, *out):
    return lambda: [np.arange(1, count + 1, dtype=np.int32), np.zeros(out, np.int32)]


@right(
    source="CUDA C++ Programming Guide, Warp Shuffle Functions: the value of an inactive lane is undefined",
    args=numbers(WARP, 1), expect=lambda data, out: [(out, data[:FEW].sum())],
)  # fmt: skip
def shuffles_from_lanes_outside_the_mask(data, out):
    """Twenty lanes add up their numbers by shfl_down. Upper lanes get values from lanes outside the mask, which
    are undefined; they are selected away, and the lower lanes never need them."""
    lane = int32(cuda.threadIdx.x)
    if lane < FEW:
        total = data[lane]
        distance = 16
        while distance > 0:
            other = cuda.shfl_down_sync(0xFFFFF, total, distance)
            if lane + distance < FEW:
                total += other
            distance //= 2
        if lane == 0:
            out[0] = total


@right(
    source="NVIDIA developer blog, CUDA Pro Tip: Optimized Filtering with Warp-Aggregated Atomics",
    block=64, args=lambda: [np.arange(64, dtype=np.int32) * 5 % 64, np.zeros(1, np.int32),
                              np.zeros(24, np.int32)],
    expect=lambda data, count, out: [(count, 24), (np.sort(out), np.arange(24))],
)  # fmt: skip
def one_atomic_for_the_active_lanes(data, count, out):
    """In a branch the lanes that happen to be converged elect one that adds for all of them. The mask may be
    any grouping of the lanes in the branch; the places differ, the set of what is kept does not."""
    thread = int32(cuda.threadIdx.x)
    lane = thread % 32
    x = data[thread]
    if x < 24:
        mask = cuda.activemask()
        leader = cuda.ffs(mask) - 1
        place = int32(0)
        if lane == leader:
            place = int32(cuda.atomic.add(count, 0, int32(cuda.popc(mask))))
        place = cuda.shfl_sync(mask, place, leader)
        out[place + cuda.popc(mask & cuda.lanemask_lt())] = x


@right(
    source="NVIDIA developer blog, Voting and Shuffling to Optimize Atomic Operations; CUDA guide, "
           "__match_any_sync",
    block=64, args=lambda: [np.tile(KEYS, 2), np.zeros(5, np.int32)],
    expect=lambda keys, out: [(out, 2 * np.bincount(KEYS))],
)  # fmt: skip
def one_atomic_for_each_key(keys, out):
    """A histogram: the lanes with the same key find each other by match_any, and the lowest of them adds for
    all."""
    thread = int32(cuda.threadIdx.x)
    key = keys[thread]
    peers = cuda.match_any_sync(ALL, key)
    if thread % 32 == cuda.ffs(peers) - 1:
        cuda.atomic.add(out, key, int32(cuda.popc(peers)))


@right(
    source="Billeter, Olsson and Assarsson, Efficient Stream Compaction on Wide SIMD Architectures (2009)",
    args=lambda: [np.arange(WARP, dtype=np.int32) * 11 % 32, np.full(WARP, -1, np.int32)],
    expect=lambda data, out: [(out[:11], data[data % 3 == 0]), (out[11:], -1)],
)  # fmt: skip
def keep_some_in_order(data, out):
    """Lanes that keep their number find their place by counting the votes below them."""
    lane = int32(cuda.threadIdx.x)
    x = data[lane]
    votes = cuda.ballot_sync(ALL, x % 3 == 0)
    if x % 3 == 0:
        out[cuda.popc(votes & ((1 << lane) - 1))] = x


@right(
    source="CUDA C++ Programming Guide, Warp Shuffle Functions: the scan example, in a block of one warp and "
           "a half",
    block=48, args=numbers(48, 48),
    expect=lambda data, out: [(out, np.concatenate([data[:32].cumsum(), data[32:].cumsum()]))],
)  # fmt: skip
def scan_in_half_a_warp_with_the_full_mask(data, out):
    """The second warp has sixteen lanes, and names all 32 in its masks: lanes that do not exist are not waited
    for."""
    thread = int32(cuda.threadIdx.x)
    lane = thread % 32
    total = data[thread]
    distance = 1
    while distance < 32:
        below = cuda.shfl_up_sync(ALL, total, distance)
        if lane >= distance:
            total += below
        distance *= 2
    out[thread] = total


@right(
    source="CUDA C++ Programming Guide, Warp Vote Functions: exited threads are not waited for",
    block=WARP, args=numbers(WARP, 2),
    expect=lambda data, out: [(out, [0x55555555, data[::2].sum()])],
)  # fmt: skip
def odd_lanes_have_returned(data, out):
    """The odd lanes return first. The others go on to vote and to add up with the full mask; the sum skips
    lanes that have gone, since its distances are even."""
    lane = int32(cuda.threadIdx.x)
    if lane % 2:
        return
    votes = cuda.ballot_sync(ALL, True)
    total = data[lane]
    distance = 16
    while distance >= 2:
        total += cuda.shfl_xor_sync(ALL, total, distance)
        distance //= 2
    if lane == 0:
        out[0] = int32(votes)
        out[1] = total


@right(
    source="CUDA C++ Programming Guide, Cooperative Groups: tiles of 16 threads that do different things",
    block=WARP, args=numbers(WARP, WARP),
    expect=lambda data, out: [(out[:16], data[:16].sum()), (out[16:], data[16:].max())],
)  # fmt: skip
def the_halves_of_a_warp_go_their_own_ways(data, out):
    """One half adds, the other takes the maximum, each with its own mask, in loops of different lengths."""
    lane = int32(cuda.threadIdx.x)
    x = data[lane]
    if lane < 16:
        for step in range(4):
            x += cuda.shfl_xor_sync(0xFFFF, x, 1 << step)
    else:
        distance = 8
        while distance:
            x = max(x, cuda.shfl_xor_sync(0xFFFF0000, x, distance))
            distance //= 2
        cuda.syncwarp(0xFFFF0000)
    out[lane] = x


@right(
    source="PTX ISA, elect.sync: with the mask of a branch",
    block=64, args=numbers(64, 64),
    expect=lambda data, out: [(out.sum(), 4), (out.reshape(2, 2, 16).sum(2), np.ones((2, 2)))],
)  # fmt: skip
def one_is_elected_in_each_branch(data, out):
    """The two branches of a warp elect a leader each, with masks that came from a vote. Which lane it is the
    hardware decides."""
    thread = int32(cuda.threadIdx.x)
    lower = thread % 32 < 16
    votes = uint32(cuda.ballot_sync(ALL, lower))
    if lower:
        out[thread] = elect_sync(votes)
    else:
        out[thread] = elect_sync(uint32(~votes))


@right(
    source="CUDA C++ Programming Guide, Warp Synchronization Function: exchange through shared memory by "
           "__syncwarp",
    block=64, args=numbers(64, 64),
    expect=lambda data, out: [(out, data.reshape(2, 2, 16)[:, ::-1].reshape(-1) * 16)],
)  # fmt: skip
def a_warp_exchanges_through_shared_memory(data, out):
    """Each warp shuffles its part of a shared array in place, several times, with nothing but syncwarp between
    reads and writes; the warps never wait for each other."""
    words = cuda.shared.array(64, int32)
    thread = int32(cuda.threadIdx.x)
    words[thread] = data[thread]
    cuda.syncwarp()
    for step in range(5):
        other = words[thread ^ (1 << step)] if step == 4 else words[thread] * 2
        cuda.syncwarp()
        words[thread] = other
        cuda.syncwarp()
    out[thread] = words[thread]


@right(
    source="CUDA C++ Programming Guide, Warp Vote Functions: a loop that the warp leaves together",
    block=WARP, args=numbers(WARP, 2, WARP),
    expect=lambda data, out: [(out[0], [len(_collatz(int(n))) for n in data]), (out[1], out[0].max())],
)  # fmt: skip
def a_warp_loops_until_its_last_lane_is_done(data, out):
    """Lanes need different numbers of steps; those that are done stay in the loop, for the vote is
    everybody's."""
    lane = int32(cuda.threadIdx.x)
    n, steps, rounds = data[lane], int32(0), int32(0)
    while cuda.any_sync(ALL, n != 1):
        if n != 1:
            n = int32(n // 2 if n % 2 == 0 else 3 * n + 1)
            steps += 1
        rounds += 1
    out[0, lane] = steps
    out[1, lane] = rounds


def _collatz(n):
    """The steps from n to 1."""
    steps = []
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps.append(n)
    return steps


@right(
    source="CUDA C++ Programming Guide, Warp Match Functions",
    block=64, args=numbers(1, 64),
    expect=lambda data, out: [(out, np.where(np.arange(64) < 32, 100 + 32, 0))],
)  # fmt: skip
def do_all_lanes_agree(data, out):
    """The lanes of one warp agree on a value and those of the other do not; each says so by mask and
    predicate."""
    thread = int32(cuda.threadIdx.x)
    mask, same = cuda.match_all_sync(ALL, thread // 33)
    out[thread] = cuda.popc(mask) + (100 if same else 0)


@right(
    source="NVIDIA developer blog, Using CUDA Warp-Level Primitives: a float sum by a butterfly; the words "
           "by shfl.idx",
    block=64, args=lambda: [np.arange(64, dtype=np.float32), np.zeros((2, 64), np.float32)],
    expect=lambda data, out: [(out[0], data.reshape(2, 32).sum(1).repeat(32)),
                              (out[1], np.roll(data.reshape(2, 32), -3, 1).reshape(-1))],
)  # fmt: skip
def a_butterfly_and_a_rotation(data, out):
    """All lanes get the sum; then each reads its third neighbour, whose number runs past 31 and is taken modulo
    32."""
    thread = int32(cuda.threadIdx.x)
    x = data[thread]
    total = x
    for step in range(5):
        total += shfl_sync_bfly_f32(ALL, total, uint32(16 >> step))
    out[0, thread] = total
    word = shfl_sync_idx_b32(ALL, uint32(x), uint32(thread + 3))
    out[1, thread] = float32(word)


@right(
    source="NVIDIA developer blog, Faster Parallel Reductions on Kepler: blockReduceSum",
    block=64, args=numbers(64, 64), expect=lambda data, out: [(out, np.full(64, data.sum()))],
)  # fmt: skip
def one_sum_for_the_block_by_two_levels(data, out):
    """Each warp adds up by shuffles, its lane 0 leaves the sum in shared memory; then every warp adds up the
    sums with its two lowest lanes and hands the result to the others."""
    sums = cuda.shared.array(2, int32)
    thread = int32(cuda.threadIdx.x)
    x = data[thread]
    for step in range(5):
        x += cuda.shfl_xor_sync(ALL, x, 1 << step)
    if thread % 32 == 0:
        sums[thread // 32] = x
    bar_sync(1, 64)
    y = sums[thread % 32] if thread % 32 < 2 else int32(0)
    y += cuda.shfl_down_sync(ALL, y, 1)
    out[thread] = cuda.shfl_sync(ALL, y, 0)


def branches(data):
    """What the two branches of ``two_branches_vote_and_exchange`` make of the numbers."""
    odd, x = data % 2 == 1, data
    votes = np.where(odd, x > 17, x > 9)
    ballot = np.sum(np.int64(1) << np.flatnonzero(votes)).astype(np.uint32)
    other = np.where(odd, x, x + 100).reshape(-1, 2)[:, ::-1].ravel()
    return ballot, np.where(odd, other * 3, other + 5)


@right(
    source="PTX ISA @9.7.13.9, 9.7.9.6: the same instruction and mask, not the same place; "
           "ROCm/legacy-rocm-build issue 5852",
    args=lambda: [np.arange(1, 33, dtype=np.int32), np.zeros(WARP, np.uint32), np.zeros(WARP, np.int32)],
    expect=lambda data, ballots, out: [(ballots, np.full(WARP, branches(data)[0])), (out, branches(data)[1])],
)  # fmt: skip
def two_branches_vote_and_exchange(data, ballots, out):
    """The two branches of a warp vote together, and exchange values, each by a call of its own with the mask of
    all lanes."""
    i = int32(cuda.threadIdx.x)
    x = data[i]
    if x % 2 == 1:
        ballots[i] = cuda.ballot_sync(ALL, x > 17)
        out[i] = cuda.shfl_xor_sync(ALL, x, 1) * int32(3)
    else:
        ballots[i] = cuda.ballot_sync(ALL, x > 9)
        out[i] = cuda.shfl_xor_sync(ALL, x + int32(100), 1) + int32(5)


@right(
    source="CUDA guide, warp shuffle; CUB warp reductions with valid items", args=numbers(WARP, 6),
    expect=lambda data, out: [(out, [136, 16, 1, 272, 0x4C004C00, 7])],
)  # fmt: skip
def undefined_values_go_unused(data, out):
    """Half a warp adds up, looks for its maximum and its minimum, converts and takes roots, each time with what
    comes from outside the mask; what is used comes from inside."""
    i = int32(cuda.threadIdx.x)
    if i < 16:
        x, most, least = data[i], data[i], data[i]
        scaled, halves = float32(data[i]), uint32(0x3C003C00)
        for distance in (8, 4, 2, 1):
            x += cuda.shfl_down_sync(0xFFFF, x, distance)
            most = max(most, cuda.shfl_down_sync(0xFFFF, most, distance))
            least = min(least, cuda.shfl_down_sync(0xFFFF, least, distance))
            other = cuda.shfl_down_sync(0xFFFF, scaled, distance)
            scaled = max(float32(float64(other) + scaled), float32(0))
            above = cuda.shfl_down_sync(0xFFFF, int32(halves), distance)
            halves = add_rn_f16x2(halves, uint32(above))
        root = math.sqrt(float32(int8(cuda.shfl_down_sync(0xFFFF, int32(49), 1))))
        if i == 0:
            out[0], out[1], out[2], out[3] = x, most, least, int32(scaled) * 2
            out[4], out[5] = int32(halves), int32(root)

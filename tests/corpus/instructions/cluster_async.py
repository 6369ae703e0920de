"""What blocks of a cluster send each other and a barrier there counts by the byte: st.async, red.async and
reductions of shared memory."""

import numpy as np
from base import right, wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device import cluster_async as ca
from numba_deform.device.cluster import cluster_ctarank, cluster_sync, mapa_shared_cluster
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import global_at, ld_global_b32, shared_address, shared_at, st_global_b32
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import cp_async_bulk_commit_group, cp_async_bulk_store, cp_async_bulk_wait_group
from numba_deform.engines import faults

WARP, CLUSTER, TILE = 32, 4, 128  # TILE: bytes of a warp's words
ST, RED = "PTX ISA 9.7.9.12: st.async", "PTX ISA 9.7.13.7: red.async"
BULK = "PTX ISA 9.7.9.25.4.2: cp.reduce.async.bulk"
EXAMPLE = "CUDA guide, Asynchronous Data Copies: st.async and red.async between blocks of a cluster"
PROXY = "PTX ISA 9.7.13.4: fence.proxy.async is for objects in the state space that it names"


def words(*shape, seed=7):
    """Arguments: random words of each block, and room for as many, on multiples of 16."""
    random = np.random.default_rng(seed)
    data = random.integers(0, 1 << 32, shape, np.uint32)
    return lambda: [aligned(data), aligned(np.zeros(shape, np.uint32))]


def aligned(array):
    """A copy of the array on a multiple of 16 bytes."""
    room = np.zeros(array.nbytes + 16, np.uint8)
    start = -room.__array_interface__["data"][0] % 16
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def from_before(data, out):
    return [(out, np.roll(data, 1, 0)[:, ::-1])]


@cuda.jit(device=True)
def ready(bar, arrivals):
    """The block's barrier is there, and all blocks have started."""
    if cuda.threadIdx.x == 0:
        mbarrier_init(bar, uint32(arrivals))
        fence_mbarrier_init()
    cluster_sync()


@cuda.jit(device=True)
def after():
    """The rank of the next block."""
    return uint32((cluster_ctarank() + uint32(1)) % uint32(CLUSTER))


@cuda.jit(device=True)
def own_word(data):
    return ld_global_b32(global_at(data, cuda.blockIdx.x * WARP + cuda.threadIdx.x, 4))


@cuda.jit(device=True)
def give(out, word):
    st_global_b32(global_at(out, cuda.blockIdx.x * WARP + cuda.threadIdx.x, 4), word)


# --- st.async ----------------------------------------------------------------------------------------
@right(source=EXAMPLE, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP), expect=from_before)
def words_by_st_async(data: u64, out: u64):
    """Each lane sends its word to the next block, whose barrier counts the bytes; no fence, no arrival."""
    inbox, bar = cuda.shared.array(WARP, uint32), shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    ready(bar, 1)
    if i == 0:
        mbarrier_arrive_expect_tx(bar, uint32(TILE))
    there = mapa_shared_cluster(shared_address(inbox), after())
    ca.st_async_b32(shared_at(there, i, 4), own_word(data), mapa_shared_cluster(bar, after()))
    mbarrier_wait(bar, 0)
    give(out, inbox[WARP - 1 - i])


@wrong(faults.InFlightRead, source=EXAMPLE, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP))
def words_by_st_async_without_a_wait(data: u64, out: u64):
    """The twin in which the whole cluster meets instead: that says that the stores were issued."""
    inbox, bar = cuda.shared.array(WARP, uint32), shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    ready(bar, 1)
    if i == 0:
        mbarrier_arrive_expect_tx(bar, uint32(TILE))
    there = mapa_shared_cluster(shared_address(inbox), after())
    ca.st_async_b32(shared_at(there, i, 4), own_word(data), mapa_shared_cluster(bar, after()))
    cluster_sync()
    word = inbox[WARP - 1 - i]  # <- fault
    mbarrier_wait(bar, 0)
    give(out, word)


@wrong(
    faults.MissingBytes, source=EXAMPLE, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP),
    hardware="no",
)  # fmt: skip
def st_async_counts_bytes_not_words(data: u64, out: u64):
    """The twin that expects twice the bytes: the wait never ends."""
    inbox, bar = cuda.shared.array(WARP, uint32), shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    ready(bar, 1)
    if i == 0:
        mbarrier_arrive_expect_tx(bar, uint32(2 * TILE))
    there = mapa_shared_cluster(shared_address(inbox), after())
    ca.st_async_b32(shared_at(there, i, 4), own_word(data), mapa_shared_cluster(bar, after()))
    mbarrier_wait(bar, 0)  # <- fault
    give(out, inbox[WARP - 1 - i])


@wrong(
    faults.BlockNotStarted, source=ST, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP), hardware="no"
)  # fmt: skip
def st_async_to_a_block_that_may_not_have_started(data: u64, out: u64):
    """The twin whose blocks prepare themselves alone."""
    inbox, bar = cuda.shared.array(WARP, uint32), shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, uint32(1))
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(bar, uint32(TILE))
    cuda.syncwarp()
    there = mapa_shared_cluster(shared_address(inbox), after())
    ca.st_async_b32(shared_at(there, i, 4), own_word(data), mapa_shared_cluster(bar, after()))  # <- fault
    mbarrier_wait(bar, 0)
    give(out, inbox[WARP - 1 - i])


@right(
    source=ST, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, 9),
    expect=lambda data, out: [(out, np.roll(data, 1, 0))],
)  # fmt: skip
def all_sizes_of_st_async(data: u64, out: u64):
    """4, 8, 8 and 16 bytes by four lanes; the receiver's lanes read a word each."""
    inbox, bar = cuda.shared.array(12, uint32, alignment=16), shared_address(cuda.shared.array(1, uint64))
    i, start = int32(cuda.threadIdx.x), global_at(data, 9 * cuda.blockIdx.x, 4)
    ready(bar, 1)
    there = mapa_shared_cluster(shared_address(inbox), after())
    far = mapa_shared_cluster(bar, after())
    if i == 0:
        mbarrier_arrive_expect_tx(bar, uint32(36))
        x, y = ld_global_b32(start), ld_global_b32(start + uint64(4))
        z, w = ld_global_b32(start + uint64(8)), ld_global_b32(start + uint64(12))
        ca.st_async_v4(there, x, y, z, w, far)
    elif i == 1:
        x, y = ld_global_b32(start + uint64(16)), ld_global_b32(start + uint64(20))
        ca.st_async_v2(there + uint32(16), x, y, far)
    elif i == 2:
        low, high = ld_global_b32(start + uint64(24)), ld_global_b32(start + uint64(28))
        ca.st_async_b64(there + uint32(24), uint64(uint64(high) << uint64(32) | uint64(low)), far)
    elif i == 3:
        ca.st_async_b32(there + uint32(32), ld_global_b32(start + uint64(32)), far)
    mbarrier_wait(bar, 0)
    if i < 9:
        st_global_b32(global_at(out, 9 * cuda.blockIdx.x + i, 4), inbox[i])


@right(source=PROXY, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP),
       expect=lambda data, out: [(out, np.roll(data, 1, 0))])  # fmt: skip
def what_st_async_wrote_is_copied(data: u64, out: u64):
    """st.async writes by the generic proxy, so a bulk store of its words needs a fence behind the wait."""
    inbox, bar = cuda.shared.array(WARP, uint32, alignment=16), shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    ready(bar, 1)
    if i == 0:
        mbarrier_arrive_expect_tx(bar, uint32(TILE))
    there = mapa_shared_cluster(shared_address(inbox), after())
    ca.st_async_b32(shared_at(there, i, 4), own_word(data), mapa_shared_cluster(bar, after()))
    if i == 0:
        mbarrier_wait(bar, 0)
        fence_proxy_async()
        cp_async_bulk_store(global_at(out, cuda.blockIdx.x, TILE), shared_address(inbox), uint32(TILE))
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(uint32(0))


@wrong(faults.MissingProxyFence, source=PROXY, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP))
def what_st_async_wrote_is_copied_unfenced(data: u64, out: u64):
    """The twin without the fence."""
    inbox, bar = cuda.shared.array(WARP, uint32, alignment=16), shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    ready(bar, 1)
    if i == 0:
        mbarrier_arrive_expect_tx(bar, uint32(TILE))
    there = mapa_shared_cluster(shared_address(inbox), after())
    ca.st_async_b32(shared_at(there, i, 4), own_word(data), mapa_shared_cluster(bar, after()))
    if i == 0:
        mbarrier_wait(bar, 0)
        place = global_at(out, cuda.blockIdx.x, TILE)
        cp_async_bulk_store(place, shared_address(inbox), uint32(TILE))  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(uint32(0))


# --- red.async ---------------------------------------------------------------------------------------
COUNTS = 12  # add u32, s32, u64; min, max of both; inc, dec; and, or, xor
ROOM = 14  # words for them: u64 has two, on a multiple of 8


def reduced(data, out):
    """The words of each block after what all lanes of the others have sent it."""
    want = np.zeros((CLUSTER, ROOM), np.uint32)
    for block in range(CLUSTER):
        sent = np.delete(data[:, :WARP], block, 0).reshape(-1)
        first, signed = data[block, :ROOM], sent.view(np.int32)
        n, wide = len(sent), sent.astype(object) * (2**32 + 1)
        want[block, :12] = [
            (int(first[0]) + sum(map(int, sent))) % 2**32, (int(first[1]) + sum(map(int, sent))) % 2**32,
            *divmod_words((int(first[2]) + (int(first[3]) << 32) + sum(wide)) % 2**64),
            min(first[4], sent.min()), np.int32(min(first.view(np.int32)[5], signed.min())).view(np.uint32),
            max(first[6], sent.max()), np.int32(max(first.view(np.int32)[7], signed.max())).view(np.uint32),
            counted(int(first[8]), n, 1), counted(int(first[9]), n, -1),
            np.bitwise_and.reduce(sent, initial=first[10]), np.bitwise_or.reduce(sent, initial=first[11]),
        ]  # fmt: skip
        want[block, 12] = np.bitwise_xor.reduce(sent, initial=first[12])
    return [(out[:, :13], want[:, :13])]


def divmod_words(number):
    return number % 2**32, number >> 32


def counted(value, times, step, bound=1000):
    """inc or dec with an operand of 1000, ``times`` over."""
    for _ in range(times):
        if step > 0:
            value = 0 if value >= bound else value + 1
        else:
            value = bound if value == 0 or value > bound else value - 1
    return value


@cuda.jit(device=True)
def send_reductions(there, word, far):
    """One of each kind."""
    ca.red_async_add_u32(there, word, far)
    ca.red_async_add_s32(there + uint32(4), int32(word), far)
    ca.red_async_add_u64(there + uint32(8), uint64(uint64(word) << uint64(32) | uint64(word)), far)
    ca.red_async_min_u32(there + uint32(16), word, far)
    ca.red_async_min_s32(there + uint32(20), int32(word), far)
    ca.red_async_max_u32(there + uint32(24), word, far)
    ca.red_async_max_s32(there + uint32(28), int32(word), far)
    ca.red_async_inc_u32(there + uint32(32), uint32(1000), far)
    ca.red_async_dec_u32(there + uint32(36), uint32(1000), far)
    ca.red_async_and_b32(there + uint32(40), word, far)
    ca.red_async_or_b32(there + uint32(44), word, far)
    ca.red_async_xor_b32(there + uint32(48), word, far)


@right(
    source=RED, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP), expect=reduced, explorable=False
)
def all_kinds_of_red_async(data: u64, out: u64):
    """All lanes of all blocks reduce into the words of every other block, with no order among them."""
    sums, bar = cuda.shared.array(ROOM, uint32, alignment=16), shared_address(cuda.shared.array(1, uint64))
    i, word = int32(cuda.threadIdx.x), own_word(data)
    if i < ROOM:
        sums[i] = word
    ready(bar, 1)
    if i == 0:
        mbarrier_arrive_expect_tx(bar, uint32(52 * WARP * (CLUSTER - 1)))
    for k in range(1, CLUSTER):
        rank = uint32((cluster_ctarank() + uint32(k)) % uint32(CLUSTER))
        send_reductions(mapa_shared_cluster(shared_address(sums), rank), word, mapa_shared_cluster(bar, rank))
    mbarrier_wait(bar, 0)
    if i < ROOM:
        st_global_b32(global_at(out, cuda.blockIdx.x * WARP + i, 4), sums[i])


def added(data, out):
    return [(out[0, 0], np.append(data[1:], data[0, 0]).sum(dtype=np.uint32))]


@right(source=EXAMPLE, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP), expect=added)
def a_sum_by_red_async(data: u64, out: u64):
    """The other blocks add to a word of the first, which waits for their bytes."""
    total, bar = cuda.shared.array(1, uint32), shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        total[0] = own_word(data)
    ready(bar, 1)
    if cluster_ctarank() == 0:
        if i == 0:
            mbarrier_arrive_expect_tx(bar, uint32(TILE * (CLUSTER - 1)))
            mbarrier_wait(bar, 0)
            st_global_b32(out, total[0])
    else:
        there = mapa_shared_cluster(shared_address(total), uint32(0))
        ca.red_async_add_u32(there, own_word(data), mapa_shared_cluster(bar, uint32(0)))


@wrong(faults.InFlightRead, source=EXAMPLE, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP))
def a_sum_by_red_async_without_a_wait(data: u64, out: u64):
    """The twin whose first block meets the others, and does not wait for the bytes."""
    total, bar = cuda.shared.array(1, uint32), shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        total[0] = own_word(data)
    ready(bar, 1)
    if cluster_ctarank() != 0:
        there = mapa_shared_cluster(shared_address(total), uint32(0))
        ca.red_async_add_u32(there, own_word(data), mapa_shared_cluster(bar, uint32(0)))
    cluster_sync()
    if cluster_ctarank() == 0 and i == 0:
        mbarrier_arrive_expect_tx(bar, uint32(TILE * (CLUSTER - 1)))
        st_global_b32(out, total[0])  # <- fault
        mbarrier_wait(bar, 0)


@wrong(faults.UninitialisedRead, source=RED, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP))
def a_sum_that_nobody_has_begun(data: u64, out: u64):
    """The twin whose word has no first value."""
    total, bar = cuda.shared.array(1, uint32), shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    ready(bar, 1)
    if cluster_ctarank() == 0:
        if i == 0:
            mbarrier_arrive_expect_tx(bar, uint32(TILE * (CLUSTER - 1)))
            mbarrier_wait(bar, 0)
            st_global_b32(out, total[0])
    else:
        there = mapa_shared_cluster(shared_address(total), uint32(0))
        ca.red_async_add_u32(there, own_word(data), mapa_shared_cluster(bar, uint32(0)))  # <- fault


@wrong(faults.DataRace, source=RED, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP))
def a_sum_that_begins_too_late(data: u64, out: u64):
    """The twin that sets the word after the meeting: it may wipe out what has come."""
    total, bar = cuda.shared.array(1, uint32), shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    ready(bar, 1)
    if cluster_ctarank() == 0:
        if i == 0:
            total[0] = own_word(data)  # <- fault
            mbarrier_arrive_expect_tx(bar, uint32(TILE * (CLUSTER - 1)))
            mbarrier_wait(bar, 0)
            st_global_b32(out, total[0])
    else:
        there = mapa_shared_cluster(shared_address(total), uint32(0))
        ca.red_async_add_u32(there, own_word(data), mapa_shared_cluster(bar, uint32(0)))  # <- fault


@wrong(
    faults.NotInCluster, source=RED, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP), hardware="no"
)  # fmt: skip
def a_sum_by_red_async_of_ones_own(data: u64, out: u64):
    """The twin in which the first block takes part: red.async is for another block's memory."""
    total, bar = cuda.shared.array(1, uint32), shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        total[0] = uint32(0)
    ready(bar, 1)
    if cluster_ctarank() == 0 and i == 0:
        mbarrier_arrive_expect_tx(bar, uint32(TILE * CLUSTER))
    there = mapa_shared_cluster(shared_address(total), uint32(0))
    ca.red_async_add_u32(there, own_word(data), mapa_shared_cluster(bar, uint32(0)))  # <- fault
    if cluster_ctarank() == 0:
        mbarrier_wait(bar, 0)
        give(out, total[0])


# --- reductions of shared memory ------------------------------------------------------------------------
@cuda.jit(device=True)
def send_tiles(there, here, far):
    """A tile of each kind of reduction."""
    size = uint32(TILE)
    ca.cp_reduce_async_bulk_shared_cluster_add_u32(there, here, size, far)
    ca.cp_reduce_async_bulk_shared_cluster_add_s32(there + size, here, size, far)
    ca.cp_reduce_async_bulk_shared_cluster_add_u64(there + uint32(2 * TILE), here, size, far)
    ca.cp_reduce_async_bulk_shared_cluster_min_u32(there + uint32(3 * TILE), here, size, far)
    ca.cp_reduce_async_bulk_shared_cluster_min_s32(there + uint32(4 * TILE), here, size, far)
    ca.cp_reduce_async_bulk_shared_cluster_max_u32(there + uint32(5 * TILE), here, size, far)
    ca.cp_reduce_async_bulk_shared_cluster_max_s32(there + uint32(6 * TILE), here, size, far)
    ca.cp_reduce_async_bulk_shared_cluster_inc_u32(there + uint32(7 * TILE), here, size, far)
    ca.cp_reduce_async_bulk_shared_cluster_dec_u32(there + uint32(8 * TILE), here, size, far)
    ca.cp_reduce_async_bulk_shared_cluster_and_b32(there + uint32(9 * TILE), here, size, far)
    ca.cp_reduce_async_bulk_shared_cluster_or_b32(there + uint32(10 * TILE), here, size, far)
    ca.cp_reduce_async_bulk_shared_cluster_xor_b32(there + uint32(11 * TILE), here, size, far)


def tiles_reduced(data, out):
    """Each block's tile, with that of the block before."""
    old, new = data, np.roll(data, 1, 0)
    signed = old.view(np.int32), new.view(np.int32)
    wide = old.reshape(-1).view(np.uint64) + new.reshape(-1).copy().view(np.uint64)
    want = [
        old + new, old + new, wide.view(np.uint32).reshape(old.shape), np.minimum(old, new),
        np.minimum(*signed).view(np.uint32), np.maximum(old, new), np.maximum(*signed).view(np.uint32),
        np.where(old >= new, 0, old + 1), np.where((old == 0) | (old > new), new, old - 1), old & new,
        old | new, old ^ new,
    ]  # fmt: skip
    return [(out, np.stack(want, 1))]


def tiles(seed=8):
    random = np.random.default_rng(seed)
    data = random.integers(0, 1 << 32, (CLUSTER, WARP), np.uint32)
    return lambda: [aligned(data), aligned(np.zeros((CLUSTER, COUNTS, WARP), np.uint32))]


@right(source=BULK, grid=CLUSTER, cluster=CLUSTER, args=tiles(), expect=tiles_reduced)
def all_kinds_of_bulk_reductions(data: u64, out: u64):
    """One lane reduces its block's tile into twelve tiles of the next block."""
    sums = cuda.shared.array((COUNTS, WARP), uint32, alignment=16)
    tile = cuda.shared.array(WARP, uint32, alignment=16)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    tile[i] = own_word(data)
    for k in range(COUNTS):
        sums[k, i] = tile[i]
    fence_proxy_async()
    ready(bar, 1)
    if i == 0:
        mbarrier_arrive_expect_tx(bar, uint32(TILE * COUNTS))
        there = mapa_shared_cluster(shared_address(sums), after())
        send_tiles(there, shared_address(tile), mapa_shared_cluster(bar, after()))
    mbarrier_wait(bar, 0)
    for k in range(COUNTS):
        st_global_b32(global_at(out, (cuda.blockIdx.x * COUNTS + k) * WARP + i, 4), sums[k, i])
    cluster_sync()


def sum_of_all(data, out):
    return [(out[0], data.sum(0, np.uint32))]


@right(source=BULK, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP), expect=sum_of_all)
def a_sum_of_tiles(data: u64, out: u64):
    """All blocks add their tile to that of the first, its own too, in whatever order."""
    total, tile = cuda.shared.array(WARP, uint32, alignment=16), cuda.shared.array(WARP, uint32, alignment=16)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    tile[i], total[i] = own_word(data), uint32(0)
    fence_proxy_async()
    ready(bar, 1)
    if i == 0:
        first = mapa_shared_cluster(shared_address(total), uint32(0))
        far = mapa_shared_cluster(bar, uint32(0))
        ca.cp_reduce_async_bulk_shared_cluster_add_u32(first, shared_address(tile), uint32(TILE), far)
    if cluster_ctarank() == 0:
        if i == 0:
            mbarrier_arrive_expect_tx(bar, uint32(TILE * CLUSTER))
        mbarrier_wait(bar, 0)
        give(out, total[i])
    cluster_sync()


@wrong(faults.MissingProxyFence, source=BULK, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP))
def a_sum_of_tiles_without_a_fence(data: u64, out: u64):
    """The twin whose zeros and tiles have passed no proxy fence."""
    total, tile = cuda.shared.array(WARP, uint32, alignment=16), cuda.shared.array(WARP, uint32, alignment=16)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    tile[i], total[i] = own_word(data), uint32(0)
    ready(bar, 1)
    if i == 0:
        first, far = mapa_shared_cluster(shared_address(total), uint32(0)), mapa_shared_cluster(bar, uint32(0))
        here = shared_address(tile)
        ca.cp_reduce_async_bulk_shared_cluster_add_u32(first, here, uint32(TILE), far)  # <- fault
    if cluster_ctarank() == 0:
        if i == 0:
            mbarrier_arrive_expect_tx(bar, uint32(TILE * CLUSTER))
        mbarrier_wait(bar, 0)
        give(out, total[i])
    cluster_sync()


@wrong(faults.DataRace, source=BULK, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP))
def a_tile_that_is_still_being_added(data: u64, out: u64):
    """The twin that writes to its tile when it has issued the reduction, which reads it still."""
    total, tile = cuda.shared.array(WARP, uint32, alignment=16), cuda.shared.array(WARP, uint32, alignment=16)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    tile[i], total[i] = own_word(data), uint32(0)
    fence_proxy_async()
    ready(bar, 1)
    if i == 0:
        first = mapa_shared_cluster(shared_address(total), uint32(0))
        far = mapa_shared_cluster(bar, uint32(0))
        ca.cp_reduce_async_bulk_shared_cluster_add_u32(first, shared_address(tile), uint32(TILE), far)
        tile[0] = uint32(7)  # <- fault
    if cluster_ctarank() == 0:
        if i == 0:
            mbarrier_arrive_expect_tx(bar, uint32(TILE * CLUSTER))
        mbarrier_wait(bar, 0)
        give(out, total[i])
    cluster_sync()

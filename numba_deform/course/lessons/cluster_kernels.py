"""The kernels of lessons 11 and 12 as they should be, made with a reader's parts in place of some of theirs."""

from numba import cuda

from ...compiler import float16, float32, function, i32, int32, kernel, static_range, u64, uint32
from ...device.cluster import (
    cluster_arrive,
    cluster_ctarank,
    cluster_wait,
    cp_async_bulk_tensor_2d_multicast,
    mapa_shared_cluster,
    mbarrier_arrive_cluster,
)
from ...device.layout import Array, Shared
from ...device.matrix import ldmatrix_x4, mma_m16n8k16_f16
from ...device.mbarrier import mbarrier_arrive_expect_tx
from ...device.rings import Ring
from ...device.sync import fence_proxy_async, lane, warp
from ...device.tma import cp_async_bulk_tensor_2d, fence_proxy_tensormap_acquire_sys

SIDE, DEPTH, STEPS = 16, 64, 4  # as in the notebook: rows of a tile, its elements along k, tiles along k
ROW_BYTES, CHUNKS = 2 * DEPTH, DEPTH // 8  # a chunk is 16 bytes, a row of one 8x8 matrix
TILE_BYTES, HALF_BYTES = SIDE * ROW_BYTES, SIDE // 2 * ROW_BYTES
BLOCKS = 2  # of a cluster


def _two_tiles(stages, empty):
    """Shared memory: a ring of tiles of A and B."""
    tiles = Array((stages, SIDE, DEPTH), float16, alignment=1024)
    return Shared(a=tiles, b=tiles, ring=Ring(stages, empty=empty))


@function
def swizzled(tile, row, chunk):
    """The address of eight elements of a row that TMA has swizzled by 128 bytes."""
    return uint32(tile + uint32(ROW_BYTES * row + 16 * (chunk ^ (row & 7))))


@function
def place_in_b(number, k):
    """(row, chunk) of what the lane of that number points at of B."""
    return (number >> 4) * 8 + (number & 7), 2 * k + (number >> 3 & 1)


@function
def element_of_c(number, i):
    """(row, column) of sum i of the lane of that number."""
    return number // 4 + 8 * (i // 2), 2 * (number % 4) + i % 2


def build_multiply(place):
    """A device function (a, b, sums): 16x16 sums of a warp += A B^T, for 64 of k, with that ``place`` in B."""

    @function
    def multiply(a, b, sums):
        for k in static_range(4):
            row, chunk = place(lane(), k)
            x = ldmatrix_x4(swizzled(a, lane() & 15, 2 * k + (lane() >> 4)))
            y = ldmatrix_x4(swizzled(b, row, chunk))
            for h in static_range(2):
                d = mma_m16n8k16_f16(
                    x[0], x[1], x[2], x[3], y[2 * h], y[2 * h + 1],
                    sums[4 * h], sums[4 * h + 1], sums[4 * h + 2], sums[4 * h + 3],
                )  # fmt: skip
                for i in static_range(4):
                    sums[4 * h + i] = d[i]

    return multiply


multiply = build_multiply(place_in_b)


def build_warp(place=place_in_b, element=element_of_c):
    """The kernel (a_map, b_map, out, steps) of one warp that makes a 16x16 product, one stage after another."""
    shared = _two_tiles(1, empty=32)
    ring, multiply_with = shared.ring, build_multiply(place)

    @kernel(threads=32, shared=shared)
    def one_warp(a_map: u64, b_map: u64, out: float32[:, :], steps: i32):
        shared.init()
        state, sums = ring.start(), cuda.local.array(8, float32)
        for i in static_range(8):
            sums[i] = float32(0)
        for step in range(steps):
            if lane() == 0:
                fence_proxy_tensormap_acquire_sys(a_map)
                fence_proxy_tensormap_acquire_sys(b_map)
                ring.acquire(state)
                ring.expect(state, shared.a.stride + shared.b.stride)
                cp_async_bulk_tensor_2d(shared.a.at(0), a_map, DEPTH * step, 0, ring.full(state))
                cp_async_bulk_tensor_2d(shared.b.at(0), b_map, DEPTH * step, 0, ring.full(state))
            ring.wait(state)
            multiply_with(shared.a.at(0), shared.b.at(0), sums)
            ring.release(state)
            state = ring.advance(state)
        for i in static_range(8):
            row, column = element(lane(), i % 4)
            out[row, column + 8 * (i // 4)] = sums[i]

    return one_warp


@function
def store(out, column, sums):
    """The warp's sums to C, from that column on."""
    for i in static_range(8):
        y, x = element_of_c(lane(), i % 4)
        out[y, column + x + 8 * (i // 4)] = sums[i]


def alone(stages=2):
    """The kernel (a_map, b_map, out, steps) of two blocks of which each fetches all that it needs."""
    shared = _two_tiles(stages, empty=32)
    ring = shared.ring

    @kernel(threads=64, shared=shared)
    def of_one_block(a_map: u64, b_map: u64, out: float32[:, :], steps: i32):
        shared.init()
        state, column = ring.start(), SIDE * cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            fence_proxy_tensormap_acquire_sys(a_map)
            fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                ring.expect(state, shared.a.stride + shared.b.stride)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                cp_async_bulk_tensor_2d(a, a_map, DEPTH * step, 0, ring.full(state))
                cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, ring.full(state))
                state = ring.advance(state)
        elif warp() == 1:
            sums = cuda.local.array(8, float32)
            for i in static_range(8):
                sums[i] = float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                ring.release(state)
                state = ring.advance(state)
            store(out, column, sums)

    return of_one_block


@function
def fetch_for_both(a_map, b_map, a, b, full, step, rank, column):
    """By one thread of each block: half of a tile of A for both blocks, and this block's tile of B."""
    mbarrier_arrive_expect_tx(full, 2 * TILE_BYTES)
    half = uint32(a + uint32(HALF_BYTES * rank))
    cp_async_bulk_tensor_2d_multicast(half, a_map, DEPTH * step, SIDE // 2 * rank, full, 3)
    cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, full)


def pair(stages=2, fetch=fetch_for_both, extra=0, meets=True):
    """The kernel (a_map, b_map, out, steps) of a cluster of two blocks that share A.

    Block 1 multiplies each tile ``extra`` times more, for nothing, so that it is the slower one. Without
    ``meets`` the cluster does not meet before the first copy, which is wrong."""
    shared = _two_tiles(stages, empty=BLOCKS)
    ring, EXTRA, MEETS = shared.ring, extra, meets

    @kernel(threads=64, shared=shared)
    def of_a_cluster(a_map: u64, b_map: u64, out: float32[:, :], steps: i32):
        shared.init()
        if MEETS:
            cluster_arrive()
            cluster_wait()
        state, rank, column = ring.start(), int32(cluster_ctarank()), SIDE * cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            fence_proxy_tensormap_acquire_sys(a_map)
            fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                fetch(a_map, b_map, a, b, ring.full(state), step, rank, column)
                state = ring.advance(state)
        elif warp() == 1:
            sums, spare = cuda.local.array(8, float32), cuda.local.array(8, float32)
            for i in static_range(8):
                sums[i] = spare[i] = float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                for _ in range(EXTRA * rank):
                    multiply(shared.a.at(state.stage), shared.b.at(state.stage), spare)
                fence_proxy_async()
                cuda.syncwarp()
                if lane() < 2:
                    mbarrier_arrive_cluster(mapa_shared_cluster(ring.empty(state), lane()))
                state = ring.advance(state)
            store(out, column, sums)
        cluster_arrive()
        cluster_wait()

    return of_a_cluster

"""Copies, stages and products: what the report has to say of each, and the mend beside it."""
# ruff: noqa: F401  some names are for the mends alone

import numpy as np
from base import wrong
from numba import cuda, float32, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.cp_async import cp_async_ca_4
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_expect_tx,
    mbarrier_init,
)
from numba_deform.device.memory import (
    cp_async_cg_16,
    cp_async_commit_group,
    cp_async_wait_group,
    shared_address,
    shared_at,
    st_global_b32,
)
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_load,
    cp_async_bulk_store,
    cp_async_bulk_wait_group_read,
)
from numba_deform.device.wgmma import (
    wgmma_commit_group,
    wgmma_descriptor,
    wgmma_fence,
    wgmma_m64n64k16_f16,
    wgmma_wait_group,
    wgmma_wait_group_n64,
)
from numba_deform.engines import faults

WARP, TILES, BYTES = 32, 4, 128
WORDS, TWO, BUFFERS = TILES * WARP, 2 * WARP, TILES + 1


def tiles(count=TILES, room=64):
    """Arguments: that many tiles of 32 numbers, and room for results."""
    return lambda: [np.arange(WARP * count, dtype=np.uint32), np.zeros(room, np.uint32)]


def sum_of_tiles(data, out):
    total = data.reshape(-1, WARP).sum(axis=0)
    return [(out[-WARP:], total)]


def doubled_ends(data, out):
    """What a consumer has that reads its own number of each tile, and the one opposite."""
    total = data.reshape(-1, WARP).sum(axis=0)
    return [(out[-WARP:], total + total[::-1])]


RING = {
    "args": tiles(8), "expect": lambda data, out: [(out[WARP:], data.reshape(-1, WARP).sum(axis=0))],
}  # fmt: skip


@cuda.jit(device=True)
def start_ring(full, consumers):
    """The barriers of two stages, first the full ones, are ready for all threads."""
    if cuda.threadIdx.x == 0:
        for s in range(2):
            mbarrier_init(full + uint32(8 * s), 1)
            mbarrier_init(full + uint32(16 + 8 * s), consumers)
        fence_mbarrier_init()
    cuda.syncthreads()


# --- bytes ------------------------------------------------------------------------------------------
@wrong(
    faults.MoreBytesThanExpected, source="triton pull request 9046", args=tiles(2),
    expect=lambda data, out: [(out[:WARP], data[:WARP] + data[WARP:])],
    names=("128 bytes", "256 bytes", "thread 0"),
)  # fmt: skip
def announces_one_of_two_operands(data: u64, out: u64):
    """Two operands complete on one barrier, and the bytes of one are announced."""
    tile = cuda.shared.array(TWO, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, BYTES)  # cure: mbarrier_arrive_expect_tx(full, 2 * BYTES)  # <- fault
        cp_async_bulk_load(shared_address(tile), data, BYTES, full)
        cp_async_bulk_load(shared_address(tile) + uint32(BYTES), data + uint64(BYTES), BYTES, full)
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), uint32(tile[i] + tile[WARP + i]))


@wrong(
    faults.MoreBytesThanExpected, source="tilelang pull request 241", args=tiles(1),
    expect=lambda data, out: [(out[:WARP], data)], names=("128 bytes", "nobody has announced"),
)  # fmt: skip
def announces_no_bytes(data: u64, out: u64):
    """The arrival says nothing of the bytes to come."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        # cure: mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_load(shared_address(tile), data, BYTES, full)  # <- fault
        mbarrier_arrive(full)  # cure: pass
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(
    faults.MoreBytesThanExpected, source="NVIDIA/cutlass: PipelineTmaAsync, transaction bytes", block=64,
    args=tiles(8), expect=lambda data, out: [(out[WARP:], data.reshape(-1, 2, WARP).sum(axis=(0, 1)))],
    names=("128 bytes", "256 bytes"), hardware="guarded",
)  # fmt: skip
def announces_half_a_stage_in_a_ring(data: u64, out: u64):
    """Each stage of a ring holds two tiles, and the producer announces one of them each time."""
    tile = cuda.shared.array((2, 2, WARP), uint32, alignment=128)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, WARP)
    if i == 0:
        for t in range(TILES):
            bar, place = full + uint32(8 * (t % 2)), shared_address(tile) + uint32(2 * BYTES * (t % 2))
            mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
            mbarrier_arrive_expect_tx(bar, BYTES)  # cure: mbarrier_arrive_expect_tx(bar, 2 * BYTES)  # <- fault
            cp_async_bulk_load(place, data + uint64(2 * BYTES * t), BYTES, bar)
            cp_async_bulk_load(place + uint32(BYTES), data + uint64(2 * BYTES * t + BYTES), BYTES, bar)
    elif i >= WARP:
        for t in range(TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, 0, i - WARP] + tile[t % 2, 1, i - WARP]
            fence_proxy_async()
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.UnobservedPhase, source="NVIDIA/cccl: cuda::device::barrier_expect_tx before the arrival", block=64,
    args=tiles(8), expect=lambda data, out: [(out[WARP:], data.reshape(-1, WARP).sum(axis=0))],
    names=("bytes on bars[0]", "phase 0 may be over", "mbarrier_arrive_expect_tx"), hardware="guarded",
)  # fmt: skip
def announces_behind_its_arrival(data: u64, out: u64):
    """The producer arrives, and announces the bytes after that: the phase is over without them."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, WARP)
    if i == 0:
        for t in range(2 * TILES):
            bar = full + uint32(8 * (t % 2))
            mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
            mbarrier_arrive(bar)  # cure: mbarrier_arrive_expect_tx(bar, BYTES)
            mbarrier_expect_tx(bar, BYTES)  # cure: pass  # <- fault
            place = shared_address(tile) + uint32(BYTES * (t % 2))
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)
    elif i >= WARP:
        for t in range(2 * TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, i - WARP]
            fence_proxy_async()
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.UnobservedPhase, source="NVIDIA/cutlass: PipelineTmaAsync, one thread arrives and another issues",
    block=64, args=tiles(8), expect=lambda data, out: [(out[WARP:], data.reshape(-1, WARP).sum(axis=0))],
    names=("phase 0 may be over", "another thread arrives", "syncwarp"), hardware="guarded",
)  # fmt: skip
def announces_beside_the_arrival(data: u64, out: u64):
    """One lane announces bytes and issues, another arrives, and nothing says which comes first."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, WARP)
    if i < WARP:
        for t in range(2 * TILES):
            bar = full + uint32(8 * (t % 2))
            mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
            if i == 0:
                mbarrier_expect_tx(bar, BYTES)  # <- fault
                place = shared_address(tile) + uint32(BYTES * (t % 2))
                cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)
            # cure: cuda.syncwarp()
            if i == 1:
                mbarrier_arrive(bar)
    else:
        for t in range(2 * TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, i - WARP]
            fence_proxy_async()
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        st_global_b32(out + uint64(4 * i), uint32(total))


# --- groups -----------------------------------------------------------------------------------------
@wrong(
    faults.InFlightRead, source="tilelang pull request 2505, tract pull request 2887", args=tiles(),
    expect=lambda data, out: [(out[:WARP], data.reshape(-1, WARP).sum(axis=0))],
    names=("cp_async_wait_group(1)", "cp_async_wait_group(2)"),
)  # fmt: skip
def leaves_one_group_too_many(data: u64, out: u64):
    """Two groups are on their way when the older one is read, and the wait leaves two open."""
    tile = cuda.shared.array((BUFFERS, WARP), uint32, alignment=128)
    i, total = int32(cuda.threadIdx.x), uint32(0)
    source, place = data + uint64(16 * i), shared_address(tile) + uint32(16 * i)
    if i < 8:
        cp_async_cg_16(place, source, 16)
    cp_async_commit_group()
    for t in range(TILES):
        if i < 8 and t + 1 < TILES:
            cp_async_cg_16(place + uint32(BYTES * (t + 1)), source + uint64(BYTES * (t + 1)), 16)
        cp_async_commit_group()
        cp_async_wait_group(2)  # cure: cp_async_wait_group(1)
        cuda.syncthreads()
        total += tile[t, i]  # <- fault
    st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.InFlightRead, source="CUDA guide, Asynchronous Data Copies: a loop over tiles of one buffer",
    args=tiles(2 * TILES), expect=lambda data, out: [(out, data.reshape(-1, TWO).sum(axis=0)[::-1])], block=TWO,
    names=("is a round ahead", "Put a barrier", "behind this read", "of the next round"),
)  # fmt: skip
def copied_over_while_it_is_read(data: u64, out: u64):
    """Who has read its number of a tile asks for the next one, and nobody waits for the others."""
    tile, i, total = cuda.shared.array(TWO, uint32, alignment=128), int32(cuda.threadIdx.x), uint32(0)
    for t in range(TILES):
        cp_async_ca_4(shared_address(tile) + uint32(4 * i), data + uint64(4 * (TWO * t + i)), 4)
        cp_async_commit_group()
        cp_async_wait_group(0)
        cuda.syncthreads()
        total += tile[TWO - 1 - i]  # <- fault
        # cure: cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), total)


def takes_from_a_ring(data, out):
    return [(out[:WARP], data.reshape(-1, WARP).sum(axis=0))]


@wrong(
    faults.CopyCollision, source="CUDA guide, Asynchronous Data Copies: a multi-stage pipeline",
    args=tiles(2 * TILES), expect=takes_from_a_ring,
    names=("The ring is overrun", "4 groups are under way", "room for 3", "Issue one stage less ahead"),
)  # fmt: skip
def issues_one_stage_too_many(data: u64, out: u64):
    """Three stages are filled ahead, and each round fills one more before it reads."""
    tile = cuda.shared.array((3, WARP), uint32, alignment=128)
    ahead = 3  # cure: ahead = 2
    i, total = int32(cuda.threadIdx.x), uint32(0)
    source, place = data + uint64(16 * i), shared_address(tile) + uint32(16 * i)
    for t in range(-ahead, 2 * TILES):
        if i < 8 and t + ahead < 2 * TILES:
            to = place + uint32(BYTES * ((t + ahead) % 3))
            cp_async_cg_16(to, source + uint64(BYTES * (t + ahead)), 16)  # <- fault
        cp_async_commit_group()
        if t >= 0:
            cp_async_wait_group(2)
            cuda.syncthreads()
            total += tile[t % 3, i]
            cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.CopyCollision, source="CUDA guide, Asynchronous Data Copies: a multi-stage pipeline",
    args=tiles(2 * TILES), expect=takes_from_a_ring,
    names=("The ring is overrun", "3 groups are under way", "room for 2", "give the ring one stage more"),
)  # fmt: skip
def ring_of_one_stage_too_few(data: u64, out: u64):
    """Two tiles are on their way while a third is read, in two stages."""
    tile = cuda.shared.array((BUFFERS, WARP), uint32, alignment=128)
    stages = 2  # cure: stages = 3
    i, total = int32(cuda.threadIdx.x), uint32(0)
    source, place = data + uint64(16 * i), shared_address(tile) + uint32(16 * i)
    for t in range(-2, 2 * TILES):
        if i < 8 and t + 2 < 2 * TILES:
            to = place + uint32(BYTES * ((t + 2) % stages))
            cp_async_cg_16(to, source + uint64(BYTES * (t + 2)), 16)  # <- fault
        cp_async_commit_group()
        if t >= 0:
            cp_async_wait_group(2)
            cuda.syncthreads()
            total += tile[t % stages, i]
            cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.CopyCollision, source="PTX ISA 9.7.9.25.3.2: two copies of a group to the same place",
    args=tiles(2), expect=takes_from_a_ring, names=("Give each of the two a place of its own", "a later step"),
)  # fmt: skip
def two_operands_to_one_place(data: u64, out: u64):
    """Each thread copies its part of two tiles, the second over the first."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    place = shared_address(tile) + uint32(4 * i)
    cp_async_ca_4(place, data + uint64(4 * i), 4)
    # cure: cp_async_ca_4(place + uint32(BYTES), data + uint64(BYTES + 4 * i), 4)
    cp_async_ca_4(place, data + uint64(BYTES + 4 * i), 4)  # cure: pass  # <- fault
    cp_async_commit_group()
    cp_async_wait_group(0)
    st_global_b32(out + uint64(4 * i), tile[0, i] + tile[1, i])


@wrong(
    faults.CopyCollision, source="PTX ISA 9.7.9.25.3.2: two copies of a group to the same place",
    args=tiles(1), expect=takes_from_a_ring,
    names=("If this one is to replace those zeros", "cp_async_wait_group(0)", "before this"),
)  # fmt: skip
def zeros_and_then_the_data(data: u64, out: u64):
    """A tile is cleared by copies of no bytes, and then filled, with no wait between the two."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    place = shared_address(tile) + uint32(4 * i)
    cp_async_ca_4(place, data, 0)
    cp_async_commit_group()
    # cure: cp_async_wait_group(0)
    cp_async_ca_4(place, data + uint64(4 * i), 4)  # <- fault
    cp_async_commit_group()
    cp_async_wait_group(0)
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(
    faults.CopyCollision, source="CUDA guide, Asynchronous Data Copies: bulk copies that share a barrier",
    args=tiles(), expect=takes_from_a_ring, hardware="guarded",
    names=("Give each copy a place of its own", "waited for and read"),
)  # fmt: skip
def four_tiles_into_three_places(data: u64, out: u64):
    """One barrier is for four tiles, the last of which goes to where the first one does."""
    tile = cuda.shared.array((TILES, WARP), uint32, alignment=128)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, WARP)
    if i == 0:
        mbarrier_arrive_expect_tx(full, TILES * BYTES)
        for t in range(TILES):
            # cure: place = shared_address(tile) + uint32(BYTES * t)
            place = shared_address(tile) + uint32(BYTES * (t % 3))  # cure: pass
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, full)  # <- fault
    mbarrier_wait(full, 0)
    for t in range(TILES):
        total += tile[t, i]
    st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.DataRace, source="NVIDIA/TransformerEngine pull request 3417", args=tiles(room=WORDS),
    expect=lambda data, out: [(out, np.arange(WORDS))], names=("cp_async_bulk_wait_group(1)", ".read form"),
)  # fmt: skip
def two_buffers_for_stores(data: u64, out: u64):
    """Results leave by two buffers in turn, and nobody waits before one is written again."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    for t in range(TILES):
        # cure: if i == 0:
        # cure:     cp_async_bulk_wait_group_read(1)
        # cure: cuda.syncwarp()
        tile[t % 2, i] = uint32(WARP * t + i)  # <- fault
        fence_proxy_async()
        cuda.syncwarp()
        if i == 0:
            cp_async_bulk_store(out + uint64(BYTES * t), shared_address(tile) + uint32(BYTES * (t % 2)), BYTES)
            cp_async_bulk_commit_group()
    if i == 0:
        cp_async_bulk_wait_group_read(0)


def square():
    """Arguments: a matrix (64, 16) of fp16 as words, and room for its product with itself."""
    matrix = np.random.default_rng(3).integers(-3, 4, (64, 16)).astype(np.float16)
    return [matrix.view(np.uint32), np.full((128, 32), np.nan, np.float32)]


@wrong(
    faults.DataRace, source="PTX ISA 9.7.15.7.3: until the group has been waited for", block=128, args=square,
    expect=lambda words, out: [(np.isfinite(out), True)], names=("the product", "wgmma_wait_group", "group"),
)  # fmt: skip
def writes_under_a_product(words, out):
    """The matrix is written again when its product is issued and committed, and not waited for."""
    tile = cuda.shared.array((64, 8), uint32, alignment=128)
    sums, i = cuda.local.array(32, float32), int32(cuda.threadIdx.x)
    for j in range(i, 512, 128):
        tile[j % 64, j // 64] = words[j % 64, j // 64]
    fence_proxy_async()
    cuda.syncthreads()
    place = shared_address(tile)
    d = wgmma_descriptor(place, uint32(128), uint32(256), uint32(0), uint32(0))
    wgmma_fence()
    wgmma_m64n64k16_f16(sums, d, d, uint32(0), uint32(0), uint32(0))
    wgmma_commit_group()
    # cure: wgmma_wait_group(0)
    # cure: cuda.syncthreads()
    tile[i % 64, i // 64] = uint32(0)  # <- fault
    wgmma_wait_group_n64(sums, 0)
    for j in range(32):
        out[i, j] = sums[j]


@wrong(
    faults.OutOfRange, source="NVIDIA/cutlass: LBO and SBO of GmmaDescriptor", block=128, args=square,
    expect=lambda words, out: [(np.isfinite(out), True)],
    names=("descriptor of A", "leading 128 bytes, stride 1024 bytes", "Exchange leading and stride"),
    hardware="guarded",
)  # fmt: skip
def descriptor_with_offsets_exchanged(words, out):
    """Core matrices lie 1024 bytes apart along k and 128 along the rows, and the descriptor has it the other
    way."""
    tile = cuda.shared.array(512, uint32, alignment=128)
    sums, i = cuda.local.array(32, float32), int32(cuda.threadIdx.x)
    for j in range(i, 512, 128):
        row, word = j // 8, j % 8
        tile[row // 8 * 32 + word // 4 * 256 + row % 8 * 4 + word % 4] = words[row, word]
    fence_proxy_async()
    cuda.syncthreads()
    place = shared_address(tile)
    # cure: d = wgmma_descriptor(place, uint32(1024), uint32(128), uint32(0), uint32(0))
    d = wgmma_descriptor(place, uint32(128), uint32(1024), uint32(0), uint32(0))  # cure: pass
    wgmma_fence()
    wgmma_m64n64k16_f16(sums, d, d, uint32(0), uint32(0), uint32(0))  # <- fault
    wgmma_commit_group()
    wgmma_wait_group_n64(sums, 0)
    for j in range(32):
        out[i, j] = sums[j]


@wrong(
    faults.OutOfRange, source="NVIDIA/cutlass: GmmaDescriptor, fields of 14 bits in units of 16 bytes",
    block=128, args=square,
    expect=lambda words, out: [(np.isfinite(out), True)],
    names=("leading 16384 bytes, stride 2048 bytes", "look like bytes, and the unit is 16"),
    hardware="guarded",
)  # fmt: skip
def descriptor_with_offsets_in_bytes(words, out):
    """The descriptor is made by hand, and its offsets are in bytes in place of units of 16."""
    tile = cuda.shared.array(512, uint32, alignment=128)
    sums, i = cuda.local.array(32, float32), int32(cuda.threadIdx.x)
    for j in range(i, 512, 128):
        row, word = j // 8, j % 8
        tile[row // 8 * 32 + word // 4 * 256 + row % 8 * 4 + word % 4] = words[row, word]
    fence_proxy_async()
    cuda.syncthreads()
    place = shared_address(tile)
    leading, stride = uint64(1024), uint64(128)  # cure: leading, stride = uint64(1024 >> 4), uint64(128 >> 4)
    d = uint64(place) >> uint64(4) | leading << uint64(16) | stride << uint64(32)
    wgmma_fence()
    wgmma_m64n64k16_f16(sums, d, d, uint32(0), uint32(0), uint32(0))  # <- fault
    wgmma_commit_group()
    wgmma_wait_group_n64(sums, 0)
    for j in range(32):
        out[i, j] = sums[j]


@wrong(
    faults.BadMatrixDescriptor, source="NVIDIA/cutlass: one descriptor for a warpgroup", block=128, args=square,
    expect=lambda words, out: [(np.isfinite(out), True)],
    names=("threads 0-31 say start", "threads 32-63 start", "and not of a thread's or warp's number"),
    hardware="guarded",
)  # fmt: skip
def descriptor_of_each_warp(words, out):
    """Each warp names its own 16 rows as the matrix, as it would for mma.sync."""
    tile = cuda.shared.array(512, uint32, alignment=128)
    sums, i = cuda.local.array(32, float32), int32(cuda.threadIdx.x)
    for j in range(i, 512, 128):
        row, word = j // 8, j % 8
        tile[row // 8 * 64 + word // 4 * 32 + row % 8 * 4 + word % 4] = words[row, word]
    fence_proxy_async()
    cuda.syncthreads()
    place, warp = shared_address(tile), i // WARP  # cure: place, warp = shared_address(tile), 0
    b = wgmma_descriptor(place, uint32(128), uint32(256), uint32(0), uint32(0))
    a = wgmma_descriptor(place + uint32(512 * warp), uint32(128), uint32(256), uint32(0), uint32(0))
    wgmma_fence()
    wgmma_m64n64k16_f16(sums, a, b, uint32(0), uint32(0), uint32(0))  # <- fault
    wgmma_commit_group()
    wgmma_wait_group_n64(sums, 0)
    for j in range(32):
        out[i, j] = sums[j]


# --- stages -----------------------------------------------------------------------------------------
@wrong(
    faults.ReadAfterRelease, source="Dao-AILab/flash-attention pull request 2033: early releases", block=96,
    args=tiles(8, 96), expect=doubled_ends, names=("empty", "gave the stage back"),
)  # fmt: skip
def releases_and_reads_on(data: u64, out: u64):
    """Two warps give the stage back, and read one more number of it; the producer is two stages ahead."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    full = cuda.shared.array(2, uint64)
    empty = cuda.shared.array(2, uint64)
    fulls, empties, i = shared_address(full), shared_address(empty), int32(cuda.threadIdx.x)
    if i == 0:
        for s in range(2):
            mbarrier_init(fulls + uint32(8 * s), 1)
            mbarrier_init(empties + uint32(8 * s), 64)
        fence_mbarrier_init()
    cuda.syncthreads()
    if i == 0:
        for t in range(2 * TILES):
            bar = fulls + uint32(8 * (t % 2))
            mbarrier_wait(empties + uint32(8 * (t % 2)), t // 2 & 1 ^ 1)
            fence_proxy_async()
            mbarrier_arrive_expect_tx(bar, BYTES)
            place = shared_at(shared_address(tile), t % 2, BYTES)
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)
    elif i >= WARP:
        total = uint32(0)
        for t in range(2 * TILES):
            mbarrier_wait(fulls + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, i % WARP]
            mbarrier_arrive(empties + uint32(8 * (t % 2)))  # cure: pass
            total += tile[t % 2, WARP - 1 - i % WARP]  # <- fault
            # cure: mbarrier_arrive(empties + uint32(8 * (t % 2)))
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.ReadAfterRelease, source="triton-lang/triton pull request 10922: an arrival for a warp", block=64,
    args=tiles(8), expect=sum_of_tiles, names=("empty", "thread 32", "syncwarp"),
)  # fmt: skip
def one_lane_releases_too_soon(data: u64, out: u64):
    """One lane gives the stage back for its warp, whose other lanes may not have read."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    full = cuda.shared.array(2, uint64)
    empty = cuda.shared.array(2, uint64)
    fulls, empties, i = shared_address(full), shared_address(empty), int32(cuda.threadIdx.x)
    if i == 0:
        for s in range(2):
            mbarrier_init(fulls + uint32(8 * s), 1)
            mbarrier_init(empties + uint32(8 * s), 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    if i == 0:
        for t in range(2 * TILES):
            bar = fulls + uint32(8 * (t % 2))
            mbarrier_wait(empties + uint32(8 * (t % 2)), t // 2 & 1 ^ 1)
            fence_proxy_async()
            mbarrier_arrive_expect_tx(bar, BYTES)
            place = shared_at(shared_address(tile), t % 2, BYTES)
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)
    elif i >= WARP:
        total = uint32(0)
        for t in range(2 * TILES):
            mbarrier_wait(fulls + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, i % WARP]
            # cure: cuda.syncwarp()
            if i == WARP:
                mbarrier_arrive(empties + uint32(8 * (t % 2)))  # <- fault
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.TooManyArrivals, faults.UnobservedPhase,
    source="NVIDIA/cutlass: producer_acquire and the copy are one thread's", block=64, **RING,
    names=("Thread 0 waits for the stage", "thread 1 fills it", "syncwarp() between"), hardware="guarded",
)  # fmt: skip
def one_lane_waits_another_issues(data: u64, out: u64):
    """X"""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, WARP)
    if i < WARP:
        for t in range(2 * TILES):
            bar, place = full + uint32(8 * (t % 2)), shared_address(tile) + uint32(BYTES * (t % 2))
            if i == 0:
                mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
            # cure: cuda.syncwarp()
            if i == 1:
                mbarrier_arrive_expect_tx(bar, BYTES)  # <- fault
                cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)
            cuda.syncwarp()
    else:
        for t in range(2 * TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, i - WARP]
            fence_proxy_async()
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.CopyCollision, faults.RefillRace,
    source="NVIDIA/cutlass: producer_acquire and the copy are one thread's", block=64, **RING,
    names=("Thread 0 waits for the stage", "thread 1 fills it", "let one thread wait and issue"),
    hardware="guarded",
)  # fmt: skip
def one_lane_arms_another_issues(data: u64, out: u64):
    """One lane waits and arms the stage, and another one fills it, behind a syncwarp that comes too early."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, WARP)
    if i < WARP:
        for t in range(2 * TILES):
            bar, place = full + uint32(8 * (t % 2)), shared_address(tile) + uint32(BYTES * (t % 2))
            cuda.syncwarp()
            if i == 0:
                mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
                mbarrier_arrive_expect_tx(bar, BYTES)
                # cure: cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)
            if i == 1:
                cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)  # cure: pass  # <- fault
    else:
        for t in range(2 * TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, i - WARP]
            fence_proxy_async()
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.TooManyArrivals, faults.UnobservedPhase,
    source="Dao-AILab/flash-attention: stages and parities of a ring", block=64, **RING,
    names=("t // 2 & 1", "t % 2", "after 2 uses, and not after 3"), hardware="guarded",
)  # fmt: skip
def producer_divides_by_three(data: u64, out: u64):
    """The parity of the wait for an empty stage changes after three uses, in a ring of two stages."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, WARP)
    if i < WARP:
        for t in range(2 * TILES):
            bar, place = full + uint32(8 * (t % 2)), shared_address(tile) + uint32(BYTES * (t % 2))
            if i == 0:
                # cure: mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
                mbarrier_wait(bar + uint32(16), t // 3 & 1 ^ 1)  # cure: pass  # <- fault
                mbarrier_arrive_expect_tx(bar, BYTES)
                cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)
    else:
        for t in range(2 * TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, i - WARP]
            fence_proxy_async()
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.FreshBarrierPassed, faults.MissingArrivals,
    source="Dao-AILab/flash-attention: stages and parities of a ring", block=64, **RING,
    names=("t // 2 & 1", "t % 2", "after 2 uses, and not after 1"), hardware="guarded",
)  # fmt: skip
def consumer_divides_by_one(data: u64, out: u64):
    """The parity of the wait for a full stage changes after each use, in a ring of two stages."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, WARP)
    if i < WARP:
        for t in range(2 * TILES):
            bar, place = full + uint32(8 * (t % 2)), shared_address(tile) + uint32(BYTES * (t % 2))
            if i == 0:
                mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
                mbarrier_arrive_expect_tx(bar, BYTES)
                cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)
    else:
        for t in range(2 * TILES):
            # cure: mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            mbarrier_wait(full + uint32(8 * (t % 2)), t & 1)  # cure: pass  # <- fault
            total += tile[t % 2, i - WARP]
            fence_proxy_async()
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.CopyCollision,
    source="NVIDIA/cutlass: one index for the barriers and the memory of a stage", block=64, **RING,
    names=("what signals bars[1] goes to", "what signals bars[0] goes", "one stage index"), hardware="guarded",
)  # fmt: skip
def fills_one_stage_for_both(data: u64, out: u64):
    """The barriers go by the stage, and the memory that is filled does not."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, WARP)
    if i == 0:
        for t in range(2 * TILES):
            bar = full + uint32(8 * (t % 2))
            mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
            mbarrier_arrive_expect_tx(bar, BYTES)
            # cure: place = shared_address(tile) + uint32(BYTES * (t % 2))
            place = shared_address(tile)  # cure: pass
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)  # <- fault
    elif i >= WARP:
        for t in range(2 * TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, i - WARP]
            fence_proxy_async()
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.InFlightRead,
    source="NVIDIA/cutlass: one index for the barriers and the memory of a stage", block=64, **RING,
    names=("Wait on bars[1]", "was on bars[0]", "Or read what that one brings, from tile[byte 0] on"),
    hardware="guarded",
)  # fmt: skip
def reads_the_other_stage(data: u64, out: u64):
    """The consumer waits for a stage, and reads the other one."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, WARP)
    if i == 0:
        for t in range(2 * TILES):
            bar = full + uint32(8 * (t % 2))
            mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
            mbarrier_arrive_expect_tx(bar, BYTES)
            place = shared_address(tile) + uint32(BYTES * (t % 2))
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)
    elif i >= WARP:
        for t in range(2 * TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[(t + 1) % 2, i - WARP]  # cure: total += tile[t % 2, i - WARP]  # <- fault
            fence_proxy_async()
            mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.UnobservedPhase, faults.TooManyArrivals,
    source="NVIDIA/cutlass: one index for the barriers and the memory of a stage", block=64, **RING,
    names=("waits on bars[0] and bars[1] and arrives on bars[2] alone", "by the index of the others"),
    hardware="guarded",
)  # fmt: skip
def gives_one_stage_back_for_both(data: u64, out: u64):
    """The consumer waits by the stage, and gives the first one back each time."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    bars = cuda.shared.array(4, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    start_ring(full, WARP)
    if i == 0:
        for t in range(2 * TILES):
            bar = full + uint32(8 * (t % 2))
            mbarrier_wait(bar + uint32(16), t // 2 & 1 ^ 1)
            mbarrier_arrive_expect_tx(bar, BYTES)
            place = shared_address(tile) + uint32(BYTES * (t % 2))
            cp_async_bulk_load(place, data + uint64(BYTES * t), BYTES, bar)
    elif i >= WARP:
        for t in range(2 * TILES):
            mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
            total += tile[t % 2, i - WARP]
            fence_proxy_async()
            # cure: mbarrier_arrive(full + uint32(16 + 8 * (t % 2)))
            mbarrier_arrive(full + uint32(16))  # cure: pass  # <- fault
        st_global_b32(out + uint64(4 * i), uint32(total))

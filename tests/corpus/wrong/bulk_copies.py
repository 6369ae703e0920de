"""Plain bulk copies: sizes, addresses, and what they touch besides."""

import numpy as np
from base import wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import ld_global_b32, shared_address, st_global_b32
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_load,
    cp_async_bulk_store,
    cp_async_bulk_wait_group,
)
from numba_deform.engines import faults

WARP, BYTES = 32, 128
WORDS = 2 * WARP


def words(*counts):
    """Arguments: arrays of that many numbers, the first 0, 1, 2, .., the others zeros."""
    return lambda: [np.arange(counts[0], dtype=np.uint32), *(np.zeros(n, np.uint32) for n in counts[1:])]


@wrong(
    faults.Misaligned, source="NVIDIA/cccl pull request 3198: alignment of a buffer", args=words(36, 32),
    hardware="guarded",
)  # fmt: skip
def source_aligned_for_a_word(data: u64, out: u64):
    """The row begins at the second word of the array. A bulk copy's addresses are multiples of 16."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_load(shared_address(tile), data + uint64(4), BYTES, full)  # <- fault
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(
    faults.Misaligned, source="NVIDIA/Fuser issue 3602", args=words(32, 32), shared_bytes=256,
    hardware="guarded",
)  # fmt: skip
def destination_behind_a_barrier(data: u64, out: u64):
    """The barrier takes 8 bytes of dynamic shared memory and the row begins right behind it."""
    area = cuda.shared.array(0, uint32)
    full, i = shared_address(area), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_load(full + uint32(8), data, BYTES, full)  # <- fault
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), area[2 + i])


@wrong(faults.OutOfRange, source="CUDA guide, bulk copies have no bounds", args=words(48, 64), hardware="no")
def last_row_is_shorter(data: u64, out: u64):
    """Rows of 32 numbers are copied, and the array ends in the middle of the second. Unlike a tensor copy, a
    bulk copy does not clip: it reads what lies behind."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, 2 * BYTES)
        for row in range(2):
            slot = shared_address(tile) + uint32(BYTES * row)
            cp_async_bulk_load(slot, data + uint64(BYTES * row), BYTES, full)  # <- fault
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), uint32(tile[i] + tile[WARP + i]))


@wrong(faults.OutOfRange, source="CUDA guide, bulk copies have no bounds", args=words(32, 24), hardware="no")
def store_behind_the_end(data: u64, out: u64):
    """32 numbers are stored into an array of 24: the others go into whatever lies behind it."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    tile[i] = ld_global_b32(data + uint64(4 * i))
    fence_proxy_async()
    cuda.syncwarp()
    if i == 0:
        cp_async_bulk_store(out, shared_address(tile), BYTES)  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


@wrong(
    faults.OutOfRange, source="CUDA guide, static shared memory", args=words(64, 32), block=32,
    hardware="guarded",
)  # fmt: skip
def copy_over_two_arrays(data: u64, out: u64):
    """One copy of 256 bytes goes into an array of 128: the second half lands in another array of the block,
    where nobody expects it."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    other = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    other[i] = uint32(1)
    fence_proxy_async()
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    if i == 0:
        mbarrier_arrive_expect_tx(full, 2 * BYTES)
        cp_async_bulk_load(shared_address(tile), data, 2 * BYTES, full)  # <- fault
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), uint32(tile[i] + other[i]))


@wrong(faults.DataRace, faults.CopyCollision, source="CUDA guide, bulk copies", grid=2, args=words(64, 48))
def rows_that_overlap(data: u64, out: u64):
    """Blocks store rows of 32 numbers at a distance of 16."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    tile[i] = ld_global_b32(data + uint64(4 * (i + 32 * block)))
    fence_proxy_async()
    cuda.syncwarp()
    if i == 0:
        cp_async_bulk_store(out + uint64(64 * block), shared_address(tile), BYTES)  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


@wrong(faults.DataRace, source="PTX ISA 8.9.1.1, asynchronous operations", args=words(32, 32))
def source_changed_under_the_copy(data: u64, out: u64):
    """The next input is written over the one that a bulk copy is still reading."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_load(shared_address(tile), data, BYTES, full)
    cuda.syncthreads()
    st_global_b32(data + uint64(4 * i), uint32(0))  # <- fault
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(faults.DataRace, source="FastVideo pull request 735: a store still in flight", args=words(32, 32))
def result_changed_after_the_store(data: u64, out: u64):
    """A row is stored by the copy engine, and one element of it patched by an ordinary store before the group
    has been waited for: either may win."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    tile[i] = ld_global_b32(data + uint64(4 * i))
    fence_proxy_async()
    cuda.syncwarp()
    if i == 0:
        cp_async_bulk_store(out, shared_address(tile), BYTES)
        cp_async_bulk_commit_group()
        st_global_b32(out, uint32(99))  # <- fault
        cp_async_bulk_wait_group(0)


@wrong(faults.BadSize, source="tilelang pull request 2683: sizes known at run time", args=words(32, 32))
def store_of_eight_bytes(data: u64, out: u64):
    """The remainder comes out as 8 bytes for the last row, which is no multiple of 16."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    tile[i] = ld_global_b32(data + uint64(4 * i))
    fence_proxy_async()
    cuda.syncwarp()
    if i == 0:
        rest = uint32(8 * cuda.gridDim.x)
        cp_async_bulk_store(out, shared_address(tile), rest)  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)

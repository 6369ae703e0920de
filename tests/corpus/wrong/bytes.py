"""Transaction bytes: what a barrier is told to expect, and what its copies bring."""

import numpy as np
from base import wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_expect_tx,
    mbarrier_init,
)
from numba_deform.device.memory import shared_address, st_global_b32
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init
from numba_deform.device.tma import (
    cp_async_bulk_load,
    cp_async_bulk_tensor_2d,
    fence_proxy_tensormap_acquire_sys,
)
from numba_deform.engines import faults
from numba_deform.engines.tensormap import TensorMap, TensorMapArray

WARP, BYTES = 32, 128
WORDS = 2 * WARP


def tiles(count=2):
    """Arguments: that many tiles of 32 numbers, and room for 64."""
    return lambda: [np.arange(WARP * count, dtype=np.uint32), np.zeros(WORDS, np.uint32)]


def mapped(rows, box):
    """Arguments: a map of ``rows`` rows of 8 numbers, these, and room for 64."""

    def make():
        data = np.arange(8 * rows, dtype=np.uint32).reshape(rows, 8)
        return [TensorMapArray([TensorMap.of(data, box)]), data, np.zeros(WORDS, np.uint32)]

    return make


@wrong(
    faults.MoreBytesThanExpected, source="tilelang pull request 241",
    args=tiles(), hardware="guarded",
)  # fmt: skip
def expects_nothing(data: u64, out: u64):
    """The barrier is arrived at plainly, and nobody says how many bytes are to come: the phase ends without
    them."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        cp_async_bulk_load(shared_address(tile), data, BYTES, full)  # <- fault
        mbarrier_arrive(full)
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(
    faults.MoreBytesThanExpected, source="triton pull request 9046",
    args=tiles(), hardware="guarded",
)  # fmt: skip
def expects_one_of_two_copies(data: u64, out: u64):
    """Two operands complete on one barrier, and the bytes of the first alone are expected."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, BYTES)  # <- fault
        cp_async_bulk_load(shared_address(tile), data, BYTES, full)
        cp_async_bulk_load(shared_address(tile) + uint32(BYTES), data + uint64(BYTES), BYTES, full)
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), uint32(tile[i] + tile[WARP + i]))


@wrong(
    faults.MissingBytes, source="NVIDIA/cutlass, PipelineTmaAsync: transaction bytes are bytes", args=tiles(),
    hardware="guarded",
)  # fmt: skip
def bytes_of_a_wider_type(data: u64, out: u64):
    """The bytes are those of 32 numbers of eight bytes; they have four."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, 8 * WARP)
        cp_async_bulk_load(shared_address(tile), data, BYTES, full)
    cuda.syncthreads()
    mbarrier_wait(full, 0)  # <- fault
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(
    faults.MoreBytesThanExpected, source="PTX ISA 5.5.4, out-of-bound accesses",
    args=mapped(6, (8, 8)), hardware="guarded",
)  # fmt: skip
def expects_what_lies_inside(maps: u64, data: u64, out: u64):
    """The box overhangs the tensor by two rows, and only the other six are expected: zeros count too."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(maps)
        mbarrier_arrive_expect_tx(full, 6 * 8 * 4)  # <- fault
        cp_async_bulk_tensor_2d(shared_address(tile), maps, 0, 0, full)
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(faults.UnobservedPhase, source="NVIDIA/cutlass, ClusterTransactionBarrier", args=tiles())
def expects_after_the_arrival(data: u64, out: u64):
    """The only arrival is made before the bytes are expected: the phase is complete at once, and the bytes
    belong to the next."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        mbarrier_arrive(full)
        mbarrier_expect_tx(full, BYTES)  # <- fault
        cp_async_bulk_load(shared_address(tile), data, BYTES, full)
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(
    faults.MissingBytes, source="NVIDIA/Fuser issue 4813: predicates of copies", args=tiles(),
    hardware="guarded",
)  # fmt: skip
def copy_skipped_bytes_expected(data: u64, out: u64):
    """The second copy is left out where there is no second row, and its bytes are expected all the same."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, 2 * BYTES)
        for row in range(2):
            if row < cuda.gridDim.x:
                slot = shared_address(tile) + uint32(BYTES * row)
                cp_async_bulk_load(slot, data + uint64(BYTES * row), BYTES, full)
    cuda.syncthreads()
    mbarrier_wait(full, 0)  # <- fault
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(
    faults.MissingBytes, source="NVIDIA/Fuser pull request 3814: who elects, issues", block=64,
    args=tiles(), hardware="guarded",
)  # fmt: skip
def both_producers_expect_all(data: u64, out: u64):
    """Two warps load half of a stage each, and each expects the bytes of the whole."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 2)
        fence_mbarrier_init()
    cuda.syncthreads()
    if i % WARP == 0:
        half = 4 * i
        mbarrier_arrive_expect_tx(full, 2 * BYTES)
        cp_async_bulk_load(shared_address(tile) + uint32(half), data + uint64(half), BYTES, full)
    mbarrier_wait(full, 0)  # <- fault
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(
    faults.BadCount, source="PTX ISA 9.7.13.15.2; NVIDIA/cccl pull request 358", args=tiles(),
    hardware="guarded",
)  # fmt: skip
def expects_a_megabyte(data: u64, out: u64):
    """A tx-count holds at most 2^20 - 1 bytes; a whole matrix is expected at once."""
    bars = cuda.shared.array(1, uint64)
    bar, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(bar, 1 << 20)  # <- fault
    cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), uint32(1))


@wrong(faults.BadSize, source="tile-ai/tilelang issue 2506", args=tiles(4), hardware="guarded")
def bulk_size_no_multiple_of_16(data: u64, out: u64):
    """127 floats are 508 bytes. A bulk copy has a multiple of 16; an H100 never completes this one."""
    tile = cuda.shared.array(128, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, 508)
        cp_async_bulk_load(shared_address(tile), data, 508, full)  # <- fault
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i])

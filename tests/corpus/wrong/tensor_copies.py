"""Tensor copies: corners, boxes, maps, and tiles that overlap."""

import numpy as np
from base import wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import i32, u64
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import shared_address, st_global_b32
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_tensor_2d,
    cp_async_bulk_tensor_2d_store,
    cp_async_bulk_tensor_3d,
    cp_async_bulk_wait_group,
    cp_async_bulk_wait_group_read,
    fence_proxy_tensormap_acquire_sys,
)
from numba_deform.engines import faults
from numba_deform.engines.tensormap import TensorMap, TensorMapArray

WARP, BYTES = 32, 128  # of a box of 4 rows of 8 numbers
WORDS = 2 * WARP


def image(*numbers, rows=8, columns=16, box=(8, 4)):
    """Arguments: a map of an image, the image, room for 64 numbers, and ``numbers``."""

    def make():
        data = np.arange(rows * columns, dtype=np.uint32).reshape(rows, columns)
        maps = TensorMapArray([TensorMap.of(data, box)])
        return [maps, data, np.zeros(WORDS, np.uint32), *numbers]

    return make


# --- where a box may begin ----------------------------------------------------------------------------
@wrong(faults.MisalignedBox, source="triton-lang/triton issue 7385", args=image(3, 1), hardware="guarded")
def corner_between_16_bytes(maps: u64, data: u64, out: u64, x: i32, y: i32):
    """The box begins at column 3: innermost coordinates are multiples of 16 bytes, and anything else ends the
    kernel as an illegal instruction."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(maps)
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), maps, x, y, full)  # <- fault
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(
    faults.MisalignedBox, source="tile-ai/tilelang pull request 2681", args=image(-1, -1),
    hardware="guarded",
)  # fmt: skip
def corner_before_the_first_column(maps: u64, data: u64, out: u64, x: i32, y: i32):
    """A window of a convolution begins one element before the image. The rows may, the columns may not: -1 is
    no multiple of 16 bytes either."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(maps)
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), maps, x, y, full)  # <- fault
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(faults.MisalignedBox, source="tilelang issue 2527; triton issue 8657", args=image(1, 0))
def store_of_a_shifted_tile(maps: u64, data: u64, out: u64, x: i32, y: i32):
    """The tile is stored one column to the right: a store's corner obeys the same rule."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    tile[i] = uint32(i)
    fence_proxy_async()
    cuda.syncwarp()
    if i == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        cp_async_bulk_tensor_2d_store(maps, x, y, shared_address(tile))  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


@wrong(
    faults.OutOfRange, source="facebookexperimental/triton pull request 1318", args=image(0, -1),
)  # fmt: skip
def store_that_begins_above_the_image(maps: u64, data: u64, out: u64, x: i32, y: i32):
    """A store may overhang the end of the tensor and may not begin before it: an illegal instruction."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    tile[i] = uint32(i)
    fence_proxy_async()
    cuda.syncwarp()
    if i == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        cp_async_bulk_tensor_2d_store(maps, x, y, shared_address(tile))  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


# --- the box in shared memory -------------------------------------------------------------------------
@wrong(
    faults.OutOfRange, source="NVIDIA/cutlass issue 2233", args=image(box=(8, 8)), hardware="no",
)  # fmt: skip
def box_larger_than_its_tile(maps: u64, data: u64, out: u64):
    """The map's box has eight rows, and the tile has room for four: the others overwrite what is behind."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(maps)
        mbarrier_arrive_expect_tx(full, 2 * BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), maps, 0, 0, full)  # <- fault
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(
    faults.OutOfRange, source="CUDA guide, static shared memory", args=image(box=(8, 8)), hardware="guarded",
)  # fmt: skip
def box_runs_into_the_next_array(maps: u64, data: u64, out: u64):
    """As above, where what lies behind the tile is the block's own: a second tile, which is replaced."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    other = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    other[i] = uint32(7)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
    fence_proxy_async()
    cuda.syncthreads()
    if i == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        mbarrier_arrive_expect_tx(full, 2 * BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), maps, 0, 0, full)  # <- fault
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), uint32(tile[i] + other[i]))


@wrong(
    faults.Misaligned, source="NVIDIA/Fuser issue 3602", args=image(), shared_bytes=512, hardware="guarded",
)  # fmt: skip
def tile_behind_the_barrier(maps: u64, data: u64, out: u64):
    """The barrier takes the first 8 bytes of dynamic shared memory and the tile begins at the 16th; a tensor
    copy's tile begins at a multiple of 128."""
    area = cuda.shared.array(0, uint32)
    full, i = shared_address(area), int32(cuda.threadIdx.x)
    tile = full + uint32(16)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(maps)
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_tensor_2d(tile, maps, 0, 0, full)  # <- fault
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), area[4 + i])


@wrong(faults.UninitialisedRead, source="MoonshotAI/FlashKDA issue 24: stale rows stored", args=image())
def stores_rows_that_nobody_wrote(maps: u64, data: u64, out: u64):
    """Two of the box's four rows have been written, and all four lie inside the image: it gets garbage too."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    if i < 16:
        tile[i] = uint32(i)
    fence_proxy_async()
    cuda.syncwarp()
    if i == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        cp_async_bulk_tensor_2d_store(maps, 0, 0, shared_address(tile))  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


# --- maps ---------------------------------------------------------------------------------------------
@wrong(faults.BadTensorMap, source="triton-lang/triton issue 8657", args=image(), hardware="guarded")
def instruction_of_another_rank(maps: u64, data: u64, out: u64):
    """The map has two dimensions, and the instruction is that for three."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(maps)
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_tensor_3d(shared_address(tile), maps, 0, 0, 0, full)  # <- fault
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(
    faults.BadTensorMap, source="sgl-project/sglang pull request 20611: descriptors of zeros", args=image(),
    hardware="guarded",
)  # fmt: skip
def data_instead_of_the_map(maps: u64, data: u64, out: u64):
    """The arguments are mixed up, and the image's own address goes in as that of its map."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), data, 0, 0, full)  # <- fault
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


# --- tiles of several threads and blocks --------------------------------------------------------------
@wrong(faults.DataRace, faults.CopyCollision, source="halide/Halide issue 5430", grid=2, args=image())
def overlapping_stores_of_two_blocks(maps: u64, data: u64, out: u64):
    """Blocks store four rows each, and begin two rows apart: the middle belongs to whoever comes last."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    tile[i] = uint32(cuda.blockIdx.x)
    fence_proxy_async()
    cuda.syncwarp()
    if i == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        cp_async_bulk_tensor_2d_store(maps, 0, 2 * int32(cuda.blockIdx.x), shared_address(tile))  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


@wrong(faults.DataRace, faults.CopyCollision, source="NVIDIA/Fuser pull request 3814", block=64, args=image())
def every_warp_stores_the_tile(maps: u64, data: u64, out: u64):
    """The store is not left to one thread of the block: one of each warp issues it, into the same place."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    tile[i] = uint32(i)
    fence_proxy_async()
    cuda.syncthreads()
    if i % WARP == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        cp_async_bulk_tensor_2d_store(maps, 0, 0, shared_address(tile) + uint32(4 * i))  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


@wrong(faults.DataRace, faults.InFlightRead, source="TileOPs issue 1729", grid=2, args=image())
def loads_a_tile_that_another_block_stores(maps: u64, data: u64, out: u64):
    """Block 0 stores its tile through the map and block 1 loads it, with nothing between the two."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if cuda.blockIdx.x == 0:
        tile[i] = uint32(i)
        fence_proxy_async()
        cuda.syncwarp()
        if i == 0:
            fence_proxy_tensormap_acquire_sys(maps)
            cp_async_bulk_tensor_2d_store(maps, 0, 0, shared_address(tile))  # <- fault
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group(0)
    else:
        if i == 0:
            mbarrier_init(full, 1)
            fence_mbarrier_init()
            fence_proxy_tensormap_acquire_sys(maps)
            mbarrier_arrive_expect_tx(full, BYTES)
            cp_async_bulk_tensor_2d(shared_address(tile), maps, 0, 0, full)  # <- fault
        cuda.syncthreads()
        mbarrier_wait(full, 0)
        st_global_b32(out + uint64(4 * i), tile[i])


@wrong(faults.DataRace, faults.InFlightRead, source="PTX ISA 9.7.9.25.6.2: what .read waits for", args=image())
def loads_back_after_a_wait_for_the_reads(maps: u64, data: u64, out: u64):
    """wait_group.read says that shared memory has been read, not that global memory has been written: a load of
    the same tile may get the old one."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    tile[i] = uint32(i)
    fence_proxy_async()
    cuda.syncwarp()
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(maps)
        cp_async_bulk_tensor_2d_store(maps, 0, 0, shared_address(tile))
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group_read(0)
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), maps, 0, 0, full)  # <- fault
        mbarrier_wait(full, 0)
        cp_async_bulk_wait_group(0)
    cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(faults.TooManyArrivals, source="tilelang pull request 1396", args=image(), hardware="guarded")
def every_lane_loads_the_tile(maps: u64, data: u64, out: u64):
    """Nobody is elected: all lanes arm the barrier, which expects one arrival, and issue the copy."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
    fence_proxy_tensormap_acquire_sys(maps)
    cuda.syncthreads()
    mbarrier_arrive_expect_tx(full, BYTES)  # <- fault
    cp_async_bulk_tensor_2d(shared_address(tile), maps, 0, 0, full)  # <- fault
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


# --- the same where the kernel knows the image by its map alone ---------------------------------------
def map_alone():
    """Arguments: a map of an image of 8 rows of 16 numbers."""
    maps, *_ = image()()
    return [maps]


@wrong(faults.DataRace, faults.CopyCollision, source="halide/Halide issue 5430", grid=2, args=map_alone)
def blocks_store_over_each_other(maps: u64):
    """Blocks store four rows each, and begin two rows apart. Nothing but the map says where that is."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    tile[i] = uint32(cuda.blockIdx.x)
    fence_proxy_async()
    cuda.syncwarp()
    if i == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        cp_async_bulk_tensor_2d_store(maps, 0, 2 * int32(cuda.blockIdx.x), shared_address(tile))  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


@wrong(faults.DataRace, faults.InFlightRead, source="TileOPs issue 1729", grid=2, args=map_alone)
def block_loads_what_its_neighbour_stores(maps: u64):
    """Each block loads the neighbour's half of the rows, changes it, and stores it into its own: the load may
    get the old rows or the new ones."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(maps)
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), maps, 0, 4 * (1 - block), full)  # <- fault
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    tile[i] += uint32(1)
    fence_proxy_async()
    cuda.syncwarp()
    if i == 0:
        cp_async_bulk_tensor_2d_store(maps, 0, 4 * block, shared_address(tile))  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


@wrong(faults.DataRace, faults.CopyCollision, source="NVIDIA/Fuser pull request 3814", block=64, args=map_alone)
def two_threads_store_over_each_other(maps: u64):
    """Two warps store a tile of their own, and the second one's rows begin in the middle of the first one's."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    tile[i] = uint32(i)
    fence_proxy_async()
    cuda.syncwarp()
    if i % WARP == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        cp_async_bulk_tensor_2d_store(maps, 0, i // 16, shared_address(tile) + uint32(4 * i))  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)

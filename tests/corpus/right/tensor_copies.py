"""Tensor copies: boxes that stick out, stores that clip, swizzles, views, and maps of many kinds."""

import numpy as np
from base import right
from numba import cuda, int32, uint8, uint32, uint64

from numba_deform.compiler import i32, u64
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import (
    align_up,
    ld_shared_b32,
    shared_address,
    st_global_b32,
    st_shared_b32,
    st_shared_v4,
)
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_tensor_1d,
    cp_async_bulk_tensor_2d,
    cp_async_bulk_tensor_2d_store,
    cp_async_bulk_tensor_3d,
    cp_async_bulk_tensor_4d,
    cp_async_bulk_wait_group,
    cp_async_bulk_wait_group_read,
    fence_proxy_tensormap_acquire_sys,
    prefetch_tensormap,
)
from numba_deform.engines.tensormap import TensorMap, TensorMapArray

WIDTH, HEIGHT, BOX, ROWS = 16, 6, 8, 4
WORDS, BYTES = BOX * ROWS, 4 * BOX * ROWS
TWO_BOXES = 2 * BYTES
STAGE, RING = 384, 896  # a stage of three rows of 128 bytes; two of them behind 128 bytes of something else


def image(height=HEIGHT, width=WIDTH, dtype=np.float32):
    return np.arange(1, height * width + 1, dtype=dtype).reshape(height, width)


def padded(array, x, y, fill=0):
    """The box at (x, y), with what lies outside."""
    around = np.pad(array, 32, constant_values=fill)
    return around[32 + y : 32 + y + ROWS, 32 + x : 32 + x + BOX]


@cuda.jit(device=True)
def barrier_and_map(bar, map):
    """One thread initialises the barrier and fences the map; the block waits for it."""
    if cuda.threadIdx.x == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(map)
    cuda.syncthreads()


def maps_and(box, count, **options):
    """Arguments: one map of a fresh image, and an output of float bits."""
    return lambda: [TensorMapArray([TensorMap.of(image(), box, **options)]), np.zeros(count, np.float32)]


@right(
    source="PTX ISA, tensors: out-of-bound boxes; CUDA C++ Programming Guide, TMA: negative and overhanging "
           "corners",
    args=maps_and((BOX, ROWS), 4 * WORDS),
    expect=lambda maps, out: [(out.reshape(4, ROWS, BOX), [padded(maps[0].array, x, y) for x, y in
                                                           ((-4, -1), (12, 4), (-4, 4), (16, 0))])],
)  # fmt: skip
def boxes_over_the_border(maps: u64, out: u64):
    """Four boxes: before the first corner, past the last, one of each, and one that lies beside the image
    altogether. What is outside arrives as zero, and counts towards the bytes of the barrier."""
    tile = cuda.shared.array(BYTES, uint8, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    lane = int32(cuda.threadIdx.x)
    barrier_and_map(bar, maps)
    for k in range(4):
        x = int32(-4 if k % 2 == 0 else 12 + 4 * (k // 3))
        y = int32(-1 if k == 0 else 0 if k == 3 else 4)
        if lane == 0:
            mbarrier_arrive_expect_tx(bar, BYTES)
            cp_async_bulk_tensor_2d(shared_address(tile), maps, x, y, bar)
        mbarrier_wait(bar, uint32(k & 1))
        word = ld_shared_b32(shared_address(tile) + uint32(4 * lane))
        st_global_b32(out + uint64(4 * (WORDS * k + lane)), word)
        fence_proxy_async()
        cuda.syncwarp()


@right(
    source="PTX ISA, cp.async.bulk.tensor: a store writes no element outside the tensor; CUTLASS epilogues "
           "rely on it",
    args=lambda: [TensorMapArray([TensorMap.of(np.zeros((HEIGHT, WIDTH), np.uint32), (BOX, ROWS))])],
    expect=lambda maps: [(maps[0].array[4:, 12:], np.arange(8).reshape(2, 4) + 100), (maps[0].array[:4], 0),
                         (maps[0].array[4:, :12], 0)],
)  # fmt: skip
def a_store_that_clips(maps: u64):
    """The box at the last corner is half inside. Only what will be stored has been written to shared memory;
    the rest of the box was never anything."""
    tile = cuda.shared.array(BYTES, uint8, alignment=128)
    lane = int32(cuda.threadIdx.x)
    if lane < 8:
        place = shared_address(tile) + uint32(4 * (BOX * (lane // 4) + lane % 4))
        st_shared_b32(place, uint32(100 + lane))
        fence_proxy_async()
    cuda.syncwarp()
    if lane == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        cp_async_bulk_tensor_2d_store(maps, 12, 4, shared_address(tile))
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


@right(
    source="PTX ISA, swizzling modes: the pattern follows address bits; CUTLASS asks for 1024 bytes, the "
           "copy for 128",
    args=lambda: [TensorMapArray([TensorMap.of(image(6, 32), (32, 3), swizzle="128B")]),
                  np.zeros((6, 32), np.float32)],
    expect=lambda maps, out: [(out, maps[0].array)],
)  # fmt: skip
def swizzled_stages_at_128_bytes(maps: u64, out: u64):
    """Two stages of three rows of 128 bytes lie at odd multiples of 128. The reader finds a chunk by the bits
    of its own address, so the pattern starts somewhere else in each stage."""
    ring = cuda.shared.array(RING, uint8, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    lane = int32(cuda.threadIdx.x)
    barrier_and_map(bar, maps)
    first = shared_address(ring) + uint32(128)
    if lane == 0:
        mbarrier_arrive_expect_tx(bar, 2 * STAGE)
        for stage in range(2):
            cp_async_bulk_tensor_2d(first + uint32(STAGE * stage), maps, 0, 3 * stage, bar)
    mbarrier_wait(bar, 0)
    for row in range(6):
        address = uint32(first + uint32(128 * row + 4 * lane))
        address = uint32(address ^ (address >> uint32(7) & uint32(7)) << uint32(4))
        st_global_b32(out + uint64(4 * (32 * row + lane)), ld_shared_b32(address))


@right(
    source="fundamentalvision/Deformable-DETR models/ops: bilinear sampling reads 2 x 2 pixels round a "
           "point; by TMA",
    args=lambda: [TensorMapArray([TensorMap.of(image(5, 16, np.uint32).reshape(5, 4, 4), (4, 2, 2))]),
                  np.zeros((3, 2, 2, 4), np.uint32)],
    expect=lambda maps, out: [(out, [np.pad(maps[0].array, ((1, 1), (1, 1), (0, 0)))[y : y + 2, x : x + 2]
                                     for x, y in ((0, 0), (2, 3), (4, 5))])],
)  # fmt: skip
def pixels_round_a_corner(maps: u64, out: u64):
    """The channels are innermost and always complete, so the pixel's coordinates are free: -1 and the last row
    too. Three boxes of 64 bytes go to places 128 bytes apart, all on one barrier."""
    tile = cuda.shared.array(STAGE, uint8, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    lane = int32(cuda.threadIdx.x)
    barrier_and_map(bar, maps)
    if lane < 3:
        if lane == 0:
            mbarrier_arrive_expect_tx(bar, 3 * 64)
        x, y = int32(2 * lane - 1), int32(3 * lane - 1 - lane // 2)
        cp_async_bulk_tensor_3d(shared_address(tile) + uint32(128 * lane), maps, 0, x, y, bar)
    mbarrier_wait(bar, 0)
    if lane < 16:
        for k in range(3):
            word = ld_shared_b32(shared_address(tile) + uint32(128 * k + 4 * lane))
            st_global_b32(out + uint64(4 * (16 * k + lane)), word)


@right(
    source="CUDA driver API, cuTensorMapEncodeTiled: a map of a part of an array has its base and its own "
           "dimensions",
    args=lambda: [TensorMapArray([TensorMap.of(image()[2:5, 4:12], (BOX, ROWS))]),
                  np.zeros((ROWS, BOX), np.float32)],
    expect=lambda maps, out: [(out, padded(maps[0].array, 4, -1))],
)  # fmt: skip
def a_map_of_a_part_of_an_image(maps: u64, out: u64):
    """The map describes three rows of eight columns in the middle of a larger image. What the image has around
    them is outside for the map, and arrives as zero."""
    tile = cuda.shared.array(BYTES, uint8, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    lane = int32(cuda.threadIdx.x)
    barrier_and_map(bar, maps)
    if lane == 0:
        mbarrier_arrive_expect_tx(bar, BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), maps, 4, -1, bar)
    mbarrier_wait(bar, 0)
    st_global_b32(out + uint64(4 * lane), ld_shared_b32(shared_address(tile) + uint32(4 * lane)))


@right(
    source="CUDA driver API, cuTensorMapEncodeTiled: elementStrides and the NaN fill",
    args=lambda: [TensorMapArray([TensorMap.of(image(), (BOX, ROWS), element_strides=(1, 2), fill="nan")]),
                  np.zeros((2, 2, BOX), np.float32)],
    expect=lambda maps, out: [(out[0], maps[0].array[[1, 3], 4:12]), (out[1, 0], maps[0].array[5, 4:12]),
                              (np.isnan(out[1, 1]), True)],
)  # fmt: skip
def every_other_row_and_nan_outside(maps: u64, out: u64):
    """The box spans four rows and takes every second one, so it brings two. Past the last row come NaNs, which
    the kernel hands on without looking at them."""
    tile = cuda.shared.array(TWO_BOXES, uint8, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    lane = int32(cuda.threadIdx.x)
    barrier_and_map(bar, maps)
    if lane == 0:
        mbarrier_arrive_expect_tx(bar, 2 * 64)
        cp_async_bulk_tensor_2d(shared_address(tile), maps, 4, 1, bar)
        cp_async_bulk_tensor_2d(shared_address(tile) + uint32(128), maps, 4, 5, bar)
    mbarrier_wait(bar, 0)
    for k in range(2):
        if lane < 16:
            word = ld_shared_b32(shared_address(tile) + uint32(128 * k + 4 * lane))
            st_global_b32(out + uint64(4 * (16 * k + lane)), word)


@right(
    source="PTX ISA, fence.proxy.tensormap; CUTLASS tma_descriptor_fence_acquire: one warp fences, another "
           "loads",
    block=64, args=maps_and((BOX, ROWS), WORDS),
    expect=lambda maps, out: [(out, maps[0].array[:4, :8].reshape(-1))],
)  # fmt: skip
def one_thread_fences_the_map_for_another(maps: u64, out: u64):
    """Thread 0 prefetches and fences the map, and lane 3 of the other warp uses it after a syncthreads."""
    tile = cuda.shared.array(BYTES, uint8, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    if thread == 0:
        prefetch_tensormap(maps)
    barrier_and_map(bar, maps)
    if thread == 35:
        mbarrier_arrive_expect_tx(bar, BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), maps, 0, 0, bar)
    if thread < 32:
        mbarrier_wait(bar, 0)
        st_global_b32(out + uint64(4 * thread), ld_shared_b32(shared_address(tile) + uint32(4 * thread)))


@right(
    source="FlashAttention hopper/epilogue_fwd.hpp: the warps store parts of one tile",
    grid=2, block=64,
    args=lambda: [TensorMapArray([TensorMap.of(np.zeros((HEIGHT, WIDTH), np.uint32), (BOX, 2))])],
    expect=lambda maps: [(maps[0].array[:4], np.arange(64).reshape(4, WIDTH)), (maps[0].array[4:], 0)],
)  # fmt: skip
def every_warp_stores_its_own_part(maps: u64):
    """Each warp of each block writes a box, fences it and stores it by one of its lanes, with no barrier of the
    block. The boxes lie side by side; no two have an element in common."""
    tiles = cuda.shared.array(TWO_BOXES, uint8, alignment=128)
    thread = int32(cuda.threadIdx.x)
    warp, lane = thread // 32, thread % 32
    tile = uint32(shared_address(tiles) + uint32(128 * warp))
    x, y = int32(BOX * warp), int32(2 * cuda.blockIdx.x)
    if lane < 16:
        st_shared_b32(uint32(tile + uint32(4 * lane)), uint32(WIDTH * (y + lane // BOX) + x + lane % BOX))
        fence_proxy_async()
    cuda.syncwarp()
    if lane == 5:
        fence_proxy_tensormap_acquire_sys(maps)
        cp_async_bulk_tensor_2d_store(maps, x, y, uint32(tile))
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


@right(
    source="Triton and Gluon tutorials, TMA: the last tile of a one-dimensional tensor is short, and needs "
           "no mask",
    grid=2, args=lambda: [TensorMapArray([TensorMap.of(np.arange(1, 101, dtype=np.int32), (WORDS,))]), 100,
                          np.zeros((2, WORDS), np.int32)],
    expect=lambda maps, n, out: [(out.sum(), 5050), (out[0], maps[0].array[:32] + maps[0].array[64:96])],
)  # fmt: skip
def the_last_tile_is_short(maps: u64, n: i32, out: u64):
    """Two blocks go over a tensor of 100 elements in strides of two tiles of 32. The fourth tile has four
    elements and 28 zeros, which are added like the others."""
    tile = cuda.shared.array(BYTES, uint8, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    lane, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    barrier_and_map(bar, maps)
    total, parity = uint32(0), uint32(0)
    for start in range(WORDS * block, n, 2 * WORDS):
        if lane == 0:
            mbarrier_arrive_expect_tx(bar, BYTES)
            cp_async_bulk_tensor_1d(shared_address(tile), maps, start, bar)
        mbarrier_wait(bar, parity)
        parity = uint32(parity ^ uint32(1))
        total = uint32(total + ld_shared_b32(shared_address(tile) + uint32(4 * lane)))
        fence_proxy_async()
        cuda.syncwarp()
    st_global_b32(out + uint64(4 * (WORDS * block + lane)), total)


@right(
    source="open-mmlab/mmcv mmcv/ops/multi_scale_deform_attn.py: a tensor for each level, here a map for each",
    block=96,
    args=lambda: [TensorMapArray([TensorMap.of(image(h, 4, np.uint32).reshape(1, h, 1, 4), (4, 1, 2, 1))
                                  for h in (2, 3, 5)]), np.zeros((3, 8), np.uint32)],
    expect=lambda maps, out: [(out, [np.r_[m.array.reshape(-1, 4)[-1], np.zeros(4)] for m in maps.maps])],
)  # fmt: skip
def a_map_for_each_level(maps: u64, out: u64):
    """Each warp picks the map of its level by address and loads the last pixel of it, and one row that the
    level does not have. Rank 4; the boxes of all levels go to one barrier."""
    tiles = cuda.shared.array(STAGE, uint8, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    level, lane = int32(thread // 32), thread % 32
    if thread == 0:
        mbarrier_init(bar, 3)
        fence_mbarrier_init()
    cuda.syncthreads()
    tile = uint32(shared_address(tiles) + uint32(128 * level))
    if lane == 0:
        map = maps + uint64(128 * level)
        fence_proxy_tensormap_acquire_sys(map)
        last = int32(1 + level if level < 2 else 4)
        mbarrier_arrive_expect_tx(bar, 32)
        cp_async_bulk_tensor_4d(tile, map, 0, 0, last, 0, bar)
    mbarrier_wait(bar, 0)
    if lane < 8:
        st_global_b32(out + uint64(4 * (8 * level + lane)), ld_shared_b32(tile + uint32(4 * lane)))


@right(
    source="CUTLASS sm90 epilogue with C and D in one tensor: tiles are loaded, changed and stored in place",
    grid=2,
    args=lambda: [TensorMapArray([TensorMap.of(np.arange(96, dtype=np.uint32).reshape(6, 16), (BOX, ROWS))])],
    expect=lambda maps: [(maps[0].array, np.arange(96).reshape(6, 16) + 1)],
)  # fmt: skip
def tiles_are_changed_in_place(maps: u64):
    """Each block loads its two tiles one after the other, adds one and stores them where they came from. The
    second tile sticks out below, in the load as well as in the store."""
    tile = cuda.shared.array(BYTES, uint8, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    lane, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    barrier_and_map(bar, maps)
    for t in range(2):
        if lane == 0:
            cp_async_bulk_wait_group_read(0)
            mbarrier_arrive_expect_tx(bar, BYTES)
            cp_async_bulk_tensor_2d(shared_address(tile), maps, BOX * block, ROWS * t, bar)
        mbarrier_wait(bar, uint32(t))
        place = shared_address(tile) + uint32(4 * lane)
        st_shared_b32(place, uint32(ld_shared_b32(place) + uint32(1)))
        fence_proxy_async()
        cuda.syncwarp()
        if lane == 0:
            cp_async_bulk_tensor_2d_store(maps, BOX * block, ROWS * t, shared_address(tile))
            cp_async_bulk_commit_group()
    if lane == 0:
        cp_async_bulk_wait_group(0)


@right(
    source="CUDA C++ Programming Guide, TMA: dynamic shared memory has to be aligned by hand",
    shared_bytes=640, args=maps_and((BOX, ROWS), WORDS),
    expect=lambda maps, out: [(out, maps[0].array[2:6, 8:].reshape(-1))],
)  # fmt: skip
def a_tile_in_dynamic_shared_memory(maps: u64, out: u64):
    """The tile lies at the first multiple of 128 of the dynamic memory, and the barrier behind it."""
    area = cuda.shared.array(0, uint8)
    lane = int32(cuda.threadIdx.x)
    tile = align_up(shared_address(area), uint32(128))
    bar = uint32(tile + uint32(BYTES))
    barrier_and_map(bar, maps)
    if lane == 0:
        mbarrier_arrive_expect_tx(bar, BYTES)
        cp_async_bulk_tensor_2d(tile, maps, 8, 2, bar)
    mbarrier_wait(bar, 0)
    st_global_b32(out + uint64(4 * lane), ld_shared_b32(tile + uint32(4 * lane)))


@right(
    source="CUTLASS sm90_epilogue_tma_warpspecialized.hpp: 16-bit tiles go through shared memory to a TMA "
           "store",
    args=lambda: [TensorMapArray([TensorMap.of(np.zeros((4, 64), np.uint16), (64, 4))])],
    expect=lambda maps: [(maps[0].array, np.arange(256).reshape(4, 64))],
)  # fmt: skip
def a_tile_of_halves_by_vectors(maps: u64):
    """The tile has 16-bit elements, and each lane writes eight of them by one vector of four words."""
    tile = cuda.shared.array(512, uint8, alignment=128)
    lane = int32(cuda.threadIdx.x)
    first = uint32(8 * lane | (8 * lane + 1) << 16)
    place = shared_address(tile) + uint32(16 * lane)
    second = uint32(first + uint32(0x20002))
    st_shared_v4(place, first, second, uint32(first + uint32(0x40004)), uint32(second + uint32(0x40004)))
    fence_proxy_async()
    cuda.syncwarp()
    if lane == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        cp_async_bulk_tensor_2d_store(maps, 0, 0, shared_address(tile))
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)

"""Tensor maps that a kernel makes: one for each matrix of a group, from one that the host has encoded."""

import numpy as np
from base import right, wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import (
    global_at,
    ld_acquire_gpu_global_b32,
    ld_global_b32,
    shared_address,
    st_global_b32,
    st_release_gpu_global_b32,
)
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tensormap import (
    tensormap_cp_fenceproxy,
    tensormap_replace_box_dim,
    tensormap_replace_element_stride,
    tensormap_replace_elemtype,
    tensormap_replace_fill_mode,
    tensormap_replace_global_address,
    tensormap_replace_global_dim,
    tensormap_replace_global_stride,
    tensormap_replace_interleave_layout,
    tensormap_replace_rank,
    tensormap_replace_swizzle_mode,
)
from numba_deform.device.tma import cp_async_bulk_tensor_2d, fence_proxy_tensormap_acquire_gpu
from numba_deform.engines import faults
from numba_deform.engines.tensormap import TensorMap, TensorMapArray, swizzle_offsets

WARP, MAP_WORDS = 32, 32
GROUPED = "CUTLASS: example 57, Hopper grouped GEMM; sm90_mma_array_tma_gmma_ss_warpspecialized"
GUIDE = "CUDA guide, Encoding a tensor map on device"
# Matrices of 32-bit words in one array: where each starts, its rows and columns, the words from row to row.
GROUPS = ((0, 5, 12, 12), (64, 3, 20, 24), (140, 7, 8, 8))
COUNT, COLUMNS, ROWS = len(GROUPS), 8, 4  # and the box
TILE = COLUMNS * ROWS
BYTES = 4 * TILE
CORNER = 4, 1


def arguments():
    """The template, the data, the groups' table, room for maps, room for tiles."""
    data = np.random.default_rng(4).integers(1, 1 << 32, 256, np.uint32)
    template = TensorMapArray([TensorMap.of(data[:60].reshape(5, 12), (COLUMNS, ROWS))])
    room, out = np.zeros((COUNT + 1) * MAP_WORDS, np.uint32), np.zeros((COUNT, ROWS, COLUMNS), np.uint32)
    return [template, data, np.array(GROUPS, np.uint32), room, out]


def tile_of(data, group):
    """What a box at CORNER holds of a matrix."""
    start, rows, columns, pitch = group
    tile, (x, y) = np.zeros((ROWS, COLUMNS), np.uint32), CORNER
    for r in range(ROWS):
        for c in range(COLUMNS):
            if y + r < rows and x + c < columns:
                tile[r, c] = data[start + (y + r) * pitch + x + c]
    return tile


def expect(template, data, table, room, out):
    return [(out, [tile_of(data, group) for group in GROUPS])]


@cuda.jit(device=True)
def first_map(room):
    """The first address in ``room`` that a map may have."""
    return uint64((room + uint64(127)) & ~uint64(127))


@cuda.jit(device=True)
def copy_template(template, map, i):
    """Lane by lane, into shared memory."""
    map[i] = ld_global_b32(global_at(template, i, 4))
    cuda.syncwarp()


@cuda.jit(device=True)
def describe(map, data, table, group):
    """Let the map in shared memory be that of a group's matrix."""
    start = ld_global_b32(global_at(table, 4 * group, 4))
    tensormap_replace_global_address(map, global_at(data, start, 4))
    tensormap_replace_global_dim(map, uint32(0), ld_global_b32(global_at(table, 4 * group + 2, 4)))
    tensormap_replace_global_dim(map, uint32(1), ld_global_b32(global_at(table, 4 * group + 1, 4)))
    pitch = ld_global_b32(global_at(table, 4 * group + 3, 4))
    tensormap_replace_global_stride(map, uint32(0), uint64(4) * uint64(pitch))


@cuda.jit(device=True)
def init(bar):
    if cuda.threadIdx.x == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
    cuda.syncwarp()


@right(source=GROUPED, grid=COUNT, args=arguments, expect=expect)
def a_map_for_each_group(template: u64, data: u64, table: u64, room: u64, out: u64):
    """Each block makes the map of its group, and loads a box that overhangs the matrix."""
    map = cuda.shared.array(MAP_WORDS, uint32, alignment=128)
    tile = cuda.shared.array(TILE, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i, group = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    init(bar)
    copy_template(template, map, i)
    if i == 0:
        describe(shared_address(map), data, table, group)
    cuda.syncwarp()
    own = global_at(first_map(room), group, 128)
    tensormap_cp_fenceproxy(own, shared_address(map))
    if i == 0:
        fence_proxy_tensormap_acquire_gpu(own)
        mbarrier_arrive_expect_tx(bar, BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), own, 4, 1, bar)
    mbarrier_wait(bar, 0)
    st_global_b32(global_at(out, group * TILE + i, 4), tile[i])


@right(source=GROUPED, args=arguments, expect=expect)
def one_map_for_all_groups_in_turn(template: u64, data: u64, table: u64, room: u64, out: u64):
    """A block changes its map from group to group: when the load by the old one has landed, and with an acquire
    after each change."""
    map = cuda.shared.array(MAP_WORDS, uint32, alignment=128)
    tile = cuda.shared.array(TILE, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i, own = int32(cuda.threadIdx.x), first_map(room)
    init(bar)
    copy_template(template, map, i)
    for group in range(COUNT):
        if i == 0:
            describe(shared_address(map), data, table, group)
        cuda.syncwarp()
        tensormap_cp_fenceproxy(own, shared_address(map))
        if i == 0:
            fence_proxy_tensormap_acquire_gpu(own)
            mbarrier_arrive_expect_tx(bar, BYTES)
            cp_async_bulk_tensor_2d(shared_address(tile), own, 4, 1, bar)
        mbarrier_wait(bar, group & 1)
        st_global_b32(global_at(out, group * TILE + i, 4), tile[i])
        fence_proxy_async()
        cuda.syncwarp()


@wrong(faults.MissingTensormapFence, source=GROUPED, args=arguments, hardware="guarded")
def acquires_its_map_once(template: u64, data: u64, table: u64, room: u64, out: u64):
    """The twin that acquires the map when it is new, and not when it has changed: the copy engine may have kept
    the old one."""
    map = cuda.shared.array(MAP_WORDS, uint32, alignment=128)
    tile = cuda.shared.array(TILE, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i, own = int32(cuda.threadIdx.x), first_map(room)
    init(bar)
    copy_template(template, map, i)
    for group in range(COUNT):
        if i == 0:
            describe(shared_address(map), data, table, group)
        cuda.syncwarp()
        tensormap_cp_fenceproxy(own, shared_address(map))
        if i == 0:
            if group == 0:
                fence_proxy_tensormap_acquire_gpu(own)
            mbarrier_arrive_expect_tx(bar, BYTES)
            cp_async_bulk_tensor_2d(shared_address(tile), own, 4, 1, bar)  # <- fault
        mbarrier_wait(bar, group & 1)
        st_global_b32(global_at(out, group * TILE + i, 4), tile[i])
        cuda.syncwarp()


@wrong(faults.DataRace, source=GROUPED, args=arguments, hardware="guarded")
def changes_a_map_in_use(template: u64, data: u64, table: u64, room: u64, out: u64):
    """The twin that publishes the next map while a load by the last one may still read it."""
    map = cuda.shared.array(MAP_WORDS, uint32, alignment=128)
    tile = cuda.shared.array(64, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i, own = int32(cuda.threadIdx.x), first_map(room)
    init(bar)
    copy_template(template, map, i)
    if i == 0:
        mbarrier_arrive_expect_tx(bar, 2 * BYTES)
    for group in range(2):
        if i == 0:
            describe(shared_address(map), data, table, group)
        cuda.syncwarp()
        tensormap_cp_fenceproxy(own, shared_address(map))  # <- fault
        if i == 0:
            fence_proxy_tensormap_acquire_gpu(own)
            cp_async_bulk_tensor_2d(shared_address(tile) + uint32(BYTES * group), own, 4, 1, bar)
        cuda.syncwarp()
    mbarrier_wait(bar, 0)
    st_global_b32(global_at(out, i, 4), tile[i])


@wrong(faults.MissingTensormapFence, source=GUIDE, args=arguments, hardware="guarded")
def publishes_a_map_by_ordinary_stores(template: u64, data: u64, table: u64, room: u64, out: u64):
    """The twin that copies the map to global memory word by word: an acquire alone hands nothing over."""
    map = cuda.shared.array(MAP_WORDS, uint32, alignment=128)
    tile = cuda.shared.array(TILE, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i, own = int32(cuda.threadIdx.x), first_map(room)
    init(bar)
    copy_template(template, map, i)
    if i == 0:
        describe(shared_address(map), data, table, 1)
    cuda.syncwarp()
    st_global_b32(global_at(own, i, 4), map[i])
    cuda.syncwarp()
    if i == 0:
        fence_proxy_tensormap_acquire_gpu(own)
        mbarrier_arrive_expect_tx(bar, BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), own, 4, 1, bar)  # <- fault
    mbarrier_wait(bar, 0)
    st_global_b32(global_at(out, i, 4), tile[i])


@wrong(faults.DataRace, source=GROUPED, args=arguments, hardware="guarded")
def publishes_before_the_warp_has_met(template: u64, data: u64, table: u64, room: u64, out: u64):
    """The twin without a meeting between one lane's replacements and the copy by all."""
    map = cuda.shared.array(MAP_WORDS, uint32, alignment=128)
    tile = cuda.shared.array(TILE, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i, own = int32(cuda.threadIdx.x), first_map(room)
    init(bar)
    copy_template(template, map, i)
    if i == 0:
        describe(shared_address(map), data, table, 1)
    tensormap_cp_fenceproxy(own, shared_address(map))  # <- fault
    if i == 0:
        fence_proxy_tensormap_acquire_gpu(own)
        mbarrier_arrive_expect_tx(bar, BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), own, 4, 1, bar)
    mbarrier_wait(bar, 0)
    st_global_b32(global_at(out, i, 4), tile[i])


def expect_last(template, data, table, room, out):
    return [(out[0], tile_of(data, GROUPS[1]))]


@right(source=GUIDE, grid=2, args=arguments, expect=expect_last)
def a_map_for_another_block(template: u64, data: u64, table: u64, room: u64, out: u64):
    """Block 0 makes the map and sets a flag of gpu scope; block 1 sees that, acquires the map and uses it."""
    map = cuda.shared.array(MAP_WORDS, uint32, alignment=128)
    tile = cuda.shared.array(TILE, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i, own = int32(cuda.threadIdx.x), first_map(room)
    flag = global_at(out, TILE, 4)  # of the second tile
    init(bar)
    if cuda.blockIdx.x == 0:
        copy_template(template, map, i)
        if i == 0:
            describe(shared_address(map), data, table, 1)
        cuda.syncwarp()
        tensormap_cp_fenceproxy(own, shared_address(map))
        if i == 0:
            st_release_gpu_global_b32(flag, uint32(1))
    else:
        if i == 0:
            while ld_acquire_gpu_global_b32(flag) == 0:
                pass
            fence_proxy_tensormap_acquire_gpu(own)
            mbarrier_arrive_expect_tx(bar, BYTES)
            cp_async_bulk_tensor_2d(shared_address(tile), own, 4, 1, bar)
        mbarrier_wait(bar, 0)
        st_global_b32(global_at(out, i, 4), tile[i])


@wrong(
    faults.DataRace, faults.BadTensorMap, source=GUIDE, grid=2, args=arguments, hardware="guarded",
)  # fmt: skip
def another_blocks_map_without_a_flag(template: u64, data: u64, table: u64, room: u64, out: u64):
    """The twin that acquires the map and does not know whether it is there."""
    map = cuda.shared.array(MAP_WORDS, uint32, alignment=128)
    tile = cuda.shared.array(TILE, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i, own = int32(cuda.threadIdx.x), first_map(room)
    init(bar)
    if cuda.blockIdx.x == 0:
        copy_template(template, map, i)
        if i == 0:
            describe(shared_address(map), data, table, 1)
        cuda.syncwarp()
        tensormap_cp_fenceproxy(own, shared_address(map))  # <- fault
    else:
        if i == 0:
            fence_proxy_tensormap_acquire_gpu(own)  # <- fault
            mbarrier_arrive_expect_tx(bar, BYTES)
            cp_async_bulk_tensor_2d(shared_address(tile), own, 4, 1, bar)  # <- fault
        mbarrier_wait(bar, 0)
        st_global_b32(global_at(out, i, 4), tile[i])


# A map of bytes of rank 1 becomes one of float16 of rank 2: every second row, swizzled, NaN outside.
FEW, WIDE = 5, 64
HALF_BYTES = 2 * WIDE * 4
HALF_WORDS = HALF_BYTES // 4


def halves():
    data = np.random.default_rng(6).integers(0, 1 << 15, (FEW, WIDE), np.uint16) & 0x7BFF
    template = TensorMapArray([TensorMap.of(data.view(np.uint8).reshape(-1), (32,))])
    return [template, data, np.zeros(2 * MAP_WORDS, np.uint32), np.zeros(2 * HALF_WORDS, np.uint16)]


def expect_halves(template, data, room, out):
    box = np.full((4, WIDE), 0x7FF7, np.uint16)
    box[:3, :56] = data[::2, 8:]  # rows 0, 2 and 4, and from the eighth column on
    swizzled = np.zeros(HALF_BYTES, np.uint8)
    swizzled[swizzle_offsets(HALF_BYTES, "128B")] = box.reshape(-1).view(np.uint8)
    return [(out, swizzled.view(np.uint16))]


@right(source="PTX ISA 9.7.9.26", args=halves, expect=expect_halves)
def every_field_of_a_map(template: u64, data: u64, room: u64, out: u64):
    """All ten fields are replaced."""
    map = cuda.shared.array(MAP_WORDS, uint32, alignment=128)
    tile = cuda.shared.array(HALF_WORDS, uint32, alignment=1024)
    bar = shared_address(cuda.shared.array(1, uint64))
    i, own, made = int32(cuda.threadIdx.x), first_map(room), shared_address(map)
    init(bar)
    copy_template(template, map, i)
    if i == 0:
        tensormap_replace_rank(made, uint32(1))
        tensormap_replace_elemtype(made, uint32(6))
        tensormap_replace_global_address(made, data)
        tensormap_replace_global_dim(made, uint32(0), uint32(WIDE))
        tensormap_replace_global_dim(made, uint32(1), uint32(FEW))
        tensormap_replace_global_stride(made, uint32(0), uint64(2 * WIDE))
        tensormap_replace_box_dim(made, uint32(0), uint32(WIDE))
        tensormap_replace_box_dim(made, uint32(1), uint32(8))
        tensormap_replace_element_stride(made, uint32(0), uint32(1))
        tensormap_replace_element_stride(made, uint32(1), uint32(2))
        tensormap_replace_interleave_layout(made, uint32(0))
        tensormap_replace_swizzle_mode(made, uint32(3))
        tensormap_replace_fill_mode(made, uint32(1))
    cuda.syncwarp()
    tensormap_cp_fenceproxy(own, made)
    if i == 0:
        fence_proxy_tensormap_acquire_gpu(own)
        mbarrier_arrive_expect_tx(bar, HALF_BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), own, 8, 0, bar)
    mbarrier_wait(bar, 0)
    for k in range(i, HALF_WORDS, WARP):
        st_global_b32(global_at(out, k, 4), tile[k])

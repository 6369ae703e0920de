"""Loads in im2col mode: the patches of a convolution as rows of a matrix, a load for each tap of the filter."""

from itertools import product

import numpy as np
from base import right, wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.im2col import (
    cp_async_bulk_tensor_3d_im2col,
    cp_async_bulk_tensor_4d_im2col,
    cp_async_bulk_tensor_5d_im2col,
)
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import global_at, shared_address, st_global_b32
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import fence_proxy_tensormap_acquire_sys
from numba_deform.engines import faults
from numba_deform.engines.tensormap import Im2colMap, TensorMap, TensorMapArray, swizzle_offsets

WARP, BLOCKS = 32, 2
MODE, USE = "PTX ISA 5.5.4", "CUTLASS: sm90 implicit GEMM mainloop, im2col TMA loads of activations"
# A 3 x 3 convolution with padding 1 of two images of 5 x 6 pixels: 60 rows in two loads, 4 of them beyond.
IMAGE, FILTER = (2, 5, 6), (3, 3)
CHANNELS, ROWS = 8, 32
BYTES = 2 * CHANNELS * ROWS
ROW_WORDS = CHANNELS // 2
WORDS = ROWS * ROW_WORDS  # of a load
TAPS = FILTER[0] * FILTER[1]


def image(*shape, dtype=np.uint16, seed=7):
    return np.random.default_rng(seed).integers(1, 1 << 16, shape).astype(dtype)


def patches(data, taps, corners):
    """Rows of channels for each tap and corner (n, .., h, w), zeros outside; corners may lie behind the last
    image."""
    result = np.zeros((len(taps), len(corners), data.shape[-1]), data.dtype)
    for (t, tap), (row, (n, *corner)) in product(enumerate(taps), enumerate(corners)):
        place = [c + k for c, k in zip(corner, tap, strict=True)]
        inside = all(0 <= x < size for x, size in zip(place, data.shape[1:], strict=False))
        if inside and n < len(data):
            result[t, row] = data[(n, *place)]
    return result


def arguments(kind=Im2colMap):
    data = image(*IMAGE, CHANNELS)
    if kind is TensorMap:
        maps = TensorMapArray([TensorMap.of(data, (CHANNELS, 6, 5, 1))])
    else:
        maps = TensorMapArray([Im2colMap.of(data, (CHANNELS, ROWS), lower=(-1, -1), upper=(-1, -1))])
    return [maps, np.zeros((BLOCKS, TAPS, ROWS, CHANNELS), np.uint16)]


def with_a_tiled_map():
    return arguments(TensorMap)


def expect(maps, out):
    images, height, width = IMAGE
    corners = list(product(range(images + 1), range(-1, height - 1), range(-1, width - 1)))
    taps = list(product(range(3), range(3)))
    rows = patches(maps[0].array, taps, corners[: BLOCKS * ROWS])
    return [(out, rows.reshape(TAPS, BLOCKS, ROWS, CHANNELS).swapaxes(0, 1))]


@cuda.jit(device=True)
def start(map, bar):
    """Lane 0 sees the map, and the warp sees the barrier."""
    if cuda.threadIdx.x == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(map)
    cuda.syncwarp()


@cuda.jit(device=True)
def write(tile, out, words, i):
    """The tile's words, lane after lane."""
    for k in range(i, words, WARP):
        st_global_b32(global_at(out, k, 4), tile[k])
    fence_proxy_async()
    cuda.syncwarp()


@right(source=USE, grid=BLOCKS, args=arguments, expect=expect)
def the_patches_of_a_convolution(map: u64, out: u64):
    """A row is a place of the filter; nine loads bring its nine elements. The second block starts in the midst
    of an image, and ends behind the last one, where zeros come."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i, row = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x * ROWS)
    start(map, bar)
    w, h, n = int32(row % 6 - 1), int32(row // 6 % 5 - 1), int32(row // 30)
    for t in range(TAPS):
        if i == 0:
            mbarrier_arrive_expect_tx(bar, BYTES)
            cp_async_bulk_tensor_4d_im2col(
                shared_address(tile), map, int32(0), w, h, n, uint32(t % 3), uint32(t // 3), bar
            )
        mbarrier_wait(bar, t & 1)
        write(tile, global_at(out, cuda.blockIdx.x * TAPS + t, BYTES), WORDS, i)


@wrong(faults.OutOfRange, source=MODE, grid=1, args=arguments, hardware="guarded")
def the_tap_in_the_coordinates(map: u64, out: u64):
    """The twin that adds the filter's element to the coordinates: from the last column the corner leaves the
    bounding box."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i, row = int32(cuda.threadIdx.x), int32(5)
    start(map, bar)
    w, h, n = int32(row % 6 - 1), int32(row // 6 % 5 - 1), int32(row // 30)
    for t in range(TAPS):
        if i == 0:
            mbarrier_arrive_expect_tx(bar, BYTES)
            x, y = int32(w + t % 3), int32(h + t // 3)
            dst = shared_address(tile)
            cp_async_bulk_tensor_4d_im2col(dst, map, int32(0), x, y, n, uint32(0), uint32(0), bar)  # <- fault
        mbarrier_wait(bar, t & 1)
        write(tile, global_at(out, cuda.blockIdx.x * TAPS + t, BYTES), WORDS, i)


@wrong(faults.MoreBytesThanExpected, source=MODE, grid=1, args=arguments, hardware="guarded")
def expects_the_pixels_inside(map: u64, out: u64):
    """The twin that counts what lies inside the image: the rows outside count as well."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    start(map, bar)
    if i == 0:
        mbarrier_arrive_expect_tx(bar, 2 * CHANNELS * 20)  # <- fault
        dst = shared_address(tile)
        cp_async_bulk_tensor_4d_im2col(dst, map, 0, -1, -1, 0, uint32(0), uint32(0), bar)
    mbarrier_wait(bar, 0)
    write(tile, out, WORDS, i)


@wrong(faults.InFlightRead, faults.StaleWait, source=MODE, grid=1, args=arguments)
def reads_patches_without_a_wait(map: u64, out: u64):
    """The twin that does not wait."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    start(map, bar)
    if i == 0:
        mbarrier_arrive_expect_tx(bar, BYTES)
        cp_async_bulk_tensor_4d_im2col(shared_address(tile), map, 0, -1, -1, 0, uint32(0), uint32(0), bar)
    cuda.syncwarp()
    st_global_b32(global_at(out, i, 4), tile[i])  # <- fault
    mbarrier_wait(bar, 0)


@wrong(faults.BadTensorMap, source=MODE, grid=1, args=with_a_tiled_map, hardware="guarded")
def patches_by_a_tiled_map(map: u64, out: u64):
    """The twin whose map was made for tiles."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    start(map, bar)
    if i == 0:
        mbarrier_arrive_expect_tx(bar, BYTES)
        dst = shared_address(tile)
        cp_async_bulk_tensor_4d_im2col(dst, map, 0, -1, -1, 0, uint32(0), uint32(0), bar)  # <- fault
    mbarrier_wait(bar, 0)
    write(tile, out, WORDS, i)


# A filter 3 wide and 2 high, strides 2 and 1, padding 1 on the left, 128B swizzle, half of the channels.
WIDE, PART = 128, 64
STRIDED_ROWS = 16
STRIDED_BYTES = 2 * PART * STRIDED_ROWS
STRIDED_WORDS = STRIDED_BYTES // 4


def strided():
    data = image(2, 4, 7, WIDE, seed=8)
    options = {"lower": (-1, 0), "upper": (-2, -1), "element_strides": (1, 2, 1, 1), "swizzle": "128B"}
    maps = TensorMapArray([Im2colMap.of(data, (PART, STRIDED_ROWS), **options)])
    return [maps, np.zeros(STRIDED_BYTES // 2, np.uint16)]


def expect_strided(maps, out):
    corners = list(product(range(3), range(3), range(-1, 5, 2)))
    first = corners.index((0, 1, 1))
    rows = patches(maps[0].array, [(1, 2)], corners[first : first + STRIDED_ROWS])[0, :, PART:]
    swizzled = np.zeros(STRIDED_BYTES, np.uint8)
    swizzled[swizzle_offsets(STRIDED_BYTES, "128B")] = rows.copy().reshape(-1).view(np.uint8)
    return [(out, swizzled.view(np.uint16))]


@right(source=MODE, args=strided, expect=expect_strided)
def patches_with_strides_and_swizzle(map: u64, out: u64):
    """The corner moves two pixels at a time, and starts in the midst of the second row."""
    tile = cuda.shared.array(STRIDED_WORDS, uint32, alignment=1024)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    start(map, bar)
    if i == 0:
        mbarrier_arrive_expect_tx(bar, STRIDED_BYTES)
        cp_async_bulk_tensor_4d_im2col(
            shared_address(tile), map, int32(PART), 1, 1, 0, uint32(2), uint32(1), bar
        )
    mbarrier_wait(bar, 0)
    write(tile, out, STRIDED_WORDS, i)


def signal():
    maps = TensorMapArray([Im2colMap.of(image(2, 9, 8), (8, 16), lower=(-2,), upper=(-1,))])
    return [maps, np.zeros((16, 8), np.uint16)]


def expect_signal(maps, out):
    corners = list(product(range(3), range(-2, 8)))
    return [(out, patches(maps[0].array, [(3,)], corners[5:21])[0])]


@right(source=MODE, args=signal, expect=expect_signal)
def patches_of_a_signal(map: u64, out: u64):
    """Rank 3, with a filter's element that lies outside the box of corners."""
    tile = cuda.shared.array(64, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    start(map, bar)
    if i == 0:
        mbarrier_arrive_expect_tx(bar, 256)
        cp_async_bulk_tensor_3d_im2col(shared_address(tile), map, 0, 3, 0, uint32(3), bar)
    mbarrier_wait(bar, 0)
    write(tile, out, 64, i)


def volume():
    options = {"lower": (-1, 0, -1), "upper": (-1, -1, 0)}
    maps = TensorMapArray([Im2colMap.of(image(2, 3, 4, 5, 8), (8, 128), **options)])
    return [maps, np.zeros((128, 8), np.uint16)]


def expect_volume(maps, out):
    corners = list(product(range(2), range(-1, 3), range(0, 3), range(-1, 4)))
    first = corners.index((0, -1, 1, 2))
    rows = patches(maps[0].array, [(0, 1, 1)], corners[first : first + 128])[0]
    return [(out[: len(rows)], rows), (out[len(rows) :], 0)]


@right(source=MODE, args=volume, expect=expect_volume)
def patches_of_a_volume(map: u64, out: u64):
    """Rank 5, whose box has other bounds along each dimension."""
    tile = cuda.shared.array(512, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    start(map, bar)
    if i == 0:
        mbarrier_arrive_expect_tx(bar, 2048)
        cp_async_bulk_tensor_5d_im2col(
            shared_address(tile), map, 0, 2, 1, -1, 0, uint32(1), uint32(1), uint32(0), bar
        )
    mbarrier_wait(bar, 0)
    write(tile, out, 512, i)

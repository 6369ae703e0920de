"""Loads in im2col mode on the CPU engine: what is refused, and what a load reads."""

import numpy as np
import pytest
from helpers import always, clean, expect
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import i32, u32, u64
from numba_deform.compiler import kernel as typed
from numba_deform.device.im2col import cp_async_bulk_tensor_4d_im2col
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import global_at, shared_address, st_global_b32
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init
from numba_deform.device.tma import (
    cp_async_bulk_tensor_4d,
    cp_async_bulk_tensor_4d_store,
    fence_proxy_tensormap_acquire_sys,
)
from numba_deform.engines import faults
from numba_deform.engines.tensormap import Im2colMap, TensorMapArray

WARP, ROWS, CHANNELS = 32, 8, 16
BYTES = 2 * ROWS * CHANNELS
WORDS = BYTES // 4


def images():
    """(the map of two images of 4 x 5 pixels, for a 3 x 3 filter with padding 1, and their data)"""
    data = np.arange(2 * 4 * 5 * CHANNELS, dtype=np.uint16).reshape(2, 4, 5, CHANNELS) + 1
    return TensorMapArray([Im2colMap.of(data, (CHANNELS, ROWS), lower=(-1, -1), upper=(-1, -1))]), data


@typed(threads=WARP)
def load(map: u64, c: i32, w: i32, h: i32, n: i32, x: u32, y: u32, out: u64):
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(map)
        mbarrier_arrive_expect_tx(bar, BYTES)
        cp_async_bulk_tensor_4d_im2col(shared_address(tile), map, c, w, h, n, x, y, bar)
    cuda.syncwarp()
    mbarrier_wait(bar, 0)
    for k in range(i, WORDS, WARP):
        st_global_b32(global_at(out, k, 4), tile[k])




@pytest.mark.parametrize("place, kind, words", [
    ((0, 5, 0, 0, 0, 0), faults.OutOfRange, ["coords[1], W, is 5", "bounding box"]),
    ((0, 0, -2, 0, 0, 0), faults.OutOfRange, ["coords[2], H, is -2"]),
    ((0, 0, 0, 0, 256, 0), faults.OutOfRange, ["offsets[0] is 256"]),
    ((0, 0, 0, 0, 0, 1 << 16), faults.OutOfRange, ["offsets[1] is 65536"]),
    ((4, 0, 0, 0, 0, 0), faults.MisalignedBox, ["4 x 2 bytes = 8 bytes"]),
])  # fmt: skip
def test_places_that_are_refused(place, kind, words):
    maps, _ = images()
    out = np.zeros(WORDS, np.uint32)
    always(kind, load, maps, *place, out, words=words, source="cp_async_bulk_tensor_4d_im2col")


def test_what_a_load_brings():
    """From the last column of the last row on into the next image, and the second half of the channels."""
    maps, data = images()
    out = np.zeros((ROWS, CHANNELS), np.uint16)
    clean(load, maps, 8, 3, 2, 0, 2, 1, out.view(np.uint32))
    expected = np.zeros_like(out)
    # The filter's corner is at (3, 2), then at (-1..3, -1) and (-1, 0), (0, 0) of image 1; the tap is (2, 1).
    for row, (n, h, w) in enumerate([(0, 2, 3), *((1, -1, w) for w in range(-1, 4)), (1, 0, -1), (1, 0, 0)]):
        if 0 <= h + 1 < 4 and 0 <= w + 2 < 5:
            expected[row, :8] = data[n, h + 1, w + 2, 8:]
    np.testing.assert_array_equal(out, expected)


def beside(pixel):
    """A kernel in which a thread writes into a pixel (n, h, w) while another's load is under way."""
    n, h, w = pixel

    def kernel(map, data):
        tile = cuda.shared.array(WORDS, uint32, alignment=128)
        bar = shared_address(cuda.shared.array(1, uint64))
        if cuda.threadIdx.x == 0:
            mbarrier_init(bar, 1)
            fence_mbarrier_init()
            fence_proxy_tensormap_acquire_sys(map)
            mbarrier_arrive_expect_tx(bar, BYTES)
            cp_async_bulk_tensor_4d_im2col(shared_address(tile), map, 0, 0, 0, 1, uint32(2), uint32(0), bar)
            mbarrier_wait(bar, 0)
        elif cuda.threadIdx.x == 1:
            data[n, h, w, 0] = 7

    return kernel


def test_a_load_reads_its_pixels_and_no_others():
    """Corners (0..3, 0) and (-1..2, 1), of which w + 2 is read: pixels 2 to 4 of row 0, 1 to 4 of row 1."""
    for pixel in ((1, 0, 2), (1, 0, 4), (1, 1, 1), (1, 1, 4)):
        always(faults.DataRace, beside(pixel), *images(), words="data[byte")
    for pixel in ((0, 0, 2), (1, 0, 1), (1, 1, 0), (1, 2, 2)):
        clean(beside(pixel), *images())


def test_the_mode_of_a_map():
    def tiled(map):
        tile = cuda.shared.array(WORDS, uint32, alignment=128)
        bar = shared_address(cuda.shared.array(1, uint64))
        if cuda.threadIdx.x == 0:
            mbarrier_init(bar, 1)
            fence_mbarrier_init()
            fence_proxy_tensormap_acquire_sys(map)
            mbarrier_arrive_expect_tx(bar, BYTES)
            cp_async_bulk_tensor_4d(shared_address(tile), map, 0, 0, 0, 0, bar)

    def stored(map):
        tile = cuda.shared.array(WORDS, uint32, alignment=128)
        if cuda.threadIdx.x == 0:
            fence_proxy_tensormap_acquire_sys(map)
            cp_async_bulk_tensor_4d_store(map, 0, 0, 0, 0, shared_address(tile))

    told = "a copy in tile mode with a map for im2col mode"
    expect(faults.BadTensorMap, tiled, images()[0], words=told, source="cp_async_bulk_tensor_4d(")
    expect(faults.BadTensorMap, stored, images()[0], words=told, source="cp_async_bulk_tensor_4d_store(")

"""Fewer bytes expected than arrive.

A 2x2x8 box at the corner of an image lies outside with three of its four pixels. It looks as if only
the one inside had to be counted. But outside elements arrive too, as zeros, and the whole box is
subtracted from the barrier's tx-count: it ends below zero, and the phase cannot complete.

The programs of the notes pad their images, so none of their boxes leaves one. This project does
without the padding, and checked on an H200 that the full box counts.
"""

from numba import cuda, int32, uint32, uint64
from numba.core import types

from ...compiler import kernel, u64
from ...device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from ...device.memory import ld_shared_b32, shared_address, st_global_b32
from ...device.pipeline import mbarrier_wait
from ...device.sync import fence_mbarrier_init
from ...device.tma import cp_async_bulk_tensor_3d, fence_proxy_tensormap_acquire_sys
from ...engines import faults
from ...engines.tensormap import TensorMap, TensorMapArray
from .base import Launch, poison, random_words

MET = "this project (boxes over the border of an unpadded image)"
FAULTS = {faults.MoreBytesThanExpected: "mbarrier_arrive_expect_tx(full, PIXEL_BYTES)"}
CURE = "Expect the full box of every copy; elements outside the tensor count too."
HANGS = True

CHANNELS, PIXELS = 8, 4
PIXEL_BYTES, THREADS = 4 * CHANNELS, PIXELS * CHANNELS
BOX_BYTES = PIXELS * PIXEL_BYTES


def build(BUG):
    """Kernel(maps, out): the box at (-1, -1); thread i writes its element i."""

    @kernel(threads=THREADS)
    def corner_box(maps: u64, out: u64):
        box = cuda.shared.array(BOX_BYTES, types.uint8, alignment=128)
        bars = cuda.shared.array(1, uint64)
        tile, full, tid = shared_address(box), shared_address(bars), int32(cuda.threadIdx.x)
        if tid == 0:
            mbarrier_init(full, 1)
            fence_mbarrier_init()
            fence_proxy_tensormap_acquire_sys(maps)
            if BUG:
                mbarrier_arrive_expect_tx(full, PIXEL_BYTES)  # the fault: the pixel inside
            else:
                mbarrier_arrive_expect_tx(full, BOX_BYTES)  # the cure: all of the box
            cp_async_bulk_tensor_3d(tile, maps, 0, -1, -1, full)
        cuda.syncthreads()
        mbarrier_wait(full, 0)
        st_global_b32(out + uint64(4 * tid), ld_shared_b32(tile + uint32(4 * tid)))

    return corner_box


def arguments(seed):
    """A 4x4 image; out is the box, zeros but for its last pixel."""
    image, out = random_words(4, 4, CHANNELS, seed=seed), poison(PIXELS, CHANNELS)
    expected = image[:2, :2].reshape(PIXELS, CHANNELS) * 0
    expected[3] = image[0, 0]
    maps = TensorMapArray([TensorMap.of(image, (CHANNELS, 2, 2))])
    return Launch((maps, out), out, expected)

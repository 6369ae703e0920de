"""Tensor-map dimensions in the wrong order.

The image lies in memory as [H][W][C]. A tensor map lists its dimensions innermost first: C, W, H. One
that lists C, H, W has a legal shape, legal strides and a legal box, so the driver accepts it and every
copy succeeds. It loads pixels from other places, and no error is ever raised, neither by the hardware
nor by the CPU engine: no rule is broken. Only comparing the numbers with a reference shows it, and
only on data that are neither constant nor square.

The README of note 4 plans its load with the coordinates {y, x, c}. The only right order is X for C,
Y for W, Z for H.
"""

from numba import cuda, int32, uint64
from numba.core import types

from ...compiler import kernel, u64
from ...device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from ...device.memory import ld_shared_b32, shared_address, st_global_b32
from ...device.pipeline import mbarrier_wait
from ...device.sync import fence_mbarrier_init
from ...device.tma import cp_async_bulk_tensor_3d, fence_proxy_tensormap_acquire_sys
from ...engines.tensormap import TensorMap, TensorMapArray
from .base import Launch, poison, random_words

MET = "note 4"
FAULTS = {}
CURE = "List dimensions innermost first, C, W, H, as TensorMap.of does; test on random, non-square data."

HEIGHT, WIDTH, CHANNELS = 6, 10, 8
THREADS, X, Y = 4 * CHANNELS, 7, 3
BOX_BYTES = 4 * THREADS


def build(BUG):
    """Kernel(maps, out): the 2x2 box at (X, Y) of an image, by one of two maps of it."""

    @kernel(threads=THREADS)
    def one_box(maps: u64, out: u64):
        box = cuda.shared.array(BOX_BYTES, types.uint8, alignment=128)
        bars = cuda.shared.array(1, uint64)
        tile, full, tid = shared_address(box), shared_address(bars), int32(cuda.threadIdx.x)
        if BUG:
            map = maps  # the fault: this one lists C, H, W
        else:
            map = maps + uint64(128)  # the cure: C, W, H
        if tid == 0:
            mbarrier_init(full, 1)
            fence_mbarrier_init()
            fence_proxy_tensormap_acquire_sys(map)
            mbarrier_arrive_expect_tx(full, BOX_BYTES)
            cp_async_bulk_tensor_3d(tile, map, 0, X, Y, full)
        cuda.syncthreads()
        mbarrier_wait(full, 0)
        st_global_b32(out + uint64(4 * tid), ld_shared_b32(tile + 4 * tid))

    return one_box


def arguments(seed):
    """An image and two maps of it, the wrong one first; out is the box, pixel by pixel."""
    image, out = random_words(HEIGHT, WIDTH, CHANNELS, seed=seed), poison(2, 2, CHANNELS)
    pixel, box = 4 * CHANNELS, (CHANNELS, 2, 2)
    wrong = TensorMap(image, "uint32", (CHANNELS, HEIGHT, WIDTH), (pixel, HEIGHT * pixel), box)
    right = TensorMap(image, "uint32", (CHANNELS, WIDTH, HEIGHT), (pixel, WIDTH * pixel), box)
    expected = image[Y : Y + 2, X : X + 2].copy()
    return Launch((TensorMapArray([wrong, right]), out), out, expected)

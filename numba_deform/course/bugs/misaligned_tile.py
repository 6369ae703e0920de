"""A tile that is not aligned to 128 bytes.

Two tiles of 96 bytes lie one right behind the other. A tensor copy writes to multiples of 128 bytes
only, so the second one ends the kernel with a misaligned address, or never completes.

The Hopper guide of note 5 lists it among the reasons for an illegal instruction. It was also found
in inclusionAI/humming (pull request 21) and is enforced by nvFuser (NVIDIA/Fuser pull request 3023).
"""

import numpy as np
from numba import cuda, int32, uint32, uint64
from numba.core import types

from ...compiler import kernel, u64
from ...device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from ...device.memory import ld_shared_b32, shared_address, st_global_b32
from ...device.pipeline import mbarrier_wait
from ...device.sync import fence_mbarrier_init
from ...device.tma import cp_async_bulk_tensor_2d, fence_proxy_tensormap_acquire_sys
from ...engines import faults
from ...engines.tensormap import TensorMap, TensorMapArray
from .base import Launch, poison, random_words

MET = "note 5; inclusionAI/humming pull request 21"
FAULTS = {faults.Misaligned: "cp_async_bulk_tensor_2d(tiles + step * i, maps, 0, i, full)"}
CURE = "Round the size of a slot up to a multiple of 128 bytes, and align the first one."

WORDS, TILES = 24, 2
BYTES, SHARED = 4 * WORDS, 256


def build(BUG):
    """Kernel(maps, out): two rows of a matrix by one tensor copy each; out is their sum."""

    @kernel(threads=WORDS)
    def two_rows(maps: u64, out: u64):
        area = cuda.shared.array(SHARED, types.uint8, alignment=128)
        bars = cuda.shared.array(1, uint64)
        tiles, full, tid = shared_address(area), shared_address(bars), int32(cuda.threadIdx.x)
        if BUG:
            step = uint32(96)  # the fault: the second tile starts at 96
        else:
            step = uint32(128)  # the cure: every tile starts at a multiple of 128
        if tid == 0:
            mbarrier_init(full, 1)
            fence_mbarrier_init()
            fence_proxy_tensormap_acquire_sys(maps)
            mbarrier_arrive_expect_tx(full, TILES * BYTES)
            for i in range(TILES):
                cp_async_bulk_tensor_2d(tiles + step * i, maps, 0, i, full)
        cuda.syncthreads()
        mbarrier_wait(full, 0)
        total = uint32(0)
        for i in range(TILES):
            total += ld_shared_b32(tiles + step * i + 4 * tid)
        st_global_b32(out + uint64(4 * tid), uint32(total))

    return two_rows


def arguments(seed):
    """A matrix of two rows; out is their sum."""
    data, out = random_words(TILES, WORDS, seed=seed), poison(WORDS)
    maps = TensorMapArray([TensorMap.of(data, (WORDS, 1))])
    return Launch((maps, out), out, data.sum(axis=0, dtype=np.uint32))

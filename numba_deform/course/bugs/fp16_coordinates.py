"""Sampling coordinates computed in fp16.

A location in [0, 1] is multiplied by the width of the level and rounded down to the pixel. In fp16,
numbers from 128 to 256 are an eighth apart: `x * 160 + 0.5` is off by up to 1/16 pixel, and near a
border between pixels it falls on the wrong side. A few percent of the samples use the wrong tile. No
rule is broken and nothing is reported; only a comparison with a float64 reference shows it.

The kernels of the notes, the baseline of note 4 included, compute coordinates in half precision. The
baseline's result, fp16 throughout, is off by 2.4e-2; kernels of this project with fp32 coordinates stay
below 1e-3 on the same fp16 data.
"""

import numpy as np
from numba import cuda, float32, int32, uint64

from ...compiler import kernel, u64
from ...device.half2 import add_rn_f16x2, cvt_f32_f16_lo, mul_rn_f16x2
from ...device.memory import ld_global_b32, st_global_b32
from .base import Launch, poison, random_words

MET = "note 4"
FAULTS = {}
CURE = "Compute coordinates in fp32, also where locations and values are fp16."

THREADS, BLOCKS, WIDTH = 64, 4, 160
SAMPLES = THREADS * BLOCKS
WIDTH16, HALF16 = (int(np.float16(x).view(np.uint16)) for x in (WIDTH, 0.5))


def build(BUG):
    """Kernel(locations, row, out): sample i is the pixel of a padded row that location i falls into."""

    @kernel(threads=THREADS)
    def sample(locations: u64, row: u64, out: u64):
        i = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
        location = ld_global_b32(locations + uint64(4 * i))  # fp16 in the low half
        if BUG:
            x = cvt_f32_f16_lo(add_rn_f16x2(mul_rn_f16x2(location, WIDTH16), HALF16))  # the fault
        else:
            x = cvt_f32_f16_lo(location) * float32(WIDTH) + float32(0.5)  # the cure: fp32
        st_global_b32(out + uint64(4 * i), ld_global_b32(row + uint64(4 * int32(x))))

    return sample


def arguments(seed):
    """Random fp16 locations and a row of pixels; out is the pixel of each sample."""
    random = np.random.default_rng(seed)
    locations = random.random(SAMPLES).astype(np.float16)
    row, out = random_words(WIDTH + 2, seed=seed), poison(SAMPLES)
    columns = np.floor(locations.astype(np.float64) * WIDTH + 0.5).astype(int)
    words = locations.view(np.uint16).astype(np.uint32)
    return Launch((words, row, out), out, row[columns], grid=BLOCKS)

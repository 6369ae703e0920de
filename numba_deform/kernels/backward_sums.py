"""What surrounds the kernels of the gradients: the scale of fixed sums, and the gradient of value, made of its
sums.

``largest``, ``scale`` and ``rounded`` each return a launch as (kernel, blocks, argument, ..): an argument is a
number, or the name of an address that the caller knows.
"""

import functools

from numba import cuda, float32, int32, int64, types, uint32, uint64

from ..compiler import i32, kernel, static_range, u64
from ..device.half2 import mov_b32_f32, mov_f32_b32
from ..device.integer import div_u32, rem_u32
from ..device.memory import global_at, ld_global_nc_b32, ld_global_nc_v2, st_global_v2
from ..device.sync import lane, shfl_sync_bfly_f32, warp
from .backward import CHANNELS, numbers
from .parts.accumulate import ALL
from .parts.sampling import number_loader
from .problem import ITEMSIZE

THREADS, WARPS, MOST_BLOCKS = 256, 8, 1024
ABREAST, PAIRS = 4, 8  # loads of a thread that are under way at once, of ``largest`` and of ``scale``
ABSOLUTE, INFINITE = 0x7FFFFFFF, 0x7F800000


def largest_blocks(problem):
    """Blocks of ``largest``, each of which leaves 8 bytes: as many as fill a GPU, if there is work for them."""
    return min(-(-max(fours_of(problem), problem.samples) // (THREADS * ABREAST)), MOST_BLOCKS)


def fours_of(problem):
    """How many times four channels the gradient of the output has."""
    return problem.rows * problem.constants.channels // CHANNELS


def largest(problem):
    """The launch that finds the largest gradient of the output and the largest weight, both without sign: those
    of each block, at ``largest``. NaN is larger than all."""
    kernel, blocks = _largest(problem.constants.dtype, problem.constants.weight_dtype), largest_blocks(problem)
    return kernel, blocks, "grad_out", fours_of(problem), "weights", problem.samples, "largest"


@cuda.jit(device=True, forceinline=True)
def bits_of(x):
    """A float's bits without its sign: they order floats, and NaN is above all."""
    return uint32(mov_b32_f32(x) & uint32(ABSOLUTE))


@cuda.jit(device=True, forceinline=True)
def largest_of_warp(bits):
    for step in static_range(5):
        other = shfl_sync_bfly_f32(uint32(ALL), mov_f32_b32(bits), uint32(1 << step))
        bits = max(bits, bits_of(other))
    return uint32(bits)


@functools.cache
def _largest(dtype, weight_dtype):
    FOUR, WEIGHT, (load_four, _, _) = CHANNELS * ITEMSIZE[dtype], ITEMSIZE[weight_dtype], numbers(dtype)
    _, load_weight, convert = number_loader(weight_dtype, 1)

    @kernel(threads=THREADS)
    def largest(grad_out: u64, fours: u64, weights: u64, count: u64, largest: u64):
        slots = cuda.shared.array((2, WARPS), types.uint32)
        four = cuda.local.array((ABREAST, 4), float32)
        one, words = cuda.local.array(2, float32), cuda.local.array((ABREAST, 1), uint32)
        step = uint64(cuda.gridDim.x) * uint64(THREADS)
        first = uint64(cuda.blockIdx.x) * uint64(THREADS) + uint64(cuda.threadIdx.x)
        gradient = weight = uint32(0)
        i = first
        while i < fours:
            for k in static_range(ABREAST):  # of more than there are, the last one again
                load_four(grad_out + min(i + k * step, fours - uint64(1)) * uint64(FOUR), four[k])
            for k in static_range(4 * ABREAST):
                gradient = max(gradient, bits_of(four[k // 4, k % 4]))
            i += uint64(ABREAST) * step
        i = first
        while i < count:
            for k in static_range(ABREAST):
                load_weight(weights + min(i + k * step, count - uint64(1)) * uint64(WEIGHT), words[k])
            for k in static_range(ABREAST):
                convert(words[k], one)
                weight = max(weight, bits_of(one[0]))
            i += uint64(ABREAST) * step
        gradient, weight = largest_of_warp(gradient), largest_of_warp(weight)
        if lane() == 0:
            slots[0, warp()], slots[1, warp()] = gradient, weight
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            for i in range(1, WARPS):
                gradient, weight = max(gradient, slots[0, i]), max(weight, slots[1, i])
            st_global_v2(global_at(largest, cuda.blockIdx.x, 8), gradient, weight)

    return largest


def scale(problem, exponent):
    """The launch that writes to ``scale`` 2^(exponent - e), where the largest gradient times the largest weight
    is below 2^e; at most 2^126. Behind it one divided by that. Both are NaN where the product is not finite."""
    return _scale, 1, "largest", largest_blocks(problem), exponent, "scale"


@kernel(threads=32)
def _scale(largest: u64, count: i32, exponent: i32, scale: u64):
    gradient = weight = uint32(0)
    first = lane()
    while first < count:
        for i in static_range(PAIRS):
            pair = ld_global_nc_v2(global_at(largest, min(first + int32(32 * i), count - 1), 8))
            gradient, weight = max(gradient, pair[0]), max(weight, pair[1])
        first += int32(32 * PAIRS)
    gradient, weight = largest_of_warp(gradient), largest_of_warp(weight)
    product = uint32(mov_b32_f32(mov_f32_b32(gradient) * mov_f32_b32(weight)))
    field = min(max(exponent - (int32(product >> uint32(23)) - 126), -126), 126) + 127
    if lane() == 0:
        found, inverse = uint32(field) << uint32(23), uint32(254 - field) << uint32(23)
        if product >= uint32(INFINITE):
            found = inverse = uint32(ABSOLUTE)
        st_global_v2(scale, found, inverse)


def rounded(problem, sums):
    """The launch that writes the gradient of value, in its type, to ``rounded``: from fp32 sums, or from fixed
    ones, which are divided by ``scale``."""
    constants = problem.constants
    fours = problem.spatial_size * problem.heads * constants.channels // CHANNELS  # of a batch: 31 bits
    blocks = -(-fours // THREADS)
    kernel = _rounded(sums, constants.dtype, constants.channels)
    return kernel, problem.batch * blocks, "grad_value", "scale", blocks, fours, "rounded"


@functools.cache
def _rounded(sums, dtype, channels):
    FIXED, CHUNKS, FOUR = sums == "fixed", channels // CHANNELS, CHANNELS * ITEMSIZE[dtype]
    load_floats, _, _ = numbers("float32")
    _, _, store_pair = numbers(dtype)
    SUMS = 32 if sums == "fixed" else 16  # bytes of four

    @kernel(threads=THREADS)
    def rounded(sums: u64, scale: u64, blocks: i32, fours: i32, rounded: u64):
        batch, block = div_u32(cuda.blockIdx.x, blocks), rem_u32(cuda.blockIdx.x, blocks)
        i = int32(block * THREADS + cuda.threadIdx.x)
        x = cuda.local.array(4, float32)
        if i < fours:
            sums = global_at(sums, global_at(0, batch, fours), SUMS)
            if FIXED:
                unit = mov_f32_b32(ld_global_nc_b32(scale + uint64(4)))
                start = global_at(global_at(sums, div_u32(i, CHUNKS), SUMS * CHUNKS), rem_u32(i, CHUNKS), 8)
                for k in static_range(4):
                    words = ld_global_nc_v2(start + uint64(8 * CHUNKS * k))
                    x[k] = float32(int64(uint64(words[1]) << uint64(32) | uint64(words[0]))) * unit
            else:
                load_floats(global_at(sums, i, SUMS), x)
            to = global_at(global_at(rounded, global_at(0, batch, fours), FOUR), i, FOUR)
            store_pair(to, x[0], x[1])
            store_pair(to + uint64(FOUR // 2), x[2], x[3])

    return rounded

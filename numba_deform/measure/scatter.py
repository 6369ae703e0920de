"""Ceilings of gradients: how fast the four neighbours of every sample can be added to in global memory.

Kernels that add ones where the gradient of value belongs, at a workload's own samples and in the order in which
the backward kernel comes to them, and do nothing else. Where a sample lies is read, 8 bytes a sample.

    add-fp32   ``red.add.v4.f32``, a lane for four channels; or ``red.add.f32``, a lane for each
    add-fp16   ``red.add.noftz.v4.f16x2``, a lane for eight channels: half the bytes, and a tenth of the digits
    add-fixed  ``red.add.u64``, a lane for four channels: sums that are the same in any order
"""

import functools
from dataclasses import dataclass

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from ..compiler import built, i32, kernel, static_range, u64
from ..device.atomics import (
    red_add_gpu_global_f32,
    red_add_gpu_global_u64,
    red_add_gpu_global_v4_f16x2,
    red_add_gpu_global_v4_f32,
)
from ..device.integer import rem_u32
from ..device.memory import global_at, ld_global_nc_v2
from ..engines.gpu.device import DeviceArray
from ..engines.gpu.launch import launch
from .ceilings import Trial

THREADS, TOGETHER = 128, 4  # samples whose places are read before anything is added
HALF_ONES = 0x3C003C00  # two fp16 ones


@dataclass(frozen=True)
class Form:
    """How a pixel's channels are added: each lane has ``channels``, in words of ``dtype``."""

    ceiling: str
    instruction: str
    channels: int
    dtype: type
    add: object  # a device function of an address, and of the bytes from one of a lane's words to the next


@cuda.jit(device=True, forceinline=True)
def _add_v4_f32(address, step):
    red_add_gpu_global_v4_f32(address, float32(1), float32(1), float32(1), float32(1))


@cuda.jit(device=True, forceinline=True)
def _add_f32(address, step):
    red_add_gpu_global_f32(address, float32(1))


@cuda.jit(device=True, forceinline=True)
def _add_v4_f16x2(address, step):
    ones = uint32(HALF_ONES)
    red_add_gpu_global_v4_f16x2(address, ones, ones, ones, ones)


@cuda.jit(device=True, forceinline=True)
def _add_u64(address, step):
    for i in static_range(4):
        red_add_gpu_global_u64(address + uint64(step * i), uint64(1))


FORMS = {
    form.instruction: form
    for form in (
        Form("add-fp32", "red.add.v4.f32", 4, np.float32, _add_v4_f32),
        Form("add-fp32", "red.add.f32", 1, np.float32, _add_f32),
        Form("add-fp16", "red.add.noftz.v4.f16x2", 8, np.float16, _add_v4_f16x2),
        Form("add-fixed", "red.add.u64", 4, np.int64, _add_u64),
    )
}
SHARED = (0, 36 << 10, 72 << 10)  # bytes of a block that nobody uses: six blocks fit on an SM then, or three


def build_scatter(channels, instruction):
    """The kernel: arguments are the addresses of places (rows * samples, 2) uint32, each the number of a pixel
    of the whole batch and the pixels from one of its level's lines to the next; of sums (B, S, H, C) in the
    form's type; rows = B*Q*H; heads; samples of a row. Adds 1 to every channel of a sample's head in the pixel,
    the next one, and the two below.

    The sums of ``add-fixed`` lie as the backward kernel's: (B, S, H, 4, C/4)."""
    form = FORMS[instruction]
    CHUNKS, HEAD, ADD = channels // form.channels, channels * np.dtype(form.dtype).itemsize, form.add
    LANE_BITS = (CHUNKS - 1).bit_length()
    IS_FIXED = form.dtype is np.int64
    BYTES = 8 if IS_FIXED else HEAD // CHUNKS  # from a lane's first word to the next lane's
    STEP = HEAD // 4

    @kernel(threads=THREADS)
    def scatter(places: u64, sums: u64, rows: i32, heads: i32, samples: i32):
        thread = int32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
        lane, number = thread & int32((1 << LANE_BITS) - 1), thread >> int32(LANE_BITS)
        if number >= rows or lane >= CHUNKS:
            return
        head, pixel_bytes = int32(rem_u32(number, heads)), heads * int32(HEAD)
        own = sums + uint64(head * int32(HEAD) + lane * int32(BYTES))
        row = global_at(places, global_at(0, number, samples), 8)
        pixels = cuda.local.array(TOGETHER, uint32)
        strides = cuda.local.array(TOGETHER, uint32)
        for first in range(0, samples, TOGETHER):
            for i in static_range(TOGETHER):
                place = ld_global_nc_v2(global_at(row, min(int32(first + i), int32(samples - 1)), 8))
                pixels[i], strides[i] = place[0], place[1]
            for i in static_range(TOGETHER):
                if first + i < samples:
                    for c in static_range(4):
                        pixel = pixels[i] + uint32(c & 1) + (strides[i] if c >> 1 else uint32(0))
                        ADD(own + uint64(pixel) * uint64(pixel_bytes), STEP)

    return scatter


def blocks(rows, channels, instruction):
    """Grid size: every row has its lanes."""
    lanes = 1 << (channels // FORMS[instruction].channels - 1).bit_length()
    return -(-rows * lanes // THREADS)


def places_of(problem, locations):
    """(B*Q*H*N, 2) uint32 for :func:`build_scatter`: the upper left neighbour of every sample, moved so that
    all four are inside where its level has two lines and two columns."""
    counts = problem.constants.point_counts
    height, width, start, stride = np.repeat(problem.level_table, counts, 0).T
    batch = problem.batch
    places = np.empty((batch, problem.queries * problem.heads, len(height), 2), np.uint32)
    places[..., 1] = np.where(height > 1, stride, 0)
    for b in range(batch):
        xy = locations[b].reshape(*places.shape[1:]).astype(np.float32)
        pixels = np.uint32(b * problem.spatial_size) + start.astype(np.uint32)
        for axis, size, step in ((0, width, 1), (1, height, stride)):
            with np.errstate(invalid="ignore"):
                lower = np.floor(xy[..., axis] * size - 0.5)
            lower = np.clip(np.nan_to_num(lower), 0, np.maximum(size - 2, 0))
            pixels = pixels + (lower * step).astype(np.uint32)
        places[b, ..., 0] = pixels
    return places.reshape(-1, 2)


def trials(case):
    """All trials for the problem of a ``case.Case`` on a GPU; a head's channels that a lane's do not divide
    leave a form out. A pixel right of its level's last column may be the next line's first, of a level with one
    column alone; sums have a line more than they need."""
    gpu, problem, channels = case.gpu, case.problem, case.problem.constants.channels
    places = DeviceArray.of(gpu, places_of(problem, case.arrays[1]))
    for instruction, form in FORMS.items():
        if channels % form.channels:
            continue
        pixels = problem.batch * problem.spatial_size + 1
        sums = DeviceArray(gpu, (pixels, problem.heads, channels), form.dtype)
        sums.fill(0)
        adder, grid = built(build_scatter, channels, instruction), blocks(problem.rows, channels, instruction)
        arguments = (places, sums, problem.rows, problem.heads, problem.constants.samples)
        for shared in SHARED:
            run = functools.partial(launch, gpu, adder, grid, arguments, shared)
            text = f"{instruction}, {shared >> 10} KB a block" if shared else instruction
            yield Trial(form.ceiling, text, run, problem.samples, "tiles")

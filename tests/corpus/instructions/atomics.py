"""Atomic additions of floats to global memory: single numbers, pairs in a word, vectors."""

import ml_dtypes
import numpy as np
from base import right, wrong
from numba import cuda, float32, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.atomics import (
    atom_add_gpu_global_bf16x2,
    atom_add_gpu_global_f16x2,
    atom_add_gpu_global_f32,
    atom_add_gpu_global_v2_bf16x2,
    atom_add_gpu_global_v2_f16x2,
    atom_add_gpu_global_v2_f32,
    atom_add_gpu_global_v4_bf16x2,
    atom_add_gpu_global_v4_f16x2,
    atom_add_gpu_global_v4_f32,
    red_add_gpu_global_bf16x2,
    red_add_gpu_global_f16x2,
    red_add_gpu_global_f32,
    red_add_gpu_global_v2_bf16x2,
    red_add_gpu_global_v2_f16x2,
    red_add_gpu_global_v2_f32,
    red_add_gpu_global_v4_bf16x2,
    red_add_gpu_global_v4_f16x2,
    red_add_gpu_global_v4_f32,
)
from numba_deform.device.half2 import mov_b32_f32, mov_f32_b32
from numba_deform.device.memory import (
    atom_add_gpu_global_u32,
    global_at,
    ld_global_b32,
    ld_global_v4,
    shared_address,
    st_global_b32,
    st_shared_b32,
)
from numba_deform.engines import faults

WARP, THREADS, BLOCKS = 32, 64, 2
RED, ATOM = "PTX ISA 9.7.13.6", "PTX ISA 9.7.13.5"
BF16 = ml_dtypes.bfloat16


def aligned(array):
    """A copy of the array on a multiple of 16 bytes."""
    room = np.zeros(array.nbytes + 16, np.uint8)
    start = -room.__array_interface__["data"][0] % 16
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def small(dtype, *shape, seed=2):
    """Whole numbers that every type sums exactly, whatever the order."""
    return aligned(np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype))


def sums(dtype, columns, rows=BLOCKS * THREADS):
    """Arguments: as many rows as threads, and one row that they are added to."""
    return lambda: [small(dtype, rows, columns), small(dtype, columns, seed=3)]


def summed(dtype, columns):
    start = small(dtype, columns, seed=3).astype(np.float64)
    return lambda data, out: [(out, (data.astype(np.float64).sum(0) + start).astype(dtype))]


def counted():
    """Arguments: rows of floats, room for their sum and a copy of it, and a count of blocks."""
    return [small(np.float32, BLOCKS * THREADS, 4), aligned(np.zeros(8, np.float32)), np.zeros(1, np.uint32)]


def singles(dtype, columns, seed=4):
    """Arguments: for each lane a row, room for what was there, and a row of its own to add to; all random."""
    random = np.random.default_rng(seed)
    rows = [aligned(random.standard_normal((WARP, columns)).astype(dtype)) for _ in range(3)]
    return lambda: [row.copy() if i else row for i, row in enumerate(map(aligned, rows))]


def added(dtype, columns, seed=4):
    old = singles(dtype, columns, seed)()[2].astype(np.float64)
    total = lambda data: (data.astype(np.float64) + old).astype(dtype)  # noqa: E731
    return lambda data, out, place: [(place, total(data)), (out, old.astype(dtype))]


@right(
    source=RED, grid=BLOCKS, block=THREADS, args=sums(np.float32, 8), expect=summed(np.float32, 8),
    explorable=False,
)  # fmt: skip
def floats_one_two_and_four(data: u64, out: u64):
    """All threads of two blocks add their rows to one, in pieces of different sizes."""
    i = int32(cuda.grid(1))
    row = ld_global_v4(global_at(data, i, 32))
    x, y, z, w = mov_f32_b32(row[0]), mov_f32_b32(row[1]), mov_f32_b32(row[2]), mov_f32_b32(row[3])
    if i % 2 == 0:
        red_add_gpu_global_v4_f32(out, x, y, z, w)
    else:
        red_add_gpu_global_v2_f32(out, x, y)
        red_add_gpu_global_f32(out + uint64(8), z)
        red_add_gpu_global_f32(out + uint64(12), w)
    row = ld_global_v4(global_at(data, i, 32) + uint64(16))
    x, y, z, w = mov_f32_b32(row[0]), mov_f32_b32(row[1]), mov_f32_b32(row[2]), mov_f32_b32(row[3])
    atom_add_gpu_global_v2_f32(out + uint64(16), x, y)
    atom_add_gpu_global_v2_f32(out + uint64(24), z, w)


@right(
    source=RED, grid=BLOCKS, block=THREADS, args=sums(np.float16, 8), expect=summed(np.float16, 8),
    explorable=False,
)  # fmt: skip
def halves_one_two_and_four_words(data: u64, out: u64):
    """The same for fp16, two numbers in a word."""
    i = int32(cuda.grid(1))
    row = ld_global_v4(global_at(data, i, 16))
    if i % 2 == 0:
        red_add_gpu_global_v4_f16x2(out, row[0], row[1], row[2], row[3])
    else:
        red_add_gpu_global_v2_f16x2(out, row[0], row[1])
        red_add_gpu_global_f16x2(out + uint64(8), row[2])
        red_add_gpu_global_f16x2(out + uint64(12), row[3])


@right(
    source=RED, grid=BLOCKS, block=THREADS, args=sums(BF16, 8, 32), expect=summed(BF16, 8), explorable=False
)
def brains_one_two_and_four_words(data: u64, out: u64):
    """The same for bf16, which has 8 bits: fewer rows, so that the sums stay exact."""
    i = int32(cuda.grid(1))
    if i < 32:
        row = ld_global_v4(global_at(data, i, 16))
        if i % 2 == 0:
            red_add_gpu_global_v4_bf16x2(out, row[0], row[1], row[2], row[3])
        else:
            red_add_gpu_global_v2_bf16x2(out, row[0], row[1])
            red_add_gpu_global_bf16x2(out + uint64(8), row[2])
            red_add_gpu_global_bf16x2(out + uint64(12), row[3])


@right(source=ATOM, args=singles(np.float32, 7), expect=added(np.float32, 7))
def what_was_there_in_floats(data: u64, out: u64, place: u64):
    """Each lane adds a row to one of its own and writes down what it found. Rows of 7 floats are aligned to 4
    bytes, so that every lane takes the form that fits."""
    i = int32(cuda.threadIdx.x)
    at = uint64(28 * i)
    k = 0
    while k < 7:
        here, a = at + uint64(4 * k), uint32(7 * i + k)
        x = mov_f32_b32(ld_global_b32(data + here))
        if a % 4 == 0 and k <= 3:
            y = mov_f32_b32(ld_global_b32(data + here + uint64(4)))
            z = mov_f32_b32(ld_global_b32(data + here + uint64(8)))
            w = mov_f32_b32(ld_global_b32(data + here + uint64(12)))
            four = atom_add_gpu_global_v4_f32(place + here, x, y, z, w)
            st_global_b32(out + here, mov_b32_f32(four[0]))
            st_global_b32(out + here + uint64(4), mov_b32_f32(four[1]))
            st_global_b32(out + here + uint64(8), mov_b32_f32(four[2]))
            st_global_b32(out + here + uint64(12), mov_b32_f32(four[3]))
            k += 4
        elif a % 2 == 0 and k <= 5:
            y = mov_f32_b32(ld_global_b32(data + here + uint64(4)))
            two = atom_add_gpu_global_v2_f32(place + here, x, y)
            st_global_b32(out + here, mov_b32_f32(two[0]))
            st_global_b32(out + here + uint64(4), mov_b32_f32(two[1]))
            k += 2
        else:
            st_global_b32(out + here, mov_b32_f32(atom_add_gpu_global_f32(place + here, x)))
            k += 1


@right(source=ATOM, args=singles(np.float16, 16), expect=added(np.float16, 16))
def what_was_there_in_halves(data: u64, out: u64, place: u64):
    """As in floats, for rows of 8 words: four words, two, one and one."""
    row = uint64(32 * int32(cuda.threadIdx.x))
    a, b = ld_global_v4(data + row), ld_global_v4(data + row + uint64(16))
    four = atom_add_gpu_global_v4_f16x2(place + row, a[0], a[1], a[2], a[3])
    two = atom_add_gpu_global_v2_f16x2(place + row + uint64(16), b[0], b[1])
    for k in range(4):
        st_global_b32(out + row + uint64(4 * k), four[k])
    for k in range(2):
        st_global_b32(out + row + uint64(16 + 4 * k), two[k])
    st_global_b32(out + row + uint64(24), atom_add_gpu_global_f16x2(place + row + uint64(24), b[2]))
    st_global_b32(out + row + uint64(28), atom_add_gpu_global_f16x2(place + row + uint64(28), b[3]))


@right(source=ATOM, args=singles(BF16, 16), expect=added(BF16, 16))
def what_was_there_in_brains(data: u64, out: u64, place: u64):
    """The same for bf16."""
    row = uint64(32 * int32(cuda.threadIdx.x))
    a, b = ld_global_v4(data + row), ld_global_v4(data + row + uint64(16))
    four = atom_add_gpu_global_v4_bf16x2(place + row, a[0], a[1], a[2], a[3])
    two = atom_add_gpu_global_v2_bf16x2(place + row + uint64(16), b[0], b[1])
    for k in range(4):
        st_global_b32(out + row + uint64(4 * k), four[k])
    for k in range(2):
        st_global_b32(out + row + uint64(16 + 4 * k), two[k])
    st_global_b32(out + row + uint64(24), atom_add_gpu_global_bf16x2(place + row + uint64(24), b[2]))
    st_global_b32(out + row + uint64(28), atom_add_gpu_global_bf16x2(place + row + uint64(28), b[3]))


TINY = np.float32(2.0**-130)


@right(
    source=RED, args=lambda: [aligned(np.array([TINY, -TINY, 1, TINY], np.float32)), np.zeros(4, np.float32)],
    expect=lambda data, out: [(out.view(np.uint32), np.array([0, 0, 1, 0], np.float32).view(np.uint32))],
)  # fmt: skip
def subnormal_floats_are_zeros(data: u64, out: u64):
    """One lane adds numbers below 2^-126, and nothing comes of it."""
    row = ld_global_v4(data)
    if int32(cuda.threadIdx.x) == 0:
        for k in range(4):
            red_add_gpu_global_f32(out + uint64(4 * k), mov_f32_b32(row[k]))


@right(
    source="CUDA samples, threadFenceReduction: the last block reads what all have added",
    grid=BLOCKS, block=THREADS, args=counted, explorable=False,
    expect=lambda data, out, _: [(out[4:], data.sum(0))],
)  # fmt: skip
def the_last_block_reads_the_sum(data: u64, out: u64, count: u64):
    """Each block adds, fences and counts; who counts last has all of it before its plain reads."""
    last = shared_address(cuda.shared.array(1, uint32))
    i = int32(cuda.threadIdx.x)
    row = ld_global_v4(global_at(data, int32(cuda.grid(1)), 16))
    x, y, z, w = mov_f32_b32(row[0]), mov_f32_b32(row[1]), mov_f32_b32(row[2]), mov_f32_b32(row[3])
    red_add_gpu_global_v4_f32(out, x, y, z, w)
    cuda.syncthreads()
    if i == 0:
        cuda.threadfence()
        before = atom_add_gpu_global_u32(count, 1)
        cuda.threadfence()
        st_shared_b32(last, uint32(before))
        if before == BLOCKS - 1:
            for k in range(4):
                st_global_b32(out + uint64(16 + 4 * k), ld_global_b32(out + uint64(4 * k)))


# --- broken twins ---------------------------------------------------------------------------------
@wrong(
    faults.DataRace, source="CUDA samples, threadFenceReduction without its fences",
    grid=BLOCKS, block=THREADS, args=counted,
)  # fmt: skip
def the_last_block_reads_without_a_fence(data: u64, out: u64, count: u64):
    """An atomic count alone orders nothing: the additions are relaxed, and so is the count."""
    i = int32(cuda.threadIdx.x)
    row = ld_global_v4(global_at(data, int32(cuda.grid(1)), 16))
    x, y, z, w = mov_f32_b32(row[0]), mov_f32_b32(row[1]), mov_f32_b32(row[2]), mov_f32_b32(row[3])
    red_add_gpu_global_v4_f32(out, x, y, z, w)
    cuda.syncthreads()
    if i == 0 and atom_add_gpu_global_u32(count, 1) == BLOCKS - 1:
        for k in range(4):
            st_global_b32(out + uint64(16 + 4 * k), ld_global_b32(out + uint64(4 * k)))  # <- fault


@wrong(faults.DataRace, source=RED, args=sums(np.float32, 4, WARP))
def reads_the_sum_at_once(data: u64, out: u64):
    """Lane 0 reads the second half of the vector with nothing between it and the others' additions."""
    i = int32(cuda.threadIdx.x)
    row = ld_global_v4(global_at(data, i, 16))
    x, y, z, w = mov_f32_b32(row[0]), mov_f32_b32(row[1]), mov_f32_b32(row[2]), mov_f32_b32(row[3])
    red_add_gpu_global_v4_f32(out, x, y, z, w)  # <- fault
    if i == 0:
        st_global_b32(data, ld_global_b32(out + uint64(12)))  # <- fault


@wrong(faults.DataRace, source=RED, args=sums(np.float16, 8, WARP))
def starts_from_zero_at_once(data: u64, out: u64):
    """Lane 0 clears the sum, and the other lanes add to it without a barrier after that."""
    i = int32(cuda.threadIdx.x)
    row = ld_global_v4(global_at(data, i, 16))
    if i == 0:
        st_global_b32(out + uint64(8), uint32(0))  # <- fault
    red_add_gpu_global_v4_f16x2(out, row[0], row[1], row[2], row[3])  # <- fault


@wrong(faults.Misaligned, source=RED, args=sums(np.float32, 8, WARP))
def four_floats_on_a_multiple_of_eight(data: u64, out: u64):
    """A vector lies on a multiple of all of it."""
    x = float32(int32(cuda.threadIdx.x))
    red_add_gpu_global_v4_f32(out + uint64(8), x, x, x, x)  # <- fault


@wrong(faults.OutOfRange, source=RED, args=sums(BF16, 4, WARP))
def four_words_into_two(data: u64, out: u64):
    """The row has two words."""
    red_add_gpu_global_v4_bf16x2(out, uint32(0), uint32(0), uint32(0), uint32(0))  # <- fault

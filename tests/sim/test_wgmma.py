"""wgmma on the CPU engine: numbers, descriptors, and what belongs to a product while it is in flight.

Layouts of shared memory and most wrong uses are programs of the corpus (corpus/instructions/wgmma.py)."""

from collections import namedtuple

import helpers
import ml_dtypes
import numpy as np
import pytest
from helpers import LANDINGS, alike
from numba import cuda, float32, uint16, uint32

from numba_deform.compiler import static_range
from numba_deform.device import wgmma
from numba_deform.device.memory import shared_address
from numba_deform.device.sync import clock64, fence_proxy_async
from numba_deform.device.wgmma import (
    wgmma_commit_group,
    wgmma_descriptor,
    wgmma_fence,
    wgmma_m64n64k16_f16,
    wgmma_wait_group,
    wgmma_wait_group_n64,
)
from numba_deform.engines import faults

ROWS, DEPTH, THREADS, SUMS = 64, 16, 128, 32
SIZE, TWICE = ROWS * DEPTH, 2 * SUMS
DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
Pair = namedtuple("Pair", "left right")


def run(kernel, *args, block, **options):
    """As machine code it does the same."""
    helpers.run(kernel, *args, block=block, **options)
    assert alike(kernel, *args, block=block)[1]


def clean(kernel, *args, block):
    """The same in every order."""
    helpers.clean(kernel, *args, block=block)
    assert alike(kernel, *args, block=block)[1]


def always(kind, kernel, *args, block, **options):
    """It ends in that fault in every order, and machine code has no other opinion."""
    helpers.always(kind, kernel, *args, block=block, **options)
    assert not alike(kernel, *args, block=block)[1]


def expect(kind, kernel, *args, block, **options):
    helpers.expect(kind, kernel, *args, block=block, **options)
    assert not alike(kernel, *args, block=block)[1]


@cuda.jit(device=True)
def put(tile, words):
    """A matrix (rows, 16) of 16-bit elements, K-major without a swizzle: eight rows are two times 128 bytes."""
    for i in range(cuda.threadIdx.x, words.size, cuda.blockDim.x):
        row, k = i // 16, i % 16
        tile[row // 8 * 128 + k // 8 * 64 + row % 8 * 8 + k % 8] = words[row, k]


@cuda.jit(device=True, forceinline=True)
def describe(tile):
    return wgmma_descriptor(shared_address(tile), uint32(128), uint32(256), uint32(0), uint32(0))


@cuda.jit(device=True)
def ready(tile, words):
    """The descriptor of the matrix in shared memory, once it is there for products."""
    put(tile, words)
    fence_proxy_async()
    cuda.syncthreads()
    return describe(tile)


def matrix(seed=0, rows=ROWS, dtype=np.float16):
    numbers = np.random.default_rng(seed).standard_normal((rows, DEPTH))
    return numbers.astype(dtype).view(np.uint16)


def number(words, dtype=np.float16):
    return words.view(dtype).astype(np.float64)


def fragments(d):
    """What each thread holds of D (64, columns), by the definition."""
    thread, register = np.ogrid[:THREADS, : d.shape[1] // 2]
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (register // 2 % 2)
    return d[row, 8 * (register // 4) + 2 * (thread % 4) + register % 2]


def one_product(kind, columns, in_registers):
    """A kernel: out = a b^T + out, for ``a`` in shared memory or in the threads' words."""
    multiply = getattr(wgmma, f"wgmma_m64n{columns}k16_{kind}{'_ra' * in_registers}")
    wait, COUNT = getattr(wgmma, f"wgmma_wait_group_n{columns}"), columns // 2
    A_SIZE, B_SIZE, IN_REGISTERS = ROWS * DEPTH, columns * DEPTH, in_registers

    def kernel(a, b, words, out):
        left = cuda.shared.array(A_SIZE, uint16, alignment=128)
        right = cuda.shared.array(B_SIZE, uint16, alignment=128)
        sums, t = cuda.local.array(COUNT, float32), cuda.threadIdx.x
        x, y = ready(left, a), ready(right, b)
        for i in range(COUNT):
            sums[i] = out[t, i]
        wgmma_fence()
        if IN_REGISTERS:
            multiply(sums, words[t, 0], words[t, 1], words[t, 2], words[t, 3], y, uint32(1), uint32(0))
        else:
            multiply(sums, x, y, uint32(1), uint32(0), uint32(0))
        wgmma_commit_group()
        wait(sums, uint32(0))
        for i in range(COUNT):
            out[t, i] = sums[i]

    return kernel


@pytest.mark.parametrize(
    ("kind", "columns", "in_registers"),
    [(kind, n, False) for kind in DTYPES for n in (64, 128, 256)]
    + [(kind, n, True) for kind in DTYPES for n in (64, 128)],
)
def test_a_product_is_rounded_once(kind, columns, in_registers):
    dtype = DTYPES[kind]
    a, b = matrix(1, ROWS, dtype), matrix(2, columns, dtype)
    a[3, 5] = np.array(np.inf, dtype).view(np.uint16)
    thread, register, half = np.ogrid[:THREADS, :4, :2]
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (register % 2)
    words = a[row, 2 * (thread % 4) + half + 8 * (register // 2)].copy().view(np.uint32)[..., 0]
    before = np.random.default_rng(3).standard_normal((ROWS, columns)).astype(np.float32)
    out = fragments(before)
    run(one_product(kind, columns, in_registers), a, b, words, out, block=THREADS)
    with np.errstate(invalid="ignore"):
        want = (number(a, dtype) @ number(b, dtype).T + before).astype(np.float32)
    np.testing.assert_allclose(out, fragments(want), rtol=1e-6)
    assert np.isinf(want[3]).all()


def test_a_descriptor_is_its_fields():
    """Addresses and offsets by 16 bytes, 14 bits each; base and swizzle above them."""

    def kernel(out):
        out[0] = wgmma_descriptor(uint32(0x3FFF0), uint32(16), uint32(1024), uint32(5), uint32(3))
        out[1] = wgmma_descriptor(uint32(2048), uint32(0x3FFF0), uint32(0), uint32(0), uint32(1))

    out = np.zeros(2, np.uint64)
    run(kernel, out, block=1)
    assert int(out[0]) == 0x3FFF | 1 << 16 | 64 << 32 | 5 << 49 | 3 << 62
    assert int(out[1]) == 128 | 0x3FFF << 16 | 1 << 62


@pytest.mark.parametrize(
    ("operands", "words"),
    [
        ((8, 16, 16, 0, 0), "address 0x8"), ((16, 8, 16, 0, 0), "leading 0x8"),
        ((16, 16, 8, 0, 0), "stride 0x8"), ((1 << 18, 16, 16, 0, 0), "address 0x40000"),
        ((16, 16, 16, 8, 0), "base 8"), ((16, 16, 16, 0, 4), "swizzle 4"),
    ],
)  # fmt: skip
def test_what_a_descriptor_cannot_say(operands, words):
    ADDRESS, LEADING, STRIDE, BASE, SWIZZLE = operands

    def kernel(out):
        out[0] = wgmma_descriptor(
            uint32(ADDRESS), uint32(LEADING), uint32(STRIDE), uint32(BASE), uint32(SWIZZLE)
        )

    expect(faults.BadMatrixDescriptor, kernel, np.zeros(1, np.uint64), words=words, block=1)


def test_groups_are_counted_and_above_three_is_three():
    """Five groups with sums of their own; each wait names how many may still be open."""

    def kernel(a, out):
        tile = cuda.shared.array(SIZE, uint16, alignment=128)
        first, second = cuda.local.array(SUMS, float32), cuda.local.array(SUMS, float32)
        x = ready(tile, a)
        wgmma_fence()
        wgmma_m64n64k16_f16(first, x, x, uint32(0), uint32(0), uint32(0))
        wgmma_commit_group()
        for _ in range(3):
            wgmma_m64n64k16_f16(second, x, x, uint32(0), uint32(0), uint32(0))
            wgmma_commit_group()
        wgmma_wait_group_n64(first, uint32(9))
        out[cuda.threadIdx.x, 0] = first[0]
        wgmma_wait_group_n64(second, uint32(0))
        out[cuda.threadIdx.x, 1] = second[0]

    a, out = matrix(), np.zeros((THREADS, 2), np.float32)
    for landing in LANDINGS:
        run(kernel, a, out, block=THREADS, landing=landing)
        want = fragments((number(a) @ number(a).T).astype(np.float32))[:, 0]
        np.testing.assert_allclose(out, np.stack([want, want], 1), rtol=1e-6)


@pytest.mark.parametrize("pending", [1, 2])
def test_an_older_group_may_still_be_open(pending):
    PENDING = pending

    def kernel(a, out):
        tile = cuda.shared.array(SIZE, uint16, alignment=128)
        first, second = cuda.local.array(SUMS, float32), cuda.local.array(SUMS, float32)
        x = ready(tile, a)
        wgmma_fence()
        wgmma_m64n64k16_f16(first, x, x, uint32(0), uint32(0), uint32(0))
        wgmma_commit_group()
        wgmma_m64n64k16_f16(second, x, x, uint32(0), uint32(0), uint32(0))
        wgmma_commit_group()
        wgmma_wait_group_n64(first, uint32(PENDING))
        out[cuda.threadIdx.x, 0] = first[0]
        wgmma_wait_group(uint32(0))

    args = matrix(), np.zeros((THREADS, 1), np.float32)
    if pending == 1:
        clean(kernel, *args, block=THREADS)
    else:
        always(faults.AccumulatorInFlight, kernel, *args, block=THREADS, source="= first[0]")


def test_sums_in_flight_may_not_be_written():
    def kernel(a, out):
        tile = cuda.shared.array(SIZE, uint16, alignment=128)
        sums = cuda.local.array(SUMS, float32)
        x = ready(tile, a)
        wgmma_fence()
        wgmma_m64n64k16_f16(sums, x, x, uint32(0), uint32(0), uint32(0))
        for i in static_range(SUMS):
            sums[i] = float32(0)
        wgmma_commit_group()
        wgmma_wait_group(uint32(0))

    always(faults.AccumulatorInFlight, kernel, matrix(), np.zeros(1, np.float32), block=THREADS,
           words="has not been committed", source="sums[i] = float32(0)")  # fmt: skip


def test_a_fence_is_for_sums_wherever_they_are():
    """In a tuple, in the caller's variables, or made behind the fence and written by nobody."""

    @cuda.jit(device=True)
    def clear_and_fence(sums):
        for i in range(SUMS):
            sums.left[i], sums.right[i] = float32(0), float32(0)
        wgmma_fence()

    def kernel(a, out):
        tile = cuda.shared.array(SIZE, uint16, alignment=128)
        sums = Pair(cuda.local.array(SUMS, float32), cuda.local.array(SUMS, float32))
        x = ready(tile, a)
        clear_and_fence(sums)
        late = cuda.local.array(SUMS, float32)
        wgmma_m64n64k16_f16(sums.left, x, x, uint32(1), uint32(0), uint32(0))
        wgmma_m64n64k16_f16(sums.right, x, x, uint32(1), uint32(0), uint32(0))
        wgmma_m64n64k16_f16(late, x, x, uint32(0), uint32(0), uint32(0))
        wgmma_commit_group()
        wgmma_wait_group_n64(late, uint32(0))
        for i in range(SUMS):
            out[cuda.threadIdx.x, i] = sums.left[i] + sums.right[i] + late[i]

    a, out = matrix(), np.zeros((THREADS, SUMS), np.float32)
    run(kernel, a, out, block=THREADS)
    np.testing.assert_allclose(out, 3 * fragments((number(a) @ number(a).T).astype(np.float32)), rtol=1e-5)


def test_reading_sums_takes_a_fence_as_well():
    def kernel(a, out):
        tile = cuda.shared.array(SIZE, uint16, alignment=128)
        sums = cuda.local.array(SUMS, float32)
        x = ready(tile, a)
        wgmma_fence()
        for step in range(2):
            wgmma_m64n64k16_f16(sums, x, x, uint32(step), uint32(0), uint32(0))
            wgmma_commit_group()
            wgmma_wait_group_n64(sums, uint32(0))
            out[cuda.threadIdx.x] = sums[0]

    always(faults.MissingWarpgroupFence, kernel, matrix(), np.zeros(THREADS, np.float32), block=THREADS,
           words="since its last wgmma.fence", source="wgmma_m64n64k16_f16")  # fmt: skip


def test_a_part_of_an_array_is_no_accumulator():
    def kernel(a, out):
        tile = cuda.shared.array(SIZE, uint16, alignment=128)
        sums = cuda.local.array(TWICE, float32)
        x = ready(tile, a)
        wgmma_fence()
        wgmma_m64n64k16_f16(sums[SUMS:], x, x, uint32(0), uint32(0), uint32(0))
        wgmma_commit_group()
        wgmma_wait_group(uint32(0))

    expect(faults.OutOfRange, kernel, matrix(), np.zeros(1, np.float32), block=THREADS,
           words="a local array of 32 float32")  # fmt: skip


def test_another_thread_writes_after_the_wait_of_one():
    """A warp's wait ends the reads of the whole product: behind a barrier, other warps may write there."""

    def kernel(a, out):
        tile = cuda.shared.array(SIZE, uint16, alignment=128)
        sums = cuda.local.array(SUMS, float32)
        x = ready(tile, a)
        if cuda.threadIdx.x < THREADS:
            wgmma_fence()
            wgmma_m64n64k16_f16(sums, x, x, uint32(0), uint32(0), uint32(0))
            wgmma_commit_group()
            wgmma_wait_group_n64(sums, uint32(0))
            out[cuda.threadIdx.x] = sums[0]
        cuda.syncthreads()
        if cuda.threadIdx.x >= THREADS:
            tile[cuda.threadIdx.x - THREADS] = uint16(0)

    clean(kernel, matrix(), np.zeros(THREADS, np.float32), block=160)


def test_half_of_the_warpgroup_calls_another_product():
    def kernel(a):
        tile = cuda.shared.array(SIZE, uint16, alignment=128)
        sums = cuda.local.array(SUMS, float32)
        x = ready(tile, a)
        wgmma_fence()
        if cuda.threadIdx.x < 64:
            wgmma_m64n64k16_f16(sums, x, x, uint32(0), uint32(0), uint32(0))
        else:
            wgmma_m64n64k16_f16(sums, x, x, uint32(0), uint32(0), uint32(0))
        wgmma_commit_group()
        wgmma_wait_group_n64(sums, uint32(0))

    always(faults.WarpDivergence, kernel, matrix(), words=("while warp", "execute the same wgmma together"),
           block=THREADS)  # fmt: skip


def test_the_block_is_too_small_for_its_warpgroup():
    def kernel(a):
        tile = cuda.shared.array(SIZE, uint16, alignment=128)
        sums = cuda.local.array(SUMS, float32)
        put(tile, a)
        wgmma_fence()
        x = describe(tile)
        wgmma_m64n64k16_f16(sums, x, x, uint32(0), uint32(0), uint32(0))

    expect(faults.WarpDivergence, kernel, matrix(), words="the block has 96 threads", block=96)


def test_a_product_takes_its_time():
    """An m64n64k16 product is 65,536 multiply-adds, and an SM does 2048 a cycle."""

    def kernel(a, times):
        tile = cuda.shared.array(SIZE, uint16, alignment=128)
        sums = cuda.local.array(SUMS, float32)
        x = ready(tile, a)
        start = clock64()
        wgmma_fence()
        for k in range(16):
            wgmma_m64n64k16_f16(sums, x, x, uint32(k), uint32(0), uint32(0))
        wgmma_commit_group()
        wgmma_wait_group_n64(sums, uint32(0))
        times[cuda.threadIdx.x] = clock64() - start

    times = np.zeros(THREADS, np.uint64)
    run(kernel, matrix(), times, block=THREADS)
    least = 16 * 65536 // 2048
    assert ((least <= times) & (times < 2 * least)).all()

"""wgmma: products of a warpgroup in all layouts of shared memory, and what is wrong use of them."""

import ml_dtypes
import numpy as np
from base import right, wrong
from numba import cuda, float32, int32, uint8, uint32, uint64

from numba_deform.compiler import static_range
from numba_deform.device import wgmma
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import shared_address, shared_at, st_shared_b32
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import bar_sync, fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import cp_async_bulk_tensor_2d, fence_proxy_tensormap_acquire_sys
from numba_deform.device.wgmma import (
    SWIZZLE_128B,
    wgmma_commit_group,
    wgmma_descriptor,
    wgmma_fence,
    wgmma_m64n64k16_f16,
    wgmma_m64n64k16_f16_ra,
    wgmma_wait_group,
    wgmma_wait_group_n64,
)
from numba_deform.engines import faults
from numba_deform.engines.tensormap import TensorMap, TensorMapArray

THREADS, ROWS, DEPTH, MAP = 128, 64, 64, 128
SECTION, ORDER, DESCRIPTOR = "PTX ISA 9.7.15.5", "PTX ISA 9.7.15.7", "PTX ISA 9.7.15.5.1.2"
SWIZZLE, ASYNC = "PTX ISA 5.5.7; 9.7.15.5.1.2.2", "PTX ISA 9.7.15.4"
CUTLASS = "CUTLASS include/cute/arch/mma_sm90_desc.hpp, canonical layouts"
MODES = {"none": 0, "128B": 1, "64B": 2, "32B": 3}
SPANS = {"none": 16, "128B": 128, "64B": 64, "32B": 32}


def matrices(columns, dtype=np.float16):
    """A (64, 64) and B (columns, 64), of small integers whose products and sums are exact."""
    random = np.random.default_rng(columns)
    return [random.integers(-3, 4, (rows, DEPTH)).astype(dtype) for rows in (ROWS, columns)]


def fragments(d):
    """What the 128 threads hold of D (64, columns): (128, columns / 2)."""
    out = np.zeros((THREADS, d.shape[1] // 2), np.float32)
    for thread in range(THREADS):
        warp, g, t = thread // 32, thread % 32 // 4, thread % 4
        for i in range(out.shape[1]):
            j, half, odd = i // 4, i // 2 % 2, i % 2
            out[thread, i] = d[16 * warp + g + 8 * half, 8 * j + 2 * t + odd]
    return out


# Bytes of 64 x 64 fp16, what a thread holds of their product, and other sizes.
TILE, WIDER, SUMS, TOO_FEW = 64 * 128, 64 * 128 + 1024, 32, 16
BOX = (64, 64)


def square():
    """Arguments: the map of one matrix (64, 64), which is A and B, and room for the result."""
    return [TensorMapArray([TensorMap.of(matrices(64)[0], BOX, swizzle="128B")]), room()]


def room():
    return np.full((THREADS, SUMS), np.nan, np.float32)


def product_of_a_square(maps, out):
    matrix = maps[0].array.astype(np.float32)
    return [(out, fragments(matrix @ matrix.T))]


def plain_square():
    """The same, with the matrix as words."""
    return [matrices(64)[0].view(np.uint32), room()]


def product_of_plain_words(words, out):
    matrix = words.view(np.float16).astype(np.float32)
    return [(out, fragments(matrix @ matrix.T))]


def product_of_doubled_halves(words, out):
    first, second = (half.astype(np.float32) for half in np.split(words.view(np.float16), 2, axis=1))
    return [(out, fragments(4 * first @ first.T + 2 * second @ second.T))]


def a_in_registers():
    """Arguments: the words of A (64, 64) that each thread holds, four for each 16 of k; the map of B, whose
    rows are along k; room for the result."""
    left, right = matrices(64)
    words = np.zeros((THREADS, 16, 2), np.float16)
    for thread in range(THREADS):
        warp, g, t = thread // 32, thread % 32 // 4, thread % 4
        for i in range(16):
            row, column = 16 * warp + g + 8 * (i % 2), 16 * (i // 4) + 2 * t + 8 * (i // 2 % 2)
            words[thread, i] = left[row, column : column + 2]
    b = TensorMap.of(np.ascontiguousarray(right.T), BOX, swizzle="128B")
    return [words.view(np.uint32)[..., 0].copy(), TensorMapArray([b]), room()]


def product_of_registers(words, maps, out):
    left, right = (m.astype(np.float32) for m in matrices(64))
    return [(out, fragments(left @ right.T))]


@cuda.jit(device=True)
def load_tile(tile, maps, bar):
    """The box goes to ``tile``, and counts on ``bar``."""
    if cuda.threadIdx.x == 0:
        mbarrier_init(bar, uint32(1))
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(maps)
        mbarrier_arrive_expect_tx(bar, uint32(TILE))
        cp_async_bulk_tensor_2d(tile, maps, int32(0), int32(0), bar)
    cuda.syncthreads()


@cuda.jit(device=True)
def store_tile(tile, words):
    """The matrix by ordinary stores under 128B swizzle: line c of row r at c ^ (r % 8), from the tile's
    start."""
    for i in range(cuda.threadIdx.x, TILE // 4, THREADS):
        row, word = i // 32, i % 32
        place = uint32(128 * row + ((16 * (word // 4)) ^ (16 * (row % 8))) + 4 * (word % 4))
        st_shared_b32(uint32(tile + place), words[row, word])


@cuda.jit(device=True)
def loaded_tile(maps):
    """The address of a tile in which the box lies: all threads have waited for it."""
    tile = shared_address(cuda.shared.array(TILE, uint8, alignment=1024))
    bar = shared_address(cuda.shared.array(1, uint64))
    load_tile(tile, maps, bar)
    mbarrier_wait(bar, 0)
    return tile


@cuda.jit(device=True)
def stored_tile(words):
    """The address of a tile in which the matrix lies by ordinary stores, for all of the block to multiply."""
    tile = shared_address(cuda.shared.array(TILE, uint8, alignment=1024))
    store_tile(tile, words)
    fence_proxy_async()
    cuda.syncthreads()
    return tile


@cuda.jit(device=True, forceinline=True)
def multiply_square(sums, tile, base):
    """sums = M M^T of the matrix at ``tile``, in no group yet."""
    d = wgmma_descriptor(tile, uint32(0), uint32(1024), base, uint32(SWIZZLE_128B))
    for k in static_range(4):
        x = d + uint64(2 * k)
        wgmma_m64n64k16_f16(sums, x, x, uint32(k), uint32(0), uint32(0))


@cuda.jit(device=True, forceinline=True)
def store_sums(out, sums):
    for i in static_range(SUMS):
        out[cuda.threadIdx.x, i] = sums[i]


@cuda.jit(device=True, forceinline=True)
def finish(out, sums):
    """Wait for the products that have been issued, and store their sums."""
    wgmma_commit_group()
    wgmma_wait_group_n64(sums, uint32(0))
    store_sums(out, sums)


class Operand:
    """How a matrix (rows, 64) lies in shared memory, in boxes that TMA brings.

    boxes    their number; each has ``bytes``, ``box`` elements (innermost first), and begins ``width`` after
             the one before
    steps    where each 16 of k begins, in bytes
    """

    def __init__(self, rows, swizzle, transposed):
        self.transposed, self.swizzle, self.mode = transposed, swizzle, MODES[swizzle]
        span = SPANS[swizzle]
        self.width = span // 2
        along, across = (rows, DEPTH) if transposed else (DEPTH, rows)
        self.box, self.boxes, self.bytes = (self.width, across), along // self.width, across * span
        if transposed and swizzle == "none":
            self.leading, self.stride = 8 * span, self.bytes
        elif transposed:
            self.leading, self.stride = self.bytes, 8 * span
        else:
            self.leading, self.stride = self.bytes, 8 * span
        steps = range(0, DEPTH, 16)
        if transposed:
            self.steps = tuple(k * span for k in steps)
        else:
            self.steps = tuple(k // self.width * self.bytes + k % self.width * 2 for k in steps)

    def map(self, matrix):
        matrix = np.ascontiguousarray(matrix.T) if self.transposed else matrix
        return TensorMap.of(matrix, self.box, swizzle=self.swizzle)


def layout(name, columns, kind, a, b):
    """A right program: one warpgroup multiplies A and B, which TMA has brought in, in four steps along k."""
    dtype = np.float16 if kind == "f16" else ml_dtypes.bfloat16
    product = getattr(wgmma, f"wgmma_m64n{columns}k16_{kind}")
    wait = getattr(wgmma, f"wgmma_wait_group_n{columns}")
    A_BOXES, A_WIDTH, A_BYTES, A_STEPS = a.boxes, a.width, a.bytes, a.steps
    B_BOXES, B_WIDTH, B_BYTES, B_STEPS = b.boxes, b.width, b.bytes, b.steps
    A_LEADING, A_STRIDE, A_MODE, A_TRANS = a.leading, a.stride, a.mode, int(a.transposed)
    B_LEADING, B_STRIDE, B_MODE, B_TRANS = b.leading, b.stride, b.mode, int(b.transposed)
    B_START, BYTES, SUMS = A_BOXES * A_BYTES, A_BOXES * A_BYTES + B_BOXES * B_BYTES, columns // 2

    def multiply(maps, out):
        """Every layout that a descriptor can say, of boxes as TMA leaves them."""
        tiles = shared_address(cuda.shared.array(BYTES, uint8, alignment=1024))
        bar = shared_address(cuda.shared.array(1, uint64))
        sums, thread = cuda.local.array(SUMS, float32), cuda.threadIdx.x
        if thread == 0:
            mbarrier_init(bar, uint32(1))
            fence_mbarrier_init()
            fence_proxy_tensormap_acquire_sys(maps)
            fence_proxy_tensormap_acquire_sys(maps + uint64(MAP))
            mbarrier_arrive_expect_tx(bar, uint32(BYTES))
            for i in range(A_BOXES):
                cp_async_bulk_tensor_2d(shared_at(tiles, i, A_BYTES), maps, int32(A_WIDTH * i), int32(0), bar)
            for i in range(B_BOXES):
                tile = shared_at(uint32(tiles + uint32(B_START)), i, B_BYTES)
                cp_async_bulk_tensor_2d(tile, maps + uint64(MAP), int32(B_WIDTH * i), int32(0), bar)
        cuda.syncthreads()
        mbarrier_wait(bar, 0)
        wgmma_fence()
        for k in static_range(4):
            x = uint32(tiles + uint32(A_STEPS[k]))
            y = uint32(tiles + uint32(B_START + B_STEPS[k]))
            product(
                sums, wgmma_descriptor(x, uint32(A_LEADING), uint32(A_STRIDE), uint32(0), uint32(A_MODE)),
                wgmma_descriptor(y, uint32(B_LEADING), uint32(B_STRIDE), uint32(0), uint32(B_MODE)),
                uint32(k), uint32(A_TRANS), uint32(B_TRANS),
            )  # fmt: skip
        wgmma_commit_group()
        wait(sums, uint32(0))
        for i in static_range(SUMS):
            out[thread, i] = sums[i]

    def arguments():
        left, right = matrices(columns, dtype)
        maps = TensorMapArray([a.map(left), b.map(right)])
        return [maps, np.full((THREADS, SUMS), np.nan, np.float32)]

    def expected(maps, out):
        left, right = matrices(columns, dtype)
        return [(out, fragments(left.astype(np.float32) @ right.astype(np.float32).T))]

    multiply.__name__ = multiply.__qualname__ = name
    return right(source=CUTLASS, block=THREADS, args=arguments, expect=expected, explorable=False)(multiply)


for columns, kind, a_swizzle, b_swizzle, trans_a, trans_b in (
    (64, "f16", "128B", "128B", False, False),
    (64, "f16", "64B", "32B", False, False),
    (64, "f16", "32B", "64B", False, False),
    (64, "f16", "none", "none", False, False),
    (64, "bf16", "128B", "128B", True, True),
    (64, "f16", "64B", "32B", True, True),
    (64, "f16", "32B", "64B", True, True),
    (64, "f16", "none", "none", True, True),
    (128, "f16", "128B", "128B", False, True),
    (128, "f16", "none", "64B", False, True),
    (128, "bf16", "32B", "none", True, False),
    (256, "f16", "128B", "128B", False, False),
    (256, "bf16", "64B", "128B", True, True),
):  # fmt: skip
    majors = "".join("mk"[not each] for each in (trans_a, trans_b))
    layout(
        f"product_of_{columns}_columns_{kind}_{majors}_{a_swizzle}_{b_swizzle}", columns, kind,
        Operand(ROWS, a_swizzle, trans_a), Operand(columns, b_swizzle, trans_b),
    )  # fmt: skip


@right(source=SECTION, block=THREADS, args=a_in_registers, expect=product_of_registers, explorable=False)
def a_comes_in_registers(words, maps, out):
    """A's four words a thread are loaded by the thread itself, before the fence; B is N-major."""
    tile = shared_address(cuda.shared.array(TILE, uint8, alignment=1024))
    bar = shared_address(cuda.shared.array(1, uint64))
    sums, x = cuda.local.array(SUMS, float32), cuda.local.array(16, uint32)
    load_tile(tile, maps, bar)
    mbarrier_wait(bar, 0)
    for i in static_range(16):
        x[i] = words[cuda.threadIdx.x, i]
    wgmma_fence()
    for k in static_range(4):
        rows = uint32(tile + uint32(2048 * k))
        b = wgmma_descriptor(rows, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))
        wgmma_m64n64k16_f16_ra(
            sums, x[4 * k], x[4 * k + 1], x[4 * k + 2], x[4 * k + 3], b, uint32(k), uint32(1)
        )
    finish(out, sums)


@right(source=SWIZZLE, block=THREADS, args=square, expect=product_of_a_square, explorable=False)
def a_box_at_384_bytes(maps, out):
    """A box under 128B swizzle lies on 128 bytes, not on 1024. TMA goes by the bits of the address, and so
    does a product whose descriptor has base 0."""
    tile = shared_address(cuda.shared.array(WIDER, uint8, alignment=1024)) + 384
    bar = shared_address(cuda.shared.array(1, uint64))
    sums = cuda.local.array(SUMS, float32)
    load_tile(uint32(tile), maps, bar)
    mbarrier_wait(bar, 0)
    wgmma_fence()
    multiply_square(sums, uint32(tile), uint32(0))
    finish(out, sums)


@right(source=DESCRIPTOR, block=THREADS, args=plain_square, expect=product_of_plain_words, explorable=False)
def a_pattern_from_384_bytes_on(words, out):
    """Ordinary stores swizzle by the row's number in the tile, which begins at 384 bytes: the descriptor's base
    says where the pattern begins."""
    tile = shared_address(cuda.shared.array(WIDER, uint8, alignment=1024)) + 384
    sums = cuda.local.array(SUMS, float32)
    store_tile(uint32(tile), words)
    fence_proxy_async()
    cuda.syncthreads()
    wgmma_fence()
    multiply_square(sums, uint32(tile), uint32(3))
    finish(out, sums)


@right(source=ORDER, block=THREADS, args=plain_square, expect=product_of_doubled_halves)
def sums_are_doubled_on_the_way(words, out):
    """Sums are read and written between two groups, with a wait before and a fence behind: what the first
    half of k gave is doubled twice."""
    tile, sums = stored_tile(words), cuda.local.array(SUMS, float32)
    d = wgmma_descriptor(tile, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))
    for part in range(2):
        wgmma_fence()
        for k in static_range(2):
            x = d + uint64(4 * part + 2 * k)
            wgmma_m64n64k16_f16(sums, x, x, uint32(part + k), uint32(0), uint32(0))
        wgmma_commit_group()
        wgmma_wait_group_n64(sums, uint32(0))
        for i in static_range(SUMS):
            sums[i] = float32(sums[i] * float32(2))
    store_sums(out, sums)


@right(source=ORDER, block=2 * THREADS, args=square, expect=product_of_a_square, explorable=False)
def one_thread_waits_and_the_second_warpgroup_multiplies(maps, out):
    """One thread waits for the box and a named barrier tells its warpgroup; each product is a group of its
    own, and the last wait is for all. The fence stands once, though four products follow."""
    tile = shared_address(cuda.shared.array(TILE, uint8, alignment=1024))
    bar = shared_address(cuda.shared.array(1, uint64))
    load_tile(tile, maps, bar)
    if cuda.threadIdx.x >= THREADS:
        sums = cuda.local.array(SUMS, float32)
        if cuda.threadIdx.x == THREADS:
            mbarrier_wait(bar, 0)
        bar_sync(uint32(1), uint32(THREADS))
        d = wgmma_descriptor(tile, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))
        wgmma_fence()
        for k in static_range(4):
            x = d + uint64(2 * k)
            wgmma_m64n64k16_f16(sums, x, x, uint32(k), uint32(0), uint32(0))
            wgmma_commit_group()
            wgmma_wait_group(uint32(1))
        wgmma_wait_group_n64(sums, uint32(0))
        for i in static_range(SUMS):
            out[cuda.threadIdx.x - THREADS, i] = sums[i]


# --- and what is wrong ------------------------------------------------------------------------------
@right(source=ORDER, block=THREADS, args=square, expect=product_of_a_square, explorable=False)
def sums_behind_a_plain_wait(maps, out):
    """wgmma.wait_group names no registers, and PTX asks for no more before sums are read: a compiler that moves
    a read ahead of it has to wait there."""
    tile, sums = loaded_tile(maps), cuda.local.array(SUMS, float32)
    d = wgmma_descriptor(tile, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))
    wgmma_fence()
    for k in range(4):
        step = d + uint64(2 * k)
        wgmma_m64n64k16_f16(sums, step, step, uint32(k), uint32(0), uint32(0))
    wgmma_commit_group()
    wgmma_wait_group(uint32(0))
    store_sums(out, sums)


@wrong(faults.MissingWarpgroupFence, source=ORDER, block=THREADS, args=plain_square)
def no_fence_at_all(words, out):
    """The first product has no wgmma.fence before it."""
    tile, sums = stored_tile(words), cuda.local.array(SUMS, float32)
    d = wgmma_descriptor(tile, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))
    wgmma_m64n64k16_f16(sums, d, d, uint32(0), uint32(0), uint32(0))  # <- fault
    finish(out, sums)


@wrong(faults.MissingWarpgroupFence, source=ORDER, block=THREADS, args=plain_square)
def zeros_behind_the_fence(words, out):
    """The sums are cleared after the fence that should order it before the product."""
    tile, sums = stored_tile(words), cuda.local.array(SUMS, float32)
    d = wgmma_descriptor(tile, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))
    wgmma_fence()
    for i in static_range(SUMS):
        sums[i] = float32(0)
    wgmma_m64n64k16_f16(sums, d, d, uint32(1), uint32(0), uint32(0))  # <- fault
    finish(out, sums)


@wrong(faults.MissingWarpgroupFence, source=ORDER, block=THREADS, args=plain_square)
def no_fence_after_the_sums_are_scaled(words, out):
    """As sums_are_doubled_on_the_way, with one fence for both parts."""
    tile, sums = stored_tile(words), cuda.local.array(SUMS, float32)
    d = wgmma_descriptor(tile, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))
    wgmma_fence()
    for part in range(2):
        wgmma_m64n64k16_f16(sums, d, d, uint32(part), uint32(0), uint32(0))  # <- fault
        wgmma_commit_group()
        wgmma_wait_group_n64(sums, uint32(0))
        for i in static_range(SUMS):
            sums[i] = float32(sums[i] * float32(2))
    store_sums(out, sums)


@wrong(faults.AccumulatorInFlight, source=ORDER, block=THREADS, args=square)
def sums_are_read_without_a_wait(maps, out):
    """The group is committed, and nobody waits for it."""
    tile, sums = loaded_tile(maps), cuda.local.array(SUMS, float32)
    wgmma_fence()
    multiply_square(sums, tile, uint32(0))
    wgmma_commit_group()
    out[cuda.threadIdx.x, 0] = sums[0]  # <- fault
    wgmma_wait_group_n64(sums, uint32(0))


@wrong(faults.AccumulatorInFlight, source=ORDER, block=THREADS, args=square)
def the_last_group_is_left_open(maps, out):
    """wait_group 1 lets one group be under way: the only one."""
    tile, sums = loaded_tile(maps), cuda.local.array(SUMS, float32)
    wgmma_fence()
    multiply_square(sums, tile, uint32(0))
    wgmma_commit_group()
    wgmma_wait_group_n64(sums, uint32(1))
    out[cuda.threadIdx.x, 0] = sums[0]  # <- fault
    wgmma_wait_group(uint32(0))


@wrong(faults.AccumulatorInFlight, source=ORDER, block=THREADS, args=square)
def products_in_no_group(maps, out):
    """wait_group waits for groups, and the products were never committed to one."""
    tile, sums = loaded_tile(maps), cuda.local.array(SUMS, float32)
    wgmma_fence()
    multiply_square(sums, tile, uint32(0))
    wgmma_wait_group_n64(sums, uint32(0))
    out[cuda.threadIdx.x, 0] = sums[0]  # <- fault


@wrong(faults.CopyOutlivesBlock, source=ORDER, block=THREADS, args=square)
def the_block_ends_before_its_products(maps, out):
    """Nobody wants the sums, and the block ends."""
    tile, sums = loaded_tile(maps), cuda.local.array(SUMS, float32)
    d = wgmma_descriptor(tile, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))
    wgmma_fence()
    wgmma_m64n64k16_f16(sums, d, d, uint32(0), uint32(0), uint32(0))  # <- fault
    wgmma_commit_group()


@wrong(faults.MissingProxyFence, source=ASYNC, block=THREADS, args=plain_square)
def ordinary_stores_without_a_proxy_fence(words, out):
    """A product reads by the async proxy, to which ordinary stores are made visible by fence.proxy.async."""
    tile = shared_address(cuda.shared.array(TILE, uint8, alignment=1024))
    sums = cuda.local.array(SUMS, float32)
    store_tile(tile, words)
    cuda.syncthreads()
    d = wgmma_descriptor(tile, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))
    wgmma_fence()
    wgmma_m64n64k16_f16(sums, d, d, uint32(0), uint32(0), uint32(0))  # <- fault
    finish(out, sums)


@wrong(faults.DataRace, source=ASYNC, block=THREADS, args=plain_square)
def only_the_warp_is_in_step(words, out):
    """Each warp multiplies the rows that all four have stored, and no barrier of the warpgroup comes
    between."""
    tile = shared_address(cuda.shared.array(TILE, uint8, alignment=1024))
    sums = cuda.local.array(SUMS, float32)
    store_tile(tile, words)
    fence_proxy_async()
    cuda.syncwarp()
    d = wgmma_descriptor(tile, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))
    wgmma_fence()
    wgmma_m64n64k16_f16(sums, d, d, uint32(0), uint32(0), uint32(0))  # <- fault
    finish(out, sums)


@wrong(faults.InFlightRead, source=ASYNC, block=THREADS, args=square)
def the_box_may_not_be_there(maps, out):
    """Only the first warp waits for the box."""
    tile = shared_address(cuda.shared.array(TILE, uint8, alignment=1024))
    bar = shared_address(cuda.shared.array(1, uint64))
    sums = cuda.local.array(SUMS, float32)
    load_tile(tile, maps, bar)
    if cuda.threadIdx.x < 32:
        mbarrier_wait(bar, 0)
    d = wgmma_descriptor(tile, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))
    wgmma_fence()
    wgmma_m64n64k16_f16(sums, d, d, uint32(0), uint32(0), uint32(0))  # <- fault
    finish(out, sums)
    mbarrier_wait(bar, 0)


@wrong(faults.DataRace, source=ASYNC, block=THREADS, args=plain_square)
def the_tile_is_overwritten_too_early(words, out):
    """The products have been issued, and may still be reading."""
    tile, sums = stored_tile(words), cuda.local.array(SUMS, float32)
    wgmma_fence()
    multiply_square(sums, tile, uint32(0))
    wgmma_commit_group()
    st_shared_b32(uint32(tile + 4 * cuda.threadIdx.x), uint32(0))  # <- fault
    wgmma_wait_group_n64(sums, uint32(0))
    store_sums(out, sums)


@wrong(faults.RefillRace, source=ASYNC, block=THREADS, args=square)
def the_next_box_comes_too_early(maps, out):
    """The box is loaded again before the group that reads it has been waited for."""
    tile = shared_address(cuda.shared.array(TILE, uint8, alignment=1024))
    bar = shared_address(cuda.shared.array(1, uint64))
    sums = cuda.local.array(SUMS, float32)
    load_tile(tile, maps, bar)
    mbarrier_wait(bar, 0)
    wgmma_fence()
    multiply_square(sums, tile, uint32(0))
    wgmma_commit_group()
    if cuda.threadIdx.x == 0:
        mbarrier_arrive_expect_tx(bar, uint32(TILE))
        cp_async_bulk_tensor_2d(tile, maps, int32(0), int32(0), bar)  # <- fault
    mbarrier_wait(bar, 1)
    wgmma_wait_group_n64(sums, uint32(0))
    store_sums(out, sums)


@wrong(faults.WarpDivergence, source=SECTION, block=THREADS, args=square)
def three_warps_multiply(maps, out):
    """The fourth warp of the warpgroup does something else."""
    tile, sums = loaded_tile(maps), cuda.local.array(SUMS, float32)
    if cuda.threadIdx.x < 96:
        d = wgmma_descriptor(tile, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))
        wgmma_fence()
        wgmma_m64n64k16_f16(sums, d, d, uint32(0), uint32(0), uint32(0))  # <- fault
        wgmma_commit_group()
        wgmma_wait_group_n64(sums, uint32(0))
        store_sums(out, sums)


@wrong(faults.WarpDivergence, source=SECTION, block=THREADS, args=square)
def one_lane_of_each_warp_multiplies(maps, out):
    """As if it were TMA: one elected lane issues the product."""
    tile, sums = loaded_tile(maps), cuda.local.array(SUMS, float32)
    d = wgmma_descriptor(tile, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))
    wgmma_fence()
    if cuda.threadIdx.x % 32 == 0:
        wgmma_m64n64k16_f16(sums, d, d, uint32(0), uint32(0), uint32(0))  # <- fault
    finish(out, sums)


@wrong(faults.WarpDivergence, source=SECTION, block=192, args=square)
def warps_of_two_warpgroups(maps, out):
    """A producer takes the first two warps, so the four that multiply are no warpgroup."""
    tile = shared_address(cuda.shared.array(TILE, uint8, alignment=1024))
    bar = shared_address(cuda.shared.array(1, uint64))
    sums = cuda.local.array(SUMS, float32)
    load_tile(tile, maps, bar)
    if cuda.threadIdx.x >= 64:
        mbarrier_wait(bar, 0)
        d = wgmma_descriptor(tile, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))
        wgmma_fence()
        wgmma_m64n64k16_f16(sums, d, d, uint32(0), uint32(0), uint32(0))  # <- fault
        wgmma_commit_group()
        wgmma_wait_group_n64(sums, uint32(0))


@wrong(faults.WarpDivergence, source=ORDER, block=THREADS, args=square)
def one_warp_waits_for_all(maps, out):
    """The first warp waits for the products and tells the others by a barrier: the wait takes all four."""
    tile, sums = loaded_tile(maps), cuda.local.array(SUMS, float32)
    d = wgmma_descriptor(tile, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))
    wgmma_fence()
    wgmma_m64n64k16_f16(sums, d, d, uint32(0), uint32(0), uint32(0))
    wgmma_commit_group()
    if cuda.threadIdx.x < 32:
        wgmma_wait_group_n64(sums, uint32(0))  # <- fault
    cuda.syncthreads()
    store_sums(out, sums)


@wrong(faults.WarpDivergence, source=ORDER, block=THREADS, args=square)
def warps_wait_for_different_groups(maps, out):
    """Each half of the warpgroup waits in a branch of its own."""
    tile, sums = loaded_tile(maps), cuda.local.array(SUMS, float32)
    d = wgmma_descriptor(tile, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))
    wgmma_fence()
    wgmma_m64n64k16_f16(sums, d, d, uint32(0), uint32(0), uint32(0))
    wgmma_commit_group()
    if cuda.threadIdx.x < 64:
        wgmma_wait_group_n64(sums, uint32(0))  # <- fault
    else:
        wgmma_wait_group_n64(sums, uint32(0))
    cuda.syncthreads()
    store_sums(out, sums)


@wrong(faults.BadMatrixDescriptor, source=DESCRIPTOR, block=THREADS, args=square)
def the_next_16_of_k_by_elements(maps, out):
    """Sixteen elements are 32 bytes, not 8: what a descriptor cannot say is cut off."""
    tile, sums = loaded_tile(maps), cuda.local.array(SUMS, float32)
    wgmma_fence()
    for k in static_range(4):
        part = uint32(tile + uint32(8 * k))
        d = wgmma_descriptor(part, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))  # <- fault
        wgmma_m64n64k16_f16(sums, d, d, uint32(k), uint32(0), uint32(0))
    finish(out, sums)


@wrong(faults.BadMatrixDescriptor, source=DESCRIPTOR, block=THREADS, args=square)
def each_warp_gives_its_own_rows(maps, out):
    """As for mma.sync, each warp names its sixteen rows of A. A wgmma's A has all 64."""
    tile, sums = loaded_tile(maps), cuda.local.array(SUMS, float32)
    d = wgmma_descriptor(tile, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))
    rows = d + uint64(128 * (cuda.threadIdx.x // 32))
    wgmma_fence()
    wgmma_m64n64k16_f16(sums, rows, d, uint32(0), uint32(0), uint32(0))  # <- fault
    finish(out, sums)


@wrong(faults.OutOfRange, source=DESCRIPTOR, block=THREADS, args=square)
def the_stride_of_a_box_twice_as_large(maps, out):
    """Eight rows of 128 bytes are 1024 bytes; by 2048 a product runs beyond the tile."""
    tile, sums = loaded_tile(maps), cuda.local.array(SUMS, float32)
    d = wgmma_descriptor(tile, uint32(0), uint32(2048), uint32(0), uint32(SWIZZLE_128B))
    wgmma_fence()
    wgmma_m64n64k16_f16(sums, d, d, uint32(0), uint32(0), uint32(0))  # <- fault
    finish(out, sums)


@wrong(faults.OutOfRange, source=SECTION, block=THREADS, args=square)
def sums_of_half_the_columns(maps, out):
    """An m64n64 product has 32 sums a thread: an array of 16 is too short."""
    tile = shared_address(cuda.shared.array(TILE, uint8, alignment=1024))
    bar = shared_address(cuda.shared.array(1, uint64))
    sums = cuda.local.array(TOO_FEW, float32)
    load_tile(tile, maps, bar)
    mbarrier_wait(bar, 0)
    d = wgmma_descriptor(tile, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))
    wgmma_fence()
    wgmma_m64n64k16_f16(sums, d, d, uint32(0), uint32(0), uint32(0))  # <- fault
    wgmma_commit_group()
    wgmma_wait_group(uint32(0))


@wrong(faults.UninitialisedRead, source=SECTION, block=THREADS, args=square)
def sums_begin_with_garbage(maps, out):
    """The first product adds to sums that nobody has cleared."""
    tile, sums = loaded_tile(maps), cuda.local.array(SUMS, float32)
    d = wgmma_descriptor(tile, uint32(0), uint32(1024), uint32(0), uint32(SWIZZLE_128B))
    wgmma_fence()
    wgmma_m64n64k16_f16(sums, d, d, uint32(1), uint32(0), uint32(0))  # <- fault
    finish(out, sums)

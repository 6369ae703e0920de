"""ldmatrix, stmatrix and mma.sync: fragments and products against NumPy, and what is wrong use of them."""

import helpers
import ml_dtypes
import numpy as np
import pytest
from helpers import LANDINGS, alike, expect, maps_of, run
from numba import cuda, float32, int32, uint16, uint32, uint64

from numba_deform.compiler import kernel, u64
from numba_deform.device import matrix
from numba_deform.device.matrix import (
    ldmatrix_x1,
    ldmatrix_x2,
    ldmatrix_x4,
    ldmatrix_x4_trans,
    stmatrix_x1,
    stmatrix_x1_trans,
    stmatrix_x4,
)
from numba_deform.device.memory import shared_address
from numba_deform.device.sync import bar_sync, fence_proxy_async, shfl_sync_idx_b32
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_tensor_1d_store,
    cp_async_bulk_wait_group,
    fence_proxy_tensormap_acquire_sys,
)
from numba_deform.engines import faults
from numba_deform.engines.cpu import explore

COUNTS = (1, 2, 4)
ROWS, ROW, WORDS = 32, 8, 4  # rows of eight 16-bit elements, which are four words
LANES = np.arange(32)
G, T = LANES // 4, LANES % 4


def clean(kernel, *args, **options):
    """It runs to its end in every order, and as machine code does the same."""
    helpers.clean(kernel, *args, **options)
    assert alike(kernel, *args)[1]


def always(kind, kernel, *args, block=32, **options):
    """It ends in that fault, and machine code has no other opinion."""
    helpers.always(kind, kernel, *args, block=block, **options)
    assert not alike(kernel, *args, block=block)[1]


def halves(seed=0, shape=(ROWS, ROW)):
    """Elements that are all different."""
    return np.random.default_rng(seed).permutation(np.prod(shape)).astype(np.uint16).reshape(shape) + 1


def fragments(elements, count, transposed):
    """What a lane's words are by definition: (32, count) for matrices of eight rows one below the other."""
    words = np.zeros((32, count), np.uint32)
    for lane in range(32):
        for m in range(count):
            one = elements[8 * m : 8 * m + 8]
            one = one.T if transposed else one
            low, high = one[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2].tolist()
            words[lane, m] = low | high << 16
    return words


def named(operation, count, transposed):
    return getattr(matrix, f"{operation}_x{count}{'_trans' * transposed}")


def words_of(count, transposed):
    """A device function that gives the words of ldmatrix as a tuple, whatever their number."""
    load = named("ldmatrix", count, transposed)

    def one(row):
        return (load(row),)

    def several(row):
        return load(row)

    return cuda.jit(one if count == 1 else several, device=True)


def storing(count, transposed):
    """The same for stmatrix of four words."""
    store = named("stmatrix", count, transposed)

    def one(row, a, b, c, d):
        store(row, a)

    def two(row, a, b, c, d):
        store(row, a, b)

    def four(row, a, b, c, d):
        store(row, a, b, c, d)

    return cuda.jit({1: one, 2: two, 4: four}[count], device=True)


# --- between shared memory and registers -------------------------------------------------------------
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_ldmatrix(count, transposed):
    """Lane i gives row i of the matrices, which lie upside down; other lanes give an address of nothing."""
    load, COUNT = words_of(count, transposed), count

    def loads(elements, out):
        tile = cuda.shared.array((ROWS, ROW), uint16, alignment=16)
        lane = cuda.threadIdx.x
        for i in range(ROW):
            tile[lane, i] = elements[lane, i]
        cuda.syncwarp()
        row = uint32(1) if lane >= 8 * COUNT else shared_address(tile) + uint32(16 * (ROWS - 1 - lane))
        words = load(row)
        for i in range(COUNT):
            out[lane, i] = words[i]

    elements, out = halves(), np.zeros((32, count), np.uint32)
    clean(loads, elements, out, seeds=2)
    np.testing.assert_array_equal(out, fragments(elements[::-1], count, transposed))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_stmatrix(count, transposed):
    store, COUNT = storing(count, transposed), count

    def stores(words, out):
        tile = cuda.shared.array((ROWS, ROW), uint16, alignment=16)
        lane = cuda.threadIdx.x
        row = uint32(1) if lane >= 8 * COUNT else shared_address(tile) + uint32(16 * (ROWS - 1 - lane))
        store(row, words[lane, 0], words[lane, 1], words[lane, 2], words[lane, 3])
        cuda.syncwarp()
        if lane < 8 * COUNT:
            for i in range(ROW):
                out[lane, i] = tile[ROWS - 1 - lane, i]

    elements = halves()
    words, out = fragments(elements, 4, transposed), np.zeros((ROWS, ROW), np.uint16)
    clean(stores, words, out, seeds=2)
    np.testing.assert_array_equal(out[: 8 * count], elements[: 8 * count])
    assert not out[8 * count :].any()


# --- products ----------------------------------------------------------------------------------------
def pairs(elements, rows, columns):
    """Words of two neighbouring 16-bit elements, the lower one given, for each lane."""
    bits = elements.view(np.uint16).astype(np.uint32)
    return bits[rows, columns] | bits[rows, columns + 1] << 16


def fours(elements, rows, columns):
    """Words of four neighbouring elements of 8 bits, the lowest byte first."""
    bits = elements.view(np.uint8).astype(np.uint32)
    return sum(bits[rows, columns + k] << 8 * k for k in range(4))


def a_words(a):
    """The fragment of a 16 x 16 A, of 16 x 8 in tf32, or of 16 x 32 of bytes, as PTX ISA 9.7.14.5.7, 9.7.14.5.8
    and 9.7.14.5.10 have it."""
    if a.itemsize == 4:
        bits = a.view(np.uint32)
        return np.stack([bits[G, T], bits[G + 8, T], bits[G, T + 4], bits[G + 8, T + 4]], axis=1)
    together, step = (fours, 4) if a.itemsize == 1 else (pairs, 2)
    columns = step * T, step * T + 4 * step
    places = (G, columns[0]), (G + 8, columns[0]), (G, columns[1]), (G + 8, columns[1])
    return np.stack([together(a, *place) for place in places], axis=1)


def b_words(b):
    if b.itemsize == 4:
        bits = b.view(np.uint32)
        return np.stack([bits[T, G], bits[T + 4, G]], axis=1)
    together, step = (fours, 4) if b.itemsize == 1 else (pairs, 2)
    columns = np.ascontiguousarray(b.T)
    return np.stack([together(columns, G, step * T), together(columns, G, step * T + 4 * step)], axis=1)


def c_floats(c):
    return np.stack([c[G, 2 * T], c[G, 2 * T + 1], c[G + 8, 2 * T], c[G + 8, 2 * T + 1]], axis=1)


def multiplying(name):
    """A kernel: D's fragments from those of A, B and C."""
    mma = getattr(matrix, name)

    def multiply(a, b, c, d):
        i = cuda.threadIdx.x
        part = mma(a[i, 0], a[i, 1], a[i, 2], a[i, 3], b[i, 0], b[i, 1], c[i, 0], c[i, 1], c[i, 2], c[i, 3])
        for k in range(4):
            d[i, k] = part[k]

    return multiply


E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
FLOATS = {  # the types of A and of B
    "mma_m16n8k16_f16": (np.float16,) * 2, "mma_m16n8k16_bf16": (ml_dtypes.bfloat16,) * 2,
    "mma_m16n8k8_tf32": (np.float32,) * 2, "mma_m16n8k32_e4m3": (E4M3, E4M3), "mma_m16n8k32_e5m2": (E5M2, E5M2),
    "mma_m16n8k32_e4m3_e5m2": (E4M3, E5M2), "mma_m16n8k32_e5m2_e4m3": (E5M2, E4M3),
}  # fmt: skip
INTEGERS = {
    "mma_m16n8k32_s8": (np.int8, np.int8), "mma_m16n8k32_u8": (np.uint8, np.uint8),
    "mma_m16n8k32_s8_u8": (np.int8, np.uint8), "mma_m16n8k32_u8_s8": (np.uint8, np.int8),
}  # fmt: skip


def operands(types, seed, make):
    """A, B, C of random numbers, and D of NaN."""
    random, depth = np.random.default_rng(seed), 32 // np.dtype(types[0]).itemsize
    a, b = (make(random, s).astype(t) for s, t in zip(((16, depth), (depth, 8)), types, strict=True))
    return a, b, make(random, (16, 8)).astype(np.float32), np.full((32, 4), np.nan, np.float32)


@pytest.mark.parametrize("name", FLOATS)
def test_products_of_whole_numbers(name):
    """Exact, so that each element is at its place."""
    a, b, c, d = operands(FLOATS[name], 1, lambda random, shape: random.integers(-9, 10, shape))
    clean(multiplying(name), a_words(a), b_words(b), c_floats(c), d, seeds=2)
    np.testing.assert_array_equal(d, c_floats(a.astype(np.float32) @ b.astype(np.float32) + c))


@pytest.mark.parametrize("name", FLOATS)
def test_products_of_floats(name):
    """Rounded only where they are added up."""
    a, b, c, d = operands(FLOATS[name], 2, lambda random, shape: random.standard_normal(shape))
    run(multiplying(name), a_words(a), b_words(b), c_floats(c), d)
    if a.dtype == np.float32:  # what the hardware takes of it
        a, b = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b))
    exact = c_floats(a.astype(np.float64) @ b.astype(np.float64) + c)
    assert 0 < np.abs(d - exact).max() < 1e-5
    assert d.dtype == np.float32


@pytest.mark.parametrize("name", INTEGERS)
def test_products_of_bytes(name):
    """All values that bytes have, and sums that wrap."""
    random = np.random.default_rng(5)
    a, b = (
        random.integers(np.iinfo(kind).min, np.iinfo(kind).max, shape, kind, endpoint=True)
        for kind, shape in zip(INTEGERS[name], ((16, 32), (32, 8)), strict=True)
    )
    a[0], b[:, 0] = np.iinfo(a.dtype).max, np.iinfo(b.dtype).max
    c = random.integers(-(2**31), 2**31, (16, 8), np.int32)
    c[0, 0] = 2**31 - 1
    d = np.zeros((32, 4), np.int32)
    clean(multiplying(name), a_words(a), b_words(b), c_floats(c), d, seeds=2)
    exact = a.astype(object) @ b.astype(object) + c.astype(object)
    assert exact[0, 0] > 2**31
    wrapped = (exact + 2**31) % 2**32 - 2**31
    np.testing.assert_array_equal(d, c_floats(wrapped))


def test_special_numbers_of_fp8():
    """All 256 numbers of each type times one; e4m3 has a NaN and no infinity."""
    for kind, name in ((E4M3, "mma_m16n8k32_e4m3"), (E5M2, "mma_m16n8k32_e5m2")):
        every = np.arange(256, dtype=np.uint8).view(kind)
        for row in every.reshape(16, 16):
            a, b = np.zeros((16, 32), kind), np.zeros((32, 8), kind)
            a[:, 0], b[0] = row, 1
            d = np.zeros((32, 4), np.float32)
            run(multiplying(name), a_words(a), b_words(b), d.copy(), d)
            np.testing.assert_array_equal(d, c_floats(np.repeat(row.astype(np.float32)[:, None], 8, 1)))


def test_the_sum_is_float32():
    """2048 + 1 has no fp16; infinity and NaN come through."""
    a, b = np.zeros((16, 16), np.float16), np.zeros((16, 8), np.float16)
    a[0, :2], a[1, 0], a[2, 0], b[0], b[1] = (2048, 1), np.inf, np.nan, 1, 1
    d = np.zeros((32, 4), np.float32)
    run(multiplying("mma_m16n8k16_f16"), a_words(a), b_words(b), d.copy(), d)
    assert (d[:4, :2] == 2049).all() and (d[4:8, :2] == np.inf).all() and np.isnan(d[8:12, :2]).all()


@pytest.mark.parametrize("along_n", [False, True])
def test_a_product_from_shared_memory(along_n):
    """A by ldmatrix; B by ldmatrix from rows along k, or by ldmatrix.trans from rows along n."""
    ALONG_N = along_n
    mma = matrix.mma_m16n8k16_f16

    def product(a, b, d):
        rows = cuda.shared.array((16, 16), uint16, alignment=16)
        columns = cuda.shared.array((2, 8, 8), uint16, alignment=16)
        i = cuda.threadIdx.x
        for k in range(8):
            rows[i & 15, 8 * (i >> 4) + k] = a[i & 15, 8 * (i >> 4) + k]
        for k in range(4):
            columns[i >> 4, (i >> 1) & 7, 4 * (i & 1) + k] = b[i >> 4, (i >> 1) & 7, 4 * (i & 1) + k]
        cuda.syncwarp()
        x = ldmatrix_x4(shared_address(rows) + uint32(32 * (i & 15) + 16 * (i >> 4)))
        place = shared_address(columns) + uint32(16 * (i & 15))
        y = matrix.ldmatrix_x2_trans(place) if ALONG_N else ldmatrix_x2(place)
        zero = float32(0)
        part = mma(x[0], x[1], x[2], x[3], y[0], y[1], zero, zero, zero, zero)
        for k in range(4):
            d[i, k] = part[k]

    random = np.random.default_rng(3)
    a, b = (random.integers(-9, 10, shape).astype(np.float16) for shape in ((16, 16), (16, 8)))
    parts = b.reshape(2, 8, 8) if along_n else b.T.reshape(8, 2, 8).transpose(1, 0, 2)
    d = np.zeros((32, 4), np.float32)
    clean(product, a.view(np.uint16), np.ascontiguousarray(parts).view(np.uint16), d, seeds=2)
    np.testing.assert_array_equal(d, c_floats(a.astype(np.float32) @ b.astype(np.float32)))


# --- wrong use ---------------------------------------------------------------------------------------
def filled(tile, lane):
    """Fill a row of eight elements."""
    for i in range(8):
        tile[lane, i] = lane


filled = cuda.jit(filled, device=True)


def test_a_row_on_no_multiple_of_16():
    def kernel(out):
        tile = cuda.shared.array((33, 8), uint16, alignment=16)
        lane = cuda.threadIdx.x
        filled(tile, lane)
        cuda.syncwarp()
        out[lane] = ldmatrix_x1(shared_address(tile) + uint32(16 * lane + 8 * (lane == 5)))

    always(
        faults.Misaligned, kernel, np.zeros(32, np.uint32), seeds=2, source="ldmatrix_x1",
        words="reads 16 bytes at tile[byte 88], not a multiple of 16",
    )  # fmt: skip


def test_a_row_outside_the_array():
    def kernel(out):
        tile = cuda.shared.array((8, 8), uint16, alignment=16)
        lane = cuda.threadIdx.x
        if lane < 8:
            filled(tile, lane)
        cuda.syncwarp()
        out[lane] = ldmatrix_x1(shared_address(tile) + uint32(16 * (lane + 1)))

    always(faults.OutOfRange, kernel, np.zeros(32, np.uint32), seeds=2, source="ldmatrix_x1")


def test_a_row_that_nobody_wrote():
    def kernel(out):
        tile = cuda.shared.array((32, 8), uint16, alignment=16)
        lane = cuda.threadIdx.x
        if lane != 9:
            filled(tile, lane)
        cuda.syncwarp()
        out[lane] = ldmatrix_x4(shared_address(tile) + uint32(16 * lane))[1]

    always(faults.UninitialisedRead, kernel, np.zeros(32, np.uint32), seeds=2, source="ldmatrix_x4")


def test_rows_that_other_lanes_have_just_written():
    """Each lane writes the row that it gives; the row goes to other lanes, and nothing orders them."""

    def kernel(out):
        tile = cuda.shared.array((32, 8), uint16, alignment=16)
        lane = cuda.threadIdx.x
        filled(tile, lane)
        out[lane] = ldmatrix_x4_trans(shared_address(tile) + uint32(16 * lane))[1]

    always(faults.DataRace, kernel, np.zeros(32, np.uint32), seeds=2, source="ldmatrix_x4_trans")


def test_rows_that_are_written_again_too_early():
    def kernel(out):
        tile = cuda.shared.array((32, 8), uint16, alignment=16)
        lane = cuda.threadIdx.x
        filled(tile, lane)
        cuda.syncwarp()
        out[lane] = ldmatrix_x4(shared_address(tile) + uint32(16 * lane))[1]
        tile[31 - lane, 0] = 0

    always(faults.DataRace, kernel, np.zeros(32, np.uint32), seeds=2, source="tile[31 - lane, 0]")


def test_what_stmatrix_wrote_is_read_at_once():
    """The lane reads the row that it gave; others wrote it."""

    def kernel(out):
        tile = cuda.shared.array((32, 8), uint16, alignment=16)
        lane = cuda.threadIdx.x
        word = uint32(lane)
        stmatrix_x4(shared_address(tile) + uint32(16 * lane), word, word, word, word)
        out[lane] = tile[lane, 7]

    always(faults.DataRace, kernel, np.zeros(32, np.uint32), seeds=2, source="tile[lane, 7]")


@pytest.mark.parametrize("fenced", [False, True])
def test_stmatrix_and_a_bulk_store(fenced):
    """stmatrix is an ordinary write, which the copy engine sees past a proxy fence of all lanes."""
    FENCED = fenced

    @kernel(threads=32)
    def store(out: u64):
        tile = shared_address(cuda.shared.array((8, 8), uint16, alignment=128))
        lane = int32(cuda.threadIdx.x)
        if lane == 0:
            fence_proxy_tensormap_acquire_sys(out)
        stmatrix_x1(tile + uint32(16 * (lane & 7)), uint32(lane))
        if FENCED or lane == 0:
            fence_proxy_async()
        cuda.syncwarp()
        if lane == 0:
            cp_async_bulk_tensor_1d_store(out, int32(0), tile)
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group(uint32(0))

    out = np.zeros(32, np.uint32)
    if fenced:
        clean(store, maps_of(out, box=(32,)), seeds=2)
        np.testing.assert_array_equal(out, LANES)
    else:
        source = "cp_async_bulk_tensor_1d_store"
        always(faults.MissingProxyFence, store, maps_of(out, box=(32,)), seeds=2, source=source)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_tile_of_another_warp_in_every_order(ordered):
    """One warp writes, the other loads; ``explore`` goes through ldmatrix as through any other operation."""
    ORDERED = ordered

    def hands_over(out):
        tile = cuda.shared.array((32, 8), uint16, alignment=16)
        thread = int32(cuda.threadIdx.x)
        if thread < 32:
            filled(tile, thread)
        if ORDERED:
            bar_sync(1, 64)
        if thread >= 32:
            words = ldmatrix_x4(shared_address(tile) + uint32(16 * (thread - 32)))
            out[thread - 32] = words[3] & uint32(0xFFFF)
        if not ORDERED:
            bar_sync(1, 64)

    out = np.zeros(32, np.uint32)
    if ordered:
        explore(hands_over, 1, 64, (out,), limit=50)
        np.testing.assert_array_equal(out, 24 + G)
    else:
        with pytest.raises((faults.DataRace, faults.UninitialisedRead)) as caught:
            explore(hands_over, 1, 64, (out,), limit=50)
        assert "ldmatrix_x4" in caught.value.source or "tile[lane, i] = lane" in caught.value.source


def test_the_late_writer_is_named():
    """The tile is still unwritten when ldmatrix comes, and the report is about who writes it then."""

    def reads_first(out):
        tile = cuda.shared.array((32, 8), uint16, alignment=16)
        thread = int32(cuda.threadIdx.x)
        if thread < 32:
            out[thread] = ldmatrix_x4(shared_address(tile) + uint32(16 * thread))[0]
        else:
            filled(tile, thread - 32)

    fault = expect(faults.DataRace, reads_first, np.zeros(32, np.uint32), block=64, source="ldmatrix_x4")
    assert "which thread 32 wrote" in str(fault)


def test_half_a_warp():
    def kernel(out):
        tile = cuda.shared.array((32, 8), uint16, alignment=16)
        lane = cuda.threadIdx.x
        filled(tile, lane)
        cuda.syncwarp()
        if lane < 16:
            out[lane] = ldmatrix_x1(shared_address(tile) + uint32(16 * lane))
        cuda.syncwarp()

    always(faults.WarpDivergence, kernel, np.zeros(32, np.uint32), seeds=2, source="ldmatrix_x1")


def test_lanes_at_two_places():
    """Each half of the warp has an instruction of its own, and .aligned says: one for all."""

    def kernel(out):
        lane = cuda.threadIdx.x
        zero, word = float32(0), uint32(0)
        if lane < 16:
            out[lane] = matrix.mma_m16n8k16_f16(word, word, word, word, word, word, zero, zero, zero, zero)[0]
        else:
            out[lane] = matrix.mma_m16n8k16_f16(word, word, word, word, word, word, zero, zero, zero, zero)[1]

    fault = "while lane"
    always(faults.WarpDivergence, kernel, np.zeros(32, np.float32), seeds=2, words=fault, source="mma_m16n8k16")


@pytest.mark.parametrize("block, words", [(24, "by 24 lanes: lane 24"), (32, "by 31 lanes: lane 31")])
def test_lanes_that_are_not_there(block, words):
    def kernel(out):
        tile = cuda.shared.array((32, 8), uint16, alignment=16)
        lane = cuda.threadIdx.x
        filled(tile, lane)
        if lane == 31:
            return
        cuda.syncwarp()
        stmatrix_x1(shared_address(tile) + uint32(16 * (lane & 7)), uint32(lane))
        out[lane] = lane

    out = np.zeros(32, np.uint32)
    always(faults.WarpDivergence, kernel, out, seeds=2, block=block, words=words, source="stmatrix_x1")


@pytest.mark.parametrize("store", [stmatrix_x1, stmatrix_x1_trans], ids=["plain", "trans"])
def test_an_undefined_value_is_stored(store):
    """Shared memory may hold it; who reads it has an undefined value."""

    def kernel(out, read):
        tile = cuda.shared.array((8, 8), uint16, alignment=16)
        lane = cuda.threadIdx.x
        mask = uint32(0x0000FFFF) if lane < 16 else uint32(0xFFFF0000)
        word = shfl_sync_idx_b32(mask, uint32(lane), uint32(20))
        store(shared_address(tile) + uint32(16 * (lane & 7)), word)
        cuda.syncwarp()
        out[lane] = tile[lane // 4, lane % 4] if read else lane

    for landing in LANDINGS:
        run(kernel, np.zeros(32, np.uint32), False, landing=landing)
        with pytest.raises(faults.UninitialisedRead, match=r"undefined value in out\["):
            run(kernel, np.zeros(32, np.uint32), True, landing=landing)


def test_ldmatrix_of_another_space():
    """A 64-bit address of global memory is cut to 32 bits, and belongs to nothing in shared memory."""

    @kernel(threads=32)
    def reads(data: u64):
        ldmatrix_x1(uint32(data + uint64(16 * cuda.threadIdx.x)))

    data = np.zeros(1024, np.uint32)
    with pytest.raises((faults.OutOfRange, faults.Misaligned)):
        run(reads, data)

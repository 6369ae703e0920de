"""Intrinsics of tcgen05 and ``nd.TensorMemory`` on the CPU engine, by PTX's text: numbers against float64,
layouts, what is refused. No GPU that has them has run these."""

import linecache
import pickle
import re

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numba_deform as nd
from numba_deform.device.tcgen05 import KINDS, columns_of
from numba_deform.engines import faults
from numba_deform.engines.cpu.async_units.tcgen05 import How, decoded

# type of A and B -> (kind, NumPy's type)
TYPES = {
    "f16": ("f16", np.float16), "bf16": ("f16", ml_dtypes.bfloat16), "tf32": ("tf32", np.float32),
    "e4m3": ("f8f6f4", ml_dtypes.float8_e4m3fn), "e5m2": ("f8f6f4", ml_dtypes.float8_e5m2),
    "s8": ("i8", np.int8), "u8": ("i8", np.uint8),
}  # fmt: skip
ROWS, COLUMNS, ROW = 128, 32, 128  # of D; bytes of a row of A and B, which a swizzle of 128 bytes has


# --- descriptors --------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pair", [False, True], ids=["block", "pair"])
def test_instruction_descriptors_are_what_the_engine_reads(kind, pair):
    sums, factors = KINDS[kind]
    for rows in (128, 256) if pair else (64, 128):
        assert len(columns_of(kind, rows, 1 + pair)) >= 8
        for columns in columns_of(kind, rows, 1 + pair):
            for a in factors.values():
                word = nd.tcgen05_instruction_descriptor(kind, rows, columns, a, pair=pair)
                shape = decoded(None, kind, word, How(1 + pair))
                assert (shape.rows, shape.columns, shape.form.sums) == (rows, columns, [*sums.values()][-1])
                assert shape.transposed == shape.negated == (False, False) and not shape.limit


def test_an_instruction_descriptor_bit_by_bit():
    """As ``kernels/tcgen05.cu`` of the PTX tests writes it, and each option is a bit of its own."""
    plain = 1 << 4 | 64 // 8 << 17 | 128 // 16 << 24
    assert nd.tcgen05_instruction_descriptor("f16", 128, 64) == plain
    bits = {"negate_a": 13, "negate_b": 14, "transpose_a": 15, "transpose_b": 16}
    for name, bit in bits.items():
        assert nd.tcgen05_instruction_descriptor("f16", 128, 64, **{name: True}) == plain | 1 << bit
    assert nd.tcgen05_instruction_descriptor("f16", 128, 64, sums="f16") == plain & ~(1 << 4)
    assert nd.tcgen05_instruction_descriptor("f16", 128, 64, "bf16", "f16") == plain | 1 << 7
    assert nd.tcgen05_instruction_descriptor("f16", 128, 64, "f16", "bf16") == plain | 1 << 10
    i8 = nd.tcgen05_instruction_descriptor("i8", 128, 64, limit=True)
    assert i8 == 1 << 3 | 2 << 4 | 64 // 8 << 17 | 128 // 16 << 24


@pytest.mark.parametrize("given, words", [
    ({"kind": "mxf4"}, "kind='mxf4' must be one of f16, tf32, f8f6f4, i8"),
    ({"rows": 96}, "rows=96, columns=64 of kind::f16 must be 64 with 8, 16 .. 256, or 128 with 8, 16"),
    ({"columns": 28}, "rows=128, columns=28"), ({"columns": 272}, "columns=272"), ({"columns": 0}, "columns=0"),
    ({"kind": "i8", "rows": 64, "columns": 40}, "columns=40 of kind::i8"),
    ({"rows": 64, "pair": True}, "must be 128 with 16, 32 .. 256, or 256 with 16, 32 .. 256 columns"),
    ({"rows": 256}, "rows=256"), ({"columns": 40, "pair": True}, "columns=40"),
    ({"a": "e4m3"}, "a='e4m3' of kind::f16 must be one of f16, bf16"),
    ({"kind": "tf32", "sums": "f16"}, "sums='f16' of kind::tf32 must be one of f32"),
    ({"a": "bf16", "sums": "f16"}, "sums of bf16 are f32"),
    ({"limit": True}, "limit=True is for kind::i8"), ({"kind": "i8", "negate_b": True}, "not i8"),
])  # fmt: skip
def test_products_that_there_are_not(given, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        nd.tcgen05_instruction_descriptor(**{"kind": "f16", "rows": 128, "columns": 64, **given})


# --- numbers ------------------------------------------------------------------------------------------
def layout(columns=COLUMNS, **memory):
    a, b = (nd.Array((1, rows, ROW), nd.uint8, swizzle="128B") for rows in (ROWS, columns))
    return nd.Shared(a=a, b=b, full=nd.Barrier(), done=nd.Barrier(), memory=nd.TensorMemory(**memory))


def product_kernel(type_of_a, in_tensor):
    """D = A B^T of all that a row holds: four products of 32 bytes along k each."""
    kind = TYPES[type_of_a][0]
    shared = layout(sums=COLUMNS, left=COLUMNS)
    multiply = getattr(nd, f"tcgen05_mma_{kind}{'_ta' * in_tensor}")
    DESCRIPTOR, IN_TENSOR = nd.tcgen05_instruction_descriptor(kind, ROWS, COLUMNS, type_of_a), in_tensor

    @nd.kernel(threads=ROWS, shared=shared)
    def product(a_map: nd.u64, b_map: nd.u64, a: nd.uint32[:, :], out: nd.uint32[:, :]):
        shared.init()
        row, sums, left = cuda.threadIdx.x, shared.memory.sums, shared.memory.left
        if IN_TENSOR:
            for part in range(4):
                words = (a[row, 8 * part], a[row, 8 * part + 1], a[row, 8 * part + 2], a[row, 8 * part + 3],
                         a[row, 8 * part + 4], a[row, 8 * part + 5], a[row, 8 * part + 6], a[row, 8 * part + 7])
                nd.tcgen05_st_32x32b_x8(left.warp_at() + 8 * part, words)
            nd.tcgen05_wait_st()
            nd.tcgen05_fence_before_thread_sync()
        cuda.syncthreads()
        if row == 0:
            nd.tcgen05_fence_after_thread_sync()
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            shared.full.expect(shared.a.box_bytes + shared.b.box_bytes)
            nd.cp_async_bulk_tensor_2d(shared.a.at(0), a_map, 0, 0, shared.full.at())
            nd.cp_async_bulk_tensor_2d(shared.b.at(0), b_map, 0, 0, shared.full.at())
            shared.full.wait(0)
            of_a = nd.tcgen05_descriptor(shared.a.at(0), 0, 8 * ROW, 0, 1)
            of_b = nd.tcgen05_descriptor(shared.b.at(0), 0, 8 * ROW, 0, 1)
            for part in nd.static_range(4):
                right = of_b + nd.uint64(2 * part)
                if IN_TENSOR:
                    multiply(sums.at(), left.at() + nd.uint32(8 * part), right, DESCRIPTOR, part)
                else:
                    multiply(sums.at(), of_a + nd.uint64(2 * part), right, DESCRIPTOR, part)
            nd.tcgen05_commit(shared.done.at())
        shared.done.wait(0)
        nd.tcgen05_fence_after_thread_sync()
        words = nd.tcgen05_ld_32x32b_x32(sums.warp_at())
        nd.tcgen05_wait_ld()
        for column in range(COLUMNS):
            out[row, column] = words[column]
        nd.tcgen05_fence_before_thread_sync()
        cuda.syncthreads()
        if row < 32:
            shared.memory.free()

    return product


def maps_of(*arrays):
    """Of rows of bytes that come swizzled."""
    maps = (nd.TensorMap.of(m.view(np.uint8), (ROW, len(m)), swizzle="128B") for m in arrays)
    return [nd.TensorMapArray([each]) for each in maps]


@pytest.mark.parametrize("in_tensor", [False, True], ids=["shared", "tensor"])
@pytest.mark.parametrize("name", TYPES)
def test_numbers(name, in_tensor):
    kind, dtype = TYPES[name]
    random, depth = np.random.default_rng(7), ROW // np.dtype(dtype).itemsize
    a, b = (random.integers(0 if name == "u8" else -3, 4, (n, depth)).astype(dtype) for n in (ROWS, COLUMNS))
    want = a.astype(np.float64) @ b.astype(np.float64).T
    out = np.full((ROWS, COLUMNS), 0xA5A5A5A5, np.uint32)
    args = [*maps_of(a, b), a.view(np.uint32), out]
    nd.simulate(product_kernel(name, in_tensor), 1, args=args)
    np.testing.assert_array_equal(out.view(np.int32 if kind == "i8" else np.float32), want)


def pair_kernel(type_of_a, in_tensor):
    """The same by two blocks: each has 128 rows of A, and half of B's."""
    kind = TYPES[type_of_a][0]
    shared = layout(COLUMNS // 2, pair=True, sums=COLUMNS, left=COLUMNS)
    multiply = getattr(nd, f"tcgen05_mma_{kind}{'_ta' * in_tensor}_pair")
    DESCRIPTOR = nd.tcgen05_instruction_descriptor(kind, 2 * ROWS, COLUMNS, type_of_a, pair=True)
    IN_TENSOR, HALF = in_tensor, COLUMNS // 2

    @nd.kernel(threads=ROWS, shared=shared)
    def product(a_map: nd.u64, b_map: nd.u64, a: nd.uint32[:, :], out: nd.uint32[:, :]):
        shared.init()
        rank, row, sums, left = nd.cluster_ctarank(), cuda.threadIdx.x, shared.memory.sums, shared.memory.left
        y = ROWS * rank
        if IN_TENSOR:
            for i in range(32):
                nd.tcgen05_st_32x32b_x1(left.warp_at() + i, a[y + row, i])
            nd.tcgen05_wait_st()
            nd.tcgen05_fence_before_thread_sync()
        if row == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            shared.full.expect(shared.a.box_bytes + shared.b.box_bytes)
            nd.cp_async_bulk_tensor_2d(shared.a.at(0), a_map, 0, y, shared.full.at())
            nd.cp_async_bulk_tensor_2d(shared.b.at(0), b_map, 0, HALF * rank, shared.full.at())
            shared.full.wait(0)
        nd.cluster_sync()
        if row == 0 and rank == 0:
            nd.tcgen05_fence_after_thread_sync()
            for part in nd.static_range(4):
                of_a = nd.tcgen05_descriptor(shared.a.at(0) + 32 * part, 0, 8 * ROW, 0, 1)
                of_b = nd.tcgen05_descriptor(shared.b.at(0) + 32 * part, 0, 8 * ROW, 0, 1)
                if IN_TENSOR:
                    multiply(sums.at(), left.at() + 8 * part, of_b, DESCRIPTOR, part)
                else:
                    multiply(sums.at(), of_a, of_b, DESCRIPTOR, part)
            nd.tcgen05_commit_multicast_pair(shared.done.at(), 0b11)
        shared.done.wait(0)
        nd.tcgen05_fence_after_thread_sync()
        words = nd.tcgen05_ld_32x32b_x32(sums.warp_at())
        nd.tcgen05_wait_ld()
        for column in range(COLUMNS):
            out[y + row, column] = words[column]
        nd.tcgen05_fence_before_thread_sync()
        nd.cluster_sync()
        if row < 32:
            shared.memory.free()

    return product


@pytest.mark.parametrize("in_tensor", [False, True], ids=["shared", "tensor"])
@pytest.mark.parametrize("name", TYPES)
def test_numbers_of_a_pair(name, in_tensor):
    kind, dtype = TYPES[name]
    random, depth = np.random.default_rng(8), ROW // np.dtype(dtype).itemsize
    least, sizes = 0 if name == "u8" else -3, [(2 * ROWS, depth), (COLUMNS, depth)]
    a, b = (random.integers(least, 4, size).astype(dtype) for size in sizes)
    out = np.full((2 * ROWS, COLUMNS), 0xA5A5A5A5, np.uint32)
    maps = [nd.TensorMapArray([nd.TensorMap.of(m.view(np.uint8), (ROW, rows), swizzle="128B")])
            for m, rows in ((a, ROWS), (b, COLUMNS // 2))]  # fmt: skip
    nd.simulate(pair_kernel(name, in_tensor), 2, args=[*maps, a.view(np.uint32), out], cluster=2)
    want = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_array_equal(out.view(np.int32 if kind == "i8" else np.float32), want)


# --- loads and stores ---------------------------------------------------------------------------------
PLACES = {  # (row, column) of word i of lane l, as PTX 9.7.16.2.3.1 draws them
    "32x32b": lambda lane, i: (lane, i),
    "16x64b": lambda lane, i: (lane // 4 + 8 * (lane % 2), 2 * i + lane // 2 % 2),
    "16x128b": lambda lane, i: (lane // 4 + 8 * (i % 2), 4 * (i // 2) + lane % 4),
    "16x256b": lambda lane, i: (lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2),
}  # fmt: skip
LOADS = [name for name in dir(nd) if name.startswith("tcgen05_ld_")]
STORES = [name for name in dir(nd) if name.startswith("tcgen05_st_")]


def moving_kernel(load, count, store="tcgen05_st_32x32b_x32", width=32):
    """Stores lane << 16 | column everywhere, and loads it as ``load`` does."""
    shared = nd.Shared(memory=nd.TensorMemory(cells=128))
    put, get, COUNT, WIDTH = getattr(nd, store), getattr(nd, load), count, width
    given = ", ".join(f"cells[row, first + {i}]" for i in range(width))
    row_of = written("row_of(cells, row, first)", given if width == 1 else f"({given})")
    word_of = written("word_of(words, i)", "words" if count == 1 else "words[i]")

    @nd.kernel(threads=128, shared=shared)
    def move(cells: nd.uint32[:, :], out: nd.uint32[:, :]):
        shared.init()
        row, at = cuda.threadIdx.x, shared.memory.cells.warp_at()
        for first in range(0, 128, WIDTH):
            put(at + nd.uint32(first), row_of(cells, row, first))
        nd.tcgen05_wait_st()
        words = get(at)
        nd.tcgen05_wait_ld()
        for i in range(COUNT):
            out[row, i] = word_of(words, i)
        cuda.syncthreads()
        if row < 32:
            shared.memory.free()

    return move


def written(head, value):
    """A device function of one line."""
    text, file, scope = f"def {head}:\n    return {value}\n", f"<{head} {value}>", {}
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    exec(compile(text, file, "exec"), scope)
    return nd.function(scope[head.partition("(")[0]])


def cells_of(kernel, count):
    cells = (np.arange(128)[:, None] << 16 | np.arange(128)).astype(np.uint32)
    out = np.full((128, count), 0xA5A5A5A5, np.uint32)
    nd.simulate(kernel, 1, args=[cells, out])
    return out


@pytest.mark.parametrize("name", LOADS)
def test_loads(name):
    count, shape = getattr(getattr(nd, name).signature.return_type, "count", 1), name.split("_")[2]
    out = cells_of(moving_kernel(name, count), count)
    for lane, i in np.ndindex(128, count):
        row, column = PLACES[shape](lane % 32, i)
        assert out[lane, i] == (lane // 32 * 32 + row) << 16 | column


@pytest.mark.parametrize("name", STORES)
def test_stores(name):
    width = int(name.rpartition("x")[2])
    out = cells_of(moving_kernel("tcgen05_ld_32x32b_x128", 128, name, width), 128)
    assert (out == (np.arange(128)[:, None] << 16 | np.arange(128))).all()


# --- columns by name ----------------------------------------------------------------------------------
def test_columns_lie_behind_one_another():
    shared = nd.Shared(tile=nd.Array((5,), nd.uint8), memory=nd.TensorMemory(sums=(2, 96), scales=64))

    @nd.kernel(threads=64, shared=shared)
    def addresses(out: nd.uint32[:, :]):
        shared.init()
        memory = shared.memory
        if nd.lane() == 0:
            out[nd.warp(), 0] = memory.at()
            out[nd.warp(), 1] = memory.sums.at()
            out[nd.warp(), 2] = memory.sums.at(1)
            out[nd.warp(), 3] = memory.scales.at()
            out[nd.warp(), 4] = memory.sums.warp_at(1)
            out[nd.warp(), 5] = memory.sums.columns + memory.scales.columns + memory.columns
        cuda.syncthreads()
        if nd.warp() == 1:
            memory.free()

    out = np.zeros((2, 6), np.uint32)
    nd.simulate(addresses, 1, args=[out])
    assert out.tolist() == [[0, 0, 96, 192, 96, 416], [0, 0, 96, 192, 96 | 32 << 16, 416]]
    assert pickle.loads(pickle.dumps(shared)).memory.columns == shared.memory.columns == 256


@pytest.mark.parametrize("parts, words", [
    ({"sums": 96}, "96 columns of tensor memory (sums=96): they are allocated by 32, 64, 128, 256, 512; name"),
    ({"a": 512, "b": (2, 16)}, "544 columns of tensor memory (a=512, b=(2, 16))"),
    ({}, "0 columns of tensor memory (none)"), ({"a": 0}, "a=0 must be a number of columns"),
    ({"a": (2, -16)}, "a=(2, -16) must be"), ({"a": 32.0}, "a=32.0 must be"),
    ({"free": 32}, "free= cannot be a part of tensor memory"), ({"_a": 32}, "that name is taken"),
])  # fmt: skip
def test_columns_that_cannot_be_had(parts, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        nd.TensorMemory(**parts)


def test_one_tensor_memory_for_a_layout():
    with pytest.raises(ValueError, match="2 parts of tensor memory: name all columns in one TensorMemory"):
        nd.Shared(a=nd.TensorMemory(x=32), b=nd.TensorMemory(y=32))


def test_it_is_interpreted():
    """As a kernel of PTX is: no verdict hangs on the form."""
    report = nd.simulate(by_hand(""), 1, args=[np.zeros(32, np.uint32)], compiled=True)
    assert not report.compiled and report.why_interpreted == "tensor memory"


# --- by hand, and of a cluster ------------------------------------------------------------------------
def by_hand(fault):
    """A kernel that allocates without a layout; what ``fault`` names is left out or added."""
    shared = nd.Shared(place=nd.Array((1,), nd.uint32))
    FREED, PERMIT = fault != "not freed", fault == "permit"

    @nd.kernel(threads=32, shared=shared)
    def allocate(out: nd.uint32[:]):
        if PERMIT:
            nd.tcgen05_relinquish_alloc_permit()
        nd.tcgen05_alloc(shared.place.at(0), 32)
        cuda.syncwarp()
        first = nd.ld_shared_b32(shared.place.at(0))
        out[nd.lane()] = first
        if FREED:
            nd.tcgen05_dealloc(first, 32)

    return allocate


@pytest.mark.parametrize("fault, line", [
    ("", ""), ("not freed", "nd.tcgen05_alloc"), ("permit", "nd.tcgen05_alloc")])  # fmt: skip
def test_by_hand(fault, line):
    out = np.ones(32, np.uint32)
    if not fault:
        nd.simulate(by_hand(fault), 1, args=[out])
        assert not out.any()
        return
    with pytest.raises(faults.TensorMemoryMisuse) as caught:
        nd.simulate(by_hand(fault), 1, args=[out])
    place = re.search(r"at +\S+    (.*)", str(caught.value))[1]
    assert line in place and "PTX's text alone" in str(caught.value)


def test_a_commit_for_both_blocks():
    """Products of block 0 are an arrival on the barrier of each block; without products, at once."""
    shared = nd.Shared(done=nd.Barrier(), memory=nd.TensorMemory(sums=32))

    @nd.kernel(threads=32, shared=shared)
    def commit(out: nd.uint32[:, :]):
        shared.init()
        nd.cluster_sync()
        if nd.cluster_ctarank() == 0 and nd.lane() == 0:
            nd.tcgen05_commit_multicast(shared.done.at(), 0b11)
        shared.done.wait(0)
        out[cuda.blockIdx.x, nd.lane()] = 1
        shared.memory.free()
        nd.cluster_sync()

    out = np.zeros((2, 32), np.uint32)
    nd.simulate(commit, 2, args=[out], cluster=2)
    assert out.all()

"""nvcuda::wmma: numbers of all types, shapes and layouts, and what is judged of loads, products and stores."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from generated import HIGH, SQUARE, WIDE, WMMA, wmma_text
from stored import KERNELS

import numba_deform as nd
from numba_deform.engines import faults

MODULE = nd.from_ptx((KERNELS / "wmma.ptx").read_text())
LINES = (KERNELS / "wmma.cu").read_text().splitlines()

# --- numbers ----------------------------------------------------------------------------------------------
DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f32": np.float32,
          "f64": np.float64, "s8": np.int8, "u8": np.uint8, "s32": np.int32}  # fmt: skip
PAD = 16  # elements at the end of each row in memory


def in_memory(matrix, layout, pad, around):
    """A matrix in a layout, with ``pad`` elements of the value ``around`` behind each row or column of it."""
    rows = matrix if layout == "row" else matrix.T
    whole = np.full((rows.shape[0], rows.shape[1] + pad), around, matrix.dtype)
    whole[:, : rows.shape[1]] = rows
    return whole


def operands(kind, shape, c, seed):
    """a, b and c of numbers whose products and sums are exact in all types."""
    m, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
    rng, low = np.random.default_rng(seed), 0 if kind == "u8" else -8
    scale = 1 if kind in ("s8", "u8") else 4
    made = (rng.integers(low, 8, size) / scale for size in ((m, k), (k, n), (m, n)))
    return [x.astype(DTYPES[t]) for x, t in zip(made, (kind, kind, c), strict=True)]


def product(a, b, c, d):
    return (a.astype(float) @ b.astype(float) + c.astype(float)).astype(DTYPES[d])


def run(kernel, given, compiled, **more):
    """Runs it with arrays, bf16 as its bits."""
    arrays = [x.view(np.uint16) if x.dtype == ml_dtypes.bfloat16 else x for x in given]
    return nd.simulate(kernel, 1, 32, arrays, compiled=compiled, **more)


@pytest.mark.parametrize("kind, shape, d, c", WMMA)
def test_numbers(kind, shape, d, c):
    """All layouts, each matrix a part of a larger one, of which the rest is neither read nor written."""
    for number, layouts in enumerate(itertools.product(("row", "col"), repeat=3)):
        a, b, old = operands(kind, shape, c, number)
        out, layouts = np.zeros(old.shape, DTYPES[d]), (*layouts, layouts[2])
        around = [77 if kind in ("s8", "u8") else np.nan] * 2 + [77] * 2
        memory = [in_memory(x, layout, PAD, value)
                  for x, layout, value in zip((a, b, old, out), layouts, around, strict=True)]  # fmt: skip
        end = ".rn" if kind == "f64" and number % 2 else ""
        made = wmma_text(kind, shape, d, c, layouts, [f", {x.shape[1]}" for x in memory], end)
        run(nd.from_ptx(made)["k"], memory, compiled=number % 4 == 1 and kind != "f64")
        want = in_memory(product(a, b, old, d), layouts[3], PAD, 77)
        assert np.array_equal(memory[3], want), layouts


@pytest.mark.parametrize("shape, products", [
    (SQUARE, ["{d0, d1, d2, d3}, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}",
              "{d4, d5, d6, d7}, {a0, a1, a2, a3}, {b2, b3}, {c4, c5, c6, c7}"]),
    (HIGH, ["{d0, d1, d2, d3}, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}",
            "{d4, d5, d6, d7}, {a4, a5, a6, a7}, {b0, b1}, {c4, c5, c6, c7}"]),
    (WIDE, ["{d0, d1, d2, d3}, {b0, b1, b2, b3}, {a0, a1}, {c0, c1, c2, c3}",
            "{d4, d5, d6, d7}, {b4, b5, b6, b7}, {a0, a1}, {c4, c5, c6, c7}"]),
])  # fmt: skip
def test_registers_are_those_of_mma(shape, products):
    """As ptxas has them for sm_90a: SASS of wmma.mma is HMMA of these registers."""
    made = wmma_text("f16", shape, "f32", "f32", ["row", "col"] * 2, [""] * 4)
    before, after = made.split("wmma.mma")
    products = "".join(f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {p};\n" for p in products)
    a, b, c = operands("f16", shape, "f32", 0)
    memory = [np.ascontiguousarray(x) for x in (a, b.T, c, np.zeros(c.T.shape, c.dtype))]
    run(nd.from_ptx(before + products + after.partition(";")[2])["k"], memory, False)
    assert np.array_equal(memory[3], product(a, b, c, "f32").T)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("layouts", [("row", "col", "row", "row"), ("col", "row", "col", "col")])
def test_without_a_stride_rows_follow_each_other(layouts, compiled):
    for shape in (HIGH, WIDE):
        a, b, c = operands("f16", shape, "f32", 1)
        memory = [in_memory(x, layout, 0, 0) for x, layout in zip((a, b, c, c), layouts, strict=True)]
        run(nd.from_ptx(wmma_text("f16", shape, "f32", "f32", layouts, [""] * 4))["k"], memory, compiled)
        assert np.array_equal(memory[3], in_memory(product(a, b, c, "f32"), layouts[3], 0, 0))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind, low, high", [("s8", -128, 127), ("u8", 255, 255)])
def test_sums_of_integers_stay_at_the_limits_or_wrap(kind, low, high, compiled):
    layouts, most = ("row", "col", "row", "row"), 2**31 - 1
    a, b = np.full((16, 16), high, DTYPES[kind]), np.full((16, 16), high, DTYPES[kind])
    a[8:] = low
    exact = a.astype(np.int64) @ b.astype(np.int64)
    c = np.where(exact < 0, -most, most - 100).astype(np.int32)
    for end, want in ((".satfinite", np.clip(exact + c, -most - 1, most)), ("", exact + c)):
        memory = [a, b, c, np.zeros_like(c)]
        run(nd.from_ptx(wmma_text(kind, SQUARE, "s32", "s32", layouts, [""] * 4, end))["k"], memory, compiled)
        assert np.array_equal(memory[3], want.astype(np.int32)), end


def test_sums_of_halves_are_rounded_once():
    """Random numbers against float64: half an ulp of float16, and what float32 adds."""
    rng = np.random.default_rng(3)
    a, b, c = (rng.standard_normal((16, 16)).astype(np.float16) for _ in range(3))
    for d, most in (("f16", 2.0**-11), ("f32", 2.0**-20)):
        memory, layouts = [a, b.T.copy(), c, np.zeros((16, 16), DTYPES[d])], ("row", "col", "row", "row")
        run(nd.from_ptx(wmma_text("f16", SQUARE, d, "f16", layouts, [""] * 4))["k"], memory, False)
        exact = a.astype(float) @ b.astype(float) + c
        assert (abs(memory[3] - exact) <= most * np.maximum(abs(exact), 1) + 2.0**-20 * 16).all(), d


# --- programs of CUDA C++ ---------------------------------------------------------------------------------
def tile(seed, shape=(16, 16)):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float16) / 4


@pytest.mark.parametrize("compiled", [False, True])
def test_tiled(compiled):
    a, b, c = tile(0, (32, 32)), tile(1, (32, 32)), tile(2, (32, 32)).astype(np.float32)
    d = np.zeros((32, 32), np.float32)
    report = nd.simulate(MODULE["tiled"], 1, 128, [a, b, c, d], schedules=3, compiled=compiled)
    assert np.array_equal(d, 2 * (a.astype(np.float32) @ b.T.astype(np.float32)) + c)
    assert report.compiled == compiled


@pytest.mark.parametrize("compiled", [False, True])
def test_chained_and_bias(compiled):
    a, b, d = tile(0), tile(1), np.zeros((16, 16), np.float32)
    x, y = a.astype(np.float32), b.astype(np.float32)
    nd.simulate(MODULE["chained"], 1, 32, [a, b, d], schedules=3, compiled=compiled)
    assert np.array_equal(d, (x @ y.T).astype(np.float16).astype(np.float32) @ y.T)
    row = np.arange(16, dtype=np.float32)
    nd.simulate(MODULE["bias"], 1, 32, [a, b, row, d], compiled=compiled)
    assert np.array_equal(d, x @ y + row)


@pytest.mark.parametrize("compiled", [False, True])
def test_each_element_of_a_fragment_is_one_of_the_tile(compiled):
    """Fragments of halves have 16 elements in each thread, more than the tile has: some stand there again."""
    d = np.zeros((16, 32), np.float32)
    nd.simulate(MODULE["elements"], 1, 32, [tile(0) * 0 + 1, tile(1) * 0 + 2, d], compiled=compiled)
    assert (d == 3).all()


# Kernel -> (its fault, what the report says, threads)
WRONG = {
    "chained_wrong": (faults.DataRace, "between", 32),
    "race_wrong": (faults.DataRace, "tile", 64),
    "stores_wrong": (faults.DataRace, "param_2", 64),
    "outside_wrong": (faults.OutOfRange, "param_0", 32),
    "stored_outside_wrong": (faults.OutOfRange, "param_2", 32),
    "pointer_wrong": (faults.Misaligned, r"reads 32 bytes at param_0\[.*not a multiple of 32", 32),
    "stride_wrong": (faults.Misaligned, "wmma.load.a with a stride of 24 bytes, not a multiple of 16", 32),
    "unwritten_wrong": (faults.UninitialisedRead, "tile", 32),
    "divergent_wrong": (faults.WarpDivergence, "wmma.load.a", 32),
    "product_wrong": (faults.WarpDivergence, "mma.m16n8k16", 32),
    "tiles_wrong": (faults.WarpDivergence, "wmma.load.a with an address or a stride that is not lane", 32),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_wrong(name, compiled):
    fault, words, threads = WRONG[name]
    d = np.full((16, 16), 16, np.float32)
    with pytest.raises(fault, match=words) as caught:
        nd.simulate(MODULE[name], 1, threads, [tile(0), tile(1), d], schedules=4, compiled=compiled)
    file, _, line = caught.value.where.rpartition(":")
    assert file == "wmma.cu" and "<- fault" in LINES[int(line) - 1], caught.value


def test_a_tile_in_local_memory():
    made = wmma_text("f16", SQUARE, "f16", "f16", ["row"] * 4, [""] * 4)
    made = made.replace(".reg .b64", ".local .align 32 .b8 own[512];\n.reg .b64", 1)
    made = made.replace("ld.param.u64 pb, [b];", "mov.u64 pb, own;\ncvta.local.u64 pb, pb;")
    with pytest.raises(faults.OutOfRange, match="wmma.load.b of local memory"):
        run(nd.from_ptx(made)["k"], [tile(0)] * 4, False)


def test_all_kernels_are_tried():
    assert {*MODULE} == {*WRONG, "tiled", "chained", "bias", "elements"}


@pytest.mark.parametrize("opcode, registers", [
    ("wmma.load.a.sync.aligned.row.m8n8k32.global.s4", "{a0}, [pa], 32"),
    ("wmma.load.a.sync.aligned.row.m8n8k128.global.b1", "{a0}, [pa], 128"),
    ("wmma.load.a.sync.aligned.row.m16n16k8.global.f16", "{a0, a0, a0, a0, a0, a0, a0, a0}, [pa]"),
    ("wmma.load.a.sync.aligned.row.m16n16k16.global.f16", "{a0, a0, a0, a0}, [pa]"),
    ("wmma.load.a.sync.aligned.row.m16n16k16.local.f16", "{a0, a0, a0, a0, a0, a0, a0, a0}, [pa]"),
    ("wmma.mma.sync.aligned.row.col.m8n8k32.s32.s4.s4.s32", "{a0, a1}, {a2}, {a3}, {a0, a1}"),
    ("wmma.mma.xor.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32", "{a0, a1}, {a2}, {a3}, {a0, a1}"),
    ("wmma.mma.sync.aligned.row.col.m16n16k16.f16.f16.satfinite",
     "{a0, a1, a2, a3}, {a0, a1, a2, a3, a0, a1, a2, a3}, {a0, a1, a2, a3, a0, a1, a2, a3}, {a0, a1, a2, a3}"),
    ("wmma.mma.sync.aligned.row.col.m8n8k4.rz.f64.f64.f64.f64", "{a0, a1}, {a2}, {a3}, {a0, a1}"),
])  # fmt: skip
def test_what_is_refused(opcode, registers):
    before, _, after = wmma_text("f16", SQUARE, "f16", "f16", ["row"] * 4, [""] * 4).partition("wmma.load.a")
    body = f"{before}{opcode} {registers};\n{after.partition(';')[2]}"
    with pytest.raises(ValueError, match="is not known to the engine") as refused:
        nd.from_ptx(body)["k"]
    assert opcode in str(refused.value)

"""nvcuda::wmma: numbers of all types, shapes and layouts, and what is judged of loads, products and stores."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from stored import KERNELS

import numba_deform as nd
from numba_deform.engines import faults

MODULE = nd.from_ptx((KERNELS / "wmma.ptx").read_text())
LINES = (KERNELS / "wmma.cu").read_text().splitlines()

# --- numbers ----------------------------------------------------------------------------------------------
DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f32": np.float32,
          "f64": np.float64, "s8": np.int8, "u8": np.uint8, "s32": np.int32}  # fmt: skip
# Type -> (registers of a and of b for each shape, the types of d and c), as PTX ISA 9.7.14 lists them.
SQUARE, HIGH, WIDE = "m16n16k16", "m32n8k16", "m8n32k16"
HALVES = [("f32", "f32"), ("f16", "f16"), ("f32", "f16"), ("f16", "f32")]
REGISTERS = {
    "f16": ({SQUARE: (8, 8), HIGH: (8, 8), WIDE: (8, 8)}, HALVES),
    "bf16": ({SQUARE: (4, 4), HIGH: (8, 2), WIDE: (2, 8)}, [("f32", "f32")]),
    "s8": ({SQUARE: (2, 2), HIGH: (4, 1), WIDE: (1, 4)}, [("s32", "s32")]),
    "u8": ({SQUARE: (2, 2), HIGH: (4, 1), WIDE: (1, 4)}, [("s32", "s32")]),
    "tf32": ({"m16n16k8": (4, 4)}, [("f32", "f32")]),
    "f64": ({"m8n8k4": (1, 1)}, [("f64", "f64")]),
}
CASES = [(kind, shape) for kind, (shapes, _) in REGISTERS.items() for shape in shapes]
SUMS = {"f32": 8, "f16": 4, "s32": 8, "f64": 2}
PAD = 16  # elements at the end of each row in memory


def text(kind, shape, d, c, layouts, strides, end=""):
    """A kernel of one tile. ``layouts`` and ``strides``: of a, b, c, d; ``end``: of the product's name."""
    types, counts = (kind, kind, c, d), (*REGISTERS[kind][0][shape], SUMS[c], SUMS[d])
    each = [t if t in ("f32", "f64") else "b32" for t in types]
    registers = "\n".join(f".reg .{t} {x}<{n}>;" for x, t, n in zip("abcd", each, counts, strict=True))
    a, b, sums, out = (f"{{{', '.join(f'{x}{n}' for n in range(count))}}}"
                       for x, count in zip("abcd", counts, strict=True))  # fmt: skip
    kinds = f"{d}.{c}" if kind == "f16" else f"{d}.{kind}.{kind}.{c}"
    given = zip("abc", layouts, (".global", "", ".global"), types, (a, b, sums), strides, strict=False)
    loads = "\n".join(f"wmma.load.{x}.sync.aligned.{layout}.{shape}{space}.{t} {names}, [p{x}]{stride};"
                      for x, layout, space, t, names, stride in given)  # fmt: skip
    params = "\n".join(f"ld.param.u64 p{x}, [{x}];" for x in "abcd")
    return f""".version 8.3
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)
{{
.reg .b64 p<2>, pa, pb, pc, pd;
{registers}
{params}
{loads}
wmma.mma.sync.aligned.{layouts[0]}.{layouts[1]}.{shape}.{kinds}{end} {out}, {a}, {b}, {sums};
wmma.store.d.sync.aligned.{layouts[3]}.{shape}.global.{d} [pd], {out}{strides[3]};
ret;
}}
"""


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


@pytest.mark.parametrize("kind, shape", CASES)
def test_numbers(kind, shape):
    """All layouts, each matrix a part of a larger one, of which the rest is neither read nor written."""
    number = 0
    for (d, c), layouts in itertools.product(REGISTERS[kind][1], itertools.product(("row", "col"), repeat=3)):
        a, b, old = operands(kind, shape, c, number)
        layouts, number = (*layouts, layouts[2]), number + 1
        out = np.zeros(old.shape, DTYPES[d])
        around = 77 if kind in ("s8", "u8") else np.nan
        memory = [in_memory(x, layout, PAD, around if n < 2 else 77)
                  for n, (x, layout) in enumerate(zip((a, b, old, out), layouts, strict=True))]  # fmt: skip
        end = ".rn" if kind == "f64" and number % 2 else ""
        made = text(kind, shape, d, c, layouts, [f", {x.shape[1]}" for x in memory], end)
        run(nd.from_ptx(made)["k"], memory, compiled=number % 4 == 0 and kind != "f64")
        want = in_memory(product(a, b, old, d), layouts[3], PAD, 77)
        assert np.array_equal(memory[3], want), (d, c, layouts)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("layouts", [("row", "col", "row", "row"), ("col", "row", "col", "col")])
def test_without_a_stride_rows_follow_each_other(layouts, compiled):
    for shape in (HIGH, WIDE):
        a, b, c = operands("f16", shape, "f32", 1)
        memory = [in_memory(x, layout, 0, 0) for x, layout in zip((a, b, c, c), layouts, strict=True)]
        run(nd.from_ptx(text("f16", shape, "f32", "f32", layouts, [""] * 4))["k"], memory, compiled)
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
        run(nd.from_ptx(text(kind, SQUARE, "s32", "s32", layouts, [""] * 4, end))["k"], memory, compiled)
        assert np.array_equal(memory[3], want.astype(np.int32)), end


def test_sums_of_halves_are_rounded_once():
    """Random numbers against float64: half an ulp of float16, and what float32 adds."""
    rng = np.random.default_rng(3)
    a, b, c = (rng.standard_normal((16, 16)).astype(np.float16) for _ in range(3))
    for d, most in (("f16", 2.0**-11), ("f32", 2.0**-20)):
        memory, layouts = [a, b.T.copy(), c, np.zeros((16, 16), DTYPES[d])], ("row", "col", "row", "row")
        run(nd.from_ptx(text("f16", SQUARE, d, "f16", layouts, [""] * 4))["k"], memory, False)
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
    made = text("f16", SQUARE, "f16", "f16", ["row"] * 4, [""] * 4)
    made = made.replace(".reg .b64 p<2>", ".local .align 32 .b8 own[512];\n.reg .b64 p<2>")
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
    before, _, after = text("f16", SQUARE, "f16", "f16", ["row"] * 4, [""] * 4).partition("wmma.load.a")
    body = f"{before}{opcode} {registers};\n{after.partition(';')[2]}"
    with pytest.raises(ValueError, match="is not known to the engine") as refused:
        nd.from_ptx(body)["k"]
    assert opcode in str(refused.value)

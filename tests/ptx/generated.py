"""PTX texts of kernels that ask about one instruction, made for tests: the engine's numbers against NumPy's
(here), and against a GPU's (tests/gpu/test_ptx_gpu.py); ptxas assembles all of them."""

import ml_dtypes
import numpy as np

HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"
ELEMENTS = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8, "u8": np.uint8,
}  # fmt: skip
SUMS = {"f32": np.float32, "f16": np.float16, "s32": np.int32}
WGMMA = [
    *(("f32", "f16", "f16", n) for n in (8, 64, 136, 256)), *(("f16", "f16", "f16", n) for n in (64, 256)),
    ("f32", "bf16", "bf16", 32), ("f32", "tf32", "tf32", 64), ("f32", "e4m3", "e4m3", 64),
    ("f16", "e5m2", "e4m3", 128), ("f32", "e4m3", "e5m2", 24), ("s32", "s8", "s8", 64), ("s32", "u8", "s8", 32),
    ("s32", "u8", "u8", 256), ("s32", "s8", "u8", 8),
]  # fmt: skip
# Type of a and b -> (registers of a and of b for each shape, types of d and c), as PTX ISA 9.7.14 lists them.
SQUARE, HIGH, WIDE = "m16n16k16", "m32n8k16", "m8n32k16"
WMMA_FORMS = {
    "f16": ({SQUARE: (8, 8), HIGH: (8, 8), WIDE: (8, 8)}, ["f32 f32", "f16 f16", "f32 f16", "f16 f32"]),
    "bf16": ({SQUARE: (4, 4), HIGH: (8, 2), WIDE: (2, 8)}, ["f32 f32"]),
    "s8": ({SQUARE: (2, 2), HIGH: (4, 1), WIDE: (1, 4)}, ["s32 s32"]),
    "u8": ({SQUARE: (2, 2), HIGH: (4, 1), WIDE: (1, 4)}, ["s32 s32"]),
    "tf32": ({"m16n16k8": (4, 4)}, ["f32 f32"]),
    "f64": ({"m8n8k4": (1, 1)}, ["f64 f64"]),
}  # fmt: skip
WMMA = [(kind, shape, *sums.split()) for kind, (shapes, types) in WMMA_FORMS.items() for shape in shapes
        for sums in types]  # fmt: skip


def registers(name, count):
    return ", ".join(f"{name}{n}" for n in range(count))


def wgmma_text(d, a, b, columns, in_registers=False, adds=True, signs=(1, 1), limit=False, more=None):
    """A product by one warpgroup of A (64, 32 bytes) and B (columns, 32 bytes), which come as they lie in
    shared memory, and of sums as the threads hold them: parameters a, b, sums, out. ``more``: {place: text to
    put there}, of before, between, after, behind."""
    count, more = columns // (4 if d == "f16" else 2), more or {}
    depth = 32 // np.dtype(ELEMENTS[a]).itemsize
    kind = "f32" if d == "f32" else "b32"
    word = [f"ld.global.b32 w{n}, [x+{4 * n}];" for n in range(4)]
    options = f", {signs[0]}, {signs[1]}" if d != "s32" else ""
    options += "" if a not in ("f16", "bf16") else ", 0" if in_registers else ", 0, 0"
    left = f"{{{registers('w', 4)}}}" if in_registers else "da"
    opcode = f"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}{'.satfinite' * limit}.{d}.{a}.{b}"
    return f"""{HEAD}
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 sums, .param .u64 out) {{
.reg .b32 t, i, w<4>, v, at; .reg .b64 x, y, da, db; .reg .{kind} s<{count}>, c<{count}>; .reg .pred p, q;
.shared .align 1024 .b8 left[2048]; .shared .align 1024 .b8 right[{32 * columns}];
mov.u32 t, %tid.x;
ld.param.u64 x, [a]; mov.u32 at, left; mov.u32 i, t;
copy_a: setp.ge.u32 p, i, 512; @p bra have_a;
mul.wide.u32 y, i, 4; add.u64 y, x, y; ld.global.b32 v, [y]; mad.lo.u32 w0, i, 4, at; st.shared.b32 [w0], v;
add.u32 i, i, 128; bra copy_a;
have_a: ld.param.u64 x, [b]; mov.u32 at, right; mov.u32 i, t;
copy_b: setp.ge.u32 p, i, {8 * columns}; @p bra have_b;
mul.wide.u32 y, i, 4; add.u64 y, x, y; ld.global.b32 v, [y]; mad.lo.u32 w0, i, 4, at; st.shared.b32 [w0], v;
add.u32 i, i, 128; bra copy_b;
have_b: fence.proxy.async.shared::cta;
bar.sync 0;
mov.u32 i, left; cvt.u64.u32 da, i; shr.u64 da, da, 4; or.b64 da, da, {8 << 16 | 16 << 32};
mov.u32 i, right; cvt.u64.u32 db, i; shr.u64 db, db, 4; or.b64 db, db, {8 << 16 | 16 << 32};
ld.param.u64 x, [sums]; mul.wide.u32 y, t, {4 * count}; add.u64 x, x, y;
{chr(10).join(f"ld.global.{kind} s{n}, [x+{4 * n}];" for n in range(count))}
ld.param.u64 x, [a]; mul.wide.u32 y, t, 16; add.u64 x, x, y;
{chr(10).join(word) if in_registers else ""}
setp.eq.u32 p, {int(adds)}, 1;
{more.get("before", "wgmma.fence.sync.aligned;")}
{more.get("between", "")}
{opcode} {{{registers("s", count)}}}, {left}, db, p{options};
{more.get("commit", "wgmma.commit_group.sync.aligned;")}
{more.get("after", "")}
{more.get("wait", "wgmma.wait_group.sync.aligned 0;")}
ld.param.u64 x, [out]; mul.wide.u32 y, t, {4 * count}; add.u64 x, x, y;
{chr(10).join(f"st.global.{kind} [x+{4 * n}], s{n};" for n in range(count))}
ret;
}}
"""


def lines_of_16(matrix):
    """A matrix whose rows have 32 bytes as a descriptor with leading 128 and stride 256 finds it."""
    rows = matrix.view(np.uint8).reshape(-1, 8, 2, 16)
    return np.ascontiguousarray(rows.transpose(0, 2, 1, 3)).view(np.uint32).ravel()


def held(matrix, d):
    """What 128 threads hold of the sums: an array (128, registers)."""
    columns = matrix.shape[1]
    parts = matrix.reshape(4, 2, 8, columns // 8, 4, 2)  # warp, h, g, j, t, e
    parts = np.ascontiguousarray(parts.transpose(0, 2, 4, 3, 1, 5)).reshape(128, columns // 2)
    return parts.view(np.uint32) if d == "f16" else parts


def a_words(matrix):
    """What 128 threads hold of A: an array (128, 4) of words."""
    parts = matrix.view(np.uint32).reshape(4, 2, 8, 2, 4)  # warp, row half, g, column half, t
    return np.ascontiguousarray(parts.transpose(0, 2, 4, 3, 1)).reshape(128, 4)


def wgmma_operands(d, a, b, columns, seed=0, small=True):
    """(A, B, sums) of small whole numbers, whose products and sums are exact in any order, or of any."""
    random = np.random.default_rng(seed)
    made = []
    for kind, rows in ((a, 64), (b, columns)):
        dtype = np.dtype(ELEMENTS[kind])
        shape = rows, 32 // dtype.itemsize
        if small:
            numbers = random.integers(0 if kind == "u8" else -3, 4, shape)
        elif dtype.kind in "iu":
            numbers = random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, endpoint=True)
        else:
            numbers = random.standard_normal(shape)
        made.append(numbers.astype(dtype))
    shape = 64, columns
    sums = random.integers(-9, 10, shape) if small or d == "s32" else random.standard_normal(shape)
    return *made, sums.astype(SUMS[d])


def wgmma_expected(d, a, b, sums, adds=True, signs=(1, 1)):
    """In float64, or exact integers, rounded once."""
    wide = np.int64 if d == "s32" else np.float64
    total = signs[0] * a.astype(wide) @ (signs[1] * b.astype(wide).T)
    total = total + sums.astype(wide) if adds else total
    return (total & 0xFFFFFFFF).astype(np.uint32).view(np.int32) if d == "s32" else total.astype(SUMS[d])


def wmma_text(kind, shape, d, c, layouts, strides, end=""):
    """A product of one warp: matrices a, b and c are loaded, and d is stored, which are the parameters.
    ``layouts`` and ``strides``: of these four; ``end``: of the product's name."""
    sums = {"f32": 8, "f16": 4, "s32": 8, "f64": 2}
    types, counts = (kind, kind, c, d), (*WMMA_FORMS[kind][0][shape], sums[c], sums[d])
    names = [f"{{{registers(x, count)}}}" for x, count in zip("abcd", counts, strict=True)]
    own = [f".reg .{t if t in ('f32', 'f64') else 'b32'} {x}<{count}>;"
           for x, t, count in zip("abcd", types, counts, strict=True)]  # fmt: skip
    loads = [f"wmma.load.{x}.sync.aligned.{layout}.{shape}{space}.{t} {held}, [p{x}]{stride};" for
             x, layout, space, t, held, stride in
             zip("abc", layouts, (".global", "", ".global"), types, names, strides, strict=False)]  # fmt: skip
    kinds = f"{d}.{c}" if kind == "f16" else f"{d}.{kind}.{kind}.{c}"
    return f"""{HEAD}.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)
{{
.reg .b64 pa, pb, pc, pd;
{chr(10).join(own)}
{chr(10).join(f"ld.param.u64 p{x}, [{x}];" for x in "abcd")}
{chr(10).join(loads)}
wmma.mma.sync.aligned.{layouts[0]}.{layouts[1]}.{shape}.{kinds}{end} {names[3]}, {", ".join(names[:3])};
wmma.store.d.sync.aligned.{layouts[3]}.{shape}.global.{d} [pd], {names[3]}{strides[3]};
ret;
}}
"""

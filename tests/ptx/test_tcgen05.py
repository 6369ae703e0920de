"""Tensor memory and tcgen05 (kernels/tcgen05.cu): right programs are silent and right, of wrong ones the rule,
the line and the cure are named. No GPU that has it has run these."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from stored import KERNELS

import numba_deform as nd
from numba_deform.engines import faults
from numba_deform.engines.cpu.async_units.tcgen05 import lanes_of
from numba_deform.engines.cpu.async_units.tensor_memory import places

# name -> (kind, NumPy's type of A and B, its number and that of D in the descriptor, type of a cell)
KINDS = {
    "f16": ("f16", np.float16, 0, 1, np.float32), "f16 to f16": ("f16", np.float16, 0, 0, np.float16),
    "bf16": ("f16", ml_dtypes.bfloat16, 1, 1, np.float32), "tf32": ("tf32", np.float32, 2, 1, np.float32),
    "e4m3": ("f8f6f4", ml_dtypes.float8_e4m3fn, 0, 1, np.float32),
    "e5m2": ("f8f6f4", ml_dtypes.float8_e5m2, 1, 1, np.float32), "i8": ("i8", np.int8, 1, 2, np.int32),
    "u8": ("i8", np.uint8, 0, 2, np.int32),
}  # fmt: skip
TEXT = re.sub(r"[ \t]+", " ", (KERNELS / "tcgen05.ptx").read_text())
LINES = (KERNELS / "tcgen05.cu").read_text().splitlines()
BLOCK, DEPTH = {"tile": 128, "ring": 192, "chain": 128}, {"tile": 32, "ring": 64, "chain": 16}


def core_matrices(x):
    """The bytes of a matrix (rows, k) as ``descriptor`` of the kernels describes them, for each 16 of k."""
    rows, depth = x.shape
    return x.reshape(rows // 8, 8, depth // 16, 2, 8).transpose(2, 0, 3, 1, 4).copy().view(np.uint8).reshape(-1)


def problem(name):
    """(arguments but the last, what the last holds in the end)"""
    random, tiles, depth = np.random.default_rng(3), 3 if name == "ring" else 1, DEPTH[name]
    a, b = (random.standard_normal((tiles, rows, depth)).astype(np.float16) for rows in (128, 64))
    left = a.view(np.uint32).copy() if name == "chain" else np.concatenate([core_matrices(x) for x in a])
    want = a.astype(float) @ b.transpose(0, 2, 1).astype(float)
    return [left, np.concatenate([core_matrices(x) for x in b])], want


def run(name, text=TEXT, **how):
    args, want = problem(name)
    out = np.full(want.shape, np.nan, np.float32)
    report = nd.simulate(nd.from_ptx(text)[name], 1, BLOCK[name], [*args, out], **how)
    np.testing.assert_allclose(out, want, atol=1e-4)
    return report


def changed(name, changes):
    """The text with changes in one kernel: (old, new, how often old is there). Between lines of ``old`` those
    may stand that tell the source's."""
    start = TEXT.index(f".entry {name}(")
    end = TEXT.find(".visible .entry", start)
    body = TEXT[start:end]
    for old, new, times in changes:
        pattern = re.escape(old).replace("\\\n", r"\n(?: \.loc.*\n)* ?")
        body, count = re.subn(pattern, lambda m, new=new: new, body)
        assert count == times, (old, count)
    return TEXT[:start] + body + TEXT[end:]


@pytest.mark.parametrize("name", BLOCK)
def test_right(name):
    report = run(name)
    run(name, landing="random", schedules=2)
    run(name, landing="earliest")
    assert "PTX's text alone" in str(report)


def test_it_is_interpreted():
    """A kernel of which machine code could be made by asking Python for each instruction."""
    loads = r"\n tcgen05\.(?:ld|wait::ld)\.[^\n]*|\n st\.global[^\n]*"
    args, want = problem("tile")
    out = np.zeros(want.shape, np.float32)
    kernel = nd.from_ptx(re.sub(loads, "", TEXT))["tile"]
    report = nd.simulate(kernel, 1, 128, [*args, out], compiled=True)
    assert not report.compiled and report.why_interpreted == "tensor memory"


def programs():
    """Pairs (fields, changes) of tcgen05.txt."""
    made = []
    for block in (Path(__file__).parent / "tcgen05.txt").read_text().split("\n\n")[1:]:
        fields, changes = {}, []
        for line in block.splitlines():
            if m := re.match(r"(\d*)- (.*)", line):
                if not changes or changes[-1][1]:
                    changes.append(([], [], int(m[1] or 1)))
                changes[-1][0].append(m[2])
            elif line[0] == "+":
                changes[-1][1].append(line[2:])
            else:
                name, _, value = line.partition(": ")
                fields[name] = value
        made.append((fields, [("\n".join(old), " ".join(new), times) for old, new, times in changes]))
    return made


PROGRAMS = programs()
RIGHT, WRONG = ({f[kind]: (f, changes) for f, changes in PROGRAMS if kind in f} for kind in ("right", "wrong"))


@pytest.mark.parametrize("name", RIGHT)
def test_unusual(name):
    fields, changes = RIGHT[name]
    run(fields["kernel"], changed(fields["kernel"], changes))


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name):
    fields, changes = WRONG[name]
    kernel = fields["kernel"]
    args, want = problem(kernel)
    out = np.zeros(want.shape, np.float32)
    with pytest.raises(getattr(faults, fields["fault"])) as caught:
        nd.simulate(nd.from_ptx(changed(kernel, changes))[kernel], 1, BLOCK[kernel], [*args, out])
    fault = caught.value
    number = int(re.match(r"\S+:(\d+)", fault.where)[1])
    assert fields["line"] in LINES[number - 1] and fields["cure"] in fault.cure, str(fault)
    assert "PTX's text alone" in str(fault)


# --- numbers ------------------------------------------------------------------------------------------
def product_text(kind, descriptor, columns, a_bytes, b_bytes, a_fields, b_fields):
    """A kernel of one product: A and B come as they lie in shared memory, D goes out cell by cell."""
    return f""".version 8.7
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pd)
{{
 .reg .pred p, q; .reg .b32 t, w, a, b, base, bar, x, n; .reg .b64 ga, gb, gd, da, db, at;
 .shared .align 1024 .b8 left[{a_bytes}]; .shared .align 1024 .b8 right[{b_bytes}];
 .shared .align 8 .b64 bars[2]; .shared .b32 place;
 ld.param.u64 ga, [pa]; ld.param.u64 gb, [pb]; ld.param.u64 gd, [pd];
 mov.u32 t, %tid.x; shr.u32 w, t, 5; mov.u32 a, left; mov.u32 b, right; mov.u32 bar, bars; mov.u32 x, place;
 setp.ne.u32 p, w, 0; setp.ne.u32 q, t, 0;
 @p bra ready;
 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [x], 256;
 @q bra ready;
 mbarrier.init.shared::cta.b64 [bar], 1; mbarrier.init.shared::cta.b64 [bar+8], 1;
 fence.mbarrier_init.release.cluster;
ready:
 bar.sync 0;
 ld.shared.b32 base, [x];
 @q bra issued;
 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {a_bytes + b_bytes};
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [a], [ga], {a_bytes}, [bar];
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [b], [gb], {b_bytes}, [bar];
look: mbarrier.try_wait.parity.shared::cta.b64 p, [bar], 0; @!p bra look;
 shr.u32 n, a, 4; cvt.u64.u32 da, n; or.b64 da, da, {a_fields};
 shr.u32 n, b, 4; cvt.u64.u32 db, n; or.b64 db, db, {b_fields};
 setp.eq.u32 p, 0, 1; mov.u32 n, {descriptor};
 tcgen05.mma.cta_group::1.kind::{kind} [base], da, db, n, p;
 tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [bar+8];
issued:
wait: mbarrier.try_wait.parity.shared::cta.b64 p, [bar+8], 0; @!p bra wait;
 mul.wide.u32 at, t, {4 * columns}; add.u64 gd, gd, at; shl.b32 x, w, 21; add.u32 x, x, base; mov.u32 n, 0;
 bar.sync 0;
next:
 setp.gt.u32 q, t, 1000;
 tcgen05.ld.sync.aligned.32x32b.x1.b32 {{a}}, [x];
 tcgen05.wait::ld.sync.aligned;
 st.global.b32 [gd], a;
 add.u64 gd, gd, 4; add.u32 x, x, 1; add.u32 n, n, 1; setp.lt.u32 q, n, {columns};
 @q bra next;
 bar.sync 0;
 setp.ne.u32 p, w, 0;
 @p bra end;
 tcgen05.dealloc.cta_group::1.sync.aligned.b32 base, 256;
end: ret;
}}
"""


def fields(leading, stride, swizzle=0):
    return leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | swizzle << 61


def k_major(x):
    """Core matrices of 8 rows of 16 bytes, those along k side by side; and the fields that say so."""
    data = x.view(np.uint8).reshape(x.shape[0] // 8, 8, 2, 16).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(data), fields(128, 256)


def swizzled(x):
    """K-major rows of 128 bytes under the swizzle of 128 bytes, of which the first 32 are the matrix."""
    data = np.zeros((x.shape[0], 8, 16), np.uint8)
    rows, chunks = np.ogrid[: x.shape[0], :2]
    data[rows, chunks ^ rows % 8] = x.view(np.uint8).reshape(-1, 2, 16)
    return data, fields(16, 1024, 2)


def mn_major(x):
    """Core matrices of 8 along the rows by 8 along k, of 2 bytes each; those along the rows 128 bytes apart."""
    rows, depth = x.shape
    data = x.T.reshape(depth // 8, 8, rows // 8, 8).transpose(0, 2, 1, 3).copy()
    return data.view(np.uint8), fields(rows * 16, 128)


CASES = [
    (kind, rows, columns, k_major, k_major)
    for kind in KINDS
    for rows, columns in ((128, 64), (64, 8), (128, 256))
]
CASES += [("f16", 128, 32, swizzled, k_major), ("f16", 64, 64, k_major, swizzled),
          ("i8", 128, 32, swizzled, swizzled),
          ("bf16", 128, 64, mn_major, k_major), ("f16", 64, 128, k_major, mn_major)]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]} {c[1]}x{c[2]} {c[3].__name__} {c[4].__name__}")
def test_numbers(case):
    name, rows, columns, of_a, of_b = case
    kind, dtype, number, sums, cells = KINDS[name]
    random, depth = np.random.default_rng(5), 32 // np.dtype(dtype).itemsize
    a, b = (random.integers(-8, 9, (n, depth)).astype(dtype) for n in (rows, columns))
    (left, a_fields), (right, b_fields) = of_a(a), of_b(b)
    descriptor = sums << 4 | number << 7 | number << 10 | columns // 8 << 17 | rows // 16 << 24
    descriptor |= (of_a is mn_major) << 15 | (of_b is mn_major) << 16
    text = product_text(kind, descriptor, columns, left.size, right.size, a_fields, b_fields)
    out = np.zeros((128, columns), np.uint32)
    if rows == 64:  # the other lanes hold nothing
        text = text.replace(
            "add.u32 x, x, base;", "add.u32 x, x, base; and.b32 a, t, 31; setp.gt.u32 q, a, 15;"
        )
        text = text.replace("32x32b.x1.b32 {a}", "16x64b.x1.b32 {a}").replace(
            "add.u32 x, x, 1;", "add.u32 x, x, 2;"
        )
        text = text.replace("add.u32 n, n, 1;", "add.u32 n, n, 2;")
    nd.simulate(nd.from_ptx(text)["k"], 1, 128, [left.reshape(-1), right.reshape(-1), out])
    want = a.astype(float) @ b.astype(float).T
    if rows == 128:
        got = out.astype(np.uint16).view(np.float16) if cells is np.float16 else out.view(cells)
        np.testing.assert_array_equal(got, want)
        return
    lane = np.arange(32)
    for warp in range(4):  # every second cell of each thread's row has come
        words = out[32 * warp : 32 * warp + 32, : columns // 2]
        got = (
            words.astype(np.uint16).view(np.float16)
            if cells is np.float16
            else np.ascontiguousarray(words).view(cells)
        )
        place = 16 * warp + lane // 4 + 8 * (lane % 2), lane // 2 % 2
        np.testing.assert_array_equal(
            got, want[place[0][:, None], 2 * np.arange(columns // 2) + place[1][:, None]]
        )


@pytest.mark.parametrize(
    "shape, count", [("32x32b", 4), ("16x64b", 8), ("16x128b", 2), ("16x256b", 2), ("16x32bx2", 4)]
)
def test_places(shape, count):
    """Each shape covers its rows and columns once, and a store's places are the load's."""
    rows, columns = places(shape, count, 4 if shape == "16x32bx2" else 0)
    height = 32 if shape == "32x32b" else 16
    cells = set(zip(rows.ravel().tolist(), columns.ravel().tolist(), strict=True))
    assert len(cells) == rows.size and cells == {
        (r, c) for r in range(height) for c in range(rows.size // height)
    }


def test_lanes():
    assert lanes_of(128, 0).tolist() == list(range(128))
    assert lanes_of(64, 16).tolist() == [32 * (n // 16) + 16 + n % 16 for n in range(64)]


# --- as Triton writes it --------------------------------------------------------------------------------
def small(change, language="gluon", **how):
    """A product of 128 x 16 by the kernel above with ``change``, (old, new) pairs."""
    random = np.random.default_rng(5)
    a, b = (random.integers(-8, 9, (n, 16)).astype(np.float16) for n in (128, 16))
    (left, a_fields), (right, b_fields) = k_major(a), k_major(b)
    text = product_text("f16", 1 << 4 | 2 << 17 | 8 << 24, 16, left.nbytes, right.nbytes, a_fields, b_fields)
    for old, new in change:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    out = np.zeros((128, 16), np.float32)
    kernel = nd.from_ptx(text, language=language)["k"]
    report = nd.simulate(kernel, 1, 128, [left.reshape(-1), right.reshape(-1), out], **how)
    np.testing.assert_array_equal(out, a.astype(float) @ b.T.astype(float))
    return report


ABOVE = [
    ("ld.shared.b32 base, [x];", "ld.shared.b32 base, [x]; bar.sync 0;"),
    ("mov.u32 x, place", "mov.u32 x, left"),
]


def test_a_tile_where_the_address_was():
    """A copy goes to where tcgen05.alloc has stored its result, with no proxy fence between."""
    assert small(ABOVE, waive="alloc-fence").waived["alloc-fence"][0] >= 2  # the store, and the loads
    with pytest.raises(faults.MissingProxyFence, match="waive=alloc-fence") as caught:
        small(ABOVE)
    assert caught.value.waiver == "alloc-fence"
    fence = ("fence.mbarrier_init.release.cluster;", "fence.proxy.async;")
    with pytest.raises(faults.MissingRefillFence, match="waive=alloc-fence"):  # the other threads' loads
        small([*ABOVE, fence])
    everyone = ("base, [x]; bar.sync 0;", "base, [x]; fence.proxy.async; bar.sync 0;")
    assert not small([*ABOVE, everyone]).waived
    written = ("base, [x]; bar.sync 0;", "base, [x]; bar.sync 0; @!q st.shared.b32 [x], base;")
    with pytest.raises(faults.MissingProxyFence) as caught:  # an ordinary store there is none of alloc's
        small([*ABOVE, written], waive="alloc-fence")
    assert caught.value.waiver is None


AHEAD = (
    "mov.u32 n, 0;\n bar.sync 0;",
    "mov.u32 n, 0;\n bar.sync 0;\n tcgen05.ld.sync.aligned.32x32b.x1.b32 {c}, [x+64];",
)
NAMED = (".reg .b32 t,", ".reg .b32 c, t,")


def test_cells_that_are_loaded_ahead():
    """Triton loads tensor memory in stages that a loop may not have; nothing may come of what was there."""
    small([NAMED, AHEAD])
    small(
        [
            NAMED,
            AHEAD,
            ("setp.gt.u32 q, t, 1000;", "setp.gt.u32 q, t, 1000; mul.lo.u32 c, c, 3; selp.b32 c, c, 0, q;"),
        ]
    )
    with pytest.raises(faults.UninitialisedRead, match=r"tcgen05.ld.32x32b at .*:\d+ reads it"):
        small([NAMED, AHEAD, ("st.global.b32 [gd], a;", "mov.b32 a, c; st.global.b32 [gd], a;")])
    with pytest.raises(faults.UninitialisedRead, match="column 64 of tensor memory, which nothing has written"):
        small([NAMED, AHEAD], language="ptx")

"""Tensor memory and tcgen05 (kernels/tcgen05.cu): right programs are silent and right, of wrong ones the rule, the
line and the cure are named. No GPU that has it has run these."""

import re

import ml_dtypes
import numpy as np
import pytest
from stored import KERNELS

import numba_deform as nd
from numba_deform.engines import faults
from numba_deform.engines.cpu.async_units.tcgen05 import lanes_of
from numba_deform.engines.cpu.async_units.tensor_memory import places

# name -> (kind, NumPy's type of A and B, its number and that of D in the instruction descriptor, type of a cell)
KINDS = {
    "f16": ("f16", np.float16, 0, 1, np.float32), "f16 to f16": ("f16", np.float16, 0, 0, np.float16),
    "bf16": ("f16", ml_dtypes.bfloat16, 1, 1, np.float32), "tf32": ("tf32", np.float32, 2, 1, np.float32),
    "e4m3": ("f8f6f4", ml_dtypes.float8_e4m3fn, 0, 1, np.float32),
    "e5m2": ("f8f6f4", ml_dtypes.float8_e5m2, 1, 1, np.float32), "i8": ("i8", np.int8, 1, 2, np.int32),
    "u8": ("i8", np.uint8, 0, 2, np.int32),
}  # fmt: skip
TEXT = (KERNELS / "tcgen05.ptx").read_text()
LINES = (KERNELS / "tcgen05.cu").read_text().splitlines()
BLOCK = {"tile": 128, "ring": 192, "chain": 128}


def core_matrices(x):
    """The bytes of a matrix (rows, k) as ``descriptor`` of the kernels describes them, for each 16 of k."""
    rows, depth = x.shape
    return x.reshape(rows // 8, 8, depth // 16, 2, 8).transpose(2, 0, 3, 1, 4).copy().view(np.uint8).reshape(-1)


def problem(name):
    """(arguments but the last, what the last holds in the end)"""
    random, tiles, depth = np.random.default_rng(3), 3 if name == "ring" else 1, {"tile": 32, "ring": 64, "chain": 16}
    a, b = (random.standard_normal((tiles, rows, depth[name])).astype(np.float16) for rows in (128, 64))
    left = a.view(np.uint32).copy() if name == "chain" else np.concatenate([core_matrices(x) for x in a])
    return [left, np.concatenate([core_matrices(x) for x in b])], a.astype(float) @ b.transpose(0, 2, 1).astype(float)


def run(name, text=TEXT, **how):
    args, want = problem(name)
    out = np.full(want.shape, np.nan, np.float32)
    report = nd.simulate(nd.from_ptx(text)[name], 1, BLOCK[name], [*args, out], **how)
    np.testing.assert_allclose(out, want, atol=1e-4)
    return report


def changed(name, changes):
    """The text with changes in one kernel: (old, new), each of which is there as often as its third says, or once.
    Between lines of ``old`` may stand those that tell the source's."""
    start = TEXT.index(f".entry {name}(")
    end = TEXT.find(".visible .entry", start)
    body = TEXT[start:end]
    for old, new, *times in changes:
        pattern = re.escape(old).replace("\\\n", r"\n(?:\t\.loc.*\n)*")
        body, count = re.subn(pattern, lambda m, new=new: new, body)
        assert count == (times[0] if times else 1), (old, count)
    return TEXT[:start] + body + TEXT[end:]


@pytest.mark.parametrize("name", BLOCK)
def test_right(name):
    report = run(name)
    run(name, landing="random", schedules=2)
    run(name, landing="earliest")
    assert "PTX's text alone" in str(report)


ALLOC, DEALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32", "tcgen05.dealloc.cta_group::1.sync.aligned.b32"
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"
ARRIVE = "mbarrier.arrive.shared::cta.b64 _,"
WAIT_LD, WAIT_ST = "tcgen05.wait::ld.sync.aligned;", "tcgen05.wait::st.sync.aligned;"
LOOK = "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%s], %s; @!p bra again; }"
LD = "tcgen05.ld.sync.aligned.32x32b.x8.b32"
# What is right although it is unusual: (kernel, changes).
UNUSUAL = {
    "no wait::ld where the registers are used": ("tile", [(WAIT_LD, "")]),
    "no fences where a barrier acquires and releases": (
        "ring", [("tcgen05.fence::before_thread_sync;", ""), ("tcgen05.fence::after_thread_sync;", "", 2)]),
    "the permit is given up": (
        "tile", [("%r9], %r10;", "%r9], %r10; tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;")]),
    "another warp frees": ("ring", [("setp.ne.s32 \t%p11, %r2, 4;", "setp.ne.s32 \t%p11, %r2, 2;")]),
    "two allocations": (
        "tile", [("%r9], %r10;", f"%r9], %r10; {ALLOC} [%r9], 128;"), (f"{DEALLOC} %r2, %r56;",
                 f"{DEALLOC} %r2, 128; {DEALLOC} 0, 64;")]),
    "an allocation waits for another warp's": (
        "chain", [(f"{DEALLOC} %r2, %r54;", f"{DEALLOC} %r2, %r54; {ALLOC} [%r10], 512; ld.shared.u32 %r2, [%r10];"
                   f"{DEALLOC} %r2, 512;")]),
    "hints of the collector": ("tile", [("kind::f16 [", "kind::f16.collector::a::lastuse [")]),
    "no lane is left out": ("tile", [("%r27, p; }", "%r27, {0, 0, 0, 0}, p; }".replace("{0, 0, 0, 0}", "{%r14, %r14, %r14, %r14}")),
                                     ("mov.b32 \t%r27,", "mov.b32 %r14, 0; mov.b32 \t%r27,")]),
    "a commit for each product": ("tile", [("%r27, p; }", f"%r27, p; }} {COMMIT} [%r40];"), (
        f"\t{COMMIT} [%r40];\n$L__BB0_7", "$L__BB0_7"), ("mbarrier.init.shared::cta.b64 [%r13], %r14;",
        "mbarrier.init.shared::cta.b64 [%r13], 2;"), ("mov.b32 \t%r27,", "mov.u32 %r40, _ZZ4tileE4done; mov.b32 \t%r27,")]),
    "zeros are stored, and added to": ("tile", [
        ("ld.shared.u32 \t%r2, [_ZZ4tileE4base];", "ld.shared.u32 \t%r2, [_ZZ4tileE4base]; mov.b32 %r46, 0; "
         "and.b32 %r45, %r1, 96; shl.b32 %r45, %r45, 16; add.s32 %r58, %r2, %r45; mov.b32 %r59, 0; zero: "
         "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r58], {%r46}; add.s32 %r58, %r58, 1; add.s32 %r59, %r59, 1; "
         f"setp.lt.u32 %p1, %r59, 64; @%p1 bra zero; {WAIT_ST} bar.sync 0;"),
        ("setp.ne.u32 p, %r57, 0; tcgen05", "setp.eq.u32 p, 0, 0; tcgen05")]),
    "wide loads": ("tile", [(f"{LD} {{%r46, %r47, %r48, %r49, %r50, %r51, %r52, %r53}}, [%r58];", " ".join(
        f"tcgen05.ld.sync.aligned.32x32b.x2.b32 {{%r{46 + n}, %r{47 + n}}}, [%r58]; add.s32 %r58, %r58, 2;"
        for n in (0, 2, 4, 6))), ("add.s32 \t%r58, %r58, 8;", "")]),
}  # fmt: skip
# What breaks a rule: (kernel, changes, fault, a part of its line in the source, a part of its cure).
WRONG = {
    "nobody waits for the commit": (
        "tile", [(LOOK % ("%r41", "%r59"), "")], faults.TensorInFlight, "tcgen05.ld", "Wait on done"),
    "no commit": ("tile", [(f"{COMMIT} [", f"{ARRIVE} [")], faults.TensorInFlight, "tcgen05.ld", "tcgen05.commit behind it"),
    "the commit stands before the last product": ("tile", [
        (f"\t{COMMIT} [%r40];\n$L__BB0_7", "$L__BB0_7"), ("mov.b32 \t%r27,", "mov.u32 %r40, _ZZ4tileE4done; setp.eq.u32 "
        f"%p1, %r57, 1; @%p1 {COMMIT} [%r40]; mov.b32 \t%r27,")],
        faults.TensorInFlight, "tcgen05.ld", "tcgen05.commit behind it"),
    "another thread commits": ("tile", [(f"\t{COMMIT} [%r40];\n$L__BB0_7:", f"$L__BB0_7: setp.eq.u32 %p1, %r1, 1; mov.u32 "
        f"%r40, _ZZ4tileE4done; @%p1 {COMMIT} [%r40];")], faults.TensorInFlight, "tcgen05.ld", "tcgen05.commit behind it"),
    "a stage is released by an arrival": (
        "ring", [(f"{COMMIT} [%r55]", f"{ARRIVE} [%r55]")], faults.RefillRace, "cp.async.bulk", "tcgen05.commit"),
    "an accumulator is used again before it has been read": (
        "ring", [(LOOK % ("%r41", "%r42"), "")], faults.DataRace, "tcgen05.mma", "tcgen05.wait"),
    "an accumulator is given back before it has been read": (
        "ring", [(f"{ARRIVE} [%r119];", ""), (f"{LD} {{%r110", f"mov.u32 %r121, _ZZ4ringE5free_; shl.b32 %r120, %r15, 3; "
                  f"add.s32 %r119, %r121, %r120; setp.eq.u32 %p1, %r129, 0; @%p1 {ARRIVE} [%r119]; {LD} {{%r110")],
        faults.DataRace, "tcgen05.mma", "tcgen05.wait"),
    "loads are not over when the accumulator is given back": (
        "ring", [(WAIT_LD, ""), *((f"st.global.u32 \t[%rd18{at}], %r{110 + n};", "") for n, at in enumerate(
            ("+-16", "+-12", "+-8", "+-4", "", "+4", "+8", "+12")))],
        faults.TensorInFlight, "tcgen05.mma", "tcgen05.wait::ld"),
    "the wrong accumulator is read": (
        "ring", [("shl.b32 \t%r106, %r127, 6;", "not.b32 %r106, %r127; shl.b32 \t%r106, %r106, 6;")],
        faults.TensorInFlight, "tcgen05.ld", "are other columns meant"),
    "the parity of ready does not change": (
        "ring", [("shr.u32 \t%r101, %r127, 1;", "mov.b32 \t%r101, 0;")], faults.UnobservedPhase, "mbarrier.arrive", "ready[0]"),
    "no wait::st": ("chain", [(WAIT_ST, "")], faults.TensorInFlight, "tcgen05.mma", "tcgen05.wait::st"),
    "no barrier behind the stores": (
        "chain", [("bar.sync \t0;\n\tnot.pred", "not.pred")],
        faults.DataRace, "tcgen05.mma", "Have both sides meet"),
    "the first product adds to what nobody has written": (
        "tile", [("setp.ne.u32 p, %r57, 0; tcgen05", "setp.eq.u32 p, 0, 0; tcgen05")],
        faults.UninitialisedRead, "tcgen05.mma", "enable-input-d false"),
    "a part of the columns is allocated": (
        "tile", [("mov.b32 \t%r10, 64;", "mov.b32 \t%r10, 32;")], faults.TensorMemoryMisuse, "tcgen05.mma", "columns"),
    "48 columns": ("tile", [("mov.b32 \t%r10, 64;", "mov.b32 \t%r10, 48;")], faults.TensorMemoryMisuse, "tcgen05.alloc", "64"),
    "half is freed": ("tile", [("mov.b32 \t%r56, 64;", "mov.b32 \t%r56, 32;")], faults.TensorMemoryMisuse, "tcgen05.dealloc",
                      "0x0 (64 columns)"),
    "nothing is freed": ("tile", [(f"{DEALLOC} %r2, %r56;", "")], faults.TensorMemoryMisuse, "tcgen05.alloc", "tcgen05.dealloc"),
    "freed twice": ("tile", [(f"{DEALLOC} %r2, %r56;", f"{DEALLOC} %r2, %r56; {DEALLOC} %r2, %r56;")],
                    faults.TensorMemoryMisuse, "tcgen05.dealloc", "once"),
    "freed before all have read": ("tile", [("bar.sync \t0;\n\t@%p12", "@%p12")],
        faults.DataRace, "tcgen05.dealloc", "Have both sides meet"),
    "used after it has been freed": ("tile", [("ld.shared.u32 \t%r2, [_ZZ4tileE4base];",
        f"ld.shared.u32 \t%r2, [_ZZ4tileE4base]; @!%p4 {DEALLOC} %r2, 64;")],
        faults.TensorMemoryMisuse, "tcgen05.mma", "while they last"),
    "allocated after the permit was given up": ("tile", [("%r9], %r10;", "%r9], %r10; tcgen05.relinquish_alloc_permit."
        f"cta_group::1.sync.aligned; {ALLOC} [%r9], 64;")], faults.TensorMemoryMisuse, "tcgen05.alloc", "before it gives"),
    "more columns than there are": ("tile", [("%r9], %r10;", f"%r9], %r10; {ALLOC} [%r9], 512;")],
                                    faults.TensorMemoryMisuse, "tcgen05.alloc", "free in that warp"),
    "another warp's lanes": ("tile", [("shl.b32 \t%r44, %r1, 16;", "shl.b32 \t%r44, %r1, 15;")],
                             faults.BadTensorOperand, "tcgen05.ld", "lane 32"),
    "a lane that is not there for its warp": ("ring", [("shl.b32 \t%r99, %r2, 21;", "shl.b32 \t%r99, %r2, 20;")],
                                              faults.BadTensorOperand, "tcgen05.ld", "lane 32"),
    "one lane has another address": ("tile", [("and.b32  \t%r45, %r44, 6291456;", "and.b32  \t%r45, %r44, 6356992;")],
                                     faults.BadTensorOperand, "tcgen05.ld", "lane 32"),
    "no lanes for half of the warp": ("tile", [(f"\t{LD}", f"\tsetp.gt.u32 %p1, %r1, 100; @%p1 exit; {LD}")],
                                      faults.WarpDivergence, "tcgen05.ld", ""),
    "the descriptor is wgmma's": ("tile", [("70437464178688", "68719476736", 2)], faults.BadTensorOperand, "tcgen05.mma",
                                  "Make it for tcgen05"),
    "a swizzle that there is not": ("tile", [("70437464178688", "3458834951677476864", 2)], faults.BadTensorOperand, "tcgen05.mma", ""),
    "the address is not shifted": ("tile", [("shr.u32 \t%r36, %r32, 4;", "mov.u32 \t%r36, %r32;")],
                                   faults.OutOfRange, "tcgen05.mma", ""),
    "the stride is twice that of the matrix": ("tile", [("70437464178688", "70506183655424", 2)],
                                               faults.OutOfRange, "tcgen05.mma", "leading and stride"),
    "N that is no multiple of 16": ("tile", [("135266320", "135135248")], faults.BadTensorOperand, "tcgen05.mma", "N 16, 32"),
    "M that there is not": ("tile", [("135266320", "101711888")], faults.BadTensorOperand, "tcgen05.mma", "M is 64"),
    "types of another kind": ("tile", [("135266320", "135266576")], faults.BadTensorOperand, "tcgen05.mma", "f16"),
    "two products into accumulators that overlap": ("tile", [("kind::f16 [%r2]", "kind::f16 [%r31]"), (
        "mov.b32 \t%r27,", "shl.b32 %r31, %r57, 5; add.s32 %r31, %r31, %r2; mov.b32 \t%r27,"), ("mov.b32 \t%r10, 64;",
        "mov.b32 \t%r10, 128;"), ("setp.ne.u32 p, %r57, 0; tcgen05", "setp.ne.u32 p, 0, 0; tcgen05")],
        faults.TensorInFlight, "tcgen05.mma", "tcgen05.commit"),
    "the loads are not waited for": ("tile", [(LOOK % ("%r15", "%r57"), "")], faults.InFlightRead, "tcgen05.mma", "Wait on the full"),
    "128 lanes are read by three warps": ("tile", [("setp.gt.u32 \t%p12, %r1, 31;", "setp.gt.u32 \t%p12, %r1, 127;")],
                                          faults.TensorMemoryMisuse, "tcgen05.dealloc", "once"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual(name):
    kernel, changes = UNUSUAL[name]
    run(kernel, changed(kernel, changes))


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name):
    kernel, changes, kind, line, cure = WRONG[name]
    text = changed(kernel, changes)
    args, want = problem(kernel)
    with pytest.raises(kind) as caught:
        nd.simulate(nd.from_ptx(text)[kernel], 1, BLOCK[kernel], [*args, np.zeros(want.shape, np.float32)])
    fault = caught.value
    number = int(re.match(r"\S+:(\d+)", fault.where)[1])
    assert line in LINES[number - 1] and cure in fault.cure, str(fault)
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


CASES = [(kind, rows, columns, k_major, k_major) for kind in KINDS for rows, columns in ((128, 64), (64, 8), (128, 256))]
CASES += [("f16", 128, 32, swizzled, k_major), ("f16", 64, 64, k_major, swizzled), ("i8", 128, 32, swizzled, swizzled),
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
        text = text.replace("add.u32 x, x, base;", "add.u32 x, x, base; and.b32 a, t, 31; setp.gt.u32 q, a, 15;")
        text = text.replace("32x32b.x1.b32 {a}", "16x64b.x1.b32 {a}").replace("add.u32 x, x, 1;", "add.u32 x, x, 2;")
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
        got = words.astype(np.uint16).view(np.float16) if cells is np.float16 else np.ascontiguousarray(words).view(cells)
        place = 16 * warp + lane // 4 + 8 * (lane % 2), lane // 2 % 2
        np.testing.assert_array_equal(got, want[place[0][:, None], 2 * np.arange(columns // 2) + place[1][:, None]])


@pytest.mark.parametrize("shape, count", [("32x32b", 4), ("16x64b", 8), ("16x128b", 2), ("16x256b", 2), ("16x32bx2", 4)])
def test_places(shape, count):
    """Each shape covers its rows and columns once, and a store's places are the load's."""
    rows, columns = places(shape, count, 4 if shape == "16x32bx2" else 0)
    height = 32 if shape == "32x32b" else 16
    cells = set(zip(rows.ravel().tolist(), columns.ravel().tolist(), strict=True))
    assert len(cells) == rows.size and cells == {(r, c) for r in range(height) for c in range(rows.size // height)}


def test_lanes():
    assert lanes_of(128, 0).tolist() == list(range(128))
    assert lanes_of(64, 16).tolist() == [32 * (n // 16) + 16 + n % 16 for n in range(64)]

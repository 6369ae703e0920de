"""Products of tcgen05 by a pair of blocks, with scales, by ``.ws`` and with D divided; copies to tensor memory.
All against NumPy; of what is wrong, the rule and the cure. No GPU that has it has run these."""

import ml_dtypes
import numpy as np
import pytest
from test_tcgen05 import KINDS, fields, k_major

import numba_deform as nd
from numba_deform.engines import faults


def text_of(mma, wide, sizes, group=1, copies="", many=512):
    """A kernel in which thread 0 of each block loads its part of A, B and the scales, of these ``sizes``, and
    that of the first block executes ``copies`` and ``mma`` when all is there. ``wide`` columns of all lanes go
    out. In ``mma`` are d, da, db, n (the descriptor), p (false), and for what is copied sa and sb."""
    a, b, s, t = sizes
    meet = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" if group == 2 else "bar.sync 0;"
    several, mask = (".multicast::cluster", ", h") if group == 2 else ("", "")
    return f""".version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 ps, .param .u64 pt, .param .u64 pd,
                  .param .u32 pn, .param .u64 fa, .param .u64 fb)
{{
 .reg .pred p, q, r; .reg .b32 t, w, a, b, c, e, d, bar, x, n, rank, sa, sb; .reg .b16 h;
 .reg .b64 ga, gb, gs, gt, gd, da, db, ds, dt, at;
 .shared .align 1024 .b8 left[{a}]; .shared .align 1024 .b8 right[{b}];
 .shared .align 1024 .b8 first[{s}]; .shared .align 1024 .b8 second[{t}];
 .shared .align 8 .b64 bars[2]; .shared .b32 place;
 ld.param.u64 ga, [pa]; ld.param.u64 gb, [pb]; ld.param.u64 gs, [ps]; ld.param.u64 gt, [pt];
 ld.param.u64 gd, [pd];
 mov.u32 t, %tid.x; shr.u32 w, t, 5; mov.u32 rank, %cluster_ctarank; mov.u32 bar, bars; mov.u32 x, place;
 mov.u32 a, left; mov.u32 b, right; mov.u32 c, first; mov.u32 e, second;
 mad.wide.u32 ga, rank, {a}, ga; mad.wide.u32 gb, rank, {b}, gb; mad.wide.u32 gs, rank, {s}, gs;
 mad.wide.u32 gt, rank, {t}, gt;
 setp.ne.u32 p, w, 0; setp.ne.u32 q, t, 0; setp.ne.or.u32 r, rank, 0, q;
 @p bra ready;
 tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [x], {many};
 @q bra ready;
 mbarrier.init.shared::cta.b64 [bar], 1; mbarrier.init.shared::cta.b64 [bar+8], 1;
 fence.mbarrier_init.release.cluster;
ready:
 {meet}
 ld.shared.b32 d, [x]; add.u32 sa, d, 256; add.u32 sb, d, 272;
 @q bra loaded;
 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {a + b + s + t};
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [a], [ga], {a}, [bar];
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [b], [gb], {b}, [bar];
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [c], [gs], {s}, [bar];
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [e], [gt], {t}, [bar];
look: mbarrier.try_wait.parity.shared::cta.b64 p, [bar], 0; @!p bra look;
loaded:
 {meet}
 @r bra issued;
 ld.param.u64 da, [fa]; shr.u32 n, a, 4; cvt.u64.u32 at, n; or.b64 da, da, at;
 ld.param.u64 db, [fb]; shr.u32 n, b, 4; cvt.u64.u32 at, n; or.b64 db, db, at;
 shr.u32 n, c, 4; cvt.u64.u32 ds, n; or.b64 ds, ds, {fields(0, 128)};
 shr.u32 n, e, 4; cvt.u64.u32 dt, n; or.b64 dt, dt, {fields(0, 128)};
 setp.eq.u32 p, 0, 1; ld.param.u32 n, [pn]; mov.u16 h, 3;
 {copies}
 {mma}
 tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster{several}.b64 [bar+8]{mask};
issued:
wait: mbarrier.try_wait.parity.shared::cta.b64 p, [bar+8], 0; @!p bra wait;
 mad.lo.u32 n, rank, 128, t; mul.wide.u32 at, n, {4 * wide}; add.u64 gd, gd, at; shl.b32 x, w, 21;
 add.u32 x, x, d; mov.u32 n, 0;
next:
 tcgen05.ld.sync.aligned.32x32b.x1.b32 {{a}}, [x];
 tcgen05.wait::ld.sync.aligned;
 st.global.b32 [gd], a;
 add.u64 gd, gd, 4; add.u32 x, x, 1; add.u32 n, n, 1; setp.lt.u32 q, n, {wide};
 @q bra next;
 bar.sync 0;
 setp.ne.u32 p, w, 0;
 @p bra end;
 tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 d, {many};
end: ret;
}}
"""


NOTHING = np.zeros(16, np.uint8)  # in place of scales
COPY = "tcgen05.cp.cta_group::{0}.32x128b.warpx4 [sa], ds; tcgen05.cp.cta_group::{0}.32x128b.warpx4 [sb], dt;"


def run(mma, wide, a, b, scales, descriptor, given, group=1, text=lambda t: t, **how):
    """What all lanes hold, as words (blocks, lanes, columns). ``a``, ``b``, ``scales``: of each block."""
    brought = [np.stack([np.ascontiguousarray(x).view(np.uint8).reshape(-1) for x in parts])
               for parts in (a, b, *scales)]  # fmt: skip
    copies = COPY.format(group) if len(scales[0][0]) > 16 else ""
    made = text_of(mma, wide, [x.shape[1] for x in brought], group, copies)
    out = np.full((group, 128, wide), 0xFFFFFFFF, np.uint32)
    args = [*brought, out, descriptor, *given]
    report = nd.simulate(nd.from_ptx(text(made))["k"], group, 128, args, cluster=group, **how)
    assert "PTX's text alone" in str(report)
    return out


def descriptor_of(rows, columns, a=0, b=0, sums=1, more=0):
    return sums << 4 | a << 7 | b << 10 | columns // 8 << 17 | rows // 16 << 24 | more


def factors(kind, rows, columns, seed=5):
    _, dtype, number, sums, cells = KINDS[kind]
    random, depth = np.random.default_rng(seed), 32 // np.dtype(dtype).itemsize
    a, b = (random.integers(-8, 9, (n, depth)).astype(dtype) for n in (rows, columns))
    return a, b, descriptor_of(rows, columns, number, number, sums), cells


# --- pairs of blocks ------------------------------------------------------------------------------------
def pair(kind="f16", rows=256, columns=64, mma="tcgen05.mma.cta_group::2.kind::{} [d], da, db, n, p;", **how):
    a, b, descriptor, cells = factors(kind, rows, columns)
    lefts, rights = ([k_major(x)[0] for x in np.split(m, 2)] for m in (a, b))
    nothing = ([NOTHING] * 2,) * 2
    given = k_major(a)[1], k_major(b)[1]
    wide = columns if rows == 256 else columns // 2
    out = run(mma.format(KINDS[kind][0]), wide, lefts, rights, nothing, descriptor, given, 2, **how)
    got = out.view(cells) if np.dtype(cells).itemsize == 4 else out.astype(np.uint16).view(cells)
    return got, a.astype(float) @ b.astype(float).T


@pytest.mark.parametrize("kind", ["f16", "tf32", "e4m3", "i8", "f16 to f16"])
@pytest.mark.parametrize("rows, columns", [(256, 64), (128, 32), (256, 256), (128, 96), (256, 16), (128, 48)])
def test_pairs(kind, rows, columns):
    columns += columns % 32 if kind == "i8" else 0  # which takes multiples of 32
    got, want = pair(kind, rows, columns)
    if rows == 128:  # the right half of D in the lanes from 64 on
        want = np.stack([np.concatenate(np.split(half, 2, axis=1)) for half in np.split(want, 2)])
    np.testing.assert_array_equal(got, want.reshape(got.shape))


def test_pairs_under_schedules():
    pair(landing="random", schedules=3)
    pair(landing="earliest")


def test_lanes_of_both_blocks_are_left_out():
    words = ["w", "sa", "sa", "sa", "sa", "sa", "sa", "w"]  # w: warp 0; sa becomes no lane
    mma = "mov.u32 w, 0xFFFFFFFF; mov.u32 sa, 0; tcgen05.mma.cta_group::2.kind::{} [d], da, db, n, "
    with pytest.raises(faults.UninitialisedRead, match="lane 0, column 0"):
        pair(mma=mma + f"{{{{{', '.join(words)}}}}}, p; mov.u32 w, 0;")


def changed(old, new, count=1):
    def change(text):
        assert text.count(old) == count, text.count(old)
        return text.replace(old, new)

    return change


LEADER = ".multicast::cluster.b64 [bar+8], h;"
# What is wrong with a pair -> (change, rule, words of the fault, words of the cure).
WRONG = {
    "the other block commits nothing to this one": (
        changed(LEADER, LEADER.replace("h", "1")), "MissingArrivals", "bars[1]",
        "arrives on that of block 0: have it name block 1 as well, by .multicast::cluster and a mask"),
    "both blocks issue the product": (
        changed("setp.ne.or.u32 r, rank, 0, q;", "setp.ne.u32 r, t, 0;"), "TensorInFlight",
        "of cells that thread 0 of block 1 writes", "One of the two blocks issues the products of a pair"),
    "one block allocates for itself": (
        changed("tcgen05.alloc.cta_group::2", "tcgen05.alloc.cta_group::1"), "BadTensorOperand", "cta_group::2",
        "Use cta_group::1 here as well, or the other everywhere."),
    "only one block allocates": (
        changed(" @p bra ready;", " setp.ne.or.u32 p, rank, 0, p; @p bra ready;"),
        "TensorMemoryMisuse", "block 1, its peer", ""),
    "N that a pair has not": (
        changed("ld.param.u32 n, [pn];", f"mov.u32 n, {descriptor_of(256, 40)};"), "BadTensorOperand",
        "M 256, N 40", "M is 128 with 16, 32 .. 256, or 256 with 16, 32 .. 256 columns, with cta_group::2"),
    "the blocks have not met": (
        changed("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", "bar.sync 0;", 2),
        "BlockNotStarted", "tensor memory of block 1", "barrier.cluster.arrive"),
    "the other block's half may not be there": (
        lambda text: "bar.sync 0;".join(text.rsplit(
            "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", 1)),
        "InFlightRead", "issued by thread 0 of block 1",
        "have them wait there until its copy has landed, then arrive on an mbarrier of this block"),
    "one block frees": (
        changed("setp.ne.u32 p, w, 0;\\n @p bra end;".replace("\\n", "\n"),
                "add.u32 w, w, rank; setp.ne.u32 p, w, 0;\n @p bra end;"),
        "TensorMemoryMisuse", "", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_pairs(name):
    change, rule, words, cure = WRONG[name]
    with pytest.raises(faults.SimFault) as caught:
        pair(text=change)
    fault = caught.value
    assert type(fault).__name__ in rule.split("|") and words in str(fault) and cure in fault.cure, str(fault)


def test_a_block_has_no_other():
    with pytest.raises(faults.NotInCluster, match="even number of blocks"):
        a, b, descriptor, _ = factors("f16", 256, 64)
        mma, given = "tcgen05.mma.cta_group::2.kind::f16 [d], da, db, n, p;", (k_major(a)[1], k_major(b)[1])
        brought = [[k_major(x)[0]] for x in (a[:128], b)]
        text = str.replace
        run(mma, 64, *brought, ([NOTHING],) * 2, descriptor, given, text=lambda t: text(t, "p::1", "p::2"))


# --- scales ---------------------------------------------------------------------------------------------
def scale_words(scales, count):
    """Scales (rows, count) as four columns of tensor memory have them: lane l those of rows l, 32 + l .."""
    bytes_ = np.zeros((128, 4), np.uint8)
    bytes_[: len(scales), :count] = scales.view(np.uint8)
    return bytes_.reshape(4, 32, 4).transpose(1, 0, 2).copy()


def packed(x):
    """Two numbers of 4 bits in a byte."""
    x = x.view(np.uint8)
    return x[:, ::2] | x[:, 1::2] << 4


SCALED = {  # kind -> (opcode, type of A and B, its number, type of the scales, its number, how many a row)
    "mxf8f6f4": ("mxf8f6f4.block_scale", ml_dtypes.float8_e4m3fn, 0, ml_dtypes.float8_e8m0fnu, 1, 1),
    "mxf8f6f4, e5m2": ("mxf8f6f4.block_scale", ml_dtypes.float8_e5m2, 1, ml_dtypes.float8_e8m0fnu, 1, 1),
    "mxf4": ("mxf4.block_scale.scale_vec::2X", ml_dtypes.float4_e2m1fn, 1, ml_dtypes.float8_e8m0fnu, 1, 2),
    "nvf4": ("mxf4nvf4.block_scale.scale_vec::4X", ml_dtypes.float4_e2m1fn, 1, ml_dtypes.float8_e4m3fn, 0, 4),
}


def scaled(kind, columns=64, group=1, of_b=scale_words, **how):
    opcode, dtype, number, of_scales, scale_number, count = SCALED[kind]
    random, depth = np.random.default_rng(2), 64 if dtype is ml_dtypes.float4_e2m1fn else 32
    rows = 128 * group
    a, b = (random.integers(-6, 7, (n, depth)).astype(dtype) for n in (rows, columns))
    sa, sb = (np.exp2(random.integers(-3, 4, (n, count))).astype(of_scales) for n in (rows, columns))
    descriptor = descriptor_of(rows, columns, number, number, 0, scale_number << 23)
    as_bytes = packed if depth == 64 else (lambda x: x.view(np.uint8))
    lefts, rights = ([k_major(as_bytes(x))[0] for x in np.split(m, group)] for m in (a, b))
    first = [scale_words(x, count) for x in np.split(sa, group)]
    second = [of_b(sb, count)] * group
    given = k_major(as_bytes(a))[1], k_major(as_bytes(b))[1]
    mma = f"tcgen05.mma.cta_group::{group}.kind::{opcode} [d], da, db, n, [sa], [sb], p;"
    out = run(mma, columns, lefts, rights, (first, second), descriptor, given, group, **how)
    factor = depth // count
    left, right = (x.astype(float) * np.repeat(s.astype(float), factor, 1) for x, s in ((a, sa), (b, sb)))
    return out.view(np.float32).reshape(rows, columns), left @ right.T


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("kind", SCALED)
def test_scales(kind, group):
    np.testing.assert_array_equal(*scaled(kind, 64, group))
    np.testing.assert_array_equal(*scaled(kind, 128, group, landing="random"))


OTHER_LANES = COPY.format(1).partition("; ")[2]
NUMBER = "ld.param.u32 n, [pn];"
WRONG_SCALES = {
    "no scales of B": (changed(OTHER_LANES, ""), "UninitialisedRead", "with scales there"),
    "scales in one part": (
        changed(OTHER_LANES, OTHER_LANES.replace("32x128b.warpx4", "128x128b")),
        "UninitialisedRead|BadTensorOperand|OutOfRange", ""),
    "scales of a type": (changed(NUMBER, f"{NUMBER} and.b32 n, n, 0xFF7FFFFF;"),
                         "BadTensorOperand", "scales of type 0"),
    "from the third scale on": (changed(NUMBER, f"{NUMBER} or.b32 n, n, 0x60000010;"),
                                "BadTensorOperand", "the first of A 3, of B 1"),
    "the first lane": (changed("add.u32 sb, d, 272;", "add.u32 sb, d, 0x200110;"), "BadTensorOperand",
                       "lane 32"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_SCALES)
def test_wrong_scales(name):
    change, rule, words = WRONG_SCALES[name]
    with pytest.raises(faults.SimFault) as caught:
        scaled("mxf4" if "third" in name else "mxf8f6f4", text=change)
    assert type(caught.value).__name__ in rule.split("|") and words in str(caught.value), str(caught.value)


def test_scales_of_b_differ():
    """Copied by 128x128b, each part of 32 lanes has scales of its own."""

    def of_b(scales, count):
        words = scale_words(scales, count)
        return np.concatenate([words, words + 1, words, words])

    text = changed(OTHER_LANES, OTHER_LANES.replace("32x128b.warpx4", "128x128b"))
    with pytest.raises(faults.BadTensorOperand, match="differ between the four parts") as caught:
        scaled("mxf8f6f4", of_b=of_b, text=text)
    assert "warpx4" in caught.value.cure


# --- .ws, and D divided -----------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["f16", "tf32", "i8", "e5m2"])
@pytest.mark.parametrize("rows, columns", [(32, 64), (64, 128), (128, 256)])
def test_ws(kind, rows, columns):
    a, b, descriptor, cells = factors(kind, rows, columns)
    mma = f"tcgen05.mma.ws.cta_group::1.kind::{KINDS[kind][0]}.collector::b0::fill [d], da, db, n, p;"
    parts = 128 // rows
    out = run(mma, columns // parts, [k_major(a)[0]], [k_major(b)[0]], ([NOTHING],) * 2, descriptor,
              (k_major(a)[1], k_major(b)[1]))  # fmt: skip
    want = a.astype(float) @ b.astype(float).T
    np.testing.assert_array_equal(out.view(cells)[0], np.concatenate(np.split(want, parts, axis=1)))


def test_d_is_divided():
    a, b, descriptor, cells = factors("f16", 128, 64)
    mma = "tcgen05.mma.cta_group::1.kind::f16 [d], da, db, n, p; setp.eq.u32 p, 0, 0; "
    mma += "tcgen05.mma.cta_group::1.kind::f16 [d], da, db, n, p, 3;"
    out = run(mma, 64, [k_major(a)[0]], [k_major(b)[0]], ([NOTHING],) * 2, descriptor,
              (k_major(a)[1], k_major(b)[1]))  # fmt: skip
    np.testing.assert_array_equal(out.view(cells)[0], a.astype(float) @ b.astype(float).T * (1 + 1 / 8))


# --- copies -----------------------------------------------------------------------------------------------
LANE = np.arange(128)
COPIED = {  # shape -> (rows, bytes of one, the row that each lane has)
    "128x256b": (128, 32, LANE), "128x128b": (128, 16, LANE), "32x128b.warpx4": (32, 16, LANE % 32),
    "64x128b.warpx2::02_13": (64, 16, LANE % 64),
    "64x128b.warpx2::01_23": (64, 16, np.where(LANE < 64, 0, 32) + LANE % 32),
}  # fmt: skip


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("shape", COPIED)
def test_copies(shape, group):
    rows, size, row = COPIED[shape]
    data = np.random.default_rng(1).integers(0, 256, (group, rows, size), np.uint8)
    lefts = [np.ascontiguousarray(x.reshape(rows // 8, 8, size // 16, 16).swapaxes(1, 2)) for x in data]
    mma = f"tcgen05.cp.cta_group::{group}.{shape} [d], da;"
    parts = ([NOTHING] * group,) * 3
    out = run(mma, size // 4, lefts, parts[0], parts[1:], 0, (fields(128, size // 16 * 128), 0), group)
    np.testing.assert_array_equal(out, data.view(np.uint32)[:, row])


# --- a ring whose barriers are those of the first block ---------------------------------------------------
STEPS, STAGES, BYTES = 5, 2, 128 * 32 + 32 * 32
RING = f"""
.version 8.8
.target sm_100a
.address_size 64
.visible .entry ring(.param .align 64 .b8 maps[256], .param .u64 pd)
{{
 .reg .pred p, q, r;
 .reg .b32 t, w, a, b, d, full, empty, done, x, y, z, n, rank, stage, parity, lead, col, u; .reg .b16 h;
 .reg .b64 ma, mb, gd, da, db, at;
 .shared .align 1024 .b8 left[{STAGES * 4096}]; .shared .align 1024 .b8 right[{STAGES * 1024}];
 .shared .align 8 .b64 bars[{2 * STAGES + 1}]; .shared .b32 place;
 ld.param.u64 gd, [pd]; mov.b64 ma, maps; cvta.param.u64 ma, ma; add.u64 mb, ma, 128;
 mov.u32 t, %tid.x; shr.u32 w, t, 5; mov.u32 rank, %cluster_ctarank; mov.u32 full, bars; mov.u32 x, place;
 add.u32 empty, full, {8 * STAGES}; add.u32 done, full, {16 * STAGES};
 mov.u32 n, 0; mov.u16 h, 3;
 setp.ne.u32 p, w, 0;
 @p bra ready;
 tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [x], 64;
 setp.ne.u32 q, t, 0;
 @q bra ready;
 mbarrier.init.shared::cta.b64 [full], 1; mbarrier.init.shared::cta.b64 [full+8], 1;
 mbarrier.init.shared::cta.b64 [empty], 1; mbarrier.init.shared::cta.b64 [empty+8], 1;
 mbarrier.init.shared::cta.b64 [done], 1;
 fence.mbarrier_init.release.cluster;
ready:
 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
 ld.shared.b32 d, [x];
 setp.eq.u32 p, t, 0; @p bra load;
 setp.ne.u32 p, t, 32; setp.ne.or.u32 p, rank, 0, p; @p bra read;
multiply:
 and.b32 stage, n, 1; shr.u32 parity, n, 1; and.b32 parity, parity, 1;
 shl.b32 y, stage, 3; add.u32 z, full, y;
look: mbarrier.try_wait.parity.shared::cta.b64 p, [z], parity; @!p bra look;
 mov.u32 a, left; shl.b32 u, stage, 12; add.u32 a, a, u; shr.u32 a, a, 4; cvt.u64.u32 da, a;
 or.b64 da, da, {fields(16, 256, 6)};
 mov.u32 b, right; shl.b32 u, stage, 10; add.u32 b, b, u; shr.u32 b, b, 4; cvt.u64.u32 db, b;
 or.b64 db, db, {fields(16, 256, 6)};
 setp.ne.u32 p, n, 0; mov.u32 u, {descriptor_of(256, 64)};
 tcgen05.mma.cta_group::2.kind::f16 [d], da, db, u, p;
 add.u32 z, empty, y;
 tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [z], h;
 add.u32 n, n, 1; setp.lt.u32 p, n, {STEPS};
 @p bra multiply;
 tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [done], h;
 bra read;
load:
 and.b32 stage, n, 1; shr.u32 parity, n, 1; not.b32 parity, parity; and.b32 parity, parity, 1;
 shl.b32 y, stage, 3; add.u32 z, empty, y;
free: mbarrier.try_wait.parity.shared::cta.b64 p, [z], parity; @!p bra free;
 add.u32 z, full, y; and.b32 lead, z, 0xFEFFFFFF;
 setp.eq.u32 p, rank, 0;
 @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [z], {2 * BYTES};
 mov.u32 a, left; shl.b32 u, stage, 12; add.u32 a, a, u; mov.u32 b, right; shl.b32 u, stage, 10;
 add.u32 b, b, u;
 shl.b32 col, n, 4; shl.b32 u, rank, 7;
 cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes
  [a], [ma, {{col, u}}], [lead];
 shl.b32 u, rank, 5;
 cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes
  [b], [mb, {{col, u}}], [lead];
 add.u32 n, n, 1; setp.lt.u32 p, n, {STEPS};
 @p bra load;
read:
wait: mbarrier.try_wait.parity.shared::cta.b64 p, [done], 0; @!p bra wait;
 mad.lo.u32 n, rank, 128, t; mul.wide.u32 at, n, 256; add.u64 gd, gd, at; shl.b32 x, w, 21;
 add.u32 x, x, d; mov.u32 n, 0;
 bar.sync 0;
next:
 tcgen05.ld.sync.aligned.32x32b.x1.b32 {{a}}, [x];
 tcgen05.wait::ld.sync.aligned;
 st.global.b32 [gd], a;
 add.u64 gd, gd, 4; add.u32 x, x, 1; add.u32 n, n, 1; setp.lt.u32 q, n, 64;
 @q bra next;
 bar.sync 0;
 setp.ne.u32 p, w, 0;
 @p bra end;
 tcgen05.dealloc.cta_group::2.sync.aligned.b32 d, 64;
end: ret;
}}
"""


def ring(text=RING, **how):
    random = np.random.default_rng(4)
    a, b = (random.integers(-8, 9, (rows, 16 * STEPS)).astype(np.float16) for rows in (256, 64))
    maps = [nd.TensorMap.of(x, (16, len(x) // 2), swizzle="32B") for x in (a, b)]
    out = np.full((256, 64), np.nan, np.float32)
    nd.simulate(nd.from_ptx(text)["ring"], 2, 128, [nd.TensorMapArray(maps), out], cluster=2, **how)
    np.testing.assert_array_equal(out, a.astype(float) @ b.astype(float).T)


def test_the_ring_of_a_pair():
    ring()
    ring(landing="random", schedules=4)
    ring(landing="earliest")


TO_BOTH = ".multicast::cluster.b64 [z], h;"
LOOK = "mbarrier.try_wait.parity.shared::cta.b64 p, [z], parity; @!p bra "
WRONG_RINGS = {  # (change, rule, words of the line, words of the cure)
    "bytes of one block": (
        changed(f", {2 * BYTES};", f", {BYTES};"), "MoreBytesThanExpected", "arrive.expect_tx",
        f"Announce {2 * BYTES} bytes there"),
    "each block's own barrier": (
        changed("and.b32 lead, z, 0xFEFFFFFF;", "mov.b32 lead, z;"), "MissingBytes", "look: mbarrier.try_wait",
        f"{BYTES} more, not announced, have come to that of block 1. Give those copies this block's barrier"),
    "a stage goes back to one block": (
        changed(TO_BOTH, ".b64 [z];"), "MissingArrivals", "free: mbarrier.try_wait",
        "have it name block 1 as well"),
    "nobody waits for a stage": (
        changed(f"free: {LOOK}free;", ""), "TooManyArrivals", "arrive.expect_tx",
        "a producer waits on empty before it arms a stage again"),
    "the product does not wait": (
        changed(f"look: {LOOK}look;", ""), "InFlightRead", "tcgen05.mma", "Wait on the full barrier"),
    "only one block's data is loaded": (
        changed(" @p bra load;\nread:", " setp.eq.and.u32 p, rank, 0, p; @p bra load;\nread:"), "MissingBytes",
        "look: mbarrier.try_wait", f"or issue the copies of the other {BYTES}"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_RINGS)
def test_wrong_rings(name):
    change, rule, line, cure = WRONG_RINGS[name]
    with pytest.raises(faults.SimFault) as caught:
        ring(change(RING))
    fault = caught.value
    source = next(text for text in str(fault).splitlines() if text.startswith("  at "))
    assert type(fault).__name__ == rule and line in source and cure in fault.cure, str(fault)

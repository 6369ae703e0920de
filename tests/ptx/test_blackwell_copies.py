"""Copies that came with Blackwell: four rows by one instruction, loads for groups of blocks, a swizzle of
larger atoms; zeros by st.bulk, words of 128 bits, vectors of 256. No GPU that has them has run these."""

import numpy as np
import pytest

import numba_deform as nd
from numba_deform.engines import faults
from numba_deform.engines.tensormap import TensorMap, TensorMapArray, swizzle_offsets

GATHER = "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
SCATTER = "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group"
# Four rows, whose numbers come from an array, go to shared memory, and out from there, as they lie and by rows.
TEXT = """.version 8.7 .target sm_100a .address_size 64
.visible .entry k(.param .align 64 .b8 maps[256], .param .u64 rows, .param .u64 out)
{ .reg .pred p; .reg .b32 t, a, bar, c, r<4>; .reg .b64 x, y; .reg .b128 w;
 .shared .align 1024 .b8 tile[512]; .shared .align 8 .b64 barrier;
 mov.u32 t, %tid.x; mov.u32 a, tile; mov.u32 bar, barrier; setp.ne.u32 p, t, 0; mov.u32 c, COLUMN;
 ld.param.u64 x, [rows]; ld.global.v4.b32 {r0, r1, r2, r3}, [x]; mov.b64 x, maps; cvta.param.u64 x, x;
 @p bra ready;
 mbarrier.init.shared::cta.b64 [bar], 1; fence.mbarrier_init.release.cluster;
 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 512;
 LOAD [a], [x, {c, r0, r1, r2, r3}], [bar];
ready: bar.sync 0;
look: mbarrier.try_wait.parity.shared::cta.b64 p, [bar], 0; @!p bra look;
 ld.param.u64 y, [out]; mad.wide.u32 y, t, 16, y; mad.lo.u32 r0, t, 16, a; ld.shared.b128 w, [r0];
 st.global.b128 [y], w;
 setp.ne.u32 p, t, 0; @p bra end; ld.param.u64 y, [rows];
 ld.global.v4.b32 {r0, r1, r2, r3}, [y]; add.u64 x, x, 128;
 STORE [x, {c, r3, r2, r1, r0}], [a];
 cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
end: ret; }
"""


def run(rows, column=0, swizzle="none", load=GATHER, store=SCATTER, box=(32, 1), changes=()):
    """(the tensor, what the tile's 32 parts of 16 bytes hold, the other tensor)"""
    data = np.arange(10 * 64, dtype=np.float32).reshape(10, 64)
    other, out = np.full((10, 64), -1, np.float32), np.full((32, 4), -1, np.float32)
    text = TEXT.replace("LOAD", load).replace("STORE", store).replace("COLUMN", str(column))
    for old, new in changes:
        text = text.replace(old, new)
    maps = TensorMapArray([TensorMap.of(x, box, swizzle=swizzle) for x in (data, other)])
    nd.simulate(nd.from_ptx(text)["k"], 1, 32, [maps, np.array(rows, np.int32), out])
    return data, out, other


@pytest.mark.parametrize("swizzle", ["none", "128B", "128B_atom_32B"])
@pytest.mark.parametrize("group", ["", ".cta_group::1", ".cta_group::2"])
def test_four_rows(swizzle, group):
    rows = [7, 2, 5, 0]
    data, out, other = run(rows, 32, swizzle, GATHER + group)
    parts = swizzle_offsets(512, swizzle)[::16] // 16
    np.testing.assert_array_equal(out[parts].reshape(4, 32), data[rows, 32:])
    want = np.full_like(other, -1)
    want[rows[::-1], 32:] = data[rows, 32:]
    np.testing.assert_array_equal(other, want)


def test_rows_outside():
    """They arrive as zeros, count on the barrier, and are not written."""
    data, out, other = run([3, -1, 10, 4])
    want = np.stack([data[3, :32], np.zeros(32), np.zeros(32), data[4, :32]])
    np.testing.assert_array_equal(out.reshape(4, 32), want)
    expected = np.full_like(other, -1)
    expected[[4, 3], :32] = data[[3, 4], :32]
    np.testing.assert_array_equal(other, expected)


@pytest.mark.parametrize("how, fault, words", [
    ({"box": (32, 4)}, faults.BadTensorMap, "1 row"),
    ({"column": 1}, faults.MisalignedBox, "4 bytes"),
    ({"changes": [("[bar], 512", "[bar], 128")]}, faults.MoreBytesThanExpected, "384"),
    ({"changes": [("@!p bra look", ""), ("try_wait", "test_wait")]}, faults.InFlightRead, "TMA load"),
    ({"changes": [("cp.async.bulk.wait_group 0;", "")]}, faults.CopyOutlivesBlock, "store"),
])  # fmt: skip
def test_wrong(how, fault, words):
    with pytest.raises(fault, match=words):
        run([7, 2, 5, 0], **how)


def test_a_race_of_rows():
    """Two rows of two stores are one."""
    with pytest.raises(faults.DataRace):
        run([7, 2, 5, 0], changes=[("@p bra end;", "setp.gt.u32 p, t, 1; @p bra end;")])


def test_swizzle_of_larger_atoms():
    """Parts of 32 bytes of a row of 128 change places with the row's number, modulo 4."""
    parts = swizzle_offsets(1024, "128B_atom_32B").reshape(8, 4, 32)
    for row in range(8):
        for part in range(4):
            start = 128 * row + 32 * (part ^ row % 4)
            assert parts[row, part].tolist() == list(range(start, start + 32))


BULK = """.version 8.7 .target sm_100a .address_size 64
.visible .entry k(.param .u64 out)
{ .reg .pred p; .reg .b32 t, a; .reg .b64 x, y; .shared .align 16 .b8 room[256];
 mov.u32 t, %tid.x; mov.u32 a, room; setp.ne.u32 p, t, 0;
 @p bra ready; st.bulk.weak.shared::cta [a], SIZE, 0;
ready: SYNC mad.lo.u32 a, t, 8, a; ld.shared.b64 x, [a]; ld.param.u64 y, [out];
 mad.wide.u32 y, t, 8, y; st.global.b64 [y], x; ret; }
"""


@pytest.mark.parametrize("size, sync, fault", [
    (256, "bar.sync 0;", None), (252, "bar.sync 0;", faults.BadSize), (264, "bar.sync 0;", faults.OutOfRange),
    (248, "bar.sync 0;", faults.UninitialisedRead), (256, "", faults.DataRace)])  # fmt: skip
def test_zeros(size, sync, fault):
    out = np.full(32, 7, np.uint64)
    kernel = nd.from_ptx(BULK.replace("SIZE", str(size)).replace("SYNC", sync))["k"]
    if fault:
        with pytest.raises(fault):
            nd.simulate(kernel, 1, 32, [out])
    else:
        nd.simulate(kernel, 1, 32, [out])
        assert (out == 0).all()


@pytest.mark.parametrize("vector", ["v8.b32", "v4.b64", "v8.f32", "v4.f64"])
@pytest.mark.parametrize("compiled", [False, True])
def test_256_bits(vector, compiled):
    count, kind = int(vector[1]), vector[3:]
    names = ", ".join(f"r{n}" for n in range(count))
    text = f""".version 8.8 .target sm_100a .address_size 64
.visible .entry k(.param .u64 a, .param .u64 b) {{ .reg .b32 t; .reg .b64 x; .reg .{kind} r<8>;
mov.u32 t, %tid.x;
ld.param.u64 x, [a]; mad.wide.u32 x, t, 32, x; ld.global.{vector} {{{names}}}, [x];
ld.param.u64 x, [b]; mad.wide.u32 x, t, 32, x; st.global.{vector} [x], {{{names}}}; ret; }}
"""
    data, out = np.arange(256, dtype=np.float32), np.full(256, -1, np.float32)
    nd.simulate(nd.from_ptx(text)["k"], 1, 32, [data, out], compiled=compiled)
    np.testing.assert_array_equal(out, data)
    with pytest.raises(faults.Misaligned):
        nd.simulate(nd.from_ptx(text.replace("[x];", "[x+16];"))["k"], 1, 31, [data, out])


# The consumer announces what the producer loads, so that it learns from the copies alone that a stage was free.
RING = """.version 8.7 .target sm_100a .address_size 64
.visible .entry k(.param .u64 data, .param .u64 out)
{ .reg .pred p; .reg .b32 t, i, full, empty, tile, phase, x; .reg .b64 y, z; .reg .f32 f, sum;
 .shared .align 128 .b8 room[16]; .shared .align 8 .b64 bars[2];
 mov.u32 t, %tid.x; mov.u32 full, bars; add.u32 empty, full, 8; mov.u32 tile, room; mov.u32 i, 0;
 mov.f32 sum, 0f00000000; ld.param.u64 y, [data]; ld.param.u64 z, [out]; setp.ne.u32 p, t, 0; @p bra ready;
 mbarrier.init.shared::cta.b64 [full], 1; mbarrier.init.shared::cta.b64 [empty], 1;
 fence.mbarrier_init.release.cluster;
ready: bar.sync 0; setp.eq.u32 p, t, 32; @p bra consume; setp.ne.u32 p, t, 0; @p bra end;
load: and.b32 phase, i, 1; xor.b32 phase, phase, 1;
free: mbarrier.try_wait.parity.shared::cta.b64 p, [empty], phase; @!p bra free;
 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [tile], [y], 16, [full];
 add.u64 y, y, 16; add.u32 i, i, 1; setp.lt.u32 p, i, 4; @p bra load; bra end;
consume: and.b32 phase, i, 1; EXPECT
look: mbarrier.try_wait.parity.shared::cta.b64 p, [full], phase; @!p bra look;
 ld.shared.f32 f, [tile]; add.f32 sum, sum, f; fence.proxy.async.shared::cta;
 mbarrier.arrive.shared::cta.b64 _, [empty];
 add.u32 i, i, 1; setp.lt.u32 p, i, 4; @p bra consume; st.global.f32 [z], sum;
end: ret; }
"""


def test_a_copy_says_that_its_stage_was_free():
    made = RING.replace("EXPECT", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 16;")
    for landing in ("late", "random", "earliest"):
        out = np.zeros(1, np.float32)
        nd.simulate(nd.from_ptx(made)["k"], 1, 64, [np.arange(16, dtype=np.float32), out], landing=landing)
        assert out[0] == 0 + 4 + 8 + 12


@pytest.mark.parametrize("order, fault", [("release", None), ("relaxed", faults.DataRace)])
def test_a_relaxed_arrival_hands_on_nothing(order, fault):
    text = f""".version 8.7 .target sm_100a .address_size 64
.visible .entry k(.param .u64 out)
{{ .reg .pred p; .reg .b32 t, a, bar, x; .reg .b64 y; .shared .b32 room; .shared .align 8 .b64 barrier;
 mov.u32 t, %tid.x; mov.u32 a, room; mov.u32 bar, barrier; setp.ne.u32 p, t, 0; @p bra ready;
 mbarrier.init.shared::cta.b64 [bar], 1; st.shared.b32 [a], 0;
ready: bar.sync 0; @p bra look;
 st.shared.b32 [a], 5; mbarrier.arrive.{order}.cta.shared::cta.b64 _, [bar]; bra end;
look: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [bar], 0; @!p bra look;
 ld.shared.b32 x, [a]; ld.param.u64 y, [out]; mad.wide.u32 y, t, 4, y; st.global.b32 [y], x;
end: ret; }}
"""
    out = np.zeros(64, np.int32)
    if fault:
        with pytest.raises(fault):
            nd.simulate(nd.from_ptx(text)["k"], 1, 64, [out])
    else:
        nd.simulate(nd.from_ptx(text)["k"], 1, 64, [out])
        assert (out[1:] == 5).all()

"""Products of warpgroups in PTX: their numbers, and whose the registers are meanwhile."""

import numpy as np
import pytest
from generated import WGMMA, a_words, held, lines_of_16, wgmma_expected, wgmma_operands, wgmma_text

import numba_deform as nd
from numba_deform.engines import faults


def run(d, a, b, columns, text=None, seed=0, **more):
    """(what the threads hold, what they should)"""
    left, right, sums = wgmma_operands(d, a, b, columns, seed)
    given = a_words(left) if more.get("in_registers") else lines_of_16(left)
    out = np.zeros((128, columns // (4 if d == "f16" else 2)), np.float32 if d == "f32" else np.int32)
    text = text or wgmma_text(d, a, b, columns, **more)
    args = [given, lines_of_16(right), held(sums, d).view(out.dtype), out]
    nd.simulate(nd.from_ptx(text)["k"], 1, 128, args, compiled=False)
    before, out[:] = out.copy(), 0
    report = nd.simulate(nd.from_ptx(text)["k"], 1, 128, args, compiled=True)
    assert report.compiled or "Held" in report.why_interpreted
    np.testing.assert_array_equal(out, before)
    expected = wgmma_expected(d, left, right, sums, more.get("adds", True), more.get("signs", (1, 1)))
    return out, held(expected, d).view(out.dtype)


@pytest.mark.parametrize("d, a, b, columns", WGMMA)
def test_products(d, a, b, columns):
    got, want = run(d, a, b, columns)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("d, a, b", [("f32", "f16", "f16"), ("f32", "tf32", "tf32"), ("f16", "e4m3", "e4m3"),
                                     ("s32", "s8", "u8")])  # fmt: skip
def test_a_in_registers(d, a, b):
    got, want = run(d, a, b, 16, in_registers=True)
    assert np.array_equal(got, want)


def test_options():
    for more in ({"adds": False}, {"signs": (-1, 1)}, {"signs": (-1, -1)}):
        got, want = run("f32", "f16", "f16", 8, **more)
        assert np.array_equal(got, want), more
    ones, out = np.full(512, 0x7F7F7F7F, np.uint32), np.zeros((128, 4), np.int32)
    sums = np.full((128, 4), 2**31 - 1000, np.int32)
    for limit, most in ((True, 2**31 - 1), (False, 2**31 - 1000 + 32 * 127 * 127 - 2**32)):
        text = wgmma_text("s32", "s8", "s8", 8, limit=limit)
        nd.simulate(nd.from_ptx(text)["k"], 1, 128, [ones, ones[:64], sums, out])
        assert (out == most).all()


FENCE, COMMIT, WAIT = (f"wgmma.{word}.sync.aligned" for word in ("fence", "commit_group", "wait_group"))
RIGHT = {
    "a constant behind the fence": {"between": "mov.f32 s3, 0f00000000; mov.f32 s3, s3;", "adds": False},
    "moved behind the fence": {"before": f"mov.f32 c0, s0; {FENCE};", "between": "mov.f32 s0, c0;"},
    "moved before the wait, read behind it": {
        "after": "mov.f32 c0, s0;", "wait": f"{WAIT} 0; add.f32 s0, c0, 0f00000000;"},
    "only one of two paths has a fence, which is taken": {
        "before": f"setp.eq.u32 q, 1, 1; @!q bra over; {FENCE}; over:"},
    "the group before the last is waited for": {"after": f"{COMMIT};", "wait": f"{WAIT} 1;"},
    "the guard of a wait holds": {"wait": f"setp.eq.u32 q, 1, 1; @q {WAIT} 0;"},
}  # fmt: skip


@pytest.mark.parametrize("more", RIGHT.values(), ids=RIGHT)
def test_right_use_of_registers(more):
    got, want = run("f32", "f16", "f16", 8, adds=more.pop("adds", True), more=more)
    assert np.array_equal(got, want)


FIRST = "st.global.f32 [x+0], s0"
WRONG = {
    "no fence": ({"before": ""}, faults.MissingWarpgroupFence, "wgmma.mma_async"),
    "a sum behind the fence": (
        {"between": "add.f32 s1, s1, 0f3F800000;"}, faults.MissingWarpgroupFence, "mma_async"),
    "a sum behind the fence, moved": (
        {"between": "add.f32 c1, s1, 0f3F800000; mov.f32 s1, c1;"}, faults.MissingWarpgroupFence, "mma_async"),
    "the fence is not on the path": (
        {"before": f"setp.eq.u32 q, 0, 1; {FENCE}; add.f32 s0, s0, 0f3F800000; @!q bra over; {FENCE}; over:"},
        faults.MissingWarpgroupFence, "mma_async"),
    "no wait": ({"wait": ""}, faults.AccumulatorInFlight, FIRST),
    "the last group is left open": ({"wait": f"{WAIT} 1;"}, faults.AccumulatorInFlight, FIRST),
    "no commit": ({"commit": ""}, faults.AccumulatorInFlight, FIRST),
    "read before the wait": ({"after": "add.f32 c0, s3, s3;"}, faults.AccumulatorInFlight, "add.f32 c0"),
    "moved and read before the wait": (
        {"after": "mov.f32 c1, s1;\nadd.f32 c0, c1, c1;"}, faults.AccumulatorInFlight, "add.f32 c0"),
    "overwritten before the wait": ({"after": "cvt.rn.f32.u32 s2, t;"}, faults.AccumulatorInFlight, "cvt"),
}  # fmt: skip


@pytest.mark.parametrize("more, kind, blamed", WRONG.values(), ids=WRONG)
def test_wrong_use_of_registers(more, kind, blamed):
    text = wgmma_text("f32", "f16", "f16", 8, more=more)
    with pytest.raises(kind) as caught:
        run("f32", "f16", "f16", 8, text)
    assert blamed in caught.value.source


def test_a_is_written_too_early_or_without_a_fence():
    for more, kind in (
        ({"between": "add.u32 w1, w1, 1;"}, faults.MissingWarpgroupFence),
        ({"after": "add.u32 w1, w1, 1;"}, faults.AccumulatorInFlight),
    ):
        with pytest.raises(kind, match="w1, a part of A"):
            run("f32", "f16", "f16", 8, wgmma_text("f32", "f16", "f16", 8, True, more=more), in_registers=True)


def test_shared_memory_is_the_products_meanwhile():
    overwritten = {"after": "mov.u32 i, left; st.shared.b32 [i], t;"}
    with pytest.raises(faults.DataRace):
        run("f32", "f16", "f16", 8, wgmma_text("f32", "f16", "f16", 8, more=overwritten))
    text = wgmma_text("f32", "f16", "f16", 8).replace("fence.proxy.async.shared::cta;", "")
    with pytest.raises(faults.MissingProxyFence):
        run("f32", "f16", "f16", 8, text)


@pytest.mark.parametrize("opcode", [
    "mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16", "mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc",
    "mma_async.sync.aligned.m64n12k16.f32.f16.f16", "mma_async.sync.aligned.m64n16k16.f32.f16.f16",
    "mma_async.sync.aligned.m64n8k16.f32.f16.bf16",
])  # fmt: skip
def test_other_products_are_refused_by_name(opcode):
    text = wgmma_text("f32", "f16", "f16", 8)
    text = text.replace("mma_async.sync.aligned.m64n8k16.f32.f16.f16", opcode)
    line = next(n for n, text in enumerate(text.splitlines(), 1) if opcode in text)
    with pytest.raises(ValueError, match=f"line {line}: wgmma.{opcode}.* is not known"):
        nd.from_ptx(text)["k"]

"""What lesson 10 counts: sectors, instructions, what is in flight; and its checks, beyond typical mistakes."""

import math

import lessons
import numpy as np
import pytest
from numba import cuda

import numba_deform as nd
from numba_deform.course.lessons import lesson10

layout = nd.Shared(tile=nd.Array((4, 8), nd.float32, alignment=128))


@nd.kernel(threads=64, shared=layout)
def mixed(out: nd.u64, apart: nd.i32, width: nd.i32):
    """Each of two warps adds a float a lane, ``apart`` floats apart; thread 0 sends two tiles of 32 bytes."""
    tile, i = layout.tile.view(), cuda.threadIdx.x
    nd.red_add_gpu_global_f32(nd.global_at(out, apart * nd.lane(), 4), nd.float32(1))
    if i < 32:
        tile[i // 8, i % 8] = 1
        nd.fence_proxy_async()
    cuda.syncthreads()
    if i == 0:
        for k in range(2):
            nd.cp_reduce_async_bulk_add_f32(nd.global_at(out, width, 4), layout.tile.at(k), 32)
            nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group_read(1)
        nd.cp_async_bulk_wait_group(0)


@pytest.mark.parametrize("apart, touched", [(0, 1), (1, 4), (2, 8), (8, 32)])
def test_sectors_are_those_of_each_instruction(apart, touched):
    """Wherever the array begins: a GPU's arrays begin on sectors."""
    for shift in range(0, 8, 4):
        out = np.zeros(512 + shift, np.float32)[shift:]
        seen = lesson10.watch(mixed, 1, (out, apart, 448))
        assert (seen.instructions, seen.reductions) == (2, 2)
        assert seen.sectors == 2 * touched + 2 * 1
        start = out.__array_interface__["data"][0]
        assert seen.touched[start, 56] == 2 and seen.touched[start, 0] == 2
        assert out[448] == 2 and out[0] == (64 if apart == 0 else 2)


def test_what_is_in_flight_and_what_lands():
    out = np.zeros(512, np.float32)
    late = lesson10.watch(mixed, 1, (out, 1, 448), out)
    assert late.in_flight == 2 and late.waits == [(0, True), (0, False)]
    assert [(warp, sums[448]) for warp, sums in late.landed] == [(0, 1), (0, 2)]
    soon = lesson10.watch(mixed, 1, (np.zeros(512, np.float32), 1, 448), landing="earliest")
    assert soon.in_flight == 1 and soon.landed[0] == (0, None)


def test_samples_stay_in_their_windows():
    some = lesson10.samples(points=2)
    assert some.x.shape == (4, 128) and some.weights.shape == (4, 128, 4)
    for x, x0 in ((some.x, some.corners[:, :1]), (some.y, some.corners[:, 1:])):
        assert (x >= x0).all() and (x + 1 < x0 + lesson10.WINDOW).all()
        assert (x >= 0).all() and (x + 1 < lesson10.SIDE).all()
    assert some.corners.min() == 0
    total = (some.weights.sum(axis=2)[..., None] * some.g).sum(axis=(0, 1))
    assert np.array_equal(some.expected.sum(axis=(0, 1)), total)


def test_bytes_of_a_sample():
    """Of a window as the lesson has it: 12 x 12 pixels of 128 bytes, for 8 x 8 queries."""
    assert lesson10.bytes_of_a_sample(8, points=1) == (12 * 12 * 128 / 64, 12 * 12 * 128)
    sent = [lesson10.bytes_of_a_sample(side)[0] for side in (1, 2, 4, 8, 16)]
    assert sent == sorted(sent, reverse=True) and sent[0] > 4 * lesson10.PIXEL > sent[1]
    assert sent[3] == pytest.approx(4 * lesson10.PIXEL / 7, rel=0.02)  # as the text says
    assert 228 * 1024 // (lesson10.bytes_of_a_sample(16)[1] + 1024) == 4


def test_pictures_show_what_landed():
    rows = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
    seen = lesson10.Additions(landed=[(1, rows[1]), (0, rows.sum(axis=0))])
    alts = [lesson10.landed(seen, step, "two").alt for step in range(3)]
    assert "nothing landed" in alts[0] and "[0.0, 0.0" in alts[0]
    assert "warps 1 landed" in alts[1] and "[5.0, 6.0" in alts[1]
    assert "warps 1, 0 landed" in alts[2] and "[6.0, 8.0" in alts[2]
    assert "up to 25 windows" in lesson10.windows(1).alt and "up to 4 windows" in lesson10.windows(8).alt


# --- the checks, beyond the typical mistakes -------------------------------------------------------
def scope_of(*words):
    """What the cells in which ``words`` stand leave."""
    scope = {"__name__": "__main__"}
    for text in ("import numpy", *words):
        lessons.execute(next(c for c in lessons.cells("10_adding") if text in c.source), scope)
    return scope


def written(scope, source):
    """``scope`` with the cell ``source`` run in it."""
    lessons.execute(lessons.Cell("an answer", 0, source), scope)
    return scope


SEND = """nd.cp_reduce_async_bulk_add_u32(out, tile, bytes)
        nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group_read(0)"""


@pytest.mark.parametrize(
    "thread, inside, words",
    [
        ("== 0", SEND, ""),
        ("== 63", SEND, ""),
        ("== 64", SEND, "Nothing was sent"),
        ("< 32", SEND, "128 reductions"),
        ("== 0", f"cuda.syncthreads()\n        {SEND}", "all threads meet"),
        ("== 0", SEND.replace("bytes)", "128)"), "2022 have arrived"),
    ],
)
def test_other_ways_to_leave(thread, inside, words):
    """Any thread may issue; but one of them, all the bytes, and after all have met."""
    scope = scope_of("def build_histogram")
    meet = "pass" if "syncthreads" in inside else "cuda.syncthreads()"
    lines = "@nd.function", "def leave(out, tile, bytes):", "    nd.fence_proxy_async()", f"    {meet}"
    source = "\n".join([*lines, f"    if cuda.threadIdx.x {thread}:", f"        {inside}"])
    verdict = lesson10.leave(scope["build_histogram"], written(scope, source)["leave"])
    assert verdict.passed == (not words) and words in verdict.message, verdict


def test_the_window_by_another_way():
    """An addition of one's own that is right is taken; one that adds nothing is not."""
    scope = scope_of("SIDE, CHANNELS, WARPS", "def build_window")
    right, _ = lessons.answers("10_adding")["window"]
    lessons.execute(right.cell, scope)
    own = (
        "@nd.function\ndef add_part(window, x, y, x0, y0, lane, part):\n"
        "    row, column = y - y0, x - x0\n    cuda.atomic.sub(window, (row, column, lane), -part)\n"
    )
    add = written(dict(scope), own)["add_part"]
    assert lesson10.window(scope["build_window"], add, scope["send_window"]).passed
    idle = written(dict(scope), own.replace("-part", "nd.float32(0)"))["add_part"]
    verdict = lesson10.window(scope["build_window"], idle, scope["send_window"])
    assert verdict.kind == "wrong" and "parts are lost" in verdict.message


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda bound, count: 2.0**20, "doubles the error"),
        (lambda bound, count: 2.0**30 / count if count > 4 else 2.0**28, "That is no power of two"),
        (lambda bound, count: 2.0 ** math.floor(math.log2((2**31 - 1) / bound)), "begun again"),
        (lambda bound, count: 0.0, "no power of two"),
    ],
)
def test_scales_that_are_not_the_largest(answer, words):
    scope = scope_of("def build_histogram", "def one_sum", "def fixed_sums")
    verdict = lesson10.scale(answer, scope["fixed_sums"])
    assert verdict.kind == "wrong" and words in verdict.message


def test_rows_land_in_other_orders():
    """The lesson's two schedules show it."""
    watched = scope_of("def add_rows", "def look")["watched"]
    orders = [[warp for warp, _ in seen.landed] for seen in watched.values()]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]) == list(range(8))


@pytest.mark.full
def test_kernels_that_are_built_from_answers_compile():
    """As ``lessons.run`` launches them on a GPU; the others are compiled by ``test_exercises``."""
    scope = scope_of("def build_histogram", "def build_means", "SIDE, CHANNELS, WARPS", "def build_window")
    for exercise in ("leave", "waits", "window"):
        lessons.execute(lessons.answers("10_adding")[exercise][0].cell, scope)
    built = (
        scope["build_histogram"](scope["leave"]),
        scope["build_means"](scope["before_reuse"], scope["before_count"]),
        scope["build_window"](scope["add_part"], scope["send_window"]),
    )
    for kernel in built:
        code = kernel.with_bounded_waits().compile()
        assert code.cubin and "cp.reduce.async.bulk" in code.ptx, kernel.name

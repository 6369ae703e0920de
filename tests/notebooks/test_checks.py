"""Answers that look right and are not: which checks refuse them, and that they say what is wrong with them."""

import functools
import math
from dataclasses import replace

import lessons
import numpy as np
import pytest

import numba_deform as nd
from numba_deform.course.lessons import (
    exercise,
    lesson1,
    lesson2,
    lesson3,
    lesson4,
    lesson5,
    lesson6,
    lesson7,
    lesson9,
    lesson11,
    lesson12,
    lesson13,
    running,
)

KB = 1024
floor, ceil = math.floor, math.ceil


def wrong_answers(name, exercise, scope):
    """(words, verdict) of the typical mistakes of one exercise, and of its solution, whose words are ""."""
    right, wrong = lessons.answers(name)[exercise]
    cells = iter(lessons.cells(name))
    next(cell for cell in cells if cell.exercise == exercise)
    check = next(cells)
    for answer in (*wrong, right):
        aside = dict(scope)
        lessons.execute(answer.cell, aside)
        yield answer.words, lessons.execute(check, aside)


def scope_of(name, *words):
    """What the cells in which ``words`` stand leave."""
    scope = {"__name__": "__main__"}
    for text in words:
        lessons.execute(next(cell for cell in lessons.cells(name) if text in cell.source), scope)
    return scope


@pytest.mark.parametrize(
    "name, exercise, words",
    [
        ("01_boxes", "mend", ("import numpy",)),
        ("02_barrier", "patient_wait", ("import numpy",)),
        ("04_stages", "most_stages", ("import numpy",)),
        ("08_half_a_variant", "layout", ("import numba_deform", "ROWS, COLUMNS")),
        ("09_your_variant", "refuse", ("import numba_deform",)),
        ("09_your_variant", "turn", ("import numba_deform",)),
        ("09_your_variant", "entry", ("import numba_deform",)),
    ],
)
def test_typical_mistakes(name, exercise, words):
    """In the default tests, of the checks that have taken some of them for right."""
    for said, verdict in wrong_answers(name, exercise, scope_of(name, *words)):
        assert verdict.kind == ("wrong" if said else "right"), (said, verdict)
        assert said in verdict.message


@pytest.mark.parametrize(
    "answer",
    [
        lambda s, b: (228 * KB // b - 128) // (s + 64),  # without what the system keeps
        lambda s, b: (228 * KB // b - 1024) // (s + 64),  # without the alignment
        lambda s, b: (228 * KB // b - 1024 - 128) // s,  # without the barriers
        lambda s, b: (228 * KB - 1024 - 128) // b // (s + 64),  # once for all blocks
        lambda s, b: 228 * KB // b // s,  # tiles alone
        lambda s, b: (227 * KB // b - 1024 - 128) // (s + 64),
    ],
)
def test_every_byte_of_a_block_counts(answer):
    verdict = lesson4.most_stages(answer)
    assert verdict.kind == "wrong" and "it says" in verdict.message and "233472" in verdict.message


def test_a_crash_is_no_refusal():
    """Whether it comes where something is allowed or where it is refused."""
    scope = scope_of("09_your_variant", "import numba_deform")
    right, _ = lessons.answers("09_your_variant")["refuse"]
    for mistake in ("constants.dtype !=", "constants.type !="), ("points, rule", "point, rule"):
        aside = dict(scope)
        lessons.execute(replace(right.cell, source=right.cell.source.replace(*mistake)), aside)
        verdict = lesson9.refuse(aside["refuse"])
        assert verdict.kind == "wrong" and "has no attribute" in verdict.message
        assert "mistake of its own, AttributeError" in verdict.message and "It refuses" not in verdict.message


@pytest.mark.parametrize(
    "change, words",
    [
        (('!= "float16"', "!= numpy.float16"), "compare it with"),
        (('raise nd.ConfigError("points', 'return nd.ConfigError("points'), "`raise` it"),
        (("if samples > 32", "if constants.points > 32"), "40 samples, and only 32 lanes"),
    ],
)
def test_natural_mistakes_in_refusing(change, words):
    scope = scope_of("09_your_variant", "import numba_deform")
    right, _ = lessons.answers("09_your_variant")["refuse"]
    source = right.cell.source.replace(*change)
    assert source != right.cell.source
    lessons.execute(replace(right.cell, source=f"import numpy\n{source}"), scope)
    verdict = lesson9.refuse(scope["refuse"])
    assert verdict.kind == "wrong" and words in verdict.message


FENCE, WRITE = "    nd.fence_proxy_async()\n", "    tile[lane] ="
ISSUE = "        nd.cp_async_bulk_store(out, one_row.tile.at(0), ROW_BYTES)\n"


@pytest.mark.parametrize(
    "changes, words",
    [
        ([(FENCE, "")], "No fence is there yet"),
        ([(FENCE, ""), ("_group(0)", f"_group(0)\n{FENCE}")], "behind the copy"),
        ([(FENCE, ""), (WRITE, FENCE + WRITE)], "before the write"),
        ([(FENCE, f"    if lane < 16:\n    {FENCE}")], "in one lane only"),
        ([(FENCE, "    nd.fence_proxy_async_global()\n")], "is for global memory"),
        ([(FENCE, "    cuda.syncthreads()\n")], "This orders ordinary accesses"),
        ([(FENCE, "    nd.fence_proxy_async\n")], "Brackets are missing"),
        ([(FENCE, "    nd.fence_proxy_tensormap_acquire_sys(data)\n")], "is for tensor maps"),
        ([(FENCE, ""), (ISSUE, f"{ISSUE}    {FENCE}")], "behind the copy"),
        ([("    cuda.syncwarp()\n", "")], "The lanes have to meet"),
        ([("        nd.cp_async_bulk_wait_group(0)", "        pass")], "CopyOutlivesBlock"),
        ([(FENCE, "    nd.cp_async_bulk_wait_group(0)\n")], "No fence is there yet"),
    ],
)
def test_where_a_proxy_fence_stands(changes, words):
    scope = scope_of("06_debugging", "import numpy", "STAGES, ITEMS", "LANES = 32", "one_row =")
    right, _ = lessons.answers("06_debugging")["proxy_fence"]
    source = right.cell.source
    for change in changes:
        assert change[0] in source
        source = source.replace(*change)
    lessons.execute(replace(right.cell, source=source), scope)
    verdict = lesson6.proxy_fence(scope["add_one"])
    assert verdict.kind == "wrong" and words in verdict.message
    assert "It is the right fence" not in verdict.message or "MissingProxyFence" in verdict.message


@pytest.mark.parametrize("answer", [
    lambda s, b: 228 * KB // s, lambda s, b: 228 * KB // (s + 64), lambda s, b: (228 * KB - 1152) // (s + 64),
])  # fmt: skip
def test_one_block_has_the_sm_alone(answer):
    assert "for one block alone" in lesson4.most_stages(answer).message


def test_an_answer_in_another_form():
    """A list for a string, small letters; a text for a number is told what it is."""
    for come in ("ADE", "ade", "A, D, E", ["A", "D", "E"]):
        assert lesson1.corners(come).passed, come
    assert "and not AF" in lesson1.corners("AF").message
    assert "'1' is not a number" in lesson6.race(("B", "D"), "1").message
    for lines in ("B and D", "D, B", ("line B", "line D"), ["D", "b "], {"B", "D"}, "bd"):
        assert lesson6.race(lines, 1).passed, lines
    for lines in ("B", "A, B and D", (), None, 5, ("D", "D"), ("B", None), (23, 25)):
        assert "give the letters of *two*" in lesson6.race(lines, 1).message, lines
    assert "Write a list" in lesson6.tail("96, 200").message
    assert "'200' is not a number of queries" in lesson6.tail([96, "200"]).message
    assert "[100] has others" in lesson6.tail([100]).message and lesson6.tail(np.array([96, 200])).passed
    assert "'2' is not a number" in lesson7.blocks("2").message
    assert "whole number of stages" in lesson4.stages_needed(lambda latency, work: latency / work + 1.5).message


AT_ONCE = "nd.fence_proxy_async(); cuda.syncwarp()\n" + " " * 16 + "if nd.lane() == 0: "
AT_ONCE += "nd.mbarrier_arrive_count(ring.empty(now), uint32(32))"
RING = ("ring.acquire(ahead)", "ring.wait(now)", "ring.release(now)")


@pytest.mark.parametrize(
    "calls, words",
    [
        (RING, "Acquire, expect, wait, release"),
        (("pass", *RING[1:]), "has to acquire it first"),
        (("ring.acquire(now)", *RING[1:]), "has to acquire it first, in the state `ahead`"),
        (("ring.wait(ahead)", *RING[1:]), "for an *empty* stage only: ring.acquire(ahead)"),
        (("ring.release(ahead)", RING[1], "ring.acquire(now)"), "not for the readers of the stage"),
        ((RING[0], "pass", RING[2]), "Nobody may read a tile before"),
        ((RING[0], "ring.wait(ahead)", RING[2]), "asks for a tile that nobody has asked for yet"),
        (("ring.wait(ahead)", "ring.acquire(now)", RING[2]), "Nothing has arrived in this stage"),
        ((*RING[:2], "pass"), "an arrival of each of the 64 threads"),
        ((*RING[:2], "ring.release(ahead)"), "Release the stage that was read, in the state `now`"),
        (("pass", RING[1], "cuda.syncthreads()"), "nobody arrives on the empty barriers"),
        ((RING[0], "if nd.lane() == 0: ring.wait(now)", RING[2]), "A wait of some threads says nothing"),
        ((RING[0], "shared.ring.full.wait(now)", RING[2]), "A function stands before the dot"),
        ((*RING[:2], "ring.release(now.stage)"), "functions take a state"),
        ((*RING[:2], AT_ONCE), "Acquire, expect, wait, release"),
    ],
)
def test_a_ring_is_told_what_it_lacks(calls, words):
    scope = scope_of("04_stages", "import numpy", "def work(")
    cell = next(cell for cell in lessons.cells("04_stages") if cell.exercise == "shared_ring")
    source = cell.source
    for hole, call in zip(("the stage may", "the tile may", "this thread has"), calls, strict=True):
        source = source.replace(f"...  # {hole}", f"{call}  # {hole}")
    lessons.execute(replace(cell, source=source), scope)
    verdict = lesson4.shared_ring(scope["build_shared"], engine="cpu")
    assert verdict.passed == ("expect, wait" in words) and words in verdict.message, verdict


def corner_by(x_of, y_of):
    return lambda u, v, head, width, height, channels: (head * channels, x_of(u, v, width), y_of(v, u, height))


def level_map(b, start, width, height, S, H, C, size, **other):
    pixel = H * C * size
    right = {"offset": (b * S + start) * pixel, "dims": (H * C, width, height)}
    return tuple({**right, "strides": (pixel, width * pixel), **other}.values())


NONE = "is a `return` missing?"
PREDICTED = ((0, 1, 512), (0, 0, 512), (0, 0, 256), (1, 2, 0), (1, 1, 0))


def counts_by(of):
    return lambda producers, consumers, arrivals: of(producers, consumers, {"warp": 1, "lane": 32}[arrivals])


def blocks_by(x_of, y_of):
    return lambda rows, columns, across, down: [x_of(columns, across), y_of(rows, down)]


def masks(rank, across, down):
    y, x = divmod(rank, across)
    return sum(1 << across * y + i for i in range(across)), sum(1 << across * j + x for j in range(down))


def absorb_by(power=np.exp, column=lambda x: x[:, None]):
    def answer(largest, total, output, scores, values):
        new = np.maximum(largest, scores.max(axis=1))
        shrink, powers = power(largest - new), power(scores - column(new))
        return new, total * shrink + powers.sum(axis=1), output * column(shrink) + powers @ values

    return answer


def predicted(operation, *state):
    """The right states with another one after that operation."""
    return [[*PREDICTED[:operation], state, *PREDICTED[operation + 1 :]]]


@pytest.mark.parametrize(
    "check, answers, words",
    [
        # -- lesson 1
        (lesson1.tile_corner, [corner_by(*[lambda u, v, n: ceil(u * n - 0.5) - 1] * 2)], "*at* or left"),
        (lesson1.tile_corner, [corner_by(*[lambda u, v, n: max(0, floor(u * n - 0.5))] * 2)], "cut off at 0"),
        (lesson1.tile_corner, [corner_by(*[lambda u, v, n: int(u * n - 0.5)] * 2)], "rounds towards zero"),
        (lesson1.tile_corner, [corner_by(*[lambda u, v, n: round(u * n - 0.5)] * 2)], "to the nearest"),
        (lesson1.tile_corner, [corner_by(*[lambda u, v, n: ceil(u * n - 0.5)] * 2)], "rounded up"),
        (lesson1.tile_corner, [corner_by(*[lambda u, v, n: floor(v * n - 0.5)] * 2)], "surround the sample"),
        (lesson1.tile_corner, [lambda u, v, h, w, high, c: (h * c, floor(u * high - 0.5), floor(v * w - 0.5))],
         "u goes across"),
        (lesson1.tile_corner, [lambda *where: None], NONE),
        (lesson1.tile_corner, [lambda u, v, h, w, high, c: [h * c, *np.floor([u * w - 0.5, v * high - 0.5])]],
         None),
        (lesson1.zero_fill, (68 * 64, 6144), "`filled` counts elements"),
        (lesson1.zero_fill, (68 * 32.0, np.int64(6144)), None),
        (lesson1.level_map, [lambda b, s, w, h, *of: level_map(b, s, h, w, *of)], "height before the width"),
        (lesson1.level_map, [lambda b, s, w, h, S, H, C, n: level_map(
            b, s, w, h, S, H, C, n, strides=(H * C * n, h * H * C * n))], "takes the height for the width"),
        (lesson1.level_map, [lambda b, s, w, h, S, *of: level_map(b, s, w, h, w * h, *of)], "of all levels"),
        (lesson1.level_map, [lambda *of: list(map(np.array, level_map(*of)))], None),
        # -- lesson 2
        (lesson2.predict, predicted(0, 0, 1, -512), "still missing: announced bytes are added"),
        (lesson2.predict, predicted(1, 0, 2, 512), "pending counts down"),
        (lesson2.predict, predicted(3, 1, 1, 0), "none of them has come"),
        (lesson2.predict, predicted(4, 2, 2, 0), "The phase goes on"),
        (lesson2.predict, predicted(4, 0, 1, 0), "not the parity"),
        (lesson2.predict, predicted(0, 0, 1, 2, 512), "A state is three numbers"),
        (lesson2.predict, predicted(2, 0, 0, 128), "(phase, pending, tx) was (0, 0, 512)"),
        (lesson2.predict, [np.array(PREDICTED, float)], None),
        (lesson2.parity, (lambda phase, parity: None, lambda use: use % 2), NONE),
        (lesson2.parity, (lambda phase, parity: phase % 2 != parity, lambda use: None), NONE),
        # -- lesson 3
        (lesson3.corner_weights, [lambda fx, fy: np.outer((fy, 1 - fy), (1 - fx, fx))], "two rows are "
         "exchanged"),
        (lesson3.corner_weights, [lambda fx, fy: np.outer((1 - fy, fy), (fx, 1 - fx))], "two columns are "
         "exchanged"),
        (lesson3.corner_weights, [lambda fx, fy: None], NONE),
        (lesson3.corner_weights, [lambda fx, fy: ((1 - fx - fy, fx), (fy, 0))], "not the areas in the picture"),
        (lesson3.sass, ("UTMALDG", "SYNCS.PHASECHK", "SYNCS.PHASECHK", None), "asks for a phase"),
        # -- lesson 4
        (lesson4.stages_needed, [lambda latency, work: None], NONE),
        (lesson4.use, [lambda i, stages: None], NONE),
        (lesson4.use, [lambda i, stages: (i % stages, i // stages & stages)], "That lap is number 1"),
        (lesson4.shared_ring, [lambda stages: None], "end without a `return`"),
        (lesson4.stages_needed, [eval("lambda a, b: math.ceil(a / b) + 1", {})], "Write `import math` above"),
        (lesson4.use, [lambda i, stages: [i % stages, i // stages % 2]], None),
        (lesson4.most_stages, [lambda size, blocks: (228 * KB // blocks - 1152.0) // (size + 64)], None),
        # -- lesson 5
        (lesson5.counts, [counts_by(lambda p, c, each: (p * each + 1, c * each))], "They are no arrivals"),
        (lesson5.counts, [counts_by(lambda p, c, each: (1, c * each))], "Count again for full"),
        (lesson5.counts, [counts_by(lambda p, c, each: (p * each, 3))], "Count again for empty"),
        (lesson5.counts, [counts_by(lambda p, c, each: (p * each, (p + c) * each))], "all warps"),
        (lesson5.counts, [counts_by(lambda p, c, each: (p, c * each))], "The count of full is right for"),
        (lesson5.counts, [counts_by(lambda p, c, each: [p * each, float(c * each)])], None),
        *((lesson5.bottleneck, [answer], words) for answer, words in (
            (lambda p, c: "producers" if p["issue"] > 0.5 else "consumers" if c["compute"] > 0.5 else "copies",
             "only where both roles wait"),
            (lambda p, c: "producers" if p["issue"] > p["acquire"] else "consumers"
             if c["compute"] > c["wait"] else "copies", "only where both roles wait"),
            (lambda p, c: "copies" if p["acquire"] + c["wait"] > 1 else "producers"
             if p["acquire"] < c["wait"] else "consumers", "only where both roles wait"),
            (lambda p, c: None, NONE),
            (lambda p, c: " Producers" if p["acquire"] < 0.3 else "CONSUMERS" if c["wait"] < 0.3 else "copies",
             None),
        )),
        (lesson5.forecast, [lambda issue, share, *of: round(issue / share / math.prod(of))], "rounded"),
        (lesson5.forecast, [lambda *of: None], NONE),
        # -- lesson 6
        (lesson6.arrivals, (1 << 20, lambda empty: nd.Ring(2, empty=empty)), "number from 0 to 1048575"),
        # -- lessons 7 to 9
        (lesson7.data_path, [lambda *of: None], NONE),
        (lesson7.column_order, [lambda x, row: None], NONE),
        (lesson7.blocks, [2.5], "is not a number of blocks"),
        (lesson9.turn, [lambda n, level, *of: None], NONE),
        (lesson9.turn, [lambda n, level, levels, stages: list(divmod(n * levels + level, stages))[::-1]],
         "it says"),
        (lesson9.turn, [lambda n, level, levels, stages: [
            (n * levels + level) % stages, (n * levels + level) // stages % 2.0]], None),
        # -- lesson 11
        *((lesson11.element, [answer], words) for answer, words in (
            (lambda lane, i: (lane // 4 + i // 2, 2 * (lane % 4) + i % 2), "c2 and c3 are eight rows below"),
            (lambda lane, i: (lane // 4 + 4 * (i // 2), 2 * (lane % 4) + i % 2), "c2 and c3 are eight rows "
             "below"),
            (lambda lane, i: (lane // 4, 2 * (lane % 4) + i % 2 + 8 * (i // 2)), "c2 and c3 are eight rows "
             "below"),
            (lambda lane, i: (2 * (lane % 4) + i % 2, lane // 4 + 8 * (i // 2)), "the row comes first"),
            (lambda lane, i: None, NONE),
        )),
        # -- lesson 12
        (lesson12.grid, [blocks_by(lambda n, of: -(-n // (16 * of)) * of, lambda n, of: -(-n // 16))],
         "1 is no multiple of the cluster, which has down = 2"),
        (lesson12.grid, [blocks_by(*[lambda n, of: -(-n // (16 * of))] * 2)], "A grid counts blocks"),
        (lesson12.grid, [lambda *of: None], NONE),
        (lesson12.grid, [blocks_by(*[lambda n, of: np.ceil(n / 16 / of) * of] * 2)], None),
        (lesson12.masks, [lambda rank, across, down: (across, down)], "A mask is no count"),
        (lesson12.masks, [lambda *of: tuple(int(bin(mask)[2:]) for mask in masks(*of))], "read as a decimal "
         "one"),
        (lesson12.masks, [lambda n, across, down: masks(n // across + across * (n % across), across, down)],
         "Row and column of a rank are mixed up"),
        (lesson12.masks, [lambda *of: np.array(masks(*of))], None),
        # -- lesson 13
        *((lesson13.absorb, [absorb_by(**change)], words) for change, words in (
            ({"power": np.exp2}, "powers of e"),
            ({"column": lambda x: x}, "`new[:, None]`"),
            ({"column": lambda x: x.reshape(-1, 1)}, None),
        )),
    ],
)  # fmt: skip
def test_what_is_said_of_an_answer(check, answers, words):
    verdict = check(*answers)
    assert verdict.kind == ("wrong" if words else "right"), verdict
    assert (words or "") in verdict.message, verdict


def test_words_in_another_form():
    assert lesson6.standstill("Empty", " full", 2.0).passed
    assert lesson6.order("Between A  and C").passed and lesson6.order(["between A and C."]).passed
    assert "not one of" in lesson6.order(["between A and C", "after C"]).message
    for who in (None, 7, ["CPU engine", None], [["CPU engine", "numbers"]], "nobody"):
        assert "is none of them" in lesson6.notice(who).message, who
    assert lesson6.notice(["cpu engine"]).passed and lesson6.notice("CPU-Engine").passed
    for words in (("arrivals", "bytes", "parity"), ("Arrivals", " BYTES ", "par ity")):
        assert lesson2.diagnose(**dict(zip("ABC", words, strict=True))).passed


@functools.cache
def scope_before(name, *words):
    return scope_of(name, *words)


ASK = "nd.mbarrier_try_wait_parity(bar, parity)"
PATIENT = "while nd.mbarrier_try_wait_parity(bar, parity) == 0:\n        pass"
INSIDE = "0 <= row < height and 0 <= column < width"
READS = "if {}:\n                for dy"
TILE = "03_tile", "import numpy", "CHANNELS, POINTS =" , "PAIRS = "
STAGES = "04_stages", "import numpy", "def work(", "ROW_BYTES ="
STORE = "meta[ahead.stage] = weights[i + 1]"
MEET = "        cuda.syncwarp()\n        now ="
ROLES = "05_roles", "import numpy", "def work("
GIVE_BACK = "cuda.syncwarp()\n                    if lane == 0:\n                        ring.release(state)"
DEBUGGING = "06_debugging", "import numpy", "STAGES, ITEMS", "LANES = 32", "POINTS, THREADS =", "EMPTY, WRITING"
SYNC = "cuda.syncwarp()\n        state = ahead"
LOOK = "nd.ld_acquire_cta_shared_b32(flag)"
TENSOR = "11_tensor_cores", "import numpy", "def build_read", "def multiply"
WHOLE = "10_adding", "import numpy"
ROUNDED = "steps = (depth + DEPTH - 1) // DEPTH"
ATTENTION = "13_flash_attention", "import numpy", "def build_product", "def to_powers"
BOXES = "01_boxes", "import numpy", "BOX_BYTES ="
BARRIER = "02_barrier", "import numpy", "CHANNELS, BOX_W", "TILE_BYTES = ", "def build_team("


def half_of(cases):
    """Of cases all, every second one among the exhaustive tests."""
    return [pytest.param(*case, marks=[pytest.mark.full] * (n % 2)) for n, case in enumerate(cases)]


@pytest.mark.parametrize(
    "before, exercise, changes, words",
    half_of([
        # -- lesson 1
        (BOXES, "block_corner", [("% across * BOX_W", "% 4 * BOX_W"), ("// across * BOX_H", "// 4 * BOX_H")],
         "With 3 boxes in a row, block 3"),
        (BOXES, "block_corner", [("block % across * BOX_W", "block * BOX_W")], "begins at x = 0 again"),
        (BOXES, "block_corner", [("block // across * BOX_H", "block * BOX_H")], "have the same y"),
        (BOXES, "block_corner", [("* BOX_W\n", "* BOX_Z\n"), ("* BOX_H\n", "* BOX_W\n"), ("BOX_Z", "BOX_H")],
         "Width and height of a box"),
        # -- lesson 2
        *((BARRIER, "patient_wait", [(PATIENT, wait)], words) for wait, words in (
            (f"for _ in range(250):\n        if {ASK}: return", "after 250 questions"),
            (f"for _ in range(10**6):\n        if {ASK}: return", "there is no limit"),
            (f"tries = 0\n    while tries < 300 and not {ASK}:\n        tries += 1", "after 300 questions"),
            (f"if not {ASK}: {ASK}", "after 2 questions"),
            (ASK, "before anything has happened"),
            (PATIENT.replace("parity)", "0)"), "the same parity every time"),
            (f"while True:\n        if {ASK} != 0: break", None),
            ("bar.wait(parity)", "A number has no operations behind a dot"),
            ("nd.mbarrier_wait(bar, parity)", None),
        )),
        (BARRIER, "arrivals", [("count = 5", "count = 128 / 32 + 1")], None),
        # -- lesson 3
        *((TILE, "attend", [(INSIDE, inside)], words) for inside, words in (
            ("row < height and 0 <= column < width", "over the upper border"),
            ("0 <= row < height and column < width", "over the left border"),
            ("0 < row < height and 0 <= column < width", "Row 0 is left out"),
            ("0 <= row < height and 0 < column < width", "Column 0 is left out"),
            ("0 <= row < height - 1 and 0 <= column < width", "The last row is left out"),
            ("0 <= row < height and 0 <= column < width - 1", "The last column is left out"),
            ("0 <= row < height - 1 and 0 <= column < width - 1", "The last row and the last column"),
            ("0 <= row <= height and 0 <= column < width", "`inside` was true for row 12 of 12"),
            ("0 <= row < width and 0 <= column < height", "`inside` was true for row 12 of 12"),
            ("0 <= row < height or 0 <= column < width", "`inside` was true for column 16 of 16"),
            ("0 <= x0 < width and 0 <= y0 < height", "`inside` was true for column 16 of 16"),
            ("0 <= row < height, 0 <= column < width", "a tuple is always true"),
            ("row in range(height) and column in range(width)", None),
        )),
        *((TILE, "attend", [("weight * shares[dy][dx] * image[row, column]", term)], words) for term, words in (
            ("weight * shares[dx][dy] * image[row, column]", "the first index of `shares`"),
            ("weight * shares[dy][dx] * image[column, row]", "the order of the indices"),
            ("weight * shares[dy][dx] * image[y0, x0]", "the pixel of the first"),
            ("weight * image[row, column]", "Each neighbour counts in full"),
            ("(weight + shares[dy][dx]) * image[row, column]", "Compare with the formula"),
        )),
        (TILE, "attend", [("total +=", "total =")], "what the last neighbour adds"),
        *((TILE, "skip", [(READS.format("near(x0, y0, width, height)"), READS.format(near))], words)
          for near, words in (
            ("near(x0, y0, height, width)", "x=15.3, y=6.7 (of 16 x 12 pixels) is left out. Half"),
            ("near(y0, x0, width, height)", "is left out"),
            ("x0 < width and y0 >= -1 and y0 < height", "was not loaded, and is read"),
            ("x0 >= -1 and x0 < width and y0 >= -1", "was not loaded, and is read"),
            ("x0 >= -1 and x0 < width - 1 and y0 >= -1 and y0 < height", "x=15.3"),
            ("x0 >= -1 and x0 < width and y0 >= 0 and y0 < height", "y=-0.4 (of 16 x 12 pixels) is left out. "
             "Half"),
            ("x0 > -2 and x0 <= width - 1 and y0 >= -1 and y0 < height", None),
        )),
        *((TILE, "skip", [("full.arrive()\n", f"{line}\n")], words) for line, words in (
            ("full.arrive(); full.arrive()", "A lane arrives twice"),
            ("nd.mbarrier_arrive(full)", "A barrier with a name is no address"),
            ("nd.mbarrier_arrive(full.at())", None),
            ("full.expect(0)", None),
            ("full.wait(0)", "has to arrive all the same"),
            ("full.release()", "it has arrive, at, expect,"),
        )),
        # -- lesson 4
        *((STAGES, "mend", [(old, new)], words) for old, new, words in (
            (STORE, "    if lane == 0: " + STORE, "is each lane's own"),
            (STORE, STORE.replace("ahead.stage]", "1]"), "All weights go into one entry"),
            (STORE, STORE.replace("ahead.stage]", "ahead]"), "A state is no index"),
            (STORE, STORE.replace("meta[ahead.stage]", "meta"), "A number has no elements"),
            ("shared=pair)\ndef mended", ")\ndef mended", "its decorator lacks the layout"),
            (STORE, STORE.replace("weights[i + 1]", "weights[i]"), "the weight of the one before it"),
            (MEET, MEET.replace("cuda.sync", "if lane == 0: cuda.sync"), "One lane alone"),
            (MEET, MEET.replace("cuda.syncwarp()", "nd.mbarrier_arrive(ring.full(now))"), "the "
             "producer's"),
            (MEET, MEET.replace("cuda.syncwarp()", "cuda.syncwarp"), "Brackets are missing"),
            (MEET, MEET.replace("cuda.syncwarp()", "cuda.syncthreads()"), None),
        )),
        # -- lesson 5
        *((ROLES, "consumer", [(GIVE_BACK, back)], words) for back, words in (
            (GIVE_BACK.replace("lane == 0", "tid == LANES"), "Only some of the 3 consumer warps"),
            (GIVE_BACK.replace("lane == 0", "warp == 1 and lane == 0"), "Only some of the 3 consumer warps"),
            (GIVE_BACK.replace("state)", "ring.start())"), "another stage than it has read"),
            (GIVE_BACK.replace("state)", "ring.advance(state))"), "another stage than it has read"),
            (GIVE_BACK.replace("ring.release(state)", "ring.expect(state, TILE_BYTES)"), "on *full*"),
            (GIVE_BACK.replace("ring.release(state)", "nd.mbarrier_arrive(ring.full(state))"),
             "on *full*"),
            (GIVE_BACK.replace("lane == 0", "lane < 2"), "More than one lane of a warp"),
            (f"if lane == 0: cuda.syncwarp(); {GIVE_BACK.split(':')[1].strip()}", "outside of any branch"),
            (GIVE_BACK.replace("release(state)", "release(state.stage)"), "functions take a state"),
            (GIVE_BACK.replace("lane == 0", "lane == 31"), None),
            (GIVE_BACK.replace("ring.release(state)", "state = ring.release(state)"), "that returns nothing"),
            (GIVE_BACK.replace("ring.release(state)", "nd.mbarrier_arrive(ring.empty)"), "Call it"),
            (GIVE_BACK.replace("ring.release(state)", "nd.mbarrier_arrive(ring.empty(state))"),
             "ring.release(state) has the fence"),
        )),
        # -- the assignment of lesson 10
        *((WHOLE, "doubled", [(line, "")], words) for line, words in (
            ("                ring.acquire(state)\n", "acquires a stage before it announces"),
            ("                ring.wait(state)\n", "Who reads a stage waits"),
            ("                    nd.cp_async_bulk_commit_group()\n", "commits that to a group, and waits"),
            ("                    nd.cp_async_bulk_wait_group_read(0)\n", "a copy that leaves it, too"),
        )),
        # -- lesson 6
        *((DEBUGGING, "rounds", [("my_rounds = POINTS", f"my_rounds = {rounds}")], words) for rounds, words in (
            ("POINTS + 1", "There are 4 weights"),
            ("THREADS", "There are 4 weights"),
            ("queries", "There are 4 weights"),
            ("POINTS if tid == 0 else 1", "All 64 threads have a query here"),
            ("POINTS if tid == 0 else 0", "All 64 threads have a query here"),
            ("POINTS if query < queries else 1", "some of them stay away from a later one"),
            ("POINTS + (query >= queries)", "some of them stay away from a later one"),
        )),
        *((DEBUGGING, "warp_sync", [(SYNC, SYNC.replace("cuda.syncwarp()", line))], words) for line, words in (
            ("pass", "Nothing makes the lanes meet"),
            ("nd.fence_mbarrier_init()", "A fence orders what *one* thread does"),
            ("cuda.syncwarp", "Brackets are missing"),
            ("syncwarp()", "The engine stops it: NotCompiled"),
            ("cuda.syncwarp(1)", "and has no mask"),
            ("cuda.threadfence()", "A fence orders what *one* thread does"),
            ("cuda.ballot_sync(0xFFFFFFFF, True)", "It orders no reads and writes"),
            ("if lane > 0: cuda.syncwarp()", "The lanes meet in the wrong place"),
            ("ring.wait(ahead)", "A wait for full says that a tile has come"),
            ("nd.mbarrier_arrive(ring.full(state))", "counts as the producer's"),
            ("ring.expect(state, 0)", "counts as the producer's"),
            ("ring.wait(state)", "A wait for full says"),
            ("ring.release(state)", None),
            ("nd.mbarrier_wait(ring.full(state), state.parity)", "A wait for full says"),
            ("cuda.syncthreads()", None),
        )),
        *((DEBUGGING, "warp_sync", [(SYNC, "state = ahead"), (line, place)], words) for line, place, words in (
            ("        total +=", "        cuda.syncwarp()\n        total +=", "meet in the wrong place"),
            ("    out[lane]", "    cuda.syncwarp()\n    out[lane]", "meet in the wrong place"),
            ("    for i in", "    cuda.syncwarp()\n    for i in", "meet in the wrong place"),
            ("        ahead =", "        cuda.syncwarp()\n        ahead =", None),
        )),
        *((DEBUGGING, "ready", [("taken = seen == READY", taken)], words) for taken, words in (
            (f"taken = {LOOK.replace('flag', 'flags')} == READY", "An array is no address. `.at(0)`"),
            ("taken = None", "The engine stops it: NotCompiled"),
            ("taken = seen is READY", "in none of them does the consumer take the number"),
            ("taken = seen != WRITING", "The box is taken also before"),
            ("taken = True", "The box is taken also before"),
            ("taken = seen == EMPTY", "just when it must not be: before the producer has finished"),
            ("taken = flags[0] == READY", "This uses the flag as plain memory"),
            (f"while seen != READY:\n            seen = {LOOK}\n        taken = True", "and yet it waits"),
            (f"while {LOOK} != READY:\n            pass\n        taken = True", "and yet it waits"),
            ("taken = seen > WRITING", None),
        )),
        # -- lesson 11
        *((TENSOR, "place", [("chunk ^ (row & 7)", chunk)], words) for chunk, words in (
            ("chunk ^ (row % 4)", "rows 4, 5, 6, 7 are wrong. Which *three* bits"),
            ("chunk ^ (2 * row & 7)", "rows 1, 2, 3, 4, 5, 6, 7 are wrong"),
            ("chunk ^ (row // 2 & 7)", "rows 1, 2, 3, 4, 5, 6, 7 are wrong"),
            ("chunk", "without a swizzle"),
        )),
        *((TENSOR, "b_place", [change], words) for change, words in (
            (("lane >> 3 & 1", "lane >> 3"), "Chunks go from 0 to 7"),
            (("2 * k", "16 * k"), "Chunks go from 0 to 7"),
            (("lane >> 4", "lane >> 3"), "Rows go from 0 to 15"),
        )),
        *((TENSOR, "whole", [change], words) for change, words in (
            ((ROUNDED, "steps = depth // DEPTH + 1"), "where 2 hold all of it"),
            ((ROUNDED, "steps = (depth + DEPTH) // DEPTH"), "where 2 hold all of it"),
            (("y < out.shape[0] and x < out.shape[1]", "y < out.shape[1] and x < out.shape[0]"), "(rows, "
             "columns)"),
        )),
        # -- lesson 13
        *((ATTENTION, "attend", [change], words) for change, words in (
            (("product.wait(scores", "product.wait(total"), "You wait for `total` and then read `scores`"),
            (("product.wait(total", "product.wait(scores"), "You wait for `scores` and then read `total`"),
            (("product.wait(scores", "nd.wgmma_wait_group_n64(scores"), None),
        )),
        (ATTENTION, "multiply", [("2 * k", "2")], "the second 16 of k four times"),
    ]),
)  # fmt: skip
def test_what_is_said_of_a_changed_solution(before, exercise, changes, words):
    scope, name = dict(scope_before(*before)), before[0]
    for earlier, (right, _) in lessons.answers(name).items():
        if earlier == exercise:
            break
        lessons.execute(right.cell, scope)
    source = right.cell.source
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    lessons.execute(replace(right.cell, source=source), scope)
    cells = iter(lessons.cells(name))
    next(cell for cell in cells if cell.exercise == exercise)
    verdict = lessons.execute(next(cells), {"engine": "cpu", **scope})
    assert verdict.kind == ("wrong" if words else "right"), verdict
    assert (words or "") in verdict.message, verdict


def plain_place(lane, k):
    return (lane >> 4) * 8 + (lane & 7), 2 * k + (lane >> 3 & 1)


@nd.kernel(threads=32)
def calls_a_plain_one(out: nd.uint32[:]):
    row, chunk = plain_place(nd.lane(), 0)
    out[nd.lane()] = row + chunk


@nd.kernel(threads=32)
def fails_otherwise(out: nd.uint32[:]):
    out[nd.lane() + 1] = 0


def test_a_forgotten_decorator_is_named():
    """Of a device function, of one that a kernel calls, and of a kernel."""

    @exercise.exercise("Run it.")
    def runs(kernel):
        running.run(kernel, 1, (np.zeros(32, np.uint32),), engine="cpu")
        return "It runs."

    def bare(out):
        out[nd.lane()] = 1

    for verdict, name, cure in (
        (lesson11.b_place(plain_place), "plain_place", "`@nd.function`"),
        (runs(calls_a_plain_one), "plain_place", "`@nd.function`"),
        (runs(bare), "bare", "`@nd.kernel(...)`"),
    ):
        assert verdict.kind == "wrong" and f"`{name}` is a plain Python function" in verdict.message, verdict
        assert cure in verdict.message
    assert "`bare` is a function for kernels to call" in runs(nd.function(bare)).message
    verdict = runs(fails_otherwise)
    assert verdict.kind == "wrong" and "plain Python function" not in verdict.message

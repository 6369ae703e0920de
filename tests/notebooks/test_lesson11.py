"""Lesson 11: its pictures show what the engine sees, its checks take other right answers; machine code."""

import lessons
import numpy as np
import pytest

from numba_deform.compiler.sass import inspect_kernel
from numba_deform.course.lessons import cluster_kernels, lesson11, matrix_pictures
from numba_deform.course.lessons.pictures import wavefronts
from numba_deform.engines import faults
from numba_deform.engines.cpu.async_units import warp_mma

NAME = "11_clusters"


@pytest.fixture(scope="module")
def cells():
    """{words in a code cell: the cell} by a function, and the right answers of the exercises."""
    solutions = {name: right.cell for name, (right, _) in lessons.answers(NAME).items()}
    return lambda words: next(cell for cell in lessons.cells(NAME) if words in cell.source), solutions


@pytest.fixture
def scope(cells):
    """What the imports, the definitions and the right answers leave, without running a kernel."""
    find, solutions = cells
    names = {"__name__": "__main__"}
    for words in ("import numpy", "def build_read", "def multiply"):
        lessons.execute(find(words), names)
    lessons.execute(solutions["fetch"], names)
    return names


# --- banks ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("at, swizzle, wavefronts", [("plain", "none", 128), ("swizzled", "128B", 16)])
def test_what_the_engine_counts(scope, at, swizzle, wavefronts):
    seen = lesson11.read(scope["build_read"](scope[at]), swizzle)
    assert (seen.wrong, seen.matrices, seen.wavefronts) == (0, 16, wavefronts)
    assert repr(seen) == f"all values are right; {wavefronts} wavefronts for 16 matrices"


def test_a_wrong_reader_is_seen(scope):
    """Rows 0 and 8, 64 of the 512 words, are as they were without a swizzle."""
    seen = lesson11.read(scope["build_read"](scope["plain"]), "128B")
    assert 400 < seen.wrong <= 448 and "words are wrong; 128 wavefronts" in repr(seen)


@pytest.mark.parametrize("chunk", [0, 3, 7])
def test_the_picture_of_the_banks_is_that_of_the_run(scope, chunk):
    """The matrix at that chunk of the first eight rows, as ``ldmatrix`` fetched it."""
    made = matrix_pictures.tile_in_banks(chunk)
    for axes, at, swizzle in zip(made.figure.axes, ("plain", "swizzled"), ("none", "128B"), strict=True):
        rows = lesson11.read(scope["build_read"](scope[at]), swizzle).rows[chunk // 2]
        rows = np.array(rows[16 * (chunk % 2) :][:8])
        marked = {p.get_y(): p.get_x() for p in axes.patches if p.get_hatch()}
        assert marked == {row: address // 4 % 32 for row, address in enumerate(rows)}
        turns = len(wavefronts(list(rows), 16))
        assert turns == (8 if swizzle == "none" else 1) and f": {turns} wavefront" in axes.get_title()
    assert [text.get_text() for text in axes.texts[8:16]] == list("01234567"), "the chunks of row 1"


# --- fragments ------------------------------------------------------------------------------------
def test_fragments_are_those_of_the_engine():
    words = matrix_pictures._words()
    *factors, sums = warp_mma.FORMS["f16"].places
    held = dict(zip("AB", factors, strict=True))
    for name, (rows, columns) in held.items():
        rows, columns = np.broadcast_arrays(rows, columns)
        for row, column, h, w, lane, register in words[name]:
            places = {(row, column), (row + h - 1, column + w - 1)}
            assert places == set(zip(rows[lane, register], columns[lane, register], strict=True))
    rows, columns = np.broadcast_arrays(*sums)
    for row, column, _, _, lane, pair in words["C"]:
        for i in (2 * pair, 2 * pair + 1):
            assert (rows[lane, i], columns[lane, i]) == (row, column + i % 2)


def test_the_lane_is_framed():
    made = matrix_pictures.fragments(6)
    frames = [[p.get_xy() for p in axes.patches if not p.get_fill()] for axes in made.figure.axes]
    assert frames == [[(4, 1), (4, 9), (12, 1), (12, 9)], [(1, 4), (1, 12)], [(4, 1), (4, 9)]]
    assert "lane 6 holds a0: row 1, columns 4 and 5 of A" in made.alt


# --- two blocks -----------------------------------------------------------------------------------
def test_a_multicast_is_fetched_once():
    """Of A a tile of 2 KB for each block or for both, of B one for each."""
    report = lesson11.recorded(cluster_kernels.pair(), steps=3, cluster=2)
    assert lesson11.traffic(report) == (3 * (2048 + 2 * 2048), 3 * 2 * 4096)


def test_the_slower_block_holds_the_other_up():
    held = []
    for extra in (0, 2):
        events = lesson11.recorded(cluster_kernels.pair(extra=extra), steps=4, cluster=2).events
        made = matrix_pictures.two_blocks(events, "two blocks")
        waits = [e.end - e.start for e in events if (e.kind, e.block, e.warp) == ("wait", 0, 0)]
        held.append(sum(waits))
        assert f"its producer waits {held[-1]:.0f} cycles" in made.alt
        panels = made.figure.axes
        assert [axes.get_title() for axes in panels] == ["block 0", "block 1"]
        for block, axes in enumerate(panels):
            dotted = [line for line in axes.lines if line.get_linestyle() == ":" and len(line.get_xdata())]
            releases = [e.start for e in events if (e.kind, e.block, e.warp, e.lane)
                        == ("arrive", 1 - block, 1, block)]  # fmt: skip
            assert [line.get_xdata()[0] for line in dotted] == releases and len(releases) == 4
            flights = [e for e in events if e.kind == "flight" and e.block == block]
            assert len(flights) == 3 * 4, "two halves of A and a tile of B, four times"
    assert held[1] > held[0] + 50


# --- answers --------------------------------------------------------------------------------------
def answer(cells, scope, old="if nd.lane() < 2:", new="", empty=2):
    """The verdict on the right kernel with the line ``old``, indented, and what follows it changed."""
    source = cells[1]["meet"].source.replace("empty=2", f"empty={empty}")
    assert old in source
    lines = source.split("\n")
    at = next(i for i, line in enumerate(lines) if old in line)
    indent = " " * (len(lines[at]) - len(lines[at].lstrip()))
    lines[at : at + 2] = [indent + line for line in new.split("\n")]
    cell = lessons.Cell(NAME, 0, "\n".join(lines))
    lessons.execute(cell, scope)
    return lesson11.meet(scope["build_pair"], scope["fetch"])


ALL_LANES = "there = ring.empty(state)\nfor r in range(2):\n"
ALL_LANES += "    nd.mbarrier_arrive_cluster(nd.mapa_shared_cluster(there, r))"
OWN_AND_OTHER = "if nd.lane() == 0:\n    ring.release(state)\n"
OWN_AND_OTHER += "    nd.mbarrier_arrive_cluster(nd.mapa_shared_cluster(ring.empty(state), rank ^ 1))"


def test_a_release_at_home_and_one_away_is_right(cells, scope):
    assert answer(cells, scope, new=OWN_AND_OTHER).passed


@pytest.mark.full
def test_a_release_by_all_lanes_is_right(cells, scope):
    assert answer(cells, scope, new=ALL_LANES, empty=64).passed


def test_a_release_before_the_work_is_wrong(cells, scope):
    """The lanes arrive before they have read."""
    multiply = "multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)"
    source = cells[1]["meet"].source.replace(f"\n                {multiply}", "").replace(
        "                state = ring.advance(state)\n            store", f"                {multiply}\n"
        "                state = ring.advance(state)\n            store")  # fmt: skip
    assert source.index("mbarrier_arrive_cluster") < source.index(multiply)
    lessons.execute(lessons.Cell(NAME, 0, source), scope)
    verdict = lesson11.meet(scope["build_pair"], scope["fetch"])
    assert verdict.kind == "wrong" and "The engine stops it" in verdict.message


def test_the_right_answers_of_one_warp(cells, scope):
    for name in ("place", "element", "b_place"):
        lessons.execute(cells[1][name], scope)
    assert lesson11.place(scope["place"], scope["build_read"]).passed
    assert lesson11.element(scope["element"]).passed and lesson11.b_place(scope["b_place"]).passed


@pytest.mark.parametrize("old, new, words", [
    ("2 * TILE_BYTES", "TILE_BYTES + TILE_BYTES // 2", "let in too early"),
    ("mask = 3", "mask = 1 << rank", "mask"), ("a + 8 * 128 * rank", "a", "one place"),
])  # fmt: skip
def test_what_is_said_of_a_wrong_fetch(cells, scope, old, new, words):
    source = cells[1]["fetch"].source
    assert old in source
    lessons.execute(lessons.Cell(NAME, 0, source.replace(old, new)), scope)
    verdict = lesson11.fetch(scope["fetch"])
    assert verdict.kind == "wrong" and words in verdict.message


def test_who_has_not_solved_the_exercise_before(cells, scope):
    source = cells[1]["fetch"].source
    lessons.execute(cells[1]["meet"], scope)
    for change, kind, words in (("1", "wrong", "calls your `fetch`"), ("...", "hole", "mask = ...")):
        lessons.execute(lessons.Cell(NAME, 0, source.replace("mask = 3", f"mask = {change}")), scope)
        verdict = lesson11.meet(scope["build_pair"], scope["fetch"])
        assert verdict.kind == kind and words in verdict.message


# --- on a GPU -------------------------------------------------------------------------------------
def test_only_what_is_right_goes_to_a_gpu(monkeypatch):
    """With the arrays as they were: a kernel that does nothing there is not taken for right."""
    launched = []
    monkeypatch.setattr(lesson11, "find_gpu", lambda: "a GPU")
    monkeypatch.setattr(lesson11, "launch_in_place", lambda *args, **options: launched.append((args, options)))
    a, b = lesson11.operands(1)
    args = lesson11.arguments(a, b, 8)
    with pytest.raises(faults.BlockNotStarted):
        lesson11.run(cluster_kernels.pair(meets=False), 2, args, "gpu", cluster=2)
    assert not launched
    kernel = cluster_kernels.pair()
    lesson11.run(kernel, 2, args, "gpu", cluster=2)
    (((gpu, sent, grid, given), options),) = launched
    assert (gpu, sent, grid) == ("a GPU", kernel, 2) and np.isnan(given[2]).all()
    assert options["cluster"] == 2 and options["shared_bytes"] == kernel.shared_bytes > 2 * 2 * 2048


@pytest.mark.full
def test_the_kernel_of_a_cluster_as_machine_code():
    found = inspect_kernel(cluster_kernels.pair())
    names = set(found.instructions)
    assert {"UCGABAR_ARV", "UCGABAR_WAIT"} <= names and any(name.startswith("LDSM") for name in names)
    assert "UTMALDG.2D.MULTICAST" in found.sass and "HMMA.16816.F32" in found.sass
    assert not found.stack and "CALL" not in names


@pytest.mark.full
def test_the_lessons_own_kernels_compile(scope, cells):
    """In the form in which a GPU gets them: guarded, but for that of a cluster."""
    lessons.execute(cells[0]("def build_alone"), scope)
    lessons.execute(cells[1]["meet"], scope)
    assert scope["alone"].with_bounded_waits().compile().cubin
    assert scope["build_read"](scope["plain"]).with_bounded_waits().compile().cubin
    assert scope["build_pair"](2).compile().cubin

"""Lesson 12: what two blocks that share a load do, what its checks say and take; machine code."""

import lessons
import numpy as np
import pytest

from numba_deform.compiler.sass import inspect_kernel
from numba_deform.course.lessons import cluster_kernels, lesson11, lesson12, matrix_pictures
from numba_deform.engines import faults

NAME = "12_clusters"


@pytest.fixture
def scope(cells):
    """What the imports, the definitions and the right answers leave, without running a kernel."""
    find, solutions = cells
    names = {"__name__": "__main__"}
    for words in ("import numpy", "SIDE, DEPTH = 16, 64"):
        lessons.execute(find(words), names)
    lessons.execute(solutions["fetch"], names)
    return names


# --- two blocks -----------------------------------------------------------------------------------
def test_a_multicast_is_fetched_once():
    """Of A a tile of 2 KB for each block or for both, of B one for each."""
    report = lesson12.recorded(cluster_kernels.pair(), steps=3, cluster=2)
    assert lesson12.traffic(report) == (3 * (2048 + 2 * 2048), 3 * 2 * 4096)


def test_the_slower_block_holds_the_other_up():
    held = []
    for extra in (0, 2):
        events = lesson12.recorded(cluster_kernels.pair(extra=extra), steps=4, cluster=2).events
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
    return lesson12.meet(scope["build_pair"], scope["fetch"])


ALL_LANES = "there = ring.empty(state)\nfor r in range(2):\n"
ALL_LANES += "    nd.mbarrier_arrive_cluster(nd.mapa_shared_cluster(there, r))"
OWN_AND_OTHER = "if nd.lane() == 0:\n    ring.release(state)\n"
OWN_AND_OTHER += "    nd.mbarrier_arrive_cluster(nd.mapa_shared_cluster(ring.empty(state), rank ^ 1))"


def test_a_release_at_home_and_one_away_is_right(cells, scope):
    assert answer(cells, scope, new=OWN_AND_OTHER).passed


@pytest.mark.parametrize("arrive, words", [
    ("mbarrier_arrive(nd.mapa_shared_cluster(ring.empty(state), nd.lane()))", "takes only one's own"),
    ("mbarrier_arrive_cluster(ring.empty(state))", "is the address in one's own block"),
])  # fmt: skip
def test_what_is_said_of_a_wrong_release(cells, scope, arrive, words):
    verdict = answer(cells, scope, new=f"if nd.lane() < 2:\n    nd.{arrive}")
    assert verdict.kind == "wrong" and words in verdict.message


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
    verdict = lesson12.meet(scope["build_pair"], scope["fetch"])
    assert verdict.kind == "wrong" and "The engine stops it" in verdict.message


@pytest.mark.parametrize("old, new, words", [
    ("2 * TILE_BYTES", "TILE_BYTES + TILE_BYTES // 2", "let in too early"),
    ("mask = 3", "mask = 1 << rank", "mask"), ("a + 8 * 128 * rank", "a", "one place"),
    ("mask = 3", "mask = 1", "look at the mask"), ("mask = 3", "mask = 7", "A mask has a bit for each block"),
    ("8 * 128 * rank", "8 * DEPTH * rank", "Eight rows are 512 elements"),
    ("128 * rank", "128 * (1 - rank)", "The halves of A are exchanged"),
])  # fmt: skip
def test_what_is_said_of_a_wrong_fetch(cells, scope, old, new, words):
    source = cells[1]["fetch"].source
    assert old in source
    lessons.execute(lessons.Cell(NAME, 0, source.replace(old, new)), scope)
    verdict = lesson12.fetch(scope["fetch"])
    assert verdict.kind == "wrong" and words in verdict.message


def test_who_has_not_solved_the_exercise_before(cells, scope):
    source = cells[1]["fetch"].source
    lessons.execute(cells[1]["meet"], scope)
    for change, kind, words in (("1", "wrong", "calls your `fetch`"), ("...", "hole", "mask = ...")):
        lessons.execute(lessons.Cell(NAME, 0, source.replace("mask = 3", f"mask = {change}")), scope)
        verdict = lesson12.meet(scope["build_pair"], scope["fetch"])
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
def test_the_lessons_own_kernel_compiles(scope, cells):
    """There is no guarded form for a cluster."""
    lessons.execute(cells[1]["meet"], scope)
    assert scope["build_pair"](2).compile().cubin

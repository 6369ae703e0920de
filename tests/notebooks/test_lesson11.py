"""Lesson 11: its pictures show what the engine sees, its checks take the right answers; machine code."""

import lessons
import numpy as np
import pytest

from numba_deform.course.lessons import lesson11, matrix_pictures
from numba_deform.course.lessons.pictures import wavefronts
from numba_deform.engines.cpu.async_units import warp_mma

NAME = "11_tensor_cores"


@pytest.fixture
def scope(cells):
    """What the imports, the definitions and the right answers leave, without running a kernel."""
    find, solutions = cells
    names = {"__name__": "__main__"}
    for words in ("import numpy", "def build_read", "def multiply"):
        lessons.execute(find(words), names)
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


# --- answers --------------------------------------------------------------------------------------
def test_the_right_answers_of_one_warp(cells, scope):
    for name in ("place", "element", "b_place"):
        lessons.execute(cells[1][name], scope)
    assert lesson11.place(scope["place"], scope["build_read"]).passed
    assert lesson11.element(scope["element"]).passed and lesson11.b_place(scope["b_place"]).passed


@pytest.mark.full
def test_the_lessons_own_kernels_compile(scope, cells):
    """In the guarded form, in which a GPU gets them."""
    lessons.execute(cells[0]("def build_alone"), scope)
    lessons.execute(cells[1]["whole"], scope)
    for kernel in (scope["alone"], scope["build_read"](scope["plain"]), scope["build_whole"](2)):
        assert kernel.with_bounded_waits().compile().cubin

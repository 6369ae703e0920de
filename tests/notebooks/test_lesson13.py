"""Lesson 13: what its check says of a stage that is given back while a product reads it."""

import lessons
import pytest

from numba_deform.course.lessons import lesson13

NAME = "13_flash_attention"
RIGHT = ["product.wait(scores, 0)", "keys.release(k)", "product.wait(total, 0)", "values.release(v)"]


@pytest.mark.parametrize("lines, words", [
    ((1, 0, 2, 3), "The product still reads the tile of keys when it is given back. Wait first"),
    ((0, 1, 3, 2), "The product still reads the tile of values when it is given back. Wait first"),
    ((0, 1, None, 3), "Nobody has waited for the product that reads this tile of values"),
])  # fmt: skip
def test_a_tile_given_back_too_early(lines, words, capsys):
    source = next(cell.source for cell in lessons.cells(NAME) if "def build_attention" in cell.source)
    for line in lines:
        head, _, tail = source.partition("...  #")
        source = head + ("pass" if line is None else RIGHT[line]) + "  #" + tail
    names = {"__name__": "__main__"}
    for cell in lessons.cells(NAME):
        if any(text in cell.source for text in ("import numpy", "one_tile =", "def to_powers")):
            lessons.execute(cell, names)
    lessons.execute(lessons.Cell(NAME, 0, source), names)
    lesson13.attend(names["build_attention"])
    assert words in " ".join(capsys.readouterr().out.split())

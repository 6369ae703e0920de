"""What lesson 1 says of the corners of boxes, asked of the engine."""

import lessons

from numba_deform.course.lessons import lesson1, run, show_fault
from numba_deform.engines import faults

CELLS = ("import", "lessons.feature_map(", "box_map = ", "def load_box", "maps = ")
CELLS += ("channels_first = ", "def one_load", "plane_map = ")


def test_corners():
    scope = {}
    for words in CELLS:
        cell = next(cell for cell in lessons.cells("01_boxes") if words in cell.source)
        shown = lessons.execute(cell, scope)
    assert type(shown.fault) is faults.MisalignedBox
    for letter, (first, *_) in lesson1.CORNERS.items():
        maps = scope["maps" if letter in "AB" else "planes"]
        shown = show_fault(lambda m=maps, c=first: run(scope["one_load"], 1, (m, 0, c), engine="cpu"))
        assert type(shown.fault) is (faults.MisalignedBox if letter in "BC" else type(None)), letter

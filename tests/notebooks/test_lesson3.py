"""Lesson 3's pictures hold what they should."""

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from numba_deform.course.lessons import lesson3


def rectangles(axes):
    return [p for p in axes.patches if isinstance(p, Rectangle) and p.get_fill()]


@pytest.mark.parametrize("fx, fy", [(0.25, 0.5), (0.0, 0.0), (0.9, 0.3), (1.0, 1.0)])
def test_areas_are_the_weights(fx, fy):
    made = lesson3.weights_as_areas(fx, fy)
    areas = {p.get_hatch(): p.get_width() * p.get_height() for p in rectangles(made.figure.axes[0])}
    for (dy, dx), (name, _, hatch) in lesson3.CORNERS.items():
        weight = (fx if dx else 1 - fx) * (fy if dy else 1 - fy)
        assert areas[hatch] == pytest.approx(weight)
        assert f"{name} {weight:.3f}" in made.alt


def test_samples_lie_in_their_tiles():
    image, locations = np.random.rand(8, 10, 3), [(0.5, 0.5), (0.01, 0.99)]
    made = lesson3.samples_on_picture(image, locations, [np.zeros((2, 2, 3))] * 2)
    assert len(made.figure.axes) == 3
    assert "sample 0 at (5.00, 4.00), its tile at (4, 3)" in made.alt
    assert "sample 1 at (0.10, 7.92), its tile at (-1, 7)" in made.alt
    (mark,) = {tuple(line.get_xydata()[0]) for line in made.figure.axes[1].lines}
    assert mark == (1.0, 1.0)


def test_coordinates_in_fp16_miss_by_half_a_step():
    said = lesson3.coordinate_steps(160).alt
    assert "off by up to 0.062 pixels" in said or "off by up to 0.063 pixels" in said
    assert "0 are in a wrong tile" not in said
    assert "off by up to 0.000" not in lesson3.coordinate_steps(20).alt

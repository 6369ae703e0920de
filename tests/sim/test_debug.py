"""debug=1: the tiles that a kernel found in shared memory, beside plain loads."""

import numpy as np
import pytest

from numba_deform.attention import bind
from numba_deform.attention.debug import DebugError, check_tiles
from numba_deform.measure.systems import plan_operator
from numba_deform.workloads.workload import Workload

FAMILIES = {
    "tile": {"threads": 32, "lanes": 16},
    "tile-cp-async": {"threads": 32},
    "tma": {"threads": 32, "lanes": 4},
    "persistent-prefetch": {"threads": 64},
    "phase1": {"producers": 1, "consumers": 1},
    "phase2": {"producers": 1, "consumers": 2, "box": (3, 4)},
    "phase6": {"producers": 2, "consumers": 1, "maps": "level"},
}
SMALL = Workload("small", batch=2, levels=((5, 4), (2, 3)), num_query=3, num_heads=2, channels=32,
                 num_points=4, pattern="uniform", outside=0.2)  # fmt: skip


def plan(name, **parameters):
    inputs = SMALL.generate(seed=3)
    return plan_operator(
        inputs, name, "cpu", min_blocks=0, **{**FAMILIES.get(name, {}), **parameters}
    )


def tiles(made, row):
    return check_tiles(made.bound, made.case.arrays, row)


def tile(inputs, row, level, point):
    """The tile that the contract asks for, in NumPy."""
    heads, queries = inputs.value.shape[2], inputs.sampling_locations.shape[1]
    b, q, h = row // (queries * heads), row // heads % queries, row % heads
    height, width = inputs.spatial_shapes[level]
    x, y = inputs.sampling_locations[b, q, h, level, point].astype(np.float32)
    left, top = int(np.floor(x * width - 0.5)), int(np.floor(y * height - 0.5))
    found = np.zeros((2, 2, inputs.value.shape[3]), inputs.value.dtype)
    for i in range(2):
        for j in range(2):
            if 0 <= top + i < height and 0 <= left + j < width:
                place = inputs.level_start_index[level] + (top + i) * width + left + j
                found[i, j] = inputs.value[b, place, h]
    return found


@pytest.mark.parametrize(
    "name", [n if n == "tma" else pytest.param(n, marks=pytest.mark.full) for n in FAMILIES]
)
def test_all_tiles_of_a_row(name):
    made = plan(name, debug=True)
    for row in (0, 7, 11):
        checks = tiles(made, row)
        assert [(c.level, c.point) for c in checks] == [(k // 4, k % 4) for k in range(8)]
        for c in checks:
            assert c.match
            np.testing.assert_array_equal(c.plain, tile(made.case.inputs, row, c.level, c.point))


def test_what_does_not_match(monkeypatch):
    """A map that starts one pixel late delivers neighbours: loads succeed, the comparison says it."""
    made = plan("tma", debug=True)
    right = bind.level_maps

    def shifted(value, *rest, **options):
        return right(np.roll(value, 1, axis=1), *rest, **options)

    monkeypatch.setattr(bind, "level_maps", shifted)
    assert not all(c.match for c in tiles(made, 0))


def test_windows_are_no_tiles():
    made = plan_operator(SMALL.generate(seed=3), "window", "cpu", debug=True)
    with pytest.raises(DebugError, match="window was not built with debug=1, or has no tiles"):
        tiles(made, 0)


def test_refused():
    with pytest.raises(DebugError, match="debug=1"):
        tiles(plan("tma"), 0)
    with pytest.raises(DebugError, match="row 12 does not exist: B.Q.H=12"):
        tiles(plan("tma", debug=True), 12)

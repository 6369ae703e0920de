"""``window`` on the CPU engine: boxes that many samples share, and samples that no box holds."""

import numpy as np
import pytest
from helpers import check

from numba_deform.attention.call import check_problem
from numba_deform.kernels import window, window_fit
from numba_deform.kernels.problem import Constants
from numba_deform.kernels.window import Window
from numba_deform.workloads.workload import Workload


def small(**changes):
    """Two levels, of which a cell's windows are parts; samples near their queries."""
    shape = dict(
        batch=1, levels=((12, 10), (6, 5)), num_query=10, num_heads=2, channels=32, num_points=2,
        pattern="local", sigma=1.0,
    )  # fmt: skip
    return Workload("small", **{**shape, **changes})


CELL = (5, 4)
# With 8 or 16 points, a lane prepares samples of two rows.
FOUR = ((12, 10), (6, 5), (3, 3), (2, 2))


def run(inputs, simulate_options=None, **parameters):
    parameters = {"consumers": 2, "cell": CELL, **parameters}
    return check(inputs, "window", simulate_options, **parameters)


@pytest.fixture
def poor_windows(monkeypatch):
    """Boxes of about a cell, which hold few of the samples."""
    keep(monkeypatch, 0)


def keep(monkeypatch, share):
    """Windows start with that share of the samples along each axis, and do not grow."""
    monkeypatch.setattr(window_fit, "KEPT", (share,))
    monkeypatch.setattr(window_fit, "grow", lambda *_: None)


# --- types, points, levels ------------------------------------------------------------------------
full = pytest.mark.full


@pytest.mark.parametrize(
    ("dtype", "channels", "arithmetic"),
    [
        ("float16", 32, "packed"), ("bfloat16", 64, "auto"), ("float32", 16, "auto"),
        *(pytest.param(*more, marks=full) for more in (
            ("float16", 32, "fp32"), ("float16", 64, "packed"), ("bfloat16", 32, "auto"),
            ("float32", 32, "auto"),
        )),
    ],
)  # fmt: skip
def test_types(dtype, channels, arithmetic):
    inputs = small(dtype=dtype, channels=channels).generate(seed=1)
    run(inputs, arithmetic=arithmetic)


@pytest.mark.parametrize("location_dtype", ["float32", "bfloat16"])
def test_locations_of_another_type(location_dtype):
    run(small(location_dtype=location_dtype).generate(seed=2), cell=(3, 3))


@pytest.mark.parametrize("channels", [32, pytest.param(64, marks=full)])
@pytest.mark.parametrize("points", [1, 8, *(pytest.param(n, marks=full) for n in (3, 4))])
def test_points(points, channels):
    """With 1 or 3 there are lanes without a run; with 8 a row goes through more than one round."""
    inputs = small(num_points=points, channels=channels, num_query=6).generate(seed=3)
    run(inputs, consumers=3)


@pytest.mark.parametrize(
    ("levels", "points", "channels", "dtype", "layout"),
    [  # lanes of a row, rows of a lane, run, rounds, samples of a run prepared at a time
        (4, 8, 32, "float16", (4, 2, 4, 1, 1)),
        (5, 4, 32, "float16", (4, 2, 4, 1, 1)),  # three of eight
        (2, 3, 32, "float16", (4, 2, 1, 1, 1)),
        (4, 8, 64, "bfloat16", (8, 2, 2, 1, 1)),
        (4, 8, 16, "float32", (4, 2, 4, 1, 1)),
        *(pytest.param(*more, marks=full) for more in (
            (4, 16, 32, "float16", (4, 2, 4, 2, 1)),
            (4, 4, 32, "float16", (4, 2, 2, 1, 1)),
            (3, 4, 32, "float16", (4, 2, 2, 1, 1)),  # two of eight lanes have none
            (5, 8, 32, "float16", (4, 2, 4, 2, 1)),  # in the second round six of eight
            (1, 4, 32, "float16", (4, 1, 1, 1, 1)),
            (4, 4, 64, "float16", (8, 2, 1, 1, 1)),
            (5, 4, 32, "float32", (8, 2, 2, 1, 1)),
        )),
    ],
)
@pytest.mark.parametrize("arithmetic", ["auto", pytest.param("fp32", marks=full)])
def test_layouts(levels, points, channels, dtype, layout, arithmetic):
    workload = small(
        levels=((7, 9), (4, 5), (2, 3), (2, 2), (1, 1))[:levels], dtype=dtype, channels=channels,
        num_points=points, num_query=9, num_heads=1,
    )  # fmt: skip
    assert window.layout(Constants(levels, points, channels, dtype)) == layout
    run(workload.generate(seed=26), arithmetic=arithmetic)


@pytest.mark.parametrize("points", [3, 8])
def test_wide_samples_of_many_points(points):
    """Prepared in fp32, four words each."""
    inputs = small(num_points=points, channels=16, dtype="float32", num_query=6).generate(seed=4)
    run(inputs)


@pytest.mark.parametrize(
    "levels", [((6, 5), (12, 10)), ((7, 9),), ((8, 6), (4, 3), (2, 2), (1, 1))]
)
def test_levels(levels):
    """Coarse first; one; one of a single pixel."""
    run(small(levels=levels).generate(seed=5), cell=(4, 3))


@pytest.mark.parametrize("maps", ["batch", "level"])
def test_maps(maps):
    run(small(batch=3, num_heads=2).generate(seed=9), maps=maps, cell=(4, 4))


# --- cells, items, the ring -----------------------------------------------------------------------
@pytest.mark.parametrize("stages", [1, pytest.param(2, marks=full), 3])
@pytest.mark.parametrize("consumers", [pytest.param(1, marks=full), 3])
def test_ring(stages, consumers):
    """Many items go through few stages; some warps find nothing to do in some items."""
    run(small(num_query=14).generate(seed=6), stages=stages, consumers=consumers, cell=(4, 4))


def test_all_pixels_of_an_encoder():
    levels = ((6, 5), (3, 3))
    run(small(levels=levels, num_query=39).generate(seed=7), cell=(3, 4), consumers=3)


def objects(inputs, middles, spread=0.1):
    """Moves all samples near ``middles`` (Q, 2), one for each query."""
    where = np.random.default_rng(8).uniform(-spread, spread, inputs.sampling_locations.shape)
    where += np.array(middles)[None, :, None, None, None]
    inputs.sampling_locations[:] = where
    return inputs


@pytest.mark.parametrize("queries", [9, 1], ids=["eight and one", "one"])
def test_a_cell_of_one_query(queries):
    """The other rows of its warp are copies that nobody stores."""
    middles = [(0.2, 0.2)] * (queries - 1) + [(0.8, 0.9)]
    run(objects(small(num_query=queries).generate(seed=9), middles), cell=(6, 5))


def test_a_cell_of_many_queries():
    """More groups than consumers, the last one not full."""
    inputs = objects(small(num_query=19, num_heads=1).generate(seed=10), [(0.5, 0.5)] * 19)
    run(inputs, cell=(12, 10), stages=1)


def test_fewer_items_than_blocks():
    run(objects(small(num_query=3, num_heads=1).generate(seed=11), [(0.5, 0.5)] * 3), cell=(12, 10))


@pytest.mark.parametrize("heads", [1, 3])
def test_batches_and_heads(heads):
    run(small(batch=2, num_heads=heads, num_query=7).generate(seed=12))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_padded_value(dtype):
    inputs = small(padded=True, batch=2, num_query=7, dtype=dtype, outside=0.2).generate(seed=13)
    run(inputs)


# --- locations ------------------------------------------------------------------------------------
ODD = (np.nan, np.inf, -np.inf, -3e4, 6e4, -1.0, 2.0)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_odd_locations(dtype):
    inputs = small(dtype=dtype).generate(seed=14)
    flat = inputs.sampling_locations.reshape(-1)
    huge = (*ODD, 1e30, -1e30, 2.0**31) if dtype == "float32" else ODD
    for i, odd in enumerate(huge * 2):
        flat[(i * 37) % flat.size] = odd
    run(inputs)


@pytest.mark.parametrize("odd", [np.nan, *(pytest.param(x, marks=full) for x in (-np.inf, 6e4, -0.7))])
def test_all_locations_outside(odd):
    inputs = small(num_query=5).generate(seed=15)
    inputs.sampling_locations[:] = odd
    run(inputs)


@pytest.mark.parametrize("kept", [None, 0], ids=["held", "lost"])
def test_locations_on_borders(kept, monkeypatch):
    """Of the level, of its pixels, half a pixel off, and next to all of these."""
    if kept is not None:
        keep(monkeypatch, kept)
    workload = small(levels=((8, 16), (4, 8)), dtype="float32", num_query=12)
    inputs = workload.generate(seed=16)
    size = np.array([(16, 8), (8, 4)])[:, None]  # powers of two: what follows is exact
    rng = np.random.default_rng(17)
    shape = inputs.sampling_locations.shape
    where = rng.choice([-0.5, 0.0, 0.5, 1.0, 2.5, 3.0], shape)
    where = np.where(rng.random(shape) < 0.5, where, size - where)
    where = (where / size).astype(np.float32)
    beside = np.nextafter(where, np.float32(1) - where)
    inputs.sampling_locations[:] = np.where(rng.random(shape) < 0.7, where, beside)
    run(inputs)


# --- samples outside their windows ----------------------------------------------------------------
def samples_held(inputs, cell, fit=window.fit):
    """(samples inside their levels that their window holds, samples inside their levels), as the kernel has
    it; those that weigh nothing are left out."""
    problem = check_problem(
        inputs.value, inputs.spatial_shapes, inputs.level_start_index, inputs.sampling_locations,
        inputs.attention_weights, inputs.padded,
    )  # fmt: skip
    config = Window(consumers=2, cell=cell).resolve(problem.constants)
    fitted = fit(problem, config, inputs.sampling_locations)
    tables = fitted.tables(2)
    inside = held = 0
    for (batch, head, cell, count), corners in zip(tables.schedule, tables.corners, strict=True):
        for level, (height, width, _, _) in enumerate(problem.level_table):
            box_height, box_width = fitted.config.boxes[level]
            left, top, *_ = corners[level]
            queries = tables.order[cell, :count]
            where = inputs.sampling_locations[batch, queries, head, level].astype(np.float32)
            x, y = np.floor(where * np.float32((width, height)) - np.float32(0.5)).reshape(-1, 2).T
            here = (-1 <= x) & (x < width) & (-1 <= y) & (y < height)
            here &= inputs.attention_weights[batch, queries, head, level].reshape(-1) != 0
            inside += here.sum()
            here &= (left <= x) & (x < left + box_width - 1)
            held += (here & (top <= y) & (y < top + box_height - 1)).sum()
    return held, inside


TWICE = 2 * ((12, 20), (6, 10))
POOR = [
    {}, pytest.param({"levels": TWICE, "num_points": 8}, marks=full),
    {"levels": TWICE, "num_points": 8, "dtype": "float32", "channels": 16},
    {"num_points": 3, "channels": 64}, {"num_points": 8, "num_query": 2, "arithmetic": "fp32"},
    pytest.param({"num_points": 8}, marks=full), {"batch": 2, "num_heads": 3, "num_query": 2},
    {"padded": True}, {"dtype": "float32", "channels": 16}, {"dtype": "bfloat16", "channels": 64},
]  # fmt: skip


@pytest.mark.parametrize("changes", POOR, ids=str)
def test_samples_that_no_window_holds(changes, poor_windows):
    workload = small(pattern="uniform", num_query=5, levels=((12, 20), (6, 10)), outside=0.1)
    arithmetic = changes.get("arithmetic", "auto")
    changes = {field: value for field, value in changes.items() if field != "arithmetic"}
    inputs = workload.replace(**changes).generate(seed=18)
    inputs.attention_weights.reshape(-1)[::7] = 0
    held, inside = samples_held(inputs, (1, 1))
    assert held < 0.35 * inside
    assert run(inputs, cell=(1, 1), arithmetic=arithmetic).outside == inside - held


def test_local_samples_are_held():
    """So that the other tests look at windows."""
    inputs = small().generate(seed=1)
    held, inside = samples_held(inputs, CELL)
    assert 0.9 * inside < held
    assert run(inputs).outside == inside - held


def test_none_is_counted_where_windows_hold_all():
    inputs = small(levels=((6, 5), (3, 3)), num_query=9).generate(seed=22)
    held, inside = samples_held(inputs, CELL)
    assert held == inside > 0 and run(inputs).outside == 0


@pytest.mark.parametrize("levels", [FOUR[:2], FOUR])
def test_copies_of_a_cell_of_one_query_are_not_counted(levels, poor_windows):
    """Only one of its warp's rows is stored."""
    workload = small(num_query=1, num_points=8, levels=levels)
    inputs = objects(workload.generate(seed=23), [(0.5, 0.5)], spread=0.4)
    held, inside = samples_held(inputs, (1, 1))
    assert run(inputs, cell=(1, 1)).outside == inside - held > 0


def test_schedules_count_once(poor_windows):
    inputs = small(num_query=4, pattern="uniform").generate(seed=25)
    once = run(inputs, cell=(1, 1)).outside
    assert run(inputs, {"schedules": 3}, cell=(1, 1)).outside == once > 0


def test_every_launch_counts_itself():
    inputs = small(num_query=3).generate(seed=24)
    counts = np.zeros(2, np.uint32)
    make = window_fit.Tables
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_fit, "Tables", lambda *tables: make(*tables[:-1], counts))
        for launches in (1, 2, 3):
            run(inputs)
            assert counts[1] == launches


def test_later_locations_may_lie_elsewhere(monkeypatch):
    """Windows fitted to some locations and used for others, as on a GPU: all right, only slower."""
    workload = small(num_query=8)
    first, later = (workload.replace(sigma=s).generate(seed=19) for s in (0.3, 6.0))
    fit = window.fit

    def of_the_first(problem, config, _):
        return fit(problem, config, first.sampling_locations)

    monkeypatch.setattr(window, "fit", of_the_first)
    held, inside = samples_held(later, CELL, of_the_first)
    assert run(later).outside == inside - held > inside / 10


# --- schedules ------------------------------------------------------------------------------------
each_number = pytest.mark.parametrize("schedules", [1, pytest.param(4, marks=full)])


@pytest.mark.parametrize("landing", ["late", "random", "earliest"])
@pytest.mark.parametrize("stages", [1, 2])
@each_number
def test_clean_over_schedules(stages, landing, schedules):
    inputs = small(levels=((6, 5), (3, 3)), num_heads=1, num_points=1).generate(seed=20)
    run(inputs, {"schedules": schedules, "landing": landing}, stages=stages, cell=(3, 3))


@each_number
def test_clean_over_schedules_with_lost_samples(poor_windows, schedules):
    workload = small(levels=((6, 5), (3, 3)), num_heads=1, num_points=4, pattern="uniform")
    run(workload.generate(seed=21), {"schedules": schedules, "landing": "random"}, cell=(2, 2))

"""How queries are grouped into cells, and which boxes, corners and schedule they get."""

import dataclasses
import math

import numpy as np
import pytest

from numba_deform.device.limits import SHARED_LIMIT
from numba_deform.device.memory import dynamic_bytes
from numba_deform.kernels import window_fit
from numba_deform.kernels.problem import ConfigError, Constants, Problem, make_levels
from numba_deform.kernels.window import FittedWindow, Window
from numba_deform.workloads.workload import Workload

PYRAMID = ((24, 36), (12, 18), (6, 9))
LARGE = ((200, 334), (100, 167), (50, 84), (25, 42), (13, 21))
WIDE = ((60, 90), (30, 45))  # room for more than a block can hold
ROWS = 8  # that a warp adds up at once, with pixels of 64 bytes


def problem_of(levels, queries=None, batch=1, heads=2, points=4, channels=32, dtype="float16"):
    """A problem; of an encoder, if the number of queries is left out."""
    size = sum(h * w for h, w in levels)
    constants = Constants(len(levels), points, channels, dtype)
    return Problem(batch, size, heads, queries or size, make_levels(levels), constants)


def encoder(levels=PYRAMID, seed=0, **changes):
    """(problem, locations) of an encoder with local samples, biased in another direction each head."""
    shape = dict(batch=1, num_heads=4, channels=32, num_points=4, outside=0)
    size = sum(h * w for h, w in levels)
    workload = Workload("encoder", levels=levels, num_query=size, **{**shape, **changes})
    problem = problem_of(levels, batch=workload.batch, heads=workload.num_heads)
    return problem, workload.generate(seed).sampling_locations


def uniform(problem, seed=0):
    c = problem.constants
    shape = (problem.batch, problem.queries, problem.heads, c.levels, c.points, 2)
    return np.random.default_rng(seed).random(shape, np.float32)


def sizes_of(problem):
    return np.array([(level.width, level.height) for level in problem.levels])


def held(problem, fitted, locations):
    """(B, Q, H, L, P, 2) bool: along each axis, the window holds the sample or nothing is to be held.

    This is the kernel's rule, written for one query after the other's cell.
    """
    tables, unknown = fitted.tables(3), np.iinfo(np.int32).min
    corner = np.full((problem.queries, problem.heads, problem.constants.levels, 2), unknown)
    for (_, head, cell, count), start in zip(tables.schedule, tables.corners, strict=True):
        assert (start[:, 2:] == sizes_of(problem)).all()
        corner[tables.order[cell, :count], head] = start[:, :2]
    assert (corner > unknown).all()
    return held_by(problem, fitted.config.boxes, corner, locations)


def held_by(problem, boxes, corner, locations):
    """The same for the boxes' corners (Q, H, L, 2), before they are moved into their levels."""
    size, box = sizes_of(problem), np.array([(w, h) for h, w in boxes])
    corner = np.maximum(np.minimum(corner, size + 1 - box), -1)[None, :, :, :, None]
    first = np.floor(locations.astype(np.float64) * size[:, None] - 0.5)
    away = first - corner
    inside = (away >= 0) & (away < box[:, None] - 1)
    return inside | (first < -1) | (first >= size[:, None])


def lost(problem, fitted, locations):
    """Share of the samples that touch their level and that the windows do not hold."""
    sizes = sizes_of(problem)[:, None]
    first = np.floor(locations.astype(np.float64) * sizes - 0.5)
    touches = ((first >= -1) & (first < sizes)).all(axis=-1)
    return (touches & ~held(problem, fitted, locations).all(axis=-1)).mean()


def shared(problem, config):
    return dynamic_bytes(sum(config.shared_bytes(problem.constants)))


def resolved(problem, **parameters):
    return Window(**parameters).resolve(problem.constants)


# --- where queries are ----------------------------------------------------------------------------
def test_pixel_centres():
    got = window_fit.pixel_centres(make_levels(((1, 2), (2, 1))))
    assert got.tolist() == [[0.25, 0.5], [0.75, 0.5], [0.5, 0.25], [0.5, 0.75]]


def test_queries_of_an_encoder_are_pixels_and_nobody_looks_at_locations():
    problem = problem_of(PYRAMID)
    points = window_fit.reference_points(problem, None)
    assert np.array_equal(points, window_fit.pixel_centres(problem.levels, np.float64))
    assert len(points) == problem.queries


def test_pixels_of_a_padded_problem():
    """A border is no query: neither in the number of queries nor in the points."""
    plain = problem_of(PYRAMID)
    starts = np.cumsum([0] + [(h + 2) * (w + 2) for h, w in PYRAMID])
    padded = dataclasses.replace(
        plain, spatial_size=int(starts[-1]), levels=make_levels(PYRAMID, starts[:-1], True)
    )
    want = window_fit.reference_points(plain, None)
    assert np.array_equal(window_fit.reference_points(padded, None), want)


def objects(queries=50, coarse_first=False):
    """(problem, middles (Q, 2), locations): samples symmetric around the middle in the finest level, and
    far off it in the others."""
    levels = PYRAMID[::-1] if coarse_first else PYRAMID
    problem = problem_of(levels, queries)
    rng = np.random.default_rng(3)
    middles = rng.random((queries, 2))
    locations = rng.random((1, queries, 2, 3, 4, 2)) * 20 - 10
    spread = np.array([-0.02, -0.01, 0.01, 0.02])[:, None]
    locations[:, :, :, window_fit.finest_level(problem)] = middles[None, :, None, None] + spread
    return problem, middles, locations.astype(np.float32)


@pytest.mark.parametrize("coarse_first", [False, True])
def test_objects_are_in_the_middle_of_their_samples_of_the_finest_level(coarse_first):
    problem, middles, locations = objects(coarse_first=coarse_first)
    assert window_fit.finest_level(problem) == (2 if coarse_first else 0)
    got = window_fit.reference_points(problem, locations)
    assert np.abs(got - middles).max() < 1e-6


@pytest.mark.parametrize("odd", [1e30, -1e30, np.inf, -np.inf, np.nan])
def test_some_odd_samples_do_not_move_an_object_far(odd):
    problem, middles, locations = objects()
    locations[0, ::2, 0, 0, 1] = odd  # one of eight
    assert np.abs(window_fit.reference_points(problem, locations) - middles).max() < 0.03


@pytest.mark.parametrize("odd", [1e30, -1e30, np.inf, -np.inf, np.nan])
def test_an_object_with_odd_samples_only_is_somewhere_near_the_level(odd):
    problem, middles, locations = objects()
    locations[0, 7] = odd
    got = window_fit.reference_points(problem, locations)
    assert np.isfinite(got).all() and (np.abs(got - 0.5) <= 1).all()
    others = np.arange(problem.queries) != 7
    assert np.abs(got - middles)[others].max() < 1e-6


# --- how far samples are --------------------------------------------------------------------------
def test_offsets_are_in_pixels_of_their_level():
    problem = problem_of(((8, 16), (2, 4)), queries=3, heads=1, points=1)
    references = np.array([[0.5, 0.5], [0.25, 0.75], [0.0, 1.0]])
    locations = np.zeros((1, 3, 1, 2, 1, 2))
    locations[0, :, 0, :, 0] = references[:, None] + (0.25, -0.5)
    away = window_fit.sample_offsets(problem, references, locations)
    assert away.shape == (1, 2, 2, 3)
    assert away.tolist() == [[[[4.0] * 3, [-4.0] * 3], [[1.0] * 3, [-1.0] * 3]]]


def test_offsets_are_finite_and_count_no_nan():
    problem, locations = encoder()
    locations[0, ::3, 0] = np.nan
    locations[0, 1::3, 1] = np.inf
    references = window_fit.reference_points(problem, locations)
    away = window_fit.sample_offsets(problem, references, locations)
    assert np.isfinite(away).all() and np.abs(away).max() <= window_fit.FAR


@pytest.mark.parametrize(
    ("batch", "rows", "counts"),
    [(2, 100, (2, 50)), (2, 1, (1, 1)), (3, 10**6, (3, 1134)), (20, 80, (8, 10))],
)
def test_few_rows_are_measured_and_the_same_ones_each_time(monkeypatch, batch, rows, counts):
    problem = problem_of(PYRAMID, batch=batch)
    monkeypatch.setattr(window_fit, "MEASURED_ROWS", rows)
    chosen = window_fit.some_rows(problem)
    for mine, again, number, count in zip(
        chosen, window_fit.some_rows(problem), (batch, problem.queries), counts, strict=True
    ):
        assert (
            np.array_equal(mine, again) and len(set(mine)) == count and sorted(mine) == list(mine)
        )
        assert 0 <= mine[0] and mine[-1] < number


# --- cells ----------------------------------------------------------------------------------------
def cells_of(problem, cell, references):
    return window_fit.make_cells(problem, window_fit.make_grid(problem, cell, references), references)


def test_cells_by_hand():
    """Two cells across and two down; the finest level is the second, the other half as large."""
    problem = problem_of(((3, 4), (6, 8)))
    references = window_fit.reference_points(problem, None)
    corners, order, counts = cells_of(problem, (3, 4), references)
    assert counts.tolist() == [14, 14, 16, 16]
    # Pixels 0 and 1 of the coarse level, and twelve of the finest, which starts at 12.
    first = [0, 1] + [12 + 8 * y + x for y in range(3) for x in range(4)]
    assert order.shape == (4, 16)
    assert order[0].tolist() == first + [first[-1]] * 2
    assert order[3].tolist() == [6, 7, 10, 11] + [
        12 + 8 * y + x for y in range(3, 6) for x in range(4, 8)
    ]
    # A cell that starts at x=4, y=3 of the finest level starts at 2 and 1.5 of the other.
    assert corners.tolist() == [
        [[-1, -1], [-1, -1]],
        [[1, -1], [3, -1]],
        [[-1, 1], [-1, 2]],
        [[1, 1], [3, 2]],
    ]


@pytest.mark.parametrize("cell", [(1, 1), (2, 5), (7, 3), (100, 100)])
@pytest.mark.parametrize("coarse_first", [False, True])
@pytest.mark.parametrize("kind", ["encoder", "objects"])
def test_every_query_is_in_one_cell(cell, coarse_first, kind):
    levels = PYRAMID[::-1] if coarse_first else PYRAMID
    problem = problem_of(levels, 77 if kind == "objects" else None)
    references = window_fit.reference_points(problem, None if kind == "encoder" else uniform(problem))
    corners, order, counts = cells_of(problem, cell, references)
    assert corners.shape == (len(counts), 3, 2) and order.shape == (len(counts), counts.max())
    assert {a.dtype for a in (corners, order, counts)} == {np.dtype(np.int32)}
    assert counts.min() >= 1
    inside = np.concatenate([row[:count] for row, count in zip(order, counts, strict=True)])
    assert sorted(inside) == list(range(problem.queries))
    for row, count in zip(order, counts, strict=True):
        assert (row[count:] == row[count - 1]).all()
    # Corner to corner: the reference points of a cell lie where it says, in pixels of each level.
    sizes = sizes_of(problem)
    finest = sizes[window_fit.finest_level(problem)]
    extent = sizes / finest * cell[::-1]
    for row, count, corner in zip(order, counts, corners, strict=True):
        where = references[row[:count], None] * sizes - 0.5
        assert (where >= corner - 1e-9).all()
        assert (where < corner + 1 + extent + 1e-9).all()


def test_a_large_cell_holds_all():
    problem = problem_of(PYRAMID)
    references = window_fit.reference_points(problem, None)
    _, order, counts = cells_of(problem, (24, 36), references)
    assert counts.tolist() == [problem.queries] and order.tolist() == [[*range(problem.queries)]]


def test_points_outside_the_level_make_cells_too():
    problem = problem_of(((10, 10),), queries=3)
    references = np.array([[-0.5, 1.5], [0.5, 0.5], [1.5, -0.5]])
    corners, order, counts = cells_of(problem, (5, 5), references)
    assert counts.tolist() == [1, 1, 1]
    assert order.ravel().tolist() == [2, 1, 0]  # lines first
    assert corners[:, 0].tolist() == [[14, -6], [4, 4], [-6, 14]]


# --- boxes ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("kept", [0.999, 0.9, 0.5])
@pytest.mark.parametrize("coarse_first", [False, True])
@pytest.mark.parametrize("sigma", [0.5, 2.0, 5.0])
def test_boxes_hold_the_share_along_each_axis_that_they_should(kept, coarse_first, sigma):
    levels = PYRAMID[::-1] if coarse_first else PYRAMID
    problem, locations = encoder(levels, sigma=sigma)
    references = window_fit.reference_points(problem, None)
    grid = window_fit.make_grid(problem, (5, 4), references)
    away = np.sort(window_fit.sample_offsets(problem, references, locations), axis=-1)
    low, high = (window_fit.quantile(away, q) for q in ((1 - kept) / 2, (1 + kept) / 2))
    boxes = window_fit.fit_boxes(problem, grid.size, low, high)
    corners = window_fit.cell_corners(problem, grid, grid.cell_of(problem, references))
    found = held_by(problem, boxes, corners[:, None] + np.floor(low), locations)
    along = found.mean(axis=(0, 1, 4))  # (H, L, 2)
    assert along.min() >= kept - 2 / (problem.queries * 4)
    assert found.all(axis=-1).mean() >= 2 * kept - 1 - 1e-3


@pytest.mark.parametrize("kind", ["encoder", "objects", "uniform"])
def test_all_measured_samples_are_held_where_nothing_limits(monkeypatch, kind):
    monkeypatch.setattr(window_fit, "samples_worth", lambda *_: 0)
    if kind == "encoder":
        problem, locations = encoder()
    else:
        problem = problem_of(PYRAMID, 60)
        locations = uniform(problem)
        if kind == "objects":
            middles = np.random.default_rng(5).random((1, 60, 1, 1, 1, 2))
            locations = middles + 0.1 * (locations - 0.5)
    config = resolved(problem, cell=(3, 6), stages=1, consumers=3)
    fitted = window_fit.fit(problem, config, locations, ROWS)
    assert lost(problem, fitted, locations) == fitted.outside == 0


def test_widths_are_even_and_boxes_are_what_tma_takes():
    for sigma in (0.1, 1, 3, 8):
        for cell in ((1, 1), (3, 5), (12, 12)):
            problem, locations = encoder(sigma=sigma, seed=1)
            config = resolved(problem, cell=cell)
            for height, width in window_fit.fit(problem, config, locations, ROWS).config.boxes:
                assert width % 2 == 0 and 2 <= width <= 256 and 2 <= height <= 256


def test_boxes_cover_small_levels():
    """Samples everywhere: with a border of one pixel, and not more."""
    problem = problem_of(((5, 6), (3, 3), (1, 1)))
    locations = 4 * uniform(problem) - 1.5
    fitted = window_fit.fit(problem, resolved(problem, cell=(9, 9)), locations, ROWS)
    assert fitted.config.boxes == ((7, 8), (5, 6), (3, 4))
    assert held(problem, fitted, locations).all()


def test_no_side_is_longer_than_256():
    problem = problem_of(((4, 2000), (2000, 4)), queries=30)
    low = np.full((2, 2, 2), -900.0)
    assert window_fit.fit_boxes(problem, np.array((2, 2)), low, -low) == ((6, 256), (256, 6))


def test_boxes_by_hand():
    """A cell of 4 x 6 pixels (2 x 3 of the second level), offsets of -1.5 .. 1.25 in x and 0 .. 2 in y."""
    problem = problem_of(((40, 60), (20, 30)), queries=30, heads=1)
    low, high = np.array([[[-1.5, 0.0]] * 2]), np.array([[[1.25, 2.0]] * 2])
    boxes = window_fit.fit_boxes(problem, np.array((6, 4)), low, high)
    # width: 6 + 1.25 + 2, up to a whole number, and 2 more, made even
    assert boxes == ((4 + 2 + 2, 12), (2 + 2 + 2, 10))


def test_heads_with_opposite_biases_get_different_shifts():
    problem, locations = encoder(num_heads=2, sigma=0.3)  # to the right and to the left
    fitted = window_fit.fit(problem, resolved(problem, cell=(4, 4)), locations, ROWS)
    tables = fitted.tables(2)
    _, heads, cells, _ = tables.schedule.T
    left, right = (tables.corners[heads == h][np.argsort(cells[heads == h])] for h in (1, 0))
    # Those at the edges are moved inside, so of each level the cell where that is least; in the smallest level
    # all are.
    apart = (right - left)[:, :, :2]
    assert (apart[:, :2, 0].max(axis=0) >= 4).all() and (apart[:, 2, 0].max() >= 3)
    assert (np.abs(apart[:, :, 1]) <= 1).all()
    # Neither head's box pays for the other's bias: 4 of the cell, 3 between biases, 2 x 3 sigma.
    assert fitted.config.boxes[0][1] <= 14
    assert held(problem, fitted, locations).all(axis=-1).mean() > 0.995


# --- what fits ------------------------------------------------------------------------------------
def fitted_share(problem, fitted, locations):
    return held(problem, fitted, locations).all(axis=-1).mean()


def test_windows_grow_until_it_does_not_pay_or_there_is_no_room(monkeypatch):
    problem, locations = encoder(WIDE, sigma=4.0, num_heads=2)
    config = resolved(problem, cell=(16, 16), stages=3)

    def fit_worth(worth):
        monkeypatch.setattr(window_fit, "samples_worth", lambda *_: worth)
        return window_fit.fit(problem, config, locations, ROWS)

    full, small = fit_worth(0), fit_worth(np.inf)
    line = 64 * max(width for _, width in full.config.boxes)
    assert SHARED_LIMIT - 3 * 2 * line < shared(problem, full.config) <= SHARED_LIMIT
    assert shared(problem, small.config) < shared(problem, full.config)
    assert full.outside < small.outside
    for large, box in zip(full.config.boxes, small.config.boxes, strict=True):
        assert np.less_equal(box, large).all()


def test_a_window_grows_where_the_samples_are():
    """A level of 40 x 60 pixels; a cell at (20, 10), samples 3 pixels to the left of its window of 4 x 4."""
    problem = problem_of(((40, 60),), queries=1, heads=1, points=8)
    pixel = np.array([[16.5, 11.5]] * 6 + [[22.5, 14.5]] * 2)  # two more below
    locations = ((pixel + 0.5) / (60, 40))[None, None, None]
    (samples,) = window_fit.level_samples(problem, locations[:, :, :, None])
    level = window_fit.LevelWindow(problem, 0, (4, 4), np.array([[[20.0, 10.0]]]), samples)
    assert level.lost == 8
    window_fit.grow([level], 0, lambda boxes: boxes[0][1] <= 8)
    assert (level.box, level.shift.tolist(), level.lost) == ((6, 8), [-4.0, 0.0], 0)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        (dict(cell=(20, 20), stages=3), dict(cell=(4, 4), stages=3)),
        (dict(cell=(20, 20), stages=3), dict(cell=(20, 20), stages=1)),
    ],
)
def test_smaller_cells_and_fewer_stages_keep_more(less, more):
    problem, locations = encoder(WIDE, sigma=4.0, num_heads=2)
    few, many = (
        fitted_share(
            problem, window_fit.fit(problem, resolved(problem, **p), locations, ROWS), locations
        )
        for p in (less, more)
    )
    assert few < 0.95 < 0.99 < many


def test_what_fits_keeps_the_configuration():
    problem, locations = encoder()
    config = resolved(problem, consumers=5, stages=3, cell=(3, 7), l2_promotion="256B")
    fitted = window_fit.fit(problem, config, locations, ROWS).config
    assert isinstance(fitted, FittedWindow) and len(fitted.boxes) == 3
    for field in dataclasses.fields(Window):
        assert getattr(fitted, field.name) == getattr(config, field.name)
    assert fitted.level_boxes(3) == fitted.boxes
    assert hash(fitted) == hash(dataclasses.replace(fitted))
    assert fitted == window_fit.fit(problem, config, locations, ROWS).config


@pytest.mark.parametrize("levels", [LARGE, LARGE[::-1]], ids=["fine-first", "coarse-first"])
@pytest.mark.parametrize("channels", [32, 64])
def test_uniform_samples_of_a_large_problem_fit(levels, channels):
    """No box of any size holds many of them, but every share is tried."""
    problem = problem_of(levels, queries=900, heads=8, channels=channels)
    locations = uniform(problem)
    fitted = window_fit.fit(problem, resolved(problem), locations, ROWS)
    assert shared(problem, fitted.config) <= SHARED_LIMIT


def test_uniform_samples_of_an_encoder_fit():
    """They lie anywhere, however small the cell: the window holds few."""
    problem = problem_of(((200, 334),), points=1)
    locations = uniform(problem)
    fitted = window_fit.fit(problem, resolved(problem), locations, ROWS)
    assert shared(problem, fitted.config) <= SHARED_LIMIT
    assert 0 < fitted_share(problem, fitted, locations) < 0.2


def test_locations_that_are_no_numbers_fit():
    for odd in (np.nan, np.inf, -np.inf, 1e30):
        for queries in (None, 20):
            problem = problem_of(PYRAMID, queries)
            locations = np.full_like(uniform(problem), odd)
            fitted = window_fit.fit(problem, resolved(problem), locations, ROWS)
            tables = fitted.tables(4)
            starts = tables.corners[:, :, :2]
            assert (starts >= -1).all() and (starts <= sizes_of(problem)).all()
            assert set(tables.order.ravel()) == set(range(problem.queries))


def test_a_cell_of_which_no_windows_fit_is_refused():
    problem, locations = encoder(((40, 60), (20, 30)))
    config = resolved(problem, cell=(60, 90), stages=3)
    with pytest.raises(ConfigError, match="cell=60x90: no windows of it fit into 232448") as caught:
        window_fit.fit(problem, config, locations, ROWS)
    assert caught.value.field == "cell"


def test_tables_of_a_fit():
    problem, locations = encoder(batch=2)
    fitted = window_fit.fit(problem, resolved(problem, cell=(5, 5)), locations, ROWS)
    tables, others = fitted.tables(3), fitted.tables(7)
    for table in tables[:-1]:
        assert table.dtype == np.int32 and table.flags.c_contiguous
    assert tables.corners.shape == (len(tables.schedule), problem.constants.levels, 4)
    assert tables.counts.dtype == np.uint32 and tables.counts.tolist() == [0, 0]
    assert len(tables.schedule) == 2 * 4 * len(tables.order)
    assert tables.schedule[:, 3].sum() == 2 * 4 * problem.queries
    assert np.array_equal(tables.order, others.order)
    mine, other = (
        {tuple(item): start.tolist() for item, start in zip(t.schedule, t.corners, strict=True)}
        for t in (tables, others)
    )
    assert mine == other


@pytest.mark.parametrize("cell", [(4, 4), (16, 16)])
def test_a_fit_says_how_many_samples_no_window_holds(cell, monkeypatch):
    problem, locations = encoder(WIDE, sigma=4.0, outside=0.1)
    locations[0, ::5, 0] = np.nan
    monkeypatch.setattr(window_fit, "MEASURED_ROWS", problem.queries)  # all of them
    fitted = window_fit.fit(problem, resolved(problem, cell=cell, stages=3), locations, ROWS)
    assert fitted.outside == lost(problem, fitted, locations) > 0
    assert fitted.items == len(fitted.tables(3).schedule)


# --- the schedule ---------------------------------------------------------------------------------
@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 8, 13, 132])
@pytest.mark.parametrize("seed", range(6))
def test_a_schedule_has_every_item_once_and_is_balanced(blocks, seed):
    rng = np.random.default_rng(seed)
    batches, heads, cells = rng.integers(1, 5, 3) * (1, 1, 7)
    counts = rng.integers(1, (3, 40, 400)[seed % 3], cells).astype(np.int32)
    rows = (4, 8)[seed % 2]
    costs = -(-counts // rows)
    schedule = window_fit.make_schedule(counts, costs, batches, heads, blocks)
    assert schedule.dtype == np.int32 and schedule.flags.c_contiguous
    want = [
        (b, h, c, counts[c]) for b in range(batches) for h in range(heads) for c in range(cells)
    ]
    assert sorted(map(tuple, schedule)) == want
    groups = -(-schedule[:, 3] // rows)
    loads = [groups[block::blocks].sum() for block in range(blocks)]
    assert max(loads) - min(loads) <= groups.max()
    if len(schedule) <= blocks:
        assert max(loads) == groups.max()


def test_dear_items_come_first():
    counts = np.array([1, 50, 9, 17, 8], np.int32)
    schedule = window_fit.make_schedule(counts, np.array([1, 7, 2, 3, 4]), 1, 1, 1)
    assert schedule[:, 3].tolist() == [50, 8, 17, 9, 1]


def test_the_dearest_item_of_a_round_goes_to_the_block_that_has_least():
    counts = np.array([80, 70, 60, 50, 40, 30, 20], np.int32)
    schedule = window_fit.make_schedule(counts, counts, 1, 1, 3)
    # Blocks have 80, 70, 60, then 50 for the last, 40, 30; all have 110, and the first of them 20 more.
    assert schedule[:, 3].tolist() == [80, 70, 60, 30, 40, 50, 20]
    # The block with less gets one item more, and has to be the first.
    rounds, work = window_fit.deal(np.array([9, 5, 1]), 2)
    assert rounds.tolist() == [[0, 1], [-1, 2]] and work.tolist() == [9, 6]
    schedule = window_fit.make_schedule(np.array([9, 5, 1]), np.array([9, 5, 1]), 1, 1, 2)
    assert schedule[:, 3].tolist() == [5, 9, 1]


# --- configurations -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("parameters", "field", "words"),
    [
        ({"consumers": -1}, "consumers", "0 leaves it open"),
        ({"consumers": 32}, "consumers", "with the producer, a block has 32 warps"),
        ({"stages": 0}, "stages", "at least 1"),
        ({"cell": (0, 12)}, "cell", "cell=0x12: must be a height and a width of at least 1"),
        ({"cell": (12, -1)}, "cell", "cell=12x-1: must be a height and a width"),
        ({"cell": (12,)}, "cell", "a height and a width"),
        ({"cell": (1, 2, 3)}, "cell", "cell=1x2x3: must be a height and a width"),
        ({"arithmetic": "fp64"}, "arithmetic", "auto, packed, fp32"),
        ({"l2_promotion": "32B"}, "l2_promotion", "none, 64B, 128B, 256B"),
    ],
    ids=str,
)
def test_refused(parameters, field, words):
    with pytest.raises(ConfigError) as caught:
        Window(**parameters)
    assert caught.value.field == field and words in str(caught.value)


@pytest.mark.parametrize(
    ("levels", "points", "consumers"), [(4, 8, 15), (4, 4, 19), (5, 4, 15), (3, 7, 19)]
)
def test_open_consumers_go_by_the_samples_that_a_lane_prepares(levels, points, consumers):
    constants = Constants(
        channels=32, levels=levels, points=points, dtype="float16", location_dtype="float32",
        weight_dtype="float16",
    )  # fmt: skip
    assert Window().resolve(constants).consumers == consumers
    own = Window(consumers=3, cell=(4, 5)).resolve(constants)
    assert (own.consumers, own.cell) == (3, (4, 5))


def test_an_open_cell_is_the_one_from_which_the_least_work_is_expected(monkeypatch):
    monkeypatch.setattr(window_fit, "SMS", 4)
    problem, locations = encoder(WIDE, num_heads=2)
    chosen = window_fit.fit(problem, resolved(problem), locations, ROWS)
    assert chosen.config.cell in window_fit.CELLS
    references = window_fit.reference_points(problem, None)

    def work(cell):
        fitted = window_fit.fit(problem, resolved(problem, cell=cell), locations, ROWS)
        grid = window_fit.make_grid(problem, cell, references)
        plan = window_fit.Plan(cell, grid, 1.0, fitted.config.boxes, fitted.outside)
        return window_fit.expected_work(problem, plan, references, ROWS)

    best = work(chosen.config.cell)
    assert best < 0.99 * work((6, 6)) and best < 0.99 * work((20, 20))


def test_more_levels_than_a_warp_has_lanes_are_refused():
    with pytest.raises(ConfigError, match="33 levels: .* at most 32"):
        Window().resolve(Constants(33, 1, 32))
    assert Window().resolve(Constants(32, 1, 32))


@pytest.mark.parametrize(
    ("channels", "dtype", "size"),
    [(8, "float16", 16), (16, "bfloat16", 32), (24, "float16", 48), (40, "float16", 80),
     (128, "float16", 256), (8, "float32", 32), (64, "float32", 256)],
)  # fmt: skip
def test_pixels_of_other_sizes_are_refused(channels, dtype, size):
    with pytest.raises(
        ConfigError, match=f"a head's pixel has {size} bytes here; windows need 64 or 128"
    ):
        Window().resolve(Constants(4, 4, channels, dtype))


@pytest.mark.parametrize(
    ("channels", "dtype"),
    [(32, "float16"), (64, "bfloat16"), (32, "bfloat16"), (16, "float32"), (32, "float32")],
)
def test_pixels_of_64_or_128_bytes_are_taken(channels, dtype):
    config = Window().resolve(Constants(4, 4, channels, dtype))
    assert config.arithmetic == ("packed" if dtype == "float16" else "fp32")
    assert config.threads == 32 * 20


def test_packed_sums_are_for_fp16():
    with pytest.raises(ConfigError) as caught:
        Window(arithmetic="packed").resolve(Constants(4, 4, 32, "float32"))
    assert caught.value.field == "arithmetic"


def test_a_ring_that_is_too_deep_for_the_smallest_windows_is_refused():
    constants = Constants(4, 4, 32)
    deep = next(
        n for n in range(1, 999)
        if Window(consumers=19, stages=n, arithmetic="packed").smallest_shared(constants) > SHARED_LIMIT
    )  # fmt: skip
    Window(stages=deep - 1).resolve(constants)
    with pytest.raises(ConfigError, match=f"stages={deep}: with 19 consumers does not fit"):
        Window(stages=deep).resolve(constants)


@pytest.mark.parametrize("levels", [1, 2, 4, 5, 9])
def test_typical_boxes_for_any_number_of_levels(levels):
    constants = Constants(levels, 4, 32)
    config = Window().resolve(constants)
    boxes = config.level_boxes(levels)
    assert len(boxes) == levels
    assert all(width % 2 == 0 and height >= 2 for height, width in boxes)
    assert boxes[-1] == boxes[min(levels, 4) - 1]
    windows_bytes, barriers, _ = config.shared_bytes(constants)
    assert windows_bytes == 2 * sum(math.ceil(h * w * 64 / 128) * 128 for h, w in boxes)
    assert barriers == 2 * 16


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
@pytest.mark.parametrize("q", [0.0, 0.0005, 0.31, 0.5, 0.9995, 1.0])
def test_quantile_of_what_is_in_order(count, q):
    values = np.random.default_rng(3).normal(size=(3, 2, count))
    found = window_fit.quantile(np.sort(values, axis=-1), q)
    assert found == pytest.approx(np.quantile(values, q, axis=-1), abs=1e-12)

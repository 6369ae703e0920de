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
from numba_deform.kernels.window_fit import PROBED_ROWS, PROBED_SAMPLES
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
    points = workload.num_points
    problem = problem_of(levels, None, workload.batch, workload.num_heads, points)
    return problem, workload.generate(seed).sampling_locations


def sizes_of(problem):
    return np.array([(level.width, level.height) for level in problem.levels])


def corners_of(problem, fitted, shifts):
    """(items, L, 2): where the windows of each item of the schedule start, with these shifts (H, L, 2)."""
    tables = fitted.tables(3)
    sizes, boxes = sizes_of(problem), np.array(fitted.config.boxes)
    assert (tables.bases[..., 2:] == sizes).all()
    bases = np.ascontiguousarray(tables.bases[..., :2]).view(np.float32)
    start = np.floor(bases + shifts[tables.schedule[:, 1]])
    return np.maximum(np.minimum(start, sizes + 1 - boxes[:, ::-1]), -1)


def held(problem, fitted, locations):
    """(B, Q, H, L, P, 2) bool: along each axis, the window holds the sample or nothing is to be held.

    This is the kernel's rule, written for one query after the other's cell.
    """
    shifts, _ = window_fit.look(problem, fitted, locations)
    tables, starts = fitted.tables(3), corners_of(problem, fitted, shifts)
    corner = np.full((problem.queries, problem.heads, problem.constants.levels, 2), np.nan)
    for (_, head, cell, count), start in zip(tables.schedule, starts, strict=True):
        corner[tables.order[cell, :count], head] = start
    assert not np.isnan(corner).any()
    size, box = sizes_of(problem), np.array([(w, h) for h, w in fitted.config.boxes])
    first = np.floor(locations.astype(np.float64) * size[:, None] - 0.5)
    away = first - corner[None, :, :, :, None]
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


def forget():
    """What was fitted with other constants."""
    window_fit.fit.cache_clear()
    window_fit.grown_plans.cache_clear()


# --- where queries are ----------------------------------------------------------------------------
def test_pixel_centres():
    got = window_fit.pixel_centres(make_levels(((1, 2), (2, 1))))
    assert got.tolist() == [[0.25, 0.5], [0.75, 0.5], [0.5, 0.25], [0.5, 0.75]]


def test_queries_of_an_encoder_are_pixels():
    problem = problem_of(PYRAMID)
    points = window_fit.reference_points(problem)
    assert np.array_equal(points, window_fit.pixel_centres(problem.levels, np.float64))
    assert len(points) == problem.queries


def test_after_the_last_pixel_the_first_one_follows():
    pixels = window_fit.reference_points(problem_of(PYRAMID))
    points = window_fit.reference_points(problem_of(PYRAMID, 2 * len(pixels) + 3))
    assert np.array_equal(points, np.concatenate([pixels, pixels, pixels[:3]]))


def test_fewer_queries_than_pixels_lie_evenly_among_them():
    points = window_fit.reference_points(problem_of(((6, 8),), 12))
    assert np.array_equal(points, window_fit.reference_points(problem_of(((6, 8),)))[::4])


def test_pixels_of_a_padded_problem():
    """A border is no query: neither in the number of queries nor in the points."""
    plain = problem_of(PYRAMID)
    starts = np.cumsum([0] + [(h + 2) * (w + 2) for h, w in PYRAMID])
    padded = dataclasses.replace(
        plain, spatial_size=int(starts[-1]), levels=make_levels(PYRAMID, starts[:-1], True)
    )
    assert np.array_equal(window_fit.reference_points(padded), window_fit.reference_points(plain))


def test_the_finest_level_has_the_most_pixels():
    assert window_fit.finest_level(problem_of(PYRAMID)) == 0
    assert window_fit.finest_level(problem_of(PYRAMID[::-1])) == 2


# --- how far samples are --------------------------------------------------------------------------
def test_nominal_offsets_lie_along_their_head_around_the_middle(monkeypatch):
    monkeypatch.setattr(window_fit, "NOMINAL_SIGMA", 0.0)
    monkeypatch.setattr(window_fit, "SHIFT_ERROR", 0.0)
    away = window_fit.nominal_offsets(problem_of(PYRAMID, heads=4), 3, np.random.default_rng(0))
    reach = np.array([-1.5, -0.5, 0.5, 1.5])
    assert away.shape == (3, 4, 3, 4, 2)
    assert away[2, 0, 1] == pytest.approx(np.stack([reach, 0 * reach], -1))
    assert away[0, 3, 2] == pytest.approx(np.stack([0 * reach, -reach], -1))


@pytest.mark.parametrize(("batch", "queries", "heads"), [(1, 1134, 2), (3, 1134, 8), (2, 5, 1), (5, 9000, 3)])
def test_rows_that_are_looked_at_are_spread_over_all(batch, queries, heads):
    problem = problem_of(PYRAMID, queries, batch, heads)
    rounds = window_fit.probe_rounds(problem)
    rows = window_fit.probed_rows(problem, rounds)
    assert rows.shape == (heads * 3, PROBED_ROWS * rounds)
    part = batch * queries / rows.size  # one out of each
    first = np.arange(rows.size) * part
    assert (np.floor(first) <= rows.T.ravel()).all() and (rows.T.ravel() < first + part).all()
    if part >= 1:
        for own in rows:  # and every head and level sees the whole
            assert np.diff(np.sort(own)).max() <= 2 * batch * queries / len(own)
    columns = rows % queries % 36  # they keep to no column of the picture
    assert len(set(columns.ravel())) > 0.6 * min(36, rows.size, queries)


def test_how_many_samples_are_looked_at():
    assert window_fit.probed_samples(problem_of(PYRAMID, heads=8)) == 8 * 3 * 4 * PROBED_ROWS
    assert window_fit.probe_rounds(problem_of(PYRAMID, heads=1)) == PROBED_SAMPLES // (3 * 4 * PROBED_ROWS)
    assert window_fit.probe_rounds(problem_of(PYRAMID, 10, heads=1)) == 1


@pytest.mark.parametrize("moved", [0.0, 6.0])
def test_shifts_are_the_mean_offsets(moved):
    """Those of a head lie about (P + 1) / 2 pixels along its direction; all may be moved."""
    problem, locations = encoder(WIDE, num_heads=4, sigma=0.3)
    locations = locations + moved / sizes_of(problem)[:, None]
    shifts, _ = window_fit.look(problem, window_fit.fit(problem, resolved(problem), ROWS), locations)
    want = 2.5 * np.array([(1, 0), (0, 1), (-1, 0), (0, -1)])[:, None] + moved
    assert shifts.shape == (4, 2, 2) and np.abs(shifts - want).max() < 0.15


def test_samples_far_away_or_no_numbers_do_not_count():
    problem, locations = encoder(WIDE, num_heads=4, sigma=0.3)
    fitted = window_fit.fit(problem, resolved(problem), ROWS)
    want, _ = window_fit.look(problem, fitted, locations)
    for odd in (np.nan, np.inf, -np.inf, 7.0):
        strange = locations.copy()
        strange[:, ::7] = odd
        shifts, _ = window_fit.look(problem, fitted, strange)
        assert np.isfinite(shifts).all() and np.abs(shifts - want).max() < 0.3
    assert not window_fit.look(problem, fitted, np.full_like(locations, np.nan))[0].any()


@pytest.mark.parametrize("sigma", [1.0, 6.0])
def test_samples_outside_are_counted_as_they_are(sigma):
    """Of what is looked at, as many as of all samples."""
    problem, locations = encoder(WIDE, num_heads=4, sigma=sigma)
    fitted = window_fit.fit(problem, resolved(problem, cell=(12, 12)), ROWS)
    _, outside = window_fit.look(problem, fitted, locations)
    count, share = window_fit.probed_samples(problem), lost(problem, fitted, locations)
    assert abs(outside - share * count) <= 4 * math.sqrt(share * count) + 1
    assert (outside > 100) == (sigma > 2)


# --- cells ----------------------------------------------------------------------------------------
def cells_of(problem, cell, references, rows=1000):
    return window_fit.make_cells(problem, window_fit.make_grid(problem, cell, references), references, rows)


def test_cells_by_hand():
    """Two cells across and two down; the finest level is the second, the other half as large."""
    problem = problem_of(((3, 4), (6, 8)))
    references = window_fit.reference_points(problem)
    centres, order, counts = cells_of(problem, (3, 4), references)
    assert counts.tolist() == [14, 14, 16, 16]
    # Pixels 0 and 1 of the coarse level, and twelve of the finest, which starts at 12.
    first = [0, 1] + [12 + 8 * y + x for y in range(3) for x in range(4)]
    assert order.shape == (4, 16)
    assert order[0].tolist() == first + [first[-1]] * 2
    assert order[3].tolist() == [6, 7, 10, 11] + [
        12 + 8 * y + x for y in range(3, 6) for x in range(4, 8)
    ]
    # The middle of the first cell is at x=2, y=1.5 of the finest level, whose first pixel's is at 0.5.
    assert centres.tolist() == [
        [[0.5, 0.25], [1.5, 1.0]],
        [[2.5, 0.25], [5.5, 1.0]],
        [[0.5, 1.75], [1.5, 4.0]],
        [[2.5, 1.75], [5.5, 4.0]],
    ]


@pytest.mark.parametrize("cell", [(1, 1), (2, 5), (7, 3), (100, 100)])
@pytest.mark.parametrize("coarse_first", [False, True])
@pytest.mark.parametrize("queries", [None, 77, 2000])
def test_every_query_is_in_one_cell(cell, coarse_first, queries):
    levels = PYRAMID[::-1] if coarse_first else PYRAMID
    problem = problem_of(levels, queries)
    references = window_fit.reference_points(problem)
    centres, order, counts = cells_of(problem, cell, references)
    assert centres.shape == (len(counts), 3, 2) and order.shape == (len(counts), counts.max())
    assert {a.dtype for a in (order, counts)} == {np.dtype(np.int32)}
    assert counts.min() >= 1
    inside = np.concatenate([row[:count] for row, count in zip(order, counts, strict=True)])
    assert sorted(inside) == list(range(problem.queries))
    for row, count in zip(order, counts, strict=True):
        assert (row[count:] == row[count - 1]).all()
    # The reference points of a cell lie around its middle, in pixels of each level.
    sizes = sizes_of(problem)
    extent = sizes / sizes[window_fit.finest_level(problem)] * cell[::-1]
    for row, count, centre in zip(order, counts, centres, strict=True):
        away = references[row[:count], None] * sizes - 0.5 - centre
        assert (np.abs(away) <= extent / 2 + 1e-9).all()


def test_cells_end_where_groups_of_rows_end():
    """Three lines of cells, of which only the last of each may have a part of a group; no query goes farther
    than half a group's worth of columns, nor to another line."""
    problem = problem_of(((36, 50), (18, 25)))
    references = window_fit.reference_points(problem)
    grid = window_fit.make_grid(problem, (12, 13), references)
    before, after = grid.cell_of(problem, references), window_fit.whole_groups(problem, grid, references, ROWS)
    assert grid.number.tolist() == [4, 3]
    counts = np.bincount(after, minlength=12).reshape(3, 4)
    assert (counts[:, :-1] % ROWS == 0).all() and (np.bincount(before).reshape(3, 4)[:, :-1] % ROWS).any()
    assert counts.sum(axis=1).tolist() == np.bincount(before).reshape(3, 4).sum(axis=1).tolist()
    moved = before != after
    assert 0 < moved.sum() <= ROWS // 2 * 9 and (before // 4 == after // 4).all()
    edge = np.maximum(before, after)[moved] % 4 * 13 / 50  # where both cells meet
    assert (np.abs(references[moved, 0] - edge) < 1.6 / 50).all()
    few = window_fit.make_grid(problem, (4, 4), references)
    assert (window_fit.whole_groups(problem, few, references, ROWS) == few.cell_of(problem, references)).all()


def test_a_large_cell_holds_all():
    problem = problem_of(PYRAMID)
    references = window_fit.reference_points(problem)
    _, order, counts = cells_of(problem, (24, 36), references)
    assert counts.tolist() == [problem.queries] and order.tolist() == [[*range(problem.queries)]]


def test_a_window_lies_around_its_middle():
    """Of 4 x 6 pixels around (10, 20): it holds tiles from 8 to 12 and from 19 to 21."""
    start = np.floor(window_fit.bases(np.array([10.0, 20.0]), (4, 6)))
    assert start.tolist() == [8, 19]
    assert window_fit.bases(np.array([10.0, 20.5]), (5, 6)).tolist() == [8.0, 19.0]


# --- boxes ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("cell", [(12, 12), (6, 9)])
@pytest.mark.parametrize("coarse_first", [False, True])
def test_windows_hold_what_they_are_said_to(cell, coarse_first):
    """Samples as a Deformable DETR has them after training, which the fit has not seen."""
    problem, locations = encoder(WIDE[::-1] if coarse_first else WIDE, sigma=2.0)
    fitted = window_fit.fit(problem, resolved(problem, cell=cell), ROWS)
    assert lost(problem, fitted, locations) < 0.002 + 2 * fitted.outside


def test_all_nominal_samples_are_held_where_nothing_limits(monkeypatch):
    monkeypatch.setattr(window_fit, "samples_worth", lambda *_: 0)
    problem = problem_of(PYRAMID)
    forget()
    fitted = window_fit.fit(problem, resolved(problem, cell=(3, 6), stages=1, consumers=3), ROWS)
    forget()
    assert fitted.outside == 0


def test_widths_are_even_and_boxes_are_what_tma_takes():
    for cell in ((1, 1), (3, 5), (12, 12)):
        problem = problem_of(WIDE)
        for height, width in window_fit.fit(problem, resolved(problem, cell=cell), ROWS).config.boxes:
            assert width % 2 == 0 and 2 <= width <= 256 and 2 <= height <= 256


def test_boxes_cover_small_levels():
    """With a border of one pixel, and not more."""
    problem = problem_of(((5, 6), (3, 3), (1, 1)))
    fitted = window_fit.fit(problem, resolved(problem, cell=(9, 9)), ROWS)
    assert fitted.config.boxes == ((7, 8), (5, 6), (3, 4))
    everywhere = np.random.default_rng(0).uniform(-1.5, 2.5, (1, problem.queries, 2, 3, 4, 2))
    assert held(problem, fitted, everywhere).all()


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


def test_heads_with_opposite_biases_get_windows_of_their_own():
    problem, locations = encoder(WIDE, num_heads=2, sigma=0.3)  # to the right and to the left
    fitted = window_fit.fit(problem, resolved(problem, cell=(4, 4)), ROWS)
    shifts, _ = window_fit.look(problem, fitted, locations)
    _, heads, cells, _ = fitted.tables(3).schedule.T
    starts = corners_of(problem, fitted, shifts)
    left, right = (starts[heads == h][np.argsort(cells[heads == h])] for h in (1, 0))
    # Those at the edges are moved inside, so of each level the cell where that is least.
    assert ((right - left)[..., 0].max(axis=0) >= 4).all() and (np.abs((right - left)[..., 1]) <= 1).all()
    assert held(problem, fitted, locations).all(axis=-1).mean() > 0.995


# --- what fits ------------------------------------------------------------------------------------
def test_windows_grow_until_it_does_not_pay_or_there_is_no_room(monkeypatch):
    problem = problem_of(WIDE)
    config = resolved(problem, cell=(16, 16), stages=3)
    monkeypatch.setattr(window_fit, "NOMINAL_SIGMA", 4.0)

    def fit_worth(worth):
        monkeypatch.setattr(window_fit, "samples_worth", lambda *_: worth)
        forget()
        return window_fit.fit(problem, config, ROWS)

    full, small = fit_worth(0), fit_worth(np.inf)
    forget()
    line = 64 * max(width for _, width in full.config.boxes)
    assert SHARED_LIMIT - 3 * 2 * line < shared(problem, full.config) <= SHARED_LIMIT
    assert shared(problem, small.config) < shared(problem, full.config)
    assert full.outside < small.outside
    for large, box in zip(full.config.boxes, small.config.boxes, strict=True):
        assert np.less_equal(box, large).all()


def test_a_window_grows_where_the_samples_are():
    """A level of 40 x 60 pixels; a cell around (20, 10), samples to the left of its window of 4 x 4."""
    problem = problem_of(((40, 60),), queries=1, heads=1, points=8)
    pixel = np.array([[16.5, 10.5]] * 6 + [[20.5, 13.5]] * 2)  # two more below
    locations = ((pixel + 0.5) / (60, 40))[None, None, None]
    (samples,) = window_fit.level_samples(problem, locations[:, :, :, None])
    level = window_fit.LevelWindow(problem, 0, (4, 4), np.array([[20.0, 10.0]]), samples)
    assert level.lost == 8
    window_fit.grow([level], 0, lambda boxes: boxes[0][1] <= 12)
    assert (level.box, level.lost) == ((8, 12), 0)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        (dict(cell=(20, 20), stages=3), dict(cell=(4, 4), stages=3)),
        (dict(cell=(20, 20), stages=3), dict(cell=(20, 20), stages=1)),
    ],
)
def test_smaller_cells_and_fewer_stages_keep_more(less, more):
    problem = problem_of(WIDE)
    few, many = (window_fit.fit(problem, resolved(problem, **p), ROWS).outside for p in (less, more))
    assert few > 0.003 > many


def test_what_fits_keeps_the_configuration():
    problem = problem_of(PYRAMID, heads=4)
    config = resolved(problem, consumers=5, stages=3, cell=(3, 7), l2_promotion="256B")
    fitted = window_fit.fit(problem, config.fitted(limit=7), ROWS).config
    assert isinstance(fitted, FittedWindow) and len(fitted.boxes) == 3
    for field in dataclasses.fields(Window):
        assert getattr(fitted, field.name) == getattr(config, field.name)
    assert (fitted.heads, fitted.rounds, fitted.limit) == (4, window_fit.probe_rounds(problem), 7)
    assert fitted.level_boxes(3) == fitted.boxes
    assert hash(fitted) == hash(dataclasses.replace(fitted))


@pytest.mark.parametrize("levels", [LARGE, LARGE[::-1]], ids=["fine-first", "coarse-first"])
@pytest.mark.parametrize("channels", [32, 64])
def test_a_large_problem_fits(levels, channels):
    problem = problem_of(levels, queries=900, heads=8, channels=channels)
    fitted = window_fit.fit(problem, resolved(problem), ROWS)
    assert shared(problem, fitted.config) <= SHARED_LIMIT


def test_a_cell_of_which_no_windows_fit_is_refused():
    problem = problem_of(((40, 60), (20, 30)))
    config = resolved(problem, cell=(60, 90), stages=3)
    with pytest.raises(ConfigError, match="cell=60x90: no windows of it fit into 232448") as caught:
        window_fit.fit(problem, config, ROWS)
    assert caught.value.field == "cell"


def test_tables_of_a_fit():
    problem = problem_of(PYRAMID, batch=2, heads=4)
    fitted = window_fit.fit(problem, resolved(problem, cell=(5, 5)), ROWS)
    tables, others = fitted.tables(3), fitted.tables(7)
    assert [table.dtype.name for table in tables] == ["int32"] * 3 + ["float32"]
    assert all(table.flags.c_contiguous for table in tables)
    assert tables.bases.shape == (len(tables.schedule), problem.constants.levels, 4)
    assert tables.anchors.shape == (4 * 3 * PROBED_ROWS * fitted.config.rounds, 4)
    assert fitted.items == len(tables.schedule) == 2 * 4 * len(tables.order)
    assert tables.schedule[:, 3].sum() == 2 * 4 * problem.queries
    assert np.array_equal(tables.order, others.order) and np.array_equal(tables.anchors, others.anchors)
    mine, other = (
        {tuple(item): start.tolist() for item, start in zip(t.schedule, t.bases, strict=True)}
        for t in (tables, others)
    )
    assert mine == other


def test_anchors_are_the_reference_points_and_windows_of_the_rows():
    problem = problem_of(PYRAMID, batch=2, heads=2)
    fitted = window_fit.fit(problem, resolved(problem, cell=(5, 5)), ROWS)
    tables, rows = fitted.tables(1), window_fit.probed_rows(problem, fitted.config.rounds)
    anchors, references = fitted.anchors.reshape(*rows.shape, 4), window_fit.reference_points(problem)
    bases = {(cell, level): np.ascontiguousarray(base[level, :2]).view(np.float32).tolist()
             for (_, _, cell, _), base in zip(tables.schedule, tables.bases, strict=True)
             for level in range(3)}  # fmt: skip
    cell_of = {query: cell for cell, queries in enumerate(tables.order) for query in queries}
    for pair, place in ((0, 0), (1, 5), (5, 31), (4, 17)):
        query, level = rows[pair, place] % problem.queries, pair % 3
        want = references[query] * sizes_of(problem)[level]
        assert anchors[pair, place, :2] == pytest.approx(want, abs=1e-4)
        assert anchors[pair, place, 2:].tolist() == pytest.approx(bases[cell_of[query], level], abs=1e-4)


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
    ("levels", "points", "dtype", "consumers"),
    [(4, 8, "float16", 12), (4, 8, "bfloat16", 12), (4, 8, "float32", 19), (4, 4, "float16", 19),
     (5, 4, "float16", 12), (3, 7, "float16", 19)],
)  # fmt: skip
def test_open_consumers_go_by_the_samples_that_a_lane_prepares(levels, points, dtype, consumers):
    constants = Constants(
        channels=32, levels=levels, points=points, dtype=dtype, location_dtype="float32",
        weight_dtype=dtype,
    )  # fmt: skip
    assert Window().resolve(constants).consumers == consumers
    own = Window(consumers=3, cell=(4, 5)).resolve(constants)
    assert (own.consumers, own.cell) == (3, (4, 5))


def halved(height, width, levels=3):
    return tuple((-(-height // 2**n), -(-width // 2**n)) for n in range(levels))


def test_pictures_of_many_sizes_share_kernels():
    """As in training: what a kernel is compiled for is the same wherever the cell is."""
    sizes, found = [(60, 90), (63, 89), (51, 77), (58, 97), (90, 60), (64, 64), (97, 71)], {}
    for size in sizes:
        problem = problem_of(halved(*size))
        config = window_fit.fit(problem, resolved(problem), ROWS).config
        assert found.setdefault(config.cell, config) == config
    assert len(found) <= 4


def test_the_kind_of_a_problem():
    kind = window_fit.kind_of(problem_of(halved(101, 166)[::-1], queries=2 * 21_000, batch=4))
    assert [level[:2] for level in kind.levels] == [(48, 48), (96, 96), (192, 192)]
    pixels = 192 * 192 * 21 // 16
    assert (kind.batch, kind.spatial_size, kind.queries) == (1, pixels, 2 * pixels)
    assert kind == window_fit.kind_of(problem_of(halved(97, 180)[::-1], queries=2 * 23_000))


def test_an_open_cell_is_the_one_from_which_the_least_work_is_expected(monkeypatch):
    monkeypatch.setattr(window_fit, "SMS", 4)
    problem = problem_of(WIDE)
    forget()
    chosen = window_fit.fit(problem, resolved(problem), ROWS)
    assert chosen.config.cell in window_fit.CELLS
    references = window_fit.reference_points(problem)

    def work(cell):
        fitted = window_fit.fit(problem, resolved(problem, cell=cell), ROWS)
        grid = window_fit.make_grid(problem, cell, references)
        plan = window_fit.Plan(cell, grid, 1.0, fitted.config.boxes, fitted.outside)
        return window_fit.expected_work(problem, plan, references, ROWS, fitted.config.costs(problem.constants))

    best = work(chosen.config.cell)
    assert best < 0.99 * work((6, 6)) and best < 0.995 * work((20, 20))


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
    assert config.arithmetic == ("fp32" if dtype == "float32" else "packed")
    assert config.threads == 32 * (16 if (channels, dtype) == (32, "bfloat16") else 20)


def test_packed_products_are_of_16_bits():
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

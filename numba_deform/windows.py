"""Which queries go together, and which box of each level they need (for ``kernels/window.py``).

A query's *reference point* is where its samples are: in an encoder, where every pixel of every level is a
query, that pixel's centre; else the middle of its samples of the finest level. Queries are grouped into *cells*
by the rectangle of the finest level in which their reference point lies. The samples of a cell then lie in
the cell, moved and widened by the *offsets*: how far samples lie from their query's reference point, for each
head and level. They are measured on some rows of the locations, and the box of a level holds all but a few of
them: as many as shared memory allows. Larger cells load fewer bytes for each query, and leave less room around
them; where their size is left open, it is the one from which the least work is expected.
"""

import bisect
import dataclasses
import functools
import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .kernels.lanes import ITEMSIZE
from .workload import pixel_centres

# Shares of the samples along each axis that the boxes should hold; the first that fits is taken.
KEPT = (
    0.999, 0.998, 0.996, 0.993, *(0.99 - 0.0025 * n for n in range(16)), 0.93, 0.9, 0.8, 0.6, 0.4, 0.2,
    0.1, 0.0,
)  # fmt: skip
CELL_SIDES = (8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 24)  # that are weighed, in pixels
MEASURED_ROWS = 4096
# What a problem's work is estimated from (bench/NOTES.md): bytes that shared memory delivers at once, cycles
# of its data path for a sample beside its pixels, for a row, and for a sample outside; their share, for each
# of those that are not kept along an axis. SMs of an H100 or H200: with others the choice is less good.
LINE, PREPARED, ROW, FAR_WORK, FAR_SHARE, SMS = 128, 0.25, 4.0, 100.0, 0.03, 132
FAR = 1000.0  # pixels: farther offsets are as good as none


class Tables(NamedTuple):
    """What the kernel has beside the operands; int32, and the counts uint32.

    cells     (cells, L, 2): x and y of every level's window, before the head's shift
    shifts    (H, L, 2): what a head adds to them
    order     (cells, slots): the queries of each cell, the last one repeated
    schedule  (items, 4): batch, head, cell and number of queries, in the order in which blocks take them
    counts    (2,): samples that no window held, and launches, both modulo 2^32; a launch adds to them
    """

    cells: np.ndarray
    shifts: np.ndarray
    order: np.ndarray
    schedule: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True, eq=False)
class Fit:
    """A configuration fitted to a problem.

    config   with boxes
    tables   from a number of blocks to the :class:`Tables` for them
    outside  share of the samples that no window holds, of some queries
    items    in the schedule
    """

    config: object
    tables: Callable[[int], Tables] | None = None
    outside: float = 0.0
    items: int = 0


def fit(problem, config, locations, rows_at_once):
    """The :class:`Fit` of a ``configs.Window`` to a problem and its locations (B, Q, H, L, P, 2), NumPy.

    Windows become as large as shared memory allows; those of a ``configs.FittedWindow`` keep their size.
    ``rows_at_once``: rows that a warp adds up together. Any other locations give right results too; those
    that lie elsewhere take longer.
    """
    from .configs import SHARED_LIMIT, ConfigError  # it imports the kernels

    references = reference_points(problem, locations)
    away = np.sort(sample_offsets(problem, references, locations), axis=-1)
    given = getattr(config, "boxes", ())

    @functools.cache
    def offsets(kept):
        return tuple(quantile(away, q) for q in ((1 - kept) / 2, (1 + kept) / 2))

    def plan(cell):
        """The :class:`Plan` with the most samples for which there is room; None if there is for none."""
        grid = make_grid(problem, cell, references)

        def boxes(kept):
            return fit_boxes(problem, grid.size, *offsets(kept))

        def suits(kept):
            if given:
                return bool(np.less_equal(boxes(kept), given).all())
            whole = config.with_boxes(boxes(kept))
            return whole.dynamic_bytes(problem.constants) <= SHARED_LIMIT

        number = bisect.bisect_left(KEPT, True, key=suits)
        if number == len(KEPT):
            if not given:
                return None
            number -= 1  # they hold what they hold
        kept = KEPT[number]
        return Plan(cell, grid, kept, offsets(kept)[0], given or boxes(kept))

    if any(config.cell):
        best = plan(config.cell)
    else:
        plans = (plan(cell) for cell in itertools.product(CELL_SIDES, CELL_SIDES))
        best = min(
            filter(None, plans), key=lambda p: expected_work(problem, p, rows_at_once), default=None
        )
    if best is None:
        shown = "x".join(map(str, config.cell if any(config.cell) else CELL_SIDES[:1] * 2))
        raise ConfigError(
            "cell", shown, f"no windows of it fit into {SHARED_LIMIT} bytes; use smaller ones"
        )
    fitted = dataclasses.replace(config.with_boxes(best.boxes), cell=best.cell)
    cells, order, counts = make_cells(problem, best.grid, references)
    shifts = np.floor(best.low).astype(np.int32)

    def tables(blocks):
        schedule = make_schedule(counts, problem.batch, problem.heads, blocks, rows_at_once)
        return Tables(cells, shifts, order, schedule, np.zeros(2, np.uint32))

    cell_of = np.empty(problem.queries, np.int64)
    cell_of[order] = np.arange(len(order))[:, None]
    queries = some_queries(problem)
    some = np.asarray(locations[:, queries], np.float64)
    lost = outside(problem, fitted.boxes, cells[cell_of[queries]], shifts, some)
    return Fit(fitted, tables, lost, len(order) * problem.batch * problem.heads)


def finest_level(problem):
    """The number of the level with the most pixels."""
    return max(range(len(problem.levels)), key=lambda n: math.prod(problem.levels[n][:2]))


def reference_points(problem, locations):
    """(Q, 2) normalised; ``locations`` (B, Q, H, L, P, 2) are looked at only where queries are no pixels."""
    if problem.queries == sum(level.height * level.width for level in problem.levels):
        return pixel_centres(problem.levels, np.float64)
    finest = np.asarray(locations[:, :, :, finest_level(problem)], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a query may have no number at all
        # Minding NaN takes ten times as long.
        median = np.nanmedian if np.isnan(finest).any() else np.median
        middle = median(finest, axis=(0, 2, 3))
    return np.nan_to_num(middle, nan=0.5, posinf=1.0, neginf=0.0).clip(-0.5, 1.5)


def some_queries(problem, seed=0):
    """Sorted numbers of random queries, of which all batches together have about MEASURED_ROWS."""
    count = max(1, min(problem.queries, MEASURED_ROWS // problem.batch))
    return np.sort(np.random.default_rng(seed).choice(problem.queries, count, replace=False))


def _sizes(problem):
    return np.array([(level.width, level.height) for level in problem.levels], np.float64)


def sample_offsets(problem, references, locations):
    """(H, L, 2, n): pixels of each level from reference point to sample, for some queries."""
    queries = some_queries(problem)
    some = np.asarray(locations[:, queries], np.float64)  # (B, q, H, L, P, 2)
    away = (some - references[queries][:, None, None, None]) * _sizes(problem)[:, None]
    away = away.transpose(2, 3, 5, 0, 1, 4).reshape(*some.shape[2:4], 2, -1)
    return np.nan_to_num(away, posinf=0, neginf=0).clip(-FAR, FAR)


def quantile(ordered, q):
    """``np.quantile`` along the last axis, which is in order already: that is what takes it its time."""
    place = q * (ordered.shape[-1] - 1)
    below, above = ordered[..., math.floor(place)], ordered[..., math.ceil(place)]
    return below + (place - math.floor(place)) * (above - below)


def outside(problem, boxes, corners, shifts, locations):
    """Share of the samples (B, q, H, L, P, 2) that touch their level, and whose window does not hold them;
    ``corners`` (q, L, 2) are those of the queries' cells."""
    sizes = _sizes(problem).astype(np.int64)  # (L, 2) as (width, height)
    widths = np.array(boxes)[:, ::-1]
    first = corners[:, None] + shifts  # (q, H, L, 2)
    first = np.maximum(np.minimum(first, sizes + 1 - widths), -1)[None, :, :, :, None]
    with np.errstate(invalid="ignore"):
        pixel = np.floor(locations * sizes[:, None] - 0.5)
        touches = ((pixel >= -1) & (pixel < sizes[:, None])).all(axis=-1)
        held = ((pixel >= first) & (pixel < first + widths[:, None] - 1)).all(axis=-1)
    return float((touches & ~held).mean())


class Grid(NamedTuple):
    """Cells: where the first starts, their size, (x, y) in pixels of the finest level, and their number."""

    first: np.ndarray
    size: np.ndarray
    number: np.ndarray


def make_grid(problem, cell, references):
    """The :class:`Grid` of (height, width) ``cell`` over all (Q, 2) reference points."""
    finest = problem.levels[finest_level(problem)]
    pixels = references * (finest.width, finest.height)
    first, size = np.floor(pixels.min(axis=0)), np.array(cell[::-1])
    return Grid(first, size, ((pixels.max(axis=0) - first) // size).astype(np.int64) + 1)


class Plan(NamedTuple):
    """How a problem might be cut: cells of (height, width) ``cell`` pixels, windows that hold ``kept`` of the
    samples along each axis, the lower ends of the offsets."""

    cell: tuple[int, int]
    grid: Grid
    kept: float
    low: np.ndarray
    boxes: tuple


def expected_work(problem, plan, rows_at_once):
    """Cycles of an SM's data path for the problem, if all cells have as many rows (bench/NOTES.md)."""
    c = problem.constants
    cells = int(plan.grid.number.prod())
    pixel = c.channels * ITEMSIZE[c.dtype]
    rows = problem.queries / cells + rows_at_once / 2  # the last of a cell share a warp with nobody
    sample = 4 * pixel / LINE + PREPARED + (1 - plan.kept) * FAR_SHARE * FAR_WORK
    loads = sum(h * w for h, w in plan.boxes) * pixel / LINE
    items = cells * problem.batch * problem.heads
    return math.ceil(items / SMS) * (rows * (c.levels * c.points * sample + ROW) + loads)


def fit_boxes(problem, size, low, high):
    """((height, width) of each level's window for cells of a (width, height) ``size`` and offsets (H, L, 2)
    from low to high."""
    finest = problem.levels[finest_level(problem)]
    boxes = []
    for number, level in enumerate(problem.levels):
        box = []
        for axis, (pixels, whole) in enumerate(
            ((level.width, finest.width), (level.height, finest.height))
        ):
            reach = size[axis] * pixels / whole + (high - np.floor(low))[:, number, axis].max()
            # A window that covers its level, with a border of one, covers all.
            box.append(min(math.ceil(reach) + 2, pixels + 2, 256))
        width, height = box
        width += width % 2  # even: kernels/window.py
        boxes.append((max(height, 2), min(max(width, 2), 256)))
    return tuple(boxes)


def make_cells(problem, grid, references):
    """(corners (cells, L, 2), order (cells, slots), counts (cells,)) of the queries by their (Q, 2)
    reference points; see :class:`Tables`. Cells without queries are none."""
    finest = problem.levels[finest_level(problem)]
    pixels = references * (finest.width, finest.height)
    column, line = ((pixels - grid.first) // grid.size).astype(np.int64).T
    across = int(grid.number[0])
    number = line * across + column
    queries = np.argsort(number, kind="stable")
    found, starts, counts = np.unique(number[queries], return_index=True, return_counts=True)
    slots = np.minimum(np.arange(counts.max()), counts[:, None] - 1)
    order = queries[starts[:, None] + slots].astype(np.int32)
    # Where a cell starts, in shares of the finest level, and then in pixels of each.
    place = np.stack([found % across, found // across], -1) * grid.size + grid.first
    scale = _sizes(problem) / (finest.width, finest.height)
    corners = np.floor(place[:, None] * scale - 0.5).astype(np.int32)
    return np.ascontiguousarray(corners), order, counts.astype(np.int32)


def make_schedule(counts, batches, heads, blocks, rows_at_once):
    """The schedule of :class:`Tables` for cells of so many queries.

    It gives ``blocks`` blocks, which take items in turn, about the same work: large items first, and in each
    round the largest one for the block that has the least.
    """
    grid = np.indices((batches, heads, len(counts)), np.int32).reshape(3, -1)
    items = np.concatenate([grid, np.tile(counts, batches * heads)[None]]).T
    groups = (items[:, 3] + rows_at_once - 1) // rows_at_once
    by_size = np.argsort(-groups, kind="stable")
    work, rounds = np.zeros(blocks, np.int64), []
    for first in range(0, len(items), blocks):
        taken = by_size[first : first + blocks]
        idle = np.argsort(work, kind="stable")[: len(taken)]
        work[idle] += groups[taken]
        rounds.append(np.full(blocks, -1))
        rounds[-1][idle] = taken
    rounds = np.array(rounds)
    rounds = rounds[:, np.argsort(rounds[-1] < 0, kind="stable")]  # who has one more comes first
    items = items[rounds[rounds >= 0]]
    return np.ascontiguousarray(items, np.int32)

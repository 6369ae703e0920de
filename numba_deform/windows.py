"""Which queries go together, and which box of each level they need (for ``kernels/window.py``).

A query's *reference point* is where its samples are: in an encoder, where every pixel of every level is a
query, that pixel's centre; else the middle of its samples of the finest level. Queries are grouped into *cells*
by the rectangle of the finest level in which their reference point lies. The samples of a cell then lie in
the cell, moved and widened by the *offsets*: how far samples lie from their query's reference point, for each
head and level. They are measured on some rows of the locations, and the box of a level holds all but a few of
them: as many as shared memory allows.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .workload import pixel_centres

# Shares of the samples along each axis that the boxes should hold; the first that fits is taken.
KEPT = (
    0.999, 0.998, 0.996, 0.993, *(0.99 - 0.0025 * n for n in range(16)), 0.93, 0.9, 0.8, 0.6, 0.4, 0.2,
    0.1, 0.0,
)  # fmt: skip
MEASURED_ROWS = 4096
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

    def suit(boxes):
        if given:
            return np.less_equal(boxes, given).all()
        return config.with_boxes(boxes).dynamic_bytes(problem.constants) <= SHARED_LIMIT

    for kept in KEPT:
        low, high = (quantile(away, q) for q in ((1 - kept) / 2, (1 + kept) / 2))
        boxes = fit_boxes(problem, config.cell, low, high)
        if suit(boxes):
            break
    else:
        if not given:
            shown = "x".join(map(str, config.cell))
            raise ConfigError(
                "cell", shown, f"no windows of it fit into {SHARED_LIMIT} bytes; use smaller ones"
            )
    fitted = config.with_boxes(given or boxes)
    cells, order, counts = make_cells(problem, config.cell, references)
    shifts = np.floor(low).astype(np.int32)

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


def fit_boxes(problem, cell, low, high):
    """((height, width) of each level's window for a ``cell`` and offsets (H, L, 2) from low to high."""
    finest = problem.levels[finest_level(problem)]
    boxes = []
    for number, level in enumerate(problem.levels):
        box = []
        for axis, (size, whole, length) in enumerate(
            ((level.width, finest.width, cell[1]), (level.height, finest.height, cell[0]))
        ):
            reach = length * size / whole + (high - np.floor(low))[:, number, axis].max()
            # A window that covers its level, with a border of one, covers all.
            box.append(min(math.ceil(reach) + 2, size + 2, 256))
        width, height = box
        width += width % 2  # even: kernels/window.py
        boxes.append((max(height, 2), min(max(width, 2), 256)))
    return tuple(boxes)


def make_cells(problem, cell, references):
    """(corners (cells, L, 2), order (cells, slots), counts (cells,)) of the queries by their (Q, 2)
    reference points; see :class:`Tables`."""
    finest = problem.levels[finest_level(problem)]
    pixels = references * (finest.width, finest.height)
    first = np.floor(pixels.min(axis=0))
    column, line = ((pixels - first) // (cell[1], cell[0])).astype(np.int64).T
    across = int(column.max()) + 1
    number = line * across + column
    queries = np.argsort(number, kind="stable")
    found, starts, counts = np.unique(number[queries], return_index=True, return_counts=True)
    slots = np.minimum(np.arange(counts.max()), counts[:, None] - 1)
    order = queries[starts[:, None] + slots].astype(np.int32)
    # Where a cell starts, in shares of the finest level, and then in pixels of each.
    place = np.stack([found % across, found // across], -1) * (cell[1], cell[0]) + first
    scale = _sizes(problem) / (finest.width, finest.height)
    corners = np.floor(place[:, None] * scale - 0.5).astype(np.int32)
    return np.ascontiguousarray(corners), order, counts.astype(np.int32)


def make_schedule(counts, batches, heads, blocks, rows_at_once):
    """The schedule of :class:`Tables` for cells of so many queries.

    It gives ``blocks`` blocks, which take items in turn, about the same work: large ones first, and every
    other round from behind.
    """
    grid = np.indices((batches, heads, len(counts)), np.int32).reshape(3, -1)
    items = np.concatenate([grid, np.tile(counts, batches * heads)[None]]).T
    groups = (items[:, 3] + rows_at_once - 1) // rows_at_once
    items = items[np.argsort(-groups, kind="stable")]
    for first in range(blocks, len(items) - blocks + 1, 2 * blocks):
        items[first : first + blocks] = items[first : first + blocks][::-1].copy()
    return np.ascontiguousarray(items, np.int32)

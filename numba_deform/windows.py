"""Which queries go together, and which box of each level they need (for ``window``).

A query's *reference point* is where its samples are: in an encoder, where every pixel of every level is a query,
that pixel's centre; else the mean of its sampling locations. Queries are grouped into *cells* by the
rectangle of the finest level in which their reference point lies. The samples of a cell then lie in the cell,
moved and widened by the *offsets*: how far samples lie from their query's reference point, for each head and
level. They are measured on some rows of the locations, and the box of a level holds all but a few of them.
"""

import math
from dataclasses import dataclass

import numpy as np

KEPT = 0.996  # of the samples along each axis
MEASURED_ROWS = 4096


@dataclass(frozen=True, eq=False)
class Cells:
    """``order`` (cells, slots) int32: the queries of each cell, the last one repeated; ``table``
    (cells, 2 + 2L) int32: their number, 0, and x and y of every level's window before the head's shift."""

    order: np.ndarray
    table: np.ndarray


@dataclass(frozen=True)
class Offsets:
    """Pixels of each level between reference point and sample: ``low`` and ``high`` (H, L, 2)."""

    low: np.ndarray
    high: np.ndarray


def pixel_centres(levels):
    """(S, 2) normalised centres of all pixels of all levels, in order."""
    centres = []
    for level in levels:
        y, x = np.mgrid[: level.height, : level.width]
        centres.append(
            np.stack([(x + 0.5) / level.width, (y + 0.5) / level.height], -1).reshape(-1, 2)
        )
    return np.concatenate(centres)


def finest_level(problem):
    """The number of the level with the most pixels."""
    return max(range(len(problem.levels)), key=lambda n: math.prod(problem.levels[n][:2]))


def reference_points(problem, locations):
    """(Q, 2) normalised; ``locations`` (B, Q, H, L, P, 2) are looked at only where queries are no pixels."""
    if problem.queries == sum(level.height * level.width for level in problem.levels):
        return pixel_centres(problem.levels)
    finest = np.asarray(locations[:, :, :, finest_level(problem)], np.float32)
    middle = np.median(finest, axis=(0, 2, 3))
    return np.nan_to_num(middle, nan=0.5, posinf=1.0, neginf=0.0).clip(-0.5, 1.5)


def measure_offsets(problem, references, locations, seed=0):
    """:class:`Offsets` that hold KEPT of the samples of some random queries along each axis."""
    rng = np.random.default_rng(seed)
    count = max(1, min(problem.queries, MEASURED_ROWS // problem.batch))
    queries = np.sort(rng.choice(problem.queries, count, replace=False))
    sizes = np.array([(level.width, level.height) for level in problem.levels], np.float64)
    some = np.asarray(locations[:, queries], np.float64)  # (B, q, H, L, P, 2)
    away = (some - references[queries][None, :, None, None, None]) * sizes[:, None]
    away = np.nan_to_num(away.transpose(2, 3, 5, 0, 1, 4).reshape(*some.shape[2:4], 2, -1))
    rest = (1 - KEPT) / 2
    return Offsets(*(np.quantile(away, q, axis=-1) for q in (rest, 1 - rest)))


def fit_boxes(problem, cell, offsets):
    """((height, width) of each level's window for a ``cell`` of (height, width) pixels of the finest level."""
    finest = problem.levels[finest_level(problem)]
    boxes = []
    for number, level in enumerate(problem.levels):
        box = []
        for axis, (size, whole, length) in enumerate(
            ((level.width, finest.width, cell[1]), (level.height, finest.height, cell[0]))
        ):
            low, high = offsets.low[:, number, axis], offsets.high[:, number, axis]
            reach = length * size / whole + float((high - np.floor(low)).max())
            box.append(math.ceil(reach) + 2)
        width, height = box
        boxes.append((min(height, 256), min(width + width % 2, 256)))  # even: see kernels/window.py
    return tuple(boxes)


def make_cells(problem, cell, references):
    """:class:`Cells` of the queries by their (Q, 2) reference points."""
    finest = problem.levels[finest_level(problem)]
    pixels = references * (finest.width, finest.height)
    corner = np.floor(pixels.min(axis=0))
    column, line = ((pixels - corner) // (cell[1], cell[0])).astype(np.int64).T
    across = int(column.max()) + 1
    number = line * across + column
    order = np.argsort(number, kind="stable")
    found, counts = np.unique(number, return_counts=True)
    slots = int(counts.max())
    rows = np.empty((len(found), slots), np.int32)
    table = np.zeros((len(found), 2 + 2 * len(problem.levels)), np.int32)
    first = 0
    for i, (which, count) in enumerate(zip(found, counts, strict=True)):
        rows[i, :count] = order[first : first + count]
        rows[i, count:] = rows[i, count - 1]
        first += count
        table[i, 0] = count
        for n, level in enumerate(problem.levels):
            x = (corner[0] + (which % across) * cell[1]) * level.width / finest.width
            y = (corner[1] + (which // across) * cell[0]) * level.height / finest.height
            table[i, 2 + 2 * n : 4 + 2 * n] = math.floor(x - 0.5), math.floor(y - 0.5)
    return Cells(rows, table)


def head_shifts(offsets):
    """(H, L, 2) int32: what each head adds to a window's corner."""
    return np.floor(offsets.low).astype(np.int32)


def make_schedule(cells, batches, heads, blocks, rows_at_once):
    """All items (batch, head, cell, queries of the cell) int32, in an order that gives ``blocks`` blocks, which
    take them in turn, about the same work: large items first, and every other round from behind."""
    counts = cells.table[:, 0]
    grid = np.indices((batches, heads, len(counts)), np.int32).reshape(3, -1)
    items = np.concatenate([grid, np.tile(counts, batches * heads)[None]]).T
    items = items[np.argsort(-(-(-items[:, 3] // rows_at_once)), kind="stable")]
    for first in range(blocks, len(items) - blocks + 1, 2 * blocks):
        items[first : first + blocks] = items[first : first + blocks][::-1].copy()
    return np.ascontiguousarray(items, np.int32)

"""Which queries go together, and which box of each level they need (for ``kernels/window.py``).

A query's *reference point* is where its samples are: in an encoder, where every pixel of every level is a
query, that pixel's centre; else the middle of its samples of the finest level. Queries are grouped into *cells*
by the rectangle of the finest level in which their reference point lies. The samples of a cell then lie in
the cell, moved and widened by the *offsets*: how far samples lie from their query's reference point, for each
head and level. They are measured on some rows of the locations. A cell's windows start as those that hold most
samples, and grow where that saves the most samples for a byte, while it pays and shared memory has room. Larger
cells load fewer bytes for each query, and leave less room around them; where their size is left open, it is the
one from which the least work is expected.
"""

import bisect
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..device.limits import SHARED_LIMIT
from .problem import ITEMSIZE, pixel_centres

# Shares of the samples along each axis that the boxes should hold; the first for which there is room is the
# first guess for a cell.
KEPT = (
    0.999, 0.998, 0.996, 0.993, *(0.99 - 0.0025 * n for n in range(16)), 0.93, 0.9, 0.8, 0.6, 0.4, 0.2,
    0.1, 0.0,
)  # fmt: skip
SIDES = (6, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20)
# Heights and widths of cells that are weighed, in pixels.
CELLS = [(h, w) for h in SIDES for w in SIDES if max(h, w) <= 1.5 * min(h, w)]
MEASURED_ROWS, MEASURED_BATCHES = 4096, 8
GROWN_FROM = 0.9  # the share along each axis that windows hold before they grow
AXIS_SHARE = 0.03  # of the samples that are not kept along an axis, how many no window holds, about
REFINED = 4  # plans whose windows grow before one is chosen
# What a problem's work is estimated from: cycles of an SM, fitted to measured times (bench/NOTES.md).
LINE = 128  # bytes that shared memory delivers in a cycle
PREPARED = 0.05  # for a sample, beside its pixels
ROW = 16.5  # for a row
OUTSIDE_WORK = 150.0  # for a sample outside, where they are few; auto.py is more careful
LATENCY = 1100.0  # until the first bytes of a cell's windows come
RATE = 60.0  # bytes of them in a cycle
SMS = 132  # of an H100 or H200: with others the choice is less good
FAR = 1000.0  # pixels: farther offsets are as good as none


class Tables(NamedTuple):
    """What the kernel has beside the operands; int32, and the counts uint32.

    order     (cells, slots): the queries of each cell, the last one repeated
    schedule  (items, 4): batch, head, cell and number of queries, in the order in which blocks take them
    corners   (items, L, 4): x and y of each level's window, and the level's width and height
    counts    (2,): samples that no window held, and launches, both modulo 2^32; a launch adds to them
    """

    order: np.ndarray
    schedule: np.ndarray
    corners: np.ndarray
    counts: np.ndarray

    def operands(self):
        """The kernel's operands by the names of its parameters."""
        return {**self._asdict(), "items": self.schedule.shape[0], "slots": self.order.shape[1]}


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

    Windows grow as far as it pays and shared memory allows; those of a ``configs.FittedWindow`` keep their
    size. ``rows_at_once``: rows that a warp adds up together. Any other locations give right results too; those
    that lie elsewhere take longer.
    """
    from .problem import ConfigError

    references = reference_points(problem, locations)
    batches, queries = some_rows(problem)
    some = np.asarray(locations[batches[:, None], queries], np.float64)
    away = np.sort(sample_offsets(problem, references[queries], some), axis=-1)
    samples = level_samples(problem, some)
    given = getattr(config, "boxes", ())

    @functools.cache
    def offsets(kept):
        return tuple(quantile(away, q) for q in ((1 - kept) / 2, (1 + kept) / 2))

    def has_room(boxes):
        if given:
            return bool(np.less_equal(boxes, given).all())
        return config.with_boxes(boxes).dynamic_bytes(problem.constants) <= SHARED_LIMIT

    def plan(cell):
        """The first :class:`Plan`, with the most samples for which there is room; None if there is for none."""
        grid = make_grid(problem, cell, references)

        def boxes(kept):
            return fit_boxes(problem, grid.size, *offsets(kept))

        number = bisect.bisect_left(KEPT, True, key=lambda kept: has_room(boxes(kept)))
        if number == len(KEPT) and not given:
            return None
        kept = KEPT[min(number, len(KEPT) - 1)]  # windows of a given size hold what they hold
        return Plan(cell, grid, kept, given or boxes(kept), (1 - kept) * AXIS_SHARE)

    def refine(rough):
        """The :class:`Plan` with windows that started small and grew; given ones are put where those are."""
        grid = rough.grid
        low, high = offsets(min(GROWN_FROM, rough.kept))
        shifts, boxes = np.floor(low), fit_boxes(problem, grid.size, low, high)
        if given:
            boxes = tuple(map(tuple, np.minimum(boxes, given).tolist()))
        corners = cell_corners(problem, grid, grid.cell_of(problem, references[queries]))
        levels = level_windows(problem, boxes, corners[:, None] + shifts, samples)
        worth = 0 if given else samples_worth(problem, grid, len(batches) * len(queries))
        grow(levels, worth, has_room)
        shifts = shifts + np.array([level.shift for level in levels])
        if given:
            boxes = given
            levels = level_windows(problem, given, corners[:, None] + shifts, samples)
        else:
            boxes = tuple(level.box for level in levels)
        lost = sum(level.lost for level in levels) / some[..., 0].size
        return rough._replace(boxes=boxes, outside=lost, shifts=shifts)

    if any(config.cell):
        plans = [plan(config.cell)]
    else:
        plans = [plan(cell) for cell in CELLS]

    def work(plan):
        return expected_work(problem, plan, references, rows_at_once)

    plans = sorted(filter(None, plans), key=work)[:REFINED]
    best = min(map(refine, plans), key=work, default=None)
    if best is None:
        shown = "x".join(map(str, config.cell if any(config.cell) else CELLS[0]))
        raise ConfigError(
            "cell", shown, f"no windows of it fit into {SHARED_LIMIT} bytes; use smaller ones"
        )
    fitted = dataclasses.replace(config.with_boxes(best.boxes), cell=best.cell)
    cells, order, counts = make_cells(problem, best.grid, references)
    costs = cell_costs(problem, counts, best.boxes, rows_at_once)

    def tables(blocks):
        schedule = make_schedule(counts, costs, problem.batch, problem.heads, blocks)
        _, head, cell, _ = schedule.T
        sizes = _sizes(problem)
        corners = moved_inside(cells[cell] + best.shifts[head], sizes, best.boxes)
        corners = np.concatenate([corners, np.broadcast_to(sizes, corners.shape)], axis=-1)
        return Tables(order, schedule, corners.astype(np.int32), np.zeros(2, np.uint32))

    return Fit(fitted, tables, best.outside, len(order) * problem.batch * problem.heads)


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


def some_rows(problem, seed=0):
    """(batches, queries), sorted and random, that have about MEASURED_ROWS rows together."""
    rng = np.random.default_rng(seed)
    batches = min(problem.batch, MEASURED_BATCHES, MEASURED_ROWS)
    queries = min(problem.queries, MEASURED_ROWS // batches)
    return tuple(
        np.sort(rng.choice(number, count, replace=False))
        for number, count in ((problem.batch, batches), (problem.queries, queries))
    )


def _finest_size(problem):
    finest = problem.levels[finest_level(problem)]
    return np.array((finest.width, finest.height), np.float64)


def _sizes(problem):
    return np.array([(level.width, level.height) for level in problem.levels], np.float64)


def sample_offsets(problem, references, locations):
    """(H, L, 2, n): pixels of each level from the reference points (q, 2) to the samples (b, q, H, L, P, 2)."""
    away = (locations - references[:, None, None, None]) * _sizes(problem)[:, None]
    away = away.transpose(2, 3, 5, 0, 1, 4).reshape(*locations.shape[2:4], 2, -1)
    return np.nan_to_num(away, posinf=0, neginf=0).clip(-FAR, FAR)


def quantile(ordered, q):
    """``np.quantile`` along the last axis, which is in order already: that is what takes it its time."""
    place = q * (ordered.shape[-1] - 1)
    below, above = ordered[..., math.floor(place)], ordered[..., math.ceil(place)]
    return below + (place - math.floor(place)) * (above - below)


def moved_inside(corners, sizes, boxes):
    """``corners`` (x, y) of windows, no farther outside their levels of ``sizes`` (width, height) than they
    need be: none starts before -1, nor ends beyond the pixel after the last one if it may start earlier."""
    return np.maximum(np.minimum(corners, sizes + 1 - np.array(boxes)[..., ::-1]), -1)


class LevelSamples(NamedTuple):
    """Which samples (b, q, H, P) touch a level, and the lower corners of their tiles, (x, y) pixels (n, 2)."""

    touches: np.ndarray
    tiles: np.ndarray


def level_samples(problem, locations):
    """The :class:`LevelSamples` of each level for locations (b, q, H, L, P, 2)."""
    found = []
    for number, size in enumerate(_sizes(problem)):
        with np.errstate(invalid="ignore"):
            tiles = np.floor(locations[:, :, :, number] * size - 0.5)
            touches = ((tiles >= -1) & (tiles < size)).all(axis=-1)
        found.append(LevelSamples(touches, tiles[touches]))
    return found


class Offer(NamedTuple):
    """A larger window: samples that it saves for each byte more, its shift and box, and which of the samples
    that were lost still are."""

    rate: float
    shift: np.ndarray | None = None
    box: tuple[int, int] | None = None
    lost: np.ndarray | None = None


class LevelWindow:
    """The window of one level: ``box`` (height, width), ``shift`` (x, y) from its cells' corners, and how many
    samples that touch the level it does not hold, ``lost``.

    ``corners`` (q, H, 2) are those of some queries' windows, ``samples`` their :class:`LevelSamples`.
    """

    MOVES = tuple(
        (left * step, top * step, wider * step, higher * step)
        for step in (1, 2, 4)
        for left, top, wider, higher in (
            (0, 0, 2, 0), (-2, 0, 2, 0), (-1, 0, 2, 0), (0, 0, 0, 1), (0, -1, 0, 1)
        )
    )  # fmt: skip
    """What a window may grow by: left, top, width (even: kernels/window.py) and height."""

    def __init__(self, problem, number, box, corners, samples):
        level = problem.levels[number]
        self.size = np.array((level.width, level.height))
        self.limit = np.minimum(self.size + 2 + self.size % 2 * (1, 0), 256)  # it covers the level
        self.pixel = problem.constants.channels * ITEMSIZE[problem.constants.dtype]
        self.box, self.shift = box, np.zeros(2)
        self.tiles = samples.tiles
        shape = (*samples.touches.shape, 2)
        self.corners = np.broadcast_to(corners[None, :, :, None], shape)[samples.touches]
        self._look_only_at(~self._holds(self.shift, box))

    @property
    def lost(self):
        return len(self.tiles)

    def best_offer(self):
        """The :class:`Offer` with the highest rate; one of nothing, if the window can not grow."""
        return max(self._offers(), key=lambda offer: offer.rate, default=Offer(0.0))

    def take(self, offer):
        self.shift, self.box = offer.shift, offer.box
        self._look_only_at(offer.lost)  # a larger window holds what a smaller one does

    def _look_only_at(self, which):
        self.tiles, self.corners = self.tiles[which], self.corners[which]

    def _holds(self, shift, box):
        width = np.array(box[::-1])
        first = moved_inside(self.corners + shift, self.size, box)
        return ((self.tiles >= first) & (self.tiles < first + width - 1)).all(axis=-1)

    def _offers(self):
        height, width = self.box
        for left, top, wider, higher in self.MOVES:
            box = (height + higher, width + wider)
            if (np.array(box[::-1]) > self.limit).any():
                continue
            shift = self.shift + (left, top)
            lost = ~self._holds(shift, box)
            more = (box[0] * box[1] - height * width) * self.pixel
            yield Offer((self.lost - int(lost.sum())) / more, shift, box, lost)


def level_windows(problem, boxes, corners, samples):
    """The :class:`LevelWindow` of each level, for the ``corners`` (q, H, L, 2) of some queries' windows and
    the queries' :class:`LevelSamples`."""
    return [
        LevelWindow(problem, number, box, corners[:, :, number], samples[number])
        for number, box in enumerate(boxes)
    ]


def grow(levels, worth, has_room):
    """Let each :class:`LevelWindow` grow where that saves the most samples for a byte, while those are more
    than ``worth``, and ``has_room(boxes)``."""
    offers = {level: level.best_offer() for level in levels}
    while offers:
        level = max(offers, key=lambda level: offers[level].rate)
        offer = offers[level]
        if offer.rate <= worth:
            return
        if has_room(tuple(offer.box if other is level else other.box for other in levels)):
            level.take(offer)
            offers[level] = level.best_offer()
        else:
            del offers[level]


class Grid(NamedTuple):
    """Cells: where the first starts, their size, (x, y) in pixels of the finest level, and their number."""

    first: np.ndarray
    size: np.ndarray
    number: np.ndarray

    def cell_of(self, problem, references):
        """Numbers of the cells of (q, 2) reference points, line by line."""
        pixels = references * _finest_size(problem)
        column, line = ((pixels - self.first) // self.size).astype(np.int64).T
        return line * self.number[0] + column


def cell_corners(problem, grid, numbers):
    """(n, L, 2): where cells with these numbers start, in pixels of each level; int32."""
    line, column = np.divmod(numbers, grid.number[0])
    # In pixels of the finest level, and then of each.
    place = np.stack([column, line], -1) * grid.size + grid.first
    scale = _sizes(problem) / _finest_size(problem)
    return np.floor(place[:, None] * scale - 0.5).astype(np.int32)


def make_grid(problem, cell, references):
    """The :class:`Grid` of (height, width) ``cell`` over all (Q, 2) reference points."""
    pixels = references * _finest_size(problem)
    first, size = np.floor(pixels.min(axis=0)), np.array(cell[::-1])
    return Grid(first, size, ((pixels.max(axis=0) - first) // size).astype(np.int64) + 1)


class Plan(NamedTuple):
    """How a problem might be cut: cells of (height, width) ``cell`` pixels, the share of the samples along an
    axis for which there is room, a window for each level, the share ``outside``, at first a guess, and, when
    that is none any more, what is added to a cell's corners (H, L, 2)."""

    cell: tuple[int, int]
    grid: Grid
    kept: float
    boxes: tuple
    outside: float
    shifts: np.ndarray | None = None


def cell_costs(problem, counts, boxes, rows_at_once):
    """Cycles of an SM for cells of so many rows. The next cell's windows come at the same time: the longer that
    takes, the more often somebody waits for them."""
    c = problem.constants
    pixel = c.channels * ITEMSIZE[c.dtype]
    row = c.levels * c.points * (4 * pixel / LINE + PREPARED) + ROW
    work = -(-counts // rows_at_once) * rows_at_once * row
    load = LATENCY + sum(height * width for height, width in boxes) * pixel / RATE
    return np.hypot(work, load)


def samples_worth(problem, grid, measured):
    """Samples of ``measured`` (batch, query) for each byte of a window, from which on it pays to hold them: to
    write the byte takes a cell 1 / LINE cycles, the samples OUTSIDE_WORK each."""
    rows = problem.queries / grid.number.prod()  # of a cell
    return measured * problem.heads / rows / LINE / OUTSIDE_WORK


def expected_work(problem, plan, references, rows_at_once):
    """Cycles of the SM that has most to do."""
    counts = np.bincount(plan.grid.cell_of(problem, references))
    costs = cell_costs(problem, counts[counts > 0], plan.boxes, rows_at_once)
    work = deal(np.tile(costs, problem.batch * problem.heads), SMS)[1]
    return work.max() + problem.samples * plan.outside * OUTSIDE_WORK / SMS


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
    number = grid.cell_of(problem, references)
    queries = np.argsort(number, kind="stable")
    found, starts, counts = np.unique(number[queries], return_index=True, return_counts=True)
    slots = np.minimum(np.arange(counts.max()), counts[:, None] - 1)
    order = queries[starts[:, None] + slots].astype(np.int32)
    corners = cell_corners(problem, grid, found)
    return np.ascontiguousarray(corners), order, counts.astype(np.int32)


def deal(costs, blocks):
    """(rounds (r, blocks) of item numbers, or -1; what each block's items cost in all).

    Dear items first, and in each round the dearest for the block that has the least.
    """
    by_cost = np.argsort(-costs, kind="stable")
    work, rounds = np.zeros(blocks), []
    for first in range(0, len(costs), blocks):
        taken = by_cost[first : first + blocks]
        idle = np.argsort(work, kind="stable")[: len(taken)]
        work[idle] += costs[taken]
        rounds.append(np.full(blocks, -1))
        rounds[-1][idle] = taken
    return np.array(rounds), work


def make_schedule(counts, costs, batches, heads, blocks):
    """The schedule of :class:`Tables` for cells with so many queries and such costs: the items are dealt to
    ``blocks`` blocks, which take them in turn."""
    grid = np.indices((batches, heads, len(counts)), np.int32).reshape(3, -1)
    items = np.concatenate([grid, np.tile(counts, batches * heads)[None]]).T
    rounds, _ = deal(np.tile(costs, batches * heads), blocks)
    rounds = rounds[:, np.argsort(rounds[-1] < 0, kind="stable")]  # who has one more comes first
    items = items[rounds[rounds >= 0]]
    return np.ascontiguousarray(items, np.int32)

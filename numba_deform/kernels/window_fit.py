"""Which queries go together, and which box of each level they need (for ``kernels/window.py``).

A query's *reference point* is where its samples are: in an encoder, where every pixel of every level is a
query, that pixel's centre; else the middle of its samples of the finest level. Queries are grouped into *cells*
by the rectangle of the finest level in which it lies. The samples of a cell then lie in the cell, moved and
widened by the *offsets* from reference points, for each head and level, which are measured on some rows. A
cell's windows start as those that hold most samples, and grow while it pays and shared memory has room. Larger
cells load fewer bytes for each query, and leave less room around them; a size left open is chosen for the least
expected work.
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

from ..device.limits import SHARED_LIMIT, SMS
from .problem import ITEMSIZE, ConfigError, pixel_centres

# Shares of the samples along each axis that the boxes should hold; the first for which there is room is the
# first guess for a cell.
KEPT = (0.999, 0.998, 0.996, 0.993, *(0.99 - 0.0025 * n for n in range(16)), 0.93, 0.9,
        0.8, 0.6, 0.4, 0.2, 0.1, 0.0)  # fmt: skip
SIDES = (6, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20)
# Heights and widths of cells that are weighed, in pixels.
CELLS = [(h, w) for h in SIDES for w in SIDES if max(h, w) <= 1.5 * min(h, w)]
MEASURED_ROWS, MEASURED_BATCHES = 4096, 8
GROWN_FROM = 0.9  # the share along each axis that windows hold before they grow
AXIS_SHARE = 0.03  # of the samples that are not kept along an axis, how many no window holds, about
REFINED = 4  # plans whose windows grow before one is chosen
# What a problem's work is estimated from: cycles of an SM, fitted to measured times (bench/NOTES.md); with
# another number of SMs than SMS the choice is less good.
LINE = 128  # bytes that shared memory delivers in a cycle
PREPARED = 0.05  # for a sample, beside its pixels
ROW = 16.5  # for a row
OUTSIDE_WORK = 150.0  # for a sample outside, where they are few; auto.py is more careful
LATENCY = 1100.0  # until the first bytes of a cell's windows come
RATE = 60.0  # bytes of them in a cycle
FAR = 1000.0  # pixels: farther offsets are as good as none


class Tables(NamedTuple):
    """What the kernel has beside the operands; int32, and the counts uint32."""

    order: np.ndarray  # (cells, slots): the queries of each cell, the last one repeated
    schedule: np.ndarray  # (items, 4): batch, head, cell and queries, in the order in which blocks take them
    corners: np.ndarray  # (items, L, 4): x and y of each level's window, and the level's width and height
    counts: np.ndarray  # (2,) samples that no window held, launches, modulo 2^32; a launch adds to them

    def operands(self):
        """The kernel's operands by the names of its parameters."""
        return {**self._asdict(), "items": self.schedule.shape[0], "slots": self.order.shape[1]}


@dataclass(frozen=True, eq=False)
class Fit:
    """A configuration fitted to a problem."""

    config: object  # with boxes
    tables: Callable[[int], Tables] | None = None  # from a number of blocks to the tables for them
    outside: float = 0.0  # share of the samples that no window holds, of some queries
    items: int = 0  # in the schedule


def fit(problem, config, locations, rows_at_once):
    """The :class:`Fit` of a ``Window`` to a problem and its locations (B, Q, H, L, P, 2), NumPy.

    Windows grow as far as it pays and shared memory allows; those of a ``FittedWindow`` keep their size.
    ``rows_at_once``: rows that a warp adds up together. Any other locations give right results too; those
    that lie elsewhere take longer. Raises ConfigError where no windows of the cell fit into shared memory.
    """
    measured = measure(problem, locations)

    def work(plan):
        return expected_work(problem, plan, measured.references, rows_at_once)

    cells = [config.cell] if any(config.cell) else CELLS
    plans = filter(None, (first_plan(problem, config, measured, cell) for cell in cells))
    plans = sorted(plans, key=work)[:REFINED]
    if not plans:
        rule = f"no windows of it fit into {SHARED_LIMIT} bytes; use smaller ones"
        raise ConfigError("cell", "x".join(map(str, cells[0])), rule)
    best = min((grown_plan(problem, config, measured, plan) for plan in plans), key=work)
    fitted = dataclasses.replace(config.with_boxes(best.boxes), cell=best.cell)
    cells = make_cells(problem, best.grid, measured.references)
    costs = cell_costs(problem, cells.counts, best.boxes, rows_at_once)
    tables = functools.partial(make_tables, problem, best, cells, costs)
    return Fit(fitted, tables, best.outside, len(cells.order) * problem.batch * problem.heads)


class Measured(NamedTuple):
    """Where the samples of a problem are, and what was measured on some rows: those of some queries in some
    batches."""

    references: np.ndarray  # (Q, 2), of all queries
    batches: int  # how many were measured
    some: np.ndarray  # (q, 2): reference points of the queries that were
    away: np.ndarray  # (H, L, 2, n): offsets of their samples, in order along each axis
    samples: list  # the LevelSamples of each level

    def offsets(self, kept):
        """(low, high), both (H, L, 2): between them is the share ``kept`` of the offsets along each axis."""
        return quantile(self.away, (1 - kept) / 2), quantile(self.away, (1 + kept) / 2)


def measure(problem, locations):
    """The :class:`Measured` of locations (B, Q, H, L, P, 2)."""
    references = reference_points(problem, locations)
    batches, queries = some_rows(problem)
    some = np.asarray(locations[batches[:, None], queries], np.float64)
    away = np.sort(sample_offsets(problem, references[queries], some), axis=-1)
    samples = level_samples(problem, some)
    return Measured(references, len(batches), references[queries], away, samples)


def has_room(problem, config, boxes):
    """Whether a block has room for such windows; where their size is given, whether that is no smaller."""
    if config.boxes:
        return bool(np.less_equal(boxes, config.boxes).all())
    return config.with_boxes(boxes).dynamic_bytes(problem.constants) <= SHARED_LIMIT


def first_plan(problem, config, measured, cell):
    """The :class:`Plan` for a cell with the most samples for which there is room; None if there is for none."""
    grid = make_grid(problem, cell, measured.references)

    def boxes(kept):
        return fit_boxes(problem, grid.size, *measured.offsets(kept))

    number = bisect.bisect_left(KEPT, True, key=lambda kept: has_room(problem, config, boxes(kept)))
    if number == len(KEPT) and not config.boxes:
        return None
    kept = KEPT[min(number, len(KEPT) - 1)]  # windows of a given size hold what they hold
    return Plan(cell, grid, kept, config.boxes or boxes(kept), (1 - kept) * AXIS_SHARE)


def grown_plan(problem, config, measured, plan):
    """The plan with windows that started small and grew; those of a given size are put where these are."""
    low, high = measured.offsets(min(GROWN_FROM, plan.kept))
    shifts, boxes = np.floor(low), fit_boxes(problem, plan.grid.size, low, high)
    if config.boxes:
        boxes = tuple(map(tuple, np.minimum(boxes, config.boxes).tolist()))
    cells = plan.grid.cell_of(problem, measured.some)
    corners = cell_corners(problem, plan.grid, cells)[:, None]
    levels = level_windows(problem, boxes, corners + shifts, measured.samples)
    rows = measured.batches * len(measured.some)
    worth = 0 if config.boxes else samples_worth(problem, plan.grid, rows)
    grow(levels, worth, functools.partial(has_room, problem, config))
    shifts = shifts + np.array([level.shift for level in levels])
    if config.boxes:
        levels = level_windows(problem, config.boxes, corners + shifts, measured.samples)
    lost = sum(level.lost for level in levels) / (measured.away.size // 2)
    return plan._replace(boxes=tuple(level.box for level in levels), outside=lost, shifts=shifts)


def make_tables(problem, plan, cells, costs, blocks):
    """The :class:`Tables` of a plan for so many blocks; ``cells`` are its :class:`Cells`, with such costs."""
    schedule = make_schedule(cells.counts, costs, problem.batch, problem.heads, blocks)
    _, head, cell, _ = schedule.T
    sizes = _sizes(problem)
    corners = moved_inside(cells.corners[cell] + plan.shifts[head], sizes, plan.boxes)
    corners = np.concatenate([corners, np.broadcast_to(sizes, corners.shape)], axis=-1)
    return Tables(cells.order, schedule, corners.astype(np.int32), np.zeros(2, np.uint32))


# --- where samples are ------------------------------------------------------------------------------
def finest_level(problem):
    """The number of the level with the most pixels."""
    return max(range(len(problem.levels)), key=lambda n: math.prod(problem.levels[n][:2]))


def reference_points(problem, locations):
    """(Q, 2) normalised; ``locations`` (B, Q, H, L, P, 2) are looked at only where queries are no pixels."""
    if problem.queries == sum(level.height * level.width for level in problem.levels):
        return pixel_centres(problem.levels, np.float64)
    finest = np.asarray(locations[:, :, :, finest_level(problem)], np.float32)
    median = np.nanmedian if np.isnan(finest).any() else np.median  # minding NaN takes ten times as long
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a query may have no number at all
        middle = median(finest, axis=(0, 2, 3))
    return np.nan_to_num(middle, nan=0.5, posinf=1.0, neginf=0.0).clip(-0.5, 1.5)


def some_rows(problem, seed=0):
    """(batches, queries), sorted and random, that have about MEASURED_ROWS rows together."""
    rng = np.random.default_rng(seed)
    batches = min(problem.batch, MEASURED_BATCHES, MEASURED_ROWS)
    queries = min(problem.queries, MEASURED_ROWS // batches)
    wanted = (problem.batch, batches), (problem.queries, queries)
    return tuple(np.sort(rng.choice(*numbers, replace=False)) for numbers in wanted)


def _sizes(problem):
    return np.array([(level.width, level.height) for level in problem.levels], np.float64)


def _finest_size(problem):
    return _sizes(problem)[finest_level(problem)]


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


# --- windows that grow --------------------------------------------------------------------------------
class LevelSamples(NamedTuple):
    """Which samples (b, q, H, P) touch a level, and the lower corners of their tiles, (x, y) pixels (n, 2)."""

    touches: np.ndarray
    tiles: np.ndarray


def level_samples(problem, locations):
    """The :class:`LevelSamples` of each level for locations (b, q, H, L, P, 2)."""
    samples = []
    for number, size in enumerate(_sizes(problem)):
        with np.errstate(invalid="ignore"):
            tiles = np.floor(locations[:, :, :, number] * size - 0.5)
            touches = ((tiles >= -1) & (tiles < size)).all(axis=-1)
        samples.append(LevelSamples(touches, tiles[touches]))
    return samples


class Offer(NamedTuple):
    """A larger window."""

    rate: float  # samples that it saves for each byte more
    shift: np.ndarray | None = None
    box: tuple[int, int] | None = None
    lost: np.ndarray | None = None  # which of the samples that were lost still are


class LevelWindow:
    """The window of one level: ``box`` (height, width), ``shift`` (x, y) from its cells' corners, and how many
    samples that touch the level it does not hold, ``lost``.

    ``corners`` (q, H, 2) are those of some queries' windows, ``samples`` their :class:`LevelSamples`.
    """

    _MOVES = ((0, 0, 2, 0), (-2, 0, 2, 0), (-1, 0, 2, 0), (0, 0, 0, 1), (0, -1, 0, 1))
    MOVES = np.multiply.outer((1, 2, 4), _MOVES).reshape(-1, 4).tolist()
    """What a window may grow by: left, top, width (even) and height."""

    def __init__(self, problem, number, box, corners, samples):
        self.size = _sizes(problem)[number]
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
    return [LevelWindow(problem, n, box, corners[:, :, n], samples[n]) for n, box in enumerate(boxes)]


def grow(levels, worth, has_room):
    """Let each window grow where that saves the most samples for a byte, while those are more than ``worth``,
    and ``has_room(boxes)``."""
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


# --- cells, and what they cost ----------------------------------------------------------------------
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
    place = np.stack([column, line], -1) * grid.size + grid.first  # in pixels of the finest level
    scale = _sizes(problem) / _finest_size(problem)
    return np.floor(place[:, None] * scale - 0.5).astype(np.int32)


def make_grid(problem, cell, references):
    """The :class:`Grid` of (height, width) ``cell`` over all (Q, 2) reference points."""
    pixels = references * _finest_size(problem)
    first, size = np.floor(pixels.min(axis=0)), np.array(cell[::-1])
    return Grid(first, size, ((pixels.max(axis=0) - first) // size).astype(np.int64) + 1)


class Plan(NamedTuple):
    """How a problem might be cut."""

    cell: tuple[int, int]  # height and width in pixels
    grid: Grid
    kept: float  # the share of the samples along an axis for which there is room
    boxes: tuple  # of each level's window
    outside: float  # the share outside, a guess until the windows have grown
    shifts: np.ndarray | None = None  # what is then added to a cell's corners, (H, L, 2)


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
    sizes = _sizes(problem)
    reach = size * sizes / _finest_size(problem) + (high - np.floor(low)).max(axis=0)
    # A window that covers its level, with a border of one, covers all; a width is even (kernels/window.py).
    width, height = np.minimum(np.ceil(reach) + 2, sizes + 2).astype(int).T
    return tuple(zip(height.clip(2, 256).tolist(), (width + width % 2).clip(2, 256).tolist(), strict=True))


class Cells(NamedTuple):
    """Cells with queries."""

    corners: np.ndarray  # (cells, L, 2)
    order: np.ndarray  # (cells, slots), as in Tables
    counts: np.ndarray  # (cells,): how many queries each has


def make_cells(problem, grid, references):
    """The :class:`Cells` of the queries by their (Q, 2) reference points."""
    number = grid.cell_of(problem, references)
    queries = np.argsort(number, kind="stable")
    numbers, starts, counts = np.unique(number[queries], return_index=True, return_counts=True)
    slots = np.minimum(np.arange(counts.max()), counts[:, None] - 1)
    order = queries[starts[:, None] + slots].astype(np.int32)
    return Cells(cell_corners(problem, grid, numbers), order, counts.astype(np.int32))


def deal(costs, blocks):
    """(rounds (r, blocks) of item numbers, or -1; what each block's items cost in all): dear items first, and
    in each round the dearest for the block that has the least."""
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
    items = np.vstack([grid, np.tile(counts, batches * heads)]).T
    rounds, _ = deal(np.tile(costs, batches * heads), blocks)
    rounds = rounds[:, np.argsort(rounds[-1] < 0, kind="stable")]  # who has one more comes first
    items = items[rounds[rounds >= 0]]
    return np.ascontiguousarray(items, np.int32)

"""Which queries go together, and which box of each level they need (for ``kernels/window.py``).

All of it follows from the shape of a problem. A query is taken for a pixel, as in an encoder, where every
pixel of every level is one, and the pixel's centre for its *reference point*. Queries are grouped into *cells*
by the rectangle of the finest level in which that lies. The samples of a cell then lie in the cell, widened
and moved by the *offsets* from reference points. How far they spread is taken from *nominal* offsets, those of
a Deformable DETR whose points have moved by some pixels. By how much those of a head and level are moved in a
call is what the kernel finds out itself (window_probe.py). A wrong guess costs time, nothing else.

A cell's windows start as those that hold most samples, and grow while it pays and shared memory has room.
Larger cells load fewer bytes for each query, and leave less room around them; a size left open is chosen for
the least expected work. Windows are constants of the kernel, so each choice of them is compiled anew. In
training pictures have many sizes, which should share a few kernels: a cell left open is therefore one of CELLS,
and its windows are fitted to a problem of the same *kind* (``kind_of``), whose size is always the same.
"""

import bisect
import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..device.limits import SMS
from .problem import ITEMSIZE, ConfigError, make_levels, pixel_centres

# Shares of the samples along each axis that the boxes should hold; the first for which there is room is the
# first guess for a cell.
KEPT = (0.999, 0.998, 0.996, 0.993, *(0.99 - 0.0025 * n for n in range(16)), 0.93, 0.9,
        0.8, 0.6, 0.4, 0.2, 0.1, 0.0)  # fmt: skip
# Heights and widths of cells that are weighed, in pixels.
CELLS = (
    (6, 6), (6, 8), (8, 8), (8, 10), (10, 8), (10, 10), (10, 12), (12, 10), (12, 12), (12, 14), (14, 12),
    (12, 16), (14, 14), (16, 12), (16, 16), (16, 20), (20, 16))  # fmt: skip
KIND_SIDE = 192  # pixels of a kind's finest level, a square
NOMINAL_SIGMA = 2.0  # pixels by which trained points have moved from where they start, about
SHIFT_ERROR = 0.25  # pixels by which a block errs when it finds out where the middle is, about
MEASURED_QUERIES = 2048
FEW_GROUPS = 4  # of a cell, on average
GROWN_FROM = 0.9  # the share along each axis that windows hold before they grow
AXIS_SHARE = 0.03  # of the samples that are not kept along an axis, how many no window holds, about
# What a block looks at to find out where samples are (window_probe.py).
PROBED_ROWS = 16  # of a head and level, by a half-warp at once
PROBED_SAMPLES = 2048  # at most, but for so many rows of each head and level
REACH = 32.0  # pixels: a sample farther from its reference point says nothing of the others
SPREAD = 2654435761  # 2^32 over the golden ratio: its multiples lie evenly


class Costs(NamedTuple):
    """What a problem's work is estimated from: cycles of an SM, fitted to measured times (bench/NOTES.md); with
    another number of SMs than SMS the choice is less good."""

    row: float  # for a row
    sample: float  # for a sample in its window
    start: float  # until the first bytes of a cell's windows come
    pixel: float  # for a pixel of them
    room: float  # for a pixel, of the time in which samples are added up
    outside: float  # for a sample outside, where they are few; auto.py is more careful
    blocks: int  # that share an SM; where it is one, the next cell's windows come while samples are added up


class Tables(NamedTuple):
    """What the kernel has beside the operands; int32 but for the anchors, which are float32."""

    order: np.ndarray  # (cells, slots): the queries of each cell, the last one repeated
    schedule: np.ndarray  # (items, 4): batch, head, cell and queries, in the order in which blocks take them
    bases: np.ndarray  # (items, L, 4): of each level's window, as ``bases``: bits of two floats; width, height
    anchors: np.ndarray  # (H * L * PROBED_ROWS * rounds, 4), as ``make_anchors``

    def operands(self):
        """The kernel's operands by the names of its parameters."""
        return {**self._asdict(), "items": self.schedule.shape[0], "slots": self.order.shape[1]}


@dataclass(frozen=True, eq=False)
class Fit:
    """A configuration fitted to a problem."""

    config: object  # with boxes
    tables: Callable[[int], Tables] | None = None  # from a number of blocks to the tables for them
    outside: float = 0.0  # share of the nominal samples that no window holds
    items: int = 0  # in the schedule
    anchors: np.ndarray | None = None  # of the Tables


@functools.lru_cache(maxsize=64)
def fit(problem, config, rows_at_once):
    """The :class:`Fit` of a ``Window`` to a problem.

    Windows grow as far as it pays and shared memory allows. ``rows_at_once``: rows that a warp adds up
    together. Raises ConfigError where no windows of the cell fit into shared memory.
    """
    config = config.fitted(heads=problem.heads, rounds=probe_rounds(problem))
    references = reference_points(problem)
    like, cells = (problem, (config.cell,)) if any(config.cell) else (kind_of(problem), CELLS)
    plans = grown_plans(like, config.fitted(limit=-1), cells)
    if not plans:
        rule = f"no windows of it fit into {config.shared_limit} bytes; use smaller ones"
        raise ConfigError("cell", "x".join(map(str, cells[0])), rule)
    plans = [plan._replace(grid=make_grid(problem, plan.cell, references)) for plan in plans]
    costs = config.costs(problem.constants)
    best = min(plans, key=lambda plan: expected_work(problem, plan, references, rows_at_once, costs))
    fitted = config.fitted(boxes=best.boxes, cell=best.cell)
    cells = make_cells(problem, best.grid, references, rows_at_once)
    costs = cell_costs(problem, cells.counts, best.boxes, rows_at_once, costs)
    anchors = make_anchors(problem, best, references, config.rounds)
    tables = functools.partial(make_tables, problem, best, cells, costs, anchors)
    return Fit(fitted, tables, best.outside, len(cells.order) * problem.batch * problem.heads, anchors)


def kind_of(problem):
    """The problem of the same kind that windows are fitted to: one picture, whose levels are squares, each
    smaller than the finest by about as much, with about as many queries for each pixel."""
    areas = [level.height * level.width for level in problem.levels]
    shares = [math.log2(area / max(areas)) / 2 for area in areas]  # of a side
    sides = [max(1, round(KIND_SIDE * 2 ** (round(2 * share) / 2))) for share in shares]
    pixels = sum(side * side for side in sides)
    density = 2.0 ** round(math.log2(problem.queries / sum(areas)))
    return dataclasses.replace(
        problem, batch=1, spatial_size=pixels, queries=max(1, round(pixels * density)),
        levels=make_levels([(side, side) for side in sides]),
    )  # fmt: skip


class Measured(NamedTuple):
    """Where the nominal samples of a problem are, of some queries."""

    references: np.ndarray  # (Q, 2), of all queries
    some: np.ndarray  # (q, 2): reference points of the queries that were measured
    away: np.ndarray  # (H, L, 2, n): offsets of their samples, in order along each axis
    samples: list  # the LevelSamples of each level

    def offsets(self, kept):
        """(low, high), both (H, L, 2): between them is the share ``kept`` of the offsets along each axis."""
        return quantile(self.away, (1 - kept) / 2), quantile(self.away, (1 + kept) / 2)


def measure(problem, seed=0):
    """The :class:`Measured` of a problem's nominal samples."""
    references, rng = reference_points(problem), np.random.default_rng(seed)
    count = min(problem.queries, MEASURED_QUERIES)
    some = references[np.sort(rng.choice(problem.queries, count, replace=False))]
    away = nominal_offsets(problem, count, rng)
    locations = some[:, None, None, None] + away / _sizes(problem)[:, None]
    away = np.sort(away.transpose(1, 2, 4, 0, 3).reshape(*away.shape[1:3], 2, -1), axis=-1)
    return Measured(references, some, away, level_samples(problem, locations[None]))


def nominal_offsets(problem, count, rng):
    """(count, H, L, P, 2) pixels from the reference points to the samples of so many queries, around the middle
    of each head's points: those of head k start at p = 1 .. P pixels along the direction 2 pi k / H."""
    c, angle = problem.constants, 2 * np.pi * np.arange(problem.heads) / problem.heads
    reach = np.arange(c.points) - (c.points - 1) / 2
    start = np.stack([np.cos(angle), np.sin(angle)], -1)[:, None] * reach[:, None]
    noise = rng.standard_normal((count, problem.heads, c.levels, c.points, 2))
    error = rng.standard_normal((problem.heads, c.levels, 1, 2))
    return start[:, None] + NOMINAL_SIGMA * noise + SHIFT_ERROR * error


def has_room(problem, config, boxes):
    """Whether a block has room for such windows."""
    return config.fitted(boxes=boxes).dynamic_bytes(problem.constants) <= config.shared_limit


def first_plan(problem, config, measured, cell):
    """The :class:`Plan` for a cell with the most samples for which there is room; None if there is for none."""
    grid = make_grid(problem, cell, measured.references)

    def boxes(kept):
        return fit_boxes(problem, grid.size, *measured.offsets(kept))

    number = bisect.bisect_left(KEPT, True, key=lambda kept: has_room(problem, config, boxes(kept)))
    if number == len(KEPT):
        return None
    kept = KEPT[number]
    return Plan(cell, grid, kept, boxes(kept), (1 - kept) * AXIS_SHARE)


@functools.lru_cache(maxsize=64)
def grown_plans(problem, config, cells):
    """The :class:`Plan` s for those of the cells that have room, with windows that have grown."""
    measured = measure(problem)
    plans = filter(None, (first_plan(problem, config, measured, cell) for cell in cells))
    return tuple(grown_plan(problem, config, measured, plan) for plan in plans)


def grown_plan(problem, config, measured, plan):
    """The plan with windows that started small and grew."""
    boxes = fit_boxes(problem, plan.grid.size, *measured.offsets(min(GROWN_FROM, plan.kept)))
    centres = cell_centres(problem, plan.grid, plan.grid.cell_of(problem, measured.some))
    levels = [LevelWindow(problem, n, box, centres[:, n], measured.samples[n]) for n, box in enumerate(boxes)]
    worth = samples_worth(problem, plan.grid, len(measured.some), config.costs(problem.constants))
    grow(levels, worth, functools.partial(has_room, problem, config))
    lost = sum(level.lost for level in levels) / (measured.away.size // 2)
    return plan._replace(boxes=tuple(level.box for level in levels), outside=lost)


def make_tables(problem, plan, cells, costs, anchors, blocks):
    """The :class:`Tables` of a plan for so many blocks; ``cells`` are its :class:`Cells`, with such costs."""
    schedule = make_schedule(cells.counts, costs, problem.batch, problem.heads, blocks)
    starts = bases(cells.centres, plan.boxes)[schedule[:, 2]].astype(np.float32).view(np.int32)
    sizes = np.broadcast_to(_sizes(problem).astype(np.int32), starts.shape)
    return Tables(cells.order, schedule, np.concatenate([starts, sizes], axis=-1), anchors)


# --- where samples are ------------------------------------------------------------------------------
def finest_level(problem):
    """The number of the level with the most pixels."""
    return max(range(len(problem.levels)), key=lambda n: math.prod(problem.levels[n][:2]))


def reference_points(problem):
    """(Q, 2) normalised. Query i is pixel i, and after the last pixel the first follows; with fewer queries
    than pixels they lie evenly among those."""
    pixels, query = pixel_centres(problem.levels, np.float64), np.arange(problem.queries)
    if problem.queries < len(pixels):
        return pixels[query * len(pixels) // problem.queries]
    return pixels[query % len(pixels)]


def _sizes(problem):
    return np.array([(level.width, level.height) for level in problem.levels], np.float64)


def _finest_size(problem):
    return _sizes(problem)[finest_level(problem)]


def quantile(ordered, q):
    """``np.quantile`` along the last axis, which is in order already: that is what takes it its time."""
    place = q * (ordered.shape[-1] - 1)
    below, above = ordered[..., math.floor(place)], ordered[..., math.ceil(place)]
    return below + (place - math.floor(place)) * (above - below)


def bases(centres, boxes):
    """Where windows around ``centres`` (.., L, 2) start, which is at the floor of (x, y) pixels of their level:
    their sizes are ``boxes``, a (height, width) for each level or one for all."""
    return centres + 1 - np.array(boxes)[..., ::-1] / 2


def moved_inside(corners, sizes, boxes):
    """``corners`` (x, y) of windows, no farther outside their levels of ``sizes`` (width, height) than they
    need be: none starts before -1, nor ends beyond the pixel after the last one if it may start earlier."""
    return np.maximum(np.minimum(corners, sizes + 1 - np.array(boxes)[..., ::-1]), -1)


# --- what a block looks at --------------------------------------------------------------------------
def probe_rounds(problem):
    """How often PROBED_ROWS are probed for each head and level."""
    each = problem.heads * problem.constants.levels * PROBED_ROWS
    most = PROBED_SAMPLES // (each * problem.constants.points)
    return max(1, min(most, -(-problem.batch * problem.queries // PROBED_ROWS)))


def probed_samples(problem):
    """How many samples are probed."""
    c = problem.constants
    return problem.heads * c.samples * PROBED_ROWS * probe_rounds(problem)


def probed_rows(problem, rounds):
    """(H * L, PROBED_ROWS * rounds): the number, batch * Q + query, of the row that each lane probes in each
    round, for each head and level: one out of each of so many equal parts of all rows."""
    pairs, rows = problem.heads * problem.constants.levels, problem.batch * problem.queries
    number = np.arange(pairs * PROBED_ROWS * rounds, dtype=np.uint64).reshape(-1, pairs).T
    within = number * np.uint64(SPREAD) % np.uint64(2**32) * np.uint64(rows) >> np.uint64(32)
    return ((number * np.uint64(rows) + within) // np.uint64(number.size)).astype(np.int64)


def make_anchors(problem, plan, references, rounds):
    """(H * L * PROBED_ROWS * rounds, 4) float32, for each probed row: where its reference point and its cell's
    window are, the latter as ``bases``, (x, y) pixels of the level."""
    queries = probed_rows(problem, rounds) % problem.queries
    number = np.arange(len(queries)) % problem.constants.levels
    where = references[queries]
    cells = plan.grid.cell_of(problem, where.reshape(-1, 2))
    starts = bases(cell_centres(problem, plan.grid, cells), plan.boxes).reshape(*queries.shape, -1, 2)
    starts = starts[np.arange(len(queries)), :, number]
    anchors = np.concatenate([where * _sizes(problem)[number][:, None], starts], axis=-1)
    return np.ascontiguousarray(anchors.reshape(-1, 4), np.float32)


def look(problem, fitted, locations):
    """(shifts (H, L, 2), how many of the probed samples no window holds), of a :class:`Fit`: as each block
    finds them in locations (B, Q, H, L, P, 2), NumPy."""
    c, rows = problem.constants, probed_rows(problem, fitted.config.rounds)
    number = np.arange(len(rows))
    level, shape = number % c.levels, (problem.batch * problem.queries, len(rows), c.points, 2)
    where = np.asarray(locations).reshape(shape)[rows, number[:, None]].astype(np.float32)
    size = _sizes(problem)[level][:, None, None].astype(np.float32)
    anchors = fitted.anchors.reshape(*rows.shape, 1, 4)
    with np.errstate(invalid="ignore", over="ignore"):
        pixel = where * size
        away = pixel - anchors[..., :2]
        near = (np.abs(away) <= REACH).all(axis=-1)
        total = np.where(near[..., None], away, 0).sum(axis=(1, 2))
        shift = total / np.maximum(near.sum(axis=(1, 2)), 1)[:, None]
        box = np.array(fitted.config.boxes)[level][:, None, None]
        first = moved_inside(np.floor(anchors[..., 2:] + shift[:, None, None]), size, box)
        tile = pixel - np.float32(0.5)
        touches = ((tile > -1) & (tile < size)).all(axis=-1)
        holds = ((tile >= first) & (tile < first + box[..., ::-1] - 1)).all(axis=-1)
    return shift.reshape(problem.heads, c.levels, 2), int((touches & ~holds).sum())


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
    box: tuple[int, int] | None = None
    lost: np.ndarray | None = None  # which of the samples that were lost still are


class LevelWindow:
    """The window of one level: ``box`` (height, width), and how many samples that touch the level it does not
    hold, ``lost``.

    ``centres`` (q, 2) are those of some queries' cells, ``samples`` their :class:`LevelSamples`.
    """

    MOVES = [(n * higher, n * wider) for n in (1, 2, 4) for higher, wider in ((0, 2), (1, 0))]
    """What a window may grow by: height, and width, which stays even."""

    def __init__(self, problem, number, box, centres, samples):
        self.size = _sizes(problem)[number]
        self.limit = np.minimum(self.size + 2 + self.size % 2 * (1, 0), 256)  # it covers the level
        self.pixel = problem.constants.channels * ITEMSIZE[problem.constants.dtype]
        self.box, self.tiles = box, samples.tiles
        shape = (*samples.touches.shape, 2)
        self.centres = np.broadcast_to(centres[None, :, None, None], shape)[samples.touches]
        self._look_only_at(~self._holds(box))

    @property
    def lost(self):
        return len(self.tiles)

    def best_offer(self):
        """The :class:`Offer` with the highest rate; one of nothing, if the window can not grow."""
        return max(self._offers(), key=lambda offer: offer.rate, default=Offer(0.0))

    def take(self, offer):
        self.box = offer.box
        self._look_only_at(offer.lost)  # a larger window holds what a smaller one does

    def _look_only_at(self, which):
        self.tiles, self.centres = self.tiles[which], self.centres[which]

    def _holds(self, box):
        first = moved_inside(np.floor(bases(self.centres, box)), self.size, box)
        return ((self.tiles >= first) & (self.tiles < first + box[::-1] - np.array(1))).all(axis=-1)

    def _offers(self):
        height, width = self.box
        for higher, wider in self.MOVES:
            box = (height + higher, width + wider)
            if (np.array(box[::-1]) > self.limit).any():
                continue
            lost = ~self._holds(box)
            more = (box[0] * box[1] - height * width) * self.pixel
            yield Offer((self.lost - int(lost.sum())) / more, box, lost)


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


def cell_centres(problem, grid, numbers):
    """(n, L, 2): the middles of cells with these numbers, in pixels of each level, whose centres are whole."""
    line, column = np.divmod(numbers, grid.number[0])
    place = (np.stack([column, line], -1) + 0.5) * grid.size + grid.first  # in pixels of the finest level
    scale = _sizes(problem) / _finest_size(problem)
    return place[:, None] * scale - 0.5


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


def cell_costs(problem, counts, boxes, rows_at_once, costs):
    """Cycles of an SM for cells of so many rows, by ``Costs``. Where a block is alone on it and the next cell's
    windows come at the same time, the longer that takes, the more often somebody waits for them."""
    row = problem.constants.samples * costs.sample + costs.row
    work = -(-counts // rows_at_once) * rows_at_once * row
    load = costs.start + sum(height * width for height, width in boxes) * costs.pixel
    return np.hypot(work, load) if costs.blocks == 1 else work + load


def samples_worth(problem, grid, measured, costs):
    """Samples of so many ``measured`` queries for each byte of a window, from which on it pays to hold them: a
    pixel takes a cell some cycles, a sample outside many."""
    rows = problem.queries / grid.number.prod()  # of a cell
    pixel = problem.constants.channels * ITEMSIZE[problem.constants.dtype]
    return measured * problem.heads / rows * costs.room / pixel / costs.outside


def expected_work(problem, plan, references, rows_at_once, costs):
    """Cycles of the SM that has most to do."""
    counts = np.bincount(whole_groups(problem, plan.grid, references, rows_at_once))
    cells = cell_costs(problem, counts[counts > 0], plan.boxes, rows_at_once, costs)
    work = deal(np.tile(cells, problem.batch * problem.heads), SMS * costs.blocks)[1]
    return work.max() * costs.blocks + problem.samples * plan.outside * costs.outside / SMS


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

    centres: np.ndarray  # (cells, L, 2), as ``cell_centres``
    order: np.ndarray  # (cells, slots), as in Tables
    counts: np.ndarray  # (cells,): how many queries each has


def whole_groups(problem, grid, references, rows_at_once):
    """The number of each query's cell, where all cells but the last one of a line have whole groups of
    ``rows_at_once`` rows: up to half a group of those that are nearest to the next cell, or to the one before,
    go there. Cells of few groups stay as they are: too many would have to go."""
    number, rows, cells = grid.cell_of(problem, references), rows_at_once, grid.number.prod()
    if len(number) >= FEW_GROUPS * rows * cells:
        ends = np.bincount(number, minlength=cells).reshape(grid.number[::-1]).cumsum(axis=1)  # in each line
        ends[:, :-1] = np.minimum((ends[:, :-1] + rows // 2) // rows * rows, ends[:, -1:])
        ends[1:] += ends[:-1, -1:].cumsum(axis=0)
        along = np.lexsort((references[:, 0], number))
        number[along] = np.searchsorted(ends.ravel(), np.arange(len(along)), side="right")
    return number


def make_cells(problem, grid, references, rows_at_once):
    """The :class:`Cells` of the queries by their (Q, 2) reference points."""
    number = whole_groups(problem, grid, references, rows_at_once)
    queries = np.argsort(number, kind="stable")
    numbers, starts, counts = np.unique(number[queries], return_index=True, return_counts=True)
    slots = np.minimum(np.arange(counts.max()), counts[:, None] - 1)
    order = queries[starts[:, None] + slots].astype(np.int32)
    return Cells(cell_centres(problem, grid, numbers), order, counts.astype(np.int32))


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

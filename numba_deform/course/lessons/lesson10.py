"""The checks and pictures of lesson 10, adding by TMA, and what a kernel's additions do."""

import functools
from bisect import bisect
from collections import Counter
from dataclasses import dataclass, field
from unittest import mock

import numpy as np

from ...engines import faults
from ...engines.cpu import simulate
from ...engines.cpu.async_units.copy_engine import CopyEngine
from ...engines.cpu.machine.thread import Thread
from ...engines.tensormap import TensorMap, TensorMapArray
from ...measure.timeline import BLUE, GREY, ORANGE, SERIES
from . import pictures
from .exercise import Wrong, exercise, plain, require
from .results import results
from .running import run
from .whole_kernels import doubled as doubled

SECTOR = 32  # bytes: what L2 takes and gives at once
BINS, STEPS, SIDE, CHANNELS, WINDOW, REACH = 64, 5, 16, 32, 12, 2  # as in the notebook
BEFORE = 10**9  # in each bin before a histogram is added: as a float, too large for counts to change it
PIXEL = 4 * CHANNELS  # bytes
HATCHES = "", "///", "...", "xxx"


# --- what a kernel's additions do -----------------------------------------------------------------
@dataclass
class Additions:
    """The additions to global memory of one run on the CPU engine.

    instructions  of warps (``red``): one for all lanes that add at once
    reductions    by the copy engine
    sectors       that all of them touch, each counted as often as it is touched
    touched       {(start of an array, number of a sector in it): how often}
    landed        [(warp, a copy of ``out``)] after each reduction by the copy engine
    in_flight     reductions of one block that were in flight at once, at most
    waits         [(block, whether it waited for the reads alone)] for each wait for bulk groups, in order
    """

    instructions: int = 0
    reductions: int = 0
    touched: Counter = field(default_factory=Counter)
    landed: list = field(default_factory=list)
    in_flight: int = 0
    waits: list = field(default_factory=list)

    @property
    def sectors(self):
        return self.touched.total()

    def for_each_pixel(self, out):
        """How often each pixel of ``out`` (height, width, CHANNELS) was added to: (height, width)."""
        pixel, start = out[0, 0].nbytes, _start(out)
        counts = [self.touched[start, i * pixel // SECTOR] for i in range(out.shape[0] * out.shape[1])]
        return np.array(counts).reshape(out.shape[:2])


def _start(array):
    return array.__array_interface__["data"][0]


def watch(kernel, grid, args, out=None, **simulated):
    """Run ``kernel`` on the CPU engine, and return its :class:`Additions`; ``out``: an array to look at.

    Lanes of a warp count as one instruction where each of them has added equally often before. Sectors begin
    where an array begins, as on a GPU. ``simulated`` goes to ``simulate``. Raises the SimFault of a broken
    rule.
    """
    seen, added, taken, flying = Additions(), Counter(), {}, Counter()
    arrays = [a[0].array if isinstance(a, TensorMapArray) else a for a in args]
    starts = sorted(_start(a) for a in arrays if isinstance(a, np.ndarray))
    add, store, wait = Thread.atomic_add, CopyEngine._store, CopyEngine.wait_group

    def sectors_of(address, size):
        start = starts[bisect(starts, address) - 1]
        first, last = (address - start) // SECTOR, (address - start + size - 1) // SECTOR
        return [(start, number) for number in range(first, last + 1)]

    def noting_add(thread, address, kind, values):
        lane = thread.block.index, thread.tid
        instruction = thread.block.index, thread.warp, added[lane]
        added[lane] += 1
        taken.setdefault(instruction, set()).update(sectors_of(int(address), 4 * len(values)))
        return add(thread, address, kind, values)

    def noting_store(engine, thread, what, src, size, targets, write, used=None, op=None):
        block = thread.block.index

        def landing(data):
            write(data)
            flying[block] -= 1
            seen.landed.append((thread.warp, None if out is None else out.copy()))

        seen.reductions += 1
        flying[block] += 1
        seen.in_flight = max(seen.in_flight, flying[block])
        for _, address, count in targets:
            seen.touched.update(sectors_of(address, count))
        store(engine, thread, what, src, size, targets, landing, used, op)

    def noting_wait(engine, thread, kind, pending, read_only=False):
        seen.waits.append((thread.block.index, read_only))
        return wait(engine, thread, kind, pending, read_only)

    with (
        mock.patch.object(Thread, "atomic_add", noting_add),
        mock.patch.object(CopyEngine, "_store", noting_store),
        mock.patch.object(CopyEngine, "wait_group", noting_wait),
    ):
        simulate(kernel, grid, kernel.threads, args, compiled=False, **simulated)
    seen.instructions = len(taken)
    for touched in taken.values():
        seen.touched.update(touched)
    return seen


# --- what the notebook's kernels are run on -------------------------------------------------------
def grey_values(blocks=4, count=16 * BINS):
    """Grey values of a picture, a part for each block: (blocks, count) uint8."""
    values = np.random.default_rng(3).normal(128, 42, (blocks, count))
    return values.clip(0, 255).astype(np.uint8)


def histogram_of(data):
    """What the blocks' histograms come to: (BINS,) uint32."""
    return np.bincount(data.ravel() // 4, minlength=BINS).astype(np.uint32)


@dataclass(frozen=True)
class Samples:
    """Samples of queries, a neighbourhood of them for each block; S samples a block.

    x, y     the first of a sample's 2 x 2 pixels: (blocks, S) int32
    weights  of its four pixels: (blocks, S, 4) float32
    g        the gradient that arrives at the sample: (blocks, S, CHANNELS) float32
    corners  x and y of each block's window: (blocks, 2) int32
    """

    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    g: np.ndarray
    corners: np.ndarray

    @property
    def args(self):
        return self.x, self.y, self.weights, self.g

    @property
    def expected(self):
        """The gradient of the map: (SIDE, SIDE, CHANNELS) float32, exact: its numbers are small and whole."""
        grad = np.zeros((SIDE, SIDE, CHANNELS), np.float32)
        for corner in range(4):
            parts = self.weights[..., corner, None] * self.g
            np.add.at(grad, (self.y + corner // 2, self.x + corner % 2), parts)
        return grad


def samples(side=8, points=1, seed=0):
    """:class:`Samples` of a map of SIDE x SIDE queries, ``side`` x ``side`` of them a block, each with so many
    ``points`` at most REACH pixels from it."""
    random = np.random.default_rng(seed)
    across = SIDE // side
    corner = side * np.array([(b % across, b // across) for b in range(across * across)])
    query = np.array([(q % side, q // side) for q in range(side * side) for _ in range(points)])
    place = corner[:, None] + query[None] + random.integers(-REACH, REACH, (len(corner), len(query), 2))
    x, y = np.moveaxis(place.clip(0, SIDE - 2), 2, 0).astype(np.int32)
    weights = random.integers(1, 4, (*x.shape, 4)).astype(np.float32)
    g = random.integers(-9, 10, (*x.shape, CHANNELS)).astype(np.float32)
    corners = (corner - REACH).clip(0).astype(np.int32)
    return Samples(np.ascontiguousarray(x), np.ascontiguousarray(y), weights, g, corners)


def bytes_of_a_sample(side, points=4, reach=REACH):
    """(bytes that leave for each sample, bytes of the window in shared memory) when a block adds up the samples
    of ``side`` x ``side`` queries in one window of floats."""
    window = (side + 2 * reach) ** 2 * PIXEL
    return window / (side * side * points), window


def measured():
    """{how: ms} of deformable attention on an H200, from ``bench/results/pipelines_seeds.json``."""
    rows = (row for row in results("pipelines_seeds")["rows"] if row["pattern"] == "local(2)")
    times = {row["variant"]: row.get("median_ms") for row in rows}
    return {"a load for each sample": times["tma-fastest"], "a load for a window": times["window"]}


# --- exercises ------------------------------------------------------------------------------------
def _who_writes(fault):
    """What a race has to do with how the histogram leaves the block."""
    if "out[" in fault.what:
        return ("A *store* writes over what is there, so that the last block wins and none was added. A "
            "reduction adds.")  # fmt: skip
    return ("The copy engine reads the tile while others still write it: all threads meet after their last "
        "write, and before one of them issues.")  # fmt: skip


LEAVE_FAULTS = {
    faults.MissingProxyFence: "The copy engine reads shared memory by another way than threads write it. Every "
    "thread that has written calls fence_proxy_async(), and then all meet; or the issuing one does behind "
    "that.",
    faults.CopyOutlivesBlock: "The block's shared memory is gone when its last thread ends, and the copy "
    "engine may not have read it yet. Close a group by commit_group, and wait for it.",
    faults.DataRace: _who_writes,
}


@exercise("All threads: fence, then meet. One thread: reduce, commit, wait until the tile has been read.",
          LEAVE_FAULTS)  # fmt: skip
def leave(build, answer, engine=None):
    """build(answer) -> the histogram's kernel(data, out); answer(out, tile, bytes) is how it ends."""
    kernel, data = build(answer), grey_values()
    for seed, landing in ((0, "late"), (0, "earliest"), (1, "random"), (2, "random")):
        out = np.full(BINS, BEFORE, np.uint32)
        seen = watch(kernel, len(data), (data, out), seed=seed, landing=landing)
        given = f"{seen.reductions} reductions were issued by {len(data)} blocks. "
        require(seen.reductions, "Nothing was sent: the result is what it was before.")
        require(seen.reductions == len(data) or seen.reductions % kernel.threads, given + "Each thread has "
                "issued one, so that every bin counts 64 times. One thread issues.")  # fmt: skip
        require((out != BEFORE).any(), given + "No sum has changed: bins are numbers without a sign, which "
                "`..._add_u32` adds. Another reduction takes their bits for something else.")  # fmt: skip
        require(np.array_equal(out, BEFORE + histogram_of(data)), given + f"Of {data.size} values "
                f"{int(out.sum()) - BEFORE * BINS} have arrived.")  # fmt: skip
        require(all(read_only for _, read_only in seen.waits), "The histogram is right, but you wait until the "
                "sums are written in global memory. This block reads none of them: it needs its tile to be "
                "read, no more. Which wait says that?")  # fmt: skip
    if engine == "gpu":
        out = np.zeros(BINS, np.uint32)
        run(kernel, len(data), (data, out), engine=engine)
        require(np.array_equal(out, histogram_of(data)), "On the GPU the histogram is another one.")
    return ("Fence, meet, reduce, commit, wait for the reads: the four blocks' bins add up in every schedule "
        "that was tried, in any order of landing. (The engine also takes a fence by thread 0 alone, after the "
        "meeting: it lies between the writes and the copy.)")  # fmt: skip


def _which_wait(fault):
    """What a fault of the kernel with two tiles has to do with its two waits."""
    if isinstance(fault, faults.DivergentBarrier):
        return ("Thread 0 alone calls these two, so nobody meets it there. It waits for its own copies, and "
            "the barrier of all threads comes after that.")  # fmt: skip
    if isinstance(fault, faults.CopyOutlivesBlock):
        return "A group is still open at the end: before the count, none may be."
    if "tiles[" in fault.what:
        return ("The tile is written while the copy engine still reads it. With two tiles, the group before "
            "the last one must have been read: at most one stays open.")  # fmt: skip
    return ("The last block reads sums that may still be on their way. That a tile was *read* says nothing of "
        "the sums: the wait before the count is for the writes, and for all groups.")  # fmt: skip


@exercise(
    "Two tiles: how many groups may still be reading when the older one's tile is written again? And what has"
    " to be over before the others are told?", faults=_which_wait)  # fmt: skip
def waits(build, before_reuse, before_count, engine=None):
    """build(before_reuse, before_count) -> kernel(data, sums, count, means); the two wait."""
    kernel, blocks = build(before_reuse, before_count), 3
    data = np.random.default_rng(5).integers(0, 99, (STEPS * blocks, BINS)).astype(np.uint32)
    squares, most = (data * data).sum(axis=0), 0

    def outcome(chosen, **simulated):
        sums, count, means = np.zeros(BINS, np.uint32), np.zeros(1, np.uint32), np.zeros(BINS, np.uint32)
        args = data, sums, count, means
        how = watch if chosen == "cpu" else functools.partial(run, engine=chosen)
        seen = how(kernel, blocks, args, **simulated)
        require(np.array_equal(means, squares // len(data)), "The means are not those of the columns.")
        return seen

    for seed, landing in ((0, "late"), (1, "random"), (2, "random")):
        seen = outcome("cpu", seed=seed, landing=landing)
        most = max(most, seen.in_flight)
    of_a_block = [read_only for block, read_only in seen.waits if block == 0]
    require(most > 1, "Every sum is right, but no two reductions were ever in flight at once: the second tile "
            "is for nothing. While one tile is read, the other may be written, so one group may stay open.")
    require(len(of_a_block) > STEPS and all(of_a_block[:STEPS]), "Every sum is right, but before each reuse "
            "you wait until sums are written in global memory. To write into the tile again, it is enough that "
            "it has been read.")  # fmt: skip
    if engine == "gpu":
        outcome("gpu")
    return ("`wait_group_read(1)` leaves the newer tile on its way and frees the older one. `wait_group(0)` is "
        "for those who read the sums: all groups, and their writes too.")  # fmt: skip


@exercise("A lane adds 16 bytes: how many lanes has a pixel, how many pixels an instruction? Then the bytes.")
def sectors(predicted, by_one, by_four, by_eight, engine=None):
    """predicted: {"one float": (instructions, sectors), "four floats": .., ..} for two samples."""
    some = samples(seed=4)
    two = [np.ascontiguousarray(a[:1, :2]) for a in some.args]
    names = "one float", "four floats", "eight halves"
    for name, kernel, itemsize in zip(names, (by_one, by_four, by_eight), (4, 4, 2), strict=True):
        grad = np.zeros((SIDE, SIDE, CHANNELS), f"f{itemsize}")
        seen = watch(kernel, 1, [*two, grad])
        got, counted = plain(predicted.get(name)), (seen.instructions, seen.sectors)
        require(isinstance(got, tuple) and len(got) == 2, f"{name}: {got!r} is not (instructions, sectors).")
        pixel = CHANNELS * itemsize
        given = f"{name}: instructions {got[0]}, sectors {got[1]}. "
        require(got[1] >= counted[1], given + "The bytes fill more sectors. A wider instruction does not make "
                f"them fewer: each of the 8 pixels has {pixel} bytes.")  # fmt: skip
        require(got[1] == counted[1], given + f"These are too many sectors: 8 pixels of {pixel} bytes each, "
                f"and a sector has {SECTOR}.")  # fmt: skip
        require(got[0] == counted[0], given + f"The sectors are right. A pixel of {pixel} bytes takes "
                f"{pixel // 16} lanes of 16 bytes; how many pixels do 32 lanes have, and how many are there?")
        if engine == "gpu":
            grad[:] = 0
            run(kernel, len(some.x), (*some.args, grad), engine=engine)
            require(np.array_equal(grad, some.expected), f"{name}: on the GPU the gradient is another one.")
    return ("A vector makes instructions fewer: 8, 2, 1. Sectors follow the bytes: 32 for floats, however they "
        "are packed, 16 for halves. Where L2 is the limit, only the second number counts.")  # fmt: skip


def _which_line(fault):
    """What a race in the kernel with a window has to do with the reader's two functions."""
    if "window[" in fault.what:
        return ("Two warps may add to one pixel at the same time. Load, add and store are three steps: what "
            "the other has written in between is lost. An addition in one step is cuda.atomic.add(array, "
            "index, part).")  # fmt: skip
    return ("Windows of neighbouring blocks overlap. A *store* leaves what the last one brings; a reduction "
        "adds to what is there.")  # fmt: skip


WINDOW_FAULTS = {
    faults.NotCompiled: "An addition takes three things: the array, the index in brackets, and the number.",
    faults.OutOfRange: "The window has 12 x 12 pixels, and its own coordinates: those of the map less those of "
    "its corner.",
    faults.MisalignedBox: "The channel comes first, and a window has all 32 of them, from 0 on: (0, x, y).",
    faults.MissingProxyFence: "The window is written by threads and read by the copy engine; fence and barrier "
    "are there already. What does yours touch between them?",
    faults.DataRace: _which_line,
}


@exercise("In the window, pixel (x, y) is (y - y0, x - x0). Several warps may add to it at the same time.",
          WINDOW_FAULTS)  # fmt: skip
def window(build, add, send, engine=None):
    """build(add, send) -> kernel(map, x, y, weights, g, corners)."""
    kernel, some = build(add, send), samples(seed=6)
    few = [np.ascontiguousarray(a[:, ::4]) for a in some.args]
    some = Samples(*few, some.corners)

    def outcome(chosen, **simulated):
        grad = np.ones((SIDE, SIDE, CHANNELS), np.float32)
        maps = TensorMapArray([TensorMap.of(grad, (CHANNELS, WINDOW, WINDOW))])
        args = maps, *some.args, some.corners
        seen = watch(kernel, 4, args, **simulated) if chosen == "cpu" else run(kernel, 4, args, chosen)
        where = seen.for_each_pixel(grad) if chosen == "cpu" else None
        return grad - 1, seen, where

    reach = np.zeros((SIDE, SIDE), int)  # how many windows lie over each pixel
    for x, y in some.corners:
        reach[y : y + WINDOW, x : x + WINDOW] += 1
    for seed, landing in ((0, "late"), (1, "random")):
        grad, seen, where = outcome("cpu", seed=seed, landing=landing)
        require(seen.reductions != 4 or np.array_equal(where, reach), "Each window is sent, but not to its own "
                "place: its corner on the map is (x0, y0).")  # fmt: skip
        _same_gradient(grad, seen, some.expected)
    if engine == "gpu":
        require(np.array_equal(outcome("gpu")[0], some.expected), "On the GPU the gradient is another one.")
    each = CHANNELS * 4 * 4 // SECTOR
    return (f"4 reductions, which touch {seen.sectors} sectors, however many samples the windows hold. Sent "
        f"one by one, each sample touches {each}: from {seen.sectors // each + 1} samples on, the windows are "
        "fewer. What hangs over the map's end the copy engine leaves out.")  # fmt: skip


def _same_gradient(grad, seen, expected):
    require(seen.reductions == 4, f"{seen.reductions} reductions were issued; each of 4 blocks sends its "
            "window once.")  # fmt: skip
    if np.array_equal(grad, expected):
        return
    if np.isclose(grad.sum(), expected.sum()):
        alone = SIDE // 2 - REACH  # of the first window, where no other reaches
        require(not np.array_equal(grad[:alone, :alone], expected[:alone, :alone]), "The first window is "
                "right, and other windows lie at wrong places. A tensor map counts the innermost first: "
                "(channel, x, y).")  # fmt: skip
        raise Wrong("All parts have arrived, but at wrong pixels of the window. An array counts rows first: "
                    "[y, x, channel].")  # fmt: skip
    wrong = np.count_nonzero((grad != expected).any(axis=2))
    raise Wrong(f"The sums of {wrong} of the {SIDE * SIDE} pixels are not right: parts are lost, went "
                "elsewhere, or are other numbers.")  # fmt: skip


@exercise("The worst sum is count x bound x scale. It must not pass 2**31 - 1, the largest number of 32 bits.")
def scale(answer, fixed_sums):
    """answer(bound, count) -> the largest power of two; fixed_sums: the notebook's kernel(data, out, scale)."""
    for bound, count in ((1.0, 4), (1.0, 6), (3.0, 4), (0.125, 5)):
        got, room = float(answer(bound, count)), (2**31 - 1) / (bound * count)
        right = 2.0 ** np.floor(np.log2(room))
        given = f"For {count} numbers of at most {bound:g} it says {got:g}. "
        require(got > 0 and np.log2(got) % 1 == 0, given + "That is no power of two: multiplying would round.")
        worst, out = np.full((count, BINS), bound, np.float32), np.zeros(BINS, np.int32)
        require(got * bound < 2**31, given + f"One number alone becomes {got * bound:g}: it has no room in 32 "
                "bits.")  # fmt: skip
        watch(fixed_sums, count, (worst, out, got))
        total = int(out[0])
        require(np.isclose(total / got, bound * count), given + f"The engine adds up {count} times {bound:g}, "
                f"and the sum is {total / got:g}: it has passed the largest number, and begun again from the "
                "lowest.")  # fmt: skip
        require(got == right, given + f"No sum overflows, but {right:g} does not either, and each bit that is "
                "not used doubles the error of rounding.")  # fmt: skip
    return ("The sums are whole numbers now, whose order changes nothing: the same bits in every run. What is "
        "lost is known too: half of 1/scale for each number.")  # fmt: skip


# --- pictures -------------------------------------------------------------------------------------
def landed(seen, step, title=""):
    """The sums after the first ``step`` of the ``landed`` reductions of an :class:`Additions`, as bars: what
    each warp has added has its own colour and hatch."""
    figure = pictures._figure(7.4, 3.6)
    axes, before, parts = figure.subplots(), np.zeros_like(seen.landed[0][1]), []
    for warp, sums in seen.landed[:step]:
        style = {"facecolor": SERIES[warp % len(SERIES)], "hatch": HATCHES[warp % len(HATCHES)]}
        style |= {"label": f"warp {warp}", "edgecolor": "white"}
        axes.bar(range(len(sums)), sums - before, 0.85, before, **style)
        before = sums
        parts.append(str(warp))
    axes.set(xlim=(-1, len(before)), ylim=(0, 1.05 * seen.landed[-1][1].max()), xlabel="column", ylabel="sum")
    axes.set_title(f"{title}: {step} of {len(seen.landed)} rows have landed")
    if parts:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=pictures.TEXT)
    order = f"rows of the warps {', '.join(parts)}" if parts else "nothing"
    return pictures.Picture(figure, f"{title}: {order} landed; the sums are {before.tolist()}")


def windows(side, points=4, across=32):
    """How many windows add to each pixel of a map of ``across`` x ``across`` queries, if a block has ``side`` x
    ``side`` of them; beside it, what leaves for each sample."""
    cover = np.zeros((across, across), int)
    for y in range(0, across, side):
        for x in range(0, across, side):
            rows, columns = (slice(max(0, at - REACH), at + side + REACH) for at in (y, x))
            cover[rows, columns] += 1
    sent, room = bytes_of_a_sample(side, points)
    figure = pictures._figure(7.4, 3.7)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    image = left.imshow(cover, cmap="Greys", vmin=0, vmax=max(4, cover.max()), extent=(0, across, across, 0))
    first = across // 2 // side * side
    for at, wide, colour in ((first, side, ORANGE), (first - REACH, side + 2 * REACH, BLUE)):
        pictures.frame(left, at, at, wide, wide, colour)
    left.set_title(f"{side} x {side} queries (orange), window (blue)", fontsize=pictures.TEXT)
    ticks = range(0, 26, 1 if side > 2 else 5)
    figure.colorbar(image, ax=left, label="windows that add to a pixel", shrink=0.8, ticks=ticks)
    ways = {"by sample, floats": 4 * PIXEL, "by sample, halves": 2 * PIXEL, "by window, floats": sent}
    for place, (value, hatch) in enumerate(zip(ways.values(), ("", "", "///"), strict=True)):
        right.barh(place, value, 0.6, facecolor=BLUE if hatch else GREY, edgecolor="white", hatch=hatch)
        right.text(value + 10, place, f"{value:.0f}", va="center", fontsize=pictures.TEXT)
    right.set_yticks(range(len(ways)), ways, fontsize=pictures.TEXT)
    right.set(xlim=(0, 960), xlabel="bytes that leave for each sample")
    right.invert_yaxis()
    right.set_title(f"the window takes {room / 1024:.1f} KB of shared memory", fontsize=pictures.TEXT)
    told = f"{side} x {side} queries a block: up to {cover.max()} windows add to a pixel; for each sample "
    told += f"{sent:.0f} bytes leave, by sample {4 * PIXEL}; a window takes {room} bytes"
    return pictures.Picture(figure, told)

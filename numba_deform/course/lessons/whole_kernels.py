"""The checks of two assignments, whole kernels of lessons 5 and 10: sizes, schedules and landings that the
lessons do not name, and whether copies and work overlap."""

from collections import Counter

import numpy as np

from ...compiler import Kernel
from ...engines import faults
from ...engines.cpu import simulate
from ..bugs.base import poison, random_words
from .exercise import exercise, require

ROWS, LANES, THREADS = 8, 32, 64  # of a tile of 32-bit numbers; of a block
CASES = ((1, 1), (1, 5), (2, 4), (3, 1), (3, 8))  # stages, tiles
LANDINGS = "late", "earliest", "random"
MOST = 0.75  # of the cycles with one stage, with three
FAULTS = {
    faults.MissingRefillFence: "A thread that has read a stage gives it back past fence_proxy_async().",
    faults.MissingProxyFence: "The copy engine reads what threads wrote only past fence_proxy_async().",
    faults.TooManyArrivals: "Who asks for tiles acquires a stage before it announces bytes there again.",
    faults.InFlightRead: "Who reads a stage waits on its full barrier first.",
    faults.RefillRace: "A stage is given back when all have read it, a copy that leaves it, too: wait for it.",
    faults.CopyOutlivesBlock: "A thread that stores by TMA commits that to a group, and waits for it.",
}


def _run(kernel, tiles, right_of, seed=0, landing="late"):
    """(what ran, the output, what is right) of one launch on random data."""
    data = random_words(ROWS * tiles, LANES, seed=seed)
    right = right_of(data)
    out = poison(*right.shape)
    return simulate(kernel, 1, args=(data, out, tiles), seed=seed, landing=landing, trace=True), out, right


def _judge(build, right_of, leaves):
    """Raise Wrong, or the SimFault of a broken rule; ``leaves``: results are stored by TMA, too."""
    for number, (stages, tiles) in enumerate(CASES):
        kernel = build(stages)
        made = isinstance(kernel, Kernel)
        require(made, f"`{build.__name__}` gives {kernel!r}, and no kernel: is a `return` missing?")
        require(kernel.threads == THREADS, f"It has {kernel.threads} threads: take {THREADS}, two warps.")
        for landing in LANDINGS:
            ran, out, right = _run(kernel, tiles, right_of, number, landing)
            given = f"Stages: {stages}, tiles: {tiles}. "
            unwritten = np.count_nonzero(out == poison(1))
            require(not unwritten, given + f"{unwritten} of {out.size} results are never written.")
            wrong = np.count_nonzero(out != right)
            require(not wrong, given + f"{wrong} of {out.size} results are wrong.")
            kinds = Counter(event.kind for event in ran.events)
            for kind, wanted, what in (("issue", tiles, "arrive"), ("async", tiles if leaves else 0, "leave")):
                asked = f"{kinds[kind]} copies by TMA {what}, where each of {tiles} tiles takes one."
                require(not wanted or kinds[kind] == wanted, given + asked)
    one, three = (_run(build(stages), 12, right_of)[0].cycles for stages in (1, 3))
    require(three < MOST * one, f"Results are right. But 12 tiles take {one:,.0f} virtual cycles with one "
            f"stage and {three:,.0f} with three: nothing overlaps. One warp asks for tiles, the other works.")
    return (f"Right for {len(CASES)} sizes in {len(LANDINGS)} landings, and three stages take "
            f"{three / one:.0%} of the cycles of one.")  # fmt: skip


@exercise("A producer: acquire, expect, issue. A consumer: wait, read, release.", faults=FAULTS)
def largest(build):
    """build(stages) -> kernel(data, out, tiles): the largest number of each column."""
    return _judge(build, lambda data: data.max(axis=0), leaves=False)


@exercise("As in lesson 5; behind the work fence, meet, store, commit, wait for the read.", faults=FAULTS)
def doubled(build):
    """build(stages) -> kernel(data, out, tiles): twice the data, by TMA both ways."""
    return _judge(build, lambda data: 2 * data, leaves=True)

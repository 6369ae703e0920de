"""The checks of lesson 5, roles, and what was measured on an H200."""

import functools

import numpy as np
from numba import cuda, uint32

from ...compiler import kernel, u64
from ...device.layout import Array, Shared
from ...device.memory import global_at
from ...device.pipeline import mbarrier_wait
from ...device.rings import Ring
from ...device.tma import cp_async_bulk_load
from ...engines import faults
from ...kernels.registry import current_name
from ..bugs.base import poison, random_words
from .exercise import Wrong, choice, exercise, explained, first_of, refuse, require, under_if, value_of
from .lesson4 import expected_sums
from .results import results
from .running import run, traced
from .whole_kernels import largest as largest

LANES, CONSUMERS, TILES, WORDS, WORK = 32, 3, 6, 8, 64  # as in the notebook


# --- what the notebook's kernels are run on -------------------------------------------------------
def items_of_data(items=1, seed=0):
    """Random tiles of each item: (items, TILES, CONSUMERS * LANES * WORDS) uint32."""
    return random_words(items, TILES, CONSUMERS * LANES * WORDS, seed=seed)


def expected(data):
    """What the consumers leave of each item: (items, CONSUMERS * LANES) uint32."""
    parts = [np.split(item, CONSUMERS, axis=1) for item in data]
    return np.array([np.concatenate([expected_sums(p, WORK) for p in of]) for of in parts])


def trace(kernel, title, engine=None, items=1, grid=1, **simulated):
    """Run the traced form of the notebook's ``kernel(data, out, items)``, compare its sums; block 0's Timeline.

    Raises Wrong for other sums, and the SimFault of a broken rule.
    """
    data = items_of_data(items)
    want, out = expected(data), poison(items, CONSUMERS * LANES)

    def launch(form, marks):
        return run(form, grid, (data, out, items, marks, 0), engine=engine, **simulated)

    found = traced(kernel, title, launch)
    wrong = np.flatnonzero((out != want).any(axis=1))
    require(not len(wrong), f"The sums of item {wrong[0] if len(wrong) else 0} are not those of its tiles.")
    return found


def measured(*names, pattern="local(2)"):
    """{variant: ms} on an H200, preset seeds, from ``bench/results/pipelines_seeds.json``."""
    rows = (row for row in results("pipelines_seeds")["rows"] if row["pattern"] == pattern)
    times = {current_name(row["variant"]): row["median_ms"] for row in rows if "median_ms" in row}
    return {name: times[current_name(name)] for name in names}


def measured_timeline():
    """A row (warp, role, share, ..) for each warp of the timeline of ``phase2`` that an H200 recorded."""
    return results("timeline_phase2")["rows"]


# --- exercises ------------------------------------------------------------------------------------
@exercise("Count calls of an arrive, not threads that exist: who calls expect, who calls release, in one lap?")
def counts(answer):
    """answer(producers, consumers, arrivals) -> (count of full, count of empty)."""
    for producers, consumers in ((2, 6), (1, 7), (4, 4)):
        for arrivals, each in (("warp", 1), ("lane", 32)):
            got, right = value_of(answer, producers, consumers, arrivals), (producers * each, consumers * each)
            if got == right:
                continue
            given = f"With {producers} + {consumers} warps and arrivals={arrivals!r} it says {got}. "
            require(isinstance(got, tuple) and len(got) == 2, given + "Return two numbers: full, then empty.")
            everybody = (producers + consumers) * 32
            (full, empty), other = right, 32 // each
            wrong = "full" if got[0] != full else "empty"
            refuse(
                given,
                (everybody in got, f"{everybody} are all threads of the block. Nobody arrives on both "
                 "barriers: the one that expects everybody waits for ever."),
                (got == right[::-1], "They are exchanged: producers arrive on full, consumers on empty."),
                (got[0] in (full, producers * other) and got[1] in (empty, consumers * other),
                 f"The count of {wrong} is right for the other value of arrivals: one lane of a warp, or all "
                  "32."),
                (got in ((full + 1, empty), (full + 1, empty + 1)), "Bytes are counted by tx. They are no "
                 "arrivals."),
                (producers + consumers in got, "Those are all warps. Nobody arrives on both barriers."),
                (True, f"Count again for {wrong}: the warps that arrive there in one lap, and the lanes of "
                 "each."),
            )  # fmt: skip
    return ("Full counts the producers' arrivals, and the bytes besides; empty counts the consumers'. A thread "
        "with neither role is in neither count.")  # fmt: skip


@exercise(
    "Empty expects one arrival of each consumer warp. When has a *warp* read the stage?",
    faults={
        faults.ReadAfterRelease: "One lane speaks for 32: before it does, all of them must have read. Release "
        "after the work, and let the lanes meet first.",
        faults.RefillRace: "One lane speaks for 32, and the others may still be reading when it does. Let the "
        "lanes meet first: cuda.syncwarp().",
        faults.TooManyArrivals: "Empty was initialised for one arrival of each consumer warp. Here every lane "
        "arrives.",
        faults.UnobservedPhase: "Empty was initialised for one arrival of each consumer warp. Here more "
        "arrive.",
        faults.MissingRefillFence: "An arrival alone does not wait for loads that are under way, and neither "
        "does the copy engine: ring.release(state) has the fence before it.",
        faults.MissingArrivals: "Nobody gives the stage back: the producer waits for it for ever.",
    },
)
def consumer(build, engine=None):
    """build(stages) -> the persistent kernel(data, out, items), its release written."""
    for stages in (2, 3):
        built = build(stages)
        with explained(functools.partial(_why_not_given_back, built)):
            for landing in ("late", "random"):
                trace(built, "", "cpu", items=2, landing=landing, schedules=2)
    if engine == "gpu":
        trace(built, "", engine, items=4, grid=2)
    return "Read, meet, and one lane arrives: three arrivals on empty for each tile, in every schedule."


def _why_not_given_back(built, fault):
    """Of ``consumer``: what to say of some mistakes; the others are told by their fault alone."""
    missing, kind = isinstance(fault, faults.MissingArrivals), type(fault)
    source, many = "".join((fault.source or "").split()), kind is faults.TooManyArrivals
    return first_of(
        (missing and "waits on syncthreads" in fault.what, "syncthreads waits for the whole block, and the "
         "producer never comes. One *warp* has to meet."),
        (missing and "waits on syncwarp" in fault.what, "One lane alone cannot meet the others. All 32 have to "
         "come: the syncwarp stands outside of any branch."),
        (missing and f"pending {CONSUMERS} of" not in fault.what, f"Only some of the {CONSUMERS} consumer "
         "warps give the stage back. *Each* of them has a lane that does."),
        (kind is faults.MissedPhase or many and " on ring.full[" in fault.what, "That is "
         "an arrival on *full*, as the producer's expect is. Consumers give a stage back on empty."),
        ((many or kind is faults.UnobservedPhase) and "release(" in source and "release(state)" not in source,
         "It gives back another stage than it has read. In which state has it waited?"),
        (many and under_if(built, "ring.release", "lane", "consumer", "warp"), "Empty was initialised for one "
         "arrival of each consumer warp. More than one lane of a warp comes through this `if`."),
    )  # fmt: skip


@exercise(
    "A fresh barrier passes a wait for parity 1. In lap 1 the producer waits for the end of which phase?",
    faults=dict.fromkeys(
        (faults.StaleRefill, faults.TooManyArrivals, faults.UnobservedPhase),
        "The producer does not wait for the consumers here: its bit has to flip with every lap of the ring, or "
        "it passes by a phase that was over long ago.",
    )
    | {
        faults.MissingArrivals: "The producer waits for a release before there was anything to release: in "
        "lap 0 it has to pass at once.",
        faults.RefillRace: "The producer passes before the consumers have released: which phase of empty do "
        "they complete by releasing lap 0?",
    },
)
def producer_parity(answer):
    """answer(lap) -> the parity with which a producer awaits empty, a function that kernels may call."""
    laps = [value_of(answer, lap) for lap in range(6)]
    require(all(parity in (0, 1) for parity in laps), f"In the laps 0 to 5 it says {laps}. A parity is one "
            "bit, 0 or 1.")  # fmt: skip
    data, out = random_words(7, LANES, seed=5), poison(LANES)
    run(_ring_with(answer), 1, (data, out), engine="cpu")
    require(np.array_equal(out, data.sum(axis=0)), "The sums are not those of the tiles.")
    require(laps == [1, 0, 1, 0, 1, 0], f"In the laps 0 to 5 it says {laps}.")
    return ("1, 0, 1, 0: always the opposite of the consumer's. The producer waits for the phase before its "
        "own lap, and in lap 0 that is the one that a fresh barrier calls completed.")  # fmt: skip


def _ring_with(parity_of):
    """A producer thread and a consumer warp, two stages, seven tiles."""
    STAGES, ITEMS, BYTES = 2, 7, 4 * LANES
    parity = cuda.jit(device=True)(parity_of)
    shared = Shared(
        tiles=Array((STAGES, LANES), uint32, alignment=128), ring=Ring(STAGES, full=1, empty=LANES)
    )  # fmt: skip
    ring = shared.ring

    @kernel(threads=2 * LANES, shared=shared)
    def two_roles(data: u64, out: uint32[:]):
        shared.init()
        tiles, tid, state, total = shared.tiles.view(), cuda.threadIdx.x, ring.start(), uint32(0)
        for i in range(ITEMS):
            if tid == 0:
                mbarrier_wait(ring.empty(state), parity(i // STAGES))
                ring.expect(state, BYTES)
                tile = global_at(data, i, BYTES)
                cp_async_bulk_load(shared.tiles.at(state.stage), tile, BYTES, ring.full(state))
            elif tid >= LANES:
                ring.wait(state)
                total += tiles[state.stage, tid - LANES]
                ring.release(state)
            state = ring.advance(state)
        if tid >= LANES:
            out[tid - LANES] = total

    return two_roles


SHARES = (  # made up: who is the bottleneck, and the shares of a producer's time and of a consumer's
    ("producers", (0.05, 0.75, 0.2), (0.75, 0.2, 0.05)),
    ("producers", (0.05, 0.25, 0.7), (0.75, 0.2, 0.05)),
    ("producers", (0.05, 0.03, 0.92), (0.97, 0.02, 0.01)),
    ("consumers", (0.8, 0.15, 0.05), (0.05, 0.85, 0.1)),
    ("consumers", (0.8, 0.15, 0.05), (0.05, 0.3, 0.65)),
    ("copies", (0.85, 0.1, 0.05), (0.8, 0.15, 0.05)),
)


@exercise("The role that waits is not the bottleneck. And if both wait, what are they waiting for?")
def bottleneck(answer):
    """answer(producer, consumer): shares of one warp of each role -> producers, consumers or copies."""
    names = ("producers", "consumers", "copies")
    for right, producer, consumer in SHARES:
        producer = dict(zip(("acquire", "issue", "prepare"), producer, strict=True))
        consumer = dict(zip(("wait", "compute", "other"), consumer, strict=True))
        got = choice(value_of(answer, producer, consumer), names)
        if got == right:
            continue
        acquire, wait = producer["acquire"], consumer["wait"]
        given = f"Where a producer acquires {acquire:.0%} of its time and a consumer waits {wait:.0%}, it says "
        given += f"{got!r}. "
        require(got in names, given + "The answer is one of 'producers', 'consumers' and 'copies'.")
        require(right != "copies", given + "Both wait most of their time. So neither of them is slow. The "
                "copies are: their latency, or a full unit. More stages or larger boxes may help.")  # fmt: skip
        require(got != "copies", given + "The copies are to blame only where both roles wait.")  # fmt: skip
        require(max(producer["issue"], consumer["compute"]) > 0.5, given + "Work has several parts here, and "
                "no one of them is long. What tells is who *waits*.")  # fmt: skip
        raise Wrong(given + "The one that waits is idle because of the other. Look for the role that never "
         "waits.")
    return "The bottleneck is the one that never waits; where both wait, it lies between them."


@exercise("A warp issues a tile every `cycles`. How many such warps issue at once on one SM?")
def forecast(answer):
    """answer(issue, share, producers, blocks) -> cycles a tile per SM."""
    for issue, share, producers, blocks in ((81.5, 0.725, 2, 4), (80.0, 0.5, 4, 3), (90.0, 1.0, 1, 2)):
        got, right = value_of(answer, issue, share, producers, blocks), issue / share / (producers * blocks)
        if abs(got - right) < 1e-6 * right:
            continue
        given = f"For {issue} cycles, {share:.1%} of the time, {producers} producers in each of {blocks} "
        given += f"blocks it says {got:.4g}. "

        def is_(other, got=got):
            return abs(got - other) < 1e-6 * other

        require(not is_(issue / (producers * blocks)), given + "As if a producer did nothing but issue. A tile "
                "takes it all the cycles between two issues, and these are only a share of them: divide by it.")
        require(not is_(issue / share / producers), given + "That is one block; an SM holds several, and all "
                "their producers issue at once.")  # fmt: skip
        require(not is_(issue * share / (producers * blocks)), given + "Multiplied by the share it gets "
                "shorter. The time between two tiles is longer than the issue alone.")  # fmt: skip
        require(abs(got - right) >= 1 or got != int(got), given + "That is rounded. Keep the fraction of a "
         "cycle.")
        raise Wrong(given + f"{producers * blocks} warps issue at once, each a tile in {issue / share:.1f}.")
    return "The warps' rates add up. Here that makes about 14 cycles a tile, where the TMA unit needs 8."

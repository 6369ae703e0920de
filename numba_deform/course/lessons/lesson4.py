"""The checks of lesson 4, stages, and the timelines of kernels that are written in a notebook."""

import numpy as np

from ...device.limits import SM, limits_of
from ...engines import faults
from ...kernels.budget import Budget
from ...kernels.problem import Constants
from ...kernels.registry import variant
from ..bugs.base import poison, random_words
from .exercise import Wrong, exercise, explained, require, under_if, value_of
from .results import results
from .running import run, traced

LANES, TILES, WORDS, WORK = 32, 12, 8, 192  # as in the notebook
FACTOR = 5


# --- what the notebook's kernels are run on -------------------------------------------------------
def tiles_of_data(tiles=TILES, words=LANES * WORDS, seed=0):
    """Random tiles: (tiles, words) uint32."""
    return random_words(tiles, words, seed=seed)


def expected_sums(data, steps=WORK, lanes=LANES):
    """What ``work`` leaves in every lane after all tiles; uint32 (lanes,)."""
    total = np.zeros(lanes, np.uint32)
    for tile in data:
        words = tile.reshape(-1, lanes)
        for k in range(steps):
            total = total * np.uint32(FACTOR) + words[k % len(words)]
    return total


def sums(kernel, expected, *args, engine=None, **simulated):
    """Run ``kernel(args[0], out, *args[1:])``, return its ``Ran``; Wrong unless ``out`` is ``expected``."""
    out = poison(len(expected))
    ran = run(kernel, 1, (args[0], out, *args[1:]), engine=engine, **simulated)
    count = np.count_nonzero(out != expected)
    require(not count, f"{count} of the {len(out)} sums are not those of the tiles.")
    return ran


def trace(kernel, title, engine=None):
    """Run the traced form of the notebook's ``kernel(data, out)``, compare its sums; its ``timeline.Timeline``.

    Raises Wrong for other sums, and the SimFault of a broken rule.
    """
    data = tiles_of_data()
    right = expected_sums(data)
    return traced(kernel, title, lambda form, marks: sums(form, right, data, marks, 0, engine=engine))


def cycles(recorded):
    """From the first mark of a Timeline to its last."""
    return max(span.end for span in recorded.spans)


def measured_stages(name):
    """[(stages, ms, Budget)] of a variant on an H200, from ``bench/results/sweep_stages.json``."""
    constants, limits, measured = Constants(4, 8, 32), limits_of("sm_90a"), []
    for row in results("sweep_stages")["rows"]:
        if row["name"] == name and not row.get("refused"):
            config = variant(name).configure(constants, stages=row["config"]["stages"])
            measured.append((config.stages, row["median_ms"], Budget.of(config, constants, limits)))
    return measured


# --- exercises ------------------------------------------------------------------------------------
@exercise("Write down the first eight tiles of a ring of three: which stage, and which lap is it?")
def use(answer):
    """answer(i, stages) -> (stage, parity) of the full barrier of tile i."""
    for stages in (1, 2, 3, 4):
        for i in range(4 * stages):
            got, right = value_of(answer, i, stages), (i % stages, i // stages % 2)
            if got == right:
                continue
            require(isinstance(got, tuple) and len(got) == 2, f"For tile {i} it returns {got!r}, and not two "
                    "numbers (stage, parity).")  # fmt: skip
            given = f"With stages={stages}, tile {i} gets stage {got[0]} and parity {got[1]}. "
            require(got[0] == right[0], given + f"The stages are used in turn: it lies in {right[0]}.")
            require(got[1] != i // stages, given + "Right, this is the lap around the ring. A wait names it by "
                    "its lowest bit only.")  # fmt: skip
            by_tile = all(value_of(answer, n, stages)[1] == n % 2 for n in range(2 * stages))
            require(not by_tile, given + "This bit flips with every tile. A stage's barrier completes a "
                    "phase once a lap, so the bit flips when the ring wraps.")  # fmt: skip
            require(got[1] != 1 - right[1] or i, given + "That is the other one: a fresh barrier is in phase "
                    "0, and the first tile completes phase 0.")  # fmt: skip
            raise Wrong(given + f"That lap is number {i // stages}, if the first is number 0.")
    return "The stage is the remainder, the lap is the quotient, and the parity is the lap's lowest bit."


@exercise("A stage goes round in latency + work cycles. How many tiles can be worked on in that time?")
def stages_needed(answer):
    """answer(latency, work) -> the smallest number of stages with which the warp never waits."""
    cases = ((600, 200), (600, 150), (610, 200), (100, 400), (1000, 90))
    answers = [value_of(answer, latency, work) for latency, work in cases]
    steps = [-(-latency // work) for latency, work in cases]  # tiles on their way
    require(answers != steps, "So many steps of work do hide the latency. But while those tiles are in flight, "
            "one more is being read, and it needs a stage too.")  # fmt: skip
    require(answers != [latency // work + 1 for latency, work in cases], "For 610 cycles of latency and 200 of "
            "work it says 4. Then three steps of work, 600 cycles, have to cover 610: ten cycles of waiting "
            "are left in every step. Round up.")  # fmt: skip
    for (latency, work), got, ahead in zip(cases, answers, steps, strict=True):
        given = f"For a latency of {latency} and {work} cycles of work it says {got}. "
        require(got == int(got), given + "A ring has a whole number of stages: round up.")
        require(got == ahead + 1, given + f"{ahead} tiles must be in flight while one more is being read.")
    return ("Enough tiles in flight to cover the latency, and one that is being read. A deeper ring would have "
        "nothing left to hide.")  # fmt: skip


def _who_is_missing(fault):
    """What a standstill of the shared ring has to do with its three calls; threads wait on full or on empty."""
    if ".full" in fault.barrier:
        return ("The full barrier of this stage waits for thread 0, whose `expect` arrives there. Before that "
            "it may wait for an *empty* stage only: ring.acquire(ahead).")  # fmt: skip
    return ("The empty barrier expects an arrival of each of the 64 threads, in every lap: all of them "
        "release, in the state `now`.")  # fmt: skip


RING_FAULTS = {
    faults.MissingArrivals: _who_is_missing,
    faults.StaleRefill: "Thread 0 has waited, but not for the readers of the stage that it refills: it has to "
    "acquire it first, in the state `ahead`.",
    faults.RefillRace: "Thread 0 refills a stage while others still read it: it has to acquire it first, in "
    "the state `ahead`.",
    faults.UnobservedPhase: "Release the stage that was read, in the state `now`, and let thread 0 acquire "
    "before it refills: who arrives on empty has to know that the lap before is over.",
    faults.UninitialisedRead: "Nothing has arrived in this stage yet: wait on its full barrier, "
    "ring.wait(now), before the first read.",
    faults.FreshBarrierPassed: "A wait in the state `ahead` asks for a tile that nobody has asked for yet. The "
    "tile that is read is that of `now`: ring.wait(now).",
    faults.ReadAfterRelease: "The release says `I have read it`. Each thread says it for itself, "
    "after its last read.",
    faults.InFlightRead: "Nobody may read a tile before its full barrier says that it is there: "
    "ring.wait(now).",
    faults.TooManyArrivals: "Each thread releases a stage once for each tile.",
    faults.MissingRefillFence: "All threads have read the stage, and nobody arrives on the empty barriers: "
    "ring.release(now) does, past a fence. Without that, loads that are under way may return what the copy "
    "engine writes: a barrier of threads alone does not hold it back.",
}


def _of_some_threads(built):
    """What is wrong where a kernel's wait stands in a branch."""
    return under_if(built, "ring.wait", "tid", "lane", "warp") and (
        "A wait of some threads says nothing to the others. Each thread that reads must have waited, or have "
        "met one that has.")  # fmt: skip


@exercise(
    "Three calls: thread 0 acquires before it refills; everybody waits before, and releases after the work.",
    faults=RING_FAULTS,
)
def shared_ring(build, engine=None):
    """build(stages) -> kernel(data, out) of two warps that share a ring."""
    data = tiles_of_data(words=2 * LANES * WORDS, seed=1)
    expected = np.concatenate([expected_sums(half) for half in np.split(data, 2, axis=1)])
    for stages, landing, seed in ((2, "late", 0), (2, "random", 1), (3, "earliest", 0), (3, "random", 2)):
        built = build(stages)
        with explained({faults.InFlightRead: lambda _, built=built: _of_some_threads(built)}):
            sums(built, expected, data, engine="cpu", landing=landing, seed=seed)
    names = " ".join(built.py_func.__code__.co_names).replace("mbarrier_arrive_expect", "")
    require("release" in names or "mbarrier_arrive" in names, "No rule is broken, but nobody arrives on the "
            "empty barriers: all threads meet at every tile, so that no warp is ever ahead of the other. Let "
            "each thread release the stage, and thread 0 acquire it.")  # fmt: skip
    if engine == "gpu":
        sums(built, expected, data, engine=engine)
    return ("Acquire, expect, wait, release: all tiles arrive, none is overwritten early, in every schedule "
        "that was tried.")  # fmt: skip


MEND_FAULTS = {
    faults.OutOfRange: "There are two entries, one for each stage. Which stage has the tile `ahead`?",
    faults.UninitialisedRead: "The weight of this tile was stored somewhere, but not in the entry that is "
    "read here.",
    faults.RefillRace: "One fault is mended, the other shows: lane 0 runs on and refills the stage that a "
    "slower lane still reads. The lanes have to meet first.",
    faults.WarpDivergence: "One lane alone cannot meet the others. All 32 have to come, so a syncwarp stands "
    "outside of any branch.",
    faults.TooManyArrivals: "An arrive on full counts as the producer's. It ends phases, and nobody has waited "
    "for them.",
    faults.LiveBarrierInit: "This is what the kernel's authors tried. The barrier was never at fault, and "
    "starting it anew while it is in use is undefined.",
}


@exercise(
    "Store the weight in the entry of the *next* tile's stage; then: who may still be reading?", MEND_FAULTS
)
def mend(kernel, engine=None):
    """The two-stage kernel(data, weights, out) of the notebook, mended."""
    data = random_words(6, LANES, seed=3)
    weights = random_words(6, seed=4) & np.uint32(15)

    def result(chosen, **simulated):
        out = poison(LANES)
        run(kernel, 1, (data, weights, out), engine=chosen, **simulated)
        return out

    why = "A local array is each lane's own. One lane has stored the weight, and all of them read it."
    with explained({faults.UninitialisedRead: lambda _: under_if(kernel, "meta[ahead", "lane") and why}):
        out = result("cpu")
    # The last tile has its own weight where both entries are set, else that of the tile before the last.
    overwritten = "Every tile is multiplied by the weight of the next one: the entry of the tile that is being "
    overwritten += "read was overwritten. Index by the stage of tile `ahead`."
    last, odd = weights[-1:], np.append(weights[2:], weights[-1:])[::2]
    for others, sentence in (
        (np.append(weights[1:], last), overwritten),
        (np.append(weights[1:], weights[-2:-1]), overwritten),
        (np.append(weights[:1], weights[:-1]), "Every tile is multiplied by the weight of the one before it. "
         "Which tile is asked for here?"),
        (np.stack([np.full(3, weights[0]), odd], 1).ravel(), "All weights go into one entry. Each stage has "
         "its own: which stage has the tile `ahead`?"),
    ):  # fmt: skip
        require(not np.array_equal(out, others @ data), sentence)
    require(np.array_equal(out, weights @ data), "The weighted sum is not right yet.")
    for landing in ("late", "random"):
        require(np.array_equal(result("cpu", seed=1, schedules=8, landing=landing), weights @ data), "The sum "
                "is right in the first schedule and wrong in others.")  # fmt: skip
    if engine == "gpu":
        require(np.array_equal(result(engine), weights @ data), "On the GPU the sum is wrong.")
    return ("Both faults are gone. Two stages work, and the barriers are what they always were.")


@exercise("An SM has 228 KB. Each block takes its ring and its barriers, and 1 KB for the system.")
def most_stages(answer):
    """answer(stage_bytes, blocks) -> the largest ring with which so many blocks fit on an SM."""
    barriers, system, align = 64, 1024, 128  # bytes: the first of each stage, the others of each block
    # Each of them decides in some case: of 7 KB and 2 blocks, 16 stages are 128 bytes too many.
    for stage, blocks in ((16384, 3), (16384, 2), (7168, 2), (8192, 4), (32768, 3), (32768, 1)):
        right = (SM.shared // blocks - system - align) // (stage + barriers)
        got = value_of(answer, stage, blocks)
        given = f"For stages of {stage // 1024} KB and {blocks} blocks it says {got}. "
        require(got == int(got), given + "A ring has a whole number of stages: round down, as with `//`.")
        if got == right:
            continue
        kept = 0, system, system + align
        alone = {(SM.shared - less) // each for less in kept for each in (stage, stage + barriers)}
        require(blocks == 1 or got not in alone, given + f"That is for one block alone; here {blocks} of them "
                "share the SM.")  # fmt: skip
        taken = blocks * (got * (stage + barriers) + align + system)
        require(got <= right, given + f"{blocks} x ({got} x ({stage} + {barriers}) + {align} + {system}) = "
                f"{taken} bytes are more than {SM.shared}: one block less would fit.")  # fmt: skip
        raise Wrong(given + f"There is room for {right}: the {SM.shared} bytes (228 x 1024) are those of an "
                    "SM, for all its blocks.")  # fmt: skip
    return "Three blocks with stages of 16 KB leave room for four. The fifth stage costs a whole block."

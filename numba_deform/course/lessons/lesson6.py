"""The checks of lesson 6, debugging: predictions, and five pipelines to mend."""

import ast
import functools
import inspect
import re
import textwrap
from unittest import mock

import numpy as np

from ...engines import faults
from ...engines.cpu import SimFault, explore, simulate
from ...engines.cpu.reports.call_sites import line_of
from ...engines.cpu.schedules import controlled_block
from ..bugs.base import Launch, poison, random_words, sums_of_tiles
from .exercise import Wrong, choice, exercise, explained, fault_message, first_of, number, plain, require
from .results import results
from .running import run

LANDINGS = ("late", "random", "earliest")
SCHEDULES = 4  # for each landing
LANES, ITEMS, READERS = 32, 6, 64  # of the notebook's first two pipelines
POINTS, THREADS = 4, 64  # of the third
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")


def steps_of(kernel, args, seed):
    """[("warp N", source line)] of one block: what others can see, in the order of the schedule ``seed``.

    ``kernel`` calls its intrinsics itself. Lanes that come to a line together are one step. A run that breaks a
    rule ends in the fault's name."""
    lines, first = inspect.getsourcelines(kernel.py_func)
    steps, give_way = [], controlled_block.ControlledThread.give_way

    def noting(thread, operation):
        give_way(thread, operation)  # comes back when it is this thread's turn
        step = f"warp {thread.warp}", lines[line_of(thread.site()) - first].strip()
        if step not in steps[-1:]:
            steps.append(step)

    with mock.patch.object(controlled_block.ControlledThread, "give_way", noting):
        try:
            simulate(kernel, 1, kernel.threads, args, seed=seed)
        except SimFault as fault:
            steps.append((f"warp {fault.threads[0] // 32}", type(fault).__name__))
    return steps


def _names(kernel):
    return kernel.py_func.__code__.co_names


def _mended(kernel, fresh, explain, engine=None):
    """Run ``kernel`` on ``fresh()`` launches over schedules and landings; returns how many runs there were.

    ``explain(fault)`` is the exercise's own sentence to a fault; ``fault`` is None where no rule is broken but
    the numbers are wrong. Where lessons run on a GPU, a kernel that is clean here runs there too.
    """
    runs = 0
    for landing in LANDINGS:
        launch = fresh()
        with explained(lambda fault: not isinstance(fault, faults.NotCompiled) and explain(fault)):
            run(kernel, launch.grid, launch.args, engine="cpu", schedules=SCHEDULES, landing=landing)
        wrong = launch.wrong()
        require(not wrong, f"No rule is broken, but {wrong} of {launch.out.size} numbers are wrong. "
                f"{explain(None)}")  # fmt: skip
        runs += SCHEDULES
    if engine == "gpu":
        launch = fresh()
        run(kernel, launch.grid, launch.args, engine="gpu")
        require(not launch.wrong(), "The CPU engine finds nothing, but on the GPU the numbers differ.")
    return runs


# --- 1: a standstill ------------------------------------------------------------------------------
@exercise("Go through the loops by hand: tile 0, tile 1, and then? The ring has two stages.")
def standstill(producer, consumers, tiles):
    """producer, consumers: "full" or "empty"; tiles: how many each reader has added."""
    producer, consumers = (choice(word, ("full", "empty")) for word in (producer, consumers))
    tiles = number(tiles, "number of tiles", "tiles")
    for name, word in (("producer", producer), ("consumers", consumers)):
        known = word in ("full", "empty")
        require(known, f'{name} = {word!r}: there are two kinds of barriers, "full" and "empty".')
    require(producer == "empty", "The producer never waits on full. It waits for empty stages (line B) and "
            "fills them.")  # fmt: skip
    require(consumers == "full", "The consumers never wait on empty: they arrive there (line D). They wait for "
            "full stages (C).")  # fmt: skip
    require(tiles != 0, "Some tiles do get through: a fresh empty barrier lets parity 1 pass at once, so the "
            "first round needs no arrival on it.")  # fmt: skip
    require(tiles != ITEMS, f"If all {ITEMS} tiles were added, the kernel would have ended. Who gives a stage "
            "back?")  # fmt: skip
    require(tiles == 2, f"{tiles} is not it. Tiles pass until the producer needs a stage a second time: count "
            "the stages.")  # fmt: skip
    return ("One tile for each stage, and then a circle: the producer waits for an empty stage, and the "
        "consumers wait for the tile that it would bring.")  # fmt: skip


def _count_of(fault):
    count = getattr(fault, "state", None) or ""
    pending = count.partition("pending ")[2].partition(",")[0]
    return f"Its barrier says: pending {pending}. " if pending else ""


@exercise("Who executes line D, and how often in one round?")
def arrivals(empty, build, engine=None):
    """empty: the count of arrivals on empty; build(empty) is the kernel roles(data, out)."""
    empty = number(empty, "number of arrivals", "empty")
    require(empty > 0, f"{empty} is no count: at least one arrival ends a phase.")

    def explain(fault):
        if empty < READERS // LANES:
            return ("That is too few: the first warp's arrival ends the phase alone, and the stage would be "
                "refilled while the other warp still reads it.")  # fmt: skip
        return (f"{_count_of(fault)}That is more than ever arrive. Count the threads that execute line D, not "
            "those that read; and the producer does not arrive on empty.")  # fmt: skip

    runs = _mended(build(empty), functools.partial(sums_of_tiles(ITEMS, READERS), 6), explain, engine)
    return (f"Two warps read, and one lane of each arrives, so 2. {runs} runs on the CPU engine are clean, in "
        "three ways of landing.")  # fmt: skip


# --- 2: a race ------------------------------------------------------------------------------------
@exercise("Which two of the lines A to D touch the bytes of a tile, one of them writing?")
def race(lines, later):
    """lines: two letters; later: how many iterations after the read the other line comes."""
    words = re.sub("[A-Z]{3,}", "", str(lines).upper())  # as in "lines B and D"
    letters = "".join(sorted(set(re.findall("[A-D]", words))))
    require(len(letters) == 2, f"lines = {lines!r}: give the letters of *two* of the lines A to D.")
    require(letters != "CD", "C waits for the bytes that D reads: the full barrier puts these two in order.")
    require("A" not in letters, "A touches only the barrier, and barriers may be used by all at once. Look for "
            "the tile's bytes.")  # fmt: skip
    require(letters != "BC", "C touches only the barrier. Who reads the bytes that the copy of B overwrites?")
    later = number(later, "number of iterations", "later")
    require(later != 2, "Tile i + 2 lies where tile i was, that is right. But it is asked for one ahead, "
            "before tile i + 1 is even waited for.")  # fmt: skip
    require(later != 0, "In its own iteration B asks for the *other* stage: tile i + 1, while D reads tile i.")
    require(later == 1, f"{later} iterations later is not it: when is tile i + 2 asked for?")
    return ("In iteration i + 1 lane 0 asks for tile i + 2, into the stage of tile i. Lane 0 itself has read "
        "tile i by then. Nothing says that the 31 others have.")  # fmt: skip


@exercise("What makes lanes of one warp wait for each other?")
def warp_sync(kernel, engine=None):
    """The kernel pipeline(data, out) with all lanes' reads before the refill."""

    def explain(fault):
        if fault is None:
            return "Every lane has to add its own number of every tile."
        source, names = inspect.getsource(kernel.py_func), {*_names(kernel)}
        return first_of(
            (isinstance(fault, faults.WarpDivergence), "One lane alone cannot meet the others: all 32 have to "
             "come to the syncwarp. So it stands outside of any branch, and has no mask."),
            ("mbarrier_arrive" in source or source.count("expect(") > 2, "An arrive on full counts as the "
             "producer's, and ends a phase for which no tile has come."),
            (not isinstance(fault, faults.DataRace), ""),
            (names & {"syncwarp", "syncthreads", "release"}, "The lanes meet in the wrong place. All of them "
             "have to come there behind their read (D), and lane 0 before its next copy (B)."),
            (source.count("wait(") > 1, "A wait for full says that a tile has come. You need to know that all "
             "lanes have read theirs."),
            (source.count("fence") > 1, "A fence orders what *one* thread does. It does not wait for the other "
             "lanes, and those are still reading."),
            ("_sync(" in source, "A shuffle or a vote hands numbers around. It orders no reads and writes."),
            (True, "Nothing makes the lanes meet: lane 0 runs on, and refills a stage that others may still "
             "read."),
        )  # fmt: skip

    runs = _mended(kernel, functools.partial(sums_of_tiles(ITEMS, LANES), 6), explain, engine)
    return ("After it lane 0 knows that all lanes are past their read. No barrier in memory is needed, since "
        f"readers and loader are one warp. {runs} runs are clean.")  # fmt: skip


# --- 3: the tail ----------------------------------------------------------------------------------
def _queries(queries):
    weights = random_words(POINTS, seed=7) & np.uint32(15)
    data, out = random_words(queries, seed=8), poison(queries)
    expected = data * weights.sum(dtype=np.uint32)
    return Launch((weights, data, out, queries), out, expected, grid=-(-queries // THREADS))


@exercise("A block has 64 threads. In which launches does some block have threads without a query?")
def tail(hangs):
    """hangs: those of 64, 96, 128, 200 queries that do not end."""
    hangs = plain(hangs)
    require(isinstance(hangs, (tuple, set)), "Write a list of numbers, like [64, 200].")
    hangs = {number(each, "number of queries") for each in hangs}
    require(hangs <= {64, 96, 128, 200}, f"Choose among 64, 96, 128 and 200: {sorted(hangs)} has others.")
    require(not hangs & {64, 128}, "64 and 128 queries fill their blocks to the last thread: all arrive, and "
            "nothing hangs.")  # fmt: skip
    require(hangs != {200}, "200 does hang, and 96 does too: one warp of its second block leaves as a whole, "
            "but it is threads that the barrier counts.")  # fmt: skip
    require(hangs != {96}, "96 does hang, and 200 does too: its fourth block has 8 queries for 64 threads.")
    require(hangs, "At least one of them hangs: look at the last block of each launch.")
    return ("The last block of each has threads without a query. They leave, and the barrier still expects "
        "them.")  # fmt: skip


@exercise("How many rounds does a thread with a query need? And one without?")
def rounds(kernel, engine=None):
    """The kernel weighted(weights, data, out, queries) that ends for every number of queries."""

    def explain(fault):
        if fault is None:
            return "Each of the four points has to be added for each query."
        if isinstance(fault, (faults.OutOfRange, faults.UninitialisedRead)):
            return f"There are {POINTS} weights, and this round has none. Which rounds has *every* thread?"
        if queries == THREADS:
            return f"All {THREADS} threads have a query here, and some of them stay away from a round."
        if "phase 0" in (fault.state or ""):
            return "It is the same fault in other words: threads without a query do not come to the barrier."
        return ("All threads come to the first round, and some of them stay away from a later one. The barrier "
            "expects all 64 in *every* phase.")  # fmt: skip

    runs = 0
    for queries in (THREADS, 96, 200):
        runs += _mended(kernel, lambda queries=queries: _queries(queries), explain, engine)
    return (f"Every thread makes every round; only loading and storing depend on having a query. {runs} runs "
        "with 64, 96 and 200 queries are clean.")  # fmt: skip


# --- 4: one order of many -------------------------------------------------------------------------
PLACES = ("before A", "between A and C", "after C")


@exercise("Write down what `seen` is in each of the three cases, and what line E reads then.")
def order(place):
    """place: where the consumer's look D has to fall for the kernel to be wrong."""
    place = choice(place, PLACES)
    require(place in PLACES, f"{place!r} is not one of {', '.join(map(repr, PLACES))}.")
    require(place != "before A", "Before A the flag is EMPTY. The consumer sees it, leaves the box alone and "
            "fetches the number itself.")  # fmt: skip
    require(place != "after C", "After C the flag is READY. It was set with release and is read with acquire, "
            "so the number is there.")  # fmt: skip
    return "Between A and C the flag is not EMPTY any more, and the number is not there yet."


@exercise("For which value of the flag is the number in the box?")
def ready(kernel):
    """The kernel mailbox(data, out), right in every order of its events."""
    data, out = random_words(1, seed=9), poison(2)
    try:
        tried = explore(kernel, 1, 64, (data, out))
    except SimFault as fault:
        run(kernel, 1, (data, out), engine="cpu")  # the order in which the flag is READY
        if "flag[" in fault.what:
            why = "This uses the flag as plain memory. What line D has read is `seen`."
        else:
            when = "also" if out[1] else "just when it must not be:"
            why = f"The box is taken {when} before the producer has finished."
        raise Wrong(fault_message(fault, why)) from None
    require(out[0] == data[0], "No rule is broken, but the number that the consumer writes is not the one that "
            "was sent.")  # fmt: skip
    require(tried.results > 1 or not out[1], "The numbers are right, and yet it waits: in every order the "
            "consumer takes the number from the box. It is to look at the flag once, and to go on.")
    require(tried.results > 1, f"No order of the events breaks a rule ({tried.schedules} were tried), but in "
            "none of them does the consumer take the number from the box. So it is of no use.")  # fmt: skip
    return (f"Complete: there are only {tried.schedules} schedules. None breaks a rule, and in some the "
        "consumer finds the number in the box. That is a proof for this kernel, not a sample.")  # fmt: skip


# --- 5: nobody notices ----------------------------------------------------------------------------
def noticed(name):
    """Who notices a planted fault, of the four tools, ``numbers`` on the H200 and ``CPU engine``."""
    (gpu,) = (row for row in results("bugs")["rows"] if row["bug"] == name)
    (tools,) = (row for row in results("sanitizer_bugs")["rows"] if row["bug"] == name)
    noticing = {tool for tool in TOOLS if tools[tool] != "nothing"}
    if gpu["gpu"] != "right":
        noticing.add("numbers")
    return noticing | ({"CPU engine"} if gpu["cpu_engine"] else set())


@exercise("Think of what each tool watches. Which of them knows about two views of one memory?")
def notice(who):
    """who: names out of ``numbers``, the tools of compute-sanitizer, ``CPU engine``."""
    names, truth = (*TOOLS, "numbers", "CPU engine"), noticed("no_proxy_fence")
    who = [who] if isinstance(who, str) or not np.iterable(who) else who
    who = [choice(name, names) for name in who]
    odd = [name for name in who if name not in names]
    require(not odd, f"The names are numbers, {', '.join(TOOLS)} and CPU engine. {odd[:1]} is none of them.")
    who = set(who)
    require("numbers" not in who, "On the H200 all numbers were right, by luck: the writes had reached shared "
            "memory in time.")  # fmt: skip
    require("racecheck" not in who, "racecheck says nothing: a syncwarp stands between the lanes' writes and "
            "lane 0, and it does not follow how the copy engine sees memory.")  # fmt: skip
    require(not who & {"memcheck", "synccheck", "initcheck"}, "Addresses, barriers and initialisation are all "
            "in order here, so these three have nothing to say.")  # fmt: skip
    require(who == truth, "Somebody does notice: the next cell asks it.")
    return "Only the CPU engine does, since it keeps for each byte whether its writer has passed a fence."


MISPLACED = {
    "branch": "It is the right fence, in one lane only, or in some. A fence orders what its own "
    "thread has written, and all 32 lanes have written.",
    "early": "It is the right fence, before the write. A fence orders what its thread has written by then.",
    "late": "It is the right fence, behind the copy. It has to stand between the writes and the copy.",
}
OTHER_FENCES = (
    ("fence_proxy_async_global", "This fence is for global memory. The tile lies in shared memory."),
    ("fence_proxy_tensormap", "This fence is for tensor maps, which the copy engine reads. The tile is no "
     "map."),
    ("fence_mbarrier_init", "This fence shows the copy engine new barriers, and nothing else."),
)
ORDERS = {
    "threadfence", "threadfence_block", "threadfence_system", "fence_acq_rel_cta", "fence_acq_rel_gpu",
    "syncthreads",
}  # fmt: skip


def _place_of_fence(kernel):
    """Where a kernel has fence_proxy_async: in a "branch", "early" or "late"; see MISPLACED."""
    tree = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(kernel.py_func))))
    lines = [(node.lineno, ast.unparse(node)) for node in tree if isinstance(node, (ast.Assign, ast.Call))]
    words = "fence_proxy_async()", "tile[", "_store("
    fence, write, copy = (max((at for at, text in lines if word in text), default=0) for word in words)
    return "late" if fence > copy else "early" if fence < write else "branch"


@exercise("It is the fence whose name says between which two *proxies* it stands. Who needs it?")
def proxy_fence(kernel, engine=None):
    """The kernel add_one(data, out), whose writes the copy engine sees."""

    def fresh():
        data, out = random_words(LANES, seed=5), poison(LANES)
        return Launch((data, out), out, data + 1)

    def explain(fault):
        names = _names(kernel)
        if fault is None:
            return "The tile has to hold data + 1 before it is stored."
        if isinstance(fault, faults.DataRace):
            return "The lanes have to meet between their writes and the copy. A fence does not wait for others."
        if "fence_proxy_async" in names:
            return MISPLACED[_place_of_fence(kernel)] if isinstance(fault, faults.MissingProxyFence) else ""
        for name, sentence in OTHER_FENCES:
            if any(name in of for of in names):
                return sentence
        what = "This orders" if ORDERS & set(names) else "No fence is there yet. The syncwarp only orders"
        return (f"{what} ordinary accesses among themselves. The copy engine looks through another proxy, "
            "which only fence_proxy_async reaches.")  # fmt: skip

    runs = _mended(kernel, fresh, explain, engine)
    return ("Write, then the fence in every thread that wrote, then meet, then one thread issues the copy. "
        f"(Behind the meeting, a fence in that thread would do as well.) {runs} runs are clean.")  # fmt: skip

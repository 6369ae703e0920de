"""Lesson 12, clusters: what the engine sees of two blocks that share a load, and the checks."""

from functools import partial
from itertools import product
from types import FunctionType
from unittest import mock

import numpy as np

from ...engines import faults
from ...engines.cpu import SimFault, simulate
from .cluster_kernels import BLOCKS, DEPTH, SIDE, STEPS, pair
from .exercise import Wrong, exercise, explained, first_of, require, value_of
from .lesson11 import arguments, expected, operands, run


# --- what goes over the wires ---------------------------------------------------------------------
def traffic(report):
    """(bytes that TMA fetched from global memory or L2, bytes that it wrote into shared memory) of a run with
    ``trace=True``. A multicast is fetched once, and written once in each block."""
    fetched = {event for event in report.events if event.kind == "issue"}  # equal ones are one multicast
    flights = sum(event.bytes for event in report.events if event.kind == "flight")
    return sum(event.bytes for event in fetched), flights


def recorded(kernel, steps=STEPS, cluster=None):
    """The Report, with events, of a product of two blocks on the CPU engine; Wrong if its numbers are."""
    a, b = operands(steps)
    args = arguments(a, b, SIDE // 2 if cluster else SIDE)
    report = simulate(kernel, BLOCKS, args=args, cluster=cluster, trace=True)
    require(np.array_equal(args[2], expected(a, b)), "The product is wrong.")
    return report


# --- exercises ------------------------------------------------------------------------------------
SHAPES = ((2, 1), (1, 2), (2, 2), (4, 2))  # of clusters: across, down


@exercise("How many tiles does C have in x? Then round up to a multiple of the cluster.")
def grid(answer):
    """answer(rows, columns, across, down) -> (x, y), the blocks of a launch."""
    for (rows, columns), (across, down) in product(((64, 64), (16, 80), (70, 33)), SHAPES):
        tiles = -(-columns // SIDE), -(-rows // SIDE)
        right = tuple(-(-n // of) * of for n, of in zip(tiles, (across, down), strict=True))
        got = value_of(answer, rows, columns, across, down)
        if got == right:
            continue
        given = f"For a C of {rows} x {columns} and clusters of {across} x {down} it says {got!r}. "
        require(isinstance(got, tuple) and len(got) == 2, given + "Two numbers: (x, y).")
        reached = tuple(-(-n // (SIDE * of)) for n, of in zip((columns, rows), (across, down), strict=True))
        across_first = tuple(-(-n // of) * of for n, of in zip(tiles[::-1], (down, across), strict=True))[::-1]
        require(got != reached or got == tiles, given + "A grid counts blocks, not clusters.")
        require(got not in (right[::-1], across_first[::-1]), given + "x counts along a row of C, so it takes "
                "the columns, and `across`.")  # fmt: skip
        larger = tuple(n > 4 * t + 4 for n, t in zip(got, tiles, strict=True))
        require(not any(larger), given + f"A tile has 16 elements each way: {tiles} tiles cover C.")
        for n, of, name in zip(got, (across, down), ("across", "down"), strict=True):
            no = f"{n} is no multiple of the cluster, which has {name} = {of}: the launch is refused. Round up."
            require(n % of == 0, given + no)
        require(all(n >= t for n, t in zip(got, tiles, strict=True)), given + "So many blocks do not cover C, "
                f"which has {tiles} tiles. Round up, not down.")  # fmt: skip
        raise Wrong(given + f"That is more than it takes: {tiles} tiles, rounded up, are {right} blocks.")
    return "Rounded up twice: to whole tiles, then to whole clusters. Some blocks have no part of C."


@exercise("Which ranks have the same y as this block, and which the same x? Each of them is a bit.")
def masks(answer):
    """answer(rank, across, down) -> (mask of A, mask of B)."""
    for across, down in SHAPES:
        for rank in range(across * down):
            x, y = rank % across, rank // across
            same = [across * y + i for i in range(across)], [across * j + x for j in range(down)]
            right, got = tuple(map(_mask, same)), value_of(answer, rank, across, down)
            if got != right:
                raise Wrong(_what_is_wrong_with_masks(got, right, same, rank, across, down))
    return "A block's tile of A goes along its row of the cluster, its tile of B down its column."


def _mask(ranks):
    return sum(1 << rank for rank in ranks)


def _what_is_wrong_with_masks(got, right, same, rank, across, down):
    given = f"For rank {rank} of {across} x {down} it says {got!r}. "
    if not (isinstance(got, tuple) and len(got) == 2):
        return given + "Two masks: (of A, of B)."
    if not all(isinstance(mask, (int, np.integer)) for mask in got):
        return given + "A mask is a number with a bit for each rank: 5 = 1 << 0 | 1 << 2 is ranks 0 and 2."
    own, every = 1 << rank, (1 << across * down) - 1
    y, x = rank % across, rank // across
    mixed = _mask(across * y + i for i in range(across)), _mask(across * j + x for j in range(down))
    if got == (across, down):
        return given + "A mask is no count: which ranks are they? Each rank has a bit."
    if got == tuple(int(f"{mask:b}") for mask in right):
        return given + "Those are the digits of a binary number, read as a decimal one."
    if got == mixed:
        return given + "Row and column of a rank are mixed up: the ranks go along a row of the cluster first."
    if got == right[::-1]:
        return given + "They are exchanged: blocks beside each other share A, blocks below each other share B."
    if got == tuple(mask & ~own for mask in right):
        return given + "Its own block needs the tile, too: a multicast sends it there only if its bit is set."
    if got == (own, own):
        return given + "That is only its own bit, and nobody shares anything."
    if got == (every, every):
        return given + "That sends each tile to the whole cluster, where some blocks need another one."
    if got[0] == (1 << across) - 1 and rank >= across:
        return given + f"Those are of the first row of the cluster. Rank {rank} shares A with {same[0]}."
    if got == tuple(2 * mask for mask in right):
        return given + "Rank 0 is bit 0."
    return given + f"It shares A with the ranks {same[0]}, B with {same[1]}."


FETCH_FAULTS = dict.fromkeys(
    (faults.UninitialisedRead, faults.InFlightRead),
    "The consumer has been let in too early: into each block come a whole tile of A, of which the other block "
    "fetches a half, and a tile of B. Its own barrier counts all of them.",
) | {
    faults.Misaligned: "An address counts bytes: a row of A has 128 of them, and the lower half begins eight "
    "rows below the upper one.",
    faults.MoreBytesThanExpected: "More comes into a block than it has announced: a whole tile of A, of which "
    "the other block fetches a half, and a tile of B. Its own barrier counts all of them.",
    faults.CopyCollision: "Both halves of A go to one place. The block of rank 1 fetches the lower eight rows, "
    "and they belong behind the upper ones.",
    faults.NotInCluster: "A mask has a bit for each block of the cluster, and here are two: ranks 0 and 1.",
    faults.MissingBytes: "A full barrier waits for bytes that nobody sends. Count what comes into one "
    "block, and look at the mask: bit r sends the box into the block of rank r as well.",
}


def _wrong_half(answer, fault):
    """Why two copies come to one place, where it is not that both halves of A do."""
    if " into b[" in fault.what:
        return ("A half of A is fetched into the tile of B. The lower half begins in the middle of the tile of "
            "A, not behind it.")  # fmt: skip
    elements = SIDE // 2 * DEPTH
    alike = _bytes_to_the_lower_half(answer) == elements
    return alike and f"An address counts bytes. Eight rows are {elements} elements."


@exercise(
    "What comes into *one* block, from both? And a mask has a bit for each block that gets the box.",
    faults=FETCH_FAULTS,
)
def fetch(answer, engine=None):
    """answer(a_map, b_map, a, b, full, step, rank, column), a device function."""
    a, b = operands()
    for landing, seed in (("late", 0), ("random", 1), ("earliest", 2)):
        with explained({faults.CopyCollision: partial(_wrong_half, answer)}):
            _check_pair(pair(2, answer), a, b, landing=landing, seed=seed)
    if engine == "gpu":
        _check_pair(pair(2, answer), a, b, engine=engine)
    return ("Each block announces 4096 bytes on its own barrier: its tile of B, the half of A that it fetches, "
        "and the half that the other one sends.")  # fmt: skip


def _bytes_to_the_lower_half(fetch):
    """How far behind the half of rank 0 a reader's ``fetch`` puts that of rank 1."""
    halves = []
    for rank in range(2):
        device = mock.MagicMock(**{f"{name}.side_effect": int for name in ("int32", "uint32")})
        python = FunctionType(fetch.py_func.__code__, {**fetch.py_func.__globals__, "nd": device})
        python(*[0] * 6, rank, 0)
        halves.append(device.cp_async_bulk_tensor_2d_multicast.call_args.args[0])
    return halves[1] - halves[0]


def _check_pair(kernel, a, b, engine="cpu", **simulated):
    """Run the kernel of a cluster; Wrong unless its product is right."""
    args = arguments(a, b, SIDE // 2)
    run(kernel, BLOCKS, args, engine=engine, cluster=BLOCKS, **simulated)
    wrong = np.count_nonzero(args[2] != expected(a, b))
    exchanged = np.array_equal(args[2], expected(np.roll(a, SIDE // 2, axis=0), b))
    require(not exchanged, "The halves of A are exchanged: that of rank 0 is the upper one.")
    where = "On the GPU" if engine == "gpu" else "No rule is broken, but"
    require(not wrong, f"{where} {wrong} of the {args[2].size} elements of C are wrong.")


BOTH = (
    "A stage may be refilled when the consumers of *both* blocks have left it: both blocks write into it. So "
    "each consumer arrives on the empty barriers of both, and these expect all that come."
)
PAIR_FAULTS = {kind: sentence for kinds, sentence in (
    ((faults.CopyCollision, faults.RefillRace, faults.StaleRefill), BOTH),
    ((faults.TooManyArrivals, faults.UnobservedPhase),
     "The producer goes on, and cannot know that both consumers have left the stage. Do more arrivals come in "
     "one lap than the empty barrier expects? The first of them ends the phase. Or do they come from one block "
     "alone? They must come from both."),
    ((faults.BlockNotStarted, faults.InitNotOrdered, faults.NotABarrier, faults.MissingInitFence),
     "A copy may signal the other block's barrier only when that is initialised. Let the whole cluster meet "
     "before anybody fetches: arrive, then wait."),
    ((faults.BlockEnded, faults.CopyOutlivesBlock), "The other block still arrives on a barrier of a block "
     "that is gone. Nobody leaves before all are done: let the whole cluster meet at the end."),
    ((faults.ClusterBarrierMisuse, faults.Deadlock), "All threads of both blocks come to each meeting: they "
     "arrive once, and wait once."),
) for kind in kinds}  # fmt: skip


def _why_they_do_not_meet(built, fault):
    """Of ``meet``: what to say of some mistakes; the others are told by their fault alone."""
    names = built.py_func.__code__.co_names
    own = "mbarrier_arrive_cluster" in names and "mapa_shared_cluster" not in names
    return first_of(
        (isinstance(fault, faults.MissingArrivals), "An empty barrier expects more arrivals than come. Count "
         "who calls an arrive on it in one lap: the consumers of both blocks, and of each warp as many lanes "
         "as arrive there."),
        (isinstance(fault, faults.NotABarrier) and "shared::cluster" in fault.what, "That is the address of "
         "another block's barrier, and this arrive takes only one's own. There is an arrive for barriers of "
         "the cluster."),
        (isinstance(fault, faults.RefillRace) and own, "`ring.empty(state)` is the address in one's own block, "
         "so all arrivals come there. Which function makes another block's of it?"),
        (isinstance(fault, faults.TooManyArrivals) and "ring.full" in fault.what
         and "fetch" not in fault.source,
         "The consumers arrive on a *full* barrier, which is for bytes. They say that a stage is empty: they "
         "arrive on `ring.empty(state)`."),
    )  # fmt: skip


@exercise(
    "Who arrives on *one* empty barrier in a lap? Whom has everybody to meet before the first copy, and at the "
    "end?",
    faults=PAIR_FAULTS,
)
def meet(build, fetch, engine=None):
    """build(stages) -> the kernel (a_map, b_map, out, steps) of a cluster, which calls ``fetch``."""
    a, b = operands()
    try:
        _check_pair(pair(2, fetch), a, b)
    except (SimFault, Wrong):
        sentence = "This kernel calls your `fetch`, which is not right yet. Its check, above, says why."
        raise Wrong(sentence) from None
    for stages, landing, seed in ((2, "earliest", 1), (2, "late", 1), (3, "random", 2), (1, "random", 4)):
        built = build(stages)
        with explained(partial(_why_they_do_not_meet, built)):
            _check_pair(built, a, b, landing=landing, seed=seed, schedules=2)
    if engine == "gpu":
        _check_pair(build(2), a, b, engine=engine)
    return "Barriers known to all, stages free in both blocks, nobody gone too early: in every schedule tried."

"""Random small programs: the engine finds a race exactly where there is one, whatever the schedule.

Six threads in two warps read, write and update sixteen bytes, and meet in barriers of all kinds. Which
accesses are ordered follows from the program alone, by plain reachability in a graph; that is the
opinion the engine's vector clocks are compared with.
"""

import random
from collections import Counter

import numpy as np
import pytest
from helpers import LANDINGS, run, untyped  # noqa: F401
from numba import cuda, uint8, uint16, uint32, uint64

from numba_deform.device.mbarrier import mbarrier_arrive, mbarrier_init
from numba_deform.device.memory import ld_shared_v4, shared_address, st_shared_v4
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import bar_arrive, bar_sync
from numba_deform.engines import faults

THREADS = (0, 1, 2, 32, 33, 34)
ROUNDS = 6


# A kernel here runs a program that it is given as a list, which Numba does not compile.
pytestmark = pytest.mark.usefixtures("untyped")


def random_program(rng):
    """{thread: [steps]}; a step is (what, ...)."""
    program = {t: [] for t in THREADS}
    busy = rng.choice([0.05, 0.1, 0.15, 0.3])
    for round in range(ROUNDS):
        for t in THREADS:
            if rng.random() < busy:
                size = rng.choice([2, 4, 4, 16])
                kinds = ["read", "read", "write"] + ["atomic"] * 2 * (size == 4)
                step = (rng.choice(kinds), size, rng.randrange(16 // size))
                program[t].append(step)
        how = rng.choice(["none", "syncthreads", "syncwarp", "part", "named", "arrive", "mbarrier"])
        if how == "syncthreads":
            for t in THREADS:
                program[t].append(("syncthreads", round))
        elif how == "syncwarp":
            warp = rng.randrange(2)
            for t in THREADS[3 * warp : 3 * warp + 3]:
                program[t].append(("syncwarp", round, 0xFFFFFFFF))
        elif how == "part":
            warp = rng.randrange(2)
            lanes = rng.sample(range(3), 2)
            for lane in lanes:
                program[32 * warp + lane].append(("syncwarp", round, sum(1 << x for x in lanes)))
        elif how in ("named", "arrive"):
            first = rng.randrange(2)
            for t in THREADS:
                waits = how == "named" or t // 32 == first
                program[t].append(("sync" if waits else "arrive", round))
        elif how == "mbarrier":
            arrivers = rng.sample(THREADS, rng.randint(1, 6))
            waiters = rng.sample(THREADS, rng.randint(1, 6))
            for t in THREADS:
                if t in arrivers:
                    program[t].append(("mb_arrive", round, len(arrivers)))
                if t in waiters:
                    program[t].append(("mb_wait", round))
    return program


def has_race(program):
    """Whether two conflicting accesses are ordered in neither direction."""
    nodes = [(t, i) for t in THREADS for i in range(len(program[t]))]
    after = {node: set() for node in nodes}
    meetings = {}
    for t, i in nodes:
        if i + 1 < len(program[t]):
            after[t, i].add((t, i + 1))
        step = program[t][i]
        if step[0] not in ("read", "write", "atomic"):
            meetings.setdefault(step[1], []).append((t, i))
    for members in meetings.values():
        for a in members:
            for b in members:
                if a == b or program[a[0]][a[1]][0] == "mb_wait":
                    continue  # a wait hands nothing on
                if program[b[0]][b[1]][0] in ("arrive", "mb_arrive"):
                    continue  # an arrival learns nothing
                # Everything before a comes before everything after b.
                after[a].add((*b, "after"))
    reach = {}

    def walk(start):
        seen, todo = set(), [start]
        while todo:
            t, i, *passed = todo.pop()
            following = {(t, i + 1)} & after.keys() if passed else after[t, i]
            for node in following - seen:
                seen.add(node)
                todo.append(node)
        return seen

    accesses = [n for n in nodes if program[n[0]][n[1]][0] in ("read", "write", "atomic")]
    for node in accesses:
        reach[node] = walk(node)
    for k, a in enumerate(accesses):
        for b in accesses[:k]:
            if a[0] == b[0] or a in reach[b] or b in reach[a]:
                continue
            (kind, size, at), (kind2, size2, at2) = program[a[0]][a[1]], program[b[0]][b[1]]
            overlap = at * size < at2 * size2 + size2 and at2 * size2 < at * size + size
            if overlap and (kind, kind2) not in (("read", "read"), ("atomic", "atomic")):
                return True
    return False


def kernel_of(program):
    counts = {s[1]: s[2] for steps in program.values() for s in steps if s[0] == "mb_arrive"}

    def kernel(out):
        area = cuda.shared.array(16, uint8, alignment=16)
        bars = cuda.shared.array(ROUNDS, uint64)
        at, bar, tid = shared_address(area), shared_address(bars), cuda.threadIdx.x
        if tid == 0:
            st_shared_v4(at, 0, 0, 0, 0)
            for number, count in counts.items():
                mbarrier_init(bar + 8 * number, count)
        cuda.syncthreads()
        if tid not in program:
            return
        halves, words = area.view(uint16), area.view(uint32)
        for what, number, *more in program[tid]:
            if what == "syncthreads":
                cuda.syncthreads()
            elif what == "syncwarp":
                cuda.syncwarp(more[0])
            elif what == "sync":
                bar_sync(1 + number, 64)
            elif what == "arrive":
                bar_arrive(1 + number, 64)
            elif what == "mb_arrive":
                mbarrier_arrive(bar + 8 * number)
            elif what == "mb_wait":
                mbarrier_wait(bar + 8 * number, 0)
            elif what == "atomic":
                cuda.atomic.add(words, more[0], 1)
            elif number == 16:
                ld_shared_v4(at) if what == "read" else st_shared_v4(at, 1, 2, 3, 4)
            else:
                view = halves if number == 2 else words
                if what == "read":
                    out[tid] = view[more[0]]
                else:
                    view[more[0]] = tid

    return kernel


@pytest.mark.parametrize(
    "part", [0, 1, 2, *(pytest.param(n, marks=pytest.mark.full) for n in range(3, 8))]
)
def test_a_race_is_found_exactly_where_there_is_one(part):
    rng, verdicts = random.Random(part), Counter()
    for number in range(60):
        program = random_program(rng)
        race, kernel = has_race(program), kernel_of(program)
        verdicts[race] += 1
        for seed in range(3):
            try:
                run(
                    kernel,
                    np.zeros(64, np.int64),
                    block=64,
                    seed=seed,
                    landing=LANDINGS[number % 3],
                )
                found = False
            except faults.DataRace:
                found = True
            assert found == race, (part, number, seed, race, program)
    assert min(verdicts[True], verdicts[False]) >= 10, verdicts

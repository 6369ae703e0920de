"""The waiver "same-value" judges two stores by these two alone: random programs, each in several orders."""

import itertools
import random

import numpy as np
import pytest
from numba import cuda, uint32, uint64

import numba_deform as nd
from numba_deform.engines.cpu import SimFault, simulate

THREADS, LENGTH = 4, 6
STORE, READ, RELEASE, WAIT = 1, 2, 3, 4


def follow(programs, cells, sink, flags):
    """Each thread does what stands in its row: (kind, cell or thread, value)."""
    i = cuda.grid(1)
    for k in range(LENGTH):
        kind, where = programs[i, k, 0], programs[i, k, 1]
        if kind == STORE:
            cells[where] = programs[i, k, 2]
        elif kind == READ:
            sink[i] += cells[where]
        elif kind == RELEASE:
            nd.st_release_gpu_global_b32(nd.global_address(flags) + uint64(4 * i), uint32(1))
        elif kind == WAIT:
            while nd.ld_acquire_gpu_global_b32(nd.global_address(flags) + uint64(4 * where)) == 0:
                pass


def programs_of(rng):
    """A list of steps for each thread: accesses, at most one release, and one wait for an earlier thread."""
    result, released = [], []
    for t in range(THREADS):
        steps = [
            (READ if rng.random() < 0.1 else STORE, int(rng.random() < 0.2), 7 if rng.random() < 0.05 else 5)
            for _ in range(rng.randint(1, LENGTH - 2))
        ]
        if released and rng.random() < 0.8:
            steps.insert(rng.randint(0, len(steps)), (WAIT, rng.choice(released), 0))
        if rng.random() < 0.7:
            steps.insert(rng.randint(0, len(steps)), (RELEASE, 0, 0))
            released.append(t)
        result.append(steps)
    return result


def is_wrong(programs):
    """Whether two accesses of two threads to a cell, of which one stores, are unordered, and not stores of one
    value."""
    before = {}  # (thread, step) -> all that happens before it
    for t, steps in enumerate(programs):
        known = set()
        for k, (kind, where, _) in enumerate(steps):
            if kind == WAIT:
                release = where, [step[0] for step in programs[where]].index(RELEASE)
                known |= before[release] | {release}
            before[t, k] = set(known)
            known.add((t, k))
    for a, b in itertools.combinations(before, 2):
        (kind, cell, value), (other, place, second) = programs[a[0]][a[1]], programs[b[0]][b[1]]
        conflict = cell == place and {kind, other} in ({STORE}, {STORE, READ})
        if conflict and a[0] != b[0] and a not in before[b] and b not in before[a]:
            if kind != other or value != second:
                return True
    return False


def verdicts(programs, blocks, first, seeds):
    """Whether runs end in a fault, for some orders of the threads."""
    rows = np.zeros((THREADS, LENGTH, 3), np.int32)
    for row, steps in zip(rows, programs, strict=True):
        row[: len(steps)] = steps
    for seed in range(seeds):
        arrays = np.array([first, 0], np.int32), np.zeros(THREADS, np.int32), np.zeros(THREADS, np.uint32)
        try:
            simulate(follow, blocks, THREADS // blocks, (rows, *arrays), seed=seed, waive="same-value")
            yield False
        except SimFault:
            yield True


def check(cases, seeds):
    rng, wrong = random.Random(1), 0
    for _ in range(cases):
        programs, blocks, first = programs_of(rng), rng.choice([1, 2]), rng.choice([5, 0])
        found = is_wrong(programs)
        assert set(verdicts(programs, blocks, first, seeds)) == {found}, programs
        wrong += found
    assert cases / 5 < wrong < 4 * cases / 5


def test_any_order_says_the_same():
    check(30, 3)


@pytest.mark.full
def test_any_order_says_the_same_of_many():
    check(1000, 8)

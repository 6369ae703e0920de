"""Exploration: the reduced search finds what the full one does, and says what it has covered."""

import random

import numpy as np
from numba import cuda, uint32, uint64

from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_drop,
    mbarrier_arrive_expect_tx,
    mbarrier_expect_tx,
    mbarrier_init,
    mbarrier_inval,
    mbarrier_test_wait_parity,
)
from numba_deform.device.memory import (
    global_address,
    ld_acquire_cta_shared_b32,
    shared_address,
    st_release_cta_shared_b32,
)
from numba_deform.device.pipeline import flag_wait, mbarrier_wait
from numba_deform.device.sync import bar_arrive, bar_sync, fence_mbarrier_init
from numba_deform.device.tma import cp_async_bulk_load
from numba_deform.sim.engine import Grid
from numba_deform.sim.explore import Exploration, outcomes


def program_kernel(program, counts, lane=1):
    """A kernel in which thread ``lane * i`` does the steps ``program[i]``. ``counts``: of the barriers."""

    def kernel(data, out):
        bars = cuda.shared.array(4, uint64)
        tile = cuda.shared.array((4, 4), uint32, alignment=128)
        flags = cuda.shared.array(4, uint32)
        words = cuda.shared.array(4, uint32)
        bar, flag, tid = shared_address(bars), shared_address(flags), cuda.threadIdx.x
        if tid == 0:
            for i, count in enumerate(counts):
                mbarrier_init(bar + 8 * i, count)
            for i in range(4):
                flags[i] = words[i] = 0
            fence_mbarrier_init()
        if lane == 1:
            cuda.syncwarp()
        else:
            cuda.syncthreads()
        if tid % lane or tid // lane >= len(program):
            return
        row, at = tid // lane, 0
        for what, n, *more in program[row]:
            seen = 0
            if what == "arrive":
                mbarrier_arrive(bar + 8 * n)
            elif what == "drop":
                mbarrier_arrive_drop(bar + 8 * n)
            elif what == "inval":
                mbarrier_inval(bar + 8 * n)
            elif what == "wait":
                mbarrier_wait(bar + 8 * n, more[0])
            elif what == "test":
                seen = 1 + mbarrier_test_wait_parity(bar + 8 * n, more[0])
            elif what == "expect":
                mbarrier_expect_tx(bar + 8 * n, 16)
            elif what == "arm":
                mbarrier_arrive_expect_tx(bar + 8 * n, 16)
            elif what == "copy":
                slot = shared_address(tile) + 16 * more[0]
                cp_async_bulk_load(slot, global_address(data), 16, bar + 8 * n)
            elif what == "tile":
                seen = tile[n, 0]
            elif what == "set":
                st_release_cta_shared_b32(flag + 4 * n, more[0])
            elif what == "get":
                seen = 1 + ld_acquire_cta_shared_b32(flag + 4 * n)
            elif what == "spin":
                flag_wait(flag + 4 * n, more[0])
            elif what == "add":
                seen = 1 + cuda.atomic.add(flags, n, 1)
            elif what == "cas":
                while cuda.atomic.cas(flags, n, more[0], more[1]) != more[0]:
                    pass
            elif what == "load":
                seen = 1 + words[n]
            elif what == "store":
                words[n] = 1 + row
            elif what == "sync":
                bar_sync(1 + n, 32 * more[0])
            elif what == "meet":
                bar_arrive(1 + n, 32 * more[0])
            elif what == "syncthreads":
                cuda.syncthreads()
            elif what == "syncwarp":
                cuda.syncwarp(more[0])
            out[row, at] = seen
            at += 1

    return kernel


def grid_of(program, counts=(), lane=1, threads=None):
    data, out = np.arange(4, dtype=np.uint32), np.zeros((4, 12), np.int64)
    at = data.__array_interface__["data"][0]
    if at % 16:
        data = np.zeros(8, np.uint32)[(16 - at % 16) // 4 :][:4]
    kernel = program_kernel(program, counts, lane)
    threads = threads or len(program) * lane
    return Grid(kernel, 1, threads, (data, out), 0, 60.0), out


def found(program, counts, reduced, limit, by_thread=True, lane=1):
    """(the set of outcomes, Exploration): of each schedule its fault's class, or what it wrote."""
    grid, out = grid_of(program, counts, lane)
    result = Exploration(1, 1, len(program), by_thread, limit)
    seen = set()
    for _, fault in outcomes(grid, result, reduced):
        seen.add(type(fault).__name__ if fault else out.tobytes())
    return seen, result


def random_program(rng, actors):
    ops = rng.choice(["all", "barriers", "flags", "copies", "right", "right"])
    kinds = {
        "all": "arrive wait test arm copy get set add load store sync expect tile drop inval".split(),
        "barriers": "arrive arrive wait wait test drop sync meet syncthreads inval load store".split(),
        "right": "arrive wait wait test set get add cas sync".split(),
        "flags": "set get spin add cas load store syncwarp".split(),
        "copies": "arm copy wait wait arrive expect tile test".split(),
    }[ops]
    program = []
    for _ in range(actors):
        steps = []
        for _ in range(rng.choice([1, 2, 2, 3, 3])):
            what, n = rng.choice(kinds), rng.randrange(rng.choice([1, 2]))
            more = {
                "wait": (rng.choice([0, 0, 1]),), "test": (rng.choice([0, 0, 1]),),
                "copy": (rng.randrange(3),), "set": (rng.choice([1, 2]),), "spin": (1,),
                "cas": (rng.randrange(2), rng.randrange(3)), "sync": (1,), "meet": (1,),
                "syncwarp": (rng.choice([3, (1 << actors) - 1]),),
            }.get(what, ())  # fmt: skip
            steps.append((what, n, *more))
            if what == "arm" and rng.random() < 0.8:
                steps.append(("copy", n, rng.randrange(3)))
        program.append(steps)
    return program, tuple(rng.choice([1, 1, 2, 2, 3]) for _ in range(2))

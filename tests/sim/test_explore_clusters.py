"""Exploration of clusters: blocks step among each other; the reduced search finds what the full one does."""

import random

import numpy as np
import pytest
from greenlet import getcurrent
from helpers import untyped  # noqa: F401
from numba import cuda, uint32, uint64

from numba_deform.device.cluster import (
    cluster_arrive,
    cluster_ctarank,
    cluster_sync,
    cluster_wait,
    cp_async_bulk_load_multicast,
    mapa_shared_cluster,
    mbarrier_arrive_cluster,
    mbarrier_wait_cluster,
)
from numba_deform.device.cluster_async import st_async_b32
from numba_deform.device.cluster_flags import (
    atom_add_acq_rel_cluster_shared_cluster_u32,
    atom_cas_acq_rel_cluster_shared_cluster_b32,
    ld_acquire_cluster_shared_cluster_b32,
    st_release_cluster_shared_cluster_b32,
)
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init, mbarrier_test_wait_parity
from numba_deform.device.memory import (
    global_address,
    ld_acquire_gpu_global_b32,
    shared_address,
    st_release_gpu_global_b32,
)
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.engines import faults
from numba_deform.engines.cpu import SimFault, explore, simulate
from numba_deform.engines.cpu.schedules.explore import Exploration, outcomes
from numba_deform.engines.cpu.schedules.prepared_launch import PreparedLaunch

# A kernel here runs a program that it is given as a list, which Numba does not compile.
pytestmark = pytest.mark.usefixtures("untyped")
RANKS = 2


def program_kernel(program, counts):
    """A kernel in which thread ``i`` of the block of rank ``r`` does the steps ``program[r][i]``. ``counts``:
    of the barriers. The last number of a step is the rank of the block at whose memory it is done. Its own
    meeting before that is no step, nor is the one after it where the program has none."""
    meets = any(step[0] in ("come", "sync", "exit") for block in program for row in block for step in row)

    def kernel(data, out):
        bars, tile = cuda.shared.array(2, uint64), cuda.shared.array((2, 4), uint32, alignment=128)
        flags = cuda.shared.array(2, uint32)
        rank, tid = cluster_ctarank(), cuda.threadIdx.x
        getcurrent().inside = True
        if tid == 0:
            for i, count in enumerate(counts):
                mbarrier_init(shared_address(bars) + uint32(8 * i), count)
                flags[i] = 0
            fence_mbarrier_init()
        cluster_sync()
        getcurrent().inside = False
        for at in range(len(program[rank][tid])):
            what, n, *more = program[rank][tid][at]
            seen, bar = 0, shared_address(bars) + uint32(8 * n)
            there = mapa_shared_cluster(bar, uint32(more[-1]))
            flag = mapa_shared_cluster(shared_address(flags) + uint32(4 * n), uint32(more[-1]))
            if what == "arrive":
                mbarrier_arrive_cluster(there)
            elif what == "wait":
                mbarrier_wait_cluster(bar, uint32(more[0]))
            elif what == "test":
                seen = 1 + mbarrier_test_wait_parity(bar, uint32(more[0]))
            elif what == "arm":
                mbarrier_arrive_expect_tx(bar, more[0])
            elif what == "send":
                st_async_b32(mapa_shared_cluster(shared_address(tile), uint32(more[-1])), uint32(7), there)
            elif what == "copy":
                cp_async_bulk_load_multicast(shared_address(tile) + 16, global_address(data), 16, bar, 3)
            elif what == "load":
                seen = tile[n, 0]
            elif what == "set":
                st_release_cluster_shared_cluster_b32(flag, uint32(more[0]))
            elif what == "get":
                seen = 1 + ld_acquire_cluster_shared_cluster_b32(flag)
            elif what == "spin":
                while ld_acquire_cluster_shared_cluster_b32(flag) != 1:
                    pass
            elif what == "add":
                seen = 1 + atom_add_acq_rel_cluster_shared_cluster_u32(flag, uint32(1))
            elif what == "lock":
                while atom_cas_acq_rel_cluster_shared_cluster_b32(flag, uint32(0), uint32(1)) != 0:
                    pass
            elif what == "come":
                cluster_arrive()
            elif what == "meet":
                cluster_wait()
            elif what == "sync":
                cluster_sync()
            elif what == "exit":
                return
            out[rank, tid, at] = seen
        getcurrent().inside = not meets
        cluster_sync()

    return kernel


def found(program, counts, reduced, limit):
    """(the set of outcomes, Exploration): of each schedule its fault's class, or what it wrote."""
    threads = len(program[0])
    data, out = np.arange(8, dtype=np.uint32), np.zeros((RANKS, threads, 12), np.int64)
    at = data.__array_interface__["data"][0]
    data = data[(16 - at % 16) % 16 // 4 :][:4]
    grid = PreparedLaunch(program_kernel(program, counts), RANKS, threads, (data, out), 0, 60.0, RANKS)
    result, seen = Exploration(RANKS, 1, threads, True, limit, RANKS), set()
    for _, fault in outcomes(grid, result, reduced):
        seen.add(type(fault).__name__ if fault else out.tobytes())
    return seen, result


def random_step(rng, kinds):
    what, n, rank = rng.choice(kinds), rng.randrange(2), rng.randrange(RANKS)
    more = {"wait": rng.choice([0, 0, 1]), "test": 0, "set": 1, "arm": rng.choice([4, 4, 16])}
    return what, n, more.get(what, 0), rank


def random_program(rng):
    kinds = rng.choice([
        "arrive arrive wait test get set", "set get add lock spin", "come meet sync exit get set arrive",
        "arm send wait load", "arm copy wait load test", "sync arrive wait set get",
    ]).split()  # fmt: skip
    threads = rng.choice([1, 1, 2])
    most = 3 if threads == 1 else 2
    rows = [[random_step(rng, kinds) for _ in range(rng.randint(1, most))] for _ in range(RANKS * threads)]
    program = [rows[rank::RANKS] for rank in range(RANKS)]
    if "meet" in kinds:  # whoever has come, waits
        for row in (row for block in program for row in block):
            row[:] = [step for step in row if step[0] not in ("come", "meet")]
            if rng.random() < 0.7 and ("exit", 0) not in [step[:2] for step in row]:
                at = rng.randrange(len(row) + 1)
                row[at:at] = [("come", 0, 0)]
                at = rng.randrange(at + 1, len(row) + 1)
                row[at:at] = [("meet", 0, 0)]
    return program, tuple(rng.choice([1, 1, 2]) for _ in range(2))


MANY = [pytest.param(part, 150, marks=pytest.mark.full) for part in (1, 2)]


@pytest.mark.parametrize("part, count", [(0, 20), *MANY])
def test_random_programs_have_the_same_outcomes(part, count):
    rng, clean, several, saved = random.Random(500 + part), 0, 0, 0
    for _ in range(count):
        program, counts = random_program(rng)
        all_seen, full = found(program, counts, False, 300)
        if not full.complete:
            continue
        seen, reduced = found(program, counts, True, 300)
        assert reduced.complete and reduced.schedules <= full.schedules, (program, counts)
        broken = {x for x in all_seen if isinstance(x, str)}
        assert seen <= all_seen and bool(seen & broken) == bool(broken), (program, counts)
        if not broken:
            assert seen == all_seen, (program, counts)
        clean, several = clean + (not broken), several + (len(all_seen) > 1)
        saved += reduced.schedules < full.schedules
    assert min(clean, several) >= count // 20 and saved >= count // 4, (clean, several, saved)


# --- kernels ------------------------------------------------------------------------------------------
def two_locks(opposite):
    def kernel(out):
        box, rank = cuda.shared.array(2, uint32), cluster_ctarank()
        box[0] = box[1] = uint32(0)
        cluster_sync()
        first = rank if opposite else uint32(0)
        a = mapa_shared_cluster(shared_address(box), first)
        b = mapa_shared_cluster(shared_address(box), first ^ uint32(1))
        while atom_cas_acq_rel_cluster_shared_cluster_b32(a, uint32(0), uint32(1)) != 0:
            pass
        while atom_cas_acq_rel_cluster_shared_cluster_b32(b, uint32(0), uint32(1)) != 0:
            pass
        out[0] += 1
        st_release_cluster_shared_cluster_b32(b, uint32(0))
        st_release_cluster_shared_cluster_b32(a, uint32(0))
        cluster_sync()

    return kernel


def test_two_blocks_take_two_locks():
    """In opposite orders each may hold one and wait for the other, which no run of one block after the other
    shows; the text of that order runs it again."""
    tried = explore(two_locks(False), 2, 1, (np.zeros(1, np.uint32),), cluster=2)
    assert tried.complete and tried.schedules < 20 and "in each of the 2 blocks of a cluster" in str(tried)
    simulate(two_locks(True), 2, 1, (np.zeros(1, np.uint32),), cluster=2)
    with pytest.raises(faults.Livelock) as caught:
        explore(two_locks(True), 2, 1, (np.zeros(1, np.uint32),), cluster=2)
    with pytest.raises(faults.Livelock) as again:
        simulate(two_locks(True), 2, 1, (np.zeros(1, np.uint32),), cluster=2, seed=caught.value.seed)
    assert str(again.value) == str(caught.value)


def ring(phases, counted):
    """Block 0 loads for both, again and again; consumers of both give the stage back to it, if ``counted``."""

    def kernel(data, out):
        bars, tile = cuda.shared.array(2, uint64), cuda.shared.array(4, uint32, alignment=128)
        full, empty = shared_address(bars), shared_address(bars) + uint32(8)
        rank, total = cluster_ctarank(), uint32(0)
        mbarrier_init(full, 1)
        mbarrier_init(empty, RANKS if counted else 1)
        fence_mbarrier_init()
        cluster_sync()
        for t in range(phases):
            mbarrier_arrive_expect_tx(full, 16)
            if rank == 0:
                mbarrier_wait(empty, t & 1 ^ 1)
                cp_async_bulk_load_multicast(shared_address(tile), global_address(data), 16, full, 3)
            mbarrier_wait(full, t & 1)
            total += tile[0]
            fence_proxy_async()
            mbarrier_arrive_cluster(mapa_shared_cluster(empty, uint32(0)))
        out[rank] = total
        cluster_sync()

    return kernel


def test_a_ring_over_a_cluster():
    data = np.full(8, 5, np.uint32)
    data = data[(16 - data.__array_interface__["data"][0] % 16) % 16 // 4 :][:4]
    out = np.zeros(2, np.uint32)
    tried = explore(ring(2, True), 2, 1, (data, out), cluster=2)
    assert tried.complete and tried.results == 1 and list(out) == [10, 10]
    with pytest.raises(SimFault) as caught:
        explore(ring(2, False), 2, 1, (data, out), cluster=2)
    assert type(caught.value) in (faults.RefillRace, faults.TooManyArrivals)


def test_clusters_after_one_another():
    """Those after a cluster run at any moment of it: what they write, each of its blocks may see or not. And
    of the two that write, each may be the last."""

    def kernel(flag, out):
        rank = cluster_ctarank()
        if cuda.blockIdx.x < 2:
            mine = ld_acquire_gpu_global_b32(global_address(flag))
            cluster_sync()
            out[rank] = mine
        else:
            st_release_gpu_global_b32(global_address(flag), uint32(rank + 1))

    args = np.zeros(1, np.uint32), np.zeros(2, np.uint32)
    tried = explore(kernel, 4, 1, args, cluster=2)
    assert tried.complete and tried.results == 5 and "of 2 clusters, those after it" in str(tried)
    with pytest.raises(ValueError, match="is of cluster 2, and there are 2"):
        simulate(kernel, 4, 1, args, cluster=2, seed="x:2:")

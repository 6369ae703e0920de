"""Threads that poll, explored: a look in vain is no step, and whatever else a look does is one."""

import sys

import numpy as np
import pytest
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler.rewrite import static_range
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_test_wait_parity,
    mbarrier_try_wait_parity,
)
from numba_deform.device.memory import ld_acquire_cta_shared_b32, shared_address, st_release_cta_shared_b32
from numba_deform.device.sync import fence_mbarrier_init
from numba_deform.engines import faults
from numba_deform.engines.cpu import SimFault, explore, simulate
from numba_deform.engines.cpu.schedules.explore import Exploration, outcomes
from numba_deform.engines.cpu.schedules.prepared_launch import PreparedLaunch

TURNS = 2


def explored(kernel, threads=64, limit=200):
    """(what :func:`explore` says, the array that the kernel was given)"""
    out = np.zeros(4, np.int32)
    return explore(kernel, 1, threads, (out,), limit=limit), out


def numbers(result):
    return result.complete, result.schedules, result.repeated, result.results


# --- how many schedules there are -----------------------------------------------------------------
def flags_in_a_ring(out):
    """Three warps hand a number round by flags."""
    flags = cuda.shared.array(3, uint32)
    warp, at = cuda.threadIdx.x // 32, shared_address(flags)
    if cuda.threadIdx.x < 3:
        flags[cuda.threadIdx.x] = uint32(0)
    cuda.syncthreads()
    if cuda.threadIdx.x % 32 == 0:
        for turn in range(TURNS):
            if warp > 0 or turn > 0:
                wanted = uint32(turn + 1 if warp > 0 else turn)
                while ld_acquire_cta_shared_b32(at + uint32(4 * ((warp + 2) % 3))) < wanted:
                    pass
            st_release_cta_shared_b32(at + uint32(4 * warp), uint32(turn + 1))
        out[warp] = TURNS


def barriers_in_turn(out):
    """Two warps look at one barrier and then at another, which two others complete."""
    bars = cuda.shared.array(2, uint64)
    warp, at = cuda.threadIdx.x // 32, shared_address(bars)
    if cuda.threadIdx.x == 0:
        mbarrier_init(at, uint32(1))
        mbarrier_init(at + uint32(8), uint32(1))
        fence_mbarrier_init()
    cuda.syncthreads()
    if cuda.threadIdx.x % 32 == 0:
        if warp < 2:
            mbarrier_arrive(at + uint32(8 * warp))
        else:
            for i in range(2):
                while mbarrier_test_wait_parity(at + uint32(8 * i), uint32(0)) == 0:
                    pass


def locked(out):
    """Three warps take a lock by compare-and-swap, twice each."""
    lock = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        lock[0] = 0
    cuda.syncthreads()
    if cuda.threadIdx.x % 32 == 0:
        for _ in range(TURNS):
            while cuda.atomic.cas(lock, 0, 0, 1) != 0:
                pass
            cuda.threadfence_block()
            out[0] += 1
            cuda.threadfence_block()
            cuda.atomic.exch(lock, 0, 0)


def comes_late(out):
    """In the first order the phase is complete before the second warp comes to wait for it."""
    bars, flags, tid = cuda.shared.array(1, uint64), cuda.shared.array(1, uint32), cuda.threadIdx.x
    if tid == 0:
        mbarrier_init(shared_address(bars), 1)
    cuda.syncthreads()
    if tid == 0:
        mbarrier_arrive(shared_address(bars))
    elif tid == 32:
        st_release_cta_shared_b32(shared_address(flags), 1)
        while mbarrier_try_wait_parity(shared_address(bars), 0) == 0:
            pass


needs_columns = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 knows no columns: the copies of a condition are two places"
)


@needs_columns
@pytest.mark.parametrize(
    "kernel, threads, orders",
    [(flags_in_a_ring, 96, 1), (barriers_in_turn, 128, 1), (comes_late, 64, 1),
     (locked, 96, 90)],  # 6! / 2!^3 ways to take turns
)  # fmt: skip
def test_looks_in_vain_make_no_order(kernel, threads, orders):
    assert numbers(explored(kernel, threads)[0]) == (True, orders, 0, 1)


def every_lane(out):
    """All lanes of a warp wait for the same flag."""
    flags, tid = cuda.shared.array(1, uint32), cuda.threadIdx.x
    if tid == 0:
        flags[0] = 0
    cuda.syncthreads()
    if tid == 0:
        st_release_cta_shared_b32(shared_address(flags), 1)
        st_release_cta_shared_b32(shared_address(flags), 2)
    elif tid >= 32:
        while ld_acquire_cta_shared_b32(shared_address(flags)) < 2:
            pass


@needs_columns
def test_lanes_wait_together():
    assert numbers(explored(every_lane)[0]) == (True, 1, 0, 1)


# --- what is more than a look in vain -------------------------------------------------------------
def gives_up_by_variable(flag, out):
    tries = 0
    while ld_acquire_cta_shared_b32(flag) == 0:
        tries = tries + 1
        if tries == 3:
            return 2
    return 1


def gives_up_by_array(flag, out):
    tries = cuda.local.array(1, int32)
    tries[0] = 0
    while ld_acquire_cta_shared_b32(flag) == 0:
        tries[0] = tries[0] + 1
        if tries[0] == 3:
            return 2
    return 1


def gives_up_by_range(flag, out):
    for _ in range(3):
        if ld_acquire_cta_shared_b32(flag) != 0:
            return 1
    return 2


def gives_up_unseen(flag, out):
    """No variable tells one round from another."""
    for _ in (7, 7, 7):
        while True:
            if ld_acquire_cta_shared_b32(flag) != 0:
                return 1
            break
    return 2


def gives_up_overwritten(flag, out):
    for i in range(3):
        i = 0
        while True:
            if ld_acquire_cta_shared_b32(flag) != i:
                return 1
            break
    return 2


def counts_elsewhere(flag, out):
    """What it counts is memory."""
    while ld_acquire_cta_shared_b32(flag) == 0:
        out[2] = out[2] + 1
        if out[2] == 3:
            return 2
    return 1


WAYS = [gives_up_by_variable, gives_up_by_array, gives_up_by_range, gives_up_unseen, gives_up_overwritten,
        counts_elsewhere]  # fmt: skip


@pytest.mark.parametrize("sets", [True, False], ids=["set", "never set"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_who_gives_up_is_not_stuck(way, sets):
    """It may come in time or not, and does both."""
    looks = cuda.jit(device=True)(way)

    def kernel(out):
        flags, tid = cuda.shared.array(1, uint32), cuda.threadIdx.x
        if tid == 0:
            flags[0] = 0
        cuda.syncthreads()
        if tid == 0 and sets:
            st_release_cta_shared_b32(shared_address(flags), 1)
        elif tid == 32:
            out[0] = looks(shared_address(flags), out)

    result, out = explored(kernel)
    assert result.complete and (result.results > 1) == sets
    assert sets or out[0] == 2


def unrolled(out):
    """The second copy of the loop stands where the first does, and sees the same."""
    flags, tid = cuda.shared.array(1, uint32), cuda.threadIdx.x
    if tid == 0:
        flags[0] = 5
    cuda.syncthreads()
    if tid == 32:
        for i in static_range(2):
            while ld_acquire_cta_shared_b32(shared_address(flags)) < 1 + i:
                pass


def in_succession(out):
    """Each wait sees what the one before it saw."""
    flags, tid = cuda.shared.array(1, uint32), cuda.threadIdx.x
    if tid == 0:
        flags[0] = 5
    cuda.syncthreads()
    if tid == 32:
        for i in range(3):
            while ld_acquire_cta_shared_b32(shared_address(flags)) < i:
                pass


@pytest.mark.parametrize("kernel", [unrolled, in_succession])
def test_the_next_wait_is_another(kernel):
    assert numbers(explored(kernel)[0]) == (True, 1, 0, 1)


def answers(out):
    """Each look in vain says something to the thread that is looked for."""
    flags, tid = cuda.shared.array(2, uint32), cuda.threadIdx.x
    at = shared_address(flags)
    if tid < 2:
        flags[tid] = 0
    cuda.syncthreads()
    if tid == 0:
        while ld_acquire_cta_shared_b32(at + 4) == 0:
            pass
        st_release_cta_shared_b32(at, 1)
    elif tid == 32:
        while ld_acquire_cta_shared_b32(at) == 0:
            st_release_cta_shared_b32(at + 4, 1)


def late_and_busy(out):
    """The second warp comes late in the first order; a try_wait of it that fails leaves a trace."""
    bars, flags, tid = cuda.shared.array(1, uint64), cuda.shared.array(1, uint32), cuda.threadIdx.x
    if tid == 0:
        mbarrier_init(shared_address(bars), 1)
        flags[0] = 0
    cuda.syncthreads()
    if tid == 0:
        mbarrier_arrive(shared_address(bars))
    elif tid == 32:
        st_release_cta_shared_b32(shared_address(flags), 1)
        while mbarrier_try_wait_parity(shared_address(bars), 0) == 0:
            out[0] = 1


def test_a_look_may_do_something():
    assert explored(answers, limit=5)[0].results == 1  # it may go on for ever
    result, _ = explored(late_and_busy)
    assert result.complete and result.results == 2


def peeks(out):
    """Between two looks it reads what the flag is to publish."""
    flags, words, tid = cuda.shared.array(1, uint32), cuda.shared.array(1, uint32), cuda.threadIdx.x
    if tid == 0:
        flags[0] = words[0] = 0
    cuda.syncthreads()
    if tid == 0:
        words[0] = 1
        st_release_cta_shared_b32(shared_address(flags), 1)
    elif tid == 32:
        while ld_acquire_cta_shared_b32(shared_address(flags)) == 0:
            if words[0] == 7:
                break


def resets(out):
    """An ordinary store to the flag while the other one polls it."""
    flags, tid = cuda.shared.array(1, uint32), cuda.threadIdx.x
    if tid == 0:
        flags[0] = 0
    cuda.syncthreads()
    if tid == 0:
        flags[0] = 0
        st_release_cta_shared_b32(shared_address(flags), 1)
    elif tid == 32:
        while ld_acquire_cta_shared_b32(shared_address(flags)) == 0:
            pass


def scribbles(out):
    """Each look in vain writes what the other one reads."""
    flags, words, tid = cuda.shared.array(1, uint32), cuda.shared.array(1, uint32), cuda.threadIdx.x
    if tid == 0:
        flags[0] = words[0] = 0
    cuda.syncthreads()
    if tid == 0:
        out[0] = words[0]
        st_release_cta_shared_b32(shared_address(flags), 1)
    elif tid == 32:
        while ld_acquire_cta_shared_b32(shared_address(flags)) == 0:
            words[0] = 7


@pytest.mark.parametrize("kernel", [peeks, resets, scribbles])
def test_races_with_who_polls(kernel):
    with pytest.raises(faults.DataRace) as caught:
        explored(kernel)
    with pytest.raises(SimFault) as again:
        simulate(kernel, 1, 64, (np.zeros(4, np.int32),), seed=caught.value.seed)
    assert str(again.value) == str(caught.value)


def reads(out):
    """What it reads between two looks may be another's to change."""
    flags, words, tid = cuda.shared.array(1, uint32), cuda.shared.array(1, uint32), cuda.threadIdx.x
    if tid == 0:
        flags[0] = words[0] = 0
    cuda.syncthreads()
    if tid == 0:
        st_release_cta_shared_b32(shared_address(flags), 1)
    elif tid == 32:
        while ld_acquire_cta_shared_b32(shared_address(flags)) == 0:
            if words[0] == 7:
                break


def test_a_loop_that_reads_is_no_wait():
    grid = PreparedLaunch(reads, 1, 64, (np.zeros(4, np.int32),), 0, 60.0)
    runs = list(outcomes(grid, Exploration(1, 2, 64, False, 100)))
    assert len(runs) > 1 and grid.looks and not any(grid.looks.values())


def adds(out):
    """Who has the old value in a variable tries again with another."""
    if cuda.threadIdx.x % 32 == 0:
        old = int32(0)
        while True:
            known = old
            old = cuda.atomic.cas(out, 0, known, known + 1)
            if old == known:
                break


def test_an_addition_by_compare_and_swap_is_no_poll():
    out = np.zeros(4, np.int32)
    grid = PreparedLaunch(adds, 1, 96, (out,), 0, 60.0)
    runs = list(outcomes(grid, Exploration(1, 3, 96, False, 100)))
    assert len(runs) > 1 and out[0] == 3 and not grid.looks  # to try each out takes a run of its own


# --- what never comes -----------------------------------------------------------------------------
def never(what):
    def kernel(out):
        bars, flags = cuda.shared.array(1, uint64), cuda.shared.array(1, int32)
        tid, bar = cuda.threadIdx.x, shared_address(bars)
        if tid == 0:
            mbarrier_init(bar, 1)
            flags[0] = 1
        cuda.syncthreads()
        if tid == 0 and what == 3:
            cuda.atomic.exch(flags, 0, 0)
            cuda.atomic.exch(flags, 0, 1)
        elif tid == 32:
            if what == 0:
                while mbarrier_try_wait_parity(bar, 0) == 0:
                    pass
            elif what == 1:
                while mbarrier_test_wait_parity(bar, 0) == 0:
                    pass
            else:
                while cuda.atomic.cas(flags, 0, 0, 1) != 0:
                    pass

    return kernel


@pytest.mark.parametrize("what", range(4))
def test_what_never_comes_is_named(what):
    """Of the last one only in the order in which the lock was free too early."""
    with pytest.raises(faults.Livelock if what else faults.MissingArrivals) as caught:
        explored(never(what))
    assert "== 0:" in caught.value.source or "!= 0:" in caught.value.source
    with pytest.raises(type(caught.value)) as again:
        simulate(never(what), 1, 64, (np.zeros(4, np.int32),), seed=caught.value.seed)
    assert str(again.value) == str(caught.value)


def test_a_flag_that_nobody_has_written():
    """It holds something, and to wait for it to change is a fault by itself."""

    def kernel(out):
        flags = cuda.shared.array(1, uint32)
        if cuda.threadIdx.x == 32:
            while ld_acquire_cta_shared_b32(shared_address(flags)) != 1:
                pass

    with pytest.raises(faults.UninitialisedRead):
        explored(kernel)


def test_what_was_there_and_is_gone():
    """The flag holds what is waited for between two stores: the wait sees it, or comes too late."""

    def kernel(out):
        flags, tid = cuda.shared.array(1, uint32), cuda.threadIdx.x
        if tid == 0:
            flags[0] = 0
        cuda.syncthreads()
        if tid == 0:
            st_release_cta_shared_b32(shared_address(flags), 1)
            st_release_cta_shared_b32(shared_address(flags), 2)
        elif tid == 32:
            while ld_acquire_cta_shared_b32(shared_address(flags)) != 1:
                pass

    with pytest.raises(faults.Livelock):
        explored(kernel)

"""Exploration: the reduced search finds what the full one does, and says what it has covered."""

import math
import random
import re

import numpy as np
import pytest
from helpers import LANDINGS, untyped  # noqa: F401
from numba import cuda, uint32, uint64

from numba_deform.course.bugs import BUGS
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_drop,
    mbarrier_arrive_expect_tx,
    mbarrier_expect_tx,
    mbarrier_init,
    mbarrier_inval,
    mbarrier_test_wait_parity,
    mbarrier_try_wait_parity,
)
from numba_deform.device.memory import (
    global_address,
    ld_acquire_cta_shared_b32,
    ld_acquire_gpu_global_b32,
    shared_address,
    st_release_cta_shared_b32,
    st_release_gpu_global_b32,
)
from numba_deform.device.pipeline import flag_wait, mbarrier_wait
from numba_deform.device.sync import bar_arrive, bar_sync, fence_mbarrier_init
from numba_deform.device.tma import cp_async_bulk_load
from numba_deform.engines import faults
from numba_deform.engines.cpu import SimFault, explore, simulate
from numba_deform.engines.cpu.machine.named_barrier import NamedBarrier
from numba_deform.engines.cpu.schedules.choices import Schedule
from numba_deform.engines.cpu.schedules.explore import Exploration, outcomes
from numba_deform.engines.cpu.schedules.prepared_launch import PreparedLaunch

# A kernel here runs a program that it is given as a list, which Numba does not compile.
pytestmark = pytest.mark.usefixtures("untyped")


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
        row = tid // lane
        for at in range(len(program[row])):
            seen, (what, n, *more) = 0, program[row][at]
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
            elif what == "try":
                seen = 1 + mbarrier_try_wait_parity(bar + 8 * n, more[0])
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
            elif what == "poll":
                while mbarrier_test_wait_parity(bar + 8 * n, more[0]) == 0:
                    pass
            elif what == "either":
                while ld_acquire_cta_shared_b32(flag) != 1 and ld_acquire_cta_shared_b32(flag + 4) != 1:
                    pass
            elif what == "patient":
                while seen < 3 and ld_acquire_cta_shared_b32(flag + 4 * n) != 1:
                    seen = seen + 1
            elif what == "lock":
                while cuda.atomic.exch(flags, n, 1) != 0:
                    pass
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

    return kernel


def grid_of(program, counts=(), lane=1, threads=None):
    data, out = np.arange(4, dtype=np.uint32), np.zeros((4, 12), np.int64)
    at = data.__array_interface__["data"][0]
    if at % 16:
        data = np.zeros(8, np.uint32)[(16 - at % 16) // 4 :][:4]
    kernel = program_kernel(program, counts, lane)
    threads = threads or len(program) * lane
    return PreparedLaunch(kernel, 1, threads, (data, out), 0, 60.0), out


class NoneInVain(dict):
    """For ``Grid.looks``: each look is a step."""

    def __missing__(self, key):
        return False

    def __contains__(self, key):
        return True

    def get(self, key, default=None):
        return False


def found(program, counts, reduced, limit, by_thread=True, lane=1, waits=True):
    """(the set of outcomes, Exploration): of each schedule its fault's class, or what it wrote. ``waits``:
    whether looks in vain are no steps."""
    grid, out = grid_of(program, counts, lane)
    if not waits:
        grid.looks = NoneInVain()
    result = Exploration(1, 1, len(program), by_thread, limit)
    seen = set()
    for _, fault in outcomes(grid, result, reduced):
        seen.add(type(fault).__name__ if fault else out.tobytes())
    return seen, result


def random_program(rng, actors):
    ops = rng.choice(["all", "barriers", "flags", "copies", "right", "right"])
    kinds = {
        "all": "arrive wait test try arm copy get set add load store sync expect tile drop inval".split(),
        "barriers": "arrive arrive wait wait test try drop sync meet syncthreads inval load store".split(),
        "right": "arrive wait wait test try set get add cas sync".split(),
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
                "try": (rng.choice([0, 0, 1]),),
                "copy": (rng.randrange(3),), "set": (rng.choice([1, 2]),), "spin": (1,),
                "cas": (rng.randrange(2), rng.randrange(3)), "sync": (1,), "meet": (1,),
                "syncwarp": (rng.choice([3, (1 << actors) - 1]),),
            }.get(what, ())  # fmt: skip
            steps.append((what, n, *more))
            if what == "arm" and rng.random() < 0.8:
                steps.append(("copy", n, rng.randrange(3)))
        program.append(steps)
    return program, tuple(rng.choice([1, 1, 2, 2, 3]) for _ in range(2))


def both(program, counts=(), limit=5000, by_thread=True, lane=1):
    """(schedules of the full search, schedules of the reduced one); both find the same outcomes."""
    all_seen, full = found(program, counts, False, limit, by_thread, lane)
    seen, reduced = found(program, counts, True, limit, by_thread, lane)
    assert full.complete and reduced.complete and seen == all_seen
    return full.schedules, reduced.schedules


def parts(few, many):
    """How many programs of which seed: few of one in the default tests, many of three in the full ones."""
    return [(0, few), *(pytest.param(part, many, marks=pytest.mark.full) for part in range(3))]


# --- the reduced search against the full one ------------------------------------------------------
@pytest.mark.parametrize("part, count", parts(30, 70))
def test_random_programs_have_the_same_outcomes(part, count):
    rng, clean, several = random.Random(100 + part), 0, 0
    for _ in range(count):
        program, counts = random_program(rng, rng.choice([2, 2, 3]))
        all_seen, full = found(program, counts, False, 150)
        if not full.complete:
            continue
        seen, reduced = found(program, counts, True, 150)
        assert reduced.complete and reduced.schedules <= full.schedules, program
        broken = {x for x in all_seen if isinstance(x, str)}
        # One of several ways to fail may keep another from being seen; that it fails is seen.
        assert seen <= all_seen and bool(seen & broken) == bool(broken), (program, counts)
        if not broken:
            assert seen == all_seen, (program, counts)
        clean, several = clean + (not broken), several + (len(all_seen) > 1)
    assert clean >= count // 7 and several >= count // 14, (clean, several)


STUCK = {"Livelock", "MissingArrivals", "MissingBytes"}


def outcomes_of_polls(program, counts):
    """(Exploration, what comes of it, whether threads get stuck and meet faults) where looks in vain are waits
    in the reduced search and in the full one, and where they are steps; None if these are too many."""
    everything = []
    for reduced, waits in ((False, False), (False, True), (True, True)):
        seen, result = found(program, counts, reduced, 250, waits=waits)
        if not result.complete:
            return None
        faults_met = {x for x in seen if isinstance(x, str)}
        everything.append((result, seen - faults_met, (bool(faults_met & STUCK), bool(faults_met - STUCK))))
    return everything


@pytest.mark.parametrize("part, count", parts(25, 60))
def test_waits_have_the_outcomes_of_polls(part, count):
    rng, saved, stuck, several = random.Random(7000 + part), 0, 0, 0
    kinds = "set set spin either patient poll lock get arrive wait add cas".split()
    for _ in range(count):
        program = []
        for _ in range(2):
            steps = [(rng.choice(kinds), rng.randrange(2)) for _ in range(rng.choice([1, 2, 3]))]
            more = {"poll": (0,), "wait": (0,), "spin": (1,), "cas": (0, rng.randrange(2))}
            program.append([(w, n, *(more.get(w) or [rng.randrange(3)] * (w == "set"))) for w, n in steps])
        everything = outcomes_of_polls(program, (1, 1))
        if not everything:
            continue
        (steps, *polls), (waits, *full), (fewest, *reduced) = everything
        assert fewest.schedules <= waits.schedules <= steps.schedules, program
        assert polls == full == reduced, program
        saved += fewest.schedules < waits.schedules < steps.schedules
        stuck, several = stuck + full[1][0], several + (len(full[0]) > 1)
    assert saved >= count // 20 and min(stuck, several) >= count // 12, (saved, stuck, several)


def test_warps_in_step_have_the_same_outcomes():
    for program in (
        [[("arrive", 0), ("wait", 0, 0), ("set", 0, 1)], [("get", 0), ("arrive", 0)]],
        [[("wait", 0, 1), ("set", 0, 2)], [("arrive", 0), ("arrive", 1), ("get", 0)]],
        [[("arm", 0), ("copy", 0, 0)], [("wait", 0, 0), ("tile", 0)]],
    ):
        both(program, (len(program) if program[0][0][0] == "arrive" else 1, 1), 3000, False, 32)


# --- counts that follow by hand -------------------------------------------------------------------
@pytest.mark.parametrize("k", [1, 2, 3])
def test_two_threads_with_k_events_each(k):
    orders = math.comb(2 * k, k)
    apart = [[("set", i, 1) for i in range(k)], [("set", 3, 1)] * k]
    assert both(apart) == (orders, 1)
    assert both([[("get", 0)] * k] * 2) == (orders, 1)
    together = [[("set", 0, 1)] * k, [("set", 0, 2)] * k]
    assert both(together) == (orders, orders)
    assert both([[("add", 0)] * k] * 2) == (orders, orders)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_arrivals_of_one_phase_commute(n):
    assert both([[("arrive", 0)]] * n, (n,)) == (math.factorial(n), 1)


def test_a_store_and_a_look_at_it():
    assert both([[("set", 0, 1)], [("get", 0)]]) == (2, 2)
    # k stores and one look: the look sees any of k + 1 values
    assert both([[("set", 0, i) for i in (1, 2, 3)], [("get", 0)]]) == (4, 4)


def test_a_look_that_races_with_an_older_store():
    """What follows the store in its own thread does not lead to the other order of the two."""
    assert both([[("set", 0, 1), ("set", 1, 1)], [("get", 0)]]) == (3, 2)


def test_a_spin_ends_and_does_not_multiply():
    # It waits for the last of the three stores: looking before that is in vain.
    assert both([[("set", 0, 3), ("set", 0, 2), ("set", 0, 1)], [("spin", 0, 1)]]) == (1, 1)
    # What it waits for is there, and gone again: it may see it, or come too late and poll for ever.
    program = [[("set", 0, 1), ("set", 0, 2)], [("spin", 0, 1)]]
    assert both(program) == (2, 2) and "Livelock" in found(program, (), True, 10)[0]


def test_a_wait_has_one_place():
    assert both([[("arrive", 0)], [("wait", 0, 0)]], (1,)) == (1, 1)
    # A fresh barrier passes parity 1; later the wait needs another phase, which never comes.
    seen, _ = found([[("arrive", 0)], [("wait", 0, 1)]], (1,), True, 100)
    assert "FreshBarrierPassed" in seen and len(seen) == 2


def test_landings_commute():
    program = [[("expect", 0), ("arm", 0), ("copy", 0, 0), ("copy", 0, 1), ("wait", 0, 0)]]
    # The first landing may come before the second issue; after it, both orders are one.
    assert both(program, (1,)) == (3, 2)


# --- faults that chance does not meet -------------------------------------------------------------
def half_way(out):
    """Wrong only if the flag is read between two stores of the other warp."""
    flags, words = cuda.shared.array(1, uint32), cuda.shared.array(1, uint32)
    flag, tid = shared_address(flags), cuda.threadIdx.x
    if tid == 0:
        flags[0] = words[0] = 0
    cuda.syncthreads()
    if tid == 0:
        st_release_cta_shared_b32(flag, 1)
        words[0] = 5
        st_release_cta_shared_b32(flag, 2)
    elif tid == 32 and ld_acquire_cta_shared_b32(flag) > 0:
        out[0] = words[0]


def test_a_fault_that_needs_one_order():
    out = np.zeros(1, np.int64)
    for landing in LANDINGS:
        simulate(half_way, 1, 64, (out,), schedules=25, landing=landing)  # never met
    with pytest.raises(faults.DataRace) as caught:
        explore(half_way, 1, 64, (out,))
    fault = caught.value
    assert fault.seed.startswith("x:0:") and f"  seed   {fault.seed!r}" in str(fault)
    assert str(replay(half_way, 64, (out,), fault.seed)) == str(fault)
    with pytest.raises(faults.DataRace) as caught:
        explore(half_way, 1, 64, (out,), by_thread=True, limit=1000)
    assert caught.value.seed.startswith("xt:0:")
    assert str(replay(half_way, 64, (out,), caught.value.seed)) == str(caught.value)


def tried(retries, fall_through):
    """A kernel whose second warp tries a wait so often, and then reads, or not if all were in vain."""

    def kernel(data, out):
        tile = cuda.shared.array(4, uint32, alignment=128)
        bars = cuda.shared.array(1, uint64)
        bar, tid = shared_address(bars), cuda.threadIdx.x
        if tid == 0:
            mbarrier_init(bar, 1)
            fence_mbarrier_init()
        cuda.syncthreads()
        if tid == 0:
            mbarrier_arrive_expect_tx(bar, 16)
            cp_async_bulk_load(shared_address(tile), global_address(data), 16, bar)
            mbarrier_wait(bar, 0)
        elif tid >= 32:
            done = fall_through
            for _ in range(retries):
                if mbarrier_try_wait_parity(bar, 0):
                    done = True
                    break
            if done:
                out[tid % 32] = tile[0]

    return kernel


def counts(out):
    """A spin that counts its attempts, on a flag that another warp sets."""
    flags, tid, attempts = cuda.shared.array(1, uint32), cuda.threadIdx.x, 0
    if tid == 0:
        flags[0] = 0
    cuda.syncthreads()
    if tid == 32:
        st_release_cta_shared_b32(shared_address(flags), 1)
    elif tid == 0:
        while ld_acquire_cta_shared_b32(shared_address(flags)) == 0:
            attempts += 1
        out[0] = 1


def either(out):
    """A wait for one of two barriers; only the second completes."""
    bars, tid = cuda.shared.array(2, uint64), cuda.threadIdx.x
    bar = shared_address(bars)
    if tid == 0:
        mbarrier_init(bar, 1)
        mbarrier_init(bar + 8, 1)
    cuda.syncthreads()
    if tid == 0:
        mbarrier_arrive(bar + 8)
    elif tid == 32:
        while mbarrier_try_wait_parity(bar, 0) == 0:
            if mbarrier_try_wait_parity(bar + 8, 0):
                break
        out[0] = 1


@pytest.mark.parametrize("kernel", [counts, either])
def test_a_poll_leaves_the_others_their_turn(kernel):
    out = np.zeros(1, np.int64)
    result = explore(kernel, 1, 64, (out,), timeout=10)
    assert result.complete and result.results == 1 and out[0] == 1


def aligned(words):
    data = np.arange(1, words + 5, dtype=np.uint32)
    return data[-(data.ctypes.data % 16) // 4 % 4 :][:words]


@pytest.mark.parametrize("retries", [1, 2, 5, 40])
def test_a_try_wait_gives_up(retries):
    args = aligned(4), np.zeros(32, np.int64)
    simulate(tried(retries, True), 1, 64, args)  # in this order it does not
    with pytest.raises(faults.InFlightRead) as caught:
        explore(tried(retries, True), 1, 64, args, limit=20 + retries)
    assert "tile[0]" in caught.value.source
    again = replay(tried(retries, True), 64, args, caught.value.seed)
    assert str(again) == str(caught.value)
    result = explore(tried(retries, False), 1, 64, (aligned(4), np.zeros(32, np.int64)))
    assert result.complete == (retries < 40) and result.results == 2 and result.schedules < 200


def counted(data, out):
    """Waits that count their attempts, and look elsewhere in between."""
    bars, flags = cuda.shared.array(2, uint64), cuda.shared.array(1, uint32)
    bar, tid = shared_address(bars), cuda.threadIdx.x
    if tid == 0:
        mbarrier_init(bar, 1)
        mbarrier_init(bar + 8, 1)
        flags[0] = 0
    cuda.syncthreads()
    tries = 0
    if tid == 0:
        mbarrier_arrive(bar)
        while mbarrier_try_wait_parity(bar + 8, 0) == 0:
            tries += 1
        out[0] = ld_acquire_cta_shared_b32(shared_address(flags))
    elif tid == 32:
        while mbarrier_try_wait_parity(bar, 0) == 0:
            if tries == 1:
                st_release_cta_shared_b32(shared_address(flags), tries)
            tries += 1
        mbarrier_arrive(bar + 8)


def test_waits_that_do_something_meanwhile():
    """There is no end of the numbers of looks that it may take."""
    args = aligned(4), np.zeros(32, np.int64)
    result = explore(counted, 1, 64, args)
    assert not result.complete and result.results > 1
    assert re.search(r"each look at test_explore.py:\d+, test_explore.py:\d+ changes something", str(result))


def two_locks(second, take):
    """Each warp takes two locks: warp 0 first lock 0, warp 1 first lock ``second``."""

    def kernel(out):
        locks = cuda.shared.array(2, uint32)
        tid = cuda.threadIdx.x
        if tid < 2:
            locks[tid] = 0
        cuda.syncthreads()
        if tid % 32 == 0:
            first = second if tid else 0
            while take(locks, first) != 0:
                pass
            while take(locks, 1 - first) != 0:
                pass
            cuda.threadfence_block()
            out[0] += 1
            cuda.threadfence_block()
            cuda.atomic.exch(locks, 1 - first, 0)
            cuda.atomic.exch(locks, first, 0)

    return kernel


@cuda.jit(device=True)
def by_cas(locks, i):
    return cuda.atomic.cas(locks, i, 0, 1)


@cuda.jit(device=True)
def by_exch(locks, i):
    return cuda.atomic.exch(locks, i, 1)


@pytest.mark.parametrize("take", [by_cas, by_exch])
def test_locks_in_opposite_orders(take):
    out = np.zeros(1, np.int64)
    simulate(two_locks(1, take), 1, 64, (out,), schedules=20)
    with pytest.raises(faults.Livelock) as caught:
        explore(two_locks(1, take), 1, 64, (out,), limit=50)
    text = str(caught.value)
    assert "waits on locks[1]\n       -> B (thread 32): wrote it before" in text
    assert "waits on locks[0]\n       -> A (thread 0): wrote it before" in text
    assert "circle: A -> B -> A" in text
    out[0] = 0
    result = explore(two_locks(0, take), 1, 64, (out,))
    assert result.complete and result.schedules > 1 and out[0] == 2


def pairs(numbers):
    """Two pairs of warps exchange words behind named barriers with these numbers."""

    def kernel(out):
        words, tid = cuda.shared.array(128, uint32), cuda.threadIdx.x
        words[tid] = tid
        bar_sync(numbers[tid // 64], 64)
        out[tid] = words[tid ^ 32]

    return kernel


def test_pairs_that_share_a_named_barrier():
    out = np.zeros(128, np.int64)
    simulate(pairs((1, 1)), 1, 128, (out,))  # in this order the right ones meet
    with pytest.raises(faults.DataRace) as caught:
        explore(pairs((1, 1)), 1, 128, (out,), limit=10)
    assert "words[tid ^ 32]" in caught.value.source
    result = explore(pairs((1, 2)), 1, 128, (out,))
    assert result.complete and list(out) == [tid ^ 32 for tid in range(128)]


def meet(blocks):
    """A barrier of the grid, twice; the blocks that come are ``blocks``."""

    def kernel(state, out, seen):
        for i in range(2):
            if cuda.threadIdx.x == 0:
                out[cuda.blockIdx.x, i] = 1 + i
                cuda.threadfence()
                cuda.atomic.add(state, 0, 1)
                while cuda.atomic.add(state, 0, 0) < blocks * (i + 1):
                    pass
                cuda.threadfence()
            cuda.syncthreads()
            if cuda.threadIdx.x == 40:
                seen[cuda.blockIdx.x] += out[1 - cuda.blockIdx.x, i]

    return kernel


def test_blocks_that_wait_for_each_other():
    def args():
        return np.zeros(1, np.int32), np.zeros((2, 2), np.int32), np.zeros(2, np.int32)

    result = explore(meet(2), 2, 64, args(), limit=50)
    assert result.schedules > 1 and result.results == 1
    assert "of 2 warps in each of 2 blocks, those after it in one piece" in str(result)
    with pytest.raises(faults.Livelock) as caught:
        explore(meet(3), 2, 64, args(), limit=50)
    assert "blocks 0-1 all poll" in str(caught.value)


def a_lock_for_each_block(second):
    """A block takes two locks in global memory: block 0 first lock 0, block 1 first lock ``second``."""

    def kernel(locks, out):
        if cuda.threadIdx.x == 0:
            first = second if cuda.blockIdx.x else 0
            while cuda.atomic.cas(locks, first, 0, 1) != 0:
                pass
            while cuda.atomic.cas(locks, 1 - first, 0, 1) != 0:
                pass
            cuda.threadfence()
            out[0] += 1
            cuda.threadfence()
            cuda.atomic.exch(locks, 1 - first, 0)
            cuda.atomic.exch(locks, first, 0)

    return kernel


def test_locks_of_blocks_in_opposite_orders():
    def fresh():
        return np.zeros(2, np.int32), np.zeros(1, np.int32)

    for compiled in (False, True):  # a schedule lets others go on behind what a compare-and-swap has taken
        with pytest.raises(faults.Livelock, match=r"thread 0 of block \d has") as caught:
            simulate(a_lock_for_each_block(1), 2, 32, fresh(), schedules=20, compiled=compiled)
        assert caught.value.seed > 0 and "in one order" in caught.value.cure
    simulate(a_lock_for_each_block(0), 2, 32, fresh(), schedules=20)
    with pytest.raises(faults.Livelock) as caught:
        explore(a_lock_for_each_block(1), 2, 32, fresh(), limit=20)
    assert "blocks 0-1 all poll" in str(caught.value)
    assert str(replay(a_lock_for_each_block(1), 32, fresh(), caught.value.seed, 2)) == str(caught.value)
    args = fresh()
    result = explore(a_lock_for_each_block(0), 2, 32, args)
    assert result.complete and result.schedules > 2 and args[1][0] == 2


def replay(kernel, threads, args, seed, grid=1, shared_bytes=0):
    with pytest.raises(SimFault) as caught:
        simulate(kernel, grid, threads, args, shared_bytes, seed=seed)
    return caught.value


SMALL = [n for n, b in BUGS.items() if b.kernel().threads <= 64]
REPORTED = [n for n in SMALL if BUGS[n].faults]
# Twins that one thread of a reading warp feeds have 3^5 orders and more; of these only the first few.
LARGE = {
    "parity_never_flips", "no_warp_sync", "init_again", "arrive_drop_reset", "metadata_unwritten",
    "no_empty_wait", "tail_skips_barrier",
}  # fmt: skip


@pytest.mark.parametrize("name", REPORTED)
def test_planted_faults_are_found_and_replayed(name):
    bug = BUGS[name]
    kernel, launch = bug.kernel(), bug.arguments()
    with pytest.raises(SimFault) as caught:
        explore(kernel, launch.grid, kernel.threads, launch.args, launch.shared_bytes, limit=100)
    fault = caught.value
    assert bug.reports(fault), str(fault)
    launch = bug.arguments()
    again = replay(
        kernel, kernel.threads, launch.args, fault.seed, launch.grid, launch.shared_bytes
    )
    assert (type(again), again.where, again.what) == (type(fault), fault.where, fault.what)


@pytest.mark.parametrize("name", SMALL)
def test_right_twins_are_explored_without_a_fault(name):
    bug = BUGS[name]
    kernel, launch = bug.kernel(False), bug.arguments()
    result = explore(
        kernel, launch.grid, kernel.threads, launch.args, launch.shared_bytes, limit=25
    )
    assert result.complete == (name not in LARGE), str(result)
    assert result.results == 1 and launch.wrong() == 0


@pytest.mark.full
def test_a_large_twin_to_its_end():
    bug = BUGS["no_warp_sync"]
    kernel, launch = bug.kernel(False), bug.arguments()
    result = explore(kernel, 1, kernel.threads, launch.args)
    assert (result.complete, result.schedules, result.results) == (True, 243, 1)


# --- what says nothing new -----------------------------------------------------------------------
def test_arrivals_at_the_last_barrier_commute():
    """Who has come last goes on, and ends: no other order of the arrivals comes of that."""

    def kernel(out):
        cuda.syncthreads()
        out[cuda.threadIdx.x] = 1

    result = explore(kernel, 1, 96, (np.zeros(96, np.int64),))
    assert (result.complete, result.schedules, result.repeated) == (True, 1, 0)


def circle(following, out):
    """Follows a list that goes in a circle: neither of its nodes is one where many reads have been made."""
    node = 0
    while node >= 0:
        node = following[node]
    out[0] = node


@pytest.mark.parametrize("length", [2, 3, 7])
def test_a_circle_is_no_work(length):
    following = (np.arange(length + 1, dtype=np.int32) + 1) % (length + 1)
    following[length] = 1
    with pytest.raises(faults.Livelock, match="following"):
        explore(circle, 1, 1, (following, np.zeros(1, np.int32)))


def test_the_limit_counts_what_says_something_new():
    program = [[("cas", 0, 0, 0), ("arrive", 0)], [("test", 0, 0), ("arrive", 0)]]
    _, whole = found(program, (1, 1), True, 100, False, 32)
    assert whole.complete and whole.repeated
    for limit in range(1, whole.schedules + 1):
        assert found(program, (1, 1), True, limit, False, 32)[1].schedules == limit


def test_progress_is_told_after_each_schedule():
    def kernel(out):
        cuda.atomic.exch(out, 0, cuda.threadIdx.x)

    told = []
    result = explore(kernel, 1, 3, (np.zeros(1, np.int64),), by_thread=True, progress=told.append)
    assert told == list(range(1, result.schedules + 1)) and len(told) > 1


# --- texts ----------------------------------------------------------------------------------------
def test_the_statement_of_what_was_covered():
    out = np.zeros(1, np.int64)

    def kernel(out):
        cuda.atomic.exch(out, 0, cuda.threadIdx.x)

    result = explore(kernel, 1, 3, (out,), by_thread=True)
    assert (result.schedules, result.results, result.longest, result.choices) == (6, 3, 3, 2)
    assert str(result).startswith(
        "complete: every order of up to 3 barrier, flag and copy events of 3 threads: 6 schedules, "
        "3 different results; "
    )
    result = explore(kernel, 1, 96, (out,), limit=2)
    assert str(result).startswith(
        "not complete: the first 2 schedules (limit=2) of up to 3 barrier, flag and copy events of 3 warps"
    )
    assert explore(kernel, 1, 96, (out,), limit=1).schedules == 1
    result = explore(kernel, 2, 64, (out,))
    assert "of 2 warps in each of 2 blocks, those after it in one piece at any moment" in str(result)
    assert result.schedules == 8
    assert "the lanes of a warp go in step" in str(result)


@pytest.mark.parametrize("text", ["x:0:", "x:0:021z", "xt:3:0(36)1", "x:12:(100)(36)z", "xt:0:1"])
def test_schedules_as_texts(text):
    schedule = Schedule.parse(text)
    schedule.taken = schedule.choices
    assert str(schedule) == text


@pytest.mark.parametrize(
    "text", ["", "x", "x:", "x:0", "x::1", "x:0:A", "x:0:(1", "y:0:1", "x:0:1\n"]
)
def test_bad_texts_are_refused(text):
    with pytest.raises(ValueError, match="must be an integer, or a schedule x:BLOCK:CHOICES"):
        simulate(half_way, 1, 64, (np.zeros(1, np.int64),), seed=text)


def test_schedules_of_another_kernel_are_refused():
    def run(seed, **options):
        simulate(half_way, 1, 64, (np.zeros(1, np.int64),), seed=seed, **options)

    run("x:0:")
    with pytest.raises(ValueError, match="choice 1 is 9, among 2"):
        run("x:0:9")
    with pytest.raises(ValueError, match="it has 30 choices, and"):
        run("x:0:" + 29 * "0" + "1")
    with pytest.raises(ValueError, match="is of block 1, and there are 1"):
        run("x:1:")
    with pytest.raises(ValueError, match="is one schedule, and schedules=2 asks for more"):
        run("x:0:", schedules=2)
    with pytest.raises(ValueError, match="limit=0 must be at least 1"):
        explore(half_way, 1, 64, (np.zeros(1, np.int64),), limit=0)


def test_a_fault_that_is_told_late_is_not_lost(monkeypatch):
    """A thread that has met a fault lets the others come, so that the report can name them; an order in which
    none of these need be tried again runs to its end all the same."""
    monkeypatch.setattr(NamedBarrier, "unordered", lambda self, thread: None)  # or every order has it

    def kernel(data, out):
        bars, tile = cuda.shared.array(2, uint64), cuda.shared.array((2, 4), uint32, alignment=128)
        full, first, warp = shared_address(bars), shared_address(tile), cuda.threadIdx.x // 32
        if cuda.threadIdx.x == 0:
            mbarrier_init(full, 1)
            mbarrier_init(full + 8, 1)
            fence_mbarrier_init()
        cuda.syncthreads()
        for i in range(2):
            if cuda.threadIdx.x == 0:
                mbarrier_arrive_expect_tx(full + 8 * i, 16)
                cp_async_bulk_load(first + 16 * i, global_address(data), 16, full + 8 * i)
            elif warp:
                mbarrier_wait(full + 8 * i, 0)
                bar_arrive(2, 64) if warp == 1 else bar_sync(2, 64)

    grid = PreparedLaunch(kernel, 1, 96, (np.zeros(4, np.uint32), np.zeros(1)), 0, 60.0)
    found = outcomes(grid, Exploration(1, 1, 3, False, 4000), True)
    assert {type(fault) for _, fault in found} == {type(None), faults.NamedBarrierMisuse}


@pytest.mark.parametrize("left, turns", [(1, 0), (2, 1), (2, 0)])
def test_a_block_that_polls_between_barriers(left, turns):
    """A round that leaves all as it was waits for other blocks; one that counts is a step, and so is what a
    warp does that takes no part in it."""

    def kernel(status, out):
        box, i, state, count = cuda.shared.array(1, uint32), cuda.threadIdx.x, 0, 0
        if cuda.blockIdx.x == 1:
            if i < 64:
                while state != 1 and count < 4:
                    if i == 0:
                        box[0] = ld_acquire_gpu_global_b32(global_address(status))
                    bar_sync(1, 64)
                    state, count = box[0], count + turns
                    bar_sync(1, 64)
            out[i] = count
        elif i == 64:
            st_release_gpu_global_b32(global_address(status), left)

    args = np.zeros(1, np.uint32), np.zeros(96, np.uint32)
    if left == 2 and not turns:
        with pytest.raises(faults.Livelock):
            explore(kernel, 2, 96, args, limit=20)
    else:
        assert explore(kernel, 2, 96, args, limit=20).schedules > 1
        assert set(args[1]) == {0, 4 * turns}

"""mbarrier by state: tokens of arrivals, waits for them, noComplete, hints."""

import numpy as np
from base import right, wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.mbarrier import mbarrier_arrive, mbarrier_expect_tx, mbarrier_init
from numba_deform.device.memory import global_at, ld_global_b32, shared_address, st_global_b32
from numba_deform.device.sync import fence_mbarrier_init
from numba_deform.device.tma import cp_async_bulk_load
from numba_deform.device.tokens import (
    mbarrier_arrive_count_state,
    mbarrier_arrive_expect_tx_state,
    mbarrier_arrive_noComplete,
    mbarrier_arrive_state,
    mbarrier_pending_count,
    mbarrier_test_wait,
    mbarrier_try_wait,
    mbarrier_try_wait_hint,
    mbarrier_try_wait_parity_hint,
)
from numba_deform.engines import faults

WARP, THREADS, ROUNDS, LAST = 32, 64, 3, 63
ARRIVE, WAIT = "PTX ISA 9.7.13.15.13", "PTX ISA 9.7.13.15.16"


def words(count, *out, seed=1):
    """Arguments: that many random words, and room for the result."""
    random = np.random.default_rng(seed)
    return lambda: [random.integers(0, 1 << 32, count, np.uint32), np.zeros(out, np.uint32)]


@cuda.jit(device=True)
def init(bar, count):
    if cuda.threadIdx.x == 0:
        mbarrier_init(bar, count)
        fence_mbarrier_init()
    cuda.syncthreads()


@cuda.jit(device=True)
def wait(bar, state):
    while mbarrier_try_wait(bar, state) == 0:
        pass


@right(
    source="CUDA C++ Programming Guide, cuda::barrier: arrive returns a token, wait takes it", block=THREADS,
    args=words(ROUNDS * THREADS, THREADS), explorable=False,
    expect=lambda data, out: [(out, data.reshape(ROUNDS, THREADS)[:, ::-1].sum(0, np.uint32))],
)  # fmt: skip
def a_barrier_between_writes_and_reads(data: u64, out: u64):
    """Each round has two phases of one barrier, and nobody keeps a parity."""
    tile = cuda.shared.array(THREADS, uint32)
    bar = shared_address(cuda.shared.array(1, uint64))
    i, total = int32(cuda.threadIdx.x), uint32(0)
    init(bar, THREADS)
    for t in range(ROUNDS):
        tile[i] = ld_global_b32(global_at(data, t * THREADS + i, 4))
        wait(bar, mbarrier_arrive_state(bar))
        total += tile[LAST - i]
        wait(bar, mbarrier_arrive_state(bar))
    st_global_b32(global_at(out, i, 4), uint32(total))


@right(source=WAIT, args=words(WARP, WARP), expect=lambda data, out: [(out, data[::-1] + 1)])
def polls_and_hints(data: u64, out: u64):
    """A loop of test_wait, one of try_wait with a hint by token, and one by parity."""
    tile = cuda.shared.array(WARP, uint32)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, WARP)
    tile[i] = ld_global_b32(global_at(data, i, 4))
    state = mbarrier_arrive_state(bar)
    while mbarrier_test_wait(bar, state) == 0:
        pass
    word = tile[WARP - 1 - i]
    state = mbarrier_arrive_state(bar)
    while mbarrier_try_wait_hint(bar, state, uint32(1000)) == 0:
        pass
    tile[i] = word + uint32(1)
    mbarrier_arrive(bar)
    while mbarrier_try_wait_parity_hint(bar, uint32(0), uint32(1000)) == 0:
        pass
    st_global_b32(global_at(out, i, 4), tile[i])


@right(source=ARRIVE, args=words(WARP, WARP), expect=lambda data, out: [(out, data[::-1])])
def one_announces_the_bytes(data: u64, out: u64):
    """Thread 0 arrives with the bytes of its copy, the others plainly, each with a token of its own."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i, state = int32(cuda.threadIdx.x), uint64(0)
    init(bar, WARP)
    if i == 0:
        state = mbarrier_arrive_expect_tx_state(bar, 128)
        cp_async_bulk_load(shared_address(tile), data, 128, bar)
    else:
        state = mbarrier_arrive_state(bar)
    wait(bar, state)
    st_global_b32(global_at(out, i, 4), tile[WARP - 1 - i])


@right(source=ARRIVE, args=words(1, 4), expect=lambda data, out: [(out, [7, 5, 4, 1])])
def what_is_pending(data: u64, out: u64):
    """Two arrivals that complete nothing, one more that does not, and the last: each state holds what was
    pending before it."""
    bar = shared_address(cuda.shared.array(1, uint64))
    if int32(cuda.threadIdx.x) == 0:
        mbarrier_init(bar, 7)
        st_global_b32(out, mbarrier_pending_count(mbarrier_arrive_noComplete(bar, 2)))
        st_global_b32(out + uint64(4), mbarrier_pending_count(mbarrier_arrive_noComplete(bar, 1)))
        st_global_b32(out + uint64(8), mbarrier_pending_count(mbarrier_arrive_count_state(bar, 3)))
        state = mbarrier_arrive_state(bar)
        st_global_b32(out + uint64(12), mbarrier_pending_count(state))
        wait(bar, state)


@right(source=ARRIVE, block=THREADS, args=words(THREADS, THREADS), expect=lambda data, out: [(out, data[::-1])])
def followed_by_others_too(data: u64, out: u64):
    """All arrive twice, the first time without completing anything: the second of each thread comes later."""
    tile = cuda.shared.array(THREADS, uint32)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, 2 * THREADS)
    tile[i] = ld_global_b32(global_at(data, i, 4))
    state = mbarrier_arrive_noComplete(bar, 1)
    mbarrier_arrive(bar)
    wait(bar, state)
    st_global_b32(global_at(out, i, 4), tile[LAST - i])


@right(source=ARRIVE, args=words(WARP, WARP), expect=lambda data, out: [(out, data)])
def bytes_that_come_later(data: u64, out: u64):
    """The only arrival completes nothing, since bytes are expected whose copy is issued after it."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, 1)
    if i == 0:
        mbarrier_expect_tx(bar, 128)
        mbarrier_arrive_noComplete(bar, 1)
        cp_async_bulk_load(shared_address(tile), data, 128, bar)
    while mbarrier_try_wait_parity_hint(bar, uint32(0), uint32(100)) == 0:
        pass
    st_global_b32(global_at(out, i, 4), tile[i])


@right(source=WAIT, args=words(WARP, WARP), expect=lambda data, out: [(out, data)])
def a_token_for_the_others(data: u64, out: u64):
    """One thread arrives for all, and the others wait with the token that it left in shared memory."""
    bar, token = cuda.shared.array(1, uint64), cuda.shared.array(1, uint64)
    full = shared_address(bar)
    i = int32(cuda.threadIdx.x)
    init(full, 1)
    if i == 0:
        token[0] = mbarrier_arrive_state(full)
    cuda.syncwarp()
    wait(full, token[0])
    st_global_b32(global_at(out, i, 4), ld_global_b32(global_at(data, i, 4)))


# --- broken twins ---------------------------------------------------------------------------------
@wrong(faults.MissedPhase, source=WAIT, args=words(WARP, WARP), hardware="guarded")
def a_token_two_phases_old(data: u64, out: u64):
    """The first token is kept, and waited for when two phases are over: to the hardware it means the third."""
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, WARP)
    first = mbarrier_arrive_state(bar)
    wait(bar, first)
    wait(bar, mbarrier_arrive_state(bar))
    while mbarrier_try_wait(bar, first) == 0:  # <- fault
        pass
    st_global_b32(global_at(out, i, 4), ld_global_b32(global_at(data, i, 4)))


@wrong(faults.MissedPhase, source=WAIT, block=THREADS, args=words(WARP, WARP), hardware="guarded")
def a_token_that_grows_old_by_chance(data: u64, out: u64):
    """Warp 1 arrives once and then waits. Warp 0 waits as well and completes the next phase alone: by then
    warp 1 may not have looked yet."""
    bar = shared_address(cuda.shared.array(1, uint64))
    i, warp, state = int32(cuda.threadIdx.x) % 32, int32(cuda.threadIdx.x) // 32, uint64(0)
    init(bar, WARP)
    if warp == 1:
        state = mbarrier_arrive_state(bar)
    cuda.syncthreads()
    if warp == 1:
        while mbarrier_try_wait(bar, state) == 0:  # <- fault
            pass
    else:
        while mbarrier_try_wait_parity_hint(bar, uint32(0), uint32(10)) == 0:
            pass
        mbarrier_arrive(bar)
        st_global_b32(global_at(out, i, 4), ld_global_b32(global_at(data, i, 4)))


@wrong(faults.BadToken, source=WAIT, args=words(WARP, WARP), hardware="guarded")
def a_token_of_another_barrier(data: u64, out: u64):
    """The state of full is given to a wait on empty."""
    full = shared_address(cuda.shared.array(1, uint64))
    empty = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(full, WARP)
    init(empty, WARP)
    state = mbarrier_arrive_state(full)
    mbarrier_arrive(empty)
    while mbarrier_try_wait(empty, state) == 0:  # <- fault
        pass
    st_global_b32(global_at(out, i, 4), ld_global_b32(global_at(data, i, 4)))


@wrong(faults.BadToken, source=WAIT, args=words(WARP, WARP), hardware="guarded")
def a_parity_in_place_of_a_token(data: u64, out: u64):
    """0 is the parity that is meant, and no state that an arrival has returned."""
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, WARP)
    mbarrier_arrive(bar)
    while mbarrier_try_wait(bar, uint64(0)) == 0:  # <- fault
        pass
    st_global_b32(global_at(out, i, 4), ld_global_b32(global_at(data, i, 4)))


@wrong(faults.CompletesPhase, source=ARRIVE, args=words(WARP, WARP))
def no_complete_completes(data: u64, out: u64):
    """The count is that of all arrivals that the phase lacks."""
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, WARP)
    if i == 0:
        mbarrier_arrive_noComplete(bar, WARP)  # <- fault
    cuda.syncwarp()
    st_global_b32(global_at(out, i, 4), ld_global_b32(global_at(data, i, 4)))


@wrong(faults.CompletesPhase, source=ARRIVE, args=words(WARP, WARP))
def no_complete_may_come_last(data: u64, out: u64):
    """Lane 31 makes the arrival that completes the phase, or lane 0 does: nothing says who is the last."""
    bar = shared_address(cuda.shared.array(1, uint64))
    i, state = int32(cuda.threadIdx.x), uint64(0)
    init(bar, WARP)
    if i == 0:
        state = mbarrier_arrive_noComplete(bar, 1)  # <- fault
    else:
        state = mbarrier_arrive_state(bar)
    wait(bar, state)
    st_global_b32(global_at(out, i, 4), ld_global_b32(global_at(data, i, 4)))


@wrong(faults.CompletesPhase, source=ARRIVE, args=words(WARP, WARP))
def bytes_that_may_have_come(data: u64, out: u64):
    """The copy is issued before the arrival, so the bytes may all be there when it comes."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, 1)
    if i == 0:
        mbarrier_expect_tx(bar, 128)
        cp_async_bulk_load(shared_address(tile), data, 128, bar)
        mbarrier_arrive_noComplete(bar, 1)  # <- fault
    while mbarrier_try_wait_parity_hint(bar, uint32(0), uint32(100)) == 0:
        pass
    st_global_b32(global_at(out, i, 4), tile[i])


@wrong(faults.BadToken, source=WAIT, args=words(WARP, WARP), hardware="guarded")
def a_token_that_was_computed(data: u64, out: u64):
    """What the bits of a token mean nobody says: one more in them is not the next phase."""
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, WARP)
    state = uint64(mbarrier_arrive_state(bar) + uint64(1 << 20))
    while mbarrier_try_wait(bar, state) == 0:  # <- fault
        pass
    st_global_b32(global_at(out, i, 4), ld_global_b32(global_at(data, i, 4)))


@wrong(faults.DataRace, source=WAIT, args=words(WARP, WARP))
def arrives_and_does_not_wait(data: u64, out: u64):
    """A single test_wait, whose answer nobody looks at, is no wait."""
    tile = cuda.shared.array(WARP, uint32)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, WARP)
    tile[i] = ld_global_b32(global_at(data, i, 4))
    mbarrier_test_wait(bar, mbarrier_arrive_state(bar))
    st_global_b32(global_at(out, i, 4), tile[WARP - 1 - i])  # <- fault

"""mbarriers: counts, lives, late and early waits, and uses that have nothing to do with copies."""

import numpy as np
from base import right
from numba import cuda, float32, int32, uint32, uint64

from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_count,
    mbarrier_arrive_drop,
    mbarrier_arrive_expect_tx,
    mbarrier_expect_tx,
    mbarrier_init,
    mbarrier_inval,
    mbarrier_test_wait_parity,
)
from numba_deform.device.memory import global_address, shared_address
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import cp_async_bulk_load

THREADS, WARP, TURNS = 64, 32, 5


def numbers(count, *out):
    return lambda: [np.arange(count, dtype=np.int32), np.zeros(out, np.int32)]


@cuda.jit(device=True)
def init_one(bar, count):
    if cuda.threadIdx.x == 0:
        mbarrier_init(bar, count)
        fence_mbarrier_init()
    cuda.syncthreads()


@right(
    source="CUDA C++ Programming Guide, Asynchronous Barriers: a barrier in place of __syncthreads",
    block=THREADS, args=numbers(THREADS, THREADS),
    expect=lambda data, out: [(out, np.roll(data, -TURNS))],
)  # fmt: skip
def in_place_of_syncthreads(data, out):
    """All threads arrive and all wait, once after each write and once after each read; the parity is counted by
    each thread for itself."""
    words = cuda.shared.array(THREADS, int32)
    bar = shared_address(cuda.shared.array(1, uint64))
    thread, parity = int32(cuda.threadIdx.x), uint32(0)
    init_one(bar, THREADS)
    mine = data[thread]
    for _ in range(TURNS):
        words[thread] = mine
        mbarrier_arrive(bar)
        mbarrier_wait(bar, parity)
        mine = words[(thread + 1) % THREADS]
        parity ^= uint32(1)
        mbarrier_arrive(bar)
        mbarrier_wait(bar, parity)
        parity ^= uint32(1)
    out[thread] = mine


@right(
    source="CUDA C++ Programming Guide, Asynchronous Barriers: arrive, work, wait",
    block=THREADS, args=numbers(THREADS, THREADS),
    expect=lambda data, out: [(out, data[::-1] + data * 10)],
)  # fmt: skip
def work_between_arrival_and_wait(data, out):
    """Between its arrival and its wait a thread writes to memory that no other looks at until the phase
    after."""
    words = cuda.shared.array(THREADS, int32)
    private = cuda.shared.array(THREADS, int32)
    bar = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    init_one(bar, THREADS)
    words[thread] = data[thread]
    mbarrier_arrive(bar)
    private[thread] = data[thread] * 10
    mbarrier_wait(bar, 0)
    words_there = words[THREADS - 1 - thread]
    mbarrier_arrive(bar)
    mbarrier_wait(bar, 1)
    out[thread] = words_there + private[thread]


@right(
    source="PTX ISA, mbarrier.arrive: the operand count",
    block=96, args=numbers(THREADS, WARP),
    expect=lambda data, out: [(out, data[:WARP] + data[WARP:])],
)  # fmt: skip
def one_lane_arrives_for_its_warp(data, out):
    """The barrier counts 64 threads, but after a syncwarp one lane of each writing warp arrives 32 times at
    once."""
    words = cuda.shared.array(THREADS, int32)
    bar = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    init_one(bar, THREADS)
    if thread < THREADS:
        words[thread] = data[thread]
        cuda.syncwarp()
        if thread % 32 == 31:
            mbarrier_arrive_count(bar, 32)
    else:
        mbarrier_wait(bar, 0)
        lane = thread - THREADS
        out[lane] = words[lane] + words[lane + 32]


@right(
    source="CUDA C++ Programming Guide, Asynchronous Barriers: early exit, dropping out of participation",
    block=128, args=lambda: [np.zeros(128, np.int32)],
    expect=lambda out: [(out, 4 - np.arange(128) // 32)],
)  # fmt: skip
def warps_drop_out_one_by_one(out):
    """In each round the threads of one warp leave for good and lower the count of the rounds to come; the last
    warp is alone. Those that leave do not wait for the phase that they complete."""
    alive = cuda.shared.array(1, int32)
    bar = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    warp = thread // 32
    if thread == 0:
        alive[0] = 4
    init_one(bar, 128)
    for r in range(warp):
        mbarrier_arrive(bar)
        mbarrier_wait(bar, uint32(r & 1))
    # The other warps wait for this one's arrival before they look at the number.
    out[thread] = alive[0]
    cuda.syncwarp()
    if warp < 3:
        if thread % 32 == 0:
            alive[0] = 3 - warp
        mbarrier_arrive_drop(bar)


@right(
    source="PTX ISA, mbarrier.test_wait: the example of a loop that waits by tests",
    block=THREADS, args=numbers(WARP, WARP), expect=lambda data, out: [(out, data[::-1])],
)  # fmt: skip
def test_wait_in_a_loop_with_naps(data, out):
    """The waiting warp polls with test_wait, which never blocks, and sleeps a little in between."""
    words = cuda.shared.array(WARP, int32)
    bar = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    init_one(bar, WARP)
    if thread < 32:
        words[thread] = data[thread]
        mbarrier_arrive(bar)
    else:
        while mbarrier_test_wait_parity(bar, 0) == 0:
            cuda.nanosleep(20)
        out[thread - 32] = words[63 - thread]


@right(
    source="PTX ISA 9.7.13.15.16, test_wait; NVIDIA/cccl, barrier::try_wait_for",
    block=THREADS, args=numbers(WARP, WARP), expect=lambda data, out: [(out, data[::-1])],
)  # fmt: skip
def does_something_else_after_many_looks(data, out):
    """The waiting warp gives up after 20 looks, reads nothing yet, and waits later."""
    words = cuda.shared.array(WARP, int32)
    bar = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    init_one(bar, WARP)
    if thread < 32:
        words[thread] = data[thread]
        mbarrier_arrive(bar)
    else:
        looks = 0
        while looks < 20 and mbarrier_test_wait_parity(bar, 0) == 0:
            looks += 1
        if looks == 20:
            out[thread - 32] = -1
            mbarrier_wait(bar, 0)
        out[thread - 32] = words[63 - thread]


@right(
    source="PTX ISA, mbarrier.inval: the memory may be initialised again",
    block=THREADS, args=numbers(THREADS, 2, THREADS),
    expect=lambda data, out: [(out[0], data[::-1]), (out[1], np.full(THREADS, data.sum()))],
)  # fmt: skip
def another_count_after_inval(data, out):
    """A barrier for all threads ends its life behind a syncthreads, and its memory becomes one for a single
    copy. The parity that is waited for begins with 0 again."""
    words = cuda.shared.array(THREADS, int32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    init_one(bar, THREADS)
    words[thread] = data[thread]
    mbarrier_arrive(bar)
    mbarrier_wait(bar, 0)
    out[0, thread] = words[THREADS - 1 - thread]
    cuda.syncthreads()
    if thread == 0:
        mbarrier_inval(bar)
    again = cuda.shared.array(THREADS, int32, alignment=128)
    init_one(bar, 1)
    if thread == 0:
        mbarrier_arrive_expect_tx(bar, 4 * THREADS)
        cp_async_bulk_load(shared_address(again), global_address(data), 4 * THREADS, bar)
    mbarrier_wait(bar, 0)
    total = int32(0)
    for i in range(THREADS):
        total += again[i]
    out[1, thread] = total


@right(
    source="PTX ISA, mbarrier.inval: the memory may be used for other things",
    block=WARP, args=numbers(WARP, WARP), expect=lambda data, out: [(out, data[::-1] + 5)],
)  # fmt: skip
def numbers_where_a_barrier_was(data, out):
    """After inval the eight bytes hold two ordinary numbers, which a lane writes and others read."""
    both = cuda.shared.array(2, int32, alignment=8)
    words = cuda.shared.array(WARP, int32)
    bar = shared_address(both)
    lane = int32(cuda.threadIdx.x)
    init_one(bar, WARP)
    words[lane] = data[lane]
    mbarrier_arrive(bar)
    mbarrier_wait(bar, 0)
    x = words[31 - lane]
    cuda.syncwarp()
    if lane == 7:
        mbarrier_inval(bar)
        both[0], both[1] = 2, 3
    cuda.syncwarp()
    out[lane] = x + both[0] + both[1]


@right(
    source="triton-lang/triton pull request 11303: a fresh barrier passes a wait for parity 1",
    block=WARP, args=numbers(4, 4), expect=lambda data, out: [(out, [1, 0, 0, 1])],
)  # fmt: skip
def what_a_fresh_barrier_answers(data, out):
    """The phase before the first counts as complete: parity 1 passes and parity 0 does not, until an arrival
    turns both answers round."""
    bar = shared_address(cuda.shared.array(1, uint64))
    init_one(bar, 1)
    if cuda.threadIdx.x == 0:
        out[0] = mbarrier_test_wait_parity(bar, 1)
        out[1] = mbarrier_test_wait_parity(bar, 0)
        mbarrier_arrive(bar)
        out[2] = mbarrier_test_wait_parity(bar, 1)
        out[3] = mbarrier_test_wait_parity(bar, 0)


@right(
    source="CUDA C++ Programming Guide, Asynchronous Data Copies using TMA, and what many kernels make of it: "
           "one thread waits, syncthreads tells the others",
    block=THREADS, args=numbers(THREADS, THREADS), expect=lambda data, out: [(out, data[::-1])],
)  # fmt: skip
def one_thread_waits_for_all(data, out):
    """Only thread 0 waits for the copy; what it has seen the others see after a syncthreads."""
    tile = cuda.shared.array(THREADS, int32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    if thread == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(bar, 4 * THREADS)
        cp_async_bulk_load(shared_address(tile), global_address(data), 4 * THREADS, bar)
        mbarrier_wait(bar, 0)
    cuda.syncthreads()
    out[thread] = tile[THREADS - 1 - thread]


@right(
    source="PTX ISA, mbarrier.arrive.expect_tx: an expectation of zero bytes",
    block=WARP, args=lambda: [np.arange(WARP, dtype=np.int32), np.array([0, 64, 0, 128], np.int32),
                              np.zeros(4, np.int32)],
    expect=lambda data, sizes, out: [(out, [-1, data[:16].sum(), -1, data.sum()])],
)  # fmt: skip
def some_tiles_are_empty(data, sizes, out):
    """The number of bytes is known at run time and may be zero: then no copy is asked for, and the arrival
    alone completes the phase."""
    tile = cuda.shared.array(WARP, int32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    lane = int32(cuda.threadIdx.x)
    init_one(bar, 1)
    for t in range(4):
        size = uint32(sizes[t])
        if lane == 0:
            mbarrier_arrive_expect_tx(bar, size)
            if size > 0:
                cp_async_bulk_load(shared_address(tile), global_address(data), size, bar)
        mbarrier_wait(bar, uint32(t & 1))
        if lane == 0:
            total = int32(0 if size > 0 else -1)
            for i in range(int32(size // uint32(4))):
                total += tile[i]
            out[t] = total
        fence_proxy_async()
        cuda.syncwarp()


@right(
    source="PTX ISA, mbarrier.expect_tx: bytes may be expected by one thread and the arrival be another's",
    block=WARP, args=lambda: [np.arange(THREADS, dtype=np.float32), np.zeros(WARP, np.float32)],
    expect=lambda data, out: [(out, data[:WARP] * data[WARP:])],
)  # fmt: skip
def bytes_expected_by_another_thread(data, out):
    """Lanes 0 and 1 each expect the bytes of their copy and ask for it; lane 2 alone arrives, after both."""
    tile = cuda.shared.array(THREADS, float32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    lane = int32(cuda.threadIdx.x)
    init_one(bar, 1)
    if lane < 2:
        mbarrier_expect_tx(bar, 128)
        offset = uint32(128 * lane)
        cp_async_bulk_load(shared_address(tile) + offset, global_address(data) + uint64(offset), 128, bar)
    cuda.syncwarp()
    if lane == 2:
        mbarrier_arrive(bar)
    mbarrier_wait(bar, 0)
    out[lane] = tile[lane] * tile[lane + 32]


@right(
    source="CUTLASS include/cutlass/arch/barrier.h, ClusterBarrier: two warps hand a token to and fro",
    block=THREADS, args=numbers(1, WARP), expect=lambda data, out: [(out, np.full(WARP, 2 * TURNS))],
)  # fmt: skip
def a_token_to_and_fro(data, out):
    """Two warps add to the same numbers in turn. Each barrier has one side that arrives and one that waits."""
    words = cuda.shared.array(WARP, int32)
    bars = shared_address(cuda.shared.array(2, uint64))
    thread = int32(cuda.threadIdx.x)
    warp, lane = thread // 32, thread % 32
    if warp == 0:
        words[lane] = 0
    if thread < 2:
        mbarrier_init(bars + uint32(8 * thread), 32)
    cuda.syncthreads()
    for r in range(TURNS):
        mbarrier_wait(bars + uint32(8 * warp), uint32(r & 1 ^ 1 ^ warp))
        words[lane] += 1
        mbarrier_arrive(bars + uint32(8 * (1 - warp)))
    if warp == 0:
        mbarrier_wait(bars, uint32(TURNS & 1 ^ 1))
        out[lane] = words[lane]


@right(
    source="CUDA C++ Programming Guide, Asynchronous Barriers: waiting for the phase before the current one",
    block=96, args=numbers(WARP, 2, WARP),
    expect=lambda data, out: [(out[0], data), (out[1], data * 2)],
)  # fmt: skip
def a_wait_long_after_the_phase(data, out):
    """One warp comes to its wait late, after the other two have exchanged a message by another barrier; the
    phase is over by then, and the one after it cannot be, since it lacks this warp's arrival."""
    words = cuda.shared.array(WARP, int32)
    bars = shared_address(cuda.shared.array(2, uint64))
    thread = int32(cuda.threadIdx.x)
    warp, lane = thread // 32, thread % 32
    if thread == 0:
        mbarrier_init(bars, 96)
        mbarrier_init(bars + uint32(8), 64)
    cuda.syncthreads()
    if warp == 0:
        words[lane] = data[lane]
    mbarrier_arrive(bars)
    if warp < 2:
        mbarrier_wait(bars, 0)
        if warp == 1:
            out[0, lane] = words[lane]
        mbarrier_arrive(bars + uint32(8))
        mbarrier_arrive(bars)
    else:
        mbarrier_wait(bars + uint32(8), 0)
        mbarrier_wait(bars, 0)
        out[1, lane] = words[lane] * 2
        mbarrier_arrive(bars)
    mbarrier_wait(bars, 1)

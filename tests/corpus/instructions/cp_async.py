"""cp.async of small elements, wait_all, and arrivals that are left to the copies."""

import numpy as np
from base import right, wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.cp_async import (
    cp_async_ca_4,
    cp_async_ca_8,
    cp_async_ca_16,
    cp_async_mbarrier_arrive,
    cp_async_mbarrier_arrive_noinc,
    cp_async_wait_all,
)
from numba_deform.device.mbarrier import mbarrier_arrive, mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import (
    cp_async_commit_group,
    global_at,
    shared_address,
    shared_at,
    st_global_b32,
)
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init
from numba_deform.device.tma import cp_async_bulk_load
from numba_deform.engines import faults

WARP, THREADS, ROUNDS = 32, 64, 3
TWO, FOUR = 2 * THREADS, 4 * THREADS
SECTION, ARRIVE = "PTX ISA 9.7.9.25.3", "PTX ISA 9.7.13.15.15"
IDIOM = "CUTLASS cutlass/arch/barrier.h, cpasync_barrier_arrive_noinc"


def words(count, *out, seed=0):
    """Arguments: that many random words, and room for the result."""
    random = np.random.default_rng(seed)
    return lambda: [random.integers(0, 1 << 32, count, np.uint32), np.zeros(out, np.uint32)]


def partly(data, out):
    """What the first 0 to 4, 0 to 8 and 0 to 16 bytes of a thread's words leave, zeros behind them."""
    expected = np.zeros((THREADS, 7), np.uint32)
    for i in range(THREADS):
        row = data[4 * i : 4 * i + 4].tobytes()
        parts = row[: i % 5].ljust(4, b"\0"), row[: i % 9].ljust(8, b"\0"), row[: i % 17].ljust(16, b"\0")
        expected[i] = np.frombuffer(b"".join(parts), np.uint32)
    return [(out, expected)]


@cuda.jit(device=True)
def init(bar, count):
    if cuda.threadIdx.x == 0:
        mbarrier_init(bar, count)
        fence_mbarrier_init()
    cuda.syncthreads()


@right(source=SECTION, block=THREADS, args=words(FOUR, THREADS, 7), expect=partly)
def elements_of_4_8_and_16_bytes(data: u64, out: u64):
    """Each thread copies the start of its row three times, and zeros behind it; no group is committed."""
    small = cuda.shared.array(THREADS, uint32, alignment=16)
    middle = cuda.shared.array(TWO, uint32, alignment=16)
    large = cuda.shared.array(FOUR, uint32, alignment=16)
    i = int32(cuda.threadIdx.x)
    row = global_at(data, i, 16)
    cp_async_ca_4(shared_at(shared_address(small), i, 4), row, uint32(i % 5))
    cp_async_ca_8(shared_at(shared_address(middle), i, 8), row, uint32(i % 9))
    cp_async_ca_16(shared_at(shared_address(large), i, 16), row, uint32(i % 17))
    cp_async_wait_all()
    row = global_at(out, i, 28)
    st_global_b32(row, small[i])
    for k in range(2):
        st_global_b32(row + uint64(4 + 4 * k), middle[2 * i + k])
    for k in range(4):
        st_global_b32(row + uint64(12 + 4 * k), large[4 * i + k])


@right(
    source=IDIOM, block=THREADS, args=words(ROUNDS * THREADS, THREADS),
    expect=lambda data, out: [(out, data.reshape(ROUNDS, THREADS)[:, ::-1].sum(0, np.uint32))],
)  # fmt: skip
def arrivals_of_all_threads_in_every_phase(data: u64, out: u64):
    """A barrier for as many arrivals as there are threads, each left to that thread's copies. Others read
    what they brought. The next round's copies come after all have read."""
    tile = cuda.shared.array(THREADS, uint32, alignment=16)
    bar = shared_address(cuda.shared.array(1, uint64))
    i, total = int32(cuda.threadIdx.x), uint32(0)
    init(bar, THREADS)
    for t in range(ROUNDS):
        cp_async_ca_4(shared_at(shared_address(tile), i, 4), global_at(data, t * THREADS + i, 4), 4)
        cp_async_commit_group()  # which the arrival does not ask for
        cp_async_mbarrier_arrive_noinc(bar)
        mbarrier_wait(bar, t & 1)
        total += tile[THREADS - 1 - i]
        cuda.syncthreads()
    st_global_b32(global_at(out, i, 4), uint32(total))


@right(
    source="CUDA C++ Programming Guide, memcpy_async on a barrier: the copies' arrival, then the thread's own",
    block=THREADS, args=words(THREADS, THREADS),
    expect=lambda data, out: [(out, (data + np.arange(THREADS, dtype=np.uint32))[::-1])],
)  # fmt: skip
def an_arrival_of_the_copies_and_one_of_the_thread(data: u64, out: u64):
    """The copies' arrival counts for nothing in the count of the barrier, the thread's own, which also hands on
    its ordinary write, does."""
    tile, plain = cuda.shared.array(TWO, uint32, alignment=16), cuda.shared.array(THREADS, uint32)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, THREADS)
    cp_async_ca_8(shared_at(shared_address(tile), i, 8), global_at(data, i & ~1, 4), 8)
    cp_async_mbarrier_arrive(bar)
    plain[i] = i
    mbarrier_arrive(bar)
    mbarrier_wait(bar, 0)
    j = THREADS - 1 - i
    st_global_b32(global_at(out, i, 4), uint32(tile[2 * j + (j & 1)] + plain[j]))


@right(
    source=ARRIVE, args=words(2 * WARP, WARP),
    expect=lambda data, out: [(out, data[:WARP][::-1] + data[WARP:])],
)  # fmt: skip
def copies_behind_the_arrival(data: u64, out: u64):
    """The arrival is for the copies before it; those behind it the thread waits for itself."""
    tile = cuda.shared.array(THREADS, uint32, alignment=16)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, WARP)
    cp_async_ca_4(shared_at(shared_address(tile), i, 4), global_at(data, i, 4), 4)
    cp_async_mbarrier_arrive_noinc(bar)
    cp_async_ca_4(shared_at(shared_address(tile), WARP + i, 4), global_at(data, WARP + i, 4), 4)
    mbarrier_wait(bar, 0)
    first = tile[WARP - 1 - i]
    cp_async_wait_all()
    st_global_b32(global_at(out, i, 4), uint32(first + tile[WARP + i]))


@right(source=ARRIVE, args=words(WARP, WARP), expect=lambda data, out: [(out, data)])
def an_arrival_with_nothing_to_wait_for(data: u64, out: u64):
    """Half of the lanes have copied nothing: their arrivals come at once."""
    tile = cuda.shared.array(WARP, uint32, alignment=16)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, WARP)
    if i < 16:
        cp_async_ca_8(shared_at(shared_address(tile), i, 8), global_at(data, i, 8), 8)
    cp_async_mbarrier_arrive_noinc(bar)
    mbarrier_wait(bar, 0)
    st_global_b32(global_at(out, i, 4), tile[i])


# --- broken twins ---------------------------------------------------------------------------------
@wrong(faults.InFlightRead, source=SECTION, args=words(WARP, WARP))
def a_group_that_nobody_waits_for(data: u64, out: u64):
    """The copies are committed to a group, and read without a wait."""
    tile = cuda.shared.array(WARP, uint32, alignment=16)
    i = int32(cuda.threadIdx.x)
    cp_async_ca_4(shared_at(shared_address(tile), i, 4), global_at(data, i, 4), 4)
    cp_async_commit_group()
    st_global_b32(global_at(out, i, 4), tile[i])  # <- fault
    cp_async_wait_all()


@wrong(faults.InFlightRead, source=SECTION, args=words(WARP, WARP))
def wait_all_is_for_one_thread(data: u64, out: u64):
    """Each lane waits for its own copies and reads its neighbour's."""
    tile = cuda.shared.array(WARP, uint32, alignment=16)
    i = int32(cuda.threadIdx.x)
    cp_async_ca_4(shared_at(shared_address(tile), i, 4), global_at(data, i, 4), 4)
    cp_async_wait_all()
    st_global_b32(global_at(out, i, 4), tile[i ^ 1])  # <- fault


@wrong(faults.InFlightRead, source=ARRIVE, args=words(2 * WARP, WARP))
def copies_behind_the_arrival_are_none_of_it(data: u64, out: u64):
    """What is copied after the arrival was left is not there when the phase is over."""
    tile = cuda.shared.array(THREADS, uint32, alignment=16)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, WARP)
    cp_async_ca_4(shared_at(shared_address(tile), i, 4), global_at(data, i, 4), 4)
    cp_async_mbarrier_arrive_noinc(bar)
    cp_async_ca_4(shared_at(shared_address(tile), WARP + i, 4), global_at(data, WARP + i, 4), 4)
    mbarrier_wait(bar, 0)
    st_global_b32(global_at(out, i, 4), uint32(tile[i] + tile[WARP + i]))  # <- fault
    cp_async_wait_all()


@wrong(faults.InFlightRead, source=IDIOM, args=words(WARP, WARP))
def an_arrival_that_nobody_waits_for(data: u64, out: u64):
    """The copies arrive on the barrier, and the lanes read without a wait for its phase."""
    tile = cuda.shared.array(WARP, uint32, alignment=16)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, WARP)
    cp_async_ca_4(shared_at(shared_address(tile), i, 4), global_at(data, i, 4), 4)
    cp_async_mbarrier_arrive_noinc(bar)
    st_global_b32(global_at(out, i, 4), tile[WARP - 1 - i])  # <- fault
    mbarrier_wait(bar, 0)


@wrong(faults.CopyOutlivesBlock, source=IDIOM, args=words(WARP))
def an_arrival_that_outlives_the_block(data: u64, _: u64):
    """The last copies arrive on a barrier that nobody looks at."""
    tile = cuda.shared.array(WARP, uint32, alignment=16)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, WARP)
    cp_async_ca_4(shared_at(shared_address(tile), i, 4), global_at(data, i, 4), 4)  # <- fault
    cp_async_mbarrier_arrive_noinc(bar)


@wrong(faults.MissingArrivals, source=ARRIVE, args=words(WARP, WARP), hardware="guarded")
def counted_although_it_counts_itself(data: u64, out: u64):
    """Without .noinc the arrival is one more than the barrier expects: the phase waits for 32 others."""
    tile = cuda.shared.array(WARP, uint32, alignment=16)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, WARP)
    cp_async_ca_4(shared_at(shared_address(tile), i, 4), global_at(data, i, 4), 4)
    cp_async_mbarrier_arrive(bar)
    mbarrier_wait(bar, 0)  # <- fault
    st_global_b32(global_at(out, i, 4), tile[i])


@wrong(faults.TooManyArrivals, faults.InFlightRead, source=ARRIVE, args=words(WARP, WARP))
def fewer_expected_than_left(data: u64, out: u64):
    """32 lanes leave an arrival, and the barrier expects 31: the phase ends before the last copies."""
    tile = cuda.shared.array(WARP, uint32, alignment=16)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, WARP - 1)
    cp_async_ca_4(shared_at(shared_address(tile), i, 4), global_at(data, i, 4), 4)
    cp_async_mbarrier_arrive_noinc(bar)  # <- fault
    mbarrier_wait(bar, 0)
    st_global_b32(global_at(out, i, 4), tile[WARP - 1 - i])  # <- fault


@wrong(faults.DataRace, source=ARRIVE, args=words(WARP, WARP))
def an_arrival_releases_the_copies_alone(data: u64, out: u64):
    """An ordinary write before the arrival is not handed on by it: cp.async.mbarrier.arrive is no release."""
    tile, plain = cuda.shared.array(WARP, uint32, alignment=16), cuda.shared.array(WARP, uint32)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, WARP)
    plain[i] = i
    cp_async_ca_4(shared_at(shared_address(tile), i, 4), global_at(data, i, 4), 4)
    cp_async_mbarrier_arrive_noinc(bar)
    mbarrier_wait(bar, 0)
    st_global_b32(global_at(out, i, 4), uint32(tile[i ^ 1] + plain[i ^ 1]))  # <- fault


@wrong(faults.DataRace, source=ARRIVE, args=words(WARP, WARP))
def the_source_is_written_too_early(data: u64, out: u64):
    """A lane writes over what another's copy may still be reading."""
    tile = cuda.shared.array(WARP, uint32, alignment=16)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, WARP)
    cp_async_ca_4(shared_at(shared_address(tile), i, 4), global_at(data, i, 4), 4)
    cp_async_mbarrier_arrive_noinc(bar)
    cuda.syncwarp()
    st_global_b32(global_at(data, i ^ 1, 4), uint32(0))  # <- fault
    mbarrier_wait(bar, 0)
    st_global_b32(global_at(out, i, 4), tile[i])


@wrong(faults.MissedPhase, source=ARRIVE, block=THREADS, args=words(THREADS, WARP), hardware="guarded")
def a_phase_that_copies_have_completed(data: u64, out: u64):
    """Warp 1 knows that the arrival of phase 0 was left, not that the phase is over. Thread 0 goes on to
    phase 2, and then the parity of phase 0 means that one."""
    tile = cuda.shared.array(THREADS, uint32, alignment=16)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, 1)
    if i == 0:
        cp_async_ca_4(shared_address(tile), data, 4)
        cp_async_mbarrier_arrive_noinc(bar)
    cuda.syncthreads()
    if i == 0:
        mbarrier_wait(bar, 0)
        cp_async_ca_4(shared_at(shared_address(tile), 1, 4), data, 4)
        cp_async_mbarrier_arrive_noinc(bar)
        mbarrier_wait(bar, 1)
    if i >= WARP:
        mbarrier_wait(bar, 0)  # <- fault
        st_global_b32(global_at(out, i - WARP, 4), tile[0])


@wrong(faults.TooManyArrivals, faults.UnobservedPhase, source=ARRIVE, args=words(WARP, WARP))
def two_arrivals_and_one_wait(data: u64, out: u64):
    """Thread 0 leaves two arrivals on a barrier for one: the second may count in this phase or the next."""
    tile = cuda.shared.array(WARP, uint32, alignment=16)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, 1)
    if i == 0:
        for k in range(2):
            cp_async_ca_16(shared_at(shared_address(tile), k, 64), global_at(data, k, 64), 16)
            cp_async_mbarrier_arrive_noinc(bar)  # <- fault
        mbarrier_wait(bar, 0)
        st_global_b32(out, tile[0])
        cp_async_wait_all()


@wrong(faults.TooManyArrivals, source=ARRIVE, args=words(2 * WARP, WARP))
def one_more_while_bytes_are_missing(data: u64, out: u64):
    """The one arrival that is expected has been made, and the phase waits for a bulk copy only."""
    tile = cuda.shared.array(THREADS, uint32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    init(bar, 1)
    if i == 0:
        mbarrier_arrive_expect_tx(bar, 128)
        cp_async_ca_4(shared_at(shared_address(tile), WARP, 4), data, 4)
        cp_async_mbarrier_arrive_noinc(bar)  # <- fault
        cp_async_bulk_load(shared_address(tile), data, 128, bar)
    mbarrier_wait(bar, 0)
    st_global_b32(global_at(out, i, 4), tile[i])
    cp_async_wait_all()


@wrong(faults.BadCount, source="PTX ISA 9.7.13.15.2", args=words(WARP))
def one_more_than_a_barrier_can_count(_: u64, __: u64):
    """Without .noinc the pending count goes up by one, and it is as high as can be."""
    bar = shared_address(cuda.shared.array(1, uint64))
    init(bar, (1 << 20) - 1)
    if int32(cuda.threadIdx.x) == 0:
        cp_async_mbarrier_arrive(bar)  # <- fault


@wrong(faults.Misaligned, source=SECTION, args=words(WARP + 1, WARP))
def eight_bytes_on_a_multiple_of_four(data: u64, out: u64):
    """An address is a multiple of what is copied."""
    tile = cuda.shared.array(THREADS, uint32, alignment=16)
    i = int32(cuda.threadIdx.x)
    cp_async_ca_8(shared_at(shared_address(tile), i, 8), global_at(data, i, 4), 8)  # <- fault
    cp_async_wait_all()
    st_global_b32(global_at(out, i, 4), tile[2 * i])


@wrong(faults.BadSize, source=SECTION, args=words(2 * WARP, WARP))
def more_from_the_source_than_is_copied(data: u64, out: u64):
    """src-size is at most cp-size."""
    tile = cuda.shared.array(WARP, uint32, alignment=16)
    i = int32(cuda.threadIdx.x)
    cp_async_ca_4(shared_at(shared_address(tile), i, 4), global_at(data, i, 8), 8)  # <- fault
    cp_async_wait_all()
    st_global_b32(global_at(out, i, 4), tile[i])

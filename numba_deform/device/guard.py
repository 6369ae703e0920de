"""Bounded waits: what a kernel does in its guarded form (guard.py) so that it never hangs.

Every wait of a guarded kernel polls, and looks at the clock. One that has waited for too long claims the
launch's record for its block and ends its thread. All others find that out, and end theirs: those of the same
block write down what they waited for, others are only counted. ``syncthreads`` and named barriers cannot be
polled, so counters in the record stand in for them.

The record is an array of bytes in global memory, zeroed before the launch:

    HEADER    block that stopped first, plus 1; threads of other blocks that waited; limit, in units
              of 2^TICK cycles; clock of that block's SM at the stop, low and high word
    RECORDS   for each thread of that block RECORD_BYTES: see :func:`guard_write`
    BLOCKS    for each block BARRIERS counters: arrivals (and threads that have left, in the upper half),
              generation, call site of the first arrival plus 1, unused
"""

from numba import cuda, int32, uint32, uint64

from .limits import MAX_THREADS
from .mbarrier import mbarrier_test_wait_parity
from .memory import (
    atom_add_gpu_global_u32,
    atom_cas_gpu_global_b32,
    ld_acquire_cta_shared_b32,
    ld_acquire_gpu_global_b32,
    ld_global_b32,
    st_global_b32,
    st_global_v4,
    st_release_gpu_global_b32,
)
from .ptx import OutsideKernel, cpu, intrinsic, u64
from .sync import clock64, fence_acq_rel_cta, thread_exit

HEADER_BYTES, RECORD_BYTES = 64, 48
BARRIERS, COUNTER_BYTES = 16, 16
BLOCKS_OFFSET = HEADER_BYTES + MAX_THREADS * RECORD_BYTES
TICK = 20  # the limit is in units of 2^TICK cycles, half a millisecond
LEFT = 16  # bit from which on a counter holds the threads that have left

MBARRIER, FLAG, SPIN, BARRIER, DIVERGENT = 1, 2, 3, 4, 5  # what a thread waited for
BY_TOKEN = 2  # in place of the parity of an mbarrier's phase that is named by a token


@intrinsic(u64())
def guard_address():
    """``ld.global.u64`` of the variable ``guard_record``: the address of this launch's record.
    Always a call, since guard.ptx declares the variable. PTX ISA 9.7.9.8."""
    cpu()
    raise OutsideKernel("the guarded form is for GPUs: the CPU engine bounds every wait by itself")


@cuda.jit(device=True, inline="always")
def guard_start():
    """The value of ``since`` before the first poll."""
    return uint64(0)


@cuda.jit(device=True)
def guard_write(record, kind, site, address, detail, since):
    """One thread's record: kind, call site, address, detail (parity, expected value or threads); then the
    parity of the phase that an mbarrier is in, or a flag's value; then the clock at the wait's start and now.

    What the phase lacks is not read: the word is opaque, and only another arrival would return a token with
    the pending count; the bytes that are missing are in no token."""
    value = uint32(0)
    if kind == MBARRIER:
        value = mbarrier_test_wait_parity(address, uint32(0))
    if kind == FLAG:
        value = ld_acquire_cta_shared_b32(address)
    here = record + uint64(HEADER_BYTES) + uint64(RECORD_BYTES) * uint64(cuda.threadIdx.x)
    now = clock64()
    st_global_v4(here, uint32(kind), uint32(site), address, detail)
    low, high = uint32(since & uint64(0xFFFFFFFF)), uint32(since >> uint64(32))
    st_global_v4(here + uint64(16), value, uint32(0), low, high)
    low, high = uint32(now & uint64(0xFFFFFFFF)), uint32(now >> uint64(32))
    st_global_v4(here + uint64(32), low, high, uint32(0), uint32(1))


@cuda.jit(device=True)
def guard_stop(kind, site, address, detail, since):
    """Claim the record for this block unless another has it; write this thread's part; end the thread."""
    record = guard_address()
    mine = uint32(cuda.blockIdx.x) + uint32(1)
    first = atom_cas_gpu_global_b32(record, uint32(0), mine)
    if first == 0:
        now = clock64()
        st_global_b32(record + uint64(12), uint32(now & uint64(0xFFFFFFFF)))
        st_global_b32(record + uint64(16), uint32(now >> uint64(32)))
    if first == 0 or first == mine:
        guard_write(record, kind, site, address, detail, since)
    else:
        atom_add_gpu_global_u32(record + uint64(4), uint32(1))
    thread_exit()


@cuda.jit(device=True)
def guard_look(waited, kind, site, address, detail, since):
    """Stop if this wait, or another one of the launch, has taken too long."""
    record = guard_address()
    stopped = ld_acquire_gpu_global_b32(record) != 0
    if stopped or waited >> uint64(TICK) >= uint64(ld_global_b32(record + uint64(8))):
        guard_stop(kind, site, address, detail, since)


@cuda.jit(device=True, forceinline=True)
def guard_poll(since, kind, site, address, detail):
    """After each poll that failed; returns ``since`` for the next. May not return."""
    now = clock64()
    if since == 0:
        return uint64(now | uint64(1))
    waited = uint64(now - since)
    if waited >> uint64(TICK) != 0:
        guard_look(waited, int32(kind), int32(site), uint32(address), uint32(detail), since)
    return since


@cuda.jit(device=True)
def guard_barrier(number, threads, waits, site):
    """``bar.sync`` (``waits``) or ``bar.arrive`` of barrier ``number`` for ``threads`` threads; 0 means
    ``syncthreads``: all of the block that have not left, and all at one place."""
    counter = guard_address() + uint64(BLOCKS_OFFSET)
    counter = counter + uint64(COUNTER_BYTES) * (uint64(cuda.blockIdx.x) * uint64(BARRIERS) + uint64(number))
    fence_acq_rel_cta()
    generation = ld_acquire_gpu_global_b32(counter + uint64(4))
    here = uint32(site) + uint32(1)
    first = atom_cas_gpu_global_b32(counter + uint64(8), uint32(0), here)
    wanted = uint32(threads)
    if threads == 0:
        if first != 0 and first != here:
            guard_stop(int32(DIVERGENT), int32(site), uint32(number), uint32(first - 1), clock64())
        wanted = uint32(cuda.blockDim.x)
    word = atom_add_gpu_global_u32(counter, uint32(1)) + uint32(1)
    arrived = uint32(word & uint32(0xFFFF))
    left = uint32(word >> uint32(LEFT)) if threads == 0 else uint32(0)
    if arrived + left == wanted:
        guard_complete(counter, arrived, generation)
    elif waits:
        since = guard_start()
        while ld_acquire_gpu_global_b32(counter + uint64(4)) == generation:
            since = guard_poll(since, BARRIER, site, number, threads)
    fence_acq_rel_cta()


@cuda.jit(device=True)
def guard_complete(counter, arrived, generation):
    """Open the barrier for its next use, then let go who waits."""
    fence_acq_rel_cta()  # hands on what all who have arrived did before
    site = atom_cas_gpu_global_b32(counter + uint64(8), uint32(0), uint32(0))
    atom_cas_gpu_global_b32(counter + uint64(8), site, uint32(0))
    atom_add_gpu_global_u32(counter, uint32(0) - arrived)
    st_release_gpu_global_b32(counter + uint64(4), uint32(generation + uint32(1)))


@cuda.jit(device=True)
def guard_leave():
    """A thread's end: nobody waits for it in ``syncthreads``."""
    counter = guard_address() + uint64(BLOCKS_OFFSET)
    counter = counter + uint64(COUNTER_BYTES * BARRIERS) * uint64(cuda.blockIdx.x)
    fence_acq_rel_cta()
    word = atom_add_gpu_global_u32(counter, uint32(1 << LEFT)) + uint32(1 << LEFT)
    arrived, left = uint32(word & uint32(0xFFFF)), uint32(word >> uint32(LEFT))
    if arrived > 0 and arrived + left == uint32(cuda.blockDim.x):
        guard_complete(counter, arrived, ld_acquire_gpu_global_b32(counter + uint64(4)))

"""Atomics mixed with plain accesses, and what people take them to order."""

import numpy as np
from base import wrong
from numba import cuda, int32

from numba_deform.engines import faults

BINS = 32


def ints(*counts):
    """Arguments: arrays of that many numbers, the first 0, 1, 2, .., the others zeros."""
    return lambda: [np.arange(counts[0], dtype=np.int32), *(np.zeros(n, np.int32) for n in counts[1:])]


@wrong(faults.DataRace, source="gunrock issue 829", grid=2, args=ints(32, 32))
def load_beside_atomic_add(data, degree):
    """A plain load of a counter that other blocks count down atomically: one atomic side is not enough."""
    i = int32(cuda.threadIdx.x)
    if degree[i] >= 0:  # <- fault
        cuda.atomic.add(degree, (i + 1) % 32, -1)  # <- fault


@wrong(faults.DataRace, source="IntelPython/numba-dpex issue 832", grid=2, args=ints(32, 4, 1))
def seen_before_by_plain_load(labels, seen, distinct):
    """A plain look whether the label has been counted already, beside the atomic that counts it."""
    label = labels[int32(cuda.threadIdx.x)] % 4
    if seen[label] > 0:  # <- fault
        return
    if cuda.atomic.add(seen, label, 1) == 0:  # <- fault
        cuda.atomic.add(distinct, 0, 1)


@wrong(faults.DataRace, source="owensgroup/SlabHash issue 23", grid=2, args=ints(32, 8))
def empty_slot_by_plain_load(keys, table):
    """A weak load finds a slot empty, and a compare-and-swap by another block fills it at that moment."""
    key = keys[int32(cuda.threadIdx.x)] + 1
    slot = key % 8
    if table[slot] == 0:  # <- fault
        cuda.atomic.cas(table, slot, 0, key)  # <- fault


@wrong(faults.DataRace, source="CUDA guide, atomic functions; gunrock issue 829", block=64, args=ints(64, 1))
def counter_reset_by_plain_store(data, out):
    """One thread resets the counter by a plain store while the other warp still counts."""
    counter = cuda.shared.array(1, int32)
    i = int32(cuda.threadIdx.x)
    if i == 0:
        counter[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(counter, 0, data[i])  # <- fault
    if i == 0:
        out[0] = counter[0]  # <- fault
        counter[0] = 0  # <- fault


@wrong(faults.DataRace, source="NVIDIA forums: an atomic is no barrier", block=64, args=ints(64, 64))
def total_without_barrier(data, out):
    """All add to the total atomically, and each reads it at once: it holds as many terms as happen to be in."""
    total = cuda.shared.array(1, int32)
    i = int32(cuda.threadIdx.x)
    if i == 0:
        total[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(total, 0, data[i])  # <- fault
    out[i] = total[0]  # <- fault


@wrong(faults.DataRace, source="CUDA guide, atomic functions: max by hand", grid=2, args=ints(64, 1))
def maximum_by_hand(data, best):
    """The maximum is compared and stored in two steps, and a smaller one may replace a larger."""
    x = data[cuda.grid(1)]
    if x > best[0]:  # <- fault
        best[0] = x  # <- fault


@wrong(faults.UninitialisedRead, source="picongpu pull request 3239", block=32, args=ints(32, 32))
def atomic_on_garbage(data, out):
    """The bins are counted in atomically and were never cleared: they hold what the last block left."""
    bins = cuda.shared.array(BINS, int32)
    i = int32(cuda.threadIdx.x)
    cuda.atomic.add(bins, data[i] % BINS, 1)  # <- fault
    cuda.syncthreads()
    out[i] = bins[i]


@wrong(
    faults.DataRace, source="CUDA guide, atomic functions: a counter cleared by its own kernel", grid=2,
    args=ints(1, 1),
)  # fmt: skip
def counter_cleared_by_block_0(queue, taken):
    """Block 0 clears the ticket counter at its start, and other blocks have drawn from it by then."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            queue[0] = 0  # <- fault
            cuda.threadfence()
        ticket = cuda.atomic.add(queue, 0, 1)  # <- fault
        cuda.atomic.max(taken, 0, ticket)


@wrong(
    faults.DataRace, source="CUDA guide, atomic functions: each speaks for its own address", block=64,
    args=ints(64, 64),
)  # fmt: skip
def slot_from_an_atomic_counter(data, out):
    """A slot is drawn atomically and filled plainly; the reader takes the counter for a sign that all slots
    below it have been filled."""
    slots = cuda.shared.array(64, int32)
    used = cuda.shared.array(1, int32)
    i = int32(cuda.threadIdx.x)
    if i == 0:
        used[0] = 0
    cuda.syncthreads()
    if i < 32:
        slots[cuda.atomic.add(used, 0, 1)] = data[i]
    elif i == 32:
        count = cuda.atomic.add(used, 0, 0)
        while count < 32:
            count = cuda.atomic.add(used, 0, 0)
        out[0] = slots[31]  # <- fault

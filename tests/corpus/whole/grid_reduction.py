"""A sum over the whole grid in one launch: each block leaves a part, and the last one adds the parts."""

import numpy as np
from base import right, wrong
from numba import cuda, int32, uint32

from numba_deform.compiler import u64
from numba_deform.device.memory import atom_add_gpu_global_u32, global_at, ld_global_b32, st_global_b32
from numba_deform.engines import faults

BLOCKS, THREADS = 5, 64
COUNT = 1000  # no multiple of anything here
STRIDE = BLOCKS * THREADS


def arguments():
    """Data, a part for each block, the ticket counter, and the sum."""
    data = np.random.default_rng(1).integers(0, 1 << 20, COUNT).astype(np.uint32)
    return [data, np.zeros(BLOCKS, np.uint32), np.zeros(1, np.uint32), np.zeros(1, np.uint32)]


def expect(data, parts, tickets, total):
    return [(total, [data.sum(dtype=np.uint32)]), (tickets, [0])]


@cuda.jit(device=True, inline="always")
def block_sum(scratch, value):
    """The sum of all threads' values, in thread 0."""
    i = int32(cuda.threadIdx.x)
    scratch[i] = value
    cuda.syncthreads()
    half = int32(THREADS // 2)
    while half > 0:
        if i < half:
            scratch[i] = uint32(scratch[i] + scratch[i + half])
        cuda.syncthreads()
        half = int32(half // 2)
    return scratch[0]


@right(
    source="CUDA guide, memory fence functions: threadFenceReduction", grid=BLOCKS, block=THREADS,
    args=arguments, expect=expect,
)  # fmt: skip
def last_block_adds_the_parts(data: u64, parts: u64, tickets: u64, total: u64):
    """Each block publishes its part, then takes a ticket: fence, then atomic. Who draws the last one has seen
    the others' tickets, fences, and may read their parts. It sets the counter back for the next launch."""
    scratch = cuda.shared.array(THREADS, uint32)
    last = cuda.shared.array(1, uint32)
    i, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    mine = uint32(0)
    k = int32(block * THREADS + i)
    while k < COUNT:
        mine = uint32(mine + ld_global_b32(global_at(data, k, 4)))
        k = int32(k + STRIDE)
    part = block_sum(scratch, mine)
    if i == 0:
        st_global_b32(global_at(parts, block, 4), part)
        cuda.threadfence()
        last[0] = uint32(atom_add_gpu_global_u32(tickets, uint32(1)) == uint32(BLOCKS - 1))
        cuda.threadfence()
    cuda.syncthreads()
    if last[0] == 1:
        mine = uint32(0)
        if i < BLOCKS:
            mine = ld_global_b32(global_at(parts, i, 4))
        part = block_sum(scratch, mine)
        if i == 0:
            st_global_b32(total, part)
            st_global_b32(tickets, uint32(0))


@wrong(
    faults.DataRace, source="CUDA guide, memory fence functions: why the fence is there", grid=BLOCKS,
    block=THREADS, args=arguments, expect=expect,
)  # fmt: skip
def ticket_before_the_part(data: u64, parts: u64, tickets: u64, total: u64):
    """The twin without the fence between a block's part and its ticket: the last block may read parts that are
    not there yet."""
    scratch = cuda.shared.array(THREADS, uint32)
    last = cuda.shared.array(1, uint32)
    i, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    mine = uint32(0)
    k = int32(block * THREADS + i)
    while k < COUNT:
        mine = uint32(mine + ld_global_b32(global_at(data, k, 4)))
        k = int32(k + STRIDE)
    part = block_sum(scratch, mine)
    if i == 0:
        st_global_b32(global_at(parts, block, 4), part)
        last[0] = uint32(atom_add_gpu_global_u32(tickets, uint32(1)) == uint32(BLOCKS - 1))
        cuda.threadfence()
    cuda.syncthreads()
    if last[0] == 1:
        mine = uint32(0)
        if i < BLOCKS:
            mine = ld_global_b32(global_at(parts, i, 4))  # <- fault
        part = block_sum(scratch, mine)
        if i == 0:
            st_global_b32(total, part)
            st_global_b32(tickets, uint32(0))

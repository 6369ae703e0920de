"""Global memory between blocks: flags, fences, scopes, and blocks that wait for each other.

All of these have few small blocks, which are resident together.
"""

import numpy as np
from base import right
from numba import cuda, int32, uint8, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.memory import (
    atom_add_acq_rel_gpu_global_u32,
    atom_add_cta_global_u32,
    atom_add_gpu_global_u32,
    global_address,
    ld_acquire_cta_global_b32,
    ld_acquire_gpu_global_b32,
    ld_global_nc_b32,
    ld_global_nc_v4,
    ld_relaxed_gpu_global_b32,
    red_add_gpu_global_u32,
    red_add_release_gpu_global_u32,
    st_global_b32,
    st_relaxed_gpu_global_b32,
    st_release_cta_global_b32,
    st_release_gpu_global_b32,
)
from numba_deform.device.sync import fence_acq_rel_gpu

WARP, BLOCKS = 32, 3
ALL = 0xFFFFFFFF


def ints(count, *shapes):
    return lambda: [np.arange(count, dtype=np.int32), *(np.zeros(s, np.int32) for s in shapes)]


def words(count, *shapes):
    return lambda: [np.arange(count, dtype=np.int32), *(np.zeros(s, np.uint32) for s in shapes)]


@cuda.jit(device=True)
def sum_of_warp(x):
    for step in range(5):
        x += cuda.shfl_xor_sync(ALL, x, 1 << step)
    return x


@right(
    source="CUDA C++ Programming Guide, Memory Fence Functions: the block that is done last adds up",
    grid=BLOCKS, args=words(96, BLOCKS, 1, 1),
    expect=lambda data, partial, count, out: [(out, data.sum()), (count, 0)],
)  # fmt: skip
def the_last_block_adds_up(data, partial, count, out):
    """Which block is the last one the counter says, by an atomic that wraps to zero with the last increment, so
    the next launch finds it as this one did. Fences stand on both sides of the atomic."""
    lane, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    total = sum_of_warp(data[32 * block + lane])
    if lane == 0:
        partial[block] = total
        cuda.threadfence()
        if cuda.atomic.inc(count, 0, uint32(BLOCKS - 1)) == BLOCKS - 1:
            cuda.threadfence()
            result = uint32(0)
            for b in range(BLOCKS):
                result += partial[b]
            out[0] = result


@right(
    source="PyTorch aten/src/ATen/native/cuda/Reduce.cuh, global_reduce: every writer fences, then "
           "__syncthreads",
    grid=BLOCKS, block=64, args=words(BLOCKS * 64, (BLOCKS, 64), 1, 64),
    expect=lambda data, partial, count, out: [(out, data.reshape(BLOCKS, 64).sum(0)), (count, 0)],
)  # fmt: skip
def the_last_block_reads_what_all_threads_wrote(data, partial, count, out):
    """All threads of a block write and fence, and thread 0 counts the block after a syncthreads, with no fence
    behind it. threadfence is fence.sc, whose order is one for the whole GPU, and that of the last block comes
    after all."""
    last = cuda.shared.array(1, int32)
    thread, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    partial[block, thread] = data[64 * block + thread]
    cuda.threadfence()
    cuda.syncthreads()
    if thread == 0:
        last[0] = cuda.atomic.inc(count, 0, uint32(BLOCKS - 1)) == BLOCKS - 1
        cuda.threadfence()
    cuda.syncthreads()
    if last[0]:
        total = int32(0)
        for b in range(BLOCKS):
            total += partial[b, thread]
        out[thread] = total


@right(
    source="cuda-samples, threadFenceReduction: retirementCount is set to 0 by the last block",
    grid=BLOCKS, block=64, args=ints(BLOCKS * 64, (BLOCKS, 64), 1, 64),
    expect=lambda data, partial, count, out: [(out, data.reshape(BLOCKS, 64).sum(0)), (count, 0)],
)  # fmt: skip
def the_last_block_resets_the_counter(data, partial, count, out):
    """All threads of a block write; thread 0 fences for them and counts the block after a syncthreads. All
    threads of the last one read what all blocks wrote. The counter is reset by an ordinary store: nobody else
    touches it any more."""
    last = cuda.shared.array(1, int32)
    thread, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    partial[block, thread] = data[64 * block + thread]
    cuda.syncthreads()
    if thread == 0:
        cuda.threadfence()
        last[0] = cuda.atomic.add(count, 0, 1) == BLOCKS - 1
        cuda.threadfence()
    cuda.syncthreads()
    if last[0]:
        total = int32(0)
        for b in range(BLOCKS):
            total += partial[b, thread]
        out[thread] = total
        if thread == 0:
            count[0] = 0


@right(
    source="CUTLASS include/cutlass/semaphore.h: split-K slices are added in the order of their numbers",
    grid=BLOCKS, block=64,
    args=lambda: [
        np.arange(BLOCKS * 64, dtype=np.float32) / 8, np.zeros(1, np.uint32), np.zeros(64, np.float32)
    ],
    expect=lambda data, semaphore, out: [(out, data.reshape(BLOCKS, 64).sum(0)), (semaphore, 0)],
)  # fmt: skip
def slices_are_added_in_order(data, semaphore, out):
    """A block waits until the semaphore holds its number, adds to the output by ordinary loads and stores, and
    lets the next one go; the last one sets the semaphore back. One thread waits and releases for its block."""
    thread, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    address = global_address(semaphore)
    if thread == 0:
        while ld_acquire_gpu_global_b32(address) != uint32(block):
            pass
    cuda.syncthreads()
    if block == 0:
        out[thread] = data[thread]
    else:
        out[thread] += data[64 * block + thread]
    cuda.syncthreads()
    if thread == 0:
        st_release_gpu_global_b32(address, uint32((block + 1) % BLOCKS))


@right(
    source="CUB, cub/agent/single_pass_scan_operators.cuh: decoupled look-back, status and value in one word",
    grid=BLOCKS, args=words(96, BLOCKS, 96),
    expect=lambda data, state, out: [(out, np.cumsum(data)), (state >> 30, 2)],
)  # fmt: skip
def look_back_in_one_word(data, state, out):
    """A scan of all blocks in one pass. A word says in its upper bits whether its lower ones hold a block's own
    sum or the sum of all up to it. The value comes with the flag, so no other memory has to be ordered."""
    lane, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    total = data[32 * block + lane]
    for step in range(5):
        below = cuda.shfl_up_sync(ALL, total, 1 << step)
        if lane >= 1 << step:
            total += below
    before, mine = int32(0), global_address(state) + uint64(4 * block)
    if lane == 31:
        st_release_gpu_global_b32(mine, uint32(total | 1 << 30))
        left = block - 1
        while left >= 0:
            word = ld_acquire_gpu_global_b32(global_address(state) + uint64(4 * left))
            if word != 0:
                before += int32(word & uint32((1 << 30) - 1))
                left = -1 if word >> uint32(30) == 2 else left - 1
        st_release_gpu_global_b32(mine, uint32(before + total | 2 << 30))
    before = cuda.shfl_sync(ALL, before, 31)
    out[32 * block + lane] = before + total


@right(
    source="CUB, single_pass_scan_operators.cuh, for values that do not fit beside their flag: fences around "
           "the flag",
    grid=BLOCKS, args=ints(96, BLOCKS, BLOCKS, BLOCKS),
    expect=lambda data, sums, flags, out: [(out, data.reshape(BLOCKS, WARP).sum(1).cumsum())],
)  # fmt: skip
def look_back_with_flags_apart(data, sums, flags, out):
    """Each block publishes a sum by an ordinary store, a fence and a relaxed atomic on a flag; the next one
    polls the flag by an atomic, fences, and reads the sum by an ordinary load."""
    lane, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    total = sum_of_warp(data[32 * block + lane])
    if lane == 0:
        if block > 0:
            while cuda.atomic.add(flags, block - 1, 0) == 0:
                pass
            cuda.threadfence()
            total += sums[block - 1]
        sums[block] = total
        cuda.threadfence()
        cuda.atomic.exch(flags, block, 1)
        out[block] = total


@right(
    source="PTX ISA section 8.8, release patterns: a release operation on M followed by a strong write on M",
    grid=2, args=ints(1, 1, 1), expect=lambda data, flag, out: [(out, 1), (flag, 2)],
)  # fmt: skip
def a_later_store_of_the_releasing_thread(data, flag, out):
    """The reader waits for the second value, which a relaxed store wrote: the release that the same thread made
    there before hands on its data all the same."""
    if cuda.threadIdx.x == 0:
        at = global_address(flag)
        if cuda.blockIdx.x == 0:
            data[0] = 1
            st_release_gpu_global_b32(at, uint32(1))
            st_relaxed_gpu_global_b32(at, uint32(2))
        else:
            while ld_acquire_gpu_global_b32(at) != 2:
                pass
            out[0] = data[0]


@right(
    source="Sanders and Kandrot, CUDA by Example: a lock of blocks, with the fences that its first edition "
           "left out",
    grid=4, args=ints(1, 1, 2), expect=lambda data, lock, out: [(lock, 0), (out, [4, 6])],
)  # fmt: skip
def a_lock_between_blocks(data, lock, out):
    """One thread of each block takes the lock by a relaxed compare-and-swap, changes two ordinary numbers and
    frees it. The fence after the lock was taken and the one before it is freed have the scope of the GPU."""
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        out[0] += 1
        out[1] += cuda.blockIdx.x
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


@right(
    source="Mellor-Crummey and Scott, Algorithms for Scalable Synchronization (1991): the ticket lock",
    grid=BLOCKS, block=64, args=words(1, 2, 6), expect=lambda data, lock, out: [(lock, 6), (out, np.arange(6))],
)  # fmt: skip
def tickets(data, lock, out):
    """Two threads of each block take a number and wait until it is served. The place that each writes to is an
    ordinary load of what the one before left."""
    thread = int32(cuda.threadIdx.x)
    if thread % 32 == 7:
        ticket = atom_add_gpu_global_u32(global_address(lock), 1)
        serving = global_address(lock) + uint64(4)
        while ld_acquire_gpu_global_b32(serving) != ticket:
            pass
        out[ticket] = 0 if ticket == 0 else out[ticket - 1] + 1
        st_release_gpu_global_b32(serving, uint32(ticket + 1))


@right(
    source="PTX ISA memory consistency model: message passing by release and acquire at gpu scope",
    grid=2, block=64, args=words(64, 64, 1, 64),
    expect=lambda data, message, flag, out: [(out, (data * 3)[::-1])],
)  # fmt: skip
def a_block_writes_to_another(data, message, flag, out):
    """The threads of block 0 write, one of them releases after a syncthreads; one of block 1 acquires, and the
    others read after a syncthreads. The threads that write and read have no flag of their own."""
    thread = int32(cuda.threadIdx.x)
    if cuda.blockIdx.x == 0:
        message[thread] = data[thread] * 3
        cuda.syncthreads()
        if thread == 63:
            st_release_gpu_global_b32(global_address(flag), 1)
    else:
        if thread == 0:
            while ld_acquire_gpu_global_b32(global_address(flag)) == 0:
                pass
        cuda.syncthreads()
        out[thread] = message[63 - thread]


@right(
    source="PTX ISA memory consistency model, observation order: read-modify-writes go on with a release",
    grid=BLOCKS, args=words(1, 1, 1, 1), expect=lambda data, message, flag, out: [(out, 17), (flag, 2)],
)  # fmt: skip
def a_release_goes_through_an_atomic(data, message, flag, out):
    """Block 0 releases the flag as 1. Block 1 makes it 2 by a relaxed atomic and knows nothing of the message.
    Block 2 acquires the 2 and sees what block 0 wrote."""
    address = global_address(flag)
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            message[0] = 17
            st_release_gpu_global_b32(address, 1)
        elif cuda.blockIdx.x == 1:
            while cuda.atomic.cas(flag, 0, uint32(1), uint32(2)) != 1:
                pass
        else:
            while ld_acquire_gpu_global_b32(address) != 2:
                pass
            out[0] = message[0]


@right(
    source="CUDA C++ Programming Guide, Cooperative Groups: grid.sync() as a counter",
    grid=BLOCKS, args=ints(96, 96, 1, 96),
    expect=lambda data, middle, count, out: [(out, np.roll(data, -40) * 2 + 1), (count, 2 * BLOCKS)],
)  # fmt: skip
def a_barrier_of_the_grid(data, middle, count, out):
    """All blocks wait for each other twice. The counter is never reset: each round waits for a higher
    number."""
    thread = int32(32 * cuda.blockIdx.x + cuda.threadIdx.x)
    middle[thread] = data[thread] * 2
    for r in range(2):
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            cuda.threadfence()
            cuda.atomic.add(count, 0, 1)
            while cuda.atomic.add(count, 0, 0) < BLOCKS * (r + 1):
                pass
            cuda.threadfence()
        cuda.syncthreads()
        if r == 0:
            out[thread] = middle[(thread + 40) % 96]
        else:
            middle[(thread + 50) % 96] = 0
    out[thread] += 1


@right(
    source="triton-lang/triton: a loop over a scalar atomic, which all threads of a program see",
    grid=2, block=64, args=ints(128, 128, 1, 128),
    expect=lambda data, middle, count, out: [(out, np.roll(data, 64) * 2), (count, 2)],
)  # fmt: skip
def all_threads_look_together(data, middle, count, out):
    """A barrier of the grid whose every look is handed to all threads of the block, with a barrier before it
    and one behind it."""
    seen = cuda.shared.array(1, int32)
    thread = int32(64 * cuda.blockIdx.x + cuda.threadIdx.x)
    middle[thread] = data[thread] * 2
    cuda.threadfence()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(count, 0, 1)
    while True:
        if cuda.threadIdx.x == 0:
            seen[0] = cuda.atomic.add(count, 0, 0)
        cuda.syncthreads()
        come = seen[0]
        cuda.syncthreads()
        if come == 2:
            break
    cuda.threadfence()
    out[thread] = middle[thread ^ 64]


@right(
    source="CUDA toolkit, cooperative_groups/details/sync.h: the top bit of the barrier's word flips",
    grid=BLOCKS, args=words(96, 1, 96, 96),
    expect=lambda data, bar, middle, out: [(out, data[::-1] + 2), (bar & 0x7FFFFFFF, 0)],
)  # fmt: skip
def a_barrier_that_flips_a_bit(data, bar, middle, out):
    """Block 0 adds so much that the arrivals of all blocks together flip the top bit and leave the lower ones
    as they were. The barrier is used twice with no reset."""
    thread = int32(32 * cuda.blockIdx.x + cuda.threadIdx.x)
    address = global_address(bar)
    for r in range(2):
        if r == 0:
            middle[thread] = data[thread]
        else:
            out[thread] = middle[95 - thread] + 1
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            add = uint32(0x80000000 - (BLOCKS - 1)) if cuda.blockIdx.x == 0 else uint32(1)
            fence_acq_rel_gpu()
            old = atom_add_gpu_global_u32(address, add)
            while (ld_acquire_gpu_global_b32(address) ^ old) & uint32(0x80000000) == 0:
                pass
            fence_acq_rel_gpu()
        cuda.syncthreads()
    out[thread] += 1


@right(
    source="Stream-K in CUTLASS, include/cutlass/gemm/kernel/gemm_universal_streamk.h: peers leave partial "
           "sums",
    grid=BLOCKS, block=64, args=words(BLOCKS * 64, (BLOCKS, 64), 1, 64),
    expect=lambda data, workspace, count, out: [(out, data.reshape(BLOCKS, 64).sum(0))],
)  # fmt: skip
def peers_leave_partial_sums(data, workspace, count, out):
    """The first block finishes the tile: it waits until the others have counted themselves, by a reduction that
    returns nothing behind a fence, and adds what they left. It keeps its own part to itself."""
    thread, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    mine = data[64 * block + thread]
    if block > 0:
        workspace[block, thread] = mine
        cuda.syncthreads()
        if thread == 0:
            fence_acq_rel_gpu()
            red_add_gpu_global_u32(global_address(count), 1)
        return
    if thread == 0:
        while ld_acquire_gpu_global_b32(global_address(count)) != BLOCKS - 1:
            pass
    cuda.syncthreads()
    for b in range(1, BLOCKS):
        mine += workspace[b, thread]
    out[thread] = mine


@right(
    source="deepseek-ai/DeepEP csrc/kernels/intranode.cu: channels with a head and a tail",
    grid=2, args=words(8 * WARP, 2 * WARP, 2, 8 * WARP),
    expect=lambda data, ring, ends, out: [(out, data * 5), (ends, 8)],
)  # fmt: skip
def a_channel_between_blocks(data, ring, ends, out):
    """One block writes messages to a ring of two in global memory, the other reads them. The tail says how many
    have been written, the head how many have been read; each is written by one side only."""
    lane = int32(cuda.threadIdx.x)
    tail, head = global_address(ends), global_address(ends) + uint64(4)
    for t in range(8):
        place = 32 * (t % 2) + lane
        if cuda.blockIdx.x == 0:
            if lane == 0:
                while t - int32(ld_acquire_gpu_global_b32(head)) >= 2:
                    pass
            cuda.syncwarp()
            ring[place] = data[32 * t + lane] * 5
            cuda.syncwarp()
            if lane == 0:
                st_release_gpu_global_b32(tail, uint32(t + 1))
        else:
            if lane == 0:
                while int32(ld_acquire_gpu_global_b32(tail)) <= t:
                    pass
            cuda.syncwarp()
            out[32 * t + lane] = ring[place]
            cuda.syncwarp()
            if lane == 0:
                st_release_gpu_global_b32(head, uint32(t + 1))


@right(
    source="Boehm, Can Seqlocks Get Along with Programming Language Memory Models?; used for GPU work lists",
    grid=2, args=ints(1, 3, 1), expect=lambda data, shared, out: [(out, 1), (shared, [6, 3, 6])],
)  # fmt: skip
def a_sequence_lock(data, shared, out):
    """A writer counts up before and after each change of two numbers; a reader repeats until it saw the same
    even count on both sides. Which version it sees is open, but never half of one. All accesses are atomics."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            for version in range(1, 4):
                cuda.atomic.add(shared, 0, 1)
                cuda.threadfence()
                cuda.atomic.exch(shared, 1, version)
                cuda.atomic.exch(shared, 2, 2 * version)
                cuda.threadfence()
                cuda.atomic.add(shared, 0, 1)
        else:
            before, after, a, b = 1, 0, 0, 0
            while before != after or before % 2 == 1:
                before = cuda.atomic.add(shared, 0, 0)
                cuda.threadfence()
                a = cuda.atomic.add(shared, 1, 0)
                b = cuda.atomic.add(shared, 2, 0)
                cuda.threadfence()
                after = cuda.atomic.add(shared, 0, 0)
            out[0] = 1 if b == 2 * a else -1


@right(
    source="CUDA C++ Programming Guide: __threadfence is sequentially consistent; Dekker's two flags",
    grid=2, args=ints(1, 2, 2), expect=lambda data, flags, out: [(out.max(), 1), (flags, 1)],
)  # fmt: skip
def one_of_two_sees_the_other(data, flags, out):
    """Each block raises its flag and looks at the other's. With a full fence in between at least one sees the
    other; whether it is one or both is open."""
    block = int32(cuda.blockIdx.x)
    if cuda.threadIdx.x == 0:
        cuda.atomic.exch(flags, block, 1)
        cuda.threadfence()
        out[block] = cuda.atomic.add(flags, 1 - block, 0)


@right(
    source="PTX ISA, ld.global.nc: read-only for the kernel's duration, which holds for bytes, not for whole "
           "arrays",
    grid=2, args=lambda: [np.arange(128, dtype=np.int32)],
    expect=lambda data: [(data[:64], np.arange(64)), (data[64:], np.arange(64)[::-1] * 2)],
)  # fmt: skip
def the_upper_half_is_read_only(data):
    """Both halves belong to one array: the lower one is read by the read-only path, the upper one is
    written."""
    thread = int32(32 * cuda.blockIdx.x + cuda.threadIdx.x)
    x = ld_global_nc_b32(global_address(data) + uint64(4 * (63 - thread)))
    st_global_b32(global_address(data) + uint64(4 * (64 + thread)), uint32(2 * x))


@right(
    source="CUDA C++ Programming Guide, read-only data cache: __ldg of what an earlier kernel or the host "
           "has written",
    grid=2, args=lambda: [np.arange(256, dtype=np.int32), np.zeros(64, np.int32)],
    expect=lambda data, out: [(out, data.reshape(64, 4).sum(1))],
)  # fmt: skip
def vectors_by_the_read_only_path(data, out):
    """Sixteen bytes at a time, by all blocks, while the result goes to another array."""
    thread = int32(32 * cuda.blockIdx.x + cuda.threadIdx.x)
    x, y, z, w = ld_global_nc_v4(global_address(data) + uint64(16 * thread))
    out[thread] = int32(x) + int32(y) + int32(z) + int32(w)


@right(
    source="PTX ISA memory consistency model: neighbouring bytes are different locations",
    grid=2, args=lambda: [np.zeros(128, np.uint8), np.zeros(128, np.int32)],
    expect=lambda data, out: [(data, np.arange(128)), (out, np.arange(128))],
)  # fmt: skip
def blocks_write_every_other_byte(data, out):
    """The blocks write the odd and the even bytes of the same words, and each reads its own again."""
    block, lane = int32(cuda.blockIdx.x), int32(cuda.threadIdx.x)
    for k in range(2):
        i = 64 * k + 2 * lane + block
        data[i] = uint8(i)
        out[i] = data[i]


@right(
    source="libcudacxx, cuda::atomic_ref::fetch_add: acquire and release in the atomic itself",
    grid=BLOCKS, block=64, args=words(BLOCKS * 64, (BLOCKS, 64), 1, 64),
    expect=lambda data, partial, count, out: [(out, data.reshape(BLOCKS, 64).sum(0)), (count, 0)],
)  # fmt: skip
def the_counter_has_the_fences(data, partial, count, out):
    """There is no fence: the atomic that counts the blocks is acq_rel at gpu scope. The last block writes the
    counter back by an ordinary store."""
    last = cuda.shared.array(1, int32)
    thread, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    partial[block, thread] = data[64 * block + thread]
    cuda.syncthreads()
    if thread == 0:
        last[0] = atom_add_acq_rel_gpu_global_u32(global_address(count), 1) == BLOCKS - 1
    cuda.syncthreads()
    if last[0]:
        total = uint32(0)
        for b in range(BLOCKS):
            total += partial[b, thread]
        out[thread] = total
        if thread == 63:
            count[0] = 0


@right(
    source="CUTLASS include/cutlass/barrier.h, GenericBarrier: red.release to arrive, ld.acquire to wait",
    grid=BLOCKS, args=words(96, 96, 1, 64),
    expect=lambda data, middle, count, out: [(out, data[::-1][32:] + 3), (count, BLOCKS)],
)  # fmt: skip
def arrive_by_a_reduction_and_wait_by_loads(data, middle, count, out):
    """Every block arrives, by a reduction with release. Only the first two wait, by loads with acquire, and
    read what the block after them wrote; the third one ends."""
    lane, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    thread = 32 * block + lane
    middle[thread] = data[95 - thread] + 3
    cuda.syncwarp()
    if lane == 0:
        red_add_release_gpu_global_u32(global_address(count), 1)
        if block < 2:
            while ld_acquire_gpu_global_b32(global_address(count)) < BLOCKS:
                pass
    cuda.syncwarp()
    if block < 2:
        out[thread] = middle[thread + 32]


@right(
    source="PTX ISA memory consistency model, scopes: cta is enough among the threads of one block, wherever "
           "the data lie",
    grid=2, block=64, args=words(64, 128, 2, 64),
    expect=lambda data, message, flags, out: [(out, data[::-1] * 7), (flags, [1, 33])],
)  # fmt: skip
def a_block_talks_to_itself_by_global_memory(data, message, flags, out):
    """The flags and the messages lie in global memory, but each belongs to one block: release, acquire and
    atomics of cta scope are enough. No two blocks touch the same word."""
    thread, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    flag = global_address(flags) + uint64(4 * block)
    lane = thread % 32
    if block == 1:
        atom_add_cta_global_u32(flag, uint32(lane % 2))
    elif thread >= 32:
        while ld_acquire_cta_global_b32(flag) == 0:
            pass
    if block == 0 and thread < 32:
        message[lane] = data[lane] * 7
        message[32 + lane] = data[32 + lane] * 7
        cuda.syncwarp()
        if lane == 0:
            st_release_cta_global_b32(flag, 1)
    elif block == 0:
        out[lane] = message[63 - lane]
        out[lane + 32] = message[31 - lane]
    cuda.syncthreads()
    if block == 1 and thread == 0:
        atom_add_cta_global_u32(flag, 1)


@right(
    source="PTX ISA memory consistency model: a relaxed load in a loop and one fence behind it",
    grid=2, args=words(WARP, WARP, 1, WARP), expect=lambda data, message, flag, out: [(out, data[::-1] + 1)],
)  # fmt: skip
def polls_by_relaxed_loads(data, message, flag, out):
    """The reader polls without acquire, which is cheap, and fences once when it has seen the flag; the writer
    has its fence before a relaxed atomic."""
    lane = int32(cuda.threadIdx.x)
    if cuda.blockIdx.x == 0:
        message[lane] = data[lane] + 1
        cuda.syncwarp()
        if lane == 0:
            fence_acq_rel_gpu()
            red_add_gpu_global_u32(global_address(flag), 1)
    else:
        if lane == 0:
            while ld_relaxed_gpu_global_b32(global_address(flag)) == 0:
                cuda.nanosleep(50)
            fence_acq_rel_gpu()
        cuda.syncwarp()
        out[lane] = message[31 - lane]


@right(
    source="NVIDIA/cccl, decoupled look-back: while (__syncthreads_and(..))", grid=2, block=64,
    args=lambda: [np.zeros(1, np.uint32), np.zeros(64, np.uint32)], expect=lambda status, out: [(out, 5)],
)  # fmt: skip
def a_block_polls_by_a_vote(status: u64, out: u64):
    """All threads look at the other block's status, and a vote at a syncthreads says whether to look again."""
    i = int32(cuda.threadIdx.x)
    if cuda.blockIdx.x == 1:
        state = uint32(0)
        while cuda.syncthreads_and(int32(state != uint32(1))):
            state = ld_acquire_gpu_global_b32(status)
        st_global_b32(out + uint64(4 * i), uint32(5))
    else:
        cuda.syncthreads()
        if i == 0:
            st_release_gpu_global_b32(status, uint32(1))


@right(
    source="CUDA guide, syncthreads; stream-K fix-up: one thread spins, the block follows", grid=2, block=64,
    args=lambda: [np.zeros(1, np.uint32), np.zeros(64, np.uint32)], expect=lambda status, out: [(out, 5)],
)  # fmt: skip
def one_thread_polls_for_its_block(status: u64, out: u64):
    """Thread 0 looks at the status and leaves it in a shared word; the block comes to a barrier before and
    after it reads that."""
    word, i = cuda.shared.array(1, uint32), int32(cuda.threadIdx.x)
    if cuda.blockIdx.x == 0:
        state = uint32(0)
        while state != uint32(1):
            if i == 0:
                word[0] = ld_acquire_gpu_global_b32(status)
            cuda.syncthreads()
            state = word[0]
            cuda.syncthreads()
        st_global_b32(out + uint64(4 * i), uint32(5))
    elif i == 0:
        st_release_gpu_global_b32(status, uint32(1))

"""Shared memory: reuse, views, dynamic arrays, early exits, flags."""

import numpy as np
from base import right
from numba import cuda, float32, int32, uint8, uint32

from numba_deform.device.memory import (
    atom_exch_release_cta_shared_b32,
    ld_acquire_cta_shared_b32,
    ld_shared_b32,
    shared_address,
    st_release_cta_shared_b32,
    st_shared_v2,
)
from numba_deform.device.pipeline import flag_set, flag_wait
from numba_deform.device.sync import fence_acq_rel_cta

WARP, THREADS = 32, 64
SIDE, PITCH = 8, 9
BYTES = 256
ALL = 0xFFFFFFFF


def ints(count, *out):
    return lambda: [np.arange(count, dtype=np.int32), np.zeros(out, np.int32)]


@right(
    source="NVIDIA developer blog, Using Shared Memory in CUDA C/C++: staticReverse",
    block=THREADS, args=lambda: [np.arange(THREADS, dtype=np.int32)],
    expect=lambda data: [(data, np.arange(THREADS)[::-1])],
)  # fmt: skip
def reverse_in_place(data):
    """An array in global memory is read and written by different threads, with a syncthreads in between that
    orders the global accesses as well as the shared ones."""
    words = cuda.shared.array(THREADS, int32)
    thread = int32(cuda.threadIdx.x)
    words[thread] = data[thread]
    cuda.syncthreads()
    data[THREADS - 1 - thread] = words[thread]


@right(
    source="NVIDIA developer blog, An Efficient Matrix Transpose in CUDA C/C++: a column of padding",
    block=THREADS, args=lambda: [np.arange(64, dtype=np.float32).reshape(8, 8), np.zeros((8, 8), np.float32)],
    expect=lambda data, out: [(out, data.T)],
)  # fmt: skip
def transpose_with_padding(data, out):
    """The rows of the tile have a ninth element that nobody writes and nobody reads."""
    tile = cuda.shared.array((SIDE, PITCH), float32)
    x, y = int32(cuda.threadIdx.x % SIDE), int32(cuda.threadIdx.x // SIDE)
    tile[y, x] = data[y, x]
    cuda.syncthreads()
    out[y, x] = tile[x, y]


@right(
    source="Numba documentation, CUDA memory management, dynamic shared memory: arrays of several types are "
           "one memory",
    block=WARP, shared_bytes=256, args=lambda: [np.arange(WARP, dtype=np.float32), np.zeros(WARP, np.int32)],
    expect=lambda data, out: [(out, data[::-1].view(np.int32) + np.arange(WARP))],
)  # fmt: skip
def dynamic_arrays_share_their_bytes(data, out):
    """Two dynamic arrays of different types begin at the same byte. Floats are written by one name and their
    bits read by the other; the upper half holds integers."""
    floats = cuda.shared.array(0, float32)
    words = cuda.shared.array(0, int32)
    lane = int32(cuda.threadIdx.x)
    floats[lane] = data[lane]
    words[32 + lane] = lane
    cuda.syncthreads()
    out[lane] = words[31 - lane] + words[32 + lane]


@right(
    source="Numba documentation, CUDA memory management: dynamic shared memory taken apart by slices",
    block=WARP, shared_bytes=384, args=ints(WARP, WARP),
    expect=lambda data, out: [(out, data[::-1] + 2 * data + 7)],
)  # fmt: skip
def dynamic_memory_in_slices(data, out):
    """Three arrays are slices of the one dynamic array; each is indexed from 0."""
    memory = cuda.shared.array(0, int32)
    first, second, third = memory[:32], memory[32:64], memory[64:]
    lane = int32(cuda.threadIdx.x)
    first[lane] = data[lane]
    second[lane] = 2 * data[lane]
    if lane == 5:
        third[0] = 7
    cuda.syncthreads()
    out[lane] = first[31 - lane] + second[lane] + third[0]


@right(
    source="CUDA C++ Programming Guide, Shared Memory: one buffer for two purposes, one after the other",
    block=THREADS, args=ints(THREADS, 2, THREADS),
    expect=lambda data, out: [(out[0], data[::-1]), (out[1], np.roll(data % 256, 1))],
)  # fmt: skip
def one_buffer_for_two_types(data, out):
    """The same bytes are 64 integers first and bytes later; the upper part is not used the second time."""
    area = cuda.shared.array(BYTES, uint8, alignment=16)
    words = area.view(np.int32)
    thread = int32(cuda.threadIdx.x)
    words[thread] = data[thread]
    cuda.syncthreads()
    out[0, thread] = words[THREADS - 1 - thread]
    cuda.syncthreads()
    area[thread] = data[thread]
    cuda.syncthreads()
    out[1, thread] = area[(thread + THREADS - 1) % THREADS]


@right(
    source="PTX ISA, bar.sync without a count: those who have exited are not waited for; kernels with a "
           "bounds check",
    block=96, args=ints(70, 70), expect=lambda data, out: [(out, data[::-1])],
)  # fmt: skip
def threads_past_the_end_have_returned(data, out):
    """The threads past the end return before the first syncthreads: a part of one warp and nothing of another.
    Those that stay do not wait for them."""
    words = cuda.shared.array(THREADS, int32)
    more = cuda.shared.array(SIDE, int32)
    thread = int32(cuda.threadIdx.x)
    if thread >= data.size:
        return
    if thread < THREADS:
        words[thread] = data[thread]
    else:
        more[thread - THREADS] = data[thread]
    cuda.syncthreads()
    other = data.size - 1 - thread
    x = words[other] if other < THREADS else more[other - THREADS]
    cuda.syncthreads()
    out[thread] = x


@right(
    source="Mark Harris, Optimizing Parallel Reduction in CUDA; CUDA guide on its last warp since Volta: "
           "__syncwarp",
    block=THREADS, args=ints(THREADS, 1), expect=lambda data, out: [(out, data.sum())],
)  # fmt: skip
def the_last_warp_adds_up_by_itself(data, out):
    """The block halves the numbers until a warp is left, which goes on with syncwarp while the other has
    returned. Every step reads before it writes, with a syncwarp between the two."""
    words = cuda.shared.array(THREADS, int32)
    thread = int32(cuda.threadIdx.x)
    words[thread] = data[thread]
    cuda.syncthreads()
    if thread >= 32:
        return
    total = words[thread]
    distance = 32
    while distance > 0:
        total += words[thread + distance]
        cuda.syncwarp()
        words[thread] = total
        cuda.syncwarp()
        distance //= 2
    if thread == 0:
        out[0] = total


@right(
    source="CUDA C++ Programming Guide, Synchronization Functions: __syncthreads_or ends a loop of the block",
    block=THREADS, args=lambda: [np.arange(THREADS, dtype=np.int32) * 37 % 64, np.zeros(1, np.int32)],
    expect=lambda data, out: [(data, np.arange(THREADS)), (out > 0, True)],
)  # fmt: skip
def sort_until_nothing_moves(data, out):
    """Odd-even sort: pairs of threads exchange, and the block goes on while any pair has. The number of rounds
    depends on the data, but is the same for all, since the barrier says so."""
    words = cuda.shared.array(THREADS, int32)
    thread, rounds = int32(cuda.threadIdx.x), int32(0)
    words[thread] = data[thread]
    cuda.syncthreads()
    moved = 1
    while moved:
        changed = 0
        for odd in range(2):
            i = 2 * thread + odd
            if i + 1 < THREADS:
                a, b = words[i], words[i + 1]
                if a > b:
                    words[i], words[i + 1] = b, a
                    changed = 1
            cuda.syncthreads()
        moved = cuda.syncthreads_or(changed)
        rounds += 1
    data[thread] = words[thread]
    if thread == 0:
        out[0] = rounds


@right(
    source="PTX ISA memory consistency model: message passing by st.release.cta and ld.acquire.cta",
    block=THREADS, args=ints(WARP, WARP), expect=lambda data, out: [(out, data[::-1])],
)  # fmt: skip
def a_flag_for_each_message(data, out):
    """Every lane of one warp writes a number and then releases a flag of its own; a lane of the other acquires
    that flag. Nobody else synchronises, and no lane waits for more than one."""
    words = cuda.shared.array(WARP, int32)
    flags = cuda.shared.array(WARP, uint32)
    thread = int32(cuda.threadIdx.x)
    lane = thread % 32
    if thread < 32:
        flags[lane] = 0
    cuda.syncthreads()
    flag = shared_address(flags)
    if thread < 32:
        words[lane] = data[lane]
        st_release_cta_shared_b32(flag + uint32(4 * lane), 1)
    else:
        while ld_acquire_cta_shared_b32(flag + uint32(4 * (31 - lane))) == 0:
            pass
        out[lane] = words[31 - lane]


@right(
    source="PTX ISA memory consistency model, causality order: a chain of releases and acquires through a "
           "third thread",
    block=96, args=ints(1, 1), expect=lambda data, out: [(out, 42)],
)  # fmt: skip
def a_message_through_a_third_thread(data, out):
    """Thread 0 writes and tells thread 32, which tells thread 64. The last has never heard of the first, but
    reads what it wrote."""
    word = cuda.shared.array(1, int32)
    flags = cuda.shared.array(2, uint32)
    thread = int32(cuda.threadIdx.x)
    if thread < 2:
        flags[thread] = 0
    cuda.syncthreads()
    flag = shared_address(flags)
    if thread == 0:
        word[0] = 42
        flag_set(flag, 1)
    elif thread == 32:
        flag_wait(flag, 1)
        flag_set(flag + uint32(4), 1)
    elif thread == 64:
        flag_wait(flag + uint32(4), 1)
        out[0] = word[0]


@right(
    source="PTX ISA memory consistency model: fence.acq_rel and relaxed atomics make a release pattern",
    block=THREADS, args=ints(WARP, WARP), expect=lambda data, out: [(out, data.sum())],
)  # fmt: skip
def a_shared_counter_and_fences(data, out):
    """Each lane of one warp writes a number, fences and adds one to a counter by a relaxed atomic; the lanes of
    the other poll the counter by atomics that add nothing, fence and read all numbers."""
    words = cuda.shared.array(WARP, int32)
    count = cuda.shared.array(1, int32)
    thread = int32(cuda.threadIdx.x)
    lane = thread % 32
    if thread == 0:
        count[0] = 0
    cuda.syncthreads()
    if thread < 32:
        words[31 - lane] = data[lane]
        fence_acq_rel_cta()
        cuda.atomic.add(count, 0, 1)
    else:
        while cuda.atomic.add(count, 0, 0) < 32:
            pass
        fence_acq_rel_cta()
        total = int32(0)
        for i in range(32):
            total += words[i]
        out[lane] = total


@right(
    source="NVIDIA developer blog, GPU Pro Tip: Fast Histograms Using Shared Atomics on Maxwell",
    grid=2, block=THREADS, args=lambda: [np.arange(256, dtype=np.int32) ** 2 % 11, np.zeros(11, np.int32)],
    expect=lambda data, out: [(out, np.bincount(data, minlength=11))],
)  # fmt: skip
def a_histogram_in_two_levels(data, out):
    """Each block counts in shared memory and adds its counts to the total; a bin that nothing fell into is
    skipped."""
    bins = cuda.shared.array(11, int32)
    thread = int32(cuda.threadIdx.x)
    if thread < 11:
        bins[thread] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), data.size, cuda.gridsize(1)):
        cuda.atomic.add(bins, data[i], 1)
    cuda.syncthreads()
    if thread < 11 and bins[thread] > 0:
        cuda.atomic.add(out, thread, bins[thread])


@right(
    source="CUDA C++ Programming Guide, vector types: stores of two words that are read as single ones",
    block=WARP, args=ints(WARP, THREADS),
    expect=lambda data, out: [(out, np.stack([np.roll(data, -1), np.roll(data * 3, -1)], 1).reshape(-1))],
)  # fmt: skip
def written_in_pairs_and_read_one_by_one(data, out):
    """The sizes of accesses need not agree: pairs are stored by one instruction and read word by word."""
    words = cuda.shared.array(THREADS, uint32, alignment=8)
    lane = int32(cuda.threadIdx.x)
    place = shared_address(words)
    st_shared_v2(place + uint32(8 * lane), uint32(data[lane]), uint32(data[lane] * 3))
    cuda.syncwarp()
    other = place + uint32(8 * ((lane + 1) % 32))
    out[2 * lane] = ld_shared_b32(other)
    out[2 * lane + 1] = ld_shared_b32(other + uint32(4))


@right(
    source="Sanders and Kandrot, CUDA by Example, the lock by atomicCAS and atomicExch; here within a block",
    block=96, args=ints(1, 3), expect=lambda data, out: [(out, [6, 9, 0])],
)  # fmt: skip
def a_lock_in_shared_memory(data, out):
    """Three threads of different warps take a lock by compare-and-swap, add to two ordinary numbers and release
    it. A failed attempt acquires nothing and is repeated; a fence follows the successful one."""
    lock = cuda.shared.array(1, uint32)
    words = cuda.shared.array(2, int32)
    thread = int32(cuda.threadIdx.x)
    if thread == 0:
        lock[0] = 0
        words[0], words[1] = 0, 0
    cuda.syncthreads()
    if thread % 32 == 0:
        for _ in range(3):
            while cuda.atomic.cas(lock, 0, uint32(0), uint32(1)) != 0:
                pass
            fence_acq_rel_cta()
            words[0] += thread // 32 % 2 * 2
            words[1] += 1
            atom_exch_release_cta_shared_b32(shared_address(lock), 0)
    cuda.syncthreads()
    if thread == 0:
        out[0], out[1], out[2] = words[0], words[1], lock[0]


@right(
    source="Numba reference, NUMBA_ALWAYS_WARN_UNINIT_VAR",
    args=lambda: [np.arange(32, dtype=np.int32), np.zeros(32, np.int32)],
    expect=lambda data, out: [(out, np.where(data < 16, data * (data + 1) + 1, 7 * (data % 3 > 0)))],
)  # fmt: skip
def set_wherever_it_is_read(data, out):
    """Variables are set in one branch or in a loop, and read only where that was gone into."""
    i = cuda.grid(1)
    few = data[i] < 16
    if few:
        factor = data[i] + 1
    for k in range(data[i] % 3):
        last = k - k + 7
    cuda.syncwarp()
    if few:
        one = 1
        out[i] = data[i] * factor + one
    elif data[i] % 3 > 0:
        out[i] = last

"""Named barriers: who comes, how many are expected, and under which number."""

import numpy as np
from base import wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.memory import ld_global_b32, st_global_b32
from numba_deform.device.sync import bar_arrive, bar_sync, elect_sync
from numba_deform.engines import faults

WARP, TILES = 32, 4
WORDS, FOUR = 2 * WARP, 4 * WARP


def words(*counts):
    """Arguments: arrays of that many numbers, the first 0, 1, 2, .., the others zeros."""
    return lambda: [np.arange(counts[0], dtype=np.uint32), *(np.zeros(n, np.uint32) for n in counts[1:])]


@wrong(
    faults.NamedBarrierMisuse, faults.Deadlock, source="deepseek-ai/FlashMLA pull request 57", block=64,
    args=words(64, 64), hardware="guarded",
)  # fmt: skip
def each_side_counts_itself(data: u64, out: u64):
    """A proposed repair: the warp that arrives names its own 32 threads, and the one that waits names 64. Both
    have to name all who come."""
    tile = cuda.shared.array(WARP, uint32)
    i = int32(cuda.threadIdx.x)
    if i < WARP:
        tile[i] = ld_global_b32(data + uint64(4 * i))
        bar_arrive(1, 32)  # <- fault
    else:
        bar_sync(1, 64)  # <- fault
        st_global_b32(out + uint64(4 * i), tile[i - WARP])


@wrong(
    faults.NamedBarrierMisuse, source="Dao-AILab/flash-attention issue 1370", block=64, args=words(64, 64),
    hardware="guarded",
)  # fmt: skip
def counts_arrivals_not_threads(data: u64, out: u64):
    """The number is taken for that of this call's arrivals. It is that of all threads, a multiple of 32."""
    tile = cuda.shared.array(WARP, uint32)
    i = int32(cuda.threadIdx.x)
    if i < WARP:
        tile[i] = ld_global_b32(data + uint64(4 * i))
        bar_arrive(1, 1)  # <- fault
    else:
        bar_sync(1, 64)
        st_global_b32(out + uint64(4 * i), tile[i - WARP])


@wrong(
    faults.NamedBarrierMisuse, source="vllm-project/vllm pull request 26026", block=64, args=words(64, 64),
    hardware="guarded",
)  # fmt: skip
def arrives_twice_without_waiting(data: u64, out: u64):
    """A role without work arrives and goes on to its next tile, where it arrives again before the others have
    come."""
    i = int32(cuda.threadIdx.x)
    for t in range(2):
        if i < WARP:
            bar_arrive(1, 64)  # <- fault
        elif t == 1:
            bar_sync(1, 64)  # <- fault
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(
    faults.NamedBarrierMisuse, faults.Deadlock, source="facebookexperimental/triton pull request 1040",
    block=64, args=words(64, 64), hardware="guarded",
)  # fmt: skip
def half_of_a_warp_comes(data: u64, out: u64):
    """The compiler has split the warp: half of it comes to one copy of the barrier, the other half to another.
    Warps arrive whole."""
    i = int32(cuda.threadIdx.x)
    if i < 16:
        bar_sync(1, 64)  # <- fault
        st_global_b32(out + uint64(4 * i), uint32(1))
    elif i >= WARP:
        bar_sync(1, 64)  # <- fault
        st_global_b32(out + uint64(4 * i), uint32(2))
    else:
        bar_sync(2, 32)  # <- fault


@wrong(
    faults.Deadlock, source="PTX ISA 9.7.13.1, bar with a thread count; asked of an H200", block=96,
    args=words(96, 96), hardware="guarded",
)  # fmt: skip
def exited_warp_is_counted(data: u64, out: u64):
    """A warp without work returns, and the barrier names all 96 threads. A count is a count: it does not
    know that the warp has gone."""
    i = int32(cuda.threadIdx.x)
    if i >= 64:
        return
    bar_sync(1, 96)  # <- fault
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(
    faults.Deadlock, source="deepseek-ai/FlashMLA issue 41", block=64, args=words(64, 64), hardware="guarded",
)  # fmt: skip
def one_side_forgets_to_come(data: u64, out: u64):
    """The barrier is for both warps, and only one of them has a path that comes to it."""
    i = int32(cuda.threadIdx.x)
    if i < WARP:
        bar_sync(1, 64)  # <- fault
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(faults.DataRace, source="Dao-AILab/flash-attention issue 1370", block=64, args=words(64, 64))
def arrives_and_reads(data: u64, out: u64):
    """bar.arrive does not wait. The warp arrives where it should have synchronised, and reads at once."""
    tile = cuda.shared.array(WORDS, uint32)
    i = int32(cuda.threadIdx.x)
    tile[i] = ld_global_b32(data + uint64(4 * i))
    if i < WARP:
        bar_arrive(1, 64)
    else:
        bar_sync(1, 64)
    st_global_b32(out + uint64(4 * i), tile[63 - i])  # <- fault


@wrong(
    faults.NamedBarrierMisuse, source="NVIDIA/cccl pull request 11211: no more than 16 barriers", block=64,
    args=words(64, 64),
)  # fmt: skip
def seventeenth_barrier(data: u64, out: u64):
    """Every group takes a number of its own, and there are sixteen, 0 to 15."""
    i = int32(cuda.threadIdx.x)
    for number in range(14, 17):
        bar_sync(uint32(number), 64)  # <- fault
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(
    faults.NamedBarrierMisuse, faults.DivergentBarrier, source="CUTLASS, ReservedNamedBarriers",
    block=64, args=words(64, 64), hardware="guarded",
)  # fmt: skip
def number_of_syncthreads(data: u64, out: u64):
    """One warp uses barrier 0 for itself while the other is in syncthreads, which is barrier 0 too."""
    i = int32(cuda.threadIdx.x)
    if i < WARP:
        bar_sync(0, 32)  # <- fault
        cuda.syncthreads()  # <- fault
    else:
        cuda.syncthreads()  # <- fault
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(
    faults.Deadlock, source="vllm-project/vllm-xpu-kernels pull request 312", block=64, args=words(64, 64),
    hardware="guarded",
)  # fmt: skip
def unequal_numbers_of_rounds(data: u64, out: u64):
    """The number of rounds comes from a warp's own rows, and a barrier for both warps stands in the loop."""
    i = int32(cuda.threadIdx.x)
    rounds = 2 + i // WARP
    for _ in range(rounds):
        bar_sync(1, 64)  # <- fault
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(
    faults.NamedBarrierMisuse, source="PTX ISA 9.7.13.1: a multiple of the warp size", block=64,
    args=words(64, 64), hardware="guarded",
)  # fmt: skip
def count_of_48_threads(data: u64, out: u64):
    """48 threads have work and synchronise by name; warps count as a whole."""
    i = int32(cuda.threadIdx.x)
    if i < 48:
        bar_sync(1, 48)  # <- fault
        st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(
    faults.DataRace, source="pengcuo/FlashMLA-ETAP pull request 3: a barrier for the wrong warps", block=128,
    args=words(128, 128),
)  # fmt: skip
def barrier_of_half_of_the_writers(data: u64, out: u64):
    """A tile is written by four warps and read after a barrier of two."""
    tile = cuda.shared.array(FOUR, uint32)
    i = int32(cuda.threadIdx.x)
    tile[i] = ld_global_b32(data + uint64(4 * i))  # <- fault
    if i < 64:
        bar_sync(1, 64)
        st_global_b32(out + uint64(4 * i), tile[127 - i])  # <- fault


@wrong(
    faults.NamedBarrierMisuse, source="PTX ISA 9.7.13.1: .aligned, all threads of the warp execute it",
    block=64, args=words(64, 64),
)  # fmt: skip
def an_elected_lane_synchronises(data: u64, out: u64):
    """One lane of the first warp stands for it at the barrier, and the others end without coming there."""
    i = int32(cuda.threadIdx.x)
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))
    if i >= WARP:
        bar_sync(1, 64)
    elif elect_sync(0xFFFFFFFF):
        bar_sync(1, 64)  # <- fault


@wrong(
    faults.NamedBarrierMisuse, source="PTX ISA 9.7.13.1: .aligned, all threads of the warp execute it",
    block=64, args=words(64, 64),
)  # fmt: skip
def an_elected_lane_arrives(data: u64, out: u64):
    """The same with bar.arrive in the branch of a warp's role, in a loop: the others skip it, and end."""
    i = int32(cuda.threadIdx.x)
    for number in range(1, 3):
        if i >= WARP:
            bar_sync(uint32(number), 64)
        elif i == 0:
            bar_arrive(uint32(number), 64)  # <- fault
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))

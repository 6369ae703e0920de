"""Blocks that wait for each other, and barriers that not all threads of a block reach."""

import numpy as np
from base import wrong
from numba import cuda, float32, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.limits import KB
from numba_deform.device.memory import (
    atom_add_gpu_global_u32,
    ld_acquire_gpu_global_b32,
    ld_global_b32,
    red_add_gpu_global_u32,
    st_global_b32,
    st_release_gpu_global_b32,
)
from numba_deform.engines import faults

TOO_MANY = 133  # blocks of which one fits on an SM of an H200, which has 132
WARP, ROWS = 32, 4


def words(*counts):
    """Arguments: arrays of that many numbers, the first 0, 1, 2, .., the others zeros."""
    return lambda: [np.arange(counts[0], dtype=np.uint32), *(np.zeros(n, np.uint32) for n in counts[1:])]


@wrong(
    faults.NotResident, source="NVIDIA/cub issue 369", grid=TOO_MANY, block=32,
    shared_bytes=200 * KB, args=lambda: [np.zeros(1, np.uint32)], hardware="guarded", explorable=False,
)  # fmt: skip
def more_blocks_than_fit(arrived: u64):
    """A barrier of the whole grid, with one block more than can be resident: that one starts when another ends,
    and none does before it has come."""
    if cuda.threadIdx.x == 0:
        red_add_gpu_global_u32(arrived, uint32(1))
        while ld_acquire_gpu_global_b32(arrived) < cuda.gridDim.x:  # <- fault
            pass


@wrong(
    faults.Livelock, source="triton-lang/triton: a loop over a scalar atomic", grid=2, block=64,
    args=lambda: [np.zeros(1, np.int32)], hardware="guarded",
)  # fmt: skip
def looks_together_for_a_third_block(count):
    """All threads of a block learn of each look, between two barriers, and wait for more blocks than there
    are."""
    seen = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(count, 0, 1)
    while True:
        if cuda.threadIdx.x == 0:
            seen[0] = cuda.atomic.add(count, 0, 0)  # <- fault
        cuda.syncthreads()
        come = seen[0]
        cuda.syncthreads()
        if come == 3:
            break


@wrong(
    faults.Deadlock, faults.Livelock, source="predibase/lorax pull request 156", grid=2, args=words(2, 1),
    hardware="guarded",
)  # fmt: skip
def unequal_numbers_of_grid_barriers(steps: u64, arrived: u64):
    """Each block comes to the grid's barrier once for each of its steps, and block 1 has more of them: it waits
    for a block that has ended."""
    if cuda.threadIdx.x == 0:
        mine = ld_global_b32(steps + uint64(4 * cuda.blockIdx.x)) + uint32(1)
        for step in range(mine):
            red_add_gpu_global_u32(arrived, uint32(1))
            while ld_acquire_gpu_global_b32(arrived) < 2 * (step + 1):  # <- fault
                pass


@wrong(
    faults.Deadlock, faults.Livelock, source="CUDA guide, memory fence functions", grid=2,
    args=words(1, 1), hardware="guarded",
)  # fmt: skip
def two_blocks_wait_for_each_other(left: u64, right: u64):
    """Each block raises its flag after it has seen the other's."""
    if cuda.threadIdx.x == 0:
        mine, other = left, right
        if cuda.blockIdx.x == 1:
            mine, other = right, left
        while ld_acquire_gpu_global_b32(other) == 0:  # <- fault
            pass
        st_release_gpu_global_b32(mine, uint32(1))


@wrong(
    faults.Deadlock, faults.Livelock, source="NVIDIA/cuml issue 458", grid=3, args=words(1, 1),
    hardware="guarded",
)  # fmt: skip
def barrier_asks_for_equality(arrived: u64, out: u64):
    """The barrier waits until its counter equals the number of blocks, and a fast block's next arrival takes it
    past that: who has not looked yet waits for ever. The second round cannot succeed at all."""
    if cuda.threadIdx.x == 0:
        for _ in range(2):
            atom_add_gpu_global_u32(arrived, uint32(1))
            while ld_acquire_gpu_global_b32(arrived) != cuda.gridDim.x:  # <- fault
                pass
        st_global_b32(out, uint32(1))


@wrong(
    faults.DivergentBarrier, source="roastduck/FreeTensor pull request 448; PTX ISA 9.7.13.1", block=64,
    args=words(64, 64), hardware="guarded",
)  # fmt: skip
def one_barrier_for_each_branch(data: u64, out: u64):
    """Both branches have a barrier, and it is not the same one. CUDA asks for one barrier that all reach."""
    tile = cuda.shared.array(64, uint32)
    i = int32(cuda.threadIdx.x)
    tile[i] = ld_global_b32(data + uint64(4 * i))
    if i < 32:
        cuda.syncthreads()  # <- fault
        st_global_b32(out + uint64(4 * i), tile[63 - i])
    else:
        cuda.syncthreads()  # <- fault
        st_global_b32(out + uint64(4 * i), tile[0])


@wrong(
    faults.DivergentBarrier, source="1bit-MONSTER issue 1262; pytorch/FBGEMM pull request 5857", block=64,
    args=words(64, 64), hardware="guarded",
)  # fmt: skip
def loop_left_before_its_barrier(limits: u64, out: u64):
    """The number of rounds comes from the data, and the barrier stands in the loop: who has left it is at the
    barrier behind it."""
    tile = cuda.shared.array(64, uint32)
    i = int32(cuda.threadIdx.x)
    tile[i] = 0
    rounds = ld_global_b32(limits + uint64(4 * i)) // 32 + uint32(1)
    for _ in range(rounds):
        tile[i] += 1
        cuda.syncthreads()  # <- fault
    cuda.syncthreads()  # <- fault
    st_global_b32(out + uint64(4 * i), tile[63 - i])


@wrong(
    faults.DivergentBarrier, source="acts-project/acts pull request 307; tile-ai/tilelang issue 1026", block=64,
    args=words(64, 64), hardware="guarded",
)  # fmt: skip
def barrier_of_the_odd_threads(data: u64, out: u64):
    """Every other thread comes to a barrier inside the branch, in every warp; the rest is at the next one."""
    tile = cuda.shared.array(64, uint32)
    i = int32(cuda.threadIdx.x)
    if i % 2 == 1:
        tile[i] = ld_global_b32(data + uint64(4 * i))
        cuda.syncthreads()  # <- fault
    else:
        tile[i] = uint32(0)
    cuda.syncthreads()  # <- fault
    st_global_b32(out + uint64(4 * i), tile[i ^ 1])


@wrong(
    faults.BadLaunch, source="NVIDIA forums: uses too much shared data", block=32,
    args=lambda: [np.zeros(32, np.float32)],
)  # fmt: skip
def too_much_static_shared_memory(out):
    """A tile of 64 KB as a static array, of which 48 KB can be had: ptxas refuses it."""
    tile = cuda.shared.array((128, 128), float32)  # <- fault
    i = int32(cuda.threadIdx.x)
    tile[0, i] = out[i]
    out[i] = tile[0, i]


@wrong(
    faults.BadLaunch, source="alicevision/popsift pull request 109: the size of the dynamic part", block=32,
    shared_bytes=200 * KB, args=lambda: [np.zeros(32, np.float32)],
)  # fmt: skip
def static_and_dynamic_together(out):
    """Each part is small enough, and both together are more than a block can have."""
    tile = cuda.shared.array((96, 96), float32)  # <- fault
    extra = cuda.shared.array(0, float32)
    i = int32(cuda.threadIdx.x)
    tile[0, i] = extra[i] = out[i]
    out[i] = tile[0, i] + extra[i]


@wrong(
    faults.OutOfRange, source="alicevision/popsift pull request 109", block=64, shared_bytes=128, hardware="no",
    args=lambda: [np.zeros(64, np.float32)],
)  # fmt: skip
def dynamic_part_too_small(out):
    """The launch asks for 128 bytes of dynamic shared memory, and the kernel uses 256."""
    tile = cuda.shared.array(0, float32)
    i = int32(cuda.threadIdx.x)
    tile[i] = out[i]  # <- fault
    cuda.syncthreads()
    out[i] = tile[63 - i]

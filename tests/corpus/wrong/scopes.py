"""Fences, flags and locks between threads that no barrier of the block orders."""

import numpy as np
from base import wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.memory import (
    atom_add_gpu_global_u32,
    atom_cas_gpu_global_b32,
    ld_acquire_cta_shared_b32,
    ld_acquire_gpu_global_b32,
    ld_global_b32,
    ld_relaxed_gpu_global_b32,
    red_add_gpu_global_u32,
    shared_address,
    st_global_b32,
    st_relaxed_gpu_global_b32,
    st_release_cta_shared_b32,
    st_release_gpu_global_b32,
    st_shared_b32,
)
from numba_deform.device.sync import fence_acq_rel_cta, fence_acq_rel_gpu
from numba_deform.engines import faults


def words(*counts):
    """Arguments: arrays of that many zeros."""
    return lambda: [np.zeros(n, np.uint32) for n in counts]


@wrong(
    faults.ScopeRace, source="ScoRD (ISCA 2020): fences of too small a scope", grid=2, args=words(1, 1, 1),
    hardware="guarded",
)  # fmt: skip
def block_fence_between_blocks(data: u64, flag: u64, out: u64):
    """Both sides fence, but for their own block only, so the other block may see the flag before the data."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            st_global_b32(data, uint32(7))
            fence_acq_rel_cta()
            red_add_gpu_global_u32(flag, uint32(1))
        else:
            while atom_add_gpu_global_u32(flag, uint32(0)) == 0:
                pass
            fence_acq_rel_cta()
            st_global_b32(out, ld_global_b32(data))  # <- fault


@wrong(
    faults.ScopeRace, source="iGUARD (SOSP 2021): fences of too small a scope", grid=2, args=words(1, 1, 1),
    hardware="guarded",
)  # fmt: skip
def only_the_writer_fences_widely(data: u64, flag: u64, out: u64):
    """The writer fences for the GPU and the reader for its block: both ends need the scope that contains
    both."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            st_global_b32(data, uint32(7))
            fence_acq_rel_gpu()
            red_add_gpu_global_u32(flag, uint32(1))
        else:
            while atom_add_gpu_global_u32(flag, uint32(0)) == 0:
                pass
            fence_acq_rel_cta()
            st_global_b32(out, ld_global_b32(data))  # <- fault


@wrong(
    faults.ScopeRace, faults.DataRace, source="cub issue 356: __threadfence_block in a grid barrier", grid=2,
    args=lambda: [np.zeros(64, np.int32), np.zeros(1, np.int32), np.zeros(64, np.int32)],
)  # fmt: skip
def threadfence_block_in_a_grid_barrier(data, arrived, out):
    """The last block to arrive reads what the others wrote before their threadfence_block, which orders it for
    themselves only."""
    last = cuda.shared.array(1, int32)
    i, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    data[32 * block + i] = i
    cuda.threadfence_block()
    cuda.syncthreads()
    if i == 0:
        last[0] = cuda.atomic.add(arrived, 0, 1)
        cuda.threadfence_block()
    cuda.syncthreads()
    if last[0] == 1:
        out[i] = data[i] + data[32 + i]  # <- fault


@wrong(
    faults.DataRace, source="NVIDIA/Fuser pull request 2391; CUDA samples, threadFenceReduction", grid=2,
    args=lambda: [np.zeros(2, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)],
)  # fmt: skip
def last_block_without_fence(sums, arrived, out):
    """The last block adds up what all have stored. Nothing makes these sums visible before the counter."""
    if cuda.threadIdx.x == 0:
        sums[cuda.blockIdx.x] = 5
        if cuda.atomic.add(arrived, 0, 1) == 1:
            out[0] = sums[0] + sums[1]  # <- fault


@wrong(
    faults.DataRace, source="tile-ai/tilelang pull request 2322: a block barrier after the fence is missing",
    grid=2, block=64, args=lambda: [np.zeros(128, np.int32), np.zeros(1, np.int32), np.zeros(64, np.int32)],
)  # fmt: skip
def thread_0_does_not_wait_for_its_block(data, arrived, out):
    """All threads fence what they wrote, and thread 0 announces the block without waiting for the other warp to
    have come that far."""
    last = cuda.shared.array(1, int32)
    i, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    data[64 * block + i] = i
    cuda.threadfence()
    if i == 0:
        last[0] = cuda.atomic.add(arrived, 0, 1)
        cuda.threadfence()
    cuda.syncthreads()
    if last[0] == 1:
        out[i] = data[i] + data[64 + i]  # <- fault


@wrong(
    faults.DataRace, source="CUDA guide, memory fence functions; ROCm/rccl pull request 627", grid=2,
    args=words(1, 1, 1), hardware="guarded",
)  # fmt: skip
def flag_before_data(data: u64, flag: u64, out: u64):
    """The flag is raised, with release, before the data are written: a release covers what came before it."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            st_release_gpu_global_b32(flag, uint32(1))
            st_global_b32(data, uint32(7))  # <- fault
        else:
            while ld_acquire_gpu_global_b32(flag) == 0:
                pass
            st_global_b32(out, ld_global_b32(data))  # <- fault


@wrong(
    faults.DataRace, source="NVIDIA/cutlass issue 3117", grid=2, args=words(32, 1, 32), hardware="guarded",
)  # fmt: skip
def relaxed_spin_then_syncwarp(data: u64, flag: u64, out: u64):
    """One lane spins with relaxed reads, and syncwarp hands the news on. Nothing acquires what the other block
    has released."""
    i = uint64(cuda.threadIdx.x)
    if cuda.blockIdx.x == 0:
        st_global_b32(data + 4 * i, uint32(7))
        cuda.syncthreads()
        if i == 0:
            st_release_gpu_global_b32(flag, uint32(1))
    else:
        if i == 0:
            while atom_add_gpu_global_u32(flag, uint32(0)) == 0:
                pass
        cuda.syncwarp()
        st_global_b32(out + 4 * i, ld_global_b32(data + 4 * i))  # <- fault


@wrong(
    faults.DataRace, source="NVIDIA/cub issue 591; decoupled look-back", grid=2, args=words(1, 1, 1),
    hardware="guarded",
)  # fmt: skip
def look_back_without_release(value: u64, status: u64, out: u64):
    """A tile's sum and then its status are stored plainly, in the order of the program: another block may see
    them in the other order, however it reads them."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            st_global_b32(value, uint32(7))
            red_add_gpu_global_u32(status, uint32(2))
        else:
            while ld_acquire_gpu_global_b32(status) == 0:
                pass
            st_global_b32(out, ld_global_b32(value))  # <- fault


@wrong(
    faults.DataRace, source="PTX ISA section 8.8, release patterns", grid=3, args=words(1, 1, 1),
    hardware="guarded",
)  # fmt: skip
def another_thread_stores_after_the_release(value: u64, status: u64, out: u64):
    """One block releases 1 and the next stores 2 without release, which the reader waits for: a later store
    hands on what its own thread has released there, and no more."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            st_global_b32(value, uint32(7))
            st_release_gpu_global_b32(status, uint32(1))
        elif cuda.blockIdx.x == 1:
            while ld_relaxed_gpu_global_b32(status) != 1:
                pass
            st_relaxed_gpu_global_b32(status, uint32(2))
        else:
            while ld_acquire_gpu_global_b32(status) != 2:
                pass
            st_global_b32(out, ld_global_b32(value))  # <- fault


@wrong(
    faults.DataRace, source="kokkos/kokkos issue 3038", grid=2, args=words(1, 1), hardware="guarded",
)  # fmt: skip
def lock_without_fences(lock: u64, data: u64):
    """A lock of compare-and-swap keeps two blocks out of each other's way and orders nothing: the second may
    still read the old number."""
    if cuda.threadIdx.x == 0:
        while atom_cas_gpu_global_b32(lock, uint32(0), uint32(1)) != 0:
            pass
        st_global_b32(data, uint32(ld_global_b32(data) + 1))  # <- fault
        atom_cas_gpu_global_b32(lock, uint32(1), uint32(0))


@wrong(
    faults.DataRace, source="Alglave et al. (ASPLOS 2015): the lock of CUDA by Example", grid=2,
    args=words(1, 1), hardware="guarded",
)  # fmt: skip
def lock_without_acquire(lock: u64, data: u64):
    """The unlock is fenced, and the lock is not: the load may be done before the lock is taken."""
    if cuda.threadIdx.x == 0:
        while atom_cas_gpu_global_b32(lock, uint32(0), uint32(1)) != 0:
            pass
        st_global_b32(data, uint32(ld_global_b32(data) + 1))  # <- fault
        fence_acq_rel_gpu()
        atom_cas_gpu_global_b32(lock, uint32(1), uint32(0))


@wrong(
    faults.DataRace, source="kokkos/kokkos issue 3038: the write fence of the unlock", grid=2, args=words(1, 1),
    hardware="guarded",
)  # fmt: skip
def unlock_without_release(lock: u64, data: u64):
    """The lock is fenced, and the unlock is not: the next owner may not see what this one wrote."""
    if cuda.threadIdx.x == 0:
        while atom_cas_gpu_global_b32(lock, uint32(0), uint32(1)) != 0:
            pass
        fence_acq_rel_gpu()
        st_global_b32(data, uint32(ld_global_b32(data) + 1))  # <- fault
        atom_cas_gpu_global_b32(lock, uint32(1), uint32(0))


@wrong(
    faults.ScopeRace, source="ScoRD (ISCA 2020): a lock of block scope around global data", grid=2,
    args=words(1, 1), hardware="guarded",
)  # fmt: skip
def block_lock_for_global_data(lock: u64, data: u64):
    """The lock is taken by all blocks, and its fences are those of one block."""
    if cuda.threadIdx.x == 0:
        while atom_cas_gpu_global_b32(lock, uint32(0), uint32(1)) != 0:
            pass
        fence_acq_rel_cta()
        st_global_b32(data, uint32(ld_global_b32(data) + 1))  # <- fault
        fence_acq_rel_cta()
        atom_cas_gpu_global_b32(lock, uint32(1), uint32(0))


@wrong(
    faults.DataRace, source="ScoRD (ISCA 2020): every block has a lock of its own", grid=2, block=64,
    args=words(1), hardware="guarded",
)  # fmt: skip
def lock_in_shared_memory_for_global_data(data: u64):
    """The lock lies in shared memory: it keeps the threads of a block apart, and the number is everybody's."""
    lock = cuda.shared.array(1, uint32)
    if cuda.threadIdx.x == 0:
        lock[0] = 0
    cuda.syncthreads()
    if cuda.threadIdx.x % 32 == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        st_global_b32(data, uint32(ld_global_b32(data) + 1))  # <- fault
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


@wrong(
    faults.DataRace, source="NVIDIA/cub issue 356: a cache operator is no acquire", grid=2, args=words(1, 1, 1),
    hardware="guarded",
)  # fmt: skip
def flag_polled_by_plain_loads(data: u64, flag: u64, out: u64):
    """The flag is stored and polled plainly. The compiler may read it once for all, and it orders nothing."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            st_global_b32(data, uint32(7))
            fence_acq_rel_gpu()
            st_global_b32(flag, uint32(1))
        else:
            while ld_global_b32(flag) == 0:  # <- fault
                pass
            fence_acq_rel_gpu()
            st_global_b32(out, ld_global_b32(data))


@wrong(
    faults.DataRace, source="Genesis-Embodied-AI/quadrants pull request 641: flags polled in a loop", block=64,
    args=words(32), hardware="guarded",
)  # fmt: skip
def shared_flag_polled_by_plain_loads(out: u64):
    """One warp polls a plain word of shared memory that the other sets: no volatile, no acquire."""
    flag = cuda.shared.array(1, uint32)
    if cuda.threadIdx.x == 0:
        flag[0] = 0
    cuda.syncthreads()
    if cuda.threadIdx.x < 32:
        while flag[0] == 0:  # <- fault
            pass
        st_global_b32(out + uint64(4 * cuda.threadIdx.x), uint32(7))
    elif cuda.threadIdx.x == 32:
        flag[0] = 1  # <- fault


@wrong(
    faults.DataRace, source="PTX ISA 8.9.5, causality order: message passing", block=64, args=words(32),
    hardware="guarded",
)  # fmt: skip
def plain_store_of_the_flag(out: u64):
    """The reader acquires, and the writer stores the flag plainly: half of the handshake is missing."""
    box = cuda.shared.array(2, uint32)
    flag = shared_address(box) + uint32(4)
    if cuda.threadIdx.x == 0:
        st_release_cta_shared_b32(flag, uint32(0))
    cuda.syncthreads()
    if cuda.threadIdx.x == 32:
        box[0] = 7
        st_shared_b32(flag, uint32(1))  # <- fault
    elif cuda.threadIdx.x == 0:
        while ld_acquire_cta_shared_b32(flag) == 0:  # <- fault
            pass
        st_global_b32(out, box[0])


@wrong(
    faults.DataRace, source="NVIDIA/cuml issue 4157: which threads a fence speaks for", grid=2, block=64,
    args=lambda: [np.zeros(128, np.int32), np.zeros(1, np.int32), np.zeros(64, np.int32)],
)  # fmt: skip
def fence_of_thread_0_alone(data, arrived, out):
    """Thread 0 fences and announces the block. Its fence speaks for its own writes: no barrier has told it of
    those of the others."""
    last = cuda.shared.array(1, int32)
    i, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    data[64 * block + i] = i
    if i == 0:
        cuda.threadfence()
        last[0] = cuda.atomic.add(arrived, 0, 1)
        cuda.threadfence()
    cuda.syncthreads()
    if last[0] == 1:
        out[i] = data[i] + data[64 + i]  # <- fault

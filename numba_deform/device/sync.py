"""Fences, elections, named barriers, shuffles and clocks (PTX ISA 9.7.13, 9.7.9.6, 10.24)."""

import numpy as np
from numba import cuda, int32

from .ptx import cpu, f32, intrinsic, u32, u64, void


@intrinsic(void())
def fence_proxy_async():
    """``fence.proxy.async.shared::cta``: this thread's ordinary accesses to shared memory so far come before
    the copy engine's later ones. Between ordinary writes and a TMA store that reads them, between ordinary
    reads and the load that overwrites what they read, or between ``mbarrier_init`` and the first load that
    signals the barrier. Where another thread issues the copy: here and then a barrier, or a barrier and then
    the fence there. PTX ISA 9.7.13.4."""
    cpu().fence_proxy_async()


@intrinsic(void())
def fence_proxy_async_cluster():
    """``fence.proxy.async.shared::cluster``: as ``fence_proxy_async``, for the shared memory of all blocks of
    the cluster. Between ordinary writes into another block and a copy that reads them there, or writes over
    them: ``fence_proxy_async`` is for one's own block. PTX ISA 9.7.13.4."""
    cpu().fence_proxy_async(cluster=True)


@intrinsic(void())
def fence_proxy_async_global():
    """``fence.proxy.async.global``: as ``fence_proxy_async``, for global memory, and only for that.
    Between ordinary writes of this kernel and a bulk or TMA load that reads them, or a store that writes
    over them. PTX ISA 9.7.13.4."""
    cpu().fence_proxy_async(shared=False, globally=True)


@intrinsic(void())
def fence_proxy_async_full():
    """``fence.proxy.async``: as ``fence_proxy_async``, for global memory and all shared memory of the cluster.
    PTX ISA 9.7.13.4."""
    cpu().fence_proxy_async(globally=True, cluster=True)


@intrinsic(void())
def fence_mbarrier_init():
    """``fence.mbarrier_init.release.cluster``: makes earlier ``mbarrier_init`` of this thread visible to
    the copy engine and the cluster; cheaper than ``fence_proxy_async``, which NVIDIA's Programming Guide
    writes in its place. PTX ISA 9.7.13.4."""
    cpu().fence_mbarrier_init()


@intrinsic(void())
def fence_acq_rel_cta():
    """``fence.acq_rel.cta``: orders this thread's accesses around it, for its block. PTX ISA 9.7.13.4."""
    cpu().fence_acq_rel(wide=False)


@intrinsic(void())
def fence_acq_rel_cluster():
    """``fence.acq_rel.cluster``: orders this thread's accesses around it, for the blocks of its cluster.
    PTX ISA 9.7.13.4."""
    cpu().fence_acq_rel(cluster=True)


@intrinsic(void())
def fence_acq_rel_gpu():
    """``fence.acq_rel.gpu``: orders this thread's accesses around it, for the GPU. PTX ISA 9.7.13.4."""
    cpu().fence_acq_rel()


@intrinsic(u32(u32), meets="elect")
def elect_sync(mask):
    """``elect.sync``: 1 in one lane of ``mask``, always the same one, 0 in the others.
    Waits for all lanes of the mask; undefined for a lane outside it. PTX ISA 9.7.13.14."""
    return cpu().elect(mask)


@intrinsic(void(u32, u32))
def bar_sync(id, threads):
    """``bar.sync``: wait on named barrier ``id`` (0 .. 15) until ``threads`` threads, a multiple of 32,
    have arrived by ``bar_sync`` or ``bar_arrive``. Arrival is per warp, so every lane of a warp calls
    it; from one elected lane it is undefined. A warp that has exited is no arrival, as it is for
    ``syncthreads``. Orders memory among the block's threads that take part. PTX ISA 9.7.13.1."""
    cpu().named_barrier(id, threads, wait=True)


@intrinsic(void(u32, u32))
def bar_arrive(id, threads):
    """``bar.arrive``: arrive at named barrier ``id`` without waiting; see ``bar_sync``. PTX ISA 9.7.13.1."""
    cpu().named_barrier(id, threads, wait=False)


@intrinsic(u32(u32, u32, u32), meets="shuffle")
def shfl_sync_idx_b32(mask, value, lane):
    """``shfl.sync.idx``: the ``value`` of lane ``lane`` (0 .. 31), undefined where that lane is not in
    ``mask`` or has exited. Waits for all lanes of ``mask``; orders no memory. PTX ISA 9.7.9.6."""
    return cpu().shuffle(mask, int(value), lane) & 0xFFFFFFFF


@intrinsic(f32(u32, f32, u32), meets="shuffle")
def shfl_sync_idx_f32(mask, value, lane):
    """``shfl.sync.idx`` for a float. PTX ISA 9.7.9.6."""
    return cpu().shuffle(mask, np.float32(value), lane)


@intrinsic(f32(u32, f32, u32), meets="shuffle_xor")
def shfl_sync_bfly_f32(mask, value, lanes):
    """``shfl.sync.bfly``: the float of the lane whose number differs in the bits ``lanes``. PTX ISA 9.7.9.6."""
    thread = cpu()
    return thread.shuffle(mask, np.float32(value), thread.lane ^ lanes, "shfl.bfly")


@intrinsic(u64())
def clock64():
    """``%clock64``: cycles of this SM; on the CPU engine the thread's virtual cycles. PTX ISA 10.24."""
    return cpu().clock_cycles()


@intrinsic(u64())
def globaltimer():
    """``%globaltimer``: nanoseconds of one clock for all SMs, in coarse steps. PTX ISA 10.28."""
    return cpu().clock_cycles()


@intrinsic(void())
def thread_exit():
    """``exit``: the thread ends here, in whatever function it is. PTX ISA 9.7.12.7."""
    cpu().exit()


@cuda.jit(device=True, inline="always")
def lane():
    """The thread's number in its warp, in a block of one dimension."""
    return int32(cuda.threadIdx.x & int32(31))


@cuda.jit(device=True, inline="always")
def warp():
    """The warp's number in its block, in a block of one dimension."""
    return int32(cuda.threadIdx.x >> int32(5))

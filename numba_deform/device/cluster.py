"""Clusters: blocks that run together and reach each other's shared memory (PTX ISA 9.7.13.3, 9.7.9.23).

A launch with ``cluster=`` starts so many blocks at once; a block's *rank* is its number in the cluster, x
first. Another block's shared memory has 32-bit *shared::cluster* addresses, which ``mapa_shared_cluster``
makes of the address of the same place in one's own; one's own shared addresses are shared::cluster addresses
too. It may be touched once a barrier of the cluster has said that the block has started, and until that block
ends.
"""

from numba import cuda

from .ptx import From5, cpu, five, i32, intrinsic, tabled, u32, u32x2, u32x4, u64, void


@intrinsic(u32())
def cluster_ctarank():
    """``%cluster_ctarank``: the rank of this block in its cluster. PTX ISA 10.16."""
    return cpu().block.rank


@intrinsic(u32())
def cluster_nctarank():
    """``%cluster_nctarank``: how many blocks the cluster has, 1 without one. PTX ISA 10.17."""
    return len(cpu().block.cluster.blocks)


@intrinsic(u32())
def cluster_ctaid_x():
    """``%cluster_ctaid.x``: where this block stands in its cluster, in x. PTX ISA 10.14."""
    thread = cpu()
    return thread.block.cluster.place(thread.block.rank)[0]


@intrinsic(u32())
def cluster_ctaid_y():
    """``%cluster_ctaid.y``: as ``cluster_ctaid_x``, in y. PTX ISA 10.14."""
    thread = cpu()
    return thread.block.cluster.place(thread.block.rank)[1]


@intrinsic(u32())
def cluster_ctaid_z():
    """``%cluster_ctaid.z``: as ``cluster_ctaid_x``, in z. PTX ISA 10.14."""
    thread = cpu()
    return thread.block.cluster.place(thread.block.rank)[2]


@intrinsic(void())
def cluster_arrive():
    """``barrier.cluster.arrive.release``: this thread has come to the barrier of the whole cluster.
    Does not wait. All threads of all blocks that have not exited arrive, and each waits once
    (``cluster_wait``) before it arrives again. Releases what this thread did before, also in the shared
    memory of other blocks. PTX ISA 9.7.13.3."""
    thread = cpu()
    thread.block.cluster.barrier.arrive(thread)


@intrinsic(void())
def cluster_arrive_relaxed():
    """``barrier.cluster.arrive.relaxed``: as ``cluster_arrive``, and hands on only what a fence before it
    covers: after ``fence_mbarrier_init``, that the barriers are initialised. PTX ISA 9.7.13.3."""
    thread = cpu()
    thread.block.cluster.barrier.arrive(thread, release=False)


@intrinsic(void())
def cluster_wait():
    """``barrier.cluster.wait.acquire``: wait until all threads of the cluster have arrived.
    Then all its blocks have started, and what they released on arrival is visible. PTX ISA 9.7.13.3."""
    thread = cpu()
    thread.block.cluster.barrier.wait(thread)


@cuda.jit(device=True, inline="always")
def cluster_sync():
    """A barrier of all threads of the cluster, which orders memory."""
    cluster_arrive()
    cluster_wait()


@intrinsic(u32(u32, u32))
def mapa_shared_cluster(address, rank):
    """``mapa.shared::cluster``: the address of the same place in the shared memory of the block of ``rank``.
    ``address`` is a shared address of this block. The result is for the instructions of this module, whose
    names say ``cluster``. PTX ISA 9.7.9.23."""
    thread = cpu()
    return thread.block.cluster.map(thread, address, int(rank))


@intrinsic(u32(u32))
def ld_shared_cluster_b32(address):
    """``ld.shared::cluster.b32``: 4 bytes of any block of the cluster. PTX ISA 9.7.9.8."""
    thread = cpu()
    return thread.block.cluster.load(thread, address)


@intrinsic(u32x2(u32))
def ld_shared_cluster_v2(address):
    """``ld.shared::cluster.v2.b32``: 8 bytes of any block of the cluster, on a multiple of 8.
    PTX ISA 9.7.9.8."""
    thread = cpu()
    return thread.block.cluster.load(thread, address, 2)


@intrinsic(u32x4(u32))
def ld_shared_cluster_v4(address):
    """``ld.shared::cluster.v4.b32``: 16 bytes of any block of the cluster, on a multiple of 16.
    PTX ISA 9.7.9.8."""
    thread = cpu()
    return thread.block.cluster.load(thread, address, 4)


@intrinsic(void(u32, u32))
def st_shared_cluster_b32(address, x):
    """``st.shared::cluster.b32``: 4 bytes of any block of the cluster. PTX ISA 9.7.9.11."""
    thread = cpu()
    thread.block.cluster.store(thread, address, x)


@intrinsic(void(u32, u32, u32))
def st_shared_cluster_v2(address, x, y):
    """``st.shared::cluster.v2.b32``: 8 bytes of any block of the cluster, on a multiple of 8.
    PTX ISA 9.7.9.11."""
    thread = cpu()
    thread.block.cluster.store(thread, address, x, y)


@intrinsic(void(u32, u32, u32, u32, u32))
def st_shared_cluster_v4(address, x, y, z, w):
    """``st.shared::cluster.v4.b32``: 16 bytes of any block of the cluster, on a multiple of 16.
    PTX ISA 9.7.9.11."""
    thread = cpu()
    thread.block.cluster.store(thread, address, x, y, z, w)


@intrinsic(void(u32))
def mbarrier_arrive_cluster(bar):
    """``mbarrier.arrive.release.cluster.shared::cluster``: one arrival on a barrier of any block of the
    cluster. As ``mbarrier_arrive``; what this thread did before is visible to those of that block who wait with
    cluster scope (``mbarrier_try_wait_parity_cluster``), and what it did to shared memory to all who wait. The
    barrier's block must not end before. PTX ISA 9.7.13.15.13."""
    thread = cpu()
    thread.block.cluster.mbarrier_arrive(thread, bar, 1)


@intrinsic(void(u32, u32))
def mbarrier_arrive_count_cluster(bar, count):
    """``mbarrier.arrive.release.cluster.shared::cluster`` with a count: as ``mbarrier_arrive_cluster``,
    ``count`` arrivals (1 .. 2^20-1) at once. Undefined when more than the pending arrivals.
    PTX ISA 9.7.13.15.13."""
    thread = cpu()
    thread.block.cluster.mbarrier_arrive(thread, bar, count)


@intrinsic(void(u32))
def mbarrier_arrive_drop_cluster(bar):
    """``mbarrier.arrive_drop.release.cluster.shared::cluster``: as ``mbarrier_arrive_cluster``, and the coming
    phases expect one arrival less; see ``mbarrier_arrive_drop``. PTX ISA 9.7.13.15.14."""
    thread = cpu()
    thread.block.cluster.mbarrier_arrive(thread, bar, 1, drop=True)


@intrinsic(void(u32, u32))
def mbarrier_arrive_expect_tx_cluster(bar, bytes):
    """``mbarrier.arrive.expect_tx.release.cluster.shared::cluster``: as ``mbarrier_arrive_cluster``, after it
    has added ``bytes`` to the tx-count. PTX ISA 9.7.13.15.13."""
    thread = cpu()
    thread.block.cluster.mbarrier_arrive(thread, bar, 1, expected=bytes)


@intrinsic(u32(u32, u32), polls="mbarrier")
def mbarrier_try_wait_parity_cluster(bar, parity):
    """``mbarrier.try_wait.parity.acquire.cluster``: as ``mbarrier_try_wait_parity``, and acquires what
    threads of other blocks released with cluster scope as well, global memory included: where they hand on
    shared memory only, ``mbarrier_try_wait_parity`` is enough. ``bar`` is a barrier of this block: nobody
    can wait on another's. It may come back with 0 early, so loop: ``mbarrier_wait_cluster``.
    PTX ISA 9.7.13.15.16."""
    thread = cpu()
    return thread.block.cluster.mbarrier_wait(thread, bar, parity)


@cuda.jit(device=True, inline="always")
def mbarrier_wait_cluster(bar, parity):
    """Wait until the phase of ``parity`` is complete, with cluster scope."""
    while mbarrier_try_wait_parity_cluster(bar, parity) == 0:
        pass


def _multicast(rank):
    """``cp_async_bulk_tensor_{rank}d_multicast``."""
    text = """as ``cp_async_bulk_tensor_1d``, into each block of
    ``mask``. Bit r of the mask, of 16 bits, names the block of rank r. The box goes to the same place of each
    as ``dst`` is in this block, and its bytes count on the barrier at the place of ``bar`` there: each block
    expects them itself."""
    if rank > 1:
        text = f"as ``cp_async_bulk_tensor_1d_multicast``, rank {rank}."

    def act(thread, dst, map, *corner_bar_mask):
        *corner, bar, mask = corner_bar_mask
        thread.block.cluster.tensor_load(thread, dst, map, tuple(corner), bar, mask)

    name, names = f"cp_async_bulk_tensor_{rank}d_multicast", (f"c{i}" for i in range(rank))
    text = f"``cp.async.bulk.tensor.{rank}d..multicast::cluster``: {text} PTX ISA 9.7.9.25.5.2."
    kinds = u32, u64, *[i32] * rank, u32, u32
    return tabled(__name__, name, ("dst", "map", *names, "bar", "mask"), kinds, text, act)


_tensors: From5 = five(_multicast)
(
    cp_async_bulk_tensor_1d_multicast, cp_async_bulk_tensor_2d_multicast, cp_async_bulk_tensor_3d_multicast,
    cp_async_bulk_tensor_4d_multicast, cp_async_bulk_tensor_5d_multicast,
) = _tensors  # fmt: skip


@intrinsic(void(u32, u64, u32, u32, u32))
def cp_async_bulk_load_multicast(dst, src, bytes, bar, mask):
    """``cp.async.bulk..multicast::cluster``: as ``cp_async_bulk_load``, ``bytes`` from global ``src`` into each
    block of ``mask``; places and barriers as for ``cp_async_bulk_tensor_1d_multicast``.
    PTX ISA 9.7.9.25.4.1."""
    thread = cpu()
    thread.block.cluster.bulk_load(thread, dst, src, bytes, bar, mask)


@intrinsic(void(u32, u32, u32, u32))
def cp_async_bulk_shared_cluster(dst, src, bytes, bar):
    """``cp.async.bulk.shared::cluster.shared::cta``: ``bytes`` of this block's shared memory to another
    block's. ``dst`` and ``bar``, which counts the bytes, are shared::cluster addresses of one and the same
    block, ``src`` a shared address of this one. Addresses of data and the size are multiples of 16. Ordinary
    writes to ``src`` need ``fence_proxy_async``, and it is read until the barrier's phase is complete: until
    then it is not written to, and this block does not end. PTX ISA 9.7.9.25.4.1."""
    thread = cpu()
    thread.block.cluster.bulk_copy(thread, dst, src, bytes, bar)

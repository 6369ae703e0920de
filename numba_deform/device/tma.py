"""TMA: bulk copies between global and shared memory (PTX ISA 9.7.9.25.4, 9.7.9.25.5).

``map`` is the 64-bit global address of a tensor map (``engines.tensormap``), ``dst`` / ``src`` a 32-bit
shared address (128-byte aligned for tensors, 16 for plain bulk copies), coordinates are signed and
innermost dimension first, in elements. The copies run on their own (the *async proxy*): a load is
complete when its barrier says so, a store when its bulk group has been waited for.
"""

from .ptx import cpu, i32, intrinsic, u32, u64, void


@intrinsic(void(u32, u64, i32, u32))
def cp_async_bulk_tensor_1d(dst, map, c0, bar):
    """``cp.async.bulk.tensor.1d.shared::cluster.global``: one box of a rank-1 map into ``dst``.
    The box's corner is at the coordinates; it may be negative or past the end, and what lies outside
    the tensor arrives as the map's fill. ``c0`` times the element's size is a multiple of 16 bytes: an
    H200 ends the kernel with an illegal instruction otherwise. The whole box, what lies outside
    included, is subtracted from ``bar``'s tx-count. Issue it from one thread. Reading ``dst`` before a
    successful wait on ``bar`` is undefined. PTX ISA 9.7.9.25.5.2."""
    cpu().tensor_load(dst, map, (c0,), bar)


@intrinsic(void(u32, u64, i32, i32, u32))
def cp_async_bulk_tensor_2d(dst, map, c0, c1, bar):
    """``cp.async.bulk.tensor.2d.shared::cluster.global``: one box of a rank-2 map into ``dst``.
    As ``cp_async_bulk_tensor_1d``: ``c0`` elements are a multiple of 16 bytes. PTX ISA 9.7.9.25.5.2."""
    cpu().tensor_load(dst, map, (c0, c1), bar)


@intrinsic(void(u32, u64, i32, i32, i32, u32))
def cp_async_bulk_tensor_3d(dst, map, c0, c1, c2, bar):
    """``cp.async.bulk.tensor.3d.shared::cluster.global``: one box of a rank-3 map into ``dst``.
    As ``cp_async_bulk_tensor_1d``: ``c0`` elements are a multiple of 16 bytes. PTX ISA 9.7.9.25.5.2."""
    cpu().tensor_load(dst, map, (c0, c1, c2), bar)


@intrinsic(void(u32, u64, i32, i32, i32, i32, u32))
def cp_async_bulk_tensor_4d(dst, map, c0, c1, c2, c3, bar):
    """``cp.async.bulk.tensor.4d.shared::cluster.global``: one box of a rank-4 map into ``dst``.
    As ``cp_async_bulk_tensor_1d``: ``c0`` elements are a multiple of 16 bytes. PTX ISA 9.7.9.25.5.2."""
    cpu().tensor_load(dst, map, (c0, c1, c2, c3), bar)


@intrinsic(void(u32, u64, i32, i32, i32, i32, i32, u32))
def cp_async_bulk_tensor_5d(dst, map, c0, c1, c2, c3, c4, bar):
    """``cp.async.bulk.tensor.5d.shared::cluster.global``: one box of a rank-5 map into ``dst``.
    As ``cp_async_bulk_tensor_1d``: ``c0`` elements are a multiple of 16 bytes. PTX ISA 9.7.9.25.5.2."""
    cpu().tensor_load(dst, map, (c0, c1, c2, c3, c4), bar)


@intrinsic(void(u64, i32, u32))
def cp_async_bulk_tensor_1d_store(map, c0, src):
    """``cp.async.bulk.tensor.1d.global.shared::cta``: the box at ``src`` into a rank-1 tensor.
    What overhangs the end is not written. No coordinate is negative, and ``c0`` times the element's size
    is a multiple of 16 bytes: an H200 ends the kernel with an illegal instruction otherwise. Ordinary
    writes to ``src`` need ``fence_proxy_async`` by their writer and a barrier before this. Completes with
    the issuing thread's bulk group. PTX ISA 9.7.9.25.5.2."""
    cpu().tensor_store(map, (c0,), src)


@intrinsic(void(u64, i32, i32, u32))
def cp_async_bulk_tensor_2d_store(map, c0, c1, src):
    """``cp.async.bulk.tensor.2d.global.shared::cta``: the box at ``src`` into a rank-2 tensor.
    As ``cp_async_bulk_tensor_1d_store``: ``c0`` elements are a multiple of 16 bytes. PTX ISA 9.7.9.25.5.2."""
    cpu().tensor_store(map, (c0, c1), src)


@intrinsic(void(u64, i32, i32, i32, u32))
def cp_async_bulk_tensor_3d_store(map, c0, c1, c2, src):
    """``cp.async.bulk.tensor.3d.global.shared::cta``: the box at ``src`` into a rank-3 tensor.
    As ``cp_async_bulk_tensor_1d_store``: ``c0`` elements are a multiple of 16 bytes. PTX ISA 9.7.9.25.5.2."""
    cpu().tensor_store(map, (c0, c1, c2), src)


@intrinsic(void(u64, i32, i32, i32, i32, u32))
def cp_async_bulk_tensor_4d_store(map, c0, c1, c2, c3, src):
    """``cp.async.bulk.tensor.4d.global.shared::cta``: the box at ``src`` into a rank-4 tensor.
    As ``cp_async_bulk_tensor_1d_store``: ``c0`` elements are a multiple of 16 bytes. PTX ISA 9.7.9.25.5.2."""
    cpu().tensor_store(map, (c0, c1, c2, c3), src)


@intrinsic(void(u64, i32, i32, i32, i32, i32, u32))
def cp_async_bulk_tensor_5d_store(map, c0, c1, c2, c3, c4, src):
    """``cp.async.bulk.tensor.5d.global.shared::cta``: the box at ``src`` into a rank-5 tensor.
    As ``cp_async_bulk_tensor_1d_store``: ``c0`` elements are a multiple of 16 bytes. PTX ISA 9.7.9.25.5.2."""
    cpu().tensor_store(map, (c0, c1, c2, c3, c4), src)


@intrinsic(void(u32, u64, u32, u32))
def cp_async_bulk_load(dst, src, bytes, bar):
    """``cp.async.bulk.shared::cluster.global``: ``bytes`` contiguous bytes from ``src`` to ``dst``.
    Both addresses and the size are multiples of 16. Counts on ``bar`` as a tensor load does.
    PTX ISA 9.7.9.25.4.1."""
    cpu().bulk_load(dst, src, bytes, bar)


@intrinsic(void(u64, u32, u32))
def cp_async_bulk_store(dst, src, bytes):
    """``cp.async.bulk.global.shared::cta``: ``bytes`` contiguous bytes from shared ``src`` to ``dst``.
    Multiples of 16. Needs ``fence_proxy_async`` and completes in a bulk group, as a tensor store.
    PTX ISA 9.7.9.25.4.1."""
    cpu().bulk_store(dst, src, bytes)


@intrinsic(void())
def cp_async_bulk_commit_group():
    """``cp.async.bulk.commit_group``: this thread's bulk stores so far form one group. PTX ISA 9.7.9.25.6.1."""
    cpu().commit_group("bulk")


@intrinsic(void(u32))
def cp_async_bulk_wait_group(pending):
    """``cp.async.bulk.wait_group``: wait until at most ``pending`` of this thread's groups are open.
    Then the older groups have read shared memory and written global memory. Above 3 acts as 3.
    PTX ISA 9.7.9.25.6.2."""
    cpu().wait_group("bulk", pending)


@intrinsic(void(u32))
def cp_async_bulk_wait_group_read(pending):
    """``cp.async.bulk.wait_group.read``: as ``cp_async_bulk_wait_group``, but only the reads of shared
    memory are done. Enough to write to the tile again. PTX ISA 9.7.9.25.6.2."""
    cpu().wait_group("bulk", pending, True)


@intrinsic(void(u64))
def prefetch_tensormap(map):
    """``prefetch.tensormap``: a hint that the map will be used soon. No functional effect. PTX ISA 9.7.9.15."""
    cpu().find_map(map)


@intrinsic(void(u64))
def fence_proxy_tensormap_acquire_gpu(map):
    """``fence.proxy.tensormap::generic.acquire.gpu``: see a map that another thread of this GPU wrote.
    Needed once in each block before the map's first use. PTX ISA 9.7.13.4."""
    cpu().fence_map(map)


@intrinsic(void(u64))
def fence_proxy_tensormap_acquire_sys(map):
    """``fence.proxy.tensormap::generic.acquire.sys``: see a map that the host wrote.
    Needed once in each block before the first use of a map in global memory; a kernel parameter or
    constant needs none. PTX ISA 9.7.13.4."""
    cpu().fence_map(map)

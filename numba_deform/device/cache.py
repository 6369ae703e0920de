"""Hints for the L2 cache: eviction policies, bulk copies that name one, prefetches (PTX ISA 9.7.9.18,
9.7.9.25.4, 9.7.9.25.5).

A *policy* says what becomes of the lines that a copy touches: whether they go first, last or as usual. It is a
64-bit number that only ``createpolicy`` gives meaning to; any other operand is undefined. Neither policies nor
prefetches change what is copied, or what is visible to whom: a copy with a hint is the copy of ``tma`` that
has the name without ``_hint``, with the same rules.
"""

from .ptx import cpu, f32, i32, intrinsic, u32, u64, void


@intrinsic(u64(f32))
def createpolicy_fractional_evict_first(fraction):
    """``createpolicy.fractional.L2::evict_first``: a policy by which ``fraction`` (above 0, at most 1) of the
    lines that are touched are the first to go: for data that is used once. Those not of the fraction
    are treated as usual. PTX ISA 9.7.9.18."""
    return cpu().create_policy("evict_first", fraction)


@intrinsic(u64(f32))
def createpolicy_fractional_evict_last(fraction):
    """``createpolicy.fractional.L2::evict_last``: a policy by which ``fraction`` (above 0, at most 1) of the
    lines that are touched are the last to go: for data that others use again. See
    ``createpolicy_fractional_evict_first``. PTX ISA 9.7.9.18."""
    return cpu().create_policy("evict_last", fraction)


@intrinsic(u64(f32))
def createpolicy_fractional_evict_normal(fraction):
    """``createpolicy.fractional.L2::evict_normal``: a policy by which ``fraction`` (above 0, at most 1) of
    the lines that are touched go as usual. See ``createpolicy_fractional_evict_first``.
    PTX ISA 9.7.9.18."""
    return cpu().create_policy("evict_normal", fraction)


@intrinsic(u64(f32))
def createpolicy_fractional_evict_unchanged(fraction):
    """``createpolicy.fractional.L2::evict_unchanged``: a policy by which ``fraction`` (above 0, at most 1) of
    the lines that are touched keep the priority that they have. See
    ``createpolicy_fractional_evict_first``. PTX ISA 9.7.9.18."""
    return cpu().create_policy("evict_unchanged", fraction)


@intrinsic(void(u32, u64, u32, u32, u64))
def cp_async_bulk_load_hint(dst, src, bytes, bar, policy):
    """``cp.async.bulk.shared::cluster.global.L2::cache_hint``: ``cp_async_bulk_load`` with a policy.
    PTX ISA 9.7.9.25.4.1."""
    thread = cpu()
    thread.check_policy(policy)
    thread.bulk_load(dst, src, bytes, bar)


@intrinsic(void(u64, u32, u32, u64))
def cp_async_bulk_store_hint(dst, src, bytes, policy):
    """``cp.async.bulk.global.shared::cta.L2::cache_hint``: ``cp_async_bulk_store`` with a policy.
    PTX ISA 9.7.9.25.4.1."""
    thread = cpu()
    thread.check_policy(policy)
    thread.bulk_store(dst, src, bytes)


@intrinsic(void(u32, u64, i32, u32, u64))
def cp_async_bulk_tensor_1d_hint(dst, map, c0, bar, policy):
    """``cp.async.bulk.tensor.1d.shared::cluster.global.L2::cache_hint``: ``cp_async_bulk_tensor_1d`` with a
    policy. PTX ISA 9.7.9.25.5.2."""
    thread = cpu()
    thread.check_policy(policy)
    thread.tensor_load(dst, map, (c0,), bar)


@intrinsic(void(u32, u64, i32, i32, u32, u64))
def cp_async_bulk_tensor_2d_hint(dst, map, c0, c1, bar, policy):
    """``cp.async.bulk.tensor.2d.shared::cluster.global.L2::cache_hint``: ``cp_async_bulk_tensor_2d`` with a
    policy. PTX ISA 9.7.9.25.5.2."""
    thread = cpu()
    thread.check_policy(policy)
    thread.tensor_load(dst, map, (c0, c1), bar)


@intrinsic(void(u32, u64, i32, i32, i32, u32, u64))
def cp_async_bulk_tensor_3d_hint(dst, map, c0, c1, c2, bar, policy):
    """``cp.async.bulk.tensor.3d.shared::cluster.global.L2::cache_hint``: ``cp_async_bulk_tensor_3d`` with a
    policy. PTX ISA 9.7.9.25.5.2."""
    thread = cpu()
    thread.check_policy(policy)
    thread.tensor_load(dst, map, (c0, c1, c2), bar)


@intrinsic(void(u32, u64, i32, i32, i32, i32, u32, u64))
def cp_async_bulk_tensor_4d_hint(dst, map, c0, c1, c2, c3, bar, policy):
    """``cp.async.bulk.tensor.4d.shared::cluster.global.L2::cache_hint``: ``cp_async_bulk_tensor_4d`` with a
    policy. PTX ISA 9.7.9.25.5.2."""
    thread = cpu()
    thread.check_policy(policy)
    thread.tensor_load(dst, map, (c0, c1, c2, c3), bar)


@intrinsic(void(u32, u64, i32, i32, i32, i32, i32, u32, u64))
def cp_async_bulk_tensor_5d_hint(dst, map, c0, c1, c2, c3, c4, bar, policy):
    """``cp.async.bulk.tensor.5d.shared::cluster.global.L2::cache_hint``: ``cp_async_bulk_tensor_5d`` with a
    policy. PTX ISA 9.7.9.25.5.2."""
    thread = cpu()
    thread.check_policy(policy)
    thread.tensor_load(dst, map, (c0, c1, c2, c3, c4), bar)


@intrinsic(void(u64, i32, u32, u64))
def cp_async_bulk_tensor_1d_store_hint(map, c0, src, policy):
    """``cp.async.bulk.tensor.1d.global.shared::cta.L2::cache_hint``: ``cp_async_bulk_tensor_1d_store`` with a
    policy. PTX ISA 9.7.9.25.5.2."""
    thread = cpu()
    thread.check_policy(policy)
    thread.tensor_store(map, (c0,), src)


@intrinsic(void(u64, i32, i32, u32, u64))
def cp_async_bulk_tensor_2d_store_hint(map, c0, c1, src, policy):
    """``cp.async.bulk.tensor.2d.global.shared::cta.L2::cache_hint``: ``cp_async_bulk_tensor_2d_store`` with a
    policy. PTX ISA 9.7.9.25.5.2."""
    thread = cpu()
    thread.check_policy(policy)
    thread.tensor_store(map, (c0, c1), src)


@intrinsic(void(u64, i32, i32, i32, u32, u64))
def cp_async_bulk_tensor_3d_store_hint(map, c0, c1, c2, src, policy):
    """``cp.async.bulk.tensor.3d.global.shared::cta.L2::cache_hint``: ``cp_async_bulk_tensor_3d_store`` with a
    policy. PTX ISA 9.7.9.25.5.2."""
    thread = cpu()
    thread.check_policy(policy)
    thread.tensor_store(map, (c0, c1, c2), src)


@intrinsic(void(u64, i32, i32, i32, i32, u32, u64))
def cp_async_bulk_tensor_4d_store_hint(map, c0, c1, c2, c3, src, policy):
    """``cp.async.bulk.tensor.4d.global.shared::cta.L2::cache_hint``: ``cp_async_bulk_tensor_4d_store`` with a
    policy. PTX ISA 9.7.9.25.5.2."""
    thread = cpu()
    thread.check_policy(policy)
    thread.tensor_store(map, (c0, c1, c2, c3), src)


@intrinsic(void(u64, i32, i32, i32, i32, i32, u32, u64))
def cp_async_bulk_tensor_5d_store_hint(map, c0, c1, c2, c3, c4, src, policy):
    """``cp.async.bulk.tensor.5d.global.shared::cta.L2::cache_hint``: ``cp_async_bulk_tensor_5d_store`` with a
    policy. PTX ISA 9.7.9.25.5.2."""
    thread = cpu()
    thread.check_policy(policy)
    thread.tensor_store(map, (c0, c1, c2, c3, c4), src)


@intrinsic(void(u64, u32))
def cp_async_bulk_prefetch(src, bytes):
    """``cp.async.bulk.prefetch.L2.global``: ``bytes`` contiguous bytes from ``src`` on will be wanted in L2.
    Address and size are multiples of 16. Nothing waits for it, and it makes nothing visible.
    PTX ISA 9.7.9.25.4.3."""
    cpu().bulk_prefetch(src, bytes)


@intrinsic(void(u64, i32))
def cp_async_bulk_prefetch_tensor_1d(map, c0):
    """``cp.async.bulk.prefetch.tensor.1d.L2.global``: one box of a rank-1 map will be wanted in L2. The box's
    corner may be anywhere, as that of a load; the map needs the fence that a load needs.
    PTX ISA 9.7.9.25.5.4."""
    cpu().tensor_prefetch(map, (c0,))


@intrinsic(void(u64, i32, i32))
def cp_async_bulk_prefetch_tensor_2d(map, c0, c1):
    """``cp.async.bulk.prefetch.tensor.2d.L2.global``: one box of a rank-2 map will be wanted in L2. As
    ``cp_async_bulk_prefetch_tensor_1d``. PTX ISA 9.7.9.25.5.4."""
    cpu().tensor_prefetch(map, (c0, c1))


@intrinsic(void(u64, i32, i32, i32))
def cp_async_bulk_prefetch_tensor_3d(map, c0, c1, c2):
    """``cp.async.bulk.prefetch.tensor.3d.L2.global``: one box of a rank-3 map will be wanted in L2. As
    ``cp_async_bulk_prefetch_tensor_1d``. PTX ISA 9.7.9.25.5.4."""
    cpu().tensor_prefetch(map, (c0, c1, c2))


@intrinsic(void(u64, i32, i32, i32, i32))
def cp_async_bulk_prefetch_tensor_4d(map, c0, c1, c2, c3):
    """``cp.async.bulk.prefetch.tensor.4d.L2.global``: one box of a rank-4 map will be wanted in L2. As
    ``cp_async_bulk_prefetch_tensor_1d``. PTX ISA 9.7.9.25.5.4."""
    cpu().tensor_prefetch(map, (c0, c1, c2, c3))


@intrinsic(void(u64, i32, i32, i32, i32, i32))
def cp_async_bulk_prefetch_tensor_5d(map, c0, c1, c2, c3, c4):
    """``cp.async.bulk.prefetch.tensor.5d.L2.global``: one box of a rank-5 map will be wanted in L2. As
    ``cp_async_bulk_prefetch_tensor_1d``. PTX ISA 9.7.9.25.5.4."""
    cpu().tensor_prefetch(map, (c0, c1, c2, c3, c4))

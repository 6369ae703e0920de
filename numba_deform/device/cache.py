"""Hints for the L2 cache: eviction policies, bulk copies that name one, prefetches (PTX ISA 9.7.9.18,
9.7.9.25.4, 9.7.9.25.5).

A *policy* says what becomes of the lines that a copy touches: whether they go first, last or as usual. It is a
64-bit number that only ``createpolicy`` gives meaning to; any other operand is undefined. Neither policies nor
prefetches change what is copied, or what is visible to whom: a copy with a hint is the copy of ``tma`` that
has the name without ``_hint``, with the same rules.
"""

from .ptx import From2, From4, From5, cpu, f32, five, i32, intrinsic, tabled, u32, u64, void


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


_CORNER = [f"c{i}" for i in range(5)]


def _loads(rank):
    def load(thread, dst, map, *more):
        *corner, bar, policy = more
        thread.check_policy(policy)
        thread.tensor_load(dst, map, tuple(corner), bar)

    name = f"cp_async_bulk_tensor_{rank}d"
    text = f"``cp.async.bulk.tensor.{rank}d.shared::cluster.global.L2::cache_hint``: ``{name}`` with a policy. "
    names, kinds = ("dst", "map", *_CORNER[:rank], "bar", "policy"), (u32, u64, *[i32] * rank, u32, u64)
    return tabled(__name__, f"{name}_hint", names, kinds, f"{text}PTX ISA 9.7.9.25.5.2.", load)


def _stores(rank):
    def store(thread, map, *more):
        *corner, src, policy = more
        thread.check_policy(policy)
        thread.tensor_store(map, tuple(corner), src)

    name = f"cp_async_bulk_tensor_{rank}d_store"
    text = f"``cp.async.bulk.tensor.{rank}d.global.shared::cta.L2::cache_hint``: ``{name}`` with a policy. "
    names, kinds = ("map", *_CORNER[:rank], "src", "policy"), (u64, *[i32] * rank, u32, u64)
    return tabled(__name__, f"{name}_hint", names, kinds, f"{text}PTX ISA 9.7.9.25.5.2.", store)


_LOADS: From5 = five(_loads)
(cp_async_bulk_tensor_1d_hint, cp_async_bulk_tensor_2d_hint, cp_async_bulk_tensor_3d_hint,
 cp_async_bulk_tensor_4d_hint, cp_async_bulk_tensor_5d_hint) = _LOADS  # fmt: skip
_STORES: From4 = five(_stores)
(cp_async_bulk_tensor_1d_store_hint, cp_async_bulk_tensor_2d_store_hint, cp_async_bulk_tensor_3d_store_hint,
 cp_async_bulk_tensor_4d_store_hint, cp_async_bulk_tensor_5d_store_hint) = _STORES  # fmt: skip


@intrinsic(void(u64, u32))
def cp_async_bulk_prefetch(src, bytes):
    """``cp.async.bulk.prefetch.L2.global``: ``bytes`` contiguous bytes from ``src`` on will be wanted in L2.
    Address and size are multiples of 16. Nothing waits for it, and it makes nothing visible.
    PTX ISA 9.7.9.25.4.3."""
    cpu().bulk_prefetch(src, bytes)


def _prefetches(rank):
    name = "cp_async_bulk_prefetch_tensor_{}d"
    more = "The box's corner may be anywhere, as that of a load; the map needs the fence that a load needs."
    more = more if rank == 1 else f"As ``{name.format(1)}``."
    what = f"one box of a rank-{rank} map will be wanted in L2"
    text = f"``cp.async.bulk.prefetch.tensor.{rank}d.L2.global``: {what}. {more} PTX ISA 9.7.9.25.5.4."
    names, kinds = ("map", *_CORNER[:rank]), (u64, *[i32] * rank)
    return tabled(
        __name__, name.format(rank), names, kinds, text,
        lambda thread, map, *corner: thread.tensor_prefetch(map, corner),
    )  # fmt: skip


_PREFETCHES: From2 = five(_prefetches)
(cp_async_bulk_prefetch_tensor_1d, cp_async_bulk_prefetch_tensor_2d, cp_async_bulk_prefetch_tensor_3d,
 cp_async_bulk_prefetch_tensor_4d, cp_async_bulk_prefetch_tensor_5d) = _PREFETCHES  # fmt: skip

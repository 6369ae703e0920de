"""cp.async of small elements, and its completion by an mbarrier (PTX ISA 9.7.9.25.3, 9.7.13.15.15).

``cp_async_cg_16`` and the groups stand in ``memory``. Every thread issues copies of its own; who may read what
they bring: the same thread after a wait for the group, others past a barrier after that, or whoever waits
on the mbarrier on which the copies arrive. ``cp.async`` belongs to the generic proxy: before the copy engine
reads what it brought, ``fence_proxy_async`` is needed as after ordinary writes.
"""

from .ptx import cpu, intrinsic, u32, u64, void


@intrinsic(void(u32, u64, u32))
def cp_async_ca_4(dst, src, bytes):
    """``cp.async.ca.shared.global``: 4 bytes to ``dst`` through L1; ``bytes`` (0 .. 4) come from ``src``,
    the rest are zeros, so 0 fills without reading. Both addresses are 4-byte aligned.
    PTX ISA 9.7.9.25.3.1."""
    cpu().cp_async(dst, src, bytes, 4)


@intrinsic(void(u32, u64, u32))
def cp_async_ca_8(dst, src, bytes):
    """``cp.async.ca.shared.global``: 8 bytes to ``dst`` through L1; as ``cp_async_ca_4``, both addresses
    8-byte aligned, ``bytes`` 0 .. 8. PTX ISA 9.7.9.25.3.1."""
    cpu().cp_async(dst, src, bytes, 8)


@intrinsic(void(u32, u64, u32))
def cp_async_ca_16(dst, src, bytes):
    """``cp.async.ca.shared.global``: 16 bytes to ``dst`` through L1; as ``cp_async_ca_4``, both addresses
    16-byte aligned, ``bytes`` 0 .. 16. ``cp_async_cg_16`` does it past L1. PTX ISA 9.7.9.25.3.1."""
    cpu().cp_async(dst, src, bytes, 16)


@intrinsic(void())
def cp_async_wait_all():
    """``cp.async.wait_all``: wait for all copies of this thread so far, committed to a group or not.
    The same as ``cp_async_commit_group`` and ``cp_async_wait_group(0)``. PTX ISA 9.7.9.25.3.3."""
    thread = cpu()
    thread.commit_group("cp.async")
    thread.wait_group("cp.async", 0)


@intrinsic(void(u32))
def cp_async_mbarrier_arrive(bar):
    """``cp.async.mbarrier.arrive``: one arrival on ``bar`` once all ``cp.async`` of this thread so far are
    complete. The pending count goes up by one at once and down by that arrival, so it counts for nothing in the
    barrier's count: the phase ends no earlier than the copies, and somebody else's arrivals (most often the
    same thread's ``mbarrier_arrive`` after this) make up the count. Who waits for the phase sees what the
    copies brought. It releases nothing else that this thread did. PTX ISA 9.7.13.15.15."""
    cpu().cp_async_arrive(bar, True)


@intrinsic(void(u32))
def cp_async_mbarrier_arrive_noinc(bar):
    """``cp.async.mbarrier.arrive.noinc``: as ``cp_async_mbarrier_arrive``, but an arrival that the
    barrier's count includes: the pending count does not go up first. So a barrier for 32 threads that do
    nothing but this is initialised with 32. PTX ISA 9.7.13.15.15."""
    cpu().cp_async_arrive(bar, False)

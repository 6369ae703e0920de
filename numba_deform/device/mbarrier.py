"""mbarrier: the barrier object in shared memory (PTX ISA 9.7.13.15). One name per PTX function.

A barrier is 8 bytes of shared memory, 8-byte aligned. It counts arrivals (*pending*, reloaded from
*expected* at every phase) and bytes (the signed *tx-count*). A phase completes when both are zero,
and the next begins at once. The 8 bytes are opaque: a wait shows the parity of the phase, a token the
pending count (``tokens.mbarrier_pending_count``).

``bar`` is always a 32-bit shared address, see ``memory.shared_address``.
"""

from .ptx import cpu, intrinsic, u32, void


@intrinsic(void(u32, u32))
def mbarrier_init(bar, count):
    """``mbarrier.init``: phase 0, expected and pending arrivals ``count`` (1 .. 2^20-1), tx-count 0.
    Orders nothing: other threads need a barrier after it (``syncthreads``), and the copy engine needs
    ``fence_mbarrier_init`` or ``fence_proxy_async`` as well. Undefined on a barrier that is in use;
    end its life with ``mbarrier_inval`` first. PTX ISA 9.7.13.15.9."""
    cpu().mbarrier_init(bar, count)


@intrinsic(void(u32))
def mbarrier_inval(bar):
    """``mbarrier.inval``: ends the barrier's life, so that its memory may be used for other things.
    Undefined while a thread waits on it or a copy is going to signal it. PTX ISA 9.7.13.15.10."""
    cpu().mbarrier_inval(bar)


@intrinsic(void(u32), meets="arrive")
def mbarrier_arrive(bar):
    """``mbarrier.arrive.release.cta``: one arrival; pending count less one.
    Releases: what this thread did before is visible to those who wait for this phase. More arrivals
    than expected spill into the next phase. PTX ISA 9.7.13.15.13."""
    cpu().mbarrier_arrive(bar, 1)


@intrinsic(void(u32, u32), meets="arrive_count")
def mbarrier_arrive_count(bar, count):
    """``mbarrier.arrive.release.cta`` with a count: ``count`` arrivals (1 .. 2^20-1) at once.
    Undefined when more than the pending arrivals. PTX ISA 9.7.13.15.13."""
    cpu().mbarrier_arrive(bar, count)


@intrinsic(void(u32))
def mbarrier_arrive_drop(bar):
    """``mbarrier.arrive_drop.release.cta``: expected count of the coming phases less one, then one arrival.
    For a thread that leaves for good. It resets nothing, and undefined where nobody would be left to
    arrive: the expected count stays at least 1. PTX ISA 9.7.13.15.14."""
    cpu().mbarrier_arrive_drop(bar)


@intrinsic(void(u32, u32), meets="arrive_expect")
def mbarrier_arrive_expect_tx(bar, bytes):
    """``mbarrier.arrive.expect_tx``: tx-count plus ``bytes``, then one arrival (release).
    The usual way to arm a full barrier: the producer arrives once and names the bytes its copies
    will deliver. tx-count stays within +-(2^20-1). PTX ISA 9.7.13.15.13."""
    cpu().mbarrier_arrive_expect_tx(bar, bytes)


@intrinsic(void(u32, u32))
def mbarrier_expect_tx(bar, bytes):
    """``mbarrier.expect_tx.relaxed``: tx-count plus ``bytes``; no arrival, orders nothing.
    PTX ISA 9.7.13.15.11."""
    cpu().mbarrier_expect_tx(bar, bytes)


@intrinsic(u32(u32, u32), meets="test_wait", polls="mbarrier")
def mbarrier_test_wait_parity(bar, parity):
    """``mbarrier.test_wait.parity``: 1 if the phase of ``parity`` (0 or 1) is complete, else 0.
    Never blocks. True when the current phase's parity differs from ``parity``, so a fresh barrier
    passes ``parity = 1``. Success acquires what was released before the phase completed, the bytes of
    its copies included. Valid for the current and the phase before only: two phases behind, the
    parity means another phase. PTX ISA 9.7.13.15.16."""
    return cpu().mbarrier_wait(bar, parity, suspend=False)


@intrinsic(u32(u32, u32), meets="try_wait", polls="mbarrier")
def mbarrier_try_wait_parity(bar, parity):
    """``mbarrier.try_wait.parity``: as ``mbarrier_test_wait_parity``, but may suspend the thread.
    It may come back with 0 before the phase completes, so callers loop: ``pipeline.mbarrier_wait``.
    PTX ISA 9.7.13.15.16."""
    return cpu().mbarrier_wait(bar, parity, suspend=True)

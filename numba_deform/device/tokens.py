"""mbarrier by state: arrivals that return the barrier's state, and waits that take it (PTX ISA 9.7.13.15).

An arrival returns a 64-bit *state*, the token of the phase in which it counts. A wait for that token needs no
parity to be kept. What the bits of a token mean is the hardware's business: they are for these waits, for
``mbarrier_pending_count``, and for the barrier that gave them. ``bar`` is a 32-bit shared address.
"""

from .ptx import cpu, intrinsic, u32, u64


@intrinsic(u64(u32))
def mbarrier_arrive_state(bar):
    """``mbarrier.arrive.release.cta`` with its result: the state before one arrival; see ``mbarrier_arrive``.
    PTX ISA 9.7.13.15.13."""
    return cpu().mbarrier_arrive_state(bar, 1)


@intrinsic(u64(u32, u32))
def mbarrier_arrive_count_state(bar, count):
    """``mbarrier.arrive.release.cta`` with its result: the state before ``count`` arrivals (1 .. 2^20-1) at
    once; see ``mbarrier_arrive_count``. PTX ISA 9.7.13.15.13."""
    return cpu().mbarrier_arrive_state(bar, count)


@intrinsic(u64(u32, u32))
def mbarrier_arrive_expect_tx_state(bar, bytes):
    """``mbarrier.arrive.expect_tx`` with its result: the state before one arrival, which announces ``bytes``;
    see ``mbarrier_arrive_expect_tx``. PTX ISA 9.7.13.15.13."""
    return cpu().mbarrier_arrive_state(bar, 1, bytes)


@intrinsic(u64(u32, u32))
def mbarrier_arrive_noComplete(bar, count):
    """``mbarrier.arrive.noComplete.release.cta``: the state before ``count`` arrivals (1 .. 2^20-1) at once,
    which must not complete the phase. Undefined if they do, so another arrival has to come after this
    one whatever the order of the threads: a later one of the same thread, say. PTX ISA 9.7.13.15.13."""
    return cpu().mbarrier_arrive_state(bar, count, complete=False)


@intrinsic(u32(u64))
def mbarrier_pending_count(state):
    """``mbarrier.pending_count``: the pending arrivals that ``state`` was returned with, those of the arrival
    itself included. PTX ISA 9.7.13.15.17."""
    return cpu().mbarrier_pending_count(state)


@intrinsic(u32(u32, u64), polls="mbarrier")
def mbarrier_test_wait(bar, state):
    """``mbarrier.test_wait``: 1 if the phase of the token ``state`` is complete, else 0. Never blocks.
    Success acquires, as with ``mbarrier_test_wait_parity``. The token is one that an arrival on ``bar``
    returned in the current phase or the one before; of an older phase, or another barrier, it is undefined.
    PTX ISA 9.7.13.15.16."""
    return cpu().mbarrier_wait_state(bar, state, suspend=False)


@intrinsic(u32(u32, u64), polls="mbarrier")
def mbarrier_try_wait(bar, state):
    """``mbarrier.try_wait``: as ``mbarrier_test_wait``, but may suspend the thread. It may come back with 0
    before the phase completes, so callers loop. PTX ISA 9.7.13.15.16."""
    return cpu().mbarrier_wait_state(bar, state, suspend=True)


@intrinsic(u32(u32, u64, u32), polls="mbarrier")
def mbarrier_try_wait_hint(bar, state, nanoseconds):
    """``mbarrier.try_wait`` with a suspendTimeHint: as ``mbarrier_try_wait``, suspended for ``nanoseconds``
    rather than for a limit of the system's own. A hint: callers loop all the same. PTX ISA 9.7.13.15.16."""
    return cpu().mbarrier_wait_state(bar, state, suspend=True)


@intrinsic(u32(u32, u32, u32), polls="mbarrier")
def mbarrier_try_wait_parity_hint(bar, parity, nanoseconds):
    """``mbarrier.try_wait.parity`` with a suspendTimeHint: as ``mbarrier_try_wait_parity``, suspended for
    ``nanoseconds`` rather than for a limit of the system's own. PTX ISA 9.7.13.15.16."""
    return cpu().mbarrier_wait(bar, parity, suspend=True)

"""The bookkeeping of a pipeline: which stage, which barrier, which parity; acquire, commit, wait, release.

A ring of ``stages`` buffers is used in turn. For each use the producer

    acquire(ring, state)          waits until the stage is empty
    commit(ring, state, bytes)    says on the *full* barrier how many bytes will come
    ...                           issues copies that complete on ``full_barrier(ring, state)``
    state = advance(state)

and the consumer

    wait(ring, state)             waits until the stage is full
    ...                           reads it
    release(ring, state)          fences, and arrives on *empty*
    state = advance(state)

A barrier completes one phase each time it is used, so a wait names the phase by one bit, the
*parity*, which flips whenever the barrier's index wraps. Both sides start with parity 0; ``acquire``
waits for the opposite one, which a fresh barrier passes at once.

How many full barriers a ring of S stages has is a policy (``barrier_count``), not other code:

    parity      S      one a stage, the usual way
    point       N      one for each of a row's N steps, so that none is used twice in a row
    ping_pong   2 S    a pair for each stage, used in turn
"""

import functools
from collections import namedtuple

from numba import cuda, int32, uint32

from .mbarrier import mbarrier_arrive, mbarrier_arrive_expect_tx, mbarrier_init, mbarrier_try_wait_parity
from .memory import atom_exch_release_cta_shared_b32, ld_acquire_cta_shared_b32
from .sync import fence_proxy_async

PipelineState = namedtuple("PipelineState", ["stage", "barrier", "parity"])
Ring = namedtuple("Ring", ["full", "empty"])  # shared addresses of the first barrier of each kind

BARRIER_POLICIES = ("parity", "point", "ping_pong")


def barrier_count(policy, stages, steps):
    """Full barriers of a ring of ``stages`` through which a row goes in ``steps``."""
    return {"parity": stages, "point": max(stages, steps), "ping_pong": 2 * stages}[policy]


@cuda.jit(device=True, inline="always")
def first_state():
    """Where a producer and a consumer start."""
    return PipelineState(int32(0), int32(0), int32(0))


@functools.cache
def make_advance(stages, barriers=None):
    """A device function: the state of the next use, for a ring with that many stages and barriers."""
    if barriers in (None, stages):

        @cuda.jit(device=True, inline="always")
        def advance(state):
            stage = int32(state.stage + 1)
            if stage == stages:
                return PipelineState(int32(0), int32(0), int32(state.parity ^ 1))
            return PipelineState(stage, stage, state.parity)

        return advance

    @cuda.jit(device=True, inline="always")
    def advance_both(state):
        stage, barrier = int32(state.stage + 1), int32(state.barrier + 1)
        parity = state.parity
        if stage == stages:
            stage = int32(0)
        if barrier == barriers:
            barrier, parity = int32(0), int32(parity ^ 1)
        return PipelineState(stage, barrier, parity)

    return advance_both


@cuda.jit(device=True, inline="always")
def init_barriers(first, count, arrivals):
    """``count`` barriers from shared address ``first`` on, each for ``arrivals``; by one thread.

    Follow it with ``fence_mbarrier_init`` and a barrier of all threads that use them."""
    for i in range(count):
        mbarrier_init(uint32(first + uint32(8 * i)), uint32(arrivals))


@cuda.jit(device=True, inline="always")
def mbarrier_wait(bar, parity):
    """Wait until the phase of ``parity`` is complete: ``try_wait`` may give up early, so loop."""
    while mbarrier_try_wait_parity(bar, uint32(parity)) == 0:
        pass


@cuda.jit(device=True, inline="always")
def full_barrier(ring, state):
    """The barrier that copies into this stage complete on."""
    return uint32(ring.full + uint32(8) * uint32(state.barrier))


@cuda.jit(device=True, inline="always")
def acquire(ring, state):
    """Producer: wait until all consumers have released the stage's last use."""
    mbarrier_wait(uint32(ring.empty + uint32(8) * uint32(state.stage)), state.parity ^ int32(1))


@cuda.jit(device=True, inline="always")
def commit(ring, state, bytes):
    """Producer: one arrival on *full*, and ``bytes`` to come. Releases what this thread wrote."""
    mbarrier_arrive_expect_tx(full_barrier(ring, state), uint32(bytes))


@cuda.jit(device=True, inline="always")
def wait(ring, state):
    """Consumer: wait until all has arrived in the stage."""
    mbarrier_wait(full_barrier(ring, state), state.parity)


@cuda.jit(device=True, inline="always")
def release(ring, state):
    """Consumer: a fence and one arrival on *empty*: what this thread has read may be overwritten by a copy.

    Without ``fence_proxy_async`` loads that are under way may still return what the copy engine writes there:
    an arrival, and a barrier of threads, order them before ordinary writes alone (bench/NOTES.md)."""
    fence_proxy_async()
    arrive(ring, state)


@cuda.jit(device=True, inline="always")
def arrive(ring, state):
    """Consumer: one arrival on *empty*, where not loads have read the stage but products by ``wgmma``, which
    have been waited for: they belong to the copy engine's proxy, and need no fence."""
    mbarrier_arrive(uint32(ring.empty + uint32(8) * uint32(state.stage)))


@cuda.jit(device=True, inline="always")
def release_in_warp(ring, state):
    """Consumer of a warp that fills its own stages: all lanes have read this one, so a copy may refill it."""
    fence_proxy_async()
    cuda.syncwarp()


@cuda.jit(device=True, inline="always")
def flag_set(flag, value):
    """Set the 32-bit flag at shared address ``flag`` after everything this thread did.

    By an atomic: ``st_release_cta_shared_b32`` would do, but compute-sanitizer's racecheck takes a store that
    others poll for a race."""
    atom_exch_release_cta_shared_b32(flag, uint32(value))


@cuda.jit(device=True, inline="always")
def flag_wait(flag, value):
    """Spin until the 32-bit flag at shared address ``flag`` holds ``value``, with acquire."""
    while ld_acquire_cta_shared_b32(flag) != uint32(value):
        pass

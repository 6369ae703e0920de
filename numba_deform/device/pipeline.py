"""Stage and parity: the bookkeeping of a ring of stages.

A ring of ``stages`` buffers is used in turn. A barrier completes one phase each time its stage is
used, so a wait names the phase by one bit, the *parity*, which flips whenever the stage index wraps.
A consumer starts with parity 0; a producer that waits for *empty* starts with parity 1, which a fresh
barrier passes at once.

    state = PipelineState(int32(0), int32(0))
    ...
    mbarrier_wait(full + 8 * state.stage, state.parity)
    state = advance(state, STAGES)
"""

from collections import namedtuple

from numba import cuda, int32, uint32

from .mbarrier import mbarrier_try_wait_parity

PipelineState = namedtuple("PipelineState", ["stage", "parity"])


@cuda.jit(device=True, inline="always")
def advance(state, stages):
    """The next stage of the ring; the parity flips when the index wraps to 0."""
    stage = int32(state.stage + 1)
    if stage == stages:
        return PipelineState(int32(0), int32(state.parity ^ 1))
    return PipelineState(stage, state.parity)


@cuda.jit(device=True, inline="always")
def mbarrier_wait(bar, parity):
    """Wait until the phase of ``parity`` is complete: ``try_wait`` may give up early, so loop."""
    while mbarrier_try_wait_parity(bar, uint32(parity)) == 0:
        pass

"""Relaxed arrivals and waits at mbarriers. They order no memory, and tell that phases are over; tensor memory
they order by ``tcgen05.fence::before_thread_sync`` before the arrival and ``::after_thread_sync`` behind the
wait (PTX 9.7.16.6)."""

import numpy as np

from ... import faults
from ..memory.vector_clocks import merged, raise_to


def _of_pipes(clocks, block):
    """Of clocks of a block those of its Pipes of tensor memory."""
    pipes = block.tensor_memory.pipes.values() if block.tensor_memory else ()
    entries, kept = [p.component for p in pipes if p.component < clocks.shape[1]], np.zeros_like(clocks)
    kept[:, entries] = clocks[:, entries]
    return kept


def _pipes(thread):
    """What a thread knows of the Pipes of tensor memory: clocks of its block, and of others."""
    others = {key: _of_pipes(c, key[1] if isinstance(key, tuple) else key) for key, c in thread.foreign.items()}
    return _of_pipes(thread.clocks, thread.block), others


def fence_before(thread):
    thread.pipes_told = _pipes(thread)


def fence_after(thread):
    if thread.pipes_heard:
        raise_to(thread.clocks, thread.pipes_heard[0])
        thread.learn(thread.pipes_heard[1])


def _restore(thread, held):
    thread.clocks[:] = 0
    thread.clocks[:, : held.shape[1]] = held
    thread.seen[thread.tid] = thread.clock


def arrive(thread, barrier, arrival):
    """What ``arrival()``, an arrival by the thread, returns."""
    told, held, foreign = barrier.promise(thread, False)[1], thread.clocks.copy(), thread.foreign
    pipes, others = thread.pipes_told or (told, {})
    raise_to(told, pipes)
    thread.clocks[:], thread.foreign, barrier.is_sure = told, others, False
    try:
        return arrival()
    finally:
        _restore(thread, held)
        thread.foreign = foreign


def wait(thread, barrier, look):
    """What ``look()``, by the thread, returns: whether the phase is over."""
    held, foreign = thread.clocks.copy(), thread.foreign
    done = look()
    if done and barrier.issuers:
        what = f"waits on {barrier.name}, which copies signal, by a relaxed wait: it shows nothing of them"
        cure = "Leave out .relaxed, to acquire what they bring."
        raise thread.fault(faults.InFlightRead, what, barrier, cure=cure)
    if done:
        (pipes, others), over = _pipes(thread), barrier.promise(thread, False)[1]
        if thread.pipes_heard:
            raise_to(pipes, thread.pipes_heard[0])
            others = merged(others, thread.pipes_heard[1])
        thread.pipes_heard = pipes, others
        _restore(thread, held)
        thread.foreign = foreign
        raise_to(thread.clocks, over)
    return done

"""Relaxed arrivals and waits at mbarriers. They order no memory, and tell that phases are over; tensor memory
they order by ``tcgen05.fence::before_thread_sync`` before the arrival and ``::after_thread_sync`` behind the
wait (PTX 9.7.16.6.4)."""

from ... import faults
from ..memory.vector_clocks import raise_to


def _pipes(thread):
    """What a thread knows of the Pipes of tensor memory: {entry in the clocks: number}."""
    memory = thread.block.tensor_memory
    return {pipe.component: thread.seen[pipe.component] for pipe in memory.pipes.values()} if memory else {}


def fence_before(thread):
    thread.pipes_told = _pipes(thread)


def fence_after(thread):
    for entry, number in thread.pipes_heard.items():
        thread.seen[entry] = max(thread.seen[entry], number)


def _restore(thread, held):
    thread.clocks[:] = 0
    thread.clocks[:, : held.shape[1]] = held
    thread.seen[thread.tid] = thread.clock


def arrive(thread, barrier, arrival):
    """What ``arrival()``, an arrival by the thread, returns."""
    told, held, foreign = barrier.promise(thread, False)[1], thread.clocks.copy(), thread.foreign
    told[0, list(thread.pipes_told)] = list(thread.pipes_told.values())
    thread.clocks[:], thread.foreign, barrier.is_sure = told, {}, False
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
        heard, over = _pipes(thread), barrier.promise(thread, False)[1]
        _restore(thread, held)
        thread.foreign, thread.pipes_heard = foreign, heard
        raise_to(thread.clocks, over)
    return done

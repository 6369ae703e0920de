"""Arrivals on mbarriers and waits for them, as machine code.

Functions that are compiled by ``word_functions``. They do what ``ThreadBarriers.mbarrier_wait`` and
``MBarrier.arrive`` do in the most frequent cases. That a phase is over, and what else is rare, is left to
Python: then the answer is ASK, and nothing has been changed.
"""

from .....device.limits import MAX_COUNT
from ...memory.cycle_costs import COST
from . import layout as at
from .collectives import raise_numbers
from .word_functions import get, get32, larger, put, put32

GIVES_UP = 900719925474100  # of 2 ** 53: a random number below 0.1


def barrier_of(thread, block, address):
    """The row of the barrier at an address, which the thread knows; 0 if it is for Python."""
    if block.knows_others:
        return 0
    for i in range(block.barrier_count):
        row = get(block.barriers, i)
        if row.address == address:
            if not get32(row.known, thread.tid):
                if get32(thread.seen, row.init_owner) < row.init_clock:
                    return 0
                put32(row.known, thread.tid, 1)
            return row
    return 0


def gives_up(block):
    """Whether a try_wait comes back early: as ``Block.chance``. -1 where random numbers have run out."""
    drawn = block.drawn
    if block.in_turn:
        return 0
    if drawn + 2 > block.draw_count:
        return -1
    block.drawn = drawn + 2
    numbers = block.draws
    high, low = get32(numbers, drawn) & 0xFFFFFFFF, get32(numbers, drawn + 1) & 0xFFFFFFFF
    return ((high >> 5) << 26) + (low >> 6) < GIVES_UP


def succeed(thread, block, row, known):
    """The phase is complete, and what was released in it is known; ``known``: the last phase that was."""
    phase, tid = row.phase, thread.tid
    if known < phase:
        raise_numbers(thread.seen, row.released, block.width)
    thread.time = larger(row.done_time, thread.time) + COST.barrier
    put32(row.waited, tid, get32(thread.seen, tid))
    thread.first = 1
    return at.DONE


def wait(thread, block, suspend):
    """A thread looks whether the phase of a parity is complete, and may ``suspend`` until it is."""
    row, parity = barrier_of(thread, block, thread.first), thread.value
    if row == 0 or parity >> 1 or row.foreign:
        return at.ASK
    phase, known = row.phase, get32(thread.seen, row.component)
    if known < phase - 1:
        return at.ASK
    if phase & 1 != parity:
        return succeed(thread, block, row, known)
    early = gives_up(block) if suspend else -1
    if early < 0:
        return at.ASK
    if early:
        thread.first = 0
        return at.DONE
    put(row.waiters, row.waiter_count, thread.tid)
    row.waiter_count += 1
    thread.awaited, thread.awaited_phase = row, phase
    return at.WAIT


def woken(thread, block):
    """A thread that has waited for a phase goes on."""
    row, phase = thread.awaited, thread.awaited_phase
    thread.awaited = 0
    if row.address < 0 or row.foreign or row.phase != phase + 1:
        return at.LEAVE
    return succeed(thread, block, row, phase)


def arrive(thread, block, count, more):
    """A thread arrives ``count`` times, with ``more`` bytes to come."""
    row, tid, seen = barrier_of(thread, block, thread.first), thread.tid, thread.seen
    if row == 0 or row.unfollowed:
        return at.ASK
    left, bytes = row.pending - count, row.tx + more
    if count < 1 or left < 0 or more > MAX_COUNT or bytes > MAX_COUNT or left == 0 and bytes <= 0:
        return at.ASK
    if get32(seen, row.component) < row.phase:
        return at.ASK
    thread.time += COST.barrier
    raise_numbers(row.gathered, seen, block.width)
    clock = get32(seen, tid)
    put32(row.arrived, tid, clock)
    put32(seen, tid, clock + 1)
    row.latest = larger(row.latest, thread.time)
    row.pending, row.tx = left, bytes
    block.progress += 1
    return at.DONE


def at_barrier(thread, block, kind):
    """What comes of a request that is about an mbarrier."""
    if kind <= at.TEST_WAIT:
        return wait(thread, block, kind == at.TRY_WAIT)
    if kind == at.ARRIVE_EXPECT:
        return arrive(thread, block, 1, thread.value)
    return arrive(thread, block, 1 if kind == at.ARRIVE else thread.value, 0)

"""Arrivals on mbarriers and waits for them, as machine code.

Functions that are compiled by ``word_functions``. They do what ``ThreadBarriers.mbarrier_wait`` and
``MBarrier.arrive`` do in the most frequent cases. That a phase is over, and what else is rare, is left to
Python: then the answer is ASK, and nothing has been changed.
"""

from .....device.limits import MAX_COUNT
from ...async_units.cycle_costs import COST
from . import layout as at
from .collectives import FIRST, VALUE, raise_numbers
from .word_functions import get, get32, get_time, larger, put, put32

GIVES_UP = 900719925474100  # of 2 ** 53: a random number below 0.1


def barrier_of(thread, block, address):
    """The row of the barrier at an address, which the thread knows; 0 if it is for Python."""
    if get(block, at.KNOWS_OTHERS):
        return 0
    rows = get(block, at.BARRIERS)
    for i in range(get(block, at.BARRIER_COUNT)):
        row = get(rows, i)
        if get(row, at.ADDRESS) == address:
            known, tid = get(row, at.KNOWN), get(thread, at.TID)
            if not get32(known, tid):
                if get32(get(thread, at.SEEN), get(row, at.INIT_OWNER)) < get(row, at.INIT_CLOCK):
                    return 0
                put32(known, tid, 1)
            return row
    return 0


def gives_up(block):
    """Whether a try_wait comes back early: as ``Block.chance``. -1 where random numbers have run out."""
    drawn = get(block, at.DRAWN)
    if get(block, at.IN_TURN):
        return 0
    if drawn + 2 > get(block, at.DRAW_COUNT):
        return -1
    put(block, at.DRAWN, drawn + 2)
    numbers = get(block, at.DRAWS)
    high, low = get32(numbers, drawn) & 0xFFFFFFFF, get32(numbers, drawn + 1) & 0xFFFFFFFF
    return ((high >> 5) << 26) + (low >> 6) < GIVES_UP


def succeed(thread, block, row, known):
    """The phase is complete, and what was released in it is known; ``known``: the last phase that was."""
    phase, tid = get(row, at.PHASE), get(thread, at.TID)
    if known < phase:
        raise_numbers(get(thread, at.SEEN), get(row, at.RELEASED), get(block, at.WIDTH))
    put(thread, at.TIME, larger(get_time(row, at.DONE_TIME), get_time(thread, at.TIME)) + COST.barrier)
    put32(get(row, at.WAITED), tid, get32(get(thread, at.SEEN), tid))
    put(thread, FIRST, 1)
    return at.DONE


def wait(thread, block, suspend):
    """A thread looks whether the phase of a parity is complete, and may ``suspend`` until it is."""
    row, parity = barrier_of(thread, block, get(thread, FIRST)), get(thread, VALUE)
    if row == 0 or parity >> 1 or get(row, at.FOREIGN):
        return at.ASK
    phase, known = get(row, at.PHASE), get32(get(thread, at.SEEN), get(row, at.COMPONENT))
    if known < phase - 1:
        return at.ASK
    if phase & 1 != parity:
        return succeed(thread, block, row, known)
    early = gives_up(block) if suspend else -1
    if early < 0:
        return at.ASK
    if early:
        put(thread, FIRST, 0)
        return at.DONE
    count = get(row, at.WAITER_COUNT)
    put(get(row, at.WAITERS), count, get(thread, at.TID))
    put(row, at.WAITER_COUNT, count + 1)
    put(thread, at.AWAITED, row)
    put(thread, at.AWAITED_PHASE, phase)
    return at.WAIT


def woken(thread, block):
    """A thread that has waited for a phase goes on."""
    row, phase = get(thread, at.AWAITED), get(thread, at.AWAITED_PHASE)
    put(thread, at.AWAITED, 0)
    if get(row, at.ADDRESS) < 0 or get(row, at.FOREIGN) or get(row, at.PHASE) != phase + 1:
        return at.LEAVE
    return succeed(thread, block, row, phase)


def arrive(thread, block, count, more):
    """A thread arrives ``count`` times, with ``more`` bytes to come."""
    row, tid, seen = barrier_of(thread, block, get(thread, FIRST)), get(thread, at.TID), get(thread, at.SEEN)
    if row == 0 or get(row, at.UNFOLLOWED):
        return at.ASK
    left, bytes = get(row, at.PENDING) - count, get(row, at.TX) + more
    if count < 1 or left < 0 or more > MAX_COUNT or bytes > MAX_COUNT or left == 0 and bytes <= 0:
        return at.ASK
    if get32(seen, get(row, at.COMPONENT)) < get(row, at.PHASE):
        return at.ASK
    put(thread, at.TIME, get_time(thread, at.TIME) + COST.barrier)
    raise_numbers(get(row, at.GATHERED), seen, get(block, at.WIDTH))
    clock = get32(seen, tid)
    put32(get(row, at.ARRIVED), tid, clock)
    put32(seen, tid, clock + 1)
    put(row, at.LATEST, larger(get_time(row, at.LATEST), get_time(thread, at.TIME)))
    put(row, at.PENDING, left)
    put(row, at.TX, bytes)
    put(block, at.PROGRESS, get(block, at.PROGRESS) + 1)
    return at.DONE


def at_barrier(thread, block, kind):
    """What comes of a request that is about an mbarrier."""
    if kind <= at.TEST_WAIT:
        return wait(thread, block, kind == at.TRY_WAIT)
    if kind == at.ARRIVE_EXPECT:
        return arrive(thread, block, 1, get(thread, VALUE))
    return arrive(thread, block, 1 if kind == at.ARRIVE else get(thread, VALUE), 0)

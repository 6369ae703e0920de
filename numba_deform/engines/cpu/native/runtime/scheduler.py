"""Whose turn it is among the threads of a block, as machine code: it lets one run after the other.

The order is that of ``Scheduler.choose``, and takes the same random numbers. What threads do together
(``collectives``) is done here; with any other request, and when nobody is ready, Python comes in.
"""

from . import layout as at
from .collectives import STRIDE, with_block, with_warp, with_warpgroup
from .mbarrier_fast_path import at_barrier, woken
from .word_functions import get, get32, put, resume


def below(block, limit):
    """A random number below ``limit``, as ``Random.randrange`` makes it; -1 where numbers have run out."""
    shift = 32
    while limit >> (32 - shift):
        shift -= 1
    while True:
        drawn = get(block, at.DRAWN)
        if drawn >= get(block, at.DRAW_COUNT):
            return -1
        put(block, at.DRAWN, drawn + 1)
        number = (get32(get(block, at.DRAWS), drawn) & 0xFFFFFFFF) >> shift
        if number < limit:
            return number


def following(block):
    """The thread that runs next; IDLE, or DRAW."""
    count = get(block, at.READY_COUNT)
    if not count or get(block, at.DUE) <= get(block, at.SWITCHES):
        return at.IDLE
    ring, last = get(block, at.READY), get(block, at.READY_ROOM) - 1
    first = get(block, at.READY_FIRST)
    if not get(block, at.IN_TURN):
        skipped = below(block, count)
        if skipped < 0:
            return at.DRAW
        for _ in range(skipped):
            put(ring, first + count & last, get(ring, first))
            first = first + 1 & last
    put(block, at.READY_FIRST, first + 1 & last)
    put(block, at.READY_COUNT, count - 1)
    return get(ring, first)


def same_answer(thread, words):
    """What another thread was told."""
    if words:
        for i in range(at.ANSWER_WORDS):
            put(thread, at.WORDS + i, get(words, i))
    return at.DONE if words else at.ASK


def answered(thread, block):
    """What comes of a thread's request."""
    launch = get(block, at.LAUNCH)
    joint = get(get(launch, at.JOINT), get(thread, at.REQUEST))
    if joint & 255 == at.SHARED_ARRAY:
        return same_answer(thread, get(get(block, at.ANSWERS), get(thread, at.REQUEST)))
    if joint & 255 == at.WARPGROUP:
        return with_warpgroup(thread, block, joint)
    if joint & 255 >= at.TOGETHER:
        return with_warp(thread, block, joint)
    if joint & 255 >= at.TRY_WAIT:
        return at_barrier(thread, block, joint & 255)
    if joint & 255 >= at.SYNCTHREADS:
        return with_block(thread, block, joint)
    return with_warp(thread, block, joint) if joint else at.ASK


def run(block):
    """Let threads run until Python has to see to one of them, whose number this is, or to something else."""
    spent = 0
    while spent < at.FUEL_OF_ALL:
        number = get(block, at.CURRENT)
        if number < 0:
            number = following(block)
            if number < 0:
                return number
            put(block, at.CURRENT, number)
        thread = get(block, at.THREADS) + STRIDE * number
        if get(thread, at.ANSWERED):
            return number
        if get(thread, at.AWAITED) and woken(thread, block) == at.LEAVE:
            return at.LEAVE
        fuel = get(thread, at.FUEL)
        resume(get(thread, at.HANDLE))
        spent += fuel - get(thread, at.FUEL) + at.SWITCH
        if get(thread, at.REQUEST) <= 0:
            return number
        result = answered(thread, block)
        if result == at.ASK:
            put(thread, at.ANSWERED, 1)
            return number
        if result < 0:
            return result
        if result == at.WAIT:
            put(thread, at.PARKED, 1)
            put(thread, at.READS, 0)
            put(block, at.SWITCHES, get(block, at.SWITCHES) + 1)
            put(block, at.CURRENT, -1)
    return at.REST

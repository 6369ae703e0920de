"""Whose turn it is among the threads of a block, as machine code: it lets one run after the other.

The order is that of ``Scheduler.choose``, and takes the same random numbers. What threads do together
(``collectives``) is done here; with any other request, and when nobody is ready, Python comes in.
"""

from . import layout as at
from .collectives import STRIDE, ended, with_block, with_warp, with_warpgroup
from .mbarrier_fast_path import at_barrier, woken
from .word_functions import get, get32, put, resume


def below(block, limit):
    """A random number below ``limit``, as ``Random.randrange`` makes it; -1 where numbers have run out."""
    shift = 32
    while limit >> (32 - shift):
        shift -= 1
    while True:
        drawn = block.drawn
        if drawn >= block.draw_count:
            return -1
        block.drawn = drawn + 1
        number = (get32(block.draws, drawn) & 0xFFFFFFFF) >> shift
        if number < limit:
            return number


def following(block):
    """The thread that runs next; IDLE, or DRAW."""
    count = block.ready_count
    if not count or block.due <= block.switches:
        return at.IDLE
    ring, last = block.ready, block.ready_room - 1
    first = block.ready_first
    if not block.in_turn:
        skipped = below(block, count)
        if skipped < 0:
            return at.DRAW
        for _ in range(skipped):
            put(ring, first + count & last, get(ring, first))
            first = first + 1 & last
    block.ready_first = first + 1 & last
    block.ready_count = count - 1
    return get(ring, first)


def same_answer(thread, words):
    """What another thread was told."""
    if words:
        for i in range(at.ANSWER_WORDS):
            put(thread, at.WORDS + i, get(words, i))
    return at.DONE if words else at.ASK


def answered(thread, block):
    """What comes of a thread's request."""
    joint = get(block.launch.joint, thread.request)
    if joint & 255 == at.SHARED_ARRAY:
        return same_answer(thread, get(block.answers, thread.request))
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
        number = block.current
        if number < 0:
            number = following(block)
            if number < 0:
                return number
            block.current = number
        thread = block.threads + STRIDE * number
        if thread.answered:
            return number
        if thread.awaited and woken(thread, block) == at.LEAVE:
            return at.LEAVE
        fuel = thread.fuel
        resume(thread.handle)
        spent += fuel - thread.fuel + at.SWITCH
        if thread.request > 0:
            result = answered(thread, block)
        elif thread.request or thread.made or block.exits_told:
            return number
        else:
            result = ended(thread, block)
        if result == at.ASK:
            thread.answered = 1
            return number
        if result < 0:
            return result
        if result == at.WAIT:
            thread.parked = 1
            thread.reads = 0
            block.switches += 1
            block.current = -1
    return at.REST

"""Whose turn it is among the threads of a block, as machine code: it lets one run after the other.

The order is that of ``Block.choose``, and takes the same random numbers. What threads do ``together`` is done
here; with any other request, and when nobody is ready, Python comes in.
"""

from numba import cuda

from . import layout as at
from .checks import peek, peek32, poke, resume
from .together import STRIDE, with_block, with_warp


@cuda.jit(device=True)
def below(block, limit):
    """A random number below ``limit``, as ``random.Random.randrange`` makes it; -1 where numbers have run out."""
    shift = 32
    while limit >> (32 - shift):
        shift -= 1
    while True:
        drawn = peek(block + 8 * at.DRAWN)
        if drawn >= peek(block + 8 * at.DRAW_COUNT):
            return -1
        poke(block + 8 * at.DRAWN, drawn + 1)
        number = (peek32(peek(block + 8 * at.DRAWS) + 4 * drawn) & 0xFFFFFFFF) >> shift
        if number < limit:
            return number


@cuda.jit(device=True)
def following(block):
    """The thread that runs next; IDLE, or DRAW."""
    count = peek(block + 8 * at.READY_COUNT)
    if not count or peek(block + 8 * at.DUE) <= peek(block + 8 * at.SWITCHES):
        return at.IDLE
    ring, last = peek(block + 8 * at.READY), peek(block + 8 * at.READY_ROOM) - 1
    first = peek(block + 8 * at.READY_FIRST)
    if not peek(block + 8 * at.IN_TURN):
        skipped = below(block, count)
        if skipped < 0:
            return at.DRAW
        for _ in range(skipped):
            poke(ring + 8 * (first + count & last), peek(ring + 8 * first))
            first = first + 1 & last
    poke(block + 8 * at.READY_FIRST, first + 1 & last)
    poke(block + 8 * at.READY_COUNT, count - 1)
    return peek(ring + 8 * first)


@cuda.jit(device=True)
def answered(thread, block):
    """What comes of a thread's request."""
    launch = peek(block + 8 * at.LAUNCH)
    joint = peek(peek(launch + 8 * at.JOINT) + 8 * peek(thread + 8 * at.REQUEST))
    if joint & 255 >= at.SYNCTHREADS:
        return with_block(thread, block, joint)
    return with_warp(thread, block, joint) if joint else at.ASK


def run(block):
    """Let threads run until Python has to see to one of them, whose number this is, or to something else."""
    for _ in range(at.TURNS):
        number = peek(block + 8 * at.CURRENT)
        if number < 0:
            number = following(block)
            if number < 0:
                return number
            poke(block + 8 * at.CURRENT, number)
        thread = peek(block + 8 * at.THREADS) + STRIDE * number
        if peek(thread + 8 * at.ANSWERED):
            return number
        resume(peek(thread + 8 * at.HANDLE))
        if peek(thread + 8 * at.REQUEST) <= 0:
            return number
        result = answered(thread, block)
        if result == at.ASK:
            poke(thread + 8 * at.ANSWERED, 1)
            return number
        if result < 0:
            return result
        if result == at.WAIT:
            poke(thread + 8 * at.PARKED, 1)
            poke(thread + 8 * at.READS, 0)
            poke(block + 8 * at.SWITCHES, peek(block + 8 * at.SWITCHES) + 1)
            poke(block + 8 * at.CURRENT, -1)
    return at.REST

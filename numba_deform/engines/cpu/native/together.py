"""What threads of a block do together, as machine code: shuffles and votes of a warp, syncwarp, syncthreads.

Functions that are compiled as those of ``checks``. They do what ``Warp.collective``, ``Block.syncthreads`` and
``Block.join`` do. A thread that waits leaves its operands in its own words, where the last one to come finds
them, and its result. Where threads do not fit together, the answer is LEAVE: only the interpreter can say why.
"""

from numba import cuda

from . import layout as at
from .checks import peek, peek32, peek_time, poke, poke32, poke_time

FIRST, VALUE, OTHER = (8 * (at.WORDS + i) for i in range(3))  # operands; the result is in the place of the first
STRIDE = 8 * at.THREAD_WORDS


@cuda.jit(device=True)
def thread_of(block, tid):
    """The row of a thread."""
    return peek(block + 8 * at.THREADS) + STRIDE * tid


@cuda.jit(device=True)
def make_ready(block, tid):
    """The thread can go on."""
    count, room = peek(block + 8 * at.READY_COUNT), peek(block + 8 * at.READY_ROOM)
    place = peek(block + 8 * at.READY_FIRST) + count & (room - 1)
    poke(peek(block + 8 * at.READY) + 8 * place, tid)
    poke(block + 8 * at.READY_COUNT, count + 1)
    poke(thread_of(block, tid) + 8 * at.PARKED, 0)


@cuda.jit(device=True)
def come(meeting, tid):
    """One more has come to a meeting."""
    count = peek(meeting + 8 * at.COME_COUNT)
    poke(peek(meeting + 8 * at.ORDER) + 8 * count, tid)
    poke(meeting + 8 * at.COME_COUNT, count + 1)


@cuda.jit(device=True)
def raise_numbers(first, other, count):
    """Each of ``count`` numbers becomes at least the other one."""
    for i in range(count):
        number = peek32(other + 4 * i)
        if number > peek32(first + 4 * i):
            poke32(first + 4 * i, number)


@cuda.jit(device=True)
def join(block, meeting):
    """A barrier among those who have come: as ``Block.join``."""
    count, order = peek(meeting + 8 * at.COME_COUNT), peek(meeting + 8 * at.ORDER)
    width = peek(block + 8 * at.WIDTH)
    clocks = peek(block + 8 * at.CLOCKS)
    known = clocks + 4 * width * peek(order)
    time = peek_time(thread_of(block, peek(order)) + 8 * at.TIME)
    for i in range(1, count):
        tid = peek(order + 8 * i)
        raise_numbers(known, clocks + 4 * width * tid, width)
        time = max(time, peek_time(thread_of(block, tid) + 8 * at.TIME))
    for i in range(count):
        tid = peek(order + 8 * i)
        row = clocks + 4 * width * tid
        if i:
            for k in range(width):
                poke32(row + 4 * k, peek32(known + 4 * k))
        poke_time(thread_of(block, tid) + 8 * at.TIME, time)
    for i in range(count):
        tid = peek(order + 8 * i)
        own = clocks + 4 * (width * tid + tid)
        poke32(own, peek32(own) + 1)
        poke32(peek(block + 8 * at.JOINED) + 4 * i, tid)
    poke(block + 8 * at.JOINED_COUNT, count)
    return at.JOIN if peek(block + 8 * at.KNOWS_OTHERS) else at.DONE


@cuda.jit(device=True)
def release(block, meeting, waiting):
    """The first ``waiting`` of those who have come go on; the meeting is over."""
    order = peek(meeting + 8 * at.ORDER)
    for i in range(waiting):
        make_ready(block, peek(order + 8 * i))
    poke(meeting + 8 * at.COME_COUNT, 0)


# --- of a warp --------------------------------------------------------------------------------------
@cuda.jit(device=True)
def source_of(kind, lane, operand):
    """The lane whose value a shuffle hands to ``lane``."""
    if kind == at.SHUFFLE:
        return operand & 31
    if kind == at.SHUFFLE_XOR:
        return (lane ^ operand) & 31
    source = lane - operand if kind == at.SHUFFLE_UP else lane + operand
    return source if source >= 0 and source < 32 else lane


@cuda.jit(device=True)
def shuffle(block, meeting, kind, first):
    """Each lane has the value of another; LEAVE where that takes no part."""
    come, order = peek(meeting + 8 * at.COME), peek(meeting + 8 * at.ORDER)
    for i in range(peek(meeting + 8 * at.COME_COUNT)):
        tid = peek(order + 8 * i)
        row = thread_of(block, tid)
        source = source_of(kind, tid & 31, peek(row + OTHER))
        if not come >> source & 1:
            return at.LEAVE
        poke(row + FIRST, peek(first + STRIDE * source + VALUE))
    return at.DONE


@cuda.jit(device=True)
def vote(block, meeting, kind):
    """Each lane has what they have voted, or whether it is the elected one."""
    come, order = peek(meeting + 8 * at.COME), peek(meeting + 8 * at.ORDER)
    count, votes = peek(meeting + 8 * at.COME_COUNT), 0
    if kind != at.ELECT:
        for i in range(count):
            tid = peek(order + 8 * i)
            if peek(thread_of(block, tid) + VALUE) & 0xFFFFFFFF:
                votes |= 1 << (tid & 31)
    result = votes
    if kind == at.ANY:
        result = 1 if votes else 0
    elif kind == at.ALL:
        result = 1 if votes == come else 0
    elif kind == at.UNI:
        result = 1 if votes == come or votes == 0 else 0
    for i in range(count):
        tid = peek(order + 8 * i)
        if kind == at.ELECT:
            result = 0 if come & ((1 << (tid & 31)) - 1) else 1
        poke(thread_of(block, tid) + FIRST, result)
    return at.DONE


@cuda.jit(device=True)
def finish_lanes(block, meeting, first, waiting):
    """All lanes of a meeting have come; ``first``: the row of the warp's first thread."""
    kind = peek(meeting + 8 * at.KIND) & 255
    if kind == at.SYNCWARP:
        result = join(block, meeting)
    elif kind >= at.SHUFFLE:
        result = shuffle(block, meeting, kind, first)
    else:
        result = vote(block, meeting, kind)
    release(block, meeting, waiting)
    poke(meeting + 8 * at.COME, 0)
    return result


@cuda.jit(device=True)
def meeting_for(warp, mask):
    """The meeting of the lanes of a mask, an empty one where none has come, or 0."""
    empty, meeting = 0, warp + 8 * at.MEETINGS
    for _ in range(at.MEETING_COUNT):
        if not peek(meeting + 8 * at.COME_COUNT):
            empty = meeting
        elif peek(meeting + 8 * at.MASK) == mask:
            return meeting
        meeting += 8 * at.MEETING_WORDS
    return empty


@cuda.jit(device=True)
def with_warp(thread, block, kind):
    """A thread does something with other lanes: those of the mask that is its first operand."""
    tid = peek(thread + 8 * at.TID)
    lane, mask = tid & 31, peek(thread + FIRST) & 0xFFFFFFFF
    warp = peek(block + 8 * at.WARPS) + 8 * at.WARP_WORDS * (tid >> 5)
    meeting = meeting_for(warp, mask)
    if not mask >> lane & 1 or meeting == 0:
        return at.LEAVE
    if not peek(meeting + 8 * at.COME_COUNT):
        poke(meeting + 8 * at.MASK, mask)
        poke(meeting + 8 * at.KIND, kind)
    elif peek(meeting + 8 * at.KIND) != kind:
        return at.LEAVE
    come(meeting, tid)
    here = peek(meeting + 8 * at.COME) | 1 << lane
    poke(meeting + 8 * at.COME, here)
    if here != mask & peek(warp + 8 * at.ALIVE):
        return at.WAIT
    return finish_lanes(block, meeting, thread - STRIDE * lane, peek(meeting + 8 * at.COME_COUNT) - 1)


# --- of a block -------------------------------------------------------------------------------------
@cuda.jit(device=True)
def finish_block(block, meeting, waiting):
    """All threads have come to syncthreads."""
    kind, votes = peek(meeting + 8 * at.KIND) & 255, 0
    count, order = peek(meeting + 8 * at.COME_COUNT), peek(meeting + 8 * at.ORDER)
    if kind != at.SYNCTHREADS:
        for i in range(count):
            votes += 1 if peek(thread_of(block, peek(order + 8 * i)) + FIRST) & 0xFFFFFFFF else 0
        if kind == at.SYNCTHREADS_AND:
            votes = 1 if votes == count else 0
        elif kind == at.SYNCTHREADS_OR:
            votes = 1 if votes else 0
        for i in range(count):
            poke(thread_of(block, peek(order + 8 * i)) + FIRST, votes)
    poke(block + 8 * at.PROGRESS, peek(block + 8 * at.PROGRESS) + 1)
    result = join(block, meeting)
    release(block, meeting, waiting)
    return result


@cuda.jit(device=True)
def with_block(thread, block, kind):
    """A thread comes to syncthreads."""
    meeting = peek(block + 8 * at.SYNC)
    count = peek(meeting + 8 * at.COME_COUNT)
    if not count:
        poke(meeting + 8 * at.KIND, kind)
    elif peek(meeting + 8 * at.KIND) != kind:
        return at.LEAVE
    come(meeting, peek(thread + 8 * at.TID))
    if count + 1 < peek(block + 8 * at.LIVE):
        return at.WAIT
    return finish_block(block, meeting, count)


def without(thread, block):
    """A thread has ended: for whom it was the last one to come goes on. As ``Block._exited``."""
    tid = peek(thread + 8 * at.TID)
    warp = peek(block + 8 * at.WARPS) + 8 * at.WARP_WORDS * (tid >> 5)
    meeting, result = warp + 8 * at.MEETINGS, at.DONE
    for _ in range(at.MEETING_COUNT):
        count, mask = peek(meeting + 8 * at.COME_COUNT), peek(meeting + 8 * at.MASK)
        if count and peek(meeting + 8 * at.COME) == mask & peek(warp + 8 * at.ALIVE):
            if result != at.DONE:
                return at.LEAVE
            result = finish_lanes(block, meeting, thread - STRIDE * (tid & 31), count)
        meeting += 8 * at.MEETING_WORDS
    meeting = peek(block + 8 * at.SYNC)
    count, order = peek(meeting + 8 * at.COME_COUNT), peek(meeting + 8 * at.ORDER)
    for i in range(count):
        other = peek(order + 8 * i)
        if other >> 5 == tid >> 5:
            own = peek(thread_of(block, other) + 8 * at.SEEN) + 4 * other
            if peek32(peek(thread + 8 * at.SEEN) + 4 * other) >= peek32(own):
                return at.LEAVE  # it was there when the other came, and knows of it
            break
    if not count or count != peek(block + 8 * at.LIVE):
        return result
    return finish_block(block, meeting, count) if result == at.DONE else at.LEAVE

"""What threads of a block do together, as machine code: shuffles and votes of a warp, syncwarp, syncthreads.

These functions are compiled as those of ``access_checks`` are. They do what ``Warp.collective``,
``Block.syncthreads`` and ``Block.join`` do. A thread that waits leaves its operands in its own words, where the
last one to come finds them, and its result. Where threads do not fit together, the answer is LEAVE: only the
interpreter can say why.
"""

from . import layout as at
from .word_functions import get, get32, larger, put, put32

STRIDE = 8 * at.THREAD_WORDS


def thread_of(block, tid):
    """The row of a thread."""
    return block.threads + STRIDE * tid


def make_ready(block, tid):
    """The thread can go on."""
    put(block.ready, block.ready_first + block.ready_count & (block.ready_room - 1), tid)
    block.ready_count += 1
    thread_of(block, tid).parked = 0


def come(meeting, tid, kind):
    """One more comes to a meeting; false if the others are there for something else."""
    if meeting.come_count and meeting.kind != kind:
        return False
    meeting.kind = kind
    put(meeting, at.ORDER + meeting.come_count, tid)
    meeting.come_count += 1
    return True


def raise_numbers(first, other, count):
    """Each of ``count`` numbers becomes at least the other one."""
    for i in range(count):
        put32(first, i, larger(get32(first, i), get32(other, i)))


def join(block, meeting):
    """A barrier among those who have come: as ``Block.join``."""
    count, order = meeting.come_count, meeting + 8 * at.ORDER
    width, clocks = block.width, block.clocks
    known = clocks + 4 * width * get(order, 0)
    time = thread_of(block, get(order, 0)).time
    for i in range(1, count):
        tid = get(order, i)
        raise_numbers(known, clocks + 4 * width * tid, width)
        time = larger(time, thread_of(block, tid).time)
    for i in range(count):
        tid = get(order, count - 1 - i)  # the first one comes last: the others take over its row
        row = clocks + 4 * width * tid
        for k in range(width):
            put32(row, k, get32(known, k))
        put32(row, tid, get32(row, tid) + 1)
        thread_of(block, tid).time = time
        put32(block.joined, i, tid)
    block.joined_count = count
    return at.JOIN if block.knows_others else at.DONE


def release(block, meeting, waiting):
    """The first ``waiting`` of those who have come go on; the meeting is over."""
    for i in range(waiting):
        make_ready(block, get(meeting, at.ORDER + i))
    meeting.come_count = 0


def wake(block, row):
    """A phase is complete of the mbarrier with this row: all who wait for it go on."""
    for i in range(row.waiter_count):
        make_ready(block, get(row.waiters, i))
    return 0


# --- of a warp --------------------------------------------------------------------------------------
def source_of(kind, lane, operand):
    """The lane whose value a shuffle hands to ``lane``."""
    if kind == at.SHUFFLE:
        return operand & 31
    if kind == at.SHUFFLE_XOR:
        return (lane ^ operand) & 31
    distance = operand & 31
    source = lane - distance if kind == at.SHUFFLE_UP else lane + distance
    return source if source >= 0 and source < 32 else lane


def shuffle(block, meeting, kind, first):
    """Each lane has the value of another; LEAVE where that takes no part."""
    for i in range(meeting.come_count):
        tid = get(meeting, at.ORDER + i)
        row = thread_of(block, tid)
        source = source_of(kind, tid & 31, row.other)
        if not meeting.come >> source & 1:
            return at.LEAVE
        row.first = (first + STRIDE * source).value
    return at.DONE


def vote(block, meeting, kind):
    """Each lane has what they have voted, or whether it is the elected one."""
    here, count, votes = meeting.come, meeting.come_count, 0
    for i in range(count):
        tid = get(meeting, at.ORDER + i)
        if kind != at.ELECT and thread_of(block, tid).value & 0xFFFFFFFF:
            votes |= 1 << (tid & 31)
    result = votes
    if kind == at.ANY:
        result = votes != 0
    elif kind == at.ALL:
        result = votes == here
    elif kind == at.UNI:
        result = votes == here or votes == 0
    for i in range(count):
        tid = get(meeting, at.ORDER + i)
        if kind == at.ELECT:
            result = here & ((1 << (tid & 31)) - 1) == 0
        thread_of(block, tid).first = result
    return at.DONE


def give_rows(first):
    """Each lane is told where its elements are of the matrices whose rows' addresses the lanes have given: as
    ``warp_mma.load_matrices`` has it. LEAVE for a row that is out of line."""
    count, transposed = first.other & 255, first.other >> 8
    for lane in range(32):
        row = first + STRIDE * lane
        if lane < 8 * count and row.value & 15:
            return at.LEAVE
        put(row, at.THREAD_WORDS - 1, row.value)
    for lane in range(32):
        for i in range(count << transposed):
            source, column = 8 * i + (lane >> 2), 4 * (lane & 3)
            if transposed:
                source, column = 8 * (i >> 1) + 2 * (lane & 3) + (i & 1), 2 * (lane >> 2)
            place = get(first + STRIDE * source, at.THREAD_WORDS - 1) + column
            put(first + STRIDE * lane, at.FIRST + i, place)
    return at.DONE


def finish_lanes(block, meeting, first, waiting):
    """All lanes of a meeting have come; ``first``: the row of the warp's first thread."""
    kind = meeting.kind & 255
    if kind >= at.TOGETHER and meeting.come_count != 32:
        return at.LEAVE
    if kind == at.TOGETHER:
        result = at.ASK
    elif kind == at.ROWS:
        result = give_rows(first)
    elif kind == at.MEET:
        result = at.DONE
    elif kind == at.SYNCWARP:
        result = join(block, meeting)
    elif kind >= at.SHUFFLE:
        result = shuffle(block, meeting, kind, first)
    else:
        result = vote(block, meeting, kind)
    release(block, meeting, waiting)
    meeting.come = 0
    return result


def meeting_for(warp, mask):
    """Return the meeting record of this lane mask, a free one if there is none yet, 0 if none is free."""
    empty, meeting = 0, warp + 8 * at.MEETINGS
    for _ in range(at.MEETING_COUNT):
        if not meeting.come_count:
            empty = meeting
        elif meeting.mask == mask:
            return meeting
        meeting += 8 * at.MEETING_WORDS
    return empty


def with_warp(thread, block, kind):
    """A thread does something with other lanes: those of the mask that is its first operand."""
    tid = thread.tid
    lane, mask = tid & 31, thread.first & 0xFFFFFFFF
    warp = block.warps + 8 * at.WARP_WORDS * (tid >> 5)
    meeting = meeting_for(warp, mask)
    if not mask >> lane & 1 or meeting == 0 or not come(meeting, tid, kind):
        return at.LEAVE
    meeting.mask = mask
    meeting.come |= 1 << lane
    if meeting.come != mask & warp.alive:
        return at.WAIT
    return finish_lanes(block, meeting, thread - STRIDE * lane, meeting.come_count - 1)


def with_warpgroup(thread, block, kind):
    """A thread waits for the others of its warpgroup, all of which have to be there still. Those who have come
    go on when Python has answered the last one."""
    tid = thread.tid
    number = tid >> 7
    if block.size < 128 * number + 128:
        return at.LEAVE
    warp = block.warps + 8 * at.WARP_WORDS * 4 * number
    for i in range(4):
        if get(warp, at.WARP_WORDS * i + at.ALIVE) != 0xFFFFFFFF:
            return at.LEAVE
    meeting = block.warpgroups + 8 * at.WARPGROUP_WORDS * number
    if not come(meeting, tid, kind):
        return at.LEAVE
    return at.WAIT if meeting.come_count < 128 else at.ASK


# --- of a block -------------------------------------------------------------------------------------
def finish_block(block, meeting, waiting):
    """All threads have come to syncthreads."""
    kind, votes = meeting.kind & 255, 0
    count, order = meeting.come_count, meeting + 8 * at.ORDER
    if kind != at.SYNCTHREADS:
        for i in range(count):
            votes += thread_of(block, get(order, i)).first & 0xFFFFFFFF != 0
        if kind == at.SYNCTHREADS_AND:
            votes = votes == count
        elif kind == at.SYNCTHREADS_OR:
            votes = votes != 0
        for i in range(count):
            thread_of(block, get(order, i)).first = votes
    block.progress += 1
    result = join(block, meeting)
    release(block, meeting, waiting)
    return result


def with_block(thread, block, kind):
    """A thread comes to syncthreads."""
    meeting = block.sync
    if not come(meeting, thread.tid, kind):
        return at.LEAVE
    waiting = meeting.come_count - 1
    return at.WAIT if waiting + 1 < block.live else finish_block(block, meeting, waiting)


def without(thread, block):
    """A thread has ended: those who waited for nobody else go on. As ``Block._exited``, less its fault, which
    takes somebody who has come and goes on."""
    tid = thread.tid
    warp = block.warps + 8 * at.WARP_WORDS * (tid >> 5)
    meeting, result = warp + 8 * at.MEETINGS, at.DONE
    for _ in range(at.MEETING_COUNT):
        count, mask = meeting.come_count, meeting.mask
        if count and meeting.come == mask & warp.alive:
            if result != at.DONE:
                return at.LEAVE
            result = finish_lanes(block, meeting, thread - STRIDE * (tid & 31), count)
        meeting += 8 * at.MEETING_WORDS
    meeting = block.sync
    count = meeting.come_count
    if not count or count != block.live:
        return result
    return finish_block(block, meeting, count) if result == at.DONE else at.LEAVE


def ended(thread, block):
    """The same of one of which Python has nothing: as ``NativeBlock._exited``."""
    block.current = -1
    block.live -= 1
    block.progress += 1
    warp = block.warps + 8 * at.WARP_WORDS * (thread.tid >> 5)
    warp.alive ^= 1 << (thread.tid & 31)
    return without(thread, block)

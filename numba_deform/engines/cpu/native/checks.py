"""The checks of plain reads and writes that machine code makes by itself.

These are functions of the CPU engine that are compiled as kernels are, and do what ``Space.on_read`` and
``Space.on_write`` do in the most frequent cases: all bytes have one record, of a thread of this block whose
access is ordered before. They return the address of the bytes, or 0: then Python has to look, and nothing has
been changed.
"""

from numba import cuda, types
from numba.cuda.extending import intrinsic

from ..space import MANY_READS
from . import layout as at

LIMIT = MANY_READS
i64 = types.int64


@intrinsic
def peek(typingctx, address):
    """The 64 bits at an address."""
    return i64(i64), None


@intrinsic
def peek32(typingctx, address):
    """The 32 bits at an address, as a signed number."""
    return i64(i64), None


@intrinsic
def poke(typingctx, address, value):
    """Set the 64 bits at an address."""
    return types.void(i64, i64), None


@intrinsic
def poke32(typingctx, address, value):
    """Set the 32 bits at an address."""
    return types.void(i64, i64), None


@intrinsic
def peek_time(typingctx, address):
    """The float64 at an address."""
    return types.float64(i64), None


@intrinsic
def poke_time(typingctx, address, value):
    """Set the float64 at an address."""
    return types.void(i64, types.float64), None


@intrinsic
def resume(typingctx, coroutine):
    """Let a thread run until it asks for something."""
    return types.void(i64), None


def find(block, address, size):
    """The row of the array in global memory that has these bytes; 0 where Python has to look."""
    row = peek(peek(block + 8 * at.LAUNCH) + 8 * at.REGIONS)
    last = row + 8 * at.REGION_WORDS * peek(peek(block + 8 * at.LAUNCH) + 8 * at.REGION_COUNT)
    while row < last:
        if address < peek(row + 8 * at.STOP) and address >= peek(row + 8 * at.BASE):
            inside = address + size <= peek(row + 8 * at.STOP) and address & (size - 1) == 0
            return row if inside and peek(row + 8 * at.PLAIN) else 0
        row += 8 * at.REGION_WORDS
    return 0


@cuda.jit(device=True)
def one_number(first, size):
    """The number that ``size`` bytes have in common, -1 if they differ; that of the first is at ``first``."""
    number = peek32(first)
    for i in range(1, size):
        if peek32(first + 4 * i) != number:
            return -1
    return number


@cuda.jit(device=True)
def ordered(thread, block, number):
    """Whether what a record tells of is ordered before this thread."""
    if number >= at.FIRST_SET:
        return False
    record = peek(peek(block + 8 * at.LAUNCH) + 8 * at.TABLE) + 16 * number
    if peek32(record + 4 * at.OF_BLOCK) != peek(block + 8 * at.BLOCK):
        return False
    owner = peek32(record)
    if owner == peek(thread + 8 * at.TID):
        return True
    return peek32(peek(thread + 8 * at.SEEN) + 4 * owner) >= peek32(record + 4 * at.CLOCK)


@cuda.jit(device=True)
def own_record(thread, block, site):
    """The number of the record of what this thread does at ``site`` now; -1 if there is no room for it."""
    owner = peek(thread + 8 * at.TID)
    clock = peek32(peek(thread + 8 * at.SEEN) + 4 * owner)
    last = peek(thread + 8 * at.CACHE) + 4 * site
    number = peek32(last)
    table = peek(peek(block + 8 * at.LAUNCH) + 8 * at.TABLE)
    if number and peek32(table + 16 * number + 4 * at.CLOCK) == clock:
        return number
    number = peek(peek(block + 8 * at.LAUNCH) + 8 * at.COUNT)
    if number >= peek(peek(block + 8 * at.LAUNCH) + 8 * at.ROOM):
        return -1
    poke(peek(block + 8 * at.LAUNCH) + 8 * at.COUNT, number + 1)
    poke32(last, number)
    record = table + 16 * number
    poke32(record, owner)
    poke32(record + 4 * at.CLOCK, clock)
    poke32(record + 4 * at.SITE, site)
    poke32(record + 4 * at.OF_BLOCK, peek(block + 8 * at.BLOCK))
    return number


@cuda.jit(device=True)
def set_numbers(first, size, number):
    for i in range(size):
        poke32(first + 4 * i, number)


@cuda.jit(device=True)
def set_row(block, number):
    """The row of a set of readers."""
    launch = peek(block + 8 * at.LAUNCH)
    return peek(launch + 8 * at.SETS) + peek(launch + 8 * at.SET_BYTES) * (number - at.FIRST_SET)


@cuda.jit(device=True)
def add_reader(block, row, owner, number):
    """Note the record of a thread in a set."""
    slot = row + 4 * (at.SET_THREADS + owner)
    if not peek32(slot):
        length, threads = peek32(row + 4 * at.SET_LENGTH), peek(block + 8 * at.SIZE)
        poke32(row + 4 * (at.SET_THREADS + threads + length), owner)
        poke32(row + 4 * at.SET_LENGTH, length + 1)
    poke32(slot, number)


@cuda.jit(device=True)
def new_set(block):
    """The number of an empty set, 0 if there is none."""
    launch = peek(block + 8 * at.LAUNCH)
    free = peek(launch + 8 * at.FREE_COUNT)
    if free:
        poke(launch + 8 * at.FREE_COUNT, free - 1)
        return peek32(peek(launch + 8 * at.FREE) + 4 * (free - 1))
    count = peek(launch + 8 * at.SET_COUNT)
    if count >= peek(launch + 8 * at.SET_ROOM):
        return 0
    poke(launch + 8 * at.SET_COUNT, count + 1)
    return at.FIRST_SET + count


@cuda.jit(device=True)
def join_readers(thread, block, offset, size, readers, reader, own):
    """Add this thread's record to the readers of some bytes, whose number is ``reader``; false if it cannot."""
    index, owner = peek(block + 8 * at.BLOCK), peek(thread + 8 * at.TID)
    if reader >= at.FIRST_SET:
        row = set_row(block, reader)
        if peek32(row) == index and peek32(row + 4 * at.SET_FIRST) == offset:
            if peek32(row + 4 * at.SET_SIZE) == size:
                add_reader(block, row, owner, own)
                return True
    number = new_set(block)
    if not number:
        return False
    row = set_row(block, number)
    poke32(row, index)
    poke32(row + 4 * at.SET_FIRST, offset)
    poke32(row + 4 * at.SET_SIZE, size)
    poke32(row + 4 * at.SET_BEFORE, reader)
    if reader < at.FIRST_SET:
        record = peek(peek(block + 8 * at.LAUNCH) + 8 * at.TABLE) + 16 * reader
        if peek32(record + 4 * at.OF_BLOCK) == index and peek32(record) < peek(block + 8 * at.SIZE):
            poke32(row + 4 * at.SET_BEFORE, 0)
            add_reader(block, row, peek32(record), reader)
    add_reader(block, row, owner, own)
    set_numbers(readers, size, number)
    return True


@cuda.jit(device=True)
def all_ordered(thread, block, first, room, number):
    """The size of a set of readers that begins at byte ``first``, all of whom are ordered before this thread;
    0 if they are not, or if it is another set, or has more than ``room`` bytes."""
    row = set_row(block, number)
    size = peek32(row + 4 * at.SET_SIZE)
    if peek32(row) != peek(block + 8 * at.BLOCK) or peek32(row + 4 * at.SET_BEFORE):
        return 0
    if peek32(row + 4 * at.SET_FIRST) != first or size > room:
        return 0
    length, slots = peek32(row + 4 * at.SET_LENGTH), row + 4 * at.SET_THREADS
    order = slots + 4 * peek(block + 8 * at.SIZE)
    for i in range(length):
        if not ordered(thread, block, peek32(slots + 4 * peek32(order + 4 * i))):
            return 0
    return size


@cuda.jit(device=True)
def free_set(block, number):
    """Nobody needs a set any more."""
    row, launch = set_row(block, number), peek(block + 8 * at.LAUNCH)
    slots = row + 4 * at.SET_THREADS
    order = slots + 4 * peek(block + 8 * at.SIZE)
    for i in range(peek32(row + 4 * at.SET_LENGTH)):
        poke32(slots + 4 * peek32(order + 4 * i), 0)
    poke32(row + 4 * at.SET_LENGTH, 0)
    free = peek(launch + 8 * at.FREE_COUNT)
    poke32(peek(launch + 8 * at.FREE) + 4 * free, number)
    poke(launch + 8 * at.FREE_COUNT, free + 1)


@cuda.jit(device=True)
def writers_ordered(thread, block, first, size):
    """Whether all writers of some bytes, whose numbers are at ``first``, are ordered before this thread."""
    last = at.NOTHING
    for i in range(size):
        number = peek32(first + 4 * i)
        if number != last:
            if number == at.OUTSIDE_NUMBER or number > at.OUTSIDE_NUMBER and not ordered(thread, block, number):
                return False
            last = number
    return True


@cuda.jit(device=True)
def readers_ordered(thread, block, offset, first, size):
    """Whether all readers of some bytes are, which begin at ``offset``."""
    last, i = 0, 0
    while i < size:
        number = peek32(first + 4 * i)
        if number >= at.FIRST_SET:
            several = all_ordered(thread, block, offset + i, size - i, number)
            if not several:
                return False
            i += several
        else:
            if number != last and number and not ordered(thread, block, number):
                return False
            last = number
            i += 1
    return True


@cuda.jit(device=True)
def same_moment(block, one, other):
    """Whether two records are of one thread since one release: the first is the one to keep."""
    table = peek(peek(block + 8 * at.LAUNCH) + 8 * at.TABLE)
    one, other = table + 16 * one, table + 16 * other
    return peek32(one) == peek32(other) and peek32(one + 4 * at.CLOCK) == peek32(other + 4 * at.CLOCK)


def read(thread, block, region, address, size, site, read_only):
    """A read of ``size`` bytes, through the read-only path if ``read_only``."""
    if region == 0:
        return 0
    reads = peek(thread + 8 * at.READS)
    offset = address - peek(region + 8 * at.BASE)
    if reads >= LIMIT or offset < 0 or offset + size > peek(region + 8 * at.LIMIT):
        return 0
    if peek(region + 8 * at.TRACED):
        number = one_number(peek(region + 8 * at.WRITTEN) + 4 * offset, size)
        if number < 0 or number != at.NOTHING and (read_only or not ordered(thread, block, number)):
            return 0
        readers = peek(region + 8 * at.READ_BY) + 4 * offset
        reader = one_number(readers, size)
        if reader < 0:
            return 0
        own = own_record(thread, block, site)
        if own < 0:
            return 0
        if reader and not ordered(thread, block, reader):
            if not join_readers(thread, block, offset, size, readers, reader, own):
                return 0
        elif reader == 0 or not same_moment(block, reader, own):
            set_numbers(readers, size, own)
        if read_only:
            poke(region + 8 * at.HAS_READ_ONLY, 1)
            set_numbers(peek(region + 8 * at.READ_ONLY) + 4 * offset, size, own)
    else:
        poke(region + 8 * at.WAS_READ, 1)
    poke(thread + 8 * at.READS, reads + 1)
    return peek(region + 8 * at.DATA) + offset


@cuda.jit(device=True)
def may_write(thread, block, region, address, size):
    """Whether all earlier accesses are ordered before a write."""
    if region == 0:
        return False
    offset = address - peek(region + 8 * at.BASE)
    if offset < 0 or offset + size > peek(region + 8 * at.LIMIT):
        return False
    if not peek(region + 8 * at.TRACED) or not peek(region + 8 * at.WRITEABLE):
        return False
    if peek(region + 8 * at.HAS_READ_ONLY):
        if one_number(peek(region + 8 * at.READ_ONLY) + 4 * offset, size) != 0:
            return False
    if not writers_ordered(thread, block, peek(region + 8 * at.WRITTEN) + 4 * offset, size):
        return False
    return readers_ordered(thread, block, offset, peek(region + 8 * at.READ_BY) + 4 * offset, size)


@cuda.jit(device=True)
def leave_record(block, region, address, size, number):
    """The number of a write on its bytes, which nobody has read since."""
    offset = address - peek(region + 8 * at.BASE)
    set_numbers(peek(region + 8 * at.WRITTEN) + 4 * offset, size, number)
    readers, last = peek(region + 8 * at.READ_BY) + 4 * offset, 0
    for i in range(size):
        reader = peek32(readers + 4 * i)
        if reader:
            if reader >= at.FIRST_SET and reader != last:
                free_set(block, reader)
            last = reader
            poke32(readers + 4 * i, 0)


def write(thread, block, region, address, size, site):
    """A write of ``size`` bytes."""
    if not may_write(thread, block, region, address, size):
        return 0
    own = own_record(thread, block, site)
    if own < 0:
        return 0
    leave_record(block, region, address, size, own)
    poke(block + 8 * at.PROGRESS, peek(block + 8 * at.PROGRESS) + 1)
    return peek(region + 8 * at.DATA) + address - peek(region + 8 * at.BASE)


def overwrite(thread, block, region, address, size, number):
    """The same for a write that has a record, of this number; 1, or 0 where Python has to look."""
    if not may_write(thread, block, region, address, size):
        return 0
    leave_record(block, region, address, size, number)
    return 1

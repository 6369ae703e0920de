"""The checks of plain reads and writes that machine code makes by itself.

They are compiled by ``word_functions``, and do what ``ShadowMemory.on_read`` and
``on_write`` do in the most frequent cases: all bytes have one record, of a thread of this block whose
access is ordered before. They return the address of the bytes, or 0: then Python has to look, and nothing has
been changed.
"""

from ...memory.shadow_memory import MANY_READS
from . import layout as at
from .word_functions import get, get32, put, put32

LIMIT = MANY_READS


def find(block, address, size):
    """The row of the array in global memory that has these bytes; 0 where Python has to look."""
    row = get(get(block, at.LAUNCH), at.REGIONS)
    last = row + 8 * at.REGION_WORDS * get(get(block, at.LAUNCH), at.REGION_COUNT)
    while row < last:
        if address < get(row, at.STOP) and address >= get(row, at.BASE):
            inside = address + size <= get(row, at.STOP) and address & (size - 1) == 0
            return row if inside and get(row, at.PLAIN) else 0
        row += 8 * at.REGION_WORDS
    return 0


def one_number(first, size):
    """The number that ``size`` bytes have in common, -1 if they differ; that of the first is at ``first``."""
    number = get32(first, 0)
    for i in range(1, size):
        if get32(first, i) != number:
            return -1
    return number


def ordered(thread, block, number):
    """Whether what a record tells of is ordered before this thread."""
    if number >= at.FIRST_SET:
        return False
    record = get(get(block, at.LAUNCH), at.TABLE) + 16 * number
    if get32(record, at.OF_BLOCK) != get(block, at.BLOCK):
        return False
    owner = get32(record, 0)
    if owner == get(thread, at.TID):
        return True
    return get32(get(thread, at.SEEN), owner) >= get32(record, at.CLOCK)


def fenced(thread, block, number):
    """Whether a read is over for the copy engine, too: that of a thread past a proxy fence."""
    if number >= at.FIRST_SET:
        return False
    record = get(get(block, at.LAUNCH), at.TABLE) + 16 * number
    owner = get32(record, 0)
    if get32(record, at.OF_BLOCK) != get(block, at.BLOCK) or owner >= get(block, at.SIZE):
        return ordered(thread, block, number)
    return get32(get(thread, at.SEEN) + 2 * get(block, at.WIDTH), owner) >= get32(record, at.CLOCK)


def own_record(thread, block, site):
    """The number of the record of what this thread does at ``site`` now; -1 if there is no room for it."""
    owner = get(thread, at.TID)
    clock = get32(get(thread, at.SEEN), owner)
    last = get(thread, at.CACHE) + 4 * site
    number = get32(last, 0)
    table = get(get(block, at.LAUNCH), at.TABLE)
    if number and get32(table + 16 * number, at.CLOCK) == clock:
        return number
    number = get(get(block, at.LAUNCH), at.COUNT)
    if number >= get(get(block, at.LAUNCH), at.ROOM):
        return -1
    put(get(block, at.LAUNCH), at.COUNT, number + 1)
    put32(last, 0, number)
    record = table + 16 * number
    put32(record, 0, owner)
    put32(record, at.CLOCK, clock)
    put32(record, at.SITE, site)
    put32(record, at.OF_BLOCK, get(block, at.BLOCK))
    return number


def set_numbers(first, size, number):
    for i in range(size):
        put32(first, i, number)


def set_row(block, number):
    """The row of a set of readers."""
    launch = get(block, at.LAUNCH)
    return get(launch, at.SETS) + get(launch, at.SET_BYTES) * (number - at.FIRST_SET)


def add_reader(block, row, owner, number):
    """Note the record of a thread in a set."""
    slot = row + 4 * (at.SET_THREADS + owner)
    if not get32(slot, 0):
        length, threads = get32(row, at.SET_LENGTH), get(block, at.SIZE)
        put32(row, at.SET_THREADS + threads + length, owner)
        put32(row, at.SET_LENGTH, length + 1)
    put32(slot, 0, number)


def new_set(block):
    """The number of an empty set, 0 if there is none."""
    launch = get(block, at.LAUNCH)
    free = get(launch, at.FREE_COUNT)
    if free:
        put(launch, at.FREE_COUNT, free - 1)
        return get32(get(launch, at.FREE), free - 1)
    count = get(launch, at.SET_COUNT)
    if count >= get(launch, at.SET_ROOM):
        return 0
    put(launch, at.SET_COUNT, count + 1)
    return at.FIRST_SET + count


def join_readers(thread, block, offset, size, readers, reader, own):
    """Add this thread's record to the readers of some bytes, whose number is ``reader``; false if it cannot."""
    index, owner = get(block, at.BLOCK), get(thread, at.TID)
    if reader >= at.FIRST_SET:
        row = set_row(block, reader)
        if get32(row, 0) == index and get32(row, at.SET_FIRST) == offset:
            if get32(row, at.SET_SIZE) == size:
                add_reader(block, row, owner, own)
                return True
    number = new_set(block)
    if not number:
        return False
    row = set_row(block, number)
    put32(row, 0, index)
    put32(row, at.SET_FIRST, offset)
    put32(row, at.SET_SIZE, size)
    put32(row, at.SET_BEFORE, reader)
    if reader < at.FIRST_SET:
        record = get(get(block, at.LAUNCH), at.TABLE) + 16 * reader
        if get32(record, at.OF_BLOCK) == index and get32(record, 0) < get(block, at.SIZE):
            put32(row, at.SET_BEFORE, 0)
            add_reader(block, row, get32(record, 0), reader)
    add_reader(block, row, owner, own)
    set_numbers(readers, size, number)
    return True


def is_over(thread, block, number, by_engine):
    """Whether a read is ordered before a write of this thread, or of a copy that it issues."""
    if by_engine:
        return fenced(thread, block, number)
    return ordered(thread, block, number)


def all_ordered(thread, block, first, room, number, by_engine):
    """The size of a set of readers that begins at byte ``first``, all of whose reads are over;
    0 if they are not, or if it is another set, or has more than ``room`` bytes."""
    row = set_row(block, number)
    size = get32(row, at.SET_SIZE)
    if get32(row, 0) != get(block, at.BLOCK) or get32(row, at.SET_BEFORE):
        return 0
    if get32(row, at.SET_FIRST) != first or size > room:
        return 0
    length, slots = get32(row, at.SET_LENGTH), row + 4 * at.SET_THREADS
    order = slots + 4 * get(block, at.SIZE)
    for i in range(length):
        if not is_over(thread, block, get32(slots, get32(order, i)), by_engine):
            return 0
    return size


def free_set(block, number):
    """Nobody needs a set any more."""
    row, launch = set_row(block, number), get(block, at.LAUNCH)
    slots = row + 4 * at.SET_THREADS
    order = slots + 4 * get(block, at.SIZE)
    for i in range(get32(row, at.SET_LENGTH)):
        put32(slots, get32(order, i), 0)
    put32(row, at.SET_LENGTH, 0)
    free = get(launch, at.FREE_COUNT)
    put32(get(launch, at.FREE), free, number)
    put(launch, at.FREE_COUNT, free + 1)


def writers_ordered(thread, block, first, size):
    """Whether all writers of some bytes, whose numbers are at ``first``, are ordered before this thread."""
    last = at.NOTHING
    for i in range(size):
        number = get32(first, i)
        if number != last:
            if number == at.OUTSIDE_NUMBER or number > at.OUTSIDE_NUMBER and not ordered(thread, block, number):
                return False
            last = number
    return True


def readers_ordered(thread, block, offset, first, size, by_engine):
    """Whether all reads of some bytes, which begin at ``offset``, are over."""
    last, i = 0, 0
    while i < size:
        number = get32(first, i)
        if number >= at.FIRST_SET:
            several = all_ordered(thread, block, offset + i, size - i, number, by_engine)
            if not several:
                return False
            i += several
        else:
            if number != last and number and not is_over(thread, block, number, by_engine):
                return False
            last = number
            i += 1
    return True


def same_moment(block, one, other):
    """Whether two records are of one thread since one release: the first is the one to keep."""
    table = get(get(block, at.LAUNCH), at.TABLE)
    one, other = table + 16 * one, table + 16 * other
    return get32(one, 0) == get32(other, 0) and get32(one, at.CLOCK) == get32(other, at.CLOCK)


def read(thread, block, region, address, size, site, read_only):
    """A read of ``size`` bytes, through the read-only path if ``read_only``."""
    if region == 0:
        return 0
    reads = get(thread, at.READS)
    offset = address - get(region, at.BASE)
    if reads >= LIMIT or offset < 0 or offset + size > get(region, at.LIMIT):
        return 0
    if get(region, at.TRACED):
        number = one_number(get(region, at.WRITTEN) + 4 * offset, size)
        if number < 0 or number != at.NOTHING and (read_only or not ordered(thread, block, number)):
            return 0
        readers = get(region, at.READ_BY) + 4 * offset
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
            put(region, at.HAS_READ_ONLY, 1)
            set_numbers(get(region, at.READ_ONLY) + 4 * offset, size, own)
    else:
        put(region, at.WAS_READ, 1)
    put(thread, at.READS, reads + 1)
    return get(region, at.DATA) + offset


def may_write(thread, block, region, address, size, by_engine):
    """Whether all earlier accesses are ordered before a write, of the copy engine if ``by_engine``."""
    if region == 0:
        return False
    offset = address - get(region, at.BASE)
    if offset < 0 or offset + size > get(region, at.LIMIT):
        return False
    if not get(region, at.TRACED) or not get(region, at.WRITEABLE):
        return False
    if get(region, at.HAS_READ_ONLY):
        if one_number(get(region, at.READ_ONLY) + 4 * offset, size) != 0:
            return False
    if not writers_ordered(thread, block, get(region, at.WRITTEN) + 4 * offset, size):
        return False
    return readers_ordered(thread, block, offset, get(region, at.READ_BY) + 4 * offset, size, by_engine)


def leave_record(block, region, address, size, number):
    """The number of a write on its bytes, which nobody has read since."""
    offset = address - get(region, at.BASE)
    set_numbers(get(region, at.WRITTEN) + 4 * offset, size, number)
    readers, last = get(region, at.READ_BY) + 4 * offset, 0
    for i in range(size):
        reader = get32(readers, i)
        if reader:
            if reader >= at.FIRST_SET and reader != last:
                free_set(block, reader)
            last = reader
            put32(readers, i, 0)


def write(thread, block, region, address, size, site):
    """A write of ``size`` bytes."""
    if not may_write(thread, block, region, address, size, 0):
        return 0
    own = own_record(thread, block, site)
    if own < 0:
        return 0
    leave_record(block, region, address, size, own)
    put(block, at.PROGRESS, get(block, at.PROGRESS) + 1)
    return get(region, at.DATA) + address - get(region, at.BASE)


def overwrite(thread, block, region, address, size, number, by_engine):
    """The same for a write that has a record, of this number; 1, or 0 where Python has to look."""
    if not may_write(thread, block, region, address, size, by_engine):
        return 0
    leave_record(block, region, address, size, number)
    return 1

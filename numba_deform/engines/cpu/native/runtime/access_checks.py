"""The checks of plain reads and writes that machine code makes by itself.

They are compiled by ``word_functions``, and do what ``ShadowMemory.on_read`` and ``on_write`` do in the most
frequent cases: all bytes have one record, of a thread of this block whose access is ordered before. They
return the address of the bytes, or 0: then Python has to look, and nothing has been changed.
"""

from ...memory.shadow_memory import MANY_READS
from . import layout as at
from .word_functions import get32, put32


def find(block, address, size):
    """The row of the array in global memory that has these bytes; 0 where Python has to look."""
    row = block.launch.regions
    last = row + 8 * at.REGION_WORDS * block.launch.region_count
    while row < last:
        if address < row.stop and address >= row.base:
            inside = address + size <= row.stop and address & (size - 1) == 0
            return row if inside and row.plain else 0
        row += 8 * at.REGION_WORDS
    return 0


def one_number(first, size):
    """The number that ``size`` bytes have in common, -1 if they differ; that of the first is at ``first``."""
    number = get32(first, 0)
    for i in range(1, size):
        if get32(first, i) != number:
            return -1
    return number


def record_of(block, number):
    """The row of a record."""
    return block.launch.table + 16 * number


def ordered(thread, block, number):
    """Whether what a record tells of is ordered before this thread."""
    record = record_of(block, number)
    if number >= at.FIRST_SET or record.of_block != block.index:
        return False
    return record.owner == thread.tid or get32(thread.seen, record.owner) >= record.clock


def fenced(thread, block, number):
    """Whether a read is over for the copy engine, too: that of a thread past a proxy fence."""
    record = record_of(block, number)
    if number >= at.FIRST_SET or record.of_block != block.index or record.owner >= block.size:
        return ordered(thread, block, number)
    return get32(thread.seen + 2 * block.width, record.owner) >= record.clock


def own_record(thread, block, site):
    """The number of the record of what this thread does at ``site`` now; -1 if there is no room for it."""
    launch, clock = block.launch, get32(thread.seen, thread.tid)
    number = get32(thread.cache, site)
    if number and record_of(block, number).clock == clock:
        return number
    number = launch.count
    if number >= launch.room:
        return -1
    launch.count = number + 1
    put32(thread.cache, site, number)
    record = record_of(block, number)
    record.owner, record.clock, record.site, record.of_block = thread.tid, clock, site, block.index
    return number


def set_numbers(first, size, number):
    for i in range(size):
        put32(first, i, number)


def set_row(block, number):
    """The row of a set of readers."""
    launch = block.launch
    return launch.sets + launch.set_bytes * (number - at.FIRST_SET)


def add_reader(block, row, owner, number):
    """Note the record of a thread in a set."""
    slot = row + 4 * (at.SET_THREADS + owner)
    if not get32(slot, 0):
        put32(row, at.SET_THREADS + block.size + row.set_length, owner)
        row.set_length += 1
    put32(slot, 0, number)


def new_set(block):
    """The number of an empty set, 0 if there is none."""
    launch = block.launch
    if launch.free_count:
        launch.free_count -= 1
        return get32(launch.free, launch.free_count)
    if launch.set_count >= launch.set_room:
        return 0
    launch.set_count += 1
    return at.FIRST_SET + launch.set_count - 1


def join_readers(thread, block, offset, size, readers, reader, own):
    """Add this thread's record to the readers of some bytes, whose number is ``reader``; false if it cannot."""
    index, owner = block.index, thread.tid
    if reader >= at.FIRST_SET:
        row = set_row(block, reader)
        if row.set_block == index and row.set_first == offset and row.set_size == size:
            add_reader(block, row, owner, own)
            return True
    number = new_set(block)
    if not number:
        return False
    row = set_row(block, number)
    row.set_block, row.set_first, row.set_size, row.set_before = index, offset, size, reader
    record = record_of(block, reader)
    if reader < at.FIRST_SET and record.of_block == index and record.owner < block.size:
        row.set_before = 0
        add_reader(block, row, record.owner, reader)
    add_reader(block, row, owner, own)
    set_numbers(readers, size, number)
    return True


def is_over(thread, block, number, by_engine):
    """Whether a read is ordered before a write of this thread, or of a copy that it issues."""
    return fenced(thread, block, number) if by_engine else ordered(thread, block, number)


def all_ordered(thread, block, first, room, number, by_engine):
    """The size of a set of readers that begins at byte ``first``, all of whose reads are over;
    0 if they are not, or if it is another set, or has more than ``room`` bytes."""
    row = set_row(block, number)
    size = row.set_size
    if row.set_block != block.index or row.set_before or row.set_first != first or size > room:
        return 0
    slots = row + 4 * at.SET_THREADS
    order = slots + 4 * block.size
    for i in range(row.set_length):
        if not is_over(thread, block, get32(slots, get32(order, i)), by_engine):
            return 0
    return size


def free_set(block, number):
    """Nobody needs a set any more."""
    row, launch = set_row(block, number), block.launch
    slots = row + 4 * at.SET_THREADS
    order = slots + 4 * block.size
    for i in range(row.set_length):
        put32(slots, get32(order, i), 0)
    row.set_length = 0
    put32(launch.free, launch.free_count, number)
    launch.free_count += 1


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
    one, other = record_of(block, one), record_of(block, other)
    return one.owner == other.owner and one.clock == other.clock


def read(thread, block, region, address, size, site, read_only):
    """A read of ``size`` bytes, through the read-only path if ``read_only``."""
    if region == 0:
        return 0
    offset = address - region.base
    if thread.reads >= MANY_READS or offset < 0 or offset + size > region.limit:
        return 0
    if region.traced:
        number = one_number(region.written + 4 * offset, size)
        if number < 0 or number != at.NOTHING and (read_only or not ordered(thread, block, number)):
            return 0
        readers = region.read_by + 4 * offset
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
            region.has_read_only = 1
            set_numbers(region.read_only + 4 * offset, size, own)
    else:
        region.was_read = 1
    thread.reads += 1
    return region.data + offset


def may_write(thread, block, region, address, size, by_engine):
    """Whether all earlier accesses are ordered before a write, of the copy engine if ``by_engine``."""
    if region == 0:
        return False
    offset = address - region.base
    if offset < 0 or offset + size > region.limit:
        return False
    if not region.traced or not region.writeable:
        return False
    if region.has_read_only:
        if one_number(region.read_only + 4 * offset, size) != 0:
            return False
    if not writers_ordered(thread, block, region.written + 4 * offset, size):
        return False
    return readers_ordered(thread, block, offset, region.read_by + 4 * offset, size, by_engine)


def leave_record(block, region, address, size, number):
    """The number of a write on its bytes, which nobody has read since."""
    offset = address - region.base
    set_numbers(region.written + 4 * offset, size, number)
    readers, last = region.read_by + 4 * offset, 0
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
    block.progress += 1
    return region.data + address - region.base


def overwrite(thread, block, region, address, size, number, by_engine):
    """The same for a write that has a record, of this number; 1, or 0 where Python has to look."""
    if not may_write(thread, block, region, address, size, by_engine):
        return 0
    leave_record(block, region, address, size, number)
    return 1

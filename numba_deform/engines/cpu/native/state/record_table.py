"""The records of bytes as arrays of numbers, which machine code reads and Python sees as its own lists.

Each record has a number, and a row in a table: owner, clock, site and block. A record that is no plain access
of a thread, or of a copy that has landed, has a row that machine code leaves to Python.
"""

import numpy as np

from ...memory.access_records import (
    ATOMIC,
    BLOCK,
    CLOCK,
    INITIAL,
    OUTSIDE,
    OWNER,
    UNWRITTEN,
    Copy,
    ManyReads,
    Write,
    readers,
)
from ...memory.restart import Bailout
from ..runtime import layout
from .rows import fill

ROOM = 1 << 16  # records that there is room for at first
FULL = 1 << 22  # records after which those that nothing holds are looked for
SET_ROOM = 1 << 24  # numbers in all sets of readers: memory that nobody touches costs nothing


class Table:
    """All records of a launch; ``words`` is the launch's row, ``sites`` the places in its kernel."""

    def __init__(self, words, sites, threads):
        self.words, self.sites, self.blocks = words, sites, {}
        self.rows = np.zeros((0, 4), np.int32)
        # What has a number must not be gone: another object could have its id.
        self.writers, self.readers = {0: INITIAL, 1: UNWRITTEN, 2: OUTSIDE}, {0: None}
        self.numbers = {id(obj): number for number, obj in self.writers.items()}
        self.spare = []  # zeros that ended blocks had for the bytes of their shared memory
        words[layout.COUNT] = layout.FIRST_NUMBER
        self.full = FULL
        self.make_room(ROOM)
        self.rows[:, layout.OF_BLOCK] = layout.NOBODY
        self.threads, width = threads, layout.SET_THREADS + 2 * threads
        self.sets = np.zeros((min(1 << 17, SET_ROOM // width), width), np.int32)
        self.free = np.zeros(len(self.sets), np.int32)
        fill(words, sets=self.sets, set_bytes=4 * width, set_room=len(self.sets), free=self.free)

    def make_room(self, size):
        """Space for so many records."""
        if size > layout.FIRST_SET:
            raise Bailout
        rows = np.zeros((size, 4), np.int32)
        rows[: len(self.rows)] = self.rows
        self.rows, self.cells = rows, memoryview(rows.reshape(-1))
        fill(self.words, table=rows, room=size)

    def number_of(self, record):
        """The number of a Write, of a reader, or of None."""
        if record is None:
            return 0
        number = self.numbers.get(id(record))
        if number is None:
            number = self.words[layout.COUNT]
            self.words[layout.COUNT] = number + 1
            if number >= len(self.rows):
                self.make_room(2 * len(self.rows))
            self.numbers[id(record)] = number
            (self.writers if isinstance(record, Write) else self.readers)[number] = record
            self.describe(number, record)
        return number

    def describe(self, number, record):
        """Fill the row of a record that Python has made."""
        owner = clock = 0
        block = layout.NOBODY
        if type(record) in (Write, Copy):
            if record.owner >= 0 and record.block is not None:
                owner, clock, block = record.owner, record.clock, record.block.index
        elif type(record) is tuple and not record[ATOMIC]:
            owner, clock, block = record[OWNER], record[CLOCK], record[BLOCK].index
        cells, first = self.cells, 4 * number  # quicker than a row of NumPy's
        cells[first], cells[first + 1], cells[first + 2], cells[first + 3] = owner, clock, 0, block

    def landed(self, copy):
        """A copy is an epoch like any other now."""
        if id(copy) in self.numbers:
            self.describe(self.numbers[id(copy)], copy)

    def writer(self, number):
        """The Write of a number."""
        record = self.writers.get(number)
        if record is None:
            owner, clock, site, block = self.rows[number].tolist()
            record = Write(owner, clock, owner, self.sites[site], self.blocks[block])
            self.remember(self.writers, number, record)
        elif type(record) is Copy and self.rows[number, layout.OF_BLOCK] < 0:
            self.describe(number, record)  # it may have landed
        return record

    def reader(self, number):
        """The reader of a number, as ``ShadowMemory.read_by`` has it."""
        record = self.readers.get(number)
        if record is None and number >= layout.FIRST_SET:
            return self.many(number)
        if record is None and number:
            owner, clock, site, block = self.rows[number].tolist()
            record = owner, clock, owner, self.sites[site], self.blocks[block], False
            self.remember(self.readers, number, record)
        return record

    def many(self, number):
        """The readers of a set, which is Python's from now on."""
        row = self.sets[number - layout.FIRST_SET]
        _, first, size, before, length = row[: layout.SET_THREADS].tolist()
        order = row[layout.SET_THREADS + self.threads :][:length]
        records = row[layout.SET_THREADS + order].tolist()
        reads = [*readers(self.reader(before)), *map(self.reader, records)]
        row[layout.SET_BLOCK] = layout.NOBODY
        made = ManyReads(reads, first, first + size)
        self.remember(self.readers, number, made)
        return made

    def take_back(self, block, written, read_by):
        """A block's memory has gone. What held its numbers is for the next one. The sets among those are free
        again: those of its own threads that Python has not seen."""
        numbers = read_by.array[: len(read_by)]
        sets = np.unique(numbers[numbers >= layout.FIRST_SET])
        rows = sets - layout.FIRST_SET
        own = self.sets[rows, layout.SET_BLOCK] == block
        sets, rows = sets[own], rows[own]
        self.sets[rows, layout.SET_LENGTH :] = 0
        count = self.words[layout.FREE_COUNT]
        self.free[count : count + len(sets)] = sets
        self.words[layout.FREE_COUNT] = count + len(sets)
        for each in (written, read_by):
            each.array[: len(each)] = 0
            self.spare.append(each.array)

    def sweep(self, lists):
        """Forget the records that neither ``lists``, of RecordNumbers, nor sets hold any more, most of them of
        blocks that have ended; the others are numbered anew."""
        sets, count = self.sets[: self.words[layout.SET_COUNT]], self.words[layout.COUNT]
        members = sets[:, layout.SET_THREADS : layout.SET_THREADS + self.threads]
        arrays = [sets[:, layout.SET_BEFORE], members, *(each.array[: len(each)] for each in lists)]
        held = np.arange(count) < layout.FIRST_NUMBER
        for array in arrays:
            held[array[array < layout.FIRST_SET]] = True
        new = np.cumsum(held, dtype=np.int32) - 1
        for array in arrays:
            array[...] = np.where(array < layout.FIRST_SET, new[np.minimum(array, count - 1)], array)
        left = self.words[layout.COUNT] = int(new[-1]) + 1
        self.rows[:left] = self.rows[:count][held]
        self.full = left + max(FULL, sum(map(len, arrays)))
        for known in (self.writers, self.readers):
            there = [(n, record) for n, record in known.items() if n >= layout.FIRST_SET or held[n]]
            known.clear()
            known.update((n if n >= layout.FIRST_SET else int(new[n]), record) for n, record in there)
        self.numbers = {id(r): n for known in (self.readers, self.writers) for n, r in known.items()}

    def remember(self, known, number, record):
        known[number] = record
        self.numbers[id(record)] = number


def is_one(numbers):
    """Whether an array's numbers are all the same; it is not empty."""
    return not np.count_nonzero(numbers != numbers[0])


class RecordNumbers:
    """A list of records, for as many bytes, that holds their numbers in ``array``."""

    def __init__(self, table, record, size, length=0):
        self.table, self.record, self.length = table, record, length
        fits = table.spare and len(table.spare[-1]) == size
        self.array = table.spare.pop() if fits else np.zeros(size, np.int32)

    def __len__(self):
        return self.length

    def __getitem__(self, where):
        if isinstance(where, slice):
            first, stop, _ = where.indices(self.length)
            numbers = self.array[first:stop]
            if len(numbers) and is_one(numbers):
                return [self.record(int(numbers[0]))] * len(numbers)
            numbers = numbers.tolist()
            known = {number: self.record(number) for number in set(numbers)}
            return [known[number] for number in numbers]
        return self.record(int(self.array[: self.length][where]))

    def __setitem__(self, where, records):
        first, stop, _ = where.indices(self.length)
        one = records[0]
        if records.count(one) == len(records):
            self.array[first:stop] = self.table.number_of(one)
        else:
            known = {id(record): self.table.number_of(record) for record in records}
            self.array[first:stop] = [known[id(record)] for record in records]

    def __iter__(self):
        for number in dict.fromkeys(self.array[: self.length].tolist()):
            yield self.record(number)

    def __iadd__(self, records):
        first, self.length = self.length, self.length + len(records)
        if records:
            self[first : self.length] = records
        return self

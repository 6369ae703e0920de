"""Shared memory and arrays in global memory whose records machine code can read. ``NativeBlock`` and
``RequestHandler`` make them."""

import numpy as np

from ...memory.access_records import Copy, Write, is_async
from ...memory.global_memory import GlobalRegion
from ...memory.shadow_memory import MANY_READS
from ...memory.shared_memory import SharedMemory
from ..runtime import layout
from .record_table import RecordNumbers, is_one
from .rows import fill


def _numbers(word, kind):
    """The property of a list of records whose numbers lie at ``word`` of the row."""
    name = f"_numbers_{word}"

    def get(self):
        return getattr(self, name)

    def put(self, records):
        if not isinstance(records, RecordNumbers):
            numbers = RecordNumbers(self.table, getattr(self.table, kind), self.room or len(records))
            numbers += records
            records = numbers
        setattr(self, name, records)
        self.row[word], self.row[layout.LIMIT] = records.array.ctypes.data, len(records)

    return property(get, put)


def _flag(word):
    """The property of a truth that is a word of the row."""
    return property(lambda self: bool(self.row[word]), lambda self, it: self.row.__setitem__(word, int(it)))


class Checked:
    """Of both: what Python does there is checked by machine code first, too. So a set of readers stays one that
    machine code adds to: Python's own check would take it over."""

    def on_read(self, thread, address, size):
        if thread.reads >= MANY_READS:
            thread.many_reads()
            thread.reads -= 1  # the next check counts this one
        read, who = thread.block.machine.read, (thread.address, thread.block.address)
        if not read(*who, self.address, address, size, thread.place, 0):
            super().on_read(thread, address, size)

    def on_write(self, thread, address, size, record):
        if type(record) in (Write, Copy):
            overwrite, who = thread.block.machine.overwrite, (thread.address, thread.block.address)
            number = self.table.number_of(record)
            if overwrite(*who, self.address, address, size, number, is_async(record)):
                return
        super().on_write(thread, address, size, record)

    def record_lists(self):
        return [self.written, self.read_by]

    def has(self, record, first, stop):
        return self.table.number_of(record) in self.written.array[first:stop].tolist()

    def writes(self, first, stop):
        numbers = self.written.array[first:stop]
        if is_one(numbers):
            return [self.written.record(int(numbers[0]))]
        return super().writes(first, stop)


class NativeShared(Checked, SharedMemory):
    """A block's shared memory; ``row`` is its row of words."""

    written, read_by = _numbers(layout.WRITTEN, "writer"), _numbers(layout.READ_BY, "reader")

    def __init__(self, block, dynamic_bytes):
        row = np.zeros(layout.REGION_WORDS, np.int64)
        self.table, self.row, self.address = block.table, memoryview(row), row.ctypes.data
        self.room = 1 << 18  # more than a block can have, guards included
        super().__init__(block, dynamic_bytes)
        fill(block.words, shared=row)
        fill(row, data=np.frombuffer(self.data, np.uint8), traced=True, writeable=True, plain=True)


    def records(self):
        """Less those of threads that Python has not seen, which are plain."""
        known, numbers = self.table.writers, self.written.array[: len(self.written)]
        return [known[number] for number in dict.fromkeys(numbers.tolist()) if number in known]


class NativeRegion(Checked, GlobalRegion):
    """An array in global memory. Each is without records until it is written: to start over then costs less
    than the records of all that are read only."""

    ALWAYS, room = 0, 0
    written, read_by = _numbers(layout.WRITTEN, "writer"), _numbers(layout.READ_BY, "reader")
    traced, was_read = _flag(layout.TRACED), _flag(layout.WAS_READ)
    # Machine code notes reads through the read-only path without a word: each write by Python looks for them.
    watched = property(lambda self: True, lambda self, it: None)

    def __init__(self, arrays, traces, table, row):
        self.table, self.row, self.address = table, memoryview(row), row.ctypes.data
        super().__init__(arrays, traces)
        fill(row, base=self.base, stop=self.stop, data=self.base, limit=self.size)
        fill(row, writeable=not self.bytes.readonly, plain=len(arrays) == 1)

    def _trace(self):
        super()._trace()
        if not self.row[layout.READ_ONLY]:
            self.paths = RecordNumbers(self.table, self.table.reader, self.size, self.size)
            self.row[layout.READ_ONLY] = self.paths.array.ctypes.data

    def record_lists(self):
        return [*super().record_lists(), *([self.paths] if self.row[layout.READ_ONLY] else ())]

    def _untouched(self):
        kinds = self.table.writer, self.table.reader  # 0 is INITIAL, and nobody
        return [RecordNumbers(self.table, kind, self.size, self.size) for kind in kinds]

    def _unset(self, first, stop):
        self.written.array[first:stop] = layout.UNWRITTEN_NUMBER

    def garbage(self):
        return _ranges(self.written.array == layout.UNWRITTEN_NUMBER)

    @staticmethod
    def touched(records):
        return _ranges(records.array > layout.UNWRITTEN_NUMBER) if len(records) else []

    @property
    def read_only(self):
        return self.paths if self.row[layout.HAS_READ_ONLY] else []

    @read_only.setter
    def read_only(self, records):
        self.row[layout.HAS_READ_ONLY] = bool(records)


def _ranges(those):
    """[(first, stop)] of the stretches that an array of truths says."""
    return np.flatnonzero(np.diff(those.astype(np.int8), prepend=0, append=0)).reshape(-1, 2).tolist()

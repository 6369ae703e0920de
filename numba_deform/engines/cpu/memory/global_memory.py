"""The arrays in global memory that a launch may touch, with their records. ``Execution`` has them, and
threads find a region by its address."""

import bisect
import ctypes
import math
from typing import NamedTuple

import numpy as np

from ... import faults
from .access_records import BLOCK, CLOCK, INITIAL, OWNER, UNWRITTEN, Reduction, Write, stretches, writers
from .cycle_costs import COST
from .restart import Restart
from .scalars import Layout, bounds_of
from .shadow_memory import ShadowMemory
from .vector_clocks import TICKET, covers


class Extent(NamedTuple):
    """One array in global memory, by address; ``mapped``: known through a tensor map. ``view``: its Layout, of
    one that a kernel knows by index."""

    start: int
    stop: int
    writeable: bool
    name: str
    mapped: bool = False
    view: Layout | None = None

    @classmethod
    def of(cls, array, name):
        """That of a NumPy array."""
        view = None if array.dtype.names else Layout.of(array)
        return cls(*bounds_of(array), array.flags.writeable, name, False, view)

    @classmethod
    def behind(cls, tensor, name):
        """That of the tensor behind a tensor map."""
        start, writeable = tensor.address, tensor.array.flags.writeable
        return cls(start, start + tensor.extent, writeable, name, True)


class GlobalRegion(ShadowMemory):
    """One array in global memory, or several that overlap.

    Small ones, and those that are written, carry records. Where a large one turns out to be written
    after it has been read, the schedule starts over with records from the start.
    """

    ALWAYS, cost = 4096, COST.global_access
    unset = (
        "What cuda.device_array and its like give holds garbage until something is written.",
        "Set it before: cuda.to_device(np.zeros(..)) in place of cuda.device_array; or have the kernel write "
        "each element before it reads it.",
    )  # rule and cure of an UninitialisedRead

    def __init__(self, arrays, traces):
        """``arrays``: overlapping ones, the first with the lowest address."""
        super().__init__(arrays[0].start)
        self.stop = max(array.stop for array in arrays)
        self.size = self.stop - self.base
        self.arrays, self.traces = arrays, traces
        # What lies behind a tensor map has no name of its own, where it is an argument as well.
        named = [array for array in arrays if not array.mapped] or arrays
        self.name = "/".join(dict.fromkeys(array.name for array in named))
        # The bytes by address: of several arrays none need hold them all.
        content = np.frombuffer((ctypes.c_ubyte * self.size).from_address(self.base), np.uint8)
        content.flags.writeable = any(array.writeable for array in arrays)
        self.words_of(content)
        self.traced, self.watched, self.was_read = False, True, False
        self.read_only = []  # of each byte the last reader through that path, or None
        if self.size <= self.ALWAYS or self.base in traces:
            self._trace()

    def _trace(self):
        if self.traced:
            return
        if self.was_read:
            self.traces.add(self.base)
            raise Restart
        self.traced, self.watched = True, self.bytes.readonly
        self.written, self.read_by = self._untouched()

    def _untouched(self):
        """The records of the writes and of the reads of bytes that nobody has accessed."""
        return [INITIAL] * self.size, [None] * self.size

    def forget(self, unset):
        """What lies in these ranges nobody has set: it holds garbage until the kernel writes something."""
        for start, stop in unset:
            a, b = max(start - self.base, 0), min(stop - self.base, self.size)
            if a < b:
                self._trace()
                self._unset(a, b)

    def _unset(self, first, stop):
        self.written[first:stop] = [UNWRITTEN] * (stop - first)

    def garbage(self):
        """Ranges (first, stop) of the bytes that still hold it."""
        return [(lo, hi) for lo, hi, record in stretches(self.written[:]) if record is UNWRITTEN]

    @staticmethod
    def touched(records):
        """Ranges (first, stop) of those that tell of an access."""
        untold = {id(None), id(INITIAL), id(UNWRITTEN)}
        return [(lo, hi) for lo, hi, record in stretches(records[:]) if id(record) not in untold]

    def has_more_than(self, count):
        """Whether it is one array with more elements than that."""
        view = self.arrays[0].view
        return len(self.arrays) == 1 and view is not None and math.prod(view.shape) > count

    def holds(self, address, size):
        """Whether one of the arrays has all these bytes; several may have some."""
        arrays = self.arrays
        return len(arrays) == 1 or any(a.start <= address and address + size <= a.stop for a in arrays)

    def before_write(self, thread, address, size, record):
        if self.bytes.readonly:
            name = self.name_of(address, True)
            raise thread.fault(faults.ReadOnlyWrite, f"writes {name}", name)
        self._trace()
        if self.read_only:
            self._check_not_read_only(thread, address, size, record)
        if record.atomic:
            self.check_scope(thread, address, size, record.wide, writes=True)

    def on_reduction(self, thread, address, size, done):
        """A reduction by the copy engine, an atomic of every element; ``done``: what makes a Write of it."""
        self._trace()
        a = address - self.base
        for lo, hi, _ in list(stretches(self.written[a : a + size])):
            extent = address + lo, hi - lo  # a record of its own for those that replace the same one
            self.on_write(thread, *extent, Reduction(*done, extent, wide=True, reads=False))

    def on_copy_read(self, thread, address, size, *epoch):
        if self.traced:
            super().on_copy_read(thread, address, size, *epoch)
        else:
            self.was_read = True

    def on_acquire(self, thread, address, size, wide, *more):
        self._trace()
        self.check_scope(thread, address, size, wide)
        super().on_acquire(thread, address, size, wide, *more)

    def on_read_only(self, thread, address, size):
        """A load through the read-only path: nobody may write the bytes during the whole kernel."""
        if not self.traced:
            return
        a = address - self.base
        for w in dict.fromkeys(self.written[a : a + size]):
            if w is UNWRITTEN:
                raise thread.explain.bad_access(self, thread, w, address, size)
            if w is not INITIAL:
                name = self.name_of(address, True)
                what = f"reads {name} through the read-only path; {thread.describe(w)} wrote it at "
                raise thread.fault(faults.NotReadOnly, what + thread.at(w.site), name)
        if not self.read_only:
            self.read_only, self.watched = [None] * self.size, True
        self.read_only[a : a + size] = [thread.reader()] * size

    def _check_not_read_only(self, thread, address, size, record):
        a = address - self.base
        for at, _, reader in stretches(self.read_only[a : a + size]):
            if reader:
                _, _, tid, site, block, _ = reader
                name, who = self.name_of(address + at, True), thread.describe_tid(block, tid)
                what = f"{thread.explain.verb_of(record)} {name}, which {who} reads through the read-only path "
                raise thread.fault(faults.NotReadOnly, f"{what}at {thread.at(site)}", name)

    def sees(self, thread, w):
        if w.block is not thread.block:
            return w is INITIAL or thread.knows(w.block, w.owner, w.clock)
        return super().sees(thread, w)

    def excuses_read(self, thread, w):
        told = (type(w) is Write or w.atomic) and covers(thread.foreign, (TICKET, w.block), w.owner, w.clock)
        return told and thread.block.execution.waived.allows("thread-fence-reduction", thread)

    def _saw_reader(self, thread, r):
        if r[BLOCK] is not thread.block:
            return thread.knows(r[BLOCK], r[OWNER], r[CLOCK])
        return super()._saw_reader(thread, r)

    def name_of(self, address, element=False):
        view = self.arrays[0].view if element and len(self.arrays) == 1 else None
        place = view and view.place(address - view.start)
        return f"{self.name}[{place or f'byte {address - self.base}'}]"


class GlobalMemory:
    """All arrays a launch may touch; addresses are those of the host's own arrays."""

    def __init__(self, arrays, traces, region=None):
        """``arrays``: an Extent for each. Those that overlap become one region, which ``region`` makes."""
        groups, stop = [], 0
        for array in sorted((each for each in arrays if each.start < each.stop), key=lambda each: each.start):
            if array.start >= stop:
                groups.append([])
            groups[-1].append(array)
            stop = max(stop, array.stop)
        self.regions = [(region or GlobalRegion)(group, traces) for group in groups]
        self.starts = [region.base for region in self.regions]

    def find(self, thread, address, size, verb):
        i = bisect.bisect_right(self.starts, address) - 1
        region, what = self.regions[i] if i >= 0 else None, f"{verb} {size} bytes at "
        if region and address + size <= region.stop and region.holds(address, size):
            return region
        history = thread.block.execution.history
        if was := next((text for start, stop, text in history.freed or () if start <= address < stop), None):
            cure = "Free it behind the last launch that uses it."
            raise thread.fault(faults.OutOfRange, f"{what}{address:#x}: {was}", f"{address:#x}", cure=cure)
        if region and (address < region.stop or address - region.stop < 4096):
            inside = address + size <= region.stop
            what += f"byte {address - region.base} of {region.name}, "
            what += "none of which has them all" if inside else f"which has {region.size}"
            raise thread.fault(faults.OutOfRange, what, region.name_of(address))
        which = "array of this launch" if history.freed is None else "memory of the program's"
        what += f"{address:#x}: no {which} is there"
        raise thread.fault(faults.OutOfRange, what, f"{address:#x}")

    def name_of(self, address, element=False):
        regions = self.overlapping(address, address + 1)
        return regions[0].name_of(address, element) if regions else f"global address {address:#x}"

    def padded(self, address, size):
        """What mends an address that is no multiple of ``size`` for the length of its array's rows; else ""."""
        for array in (array for region in self.overlapping(address, address + 1) for array in region.arrays):
            row = array.view.strides[-2] if array.view and len(array.view.strides) > 1 else 0
            if row % size and not array.start % size and not (address - array.start) % row % size:
                return f"A row of {array.name} has {row} bytes: pad it to {-(-row // size) * size}."
        return ""

    def writer_of(self, address):
        """(block, thread, line) of the last write to a byte, or None: unwritten, or by several threads."""
        for region in self.overlapping(address, address + 1):
            record = region.written[address - region.base] if region.traced else INITIAL
            by = list(writers(record))
            if len(by) == 1 and by[0].block is not None:
                write = by[0]
                return write.block.index, write.tid, write.block.threads[write.tid].at(write.site)
        return None

    def touched(self):
        """(start, stop, whether written) of the bytes that a run has accessed, in regions with records."""
        return [
            (region.base + lo, region.base + hi, kind == 0)
            for region in self.regions
            for kind, records in enumerate((region.written, region.read_by, region.read_only))
            for lo, hi in region.touched(records)
        ]

    def unset(self):
        """[(start, stop)] of the bytes that held garbage before the run, and that it has not written."""
        return [(region.base + lo, region.base + hi) for region in self.regions if region.traced
                for lo, hi in region.garbage()]  # fmt: skip

    def overlapping(self, start, stop):
        """The regions that share bytes with [start, stop)."""
        return [region for region in self.regions if region.base < stop and start < region.stop]

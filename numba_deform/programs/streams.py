"""The driver's streams and events. They do at once what they are told; here stands what orders it on a GPU, and
two operations that nothing orders are told (StreamRace).

Every stream has a vector clock, and so have the host and each event: which operations are over there, as
{stream: how many of its own}. All streams of Numba's wait for the default stream and it for them (they are made
with ``CU_STREAM_DEFAULT``), so that what the default stream is told orders everything.
"""

import bisect
import itertools
import linecache
import time
from pathlib import Path
from typing import NamedTuple

from cuda.bindings import driver as binding

from ..engines.faults import HostRace, SimFault, StreamRace
from .callers import program_frame
from .pinned import PinnedPages

PER_THREAD = 2  # the handle of a default stream that is like any other
VERBS = "reads", "writes"
KEPT = 256 << 20  # bytes of freed memory


def join(clock, other):
    """What is over in another clock is over in this one."""
    for stream, count in other.items():
        clock[stream] = max(clock.get(stream, 0), count)


def merged(ranges):
    """(start, stop) of the bytes in any of these ranges, ascending, none touching the next."""
    found = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            start, stop = found[-1][0], max(stop, found.pop()[1])
        found.append((start, stop))
    return tuple(found)


def overlap(these, those):
    """The first bytes that two such sequences share, or None."""
    for start, stop in these:
        i = bisect.bisect_right(those, start, key=lambda each: each[1])
        if i < len(those) and those[i][0] < stop:
            return max(start, those[i][0]), min(stop, those[i][1])
    return None


class Operation(NamedTuple):
    """A launch, a copy or a memset."""

    what: str
    stream: int
    line: str
    touched: tuple  # what was read, and what was written, as ``merged`` returns them

    def conflict(self, other):
        """(what this does, what the other does, the bytes) where one of them writes what both touch."""
        for mine, others in (1, 1), (1, 0), (0, 1):
            if common := overlap(self.touched[mine], other.touched[others]):
                return VERBS[mine], VERBS[others], common
        return None


class Copy(NamedTuple):
    """One that is not known to be over: the how manyth operation of its stream, and where it was told."""

    what: str
    stream: int
    number: int
    line: str


class Streams:
    """What is over where. ``found`` is called with a fault and the name of an operation.

    ``pending``: which of its stream an operation is, of those that the host does not know to be over. There are
    none while a program has fewer than two streams beside the default one.
    """

    def __init__(self, found):
        self.found, self.handles, self.times = found, itertools.count(16), {}
        self.memory = {}  # start -> (what holds it, size, the program's line): device memory, and pinned
        self.pinned = {}  # start -> (start, stop) of the pages on which nothing else is
        self.pages, self.waited, self.stopped = PinnedPages(self._host_came), {}, None
        self.clocks, self.names = {PER_THREAD: {}}, {PER_THREAD: "the thread's default stream"}
        self.unset = []  # (start, stop) of memory that nobody has set since it was asked for
        self.ends = {}  # address: who has written up to there, and no further
        self.freed = {}  # start -> as memory, and where it was freed: of the last, whose addresses nobody gets
        self.host, self.events, self.pending, self.several = {}, {}, {}, False
        self.queries = {}  # what the host has asked for: the clock that was not over then

    def place(self):
        """(file, line) of the program's call."""
        frame, _ = program_frame()
        return frame.f_code.co_filename, frame.f_lineno

    def line(self):
        """``file:line`` of it, for a person."""
        file, number = self.place()
        return f"{Path(file).name}:{number}"

    def fault(self, kind, what):
        """A fault of that call."""
        file, number = self.place()
        return kind(what, where=f"{file}:{number}", source=linecache.getline(file, number).strip())

    def unset_in(self, start, stop):
        """The ranges of these bytes that nobody has set."""
        return [(max(a, start), min(b, stop)) for a, b in self.unset if a < stop and start < b]

    def set(self, start, stop, what=None):
        """These bytes may have been written, by ``what`` on the program's line if it says what was."""
        if not any(a < stop and start < b for a, b in self.unset):
            return
        if what:
            self.ends[stop] = f"{what} at {self.line()}"
        parts = ((lo, hi) for a, b in self.unset for lo, hi in ((a, min(b, start)), (max(a, stop), b)))
        self.unset = [part for part in parts if part[0] < part[1]]

    def left(self, unset, what):
        """A launch was given these bytes and has not set them."""
        self.unset += unset
        if ends := [start for start, _ in unset if start not in self.memory]:
            self.ends = dict.fromkeys(ends, f"the launch of {what} at {self.line()}") | self.ends

    def free(self, address):
        """Memory is given back; its addresses are not given to others while it is among the last."""
        buffer, size, line = self.memory.pop(address)
        self.pinned.pop(address, None)
        self.set(address, address + size)
        self.ends = {end: who for end, who in self.ends.items() if not address < end <= address + size}
        if buffer is not None:
            self.freed[address] = buffer, size, line, self.line()
        while sum(size for _, size, *_ in self.freed.values()) > KEPT:
            del self.freed[next(iter(self.freed))]

    def freed_memory(self):
        """((start, stop, what was there), ..)"""
        return tuple((start, start + size, f"the {size:,} bytes asked for at {line} were freed at {at}")
                     for start, (_, size, line, at) in self.freed.items())  # fmt: skip

    def memory_at(self, address):
        """(start, size, the program's line) of that memory around an address, or None."""
        found = ((start, *more) for start, (_, *more) in self.memory.items() if 0 <= address - start < more[0])
        return next(found, None)

    def cuStreamCreate(self, flags):
        self.names[stream := next(self.handles)] = f"stream {len(self.clocks)} (made at {self.line()})"
        self.clocks[stream], self.several = {}, len(self.clocks) > 1
        return binding.CUstream(stream)

    def clock(self, stream):
        """The clock of what a stream is told next. That of the host, in which all is over then, for the default
        stream, and for one of another library's, of which nothing is known."""
        if self.stopped:
            raise self.stopped
        if (stream := int(getattr(stream, "handle", stream))) in self.clocks:
            join(self.clocks[stream], self.host)
            return self.clocks[stream]
        for clock in self.clocks.values():
            join(self.host, clock)
        self.pending.clear()
        return self.host

    def over(self, clock):
        """The host has waited for all that is over in a clock."""
        join(self.host, clock)
        join(self.waited, clock)
        self.pages.over(lambda copy: self.waited.get(copy.stream, 0) >= copy.number)
        self.pending = {op: n for op, n in self.pending.items() if self.host.get(op.stream, 0) < n}

    def cuStreamSynchronize(self, stream=0):
        self.over(self.clock(stream))

    cuCtxSynchronize = cuStreamSynchronize

    def cuStreamWaitEvent(self, stream, event, flags):
        join(self.clock(stream), self.events.get(int(event), {}))

    def cuEventCreate(self, flags):
        return binding.CUevent(next(self.handles))

    def cuEventRecord(self, event, stream):
        self.times[event], self.events[event] = time.perf_counter(), dict(self.clock(stream))

    def cuEventSynchronize(self, event):
        self.over(self.events.get(int(event), {}))

    def is_over(self, what, clock):
        """Whether all that is over in a clock is so for the host, which asks for ``what``: what it has not
        waited for is so when it asks again."""
        late = any(self.waited.get(stream, 0) < n for stream, n in clock.items())
        if late and self.queries.get(what) != clock:
            self.queries[what] = dict(clock)
            return False
        self.over(clock)
        return True

    def stream_is_over(self, stream):
        return self.is_over(("stream", stream), self.clock(stream))

    def event_is_over(self, event):
        return self.is_over(("event", int(event)), self.events.get(int(event), {}))

    def cuEventElapsedTime(self, start, end):
        return 1000 * (self.times[end] - self.times[start])

    def done(self, stream, what, ranges):
        """A stream was told to do ``what``, on bytes as (start, stop, whether written)."""
        clock, stream = self.clock(stream), int(getattr(stream, "handle", stream))
        clock[stream] = clock.get(stream, 0) + 1
        if clock is self.host or not self.several:
            return
        kinds = (merged((a, b) for a, b, w in ranges if w == written) for written in (False, True))
        touched = tuple(tuple(each for each in kind if self.memory_at(each[0])) for kind in kinds)
        now = Operation(what, stream, self.line(), touched)
        self.pending.pop(now, None)  # the same, earlier: who waits for this one has waited for that, too
        for then, number in reversed(self.pending.items()):
            if clock.get(then.stream, 0) < number and (conflict := now.conflict(then)):
                self.found(self._race(now, then, *conflict), what)
                break
        self.pending[now] = clock[stream]

    def in_flight(self, stream, what, target, source, size):
        """A copy on a stream was told: until the host has waited for it, pinned memory is in use."""
        clock, stream = self.clock(stream), int(getattr(stream, "handle", stream))
        copy = Copy(what, stream, clock[stream], self.line())
        for start, written in (target, True), (source, False):
            if (found := self.memory_at(start)) and found[0] in self.pinned:
                self.pages.use(start, start + size, written, copy, self.pinned[found[0]])

    def _host_came(self, use, address):
        """The host has touched pinned memory that a copy uses."""
        start, size, line = self.memory_at(address)
        mine, others = ("writes", "reads") if use.protection else ("touches", "writes")
        what = f"the host {mine} byte {address - start} of the {size:,} bytes asked for at {line}, which "
        what += f"{use.copy.what} on {self.names.get(use.copy.stream, 'the default stream')} {others}, at "
        what += f"{use.copy.line}: nothing has waited for that"
        try:
            self.found(self.fault(HostRace, what), use.copy.what, use.copy.line)
        except SimFault as fault:  # nothing can be raised here: by the program's next call
            self.stopped = fault

    def _race(self, now, then, verb, other, common):
        start, size, line = self.memory_at(common[0])
        what = f"{now.what} on {self.names[now.stream]} {verb} bytes {common[0] - start} to "
        what += f"{common[1] - start - 1} of the {size:,} bytes asked for at {line}, which {then.what} on "
        what += f"{self.names[then.stream]} {other}, at {then.line}: nothing orders the two"
        return self.fault(StreamRace, what)

"""The life of a thread, in one place for all its forms.

A thread begins, runs to its next event, parks or polls, and ends. The scheduler lets it run (``switch``) and
ends it (``throw``); operations call ``park`` and ``poll``; memory and reports ask where it stands.

==================  ==========================  =====================================  =====================
asked               interpreted (here)          machine code (``native.state``)        stepped (``explore``)
==================  ==========================  =====================================  =====================
to its next event   a greenlet switches         compiled ``run``, a greenlet answers   a greenlet switches
``park``            on to the next thread       the word PARKED; in an answer as here  to the hub, which asks
``poll``            parks with those that poll  asks Python                            an operation like others
``here, reader``    walks Python's frames       the number of the site                 walks Python's frames
``state``           the frames' variables       gives up, to be interpreted            the frames' variables
``dead``            the greenlet has ended      the word REQUEST is ENDED              the greenlet has ended
==================  ==========================  =====================================  =====================
"""

import math
import sys
from types import SimpleNamespace

from greenlet import GreenletExit, getcurrent, greenlet

from ....compiler.rewrite import REBUILT
from ..memory.access_records import CLOCK, SITE, Write
from ..memory.arrays import snapshot
from ..reports.call_sites import KERNEL, describe_site, place
from ..reports.source_loops import step_of, unread

NOWHERE = SimpleNamespace(base=0, stop=0)


class ThreadLife(greenlet):
    """Thread ``tid`` of a block. ``clocks[0]`` is its vector clock, ``seen`` the same row;
    ``clocks[1]`` is the part of it that the copy engine (the async proxy) sees as well."""

    def __init__(self, run, block, tid):
        super().__init__(run)
        self.block, self.tid = block, tid
        self.warp, self.lane = tid >> 5, tid & 31
        self.mates = block.warps[self.warp]
        self.shared, self.explain = block.shared, block.explain
        self.source = self.target = NOWHERE  # the arrays in global memory that it has read, and written, last
        self.ordinary = block, tid, False  # its key in ManyReads
        # Its records of late, by offset in the code: most come again before the clock moves on.
        self.readers, self.writes = {}, {}
        self.clock = 1
        self.time = 0.0
        self.waiting = None  # (kind, object, parity, mask or address) of the last wait
        self.waits = {}  # mbarrier -> its LastWait there
        self.told = 0  # its clock when it last did what others may notice though nothing is ordered by it
        self.arrivals = {}  # mbarrier -> the site of its last arrival there
        self.last_wait = None  # of those, on the barriers that no copy signals
        self.foreign = {}  # what acquires have made visible of other blocks: {block: clocks}
        # By the last fence, and by atomics since: each (with scope cta, with a wider one).
        self.published = self.acquired = {}, {}, {}
        self.released = {}  # (memory, address) -> what its last release there has handed on with each scope
        self.met = None  # the last flag that it has read, as it was then
        self.narrow_fence = None  # the scope of the last one in words, if it is narrower than the GPU
        self.last_fence = None, 0  # what its last fence lacks as a release to other blocks, in words; its clock
        self.proxy_fence = -1, None  # the clock and the site of its last one
        self.old_token = None  # its last wait by a token of a phase before its last arrival: an OldToken
        self.reads = 0  # in a row, without a pause
        self.vain = 0  # atomics in a row that have changed nothing
        self.groups = {}  # of copies, by kind: "bulk" and "cp.async"
        self.fenced = False  # whether it has executed a wgmma.fence
        self.pipes_told = self.pipes_heard = None  # of tensor memory, see relaxed_barriers
        self.attach()

    def attach(self):
        """(Re)bind the rows of the block's clock table."""
        self.clocks = self.block.clock_table[self.tid]
        self.seen = memoryview(self.clocks[0])  # items of a memoryview cost half
        self.seen[self.tid] = self.clock

    def tick(self):
        """A release: what comes after is not covered by what was handed out."""
        self.clock += 1
        self.seen[self.tid] = self.clock

    @staticmethod
    def here():
        """(code, offset) in the kernel's innermost frame, of the thread that is running."""
        # Above this frame stand an engine method and the intrinsic (or array) that called it.
        frame = sys._getframe(3)
        while KERNEL not in frame.f_globals:
            frame = frame.f_back
        return frame.f_code, frame.f_lasti

    def site(self):
        """The same of this thread, running or parked; None if it has ended."""
        frame = self.gr_frame or sys._getframe(1)
        while frame is not None:
            if KERNEL in frame.f_globals:
                return frame.f_code, frame.f_lasti
            frame = frame.f_back
        return None

    def calls(self):
        """The same in each function of the kernel that it is in, the innermost first."""
        frame, found = self.gr_frame or sys._getframe(1), []
        while frame is not None:
            found += [(frame.f_code, frame.f_lasti)] * (KERNEL in frame.f_globals)
            frame = frame.f_back
        return found

    def state(self):
        """Where a thread stands and what its variables hold: if that comes again and nobody has
        changed anything, it is going to come forever."""
        frame, values = self.gr_frame or sys._getframe(1), [self.block.index, self.tid]
        known = self.block.execution.places
        while frame is not None:
            if REBUILT in frame.f_globals:
                place = id(frame.f_code), frame.f_lasti
                if place not in known:
                    known[place] = step_of(frame.f_code, frame.f_lasti)
                values += place[0], known[place]
                ignored = unread(frame.f_code)
                for name, value in frame.f_locals.items():
                    if name[:2] != "__" and name not in ignored:  # those are typed code's own, of one statement
                        values += name, value if type(value) is int else snapshot(value)
            frame = frame.f_back
        return tuple(values)

    def let_others_come(self):
        """Let others do what is due, so that a fault of this thread can name it; nothing if it does not run."""
        if getcurrent() is self:
            self.block.execution.is_telling = True
            self.spin()

    def fault(self, kind, what, about=None, **words):
        return self.fault_at(kind, what, self.site(), about, **words)

    def fault_at(self, kind, what, site, about=None, threads=(), waits=(), **words):
        """``about`` is the barrier that the fault is about, or the name of an address; ``threads``
        stand at ``site``, if not this one only; ``words``: its rule, cure, waiver, if not its kind's."""
        where, source = place(site)
        fault = kind(
            what, thread=self.tid, threads=threads, block=self.block.index, where=where, source=source,
            barrier=getattr(about, "name", about),
            state=about.state() if hasattr(about, "state") else None, waits=waits
        )
        vars(fault).update(words)
        return fault

    at = staticmethod(describe_site)

    @staticmethod
    def line(site):
        """The text of a call site's line."""
        return place(site)[1] or ""

    def describe(self, record):
        return self.describe_tid(record.block, record.tid)

    def describe_tid(self, block, tid):
        if block is not None and block is not self.block:
            return f"thread {tid} of block {block.index}"
        return "this thread" if tid == self.tid else f"thread {tid}"

    def reader(self):
        """The record of a read, which stands at the same depth above the kernel as in ``here``."""
        frame = sys._getframe(3)
        while KERNEL not in frame.f_globals:
            frame = frame.f_back
        offset, code = frame.f_lasti, frame.f_code
        reader = self.readers.get(offset)
        if reader is None or reader[CLOCK] != self.clock or reader[SITE][0] is not code:
            reader = self.readers[offset] = (self.tid, self.clock, self.tid, (code, offset), self.block, False)
        return reader

    def write_record(self):
        """The record of a write, by a method that an intrinsic or an array calls."""
        frame = sys._getframe(2)
        while KERNEL not in frame.f_globals:
            frame = frame.f_back
        offset, code = frame.f_lasti, frame.f_code
        write = self.writes.get(offset)
        if write is None or write.clock != self.clock or write.site[0] is not code:
            write = self.writes[offset] = Write(self.tid, self.clock, self.tid, (code, offset), self.block)
        return write

    def park(self, kind, what, detail=None):
        self.waiting = (kind, what, detail)
        self.reads = 0
        block = self.block
        block.switches += 1
        block.next().switch()

    def spin(self, kind="spin", what=None, detail=None):
        """Give way because this thread polls; it runs again when something may have changed."""
        self.block.spinning.append(self)
        self.park(kind, what, detail)

    poll = many_reads = spin  # at a look at a flag or barrier; after many reads

    @staticmethod
    def exit():
        raise GreenletExit

    def clock_cycles(self):
        self.time += 1
        return math.floor(self.time)

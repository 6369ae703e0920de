"""What the CPU engine remembers of every byte: who wrote it last, and who has read it since.

Whether two accesses race is decided by *happens-before*, not by the order in which they happened to
run. Each thread has a vector clock: entry ``u`` says how much of thread ``u`` is known to have been
done (``thread.seen[u]``). A write leaves its *epoch* (owner, clock) on the bytes; a later access by
another thread is ordered only if its vector clock covers that epoch. Barriers join the clocks. Each
mbarrier, and each thread's bulk groups, have entries of their own, so that a landed copy is an epoch
like any other: (barrier, phase). The bookkeeping per byte follows FastTrack (Flanagan and Freund,
PLDI 2009): the last write, and the reads since.
"""

from itertools import groupby
from typing import NamedTuple

NEVER = 1 << 30  # a clock no thread can have seen
ZEROS = "cp.async of zeros"  # what a Copy is that brings nothing from its source


class Write:
    """The last write to some bytes: who, when, where in the source."""

    __slots__ = ("owner", "clock", "tid", "site", "block")
    atomic = False

    def __init__(self, owner, clock, tid, site, block):
        self.owner, self.clock, self.tid, self.site, self.block = owner, clock, tid, site, block

    @property
    def parts(self):
        """The stores that it stands for; several where they may be unordered, see ``same_value``."""
        return (self,)


class AtomicWrite(Write):
    """A write by an atomic or a release store: it does not race with its like of a scope that fits.

    ``by`` holds the latest one of every thread, by its ``key``, since the last ordinary write:
    an ordinary access must be ordered after all of them, not just after the last that happened to
    run. ``seen`` holds what threads have read of them: who reads a value, is ordered after the
    write of it, and after those that atomics, each reading the one before, have led on to it: the
    numbers ``first`` to ``number`` (PTX ISA 8.9.2, observation order). Records of the same bytes share
    both. ``under``: the ordinary write before all of them, which each must be ordered after. ``wide``:
    of gpu scope; ``reads``: an atomic, no store.
    """

    __slots__ = ("by", "seen", "under", "extent", "wide", "reads", "number", "first")
    atomic = True

    def __init__(self, owner, clock, tid, site, block, extent, wide, reads):
        super().__init__(owner, clock, tid, site, block)
        self.by, self.seen, self.under, self.extent = {self.key: self}, {}, (), extent
        self.wide, self.reads, self.number, self.first = wide, reads, 0, 0

    @property
    def key(self):
        """Of two with the same key the later one comes after the earlier."""
        return self.block, self.owner

    def join(self, earlier):
        """Take over what ``earlier``, the record this one replaces, stands for."""
        self.number = self.first = earlier.number + 1
        if earlier.extent == self.extent:
            earlier.by[self.key] = self
            self.by, self.seen, self.under = earlier.by, earlier.seen, earlier.under
            if self.reads:
                self.first = earlier.first
        else:
            self.by, self.seen = {**earlier.by, **self.by}, {**earlier.seen, **self.seen}
            self.under += earlier.under

    def observe(self, thread):
        """``thread`` has read what this one wrote."""
        reader = (thread.tid, thread.clock, thread.tid, None, thread.block, True)
        self.seen[thread.block, thread.tid] = reader, self.first, self.number


class Reduction(AtomicWrite):
    """A reduction by the copy engine, whose owner is a bulk group. No value that is read orders anything after
    it, since that value may lack it: that takes a wait for the group."""

    __slots__ = ()

    def join(self, earlier):
        super().join(earlier)
        self.first = self.number + 1  # atomics after it lead on from themselves

    def observe(self, thread):
        """Its value may not be there yet."""


class Copy(Write):
    """Bytes that an asynchronous copy delivers. Until it lands, ``clock`` is NEVER.

    ``phase`` is that of the barrier that it signals, or the number of its group. ``known`` and
    ``last_wait`` are the issuing thread's vector clock and last wait on a barrier that no copies signal,
    both at the moment of issue; ``givers`` the threads, with their clocks, whose arrivals completed the phase
    that this wait was for: who gave back what the copy goes to. ``generic``: of the generic proxy, so that the
    copy engine sees it past a fence. ``pieces``: the records of a reduction, which stand in its place.
    ``ends``: of a store, the virtual times when its source has been read and when it is complete.
    """

    __slots__ = (
        "landed", "barrier", "phase", "address", "size", "what", "deliver", "due", "known", "last_wait",
        "givers", "generic", "pieces", "ends",
    )  # fmt: skip

    def __init__(self, thread, what, address, size, phase, barrier=None, generic=False):
        super().__init__(-1, NEVER, thread.tid, thread.site(), thread.block)
        self.landed, self.barrier, self.phase, self.what = False, barrier, phase, what
        self.generic, self.pieces = generic, []
        self.address, self.size = address, size
        thread.told = thread.clock
        self.known, self.last_wait, self.givers = thread.clocks[0].copy(), thread.last_wait, {}
        if self.last_wait is not None and self.last_wait.phase == self.last_wait.barrier.phase - 1:
            self.givers = self.last_wait.barrier.last_arrivers

    @property
    def place(self):
        """Its address, told from the same one in the other block of a pair."""
        return self.address

    def is_committed(self):
        """Whether it is a store of a bulk group that has been committed."""
        stores = self.block.threads[self.tid].groups.get("bulk")
        return bool(stores) and any(self in copies for _, copies in stores.committed)


class PeerCopy(Copy):
    """One whose barrier lies in the other block of a pair than its bytes. It has no epoch in the clocks of
    their block: ``ClusterShared`` asks the barrier. ``place`` is a shared::cluster address."""

    __slots__ = ("place",)
    owner = property(lambda self: -1, lambda self, value: None)
    clock = property(lambda self: NEVER, lambda self, value: None)


class AsyncReduction(Reduction):
    """What a reduction in shared memory does to some bytes: complete when ``copy``, which brings it, is so."""

    __slots__ = ("copy",)

    def __init__(self, copy, extent):
        self.copy = copy
        super().__init__(-1, NEVER, copy.tid, copy.site, copy.block, extent, wide=True, reads=False)

    @property
    def key(self):
        return (self.copy.barrier.block, self.owner) if self.copy.landed else (self, None)

    def land(self):
        """``copy`` has landed."""
        del self.by[self, None]
        self.owner, self.clock = self.copy.owner, self.copy.clock
        self.by[self.key] = self


def copy_of(record):
    """The copy that brings what ``record`` stands for; None for what a thread writes itself."""
    return record if isinstance(record, Copy) else getattr(record, "copy", None)


def is_generic(record):
    """Whether it is a write of the generic proxy, which the copy engine sees past a proxy fence."""
    copy = copy_of(record)
    return type(record) in (Write, AtomicWrite) if copy is None else copy.generic


def is_async(record):
    """Whether it is what a copy of the async proxy brings."""
    copy = copy_of(record)
    return copy is not None and not copy.generic


class Live(Write):
    """The eight bytes of an mbarrier that is in use."""

    __slots__ = ("barrier",)

    def __init__(self, barrier, thread):
        super().__init__(-1, NEVER, thread.tid, thread.site(), thread.block)
        self.barrier = barrier


class Ended(Write):
    """The bytes of an mbarrier after ``inval``: garbage, and free to those ordered after it."""

    __slots__ = ("ended",)

    def __init__(self, thread):
        super().__init__(-1, NEVER, thread.tid, thread.site(), thread.block)
        self.ended = thread.clock


OUTSIDE = Write(-1, NEVER, None, None, None)  # belongs to no array
UNWRITTEN = Write(-1, NEVER, None, None, None)  # never written
INITIAL = Write(0, 0, None, None, None)  # there before the kernel started


# A reader of bytes since their last write is a plain tuple, the cheapest object there is. An owner
# that is no thread is the copy engine, which reads until (owner, clock) is seen. ATOMIC is False of an
# ordinary reader, else the scope.
OWNER, CLOCK, TID, SITE, BLOCK, ATOMIC = range(6)
NARROW, WIDE = 1, 2  # scope cta; gpu and sys


READ, WRITE, CHANGE = "read", "write", "atomic"  # kinds of accesses


class Access(NamedTuple):
    """One access that came before: by whom, when, where and of which kind. ``owner``: its entry in the
    clocks."""

    kind: str
    block: object
    tid: int
    owner: int
    clock: int
    site: object

    @classmethod
    def write(cls, w):
        return cls(CHANGE if w.atomic else WRITE, w.block, w.tid, w.owner, w.clock, w.site)

    @classmethod
    def read(cls, r):
        return cls(CHANGE if r[ATOMIC] else READ, r[BLOCK], r[TID], r[OWNER], r[CLOCK], r[SITE])


def is_by_thread(reader):
    """Whether it is a thread's own read, and none of a copy or a product."""
    return reader[OWNER] == reader[TID]


class ManyReads:
    """Several readers, not ordered among themselves, of exactly the bytes [lo, hi)."""

    __slots__ = ("by", "lo", "hi")

    def __init__(self, reads, lo, hi):
        self.by, self.lo, self.hi = {}, lo, hi
        for r in reads:
            self.add(r)

    def add(self, r):
        self.by[r[BLOCK], r[OWNER], r[ATOMIC]] = r


def readers(entry):
    """The readers in one entry of ``ShadowMemory.read_by``: none, one or several."""
    if entry is None:
        return ()
    return entry.by.values() if type(entry) is ManyReads else (entry,)


def writers(record):
    """The writes that a record stands for: itself, or the latest atomic one of every thread."""
    return record.by.values() if record.atomic else record.parts


def stretches(entries):
    """(start, stop, entry) for each stretch of one and the same entry in a list."""
    if entries and entries.count(entries[0]) == len(entries):
        yield 0, len(entries), entries[0]
        return
    start = 0
    for entry, same in groupby(entries):
        stop = start + sum(1 for _ in same)
        yield start, stop, entry
        start = stop


def different(entries):
    """Each entry of a list once: there are many, and they come in stretches."""
    if entries and entries.count(entries[0]) == len(entries):
        return entries[:1]
    return {id(entry): entry for entry, _ in groupby(entries)}.values()

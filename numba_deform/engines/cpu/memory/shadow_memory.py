"""A range of addresses whose accesses are checked against each other.

The records of the bytes lie in Python lists, because a slice of a list is compared with one
``count``: nearly every access finds one record on all its bytes.
"""

from functools import partial

from ...faults import UninitialisedRead
from .access_records import (
    ATOMIC,
    BLOCK,
    CHANGE,
    CLOCK,
    INITIAL,
    NARROW,
    OUTSIDE,
    OWNER,
    SITE,
    TID,
    UNWRITTEN,
    WIDE,
    Access,
    Ended,
    ManyReads,
    copy_of,
    different,
    is_async,
    is_by_thread,
    readers,
    stretches,
    writers,
)
from .scalars import MayHoldUndefined, unpack

# After so many reads in a row, or atomics that change nothing, a thread may be polling: others get their turn.
MANY_READS, MANY_VAIN = 100, 10


TAKES = "cas", "exch", "xchg"  # in names of atomics that take locks
TAKEN = "Whoever took it has to give it back. Where several locks are taken, take them in one order everywhere."


class ShadowMemory(MayHoldUndefined):
    """One range of addresses with its records; ``base`` is the address of record 0.

    ``flags`` holds what release operations have published: address -> SyncVariable. ``traced``: whether it has
    records; ``watched``: whether a write needs more than a look at them (``before_write``).
    """

    traced, watched, is_shared, nothing = True, False, False, UNWRITTEN
    unset = UninitialisedRead.rule, UninitialisedRead.cure  # of a read of what nothing has written
    narrow = False  # whether an atomic of scope cta has been here

    def __init__(self, base):
        self.base, self.written, self.read_by, self.flags = base, [], [], {}
        self.words = None

    def words_of(self, content):
        """Set ``bytes``, and ``words``: the same as 32-bit words; None where these would not be aligned."""
        self.bytes = memoryview(content)
        whole = len(self.bytes) // 4 * 4
        self.words = self.bytes[:whole].cast("I") if self.base % 4 == 0 else None

    def word(self, address):
        """The bytes of the word at an address, those of them that are here."""
        return bytes(self.bytes[max(0, address - self.base) : max(0, address + 4 - self.base)])

    # The checks. Each raises a SimFault or leaves its record.
    def on_read(self, thread, address, size):
        thread.reads += 1
        if thread.reads > MANY_READS:
            thread.many_reads("spin", self, address)
        if not self.traced:
            self.was_read = True
            return
        a = address - self.base
        b = a + size
        tid, block = thread.tid, thread.block
        records = self.written[a:b]
        w = records[0] if records else OUTSIDE
        if records.count(w) != size or w is not INITIAL and (
            w.block is not block or (w.owner != tid and thread.seen[w.owner] < w.clock) or w.atomic
        ):
            self._check_read(thread, records, address, size)
        reads = self.read_by[a:b]
        r = reads[0]
        if reads.count(r) != size:  # rare: accesses of different sizes
            self._add_to_all(thread, a, reads, thread.reader())
        elif r is None:
            self.read_by[a:b] = [thread.reader()] * size
        elif type(r) is ManyReads and r.lo == a and r.hi == b:
            r.by[thread.ordinary] = thread.reader()
        elif type(r) is not tuple or r[OWNER] != tid or r[BLOCK] is not block or r[ATOMIC]:
            self._add_reader(thread, a, size, r, thread.reader())
        elif r[CLOCK] != thread.clock:  # else this thread has been here before
            self.read_by[a:b] = [thread.reader()] * size

    def on_write(self, thread, address, size, record):
        """``record`` is left on the bytes; all earlier accesses must be ordered before ``thread``."""
        if self.watched or record.atomic:
            self.before_write(thread, address, size, record)
        a = address - self.base
        b = a + size
        records = self.written[a:b]
        if len(records) < size:
            records.append(OUTSIDE)
        w, block = records[0], thread.block
        if not (
            records.count(w) == size
            and (w is UNWRITTEN or w is INITIAL or w.block is block and thread.seen[w.owner] >= w.clock)
            and not (w.atomic or record.atomic)
        ):
            self._check_written(thread, records, address, size, record)
        reads = self.read_by[a:b]
        entry = reads[0]
        if entry is not None or reads.count(None) != size:
            for entry in different(reads):
                self._check_overwrite(thread, entry, address, record)
            if not record.atomic:  # one that is has to be ordered after no atomic reader
                self.read_by[a:b] = [None] * size
        self.written[a:b] = [record] * size

    def has(self, record, first, stop):
        """Whether one of these bytes, of which there are records, has this one."""
        return record in self.written[first:stop]

    def writes(self, first, stop):
        """Each record once of the writes to some bytes."""
        return different(self.written[first:stop])

    def before_write(self, thread, address, size, record):
        """What a kind of memory has to say to a write first."""

    def copies(self):
        """Those whose bytes are here, in the order of these."""
        parts = (w for record in self.records() for w in writers(record))
        return [copy for copy in map(copy_of, parts) if copy]

    def records(self):
        """The records of all bytes, each once."""
        return dict.fromkeys(self.written)

    def _check_written(self, thread, records, address, size, record):
        for w in different(records):
            if w is UNWRITTEN:
                continue
            if w.atomic and record.atomic:
                unseen = self._unseen_under(thread, w)
                record.join(w)
            else:
                unseen = self._unseen(thread, w)
                if record.atomic and w is not INITIAL:
                    record.under += (w,)
            if unseen and not _ended_before(thread, unseen):
                raise thread.explain.bad_access(self, thread, unseen, address, size, record)

    def _check_overwrite(self, thread, entry, address, record):
        block, seen = thread.block, thread.seen
        for r in readers(entry):
            if r[BLOCK] is block and seen[r[OWNER]] >= r[CLOCK] or r[ATOMIC] and record.atomic:
                continue
            if not self._saw_reader(thread, r):
                late = {x[TID] for x in readers(entry) if not self._saw_reader(thread, x)}
                raise thread.explain.bad_overwrite(self, thread, Access.read(r), sorted(late), address, record)
        if is_async(record):
            self._check_fenced(thread, entry, address, record)

    def _check_fenced(self, thread, entry, address, record):
        """The reads of threads, which end for the copy engine past a proxy fence. A missing one is told when
        all else is right: it is seldom what somebody looks for who has another fault."""
        home, execution = copy_of(record).barrier.block, thread.block.execution
        late = [r for r in readers(entry) if is_by_thread(r) and not thread.sees_fence(home, Access.read(r))]
        if not late:
            return
        waiver = "refill-fence"
        if home.tensor_memory:  # no machine code has it
            w = self.written[self.read_by.index(entry, address - self.base)]
            waiver = "alloc-fence" if home.tells_of_tensor_memory(w) else waiver
        if not execution.waived.allows(waiver, thread) and not execution.told_at_the_end:
            first = Access.read(min(late, key=lambda r: r[TID]))
            execution.told_at_the_end = thread.explain.unfenced_refill(self, thread, first, address, record)
            execution.told_at_the_end.waiver = waiver

    def on_copy_read(self, thread, address, size, owner, clock, block=None):
        """A copy that ``thread`` issues reads these bytes until the epoch (owner, clock), of ``block`` if not
        its own."""
        self.check_read(thread, address, size)
        a = address - self.base
        reader = (owner, clock, thread.tid, thread.here(), block or thread.block, False)
        self._add_to_all(thread, a, self.read_by[a : a + size], reader)

    def on_acquire(self, thread, address, size, wide, used, stays=True):
        """An atomic read: it does not race with atomic writes, but does with ordinary ones. ``used``:
        the thread can tell what it has read. ``stays``: no write of the same thread stands for it."""
        a = address - self.base
        if UNWRITTEN in self.written[a : a + size]:
            thread.poll()  # as in _check_read
        records = self.written[a : a + size]
        for w in dict.fromkeys(records if len(records) == size else [OUTSIDE]):
            if not w.atomic and (unseen := self._unseen(thread, w)):
                raise thread.explain.bad_access(self, thread, unseen, address, size, kind=CHANGE)
            if w.atomic and (unseen := self._unseen_under(thread, w)):
                raise thread.explain.bad_access(self, thread, unseen, address, size)
            if w.atomic and used:
                w.observe(thread)
        if stays:
            scope = WIDE if wide else NARROW
            reader = (thread.tid, thread.clock, thread.tid, thread.here(), thread.block, scope)
            self._add_to_all(thread, a, self.read_by[a : a + size], reader)

    def check_scope(self, thread, address, size, wide, writes=False):
        """Atomics of two blocks do not race only if the scope of both goes beyond the block."""
        self.narrow |= not wide
        if not self.narrow:
            return
        a = address - self.base
        for record in dict.fromkeys(self.written[a : a + size]):
            for w in writers(record) if record.atomic else ():
                if w.block is not thread.block and not (wide and w.wide) and not self.sees(thread, w):
                    raise thread.explain.bad_scope(self, thread, w.block, w.tid, w.site, address, wide)
        for entry in dict.fromkeys(self.read_by[a : a + size]) if writes else ():
            for r in readers(entry):
                fits = not r[ATOMIC] or wide and r[ATOMIC] == WIDE
                if r[BLOCK] is not thread.block and not fits and not self._saw_reader(thread, r):
                    raise thread.explain.bad_scope(self, thread, r[BLOCK], r[TID], r[SITE], address, wide)

    def sees(self, thread, w):
        return w.owner == thread.tid or thread.seen[w.owner] >= w.clock

    def _unseen(self, thread, w):
        """Return the write in ``w`` that does not happen before the access of ``thread``, or None."""
        if not w.atomic:
            return next((part for part in w.parts if not self.sees(thread, part)), None)
        late = [each for each in writers(w) if not self.sees(thread, each)]
        if late:
            met = [(a, b) for reader, a, b in w.seen.values() if self._saw_reader(thread, reader)]
            late = [each for each in late if not any(a <= each.number <= b for a, b in met)]
        return late[0] if late else None

    def _unseen_under(self, thread, w):
        """The same of the ordinary write before the atomics that ``w`` stands for."""
        return next((part for each in w.under for part in each.parts if not self.sees(thread, part)), None)

    def _saw_reader(self, thread, r):
        return r[OWNER] == thread.tid or thread.seen[r[OWNER]] >= r[CLOCK]

    def check_read(self, thread, address, size):
        """Whether ``thread`` may read these bytes; leaves no record."""
        a = address - self.base
        self._check_read(thread, self.written[a : a + size], address, size)

    def _check_read(self, thread, records, address, size):
        a = address - self.base
        if UNWRITTEN in records:
            thread.spin()  # let the late writer come, so that the fault can name it
            records = self.written[a : a + size]
        for w in dict.fromkeys(records if len(records) == size else [OUTSIDE]):
            if (unseen := self._unseen(thread, w)) and not self.excuses_read(thread, unseen):
                raise thread.explain.bad_access(self, thread, unseen, address, size)

    def excuses_read(self, thread, w):
        """Whether ``thread`` may read what the write ``w`` left though nothing orders the two: it is waived."""
        return False

    def _add_to_all(self, thread, a, entries, reader):
        for lo, hi, entry in stretches(entries):
            self._add_reader(thread, a + lo, hi - lo, entry, reader)

    def _add_reader(self, thread, a, size, entry, reader):
        # One reader is enough to remember where the other's reads are ordered before it. An atomic
        # reader stands for atomic ones only, since atomic writes do not race with it, and the copy engine for
        # no thread, whose reads have to be fenced.
        comparable = type(entry) is tuple and (entry[ATOMIC] or not reader[ATOMIC])
        comparable = comparable and (is_by_thread(reader) or not is_by_thread(entry))
        if comparable and self._saw_reader(thread, entry):
            entry = None
        if entry is None:
            self.read_by[a : a + size] = [reader] * size
        elif type(entry) is ManyReads and entry.lo == a and entry.hi == a + size:
            entry.add(reader)
        else:
            self.read_by[a : a + size] = [ManyReads([*readers(entry), reader], a, a + size)] * size

    def polled(self, block, kind, addresses, pollers):
        """What ``pollers``, who poll these addresses, wait for: fields of a ``Wait``."""
        sites, takers, one = {}, [], block.threads[0]
        for address in addresses:
            a = address - self.base
            for w in self.written[a : a + 1]:
                sites.update({each.tid: each.site for each in writers(w) if each.block is block})
                others = (e for e in writers(w) if e.block and (e.block is not block or e.tid not in pollers))
                takers += [e for e in others if any(name in one.line(e.site).lower() for name in TAKES)]
        if kind == "atomic":  # an attempt in vain counts as a write
            sites = {t: site for t, site in sites.items() if t not in pollers} or ({} if takers else sites)
        last = takers[-1] if kind == "atomic" and takers else None
        if not sites:
            why = "no thread of the block has written it"
            why += f"; {one.describe(last)} has, at {one.at(last.site)}" if last else ""
        else:
            lines = sorted({block.threads[t].at(site) for t, site in sites.items()})
            why = f"wrote it before, at {lines[0]}{' and elsewhere' * (len(lines) > 1)}"
        more = f" and {len(addresses) - 1} more" if len(addresses) > 1 else ""
        return {
            "on": self.name_of(addresses[0], True) + more, "by": tuple(sorted(sites)), "why": why,
            "state": f"holds {unpack(self.bytes, addresses[0] - self.base, 4, 1)}" if kind == "flag" else "",
            "cure": TAKEN if last else "",
        }


def _ended_before(thread, w):
    """Whether the bytes are those of a barrier that ended before ``thread`` came."""
    if not isinstance(w, Ended):
        return False
    if w.block is thread.block:
        return thread.seen[w.tid] >= w.ended
    return thread.knows_shared(w.block, w.tid, w.ended)


def unjudged(memory):
    """From now on no access of it is looked at: all are in order. Who reads again and again still gives way."""
    memory.traced, memory.on_read = False, partial(ShadowMemory.on_read, memory)
    memory.on_write = partial(_written, memory)
    for name in ("on_acquire", "on_read_only", "on_copy_read", "on_reduction", "check_read", "check_scope",
                 "sees", "_unseen", "_trace"):  # fmt: skip
        setattr(memory, name, lambda *args, **options: None)
    return memory


def _written(memory, thread, address, size, record):
    """These bytes are as if they had been there before the kernel."""
    memory.before_write(thread, address, size, record)
    if memory.written:
        a = address - memory.base
        memory.written[a : a + size] = [INITIAL] * size

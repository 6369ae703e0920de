"""Memory of the CPU engine: bytes, and for every byte who wrote and who read it last.

Whether two accesses race is decided by *happens-before*, not by the order in which they happened to
run. Each thread has a vector clock: entry ``u`` says how much of thread ``u`` is known to have been
done (``thread.seen[u]``). A write leaves its *epoch* (owner, clock) on the bytes; a later access by
another thread is ordered only if its vector clock covers that epoch. Barriers join the clocks. Each
mbarrier, and each thread's bulk groups, have entries of their own, so that a landed copy is an epoch
like any other: (barrier, phase). The bookkeeping per byte follows FastTrack (Flanagan and Freund,
PLDI 2009): the last write, and the reads since.

The bytes lie in Python lists of records, because a slice of a list is compared with one ``count``:
nearly every access finds one record on all its bytes.
"""

import bisect
import ctypes
import struct

import numpy as np
from greenlet import getcurrent as current
from numba.np.numpy_support import as_dtype

from ...device.limits import SHARED_LIMIT, STATIC_LIMIT
from .. import faults

NEVER = 1 << 30  # a clock no thread can have seen
MANY_READS = 100  # after so many reads in a row a thread may be polling: others get their turn
_FORMATS = {(4, 1): "<I", (8, 2): "<II", (16, 4): "<IIII", (2, 1): "<H"}


class Write:
    """The last write to some bytes: who, when, where in the source."""

    __slots__ = ("owner", "clock", "tid", "site", "block")
    atomic = False

    def __init__(self, owner, clock, tid, site, block):
        self.owner, self.clock, self.tid, self.site, self.block = owner, clock, tid, site, block


class AtomicWrite(Write):
    """A write by an atomic or a release store: it does not race with its like.

    ``by`` holds the latest one of every thread, by (block, owner), since the last ordinary write:
    an ordinary access must be ordered after all of them, not just after the last that happened to
    run. Records of the same bytes share it.
    """

    __slots__ = ("by", "extent")
    atomic = True

    def __init__(self, owner, clock, tid, site, block, extent):
        super().__init__(owner, clock, tid, site, block)
        self.by, self.extent = {(block, owner): self}, extent

    def join(self, earlier):
        """Take over what ``earlier``, the record this one replaces, stands for."""
        if earlier.extent == self.extent:
            earlier.by[self.block, self.owner] = self
            self.by = earlier.by
        else:
            self.by = {**earlier.by, **self.by}


class Copy(Write):
    """Bytes that an asynchronous copy delivers. Until it lands, ``clock`` is NEVER.

    ``known`` and ``last_wait`` are the issuing thread's vector clock and last wait on a barrier that
    no copies signal, both at the moment of issue.
    """

    __slots__ = (
        "landed", "barrier", "phase", "address", "size", "what", "deliver", "known", "last_wait",
    )  # fmt: skip

    def __init__(self, thread, site, what, address, size, barrier=None):
        super().__init__(-1, NEVER, thread.tid, site, thread.block)
        self.landed, self.barrier, self.what = False, barrier, what
        self.phase = barrier.phase if barrier else None
        self.address, self.size = address, size
        self.known, self.last_wait = thread.clocks[0].copy(), thread.last_wait


class Live(Write):
    """The eight bytes of an mbarrier that is in use."""

    __slots__ = ("barrier",)

    def __init__(self, barrier, thread, site):
        super().__init__(-1, NEVER, thread.tid, site, thread.block)
        self.barrier = barrier


class Ended(Write):
    """The bytes of an mbarrier after ``inval``: garbage, and free to those ordered after it."""

    __slots__ = ("ended",)

    def __init__(self, thread, site):
        super().__init__(-1, NEVER, thread.tid, site, thread.block)
        self.ended = thread.clock


OUTSIDE = Write(-1, NEVER, None, None, None)  # belongs to no array
UNWRITTEN = Write(-1, NEVER, None, None, None)  # never written
INITIAL = Write(0, 0, None, None, None)  # there before the kernel started


# A reader of bytes since their last write is a plain tuple, the cheapest object there is. An owner
# that is no thread is the copy engine, which reads until (owner, clock) is seen.
OWNER, CLOCK, TID, SITE, BLOCK, ATOMIC = range(6)


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
    """The readers in one entry of ``Space.read_by``: none, one or several."""
    if entry is None:
        return ()
    return entry.by.values() if type(entry) is ManyReads else (entry,)


def stretches(entries):
    """(start, stop, entry) for each stretch of one and the same entry in a list."""
    start = 0
    while start < len(entries):
        entry, stop = entries[start], start + 1
        while stop < len(entries) and entries[stop] is entry:
            stop += 1
        yield start, stop, entry
        start = stop


class Space:
    """One range of addresses with its records; ``base`` is the address of record 0.

    ``flags`` holds what release operations have published: address -> knowledge (``thread.merged``).
    """

    def __init__(self, base):
        self.base, self.written, self.read_by, self.flags = base, [], [], {}

    # The checks. Each raises a SimFault or leaves its record.
    def on_read(self, thread, address, size):
        thread.reads += 1
        if thread.reads > MANY_READS:
            thread.many_reads("spin", self, address)
        a = address - self.base
        tid = thread.tid
        records = self.written[a : a + size]
        w = records[0] if records else OUTSIDE
        if (
            records.count(w) != size
            or w.block is not thread.block
            or (w.owner != tid and thread.seen[w.owner] < w.clock)
            or w.atomic
        ):
            self._check_read(thread, records, address, size)
        reads = self.read_by[a : a + size]
        r = reads[0]
        if (
            type(r) is tuple
            and r[OWNER] == tid
            and r[CLOCK] == thread.clock
            and r[BLOCK] is thread.block
            and not r[ATOMIC]
            and reads.count(r) == size
        ):
            return  # this thread has been here before
        mine = (tid, thread.clock, tid, thread.here(), thread.block, False)
        if reads.count(r) != size:
            for lo, hi, entry in stretches(reads):  # rare: accesses of different sizes
                self._add_reader(thread, a + lo, hi - lo, entry, mine)
        elif r is None:
            self.read_by[a : a + size] = [mine] * size
        else:
            self._add_reader(thread, a, size, r, mine)

    def on_write(self, thread, address, size, record):
        """``record`` is left on the bytes; all earlier accesses must be ordered before ``thread``."""
        a = address - self.base
        records = self.written[a : a + size]
        if len(records) < size:
            records.append(OUTSIDE)
        for w in (records[0],) if records.count(records[0]) == size else dict.fromkeys(records):
            if w is UNWRITTEN:
                continue
            if w.atomic and record.atomic:
                record.join(w)
            elif unseen := self._unseen(thread, w):
                self.bad_write(thread, unseen, address, size, record)
        reads = self.read_by[a : a + size]
        entry = reads[0]
        if reads.count(entry) == size:
            different = () if entry is None else (entry,)
        else:
            different = dict(zip(map(id, reads), reads, strict=True)).values()
        for entry in different:
            for r in readers(entry):
                if not (r[ATOMIC] and record.atomic) and not self._saw_reader(thread, r):
                    self.bad_overwrite(thread, r, readers(entry), address, size, record)
        self.written[a : a + size] = [record] * size
        self.read_by[a : a + size] = [None] * size

    def on_copy_read(self, thread, address, size, owner, clock):
        """A copy that ``thread`` issues reads these bytes until the epoch (owner, clock)."""
        self.on_read(thread, address, size)
        mine = (owner, clock, thread.tid, thread.here(), thread.block, False)
        self._add_to_all(thread, address, size, mine)

    def on_acquire(self, thread, address, size):
        """An atomic read: it does not race with atomic writes, but does with ordinary ones."""
        a = address - self.base
        if UNWRITTEN in self.written[a : a + size]:
            thread.poll()  # as in _check_read
        records = self.written[a : a + size]
        for w in dict.fromkeys(records if len(records) == size else [OUTSIDE]):
            if not w.atomic and not self._sees(thread, w):
                self.bad_read(thread, w, address, size)
        mine = (thread.tid, thread.clock, thread.tid, thread.here(), thread.block, True)
        self._add_to_all(thread, address, size, mine)

    def _add_to_all(self, thread, address, size, mine):
        a = address - self.base
        for lo, hi, entry in stretches(self.read_by[a : a + size]):
            self._add_reader(thread, a + lo, hi - lo, entry, mine)

    def _sees(self, thread, w):
        return w.owner == thread.tid or thread.seen[w.owner] >= w.clock

    def _unseen(self, thread, w):
        """The write that ``w`` stands for and nothing orders before ``thread``, or None."""
        for each in w.by.values() if w.atomic else (w,):
            if not self._sees(thread, each):
                return each
        return None

    def _saw_reader(self, thread, r):
        return r[OWNER] == thread.tid or thread.seen[r[OWNER]] >= r[CLOCK]

    def _check_read(self, thread, records, address, size):
        a = address - self.base
        if UNWRITTEN in records:
            thread.spin()  # let the late writer come, so that the fault can name it
            records = self.written[a : a + size]
        for w in dict.fromkeys(records if len(records) == size else [OUTSIDE]):
            if unseen := self._unseen(thread, w):
                self.bad_read(thread, unseen, address, size)

    def _add_reader(self, thread, a, size, entry, mine):
        # One reader is enough to remember where the other's reads are ordered before it. An atomic
        # reader stands for atomic ones only, since atomic writes do not race with it.
        if (
            type(entry) is tuple
            and (entry[ATOMIC] or not mine[ATOMIC])
            and self._saw_reader(thread, entry)
        ):
            entry = None
        if entry is None:
            self.read_by[a : a + size] = [mine] * size
        elif type(entry) is ManyReads and entry.lo == a and entry.hi == a + size:
            entry.add(mine)
        else:
            self.read_by[a : a + size] = [ManyReads([*readers(entry), mine], a, a + size)] * size

    def polled(self, block, kind, addresses):
        """What those who poll these addresses wait for: fields of a ``Wait``."""
        writers = {}
        for address in addresses:
            a = address - self.base
            for w in self.written[a : a + 1]:
                for each in w.by.values() if w.atomic else (w,):
                    if each.block is block:
                        writers[each.tid] = each.site
        if not writers:
            why = "no thread of the block has written it"
        else:
            lines = sorted({block.threads[t].at(site) for t, site in writers.items()})
            why = f"wrote it before, at {lines[0]}{' and elsewhere' * (len(lines) > 1)}"
        more = f" and {len(addresses) - 1} more" if len(addresses) > 1 else ""
        value = unpack(self.bytes, addresses[0] - self.base, 4, 1) if kind == "flag" else ""
        return {
            "on": self.name_of(addresses[0]) + more,
            "state": f"holds {value}" if kind == "flag" else "",
            "by": tuple(sorted(writers)),
            "why": why,
        }

    # What is wrong, in words: the slow path.
    def bad_read(self, thread, w, address, size):
        name = self.name_of(address)
        if w is OUTSIDE:
            raise thread.fault(
                faults.OutOfRange, f"reads {size} bytes at {name}: no array is there", name
            )
        if w is UNWRITTEN or isinstance(w, Ended):
            raise thread.fault(
                faults.UninitialisedRead, f"reads {name}, which nothing has written", name
            )
        if isinstance(w, Live):
            raise thread.fault(
                faults.LiveBarrierAccess,
                f"reads {name}, the bytes of live barrier {w.barrier.name}",
                w.barrier,
            )
        if isinstance(w, Copy):
            raise self.unawaited(thread, w, name)
        raise thread.fault(
            faults.DataRace,
            f"reads {name}, which {thread.describe(w)} wrote at {thread.at(w.site)}; nothing orders "
            "the write before the read",
            name,
        )

    def unawaited(self, thread, copy, name):
        """Why a thread may not read what ``copy`` delivers."""
        state = "has landed" if copy.landed else "is still in flight"
        head = (
            f"reads {name}: the {copy.what} issued by {thread.describe(copy)} at "
            f"{thread.at(copy.site)} {state}, and this thread has not waited for it"
        )
        if copy.barrier is None:
            return thread.fault(faults.InFlightRead, head + " (its group is not waited for)", name)
        waited = thread.waits.get(copy.barrier)
        head += f" (it completes phase {copy.phase} of {copy.barrier.name})"
        if waited is None:
            return thread.fault(faults.InFlightRead, head, copy.barrier)
        phase, site, first, _ = waited
        if phase < 0:
            kind, seen = faults.FreshBarrierPassed, "before any phase was complete"
        elif copy.tid != thread.tid and copy.known[thread.tid] < first:
            # Nobody told the issuing thread that this one is past its wait: the refill came too
            # early, whichever of the two happened to run first.
            return too_early(thread, copy, phase, site)
        elif released(copy, thread.tid):
            why = release_of(copy, thread)
            return thread.fault(faults.ReadAfterRelease, f"{head}; {why}", copy.barrier)
        else:
            kind, seen = faults.StaleWait, f"for phase {phase}"
        head += f"; its last wait, at {thread.at(site)}, returned {seen}"
        return thread.fault(kind, head, copy.barrier)

    def bad_write(self, thread, w, address, size, record):
        if isinstance(w, Ended) and thread.seen[w.tid] >= w.ended:
            return
        name = self.name_of(address)
        verb = f"issues a {record.what} into" if isinstance(record, Copy) else "writes"
        if w is OUTSIDE:
            raise thread.fault(
                faults.OutOfRange, f"{verb} {size} bytes at {name}: no array is there", name
            )
        if isinstance(w, Live):
            raise thread.fault(
                faults.LiveBarrierAccess,
                f"{verb} {name}, the bytes of live barrier {w.barrier.name}",
                w.barrier,
            )
        if isinstance(w, Copy):
            kind = faults.CopyCollision if isinstance(record, Copy) else faults.DataRace
            state = "landed but not waited for" if w.landed else "in flight"
            raise thread.fault(
                kind,
                f"{verb} {name}, where the {w.what} issued by {thread.describe(w)} at "
                f"{thread.at(w.site)} is {state}",
                w.barrier or name,
            )
        done = "used as a barrier until" if isinstance(w, Ended) else "wrote at"
        raise thread.fault(
            faults.DataRace,
            f"{verb} {name}, which {thread.describe(w)} {done} {thread.at(w.site)}; nothing orders "
            "the two writes",
            name,
        )

    def bad_overwrite(self, thread, r, others, address, size, record):
        name = self.name_of(address)
        late = sorted({x[TID] for x in others if not self._saw_reader(thread, x)})
        who = f"thread {late[0]}" + (f" and {len(late) - 1} more" if len(late) > 1 else "")
        verb = f"issues a {record.what} into" if isinstance(record, Copy) else "writes"
        if r[OWNER] != r[TID]:
            raise thread.fault(
                faults.RefillRace if isinstance(record, Copy) else faults.DataRace,
                f"{verb} {name}, which the copy that {thread.describe_tid(r[BLOCK], r[TID])} issued at "
                f"{thread.at(r[SITE])} may still be reading",
                name,
            )
        if not isinstance(record, Copy):
            raise thread.fault(
                faults.DataRace,
                f"writes {name}, which {who} read at {thread.at(r[SITE])}; nothing orders the read "
                "before the write",
                name,
            )
        if released(record, r[TID]):
            reader = thread.block.threads[r[TID]]
            raise reader.fault_at(
                faults.ReadAfterRelease,
                f"reads {name}, into which {reader.describe(record)} issues a {record.what} at "
                f"{thread.at(record.site)}; {release_of(record, reader)}",
                r[SITE],
                record.barrier,
            )
        head = (
            f"{verb} {name}, which {who} read at {thread.at(r[SITE])}; nothing says that the read is "
            "over"
        )
        raise refill_fault(thread, record, head, r[TID])


def released(copy, reader):
    """Whether thread number ``reader`` has given the stage back since its last wait on the copy's
    barrier, to the thread that issued ``copy`` into it."""
    waited = copy.block.threads[reader].waits.get(copy.barrier)
    if waited is None or copy.last_wait is None:
        return False
    barrier, phase, _ = copy.last_wait
    return phase == barrier.phase - 1 and barrier.last_arrivers.get(reader, -1) >= waited[3]


def release_of(copy, reader):
    """What :func:`released` has found, in words."""
    phase, site, _, _ = reader.waits[copy.barrier]
    return (
        f"after its wait for phase {phase} of {copy.barrier.name}, at {reader.at(site)}, it has arrived "
        f"on {copy.last_wait[0].name}, which gave the stage back"
    )


def too_early(thread, copy, phase, site):
    """The fault of the thread that refilled a stage while ``thread``, whose wait for the phase before
    stands at ``site``, had yet to read it."""
    issuer, shared = copy.block.threads[copy.tid], copy.block.shared
    return refill_fault(
        issuer,
        copy,
        f"issues a {copy.what} into {shared.name_of(copy.address)}, which thread {thread.tid} has yet "
        f"to read: it waits for phase {phase} of {copy.barrier.name} at {thread.at(site)}; nothing "
        "says that the read is over",
        thread.tid,
    )


def refill_fault(issuer, copy, what, reader):
    """A RefillRace, or StaleRefill where the issuer did wait on a barrier of the readers."""
    kind = faults.RefillRace
    if copy.last_wait is not None:
        barrier, phase, site = copy.last_wait
        if reader in barrier.arrived | barrier.last_arrivers or barrier.pending < barrier.expected:
            seen = f"for phase {phase}" if phase >= 0 else "before any phase was complete"
            if phase == barrier.phase - 1 >= 0 and reader not in barrier.last_arrivers:
                seen += f", in which thread {reader} did not arrive"
            else:
                kind = faults.StaleRefill
            what += f"; its last wait on {barrier.name}, at {issuer.at(site)}, returned {seen}"
    about = copy.barrier or copy.block.shared.name_of(copy.address)
    return issuer.fault_at(kind, what, copy.site, about)


class Rerun(BaseException):
    """The schedule starts over: ``launch.traces`` now holds an array that needs records from the
    start."""


class SharedMemory(Space):
    """One block's shared memory. Static arrays lie low, the dynamic part at its own base.

    An array lands on an address that is a multiple of its alignment and of nothing larger, so that
    code that needs more alignment than it asked for fails here and not on some later day. All dynamic
    arrays are the same bytes; they start behind the static ones on a 16-byte boundary, whatever
    ``alignment`` says (``device.memory.align_up``).
    """

    FIRST = 1024

    def __init__(self, block, dynamic_bytes):
        super().__init__(0)
        self.block, self.dynamic_bytes = block, dynamic_bytes
        self.dynamic_start = _place(self.FIRST + STATIC_LIMIT + 1024, 16)
        self.end, self.static_bytes = self.FIRST, 0
        self.arrays = {}  # (call site, its function) -> (start, count, shape, dtype, name)
        self.ranges = []  # (start, stop, name)
        # Poison: NaN as a float of any kind. The size is fixed, since views of it are handed out.
        self.data = bytearray(b"\xff" * (self.dynamic_start + dynamic_bytes))
        self.bytes = memoryview(self.data)

    def _grow(self, stop):
        more = stop - len(self.written)
        if more > 0:
            self.written += [OUTSIDE] * more
            self.read_by += [None] * more

    def array(self, thread, site, name, shape, dtype, alignment):
        """The array that one ``cuda.shared.array`` call makes: the same one for the whole block."""
        made = self.arrays.get(site)
        if made is None:
            made = self.arrays[site] = self._make(thread, name, shape, dtype, alignment)
        start, count, shape, dtype, name = made
        view = np.frombuffer(self.data, dtype, count, start).reshape(shape)
        return ArrayView(self, start, view, name)

    def _make(self, thread, name, shape, dtype, alignment):
        if alignment and alignment & (alignment - 1):
            raise ValueError(f"alignment={alignment} is not a power of two")
        count = int(np.prod(shape))
        if count:
            alignment = max(alignment or 1, dtype.itemsize)
            start, size = _place(self.end, alignment), count * dtype.itemsize
            self.end = start + size
            self.static_bytes += size
            if self.static_bytes > STATIC_LIMIT:
                raise thread.fault(
                    faults.BadLaunch,
                    f"static shared arrays take {self.static_bytes} bytes with `{name}`, at most "
                    f"{STATIC_LIMIT} are there",
                )
            if self.static_bytes + self.dynamic_bytes > SHARED_LIMIT:
                raise thread.fault(
                    faults.BadLaunch,
                    f"static shared arrays take {self.static_bytes} bytes with `{name}`, and the "
                    f"launch asks for {self.dynamic_bytes} dynamic ones: at most {SHARED_LIMIT} are there",
                )
        else:
            start, size = self.dynamic_start, self.dynamic_bytes
            count = size // dtype.itemsize
            shape = (count,)
        if size and (start >= len(self.written) or self.written[start] is OUTSIDE):
            self._grow(start + size)
            self.written[start : start + size] = [UNWRITTEN] * size
        self.ranges.append((start, start + size, name))
        return start, count, shape, dtype, name

    def name_of(self, address):
        for start, stop, name in self.ranges:
            if start <= address < stop:
                return f"{name}[byte {address - start}]"
        return f"shared address {address:#x}"

    def poison(self, address, size):
        self.data[address : address + size] = b"\xff" * size


def _place(after, alignment):
    """The first address from ``after`` on that is a multiple of ``alignment`` and of nothing larger."""
    start = -(-after // alignment) * alignment
    return start if start // alignment % 2 else start + alignment


class Region(Space):
    """One array in global memory, or several that overlap.

    Small ones, and those that are written, carry records. Where a large one turns out to be written
    after it has been read, the schedule starts over with records from the start.
    """

    ALWAYS = 4096

    def __init__(self, arrays, traces):
        """``arrays``: [(array, name)], overlapping, the first with the lowest address."""
        super().__init__(_address(arrays[0][0]))
        self.stop = max(_address(array) + array.nbytes for array, _ in arrays)
        self.size = self.stop - self.base
        self.arrays, self.traces = [array for array, _ in arrays], traces
        self.name = "/".join(dict.fromkeys(name for _, name in arrays))
        # The bytes by address: of several arrays none need hold them all.
        content = np.frombuffer((ctypes.c_ubyte * self.size).from_address(self.base), np.uint8)
        content.flags.writeable = any(array.flags.writeable for array in self.arrays)
        self.bytes = memoryview(content)
        self.traced = self.was_read = False
        if self.size <= self.ALWAYS or self.base in traces:
            self._trace()

    def _trace(self):
        if self.was_read and not self.traced:
            self.traces.add(self.base)
            raise Rerun
        self.traced = True
        self.written = [INITIAL] * self.size
        self.read_by = [None] * self.size

    def on_read(self, thread, address, size):
        if self.traced:
            super().on_read(thread, address, size)
        else:
            self.was_read = True
            thread.reads += 1
            if thread.reads > MANY_READS:
                thread.many_reads("spin", self, address)

    def on_write(self, thread, address, size, record):
        if self.bytes.readonly:
            name = self.name_of(address)
            raise thread.fault(faults.ReadOnlyWrite, f"writes {name}", name)
        if not self.traced:
            self._trace()
        super().on_write(thread, address, size, record)

    def on_copy_read(self, thread, address, size, owner, clock):
        if self.traced:
            super().on_copy_read(thread, address, size, owner, clock)
        else:
            self.was_read = True

    def on_acquire(self, thread, address, size):
        if not self.traced:
            self._trace()
        super().on_acquire(thread, address, size)

    def check_read_only(self, thread, address, size):
        """For loads through the read-only path: this kernel must not have written the bytes."""
        if self.traced:
            a = address - self.base
            for w in dict.fromkeys(self.written[a : a + size]):
                if w is not INITIAL:
                    raise thread.fault(
                        faults.NotReadOnly,
                        f"reads {self.name_of(address)} through the read-only path; "
                        f"{thread.describe(w)} wrote it at {thread.at(w.site)}",
                        self.name_of(address),
                    )

    def _sees(self, thread, w):
        if w.block is not thread.block:
            return w is INITIAL or thread.knows(w.block, w.owner, w.clock)
        return super()._sees(thread, w)

    def _saw_reader(self, thread, r):
        if r[BLOCK] is not thread.block:
            return thread.knows(r[BLOCK], r[OWNER], r[CLOCK])
        return super()._saw_reader(thread, r)

    def name_of(self, address):
        return f"{self.name}[byte {address - self.base}]"


def _address(array):
    return array.__array_interface__["data"][0]


class GlobalMemory:
    """All arrays a launch may touch; addresses are those of the host's own arrays."""

    def __init__(self, arrays, traces):
        """``arrays``: [(C-contiguous array, name)]. Those that overlap become one region."""
        groups, stop = [], 0
        for array, name in sorted(arrays, key=lambda pair: _address(pair[0])):
            if array.nbytes == 0:
                continue
            if groups and _address(array) < stop:
                groups[-1].append((array, name))
            else:
                groups.append([(array, name)])
                stop = 0
            stop = max(stop, _address(array) + array.nbytes)
        self.regions = [Region(group, traces) for group in groups]
        self.starts = [region.base for region in self.regions]

    def find(self, thread, address, size, verb):
        i = bisect.bisect_right(self.starts, address) - 1
        if i >= 0:
            region = self.regions[i]
            if address + size <= region.stop:
                return region
            if address < region.stop or address - region.stop < 4096:
                raise thread.fault(
                    faults.OutOfRange,
                    f"{verb} {size} bytes at byte {address - region.base} of {region.name}, which has "
                    f"{region.size}",
                    region.name_of(address),
                )
        raise thread.fault(
            faults.OutOfRange,
            f"{verb} {size} bytes at {address:#x}: no array of this launch is there",
            f"{address:#x}",
        )

    def name_of(self, address):
        regions = self.overlapping(address, address + 1)
        return regions[0].name_of(address) if regions else f"global address {address:#x}"

    def overlapping(self, start, stop):
        """The regions that share bytes with [start, stop)."""
        return [region for region in self.regions if region.base < stop and start < region.stop]


class ArrayView:
    """A shared or global array as a kernel sees it: indexing that is checked."""

    __slots__ = ("space", "address", "data", "name", "integer", "itemsize", "strides", "shape")

    def __init__(self, space, address, data, name):
        self.space, self.address, self.data, self.name = space, address, data, name
        self.integer = data.dtype.kind in "iub"
        self.itemsize, self.strides, self.shape = data.dtype.itemsize, data.strides, data.shape

    def __repr__(self):
        return f"{self.name} at {self.address:#x}: {self.dtype}{self.shape}, strides {self.strides}"

    @property
    def size(self):
        return self.data.size

    @property
    def nbytes(self):
        return self.data.nbytes

    @property
    def ndim(self):
        return self.data.ndim

    @property
    def dtype(self):
        return self.data.dtype

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def view(self, dtype):
        """The same bytes as elements of another type."""
        return self._part(self.data.view(dtype_of(dtype)))

    def reshape(self, *shape):
        return self._part(self.data.reshape(*shape))

    def _part(self, data):
        return ArrayView(
            self.space, self.address + _address(data) - _address(self.data), data, self.name
        )

    def _locate(self, thread, index):
        """(tuple of ints, byte address) of one element, or (None, None) for a slice."""
        if type(index) is not tuple:
            index = (index,)
        if len(index) != len(self.shape):
            return None, None
        address = self.address
        for i, n, stride in zip(index, self.shape, self.strides):  # noqa: B905  this runs a lot
            if type(i) is slice:
                return None, None
            if not -n <= i < n:
                raise self._outside(thread, index)
            address += (i if i >= 0 else i + n) * stride
        return index, int(address)

    def _outside(self, thread, index):
        at = ", ".join(map(str, index if type(index) is tuple else (index,)))
        return thread.fault(
            faults.OutOfRange, f"index {index} of {self.name}{self.shape}", f"{self.name}[{at}]"
        )

    def __getitem__(self, index):
        thread = current()
        place, address = self._locate(thread, index)
        if place is None:
            try:
                return self._part(self.data[index])
            except IndexError:
                raise self._outside(thread, index) from None
        self.space.on_read(thread, address, self.itemsize)
        value = self.data[place]
        return value.item() if self.integer else value

    def __setitem__(self, index, value):
        thread = current()
        place, address = self._locate(thread, index)
        if place is None:
            raise thread.fault(faults.KernelError, f"assignment to a slice of {self.name}")
        self.space.on_write(thread, address, self.itemsize, thread.write_record())
        thread.block.progress += 1
        self.data[place] = wrap(value, self.data.dtype) if self.integer else value


class LocalArray:
    """``cuda.local.array``: one thread's own; reading an element nobody wrote is a fault."""

    __slots__ = ("shape", "dtype", "values", "convert", "row")

    def __init__(self, shape, dtype):
        self.shape = shape if isinstance(shape, tuple) else (int(shape),)
        self.dtype = dtype
        self.values = [None] * int(np.prod(self.shape))
        self.row = (
            len(self.values) if len(self.shape) == 1 else 0
        )  # the short way is for one number
        self.convert = (lambda v: wrap(v, dtype)) if dtype.kind in "iub" else dtype.type

    def __repr__(self):
        return f"local {self.dtype}{self.shape} {self.values}"

    @property
    def size(self):
        return len(self.values)

    @property
    def ndim(self):
        return len(self.shape)

    def __len__(self):
        return self.shape[0]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def _place(self, index):
        flat, shape = 0, self.shape
        if type(index) is not tuple:
            index = (index,)
        if len(index) != len(shape) or slice in map(type, index):
            raise TypeError(
                f"index {index} of a local array {shape}: one number for each dimension"
            )
        for i, n in zip(index, shape, strict=True):
            if not -n <= i < n:
                raise current().fault(faults.OutOfRange, f"index {index} of a local array {shape}")
            flat = flat * n + (i if i >= 0 else i + n)
        return flat

    def __getitem__(self, index):
        if type(index) is int and 0 <= index < self.row:
            value = self.values[index]
        else:
            value = self.values[self._place(index)]
        if value is None:
            raise current().fault(
                faults.UninitialisedRead, f"reads element {index} of a local array, never written"
            )
        return value

    def __setitem__(self, index, value):
        place = index if type(index) is int and 0 <= index < self.row else self._place(index)
        self.values[place] = self.convert(value)


def dtype_of(dtype):
    """The NumPy type for what a kernel names: one of NumPy's, Numba's or the engine's (``fake_cuda.cast``)."""
    try:
        return np.dtype(getattr(dtype, "numpy", dtype))
    except TypeError:
        return as_dtype(dtype)


def integer(x, lowest, highest):
    """A number as an integer; a float as the GPU converts it: toward zero, clamped, NaN to 0."""
    if isinstance(x, (float, np.floating)):
        return 0 if x != x else int(min(max(x, lowest), highest))
    return int(x)


def wrap(value, dtype):
    """A number as an integer ``dtype`` stores it."""
    if dtype.kind == "b":
        return bool(value)
    bits = 8 * dtype.itemsize
    if type(value) is not int:
        low = -(1 << (bits - 1)) if dtype.kind == "i" else 0
        value = integer(value, low, low + (1 << bits) - 1)
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.kind == "i" and value >> (bits - 1) else value


def unpack(buffer, offset, size, words):
    values = struct.unpack_from(_FORMATS[size, words], buffer, offset)
    return values[0] if words == 1 else values

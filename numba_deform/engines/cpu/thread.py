"""One CUDA thread of the CPU engine: a greenlet, its vector clock, and what intrinsics ask of it.

The methods without an underscore are the engine's side of the intrinsics in ``numba_deform/device``.
"""

import functools
import linecache
import math
import sys

import numpy as np
from greenlet import GreenletExit, greenlet

from .. import faults
from .costs import COST
from .records import UNWRITTEN, AtomicWrite, Write
from .space import MANY_READS
from .values import WORD, pack, unpack
from .verdicts import bad_read, too_early

maximum = np.maximum
FLAG = "touches the flag of"  # in reports
KERNEL = "__numba_deform_kernel__"  # in the globals of rebuilt kernel code


@functools.lru_cache(4096)
def line_of(site):
    """The source line of a call site (code, offset); offsets are what frames hand out cheaply."""
    code, offset = site
    line = code.co_firstlineno
    for start, _, number in code.co_lines():
        if start > offset:
            break
        line = number or line
    return line


def raised_at(error):
    """The call site in the kernel that an exception came through last; None without one."""
    site, entry = None, error.__traceback__
    while entry is not None:
        if KERNEL in entry.tb_frame.f_globals:
            site = entry.tb_frame.f_code, entry.tb_lasti
        entry = entry.tb_next
    return site


def describe_site(site):
    """``file:line`` of a call site."""
    if site is None:
        return "?"
    return f"{site[0].co_filename.rpartition('/')[2]}:{line_of(site)}"


def place(site):
    """(``file:line`` with the full path, that source line) of a call site; (None, None) of None."""
    if site is None:
        return None, None
    file, line = site[0].co_filename, line_of(site)
    return f"{file}:{line}", linecache.getline(file, line).strip()


def raise_to(clocks, others):
    """Every clock becomes at least the other one; ``others`` may be narrower, from an earlier time."""
    part = clocks[:, : others.shape[1]]
    np.maximum(part, others, out=part)


def merged(a, b):
    """The union of two *knowledges*: {block: clocks}, what an acquire may make visible."""
    if not a or a is b:
        return b
    result = dict(a)
    for block, clocks in b.items():
        known = result.get(block, clocks)
        if known is not clocks:
            narrow, wide = sorted((known, clocks), key=lambda c: c.shape[1])
            clocks = wide.copy()
            raise_to(clocks, narrow)
        result[block] = clocks
    return result


def same_line(a, b):
    """Whether two call sites stand on one source line."""
    return a == b or describe_site(a) == describe_site(b)


def _engine_does(name):
    """The method of Thread that asks the block's CopyEngine for its method ``name``."""
    return lambda self, *args: getattr(self.block.engine, name)(self, *args)


class Thread(greenlet):
    """Thread ``tid`` of a block. ``clocks[0]`` is its vector clock, ``seen`` the same row;
    ``clocks[1]`` is the part of it that the copy engine (the async proxy) sees as well."""

    def __init__(self, run, block, tid):
        super().__init__(run)
        self.block, self.tid = block, tid
        self.warp, self.lane = tid >> 5, tid & 31
        self.clock = 1
        self.time = 0.0
        self.waiting = None  # (kind, object, parity, mask or address) of the last wait
        # barrier -> (phase, site, clock at the first wait for that phase, clock at the last wait)
        self.waits = {}
        self.last_wait = None  # (barrier, phase, site), of the barriers that no copy signals
        self.polled = None  # (barrier, parity, site, phase) of the last poll, if it failed
        self.foreign = {}  # what acquires have made visible of other blocks: {block: clocks}
        self.published = self.acquired = {}  # by the last fence; by atomics since the last fence
        self.reads = 0  # in a row, without a pause
        self.groups = {}  # of copies, by kind: "bulk" and "cp.async"
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

    # --- where we are ---------------------------------------------------------------------------
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

    def state(self):
        """Where a thread stands and what its variables hold: if that comes again and nobody has
        changed anything, it is going to come forever."""
        frame, values = self.gr_frame or sys._getframe(1), [self.tid]
        while frame is not None:
            if KERNEL in frame.f_globals:
                values += [frame.f_lasti, *map(repr, dict(frame.f_locals).items())]
            frame = frame.f_back
        return tuple(values)

    def fault(self, kind, what, about=None):
        return self.fault_at(kind, what, self.site(), about)

    def fault_at(self, kind, what, site, about=None, threads=(), waits=()):
        """``about`` is the barrier that the fault is about, or the name of an address; ``threads``
        stand at ``site``, if not this one only."""
        where, source = place(site)
        return kind(
            what, thread=self.tid, threads=threads, block=self.block.index, where=where, source=source,
            barrier=getattr(about, "name", about),
            state=about.state() if hasattr(about, "state") else None, waits=waits
        )

    at = staticmethod(describe_site)

    def describe(self, record):
        return self.describe_tid(record.block, record.tid)

    def describe_tid(self, block, tid):
        if block is not None and block is not self.block:
            return f"thread {tid} of block {block.index}"
        return "this thread" if tid == self.tid else f"thread {tid}"

    def write_record(self):
        return Write(self.tid, self.clock, self.tid, self.here(), self.block)

    def park(self, kind, what, detail=None):
        self.waiting = (kind, what, detail)
        self.reads = 0
        block = self.block
        block.switches += 1
        block.hub.switch()

    def spin(self, kind="spin", what=None, detail=None):
        """Give way because this thread polls; it runs again when something may have changed."""
        self.block.spinning.append(self)
        self.park(kind, what, detail)

    poll = many_reads = spin  # at a look at a flag or barrier; after many reads

    # --- addresses and plain accesses -----------------------------------------------------------
    def address_of(self, space, array):
        is_shared = getattr(array, "space", None) is self.block.shared
        if is_shared != (space == "shared") or not hasattr(array, "address"):
            what = f"{space}_address of something that is no {space} array"
            raise self.fault(faults.OutOfRange, what)
        return array.address

    def _locate(self, space, address, size, verb):
        """(memory, address) of ``size`` bytes that are accessed, which lie on a multiple of ``size``."""
        if space == "shared":
            memory, address = self.block.shared, address & WORD
        else:
            address = int(address)
            memory = self.block.globals.find(self, address, size, verb)
        if address % size:
            name, verb = memory.name_of(address), verb.partition(" ")[0]
            what = f"{verb} {size} bytes at {name}, not a multiple of {size}"
            raise self.fault(faults.Misaligned, what, name)
        return memory, address

    def load(self, space, address, size, words, read_only=False):
        region, address = self._locate(space, address, size, "reads")
        self.time += COST.shared_access if space == "shared" else COST.global_access
        if read_only:
            region.check_read_only(self, address, size)
        region.on_read(self, address, size)
        return unpack(region.bytes, address - region.base, size, words)

    def store(self, space, address, words):
        size = 4 * len(words)
        region, address = self._locate(space, address, size, "writes")
        self.time += COST.shared_access if space == "shared" else COST.global_access
        region.on_write(self, address, size, self.write_record())
        self._set(region, address, words)

    def _set(self, region, address, words):
        self.block.progress += 1
        offset = address - region.base
        region.bytes[offset : offset + 4 * len(words)] = pack(words)

    # --- flags and fences -----------------------------------------------------------------------
    def load_acquire(self, space, address):
        region, address = self._locate(space, address, 4, FLAG)
        offset = address - region.base
        too_soon = UNWRITTEN in region.written[offset : offset + 4]
        self.poll("flag", region, address)
        region.on_acquire(self, address, 4)
        if too_soon:  # whoever has written it since then might as well have been later
            raise bad_read(region, self, UNWRITTEN, address, 4)
        self.acquire(region.flags.get(address))
        self.time += COST.shared_access
        return unpack(region.bytes, offset, 4, 1)

    def store_release(self, space, address, value):
        region, address = self._locate(space, address, 4, FLAG)
        region.on_write(self, address, 4, self.atomic_record((address, 4)))
        region.flags[address] = self.knowledge()
        self.tick()
        self._set(region, address, (value,))

    def atomic_record(self, extent):
        return AtomicWrite(self.tid, self.clock, self.tid, self.here(), self.block, extent)

    def knowledge(self):
        """All that a release by this thread hands on."""
        return {**self.foreign, self.block: self.clocks.copy()}

    def acquire(self, knowledge):
        """What a release handed on is visible from here on."""
        for block, clocks in (knowledge or {}).items():
            if block is self.block:
                raise_to(self.clocks, clocks)
            else:
                self.foreign = merged(self.foreign, {block: clocks})
                self.block.knows_others = True

    def knows(self, block, owner, clock):
        """Whether that moment of another block is visible here."""
        clocks = self.foreign.get(block)
        return clocks is not None and owner < clocks.shape[1] and clocks[0, owner] >= clock

    def fence_acq_rel(self):
        """Release: later relaxed atomics hand out what came before. Acquire: earlier ones take effect."""
        self.acquire(self.acquired)
        self.acquired = {}
        self.published = self.knowledge()
        self.tick()

    def atomic(self, view, index, change, reads=True):
        """Read-modify-write of one element; returns the old value."""
        place, address = view._locate(self, index)
        if place is None:
            raise self.fault(faults.KernelError, f"atomic on a slice of {view.name}")
        self._order_atomic(view.space, address, view.itemsize, reads)
        old = self._change(view.space, address, view.data, place, change)
        return old.item() if view.integer else old

    def atomic_word(self, space, address, change, reads=True, release=False):
        """Read-modify-write of the 32-bit word at an address; returns the old value."""
        region, address = self._locate(space, address, 4, FLAG)
        self._order_atomic(region, address, 4, reads, release)
        word = np.frombuffer(region.bytes, np.uint32, 1, address - region.base)

        def changed(old):
            new = change(int(old))
            return None if new is None else np.uint32(new & WORD)

        return int(self._change(region, address, word, 0, changed))

    def _order_atomic(self, space, address, size, reads, release=False):
        """Check an atomic's place and order, and what it hands on, ``release`` or relaxed."""
        if reads:
            # The value read must be there; an atomic one races with ordinary writes only.
            space.on_acquire(self, address, size)
        space.on_write(self, address, size, self.atomic_record((address, size)))
        # Atomics continue a release sequence: who acquires later gets what all of them published.
        knowledge = space.flags.get(address)
        if knowledge:
            self.acquired = merged(self.acquired, knowledge)
        published = self.knowledge() if release else self.published
        if published:
            space.flags[address] = merged(knowledge, published)
        if release:
            self.tick()

    def _change(self, space, address, data, place, change):
        old = data[place]
        new = change(old)
        if new is not None and new != old:
            data[place] = new
            self.block.progress += 1
        else:  # more likely than a read to be a poll
            self.reads += 10
            if self.reads > MANY_READS:
                self.poll("atomic", space, address)
        self.time += COST.atomic
        return old

    def fence_proxy_async(self):
        np.copyto(self.clocks[1], self.clocks[0])
        self.tick()

    def fence_mbarrier_init(self):
        # Of what this thread wrote only its inits reach the copy engine.
        for barrier in self.block.barriers.live.values():
            if barrier.init_epoch[0] == self.tid and barrier.fenced is None:
                barrier.fenced = self.clock
        self.tick()

    def mbarrier_init(self, address, count):
        self.time += COST.barrier
        self.block.barriers.init(self, address & WORD, count)
        self.tick()

    def mbarrier_inval(self, address):
        self.time += COST.barrier
        self.block.barriers.inval(self, address & WORD)
        self.tick()

    def mbarrier_arrive(self, address, count):
        barrier = self.block.barriers.find(self, address)
        self.time += COST.barrier
        if self.block.events is not None:
            self.block.record("arrive", self, self.time, self.time, barrier)
        barrier.arrive(self, count)

    def mbarrier_arrive_drop(self, address):
        self.block.barriers.find(self, address).drop(self)
        self.mbarrier_arrive(address, 1)

    def mbarrier_expect_tx(self, address, count):
        barrier = self.block.barriers.find(self, address)
        barrier.expect(self, count)
        barrier.complete_if_done(self)

    def mbarrier_arrive_expect_tx(self, address, count):
        self.mbarrier_expect_tx(address, count)
        self.mbarrier_arrive(address, 1)

    def mbarrier_wait(self, address, parity, suspend):
        block, start = self.block, self.time
        barrier = block.barriers.find(self, address)
        if parity != 0 and parity != 1:
            what = f"waits on {barrier.name} for parity {parity}"
            raise self.fault(faults.BadCount, what, barrier)
        site, phase, known = self.here(), barrier.phase, self.seen[barrier.component]
        # Knowing less than the phase before, it could pass for an older one of the same parity.
        if known < phase - 1:
            raise self._missed(barrier, known)
        if phase & 1 == parity:
            # try_wait may give up early: callers loop.
            if not suspend or block.grid.seed and block.chance(0.1):
                self._poll_failed(barrier, parity, site, phase)
                return 0
            barrier.waiters.append(self)
            self.park("mbarrier", barrier, parity)
            if barrier.ended:
                raise barrier.inval_fault(self, site)
            if barrier.phase != phase + 1:
                raise self._missed(barrier, phase)
            phase = barrier.phase
        if known < phase:
            maximum(self.clocks, barrier.released, out=self.clocks)
            if barrier.released_foreign:
                self.acquire(barrier.released_foreign)
        done = barrier.done_time
        self.time = (done if done > start else start) + COST.barrier
        phase, first = phase - 1, self.clock  # the phase that is complete
        last = self.waits.get(barrier)
        if last is not None and last[0] == phase:
            first = last[2]
        self.waits[barrier] = (phase, site, first, self.clock)
        if not barrier.issuers:
            self.last_wait = (barrier, phase, site)
        self.polled = None
        if block.events is not None:
            block.record("wait", self, start, self.time, barrier, phase=phase)
        return 1

    def _poll_failed(self, barrier, parity, site, phase):
        """Give way after a poll that found the phase incomplete."""
        last = self.polled
        if last and last[:3] == (barrier, parity, site) and last[3] != phase:
            raise self._missed(barrier, last[3])
        self.polled = (barrier, parity, site, phase)
        self.poll("mbarrier", barrier, parity)

    def _missed(self, barrier, phase):
        """This thread waits for ``phase``; before it came to look, the next was complete as well."""
        copy = barrier.last_copy
        if copy is not None and copy.tid != self.tid and barrier.refilled(phase):
            # The bytes of the phase it waits for have been replaced before it could read them.
            return too_early(self, copy, phase, self.site())
        what = (
            f"waits on {barrier.name} for phase {phase}, the one after those it knows to be complete, "
            f"but the barrier is in phase {barrier.phase}, where a parity means another"
        )
        return self.fault(faults.MissedPhase, what, barrier)

    tensor_load, tensor_store = _engine_does("tensor_load"), _engine_does("tensor_store")
    bulk_load, bulk_store = _engine_does("bulk_load"), _engine_does("bulk_store")
    cp_async, commit_group = _engine_does("cp_async"), _engine_does("commit_group")
    wait_group, find_map = _engine_does("wait_group"), _engine_does("find_map")
    fence_map = _engine_does("fence_map")

    def shuffle(self, mask, value, source):
        values = self.collective("shfl", mask, value)
        source = int(source) & 31
        if source not in values:
            what = f"shuffles from lane {source}, which is not in mask {mask:#x}"
            raise self.fault(faults.WarpDivergence, what)
        return values[source]

    def elect(self, mask):
        return int(self.lane == min(self.collective("elect", mask, None)))

    def collective(self, kind, mask, value):
        return self.block.warps[self.warp].collective(self, kind, int(mask) & WORD, value)

    def named_barrier(self, number, threads, wait):
        self.block.named_barrier(self, number, threads, wait)

    def set_max_registers(self, direction, count):
        """Remembered, and compared with the other warps of the warpgroup when the block ends."""
        what = f"setmaxnreg.{direction} {count}"
        if count % 8 or not 24 <= count <= 256:
            raise self.fault(faults.RegisterMisuse, what)
        self.collective(what, WORD, None)
        if self.lane == 0:
            self.block.register_counts.setdefault(self.warp, []).append((what, self.site()))

    @staticmethod
    def exit():
        raise GreenletExit

    def clock_cycles(self):
        self.time += 1
        return math.floor(self.time)

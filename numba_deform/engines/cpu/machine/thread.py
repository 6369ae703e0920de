"""One CUDA thread of the CPU engine: a greenlet, its vector clock, and what intrinsics ask of it.

The methods without an underscore are the engine's side of the intrinsics in ``numba_deform/device``.
"""

import math
import sys
from types import SimpleNamespace

import numpy as np
from greenlet import GreenletExit, greenlet

from ....compiler.rewrite import REBUILT
from ... import faults
from ..async_units import warp_mma, wgmma
from ..async_units.cycle_costs import COST
from ..memory.access_faults import bad_read, too_early
from ..memory.access_records import CLOCK, SITE, UNWRITTEN, AtomicWrite, Write
from ..memory.arrays import told
from ..memory.scalars import WORD, dtype_of, is_undefined, put, put_half, undefined, unpack
from ..memory.shadow_memory import MANY_READS
from ..memory.vector_clocks import (
    ASYNC,
    FENCED,
    MET,
    SHARED,
    Flag,
    covers,
    covers_shared,
    for_shared_memory,
    merged,
    raise_to,
    renamed,
)
from ..reports.call_sites import KERNEL, describe_site, place, result_used
from ..reports.source_loops import step_of
from .thread_operations import Instructions, engine_does

maximum = np.maximum
FLAG = "touches the flag of"  # in reports
NOWHERE = SimpleNamespace(base=0, stop=0)


class Thread(Instructions, greenlet):
    """Thread ``tid`` of a block. ``clocks[0]`` is its vector clock, ``seen`` the same row;
    ``clocks[1]`` is the part of it that the copy engine (the async proxy) sees as well."""

    def __init__(self, run, block, tid):
        super().__init__(run)
        self.block, self.tid = block, tid
        self.warp, self.lane = tid >> 5, tid & 31
        self.mates = block.warps[self.warp]
        self.shared = block.shared
        self.source = self.target = NOWHERE  # the arrays in global memory that it has read, and written, last
        self.ordinary = block, tid, False  # its key in ManyReads
        # Its records of late, by offset in the code: most come again before the clock moves on.
        self.readers, self.writes = {}, {}
        self.clock = 1
        self.time = 0.0
        self.waiting = None  # (kind, object, parity, mask or address) of the last wait
        # barrier -> (phase, site, clock at the first wait for that phase, clock at the last wait)
        self.waits = {}
        self.last_wait = None  # (barrier, phase, site), of the barriers that no copy signals
        self.foreign = {}  # what acquires have made visible of other blocks: {block: clocks}
        # By the last fence, and by atomics since: each (with scope cta, with a wider one).
        self.published = self.acquired = {}, {}
        self.met = None  # the last flag that it has read, as it was then
        self.narrow_fence = False  # whether the last one had scope cta
        self.reads = 0  # in a row, without a pause
        self.groups = {}  # of copies, by kind: "bulk" and "cp.async"
        self.fenced = False  # whether it has executed a wgmma.fence
        self.shuffled = None  # where an undefined value came from, in words
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
        frame, values = self.gr_frame or sys._getframe(1), [self.block.index, self.tid]
        known = self.block.grid.places
        while frame is not None:
            if REBUILT in frame.f_globals:
                place = id(frame.f_code), frame.f_lasti
                if place not in known:
                    known[place] = step_of(frame.f_code, frame.f_lasti)
                values += place[0], known[place]
                for name, value in frame.f_locals.items():
                    if name[:2] != "__":  # these are typed code's own, of one statement
                        values += name, value if type(value) is int else told(value)
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

    # --- addresses and plain accesses -----------------------------------------------------------
    def address_of(self, space, array):
        is_shared = getattr(array, "space", None) is self.block.shared
        if is_shared != (space == "shared") or not hasattr(array, "address"):
            what = f"{space}_address of something that is no {space} array"
            raise self.fault(faults.OutOfRange, what)
        return array.address

    def dynamic_start(self, alignment):
        array = self.block.shared.array(self, "dynamic", "shared", (0,), np.dtype(np.uint8), None)
        return -(-array.address // alignment) * alignment

    def shared_array(self, address, shape, dtype):
        return self.block.shared.view(self, address & WORD, shape, dtype_of(dtype))

    def _locate(self, space, address, size, verb):
        """(memory, address) of ``size`` bytes that are accessed, which lie on a multiple of ``size``."""
        if space == "shared":
            memory, address = self.shared, address & WORD
        else:
            address = int(address)
            memory = self.block.globals.find(self, address, size, verb)
        if address % size:
            name, verb = memory.name_of(address), verb.partition(" ")[0]
            what = f"{verb} {size} bytes at {name}, not a multiple of {size}"
            raise self.fault(faults.Misaligned, what, name)
        return memory, address

    def load(self, space, address, size, words, read_only=False):
        if space == "shared":
            region, address = self.shared, address & WORD
            self.time += COST.shared_access
            if address % size:
                self._locate(space, address, size, "reads")
        else:
            region = self.source
            if address < region.base or address + size > region.stop or address % size:
                region, address = self._locate(space, address, size, "reads")
                self.source = region if len(region.arrays) == 1 else NOWHERE
            self.time += COST.global_access
            if read_only and region.traced:
                region.on_read_only(self, address, size)
        region.on_read(self, address, size)
        if size == 4 and region.words:
            return region.words[address - region.base >> 2]
        return unpack(region.bytes, address - region.base, size, words)

    def store(self, space, address, words, half=False):
        """``half``: the lower 16 bits of one word."""
        size = 2 if half else 4 * len(words)
        if space == "shared":
            region, address = self.shared, address & WORD
            self.time += COST.shared_access
            if address % size:
                self._locate(space, address, size, "writes")
        else:
            region = self.target
            if address < region.base or address + size > region.stop or address % size:
                region, address = self._locate(space, address, size, "writes")
                self.target = region if len(region.arrays) == 1 else NOWHERE
            self.time += COST.global_access
        if self.shuffled:
            for word in words:
                self.check_defined(word, region.name_of(address))
        region.on_write(self, address, size, self.write_record())
        self.block.progress += 1
        if half:
            put_half(region.bytes, address - region.base, *words)
        else:
            put(region.bytes, address - region.base, words)

    def _set(self, region, address, words):
        self.block.progress += 1
        put(region.bytes, address - region.base, words)

    # --- flags and fences -----------------------------------------------------------------------
    # ``wide``: of gpu scope or a wider one, else of scope cta, which orders nothing between blocks.
    def load_acquire(self, space, address, wide=True, relaxed=False):
        region, address = self._locate(space, address, 4, FLAG)
        return self.load_flag(region, address, wide, relaxed)

    def load_flag(self, region, address, wide=True, relaxed=False):
        offset = address - region.base
        too_soon = UNWRITTEN in region.written[offset : offset + 4]
        self.poll("flag", region, address)
        region.on_acquire(self, address, 4, wide, result_used(self.here()))
        if too_soon:  # whoever has written it since then might as well have been later
            raise bad_read(region, self, UNWRITTEN, address, 4)
        self._meet(region.flags.get(address), wide, not relaxed)
        self.time += COST.shared_access
        return unpack(region.bytes, offset, 4, 1)

    def store_release(self, space, address, value, wide=True, relaxed=False):
        region, address = self._locate(space, address, 4, FLAG)
        self.store_flag(region, address, value, wide, relaxed)

    def store_flag(self, region, address, value, wide=True, relaxed=False):
        region.on_write(self, address, 4, self.atomic_record((address, 4), wide))
        region.flags[address] = Flag()  # what was there before is not handed on
        self._hand_on(region.flags[address], wide, not relaxed)
        self._set(region, address, (value,))

    def atomic_record(self, extent, wide=True, reads=False):
        return AtomicWrite(self.tid, self.clock, self.tid, self.here(), self.block, extent, wide, reads)

    def knowledge(self):
        """All that a release by this thread hands on."""
        return {**self.foreign, self.block: self.clocks.copy()}

    def acquire(self, knowledge):
        """What a release handed on is visible from here on."""
        own = self.block, (SHARED, self.block)  # of this SM; no other cache is asked
        for key in own:
            if key in knowledge:
                raise_to(self.clocks, knowledge[key])
        self.learn({key: clocks for key, clocks in knowledge.items() if key not in own})

    def learn(self, facts):
        """The same for facts that are not clocks of this block."""
        if facts:
            self.foreign = merged(self.foreign, facts)
            self.block.knows_others = True

    def knows(self, block, owner, clock):
        """Whether that moment of another block is visible here."""
        return covers(self.foreign, block, owner, clock)

    def knows_shared(self, block, owner, clock):
        """The same of its accesses to shared memory."""
        return covers_shared(self.foreign, block, owner, clock)

    def fence_acq_rel(self, wide=True, sc=False):
        """Release: later relaxed atomics hand out what came before. Acquire: earlier ones take effect."""
        if sc:
            self.acquire(renamed(self.foreign, MET, None))
        self.acquire(self.acquired[wide])
        self.acquired = {}, {} if wide else self.acquired[True]
        known = self.knowledge()
        if sc:
            self.learn(renamed(known, None, FENCED))
        self.published = known, known if wide else self.published[True]
        self.narrow_fence = not wide
        self.tick()

    def _meet(self, flag, wide, acquire):
        """This thread has read what handed on the knowledge of ``flag``."""
        if flag is None:
            return
        met = flag, flag.changes, wide, acquire
        if met == self.met:  # a poll has nothing new
            return
        self.met = met
        own, every = flag.seen_by(self.block)
        if acquire:
            self.acquire(every if wide else own)
        self.acquired = merged(self.acquired[False], own), merged(self.acquired[True], every)
        if wide:
            self.learn(renamed(every, FENCED, MET))

    def _hand_on(self, flag, wide, release):
        """A write of this thread hands on what its last fence covers, or as a ``release`` all."""
        own, every = self.published
        if wide and self.block.knows_others:
            every = merged(every, renamed(self.foreign, FENCED, FENCED))
        if release:
            own = self.knowledge()
            every = merged(every, own) if wide else every
            self.tick()
        flag.add(self.block, own, every if wide else {})

    def atomic(self, view, index, change, reads=True):
        """Read-modify-write of one element; returns the old value."""
        place, address = view._locate(self, index)
        if place is None:
            raise self.fault(faults.KernelError, f"atomic on a slice of {view.name}")
        self._order_atomic(view.space, address, view.itemsize, reads)
        old = self._change(view.space, address, view.data, place, change)
        return old.item() if view.integer else old

    def atomic_word(self, space, address, change, reads=True, **order):
        """Read-modify-write of the 32-bit word at an address; returns the old value."""
        region, address = self._locate(space, address, 4, FLAG)
        return self.atomic_flag(region, address, change, reads, **order)

    def atomic_flag(self, region, address, change, reads=True, **order):
        self._order_atomic(region, address, 4, reads, **order)
        word = np.frombuffer(region.bytes, np.uint32, 1, address - region.base)

        def changed(old):
            new = change(int(old))
            return None if new is None else np.uint32(new & WORD)

        return int(self._change(region, address, word, 0, changed))

    def _order_atomic(self, space, address, size, reads, acquire=False, release=False, wide=True):
        """Check an atomic's place and order, and what it takes and hands on."""
        used = result_used(self.here())
        if reads:
            # The value read must be there; an atomic one races with ordinary writes only.
            space.on_acquire(self, address, size, wide, used, False)
        record = self.atomic_record((address, size), wide, True)
        space.on_write(self, address, size, record)
        if used:
            record.observe(self)
        # Atomics continue a release sequence: who acquires later gets what all of them published.
        flag = space.flags.setdefault(address, Flag())
        self._meet(flag, wide, acquire)
        self._hand_on(flag, wide, release)

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

    def fence_proxy_async(self, shared=True, globally=False):
        if shared:
            np.copyto(self.clocks[1], self.clocks[0])
        if globally:
            self.learn(renamed(self.knowledge(), None, ASYNC))
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

    def mbarrier_arrive(self, address, count, complete=True):
        barrier = self.block.barriers.find(self, address)
        self.time += COST.barrier
        if self.block.events is not None:
            self.block.record("arrive", self, self.time, self.time, barrier)
        barrier.arrive(self, count, complete)

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

    def mbarrier_wait(self, address, parity, suspend, token=None):
        block, start = self.block, self.time
        barrier = block.barriers.find(self, address)
        if token is not None:
            barrier.check_token(self, token)
        if parity != 0 and parity != 1:
            what = f"waits on {barrier.name} for parity {parity}"
            raise self.fault(faults.BadCount, what, barrier)
        site, phase, known = self.here(), barrier.phase, self.seen[barrier.component]
        if known < phase - 1 and barrier.lost(self):
            raise self._missed(barrier, known)
        if phase & 1 == parity:
            # try_wait may give up early: callers loop.
            if not suspend or block.grid.seed and block.chance(0.1):
                if not suspend:
                    self.poll("mbarrier", barrier, parity)
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
            if barrier.released_far:
                self.acquire(for_shared_memory(barrier.released_far))
        done = barrier.done_time
        self.time = (done if done > start else start) + COST.barrier
        phase, first = phase - 1, self.clock  # the phase that is complete
        last = self.waits.get(barrier)
        if last is not None and last[0] == phase:
            first = last[2]
        self.waits[barrier] = (phase, site, first, self.clock)
        if not barrier.issuers:
            self.last_wait = (barrier, phase, site)
        if block.events is not None:
            block.record("wait", self, start, self.time, barrier, phase=phase)
        return 1

    def _missed(self, barrier, phase):
        """This thread waits for ``phase``; before it came to look, the next was complete as well."""
        copy = barrier.last_copy
        own = copy is not None and copy.tid == self.tid and copy.block is self.block
        later = copy is not None and not own and copy.phase > phase
        if later and barrier.refilled(phase, copy):
            # The bytes of the phase it waits for have been replaced before it could read them.
            return too_early(self, copy, phase, self.site())
        what = (
            f"waits on {barrier.name} for phase {phase}, the one after those it knows to be complete, "
            f"but the barrier is in phase {barrier.phase}, where a parity means another"
        )
        return self.fault(faults.MissedPhase, what, barrier)

    tensor_load, tensor_store = engine_does("tensor_load"), engine_does("tensor_store")
    bulk_load, bulk_store = engine_does("bulk_load"), engine_does("bulk_store")
    cp_async, commit_group = engine_does("cp_async"), engine_does("commit_group")
    wait_group, find_map = engine_does("wait_group"), engine_does("find_map")
    fence_map, replace_map = engine_does("fence_map"), engine_does("replace_map")
    publish_map = engine_does("publish_map")

    def shuffle(self, mask, value, source, kind="shfl.idx"):
        """The value of lane ``source``; undefined where that lane takes no part, which is no fault until the
        value is stored."""
        values, source = self.mates.collective(self, kind, int(mask) & WORD, value), int(source) & 31
        other = 32 * self.warp + source
        if source in values:
            if self.block.undefined:
                self.shuffled = self.shuffled or self.block.threads[other].shuffled
            return values[source]
        self.block.undefined = True
        why = "has exited" if other < self.block.size else "does not exist"
        why = why if mask >> source & 1 else f"is not in mask {mask:#x}"
        self.shuffled = f"a shuffle at {self.at(self.site())} reads lane {source}, which {why}"
        return undefined(value)

    def check_defined(self, value, name):
        """Refuse to store a value that a shuffle from nowhere has made."""
        if is_undefined(value):
            fault = self.fault(faults.UninitialisedRead, f"stores an undefined value in {name}", name)
            fault.add(self.shuffled)
            fault.rule = "A shuffle from a lane that has exited or is not in the mask gives an undefined value "
            fault.rule += "(PTX 9.7.9.6), which may go unused."
            fault.cure = "Shuffle from lanes of the mask, or leave the value unused where the lane is none."
            raise fault

    def active_mask(self):
        """Lanes that have come to this place and stand here together. Any grouping of those that meet at one
        place is legal. In the schedule of seed 0 the halves of a warp stand apart, so that who counts on the
        whole warp is found out; other seeds group them by chance."""
        groups = self.block.warps[self.warp].active
        place = self.site(), not self.block.chance(0.9) and self.lane >> 4
        group = groups.setdefault(place, [])
        group.append(self.lane)
        self.spin()  # until all others have stopped
        if groups.get(place) is group:
            del groups[place]
        return sum(1 << lane for lane in group)

    def elect(self, mask):
        return int(self.lane == min(self.collective("elect", mask, None)))

    def collective(self, kind, mask, value):
        return self.mates.collective(self, kind, int(mask) & WORD, value)

    def named_barrier(self, number, threads, wait):
        self.block.named_barrier(self, number, threads, wait)

    def set_max_registers(self, direction, count):
        what = f"setmaxnreg.{direction} {count}"
        if count % 8 or not 24 <= count <= 256:
            raise self.fault(faults.RegisterMisuse, what)
        self.collective(what, WORD, None)
        self.block.registers.move(self, direction, count)

    load_matrices, store_matrices = warp_mma.load_matrices, warp_mma.store_matrices
    multiply_matrices = warp_mma.multiply_matrices
    matrix_descriptor, warpgroup_fence = wgmma.matrix_descriptor, wgmma.warpgroup_fence
    commit_products, wait_products = wgmma.commit_products, wgmma.wait_products
    multiply_in_warpgroup = wgmma.multiply

    @staticmethod
    def exit():
        raise GreenletExit

    def clock_cycles(self):
        self.time += 1
        return math.floor(self.time)

"""Blocks, warps and the scheduler of the CPU engine.

Each CUDA thread is a greenlet; one runs at a time and gives way only where it waits or polls. When
nobody can run and no copy is in flight, that is a deadlock, and the parked threads say why, unless another
block may yet let one go on (``residents.py``). Polling
threads run again once all others have stopped; when they come to be where they were, and nothing has
changed, that is a livelock, unless another block is there that may change it (``residents.py``).
"""

import contextvars
import functools
import random
import textwrap
from bisect import insort
from collections import deque
from typing import NamedTuple

import numpy as np
from greenlet import getcurrent

from ....device.limits import NAMED_BARRIERS
from ... import faults
from ...waiting import Wait, blame, draw, have, ranges
from ..async_units.copy_engine import CopyEngine
from ..async_units.mbarrier import Barriers
from ..memory.access_faults import explain_copy
from ..memory.access_records import Copy
from ..memory.memory import SharedMemory
from ..memory.shadow_memory import Space
from ..memory.vector_clocks import merged, raise_to
from ..reports.call_sites import describe_site, indentation, line_of, place, same_line
from ..reports.error_origin import blamed
from .cluster import ClusterShared
from .cross_block_barrier import CrossBlockBarrier
from .registers import RegisterPool
from .thread import Thread

LIVELOCK_ROUNDS, LIVELOCK_STATES = 20, 1000
# Who polls so may well wait for another block: two looks are enough before that one has its turn, and
# so many even if they change something themselves.
SHORT, LOOKS = ("flag", "atomic"), 500
LAST = 1 << 40  # switches: a copy due then lands when nothing else can run


class Event(NamedTuple):
    """One entry of a recorded run, in virtual cycles of its block's SM."""

    kind: str  # issue, flight, wait, arrive, complete
    start: float
    end: float
    block: int
    warp: int
    lane: int
    barrier: str
    phase: int
    bytes: int
    address: int  # shared address of a copy's destination
    line: int


class Warp:
    """32 lanes and the warp-wide operations that wait for all of them."""

    def __init__(self, block, number, lanes):
        self.block, self.number = block, number
        self.alive = (1 << lanes) - 1
        self.pending = {}  # mask -> [kind, site, values by lane, parked threads]
        self.active = {}  # (site of an activemask, group) -> the lanes that stand there

    def collective(self, thread, kind, mask, value):
        if not mask >> thread.lane & 1:
            what = f"{kind} with mask {mask:#x}, which leaves out the caller"
            raise thread.fault(faults.WarpDivergence, what)
        entry = self.pending.get(mask)
        if entry is None:
            entry = self.pending[mask] = [kind, thread.site(), {}, []]
        other, _, values, parked = entry
        if other != kind:  # they may call the same one at different places
            raise self._apart(thread, kind, mask, entry)
        values[thread.lane] = value
        if len(values) == (mask & self.alive).bit_count():
            self._finish(mask, entry)
        else:
            parked.append(thread)
            thread.park(kind, self, mask)
        return values

    def _apart(self, thread, kind, mask, entry):
        """The lanes of ``entry`` wait in one operation, and ``thread`` calls another.
        Blamed is the one that stands deeper in branches and loops: the other lanes have passed it by."""
        other, first, values, parked = entry
        waiting, where = ranges(sorted(values), "lane"), describe_site(first)
        if indentation(first) <= indentation(thread.site()):
            what = f"{kind} with mask {mask:#x}, while {waiting} {'wait' if len(values) > 1 else 'waits'} in "
            return thread.fault(faults.WarpDivergence, f"{what}{other} at {where}")
        what = f"{other} with mask {mask:#x} by {waiting}, while lane {thread.lane} calls {kind} at "
        what += describe_site(thread.site())
        tids = [t.tid for t in parked]
        return parked[0].fault_at(faults.WarpDivergence, what, first, threads=tids)

    def _complete(self, mask, values):
        return len(values) == (mask & self.alive).bit_count()

    def _finish(self, mask, entry):
        kind, _, values, parked = entry
        del self.pending[mask]
        if kind == "syncwarp":
            self.block.join([self.number * 32 + lane for lane in values])
        self.block.ready.extend(parked)

    def waited(self, kind, mask):
        """What those who wait for the lanes of ``mask`` wait for: fields of a ``Wait``."""
        here, lanes = self.pending[mask][2], range(min(32, self.block.size - 32 * self.number))
        late = [i for i in lanes if (mask & self.alive) >> i & 1 and i not in here]
        gone = [i for i in lanes if (mask & ~self.alive) >> i & 1]
        state = f"{ranges(sorted(here), 'lane')} of warp {self.number} {have(here)} come"
        if gone:
            state += f", {ranges(gone, 'lane')} {have(gone)} exited"
        return {
            "on": f"{kind} with mask {mask:#x}", "state": state,
            "missing": f"{ranges(late, 'lane')} never {'comes' if len(late) == 1 else 'come'}",
            "by": tuple(32 * self.number + i for i in late), "why": "not at this place",
        }

    def deadlock(self, kind):
        return faults.WarpDivergence

    def lane_exits(self, lane):
        self.alive &= ~(1 << lane)
        for mask, entry in list(self.pending.items()):
            if mask >> lane & 1 and self._complete(mask, entry[2]):
                self._finish(mask, entry)


class NamedBarrier:
    """One use of a named barrier (``syncthreads`` is number 0): who has come so far."""

    def __init__(self, block, number, wanted, site, whole):
        self.block, self.number, self.wanted, self.site = block, number, wanted, site
        self.whole = whole  # for all threads of the block, with no count of its own: syncthreads
        self.name = f"named barrier {number}" if number else "barrier 0 (syncthreads)"
        self.lanes, self.arrived, self.last = {}, 0, None  # warp -> mask; threads in all; the last
        self.first = {}  # warp -> (its first thread here, clock, site)
        self.parked = []
        self.released, self.foreign, self.time = None, {}, 0.0  # of those that do not wait

    def arrive(self, thread):
        if thread.warp not in self.first:
            self.first[thread.warp] = (thread.tid, thread.clock, thread.site())
        self.lanes[thread.warp] = self.lanes.get(thread.warp, 0) | 1 << thread.lane
        self.arrived += 1
        self.last = thread

    def release(self, thread):
        """bar.arrive: what this thread has done so far, and nothing later, is handed on."""
        clocks = thread.clocks.copy()
        if self.released is not None:
            raise_to(clocks, self.released)
        self.released, self.foreign = clocks, merged(self.foreign, thread.foreign)
        self.time = max(self.time, thread.time)
        thread.tick()

    def partial(self):
        """The arrived warps of which lanes have neither arrived nor exited: {warp: mask of these}."""
        warps = self.block.warps
        late = {w: warps[w].alive & ~lanes for w, lanes in self.lanes.items()}
        return {w: mask for w, mask in late.items() if mask}

    def short(self):
        """How many arrivals are missing."""
        warps, absent = self.block.warps, 0
        # Lanes that have exited, or that the last warp never had, count as arrived with their warp.
        for warp, lanes in self.lanes.items():
            absent += 32 - (lanes | warps[warp].alive).bit_count()
        if self.whole:  # exited warps do not hold it up; where there is a count, they do
            absent += sum(32 for w in warps if not w.alive and w.number not in self.lanes)
        return self.wanted - self.arrived - absent

    def state(self):
        """Its state in words."""
        some = f", of warp {min(self.partial())} only some lanes" if self.partial() else ""
        return f"{self.arrived} of {self.wanted} threads have arrived{some}"

    def waited(self, kind, wanted):
        """What those who wait here wait for: fields of a ``Wait``."""
        partial, short = self.partial(), self.short()
        late = [t for t in self.block.threads if partial.get(t.warp, 0) >> t.lane & 1]
        if short > len(late):  # whole warps are missing; which ones is known if all should come
            others = [t for t in self.block.threads if t.warp not in self.lanes]
            gone = not self.whole
            late += [t for t in others if not t.dead or gone and not self.block.warps[t.warp].alive]
        return {
            "on": f"{kind} (barrier {self.number})", "state": self.state(),
            "missing": f"{short} thread{'s' * (short > 1)} missing",
            "by": tuple(sorted(t.tid for t in late)), "why": "not at this barrier",
        }

    def deadlock(self, kind):
        if kind == "syncthreads":
            return faults.DivergentBarrier
        return faults.NamedBarrierMisuse if self.partial() else faults.Deadlock


class Block:
    """One thread block: its threads, shared memory, barriers and copies in flight."""

    thread_type, memory_type, warp_type, barriers_type = Thread, SharedMemory, Warp, Barriers

    def __init__(self, grid, index, size, shared_bytes):
        self.grid, self.index, self.size = grid, index, size
        self.rng = random.Random(f"{grid.seed}/{index}")
        self.capacity = size + 64
        self.components = size
        self.clock_table = np.zeros((size, 2, self.capacity), np.int32)
        memory = ClusterShared if grid.cluster_size > 1 else self.memory_type
        self.shared = memory(self, shared_bytes)
        self.globals = grid.globals
        self.barriers = self.barriers_type(self)
        self.engine = CopyEngine(self)
        self.warps = [self.warp_type(self, w, min(32, size - 32 * w)) for w in range((size + 31) // 32)]
        self.named, self.votes = {}, []  # id -> NamedBarrier; of the threads at the current syncthreads
        self.registers = RegisterPool(self, *grid.registers)
        self.warpgroups = {}  # number -> Warpgroup, of those that multiply
        self.copies = []
        self.ready, self.spinning = deque(), []
        self.live = set()
        self.progress = self.switches = self.rounds = 0
        self.last_progress, self.states = -1, set()
        self.spun = -1  # progress when polling threads ran last
        self.knows_others = False  # whether a thread has acquired from another block
        self.cluster, self.rank = None, 0  # cluster.py sets them
        self.cross_block = []  # the barriers of several blocks that its threads take part in
        self.undefined = False  # whether a shuffle has made a value that is undefined
        self.events = grid.events
        self.hub, self.starting, self.in_turn = None, None, not grid.seed

    def new_component(self):
        """A new entry in every vector clock of the block."""
        if self.components == self.capacity:
            old, self.capacity = self.clock_table, 2 * self.capacity
            self.clock_table = _widened(old, self.capacity)
            for thread in self.live:
                thread.attach()
            for barrier in self.barriers.live.values():
                barrier.gathered = _widened(barrier.gathered, self.capacity)
                barrier.released = _widened(barrier.released, self.capacity)
        self.components += 1
        return self.components - 1

    def join(self, tids, barrier=None):
        """A barrier among these threads: each now knows what all of them knew, and what others said
        who only arrived at ``barrier``."""
        known = self.clock_table[tids].max(axis=0)
        time = max(self.threads[t].time for t in tids)
        if barrier and barrier.released is not None:
            raise_to(known, barrier.released)
            time = max(time, barrier.time)
        self.clock_table[tids] = known
        for t in tids:
            self.threads[t].tick()
            self.threads[t].time = time
        if self.knows_others:
            self.join_foreign(tids, barrier.foreign if barrier else {})

    def join_foreign(self, tids, foreign):
        """The same of what they know of other blocks."""
        foreign = functools.reduce(merged, (self.threads[t].foreign for t in tids), foreign)
        for t in tids:
            self.threads[t].foreign = foreign

    def chance(self, probability):
        return self.grid.seed != 0 and self.rng.random() < probability

    def record(self, kind, thread, start, end, barrier, phase=None, size=0, dst=0, site=None):
        if self.events is not None:
            site = site or thread.site()
            phase = barrier.phase if phase is None else phase
            who, line = (self.index, thread.warp, thread.lane), line_of(site) if site else 0
            self.events.append(Event(kind, start, end, *who, barrier.name, phase, size, dst, line))

    def launch_copy(self, copy, deliver):
        copy.deliver, copy.due = deliver, self._due()
        self.grid.copies_issued += copy.size > 0  # an arrival left to copies is none itself
        if copy.due:
            insort(self.copies, copy, key=lambda c: c.due)
        else:
            self._deliver(copy)

    def _due(self):
        """The number of switches at which a copy issued now is to land; 0: at once. A random landing
        comes at once, after 1 to 4096 switches with all scales alike, or last, and each so often."""
        landing, random = self.grid.landing, self.rng.random
        if landing != "random":
            return LAST if landing == "late" else 0
        kind = self.rng.randrange(3)
        return (0, self.switches + 2 ** (12 * random()), LAST + random())[kind]

    def land(self, copy=None):
        """Deliver ``copy``, or the one that is due first."""
        if copy is None:
            copy = self.copies[0]
        self.copies.remove(copy)
        self.progress += 1
        self._deliver(copy)

    def _deliver(self, copy):
        try:
            copy.deliver()
        except (ValueError, NotImplementedError) as error:  # what the tensor map has to say
            thread = copy.block.threads[copy.tid]
            raise thread.fault_at(faults.BadTensorMap, str(error), copy.site) from error

    def named_barrier(self, thread, number, threads, wait):
        if not 0 <= number <= NAMED_BARRIERS or threads % 32 or not 32 <= threads <= -(-self.size // 32) * 32:
            name = f"named barrier {number}"
            what = f"{name} with {threads} threads in a block of {self.size}"
            raise thread.fault(faults.NamedBarrierMisuse, what, name)
        self._arrive_named(thread, number, threads, wait, "bar.sync" if wait else "bar.arrive")

    def syncthreads(self, thread, vote=None):
        """Returns the votes of all threads that came."""
        site = thread.site()
        barrier = self.named.get(0)
        if barrier and not same_line(barrier.site, site):
            what = f"calls syncthreads() here while {barrier.arrived} threads wait in the one at "
            raise thread.fault(faults.DivergentBarrier, what + describe_site(barrier.site), barrier)
        if not barrier:
            self.votes = []
        votes = self.votes  # when this thread goes on, others may be at the next barrier
        votes.append(vote)
        self._arrive_named(thread, 0, -(-self.size // 32) * 32, True, "syncthreads")
        return votes

    def _arrive_named(self, thread, number, wanted, wait, kind):
        barrier = self.named.get(number)
        if barrier is None:
            whole = kind == "syncthreads"
            barrier = self.named[number] = NamedBarrier(self, number, wanted, thread.site(), whole)
        what, others = "", barrier.wanted
        if others != wanted:
            what = f"named barrier {number} with {wanted} threads, while others wait there with {others}"
        elif barrier.lanes.get(thread.warp, 0) >> thread.lane & 1:
            what = f"arrives at named barrier {number} again before its {wanted} threads have arrived"
        if what:
            raise thread.fault(faults.NamedBarrierMisuse, what, barrier)
        barrier.arrive(thread)
        if wait:
            barrier.parked.append(thread)
        else:
            barrier.release(thread)
        if not self._finish_named(barrier) and wait:
            thread.park(kind, barrier, wanted)

    def _finish_named(self, barrier):
        if barrier.whole and barrier.arrived < len(self.live) or barrier.short() > 0:
            return False
        for warp in barrier.partial():
            what = f"named barrier {barrier.number} completes although only "
            what += f"{barrier.lanes[warp].bit_count()} lanes of warp {warp} came"
            raise barrier.last.fault(faults.NamedBarrierMisuse, what, barrier)
        del self.named[barrier.number]
        self.progress += 1
        if barrier.parked:
            self.join([t.tid for t in barrier.parked], barrier)
        current = getcurrent()
        self.ready.extend(thread for thread in barrier.parked if thread is not current)
        return True

    # --- running ----------------------------------------------------------------------------------
    def start(self, function, args):
        """Make the threads; ``run`` lets them run, and ``close`` comes last."""
        start = functools.partial(function, *args)
        self.threads = [self.thread_type(start, self, t) for t in range(self.size)]
        context = contextvars.copy_context()  # greenlets have contexts of their own: np.errstate
        for thread in self.threads:
            thread.gr_context = context
        self.live = set(self.threads)
        self.ready.extend(self.threads)

    def run(self, alone=True):
        """Run the block to its end, or to a SimFault, or until its threads only poll: then true.

        ``alone``: no other block is going to change anything; a poll may take its time."""
        self.hub, self.alone, self.looks = getcurrent(), alone, 0
        self.last_progress = -1
        self._unspin()
        try:
            if self._run_threads():
                return True
            self._check_copies_done()
            self.registers.check()
            self.cluster.check_visits(self)
        except faults.SimFault:
            raise
        except Exception as error:
            raise blamed(error, self.grid) from error
        return False

    def close(self):
        """End those that still wait after a fault, so that nothing stays."""
        for thread in self.live:
            if not thread.dead:
                thread.block = self
                thread.throw()
        self.copies.clear()

    def next(self):
        """The greenlet that a thread that waits hands over to: the thread that goes on now, or the hub, which
        knows what else there is to do. The hub starts threads, too: who is started by one that is itself deep
        in calls has fewer of them left."""
        ready = self.ready
        if not ready or self.copies and self.copies[0].due <= self.switches:
            return self.hub
        thread = ready.popleft() if self.in_turn else self.choose()
        if thread:
            self.grid.running = thread
            return thread
        self.starting = thread
        return self.hub

    def choose(self):
        """Take one of those that are ready."""
        if not self.in_turn:
            self.ready.rotate(-self.rng.randrange(len(self.ready)))
        return self.ready.popleft()

    def _go_on(self):
        """Let the next thread run, and those that it hands over to."""
        launch = self.grid
        launch.running = self.choose() if self.starting is None else self.starting
        self.starting = None
        launch.running.switch()
        thread = launch.running  # the last of those that then ran
        if thread.dead:
            self._exited(thread)

    def _run_threads(self):
        copies = self.copies
        while self.live:
            while copies and copies[0].due <= self.switches:
                self.land()
            if self.starting is not None or self.ready:
                self._go_on()
            elif self.spinning and self.progress != self.spun:
                if self._looks_long():
                    return True
                self._unspin()  # they may see something new
            elif copies:
                self.land()
                self._unspin()
            elif self.spinning:
                if self._only_polls():
                    return True
                self._unspin()
            elif self._waits_outside():
                return True
            else:
                raise self._no_progress("no thread can run and no copy is in flight")
        return False

    def summary(self):
        """(switches, virtual cycles of the longest thread, bytes of static shared memory)"""
        return self.switches, max(t.time for t in self.threads), self.shared.static_bytes

    def _unspin(self):
        self.ready.extend(self.spinning)
        self.spinning, self.spun = [], self.progress

    def _exited(self, thread):
        self.live.discard(thread)
        self.progress += 1
        self.warps[thread.warp].lane_exits(thread.lane)
        for barrier in list(self.named.values()):
            first = barrier.first.get(thread.warp)
            if first and not barrier.lanes[thread.warp] >> thread.lane & 1:
                tid, clock, site = first
                if thread.seen[tid] >= clock:  # it was there when the other arrived
                    what = f"arrives at named barrier {barrier.number}, and thread {thread.tid} of its "
                    what += "warp exits without doing so"
                    raise self.threads[tid].fault_at(faults.NamedBarrierMisuse, what, site, barrier)
            self._finish_named(barrier)
        for barrier in self.cross_block:
            barrier.exits(thread)

    def _check_copies_done(self):
        for arrival in [copy for copy in self.copies if not copy.size]:
            self.land(arrival)
        known = self.clock_table[:, 0].max(axis=0)
        left = [w for w in dict.fromkeys(self.shared.written) if isinstance(w, Copy)]
        for copy in [*self.copies, *left]:
            covered = copy.landed and (copy.owner < 0 or known[copy.owner] >= copy.clock)
            if not covered:
                self._outlives(copy)
        for thread in self.threads:
            for groups in (thread.groups[kind] for kind in ("bulk", "wgmma") if kind in thread.groups):
                done = known[groups.read_component]
                late = [c for number, copies in groups.committed if number > done for c in copies]
                if late := late + groups.open:
                    self._outlives(late[-1])

    def _outlives(self, copy):
        thread = copy.block.threads[copy.tid]
        name = self.shared.name_of(copy.address)
        what = f"all threads have exited, and nobody has waited for the {copy.what} to {name}"
        fault = thread.fault_at(faults.CopyOutlivesBlock, what, copy.site, copy.barrier or name)
        raise fault if copy.barrier else explain_copy(fault, thread, copy)

    # --- no progress ------------------------------------------------------------------------------
    def _waits(self):
        """Who waits for what, those that wait alike together: {Wait: (the threads, on what)}."""
        groups = {}
        for thread in sorted(self.live, key=lambda t: t.tid):
            kind, what, detail = thread.waiting
            # Each may poll a place of its own, but atomics may take locks, and each lock has its owner.
            alike = None if isinstance(what, Space) and kind != "atomic" else detail
            groups.setdefault((kind, what, alike, thread.site()), []).append(thread)
        waits = {}
        for (kind, what, detail, site), threads in groups.items():
            if isinstance(what, Space):
                addresses = sorted({t.waiting[2] for t in threads})
                fields = what.polled(self, kind, addresses, {t.tid for t in threads})
            elif what is None:
                fields = {"on": "what its loop tests", "why": "it is no barrier and no flag"}
            else:
                fields = what.waited(kind, detail)
            where, source = place(site)
            wait = Wait(tuple(t.tid for t in threads), where, source, kind, **fields)
            waits[wait] = threads, what
        return waits

    def _no_progress(self, head, polling=(), kind=faults.Livelock):
        """The fault of those at the root of it, or of those of ``polling``, with a drawing of all."""
        waits, polling = self._waits(), set(polling)
        blamed = blame([w for w, (threads, _) in waits.items() if not polling or polling & {*threads}])
        threads, what = waits[blamed]
        kind = kind if polling else what.deadlock(blamed.kind)
        about = blamed.on if isinstance(what, Space) else None if isinstance(what, Warp) else what
        drawing = draw(list(waits), [t.tid for t in self.threads if t.dead])
        what = textwrap.indent(f"{head}; -> who could end a wait\n{drawing}", "    ").lstrip()
        return threads[0].fault_at(kind, what, threads[0].site(), about, blamed.threads, waits)

    def _only_polls(self):
        """All who could run are polling. Whether nothing has changed since they last did, too often."""
        if self.progress != self.last_progress:
            self.rounds, self.last_progress, self.states = 0, self.progress, set()
        self.rounds += 1
        if self.rounds >= 2 and self._looks_long(2):
            return True
        if self.rounds % LIVELOCK_ROUNDS:
            return False
        # Threads that work through data, or count their attempts, are not stuck: not the same state.
        state = frozenset(thread.state() for thread in self.spinning)
        if state not in self.states and len(self.states) < LIVELOCK_STATES:
            self.states.add(state)
            return False
        return True

    def _looks_long(self, looks=LOOKS):
        """Whether threads have polled that often what another block may change."""
        self.looks += 1
        return self.looks >= looks and not self.alone and any(t.waiting[0] in SHORT for t in self.spinning)

    def livelock(self, more="", kind=faults.Livelock):
        """The fault of those who poll what nobody is going to change."""
        head = f"the polling threads see no change, and nobody else can run{more}"
        return self._no_progress(head, self.spinning, kind)

    def deadlock(self, more=""):
        """The fault of those who wait for what no other block is going to do."""
        return self._no_progress(f"no thread can run and no copy is in flight{more}")

    def _waits_outside(self):
        """Whether another block may let a thread go on: one of its cluster, or one that comes to its
        barrier."""
        if len(self.cluster.blocks) > 1:
            return True
        return any(isinstance(thread.waiting[1], CrossBlockBarrier) for thread in self.live)

    def waits_outside_for(self):
        """How likely it is that other blocks hold this one up, all of whose threads wait or poll: 0 not at all,
        1 that its mbarriers lack something of theirs, 2 that it polls what they write, 3 for sure."""
        on = [t.waiting[1] for t in self.spinning or self.live]
        if any(each is self.shared or isinstance(each, (Warp, NamedBarrier)) for each in on):
            return 0
        return 2 if self.spinning else 3 if all(isinstance(each, CrossBlockBarrier) for each in on) else 1


def _widened(array, width):
    wide = np.zeros((*array.shape[:-1], width), np.int32)
    wide[..., : array.shape[-1]] = array
    return wide

"""A thread block: its threads, clock table, named barriers and copies in flight. ``resident_blocks`` makes
it."""

import functools
import random
from bisect import insort
from collections import deque

import numpy as np
from greenlet import getcurrent

from ....device.limits import NAMED_BARRIERS
from ... import faults
from ..async_units.barriers import Barriers
from ..async_units.copy_engine import CopyEngine
from ..memory.cluster_memory import ClusterShared
from ..memory.shared_memory import SharedMemory
from ..memory.vector_clocks import merged, raise_to
from ..reports.call_sites import describe_site, origin, same_line
from .events import Event
from .named_barrier import NamedBarrier
from .progress import ROUNDS
from .registers import RegisterPool
from .scheduler import Scheduler
from .thread import Thread
from .warp import Warp

LAST = 1 << 40  # switches: a copy due then lands when nothing else can run


class Block(Scheduler):
    """One thread block: its threads, shared memory, barriers and copies in flight."""

    thread_type, memory_type, warp_type, barriers_type = Thread, SharedMemory, Warp, Barriers

    def __init__(self, execution, index, size, shared_bytes):
        self.execution, self.index, self.size = execution, index, size
        self.explain = execution.explain  # the room of that name
        self.rng = random.Random(f"{execution.seed}/{index}")
        self.capacity = size + 64
        self.components = size
        self.issuers_clocks = np.zeros(size, np.int32)  # what issuers of copies that ended phases knew
        self.clock_table = np.zeros((size, 2, self.capacity), np.int32)
        memory = ClusterShared if execution.cluster_size > 1 else self.memory_type
        self.shared = execution.watch(memory(self, shared_bytes))
        self.globals = execution.globals
        self.barriers = self.barriers_type(self)
        self.copy_engine = CopyEngine(self)
        self.warps = [self.warp_type(self, w, min(32, size - 32 * w)) for w in range((size + 31) // 32)]
        self.named, self.completed = {}, {}  # id -> NamedBarrier; its use before
        self.met = (), ()  # who came to the last syncthreads that is over, and the calls by which the last did
        self.named_barrier_calls = {}  # (number, count, site) of a call -> the threads that have made it
        self.registers = RegisterPool(self, *execution.registers)
        self.warpgroups = {}  # number -> Warpgroup, of those that multiply
        self.tensor_memory = None  # a TensorMemory, of those that allocate some
        self.copies = []
        self.ready, self.spinning = deque(), []
        self.threads, self.live = (), set()
        self.progress = self.switches = self.rounds = 0
        self.last_progress, self.states = -1, set()
        self.spun = -1  # progress when polling threads ran last
        # Of those who poll, and of the block, with its progress then; after how many rounds that is looked at.
        self.round_states, self.stride = {}, ROUNDS
        self.tickets = "thread-fence-reduction" in execution.waived.names
        self.knows_others = False  # whether a thread has acquired from another block
        self.cluster, self.rank = None, 0  # cluster.py sets them
        # Whether a thread may let other blocks go first; one does; the progress when one last did.
        self.pauses, self.gives_way, self.paused = False, False, -1
        self.cross_block = []  # the barriers of several blocks that its threads take part in
        self.events = execution.events
        self.unwaited = {}  # copy -> the number of its event, of those that signal no mbarrier
        self.hub, self.starting, self.in_turn = None, None, not execution.seed

    def new_component(self):
        """A new entry in every vector clock of the block."""
        if self.components == self.capacity:
            old, self.capacity = self.clock_table, 2 * self.capacity
            self.clock_table = _widened(old, self.capacity)
            self.attach()
            for barrier in self.barriers.live.values():
                barrier.gathered = _widened(barrier.gathered, self.capacity)
                barrier.released = _widened(barrier.released, self.capacity)
        self.components += 1
        return self.components - 1

    def attach(self):
        """Let the threads know of a new clock table."""
        for thread in self.live:
            thread.attach()

    def wake(self, barrier):
        """All who wait at an mbarrier go on."""
        self.ready.extend([self.threads[tid] for tid in barrier.waiting[: barrier.waiter_count].tolist()])

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

    def record(self, kind, thread, start, end, about, phase=None, size=0, dst=0, site=None):
        """``about``: a barrier, or the name of what is none."""
        if self.events is not None:
            site = site or thread.site()
            phase, name = about.phase if phase is None else phase, getattr(about, "name", about)
            who, line = (self.index, thread.warp, thread.lane), origin(site)[1] if site else 0
            self.events.append(Event(kind, start, end, *who, name, phase, size, dst, line, thread.block.index))

    def launch_copy(self, copy, deliver):
        copy.deliver, copy.due = deliver, self._due()
        if self.events is not None and copy.barrier is None:
            thread, what = self.threads[copy.tid], copy.what.partition(" at ")[0]  # without its place
            self.unwaited[copy], moment = len(self.events), (thread.time, thread.time)
            self.record("async", thread, *moment, what, copy.phase, copy.size, copy.address, copy.site)
        self.execution.copies_issued += copy.size > 0  # an arrival left to copies is none itself
        if copy.due and (not self.copies or self.copies[-1].due <= copy.due):
            self.copies.append(copy)
        elif copy.due:
            insort(self.copies, copy, key=lambda c: c.due)
        else:
            self._deliver(copy)

    def _due(self):
        """The number of switches at which a copy issued now is to land; 0: at once. A random landing
        comes at once, after 1 to 4096 switches with all scales alike, or last, and each so often."""
        landing, random = self.execution.landing, self.rng.random
        if landing != "random":
            return LAST if landing == "late" else 0
        kind = self.rng.randrange(3)
        return (0, self.switches + 2 ** (12 * random()), LAST + random())[kind]

    def waited_for(self, thread, copies):
        """``thread`` has waited for ``copies``; the first such wait ends their events."""
        for copy in copies if self.unwaited else ():
            number = self.unwaited.pop(copy, None)
            if number is not None:
                end = max(thread.time, getattr(copy, "done", 0))  # a product's own end
                self.events[number] = self.events[number]._replace(end=end)

    def land(self, copy=None):
        """Deliver ``copy``, or the one that is due first."""
        if copy is None:
            copy = self.copies[0]
        self.copies.remove(copy)
        self.progress += 1
        self._deliver(copy)

    def _deliver(self, copy):
        deliver, copy.deliver = copy.deliver, None  # what it holds is garbage at once, and not at the end
        try:
            deliver()
        except (ValueError, NotImplementedError) as error:  # what the tensor map has to say
            thread = copy.block.threads[copy.tid]
            raise thread.fault_at(faults.BadTensorMap, str(error), copy.site) from error

    def named_barrier(self, thread, number, threads, wait, vote=None):
        """Returns the votes of all threads that came and voted."""
        if not 0 <= number <= NAMED_BARRIERS or threads % 32 or not 32 <= threads <= -(-self.size // 32) * 32:
            what = f"named barrier {number} with {threads} threads in a block of {self.size}"
            raise thread.fault(faults.NamedBarrierMisuse, what, what.partition(" with")[0])
        self.named_barrier_calls.setdefault((number, threads, thread.site()), set()).add(thread.tid)
        return self._arrive_named(thread, number, threads, wait, "bar.sync" if wait else "bar.arrive", vote)

    def syncthreads(self, thread, vote=None):
        """Returns the votes of all threads that came."""
        site = thread.site()
        barrier = self.named.get(0)
        if barrier and not same_line(barrier.site, site):
            count = "1 thread waits" if barrier.arrived == 1 else f"{barrier.arrived} threads wait"
            what = f"calls syncthreads() here while {count} in the one at "
            raise thread.fault(faults.DivergentBarrier, what + describe_site(barrier.site), barrier)
        return self._arrive_named(thread, 0, -(-self.size // 32) * 32, True, "syncthreads", vote)

    def _arrive_named(self, thread, number, wanted, wait, kind, vote):
        barrier = self.named.get(number)
        if barrier is None:
            whole = kind == "syncthreads"
            barrier = self.named[number] = NamedBarrier(self, number, wanted, thread.site(), whole)
        if barrier.wanted != wanted:
            raise self.explain.other_count(barrier, thread, wanted)
        before, fault = self.completed.get(number), None
        if barrier.has(thread):
            fault = self.explain.lapped(barrier, thread, wait)
        elif unordered := before and before.unordered(thread):
            fault = self.explain.lapped(before, thread, wait, unordered)
        if fault and not (wait and self.execution.waived.excuses(fault, thread)):
            raise fault
        barrier.arrive(thread)
        if vote is not None:
            barrier.votes.append(vote)
        if wait:
            barrier.parked.append(thread)
        else:
            barrier.release(thread)
        came = thread.time
        if not self._finish_named(barrier) and wait:
            thread.park(kind, barrier, wanted)
        if wait:
            self.record("meet", thread, came, thread.time, barrier, phase=0)
        return barrier.votes

    def _finish_named(self, barrier):
        if barrier.whole and barrier.arrived < len(self.live) or barrier.short() > 0:
            return False
        if barrier.reported:
            return False  # somebody is about to say what is wrong
        if skipped := barrier.skipped():
            raise self.explain.without_its_warp(barrier, skipped)
        del self.named[barrier.number]
        self.completed[barrier.number] = None if barrier.released is None else barrier
        if barrier.whole:
            self.met = {t.tid for t in barrier.parked}, barrier.last.calls()
        self.progress += 1
        if barrier.parked:
            self.join([t.tid for t in barrier.parked], barrier)
        current = getcurrent()
        self.ready.extend(thread for thread in barrier.parked if thread is not current)
        return True

    def _check_copies_done(self):
        for arrival in [copy for copy in self.copies if not copy.size]:
            self.land(arrival)
        for group in self.warpgroups.values():
            group.check_alike()
        if self.tensor_memory:
            self.tensor_memory.check_freed()
        known = self.clock_table[:, 0].max(axis=0)
        excused = set()
        for copy in [*self.copies, *self.shared.copies()]:
            covered = copy.landed and (copy.owner < 0 or known[copy.owner] >= copy.clock)
            if not covered:
                if copy.tid not in excused or not copy.is_committed():
                    self._outlives(copy)
                excused.add(copy.tid)
                if copy in self.copies:
                    self.land(copy)
        for thread in self.made():
            for groups in (thread.groups[kind] for kind in ("bulk", "wgmma") if kind in thread.groups):
                done = known[groups.read_component]
                late = [c for number, copies in groups.committed if number > done for c in copies]
                if (late := late + groups.open) and (groups.open or thread.tid not in excused):
                    self._outlives(late[-1])

    def tells_of_tensor_memory(self, w):
        """Whether a write to shared memory is a ``tcgen05.alloc``'s."""
        return self.tensor_memory is not None and w.site in self.tensor_memory.told

    def _outlives(self, copy):
        fault = self.explain.outlives(self, copy)
        if not self.execution.waived.excuses(fault, copy.block.threads[copy.tid], copy.site):
            raise fault


def _widened(array, width):
    wide = np.zeros((*array.shape[:-1], width), np.int32)
    wide[..., : array.shape[-1]] = array
    return wide

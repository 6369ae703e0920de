"""Blocks, warps and the scheduler of the CPU engine.

Each CUDA thread is a greenlet; one runs at a time and gives way only where it waits or polls. A
thread that waits is parked, so when nobody can run and no copy is in flight, that is a deadlock and
the parked threads say why. Polling threads stand in a queue of their own and run again once all
others have stopped; when nothing has changed and they come to be where they were, that is a livelock.
"""

import contextvars
import functools
import random
from collections import deque
from typing import NamedTuple

import numpy as np
from greenlet import getcurrent

from . import faults
from .copies import CopyEngine
from .mbarrier import Barriers
from .memory import Copy, SharedMemory
from .thread import KERNEL, Thread, describe_site, line_of, merged, same_line

LIVELOCK_ROUNDS, LIVELOCK_STATES = 20, 1000


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

    def collective(self, thread, kind, mask, value):
        site = thread.site()
        if not mask >> thread.lane & 1:
            raise thread.fault(
                faults.WarpDivergence, f"{kind} with mask {mask:#x}, which leaves out the caller"
            )
        entry = self.pending.get(mask)
        if entry is None:
            entry = self.pending[mask] = [kind, site, {}, []]
        # Lanes may meet in syncwarp from different places. To exchange values they have to be at one.
        if entry[0] != kind or (kind != "syncwarp" and not same_line(entry[1], site)):
            raise thread.fault(
                faults.WarpDivergence,
                f"{kind} with mask {mask:#x}, while lanes {sorted(entry[2])} wait in {entry[0]} at "
                f"{describe_site(entry[1])}",
            )
        values = entry[2]
        values[thread.lane] = value
        if self._complete(mask, values):
            self._finish(mask, entry)
        else:
            entry[3].append(thread)
            thread.park(kind, self, mask)
        return values

    def _complete(self, mask, values):
        return len(values) == (mask & self.alive).bit_count()

    def _finish(self, mask, entry):
        kind, _, values, parked = entry
        del self.pending[mask]
        if kind == "syncwarp":
            self.block.join([self.number * 32 + lane for lane in values])
        for thread in parked:
            self.block.wake(thread)

    def lane_exits(self, lane):
        self.alive &= ~(1 << lane)
        for mask, entry in list(self.pending.items()):
            if mask >> lane & 1 and self._complete(mask, entry[2]):
                self._finish(mask, entry)


class NamedBarrier:
    """One use of a named barrier (``syncthreads`` is number 0): who has come so far."""

    def __init__(self, number, wanted, site):
        self.number, self.wanted, self.site = number, wanted, site
        self.lanes, self.arrived, self.last = {}, 0, None  # warp -> mask; threads in all; the last
        self.first = {}  # warp -> (its first thread here, clock, site)
        self.parked = []
        self.released, self.foreign, self.time = None, {}, 0.0  # of those that do not wait

    def arrive(self, thread):
        self.first.setdefault(thread.warp, (thread.tid, thread.clock, thread.site()))
        self.lanes[thread.warp] = self.lanes.get(thread.warp, 0) | 1 << thread.lane
        self.arrived += 1
        self.last = thread

    def release(self, thread):
        """bar.arrive: what this thread has done so far, and nothing later, is handed on."""
        clocks = thread.clocks.copy()
        if self.released is not None:
            width = self.released.shape[1]
            np.maximum(clocks[:, :width], self.released, out=clocks[:, :width])
        self.released, self.foreign = clocks, merged(self.foreign, thread.foreign)
        self.time = max(self.time, thread.time)
        thread.tick()


class Block:
    """One thread block: its threads, shared memory, barriers and copies in flight."""

    thread_type = Thread

    def __init__(self, grid, index, size, shared_bytes):
        self.grid, self.index, self.size = grid, index, size
        self.rng = random.Random(f"{grid.seed}/{index}")
        self.capacity = size + 64
        self.components = size
        self.clock_table = np.zeros((size, 2, self.capacity), np.int32)
        self.shared = SharedMemory(self, shared_bytes)
        self.globals = grid.globals
        self.barriers = Barriers(self)
        self.engine = CopyEngine(self)
        self.warps = [Warp(self, w, min(32, size - 32 * w)) for w in range((size + 31) // 32)]
        self.named = {}  # id -> NamedBarrier
        self.register_counts = {}  # warp -> [(setmaxnreg, site), ..]
        self.copies = []
        self.ready, self.spinning = deque(), []
        self.live = set()
        self.progress = self.switches = self.rounds = 0
        self.last_progress, self.states = -1, set()
        self.knows_others = False  # whether a thread has acquired from another block
        self.events = grid.events
        self.hub = None

    # --- what the other parts of the engine use ---------------------------------------------------
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
            width = barrier.released.shape[1]
            np.maximum(known[:, :width], barrier.released, out=known[:, :width])
            time = max(time, barrier.time)
        self.clock_table[tids] = known
        for t in tids:
            self.threads[t].tick()
            self.threads[t].time = time
        if self.knows_others:
            foreign = barrier.foreign if barrier else {}
            foreign = functools.reduce(merged, (self.threads[t].foreign for t in tids), foreign)
            for t in tids:
                self.threads[t].foreign = foreign

    def wake(self, thread):
        self.ready.append(thread)

    def chance(self, probability):
        return self.grid.seed != 0 and self.rng.random() < probability

    def record(self, kind, thread, start, end, barrier, phase=None, size=0, dst=0, site=None):
        if self.events is not None:
            site = site or thread.site()
            phase = barrier.phase if phase is None else phase
            self.events.append(
                Event(
                    kind,
                    start,
                    end,
                    self.index,
                    thread.warp,
                    thread.lane,
                    barrier.name,
                    phase,
                    size,
                    dst,
                    line_of(site) if site else 0,
                )
            )

    def launch_copy(self, copy, deliver):
        copy.deliver = deliver
        self.grid.copies_issued += 1
        if self.grid.landing == "earliest":
            self._deliver(copy)
        else:
            self.copies.append(copy)

    def land(self, copy=None):
        """Deliver ``copy``, or the one whose turn it is."""
        if copy is None:
            i = self.rng.randrange(len(self.copies)) if self.grid.landing == "random" else 0
            copy = self.copies[i]
        self.copies.remove(copy)
        self.progress += 1
        self._deliver(copy)

    def _deliver(self, copy):
        try:
            copy.deliver()
        except (ValueError, NotImplementedError) as error:  # what the tensor map has to say
            thread = self.threads[copy.tid]
            raise thread.fault_at(faults.BadTensorMap, str(error), copy.site) from error

    # --- barriers over whole warps ----------------------------------------------------------------
    def named_barrier(self, thread, number, threads, wait):
        if not 0 <= number <= 15 or threads % 32 or not 32 <= threads <= -(-self.size // 32) * 32:
            raise thread.fault(
                faults.NamedBarrierMisuse,
                f"named barrier {number} with {threads} threads in a block of {self.size}",
            )
        self._arrive_named(thread, number, threads, wait, "bar.sync" if wait else "bar.arrive")

    def syncthreads(self, thread):
        site = thread.site()
        barrier = self.named.get(0)
        if barrier and not same_line(barrier.site, site):
            raise thread.fault(
                faults.DivergentBarrier,
                f"calls syncthreads() here while {barrier.arrived} threads wait in the one at "
                f"{describe_site(barrier.site)}",
            )
        self._arrive_named(thread, 0, -(-self.size // 32) * 32, True, "syncthreads")

    def _arrive_named(self, thread, number, wanted, wait, kind):
        barrier = self.named.get(number)
        if barrier is None:
            barrier = self.named[number] = NamedBarrier(number, wanted, thread.site())
        if barrier.wanted != wanted:
            raise thread.fault(
                faults.NamedBarrierMisuse,
                f"named barrier {number} with {wanted} threads, while others wait there with "
                f"{barrier.wanted}",
            )
        if barrier.lanes.get(thread.warp, 0) >> thread.lane & 1:
            raise thread.fault(
                faults.NamedBarrierMisuse,
                f"arrives at named barrier {number} again before its {wanted} threads have arrived",
            )
        barrier.arrive(thread)
        if wait:
            barrier.parked.append(thread)
        else:
            barrier.release(thread)
        if not self._finish_named(barrier) and wait:
            thread.park(kind, barrier, wanted)

    def _finish_named(self, barrier):
        # Lanes that have exited, or that the last warp never had, count as arrived with their warp.
        absent = 0
        for warp, lanes in barrier.lanes.items():
            absent += 32 - (lanes | self.warps[warp].alive).bit_count()
        if barrier.wanted == 32 * len(self.warps):  # the full block: exited warps do not hold it up
            absent += sum(32 for w in self.warps if not w.alive and w.number not in barrier.lanes)
        if barrier.arrived + absent < barrier.wanted:
            return False
        for warp in barrier.lanes:
            if self.missing_lanes(barrier, warp):
                raise barrier.last.fault(
                    faults.NamedBarrierMisuse,
                    f"named barrier {barrier.number} completes although only "
                    f"{barrier.lanes[warp].bit_count()} lanes of warp {warp} came",
                )
        del self.named[barrier.number]
        self.progress += 1
        if barrier.parked:
            self.join([t.tid for t in barrier.parked], barrier)
        current = getcurrent()
        for thread in barrier.parked:
            if thread is not current:
                self.wake(thread)
        return True

    def missing_lanes(self, barrier, warp):
        """The living lanes of an arrived warp that have not arrived themselves, as a mask."""
        return self.warps[warp].alive & ~barrier.lanes[warp]

    # --- running ----------------------------------------------------------------------------------
    def run(self, function, args):
        """Run the block to its end, or to a SimFault."""
        self.hub = getcurrent()
        start = functools.partial(function, *args)
        self.threads = [self.thread_type(start, self, t) for t in range(self.size)]
        context = contextvars.copy_context()  # greenlets have contexts of their own: np.errstate
        for thread in self.threads:
            thread.gr_context = context
        self.live = set(self.threads)
        self.ready.extend(self.threads)
        try:
            self._run_threads()
            self._check_copies_done()
            self._check_register_counts()
        except faults.SimFault:
            raise
        except Exception as error:
            raise self._kernel_error(self.grid.running, error) from error
        finally:
            self._abandon()

    def _run_threads(self):
        launch, in_turn = self.grid, not self.grid.seed
        random_landing = launch.landing == "random"
        while self.live:
            if random_landing and self.copies and self.rng.random() < 0.3:
                self.land()
            if self.ready:
                thread = self.ready.popleft() if in_turn else self._any_ready()
                launch.running = thread
                thread.switch()
                if thread.dead:
                    self._exited(thread)
            elif self.copies:
                self.land()
                self._unspin()
            elif self.spinning:
                self._check_livelock()
                self._unspin()
            else:
                raise self._deadlock()

    def summary(self):
        """(switches, virtual cycles of the longest thread, bytes of static shared memory)"""
        return self.switches, max(t.time for t in self.threads), self.shared.static_bytes

    def _any_ready(self):
        self.ready.rotate(-self.rng.randrange(len(self.ready)))
        return self.ready.popleft()

    def _unspin(self):
        self.ready.extend(self.spinning)
        self.spinning = []

    def _exited(self, thread):
        self.live.discard(thread)
        self.progress += 1
        self.warps[thread.warp].lane_exits(thread.lane)
        for barrier in list(self.named.values()):
            first = barrier.first.get(thread.warp)
            if first and not barrier.lanes[thread.warp] >> thread.lane & 1:
                tid, clock, site = first
                if thread.seen[tid] >= clock:  # it was there when the other arrived
                    raise self.threads[tid].fault_at(
                        faults.NamedBarrierMisuse,
                        f"arrives at named barrier {barrier.number}, and thread {thread.tid} of its "
                        "warp exits without doing so",
                        site,
                    )
            self._finish_named(barrier)

    def _check_register_counts(self):
        """A warpgroup is four neighbouring warps, and setmaxnreg is an instruction of all four."""
        for warp, said in self.register_counts.items():
            mine = [what for what, _ in said]
            for other in range(warp & ~3, (warp & ~3) + 4):
                theirs = [what for what, _ in self.register_counts.get(other, [])]
                if theirs != mine:
                    raise self.threads[32 * warp].fault_at(
                        faults.RegisterMisuse,
                        f"warp {warp} executed {', '.join(mine)}, and warp {other} of its warpgroup "
                        f"{', '.join(theirs) or 'nothing of the kind'}",
                        said[-1][1],
                    )

    def _check_copies_done(self):
        known = self.clock_table[:, 0].max(axis=0)
        left = [w for w in dict.fromkeys(self.shared.written) if isinstance(w, Copy)]
        for copy in [*self.copies, *left]:
            covered = copy.landed and (copy.owner < 0 or known[copy.owner] >= copy.clock)
            if not covered:
                self._outlives(copy)
        for thread in self.threads:
            groups = thread.bulk
            if groups and (groups.open or known[groups.read_component] < groups.number - 1):
                last = groups.open or groups.committed[-1][1]
                self._outlives(last[-1])

    def _outlives(self, copy):
        thread = self.threads[copy.tid]
        raise thread.fault_at(
            faults.CopyOutlivesBlock,
            f"all threads have exited, and nobody has waited for the {copy.what} to "
            f"{self.shared.name_of(copy.address)}",
            copy.site,
        )

    def _abandon(self):
        """After a fault: end the greenlets that still wait, so that nothing of the block stays."""
        for thread in self.live:
            if not thread.dead:
                thread.block = self
                thread.throw()
        self.copies.clear()

    def _kernel_error(self, thread, error):
        site = None
        entry = error.__traceback__
        while entry is not None:
            if KERNEL in entry.tb_frame.f_globals:
                site = (entry.tb_frame.f_code, entry.tb_lasti)
            entry = entry.tb_next
        return thread.fault_at(faults.KernelError, f"{type(error).__name__}: {error}", site)

    # --- no progress ------------------------------------------------------------------------------
    def _groups(self):
        """The waiting threads, those that wait alike together: {waiting: [threads]}."""
        groups = {}
        for thread in sorted(self.live, key=lambda t: t.tid):
            groups.setdefault((*thread.waiting, thread.site()), []).append(thread)
        return groups

    def _deadlock(self):
        kind, lines, blamed = faults.Deadlock, [], None
        for (why, what, detail, site), threads in self._groups().items():
            who = _ranges([t.tid for t in threads])
            if why == "mbarrier":
                lines.append(
                    f"{who} wait at {describe_site(site)} for parity {detail} of {what.state()}: "
                    + _missing(what)
                )
                specific = faults.MissingBytes if not what.pending else faults.MissingArrivals
                if blamed is None:
                    kind, blamed = specific, threads[0]
            elif why in ("syncthreads", "bar.sync"):
                partial = [w for w in what.lanes if self.missing_lanes(what, w)]
                lines.append(
                    f"{who} wait at {describe_site(site)} in {why} (barrier {what.number}): "
                    f"{what.arrived} of {detail} threads have arrived"
                    + (f", of warp {partial[0]} only some lanes" if partial else "")
                )
                if blamed is None:
                    blamed = threads[0]
                    if why == "bar.sync":
                        kind = faults.NamedBarrierMisuse if partial else faults.Deadlock
                    else:
                        kind = faults.DivergentBarrier
            else:
                missing = [
                    lane
                    for lane in range(32)
                    if detail >> lane & 1 and lane not in what.pending[detail][2]
                ]
                lines.append(
                    f"{who} wait at {describe_site(site)} in {why} with mask {detail:#x}: lanes "
                    f"{missing} never come"
                )
                if blamed is None:
                    kind, blamed = faults.WarpDivergence, threads[0]
        exited = [t.tid for t in self.threads if t.dead]
        if exited:
            lines.append(f"{_ranges(exited)} have exited")
        text = "no thread can run and no copy is in flight\n    " + "\n    ".join(lines)
        return blamed.fault_at(kind, text, blamed.site())

    def _check_livelock(self):
        """All who could run are polling. Nothing changed since they last did, too often: give up."""
        if self.progress != self.last_progress:
            self.rounds, self.last_progress, self.states = 0, self.progress, set()
        self.rounds += 1
        if self.rounds % LIVELOCK_ROUNDS:
            return
        # Threads that work through data, or count their attempts, are not stuck: not the same state.
        state = frozenset(thread.state() for thread in self.spinning)
        if state not in self.states and len(self.states) < LIVELOCK_STATES:
            self.states.add(state)
            return
        lines = []
        for (why, _, _, site), threads in self._groups().items():
            verb = "poll" if why == "spin" else f"wait ({why})"
            lines.append(f"{_ranges([t.tid for t in threads])} {verb} at {describe_site(site)}")
        thread = self.spinning[0]
        raise thread.fault_at(
            faults.Livelock,
            "the polling threads see no change, and nobody else can run\n    "
            + "\n    ".join(lines),
            thread.site(),
        )


def _missing(barrier):
    parts = []
    if barrier.pending:
        parts.append(f"{barrier.pending} arrival{'s' * (barrier.pending > 1)} missing")
    if barrier.tx:
        parts.append(f"{barrier.tx} bytes expected that no copy brings")
    return " and ".join(parts) or "the phase it waits for is past"


def _ranges(numbers):
    """``threads 0-31, 40`` for sorted numbers."""
    parts, start = [], None
    for i, n in enumerate(numbers):
        if start is None:
            start = n
        if i + 1 == len(numbers) or numbers[i + 1] != n + 1:
            parts.append(str(n) if n == start else f"{start}-{n}")
            start = None
    return ("thread " if len(numbers) == 1 else "threads ") + ", ".join(parts)


def _widened(array, width):
    wide = np.zeros((*array.shape[:-1], width), np.int32)
    wide[..., : array.shape[-1]] = array
    return wide

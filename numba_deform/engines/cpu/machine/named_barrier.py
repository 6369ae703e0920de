"""Named barriers (``bar.sync``, ``bar.arrive``; ``syncthreads`` is number 0): ``Block`` makes one for each
use."""

from ... import faults
from ...waiting import ranges
from ..memory.vector_clocks import merged, raise_to
from ..reports.source_loops import may_have_returned
from ..reports.source_order import calls_besides


class NamedBarrier:
    """One use of a named barrier (``syncthreads`` is number 0): who has come so far."""

    def __init__(self, block, number, wanted, site, whole):
        self.block, self.number, self.wanted, self.site = block, number, wanted, site
        self.whole = whole  # for all threads of the block, with no count of its own: syncthreads
        self.name = f"named barrier {number}" if number else "barrier 0 (syncthreads)"
        self.lanes, self.arrived, self.last = {}, 0, None  # warp -> mask; threads in all; the last
        self.again = {}  # warp -> mask of those that wait here for an arrival of their own, and others
        self.first = {}  # warp -> (its first thread here, clock, site)
        self.parked, self.reported = [], False
        self.released, self.foreign, self.time = None, {}, 0.0  # of those that do not wait
        self.votes = []  # of those that have come

    def arrive(self, thread):
        if thread.warp not in self.first:
            self.first[thread.warp] = (thread.tid, thread.clock, thread.site())
        lanes = self.again if self.has(thread) else self.lanes
        lanes[thread.warp] = lanes.get(thread.warp, 0) | 1 << thread.lane
        self.arrived += 1
        self.last = thread

    def has(self, thread):
        """Whether the thread has arrived."""
        return bool(self.lanes.get(thread.warp, 0) >> thread.lane & 1)

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

    def skipped(self):
        """The warps of which some lanes have come, and others have not, nor have returned before: {warp: how
        many have come}."""
        late, warps = self.partial(), self.block.warps
        code = self.block.execution.function.__code__
        for w, lanes in () if self.whole else self.lanes.items():
            gone = warps[w].whole & ~lanes & ~warps[w].alive
            if gone and not may_have_returned(code, self.first[w][2]):
                late[w] = gone
        return {w: self.lanes[w].bit_count() for w in late}

    def short(self):
        """How many arrivals are missing."""
        warps, absent = self.block.warps, 0
        # Lanes that have exited, or that the last warp never had, count as arrived with their warp.
        for warp, lanes in (*self.lanes.items(), *self.again.items()):
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
            "by": tuple(sorted(t.tid for t in late)), "why": "not at this barrier", **self._one_for_many(),
        }

    def _one_for_many(self):
        """Fields of a ``Wait`` where some lanes have arrived for their warp by bar.arrive, and gone on."""
        waiting = {t.tid for t in self.parked}
        alone = [self.first[w] for w in self.partial() if self.first[w][0] not in waiting]
        if not alone:
            cure = "" if self.whole else self._count_too_large()
            return {"cure": cure, "root": bool(cure)}
        tid, _, site = min(alone)
        thread = self.block.threads[tid]
        cure = f"Call bar.arrive from every lane of warp {thread.warp}, not from "
        cure += f"{self.lanes[thread.warp].bit_count()} of its lanes: an arrival counts for its thread alone."
        return {"cause": (thread, site), "cure": cure}

    def _count_too_large(self):
        """The cure where no other threads than those that wait here have ever called it, and no other line is
        left where they might; else ""."""
        made = self.block.named_barrier_calls.items()
        calls = {place[2]: tids for place, tids in made if place[0] == self.number}
        who = {tid for tids in calls.values() for tid in tids}
        if self.partial() or not who or any(tid >> 5 not in self.lanes for tid in who):
            return ""
        if any(calls_besides(t.calls(), calls, self.number) for t in self.block.threads if not t.dead):
            return ""
        return (f"The count of {self.name} is {self.wanted}, and no others than {ranges(sorted(who))} have "
                f"come to it: make it {32 * len(self.lanes)}, or have the others come.")  # fmt: skip

    def unordered(self, thread):
        """The arrival of some warp, as in ``first``, that nothing orders before what ``thread`` does now, which
        has not waited here; None if there is none."""
        if not self.has(thread) or thread in self.parked:
            return None
        others = (first for warp, first in self.first.items() if warp != thread.warp)
        return next((first for first in others if thread.seen[first[0]] < first[1]), None)

    def lapped(self, thread, wait, unordered=None):
        """The fault of ``thread``, which comes again before its arrival here has counted, or would in another
        order, as an arrival is ``unordered``."""
        what = f"arrives at {self.name} again before its {self.wanted} threads have arrived"
        if unordered:
            tid, _, site = unordered
            what = f"arrives at {self.name} again, and nothing orders that after thread {tid}'s arrival in the "
            what += f"round before, at {thread.at(site)}: it may come too early"
        elif not wait:  # who else comes tells a lap from a lane that comes for its warp
            self.reported = True
            thread.let_others_come()
        fault = thread.fault(faults.NamedBarrierMisuse, what, self)
        fault.waiver = "own-arrival" if wait else None
        if wait or unordered or not self.partial():
            fault.state = None  # others may have come since
            fault.rule = "A named barrier takes one arrival of each thread until all have come; bar.arrive "
            fault.rule += "does not wait for that (PTX 9.7.13.1)."
            fault.cure = f"Before it comes here again let {ranges([thread.warp], 'warp')} wait for those that "
            fault.cure += "have yet to come: by another named barrier, at which they arrive (bar_arrive) when "
            fault.cure += f"they are done with this round, and it waits: bar_sync(n, {self.wanted})."
        return fault

    def deadlock(self, kind):
        if kind == "syncthreads":
            return faults.DivergentBarrier
        return faults.NamedBarrierMisuse if self.partial() else faults.Deadlock

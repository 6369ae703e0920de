"""Named barriers (``bar.sync``, ``bar.arrive``; ``syncthreads`` is number 0): ``Block`` makes one for each
use."""

from ... import faults
from ..memory.vector_clocks import merged, raise_to
from ..reports.source_loops import may_have_returned


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
            "by": tuple(sorted(t.tid for t in late)), "why": "not at this barrier",
            **self.block.explain.cure_of_named_barrier(self),
        }

    def unordered(self, thread):
        """The arrival of some warp, as in ``first``, that nothing orders before what ``thread`` does now, which
        has not waited here; None if there is none."""
        if not self.has(thread) or thread in self.parked:
            return None
        others = (first for warp, first in self.first.items() if warp != thread.warp)
        return next((first for first in others if thread.seen[first[0]] < first[1]), None)

    def deadlock(self, kind):
        if kind == "syncthreads":
            return faults.DivergentBarrier
        return faults.NamedBarrierMisuse if self.partial() else faults.Deadlock

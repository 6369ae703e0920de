"""Why nothing moves: deadlock, livelock, and who is to blame. The scheduler asks when no thread can run."""

import textwrap

from ... import faults
from ...waiting import Wait, blame, draw
from ..async_units.mbarrier import MBarrier
from ..memory.shadow_memory import ShadowMemory
from ..reports.call_sites import place
from ..reports.source_order import depth_of
from .cross_block_barrier import CrossBlockBarrier
from .named_barrier import NamedBarrier
from .warp import Warp

LIVELOCK_ROUNDS, LIVELOCK_STATES = 20, 1000
# Who polls so may well wait for another block: two looks are enough before that one has its turn, and
# so many even if they change something themselves.
SHORT, LOOKS = ("flag", "atomic"), 500


class Progress:
    """What a block says of threads that wait or poll; the base of ``Scheduler``."""

    def _waits(self):
        """Who waits for what, those that wait alike together: {Wait: (the threads, on what, the cause)}.
        The cause is a (thread, site) where it is known and none of the threads that wait."""
        groups = {}
        for thread in sorted(self.live, key=lambda t: t.tid):
            kind, what, detail = thread.waiting
            # Each may poll a place of its own, but atomics may take locks, and each lock has its owner.
            alike = None if isinstance(what, ShadowMemory) and kind != "atomic" else detail
            groups.setdefault((kind, what, alike, thread.site()), []).append(thread)
        # How deep they stand tells something of barriers for many.
        depths = {key: depth_of(threads[0].calls()) for key, threads in groups.items()
                  if isinstance(key[1], (Warp, NamedBarrier))}  # fmt: skip
        waits = {}
        for (kind, what, detail, site), threads in groups.items():
            if isinstance(what, ShadowMemory):
                addresses = sorted({t.waiting[2] for t in threads})
                fields = what.polled(self, kind, addresses, {t.tid for t in threads})
            elif what is None:
                fields = {"on": "what its loop tests", "why": "it is no barrier and no flag"}
            else:
                fields = what.waited(kind, detail)
            where, source = place(site)
            cause = fields.pop("cause", None)
            if depths:
                fields["depth"] = depths.get((kind, what, detail, site), min(depths.values()))
            wait = Wait(tuple(t.tid for t in threads), where, source, kind, **fields)
            waits[wait] = threads, what, cause
        return waits

    def _no_progress(self, head, polling=(), kind=faults.Livelock):
        """The fault of those at the root of it, or of those of ``polling``, with a drawing of all."""
        waits, polling = self._waits(), set(polling)
        blamed = blame([w for w, (threads, *_) in waits.items() if not polling or polling & {*threads}])
        threads, what, cause = waits[blamed]
        kind = kind if polling else what.deadlock(blamed.kind)
        about = blamed.on if isinstance(what, ShadowMemory) else None if isinstance(what, Warp) else what
        drawing = draw(list(waits), [t.tid for t in self.threads if t.dead])
        said = textwrap.indent(f"{head}; -> who could end a wait\n{drawing}", "    ").lstrip()
        who, site = cause or (threads[0], threads[0].site())
        fault = who.fault_at(kind, said, site, about, () if cause else blamed.threads, waits)
        fault.cure = blamed.cure or fault.cure
        fault.waiver = getattr(what, "waiver", None)
        return fault

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
        if any(isinstance(each, MBarrier) and each.is_left_out() for each in on):
            return 0
        return 2 if self.spinning else 3 if all(isinstance(each, CrossBlockBarrier) for each in on) else 1

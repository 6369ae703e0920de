"""Why nothing moves: deadlock, livelock, and who is to blame. The scheduler asks when no thread can run."""

import textwrap

from ... import faults
from ...waiting import Wait, blame, draw
from ..async_units.mbarrier import MBarrier
from ..async_units.tensor_memory import PEER
from ..memory.shadow_memory import ShadowMemory
from ..reports.call_sites import place
from ..reports.source_loops import Loops
from .cross_block_barrier import CrossBlockBarrier
from .named_barrier import NamedBarrier
from .warp import Warp

LIVELOCK_ROUNDS, LIVELOCK_STATES = 20, 1000
ROUNDS = 16  # of those in which something changed, after which it is seen whether all is as it was before
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
        depths = {key: self.explain.depth_of(threads[0].calls()) for key, threads in groups.items()
                  if isinstance(key[1], (Warp, NamedBarrier))}  # fmt: skip
        waits = {}
        for (kind, what, detail, site), threads in groups.items():
            if isinstance(what, ShadowMemory):
                addresses = sorted({t.waiting[2] for t in threads})
                fields = what.polled(self, kind, addresses, {t.tid for t in threads})
            elif what is None:
                cure = "Look at what the loop tests, and whether a round changes that: nobody else does."
                fields = {"on": "what its loop tests", "why": "it is no barrier and no flag", "cure": cure}
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

    def only_polls(self):
        """All who could run are polling. Whether nothing has changed since they last did, too often."""
        self._count_round()
        if self.rounds >= 2 and self._looks_long(2):
            return True
        return not self.rounds % LIVELOCK_ROUNDS and self._has_come_again()

    def _may_give_up(self):
        """All who could run are polling, and a copy is in flight. Whether they may do something else before it
        lands, such as who counts its looks. Where that has come to nothing, nobody looks so long again."""
        places = frozenset(thread.site() for thread in self.spinning)
        if not places or places in self.execution.tireless:
            return False
        self._count_round()
        if not self._has_come_again():
            return True
        if len(self.states) == LIVELOCK_STATES:
            self.execution.tireless.add(places)
        return False

    def _count_round(self):
        if self.progress != self.last_progress:
            self.rounds, self.last_progress, self.states = 0, self.progress, set()
        self.rounds += 1

    def _has_come_again(self):
        """Whether those who poll are as they were in a round before. Threads that work through data, or count
        their attempts, are not, up to a limit."""
        state = frozenset(thread.state() for thread in self.spinning)
        if state in self.states or len(self.states) == LIVELOCK_STATES:
            return True
        self.states.add(state)
        return False

    def _goes_round(self):
        """Those who poll change something in each round, if only that others come to a barrier. Whether all is
        as it was in a round before: then the block is no further than there."""
        if self.looks % self.stride:
            return False
        self.stride = ROUNDS
        polling = hash(frozenset(thread.state() for thread in self.spinning))
        if polling not in self.round_states:  # most have a count of their own
            self.round_states[polling] = None
            return False
        memory = (bytes(each.bytes) for each in (self.shared, *self.globals.regions))
        barriers = ((b.name, b.state()) for b in (*self.barriers.live.values(), *self.named.values()))
        threads = (thread.state() for thread in self.threads if not thread.dead)
        state = hash((*threads, *memory, *barriers, len(self.copies)))
        progress = self.round_states.setdefault(state, self.progress)
        if progress == self.progress or any(Loops.around(t.calls()).hidden for t in self.spinning):
            return False
        self.progress, self.spun, self.round_states = progress, progress, {polling: None, state: progress}
        self.stride = 1
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
        if any(t.waiting[0] == PEER for t in self.live):
            return 3
        if any(each is self.shared or isinstance(each, (Warp, NamedBarrier)) for each in on):
            return 0
        if any(isinstance(each, MBarrier) and each.is_left_out() for each in on):
            return 0
        return 2 if self.spinning else 3 if all(isinstance(each, CrossBlockBarrier) for each in on) else 1

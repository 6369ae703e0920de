"""What a thread knows of others: releases, acquires and fences over vector clocks. The operations on memory
call it."""

import numpy as np

from ..memory import vector_clocks as vc
from ..memory.access_records import AtomicWrite, copy_of
from .thread_life import ThreadLife


class ThreadOrdering(ThreadLife):
    """Happens-before, from one thread's side. ``wide``: of gpu scope or a wider one, else of scope cta, which
    orders nothing between blocks."""

    def atomic_record(self, extent, wide=True, reads=False):
        self.told = self.clock
        return AtomicWrite(self.tid, self.clock, self.tid, self.here(), self.block, extent, wide, reads)

    def knowledge(self):
        """All that a release by this thread hands on."""
        return {**self.foreign, self.block: self.clocks.copy()}

    def acquire(self, knowledge):
        """What a release handed on is visible from here on."""
        own = self.block, (vc.SHARED, self.block)  # of this SM; no other cache is asked
        for key in own:
            if key in knowledge:
                vc.raise_to(self.clocks, knowledge[key])
        self.learn({key: clocks for key, clocks in knowledge.items() if key not in own})

    def learn(self, facts):
        """The same for facts that are not clocks of this block."""
        if facts:
            self.foreign = vc.merged(self.foreign, facts)
            self.block.knows_others = True

    def knows(self, block, owner, clock):
        """Whether that moment of another block is visible here."""
        return vc.covers(self.foreign, block, owner, clock)

    def knows_shared(self, block, owner, clock):
        """The same of its accesses to shared memory; it may be this thread's own."""
        if block is self.block:
            return self.seen[owner] >= clock
        return vc.covers_shared(self.foreign, block, owner, clock)

    def fence_acq_rel(self, wide=True, sc=False, cluster=False, acquires=True, releases=True):
        """Release: later relaxed atomics hand out what came before. Acquire: earlier ones take effect.
        ``cluster``: of that scope, whatever ``wide`` is."""
        if sc:
            self.acquire(vc.renamed(self.foreign, vc.MET, None))
        scope = vc.CLUSTER if cluster else wide
        if acquires:
            self.acquire(self.acquired[scope])
            _, every, near = self.acquired
            self.acquired = {}, {} if scope is vc.GPU else every, near if scope is vc.CTA else {}
        self.narrow_fence = vc.SCOPES_IN_WORDS.get(scope)
        if not releases:
            return
        known = self.knowledge()
        if sc:
            self.learn(vc.renamed(known, None, vc.FENCED))
        _, every, near = self.published
        self.published = known, known if scope is vc.GPU else every, near if scope is vc.CTA else known
        lacks = "its fence before that has scope cta (fence_acq_rel_cta)" if scope is vc.CTA else None
        self.last_fence = lacks, self.clock
        self.tick()

    def _acquire_from(self, flag, wide, acquire):
        """This thread has read what handed on the knowledge of ``flag``."""
        if flag is None:
            return
        met = flag, flag.changes, wide, acquire
        if met == self.met:  # a poll has nothing new
            return
        self.met = met
        seen = own, every, near = flag.seen_by(self.block)
        if acquire:
            self.acquire(seen[wide])
        mine, all_, others = self.acquired
        same = near is own and others is mine  # as where clusters have one block
        mine = vc.merged(mine, own)
        self.acquired = mine, vc.merged(all_, every), mine if same else vc.merged(others, near)
        if wide:
            self.learn(vc.renamed(every, vc.FENCED, vc.MET))

    def take_ticket(self, flag, wide):
        """This thread uses what an atomic has returned: that tells it of what others had released there."""
        self.learn(vc.renamed(flag.seen_by(self.block)[wide], None, vc.TICKET))

    def _release_to(self, region, address, wide, release):
        """A write of this thread hands on what its last fence covers, or as a ``release`` all; and what its
        releases at that address did (PTX ISA section 8.8, the second release pattern)."""
        own, every, near = self.published
        if wide and self.block.knows_others:
            every = vc.merged(every, vc.renamed(self.foreign, vc.FENCED, vc.FENCED))
        if release:
            own = near = self.knowledge()
            every = vc.merged(every, own) if wide else every
            self.tick()
        place, given = (region, address), (own, every if wide else {}, near if wide else {})
        if place in self.released:
            given = tuple(map(vc.merged, self.released[place], given))
        if release:
            self.released[place] = given
        region.flags[address].add(self.block, *given)

    def fence_proxy_async(self, shared=True, globally=False, cluster=False):
        """Copies see what ordinary accesses have done: to the ``shared`` memory of this block, to that of all
        of the ``cluster``, to global memory."""
        known, blocks = self.knowledge(), self.block.cluster.blocks
        self.proxy_fence = self.clock, self.site()
        if shared:
            np.copyto(self.clocks[1], self.clocks[0])
        if shared and len(blocks) > 1:
            kind = vc.FENCED_AT, None if cluster else self.block
            clocks = {(kind, block): vc.shared_clocks(known, block) for block in blocks}
            self.learn({key: seen for key, seen in clocks.items() if seen is not None})
        if globally:
            self.learn(vc.renamed(known, None, vc.ASYNC))
        self.tick()

    def sees_fence(self, home, w):
        """Whether a proxy fence stands between ``w``, a write to the shared memory of ``home``, and this
        thread."""
        block = home if copy_of(w) else w.block
        moment = w.owner, w.clock
        if block is home:  # what its own fences say
            if home is self.block and self.clocks[1, w.owner] >= w.clock:
                return True
            if vc.covers_shared(self.foreign, block, *moment, row=1):
                return True
        return any(self.knows(((vc.FENCED_AT, at), block), *moment) for at in (home, None))

"""What a thread knows of others: releases, acquires and fences over vector clocks. The operations on memory
call it."""

import numpy as np

from ..memory.access_records import AtomicWrite, copy_of
from ..memory.vector_clocks import (
    ASYNC,
    CLUSTER,
    CTA,
    FENCED,
    FENCED_AT,
    GPU,
    MET,
    SCOPES_IN_WORDS,
    SHARED,
    TICKET,
    covers,
    covers_shared,
    merged,
    raise_to,
    renamed,
    shared_clocks,
)
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

    def fence_acq_rel(self, wide=True, sc=False, cluster=False):
        """Release: later relaxed atomics hand out what came before. Acquire: earlier ones take effect.
        ``cluster``: of that scope, whatever ``wide`` is."""
        if sc:
            self.acquire(renamed(self.foreign, MET, None))
        scope = CLUSTER if cluster else wide
        self.acquire(self.acquired[scope])
        _, every, near = self.acquired
        self.acquired = {}, {} if scope is GPU else every, near if scope is CTA else {}
        known = self.knowledge()
        if sc:
            self.learn(renamed(known, None, FENCED))
        _, every, near = self.published
        self.published = known, known if scope is GPU else every, near if scope is CTA else known
        self.narrow_fence = SCOPES_IN_WORDS.get(scope)
        lacks = "its fence before that has scope cta (fence_acq_rel_cta)" if scope is CTA else None
        self.last_fence = lacks, self.clock
        self.tick()

    def _meet(self, flag, wide, acquire):
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
        mine = merged(mine, own)
        self.acquired = mine, merged(all_, every), mine if same else merged(others, near)
        if wide:
            self.learn(renamed(every, FENCED, MET))

    def take_ticket(self, flag, wide):
        """This thread uses what an atomic has returned: that tells it of what others had released there."""
        self.learn(renamed(flag.seen_by(self.block)[wide], None, TICKET))

    def _hand_on(self, region, address, wide, release):
        """A write of this thread hands on what its last fence covers, or as a ``release`` all; and what its
        releases at that address did (PTX ISA section 8.8, the second release pattern)."""
        own, every, near = self.published
        if wide and self.block.knows_others:
            every = merged(every, renamed(self.foreign, FENCED, FENCED))
        if release:
            own = near = self.knowledge()
            every = merged(every, own) if wide else every
            self.tick()
        place, given = (region, address), (own, every if wide else {}, near if wide else {})
        if place in self.released:
            given = tuple(map(merged, self.released[place], given))
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
            kind = FENCED_AT, None if cluster else self.block
            clocks = {(kind, block): shared_clocks(known, block) for block in blocks}
            self.learn({key: seen for key, seen in clocks.items() if seen is not None})
        if globally:
            self.learn(renamed(known, None, ASYNC))
        self.tick()

    def sees_fence(self, home, w):
        """Whether a proxy fence stands between ``w``, a write to the shared memory of ``home``, and this
        thread."""
        block = home if copy_of(w) else w.block
        moment = w.owner, w.clock
        if block is home:  # what its own fences say
            if home is self.block and self.clocks[1, w.owner] >= w.clock:
                return True
            if covers_shared(self.foreign, block, *moment, row=1):
                return True
        return any(self.knows(((FENCED_AT, at), block), *moment) for at in (home, None))

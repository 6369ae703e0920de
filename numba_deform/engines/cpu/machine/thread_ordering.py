"""What a thread knows of others: releases, acquires and fences over vector clocks. The operations on memory
call it."""

import numpy as np

from ..memory.access_records import AtomicWrite
from ..memory.vector_clocks import (
    ASYNC,
    FENCED,
    MET,
    SHARED,
    TICKET,
    covers,
    covers_shared,
    merged,
    raise_to,
    renamed,
)
from .thread_life import ThreadLife


class ThreadOrdering(ThreadLife):
    """Happens-before, from one thread's side. ``wide``: of gpu scope or a wider one, else of scope cta, which
    orders nothing between blocks."""

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
        lacks = None if wide else "its fence before that has scope cta (fence_acq_rel_cta)"
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
        own, every = flag.seen_by(self.block)
        if acquire:
            self.acquire(every if wide else own)
        self.acquired = merged(self.acquired[False], own), merged(self.acquired[True], every)
        if wide:
            self.learn(renamed(every, FENCED, MET))

    def take_ticket(self, flag, wide):
        """This thread uses what an atomic has returned: that tells it of what others had released there."""
        known = flag.seen_by(self.block)[wide]
        self.learn(merged(renamed(known, None, TICKET), renamed(known, TICKET, TICKET)))

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

    def fence_proxy_async(self, shared=True, globally=False):
        if shared:
            np.copyto(self.clocks[1], self.clocks[0])
        if globally:
            self.learn(renamed(self.knowledge(), None, ASYNC))
        self.tick()

"""The mbarrier state machine, with every rule that hardware leaves undefined (PTX ISA 9.7.13.15). Threads,
copies and clusters arrive and wait; ``barriers`` has all of a block."""

from typing import NamedTuple

import numpy as np

from ....device.limits import MAX_COUNT
from ... import faults
from ..memory.vector_clocks import STARTED, covers_shared, merged, raise_to

maximum = np.maximum
COUNT_BITS, PHASE_BITS = 20, 24  # of a token: pending count, phase, and above them the barrier's component


def phase_of(token):
    """The phase that the state ``token`` was returned in."""
    return token >> COUNT_BITS & (1 << PHASE_BITS) - 1


class Announcement(NamedTuple):
    """Bytes that a thread has announced last; with those before it in the same phase, in ``times`` parts."""

    phase: int
    bytes: int
    thread: object
    site: object
    times: int


class LastWait(NamedTuple):
    """A thread's last wait on a barrier: the phase that it returned for, and its site; the thread's clock at
    the first wait for that phase and at this one."""

    barrier: object
    phase: int
    site: object
    first: int
    last: int


class MBarrier:
    """One barrier: integer phase, arrivals, signed tx-count, and what its phases order."""

    def __init__(self, block, address, name, count, thread):
        self.block, self.address, self.name = block, address, name
        self.expected = self.pending = count
        self.tx = self.phase = 0
        self.component = block.new_component()
        self.over_component = None  # the same for who knows that a phase is over, and not what it handed on
        self.generic = None  # the same for copies of the generic proxy, if any have come
        self.gathered = np.zeros((2, block.capacity), np.int32)  # by this phase's arrivals
        self.released = np.zeros((2, block.capacity), np.int32)  # by the phase before
        self.gathered_foreign, self.released_foreign = {}, {}  # the same, of other blocks
        # The same by threads of other blocks of the cluster, for waits of that scope; who has arrived from
        # there.
        self.gathered_far, self.released_far = {}, {}
        self.far, self.last_far = {}, {}  # thread -> its clock
        self.init_epoch = (thread.tid, thread.clock, thread.site())
        self.fenced = None  # the init's thread's clock at its fence for the copy engine
        self.issuers, self.last_copy = set(), None  # threads whose copies signal it; which did last
        self.announced = None  # the last Announcement
        self.filled = []  # (phase, place, size) of the copies that have landed
        self.committed = None  # the site of the last tcgen05.commit that has arrived
        # Of each thread: whether it knows of the barrier; its clock at its arrival in this phase, or 0; and at
        # its first look at the phase.
        self.numbers = np.zeros((3, block.size), np.int32)
        self.known, self.came, self.wait_clocks = *map(memoryview, self.numbers[:2]), self.numbers[2]
        self.known[thread.tid] = True
        self.excused = None  # the same at the end of phase 0: a wait before it has waited for nothing
        self.landed, self.last_landed = [], []  # copies that have landed, of this phase and of the one before
        self.is_sure = True  # all that this phase comes after is known
        self.ended = None  # (thread number, site) of its inval
        self.waiting, self.waiter_count = np.zeros(block.size, np.int64), 0  # the numbers of those who wait
        self.last_arrivers = {}  # {thread: its clock at its arrival} in the phase before
        # {thread: (site of its first arrival, of its second, its clock at the first)} in the same phases
        self.twice, self.last_twice = {}, {}
        # The same of the phase before that one: None if copies completed it as well.
        self.copied, self.last_copied, self.older_arrivers = False, False, {}
        self.arrivers = set()  # in any phase that is complete
        self.dropped = {}  # by arrive_drop: {thread: (phase, site)}
        self.came_back = None  # who has arrived since it dropped out
        self.tokens = set()  # that arrivals have returned
        # {thread: (clock, site)} of this phase's arrivals by noComplete that nothing is known to come after
        self.unfollowed = {}
        self.raised = -1, 0, None  # phase, how often arrivals of cp.async have raised its count, where last
        self.alone = {}  # {thread: (clock, site)} of bytes announced in this phase that no arrival came with
        self.time = self.done_time = 0.0

    def is_fresh(self, thread, count):
        """Whether a lane of the warp of ``thread`` has initialised it at the same place for the same ``count``,
        and nothing has come since."""
        owner, _, site = self.init_epoch
        same = owner >> 5 == thread.warp and owner != thread.tid and site == thread.site()
        return same and not self.phase and not self.tx and self.pending == self.expected == count

    def state(self):
        """Its state in words."""
        return f"phase {self.phase}, pending {self.pending} of {self.expected}, tx-count {self.tx}"

    def waited(self, kind, parity):
        """What those who wait for the current phase wait for: fields of a ``Wait``."""
        return self.block.explain.MissingArrivalsReport(self).fields(parity)

    def twins(self):
        """The same barrier of the other blocks of its cluster."""
        barriers = (block.barriers.live.get(self.address) for block in self.block.cluster.blocks)
        return [barrier for barrier in barriers if barrier not in (None, self)]

    def is_left_out(self):
        """Whether another block has had in this phase the bytes, or the tcgen05.commit, that it lacks."""
        return any(twin.phase > self.phase and (twin.committed or not self.pending) for twin in self.twins())

    def deadlock(self, kind):
        report = self.block.explain.MissingArrivalsReport(self)
        if self.phase == 1 and report.other_parity(self):  # who comes earlier passes
            return faults.FreshBarrierPassed
        return faults.MissingArrivals if self.pending else faults.MissingBytes

    def refilled(self, phase, copy):
        """Whether ``copy``, which counts in a later phase, goes where one of ``phase`` or before had gone."""
        return any(
            p <= phase and place < copy.place + copy.size and copy.place < place + size
            for p, place, size in self.filled
        )

    def expect(self, thread, count):
        if not 0 <= count <= MAX_COUNT:
            raise thread.fault(faults.BadCount, f"expects {count} bytes on {self.name}", self)
        site, before = thread.site(), self.announced
        more, times = (before.bytes, before.times) if before and before.phase == self.phase else (0, 0)
        self.announced = Announcement(self.phase, more + count, thread, site, times + 1)
        self._add_bytes(thread, count, site)

    def expect_alone(self, thread, count):
        """Bytes that ``thread`` announces with no arrival. The phase may not be over before: it lacks bytes of
        which no copy is under way, or an arrival that comes later, which ``complete_if_done`` asks for."""
        held = self.tx > sum(copy.size for copy in self.block.copies if copy.barrier is self)
        self.expect(thread, count)
        if self.phases_over(thread.seen) < self.phase:
            raise self.block.explain.late_announcement(self, thread, thread.site(), self.phase - 1)
        if not held:
            self.alone[thread.tid] = thread.clock, thread.site()

    def undeclared(self):
        """How many bytes its copies bring beyond those that have been announced, over all its phases."""
        return sum(copy.size for copy in self.block.copies if copy.barrier is self) - self.tx

    def deliver(self, copy, landing):
        """``copy`` has landed, at the virtual time ``landing``."""
        copy.phase, self.last_copy = self.phase, copy
        self.landed.append(copy)
        if self.unfollowed:
            self.follow(copy.known)
        if not copy.pieces:  # reductions may go to one place
            self.filled.append((self.phase, copy.place, copy.size))
        if copy.generic:
            self.generic = self.generic or self.block.new_component()
        copy.owner = self.generic if copy.generic else self.component
        copy.landed, copy.clock = True, self.phase + 1
        for part in copy.pieces:
            part.land()
        self.copied = True
        if landing > self.time:
            self.time = landing
        thread = copy.block.threads[copy.tid]
        self._add_bytes(thread, -copy.size, copy.site)
        self.complete_if_done(thread, copy.site, copy)

    def _add_bytes(self, thread, count, site):
        self.tx = tx = self.tx + count
        if abs(tx) > MAX_COUNT:
            what = f"tx-count of {self.name} becomes {tx}, beyond +-{MAX_COUNT}"
            raise thread.fault_at(faults.BadCount, what, site, self)

    def lost(self, thread):
        """Whether a parity could mean an older phase to ``thread``: it knows less than that all phases but
        the last complete one are over. It knows of a phase by a wait, its own or of a thread that it has
        synchronised with, or because all arrivals that completed the phase come before it."""
        seen, over = thread.seen, self.phase - 1
        if self.phases_over(seen) >= over:
            return False
        arrivals = self.older_arrivers
        if arrivals is None or any(seen[tid] < clock for tid, clock in arrivals.items()):
            return True
        seen[self.component] = over
        return False

    def phases_over(self, seen):
        """How many phases are over for who has these clocks."""
        known = seen[self.component]
        return known if self.over_component is None else max(known, seen[self.over_component])

    def is_current(self, thread):
        """Whether ``thread`` knows that the phase before this one is over: by itself, or by a copy that it has
        waited for, whose issuer knew."""
        if self.phases_over(thread.seen) >= self.phase:
            return True
        waited = (b for b in self.block.barriers.live.values() if thread.seen[b.component] == b.phase)
        known = (copy.known for b in waited for copy in b.last_landed if copy.block is self.block)
        return any(known[self.component :][:1] >= self.phase for known in known)

    def token(self):
        """Return the state token of the current phase."""
        token = (self.component << PHASE_BITS | self.phase) << COUNT_BITS | self.pending
        self.tokens.add(token)
        return token

    def last_arrival(self, thread):
        """The phase in which a thread of its block has arrived last, if that is this one or the one before."""
        if self.came[thread.tid]:
            return self.phase
        return self.phase - 1 if thread.tid in self.last_arrivers else None

    def waits_for(self, token):
        """Whether a wait for ``token`` is one for the current phase."""
        return token in self.tokens and phase_of(token) == self.phase

    def check_token(self, thread, token):
        """Refuse to wait for a ``token`` that is no arrival's on this barrier, or of a phase too old."""
        phase = phase_of(token)
        if token not in self.tokens:
            what = f"waits on {self.name} for a state that no arrival on it has returned"
            raise thread.fault(faults.BadToken, what, self)
        if phase < self.phase - 1:
            what = f"waits on {self.name} for a state of phase {phase}; it is in phase {self.phase}"
            raise thread.fault(faults.MissedPhase, what, self)

    def follow(self, seen):
        """Something of this phase comes after all that the clocks ``seen`` cover."""
        self.unfollowed = {t: of for t, of in self.unfollowed.items() if seen[t] < of[0]}

    def arrive(self, thread, count, complete=True):
        if not 1 <= count <= MAX_COUNT:
            raise thread.fault(faults.BadCount, f"arrives {count} times on {self.name}", self)
        if self.dropped.get(thread.tid, (self.phase,))[0] < self.phase:
            self.came_back = thread
        if thread.seen[self.component] < self.phase and not self.is_current(thread):
            raise thread.explain.bad_arrival(self, thread)
        left = self.pending - count
        if left < 0:
            raise thread.explain.bad_arrival(self, thread, count)
        if self.unfollowed:
            self.follow(thread.seen)
        if not complete:
            after = thread.clock + 1, thread.site()  # the thread's own clock after it
            self.unfollowed = {**self.unfollowed, thread.tid: after}
        maximum(self.gathered, thread.clocks, out=self.gathered)
        if thread.foreign:
            self.gathered_foreign = merged(self.gathered_foreign, thread.foreign)
        if self.came[thread.tid] and self in thread.arrivals:
            pair = thread.arrivals[self], thread.here(), self.came[thread.tid]
            self.twice.setdefault(thread.tid, pair)
        self.came[thread.tid] = thread.clock
        thread.arrivals[self] = thread.here()
        thread.clock = thread.seen[thread.tid] = thread.clock + 1  # tick()
        if thread.time > self.time:
            self.time = thread.time
        self.pending = left
        self.block.progress += 1
        if not left:
            self.complete_if_done(thread)

    def fenced_before(self, thread):
        """Whether fence.mbarrier_init of the thread that initialised it comes before ``thread``. It does as
        well by a relaxed arrival at the cluster's barrier: that is what the fence is for."""
        owner, fenced, block = self.init_epoch[0], self.fenced, self.block
        if fenced is None:
            return False
        if thread.seen[owner] >= fenced if block is thread.block else thread.knows_shared(block, owner, fenced):
            return True
        return thread.knows((STARTED, block), owner, fenced)

    def arrive_from_afar(self, thread, count):
        """``thread`` of another block of the cluster arrives, with release at cluster scope."""
        self.gathered_far = merged(self.gathered_far, thread.knowledge())
        self.far[thread] = thread.clock
        thread.arrivals[self] = thread.here()
        self.copied = True  # who knows the arrivals of its own block does not know all that completed the phase
        thread.tick()
        self.time = max(self.time, thread.time)
        self.pending -= count

    def promise(self, thread, more):
        """(the phase in which ``thread`` leaves an arrival to what it has under way, clocks of the phases that
        it knows to be over). ``more``: the phase waits for it beside the arrivals that it expects."""
        if not self.is_current(thread):
            raise thread.explain.bad_arrival(self, thread)
        if more:
            self.pending += 1
            self.raised = self.phase, 1 + self.raised[1] * (self.raised[0] == self.phase), thread.site()
            if self.pending > MAX_COUNT:
                what = f"pending count of {self.name} becomes {self.pending}, above {MAX_COUNT}"
                raise thread.fault(faults.BadCount, what, self)
        over = {}
        for barrier in self.block.barriers.live.values():
            if phases := barrier.phases_over(thread.seen):
                if barrier.over_component is None:
                    barrier.over_component = self.block.new_component()
                over[barrier.over_component] = phases
        clocks = np.zeros((2, self.block.capacity), np.int32)
        clocks[0, list(over)] = list(over.values())
        return self.phase, clocks

    def keep(self, thread, arrival, clock, copied, landing):
        """That arrival: what ``thread`` had under way is over. ``copied`` are clocks that say so and nothing
        else; ``clock`` is the thread's when it left the arrival, ``arrival`` the record of that."""
        if self.phase != arrival.phase or not self.pending:
            what = f"leaves an arrival on {self.name} in phase {arrival.phase} to its {arrival.what}; when "
            what += f"they have landed, others have made the {self.expected} arrivals of that phase"
            raise thread.fault_at(faults.TooManyArrivals, what, arrival.site, self)
        # It hands on the copies, and that phases are over, and nothing else that the thread did.
        if thread.block is not self.block:
            self.gathered_far = merged(self.gathered_far, {thread.block: copied})
            self.far[thread] = clock
        else:
            raise_to(self.gathered, copied)
            self.came[thread.tid] = self.came[thread.tid] or clock
            thread.arrivals.setdefault(self, arrival.site)
        self.copied, self.is_sure = True, False
        self.time = max(self.time, landing)
        self.pending -= 1
        self.block.progress += 1
        self.complete_if_done(thread, arrival.site)

    def drop(self, thread):
        """The coming phases expect one arrival less."""
        if self.expected == 1:
            what = f"drops out of {self.name}, which expects its arrival only (phase {self.phase}, "
            raise thread.fault(faults.NobodyLeft, f"{what}pending {self.pending})", self)
        self.expected -= 1
        if thread.block is self.block:
            self.dropped[thread.tid] = self.phase, thread.here()

    def complete_if_done(self, thread, site=None, copy=None):
        """``thread`` arrived, or issued, at ``site``, ``copy``, which has landed."""
        if self.pending or (tx := self.tx) > 0:
            return
        if tx < 0:
            what = f"{-tx} bytes more than expected have landed on {self.name} in phase "
            what += f"{self.phase}, and all {self.expected} arrivals are in"
            copy = copy or self.last_copy  # none where complete_tx alone brought the bytes
            fault = copy and thread.explain.too_few_bytes(copy)
            raise fault or thread.fault_at(faults.MoreBytesThanExpected, what, site or thread.site(), self)
        if self.unfollowed:
            tid, (_, where) = self.unfollowed.popitem()
            what = f"arrives on {self.name} with noComplete in phase {self.phase}, and no other arrival and no "
            what += "copy of it is bound to come later"
            raise self.block.threads[tid].fault_at(faults.CompletesPhase, what, where, self)
        for tid, (clock, where) in self.alone.items():
            told = max(self.gathered[0, tid], self.arrived.get(tid, -1)) >= clock
            if not told and not covers_shared(self.gathered_far, self.block, tid, clock):
                raise self.block.explain.late_announcement(self, self.block.threads[tid], where, self.phase)
        phase = self.phase + 1
        if phase == 1:
            self.excused = self.wait_clocks.copy()
        elif self.is_sure and len(self.block.cluster.blocks) == 1:
            late = self.wait_clocks > self.gathered[0, : self.wait_clocks.size]
            if np.count_nonzero(late):
                self.hold(np.flatnonzero(late))
        for copy in self.landed:  # whoever comes behind this phase comes behind what its issuer knew
            if copy.block is self.block:
                maximum(self.block.issuers_clocks, copy.known[: self.block.size], out=self.block.issuers_clocks)
        self.landed, self.last_landed, self.is_sure = [], self.landed, True
        self.phase = phase
        self.pending = self.expected
        self.older_arrivers = None if self.last_copied else self.last_arrivers
        self.last_arrivers, self.twice, self.last_twice = self.arrived, {}, self.twice
        self.numbers[1] = 0
        self.alone = {}
        self.copied, self.last_copied = False, self.copied
        self.arrivers.update(self.last_arrivers)
        self.released, self.gathered = self.gathered, self.released  # what this phase's arrivals have gathered
        self.gathered.fill(0)
        self.released_foreign, self.gathered_foreign = self.gathered_foreign, {}
        self.released_far, self.gathered_far = self.gathered_far, {}
        self.far, self.last_far = {}, self.far
        self.released[:, self.component] = phase
        if self.generic is not None:
            self.released[0, self.generic] = phase  # the copy engine sees that past a fence
        self.done_time = self.time
        self.block.progress += 1
        if self.block.events is not None:
            when = self.time, self.time
            self.block.record("complete", thread, *when, self, phase=phase - 1, site=site)
        self.block.wake(self)  # all of them waited for this phase
        self.waiter_count = 0

    @property
    def arrived(self):
        """{thread: its clock at its arrival} in this phase."""
        tids = self.numbers[1].nonzero()[0]
        return dict(zip(tids.tolist(), self.numbers[1, tids].tolist(), strict=True))

    def add_waiter(self, thread):
        """The thread waits for the end of this phase."""
        self.waiting[self.waiter_count] = thread.tid
        self.waiter_count += 1

    def hold(self, late):
        """Raise where this phase may end before a thread has looked at the one before. ``late``: threads whose
        wait for that one no arrival of this phase comes after. It may be that one of its copies does, or one
        that completed a phase of another barrier, or that others know of the wait in a way that orders nothing,
        such as a vote: then this says nothing. Copies that land late may do so behind this phase, which tells
        who waited for them from who did not."""
        for tid in late.tolist():
            clock, block = int(self.wait_clocks[tid]), self.block
            if clock <= self.excused[tid] or max(block.threads[tid].told, block.issuers_clocks[tid]) >= clock:
                continue
            if not any(copy.known[tid] >= clock for copy in self.landed):
                raise block.explain.overtaken(self, block.threads[tid])

"""One schedule by choice: who makes the next step, asked again before every visible operation.

The random schedules of ``machine.scheduler`` switch only where a thread waits. Here a thread gives way before
each operation that another thread could notice: on an mbarrier or a named barrier, a flag or an
atomic, and the issue of a copy that signals a barrier. Landing is a step of its own. All else stays
invisible: only a race could make its order matter, and vector clocks find races in any order.

The blocks of a cluster make their steps among each other; a cluster of one block is the common case.

Who makes a step is an *actor*: a warp, whose lanes then each do the one operation they are at, in
order of lanes; or a single thread; or a copy in flight. An actor that can do nothing but wait, or poll
again what has not changed since, has no turn.

A *look* is one poll: a test_wait, a try_wait that comes back before its phase is complete, a load of a flag, or
an atomic. It is *in vain* if the thread then stands before the same look again with nothing changed: no
variable of its own, no memory, and not what it looks at. As long as that is so, the thread waits: to look more
often makes no other order. Whether a look is in vain follows from the thread's state and from what it would
see, so it is tried out once for each (``_try_looks``); if it is not, the schedule starts over and knows that.
Other looks are steps: those that end a wait, and those of threads that count them, or look elsewhere in
between. Threads that poll with a barrier of theirs in each round wait once all of the block is again as it was
in a round before.
"""

from collections import defaultdict

from ..async_units.mbarrier import phase_of
from ..machine.cluster import Cluster
from ..machine.cross_block_barrier import CrossBlockBarrier
from ..machine.progress import LIVELOCK_STATES
from ..memory.restart import Restart
from .choices import RETRIES, Operation, Schedule, Step, Touch
from .controlled_thread import ON_CLUSTER, visible

REST_OF_GRID = ("others",)  # the actor that is all clusters after this one: they run until they end, or poll
MEETING = ("cluster",)  # the thing that is the cluster's barrier


class SteppedBarrier(CrossBlockBarrier):
    """The cluster's barrier: to arrive is a step, and to come back from the wait."""

    def arrive(self, thread, release=True):
        if not thread.inside:
            thread.give_way(Operation(lambda: [Touch(MEETING, "arrive", self.phase)]))
        super().arrive(thread, release)

    def wait(self, thread):
        if (thread.block, thread.tid) in self.come and not thread.inside:
            phase = self.come[thread.block, thread.tid][0]
            thread.give_way(Operation(
                lambda: [Touch(MEETING, "met", phase)], True, (self.name, self, thread.block),
                meeting=(self, phase), parity=phase & 1, suspends=True, waits=True,
            ))  # fmt: skip
        super().wait(thread)


class ControlledCluster(Cluster):
    """The blocks of a cluster whose threads make one step at a time. ``resident_blocks`` has the first of them
    run: then all do."""

    barrier_type = SteppedBarrier

    def __init__(self, blocks, shape, number):
        super().__init__(blocks, shape, number)
        self.execution = blocks[0].execution
        chosen = self.execution.seed
        self.schedule = chosen if chosen.block == number else Schedule(number, chosen.by_thread)
        self.step = Step(None)
        self.changes = {}  # word -> how often it has been changed
        # Of each warp: operations that are no polls; what it has polled, in order. Of each thread: its copies.
        self.acts, self.polled, self.issues = defaultdict(int), defaultdict(dict), defaultdict(int)
        self.threads_of, self.flying = {}, {}  # actor -> threads, actor -> copy
        # Whether the clusters after this one can still have their turn in the midst of it.
        self.others = chosen.block == number < self.execution.blocks // len(blocks) - 1
        self.looking = []  # (thread, its look) of those of which it is not known whether they are in vain
        self.turns = 0  # of this cluster among those that are resident together
        # Steps so far, the last one of each actor; the cluster before a round of polls -> (turn, steps) so far,
        # and that of a round which has come again.
        self.steps, self.last_step, self.rounds, self.circle = 0, {}, {}, None
        self.schedule.begin(self)

    progress = property(lambda self: sum(block.progress for block in self.blocks))
    threads = property(lambda self: [thread for block in self.blocks for thread in block.threads])

    def actor_of(self, thread):
        block = thread.block
        return block.rank * block.size + (thread.tid if self.schedule.by_thread else thread.warp)

    # --- what blocks tell -----------------------------------------------------------------------------
    def joins(self, thread):
        self.threads_of.setdefault(self.actor_of(thread), []).append(thread)

    def issued(self, copy):
        """``copy``, which signals a barrier, is on its way."""
        thread = copy.block.threads[copy.tid]
        self.issues[thread] += 1
        actor = ("copy", copy.block.rank, copy.tid, self.issues[thread])
        self.step.issued.append(actor)
        self.flying[actor] = copy

    def woke(self, threads, thing, phase):
        self.step.woken.append(({self.actor_of(t) for t in threads}, thing, phase))
        self.step.freed.update(threads)

    def exits(self, thread):
        """Who exits counts as arrived at the cluster's barrier as well."""
        touched = self.step.after if thread in self.step.freed else self.step.touches
        touched.add(Touch(("exits", thread.block.rank), "exit"))
        if len(self.blocks) > 1:
            touched.add(Touch(MEETING, "arrive", self.barrier.phase))
        self.threads_of[self.actor_of(thread)].remove(thread)

    # --- steps ----------------------------------------------------------------------------------------
    def run(self, block):
        """Run all blocks, if ``block`` is the first, until they end or only wait: then true."""
        if block is not self.blocks[0]:
            block.spinning = self._polling(block)
            return self._goes_on()
        for each in self.blocks[1:]:
            each.turn(block.hub, block.alone)
        self.turns, before = self.turns + 1, [each.progress for each in self.blocks]
        self._settle()
        while self._goes_on():
            self._try_looks()
            self._note_round()
            if actors := self._actors(RETRIES + 1) or self._actors(LIVELOCK_STATES):
                self.step, self.circle = Step(self.schedule.choose(actors)), None
                self.alone = len(actors) == 1
                self.steps += 1
                self.last_step[self.step.actor] = self.steps
                if self.step.actor == REST_OF_GRID:
                    self.others = False
                    self.step.did([Touch(("grid",), "write")])
                    self.schedule.happened(self.step)
                    return True
                self._make_step()
                self._settle()
                self.schedule.happened(self.step)
            elif self.circle:
                self._repeats(before)
                return True
            elif self._only_polls():
                return True
        self.schedule.end()
        return False

    def _goes_on(self):
        return self.others or any(block.live for block in self.blocks)

    def _actors(self, attempts):
        """Who can make a step, if polls in vain get so many attempts."""
        self.attempts = attempts
        able = [a for a, threads in self.threads_of.items() if any(map(self._can, threads))]
        if self.circle:  # who has made no step in it
            able = [a for a in able if self.last_step.get(a, 0) <= self.circle[1]]
        return able + sorted(self.flying) + [REST_OF_GRID] * self.others

    def _make_step(self):
        step = self.step
        if step.actor in self.flying:
            copy = self.flying.pop(step.actor)
            barrier = copy.barrier
            step.did([Touch(("mbarrier", barrier.address, barrier.block.rank), "land", barrier.phase)])
            barrier.block.land(copy)
            return
        waiting = list(self.threads_of[step.actor])
        lanes = [t for t in waiting if self._can(t)]
        for thread in waiting:
            # What one of the others waits for decides whether it takes part in the step.
            if thread not in lanes and (touches := self._seen_while_blocked(thread)):
                step.did(touches)
        for thread in lanes:
            self._operate(thread)
        self._look_on(waiting)

    def _look_on(self, threads):
        """If all of ``threads`` that can go on have looked often enough and seen the same, they look on in this
        step until one comes to something else: it may give up. If none does, the schedule starts over and knows
        that."""
        self.attempts, looks = LIVELOCK_STATES, 0
        while (able := [t for t in threads if self._can(t)]) and all(map(self._may_look_on, able)):
            if looks == 0:
                key = tuple(map(self._state, able))
            if not self.alone:
                self.schedule.leave_out(able[0].at(able[0].site()))
            if key in self.execution.looks:
                return
            for thread in able:
                self._operate(thread)
            looks += 1
            if looks == LIVELOCK_STATES:
                self.execution.looks[key] = False
                raise Restart

    def _may_look_on(self, thread):
        look, polled = thread.operation, self.polled[thread.mates]
        return look.poll and thread.same > RETRIES and all(touch.thing in polled for touch in look.touches())

    def _operate(self, thread):
        operation, progress = thread.operation, self.progress
        touches = operation.touches()
        waited = operation.suspends and self._passes(thread)
        thread.only_sees = operation.suspends and not waited
        self.step.did(touches, operation if operation.poll and self._may_be_in_vain(thread) else None)
        if operation.poll and not waited:
            self.polled[thread.mates].update((touch.thing, None) for touch in touches)
            thread.looked(self._state(thread), self._view(thread.mates))
        else:
            self.acts[thread.mates] += 1
        thread.block.resume(thread)
        thread.wrote = self.progress != progress
        if thread.wrote:
            for thing, kind, _ in touches:
                if kind == "write":
                    self.changes[thing] = self.changes.get(thing, 0) + 1

    def _note_round(self):
        """If a thread is about to look, and a barrier has completed since it did so last, note whether all was
        as it is now at such a moment before."""
        completed = sum(sum(block.uses.values()) for block in self.blocks)
        polls = (t for t in self.threads if t.completed < completed and not t.dead and t.operation)
        thread = next((t for t in polls if t.operation.poll), None)
        if thread is None:
            return
        thread.completed = completed
        memory = [*(block.shared for block in self.blocks), *self.execution.globals.regions]
        states = (t.state() for t in self.threads if not t.dead)
        now = hash((thread.block.rank, thread.tid, *states, *(bytes(each.bytes) for each in memory)))
        self.circle = self.rounds.get(now)
        self.rounds.setdefault(now, (self.turns, self.steps))

    def _repeats(self, before):
        """All who could make a step poll in rounds that come again; ``before``: the progress of each block when
        it began."""
        for block, progress in zip(self.blocks, before, strict=True):
            if self.circle[0] < self.turns:
                block.progress = progress  # nothing has come of it that was not there
            alive = [t for t in block.threads if not t.dead and t.operation]
            block.spinning = [t for t in alive if t.operation.poll]
            for thread in alive:
                if not thread.operation.poll:  # it could go on to where the others wait for it
                    thread.waiting = "spin", None, None
        self.circle = None

    # --- looks in vain --------------------------------------------------------------------------------
    def _may_be_in_vain(self, thread):
        """Whether the look at which the thread stands is one at one thing, in a loop."""
        look = thread.operation
        if look.waits is None:
            alone = sum(touch.thing != ("grid",) for touch in look.touches()) == 1
            look.waits = alone and thread.loops().back
        return look.waits

    def _state(self, thread):
        """That of a thread at a look: where it stands, and its variables."""
        look = thread.operation
        if look.state is None:
            look.state = thread.state()
        return look.state

    def _in_vain(self, thread):
        """Whether the look at which the thread stands would be in vain now; None if that is not known."""
        look = thread.operation
        if not look.poll or not self._may_be_in_vain(thread):
            return False
        if look.parity is not None:
            return not self._passes(thread)
        held = look.held()
        if look.last[0] != held:
            if look.is_fault():
                return False
            vain = not look.changes() and self.execution.looks.get((self._state(thread), held))
            if vain is None:
                return None
            look.last = held, vain
        return look.last[1]

    def was_in_vain(self, look, held):
        """Whether a look that has been made would have been in vain when what it looks at held that."""
        if look.parity is None:
            return self.execution.looks.get((look.state, held), False)
        if look.meeting:
            return held == look.meeting[1]
        waits = held is not None and held & 1 == look.parity
        if look.token is not None:
            waits = held == phase_of(look.token)
        return waits and self.execution.looks.get((look.state, None), False)

    def _try_looks(self):
        """Note in ``execution.looks`` whether looks are in vain of which that is not known. If one is not, the
        schedule starts over. Of a barrier that has come so far it is noted as well, for those who come earlier
        in another order."""
        looking, self.looking, done = self.looking, [], False
        for thread, look in looking:
            if thread.operation is not look or look.meeting or not self._may_be_in_vain(thread):
                continue
            of_word = look.parity is None
            if of_word:
                self.looking.append((thread, look))  # the word may change
                if self._in_vain(thread) is not None:
                    continue
            key = self._state(thread), look.held()
            if key not in self.execution.looks:
                self.execution.looks[key] = False  # such as when it meets a fault
                try:
                    self.execution.looks[key] = self._leads_back(thread, look)
                except Exception:  # to be met again, in its turn
                    pass
                done |= not self.execution.looks[key]
                look = thread.operation
            if not of_word and not done:
                look.state, look.waits = key[0], self.execution.looks[key]
        if done:
            raise Restart

    def _leads_back(self, thread, look):
        """Have a thread see what is there, at a barrier not yet come so far; whether all is then as it was."""
        touches, progress = look.touches(), self.progress
        thread.only_sees = True
        thread.block.resume(thread)
        now = thread.operation
        return (
            now is not None and now.poll and now.touches() == touches and not thread.was_busy
            and self.progress == progress and thread.state() == look.state
        )  # fmt: skip

    def _settle(self):
        while any(block.ready for block in self.blocks):
            for block in self.blocks:
                block.settle()

    def _can(self, thread):
        """Whether the thread's next operation can be done now, and may make a difference."""
        operation = thread.operation
        if operation is None or thread.dead:
            return False
        if not operation.poll or operation.suspends and self._passes(thread):
            return True
        if self._in_vain(thread):
            return False
        return thread.may_look(self._state(thread), self._view(thread.mates), self.attempts)

    def _passes(self, thread):
        """Whether the wait at which the thread stands comes back true, or is a fault."""
        operation = thread.operation
        if operation.meeting:
            barrier, phase = operation.meeting
            return barrier.phase != phase
        barrier = thread.block.barriers.live.get(operation.address)
        if barrier is None or barrier.phase & 1 != operation.parity or operation.parity not in (0, 1):
            return True
        return barrier.lost(thread) or operation.token is not None and not barrier.waits_for(operation.token)

    def _view(self, warp):
        """All that a poll by a lane of this warp could depend on."""
        return (self.acts[warp], self.turns, *map(self._version, self.polled[warp]))

    def _version(self, thing):
        if thing[0] == "mbarrier":
            barrier = self.blocks[thing[2]].barriers.live.get(thing[1])
            return barrier and (barrier.component, barrier.phase)
        return self.changes.get(thing, 0)

    def blocked_looks(self):
        """(actor, touches, its looks) of each thread that waits and has not come back."""
        for thread in self.threads:
            if thread.operation is not None and self._in_vain(thread):
                yield self.actor_of(thread), thread.operation.touches(), [thread.operation]

    def _seen_while_blocked(self, thread):
        if thread.operation is not None:
            touches = thread.operation.touches()
            return [touch if touch.kind == "met" else touch._replace(kind="read") for touch in touches]
        if thread.waiting and thread.waiting[0] == "bar.sync":  # syncthreads lacks those of this step anyway
            return [Touch(("named", thread.waiting[1].number, thread.block.rank), "read")]
        return []

    def _only_polls(self):
        """No actor can make a step. Whether all there is to do is to wait for another cluster."""
        if polling := [block for block in self.blocks if block.spinning]:
            if all([block.only_polls() for block in polling]):
                return True
            for block in polling:
                block._unspin()
            self._settle()
            return False
        for block in self.blocks:
            block.spinning = self._polling(block)
        first = self.blocks[0]
        if not any(block.spinning or block._waits_outside() for block in self.blocks):
            raise first._no_progress("no thread can run and no copy is in flight")
        return True

    def _polling(self, block):
        """Its threads that look again and again; a try_wait that is in vain is a wait."""
        at_looks = (t for t in block.threads if not t.dead and t.operation and t.operation.poll)
        return [t for t in at_looks if not (t.operation.suspends and self._in_vain(t))]


for _name, _describe in ON_CLUSTER.items():
    setattr(ControlledCluster, _name, visible(getattr(Cluster, _name), _describe, 1))

"""One schedule by choice: who makes the next step, asked again before every visible operation.

The random schedules of ``machine.scheduler`` switch only where a thread waits. Here a thread gives way before
each operation that another thread could notice: on an mbarrier or a named barrier, a flag or an
atomic, and the issue of a copy that signals a barrier. Landing is a step of its own. All else stays
invisible: only a race could make its order matter, and vector clocks find races in any order.

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

from ..async_units.mbarrier import phase_of
from ..machine.block import Block
from ..machine.progress import LIVELOCK_STATES
from ..memory.restart import Restart
from .choices import EXIT, Effect, Schedule, Step
from .stepped_thread import SteppedThread, named_operation

OTHERS = ("others",)  # the actor that is all blocks after this one: they run until they end, or only poll
RETRIES = 8  # looks that have seen the same so often, while others can go on


class SteppedBlock(Block):
    """A block whose threads make one step at a time, as the launch's ``Schedule`` says."""

    thread_type = SteppedThread

    def __init__(self, execution, index, size, shared_bytes):
        super().__init__(execution, index, size, shared_bytes)
        chosen = execution.seed
        self.schedule = chosen if chosen.block == index else Schedule(index, chosen.by_thread)
        self.step = Step(None)
        self.uses = {}  # named barrier -> how often it has completed
        self.changes = {}  # word -> how often it has been changed
        self.acts = [0] * len(self.warps)  # operations of each warp that are no polls
        self.polled = [{} for _ in self.warps]  # what each warp has polled, in order
        self.issues = [0] * size  # copies of each thread
        self.threads_of, self.flying = {}, {}  # actor -> threads, actor -> copy
        # Whether the blocks after this one can still have their turn in the midst of it.
        self.others = chosen.block == index < execution.blocks - 1
        self.looking = []  # (thread, its look) of those of which it is not known whether they are in vain
        self.turns = 0  # of this block among those that are resident together
        # Steps so far, the last one of each actor; the block before a round of polls -> (turn, steps) so far,
        # and that of a round which has come again.
        self.steps, self.last_step, self.rounds, self.circle = 0, {}, {}, None

    def chance(self, probability):
        return False

    def next(self):
        return self.hub  # where the schedule is asked

    def launch_copy(self, copy, deliver):
        copy.deliver = deliver
        self.execution.copies_issued += copy.size > 0
        self.copies.append(copy)
        if copy.barrier is not None:
            self.issues[copy.tid] += 1
            actor = ("copy", copy.tid, self.issues[copy.tid])
            self.step.issued.append(actor)
            self.flying[actor] = copy

    def syncthreads(self, thread, vote=None):
        thread.give_way(named_operation(thread, 0))
        return super().syncthreads(thread, vote)

    def _finish_named(self, barrier):
        complete = super()._finish_named(barrier)
        if complete:
            use = self.uses.get(barrier.number, 0)
            self.uses[barrier.number] = use + 1
            actors = {self.actor_of(t) for t in barrier.parked}
            self.step.woken.append((actors, ("named", barrier.number), use))
            self.step.freed.update(barrier.parked)
        return complete

    def _exited(self, thread):
        freed = thread in self.step.freed
        (self.step.after if freed else self.step.touches).add(EXIT)
        self.threads_of[self.actor_of(thread)].remove(thread)
        super()._exited(thread)

    def actor_of(self, thread):
        return thread.tid if self.schedule.by_thread else thread.warp

    def phase(self, address):
        """The phase that the barrier at an address is in; None if there is none."""
        barrier = self.barriers.live.get(address)
        return barrier and barrier.phase

    def start(self, function, args):
        super().start(function, args)
        self.schedule.begin(self)
        for thread in self.threads:
            self.threads_of.setdefault(self.actor_of(thread), []).append(thread)

    def _run_threads(self):
        self.turns, before = self.turns + 1, self.progress
        self._settle()
        while self.live or self.others:
            self._try_looks()
            self._note_round()
            if actors := self._actors(RETRIES) or self._actors(LIVELOCK_STATES):
                self.step, self.circle = Step(self.schedule.choose(actors)), None
                self.steps += 1
                self.last_step[self.step.actor] = self.steps
                if self.step.actor == OTHERS:
                    self.others = False
                    self.step.did([Effect(("grid",), "write")])
                    self.schedule.happened(self.step)
                    return True
                self._make_step()
                self._settle()
                self.schedule.happened(self.step)
            elif self.circle:
                self._goes_round(before)
                return True
            elif self._only_polls():
                return True
        self.schedule.end()
        return False

    def _actors(self, attempts):
        """Who can make a step, if polls in vain get so many attempts."""
        self.attempts = attempts
        able = [a for a, threads in self.threads_of.items() if any(map(self._can, threads))]
        if self.circle:  # who has made no step in it
            able = [a for a in able if self.last_step.get(a, 0) <= self.circle[1]]
        return able + sorted(self.flying) + [OTHERS] * self.others

    def _make_step(self):
        step = self.step
        if step.actor in self.flying:
            copy = self.flying.pop(step.actor)
            thing = ("mbarrier", copy.barrier.address)
            step.did([Effect(thing, "land", copy.barrier.phase)])
            self.land(copy)
            return
        waiting = list(self.threads_of[step.actor])
        lanes = [t for t in waiting if self._can(t)]
        for thread in waiting:
            # What one of the others waits for decides whether it takes part in the step.
            if thread not in lanes and (touches := self._seen_while_blocked(thread)):
                step.did(touches)
        for thread in lanes:
            self._operate(thread)

    def _operate(self, thread):
        operation, progress = thread.operation, self.progress
        touches = operation.touches()
        waited = operation.suspends and self._passes(thread)
        thread.only_sees = operation.suspends and not waited
        self.step.did(touches, operation if operation.poll and self._may_be_in_vain(thread) else None)
        if operation.poll and not waited:
            self.polled[thread.warp].update((touch.thing, None) for touch in touches)
            thread.looked(self._state(thread), self._view(thread.warp))
        else:
            self.acts[thread.warp] += 1
        self._resume(thread)
        thread.wrote = self.progress != progress
        if thread.wrote:
            for thing, kind, _ in touches:
                if kind == "write":
                    self.changes[thing] = self.changes.get(thing, 0) + 1

    def _note_round(self):
        """If a thread is about to look, and a barrier has completed since it did so last, note whether all was
        as it is now at such a moment before."""
        completed = sum(self.uses.values())
        polls = (t for t in self.threads if t.completed < completed and not t.dead and t.operation)
        thread = next((t for t in polls if t.operation.poll), None)
        if thread is None:
            return
        thread.completed = completed
        memory = [self.shared, *self.globals.regions]
        states = (t.state() for t in self.threads if not t.dead)
        now = hash((thread.tid, *states, *(bytes(each.bytes) for each in memory)))
        self.circle = self.rounds.get(now)
        self.rounds.setdefault(now, (self.turns, self.steps))

    def _goes_round(self, before):
        """All who could make a step poll in rounds that come again; ``before``: the progress when it began."""
        if self.circle[0] < self.turns:
            self.progress = before  # nothing has come of it that was not there
        alive = [t for t in self.threads if not t.dead and t.operation]
        self.spinning, self.circle = [t for t in alive if t.operation.poll], None
        for thread in alive:
            if not thread.operation.poll:  # it could go on to where the others wait for it
                thread.waiting = "spin", None, None

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
            if thread.operation is not look or not self._may_be_in_vain(thread):
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
        """Have a thread see what is there, at a barrier that it has not come so far; whether all then is as it
        was before."""
        touches, progress = look.touches(), self.progress
        thread.only_sees = True
        self._resume(thread)
        now = thread.operation
        return (
            now is not None and now.poll and now.touches() == touches and not thread.was_busy
            and self.progress == progress and thread.state() == look.state
        )  # fmt: skip

    def _settle(self):
        """Run those who were woken, to their next visible operation."""
        while self.ready:
            self._resume(self.ready.popleft())

    def _resume(self, thread):
        self.execution.running = thread
        thread.switch()
        if thread.dead:
            self._exited(thread)

    def _can(self, thread):
        """Whether the thread's next operation can be done now, and may make a difference."""
        operation = thread.operation
        if operation is None or thread.dead:
            return False
        if not operation.poll or operation.suspends and self._passes(thread):
            return True
        if self._in_vain(thread):
            return False
        return thread.may_look(self._state(thread), self._view(thread.warp), self.attempts)

    def _passes(self, thread):
        """Whether the wait at which the thread stands comes back true, or is a fault."""
        operation = thread.operation
        barrier = self.barriers.live.get(operation.address)
        return (
            barrier is None
            or barrier.phase & 1 != operation.parity
            or operation.parity not in (0, 1)
            or barrier.lost(thread)
            or operation.token is not None
            and not barrier.waits_for(operation.token)
        )

    def _view(self, warp):
        """All that a poll by a lane of this warp could depend on."""
        return (self.acts[warp], self.turns, *map(self._version, self.polled[warp]))

    def _version(self, thing):
        if thing[0] == "mbarrier":
            barrier = self.barriers.live.get(thing[1])
            return barrier and (barrier.component, barrier.phase)
        return self.changes.get(thing, 0)

    def blocked_looks(self):
        """(actor, touches, its looks) of each thread that waits and has not come back."""
        for thread in self.threads:
            if thread.operation is not None and self._in_vain(thread):
                yield self.actor_of(thread), thread.operation.touches(), [thread.operation]

    def _seen_while_blocked(self, thread):
        if thread.operation is not None:
            return [touch._replace(kind="read") for touch in thread.operation.touches()]
        if thread.waiting and thread.waiting[0] == "bar.sync":  # syncthreads lacks those of this step anyway
            return [Effect(("named", thread.waiting[1].number), "read")]
        return []

    def _only_polls(self):
        """No actor can make a step. Whether all there is to do is to wait for another block."""
        if self.spinning:
            if super()._only_polls():
                return True
            self._unspin()
            self._settle()
            return False
        self.spinning = [t for t in self.threads if not t.dead and t.operation and self._polls(t)]
        if not self.spinning and not self._waits_outside():
            raise self._no_progress("no thread can run and no copy is in flight")
        return True

    def _polls(self, thread):
        """Whether the thread looks again and again; a try_wait that is in vain is a wait."""
        look = thread.operation
        return look.poll and not (look.suspends and self._in_vain(thread))

    def _unspin(self):
        self.spinning = [t for t in self.spinning if not t.operation]  # the others make steps
        super()._unspin()

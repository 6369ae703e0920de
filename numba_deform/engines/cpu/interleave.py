"""One schedule by choice: who makes the next step, asked again before every visible operation.

The random schedules of ``block.py`` switch only where a thread waits. Here a thread gives way before
each operation that another thread could notice: on an mbarrier or a named barrier, a flag or an
atomic, and the issue of a copy that signals a barrier. Landing is a step of its own. All else stays
invisible: only a race could make its order matter, and vector clocks find races in any order.

Who makes a step is an *actor*: a warp, whose lanes then each do the one operation they are at, in
order of lanes; or a single thread; or a copy in flight. An actor that can do nothing but wait, or poll
again what has not changed since, has no turn.
"""

import re
from typing import NamedTuple

from .block import Block
from .thread import Thread
from .values import WORD

ANOTHER = "seed: the schedule is of another kernel"
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class BadSchedule(BaseException):
    """The text of a schedule asks for a choice that this kernel does not have."""


class Schedule:
    """The choices of one block; other blocks, and choices past the last one given, take the first.

    As a text, ``x:BLOCK:CHOICES`` for steps of warps and ``xt:BLOCK:CHOICES`` for steps of threads.
    A choice is the number of an actor among those that can make a step, where that are several: a
    digit of base 36, or a decimal number in parentheses from 36 on.
    """

    def __init__(self, block=0, by_thread=False, choices=()):
        self.block, self.by_thread, self.choices = block, by_thread, choices
        self.taken = []

    @classmethod
    def parse(cls, text):
        """The inverse of ``str``; ValueError for any other text."""
        match = re.fullmatch(r"x(t?):(\d+):((?:[0-9a-z]|\(\d+\))*)", text)
        if not match:
            rule = "must be an integer, or a schedule x:BLOCK:CHOICES such as x:0:0210"
            raise ValueError(f"seed={text!r} {rule}")
        parts = re.findall(r"[0-9a-z]|\(\d+\)", match[3])
        choices = [int(p[1:-1]) if p[0] == "(" else DIGITS.index(p) for p in parts]
        return cls(int(match[2]), match[1] == "t", choices)

    def __str__(self):
        taken = list(self.taken)
        while taken and not taken[-1]:
            taken.pop()  # the first one is taken anyway
        digits = "".join(DIGITS[i] if i < len(DIGITS) else f"({i})" for i in taken)
        return f"x{'t' * self.by_thread}:{self.block}:{digits}"

    def begin(self, block):
        """``block`` is about to start."""
        self.taken = []

    def choose(self, actors):
        """One of ``actors``, who can make the next step."""
        if len(actors) == 1:
            return actors[0]
        done = len(self.taken)
        number = self.choices[done] if done < len(self.choices) else 0
        if number >= len(actors):
            raise BadSchedule(f"{ANOTHER}: choice {done + 1} is {number}, among {len(actors)}")
        self.taken.append(number)
        return actors[number]

    def happened(self, step):
        """``step`` has been made."""

    def end(self):
        """The block has ended without a fault."""
        if any(self.choices[len(self.taken) :]):
            choices = f"it has {len(self.choices)} choices, and {len(self.taken)} were there to make"
            raise BadSchedule(f"{ANOTHER}: {choices}")


class Touch(NamedTuple):
    """What a step did to one thing that others can see.

    ``thing`` is ("mbarrier", address), ("named", id), ("word", address) or ("exits",). ``kind`` says
    how: ``read``, ``write``, or one of the kinds that commute with their like in one and the same
    ``phase`` (see ``explore.conflict``): ``arrive``, ``land``, ``expect``, ``exit``.
    """

    thing: tuple
    kind: str
    phase: int = 0


class Step:
    """One step of ``actor``: an event of the exploration."""

    def __init__(self, actor):
        self.actor, self.touches = actor, set()
        self.issued = []  # the actors that its copies are
        self.woken = []  # (actors woken, the named barrier that did, its phase)
        # (mbarrier, phase) where the step was nothing but waiting for it; False: something else
        self.awaited = None

    def did(self, touches, awaited):
        self.touches.update(touches)
        self.awaited = awaited if self.awaited in (None, awaited) else False


class Operation:
    """A visible operation that a thread is about to do.

    ``touches()`` is what it touches if it is done now. ``parity`` is that of a wait that blocks until
    its phase is complete. ``poll``: it may be one of many looks at the same thing.
    """

    def __init__(self, touches, address=None, parity=None, poll=False):
        self.touches, self.address, self.parity, self.poll = touches, address, parity, poll
        self.state = None  # of its thread, for a poll


def _visible(name, describe):
    """The method ``name`` of Thread, which gives way first; ``describe`` makes its Operation."""
    plain = getattr(Thread, name)

    def method(self, *args, **options):
        if self.inside:  # a part of a visible operation
            return plain(self, *args, **options)
        self.give_way(describe(self, *args, **options))
        self.inside = True
        try:
            return plain(self, *args, **options)
        finally:
            self.inside = False

    return method


def _on_barrier(kind):
    def describe(thread, address, *_):
        thing = ("mbarrier", int(address) & WORD)
        return Operation(lambda: [Touch(thing, kind, thread.block.phase_of(thing[1]))])

    return describe


def _wait(thread, address, parity, suspend):
    thread.block.barriers.find(thread, address)  # no order of steps makes a difference to its faults
    touches = [Touch(("mbarrier", address), "read")]
    if suspend:
        return Operation(lambda: touches, address, parity)
    return Operation(lambda: touches, poll=True)


def _copy(thread, *args):
    return Operation(lambda: [Touch(("mbarrier", int(args[-1]) & WORD), "read")])


def _words(kind, address, size, poll):
    first = address // 4
    touches = [Touch(("word", w), kind) for w in range(first, first + max(1, size // 4))]
    return Operation(lambda: touches, poll=poll)


def _on_flag(kind, poll):
    def describe(thread, space, address, *_, **__):
        return _words(kind, address & WORD if space == "shared" else int(address), 4, poll)

    return describe


def _atomic(thread, view, index, *_):
    place, address = view._locate(thread, index)
    return _words("write", address or 0, view.itemsize, poll=True)


def named_operation(thread, number, *_, **__):
    """An arrival at named barrier ``number``. Exits count as arrivals, and some are faults."""
    block = thread.block
    return Operation(
        lambda: [Touch(("named", number), "arrive", block.uses.get(number, 0)), Touch(("exits",), "read")]
    )


class SteppedThread(Thread):
    """A thread that gives way before each visible operation."""

    operation, inside = None, False
    last_look = None  # (state, progress) at the last time of many reads

    def __init__(self, run, block, tid):
        super().__init__(run, block, tid)
        self.looks = {}  # state at a poll -> what the warp's polls could see at that time

    def give_way(self, operation):
        self.operation, self.reads = operation, 0
        if operation.parity is not None:
            barrier = self.block.barriers.live.get(operation.address)
            self.waiting = ("mbarrier", barrier, operation.parity)
        elif operation.poll:
            self.waiting = ("spin", None, None)
        self.block.switches += 1
        self.block.hub.switch()
        self.operation = None

    def poll(self, *_):
        self.reads = 0  # it has given way before it looked

    def many_reads(self, *waiting):
        """Give way only if this is a poll: whoever works through much data goes on."""
        self.reads = 0
        look, self.last_look = self.last_look, (self.state(), self.block.progress)
        if look == self.last_look:
            self.spin(*waiting)


VISIBLE = {
    "mbarrier_init": _on_barrier("write"), "mbarrier_inval": _on_barrier("write"),
    "mbarrier_arrive": _on_barrier("arrive"), "mbarrier_arrive_drop": _on_barrier("write"),
    "mbarrier_arrive_expect_tx": _on_barrier("arrive"), "mbarrier_expect_tx": _on_barrier("expect"),
    "mbarrier_wait": _wait, "tensor_load": _copy, "bulk_load": _copy,
    "named_barrier": named_operation, "load_acquire": _on_flag("read", poll=True),
    "store_release": _on_flag("write", poll=False), "atomic": _atomic,
    "atomic_word": _on_flag("write", poll=True),
}
for _name, _describe in VISIBLE.items():
    setattr(SteppedThread, _name, _visible(_name, _describe))


class SteppedBlock(Block):
    """A block whose threads make one step at a time, as the launch's ``Schedule`` says."""

    thread_type = SteppedThread

    def __init__(self, grid, index, size, shared_bytes):
        super().__init__(grid, index, size, shared_bytes)
        chosen = grid.seed
        self.schedule = chosen if chosen.block == index else Schedule(index, chosen.by_thread)
        self.step = Step(None)
        self.uses = {}  # named barrier -> how often it has completed
        self.changes = {}  # word -> how often it has been changed
        self.acts = [0] * len(self.warps)  # operations of each warp that are no polls
        self.polled = [{} for _ in self.warps]  # what each warp has polled, in order
        self.issues = [0] * size  # copies of each thread
        self.threads_of, self.flying = {}, {}  # actor -> threads, actor -> copy

    def chance(self, probability):
        return False  # no try_wait gives up early

    def launch_copy(self, copy, deliver):
        copy.deliver = deliver
        self.grid.copies_issued += 1
        self.copies.append(copy)
        if copy.barrier is not None:
            self.issues[copy.tid] += 1
            actor = ("copy", copy.tid, self.issues[copy.tid])
            self.step.issued.append(actor)
            self.flying[actor] = copy

    def syncthreads(self, thread):
        thread.give_way(named_operation(thread, 0))
        super().syncthreads(thread)

    def _finish_named(self, barrier):
        complete = super()._finish_named(barrier)
        if complete:
            use = self.uses.get(barrier.number, 0)
            self.uses[barrier.number] = use + 1
            actors = {self.actor_of(t) for t in barrier.parked}
            self.step.woken.append((actors, ("named", barrier.number), use))
        return complete

    def _exited(self, thread):
        self.step.touches.add(Touch(("exits",), "exit"))
        super()._exited(thread)

    def actor_of(self, thread):
        return thread.tid if self.schedule.by_thread else thread.warp

    def phase_of(self, address):
        barrier = self.barriers.live.get(address)
        return barrier.phase if barrier else 0

    def _run_threads(self):
        self.schedule.begin(self)
        for thread in self.threads:
            self.threads_of.setdefault(self.actor_of(thread), []).append(thread)
        self._settle()
        while self.live:
            actors = [a for a, threads in self.threads_of.items() if any(map(self._can, threads))]
            actors += sorted(self.flying)
            if actors:
                self.step = Step(self.schedule.choose(actors))
                self._make_step()
                self._settle()
                self.schedule.happened(self.step)
            else:
                self._stuck()
        self.schedule.end()

    def _make_step(self):
        step = self.step
        if step.actor in self.flying:
            copy = self.flying.pop(step.actor)
            thing = ("mbarrier", copy.barrier.address)
            step.did([Touch(thing, "land", copy.barrier.phase)], False)
            self.land(copy)
            return
        waiting = [t for t in self.threads_of[step.actor] if not t.dead]
        lanes = [t for t in waiting if self._can(t)]
        for thread in waiting:
            if thread not in lanes:  # what it waits for decides whether it takes part in the step
                step.did(self._seen_while_blocked(thread), False)
        for thread in lanes:
            self._operate(thread)

    def _operate(self, thread):
        operation, progress = thread.operation, self.progress
        touches, awaited = operation.touches(), False
        if operation.parity is not None:
            awaited = (touches[0].thing, self.phase_of(operation.address) - 1)
        self.step.did(touches, awaited)
        if operation.poll:
            self.polled[thread.warp].update((touch.thing, None) for touch in touches)
            thread.looks[operation.state] = self._view(thread.warp)
        else:
            self.acts[thread.warp] += 1
        self._resume(thread)
        if self.progress != progress:
            for thing, kind, _ in touches:
                if kind == "write":
                    self.changes[thing] = self.changes.get(thing, 0) + 1

    def _settle(self):
        """Run those who were woken, to their next visible operation."""
        while self.ready:
            self._resume(self.ready.popleft())

    def _resume(self, thread):
        self.grid.running = thread
        thread.switch()
        if thread.dead:
            self._exited(thread)

    def _can(self, thread):
        """Whether the thread's next operation can be done now, and may make a difference."""
        operation = thread.operation
        if operation is None or thread.dead:
            return False
        if operation.parity is not None:
            barrier = self.barriers.live.get(operation.address)
            return (
                barrier is None
                or barrier.phase & 1 != operation.parity
                or operation.parity not in (0, 1)
                or thread.seen[barrier.component] < barrier.phase - 1  # a fault
            )
        if operation.poll:
            if operation.state is None:
                operation.state = thread.state()
            return thread.looks.get(operation.state) != self._view(thread.warp)
        return True

    def _view(self, warp):
        """All that a poll by a lane of this warp could depend on."""
        return (self.acts[warp], *map(self._version, self.polled[warp]))

    def _version(self, thing):
        if thing[0] == "mbarrier":
            barrier = self.barriers.live.get(thing[1])
            return barrier and (barrier.component, barrier.phase)
        return self.changes.get(thing, 0)

    def blocked_waits(self):
        """(actor, touches, what it waits for) of each thread that waits and has not come back."""
        for thread in self.threads:
            operation = thread.operation
            if operation is not None and operation.parity is not None:
                touches = operation.touches()
                awaited = (touches[0].thing, self.phase_of(operation.address))
                yield self.actor_of(thread), touches, awaited

    def _seen_while_blocked(self, thread):
        if thread.operation is not None:
            return [Touch(t.thing, "read") for t in thread.operation.touches()]
        if thread.waiting and thread.waiting[0] in ("syncthreads", "bar.sync"):
            return [Touch(("named", thread.waiting[1].number), "read")]
        return []

    def _stuck(self):
        """No actor can make a step."""
        pollers = [t for t in self.threads if not t.dead and t.operation and t.operation.poll]
        if self.spinning:
            self._check_livelock()
            self._unspin()
            self._settle()
        elif pollers:
            self.spinning = pollers
            while True:
                self._check_livelock()
        else:
            raise self._no_progress("no thread can run and no copy is in flight")

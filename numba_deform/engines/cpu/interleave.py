"""One schedule by choice: who makes the next step, asked again before every visible operation.

The random schedules of ``block.py`` switch only where a thread waits. Here a thread gives way before
each operation that another thread could notice: on an mbarrier or a named barrier, a flag or an
atomic, and the issue of a copy that signals a barrier. Landing is a step of its own. All else stays
invisible: only a race could make its order matter, and vector clocks find races in any order.

Who makes a step is an *actor*: a warp, whose lanes then each do the one operation they are at, in
order of lanes; or a single thread; or a copy in flight. An actor that can do nothing but wait, or poll
again what has not changed since, has no turn.

A try_wait may come back false before its phase is complete. Where that leads back to it, waiting is all
there is to it. Whether it does is tried out (``_try_patience``); where it does not, it is a poll.
"""

import re
import sys
from typing import NamedTuple

from .block import LIVELOCK_STATES, Block
from .instructions import ADDS
from .memory import Rerun
from .sites import KERNEL
from .thread import FLAG, Thread
from .values import WORD

ANOTHER = "seed: the schedule is of another kernel"
OTHERS = ("others",)  # the actor that is all blocks after this one: they run until they end, or only poll
RETRIES = 8  # a try_wait that has come back to itself so often does so forever
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

    ``thing`` is ("mbarrier", address), ("named", id), ("word", address), ("exits",), or ("grid",), which
    is all global memory, written by other blocks. ``kind`` says
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
        self.freed, self.after = set(), set()  # the threads of these, and what they then touched
        # (mbarrier, phase) where the step was nothing but waiting for it; False: something else
        self.awaited = None

    def did(self, touches, awaited):
        self.touches.update(touches)
        self.awaited = awaited if self.awaited in (None, awaited) else False


class Operation:
    """A visible operation that a thread is about to do.

    ``touches()`` is what it touches if it is done now. ``parity`` is that of a wait, which blocks until
    its phase is complete unless it is a poll. ``poll``: it may be one of many looks at the same thing.
    ``place`` is where a wait stands in the code, a key of ``Grid.patience``; ``waiting`` is what a thread
    that polls is going to say of itself.
    """

    token = None  # of a wait by token

    def __init__(self, touches, address=None, parity=None, poll=False, place=None, waiting=None):
        self.touches, self.address, self.parity, self.poll = touches, address, parity, poll
        self.place, self.waiting = place, waiting or ("spin", None, None)
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
    def describe(thread, address, *_, **__):
        thing = ("mbarrier", int(address) & WORD)
        return Operation(lambda: [Touch(thing, kind, thread.block.phase_of(thing[1]))])

    return describe


def _wait(thread, address, parity, suspend, token=None):
    barrier = thread.block.barriers.find(thread, address)  # no order of steps matters to its faults
    touches = [Touch(("mbarrier", address), "read")]
    if not suspend:
        return Operation(lambda: touches, poll=True, waiting=("mbarrier", barrier, parity))
    place = (thread.block.index, *thread.place())
    poll = not thread.block.grid.patience.get(place, True)
    operation = Operation(lambda: touches, address, parity, poll, place)
    operation.token = token
    return operation


def _tensor_load(thread, dst, address, coords, bar, *_):
    return _copy(thread, bar)


def _copy(thread, *args):
    return Operation(lambda: [Touch(("mbarrier", int(args[-1]) & WORD), "read")])


def _words(thread, kind, space, address, size, waiting=None):
    first = address // 4
    touches = [Touch(("word", w), kind) for w in range(first, first + max(1, size // 4))]
    if space is not thread.block.shared:
        touches.append(Touch(("grid",), "read"))
    return Operation(lambda: touches, poll=waiting is not None, waiting=waiting)


def _load(thread, space, address, *_, **__):
    space, address = thread._locate(space, address, 4, FLAG)
    return _words(thread, "read", space, address, 4, ("flag", space, address))


def _store(thread, space, address, *_, **__):
    return _words(thread, "write", *thread._locate(space, address, 4, FLAG), 4)


def _atomic_word(thread, space, address, *_, **__):
    space, address = thread._locate(space, address, 4, FLAG)
    return _words(thread, "write", space, address, 4, ("atomic", space, address))


def _atomic_add(thread, address, kind, values):
    size = 4 * len(values)
    space, address = thread._locate("global", address, size, ADDS)
    return _words(thread, "write", space, address, size, ("atomic", space, address))


def _atomic(thread, view, index, *_, **__):
    place, address = view._locate(thread, index)
    return _words(thread, "write", view.space, address or 0, view.itemsize, ("atomic", view.space, address))


def named_operation(thread, number, *_, **__):
    """An arrival at named barrier ``number``. Exits count as arrivals, and some are faults."""
    block = thread.block
    return Operation(
        lambda: [Touch(("named", number), "arrive", block.uses.get(number, 0)), Touch(("exits",), "read")]
    )


class SteppedThread(Thread):
    """A thread that gives way before each visible operation."""

    operation, inside = None, False
    gives_up = False  # whether a try_wait comes back although its phase is not complete
    # (state, progress) at one of the times of many reads; how many more it is kept, and in all
    last_look, left, stride = None, 1, 1

    def __init__(self, run, block, tid):
        super().__init__(run, block, tid)
        self.looks = {}  # state at a poll -> what the warp's polls could see at that time
        self.last_view, self.same = None, 0  # what the last poll could see; polls that saw the same

    def give_way(self, operation):
        self.operation, self.reads = operation, 0
        if operation.parity is not None:
            barrier = self.block.barriers.live.get(operation.address)
            self.waiting = ("mbarrier", barrier, operation.parity)
            if operation.place not in self.block.grid.patience:
                self.block.untried.append(self)
        elif operation.poll:
            self.waiting = operation.waiting
        self.block.switches += 1
        self.block.hub.switch()
        self.operation = None

    def place(self):
        """Where the thread stands, in all functions of the kernel: state() without values."""
        frame, sites = self.gr_frame or sys._getframe(1), [self.tid]
        while frame is not None:
            if KERNEL in frame.f_globals:
                sites.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        return sites

    def poll(self, *_):
        self.reads = 0  # it has given way before it looked

    def looked(self, state, view):
        self.same = self.same + 1 if view == self.last_view else 1
        self.looks[state] = self.last_view = view

    def may_look(self, state, view, attempts):
        """Whether a poll could come to something new. One that counts its attempts is in a new state each
        time: it gets so many of them."""
        return self.looks.get(state) != view and (view != self.last_view or self.same < attempts)

    def many_reads(self, *waiting):
        """Give way only if this is a poll, which comes back to where it was: whoever works through much data
        goes on. What is remembered is 1, 2, 4, .. times old (R. P. Brent), so that no circle is too long."""
        self.reads = 0
        look, last = (self.state(), self.block.progress), self.last_look
        if look == last:
            self.spin(*waiting)
        elif last is None or last[1] != look[1]:
            self.last_look, self.left, self.stride = look, 1, 1
        elif self.left == 1:
            self.stride *= 2
            self.last_look, self.left = look, self.stride
        else:
            self.left -= 1


VISIBLE = {
    "mbarrier_init": _on_barrier("write"), "mbarrier_inval": _on_barrier("write"),
    "mbarrier_arrive": _on_barrier("arrive"), "mbarrier_arrive_drop": _on_barrier("write"),
    "mbarrier_arrive_state": _on_barrier("write"),
    "mbarrier_arrive_expect_tx": _on_barrier("arrive"), "mbarrier_expect_tx": _on_barrier("expect"),
    "cp_async_arrive": _on_barrier("write"), "mbarrier_wait": _wait,
    "tensor_load": _tensor_load, "bulk_load": _copy,
    "named_barrier": named_operation, "load_acquire": _load, "store_release": _store,
    "atomic": _atomic, "atomic_word": _atomic_word,
    "atomic_add": _atomic_add,
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
        # Whether the blocks after this one can still have their turn in the midst of it.
        self.others = chosen.block == index < grid.blocks - 1
        self.turns = 0  # of this block among those that are resident together
        self.untried = []  # threads at a try_wait at a place that is not in grid.patience

    def chance(self, probability):
        thread = self.grid.running
        gives_up, thread.gives_up = thread.gives_up, False
        return gives_up

    def next(self):
        return self.hub  # where the schedule is asked

    def launch_copy(self, copy, deliver):
        copy.deliver = deliver
        self.grid.copies_issued += copy.size > 0
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
        (self.step.after if freed else self.step.touches).add(Touch(("exits",), "exit"))
        super()._exited(thread)

    def actor_of(self, thread):
        return thread.tid if self.schedule.by_thread else thread.warp

    def phase_of(self, address):
        barrier = self.barriers.live.get(address)
        return barrier.phase if barrier else 0

    def start(self, function, args):
        super().start(function, args)
        self.schedule.begin(self)
        for thread in self.threads:
            self.threads_of.setdefault(self.actor_of(thread), []).append(thread)

    def _run_threads(self):
        self.turns += 1
        self._settle()
        while self.live or self.others:
            self._try_patience()
            if actors := self._actors(RETRIES) or self._actors(LIVELOCK_STATES):
                self.step = Step(self.schedule.choose(actors))
                if self.step.actor == OTHERS:
                    self.others = False
                    self.step.did([Touch(("grid",), "write")], False)
                    self.schedule.happened(self.step)
                    return True
                self._make_step()
                self._settle()
                self.schedule.happened(self.step)
            elif self._only_polls():
                return True
        self.schedule.end()
        return False

    def _actors(self, attempts):
        """Who can make a step, if polls in vain get so many attempts."""
        self.attempts = attempts
        able = [a for a, threads in self.threads_of.items() if any(map(self._can, threads))]
        return able + sorted(self.flying) + [OTHERS] * self.others

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
        thread.gives_up = operation.poll
        if operation.parity is not None and not operation.poll:
            awaited = (touches[0].thing, self.phase_of(operation.address) - 1)
        self.step.did(touches, awaited)
        if operation.poll and (operation.parity is None or not self._passes(thread)):
            self.polled[thread.warp].update((touch.thing, None) for touch in touches)
            thread.looked(operation.state, self._view(thread.warp))
        else:
            self.acts[thread.warp] += 1
        self._resume(thread)
        if self.progress != progress:
            for thing, kind, _ in touches:
                if kind == "write":
                    self.changes[thing] = self.changes.get(thing, 0) + 1

    def _try_patience(self):
        """Have each try_wait that is blocked, at a place not met before, come back false, and note in
        ``grid.patience`` whether it leads back to it. If more than that has come of it: start over."""
        threads = [t for t in self.untried if not self._passes(t)]
        places = {t: (t.operation.place, t.operation.address, t.operation.parity) for t in threads}
        states, progress = [t.state() for t in threads], self.progress
        for _ in range(RETRIES):
            for thread in threads:
                thread.gives_up = True
                self._resume(thread)
            self._settle()
            threads = [t for t in threads if self._is_back(t, *places[t])]
            if len(threads) < len(places) or [t.state() for t in threads] == states:
                break
        self.untried = []
        for thread, (place, _, _) in places.items():
            self.grid.patience[place] = thread in threads
        if places and ([t.state() for t in threads] != states or self.progress != progress):
            raise Rerun

    def _is_back(self, thread, place, address, parity):
        now = thread.operation
        same = now and (now.place, now.address, now.parity) == (place, address, parity)
        return same and not thread.dead and not self._passes(thread)

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
        if operation.parity is not None and self._passes(thread):
            return True
        if operation.poll:
            if operation.state is None:
                operation.state = thread.state()
            return thread.may_look(operation.state, self._view(thread.warp), self.attempts)
        return operation.parity is None

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

    def blocked_waits(self):
        """(actor, touches, what it waits for) of each thread that waits and has not come back."""
        for thread in self.threads:
            operation = thread.operation
            if operation is not None and operation.parity is not None and not operation.poll:
                touches = operation.touches()
                awaited = (touches[0].thing, self.phase_of(operation.address))
                yield self.actor_of(thread), touches, awaited

    def _seen_while_blocked(self, thread):
        if thread.operation is not None:
            return [Touch(t.thing, "read") for t in thread.operation.touches()]
        if thread.waiting and thread.waiting[0] in ("syncthreads", "bar.sync"):
            return [Touch(("named", thread.waiting[1].number), "read")]
        return []

    def _only_polls(self):
        """No actor can make a step. Whether all there is to do is to wait for another block."""
        if self.spinning:
            if super()._only_polls():
                return True
            self._unspin()
            self._settle()
            return False
        self.spinning = [t for t in self.threads if not t.dead and t.operation and t.operation.poll]
        if not self.spinning and not self._waits_outside():
            raise self._no_progress("no thread can run and no copy is in flight")
        return True

    def _unspin(self):
        self.spinning = [t for t in self.spinning if not t.operation]  # the others make steps
        super()._unspin()

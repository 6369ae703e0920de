"""Every schedule of a small kernel: stateless model checking of the barrier and copy events.

Schedules are tried depth first, each by running the kernel anew with the choices of the last one up to
some step, and another there (Godefroid, *Model Checking for Programming Languages using VeriSoft*,
POPL 1997). Two steps that touch different things, or the same in a way that commutes, are not tried in
both orders: dynamic partial-order reduction (Flanagan and Godefroid, POPL 2005) with the source sets
of Abdulla, Aronis, Jonsson and Sagonas (*Optimal dynamic partial order reduction*, POPL 2014,
algorithm 1) and with sleep sets (Godefroid, LNCS 1032). One schedule then stands for all that differ in
the order of independent steps only; whether it has a race, the vector clocks say without luck.

A thread that looks in vain, and only comes back to look again, waits: how often it looks is no matter of order.
Its look is a step once it sees something new, and the steps before which it would have been in vain have one
order with it (Jonsson, Lang and Sagonas, *Awaiting for Godot*, FMCAD 2022). ``stepped_cluster`` says which are.
"""

import time
from dataclasses import dataclass, field

from ...faults import SimFault
from ...waivers import in_words
from .choices import BadSchedule, Schedule, Step
from .prepared_launch import PreparedLaunch, check_integers
from .simulate import Report

LIMIT = 10_000


@dataclass
class Exploration:
    """What :func:`explore` has tried without meeting a fault. Its text is a statement of what was
    covered.

    schedules  schedules run to their end; orders that differ in independent steps count once
    repeated   runs given up because they turned out to be such an order
    complete   whether these are all; else ``limit`` was reached
    longest    steps of the longest schedule; a step is one operation of a warp's lanes, or one landing
    choices    steps of one schedule, at most, where several actors could go on
    blocks, cluster, warps, by_thread   what was explored: ``cluster`` blocks together, of so many warps each;
                                        with ``by_thread`` each thread steps on its own
    waived     the rules that were broken and waived, as in ``Report``
    results    different contents in which the arrays were left
    seconds    wall-clock time
    """

    blocks: int
    warps: int
    threads: int
    by_thread: bool
    limit: int
    cluster: int = 1
    schedules: int = 0
    repeated: int = 0
    complete: bool = False
    longest: int = 0
    choices: int = 0
    results: int = 0
    seconds: float = 0.0
    waived: dict = field(default_factory=dict)

    def __str__(self):
        who = _count(self.threads, "thread") if self.by_thread else _count(self.warps, "warp")
        if self.cluster > 1:
            who += f" in each of the {self.cluster} blocks of a cluster"
        if (groups := self.blocks // self.cluster) > 1:
            what = "clusters" if self.cluster > 1 else "blocks"
            who += f" in each of {groups} {what}, those after it in one piece at any moment of it"
        events = f"up to {_count(self.longest, 'barrier, flag and copy event')} of {who}"
        tried = _count(self.schedules, "schedule")
        head = f"not complete: the first {tried} (limit={self.limit:,}) of {events}"
        if self.complete:
            head = f"complete: every order of {events}: {tried}"
        if self.results > 1:
            head += f", {self.results:,} different results"
        waived = "".join(f"; waived {text}" for text in in_words(self.waived))
        lanes = "" if self.by_thread else ", the lanes of a warp go in step"
        return f"{head}; orders of independent events count once{lanes}{waived}"


def explore(
    kernel, grid=None, block=None, args=(), shared_bytes=None, limit=LIMIT, by_thread=False, timeout=60.0,
    cluster=None, waive=()
):  # fmt: skip
    """Run ``kernel`` under every order of its barrier, flag and copy events; an :class:`Exploration`.

    The arguments are those of ``simulate``, or a Launch, whose outputs are compared after every order:
    ``explore(copy(steps=2))``. An *event* is one operation on an mbarrier, a named
    barrier, a flag or an atomic, the issue of a copy that signals an mbarrier, or its landing. The
    lanes of a warp go in step from one event to the next; ``by_thread`` lets each thread go on its own,
    which is for a handful of threads. The blocks of a cluster step among each other, and what one does to
    another's barriers and flags is an event, too. Of each block, or cluster, the orders are tried with one
    order of the others: those before it have ended, or wait for others; those after it run, until they end or
    wait, at each moment of it that can make a difference. At most ``limit`` schedules are run to their end; the
    result says whether that was all. ``timeout`` is in seconds, for one schedule; ``waive`` is that of
    ``simulate``. The arrays are left as one of the schedules leaves them.

    A thread that polls a flag, an mbarrier or a lock waits as long as a look only leads back to that look.
    Where it does more, such as to count its attempts, to give up, or to look elsewhere in between, each look is
    an event, and a ``try_wait`` comes back before its phase is complete as well.

    Not covered: lanes of a warp out of step, more turns of the blocks, values of the clocks, and weak
    memory beyond what the race rules forbid.

    Raises the first :class:`SimFault` that any order covered meets; its ``seed`` is a text that
    ``simulate(..., seed=)`` runs again. ``ValueError`` as ``simulate``.
    """
    check_integers(limit=limit)
    if limit < 1:
        raise ValueError(f"limit={limit!r} must be at least 1")
    started = time.perf_counter()
    grid = PreparedLaunch(kernel, grid, block, args, shared_bytes, timeout, cluster, waive=waive)
    size, warps = grid.blocks // grid.clusters, -(-grid.threads // 32)
    result = Exploration(grid.blocks, warps, grid.threads, by_thread, limit, size)
    contents = set()
    with grid.watched():
        for _, fault in outcomes(grid, result):
            if fault:
                raise fault
            contents.add(grid.contents())
        if result.repeated:  # one of these may have been the last, and was not run to its end
            report = Report(waived=result.waived)
            grid.run(Schedule(0, by_thread), "late", False, report)
            result.waived = report.waived
    result.results = len(contents)
    result.seconds = time.perf_counter() - started
    return result


def outcomes(grid, result, reduced=True):
    """Run schedule after schedule of ``grid`` and count them in ``result``; yields (seed, its fault or
    None) for each. With ``reduced=False`` every order is a schedule of its own."""
    report = Report()
    for number in range(grid.clusters):
        search = _Search(number, result.by_thread, reduced)
        while search.left:
            if result.schedules == result.limit:
                return
            fault = None
            try:
                grid.run(search, "late", False, report)
            except _Repeated:
                result.repeated += 1
                search.stopped()
                search.next()
                continue
            except SimFault as error:
                fault = error
                search.stopped()
            result.schedules += 1
            result.waived = report.waived
            result.longest = max(result.longest, len(search.steps))
            result.choices = max(result.choices, len(search.taken))
            seed = str(search)
            search.next()
            yield seed, fault
    result.complete = True


def _count(number, what):
    return f"{number:,} {what}{'s' * (number != 1)}"


def conflict(a, b):
    """Whether the order of two touches of one thing can matter.

    Arrivals and landings of one phase commute: it cannot complete before the last of them. Bytes
    expected apart from an arrival do not: the arrival may complete the phase first. A wait for a phase in which
    the thread has arrived itself commutes with the arrivals of others in the next one.
    """
    kinds = {a.kind, b.kind}
    if kinds in ({"read"}, {"exit"}, {"met"}):
        return False
    if kinds == {"arrive", "met"}:
        return a.held == b.held
    if kinds <= {"arrive", "land"} or kinds == {"expect"}:
        return a.held != b.held
    return True


def conflicts(a, b):
    """The same of two sets of touches; None stands for a step that failed, which ends everything."""
    if a is None or b is None:
        return True
    return any(x.thing == y.thing and conflict(x, y) for x in a for y in b)


class _Repeated(BaseException):
    """All that could go on is asleep: this order has been covered by another schedule."""


class _Node:
    """A point of the current path: who can make a step, who is to try it, who has, who need not."""

    def __init__(self, actors, todo, asleep, actor):
        self.actors, self.todo, self.asleep, self.actor = actors, todo, asleep, actor
        self.done, self.touches = set(), None  # touches of the step that ``actor`` makes here


class _Search(Schedule):
    """A depth-first search over the schedules of one block or cluster. Each run follows ``path`` to its end and
    then goes on, as the first actors that are not asleep."""

    def __init__(self, block, by_thread, reduced):
        super().__init__(block, by_thread)
        self.reduced, self.path, self.left = reduced, [], True
        self.new = 0  # steps from here on are new
        self.begin(None)

    def begin(self, cluster):
        super().begin(cluster)
        self.running, self.steps = cluster, []
        self.pasts = []  # the steps that happen before each step, as bits
        self.before = {}  # actor -> the steps that happen before its next one
        self.touched = {}  # thing -> [(number of a step, touch)]

    def choose(self, actors):
        depth = len(self.steps)
        if depth == len(self.path):
            self.path.append(self._node(actors, depth))
        node = self.path[depth]
        if node.actors != actors:
            raise BadSchedule("the kernel does something else when it runs again")
        if len(actors) > 1:
            self.taken.append(actors.index(node.actor))
        return node.actor

    def _node(self, actors, depth):
        if not self.reduced:
            return _Node(actors, set(actors), {}, actors[0])
        asleep = {}
        if depth:
            last = self.path[depth - 1]
            still = (item for item in last.asleep.items() if not conflicts(item[1], last.touches))
            asleep = dict(still)
        for actor in actors:
            if actor not in asleep:
                return _Node(actors, {actor}, asleep, actor)
        raise _Repeated

    def happened(self, step, touches=()):
        touches = step.touches | step.after if touches is not None else None
        number, node = len(self.steps), self.path[len(self.steps)]
        node.touches = touches
        self.steps.append(step)
        if not self.reduced:
            return
        past, cover, races = self._races(step.actor, touches and step.touches, step.looks)
        if step.after:
            past = self._races_behind(step, past, cover, races)
        self.pasts.append(past)
        known = past | 1 << number
        self.before[step.actor] = known
        for touch in touches or ():
            self.touched.setdefault(touch.thing, []).append((number, touch))
        for actor in step.issued:
            self.before[actor] = known
        for actors, thing, phase in step.woken:
            learned = known
            for other, touch in self.touched.get(thing, ()):
                if touch.kind == "arrive" and touch.held == phase:
                    learned |= self.pasts[other] | 1 << other
            for actor in actors:
                self.before[actor] = self.before.get(actor, 0) | learned
        if number >= self.new:
            for other in races:
                self._reverse(other, step.actor, cover)

    def stopped(self):
        """The run ended before all threads had: with a fault, or because it repeats another."""
        if len(self.steps) < len(self.path):  # in the middle of a step
            node = self.path[len(self.steps)]
            self.happened(Step(node.actor), None)
            node.todo.update(node.actors)
        if self.reduced and self.running:
            # Who still waits may have gone on earlier: for another phase of the same parity, say.
            for actor, touches, looks in self.running.blocked_looks():
                _, cover, races = self._races(actor, touches, looks)
                for other in races:
                    self._reverse(other, actor, cover)

    def _races(self, actor, touches, looks):
        """(past, cover, races) of a step of ``actor`` that comes now: the steps before it, as bits;
        the same without those that ended a wait of its ``looks``; and the steps of ``cover``
        whose order with it nothing else decides.

        A step that ended the wait has one order with the look only. Those before it need
        not have: the look may see what was there earlier, such as another phase of the same parity.
        """
        past = cover = self.before.get(actor, 0)
        races = []
        for other in self._conflicting(touches):
            behind = self.pasts[other] | 1 << other
            past |= behind
            if not cover >> other & 1 and not self._needed(other, looks):
                races.append(other)
                cover |= behind
        return past, cover, races

    def _races_behind(self, step, past, cover, races):
        """The past of a step with what was touched behind a named barrier that it completed, for which all that
        have arrived there were needed; adds its races."""
        for _, thing, phase in step.woken:
            for other, touch in self.touched.get(thing, ()):
                if touch.kind == "arrive" and touch.held == phase:
                    cover |= self.pasts[other] | 1 << other
        for other in self._conflicting(step.after):
            behind = self.pasts[other] | 1 << other
            past |= behind
            if not cover >> other & 1 and other not in races:
                races.append(other)
                cover |= behind
        return past

    def _conflicting(self, touches):
        """The numbers of earlier steps that conflict with ``touches``, the latest first."""
        if touches is None:
            return range(len(self.pasts) - 1, -1, -1)
        numbers = set()
        for touch in touches:
            for other, earlier in self.touched.get(touch.thing, ()):
                if other not in numbers and conflict(earlier, touch):
                    numbers.add(other)
        return sorted(numbers, reverse=True)

    def _needed(self, other, looks):
        """Whether just before step number ``other`` all these looks would have been in vain."""
        held = self.steps[other].held
        return bool(looks) and all(
            (thing := look.touches()[0].thing) in held and self.running.was_in_vain(look, held[thing])
            for look in looks
        )

    def _reverse(self, first, actor, past):
        """Have the race of step number ``first`` and the latest step, of ``actor`` with ``past``,
        tried in the other order, unless a first step that leads there is going to be tried already."""
        node, last = self.path[first], len(self.pasts)
        rest = [k for k in range(first + 1, last) if not self.pasts[k] >> first & 1]
        bits = sum(1 << k for k in rest)
        initials = [self.steps[k].actor for k in rest if not self.pasts[k] & bits]
        if not past & bits:
            initials.append(actor)
        if node.todo.intersection(initials) or not node.asleep.keys().isdisjoint(initials):
            return  # of one that is asleep, all that it leads to has been tried elsewhere
        able = [actor for actor in initials if actor in node.actors]
        if able:
            node.todo.add(able[-1])
        else:
            node.todo.update(node.actors)

    def next(self):
        """Go back to the last point where something is left to try."""
        while self.path:
            node = self.path[-1]
            node.done.add(node.actor)
            if self.reduced:
                node.asleep[node.actor] = node.touches
            for actor in node.actors:
                if actor in node.todo and actor not in node.done and actor not in node.asleep:
                    node.actor, self.new = actor, len(self.path) - 1
                    return
            self.path.pop()
        self.left = False

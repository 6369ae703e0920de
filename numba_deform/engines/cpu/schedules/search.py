"""The search over the schedules of a block or cluster: stateless model checking of the barrier and copy events.

Schedules are tried depth first, each by running the kernel anew with the choices of the last one up to
some step, and another there (Godefroid, *Model Checking for Programming Languages using VeriSoft*,
POPL 1997). Two steps that touch different things, or the same in a way that commutes, are not tried in
both orders: dynamic partial-order reduction (Flanagan and Godefroid, POPL 2005) with the source sets
of Abdulla, Aronis, Jonsson and Sagonas (*Optimal dynamic partial order reduction*, POPL 2014,
algorithm 1) and with sleep sets (Godefroid, LNCS 1032). One schedule then stands for all that differ in
the order of independent steps only; whether it has a race, the vector clocks say without luck.

A thread that looks in vain, and only comes back to look again, waits: how often it looks is no matter of order.
Its look is a step once it sees something new, and the steps before which it would have been in vain have one
order with it (Jonsson, Lang and Sagonas, *Awaiting for Godot*, FMCAD 2022). ``controlled_cluster`` says which.
"""

from dataclasses import dataclass, field, replace

from ...faults import SimFault
from .choices import BadSchedule, Schedule, Step
from .simulate import Report


def orders(launch, result, search):
    """The same for those of one search."""
    while search.left and result.schedules < result.limit:
        ran, fault = run_once(launch, result, search)
        seed = str(search)
        search.next()
        if ran:
            yield seed, fault
    result.complete = not search.left and not result.left_out


def run_once(launch, result, search):
    """Run the search's next schedule: (whether it came to its end, its fault or None)."""
    report, fault = Report(waived=result.waived), None
    try:
        launch.run(search, "late", False, report)
    except _Repeated:
        result.repeated += 1
        search.stopped()
        return False, None
    except SimFault as error:
        fault = error
        search.stopped()
    result.schedules += 1
    result.waived = report.waived
    result.left_out |= search.left_out
    result.longest = max(result.longest, len(search.steps))
    result.choices = max(result.choices, len(search.taken))
    if not fault:
        result.contents.add(launch.contents())
    return True, fault


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


@dataclass
class Node:
    """A point of the current path. ``actors`` can make a step, ``actor`` makes it, with these ``touches``.
    ``todo`` are to try it, in this order, ``done`` have, and those ``asleep``, with their touches, need not."""

    actors: list
    todo: dict
    asleep: dict
    actor: tuple
    done: set = field(default_factory=set)
    touches: set | None = None

    def next(self):
        """Return (the next actor to try here, or None; the sleep set for it)."""
        asleep = {**self.asleep, self.actor: self.touches}
        return next((a for a in self.todo if a not in asleep and a not in self.done), None), asleep

    def like(self, **changes):
        """The same with some changes; the parts are its own."""
        same = replace(self, **changes)
        same.todo, same.asleep, same.done = dict(same.todo), dict(same.asleep), set(same.done)
        return same


class Search(Schedule):
    """A depth-first search over the schedules of one block or cluster. Each run follows ``path`` to its end and
    then goes on, as the first actors that are not asleep.

    With a ``root``, nodes with one actor each, it searches the schedules that begin so. What it finds is to
    be tried elsewhere is in ``wanted``, as arguments of ``want`` of the search for which it does that."""

    def __init__(self, block, by_thread, reduced=True, root=()):
        super().__init__(block, by_thread)
        self.reduced, self.path, self.left = reduced, list(root), True
        self.base, self.wanted, self.left_out = len(root), {}, set()
        self.new = max(0, self.base - 1)  # steps from here on are new
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
            return Node(actors, dict.fromkeys(actors), {}, actors[0])
        asleep = {}
        if depth:
            last = self.path[depth - 1]
            asleep = {actor: some for actor, some in last.asleep.items() if not conflicts(some, last.touches)}
        for actor in actors:
            if actor not in asleep or self.running.execution.is_telling:
                return Node(actors, {actor: None}, asleep, actor)
        raise _Repeated

    def leave_out(self, place):
        self.left_out.add(place)

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
            self.want(len(self.steps) - 1, ())
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
        past = self.before.get(actor, 0)
        return self._with_races(touches, past, past, [], looks)

    def _with_races(self, touches, past, cover, races, looks=None):
        """The same three with what conflicts with ``touches``."""
        for other in self._conflicting(touches):
            behind = self.pasts[other] | 1 << other
            past |= behind
            if not cover >> other & 1 and other not in races and not self._needed(other, looks):
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
        return self._with_races(step.after, past, cover, races)[0]

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
        last = len(self.pasts)
        rest = [k for k in range(first + 1, last) if not self.pasts[k] >> first & 1]
        bits = sum(1 << k for k in rest)
        initials = [self.steps[k].actor for k in rest if not self.pasts[k] & bits]
        if not past & bits:
            initials.append(actor)
        self.want(first, tuple(initials))

    def want(self, depth, initials):
        """Have one of ``initials`` tried at a point of the path, or all who can go on if none of these can."""
        if depth < self.base:
            self.wanted[depth, initials] = None
            return
        node = self.path[depth]
        if not node.todo.keys().isdisjoint(initials) or not node.asleep.keys().isdisjoint(initials):
            return  # of one that is asleep, all that it leads to has been tried elsewhere
        able = [actor for actor in initials if actor in node.actors]
        node.todo.update(dict.fromkeys(able[-1:] or node.actors))

    def next(self):
        """Go back to the last point where something is left to try."""
        while len(self.path) > self.base:
            node = self.path[-1]
            actor, asleep = node.next()
            node.done.add(node.actor)
            if self.reduced:
                node.asleep = asleep
            if actor:
                node.actor, self.new = actor, len(self.path) - 1
                return
            self.path.pop()
        self.left = False

    def subtree(self, depth):
        """The root of the schedules that take the next actor at a point of the path; None if there is none."""
        actor, asleep = self.path[depth].next()
        if actor is None:
            return None
        above = [node.like(asleep={}) for node in self.path[:depth]]
        return [*above, Node(self.path[depth].actors, {actor: None}, asleep, actor)]

    def adopt(self, path, wanted):
        """Go on where the search of the last point's subtree has stopped: with its path from its root's last
        node on, and with what it wants."""
        node = self.path[-1]
        _, node.asleep = node.next()
        node.actor, node.touches = path[0].actor, path[0].touches
        self.path += path[1:]
        for depth, initials in wanted:
            self.want(depth, initials)

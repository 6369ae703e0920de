"""Every schedule of a small kernel (``search``), and the statement of what was tried."""

import time
from dataclasses import dataclass, field

from ...waivers import added, in_words
from .choices import RETRIES, Schedule
from .executors import check_executor
from .prepared_launch import PreparedLaunch, check_integers
from .search import Search, orders
from .simulate import Report
from .subtrees import outcomes_by

LIMIT = 10_000


@dataclass
class Exploration:
    """What :func:`explore` has tried without meeting a fault. Its text is a statement of what was
    covered.

    schedules  schedules run to their end; orders that differ in independent steps count once
    repeated   runs given up because they turned out to be such an order
    complete   whether these are all; else ``limit`` was reached, or a number of looks left out
    left_out   places of threads that count their looks, or give up, of which not every number of looks is tried
    longest    steps of the longest schedule; a step is one operation of a warp's lanes, or one landing
    choices    steps of one schedule, at most, where several actors could go on
    blocks, cluster, warps, by_thread   what was explored: ``cluster`` blocks together, of so many warps each;
                                        with ``by_thread`` each thread steps on its own
    waived     the rules that were broken and waived, as in ``Report``
    contents   digests of what the arrays were left with
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
    seconds: float = 0.0
    waived: dict = field(default_factory=dict)
    left_out: set = field(default_factory=set)
    contents: set = field(default_factory=set, repr=False)

    @property
    def results(self):
        """How many different contents the arrays were left with."""
        return len(self.contents)

    def add(self, part):
        """What another Exploration has tried of the same."""
        self.schedules, self.repeated = self.schedules + part.schedules, self.repeated + part.repeated
        self.longest, self.choices = max(self.longest, part.longest), max(self.choices, part.choices)
        self.waived = added(self.waived, part.waived)
        self.contents |= part.contents
        self.left_out |= part.left_out

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
        elif self.left_out:
            places, most = ", ".join(sorted(self.left_out)), RETRIES + 1
            head = f"not complete: {tried} of {events}; each look at {places} changes something, and those "
            head += f"after {most} in a row that see the same are one event"
        if self.results > 1:
            head += f", {self.results:,} different results"
        waived = "".join(f"; waived {text}" for text in in_words(self.waived))
        lanes = "" if self.by_thread else ", the lanes of a warp go in step"
        return f"{head}; orders of independent events count once{lanes}{waived}"


def explore(
    kernel, grid=None, block=None, args=(), shared_bytes=None, limit=LIMIT, by_thread=False, timeout=60.0,
    cluster=None, waive=(), executor=None, progress=None
):  # fmt: skip
    """Run ``kernel`` under every order of its barrier, flag and copy events; an :class:`Exploration`.

    The arguments are those of ``simulate``, or a Launch, whose outputs are compared after every order:
    ``explore(copy(steps=2))``. An *event* is one operation on an mbarrier, a named barrier, a flag or an
    atomic, the issue of a copy that signals an mbarrier, or its landing. The lanes of a warp go in step from
    one event to the next; ``by_thread`` lets each thread go on its own, which is for a handful of threads. The
    blocks of a cluster step among each other, and what one does to another's barriers and flags is an event,
    too. Of each block, or cluster, the orders are tried with one order of the others: those before it have
    ended, or wait for others; those after it run, until they end or wait, at each moment of it that can make a
    difference. At most ``limit`` schedules are run to their end; the result says whether that was all.
    ``timeout`` is in seconds, for one schedule; ``waive`` is that of ``simulate``. The arrays are left as one
    of the schedules leaves them. In the workers of an ``executor``, as that of ``simulate``, the same orders
    are tried, with the same result. ``progress`` is called with how many schedules have run, after each.

    A thread that polls a flag, an mbarrier or a lock waits as long as a look only leads back to that look.
    Where it does more, such as to count its attempts, to give up, or to look elsewhere in between, each look is
    an event, and a ``try_wait`` comes back before its phase is complete as well. After a few looks in a row
    that see the same, all up to the one at which it gives up are one event: that is not complete then.

    Not covered: lanes of a warp out of step, more turns of the blocks, values of the clocks, and weak
    memory beyond what the race rules forbid.

    Raises the first :class:`SimFault` that any order covered meets; its ``seed`` is a text that
    ``simulate(..., seed=)`` runs again. ``ValueError`` as ``simulate``.
    """
    check_integers(limit=limit)
    if limit < 1:
        raise ValueError(f"limit={limit!r} must be at least 1")
    started = time.perf_counter()
    launch = PreparedLaunch(kernel, grid, block, args, shared_bytes, timeout, cluster, waive=waive)
    size, warps = launch.blocks // launch.clusters, -(-launch.threads // 32)
    check_executor(executor)
    result = Exploration(launch.blocks, warps, launch.threads, by_thread, limit, size)
    with launch.watched():
        for _, fault in outcomes_by(executor, launch, result) if executor else outcomes(launch, result):
            if fault:
                raise fault
            if progress:
                progress(result.schedules)
        if result.repeated:  # one of these may have been the last, and was not run to its end
            report = Report(waived=result.waived)
            launch.run(Schedule(0, by_thread), "late", False, report)
            result.waived = report.waived
    result.seconds = time.perf_counter() - started
    return result


def outcomes(launch, result, reduced=True):
    """Run schedule after schedule of ``launch`` and count them in ``result``; yields (seed, its fault or
    None) for each. With ``reduced=False`` every order is a schedule of its own."""
    for number in range(launch.clusters):
        yield from orders(launch, result, Search(number, result.by_thread, reduced))


def _count(number, what):
    return f"{number:,} {what}{'s' * (number != 1)}"

"""What the waits of a block's threads say: at which use of its Ring each is, and of which wait a fault is a
consequence. ``ResidentBlocks`` asks for that when a block ends with one."""

import inspect
import re

from ... import faults
from ...waiting import ranges
from ..reports.call_sites import describe_site, place
from .source_order import wrong_divisor

RING = re.compile(r"(.+)\.(full|empty)\[(\d+)\]")  # the name of a barrier of a Ring
# What comes of a wait for another phase than was meant, and of copies issued by another than who waits.
ASTRAY = (faults.StaleWait, faults.RefillRace, faults.MissedPhase, faults.TooManyArrivals,
          faults.UnobservedPhase, faults.MissingArrivals)  # fmt: skip
UNGUARDED = faults.RefillRace, faults.CopyCollision, faults.TooManyArrivals, faults.UnobservedPhase


class States:
    """The states of a Ring: at which use of it its threads are, by their last waits."""

    def __init__(self, block, ring):
        self.block, self.ring = block, ring
        self.stages = sum(b.name.startswith(f"{ring}.full[") for b in block.barriers.live.values())
        self.uses = {"full": {}, "empty": {}}  # {use: the threads that have waited, or wait, for it to be so}
        for thread in block.threads:
            for role, use in self._last(thread):
                self.uses[role].setdefault(use, []).append(thread.tid)

    @classmethod
    def that_decide(cls, block, name, sites):
        """Those of the Ring with a barrier of that name, if all these waits are calls of a Ring's functions;
        else None."""
        ring, line = RING.fullmatch(name), block.threads[0].line
        decide = ring and all(re.search(r"\.(wait|acquire)\(", line(site)) for site in sites)
        return cls(block, ring[1]) if decide else None

    def use(self, name, phase):
        """The number of the use in which the barrier of that name has that phase."""
        return phase * self.stages + int(RING.fullmatch(name)[3])

    def _last(self, thread):
        """(role of the barrier that ``thread`` waited for last, use), if it has waited for one."""
        waits = [(wait.last, wait.barrier, wait.phase) for wait in thread.waits.values()]
        if not thread.dead and thread.waiting and thread.waiting[0] == "mbarrier":
            waits.append((thread.clock + 1, thread.waiting[1], thread.waiting[1].phase))
        found = [(clock, RING.fullmatch(b.name), phase) for clock, b, phase in waits]
        found = [(clock, match.groups(), phase) for clock, match, phase in found if match]
        for _, (ring, role, index), phase in sorted(w for w in found if w[1][0] == self.ring)[-1:]:
            # Who waits for the first use to be empty passes at once; a consumer that does is a lap ahead.
            phase += role == "empty" or 2 * (phase < 0)
            yield role, self.use(f"{ring}.{role}[{index}]", phase)

    def cure(self, why=""):
        """What the states are, ``why`` that is wrong, and how they go."""
        ring, verbs = self.ring, {"full": "read", "empty": "filled"}
        said = [f"use {use} is to be {verbs[role]} by {ranges(tids)}"
                for role, uses in self.uses.items() for use, tids in sorted(uses.items())]  # fmt: skip
        return (f"In {ring} {', '.join(said)}{why}. Each state starts at use 0, {ring}.start(), and advances "
                f"by one each time, in whatever branch: state = {ring}.advance(state); of n that take turns "
                f"the k-th starts at use k, from 0 on, {ring}.start(k), and advances by n.")  # fmt: skip


def blame_waits(fault, block):
    """Blame a wait for ``fault``, where one is its cause."""
    function = block.execution.function
    names = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    for site in _waits(block) if isinstance(fault, ASTRAY) else ():
        if cure := wrong_divisor(site, names):
            fault.cure, (fault.where, fault.source) = cure, place(site)
            return
    for barrier in block.barriers.live.values() if isinstance(fault, (*ASTRAY, faults.DataRace)) else ():
        if barrier.came_back is not None:
            tid, (_, site) = barrier.came_back.tid, barrier.dropped[barrier.came_back.tid]
            fault.cure = f"Thread {tid} drops out of {barrier.name}, whose phases expect one arrival less from "
            fault.cure += "then on, and arrives there again: let it arrive without dropping out at "
            fault.cure += f"{describe_site(site)} (mbarrier_arrive), or come no more."
            fault.where, fault.source = place(site)
    name = str(fault.barrier)
    ring = RING.fullmatch(name)
    astray = isinstance(fault, (faults.StaleWait, faults.StaleRefill)) and not fault.waits
    if ring and astray and (states := States.that_decide(block, name, _waits(block, f"{ring[1]}."))):
        fault.cure = states.cure()
    if isinstance(fault, UNGUARDED) and fault.thread is not None and fault.rule == type(fault).rule:
        thread = block.threads[fault.thread]
        each = block.threads if isinstance(fault, UNGUARDED[2:]) and not ring else ()
        two = next(filter(None, map(_two_stages, each)), "")
        fault.cure = two or _by_another(thread) or not ring and _one_for_all(thread) or fault.cure


def _waits(block, start=""):
    """The places of waits on mbarriers whose name has that start: of each thread its last on each."""
    live = [t for t in block.threads if not t.dead]
    waits = [(t.waiting[1], t.site()) for t in live if t.waiting and t.waiting[0] == "mbarrier"]
    waits += [(wait.barrier, wait.site) for t in block.threads for wait in t.waits.values()]
    return dict.fromkeys(site for barrier, site in waits if barrier.name.startswith(start))


def _one_for_all(thread):
    """The cure where ``thread`` waits at one line for several barriers, and arrives on one alone, or the other
    way."""
    waits = {wait.barrier.name: wait.site for wait in thread.waits.values()}
    arrivals = {barrier.name: site for barrier, site in thread.arrivals.items()}
    for many, one, said in ((waits, arrivals, "waits on {} and arrives on {}"),
                            (arrivals, waits, "arrives on {} and waits on {}")):  # fmt: skip
        if len(one) == 1 < len(many) and len({*many.values()}) == 1:
            [(name, site)] = one.items()
            said = said.format(" and ".join(sorted(many)), name)
            return (f"Thread {thread.tid} {said} alone, at {thread.at(site)}: take that from the stage, too, "
                    "by the index of the others.")  # fmt: skip
    return ""


def _two_stages(thread):
    """The cure where ``thread`` has arrived for another stage than that which it had waited for last."""
    waits = {wait.barrier: wait.last for wait in thread.waits.values()}
    arrivals = {b: max(of.get(thread.tid, -1) for of in (b.arrived, b.last_arrivers)) for b in thread.arrivals}
    stages = [sorted(used, key=lambda b: b.address) for used in (waits, arrivals)]
    lines = {thread.arrivals[b] for b in arrivals}, {wait.site for wait in thread.waits.values()}
    if len(waits) == len(arrivals) > 1 and max(map(len, lines)) == 1:
        for barrier, clock in arrivals.items():
            before = max((b for b in waits if waits[b] <= clock), key=waits.get, default=None)
            if before and stages[0].index(before) != stages[1].index(barrier):
                place = thread.at(thread.arrivals[barrier])
                return (f"Thread {thread.tid} waits on {before.name} and then arrives on {barrier.name}, at "
                        f"{place}: where these are of two stages, take both by one stage index.")  # fmt: skip
    return ""


def _by_another(thread):
    """The cure where ``thread`` issues copies, and another lane of its warp waits for the stage."""
    issues = any(thread.tid in barrier.issuers for barrier in thread.block.barriers.live.values())
    mates = [t for t in thread.block.threads if t.warp == thread.warp and t.last_wait]
    if not issues or thread.last_wait or len(mates) != 1:
        return ""
    [mate], (barrier, _, site, *_) = mates, mates[0].last_wait
    return (f"Thread {mate.tid} waits for the stage to be empty, on {barrier.name} at {thread.at(site)}; "
            f"thread {thread.tid} fills it without knowing of that: let one thread wait and issue, or put "
            "cuda.syncwarp() between the wait and what comes after it.")  # fmt: skip

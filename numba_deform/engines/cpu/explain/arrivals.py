"""Arrivals on an mbarrier that are missing, or too many, and what would mend it. ``mbarrier`` asks."""

import re
from itertools import pairwise

from ... import faults
from ...waiting import have, ranges
from ..reports.call_sites import same_line
from .source_order import has_left, passed_by, takes_turns

RING = re.compile(r"(.+)\.(full|empty)\[(\d+)\]")  # the name of a barrier of a Ring


def by_states(ring, sites, thread):
    """Whether all these are calls of functions of a Ring, which its states decide; ``ring``: the match of its
    barrier's name."""
    return ring and all(re.search(r"\.(wait|acquire)\(", thread.line(site)) for site in sites)


class States:
    """The states of a Ring: at which use of it its threads are, by their last waits."""

    def __init__(self, block, ring):
        self.block, self.ring = block, ring
        self.stages = sum(b.name.startswith(f"{ring}.full[") for b in block.barriers.live.values())
        self.uses = {"full": {}, "empty": {}}  # {use: the threads that have waited, or wait, for it to be so}
        for thread in block.threads:
            if (last := self._last(thread)) is not None:
                self.uses[last[0]].setdefault(last[1], []).append(thread.tid)

    def use(self, index, phase):
        """The number of the use of stage ``index`` in which its barrier has that phase."""
        return phase * self.stages + int(index)

    def _last(self, thread):
        """(role of the barrier that ``thread`` waited for last, use); None if it has waited for none."""
        waits = [(wait[3], barrier, wait[0]) for barrier, wait in thread.waits.items()]
        if not thread.dead and thread.waiting and thread.waiting[0] == "mbarrier":
            waits.append((thread.clock + 1, thread.waiting[1], thread.waiting[1].phase))
        found = [(clock, RING.fullmatch(b.name), phase) for clock, b, phase in waits]
        found = [(clock, match, phase) for clock, match, phase in found if match and match[1] == self.ring]
        if not found:
            return None
        _, (_, role, index), phase = max((f[0], f[1].groups(), f[2]) for f in found)
        # Who waits for the first use to be empty passes at once; a consumer that does is a lap ahead.
        return role, self.use(index, phase + (role == "empty" or 2 * (phase < 0)))

    def cure(self, why=""):
        """What the states are, ``why`` that is wrong, and how they go."""
        ring, verbs = self.ring, {"full": "read", "empty": "filled"}
        said = [f"use {use} is to be {verbs[role]} by {ranges(tids)}"
                for role, uses in self.uses.items() for use, tids in sorted(uses.items())]  # fmt: skip
        return (f"In {ring} {', '.join(said)}{why}. Each state starts at use 0, {ring}.start(), and advances "
                f"by one each time, in whatever branch: state = {ring}.advance(state); of n that take turns "
                f"the k-th starts at use k, from 0 on, {ring}.start(k), and advances by n.")  # fmt: skip


class MissingArrivalsReport:
    """A barrier on which threads wait, and nobody gets on. Each of ``CURES`` has a cure in words, or none."""

    def __init__(self, barrier):
        self.barrier, self.threads, self.phase = barrier, barrier.block.threads, barrier.phase
        self.came = barrier.expected - barrier.pending
        self.arrived, self.done = sorted(barrier.arrived), barrier.arrived.keys() | barrier.dropped.keys()
        self.late = sorted(barrier.arrivers - self.done)  # who has arrived in phases before
        self.here = [t.tid for t in self.threads if not t.dead and t.waiting[1] is barrier]
        self.others = [block for block in barrier.block.cluster.blocks if block is not barrier.block]

    def of(self, tids):
        return [self.threads[tid] for tid in tids]

    def places(self, tids):
        """Where threads stand, in words."""
        sites = {"exited since" if t.dead else f"at {t.at(t.site())} by now" for t in self.of(tids)}
        return " or ".join(sorted(sites))

    def fields(self, parity):
        """Those of the ``Wait`` of who waits for the current phase."""
        barrier, by, why = self.barrier, self.late, "arrived here before"
        missing, pending, tx = [], barrier.pending, barrier.tx
        anywhere = ", of this block or others of its cluster" * bool(self.others)
        missing += [f"{pending} arrival{'s' * (pending > 1)} missing{anywhere}"] * (pending > 0)
        missing += [f"{tx} bytes expected that no copy brings"] * (tx > 0)
        missing += [f"{-tx} bytes have landed that nobody has expected"] * (tx < 0)
        root = any(t.dead for t in self.of(by))
        if not barrier.pending:
            by, root = barrier.issuers, True
            why = "no thread has issued a copy here" if not barrier.last_copy else (
                "issued copies here before" if by else "all bytes so far came from other blocks")
        elif not by and (barrier.far or barrier.last_far) and not self.done | barrier.arrivers:
            why = "all arrivals so far came from other blocks"
        elif not by:  # whose arrival is missing is not known
            late = {t.tid for t in self.threads} - self.done
            by = late.difference(self.here) or late
            why = "not arrived in this phase" if by else ""
        cure = next((cure for find in self.CURES if (cure := find(self, barrier))), "")
        certain = barrier.is_left_out()
        return {"on": f"{barrier.name}, parity {parity}", "state": barrier.state(), "why": why,
                "missing": " and ".join(missing), "by": tuple(sorted(by)), "root": root, "certain": certain,
                "cure": cure}  # fmt: skip

    def never_came(self, barrier):
        """The announcements in this phase were of more bytes than have come, from whatever block."""
        last = barrier.announced
        if barrier.pending or not last or last.phase != self.phase:
            return None
        came, at = last.bytes - barrier.tx, last.thread.at(last.site)
        said = f"{last.bytes} bytes are announced in this phase, "
        said += f"{last.times} times, the last " * (last.times > 1) + f"at {at}, and "
        if not came:
            said += "nothing has brought any. Issue the copies of each phase that announces bytes, or arrive "
            return f"{said}without announcing any: mbarrier_arrive(bar).{self._last_source(barrier)}"
        said = f"{barrier.block.execution.load_checks.exchanged()}{said}its copies have brought {came}. "
        said += f"Announce {came}{' in all' * (last.times > 1)}, or issue the copies of the other "
        said += f"{barrier.tx}: a copy by a tensor map brings the box of that map."
        return said + self._last_source(barrier) * bool(self.others)

    def _last_source(self, barrier):
        """Where bytes came from last, in words: here, or on the same barrier of another block."""
        for each in (barrier, *barrier.twins()):
            if copy := each.last_copy:
                of, place = " of block {}" * bool(self.others), self.threads[0].at(copy.site)
                who = f"the {copy.what} of thread {copy.tid}{of.format(copy.block.index)}, at {place}"
                if each is barrier:
                    return f" The last that has come here is {who}."
                return (f" The last that has come to {each.name}{of.format(each.block.index)} is {who}; a "
                        "multicast goes to the blocks that its mask names.")  # fmt: skip
        return ""

    def not_announced(self, barrier):
        """Bytes have come, and nobody has announced them."""
        more = -barrier.tx if barrier.pending else 0
        return more > 0 and (
            f"Announce the {more} bytes that come in this phase, and arrive: mbarrier_arrive_expect_tx(bar, "
            f"{more}), or expect of a Ring or Barrier."
        )

    def other_parity(self, barrier):
        """All who wait here have yet to wait for the phase before."""
        over, ring = self.phase - 1, RING.fullmatch(barrier.name)
        if not self.here or any(barrier.phases_over(t.seen) > over for t in self.of(self.here)):
            return None
        if by_states(ring, [t.site() for t in self.of(self.here)], self.threads[0]):
            states = States(barrier.block, ring[1])
            return states.cure(f"; {ranges(self.here)} never waited for use {states.use(ring[3], over)}")
        return (f"Phase {over} of {barrier.name} is over, and {ranges(self.here)} never waited for it; this "
                f"wait, with parity {self.phase & 1}, is for phase {self.phase}: wait with parity {over & 1}?")

    def nobody_left(self, barrier):
        """Who made its arrivals has ended, or has left the loop in which it did."""
        by = self.of(self.late)
        loop = ", behind the loop" * any(not t.dead for t in by)
        return by and all(t.dead or has_left(t.arrivals.get(barrier), t.calls()) for t in by) and (
            f"The arrivals of {self.phase} phase{'s' * (self.phase > 1)} so far were made by "
            f"{ranges(self.late)}, {self.places(self.late)}{loop}, and this is a wait for one more: let both "
            "sides take as many steps, each with its state advanced once a step; or arrive once more, to tell "
            "who waits that there is no more. Who ends before others drops out (mbarrier_arrive_drop)."
            + (f" {skipped}" if (skipped := self.skipped(barrier)) else "")
        )  # fmt: skip

    def skipped(self, barrier):
        """Who made its arrivals does so in a branch that a round may pass by."""
        known = self.phase and not self.came and not any(t.waiting[0] == "mbarrier" and not t.waiting[1].phase
                                                         for t in self.of(self.late) if not t.dead)  # fmt: skip
        sites = {t.arrivals.get(barrier) for t in self.of(self.late) if known}
        lines = ((self.threads[0].at(site), passed_by(site)) for site in sites if site)
        place, line = next((pair for pair in lines if pair[1]), ("", None))
        return line and (
            f"The arrival on {barrier.name} at {place} depends on the if of line {line}, by which a round may "
            "pass it by: arrive in that round too, without bytes (mbarrier_arrive) where there is nothing to "
            "bring; or have the other side skip it as well."
        )  # fmt: skip

    def beside(self, barrier):
        """The threads whose arrivals are missing stand where others do that have arrived, or have ended."""
        warps = {tid >> 5 for tid in self.arrived}
        late = self.late or [t.tid for t in self.threads if t.warp in warps and t.tid not in self.done]
        places = {(t.waiting[1], t.site()) for t in self.of(self.arrived) if not t.dead}
        beside = all(t.dead or (t.waiting[1], t.site()) in places for t in self.of(late))
        few = self.late or len(late) < len(self.arrived)  # else it is the count that is wrong
        return few and warps and beside and len(late) == barrier.pending and (
            f"{barrier.name} has {self.came} of the {barrier.expected} arrivals of phase {self.phase}: "
            f"{ranges(self.arrived)} {have(self.arrived)} arrived, and {ranges(late)}, {self.places(late)}, "
            f"{have(late)} not. Each arrives in every phase, also one that has nothing to load or to read."
        )  # fmt: skip

    def never_released(self, barrier):
        """Nobody has ever arrived on a barrier that a producer waits for, though stages have been read."""
        ring = RING.fullmatch(barrier.name)
        read = any(t.waits.get(t.waiting[1], (-1,))[0] >= 0 for t in self.threads if not t.dead)
        used = read and any(barrier in t.waits for t in self.of(self.here))
        missing = f"{ring[1]}.release(state)" if ring else f"an arrival on {barrier.name}"
        waited = {b.name for t in self.threads for b in t.waits}
        if used and ring and f"{ring[1]}.full[{ring[3]}]" not in waited:
            return States(barrier.block, ring[1]).cure(f"; nobody reads use {ring[3]}")
        return used and not self.phase and not self.came and (
            f"Nobody arrives on {barrier.name} after reading a stage: {missing} is missing."
        )  # fmt: skip

    def in_another_block(self, barrier):
        """The same barrier of another block has arrivals that nobody waits for."""
        for other in self.others:
            twin = other.barriers.live.get(barrier.address)
            used = twin and (twin.phase or twin.pending < twin.expected)
            if used and not any(twin in thread.waits for thread in other.threads):
                who = ranges(sorted(twin.arrived or twin.last_arrivers))
                return (
                    f"{twin.name} of block {other.index}, the same barrier there, has arrivals that nobody "
                    f"waits for: {who} of that block made them. Arrive on the barrier of the block that waits: "
                    "mbarrier_arrive_cluster(mapa_shared_cluster(bar, rank))."
                )
        return None

    def never_complete(self, barrier):
        """All who ever arrive have arrived in it."""
        far, count = barrier.far, len(self.arrived) + len(barrier.far)
        groups = [(sorted(t.tid for t in far if t.block is b), f" of block {b.index}") for b in self.others]
        who = ", ".join(ranges(tids) + of for tids, of in [(self.arrived, ""), *groups] if tids)
        times = f"{self.came} times" if self.came > 1 else "once"
        return self.came and not self.late and not barrier.last_far.keys() - far.keys() and (
            f"{barrier.name} can never complete: it expects {barrier.expected} arrivals in each phase, and "
            f"{count} thread{'s' * (count > 1)} ({who}) can arrive, {times} in all, and {have(range(count))} "
            f"done so. Initialise it for {self.came}, or have who is missing arrive."
        )  # fmt: skip

    def nobody_began(self, barrier):
        """All who are left wait for barriers on which nobody has ever arrived, and none of them ended early."""
        live = [t for t in self.threads if not t.dead]
        on = {t.waiting[1] for t in live if t.waiting[1] in barrier.block.barriers.live.values()}
        stuck, warps = {t.warp for t in live if t.waiting[1] in on}, {t.warp for t in self.threads}
        fresh = len(on) > 1 and all(not b.phase and b.pending == b.expected for b in on)
        ring, waits = RING.fullmatch(barrier.name), [t.site() for t in live if t.waiting[1] in on]
        if fresh and by_states(ring, waits, live[0]):
            return States(barrier.block, ring[1]).cure()
        return fresh and stuck == warps and not self.others and (
            f"Nobody has arrived on {' or '.join(sorted(b.name for b in on))} yet. A wait for a stage to be "
            "empty takes parity 1 in the first round, which a fresh barrier lets pass, and then 0 and 1 in "
            "turn; acquire of a Ring does so."
        )  # fmt: skip

    CURES = (never_came, not_announced, other_parity, nobody_left, beside, never_released, in_another_block,
             never_complete, skipped, nobody_began)  # fmt: skip


def none_left(barrier, count, where=""):
    """What a thread does, in words, for whose ``count`` arrivals the phase has no room."""
    return (f"arrives {count}x on {barrier.name}{where} in phase {barrier.phase}, where {barrier.pending} of "
            f"{barrier.expected} arrivals are left")  # fmt: skip


def unobserved(barrier, arrived, where=""):
    """The same of one that has not been told that the phase before is over, in which it has ``arrived`` or
    not."""
    before, others = barrier.phase - 1, "s were" if barrier.expected > 1 else " was"
    if arrived:
        return (f"arrives on {barrier.name}{where} in phase {barrier.phase} without having waited for phase "
                f"{before}, directly or through another barrier")  # fmt: skip
    return (f"arrives on {barrier.name}{where}, whose phase {before} is over without it: the "
            f"{barrier.expected} expected arrival{others} made by others")  # fmt: skip


def by_a_reader(barrier):
    """The fault of a thread that waits for phases of a barrier of the block and arrives there, too, where those
    that only arrive are as many as it expects; else None. Who meets phases that end too early is its victim."""
    live = barrier.block.barriers.live.values()  # of which another one has to be there, to give back on
    return next(filter(None, map(_by_a_reader, live if len(live) > 1 else ())), None)


def _by_a_reader(barrier):
    came = barrier.arrivers | barrier.arrived.keys() | barrier.last_arrivers.keys()
    threads = barrier.block.threads
    readers = sorted(t for t in came if barrier in threads[t].waits and barrier in threads[t].arrivals)
    if not readers or len(came) - len(readers) != barrier.expected:
        return None
    thread, others = threads[readers[0]], ranges(sorted(came.difference(readers)))
    what = f"arrives on {barrier.name}, for which it waits at {thread.at(thread.waits[barrier][1])}, and which "
    what += f"expects {barrier.expected}: {others} arrive{'s' * (barrier.expected == 1)}"
    fault = thread.fault_at(faults.TooManyArrivals, what, thread.arrivals[barrier], barrier)
    fault.cure = "Take this arrival away: who reads a stage gives it back by an arrival on the barrier for "
    fault.cure += "which its producer waits (empty), and not on the one for which it waits itself (full)."
    return fault


def late_announcement(barrier, thread, site, phase):
    """The fault of ``thread``, which announces bytes at ``site`` when the ``phase`` they are of may be over."""
    if fault := by_a_reader(barrier):
        return fault
    what = f"announces bytes on {barrier.name} with no arrival after it in that phase: phase {phase} may be "
    what += "over before this, which then counts in the next"
    fault = thread.fault_at(faults.UnobservedPhase, what, site, barrier)
    fault.rule = "Bytes count in the current phase: their thread announces them before its last arrival "
    fault.rule += "(PTX 9.7.13.15)."
    fault.cure = "Announce them before the arrival, in the thread that arrives: mbarrier_arrive_expect_tx, "
    fault.cure += "which does both, or mbarrier_expect_tx before mbarrier_arrive. Where another thread "
    fault.cure += "arrives, let it meet this one (syncwarp, syncthreads) between the two."
    return fault


def from_afar(barrier, thread, count, over):
    """The fault of ``thread`` of another block, which knows so many phases to be ``over``; None if it may
    arrive ``count`` times."""
    now, where = over >= barrier.phase, f" of block {barrier.block.index}"
    if now and count <= barrier.pending:
        return None
    arrived = thread in (barrier.far if now else barrier.last_far)
    kind = faults.UnobservedPhase if arrived and not now else faults.TooManyArrivals
    what = none_left(barrier, count, where) if now else unobserved(barrier, arrived, where)
    fault = thread.fault(kind, what, barrier)
    if arrived:
        fault.add(f"its arrival in {'this' if now else 'that'} was at {thread.at(thread.arrivals[barrier])}")
    if not now:
        fault.cure = f"Its own threads alone can wait on {barrier.name}{where}: let them, and then arrive on "
        fault.cure += "an mbarrier of this block (mbarrier_arrive_cluster), for which this thread waits before "
        fault.cure += "it arrives again."
        if not arrived:
            fault.cure = f"Initialise {barrier.name} for all who arrive in a phase, of all blocks. {fault.cure}"
    return fault


def too_many(barrier, thread, phase, what):
    """The fault of ``thread``, for which ``phase`` has no arrival left, or of one that arrived twice in it."""
    if fault := by_a_reader(barrier):
        return fault
    now, tid = phase == barrier.phase, thread.tid
    arrived, twice = (barrier.arrived, barrier.twice) if now else (barrier.last_arrivers, barrier.last_twice)
    kind = faults.UnobservedPhase if not now and not twice and tid in arrived else faults.TooManyArrivals
    if tid in arrived and barrier in thread.arrivals:
        twice = {**twice, tid: (thread.arrivals[barrier], thread.site(), arrived[tid])}
    if not twice:
        fault, who = thread.fault(kind, what, barrier), sorted({*arrived, tid})
        warps = sorted({t >> 5 for t in who})
        if len(arrived) == barrier.expected:
            fault.cure = f"{len(arrived)} expected, and {ranges(who)} arrive; each thread that comes here "
            fault.cure += "counts: " + f"{len(who)} if no others do, " * (len(who) < 32 * len(warps))
            fault.cure += f"{32 * len(warps)} if all of {ranges(warps, 'warp')} do. {kind.cure}"
        if (ring := RING.fullmatch(barrier.name)) and takes_turns(thread.site()):
            states = States(barrier.block, ring[1])
            fault.cure = states.cure(f"; {ranges(who)} all arrive in use {states.use(ring[3], phase)}")
        return fault
    who = thread if tid in twice else barrier.block.threads[min(twice)]
    first, second, clock = twice[who.tid]
    same = same_line(first, second)
    more = f"{ranges(sorted(twice))} arrived twice in phase {phase} of {barrier.name}, at {who.at(first)}"
    more += " both times" if same else f" and at {who.at(second)}"
    more = f"its arrival in that was at {who.at(first)}" if kind is faults.UnobservedPhase else more
    what = f"{what}; {more}" if who is thread else f"{more}; and thread {tid} {what}"
    fault = who.fault_at(kind, what, second, barrier)
    fault.cure = _once(barrier, who, phase, clock, same) or fault.cure
    return fault


def _once(barrier, thread, phase, clock, same):
    """The cure where ``thread`` arrives again, at the same line or not; ``clock``: its own then."""
    ring, role, index = RING.fullmatch(barrier.name).groups() if RING.fullmatch(barrier.name) else ("", "", 0)
    full = [b for b in barrier.block.barriers.live.values() if b.name.startswith(f"{ring}.full[")]
    around = any(mine.get(thread.tid, 0) > clock for b in full for mine in (b.arrived, b.last_arrivers))
    if same and (again := _same_wait(barrier, thread, clock, ring)):
        return again
    waited = any(b.name == f"{ring}.empty[{index}]" and wait[3] > clock for b, wait in thread.waits.items())
    if role == "full" and (around or same and not waited):
        return (f"Call {ring}.acquire(state) before {ring}.expect, in each thread that arrives on full: thread "
                f"{thread.tid} is here again, and has not waited until the stage is empty.")  # fmt: skip
    if not same:
        return ("Let a thread arrive once in each phase: one of the two arrivals is too many, or a wait for "
                f"phase {phase} is missing between them.")  # fmt: skip
    use, armed = phase * len(full) + int(index), sum(b.phase + (b.pending < b.expected) for b in full)
    producer = f", and the producer at use {armed}" if role == "empty" else ""
    return role and (f"Thread {thread.tid} is at use {use} of {ring} again{producer}: start a state once, and "
                     f"advance it once a use, in whatever branch: state = {ring}.advance(state).")  # fmt: skip


def _same_wait(barrier, thread, clock, ring):
    """The cure where the waits of ``thread`` for this stage since its arrival at ``clock`` have returned for
    phases that it had waited for before that, and no state of ``ring`` says which; else None."""
    index = barrier.name.partition("[")[2]
    waits = [(b, wait) for b, wait in thread.waits.items() if b.name.partition("[")[2] == index]
    waits = [(b, wait) for b, wait in waits if wait[3] > clock and b.name.startswith(ring)]
    if not waits or any(first > clock for _, (_, _, first, _) in waits):
        return None
    other, (phase, site, *_) = max(waits, key=lambda pair: pair[1][3])
    if ring and any(f"{ring}.{call}(" in thread.line(site) for call in ("wait", "acquire")):
        return None
    when = f"for phase {phase} of {other.name} again"
    when = when if phase >= 0 else f"again before any phase of {other.name} was over"
    return (f"The wait at {thread.at(site)} has returned {when}, as it had before the first of these arrivals. "
            "Change its parity from one use of a stage to the next, as use // stages & 1 does, or "
            "the state of a Ring that is advanced once a use.")  # fmt: skip


def arrives_unobserved(barrier, thread):
    """Nothing tells this thread that the phase before is over, so it cannot know which phase its arrival
    counts in. To know all arrivals is not enough here: PTX wants a wait for each phase, by any thread, before
    an arrival in the next."""
    what = unobserved(barrier, thread.tid in barrier.last_arrivers)
    return too_many(barrier, thread, barrier.phase - 1, what)


def arrives_beyond_count(barrier, thread, count):
    """The fault of ``thread``, for whose ``count`` arrivals the phase has no room."""
    return too_many(barrier, thread, barrier.phase, none_left(barrier, count))


def too_few_bytes(barrier, copy):
    """The fault of who announced fewer bytes than the copies bring, of which ``copy`` is one; None if they
    are no fewer, or go to one place: then one of them came too early."""
    more, last, issuer = barrier.undeclared(), barrier.announced, copy.block.threads[copy.tid]
    if more <= 0 or _refills(barrier):
        return None
    what = f"the copies that signal {barrier.name} bring {{}} bytes"
    if last is None or copy.block is barrier.block and copy.known[barrier.component] > last.phase:
        what = f"{what.format(more)}, of which nobody has announced any; one is issued here"
        fault = issuer.fault_at(faults.MoreBytesThanExpected, what, copy.site, barrier)
        fault.cure = f"Announce {more} bytes before the copy: mbarrier_arrive_expect_tx(bar, {more})."
    else:
        total = last.bytes + more
        what = f"{what.format(total)}, and thread {last.thread.tid} announces {last.bytes} bytes here; "
        what += f"{last.thread.describe(copy)} issues one at {issuer.at(copy.site)}"
        fault = last.thread.fault_at(faults.MoreBytesThanExpected, what, last.site, barrier)
        fault.cure = barrier.block.execution.load_checks.exchanged()
        fault.cure += f"Announce {total} bytes there: the full box of every copy, elements outside the "
        fault.cure += "tensor too; of a multicast, each block announces what all blocks send it."
        if copy.generic:
            fault.cure = f"Announce {total} bytes there, or more where others are still to send: "
            fault.cure += f"{copy.size} by each {copy.what}."
    return fault


def _refills(barrier):
    """Whether copies since the last announcement go where others of them went."""
    first = barrier.announced.phase if barrier.announced else 0
    places = [(address, size) for phase, address, size in barrier.filled if phase >= first]
    places += [(c.address, c.size) for c in barrier.block.copies if c.barrier is barrier and not c.pieces]
    return any(a + size > b for (a, size), (b, _) in pairwise(sorted(places)))


def overtaken(barrier, waiter):
    """The fault of a ``waiter`` that this phase does not wait for."""
    phase, site = waiter.waits[barrier][:2]
    what = f"waits on {barrier.name} for phase {phase}, and nothing makes phase {barrier.phase} wait for this: "
    what += f"both may be over when this thread looks, and the parity then means phase {barrier.phase + 1}"
    return by_a_reader(barrier) or waiter.fault_at(faults.MissedPhase, what, site, barrier)


def inval_fault(barrier, waiter, site):
    """The inval is not ordered after the wait of ``waiter`` at ``site``."""
    tid, where = barrier.ended
    what = f"invalidates {barrier.name}, on which thread {waiter.tid} waits at {waiter.at(site)}; "
    what += "nothing orders that before this"
    fault = barrier.block.threads[tid].fault_at(faults.InvalNotOrdered, what, where, barrier)
    fault.waiver = "pipeline-end" if waiter.mates.matched else None
    return fault

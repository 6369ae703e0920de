"""Arrivals on an mbarrier that are too many or too early, and bytes that are too few."""

from itertools import pairwise

from ... import faults
from ...waiting import ranges
from ..reports.call_sites import same_line
from .source_order import takes_turns
from .waits import RING, States


def bad_arrival(barrier, thread, count=None):
    """The fault of ``thread``, for whose ``count`` arrivals the phase has no room; without a count, which does
    not know that the phase before is over, and so not in which phase its arrival counts. To know all arrivals
    is not enough there: PTX wants a wait for each phase, by any thread, before an arrival in the next."""
    phase = barrier.phase - (count is None)
    return too_many(barrier, thread, phase, _does(barrier, count, thread.tid in barrier.last_arrivers))


def _does(barrier, count, arrived, where=""):
    """What such a thread does, in words; ``arrived``: whether it has in the phase before."""
    phase, expected = barrier.phase, barrier.expected
    if count is not None:
        return (f"arrives {count}x on {barrier.name}{where} in phase {phase}, where {barrier.pending} of "
                f"{expected} arrivals are left")  # fmt: skip
    if arrived:
        return (f"arrives on {barrier.name}{where} in phase {phase} without having waited for phase "
                f"{phase - 1}, directly or through another barrier")  # fmt: skip
    return (f"arrives on {barrier.name}{where}, whose phase {phase - 1} is over without it: the {expected} "
            f"expected arrival{'s were' if expected > 1 else ' was'} made by others")  # fmt: skip


def by_a_reader(barrier):
    """The fault of a thread that waits for phases of a barrier of the block and arrives there, too, where those
    that only arrive are as many as it expects; else None. Who meets phases that end too early is its victim."""
    live, threads = barrier.block.barriers.live.values(), barrier.block.threads
    for barrier in live if len(live) > 1 else ():  # there has to be another one, to give back on
        came = barrier.arrivers | barrier.arrived.keys() | barrier.last_arrivers.keys()
        readers = sorted(t for t in came if barrier in threads[t].waits and barrier in threads[t].arrivals)
        if not readers or len(came) - len(readers) != barrier.expected:
            continue
        thread, others = threads[readers[0]], ranges(sorted(came.difference(readers)))
        what = f"arrives on {barrier.name}, for which it waits at {thread.at(thread.waits[barrier].site)}, and "
        what += f"which expects {barrier.expected}: {others} arrive{'s' * (barrier.expected == 1)}"
        cure = "Take this arrival away: who reads a stage gives it back by an arrival on the barrier for "
        cure += "which its producer waits (empty), and not on the one for which it waits itself (full)."
        return thread.fault_at(faults.TooManyArrivals, what, thread.arrivals[barrier], barrier, cure=cure)
    return None


def late_announcement(barrier, thread, site, phase):
    """The fault of ``thread``, which announces bytes at ``site`` when the ``phase`` they are of may be over."""
    if fault := by_a_reader(barrier):
        return fault
    what = f"announces bytes on {barrier.name} with no arrival after it in that phase: phase {phase} may be "
    what += "over before this, which then counts in the next"
    rule = "Bytes count in the current phase: their thread announces them before its last arrival "
    rule += "(PTX 9.7.13.15)."
    cure = "Announce them before the arrival, in the thread that arrives: mbarrier_arrive_expect_tx, "
    cure += "which does both, or mbarrier_expect_tx before mbarrier_arrive. Where another thread "
    cure += "arrives, let it meet this one (syncwarp, syncthreads) between the two."
    return thread.fault_at(faults.UnobservedPhase, what, site, barrier, rule=rule, cure=cure)


def from_afar(barrier, thread, count, over):
    """The fault of ``thread`` of another block, which knows so many phases to be ``over``; None if it may
    arrive ``count`` times."""
    now, where = over >= barrier.phase, f" of block {barrier.block.index}"
    if now and count <= barrier.pending:
        return None
    arrived = thread in (barrier.far if now else barrier.last_far)
    kind = faults.UnobservedPhase if arrived and not now else faults.TooManyArrivals
    fault = thread.fault(kind, _does(barrier, count if now else None, arrived, where), barrier)
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
        states = takes_turns(thread.site()) and States.that_decide(barrier.block, barrier.name, ())
        if states:
            fault.cure = states.cure(f"; {ranges(who)} all arrive in use {states.use(barrier.name, phase)}")
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
    waited = any(w.barrier.name == f"{ring}.empty[{index}]" and w.last > clock for w in thread.waits.values())
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
    waits = [wait for b, wait in thread.waits.items() if b.name.partition("[")[2] == index]
    waits = [wait for wait in waits if wait.last > clock and wait.barrier.name.startswith(ring)]
    if not waits or any(wait.first > clock for wait in waits):
        return None
    other, phase, site, *_ = max(waits, key=lambda wait: wait.last)
    if ring and any(f"{ring}.{call}(" in thread.line(site) for call in ("wait", "acquire")):
        return None
    when = f"for phase {phase} of {other.name} again"
    when = when if phase >= 0 else f"again before any phase of {other.name} was over"
    return (f"The wait at {thread.at(site)} has returned {when}, as it had before the first of these arrivals. "
            "Change its parity from one use of a stage to the next, as use // stages & 1 does, or "
            "the state of a Ring that is advanced once a use.")  # fmt: skip


def too_few_bytes(copy):
    """The fault of who announced fewer bytes than the copies to the barrier of ``copy`` bring; None if they are
    no fewer, or go to one place: then one of them came too early."""
    barrier, issuer = copy.barrier, copy.block.threads[copy.tid]
    more, last = barrier.undeclared(), barrier.announced
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
    places += [(c.place, c.size) for c in barrier.block.copies if c.barrier is barrier and not c.pieces]
    return any(a + size > b for (a, size), (b, _) in pairwise(sorted(places)))


def overtaken(barrier, waiter):
    """The fault of a ``waiter`` that this phase does not wait for."""
    _, phase, site, *_ = waiter.waits[barrier]
    what = f"waits on {barrier.name} for phase {phase}, and nothing makes phase {barrier.phase} wait for this: "
    what += f"both may be over when this thread looks, and the parity then means phase {barrier.phase + 1}"
    return by_a_reader(barrier) or waiter.fault_at(faults.MissedPhase, what, site, barrier)


def inval_fault(barrier, waiter, site):
    """The inval is not ordered after the wait of ``waiter`` at ``site``."""
    tid, where = barrier.ended
    what = f"invalidates {barrier.name}, on which thread {waiter.tid} waits at {waiter.at(site)}; "
    what += "nothing orders that before this"
    waiver = "pipeline-end" if waiter.mates.matched else None
    return barrier.block.threads[tid].fault_at(faults.InvalNotOrdered, what, where, barrier, waiver=waiver)

"""What is wrong where threads meet: at named barriers, whose counts may not fit, and where some come too early;
and in a warp, whose lanes may come apart."""

from ... import faults
from ...waiting import ranges
from .source_order import calls_besides, depth_of


def count_too_small(tids, number, count, place):
    """(that more threads call a named barrier at one place than its count, the cure), in words."""
    return (f"{len(tids)} threads call named barrier {number} at {place}, and its count is {count}",
            f"Give it the number of threads that come to it: bar_sync({number}, {-(-len(tids) // 32) * 32}).")


def two_counts(block):
    """(the warps that come, what is wrong, the cure, where, a thread there) for each two calls of a named
    barrier of which one names all threads that come, and the other fewer."""
    calls, at = block.named_barrier_calls.items(), block.threads[0].at
    for (number, count, site), tids in calls:
        for (same, other, there), them in calls:
            warps = {tid >> 5 for tid in tids | them}
            if number == same and count < other == 32 * len(warps):
                what = f"named barrier {number} is for {count} threads at {at(site)}, and for {other} at "
                what += at(there)
                cure = f"Call it with {other} at {at(site)} too: all who come to a barrier name one number."
                yield warps, what, cure, site, min(tids)


def other_count(barrier, thread, wanted):
    """The fault where ``thread`` comes to a named barrier with another number than those that wait there."""
    what = f"named barrier {barrier.number} with {wanted} threads, while others wait there with "
    what += str(barrier.wanted)
    for _, more, cure, site, tid in two_counts(barrier.block):
        giver = barrier.block.threads[tid]
        return giver.fault_at(faults.NamedBarrierMisuse, f"{what}; {more}", site, barrier, cure=cure)
    return thread.fault(faults.NamedBarrierMisuse, what, barrier)


def without_its_warp(barrier, skipped):
    """The fault of a barrier that completes without all lanes of some warps; ``skipped``: how many of each have
    come."""
    warp = barrier.last.warp if barrier.last.warp in skipped else min(skipped)
    what = f"named barrier {barrier.number} completes although only {skipped[warp]} lane"
    what += f"{'s' * (skipped[warp] > 1)} of warp {warp} came"
    barrier.reported = True
    barrier.last.let_others_come()
    block, last = barrier.block, barrier.last
    tid, _, site = (last.tid, None, last.site()) if warp == last.warp else barrier.first[warp]
    fault = block.threads[tid].fault_at(faults.NamedBarrierMisuse, what, site, barrier)
    for (number, wanted, place), tids in block.named_barrier_calls.items():
        if number == barrier.number and len(tids) > wanted and tid in tids:
            more, fault.cure = count_too_small(tids, number, wanted, last.at(place))
            fault.add(more)
    return fault


def lapped(barrier, thread, wait, unordered=None):
    """The fault of ``thread``, which comes again before its arrival there has counted, or would in another
    order, as an arrival is ``unordered``."""
    what = f"arrives at {barrier.name} again before its {barrier.wanted} threads have arrived"
    if unordered:
        tid, _, site = unordered
        what = f"arrives at {barrier.name} again, and nothing orders that after thread {tid}'s arrival in the "
        what += f"round before, at {thread.at(site)}: it may come too early"
    elif not wait:  # who else comes tells a lap from a lane that comes for its warp
        barrier.reported = True
        thread.let_others_come()
    fault = thread.fault(faults.NamedBarrierMisuse, what, barrier)
    fault.waiver = "own-arrival" if wait else None
    if wait or unordered or not barrier.partial():
        fault.state = None  # others may have come since
        fault.rule = "A named barrier takes one arrival of each thread until all have come; bar.arrive does "
        fault.rule += "not wait for that (PTX 9.7.13.1)."
        fault.cure = f"Before it comes here again let {ranges([thread.warp], 'warp')} wait for those that have "
        fault.cure += "yet to come: by another named barrier, at which they arrive (bar_arrive) when they are "
        fault.cure += f"done with this round, and it waits: bar_sync(n, {barrier.wanted})."
    return fault


def cure_of_named_barrier(barrier):
    """Fields of the ``Wait`` at a barrier: whether some lanes have arrived for their warp by bar.arrive, and
    gone on, or the count is too large."""
    waiting = {t.tid for t in barrier.parked}
    alone = [barrier.first[w] for w in barrier.partial() if barrier.first[w][0] not in waiting]
    if not alone:
        cure = "" if barrier.whole else _count_too_large(barrier)
        return {"cure": cure, "root": bool(cure)}
    tid, _, site = min(alone)
    thread = barrier.block.threads[tid]
    cure = f"Call bar.arrive from every lane of warp {thread.warp}, not from "
    cure += f"{barrier.lanes[thread.warp].bit_count()} of its lanes: an arrival counts for its thread alone."
    return {"cause": (thread, site), "cure": cure}


def _count_too_large(barrier):
    """The cure where no other threads than those that wait here have ever called it, and no other line is left
    where they might; else ""."""
    made, live = barrier.block.named_barrier_calls.items(), [t for t in barrier.block.threads if not t.dead]
    calls = {place[2]: tids for place, tids in made if place[0] == barrier.number}
    who = {tid for tids in calls.values() for tid in tids}
    if barrier.partial() or not who or any(tid >> 5 not in barrier.lanes for tid in who):
        return ""
    if any(calls_besides(t.calls(), calls, barrier.number) for t in live):
        return ""
    return (f"The count of {barrier.name} is {barrier.wanted}, and no others than {ranges(sorted(who))} have "
            f"come to it: make it {32 * len(barrier.lanes)}, or have the others come.")  # fmt: skip


def lanes_apart(thread, kind, mask, entry):
    """The lanes of ``entry`` wait in one operation, and ``thread`` calls another.
    Blamed is the one that stands deeper in branches and loops: the other lanes have passed it by."""
    other, first, values, parked = entry
    lanes = ranges(sorted(values), "lane")
    if depth_of(parked[0].calls()) <= depth_of(thread.calls()):
        what = f"{kind} with mask {mask:#x}, while {lanes} {'wait' if len(values) > 1 else 'waits'} in "
        return thread.fault(faults.WarpDivergence, f"{what}{other} at {thread.at(first)}")
    what = f"{other} with mask {mask:#x} by {lanes}, while lane {thread.lane} calls {kind} at "
    what += thread.at(thread.site())
    return parked[0].fault_at(faults.WarpDivergence, what, first, threads=[t.tid for t in parked])

"""What is wrong with a copy into a stage that somebody may still read. ``accesses`` asks."""

from ... import faults
from ...waiting import ranges
from ..memory.access_records import copy_of
from .arrivals import by_a_reader, too_many

FAR = ("Have the readers of every block that the copy goes to arrive on an mbarrier of the issuing block "
       "(mbarrier_arrive_cluster), whose count is all their arrivals, and wait there for that.")  # fmt: skip
FOR_ITS_WARP = "which speaks for its whole warp; or have every lane arrive, and initialise with so many."
APART = "Put a barrier (syncthreads) between the last read of these bytes and the cp.async."
OVER = "nothing says that the read is over"


def unfenced_refill(space, thread, r, address, record):
    """``record`` of ``thread``, a copy of the async proxy, is to replace what the thread of ``r`` has read, and
    no proxy fence stands between the two."""
    reader, read = r.block.threads[r.tid], thread.at(r.site)
    name, last = space.name_of(address), copy_of(record).last_wait
    what = f"{verb_of(record)} {name}, which {thread.describe_tid(r.block, r.tid)} read at {read} "
    what += "with no fence.proxy.async since"
    clock, site = reader.proxy_fence
    if clock >= r.clock:
        what += f" that counts: the one at {thread.at(site)} stands behind what gave the place back, or is for "
        what += "other memory"
    barrier = last and last.barrier
    given = reader.arrivals.get(barrier)
    until = f"the arrival on {barrier.name} at {thread.at(given)}" if given else "what tells of it"
    form = "fence_proxy_async()" if r.block is space.block else "fence_proxy_async_cluster()"
    alone = len(thread.block.cluster.blocks) == 1
    cure = f"Call {form} in each thread that has read, behind its last read and before {until}"
    cure += "; or in the thread that issues the copy, right before it" * alone + "."
    return thread.fault(faults.MissingRefillFence, what, name, cure=cure)


def verb_of(record):
    if copy := copy_of(record):
        return f"issues a {copy.what} into"
    return "atomically changes" if record.atomic and record.reads else "writes"


def release_of(copy, reader):
    """How the thread ``reader`` has given the stage back since its last wait on the barrier of ``copy``, to who
    issued that into it, in words; "" if it has not."""
    wait = reader.waits.get(copy.barrier)
    if wait is None or copy.givers.get(reader.tid, -1) < wait.last:
        return ""
    return (f"after its wait for phase {wait.phase} of {copy.barrier.name}, at {reader.at(wait.site)}, it has "
            f"arrived on {copy.last_wait.barrier.name}, which gave the stage back")  # fmt: skip


def waited_too_early(copy, reader, r):
    """The fault of ``reader``, which has read by the record ``r``, if its last wait returned for a phase that
    it had released before, or before any phase was over; or None."""
    barrier = copy.barrier
    _, phase, where, first, last = reader.waits.get(barrier, (barrier, 0, None, 0, 0))
    again, fresh = first <= copy.givers.get(reader.tid, -1) < last, phase < 0 and last <= r.clock
    if not again and not fresh:
        return None
    what = f"reads {reader.block.shared.name_of(copy.address)}, into which {reader.describe(copy)} issues a "
    what += f"{copy.what} at {reader.at(copy.site)}; its last wait, at {reader.at(where)}, returned "
    what += f"before any phase of {barrier.name} was over" if fresh else (
        f"for phase {phase} of {barrier.name} again, after its release on {copy.last_wait.barrier.name}")
    return reader.fault_at(faults.FreshBarrierPassed if fresh else faults.StaleWait, what, r.site, barrier)


def too_early(thread, copy, phase, site):
    """The fault of the thread that refilled a stage while ``thread``, whose wait for the phase before
    stands at ``site``, had yet to read it."""
    issuer, shared = copy.block.threads[copy.tid], thread.block.shared
    what = f"issues a {copy.what} into {shared.name_of(copy.address)}, which "
    what += f"{issuer.describe_tid(thread.block, thread.tid)} has yet to read: it waits for phase {phase} of "
    what += f"{copy.barrier.name} at {thread.at(site)}; {OVER}"
    if copy.block is not thread.block:
        return far_refill(issuer, copy, what)
    return refill_fault(copy, what, thread)


def missed_phase(thread, barrier, phase):
    """The fault of ``thread``, which waits for ``phase``; before it came to look, the next was over as well."""
    if fault := by_a_reader(barrier):
        return fault
    copy = barrier.last_copy
    own = copy is not None and copy.tid == thread.tid and copy.block is thread.block
    if copy is not None and not own and copy.phase > phase and barrier.refilled(phase, copy):
        # The bytes of the phase it waits for have been replaced before it could read them.
        return too_early(thread, copy, phase, thread.site())
    what = f"waits on {barrier.name} for phase {phase}, the one after those it knows to be complete, but "
    what += f"the barrier is in phase {barrier.phase}, where a parity means another"
    return thread.fault(faults.MissedPhase, what, barrier)


def far_refill(issuer, copy, what):
    """The fault of a copy into memory of another block of the cluster, which is still read there."""
    return issuer.fault_at(faults.RefillRace, what, copy.site, copy.barrier, cure=FAR)


def refill_fault(copy, what, reader):
    """Of a stage that ``reader`` has not done with: a ReadAfterRelease where a lane of its warp has given it
    back for all; a RefillRace, or StaleRefill where the issuer did wait on a barrier of the readers."""
    issuer, kind = copy.block.threads[copy.tid], faults.RefillRace
    givers = [t for t in copy.givers if t // 32 == reader.warp]
    if len(givers) == 1 and reader.tid not in givers:
        return _released_for_its_warp(copy, reader, reader.block.threads[givers[0]])
    if copy.last_wait is not None:
        barrier, phase, site, *_ = copy.last_wait
        absent = phase == barrier.phase - 1 >= 0 and reader.tid not in barrier.last_arrivers
        if absent and barrier.last_twice:  # others have arrived in its place
            what = f"has not arrived in it, and {reader.describe(copy)} issues a {copy.what} into what it has "
            return too_many(barrier, reader, phase, f"{what}yet to read, at {reader.at(copy.site)}")
        if reader.tid in barrier.arrived | barrier.last_arrivers or barrier.pending < barrier.expected:
            seen = f"for phase {phase}" if phase >= 0 else "before any phase was complete"
            seen += f", in which thread {reader.tid} did not arrive" * absent
            kind = kind if absent else faults.StaleRefill
            what += f"; its last wait on {barrier.name}, at {issuer.at(site)}, returned {seen}"
    about = copy.barrier or copy.block.shared.name_of(copy.address)
    fault = issuer.fault_at(kind, what, copy.site, about)
    if copy.barrier is None:
        fault.cure = APART
    elif kind is faults.RefillRace and reader.tid not in copy.givers and (givers or _unheard(copy, reader)):
        fault.cure = _meet_or_arrive(copy)
    return fault


def _unheard(copy, reader):
    """The warps that wait for such copies, and of which nobody's arrival has given the place back, where some
    other reader's has."""
    heard = {t // 32 for t in copy.givers if copy.barrier in reader.block.threads[t].waits}
    return heard and {t.warp for t in reader.block.threads if copy.barrier in t.waits} - heard


def _meet_or_arrive(copy):
    """The cure where some readers alone give a place back for all."""
    empty, who = copy.last_wait.barrier.name, ranges(sorted(copy.givers))
    return (f"The wait on {empty} was for {who} alone. Have each thread that reads these bytes arrive there "
            "behind its last read, and initialise with so many; or have all readers meet at a barrier "
            "(bar_sync, with their number) before those arrivals.")  # fmt: skip


def _released_for_its_warp(copy, reader, giver):
    """The fault of the lane ``giver``, whose arrival gave back a stage that ``reader`` had yet to read."""
    empty, name = copy.last_wait.barrier, reader.block.shared.name_of(copy.address)
    what = f"arrives on {empty.name} for its warp, which gives {name} back; nothing says that thread "
    what += f"{reader.tid} of the warp has read it, and {reader.describe(copy)} issues a {copy.what} into it "
    what += f"at {reader.at(copy.site)}"
    site = giver.arrivals.get(empty)
    cure = f"Put cuda.syncwarp() before the release of thread {giver.tid}, at {giver.at(site)}, {FOR_ITS_WARP}"
    cure = _meet_or_arrive(copy) if _unheard(copy, reader) else cure
    return giver.fault_at(faults.ReadAfterRelease, what, site, empty, cure=cure)

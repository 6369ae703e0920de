"""What is wrong with an access, in words: the slow path of the checks in ``space.py``.

Each function builds the SimFault of one thread; the records that it takes are those of ``records.py``.
"""

from .. import faults
from .records import BLOCK, OUTSIDE, OWNER, SITE, TID, UNWRITTEN, Copy, Ended, Live


def bad_read(space, thread, w, address, size):
    """``thread`` reads bytes that the write ``w`` left, and nothing orders the two."""
    name = space.name_of(address)
    if w is OUTSIDE:
        return thread.fault(faults.OutOfRange, f"reads {size} bytes at {name}: no array is there", name)
    if w is UNWRITTEN or isinstance(w, Ended):
        return thread.fault(faults.UninitialisedRead, f"reads {name}, which nothing has written", name)
    if isinstance(w, Live):
        what = f"reads {name}, the bytes of live barrier {w.barrier.name}"
        return thread.fault(faults.LiveBarrierAccess, what, w.barrier)
    if isinstance(w, Copy):
        return _unawaited(thread, w, name)
    what = f"reads {name}, which {thread.describe(w)} wrote at {thread.at(w.site)}; nothing orders "
    what += "the write before the read"
    return thread.fault(faults.DataRace, what, name)


def _unawaited(thread, copy, name):
    """Why a thread may not read what ``copy`` delivers."""
    state = "has landed" if copy.landed else "is still in flight"
    head = f"reads {name}: the {copy.what} issued by {thread.describe(copy)} at "
    head += f"{thread.at(copy.site)} {state}, and this thread has not waited for it"
    if copy.barrier is None:
        return thread.fault(faults.InFlightRead, head + " (its group is not waited for)", name)
    head += f" (it completes phase {copy.phase} of {copy.barrier.name})"
    waited = thread.waits.get(copy.barrier)
    if waited is None:
        return thread.fault(faults.InFlightRead, head, copy.barrier)
    phase, site, first, _ = waited
    if phase < 0:
        kind, seen = faults.FreshBarrierPassed, "before any phase was complete"
    elif copy.tid != thread.tid and copy.known[thread.tid] < first:
        # Nobody told the issuing thread that this one is past its wait: the refill came too
        # early, whichever of the two happened to run first.
        return too_early(thread, copy, phase, site)
    elif _released(copy, thread.tid):
        why = _release_of(copy, thread)
        return thread.fault(faults.ReadAfterRelease, f"{head}; {why}", copy.barrier)
    else:
        kind, seen = faults.StaleWait, f"for phase {phase}"
    head += f"; its last wait, at {thread.at(site)}, returned {seen}"
    return thread.fault(kind, head, copy.barrier)


def bad_write(space, thread, w, address, size, record):
    """``record`` of ``thread`` is to replace the write ``w``, and nothing orders the two."""
    name, verb = space.name_of(address), _verb(record)
    if w is OUTSIDE:
        what = f"{verb} {size} bytes at {name}: no array is there"
        return thread.fault(faults.OutOfRange, what, name)
    if isinstance(w, Live):
        what = f"{verb} {name}, the bytes of live barrier {w.barrier.name}"
        return thread.fault(faults.LiveBarrierAccess, what, w.barrier)
    if isinstance(w, Copy):
        kind = faults.CopyCollision if isinstance(record, Copy) else faults.DataRace
        state = "landed but not waited for" if w.landed else "in flight"
        what = f"{verb} {name}, where the {w.what} issued by {thread.describe(w)} at "
        what += f"{thread.at(w.site)} is {state}"
        return thread.fault(kind, what, w.barrier or name)
    done = "used as a barrier until" if isinstance(w, Ended) else "wrote at"
    what = f"{verb} {name}, which {thread.describe(w)} {done} {thread.at(w.site)}; nothing orders "
    what += "the two writes"
    return thread.fault(faults.DataRace, what, name)


def bad_overwrite(space, thread, r, late, address, record):
    """``record`` of ``thread`` is to replace what the reader ``r`` may still be reading.

    ``late``: the numbers of all threads whose reads nothing orders before it.
    """
    name, site = space.name_of(address), thread.at(r[SITE])
    what = f"{_verb(record)} {name}, which "
    if r[OWNER] != r[TID]:
        kind = faults.RefillRace if isinstance(record, Copy) else faults.DataRace
        who = thread.describe_tid(r[BLOCK], r[TID])
        what += f"the copy that {who} issued at {site} may still be reading"
        return thread.fault(kind, what, name)
    what += f"thread {late[0]}" + (f" and {len(late) - 1} more" if len(late) > 1 else "")
    what += f" read at {site}; "
    if not isinstance(record, Copy):
        what += "nothing orders the read before the write"
        return thread.fault(faults.DataRace, what, name)
    if _released(record, r[TID]):
        reader = thread.block.threads[r[TID]]
        what = f"reads {name}, into which {reader.describe(record)} issues a {record.what} at "
        what += f"{thread.at(record.site)}; {_release_of(record, reader)}"
        return reader.fault_at(faults.ReadAfterRelease, what, r[SITE], record.barrier)
    return _refill_fault(thread, record, what + "nothing says that the read is over", r[TID])


def _verb(record):
    return f"issues a {record.what} into" if isinstance(record, Copy) else "writes"


def _released(copy, reader):
    """Whether thread number ``reader`` has given the stage back since its last wait on the copy's
    barrier, to the thread that issued ``copy`` into it."""
    waited = copy.block.threads[reader].waits.get(copy.barrier)
    if waited is None or copy.last_wait is None:
        return False
    barrier, phase, _ = copy.last_wait
    return phase == barrier.phase - 1 and barrier.last_arrivers.get(reader, -1) >= waited[3]


def _release_of(copy, reader):
    """What :func:`_released` has found, in words."""
    phase, site, _, _ = reader.waits[copy.barrier]
    return (
        f"after its wait for phase {phase} of {copy.barrier.name}, at {reader.at(site)}, it has arrived "
        f"on {copy.last_wait[0].name}, which gave the stage back"
    )


def too_early(thread, copy, phase, site):
    """The fault of the thread that refilled a stage while ``thread``, whose wait for the phase before
    stands at ``site``, had yet to read it."""
    issuer, shared = copy.block.threads[copy.tid], copy.block.shared
    what = (
        f"issues a {copy.what} into {shared.name_of(copy.address)}, which thread {thread.tid} has yet "
        f"to read: it waits for phase {phase} of {copy.barrier.name} at {thread.at(site)}; nothing "
        "says that the read is over"
    )
    return _refill_fault(issuer, copy, what, thread.tid)


def _refill_fault(issuer, copy, what, reader):
    """A RefillRace, or StaleRefill where the issuer did wait on a barrier of the readers."""
    kind = faults.RefillRace
    if copy.last_wait is not None:
        barrier, phase, site = copy.last_wait
        if reader in barrier.arrived | barrier.last_arrivers or barrier.pending < barrier.expected:
            seen = f"for phase {phase}" if phase >= 0 else "before any phase was complete"
            if phase == barrier.phase - 1 >= 0 and reader not in barrier.last_arrivers:
                seen += f", in which thread {reader} did not arrive"
            else:
                kind = faults.StaleRefill
            what += f"; its last wait on {barrier.name}, at {issuer.at(site)}, returned {seen}"
    about = copy.barrier or copy.block.shared.name_of(copy.address)
    return issuer.fault_at(kind, what, copy.site, about)

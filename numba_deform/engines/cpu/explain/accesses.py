"""What is wrong with an access: the slow path of the checks in ``memory.shadow_memory``.

Each function builds the SimFault of one thread, from records of ``memory.access_records``.
"""

from ....device.limits import SHARED_LIMIT
from ... import faults
from ..memory.access_records import (
    CHANGE,
    OUTSIDE,
    READ,
    UNWRITTEN,
    WRITE,
    Access,
    Copy,
    Ended,
    Live,
    copy_of,
    writers,
)
from .arrivals import by_a_reader, too_few_bytes
from .groups import ONE_LINE, explain_copy, explain_group, explain_lost, released_in_flight
from .race_causes import RELAXED, race, relaxed_arrival
from .refills import far_refill, refill_fault, release_of, too_early, verb_of, waited_too_early
from .source_causes import carved
from .tensor_cells import GARBAGE, read_by_product, released_too_early, tensor_pipe

OVERLAP = "If each store should have a place of its own, correct that; or let one thread issue it. Otherwise: "
LOOKS = 50  # of one who waits for others, in vain: each block has had its turn


def bad_access(space, thread, w, address, size, record=None, kind=READ):
    """``thread`` reads bytes that the write ``w`` left, or its ``record`` is to replace that, and nothing
    orders the two. ``kind``: CHANGE of an atomic that reads."""
    name = space.name_of(address, w is not OUTSIDE and not copy_of(record))
    verb = verb_of(record) if record else "reads"
    if w is OUTSIDE:
        return outside(space, thread, f"{verb} {size} bytes at {name}", address, size, name, record)
    if not record and (w is UNWRITTEN or isinstance(w, Ended)):
        return _unset(space, thread, w, address, name)
    if isinstance(w, Live):
        what = f"{verb} {name}, the bytes of live barrier {w.barrier.name}"
        fault = thread.fault(faults.LiveBarrierAccess, what, w.barrier)
        return carved(fault, space, w.barrier.address, 8, True)
    if copy := copy_of(w):
        if record:
            return _over_copy(space, thread, copy, verb, name, address, size, copy_of(record))
        return _unawaited(thread, copy, name)
    if _by_copy(w) and not isinstance(w, Ended):
        what = f"{verb} {name}, into which {thread.describe(w)} issued a copy at {thread.at(w.site)}"
        fault = thread.fault(faults.DataRace, what, name)
        explain_group(fault, thread, w.block.threads[w.tid], w.owner, w.clock)
        fault.cure = OVERLAP * bool(record and _by_copy(record)) + fault.cure
        return fault
    did = "atomically changed at" if w.atomic and w.reads else "wrote at"
    did = "used as a barrier until" if isinstance(w, Ended) else did
    what = f"{verb} {name}, which {thread.describe(w)} {did} {thread.at(w.site)}; nothing orders the "
    what += "two writes" if record else "write before the read"
    kind = kind if not record else CHANGE if record.atomic else WRITE
    return race(space, thread, kind, Access.write(w), what, name)


def _by_copy(w):
    """Whether a bulk or tensor store made the write ``w``: its owner is a bulk group."""
    return w.tid is not None and w.owner != w.tid


def _unset(space, thread, w, address, name):
    """``thread`` reads what nothing has written, or a barrier has left."""
    copy = None
    if w is UNWRITTEN:
        if fault := _unannounced_multicast(space, thread, address):
            return fault
        copy = _before(space, address)
    rule, cure = space.unset
    if here := _written_here(space, thread):
        cure = f"Where other blocks write it, as at {here}, have that come before: a barrier of the grid "
        cure += f"(cuda.cg.this_grid().sync()), or a launch of its own. Else s{cure[1:]}"
    elif who := _further(space, thread, address):
        cure = f"Let {who}, which wrote up to there, write all that is read; or read no more. Else s{cure[1:]}"
    fault = thread.fault(
        faults.UninitialisedRead, f"reads {name}, which nothing has written", name, rule=rule, cure=cure)
    if copy:
        place, end = thread.at(copy.site), address - copy.address - copy.size
        fault.add(f"the {copy.what} of {thread.describe(copy)} at {place} brings {copy.size} bytes to "
                  f"{space.name_of(copy.address)}, and ends {end} bytes before")  # fmt: skip
        fault.cure += " The size of a copy counts bytes."
    return fault


def _unannounced_multicast(space, thread, address):
    """The fault of who has announced too little where another block is still to send the bytes; or None."""
    blocks, place, before, idle = thread.block.cluster.blocks, address - space.base, None, 0
    waits = len(blocks) > 1 and thread.waits and not thread.block.execution.by_choice  # which has other orders
    while waits and space.written[place] is UNWRITTEN and idle < LOOKS:
        now = [(block.progress, len(block.copies)) for block in blocks]
        idle = idle + 1 if now == before else 0
        if idle and (flying := next((block for block in blocks if block.copies), None)):
            flying.land()  # for which its issuer may wait
        before = now
        thread.let_others_come()
    copy = copy_of(space.written[place])
    return copy and copy.barrier and too_few_bytes(copy)


def _written_here(space, thread):
    """A line by which this launch, of several blocks, writes an array in global memory; or ""."""
    several = thread.block.execution.blocks > 1 and space in thread.block.globals.regions
    found = (w for record in space.written if several for w in writers(record) if w.block is not None)
    write = next(found, None)
    return thread.at(write.site) if write else ""


def _further(space, thread, address):
    """Who has written up to these bytes before the launch, as "the copy at .."; or ""."""
    ends = thread.block.execution.history.ends
    end = max((end for end in ends if space.base < end <= address), default=0)
    gap = space.written[end - space.base : address - space.base]
    return ends[end] if end and all(w is UNWRITTEN for w in gap) else ""


def _before(space, address):
    """The copy that has brought the last bytes before ``address``, which nothing has written; or None."""
    records = space.written[: address - space.base]
    copy = copy_of(next((w for w in reversed(records) if w is not UNWRITTEN), None))
    array = space.name_of(address).partition("[")[0]
    inside = copy and copy.barrier and copy.address + copy.size <= address
    return copy if inside and space.name_of(copy.address).partition("[")[0] == array else None


def outside(space, thread, what, address, size, name, record=None):
    """Some of the bytes that are accessed belong to no array; ``record``: of a copy or store into them."""
    records = space.written[address - space.base :][:size]
    held = records.index(OUTSIDE) if OUTSIDE in records else len(records)
    ranges = getattr(space, "ranges", ())
    before = max(((stop, name) for _, stop, name, _ in ranges if stop <= address), default=None)
    where = f"the array ends {held} bytes on" if held else "no array is there"
    if not held and before and address - before[0] < SHARED_LIMIT:
        where += f", {before[1]} ends {address - before[0] or 'right'} {'bytes ' * (address > before[0])}before"
    fault = thread.fault(faults.OutOfRange, f"{what}: {where}", name)
    if not held and 0 <= address - getattr(space, "dynamic_start", address + 1) < SHARED_LIMIT:
        space.tell_size(fault)
    if held and isinstance(record, Copy):
        fault.cure = "Make the array as large as what is copied. A box counts as a whole, what lies outside "
        fault.cure += "the tensor included: all its sizes, times the element's."
    return fault


def _too_few_bytes(thread, copy):
    """The fault of who announced fewer bytes than the copies to the barrier of ``copy`` bring, or None."""
    if copy.barrier.undeclared():
        thread.let_others_come()  # who announces them may be late
    return too_few_bytes(copy)


def _unawaited(thread, copy, name):
    """Why a thread may not read what ``copy`` delivers."""
    barrier, state = copy.barrier, "has landed" if copy.landed else "is still in flight"
    head = f"reads {name}: the {copy.what} issued by {thread.describe(copy)} at {thread.at(copy.site)} {state}"
    if barrier is None:
        return explain_copy(thread.fault(faults.InFlightRead, head, name), thread, copy)
    if fault := by_a_reader(barrier) or _too_few_bytes(thread, copy):
        return fault
    head += f", and this thread has not waited for it (it completes phase {copy.phase} of {barrier.name})"
    if barrier.block is not thread.block:
        cure = _wait_there(barrier, "its copy has landed")
        return thread.fault(faults.InFlightRead, head, barrier, cure=cure)
    waited, near = thread.waits.get(barrier), copy.block is thread.block
    if waited is None:
        over = thread.seen[barrier.component] - 1
        told = not near or thread.seen[copy.tid] >= copy.known[copy.tid]
        if not told and barrier.refilled(over, copy):  # it reads what others have waited for
            what = f"issues a {copy.what} into {name}, which thread {thread.tid} reads at "
            what += f"{thread.at(thread.site())}; nothing says that the read is over"
            return refill_fault(copy, what, thread)
        return _waited_elsewhere(thread, copy, thread.fault(faults.InFlightRead, head, barrier))
    _, phase, site, first, _ = waited
    if phase < 0:
        kind, seen = faults.FreshBarrierPassed, "before any phase was complete"
    elif (
        not (near and copy.tid == thread.tid)
        and copy.known[thread.tid] < first
        and barrier.refilled(phase, copy)
    ):
        # Nobody told the issuing thread that this one is past its wait: the refill came too
        # early, whichever of the two happened to run first.
        return too_early(thread, copy, phase, site)
    elif near and (how := release_of(copy, thread)):
        return thread.fault(faults.ReadAfterRelease, f"{head}; {how}", barrier)
    else:
        kind, seen = faults.StaleWait, f"for phase {phase}"
    return thread.fault(kind, f"{head}; its last wait, at {thread.at(site)}, returned {seen}", barrier)


def _waited_elsewhere(thread, copy, fault):
    """``fault`` of a thread that has never waited on the barrier of ``copy``, maybe on others of its array."""
    array = copy.barrier.name.partition("[")[0]
    if others := [wait for b, wait in thread.waits.items() if b.name.partition("[")[0] == array]:
        last, _, site, *_ = max(others, key=lambda wait: wait.last)
        fault.cure = f"Wait on {copy.barrier.name} before the first read of the stage: the last wait of "
        fault.cure += f"thread {thread.tid}, at {thread.at(site)}, was on {last.name}."
        if last.filled and last.filled[-1][1] != copy.place:
            brought = thread.shared.name_of(last.filled[-1][1])
            fault.cure += f" Or read what that one brings, from {brought} on."
    return fault


SAME = "site", "barrier", "phase", "address", "size"  # of the copies of one line's threads to one place


def _over_copy(space, thread, copy, verb, name, address, size, newer):
    """``thread`` writes where ``copy`` brings bytes; ``newer``: by another copy, or None."""
    barrier, state = copy.barrier, "landed but not waited for" if copy.landed else "in flight"
    what = f"{verb} {name}, where the {copy.what} issued by {thread.describe(copy)} at {thread.at(copy.site)} "
    what += f"is {state}"
    if barrier is not None and (fault := _too_few_bytes(thread, copy)):
        return fault
    fault = thread.fault(faults.CopyCollision if newer else faults.DataRace, what, barrier or name)
    if barrier is None:
        return explain_lost(fault, thread, copy, newer) if newer else explain_copy(fault, thread, copy)
    if barrier.block is not thread.block:
        if newer and newer.generic and (copy.block, copy.tid) != (newer.block, newer.tid):
            fault.cure = "Give each of the two senders a place of its own, or order them: let the second send "
            fault.cure += "once the readers have taken what the first sent, and told it so."
        elif newer and barrier is newer.barrier:
            return far_refill(thread, newer, what)  # whether its readers have waited is a matter of luck
        else:
            fault.cure = _wait_there(barrier, "the earlier copy has landed and been read")
        return fault
    if not newer:
        fault.rule = "Until a wait for its phase has returned, a copy's destination is the copy's."
        fault.cure = f"Wait on {barrier.name}, for the phase that the copy counts in, before this write."
        return carved(fault, space, address, size, True)
    if copy.tid != newer.tid and all(getattr(copy, a) == getattr(newer, a) for a in SAME):
        fault.cure = ONE_LINE
        return fault
    both = min(copy.address + copy.size, newer.address + newer.size) - max(copy.address, newer.address)
    if both < min(copy.size, newer.size):
        fault.cure = thread.block.execution.load_checks.exchanged()
        fault.cure += f"Let the one begin where the other ends: of their {copy.size} and {newer.size} bytes "
        fault.cure += f"they share {both}. Offsets in shared memory count bytes."
    elif copy.tid == newer.tid and newer.barrier and barrier is not newer.barrier:
        fault.cure = f"Give each stage a place of its own: what signals {newer.barrier.name} goes to where "
        fault.cure += f"what signals {barrier.name} goes; take place and barrier by one stage index."
    return carved(fault, space, address, size)


def _wait_there(barrier, until):
    """The cure where something is complete by a barrier of another block of the cluster."""
    return (f"Nobody can wait on {barrier.name} of block {barrier.block.index} but its own threads: have them "
            f"wait there until {until}, then arrive on an mbarrier of this block (mbarrier_arrive_cluster); "
            "wait for that here.")  # fmt: skip


def bad_scope(space, thread, block, tid, site, address, wide):
    """Atomics of ``thread`` and of thread ``tid`` of another block, one of which has scope cta."""
    name, here = space.name_of(address, True), thread.site()
    one, other = thread, block.threads[tid]
    if wide:  # the other's scope is the narrow one
        one, other, site, here = other, one, here, site
    what = f"atomic access to {name} with scope cta, which is for one block only; "
    what += f"{one.describe_tid(other.block, other.tid)} makes one at {one.at(site)}"
    fault = one.fault_at(faults.ScopeRace, what, here, name)
    if hasattr(space, "dynamic_names"):
        fault.cure = "Use cluster scope here as well: ld_acquire_cluster_shared_cluster_b32, "
        fault.cure += "st_release_cluster_shared_cluster_b32, atom_.._cluster_shared_cluster_..; they take "
        fault.cure += "shared addresses of one's own, too."
    return fault


def bad_overwrite(space, thread, r, late, address, record):
    """``record`` of ``thread`` is to replace what the reader ``r`` may still be reading.

    ``late``: the numbers of all threads whose reads nothing orders before it.
    """
    copy, name = copy_of(record), space.name_of(address, copy_of(record) is None)
    what, home = f"{verb_of(record)} {name}, which ", r.block
    if r.owner != r.tid:
        return _read_by_copy(thread, r, copy, name, what)
    who = thread.describe_tid(home, r.tid) if home is not thread.block else f"thread {late[0]}"
    what += who + (f" and {len(late) - 1} more" if len(late) > 1 else "") + f" read at {thread.at(r.site)}; "
    if not copy:
        what += "nothing orders the read before the write"
        return race(space, thread, CHANGE if record.atomic else WRITE, r, what, name)
    if how := relaxed_arrival(home, r.tid, r.clock, thread.at):
        fault = far_refill(thread, copy, f"{what}it {how}")
        fault.cure, fault.rule = RELAXED
        return fault
    what += "nothing says that the read is over"
    if home is not thread.block:
        return far_refill(thread, copy, what)
    reader = home.threads[r.tid]
    if fault := waited_too_early(copy, reader, r):
        return fault
    if how := release_of(copy, reader):
        what = f"reads {name}, into which {reader.describe(copy)} issues a {copy.what} at "
        what += f"{thread.at(copy.site)}; {how}"
        return reader.fault_at(faults.ReadAfterRelease, what, r.site, copy.barrier)
    return refill_fault(copy, what, reader)


def _read_by_copy(thread, r, copy, name, what):
    """The fault of ``thread``, which writes, by ``copy`` or itself, what a copy or a product may still read."""
    alone = len(thread.block.cluster.blocks) == 1  # else the reader's block is that of the barrier
    who = f"that {thread.describe_tid(r.block, r.tid)} " if alone else ""
    by_product = r.owner in [group.component for group in r.block.warpgroups.values()]
    thing = "product" if by_product or tensor_pipe(r) else "copy"
    what += f"the {thing} {who}issued at {thread.at(r.site)} may still be reading"
    issuer, group = r.block.threads[r.tid], r.tid // 128
    if copy and r.tid in copy.givers and tensor_pipe(r):
        return waited_too_early(copy, issuer, r) or released_too_early(copy, issuer, name, r)
    if by_product and copy:
        if givers := [t for t in copy.givers if t // 128 == group]:
            thread.let_others_come()
            return released_in_flight(copy, issuer.block.threads[min(givers)], name, r)
        if copy.tid // 128 != group:  # nobody has given it back
            return refill_fault(copy, what, issuer)
    fault = thread.fault(faults.RefillRace if copy else faults.DataRace, what, name)
    if tensor_pipe(r):
        return read_by_product(fault, thread, r)
    fault = explain_group(fault, thread, issuer, r.owner, r.clock)
    if copy and r.tid in copy.givers and "leaves it open" not in fault.what and "not waited" in fault.what:
        gave = issuer.at(issuer.arrivals.get(copy.last_wait.barrier))
        fault.cure = "Call cp_async_bulk_wait_group(0) (its .read form is enough) before the arrival at "
        fault.cure += f"{gave}, which gives the stage back."
    return fault


UNDEFINED = {  # what has such a value -> the rule, what to write
    "shuffle": ("A shuffle from a lane that has exited or is not in the mask gives an undefined value "
                "(PTX 9.7.9.6), which may go unused.",
                "Shuffle from lanes of the mask, or leave the value unused where the lane is none."),
    "register": ("A variable that has not been set may hold any value: nothing may depend on it.",
                 "Set it on every path, say to 0 before the branch or the loop, or do this where it is set."),
    "cancel": ("Only the answer of a request that has not failed has a first block (PTX 9.7.13.18).",
               "Ask is_canceled of the answer, and do nothing with the block where it says no."),
    "cell": (GARBAGE, "Have a product or a store write those lanes and columns before the load."),
}  # fmt: skip


def undefined_use(value, thread, site, what="does what an undefined value decides", name=None):
    """The fault of a thread for which it matters what the Undefined ``value`` is."""
    rule, cure = UNDEFINED[value.kind]
    what = f"{what}; {value.origin}"
    return thread.fault_at(faults.UninitialisedRead, what, site, name, rule=rule, cure=cure)

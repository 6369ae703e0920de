"""What is wrong with an access, in words: the slow path of the checks in ``shadow_memory``.

Each function builds the SimFault of one thread; the records that it takes are those of ``access_records``.
"""

import re
from typing import NamedTuple

from ... import faults
from ..memory.access_records import (
    BLOCK,
    CHANGE,
    CLOCK,
    OUTSIDE,
    OWNER,
    READ,
    SITE,
    TID,
    UNWRITTEN,
    WRITE,
    Access,
    Copy,
    Ended,
    Live,
    copy_of,
)
from .arrivals import by_a_reader, too_few_bytes
from .race_causes import RELAXED, race, relaxed_arrival
from .refills import far_refill, refill_fault, release_of, released, too_early, verb_of, waited_too_early
from .source_causes import carved

OVERLAP = "If each store should have a place of its own, correct that; or let one thread issue it. Otherwise: "
LOOKS = 50  # of one who waits for others, in vain: each block has had its turn


def bad_read(space, thread, w, address, size, kind=READ):
    """``thread`` reads bytes that the write ``w`` left, and nothing orders the two. CHANGE: an atomic."""
    name = space.name_of(address, w is not OUTSIDE)
    if w is OUTSIDE:
        return outside(space, thread, f"reads {size} bytes at {name}", address, size, name)
    if w is UNWRITTEN and (fault := _unannounced_multicast(space, thread, address)):
        return fault
    if w is UNWRITTEN or isinstance(w, Ended):
        fault = thread.fault(faults.UninitialisedRead, f"reads {name}, which nothing has written", name)
        fault.rule, fault.cure = space.unset
        if w is UNWRITTEN and (copy := _before(space, address)):
            place, end = thread.at(copy.site), address - copy.address - copy.size
            fault.add(f"the {copy.what} of {thread.describe(copy)} at {place} brings {copy.size} bytes to "
                      f"{space.name_of(copy.address)}, and ends {end} bytes before")  # fmt: skip
            fault.cure += " The size of a copy counts bytes."
        return fault
    if isinstance(w, Live):
        what = f"reads {name}, the bytes of live barrier {w.barrier.name}"
        fault = thread.fault(faults.LiveBarrierAccess, what, w.barrier)
        return carved(fault, space, w.barrier.address, 8, True)
    if copy := copy_of(w):
        return _unawaited(thread, copy, name)
    if _by_copy(w):
        return _unfinished_store(thread, w, f"reads {name}", name)
    what = f"reads {name}, which {thread.describe(w)} {_did(w)} {thread.at(w.site)}; nothing orders "
    what += "the write before the read"
    return race(space, thread, kind, Access.write(w), what, name)


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
    return copy and copy.barrier and too_few_bytes(copy.barrier, copy)


def _before(space, address):
    """The copy that has brought the last bytes before ``address``, which nothing has written; or None."""
    records = space.written[: address - space.base]
    copy = copy_of(next((w for w in reversed(records) if w is not UNWRITTEN), None))
    array = space.name_of(address).partition("[")[0]
    inside = copy and copy.barrier and copy.address + copy.size <= address
    return copy if inside and space.name_of(copy.address).partition("[")[0] == array else None


def _did(w):
    return "atomically changed at" if w.atomic and w.reads else "wrote at"


def outside(space, thread, what, address, size, name, record=None):
    """Some of the bytes that are accessed belong to no array; ``record``: of a copy or store into them."""
    records = space.written[address - space.base :][:size]
    held = records.index(OUTSIDE) if OUTSIDE in records else len(records)
    where = f"the array ends {held} bytes on" if held else "no array is there"
    fault = thread.fault(faults.OutOfRange, f"{what}: {where}", name)
    if held and isinstance(record, Copy):
        fault.cure = "Make the array as large as what is copied. A box counts as a whole, what lies outside "
        fault.cure += "the tensor included: all its sizes, times the element's."
    return fault


def _by_copy(w):
    """Whether a bulk or tensor store made the write ``w``: its owner is a bulk group."""
    return w.tid is not None and w.owner != w.tid


SAME = "site", "barrier", "phase", "address", "size"  # of the copies of one line's threads to one place


class GroupKind(NamedTuple):
    """What reports say of asynchronous work of one kind, which its group completes."""

    name: str  # that its commit_group and wait_group begin with
    thing: str
    place: str  # where these have to be called
    rule: str


GROUP_KINDS = {
    "bulk": GroupKind(
        "cp_async_bulk", "copy", "in the thread that issued the copy",
        "A bulk or tensor store reads shared memory and writes global memory until its bulk group has been "
        "waited for, by the thread that issued it (PTX 9.7.9.25.6.2); for other threads, a barrier after that.",
    ),
    "cp.async": GroupKind(
        "cp_async", "copy", "in the thread that issued the copy",
        "What cp.async copies is there for its own thread once it has waited for the group, and for others "
        "past a barrier after that wait (PTX 9.7.9.25.3.3).",
    ),
    "wgmma": GroupKind(
        "wgmma", "product", "in all threads of the warpgroup",
        "A wgmma.mma_async reads shared memory until its group has been waited for, by a thread of its "
        "warpgroup (PTX 9.7.15.7.3); for other threads, a barrier after that.",
    ),
}  # fmt: skip


def _unfinished_store(thread, w, head, name):
    """``thread`` touches what a store writes, without knowing that it is complete."""
    what = f"{head}, into which {thread.describe(w)} issued a copy at {thread.at(w.site)}"
    fault = thread.fault(faults.DataRace, what, name)
    return explain_group(fault, thread, w.block.threads[w.tid], w.owner, w.clock)


def explain_group(fault, thread, issuer, owner, number):
    """Have ``fault`` of ``thread`` say what the group ``number`` of the thread ``issuer`` lacks. ``owner``: the
    group's entry in the clocks. Other copies than those of groups are complete by an mbarrier."""
    found = [(k, g) for k, g in issuer.groups.items() if owner in (g.read_component, g.done_component)]
    if not found:
        fault.rule = "A copy reads its source until a wait for its phase of the mbarrier has returned."
        fault.cure = "Wait on the barrier that the copy signals before its source is written."
        return fault
    if issuer is not thread:
        thread.let_others_come()  # what the issuer is still to commit may stay open
    [(key, groups)] = found
    kind = GROUP_KINDS[key]
    barrier = next((barrier for last, barrier in groups.arrivals if number <= last), None)
    if barrier is not None:
        who = thread.describe_tid(issuer.block, issuer.tid)
        fault.cure = f"Wait on {barrier.name}, for the phase in which the arrival counts, before this."
        fault.rule = "What cp.async copies is there for whoever has waited for the phase of the mbarrier "
        fault.rule += "on which its cp.async.mbarrier.arrive counts (PTX 9.7.13.15.15)."
        fault.add(f"{who} left an arrival on {barrier.name} to it; nothing orders that phase before this")
        return fault
    if key == "wgmma":  # all threads of the warpgroup commit and wait: who is furthest tells of the others
        mates = (t for t in issuer.block.threads if t.tid // 128 == issuer.tid // 128 and key in t.groups)
        issuer = max(mates, key=lambda t: t.groups[key].number)
        groups = issuer.groups[key]
    what, fault.cure = _lacks(kind, groups, thread, issuer, owner, number)
    if not isinstance(fault, faults.CopyOutlivesBlock):
        fault.rule = kind.rule
    elif kind.name == "cp_async_bulk":
        commit = "cp_async_bulk_commit_group() and " * (groups.number == number)
        fault.cure = f"Call {commit}cp_async_bulk_wait_group(0) (its .read form is enough) behind the last "
        fault.cure += f"copy, {kind.place}, before that ends."
    fault.add(what)
    return fault


def _lacks(kind, groups, thread, issuer, owner, number):
    """(what the group ``number`` lacks, what would mend it), in words."""
    who = "its warpgroup" if kind.thing == "product" else thread.describe_tid(issuer.block, issuer.tid)
    if issuer.seen[owner] >= number:
        cure = f"Put a barrier (syncthreads, syncwarp) between {kind.name}_wait_group and this."
        if issuer.block is not thread.block:
            cure = f"Release after {kind.name}_wait_group in its block, and acquire in this one before this."
        return f"{who} has waited for its group, and nothing orders that wait before this", cure
    form = ""
    if kind.name == "cp_async_bulk":
        form = ", not its .read form" if owner == groups.done_component else " (its .read form is enough)"
    later = " It waits for the calling thread's groups only: the others need a barrier (syncthreads) after it."
    if groups.number == number:
        what = f"{who} has not committed it to a group"
        wait = f"{kind.name}_wait_group(0){form}"
        return what, f"Call {kind.name}_commit_group() and then {wait}, {kind.place}.{later}"
    pending, site, last = groups.waited
    left = last >= number  # open, by a wait that came after its commit
    most = sum(number < n <= last if left else number < n for n, _ in groups.committed)
    what = f"{who} has not waited for its group"
    wait = f"{kind.name}_wait_group({most}){form}"
    if left:
        what += f": {kind.name}_wait_group({pending}), at {thread.at(site)}, leaves it open"
        return what, f"Call {wait} there: {most} is the most groups that may stay open.{later}"
    return what, f"Call {wait}, {kind.place}, before this: {most} is the most groups that may stay open.{later}"


def explain_copy(fault, thread, copy):
    """The same for the group of ``copy``, which no mbarrier completes."""
    issuer = copy.block.threads[copy.tid]
    kind = next((kind for kind in ("cp.async", "wgmma") if copy.what.startswith(kind)), "bulk")
    groups = issuer.groups[kind]
    owner = groups.done_component if kind == "cp.async" else groups.read_component
    return explain_group(fault, thread, issuer, owner, copy.phase)


def _too_few_bytes(thread, copy):
    """The fault of who announced fewer bytes than the copies to the barrier of ``copy`` bring, or None."""
    if copy.barrier.undeclared():
        thread.let_others_come()  # who announces them may be late
    return too_few_bytes(copy.barrier, copy)


def _unawaited(thread, copy, name):
    """Why a thread may not read what ``copy`` delivers."""
    state = "has landed" if copy.landed else "is still in flight"
    head = f"reads {name}: the {copy.what} issued by {thread.describe(copy)} at {thread.at(copy.site)} {state}"
    if copy.barrier is None:
        return explain_copy(thread.fault(faults.InFlightRead, head, name), thread, copy)
    if fault := by_a_reader(copy.barrier) or _too_few_bytes(thread, copy):
        return fault
    head += f", and this thread has not waited for it (it completes phase {copy.phase} of {copy.barrier.name})"
    if copy.barrier.block is not thread.block:
        fault = thread.fault(faults.InFlightRead, head, copy.barrier)
        fault.cure = wait_there(copy.barrier, "its copy has landed")
        return fault
    waited, near = thread.waits.get(copy.barrier), copy.block is thread.block
    if waited is None:
        over = thread.seen[copy.barrier.component] - 1
        told = not near or thread.seen[copy.tid] >= copy.known[copy.tid]
        if not told and copy.barrier.refilled(over, copy):  # it reads what others have waited for
            what = f"issues a {copy.what} into {name}, which thread {thread.tid} reads at "
            what += f"{thread.at(thread.site())}; nothing says that the read is over"
            return refill_fault(copy, what, thread)
        fault = thread.fault(faults.InFlightRead, head, copy.barrier)
        array = copy.barrier.name.partition("[")[0]
        if others := [(w[3], b) for b, w in thread.waits.items() if b.name.partition("[")[0] == array]:
            last = max(others, key=lambda pair: pair[0])[1]
            fault.cure = f"Wait on {copy.barrier.name} before the first read of the stage: the last wait of "
            fault.cure += f"thread {thread.tid}, at {thread.at(thread.waits[last][1])}, was on {last.name}."
            if last.filled and last.filled[-1][1] != copy.address:
                brought = thread.shared.name_of(last.filled[-1][1])
                fault.cure += f" Or read what that one brings, from {brought} on."
        return fault
    phase, site, first, _ = waited
    if phase < 0:
        kind, seen = faults.FreshBarrierPassed, "before any phase was complete"
    elif (
        not (near and copy.tid == thread.tid)
        and copy.known[thread.tid] < first
        and copy.barrier.refilled(phase, copy)
    ):
        # Nobody told the issuing thread that this one is past its wait: the refill came too
        # early, whichever of the two happened to run first.
        return too_early(thread, copy, phase, site)
    elif near and released(copy, thread):
        why = release_of(copy, thread)
        return thread.fault(faults.ReadAfterRelease, f"{head}; {why}", copy.barrier)
    else:
        kind, seen = faults.StaleWait, f"for phase {phase}"
    head += f"; its last wait, at {thread.at(site)}, returned {seen}"
    return thread.fault(kind, head, copy.barrier)


def bad_write(space, thread, w, address, size, record):
    """``record`` of ``thread`` is to replace the write ``w``, and nothing orders the two."""
    name, verb = space.name_of(address, w is not OUTSIDE and not copy_of(record)), verb_of(record)
    if w is OUTSIDE:
        return outside(space, thread, f"{verb} {size} bytes at {name}", address, size, name, record)
    if isinstance(w, Live):
        what = f"{verb} {name}, the bytes of live barrier {w.barrier.name}"
        fault = thread.fault(faults.LiveBarrierAccess, what, w.barrier)
        return carved(fault, space, w.barrier.address, 8, True)
    if copy := copy_of(w):
        newer = copy_of(record)
        kind = faults.CopyCollision if newer else faults.DataRace
        state = "landed but not waited for" if copy.landed else "in flight"
        what = f"{verb} {name}, where the {copy.what} issued by {thread.describe(copy)} at "
        what += f"{thread.at(copy.site)} is {state}"
        if copy.barrier is not None and (fault := _too_few_bytes(thread, copy)):
            return fault
        fault = thread.fault(kind, what, copy.barrier or name)
        if copy.barrier is None:
            return explain_copy(fault, thread, copy)
        if copy.barrier.block is not thread.block:
            if newer and newer.generic and (copy.block, copy.tid) != (newer.block, newer.tid):
                fault.cure = "Give each of the two senders a place of its own, or order them: let the second "
                fault.cure += "send once the readers have taken what the first sent, and told it so."
            elif newer and copy.barrier is newer.barrier:
                return far_refill(thread, newer, what)  # whether its readers have waited is a matter of luck
            else:
                fault.cure = wait_there(copy.barrier, "the earlier copy has landed and been read")
            return fault
        if newer and copy.tid != newer.tid and all(getattr(copy, a) == getattr(newer, a) for a in SAME):
            fault.cure = "One line issues both: give each thread that comes there a place of its own, "
            fault.cure += "say by its lane, or let one thread copy for all."
            return fault
        if newer and copy.tid == newer.tid and newer.barrier and copy.barrier is not newer.barrier:
            fault.cure = f"Give each stage a place of its own: what signals {newer.barrier.name} goes to where "
            fault.cure += f"what signals {copy.barrier.name} goes; take place and barrier by one stage index."
        both = newer and min(copy.address + copy.size, newer.address + newer.size) - max(
            copy.address, newer.address)  # fmt: skip
        if newer and both < min(copy.size, newer.size):
            fault.cure = f"Let the one begin where the other ends: of their {copy.size} and {newer.size} bytes "
            fault.cure += f"they share {both}. Offsets in shared memory count bytes."
            fault.cure = thread.block.execution.load_checks.exchanged() + fault.cure
        if kind is faults.DataRace:
            fault.rule = "Until a wait for its phase has returned, a copy's destination is the copy's."
            fault.cure = f"Wait on {copy.barrier.name}, for the phase that the copy counts in, before this "
            fault.cure += "write."
        return carved(fault, space, address, size, kind is faults.DataRace)
    if _by_copy(w) and not isinstance(w, Ended):
        fault = _unfinished_store(thread, w, f"{verb} {name}", name)
        fault.cure = OVERLAP * _by_copy(record) + fault.cure
        return fault
    done = "used as a barrier until" if isinstance(w, Ended) else _did(w)
    what = f"{verb} {name}, which {thread.describe(w)} {done} {thread.at(w.site)}; nothing orders "
    what += "the two writes"
    return race(space, thread, CHANGE if record.atomic else WRITE, Access.write(w), what, name)


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
    copy, site = copy_of(record), thread.at(r[SITE])
    name = space.name_of(address, copy is None)
    what = f"{verb_of(record)} {name}, which "
    if r[OWNER] != r[TID]:
        kind = faults.RefillRace if copy else faults.DataRace
        alone = len(thread.block.cluster.blocks) == 1  # else the reader's block is that of the barrier
        who = f"that {thread.describe_tid(r[BLOCK], r[TID])} " if alone else ""
        products = [group.component for group in r[BLOCK].warpgroups.values()]
        thing = "product" if r[OWNER] in products else "copy"
        what += f"the {thing} {who}issued at {site} may still be reading"
        issuer = r[BLOCK].threads[r[TID]]
        if thing == "product" and copy and (givers := [t for t in copy.givers if t // 128 == r[TID] // 128]):
            thread.let_others_come()
            return _released_in_flight(copy, issuer.block.threads[min(givers)], name, r)
        if thing == "product" and copy and copy.tid // 128 != r[TID] // 128:  # nobody has given it back
            return refill_fault(copy, what, issuer)
        return explain_group(thread.fault(kind, what, name), thread, issuer, r[OWNER], r[CLOCK])
    others = r[BLOCK] is not thread.block
    who = thread.describe_tid(r[BLOCK], r[TID]) if others else f"thread {late[0]}"
    what += who + (f" and {len(late) - 1} more" if len(late) > 1 else "") + f" read at {site}; "
    if not copy:
        what += "nothing orders the read before the write"
        return race(space, thread, CHANGE if record.atomic else WRITE, Access.read(r), what, name)
    if how := relaxed_arrival(r[BLOCK], r[TID], r[CLOCK], thread.at):
        fault = far_refill(thread, copy, f"{what}it {how}")
        fault.cure, fault.rule = RELAXED
        return fault
    if others:
        return far_refill(thread, copy, what + "nothing says that the read is over")
    reader = thread.block.threads[r[TID]]
    if fault := waited_too_early(copy, reader, r):
        return fault
    if released(copy, reader):
        what = f"reads {name}, into which {reader.describe(copy)} issues a {copy.what} at "
        what += f"{thread.at(copy.site)}; {release_of(copy, reader)}"
        return reader.fault_at(faults.ReadAfterRelease, what, r[SITE], copy.barrier)
    return refill_fault(copy, what + "nothing says that the read is over", reader)


def wait_there(barrier, until):
    """The cure where something is complete by a barrier of another block of the cluster."""
    cure = f"Nobody can wait on {barrier.name} of block {barrier.block.index} but its own threads: have them "
    cure += f"wait there until {until}, then arrive on an mbarrier of this block (mbarrier_arrive_cluster); "
    return cure + "wait for that here."


UNDEFINED = {  # what has such a value -> the rule, what to write
    "shuffle": ("A shuffle from a lane that has exited or is not in the mask gives an undefined value "
                "(PTX 9.7.9.6), which may go unused.",
                "Shuffle from lanes of the mask, or leave the value unused where the lane is none."),
    "register": ("A variable that has not been set may hold any value: nothing may depend on it.",
                 "Set it on every path, say to 0 before the branch or the loop, or do this where it is set."),
}  # fmt: skip


def undefined_use(value, thread, site, what="does what an undefined value decides", name=None):
    """The fault of a thread for which it matters what the Undefined ``value`` is."""
    fault = thread.fault_at(faults.UninitialisedRead, what, site, name)
    fault.add(value.origin)
    fault.rule, fault.cure = UNDEFINED[value.kind]
    return fault


def wait_for_product(thread, site):
    """The call that waits for the product issued at ``site``: of nd's object for products, or an intrinsic."""
    found = re.search(r"(\w+)\.add(?:_held)?\((\w+),", thread.fault_at(faults.SimFault, "", site).source)
    return f"{found[1]}.wait({found[2]}, 0)" if found else "wgmma_wait_group(0)"


def _released_in_flight(copy, giver, name, r):
    """The fault of the thread ``giver``, which gave back a stage that a product, the reader ``r``, reads."""
    empty, call, at = copy.last_wait[0], wait_for_product(giver, r[SITE]), giver.at
    late = "for which it waits later" if giver.seen[r[OWNER]] >= r[CLOCK] else "which it has not waited for"
    what = f"arrives on {empty.name}, which gives {name} back, while the product of {at(r[SITE])}, {late}, "
    what += f"may still be reading it; {giver.describe(copy)} issues a {copy.what} into it at {at(copy.site)}"
    gave = giver.arrivals.get(empty)
    fault = giver.fault_at(faults.ReadAfterRelease, what, gave, empty)
    fault.rule = GROUP_KINDS["wgmma"].rule
    fault.cure = f"Call {call}, in all threads of the warpgroup, before the release at {at(gave)}."
    return fault

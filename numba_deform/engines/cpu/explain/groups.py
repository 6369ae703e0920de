"""What copies and products lack that a group completes: a commit, a wait, or a barrier after the wait; and what
is wrong where a block has ended: copies that nobody has waited for, and who touches its memory."""

import re
from typing import NamedTuple

from ... import faults
from ...waiting import ranges
from ..memory.access_records import ZEROS
from .arrivals import too_few_bytes


class GroupKind(NamedTuple):
    """What reports say of asynchronous work of one kind, which its group completes."""

    name: str  # that its commit_group and wait_group begin with
    place: str  # where these have to be called
    rule: str


GROUP_KINDS = {
    "bulk": GroupKind(
        "cp_async_bulk", "in the thread that issued the copy",
        "A bulk or tensor store reads shared memory and writes global memory until its bulk group has been "
        "waited for, by the thread that issued it (PTX 9.7.9.25.6.2); for other threads, a barrier after that.",
    ),
    "cp.async": GroupKind(
        "cp_async", "in the thread that issued the copy",
        "What cp.async copies is there for its own thread once it has waited for the group, and for others "
        "past a barrier after that wait (PTX 9.7.9.25.3.3).",
    ),
    "wgmma": GroupKind(
        "wgmma", "in all threads of the warpgroup",
        "A wgmma.mma_async reads shared memory until its group has been waited for, by a thread of its "
        "warpgroup (PTX 9.7.15.7.3); for other threads, a barrier after that.",
    ),
}  # fmt: skip

ONE_LINE = ("One line issues both: give each thread that comes there a place of its own, say by its lane, or "
            "let one thread copy for all.")  # fmt: skip
ONE_STEP = ("Give each of the two a place of its own. If this one is of a later step, issue it once the group "
            "of the earlier was committed (cp_async_commit_group), waited for and read, and a barrier "
            "(syncthreads) passed.")  # fmt: skip
OVERRUN = ("To wait here would not do: what the earlier copy brings would be lost before anybody has read it. "
           "Issue one stage less ahead, and fill a stage again only once it was waited for and read, and a "
           "barrier (syncthreads) passed; or give the ring one stage more.")  # fmt: skip


def explain_copy(fault, thread, copy):
    """Have ``fault`` of ``thread`` say what the group of ``copy`` lacks, which no mbarrier completes."""
    issuer = copy.block.threads[copy.tid]
    kind = next((kind for kind in ("cp.async", "wgmma") if copy.what.startswith(kind)), "bulk")
    groups = issuer.groups[kind]
    owner = groups.done_component if kind == "cp.async" else groups.read_component
    return explain_group(fault, thread, issuer, owner, copy.phase)


def explain_lost(fault, thread, copy, newer):
    """The same where ``newer`` goes to the bytes of ``copy``: after a wait alone nobody has read them."""
    fault, issuer = explain_copy(fault, thread, copy), copy.block.threads[copy.tid]
    apart = newer.phase - copy.phase if newer.barrier is None else -1  # groups
    own, wait = newer.tid == copy.tid, fault.cure
    if apart == 0 and not own and copy.site == newer.site:
        fault.cure = ONE_LINE
    elif issuer.seen[issuer.groups["cp.async"].done_component] >= copy.phase:
        fault.cure += " Who is to read what the earlier copy has brought does so before that barrier."
    else:
        room = f": with this copy {apart + 1} groups are under way, and there is room for {apart}"
        fault.cure = f"The ring is overrun{room * (own and apart > 0)}. {OVERRUN}" if apart else ONE_STEP
        fault.rule = "A destination belongs to one copy until that was waited for; what two of them leave "
        fault.rule += "there is undefined (PTX 9.7.9.25.3.2)."
        if copy.what == ZEROS:
            fault.cure = f"If this one is to replace those zeros: {wait} Otherwise: {fault.cure}"
    return fault


def explain_group(fault, thread, issuer, owner, number):
    """The same for group ``number`` of the thread ``issuer``. ``owner``: the group's entry in the clocks. Other
    copies than those of groups are complete by an mbarrier."""
    found = [(k, g) for k, g in issuer.groups.items() if owner in (g.read_component, g.done_component)]
    if not found:
        fault.rule = "A copy reads its source until a wait for its phase of the mbarrier has returned."
        fault.cure = "Wait on the barrier that the copy signals before its source is written."
        return fault
    if issuer is not thread:
        thread.let_others_come()  # what the issuer is still to commit may stay open
    [(key, groups)] = found
    kind, who = GROUP_KINDS[key], thread.describe_tid(issuer.block, issuer.tid)
    own, ended = thread.groups.get(key), groups.number > number
    if key == "cp.async" and own and issuer is not thread and number > own.number - ended:
        fault.cure = "Put a barrier (syncthreads) behind this read, before copies of the next round are "
        fault.cure += "issued: its thread has not come to the round that this copy is of."
        fault.rule = "A stage is filled again when all have read it."
        fault.add(f"{who} is a round ahead")
        return fault
    barrier = next((barrier for last, barrier in groups.arrivals if number <= last), None)
    if barrier is not None:
        fault.cure = f"Wait on {barrier.name}, for the phase in which the arrival counts, before this."
        fault.rule = "What cp.async copies is there for whoever has waited for the phase of the mbarrier "
        fault.rule += "on which its cp.async.mbarrier.arrive counts (PTX 9.7.13.15.15)."
        fault.add(f"{who} left an arrival on {barrier.name} to it; nothing orders that phase before this")
        return fault
    if key == "wgmma":  # all threads of the warpgroup commit and wait: who is furthest tells of the others
        mates = (t for t in issuer.block.threads if t.tid // 128 == issuer.tid // 128 and key in t.groups)
        issuer, who = max(mates, key=lambda t: t.groups[key].number), "its warpgroup"
        groups = issuer.groups[key]
    what, fault.cure = _lacks(kind, groups, thread, issuer, owner, number)
    if groups.arrivals and groups.number == number:  # those that it has left are for earlier copies
        [*_, (_, barrier)], name = groups.arrivals, "cp_async_mbarrier_arrive"
        fault.cure = f"Leave the arrival on the barrier ({name}) behind this copy: it counts what its thread "
        fault.cure += f"has issued before it. The last one, on {barrier.name} at "
        fault.cure += f"{thread.at(issuer.arrivals.get(barrier))}, comes before the copy."
    if not isinstance(fault, faults.CopyOutlivesBlock):
        fault.rule = kind.rule
    elif kind.name == "cp_async_bulk":
        commit = "cp_async_bulk_commit_group() and " * (groups.number == number)
        fault.cure = f"Call {commit}cp_async_bulk_wait_group(0) (its .read form is enough) behind the last "
        fault.cure += f"copy, {kind.place}, before that ends."
    fault.add(f"{who} {what}")
    return fault


def _lacks(kind, groups, thread, issuer, owner, number):
    """(what has not been done about group ``number``, what would mend it), in words."""
    if issuer.seen[owner] >= number:
        which = "syncthreads, syncwarp" if issuer.warp == thread.warp else "syncthreads"
        cure = f"Put a barrier ({which}) between {kind.name}_wait_group and this."
        if issuer.block is not thread.block:
            cure = f"Release after {kind.name}_wait_group in its block, and acquire in this one before this."
        return "has waited for its group, and nothing orders that wait before this", cure
    form = ""
    if kind.name == "cp_async_bulk":
        form = ", not its .read form" if owner == groups.done_component else " (its .read form is enough)"
    later = " It waits for the calling thread's groups only: the others need a barrier (syncthreads) after it."
    if groups.number == number:
        commit = f"Call {kind.name}_commit_group() and then {kind.name}_wait_group(0){form}, {kind.place}."
        return "has not committed it to a group", commit + later
    pending, site, last = groups.waited
    left = last >= number  # open, by a wait that came after its commit
    most = sum(number < n <= last if left else number < n for n, _ in groups.committed)
    what, where = "has not waited for its group", f", {kind.place}, before this"
    if left:
        what += f": {kind.name}_wait_group({pending}), at {thread.at(site)}, leaves it open"
        where = " there"
    most_open = f"{most} is the most groups that may stay open."
    return what, f"Call {kind.name}_wait_group({most}){form}{where}: {most_open}{later}"


def wait_for_product(thread, site):
    """The call that waits for the product issued at ``site``: of nd's object for products, or an intrinsic."""
    found = re.search(r"(\w+)\.add(?:_held)?\((\w+),", thread.line(site))
    return f"{found[1]}.wait({found[2]}, 0)" if found else "wgmma_wait_group(0)"


def released_in_flight(copy, giver, name, r):
    """The fault of the thread ``giver``, which gave back a stage that a product, the reader ``r``, reads."""
    empty, call, at = copy.last_wait.barrier, wait_for_product(giver, r.site), giver.at
    late = "for which it waits later" if giver.seen[r.owner] >= r.clock else "which it has not waited for"
    what = f"arrives on {empty.name}, which gives {name} back, while the product of {at(r.site)}, {late}, "
    what += f"may still be reading it; {giver.describe(copy)} issues a {copy.what} into it at {at(copy.site)}"
    gave, groups = giver.arrivals.get(empty), giver.block.threads[r.tid].groups["wgmma"]
    commit = "wgmma_commit_group() behind the product, and then " * (groups.number == r.clock)
    cure = f"Call {commit}{call}, in all threads of the warpgroup, before the release at {at(gave)}."
    rule = GROUP_KINDS["wgmma"].rule
    return giver.fault_at(faults.ReadAfterRelease, what, gave, empty, rule=rule, cure=cure)


# --- where a block has ended -----------------------------------------------------------------------------
def outlives(block, copy):
    """The fault of whoever issued ``copy``, for which nobody in ``block`` has waited."""
    barrier, thread = copy.barrier, copy.block.threads[copy.tid]
    if barrier and (fault := too_few_bytes(copy)):
        return fault
    name = block.shared.name_of(copy.address)
    what = f"all threads have exited, and nobody has waited for the {copy.what} to {name}"
    if copy.block is not block:
        what = what.replace("threads", f"threads of block {block.index}") + f" of block {block.index}"
    fault = thread.fault_at(faults.CopyOutlivesBlock, what, copy.site, barrier or name)
    if copy.block is not block:
        fault.cure = f"Have block {block.index} wait on {barrier.name}, for the phase in which the copy "
        fault.cure += "counts, before it ends."
    elif not barrier:
        fault = explain_copy(fault, thread, copy)
        fault.waiver = "store-at-exit" if copy.is_committed() else None
    elif late := [t for t in block.threads if barrier in t.waits]:
        _, phase, site, *_ = max((t.waits[barrier] for t in late), key=lambda wait: wait.phase)
        fault.cure = f"Nobody waits for phase {copy.phase} of {barrier.name}, in which the copy counts: the "
        fault.cure += f"last wait, of {ranges([t.tid for t in late])} at {thread.at(site)}, was for phase "
        fault.cure += f"{phase}. Let both sides take as many steps, or wait for it as well."
    return fault


def visits_ended(block, thread, visit):
    """The fault of ``thread``, which touches memory of ``block`` that may be gone; ``visit`` as in Cluster."""
    _, site, what, barrier, _ = visit
    what = f"{what()} of block {block.index}, which may have ended: nothing says that it waits for this"
    fault = thread.fault_at(faults.BlockEnded, what, site)
    if barrier is not None:
        fault.cure = f"Have block {block.index} wait on {barrier.name} for what is on its way there, before it "
        fault.cure += "ends; or have all threads of the cluster call cluster_arrive() and cluster_wait() after "
        fault.cure += "that."
    return fault


def sends_after_its_end(block, thread, site, what, barrier):
    """The fault of ``thread``, which issued a copy, ``what``, out of the memory of ``block``, that nobody knows
    to be complete."""
    what = f"all threads have exited, and nobody knows that the {what} is complete, which reads shared memory "
    fault = thread.fault_at(faults.CopyOutlivesBlock, f"{what}of this block", site, barrier)
    if barrier.block is not block:
        fault.cure = "Call cluster_sync() in all threads of the cluster at the end, in block "
        fault.cure += f"{barrier.block.index} after its wait on {barrier.name}, which is for its own."
    return fault

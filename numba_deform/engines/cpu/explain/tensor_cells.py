"""Tensor memory that is read or written while an operation of tcgen05 may still be at work on it, or before any
was, and shared memory that a product of tcgen05 may still read."""

import numpy as np

from ... import faults
from ..async_units.tensor_memory import WAITS

GARBAGE = "Tensor memory holds garbage until a product or tcgen05.st has written it (PTX 9.7.16)."
UNTIL_COMMIT = "A tcgen05.mma reads shared memory until a tcgen05.commit behind it has arrived (PTX 9.7.16.6)."


def unwritten_cell(memory, access):
    """The fault of an access that reads what nothing has written."""
    lane, column = np.argwhere(memory.writer[access.lanes, access.columns] == 0)[0].tolist()
    place = f"lane {access.lanes[lane]}, column {access.columns.start + column}"
    what = f"{access.what} reads {place} of tensor memory, which nothing has written"
    cure = "Have the first product write it (enable-input-d false), or store zeros; and compare lanes and "
    cure += "columns with those that are written."
    return access.thread.fault_at(faults.UninitialisedRead, what, access.site, rule=GARBAGE, cure=cure)


def cells_in_flight(access, before, verb, replaced=None):
    """The fault of an access to cells that ``before`` reads or writes (``verb``), perhaps still.
    ``replaced``, if it reads what that writes: (the writes before that, Pipes that have read what these wrote,
    its issuer's clock)."""
    thread = next((t for t in access.threads if not before.is_over(t)), access.thread)
    issuer, wait = before.thread, WAITS.get(before.kind)
    writes, readers, clock = replaced or ((), (), 0)
    if access.pipe not in readers and not thread.knows_shared(issuer.block, issuer.tid, clock):
        if meant := next((write for write in writes if write.is_over(thread)), None):
            return _written_too_early(access, before, meant)
    who = "it" if issuer is thread else thread.describe_tid(issuer.block, issuer.tid)
    what = f"{access.what} of cells that {who} {verb} by {before.what} at {thread.at(before.site)}"
    kind, cure = faults.TensorInFlight, None
    if wait and before.is_over(issuer):
        kind, what = faults.DataRace, f"{what}; nothing orders that before this"
        cure = "Have both sides meet behind that one's tcgen05.wait: by tcgen05.fence::before_thread_sync, a "
        cure += "barrier, tcgen05.fence::after_thread_sync."
        released = thread.last_wait and thread.last_wait.barrier
        if released in issuer.arrivals:
            fence = " and tcgen05.fence::before_thread_sync" * bool(thread.pipes_heard)  # of relaxed waits
            cure = f"Let {who} arrive on {released.name}, at {thread.at(issuer.arrivals[released])}, behind "
            cure += f"that one's tcgen05.wait{fence}; or wait here for a later arrival."
    elif wait:
        same = issuer.warp == thread.warp
        where = "between the two" if same else "in that warp behind it, and meet that warp, before this"
        cure = f"Call {wait} {where}."
    elif access.kind == before.kind == "mma" and thread.block is not issuer.block:
        cure = "One of the two blocks issues the products of a pair: have the other only load and wait."
    elif access.kind == "mma" and thread.at(before.site) == thread.at(access.site) and issuer is not thread:
        cure = "Let one thread issue it, say that of elect.sync: each that executes it issues a product."
    elif before.site == access.site and verb == "reads":
        cure = "Give D columns that A does not have."
    heard = thread.pipes_heard[0][0] if thread.pipes_heard and issuer.block is thread.block else ()
    if before.pipe.component < len(heard) and heard[before.pipe.component] >= before.number:
        cure = "Put tcgen05.fence::after_thread_sync between the relaxed wait for that and this."
    elif mate := next(filter(before.is_over, access.threads), None):
        cure = f"Put __syncwarp() behind the wait of thread {mate.tid}, or let all lanes of its warp wait."
    fault = thread.fault_at(kind, what, access.site, cure=cure)
    if cure is None:
        _wait_for_product(fault, thread, before.pipe, before.number, -1)
        if access.kind == "mma":
            fault.cure += " Whoever reads that product has to be waited for as well."
    return fault


def _written_too_early(access, before, meant):
    """The fault of ``before``, which writes cells again that ``access`` is to read as ``meant`` wrote them."""
    thread, reader = before.thread, access.thread
    who = "it" if thread is reader else thread.describe_tid(reader.block, reader.tid)
    what = f"{before.what} of cells that {who} has yet to read, by {access.what} at {thread.at(access.site)}, "
    what += f"as {meant.what} at {thread.at(meant.site)} wrote them"
    told = "tcgen05.commit" if access.kind == "mma" else "release behind tcgen05.wait::ld"
    cure = f"Wait, before this, until {who} has read them: for its {told}."
    return thread.fault_at(faults.DataRace, what, before.site, cure=cure)


def _wait_for_product(fault, thread, pipe, number, which=0):
    """Say of a product, number n of a Pipe, which commit would tell a thread that it is over: ``which`` of
    those behind it, the first or the last, unless the thread has waited for one."""
    commits = [each for each in pipe.commits if each[0] >= number]
    if not commits:
        fault.add("no tcgen05.commit follows it")
        fault.cure = "Put tcgen05.commit behind it, and wait on its mbarrier before this."
        return
    waited = [thread.waits[barrier] for _, barrier, _ in commits if barrier in thread.waits]
    last = max(waited, key=lambda wait: wait.last, default=None)
    _, barrier, site = next((each for each in commits if last and each[1] is last.barrier), commits[which])
    fault.add(f"its tcgen05.commit at {thread.at(site)} signals {barrier.name}")
    fault.cure = f"Wait on {barrier.name}, for the phase that the commit completes, before this."
    others = [b.name for b in thread.waits if any(b is of for _, of, _ in pipe.commits)]
    if others and not last:
        fault.cure += f" It has waited on {others[-1]}: or are other columns meant, that product's?"
    earlier = [site for n, b, site in pipe.commits if b is barrier and n < number]
    if last and earlier:
        fault.cure += f" It has waited for phase {last.phase}, which the commit at {thread.at(earlier[0])} has "
        fault.cure += "completed before: let the commit of each accumulator signal that one's barrier alone."


def tensor_pipe(r):
    """The Pipe of the tcgen05.mma that is the reader ``r`` of shared memory; None of another reader."""
    pipes = r.block.tensor_memory.pipes.values() if r.block.tensor_memory else ()
    return next((pipe for pipe in pipes if pipe.component == r.owner), None)


def read_by_product(fault, thread, r):
    """Say of a fault, of a thread that writes shared memory that a tcgen05.mma reads, what would mend it."""
    fault.rule = UNTIL_COMMIT
    _wait_for_product(fault, thread, tensor_pipe(r), r.clock)
    return fault


def not_committed(barrier):
    """What is missing where nobody arrives on a barrier, and a thread of its block is done with its products: a
    cure in words, or None."""
    block = barrier.block
    for (kind, tid), pipe in (block.tensor_memory.pipes.items() if block.tensor_memory else ()):
        if kind != "mma" or any(to is barrier for _, to, _ in pipe.commits):
            continue
        thread, copies = block.threads[tid], [each for each in pipe.copies if each.phase == pipe.number]
        if not thread.dead and isinstance(thread.waiting[1], type(barrier)):
            continue
        if copies:
            return (f"Thread {tid} has issued products, the last at {thread.at(copies[-1].site)}, and no "
                    f"tcgen05.commit behind them: have it commit them on {barrier.name}.")  # fmt: skip
        if pipe.commits:
            _, to, site = pipe.commits[-1]
            return (f"Thread {tid} commits its products, last at {thread.at(site)}, on {to.name} and never on "
                    f"{barrier.name}: is that one meant?")  # fmt: skip
    return None


def issues_products(thread):
    """Whether a thread has issued a tcgen05.mma."""
    memory = thread.block.tensor_memory
    return memory is not None and ("mma", thread.tid) in memory.pipes


def released_too_early(copy, giver, name, r):
    """The fault of the thread ``giver``, which gives a stage back by itself, or by a tcgen05.commit before its
    tcgen05.mma, while that, the reader ``r``, may read it."""
    empty, at = copy.last_wait.barrier, giver.at
    gave, back = giver.arrivals.get(empty), f"on {empty.name}, which gives {name} back,"
    if gave in [site for _, barrier, site in tensor_pipe(r).commits if barrier is empty]:
        what = f"commits {back} before the product at {at(r.site)}, which may still be reading it"
        cure = f"Put the tcgen05.commit behind the product at {at(r.site)}: it tells of what comes before it."
    else:
        what = f"arrives {back} while the product of {at(r.site)} may still be reading it"
        cure = f"Let tcgen05.commit arrive on {empty.name}, in place of the thread at {at(gave)}."
    what += f"; {giver.describe(copy)} issues a {copy.what} into it at {at(copy.site)}"
    return giver.fault_at(faults.ReadAfterRelease, what, gave, empty, rule=UNTIL_COMMIT, cure=cure)

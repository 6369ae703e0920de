"""Tensor memory that is read or written while an operation of tcgen05 may still be at work on it, or before any
was, and shared memory that a product of tcgen05 may still read."""

import numpy as np

from ... import faults
from ..async_units.tensor_memory import WAITS


def unwritten_cell(memory, access):
    """The fault of an access that reads what nothing has written."""
    lane, column = np.argwhere(memory.writer[access.lanes, access.columns] == 0)[0].tolist()
    place = f"lane {access.lanes[lane]}, column {access.columns.start + column}"
    what = f"{access.what} reads {place} of tensor memory, which nothing has written"
    rule = "Tensor memory holds garbage until a product or tcgen05.st has written it (PTX 9.7.16)."
    cure = "Have the first product write it (enable-input-d false), or store zeros; and compare lanes and "
    cure += "columns with those that are written."
    return access.thread.fault_at(faults.UninitialisedRead, what, access.site, rule=rule, cure=cure)


def cells_in_flight(access, before):
    """The fault of an access to cells that ``before`` may still be at work on."""
    thread, issuer, wait = access.thread, before.thread, WAITS.get(before.kind)
    who = "it" if issuer is thread else thread.describe_tid(issuer.block, issuer.tid)
    verb = "reads" if before.kind == "ld" else "writes"
    what = f"{access.what} of cells that {who} {verb} by {before.what} at {thread.at(before.site)}"
    if wait and before.is_over(issuer):
        cure = "Have both sides meet behind that one's tcgen05.wait: by tcgen05.fence::before_thread_sync, a "
        cure += "barrier, tcgen05.fence::after_thread_sync."
        what += "; nothing orders that before this"
        return thread.fault_at(faults.DataRace, what, access.site, cure=cure)
    fault = thread.fault_at(faults.TensorInFlight, what, access.site)
    if wait:
        same = issuer.warp == thread.warp
        where = "between the two" if same else "in that warp behind it, and meet that warp, before this"
        fault.cure = f"Call {wait} {where}."
        return fault
    if access.kind == before.kind == "mma" and thread.block is not issuer.block:
        fault.cure = "One of the two blocks issues the products of a pair: have the other only load and wait."
        return fault
    return _with_its_commit(fault, thread, before.pipe, before.number)


def _with_its_commit(fault, thread, pipe, number):
    """The same, with a cure: to wait for a commit behind the product ``number`` of ``pipe``."""
    commits = [each for each in pipe.commits if each[0] >= number]
    if not commits:
        fault.add("no tcgen05.commit follows it")
        fault.cure = "Put tcgen05.commit behind it, and wait on its mbarrier before this."
        return fault
    _, barrier, site = next((each for each in commits if each[1] in thread.waits), commits[0])
    fault.add(f"its tcgen05.commit at {thread.at(site)} signals {barrier.name}")
    fault.cure = f"Wait on {barrier.name}, for the phase that the commit completes, before this."
    waited = [b.name for b in thread.waits if any(b is of for _, of, _ in pipe.commits)]
    if waited and barrier not in thread.waits:
        fault.cure += f" It has waited on {waited[-1]}: or are other columns meant, that product's?"
    return fault


def pipe_of(r):
    """The Pipe of the reader ``r`` of shared memory, if that is a tcgen05.mma; else None."""
    pipes = r.block.tensor_memory.pipes.values() if r.block.tensor_memory else ()
    return next((pipe for pipe in pipes if pipe.component == r.owner), None)


def read_in_flight(fault, thread, r):
    """The fault of ``thread``, which writes what the tcgen05.mma ``r`` may still read, with a cure."""
    return _with_its_commit(fault, thread, pipe_of(r), r.clock)


def issues_products(thread):
    """Whether a thread has issued a tcgen05.mma."""
    memory = thread.block.tensor_memory
    return memory is not None and ("mma", thread.tid) in memory.pipes


def given_by_commit(copy, giver):
    """Whether the thread ``giver`` gave the stage of ``copy`` back by a tcgen05.commit."""
    commits = giver.block.tensor_memory.pipe("mma", giver.tid).commits
    return any(barrier is copy.last_wait.barrier for _, barrier, _ in commits)


def released_by_arrival(copy, giver, name, r):
    """The fault of the thread ``giver``, which gives a stage back by itself while a tcgen05.mma, the reader
    ``r``, may read it."""
    empty, at = copy.last_wait.barrier, giver.at
    gave = giver.arrivals.get(empty)
    what = f"arrives on {empty.name}, which gives {name} back, while the product of {at(r.site)} may still be "
    what += f"reading it; {giver.describe(copy)} issues a {copy.what} into it at {at(copy.site)}"
    rule = "A tcgen05.mma reads shared memory until a tcgen05.commit behind it has arrived (PTX 9.7.16.6)."
    cure = f"Let tcgen05.commit arrive on {empty.name}, in place of the thread at {at(gave)}."
    return giver.fault_at(faults.ReadAfterRelease, what, gave, empty, rule=rule, cure=cure)

"""What is wrong where a block has ended: copies that nobody has waited for, and who touches its memory."""

from ... import faults
from ...waiting import ranges
from .arrivals import too_few_bytes
from .groups import explain_copy


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

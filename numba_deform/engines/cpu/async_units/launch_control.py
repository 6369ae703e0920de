"""``clusterlaunchcontrol`` (PTX ISA 9.7.13.17, 9.7.13.18): a block asks that a cluster that has not started
never does, and takes its work. By PTX's text: never run beside hardware.

The answer, 16 bytes, comes as a copy does: by the async proxy, counted by an mbarrier. PTX leaves open what its
bytes say; here they are the first block's place and one of two words.
"""

from ... import faults
from ..memory.scalars import WORD, Undefined
from .copy_engine import Box

BASIS = "clusterlaunchcontrol is judged by PTX's text alone: no GPU that has it has run this engine's tests"
WHAT, SIZE = "clusterlaunchcontrol.try_cancel", 16
REFUSED, CANCELED = 0xC1C00000, 0xC1C00001  # the answer's last word


def try_cancel(thread, dst, bar, everywhere):
    """Issue a request; ``everywhere``: each block of the cluster gets the answer, at the same place."""
    block, dst = thread.block, dst & WORD
    cluster, engine, execution = block.cluster, block.copy_engine, block.execution
    execution.basis = execution.basis or BASIS
    if execution.by_choice:
        raise thread.fault(faults.KernelError, f"{WHAT}: explore and its schedules do not know it")
    for barrier, phase in cluster.refusals:
        if barrier.block is block and any(t.seen[barrier.component] > phase for t in block.threads):
            what = f"{WHAT}, after a wait on {barrier.name} for one that had failed"
            raise thread.fault(faults.CancelMisuse, what, barrier)
    engine.check_aligned(thread, dst, SIZE, "response")
    # A request may fail whatever the grid has left; the order 0 has none that does.
    numbers = () if block.chance(0.25) else execution.cancel()
    if not numbers:
        live = (each.barriers.live.get(bar) for each in (cluster.blocks if everywhere else [block]))
        cluster.refusals += [(barrier, barrier.phase) for barrier in live if barrier]
    (x, y, _), first = execution.grid_shape, numbers[0] if numbers else 0
    words = first % x, first // x % y, first // (x * y), CANCELED if numbers else REFUSED
    box = Box(WHAT, SIZE, SIZE, [], lambda: b"".join(word.to_bytes(4, "little") for word in words))
    if everywhere:
        cluster.multicast(thread, cluster.blocks, dst, bar, box)
    else:
        engine.load_box(thread, dst, bar, box)


def is_canceled(thread, response):
    """Whether a request's answer is that a cluster has been cancelled."""
    last = int(response) >> 96
    if last not in (REFUSED, CANCELED):
        raise thread.fault(faults.CancelMisuse, f"query_cancel of {int(response):#x}, which is no answer")
    return last == CANCELED


def first_block(thread, response, may_go_unused):
    """(x, y, z) of the first block of the cluster that has been cancelled."""
    if not is_canceled(thread, response):
        if may_go_unused:
            return (Undefined("get_first_ctaid of an answer that nothing was cancelled", "cancel"),) * 3
        raise thread.fault(faults.CancelMisuse, "get_first_ctaid of an answer that nothing was cancelled")
    return tuple(int(response) >> 32 * n & WORD for n in range(3))

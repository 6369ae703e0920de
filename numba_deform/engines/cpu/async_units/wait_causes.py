"""What the waits of a block's threads say of a fault that is a consequence of them. ``ResidentBlocks`` asks
when a block ends with one."""

import inspect

from ... import faults
from ..reports.call_sites import place
from ..reports.source_order import wrong_divisor
from .arrivals import RING, States

# What comes of a wait for another phase than was meant, and of copies issued by another than who waits.
ASTRAY = (faults.StaleWait, faults.RefillRace, faults.MissedPhase, faults.TooManyArrivals,
          faults.UnobservedPhase, faults.MissingArrivals)  # fmt: skip
UNGUARDED = faults.RefillRace, faults.CopyCollision, faults.TooManyArrivals, faults.UnobservedPhase


def explain(fault, block):
    """Blame a wait for ``fault``, where one is its cause."""
    function = block.execution.function
    names = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    for site in _waits(block) if isinstance(fault, ASTRAY) else ():
        if cure := wrong_divisor(site, names):
            fault.cure, (fault.where, fault.source) = cure, place(site)
            return
    ring = isinstance(fault, faults.StaleWait) and RING.fullmatch(fault.barrier or "")
    if ring:
        fault.cure = States(block, ring[1]).cure()
    if isinstance(fault, UNGUARDED) and fault.thread is not None:
        fault.cure = _by_another(block.threads[fault.thread]) or fault.cure


def _waits(block):
    """The places of all waits on mbarriers, of which each thread has made its last."""
    live = [t for t in block.threads if not t.dead]
    parked = [t.site() for t in live if t.waiting and t.waiting[0] == "mbarrier"]
    return dict.fromkeys([*parked, *(wait[1] for t in block.threads for wait in t.waits.values())])


def _by_another(thread):
    """The cure where ``thread`` issues copies, and another lane of its warp waits for the stage."""
    issues = any(thread.tid in barrier.issuers for barrier in thread.block.barriers.live.values())
    mates = [t for t in thread.block.threads if t.warp == thread.warp and t.last_wait]
    if not issues or thread.last_wait or not mates:
        return ""
    barrier, _, site = mates[0].last_wait
    return (f"Thread {mates[0].tid} waits for the stage to be empty, on {barrier.name} at {thread.at(site)}; "
            f"thread {thread.tid} fills it without knowing of that: let one thread wait and issue, or put "
            "cuda.syncwarp() between the wait and what comes after it.")  # fmt: skip

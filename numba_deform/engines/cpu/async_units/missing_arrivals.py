"""Who could end a wait on an mbarrier where nobody gets on, and what would mend it. ``mbarrier`` asks.

Each function of ``CURES`` looks for one cause, and has its cure in words; nothing where it does not find it.
"""

import re

from ...waiting import have, ranges
from ..reports.source_order import has_left

RING = re.compile(r"(.+)\.(full|empty)\[\d+\]")  # the name of a barrier of a Ring


class Phase:
    """The current phase of a barrier on which threads wait."""

    def __init__(self, barrier):
        self.barrier, self.threads = barrier, barrier.block.threads
        self.done = barrier.arrived.keys() | barrier.dropped
        self.late = barrier.arrivers - self.done  # who has arrived in phases before
        self.here = {t.tid for t in self.threads if not t.dead and t.waiting[1] is barrier}
        self.others = [block for block in barrier.block.cluster.blocks if block is not barrier.block]

    def places(self, tids):
        """Where threads stand, in words."""
        ended = ["exited since"] * any(self.threads[t].dead for t in tids)
        sites = {t.at(t.site()) for t in map(self.threads.__getitem__, tids) if not t.dead}
        return " or ".join([*ended, *(f"at {site} by now" for site in sorted(sites))])


def who_could(barrier):
    """Who could end a wait for the current phase of ``barrier``, how that is known, whether the cause is here
    for sure, and the cure: fields of a ``Wait``."""
    phase, threads = Phase(barrier), barrier.block.threads
    by, why, root = phase.late, "arrived here before", any(threads[t].dead for t in phase.late)
    if not barrier.pending:
        by, root = barrier.issuers, True
        why = "issued copies here before" if by else "no thread has issued a copy here"
    elif not by and (barrier.far or barrier.last_far) and not phase.done | barrier.arrivers:
        why = "all arrivals so far came from other blocks"
    elif not by:  # whose arrival is missing is not known
        late = {t.tid for t in threads} - phase.done
        by = late - phase.here or late
        why = "not arrived in this phase" if by else ""
    cure = next((cure for find in CURES if (cure := find(phase))), "")
    return {"by": tuple(sorted(by)), "why": why, "root": root, "cure": cure}


def _never_came(phase):
    """The announcement in this phase was of more bytes than have come."""
    barrier, last = phase.barrier, phase.barrier.announced
    if barrier.pending or phase.others or last is None or last.phase != barrier.phase:
        return ""
    came = last.bytes - barrier.tx
    return came > 0 and (
        f"{last.bytes} bytes are announced in this phase, at {last.thread.at(last.site)}, and its "
        f"copies have brought {came}. Announce {came}, or issue the copies of the other {barrier.tx}: a "
        "copy by a tensor map brings the box of that map."
    )


def _not_announced(phase):
    """Bytes have come, and nobody has announced them."""
    more = -phase.barrier.tx if phase.barrier.pending else 0
    return more > 0 and (
        f"Announce the {more} bytes that come in this phase, and arrive: "
        f"mbarrier_arrive_expect_tx(bar, {more}), or expect of a Ring or Barrier."
    )


def _other_parity(phase):
    """All who wait here have yet to wait for the phase before."""
    barrier, waiters = phase.barrier, [phase.threads[t] for t in phase.here]
    if not waiters or any(barrier.phases_over(thread.seen) >= barrier.phase for thread in waiters):
        return ""
    over, ring = barrier.phase - 1, RING.fullmatch(barrier.name)
    mend = f"is its state advanced once a use, by {ring[1]}.advance" if ring else f"wait with parity {over & 1}"
    return (
        f"This wait, with parity {barrier.phase & 1}, is for phase {barrier.phase}. Phase {over} of "
        f"{barrier.name} is over, and {ranges(sorted(phase.here))} never waited for it: {mend}?"
    )


def _nobody_left(phase):
    """Who made its arrivals has ended, or has left the loop in which it did."""
    barrier, by = phase.barrier, sorted(phase.late)
    if not by or not all(t.dead or has_left(t.arrivals.get(barrier), t.calls())
                         for t in map(phase.threads.__getitem__, by)):  # fmt: skip
        return ""
    loop = ", behind the loop" * any(not phase.threads[t].dead for t in by)
    times = f"{barrier.phase} phase{'s' * (barrier.phase > 1)}"
    return (
        f"The arrivals of {times} so far were made by {ranges(by)}, {phase.places(by)}{loop}, and this "
        "is a wait for one more: let both sides take as many steps, each with its state advanced once a "
        "step; or arrive once more, to tell who waits that there is no more."
    )


def _beside(phase):
    """The threads whose arrivals are missing stand where others do that have arrived, or have ended."""
    barrier, threads = phase.barrier, phase.threads
    arrived = sorted(barrier.arrived)
    mates = {t.tid for t in threads if any(t.warp == tid >> 5 for tid in arrived)}
    late = sorted(phase.late or mates - phase.done)
    places = {(threads[t].waiting[1], threads[t].site()) for t in arrived if not threads[t].dead}
    if not arrived or len(late) != barrier.pending or not all(
        threads[t].dead or (threads[t].waiting[1], threads[t].site()) in places for t in late
    ):  # fmt: skip
        return ""
    return (
        f"{barrier.name} has {barrier.expected - barrier.pending} of the {barrier.expected} arrivals of phase "
        f"{barrier.phase}: {ranges(arrived)} {have(arrived)} arrived, and {ranges(late)}, "
        f"{phase.places(late)}, {have(late)} not. Let each thread that the count names arrive in every phase, "
        "also where it has nothing to load or to read."
    )


def _never_released(phase):
    """Nobody has ever arrived on a barrier that a producer waits for, though stages have been read."""
    barrier, ring = phase.barrier, RING.fullmatch(phase.barrier.name)
    if barrier.phase or barrier.pending < barrier.expected:
        return ""
    first = all(barrier not in phase.threads[t].waits for t in phase.here)
    again = any(t.waiting[1] in t.waits and t.waits[t.waiting[1]][0] >= 0 for t in phase.threads
                if not t.dead and t.waiting[1] is not barrier)  # fmt: skip
    if first or not again:
        return ""
    missing = f"{ring[1]}.release(state)" if ring else f"an arrival on {barrier.name}"
    return f"Nobody arrives on {barrier.name} after reading a stage: {missing} is missing."


def _in_another_block(phase):
    """The same barrier of another block has arrivals that nobody waits for."""
    for other in phase.others:
        twin = other.barriers.live.get(phase.barrier.address)
        used = twin and (twin.phase or twin.pending < twin.expected)
        if used and not any(twin in thread.waits for thread in other.threads):
            who = ranges(sorted(twin.arrived or twin.last_arrivers))
            return (
                f"{twin.name} of block {other.index}, the same barrier there, has arrivals that nobody "
                f"waits for: {who} of that block made them. Arrive on the barrier of the block that waits: "
                "mbarrier_arrive_cluster(mapa_shared_cluster(bar, rank))."
            )
    return ""


def _never_complete(phase):
    """All who ever arrive have arrived in it."""
    barrier, far = phase.barrier, phase.barrier.far
    came = barrier.expected - barrier.pending
    if not came or phase.late or barrier.last_far.keys() - far.keys():
        return ""
    groups = [(sorted(barrier.arrived), "")] + [
        (sorted(t.tid for t in far if t.block is block), f" of block {block.index}") for block in phase.others
    ]
    count = len(barrier.arrived) + len(far)
    who = f"{count} thread{'s' * (count > 1)} ("
    who += ", ".join(ranges(tids) + of for tids, of in groups if tids) + ")"
    return (
        f"{barrier.name} can never complete: it expects {barrier.expected} arrivals in each phase, and {who} "
        f"can arrive, {came} times in all, and have done so. Initialise it for {came}, or have who is missing "
        "arrive."
    )


CURES = (
    _never_came, _not_announced, _other_parity, _nobody_left, _beside, _never_released, _in_another_block,
    _never_complete,
)  # fmt: skip

"""The entries of a recorded run, which a timeline draws. ``Block.record`` makes them."""

from typing import NamedTuple


class Event(NamedTuple):
    """One entry of a recorded run, in virtual cycles of its block's SM."""

    # issue, flight, wait, arrive, complete: of mbarriers. meet: a wait at a barrier among threads. async: what
    # signals no mbarrier, from its issue to the end of the first wait for its group, if there is one.
    kind: str
    start: float
    end: float
    block: int
    warp: int
    lane: int
    barrier: str  # its name; of async: what it is, such as "bulk store"
    phase: int  # of async: the number of its group
    bytes: int
    address: int  # shared address of a copy's destination
    line: int
    sender: int  # the block whose thread did it, which of a copy may be another of the cluster

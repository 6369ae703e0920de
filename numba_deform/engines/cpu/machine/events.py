"""The entries of a recorded run, which a timeline draws. ``Block.record`` makes them."""

from typing import NamedTuple


class Event(NamedTuple):
    """One entry of a recorded run, in virtual cycles of its block's SM."""

    # issue, flight, wait, arrive, complete; async: what signals no barrier, from its issue on, of a product to
    # its end; meet: a wait at a barrier that is no mbarrier
    kind: str
    start: float
    end: float
    block: int
    warp: int
    lane: int
    barrier: str  # of async: what it is, such as "bulk store"
    phase: int  # of async: the number of its group
    bytes: int
    address: int  # shared address of a copy's destination
    line: int

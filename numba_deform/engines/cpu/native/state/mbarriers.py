"""The mbarriers of a block, whose state machine code reads and changes: a row of words each (``layout``).
``NativeBlock`` has them in place of ``Barriers``."""

import numpy as np

from ...async_units.barriers import Barriers
from ...async_units.mbarrier import MBarrier
from ...memory.restart import Bailout
from ..runtime import layout
from .rows import fill, kept, time_of, word_of


class NativeMBarrier(MBarrier):
    """One of them."""

    phase, pending, tx = word_of(layout.PHASE), word_of(layout.PENDING), word_of(layout.TX)
    component, address = word_of(layout.COMPONENT), word_of(layout.ADDRESS)
    time, done_time = time_of(layout.LATEST), time_of(layout.DONE_TIME)
    gathered = kept("_gathered", lambda array: {"gathered": array})
    released = kept("_released", lambda array: {"released": array})
    init_epoch = kept("epoch", lambda epoch: {"init_owner": epoch[0], "init_clock": epoch[1]})
    released_foreign = kept("foreign", lambda knowledge: {"foreign": bool(knowledge)})
    unfollowed = kept("arrivals", lambda arrivals: {"unfollowed": bool(arrivals)})
    waiter_count = word_of(layout.WAITER_COUNT)

    def __init__(self, block, address, name, count, thread):
        row = np.zeros(layout.BARRIER_WORDS, np.int64)
        self.words, self.doubles, self.at = memoryview(row), memoryview(row.view(np.float64)), row.ctypes.data
        super().__init__(block, address, name, count, thread)
        known, arrived, waited = self.numbers
        fill(self.words, known=known, arrived=arrived, waited=waited, waiters=self.waiting)

    def overtaken(self, waiter):
        return Bailout()  # the interpreter knows where it has waited


class NativeBarriers(Barriers):
    """Those of a block."""

    kind, ROOM = NativeMBarrier, 1024

    def __init__(self, block):
        super().__init__(block)
        self.rows, self.ended = np.zeros(self.ROOM, np.int64), []
        block.words[layout.BARRIERS] = self.rows.ctypes.data

    def _list(self):
        """Let machine code know where they are: the rest of very many are Python's."""
        addresses = [barrier.at for barrier in self.live.values()][: self.ROOM]
        self.rows[: len(addresses)] = addresses
        self.block.words[layout.BARRIER_COUNT] = len(addresses)

    def init(self, thread, address, count):
        super().init(thread, address, count)
        self._list()

    def inval(self, thread, address):
        barrier = self.live.get(address)
        if barrier is not None:
            late = np.flatnonzero(barrier.wait_clocks > thread.clocks[0, : self.block.size])
            if any(late != thread.tid):
                raise Bailout  # a wait in machine code is not ordered before it
        super().inval(thread, address)
        barrier.address = -1
        self.ended.append(barrier)  # who has waited there looks at its row once more
        self._list()

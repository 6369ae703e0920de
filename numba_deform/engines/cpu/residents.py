"""The blocks of a launch: one after the other, and together where one waits for another.

A block runs to its end before the next one starts. One whose threads can only poll stays where it is,
and the next one has its turn; it goes on when others have changed something. So many blocks are there at
once, *resident*, as the GPU has room for: the rest start when others have ended.
"""

from ...device.limits import resident_blocks
from .. import faults
from ..waiting import ranges
from .memory import Rerun


class Residents:
    """The blocks that have started and not ended."""

    def __init__(self, launch, function, args, shared_bytes):
        self.launch, self.function, self.args = launch, function, args
        self.shared_bytes = shared_bytes
        self.waiting = {}  # block -> (changes when it ran last, whether it then ran to no end)
        self.started = self.changes = 0
        self.room = 1

    def run(self):
        """Run all blocks; what each has to say in the end. Raises the first SimFault."""
        summaries = []
        try:
            while self.waiting or self.started < self.launch.blocks:
                block, alone = self._next()
                before = block.progress
                waits = block.run(alone)
                self.changes += block.progress - before
                shared = block.shared.static_bytes + self.shared_bytes
                self.room = resident_blocks(self.launch.threads, shared)
                if waits:
                    self.waiting[block] = self.changes, alone
                else:
                    del self.waiting[block]
                    block.close()
                    summaries.append(block.summary())
        finally:
            for block in self.waiting:
                block.close()
        return summaries

    def _next(self):
        """(the block that runs next, whether no other one can change anything)"""
        launch = self.launch
        if self.started < launch.blocks and len(self.waiting) < self.room:
            if launch.is_slow(self.started):
                raise Rerun
            block = launch.block_type(launch, self.started, launch.threads, self.shared_bytes)
            self.waiting[block] = 0, False
            block.start(self.function, self.args)
            self.started += 1
            return block, launch.blocks == 1
        for block, (seen, _) in self.waiting.items():
            if seen != self.changes:
                return block, False
        for block, (_, alone) in self.waiting.items():
            if not alone:
                return block, True  # it may count how often it looks, and give up
        raise self._stuck()

    def _stuck(self):
        """The fault of blocks that all poll. One that waits for threads of its own holds up the rest."""
        blocks, left = list(self.waiting), self.launch.blocks - self.started
        block = next((b for b in blocks if b.waits_inside()), blocks[0])
        kind, more = faults.Livelock, ""
        if len(blocks) > 1:
            more = f"; {ranges(sorted(b.index for b in blocks), 'block')} all poll"
        if left:
            kind = faults.NotResident
            more += f", no more than these {len(blocks)} have room at once, and {left} have yet to start"
        return block.livelock(more, kind)

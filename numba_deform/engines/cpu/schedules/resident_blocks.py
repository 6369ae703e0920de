"""The blocks of a launch: one after the other, and together where one waits for another.

A block runs to its end before the next one starts. One whose threads can only poll, or wait for other blocks,
stays where it is, and the next one has its turn; it goes on when others have changed something. So many blocks
are there at once, *resident*, as the launch says, or as the GPU has room for: the rest start when others have
ended. The blocks of a cluster start together.
"""

from ... import faults
from ...shapes import clusters
from ...waiting import ranges
from ..explain.waits import blame_waits
from ..memory.restart import Restart


class ResidentBlocks:
    """The blocks that have started and not ended."""

    def __init__(self, execution, function, args, shared_bytes):
        self.execution, self.function, self.args = execution, function, args
        self.shared_bytes = shared_bytes
        self.waiting = {}  # block -> (changes when it ran last, whether it then ran to no end)
        self.clusters = clusters(execution.grid_shape, execution.cluster_shape)
        self.count = execution.blocks  # that are to run
        if execution.only is not None:
            self.clusters, self.count = ((number,) for number in execution.only), len(execution.only)
        self.fresh = []  # started, and have not run
        self.started = self.changes = 0
        self.room = execution.resident or 1
        execution.cancel = self.cancel

    def run(self):
        """Run all blocks; what each has to say in the end. Raises the first SimFault."""
        summaries = []
        try:
            while self.waiting or self.started < self.count:
                block, alone = self._next()
                together = block.cluster.blocks
                before = sum(each.progress for each in together)
                waits = block.run(alone)
                self.changes += max(0, sum(each.progress for each in together) - before)
                self.room = self.execution.room(block)
                if block.gives_way:  # it comes after the others, whatever they do
                    block.gives_way = False
                    del self.waiting[block]
                    self.waiting[block] = -1, False
                elif waits:
                    self.waiting[block] = self.changes, alone
                else:
                    del self.waiting[block]
                    summaries.append(block.summary())
                    block.close()
                    self.execution.ended(1)
        except faults.SimFault as fault:
            for block in self.waiting if not self.execution.machine else ():
                if block.index == fault.block:
                    blame_waits(fault, block)
            raise
        finally:
            for block in self.waiting:
                block.close()
        return summaries

    def _next(self):
        """(the block that runs next, whether no other one can change anything)"""
        execution = self.execution
        size = execution.cluster_size
        if not self.fresh and self.started < self.count and len(self.waiting) + size <= max(self.room, size):
            self._start()
        if self.fresh:
            return self.fresh.pop(0), self.count == 1
        for block, (seen, _) in self.waiting.items():
            if seen != self.changes:
                return block, False
        for block, (_, alone) in self.waiting.items():
            if not alone:
                return block, True  # it may count how often it looks, and give up
        raise self._stuck()

    def _start(self):
        """The blocks of the next cluster start."""
        execution = self.execution
        if execution.is_slow(self.started):
            raise Restart
        numbers, cluster = next(self.clusters), self.started // execution.cluster_size
        self.fresh = [execution.block_type(execution, i, execution.threads, self.shared_bytes) for i in numbers]
        execution.cluster_type(tuple(self.fresh), execution.cluster_shape, cluster)
        for block in self.fresh:
            self.waiting[block] = 0, False
            block.start(self.function, self.args)
        self.started += len(numbers)

    def cancel(self):
        """The numbers of the next cluster's blocks, which never start now; none where all have started."""
        if self.started >= self.count:
            return ()
        numbers = next(self.clusters)
        self.started += len(numbers)
        self.execution.ended(len(numbers))
        return numbers

    def _stuck(self):
        """The fault of blocks that all wait, of the one that the others are the least likely to hold up."""
        blocks, left = [b for b in self.waiting if b.live], self.count - self.started
        block = min(blocks, key=lambda b: b.waits_outside_for())
        kind, more = faults.Livelock, ""
        if len(blocks) > 1:
            who = ranges(sorted(b.index for b in blocks), "block")
            more = f"; {who} all {'poll' if all(b.spinning for b in blocks) else 'wait'}"
        if left:
            kind = faults.NotResident
            more += f", no more than these {len(blocks)} have room at once, and {left} have yet to start"
        return block.livelock(more, kind) if block.spinning else block.deadlock(more)

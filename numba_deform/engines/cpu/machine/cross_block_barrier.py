"""Barriers of more than one block: of a whole grid, and of a cluster.

A block whose threads all stand at one, or wait for another block's threads at an mbarrier, is *parked*: it lets
the next block run, and goes on when others have changed something (``schedules.resident_blocks``).
"""

import numpy as np

from ... import faults
from ...waiting import have, ranges
from ..memory.vector_clocks import CLUSTER, STARTED, merged, raise_to


class CrossBlockBarrier:
    """A barrier of all threads of several blocks, phase after phase.

    ``exited``: threads that have exited are not waited for. What threads release there, in a phase, all that
    wait for it acquire.
    """

    def __init__(self, name, threads, exited, rule):
        self.name, self.threads, self.exited, self.rule = name, threads, exited, rule
        self.blocks = []  # that have started
        self.phase, self.missing, self.gone = 0, threads, 0
        self.come = {}  # (block, thread number) -> (phase, what it knew) at its arrival, until it has waited
        self.arrived, self.parked = set(), []  # (block, thread number) of this phase; threads
        self.own, self.foreign = {}, {}  # what this phase's arrivals hand on: of their blocks, of others
        self.released = {}  # all that, of the phase before
        self.handed = {}  # what is in foreign already, by id
        self.relaxed = {}  # (block, thread number) -> (clock, site) of its last arrival without release
        self.learned = {}  # block -> what released says of other blocks
        self.started, self.time, self.done_time = {}, 0.0, 0.0

    def join(self, block):
        """Add the block's threads to those that are expected."""
        self.blocks.append(block)
        block.cross_block.append(self)
        gone = sum(t.dead and self.excuses(t) for t in block.threads)
        self.gone, self.missing = self.gone + gone, self.missing - gone

    def excuses(self, thread):
        """Whether nobody waits for this thread once it has exited."""
        return self.exited

    def arrive(self, thread, release=True):
        """One arrival, which hands on what its thread did; ``release=False``: what its last fence covers."""
        key = thread.block, thread.tid
        if self not in thread.block.cross_block:
            self.join(thread.block)
        if key in self.come:
            raise thread.fault(self.rule, f"arrives at {self.name} again without having waited there", self)
        self.come[key] = self.phase, thread.foreign if release else None
        self.arrived.add(key)
        _gather(self.started, thread.block, thread.clocks[:1, : thread.block.size])
        if release:
            _gather(self.own, thread.block, thread.clocks)
            self._hand_on(thread.foreign)
            thread.tick()
        else:
            self._hand_on(thread.published[CLUSTER])
            self.relaxed[key] = thread.clock, thread.site()
        self.time = max(self.time, thread.time)
        thread.block.progress += 1
        self.missing -= 1
        self._complete_if_done()

    def wait(self, thread):
        """Wait for the phase in which the thread arrived, and acquire what was released in it."""
        block = thread.block
        if (block, thread.tid) not in self.come:
            raise thread.fault(self.rule, f"waits at {self.name} without having arrived there", self)
        phase, foreign = self.come.pop((block, thread.tid))
        came = thread.time
        if phase == self.phase:
            self.parked.append(thread)
            thread.park(self.name, self, block)
        if thread.foreign is foreign:  # it is part of what has been released, and one copy does for the block
            if block not in self.learned:
                self.learned[block] = {key: known for key, known in self.released.items() if key is not block}
            thread.foreign, block.knows_others = self.learned[block], True
            raise_to(thread.clocks, self.released[block])
        else:
            thread.acquire(self.released)
        thread.time = max(came, self.done_time)
        block.record("meet", thread, came, thread.time, self, phase=0)

    def _hand_on(self, knowledge):
        """What an arrival hands on of other blocks: often the same as the one before it."""
        if id(knowledge) not in self.handed:
            self.handed[id(knowledge)] = knowledge
            self.foreign = merged(self.foreign, knowledge) or {}

    def exits(self, thread):
        """A thread of one of the blocks has ended."""
        key = thread.block, thread.tid
        self.come.pop(key, None)
        if not self.excuses(thread):
            return
        self.gone += 1
        if key not in self.arrived:
            self.missing -= 1
            self._complete_if_done()

    def _complete_if_done(self):
        if self.missing or not self.arrived:
            return
        self.phase += 1
        facts = {(STARTED, block): clocks for block, clocks in self.started.items()}
        self.released = merged(merged(self.foreign, self.own), facts)
        self.own, self.foreign, self.started, self.arrived = {}, {}, {}, set()
        self.handed, self.learned = {}, {}
        self.missing = self.threads - self.gone
        self.done_time = self.time
        for thread in self.parked:
            thread.block.ready.append(thread)
        self.parked = []

    # --- in reports -----------------------------------------------------------------------------------
    def state(self):
        """Its state in words."""
        return f"phase {self.phase}, {self.missing} of {self.threads} threads have not come"

    def waited(self, kind, block):
        """What those of ``block`` who wait here wait for: fields of a ``Wait``."""
        late = [t.tid for t in block.threads if not t.dead and (block, t.tid) not in self.arrived]
        others = [b for b in self.blocks if b is not block and not self._all_of(b)]
        why, gone = "not at this barrier", sorted(b.index for b in others if not b.live)
        if not late:
            slow = sorted(b.index for b in others if b.live)
            parts = [f"{ranges(slow, 'block')} {have(slow)} threads elsewhere"] * bool(slow)
            parts += [f"{ranges(gone, 'block')} {have(gone)} ended"] * bool(gone)
            why = ", ".join(parts) or "the threads of this block are here, those of others are not"
        return {
            "on": self.name, "state": self.state(), "missing": f"{self.missing} threads missing",
            "by": tuple(late), "why": why, "root": False,
        }  # fmt: skip

    def _all_of(self, block):
        """Whether none of the block's threads is missing in this phase."""
        waited_for = (t for t in block.threads if not (t.dead and self.excuses(t)))
        return all((block, t.tid) in self.arrived for t in waited_for)

    def deadlock(self, kind):
        return faults.Deadlock


class GridBarrier(CrossBlockBarrier):
    """That of ``this_grid().sync()``, which waits for threads that have exited, too. Where that is waived, it
    waits for the first one of each block only, since that is who waits for the other blocks."""

    def __init__(self, threads, waived):
        super().__init__("this_grid().sync()", threads, False, faults.Deadlock)
        self.waived, self.latest = waived, None

    def excuses(self, thread):
        return "grid-exited" in self.waived.names and thread.tid != 0

    def arrive(self, thread, release=True):
        self.latest = thread
        super().arrive(thread, release)

    def _complete_if_done(self):
        phase = self.phase
        super()._complete_if_done()
        if self.gone and self.phase > phase:
            self.waived.allows("grid-exited", self.latest)

    def waited(self, kind, block):
        fields = super().waited(kind, block)
        late = [t for each in self.blocks for t in each.threads if (each, t.tid) not in self.arrived]
        # Of blocks that never came all threads have, since all blocks of such a grid are there at once.
        returned = sum(t.dead for t in late) + self.threads - sum(each.size for each in self.blocks)
        if returned and not fields["by"]:
            fields["why"] = f"{returned} threads have returned"
            fields["cure"] = (
                "Have all threads of the grid come to this_grid().sync(), as often as the others: put what is "
                "for some of them under an `if`, in place of a return for the rest."
            )
        return fields

    @property
    def waiver(self):
        """The waiver that would end the wait; None where more is missing than threads that it excuses."""
        late = [t for block in self.blocks for t in block.threads if (block, t.tid) not in self.arrived]
        here = sum(block.size for block in self.blocks) == self.threads
        return "grid-exited" if late and here and all(t.dead and t.tid for t in late) else None


def _gather(known, block, clocks):
    """``known[block]`` becomes at least ``clocks``."""
    before = known.get(block)
    if before is not None and before.shape[1] >= clocks.shape[1]:
        raise_to(before, clocks)
        return
    known[block] = np.array(clocks)
    if before is not None:
        raise_to(known[block], before)

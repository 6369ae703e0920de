"""A thread at mbarriers, named barriers and among its warp: called by the intrinsics of
``device/mbarrier.py`` and ``sync.py``."""

import numpy as np

from ... import faults
from ..async_units.mbarrier import LastWait
from ..memory.cycle_costs import COST
from ..memory.scalars import WORD, Undefined
from ..memory.vector_clocks import for_shared_memory
from .thread_memory import ThreadMemory

maximum = np.maximum


class ThreadBarriers(ThreadMemory):
    """What waits for other threads."""

    def fence_mbarrier_init(self):
        # Of what this thread wrote only its inits reach the copy engine.
        for barrier in self.block.barriers.live.values():
            if barrier.init_epoch[0] == self.tid and barrier.fenced is None:
                barrier.fenced = self.clock
        self.last_fence = "fence_mbarrier_init() before that covers inits of mbarriers alone", self.clock
        self.tick()

    def mbarrier_init(self, address, count):
        self.time += COST.barrier
        self.block.barriers.init(self, address & WORD, count)
        self.tick()

    def mbarrier_inval(self, address):
        self.time += COST.barrier
        self.block.barriers.inval(self, address & WORD)
        self.tick()

    def mbarrier_arrive(self, address, count, complete=True):
        barrier = self.block.barriers.find(self, address)
        self.time += COST.barrier
        if self.block.events is not None:
            self.block.record("arrive", self, self.time, self.time, barrier)
        barrier.arrive(self, count, complete)

    def mbarrier_arrive_drop(self, address):
        self.block.barriers.find(self, address).drop(self)
        self.mbarrier_arrive(address, 1)

    def mbarrier_expect_tx(self, address, count):
        barrier = self.block.barriers.find(self, address)
        barrier.expect_alone(self, count)
        barrier.complete_if_done(self)

    def mbarrier_arrive_expect_tx(self, address, count):
        self.block.barriers.find(self, address).expect(self, count)
        self.mbarrier_arrive(address, 1)

    def mbarrier_wait(self, address, parity, suspend, token=None):
        block, start = self.block, self.time
        barrier = block.barriers.find(self, address)
        if token is not None:
            barrier.check_token(self, token)
        if parity != 0 and parity != 1:
            raise self.fault(faults.BadCount, f"waits on {barrier.name} for parity {parity}", barrier)
        site, phase, known = self.here(), barrier.phase, self.seen[barrier.component]
        if known < phase - 1 and barrier.lost(self):
            raise self.explain.missed_phase(self, barrier, known)
        if phase & 1 == parity:
            # try_wait may give up early: callers loop.
            if not suspend or block.execution.seed and block.chance(0.1):
                if not suspend:
                    self.poll("mbarrier", barrier, parity)
                return 0
            barrier.add_waiter(self)
            self.park("mbarrier", barrier, parity)
            if barrier.ended:
                raise self.explain.inval_fault(barrier, self, site)
            if barrier.phase != phase + 1:
                raise self.explain.missed_phase(self, barrier, phase)
            phase = barrier.phase
        if known < phase:
            maximum(self.clocks, barrier.released, out=self.clocks)
            if barrier.released_foreign:
                self.acquire(barrier.released_foreign)
            if barrier.released_far:
                self.acquire(for_shared_memory(barrier.released_far))
        done = barrier.done_time
        self.time = (done if done > start else start) + COST.barrier
        phase, first = phase - 1, self.clock  # the phase that is complete
        last = self.waits.get(barrier)
        if last is not None and last.phase == phase:
            first = last.first
        self.waits[barrier] = last = LastWait(barrier, phase, site, first, self.clock)
        barrier.wait_clocks[self.tid] = first
        if not barrier.issuers:
            self.last_wait = last
        if block.events is not None:
            block.record("wait", self, start, self.time, barrier, phase=phase)
        return 1

    def shuffle(self, mask, value, source, kind="shfl.idx"):
        """The value of lane ``source``; undefined where that lane takes no part, which is no fault until
        something depends on it."""
        mask, source = int(mask) & WORD, int(source) & 31
        values = self.mates.collective(self, kind, mask, value)
        other = 32 * self.warp + source
        if source in values:
            return values[source]
        why = "has exited" if other < self.block.size else "does not exist"
        why = why if mask >> source & 1 else f"is not in mask {mask:#x}"
        return Undefined(f"a shuffle at {self.at(self.site())} reads lane {source}, which {why}")

    def active_mask(self):
        """Lanes that have come to this place and stand here together. Any grouping of those that meet at one
        place is legal. In the schedule of seed 0 the halves of a warp stand apart, so that who counts on the
        whole warp is found out; other seeds group them by chance."""
        groups = self.block.warps[self.warp].active
        place = self.site(), not self.block.chance(0.9) and self.lane >> 4
        group = groups.setdefault(place, [])
        group.append(self.lane)
        self.spin()  # until all others have stopped
        if groups.get(place) is group:
            del groups[place]
        return sum(1 << lane for lane in group)

    def elect(self, mask):
        return int(self.lane == min(self.collective("elect", mask, None)))

    def collective(self, kind, mask, value):
        return self.mates.collective(self, kind, int(mask) & WORD, value)

    def named_barrier(self, number, threads, wait, vote=None):
        return self.block.named_barrier(self, number, threads, wait, vote)

    def set_max_registers(self, direction, count):
        what = f"setmaxnreg.{direction} {count}"
        if count % 8 or not 24 <= count <= 256:
            raise self.fault(faults.RegisterMisuse, what)
        self.collective(what, WORD, None)
        self.block.registers.move(self, direction, count)

"""The live mbarriers of a block: who may initialise, use and invalidate one. ``Block`` has them."""

import numpy as np

from ....device.limits import MAX_COUNT
from ... import faults
from ..memory.access_records import Ended, Live
from ..memory.cluster_memory import RANK
from .mbarrier import MBarrier


class Barriers:
    """The live barriers of a block, by address."""

    kind = MBarrier

    def __init__(self, block):
        self.block, self.live = block, {}

    def find(self, thread, address):
        barrier = self.live.get(address)
        if barrier is not None and barrier.known[thread.tid]:
            return barrier
        if barrier is None:
            thread.spin()  # let a late init come, so that the fault can name it
            barrier = self.live.get(address)
        if barrier is None:
            raise self._not_here(thread, address)
        owner, clock, site = barrier.init_epoch
        if thread.seen[owner] < clock and not barrier.fenced_before(thread):
            what = f"uses {barrier.name}, which thread {owner} initialised at {thread.at(site)}; "
            what += "nothing orders the init before this"
            fault = thread.fault(faults.InitNotOrdered, what, barrier)
            if self.block.cluster.barrier.relaxed.get((self.block, owner), (-1,))[0] >= clock:
                fault.cure = "Call fence_mbarrier_init() after mbarrier_init() and before cluster_arrive_"
                fault.cure += "relaxed(), which hands on nothing by itself; or meet by cluster_arrive()."
            raise fault
        barrier.known[thread.tid] = True
        return barrier

    def _not_here(self, thread, address):
        """The fault of who uses an address at which there is no barrier of this block."""
        name = self.place_of(thread, address)
        rank, place = (address >> RANK) - 1, address & (1 << RANK) - 1
        if rank < 0 or rank >= len(self.block.cluster.blocks):
            return thread.fault(faults.NotABarrier, f"uses {name}, which is not an initialised mbarrier", name)
        home = self.block.cluster.blocks[rank]
        barrier = home.barriers.live.get(place)
        name = barrier.name if barrier else home.shared.name_of(place)
        what = f"uses {name} of rank {rank}, block {home.index}, by its shared::cluster address"
        rule = "mbarrier_arrive, mbarrier_wait and the like take shared addresses of one's own barriers."
        cure = "Arrive on a barrier of another block by mbarrier_arrive_cluster; nobody can wait on one: "
        cure += "wait on your own block's, by its shared address, and have the other block arrive there."
        return thread.fault(faults.NotABarrier, what, barrier or name, rule=rule, cure=cure)

    def for_copy(self, thread, address):
        """The barrier that a copy is going to signal: its init must have reached the copy engine."""
        barrier = self.find(thread, address)
        owner, clock, site = barrier.init_epoch
        if not barrier.fenced_before(thread) and thread.clocks[1, owner] < clock:
            what = f"issues a copy that signals {barrier.name}, initialised at {thread.at(site)} with no "
            fault = thread.fault(faults.MissingInitFence, what + "fence after it", barrier)
            if not self.block.execution.waived.excuses(fault, thread):
                raise fault
        barrier.issuers.add(thread.tid)
        return barrier

    def init(self, thread, address, count):
        if barrier := self.live.get(address):
            since = thread.at(barrier.init_epoch[2])
            what = f"initialises {barrier.name} again; it is in use since {since} "
            what += f"(phase {barrier.phase}, pending {barrier.pending} of {barrier.expected})"
            fault = thread.fault(faults.LiveBarrierInit, what, barrier)
            if barrier.is_fresh(thread, count):
                fault.waiver = "same-init"
                if self.block.execution.waived.excuses(fault, thread):
                    barrier.known[thread.tid] = True
                    return
            raise fault
        name = self.place_of(thread, address)
        if not 1 <= count <= MAX_COUNT:
            raise thread.fault(faults.BadCount, f"initialises {name} with a count of {count}", name)
        barrier = self.kind(self.block, address, self._index_name(address), count, thread)
        self.block.shared.on_write(thread, address, 8, Live(barrier, thread))
        self.live[address] = barrier

    def inval(self, thread, address):
        barrier = self.find(thread, address)
        if barrier.waiter_count or any(c.barrier is barrier for c in self.block.copies):
            who = "a thread waits" if barrier.waiter_count else "a copy in flight is going to signal it"
            raise thread.fault(faults.InvalNotOrdered, f"invalidates {barrier.name} while {who}", barrier)
        barrier.ended = (thread.tid, thread.site())
        for other in self.block.threads:
            wait = other.waits.get(barrier)
            if wait and other is not thread and thread.seen[other.tid] < wait.last:
                raise thread.explain.inval_fault(barrier, other, wait.site)
        size = self.block.size  # entries of threads; the rest are phases and groups
        for arrivals in (barrier.gathered, barrier.released):
            late = np.flatnonzero(arrivals[0, :size] > thread.clocks[0, :size])
            if late.size:
                what = f"invalidates {barrier.name}; nothing orders what thread {late[0]} did before the "
                raise thread.fault(faults.InvalNotOrdered, what + "arrivals on it before this", barrier)
        del self.live[address]
        shared = self.block.shared
        shared.written[address : address + 8] = [Ended(thread)] * 8
        shared.poison(address, 8)

    def place_of(self, thread, address):
        """The name of the bytes at ``address``, which is a multiple of 8."""
        name = self.block.shared.name_of(address)
        if address % 8:
            raise thread.fault(faults.Misaligned, f"mbarrier at {name}, not a multiple of 8", name)
        return name

    def _index_name(self, address):
        """The name of the barrier at ``address``: of an array by its number in that, but for dynamic memory
        that the kernel itself divides."""
        shared = self.block.shared
        if name := shared.part_of(address):
            return name
        for start, stop, name, view in shared.ranges:
            divided = start == shared.dynamic_start and view.strides[-1:] != (8,)
            if start <= address < stop and (address - start) % 8 == 0 and not divided:
                return f"{name}[{(address - start) // 8}]"
        return shared.name_of(address)

"""A block whose threads make one step at a time, in the loop of its ``controlled_cluster``."""

from ..machine.block import Block
from .controlled_thread import ControlledThread, named_operation


class ControlledBlock(Block):
    """A block whose threads make one step at a time, as the launch's ``Schedule`` says."""

    thread_type = ControlledThread

    def __init__(self, execution, index, size, shared_bytes):
        super().__init__(execution, index, size, shared_bytes)
        self.uses = {}  # named barrier -> how often it has completed

    def chance(self, probability):
        return False

    def next(self):
        return self.hub  # where the schedule is asked

    def launch_copy(self, copy, deliver):
        copy.deliver = deliver
        self.execution.copies_issued += copy.size > 0
        self.copies.append(copy)
        if copy.barrier is not None:
            self.cluster.issued(copy)

    def syncthreads(self, thread, vote=None):
        thread.give_way(named_operation(thread, 0))
        return super().syncthreads(thread, vote)

    def _finish_named(self, barrier):
        complete = super()._finish_named(barrier)
        if complete:
            use = self.uses.get(barrier.number, 0)
            self.uses[barrier.number] = use + 1
            self.cluster.woke(barrier.parked, ("named", barrier.number, self.rank), use)
        return complete

    def _exited(self, thread):
        self.cluster.exits(thread)
        super()._exited(thread)

    def phase(self, address):
        """The phase that the barrier at an address is in; None if there is none."""
        barrier = self.barriers.live.get(address)
        return barrier and barrier.phase

    def start(self, function, args):
        super().start(function, args)
        for thread in self.threads:
            self.cluster.joins(thread)

    def _run_threads(self):
        return self.cluster.run(self)

    def settle(self):
        """Run those who were woken, to their next visible operation."""
        while self.ready:
            self.resume(self.ready.popleft())

    def resume(self, thread):
        self.execution.running = thread
        thread.switch()
        if thread.dead:
            self._exited(thread)

    def _unspin(self):
        self.spinning = [t for t in self.spinning if not t.operation]  # the others make steps
        super()._unspin()

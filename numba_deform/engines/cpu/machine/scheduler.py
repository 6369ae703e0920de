"""Who runs next in a block.

Each CUDA thread is a greenlet; one runs at a time and gives way only where it waits or polls. When nobody can
run and no copy is in flight, that is a deadlock, and the parked threads say why, unless another block may yet
let one go on (``schedules.resident_blocks``, which calls ``run``). Polling threads run again once all others
have stopped; when they come to be where they were, and nothing has changed, that is a livelock, unless
another block is there that may change it.
"""

import bdb
import contextvars
import functools

from greenlet import getcurrent

from ... import faults
from .progress import Progress


class Scheduler(Progress):
    """Threads in turn, or by chance; the base of ``Block``."""

    def chance(self, probability):
        return self.execution.seed != 0 and self.rng.random() < probability

    def start(self, function, args):
        """Make the threads; ``run`` lets them run, and ``close`` comes last."""
        start = functools.partial(function, *args)
        self.threads = [self.thread_type(start, self, t) for t in range(self.size)]
        context = contextvars.copy_context()  # greenlets have contexts of their own: np.errstate
        for thread in self.threads:
            thread.gr_context = context
        self.live = set(self.threads)
        self.ready.extend(self.threads)

    def run(self, alone=True):
        """Run the block to its end, or to a SimFault, or until its threads only poll: then true.

        ``alone``: no other block is going to change anything; a poll may take its time."""
        self.turn(getcurrent(), alone)
        try:
            if self._run_threads():
                return True
            self._check_copies_done()
            self.registers.check()
            self.cluster.check_visits(self)
        except (faults.SimFault, bdb.BdbQuit):  # who debugs a kernel may leave it
            raise
        except Exception as error:
            raise self.explain.blamed(error, self.execution) from error
        return False

    def turn(self, hub, alone):
        """The block has its turn: its threads hand over to ``hub``."""
        self.hub, self.alone, self.looks = hub, alone, 0
        self.last_progress = -1
        self._unspin()

    def close(self):
        """End those that still wait after a fault, so that nothing stays."""
        for thread in self.made():
            if not thread.dead:
                thread.block = self
                thread.throw()
        self.copies.clear()

    def next(self):
        """The greenlet that a thread that waits hands over to: the thread that goes on now, or the hub, which
        knows what else there is to do. The hub starts threads, too: who is started by one that is itself deep
        in calls has fewer of them left."""
        ready = self.ready
        if not ready or self.copies and self.copies[0].due <= self.switches:
            return self.hub
        thread = ready.popleft() if self.in_turn else self.choose()
        if thread:
            self.execution.running = thread
            return thread
        self.starting = thread
        return self.hub

    def choose(self):
        """Take one of those that are ready."""
        if not self.in_turn:
            self.ready.rotate(-self.rng.randrange(len(self.ready)))
        return self.ready.popleft()

    def _go_on(self):
        """Let the next thread run, and those that it hands over to."""
        launch = self.execution
        launch.running = self.choose() if self.starting is None else self.starting
        self.starting = None
        launch.running.switch()
        thread = launch.running  # the last of those that then ran
        if thread.dead:
            self._exited(thread)

    def _run_threads(self):
        copies = self.copies
        while self.live:
            while copies and copies[0].due <= self.switches:
                self.land()
            if self.starting is not None or self.ready:
                self._go_on()
            elif self.gives_way:
                return True
            elif self.spinning and self.progress != self.spun:
                if self._looks_long():
                    return True
                if not self._goes_round():
                    self._unspin()  # they may see something new
            elif copies:
                if not self._may_give_up():
                    self.land()
                self._unspin()
            elif self.spinning:
                if self.only_polls():
                    return True
                self._unspin()
            elif self._waits_outside():
                return True
            else:
                raise self._no_progress("no thread can run and no copy is in flight")
        return False

    def summary(self):
        """(switches, virtual cycles of the longest thread, bytes of static shared memory, the most phases of a
        barrier that copies complete on)"""
        uses = max((b.phase for b in self.barriers.live.values() if b.issuers), default=0)
        return self.switches, self.last_time(), self.shared.static_bytes, uses

    def last_time(self):
        """The virtual cycles of its longest thread."""
        return max(t.time for t in self.threads)

    def made(self):
        """Those of its threads that have state of their own."""
        return self.threads

    def _unspin(self):
        self.ready.extend(self.spinning)
        self.spinning, self.spun = [], self.progress

    def _exited(self, thread):
        self.live.discard(thread)
        self.progress += 1
        self.warps[thread.warp].lane_exits(thread.lane)
        for barrier in list(self.named.values()):
            first = barrier.first.get(thread.warp)
            if first and not barrier.lanes[thread.warp] >> thread.lane & 1:
                tid, clock, site = first
                if thread.seen[tid] >= clock:  # it was there when the other arrived
                    what = f"arrives at named barrier {barrier.number}, and thread {thread.tid} of its "
                    what += "warp exits without doing so"
                    raise self.threads[tid].fault_at(faults.NamedBarrierMisuse, what, site, barrier)
            self._finish_named(barrier)
        for barrier in self.cross_block:
            barrier.exits(thread)

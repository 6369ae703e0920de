"""Blocks whose threads run machine code: a thread is a coroutine, and from its first request on a greenlet that
answers these. ``Execution`` chooses them."""

import contextvars
import ctypes
import math

import numpy as np
from greenlet import GreenletExit, getcurrent

from ...machine.block import LAST, Block
from ...machine.thread import Thread
from ...machine.warp import Warp
from ...memory.access_records import Write
from ...memory.restart import Bailout
from ..codegen.coroutine import FUEL
from ..runtime import layout
from .mbarriers import NativeBarriers
from .memory import NativeShared
from .ready_queue import Draws, Ready
from .requests import MASK
from .rows import fill, kept, time_of, word_of

# What an ended block keeps, which records refer to.
STAYS = {"index", "size", "words", "live", "cluster", "execution", "explain"}


class NativeThread(Thread):
    """A thread that runs machine code; ``place`` is the number of the site of its last request."""

    place = 0

    def __init__(self, run, block, tid):
        first, stop = tid * layout.THREAD_WORDS, (tid + 1) * layout.THREAD_WORDS
        kinds = block.thread_words
        self.words, self.unsigned, self.doubles = (kinds[k][first:stop] for k in "qQd")
        self.singles = block.singles[tid]
        self.address, self.seen = block.words[layout.THREADS] + 8 * first, memoryview(block.clock_table[tid, 0])
        begun = self.seen[tid], self.time, self.reads
        super().__init__(run, block, tid)
        self.clock, self.time, self.reads = begun
        self.words[layout.MADE] = True

    reads, time = word_of(layout.READS), time_of(layout.TIME)

    def here(self):
        return self.block.machine.code.sites[self.place]

    def site(self):
        return None if self.dead else self.here()

    def state(self):
        """As of an interpreted thread: the coroutine's frame holds its variables."""
        frame = ctypes.string_at(self.words[layout.HANDLE], self.words[layout.FRAME])
        return self.block.index, self.tid, self.place, frame

    def write_record(self):
        return Write(self.tid, self.clock, self.tid, self.here(), self.block)

    def reader(self):
        return self.tid, self.clock, self.tid, self.here(), self.block, False

    clock = property(lambda self: self.seen[self.tid], lambda self, it: self.seen.__setitem__(self.tid, it))

    dead = property(lambda self: self.words[layout.REQUEST] == layout.ENDED)

    @property
    def waiting(self):
        if not self.words[layout.PARKED]:
            return self.wait
        return None, None if self.words[layout.AWAITED] else self.mates, None

    @waiting.setter
    def waiting(self, wait):
        self.wait = wait
        if wait:  # others may wait for exits
            self.block.words[layout.EXITS_TOLD] = True

    def drive(self):
        """Answer the thread's requests, and go on with others until Python has to see to one of these."""
        machine, words, block, tid = self.block.machine, self.words, self.block, self.tid
        answers, run = machine.answers, machine.run
        try:
            while True:
                answers[words[layout.REQUEST]](self)
                words[layout.ANSWERED] = 0
                if block.named or block.cross_block:
                    block.words[layout.EXITS_TOLD] = True
                number = run(block.address)
                if number != tid:
                    block.came = number
                    block.hub.switch()
                elif words[layout.REQUEST] <= 0:
                    block.came = number
                    break
        except GreenletExit:
            if words[layout.REQUEST] > 0:  # it is the answer to this one
                words[layout.REQUEST], block.came = layout.ENDED, tid


class NativeWarp(Warp):
    """A warp of such threads; ``words`` is its row."""

    def __init__(self, block, number, lanes):
        self.words = memoryview(block.warp_rows[number])
        super().__init__(block, number, lanes)

    alive = word_of(layout.ALIVE)


class Threads:
    """The threads of a block, by their numbers, as objects: most are made when they are asked for."""

    def __init__(self, block):
        self.block, self.context = block, contextvars.copy_context()
        self.made = {}

    def __len__(self):
        return self.block.size

    def __getitem__(self, tid):
        if isinstance(tid, slice):
            return [self[each] for each in range(len(self))[tid]]
        thread = self.made.get(tid)
        if thread is None:
            if tid >= len(self):  # which ends an iteration
                raise IndexError(tid)
            thread = self.made[tid] = self.block.thread_type(_drive, self.block, tid)
            thread.gr_context, thread.parent = self.context, self.block.hub or thread.parent
        return thread


def _drive():
    getcurrent().drive()


class Live:
    """Those of a block that have not ended."""

    def __init__(self, block):
        self.block = block

    def __len__(self):
        return self.block.words[layout.LIVE]

    def __iter__(self):
        requests = self.block.thread_rows[:, layout.REQUEST]
        return map(self.block.threads.__getitem__, np.flatnonzero(requests != layout.ENDED).tolist())

    def discard(self, thread):
        pass


class NativeBlock(Block):
    """A block of such threads."""

    thread_type, memory_type, warp_type = NativeThread, NativeShared, NativeWarp
    barriers_type = NativeBarriers

    def __init__(self, execution, index, size, shared_bytes):
        self.machine, self.threads, self.came = execution.machine, (), None
        self.table, self.views, self.handles = self.machine.table, [], {}
        self.table.blocks[index] = self
        row = np.zeros(layout.BLOCK_WORDS, np.int64)
        self.words, self.address = memoryview(row), row.ctypes.data
        self._rows(execution.block_shape, size)
        self.same, self.kept = np.zeros_like(self.machine.code.joint), []
        fill(row, launch=np.asarray(self.machine.words), answers=self.same)
        fill(row, index=index, size=size, due=2 * LAST)
        x, y, _ = execution.grid_shape
        place = index % x, index // x % y, index // (x * y)
        row[layout.BLOCK_X : layout.SIZE] = *place, *execution.block_shape, *execution.grid_shape
        self._queue(size)
        super().__init__(execution, index, size, shared_bytes)
        self.live, self.ready, self.rng = Live(self), Ready(self), Draws(self.rng, self.words)
        self.words[layout.IN_TURN] = self.in_turn

    def _rows(self, shape, size):
        """The rows of its threads."""
        rows = self.thread_rows = np.zeros((size, layout.THREAD_WORDS), np.int64)
        self.thread_words = {kind: memoryview(rows.view(kind).reshape(-1)) for kind in "qQd"}
        self.singles = rows.view(np.float32)
        self.cache = np.zeros((size, len(self.machine.code.sites) + 1), np.int32)
        tids, (x, y, _) = np.arange(size), shape
        rows[:, layout.TID], rows[:, layout.FUEL], rows[:, layout.REQUEST] = tids, FUEL, layout.STARTED
        rows[:, layout.THREAD_X], rows[:, layout.THREAD_Y] = tids % x, tids // x % y
        rows[:, layout.THREAD_Z] = tids // (x * y)
        self.words[layout.THREADS] = rows.ctypes.data
        rows[:, layout.CACHE] = self.cache.ctypes.data + tids * self.cache.strides[0]

    def _queue(self, size):
        """What ``runtime.scheduler`` needs: room for the threads that are ready, and for those that meet."""
        self.ring = np.zeros(2 << size.bit_length(), np.int64)
        self.joined = np.zeros(size, np.int32)
        self.warp_rows = np.zeros((-(-size // 32), layout.WARP_WORDS), np.int64)
        self.warpgroup_rows = np.zeros((-(-size // 128), layout.WARPGROUP_WORDS), np.int64)
        self.sync = np.zeros(layout.ORDER + size, np.int64)
        fill(self.words, ready=self.ring, ready_room=len(self.ring), current=-1, joined=self.joined)
        fill(self.words, warps=self.warp_rows, warpgroups=self.warpgroup_rows, sync=self.sync)

    progress, switches = word_of(layout.PROGRESS), word_of(layout.SWITCHES)
    knows_others = word_of(layout.KNOWS_OTHERS)

    clock_table = kept("clocks", lambda clocks: {"clocks": clocks, "width": 2 * clocks.shape[2]})

    @property
    def starting(self):
        """The thread that has its turn, None if another is to be chosen."""
        number = self.words[layout.CURRENT]
        return None if number < 0 else self.threads[number]

    @starting.setter
    def starting(self, thread):
        assert thread is None
        self.words[layout.CURRENT] = -1

    def next(self):
        self.starting = None
        return self.hub

    def _go_on(self):
        number, self.came = self.came, None
        if number is None:
            number = self.machine.run(self.address)
        if number >= 0:
            thread = self.execution.running = self.threads[number]
            if thread.words[layout.REQUEST] > 0:
                thread.switch()
            elif thread.dead:
                self._exited(thread)
            else:
                raise Bailout
        else:
            self._see_to(number)

    def _see_to(self, result):
        """Do what machine code has come to, and cannot do."""
        if result == layout.DRAW:
            self.rng.fill()
        elif result == layout.JOIN:
            self.join_foreign(self.joined[: self.words[layout.JOINED_COUNT]].tolist(), {})
        elif result == layout.LEAVE:
            raise Bailout

    def _exited(self, thread):
        self.starting = None
        self.words[layout.LIVE] -= 1
        super()._exited(thread)
        self._see_to(self.machine.without(thread.address, self.address))
        if thread:  # its greenlet waits for a request that will not come
            thread.throw()

    def launch_copy(self, copy, deliver):
        super().launch_copy(copy, deliver)
        self._note_due()

    def land(self, copy=None):
        super().land(copy)
        self._note_due()

    def _note_due(self):
        self.words[layout.DUE] = math.ceil(self.copies[0].due) if self.copies else 2 * LAST

    def wake(self, barrier):
        self.machine.wake(self.address, barrier.at)

    def _deliver(self, copy):
        super()._deliver(copy)
        self.table.landed(copy)

    def _no_progress(self, *args, **more):
        raise Bailout

    def named_barrier(self, thread, number, threads, wait, vote=None):
        if number == 0:
            raise Bailout  # those at syncthreads are not known here
        return super().named_barrier(thread, number, threads, wait, vote)

    def close(self):
        super().close()
        self.table.take_back(self.index, self.shared.written, self.shared.read_by)
        self.machine.forget()
        for handle in self.thread_rows[:, layout.HANDLE].tolist() if self.threads else ():
            self.machine.code.destroy(handle)
        for name in vars(self).keys() - STAYS:
            delattr(self, name)
        self.threads = ()

    def release_warpgroup(self, number):
        """All of it have met: those who wait for the last one go on."""
        self.warpgroup_rows[number, layout.COME_COUNT] = 0
        waiting = self.warpgroup_rows[number, layout.ORDER : -1].tolist()
        self.ready.extend([self.threads[tid] for tid in waiting])

    def view_words(self, view):
        """A shared or global array as words, which machine code takes it for."""
        key = view.address, view.data.dtype, view.shape, view.strides, view.name
        if key not in self.handles:
            self.handles[key] = len(self.views)
            self.views.append(view)
        region = self.words[layout.SHARED] if view.space is self.shared else getattr(view.space, "address", 0)
        return [view.address, region, self.handles[key], *view.shape, *view.strides]

    def keep_answer(self, number, words):
        """All threads are to be told the same."""
        self.kept.append(np.array(words))
        self.same[number] = self.kept[-1].ctypes.data

    def start(self, function, args):
        given = zip(self.machine.code.kinds, args, strict=True)
        words = [word & MASK for kind, value in given for word in self.machine.words_of(kind, value, self)]
        self.arguments = np.array(words, np.uint64)
        self.words[layout.ARGUMENTS] = self.arguments.ctypes.data
        self.threads, start, address = Threads(self), self.machine.code.start, self.address
        np.einsum("ii->i", self.clock_table[:, 0, : self.size])[:] = 1
        self.attach()
        first, size = self.words[layout.THREADS], self.thread_rows.strides[0]
        handles = [start(first + tid * size, address) for tid in range(self.size)]
        self.thread_rows[:, layout.HANDLE] = handles
        self.ring[: self.size] = np.arange(self.size)
        fill(self.words, live=self.size, ready_count=self.size)

    def attach(self):
        clocks = self.clock_table
        self.thread_rows[:, layout.SEEN] = clocks.ctypes.data + np.arange(self.size) * clocks.strides[0]
        for thread in self.made():
            thread.attach()

    def made(self):
        return self.threads and self.threads.made.values()

    def last_time(self):
        return float(self.thread_rows[:, layout.TIME].copy().view(np.float64).max())

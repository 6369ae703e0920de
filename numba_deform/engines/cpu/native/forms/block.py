"""Blocks whose threads run machine code: a thread is a coroutine, and a greenlet that answers its requests."""

import math
import struct

import numpy as np
from greenlet import GreenletExit, getcurrent
from numba import types

from ...frontends.numba_python import arithmetic, math_functions
from ...frontends.numba_python.cuda_module import FakeCuda
from ...frontends.numba_python.name_binding import Names
from ...machine.block import LAST, Block, Warp
from ...machine.thread import Thread
from ...memory.access_records import Write
from ...memory.scalars import Undefined, dtype_of, is_undefined
from ..codegen.coroutine import FUEL, callable_check
from ..codegen.ir_values import Static
from ..runtime import layout
from .mbarriers import Interpret, NativeBarriers, Waiters, time_of, word_of
from .memory import NativeRegion, NativeShared
from .record_table import Table

MASK = (1 << 64) - 1


class Machine:
    """What the blocks of a launch share: the code, the table of records, and the answers to its requests."""

    def __init__(self, code, launch):
        self.code, self.launch = code, launch
        self.words = _words(layout.LAUNCH_WORDS)
        self.words[layout.JOINT] = code.joint.ctypes.data
        self.table = Table(self.words, code.sites, launch.threads)
        self.names = Names(FakeCuda(launch))
        self.answers = [None, *(self.answer(*each) for each in enumerate(code.requests, 1))]
        self.regions = []
        for name in ("run", "without", "wake", "read", "overwrite"):
            setattr(self, name, callable_check(name))

    def region(self, group, traces):
        """A region of global memory: row after row, in the order of their addresses."""
        if not self.regions:
            self.rows = np.zeros((1024, layout.REGION_WORDS), np.int64)
            self.words[layout.REGIONS] = self.rows.ctypes.data
        if len(self.regions) == len(self.rows):
            raise Interpret
        made = NativeRegion(group, traces, self.table, self.rows[len(self.regions)])
        self.regions.append(made)
        self.words[layout.REGION_COUNT] = len(self.regions)
        return made

    def words_of(self, kind, value, block):
        """An argument of the kernel as words."""
        if isinstance(kind, types.BaseTuple):
            return [w for k, v in zip(kind.types, value, strict=True) for w in self.words_of(k, v, block)]
        if isinstance(kind, types.Array):
            return block.view_words(value)
        if isinstance(kind, types.Float):
            return [int.from_bytes(struct.pack("<f" if kind == types.float32 else "<d", value), "little")]
        return [int(value)]

    def close(self):
        """Let go of what all this takes, much of which refers to each other, now that nothing runs any more."""
        blocks = list(self.table.blocks.values())
        threads = [thread for block in blocks for thread in vars(block).get("threads", ())]
        for part in (*threads, *blocks, *self.regions, self.table, self):
            vars(part).clear()

    # --- requests -----------------------------------------------------------------------------------
    def answer(self, number, request):
        """A function of a thread that does what is asked, and leaves the result in its words."""
        function, site = request.function, request.site
        if isinstance(function, Static):
            function = self.model(function.value, request.result)
        elif isinstance(function, str):
            function = getattr(self, function)
        decode = [self.decoder(*given) for given in request.given]
        encode = _encoder(request.result)

        def reply(thread):
            thread.place = site
            result = function(*[part(thread) for part in decode])
            if encode is not None:
                encode(thread, result)

        def reply_to_all(thread):
            reply(thread)
            thread.block.keep_answer(number, thread.words[layout.WORDS :][: layout.ANSWER_WORDS])

        return reply_to_all if request.joint & 255 == layout.SHARED_ARRAY else reply

    def decoder(self, kind, where):
        """A function of a thread that reads one operand."""
        if kind == "static":
            value = where if isinstance(where, tuple) else self.names.replace(where)
            return lambda thread: value
        if kind == "tuple":
            parts = [self.decoder(*each) for each in where]
            return lambda thread: tuple(part(thread) for part in parts)
        if kind == "view":
            return lambda thread: thread.block.views[thread.words[where]]
        if kind == "float32":
            return lambda thread: thread.singles[2 * where]
        if kind == "float64":
            return lambda thread: float(thread.doubles[where])
        if kind == "bool":
            return lambda thread: bool(thread.words[where])
        if kind == "uint64":
            return lambda thread: thread.words[where] & MASK
        return lambda thread: thread.words[where]

    def model(self, function, result):
        """The interpreter's function for one of Numba's or of Python's."""
        convert = arithmetic.caster(result) if isinstance(result, types.Number) else None
        replaced = math_functions.MATH.get(function)
        if replaced is None:
            replaced = self.names.replace(function)
            if replaced is not function and function not in (round, pow):
                return replaced
        return replaced if convert is None else lambda *args: convert(replaced(*args))

    @staticmethod
    def rest():
        """A long loop goes on: whoever wants to end it, can."""
        getcurrent().words[layout.FUEL] = FUEL

    @staticmethod
    def shared_array(fixed):
        thread = getcurrent()
        shape, dtype, alignment, name, function = fixed
        shape = tuple(int(n) for n in shape) if isinstance(shape, tuple) else (int(shape),)
        key = thread.here(), function
        return thread.block.shared.array(thread, key, name, shape, dtype_of(dtype), alignment)

    @staticmethod
    def get_item(view, *index):
        return view[index]

    @staticmethod
    def set_item(view, value, *index):
        view[index] = value


def _encoder(kind):
    """A function that leaves a result of Numba's type in a thread's words; None if there is none."""
    if isinstance(kind, types.NoneType) or kind == types.none:
        return None
    if isinstance(kind, types.BaseTuple) and all(isinstance(k, types.Integer) for k in kind.types):
        def put_all(thread, values):
            for i, value in enumerate(values, layout.WORDS):
                thread.unsigned[i] = value & MASK
        return put_all
    if isinstance(kind, (types.Integer, types.Boolean)):
        def put(thread, value):
            if type(value) is Undefined:
                raise Interpret
            thread.unsigned[layout.WORDS] = int(value) & MASK
        return put
    if kind in (types.float32, types.float64):
        def put_float(thread, value):
            if is_undefined(value):
                raise Interpret
            if kind == types.float32:
                thread.singles[2 * layout.WORDS] = value
            else:
                thread.doubles[layout.WORDS] = value
        return put_float
    if isinstance(kind, types.Array):
        def put_view(thread, view):
            for i, word in enumerate(thread.block.view_words(view), layout.WORDS):
                thread.words[i] = word
        return put_view

    def give_up(thread, value):
        raise Interpret

    return give_up


def _words(count):
    return memoryview(np.zeros(count, np.int64))


class Ready:
    """Those who are ready, as a ``deque``: a ring of their numbers, which ``turns`` takes them from."""

    def __init__(self, block):
        self.block, self.words, self.ring = block, block.words, memoryview(block.ring)

    def __len__(self):
        return self.words[layout.READY_COUNT]

    def append(self, thread):
        words, room = self.words, len(self.ring)
        if words[layout.READY_COUNT] == room:
            raise Interpret
        thread.words[layout.PARKED] = 0
        self.ring[(words[layout.READY_FIRST] + words[layout.READY_COUNT]) % room] = thread.tid
        words[layout.READY_COUNT] += 1

    def extend(self, threads):
        if type(threads) is Waiters:
            self.block.machine.wake(self.block.address, threads.barrier)
            return
        for thread in threads:
            self.append(thread)


class Draws:
    """The numbers of a ``random.Random``: drawn in advance, since ``turns`` takes some of them."""

    def __init__(self, random, words):
        self.source, self.words = random, words
        self.fill()

    def fill(self):
        """Draw the next ones; all that were there have been used."""
        drawn = self.source.getrandbits(32 * 1024).to_bytes(4 * 1024, "little")
        self.numbers, words = np.frombuffer(drawn, np.uint32), self.words
        words[layout.DRAWS], words[layout.DRAWN] = self.numbers.ctypes.data, 0
        words[layout.DRAW_COUNT] = len(self.numbers)

    def next(self, bits):
        if self.words[layout.DRAWN] == len(self.numbers):
            self.fill()
        self.words[layout.DRAWN] += 1
        return int(self.numbers[self.words[layout.DRAWN] - 1]) >> 32 - bits

    def random(self):
        return ((self.next(27) << 26) + self.next(26)) / (1 << 53)

    def randrange(self, limit):
        while (number := self.next(limit.bit_length())) >= limit:
            pass
        return number


class NativeThread(Thread):
    """A thread that runs machine code; ``place`` is the number of the site of its last request."""

    place = 0

    def __init__(self, run, block, tid):
        first, stop = tid * layout.THREAD_WORDS, (tid + 1) * layout.THREAD_WORDS
        kinds = block.thread_words
        self.words, self.unsigned, self.doubles = (kinds[k][first:stop] for k in "qQd")
        self.singles = block.singles[tid]
        self.address, self.seen = block.words[layout.THREADS] + 8 * first, memoryview(block.clock_table[tid, 0])
        super().__init__(run, block, tid)
        self.words[layout.HANDLE] = block.machine.code.start(self.address, block.address)

    def attach(self):
        super().attach()
        words = self.block.words
        self.words[layout.SEEN] = words[layout.CLOCKS] + 4 * words[layout.WIDTH] * self.tid

    reads, time = word_of(layout.READS), time_of(layout.TIME)

    def here(self):
        return self.block.machine.code.sites[self.place]

    def site(self):
        return None if self.dead else self.here()

    def state(self):
        raise Interpret  # what its variables hold, only the interpreter knows

    def write_record(self):
        return Write(self.tid, self.clock, self.tid, self.here(), self.block)

    def reader(self):
        return self.tid, self.clock, self.tid, self.here(), self.block, False

    @property
    def clock(self):
        return self.seen[self.tid]

    @clock.setter
    def clock(self, number):
        self.seen[self.tid] = number

    @property
    def dead(self):
        return self.words[layout.REQUEST] == layout.ENDED

    @property
    def waiting(self):
        if not self.words[layout.PARKED]:
            return self.wait
        return None, None if self.words[layout.AWAITED] else self.mates, None

    @waiting.setter
    def waiting(self, wait):
        self.wait = wait

    def drive(self):
        """Answer the thread's requests, and go on with others until Python has to see to one of these."""
        machine, words, block, tid = self.block.machine, self.words, self.block, self.tid
        answers, run = machine.answers, machine.run
        try:
            while True:
                answers[words[layout.REQUEST]](self)
                words[layout.ANSWERED] = 0
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
        for i, order in enumerate(block.orders[number]):
            self.words[layout.MEETINGS + i * layout.MEETING_WORDS + layout.ORDER] = order.ctypes.data
        super().__init__(block, number, lanes)

    @property
    def alive(self):
        return self.words[layout.ALIVE]

    @alive.setter
    def alive(self, lanes):
        self.words[layout.ALIVE] = lanes


class NativeBlock(Block):
    """A block of such threads."""

    thread_type, memory_type, warp_type = NativeThread, NativeShared, NativeWarp
    barriers_type = NativeBarriers

    def __init__(self, grid, index, size, shared_bytes):
        self.machine, self.threads, self.came = grid.machine, (), None
        self.table, self.views, self.handles = self.machine.table, [], {}
        self.table.blocks[index] = self
        row = np.zeros(layout.BLOCK_WORDS, np.int64)
        self.words, self.address = memoryview(row), row.ctypes.data
        self._rows(grid.block_shape, size)
        warps = (size + 31) // 32
        self.warp_rows = np.zeros((warps, layout.WARP_WORDS), np.int64)
        self.orders = np.zeros((warps, layout.MEETING_COUNT, 32), np.int64)
        shared = np.zeros(layout.REGION_WORDS, np.int64)
        self.shared_row, self.words[layout.SHARED] = memoryview(shared), shared.ctypes.data
        self.words[layout.LAUNCH] = np.asarray(self.machine.words).ctypes.data
        self.words[layout.BLOCK], self.words[layout.SIZE] = index, size
        x, y, _ = grid.grid_shape
        places = index % x, index // x % y, index // (x * y)
        triples = (layout.BLOCK_X, places), (layout.BLOCK_DIM_X, grid.block_shape)
        for first, triple in (*triples, (layout.GRID_DIM_X, grid.grid_shape)):
            for i, number in enumerate(triple):
                self.words[first + i] = number
        self._queue(size)
        super().__init__(grid, index, size, shared_bytes)
        self.ready, self.rng = Ready(self), Draws(self.rng, self.words)
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
        rows[:, layout.CACHE] = self.cache.ctypes.data + tids * self.cache.strides[0]

    def _queue(self, size):
        """What ``turns`` needs: room for the threads that are ready, and for those that meet."""
        words = self.words
        self.ring = np.zeros(2 << size.bit_length(), np.int64)
        self.joined = np.zeros(size, np.int32)
        self.same, self.kept = np.zeros_like(self.machine.code.joint), []
        self.order, sync = np.zeros(size, np.int64), np.zeros(layout.MEETING_WORDS, np.int64)
        self.sync, sync[layout.ORDER] = sync, self.order.ctypes.data
        arrays = (
            (layout.READY, self.ring), (layout.THREADS, self.thread_rows), (layout.WARPS, self.warp_rows),
            (layout.JOINED, self.joined), (layout.SYNC, sync), (layout.ANSWERS, self.same),
        )  # fmt: skip
        for word, array in arrays:
            words[word] = array.ctypes.data
        words[layout.READY_ROOM], words[layout.LIVE], words[layout.CURRENT] = len(self.ring), size, -1
        words[layout.DUE] = 2 * LAST

    progress, switches = word_of(layout.PROGRESS), word_of(layout.SWITCHES)
    knows_others = word_of(layout.KNOWS_OTHERS)

    @property
    def clock_table(self):
        return self.clocks

    @clock_table.setter
    def clock_table(self, clocks):
        self.clocks = clocks
        self.words[layout.CLOCKS], self.words[layout.WIDTH] = clocks.ctypes.data, 2 * clocks.shape[2]

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
            thread = self.grid.running = self.threads[number]
            if thread.words[layout.REQUEST] > 0:
                thread.switch()
            elif thread.dead:
                self._exited(thread)
            else:
                raise Interpret
        elif number == layout.DRAW:
            self.rng.fill()
        elif number == layout.JOIN:
            self._join_foreign()
        elif number == layout.LEAVE:
            raise Interpret

    def _join_foreign(self):
        self.join_foreign(self.joined[: self.words[layout.JOINED_COUNT]].tolist(), {})

    def _exited(self, thread):
        self.starting = None
        self.words[layout.LIVE] -= 1
        super()._exited(thread)
        result = self.machine.without(thread.address, self.address)
        if result == layout.LEAVE:
            raise Interpret
        if result == layout.JOIN:
            self._join_foreign()
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

    def _deliver(self, copy):
        super()._deliver(copy)
        self.table.landed(copy)

    def _no_progress(self, *args, **more):
        raise Interpret

    def named_barrier(self, thread, number, threads, wait):
        if number == 0:
            raise Interpret  # those at syncthreads are not known here
        super().named_barrier(thread, number, threads, wait)

    def close(self):
        super().close()
        for thread in self.threads:
            self.machine.code.destroy(thread.words[layout.HANDLE])

    def view_words(self, view):
        """A shared or global array as words, which machine code takes it for."""
        key = view.address, view.data.dtype.str, view.shape, view.strides, view.name
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
        super().start(_drive, ())


def _drive():
    getcurrent().drive()



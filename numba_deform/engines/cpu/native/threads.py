"""Blocks whose threads run machine code: a thread is a greenlet that resumes its coroutine, and answers it."""

import struct

import numpy as np
from greenlet import getcurrent
from numba import types

from .. import functions, numbers
from ..block import Block
from ..fake_cuda import FakeCuda
from ..memory import Rerun
from ..names import Names
from ..records import Write
from ..thread import Thread
from ..values import Undefined, dtype_of, is_undefined
from . import layout
from .maker import FUEL
from .memory import NativeRegion, NativeShared
from .shadow import Table
from .values import Static

MASK = (1 << 64) - 1


class Interpret(Rerun):
    """The schedule starts over, interpreted: machine code has met what only the interpreter can judge."""


class Machine:
    """What the blocks of a launch share: the code, the table of records, and the answers to its requests."""

    def __init__(self, code, launch):
        self.code, self.launch = code, launch
        self.words = _words(layout.LAUNCH_WORDS)
        self.table = Table(self.words, code.sites, launch.threads)
        self.names = Names(FakeCuda(launch))
        self.answers = [None, *map(self.answer, code.requests)]
        self.regions = []

    def region(self, group, traces):
        """A region of global memory: row after row, in the order of their addresses."""
        if not self.regions:
            self.rows = np.zeros((1024, layout.REGION_WORDS), np.int64)
            self.words[layout.REGIONS] = self.rows.ctypes.data
        if len(self.regions) == len(self.rows):
            raise Interpret
        row = self.rows[len(self.regions)]
        made = NativeRegion(group, traces, self.table, memoryview(row))
        made.address = row.ctypes.data
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
    def answer(self, request):
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

        return reply

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
        convert = numbers.caster(result) if isinstance(result, types.Number) else None
        replaced = functions.MATH.get(function)
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


class NativeThread(Thread):
    """A thread that runs machine code; ``place`` is the number of the site of its last request."""

    place = 0

    def __init__(self, run, block, tid):
        row = block.thread_rows[tid]
        self.words, self.doubles, self.singles = memoryview(row), row.view(np.float64), row.view(np.float32)
        self.unsigned = memoryview(row.view(np.uint64))
        self.address = row.ctypes.data
        self.words[layout.TID], self.words[layout.FUEL] = tid, FUEL
        self.words[layout.CACHE] = block.cache[tid].ctypes.data
        x, y, _ = block.grid.block_shape
        self.words[layout.THREAD_X], self.words[layout.THREAD_Y] = tid % x, tid // x % y
        self.words[layout.THREAD_Z] = tid // (x * y)
        super().__init__(run, block, tid)

    def attach(self):
        super().attach()
        self.words[layout.SEEN] = self.clocks.ctypes.data

    @property
    def reads(self):
        return self.words[layout.READS]

    @reads.setter
    def reads(self, count):
        self.words[layout.READS] = count

    @property
    def time(self):
        return float(self.doubles[layout.TIME])

    @time.setter
    def time(self, cycles):
        self.doubles[layout.TIME] = cycles

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

    def drive(self):
        """Run the thread to its end."""
        machine, words = self.block.machine, self.words
        code, answers = machine.code, machine.answers
        handle = code.start(self.address, self.block.address)
        try:
            while True:
                code.resume(handle)
                asked = words[layout.REQUEST]
                if asked <= 0:
                    break
                answers[asked](self)
            if asked == layout.BAILED:
                raise Interpret
        finally:
            code.destroy(handle)


class NativeBlock(Block):
    """A block of such threads."""

    thread_type, memory_type = NativeThread, NativeShared

    def __init__(self, grid, index, size, shared_bytes):
        self.machine = grid.machine
        self.table, self.views, self.handles = self.machine.table, [], {}
        self.table.blocks[index] = self
        row = np.zeros(layout.BLOCK_WORDS, np.int64)
        self.words, self.address = memoryview(row), row.ctypes.data
        self.thread_rows = np.zeros((size, layout.THREAD_WORDS), np.int64)
        self.cache = np.zeros((size, len(self.machine.code.sites) + 1), np.int32)
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
        super().__init__(grid, index, size, shared_bytes)

    @property
    def progress(self):
        return self.words[layout.PROGRESS]

    @progress.setter
    def progress(self, count):
        self.words[layout.PROGRESS] = count

    def view_words(self, view):
        """A shared or global array as words, which machine code takes it for."""
        key = view.address, view.data.dtype.str, view.shape, view.strides, view.name
        if key not in self.handles:
            self.handles[key] = len(self.views)
            self.views.append(view)
        region = self.words[layout.SHARED] if view.space is self.shared else getattr(view.space, "address", 0)
        return [view.address, region, self.handles[key], *view.shape, *view.strides]

    def start(self, function, args):
        given = zip(self.machine.code.kinds, args, strict=True)
        words = [word & MASK for kind, value in given for word in self.machine.words_of(kind, value, self)]
        self.arguments = np.array(words, np.uint64)
        self.words[layout.ARGUMENTS] = self.arguments.ctypes.data
        super().start(_drive, ())


def _drive():
    getcurrent().drive()



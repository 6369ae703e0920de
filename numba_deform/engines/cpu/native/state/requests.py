"""What machine code asks of Python: the models of the interpreter, and how operands and results go over.
``Execution`` makes the handler; a thread's greenlet calls its answers."""

import numpy as np
from greenlet import getcurrent
from numba import types

from ...async_units.warp_mma import read_element, write_element
from ...memory.restart import Bailout
from ...memory.scalars import dtype_of
from ..codegen.coroutine import FUEL
from ..codegen.ir_values import Static
from ..codegen.jit import callable_check
from ..runtime import layout
from .memory import NativeRegion
from .record_table import Table
from .tensor_cores import ANSWERS

MASK = (1 << 64) - 1
INTEGERS = types.Integer, types.Boolean
FLOATS = {kind: np.dtype(str(kind)) for kind in (types.float16, types.float32, types.float64)}


class RequestHandler:
    """What the blocks of a launch share: the code, the table of records, and the answers to its requests."""

    def __init__(self, code, execution, models):
        self.code, self.execution, self.models = code, execution, models
        self.words = memoryview(np.zeros(layout.LAUNCH_WORDS, np.int64))
        self.words[layout.JOINT] = code.joint.ctypes.data
        self.table = Table(self.words, code.sites, execution.threads)
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
            raise Bailout
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
            return [int.from_bytes(np.array(value, FLOATS[kind]).tobytes(), "little")]
        return [int(value)]

    def forget(self):
        """Where records have become many, let go of those that nothing holds any more."""
        if self.words[layout.COUNT] > self.table.full:
            living = [block for block in self.table.blocks.values() if "shared" in vars(block)]
            memories = [*self.regions, *(block.shared for block in living)]
            self.table.sweep([each for memory in memories for each in memory.record_lists()])
            for block in living:
                block.cache[...] = 0

    def close(self):
        """Let go of what all this takes, much of which refers to each other, now that nothing runs any more."""
        blocks = list(self.table.blocks.values())
        threads = [thread for block in blocks for thread in block.made()]
        for part in (*threads, *blocks, *self.regions, self.table, self):
            vars(part).clear()

    # --- requests -----------------------------------------------------------------------------------
    def answer(self, number, request):
        """A function of a thread that does what is asked, and leaves the result in its words."""
        function, site = request.function, request.site
        if request.joint & 255 in (layout.TOGETHER, layout.WARPGROUP):
            return ANSWERS[function](request)
        if isinstance(function, Static):
            function = self.models.model(function.value, request.result)
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
            value = where if isinstance(where, tuple) else self.models.replace(where)
            return lambda thread: value
        if kind == "tuple":
            parts = [self.decoder(*each) for each in where]
            return lambda thread: tuple(part(thread) for part in parts)
        if kind == "view":
            return lambda thread: thread.block.views[thread.words[where]]
        if kind == "float16":
            return lambda thread: thread.singles.view(np.float16)[4 * where]
        if kind == "float32":
            return lambda thread: thread.singles[2 * where]
        if kind == "float64":
            return lambda thread: float(thread.doubles[where])
        if kind == "bool":
            return lambda thread: bool(thread.words[where])
        if kind == "uint64":
            return lambda thread: thread.words[where] & MASK
        return lambda thread: thread.words[where]

    @staticmethod
    def rest():
        """Refill the loop's fuel. Being back in Python lets the watchdog stop the run."""
        getcurrent().words[layout.FUEL] = FUEL

    @staticmethod
    def shared_array(fixed):
        thread = getcurrent()
        shape, dtype, alignment, name, function = fixed
        shape = tuple(int(n) for n in shape) if isinstance(shape, tuple) else (int(shape),)
        key = thread.here(), function
        return thread.block.shared.array(thread, key, name, shape, dtype_of(dtype), alignment)

    @staticmethod
    def rows():
        raise Bailout  # machine code answers it

    meet = rows

    @staticmethod
    def read_element(address, size):
        return read_element(getcurrent(), address, size)

    @staticmethod
    def write_element(address, size, word):
        write_element(getcurrent(), address, size, word)

    @staticmethod
    def get_item(view, field, *index):
        return view[index] if field is None else view[index][field]

    @staticmethod
    def set_item(value, view, field, *index):
        if field is None:
            view[index] = value
        else:
            view[index][field] = value


def _encoder(kind):
    """A function that leaves a result of Numba's type in a thread's words; None if there is none."""
    if isinstance(kind, types.NoneType) or kind == types.none:
        return None
    if isinstance(kind, types.Array):
        def put_view(thread, view):
            for i, word in enumerate(thread.block.view_words(view), layout.WORDS):
                thread.words[i] = word
        return put_view
    several = isinstance(kind, types.BaseTuple)
    parts = kind.types if several else [kind]
    if not all(isinstance(part, INTEGERS) or part in FLOATS for part in parts):
        def give_up(thread, value):
            raise Bailout
        return give_up
    if isinstance(kind, INTEGERS):  # most are
        def put(thread, value):
            thread.unsigned[layout.WORDS] = int(value) & MASK
        return put

    def put_all(thread, values):
        values = zip(parts, values if several else [values], strict=True)
        for i, (part, value) in enumerate(values, layout.WORDS):
            if part in FLOATS:
                thread.singles.view(FLOATS[part])[8 * i // FLOATS[part].itemsize] = value
            else:
                thread.unsigned[i] = int(value) & MASK
    return put_all

"""Machine code of one kernel: a coroutine that runs as one thread and gives way where Python is asked.

A front end writes its statements. LLVM's coroutines keep a thread's variables in a piece
of memory of its own, so that thousands of threads stand in the midst of one function.
"""

import dis
import functools
from dataclasses import dataclass

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types

from ...reports.call_sites import describe_site
from ..runtime import layout
from ..runtime.llvm_types import I1, I8, I32, I64, POINTER
from .ir_values import NotLowered, Static, Tuple, View, is_number, leaves, lowered, rebuilt
from .jit import check_functions
from .writer import Writer

FUEL = 1 << 20  # turns of loops after which a thread shows that it is alive
ENTRY = "numba_deform_thread"
# What threads do together by functions of ``cuda``; of an intrinsic, it says so itself (``joint_of``).
COLLECTIVES = {
    "syncwarp": layout.SYNCWARP, "ballot_sync": layout.BALLOT, "any_sync": layout.ANY, "all_sync": layout.ALL,
    "eq_sync": layout.UNI, "shfl_sync": layout.SHUFFLE, "shfl_xor_sync": layout.SHUFFLE_XOR,
    "shfl_up_sync": layout.SHUFFLE_UP, "shfl_down_sync": layout.SHUFFLE_DOWN,
    "syncthreads": layout.SYNCTHREADS, "syncthreads_count": layout.SYNCTHREADS_COUNT,
    "syncthreads_and": layout.SYNCTHREADS_AND, "syncthreads_or": layout.SYNCTHREADS_OR,
}  # fmt: skip


def joint_of(intrinsic):
    """What threads do together by an intrinsic; 0 if they do nothing that machine code knows."""
    return getattr(layout, intrinsic.meets.upper()) if intrinsic.meets else 0


class _Token(ir.Type):
    """LLVM's type of the tokens that tie a coroutine's intrinsics together."""

    def _to_string(self):
        return "token"

    def __eq__(self, other):
        return isinstance(other, _Token)

    def __hash__(self):
        return hash(_Token)

    def format_constant(self, value):
        return value


TOKEN = _Token()


@dataclass(frozen=True, eq=False)
class Request:
    """What Python is asked at one place: ``function`` with operands of ``given``, for a result of type
    ``result``; ``site`` is the number of the place in the kernel. ``given`` are pairs (kind of value, the
    number of its word or what else it needs). ``joint``: its word of ``layout.JOINT``."""

    function: object
    given: tuple
    result: object
    site: int
    joint: int = 0


class Coroutine(Writer):
    """A kernel's thread, with arguments of Numba's types ``kinds``. A front end says what it does: its function
    ``statements(coroutine, args)`` writes that, and returns nothing."""

    def __init__(self, module, kinds, statements):
        self.requests, self.sites, self.numbers, self.checks = [], [], {}, check_functions()
        self.kinds = kinds
        self.apart = {}  # what tells those apart that must not meet -> its number
        self.leaving, self.last, self.suspended, self.cleanup = self.begin(
            module, ENTRY, POINTER, [], "leaving", "last", "suspended", "cleanup", "start"
        )
        self._begin()
        begun = self.builder.block
        first, = self.blocks("held")
        self.builder.position_at_end(first)
        self.suspend()
        assert not leaves(statements(self, self._arguments(kinds)))
        self._end(layout.ENDED)
        self.builder.position_at_end(begun)
        self.pin_to_memory()
        self.builder.branch(first)
        self.builder.position_at_end(self.leaving)
        self._end(layout.BAILED)
        self._finish()

    def pin_to_memory(self):
        """Called where the thread begins, when all is written."""

    # --- the coroutine's frame ----------------------------------------------------------------------
    def _begin(self):
        null, builder = ir.Constant(POINTER, None), self.builder
        made = self.declared("llvm.coro.id", TOKEN, [I32, POINTER, POINTER, POINTER])
        self.token = builder.call(made, [ir.Constant(I32, 16), null, null, null])
        size = builder.call(self.declared("llvm.coro.size.i64", I64, []), [])
        self.set_word(layout.FRAME, size)
        memory = builder.call(self.declared("malloc", POINTER, [I64]), [size])
        begin = self.declared("llvm.coro.begin", POINTER, [TOKEN, POINTER])
        self.handle = builder.call(begin, [self.token, memory])

    def suspend(self, final=False):
        """Give way; what follows runs when the thread is resumed."""
        function = self.declared("llvm.coro.suspend", I8, [TOKEN, I1])
        how = self.builder.call(function, [ir.Constant(TOKEN, "none"), ir.Constant(I1, final)])
        resumed, = self.blocks("resumed")
        choice = self.builder.switch(how, self.suspended)
        choice.add_case(ir.Constant(I8, 0), resumed)
        choice.add_case(ir.Constant(I8, 1), self.cleanup)
        self.builder.position_at_end(resumed)

    def _end(self, what):
        self.set_word(layout.REQUEST, ir.Constant(I64, what))
        self.builder.branch(self.last)

    def _finish(self):
        builder = self.builder
        builder.position_at_end(self.last)
        self.suspend(final=True)
        builder.unreachable()
        builder.position_at_end(self.cleanup)
        free = self.declared("llvm.coro.free", POINTER, [TOKEN, POINTER])
        memory = builder.call(free, [self.token, self.handle])
        builder.call(self.declared("free", ir.VoidType(), [POINTER]), [memory])
        builder.branch(self.suspended)
        builder.position_at_end(self.suspended)
        result = ir.VoidType() if llvm.llvm_version_info[0] >= 22 else I1
        end = self.declared("llvm.coro.end", result, [POINTER, I1, TOKEN])
        builder.call(end, [self.handle, ir.Constant(I1, 0), ir.Constant(TOKEN, "none")])
        builder.ret(self.handle)

    # --- what it shares with Python -----------------------------------------------------------------
    def set_word(self, number, value):
        self.builder.store(value, self._word("thread", number))

    def spend(self, cycles):
        """Virtual time goes by: a number of cycles, or LLVM's value of one."""
        place = self._word("thread", layout.TIME)
        time = self.builder.load(place, typ=ir.DoubleType())
        cycles = cycles if isinstance(cycles, ir.Value) else ir.Constant(ir.DoubleType(), cycles)
        self.builder.store(self.builder.fadd(time, cycles), place)

    def _arguments(self, kinds):
        """The kernel's arguments, out of the words that ``RequestHandler.words_of`` made."""
        words = self.builder.inttoptr(self.word("block", layout.ARGUMENTS, I64), POINTER)
        place = iter(range(1 << 16))

        def next_word(kind=I64):
            pointer = self.builder.gep(words, [ir.Constant(I64, next(place))], source_etype=I64)
            return self._from_word(pointer, kind)

        return [self._value_of(kind, next_word) for kind in kinds]

    def _from_word(self, pointer, kind):
        if not isinstance(kind, ir.IntType):
            return self.builder.load(pointer, typ=kind)
        value = self.builder.load(pointer, typ=I64)
        return value if kind == I64 else self.builder.trunc(value, kind)

    def _value_of(self, kind, next_word):
        """A value of Numba's type out of words."""
        if isinstance(kind, types.NoneType):
            return None
        if is_number(kind):
            return next_word(lowered(kind))
        if isinstance(kind, types.BaseTuple):
            return Tuple([self._value_of(k, next_word) for k in kind.types])
        if isinstance(kind, types.Array) and (is_number(kind.dtype) or isinstance(kind.dtype, types.Record)):
            fixed = [next_word() for _ in range(3)]
            sizes = [next_word() for _ in range(2 * kind.ndim)]
            return View(*fixed, sizes[: kind.ndim], sizes[kind.ndim :], kind.dtype)
        raise NotLowered(f"a value of type {kind}")

    def request(self, function, given, result, site, joint=0, apart=""):
        """Ask Python, and give way meanwhile. ``joint``: what threads do together without Python, if they
        agree in ``apart``; None: in the type of the result, those of a block in the line."""
        if apart is None:
            apart = str(result) if joint < layout.SYNCTHREADS else describe_site(self.sites[site])
        place = iter(range(layout.WORDS, layout.THREAD_WORDS))
        described = tuple([self._hand_over(value, kind, place) for value, kind in given])
        joint = joint and joint | self.apart.setdefault(apart, len(self.apart)) << 8
        self.requests.append(Request(function, described, result, site, joint))
        self.set_word(layout.REQUEST, ir.Constant(I64, len(self.requests)))
        self.suspend()
        place = iter(range(layout.WORDS, layout.THREAD_WORDS))
        try:
            return self._value_of(result, lambda k=I64: self._from_word(self._word("thread", next(place)), k))
        except StopIteration:
            raise NotLowered("a large result") from None

    def _hand_over(self, value, kind, place):
        """Store one operand for Python; how it is to be read."""
        if isinstance(value, Static):
            return "static", value.value
        if value is None:
            return "static", None
        if isinstance(value, Tuple):
            parts = zip(value.parts, kind.types, strict=True)
            return "tuple", [self._hand_over(v, k, place) for v, k in parts]
        number = next(place, None)
        if number is None:
            raise NotLowered("many operands")
        if isinstance(value, View):
            self.set_word(number, value.handle)
            return "view", number
        if not isinstance(value, ir.Value):
            raise NotLowered(f"an operand {type(value).__name__}")
        if isinstance(value.type, ir.IntType) and value.type.width < 64:
            signed = isinstance(kind, types.Integer) and kind.signed
            value = (self.builder.sext if signed else self.builder.zext)(value, I64)
        self.set_word(number, value)
        return str(kind), number

    def check(self, name, *args, thread=True):
        """Call a function of ``access_checks``."""
        _, count = self.checks[name]
        given = [*([self.rows["thread"][1]] if thread else []), self.rows["block"][1], *args]
        return self.builder.call(self.declared(name, I64, [I64] * count), given)

    def emit_if_else(self, condition, quick, ask):
        """``quick()`` where the condition holds, which is likely, else ``ask()``: the value of either."""
        builder = self.builder
        here, there, after = self.blocks("quick", "ask", "both")
        builder.cbranch(condition, here, there)
        ends, values = [], []
        for block, write in ((here, quick), (there, ask)):
            builder.position_at_end(block)
            values.append(write())
            ends.append(builder.block)
            builder.branch(after)
        builder.position_at_end(after)
        if values[0] is None:
            return None
        phis = []
        for pair in zip(*map(leaves, values), strict=True):
            phi = builder.phi(pair[0].type)
            for value, block in zip(pair, ends, strict=True):
                phi.add_incoming(value, block)
            phis.append(phi)
        return rebuilt(values[0], iter(phis))

    def emit_back_edge(self):
        """Emit a loop's back edge: spend one unit of fuel, and yield to Python when it is used up."""
        left = self.builder.sub(self.word("thread", layout.FUEL, I64), ir.Constant(I64, 1))
        self.set_word(layout.FUEL, left)
        rest, following = self.blocks("rest", "on")
        self.builder.cbranch(self.builder.icmp_signed("<", left, ir.Constant(I64, 0)), rest, following)
        self.builder.position_at_end(rest)
        self.request("rest", [], types.none, 0)
        self.builder.branch(following)
        self.builder.position_at_end(following)

    # --- where things stand -------------------------------------------------------------------------
    def site(self, function, number, used, line):
        """The number of a call site, which is number ``number`` of those of a function; see ``site_of``."""
        key = function, number, used
        if key not in self.numbers:
            self.numbers[key] = len(self.sites)
            self.sites.append(site_of(*key, line))
        return self.numbers[key]


def site_of(function, number, used, line):
    """The call site (code, offset) of a node: the interpreter asks no more of a code object than its file, its
    line, and whether the call's value is used."""
    code, offset = _call(used)
    name, file = f"{function.__code__.co_name} {number} {id(function)}", function.__code__.co_filename
    return code.replace(co_filename=file, co_firstlineno=line, co_name=name), offset


@functools.cache
def _call(used):
    """(code of a call in its first line, the call's offset)"""
    code = compile("x = f()" if used else "f()", "", "exec")
    offsets = [i.offset for i in dis.get_instructions(code) if i.opname in ("CALL", "CALL_FUNCTION")]
    return code, offsets[0]

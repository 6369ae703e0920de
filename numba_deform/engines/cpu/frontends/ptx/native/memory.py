"""Machine code of loads and stores, and of what threads do together: as the interpreter has them in
``semantics.memory``, by the checks of ``native.runtime``."""

from numba import types

from ....async_units.wgmma_matrices import FORMS
from ....native.codegen import accesses, matrices, warpgroups
from ....native.codegen.arithmetic import library
from ....native.codegen.ir_values import Static, Tuple, is_not_zero
from ....native.runtime import layout
from ....native.runtime.llvm_types import F32, I1, I32, I64, POINTER
from ..operations import LOCAL, SHARED, source_of
from ..semantics.memory import CLUSTER
from .expressions import Inlined
from .functions import builtin
from .numbers import BoundedInt, as_int, compared, constant, unsigned


# --- memory -----------------------------------------------------------------------------------------
class Buffer:
    """Bytes of a thread's own: local memory, or a parameter of a call."""

    def __init__(self, slot, size):
        self.slot, self.size = slot, size


def _numbers(values):
    return [as_int(v).constant for v in values]


@builtin("load", "load_flag")
def _load(body, name, space, address, each, count, buffer, *more):
    builder, (size, parts) = body.builder, _numbers((each, count))

    def ask():
        kind = types.uint64 if size == 8 else types.uint32
        given = list(map(body.operand, (space, address, each, count, buffer, *more)))
        made = body.asked(name, given, kind if parts == 1 else types.UniTuple(kind, parts))
        return Tuple([body.word_of(part, 8 * size) for part in (made.parts if parts > 1 else [made])])

    def from_memory():
        place, is_read_only = body.word_of(address, 64), bool(more)
        return accesses.load(body, space.value or SHARED, place, size, parts, ask, is_read_only)

    elsewhere = ask if name == "load_flag" or space.value == CLUSTER else from_memory
    made = _wherever(body, space.value, address, buffer, size * parts, elsewhere,
                     lambda pointer: accesses.read(builder, pointer, size, parts))  # fmt: skip
    numbers = list(map(unsigned, made.parts))
    return Tuple(numbers) if parts > 1 else numbers[0]


@builtin("load_word")
def _load_word(body, name, space, address):
    return _load(body, "load", space, address, constant(4), constant(1), Buffer(None, 0))


@builtin("store_word")
def _store_word(body, name, space, address, number):
    _store(body, "store", space, address, constant(4), Buffer(None, 0), number)


@builtin("store", "store_flag")
def _store(body, name, space, address, each, buffer, *numbers):
    flags, numbers = (numbers[:2], numbers[2:]) if name == "store_flag" else ((), numbers)
    words = [body.word_of(number, 8 * as_int(each).constant) for number in numbers]

    def ask():
        given = space, address, each, buffer, *flags, *map(unsigned, words)
        body.asked(name, list(map(body.operand, given)), types.none)

    def to_memory():
        accesses.store(body, space.value or SHARED, body.word_of(address, 64), words, ask)

    elsewhere = ask if flags or space.value == CLUSTER else to_memory
    _wherever(body, space.value, address, buffer, as_int(each).constant * len(words), elsewhere,
              lambda pointer: accesses.write(body.builder, pointer, words))  # fmt: skip


def _wherever(body, space, address, buffer, size, elsewhere, here):
    """What ``here(pointer)`` or ``elsewhere()`` comes to, as an address is in local memory or not."""
    builder = body.builder

    def local():
        first, last = builder.and_(body.word_of(address, 64), I64(LOCAL - 1)), buffer.size - size
        if last < 0:
            body.bail_out_if(I1(True))
        odd = is_not_zero(builder, builder.and_(first, I64(size - 1)))
        body.bail_out_if(builder.or_(odd, builder.icmp_unsigned(">", first, I64(max(last, 0)))))
        start = builder.ptrtoint(buffer.slot, I64)  # llvmlite's pointers to arrays take no other type
        return here(builder.inttoptr(builder.add(start, first), POINTER))

    if space == "local":
        return local()
    if space or not buffer.size:  # an address in its window is found nowhere
        return elsewhere()
    is_local = is_not_zero(builder, builder.and_(body.word_of(address, 64), I64(LOCAL)))
    return body.maker.emit_if_else(is_local, local, elsewhere)


# --- what threads do together -----------------------------------------------------------------------
@builtin("shuffle")
def _shuffle(body, name, mode, value, b, c, mask):
    """(the value of another lane, whether there is one): the source is found here."""
    source, inside = Inlined(body, source_of, [mode, BoundedInt(body.lane(), 0, 31), b, c]).result.parts
    given = [(body.word_of(v), types.uint32) for v in (mask, value, source)]
    return Tuple([body.asked(name, given, types.uint32, layout.SHUFFLE, f"shfl.{mode.value}"), inside])


@builtin("warp_product")
def _warp_product(body, name, rows, depth, kinds, a, b, c, limit):
    a, b = (list(map(body.word_of, factor.parts)) for factor in (a, b))
    c = c.parts if kinds.value[0] == "f32" else list(map(body.word_of, c.parts))
    form = *_numbers((rows, depth)), kinds.value
    made, kind = matrices.fragments(body, *form, a, b, c, bool(limit.constant))
    return body.returned(made, types.UniTuple(kind, len(c)))


@builtin("elected")
def _elected(body, name, mask):
    """(the lowest lane that is there, whether that is this one)"""
    given = [(body.word_of(mask), types.uint32), (I32(1), types.uint32)]
    there = body.asked(name, given, types.uint32, layout.BALLOT, "elect")
    lane = unsigned(library(body, "cttz", there.value))
    return Tuple([lane, compared(body.builder, "==", lane, unsigned(body.lane()))])


builtin("shared_address")(lambda body, name, array: unsigned(body.builder.trunc(array.address, I32)))
builtin("bytearray")(lambda body, name, size: body.zeros(body.target, as_int(size).constant))


@builtin("cuda.shared_array")
def _shared_array(body, name, size, kind, align):
    size, align = _numbers((size, align))
    fixed = Static((size, "uint8", align, body.target, None))
    return body.ask("shared_array", [(fixed, None)], types.Array(types.uint8, 1, "C"), layout.SHARED_ARRAY)


# --- products of warpgroups -----------------------------------------------------------------------------
# Registers go to memory for a product, which is over at once, and back. Whose they are, warpgroup_registers
# knows; what it has to look at while it runs is interpreted.
@builtin("warpgroup_fence", "warpgroup_commit", "warpgroup_wait")
def _together(body, name, *values):
    given = [(body.word_of(v), types.uint32) for v in values]
    warpgroups.ask(body, name.removeprefix("warpgroup_"), *given)


builtin("Factors")(lambda body, name, *values: Tuple(values))


@builtin("warpgroup_product")
def _product(body, name, kinds, columns, sums, words, factors):
    """``factors``: (a, b, adds, negated, transposed, limit)"""
    kinds, columns, builder = kinds.value, as_int(columns).constant, body.builder
    descriptor, b, adds, negated, transposed, limit = factors.parts
    is_float, in_registers = FORMS[kinds].sums == "f32", isinstance(descriptor, Static)
    held = sums.parts if is_float else list(map(body.word_of, sums.parts))
    place = body.maker.slot(held[0].type, len(held))
    accesses.write(builder, place, held)
    what = f"wgmma.m64n{columns}k{FORMS[kinds].depth}.{'.'.join(kinds)}"
    static = what, kinds, columns, in_registers, negated.value, bool(limit.constant), True
    of_a = [(body.word_of(w), types.uint32) for w in words.parts] if in_registers else [
        (body.word_of(descriptor, 64), types.uint64)]  # fmt: skip
    layouts = [(I64(int(each)), types.uint64) for each in transposed.value]
    given = [*of_a, (body.word_of(b, 64), types.uint64), (body.as_truth(adds), types.boolean), *layouts]
    warpgroups.issue(body, static, builder.ptrtoint(place, I64), given)
    held = accesses.read(builder, place, 4, len(held)).parts
    return Tuple([builder.bitcast(n, F32) if is_float else unsigned(n) for n in held])

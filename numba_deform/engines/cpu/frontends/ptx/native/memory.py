"""Machine code of loads and stores, and of what threads do together: as the interpreter has them in
``calls.memory``, by the checks of ``native.runtime``."""

from llvmlite import ir
from numba import types

from ....async_units.cycle_costs import COST
from ....async_units.wgmma_matrices import FORMS
from ....native.codegen import matrices, warpgroups
from ....native.codegen.arithmetic import library
from ....native.codegen.ir_values import Static, Tuple
from ....native.runtime import layout
from ....native.runtime.llvm_types import F32, F64, I1, I32, I64
from ..operations import LOCAL, SHARED, source_of
from ..semantics.memory import CLUSTER
from .expressions import inlined
from .functions import builtin
from .numbers import BoundedInt, as_int, compared, constant, resized, unsigned


# --- memory -----------------------------------------------------------------------------------------
class Buffer:
    """Bytes of a thread's own: local memory, or a parameter of a call."""

    def __init__(self, slot, size):
        self.slot, self.size = slot, size


def _numbers(values):
    return [as_int(v).constant for v in values]


@builtin("load")
def _load(body, call, values):
    """``load(space, address, each, count, local, read_only=False)``"""
    space, address, buffer = values[0].value, as_int(values[1]), values[4]
    each, count = _numbers(values[2:4])

    def from_memory():
        region, place, cost = _region(body, space, address, each * count)
        read_only = ir.Constant(I64, int(len(values) > 5))
        size, site = ir.Constant(I64, each * count), ir.Constant(I64, body.site(call))
        found = body.maker.check("read", region, place, size, site, read_only)

        def quick():
            body.maker.spend(cost)
            return read(body.builder.inttoptr(found, ir.PointerType()))

        return body.maker.emit_if_else(_is_not_zero(body, found), quick, ask)

    def ask():
        return _asked(body, call, "load", values, each, count)

    def read(pointer):
        return _read(body, pointer, each, count)

    elsewhere = ask if space == CLUSTER else from_memory
    return _of_parts(_wherever(body, space, address, buffer, each * count, elsewhere, read))


@builtin("load_flag")
def _load_flag(body, call, values):
    """``load_flag(space, address, each, count, local, is_wide, relaxed)``"""
    each, count = _numbers(values[2:4])
    return _of_parts(_wherever(
        body, values[0].value, as_int(values[1]), values[4], each * count,
        lambda: _asked(body, call, "load_flag", values, each, count), lambda p: _read(body, p, each, count),
    ))  # fmt: skip


def _asked(body, call, name, values, each, count):
    """Numbers that Python is asked for."""
    kind = types.uint64 if each == 8 else types.uint32
    made = body.ask(call, name, [body.operand(v) for v in values],
                    kind if count == 1 else types.UniTuple(kind, count))  # fmt: skip
    return Tuple([resized(body.builder, p, 8 * each) for p in (made.parts if count > 1 else [made])])


def _read(body, pointer, each, count):
    places = [body.builder.gep(pointer, [ir.Constant(I64, each * i)], source_etype=ir.IntType(8))
              for i in range(count)]  # fmt: skip
    return Tuple([body.builder.load(p, align=1, typ=ir.IntType(8 * each)) for p in places])


def _of_parts(made):
    parts = list(map(unsigned, made.parts))
    return Tuple(parts) if len(parts) > 1 else parts[0]


@builtin("load_word")
def _load_word(body, call, values):
    return _load(body, call, [*values, constant(4), constant(1), Buffer(None, 0)])


@builtin("store_word")
def _store_word(body, call, values):
    _store(body, call, [*values[:2], constant(4), Buffer(None, 0), values[2]])


@builtin("store")
def _store(body, call, values):
    """``store(space, address, each, local, *numbers)``"""
    space, address, each, buffer = values[0].value, as_int(values[1]), as_int(values[2]).constant, values[3]
    words = [resized(body.builder, as_int(v), 8 * each) for v in values[4:]]
    count = len(words)

    def to_memory():
        region, place, cost = _region(body, space, address, each * count)
        size, site = ir.Constant(I64, each * count), ir.Constant(I64, body.site(call))
        found = body.maker.check("write", region, place, size, site)

        def quick():
            body.maker.spend(cost)
            write(body.builder.inttoptr(found, ir.PointerType()))

        body.maker.emit_if_else(_is_not_zero(body, found), quick, ask)

    def ask():
        given = [body.operand(v) for v in (*values[:4], *map(unsigned, words))]
        return body.ask(call, "store", given, types.none)

    def write(pointer):
        _write(body, pointer, each, words)

    _wherever(body, space, address, buffer, each * count, ask if space == CLUSTER else to_memory, write)


@builtin("store_flag")
def _store_flag(body, call, values):
    """``store_flag(space, address, each, local, is_wide, relaxed, *numbers)``"""
    each = as_int(values[2]).constant
    words = [resized(body.builder, as_int(v), 8 * each) for v in values[6:]]
    given = [body.operand(v) for v in (*values[:6], *map(unsigned, words))]
    _wherever(body, values[0].value, as_int(values[1]), values[3], each * len(words),
              lambda: body.ask(call, "store_flag", given, types.none),
              lambda pointer: _write(body, pointer, each, words))  # fmt: skip


def _write(body, pointer, each, words):
    for i, word in enumerate(words):
        place = body.builder.gep(pointer, [ir.Constant(I64, each * i)], source_etype=ir.IntType(8))
        body.builder.store(word, place, align=1)


def _is_not_zero(body, value):
    return body.builder.icmp_unsigned("!=", value, ir.Constant(value.type, 0))


def _wherever(body, space, address, buffer, size, elsewhere, here):
    """What ``here(pointer)`` or ``elsewhere()`` comes to, as an address is in local memory or not."""
    builder = body.builder

    def local():
        first = BoundedInt(resized(builder, address, 64), 0, (1 << 64) - 1)
        first = builder.and_(first.value, ir.Constant(I64, LOCAL - 1))
        last = buffer.size - size
        odd = builder.and_(first, ir.Constant(I64, size - 1))
        if last < 0:
            body.maker.bail_out_if(ir.Constant(I1, 1))
        body.maker.bail_out_if(builder.or_(_is_not_zero(body, odd), builder.icmp_unsigned(
            ">", first, ir.Constant(I64, max(last, 0)))))  # fmt: skip
        start = builder.ptrtoint(buffer.slot, I64)  # llvmlite's pointers to arrays take no other type
        return here(builder.inttoptr(builder.add(start, first), ir.PointerType()))

    if space == "local":
        return local()
    if space or not buffer.size:  # an address in its window is found nowhere
        return elsewhere()
    is_local = _is_not_zero(body, builder.and_(resized(builder, address, 64), ir.Constant(I64, LOCAL)))
    return body.maker.emit_if_else(is_local, local, elsewhere)


def _region(body, space, address, size):
    """(the row of what is at an address, or 0; the address in 64 bits; what an access costs)"""
    builder, maker, wide = body.builder, body.maker, resized(body.builder, address, 64)
    cost = {"shared": ir.Constant(F64, COST.shared_access), "global": ir.Constant(F64, COST.global_access)}

    def in_global():
        return maker.check("find", wide, ir.Constant(I64, size), thread=False)

    def in_shared():
        odd = builder.and_(wide, ir.Constant(I64, size - 1))
        row = maker.word("block", layout.SHARED, I64)
        return builder.select(_is_not_zero(body, odd), ir.Constant(I64, 0), row)

    low = builder.and_(wide, ir.Constant(I64, 0xFFFFFFFF))
    if space:
        return (in_shared(), low, cost[space]) if space == "shared" else (in_global(), wide, cost[space])
    shared = _is_not_zero(body, builder.and_(wide, ir.Constant(I64, SHARED)))
    region = maker.emit_if_else(shared, in_shared, in_global)
    return region, builder.select(shared, low, wide), builder.select(shared, *cost.values())


# --- what threads do together -----------------------------------------------------------------------
@builtin("shuffle")
def _shuffle(body, call, values):
    """(the value of another lane, whether there is one): the source is found here."""
    mode, value, b, c, mask = values
    source, inside = inlined(body, source_of, [mode, body.lane(), b, c]).parts
    given = [(resized(body.builder, as_int(v), 32), types.uint32) for v in (mask, value, source)]
    made = body.ask(call, "shuffle", given, types.uint32, layout.SHUFFLE, f"shfl.{mode.value}")
    return Tuple([made, inside])


@builtin("warp_product")
def _warp_product(body, call, values):
    """``warp_product(rows, depth, types, a, b, c, limit)``"""
    rows, depth = _numbers(values[:2])
    kinds, limit = values[2].value, bool(values[6].constant)
    a, b = ([resized(body.builder, as_int(v), 32) for v in factor.parts] for factor in values[3:5])
    c = [v if kinds[0] == "f32" else resized(body.builder, as_int(v), 32) for v in values[5].parts]
    made, kind = matrices.fragments(body, body.site(call), rows, depth, kinds, a, b, c, limit)
    return body.returned(made, types.UniTuple(kind, len(c)))


@builtin("elected")
def _elected(body, call, values):
    """(the lowest lane that is there, whether that is this one)"""
    builder = body.builder
    given = [(resized(builder, as_int(values[0]), 32), types.uint32), (ir.Constant(I32, 1), types.uint32)]
    there = body.ask(call, "elected", given, types.uint32, layout.BALLOT, "elect")
    lane = unsigned(library(body, "cttz", there.value))
    own = builder.and_(body.maker.word("thread", layout.TID, I32), ir.Constant(I32, 31))
    return Tuple([lane, compared(builder, "==", lane, unsigned(own))])


@builtin("shared_address")
def _shared_address(body, call, values):
    return BoundedInt(body.builder.trunc(values[0].address, I32), 0, (1 << 32) - 1)


@builtin("bytearray")
def _bytearray(body, call, values):
    """Zeros."""
    size = as_int(values[0]).constant
    return body.zeros(body.target, size)


@builtin("cuda.shared_array")
def _shared_array(body, call, values):
    size, align = _numbers((values[0], values[2]))
    fixed = Static((size, "uint8", align, body.target, None))
    kind = types.Array(types.uint8, 1, "C")
    return body.maker.request(body, "shared_array", [(fixed, None)], kind, body.site(call), layout.SHARED_ARRAY)


# --- products of warpgroups -----------------------------------------------------------------------------
# Registers go to memory for a product, which is over at once, and back. Whose they are, warpgroup_registers
# knows; what it has to look at while it runs is interpreted.
@builtin("warpgroup_fence", "warpgroup_commit", "warpgroup_wait")
def _together(body, call, values):
    name = call.func.id.removeprefix("warpgroup_")
    given = [(resized(body.builder, as_int(v), 32), types.uint32) for v in values]
    warpgroups.ask(body, body.site(call), name, *given)


@builtin("Factors")
def _factors(body, call, values):
    return Tuple(values)


@builtin("warpgroup_product")
def _product(body, call, values):
    """``warpgroup_product(types, columns, sums, a, Factors(a, b, adds, negated, transposed, limit))``"""
    kinds, columns, sums, words, factors = values
    kinds, columns, builder = kinds.value, as_int(columns).constant, body.builder
    descriptor, b, adds, negated, transposed, limit = factors.parts
    is_float, in_registers = FORMS[kinds].sums == "f32", isinstance(descriptor, Static)
    kind = F32 if is_float else I32
    place = body.maker.slot(kind, len(sums.parts))
    for i, value in enumerate(sums.parts):
        builder.store(value if is_float else resized(builder, as_int(value), 32), _element(builder, place, i))
    what = f"wgmma.m64n{columns}k{FORMS[kinds].depth}.{'.'.join(kinds)}"
    static = what, kinds, columns, in_registers, negated.value, bool(limit.constant), True
    of_a = [(resized(builder, as_int(w), 32), types.uint32) for w in words.parts] if in_registers else [
        (resized(builder, as_int(descriptor), 64), types.uint64)]  # fmt: skip
    if isinstance(adds, BoundedInt):
        adds = compared(builder, "!=", adds, constant(0))
    layouts = [(ir.Constant(I64, int(each)), types.uint64) for each in transposed.value]
    given = [*of_a, (resized(builder, as_int(b), 64), types.uint64), (adds, types.boolean), *layouts]
    warpgroups.issue(body, body.site(call), static, builder.ptrtoint(place, I64), given)
    held = [builder.load(_element(builder, place, i), typ=kind) for i in range(len(sums.parts))]
    return Tuple(held if is_float else list(map(unsigned, held)))


def _element(builder, place, i):
    return builder.gep(place, [ir.Constant(I64, i)])

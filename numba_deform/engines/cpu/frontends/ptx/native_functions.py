"""The functions of ``operations`` that machine code computes in place, bit for bit as these do: arithmetic,
loads and stores, shuffles. All others are asked of Python."""

from llvmlite import ir
from numba import types

from ...async_units.cycle_costs import COST
from ...native.codegen.arithmetic import extreme
from ...native.codegen.ir_values import NotLowered, Static, Tuple, convert, saturating
from ...native.runtime import layout
from ...native.runtime.llvm_types import F32, F64, I1, I32, I64
from . import native_numbers as numbers
from .calls.memory import CLUSTER
from .native_expressions import Expressions
from .native_numbers import Whole, chosen, compared, known, resized, unsigned, whole
from .operations import LOCAL, SHARED

BUILTINS = Expressions.builtins


def builtin(*names):
    """Decorator: how a call of the functions of these names is written, (body, call, values) -> value."""

    def note(write):
        BUILTINS.update(dict.fromkeys(names, write))
        return write

    return note


def _kind(value):
    return types.float32 if value.type == F32 else types.float64


def _library(body, name, *values):
    """One of LLVM's own functions of numbers of one type."""
    kind = values[0].type
    suffix = {F32: "f32", F64: "f64"}.get(kind) or f"i{kind.width}"
    more = [ir.Constant(I1, 0)] if name in ("ctlz", "cttz") else []
    kinds = [kind] * len(values) + [I1] * len(more)
    return body.builder.call(body.maker.declared(f"llvm.{name}.{suffix}", kind, kinds), [*values, *more])


# --- integers ---------------------------------------------------------------------------------------
@builtin("min", "lower", "max", "higher")
def _extreme(body, call, values):
    (a, b), less = map(whole, values), call.func.id in ("min", "lower")
    made = chosen(body.builder, compared(body.builder, "<" if less else ">", b, a), b, a)
    pick = min if less else max
    return Whole(made.value, pick(a.low, b.low), pick(a.high, b.high)) if made.low >= 0 else made


@builtin("abs")
def _abs(body, call, values):
    if not isinstance(values[0], Whole):
        return _library(body, "fabs", *values)
    size = _magnitude(body, values[0])
    return Whole(size, 0, max(abs(values[0].low), abs(values[0].high)))


def _magnitude(body, number):
    """The absolute value of a Whole, as LLVM's without a sign."""
    width = numbers.width_of(0, max(abs(number.low), abs(number.high)))
    value = resized(body.builder, number, width)
    if number.low >= 0:
        return value
    return body.builder.select(compared(body.builder, "<", number, known(0)), body.builder.neg(value), value)


@builtin("quotient", "remainder")
def _divided_integers(body, call, values):
    """Of absolute values, as that of the lowest number by -1 has one bit more."""
    builder, (x, y) = body.builder, map(whole, values)
    by_zero, negative = compared(builder, "==", y, known(0)), compared(builder, "<", x, known(0))
    width = max(_magnitude(body, n).type.width for n in (x, y))
    a, b = (unsigned(_magnitude(body, n)) for n in (x, y))
    a, b = resized(builder, a, width), resized(builder, b, width)
    b = builder.select(by_zero, ir.Constant(b.type, 1), b)
    is_quotient = call.func.id == "quotient"
    made = unsigned((builder.udiv if is_quotient else builder.urem)(a, b))
    if is_quotient:
        negative = builder.xor(negative, compared(builder, "<", y, known(0)))
    if x.low < 0 or y.low < 0:
        made = chosen(builder, negative, numbers.calculated(builder, "Sub", known(0), made), made)
    return chosen(builder, by_zero, known(-1) if is_quotient else x, made)


@builtin("popc", "clz", "brev")
def _of_bits(body, call, values):
    width = whole(values[1]).constant
    value, name = resized(body.builder, whole(values[0]), width), call.func.id
    made = _library(body, {"popc": "ctpop", "clz": "ctlz", "brev": "bitreverse"}[name], value)
    return unsigned(made) if name == "brev" else Whole(made, 0, width)


@builtin("bfind")
def _bfind(body, call, values):
    builder, x, (width, shift) = body.builder, whole(values[0]), (whole(v) for v in values[1:])
    width = width.constant
    value = resized(builder, x, width)
    if x.low < 0:
        value = builder.select(compared(builder, "<", x, known(0)), builder.not_(value), value)
    left = Whole(_library(body, "ctlz", value), 0, width)
    none = builder.icmp_unsigned("==", value, ir.Constant(value.type, 0))
    top = left if shift.value.constant else numbers.calculated(builder, "Sub", known(width - 1), left)
    return chosen(builder, none, known(-1), top)


@builtin("prmt")
def _prmt(body, call, values):
    builder, (a, b, select) = body.builder, (resized(body.builder, whole(v), 64) for v in values)
    content, out = builder.or_(a, builder.shl(b, ir.Constant(I64, 32))), ir.Constant(I64, 0)
    for i in range(4):
        n = builder.lshr(select, ir.Constant(I64, 4 * i))
        at = builder.shl(builder.and_(n, ir.Constant(I64, 7)), ir.Constant(I64, 3))
        byte = builder.trunc(builder.lshr(content, at), ir.IntType(8))
        sign = builder.ashr(byte, ir.Constant(byte.type, 7))
        spread = builder.icmp_unsigned("!=", builder.and_(n, ir.Constant(I64, 8)), ir.Constant(I64, 0))
        byte = builder.zext(builder.select(spread, sign, byte), I64)
        out = builder.or_(out, builder.shl(byte, ir.Constant(I64, 8 * i)))
    return Whole(builder.trunc(out, I32), 0, (1 << 32) - 1)


@builtin("lop3")
def _lop3(body, call, values):
    builder, table, out = body.builder, whole(values[3]).constant, ir.Constant(I32, 0)
    if table is None:
        raise NotLowered("lop3 by a table that is no number")
    words = [resized(builder, whole(v), 32) for v in values[:3]]
    for i in range(8):
        if table >> i & 1:
            parts = [w if i >> 2 - n & 1 else builder.not_(w) for n, w in enumerate(words)]
            out = builder.or_(out, builder.and_(builder.and_(*parts[:2]), parts[2]))
    return unsigned(out)


@builtin("bfe")
def _bfe(body, call, values):
    """A field's sign is spread over all that is above it."""
    x, at, count, bits, signed = (whole(v) for v in values)
    builder, bits = body.builder, bits.constant
    at, count = (_place(body, n, bits) for n in (at, count))
    value, most = unsigned(resized(builder, x, bits)), numbers.known(bits)
    field = numbers.shifted_right(builder, value, at)
    mask = _mask(body, count, bits)
    field = builder.and_(field.value, mask)
    if signed.value.constant:
        end = numbers.calculated(builder, "Sub", numbers.calculated(builder, "Add", at, count), known(1))
        last = chosen(builder, compared(builder, "<", end, most), end, known(bits - 1))
        last = Whole(resized(builder, last, bits), 0, bits - 1)  # a count of 0 makes no field at all
        sign = builder.and_(numbers.shifted_right(builder, value, last).value, ir.Constant(value.value.type, 1))
        left = numbers.calculated(builder, "Sub", most, at)
        left = chosen(builder, compared(builder, "<", left, known(0)), known(0), left)
        inside = chosen(builder, compared(builder, "<", count, left), count, left)
        inside = Whole(resized(builder, inside, bits), 0, bits)
        above = builder.not_(_mask(body, inside, bits))
        is_negative = builder.icmp_unsigned("!=", sign, ir.Constant(sign.type, 0))
        field = builder.or_(field, builder.select(is_negative, above, ir.Constant(above.type, 0)))
    return unsigned(builder.select(compared(builder, "==", count, known(0)), ir.Constant(field.type, 0), field))


def _place(body, number, bits):
    """As ``operations.place``."""
    value, low, most = resized(body.builder, number, 32), ir.Constant(I32, 255), ir.Constant(I32, bits)
    return Whole(body.builder.and_(value, low) if bits == 32 else _library(body, "umin", value, most), 0, 255)


def _mask(body, count, bits):
    """LLVM's ``(1 << count) - 1`` of so many bits."""
    one = numbers.shifted_left(body.builder, ir.Constant(ir.IntType(bits), 1), count)
    return body.builder.sub(one, ir.Constant(one.type, 1))


@builtin("bfi")
def _bfi(body, call, values):
    a, b, at, count, bits = (whole(v) for v in values)
    builder, bits = body.builder, bits.constant
    at, count = (_place(body, n, bits) for n in (at, count))
    a, b = (resized(builder, n, bits) for n in (a, b))
    mask = numbers.shifted_left(builder, _mask(body, count, bits), at)
    moved = builder.and_(numbers.shifted_left(builder, a, at), mask)
    return unsigned(builder.or_(moved, builder.and_(b, builder.not_(mask))))


@builtin("selected")
def _selected(body, call, values):
    return body.choice(body.truth(call.args[2]), *values[:2])


@builtin("clamped")
def _clamped(body, call, values):
    x, low, high = map(whole, values)
    made = chosen(body.builder, compared(body.builder, "<", x, low), low, x)
    made = chosen(body.builder, compared(body.builder, ">", made, high), high, made)
    width = numbers.width_of(low.low, high.high)
    return Whole(resized(body.builder, made, width), low.low, high.high)


@builtin("int")
def _int(body, call, values):
    return whole(values[0])


# --- floats -----------------------------------------------------------------------------------------
@builtin("f32_of", "f64_of", "u32_of", "u64_of")
def _bits_of(body, call, values):
    name = call.func.id
    if name[0] == "u":
        return unsigned(body.builder.bitcast(values[0], I32 if name == "u32_of" else I64))
    width = 32 if name == "f32_of" else 64
    return body.builder.bitcast(resized(body.builder, whole(values[0]), width), F32 if width == 32 else F64)


@builtin("float32", "float")
def _float(body, call, values):
    value, want = values[0], F32 if call.func.id == "float32" else F64
    if isinstance(value, Whole):
        if value.constant is None:
            raise NotLowered("a float of an integer")
        return ir.Constant(want, float(value.constant))
    return convert(body.builder, value, _kind(value), types.float32 if want == F32 else types.float64)


@builtin("least", "greatest")
def _float_extreme(body, call, values):
    return extreme(body.builder, min if call.func.id == "least" else max, *values, _kind(values[0]))


def _doubles(body, *values):
    return [v if v.type == F64 else body.builder.fpext(v, F64) for v in values]


def _as(body, value, kind):
    return value if kind == F64 else body.builder.fptrunc(value, F32)


@builtin("divided")
def _divided(body, call, values):
    return _as(body, body.builder.fdiv(*_doubles(body, *values)), values[0].type)


@builtin("rcp")
def _rcp(body, call, values):
    return _divided(body, call, [ir.Constant(values[0].type, 1.0), *values])


@builtin("fma32", "fma")
def _fma(body, call, values):
    return _library(body, "fma", *values)


@builtin("copysign")
def _copysign(body, call, values):
    return _library(body, "copysign", *values)


@builtin("sqrt", "rni", "rzi", "rmi", "rpi")
def _rounded(body, call, values):
    name = {"sqrt": "sqrt", "rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}[call.func.id]
    return _as(body, _library(body, name, *_doubles(body, *values)), values[0].type)


@builtin("flushed")
def _flushed(body, call, values):
    builder, x = body.builder, values[0]
    normal = builder.fcmp_unordered(">=", _library(body, "fabs", x), ir.Constant(F32, 2.0**-126))
    return builder.select(normal, x, _library(body, "copysign", ir.Constant(F32, 0.0), x))


@builtin("saturated")
def _saturated(body, call, values):
    """``min(max(0, x), 1)`` as Python has them: the first of equal ones; of NaN it is 0."""
    builder, x = body.builder, values[0]
    zero, one = ir.Constant(F32, 0.0), ir.Constant(F32, 1.0)
    above = builder.select(builder.fcmp_ordered(">", x, zero), x, zero)
    return builder.select(builder.fcmp_ordered(">", above, one), one, above)


@builtin("whole")
def _whole(body, call, values):
    mode, low, high = values[1].value, whole(values[2]).constant, whole(values[3]).constant
    name = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}[mode]
    (x,), width = _doubles(body, values[0]), numbers.width_of(low, high)
    return Whole(saturating(body.builder, _library(body, name, x), ir.IntType(width), low < 0), low, high)


@builtin("nearest")
def _nearest(body, call, values):
    x, want = whole(values[0]), F32 if call.args[1].id == "float32" else F64
    if x.value.type.width > 64:
        raise NotLowered("a float of more than 64 bits")
    return (body.builder.sitofp if x.low < 0 else body.builder.uitofp)(x.value, want)


# --- memory -----------------------------------------------------------------------------------------
class Buffer:
    """Bytes of a thread's own: local memory, or a parameter of a call."""

    def __init__(self, slot, size):
        self.slot, self.size = slot, size


def _numbers(values):
    return [whole(v).constant for v in values]


@builtin("load")
def _load(body, call, values):
    """``load(space, address, each, count, local, read_only=False)``"""
    space, address, buffer = values[0].value, whole(values[1]), values[4]
    each, count = _numbers(values[2:4])

    def from_memory():
        region, place, cost = _region(body, space, address, each * count)
        read_only = ir.Constant(I64, int(len(values) > 5))
        size, site = ir.Constant(I64, each * count), ir.Constant(I64, body.site(call))
        found = body.maker.check("read", region, place, size, site, read_only)

        def quick():
            body.maker.spend(cost)
            return read(body.builder.inttoptr(found, ir.PointerType()))

        return body.maker.either(_is_not_zero(body, found), quick, ask)

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
        body, values[0].value, whole(values[1]), values[4], each * count,
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
    return _load(body, call, [*values, known(4), known(1), Buffer(None, 0)])


@builtin("store_word")
def _store_word(body, call, values):
    _store(body, call, [*values[:2], known(4), Buffer(None, 0), values[2]])


@builtin("store")
def _store(body, call, values):
    """``store(space, address, each, local, *numbers)``"""
    space, address, each, buffer = values[0].value, whole(values[1]), whole(values[2]).constant, values[3]
    words = [resized(body.builder, whole(v), 8 * each) for v in values[4:]]
    count = len(words)

    def to_memory():
        region, place, cost = _region(body, space, address, each * count)
        size, site = ir.Constant(I64, each * count), ir.Constant(I64, body.site(call))
        found = body.maker.check("write", region, place, size, site)

        def quick():
            body.maker.spend(cost)
            write(body.builder.inttoptr(found, ir.PointerType()))

        body.maker.either(_is_not_zero(body, found), quick, ask)

    def ask():
        given = [body.operand(v) for v in (*values[:4], *map(unsigned, words))]
        return body.ask(call, "store", given, types.none)

    def write(pointer):
        _write(body, pointer, each, words)

    _wherever(body, space, address, buffer, each * count, ask if space == CLUSTER else to_memory, write)


@builtin("store_flag")
def _store_flag(body, call, values):
    """``store_flag(space, address, each, local, is_wide, relaxed, *numbers)``"""
    each = whole(values[2]).constant
    words = [resized(body.builder, whole(v), 8 * each) for v in values[6:]]
    given = [body.operand(v) for v in (*values[:6], *map(unsigned, words))]
    _wherever(body, values[0].value, whole(values[1]), values[3], each * len(words),
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
        first = Whole(resized(builder, address, 64), 0, (1 << 64) - 1)
        first = builder.and_(first.value, ir.Constant(I64, LOCAL - 1))
        last = buffer.size - size
        odd = builder.and_(first, ir.Constant(I64, size - 1))
        if last < 0:
            body.leave_if(ir.Constant(I1, 1))
        body.leave_if(builder.or_(_is_not_zero(body, odd), builder.icmp_unsigned(
            ">", first, ir.Constant(I64, max(last, 0)))))  # fmt: skip
        start = builder.ptrtoint(buffer.slot, I64)  # llvmlite's pointers to arrays take no other type
        return here(builder.inttoptr(builder.add(start, first), ir.PointerType()))

    if space == "local":
        return local()
    if space or not buffer.size:  # an address in its window is found nowhere
        return elsewhere()
    is_local = _is_not_zero(body, builder.and_(resized(builder, address, 64), ir.Constant(I64, LOCAL)))
    return body.maker.either(is_local, local, elsewhere)


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
    region = maker.either(shared, in_shared, in_global)
    return region, builder.select(shared, low, wide), builder.select(shared, *cost.values())


# --- what threads do together -----------------------------------------------------------------------
@builtin("shuffle")
def _shuffle(body, call, values):
    """(the value of another lane, whether there is one): the source is found here."""
    builder, mode = body.builder, values[0].value
    value, b, c, mask = (resized(builder, whole(v), 32) for v in values[1:])
    lane = builder.and_(body.maker.word("thread", layout.TID, I32), ir.Constant(I32, 31))
    b, clamp = (builder.and_(n, ir.Constant(I32, 31)) for n in (b, c))
    segment = builder.and_(builder.lshr(c, ir.Constant(I32, 8)), ir.Constant(I32, 31))
    first, others = builder.and_(lane, segment), builder.not_(segment)
    last = builder.or_(first, builder.and_(clamp, others))
    source = {
        "idx": lambda: builder.or_(first, builder.and_(b, others)), "up": lambda: builder.sub(lane, b),
        "down": lambda: builder.add(lane, b), "bfly": lambda: builder.xor(lane, b),
    }[mode]()  # fmt: skip
    inside = builder.icmp_signed(">=" if mode == "up" else "<=", source, last)
    given = [(n, types.uint32) for n in (mask, value, builder.select(inside, source, lane))]
    made = body.ask(call, "shuffle", given, types.uint32, layout.SHUFFLE, f"shfl.{mode}")
    return Tuple([made, inside])


@builtin("elected")
def _elected(body, call, values):
    """(the lowest lane that is there, whether that is this one)"""
    builder = body.builder
    given = [(resized(builder, whole(values[0]), 32), types.uint32), (ir.Constant(I32, 1), types.uint32)]
    there = body.ask(call, "elected", given, types.uint32, layout.BALLOT, "elect")
    lane = unsigned(_library(body, "cttz", there.value))
    own = builder.and_(body.maker.word("thread", layout.TID, I32), ir.Constant(I32, 31))
    return Tuple([lane, compared(builder, "==", lane, unsigned(own))])


@builtin("shared_address")
def _shared_address(body, call, values):
    return Whole(body.builder.trunc(values[0].address, I32), 0, (1 << 32) - 1)


@builtin("bytearray")
def _bytearray(body, call, values):
    """Zeros."""
    size = whole(values[0]).constant
    return body.zeros(body.target, size)


@builtin("cuda.shared.array")
def _shared_array(body, call, values):
    size, align = _numbers((values[0], values[2]))
    fixed = Static((size, "uint8", align, body.target, None))
    kind = types.Array(types.uint8, 1, "C")
    return body.maker.request(body, "shared_array", [(fixed, None)], kind, body.site(call), layout.SHARED_ARRAY)

"""Plain accesses in machine code: checked by ``runtime.access_checks``, and made in place where these allow
it."""

from llvmlite import ir
from numba import types

from ...memory.cycle_costs import COST
from ..runtime import layout
from ..runtime.llvm_types import F64, I1, I8, I64, POINTER
from .ir_values import Element, NotLowered, Static, Tuple, is_not_zero, is_number, lowered, size_of

COSTS = F64(COST.shared_access), F64(COST.global_access)


def access(body, what, region, address, size, quick, ask, *more):
    """What ``quick(pointer)`` comes to where an access of ``size`` bytes may be made in place, else ``ask()``.
    ``what``: "write", or "read" with 1 behind ``ask`` where it is by ``.nc``, else 0."""
    numbers = [I64(number) for number in (size, body.site(), *more)]
    found = body.maker.check(what, region, address, *numbers)

    def here():
        shared = body.builder.icmp_unsigned("==", region, body.maker.word("block", layout.SHARED, I64))
        body.maker.spend(body.builder.select(shared, *COSTS))
        return quick(body.builder.inttoptr(found, POINTER))

    return body.maker.emit_if_else(is_not_zero(body.builder, found), here, ask)


def load(body, space, address, each, count, ask, read_only=False):
    """The Tuple of ``count`` integers of ``each`` bytes at an address; ``ask()`` has the interpreter read them.
    ``space``: "shared" or "global"; of a generic address, where the window of shared memory begins."""
    region, place = _region(body, space, address, each * count)
    return access(body, "read", region, place, each * count, lambda p: read(body.builder, p, each, count), ask,
                  int(read_only))  # fmt: skip


def store(body, space, address, numbers, ask):
    """Write integers, one behind the other, likewise."""
    size = sum(size_of(number.type) for number in numbers)
    region, place = _region(body, space, address, size)
    access(body, "write", region, place, size, lambda p: write(body.builder, p, numbers), ask)


def read(builder, pointer, each, count):
    """The Tuple of ``count`` integers of ``each`` bytes."""
    places = [builder.gep(pointer, [I64(each * i)], source_etype=I8) for i in range(count)]
    return Tuple([builder.load(place, align=1, typ=ir.IntType(8 * each)) for place in places])


def write(builder, pointer, numbers):
    for i, number in enumerate(numbers):
        place = builder.gep(pointer, [I64(size_of(number.type) * i)], source_etype=I8)
        builder.store(number, place, align=1)


def _region(body, space, address, size):
    """(the row of what is at an address of 32 or 64 bits, or 0; the address in 64)"""
    builder, maker = body.builder, body.maker
    wide = address if address.type == I64 else builder.zext(address, I64)

    def in_global():
        return maker.check("find", wide, I64(size), thread=False)

    def in_shared():
        odd = builder.and_(wide, I64(size - 1))
        return builder.select(is_not_zero(builder, odd), I64(0), maker.word("block", layout.SHARED, I64))

    if isinstance(space, str):
        return in_shared() if space == "shared" else in_global(), wide
    shared = is_not_zero(builder, builder.and_(wide, I64(space)))
    region = maker.emit_if_else(shared, in_shared, in_global)
    low = builder.and_(wide, I64(0xFFFFFFFF))
    return region, builder.select(shared, low, wide)


def load_element(body, element):
    """A number out of a shared or global array: ``array[i, j]``, or ``array[i].field``."""
    kind = lowered(element.kind)
    return access(body, "read", element.region, element.address, _bytes(kind),
                  lambda pointer: body.builder.load(pointer, typ=kind),
                  lambda: body.ask("get_item", _given(element), element.kind), 0)  # fmt: skip


def store_element(body, element, value):
    """``array[i, j] = value``, or of a field."""
    given = [(value, element.kind), *_given(element)]
    access(body, "write", element.region, element.address, _bytes(lowered(element.kind)),
           lambda pointer: write(body.builder, pointer, [value]),
           lambda: body.ask("set_item", given, types.none))  # fmt: skip


def _given(element):
    """What Python is told of an element."""
    indices = [(i, types.int64) for i in element.indices]
    return [(element.view, types.none), (Static(element.field), None), *indices]


def element_of(body, view, indices):
    """The Element ``view[indices]``; no place of any memory where it is out of range."""
    inside, address = _address(body, view, indices)
    if isinstance(view.kind, types.Record):
        body.bail_out_if(body.builder.not_(inside))
    region = body.builder.select(inside, view.region, ir.Constant(I64, 0))
    return Element(view, indices, region, address, view.kind)


def field_of(body, element, name):
    """The Element ``element.name``, of one that is a record."""
    record = element.kind
    kind, offset = record.typeof(name), record.offset(name)
    if not is_number(kind) or offset % (size := _bytes(lowered(kind))) or record.size % size:
        raise NotLowered(f"the field {name} of {record}")
    address = body.builder.add(element.address, ir.Constant(I64, offset))
    return Element(element.view, element.indices, element.region, address, kind, name)


def _bytes(kind):
    if kind == I1:
        raise NotLowered("an array of booleans")
    return size_of(kind)


def _address(body, view, indices):
    """(whether the element is inside, its address)"""
    builder, address, inside = body.builder, view.address, None
    for i, n, stride in zip(indices, view.shape, view.strides, strict=True):
        i = builder.select(builder.icmp_signed("<", i, ir.Constant(I64, 0)), builder.add(i, n), i)
        fits = builder.icmp_unsigned("<", i, n)
        inside = fits if inside is None else builder.and_(inside, fits)
        address = builder.add(address, builder.mul(i, stride))
    return inside if inside is not None else ir.Constant(ir.IntType(1), 1), address

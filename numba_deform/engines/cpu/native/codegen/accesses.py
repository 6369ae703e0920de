"""Plain accesses in machine code: checked by ``runtime.access_checks``, and made in place where these allow
it."""

from llvmlite import ir
from numba import types

from ...async_units.cycle_costs import COST
from ..runtime import layout
from ..runtime.llvm_types import I1, I32, I64
from .ir_values import Element, NotLowered, Static, Tuple, is_number, lowered, size_of


def load(body, address, space, size, words, read_only, ask):
    """A load intrinsic: checked here if that is enough, else by the interpreter."""
    maker, builder = body.maker, body.builder
    region, address = _region(body, space, address, size)
    number = ir.Constant(I64, body.site())
    found = maker.check("read", region, address, ir.Constant(I64, size), number, ir.Constant(I64, read_only))

    def quick():
        maker.spend(COST.shared_access if space == "shared" else COST.global_access)
        pointer = builder.inttoptr(found, ir.PointerType())
        if size == 2:
            return builder.zext(builder.load(pointer, typ=ir.IntType(16)), I32)
        parts = [builder.load(builder.gep(pointer, [ir.Constant(I64, i)], source_etype=I32), typ=I32)
                 for i in range(words)]  # fmt: skip
        return parts[0] if words == 1 else Tuple(parts)

    return maker.emit_if_else(builder.icmp_unsigned("!=", found, ir.Constant(I64, 0)), quick, ask)


def store(body, address, space, words, ask, half=False):
    """A store intrinsic, likewise; ``half``: of the lower 16 bits of one word."""
    maker, builder, size = body.maker, body.builder, 2 if half else 4 * len(words)
    if half:
        words = [builder.trunc(words[0], ir.IntType(16))]
    region, address = _region(body, space, address, size)
    found = maker.check("write", region, address, ir.Constant(I64, size), ir.Constant(I64, body.site()))

    def quick():
        maker.spend(COST.shared_access if space == "shared" else COST.global_access)
        pointer = builder.inttoptr(found, ir.PointerType())
        for i, word in enumerate(words):
            builder.store(word, builder.gep(pointer, [ir.Constant(I64, i)], source_etype=I32))

    return maker.emit_if_else(builder.icmp_unsigned("!=", found, ir.Constant(I64, 0)), quick, ask)


def _region(body, space, address, size):
    """(the row of what is at an address, or 0; the address in 64 bits)"""
    maker, builder = body.maker, body.builder
    if space == "global":
        return maker.check("find", address, ir.Constant(I64, size), thread=False), address
    region, wide = maker.word("block", layout.SHARED, I64), builder.zext(address, I64)
    odd = builder.and_(wide, ir.Constant(I64, size - 1))
    aligned = builder.icmp_unsigned("==", odd, ir.Constant(I64, 0))
    return builder.select(aligned, region, ir.Constant(I64, 0)), wide


def load_element(body, element):
    """A number out of a shared or global array: ``array[i, j]``, or ``array[i].field``."""
    maker, builder, kind = body.maker, body.builder, lowered(element.kind)
    size, number = ir.Constant(I64, _bytes(kind)), ir.Constant(I64, body.site())
    found = maker.check("read", element.region, element.address, size, number, ir.Constant(I64, 0))

    def quick():
        pointer = builder.inttoptr(found, ir.PointerType())
        return builder.load(pointer, typ=kind)

    def ask():
        return maker.request(body, "get_item", _given(element), element.kind, body.site())

    return maker.emit_if_else(builder.icmp_unsigned("!=", found, ir.Constant(I64, 0)), quick, ask)


def store_element(body, element, value):
    """``array[i, j] = value``, or of a field."""
    maker, builder, kind = body.maker, body.builder, lowered(element.kind)
    size, number = ir.Constant(I64, _bytes(kind)), ir.Constant(I64, body.site())
    found = maker.check("write", element.region, element.address, size, number)

    def quick():
        builder.store(value, builder.inttoptr(found, ir.PointerType()))

    def ask():
        given = [(value, element.kind), *_given(element)]
        maker.request(body, "set_item", given, types.none, body.site())

    maker.emit_if_else(builder.icmp_unsigned("!=", found, ir.Constant(I64, 0)), quick, ask)


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

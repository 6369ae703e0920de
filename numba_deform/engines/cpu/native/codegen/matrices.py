"""Tensor cores in machine code, as ``async_units.warp_mma`` has them: ``ldmatrix`` and ``stmatrix`` are plain
accesses of each lane, at addresses that the lanes tell each other; Python is asked for ``mma``, once a warp.
"""

from llvmlite import ir
from numba import types

from ...async_units.cycle_costs import COST
from ..runtime import layout
from ..runtime.llvm_types import I32, I64
from .ir_values import NotLowered, Static, Tuple

ALL = ir.Constant(I32, -1), types.uint32  # the lanes that come
I16 = ir.IntType(16)


def load_matrices(body, site, row, count, transposed):
    """The words of ``count`` 8x8 matrices that this lane holds, whose rows' addresses the lanes give."""
    places, builder = _rows(body, site, row, count, transposed), body.builder
    read = [_load(body, site, place, 2 if transposed else 4) for place in places]
    if not transposed:
        return Tuple(read)
    pairs = zip(read[::2], read[1::2], strict=True)
    return Tuple([builder.or_(low, builder.shl(high, ir.Constant(I32, 16))) for low, high in pairs])


def store_matrices(body, site, row, words, transposed):
    """Writes what ``load_matrices`` reads."""
    places, builder = _rows(body, site, row, len(words), transposed), body.builder
    if transposed:
        shifts = [ir.Constant(I32, 0), ir.Constant(I32, 16)]
        words = [builder.trunc(builder.lshr(word, by), I16) for word in words for by in shifts]
    for word, place in zip(words, places, strict=True):
        _store(body, site, place, word)


def multiply(body, site, form, operands, result):
    """What ``mma`` makes of a lane's ``operands``, pairs (value, its type). ``form``: of ``warp_mma.FORMS``, or
    what ``form_of`` takes."""
    given = [(Static(form), None), ALL, *operands]
    return body.maker.request(body, "multiply", given, result, site, layout.TOGETHER, f"at {site}")


def _rows(body, site, row, count, transposed):
    """The addresses of a lane's elements: of words, or of halves where they are transposed."""
    shape = ir.Constant(I32, count | transposed << 8), types.uint32
    kind = types.UniTuple(types.uint32, count * (1 + transposed))
    given = [ALL, (row, types.uint32), shape]
    made = body.maker.request(body, "rows", given, kind, site, layout.ROWS, f"at {site}")
    return made.parts


def _load(body, site, place, size):
    builder, maker = body.builder, body.maker
    found = _checked(body, "read", site, place, size, ir.Constant(I64, 0))

    def quick():
        maker.spend(COST.shared_access)
        value = builder.load(builder.inttoptr(found, ir.PointerType()), typ=ir.IntType(8 * size))
        return value if size == 4 else builder.zext(value, I32)

    def ask():
        given = [(place, types.uint32), (Static(size), None)]
        return maker.request(body, "read_element", given, types.uint32, site)

    return maker.emit_if_else(builder.icmp_unsigned("!=", found, ir.Constant(I64, 0)), quick, ask)


def _store(body, site, place, word):
    builder, maker, size = body.builder, body.maker, word.type.width // 8
    found = _checked(body, "write", site, place, size)

    def quick():
        maker.spend(COST.shared_access)
        builder.store(word, builder.inttoptr(found, ir.PointerType()))

    def ask():
        whole = word if size == 4 else builder.zext(word, I32)
        given = [(place, types.uint32), (Static(size), None), (whole, types.uint32)]
        maker.request(body, "write_element", given, types.none, site)

    maker.emit_if_else(builder.icmp_unsigned("!=", found, ir.Constant(I64, 0)), quick, ask)


def _checked(body, name, site, place, size, *more):
    """Where the bytes at a shared address are, if a plain access may go on; else 0."""
    region, wide = body.maker.word("block", layout.SHARED, I64), body.builder.zext(place, I64)
    return body.maker.check(name, region, wide, ir.Constant(I64, size), ir.Constant(I64, site), *more)


# --- by the intrinsics' names -------------------------------------------------------------------------
MATRICES = {f"{verb}matrix_x{count}{end}": (verb, count, bool(end))
            for verb in ("ld", "st") for count in (1, 2, 4) for end in ("", "_trans")}  # fmt: skip
OF_BYTES = ("s8", "u8", "s8_u8", "u8_s8", "e4m3", "e5m2", "e4m3_e5m2", "e5m2_e4m3")
DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8, **dict.fromkeys(OF_BYTES, 32)}
PRODUCTS = {f"mma_m16n8k{depth}_{kind}": kind for kind, depth in DEPTHS.items()}


def intrinsic(body, site, name, given, result):
    """The value of a call of one of ``device/matrix.py``; ``given``: pairs (value, its type)."""
    if name in PRODUCTS:
        return multiply(body, site, PRODUCTS[name], given, result)
    verb, count, transposed = MATRICES[name]
    row, *words = [value for value, _ in given]
    if verb == "st":
        return store_matrices(body, site, row, words, transposed)
    made = load_matrices(body, site, row, count, transposed)
    return made if count > 1 else made.parts[0]


def fragments(body, site, rows, depth, kinds, a, b, c, limit):
    """(what ``mma`` of PTX makes of a lane's registers, their type). ``kinds``: PTX types of the sums, of A, of
    B and of C."""
    if "f64" in kinds:
        raise NotLowered("a product of doubles")
    sums = types.float32 if kinds[0] == "f32" else types.uint32
    operands = [(word, types.uint32) for word in (*a, *b)] + [(word, sums) for word in c]
    result = types.UniTuple(sums, len(c))
    return multiply(body, site, (rows, depth, kinds, limit), operands, result), sums

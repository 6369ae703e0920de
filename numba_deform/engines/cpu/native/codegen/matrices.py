"""Tensor cores in machine code, as ``async_units.warp_mma`` has them: ``ldmatrix`` and ``stmatrix`` are plain
accesses of each lane, at addresses that the lanes tell each other; Python is asked for ``mma``, once a warp.
"""

from llvmlite import ir
from numba import types

from ..runtime import layout
from ..runtime.llvm_types import I16, I32
from .accesses import load, store
from .ir_values import NotLowered, Static, Tuple, size_of

ALL = ir.Constant(I32, -1), types.uint32  # the lanes that come


def load_matrices(body, row, count, transposed):
    """The words of ``count`` 8x8 matrices that this lane holds, whose rows' addresses the lanes give."""
    places, builder = _rows(body, row, count, transposed), body.builder
    read = [_load(body, place, 2 if transposed else 4) for place in places]
    if not transposed:
        return Tuple(read)
    pairs = zip(read[::2], read[1::2], strict=True)
    return Tuple([builder.or_(low, builder.shl(high, ir.Constant(I32, 16))) for low, high in pairs])


def store_matrices(body, row, words, transposed):
    """Writes what ``load_matrices`` reads."""
    places, builder = _rows(body, row, len(words), transposed), body.builder
    if transposed:
        shifts = [ir.Constant(I32, 0), ir.Constant(I32, 16)]
        words = [builder.trunc(builder.lshr(word, by), I16) for word in words for by in shifts]
    for word, place in zip(words, places, strict=True):
        _store(body, place, word)


def multiply(body, form, operands, result):
    """What ``mma`` makes of a lane's ``operands``, pairs (value, its type). ``form``: of ``warp_mma.FORMS``, or
    what ``form_of`` takes."""
    given = [(Static(form), None), ALL, *operands]
    return body.ask("multiply", given, result, layout.TOGETHER, f"at {body.site()}")


def _rows(body, row, count, transposed):
    """The addresses of a lane's elements: of words, or of halves where they are transposed."""
    shape = ir.Constant(I32, count | transposed << 8), types.uint32
    kind = types.UniTuple(types.uint32, count * (1 + transposed))
    given = [ALL, (row, types.uint32), shape]
    return body.ask("rows", given, kind, layout.ROWS, f"at {body.site()}").parts


def _load(body, place, size):
    """An element, in 32 bits."""

    def ask():
        made = body.ask("read_element", [(place, types.uint32), (Static(size), None)], types.uint32)
        return Tuple([made if size == 4 else body.builder.trunc(made, I16)])

    value, = load(body, "shared", place, size, 1, ask).parts
    return value if size == 4 else body.builder.zext(value, I32)


def _store(body, place, word):
    size = size_of(word.type)
    whole = word if size == 4 else body.builder.zext(word, I32)
    given = [(place, types.uint32), (Static(size), None), (whole, types.uint32)]
    store(body, "shared", place, [word], lambda: body.ask("write_element", given, types.none))


# --- by the intrinsics' names -------------------------------------------------------------------------
MATRICES = {f"{verb}matrix_x{count}{end}": (verb, count, bool(end))
            for verb in ("ld", "st") for count in (1, 2, 4) for end in ("", "_trans")}  # fmt: skip
OF_BYTES = ("s8", "u8", "s8_u8", "u8_s8", "e4m3", "e5m2", "e4m3_e5m2", "e5m2_e4m3")
DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8, **dict.fromkeys(OF_BYTES, 32)}
PRODUCTS = {f"mma_m16n8k{depth}_{kind}": kind for kind, depth in DEPTHS.items()}


def intrinsic(body, name, given, result):
    """The value of a call of one of ``device/matrix.py``; ``given``: pairs (value, its type)."""
    if name in PRODUCTS:
        return multiply(body, PRODUCTS[name], given, result)
    verb, count, transposed = MATRICES[name]
    row, *words = [value for value, _ in given]
    if verb == "st":
        return store_matrices(body, row, words, transposed)
    made = load_matrices(body, row, count, transposed)
    return made if count > 1 else made.parts[0]


def fragments(body, rows, depth, kinds, a, b, c, limit):
    """(what ``mma`` of PTX makes of a lane's registers, their type). ``kinds``: of the sums, A, B and C."""
    if "f64" in kinds:
        raise NotLowered("a product of doubles")
    sums = types.float32 if kinds[0] == "f32" else types.uint32
    operands = [(word, types.uint32) for word in (*a, *b)] + [(word, sums) for word in c]
    return multiply(body, (rows, depth, kinds, limit), operands, types.UniTuple(sums, len(c))), sums

"""Tensor cores: fragments in registers, matrices in shared memory; the sums are rounded as the CPU engine
rounds."""

import re

import numpy as np

from ..cpu.async_units.warp_mma import form_of, has_form, multiply_words
from ..cpu.async_units.wgmma_matrices import A_PLACES, ROWS, addresses, from_memory, sum_places
from ..cpu.async_units.wgmma_matrices import FORMS as PRODUCTS
from .accesses import register, words_of
from .barriers import pair
from .operands import F32, F64, U32, U64, Unknown, read_predicate
from .table import row

LANES = np.arange(32)
ALL = np.ones(32, bool)
DEPTHS = {"1684": 4, "1688": 8, "16816": 16, "16832": 32}
KINDS = "S8", "U8", "E4M3", "E5M2", "TF32", "BF16"


def fragments(w, text, count):
    return words_of(w, register(text.partition(".")[0]), count, ALL)


def multiply(one):
    """mma of m16n8: D = A B + C."""
    depth = next((n for word, n in DEPTHS.items() if word in one.words), 0)
    kinds = [word.lower() for word in one.opcode.split(".") if word in KINDS] or ["f16"]
    total = "s32" if one.stem == "IMMA" else "f32"
    form, k = (16, depth, (total, kinds[0], kinds[-1], total)), register(one.operands[0])
    if not has_form(*form) or k is None or total == "f32" and "F32" not in one.words:
        raise Unknown(one.opcode)
    counts = [rows.shape[1] for rows, _ in form_of(*form).places]

    def run(w, *_):
        if w.active.any():
            words = [fragments(w, *given) for given in zip(one.operands[1:], counts, strict=True)]
            w.r[k : k + 4] = multiply_words(form, np.concatenate(words, 1)).T

    return run


def warpgroup_multiply(one):
    """wgmma: each warp of the four has 16 of the rows, which it computes by itself."""
    rows, columns, depth = map(int, re.search(r"\.(\d+)x(\d+)x(\d+)\.", one.opcode + ".").groups())
    at = next(n for n, text in enumerate(one.operands) if text.startswith("gdesc"))
    d, descriptor = register(one.operands[0]), int(re.search(r"UR(\d+)", one.operands[at])[1])
    c, scales = register(one.operands[at + 1]), [t for t in one.operands[at + 2 :] if "P" in t]
    keeps = read_predicate(scales[0]) if scales else lambda w: np.ones(1, bool)
    a_register = register(one.operands[1]) if at == 2 else None
    kind, flips = "bf16" if "BF16" in one.words else "f16", one.operands[at]
    form = PRODUCTS["f32", kind, kind]
    if (rows, depth) != (ROWS, 16) or "F32" not in one.words:
        raise Unknown(one.opcode)
    places = [part[:32] for part in sum_places(columns)]
    a_places = [part[:32] for part in A_PLACES[form.size]]

    def run(w, *_):
        first, shared = 16 * (w.number % 4), w.block.shared.bytes
        if a_register is None:
            where = addresses(pair(w, descriptor), ROWS, "tnspA" in flips)[first : first + 16]
            left = from_memory(form, form.a, shared, where)
        else:
            left = np.zeros((16, depth), F32)
            left[a_places[0], a_places[1]] = form.a(words_of(w, a_register, 4, ALL).copy()).reshape(32, 4, 2)
        where = addresses(pair(w, descriptor + 2), columns, "tnspB" in flips)
        right = from_memory(form, form.b, shared, where)
        total = left.astype(F64) @ right.astype(F64).T
        if keeps(w).all():
            total[places[0], places[1]] += words_of(w, c, columns // 2, ALL).view(F32)
        w.r[d : d + columns // 2] = np.ascontiguousarray(total[places[0], places[1]].astype(F32)).view(U32).T

    return run


def _count(one):
    return next((n for n in (4, 2) if str(n) in one.words), 1)


def load_matrices(one):
    """LDSM: rows of 16 bytes at the addresses of eight lanes each; MT88: transposed."""
    k, count = register(one.operands[0]), _count(one)

    def run(w, _, address):
        if w.active.any():
            space, places = _rows(w, one, address, count)
            for i, matrix in enumerate(space.read(places, 16).view(np.uint16).reshape(count, 8, 8)):
                part = matrix.T if "MT88" in one.words else matrix
                w.r[k + i] = np.ascontiguousarray(part).view(U32).reshape(32)

    return run


def store_matrices(one):
    k, count = register(one.operands[1]), _count(one)

    def run(w, address, _):
        if w.active.any():
            space, at = _rows(w, one, address, count)
            for i in range(count):
                matrix = np.ascontiguousarray(w.r[k + i]).view(np.uint16).reshape(8, 8)
                matrix = np.ascontiguousarray(matrix.T) if "MT88" in one.words else matrix
                space.write(at[8 * i : 8 * i + 8], 16, matrix.view(U32))

    return run


def _rows(w, one, address, count):
    """(the memory of the matrices, where their rows are); counts the access, eight rows at a time."""
    lanes = LANES < 8 * count
    places = np.broadcast_to(address, (32,))[lanes] & U64(0xFFFFFF)
    w.block.counts.access(one, "load", "shared", places, lanes, 16)
    return w.block.shared, places


row("HMMA|IMMA|QMMA", "", "*tttt", multiply, "16816 1688 1684 16832 F32 BF16 TF32 S8 U8 E4M3 E5M2")
row("HGMMA", "", "*tttt?t?t?", warpgroup_multiply, "64x32x16 64x64x16 64x128x16 64x256x16 F32 BF16")
row("LDSM.16.M88|LDSM.16.MT88", "", "*t@", load_matrices, "2 4")
row("STSM.16.M88|STSM.16.MT88", "", "*@t", store_matrices, "2 4")

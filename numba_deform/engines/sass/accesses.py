"""Loads, stores, atomics and cp.async: what they move, and what is counted of each."""

import re

import ml_dtypes
import numpy as np

from ..cpu.async_units.reductions import TAKEN, combine
from .operands import I32, I64, REGISTER, U32, U64, Unknown
from .table import row

WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "U64": 8, "S64": 8, "F64": 8, "128": 16}
SPACES = {"LDG": "global", "STG": "global", "LD": "generic", "ST": "generic", "LDS": "shared", "STS": "shared",
          "LDL": "local", "STL": "local", "ATOMG": "global", "ATOM": "generic", "ATOMS": "shared",
          "REDG": "global", "RED": "generic"}  # fmt: skip
HINTS = "E CONSTANT STRONG WEAK GPU SM SYS CTA EF EL EN LU NA PRIVATE LTC64B LTC128B LTC256B MMIO"
NUMBERS = {"F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32, "F64": np.float64}
VECTOR = re.compile(r"(BF16|F16|F32|F64)(?:x(\d))?$")


def width(one):
    """Bytes of one lane's access."""
    for word in one.words:
        if m := VECTOR.match(word):
            return max(np.dtype(NUMBERS[m[1]]).itemsize * int(m[2] or 1), 4)
    return next((size for word, size in WIDTHS.items() if word in one.words), 4)


def number_type(one):
    """The type of what an atomic operation changes, as PTX names it."""
    for word in one.words:
        if m := VECTOR.match(word):
            return m[1].lower()
    kinds = {"S32": "s32", "S64": "s64", "U64": "u64", "64": "u64"}
    return next((kind for word, kind in kinds.items() if word in one.words), "u32")


def register(text):
    """The number of a register of the lanes; None for RZ."""
    m = REGISTER.fullmatch(text)
    if m is None or m[1] == "UR":
        raise Unknown(f"operand {text}")
    return None if m[2] == "Z" else int(m[2])


def words_of(w, k, count, lanes):
    """(n, count) words of registers k, k + 1 .. of these lanes; zeros for RZ."""
    if k is None:
        return np.zeros((int(lanes.sum()), count), U32)
    return w.r[k : k + count, lanes].T


def mask_of(numbers):
    """The lanes with these numbers, as bools."""
    mask = np.zeros(32, bool)
    mask[numbers] = True
    return mask


def load(one):
    size, k, space = width(one), register(one.operands[0]), SPACES[one.stem]
    extend = next((np.dtype(f"i{n}") for n, word in ((1, "S8"), (2, "S16")) if word in one.words), None)

    def run(w, _, addresses, __):
        lanes = w.active
        if not lanes.any():
            return w.block.counts.nothing(one)
        words = w.block.access(one, w, space, addresses, lanes, size, "load")
        words = words.astype(extend).astype(I32).view(U32) if extend else words
        if k is not None:
            w.r[k : k + words.shape[1], lanes] = words.T

    return run


def store(one):
    size, k, space = width(one), register(one.operands[1]), SPACES[one.stem]

    def run(w, addresses, _):
        if not w.active.any():
            return w.block.counts.nothing(one)
        values = words_of(w, k, max(size // 4, 1), w.active)
        w.block.access(one, w, space, addresses, w.active, size, "store", values)

    return run


CHANGES = ("ADD", "MIN", "MAX", "AND", "OR", "XOR", "EXCH", "INC", "DEC")
CHANGE_WORDS = ("RN FTZ U32 S32 64 U64 S64 F32 F64 F16 BF16 F16x2 F16x4 F16x8 BF16x2 BF16x4 BF16x8 F32x2 F32x4 "
                f"32 POPC {' '.join(CHANGES)}")  # fmt: skip


def change_of(one, kind=None):
    """A function (old bytes, new ones) -> what is written, of an operation on memory; ``kind``: of the numbers,
    if the instruction does not say it."""
    name = "ADD" if "POPC" in one.words else next((name for name in CHANGES if name in one.words), None)
    kind, op, flush = kind or number_type(one), (name or "").lower(), "FTZ" in one.words
    if name is None or kind not in TAKEN.get(op, (kind,)):
        raise Unknown(one.opcode)
    if op == "exch":
        return lambda old, new: new
    return lambda old, new: combine(op, kind, bytes(old), bytes(new), flush)


def atomic(one):
    """One lane after the other; what was there before goes to a register, if any; of CAST, if it swaps."""
    size, space, operands = width(one), SPACES[one.stem], list(one.operands)
    at = next(n for n, text in enumerate(operands) if "[" in text)
    k = register(operands[at - 1]) if at and operands[at - 1] != "PT" else None
    registers, count = [register(text) for text in operands[at + 1 :]] or [None], size // 4
    step = _swap if one.words & {"CAS", "CAST"} else change_of(one)

    def run(w, *given):
        lanes = w.active
        if not lanes.any():
            return
        values = [words_of(w, r, count, lanes) for r in registers]
        values = [np.ones_like(values[0])] if "POPC" in one.words else values
        old = np.zeros((32, count), U32)
        addresses, numbers = np.broadcast_to(given[at], (32,))[lanes], np.flatnonzero(lanes)
        for memory, places, chosen in w.block.resolved(w, space, addresses, numbers):
            theirs = [v[np.isin(numbers, chosen)] for v in values]
            for lane, place, *new in zip(chosen, places, *theirs, strict=True):
                before = memory.read(place[None], size)[0]
                memory.write(place[None], size, np.frombuffer(bytes(step(before, *new)), U32)[None])
                old[lane] = [(before == new[0]).all(), 0][:count] if "CAST" in one.words else before
            w.block.counts.access(one, "atomic", memory.kind, places, mask_of(chosen), size)
        if k is not None:
            w.r[k : k + count, lanes] = old[lanes].T

    return run


def _swap(before, expected, new):
    return new if (before == expected).all() else before


def copy(one):
    """cp.async. Lanes whose predicate does not hold, if there is one, have zeros alone; with ZFILL the lowest
    bits of an address say how many bytes at the end are zeros instead."""
    size = width(one)

    def run(w, to, source, wanted):
        lanes = w.active
        if not lanes.any():
            return
        fills = "ZFILL" in one.words
        words, reading = np.zeros((32, size // 4), U32), lanes & wanted if len(one.operands) > 2 else lanes
        if reading.any():
            starts = source & ~U64(size - 1) if fills else source
            words[reading] = w.block.access(one, w, "global", starts, reading, size, "copy")
        if fills:
            kept = np.arange(size) < size - (source & U64(size - 1)).astype(I64)[:, None]
            words = np.where(kept, words.view(np.uint8).reshape(32, size), 0).astype(np.uint8).view(U32)
        w.block.access(one, w, "shared", to, lanes, size, "store", words[lanes])

    return run


row("LDG|LDS|LDL|LD", "", "*t@p?", load, f"{HINTS} U8 S8 U16 S16 64 128")
row("STG|STS|STL|ST", "", "*@t", store, f"{HINTS} U8 U16 64 128")
row("LDGSTS", "", "*@@p?", copy, f"{HINTS} BYPASS ACCESS 64 128 ZFILL")
for _names, _ins in (("ATOMG|ATOM", "*tt@tt?"), ("ATOMS", "*t@t?t?"), ("REDG|RED", "*@t")):
    row(_names, "", _ins, atomic, f"{HINTS} {CHANGE_WORDS} CAS CAST SPIN")

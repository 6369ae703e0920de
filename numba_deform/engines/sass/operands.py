"""Operands of instructions: texts become functions that read them from a warp, or write to it.

Registers of lanes are arrays (32,), of the warp (*uniform*) arrays (1,), of several warps at once (warps, 32)
and (warps, 1); NumPy's broadcasting does the rest, so that one table serves all. What is read is of one of
these kinds:

    u i f    32 bits as uint32, int32, float32        p   a predicate, bool
    v        32 bits without the sign before them
    a        an addend in 64 bits, in which -x is 2^32 - x, for carries
    q d      64 bits of two registers, as uint64, float64
    b        a part of a word, uint32: ``R4.H1`` and ``R4.B2`` moved to the lowest bits
    h        two halves in a word, uint32, after swizzle and sign
    n        an immediate number, as an int           t   the operand's text, for what is no value
"""

import re

import numpy as np

U32, I32, U64, I64 = np.uint32, np.int32, np.uint64, np.int64
F16, F32, F64 = np.float16, np.float32, np.float64
WORD, LONG = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
REGISTER, CONSTANT = re.compile(r"(U?R)(\d+|Z)"), re.compile(r"c\[(0x\w+)\]\[(.+)\]")
VARIABLE = re.compile(r"32@(lo|hi)\(+([\w$.]+)(?: \+ (\w+)\))?\)")  # one half of its address
SWIZZLES = {"": None, "H0_H0": 0, "H1_H1": 16}
PARTS = {"": 0, "H0": 0, "H1": 16, "B0": 0, "B1": 8, "B2": 16, "B3": 24}
NUMBERS = {"+QNAN": "nan", "-QNAN": "nan", "QNAN": "nan", "+INF": "inf", "-INF": "-inf", "INF": "inf"}


class Unknown(NotImplementedError):
    """An instruction, or a form of it, that the emulator does not know."""


def is_predicate(text):
    return re.fullmatch(r"!?U?P[T\d]", text) is not None


def is_number(text):
    return text in NUMBERS or re.fullmatch(r"[+-]?(0x[0-9a-f]+|[\d.]+(e[+-]?\d+)?)", text) is not None


def reader(text, kind, constants):
    """A function of the warp that gives the operand; ``constants(bank, offset, bytes)`` is an int."""
    return _READERS[kind](text, constants)


# --- reading --------------------------------------------------------------------------------------
def _plain(text):
    """(the text without them, whether negated, inverted, absolute)."""
    negated = text.startswith("-") and not is_number(text)
    inverted, absolute = text.startswith("~"), "|" in text
    core = text.lstrip("-").strip("|") if negated or absolute else text.lstrip("~")
    return core, negated, inverted, absolute


def _bits(core, constants, number, size=4):
    """A function of the warp that gives 32 or 64 bits; ``number`` makes bits of the text of an immediate."""
    dtype = U32 if size == 4 else U64
    if m := REGISTER.fullmatch(core):
        return _register(m[1], m[2], size)
    if m := CONSTANT.fullmatch(core):
        return _constant(int(m[1], 16), m[2], constants, size)
    if m := VARIABLE.fullmatch(core):
        address = constants(m[2], int(m[3] or "0", 0), 8)
        half = np.array([address >> 32 if m[1] == "hi" else address & WORD], U32)
        return lambda w: half
    if not is_number(core):
        raise Unknown(f"operand {core}")
    value = np.array([number(core) & (WORD if size == 4 else LONG)], dtype)
    return lambda w: value


def _register(file, number, size):
    if number == "Z":
        zero = np.zeros(1, U32 if size == 4 else U64)
        return lambda w: zero
    k, uniform = int(number), file == "UR"
    if size == 4:
        return (lambda w: w.u[k]) if uniform else (lambda w: w.r[k])
    if uniform:
        return lambda w: w.u[k].astype(U64) | w.u[k + 1].astype(U64) << U64(32)
    return lambda w: w.r[k].astype(U64) | w.r[k + 1].astype(U64) << U64(32)


def _constant(bank, inside, constants, size):
    """Of ``c[0x0][0x210]``, or with a register of the lane: ``c[0x3][R4+0x10]``."""
    dtype, parts = U32 if size == 4 else U64, re.findall(r"[^+]+", inside)
    offset = sum(int(part, 16) for part in parts if part.startswith("0x"))
    registers = [m for part in parts if (m := REGISTER.fullmatch(part)) and m[2] != "Z"]
    if not registers:
        value = np.array([constants(bank, offset, size)], dtype)
        return lambda w: value
    read = _register(registers[0][1], registers[0][2], 4)

    def run(w):
        places = np.broadcast(read(w), w.active)
        found = [constants(bank, int(at) + offset, size) if on else 0 for at, on in places]
        return np.array(found, dtype).reshape(places.shape)

    return run


def _integer(text):
    return int(text, 0)


def _float_bits(dtype, bits, copies=1, shift=0):
    """What makes bits of the text of a float: ``copies`` says how often they stand in a word. A text in hex has
    them already, ``shift`` bits too low."""

    def number(text):
        if "0x" in text:
            return int(text, 0) << shift
        return int(np.array(float(NUMBERS.get(text, text)), dtype).view(bits)) * copies

    return number


_single, _double = _float_bits(F32, U32), _float_bits(F64, U64, shift=32)
_half = _float_bits(F16, np.uint16, copies=0x10001)


def _whole(size):
    def make(text, constants):
        core, negated, inverted, absolute = _plain(text)
        if absolute:
            raise Unknown(f"operand {text}")
        read = _bits(core, constants, _integer, size)
        if negated:
            return lambda w: ~read(w) + (U32(1) if size == 4 else U64(1))
        return (lambda w: ~read(w)) if inverted else read

    return make


def _signed(text, constants):
    read = _whole(4)(text, constants)
    return lambda w: read(w).view(I32)


def _addend(text, constants):
    core, negated, inverted, _ = _plain(text)
    read = _bits(core, constants, _integer)
    if negated:
        return lambda w: (~read(w)).astype(U64) + U64(1)
    return (lambda w: (~read(w)).astype(U64)) if inverted else (lambda w: read(w).astype(U64))


def _float(number, dtype, size):
    def make(text, constants):
        core, negated, _, absolute = _plain(text)
        bits = _bits(core, constants, number, size)
        read = (lambda w: np.abs(bits(w).view(dtype))) if absolute else (lambda w: bits(w).view(dtype))
        return (lambda w: -read(w)) if negated else read

    return make


def _halves(text, constants):
    core, negated, _, absolute = _plain(text)
    core, _, which = core.partition(".") if REGISTER.match(core) else (core, "", "")
    core = core.strip("|")
    if which not in SWIZZLES:
        raise Unknown(f"operand {text}")
    read, shift = _bits(core, constants, _half), SWIZZLES[which]
    keep, flip = U32(0x7FFF7FFF if absolute else WORD), U32(0x80008000 if negated else 0)

    def run(w):
        word = read(w)
        if shift is not None:
            word = (word >> U32(shift) & U32(0xFFFF)) * U32(0x10001)
        return word & keep ^ flip

    return run


def _part_of_word(text, constants):
    core, _, part = text.partition(".")
    if part not in PARTS:
        raise Unknown(f"operand {text}")
    read, shift = _whole(4)(core, constants), U32(PARTS[part])
    return (lambda w: read(w) >> shift) if shift else read


def _predicate(text, constants=None):
    inverted, name = text.startswith("!"), text.lstrip("!")
    k = 7 if name.endswith("T") else int(name[-1])
    if name.startswith("U"):
        return (lambda w: ~w.up[k]) if inverted else (lambda w: w.up[k])
    return (lambda w: ~w.p[k]) if inverted else (lambda w: w.p[k])


def _number(text, constants):
    value = int(text, 0)
    return lambda w: value


def address(text, constants):
    """A function of the warp that gives 64-bit addresses: of ``[R4+UR6+0x10]``, ``desc[UR4][R2.64+0x8]``,
    ``[R3.X16+UR8]``, ``c[0x0][0x210]``."""
    inside, parts = re.findall(r"\[([^\[\]]*)\]", text)[-1], []
    wide = ".64" in inside or ".U32+UR" in inside  # 32 bits of the lane's and 64 of the warp's
    for word in re.findall(r"[+-]?[^+-]+", inside):
        parts.append(_part(word.lstrip("+"), wide, constants))

    def run(w):
        total = parts[0](w)
        for part in parts[1:]:
            total = total + part(w)
        return total if wide else total & U64(WORD)

    return run


def _part(word, wide, constants):
    m = re.fullmatch(r"(U?R)(\d+|Z)(?:\.(64|U32|X\d+))?", word)
    if not m:
        if not is_number(word):
            raise Unknown(f"address {word}")
        value = np.array([int(word, 16) & LONG], U64)
        return lambda w: value
    if m[3] == "64" or wide and m[1] == "UR" and m[2] != "Z":
        return _register(m[1], m[2], 8)
    read, scale = _register(m[1], m[2], 4), U64(int(m[3][1:]) if (m[3] or "").startswith("X") else 1)
    return lambda w: read(w).astype(U64) * scale


_READERS = {
    "u": _whole(4), "i": _signed, "f": _float(_single, F32, 4), "d": _float(_double, F64, 8), "q": _whole(8),
    "v": lambda text, constants: _whole(4)(text.lstrip("-"), constants), "a": _addend, "h": _halves,
    "b": _part_of_word, "p": _predicate, "n": _number, "@": address,
    "t": lambda text, constants: lambda w: text,
}  # fmt: skip
read_predicate = _predicate


# --- writing --------------------------------------------------------------------------------------
def writer(text, kind):
    """A function (warp, mask, value) that writes ``kind`` r: a register, w: two, p: a predicate; None for what
    is thrown away."""
    if text.endswith(("RZ", "PT")):
        return None
    if kind == "p":
        return _to("up" if text.startswith("U") else "p", int(text[-1]))
    m = REGISTER.fullmatch(text)
    if m is None:
        raise Unknown(f"operand {text}")
    file, k = "u" if m[1] == "UR" else "r", int(m[2])
    low, high = _to(file, k), _to(file, k + 1)
    if kind == "r":
        return lambda w, m, v: low(w, m, v.astype(U32) if v.dtype == U64 else v.view(U32))

    def pair(w, m, v):
        v = v.view(U64)
        low(w, m, (v & U64(WORD)).astype(U32))
        high(w, m, (v >> U64(32)).astype(U32))

    return pair


def _to(file, k):
    """What writes number ``k`` of a file of registers of the lanes, or of the warp: ``u`` and ``up``."""

    def write_one(w, m, v):  # the value of the first lane that takes part
        if v.shape[-1] > 1:
            v = np.take_along_axis(v, m.argmax(-1)[..., None], -1)
        np.copyto(getattr(w, file)[k], v, where=m.any(-1, keepdims=True))

    def write(w, m, v):
        np.copyto(getattr(w, file)[k], v, where=m)

    return write_one if file.startswith("u") else write

"""What integer opcodes are: addition with carries, multiplication, shifts, logic, comparisons, minima,
selection."""

import numpy as np

from ..cpu.frontends.ptx.operations import lop3
from .operands import I32, I64, U32, U64, WORD, Unknown, is_predicate
from .table import plain, row

LOW = U64(WORD)
ORDERS = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater,
    "GE": np.greater_equal,
}  # fmt: skip
STRICT = {"GE": "GT", "LE": "LT"}
JOINS = {"AND": np.logical_and, "OR": np.logical_or, "XOR": np.logical_xor}
COMPARED = " ".join((*ORDERS, *JOINS))


def low(total):
    return (total & LOW).astype(U32)


def word_of(one, names, default=None):
    """The one of an instruction's modifiers that is among ``names``."""
    found = [name for name in names if name in one.words]
    if not found and default is None:
        raise Unknown(one.opcode)
    return found[0] if found else default


def add(one):
    if len(one.operands) == 4 or not any(map(is_predicate, one.operands)):
        return lambda a, b, c, p, q: (low(a + b + c), None, None)

    def run(a, b, c, p, q):
        total = a + b + c + p + q
        return low(total), total >= U64(1 << 32), total >= U64(2 << 32)

    return run


def multiply_wide(one):
    """Product of 32 bits, sum of 64, with its carry."""
    widen = U64 if "U32" in one.words else I64

    def run(a, b, c, p):
        product = a.view(U32 if widen is U64 else I32).astype(widen).view(U64)
        product = product * b.view(U32 if widen is U64 else I32).astype(widen).view(U64)
        total = product + c + p
        return total, (total < product) | p & (total == product)

    return run


def multiply_high(one):
    wide = multiply_wide(one)

    def run(a, b, c, p):
        total, carry = wide(a, b, c, p)
        return low(total >> U64(32)), carry

    return run


def shift_and_add(one):
    """A shifted word, negated after that, and a sum."""
    first = [text for text in one.operands[1:] if not is_predicate(text)][0]

    def run(a, b, n, p):
        shifted = a.astype(U64) << U64(n) & LOW
        total = ((shifted ^ LOW) + U64(1) if first.startswith("-") else shifted) + b + p
        return low(total), total > LOW

    return run


def shift_and_add_high(one):
    """The upper bits of a shifted pair, and a sum; the pair's upper word may be the lower one's sign."""

    def run(a, b, c, n, p):
        whole = a.astype(U64) | c.astype(U64) << U64(32)
        total = (whole >> U64(32 - n) & LOW) + b + p
        return low(total), total > LOW

    if "SX32" not in one.words:
        return run
    return lambda a, b, n, p: run(a, b, (a.view(I32) >> I32(31)).view(U32), n, p)


def funnel_shift(one):
    """Of the pair (c, a): all of it, or where neither HI nor a type of 64 bits is named one word."""
    left, high, wraps = "L" in one.words, "HI" in one.words, "W" in one.words
    kind = word_of(one, ("U32", "S32", "U64", "S64"))
    most = 63 if kind.endswith("64") else 32
    signed = kind[0] == "S" and not left

    def run(a, s, c):
        n = (s & U32(63 if most == 63 else 31) if wraps else np.minimum(s, U32(most))).astype(U64)
        if left:
            whole = (a.astype(U64) | c.astype(U64) << U64(32) if high else a.astype(U64)) << n
            return low(whole >> U64(32) if high else whole)
        if high:
            whole = c.view(I32).astype(I64) if signed else c.astype(U64)
        else:
            whole = (a.astype(U64) | c.astype(U64) << U64(32)).view(I64 if signed else U64)
        return low((whole >> n.astype(whole.dtype)).view(U64))

    return run


KNOWN = {0xC0: lambda a, b, c: a & b, 0xFC: lambda a, b, c: a | b, 0x3C: lambda a, b, c: a ^ b,
         0xF8: lambda a, b, c: a | b & c, 0x33: lambda a, b, c: ~b}  # fmt: skip


def three_words(one):
    table = int(one.operands[-2], 16)
    function = KNOWN.get(table) or (lambda a, b, c: lop3(a, b, c, table) + np.zeros(1, U32))
    join = np.logical_and if "PAND" in one.words else np.logical_or

    def run(a, b, c, _, p):
        value = function(a, b, c)
        return join(value != 0, p), value

    return run


def three_predicates(one):
    tables = [np.array([int(t, 16) >> k & 1 for k in range(8)], bool) for t in one.operands[-2:]]
    return lambda a, b, c, *_: tuple(table[a * 4 + b * 2 + c * 1] for table in tables)


def compare(one):
    order, join = word_of(one, ORDERS), JOINS[word_of(one, JOINS)]
    first, strict, dtype = ORDERS[order], ORDERS[STRICT.get(order, order)], U32 if "U32" in one.words else I32

    def run(a, b, side, before):
        a, b = a.view(dtype), b.view(dtype)
        if "EX" not in one.words:
            holds = first(a, b)
        elif order == "NE":
            holds = (a != b) | before
        elif order == "EQ":
            holds = (a == b) & before
        else:
            holds = strict(a, b) | (a == b) & before
        return join(holds, side), join(~holds, side)

    return run


def least(one):
    dtype = U32 if "U32" in one.words else I32
    return lambda a, b, p: np.where(
        p, np.minimum(a.view(dtype), b.view(dtype)), np.maximum(a.view(dtype), b.view(dtype))
    )


def add_and_least(one):
    smaller = least(one)

    def run(a, b, c, p):
        value = smaller(a + b, c, p)
        return np.maximum(value, 0) if "RELU" in one.words else value

    return run


def permute(a, b, c):
    """PRMT: four bytes of the pair (c, a), by the nibbles of b; their bit 3 spreads the byte's sign."""
    whole, value = a.astype(U64) | c.astype(U64) << U64(32), U64(0)
    for k in range(4):
        nibble = (b >> U32(4 * k)).astype(U64)
        byte = whole >> ((nibble & U64(7)) << U64(3)) & U64(255)
        byte = np.where(nibble & U64(8), np.where(byte & U64(128), U64(255), U64(0)), byte)
        value = value | byte << U64(8 * k)
    return low(value)


def highest_bit(one):
    shifts = "SH" in one.words

    def run(a):
        if "S32" in one.words:
            a = np.where(a.view(I32) < 0, ~a, a)
        top = np.frexp(a.astype(np.float64))[1].astype(I64) - 1
        return np.where(a == 0, WORD, 31 - top if shifts else top).astype(U32)

    return run


def reverse_bits(a):
    bits = np.unpackbits(a.astype(">u4").view(np.uint8).reshape(*a.shape, 4), axis=-1)
    return np.packbits(bits[..., ::-1], axis=-1).view(">u4")[..., 0].astype(U32)


def sum_of_products(one):
    """IDP.4A: four products of bytes, and c."""
    kinds = [np.int8 if "S8" in part else np.uint8 for part in sorted(one.words & {"S8", "U8"})]
    if len(kinds) != 1:
        raise Unknown(one.opcode)

    def run(a, b, c):
        a, b = (np.ascontiguousarray(x).view(kinds[0]).reshape(*x.shape, 4).astype(I64) for x in (a, b))
        return low(((a * b).sum(-1) + c).view(U64))

    return run


row("MOV", "r", "un?", plain(lambda a, _: a))
row("UMOV", "r", "u", plain(lambda a: a))
row("SEL", "r", "uup", plain(lambda a, b, p: np.where(p, a, b)))
row("SEL.64", "w", "qqp", plain(lambda a, b, p: np.where(p, a, b)))
row("IADD3", "rp?p?", "aaap?p?", add, "X")
row("UIADD3.64", "w", "qqq", plain(lambda a, b, c: a + b + c))
row("VIADD|IADD", "r", "uu", plain(lambda a, b: a + b))
row("IMAD", "r", "uuup?", plain(lambda a, b, c, p: a * b + c + p), "U32 IADD MOV SHL X")
row("IMAD.WIDE", "wp?", "uuqp?", multiply_wide, "U32 X")
row("IMAD.HI", "rp?", "uuqp?", multiply_high, "U32 X")
row("LEA", "rp?", "vanp?", shift_and_add)
row("LEA.HI", "rp?", "uaunp?", shift_and_add_high, "X")
row("LEA.HI.SX32", "rp?", "uanp?", shift_and_add_high, "X")
row("SHF", "r", "uuu", funnel_shift, "L R W HI U32 S32 U64 S64")
row("LOP3", "p?r", "uuunp", three_words, "LUT PAND")
row("PLOP3", "pp", "pppnn", three_predicates, "LUT")
row("ISETP", "pp", "uupp?", compare, f"{COMPARED} U32 EX")
row("VIMNMX|IMNMX", "r", "uup", least, "U32 S32")
row("VIADDMNMX", "r", "uuup", add_and_least, "U32 S32 RELU")
row("PRMT", "r", "uuu", plain(permute))
row("POPC", "r", "u", plain(lambda a: np.bitwise_count(a).astype(U32)))
row("FLO", "r", "u", highest_bit, "U32 S32 SH")
row("BREV", "r", "u", plain(reverse_bits))
row("IABS", "r", "i", plain(np.abs))
row("IDP.4A", "r", "uuu", sum_of_products, "S8 U8")
row("BMSK", "r", "uu", plain(lambda a, b: (
    ((U64(1) << np.minimum(b, U32(32)).astype(U64)) - U64(1)) << np.minimum(a, U32(32)).astype(U64) & LOW
).astype(U32)), "C W")  # fmt: skip
row("SGXT", "r", "uu", lambda one: sign_extension(one), "U32 W")
row("LDC|ULDC", "r", "u", lambda one: low_part(one), "U8 S8 U16 S16")
row("LDC.64|ULDC.64", "w", "q", plain(lambda a: a))


def low_part(one):
    """A word of a constant, or its lowest 8 or 16 bits, with their sign above or zeros."""
    kind = word_of(one, ("U8", "S8", "U16", "S16"), "U32")
    n = U32(32 - int(kind[1:]))
    return lambda a: (a << n).view(I32 if kind[0] == "S" else U32) >> n.astype(I32 if kind[0] == "S" else U32)


def sign_extension(one):
    """SGXT: the lowest b bits, and their sign above."""

    def run(a, b):
        n = U32(32) - np.minimum(b, U32(32))
        if "U32" in one.words:
            return np.where(n == 32, U32(0), a << (n & U32(31)) >> (n & U32(31)))
        return np.where(n == 32, I32(0), (a << (n & U32(31))).view(I32) >> (n & U32(31)).view(I32)).view(U32)

    return run

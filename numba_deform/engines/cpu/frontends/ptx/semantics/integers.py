"""Integer arithmetic that is rare: parts of words, products of them, masks."""

from ..operations import WORD, number, prmt

SELECTORS = {  # of prmt with a mode, by the lower two bits of its control
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543), "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333), "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210), "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}  # fmt: skip


def signed(x, bits):
    """The lower bits of a number, with their sign."""
    x &= (1 << bits) - 1
    return x - (x >> bits - 1 << bits)


def part(x, n, bits, is_signed):
    """Field ``n`` of a word, of so many bits."""
    field = x >> bits * n & (1 << bits) - 1
    return signed(field, bits) if is_signed else field


@number
def prmt_mode(mode, a, b, control):
    return prmt(a, b, SELECTORS[mode][control & 3])


@number
def low24(x, is_signed):
    return part(x, 0, 24, is_signed)


@number
def dot(size, a, b, c, a_signed, b_signed, high=False):
    """c plus the products of four bytes each (``size`` 1), or of the two halves of ``a`` with two bytes of
    ``b`` (2), the lower or the upper ones."""
    if size == 1:
        return c + sum(part(a, n, 8, a_signed) * part(b, n, 8, b_signed) for n in range(4))
    return c + sum(part(a, n, 16, a_signed) * part(b, n + 2 * high, 8, b_signed) for n in range(2))


@number
def fns(mask, base, offset):
    """The place of the n-th set bit from ``base`` on, upward or downward; all ones where there is none."""
    if offset == -(1 << 31):  # ptxas's routine has no absolute value of it, and ends at place 0
        return 0
    if base > 31:
        return WORD
    if offset == 0:
        return base if mask >> base & 1 else WORD
    places = range(base, 32) if offset > 0 else range(base, -1, -1)
    found = [at for at in places if mask >> at & 1]
    return found[abs(offset) - 1] if len(found) >= abs(offset) else WORD


@number
def extended(x, count, clamps, is_signed):
    """szext: the lower ``count`` bits."""
    count = min(count, 32) if clamps else count & 31
    return part(x, 0, count, is_signed) if count else 0


@number
def bit_mask(at, count, clamps):
    at, count = (min(at, 32), min(count, 32)) if clamps else (at & 31, count & 31)
    return ((1 << count) - 1 << at) & WORD


@number
def of_pairs(name, is_signed, relu, a, b):
    """An operation of the 16-bit halves of two words."""
    out = 0
    for n in range(2):
        x, y = (part(word, n, 16, is_signed) for word in (a, b))
        result = x + y if name == "add" else min(x, y) if name == "min" else max(x, y)
        out |= (max(result, 0) if relu else result) % (1 << 16) << 16 * n
    return out


@number
def packed(low, high, bits, is_signed, behind, width):
    """cvt.pack.sat: two integers limited to so many bits, before the lower bits of ``behind``."""
    smallest, largest = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
    low, high = (min(max(x, smallest), largest) & (1 << bits) - 1 for x in (low, high))
    return (low | high << bits | behind << width) & WORD

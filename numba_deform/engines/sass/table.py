"""The table of opcodes: what operands each has, and the function that it is.

    row("IMAD.WIDE", "wp?", "iiqp?", multiply_wide, "U32 X")

An instruction takes the row whose words it has all, in their order (``F2F.F64.F32`` widens, ``F2F.F32.F64``
narrows), and most of them; its other modifiers must be among those
that the row allows, else it is unknown. ``outs`` and ``ins`` are kinds of ``operands``; with ``?``: it may be
missing. In ``ins`` ``*`` hands over the warp, whose ``active`` lanes take part, and ``&`` the same of one warp
or of several at once. ``make(instruction)`` returns the function of the values, which returns one value or a
tuple of as many as there are ``outs``.
"""

import re
from dataclasses import dataclass

import numpy as np

from .operands import Unknown, is_number, is_predicate, read_predicate, reader, writer

FALSE = np.zeros(1, bool)


@dataclass(frozen=True, eq=False)
class Row:
    words: tuple
    outs: tuple
    ins: tuple
    make: object
    allowed: frozenset


TABLE: dict = {}
"""{stem: its rows}"""


def row(names, outs, ins, make, allowed=""):
    """Enter rows of opcodes, several with ``|`` between them."""
    for name in names.split("|"):
        stem, *words = name.split(".")
        kinds = [tuple(re.findall(r"\S\??", kinds)) for kinds in (outs, ins)]
        TABLE.setdefault(stem, []).append(Row(tuple(words), *kinds, make, frozenset(allowed.split())))


def plain(function):
    """Of a function that is the same for all forms of an instruction."""
    return lambda one: function


def find(one):
    """The Row of an instruction; Unknown."""
    rows = TABLE.get(one.stem, []) + (TABLE.get(one.stem[1:], []) if one.stem.startswith("U") else [])
    fitting = [r for r in rows if _in_order(r.words, one) and one.words.difference(r.words) <= r.allowed]
    if not fitting:
        raise Unknown(one.opcode)
    return max(fitting, key=lambda r: len(r.words))


def is_shared(one):
    """Whether several warps can do an instruction at once, an array of (warps, lanes) for each operand."""
    try:
        return "*" not in find(one).ins
    except Unknown:
        return False


def _in_order(words, one):
    """Whether an instruction's opcode has these words one after the other, others between them or not."""
    rest = iter(one.opcode.split("."))
    return all(word in rest for word in words)


def step_of(one, constants):
    """A function of the warp that does what the instruction does, for the lanes of ``warp.mask``."""
    chosen, operands = find(one), list(one.operands)
    writes = [_write(kind, operands) for kind in chosen.outs]
    extended = "E" in one.words and one.stem != "LDGSTS"  # a register is the first of two in an address
    reads = [_read(kind, operands, constants, extended) for kind in chosen.ins]
    if operands:
        raise Unknown(f"{one.opcode} with the operands {', '.join(one.operands)}")
    function, guard = chosen.make(one), read_predicate(one.guard) if one.guard else None

    def step(w):
        w.active = active = w.mask if guard is None else w.mask & guard(w)
        result = function(*[read(w) for read in reads])
        if len(writes) == 1:
            result = (result,)
        for write, value in zip(writes, result or (), strict=False):
            if write is not None:
                write(w, active, value)

    return step


def _write(kind, operands):
    if kind.endswith("?") and not (operands and _is(operands[0], kind[0])):
        return None
    return writer(operands.pop(0), kind[0])


def _is(text, kind):
    return not text.startswith("!") and is_predicate(text) == (kind == "p")


def _read(kind, operands, constants, extended):
    if kind in "*&":
        return lambda w: w
    fits = operands and (kind[0] == "t" or is_predicate(operands[0]) == (kind[0] == "p"))
    if kind.endswith("?") and not fits:
        return (lambda w: FALSE) if kind[0] == "p" else (lambda w: None)
    if not operands:
        raise Unknown("an operand is missing")
    text = operands.pop(0)
    if kind == "h" and is_number(text) and operands and is_number(operands[0]):  # the two halves as two numbers
        pair = [reader(t, "h", constants)(None) & np.uint32(0xFFFF) for t in (text, operands.pop(0))]
        value = pair[0] << np.uint32(16) | pair[1]
        return lambda w: value
    if kind == "@" and extended and not re.search(r"\.64|\.U32", text):
        text = re.sub(r"\[(R\d+)", r"[\1.64", text)
    return reader(text, kind[0], constants)

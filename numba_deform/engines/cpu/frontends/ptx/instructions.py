"""The table of instructions: how one becomes Python, by its first word, or words, and the class of its type.

A row's text holds operands: ``{0}`` as the instruction's type says, ``{0:b}`` its bits, ``{0:u32}`` that type.
``{0:shift}`` as a shift by no more than all bits. ``{bits}`` is the type's size, ``{signed}`` whether it has a
sign. What an instruction may have besides, such as ``.rn``, the row lists; anything else is refused."""

import re
from dataclasses import dataclass

from .operations import LOCAL, SHARED
from .parser import SIZES, BadPtx
from .values import FLOATS, bits_of, is_signed, mask_of

INT, HALVES = "int", ("f16", "bf16", "f16x2", "bf16x2")
BYTES = ("e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2", "e2m1x2", "ue8m0x2")
OTHERS = ("pred", "f32", "f64", "tf32", "u16x2", "s16x2", "f32x2", *BYTES)  # classes of their own


@dataclass(frozen=True)
class Row:
    """``result``: the type of what comes out: "" the instruction's, "b" bits of its size, "wide" of twice
    that."""

    text: str
    result: str = ""
    modifiers: frozenset = frozenset()


def _rows(table):
    """{(name, class): Row} of lines ``name  classes  result  modifiers | text``."""
    rows = {}
    for line in filter(str.strip, table.splitlines()):
        head, text = line.split("|", 1)
        name, classes, result, *modifiers = head.split()
        modifiers = frozenset(modifiers) | set(name.split(".")[1:])
        rows |= {(name, c): Row(text.strip(), result.strip("-"), modifiers) for c in classes.split(",")}
    return rows


ROWS = _rows("""
add         int             b               | {0:b} + {1:b}
sub         int             b               | {0:b} - {1:b}
mul.lo      int             b               | {0:b} * {1:b}
mul.hi      int             -               | {0} * {1} >> {bits}
mul.wide    int             wide            | {0} * {1}
mad.lo      int             b               | {0:b} * {1:b} + {2:b}
mad.hi      int             -               | ({0} * {1} >> {bits}) + {2}
mad.wide    int             wide            | {0} * {1} + {2:wide}
sad         int             b               | abs({0} - {1}) + {2}
div         int             b               | quotient({0}, {1})
rem         int             b               | remainder({0}, {1})
min         int             -               | lower({0}, {1})
max         int             -               | higher({0}, {1})
abs         int             b               | abs({0})
neg         int             b               | -{0:b}
and         int             b               | {0:b} & {1:b}
or          int             b               | {0:b} | {1:b}
xor         int             b               | {0:b} ^ {1:b}
not         int             b               | ~{0:b}
cnot        int             b               | int({0:b} == 0)
and         pred            -               | {0} and {1}
or          pred            -               | {0} or {1}
xor         pred            -               | {0} != {1}
not         pred            -               | not {0}
shl         int             b               | {0:b} << {1:shift}
shr         int             -               | {0} >> {1:shift}
shf.l.wrap  int             b               | ({1:u32} << 32 | {0:u32}) << ({2:u32} & 31) >> 32
shf.l.clamp int             b               | ({1:u32} << 32 | {0:u32}) << min({2:u32}, 32) >> 32
shf.r.wrap  int             b               | ({1:u32} << 32 | {0:u32}) >> ({2:u32} & 31)
shf.r.clamp int             b               | ({1:u32} << 32 | {0:u32}) >> min({2:u32}, 32)
prmt        int             b               | prmt({0:u32}, {1:u32}, {2:u32})
lop3        int             b               | lop3({0:u32}, {1:u32}, {2:u32}, {3:u32})
bfe         int             b               | bfe({0:b}, {1:u32}, {2:u32}, {bits}, {signed})
bfi         int             b               | bfi({0:b}, {1:b}, {2:u32}, {3:u32}, {bits})
prmt.f4e    int             b               | prmt_mode("f4e", {0:u32}, {1:u32}, {2:u32})
prmt.b4e    int             b               | prmt_mode("b4e", {0:u32}, {1:u32}, {2:u32})
prmt.rc8    int             b               | prmt_mode("rc8", {0:u32}, {1:u32}, {2:u32})
prmt.ecl    int             b               | prmt_mode("ecl", {0:u32}, {1:u32}, {2:u32})
prmt.ecr    int             b               | prmt_mode("ecr", {0:u32}, {1:u32}, {2:u32})
prmt.rc16   int             b               | prmt_mode("rc16", {0:u32}, {1:u32}, {2:u32})
mul24.lo    int             b               | low24({0:b}, {signed}) * low24({1:b}, {signed})
mul24.hi    int             b               | low24({0:b}, {signed}) * low24({1:b}, {signed}) >> 16
mad24.lo    int             b               | low24({0:b}, {signed}) * low24({1:b}, {signed}) + {2:b}
mad24.hi    int             b               | (low24({0:b}, {signed}) * low24({1:b}, {signed}) >> 16) + {2:b}
fns         int             b               | fns({0:b}, {1:u32}, {2:s32})
szext.clamp int             b               | extended({0:b}, {1:u32}, True, {signed})
szext.wrap  int             b               | extended({0:b}, {1:u32}, False, {signed})
bmsk.clamp  int             b               | bit_mask({0:u32}, {1:u32}, True)
bmsk.wrap   int             b               | bit_mask({0:u32}, {1:u32}, False)
brev        int             b               | brev({0:b}, {bits})
clz         int             u32             | clz({0:b}, {bits})
popc        int             u32             | popc({0:b}, {bits})
bfind       int             u32             | bfind({0}, {bits}, False)
bfind.shiftamt int          u32             | bfind({0}, {bits}, True)
selp        int,f32,f64,f16,bf16 -          | selected({0}, {1}, {2:pred})
add         f32             - rn ftz sat    | {0} + {1}
sub         f32             - rn ftz sat    | {0} - {1}
mul         f32             - rn ftz sat    | {0} * {1}
fma         f32             - rn ftz sat    | fma32({0}, {1}, {2})
mad         f32             - rn ftz sat    | fma32({0}, {1}, {2})
div         f32             - rn ftz full approx | divided({0}, {1})
add         f64             - rn            | {0} + {1}
sub         f64             - rn            | {0} - {1}
mul         f64             - rn            | {0} * {1}
fma         f64             - rn            | fma({0}, {1}, {2})
div         f64             - rn            | float(divided({0}, {1}))
min         f32,f64         - ftz           | least({0}, {1})
max         f32,f64         - ftz           | greatest({0}, {1})
abs         f32,f64         - ftz           | abs({0})
neg         f32,f64         - ftz           | -{0}
copysign    f32,f64         -               | copysign({1}, {0})
rcp         f32             - rn approx ftz | rcp({0})
sqrt        f32             - rn approx ftz | sqrt({0})
rsqrt       f32             - approx ftz    | rsqrt({0})
rsqrt       f64             - approx ftz    | reciprocal_root({0})
ex2         f32             - approx ftz    | ex2({0})
lg2         f32             - approx ftz    | lg2({0})
sin         f32             - approx ftz    | sin({0})
cos         f32             - approx ftz    | cos({0})
tanh        f32             - approx        | tanh({0})
rcp         f64             - rn            | float(divided(1.0, {0}))
rcp.approx.ftz f64          -               | rough_reciprocal({0})
sqrt        f64             - rn            | sqrt({0})
add         f16,f16x2       b rn            | add_rn_f16x2({0}, {1})
sub         f16,f16x2       b rn            | add_rn_f16x2({0}, {1} ^ 0x80008000)
mul         f16,f16x2       b rn            | mul_rn_f16x2({0}, {1})
fma         f16,f16x2       b rn            | fma_rn_f16x2({0}, {1}, {2})
add         bf16,bf16x2     b rn            | add_rn_bf16x2({0}, {1})
sub         bf16,bf16x2     b rn            | add_rn_bf16x2({0}, {1} ^ 0x80008000)
mul         bf16,bf16x2     b rn            | mul_rn_bf16x2({0}, {1})
fma         bf16,bf16x2     b rn            | fma_rn_bf16x2({0}, {1}, {2})
neg         f16,bf16,f16x2,bf16x2 b         | {0} ^ 0x80008000
abs         f16,bf16,f16x2,bf16x2 b         | {0} & 0x7fff7fff
activemask  int             u32             | cuda.activemask()
vote.ballot int             u32 sync        | cuda.ballot_sync({1:u32}, {0:pred})
vote.any    pred            - sync          | cuda.any_sync({1:u32}, {0}) != 0
vote.all    pred            - sync          | cuda.all_sync({1:u32}, {0}) != 0
vote.uni    pred            - sync          | cuda.eq_sync({1:u32}, {0}) != 0
match.any   int             u32 sync        | cuda.match_any_sync({1:u32}, {0:b})
""")
EXACT = ("and", "or", "xor", "shr", "rem", "min", "max", "selp")  # of unsigned numbers: these need no mask
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=",
               "hi": ">", "hs": ">="}  # fmt: skip
WORDS = {"and": "and", "or": "or", "xor": "!="}
ROUNDS = ("rni", "rzi", "rmi", "rpi")


class Operand:
    """One operand in a row's text."""

    def __init__(self, values, text, kind):
        self.values, self.text, self.kind = values, text, kind

    def __format__(self, spec):
        if spec == "shift":
            count = self.values.value(self.text, "u32")
            most = bits_of(self.kind)
            return str(min(int(count), most)) if count.isdigit() else f"min({count}, {most})"
        kind = {"": self.kind, "b": f"b{bits_of(self.kind)}", "wide": wide(self.kind)}.get(spec, spec)
        return self.values.value(self.text, kind)


def wide(kind):
    return f"{kind[0]}{2 * bits_of(kind)}"


def class_of(kind):
    return kind if kind in (*OTHERS, *HALVES) else INT


def kinds_of(i):
    return [p for p in i.parts if p in SIZES]


def only(i, known):
    """Refuse an instruction with anything besides its name, its types and what is ``known``."""
    for part in i.parts[1:]:
        if part not in SIZES and part not in known:
            raise BadPtx(f"{i.opcode}: .{part}")


def finished(text, options):
    """The expression of a float32 with what its options do to it in the end."""
    for option, function in (("ftz", "flushed"), ("sat", "saturated")):
        text = f"{function}({text})" if option in options else text
    return text


def by_row(values, i):
    """The statements of an instruction that the table has; None for any other."""
    kind = (kinds_of(i) or ["b32"])[-1]
    modes = [p for p in i.parts[1:] if p not in SIZES]
    names = [".".join([i.root, *modes[:n]]) for n in (2, 1, 0)]
    if i.root in ("vote", "match"):
        names.insert(0, f"{i.root}.{modes[1]}")
    row = next((ROWS[name, class_of(kind)] for name in names if (name, class_of(kind)) in ROWS), None)
    if row is None or not row.modifiers >= set(modes) or len(kinds_of(i)) > 1:
        return None
    if len(i.operands) - 1 != len(set(re.findall(r"\{(\d)", row.text))):
        return None
    operands = [Operand(values, o, kind) for o in i.operands[1:]]
    if kind == "f64":  # whose function does so
        modes = [mode for mode in modes if mode != "ftz"]
    if "ftz" in modes:
        operands = [f"flushed({o})" for o in operands]
    text = row.text.format(*operands, bits=bits_of(kind), signed=is_signed(kind))
    result = {"": kind, "b": f"b{bits_of(kind)}", "wide": wide(kind)}.get(row.result, row.result)
    text = finished(text, modes)
    exact = i.root in EXACT and row.result in ("", "b") and not is_signed(kind)
    exact |= i.parts[:2] == ["mul", "wide"] and not is_signed(kind)
    return [values.set(i.operands[0], result, text, exact)]


# --- comparisons ------------------------------------------------------------------------------------
def compared(values, how, kind, a, b):
    """The truth of a comparison, as a Python expression."""
    if how in ("eq", "ne") and is_signed(kind):
        kind = f"u{kind[1:]}"
    a, b = (number(values, x, kind) for x in (a, b))
    if class_of(kind) == INT or kind == "pred":
        return f"{a} {COMPARISONS[how]} {b}"
    return compared_floats(how, a, b)


def compared_floats(how, a, b):
    if how in ("num", "nan"):
        return f"{a} == {a} and {b} == {b}" if how == "num" else f"{a} != {a} or {b} != {b}"
    if how == "ne":  # ordered: not of a NaN
        return f"({a} < {b} or {a} > {b})"
    if how == "equ":
        return f"not ({a} < {b} or {a} > {b})"
    opposite = {"ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<", "neu": "=="}
    return f"not {a} {opposite[how]} {b}" if how in opposite else f"{a} {COMPARISONS[how]} {b}"


def number(values, text, kind):
    """An operand of any float type as one of Python's or NumPy's; integers as they are."""
    if kind in ("f16", "bf16"):
        return f"cvt_f32_{kind}_lo({values.value(text, 'b16')})"
    return values.value(text, kind)


def do_setp(values, i):
    kind, how, (target, a, b, *more) = kinds_of(i)[-1], i.parts[1], i.operands
    only(i, (how, *WORDS, "ftz"))
    text = compared(values, how, kind, a, b)
    word = next((WORDS[p] for p in i.parts[2:] if p in WORDS), None)
    targets, made = target.split("|"), []
    if len(targets) > 1:
        made.append(f"{(t := values.temporary())} = {text}")
        text = t
    for one, truth in zip(targets, (text, f"(not {text})"), strict=False):
        last = f"({truth}) {word} {values.value(more[0], 'pred')}" if word else truth
        made.append(values.set(one, "pred", last))
    return made


def do_set(values, i):
    (to, kind), how = kinds_of(i), i.parts[1]
    only(i, (how, *WORDS, "ftz"))
    text = compared(values, how, kind, *i.operands[1:3])
    if word := next((WORDS[p] for p in i.parts[2:] if p in WORDS), None):
        text = f"({text}) {word} {values.value(i.operands[3], 'pred')}"
    if to == "f32":
        return [values.set(i.operands[0], to, f"float32(1) if {text} else float32(0)")]
    return [values.set(i.operands[0], f"s{bits_of(to)}", f"-1 if {text} else 0")]


# --- moves and conversions --------------------------------------------------------------------------
def do_mov(values, i):
    (kind,), (target, source) = kinds_of(i), i.operands
    only(i, ())
    if target.startswith("{"):
        parts = [p.strip() for p in target.strip("{}").split(",")]
        size, t = bits_of(kind) // len(parts), values.temporary()
        made = [f"{t} = {values.value(source, f'b{bits_of(kind)}')}"]
        return made + [values.set(p, f"b{size}", f"{t} >> {n * size}") for n, p in enumerate(parts) if p != "_"]
    if source.startswith("{"):
        parts = [p.strip() for p in source.strip("{}").split(",")]
        size = bits_of(kind) // len(parts)
        text = " | ".join(f"{values.value(p, f'b{size}')} << {n * size}" for n, p in enumerate(parts))
        return [values.set(target, f"b{bits_of(kind)}", text, exact=True)]
    own = values.classes.get(target)
    if own in FLOATS and bits_of(own) == bits_of(kind) and source in values.registers:
        kind = own  # from a float to a float, bits are no detour
    return [values.set(target, kind, values.value(source, kind), not is_signed(kind))]


def do_cvta(values, i):
    only(i, ("to", "shared", "shared::cta", "shared::cluster", "global", "local", "param", "const"))
    space = next((p for p in i.parts if p.startswith(("shared", "global", "local", "param", "const"))), "")
    window = {"shared": SHARED, "local": LOCAL}.get(space.partition("::")[0], 0)
    value = values.value(i.operands[1], "u64")
    text = f"{value} {'-' if 'to' in i.parts else '+'} {window}" if window else value
    return [values.set(i.operands[0], "u64", text, exact=not window)]


def do_cvt(values, i):
    """By way of a float or an integer: (what is read, what is made of it)."""
    to, of = kinds_of(i)
    only(i, ("rn", "sat", "ftz", *ROUNDS))
    mode = next((p for p in i.parts if p in ROUNDS), None)
    if to in ("f16x2", "bf16x2"):
        pair = f"{values.value(i.operands[2], 'f32')}, {values.value(i.operands[1], 'f32')}"
        return [values.set(i.operands[0], "b32", f"cvt_rn_{to}_f32({pair})")]
    text = number(values, i.operands[1], of)
    text = f"flushed({text})" if "ftz" in i.parts and of == "f32" else text
    if class_of(to) == INT:
        low, high = (-(1 << bits_of(to) - 1), mask_of(to) >> 1) if is_signed(to) else (0, mask_of(to))
        if class_of(of) != INT:
            text = f"whole({text}, {mode or 'rzi'!r}, {low}, {high})"
        elif "sat" in i.parts:
            text = f"clamped({text}, {low}, {high})"
        exact = class_of(of) == INT and not is_signed(of) and bits_of(of) <= bits_of(to)
        return [values.set(i.operands[0], to, text, exact)]
    if class_of(of) == INT:
        text = f"nearest({text}, {'float' if to == 'f64' else 'float32'})"
    elif mode:
        text = f"{mode}({text})"
    if to == "f64":
        text = f"float({text})"
    elif of == "f64":
        text = f"float32({text})"
    text = f"saturated({text})" if "sat" in i.parts else text
    if to in ("f16", "bf16"):
        return [values.set(i.operands[0], "b16", f"cvt_rn_{to}x2_f32({text}, float32(0))")]
    return [values.set(i.operands[0], to, f"flushed({text})" if "ftz" in i.parts and to == "f32" else text)]

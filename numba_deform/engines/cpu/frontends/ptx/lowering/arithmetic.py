"""Arithmetic whose form is no row of ``instructions``: carries, other roundings than to nearest, options of
halves and of minima, products of parts of words, two float32 in a register, conversions to and from formats of
8 bits and fewer."""

from ..instructions import BYTES, HALVES, class_of, compared_floats, finished, kinds_of, number, only
from ..instructions import ROWS as ORDINARY
from ..parser import SIZES
from ..values import bits_of, is_signed, mask_of

MODES = ("rz", "rm", "rp")
PAIRS = ("u16x2", "s16x2")


def options_of(i):
    """The words of an opcode that are neither its name nor a type."""
    return [p for p in i.parts[1:] if p not in SIZES]


# --- carries ------------------------------------------------------------------------------------------
def do_carry(values, i):
    """add.cc, addc, sub.cc, subc, mad.cc, madc: with the carry that the one before left, in a variable."""
    kind, options = kinds_of(i)[-1], options_of(i)
    only(i, ("cc", "lo", "hi"))
    bits, t, *o = bits_of(kind), values.temporary(), *i.operands[1:]
    if i.root.startswith("mad"):
        a, b = (values.value(x, kind) for x in o[:2])
        product = f"{a} * {b} >> {bits}" if "hi" in options else f"{a} * {b}"
        text = f"({product} & {mask_of(kind):#x}) + {values.value(o[2], f'b{bits}')}"
    else:
        a, b = (values.value(x, f"b{bits}") for x in o)
        text = f"{a} {'+' if i.root.startswith('add') else '-'} {b}"
    if i.root.endswith("c") and i.root != "sub":
        text += f" {'-' if i.root == 'subc' else '+'} {values.carry()}"
    made = [f"{t} = {text}", values.set(i.operands[0], f"b{bits}", t)]
    return [*made, f"{values.carry()} = {t} >> {bits} & 1"] if "cc" in options else made


# --- floats -------------------------------------------------------------------------------------------
def do_float(values, i):
    """add, sub, mul, fma, div, rcp, sqrt rounded toward something; halves with options; two float32 in one
    register; sums of halves and float32."""
    kind, options = kinds_of(i)[-1], options_of(i)
    name = "fma" if i.root == "mad" else i.root
    if "cc" in options:
        return do_carry(values, i)
    if kind == "f32x2":
        return _two_floats(values, i, name, options)
    if kinds_of(i) in (["f32", "f16"], ["f32", "bf16"]):
        return _mixed(values, i, name, kind, options)
    if class_of(kind) in HALVES:
        return _halves(values, i, name, kind, options)
    if kind in PAIRS:
        return _pairs(values, i, name, kind)
    mode = next((p for p in options if p in MODES), None)
    if kind not in ("f32", "f64") or mode is None:
        return None
    only(i, (mode, "ftz", "sat"))
    given = [values.value(x, kind) for x in i.operands[1:]]
    given = [f"flushed({x})" for x in given] if "ftz" in options else given
    text = finished(f"arithmetic({name!r}, {kind!r}, {mode!r}, {', '.join(given)})", options)
    return [values.set(i.operands[0], kind, text)]


def _operation(name, options, given):
    """An operation of float32 with its rounding and what else its options say."""
    mode = next((p for p in options if p in MODES), None)
    given = [f"flushed({x})" for x in given] if "ftz" in options else given
    made = f"arithmetic({name!r}, 'f32', {mode!r}, {', '.join(given)})"
    return finished(made if mode else ORDINARY[name, "f32"].text.format(*given), options)


def _two_floats(values, i, name, options):
    only(i, ("rn", *MODES, "ftz"))
    words = [values.value(x, "b64") for x in i.operands[1:]]
    if name not in ("add", "sub", "mul", "fma") or len(words) != 2 + (name == "fma"):
        return None
    low, high = (_operation(name, options, [f"f32_of({w} >> {at} & 0xffffffff)" for w in words])
                 for at in (0, 32))  # fmt: skip
    return [values.set(i.operands[0], "b64", f"u32_of({low}) | u32_of({high}) << 32", True)]


def _mixed(values, i, name, kind, options):
    """The last operand, and the result, are float32."""
    only(i, ("rn", *MODES, "sat"))
    *halves, last = i.operands[1:]
    if len(halves) != {"add": 1, "sub": 1, "fma": 2}.get(name):
        return None
    given = [*(number(values, x, kind) for x in halves), values.value(last, "f32")]
    return [values.set(i.operands[0], "f32", _operation(name, options, given))]


def _halves(values, i, name, kind, options):
    only(i, ("rn", "ftz", "sat", "relu", "NaN", "xorsign", "abs", "approx"))
    size, options = f"b{8 * SIZES[kind]}", tuple(options)
    given = ", ".join(values.value(x, size) for x in i.operands[1:])
    text = f"of_halves({name!r}, {kind.removesuffix('x2')!r}, {options}, {given})"
    return [values.set(i.operands[0], size, text)]


def _pairs(values, i, name, kind):
    only(i, ("relu",))
    given = ", ".join(values.value(x, "b32") for x in i.operands[1:])
    text = f"of_pairs({name!r}, {is_signed(kind)}, {'relu' in i.parts}, {given})"
    return [values.set(i.operands[0], "b32", text)]


def do_extreme(values, i):
    """min and max with options."""
    kind, options = kinds_of(i)[-1], options_of(i)
    if class_of(kind) in HALVES:
        return _halves(values, i, i.root, kind, options)
    if kind in PAIRS:
        return _pairs(values, i, i.root, kind)
    if kind == "s32" and len(i.operands) == 3:
        only(i, ("relu",))
        a, b = (values.value(x, kind) for x in i.operands[1:])
        name = "lower" if i.root == "min" else "higher"
        return [values.set(i.operands[0], kind, f"higher({name}({a}, {b}), 0)")]
    only(i, ("ftz", "NaN", "xorsign", "abs"))
    given = [values.value(x, kind) for x in i.operands[1:]]
    signs = {"xorsign", "abs"} & {*options}
    if kind != "f32" or not (len(given) == 2 and len(signs) != 1 or len(given) == 3 and "xorsign" not in signs):
        return None
    given = ", ".join(f"flushed({x})" if "ftz" in options else x for x in given)
    return [values.set(i.operands[0], kind, f"extreme({i.root!r}, {tuple(options)}, {given})")]


def do_testp(values, i):
    kind = kinds_of(i)[-1]
    only(i, ("finite", "infinite", "number", "notanumber", "normal", "subnormal"))
    least = 2.0**-126 if kind == "f32" else 2.0**-1022
    text = f"is_kind({i.parts[1]!r}, {values.value(i.operands[1], kind)}, {least!r})"
    return [values.set(i.operands[0], "pred", text)]


# --- integers -----------------------------------------------------------------------------------------
def do_slct(values, i):
    """a where c is not negative, -0 and NaN not among these, else b."""
    kind, by = kinds_of(i)
    only(i, ("ftz",))
    a, b = (values.value(x, kind) for x in i.operands[1:3])
    return [values.set(i.operands[0], kind, f"selected({a}, {b}, {values.value(i.operands[3], by)} >= 0)")]


def do_dot(values, i):
    kinds = kinds_of(i)
    only(i, ("lo", "hi"))
    signs = [is_signed(kind) for kind in kinds]
    a, b = (values.value(x, "b32") for x in i.operands[1:3])
    c = values.value(i.operands[3], "s32" if any(signs) else "u32")
    text = f"dot({1 if i.root == 'dp4a' else 2}, {a}, {b}, {c}, {signs[0]}, {signs[1]}, {'hi' in i.parts})"
    return [values.set(i.operands[0], "b32", text)]


def do_lop3(values, i):
    """With a predicate: whether the result is not 0, combined with another one."""
    how = options_of(i)
    if how not in (["or"], ["and"]) or "|" not in i.operands[0]:
        return None
    target, truth = i.operands[0].split("|")
    a, b, c, table = (values.value(x, "u32") for x in i.operands[1:5])
    t = values.temporary()
    made = [f"{t} = lop3({a}, {b}, {c}, {table})"]
    made += [values.set(target, "b32", t, True)] if target.strip() != "_" else []
    last = f"({t} != 0) {how[0]} {values.value(i.operands[5], 'pred')}"
    return [*made, values.set(truth.strip(), "pred", last)]


# --- comparisons of halves ----------------------------------------------------------------------------
def halves_of(values, text, kind):
    """The two numbers in a word, as float32."""
    word = values.value(text, "b32")
    return [f"number_in({word}, {kind.removesuffix('x2')!r}, {n})" for n in range(2)]


def do_setp_pair(values, i):
    kind, how, (target, a, b, *more) = kinds_of(i)[-1], i.parts[1], i.operands
    only(i, (how, "and", "or", "xor", "ftz"))
    word = next(({"xor": "!="}.get(p, p) for p in i.parts[2:] if p in ("and", "or", "xor")), None)
    made, pairs = [], zip(halves_of(values, a, kind), halves_of(values, b, kind), strict=True)
    taken = [values.temporary() for _ in target.split("|")]
    for t, (x, y) in zip(taken, pairs, strict=False):
        text = compared_floats(how, x, y)
        made.append(f"{t} = ({text}) {word} {values.value(more[0], 'pred')}" if word else f"{t} = {text}")
    return made + [values.set(one, "pred", t) for one, t in zip(target.split("|"), taken, strict=True)]


# --- conversions --------------------------------------------------------------------------------------
def do_cvt_form(values, i):
    """The forms of cvt beyond those of ``instructions``; None for others still."""
    if "pack" in i.parts:
        return _packed(values, i)
    (to, of), options = kinds_of(i), options_of(i)
    mode = next((p for p in options if p in (*MODES, "rna")), "rn")
    given, words = i.operands[1:], tuple(p for p in options if p in ("relu", "satfinite", "sat"))
    only(i, ("rn", "rna", *MODES, "relu", "satfinite", "sat", "ftz"))
    if to in BYTES:
        packed = of in HALVES
        low, high = halves_of(values, given[0], of) if packed else (values.value(x, "f32") for x in given[::-1])
        made = f"exponents_of({mode!r}" if to == "ue8m0x2" else f"bytes_of({to[:-2]!r}"
        if (to == "ue8m0x2") != (mode in ("rz", "rp")):
            return None
        return [values.set(i.operands[0], f"b{bits_of(to)}", f"{made}, {words}, {low}, {high})")]
    if of in BYTES:
        word = values.value(given[0], f"b{bits_of(of)}")
        return [values.set(i.operands[0], "b32", f"halves_of_bytes({of[:-2]!r}, {to[:-2]!r}, {words}, {word})")]
    xs = [number(values, g, of) for g in given]
    xs = [f"flushed({x})" if "ftz" in options and of == "f32" else x for x in xs]
    if to == "tf32":
        return [values.set(i.operands[0], "b32", f"tf32_of({xs[0]}, {mode!r}, {words})")]
    if to in ("f16x2", "bf16x2"):
        high, low = (f"half_of({x}, {to[:-2]!r}, {mode!r}, {words})" for x in xs)
        return [values.set(i.operands[0], "b32", f"{low} | {high} << 16")]
    if to in ("f16", "bf16"):
        return [values.set(i.operands[0], "b16", f"half_of({xs[0]}, {to!r}, {mode!r}, {words})")]
    if to in ("f32", "f64") and class_of(of) != "pred":
        text = f"wide_of({xs[0]}, {to!r}, {mode!r})"
        text = f"flushed({text})" if "ftz" in options and to == "f32" else text
        return [values.set(i.operands[0], to, f"saturated({text})" if "sat" in options else text)]
    return None


def _packed(values, i):
    kinds = kinds_of(i)
    only(i, ("pack", "sat"))
    high, low = (values.value(x, "s32") for x in i.operands[1:3])
    behind = values.value(i.operands[3], "b32") if len(i.operands) > 3 else "0"
    bits = bits_of(kinds[0])
    text = f"packed({low}, {high}, {bits}, {is_signed(kinds[0])}, {behind}, {2 * bits})"
    return [values.set(i.operands[0], "b32", text)]


ROWS = {
    "add": do_float, "addc": do_carry, "sub": do_float, "subc": do_carry, "mad": do_float, "madc": do_carry,
    **dict.fromkeys(("mul", "fma", "div", "rcp", "sqrt", "neg", "abs", "tanh", "ex2"), do_float),
    "min": do_extreme, "max": do_extreme, "testp": do_testp, "slct": do_slct, "dp4a": do_dot, "dp2a": do_dot,
    "lop3": do_lop3,
}  # fmt: skip

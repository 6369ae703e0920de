"""What a tensor map must fulfil: element types, options, and the rules of the driver by name.

The driver answers every mistake with the same ``CUDA_ERROR_INVALID_VALUE``. Here each of its
requirements is one small rule, so that a mistake says which argument broke which rule and how to mend
it. ``bench/tensormap_rules.py`` compares the rules with a real driver.

Left out are the packed sub-byte element types (16 x 4 bit and 16 x 6 bit) and, of the swizzle modes with
larger atoms, those that flip 8 bytes or move 64.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np


class TensorMapError(ValueError):
    """A tensor map, a box or a level breaks a rule.

    Attributes: ``rule`` (its name), ``given`` and ``required`` (texts, as in the message).
    """

    def __init__(self, message: str, rule: str, given: str = "", required: str = ""):
        super().__init__(message)
        self.rule, self.given, self.required = rule, given, required


class Broken(NamedTuple):
    """What a rule found wrong: the argument, its value, the value required, a way to mend it."""

    argument: str
    given: object
    required: str
    hint: str = ""


def broken_rule(rule: str, argument, given, required, hint="") -> TensorMapError:
    """The error of a broken rule, in words; the other arguments are those of ``Broken``."""
    text = f"tensor map rule '{rule}': {argument} is {given}, but must be {required}"
    return TensorMapError(text + (f"; {hint}" if hint else ""), rule, str(given), required)


# --- element types and options, and what the driver calls them ------------------------------------


class ElementType(NamedTuple):
    """One element type of a tensor map. ``itemsize`` in bytes.

    ``converts`` marks the types for which the copy changes bits on its way (denormals flushed,
    mantissa rounded to TF32); the others move unchanged.
    """

    name: str
    itemsize: int
    floating: bool = False
    converts: bool = False

    @property
    def driver_name(self) -> str:
        """The enumerator of CUtensorMapDataType."""
        return f"CU_TENSOR_MAP_DATA_TYPE_{self.name.upper()}"


_TYPES = (
    ElementType("uint8", 1), ElementType("uint16", 2),
    ElementType("uint32", 4), ElementType("int32", 4),
    ElementType("uint64", 8), ElementType("int64", 8),
    ElementType("float16", 2, floating=True), ElementType("float32", 4, floating=True),
    ElementType("float64", 8, floating=True), ElementType("bfloat16", 2, floating=True),
    ElementType("float32_ftz", 4, floating=True, converts=True),
    ElementType("tfloat32", 4, floating=True, converts=True),
    ElementType("tfloat32_ftz", 4, floating=True, converts=True),
)  # fmt: skip
ELEMENT_TYPES = {element.name: element for element in _TYPES}


def _named(prefix, *names):
    """{our name: the driver's}"""
    return {name: f"CU_TENSOR_MAP_{prefix}_{name.upper()}" for name in names}


INTERLEAVES = _named("INTERLEAVE", "none", "16B", "32B")
SWIZZLES = _named("SWIZZLE", "none", "32B", "64B", "128B", "128B_atom_32B")  # the last since Blackwell
L2_PROMOTIONS = _named("L2_PROMOTION", "none") | _named("L2_PROMOTION_L2", "64B", "128B", "256B")
FILLS = {
    "zero": "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
    "nan": "CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA",
}
OPTIONS = {"interleave": INTERLEAVES, "swizzle": SWIZZLES, "l2_promotion": L2_PROMOTIONS, "fill": FILLS}
SWIZZLE_SPANS = {"32B": 32, "64B": 64, "128B": 128, "128B_atom_32B": 128}  # the widest box rows, in bytes

# Conventional names of the dimensions, innermost first, for each rank (channels last).
DIMENSION_NAMES = {1: "C", 2: "CW", 3: "CWH", 4: "CWHN", 5: "CWHDN"}


def element_type(dtype) -> ElementType:
    """The element type for a name ("float16"), a NumPy dtype, or ml_dtypes.bfloat16.

    Raises TensorMapError (rule "element type") for anything a tensor map cannot describe.
    """
    if isinstance(dtype, ElementType):
        return dtype
    if isinstance(dtype, str) and dtype in ELEMENT_TYPES:
        return ELEMENT_TYPES[dtype]
    size, swapped = 0, False
    try:
        as_numpy = np.dtype(dtype)
        name, size, swapped = as_numpy.name, as_numpy.itemsize, not as_numpy.isnative
    except TypeError:
        name = str(dtype)
    name = name.removeprefix("torch.")
    if name in ELEMENT_TYPES and not swapped:
        return ELEMENT_TYPES[name]
    hint = ""
    if swapped:
        hint = "convert the array to the machine's byte order"
    elif size in (1, 2, 4, 8):
        hint = f"view the data as 'uint{8 * size}': the bits move unchanged"
    given = f"{name} (byte-swapped)" if swapped else name
    raise broken_rule("element type", "dtype", given, "one of " + ", ".join(ELEMENT_TYPES), hint)


def check_option(argument: str, value: str, table: dict) -> None:
    """Raise TensorMapError unless ``value`` is one of the names in ``table``."""
    if value not in table:
        names = ", ".join(map(repr, table))
        raise broken_rule("option name", argument, repr(value), f"one of {names}")


def integers(argument: str, values: Iterable) -> tuple[int, ...]:
    """The values as Python's integers; TensorMapError for one that is none."""
    result = []
    for i, value in enumerate(values):
        try:
            result.append(operator.index(value))
        except TypeError:
            raise broken_rule("integers", f"{argument}[{i}]", repr(value), "an integer") from None
    return tuple(result)


# --- the rules ------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """One requirement of cuTensorMapEncodeTiled: a name, a sentence, and the check.

    ``check(tensor_map)`` returns None, or a Broken that says what is wrong.
    """

    name: str
    text: str
    check: Callable


RULES: list[Rule] = []  # in the order they are checked


def _rule(name: str):
    """Add a function to RULES under this name; its docstring becomes the rule's sentence."""

    def register(check):
        RULES.append(Rule(name, check.__doc__, check))
        return check

    return register


def _rule_of_32(name: str, what: str):
    """Two rules about multiples, of 16 bytes and with interleave 32B of 32, that
    ``check(tensor_map, step, when)`` checks; ``what`` begins their sentences."""

    def register(check):
        RULES.append(Rule(name, f"{what} is a multiple of 16 bytes.", lambda m: check(m, 16, "")))
        text = f"With interleave 32B {what[0].lower()}{what[1:]} is a multiple of 32 bytes."
        RULES.append(Rule(f"{name}, interleave 32B", text, lambda m: (
            check(m, 32, " with interleave 32B") if m.interleave == "32B" else None
        )))
        return check

    return register


def _rule_of_range(name, text, values, low, high, required, called=None, below="", above=""):
    """The rule that each of a map's ``values`` lies from ``low`` to ``high``; hints for what lies outside."""

    def check(m):
        for i, value in enumerate(getattr(m, values)):
            if not low <= value <= high:
                unit, hint = " bytes" * (values == "strides"), below if value < low else above
                return Broken(called(i) if called else f"{values}[{i}]", f"{value}{unit}", required, hint)

    RULES.append(Rule(name, text, check))


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


@_rule("rank")
def _rank(m):
    """A map has 1 to 5 dimensions."""
    if not 1 <= m.rank <= 5:
        hint = "merge dimensions that are dense in memory" if m.rank > 5 else ""
        return Broken("rank, the number of dims,", m.rank, "1 to 5", hint)


@_rule("rank, interleaved")
def _rank_interleaved(m):
    """An interleaved map has at least 3 dimensions."""
    if m.interleave != "none" and m.rank < 3:
        hint = "add dimensions of size 1, or use interleave 'none'"
        return Broken("rank, the number of dims,", m.rank, "3 to 5 when interleaved", hint)


@_rule("argument counts")
def _argument_counts(m):
    """The box and the element strides have one entry per dimension, the strides one less."""
    if len(m.strides) != m.rank - 1:
        hint = "the innermost dimension is dense and has no entry"
        return Broken("len(strides)", len(m.strides), f"{m.rank - 1} for {m.rank} dims", hint)
    for name in ("box", "element_strides"):
        count = len(getattr(m, name))
        if count != m.rank:
            return Broken(f"len({name})", count, f"{m.rank}, one for each of the dims")


@_rule_of_32("base alignment", "The base address")
def _base(m, step, when):
    off = m.address % step
    if off:
        hint = f"it lies {off} bytes past such an address: start there, or copy the data"
        required = f"a multiple of {step} bytes{when}"
        return Broken("the base address", f"{m.address:#x}", required, hint)


_rule_of_range(
    "dim range", "Every dimension has 1 to 2^32 elements.", "dims", 1, 2**32, "1 to 2^32 = 4294967296 elements",
    below="nothing can be copied from an empty tensor",
)  # fmt: skip


def _name_of_stride(i):
    return f"strides[{i}] (of dimension {i + 1})"


@_rule_of_32("stride multiple", "Every stride")
def _stride(m, step, when):
    for i, stride in enumerate(m.strides):
        if stride % step:
            mended = _round_up(stride, step)
            hint = f"pad dimension {i} in memory so that the next one starts {mended} bytes on"
            argument, required = _name_of_stride(i), f"a multiple of {step} bytes{when}"
            return Broken(argument, f"{stride} bytes", required, hint)


_rule_of_range(
    "stride range", "Every stride is at least 0 and less than 2^40 bytes.", "strides", 0, 2**40 - 1,
    "0 to 2^40 - 1 bytes", _name_of_stride, below="a flipped dimension has to be copied first",
)  # fmt: skip
_rule_of_range(
    "box range", "The box has 1 to 256 elements along every dimension.", "box", 1, 256, "1 to 256 elements",
    above="copy a larger region with several boxes",
)  # fmt: skip


def _box_row(m, required, hint):
    given = f"{m.box[0]} * {m.itemsize} = {m.box[0] * m.itemsize} bytes"
    return Broken("the box row, box[0] * itemsize,", given, required, hint)


@_rule("box row multiple")
def _box_row_multiple(m):
    """Without interleave one row of the box, box[0] * itemsize, is a multiple of 16 bytes."""
    row = m.box[0] * m.itemsize
    if m.interleave == "none" and row % 16:
        hint = f"choose box[0] = {_round_up(row, 16) // m.itemsize}, the next that fits"
        return _box_row(m, "a multiple of 16 bytes", hint)


_rule_of_range("element stride range", "Every element stride is 1 to 8.", "element_strides", 1, 8, "1 to 8")


@_rule("swizzle span")
def _swizzle_span(m):
    """Without interleave one row of the box fits the swizzle: 32, 64 or 128 bytes."""
    span = SWIZZLE_SPANS.get(m.swizzle)
    row = m.box[0] * m.itemsize
    if m.interleave == "none" and span and row > span:
        wider = [name for name, bytes_ in SWIZZLE_SPANS.items() if bytes_ >= row] + ["none"]
        hint = f"choose box[0] <= {span // m.itemsize}, or swizzle {wider[0]!r}"
        return _box_row(m, f"at most {span} bytes with swizzle {m.swizzle}", hint)


@_rule("swizzle of interleave 32B")
def _swizzle_of_interleave_32(m):
    """Interleave 32B goes with swizzle 32B only."""
    if m.interleave == "32B" and m.swizzle != "32B":
        return Broken("swizzle", repr(m.swizzle), "'32B' with interleave 32B")


@_rule("NaN fill")
def _nan_fill(m):
    """Only floating-point elements can be filled with NaN."""
    if m.fill == "nan" and not m.element.floating:
        given, required = f"'nan' for {m.dtype}", "'zero' unless dtype is floating"
        return Broken("fill", given, required, "use fill='zero'")


@_rule("map alignment")
def _map_alignment(m):
    """The encoded map itself lies at a multiple of 64 bytes."""
    if m.map_address % 64:
        argument, hint = "the address of the encoded map", "TensorMapArray aligns its maps"
        return Broken(argument, f"{m.map_address:#x}", "a multiple of 64 bytes", hint)


def check_rules(m) -> None:
    """Raise TensorMapError for the first of its rules that this map breaks."""
    for rule in m.rules:
        if broken := rule.check(m):
            raise broken_rule(rule.name, *broken)

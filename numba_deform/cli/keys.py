"""What every command shares: kinds of values, keys, parsing them, printing, exit statuses."""

import dataclasses
import difflib
import sys
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from ..attention.call import ENGINES
from ..engines.cpu.engine import LANDINGS
from ..engines.cpu.interleave import Schedule
from ..kernels.problem import NUMPY_DTYPES
from ..kernels.registry import VARIANTS
from ..workloads.presets import PRESETS

RIGHT, WRONG, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


class UsageError(ValueError):
    """The command line itself is wrong; the text names the key and what is accepted."""


# --- kinds of values ------------------------------------------------------------------------------
@dataclass(frozen=True)
class Kind:
    """``parse`` turns a text into a value or raises ValueError; ``accepts`` says what it takes."""

    accepts: str
    parse: Callable[[str], object]


def at_least(least):
    """The kind of whole numbers from ``least`` on."""

    def parse(text):
        if int(text) < least:
            raise ValueError
        return int(text)

    return Kind(f"a whole number of at least {least}", parse)


def one_of(*names):
    """The kind of a name among ``names``."""

    def parse(text):
        if text not in names:
            raise ValueError
        return text

    return Kind(f"one of {', '.join(names)}", parse)


def _text(text):
    if not text:
        raise ValueError
    return text


def _seed(text):
    if not text.startswith("x"):
        return WHOLE.parse(text)
    Schedule.parse(text)
    return text


def numbers(separator, count):
    """The parser of ``2x2x32`` or ``-1,99``: ``count`` whole numbers."""

    def parse(text):
        parts = tuple(int(part) for part in text.split(separator))
        if len(parts) != count:
            raise ValueError
        return parts

    return parse


_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
COUNT, WHOLE = at_least(1), at_least(0)
INTEGER, REAL = Kind("a whole number", int), Kind("a number", float)
FLAG = Kind("1 or 0", lambda text: _FLAGS[text.lower()])
TEXT = Kind("a text", _text)
SEED = Kind("a whole number of at least 0, or a schedule such as x:0:0210", _seed)
DTYPE, ENGINE = one_of(*NUMPY_DTYPES), one_of(*ENGINES)


# --- keys -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Key:
    """One ``key=value``: its name, the kind of its value, and a line of help."""

    name: str
    kind: Kind
    help: str


SHAPE = (
    Key("batch", COUNT, "B, batch size"),
    Key("spatial_size", COUNT, "S, positions of all levels together (with border when padded)"),
    Key("num_query", COUNT, "Q, queries"),
    Key("num_heads", COUNT, "H, heads"),
    Key("channels", COUNT, "C, channels of one head"),
    Key("num_levels", COUNT, "L, levels"),
    Key("num_points", COUNT, "P, sampling points in each level"),
    Key("im2col_step", INTEGER, "accepted for compatibility: checked, then ignored"),
)
NUMBERS = tuple(key.name for key in SHAPE[:-1])
DRAW = (
    Key("workload", TEXT, f"picture, or a preset: {', '.join(PRESETS)}"),
    Key("dtype", DTYPE, "type of value, weights and output"),
    Key("location_dtype", DTYPE, "type of the sampling locations"),
    Key("pattern", TEXT, "where samples fall: seed, uniform, local or local(SIGMA in pixels)"),
    Key("outside", REAL, "least share of samples outside the levels, 0 to 1"),
    Key("padded", FLAG, "value has a border of one zero pixel around every level"),
    Key("seed", WHOLE, "of the random numbers, default 0"),
    Key("image", TEXT, "for workload=picture: a picture file instead of the built-in portrait"),
)
DIRECTORY = Key("dir", TEXT, "data directory, with value.bin, spatial_shapes.bin and the others")
ENGINE_KEY = Key("engine", ENGINE, "auto takes the GPU if there is one, else the CPU engine")
VARIANT = Key("variant", TEXT, "kernel: see numba-deform variants; auto is the fastest known")
LINKED = Key("linked", FLAG, "call the PTX functions instead of inlining them")
SIMULATION = (
    Key("schedules", COUNT, "CPU engine: try that many orders of the threads"),
    Key("schedule_seed", SEED, "CPU engine: the first order to try; 0 is in turn"),
    Key("landing", one_of(*LANDINGS), "CPU engine: when TMA copies arrive"),
)
COMPILED_FOR = (
    Key("dtype", DTYPE, "type of value, default float16"),
    Key("location_dtype", DTYPE, "type of the locations, default float16"),
    Key("channels", COUNT, "C, default 32"),
    Key("levels", COUNT, "L, default 4"),
    Key("points", COUNT, "P, default 8"),
    Key("arch", TEXT, "sm_90a and others"),
)


# --- parsing --------------------------------------------------------------------------------------
def split_pairs(words):
    """``{key: text}`` of ``key=value`` words, in order."""
    pairs = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UsageError(f"{word!r} is not of the form key=value")
        if key in pairs:
            raise UsageError(f"{key} is given twice: {key}={pairs[key]} and {key}={text}")
        pairs[key] = text
    return pairs


def parse_pairs(pairs, keys, command):
    """``{key: value}``; a UsageError names an unknown key or a value that the key does not take."""
    kinds = {key.name: key.kind for key in keys}
    options = {}
    for name, text in pairs.items():
        if name not in kinds:
            raise UsageError(_unknown_key(name, list(kinds), command))
        try:
            options[name] = kinds[name].parse(text)
        except (ValueError, KeyError):
            raise UsageError(f"{name}={text}: it must be {kinds[name].accepts}") from None
    return options


def _unknown_key(name, known, command):
    close = difflib.get_close_matches(name.lower().lstrip("-"), known, 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    owners = [
        members[0].name
        for members in families().values()
        if name in {key.name for key in variant_keys(members[0])}
    ]
    if owners and VARIANT.name in known:
        hint = f"; it is a parameter of variant {', '.join(owners)}"
    return f"unknown key {name}{hint} ({command} knows {', '.join(known) or 'no keys'})"


def families():
    """``{config class: [variants]}``: the variants that are one kernel with other parameters."""
    found = {}
    for variant in VARIANTS.values():
        found.setdefault(variant.config, []).append(variant)
    return found


def variant_keys(chosen):
    """The parameters of a variant as keys, of the kinds that their defaults have."""
    return tuple(
        Key(
            field.name,
            _kind_of(field.default),
            f"default {show(chosen.preset.get(field.name, field.default))}",
        )
        for field in dataclasses.fields(chosen.config)
    )


def _kind_of(default):
    if isinstance(default, bool):
        return FLAG
    if isinstance(default, int):
        return INTEGER
    if isinstance(default, float):
        return REAL
    if isinstance(default, tuple):
        example = show(default)
        return Kind(f"{len(default)} sizes such as {example}", numbers("x", len(default)))
    return TEXT


def show(value):
    """A value as it is written on the command line."""
    if isinstance(value, bool):
        return str(int(value))
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def variant_options(pairs, keys, command, chosen):
    """(the options of the command's own ``keys``, the variant's parameters)."""
    own = variant_keys(chosen)
    options = parse_pairs(pairs, (*keys, *own), command)
    parameters = {key.name: options.pop(key.name) for key in own if key.name in options}
    return options, parameters


# --- printing -------------------------------------------------------------------------------------
def console(width=None):
    """A rich Console on stdout, ``width`` characters wide or as wide as the terminal, 120 without one.

    Made anew each time, because ``sys.stdout`` may have been replaced.
    """
    if not width and not sys.stdout.isatty():
        width = 120
    return Console(highlight=False, width=width)


def say(label, value):
    """One line: ``label`` in a column of 14 characters, then ``value``."""
    line = Text.assemble((f"{label:<14}", "bold"), str(value))
    console().print(line, soft_wrap=True)


def verdict(passed):
    """Print the last line, PASS or FAIL; returns the exit status."""
    console().print(Text("PASS", "bold green") if passed else Text("FAIL", "bold red"))
    return RIGHT if passed else WRONG


def say_parameters(label, parameters):
    """One line of ``name=value`` words for a mapping."""
    say(label, " ".join(f"{name}={show(value)}" for name, value in parameters.items()))

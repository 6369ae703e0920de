"""What every command shares: entering it, keys and their parsing, printing, exit statuses."""

import dataclasses
import difflib
import sys
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from ..attention.call import ENGINES, pick_variant
from ..engines.cpu.engine import LANDINGS
from ..engines.cpu.steps import Schedule
from ..kernels.problem import NUMPY_DTYPES
from ..kernels.registry import VARIANTS
from ..measure.parameters import COUNT, FLAG, REAL, TEXT, WHOLE, Kind, kind_of, one_of, show
from ..workloads.presets import PRESETS

RIGHT, WRONG, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


class UsageError(ValueError):
    """The command line itself is wrong; the text names the key and what is accepted."""


COMMANDS, KEYS = {}, {}  # by name: a function from words to an exit status; the keys it knows


def command(name, *keys, raw=False):
    """Enter the decorated function as the command ``name``.

    It gets ``{key: value}`` and returns the exit status; one that is ``raw`` gets the words themselves."""

    def enter(call):
        KEYS[name] = keys
        COMMANDS[name] = call if raw else lambda words: call(parse_pairs(split_pairs(words), keys, name))
        return call

    return enter


def _seed(text):
    if not text.startswith("x"):
        return WHOLE.parse(text)
    Schedule.parse(text)
    return text


SEED = Kind("a whole number of at least 0, or a schedule such as x:0:0210", _seed)
DTYPE, ENGINE = one_of(*NUMPY_DTYPES), one_of(*ENGINES)


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
    Key("im2col_step", kind_of(64), "accepted for compatibility: checked, then ignored"),
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
SIMULATION = (Key("schedules", COUNT, "CPU engine: try that many orders of the threads"),
              Key("schedule_seed", SEED, "CPU engine: the first order to try; 0 is in turn"),
              Key("landing", one_of(*LANDINGS), "CPU engine: when TMA copies arrive"))  # fmt: skip
COMPILED_FOR = (Key("dtype", DTYPE, "type of value, default float16"),
                Key("location_dtype", DTYPE, "type of the locations, default float16"),
                Key("channels", COUNT, "C, default 32"), Key("levels", COUNT, "L, default 4"),
                Key("points", COUNT, "P, default 8"), Key("arch", TEXT, "sm_90a and others"))  # fmt: skip


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
        except ValueError:
            raise UsageError(f"{name}={text}: it must be {kinds[name].accepts}") from None
    return options


def _unknown_key(name, known, command):
    hint = closest(name.lower().lstrip("-"), known)
    owners = [
        members[0].name
        for config, members in families().items()
        if name in {field.name for field in dataclasses.fields(config)}
    ]
    if owners and VARIANT.name in known:
        hint = f"; it is a parameter of variant {', '.join(owners)}"
    return f"unknown key {name}{hint} ({command} knows {', '.join(known) or 'no keys'})"


def closest(name, known):
    """A question for the end of an error: the one of ``known`` that was perhaps meant; else nothing."""
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else ""


def families():
    """``{config class: [variants]}``: the variants that are one kernel with other parameters."""
    members = {}
    for variant in VARIANTS.values():
        members.setdefault(variant.config, []).append(variant)
    return members


def variant_keys(chosen):
    """The parameters of a variant as keys, of the kinds that their defaults have."""
    defaults = {f.name: chosen.preset.get(f.name, f.default) for f in dataclasses.fields(chosen.config)}
    return tuple(Key(name, kind_of(d), f"default {show(d)}") for name, d in defaults.items())


def variant_options(pairs, command, default="tma"):
    """(the options of the command, the variant that they name or ``default``, its parameters)."""
    chosen = pick_variant(pairs.get("variant", default))
    own = variant_keys(chosen)
    options = parse_pairs(pairs, (*KEYS[command], *own), command)
    parameters = {key.name: options.pop(key.name) for key in own if key.name in options}
    return options, chosen, parameters


def simulation_options(options):
    """What the keys SIMULATION say, as arguments of ``simulate``."""
    return {"schedules": options.get("schedules", 1), "seed": options.get("schedule_seed", 0),
            "landing": options.get("landing", "late")}  # fmt: skip


def console(width=None):
    """A rich Console on stdout, ``width`` characters wide or as wide as the terminal, 120 without one.

    Made anew each time, because ``sys.stdout`` may have been replaced."""
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


def in_words(parameters):
    """A mapping as ``name=value`` words."""
    return " ".join(f"{name}={show(value)}" for name, value in parameters.items())

"""Keys: every ``key=value`` that a command knows, how words become values, and what is refused.

Nothing here imports Numba or NumPy, so that help, completion and most refusals come at once. What belongs to
modules that do is written down once more; tests/unit/test_cli_words.py compares."""

import json
from dataclasses import dataclass
from pathlib import Path

from ..device.limits import MAX_REGISTERS
from ..engines.suggestions import closest
from ..engines.waivers import WAIVERS
from ..engines.waivers import names as waivers
from ..measure.parameters import COUNT, FLAG, REAL, TEXT, WHOLE, Kind, kind_of, one_of, whole_numbers

_PACKAGE = Path(__file__).parents[1]
ENGINES, DTYPES = ("auto", "gpu", "cpu"), ("float16", "bfloat16", "float32")
LANDINGS, PATTERNS = ("late", "random", "earliest"), ("seed", "uniform", "local")
VARIANTS = tuple(line["name"] for line in json.loads((_PACKAGE / "kernels/configurations.json").read_text()))
_BUGS = {path.stem for path in (_PACKAGE / "course/bugs").glob("*.py")}
BUGS = tuple(sorted(_BUGS - {"__init__", "base", "gpu"}))
PRESETS = (
    "seeds", "seeds-padded", "detr-encoder", "detr-encoder-b4", "detr-decoder", "dino-decoder",
    "dino-5scale", "rtdetr-decoder", "dfine-decoder", "mask2former", "bevformer-temporal",
    "bevformer-spatial", "tiny", "quick",
)  # fmt: skip
PEERS = ("torch grid_sample", "torch grid_sample compiled", "mmcv", "transformers", "Deformable-DETR extension",
         "msda-triton", "deformops")  # fmt: skip
EXPLORE_LIMIT = 10_000


class UsageError(ValueError):
    """The command line itself is wrong; the text names the key and what is accepted."""


@dataclass(frozen=True)
class Key:
    """One ``key=value``: its name, the kind of its value, a line of help, for completion the values that it
    has, and what ``--key`` without a value says."""

    name: str
    kind: Kind
    help: str
    values: tuple[str, ...] = ()
    alone: str = ""

    @property
    def choices(self):
        return self.values or self.kind.names

    @property
    def by_itself(self):
        return ALONE if self.kind is FLAG else self.alone


ALONE = "yes"  # the value of a key without one: no number, so that only a flag takes it


def _seed(text):
    if not text.startswith("x"):
        return WHOLE.parse(text)
    from ..engines.cpu.schedules.choices import Schedule  # not above: it brings Numba

    Schedule.parse(text)
    return text


SEED_KIND = Kind("a whole number of at least 0, or a schedule such as x:0:0210", _seed)
SCHEDULES = Kind(f"{COUNT.accepts}, or all", lambda text: text if text == "all" else COUNT.parse(text))
SIZES = whole_numbers("three sizes HxWxC such as 2x2x32", "x", 3)
CORNER = whole_numbers("two whole numbers x,y", ",", 2)
ROWS = whole_numbers("row numbers such as 0 or 3,17", ",")
BLOCKS = whole_numbers("block numbers such as 0 or 0,3", ",")
SOME_BLOCKS = Kind(f"{BLOCKS.accepts}, or all", lambda text: text if text == "all" else BLOCKS.parse(text))
GPUS = whole_numbers("numbers of GPUs such as 0,1", ",")
REGISTERS = Kind(f"a whole number from 0 to {MAX_REGISTERS}", int, lambda n: 0 <= n <= MAX_REGISTERS)
DTYPE, ENGINE = one_of(*DTYPES), one_of(*ENGINES)

# --- keys of several commands ---------------------------------------------------------------------
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
    Key("workload", TEXT, f"picture, or a preset: {', '.join(PRESETS)}", (*PRESETS, "picture")),
    Key("dtype", DTYPE, "type of value, weights and output"),
    Key("location_dtype", DTYPE, "type of the sampling locations"),
    Key("pattern", TEXT, "where samples fall: seed, uniform, local or local(SIGMA in pixels)", PATTERNS),
    Key("outside", REAL, "least share of samples outside the levels, 0 to 1"),
    Key("padded", FLAG, "value has a border of one zero pixel around every level"),
    Key("seed", WHOLE, "of the random numbers, default 0"),
    Key("image", TEXT, "for workload=picture: a picture file instead of the built-in portrait"),
)
DIRECTORY = Key("dir", TEXT, "data directory, with value.bin, spatial_shapes.bin and the others")
ENGINE_KEY = Key("engine", ENGINE, "auto takes the GPU if there is one, else the CPU engine")
VARIANT = Key("variant", TEXT, "kernel: see numba-deform variants; auto is the fastest known",
              (*VARIANTS, "auto"))  # fmt: skip
LOAD = Key("load", TEXT, "Python files, by commas, whose pipelines (@nd.pipeline) and variants are known then")
LINKED = Key("linked", FLAG, "call the PTX functions instead of inlining them")
SIMULATION = (Key("schedules", COUNT, "CPU engine: try that many orders of the threads"),
              Key("schedule_seed", SEED_KIND, "CPU engine: the first order to try; 0 is in turn"),
              Key("landing", one_of(*LANDINGS), "CPU engine: when TMA copies arrive"))  # fmt: skip
_SOME = Kind(f"one or more of {','.join(WAIVERS)}", lambda text: waivers(text.split(",")), names=tuple(WAIVERS))
DRAWN_BY = one_of(*ENGINES, "model", "both")
WAIVE = Key("waive", _SOME, "CPU engine: rules that may be broken, see bench/ENGINE.md")
MODELLED = Key("gpu", one_of("h200", "h100"), "whose time is predicted, default h200")
PROFILE = (Key("engine", one_of("cpu", "gpu", "both"), "cpu: run here, the default; gpu: by Nsight Compute"),
           Key("only", SOME_BLOCKS, "the blocks that run, or all; default: of a large grid one SM's"),
           Key("limit", COUNT, "instructions of warps that run at most, default 20000000"),
           Key("lines", COUNT, "lines of the table, default 25"),
           Key("sass", FLAG, "the instructions under each line"),
           Key("time", FLAG, "also the time that a model of an H200 predicts, and where warps wait"),
           MODELLED, Key("out", TEXT, "the JSON file to write"))  # fmt: skip
COMPILED_FOR = (Key("dtype", DTYPE, "type of value, default float16"),
                Key("location_dtype", DTYPE, "type of the locations, default float16"),
                Key("channels", COUNT, "C, default 32"), Key("levels", COUNT, "L, default 4"),
                Key("points", COUNT, "P, default 8"), Key("arch", TEXT, "sm_90a and others"))  # fmt: skip
OUT = Key("out", TEXT, "the JSON file to write")
REPEATS = Key("repeats", COUNT, "timed rounds, default 10")
LIMIT = Key("limit", COUNT, "seconds that one configuration may take before it is stopped")
SEED = Key("seed", WHOLE, "of the random inputs, default 1")
FILE = Key("file", TEXT, "a JSON file of bench or sweep")
MARKDOWN = Key("markdown", FLAG, "print Markdown instead")
PRESET_LIST = Key("workload", TEXT, f"all, or some by commas of {', '.join(PRESETS)}; default seeds", PRESETS)
DTYPE_LIST = Key("dtype", TEXT, f"one or more of {','.join(DTYPES)}; default: the workload's own", DTYPES)
# Of sweep: these, and the variants' parameters, take lists by commas.
WORKLOAD_FIELDS = ("batch", "num_query", "num_heads", "channels", "num_points", "dtype", "location_dtype",
                   "pattern", "padded")  # fmt: skip
_CHOICES = {"dtype": DTYPES, "location_dtype": DTYPES, "pattern": PATTERNS, "padded": FLAG.names}
GRID = (
    Key("variant", TEXT, "kernels, or all; default direct", (*VARIANTS, "all")),
    Key("workload", TEXT, "presets, default seeds", PRESETS),
    LINKED,
    *(Key(name, TEXT, "of the workload", _CHOICES.get(name, ())) for name in WORKLOAD_FIELDS),
    Key("patterns", TEXT, "another name of pattern", PATTERNS),
)


# --- words ----------------------------------------------------------------------------------------
def split_pairs(words, keys=(), first=""):
    """``{key: text}`` of ``key=value``, ``--key=value`` and ``--key value`` words, in order. A word that is
    none of these is the value of the key ``first``, if there is one."""
    known, pairs, left = {key.name: key for key in keys}, {}, list(words)
    while left:
        word = left.pop(0)
        name, equals, text = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if word.startswith("--") and not equals:
            text = _value_after(name, known.get(name), left)
        elif not equals and first and first not in pairs and not word.startswith("-"):
            name, text = first, word
        elif not equals:
            hint = _meant(word, keys, left, pairs)
            raise UsageError(f"{word!r} is not of the form key=value or --key value{hint}")
        if not name:
            raise UsageError(f"{word!r} is not of the form key=value or --key value")
        if name in pairs:
            raise UsageError(f"{name} is given twice: {name}={pairs[name]} and {name}={text}")
        pairs[name] = text
    return pairs


def _value_after(name, key, left):
    """The text for ``--name``: the next of the words ``left``, which is taken away, or what it says alone."""
    following = left[0] if left else "--"
    is_value = not following.startswith("--")
    if key is None or key.by_itself:  # an unknown one may be a variant's flag
        is_value = is_value and "=" not in following
        if key and key.kind is FLAG:
            is_value = is_value and key.kind.convert(following) is not None
    elif not is_value:
        raise UsageError(f"--{name.replace('_', '-')} needs a value: {key.kind.accepts}")
    return left.pop(0) if is_value else ALONE if key is None else key.by_itself


def _meant(word, keys, left, pairs):
    """How ``word``, after ``pairs`` and before the words ``left``, was perhaps meant: for its refusal."""
    for name, text in list(pairs.items())[-1:]:
        if text.endswith(","):
            return f"; did you mean {name}={text}{word}?"
    plain, colon, text = word.lstrip("-").replace("-", "_").partition(":")
    for key in keys:
        if plain == key.name and colon:
            return f"; did you mean {plain}={text}?"
        if plain == key.name:
            value = key.by_itself and "1" or next((w for w in left if w != "="), "VALUE")
            return f"; did you mean {plain}={value}?"
        if word in key.choices:
            return f"; did you mean {key.name}={word}?"
    return closest(plain, [key.name for key in keys])


def parse_pairs(pairs, keys, command):
    """``{key: value}``; a UsageError names an unknown key or a value that the key does not take."""
    kinds = {key.name: key.kind for key in keys}
    options = {}
    for name, text in pairs.items():
        if name not in kinds:
            hint, known = closest(name.lower(), list(kinds)), ", ".join(kinds) or "no keys"
            raise UsageError(f"unknown key {name}{hint} ({command} knows {known})")
        try:
            options[name] = kinds[name].parse(text)
        except ValueError:
            if text == ALONE:
                raise UsageError(f"--{name.replace('_', '-')} needs a value: {kinds[name].accepts}") from None
            hint = closest(text, kinds[name].names)
            raise UsageError(f"{name}={text}: it must be {kinds[name].accepts}{hint}") from None
    return options


def refuse_keys(options, names, why):
    """UsageError for one of these keys that is given: ``why`` says what it is for."""
    for name in names:
        if name in options:
            raise UsageError(f"{name} {why}")


def refuse_for_the_gpu(options, names):
    """The same of keys of the CPU engine's where a GPU runs."""
    refuse_keys(options, names, "is for the CPU engine; add engine=cpu")


def check_all_schedules(options):
    """UsageError for a key that does not go with ``schedules=all``, or only with that."""
    if options.get("schedules") == "all":
        why = "does not go with schedules=all, which tries all of them"
        refuse_keys(options, ("schedule_seed", "landing"), why)
    else:
        refuse_keys(options, ["limit"], "goes with schedules=all; add it")


def refuse_for_the_model(options):
    """UsageError for a key of the CPU engine's beside ``engine=model``."""
    for key in SIMULATION:
        if options.get("engine") == "model" and key.name in options:
            raise UsageError(f"{key.name}= is for the CPU engine; engine=model plays machine code")


def simulation_options(options):
    """What the keys SIMULATION and WAIVE say, as arguments of ``simulate``."""
    return {"schedules": options.get("schedules", 1), "seed": options.get("schedule_seed", 0),
            "landing": options.get("landing", "late"), "waive": options.get("waive", ())}  # fmt: skip

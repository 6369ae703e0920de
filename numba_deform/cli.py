"""The command line: ``numba-deform COMMAND key=value ...``, with the keys of the original programs.

Every command is a function from its parsed keys to an exit status: 0 right, 1 a wrong result, 2 bad
input. What is computed lives in ``systems.py``; here are parsing and printing.
"""

import dataclasses
import difflib
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import picture
from .data import read_directory, write_directory
from .host.gpu import GpuMissing, gpu_or_none, is_cuda_error
from .host.tensormap import DriverMissing
from .inspect import ToolMissing, inspect_kernel
from .kernels.lanes import ITEMSIZE
from .op import ENGINES, pick_engine, pick_variant
from .sim import SimFault
from .sim.engine import LANDINGS
from .systems import HOPPER, describe, plan_operator, run_plan, run_probe, run_tile_copy
from .variants import SHARED_LIMIT, VARIANTS, Constants
from .workload import NUMPY_DTYPES, PRESETS, level_sizes, levels_for, preset

RIGHT, WRONG, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
SECONDS_PER_SAMPLE = 1.5e-3  # of the CPU engine, roughly, for 32 channels
PATIENCE = 60  # seconds on the CPU engine beyond which force=1 has to be given


class UsageError(ValueError):
    """The command line itself is wrong; the text names the key and what is accepted."""


# --- kinds of values ------------------------------------------------------------------------------
@dataclass(frozen=True)
class Kind:
    """``parse`` turns a text into a value or raises ValueError; ``accepts`` says what it takes."""

    accepts: str
    parse: Callable[[str], object]


def _at_least(least):
    def parse(text):
        if int(text) < least:
            raise ValueError
        return int(text)

    return Kind(f"a whole number of at least {least}", parse)


def _one_of(*names):
    def parse(text):
        if text not in names:
            raise ValueError
        return text

    return Kind(f"one of {', '.join(names)}", parse)


def _text(text):
    if not text:
        raise ValueError
    return text


def _numbers(separator, count):
    """``2x2x32`` or ``-1,99``: ``count`` whole numbers."""

    def parse(text):
        parts = tuple(int(part) for part in text.split(separator))
        if len(parts) != count:
            raise ValueError
        return parts

    return parse


_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
COUNT, WHOLE = _at_least(1), _at_least(0)
INTEGER, REAL = Kind("a whole number", int), Kind("a number", float)
FLAG = Kind("1 or 0", lambda text: _FLAGS[text.lower()])
TEXT = Kind("a text", _text)
DTYPE, ENGINE = _one_of(*NUMPY_DTYPES), _one_of(*ENGINES)
SIZES = Kind("three sizes HxWxC such as 2x2x32", _numbers("x", 3))


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
VARIANT = Key("variant", TEXT, f"kernel: {', '.join(VARIANTS)}, or auto for the fastest known")
LINKED = Key("linked", FLAG, "call the PTX functions instead of inlining them")
SIMULATION = (
    Key("schedules", COUNT, "CPU engine: try that many orders of the threads"),
    Key("schedule_seed", WHOLE, "CPU engine: the first order to try; 0 is in turn"),
    Key("landing", _one_of(*LANDINGS), "CPU engine: when TMA copies arrive"),
)

KEYS = {
    "run": (
        *SHAPE, *DRAW, DIRECTORY, ENGINE_KEY, VARIANT, LINKED, *SIMULATION,
        Key("picture_out", TEXT, "for workload=picture: write the output as a PNG"),
        Key("force", FLAG, "run on the CPU engine however long it takes"),
    ),
    "probe": (
        ENGINE_KEY,
        Key("corner", Kind("two whole numbers x,y", _numbers(",", 2)), "where the box starts"),
    ),
    "tile-copy": (
        ENGINE_KEY,
        Key("shape", SIZES, "the tensor, default 100x100x32"),
        Key("box", SIZES, "the tile, default 2x2x32"),
        Key("dtype", DTYPE, "default float16"),
        Key("stages", COUNT, "tiles in flight for each warp, default 4"),
        Key("warps", COUNT, "warps of a block, default 4"),
        Key("repeats", COUNT, "timed runs on a GPU, default 10"),
    ),
    "data": (*SHAPE, *DRAW, DIRECTORY, Key("force", FLAG, "overwrite files that are there")),
    "variants": (),
    "inspect": (
        VARIANT,
        Key("dtype", DTYPE, "type of value, default float16"),
        Key("location_dtype", DTYPE, "type of the locations, default float16"),
        Key("channels", COUNT, "C, default 32"),
        Key("levels", COUNT, "L, default 4"),
        Key("points", COUNT, "P, default 8"),
        Key("show", _one_of("summary", "ptx", "sass"), "what to print"),
        LINKED,
        Key("arch", TEXT, "sm_90a and others"),
    ),
}  # fmt: skip

USAGE = """\
Multi-scale deformable attention in Numba CUDA, with TMA and mbarrier; no GPU? On the CPU engine.

numba-deform COMMAND key=value ...

  run         compute the operator with one variant and compare it with the float64 reference
  probe       send one 2x2x32 box through TMA: the first thing to try
  tile-copy   copy a tensor tile by tile with TMA, check every bit, measure
  data        data write dir=PATH writes a data directory; data read dir=PATH checks one
  variants    list the kernels with their parameters
  inspect     PTX, machine code, registers and spills of a variant, no GPU needed
  help        this text;  help COMMAND: its keys

Examples:
  numba-deform probe
  numba-deform run
  numba-deform run variant=tma stages=4 workload=tiny schedules=5 landing=random engine=cpu
  numba-deform run batch=1 spatial_size=100 num_query=100 num_heads=1 channels=32 num_levels=4 \\
      num_points=8 im2col_step=1
  numba-deform run workload=picture picture_out=out.png
  numba-deform data write dir=/tmp/quick workload=quick
  numba-deform run dir=/tmp/quick variant=direct lanes=4
  numba-deform inspect variant=tma stages=3 show=sass
"""


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
    owners = [v.name for v in VARIANTS.values() if name in {k.name for k in variant_keys(v)}]
    if owners and VARIANT.name in known:
        hint = f"; it is a parameter of variant {' and '.join(owners)}"
    return f"unknown key {name}{hint} ({command} knows {', '.join(known) or 'no keys'})"


def variant_keys(chosen):
    """The parameters of a variant as keys, of the kinds that their defaults have."""
    return tuple(
        Key(field.name, _kind_of(field.default), f"default {_show(field.default)}")
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
        example = _show(default)
        return Kind(f"{len(default)} sizes such as {example}", _numbers("x", len(default)))
    return TEXT


def _show(value):
    """A parameter as it is written on the command line."""
    if isinstance(value, bool):
        return str(int(value))
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def variant_options(pairs, command, chosen):
    """(the command's own options, the variant's parameters)."""
    own = variant_keys(chosen)
    options = parse_pairs(pairs, (*KEYS[command], *own), command)
    parameters = {key.name: options.pop(key.name) for key in own if key.name in options}
    return options, parameters


# --- printing -------------------------------------------------------------------------------------
def _console():
    """Made anew each time, because ``sys.stdout`` may have been replaced."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def _say(label, value):
    line = Text.assemble((f"{label:<14}", "bold"), str(value))
    _console().print(line, soft_wrap=True)


def _verdict(passed):
    """The last line, and the exit status."""
    _console().print(Text("PASS", "bold green") if passed else Text("FAIL", "bold red"))
    return RIGHT if passed else WRONG


def _shapes(levels):
    return " ".join(f"{h}x{w}" for h, w in levels)


# --- run ------------------------------------------------------------------------------------------
def run(pairs):
    """``numba-deform run``: the operator on either engine."""
    name, note = _default_variant(pairs)
    chosen = pick_variant(name)
    options, parameters = variant_options(pairs, "run", chosen)
    engine, gpu = pick_engine(options.get("engine", "auto"), chosen)
    _check_engine_keys(options, engine)
    _check_picture_out(options)
    source = choose_source(options, engine)
    if engine == "cpu":
        _check_duration(source, options)
    # Again inside plan_operator, but before the arrays are made, which can take a while.
    chosen.configure(source.constants, **parameters)
    _check_memory(source)
    inputs = source.load()
    plan = plan_operator(
        inputs, name, engine, options.get("linked", False), options.get("im2col_step"), **parameters
    )

    _say("device", describe(gpu, options.get("engine", "auto")))
    if note:
        _say("note", note)
    _say("workload", source.text)
    _say("variant", f"{chosen.name}: {chosen.summary}{' (linked PTX)' if plan.linked else ''}")
    _say("configuration", " ".join(f"{k}={_show(v)}" for k, v in vars(plan.config).items()))
    _say("shared memory", _shared_memory(plan))
    _say("registers", _registers(plan))
    if engine == "cpu":
        _say("running", f"about {_duration(source.seconds(options))}, thread by thread ...")
    result = run_plan(plan, simulate_options=_simulate_options(source, options))
    _say("error", _error(result))
    if result.unwritten:
        _say("unwritten", f"{result.unwritten:,} of {result.out.size:,} elements are NaN")
    _say_time(plan, result)
    if "picture_out" in options:
        picture.write_picture(options["picture_out"], result.out, source.workload)
        _say("picture", options["picture_out"])
    return _verdict(result.passed)


def _default_variant(pairs):
    """(name, a note or ""): tma, unless the GPU that is going to be used is too old for it."""
    if "variant" in pairs:
        return pairs["variant"], ""
    gpu = gpu_or_none() if pairs.get("engine", "auto") in ("auto", "gpu") else None
    if gpu and gpu.capability < HOPPER:
        return "direct", (
            f"{gpu.name} is older than Hopper and has no TMA, so direct runs; engine=cpu runs tma"
        )
    return "tma", ""


def _check_engine_keys(options, engine):
    if engine == "gpu":
        for key in SIMULATION:
            if key.name in options:
                raise UsageError(f"{key.name} is for the CPU engine; add engine=cpu")
    elif options.get("linked"):
        raise UsageError(
            "linked=1 is another form of the GPU's code, and the CPU engine runs neither; "
            "'numba-deform inspect linked=1' shows it without a GPU"
        )


def _check_picture_out(options):
    if "picture_out" not in options:
        return
    if options.get("workload") != "picture":
        raise UsageError("picture_out draws the output of workload=picture only; add it")
    parent = Path(options["picture_out"]).absolute().parent
    if not parent.is_dir():
        raise UsageError(f"picture_out={options['picture_out']}: there is no directory {parent}")


def _check_duration(source, options):
    seconds = source.seconds(options)
    if seconds <= PATIENCE or options.get("force"):
        return
    fitting = int(source.numbers["num_query"] * PATIENCE / seconds)
    fewer = f"num_query={fitting} or less, " if fitting and "dir" not in options else ""
    raise UsageError(
        f"{source.samples:,} samples would take about {_duration(seconds)} on the CPU engine: "
        f"choose {fewer}workload=quick, engine=gpu, or force=1 to wait"
    )


def _check_memory(source):
    """Refuse what cannot fit: the system may promise any amount, and kill the process later."""
    needed = source.nbytes
    if hasattr(os, "sysconf") and needed > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        raise UsageError(
            f"the inputs would take {needed / 2**30:,.0f} GiB, more than this machine's memory: "
            "choose a smaller batch, num_query or spatial_size"
        )


def _duration(seconds):
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:,.0f} h"


def _simulate_options(source, options):
    once = source.samples * SECONDS_PER_SAMPLE
    return {
        "schedules": options.get("schedules", 1),
        "seed": options.get("schedule_seed", 0),
        "landing": options.get("landing", "late"),
        "timeout": max(60.0, 20 * once),  # slow machines exist; a hang ends all the same
    }


def _shared_memory(plan):
    tiles, barriers = plan.config.shared_bytes(plan.problem.constants)
    if not tiles + barriers:
        return "none"
    return f"{tiles:,} bytes of tiles + {barriers:,} of barriers a block (at most {SHARED_LIMIT:,})"


def _registers(plan):
    architecture = plan.gpu.architecture if plan.gpu else "sm_90a"
    try:
        found = inspect_kernel(plan.kernel, architecture)
    except ToolMissing as error:
        return f"not known: {error}"
    except Exception as error:  # only information: a machine without the compiler simulates too
        return f"not known: {str(error).partition(chr(10))[0]}"
    spills = f"{found.spill_loads} spill loads" if found.spill_loads else "no spills"
    return f"{found.registers} a thread, {spills} ({architecture})"


def _error(result):
    rows = (
        f"all {result.rows:,}"
        if result.rows_checked == result.rows
        else (f"{result.rows_checked:,} random ones of {result.rows:,}")
    )
    return (
        f"{result.error:.2e} against float64, must be below {result.tolerance:g} "
        f"(output rows compared: {rows})"
    )


def _say_time(plan, result):
    if result.report:
        r = result.report
        plural = "s" if r.schedules > 1 else ""
        _say("CPU engine", f"{r.seconds:.1f} s, {r.schedules} schedule{plural} without a fault")
        _say("virtual time", f"{r.cycles:,.0f} cycles of the longest thread, nothing measured")
        _say("events", f"{r.copies:,} TMA copies, {r.switches:,} switches between threads")
        return
    ms = result.milliseconds
    _say("time", f"{ms:.4f} ms (median of 10 after 3 warm-ups; for orientation: use bench)")
    _say("throughput", f"{result.bytes_moved / ms / 1e6:,.0f} GB/s of compulsory traffic, "
         f"{plan.problem.samples / ms / 1e6:.2f} G samples (tiles)/s")  # fmt: skip


# --- where the inputs come from -------------------------------------------------------------------
@dataclass(frozen=True)
class Source:
    """Inputs described before they are made; ``numbers`` holds the shape keys' seven."""

    text: str
    numbers: dict
    constants: Constants
    load: Callable[[], object]
    workload: object = None

    @property
    def samples(self):
        n = self.numbers
        return n["batch"] * n["num_query"] * n["num_heads"] * n["num_levels"] * n["num_points"]

    @property
    def nbytes(self):
        """Of value, locations and weights."""
        n, c = self.numbers, self.constants
        item, location_item = ITEMSIZE[c.dtype], ITEMSIZE[c.location_dtype]
        value = n["batch"] * n["spatial_size"] * n["num_heads"] * n["channels"] * item
        return value + self.samples * (2 * location_item + item)

    def seconds(self, options):
        """Estimate for the CPU engine."""
        return self.samples * SECONDS_PER_SAMPLE * options.get("schedules", 1)


def choose_source(options, engine):
    """A data directory, a picture, a preset with changes, or the seeds' quick test with changes."""
    if "dir" in options:
        return _directory_source(options)
    if options.get("workload") == "picture":
        return _picture_source(options, engine)
    if "image" in options:
        raise UsageError("image goes with workload=picture; add it")
    workload = make_workload(options, "quick" if engine == "cpu" else "detr-encoder")
    return _workload_source(workload, options.get("seed", 0))


def _workload_source(workload, seed, load=None):
    numbers = {name: getattr(workload, name) for name in NUMBERS}
    constants = Constants(
        workload.num_levels, workload.num_points, workload.channels, workload.dtype,
        workload.location_dtype, workload.dtype,
    )  # fmt: skip
    load = load or (lambda: workload.generate(seed))
    return Source(workload.describe(), numbers, constants, load, workload)


def make_workload(options, default):
    """The preset asked for (else ``default``, or quick if there are shape keys), changed."""
    shape = {k: options[k] for k in NUMBERS if k in options}
    base = preset(options.get("workload") or ("quick" if shape else default))
    changes = {k: options[k] for k in ("dtype", "location_dtype", "pattern", "outside", "padded")
               if k in options}  # fmt: skip
    size, levels = shape.pop("spatial_size", None), shape.pop("num_levels", None)
    if size or levels:
        padded = options.get("padded", base.padded)
        size = size or int(level_sizes(base.levels, padded).sum())
        changes["levels"] = levels_for(size, levels or base.num_levels, padded)
    changes.update(shape)
    if changes and "workload" not in options:
        changes["name"] = "custom"
    return base.replace(**changes)


def _directory_source(options):
    for key in ("dtype", "location_dtype", "pattern", "outside", "seed", "image"):
        if key in options:
            raise UsageError(f"{key} does not go with dir: the files say it (float16)")
    base = preset(options.get("workload", "quick"))
    numbers = {name: options.get(name, getattr(base, name)) for name in NUMBERS}
    padded = options.get("padded")
    if padded is not None and "spatial_size" not in options:
        numbers["spatial_size"] = int(level_sizes(base.levels, padded).sum())
    text = f"{options['dir']}: " + " ".join(f"{k}={v}" for k, v in numbers.items())
    constants = Constants(numbers["num_levels"], numbers["num_points"], numbers["channels"])
    return Source(
        text, numbers, constants, lambda: read_directory(options["dir"], **numbers, padded=padded)
    )


def _picture_source(options, engine):
    for key in ("batch", "spatial_size", "padded", "pattern", "outside", "location_dtype"):
        if key in options:
            raise UsageError(f"{key} does not go with workload=picture")
    taken = ("num_heads", "channels", "num_levels", "num_points", "dtype", "image", "seed")
    settings = {key: options[key] for key in taken if key in options}
    queries = options.get("num_query")
    if engine == "cpu":  # one head and a coarse grid show as much, in a quarter of a minute
        settings.setdefault("num_heads", 1)
        each = settings["num_heads"] * settings.get("num_levels", 3) * settings.get("num_points", 4)
        queries = queries or max(1, 10_000 // each)
    workload, inputs = picture.picture_workload(queries=queries, **settings)
    return _workload_source(workload, None, lambda: inputs)


# --- probe and tile-copy --------------------------------------------------------------------------
def probe(pairs):
    """``numba-deform probe``: prints what the original program printed."""
    result = run_probe(**parse_pairs(pairs, KEYS["probe"], "probe"))
    _say("Device:", result.device)
    _say("Tensor:", "100x100x32 float32, element i holds i/100")
    _say("Tile:", "2x2x32")
    if result.first is not None:
        print("First 8 values: ", *(f"{v:.2f}" for v in result.first))
        print("Expected values:", *(f"{v:.2f}" for v in result.expected))
    if result.reason:
        _say("Reason:", result.reason)
    status = _verdict(result.passed)
    return BAD_INPUT if result.first is None else status


def tile_copy(pairs):
    """``numba-deform tile-copy``."""
    result = run_tile_copy(**parse_pairs(pairs, KEYS["tile-copy"], "tile-copy"))
    _say("device", result.device)
    _say("tensor", f"{_show(result.shape)} {result.dtype}, {result.bytes_moved // 2:,} bytes")
    _say("tiles", f"{result.tiles:,} of {_show(result.box)}")
    _say("launch", f"{result.blocks} blocks of {result.warps} warps, {result.stages} stages each")
    if result.milliseconds is None:
        _say("virtual time", f"{result.cycles:,.0f} cycles of the longest thread, nothing measured")
    else:
        _say("time", f"{result.milliseconds:.4f} ms (median, for orientation: use bench)")
        _say("bandwidth", f"{result.gigabytes_per_second:,.1f} GB/s, read and written")
        _say("throughput", f"{result.million_tiles_per_second:,.1f} M tiles/s")
    _say("check", result.reason or "every element of the copy is right")
    return _verdict(result.passed)


# --- data -----------------------------------------------------------------------------------------
def data(words):
    """``numba-deform data read`` and ``data write``."""
    actions = {"read": data_read, "write": data_write}
    if not words or words[0] not in actions:
        given = f"not {words[0]!r}" if words else "and then dir=PATH"
        raise UsageError(f"data must be followed by read or write, {given}")
    options = parse_pairs(split_pairs(words[1:]), KEYS["data"], "data")
    if "dir" not in options:
        raise UsageError(f"data {words[0]} needs dir=PATH")
    return actions[words[0]](options)


def data_write(options):
    """Write a directory that ``run dir=`` and the original programs read."""
    path = Path(options.pop("dir"))
    files = [file.name for file in path.glob("*.bin")] if path.is_dir() else []
    if files and not options.get("force"):
        raise UsageError(f"{path} holds {', '.join(sorted(files))}; force=1 overwrites them")
    source = choose_source(options, "cpu")
    if {source.constants.dtype, source.constants.location_dtype} != {"float16"}:
        raise UsageError("data directories hold float16 only: use dtype=float16")
    _check_memory(source)
    inputs = source.load()
    write_directory(path, inputs)
    _say("written", path)
    _say("workload", source.text)
    keys = " ".join(f"{name}={value}" for name, value in source.numbers.items())
    _say("run it", f"numba-deform run dir={path} {keys}")
    return RIGHT


def data_read(options):
    """Check a directory against its shape keys, and describe it."""
    source = choose_source(options, "cpu")
    inputs = source.load()
    _say("directory", options["dir"])
    _say("levels", _shapes(inputs.spatial_shapes) + (" padded" if inputs.padded else ""))
    _say("samples", f"{source.samples:,}")
    table = Table("array", "shape", "type", "smallest", "largest", "mean", "not finite")
    for name in ("value", "sampling_locations", "attention_weights"):
        array = getattr(inputs, name)
        finite = np.isfinite(array)
        some = array[finite].astype(np.float64)
        numbers = (some.min(), some.max(), some.mean()) if some.size else (np.nan,) * 3
        table.add_row(
            name, _show(array.shape), str(array.dtype), *(f"{n:.4g}" for n in numbers),
            f"{array.size - some.size:,}",
        )  # fmt: skip
    _console().print(table)
    where = inputs.sampling_locations
    outside = ~((where >= 0) & (where <= 1)).all(axis=-1)
    _say("outside", f"{100 * outside.mean():.2f} % of the samples are not in [0, 1]")
    sums = inputs.attention_weights.astype(np.float64).sum(axis=(-2, -1))
    _say("weights", f"of a query and head they sum to {sums.min():.4f} .. {sums.max():.4f}")
    return RIGHT


# --- variants, inspect, help ----------------------------------------------------------------------
def variants(pairs):
    """``numba-deform variants``: the registry as a table."""
    parse_pairs(pairs, KEYS["variants"], "variants")
    table = Table("variant", "systems", "what it does", "parameters", "oldest GPU", show_lines=True)
    for v in VARIANTS.values():
        fields = dataclasses.fields(v.config)
        parameters = " ".join(f"{field.name}={_show(field.default)}" for field in fields)
        table.add_row(v.name, v.systems, v.summary, parameters, "SM {}.{}".format(*v.capability))
    _console().print(table)
    return RIGHT


NOTABLE = {
    "UTMALDG": "TMA loads",
    "UTMASTG": "TMA stores",
    "UBLKCP": "bulk copies",
    "SYNCS": "mbarrier operations",
    "LDGSTS": "cp.async",
    "LDG": "loads from global memory",
    "STG": "stores to global memory",
    "LDS": "loads from shared memory",
    "STS": "stores to shared memory",
    "LDL": "loads of spilled registers or local arrays",
    "STL": "stores of spilled registers or local arrays",
    "SHFL": "warp shuffles",
    "BAR": "block barriers",
    "WARPSYNC": "warp barriers",
    "HFMA2": "packed fp16 multiply-adds",
    "FFMA": "fp32 multiply-adds",
    "CALL": "calls of functions",
}


def inspect(pairs):
    """``numba-deform inspect``: what a variant became, without a GPU."""
    chosen = pick_variant(pairs.get("variant", "tma"))
    options, parameters = variant_options(pairs, "inspect", chosen)
    dtype = options.get("dtype", "float16")
    location_dtype = options.get("location_dtype", "float16" if dtype == "float16" else "float32")
    constants = Constants(
        options.get("levels", 4), options.get("points", 8), options.get("channels", 32), dtype,
        location_dtype, dtype,
    )  # fmt: skip
    config = chosen.configure(constants, **parameters)
    kernel = chosen.kernel(config, constants)
    if options.get("linked"):
        kernel = kernel.with_linked_ptx()
    architecture = options.get("arch", "sm_90a")
    _check_architecture(architecture, chosen)
    try:
        found = inspect_kernel(kernel, architecture)
    except (ToolMissing, ValueError):
        raise
    except Exception as error:  # the compiler's packages share no base class
        if "arch" not in options:
            raise
        raise UsageError(f"arch={architecture}: {str(error).partition(chr(10))[0]}") from None
    show = options.get("show", "summary")
    if show != "summary":
        print(getattr(found, show))
        return RIGHT
    _say("variant", f"{chosen.name} for {architecture}" + (", linked PTX" if kernel.linked else ""))
    _say("constants", " ".join(f"{k}={v}" for k, v in vars(constants).items()))
    _say("configuration", " ".join(f"{k}={_show(v)}" for k, v in vars(config).items()))
    _say("registers", f"{found.registers} a thread")
    _say("stack", f"{found.stack} bytes a thread")
    _say("spills", f"{found.spill_loads} loads, {found.spill_stores} stores")
    dynamic = chosen.dynamic_shared_bytes(config, constants)
    _say("shared memory", f"{found.shared:,} bytes static + {dynamic:,} dynamic a block")
    table = Table("instruction", "count", "what it is")
    counts = found.instructions
    for opcode, meaning in NOTABLE.items():
        if opcode in counts:
            table.add_row(opcode, str(counts[opcode]), meaning)
    rest = sum(count for opcode, count in counts.items() if opcode not in NOTABLE)
    table.add_row("others", str(rest), "address and index arithmetic, branches, conversions, ...")
    table.add_row("all", str(sum(counts.values())), "")
    _console().print(table)
    return RIGHT


def _check_architecture(architecture, chosen):
    match = re.fullmatch(r"sm_(\d+)(\d)a?", architecture)
    if not match:
        raise UsageError(f"arch={architecture}: it must be of the form sm_90 or sm_90a")
    if (int(match[1]), int(match[2])) < chosen.capability:
        oldest = "sm_{}{}".format(*chosen.capability)
        raise UsageError(f"arch={architecture}: variant {chosen.name} needs {oldest} or newer")


def help(words):
    """``numba-deform help`` and ``help COMMAND``."""
    if not words:
        print(USAGE, end="")
        return RIGHT
    command = _command(words[0])
    if command == "help":
        return help([])
    print(f"numba-deform {command} key=value ...")
    rows = [
        (key.name, key.help if key.kind is TEXT else f"{key.help} ({key.kind.accepts})")
        for key in KEYS[command]
    ]
    if VARIANT in KEYS[command]:
        rows.append(("...", "and the variant's own parameters: see numba-deform variants"))
    for name, text in rows:
        print(f"  {name:<15} {text}")
    return RIGHT


# --- the program ----------------------------------------------------------------------------------
COMMANDS = {
    "run": lambda words: run(split_pairs(words)),
    "probe": lambda words: probe(split_pairs(words)),
    "tile-copy": lambda words: tile_copy(split_pairs(words)),
    "data": data,
    "variants": lambda words: variants(split_pairs(words)),
    "inspect": lambda words: inspect(split_pairs(words)),
    "help": help,
}


def _command(word):
    if word in COMMANDS:
        return word
    if "=" in word:
        raise UsageError(f"there is no command before {word}; try: numba-deform run {word} ...")
    close = difflib.get_close_matches(word, COMMANDS, 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise UsageError(f"unknown command {word}{hint} (there are {', '.join(COMMANDS)})")


def main(argv=None):
    """Run one command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        words = ["help"]
    try:
        status = COMMANDS[_command(words[0])](words[1:])
        sys.stdout.flush()
        return status
    except SimFault as fault:
        return _report_fault(fault)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return RIGHT
    except KeyboardInterrupt:
        print("numba-deform: interrupted", file=sys.stderr)
        return INTERRUPTED
    except GpuMissing as error:
        return _refuse(f"{str(error).rstrip('.')}; engine=cpu needs no GPU")
    except MemoryError as error:
        return _refuse(f"this does not fit in memory: {error}")
    except (ValueError, DriverMissing, ToolMissing, ImportError, OSError) as error:
        return _refuse(error)
    except Exception as error:
        if not (isinstance(error, RuntimeError) or is_cuda_error(error)):
            raise
        print(f"numba-deform: the GPU or its tools failed: {error}", file=sys.stderr)
        return _verdict(False)


def _refuse(error):
    print(f"numba-deform: {error}", file=sys.stderr)
    return BAD_INPUT


def _report_fault(fault):
    """The CPU engine has found a broken rule: all of its text, and how to see it again."""
    print(fault, file=sys.stderr)
    seed, landing = getattr(fault, "seed", None), getattr(fault, "landing", None)
    if seed is not None:
        print(f"  replay schedule_seed={seed} landing={landing}", file=sys.stderr)
    return _verdict(False)


if __name__ == "__main__":
    sys.exit(main())

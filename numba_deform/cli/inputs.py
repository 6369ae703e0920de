"""Where the inputs of a command come from, and the checks before they are made."""

import dataclasses
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass

from ..attention.request import pick_variant
from ..compiler.sass import inspect_kernel
from ..device.limits import HOPPER, capability_of
from ..kernels.problem import ITEMSIZE, Constants, level_sizes
from ..kernels.registry import VARIANTS
from ..measure.bench import constants_of
from ..measure.parameters import kind_of, show
from ..workloads import picture
from ..workloads.data import read_directory
from ..workloads.presets import levels_for, preset
from .commands import COMMANDS
from .keys import NUMBERS, Key, UsageError, parse_pairs, refuse_keys
from .output import duration

SECONDS_PER_SAMPLE = 1.5e-3  # of the CPU engine, roughly, for 32 channels
PATIENCE = 60  # seconds on the CPU engine beyond which force=1 has to be given


# --- variants -------------------------------------------------------------------------------------
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
    known = (*COMMANDS[command].keys, *own)
    names = [key.name for key in known]
    for name in [name for name in pairs if name not in names]:
        owners = [members[0].name for config, members in families().items()
                  if name in {field.name for field in dataclasses.fields(config)}]  # fmt: skip
        if owners:
            hint = f"it is a parameter of variant {', '.join(owners)}, and not of {chosen.name}"
            raise UsageError(f"unknown key {name}; {hint} ({command} knows {', '.join(names)})")
    options = parse_pairs(pairs, known, command)
    parameters = {key.name: options.pop(key.name) for key in own if key.name in options}
    return options, chosen, parameters


def combinations(pairs, names):
    """(``pairs`` for every combination of the comma-separated values of these names, the last varying fastest;
    the names that have several values)."""
    values = {name: text.split(",") for name, text in pairs.items() if name in names}
    each = [{**pairs, **dict(zip(values, one, strict=True))} for one in itertools.product(*values.values())]
    return each, [name for name, texts in values.items() if len(texts) > 1]


# --- the operator's arguments ---------------------------------------------------------------------
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
    load = load or (lambda: workload.generate(seed))
    return Source(workload.describe(), numbers, constants_of(workload), load, workload)


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
    refuse_keys(options, ("dtype", "location_dtype", "pattern", "outside", "seed", "image"),
                "does not go with dir: the files say it (float16)")  # fmt: skip
    base = preset(options.get("workload", "quick"))
    numbers = {name: options.get(name, getattr(base, name)) for name in NUMBERS}
    padded = options.get("padded")
    if padded is not None and "spatial_size" not in options:
        numbers["spatial_size"] = int(level_sizes(base.levels, padded).sum())
    text = f"{options['dir']}: " + " ".join(f"{k}={v}" for k, v in numbers.items())
    constants = Constants(numbers["num_levels"], numbers["num_points"], numbers["channels"])
    return Source(text, numbers, constants,
                  lambda: read_directory(options["dir"], **numbers, padded=padded))  # fmt: skip


def _picture_source(options, engine):
    refuse_keys(options, ("batch", "spatial_size", "padded", "pattern", "outside", "location_dtype"),
                "does not go with workload=picture")  # fmt: skip
    taken = ("num_heads", "channels", "num_levels", "num_points", "dtype", "image", "seed")
    settings = {key: options[key] for key in taken if key in options}
    queries = options.get("num_query")
    if engine == "cpu":  # one head and a coarse grid show as much, in a quarter of a minute
        settings.setdefault("num_heads", 1)
        each = settings["num_heads"] * settings.get("num_levels", 3) * settings.get("num_points", 4)
        queries = queries or max(1, 10_000 // each)
    workload, inputs = picture.picture_workload(queries=queries, **settings)
    return _workload_source(workload, None, lambda: inputs)


def check_duration(source, options):
    """Refuse what would take the CPU engine longer than ``PATIENCE``, unless force=1."""
    seconds = source.seconds(options)
    if seconds <= PATIENCE or options.get("force"):
        return
    fitting = int(source.numbers["num_query"] * PATIENCE / seconds)
    fewer = f"num_query={fitting} or less, " if fitting and "dir" not in options else ""
    raise UsageError(f"{source.samples:,} samples would take about {duration(seconds)} on the CPU engine: "
                     f"choose {fewer}workload=quick, engine=gpu, or force=1 to wait")


def check_memory(source):
    """Refuse what cannot fit: the system may promise any amount, and kill the process later."""
    needed = source.nbytes
    if hasattr(os, "sysconf") and needed > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        raise UsageError(f"the inputs would take {needed / 2**30:,.0f} GiB, more than this machine's memory: "
                         "choose a smaller batch, num_query or spatial_size")


def make_constants(options):
    """The Constants that the keys ``COMPILED_FOR`` describe."""
    dtype = options.get("dtype", "float16")
    location_dtype = options.get("location_dtype", "float16" if dtype == "float16" else "float32")
    return Constants(options.get("levels", 4), options.get("points", 8),
                     options.get("channels", 32), dtype, location_dtype, dtype)  # fmt: skip


def try_inspect(kernel, architecture):
    """(an Inspection, ""), or (None, why) on a machine without the compiler or the tools."""
    try:
        return inspect_kernel(kernel, architecture), ""
    except Exception as error:  # the compiler's packages share no base class
        return None, str(error).partition("\n")[0]


def check_architecture(options, capability, what):
    """The architecture of ``arch=``; refuses what is none, or one that ``what`` does not run on."""
    architecture = options.get("arch", "sm_{}{}a".format(*max(capability, HOPPER)))
    asked = capability_of(architecture)
    if not asked:
        raise UsageError(f"arch={architecture}: it must be of the form sm_90 or sm_90a")
    if asked < capability:
        oldest = "sm_{}{}".format(*capability)
        raise UsageError(f"arch={architecture}: {what} needs {oldest} or newer")
    return architecture

"""The registry: every kernel that computes the operator, by name, with its configuration.

A variant is a module of ``kernels/`` with

    build(config, constants)             the kernel
    blocks(problem, config, resident)    the size of the grid; ``resident()``: how many the GPU holds at once
    fit(problem, config)                 perhaps, for a kernel that is fitted to a problem

the frozen dataclass of its parameters, and a ``preset`` of them. Those of the package stand in
``configurations.json``, some with a name that they had before (``was``), still understood.

``own.variant`` makes one of a function, and ``register`` adds it for the time of a process; ``load`` those of a
file, and its pipelines (pipelines.py).
"""

import dataclasses
import hashlib
import importlib.util
import json
import re
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from ..compiler import built
from ..device.limits import AMPERE, HOPPER
from ..device.memory import dynamic_bytes
from ..engines.suggestions import closest
from . import direct, persistent, tile, tma, warp_specialized, window
from .direct import Direct
from .persistent import Persistent
from .pipelines import PIPELINES
from .problem import ConfigError
from .tile import Tile
from .tma import Tma
from .warp_specialized import WarpSpecialized
from .window import Window
from .window_fit import Fit

FETCHES = ("l1", "tma", "shared")


@dataclass(frozen=True, eq=False)
class Variant:
    """One entry."""

    name: str
    systems: str  # the experiments that it repeats (S3 .. S23), explained in bench/ORIGINS.md
    summary: str  # what it does, in a line
    config: type  # the dataclass of its parameters
    module: object  # the kernel's file, or what stands in for it (``own.variant``)
    capability: tuple[int, int]  # of the oldest GPU that runs it
    fetch: str  # how tiles come: ``l1`` plain loads, ``tma`` one instruction each, ``shared`` many in a box
    preset: dict = field(default_factory=dict)  # the parameters that differ from the defaults
    why: str = ""  # where it is slower than the fastest: what the measurements say (bench/NOTES.md)

    def configure(self, constants, **parameters):
        """A resolved configuration; raises ConfigError for an unknown or unusable parameter, and for constants
        that this kernel does not take."""
        if not (constants.is_usual or getattr(self.config, "any_samples", False)):
            rule = f"{self.name} takes bilinear samples, as many in every level; direct takes all kinds"
            points = constants.points if isinstance(constants.points, tuple) else None
            raise ConfigError(*(("points", points) if points else ("method", constants.method)), rule)
        return self.unresolved(**parameters).resolve(constants)

    def unresolved(self, **parameters):
        """The configuration as it was asked for: preset, then ``parameters``."""
        known = [f.name for f in dataclasses.fields(self.config)]
        for key in parameters:
            if key not in known:
                rule = f"{self.name} has the parameters {', '.join(known)}"
                raise ConfigError(key, parameters[key], rule)
        return self.config(**{**self.preset, **parameters})

    @property
    def is_fitted(self):
        """Whether the kernel is fitted to a problem."""
        return hasattr(self.module, "fit")

    def fit(self, problem, config):
        """The ``window_fit.Fit``; of a kernel that is not fitted, the configuration as it is."""
        return self.module.fit(problem, config) if self.is_fitted else Fit(config)

    def kernel(self, config, constants):
        """The built kernel, cached; in its traced form if the configuration asks for it."""
        kernel = built(self.module.build, config, constants)
        return kernel.with_marks() if getattr(config, "trace", False) else kernel

    def dynamic_shared_bytes(self, config, constants):
        """The dynamic shared memory to launch with."""
        layout = self.kernel(config, constants).shared
        return layout.bytes if layout else dynamic_bytes(sum(config.shared_bytes(constants)))


# Configuration, module, the oldest GPU, how tiles are fetched, and what costs all its configurations time.
_KERNELS = {
    "direct": (Direct, direct, AMPERE, "l1", ""),
    "tile": (Tile, tile, AMPERE, "l1", ""),
    "tma": (Tma, tma, HOPPER, "tma", ""),
    "persistent": (Persistent, persistent, HOPPER, "tma", ""),
    "warp-specialized": (
        WarpSpecialized, warp_specialized, HOPPER, "tma",
        "few warps issue, at some 80 cycles a tile each: the TMA unit idles, and consumers wait 70 %",
    ),
    "window": (Window, window, HOPPER, "shared", ""),
}  # fmt: skip
_CONFIGURATIONS = json.loads(Path(__file__).with_name("configurations.json").read_text())


def _entry(name, kernel, systems, summary, preset, why="", was=None):
    *kind, shared_why = _KERNELS[kernel]
    preset = {key: tuple(v) if isinstance(v, list) else v for key, v in preset.items()}
    return Variant(name, systems, summary, *kind, preset, why or shared_why)


VARIANTS = {line["name"]: _entry(**line) for line in _CONFIGURATIONS}
OLD_NAMES = {line["was"]: line["name"] for line in _CONFIGURATIONS if "was" in line}


def current_name(name):
    """Today's name of a variant that had another when it was measured; any other name as it is."""
    return OLD_NAMES.get(name, name)


def runnable(capability):
    """The names of the variants that a GPU of this capability can run; "nothing" where there is none."""
    return [v.name for v in VARIANTS.values() if v.capability <= capability] or ["nothing"]


def variant(name):
    """The variant of that name, old or new; raises ConfigError naming all, and the closest."""
    name = current_name(name)
    if name not in VARIANTS:
        hint = closest(name, [*VARIANTS, *OLD_NAMES, *PIPELINES])
        raise ConfigError("variant", name, f"must be one of {', '.join(VARIANTS)}{hint}")
    return VARIANTS[name]


# --- variants of this process ---------------------------------------------------------------------
_registered = {}
_loaded = {}  # file -> {name: variant or pipeline} of what it registered


class Registration:
    """A variant in the registry until :meth:`remove`, or until the end of a ``with`` on this."""

    def __init__(self, entry):
        self.variant = entry

    def remove(self):
        """Take the variant out, if it is still the one that was registered."""
        if _registered.get(self.variant.name) is self.variant:
            del _registered[self.variant.name], VARIANTS[self.variant.name]

    def __enter__(self):
        return self.variant

    def __exit__(self, *_):
        self.remove()

    def __repr__(self):
        name = self.variant.name
        known = "is registered" if _registered.get(name) is self.variant else "was removed"
        return f"variant {name} {known}: {self.variant.summary}"


def register(entry, replace=False):
    """Add a :class:`Variant` to the registry of this process and return its :class:`Registration`.

    ``ms_deform_attn``, ``prepare``, ``systems`` and ``bench`` know it then by its name; other processes do not.
    ``replace=True`` takes the place of one that was registered before, as a notebook's cell does when it runs
    again. Raises ConfigError, naming the field, for a name that exists and for what could not run.
    """
    _check_entry(entry)
    name = entry.name
    if name in [*VARIANTS, *OLD_NAMES] and not (replace and name in _registered):
        own = "it is one of the package's own"
        hint = "replace=True replaces it" if name in _registered else own
        raise ConfigError("name", name, f"exists already; {hint}")
    _registered[name] = VARIANTS[name] = entry
    return Registration(entry)


def is_registered(name):
    """Whether the variant of that name is none of the package's own."""
    return name in _registered


def is_of_this_process(name):
    """Whether only this process knows the variant or pipeline of that name: it was made here, not by a file."""
    return name in _own() and not source_of(name)


def _own():
    """{name: variant or pipeline} of what is not the package's."""
    return {**PIPELINES, **_registered}


def load(path):
    """The names of the variants and pipelines of the Python file ``path``. It runs once in a process, as if it
    were imported; modules beside it are found. Raises ConfigError, naming the line, for what fails in it."""
    file = Path(path).expanduser().resolve()
    known = _loaded.get(file, {})
    if known and known.items() <= _own().items():
        return list(known)
    if not file.is_file() or file.suffix != ".py":
        raise ConfigError("load", path, "must be a Python file with a pipeline or a variant" if file.exists()
                          else "there is no such file")  # fmt: skip
    before = _own()
    spec = importlib.util.spec_from_file_location(f"loaded.{file.stem}", file)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
        line = lines[-1] if lines else getattr(error, "lineno", 1)
        told = f"line {line}: {type(error).__name__}: {' '.join(str(error).split())}"
        raise ConfigError("load", path, told) from error
    entries = {name: entry for name, entry in _own().items() if before.get(name) is not entry}
    if not entries:
        raise ConfigError("load", path, "has no pipeline (a function under @nd.pipeline), and registers no "
                          "variant (a function under @nd.variant(...)) as it is imported, not under "
                          "__main__")  # fmt: skip
    for name in PIPELINES.keys() & entries.keys() & {*VARIANTS, *OLD_NAMES, "auto", "all"}:
        raise ConfigError("load", path, f"pipeline {name} has the name of a variant: call it something else")
    _loaded[file] = entries
    return list(entries)


def source_of(name):
    """A digest of the file that has the variant or pipeline of that name; "" where no file has."""
    for file, entries in _loaded.items():
        if name in entries and entries[name] is _own().get(name):
            return hashlib.sha256(file.read_bytes()).hexdigest()
    return ""


def loaded_files():
    """Paths of the files whose variants this process has, for its children to ``load``."""
    return tuple(map(str, _loaded))


def _check_entry(entry):
    if not re.fullmatch("[a-z][a-z0-9-]*", entry.name) or entry.name in ("auto", "all"):
        rule = "must be lower-case letters, digits and hyphens, and neither auto nor all"
        raise ConfigError("name", entry.name, rule)
    for name in ("build", "blocks"):
        if not callable(getattr(entry.module, name, None)):
            raise ConfigError("module", entry.module, f"has no function {name}")
    if entry.fetch not in FETCHES:
        raise ConfigError("fetch", entry.fetch, f"must be one of {', '.join(FETCHES)}")
    config = entry.config
    if not dataclasses.is_dataclass(config) or not config.__dataclass_params__.frozen:
        raise ConfigError("config", config, "must be a frozen dataclass: kernels are kept by it")
    for name in ("resolve", "shared_bytes"):
        if not callable(getattr(config, name, None)):
            raise ConfigError("config", config.__name__, f"has no method {name}(constants)")
    for f in dataclasses.fields(config):
        if f.default is dataclasses.MISSING:
            raise ConfigError("config", config.__name__, f"its field {f.name} needs a default")
    if not hasattr(entry.unresolved(**entry.preset), "threads"):  # refuses a preset that does not fit
        raise ConfigError("config", config.__name__, "has no threads, the size of a block")

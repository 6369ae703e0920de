"""The registry: every kernel that computes the operator, by name, with its configuration.

A variant is a module of ``kernels/`` with ``build(config, constants)``, ``arguments(operands, config)``
and ``blocks(problem, config, resident)``, perhaps ``fit(problem, config, locations)``; a frozen dataclass for
its parameters (kernels/configs.py), and a ``preset`` of them: most rows of the guide are one kernel with other
parameters. Each (kernel, config, constants) is built and compiled once.

``register`` adds one for the time of a process, for instance from a notebook.
"""

import dataclasses
import difflib
import re
from dataclasses import dataclass, field

from ..compiler import built
from ..device.limits import AMPERE, HOPPER
from ..device.memory import dynamic_bytes
from . import direct, persistent, tile, tma, warp_specialized, window
from .direct import Direct
from .persistent import Persistent
from .problem import ConfigError, Constants
from .tile import Tile
from .tma import Tma
from .warp_specialized import WarpSpecialized
from .window import Window
from .window_fit import Fit

__all__ = [
    "VARIANTS",
    "ConfigError",
    "Constants",
    "Functions",
    "Variant",
    "is_registered",
    "register",
    "runnable",
    "variant",
]

FETCHES = ("l1", "tma", "shared")


@dataclass(frozen=True, eq=False)
class Variant:
    """One entry.

    systems     the rows of the original guide that it is (S3 .. S23)
    summary     what it does, in a line
    config      dataclass of its parameters; ``preset`` holds those that differ from its defaults
    module      the kernel's file
    capability  the oldest GPU that runs it
    fetch       how a tile reaches the registers: ``l1`` (plain loads), ``tma`` (an instruction a tile) or
                ``shared`` (many tiles of one box)
    why         where it is slower than the fastest: what the measurements say (bench/NOTES.md)
    """

    name: str
    systems: str
    summary: str
    config: type
    module: object
    capability: tuple[int, int]
    fetch: str
    preset: dict = field(default_factory=dict)
    why: str = ""

    def configure(self, constants, **parameters):
        """A resolved configuration; raises ConfigError for an unknown or unusable parameter."""
        return self.unresolved(**parameters).resolve(constants)

    def unresolved(self, **parameters):
        """The configuration as it was asked for: preset, then ``parameters``."""
        known = [f.name for f in dataclasses.fields(self.config)]
        for key in parameters:
            if key not in known:
                raise ConfigError(
                    key, parameters[key], f"{self.name} has the parameters {', '.join(known)}"
                )
        return self.config(**{**self.preset, **parameters})

    @property
    def is_fitted(self):
        """Whether the kernel is fitted to the locations of a problem."""
        return hasattr(self.module, "fit")

    def fit(self, problem, config, locations):
        """The ``windows.Fit`` for NumPy ``locations``; of a kernel that is not fitted, the configuration
        as it is."""
        return self.module.fit(problem, config, locations) if self.is_fitted else Fit(config)

    def kernel(self, config, constants):
        """The built kernel, cached; in its traced form if the configuration asks for it."""
        kernel = built(self.module.build, config, constants)
        return kernel.with_marks() if getattr(config, "trace", False) else kernel

    def dynamic_shared_bytes(self, config, constants):
        """The dynamic shared memory to launch with."""
        return dynamic_bytes(sum(config.shared_bytes(constants)))


@dataclass(frozen=True, eq=False)
class Functions:
    """Stands in for a module of ``kernels/``, for a kernel that is written elsewhere.

    build(config, constants)            the ``compiler.Kernel``
    blocks(problem, config, resident)   grid size for an ``op.Problem``; ``resident()`` is how many blocks
                                        the GPU holds at once
    """

    build: object
    blocks: object

    @property
    def __name__(self):
        return self.build.__module__


_DIRECT = (Direct, direct, AMPERE, "l1")
_TILE = (Tile, tile, AMPERE, "l1")
_TMA = (Tma, tma, HOPPER, "tma")
_PERSISTENT = (Persistent, persistent, HOPPER, "tma")
_SPECIALIZED = (WarpSpecialized, warp_specialized, HOPPER, "tma")
_WINDOW = (Window, window, HOPPER, "shared")


def _phase(number, systems, summary, **preset):
    """A phase of the guide: up to 7 they interpolate in fp32, phase 8 is packed."""
    preset = {"stages": 2, "arithmetic": "fp32", **preset}
    return Variant(f"phase{number}", systems, summary, *_SPECIALIZED, preset)


def _ratio(producers, consumers):
    return Variant(
        f"phase5-{producers}-{consumers}",
        "S13",
        f"phase 2 with {producers} producer and {consumers} consumer warps",
        *_SPECIALIZED,
        dict(
            stages=2, arithmetic="fp32", metadata="shared", producers=producers, consumers=consumers
        ),
    )


# What costs them time, by name; measured on an H200 (bench/NOTES.md).
_UNIT = "an SM's TMA unit takes a tile about every 8 to 9 cycles, L1 serves one in 4"
_WHY = {
    "tile": "every tile crosses the shared-memory data path three times, and its addresses are computed",
    "tile-cp-async": "as tile; the copies overlap, but the data path and the address arithmetic stay",
    "tma": _UNIT + "; each warp's own barrier costs the unit 5 % more",
    "tma-one-stage": "as tma, and a warp computes only when nothing of its own is under way",
    "tma-block-barrier": _UNIT,
    "tma-prefetch-map": "as tma; the map is there when the first load needs it",
    "tma-rank5": "as tma; a rank-5 load keeps the unit longer than a rank-3 one",
    "tma-point-barriers": "as tma; eight times the barriers, used in turn",
    "tma-ping-pong": "as tma; twice the barriers, used in turn",
    "tma-fastest": _UNIT,
    "tma-fp32": "as tma; twice the arithmetic",
    "tma-box-4x4": "four times the bytes from L2, of which a quarter is used",
    "persistent": "as tma; two rows in registers, so two blocks on an SM and not three",
    "persistent-prefetch": "as persistent; locations are read a row ahead",
    "phase10": "as tma",
    "tma-drained": "as tma; the ring fills anew at every level",
    "window": "two reads of 128 bytes a sample from shared memory, which is 93 % busy; samples outside",
    **dict.fromkeys(
        [
            "phase1",
            "phase2",
            "phase3",
            "phase4",
            "phase5-1-7",
            "phase5-2-6",
            "phase5-3-5",
            "phase5-4-4",
            "phase6",
            "phase7",
            "phase8",
            "warp-specialized",
            "warp-specialized-registers",
        ],
        "few warps issue, at some 80 cycles a tile each: the TMA unit idles, and consumers wait 70 %",
    ),
}

VARIANTS = {
    v.name: dataclasses.replace(v, why=_WHY.get(v.name, ""))
    for v in (
        Variant("direct", "S3", "plain 16-byte loads served by L1", *_DIRECT),
        Variant(
            "tile", "S4", "2x2 tiles copied to shared memory by plain loads", *_TILE,
            dict(copy="plain", stages=1),
        ),
        Variant("tile-cp-async", "S4", "the same by cp.async, through a ring of stages", *_TILE),
        Variant("tma", "S5 S6", "a TMA load per 2x2 tile, a ring of stages per warp", *_TMA),
        Variant("tma-one-stage", "S5", "one stage: load, wait, compute", *_TMA, dict(stages=1)),
        Variant(
            "tma-block-barrier", "S5", "all warps of a block share one barrier a stage", *_TMA,
            dict(barrier_scope="block", points_per_stage=4, batches_abreast=48),
        ),
        Variant(
            "tma-prefetch-map", "S5", "prefetch.tensormap at the start of a block", *_TMA,
            dict(prefetch_maps=True),
        ),
        Variant(
            "tma-rank5", "S5", "one rank-5 map per level instead of one per (batch, level)", *_TMA,
            dict(maps="level"),
        ),
        Variant(
            "tma-point-barriers", "S7", "a barrier for each step, none used twice", *_TMA,
            dict(barriers="point"),
        ),
        Variant(
            "tma-ping-pong", "S7", "two barriers for each stage, in turn", *_TMA,
            dict(barriers="ping_pong"),
        ),
        Variant(
            "tma-fastest", "S5 S6",
            "the fastest of these: one barrier a block, prefetched maps, larger stages", *_TMA,
            dict(barrier_scope="block", points_per_stage=4, prefetch_maps=True, batches_abreast=48),
        ),
        Variant("tma-fp32", "S17", "interpolation in fp32 instead of packed", *_TMA,
                dict(arithmetic="fp32")),
        Variant("tma-box-4x4", "S23", "boxes of 4x4 pixels around the tile", *_TMA,
                dict(box=(4, 4), points_per_stage=1)),
        Variant("persistent", "S9", "resident blocks; each warp's ring runs on from row to row",
                *_PERSISTENT, dict(prefetch=False)),
        Variant("persistent-prefetch", "S9 S16",
                "the next row's locations and weights are read a row ahead", *_PERSISTENT),
        _phase(1, "S10", "producer and consumer warps 2:6, full and empty barriers"),
        _phase(2, "S11", "producers write the weights to shared memory", metadata="shared"),
        _phase(3, "S12", "phase 1 with flags, release and acquire, instead of the empty barrier",
               sync="flags"),
        _phase(4, "S14", "four stages, more than 48 KB", metadata="shared", stages=4),
        _ratio(1, 7),
        _ratio(2, 6),
        _ratio(3, 5),
        _ratio(4, 4),
        _phase(6, "S15", "weights by warp shuffle", metadata="shuffle"),
        _phase(7, "S16", "the next locations and weights are read ahead",
               metadata="shared", prefetch=True),
        _phase(8, "S17", "packed fp16 interpolation where the type allows it",
               metadata="shared", prefetch=True, arithmetic="auto"),
        Variant("phase10", "S18", "the next level's loads are issued while this level computes",
                *_TMA, dict(stages=4)),
        Variant("tma-drained", "S18", "the same, but the ring runs empty at the end of every level",
                *_TMA, dict(stages=4, across_levels=False)),
        Variant("window", "S23", "large boxes that many nearby queries sample from", *_WINDOW),
        Variant(
            "warp-specialized", "S10 S11 S14", "the fastest of these: 4 + 8 warps, larger stages",
            *_SPECIALIZED,
            dict(stages=2, points_per_stage=4, producers=4, consumers=8, metadata="shared"),
        ),
        Variant(
            "warp-specialized-registers", "S10", "the same, registers moved to the consumers",
            *_SPECIALIZED,
            dict(stages=2, points_per_stage=4, producers=4, consumers=8, metadata="shared",
                 producer_registers=56, consumer_registers=88),
        ),
    )
}  # fmt: skip


def runnable(capability):
    """The names of the variants that a GPU of this capability can run; "nothing" where there is none."""
    return [v.name for v in VARIANTS.values() if v.capability <= capability] or ["nothing"]


def variant(name):
    """The variant of that name; raises ConfigError naming all, and the closest."""
    if name not in VARIANTS:
        close = difflib.get_close_matches(name, VARIANTS, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError("variant", name, f"must be one of {', '.join(VARIANTS)}{hint}")
    return VARIANTS[name]


# --- variants of this process ---------------------------------------------------------------------
_registered = {}


class Registration:
    """A variant in the registry until :meth:`remove`, or until the end of a ``with`` on this."""

    def __init__(self, entry):
        self.variant = entry

    def remove(self):
        """Take the variant out, if it is still the one that was registered."""
        name = self.variant.name
        if _registered.get(name) is self.variant:
            del _registered[name], VARIANTS[name]

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

    ``ms_deform_attn``, ``prepare``, ``systems``, ``bench`` and its table know it then by its name; other
    processes do not, so ``bench`` checks it in this one. A name can be used once; ``replace=True`` takes
    the place of one that was registered before, as a notebook's cell does when it runs again. Raises
    ConfigError, naming the field, for a name that exists and for what could not run.
    """
    _check_entry(entry)
    name = entry.name
    if name in VARIANTS and not (replace and name in _registered):
        hint = (
            "replace=True replaces it" if name in _registered else "it is one of the package's own"
        )
        raise ConfigError("name", name, f"exists already; {hint}")
    _registered[name] = VARIANTS[name] = entry
    return Registration(entry)


def is_registered(name):
    """Whether only this process knows the variant of that name."""
    return name in _registered


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
    if not hasattr(
        entry.unresolved(**entry.preset), "threads"
    ):  # refuses a preset that does not fit
        raise ConfigError("config", config.__name__, "has no threads, the size of a block")

"""The parameters of the kernels: one frozen dataclass for each family, which checks itself.

``resolve(constants)`` replaces what was left open and checks the configuration against what it is
compiled for. Errors name the field, its value and the rule.
"""

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

from ..device.memory import dynamic_bytes
from ..device.pipeline import BARRIER_POLICIES
from ..engines.tensormap import L2_PROMOTIONS
from . import tile, tma, warp_specialized, window
from .shared.accumulate import ARITHMETIC
from .shared.lanes import ITEMSIZE, lane_layout
from .shared.tiles import stage_layout

SHARED_LIMIT = 227 * 1024  # bytes a block of an sm_90 can opt in to
REGISTERS = 65536  # of an SM
MAX_SPECIALIZED_WARPS = 16


class ConfigError(ValueError):
    """A configuration breaks a rule; has ``field``, ``value`` and ``rule``."""

    def __init__(self, field, value, rule):
        self.field, self.value, self.rule = field, value, rule
        super().__init__(f"{field}={value}: {rule}")


@dataclass(frozen=True)
class Constants:
    """What a kernel is compiled for: levels L, points P, channels C of a head, and the types."""

    levels: int
    points: int
    channels: int
    dtype: str = "float16"
    location_dtype: str = "float16"
    weight_dtype: str = "float16"

    def __post_init__(self):
        for field in ("dtype", "location_dtype", "weight_dtype"):
            value = getattr(self, field)
            if value not in ITEMSIZE:
                raise ConfigError(field, value, f"must be one of {', '.join(ITEMSIZE)}")
        for field in ("levels", "points"):
            if getattr(self, field) < 1:
                raise ConfigError(field, getattr(self, field), "must be at least 1")
        row = self.channels * ITEMSIZE[self.dtype]
        if row % 16 or not 16 <= row <= 256:
            raise ConfigError(
                "channels",
                self.channels,
                f"of {self.dtype} are {row} bytes a head; a multiple of 16 from 16 to 256 is needed, "
                "for 16-byte loads and TMA boxes",
            )


class SharedBytes(NamedTuple):
    """Shared memory of a block."""

    tiles: int = 0
    barriers: int = 0
    metadata: int = 0


def _power_of_two(config, field, low, high):
    value = getattr(config, field)
    if value not in [1 << i for i in range(11) if low <= 1 << i <= high]:
        raise ConfigError(field, value, f"must be a power of two from {low} to {high}")


def _one_of(config, field, names):
    value = getattr(config, field)
    if value not in names:
        raise ConfigError(field, value, f"must be one of {', '.join(names)}")


def _at_least_one(config, field):
    if getattr(config, field) < 1:
        raise ConfigError(field, getattr(config, field), "must be at least 1")


def _with_arithmetic(config, constants):
    """The configuration with its arithmetic chosen, which must exist for the type."""
    kind = config.arithmetic
    if kind == "auto":
        kind = "packed" if constants.dtype == "float16" else "fp32"
    if (constants.dtype, kind) not in ARITHMETIC:
        raise ConfigError("arithmetic", kind, "packed products exist for float16 only")
    return dataclasses.replace(config, arithmetic=kind)


@dataclass(frozen=True)
class Rows:
    """Parameters of every kernel.

    lanes       lanes that share a row (1 .. 32)
    min_blocks  blocks that should fit on an SM, which caps the registers; 0 leaves it open
    arithmetic  ``packed`` fp16 products, ``fp32``, or ``auto``: packed for float16
    """

    lanes: int = 8
    min_blocks: int = 0
    arithmetic: str = "auto"

    def __post_init__(self):
        _power_of_two(self, "lanes", 1, 32)
        if self.threads % 32 or not 32 <= self.threads <= 1024:
            raise ConfigError("threads", self.threads, "must be a multiple of 32 from 32 to 1024")
        if not 0 <= self.min_blocks <= 32 or self.min_blocks * self.threads > 2048:
            raise ConfigError(
                "min_blocks", self.min_blocks, f"blocks of {self.threads} threads: an SM holds 2048"
            )
        _one_of(self, "arithmetic", ("auto", "packed", "fp32"))

    def complete(self, constants):
        """The configuration with nothing left open; its shared memory may still be too large."""
        config = _with_arithmetic(self, constants)
        layout = lane_layout(self.lanes, constants)
        if layout.chunks_per_lane > 4:
            raise ConfigError(
                "lanes",
                self.lanes,
                f"would give a lane {layout.chunks_per_lane} chunks of 16 bytes, more than its registers "
                f"hold (4); use at least {layout.chunk_lanes * layout.chunks_per_lane // 4}",
            )
        return config

    def resolve(self, constants):
        """The configuration with nothing left open, checked against what it is compiled for."""
        config = self.complete(constants)
        total = sum(config.shared_bytes(constants))
        if dynamic_bytes(total) > SHARED_LIMIT:
            raise ConfigError(
                "stages",
                self.stages,
                f"with {self.threads} threads and {config.points_per_stage} points a stage takes {total} "
                f"bytes of shared memory; a block has at most {SHARED_LIMIT}",
            )
        return config

    def shared_bytes(self, constants):
        """:class:`SharedBytes` of a block, for a completed configuration."""
        return SharedBytes()


@dataclass(frozen=True)
class Direct(Rows):
    """Parameters of ``direct``, beside those of every kernel.

    threads  threads of a block, a multiple of 32
    """

    threads: int = 128
    min_blocks: int = 7


@dataclass(frozen=True)
class Staged(Rows):
    """Parameters of every kernel that stages tiles in shared memory.

    stages            depth of the ring (>= 1); 1 does not overlap
    points_per_stage  how many samples of each row one stage holds: 1, 2, 4 or 8, or as many as a lane
                      prepares (its run, lanes.py), if they are fewer
    debug             the kernel copies one row's tiles as they arrive, for ``run debug=1``, and on a GPU
                      its waits are bounded: a hang ends in a report
    trace             the kernel writes down what its warps do when, for ``timeline``
    """

    stages: int = 2
    points_per_stage: int = 2
    debug: bool = False
    trace: bool = False

    box = (2, 2)  # what one copy brings; TMA can bring more

    def __post_init__(self):
        super().__post_init__()
        _at_least_one(self, "stages")
        _power_of_two(self, "points_per_stage", 1, 8)
        if self.debug and self.trace:
            raise ConfigError("trace", 1, "and debug=1 write to one buffer; choose one of them")

    def complete(self, constants):
        config = super().complete(constants)
        run = lane_layout(self.lanes, constants).run
        return dataclasses.replace(config, points_per_stage=min(self.points_per_stage, run))


@dataclass(frozen=True)
class Tile(Staged):
    """Parameters of ``tile``.

    threads  threads of a block, a multiple of 32
    copy     ``plain``: through registers, one stage; ``cp_async``: asynchronous 16-byte copies
    """

    threads: int = 128
    min_blocks: int = 3
    copy: str = "cp_async"

    def __post_init__(self):
        super().__post_init__()
        _one_of(self, "copy", ("plain", "cp_async"))
        if self.copy == "plain" and self.stages > 1:
            raise ConfigError(
                "stages",
                self.stages,
                "copy=plain waits for its loads, so more than one stage has no use",
            )
        if self.stages > 8:
            raise ConfigError(
                "stages", self.stages, "cp.async.wait_group is used with at most 7 groups"
            )

    def shared_bytes(self, constants):
        return SharedBytes(*tile.shared_bytes(self, constants))


@dataclass(frozen=True)
class Boxes(Staged):
    """Parameters of every kernel that loads by TMA.

    box               height x width of what one load brings, at least 2x2; the tile is its first corner
    maps              ``batch``: a rank-3 tensor map for each (batch, level); ``level``: a rank-5 map for
                      each level, with batch and head as coordinates
    tensormap_fence   acquire the maps in every block; off trusts that nothing stale is cached,
                      which the CPU engine refuses
    prefetch_maps     prefetch.tensormap at the start of every block
    l2_promotion      how much L2 fetches for a tile: none, 64B, 128B or 256B
    batches_abreast   batches that neighbouring items take turns among (>= 1). A divisor of the number of SMs
                      (132) leaves the blocks of an SM with one batch, and its TMA unit with few maps
    """

    box: tuple[int, int] = (2, 2)
    maps: str = "batch"
    tensormap_fence: bool = True
    prefetch_maps: bool = False
    l2_promotion: str = "128B"
    batches_abreast: int = 12

    def __post_init__(self):
        super().__post_init__()
        if len(self.box) != 2 or not all(2 <= n <= 256 for n in self.box):
            shown = "x".join(map(str, self.box))
            raise ConfigError("box", shown, "must be a height and a width from 2 to 256")
        _one_of(self, "maps", ("batch", "level"))
        _one_of(self, "l2_promotion", L2_PROMOTIONS)
        _at_least_one(self, "batches_abreast")


@dataclass(frozen=True)
class Tma(Boxes):
    """Parameters of ``tma``.

    threads        threads of a block, a multiple of 32
    barriers       which full barrier a step uses: ``parity`` (one a stage), ``point`` (one for each step
                   of a row), ``ping_pong`` (two a stage)
    barrier_scope  ``warp``: every warp has its ring's barriers; ``block``: all warps share them
    across_levels  the next level's loads are issued while this level is added up; off drains the
                   ring at the end of each level
    """

    threads: int = 256
    min_blocks: int = 3
    barriers: str = "parity"
    barrier_scope: str = "warp"
    across_levels: bool = True

    def __post_init__(self):
        super().__post_init__()
        _one_of(self, "barriers", BARRIER_POLICIES)
        _one_of(self, "barrier_scope", ("warp", "block"))

    def complete(self, constants):
        config = super().complete(constants)
        layout = stage_layout(config, constants)
        level_steps = constants.points // layout.step
        uneven = layout.round_steps % level_steps and level_steps % layout.round_steps
        if not self.across_levels and uneven:
            raise ConfigError(
                "across_levels",
                0,
                f"a round of {layout.round_steps} steps ends inside a level of {level_steps}; "
                "change lanes or points_per_stage",
            )
        return config

    def shared_bytes(self, constants):
        return SharedBytes(*tma.shared_bytes(self, constants))


@dataclass(frozen=True)
class Persistent(Boxes):
    """Parameters of ``persistent``.

    threads   threads of a block, a multiple of 32
    barriers  as ``tma``
    prefetch  read the next row's locations and weights a row ahead
    """

    threads: int = 256
    min_blocks: int = 2
    points_per_stage: int = 4
    barriers: str = "parity"
    prefetch: bool = True

    barrier_scope = "warp"  # warps walk through their rows independently

    def __post_init__(self):
        super().__post_init__()
        _one_of(self, "barriers", BARRIER_POLICIES)

    def complete(self, constants):
        config = super().complete(constants)
        steps = stage_layout(config, constants).round_steps
        if self.stages - 1 > steps:
            raise ConfigError(
                "stages",
                self.stages,
                f"a row goes through {steps} steps at a time, and the pipeline looks no further ahead "
                f"than the next row: at most {steps + 1}",
            )
        return config

    def shared_bytes(self, constants):
        return SharedBytes(*tma.shared_bytes(self, constants))


@dataclass(frozen=True)
class WarpSpecialized(Boxes):
    """Parameters of ``warp-specialized``.

    producers, consumers  warps of each role, together at most 16
    metadata              how consumers learn the weights: ``recompute``, ``shared`` or ``shuffle``
    sync                  what says that a stage is empty: a ``barrier``, or ``flags`` with release and acquire,
                          one for each consumer warp
    arrivals              who arrives on barriers: every ``lane`` for itself, which compute-sanitizer's
                          racecheck can follow, or one lane of each ``warp``, after syncwarp
    prefetch              read the next step's (shuffle: the next row's) locations and weights ahead
    producer_registers    registers a producer thread keeps (setmaxnreg), 24 .. 256; 0 leaves them
    consumer_registers    registers a consumer thread takes; both or none
    """

    stages: int = 4
    producers: int = 2
    consumers: int = 6
    metadata: str = "recompute"
    sync: str = "barrier"
    arrivals: str = "lane"
    prefetch: bool = False
    min_blocks: int = 2
    producer_registers: int = 0
    consumer_registers: int = 0

    @property
    def threads(self):
        """Threads of a block."""
        return 32 * (self.producers + self.consumers)

    def __post_init__(self):
        _at_least_one(self, "producers")
        _at_least_one(self, "consumers")
        if self.producers + self.consumers > MAX_SPECIALIZED_WARPS:
            raise ConfigError(
                "consumers",
                self.consumers,
                f"with producers={self.producers} makes more than {MAX_SPECIALIZED_WARPS} warps",
            )
        super().__post_init__()
        _one_of(self, "metadata", ("recompute", "shared", "shuffle"))
        _one_of(self, "sync", ("barrier", "flags"))
        _one_of(self, "arrivals", ("lane", "warp"))
        self._check_registers()

    def _check_registers(self):
        """PTX ISA 9.7.19.5: setmaxnreg is executed by whole warpgroups, and only moves registers."""
        give, take = self.producer_registers, self.consumer_registers
        if not give and not take:
            return
        for field, value in (("producer_registers", give), ("consumer_registers", take)):
            if value % 8 or not 24 <= value <= 256:
                raise ConfigError(
                    field, value, "must be a multiple of 8 from 24 to 256; both or none"
                )
        for field in ("producers", "consumers"):
            if getattr(self, field) % 4:
                raise ConfigError(
                    field,
                    getattr(self, field),
                    "setmaxnreg is executed by whole warpgroups: a multiple of 4 warps of each role",
                )
        if not self.min_blocks:
            raise ConfigError(
                "min_blocks", 0, "setmaxnreg needs it, to know what a thread starts with"
            )
        each = min(REGISTERS // (self.threads * self.min_blocks), 255) // 8 * 8
        wanted = self.producers * give + self.consumers * take
        if not give <= each <= take or wanted > each * (self.producers + self.consumers):
            raise ConfigError(
                "consumer_registers",
                take,
                f"a thread starts with {each}: producers may give some up ({give}), and consumers take no "
                "more than was given",
            )

    def shared_bytes(self, constants):
        return SharedBytes(*warp_specialized.shared_bytes(self, constants))


FEW_PREPARED = 4  # samples that a lane prepares in a round


@dataclass(frozen=True)
class Window:
    """Parameters of ``window``.

    consumers     warps that add up; one more loads. 0 leaves it open: 15, or 19 where a lane prepares at
                  most FEW_PREPARED samples at once, since that takes fewer registers
    stages        depth of the ring (>= 1): cells whose windows are in shared memory at once
    cell          height x width of a cell in pixels of the finest level; 0x0 leaves it open: what
                  kernels/window_fit.py expects to be fastest
    arithmetic    as everywhere
    maps          as in :class:`Tma`
    l2_promotion  how much L2 fetches for a window: none, 64B, 128B or 256B
    debug         on a GPU waits are bounded: a hang ends in a report
    trace         as everywhere
    """

    consumers: int = 0
    stages: int = 2
    cell: tuple[int, int] = (0, 0)
    arithmetic: str = "auto"
    maps: str = "level"
    l2_promotion: str = "128B"
    debug: bool = False
    trace: bool = False

    @property
    def threads(self):
        """Threads of a block."""
        return 32 * (self.consumers + 1)

    def __post_init__(self):
        _at_least_one(self, "stages")
        if not 0 <= self.consumers <= 31:
            raise ConfigError(
                "consumers", self.consumers,
                "with the producer, a block has 32 warps; 0 leaves it open",
            )  # fmt: skip
        if len(self.cell) != 2 or (min(self.cell) < 1 and any(self.cell)):
            shown = "x".join(map(str, self.cell))
            raise ConfigError("cell", shown, "must be a height and a width of at least 1, or 0x0")
        _one_of(self, "arithmetic", ("auto", "packed", "fp32"))
        _one_of(self, "maps", ("batch", "level"))
        _one_of(self, "l2_promotion", L2_PROMOTIONS)

    def resolve(self, constants):
        """The configuration with nothing left open but the cell, which is settled where it is fitted to a
        problem, checked against what it is compiled for."""
        row = constants.channels * ITEMSIZE[constants.dtype]
        if row not in (64, 128):
            raise ConfigError(
                "variant", "window", f"a head's pixel has {row} bytes here; windows need 64 or 128"
            )
        if constants.levels > 32:
            raise ConfigError(
                "variant",
                "window",
                f"{constants.levels} levels: a lane of one warp loads each, so at most 32",
            )
        few = window.layout(constants).prepared <= FEW_PREPARED
        config = dataclasses.replace(
            _with_arithmetic(self, constants),
            consumers=self.consumers or (19 if few else 15),
        )
        if config.smallest_shared(constants) > SHARED_LIMIT:
            raise ConfigError(
                "stages", self.stages, f"with {config.consumers} consumers does not fit into the "
                f"{SHARED_LIMIT} bytes of a block"
            )  # fmt: skip
        return config

    def smallest_shared(self, constants):
        """Dynamic shared memory of a block with the smallest windows there are."""
        return self.with_boxes(((2, 2),) * constants.levels).dynamic_bytes(constants)

    def with_boxes(self, boxes):
        """A :class:`FittedWindow` with these parameters."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(Window)}
        return FittedWindow(**own, boxes=boxes)

    def dynamic_bytes(self, constants):
        """Dynamic shared memory of a block."""
        return dynamic_bytes(sum(self.shared_bytes(constants)))

    def level_boxes(self, levels):
        """((height, width), ..) of each level's window: typical ones, until a problem is known."""
        return tuple(TYPICAL_BOXES[min(n, len(TYPICAL_BOXES) - 1)] for n in range(levels))

    def shared_bytes(self, constants):
        return SharedBytes(*window.shared_bytes(self, constants))


TYPICAL_BOXES = ((12, 16), (10, 12), (8, 10), (8, 8))


@dataclass(frozen=True)
class FittedWindow(Window):
    """A :class:`Window` for one problem; ``boxes``: (height, width) of each level's window."""

    boxes: tuple = ()

    def level_boxes(self, levels):
        return self.boxes

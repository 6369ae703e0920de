"""What the configurations of all kernels have in common: frozen dataclasses that check themselves.

``resolve(constants)`` replaces what was left open and checks the configuration against what it is
compiled for. Errors name the field, its value and the rule.
"""

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

from ...device.layout import DYNAMIC_ALIGNMENT
from ...device.limits import MAX_THREADS, SHARED_LIMIT, SM
from ...device.memory import dynamic_bytes
from ...engines.suggestions import closest
from ...engines.tensormap import L2_PROMOTIONS
from ..problem import ConfigError
from .lanes import lane_layout


class SharedBytes(NamedTuple):
    """Shared memory of a block, in bytes."""

    tiles: int = 0
    barriers: int = 0
    metadata: int = 0

    @property
    def dynamic(self):
        """The dynamic shared memory to launch with: past 48 KB all of it, and room to align."""
        return dynamic_bytes(sum(self))


class LayoutBytes(SharedBytes):
    """The same of a ``device.layout.Shared`` of parts on 128 bytes: all of it is dynamic, whatever its size."""

    @property
    def dynamic(self):
        return sum(self) + 128 - DYNAMIC_ALIGNMENT


def power_of_two(config, field, low, high):
    value = getattr(config, field)
    if value not in [1 << i for i in range(11) if low <= 1 << i <= high]:
        raise ConfigError(field, value, f"must be a power of two from {low} to {high}")


def one_of(config, field, names):
    value = getattr(config, field)
    if value not in names:
        raise ConfigError(field, value, f"must be one of {', '.join(names)}{closest(value, names)}")


def at_least_one(config, field):
    if getattr(config, field) < 1:
        raise ConfigError(field, getattr(config, field), "must be at least 1")


def with_arithmetic(config, constants):
    """The configuration with its arithmetic chosen, which must exist for the type."""
    kind = config.arithmetic
    if kind == "auto":
        kind = "packed" if constants.dtype in config.packed else "fp32"
    if kind == "packed" and constants.dtype not in config.packed:
        raise ConfigError("arithmetic", kind, f"packed products exist here for {', '.join(config.packed)} only")
    return dataclasses.replace(config, arithmetic=kind)


@dataclass(frozen=True)
class Rows:
    """Parameters of every kernel.

    lanes       lanes that share a row (1 .. 32)
    min_blocks  blocks that should fit on an SM, which caps the registers; 0 leaves it open
    arithmetic  ``packed`` products, ``fp32``, or ``auto``: packed where there are such
    """

    lanes: int = 8
    min_blocks: int = 0
    arithmetic: str = "auto"

    packed = ("float16",)  # that of bf16 wants all lanes of a warp at each sample

    def __post_init__(self):
        power_of_two(self, "lanes", 1, 32)
        if self.threads % 32 or not 32 <= self.threads <= MAX_THREADS:
            rule = f"must be a multiple of 32 from 32 to {MAX_THREADS}"
            raise ConfigError("threads", self.threads, rule)
        if not 0 <= self.min_blocks <= SM.blocks or self.min_blocks * self.threads > SM.threads:
            rule = f"blocks of {self.threads} threads: an SM holds {SM.threads}"
            raise ConfigError("min_blocks", self.min_blocks, rule)
        one_of(self, "arithmetic", ("auto", "packed", "fp32"))

    def complete(self, constants):
        """The configuration with nothing left open; its shared memory may still be too large."""
        config = with_arithmetic(self, constants)
        layout = lane_layout(self.lanes, constants)
        chunks = layout.chunks_per_lane
        if chunks > 4:
            rule = (f"would give a lane {chunks} chunks of 16 bytes, more than its registers hold (4); "
                    f"use at least {layout.chunk_lanes * chunks // 4}")  # fmt: skip
            raise ConfigError("lanes", self.lanes, rule)
        return config

    def resolve(self, constants):
        """The configuration with nothing left open, checked against what it is compiled for."""
        config = self.complete(constants)
        shared = config.shared_bytes(constants)
        if shared.dynamic > SHARED_LIMIT:
            rule = (f"with {self.threads} threads and {config.points_per_stage} points a stage takes "
                    f"{sum(shared)} bytes of shared memory; a block has at most {SHARED_LIMIT}")  # fmt: skip
            raise ConfigError("stages", self.stages, rule)
        return config

    def shared_bytes(self, constants):
        """:class:`SharedBytes` of a block, for a completed configuration."""
        return SharedBytes()


@dataclass(frozen=True)
class Staged(Rows):
    """Parameters of every kernel that stages tiles in shared memory.

    stages            depth of the ring (>= 1); 1 does not overlap
    points_per_stage  how many samples of each row one stage holds: 1, 2, 4 or 8, or as many as a lane
                      prepares (its run, lanes.py), if they are fewer
    debug             one row's tiles are copied as they arrive, and on a GPU a hang ends in a report
    trace             the kernel writes down what its warps do when, for ``timeline``
    """

    stages: int = 2
    points_per_stage: int = 2
    debug: bool = False
    trace: bool = False

    box = (2, 2)  # what one copy brings; TMA can bring more

    def __post_init__(self):
        super().__post_init__()
        at_least_one(self, "stages")
        power_of_two(self, "points_per_stage", 1, 8)
        if self.debug and self.trace:
            raise ConfigError("trace", 1, "and debug=1 write to one buffer; choose one of them")

    def complete(self, constants):
        config = super().complete(constants)
        run = lane_layout(self.lanes, constants).run
        return dataclasses.replace(config, points_per_stage=min(self.points_per_stage, run))


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
    batches_abreast   batches that neighbouring items take turns among (>= 1). With a divisor of the number of
                      SMs (132) the blocks of an SM have one batch, and its TMA unit has few maps
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
            rule = "must be a height and a width from 2 to 256"
            raise ConfigError("box", "x".join(map(str, self.box)), rule)
        one_of(self, "maps", ("batch", "level"))
        one_of(self, "l2_promotion", L2_PROMOTIONS)
        at_least_one(self, "batches_abreast")

    def map_box(self, constants):
        """(height, width) of the boxes of the tensor maps."""
        return self.box

"""The registry: every kernel that computes the operator, by name, with its configuration.

A variant is a module of ``kernels/`` with ``build(config, constants)`` and ``arguments(operands)``, and
a frozen dataclass for its parameters. Each (config, constants) is built and compiled once.
"""

import dataclasses
import difflib
import functools
from dataclasses import dataclass

from .device.memory import dynamic_bytes
from .host.tensormap import L2_PROMOTIONS
from .kernels import direct, tma
from .kernels.accumulate import ARITHMETIC
from .kernels.lanes import ITEMSIZE, lane_layout

SHARED_LIMIT = 227 * 1024  # bytes a block of an sm_90 can opt in to


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


def _power_of_two(config, field, low, high):
    value = getattr(config, field)
    if value not in [1 << i for i in range(11) if low <= 1 << i <= high]:
        raise ConfigError(field, value, f"must be a power of two from {low} to {high}")


@dataclass(frozen=True)
class Direct:
    """Parameters of ``direct``.

    lanes       lanes that share a row (1 .. 32)
    threads     threads of a block, a multiple of 32
    min_blocks  blocks that should fit on an SM, which caps the registers; 0 leaves it open
    arithmetic  ``packed`` fp16 products, ``fp32``, or ``auto``: packed for float16
    """

    lanes: int = 8
    threads: int = 128
    min_blocks: int = 7
    arithmetic: str = "auto"

    def __post_init__(self):
        _power_of_two(self, "lanes", 1, 32)
        if self.threads % 32 or not 32 <= self.threads <= 1024:
            raise ConfigError("threads", self.threads, "must be a multiple of 32 from 32 to 1024")
        if not 0 <= self.min_blocks <= 32 or self.min_blocks * self.threads > 2048:
            raise ConfigError(
                "min_blocks", self.min_blocks, f"blocks of {self.threads} threads: an SM holds 2048"
            )
        if self.arithmetic not in ("auto", "packed", "fp32"):
            raise ConfigError("arithmetic", self.arithmetic, "must be auto, packed or fp32")

    def resolve(self, constants):
        """The configuration with ``auto`` replaced, checked against what it is compiled for."""
        config = self
        if self.arithmetic == "auto":
            kind = "packed" if constants.dtype == "float16" else "fp32"
            config = dataclasses.replace(self, arithmetic=kind)
        if (constants.dtype, config.arithmetic) not in ARITHMETIC:
            raise ConfigError(
                "arithmetic", self.arithmetic, "packed products exist for float16 only"
            )
        layout = lane_layout(self.lanes, constants)
        if layout.chunks_per_lane > 4:
            raise ConfigError(
                "lanes",
                self.lanes,
                f"would give a lane {layout.chunks_per_lane} chunks of 16 bytes, more than its registers "
                f"hold (4); use at least {layout.chunk_lanes * layout.chunks_per_lane // 4}",
            )
        return config

    def shared_bytes(self, constants):
        """(bytes of tiles, bytes of barriers) of a block."""
        return 0, 0


@dataclass(frozen=True)
class Tma(Direct):
    """Parameters of ``tma``, beside those of ``direct``.

    stages            depth of each warp's ring (>= 1); 1 does not overlap
    points_per_stage  samples of each row that one stage holds: 1, 2, 4 or 8, at most a lane's run
                      (lanes.py); 0 takes 2, or 1 where runs are that short
    l2_promotion      how much L2 fetches for a tile: none, 64B, 128B or 256B
    batches_abreast   batches that neighbouring blocks take turns among (>= 1)
    tensormap_fence   acquire the maps in every block; off trusts that nothing stale is cached,
                      which the CPU engine refuses
    """

    threads: int = 256
    min_blocks: int = 3
    stages: int = 2
    points_per_stage: int = 0
    l2_promotion: str = "128B"
    batches_abreast: int = 16
    tensormap_fence: bool = True

    def __post_init__(self):
        super().__post_init__()
        if self.stages < 1:
            raise ConfigError("stages", self.stages, "must be at least 1")
        if self.l2_promotion not in L2_PROMOTIONS:
            raise ConfigError(
                "l2_promotion", self.l2_promotion, f"must be one of {', '.join(L2_PROMOTIONS)}"
            )
        if self.batches_abreast < 1:
            raise ConfigError("batches_abreast", self.batches_abreast, "must be at least 1")
        if self.points_per_stage not in (0, 1, 2, 4, 8):
            raise ConfigError("points_per_stage", self.points_per_stage, "must be 1, 2, 4, 8, or 0")

    def resolve(self, constants):
        config = super().resolve(constants)
        run = lane_layout(self.lanes, constants).run
        if self.points_per_stage > run:
            raise ConfigError(
                "points_per_stage",
                self.points_per_stage,
                f"with {constants.points} points a level a lane prepares {run} samples in a row, and a "
                "stage holds at most those",
            )
        if not self.points_per_stage:
            config = dataclasses.replace(config, points_per_stage=min(run, 2))
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
        return tma.shared_bytes(self, constants)


@dataclass(frozen=True)
class Variant:
    """One entry: ``capability`` is the oldest GPU that runs it."""

    name: str
    systems: str
    summary: str
    config: type
    module: object
    capability: tuple[int, int]

    def configure(self, constants, **parameters):
        """A resolved configuration; raises ConfigError for an unknown or unusable parameter."""
        known = [f.name for f in dataclasses.fields(self.config)]
        for key in parameters:
            if key not in known:
                raise ConfigError(
                    key, parameters[key], f"{self.name} has the parameters {', '.join(known)}"
                )
        return self.config(**parameters).resolve(constants)

    def kernel(self, config, constants):
        """The built kernel, cached."""
        return _build(self, config, constants)

    def dynamic_shared_bytes(self, config, constants):
        """The dynamic shared memory to launch with."""
        return dynamic_bytes(sum(config.shared_bytes(constants)))


@functools.cache
def _build(variant, config, constants):
    return variant.module.build(config, constants)


VARIANTS = {
    v.name: v
    for v in (
        Variant("direct", "S3", "plain 16-byte loads served by L1", Direct, direct, (8, 0)),
        Variant(
            "tma", "S5 S6", "a TMA load per 2x2 tile, a ring of stages per warp", Tma, tma, (9, 0)
        ),
    )
}


def variant(name):
    """The variant of that name; raises ConfigError naming all, and the closest."""
    if name not in VARIANTS:
        close = difflib.get_close_matches(name, VARIANTS, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError("variant", name, f"must be one of {', '.join(VARIANTS)}{hint}")
    return VARIANTS[name]

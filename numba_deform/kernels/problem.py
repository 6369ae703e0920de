"""What is computed: the types and sizes that a kernel is compiled for, and the checked shape of one call."""

from dataclasses import dataclass

import numpy as np

ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}


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


@dataclass(frozen=True)
class Problem:
    """The checked shape of one call: everything that does not depend on where the data are."""

    batch: int
    spatial_size: int
    heads: int
    queries: int
    levels: tuple  # of tensormap.Level
    constants: Constants

    @property
    def rows(self):
        return self.batch * self.queries * self.heads

    @property
    def out_shape(self):
        return (self.batch, self.queries, self.heads * self.constants.channels)

    @property
    def samples(self):
        return self.rows * self.constants.levels * self.constants.points

    @property
    def level_table(self):
        """(L, 4) int32: height, width, start, row stride, as the kernels read them."""
        return np.array(self.levels, np.int32).reshape(-1, 4)

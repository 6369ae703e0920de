"""What is computed: the types and sizes that a kernel is compiled for, and the checked shape of one call."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

NUMPY_DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
"""The types of values, locations and weights: name -> NumPy scalar type."""
ITEMSIZE = {name: np.dtype(scalar).itemsize for name, scalar in NUMPY_DTYPES.items()}


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


# --- where the positions of a level lie ---------------------------------------------------------


def level_sizes(levels, padded=False) -> np.ndarray:
    """Positions of each level, (L,) int64; a padded level is one pixel larger on every side."""
    shapes = np.asarray(levels, np.int64).reshape(-1, 2) + (2 if padded else 0)
    return shapes[:, 0] * shapes[:, 1]


def level_starts(levels, padded=False) -> np.ndarray:
    """Index of the first position of each level, (L,) int64."""
    sizes = level_sizes(levels, padded)
    return np.cumsum(sizes) - sizes


def interior_rows(levels, padded=False) -> np.ndarray:
    """Index along S of every real pixel, all levels in order, (sum of h*w,) int64.

    Unpadded this is simply 0, 1, 2, ...; padded it leaves the border positions out.
    """
    border, rows = int(padded), []
    for (h, w), start in zip(levels, level_starts(levels, padded), strict=True):
        y, x = np.mgrid[border : h + border, border : w + border]
        rows.append(start + y.ravel() * (w + 2 * border) + x.ravel())
    return np.concatenate(rows)


def pixel_centres(levels, dtype=np.float32) -> np.ndarray:
    """Normalised (x, y) of every pixel centre, all levels (h, w, ..) in order, (sum of h*w, 2)."""
    centres = []
    for h, w, *_ in levels:
        y, x = np.mgrid[0:h, 0:w]
        centres.append(np.stack([(x.ravel() + 0.5) / w, (y.ravel() + 0.5) / h], axis=1))
    return np.concatenate(centres).astype(dtype)

"""What is computed: dtypes, the sizes that a kernel is compiled for, levels, and the shape of one call.

Shapes are written with B batch, S positions of all levels, H heads, C channels a head, L levels.
"""

from dataclasses import dataclass
from typing import NamedTuple

import ml_dtypes
import numpy as np

from ..engines.tensormap import broken_rule

NUMPY_DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
"""The dtypes a value may have: name -> NumPy scalar type."""

METHODS = ("default", "discrete")

ITEMSIZE = {name: np.dtype(dtype).itemsize for name, dtype in NUMPY_DTYPES.items()}


class ConfigError(ValueError):
    """A configuration breaks a rule; has ``field``, ``value`` and ``rule``."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        self.field, self.value, self.rule = field, value, rule
        super().__init__(f"{field}={value}: {rule}")


@dataclass(frozen=True)
class Constants:
    """What a kernel is compiled for: levels L, points P, channels C of a head, the types, and the method.

    ``points`` is a tuple where levels have different numbers of points. ``method`` is ``default``, bilinear, or
    ``discrete``: a sample is the pixel next to it, at the border where it lies outside (RT-DETR v2)."""

    levels: int
    points: int | tuple
    channels: int
    dtype: str = "float16"
    location_dtype: str = "float16"
    weight_dtype: str = "float16"
    method: str = "default"

    def __post_init__(self):
        for field in ("dtype", "location_dtype", "weight_dtype"):
            value = getattr(self, field)
            if value not in ITEMSIZE:
                raise ConfigError(field, value, f"must be one of {', '.join(ITEMSIZE)}")
        if self.method not in METHODS:
            raise ConfigError("method", self.method, f"must be one of {', '.join(METHODS)}")
        if self.levels < 1:
            raise ConfigError("levels", self.levels, "must be at least 1")
        if len(self.point_counts) != self.levels or min(self.point_counts) < 1:
            raise ConfigError("points", self.points, f"must be at least 1 in each of {self.levels} levels")
        row = self.channels * ITEMSIZE[self.dtype]
        if row % 16 or not 16 <= row <= 256:
            rule = (f"of {self.dtype} are {row} bytes a head; a multiple of 16 from 16 to 256 is needed, "
                    "for 16-byte loads and TMA boxes")  # fmt: skip
            raise ConfigError("channels", self.channels, rule)

    @property
    def point_counts(self):
        """Points of each level."""
        return self.points if isinstance(self.points, tuple) else (self.points,) * self.levels

    @property
    def samples(self):
        """Samples of a row: the points of all levels."""
        return sum(self.point_counts)

    @property
    def is_usual(self):
        """Whether all levels have the same number of points, and the method is the default one."""
        return self.method == "default" and not isinstance(self.points, tuple)


class Level(NamedTuple):
    """Where one pyramid level lies in ``value``, all in pixels (one pixel is H*C elements)."""

    height: int  # without any border
    width: int
    start: int  # first pixel of the level itself, counted from the start of its batch
    row_stride: int  # pixels from one row to the next: the width, or more with a border


def level_sizes(shapes, padded=False) -> np.ndarray:
    """Positions of each level, (L,) int64; a padded level is one pixel larger on every side."""
    shapes = np.asarray(shapes, np.int64).reshape(-1, 2) + (2 if padded else 0)
    return shapes[:, 0] * shapes[:, 1]


def level_starts(shapes, padded=False) -> np.ndarray:
    """Index of the first position of each level, its border included, (L,) int64."""
    sizes = level_sizes(shapes, padded)
    return np.cumsum(sizes) - sizes


def make_levels(shapes, starts=None, padded=False) -> tuple[Level, ...]:
    """The levels of a value tensor.

    shapes  (L, 2) heights and widths in pixels, without border
    starts  (L,) first position of each level, its border included; None: one level after another
    padded  one pixel of border is stored on every side of every level; tensor maps leave it out

    Raises TensorMapError for another number of starts than levels.
    """
    starts = level_starts(shapes, padded) if starts is None else starts
    if len(starts) != len(shapes):
        required = f"{len(shapes)}, one per level"
        raise broken_rule("levels", "len(level_start_index)", len(starts), required)
    levels = []
    for (height, width), start in zip(shapes, starts, strict=True):
        row_stride = int(width) + (2 if padded else 0)
        first = int(start) + (row_stride + 1 if padded else 0)  # past the top border row and left pixel
        levels.append(Level(int(height), int(width), first, row_stride))
    return tuple(levels)


def interior_rows(shapes, padded=False) -> np.ndarray:
    """Index along S of every real pixel, all levels in order, (sum of h*w,) int64: borders are left out."""
    levels = make_levels(shapes, padded=padded)
    lines = [start + stride * np.arange(h)[:, None] + np.arange(w) for h, w, start, stride in levels]
    return np.concatenate([rows.ravel() for rows in lines])


def pixel_centres(levels, dtype=np.float32) -> np.ndarray:
    """Normalised (x, y) of every pixel centre, all levels (h, w, ..) in order, (sum of h*w, 2)."""
    centres = []
    for h, w, *_ in levels:
        y, x = np.mgrid[0:h, 0:w]
        centres.append(np.stack([(x.ravel() + 0.5) / w, (y.ravel() + 0.5) / h], axis=1))
    return np.concatenate(centres).astype(dtype)


@dataclass(frozen=True)
class Problem:
    """The checked shape of one call: everything that does not depend on where the data are."""

    batch: int
    spatial_size: int
    heads: int
    queries: int
    levels: tuple[Level, ...]
    constants: Constants

    @property
    def rows(self):
        return self.batch * self.queries * self.heads

    @property
    def out_shape(self):
        return (self.batch, self.queries, self.heads * self.constants.channels)

    @property
    def samples(self):
        return self.rows * self.constants.samples

    @property
    def level_table(self):
        """(L, 4) int32: height, width, start, row stride, as the kernels read them."""
        return np.array(self.levels, np.int32).reshape(-1, 4)

"""What the operator is computed on: dtypes, and where the levels of a value lie.

Shapes are written with B batch, S positions of all levels, H heads, C channels a head, L levels.
"""

from typing import NamedTuple

import ml_dtypes
import numpy as np

from ..engines.tensormap import broken_rule

NUMPY_DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
"""The dtypes a value may have: name -> NumPy scalar type."""


class Level(NamedTuple):
    """Where one pyramid level lies in ``value``, all in pixels (one pixel is H*C elements).

    height, width  the level without any border
    start          first pixel of the level itself, counted from the start of its batch
    row_stride     pixels from one row to the next (the width, or more with a border)
    """

    height: int
    width: int
    start: int
    row_stride: int


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
    padded  one pixel of border is stored on every side of every level. Tensor maps leave the border
            out: what a copy reads there is zero anyway.

    Raises TensorMapError for another number of starts than levels.
    """
    border = 1 if padded else 0
    starts = level_starts(shapes, padded) if starts is None else starts
    if len(starts) != len(shapes):
        required = f"{len(shapes)}, one per level"
        raise broken_rule("levels", "len(level_start_index)", len(starts), required)
    levels = []
    for (height, width), start in zip(shapes, starts, strict=True):
        row_stride = int(width) + 2 * border
        first = int(start) + border * (row_stride + 1)  # past the top border row and left pixel
        levels.append(Level(int(height), int(width), first, row_stride))
    return tuple(levels)


def interior_rows(shapes, padded=False) -> np.ndarray:
    """Index along S of every real pixel, all levels in order, (sum of h*w,) int64.

    Unpadded this is simply 0, 1, 2, ...; padded it leaves the border positions out.
    """
    rows = []
    for height, width, start, row_stride in make_levels(shapes, padded=padded):
        y, x = np.mgrid[:height, :width]
        rows.append((start + y * row_stride + x).ravel())
    return np.concatenate(rows)


def pixel_centres(levels, dtype=np.float32) -> np.ndarray:
    """Normalised (x, y) of every pixel centre, all levels (h, w, ..) in order, (sum of h*w, 2)."""
    centres = []
    for h, w, *_ in levels:
        y, x = np.mgrid[0:h, 0:w]
        centres.append(np.stack([(x.ravel() + 0.5) / w, (y.ravel() + 0.5) / h], axis=1))
    return np.concatenate(centres).astype(dtype)

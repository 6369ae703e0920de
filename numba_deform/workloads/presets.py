"""Named workloads: the sizes of published models, and level shapes for a given number of positions."""

import math
import operator

import numpy as np

from ..engines.suggestions import closest
from ..kernels.problem import level_sizes
from .workload import Workload, WorkloadError, halved, whole_number

# A 736 x 1280 image at strides 8, 16, 32 and 64.
SEED_LEVELS = ((92, 160), (46, 80), (23, 40), (12, 20))
_DETR_LEVELS = ((100, 167), (50, 84), (25, 42), (13, 21))  # an 800 x 1333 image
_DINO5_LEVELS = ((200, 334), *_DETR_LEVELS)
_RTDETR_LEVELS = ((80, 80), (40, 40), (20, 20))  # 640 x 640
_BEVFORMER_LEVELS = ((116, 200), (58, 100), (29, 50), (15, 25))


def levels_for(spatial_size: int, num_levels: int, padded: bool = False):
    """Level shapes ((h, w), ...) whose positions add up to exactly `spatial_size`.

    Each level is half the one before, rounded up, as stride-2 convolutions give; the last level
    takes what remains, as close to a half as its divisors allow (1 x remainder if it is prime).
    19560 in 4 levels, or 20522 padded, gives the levels of the preset `seeds`. Every unpadded size
    of at least num_levels has an answer; WorkloadError if there is none."""
    spatial_size = whole_number("spatial_size", spatial_size)
    num_levels = whole_number("num_levels", num_levels)
    if num_levels == len(SEED_LEVELS) and spatial_size == level_sizes(SEED_LEVELS, padded).sum():
        return SEED_LEVELS
    border = 2 if padded else 0
    halves = [0.5**level for level in range(num_levels)]
    finest = [(1, 1)]  # where anything fits at all, this leaves room for the last level
    top = math.isqrt(int(spatial_size / sum(half**2 for half in halves)))
    for h in range(max(1, top - 31), top + 1):
        # Solves sum over levels of (h * half + border) * (w * half + border) = spatial_size for w.
        rows = [h * half + border for half in halves]
        w = (spatial_size - border * sum(rows)) / sum(map(operator.mul, rows, halves))
        finest += [(h, near) for near in range(max(h, int(w) - 4), int(w) + 5)]

    best = math.inf, ()
    for size in finest:
        *levels, expected = halved(size, num_levels)
        rest = spatial_size - int(level_sizes(levels, padded).sum())
        last = _rectangle(rest, expected[0], border)
        if last is None:
            continue
        levels.append(last)
        penalty = sum(abs(math.log(last[axis] / expected[axis])) for axis in (0, 1))
        # Images are about 3:2.
        penalty += 0.1 * abs(math.log(levels[0][1] / levels[0][0] / 1.5))
        best = min(best, (penalty, tuple(levels)), key=operator.itemgetter(0))
    if not best[1]:
        kind = "padded positions, (h+2)*(w+2) a level" if padded else "positions, h*w a level"
        least = num_levels * (1 + border) ** 2
        raise WorkloadError(
            f"spatial_size={spatial_size}: no pyramid of num_levels={num_levels} has exactly that "
            f"many {kind}; the smallest has {least}"
        )
    return best[1]


def _rectangle(area, near, border):
    """(h, w), h <= w, with (h + border) * (w + border) == area and h close to near, or None."""
    if area < 1:
        return None
    sides = np.arange(1 + border, math.isqrt(area) + 1)
    sides = sides[area % sides == 0]
    if not len(sides):
        return None
    side = int(sides[np.argmin(abs(sides - border - near))])
    return side - border, area // side - border


_SEEDS = Workload("seeds", 48, SEED_LEVELS, 20522, num_heads=1, num_points=8, pattern="seed")
_PRESETS = (
    # The CUDA C++ programs that this project began with: their production shape.
    _SEEDS,
    _SEEDS.replace(name="seeds-padded", padded=True),
    Workload("detr-encoder", 1, _DETR_LEVELS, 22223),
    Workload("detr-encoder-b4", 4, _DETR_LEVELS, 22223),
    Workload("detr-decoder", 1, _DETR_LEVELS, 300, queries="objects"),
    Workload("dino-decoder", 1, _DETR_LEVELS, 900, queries="objects"),
    Workload("dino-5scale", 1, _DINO5_LEVELS, 89023),
    Workload("rtdetr-decoder", 1, _RTDETR_LEVELS, 300, queries="objects"),
    Workload("dfine-decoder", 1, _RTDETR_LEVELS, 300, points_per_level=(3, 6, 3), queries="objects"),
    Workload("mask2former", 1, ((32, 32), (64, 64), (128, 128)), 21504),
    Workload("bevformer-temporal", 2, ((200, 200),), 40000),
    # A BEV cell is a query of the cameras that see it, about 9675 cells a camera.
    Workload("bevformer-spatial", 6, _BEVFORMER_LEVELS, 9675, num_points=8),
    # For the CPU engine. On levels of a few pixels "local" would lose most samples, as its bias
    # alone reaches P pixels. B * Q = 46 fills no whole number of warps, one level is 1 pixel wide.
    Workload("tiny", 2, ((9, 7), (5, 3), (3, 1)), 23, num_heads=2, pattern="uniform", outside=0.05),
    # The quick test of the programs behind `seeds`: spatial_size=100 num_query=100.
    _SEEDS.replace(
        name="quick", batch=1, levels=levels_for(100, 4), num_query=100, pattern="uniform",
        outside=0.05,
    ),
)  # fmt: skip

PRESETS = {workload.name: workload for workload in _PRESETS}
"""Name -> Workload: sizes of published models and of the first programs, and small ones."""


def preset(name: str, **overrides) -> Workload:
    """The preset of that name, with fields replaced. WorkloadError lists the names if unknown."""
    if name not in PRESETS:
        raise WorkloadError(f"no preset {name!r}{closest(name, PRESETS)} (there are {', '.join(PRESETS)})")
    return PRESETS[name].replace(**overrides)

"""Workloads: the shapes, dtypes and sampling patterns that the operator is run with.

A `Workload` says all about the inputs except their random numbers; `Workload.generate` draws those. B batch,
S positions of all levels, H heads, C channels a head, Q queries, L levels, P points a level.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from dataclasses import dataclass

import numpy as np

from ..engines.suggestions import closest
from ..kernels.problem import NUMPY_DTYPES, interior_rows, level_sizes, level_starts, pixel_centres

PATTERNS = ("seed", "uniform", "local")
QUERIES = ("pixels", "objects")


class WorkloadError(ValueError):
    """A workload that cannot exist; the message names the field, its value and the rule."""


def halved(size, num_levels) -> tuple[tuple[int, int], ...]:
    """(h, w) of each level, the first of `size`, each further one half of it, rounded up."""
    levels = [tuple(size)]
    while len(levels) < num_levels:
        h, w = levels[-1]
        levels.append(((h + 1) // 2, (w + 1) // 2))
    return tuple(levels)


@dataclass(eq=False)
class Inputs:
    """The operator's arguments as NumPy arrays.

    value (B, S, H, C); spatial_shapes (L, 2) int64 as (h, w), without the border even when padded;
    level_start_index (L,) int64 in the layout that value has; sampling_locations (B, Q, H, L, P, 2)
    as (x, y), 0..1 across the level, not clamped; attention_weights (B, Q, H, L, P), which sum to 1
    over L and P. padded: every level of value carries a border of one zero pixel."""

    value: np.ndarray
    spatial_shapes: np.ndarray
    level_start_index: np.ndarray
    sampling_locations: np.ndarray
    attention_weights: np.ndarray
    padded: bool = False


@dataclass(frozen=True)
class Workload:
    """One problem size with its dtype and sampling pattern. Raises WorkloadError if inconsistent.

    name              free text, used in tables
    batch             B
    levels            (h, w) of each level in pixels, without any border, in the order stored
    num_query         Q
    num_heads         H
    channels          C, channels of one head
    num_points        P, sampling points in each level
    dtype             of value, attention weights and output: a key of NUMPY_DTYPES
    location_dtype    of sampling_locations; None: float16 if dtype is float16, else float32
    pattern           "seed": uniform in [0.3, 0.7], as the preset `seeds` has it; "uniform": uniform in
                      [0, 1]; "local": around each query's own place (below), "local(8)": with sigma=8
    sigma             spread of "local" in pixels of the sampled level
    padded            value has a border of one zero pixel around every level
    points_per_level  points really used in each level, as D-FINE's (3, 6, 3); num_points becomes
                      their maximum, the missing points get weight 0 and location 0.5
    queries           what a query of "local" is. "pixels", as in an encoder: pixel centres of all levels in
                      order; a sorted random subset if num_query is smaller, from the beginning again if it
                      is larger. "objects", as in a decoder: points uniform in [0, 1], others in each item
    outside           least share of samples outside [0, 1]; samples are pushed out by 1.0 to 1.5 of the
                      level's size where the pattern alone yields fewer. None: 0.01 for "local", else 0

    "local" is what a trained Deformable DETR looks like: offset = initial bias + N(0, sigma). The
    bias of head k points at angle 2 pi k / H and is p + 1 pixels long (after Zhu et al. 2021).
    """

    name: str
    batch: int
    levels: tuple[tuple[int, int], ...]
    num_query: int
    num_heads: int = 8
    channels: int = 32
    num_points: int = 4
    dtype: str = "float16"
    location_dtype: str | None = None
    pattern: str = "local"
    sigma: float = 2.0
    padded: bool = False
    points_per_level: tuple[int, ...] | None = None
    queries: str = "pixels"
    outside: float | None = None

    def __post_init__(self):
        # Frozen, so that a workload can be a cache key; only here its fields are normalised.
        def put(field, value):
            object.__setattr__(self, field, value)

        put("levels", _checked_levels(self.levels))
        if self.points_per_level is not None:
            points = tuple(whole_number("points_per_level", p, 0) for p in self.points_per_level)
            if len(points) != len(self.levels) or max(points) < 1:
                rule = f"one count for each of the {len(self.levels)} levels, at least one above 0"
                raise _error("points_per_level", points, rule)
            put("points_per_level", points)
            put("num_points", max(points))
        for field in ("batch", "num_query", "num_heads", "channels", "num_points"):
            put(field, whole_number(field, getattr(self, field)))

        if self.location_dtype is None:
            put("location_dtype", _default_location_dtype(self.dtype))
        pattern, sigma = _parse_pattern(self.pattern)
        put("pattern", pattern)
        put("sigma", _number("sigma", self.sigma if sigma is None else sigma, 0.0, math.inf))
        if self.outside is None:
            put("outside", _default_outside(pattern))
        put("outside", _number("outside", self.outside, 0.0, 1.0))
        for field, choices in (("dtype", NUMPY_DTYPES), ("location_dtype", NUMPY_DTYPES), ("queries", QUERIES)):
            if getattr(self, field) not in choices:
                hint = closest(getattr(self, field), choices)
                raise _error(field, getattr(self, field), f"one of {', '.join(choices)}{hint}")
        if not isinstance(self.padded, (bool, np.bool_)):
            raise _error("padded", self.padded, "True or False")
        put("padded", bool(self.padded))

    @property
    def num_levels(self) -> int:
        """L."""
        return len(self.levels)

    @property
    def num_positions(self) -> int:
        """Pixels of all levels, without any border."""
        return int(level_sizes(self.levels).sum())

    @property
    def spatial_size(self) -> int:
        """S, the positions that value holds, borders included when padded."""
        return int(level_sizes(self.levels, self.padded).sum())

    @property
    def samples(self) -> int:
        """B * Q * H * L * P, missing points included."""
        return self.batch * self.num_query * self.num_heads * self.num_levels * self.num_points

    @property
    def spatial_shapes(self) -> np.ndarray:
        """(L, 2) int64 as (h, w), never with the border."""
        return np.array(self.levels, np.int64)

    @property
    def level_start_index(self) -> np.ndarray:
        """(L,) int64 in the layout in use."""
        return level_starts(self.levels, self.padded)

    def replace(self, **changes) -> Workload:
        """A copy with some fields changed.

        A field that still has its default follows: a new dtype brings its location dtype, a new
        pattern its share outside. A new num_points ends points_per_level."""
        names = [field.name for field in dataclasses.fields(self)]
        for field in changes:
            if field not in names:
                raise WorkloadError(f"a workload has no field {field!r}; it has {', '.join(names)}")
        if "dtype" in changes and self.location_dtype == _default_location_dtype(self.dtype):
            changes.setdefault("location_dtype", None)
        if "pattern" in changes and self.outside == _default_outside(self.pattern):
            changes.setdefault("outside", None)
        if "num_points" in changes:
            changes.setdefault("points_per_level", None)
        return dataclasses.replace(self, **changes)

    def describe(self) -> str:
        """One readable line."""
        shapes = " ".join(f"{h}x{w}" for h, w in self.levels) + (" padded" if self.padded else "")
        points = self.num_points if self.points_per_level is None else self.points_per_level
        pattern = f"local({self.sigma:g})" if self.pattern == "local" else self.pattern
        millions = f"{self.samples / 1e6:.1f} M" if self.samples >= 1e6 else f"{self.samples:,}"
        return (
            f"{self.name}: B={self.batch} S={self.spatial_size} ({shapes}) Q={self.num_query} "
            f"H={self.num_heads} C={self.channels} P={points} {self.dtype}, {pattern}, "
            f"{millions} samples"
        )

    def generate(self, seed: int = 0) -> Inputs:
        """Draw the arrays: the same seed gives the same arrays.

        value ~ N(0, 1), weights softmax(N(0, 1)) over L * P, locations by the pattern. Each array has its own
        random stream, so changing the pattern does not change value, and padding only adds the border."""
        B, Q, H, L, P = self.batch, self.num_query, self.num_heads, self.num_levels, self.num_points
        streams = np.random.SeedSequence(seed).spawn(4)
        value_rng, location_rng, weight_rng, query_rng = map(np.random.default_rng, streams)

        dtype = NUMPY_DTYPES[self.dtype]
        value = np.zeros((B, self.spatial_size, H, self.channels), dtype)
        locations = np.empty((B, Q, H, L, P, 2), NUMPY_DTYPES[self.location_dtype])
        weights = np.empty((B, Q, H, L, P), dtype)

        rows = interior_rows(self.levels, self.padded)
        shared = self._query_pixels(query_rng) if self.queries == "pixels" else None
        counts = self.points_per_level or (P,) * L
        missing = np.arange(P) >= np.array(counts)[:, None]  # (L, P)
        for b in range(B):
            draw = value_rng.standard_normal((len(rows), H, self.channels), np.float32)
            value[b, rows] = draw.astype(dtype)

            points = query_rng.random((Q, 2), np.float32) if shared is None else shared
            where = self._locations(location_rng, points)
            _push_outside(where, self.outside, location_rng)
            where[:, :, missing] = 0.5
            locations[b] = where

            logits = weight_rng.standard_normal((Q, H, L, P), np.float32)
            logits[:, :, missing] = -np.inf
            weights[b] = softmax(logits.reshape(Q, H, L * P)).reshape(Q, H, L, P)
        return Inputs(value, self.spatial_shapes, self.level_start_index, locations, weights, self.padded)

    def _query_pixels(self, rng) -> np.ndarray:
        """Reference points (Q, 2) of queries that are pixels; the rule is `queries` above."""
        centres = pixel_centres(self.levels)
        if self.num_query < len(centres):
            return centres[np.sort(rng.choice(len(centres), self.num_query, replace=False))]
        return centres[np.arange(self.num_query) % len(centres)]

    def _locations(self, rng, reference_points) -> np.ndarray:
        """Locations of one batch item, (Q, H, L, P, 2) float32."""
        shape = (self.num_query, self.num_heads, self.num_levels, self.num_points, 2)
        if self.pattern != "local":
            where = rng.random(shape, np.float32)
            return where if self.pattern == "uniform" else where * np.float32(0.4) + np.float32(0.3)
        reach = np.arange(1, self.num_points + 1)
        bias = head_directions(self.num_heads)[:, None] * reach[:, None]  # (H, P, 2), pixels
        size = np.array(self.levels)[:, ::-1]  # (L, 2) as (w, h): pixels -> normalised
        where = rng.standard_normal(shape, np.float32)
        where *= np.float32(self.sigma)
        where += bias[:, None].astype(np.float32)
        where /= size[:, None].astype(np.float32)
        where += reference_points[:, None, None, None]
        return where


def _push_outside(where, share, rng):
    """Move samples of `where` (..., 2) out of [0, 1], in place, until `share` of them are."""
    points = where.reshape(-1, 2)
    if share == 0.0:
        return
    inside = np.flatnonzero(((points >= 0) & (points <= 1)).all(axis=1))
    count = math.ceil(share * len(points)) - (len(points) - len(inside))
    if count <= 0:
        return
    chosen = rng.choice(inside, count, replace=False)
    axis = rng.integers(0, 2, count)
    sign = rng.choice(np.array([-1, 1], np.float32), count)
    points[chosen, axis] += sign * (1.0 + 0.5 * rng.random(count, np.float32))


def head_directions(num_heads) -> np.ndarray:
    """(H, 2), the unit vector (x, y) along which each head's points lie: head k at 2 pi k / H."""
    angle = 2 * np.pi * np.arange(num_heads) / num_heads
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def softmax(logits) -> np.ndarray:
    """Softmax over the last axis, in place; the maximum is taken out so that exp stays finite."""
    logits -= logits.max(axis=-1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=-1, keepdims=True)
    return logits


# --- checks -------------------------------------------------------------------------------------
def _error(field, value, rule) -> WorkloadError:
    return WorkloadError(f"{field}={value!r}: must be {rule}")


def whole_number(field, value, least=1) -> int:
    """`value` as an int of at least `least`; WorkloadError names the field otherwise."""
    try:
        number = operator.index(value)
    except TypeError:
        raise _error(field, value, "a whole number") from None
    # True is an int to Python, but num_heads=True is a mistake.
    if isinstance(value, (bool, np.bool_)) or number < least:
        raise _error(field, value, f"a whole number of at least {least}")
    return number


def _number(field, value, low, high) -> float:
    rule = f"a number from {low:g} to {high:g}" if high < math.inf else f"finite, at least {low:g}"
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise _error(field, value, rule) from None
    if not (low <= number <= high and math.isfinite(number)):
        raise _error(field, value, rule)
    return number


def _checked_levels(levels) -> tuple[tuple[int, int], ...]:
    rule = "a non-empty sequence of (h, w) pairs, each a whole number of at least 1"
    try:
        shapes = tuple((h, w) for h, w in levels)
    except (TypeError, ValueError):
        shapes = ()
    if not shapes:
        raise _error("levels", levels, rule)
    return tuple((whole_number("h of a level", h), whole_number("w of a level", w)) for h, w in shapes)


def _parse_pattern(text) -> tuple[str, float | None]:
    """ "local(8)" -> ("local", "8"); without brackets the second is None."""
    match = re.fullmatch(r"(\w+)(?:\((.*)\))?", text) if isinstance(text, str) else None
    pattern, sigma = match.groups() if match else (None, None)
    if pattern not in PATTERNS or (sigma is not None and pattern != "local"):
        hint = closest(pattern or text, PATTERNS)
        raise _error("pattern", text, f"seed, uniform, local or local(SIGMA){hint}")
    return pattern, sigma


def _default_location_dtype(dtype) -> str:
    return "float16" if dtype == "float16" else "float32"


def _default_outside(pattern) -> float:
    return 0.01 if pattern == "local" else 0.0

"""Who does what inside a warp: the lanes that share one query.

A *row* is one (batch, query, head): ``C`` channels of output, ``L * P`` samples. ``lanes`` neighbouring
lanes work on it, each with 16 bytes of channels (a *chunk*) of one column of the 2x2 tile (a *side*):

    lane of the row   0 1 2 3 | 4 5 6 7        C = 32, fp16: 4 chunks, 8 lanes
    side              left    | right          together they read the 128 bytes of a tile's row,
    chunk             0 1 2 3 | 0 1 2 3        which is free of bank conflicts in shared memory

With more lanes than that the samples are split among *parts*; with fewer, a lane takes both sides,
then several chunks. At the end the sides and parts are added up by shuffles.

Where a sample lies and what it weighs is computed by one lane for each side, and fetched by the others with
shuffles. Each lane prepares a *run*, 1, 2, 4 or 8 neighbouring samples of one level that it reads with wide
loads. The runs of all lanes of a part are a *round*; a row takes as many as its samples need, usually one.
"""

import math
from typing import NamedTuple

from numba import cuda, float32, int32, uint32

from ...device.sync import shfl_sync_bfly_f32
from ..problem import ITEMSIZE


class LaneLayout(NamedTuple):
    """How ``lanes`` lanes split a row of ``channels`` x ``dtype``; all numbers are compile-time."""

    lanes: int
    chunks: int  # 16-byte pieces of a row's channels
    chunk_lanes: int  # lanes side by side on different chunks (a power of two)
    chunks_per_lane: int
    sides: int  # 2: left and right column on different lanes, 1: each lane takes both
    sides_per_lane: int
    parts: int  # how many ways the samples are split
    run: int  # neighbouring samples that one lane prepares
    rounds: int  # how often it does, until all samples of a row are through


def lane_layout(lanes, constants):
    """The :class:`LaneLayout` for ``lanes`` = 1, 2, 4, .. 32 lanes a row and a ``problem.Constants``."""
    samples, points = constants.samples, math.gcd(*constants.point_counts)
    chunks = constants.channels * ITEMSIZE[constants.dtype] // 16
    padded = 1 << (chunks - 1).bit_length()
    chunk_lanes = min(padded, lanes)
    sides = 2 if lanes >= 2 * chunk_lanes else 1
    parts = lanes // (chunk_lanes * sides)
    longest = 4 * sides  # a run's numbers stay in registers, for one or both sides
    run = next(n for n in (8, 4, 2, 1) if n <= longest and points % n == 0)
    while run > 1 and samples < run * chunk_lanes * parts:
        run //= 2  # few samples: rather all lanes with short runs
    each, rounds = padded // chunk_lanes, -(-samples // (run * chunk_lanes * parts))
    return LaneLayout(lanes, chunks, chunk_lanes, each, sides, 2 // sides, parts, run, rounds)


@cuda.jit(device=True, inline="always")
def chunk_of(place, c, layout):
    """The number of a lane's chunk ``c``; a lane that has fewer takes the last one again."""
    return min(place.chunk + int32(c * layout.chunk_lanes), int32(layout.chunks - 1))


@cuda.jit(device=True, forceinline=True)
def sum_over_lanes(accumulator, words, first, last):
    """Add up ``accumulator[:words]`` over lanes whose numbers differ in the bits first .. last / 2."""
    distance = first
    while distance < last:
        for k in range(words):
            word = float32(accumulator[k])
            accumulator[k] += shfl_sync_bfly_f32(uint32(0xFFFFFFFF), word, uint32(distance))
        distance = distance * 2

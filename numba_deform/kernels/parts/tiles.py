"""Tiles in shared memory, for every kernel that stages them there: what a lane prepares, how a stage
is laid out, and how its tiles are added up.

A *step* is ``points_per_stage`` samples of each row and part of a warp; a *stage* of its ring holds
one step's tiles. A row goes through its steps in the order of the runs of its lanes (lanes.py).
"""

import functools
from collections import namedtuple
from typing import NamedTuple

from numba import cuda, int32, uint32, uint64

from ...device.memory import global_at, ld_shared_v4, shared_at, st_global_v4
from ..problem import ITEMSIZE
from .accumulate import ARITHMETIC
from .lanes import chunk_of, lane_layout
from .row import row_parts
from .sampling import corner_weights

# A lane's run, prepared: where each sample's tile starts, and what its sides weigh as two words.
Tiles = namedtuple("Tiles", ["x", "y", "word_a", "word_b"])


class StageLayout(NamedTuple):
    """Steps and bytes of one warp's ring; all compile-time."""

    step: int  # samples of each row and part in one stage
    run_steps: int  # steps of one lane's run
    round_steps: int  # steps of the runs of all lanes
    row_steps: int  # steps until a row is done
    flush_runs: bool  # packed sums move to fp32 after every run, or only after a round
    tile: int  # bytes that one copy brings
    slot: int  # bytes from one tile to the next: TMA wants destinations on 128 bytes
    pitch: int  # bytes from a tile's upper row to its lower one
    slots: int  # tiles of one warp in one stage
    bytes: int  # of one stage of one warp


def stage_layout(config, constants):
    """The :class:`StageLayout` of a ``config.Staged``; a box may be larger than the tile in it."""
    layout = lane_layout(config.lanes, constants)
    height, width = config.box
    pitch = width * constants.channels * ITEMSIZE[constants.dtype]
    slot = -(-height * pitch // 128) * 128
    step = config.points_per_stage
    run_steps = layout.run // step
    round_steps = layout.chunk_lanes * run_steps
    slots = 32 // config.lanes * layout.parts * step
    return StageLayout(
        step, run_steps, round_steps, layout.rounds * round_steps, layout.run >= 4,
        height * pitch, slot, pitch, slots, slots * slot,
    )  # fmt: skip


class TileParts(NamedTuple):
    """Device functions, beside those of ``row.RowParts``. ``dump`` is where this row's tiles are to be copied
    as they arrived, or 0 (only with debug=1)."""

    new_tiles: object  # () -> Tiles, empty
    prepare: object  # (raw, width, height, mine, place, tiles): turns what ``read_run`` read into Tiles
    runs_of: object  # (r, owner) -> how many parts have a run from lane ``owner`` in round r
    slot_of: object  # (place) -> bytes from a warp's stage to this row's and part's tiles
    add_tile: object  # (sums, tile, place, s, up, down, dump): adds side ``s`` of a tile, its rows weighed
    # (sums, slot, i, n, r, place, tiles, dump): adds step n of the run of lane i, which has the weights
    add_step: object
    flush: object  # (sums): packed sums to fp32


@functools.cache
def tile_parts(config, constants):
    """:class:`TileParts` for a ``config.Staged``."""
    layout, stage = lane_layout(config.lanes, constants), stage_layout(config, constants)
    RUN, WORDS = layout.run, layout.run * layout.sides_per_lane
    ROWS_PER_WARP, SAMPLES = 32 // config.lanes, constants.levels * constants.points
    EVEN = layout.rounds * layout.parts * layout.chunk_lanes * RUN == SAMPLES
    rows, arithmetic = row_parts(config, constants), ARITHMETIC[constants.dtype, config.arithmetic]

    @cuda.jit(device=True, inline="always")
    def new_tiles():
        x = cuda.local.array(RUN, int32)
        y = cuda.local.array(RUN, int32)
        word_a = cuda.local.array(WORDS, uint32)
        word_b = cuda.local.array(WORDS, uint32)
        return Tiles(x, y, word_a, word_b)

    @cuda.jit(device=True, forceinline=True)
    def prepare(raw, width, height, mine, place, tiles):
        run = rows.unpack(raw)
        for k in range(RUN):
            x, fx, y, fy, attention = rows.sample(run, k, width, height, mine)
            tiles.x[k], tiles.y[k] = x, y
            for s in range(layout.sides_per_lane):
                up, down = corner_weights(attention, fx, fy, place.side + int32(s))
                m = k * layout.sides_per_lane + s
                tiles.word_a[m], tiles.word_b[m] = arithmetic.pack(up, down)

    @cuda.jit(device=True, forceinline=True)
    def runs_of(r, owner):
        if EVEN:
            return int32(layout.parts)
        part_samples = layout.chunk_lanes * RUN
        left = int32(SAMPLES - (r * layout.parts * layout.chunk_lanes + owner) * RUN)
        return int32(min(max((left + part_samples - 1) // part_samples, 0), layout.parts))

    @cuda.jit(device=True, forceinline=True)
    def slot_of(place):
        row = place.row & int32(ROWS_PER_WARP - 1)
        return uint32((row * layout.parts + place.part) * (stage.step * stage.slot))

    @cuda.jit(device=True, forceinline=True)
    def flush(sums):
        arithmetic.flush(sums.sums, sums.partial, layout.chunks_per_lane)

    add_tile, add_step = _adding(config, constants, runs_of)
    return TileParts(new_tiles, prepare, runs_of, slot_of, add_tile, add_step, flush)


def _adding(config, constants, runs_of):
    """The device functions add_tile and add_step of :class:`TileParts`."""
    layout, stage = lane_layout(config.lanes, constants), stage_layout(config, constants)
    ROW_BYTES, DEBUG = constants.channels * ITEMSIZE[constants.dtype], config.debug
    arithmetic = ARITHMETIC[constants.dtype, config.arithmetic]

    @cuda.jit(device=True, forceinline=True)
    def add_tile(sums, tile, place, s, up, down, dump):
        column = int32((place.side + int32(s)) * int32(ROW_BYTES))
        for c in range(layout.chunks_per_lane):
            offset = column + chunk_of(place, c, layout) * 16
            top = uint32(tile + uint32(offset))
            upper = ld_shared_v4(top)
            lower = ld_shared_v4(uint32(top + uint32(stage.pitch)))
            arithmetic.add(sums.sums, sums.partial, c, upper, up, lower, down)
            if DEBUG:
                if dump != 0:
                    here = dump + uint64(offset)
                    st_global_v4(here, upper[0], upper[1], upper[2], upper[3])
                    here = here + uint64(2 * ROW_BYTES)
                    st_global_v4(here, lower[0], lower[1], lower[2], lower[3])

    @cuda.jit(device=True, forceinline=True)
    def add_step(sums, slot, i, n, r, place, tiles, dump):
        owner = uint32(place.first_lane + int32(i))
        here = place.part < runs_of(r, i)  # else nothing was loaded
        for j in range(stage.step):
            for s in range(layout.sides_per_lane):
                m = (n * stage.step + j) * layout.sides_per_lane + s
                up, down = arithmetic.fetch(tiles.word_a[m], tiles.word_b[m], owner)
                if here:
                    dump_here = dump
                    if DEBUG:
                        if dump != 0:
                            run = (r * layout.parts + place.part) * layout.chunk_lanes + i
                            k = int32(run * layout.run + n * stage.step + j)
                            dump_here = global_at(dump, k, 4 * ROW_BYTES)
                    add_tile(sums, shared_at(slot, j, stage.slot), place, s, up, down, dump_here)

    return add_tile, add_step


@cuda.jit(device=True, inline="always")
def dump_of(debug, debug_row, row):
    """Where the tiles of ``row`` go for debug=1: ``debug`` if it is the row that was asked for, else 0."""
    if row.valid and row.number == debug_row:
        return uint64(debug)
    return uint64(0)

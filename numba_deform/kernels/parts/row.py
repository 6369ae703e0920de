"""What every kernel does with a row: find its lanes, read a run of samples, write the output.

``row_parts`` makes these as device functions for one configuration; a kernel is the loop between them.
"""

import functools
from collections import namedtuple
from typing import NamedTuple

from numba import cuda, float32, int32, uint32

from ...device.integer import div_u32, rem_u32
from ...device.memory import global_at
from ..problem import ITEMSIZE
from .accumulate import ARITHMETIC
from .lanes import lane_layout, sum_over_lanes
from .sampling import LOCATE, level_finder, number_loader

# Where a thread stands: lane and warp, its row in the block, and its part of that row (lanes.py);
# ``first_lane`` is the first of the lanes that prepare runs for this side and part.
Place = namedtuple("Place", ["lane", "warp", "row", "chunk", "side", "part", "first_lane"])
# A run as it was read, in 32-bit words of its type; and the numbers in it: interleaved x, y and the
# attention weights.
Raw = namedtuple("Raw", ["xy", "attention"])
Run = namedtuple("Run", ["xy", "attention"])
# fp32 sums of a lane's channels, and packed ones that are flushed into them.
Sums = namedtuple("Sums", ["sums", "partial"])
# Which row of the problem: its batch, head, number among all rows, and whether it exists.
Row = namedtuple("Row", ["batch", "head", "number", "valid"])


class RowParts(NamedTuple):
    """Device functions, in the order in which a kernel calls them."""

    place: object  # (thread) -> Place
    new_sums: object  # () -> Sums, all zero
    clear: object  # (sums): zero again; ``partial`` is as it started
    new_raw: object  # () -> Raw, empty
    # (locations, weights, row, r, place, raw) -> (level, mine): reads this lane's run of round r; not
    # ``mine``: all samples are through, weights are 0
    read_run: object
    unpack: object  # (raw) -> Run; waits for what was read
    sample: object  # (run, k, width, height, mine) -> (x, fx, y, fy, attention) of the run's sample k
    write_row: object  # (out, row, place, sums)


@functools.cache
def sum_parts(arithmetic, chunks):
    """``new_sums`` and ``clear`` of :class:`RowParts` for so many chunks of an Arithmetic."""
    SUMS, PARTIAL, start = arithmetic.words * chunks, 4 * chunks, arithmetic.start

    @cuda.jit(device=True, forceinline=True)
    def zero(sums):
        for i in range(SUMS):
            sums[i] = float32(0)

    @cuda.jit(device=True, inline="always")
    def new_sums():
        sums = cuda.local.array(SUMS, float32)
        partial = cuda.local.array(PARTIAL, uint32)
        zero(sums)
        start(partial)
        return Sums(sums, partial)

    @cuda.jit(device=True, forceinline=True)
    def clear(sums):
        zero(sums.sums)

    return new_sums, clear


@functools.cache
def run_parts(run, location_dtype, weight_dtype):
    """(new_raw, load_run(locations, weights, raw), unpack) for runs of so many samples: ``load_run`` takes the
    addresses of a run's first numbers, the others are those of :class:`RowParts`."""
    COORDINATES = 2 * run
    XY_WORDS, load_locations, convert_locations = number_loader(location_dtype, COORDINATES)
    ATTENTION_WORDS, load_weights, convert_weights = number_loader(weight_dtype, run)
    RUN = run

    @cuda.jit(device=True, inline="always")
    def new_raw():
        xy = cuda.local.array(XY_WORDS, uint32)
        attention = cuda.local.array(ATTENTION_WORDS, uint32)
        return Raw(xy, attention)

    @cuda.jit(device=True, forceinline=True)
    def load_run(locations, weights, raw):
        load_locations(locations, raw.xy)
        load_weights(weights, raw.attention)

    @cuda.jit(device=True, inline="always")
    def unpack(raw):
        xy = cuda.local.array(COORDINATES, float32)
        attention = cuda.local.array(RUN, float32)
        convert_locations(raw.xy, xy)
        convert_weights(raw.attention, attention)
        return Run(xy, attention)

    return new_raw, load_run, unpack


@functools.cache
def row_parts(config, constants):
    """:class:`RowParts` for a configuration and the ``Constants`` it is compiled for."""
    layout = lane_layout(config.lanes, constants)
    ROW_SHIFT = layout.lanes.bit_length() - 1
    SIDE_SHIFT = layout.chunk_lanes.bit_length() - 1
    PART_SHIFT = SIDE_SHIFT + layout.sides.bit_length() - 1
    SAMPLES, locate, level_of = constants.samples, LOCATE[constants.method], level_finder(constants)
    ROW_BYTES = constants.channels * ITEMSIZE[constants.dtype]
    LOCATION_BYTES = 2 * ITEMSIZE[constants.location_dtype]
    WEIGHT_BYTES = ITEMSIZE[constants.weight_dtype]
    dtypes = constants.location_dtype, constants.weight_dtype
    new_raw, load_run, unpack = run_parts(layout.run, *dtypes)
    arithmetic = ARITHMETIC[constants.dtype, config.arithmetic]
    store, SUMS = arithmetic.store, arithmetic.words * layout.chunks_per_lane
    new_sums, clear = sum_parts(arithmetic, layout.chunks_per_lane)

    @cuda.jit(device=True, inline="always")
    def place(thread):
        lane, sub = int32(thread & 31), int32(thread & (layout.lanes - 1))
        chunk, side = int32(sub & (layout.chunk_lanes - 1)), int32((sub >> SIDE_SHIFT) & (layout.sides - 1))
        warp, row, part = int32(thread >> 5), int32(thread >> ROW_SHIFT), int32(sub >> PART_SHIFT)
        return Place(lane, warp, row, chunk, side, part, int32(lane - chunk))

    @cuda.jit(device=True, forceinline=True)
    def read_run(locations, weights, row, r, place, raw):
        run = (r * layout.parts + place.part) * layout.chunk_lanes + place.chunk
        first = int32(run * layout.run)
        mine = first < SAMPLES
        first = min(first, int32(SAMPLES - layout.run))
        sample = global_at(first, row.number, SAMPLES)
        location = global_at(locations, sample, LOCATION_BYTES)
        load_run(location, global_at(weights, sample, WEIGHT_BYTES), raw)
        return level_of(first), mine

    @cuda.jit(device=True, forceinline=True)
    def sample(run, k, width, height, mine):
        x, fx, inside_x = locate(run.xy[2 * k], width)
        y, fy, inside_y = locate(run.xy[2 * k + 1], height)
        return x, fx, y, fy, run.attention[k] if mine and inside_x and inside_y else float32(0)

    @cuda.jit(device=True, forceinline=True)
    def write_row(out, row, place, sums):
        sum_over_lanes(sums.sums, SUMS, layout.chunk_lanes, layout.lanes)
        target = global_at(out, row.number, ROW_BYTES)
        for c in range(layout.chunks_per_lane):
            chunk = place.chunk + int32(c * layout.chunk_lanes)
            if row.valid and place.side == 0 and place.part == 0 and chunk < layout.chunks:
                store(global_at(target, chunk, 16), sums.sums, c)

    return RowParts(place, new_sums, clear, new_raw, read_run, unpack, sample, write_row)


@cuda.jit(device=True, inline="always")
def item_count(batches, rows_per_batch, rows_per_item):
    """Items of ``rows_per_item`` rows; every batch has whole items, so an item needs one batch's maps."""
    return int32(batches * int32(div_u32(rows_per_batch + int32(rows_per_item - 1), rows_per_item)))


@cuda.jit(device=True, inline="always")
def item_row(item, row, batches, rows_per_batch, heads, rows_per_item, abreast):
    """The :class:`Row` with number ``row`` of an item.

    Items take turns among ``abreast`` batches, so that those under way together read different planes:
    the rows of one plane crowd on few L2 lines where its levels are small. A row that does not exist
    stands for the batch's last: spare lanes work along, so that every warp is whole, and write nothing.
    """
    items = div_u32(rows_per_batch + int32(rows_per_item - 1), rows_per_item)  # of one batch
    group = div_u32(item, uint32(abreast) * items)
    inside = uint32(item) - group * uint32(abreast) * items
    width = min(int32(abreast), int32(batches - int32(group) * int32(abreast)))
    batch = int32(int32(group) * int32(abreast) + int32(rem_u32(inside, width)))
    row = int32(int32(div_u32(inside, width)) * int32(rows_per_item) + row)
    valid = row < rows_per_batch
    row = min(row, int32(rows_per_batch - 1))
    return Row(batch, int32(rem_u32(row, heads)), int32(batch * rows_per_batch + row), valid)


def items(problem, rows_per_item):
    """``item_count`` on the host, for a problem."""
    return problem.batch * -(-problem.queries * problem.heads // rows_per_item)

"""What a consumer warp of ``window.py`` does: its jobs, where their samples lie, how they are added up."""

import functools
from collections import namedtuple
from typing import NamedTuple

from numba import cuda, float32, int32, uint32, uint64

from ..compiler import static_range
from ..device.float32 import add_rm_f32
from ..device.half2 import (
    cvt_rn_bf16x2_f32,
    cvt_rn_f16x2_f32,
    dup_hi_b16x2,
    dup_lo_b16x2,
    fma_rn_f16x2,
    mov_b32_f32,
    mov_f32_b32,
)
from ..device.integer import quotient
from ..device.memory import (
    global_at,
    ld_global_nc_b32,
    ld_global_nc_v4,
    ld_shared_v2,
    ld_shared_v4,
    shared_at,
    st_shared_v2,
    st_shared_v4,
)
from ..device.pipeline import first_state, make_advance, release, wait
from ..device.sync import lane, shfl_sync_idx_b32, warp
from .parts.accumulate import ALL, ARITHMETIC
from .parts.row import run_parts, sum_parts
from .parts.sampling import clamp, corner_weights, load_level, locate, number_loader
from .problem import ITEMSIZE

# What the schedule says of an item; a warp's share of it: a group of rows, and which round of their samples.
Item = namedtuple("Item", "batch head cell count")
Job = namedtuple("Job", "item group round what")
# A consumer thread: its lane, the row and chunk that it adds up, the shared address of its warp's prepared
# samples, the bytes by which its row's first column differs, and the mask LAST.
Place = namedtuple("Place", "lane row chunk samples odd last")
# One column of all tiles: what a tile's address in the stage is added to, and the bit that it then has.
Column = namedtuple("Column", "base bit")
# What a thread needs for a job. The first sample of its runs, whether it has any, and their level. The level's
# window: a sample lies scale * location + shift pixels from its corner; between low and high it has neighbours
# in the level; its size, and the pixels before it in the stage. The columns that are read first and second.
View = namedtuple("View", "sample mine level scale shift low high box_height box_width offset first second")
MINUS_ONES = 0xBC00BC00  # two fp16 numbers
UPPER, LAST = 0xFFFFF000, 0xFFF  # a tile's number is the last: shared memory has room for 3632 pixels
ACROSS, ACROSS_BITS = 2.0**11, 0x45000000  # an fp32 number, whose last 12 bits are 4096ths
WHOLE = 4095 / 4096  # all of these bits
ROUND, ROUND_BITS = 1.5 * 2**23, 0x4B400000  # an fp32 number between 2^23 and 2^24, and its bits
CORNER_BYTES = 16  # of a window: left, top; width and height of the level


class Layout(NamedTuple):
    """How a warp shares its rows; all compile-time."""

    lanes: int  # of a row, each with 16 bytes of its channels
    owned: int  # rows of which a lane prepares samples, a run of each
    run: int  # neighbouring samples of one level that a lane reads at once
    rounds: int  # how often, until all samples of a row are through
    each: int  # samples of a run that are prepared at a time

    rows = property(lambda self: 32 // self.lanes)
    owners = property(lambda self: self.lanes * self.owned, doc="Lanes that prepare a row's samples.")
    prepared = property(lambda self: self.owned * self.run, doc="Samples that a lane prepares in a round.")
    together = property(
        lambda self: self.each * self.owners, doc="Samples of a row that are prepared at a time."
    )


def layout(constants):
    """The :class:`Layout` for a ``problem.Constants`` with pixels of 64 or 128 bytes."""
    lanes = constants.channels * ITEMSIZE[constants.dtype] // 16
    samples = constants.levels * constants.points
    runs = [n for n in (1, 2, 4) if constants.points % n == 0]
    shares = [(owned, run) for owned in (1, 2) for run in runs]

    def cost(share):
        """Rounds, each as dear as several samples; samples that a lane prepares; loads for a job's locations,
        each of which touches lines of 8 rows, or where a lane has two rows, of 4."""
        owned, run = share
        rounds = -(-samples // (owned * run * lanes))
        return rounds, rounds * owned * run, -owned

    owned, run = min(shares, key=cost)
    each = min(run, max(8 // (lanes * owned), 1))
    return Layout(lanes, owned, run, -(-samples // (owned * run * lanes)), each)


def sample_words(arithmetic):
    """32-bit words of one prepared sample: the number of its tile, and what makes its weights."""
    return 2 if arithmetic == "packed" else 4


# How a sample is prepared, and what comes of it: encode(tile, across, attention, fy) -> words, and
# decode(words, LAST) -> weights of the line above, of the column read first and of the other, and of the line
# below, ready for ``Arithmetic.add``. ``across`` is how much of a line weighs the column that is read second.
@cuda.jit(device=True, forceinline=True)
def _encode_fp32(tile, across, attention, fy):
    down = float32(attention * fy)
    return tile, mov_b32_f32(across), mov_b32_f32(float32(attention - down)), mov_b32_f32(down)


@cuda.jit(device=True, forceinline=True)
def _decode_fp32(words, last):
    across, up, down = mov_f32_b32(words[1]), mov_f32_b32(words[2]), mov_f32_b32(words[3])
    later, other_later = float32(up * across), float32(down * across)
    return float32(up - later), later, float32(down - other_later), other_later


@cuda.jit(device=True, forceinline=True)
def _encode_f16(tile, across, attention, fy):
    down = float32(attention * fy)
    lines = cvt_rn_f16x2_f32(float32(attention - down), down)
    return uint32(tile | cvt_rn_f16x2_f32(float32(0), float32(-across))), lines


@cuda.jit(device=True, forceinline=True)
def _decode_f16(words, last):
    lines = words[1]
    earlier = fma_rn_f16x2(lines, dup_hi_b16x2(words[0]), lines)
    rest = fma_rn_f16x2(earlier, uint32(MINUS_ONES), lines)
    return dup_lo_b16x2(earlier), dup_lo_b16x2(rest), dup_hi_b16x2(earlier), dup_hi_b16x2(rest)


@cuda.jit(device=True, forceinline=True)
def _encode_bf16(tile, across, attention, fy):
    """Two floats, what both lines weigh. Their last bits, which bf16 does not show, are the tile's number and
    ``across``."""
    down = float32(attention * fy)
    up, across = float32(attention - down), float32(across * float32(WHOLE) + float32(ACROSS))
    line = uint32(mov_b32_f32(down) & uint32(UPPER))
    return uint32(mov_b32_f32(up) & uint32(UPPER) | tile), uint32(line | mov_b32_f32(across) & uint32(LAST))


@cuda.jit(device=True, forceinline=True)
def _decode_bf16(words, last):
    up, down = mov_f32_b32(words[0]), mov_f32_b32(words[1])
    across = float32(mov_f32_b32(uint32(words[1] & last | uint32(ACROSS_BITS))) - float32(ACROSS))
    later, other_later = float32(up * across), float32(down * across)
    earlier = cvt_rn_bf16x2_f32(float32(up - later), float32(down - other_later))
    rest = cvt_rn_bf16x2_f32(later, other_later)
    return dup_lo_b16x2(earlier), dup_lo_b16x2(rest), dup_hi_b16x2(earlier), dup_hi_b16x2(rest)


PACKED = {"float16": (_encode_f16, _decode_f16), "bfloat16": (_encode_bf16, _decode_bf16)}


def samples_bytes(config, constants):
    """Bytes of the prepared samples of a warp."""
    shape = layout(constants)
    return 4 * sample_words(config.arithmetic) * shape.together * shape.rows


def window_bytes(boxes, constants):
    """Bytes of each level's window, (height, width) in ``boxes``; each starts on 128 bytes."""
    pixel = constants.channels * ITEMSIZE[constants.dtype]
    return [-(-height * width * pixel // 128) * 128 for height, width in boxes]


@functools.cache
def choice(values):
    """A device function that returns ``values[i]``, folded to a constant where i is one."""
    LAST = len(values) - 1

    @cuda.jit(device=True, forceinline=True)
    def chosen(i):
        value = int32(values[LAST])
        for number in static_range(LAST):
            if i == number:
                value = int32(values[number])
        return value

    return chosen


@cuda.jit(device=True, forceinline=True)
def item_of(words):
    return Item(int32(words[0]), int32(words[1]), int32(words[2]), int32(words[3]))


@cuda.jit(device=True, forceinline=True)
def read_item(plan, item):
    """An item, from whatever has the address of the ``schedule``."""
    return item_of(ld_global_nc_v4(global_at(plan.schedule, item, 16)))


def jobs(config, constants):
    """Device functions (settle(plan, job), following(job), row_number(plan, job, row))."""
    ROWS, ROUNDS, CONSUMERS = layout(constants).rows, layout(constants).rounds, config.consumers

    @cuda.jit(device=True, forceinline=True)
    def settle(plan, job):
        """The job itself, or the first of a later item if the item has no such group."""
        item, group, what = job.item, job.group, job.what
        while item < plan.items and group * ROWS >= what.count:
            group = int32(group - quotient(what.count + int32(ROWS - 1), ROWS))
            item = int32(item + plan.stride)
            if item < plan.items:
                what = read_item(plan, item)
        return Job(item, group, job.round, what)

    @cuda.jit(device=True, forceinline=True)
    def following(job):
        """This warp's next job in the same item, if it has one there."""
        if job.round + 1 < ROUNDS:
            return Job(job.item, job.group, int32(job.round + 1), job.what)
        return Job(job.item, int32(job.group + CONSUMERS), int32(0), job.what)

    @cuda.jit(device=True, forceinline=True)
    def row_number(plan, job, row):
        """The number of a job's row among all rows."""
        what = job.what
        place = min(int32(job.group * int32(ROWS) + row), int32(what.count - 1))
        place = what.cell * plan.slots + max(place, int32(0))
        query = int32(ld_global_nc_b32(global_at(plan.order, place, 4)))
        return int32((what.batch * plan.queries + query) * plan.heads + what.head)

    return settle, following, row_number


@cuda.jit(device=True, forceinline=True)
def kept(word):
    """The word, by a shuffle: else the compiler makes it anew wherever it is needed."""
    return shfl_sync_idx_b32(uint32(ALL), word, uint32(lane()))


@cuda.jit(device=True, forceinline=True)
def floor_near(x):
    """(floor of x, what it leaves) for a small x; any number past 2^22 for others and for no number."""
    shifted = add_rm_f32(x, float32(ROUND))  # fp32 has no bits for a fraction there
    floor = float32(shifted - float32(ROUND))
    return uint32(mov_b32_f32(shifted) - uint32(ROUND_BITS)), float32(x - floor)


@functools.cache
def turned_runs(constants):
    """Device functions (new_raw, load_run(locations, weights, lane, raw), unpack, turn(raw, lane), sample_of(k,
    lane)) for a lane's run; the first and third are those of ``run_parts``.

    A run of 32 bytes takes two loads. L1 serves eight lanes at once, whose runs fill two of its lines: four of
    these lanes read their later half first, so that together they reach all banks. What such a lane prepares as
    its sample k is sample_of(k, lane) of the run, and turn() puts the weights that it has read into that order.
    """
    RUN, types = layout(constants).run, (constants.location_dtype, constants.weight_dtype)
    new_raw, load, unpack = run_parts(RUN, *types)
    load_weights = number_loader(constants.weight_dtype, RUN).load
    TURNS, HALF = 2 * RUN * ITEMSIZE[constants.location_dtype] == 32, RUN // 2

    @cuda.jit(device=True, forceinline=True)
    def load_run(locations, weights, lane, raw):
        if TURNS:
            later, words = uint64(uint32(lane & int32(4)) << uint32(2)), raw.xy
            words[0], words[1], words[2], words[3] = ld_global_nc_v4(locations + later)
            words[4], words[5], words[6], words[7] = ld_global_nc_v4(locations + (uint64(16) - later))
            load_weights(weights, raw.attention)
        else:
            load(locations, weights, raw)

    @cuda.jit(device=True, forceinline=True)
    def turn(raw, lane):
        words = raw.attention
        for i in range(len(words) // 2 if TURNS else 0):
            one, other = words[i], words[i + len(words) // 2]
            words[i] = other if lane & int32(4) else one
            words[i + len(words) // 2] = one if lane & int32(4) else other

    @cuda.jit(device=True, forceinline=True)
    def sample_of(k, lane):
        return uint32(k ^ uint32(HALF)) if TURNS and lane & uint32(4) else uint32(k)

    return new_raw, load_run, unpack, turn, sample_of


def consumer(config, constants):
    """The device function consume(..): adds up this warp's rows of each item, once its windows are there."""
    shape, boxes = layout(constants), config.level_boxes(constants.levels)
    LANES, OWNED, RUN, ROUNDS, EACH = shape
    ROWS, OWNERS, TOGETHER, PARTS = shape.rows, shape.owners, shape.together, RUN // EACH
    ROW_SHIFT, OWNER_SHIFT = LANES.bit_length() - 1, OWNERS.bit_length() - 1
    LEVELS, POINTS = constants.levels, constants.points
    SAMPLES, PIXEL = LEVELS * POINTS, constants.channels * ITEMSIZE[constants.dtype]
    SPLIT, EVEN = PIXEL == 64, ROUNDS * OWNERS * RUN == SAMPLES  # no lane without a run
    LOCATION_BYTES, WEIGHT_BYTES = 2 * ITEMSIZE[constants.location_dtype], ITEMSIZE[constants.weight_dtype]
    sizes = window_bytes(boxes, constants)
    WINDOW_BYTES = sum(sizes)
    pixels_before = choice(tuple(sum(sizes[:i]) // PIXEL for i in range(LEVELS)))
    height_of, width_of = (choice(tuple(box[axis] for box in boxes)) for axis in (0, 1))
    pitch_of = choice(tuple(width * PIXEL for _, width in boxes))
    # Of an address; the rest comes from a word's upper half, or is the bit of its column.
    ADDRESS = 0x3FFFF & ~(PIXEL if SPLIT else 0)
    words, arithmetic = sample_words(config.arithmetic), ARITHMETIC[constants.dtype, config.arithmetic]
    WIDE, LINES = words == 4, arithmetic.add_lines is not None
    ENTRY, META = 4 * words, samples_bytes(config, constants)
    slots = 32 // words  # prepared samples that shared memory takes or gives at once
    # Owners with the same order of rows; rows that are written at once.
    ALIKE, TURN = max(slots // ROWS, 1), max(slots // OWNERS, 1)
    new_raw, load_run, unpack_run, turn, _ = turned_runs(constants)
    encode, decode = (_encode_fp32, _decode_fp32) if WIDE else PACKED[constants.dtype]
    new_sums, clear = sum_parts(arithmetic, 1)
    settle, following, row_number = jobs(config, constants)
    add_outside, advance = outside(config, constants), make_advance(config.stages)

    @cuda.jit(device=True, forceinline=True)
    def place(shared):
        row, chunk, odd = int32(lane() >> ROW_SHIFT), int32(lane() & (LANES - 1)), uint32(0)
        if SPLIT:
            odd = kept(uint32((row & 1) * PIXEL))
        last = uint32(LAST | kept(uint32(lane())) >> uint32(5))  # which is 0, but not to the compiler
        return Place(lane(), row, chunk, shared_at(shared.samples, warp(), META), odd, last)

    @cuda.jit(device=True, forceinline=True)
    def owner_of(lane):
        """Which of the lanes that prepare a row's samples this one is."""
        return int32(lane & (OWNERS - 1))

    @cuda.jit(device=True, inline="always")
    def new_raws():
        """Room for a lane's two runs; where it has one, that is there twice."""
        raw = new_raw()
        return (raw, raw) if OWNED == 1 else (raw, new_raw())

    @cuda.jit(device=True, inline="always")
    def unpack_runs(raws, me):
        for i in range(OWNED):
            turn(raws[i], me.lane)
        run = unpack_run(raws[0])
        return (run, run) if OWNED == 1 else (run, unpack_run(raws[1]))

    @cuda.jit(device=True, forceinline=True)
    def read_run(data, number, first, me, raw):
        sample = uint64(number) * uint64(SAMPLES) + uint64(first)
        location = global_at(data.locations, sample, LOCATION_BYTES)
        load_run(location, global_at(data.weights, sample, WEIGHT_BYTES), me.lane, raw)

    @cuda.jit(device=True, forceinline=True)
    def read_runs(data, number, r, me, raws):
        """Reads a lane's runs of round r; ``number`` is its own row's, a lane of the other row has that's."""
        first = min(int32((r * OWNERS + owner_of(me.lane)) * RUN), int32(SAMPLES - RUN))
        if OWNED == 1:
            read_run(data, number, first, me, raws[0])
        else:
            other = int32(cuda.shfl_xor_sync(ALL, number, LANES))
            own_is_first = me.lane & int32(LANES) == 0
            read_run(data, number if own_is_first else other, first, me, raws[0])
            read_run(data, other if own_is_first else number, first, me, raws[1])

    @cuda.jit(device=True, forceinline=True)
    def columns(base, odd):
        """The columns that a row reads first and second, for the address of its chunk of the stage: with SPLIT
        the tile's even and its odd one, in the order of the row's parity, and else the left and the right."""
        even = uint32(uint32(PIXEL) - odd)
        if SPLIT:
            return Column(uint32(base + even), odd), Column(uint32(base + odd), even)
        return Column(base, odd), Column(uint32(base + even), odd)

    @cuda.jit(device=True, forceinline=True)
    def look(shared, state, me, r):
        """The View of a stage for round r."""
        stage = shared_at(shared.windows, state.stage, WINDOW_BYTES)
        first, second = columns(shared_at(stage, me.chunk, 16), me.odd)
        sample, mine = int32((r * OWNERS + owner_of(me.lane)) * RUN), True
        if not EVEN:
            mine = sample < SAMPLES
            sample = min(sample, int32(SAMPLES - RUN))
        level = quotient(sample, POINTS)
        corner = ld_shared_v4(shared_at(shared.corners, state.stage * LEVELS + level, CORNER_BYTES))
        left, top = float32(int32(corner[0])), float32(int32(corner[1]))
        scale = float32(int32(corner[2])), float32(int32(corner[3]))
        low = float32(float32(-1) - left), float32(float32(-1) - top)
        shift = float32(low[0] + float32(0.5)), float32(low[1] + float32(0.5))
        high = float32(scale[0] - left), float32(scale[1] - top)
        box = height_of(level), width_of(level), pixels_before(level)
        return View(sample, mine, level, scale, shift, low, high, *box, first, second)

    @cuda.jit(device=True, forceinline=True)
    def entry(samples, owner, e, row):
        """Where sample e of those that lane ``owner`` of a row prepares stands. Lanes that write at once
        reach different banks, and so do rows that read at once."""
        turned = int32(row % OWNED * (ROWS // OWNED) + row // OWNED)  # rows written at once are neighbours
        swizzled = turned ^ int32((owner // ALIKE) * TURN & (ROWS - 1))
        return shared_at(samples, int32((e * OWNERS + owner) * ROWS) + swizzled, ENTRY)

    @cuda.jit(device=True, forceinline=True)
    def put(place, here, nowhere, words):
        """One prepared sample, that weighs nothing, at tile ``nowhere``, if it is not ``here``."""
        zero, number = uint32(0), words[0] if here else uint32(nowhere)
        if WIDE:
            st_shared_v4(place, number, words[1] if here else zero, words[2] if here else zero,
                         words[3] if here else zero)  # fmt: skip
        else:
            st_shared_v2(place, number, words[1] if here else zero)

    @cuda.jit(device=True, forceinline=True)
    def prepare(run, i, k, me, at, lost):
        """Sample k of a lane's run i, into shared memory; a bit of ``lost`` if its window does not hold it."""
        row = int32((me.lane >> OWNER_SHIFT) * OWNED + i)
        x = float32(run.xy[2 * k] * at.scale[0] + at.shift[0])
        y = float32(run.xy[2 * k + 1] * at.scale[1] + at.shift[1])
        column, fx = floor_near(x)
        line, fy = floor_near(y)
        attention = run.attention[k] if at.mine else float32(0)
        # Unsigned: what lies left of the window, or is no number, is far on its right.
        here = column < uint32(at.box_width - 1) and line < uint32(at.box_height - 1)
        tile = int32(int32(line) * at.box_width + int32(column) + at.offset)
        right_first = SPLIT and (tile ^ row) & int32(1) == 1
        across = float32(float32(1) - fx) if right_first else fx
        place = entry(me.samples, owner_of(me.lane), int32(k % EACH), row)
        put(place, here, at.offset, encode(uint32(tile), across, attention, fy))
        near = at.low[0] < x and x < at.high[0] and at.low[1] < y and y < at.high[1]
        if near and attention != float32(0) and not here:
            lost[0] = uint32(lost[0] | uint32(1 << (i * RUN + k)))

    @cuda.jit(device=True, forceinline=True)
    def pixel_at(column, word):
        """The address of a pixel of a tile, whose number is the lower half of ``word``."""
        return uint32(uint32(column.base + word * uint32(PIXEL)) & uint32(ADDRESS) | column.bit)

    @cuda.jit(device=True, forceinline=True)
    def add_tile(acc, me, at, place, pitch):
        words = ld_shared_v4(place) if WIDE else ld_shared_v2(place)
        up, later, down, rest = decode(words, me.last)
        first, second = pixel_at(at.first, words[0]), pixel_at(at.second, words[0])
        one, other = ld_shared_v4(first), ld_shared_v4(second)
        if not LINES:
            arithmetic.add(acc.sums, acc.partial, 0, one, up, other, later)
        below, beside = ld_shared_v4(shared_at(first, 1, pitch)), ld_shared_v4(shared_at(second, 1, pitch))
        if LINES:
            arithmetic.add_lines(acc.sums, acc.partial, 0, one, up, other, later, below, down, beside, rest)
        else:
            arithmetic.add(acc.sums, acc.partial, 0, below, down, beside, rest)

    @cuda.jit(device=True, forceinline=True)
    def add_sample(acc, me, at, part, s, r):
        """Sample s of those that each row has prepared in a part of round r, if there is one."""
        owner, e = s // EACH, s % EACH
        last = ((ROUNDS - 1) * OWNERS + owner) * RUN + part * EACH + e  # its number in the last round
        place = entry(me.samples, int32(owner), int32(e), me.row)
        if ROUNDS == 1:
            if last < SAMPLES:
                add_tile(acc, me, at, place, pitch_of(min(owner * RUN // POINTS, LEVELS - 1)))
        elif last < SAMPLES or r < int32(ROUNDS - 1):
            level = quotient((r * int32(OWNERS) + int32(owner)) * int32(RUN), POINTS)
            add_tile(acc, me, at, place, pitch_of(level))

    @cuda.jit(device=True, forceinline=True)
    def consume(ring, shared, plan, data, out):
        me, item = place(shared), int32(cuda.blockIdx.x)
        acc, raws, lost = new_sums(), new_raws(), cuda.local.array(1, uint32)
        what = read_item(plan, min(item, int32(plan.items - 1)))
        job = settle(plan, Job(item, warp(), int32(0), what))
        number = row_number(plan, job, me.row)
        read_runs(data, number, job.round, me, raws)
        state, seen = first_state(), int32(-1)  # the item whose stage this warp has waited for
        while item < plan.items:
            if item != seen:
                wait(ring, state)
                seen = item
            if item != job.item:  # the warp has no job there, or no other
                cuda.syncwarp()  # all lanes have read the stage
                if me.lane == 0:
                    release(ring, state)
                state = advance(state)
                item = int32(item + plan.stride)
            else:
                runs, at = unpack_runs(raws, me), look(shared, state, me, job.round)
                # The next job's locations are read while this one is added up.
                coming = settle(plan, following(job))
                next_number = row_number(plan, coming, me.row)
                lost[0] = uint32(0)
                for part in static_range(PARTS):
                    if part == PARTS // 2:
                        read_runs(data, next_number, coming.round, me, raws)
                    for i in static_range(OWNED):
                        for k in static_range(part * EACH, part * EACH + EACH):
                            prepare(runs[i], i, k, me, at, lost)
                    cuda.syncwarp()  # the samples are prepared
                    for s in static_range(TOGETHER):
                        add_sample(acc, me, at, part, s, job.round)
                    arithmetic.flush(acc.sums, acc.partial, 1)
                    cuda.syncwarp()  # and may be overwritten
                if cuda.any_sync(ALL, lost[0] != 0):
                    add_outside(acc, me, at, data, job, number, lost)
                if job.round == ROUNDS - 1:
                    if job.group * int32(ROWS) + me.row < job.what.count:
                        row = global_at(out, number, PIXEL)
                        arithmetic.store(global_at(row, me.chunk, 16), acc.sums, 0)
                    clear(acc)
                job, number = coming, next_number

    return consume


def outside(config, constants):
    """The device function add_outside(acc, place, view, data, job, number, lost): adds the samples that no
    window holds, from global memory. ``lost`` has a bit for each sample of this lane's runs; ``number`` is that
    of this lane's own row."""
    shape, PIXEL = layout(constants), constants.channels * ITEMSIZE[constants.dtype]
    ROWS, RUN, OWNED = shape.rows, shape.run, shape.owned
    ROW_SHIFT, OWNER_SHIFT = shape.lanes.bit_length() - 1, shape.owners.bit_length() - 1
    SAMPLES = constants.levels * constants.points
    LOCATION_BYTES = 2 * ITEMSIZE[constants.location_dtype]
    WEIGHT_BYTES, sample_of = ITEMSIZE[constants.weight_dtype], turned_runs(constants)[-1]
    new_one, load_one, unpack_one = run_parts(1, constants.location_dtype, constants.weight_dtype)
    arithmetic = ARITHMETIC[constants.dtype, config.arithmetic]

    @cuda.jit(device=True, forceinline=True)
    def owned_row(lane, i):
        """The row of run i of a lane."""
        return int32((lane >> OWNER_SHIFT) * OWNED + i)

    @cuda.jit(device=True, forceinline=True)
    def load_pixel(plane, pixel_bytes, start, stride, column, line, width, height, mine):
        """This lane's chunk of a pixel from global memory, if it is ``mine``; zeros outside the level."""
        inside = mine and 0 <= column and column < width and 0 <= line and line < height
        pixel = start + clamp(line, 0, height - 1) * stride + clamp(column, 0, width - 1)
        words = uint32(0), uint32(0), uint32(0), uint32(0)
        if inside:  # most lanes ask for nothing
            words = ld_global_nc_v4(plane + uint64(uint32(pixel)) * uint64(pixel_bytes))
        return words

    @cuda.jit(device=True, forceinline=True)
    def add_sample(acc, plane, data, level, sample, mine):
        """The row's sample from global memory, added by the row's lanes."""
        raw, (height, width, start, stride) = new_one(), load_level(data.levels, level)
        location = global_at(data.locations, sample, LOCATION_BYTES)
        load_one(location, global_at(data.weights, sample, WEIGHT_BYTES), raw)
        one, bytes = unpack_one(raw), data.pixel_bytes
        x, fx, _ = locate(one.xy[0], width)
        y, fy, _ = locate(one.xy[1], height)
        right, below = int32(x + 1), int32(y + 1)
        # All four are asked for before the first is waited for, by all lanes: they ask for the same.
        p = load_pixel(plane, bytes, start, stride, x, y, width, height, mine)
        q = load_pixel(plane, bytes, start, stride, right, y, width, height, mine)
        u = load_pixel(plane, bytes, start, stride, x, below, width, height, mine)
        v = load_pixel(plane, bytes, start, stride, right, below, width, height, mine)
        up, down = corner_weights(one.attention[0], fx, fy, int32(0))
        up, down = arithmetic.unpack(*arithmetic.pack(up, down))
        arithmetic.add(acc.sums, acc.partial, 0, p, up, u, down)
        up, down = corner_weights(one.attention[0], fx, fy, int32(1))
        up, down = arithmetic.unpack(*arithmetic.pack(up, down))
        arithmetic.add(acc.sums, acc.partial, 0, q, up, v, down)
        arithmetic.flush(acc.sums, acc.partial, 1)  # there may be many: too many for packed sums

    @cuda.jit(device=True, forceinline=True)
    def add_outside(acc, me, at, data, job, number, lost):
        what, bits = job.what, lost[0]
        for i in range(OWNED):
            place = job.group * int32(ROWS) + owned_row(me.lane, int32(i))
            if place >= what.count:  # a copy of the cell's last row, not stored
                bits = uint32(bits & ~uint32(((1 << RUN) - 1) << (i * RUN)))
        plane = data.value + uint64(what.batch) * uint64(data.spatial_size) * uint64(data.pixel_bytes)
        plane = plane + uint64(what.head * int32(PIXEL) + me.chunk * int32(16))
        lanes = uint32(cuda.ballot_sync(ALL, bits != 0))
        while lanes != 0:
            owner = uint32(cuda.ffs(int32(lanes)) - 1)
            lanes = uint32(lanes & uint32(lanes - uint32(1)))
            left = uint32(shfl_sync_idx_b32(uint32(ALL), uint32(bits), owner))
            level = int32(shfl_sync_idx_b32(uint32(ALL), uint32(at.level), owner))
            first = shfl_sync_idx_b32(uint32(ALL), uint32(at.sample), owner)
            while left != 0:
                bit = uint32(cuda.ffs(int32(left)) - 1)
                left = uint32(left & uint32(left - uint32(1)))
                row = owned_row(int32(owner), int32(bit // uint32(RUN)))
                rows = shfl_sync_idx_b32(uint32(ALL), uint32(number), uint32(row << int32(ROW_SHIFT)))
                sample = uint32(first + sample_of(bit % uint32(RUN), owner))
                sample = uint64(rows) * uint64(SAMPLES) + uint64(sample)
                add_sample(acc, plane, data, level, sample, me.row == row)

    return add_outside

"""window: a TMA instruction brings a large box of a level, and many nearby queries sample from it.

Queries are grouped into *cells*, window_fit.py: those whose reference points lie in one rectangle of the finest
level. Around each cell, every level has a *window*, a box that holds the pixels that nearly all of the cell's
samples need. One warp, a lane for each level, loads the windows of cell after cell into a ring of stages; the
others take the rows of a cell in groups of a warp:

    producer: for each item (batch, head, cell):     consumer: for each of its jobs:
                  acquire the stage                      release the stages of the items it has passed
                  ask for one box per level,             wait for the stage of this one
                  write down where it starts             add up the rows of its group

Inside a window nothing is checked: what lies outside the level arrived as zeros. A sample whose tile is not
in its window is loaded from global memory instead, and counted: where many are, other kernels are faster.

A row's lanes each take 16 bytes of a pixel. With pixels of 64 bytes two rows share the 128 bytes that shared
memory delivers at once, and would meet in the same banks half of the time: so even rows read a tile's
even column first, odd rows its odd one. Where a sample lies and what it weighs is prepared by one lane, and
goes through shared memory to the lanes of its row, which all read one address. Most lanes prepare samples of
their own row and of the one beside it, so that a load of locations reads whole lines.
"""

import dataclasses
import functools
from collections import namedtuple
from dataclasses import dataclass
from typing import NamedTuple

from numba import cuda, float32, int32, types, uint32, uint64

from ..compiler import i32, kernel, u64
from ..device.float32 import add_rm_f32
from ..device.half2 import cvt_rn_f16x2_f32, dup_hi_b16x2, fma_rn_f16x2, mov_b32_f32, mov_f32_b32
from ..device.integer import div_u32
from ..device.limits import SHARED_LIMIT
from ..device.marks import ACQUIRE, COMMIT, COMPUTE, ISSUE, RELEASE, WAIT, make_marks
from ..device.memory import (
    align_up,
    dynamic_bytes,
    ld_global_nc_b32,
    ld_global_nc_v4,
    ld_global_v4,
    ld_shared_v2,
    ld_shared_v4,
    red_add_gpu_global_u32,
    shared_address,
    st_shared_v2,
    st_shared_v4,
    static_bytes,
)
from ..device.pipeline import (
    Ring,
    acquire,
    commit,
    first_state,
    full_barrier,
    init_barriers,
    make_advance,
    release,
    wait,
)
from ..device.sync import bar_arrive, bar_sync, fence_mbarrier_init, shfl_sync_idx_b32
from ..engines.tensormap import L2_PROMOTIONS
from . import window_fit as windows
from .problem import ITEMSIZE, ConfigError
from .shared.accumulate import ALL, ARITHMETIC
from .shared.config import SharedBytes, at_least_one, one_of, with_arithmetic
from .shared.row import run_parts, sum_parts
from .shared.sampling import clamp, corner_weights, load_level, locate, number_loader
from .tma import map_parts

FEW_PREPARED = 4  # samples that a lane prepares in a round


@dataclass(frozen=True)
class Window:
    """Parameters of ``window``.

    consumers     warps that add up; one more loads. 0 leaves it open: 15, or 19 where a lane prepares at
                  most FEW_PREPARED samples at once, since that takes fewer registers
    stages        depth of the ring (>= 1): cells whose windows are in shared memory at once
    cell          height x width of a cell in pixels of the finest level; 0x0 leaves it open: what
                  kernels/window_fit.py expects to be fastest
    arithmetic    as everywhere
    maps          as in :class:`Tma`
    l2_promotion  how much L2 fetches for a window: none, 64B, 128B or 256B
    debug         on a GPU waits are bounded: a hang ends in a report
    trace         as everywhere
    """

    consumers: int = 0
    stages: int = 2
    cell: tuple[int, int] = (0, 0)
    arithmetic: str = "auto"
    maps: str = "level"
    l2_promotion: str = "128B"
    debug: bool = False
    trace: bool = False

    @property
    def threads(self):
        """Threads of a block."""
        return 32 * (self.consumers + 1)

    def __post_init__(self):
        at_least_one(self, "stages")
        if not 0 <= self.consumers <= 31:
            raise ConfigError(
                "consumers", self.consumers,
                "with the producer, a block has 32 warps; 0 leaves it open",
            )  # fmt: skip
        if len(self.cell) != 2 or (min(self.cell) < 1 and any(self.cell)):
            shown = "x".join(map(str, self.cell))
            raise ConfigError("cell", shown, "must be a height and a width of at least 1, or 0x0")
        one_of(self, "arithmetic", ("auto", "packed", "fp32"))
        one_of(self, "maps", ("batch", "level"))
        one_of(self, "l2_promotion", L2_PROMOTIONS)

    def resolve(self, constants):
        """The configuration with nothing left open but the cell, which is settled where it is fitted to a
        problem, checked against what it is compiled for."""
        row = constants.channels * ITEMSIZE[constants.dtype]
        if row not in (64, 128):
            raise ConfigError(
                "variant", "window", f"a head's pixel has {row} bytes here; windows need 64 or 128"
            )
        if constants.levels > 32:
            raise ConfigError(
                "variant",
                "window",
                f"{constants.levels} levels: a lane of one warp loads each, so at most 32",
            )
        few = layout(constants).prepared <= FEW_PREPARED
        config = dataclasses.replace(
            with_arithmetic(self, constants),
            consumers=self.consumers or (19 if few else 15),
        )
        if config.smallest_shared(constants) > SHARED_LIMIT:
            raise ConfigError(
                "stages", self.stages, f"with {config.consumers} consumers does not fit into the "
                f"{SHARED_LIMIT} bytes of a block"
            )  # fmt: skip
        return config

    def smallest_shared(self, constants):
        """Dynamic shared memory of a block with the smallest windows there are."""
        return self.with_boxes(((2, 2),) * constants.levels).dynamic_bytes(constants)

    def with_boxes(self, boxes):
        """A :class:`FittedWindow` with these parameters."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(Window)}
        return FittedWindow(**own, boxes=boxes)

    def dynamic_bytes(self, constants):
        """Dynamic shared memory of a block."""
        return dynamic_bytes(sum(self.shared_bytes(constants)))

    def map_box(self, constants):
        """((height, width), ..) of the boxes of each level's tensor map."""
        return self.level_boxes(constants.levels)

    def level_boxes(self, levels):
        """((height, width), ..) of each level's window: typical ones, until a problem is known."""
        return tuple(TYPICAL_BOXES[min(n, len(TYPICAL_BOXES) - 1)] for n in range(levels))

    def shared_bytes(self, constants):
        return SharedBytes(*shared_bytes(self, constants))


TYPICAL_BOXES = ((12, 16), (10, 12), (8, 10), (8, 8))


@dataclass(frozen=True)
class FittedWindow(Window):
    """A :class:`Window` for one problem; ``boxes``: (height, width) of each level's window."""

    boxes: tuple = ()

    def level_boxes(self, levels):
        return self.boxes


# A consumer thread, and where it reads: its lane, the row and chunk that it adds up, the shared address of its
# warp's prepared samples, the columns that it reads first and second; for samples outside, the plane's address
# and the bytes of a pixel in it.
Reader = namedtuple(
    "Reader", ["lane", "row", "chunk", "meta", "first", "second", "plane", "pixel_bytes"]
)
# One column of all tiles: what a tile's address in the stage is added to, and the bit that it then has.
Column = namedtuple("Column", ["base", "bit"])
# The level of a lane's runs, and its window: size, and the pixels before it in the stage. A sample lies
# scale * location + shift pixels from the window's corner; between low and high it has neighbours in the level.
WindowView = namedtuple(
    "WindowView",
    ["level", "mine", "scale", "shift", "low", "high", "box_height", "box_width", "offset"],
)
# What the schedule says of an item; a warp's share of it: a group of rows, and which round of their samples.
Item = namedtuple("Item", ["batch", "head", "cell", "count"])
Job = namedtuple("Job", ["item", "group", "round", "what"])
MINUS_ONES = 0xBC00BC00  # two fp16 numbers
ROUND, ROUND_BITS = 1.5 * 2**23, 0x4B400000  # an fp32 number between 2^23 and 2^24, and its bits
READY = 1  # the named barrier of those who wait for the mbarriers to be there
CORNER_BYTES = 16  # of a window: left, top; width and height of the level


class Layout(NamedTuple):
    """How a warp shares its rows; all compile-time."""

    lanes: int  # of a row, each with 16 bytes of its channels
    owned: int  # rows of which a lane prepares samples, a run of each
    run: int  # neighbouring samples of one level that a lane reads at once
    rounds: int  # how often, until all samples of a row are through
    each: int  # samples of a run that are prepared at a time

    @property
    def rows(self):
        return 32 // self.lanes

    @property
    def owners(self):
        """Lanes that prepare a row's samples."""
        return self.lanes * self.owned

    @property
    def prepared(self):
        """Samples that a lane prepares in a round."""
        return self.owned * self.run

    @property
    def together(self):
        """Samples of a row that are prepared at a time."""
        return self.each * self.owners


def layout(constants):
    """The :class:`Layout` for a ``configs.Constants`` with pixels of 64 or 128 bytes."""
    lanes = constants.channels * ITEMSIZE[constants.dtype] // 16
    samples = constants.levels * constants.points
    runs = [n for n in (1, 2, 4) if constants.points % n == 0]
    shares = [(owned, run) for owned in (1, 2) for run in runs]

    def cost(share):
        """Rounds, each of which costs as much as several samples; samples that a lane prepares; loads for
        a job's locations, each of which touches lines of 8 rows, or where a lane has two rows, of 4."""
        owned, run = share
        rounds = -(-samples // (owned * run * lanes))
        return rounds, rounds * owned * run, -owned

    owned, run = min(shares, key=cost)
    each = min(run, max(8 // (lanes * owned), 1))
    return Layout(lanes, owned, run, -(-samples // (owned * run * lanes)), each)


def sample_words(constants, arithmetic):
    """32-bit words of one prepared sample."""
    return 2 if ARITHMETIC[constants.dtype, arithmetic].weight_words == 1 else 4


def window_bytes(boxes, constants):
    """Bytes of each level's window, (height, width) in ``boxes``; each starts on 128 bytes."""
    pixel = constants.channels * ITEMSIZE[constants.dtype]
    return [-(-height * width * pixel // 128) * 128 for height, width in boxes]


def shared_bytes(config, constants):
    """(bytes of windows, of barriers, of their corners and prepared samples) of a block."""
    shape = layout(constants)
    windows = config.stages * sum(window_bytes(config.level_boxes(constants.levels), constants))
    corners = config.stages * constants.levels * CORNER_BYTES
    samples = 4 * sample_words(constants, config.arithmetic) * shape.together * shape.rows
    return windows, 16 * config.stages, corners + config.consumers * samples


@functools.cache
def choice(values):
    """A device function that returns ``values[i]``, folded to a constant where i is one."""
    (last,) = values[-1:]

    @cuda.jit(device=True, forceinline=True)
    def only(i):
        return int32(last)

    chosen = only
    for number in reversed(range(len(values) - 1)):
        chosen = _either(number, values[number], chosen)
    return chosen


def _either(number, value, other):
    @cuda.jit(device=True, forceinline=True)
    def either(i):
        if i == number:
            return int32(value)
        return other(i)

    return either


def in_turn(functions):
    """A device function that calls ``functions``, all of 6 arguments, one after the other.

    A loop as long as this the compiler does not unroll, and numbers in registers have no address.
    """
    if len(functions) == 1:
        return functions[0]
    middle = len(functions) // 2
    before, after = in_turn(functions[:middle]), in_turn(functions[middle:])

    @cuda.jit(device=True, forceinline=True)
    def both(a, b, c, d, e, f):
        before(a, b, c, d, e, f)
        after(a, b, c, d, e, f)

    return both


def build(config, constants):
    """The kernel for a ``configs.Window`` and ``configs.Constants``.

    Arguments: address of the tensor maps, as for ``tma``; value, levels (L, 4) int32; order, schedule, corners
    and counts of ``windows.Tables``; locations, weights, out; items in the schedule, slots of a cell, B, Q,
    heads, S; a buffer for the marks of a block, and its number (marks.py).
    """
    shape, boxes = layout(constants), config.level_boxes(constants.levels)
    LANES, OWNED, RUN, ROUNDS, EACH = shape
    LAST = OWNED - 1  # a number that there is also in the branch for two runs where a lane has one
    ROWS, OWNERS, TOGETHER = shape.rows, shape.owners, shape.together
    ROW_SHIFT, OWNER_SHIFT = LANES.bit_length() - 1, OWNERS.bit_length() - 1
    LEVELS, POINTS, CHANNELS = constants.levels, constants.points, constants.channels
    SAMPLES, PARTS = LEVELS * POINTS, RUN // EACH
    EVEN = ROUNDS * OWNERS * RUN == SAMPLES  # no lane without a run
    PIXEL = CHANNELS * ITEMSIZE[constants.dtype]
    SPLIT = PIXEL == 64
    CONSUMERS, STAGES, THREADS = config.consumers, config.stages, config.threads
    acquire_maps, map_of, load_box = map_parts(constants, config.maps)
    sizes = window_bytes(boxes, constants)
    WINDOW_BYTES = sum(sizes)
    bytes_before = choice(tuple(sum(sizes[:i]) for i in range(LEVELS)))
    box_bytes = choice(tuple(h * w * PIXEL for h, w in boxes))
    pixels_before = choice(tuple(sum(sizes[:i]) // PIXEL for i in range(LEVELS)))
    pitch_of = choice(tuple(w * PIXEL for _, w in boxes))
    width_of = choice(tuple(w for _, w in boxes))
    height_of = choice(tuple(h for h, _ in boxes))
    # Of an address; the rest comes from a word's upper half, or is the bit of its column.
    ADDRESS = 0x3FFFF & ~(PIXEL if SPLIT else 0)
    WORDS = sample_words(constants, config.arithmetic)
    WIDE = WORDS == 4
    SLOTS = 32 // WORDS  # prepared samples that shared memory takes or gives at once
    # Owners with the same order of rows; rows that are written at once.
    ALIKE, TURN = max(SLOTS // ROWS, 1), max(SLOTS // OWNERS, 1)
    TILES_BYTES, BARRIER_BYTES, META_BYTES = shared_bytes(config, constants)
    CORNERS_BYTES = LEVELS * CORNER_BYTES  # of a stage
    META = (META_BYTES - STAGES * CORNERS_BYTES) // CONSUMERS
    STATIC_BYTES = static_bytes(TILES_BYTES + BARRIER_BYTES + META_BYTES)
    LOCATION_BYTES = 2 * ITEMSIZE[constants.location_dtype]
    WEIGHT_BYTES = ITEMSIZE[constants.weight_dtype]
    new_raw, load_run, unpack_run = run_parts(RUN, constants.location_dtype, constants.weight_dtype)
    ONE_WORDS, load_one, convert_one = number_loader(constants.location_dtype, 2)
    _, load_one_weight, convert_one_weight = number_loader(constants.weight_dtype, 1)
    arithmetic = ARITHMETIC[constants.dtype, config.arithmetic]
    pack, unpack, add = arithmetic.pack, arithmetic.unpack, arithmetic.add
    flush_sums, store = arithmetic.flush, arithmetic.store
    new_sums, clear = sum_parts(arithmetic.words, 1)
    advance = make_advance(STAGES)
    open_marks, mark = make_marks(config.trace)

    @cuda.jit(device=True, forceinline=True)
    def floor_near(x):
        """(floor of x, what it leaves) for a small x; any number past 2^22 for others and for no number."""
        shifted = add_rm_f32(x, float32(ROUND))  # fp32 has no bits for a fraction there
        floor = float32(shifted - float32(ROUND))
        return uint32(mov_b32_f32(shifted) - uint32(ROUND_BITS)), float32(x - floor)

    if OWNED == 1:

        @cuda.jit(device=True, inline="always")
        def new_raws():
            return (new_raw(),)

        @cuda.jit(device=True, inline="always")
        def unpack_runs(raws):
            return (unpack_run(raws[0]),)

    else:

        @cuda.jit(device=True, inline="always")
        def new_raws():
            return new_raw(), new_raw()

        @cuda.jit(device=True, inline="always")
        def unpack_runs(raws):
            return unpack_run(raws[0]), unpack_run(raws[1])

    @cuda.jit(device=True, forceinline=True)
    def owner_of(lane):
        """Which of the lanes that prepare a row's samples this one is."""
        return int32(lane & int32(OWNERS - 1))

    @cuda.jit(device=True, forceinline=True)
    def owned_row(lane, i):
        """The row of run i of a lane."""
        return int32((lane >> int32(OWNER_SHIFT)) * int32(OWNED) + i)

    @cuda.jit(device=True, forceinline=True)
    def entry(meta, owner, e, row):
        """Where sample e of those that lane ``owner`` of a row prepares stands. Lanes that write at once
        reach different banks, and so do rows that read at once."""
        # Rows that are written at once come one after the other.
        turned = int32(row % int32(OWNED) * int32(ROWS // OWNED) + row // int32(OWNED))
        swizzled = turned ^ int32((owner // ALIKE) * TURN & (ROWS - 1))
        place = int32((e * OWNERS + owner) * ROWS) + swizzled
        return uint32(meta + uint32(4 * WORDS) * uint32(place))

    @cuda.jit(device=True, forceinline=True)
    def put(me, row, e, here, nowhere, tile, across, up, down):
        """One prepared sample: where its tile is, how much of it weighs the column that is read second, and
        what its two lines weigh; nothing, and tile ``nowhere``, if it is not ``here``."""
        place = entry(me.meta, owner_of(me.lane), e, row)
        if WIDE:
            zero = uint32(0)
            st_shared_v4(
                place,
                uint32(tile) if here else uint32(nowhere),
                mov_b32_f32(across) if here else zero,
                mov_b32_f32(up) if here else zero,
                mov_b32_f32(down) if here else zero,
            )
        else:
            word = uint32(uint32(tile) | cvt_rn_f16x2_f32(float32(0), float32(-across)))
            lines = cvt_rn_f16x2_f32(up, down)
            st_shared_v2(place, word if here else uint32(nowhere), lines if here else uint32(0))

    @cuda.jit(device=True, forceinline=True)
    def pixel_at(column, word):
        """The address of a pixel of a tile, whose number is the lower half of ``word``."""
        return uint32(uint32(column.base + word * uint32(PIXEL)) & uint32(ADDRESS) | column.bit)

    @cuda.jit(device=True, forceinline=True)
    def add_sample(acc, me, owner, e, pitch):
        """One sample of each row, its tile's columns in the row's own order."""
        place = entry(me.meta, int32(owner), int32(e), me.row)
        if WIDE:
            words = ld_shared_v4(place)
            across = mov_f32_b32(words[1])
            line, other_line = mov_f32_b32(words[2]), mov_f32_b32(words[3])
            later, other_later = float32(line * across), float32(other_line * across)
            up, down = float32(line - later), float32(other_line - other_later)
        else:
            words = ld_shared_v2(place)
            lines = words[1]
            earlier = fma_rn_f16x2(lines, dup_hi_b16x2(words[0]), lines)
            rest = fma_rn_f16x2(earlier, uint32(MINUS_ONES), lines)
            up, down = unpack(earlier, uint32(0))
            later, other_later = unpack(rest, uint32(0))
        first, second = pixel_at(me.first, words[0]), pixel_at(me.second, words[0])
        add(acc.sums, acc.partial, 0, ld_shared_v4(first), up)
        add(acc.sums, acc.partial, 0, ld_shared_v4(second), later)
        add(acc.sums, acc.partial, 0, ld_shared_v4(uint32(first + uint32(pitch))), down)
        add(acc.sums, acc.partial, 0, ld_shared_v4(uint32(second + uint32(pitch))), other_later)

    @cuda.jit(device=True, forceinline=True)
    def load_pixel(me, start, stride, column, line, width, height):
        """This lane's chunk of a pixel from global memory; zeros outside the level."""
        inside = 0 <= column and column < width and 0 <= line and line < height
        pixel = start + clamp(line, 0, height - 1) * stride + clamp(column, 0, width - 1)
        words = ld_global_nc_v4(me.plane + uint64(uint32(pixel)) * uint64(me.pixel_bytes))
        zero = uint32(0)
        return (
            words[0] if inside else zero, words[1] if inside else zero,
            words[2] if inside else zero, words[3] if inside else zero,
        )  # fmt: skip

    @cuda.jit(device=True, forceinline=True)
    def add_pixel(acc, chunk, weight):
        up, _ = unpack(*pack(weight, weight))
        add(acc.sums, acc.partial, 0, chunk, up)

    @cuda.jit(device=True, forceinline=True)
    def number_of(number, row):
        """The number of a row of the warp among all rows; each lane has its own row's."""
        return shfl_sync_idx_b32(uint32(ALL), uint32(number), uint32(row << int32(ROW_SHIFT)))

    @cuda.jit(device=True, forceinline=True)
    def add_outside(acc, me, at, levels, counts, locations, weights, lost, number, first):
        """Samples that no window holds, one after the other, from global memory; ``lost`` has a bit for each
        sample of this lane's runs, which start with sample ``first`` of their rows. ``number``: of this lane's
        own row."""
        if lost != 0:
            red_add_gpu_global_u32(counts, uint32(cuda.popc(lost)))  # nobody waits for it
        one_xy, one_weight = cuda.local.array(2, float32), cuda.local.array(1, float32)
        words, weight_word = cuda.local.array(ONE_WORDS, uint32), cuda.local.array(1, uint32)
        lanes = uint32(cuda.ballot_sync(ALL, lost != 0))
        while lanes != 0:
            owner = uint32(cuda.ffs(int32(lanes)) - 1)
            lanes = uint32(lanes & uint32(lanes - uint32(1)))
            bits = uint32(shfl_sync_idx_b32(uint32(ALL), uint32(lost), owner))
            level = int32(shfl_sync_idx_b32(uint32(ALL), uint32(at.level), owner))
            begin = shfl_sync_idx_b32(uint32(ALL), uint32(first), owner)
            height, width, start, stride = load_level(levels, level)
            while bits != 0:
                bit = uint32(cuda.ffs(int32(bits)) - 1)
                bits = uint32(bits & uint32(bits - uint32(1)))
                row = owned_row(int32(owner), int32(bit // uint32(RUN)))
                mine = me.row == row
                sample = uint64(
                    uint64(number_of(number, row)) * uint64(SAMPLES)
                    + uint64(uint32(begin + bit % uint32(RUN)))
                )
                load_one(locations + sample * uint64(LOCATION_BYTES), words)
                load_one_weight(weights + sample * uint64(WEIGHT_BYTES), weight_word)
                convert_one(words, one_xy)
                convert_one_weight(weight_word, one_weight)
                x, fx, _ = locate(one_xy[0], width)
                y, fy, _ = locate(one_xy[1], height)
                if mine:
                    # All four are asked for before the first is waited for.
                    left = load_pixel(me, start, stride, x, y, width, height)
                    right = load_pixel(me, start, stride, int32(x + 1), y, width, height)
                    below = load_pixel(me, start, stride, x, int32(y + 1), width, height)
                    last = load_pixel(me, start, stride, int32(x + 1), int32(y + 1), width, height)
                    up, down = corner_weights(one_weight[0], fx, fy, int32(0))
                    add_pixel(acc, left, up)
                    add_pixel(acc, below, down)
                    up, down = corner_weights(one_weight[0], fx, fy, int32(1))
                    add_pixel(acc, right, up)
                    add_pixel(acc, last, down)
                flush_sums(acc.sums, acc.partial, 1)  # there may be many: too many for packed sums

    def make_prepare(i, k):
        """Sample k of a lane's run i, into shared memory; a bit of ``lost`` if its window does not hold it."""
        S, BIT = k % EACH, 1 << (i * RUN + k)

        @cuda.jit(device=True, forceinline=True)
        def prepare(acc, runs, me, at, lost, r):
            run, row = runs[i], owned_row(me.lane, int32(i))
            x = float32(run.xy[2 * k] * at.scale[0] + at.shift[0])
            y = float32(run.xy[2 * k + 1] * at.scale[1] + at.shift[1])
            column, fx = floor_near(x)
            line, fy = floor_near(y)
            attention = float32(0)
            if at.mine:
                attention = run.attention[k]
            # Unsigned: what lies left of the window, or is no number, is far on its right.
            here = column < uint32(at.box_width - 1) and line < uint32(at.box_height - 1)
            tile = int32(int32(line) * at.box_width + int32(column) + at.offset)
            across = fx
            if SPLIT and (tile ^ row) & int32(1) == 1:  # the row reads the right column first
                across = float32(float32(1) - fx)
            down = float32(attention * fy)
            put(me, row, int32(S), here, at.offset, tile, across, float32(attention - down), down)
            near = at.low[0] < x and x < at.high[0] and at.low[1] < y and y < at.high[1]
            if near and attention != float32(0) and not here:
                lost[0] = uint32(lost[0] | uint32(BIT))

        return prepare

    def make_add(part, s):
        """Sample s of those that are prepared; not in the last round, if rows have no such sample there."""
        OWNER, E = s // EACH, s % EACH
        PITCH = boxes[min(OWNER * RUN // POINTS, LEVELS - 1)][1] * PIXEL  # in the first round
        last = (ROUNDS - 1) * OWNERS * RUN + OWNER * RUN + part * EACH + E
        EVERY_ROUND = last < SAMPLES

        @cuda.jit(device=True, forceinline=True)
        def add_one(acc, runs, me, at, lost, r):
            if ROUNDS == 1:
                if EVERY_ROUND:
                    add_sample(acc, me, OWNER, E, PITCH)
            elif EVERY_ROUND or r < int32(ROUNDS - 1):
                level = int32(div_u32((r * int32(OWNERS) + int32(OWNER)) * int32(RUN), POINTS))
                add_sample(acc, me, OWNER, E, pitch_of(level))

        return add_one

    @cuda.jit(device=True, forceinline=True)
    def prepared(acc, runs, me, at, lost, r):
        cuda.syncwarp()  # the samples are prepared

    @cuda.jit(device=True, forceinline=True)
    def used(acc, runs, me, at, lost, r):
        flush_sums(acc.sums, acc.partial, 1)
        cuda.syncwarp()  # and may be overwritten

    program = []
    for part in range(PARTS):
        samples = range(part * EACH, (part + 1) * EACH)
        program += [make_prepare(i, k) for i in range(OWNED) for k in samples] + [prepared]
        program += [make_add(part, s) for s in range(TOGETHER)] + [used]
    half = len(program) // 2
    add_first, add_rest = in_turn(program[:half]), in_turn(program[half:])

    @cuda.jit(device=True, forceinline=True)
    def item_of(words):
        return Item(int32(words[0]), int32(words[1]), int32(words[2]), int32(words[3]))

    @cuda.jit(device=True, forceinline=True)
    def read_item(schedule, item):
        return item_of(ld_global_nc_v4(schedule + uint64(16) * uint64(item)))

    @cuda.jit(device=True, forceinline=True)
    def read_window(schedule, corners, item, items, level):
        """An item, and what ``windows.Tables`` says of its window; the last one where there are no more."""
        item = min(item, int32(items - 1))
        words = ld_global_v4(schedule + uint64(16) * uint64(item))
        corner = ld_global_v4(corners + uint64(16) * uint64(item * int32(LEVELS) + level))
        return item_of(words), corner

    @cuda.jit(device=True, forceinline=True)
    def settle(schedule, job, items, stride):
        """The job itself, or the first of a later item if the item has no such group."""
        item, group, what = job.item, job.group, job.what
        while item < items and group * int32(ROWS) >= what.count:
            group = int32(group - int32(div_u32(what.count + int32(ROWS - 1), ROWS)))
            item = int32(item + stride)
            if item < items:
                what = read_item(schedule, item)
        return Job(item, group, job.round, what)

    @cuda.jit(device=True, forceinline=True)
    def after(job):
        if job.round + 1 < ROUNDS:
            return Job(job.item, job.group, int32(job.round + 1), job.what)
        return Job(job.item, int32(job.group + CONSUMERS), int32(0), job.what)

    @cuda.jit(device=True, forceinline=True)
    def query_of(order, slots, job, row, queries, heads):
        """The number of this lane's row among all rows."""
        what = job.what
        place = min(int32(job.group * int32(ROWS) + row), int32(what.count - 1))
        query = ld_global_nc_b32(
            order + uint64(4) * uint64(what.cell * slots + max(place, int32(0)))
        )
        return int32((what.batch * queries + int32(query)) * heads + what.head)

    @cuda.jit(device=True, forceinline=True)
    def read_run(locations, weights, number, first, raw):
        sample = uint64(number) * uint64(SAMPLES) + uint64(first)
        load_run(
            locations + sample * uint64(LOCATION_BYTES),
            weights + sample * uint64(WEIGHT_BYTES),
            raw,
        )

    @cuda.jit(device=True, forceinline=True)
    def read_runs(locations, weights, number, r, lane, raws):
        """This lane's runs, from ``number``, that of its own row; the other row's number a lane of that has."""
        first = min(int32((r * int32(OWNERS) + owner_of(lane)) * int32(RUN)), int32(SAMPLES - RUN))
        if OWNED == 1:
            read_run(locations, weights, number, first, raws[0])
        else:
            other = int32(cuda.shfl_xor_sync(ALL, number, LANES))
            own_is_first = lane & int32(LANES) == 0
            read_run(locations, weights, number if own_is_first else other, first, raws[0])
            read_run(locations, weights, other if own_is_first else number, first, raws[LAST])

    @cuda.jit(device=True, forceinline=True)
    def corner_at(starts, state, level):
        """Where a stage's window of a level is described."""
        return uint32(starts + uint32((state.stage * int32(LEVELS) + level) * int32(CORNER_BYTES)))

    @cuda.jit(device=True, forceinline=True)
    def window_of(starts, state, level, mine):
        """What preparing samples of a level takes."""
        corner = ld_shared_v4(corner_at(starts, state, level))
        left, top = float32(int32(corner[0])), float32(int32(corner[1]))
        scale = float32(int32(corner[2])), float32(int32(corner[3]))
        low = float32(float32(-1) - left), float32(float32(-1) - top)
        shift = float32(low[0] + float32(0.5)), float32(low[1] + float32(0.5))
        high = float32(scale[0] - left), float32(scale[1] - top)
        return WindowView(
            level, mine, scale, shift, low, high, height_of(level), width_of(level),
            pixels_before(level),
        )  # fmt: skip

    @cuda.jit(device=True, forceinline=True)
    def columns(base, odd):
        """The columns that a row reads first and second, for the address of its chunk of the stage: with SPLIT
        the tile's even and its odd one, in the order of the row's parity, and else the left and the right."""
        even = uint32(uint32(PIXEL) - odd)
        if SPLIT:
            return Column(uint32(base + even), odd), Column(uint32(base + odd), even)
        return Column(base, odd), Column(uint32(base + even), odd)

    @kernel(
        threads=THREADS,
        min_blocks=1,
    )
    def window(
        maps: u64, value: u64, levels: u64, order: u64, schedule: u64, corners: u64,
        counts: u64, locations: u64, weights: u64, out: u64, items: i32, slots: i32,
        batches: i32, queries: i32, heads: i32, spatial_size: i32, debug: u64,
        debug_row: i32,
    ):  # fmt: skip
        thread = int32(cuda.threadIdx.x)
        lane, warp = int32(thread & int32(31)), int32(thread >> int32(5))
        item, stride = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)

        shared = cuda.shared.array(STATIC_BYTES, types.uint8, alignment=128)
        boxes_address = align_up(shared_address(shared), uint32(128))
        full = uint32(boxes_address + uint32(TILES_BYTES))
        ring = Ring(full, uint32(full + uint32(8 * STAGES)))
        starts = uint32(full + uint32(BARRIER_BYTES))  # what consumers are told of the windows
        marks = open_marks(debug, debug_row, warp, lane)
        state = first_state()
        if warp == CONSUMERS:
            if lane == 0:
                init_barriers(ring.full, STAGES, LEVELS)
                init_barriers(ring.empty, STAGES, CONSUMERS)
                fence_mbarrier_init()  # the copy engine sees the barriers
                if item == 0:
                    red_add_gpu_global_u32(counts + uint64(4), uint32(1))
            cuda.syncwarp()
            bar_arrive(uint32(READY), uint32(THREADS))
            acquire_maps(maps, batches, lane, 32)
            cuda.syncwarp()
            if lane < LEVELS:  # each sees to its own level
                what, corner = read_window(schedule, corners, item, items, lane)
                while item < items:
                    mark(marks, ACQUIRE, state)
                    acquire(ring, state)
                    mark(marks, ISSUE, state)
                    st_shared_v4(corner_at(starts, state, lane), *corner)
                    stage = uint32(boxes_address + uint32(state.stage) * uint32(WINDOW_BYTES))
                    box = uint32(stage + uint32(bytes_before(lane)))
                    load_box(
                        box, map_of(maps, what.batch, lane), what.head, what.batch, int32(corner[0]),
                        int32(corner[1]), full_barrier(ring, state),
                    )  # fmt: skip
                    # After the corner, which it releases.
                    commit(ring, state, uint32(box_bytes(lane)))
                    mark(marks, COMMIT, state)
                    state = advance(state)
                    item = int32(item + stride)
                    what, corner = read_window(schedule, corners, item, items, lane)
                mark(marks, RELEASE, state)
        else:
            meta = uint32(starts + uint32(STAGES * CORNERS_BYTES) + uint32(warp * int32(META)))
            row, chunk = int32(lane >> int32(ROW_SHIFT)), int32(lane & int32(LANES - 1))
            odd = uint32(0)  # the bytes by which an odd row's first column differs, with SPLIT
            if SPLIT:
                # Through a shuffle: else it is made anew, bit by bit, for each pixel.
                own = uint32((row & int32(1)) * int32(PIXEL))
                odd = shfl_sync_idx_b32(uint32(ALL), own, uint32(lane))
            pixel_bytes = int32(heads * int32(PIXEL))
            acc, raws, lost = new_sums(), new_raws(), cuda.local.array(1, uint32)
            what = read_item(schedule, min(item, int32(items - 1)))
            job = settle(schedule, Job(item, warp, int32(0), what), items, stride)
            number = query_of(order, slots, job, row, queries, heads)
            read_runs(locations, weights, number, job.round, lane, raws)
            cuda.syncwarp()
            bar_sync(uint32(READY), uint32(THREADS))
            seen = int32(-1)  # the item whose stage this warp has waited for
            while item < items:
                if item != seen:
                    mark(marks, WAIT, state)
                    wait(ring, state)
                    mark(marks, COMPUTE, state)
                    seen = item
                if item != job.item:  # the warp has no job there, or no other
                    mark(marks, RELEASE, state)
                    cuda.syncwarp()  # all lanes have read the stage
                    if lane == 0:
                        release(ring, state)
                    state = advance(state)
                    item = int32(item + stride)
                else:
                    what, runs = job.what, unpack_runs(raws)
                    plane = (
                        value
                        + uint64(what.batch) * uint64(spatial_size) * uint64(pixel_bytes)
                        + uint64(what.head * int32(PIXEL) + chunk * int32(16))
                    )
                    stage = uint32(boxes_address + uint32(state.stage) * uint32(WINDOW_BYTES))
                    first, second = columns(uint32(stage + uint32(chunk * int32(16))), odd)
                    me = Reader(lane, row, chunk, meta, first, second, plane, pixel_bytes)
                    sample = int32((job.round * int32(OWNERS) + owner_of(lane)) * int32(RUN))
                    mine = True
                    if not EVEN:
                        mine = sample < SAMPLES
                        sample = min(sample, int32(SAMPLES - RUN))
                    at = window_of(starts, state, int32(div_u32(sample, POINTS)), mine)
                    # The next job's locations are read while this one is added up.
                    coming = settle(schedule, after(job), items, stride)
                    next_number = query_of(order, slots, coming, row, queries, heads)
                    lost[0] = uint32(0)
                    add_first(acc, runs, me, at, lost, job.round)
                    read_runs(locations, weights, next_number, coming.round, lane, raws)
                    add_rest(acc, runs, me, at, lost, job.round)
                    if cuda.any_sync(ALL, lost[0] != 0):
                        for i in range(OWNED):
                            place = job.group * int32(ROWS) + owned_row(lane, int32(i))
                            if place >= what.count:  # a copy of the cell's last row, not stored
                                lost[0] = uint32(lost[0] & ~uint32(((1 << RUN) - 1) << (i * RUN)))
                        add_outside(
                            acc, me, at, levels, counts, locations, weights, lost[0], number, sample
                        )
                    if job.round == ROUNDS - 1:
                        if job.group * int32(ROWS) + row < what.count:
                            store(
                                out + uint64(number) * uint64(PIXEL) + uint64(chunk * int32(16)),
                                acc.sums, 0,
                            )  # fmt: skip
                        clear(acc)
                    job, number = coming, next_number
            mark(marks, RELEASE, state)

    return window


def fit(problem, config, locations):
    """A ``windows.Fit``: the configuration with boxes for these locations, and the tables for them."""
    return windows.fit(problem, config, locations, layout(problem.constants).rows)


def blocks(problem, config, resident):
    """Grid size: the blocks that are resident at once."""
    return resident()

"""How a block of ``window.py`` finds out where the samples of a call lie, before it loads anything.

For each head and level, half a warp looks at the samples of 16 rows, ``rounds`` times. These are spread over
all rows, and every block looks at the same ones. By how much they lie off their reference points, on the
average, is the *shift* of the head's windows of that level. Sums are taken in one order, so equal locations
give equal shifts.

With a ``limit``, the block then counts those of the samples that it looked at which touch their level and which
its windows do not hold. If there are more, windows are no good here, and all blocks leave the work to the next
kernel of the stream: the words at ``gate``, which the first block writes, say so (direct.py).
"""

from collections import namedtuple

from numba import cuda, float32, int32, uint32, uint64

from ..compiler import static_range
from ..device.half2 import mov_b32_f32, mov_f32_b32
from ..device.integer import quotient
from ..device.memory import global_at, ld_global_nc_v4, ld_shared_v4, shared_at, st_global_v2, st_shared_v4
from ..device.sync import lane, shfl_sync_bfly_f32, warp
from .direct import FAR
from .parts.accumulate import ALL
from .parts.sampling import load_level, number_loader
from .problem import ITEMSIZE
from .window_fit import PROBED_ROWS, REACH, SPREAD
from .window_rows import choice

SUM_BYTES = 16  # of a turn's rows: offsets along x and y added up, and how many

# What a lane looks at in each of its turns: a row's samples as they were read, where the row's reference point
# and its window are, and the level's width and height.
Probes = namedtuple("Probes", "words anchors sizes")


def turns(config, constants):
    """(turns of PROBED_ROWS rows in all, how many half a warp takes)."""
    count = config.heads * constants.levels * config.rounds
    return count, -(-count // (2 * config.warps))


def probe_bytes(config, constants):
    """Bytes of all sums in shared memory."""
    return SUM_BYTES * turns(config, constants)[0]


def corner_parts(config, constants):
    """The device functions shift_of(sums, pair), by how much the windows of a head and level, pair = head * L +
    level, are moved; and corner_along(base, shift, size, box), where a window starts along an axis, as
    ``window_fit.moved_inside``."""
    ROUNDS = config.rounds

    @cuda.jit(device=True, forceinline=True)
    def shift_of(sums, pair):
        x, y, count = float32(0), float32(0), float32(0)
        for r in range(ROUNDS):
            words = ld_shared_v4(shared_at(sums, pair * int32(ROUNDS) + int32(r), SUM_BYTES))
            x = float32(x + mov_f32_b32(words[0]))
            y = float32(y + mov_f32_b32(words[1]))
            count = float32(count + mov_f32_b32(words[2]))
        each = inverse(max(count, float32(1)))
        return float32(x * each), float32(y * each)

    @cuda.jit(device=True, forceinline=True)
    def corner_along(base, shift, size, box):
        start = float32(cuda.libdevice.floorf(float32(base + shift)))
        return max(min(start, float32(size + float32(1) - float32(box))), float32(-1))

    return shift_of, corner_along


@cuda.jit(device=True, forceinline=True)
def inverse(x):
    """1 / x for a positive float, to its last bits: by Newton's method, since a division would be a call, which
    costs all of the kernel registers."""
    guess = mov_f32_b32(uint32(uint32(0x7EF311C7) - mov_b32_f32(x)))
    for _ in static_range(4):
        guess = float32(guess * float32(float32(2) - float32(x * guess)))
    return guess


@cuda.jit(device=True, forceinline=True)
def over_half(x):
    """The sum of a float over the lanes of half a warp, the same in all of them."""
    for lanes in static_range(4):
        x = float32(x + shfl_sync_bfly_f32(uint32(ALL), x, uint32(1 << lanes)))
    return x


def probing(config, constants):
    """The device functions look(levels, anchors, locations, rows), which reads; add_up(probes, sums), which
    waits for that, and for all warps; and leaves(probes, sums, gate), whether the block leaves the work to the
    next kernel. All warps call them in this order.

    What counts here is how many instructions a block needs before it loads its first windows."""
    LEVELS, POINTS, HEADS, ROUNDS = constants.levels, constants.points, config.heads, config.rounds
    WARPS, LIMIT, PAIRS = config.warps, config.limit, HEADS * LEVELS
    TURNS, OWN = turns(config, constants)
    COUNT_BITS, PROBES = (OWN * POINTS).bit_length(), TURNS * PROBED_ROWS
    RUN = max(n for n in (1, 2, 4) if POINTS % n == 0)
    LOCATION_BYTES = 2 * ITEMSIZE[constants.location_dtype]
    WORDS, load, convert = number_loader(constants.location_dtype, 2 * RUN)
    RUNS, COORDINATES, RUN_COORDINATES = POINTS // RUN, 2 * POINTS, 2 * RUN
    ALL_WORDS, ALL_ANCHORS, ALL_SIZES = OWN * RUNS * WORDS, OWN * 4, OWN * 2
    boxes = config.level_boxes(LEVELS)
    height_of, width_of = (choice(tuple(box[axis] for box in boxes)) for axis in (0, 1))
    shift_of, corner_along = corner_parts(config, constants)

    @cuda.jit(device=True, forceinline=True)
    def turn_of(t):
        """(number of this half-warp's turn t, whether there is one): the last one where there are no more."""
        turn = int32(2 * (warp() + t * WARPS) + (lane() >> 4))
        return min(turn, int32(TURNS - 1)), turn < int32(TURNS)

    @cuda.jit(device=True, forceinline=True)
    def level_of(pair):
        return int32(pair - quotient(pair, LEVELS) * int32(LEVELS))

    @cuda.jit(device=True, forceinline=True)
    def row_of(number, rows):
        """The row of a probe, as ``window_fit.probed_rows``."""
        within = uint64(uint64(uint32(uint32(number) * uint32(SPREAD))) * uint64(rows)) >> uint64(32)
        return uint64(uint64(uint32(number)) * uint64(rows) + within) // uint64(PROBES)

    @cuda.jit(device=True, inline="always")
    def look(levels, anchors, locations, rows):
        words = cuda.local.array(ALL_WORDS, uint32)
        places = cuda.local.array(ALL_ANCHORS, uint32)
        sizes = cuda.local.array(ALL_SIZES, float32)
        some = cuda.local.array(WORDS, uint32)
        me = int32(lane() & (PROBED_ROWS - 1))
        for t in static_range(OWN):
            turn, _ = turn_of(t)
            pair = quotient(turn, ROUNDS)
            number = int32(((turn - pair * ROUNDS) * PROBED_ROWS + me) * PAIRS + pair)
            sample = (row_of(number, rows) * uint64(PAIRS) + uint64(uint32(pair))) * uint64(POINTS)
            for r in static_range(RUNS):
                load(global_at(locations, sample + uint64(r * RUN), LOCATION_BYTES), some)
                for w in static_range(WORDS):
                    words[(t * RUNS + r) * WORDS + w] = some[w]
            anchor = ld_global_nc_v4(global_at(anchors, turn * PROBED_ROWS + me, 16))
            for w in static_range(4):
                places[t * 4 + w] = anchor[w]
            height, width, _, _ = load_level(levels, level_of(pair))
            sizes[t * 2], sizes[t * 2 + 1] = float32(width), float32(height)
        return Probes(words, places, sizes)

    @cuda.jit(device=True, forceinline=True)
    def unpack(probes, t, xy):
        """A row's locations, in pixels of the level: 0 is its edge."""
        some, numbers = cuda.local.array(WORDS, uint32), cuda.local.array(RUN_COORDINATES, float32)
        for r in static_range(RUNS):
            for w in static_range(WORDS):
                some[w] = probes.words[(t * RUNS + r) * WORDS + w]
            convert(some, numbers)
            for k in static_range(RUN):
                for axis in static_range(2):
                    pixel = float32(numbers[2 * k + axis] * probes.sizes[2 * t + axis])
                    xy[2 * (r * RUN + k) + axis] = pixel

    @cuda.jit(device=True, forceinline=True)
    def add_up(probes, sums):
        xy = cuda.local.array(COORDINATES, float32)
        for t in static_range(OWN):
            unpack(probes, t, xy)
            left, top = mov_f32_b32(probes.anchors[4 * t]), mov_f32_b32(probes.anchors[4 * t + 1])
            x, y, count = float32(0), float32(0), float32(0)
            for k in static_range(POINTS):
                across, down = float32(xy[2 * k] - left), float32(xy[2 * k + 1] - top)
                if abs(across) <= float32(REACH) and abs(down) <= float32(REACH):  # no NaN is
                    x, y = float32(x + across), float32(y + down)
                    count = float32(count + float32(1))
            x, y, count = over_half(x), over_half(y), over_half(count)
            turn, is_one = turn_of(t)
            if is_one and lane() & (PROBED_ROWS - 1) == 0:
                words = mov_b32_f32(x), mov_b32_f32(y), mov_b32_f32(count), uint32(0)
                st_shared_v4(shared_at(sums, turn, SUM_BYTES), *words)
        cuda.syncthreads()  # all sums are there

    @cuda.jit(device=True, forceinline=True)
    def held_along(pixel, corner, size, box):
        """(whether a sample has neighbours in the level, whether its window holds it), along an axis."""
        touches = float32(-1) < pixel and pixel < size
        return touches, corner <= pixel and pixel < float32(corner + float32(box - 1))

    @cuda.jit(device=True, forceinline=True)
    def count(probes, sums):
        """How many of this lane's samples no window holds."""
        xy, outside = cuda.local.array(COORDINATES, float32), int32(0)
        for t in static_range(OWN):
            unpack(probes, t, xy)
            turn, is_one = turn_of(t)
            pair = quotient(turn, ROUNDS)
            level, shift = level_of(pair), shift_of(sums, pair)
            width, height = probes.sizes[2 * t], probes.sizes[2 * t + 1]
            wide, high = width_of(level), height_of(level)
            left = corner_along(mov_f32_b32(probes.anchors[4 * t + 2]), shift[0], width, wide)
            top = corner_along(mov_f32_b32(probes.anchors[4 * t + 3]), shift[1], height, high)
            for k in static_range(POINTS):
                touches_x, held_x = held_along(float32(xy[2 * k] - float32(0.5)), left, width, wide)
                touches_y, held_y = held_along(float32(xy[2 * k + 1] - float32(0.5)), top, height, high)
                lost = touches_x and touches_y and not (held_x and held_y)
                outside = int32(outside + int32(lost and is_one))
        return outside

    @cuda.jit(device=True, forceinline=True)
    def leaves(probes, sums, gate):
        if LIMIT < 0:
            return False
        mine, outside = count(probes, sums), int32(0)
        for bit in static_range(COUNT_BITS):  # the barrier adds up one bit of each lane
            outside = int32(outside + (int32(cuda.syncthreads_count((mine >> bit) & 1)) << bit))
        far = outside > int32(LIMIT)
        if cuda.blockIdx.x == 0 and cuda.threadIdx.x == 0:
            st_global_v2(gate, uint32(uint32(outside) | (uint32(FAR) if far else uint32(0))), uint32(0))
        return far

    return look, add_up, leaves

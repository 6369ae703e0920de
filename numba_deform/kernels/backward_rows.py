"""What warps of ``backward_window.py`` do: the unit of an item's sums, its rows' samples, what they add.

A warp takes 8 rows x 4 points of a level at a time, a sample for each lane, which finds its tile and writes
down for the others where that is and what its pixels weigh. Then, 4 rows at once (2 of 64 channels):

    dot products  of the 16 pixels of a row with the gradients of all 8 rows, by tensor cores: a lane keeps
                  what belongs to its own sample
    shares        a lane has four channels of one of the rows, and adds them to the sums of all its pixels
"""

from collections import namedtuple

from numba import cuda, float32, int32, uint32, uint64

from ..compiler import static_range
from ..device.atomics import red_add_cta_shared_u32
from ..device.half2 import mov_b32_f32, mov_f32_b32
from ..device.matrix import mma_m16n8k16_bf16, mma_m16n8k16_f16
from ..device.memory import (
    global_at,
    ld_global_nc_b32,
    ld_global_nc_v4,
    ld_shared_b32,
    ld_shared_v4,
    shared_at,
    st_shared_b32,
    st_shared_v4,
)
from ..device.sync import lane, shfl_sync_bfly_f32, shfl_sync_idx_b32, shfl_sync_idx_f32, warp
from .backward import adding, numbers
from .parts.accumulate import ALL
from .parts.row import run_parts
from .parts.sampling import HALVES, clamp, locate, number_loader
from .problem import ITEMSIZE

ROWS, POINTS_AT_ONCE = 8, 4  # of a warp: a sample for each lane
TABLE_BYTES = ROWS * POINTS_AT_ONCE * 20  # of a warp: four weights and a pixel's number for each sample
MAGIC, MAGIC_BITS = 1.5 * 2**23, 0x4B400000  # an fp32 number past which there are only integers, and its bits
LARGE = 2.0**100  # a bound of an item's sums from which on they go to global memory
BOUND_BYTES = 16  # of a warp: its largest gradient and weight, the sum of its weights

# Shared addresses: of the window, of its sums, of the warp's table, of the bounds, of what probes found.
Shared = namedtuple("Shared", "window sums table bounds probes")
# Addresses of the operands, and numbers of the problem.
Data = namedtuple("Data", "value levels order schedule locations weights grad_out grad_value grad_locations "
                  "grad_weights slots queries heads spatial_size unit")  # fmt: skip
# A level's window: where it starts, its size, the level's; the first pixel of the level in the value; its row
# stride.
View = namedtuple("View", "level left top wide high width height start stride")
# A lane's sample: its row, whether there is one, its own number; where its tile is, and what it weighs; whether
# it touches the level, and whether the window holds it.
Sample = namedtuple("Sample", "row valid number x y fx fy attention near here")


@cuda.jit(device=True, forceinline=True)
def query_at(data, what, place):
    """The query at a place of an item's cell."""
    return ld_global_nc_b32(global_at(data.order, what.cell * data.slots + place, 4))


@cuda.jit(device=True, forceinline=True)
def number_of(data, what, query):
    """The number of an item's row among all rows."""
    return int32((what.batch * data.queries + int32(query)) * data.heads + what.head)


@cuda.jit(device=True, forceinline=True)
def pixel_of(data, what, pixel):
    """The number of a pixel of an item's head among all pixels of all heads."""
    number = uint64(uint32(what.batch)) * uint64(uint32(data.spatial_size)) + uint64(uint32(pixel))
    return number * uint64(data.heads) + uint64(uint32(what.head))


def summing(config, constants):
    """The device function add_four(data, number, four, share, g): adds ``share`` times the numbers ``g``
    to the gradient of value, at the channels 4 four, 4 four + 1, .. of the pixel of that number."""
    SUM, FOUR = (8, 8) if config.sums == "fixed" else (4, 16)  # bytes: of a sum, to the next four channels
    PIXEL, add_share = SUM * constants.channels, adding(config.sums, constants.channels)

    @cuda.jit(device=True, forceinline=True)
    def add_four(data, number, four, share, g):
        add_share(global_at(global_at(data.grad_value, number, PIXEL), four, FOUR), share, g, data.unit)

    return add_four


def bounding(config, constants):
    """The device functions bound(shared, data, what), which every thread calls and all wait for, and
    unit_of(shared): (the unit's inverse, the unit, whether an item's samples go to global memory)."""
    WARPS, THREADS, SAMPLES, CHANNELS = config.warps, config.threads, constants.samples, constants.channels
    low, high = HALVES[constants.dtype]
    _, load_weights, convert_weights = number_loader(constants.weight_dtype, POINTS_AT_ONCE)
    WORDS, WEIGHT = POINTS_AT_ONCE * ITEMSIZE[constants.weight_dtype] // 4, ITEMSIZE[constants.weight_dtype]
    WEIGHT_RUNS, GRAD_LOADS, ROW_BYTES = SAMPLES // POINTS_AT_ONCE, CHANNELS // 8, 2 * CHANNELS
    RUN, PART_BYTES = POINTS_AT_ONCE, POINTS_AT_ONCE * WEIGHT

    @cuda.jit(device=True, forceinline=True)
    def larger(bits, x):
        """The larger of a number's bits and those of |x|: what is no number is largest."""
        return max(bits, uint32(mov_b32_f32(x) & uint32(0x7FFFFFFF)))

    @cuda.jit(device=True, forceinline=True)
    def bound(shared, data, what):
        words, four = cuda.local.array(WORDS, uint32), cuda.local.array(RUN, float32)
        gradient, weight, total = uint32(0), uint32(0), float32(0)
        place = int32(cuda.threadIdx.x)
        while place < what.count:
            number = number_of(data, what, query_at(data, what, place))
            for i in range(GRAD_LOADS):
                chunk = ld_global_nc_v4(global_at(data.grad_out, number, ROW_BYTES) + uint64(16 * i))
                for k in static_range(4):
                    gradient = larger(larger(gradient, low(chunk[k])), high(chunk[k]))
            row = global_at(data.weights, global_at(0, number, SAMPLES), WEIGHT)
            for i in range(WEIGHT_RUNS):
                load_weights(row + uint64(i * PART_BYTES), words)
                convert_weights(words, four)
                for k in static_range(RUN):
                    weight = larger(weight, four[k])
                    total = float32(total + abs(four[k]))
            place = int32(place + int32(THREADS))
        for step in static_range(5):
            gradient = max(gradient, uint32(cuda.shfl_xor_sync(ALL, int32(gradient), 1 << step)))
            weight = max(weight, uint32(cuda.shfl_xor_sync(ALL, int32(weight), 1 << step)))
            total = float32(total + shfl_sync_bfly_f32(uint32(ALL), total, uint32(1 << step)))
        if lane() == 0:
            place = shared_at(shared.bounds, warp(), BOUND_BYTES)
            st_shared_v4(place, gradient, weight, mov_b32_f32(total), uint32(0))
        cuda.syncthreads()

    @cuda.jit(device=True, forceinline=True)
    def unit_of(shared):
        gradient, weight, total = uint32(0), uint32(0), float32(0)
        for i in range(WARPS):
            words = ld_shared_v4(shared_at(shared.bounds, i, BOUND_BYTES))
            gradient, weight = max(gradient, words[0]), max(weight, words[1])
            total = float32(total + mov_f32_b32(words[2]))
        most = max(float32(total * float32(2.0**-30)), float32(mov_f32_b32(weight) * float32(2.0**-22)))
        most = float32(most * mov_f32_b32(gradient))
        strange = not (most < float32(LARGE)) or weight >= uint32(0x7F800000)
        exponent = uint32(mov_b32_f32(most) >> uint32(23))
        exponent = min(exponent, uint32(252))
        inverse = mov_f32_b32(uint32(uint32(253) - exponent) << uint32(23))
        return inverse, mov_f32_b32(uint32(exponent + uint32(1)) << uint32(23)), strange

    return bound, unit_of


def sampling(config, constants):
    """The device function work(shared, data, what, view, inverse, strange): this warp's rows of an item in one
    level; ``inverse`` and ``strange`` are those of ``unit_of``."""
    PIXEL, CHANNELS, POINTS = constants.channels * 2, constants.channels, constants.points
    SAMPLES, RUNS = constants.samples, constants.points // POINTS_AT_ONCE
    PARTS, STRIDE = CHANNELS // 32, config.warps * ROWS
    ROWS_AT_ONCE, RUN, PIXELS = ROWS, POINTS_AT_ONCE, 16 * ROWS * POINTS_AT_ONCE
    LOCATION, WEIGHT = 2 * ITEMSIZE[constants.location_dtype], ITEMSIZE[constants.weight_dtype]
    multiply = mma_m16n8k16_f16 if constants.dtype == "float16" else mma_m16n8k16_bf16
    new_raw, load_one, unpack_one = run_parts(1, constants.location_dtype, constants.weight_dtype)
    _, _, store_location = numbers(constants.location_dtype)
    _, store_weight, _ = numbers(constants.weight_dtype)
    load_four, _, _ = numbers(constants.dtype)
    add_four, FRAGMENTS = summing(config, constants), 4 * PARTS
    LANES, PASSES, TOGETHER = CHANNELS // 4, CHANNELS // 32, 128 // CHANNELS
    LANE_BITS = LANES.bit_length() - 1

    @cuda.jit(device=True, forceinline=True)
    def own_row():
        """Which of the rows this lane's sample belongs to: its dot products end here."""
        return int32((lane() & int32(3)) << int32(1) | lane() >> int32(2) & int32(1))

    @cuda.jit(device=True, forceinline=True)
    def own_point():
        return int32(lane() >> int32(3))

    @cuda.jit(device=True, forceinline=True)
    def own_four():
        """Which four channels are this lane's, where a row has LANES of them."""
        return int32(lane() & int32(LANES - 1))

    @cuda.jit(device=True, forceinline=True)
    def owner_of(row):
        """The first lane with a sample of a row."""
        return uint32((row & int32(1)) << int32(2) | row >> int32(1))

    @cuda.jit(device=True, forceinline=True)
    def query_of(data, what, first):
        """This lane's query of the rows from ``first`` on; the last one of the cell where there are no more."""
        return query_at(data, what, min(int32(first + own_row()), int32(what.count - 1)))

    @cuda.jit(device=True, forceinline=True)
    def sample_of(view, number, run):
        k = view.level * int32(POINTS) + run * int32(RUN) + own_point()
        return global_at(k, number, SAMPLES)

    @cuda.jit(device=True, forceinline=True)
    def read(data, view, number, run, raw):
        """Read this lane's sample of a row and run."""
        sample = sample_of(view, number, run)
        load_one(global_at(data.locations, sample, LOCATION), global_at(data.weights, sample, WEIGHT), raw)

    @cuda.jit(device=True, forceinline=True)
    def find(view, number, valid, run, strange, raw):
        """The Sample that was read."""
        sample = sample_of(view, number, run)
        one = unpack_one(raw)
        x, fx, inside_x = locate(one.xy[0], view.width)
        y, fy, inside_y = locate(one.xy[1], view.height)
        near = valid and inside_x and inside_y
        column, line = uint32(x - view.left), uint32(y - view.top)
        here = near and not strange and column < uint32(view.wide - 1) and line < uint32(view.high - 1)
        return Sample(number, valid, sample, x, y, fx, fy, one.attention[0], near, here)

    @cuda.jit(device=True, forceinline=True)
    def put(table, view, sample):
        """This lane's sample, for the others: what its four pixels weigh, and the number of the first."""
        attention = sample.attention if sample.here else float32(0)
        down = float32(attention * sample.fy)
        up = float32(attention - down)
        right, lower_right = float32(up * sample.fx), float32(down * sample.fx)
        pixel = int32((sample.y - view.top) * view.wide + sample.x - view.left) if sample.here else int32(0)
        place = shared_at(table, own_point() * int32(ROWS_AT_ONCE) + own_row(), 16)
        st_shared_v4(
            place, mov_b32_f32(float32(up - right)), mov_b32_f32(right),
            mov_b32_f32(float32(down - lower_right)), mov_b32_f32(lower_right),
        )  # fmt: skip
        number = own_row() * int32(RUN) + own_point()
        st_shared_b32(shared_at(table + uint32(PIXELS), number, 4), uint32(pixel))

    @cuda.jit(device=True, forceinline=True)
    def chunk_of(i):
        """Where a lane's i-th 16 bytes of a pixel or gradient are. In which order a product takes channels does
        not matter, so these are all that a lane needs of it."""
        return uint32(16 * (lane() & int32(3)) + int32(64 * i))

    @cuda.jit(device=True, forceinline=True)
    def load_gradients(data, number, fragments):
        """The gradients of 8 rows as B of products: a lane has chunks of row lane / 4."""
        row = int32(shfl_sync_idx_b32(uint32(ALL), uint32(number), owner_of(lane() >> int32(2))))
        for i in static_range(PARTS):
            four = ld_global_nc_v4(global_at(data.grad_out, row, PIXEL) + uint64(chunk_of(i)))
            for k in static_range(4):
                fragments[4 * i + k] = four[k]

    @cuda.jit(device=True, forceinline=True)
    def dots(shared, table, view, row, fragments):
        """Dot products of the 8 rows' gradients with the 16 pixels of one: a lane has those of an upper and a
        lower one with two rows. A tile's columns lie beside each other, so that they meet in no bank."""
        number = uint32(row * int32(RUN) + own_point())
        pixel = int32(ld_shared_b32(shared_at(table + uint32(PIXELS), number, 4)))
        right = int32(lane() >> int32(2) & int32(1))
        place = shared_at(shared.window, pixel + right, PIXEL)
        c = float32(0), float32(0), float32(0), float32(0)
        for i in static_range(PARTS):
            upper = uint32(place + chunk_of(i))
            a, b = ld_shared_v4(upper), ld_shared_v4(shared_at(upper, view.wide, PIXEL))
            for k in static_range(0, 4, 2):
                f = 4 * i + k
                c = multiply(a[k], b[k], a[k + 1], b[k + 1], fragments[f], fragments[f + 1], *c)
        return c

    @cuda.jit(device=True, forceinline=True)
    def add(address, weight, g):
        """Add weight * g, rounded to an integer."""
        red_add_cta_shared_u32(
            address, uint32(mov_b32_f32(float32(weight * g + float32(MAGIC))) - uint32(MAGIC_BITS))
        )

    @cuda.jit(device=True, forceinline=True)
    def load_channels(data, number, row, inverse, g):
        """A lane's four channels of the gradient of a row, in units, the first one the one that it adds first:
        lanes 8 apart start with different ones, so that a warp's lanes meet in no bank."""
        turn = int32(lane() >> int32(3))
        row = int32(shfl_sync_idx_b32(uint32(ALL), uint32(number), owner_of(row)))
        load_four(global_at(data.grad_out, row, PIXEL) + uint64(uint32(8 * own_four())), g)
        for i in static_range(4):
            g[i] = float32(g[i] * inverse)
        for step in static_range(2):
            first = g[0], g[1], g[2], g[3]
            for i in static_range(4):
                g[i] = first[(i + (1 << step)) % 4] if turn & int32(1 << step) else first[i]

    @cuda.jit(device=True, forceinline=True)
    def add_shares(shared, table, view, row, g):
        """Add the samples of some rows to the sums: a lane has four channels of one of them."""
        for s in static_range(RUN):
            words = ld_shared_v4(shared_at(table, int32(s * ROWS_AT_ONCE) + row, 16))
            pixel = ld_shared_b32(shared_at(table + uint32(PIXELS), row * int32(RUN) + int32(s), 4))
            upper = shared_at(shared.sums, pixel, 4 * CHANNELS)
            lower = shared_at(upper, view.wide, 4 * CHANNELS)
            for i in static_range(4):
                turned = int32(i) + int32(lane() >> int32(3)) & int32(3)
                channel = uint32(16 * own_four() + 4 * turned)
                add(uint32(upper + channel), mov_f32_b32(words[0]), g[i])
                add(uint32(uint32(upper + channel) + uint32(4 * CHANNELS)), mov_f32_b32(words[1]), g[i])
                add(uint32(lower + channel), mov_f32_b32(words[2]), g[i])
                add(uint32(uint32(lower + channel) + uint32(4 * CHANNELS)), mov_f32_b32(words[3]), g[i])

    @cuda.jit(device=True, forceinline=True)
    def from_global(data, what, view, sample, owner, found):
        """Adds lane ``owner``'s sample in global memory; ``found``, in all lanes: its four dot products."""
        number = int32(shfl_sync_idx_b32(uint32(ALL), uint32(sample.row), owner))
        x = int32(shfl_sync_idx_b32(uint32(ALL), uint32(sample.x), owner))
        y = int32(shfl_sync_idx_b32(uint32(ALL), uint32(sample.y), owner))
        fx = shfl_sync_idx_f32(uint32(ALL), sample.fx, owner)
        fy = shfl_sync_idx_f32(uint32(ALL), sample.fy, owner)
        attention = shfl_sync_idx_f32(uint32(ALL), sample.attention, owner)
        four = own_four()
        g, v = cuda.local.array(4, float32), cuda.local.array(4, float32)
        load_four(global_at(data.grad_out, global_at(0, number, CHANNELS), 2) + uint64(8 * four), g)
        for i in static_range(PASSES):
            corner = int32(lane() >> int32(LANE_BITS)) + int32(i * TOGETHER)
            column, line = int32(x + (corner & int32(1))), int32(y + (corner >> int32(1)))
            inside = 0 <= column and column < view.width and 0 <= line and line < view.height
            pixel = clamp(line, 0, view.height - 1) * view.stride + clamp(column, 0, view.width - 1)
            at = pixel_of(data, what, view.start + pixel)
            load_four(global_at(data.value, at, PIXEL) + uint64(8 * four), v)
            across = fx if corner & int32(1) else float32(float32(1) - fx)
            down = fy if corner >> int32(1) else float32(float32(1) - fy)
            share = float32(attention * float32(across * down))
            dot = float32(0)
            if inside:
                dot = float32(g[0] * v[0] + g[1] * v[1] + g[2] * v[2] + g[3] * v[3])
                add_four(data, at, four, share, g)
            for step in static_range(LANE_BITS):
                dot = float32(dot + shfl_sync_bfly_f32(uint32(ALL), dot, uint32(1 << step)))
            for c in static_range(TOGETHER):
                found[i * TOGETHER + c] = shfl_sync_idx_f32(uint32(ALL), dot, uint32(c * LANES))

    @cuda.jit(device=True, forceinline=True)
    def give(data, view, sample, d):
        """Write the gradients of this lane's sample, from its four dot products."""
        left, top = float32(float32(1) - sample.fx), float32(float32(1) - sample.fy)
        w = top * (left * d[0] + sample.fx * d[1]) + sample.fy * (left * d[2] + sample.fx * d[3])
        x = (top * (d[1] - d[0]) + sample.fy * (d[3] - d[2])) * sample.attention * float32(view.width)
        y = (left * (d[2] - d[0]) + sample.fx * (d[3] - d[1])) * sample.attention * float32(view.height)
        if not sample.near:
            w = x = y = float32(0)
        if sample.valid:
            store_weight(global_at(data.grad_weights, sample.number, WEIGHT), float32(w))
            place = global_at(data.grad_locations, sample.number, LOCATION)
            store_location(place, float32(x), float32(y))

    @cuda.jit(device=True, forceinline=True)
    def work(shared, data, what, view, inverse, strange):
        table = shared.table
        raw = new_raw()
        fragments = cuda.local.array(FRAGMENTS, uint32)
        mine = cuda.local.array((2, 2), float32)
        d, found = cuda.local.array(4, float32), cuda.local.array(4, float32)
        g = cuda.local.array(4, float32)
        first, run = int32(warp() * int32(ROWS_AT_ONCE)), int32(0)
        number = number_of(data, what, query_of(data, what, first))
        read(data, view, number, run, raw)
        while first < what.count:
            valid = int32(first + own_row()) < what.count
            load_gradients(data, number, fragments)
            after = query_of(data, what, int32(first + int32(STRIDE)))
            for run in range(RUNS):
                sample = find(view, number, valid, int32(run), strange, raw)
                put(table, view, sample)
                cuda.syncwarp()  # the table is there
                # What comes next is read while this is added up.
                coming = number if run + 1 < RUNS else number_of(data, what, after)
                read(data, view, coming, int32(run + 1) if run + 1 < RUNS else int32(0), raw)
                for part in range(ROWS_AT_ONCE // TOGETHER):
                    for i in static_range(TOGETHER):
                        c = dots(shared, table, view, int32(part * TOGETHER + i), fragments)
                        if lane() & int32(3) == (part * TOGETHER + i) >> 1:
                            mine[i % 2, 0], mine[i % 2, 1] = c[i % 2], c[2 + i % 2]
                    if not strange:  # nothing times what is not finite would be something
                        row = int32(part * TOGETHER) + int32(lane() >> int32(LANE_BITS))
                        load_channels(data, number, row, inverse, g)
                        add_shares(shared, table, view, row, g)
                cuda.syncwarp()  # and may be overwritten
                # Of two rows a lane has a sample's left pixels, lane + 4 the right ones: each keeps one row.
                right = lane() & int32(4) != int32(0)
                for i in static_range(2):
                    kept = mine[1, i] if right else mine[0, i]
                    got = shfl_sync_bfly_f32(uint32(ALL), mine[0, i] if right else mine[1, i], uint32(4))
                    d[2 * i], d[2 * i + 1] = got if right else kept, kept if right else got
                lost = sample.near and not sample.here
                lanes = uint32(cuda.ballot_sync(ALL, lost))
                while lanes != 0:
                    owner = uint32(cuda.ffs(int32(lanes)) - 1)
                    lanes = uint32(lanes & uint32(lanes - uint32(1)))
                    from_global(data, what, view, sample, owner, found)
                    if uint32(lane()) == owner:
                        for i in static_range(4):
                            d[i] = found[i]
                give(data, view, sample, d)
            number = number_of(data, what, after)
            first = int32(first + int32(STRIDE))

    return work

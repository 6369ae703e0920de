"""backward: the gradients of value, sampling locations and attention weights.

With g the gradient of a row's output, v a neighbour's channels, and a bilinear weight w for each of a sample's
four neighbours, the dot products of g and v give the sample's own gradients: that of its attention weight is
the sum of w (g . v), and those of its location the same with w's derivative. A neighbour gets attention w g.

A row's lanes have four channels each, so that what they add to a pixel is one run of memory: the additions,
``red.global.add.v4.f32``, are what takes the time (bench/NOTES.md). A lane also has a sample of its own in each
round: it finds its tile, hands it to the others by shuffles, and gets its three sums back.

Its gated form runs after ``backward_window``, and only if that left its work to it, as that of ``direct``.
"""

from collections import namedtuple
from dataclasses import dataclass

from numba import cuda, float32, int32, int64, types, uint32, uint64

from ..compiler import i32, kernel, static_range, u64
from ..device.atomics import red_add_gpu_global_u64, red_add_gpu_global_v4_f32
from ..device.half2 import cvt_rn_bf16x2_f32, cvt_rn_f16x2_f32, mov_b32_f32, mov_f32_b32
from ..device.integer import div_u32, rem_u32
from ..device.memory import (
    global_at,
    ld_global_b32,
    ld_global_nc_b32,
    ld_global_nc_v2,
    ld_global_nc_v4,
    shared_address,
    st_global_b16,
    st_global_b32,
    st_global_v2,
)
from ..device.sync import shfl_sync_bfly_f32, shfl_sync_idx_b32, shfl_sync_idx_f32
from .direct import FAR, ask, following
from .parts.accumulate import ALL
from .parts.config import SharedBytes, one_of
from .parts.row import run_parts
from .parts.sampling import HALVES, LOCATE, clamp, level_finder, load_level
from .problem import ITEMSIZE, ConfigError

CHANNELS = 4  # of a lane: 16 bytes of sums
SUMS = ("fp32", "fixed")
# Where a sample's tile is: its first neighbour that is inside, how far on the next column and row are (none
# if they are outside), and a bit for each of the four that is inside.
Tile = namedtuple("Tile", ["pixel", "column", "row", "inside", "fx", "fy"])


@dataclass(frozen=True)
class Backward:
    """Parameters of ``backward``.

    threads     threads of a block, a multiple of 32
    min_blocks  blocks that should fit on an SM, which caps the registers; 0 leaves it open
    of_value    whether the gradient of value is computed
    of_samples  whether those of locations and weights are
    sums        how the additions to one pixel are made: ``fp32``, whose last bits depend on their order, or
                ``fixed``, in 64-bit integers, where no order matters
    is_gated    whether it runs only if the first word at ``gate`` has the bit FAR
    """

    threads: int = 128
    min_blocks: int = 6
    of_value: bool = True
    of_samples: bool = True
    sums: str = "fp32"
    is_gated: bool = False

    any_samples = True  # as of direct

    def __post_init__(self):
        if self.threads % 32 or not 32 <= self.threads <= 1024:
            raise ConfigError("threads", self.threads, "must be a multiple of 32 from 32 to 1024")
        if not (self.of_value or self.of_samples):
            raise ConfigError("of_value", self.of_value, "or of_samples must be on: else nothing is computed")
        one_of(self, "sums", SUMS)

    def resolve(self, constants):
        return self

    def shared_bytes(self, constants):
        return SharedBytes()


def lanes(constants):
    """Lanes of a row: one for four channels, a power of two."""
    return 1 << (-(-constants.channels // CHANNELS) - 1).bit_length()


def numbers(dtype):
    """(load_four(address, to), store_one(address, x), store_pair(address, x, y)) of a type's numbers, which in
    registers are float32."""
    low, high = HALVES[dtype]

    @cuda.jit(device=True, forceinline=True)
    def load_words(address, to):
        words = ld_global_nc_v4(address)
        for i in static_range(4):
            to[i] = low(words[i])

    @cuda.jit(device=True, forceinline=True)
    def load_halves(address, to):
        words = ld_global_nc_v2(address)
        for i in static_range(2):
            to[2 * i], to[2 * i + 1] = low(words[i]), high(words[i])

    @cuda.jit(device=True, forceinline=True)
    def store_word(address, x):
        st_global_b32(address, mov_b32_f32(x))

    @cuda.jit(device=True, forceinline=True)
    def store_words(address, x, y):
        st_global_v2(address, mov_b32_f32(x), mov_b32_f32(y))

    if high is None:
        return load_words, store_word, store_words
    join = cvt_rn_f16x2_f32 if dtype == "float16" else cvt_rn_bf16x2_f32

    @cuda.jit(device=True, forceinline=True)
    def store_half(address, x):
        st_global_b16(address, join(x, float32(0)))

    @cuda.jit(device=True, forceinline=True)
    def store_halves(address, x, y):
        st_global_b32(address, join(x, y))

    return load_halves, store_half, store_halves


def tile_finder(method):
    """A device function: the :class:`Tile` of a sample at ``xy``. That of a sample without any neighbour inside
    is a pixel at the level's border."""
    locate, DISCRETE = LOCATE[method], method == "discrete"

    @cuda.jit(device=True, forceinline=True)
    def tile_of(xy, width, height, start, row_stride):
        x, fx, inside_x = locate(xy[0], width)
        y, fy, inside_y = locate(xy[1], height)
        left, right = x >= 0 and x < width, x + 1 >= 0 and x + 1 < width
        upper, lower = y >= 0 and y < height, y + 1 >= 0 and y + 1 < height
        inside = uint32(DISCRETE)
        if inside_x and inside_y and not DISCRETE:
            above = uint32(left) | uint32(right) << uint32(1)
            below = above << uint32(2)
            inside = (above if upper else uint32(0)) | (below if lower else uint32(0))
        pixel = start + clamp(y, 0, height - 1) * row_stride + clamp(x, 0, width - 1)
        row = row_stride if upper and lower else 0
        return Tile(int32(pixel), int32(left and right), int32(row), inside, fx, fy)

    return tile_of


@cuda.jit(device=True, forceinline=True)
def tile_from(tile, owner):
    """The Tile of lane ``owner``."""
    steps = uint32(tile.row) << uint32(5) | uint32(tile.column) << uint32(4) | tile.inside
    steps = shfl_sync_idx_b32(uint32(ALL), steps, owner)
    pixel = int32(shfl_sync_idx_b32(uint32(ALL), uint32(tile.pixel), owner))
    fx, fy = shfl_sync_idx_f32(uint32(ALL), tile.fx, owner), shfl_sync_idx_f32(uint32(ALL), tile.fy, owner)
    return Tile(pixel, int32(steps >> uint32(4) & uint32(1)), int32(steps >> uint32(5)), steps, fx, fy)


@cuda.jit(device=True, forceinline=True)
def add_fixed(address, x):
    """Add a float, rounded towards zero, to a 64-bit integer."""
    red_add_gpu_global_u64(address, uint64(int64(x)))


def sums_for_owners(owners, lanes):
    """A device function (partial, place) -> sum over a row's lanes of ``partial[place]``, where each lane has
    ``owners`` partial sums: it sends half of them away in each step, so ``owners - 1`` shuffles do for all."""

    OWNERS, STEPS, COPIES = owners, owners.bit_length() - 1, (lanes // owners).bit_length() - 1

    @cuda.jit(device=True, forceinline=True)
    def sum_for_owner(partial, place):
        for step in static_range(STEPS):
            upper = place & (OWNERS >> (step + 1)) != 0
            for i in static_range(OWNERS >> (step + 1)):
                above = i + (OWNERS >> (step + 1))
                kept = partial[above] if upper else partial[i]
                sent = partial[i] if upper else partial[above]
                partial[i] = kept + shfl_sync_bfly_f32(uint32(ALL), sent, uint32(OWNERS >> (step + 1)))
        total = partial[0]
        for step in static_range(COPIES):
            total += shfl_sync_bfly_f32(uint32(ALL), total, uint32(OWNERS << step))
        return float32(total)

    return sum_for_owner


def adding(sums, channels):
    """The device function add_share(to, share, g, unit): adds ``share`` times the four numbers of ``g`` to the
    gradient of value, from the address of the first one's sum on; ``unit`` is what fixed sums are multiples
    of, inverted."""
    FIXED, CHUNKS = sums == "fixed", channels // CHANNELS

    @cuda.jit(device=True, forceinline=True)
    def add_share(to, share, g, unit):
        if FIXED:
            for j in static_range(CHANNELS):
                add_fixed(to + uint64(8 * CHUNKS * j), share * g[j] * unit)
        else:
            red_add_gpu_global_v4_f32(to, share * g[0], share * g[1], share * g[2], share * g[3])

    return add_share


def build(config, constants):
    """The kernel for a :class:`Backward` and ``problem.Constants``.

    Its operands: addresses of value (B, S, H, C), levels (L, 4) int32, locations (B, Q, H, L, P, 2), weights
    (B, Q, H, L, P), the gradient of the output (B, Q, H, C) in the type of value; what is written: the
    gradients of value (B, S, H, C) float32, added to what is there, of locations and of weights in their
    types; rows = B*Q*H, rows of one batch, heads, S. What is not computed may have any address.

    With ``sums="fixed"`` the gradient of value is (B, S, H, 4, C/4) int64, first the channels 0, 4, 8, .. of a
    head, then 1, 5, 9, ..: neighbouring lanes add to neighbouring words. It is to be divided by ``scale``, the
    address of a float32, by which every share is multiplied.
    """
    LANES, CHUNKS = lanes(constants), constants.channels // CHANNELS
    OWNERS = min(LANES, 8)  # samples of a round, each with a lane; more would take too many registers
    ROWS, SAMPLES, level_of = config.threads // LANES, constants.samples, level_finder(constants)
    DISCRETE, tile_of = constants.method == "discrete", tile_finder(constants.method)
    ROUNDS, LANE_BITS = -(-SAMPLES // OWNERS), LANES.bit_length() - 1
    ITEM, LOCATION = ITEMSIZE[constants.dtype], 2 * ITEMSIZE[constants.location_dtype]
    WEIGHT, OF_VALUE, OF_SAMPLES = ITEMSIZE[constants.weight_dtype], config.of_value, config.of_samples
    HEAD = constants.channels
    FIXED, SUM = config.sums == "fixed", 8 if config.sums == "fixed" else 4  # bytes
    load_four, _, _ = numbers(constants.dtype)
    _, _, store_location = numbers(constants.location_dtype)
    _, store_weight, _ = numbers(constants.weight_dtype)
    new_raw, load_run, unpack = run_parts(1, constants.location_dtype, constants.weight_dtype)
    sum_for_owner, add_share = sums_for_owners(OWNERS, LANES), adding(config.sums, constants.channels)

    @cuda.jit(device=True, forceinline=True)
    def lane_of():
        """(number of the lane in its warp, in its row, of the sample that it owns in a round)"""
        lane = int32(cuda.threadIdx.x) & int32(31)
        sub = lane & int32(LANES - 1)
        return lane, sub, sub & int32(OWNERS - 1)

    @cuda.jit(device=True, forceinline=True)
    def row_of(block, sub, grad_value, rows, rows_per_batch, heads, spatial_size):
        """(number of the lane's row, whether there is one, its first channel; its first element of the value's
        first pixel, the address of its sums there): spare rows and lanes work along, and add nothing."""
        number = int32(block) * int32(ROWS) + (int32(cuda.threadIdx.x) >> int32(LANE_BITS))
        is_row = number < rows
        number = min(number, int32(rows - 1))
        batch, head = int32(div_u32(number, rows_per_batch)), int32(rem_u32(number, heads))
        of_head = head * int32(HEAD)
        channel = of_head + min(sub, int32(CHUNKS - 1)) * int32(CHANNELS)
        plane = global_at(global_at(0, global_at(0, batch, spatial_size), heads * int32(HEAD)), channel, 1)
        first = channel if not FIXED else int32(of_head + sub)  # of this lane's sums
        sums = global_at(grad_value, plane - uint64(channel) + uint64(first), SUM)
        return number, is_row, int32(channel - of_head), plane, sums

    @cuda.jit(device=True, forceinline=True)
    def add_rows(
        block, value, levels, locations, weights, grad_out, grad_value, grad_locations, grad_weights, rows,
        rows_per_batch, heads, spatial_size, scale,
    ):  # fmt: skip
        """The rows of one block of the plain form, or of one turn of the gated one."""
        lane, sub, place = lane_of()
        number, is_row, channel, plane, sums = row_of(
            block, sub, grad_value, rows, rows_per_batch, heads, spatial_size)
        has_channels, pixel_numbers = is_row and sub < CHUNKS, heads * int32(HEAD)
        unit = mov_f32_b32(ld_global_nc_b32(scale)) if FIXED else float32(1)
        g = cuda.local.array(CHANNELS, float32)
        corners = cuda.local.array((4, CHANNELS), float32)
        of_weight = cuda.local.array(OWNERS, float32)
        of_x = cuda.local.array(OWNERS, float32)
        of_y = cuda.local.array(OWNERS, float32)
        raw = new_raw()
        load_four(global_at(grad_out, global_at(channel, number, HEAD), ITEM), g)
        for r in range(ROUNDS):
            # This lane's own sample.
            k = int32(r * OWNERS) + place
            has_sample = k < SAMPLES
            sample = global_at(min(k, int32(SAMPLES - 1)), number, SAMPLES)
            load_run(global_at(locations, sample, LOCATION), global_at(weights, sample, WEIGHT), raw)
            run = unpack(raw)
            height, width, start, row_stride = load_level(levels, level_of(min(k, int32(SAMPLES - 1))))
            tile = tile_of(run.xy, width, height, start, row_stride)
            attention = run.attention[0] if has_sample else float32(0)

            for i in static_range(OWNERS):
                owner = uint32(lane - place + i)
                there = tile_from(tile, owner)
                weight = shfl_sync_idx_f32(uint32(ALL), attention, owner)
                for c in static_range(4):
                    pixel = there.pixel + (c & 1) * there.column + (c >> 1) * there.row
                    load_four(global_at(value, plane + uint64(pixel) * uint64(pixel_numbers), ITEM), corners[c])
                of_weight[i] = of_x[i] = of_y[i] = float32(0)
                for c in static_range(4):
                    across = there.fx if c & 1 else float32(float32(1) - there.fx)
                    down = there.fy if c >> 1 else float32(float32(1) - there.fy)
                    if has_channels and there.inside >> uint32(c) & uint32(1):
                        pixel = there.pixel + (c & 1) * there.column + (c >> 1) * there.row
                        if OF_SAMPLES:
                            v = corners[c]
                            dot = g[0] * v[0] + g[1] * v[1] + g[2] * v[2] + g[3] * v[3]
                            of_weight[i] += across * down * dot
                            of_x[i] += down * dot if c & 1 else -down * dot
                            of_y[i] += across * dot if c >> 1 else -across * dot
                        if OF_VALUE:
                            share = float32(weight * float32(across * down))
                            to = global_at(sums, uint64(pixel) * uint64(pixel_numbers), SUM)
                            add_share(to, share, g, unit)
            if OF_SAMPLES:
                w = sum_for_owner(of_weight, place)
                x = sum_for_owner(of_x, place) * attention * float32(width)
                y = sum_for_owner(of_y, place) * attention * float32(height)
                if is_row and has_sample and sub < OWNERS:
                    if DISCRETE or not tile.inside:
                        x = y = float32(0)  # also where its attention is not a number
                    store_weight(global_at(grad_weights, sample, WEIGHT), w)
                    store_location(global_at(grad_locations, sample, LOCATION), x, y)

    @kernel(threads=config.threads, min_blocks=config.min_blocks)
    def backward(
        value: u64, levels: u64, locations: u64, weights: u64, grad_out: u64, grad_value: u64,
        grad_locations: u64, grad_weights: u64, rows: i32, rows_per_batch: i32, heads: i32, spatial_size: i32,
        scale: u64,
    ):  # fmt: skip
        add_rows(
            cuda.blockIdx.x, value, levels, locations, weights, grad_out, grad_value, grad_locations,
            grad_weights, rows, rows_per_batch, heads, spatial_size, scale,
        )  # fmt: skip

    @kernel(threads=config.threads, min_blocks=config.min_blocks)
    def backward_gated(
        gate: u64, value: u64, levels: u64, locations: u64, weights: u64, grad_out: u64, grad_value: u64,
        grad_locations: u64, grad_weights: u64, rows: i32, rows_per_batch: i32, heads: i32, spatial_size: i32,
        scale: u64,
    ):  # fmt: skip
        if ld_global_b32(gate) & uint32(FAR):
            slots = shared_address(cuda.shared.array(2, types.uint32))
            block, slot = uint32(cuda.blockIdx.x), uint32(0)
            while uint32(block * uint32(ROWS)) < uint32(rows):
                taken = ask(gate)
                add_rows(
                    block, value, levels, locations, weights, grad_out, grad_value, grad_locations,
                    grad_weights, rows, rows_per_batch, heads, spatial_size, scale,
                )  # fmt: skip
                block, slot = following(slots, slot, taken)

    return backward_gated if config.is_gated else backward


def blocks(problem, config, resident):
    """Grid size: every row has its lanes; of the gated form, at most what is resident at once."""
    needed = -(-problem.rows // (config.threads // lanes(problem.constants)))
    return min(needed, resident()) if config.is_gated else needed

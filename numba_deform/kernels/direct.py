"""direct (S3): four plain 16-byte loads per sample, served by L1. Runs on any architecture.

One row (batch, query, head) belongs to a few neighbouring lanes (lanes.py). Every lane prepares a run of
samples: where the two rows of each 2x2 tile start and what they weigh. Then all lanes go through all
runs, fetch each sample's numbers from the lane that has them, and load and add their own 16 bytes.
"""

from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import types

from ..compiler import kernel
from ..device.integer import div_u32, rem_u32
from ..device.memory import ld_global_nc_L1_evict_last_v4
from ..device.sync import shfl_sync_idx_b32
from .accumulate import ALL, ARITHMETIC
from .lanes import ITEMSIZE, lane_layout, sum_over_lanes
from .sampling import clamp, corner_weights, load_level, locate, number_loader


def build(config, constants):
    """The kernel for a ``variants.Direct`` and ``variants.Constants``.

    Arguments of the kernel: addresses of value (B, S, H, C), levels (L, 4) int32, locations
    (B, Q, H, L, P, 2), weights (B, Q, H, L, P) and out (B, Q, H, C); rows = B*Q*H, rows of one
    batch, heads, S.
    """
    LEVELS, POINTS, CHANNELS = constants.levels, constants.points, constants.channels
    ROW_BYTES = CHANNELS * ITEMSIZE[constants.dtype]
    layout = lane_layout(config.lanes, constants)
    LANES, CHUNKS, CHUNK_LANES = layout.lanes, layout.chunks, layout.chunk_lanes
    CHUNKS_PER_LANE, SIDES, PARTS = layout.chunks_per_lane, layout.sides, layout.parts
    SIDES_PER_LANE, RUN, ROUNDS = layout.sides_per_lane, layout.run, layout.rounds
    SIDE_SHIFT = CHUNK_LANES.bit_length() - 1
    PART_SHIFT = (CHUNK_LANES * SIDES).bit_length() - 1
    ROW_SHIFT = LANES.bit_length() - 1
    SAMPLES, META, COORDINATES = LEVELS * POINTS, RUN * SIDES_PER_LANE, 2 * RUN
    arithmetic = ARITHMETIC[constants.dtype, config.arithmetic]
    pack, fetch, add = arithmetic.pack, arithmetic.fetch, arithmetic.add
    flush, store = arithmetic.flush, arithmetic.store
    SUMS, PARTIAL = arithmetic.words * CHUNKS_PER_LANE, 4 * CHUNKS_PER_LANE
    load_locations = number_loader(constants.location_dtype, COORDINATES)
    load_weights = number_loader(constants.weight_dtype, RUN)
    LOCATION_BYTES = 2 * ITEMSIZE[constants.location_dtype]
    WEIGHT_BYTES = ITEMSIZE[constants.weight_dtype]
    ROWS_PER_BLOCK = config.threads // LANES

    u64, i32 = types.uint64, types.int32

    @kernel(
        types.void(u64, u64, u64, u64, u64, i32, i32, i32, i32),
        threads=config.threads,
        min_blocks=config.min_blocks,
    )
    def direct(value, levels, locations, weights, out, rows, rows_per_batch, heads, spatial_size):
        tid = int32(cuda.threadIdx.x)
        lane = tid & int32(31)
        sub = tid & int32(LANES - 1)
        chunk = sub & int32(CHUNK_LANES - 1)
        side = (sub >> int32(SIDE_SHIFT)) & int32(SIDES - 1)
        part = sub >> int32(PART_SHIFT)
        first_lane = lane - chunk  # of the lanes that compute for this side and part

        row = int32(cuda.blockIdx.x) * int32(ROWS_PER_BLOCK) + (tid >> int32(ROW_SHIFT))
        valid = row < rows
        row = min(
            row, int32(rows - 1)
        )  # the last block's spare lanes work along, and store nothing
        batch = div_u32(row, rows_per_batch)
        pixel_bytes = int32(heads * int32(ROW_BYTES))
        plane = (
            value
            + uint64(batch) * uint64(spatial_size) * uint64(pixel_bytes)
            + uint64(rem_u32(row, heads) * uint32(ROW_BYTES))
        )
        samples = uint64(row) * uint64(SAMPLES)

        sums = cuda.local.array(SUMS, float32)
        partial = cuda.local.array(PARTIAL, uint32)
        for i in range(SUMS):
            sums[i] = float32(0)
        for i in range(PARTIAL):
            partial[i] = uint32(0)
        xy = cuda.local.array(COORDINATES, float32)
        attention = cuda.local.array(RUN, float32)
        offset = cuda.local.array(META, uint32)
        word_a = cuda.local.array(META, uint32)
        word_b = cuda.local.array(META, uint32)

        for r in range(ROUNDS):
            # Prepare this lane's run.
            first = ((int32(r * PARTS) + part) * int32(CHUNK_LANES) + chunk) * int32(RUN)
            mine = first < SAMPLES
            first = min(first, int32(SAMPLES - RUN))
            load_locations(locations + (samples + uint64(first)) * uint64(LOCATION_BYTES), xy)
            load_weights(weights + (samples + uint64(first)) * uint64(WEIGHT_BYTES), attention)
            height, width, start, row_stride = load_level(levels, div_u32(first, POINTS))
            own_pitch = uint32(row_stride * pixel_bytes) if height > 1 else uint32(0)
            for k in range(RUN):
                ix, fx, inside_x = locate(xy[2 * k], width)
                iy, fy, inside_y = locate(xy[2 * k + 1], height)
                a = attention[k]
                if not (mine and inside_x and inside_y):
                    a, fx, fy = float32(0), float32(0), float32(0)
                # Two rows that exist, and their weights: a row outside weighs nothing.
                top = clamp(iy, 0, max(int32(height - 2), int32(0)))
                for s in range(SIDES_PER_LANE):
                    column = ix + side + int32(s)
                    w_up, w_down = corner_weights(a, fx, fy, side + int32(s))
                    if column < 0 or column >= width:
                        w_up, w_down = float32(0), float32(0)
                    if iy < 0:
                        w_up, w_down = w_down, float32(0)
                    elif iy >= height - 1:
                        if height > 1:
                            w_up, w_down = float32(0), w_up
                        else:
                            w_down = float32(0)
                    m = k * SIDES_PER_LANE + s
                    pixel = start + top * row_stride + clamp(column, 0, width - 1)
                    offset[m] = uint32(pixel) * uint32(pixel_bytes)
                    word_a[m], word_b[m] = pack(w_up, w_down)

            # Go through the runs of all lanes.
            for i in range(CHUNK_LANES):
                owner = uint32(first_lane + int32(i))
                pitch = shfl_sync_idx_b32(uint32(ALL), own_pitch, owner)
                for k in range(RUN):
                    for s in range(SIDES_PER_LANE):
                        m = k * SIDES_PER_LANE + s
                        place = shfl_sync_idx_b32(uint32(ALL), offset[m], owner)
                        up, down = fetch(word_a[m], word_b[m], owner)
                        for c in range(CHUNKS_PER_LANE):
                            own = min(chunk + int32(c * CHUNK_LANES), int32(CHUNKS - 1))
                            address = plane + uint64(place) + uint64(own * int32(16))
                            add(sums, partial, c, ld_global_nc_L1_evict_last_v4(address), up)
                            address = address + uint64(pitch)
                            add(sums, partial, c, ld_global_nc_L1_evict_last_v4(address), down)
                if RUN >= 4:
                    flush(sums, partial, CHUNKS_PER_LANE)
            if RUN < 4:
                flush(sums, partial, CHUNKS_PER_LANE)

        sum_over_lanes(sums, SUMS, CHUNK_LANES, LANES)
        for c in range(CHUNKS_PER_LANE):
            own = chunk + int32(c * CHUNK_LANES)
            if valid and side == 0 and part == 0 and own < int32(CHUNKS):
                store(out + uint64(row) * uint64(ROW_BYTES) + uint64(own * int32(16)), sums, c)

    return direct


def arguments(operands, config):
    """The kernel's arguments for a call, in order; see ``op.Operands``."""
    o = operands
    return (
        o.value, o.levels, o.locations, o.weights, o.out,
        o.rows, o.rows_per_batch, o.heads, o.spatial_size,
    )  # fmt: skip


def blocks(problem, config):
    """Grid size: every row has its ``lanes`` lanes."""
    return -(-problem.rows // (config.threads // config.lanes))

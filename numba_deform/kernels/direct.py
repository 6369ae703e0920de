"""direct (S3): four plain 16-byte loads per sample, served by L1. Runs on any architecture.

One row (batch, query, head) belongs to a few neighbouring lanes (lanes.py). Every lane prepares a run of
samples: where the two rows of each 2x2 tile start and what they weigh. Then all lanes go through all
runs, fetch each sample's numbers from the lane that has them, and load and add their own 16 bytes.
"""

from numba import cuda, float32, int32, types, uint32, uint64

from ..compiler import kernel
from ..device.integer import div_u32, rem_u32
from ..device.memory import ld_global_nc_L1_evict_last_v4
from ..device.sync import shfl_sync_idx_b32
from .shared.accumulate import ALL, ARITHMETIC
from .shared.lanes import ITEMSIZE, lane_layout
from .shared.row import Row, row_parts
from .shared.sampling import clamp, corner_weights, load_level


def build(config, constants):
    """The kernel for a ``configs.Direct`` and ``configs.Constants``.

    Arguments of the kernel: addresses of value (B, S, H, C), levels (L, 4) int32, locations
    (B, Q, H, L, P, 2), weights (B, Q, H, L, P) and out (B, Q, H, C); rows = B*Q*H, rows of one
    batch, heads, S.
    """
    ROW_BYTES = constants.channels * ITEMSIZE[constants.dtype]
    layout = lane_layout(config.lanes, constants)
    CHUNKS, CHUNK_LANES, CHUNKS_PER_LANE = (
        layout.chunks, layout.chunk_lanes, layout.chunks_per_lane,
    )  # fmt: skip
    SIDES_PER_LANE, RUN, ROUNDS = layout.sides_per_lane, layout.run, layout.rounds
    META, ROWS_PER_BLOCK = RUN * SIDES_PER_LANE, config.threads // layout.lanes
    place, new_sums, _, new_raw, read_run, unpack, sample, write_row = row_parts(config, constants)
    arithmetic = ARITHMETIC[constants.dtype, config.arithmetic]
    pack, fetch, add, flush = arithmetic.pack, arithmetic.fetch, arithmetic.add, arithmetic.flush

    u64, i32 = types.uint64, types.int32

    @kernel(
        types.void(u64, u64, u64, u64, u64, i32, i32, i32, i32),
        threads=config.threads,
        min_blocks=config.min_blocks,
    )
    def direct(value, levels, locations, weights, out, rows, rows_per_batch, heads, spatial_size):
        me = place(int32(cuda.threadIdx.x))
        number = int32(cuda.blockIdx.x) * int32(ROWS_PER_BLOCK) + me.row
        valid = number < rows
        # The last block's spare lanes work along, and store nothing.
        number = min(number, int32(rows - 1))
        row = Row(
            int32(div_u32(number, rows_per_batch)), int32(rem_u32(number, heads)), number, valid
        )
        pixel_bytes = int32(heads * int32(ROW_BYTES))
        plane = (
            value
            + uint64(row.batch) * uint64(spatial_size) * uint64(pixel_bytes)
            + uint64(row.head * int32(ROW_BYTES))
        )

        acc, raw = new_sums(), new_raw()
        offset = cuda.local.array(META, uint32)
        word_a = cuda.local.array(META, uint32)
        word_b = cuda.local.array(META, uint32)

        for r in range(ROUNDS):
            # Prepare this lane's run.
            level, mine = read_run(locations, weights, row, r, me, raw)
            run = unpack(raw)
            height, width, start, row_stride = load_level(levels, level)
            own_pitch = uint32(row_stride * pixel_bytes) if height > 1 else uint32(0)
            for k in range(RUN):
                ix, fx, iy, fy, attention = sample(run, k, width, height, mine)
                # Two rows that exist, and their weights: a row outside weighs nothing.
                top = clamp(iy, 0, max(int32(height - 2), int32(0)))
                for s in range(SIDES_PER_LANE):
                    column = ix + me.side + int32(s)
                    w_up, w_down = corner_weights(attention, fx, fy, me.side + int32(s))
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
                owner = uint32(me.first_lane + int32(i))
                pitch = shfl_sync_idx_b32(uint32(ALL), own_pitch, owner)
                for k in range(RUN):
                    for s in range(SIDES_PER_LANE):
                        m = k * SIDES_PER_LANE + s
                        offset_here = shfl_sync_idx_b32(uint32(ALL), offset[m], owner)
                        up, down = fetch(word_a[m], word_b[m], owner)
                        for c in range(CHUNKS_PER_LANE):
                            own = min(me.chunk + int32(c * CHUNK_LANES), int32(CHUNKS - 1))
                            address = plane + uint64(offset_here) + uint64(own * int32(16))
                            add(
                                acc.sums, acc.partial, c, ld_global_nc_L1_evict_last_v4(address), up
                            )
                            address = address + uint64(pitch)
                            add(
                                acc.sums,
                                acc.partial,
                                c,
                                ld_global_nc_L1_evict_last_v4(address),
                                down,
                            )
                if RUN >= 4:
                    flush(acc.sums, acc.partial, CHUNKS_PER_LANE)
            if RUN < 4:
                flush(acc.sums, acc.partial, CHUNKS_PER_LANE)
        write_row(out, row, me, acc)

    return direct


def arguments(operands, config):
    """The kernel's arguments for a call, in order; see ``op.Operands``."""
    o = operands
    return (
        o.value, o.levels, o.locations, o.weights, o.out,
        o.rows, o.rows_per_batch, o.heads, o.spatial_size,
    )  # fmt: skip


def blocks(problem, config, resident):
    """Grid size: every row has its ``lanes`` lanes."""
    return -(-problem.rows // (config.threads // config.lanes))

"""tile (S4): the 2x2 tile goes through shared memory, copied by the lanes themselves. Any architecture.

What ``direct`` reads from L1 is here brought to shared memory first, and read from there; the same memory
serves all levels. ``copy=plain`` loads 16 bytes to registers and stores them; ``copy=cp_async`` leaves that
to the asynchronous copy of sm_80 on, so that STAGES - 1 steps are under way while one is added up:

    for each step:
        copy the step that is STAGES - 1 ahead
        wait until this step's copies have arrived, and all lanes' have
        add up

Pixels outside the level are filled with zeros, which TMA does by itself.
"""

from numba import cuda, int32, types, uint32, uint64

from ..compiler import kernel
from ..device.integer import div_u32
from ..device.marks import COMMIT, COMPUTE, ISSUE, RELEASE, WAIT, make_marks
from ..device.memory import (
    align_up,
    cp_async_cg_16,
    cp_async_commit_group,
    cp_async_wait_group,
    ld_global_nc_L1_evict_last_v4,
    shared_address,
    st_shared_v4,
    static_bytes,
)
from ..device.pipeline import first_state, make_advance
from ..device.sync import shfl_sync_idx_b32
from .shared.accumulate import ALL
from .shared.lanes import ITEMSIZE, lane_layout
from .shared.row import item_row, items, row_parts
from .shared.sampling import load_level
from .shared.tiles import dump_of, stage_layout, tile_parts


def shared_bytes(config, constants):
    """(bytes of tiles, bytes of barriers) of a block."""
    return config.threads // 32 * config.stages * stage_layout(config, constants).bytes, 0


def build(config, constants):
    """The kernel for a ``configs.Tile`` and ``configs.Constants``.

    Arguments: as ``direct`` up to out; as ``tma`` from debug on; then S.
    """
    layout, stage = lane_layout(config.lanes, constants), stage_layout(config, constants)
    CHUNKS, CHUNK_LANES, CHUNKS_PER_LANE = (
        layout.chunks, layout.chunk_lanes, layout.chunks_per_lane,
    )  # fmt: skip
    SIDES_PER_LANE, PARTS, RUN, ROUNDS = (
        layout.sides_per_lane, layout.parts, layout.run, layout.rounds,
    )  # fmt: skip
    ROW_BYTES, POINTS = constants.channels * ITEMSIZE[constants.dtype], constants.points
    SAMPLES = constants.levels * POINTS
    ROWS_PER_BLOCK = config.threads // config.lanes
    STAGES, LEAD, STAGE_BYTES = config.stages, config.stages - 1, stage.bytes
    STEP, RUN_STEPS, SLOT, PITCH = stage.step, stage.run_steps, stage.slot, stage.pitch
    TILES_BYTES, _ = shared_bytes(config, constants)
    STATIC_BYTES = static_bytes(TILES_BYTES)
    ROUND_RUNS, FLUSH_RUNS = CHUNK_LANES, stage.flush_runs
    ASYNC = config.copy == "cp_async"
    advance = make_advance(STAGES)
    open_marks, mark = make_marks(config.trace)
    place, new_sums, _, new_raw, read_run, _, _, write_row = row_parts(config, constants)
    new_tiles, prepare, _, slot_of, _, add_step, flush = tile_parts(config, constants)

    @cuda.jit(device=True, forceinline=True)
    def copy_pixel(target, plane, x, y, level, pixel_bytes, place):
        """One pixel's channels, this lane's chunks of them, to shared memory; zeros if it is outside."""
        height, width, start, row_stride = level
        inside = x >= 0 and x < width and y >= 0 and y < height
        pixel = start + y * row_stride + x if inside else start
        for c in range(CHUNKS_PER_LANE):
            own = min(place.chunk + int32(c * CHUNK_LANES), int32(CHUNKS - 1))
            address = plane + uint64(uint32(pixel) * uint32(pixel_bytes)) + uint64(own * int32(16))
            to = uint32(target + uint32(own * int32(16)))
            if place.chunk + int32(c * CHUNK_LANES) < int32(CHUNKS):
                if ASYNC:
                    cp_async_cg_16(to, address, uint32(16) if inside else uint32(0))
                elif inside:
                    words = ld_global_nc_L1_evict_last_v4(address)
                    st_shared_v4(to, words[0], words[1], words[2], words[3])
                else:
                    st_shared_v4(to, uint32(0), uint32(0), uint32(0), uint32(0))

    @cuda.jit(device=True, forceinline=True)
    def copy_step(slots, state, i, n, r, place, tiles, levels, plane, pixel_bytes):
        """All lanes of a row copy the tiles of step n of the run of lane i, which tells where they are.

        Past the last run nothing is copied, but the group is closed all the same: waits count groups.
        """
        if i < ROUND_RUNS:
            stage_slots = slots + uint32(state.stage) * uint32(STAGE_BYTES)
            owner = uint32(place.first_lane + int32(i))
            first = ((int32(r * PARTS) + place.part) * int32(CHUNK_LANES) + int32(i)) * int32(RUN)
            level = load_level(levels, int32(div_u32(min(first, int32(SAMPLES - RUN)), POINTS)))
            for j in range(STEP):
                x = int32(shfl_sync_idx_b32(uint32(ALL), uint32(tiles.x[n * STEP + j]), owner))
                y = int32(shfl_sync_idx_b32(uint32(ALL), uint32(tiles.y[n * STEP + j]), owner))
                for s in range(SIDES_PER_LANE):
                    side = place.side + int32(s)
                    target = uint32(
                        stage_slots + uint32(j * SLOT) + uint32(side * int32(ROW_BYTES))
                    )
                    copy_pixel(target, plane, int32(x + side), y, level, pixel_bytes, place)
                    target = uint32(target + uint32(PITCH))
                    copy_pixel(
                        target, plane, int32(x + side), int32(y + 1), level, pixel_bytes, place
                    )
        if ASYNC:
            cp_async_commit_group()

    u64, i32 = types.uint64, types.int32

    @kernel(
        types.void(u64, u64, u64, u64, u64, u64, i32, i32, i32, i32, i32),
        threads=config.threads,
        min_blocks=config.min_blocks,
    )
    def tile(
        value, levels, locations, weights, out, debug, debug_row, batches, rows_per_batch, heads,
        spatial_size,
    ):  # fmt: skip
        me = place(int32(cuda.threadIdx.x))
        row = item_row(cuda.blockIdx.x, me.row, batches, rows_per_batch, heads, ROWS_PER_BLOCK, 1)
        dump = dump_of(debug, debug_row, row)
        marks = open_marks(debug, debug_row, me.warp, me.lane)
        pixel_bytes = int32(heads * int32(ROW_BYTES))
        plane = (
            value
            + uint64(row.batch) * uint64(spatial_size) * uint64(pixel_bytes)
            + uint64(row.head * int32(ROW_BYTES))
        )
        shared = cuda.shared.array(STATIC_BYTES, types.uint8, alignment=128)
        tiles_address = align_up(shared_address(shared), uint32(128))
        slots = uint32(
            tiles_address + uint32(me.warp * int32(STAGES * STAGE_BYTES)) + slot_of(me)
        )  # of this row and part in stage 0

        acc, raw, tiles = new_sums(), new_raw(), new_tiles()
        ahead = now = first_state()
        for r in range(ROUNDS):
            level, mine = read_run(locations, weights, row, r, me, raw)
            height, width, _, _ = load_level(levels, level)
            prepare(raw, width, height, mine, me, tiles)
            for n in range(LEAD):
                i = n // RUN_STEPS
                mark(marks, ISSUE, ahead)
                copy_step(slots, ahead, i, n % RUN_STEPS, r, me, tiles, levels, plane, pixel_bytes)
                mark(marks, COMMIT, ahead)
                ahead = advance(ahead)
            for i in range(ROUND_RUNS):
                for n in range(RUN_STEPS):
                    next_i, next_n = i + (n + LEAD) // RUN_STEPS, (n + LEAD) % RUN_STEPS
                    mark(marks, ISSUE, ahead)
                    copy_step(
                        slots, ahead, next_i, next_n, r, me, tiles, levels, plane, pixel_bytes
                    )
                    mark(marks, COMMIT, ahead)
                    ahead = advance(ahead)
                    mark(marks, WAIT, now)
                    if ASYNC:
                        cp_async_wait_group(uint32(LEAD))  # all but the last LEAD have arrived
                    cuda.syncwarp()  # other lanes' copies have arrived too
                    mark(marks, COMPUTE, now)
                    here = uint32(slots + uint32(now.stage) * uint32(STAGE_BYTES))
                    add_step(acc, here, i, n, r, me, tiles, dump)
                    cuda.syncwarp()  # all lanes have read the stage: it may be refilled
                    mark(marks, RELEASE, now)
                    now = advance(now)
                if FLUSH_RUNS:
                    flush(acc)
            if not FLUSH_RUNS:
                flush(acc)
            if ASYNC:
                cp_async_wait_group(uint32(0))  # the empty groups of the steps past the end
            now = ahead = first_state()
        write_row(out, row, me, acc)

    return tile


def arguments(operands, config):
    """The kernel's arguments for a call, in order; see ``op.Operands``."""
    o = operands
    return (
        o.value, o.levels, o.locations, o.weights, o.out, o.debug, o.debug_row,
        o.problem.batch, o.rows_per_batch, o.heads, o.spatial_size,
    )  # fmt: skip


def blocks(problem, config, resident):
    """Grid size: an item of the problem for every block."""
    return items(problem, config.threads // config.lanes)

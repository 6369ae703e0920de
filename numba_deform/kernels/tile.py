"""tile: the 2x2 tile goes through shared memory, copied by the lanes themselves. Any architecture.

``copy=plain`` loads 16 bytes to registers and stores them; ``copy=cp_async`` leaves that to the asynchronous
copy of sm_80 on, so that STAGES - 1 steps are under way while one is added up:

    for each step:
        copy the step that is STAGES - 1 ahead
        wait until this step's copies have arrived, and all lanes' have
        add up

Pixels outside the level are filled with zeros, which TMA does by itself.
"""

from dataclasses import dataclass

from numba import cuda, int32, uint8, uint32, uint64

from ..compiler import i32, kernel, u64
from ..device.integer import quotient
from ..device.layout import Array, Shared
from ..device.memory import (
    cp_async_cg_16,
    cp_async_commit_group,
    cp_async_wait_group,
    global_at,
    ld_global_nc_L1_evict_last_v4,
    shared_at,
    st_shared_v4,
)
from ..device.pipeline import first_state, make_advance
from ..device.sync import shfl_sync_idx_b32
from .parts.accumulate import ALL
from .parts.config import LayoutBytes, Staged, one_of
from .parts.lanes import chunk_of, lane_layout
from .parts.row import item_row, items, row_parts
from .parts.sampling import load_level
from .parts.tiles import dump_of, stage_layout, tile_parts
from .problem import ITEMSIZE, ConfigError


@dataclass(frozen=True)
class Tile(Staged):
    """Parameters of ``tile``.

    threads  threads of a block, a multiple of 32
    copy     ``plain``: through registers, one stage; ``cp_async``: asynchronous 16-byte copies
    """

    threads: int = 128
    min_blocks: int = 3
    copy: str = "cp_async"

    def __post_init__(self):
        super().__post_init__()
        one_of(self, "copy", ("plain", "cp_async"))
        if self.copy == "plain" and self.stages > 1:
            rule = "copy=plain waits for its loads, so more than one stage has no use"
            raise ConfigError("stages", self.stages, rule)
        if self.stages > 8:
            raise ConfigError("stages", self.stages, "cp.async.wait_group is used with at most 7 groups")

    def shared_bytes(self, constants):
        return LayoutBytes(tiles_of(self, constants).bytes)


def tiles_of(config, constants):
    """The tiles of a block in shared memory: of each warp and stage, one behind the other, in bytes."""
    stage = stage_layout(config, constants)
    return Array((config.threads // 32, config.stages, stage.slots, stage.slot), uint8, alignment=128)


def build(config, constants):
    """The kernel for a :class:`Tile` and ``problem.Constants``.

    Its operands: as ``direct`` up to out; as ``tma`` from debug on; then S.
    """
    layout, stage = lane_layout(config.lanes, constants), stage_layout(config, constants)
    rows, steps = row_parts(config, constants), tile_parts(config, constants)
    ROW_BYTES, SAMPLES = constants.channels * ITEMSIZE[constants.dtype], constants.levels * constants.points
    POINTS, ROWS_PER_BLOCK, LEAD = constants.points, config.threads // config.lanes, config.stages - 1
    shared, ASYNC = Shared(tiles=tiles_of(config, constants)), config.copy == "cp_async"
    place, new_sums, new_raw, new_tiles = rows.place, rows.new_sums, rows.new_raw, steps.new_tiles
    advance = make_advance(config.stages)

    @cuda.jit(device=True, forceinline=True)
    def copy_pixel(target, plane, x, y, level, pixel_bytes, place):
        """One pixel's channels, this lane's chunks of them, to shared memory; zeros if it is outside."""
        height, width, start, row_stride = level
        inside = x >= 0 and x < width and y >= 0 and y < height
        pixel = start + y * row_stride + x if inside else start
        for c in range(layout.chunks_per_lane):
            chunk = chunk_of(place, c, layout)
            address = plane + uint64(uint32(pixel) * uint32(pixel_bytes)) + uint64(chunk * 16)
            to = shared_at(target, chunk, 16)
            if place.chunk + int32(c * layout.chunk_lanes) < layout.chunks:
                if ASYNC:
                    cp_async_cg_16(to, address, uint32(16) if inside else uint32(0))
                elif inside:
                    words = ld_global_nc_L1_evict_last_v4(address)
                    st_shared_v4(to, words[0], words[1], words[2], words[3])
                else:
                    st_shared_v4(to, uint32(0), uint32(0), uint32(0), uint32(0))

    @cuda.jit(device=True, forceinline=True)
    def issue(slots, state, i, n, r, place, tiles, levels, plane, pixel_bytes):
        """All lanes of a row copy the tiles of step n of the run of lane i, which tells where they are.

        Past the last run nothing is copied, but the group is closed all the same: waits count groups.
        """
        if i < layout.chunk_lanes:
            stage_slots = slots + uint32(state.stage) * uint32(stage.bytes)
            owner = uint32(place.first_lane + int32(i))
            run = (int32(r * layout.parts) + place.part) * int32(layout.chunk_lanes) + int32(i)
            first = min(run * int32(layout.run), int32(SAMPLES - layout.run))
            level = load_level(levels, quotient(first, POINTS))
            for j in range(stage.step):
                k = n * stage.step + j
                x = int32(shfl_sync_idx_b32(uint32(ALL), uint32(tiles.x[k]), owner))
                y = int32(shfl_sync_idx_b32(uint32(ALL), uint32(tiles.y[k]), owner))
                for s in range(layout.sides_per_lane):
                    side = place.side + int32(s)
                    upper = uint32(stage_slots + uint32(j * stage.slot) + uint32(side * ROW_BYTES))
                    copy_pixel(upper, plane, int32(x + side), y, level, pixel_bytes, place)
                    lower = uint32(upper + uint32(stage.pitch))
                    copy_pixel(lower, plane, int32(x + side), int32(y + 1), level, pixel_bytes, place)
        if ASYNC:
            cp_async_commit_group()

    @cuda.jit(device=True, forceinline=True)
    def wait(slots, state):
        """Wait until the copies of all lanes to this stage have arrived."""
        if ASYNC:
            cp_async_wait_group(uint32(LEAD))  # all groups of this lane but the last LEAD
        cuda.syncwarp()

    @cuda.jit(device=True, forceinline=True)
    def release(slots, state):
        """All lanes have read the stage: stores and ``cp.async`` may refill it, for which that is enough."""
        cuda.syncwarp()

    @kernel(threads=config.threads, min_blocks=config.min_blocks, shared=shared)
    def tile(
        value: u64, levels: u64, locations: u64, weights: u64, out: u64, debug: u64,
        debug_row: i32, batches: i32, rows_per_batch: i32, heads: i32, spatial_size: i32,
    ):  # fmt: skip
        me = place(cuda.threadIdx.x)
        row = item_row(cuda.blockIdx.x, me.row, batches, rows_per_batch, heads, ROWS_PER_BLOCK, 1)
        dump = dump_of(debug, debug_row, row)
        pixel_bytes = int32(heads * ROW_BYTES)
        plane = global_at(value, global_at(0, row.batch, spatial_size), pixel_bytes)
        plane = global_at(plane, row.head, ROW_BYTES)
        slots = uint32(shared.tiles.at(me.warp) + steps.slot_of(me))  # of this row and part in stage 0

        acc, raw, tiles = new_sums(), new_raw(), new_tiles()
        ahead = now = first_state()
        for r in range(layout.rounds):
            level, mine = rows.read_run(locations, weights, row, r, me, raw)
            height, width, _, _ = load_level(levels, level)
            steps.prepare(raw, width, height, mine, me, tiles)
            for n in range(LEAD):
                i = n // stage.run_steps
                issue(slots, ahead, i, n % stage.run_steps, r, me, tiles, levels, plane, pixel_bytes)
                ahead = advance(ahead)
            for i in range(layout.chunk_lanes):
                for n in range(stage.run_steps):
                    next_i, next_n = i + (n + LEAD) // stage.run_steps, (n + LEAD) % stage.run_steps
                    issue(slots, ahead, next_i, next_n, r, me, tiles, levels, plane, pixel_bytes)
                    ahead = advance(ahead)
                    wait(slots, now)
                    here = shared_at(slots, now.stage, stage.bytes)
                    steps.add_step(acc, here, i, n, r, me, tiles, dump)
                    release(slots, now)
                    now = advance(now)
                if stage.flush_runs:
                    steps.flush(acc)
            if not stage.flush_runs:
                steps.flush(acc)
            if ASYNC:
                cp_async_wait_group(uint32(0))  # the empty groups of the steps past the end
            now = ahead = first_state()
        rows.write_row(out, row, me, acc)

    return tile


def blocks(problem, config, resident):
    """Grid size: an item of the problem for every block."""
    return items(problem, config.threads // config.lanes)

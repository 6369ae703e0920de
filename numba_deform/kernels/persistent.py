"""persistent (S9, S16): as many blocks as fit, each warp walks through many rows, its pipeline runs on.

The one idea more than ``tma``: the ring never runs empty between two rows. When all of a row's steps have
been issued, the warp prepares its next row and goes on issuing, while it still adds up the last steps:

    prepare the first row, issue its first STAGES - 1 steps
    for each row:
        for each step:
            issue what is STAGES - 1 steps ahead, of this row or of the next
            wait, add up
        write the row

Barriers are initialised once, before the loop; stage and parity simply go on (initialising live barriers
at the top of the loop is undefined). A row of many samples takes several rounds (lanes.py); to the
pipeline a round is what a row is. ``prefetch`` reads the next round's locations and weights a whole
round before they are needed.
"""

from numba import cuda, int32, types, uint32

from ..compiler import kernel
from ..device.marks import COMMIT, COMPUTE, ISSUE, RELEASE, WAIT, make_marks
from ..device.memory import align_up, shared_address, static_bytes
from ..device.pipeline import Ring, first_state, init_barriers, make_advance, wait
from ..device.sync import fence_mbarrier_init
from .shared.lanes import lane_layout
from .shared.row import item_count, item_row, items, row_parts
from .shared.tiles import dump_of, stage_layout, tile_parts
from .tma import arguments, ring_barriers, shared_bytes, tma_parts

__all__ = ["arguments", "blocks", "build", "shared_bytes"]


def build(config, constants):
    """The kernel for a ``configs.Persistent``; its arguments are those of ``tma``."""
    layout, stage = lane_layout(config.lanes, constants), stage_layout(config, constants)
    THREADS, ROWS_PER_BLOCK = config.threads, config.threads // config.lanes
    ABREAST, PREFETCH = config.batches_abreast, config.prefetch
    STAGES, LEAD, STAGE_BYTES = config.stages, config.stages - 1, stage.bytes
    BARRIERS = ring_barriers(config, constants)
    TILES_BYTES, BARRIER_BYTES = shared_bytes(config, constants)
    STATIC_BYTES = static_bytes(TILES_BYTES + BARRIER_BYTES)
    ROUNDS, ROUND_RUNS = layout.rounds, layout.chunk_lanes
    RUN_STEPS, FLUSH_RUNS = stage.run_steps, stage.flush_runs
    # The next round is prepared before the run in which its first step is issued.
    PREPARE_RUN = (stage.round_steps - max(LEAD, 1)) // RUN_STEPS
    RUN, META = layout.run, layout.run * layout.sides_per_lane
    advance = make_advance(STAGES, BARRIERS)
    place, new_sums, clear, new_raw, read_run, _, _, write_row = row_parts(config, constants)
    new_tiles, _, _, slot_of, _, add_step, flush = tile_parts(config, constants)
    acquire_maps, aim, issue = tma_parts(config, constants)
    open_marks, mark = make_marks(config.trace)

    u64, i32 = types.uint64, types.int32

    @cuda.jit(device=True, forceinline=True)
    def copy_tiles(old, new):
        for k in range(RUN):
            old.x[k], old.y[k] = new.x[k], new.y[k]
        for m in range(META):
            old.word_a[m], old.word_b[m] = new.word_a[m], new.word_b[m]

    @cuda.jit(device=True, forceinline=True)
    def take_step(ring, now, i, n, r, place, tiles, slots, acc, dump, marks):
        """Wait for a step, add it up, free its stage; returns the state of the next one."""
        mark(marks, WAIT, now)
        wait(ring, now)
        mark(marks, COMPUTE, now)
        here = uint32(slots + uint32(now.stage) * uint32(STAGE_BYTES))
        add_step(acc, here, i, n, r, place, tiles, dump)
        cuda.syncwarp()  # all lanes have read the stage: it may be refilled
        mark(marks, RELEASE, now)
        return advance(now)

    @cuda.jit(device=True, forceinline=True)
    def issue_step(ring, ahead, i, n, r, place, tiles, origin, slots, marks):
        """Ask for a step; returns the state of the next one."""
        mark(marks, ISSUE, ahead)
        issue(ring, ahead, i, n, r, place, tiles, origin, slots)
        mark(marks, COMMIT, ahead)
        return advance(ahead)

    @kernel(
        types.void(u64, u64, u64, u64, u64, u64, i32, i32, i32, i32),
        threads=config.threads,
        min_blocks=config.min_blocks,
    )
    def persistent(
        maps, levels, locations, weights, out, debug, debug_row, batches, rows_per_batch, heads
    ):  # fmt: skip
        thread = int32(cuda.threadIdx.x)
        me = place(thread)
        items = item_count(batches, rows_per_batch, ROWS_PER_BLOCK)
        item, stride = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)

        shared = cuda.shared.array(STATIC_BYTES, types.uint8, alignment=128)
        tiles_address = align_up(shared_address(shared), uint32(128))
        full = uint32(tiles_address + uint32(TILES_BYTES) + uint32(me.warp * int32(8 * BARRIERS)))
        ring = Ring(full, uint32(0))
        slots = uint32(
            tiles_address + uint32(me.warp * int32(STAGES * STAGE_BYTES)) + slot_of(me)
        )  # of this row and part in stage 0
        if me.lane == 0:
            init_barriers(full, BARRIERS, 1)
            fence_mbarrier_init()  # the copy engine sees the barriers
        acquire_maps(maps, batches, thread, THREADS)
        cuda.syncthreads()

        marks = open_marks(debug, debug_row, me.warp, me.lane)
        acc, raw, tiles, next_tiles = new_sums(), new_raw(), new_tiles(), new_tiles()
        ahead = now = first_state()
        r = int32(0)
        row = item_row(
            min(item, int32(items - 1)),
            me.row,
            batches,
            rows_per_batch,
            heads,
            ROWS_PER_BLOCK,
            ABREAST,
        )
        level, mine = read_run(locations, weights, row, r, me, raw)
        origin = next_origin = aim(maps, levels, row, level, mine, me, raw, tiles)
        if item < items:
            for n in range(LEAD):
                ahead = issue_step(
                    ring, ahead, n // RUN_STEPS, n % RUN_STEPS, r, me, tiles, origin, slots, marks
                )

        while item < items:
            next_item, next_r = item, int32(r + 1)
            if next_r == ROUNDS:
                next_item, next_r = int32(item + stride), int32(0)
            next_row = item_row(
                min(next_item, int32(items - 1)), me.row, batches, rows_per_batch, heads,
                ROWS_PER_BLOCK, ABREAST,
            )  # fmt: skip
            dump = dump_of(debug, debug_row, row)
            if PREFETCH:
                level, mine = read_run(locations, weights, next_row, next_r, me, raw)

            for i in range(PREPARE_RUN):
                for n in range(RUN_STEPS):
                    ahead_i, ahead_n = i + (n + LEAD) // RUN_STEPS, (n + LEAD) % RUN_STEPS
                    ahead = issue_step(
                        ring, ahead, ahead_i, ahead_n, r, me, tiles, origin, slots, marks
                    )
                    now = take_step(ring, now, i, n, r, me, tiles, slots, acc, dump, marks)
                if FLUSH_RUNS:
                    flush(acc)
            if not PREFETCH:
                level, mine = read_run(locations, weights, next_row, next_r, me, raw)
            next_origin = aim(maps, levels, next_row, level, mine, me, raw, next_tiles)
            for i in range(PREPARE_RUN, ROUND_RUNS):
                for n in range(RUN_STEPS):
                    ahead_i, ahead_n = i + (n + LEAD) // RUN_STEPS, (n + LEAD) % RUN_STEPS
                    if ahead_i < ROUND_RUNS:
                        ahead = issue_step(
                            ring, ahead, ahead_i, ahead_n, r, me, tiles, origin, slots, marks
                        )
                    elif next_item < items:
                        ahead_i = ahead_i - ROUND_RUNS
                        ahead = issue_step(
                            ring,
                            ahead,
                            ahead_i,
                            ahead_n,
                            next_r,
                            me,
                            next_tiles,
                            next_origin,
                            slots,
                            marks,
                        )
                    now = take_step(ring, now, i, n, r, me, tiles, slots, acc, dump, marks)
                if FLUSH_RUNS:
                    flush(acc)
            if not FLUSH_RUNS:
                flush(acc)
            if next_r == 0:
                write_row(out, row, me, acc)
                clear(acc)
            item, r, row, origin = next_item, next_r, next_row, next_origin
            copy_tiles(tiles, next_tiles)

    return persistent


def blocks(problem, config, resident):
    """Grid size: the blocks that are resident at once, unless there are fewer rows."""
    return min(resident(), items(problem, config.threads // config.lanes))

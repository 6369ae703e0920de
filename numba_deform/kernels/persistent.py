"""persistent: as many blocks as fit, each warp walks through many rows, its pipeline runs on.

The one idea more than ``tma``: the ring never runs empty between two rows. When all of a row's steps have
been issued, the warp prepares its next row and goes on issuing, while it still adds up the last steps:

    prepare the first row, issue its first STAGES - 1 steps
    for each row:
        for each step:
            issue what is STAGES - 1 steps ahead, of this row or of the next
            wait, add up
        write the row

Barriers are initialised once, before the loop (to do so while they live is undefined); stage and parity
simply go on. A row of many samples takes several rounds (lanes.py); to the pipeline a round is what a row
is. ``prefetch`` reads the next round's locations and weights a round before they are needed.
"""

from dataclasses import dataclass

from numba import cuda, int32, types, uint32

from ..compiler import i32, kernel, u64
from ..device.memory import align_up, shared_address, shared_at, static_bytes
from ..device.pipeline import (
    BARRIER_POLICIES,
    Ring,
    first_state,
    init_barriers,
    make_advance,
    release_in_warp,
    wait,
)
from ..device.sync import fence_mbarrier_init
from .parts.config import Boxes, one_of
from .parts.lanes import lane_layout
from .parts.row import item_count, item_row, items, row_parts
from .parts.tiles import dump_of, stage_layout, tile_parts
from .problem import ConfigError
from .tma import ring_barriers, shared_bytes, tma_parts


@dataclass(frozen=True)
class Persistent(Boxes):
    """Parameters of ``persistent``.

    threads, barriers  as in ``Tma``
    prefetch  read the next row's locations and weights a row ahead
    """

    threads: int = 256
    min_blocks: int = 2
    points_per_stage: int = 4
    barriers: str = "parity"
    prefetch: bool = True

    barrier_scope = "warp"  # warps walk through their rows independently

    def __post_init__(self):
        super().__post_init__()
        one_of(self, "barriers", BARRIER_POLICIES)

    def complete(self, constants):
        config = super().complete(constants)
        steps = stage_layout(config, constants).round_steps
        if self.stages - 1 > steps:
            raise ConfigError(
                "stages",
                self.stages,
                f"a row goes through {steps} steps at a time, and the pipeline looks no further ahead "
                f"than the next row: at most {steps + 1}",
            )
        return config

    def shared_bytes(self, constants):
        return shared_bytes(self, constants)


def build(config, constants):
    """The kernel for a :class:`Persistent` and ``problem.Constants``; its operands are those of ``tma``."""
    layout, stage = lane_layout(config.lanes, constants), stage_layout(config, constants)
    rows, steps = row_parts(config, constants), tile_parts(config, constants)
    loads, shared_size = tma_parts(config, constants), shared_bytes(config, constants)
    THREADS, ROWS_PER_BLOCK = config.threads, config.threads // config.lanes
    ABREAST, LEAD, PREFETCH = config.batches_abreast, config.stages - 1, config.prefetch
    BARRIERS, WARP_BYTES = ring_barriers(config, constants), config.stages * stage.bytes
    STATIC_BYTES = static_bytes(sum(shared_size))
    # The next round is prepared before the run in which its first step is issued.
    PREPARE_RUN = (stage.round_steps - max(LEAD, 1)) // stage.run_steps
    WORDS = layout.run * layout.sides_per_lane
    place, new_sums, new_raw, new_tiles = rows.place, rows.new_sums, rows.new_raw, steps.new_tiles
    advance, issue, release = make_advance(config.stages, BARRIERS), loads.issue, release_in_warp

    @cuda.jit(device=True, inline="always")
    def row_of(item, items, me, batches, rows_per_batch, heads):
        """The row of this lane in an item, or in the last one."""
        item = min(item, int32(items - 1))
        return item_row(item, me.row, batches, rows_per_batch, heads, ROWS_PER_BLOCK, ABREAST)

    @cuda.jit(device=True, forceinline=True)
    def copy_tiles(old, new):
        for k in range(layout.run):
            old.x[k], old.y[k] = new.x[k], new.y[k]
        for m in range(WORDS):
            old.word_a[m], old.word_b[m] = new.word_a[m], new.word_b[m]

    @cuda.jit(device=True, forceinline=True)
    def take_step(ring, now, i, n, r, place, tiles, slots, acc, dump):
        """Wait for a step, add it up, free its stage; returns the state of the next one."""
        wait(ring, now)
        here = shared_at(slots, now.stage, stage.bytes)
        steps.add_step(acc, here, i, n, r, place, tiles, dump)
        release(ring, now)
        return advance(now)

    @kernel(threads=THREADS, min_blocks=config.min_blocks)
    def persistent(
        maps: u64, levels: u64, locations: u64, weights: u64, out: u64, debug: u64,
        debug_row: i32, batches: i32, rows_per_batch: i32, heads: i32,
    ):  # fmt: skip
        thread = int32(cuda.threadIdx.x)
        me = place(thread)
        items = item_count(batches, rows_per_batch, ROWS_PER_BLOCK)
        item, stride = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)

        # By hand as in tma.py, whose ``issue`` it calls.
        shared = cuda.shared.array(STATIC_BYTES, types.uint8, alignment=128)
        tiles_address = align_up(shared_address(shared), uint32(128))
        full = shared_at(tiles_address + uint32(shared_size.tiles), me.warp, 8 * BARRIERS)
        ring = Ring(full, uint32(0))
        # The tiles of this row and part in stage 0.
        slots = uint32(shared_at(tiles_address, me.warp, WARP_BYTES) + steps.slot_of(me))
        if me.lane == 0:
            init_barriers(full, BARRIERS, 1)
            fence_mbarrier_init()  # the copy engine sees the barriers
        loads.acquire_maps(maps, batches, thread, THREADS)
        cuda.syncthreads()

        acc, raw, tiles, next_tiles = new_sums(), new_raw(), new_tiles(), new_tiles()
        ahead = now = first_state()
        r = int32(0)
        row = row_of(item, items, me, batches, rows_per_batch, heads)
        level, mine = rows.read_run(locations, weights, row, r, me, raw)
        origin = next_origin = loads.aim(maps, levels, row, level, mine, me, raw, tiles)
        if item < items:
            for n in range(LEAD):
                i = n // stage.run_steps
                issue(ring, ahead, i, n % stage.run_steps, r, me, tiles, origin, slots)
                ahead = advance(ahead)

        while item < items:
            next_item, next_r = item, int32(r + 1)
            if next_r == layout.rounds:
                next_item, next_r = int32(item + stride), int32(0)
            next_row = row_of(next_item, items, me, batches, rows_per_batch, heads)
            dump = dump_of(debug, debug_row, row)
            if PREFETCH:
                level, mine = rows.read_run(locations, weights, next_row, next_r, me, raw)

            for i in range(PREPARE_RUN):
                for n in range(stage.run_steps):
                    ahead_i, ahead_n = i + (n + LEAD) // stage.run_steps, (n + LEAD) % stage.run_steps
                    issue(ring, ahead, ahead_i, ahead_n, r, me, tiles, origin, slots)
                    ahead = advance(ahead)
                    now = take_step(ring, now, i, n, r, me, tiles, slots, acc, dump)
                if stage.flush_runs:
                    steps.flush(acc)
            if not PREFETCH:
                level, mine = rows.read_run(locations, weights, next_row, next_r, me, raw)
            next_origin = loads.aim(maps, levels, next_row, level, mine, me, raw, next_tiles)
            for i in range(PREPARE_RUN, layout.chunk_lanes):
                for n in range(stage.run_steps):
                    ahead_i, ahead_n = i + (n + LEAD) // stage.run_steps, (n + LEAD) % stage.run_steps
                    if ahead_i < layout.chunk_lanes:
                        issue(ring, ahead, ahead_i, ahead_n, r, me, tiles, origin, slots)
                        ahead = advance(ahead)
                    elif next_item < items:
                        ahead_i = ahead_i - layout.chunk_lanes
                        issue(ring, ahead, ahead_i, ahead_n, next_r, me, next_tiles, next_origin, slots)
                        ahead = advance(ahead)
                    now = take_step(ring, now, i, n, r, me, tiles, slots, acc, dump)
                if stage.flush_runs:
                    steps.flush(acc)
            if not stage.flush_runs:
                steps.flush(acc)
            if next_r == 0:
                rows.write_row(out, row, me, acc)
                rows.clear(acc)
            item, r, row, origin = next_item, next_r, next_row, next_origin
            copy_tiles(tiles, next_tiles)

    return persistent


def blocks(problem, config, resident):
    """Grid size: the blocks that are resident at once, unless there are fewer rows."""
    return min(resident(), items(problem, config.threads // config.lanes))

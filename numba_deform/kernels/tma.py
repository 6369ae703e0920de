"""tma (S5, S6, S7, S18): each 2x2 tile arrives by one TMA instruction, through a ring of stages per warp.

The loop is the guide's:

    prologue: issue the first STAGES - 1 steps
    for each step:
        issue the step that is STAGES - 1 ahead, into the stage that the last step has left free
        wait for this step's tiles
        add them up

Refilling a stage is safe because the warp has synchronised since it was last read (``syncwarp`` at the
end of each step), so no empty barrier is needed. Pixels outside the level arrive as zeros, so the
border needs no care at all.

``barriers`` says which full barrier a step uses (device/pipeline.py). With ``barrier_scope=block`` all
warps share them: each still reads its own tiles only, but waits for everybody's.
"""

import functools
from collections import namedtuple
from typing import NamedTuple

from numba import cuda, int32, types, uint32, uint64

from ..compiler import kernel
from ..device.marks import COMMIT, COMPUTE, ISSUE, RELEASE, WAIT, make_marks
from ..device.memory import align_up, shared_address, static_bytes
from ..device.pipeline import (
    Ring,
    barrier_count,
    commit,
    first_state,
    full_barrier,
    init_barriers,
    make_advance,
    wait,
)
from ..device.sync import fence_mbarrier_init
from ..device.tma import (
    cp_async_bulk_tensor_3d,
    cp_async_bulk_tensor_5d,
    fence_proxy_tensormap_acquire_sys,
    prefetch_tensormap,
)
from .shared.lanes import lane_layout
from .shared.row import item_row, items, row_parts
from .shared.sampling import load_level
from .shared.tiles import dump_of, stage_layout, tile_parts

# Where a lane's tiles come from: the map of its run's level, head and batch, and whose turn it is when
# this lane issues (-1: it never does).
Source = namedtuple("Source", ["map", "head", "batch", "owner"])


class MapParts(NamedTuple):
    """Device functions over the tensor maps of a value, whose address is ``maps``.

    acquire_maps(maps, batches, thread, threads)   maps are seen as the host wrote them, and prefetched
    map_of(maps, batch, level)                     a map's address
    load_box(box, map, head, batch, x, y, bar)     one TMA instruction, to shared address ``box``
    """

    acquire_maps: object
    map_of: object
    load_box: object


@functools.cache
def map_parts(constants, maps, fence=True, prefetch=True):
    """:class:`MapParts` where there is a map for each ``batch`` and level, or one for each ``level``."""
    LEVELS, CHANNELS, PER_BATCH = constants.levels, constants.channels, maps == "batch"
    FENCE, PREFETCH = fence, prefetch

    @cuda.jit(device=True, forceinline=True)
    def acquire_maps(maps, batches, thread, threads):
        # Once for each block and map is enough, and each costs: the SM has to fetch the map again.
        count = LEVELS * batches if PER_BATCH else LEVELS
        for i in range(thread, count, threads):
            if FENCE:
                fence_proxy_tensormap_acquire_sys(maps + uint64(128) * uint64(i))
            if PREFETCH:
                prefetch_tensormap(maps + uint64(128) * uint64(i))

    @cuda.jit(device=True, forceinline=True)
    def map_of(maps, batch, level):
        number = batch * int32(LEVELS) + level if PER_BATCH else level
        return maps + uint64(128) * uint64(number)

    @cuda.jit(device=True, forceinline=True)
    def load_box(box, map, head, batch, x, y, bar):
        if PER_BATCH:
            cp_async_bulk_tensor_3d(box, map, head * int32(CHANNELS), x, y, bar)
        else:
            cp_async_bulk_tensor_5d(box, map, int32(0), head, x, y, batch, bar)

    return MapParts(acquire_maps, map_of, load_box)


class TmaParts(NamedTuple):
    """Device functions, beside those of ``tiles.TileParts``.

    acquire_maps(maps, batches, thread, threads)   as in :class:`MapParts`
    aim(maps, levels, row, level, mine, place, raw, tiles)
                                                   -> Source; prepares the tiles of the run that was read
    issue(ring, state, i, n, r, place, tiles, source, slots)
                                                   asks for step n of the run of lane i in round r, into
                                                   the state's stage
    """

    acquire_maps: object
    aim: object
    issue: object


@functools.cache
def tma_parts(config, constants):
    """:class:`TmaParts` for a ``configs.Tma``."""
    stage = stage_layout(config, constants)
    STEP, ROWS_PER_WARP = stage.step, 32 // config.lanes
    TILE, SLOT, STAGE_BYTES = stage.tile, stage.slot, stage.bytes
    _, prepare, runs_of, _, _, _, _ = tile_parts(config, constants)
    acquire_maps, map_of, load_box = map_parts(
        constants, config.maps, config.tensormap_fence, config.prefetch_maps
    )

    @cuda.jit(device=True, forceinline=True)
    def aim(maps, levels, row, level, mine, place, raw, tiles):
        height, width, _, _ = load_level(levels, level)
        prepare(raw, width, height, mine, place, tiles)
        # A run is issued by one lane: on the left side, and only if it exists.
        owner = place.chunk if mine and place.side == 0 else int32(-1)
        return Source(map_of(maps, row.batch, level), row.head, row.batch, int32(owner))

    @cuda.jit(device=True, forceinline=True)
    def issue(ring, state, i, n, r, place, tiles, source, slots):
        # The owners of the run ask for tiles, lane 0 says how many bytes that is.
        if place.lane == 0:
            commit(ring, state, uint32(ROWS_PER_WARP * STEP * TILE) * uint32(runs_of(r, i)))
        if source.owner == i:
            for j in range(STEP):
                tile = uint32(slots + uint32(state.stage) * uint32(STAGE_BYTES) + uint32(j * SLOT))
                k = n * STEP + j
                load_box(
                    tile, source.map, source.head, source.batch, tiles.x[k], tiles.y[k],
                    full_barrier(ring, state),
                )  # fmt: skip

    return TmaParts(acquire_maps, aim, issue)


def ring_barriers(config, constants):
    """Full barriers of one ring."""
    return barrier_count(config.barriers, config.stages, stage_layout(config, constants).row_steps)


def shared_bytes(config, constants):
    """(bytes of tiles, bytes of barriers) of a block, in this order in shared memory."""
    warps = config.threads // 32
    rings = warps if config.barrier_scope == "warp" else 1
    tiles = warps * config.stages * stage_layout(config, constants).bytes
    return tiles, rings * ring_barriers(config, constants) * 8


def build(config, constants, add=True):
    """The kernel for a ``configs.Tma`` and ``configs.Constants``; without ``add`` it only fetches tiles.

    Arguments: address of the tensor maps, one rank-3 map (H*C, w, h) for each (batch, level) in the
    order b*L + l or one rank-5 map for each level, then as ``direct`` up to out; where the tiles of one
    row go for debug=1 (L*P tiles), and that row; B, rows of one batch, heads.
    """
    layout, stage = lane_layout(config.lanes, constants), stage_layout(config, constants)
    WARPS, THREADS = config.threads // 32, config.threads
    ROWS_PER_BLOCK, ABREAST = config.threads // config.lanes, config.batches_abreast
    STAGES, LEAD, STAGE_BYTES = config.stages, config.stages - 1, stage.bytes
    BARRIERS, PER_WARP = ring_barriers(config, constants), config.barrier_scope == "warp"
    ARRIVALS = 1 if PER_WARP else WARPS
    MAPS_BYTES = 128 * constants.levels if config.maps == "batch" else 0  # of one batch
    TILES_BYTES, BARRIER_BYTES = shared_bytes(config, constants)
    STATIC_BYTES = static_bytes(TILES_BYTES + BARRIER_BYTES)
    ROUNDS, RUN_STEPS, FLUSH_RUNS = layout.rounds, stage.run_steps, stage.flush_runs
    # The ring runs empty after so many runs: those of a round, or of one level.
    ROUND_RUNS = layout.chunk_lanes
    STRETCH = (
        ROUND_RUNS if config.across_levels else min(constants.points // layout.run, ROUND_RUNS)
    )
    STRETCHES = ROUND_RUNS // STRETCH
    ADD = add
    advance = make_advance(STAGES, BARRIERS)
    place, new_sums, _, new_raw, read_run, _, _, write_row = row_parts(config, constants)
    new_tiles, _, _, slot_of, _, add_step, flush = tile_parts(config, constants)
    acquire_maps, aim, issue = tma_parts(config, constants)
    open_marks, mark = make_marks(config.trace)

    u64, i32 = types.uint64, types.int32

    @kernel(
        types.void(u64, u64, u64, u64, u64, u64, i32, i32, i32, i32),
        threads=config.threads,
        min_blocks=config.min_blocks,
    )
    def tma(
        maps, levels, locations, weights, out, debug, debug_row, batches, rows_per_batch, heads
    ):  # fmt: skip
        thread = int32(cuda.threadIdx.x)
        me = place(thread)
        row = item_row(
            cuda.blockIdx.x, me.row, batches, rows_per_batch, heads, ROWS_PER_BLOCK, ABREAST
        )
        dump = dump_of(debug, debug_row, row)
        marks = open_marks(debug, debug_row, me.warp, me.lane)
        maps_here = maps + uint64(row.batch) * uint64(MAPS_BYTES)

        shared = cuda.shared.array(STATIC_BYTES, types.uint8, alignment=128)
        tiles_address = align_up(shared_address(shared), uint32(128))
        full = tiles_address + uint32(TILES_BYTES)
        if PER_WARP:
            full = uint32(full + uint32(me.warp * int32(8 * BARRIERS)))
        ring = Ring(full, uint32(0))
        slots = uint32(
            tiles_address + uint32(me.warp * int32(STAGES * STAGE_BYTES)) + slot_of(me)
        )  # of this row and part in stage 0

        if (me.lane if PER_WARP else thread) == 0:
            init_barriers(full, BARRIERS, ARRIVALS)
            fence_mbarrier_init()  # the copy engine sees the barriers
        acquire_maps(maps_here, 1, thread, THREADS)
        cuda.syncthreads()

        acc, raw, tiles = new_sums(), new_raw(), new_tiles()
        ahead = now = first_state()
        for r in range(ROUNDS):
            level, mine = read_run(locations, weights, row, r, me, raw)
            origin = aim(maps, levels, row, level, mine, me, raw, tiles)
            for stretch in range(STRETCHES):
                first = int32(stretch * STRETCH)
                for n in range(min(LEAD, STRETCH * RUN_STEPS)):
                    i = first + int32(n // RUN_STEPS)
                    mark(marks, ISSUE, ahead)
                    issue(ring, ahead, i, n % RUN_STEPS, r, me, tiles, origin, slots)
                    mark(marks, COMMIT, ahead)
                    ahead = advance(ahead)
                for i in range(STRETCH):
                    for n in range(RUN_STEPS):
                        next_i = i + (n + LEAD) // RUN_STEPS
                        if next_i < STRETCH:
                            next_n = (n + LEAD) % RUN_STEPS
                            next_i = first + int32(next_i)
                            mark(marks, ISSUE, ahead)
                            issue(ring, ahead, next_i, next_n, r, me, tiles, origin, slots)
                            mark(marks, COMMIT, ahead)
                            ahead = advance(ahead)
                        mark(marks, WAIT, now)
                        wait(ring, now)
                        mark(marks, COMPUTE, now)
                        here = uint32(slots + uint32(now.stage) * uint32(STAGE_BYTES))
                        if ADD:
                            add_step(acc, here, first + int32(i), n, r, me, tiles, dump)
                        cuda.syncwarp()  # all lanes have read the stage: it may be refilled
                        mark(marks, RELEASE, now)
                        now = advance(now)
                    if FLUSH_RUNS:
                        flush(acc)
            if not FLUSH_RUNS:
                flush(acc)
        write_row(out, row, me, acc)

    return tma


def arguments(operands, config):
    """The kernel's arguments for a call, in order; see ``op.Operands``."""
    o = operands
    return (
        o.maps(config.maps, config.box, config.l2_promotion), o.levels, o.locations, o.weights, o.out,
        o.debug, o.debug_row, o.problem.batch, o.rows_per_batch, o.heads,
    )  # fmt: skip


def blocks(problem, config, resident):
    """Grid size: an item of the problem for every block."""
    return items(problem, config.threads // config.lanes)

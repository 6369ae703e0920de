"""tma: each 2x2 tile arrives by one TMA instruction, through a ring of stages per warp.

The loop:

    prologue: issue the first STAGES - 1 steps
    for each step:
        issue the step that is STAGES - 1 ahead, into the stage that the last step has left free
        wait for this step's tiles
        add them up

Refilling a stage is safe because the warp has synchronised since it was last read (``release`` is a
``syncwarp``), so no empty barrier is needed. Pixels outside the level arrive as zeros, so the
border needs no care at all.

With ``barrier_scope=block`` all warps share the barriers: each still reads its own tiles only, but waits for
everybody's.
"""

import functools
from collections import namedtuple
from dataclasses import dataclass
from typing import NamedTuple

from numba import cuda, int32, types, uint32

from ..compiler import i32, kernel, u64
from ..device.memory import align_up, global_at, shared_address, shared_at, static_bytes
from ..device.pipeline import (
    BARRIER_POLICIES,
    Ring,
    barrier_count,
    commit,
    first_state,
    full_barrier,
    init_barriers,
    make_advance,
    release_in_warp,
    wait,
)
from ..device.sync import fence_mbarrier_init
from ..device.tma import (
    cp_async_bulk_tensor_3d,
    cp_async_bulk_tensor_5d,
    fence_proxy_tensormap_acquire_sys,
    prefetch_tensormap,
)
from .parts.config import Boxes, SharedBytes, one_of
from .parts.lanes import lane_layout
from .parts.row import item_row, items, row_parts
from .parts.sampling import load_level
from .parts.tiles import dump_of, stage_layout, tile_parts
from .problem import ConfigError


@dataclass(frozen=True)
class Tma(Boxes):
    """Parameters of ``tma``.

    threads        threads of a block, a multiple of 32
    barriers       which full barrier a step uses: ``parity`` (one a stage), ``point`` (one for each step
                   of a row), ``ping_pong`` (two a stage)
    barrier_scope  ``warp``: every warp has its ring's barriers; ``block``: all warps share them
    across_levels  the next level's loads are issued while this level is added up; off drains the
                   ring at the end of each level
    """

    threads: int = 256
    min_blocks: int = 3
    barriers: str = "parity"
    barrier_scope: str = "warp"
    across_levels: bool = True

    def __post_init__(self):
        super().__post_init__()
        one_of(self, "barriers", BARRIER_POLICIES)
        one_of(self, "barrier_scope", ("warp", "block"))

    def complete(self, constants):
        config = super().complete(constants)
        layout = stage_layout(config, constants)
        level_steps = constants.points // layout.step
        uneven = layout.round_steps % level_steps and level_steps % layout.round_steps
        if not self.across_levels and uneven:
            raise ConfigError(
                "across_levels",
                0,
                f"a round of {layout.round_steps} steps ends inside a level of {level_steps}; "
                "change lanes or points_per_stage",
            )
        return config

    def shared_bytes(self, constants):
        return shared_bytes(self, constants)


# Where a lane's tiles come from: the map of its run's level, head and batch, and whose turn it is when
# this lane issues (-1: it never does).
Source = namedtuple("Source", ["map", "head", "batch", "owner"])


class MapParts(NamedTuple):
    """Device functions over the tensor maps of a value, whose address is ``maps``."""

    acquire_maps: object  # (maps, batches, thread, threads): seen as the host wrote them, and prefetched
    map_of: object  # (maps, batch, level) -> a map's address
    load_box: object  # (box, map, head, batch, x, y, bar): one TMA instruction, to shared address ``box``


@functools.cache
def map_parts(constants, maps, fence=True, prefetch=True):
    """:class:`MapParts` where there is a map for each ``batch`` and level, or one for each ``level``."""
    LEVELS, CHANNELS, PER_BATCH = constants.levels, constants.channels, maps == "batch"

    @cuda.jit(device=True, forceinline=True)
    def acquire_maps(maps, batches, thread, threads):
        # Once for each block and map is enough, and each costs: the SM has to fetch the map again.
        count = LEVELS * batches if PER_BATCH else LEVELS
        for i in range(thread, count, threads):
            if fence:
                fence_proxy_tensormap_acquire_sys(global_at(maps, i, 128))
            if prefetch:
                prefetch_tensormap(global_at(maps, i, 128))

    @cuda.jit(device=True, forceinline=True)
    def map_of(maps, batch, level):
        number = batch * int32(LEVELS) + level if PER_BATCH else level
        return global_at(maps, number, 128)

    @cuda.jit(device=True, forceinline=True)
    def load_box(box, map, head, batch, x, y, bar):
        if PER_BATCH:
            cp_async_bulk_tensor_3d(box, map, head * int32(CHANNELS), x, y, bar)
        else:
            cp_async_bulk_tensor_5d(box, map, int32(0), head, x, y, batch, bar)

    return MapParts(acquire_maps, map_of, load_box)


class TmaParts(NamedTuple):
    """Device functions, beside those of ``tiles.TileParts``."""

    acquire_maps: object  # that of MapParts
    # (maps, levels, row, level, mine, place, raw, tiles) -> Source; prepares the tiles of the run that was read
    aim: object
    # (ring, state, i, n, r, place, tiles, source, slots): asks for step n of the run of lane i in round r, into
    # the state's stage
    issue: object


@functools.cache
def tma_parts(config, constants):
    """:class:`TmaParts` for a :class:`Tma` or ``persistent.Persistent``."""
    stage, steps = stage_layout(config, constants), tile_parts(config, constants)
    WARP_STEP_BYTES = 32 // config.lanes * stage.step * stage.tile
    maps_of = map_parts(constants, config.maps, config.tensormap_fence, config.prefetch_maps)

    @cuda.jit(device=True, forceinline=True)
    def aim(maps, levels, row, level, mine, place, raw, tiles):
        height, width, _, _ = load_level(levels, level)
        steps.prepare(raw, width, height, mine, place, tiles)
        # A run is issued by one lane: on the left side, and only if it exists.
        owner = place.chunk if mine and place.side == 0 else int32(-1)
        return Source(maps_of.map_of(maps, row.batch, level), row.head, row.batch, int32(owner))

    @cuda.jit(device=True, forceinline=True)
    def issue(ring, state, i, n, r, place, tiles, source, slots):
        # The owners of the run ask for tiles, lane 0 says how many bytes that is.
        if place.lane == 0:
            commit(ring, state, uint32(WARP_STEP_BYTES) * uint32(steps.runs_of(r, i)))
        if source.owner == i:
            slot = shared_at(slots, state.stage, stage.bytes)
            for j in range(stage.step):
                k = n * stage.step + j
                maps_of.load_box(
                    shared_at(slot, j, stage.slot), source.map, source.head, source.batch,
                    tiles.x[k], tiles.y[k], full_barrier(ring, state),
                )  # fmt: skip

    return TmaParts(maps_of.acquire_maps, aim, issue)


def ring_barriers(config, constants):
    """Full barriers of one ring."""
    return barrier_count(config.barriers, config.stages, stage_layout(config, constants).row_steps)


def shared_bytes(config, constants):
    """The ``SharedBytes`` of a block with a ring of tiles for each warp, in this order in shared memory."""
    warps = config.threads // 32
    rings = warps if config.barrier_scope == "warp" else 1
    tiles = warps * config.stages * stage_layout(config, constants).bytes
    return SharedBytes(tiles, rings * ring_barriers(config, constants) * 8)


def build(config, constants, add=True):
    """The kernel for a :class:`Tma` and ``problem.Constants``; without ``add`` it only fetches tiles.

    Its operands: address of the tensor maps (level_maps.py), then as ``direct`` up to out; where the tiles of
    one row go for debug=1 (L*P tiles), and that row; B, rows of one batch, heads.
    """
    layout, stage = lane_layout(config.lanes, constants), stage_layout(config, constants)
    rows, steps = row_parts(config, constants), tile_parts(config, constants)
    loads, shared_size = tma_parts(config, constants), shared_bytes(config, constants)
    THREADS, ROWS_PER_BLOCK = config.threads, config.threads // config.lanes
    ABREAST, LEAD, ADD = config.batches_abreast, config.stages - 1, add
    BARRIERS, PER_WARP = ring_barriers(config, constants), config.barrier_scope == "warp"
    ARRIVALS = 1 if PER_WARP else THREADS // 32
    MAPS_BYTES = 128 * constants.levels if config.maps == "batch" else 0  # of one batch
    WARP_BYTES, STATIC_BYTES = config.stages * stage.bytes, static_bytes(sum(shared_size))
    # The ring runs empty after so many runs: those of a round, or of one level.
    STRETCH = layout.chunk_lanes
    if not config.across_levels:
        STRETCH = min(constants.points // layout.run, STRETCH)
    STRETCHES = layout.chunk_lanes // STRETCH
    place, new_sums, new_raw, new_tiles = rows.place, rows.new_sums, rows.new_raw, steps.new_tiles
    advance, issue, release = make_advance(config.stages, BARRIERS), loads.issue, release_in_warp

    @kernel(threads=THREADS, min_blocks=config.min_blocks)
    def tma(
        maps: u64, levels: u64, locations: u64, weights: u64, out: u64, debug: u64,
        debug_row: i32, batches: i32, rows_per_batch: i32, heads: i32,
    ):  # fmt: skip
        thread = int32(cuda.threadIdx.x)
        me = place(thread)
        row = item_row(cuda.blockIdx.x, me.row, batches, rows_per_batch, heads, ROWS_PER_BLOCK, ABREAST)
        dump = dump_of(debug, debug_row, row)

        # By hand: through a layout.Shared most variants have fewer instructions, but some take 1 to 4 registers
        # more: tma-rank5 in fp16 with L=3 P=4 C=64, 51 in place of 48, so 4 blocks on an SM and not 5.
        shared = cuda.shared.array(STATIC_BYTES, types.uint8, alignment=128)
        tiles_address = align_up(shared_address(shared), uint32(128))
        full = tiles_address + uint32(shared_size.tiles)
        if PER_WARP:
            full = shared_at(full, me.warp, 8 * BARRIERS)
        ring = Ring(full, uint32(0))
        # The tiles of this row and part in stage 0.
        slots = uint32(shared_at(tiles_address, me.warp, WARP_BYTES) + steps.slot_of(me))

        if (me.lane if PER_WARP else thread) == 0:
            init_barriers(full, BARRIERS, ARRIVALS)
            fence_mbarrier_init()  # the copy engine sees the barriers
        loads.acquire_maps(global_at(maps, row.batch, MAPS_BYTES), 1, thread, THREADS)
        cuda.syncthreads()

        acc, raw, tiles = new_sums(), new_raw(), new_tiles()
        ahead = now = first_state()
        for r in range(layout.rounds):
            level, mine = rows.read_run(locations, weights, row, r, me, raw)
            origin = loads.aim(maps, levels, row, level, mine, me, raw, tiles)
            for stretch in range(STRETCHES):
                first = int32(stretch * STRETCH)
                for n in range(min(LEAD, STRETCH * stage.run_steps)):
                    i = first + int32(n // stage.run_steps)
                    issue(ring, ahead, i, n % stage.run_steps, r, me, tiles, origin, slots)
                    ahead = advance(ahead)
                for i in range(STRETCH):
                    for n in range(stage.run_steps):
                        next_i, next_n = i + (n + LEAD) // stage.run_steps, (n + LEAD) % stage.run_steps
                        if next_i < STRETCH:
                            next_i = first + int32(next_i)
                            issue(ring, ahead, next_i, next_n, r, me, tiles, origin, slots)
                            ahead = advance(ahead)
                        wait(ring, now)
                        here = shared_at(slots, now.stage, stage.bytes)
                        if ADD:
                            steps.add_step(acc, here, first + int32(i), n, r, me, tiles, dump)
                        release(ring, now)
                        now = advance(now)
                    if stage.flush_runs:
                        steps.flush(acc)
            if not stage.flush_runs:
                steps.flush(acc)
        rows.write_row(out, row, me, acc)

    return tma


def blocks(problem, config, resident):
    """Grid size: an item of the problem for every block."""
    return items(problem, config.threads // config.lanes)

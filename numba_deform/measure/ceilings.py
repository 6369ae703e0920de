"""Ceilings: how fast tiles can reach an SM by each way that the variants use, and which of them bounds one.

Kernels that fetch 2x2 tiles, or copy, and do nothing else are timed on a GPU. Where a tile lies comes from
a linear congruential generator in registers, a few instructions a tile. What is loaded is combined by XOR,
so that no load can be left out and NumPy can say what the result must be.

    l1      16-byte global loads of a window that stays in L1
    shared  16-byte shared loads of a window that was copied in before, free of bank conflicts
    tma     one TMA instruction per tile, drawn at random, through a ring of stages per warp; nothing
            reads them. The workload's own tiles are fetched by ``tma.build(.., add=False)``
    copy    global memory to global memory, every byte read once and written once
    empty   no work: what a launch costs
    delay   one thread that spins, which keeps a GPU busy while work is queued behind it

A tile is 2x2 pixels of ``row_bytes`` = channels * itemsize bytes. Its lanes are those of ``direct``
at its best: one for each 16 bytes of a tile's row, each loading from the upper and the lower row.

Each ceiling is tried in several configurations and the fastest counts: a ceiling that a better launch
would lift is none. Its time is scaled to the tiles, or the bytes, that the workload needs."""

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np
from numba import cuda, int32, types, uint32, uint64

from ..attention.bind import Bound
from ..compiler import built, i32, kernel, u64
from ..device.integer import div_u32, rem_u32
from ..device.limits import SHARED_LIMIT
from ..device.memory import (
    align_up,
    dynamic_bytes,
    global_at,
    ld_global_nc_L1_evict_last_v4,
    ld_global_nc_L1_no_allocate_v4,
    ld_global_nc_v4,
    ld_shared_v4,
    shared_address,
    shared_at,
    st_global_L1_no_allocate_v4,
    st_global_v4,
    st_shared_v4,
    static_bytes,
)
from ..device.pipeline import Ring, commit, first_state, full_barrier, init_barriers, make_advance, wait
from ..device.sync import clock64, fence_mbarrier_init
from ..device.tma import cp_async_bulk_tensor_3d, fence_proxy_tensormap_acquire_sys
from ..engines.gpu.device import DeviceArray
from ..engines.gpu.launch import launch, resident_blocks
from ..kernels import tma as tma_kernel
from ..kernels.level_maps import level_maps
from ..kernels.parts.sampling import load_level
from ..kernels.problem import ITEMSIZE, ConfigError
from ..kernels.registry import variant
from .record import spread

# Knuth's MMIX multiplier is 64 bits wide; these are the 32-bit ones of Numerical Recipes.
MULTIPLIER, INCREMENT = 1664525, 1013904223
SPREAD = 2654435761  # 2^32 / golden ratio: neighbouring seeds start far apart
WINDOW = 32 * 1024  # bytes of the window that l1 and shared load from


# --- kernels --------------------------------------------------------------------------------------
@cuda.jit(device=True, inline="always")
def next_random(state):
    """The generator's next 32 bits; the upper ones are good."""
    return uint32(uint32(state) * uint32(MULTIPLIER) + uint32(INCREMENT))


@cuda.jit(device=True, inline="always")
def own_bytes(thread, lanes, chunks, column):
    """Where the 16 bytes of a thread lie in a row of a tile whose second pixel is ``column`` bytes on."""
    sub = thread & int32(lanes - 1)
    side = int32(1) if sub >= int32(lanes // 2) else int32(0)
    return side * int32(column) + min(sub & int32(lanes // 2 - 1), int32(chunks - 1)) * int32(16)


def tile_lanes(row_bytes):
    """Lanes that share a tile: a power of two, so that a warp holds whole tiles."""
    return 2 << (row_bytes // 16 - 1).bit_length()


def window_slots(row_bytes):
    """Places in the upper half of the window where a tile can start, a power of two."""
    return 1 << (WINDOW // 2 // row_bytes).bit_length() - 1


def window_bytes(row_bytes, pixel_bytes):
    """Bytes that ``l1`` may read: the window and what a tile in its last place overhangs."""
    return WINDOW + pixel_bytes + row_bytes


def build_l1(row_bytes, pixel_bytes, unroll=4, threads=256):
    """``l1``: arguments are the addresses of the window and of out (threads of the grid, 4) uint32,
    and how often ``unroll`` tiles are loaded.

    ``pixel_bytes`` is the distance of a tile's two columns, heads * row_bytes in an operator."""
    LANES, CHUNKS, MASK = tile_lanes(row_bytes), row_bytes // 16, window_slots(row_bytes) - 1
    SHIFT, PITCH, UNROLL = LANES.bit_length() - 1, WINDOW // 2, unroll
    ROW_BYTES, PIXEL_BYTES = row_bytes, pixel_bytes

    @kernel(threads=threads)
    def l1(window: u64, out: u64, rounds: i32):
        thread = int32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
        own = window + uint64(own_bytes(thread, LANES, CHUNKS, PIXEL_BYTES))
        state = uint32((thread >> int32(SHIFT)) * uint32(SPREAD))
        a, b, c, d = uint32(0), uint32(0), uint32(0), uint32(0)
        for _ in range(rounds):
            for _ in range(UNROLL):
                state = next_random(state)
                place = own + uint64(((state >> uint32(16)) & uint32(MASK)) * uint32(ROW_BYTES))
                upper = ld_global_nc_L1_evict_last_v4(place)
                lower = ld_global_nc_L1_evict_last_v4(place + uint64(PITCH))
                a ^= upper[0] ^ lower[0]
                b ^= upper[1] ^ lower[1]
                c ^= upper[2] ^ lower[2]
                d ^= upper[3] ^ lower[3]
        st_global_v4(global_at(out, thread, 16), a, b, c, d)

    return l1


def build_shared(row_bytes, unroll=4, threads=512):
    """``shared``: arguments as ``l1``; each block first copies the window into shared memory.

    The two columns of a tile lie side by side, as a TMA box arrives."""
    LANES, CHUNKS, MASK = tile_lanes(row_bytes), row_bytes // 16, window_slots(row_bytes) - 1
    SHIFT, PITCH, UNROLL = LANES.bit_length() - 1, WINDOW // 2, unroll
    ROW_BYTES, THREADS, BYTES = row_bytes, threads, window_bytes(row_bytes, row_bytes)

    @kernel(threads=threads)
    def shared(window: u64, out: u64, rounds: i32):
        tid = int32(cuda.threadIdx.x)
        thread = int32(cuda.blockIdx.x * cuda.blockDim.x + tid)
        buffer = cuda.shared.array(BYTES, types.uint8, alignment=128)
        base = shared_address(buffer)
        for i in range(tid, BYTES // 16, THREADS):
            st_shared_v4(shared_at(base, i, 16), *ld_global_nc_v4(global_at(window, i, 16)))
        cuda.syncthreads()

        own = base + uint32(own_bytes(thread, LANES, CHUNKS, ROW_BYTES))
        state = uint32((thread >> int32(SHIFT)) * uint32(SPREAD))
        a, b, c, d = uint32(0), uint32(0), uint32(0), uint32(0)
        for _ in range(rounds):
            for _ in range(UNROLL):
                state = next_random(state)
                place = shared_at(own, (state >> uint32(16)) & uint32(MASK), ROW_BYTES)
                upper = ld_shared_v4(place)
                lower = ld_shared_v4(uint32(place + uint32(PITCH)))
                a ^= upper[0] ^ lower[0]
                b ^= upper[1] ^ lower[1]
                c ^= upper[2] ^ lower[2]
                d ^= upper[3] ^ lower[3]
        st_global_v4(global_at(out, thread, 16), a, b, c, d)

    return shared


def ring_bytes(row_bytes, stages, points, warps):
    """Shared bytes of a ``tma`` block: its tiles, then its barriers."""
    return warps * stages * (points * tile_slot(row_bytes) + 8)


def tile_slot(row_bytes):
    """Bytes from one tile to the next in shared memory: TMA wants 128-byte aligned destinations."""
    return -(-4 * row_bytes // 128) * 128


def build_tma(row_bytes, channels, levels, stages=2, points=8, warps=8, maps_of="sm",
              barrier_of="warp"):  # fmt: skip
    """``tma``: each warp keeps ``stages`` stages of ``points`` tiles in flight, one lane a tile.

    ``maps_of``: all blocks of an SM load from one map (``sm``), or every block from its own batch and every
    warp from its own level (``warp``): a TMA unit that goes from map to map has to fetch them.
    ``barrier_of``: every ``warp`` has its own full barriers, or the warps of a ``block`` share them: going from
    barrier to barrier costs the unit as well.

    Arguments: address of the maps, one rank-3 map (H*C, w, h) with a box of (C, 2, 2) for each (batch,
    level) in the order b*L + l; levels (L, 4) int32; out (threads of the grid, 4) uint32; B, H; the
    most pixels of a level's sides that corners are drawn from; refills of each warp; SMs. Every warp loads
    ``(refills + stages) * points`` tiles. What the last stages hold is combined into out at the end."""
    LEVELS, CHANNELS, STAGES, POINTS, WARPS = levels, channels, stages, points, warps
    THREADS, TILE, SLOT = 32 * warps, 4 * row_bytes, tile_slot(row_bytes)
    STAGE_BYTES = POINTS * SLOT
    TILES_BYTES = WARPS * STAGES * STAGE_BYTES
    STATIC_BYTES = static_bytes(ring_bytes(row_bytes, stages, points, warps))
    PER_WARP, OWN_BARRIERS = maps_of == "warp", barrier_of == "warp"
    ARRIVALS = 1 if OWN_BARRIERS else WARPS
    advance = make_advance(STAGES)

    @cuda.jit(device=True, forceinline=True)
    def issue(ring, now, state, lane, tiles, source, channel, width, height):
        """Ask for one stage's tiles, and return the generator's state: two draws a tile."""
        if lane == 0:
            commit(ring, now, uint32(POINTS * TILE))
        across = next_random(state)
        down = next_random(across)
        if lane < POINTS:
            x = int32((uint32(across >> uint32(16)) * uint32(width)) >> uint32(16))
            y = int32((uint32(down >> uint32(16)) * uint32(height)) >> uint32(16))
            tile = tiles + uint32(now.stage) * uint32(STAGE_BYTES) + uint32(lane * int32(SLOT))
            cp_async_bulk_tensor_3d(tile, source, channel, x, y, full_barrier(ring, now))
        return down

    @kernel(threads=THREADS)
    def tma(maps: u64, levels: u64, out: u64, batches: i32, heads: i32, region: i32, refills: i32,
            sms: i32):  # fmt: skip
        tid = int32(cuda.threadIdx.x)
        lane, warp = tid & int32(31), tid >> int32(5)
        thread = int32(cuda.blockIdx.x * cuda.blockDim.x + tid)
        shared = cuda.shared.array(STATIC_BYTES, types.uint8, alignment=128)
        base = align_up(shared_address(shared), uint32(128))
        full = uint32(base + uint32(TILES_BYTES))
        if OWN_BARRIERS:
            full = uint32(full + uint32(warp * int32(8 * STAGES)))
        ring = Ring(full, uint32(0))
        tiles = uint32(base + uint32(warp * int32(STAGES * STAGE_BYTES)))
        sm = int32(rem_u32(cuda.blockIdx.x, sms))  # blocks are dealt out in turn
        level, batch = int32(rem_u32(sm, LEVELS)), int32(rem_u32(div_u32(sm, LEVELS), batches))
        if PER_WARP:
            level, batch = int32(rem_u32(warp, LEVELS)), int32(rem_u32(cuda.blockIdx.x, batches))
        channel = int32(rem_u32(thread, heads)) * int32(CHANNELS)
        maps = maps + uint64(128 * LEVELS) * uint64(batch)
        source = maps + uint64(128) * uint64(level)
        height, width, _, _ = load_level(levels, level)
        height, width = min(height, region), min(width, region)

        if (lane if OWN_BARRIERS else tid) == 0:
            init_barriers(full, STAGES, ARRIVALS)
            fence_mbarrier_init()
        for i in range(tid, LEVELS, THREADS):
            fence_proxy_tensormap_acquire_sys(maps + uint64(128) * uint64(i))
        cuda.syncthreads()

        state, now = uint32(thread * uint32(SPREAD)), first_state()
        for _ in range(STAGES):
            state = issue(ring, now, state, lane, tiles, source, channel, width, height)
            now = advance(now)
        # A stage is refilled as soon as all lanes have seen it full.
        now = first_state()
        for _ in range(refills):
            wait(ring, now)
            cuda.syncwarp()
            state = issue(ring, now, state, lane, tiles, source, channel, width, height)
            now = advance(now)
        a, b, c, d = uint32(0), uint32(0), uint32(0), uint32(0)
        for _ in range(STAGES):
            wait(ring, now)
            stage = tiles + uint32(now.stage) * uint32(STAGE_BYTES)
            for i in range(lane * int32(16), TILE, 512):
                for j in range(POINTS):
                    w = ld_shared_v4(uint32(stage + uint32(j * SLOT) + uint32(i)))
                    a ^= w[0]
                    b ^= w[1]
                    c ^= w[2]
                    d ^= w[3]
            now = advance(now)
        st_global_v4(out + uint64(thread) * uint64(16), a, b, c, d)

    return tma


def build_copy(unroll=4, threads=256):
    """``copy``: arguments are the addresses of source and target and the number of 16-byte words."""
    UNROLL = unroll

    @kernel(threads=threads)
    def copy(source: u64, target: u64, words: i32):
        stride = int32(cuda.gridDim.x * cuda.blockDim.x)
        first = int32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
        parts = cuda.local.array((UNROLL, 4), types.uint32)
        while first + int32((UNROLL - 1) * stride) < words:
            for k in range(UNROLL):
                w = ld_global_nc_L1_no_allocate_v4(global_at(source, first + int32(k * stride), 16))
                for i in range(4):
                    parts[k, i] = w[i]
            for k in range(UNROLL):
                st_global_L1_no_allocate_v4(global_at(target, first + int32(k * stride), 16),
                                            parts[k, 0], parts[k, 1], parts[k, 2], parts[k, 3])  # fmt: skip
            first = int32(first + UNROLL * stride)
        while first < words:
            w = ld_global_nc_L1_no_allocate_v4(global_at(source, first, 16))
            st_global_L1_no_allocate_v4(global_at(target, first, 16), *w)
            first = int32(first + stride)

    return copy


def build_empty():
    """``empty``: its argument is ignored; a kernel has at least one."""

    @kernel(threads=32)
    def empty(nothing: i32):
        pass

    return empty


def build_delay():
    """``delay``: its argument is the number of cycles to spin. Launch it with one block."""

    @kernel(threads=32)
    def delay(cycles: i32):
        end = clock64() + uint64(cycles)
        while clock64() < end:
            pass

    return delay


# --- trials ---------------------------------------------------------------------------------------
COPY_BYTES = 512 << 20  # ten times the L2
WINDOW_TILES = 16_000_000  # of one launch; enough that its start and end do not show
TMA_TILES = 4_000_000
EVERYWHERE = 1 << 16  # pixels: no limit to where a level's tiles are drawn

# What a variant's tiles pass on their way, by Variant.fetch, or gradients on theirs, by Backward.sums
# (scatter.py); the copy and the launch concern all.
PASSES = {"l1": ("l1",), "tma": ("tma", "shared"), "shared": ("shared",),
          "fp32": ("add-fp32",), "fixed": ("add-fixed",)}  # fmt: skip
ALWAYS = ("copy", "launch")

# (stages, points, warps, pixels of the region, whose map, whose barrier): depths and sizes of the ring; a
# region of each level that is small enough to stay in L2; as many maps at once as there are warps; barriers
# shared by a block.
TMA_CONFIGURATIONS = (
    *((*ring, EVERYWHERE, "sm", "warp") for ring in
      ((2, 8, 8), (4, 8, 8), (2, 4, 8), (2, 2, 16), (4, 1, 16), (2, 16, 8), (2, 16, 4))),
    (2, 8, 8, 64, "sm", "warp"), (2, 8, 8, EVERYWHERE, "warp", "warp"),
    *((*ring, EVERYWHERE, "sm", "block") for ring in ((2, 8, 8), (2, 4, 8), (2, 2, 16), (4, 1, 16))),
)  # fmt: skip

# And the workload's own tiles, by the kernel of variant tma that adds nothing up.
OWN_TILES = (
    dict(),
    dict(points_per_stage=4),
    dict(barrier_scope="block", points_per_stage=2),
    dict(barrier_scope="block", points_per_stage=4, batches_abreast=48),
    dict(barrier_scope="block", points_per_stage=4, batches_abreast=48, prefetch_maps=True),
    dict(barrier_scope="block", stages=1, points_per_stage=4, batches_abreast=48, prefetch_maps=True),
)


@dataclass(frozen=True, eq=False)
class Trial:
    """One configuration of one ceiling: ``run()`` moves ``amount`` ``unit`` (tiles, bytes, launches)."""

    ceiling: str
    config: str
    run: object
    amount: int
    unit: str


def trials(case):
    """All trials for the problem of a ``case.Case`` on a GPU."""
    gpu, problem = case.gpu, case.problem
    row = problem.constants.channels * ITEMSIZE[problem.constants.dtype]
    empty = functools.partial(launch, gpu, built(build_empty), 1, (0,))
    return [*_window_trials(gpu, row, problem.heads * row),
            *_tma_trials(gpu, problem, case.on_gpu.addresses[0], row), *_own_tile_trials(case),
            *copy_trials(gpu), Trial("launch", "", empty, 1, "launches")]  # fmt: skip


def _window_trials(gpu, row, pixel):
    window = DeviceArray(gpu, (window_bytes(row, pixel),), np.uint8)
    window.fill(0x5A)
    loads = [("l1", unroll, built(build_l1, row, pixel, unroll)) for unroll in (2, 4, 8)]
    loads += [("shared", unroll, built(build_shared, row, unroll)) for unroll in (2, 4)]
    for name, unroll, loader in loads:
        blocks = resident_blocks(gpu, loader)
        tiles_at_once = blocks * loader.threads // tile_lanes(row) * unroll
        rounds = max(1, WINDOW_TILES // tiles_at_once)
        out = DeviceArray(gpu, (blocks * loader.threads, 4), np.uint32)
        run = functools.partial(launch, gpu, loader, blocks, (window, out, rounds))
        text = f"unroll={unroll} threads={loader.threads}"
        yield Trial(name, text, run, rounds * tiles_at_once, "tiles")


def _tma_trials(gpu, problem, value, row):
    constants = problem.constants
    maps = level_maps(value, problem.batch, problem.heads, constants.channels, constants.dtype,
                      problem.levels, problem.spatial_size, box_hw=(2, 2), l2_promotion="128B")  # fmt: skip
    maps = DeviceArray.of(gpu, maps.encode_into_host())
    levels = DeviceArray.of(gpu, problem.level_table)
    for stages, points, warps, region, maps_of, barrier_of in TMA_CONFIGURATIONS:
        shared = dynamic_bytes(ring_bytes(row, stages, points, warps))
        if shared > SHARED_LIMIT:
            continue
        ring = (stages, points, warps, maps_of, barrier_of)
        loader = built(build_tma, row, constants.channels, constants.levels, *ring)
        blocks = resident_blocks(gpu, loader, shared)
        out = DeviceArray(gpu, (blocks * loader.threads, 4), np.uint32)
        refills = max(64 // points, TMA_TILES // (blocks * warps * points))
        arguments = (maps, levels, out, problem.batch, problem.heads, region, refills, gpu.sms)
        run = functools.partial(launch, gpu, loader, blocks, arguments, shared)
        where = "everywhere" if region == EVERYWHERE else f"{region}x{region} pixels"
        text = f"stages={stages} points={points} warps={warps} {where}, "
        text += f"a map per {maps_of}, a barrier per {barrier_of}"
        yield Trial("tma", text, run, blocks * warps * (refills + stages) * points, "tiles")


@dataclass(frozen=True, eq=False)
class _FetchOnly:
    """``kernels.tma`` as a module whose kernel adds nothing up."""

    blocks = staticmethod(tma_kernel.blocks)

    @staticmethod
    def build(config, constants):
        return tma_kernel.build(config, constants, add=False)


def _own_tile_trials(case):
    chosen = dataclasses.replace(variant("tma"), name="tma, tiles only", module=_FetchOnly())
    for parameters in OWN_TILES:
        try:
            config = chosen.configure(case.problem.constants, **parameters)
        except ConfigError:
            continue
        text = " ".join(["own tiles", *(f"{k}={v}" for k, v in parameters.items())])
        run = case.launcher(Bound(case.problem, chosen, config, case.gpu))
        yield Trial("tma", text, run, case.problem.samples, "tiles")


def copy_trials(gpu):
    source, target = (DeviceArray(gpu, (COPY_BYTES,), np.uint8) for _ in range(2))
    source.fill(0x5A)
    for unroll, waves in ((4, 1), (4, 4), (8, 1)):
        copier = built(build_copy, unroll)
        blocks = waves * resident_blocks(gpu, copier)
        run = functools.partial(launch, gpu, copier, blocks, (source, target, COPY_BYTES // 16))
        yield Trial("copy", f"unroll={unroll} waves of blocks={waves}", run, 2 * COPY_BYTES, "bytes")


# --- figures --------------------------------------------------------------------------------------
def figures(trial, times, tiles, bytes_moved):
    """A row for the result file: a trial's ``times`` in ms, scaled to a workload's tiles or bytes."""
    wanted = {"tiles": tiles, "bytes": bytes_moved, "launches": 1}[trial.unit]
    measured = spread(times)
    scale = wanted / trial.amount
    return {"ceiling": trial.ceiling, "config": trial.config, "unit": trial.unit,
            "measured_ms": measured["median_ms"], "measured_amount": trial.amount,
            **{name: measured[name] * scale for name in ("median_ms", "min_ms", "max_ms")},
            "runs": measured["runs"]}  # fmt: skip


def best(rows):
    """``{ceiling: ms for the workload}``, each at its fastest configuration; marks it in the row."""
    fastest = {}
    for row in sorted(rows, key=lambda row: row["median_ms"]):
        row["best"] = fastest.setdefault(row["ceiling"], row) is row
    return {name: row["median_ms"] for name, row in fastest.items()}


def attribute(milliseconds, fetch, ceilings):
    """What bounds a kernel of that time: ``{bounds, bounded_by, closeness}``.

    ``fetch`` is the variant's (a key of PASSES), or None where only memory and launch are known to
    apply; ``ceilings`` as :func:`best` returns them. The ceiling with the longest time among those
    that apply bounds it; closeness is that time over the kernel's, 1 at the ceiling."""
    names = (*PASSES.get(fetch, ()), *ALWAYS)
    bounds = {name: ceilings[name] for name in names if name in ceilings}
    if not bounds:
        return {}
    worst = max(bounds, key=bounds.get)
    return {"bounds": bounds, "bounded_by": worst, "closeness": bounds[worst] / milliseconds}

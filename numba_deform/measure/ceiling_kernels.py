"""Ceilings: kernels that fetch 2x2 tiles, or copy, and do nothing else.

They measure how fast tiles can reach an SM by each way that the variants use, so that a variant's
time can be compared with what its way allows. Where a tile lies comes from a linear congruential
generator in registers, a few instructions a tile. What is loaded is combined by XOR, so that no load
can be left out and NumPy can say what the result must be.

    l1      16-byte global loads of a window that stays in L1
    shared  16-byte shared loads of a window that was copied in before, free of bank conflicts
    tma     one TMA instruction per tile, drawn at random, through a ring of stages per warp; nothing
            reads them. The workload's own tiles are fetched by ``tma.build(.., add=False)``
    copy    global memory to global memory, every byte read once and written once
    empty   no work: what a launch costs
    delay   one thread that spins, which keeps a GPU busy while work is queued behind it

A tile is 2x2 pixels of ``row_bytes`` = channels * itemsize bytes. Its lanes are those of ``direct``
at its best: one for each 16 bytes of a tile's row, each loading from the upper and the lower row.
"""

from numba import cuda, int32, types, uint32, uint64

from ..compiler import kernel
from ..device.integer import div_u32, rem_u32
from ..device.memory import (
    align_up,
    ld_global_nc_L1_evict_last_v4,
    ld_global_nc_L1_no_allocate_v4,
    ld_global_nc_v4,
    ld_shared_v4,
    shared_address,
    st_global_L1_no_allocate_v4,
    st_global_v4,
    st_shared_v4,
    static_bytes,
)
from ..device.pipeline import (
    Ring,
    commit,
    first_state,
    full_barrier,
    init_barriers,
    make_advance,
    wait,
)
from ..device.sync import clock64, fence_mbarrier_init
from ..device.tma import cp_async_bulk_tensor_3d, fence_proxy_tensormap_acquire_sys
from ..kernels.shared.sampling import load_level

# Knuth's MMIX multiplier is 64 bits wide; these are the 32-bit ones of Numerical Recipes.
MULTIPLIER, INCREMENT = 1664525, 1013904223
SPREAD = 2654435761  # 2^32 / golden ratio: neighbouring seeds start far apart
WINDOW = 32 * 1024  # bytes of the window that l1 and shared load from

u64, i32 = types.uint64, types.int32


@cuda.jit(device=True, inline="always")
def next_random(state):
    """The generator's next 32 bits; the upper ones are good."""
    return uint32(uint32(state) * uint32(MULTIPLIER) + uint32(INCREMENT))


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

    ``pixel_bytes`` is the distance of a tile's two columns, heads * row_bytes in an operator.
    """
    LANES, CHUNKS = tile_lanes(row_bytes), row_bytes // 16
    SHIFT, MASK, PITCH, UNROLL = (
        LANES.bit_length() - 1,
        window_slots(row_bytes) - 1,
        WINDOW // 2,
        unroll,
    )
    ROW_BYTES, PIXEL_BYTES = row_bytes, pixel_bytes

    @kernel(types.void(u64, u64, i32), threads=threads)
    def l1(window, out, rounds):
        thread = int32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
        sub = thread & int32(LANES - 1)
        side = int32(1) if sub >= int32(LANES // 2) else int32(0)
        chunk = min(sub & int32(LANES // 2 - 1), int32(CHUNKS - 1))
        own = window + uint64(side * int32(PIXEL_BYTES) + chunk * int32(16))
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
        st_global_v4(out + uint64(thread) * uint64(16), a, b, c, d)

    return l1


def build_shared(row_bytes, unroll=4, threads=512):
    """``shared``: arguments as ``l1``; each block first copies the window into shared memory.

    The two columns of a tile lie side by side, as a TMA box arrives.
    """
    LANES, CHUNKS = tile_lanes(row_bytes), row_bytes // 16
    SHIFT, MASK, PITCH, UNROLL = (
        LANES.bit_length() - 1,
        window_slots(row_bytes) - 1,
        WINDOW // 2,
        unroll,
    )
    ROW_BYTES, THREADS = row_bytes, threads
    BYTES = window_bytes(row_bytes, row_bytes)

    @kernel(types.void(u64, u64, i32), threads=threads)
    def shared(window, out, rounds):
        tid = int32(cuda.threadIdx.x)
        thread = int32(cuda.blockIdx.x * cuda.blockDim.x + tid)
        buffer = cuda.shared.array(BYTES, types.uint8, alignment=128)
        base = shared_address(buffer)
        for i in range(tid, BYTES // 16, THREADS):
            w = ld_global_nc_v4(window + uint64(i) * uint64(16))
            st_shared_v4(base + uint32(i) * uint32(16), w[0], w[1], w[2], w[3])
        cuda.syncthreads()

        sub = thread & int32(LANES - 1)
        side = int32(1) if sub >= int32(LANES // 2) else int32(0)
        chunk = min(sub & int32(LANES // 2 - 1), int32(CHUNKS - 1))
        own = base + uint32(side * int32(ROW_BYTES) + chunk * int32(16))
        state = uint32((thread >> int32(SHIFT)) * uint32(SPREAD))
        a, b, c, d = uint32(0), uint32(0), uint32(0), uint32(0)
        for _ in range(rounds):
            for _ in range(UNROLL):
                state = next_random(state)
                place = own + ((state >> uint32(16)) & uint32(MASK)) * uint32(ROW_BYTES)
                upper = ld_shared_v4(uint32(place))
                lower = ld_shared_v4(uint32(place + uint32(PITCH)))
                a ^= upper[0] ^ lower[0]
                b ^= upper[1] ^ lower[1]
                c ^= upper[2] ^ lower[2]
                d ^= upper[3] ^ lower[3]
        st_global_v4(out + uint64(thread) * uint64(16), a, b, c, d)

    return shared


def ring_bytes(row_bytes, stages, points, warps):
    """Shared bytes of a ``tma`` block: its tiles, then its barriers."""
    return warps * stages * (points * tile_slot(row_bytes) + 8)


def tile_slot(row_bytes):
    """Bytes from one tile to the next in shared memory: TMA wants 128-byte aligned destinations."""
    return -(-4 * row_bytes // 128) * 128


def build_tma(
    row_bytes, channels, levels, stages=2, points=8, warps=8, maps_of="sm", barrier_of="warp"
):
    """``tma``: each warp keeps ``stages`` stages of ``points`` tiles in flight, one lane a tile.

    ``maps_of``: all blocks of an SM load from one map (``sm``), or every block from its own batch and every
    warp from its own level (``warp``): a TMA unit that goes from map to map has to fetch them.
    ``barrier_of``: every ``warp`` has its own full barriers, or the warps of a ``block`` share them: going from
    barrier to barrier costs the unit as well.

    Arguments: address of the maps, one rank-3 map (H*C, w, h) with a box of (C, 2, 2) for each (batch,
    level) in the order b*L + l; levels (L, 4) int32; out (threads of the grid, 4) uint32; B, H; the
    most pixels of a level's sides that corners are drawn from; refills of each warp; SMs. Every warp loads
    ``(refills + stages) * points`` tiles. What the last stages hold is combined into out at the end.
    """
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

    @kernel(types.void(u64, u64, u64, i32, i32, i32, i32, i32), threads=THREADS)
    def tma(maps, levels, out, batches, heads, region, refills, sms):
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

    @kernel(types.void(u64, u64, i32), threads=threads)
    def copy(source, target, words):
        stride = int32(cuda.gridDim.x * cuda.blockDim.x)
        first = int32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
        parts = cuda.local.array((UNROLL, 4), types.uint32)
        while first + int32((UNROLL - 1) * stride) < words:
            for k in range(UNROLL):
                at = uint64(first + int32(k * stride)) * uint64(16)
                w = ld_global_nc_L1_no_allocate_v4(source + at)
                for i in range(4):
                    parts[k, i] = w[i]
            for k in range(UNROLL):
                at = uint64(first + int32(k * stride)) * uint64(16)
                st_global_L1_no_allocate_v4(
                    target + at, parts[k, 0], parts[k, 1], parts[k, 2], parts[k, 3]
                )
            first = int32(first + UNROLL * stride)
        while first < words:
            w = ld_global_nc_L1_no_allocate_v4(source + uint64(first) * uint64(16))
            st_global_L1_no_allocate_v4(target + uint64(first) * uint64(16), w[0], w[1], w[2], w[3])
            first = int32(first + stride)

    return copy


def build_empty(threads=32):
    """``empty``: its argument is ignored; a kernel has at least one."""

    @kernel(types.void(i32), threads=threads)
    def empty(nothing):
        pass

    return empty


def build_delay():
    """``delay``: its argument is the number of cycles to spin. Launch it with one block."""

    @kernel(types.void(i32), threads=32)
    def delay(cycles):
        end = clock64() + uint64(cycles)
        while clock64() < end:
            pass

    return delay

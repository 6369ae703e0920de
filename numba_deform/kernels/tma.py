"""tma (S5, S6): each 2x2 tile arrives by one TMA instruction, through a ring of stages per warp.

Every warp runs its own pipeline. A *step* is ``points_per_stage`` samples of each of the warp's rows; a
*stage* is the shared memory that holds one step's tiles, with one *full* barrier. The loop is the
guide's:

    prologue: issue the first STAGES - 1 steps
    for each step:
        issue the step that is STAGES - 1 ahead, into the stage that the last step has left free
        wait for this step's tiles
        add them up

Refilling a stage is safe because the warp has synchronised since it was last read (``syncwarp`` at the
end of each step), so no empty barrier is needed. The parity of a stage's barrier flips each time the
ring wraps. Pixels outside the level arrive as zeros, so the border needs no care at all.
"""

from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import types

from ..compiler import kernel
from ..device.integer import div_u32, rem_u32
from ..device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from ..device.memory import align_up, ld_shared_v4, shared_address, static_bytes
from ..device.pipeline import PipelineState, advance, mbarrier_wait
from ..device.sync import fence_mbarrier_init
from ..device.tma import cp_async_bulk_tensor_3d, fence_proxy_tensormap_acquire_sys
from .accumulate import ARITHMETIC
from .lanes import ITEMSIZE, lane_layout, sum_over_lanes
from .sampling import corner_weights, load_level, locate, number_loader


def tile_bytes(constants):
    """Bytes of a 2x2 tile, which is what one load adds to the barrier."""
    return 4 * constants.channels * ITEMSIZE[constants.dtype]


def slot_bytes(constants):
    """Bytes from one tile to the next in shared memory: TMA wants 128-byte aligned destinations."""
    return -(-tile_bytes(constants) // 128) * 128


def shared_bytes(config, constants):
    """(bytes of tiles, bytes of barriers) of a block, in this order in shared memory."""
    parts = lane_layout(config.lanes, constants).parts
    tiles = config.threads // config.lanes * parts * config.points_per_stage * config.stages
    return tiles * slot_bytes(constants), config.threads // 32 * config.stages * 8


def build(config, constants):
    """The kernel for a ``variants.Tma`` and ``variants.Constants``.

    Arguments: address of the tensor maps, one rank-3 map (H*C, w, h) for each (batch, level) in the
    order b*L + l, then as ``direct`` up to out; B, rows of one batch, heads.
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
    ROWS_PER_WARP, WARPS = 32 // LANES, config.threads // 32
    THREADS, ROWS_PER_BLOCK = config.threads, config.threads // LANES
    SAMPLES, META, COORDINATES = LEVELS * POINTS, RUN * SIDES_PER_LANE, 2 * RUN

    STAGES, STEP = config.stages, config.points_per_stage
    RUN_STEPS = RUN // STEP
    TILE, SLOT = tile_bytes(constants), slot_bytes(constants)
    STAGE_BYTES = ROWS_PER_WARP * PARTS * STEP * SLOT
    TILES_BYTES = WARPS * STAGES * STAGE_BYTES
    STATIC_BYTES = static_bytes(TILES_BYTES + 8 * WARPS * STAGES)

    arithmetic = ARITHMETIC[constants.dtype, config.arithmetic]
    pack, fetch, add = arithmetic.pack, arithmetic.fetch, arithmetic.add
    flush, store = arithmetic.flush, arithmetic.store
    SUMS, PARTIAL = arithmetic.words * CHUNKS_PER_LANE, 4 * CHUNKS_PER_LANE
    load_locations = number_loader(constants.location_dtype, COORDINATES)
    load_weights = number_loader(constants.weight_dtype, RUN)
    LOCATION_BYTES = 2 * ITEMSIZE[constants.location_dtype]
    WEIGHT_BYTES = ITEMSIZE[constants.weight_dtype]
    FENCE, ABREAST = config.tensormap_fence, config.batches_abreast

    u64, i32 = types.uint64, types.int32

    @cuda.jit(device=True, forceinline=True)
    def runs_of(r, owner):
        """How many parts have a run from lane ``owner`` in round ``r``: all but in the last round."""
        if ROUNDS * PARTS * CHUNK_LANES * RUN == SAMPLES:
            return int32(PARTS)
        left = int32(SAMPLES - (r * PARTS * CHUNK_LANES + owner) * RUN)
        return int32(min(max((left + CHUNK_LANES * RUN - 1) // (CHUNK_LANES * RUN), 0), PARTS))

    @cuda.jit(device=True, forceinline=True)
    def issue(stage, owner, step, runs, me, x, y, tiles, full, tensor_map, channel):
        """Ask for one step's tiles: the lanes that own the run ask, lane 0 says how many bytes come.

        ``runs`` is how many of the warp's parts have a run for this owner; ``me`` = (lane, the owner
        whose turn it has to be for this lane to issue).
        """
        bar = full + uint32(8) * uint32(stage)
        if me[0] == 0:
            mbarrier_arrive_expect_tx(bar, uint32(ROWS_PER_WARP * STEP * TILE) * uint32(runs))
        if me[1] == owner:
            for j in range(STEP):
                k = step * STEP + j
                tile = tiles + uint32(stage) * uint32(STAGE_BYTES) + uint32(j * SLOT)
                cp_async_bulk_tensor_3d(tile, tensor_map, channel, x[k], y[k], bar)

    @kernel(
        types.void(u64, u64, u64, u64, u64, i32, i32, i32),
        threads=config.threads,
        min_blocks=config.min_blocks,
    )
    def tma(maps, levels, locations, weights, out, batches, rows_per_batch, heads):
        tid = int32(cuda.threadIdx.x)
        lane, warp = tid & int32(31), tid >> int32(5)
        sub = tid & int32(LANES - 1)
        chunk = sub & int32(CHUNK_LANES - 1)
        side = (sub >> int32(SIDE_SHIFT)) & int32(SIDES - 1)
        part = sub >> int32(PART_SHIFT)
        first_lane = lane - chunk  # of the lanes that prepare runs for this side and part

        shared = cuda.shared.array(STATIC_BYTES, types.uint8, alignment=128)
        ring = align_up(shared_address(shared), uint32(128))
        full = ring + uint32(TILES_BYTES) + uint32(warp * int32(8 * STAGES))
        # The tiles of this lane's row and part in stage 0.
        tiles = (
            ring
            + uint32(warp * int32(STAGES * STAGE_BYTES))
            + uint32(((lane >> int32(ROW_SHIFT)) * int32(PARTS) + part) * int32(STEP * SLOT))
        )

        # Which rows: blocks take turns among ABREAST batches, so that the blocks that run together
        # read different planes. Rows of one plane crowd on few L2 lines where its levels are small.
        chunks = div_u32(rows_per_batch + int32(ROWS_PER_BLOCK - 1), ROWS_PER_BLOCK)
        group = div_u32(cuda.blockIdx.x, ABREAST * chunks)
        inside = uint32(cuda.blockIdx.x - group * (ABREAST * chunks))
        width = min(int32(ABREAST), int32(batches - group * ABREAST))
        batch = int32(group * ABREAST + rem_u32(inside, width))
        row = int32(div_u32(inside, width) * ROWS_PER_BLOCK) + (tid >> int32(ROW_SHIFT))
        valid = row < rows_per_batch
        row = min(row, int32(rows_per_batch - 1))  # spare lanes work along: every warp is whole
        channel = int32(rem_u32(row, heads) * uint32(CHANNELS))
        rows_before = uint64(batch) * uint64(rows_per_batch)
        samples = (rows_before + uint64(row)) * uint64(SAMPLES)
        target = out + (rows_before + uint64(row)) * uint64(ROW_BYTES)
        maps = maps + uint64(128 * LEVELS) * uint64(batch)

        if lane == 0:
            for s in range(STAGES):
                mbarrier_init(full + uint32(8 * s), uint32(1))
            fence_mbarrier_init()  # the copy engine sees the barriers
        if FENCE:
            # Once a block is enough, and each fence costs: the SM has to fetch the map again.
            for i in range(tid, LEVELS, THREADS):
                fence_proxy_tensormap_acquire_sys(maps + uint64(128) * uint64(i))
            cuda.syncthreads()
        else:
            cuda.syncwarp()  # the other lanes see the barriers, which are this warp's own

        sums = cuda.local.array(SUMS, float32)
        partial = cuda.local.array(PARTIAL, uint32)
        for i in range(SUMS):
            sums[i] = float32(0)
        for i in range(PARTIAL):
            partial[i] = uint32(0)
        xy = cuda.local.array(COORDINATES, float32)
        attention = cuda.local.array(RUN, float32)
        x = cuda.local.array(RUN, int32)
        y = cuda.local.array(RUN, int32)
        word_a = cuda.local.array(META, uint32)
        word_b = cuda.local.array(META, uint32)
        ahead = PipelineState(int32(0), int32(0))  # the stage that is filled next
        now = PipelineState(int32(0), int32(0))  # the stage that is waited for next

        for r in range(ROUNDS):
            # Prepare this lane's run: the corners of its tiles, and the weights in its column.
            first = ((int32(r * PARTS) + part) * int32(CHUNK_LANES) + chunk) * int32(RUN)
            mine = first < SAMPLES
            first = min(first, int32(SAMPLES - RUN))
            load_locations(locations + (samples + uint64(first)) * uint64(LOCATION_BYTES), xy)
            load_weights(weights + (samples + uint64(first)) * uint64(WEIGHT_BYTES), attention)
            level = div_u32(first, POINTS)
            height, width, _, _ = load_level(levels, level)
            tensor_map = maps + uint64(128) * uint64(level)
            for k in range(RUN):
                x[k], fx, inside_x = locate(xy[2 * k], width)
                y[k], fy, inside_y = locate(xy[2 * k + 1], height)
                a = attention[k]
                if not (inside_x and inside_y):
                    a, fx, fy = float32(0), float32(0), float32(0)
                for s in range(SIDES_PER_LANE):
                    w_up, w_down = corner_weights(a, fx, fy, side + int32(s))
                    m = k * SIDES_PER_LANE + s
                    word_a[m], word_b[m] = pack(w_up, w_down)
            # A run is issued by one lane: on the left side, and only if it exists.
            me = (lane, chunk if mine and side == 0 else int32(-1))

            for n in range(STAGES - 1):
                if n // RUN_STEPS < CHUNK_LANES:
                    runs = runs_of(r, n // RUN_STEPS)
                    issue(
                        ahead.stage,
                        n // RUN_STEPS,
                        n % RUN_STEPS,
                        runs,
                        me,
                        x,
                        y,
                        tiles,
                        full,
                        tensor_map,
                        channel,
                    )
                    ahead = advance(ahead, STAGES)

            for i in range(CHUNK_LANES):
                owner = uint32(first_lane + int32(i))
                here = int32(part) < runs_of(r, i)  # this part has a run from this owner
                for n in range(RUN_STEPS):
                    next_owner = int32(i + (n + STAGES - 1) // RUN_STEPS)
                    if next_owner < CHUNK_LANES:
                        runs = runs_of(r, next_owner)
                        issue(
                            ahead.stage,
                            next_owner,
                            (n + STAGES - 1) % RUN_STEPS,
                            runs,
                            me,
                            x,
                            y,
                            tiles,
                            full,
                            tensor_map,
                            channel,
                        )
                        ahead = advance(ahead, STAGES)

                    mbarrier_wait(full + uint32(8) * uint32(now.stage), now.parity)
                    stage = tiles + uint32(now.stage) * uint32(STAGE_BYTES)
                    for j in range(STEP):
                        for s in range(SIDES_PER_LANE):
                            m = (n * STEP + j) * SIDES_PER_LANE + s
                            up, down = fetch(word_a[m], word_b[m], owner)
                            column = (side + int32(s)) * int32(ROW_BYTES)
                            for c in range(CHUNKS_PER_LANE):
                                own = min(chunk + int32(c * CHUNK_LANES), int32(CHUNKS - 1))
                                top = stage + uint32(j * SLOT) + uint32(column + own * int32(16))
                                bottom = top + uint32(2 * ROW_BYTES)
                                if here:  # else the tile holds whatever was there
                                    add(sums, partial, c, ld_shared_v4(top), up)
                                    add(sums, partial, c, ld_shared_v4(bottom), down)
                    now = advance(now, STAGES)
                    cuda.syncwarp()  # all lanes have read the stage: it may be refilled
                if RUN >= 4:
                    flush(sums, partial, CHUNKS_PER_LANE)
            if RUN < 4:
                flush(sums, partial, CHUNKS_PER_LANE)

        sum_over_lanes(sums, SUMS, CHUNK_LANES, LANES)
        for c in range(CHUNKS_PER_LANE):
            own = chunk + int32(c * CHUNK_LANES)
            if valid and side == 0 and part == 0 and own < int32(CHUNKS):
                store(target + uint64(own * int32(16)), sums, c)

    return tma


def arguments(operands, config):
    """The kernel's arguments for a call, in order; see ``op.Operands``."""
    o = operands
    return (
        o.maps((2, 2), config.l2_promotion), o.levels, o.locations, o.weights, o.out,
        o.problem.batch, o.rows_per_batch, o.heads,
    )  # fmt: skip


def blocks(problem, config):
    """Grid size: every batch has whole blocks of its own, so a block needs one batch's maps."""
    per_block = config.threads // config.lanes
    return problem.batch * -(-problem.queries * problem.heads // per_block)

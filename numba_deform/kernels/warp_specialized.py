"""warp_specialized (S10 to S16): some warps only load, the others only compute.

P producer and C consumer warps share one ring per block. A stage holds one step's tiles of all the
consumers' rows; it is full when every producer has arrived and all its bytes are there, and empty
when every consumer has released it:

    producer: for each step of each row:          consumer: for each step of each row:
                  acquire the stage                              wait for the stage
                  issue its tiles                                add up its tiles
                  commit                                         release it

The block is persistent: both sides go on to the next rows, at their own pace.

metadata: how a consumer knows what a sample weighs
    recompute   every lane reads location and weight again and computes for itself (phase 1)
    shared      the producers write the weights of each tile's sides beside the tile (phase 2)
    shuffle     each lane prepares a run of samples, the others fetch by shuffle, as in ``tma`` (phase 6)
sync: what says that a stage is empty
    barrier     the empty barrier
    flags       a 32-bit flag for each stage and consumer warp, set with release and polled with acquire
                (phase 3). A full stage still needs its barrier: only an mbarrier can count what TMA has
                delivered
"""

from collections import namedtuple
from dataclasses import dataclass

from numba import cuda, float32, int32, types, uint32, uint64

from ..compiler import i32, kernel, u64
from ..device.integer import div_u32
from ..device.limits import MAX_REGISTERS, REGISTERS
from ..device.marks import ACQUIRE, COMMIT, COMPUTE, ISSUE, RELEASE, WAIT, make_marks
from ..device.memory import (
    align_up,
    ld_shared_b32,
    ld_shared_v2,
    shared_address,
    st_shared_b32,
    st_shared_v2,
    static_bytes,
)
from ..device.pipeline import (
    Ring,
    acquire,
    commit,
    first_state,
    flag_set,
    flag_wait,
    full_barrier,
    init_barriers,
    make_advance,
    release,
    wait,
)
from ..device.registers import setmaxnreg_dec, setmaxnreg_inc
from ..device.sync import fence_mbarrier_init
from .problem import ITEMSIZE, ConfigError
from .shared.accumulate import ALL, ARITHMETIC
from .shared.config import Boxes, SharedBytes, at_least_one, one_of
from .shared.lanes import lane_layout
from .shared.row import Raw, Run, item_count, item_row, items, row_parts
from .shared.sampling import corner_weights, load_level, number_loader
from .shared.tiles import dump_of, stage_layout, tile_parts
from .tma import map_parts

MAX_SPECIALIZED_WARPS = 16


@dataclass(frozen=True)
class WarpSpecialized(Boxes):
    """Parameters of ``warp-specialized``.

    producers, consumers  warps of each role, together at most 16
    metadata              how consumers learn the weights: ``recompute``, ``shared`` or ``shuffle``
    sync                  what says that a stage is empty: a ``barrier``, or ``flags`` with release and acquire,
                          one for each consumer warp
    arrivals              who arrives on barriers: every ``lane`` for itself, which compute-sanitizer's
                          racecheck can follow, or one lane of each ``warp``, after syncwarp
    prefetch              read the next step's (shuffle: the next row's) locations and weights ahead
    producer_registers    registers a producer thread keeps (setmaxnreg), 24 .. 256; 0 leaves them
    consumer_registers    registers a consumer thread takes; both or none
    """

    stages: int = 4
    producers: int = 2
    consumers: int = 6
    metadata: str = "recompute"
    sync: str = "barrier"
    arrivals: str = "lane"
    prefetch: bool = False
    min_blocks: int = 2
    producer_registers: int = 0
    consumer_registers: int = 0

    @property
    def threads(self):
        """Threads of a block."""
        return 32 * (self.producers + self.consumers)

    def __post_init__(self):
        at_least_one(self, "producers")
        at_least_one(self, "consumers")
        if self.producers + self.consumers > MAX_SPECIALIZED_WARPS:
            raise ConfigError(
                "consumers",
                self.consumers,
                f"with producers={self.producers} makes more than {MAX_SPECIALIZED_WARPS} warps",
            )
        super().__post_init__()
        one_of(self, "metadata", ("recompute", "shared", "shuffle"))
        one_of(self, "sync", ("barrier", "flags"))
        one_of(self, "arrivals", ("lane", "warp"))
        self._check_registers()

    def _check_registers(self):
        """PTX ISA 9.7.19.5: setmaxnreg is executed by whole warpgroups, and only moves registers."""
        give, take = self.producer_registers, self.consumer_registers
        if not give and not take:
            return
        for field, value in (("producer_registers", give), ("consumer_registers", take)):
            if value % 8 or not 24 <= value <= 256:
                raise ConfigError(
                    field, value, "must be a multiple of 8 from 24 to 256; both or none"
                )
        for field in ("producers", "consumers"):
            if getattr(self, field) % 4:
                raise ConfigError(
                    field,
                    getattr(self, field),
                    "setmaxnreg is executed by whole warpgroups: a multiple of 4 warps of each role",
                )
        if not self.min_blocks:
            raise ConfigError(
                "min_blocks", 0, "setmaxnreg needs it, to know what a thread starts with"
            )
        each = min(REGISTERS // (self.threads * self.min_blocks), MAX_REGISTERS) // 8 * 8
        wanted = self.producers * give + self.consumers * take
        if not give <= each <= take or wanted > each * (self.producers + self.consumers):
            raise ConfigError(
                "consumer_registers",
                take,
                f"a thread starts with {each}: producers may give some up ({give}), and consumers take no "
                "more than was given",
            )

    def shared_bytes(self, constants):
        return SharedBytes(*shared_bytes(self, constants))


# What a producer lane knows of the rows that its slots belong to.
Slots = namedtuple("Slots", ["number", "head", "batch"])
# Where each of them is to start in a step and what it weighs; ``lanes``: which lanes have one at all.
Aims = namedtuple("Aims", ["x", "y", "fx", "fy", "attention", "level", "head", "batch", "lanes"])


def metadata_bytes(constants, arithmetic):
    """Bytes of one tile's weights in shared memory: of its left and of its right side."""
    return 2 * 4 * ARITHMETIC[constants.dtype, arithmetic].weight_words


def shared_bytes(config, constants):
    """(bytes of tiles, of barriers and flags, of metadata) of a block."""
    stage = stage_layout(config, constants)
    slots = config.stages * config.consumers * stage.slots
    barriers = config.stages * 16
    if config.sync == "flags":
        barriers = config.stages * (8 + 4 * config.consumers)
    metadata = metadata_bytes(constants, config.arithmetic) if config.metadata == "shared" else 0
    return slots * stage.slot, barriers, slots * metadata


def build(config, constants):
    """The kernel for a ``configs.WarpSpecialized``; its arguments are those of ``tma``."""
    layout, stage = lane_layout(config.lanes, constants), stage_layout(config, constants)
    PRODUCERS, CONSUMERS, THREADS = config.producers, config.consumers, config.threads
    POINTS, SAMPLES = constants.points, constants.levels * constants.points
    PARTS, SIDES_PER_LANE, ROUNDS = layout.parts, layout.sides_per_lane, layout.rounds
    STEP, RUN_STEPS, ROUND_RUNS = stage.step, stage.run_steps, layout.chunk_lanes
    ROUND_STEPS, ROW_STEPS, FLUSH_RUNS = stage.round_steps, stage.row_steps, stage.flush_runs
    TILE, SLOT = stage.tile, stage.slot
    ROWS_PER_BLOCK, ABREAST = CONSUMERS * 32 // config.lanes, config.batches_abreast
    # One stage has SLOTS tiles; the producer lanes take them in turn, warp by warp.
    SLOTS, PRODUCER_LANES = CONSUMERS * stage.slots, 32 * PRODUCERS
    SLOTS_PER_LANE = -(-SLOTS // PRODUCER_LANES)
    STEP_SHIFT, ROW_SHIFT = STEP.bit_length() - 1, (PARTS * STEP).bit_length() - 1
    STAGES = config.stages
    SHARED_META, SHUFFLE = config.metadata == "shared", config.metadata == "shuffle"
    EVERY_LANE = config.arrivals == "lane"
    ARRIVALS = 32 if EVERY_LANE else 1  # of a warp
    FLAGS, PREFETCH = config.sync == "flags", config.prefetch
    GIVE, TAKE = config.producer_registers, config.consumer_registers
    TILES_BYTES, BARRIER_BYTES, META_BYTES = shared_bytes(config, constants)
    STATIC_BYTES = static_bytes(TILES_BYTES + BARRIER_BYTES + META_BYTES)
    META = metadata_bytes(constants, config.arithmetic)
    DEBUG, DUMP_BYTES = config.debug, 4 * constants.channels * ITEMSIZE[constants.dtype]
    TWO_WORDS = META == 16
    LOCATION_BYTES = 2 * ITEMSIZE[constants.location_dtype]
    WEIGHT_BYTES = ITEMSIZE[constants.weight_dtype]
    WORDS, load_location, convert_location = number_loader(constants.location_dtype, 2)
    _, load_weight, convert_weight = number_loader(constants.weight_dtype, 1)
    SLOT_WORDS = WORDS * SLOTS_PER_LANE
    advance = make_advance(STAGES)
    place, new_sums, clear, new_raw, read_run, _, sample, write_row = row_parts(config, constants)
    new_tiles, prepare, _, _, add_tile, add_step, flush = tile_parts(config, constants)
    acquire_maps, map_of, load_box = map_parts(
        constants, config.maps, config.tensormap_fence, config.prefetch_maps
    )
    open_marks, mark = make_marks(config.trace)
    arithmetic = ARITHMETIC[constants.dtype, config.arithmetic]
    pack, unpack = arithmetic.pack, arithmetic.unpack

    @cuda.jit(device=True, inline="always")
    def new_one():
        xy = cuda.local.array(2, float32)
        attention = cuda.local.array(1, float32)
        return Run(xy, attention)

    # --- who says that a stage is empty: the barrier or the flags ---------------------------------------
    @cuda.jit(device=True, forceinline=True)
    def flag_of(ring, state, consumer):
        """A consumer warp's flag for the state's stage, where the empty barriers would be."""
        return uint32(ring.empty + uint32(4) * uint32(state.stage * int32(CONSUMERS) + consumer))

    @cuda.jit(device=True, forceinline=True)
    def wait_empty(ring, state, turn, lane):
        """All consumers have released the stage: each has set its flag as often as the ring went round."""
        if FLAGS:
            if lane < CONSUMERS:
                flag_wait(flag_of(ring, state, lane), turn)
            cuda.syncwarp()
        else:
            acquire(ring, state)

    @cuda.jit(device=True, forceinline=True)
    def give_back(ring, state, turn, consumer, lane):
        """The whole warp, when it has read the stage."""
        if EVERY_LANE and not FLAGS:
            release(ring, state)
        else:
            cuda.syncwarp()  # all lanes have read the stage
            if lane == 0:
                if FLAGS:
                    flag_set(flag_of(ring, state, consumer), turn + 1)
                else:
                    release(ring, state)

    # --- producer -----------------------------------------------------------------------------------
    @cuda.jit(device=True, inline="always")
    def new_slots():
        number = cuda.local.array(SLOTS_PER_LANE, int32)
        head = cuda.local.array(SLOTS_PER_LANE, int32)
        batch = cuda.local.array(SLOTS_PER_LANE, int32)
        return Slots(number, head, batch)

    @cuda.jit(device=True, inline="always")
    def new_slot_words():
        xy = cuda.local.array(SLOT_WORDS, uint32)
        attention = cuda.local.array(SLOTS_PER_LANE, uint32)
        return Raw(xy, attention)

    @cuda.jit(device=True, forceinline=True)
    def find_rows(item, first, slots, batches, rows_per_batch, heads):
        """The rows of this lane's slots in an item."""
        for i in range(SLOTS_PER_LANE):
            slot = min(first + int32(i * PRODUCER_LANES), int32(SLOTS - 1))
            row = item_row(
                item, int32(slot >> int32(ROW_SHIFT)), batches, rows_per_batch, heads,
                ROWS_PER_BLOCK, ABREAST,
            )  # fmt: skip
            slots.number[i], slots.head[i], slots.batch[i] = row.number, row.head, row.batch

    @cuda.jit(device=True, forceinline=True)
    def sample_of(step, part, j):
        """Which of a row's samples a part's tile ``j`` of a step holds."""
        r = int32(step // ROUND_STEPS)
        t = int32(step % ROUND_STEPS)
        return int32(((r * int32(PARTS) + part) * int32(ROUND_STEPS) + t) * int32(STEP) + j)

    @cuda.jit(device=True, forceinline=True)
    def slot_sample(step, first, i):
        slot = first + int32(i * PRODUCER_LANES)
        part = int32(slot >> int32(STEP_SHIFT)) & int32(PARTS - 1)
        return sample_of(step, part, int32(slot & int32(STEP - 1)))

    @cuda.jit(device=True, forceinline=True)
    def read_slots(step, first, slots, locations, weights, raw):
        """Locations of this lane's tiles in a step, and weights if the consumers want to be told."""
        words = cuda.local.array(WORDS, uint32)
        attention = cuda.local.array(1, uint32)
        for i in range(SLOTS_PER_LANE):
            k = min(slot_sample(step, first, i), int32(SAMPLES - 1))
            k = uint64(slots.number[i]) * uint64(SAMPLES) + uint64(k)
            load_location(locations + k * uint64(LOCATION_BYTES), words)
            attention[0] = uint32(0)
            if SHARED_META:
                load_weight(weights + k * uint64(WEIGHT_BYTES), attention)
            for w in range(WORDS):
                raw.xy[i * WORDS + w] = words[w]
            raw.attention[i] = attention[0]

    @cuda.jit(device=True, inline="always")
    def new_aims():
        x, y = cuda.local.array(SLOTS_PER_LANE, int32), cuda.local.array(SLOTS_PER_LANE, int32)
        fx, fy = (
            cuda.local.array(SLOTS_PER_LANE, float32),
            cuda.local.array(SLOTS_PER_LANE, float32),
        )
        attention = cuda.local.array(SLOTS_PER_LANE, float32)
        level = cuda.local.array(SLOTS_PER_LANE, int32)
        head = cuda.local.array(SLOTS_PER_LANE, int32)
        batch = cuda.local.array(SLOTS_PER_LANE, int32)
        lanes = cuda.local.array(SLOTS_PER_LANE, uint32)
        return Aims(x, y, fx, fy, attention, level, head, batch, lanes)

    @cuda.jit(device=True, forceinline=True)
    def aim_slots(step, first, slots, levels, raw, aims):
        """From what was read to tiles; returns the bytes that this warp's tiles will bring."""
        tiles, one = int32(0), new_one()
        words = cuda.local.array(WORDS, uint32)
        attention_word = cuda.local.array(1, uint32)
        for i in range(SLOTS_PER_LANE):
            for w in range(WORDS):
                words[w] = raw.xy[i * WORDS + w]
            attention_word[0] = raw.attention[i]
            convert_location(words, one.xy)
            convert_weight(attention_word, one.attention)
            k = slot_sample(step, first, i)
            exists = k < SAMPLES and first + int32(i * PRODUCER_LANES) < SLOTS
            level = int32(div_u32(min(k, int32(SAMPLES - 1)), POINTS))
            height, width, _, _ = load_level(levels, level)
            x, fx, y, fy, attention = sample(one, 0, width, height, True)
            aims.x[i], aims.y[i], aims.fx[i], aims.fy[i] = x, y, fx, fy
            aims.attention[i], aims.level[i] = attention, level
            aims.head[i], aims.batch[i] = slots.head[i], slots.batch[i]
            aims.lanes[i] = uint32(cuda.ballot_sync(ALL, exists))
            tiles = int32(tiles + int32(cuda.popc(aims.lanes[i])))
        return uint32(tiles * int32(TILE))

    @cuda.jit(device=True, forceinline=True)
    def issue_slots(ring, state, lane, first, maps, tiles_address, aims):
        """Every lane asks for its own tiles."""
        for i in range(SLOTS_PER_LANE):
            if aims.lanes[i] >> uint32(lane) & uint32(1) != 0:
                slot = state.stage * int32(SLOTS) + first + int32(i * PRODUCER_LANES)
                tile = uint32(tiles_address + uint32(SLOT) * uint32(slot))
                load_box(
                    tile, map_of(maps, aims.batch[i], aims.level[i]), aims.head[i], aims.batch[i],
                    aims.x[i], aims.y[i], full_barrier(ring, state),
                )  # fmt: skip

    @cuda.jit(device=True, forceinline=True)
    def write_slots(state, first, lane, weights_address, aims):
        """Both sides' weights of this lane's tiles, as ``pack`` makes them."""
        for i in range(SLOTS_PER_LANE):
            if aims.lanes[i] >> uint32(lane) & uint32(1) != 0:
                slot = state.stage * int32(SLOTS) + first + int32(i * PRODUCER_LANES)
                address = uint32(weights_address + uint32(META) * uint32(slot))
                attention, fx, fy = aims.attention[i], aims.fx[i], aims.fy[i]
                left_a, left_b = pack(*corner_weights(attention, fx, fy, int32(0)))
                right_a, right_b = pack(*corner_weights(attention, fx, fy, int32(1)))
                if TWO_WORDS:
                    st_shared_v2(address, left_a, left_b)
                    st_shared_v2(uint32(address + uint32(8)), right_a, right_b)
                else:
                    st_shared_b32(address, left_a)
                    st_shared_b32(uint32(address + uint32(4)), right_a)

    # --- consumer -----------------------------------------------------------------------------------
    @cuda.jit(device=True, forceinline=True)
    def read_weights(address, side):
        if TWO_WORDS:
            words = ld_shared_v2(uint32(address + uint32(8) * uint32(side)))
            return unpack(words[0], words[1])
        return unpack(ld_shared_b32(uint32(address + uint32(4) * uint32(side))), uint32(0))

    @cuda.jit(device=True, forceinline=True)
    def compute_weights(locations, weights, levels, row, k, one, side):
        """Read a sample again, and weigh one side of its tile."""
        number = uint64(row.number) * uint64(SAMPLES) + uint64(k)
        words = cuda.local.array(WORDS, uint32)
        attention_word = cuda.local.array(1, uint32)
        load_location(locations + number * uint64(LOCATION_BYTES), words)
        load_weight(weights + number * uint64(WEIGHT_BYTES), attention_word)
        convert_location(words, one.xy)
        convert_weight(attention_word, one.attention)
        height, width, _, _ = load_level(levels, int32(div_u32(k, POINTS)))
        _, fx, _, fy, attention = sample(one, 0, width, height, True)
        a, b = pack(*corner_weights(attention, fx, fy, side))
        return unpack(a, b)

    @cuda.jit(device=True, forceinline=True)
    def add_sample(acc, tile, told, k, me, row, one, locations, weights, levels, dump):
        """Sample k of a row, its weights told by the producer or computed again."""
        if k < SAMPLES:  # else nothing was loaded
            if DEBUG and dump != 0:
                dump = dump + uint64(k) * uint64(DUMP_BYTES)
            for s in range(SIDES_PER_LANE):
                side = me.side + int32(s)
                if SHARED_META:
                    up, down = read_weights(told, side)
                else:
                    up, down = compute_weights(locations, weights, levels, row, k, one, side)
                add_tile(acc, tile, me, s, up, down, dump)

    @kernel(
        threads=config.threads,
        min_blocks=config.min_blocks,
        whole_program=bool(GIVE),
    )
    def warp_specialized(
        maps: u64, levels: u64, locations: u64, weights: u64, out: u64, debug: u64,
        debug_row: i32, batches: i32, rows_per_batch: i32, heads: i32,
    ):  # fmt: skip
        thread = int32(cuda.threadIdx.x)
        lane, warp = int32(thread & int32(31)), int32(thread >> int32(5))
        items = item_count(batches, rows_per_batch, ROWS_PER_BLOCK)
        item, stride = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)

        shared = cuda.shared.array(STATIC_BYTES, types.uint8, alignment=128)
        tiles_address = align_up(shared_address(shared), uint32(128))
        weights_address = uint32(tiles_address + uint32(TILES_BYTES))
        full = uint32(weights_address + uint32(META_BYTES))
        ring = Ring(full, uint32(full + uint32(8 * STAGES)))
        if thread == 0:
            init_barriers(ring.full, STAGES, PRODUCERS * ARRIVALS)
            if not FLAGS:
                init_barriers(ring.empty, STAGES, CONSUMERS * ARRIVALS)
            fence_mbarrier_init()  # the copy engine sees the barriers
        if FLAGS:
            for i in range(thread, STAGES * CONSUMERS, THREADS):
                st_shared_b32(uint32(ring.empty + uint32(4) * uint32(i)), uint32(0))
        acquire_maps(maps, batches, thread, THREADS)
        cuda.syncthreads()

        marks = open_marks(debug, debug_row, warp, lane)
        state, turn = first_state(), int32(0)  # turn: how often the ring has wrapped
        if warp < PRODUCERS:
            if GIVE:
                setmaxnreg_dec(uint32(GIVE))
            slots, raw, aims = new_slots(), new_slot_words(), new_aims()
            first = int32(lane * int32(PRODUCERS) + warp)  # of this lane's slots
            step = int32(0)
            if item < items:
                find_rows(item, first, slots, batches, rows_per_batch, heads)
                if PREFETCH:
                    read_slots(step, first, slots, locations, weights, raw)
            while item < items:
                if not PREFETCH:
                    read_slots(step, first, slots, locations, weights, raw)
                bytes_to_come = aim_slots(step, first, slots, levels, raw, aims)
                step = int32(step + 1)
                if step == ROW_STEPS:
                    step, item = int32(0), int32(item + stride)
                    if item < items:
                        find_rows(item, first, slots, batches, rows_per_batch, heads)
                if PREFETCH:
                    if item < items:
                        read_slots(step, first, slots, locations, weights, raw)

                mark(marks, ACQUIRE, state)
                wait_empty(ring, state, turn, lane)
                mark(marks, ISSUE, state)
                issue_slots(ring, state, lane, first, maps, tiles_address, aims)
                if SHARED_META:
                    write_slots(state, first, lane, weights_address, aims)
                if EVERY_LANE:
                    mine = bytes_to_come if lane == 0 else uint32(0)
                    commit(ring, state, mine)
                else:
                    cuda.syncwarp()  # all lanes' weights are written
                    if lane == 0:
                        commit(ring, state, bytes_to_come)
                mark(marks, COMMIT, state)
                state = advance(state)
                if state.stage == 0:
                    turn = int32(turn + 1)
        else:
            if TAKE:
                setmaxnreg_inc(uint32(TAKE))
            consumer = int32(warp - int32(PRODUCERS))
            me = place(int32(thread - int32(PRODUCER_LANES)))
            acc, raw, tiles, one = new_sums(), new_raw(), new_tiles(), new_one()
            own_slot = int32((me.row * int32(PARTS) + me.part) * int32(STEP))
            row = item_row(
                min(item, int32(items - 1)), me.row, batches, rows_per_batch, heads,
                ROWS_PER_BLOCK, ABREAST,
            )  # fmt: skip
            level, mine = int32(0), False
            if SHUFFLE and PREFETCH:
                level, mine = read_run(locations, weights, row, int32(0), me, raw)
            while item < items:
                dump = dump_of(debug, debug_row, row)
                item = int32(item + stride)
                next_row = item_row(
                    min(item, int32(items - 1)), me.row, batches, rows_per_batch, heads,
                    ROWS_PER_BLOCK, ABREAST,
                )  # fmt: skip
                for r in range(ROUNDS):
                    if SHUFFLE:
                        if not PREFETCH:
                            level, mine = read_run(locations, weights, row, r, me, raw)
                        height, width, _, _ = load_level(levels, level)
                        prepare(raw, width, height, mine, me, tiles)
                        if PREFETCH:
                            if r + 1 < ROUNDS:
                                level, mine = read_run(locations, weights, row, r + 1, me, raw)
                            else:
                                level, mine = read_run(locations, weights, next_row, 0, me, raw)
                    for i in range(ROUND_RUNS):
                        for n in range(RUN_STEPS):
                            mark(marks, WAIT, state)
                            wait(ring, state)
                            mark(marks, COMPUTE, state)
                            first_slot = uint32(state.stage * int32(SLOTS) + own_slot)
                            here = uint32(tiles_address + uint32(SLOT) * first_slot)
                            if SHUFFLE:
                                add_step(acc, here, i, n, r, me, tiles, dump)
                            else:
                                told = uint32(weights_address + uint32(META) * first_slot)
                                k = sample_of((r * ROUND_RUNS + i) * RUN_STEPS + n, me.part, 0)
                                for j in range(STEP):
                                    add_sample(
                                        acc, uint32(here + uint32(j * SLOT)),
                                        uint32(told + uint32(j * META)), int32(k + int32(j)),
                                        me, row, one, locations, weights, levels, dump,
                                    )  # fmt: skip
                            give_back(ring, state, turn, consumer, lane)
                            mark(marks, RELEASE, state)
                            state = advance(state)
                            if state.stage == 0:
                                turn = int32(turn + 1)
                        if FLUSH_RUNS:
                            flush(acc)
                    if not FLUSH_RUNS:
                        flush(acc)
                write_row(out, row, me, acc)
                clear(acc)
                row = next_row

    return warp_specialized


def blocks(problem, config, resident):
    """Grid size: the blocks that are resident at once, unless there are fewer rows."""
    return min(resident(), items(problem, config.consumers * 32 // config.lanes))

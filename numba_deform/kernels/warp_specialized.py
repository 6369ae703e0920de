"""warp_specialized: some warps only load, the others only compute.

P producer and C consumer warps share one ring per block. A stage holds one step's tiles of all the
consumers' rows; it is full when every producer has arrived and all its bytes are there, and empty
when every consumer has released it:

    producer: for each step of each row:          consumer: for each step of each row:
                  acquire the stage                              wait for the stage
                  issue its tiles                                add up its tiles
                  commit                                         release it

The block is persistent: both sides go on to the next rows, at their own pace.

metadata: how a consumer knows what a sample weighs
    recompute   every lane reads location and weight again and computes for itself
    shared      the producers write the weights of each tile's sides beside the tile
    shuffle     each lane prepares a run of samples, the others fetch by shuffle, as in ``tma``
sync: what says that a stage is empty
    barrier     the empty barrier
    flags       a 32-bit flag for each stage and consumer warp, set with release and polled with acquire.
                A full stage still needs its barrier: only an mbarrier can count what TMA has delivered
"""

from collections import namedtuple
from dataclasses import dataclass
from typing import NamedTuple

from numba import cuda, float32, int32, types, uint32, uint64

from ..compiler import i32, kernel, u64
from ..device.integer import quotient
from ..device.limits import registers_at_launch
from ..device.memory import (
    align_up,
    global_at,
    ld_shared_b32,
    ld_shared_v2,
    shared_address,
    shared_at,
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
from ..device.sync import fence_mbarrier_init, fence_proxy_async, lane, warp
from .parts.accumulate import ALL, ARITHMETIC
from .parts.config import Boxes, SharedBytes, at_least_one, one_of
from .parts.lanes import lane_layout
from .parts.row import Raw, Run, item_count, item_row, items, row_parts, run_parts
from .parts.sampling import corner_weights, load_level, number_loader
from .parts.tiles import dump_of, stage_layout, tile_parts
from .problem import ITEMSIZE, ConfigError
from .tma import map_parts

MAX_SPECIALIZED_WARPS = 16


@dataclass(frozen=True)
class WarpSpecialized(Boxes):
    """Parameters of ``warp-specialized``.

    producers, consumers  warps of each role, together at most 16
    metadata, sync        ``recompute``, ``shared`` or ``shuffle``; ``barrier`` or ``flags`` (see above)
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
            rule = f"with producers={self.producers} makes more than {MAX_SPECIALIZED_WARPS} warps"
            raise ConfigError("consumers", self.consumers, rule)
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
                rule = "must be a multiple of 8 from 24 to 256; both or none"
                raise ConfigError(field, value, rule)
        for field, warps in (("producers", self.producers), ("consumers", self.consumers)):
            if warps % 4:
                rule = "setmaxnreg is executed by whole warpgroups: a multiple of 4 warps of each role"
                raise ConfigError(field, warps, rule)
        if not self.min_blocks:
            rule = "setmaxnreg needs it, to know what a thread starts with"
            raise ConfigError("min_blocks", 0, rule)
        each = registers_at_launch(self.threads, self.min_blocks)
        wanted = self.producers * give + self.consumers * take
        if not give <= each <= take or wanted > each * (self.producers + self.consumers):
            raise ConfigError(
                "consumer_registers", take, f"a thread starts with {each}: producers may give some up "
                f"({give}), and consumers take no more than was given",
            )  # fmt: skip

    def shared_bytes(self, constants):
        return shared_bytes(self, constants)


class BlockLayout(NamedTuple):
    """How a block shares its work; all compile-time."""

    producers: int  # warps
    consumers: int
    rows: int  # of an item
    slots: int  # tiles of a stage, which the producer lanes take in turn, warp by warp
    lanes: int  # of all producers
    every_lane: bool  # arrives for itself
    flags: bool  # say that a stage is empty
    told: bool  # the producers tell what a tile weighs
    weights: int  # bytes that say so: of a tile's left and of its right side


def block_layout(config, constants):
    """The :class:`BlockLayout` of a configuration."""
    words = ARITHMETIC[constants.dtype, config.arithmetic].weight_words
    return BlockLayout(
        config.producers, config.consumers, config.consumers * 32 // config.lanes,
        config.consumers * stage_layout(config, constants).slots, 32 * config.producers,
        config.arrivals == "lane", config.sync == "flags", config.metadata == "shared", 2 * 4 * words,
    )  # fmt: skip


def shared_bytes(config, constants):
    """The ``SharedBytes`` of a block: of tiles, of barriers and flags, of weights."""
    block, slot = block_layout(config, constants), stage_layout(config, constants).slot
    slots, barriers = config.stages * block.slots, config.stages * 16
    if block.flags:
        barriers = config.stages * (8 + 4 * block.consumers)
    return SharedBytes(slots * slot, barriers, slots * block.weights if block.told else 0)


# Where a block's tiles and their weights start in shared memory.
Shared = namedtuple("Shared", ["tiles", "weights"])
# What a producer lane knows of the rows that its slots belong to.
Slots = namedtuple("Slots", ["number", "head", "batch"])
# Where each of them is to start in a step and what it weighs; ``lanes``: which lanes have one at all.
Aims = namedtuple("Aims", ["x", "y", "fx", "fy", "attention", "level", "head", "batch", "lanes"])


# --- who says that a stage is empty: the barriers or the flags ----------------------------------------
@cuda.jit(device=True, forceinline=True)
def flag_of(ring, state, consumer, block):
    """A consumer warp's flag for the state's stage, where the empty barriers would be."""
    return shared_at(ring.empty, state.stage * block.consumers + consumer, 4)


@cuda.jit(device=True, forceinline=True)
def acquire_stage(ring, state, block):
    """Producer warp: wait until all consumers have released the stage, whose flags then have its parity."""
    if block.flags:
        if lane() < block.consumers:
            flag_wait(flag_of(ring, state, lane(), block), state.parity)
        cuda.syncwarp()
    else:
        acquire(ring, state)


@cuda.jit(device=True, forceinline=True)
def release_stage(ring, state, consumer, block):
    """Consumer warp: it has read the stage, and flips its flag."""
    if block.every_lane and not block.flags:
        release(ring, state)
    else:
        cuda.syncwarp()  # all lanes have read the stage
        if lane() == 0:
            if block.flags:
                fence_proxy_async()
                flag_set(flag_of(ring, state, consumer, block), state.parity ^ 1)
            else:
                release(ring, state)


# --- producer -----------------------------------------------------------------------------------------
def producer(config, constants):
    """The device function produce(..): asks for the tiles of each step as soon as there is a stage for it."""
    layout, stage = lane_layout(config.lanes, constants), stage_layout(config, constants)
    block, rows = block_layout(config, constants), row_parts(config, constants)
    loads = map_parts(constants, config.maps)
    STEP_SHIFT, ROW_SHIFT = stage.step.bit_length() - 1, (layout.parts * stage.step).bit_length() - 1
    POINTS, SAMPLES = constants.points, constants.levels * constants.points
    ABREAST, PREFETCH = config.batches_abreast, config.prefetch
    LOCATION_BYTES = 2 * ITEMSIZE[constants.location_dtype]
    WEIGHT_BYTES = ITEMSIZE[constants.weight_dtype]
    WORDS, load_location, convert_location = number_loader(constants.location_dtype, 2)
    _, load_weight, convert_weight = number_loader(constants.weight_dtype, 1)
    PER_LANE = -(-block.slots // block.lanes)
    ALL_WORDS = WORDS * PER_LANE
    pack = ARITHMETIC[constants.dtype, config.arithmetic].pack
    acquire, advance = acquire_stage, make_advance(config.stages)

    @cuda.jit(device=True, inline="always")
    def new_slots():
        number, head = cuda.local.array(PER_LANE, int32), cuda.local.array(PER_LANE, int32)
        return Slots(number, head, cuda.local.array(PER_LANE, int32))

    @cuda.jit(device=True, inline="always")
    def new_words():
        xy, attention = cuda.local.array(ALL_WORDS, uint32), cuda.local.array(PER_LANE, uint32)
        return Raw(xy, attention)

    @cuda.jit(device=True, inline="always")
    def new_aims():
        x, y = cuda.local.array(PER_LANE, int32), cuda.local.array(PER_LANE, int32)
        fx, fy = cuda.local.array(PER_LANE, float32), cuda.local.array(PER_LANE, float32)
        attention, level = cuda.local.array(PER_LANE, float32), cuda.local.array(PER_LANE, int32)
        head, batch = cuda.local.array(PER_LANE, int32), cuda.local.array(PER_LANE, int32)
        lanes = cuda.local.array(PER_LANE, uint32)
        return Aims(x, y, fx, fy, attention, level, head, batch, lanes)

    @cuda.jit(device=True, forceinline=True)
    def slot_at(i):
        """The number of this lane's slot i in its stage; past the last one there is none."""
        return int32(lane() * block.producers + warp() + i * block.lanes)

    @cuda.jit(device=True, forceinline=True)
    def find_rows(item, slots, batches, rows_per_batch, heads):
        """The rows of this lane's slots in an item."""
        for i in range(PER_LANE):
            slot = min(slot_at(i), int32(block.slots - 1))
            row = item_row(item, int32(slot >> ROW_SHIFT), batches, rows_per_batch, heads, block.rows, ABREAST)
            slots.number[i], slots.head[i], slots.batch[i] = row.number, row.head, row.batch

    @cuda.jit(device=True, forceinline=True)
    def sample_of(step, i):
        """Which of its row's samples this lane's slot i holds in a step."""
        part = int32(slot_at(i) >> STEP_SHIFT) & (layout.parts - 1)
        r, t = int32(step // stage.round_steps), int32(step % stage.round_steps)
        t = (r * layout.parts + part) * stage.round_steps + t
        return int32(t * stage.step + (slot_at(i) & (stage.step - 1)))

    @cuda.jit(device=True, forceinline=True)
    def read_slots(step, slots, locations, weights, raw):
        """Reads the samples of a step; their weights only if the consumers want to be told."""
        words, attention = cuda.local.array(WORDS, uint32), cuda.local.array(1, uint32)
        for i in range(PER_LANE):
            k = min(sample_of(step, i), int32(SAMPLES - 1))
            k = uint64(slots.number[i]) * uint64(SAMPLES) + uint64(k)
            load_location(global_at(locations, k, LOCATION_BYTES), words)
            attention[0] = uint32(0)
            if block.told:
                load_weight(global_at(weights, k, WEIGHT_BYTES), attention)
            for w in range(WORDS):
                raw.xy[i * WORDS + w] = words[w]
            raw.attention[i] = attention[0]

    @cuda.jit(device=True, forceinline=True)
    def aim_slots(step, slots, levels, raw, aims):
        """From what was read to tiles; returns the bytes that this warp's tiles bring."""
        words, word = cuda.local.array(WORDS, uint32), cuda.local.array(1, uint32)
        one = Run(cuda.local.array(2, float32), cuda.local.array(1, float32))
        tiles = int32(0)
        for i in range(PER_LANE):
            for w in range(WORDS):
                words[w] = raw.xy[i * WORDS + w]
            word[0] = raw.attention[i]
            convert_location(words, one.xy)
            convert_weight(word, one.attention)
            k = sample_of(step, i)
            exists = k < SAMPLES and slot_at(i) < block.slots
            level = quotient(min(k, int32(SAMPLES - 1)), POINTS)
            height, width, _, _ = load_level(levels, level)
            x, fx, y, fy, attention = rows.sample(one, 0, width, height, True)
            aims.x[i], aims.y[i], aims.fx[i], aims.fy[i] = x, y, fx, fy
            aims.attention[i], aims.level[i] = attention, level
            aims.head[i], aims.batch[i] = slots.head[i], slots.batch[i]
            aims.lanes[i] = uint32(cuda.ballot_sync(ALL, exists))
            tiles = int32(tiles + int32(cuda.popc(aims.lanes[i])))
        return uint32(tiles * stage.tile)

    @cuda.jit(device=True, forceinline=True)
    def write_weights(address, attention, fx, fy):
        """Both sides' weights of a tile, as ``pack`` makes them."""
        left_a, left_b = pack(*corner_weights(attention, fx, fy, int32(0)))
        right_a, right_b = pack(*corner_weights(attention, fx, fy, int32(1)))
        if block.weights == 16:
            st_shared_v2(address, left_a, left_b)
            st_shared_v2(shared_at(address, 1, 8), right_a, right_b)
        else:
            st_shared_b32(address, left_a)
            st_shared_b32(shared_at(address, 1, 4), right_a)

    @cuda.jit(device=True, forceinline=True)
    def issue(ring, state, shared, maps, aims, bytes_to_come):
        """Asks for the tiles, writes down what they weigh if the consumers want to be told, and commits."""
        for i in range(PER_LANE):
            if aims.lanes[i] >> uint32(lane()) & uint32(1) != 0:
                tile = shared_at(shared.tiles, state.stage * block.slots + slot_at(i), stage.slot)
                map = loads.map_of(maps, aims.batch[i], aims.level[i])
                loads.load_box(
                    tile, map, aims.head[i], aims.batch[i], aims.x[i], aims.y[i], full_barrier(ring, state)
                )
        if block.told:
            for i in range(PER_LANE):
                if aims.lanes[i] >> uint32(lane()) & uint32(1) != 0:
                    slot = state.stage * block.slots + slot_at(i)
                    told = shared_at(shared.weights, slot, block.weights)
                    write_weights(told, aims.attention[i], aims.fx[i], aims.fy[i])
        if block.every_lane:
            commit(ring, state, bytes_to_come if lane() == 0 else uint32(0))
        else:
            cuda.syncwarp()  # all lanes' weights are written
            if lane() == 0:
                commit(ring, state, bytes_to_come)

    @cuda.jit(device=True, forceinline=True)
    def produce(ring, shared, maps, levels, locations, weights, batches, rows_per_batch, heads):
        items = item_count(batches, rows_per_batch, block.rows)
        item, stride = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)
        slots, raw, aims = new_slots(), new_words(), new_aims()
        state, step = first_state(), int32(0)
        if item < items:
            find_rows(item, slots, batches, rows_per_batch, heads)
            if PREFETCH:
                read_slots(step, slots, locations, weights, raw)
        while item < items:
            if not PREFETCH:
                read_slots(step, slots, locations, weights, raw)
            bytes_to_come = aim_slots(step, slots, levels, raw, aims)
            step = int32(step + 1)
            if step == stage.row_steps:
                step, item = int32(0), int32(item + stride)
                if item < items:
                    find_rows(item, slots, batches, rows_per_batch, heads)
            if PREFETCH and item < items:
                read_slots(step, slots, locations, weights, raw)
            acquire(ring, state, block)
            issue(ring, state, shared, maps, aims, bytes_to_come)
            state = advance(state)

    return produce


# --- consumer -----------------------------------------------------------------------------------------
def consumer(config, constants):
    """The device function consume(..): adds up the tiles of step after step, as soon as they are there."""
    layout, stage = lane_layout(config.lanes, constants), stage_layout(config, constants)
    rows, steps = row_parts(config, constants), tile_parts(config, constants)
    block = block_layout(config, constants)
    POINTS, SAMPLES = constants.points, constants.levels * constants.points
    ABREAST, SHUFFLE = config.batches_abreast, config.metadata == "shuffle"
    PREFETCH, DEBUG = SHUFFLE and config.prefetch, config.debug
    DUMP_BYTES = 4 * constants.channels * ITEMSIZE[constants.dtype]
    LOCATION_BYTES = 2 * ITEMSIZE[constants.location_dtype]
    WEIGHT_BYTES = ITEMSIZE[constants.weight_dtype]
    arithmetic = ARITHMETIC[constants.dtype, config.arithmetic]
    new_one, load_one, unpack_one = run_parts(1, constants.location_dtype, constants.weight_dtype)
    place, new_sums, new_raw, new_tiles = rows.place, rows.new_sums, rows.new_raw, steps.new_tiles
    release, advance = release_stage, make_advance(config.stages)

    @cuda.jit(device=True, forceinline=True)
    def row_of(item, me, batches, rows_per_batch, heads):
        """This lane's row of an item, or of the last one if there is no such item."""
        item = min(item, int32(item_count(batches, rows_per_batch, block.rows) - 1))
        return item_row(item, me.row, batches, rows_per_batch, heads, block.rows, ABREAST)

    @cuda.jit(device=True, forceinline=True)
    def read_weights(address, side):
        if block.weights == 16:
            words = ld_shared_v2(shared_at(address, side, 8))
            return arithmetic.unpack(words[0], words[1])
        return arithmetic.unpack(ld_shared_b32(shared_at(address, side, 4)), uint32(0))

    @cuda.jit(device=True, forceinline=True)
    def compute_weights(locations, weights, levels, row, k, side):
        """Reads a sample again, and weighs one side of its tile."""
        number, raw = uint64(row.number) * uint64(SAMPLES) + uint64(k), new_one()
        location = global_at(locations, number, LOCATION_BYTES)
        load_one(location, global_at(weights, number, WEIGHT_BYTES), raw)
        one = unpack_one(raw)
        height, width, _, _ = load_level(levels, quotient(k, POINTS))
        _, fx, _, fy, attention = rows.sample(one, 0, width, height, True)
        a, b = arithmetic.pack(*corner_weights(attention, fx, fy, side))
        return arithmetic.unpack(a, b)

    @cuda.jit(device=True, forceinline=True)
    def add_samples(acc, shared, slot, first, me, row, locations, weights, levels, dump):
        """Adds the samples from ``first`` on of a row, whose tiles start with ``slot``; their weights
        are told by the producer or computed again."""
        for j in range(stage.step):
            k = int32(first + int32(j))
            if k < SAMPLES:  # else nothing was loaded
                tile_dump = dump
                if DEBUG and dump != 0:
                    tile_dump = global_at(dump, k, DUMP_BYTES)
                for s in range(layout.sides_per_lane):
                    side = me.side + int32(s)
                    if block.told:
                        told = shared_at(shared.weights, slot + j, block.weights)
                        up, down = read_weights(told, side)
                    else:
                        up, down = compute_weights(locations, weights, levels, row, k, side)
                    tile = shared_at(shared.tiles, slot + j, stage.slot)
                    steps.add_tile(acc, tile, me, s, up, down, tile_dump)

    @cuda.jit(device=True, forceinline=True)
    def consume(
        ring, shared, levels, locations, weights, out, debug, debug_row, batches, rows_per_batch, heads
    ):
        items = item_count(batches, rows_per_batch, block.rows)
        item, stride = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)
        number = int32(warp() - block.producers)
        me = place(int32(cuda.threadIdx.x - block.lanes))
        acc, raw, tiles, state = new_sums(), new_raw(), new_tiles(), first_state()
        row = row_of(item, me, batches, rows_per_batch, heads)
        level, mine = int32(0), False
        if PREFETCH:
            level, mine = rows.read_run(locations, weights, row, int32(0), me, raw)
        while item < items:
            dump = dump_of(debug, debug_row, row)
            item = int32(item + stride)
            next_row = row_of(item, me, batches, rows_per_batch, heads)
            for r in range(layout.rounds):
                if SHUFFLE:
                    if not PREFETCH:
                        level, mine = rows.read_run(locations, weights, row, r, me, raw)
                    height, width, _, _ = load_level(levels, level)
                    steps.prepare(raw, width, height, mine, me, tiles)
                    if PREFETCH:
                        if r + 1 < layout.rounds:
                            level, mine = rows.read_run(locations, weights, row, r + 1, me, raw)
                        else:
                            level, mine = rows.read_run(locations, weights, next_row, 0, me, raw)
                for i in range(layout.chunk_lanes):
                    for n in range(stage.run_steps):
                        wait(ring, state)
                        part = me.row * layout.parts + me.part
                        slot = uint32(state.stage * block.slots + part * stage.step)
                        if SHUFFLE:
                            here = shared_at(shared.tiles, slot, stage.slot)
                            steps.add_step(acc, here, i, n, r, me, tiles, dump)
                        else:
                            k = int32(r * layout.parts + me.part) * stage.round_steps
                            k = int32((k + i * stage.run_steps + n) * stage.step)
                            add_samples(acc, shared, slot, k, me, row, locations, weights, levels, dump)
                        release(ring, state, number, block)
                        state = advance(state)
                    if stage.flush_runs:
                        steps.flush(acc)
                if not stage.flush_runs:
                    steps.flush(acc)
            rows.write_row(out, row, me, acc)
            rows.clear(acc)
            row = next_row

    return consume


def build(config, constants):
    """The kernel for a :class:`WarpSpecialized`; its operands are those of ``tma``."""
    block, shared_size = block_layout(config, constants), shared_bytes(config, constants)
    loads = map_parts(constants, config.maps, config.tensormap_fence, config.prefetch_maps)
    THREADS, STAGES, STATIC_BYTES = config.threads, config.stages, static_bytes(sum(shared_size))
    ARRIVALS = 32 if block.every_lane else 1  # of a warp
    GIVE, TAKE = config.producer_registers, config.consumer_registers
    produce, consume = producer(config, constants), consumer(config, constants)

    @kernel(threads=THREADS, min_blocks=config.min_blocks, whole_program=bool(GIVE))
    def warp_specialized(
        maps: u64, levels: u64, locations: u64, weights: u64, out: u64, debug: u64,
        debug_row: i32, batches: i32, rows_per_batch: i32, heads: i32,
    ):  # fmt: skip
        thread = int32(cuda.threadIdx.x)
        # By hand: through a layout.Shared two variants take more registers in fp32, roles-flags 62 in place of
        # 60 and warp-specialized 51 in place of 48.
        memory = cuda.shared.array(STATIC_BYTES, types.uint8, alignment=128)
        tiles_address = align_up(shared_address(memory), uint32(128))
        weights_address = uint32(tiles_address + shared_size.tiles)
        full = uint32(weights_address + shared_size.metadata)
        shared, ring = Shared(tiles_address, weights_address), Ring(full, shared_at(full, STAGES, 8))
        if thread == 0:
            init_barriers(ring.full, STAGES, block.producers * ARRIVALS)
            if not block.flags:
                init_barriers(ring.empty, STAGES, block.consumers * ARRIVALS)
            fence_mbarrier_init()  # the copy engine sees the barriers
        if block.flags:
            for i in range(thread, STAGES * block.consumers, THREADS):
                st_shared_b32(shared_at(ring.empty, i, 4), uint32(0))
        loads.acquire_maps(maps, batches, thread, THREADS)
        cuda.syncthreads()

        if warp() < block.producers:
            if GIVE:
                setmaxnreg_dec(uint32(GIVE))
            produce(ring, shared, maps, levels, locations, weights, batches, rows_per_batch, heads)
        else:
            if TAKE:
                setmaxnreg_inc(uint32(TAKE))
            consume(
                ring, shared, levels, locations, weights, out, debug, debug_row, batches,
                rows_per_batch, heads,
            )  # fmt: skip

    return warp_specialized


def blocks(problem, config, resident):
    """Grid size: the blocks that are resident at once, unless there are fewer rows."""
    return min(resident(), items(problem, config.consumers * 32 // config.lanes))

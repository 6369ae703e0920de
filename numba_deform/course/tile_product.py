"""tile_product: C = A B^T in fp16 with float32 sums, as a pipeline of TMA, ldmatrix and mma.sync.

A block makes one tile of C. A *producer* warp has boxes of A and B, 64 elements of k wide, brought into a ring
of stages by TMA; *consumer* warps multiply what has arrived. Each of them has a part of the tile: its sums stay
in registers from the first step to the last, go to shared memory as fp16 by ``stmatrix``, and leave by a TMA
store.

A row of a box is 128 bytes, all 32 banks. So the eight rows of an 8x8 matrix, at one and the same k, would lie
in the same four banks, and ``ldmatrix`` would take eight turns instead of one. The maps swizzle by 128 bytes:
the 16-byte chunk number c of row r lies at c ^ (r % 8), so the eight rows take all banks once. The consumers'
addresses do the same (``place_of``), as do those of ``stmatrix``.

Consumers load the fragments of the next 16 of k while they multiply the last, also from one stage into the
next. A stage goes back as soon as its last fragments are in registers. ``warpgroup_product.py`` has the same
pipeline with wgmma, which needs no fragments.
"""

from collections import namedtuple
from dataclasses import dataclass

from numba import cuda, float32, int32, types, uint32

from ..compiler import i32, kernel, static_range, u64
from ..device.half2 import cvt_rn_f16x2_f32
from ..device.integer import div_u32
from ..device.limits import MAX_THREADS, MOST_ALLOTTED, SHARED_LIMIT, registers_at_launch
from ..device.matrix import ldmatrix_x4, mma_m16n8k16_f16, stmatrix_x4
from ..device.memory import align_up, dynamic_bytes, global_at, shared_address, shared_at, static_bytes
from ..device.pipeline import (
    Ring,
    acquire,
    commit,
    first_state,
    full_barrier,
    init_barriers,
    make_advance,
    release,
    wait,
)
from ..device.registers import setmaxnreg_dec, setmaxnreg_inc
from ..device.sync import bar_sync, fence_mbarrier_init, fence_proxy_async, lane, warp
from ..device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_tensor_2d,
    cp_async_bulk_tensor_2d_store,
    cp_async_bulk_wait_group,
    fence_proxy_tensormap_acquire_sys,
)
from ..engines.tensormap import TensorMap, TensorMapArray
from ..kernels.problem import ConfigError

STEP = 64  # elements of k in a stage: rows of 128 bytes, as wide as the swizzle
ROW, MAP = 2 * STEP, 128  # bytes of a row, and of a tensor map
BLOCK_ROWS = 16 * ROW  # bytes of sixteen rows: what one mma takes of A, and two of B
PARTS = STEP // 16  # mma instructions along k in a stage
PRODUCER_REGISTERS = 24

Parts = namedtuple("Parts", "set_up produce multiply store")


@dataclass(frozen=True)
class TileProduct:
    """Parameters of the kernel.

    rows, columns            of a block's tile of C
    warp_rows, warp_columns  of a consumer warp's part of it
    stages                   of the ring
    consumer_registers       of a consumer's thread, moved there from the producer by setmaxnreg, which acts on
                             four warps at once: the producer then gets three idle ones. 0: none are moved
    """

    rows: int = 128
    columns: int = 256
    warp_rows: int = 64
    warp_columns: int = 64
    stages: int = 4
    consumer_registers: int = 232

    def __post_init__(self):
        for name, step in (("warp_rows", 16), ("warp_columns", 64)):
            size, whole = getattr(self, name), name.removeprefix("warp_")
            if size < step or size % step:
                raise ConfigError(name, size, f"must be a multiple of {step}")
            if not size <= getattr(self, whole) <= 256 or getattr(self, whole) % size:
                raise ConfigError(whole, getattr(self, whole), f"must be a multiple of {name}, at most 256")
        if self.threads > MAX_THREADS:
            raise ConfigError("warp_rows", self.warp_rows, f"must make at most {MAX_THREADS} threads")
        if self.ring_bytes < 2 * self.rows * self.columns:
            raise ConfigError("stages", self.stages, "must make a ring that holds the tile of C at the end")
        if dynamic_bytes(self.shared_bytes) > SHARED_LIMIT:
            raise ConfigError("stages", self.stages, f"must fit into {SHARED_LIMIT} bytes of shared memory")
        self._check_registers()

    def _check_registers(self):
        taken = self.consumer_registers
        if not taken:
            return
        if self.consumers % 4:
            raise ConfigError("consumer_registers", taken, "needs consumers by fours")
        each = registers_at_launch(self.threads)
        rest = each * self.threads // 32 - 4 * PRODUCER_REGISTERS
        most = min(MOST_ALLOTTED, rest // self.consumers) // 8 * 8
        if taken % 8 or not each <= taken <= most:
            raise ConfigError("consumer_registers", taken, f"must be a multiple of 8 from {each} to {most}")

    @property
    def consumers(self):
        """Consumer warps."""
        return self.rows // self.warp_rows * (self.columns // self.warp_columns)

    @property
    def producers(self):
        """Warps before the consumers, of which the first works."""
        return 4 if self.consumer_registers else 1

    @property
    def threads(self):
        return 32 * (self.producers + self.consumers)

    @property
    def ring_bytes(self):
        return self.stages * (self.rows + self.columns) * ROW

    @property
    def shared_bytes(self):
        """Bytes of shared memory: the ring, and two barriers a stage."""
        return self.ring_bytes + 16 * self.stages

    def maps(self, a, b, c):
        """The tensor maps of A (m, k), B (n, k) and C (m, n), fp16 arrays, in this order."""
        boxes = (a, (STEP, self.rows)), (b, (STEP, self.columns)), (c, (STEP, self.warp_rows))
        return TensorMapArray([TensorMap.of(array, box, swizzle="128B") for array, box in boxes])

    def launch(self, m, n, k):
        """(grid, bytes of dynamic shared memory, the kernel's arguments behind the maps)"""
        across = -(-n // self.columns)
        return -(-m // self.rows) * across, dynamic_bytes(self.shared_bytes), (across, -(-k // STEP))


@cuda.jit(device=True, inline="always")
def map_of(maps, number):
    """The address of the map of A (0), B (1) or C (2)."""
    return global_at(maps, number, MAP)


@cuda.jit(device=True, forceinline=True)
def place_of(tiles, row, half):
    """Where ``row`` of sixteen, and of that the eight elements at k or (``half`` = 1) at k + 8, lie from the
    first row on, swizzled. ``tiles``, where the ring begins, need not lie on a multiple of the swizzle's 1024
    bytes; the sixteen rows lie on one from there. XOR with 32 i goes on to k + 16 i."""
    start = uint32(uint32(row) * uint32(ROW))
    turn = uint32(uint32(uint32(tiles + start) >> uint32(3)) & uint32(0x70))  # (row % 8) x 16
    return uint32(start | uint32(uint32(uint32(half) << uint32(4)) ^ turn))


@cuda.jit(device=True, forceinline=True)
def place_in_a(tiles):
    """That of the address that a lane gives for sixteen rows of A, or of C: matrices 1 and 3 are lower rows."""
    return place_of(tiles, lane() & 15, lane() >> 4)


@cuda.jit(device=True, forceinline=True)
def place_in_b(tiles):
    """The same for sixteen rows of B: matrices 0 and 1 are eight rows, so that their words are neighbours."""
    return place_of(tiles, (lane() & 7) + (lane() >> 4) * 8, (lane() >> 3) & 1)


def parts(config, pack=cvt_rn_f16x2_f32):
    """The device functions of a pipeline, for a :class:`TileProduct`: a :class:`Parts`; ``pack`` rounds C.

    set_up(tiles)                                   the Ring behind the tiles at that address; by all threads
    produce(ring, tiles, maps, row, column, steps)  loads the boxes of a tile that begins there; by one thread
    multiply(ring, tiles, maps, steps, sums)        fills ``sums``, a local array; by the consumers
    store(tiles, maps, row, column, sums)           writes them to C, in place of the ring; by the consumers

    Who uses a map first fences it, so that nobody waits for all three before the first box is asked for.
    """
    return Parts(_set_up(config), _producer(config), _consumer(config), _epilogue(config, pack))


def _set_up(config):
    RING_BYTES, STAGES, CONSUMERS = config.ring_bytes, config.stages, config.consumers

    @cuda.jit(device=True, forceinline=True)
    def set_up(tiles):
        full = uint32(tiles + uint32(RING_BYTES))
        ring = Ring(full, shared_at(full, STAGES, 8))
        if cuda.threadIdx.x == 0:
            init_barriers(ring.full, STAGES, 1)
            init_barriers(ring.empty, STAGES, CONSUMERS)
            fence_mbarrier_init()
        cuda.syncthreads()
        return ring

    return set_up


def _producer(config):
    A_BYTES, STAGE = config.rows * ROW, (config.rows + config.columns) * ROW
    advance = make_advance(config.stages)

    @cuda.jit(device=True, forceinline=True)
    def issue(ring, state, tiles, maps, row, column, k):
        commit(ring, state, STAGE)
        a, bar = shared_at(tiles, state.stage, STAGE), full_barrier(ring, state)
        cp_async_bulk_tensor_2d(a, maps, k, row, bar)
        cp_async_bulk_tensor_2d(uint32(a + uint32(A_BYTES)), map_of(maps, 1), k, column, bar)

    @cuda.jit(device=True, forceinline=True)
    def produce(ring, tiles, maps, row, column, steps):
        fence_proxy_tensormap_acquire_sys(maps)
        fence_proxy_tensormap_acquire_sys(map_of(maps, 1))
        state = first_state()
        for step in range(steps):
            acquire(ring, state)
            issue(ring, state, tiles, maps, row, column, int32(int32(step) * STEP))
            state = advance(state)

    return produce


def _consumer(config):
    A_BYTES, STAGE = config.rows * ROW, (config.rows + config.columns) * ROW
    ACROSS, PRODUCERS = config.columns // config.warp_columns, config.producers
    WARP_A, WARP_B = config.warp_rows * ROW, config.warp_columns * ROW
    DOWN, PAIRS = config.warp_rows // 16, config.warp_columns // 16  # blocks of 16 rows of A and of B
    A_WORDS, B_WORDS = 2 * 4 * DOWN, 2 * 4 * PAIRS  # two sets: one is loaded while the other is used
    advance = make_advance(config.stages)

    @cuda.jit(device=True, forceinline=True)
    def load(a, b, set, a_rows, b_rows):
        """The fragments of A and B for 16 of k, into one of the two sets; the addresses are the lane's own."""
        for i in static_range(DOWN):
            words = ldmatrix_x4(uint32(a_rows + uint32(BLOCK_ROWS * i)))
            for w in static_range(4):
                a[4 * (DOWN * set + i) + w] = words[w]
        for j in static_range(PAIRS):
            words = ldmatrix_x4(uint32(b_rows + uint32(BLOCK_ROWS * j)))
            for w in static_range(4):
                b[4 * (PAIRS * set + j) + w] = words[w]

    @cuda.jit(device=True, forceinline=True)
    def multiply_add(sums, a, b, set):
        """sums += A B^T for 16 of k. Of the words of sixteen rows of B, two are for eight columns of C."""
        for i in static_range(DOWN):
            for j in static_range(2 * PAIRS):
                x, y, s = 4 * (DOWN * set + i), 2 * (2 * PAIRS * set + j), 4 * (2 * PAIRS * i + j)
                part = mma_m16n8k16_f16(
                    a[x], a[x + 1], a[x + 2], a[x + 3], b[y], b[y + 1],
                    sums[s], sums[s + 1], sums[s + 2], sums[s + 3],
                )  # fmt: skip
                for w in static_range(4):
                    sums[s + w] = part[w]

    @cuda.jit(device=True, forceinline=True)
    def multiply(ring, tiles, maps, steps, sums):
        a, b = cuda.local.array(A_WORDS, uint32), cuda.local.array(B_WORDS, uint32)
        number, state = warp() - PRODUCERS, first_state()
        a_place, b_place = place_in_a(tiles), place_in_b(tiles)
        a_tiles = shared_at(tiles, number // ACROSS, WARP_A)
        b_tiles = shared_at(uint32(tiles + uint32(A_BYTES)), number % ACROSS, WARP_B)
        if number == 0 and lane() == 0:
            fence_proxy_tensormap_acquire_sys(map_of(maps, 2))  # the consumers meet before they store
        for i in static_range(4 * DOWN * 2 * PAIRS):
            sums[i] = float32(0)
        wait(ring, state)
        load(a, b, 0, uint32(a_tiles + a_place), uint32(b_tiles + b_place))
        for step in range(steps):
            a_stage, b_stage = shared_at(a_tiles, state.stage, STAGE), shared_at(b_tiles, state.stage, STAGE)
            for k in static_range(PARTS):
                if k + 1 < PARTS:
                    a_rows = uint32(a_stage + uint32(a_place ^ uint32(32 * (k + 1))))
                    b_rows = uint32(b_stage + uint32(b_place ^ uint32(32 * (k + 1))))
                    load(a, b, (k + 1) % 2, a_rows, b_rows)
                else:
                    cuda.syncwarp()  # all lanes have what they need of this stage
                    if lane() == 0:
                        release(ring, state)
                    state = advance(state)
                    if step + 1 < steps:
                        wait(ring, state)
                        a_rows = uint32(shared_at(a_tiles, state.stage, STAGE) + a_place)
                        load(a, b, 0, a_rows, uint32(shared_at(b_tiles, state.stage, STAGE) + b_place))
                multiply_add(sums, a, b, k % 2)

    return multiply


def _epilogue(config, pack):
    ACROSS, PRODUCERS, THREADS = config.columns // config.warp_columns, config.producers, 32 * config.consumers
    DOWN, PAIRS, BOXES = config.warp_rows // 16, config.warp_columns // 16, config.warp_columns // STEP
    WARP_ROWS, WARP_COLUMNS, BOX = config.warp_rows, config.warp_columns, config.warp_rows * ROW

    @cuda.jit(device=True, forceinline=True)
    def write(rows, sums, s):
        """Sixteen rows and columns of C."""
        low, high = pack(sums[s], sums[s + 1]), pack(sums[s + 2], sums[s + 3])
        stmatrix_x4(rows, low, high, pack(sums[s + 4], sums[s + 5]), pack(sums[s + 6], sums[s + 7]))

    @cuda.jit(device=True, forceinline=True)
    def store(tiles, maps, row, column, sums):
        bar_sync(uint32(1), uint32(THREADS))  # all consumers are done with the ring: it holds C now
        number, place = warp() - PRODUCERS, place_in_a(tiles)
        part = shared_at(tiles, number, BOXES * BOX)
        for box in static_range(BOXES):
            for i in static_range(DOWN):
                for j in static_range(PARTS):
                    rows = uint32(part + uint32(place ^ uint32(32 * j)))
                    rows = uint32(rows + uint32(BOX * box + BLOCK_ROWS * i))
                    write(rows, sums, 8 * (PAIRS * i + PARTS * box + j))
        fence_proxy_async()
        cuda.syncwarp()
        if lane() == 0:
            x = int32(column + (number % ACROSS) * WARP_COLUMNS)
            y = int32(row + (number // ACROSS) * WARP_ROWS)
            for box in static_range(BOXES):
                source = uint32(part + uint32(BOX * box))
                cp_async_bulk_tensor_2d_store(map_of(maps, 2), int32(x + STEP * box), y, source)
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group(uint32(0))

    return store


def build(config):
    """The kernel for a :class:`TileProduct`; ``config.maps`` and ``config.launch`` are its arguments."""
    return kernel_of(config, parts(config), config.warp_rows * config.warp_columns // 32)


def kernel_of(config, parts, sums, alignment=128):
    """The kernel of a pipeline of these ``parts``, with so many ``sums`` a thread; the ring's ``alignment``."""
    set_up, produce, multiply, store = parts
    STATIC_BYTES, SUMS, ALIGNMENT = static_bytes(config.shared_bytes), sums, alignment
    ROWS, COLUMNS, PRODUCERS = config.rows, config.columns, config.producers
    TAKE = config.consumer_registers

    @kernel(threads=config.threads, min_blocks=1, whole_program=bool(TAKE))
    def tile_product(maps: u64, tiles_across: i32, steps: i32):
        memory = cuda.shared.array(STATIC_BYTES, types.uint8, alignment=128)
        tiles = align_up(shared_address(memory), uint32(ALIGNMENT))
        ring = set_up(tiles)
        line = int32(div_u32(int32(cuda.blockIdx.x), tiles_across))
        row = int32(line * ROWS)
        column = int32((int32(cuda.blockIdx.x) - line * tiles_across) * COLUMNS)
        if warp() < PRODUCERS:
            if TAKE:
                setmaxnreg_dec(uint32(PRODUCER_REGISTERS))
            if cuda.threadIdx.x == 0:
                produce(ring, tiles, maps, row, column, steps)
        else:
            if TAKE:
                setmaxnreg_inc(uint32(TAKE))
            sums = cuda.local.array(SUMS, float32)
            multiply(ring, tiles, maps, steps, sums)
            store(tiles, maps, row, column, sums)

    return tile_product

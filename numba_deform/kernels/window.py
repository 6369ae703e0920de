"""window: a TMA instruction brings a large box of a level, and many nearby queries sample from it.

Queries are grouped into *cells*, window_fit.py: those whose reference points lie in one rectangle of the finest
level. Around each cell, every level has a *window*, a box that holds the pixels that nearly all of the cell's
samples need. One warp, a lane for each level, loads the windows of cell after cell into a ring of stages; the
others take the rows of a cell in groups of a warp:

    producer: for each item (batch, head, cell):     consumer: for each of its jobs:
                  acquire the stage                      release the stages of the items it has passed
                  ask for one box per level,             wait for the stage of this one
                  write down where it starts             add up the rows of its group

How far the samples of a head lie off their reference points, every block finds out first (window_probe.py),
and moves its windows by that. So all that a call does follows from its arguments.

Inside a window nothing is checked: what lies outside the level arrived as zeros. A sample whose tile is not
in its window is loaded from global memory instead: where many are, other kernels are faster.

A row's lanes each take 16 bytes of a pixel. With pixels of 64 bytes two rows share the 128 bytes that shared
memory delivers at once, and would meet in the same banks half of the time: so even rows read a tile's
even column first, odd rows its odd one. Where a sample lies and what it weighs is prepared by one lane, and
goes through shared memory to the lanes of its row. Most lanes prepare samples of their own row and of the one
beside it, so that a load of locations reads whole lines.
"""

import dataclasses
from collections import namedtuple
from dataclasses import dataclass

from numba import cuda, float32, int32, types, uint32

from ..compiler import i32, kernel, u64
from ..device.half2 import mov_f32_b32
from ..device.limits import SHARED_LIMIT
from ..device.memory import (
    align_up,
    dynamic_bytes,
    global_at,
    ld_global_v4,
    shared_address,
    shared_at,
    st_shared_v4,
    static_bytes,
)
from ..device.pipeline import (
    Ring,
    acquire,
    commit,
    first_state,
    full_barrier,
    init_barriers,
    make_advance,
    wait,
)
from ..device.sync import bar_sync, fence_mbarrier_init, lane, warp
from ..engines.tensormap import L2_PROMOTIONS
from . import window_fit
from .parts.config import SharedBytes, at_least_one, one_of, with_arithmetic
from .problem import ITEMSIZE, ConfigError
from .tma import map_parts
from .window_fit import Costs
from .window_probe import corner_parts, probe_bytes, probing
from .window_rows import CORNER_BYTES, choice, consumer, item_of, layout, samples_bytes, window_bytes

FEW_PREPARED = 4  # samples that a lane prepares in a round
LINE, RATE = 128, 60.0  # bytes
TOGETHER = 1  # the named barrier that all consumers pass before they start


@dataclass(frozen=True)
class Window:
    """Parameters of ``window``.

    consumers     warps that add up; one more loads. 0 leaves it open: ``usual_consumers``
    stages        depth of the ring (>= 1): cells whose windows are in shared memory at once
    cell          height x width of a cell in pixels of the finest level; 0x0 leaves it open: what
                  kernels/window_fit.py expects to be fastest
    arithmetic    as everywhere
    maps          as in :class:`Tma`
    l2_promotion  how much L2 fetches for a window: none, 64B, 128B or 256B
    debug         on a GPU waits are bounded: a hang ends in a report
    trace         as everywhere
    """

    consumers: int = 0
    stages: int = 2
    cell: tuple[int, int] = (0, 0)
    arithmetic: str = "auto"
    maps: str = "level"
    l2_promotion: str = "128B"
    debug: bool = False
    trace: bool = False

    packed = ("float16", "bfloat16")
    shared_limit = SHARED_LIMIT
    boxes, heads, rounds, limit = (), 8, 1, -1  # of a FittedWindow

    @property
    def warps(self):
        return self.consumers + 1

    @property
    def threads(self):
        return 32 * self.warps

    def __post_init__(self):
        at_least_one(self, "stages")
        if not 0 <= self.consumers <= 31:
            rule = "with the producer, a block has 32 warps; 0 leaves it open"
            raise ConfigError("consumers", self.consumers, rule)
        if len(self.cell) != 2 or (min(self.cell) < 1 and any(self.cell)):
            shown = "x".join(map(str, self.cell))
            raise ConfigError("cell", shown, "must be a height and a width of at least 1, or 0x0")
        one_of(self, "arithmetic", ("auto", "packed", "fp32"))
        one_of(self, "maps", ("batch", "level"))
        one_of(self, "l2_promotion", L2_PROMOTIONS)

    def resolve(self, constants):
        """The configuration with nothing left open but the cell, which is settled where it is fitted to a
        problem, checked against what it is compiled for."""
        row = constants.channels * ITEMSIZE[constants.dtype]
        if row not in (64, 128):
            rule = f"a head's pixel has {row} bytes here; windows need 64 or 128"
            raise ConfigError("variant", "window", rule)
        if constants.levels > 32:
            rule = f"{constants.levels} levels: a lane of one warp loads each, so at most 32"
            raise ConfigError("variant", "window", rule)
        config = with_arithmetic(self, constants)
        config = dataclasses.replace(config, consumers=self.consumers or usual_consumers(constants))
        if config.smallest_shared(constants) > SHARED_LIMIT:
            rule = f"with {config.consumers} consumers does not fit into the {SHARED_LIMIT} bytes of a block"
            raise ConfigError("stages", self.stages, rule)
        return config

    def smallest_shared(self, constants):
        """Dynamic shared memory of a block with the smallest windows there are."""
        return self.fitted(boxes=((2, 2),) * constants.levels).dynamic_bytes(constants)

    def fitted(self, **changes):
        """A :class:`FittedWindow` with these parameters, but for the changes."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(FittedWindow)}
        return FittedWindow(**{**own, **changes})

    def dynamic_bytes(self, constants):
        """Dynamic shared memory of a block."""
        return dynamic_bytes(sum(self.shared_bytes(constants)))

    def map_box(self, constants):
        """((height, width), ..) of the boxes of each level's tensor map."""
        return self.level_boxes(constants.levels)

    def level_boxes(self, levels):
        """((height, width), ..) of each level's window: typical ones, until a problem is known."""
        last = len(TYPICAL_BOXES) - 1
        return self.boxes or tuple(TYPICAL_BOXES[min(n, last)] for n in range(levels))

    def costs(self, constants):
        """The ``window_fit.Costs``: shared memory delivers LINE bytes in a cycle, and TMA brings RATE."""
        pixel = constants.channels * ITEMSIZE[constants.dtype]
        sample = 4 * pixel / LINE + 0.05
        return Costs(16.5, sample, 3000.0, pixel / RATE, pixel / LINE, outside=150.0, blocks=1)

    def corners_bytes(self, constants):
        """Bytes of the windows' corners of a block."""
        return self.stages * constants.levels * CORNER_BYTES

    def shared_bytes(self, constants):
        """The ``SharedBytes`` of a block: of windows, of barriers, of corners, prepared samples and what probes
        found."""
        windows = self.stages * sum(window_bytes(self.level_boxes(constants.levels), constants))
        samples = self.consumers * samples_bytes(self, constants)
        others = self.corners_bytes(constants) + samples + probe_bytes(self, constants)
        return SharedBytes(windows, 16 * self.stages, others)


def usual_consumers(constants):
    """Warps that add up: 12, three for each scheduler of an SM, or 19 where lanes prepare FEW_PREPARED samples
    at once or fewer, which takes fewer registers; bf16, 15 where those are 16 of a row."""
    prepared = layout(constants).prepared
    if (prepared, constants.dtype) == (FEW_PREPARED, "bfloat16") and constants.samples >= 16:
        return 15
    return 19 if prepared <= FEW_PREPARED else 12


TYPICAL_BOXES = ((12, 16), (10, 12), (8, 10), (8, 8))


@dataclass(frozen=True)
class FittedWindow(Window):
    """A :class:`Window` for one problem.

    boxes   (height, width) of each level's window
    heads   of the problem
    rounds  how often PROBED_ROWS are probed for each head and level
    limit   of the probed samples, how many outside are too many; -1: none is
    """

    boxes: tuple = ()
    heads: int = 8
    rounds: int = 1
    limit: int = -1

    @property
    def is_gated(self):
        """Whether it writes the words at ``gate``."""
        return self.limit >= 0


# Where a block's windows, their corners, the warps' prepared samples and the sums of probes start in shared
# memory.
Shared = namedtuple("Shared", "windows corners samples sums")
# The tables of ``window_fit`` that say which rows there are, and how many.
Plan = namedtuple("Plan", "schedule order items slots queries heads stride")
# Addresses of the operands, and bytes of a pixel and of a batch of the value.
Data = namedtuple("Data", "value levels locations weights pixel_bytes spatial_size")


def producer(config, constants):
    """The device functions read_window(plan, bases, item), an item and what the tables say of this lane's
    window; start(..), which loads those of the first item, given what was read of it; and produce(..), which
    loads those of each later one as soon as there is a stage for them."""
    LEVELS, PIXEL = constants.levels, constants.channels * ITEMSIZE[constants.dtype]
    boxes = config.level_boxes(LEVELS)
    sizes = window_bytes(boxes, constants)
    WINDOW_BYTES = sum(sizes)
    bytes_before = choice(tuple(sum(sizes[:i]) for i in range(LEVELS)))
    box_bytes = choice(tuple(height * width * PIXEL for height, width in boxes))
    loads, advance = map_parts(constants, config.maps), make_advance(config.stages)
    height_of, width_of = (choice(tuple(box[axis] for box in boxes)) for axis in (0, 1))
    shift_of, corner_along = corner_parts(config, constants)

    @cuda.jit(device=True, forceinline=True)
    def read_window(plan, bases, item):
        """An item, and what the tables say of this lane's window; the last one where there are no more."""
        item, level = min(item, int32(plan.items - 1)), min(lane(), int32(LEVELS - 1))
        what = item_of(ld_global_v4(global_at(plan.schedule, item, 16)))
        return what, ld_global_v4(global_at(bases, item * int32(LEVELS) + level, 16))

    @cuda.jit(device=True, forceinline=True)
    def corner_of(sums, what, base):
        """Left and top of this lane's window, and the level's width and height."""
        shift = shift_of(sums, int32(what.head * int32(LEVELS) + lane()))
        width, height = float32(int32(base[2])), float32(int32(base[3]))
        left = corner_along(mov_f32_b32(base[0]), shift[0], width, width_of(lane()))
        top = corner_along(mov_f32_b32(base[1]), shift[1], height, height_of(lane()))
        return uint32(int32(left)), uint32(int32(top)), base[2], base[3]

    @cuda.jit(device=True, forceinline=True)
    def issue(ring, state, shared, maps, what, corner):
        """Tells the consumers where this lane's window starts, and asks for it."""
        st_shared_v4(shared_at(shared.corners, state.stage * LEVELS + lane(), CORNER_BYTES), *corner)
        stage = shared_at(shared.windows, state.stage, WINDOW_BYTES)
        loads.load_box(
            uint32(stage + bytes_before(lane())), loads.map_of(maps, what.batch, lane()), what.head,
            what.batch, int32(corner[0]), int32(corner[1]), full_barrier(ring, state),
        )  # fmt: skip
        commit(ring, state, uint32(box_bytes(lane())))  # after the corner, which it releases

    @cuda.jit(device=True, forceinline=True)
    def start(ring, shared, plan, maps, what, base):
        if lane() < LEVELS and int32(cuda.blockIdx.x) < plan.items:
            acquire(ring, first_state())  # which is free, as a timeline shows
            issue(ring, first_state(), shared, maps, what, corner_of(shared.sums, what, base))

    @cuda.jit(device=True, forceinline=True)
    def produce(ring, shared, plan, maps, bases):
        item, state = int32(cuda.blockIdx.x + plan.stride), advance(first_state())
        if lane() < LEVELS:
            what, base = read_window(plan, bases, item)
            while item < plan.items:
                corner = corner_of(shared.sums, what, base)
                acquire(ring, state)
                issue(ring, state, shared, maps, what, corner)
                state = advance(state)
                item = int32(item + plan.stride)
                what, base = read_window(plan, bases, item)

    return read_window, start, produce


def build(config, constants):
    """The kernel for a ``Window`` and ``problem.Constants``. Its operands: address of the tensor maps, as for
    ``tma``; value, levels (L, 4) int32; order, schedule, bases, anchors of ``window_fit.Tables``; locations,
    weights, out; with a limit, the words that tell the next kernel; items in the schedule, slots of a cell, B,
    Q, heads, S."""
    PIXEL = constants.channels * ITEMSIZE[constants.dtype]
    LEVELS, STAGES = constants.levels, config.stages
    CONSUMERS, THREADS = config.consumers, config.threads
    shared_size, CORNERS_BYTES = config.shared_bytes(constants), config.corners_bytes(constants)
    SAMPLES_BYTES, loads = CONSUMERS * samples_bytes(config, constants), map_parts(constants, config.maps)
    STATIC_BYTES = static_bytes(sum(shared_size))
    look, add_up, leaves = probing(config, constants)
    (read_window, start, produce), consume = producer(config, constants), consumer(config, constants)

    @kernel(threads=THREADS, min_blocks=1)
    def window(
        maps: u64, value: u64, levels: u64, order: u64, schedule: u64, bases: u64, anchors: u64,
        locations: u64, weights: u64, out: u64, gate: u64, items: i32, slots: i32, batches: i32,
        queries: i32, heads: i32, spatial_size: i32,
    ):  # fmt: skip
        memory = cuda.shared.array(STATIC_BYTES, types.uint8, alignment=128)
        windows = align_up(shared_address(memory), uint32(128))
        full = uint32(windows + shared_size.tiles)
        ring, first_corner = Ring(full, shared_at(full, STAGES, 8)), uint32(full + shared_size.barriers)
        samples = uint32(first_corner + CORNERS_BYTES)
        shared = Shared(windows, first_corner, samples, uint32(samples + SAMPLES_BYTES))
        plan = Plan(schedule, order, items, slots, queries, heads, int32(cuda.gridDim.x))
        if warp() == CONSUMERS:
            if lane() == 0:
                init_barriers(ring.full, STAGES, LEVELS)
                init_barriers(ring.empty, STAGES, CONSUMERS)
                fence_mbarrier_init()  # the copy engine sees the barriers
            loads.acquire_maps(maps, batches, lane(), 32)
        probes = look(levels, anchors, locations, int32(batches * queries))
        what, base = read_window(plan, bases, int32(cuda.blockIdx.x))  # what the producer needs first
        add_up(probes, shared.sums)
        if warp() == CONSUMERS:
            start(ring, shared, plan, maps, what, base)
        if leaves(probes, shared.sums, gate):
            if warp() == CONSUMERS and int32(cuda.blockIdx.x) < items:
                wait(ring, first_state())  # no copy may come after the block has ended
            return
        if warp() == CONSUMERS:
            produce(ring, shared, plan, maps, bases)
        else:
            # After a barrier the assembler knows that the lanes of a warp are together. Without it, it would
            # compile every shuffle twice, once for lanes that have gone different ways.
            bar_sync(uint32(TOGETHER), uint32(32 * CONSUMERS))
            data = Data(value, levels, locations, weights, int32(heads * PIXEL), spatial_size)
            consume(ring, shared, plan, data, out)

    return window


def fit(problem, config):
    """A ``window_fit.Fit``: the configuration with boxes for this problem, and its tables."""
    return window_fit.fit(problem, config, layout(problem.constants).rows)


def blocks(problem, config, resident):
    """Grid size: the blocks that are resident at once."""
    return resident()

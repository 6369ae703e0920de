"""backward_window: the gradients of samples near their queries, with the sums of pixels kept on chip.

Adding a sample's share to its four pixels in global memory is what takes ``backward`` its time. Here a block
takes a cell of queries (window_fit.py) and a level at a time: the level's window arrives by TMA, beside it lies
a window of sums, and these are sent to global memory once, when all samples of the cell have been added:

    for each item (batch, head, cell):
        find the largest numbers of its rows, and from them the unit of its sums
        for each level:
            wait for the window
            add up the rows (backward_rows.py)
            ask for the next window
            send the sums, and clear them

Shared memory adds integers in one step, and floats by a loop of reading and comparing, many times as slow
(bench/NOTES.md). So the sums are integers, multiples of a power of two for each item: its largest gradient
times its largest weight is below 2^22 of them, and all its weights times that gradient below 2^30, so none
overflows. A sum of integers is the same in any order.

Samples outside their window, and all samples of an item with a number that is not finite, are added in global
memory, one by one. ``backward`` does that faster, and should do all where they are many: as in ``window``, a
block looks at some samples first, and with a limit may leave the work to the gated form of ``backward``.
"""

import dataclasses
from dataclasses import dataclass

from numba import cuda, float32, int32, types, uint32

from ..compiler import i32, kernel, static_range, u64
from ..device.half2 import mov_f32_b32
from ..device.integer import quotient
from ..device.limits import RESERVED_SHARED, SHARED_LIMIT, SM
from ..device.memory import (
    align_up,
    dynamic_bytes,
    global_at,
    ld_global_nc_b32,
    ld_global_v4,
    ld_shared_v4,
    shared_address,
    shared_at,
    st_shared_v4,
    static_bytes,
)
from ..device.pipeline import Ring, commit, first_state, full_barrier, init_barriers, make_advance, wait
from ..device.sync import fence_mbarrier_init, fence_proxy_async, lane, warp
from . import window_fit
from .backward import SUMS
from .backward_rows import (
    BOUND_BYTES,
    POINTS_AT_ONCE,
    ROWS,
    TABLE_BYTES,
    Data,
    Shared,
    View,
    bounding,
    pixel_of,
    sampling,
    summing,
)
from .parts.config import SharedBytes, at_least_one, one_of
from .parts.sampling import load_level
from .problem import ITEMSIZE, ConfigError
from .tma import map_parts
from .window_fit import Costs
from .window_probe import corner_parts, probe_bytes, probing
from .window_rows import choice, read_item, window_bytes


@dataclass(frozen=True)
class BackwardWindow:
    """Parameters of ``backward_window``.

    warps         of a block
    blocks        that are to fit on an SM
    cell          height x width of a cell in pixels of the finest level; 0x0 leaves it open
    sums          as of ``Backward``
    l2_promotion  how much L2 fetches for a window: none, 64B, 128B or 256B
    boxes, heads, rounds, limit  as of a ``FittedWindow``
    """

    warps: int = 8
    blocks: int = 2
    cell: tuple[int, int] = (0, 0)
    sums: str = "fp32"
    l2_promotion: str = "128B"
    boxes: tuple = ()
    heads: int = 8
    rounds: int = 1
    limit: int = -1

    of_value = of_samples = True
    maps = "level"
    fitted = dataclasses.replace

    @property
    def threads(self):
        return 32 * self.warps

    @property
    def is_gated(self):
        """Whether it writes the words at ``gate``."""
        return self.limit >= 0

    @property
    def shared_limit(self):
        """Bytes that a block may have."""
        return min(SM.shared // self.blocks - RESERVED_SHARED, SHARED_LIMIT)

    def __post_init__(self):
        at_least_one(self, "blocks")
        if not 1 <= self.warps <= 32:
            raise ConfigError("warps", self.warps, "must be from 1 to 32")
        one_of(self, "sums", SUMS)

    def resolve(self, constants):
        """Itself, checked against what it is compiled for."""
        if constants.dtype == "float32" or constants.channels not in (32, 64):
            rule = f"{constants.dtype} with {constants.channels} channels; windows need 16 bits and 32 or 64"
            raise ConfigError("variant", "backward_window", rule)
        if constants.points % POINTS_AT_ONCE:
            raise ConfigError("points", constants.points, f"must be a multiple of {POINTS_AT_ONCE} for windows")
        return self

    def level_boxes(self, levels):
        """((height, width), ..) of each level's window: small ones, until a problem is known."""
        return self.boxes or ((8, 8),) * levels

    def map_box(self, constants):
        """((height, width), ..) of the boxes of each level's tensor map."""
        return self.level_boxes(constants.levels)

    def shared_bytes(self, constants):
        """The ``SharedBytes`` of a block: of a window and its sums, of the barrier, of all else."""
        window, sums = windows_bytes(self, constants)
        others = self.warps * (TABLE_BYTES + BOUND_BYTES) + probe_bytes(self, constants)
        return SharedBytes(window + sums, 16, others)

    def dynamic_bytes(self, constants):
        """Dynamic shared memory of a block."""
        return dynamic_bytes(sum(self.shared_bytes(constants)))

    def costs(self, constants):
        """The ``window_fit.Costs``."""
        return Costs(20.0, 11.0, 6000.0, pixel=8.0, room=8.0, outside=120.0, blocks=self.blocks)


def windows_bytes(config, constants):
    """Bytes of a block's window, and of the sums of its pixels: there is room for each level's."""
    largest = max(window_bytes(config.level_boxes(constants.levels), constants))
    return largest, largest * 4 // ITEMSIZE[constants.dtype]


def build(config, constants):
    """The kernel for a :class:`BackwardWindow` and ``problem.Constants``. Its operands: as of ``window`` up to
    weights; then those of ``backward`` from grad_out on; with a limit, the words that tell the next kernel;
    items in the schedule, slots of a cell, B, Q, heads, S."""
    LEVELS, THREADS = constants.levels, config.threads
    PIXEL, CHANNELS = 2 * constants.channels, constants.channels
    boxes, shared_size = config.level_boxes(LEVELS), config.shared_bytes(constants)
    WINDOW, SUM_BYTES = windows_bytes(config, constants)
    STATIC_BYTES, TABLES = static_bytes(sum(shared_size)), config.warps * TABLE_BYTES
    BOUNDS, FIXED = config.warps * BOUND_BYTES, config.sums == "fixed"
    height_of, width_of = (choice(tuple(box[axis] for box in boxes)) for axis in (0, 1))
    box_bytes = choice(tuple(height * width * PIXEL for height, width in boxes))
    WIDTHS = tuple(width for _, width in boxes)
    LANES, LANE_BITS = CHANNELS // 4, (CHANNELS // 4).bit_length() - 1
    look, add_up, leaves = probing(config, constants)
    shift_of, corner_along = corner_parts(config, constants)
    bound, unit_of = bounding(config, constants)
    work, loads = sampling(config, constants), map_parts(constants, config.maps)
    add_four, advance = summing(config, constants), make_advance(1)

    @cuda.jit(device=True, forceinline=True)
    def view_of(shared, data, bases, item, what, level):
        base = ld_global_v4(global_at(bases, item * int32(LEVELS) + level, 16))
        height, width, start, stride = load_level(data.levels, level)
        shift = shift_of(shared.probes, int32(what.head * int32(LEVELS) + level))
        wide, high = width_of(level), height_of(level)
        left = corner_along(mov_f32_b32(base[0]), shift[0], float32(width), wide)
        top = corner_along(mov_f32_b32(base[1]), shift[1], float32(height), high)
        return View(level, int32(left), int32(top), wide, high, width, height, start, stride)

    @cuda.jit(device=True, forceinline=True)
    def issue(ring, state, shared, maps, what, view):
        if cuda.threadIdx.x == 0:
            commit(ring, state, uint32(box_bytes(view.level)))
            loads.load_box(
                shared.window, loads.map_of(maps, what.batch, view.level), what.head, what.batch,
                view.left, view.top, full_barrier(ring, state),
            )  # fmt: skip

    @cuda.jit(device=True, forceinline=True)
    def line_of(pixel, level):
        line = int32(0)
        for i in static_range(LEVELS):
            if level == i:
                line = quotient(pixel, WIDTHS[i])
        return line

    @cuda.jit(device=True, forceinline=True)
    def send(shared, data, what, view, unit):
        """Add the sums to global memory, and clear them."""
        count, i = int32(view.wide * view.high * int32(LANES)), int32(cuda.threadIdx.x)
        zero, found = uint32(0), cuda.local.array(4, float32)
        while i < count:
            place = shared_at(shared.sums, i, 16)
            words = ld_shared_v4(place)
            if words[0] | words[1] | words[2] | words[3]:
                st_shared_v4(place, zero, zero, zero, zero)
                pixel, four = int32(i >> int32(LANE_BITS)), int32(i & int32(LANES - 1))
                line = line_of(pixel, view.level)
                column = int32(view.left + pixel - line * view.wide)
                line = int32(view.top + line)
                if 0 <= column and column < view.width and 0 <= line and line < view.height:
                    for k in static_range(4):
                        found[k] = float32(int32(words[k]))
                    number = pixel_of(data, what, view.start + line * view.stride + column)
                    add_four(data, number, four, unit, found)
            i = int32(i + int32(THREADS))

    @kernel(threads=THREADS, min_blocks=config.blocks)
    def backward_window(
        maps: u64, value: u64, levels: u64, order: u64, schedule: u64, bases: u64, anchors: u64,
        locations: u64, weights: u64, grad_out: u64, grad_value: u64, grad_locations: u64, grad_weights: u64,
        scale: u64, gate: u64, items: i32, slots: i32, batches: i32, queries: i32, heads: i32,
        spatial_size: i32,
    ):  # fmt: skip
        memory = cuda.shared.array(STATIC_BYTES, types.uint8, alignment=128)
        window = align_up(shared_address(memory), uint32(128))
        sums = uint32(window + uint32(WINDOW))
        full = uint32(sums + uint32(SUM_BYTES))
        table = uint32(full + uint32(16))
        bounds = uint32(table + uint32(TABLES))
        shared = Shared(
            window, sums, shared_at(table, warp(), TABLE_BYTES), bounds, uint32(bounds + uint32(BOUNDS))
        )
        ring, state = Ring(full, uint32(0)), first_state()
        if warp() == 0:
            if lane() == 0:
                init_barriers(full, 1, 1)
                fence_mbarrier_init()
            loads.acquire_maps(maps, batches, lane(), 32)
        probes = look(levels, anchors, locations, int32(batches * queries))
        i = int32(cuda.threadIdx.x)
        while i < int32(SUM_BYTES // 16):
            st_shared_v4(shared_at(sums, i, 16), uint32(0), uint32(0), uint32(0), uint32(0))
            i = int32(i + int32(THREADS))
        add_up(probes, shared.probes)
        if leaves(probes, shared.probes, gate):
            return
        unit = float32(1)
        if FIXED:
            unit = mov_f32_b32(ld_global_nc_b32(scale))
        data = Data(
            value, levels, order, schedule, locations, weights, grad_out, grad_value, grad_locations,
            grad_weights, slots, queries, heads, spatial_size, unit,
        )  # fmt: skip
        item = int32(cuda.blockIdx.x)
        while item < items:
            what = read_item(data, item)
            view = view_of(shared, data, bases, item, what, int32(0))
            issue(ring, state, shared, maps, what, view)
            bound(shared, data, what)
            inverse, step, strange = unit_of(shared)
            level = int32(0)
            while level < int32(LEVELS):
                wait(ring, state)
                state = advance(state)
                work(shared, data, what, view, inverse, strange)
                fence_proxy_async()  # the next window may overwrite what this thread has read
                cuda.syncthreads()  # all sums are there
                before = view
                level = int32(level + 1)
                if level < int32(LEVELS):
                    view = view_of(shared, data, bases, item, what, level)
                    issue(ring, state, shared, maps, what, view)
                send(shared, data, what, before, step)
                cuda.syncthreads()  # and are clear
            item = int32(item + int32(cuda.gridDim.x))

    return backward_window


def fit(problem, config):
    """A ``window_fit.Fit``: the configuration with boxes for this problem, and its tables."""
    return window_fit.fit(problem, config, ROWS)


def blocks(problem, config, resident):
    """Grid size: the blocks that are resident at once."""
    return resident()

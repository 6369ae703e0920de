"""direct: four plain 16-byte loads per sample, served by L1. Runs on any architecture.

Its gated form runs after another kernel, and only if that one left its work to it (window_probe.py); else its
blocks end at once. Launching blocks takes its time too, so they are few: each takes the next rows that nobody
has taken, until there are no more.

Every lane prepares a run of samples (lanes.py): where the two rows of each 2x2 tile start and what they
weigh. Then all lanes go through all runs, fetch each sample's numbers, and load and add their own 16 bytes.
"""

import dataclasses
from dataclasses import dataclass

from numba import cuda, float32, int32, types, uint32, uint64

from ..compiler import i32, kernel, u64
from ..device.integer import div_u32, rem_u32
from ..device.memory import (
    atom_add_gpu_global_u32,
    global_at,
    ld_global_b32,
    ld_global_nc_L1_evict_last_v4,
    ld_global_nc_v4,
    ld_shared_b32,
    shared_address,
    shared_at,
    st_shared_b32,
)
from ..device.sync import shfl_sync_idx_b32
from .parts.accumulate import ALL, ARITHMETIC
from .parts.config import Rows
from .parts.lanes import chunk_of, lane_layout
from .parts.row import Row, row_parts
from .parts.sampling import LOCATE, clamp, corner_weights, load_level
from .problem import ITEMSIZE

GATE_WORDS = 2  # at ``gate``: how many samples lie outside windows, with FAR; how many blocks' rows are taken
FAR = 1 << 31  # the bit by which another kernel leaves its work to this one


@dataclass(frozen=True)
class Direct(Rows):
    """Parameters of ``direct``, beside those of every kernel.

    threads  threads of a block, a multiple of 32
    fine     whether L1 gives up pixels of the finest level before others: of samples anywhere, it finds few
             of them, and they push out the others
    """

    threads: int = 128
    min_blocks: int = 7
    fine: bool = True

    any_samples = True  # also levels with different numbers of points, and method="discrete"
    is_gated = False

    def gated(self):
        """The gated form of this configuration."""
        return GatedDirect(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})


@dataclass(frozen=True)
class GatedDirect(Direct):
    """A :class:`Direct` that runs only if the first word at ``gate`` has the bit FAR."""

    is_gated = True


@cuda.jit(device=True, forceinline=True)
def ask(gate):
    """How many more turns were taken before, in thread 0: asked for before this turn, needed after it."""
    taken = uint32(0)
    if cuda.threadIdx.x == 0:
        taken = atom_add_gpu_global_u32(gate + uint64(4), uint32(1))
    return taken


@cuda.jit(device=True, forceinline=True)
def following(slots, slot, taken):
    """(number of this block's next turn, the other one of the two ``slots`` in shared memory)."""
    if cuda.threadIdx.x == 0:
        st_shared_b32(shared_at(slots, slot, 4), taken)
    cuda.syncthreads()
    turn = uint32(uint32(cuda.gridDim.x) + ld_shared_b32(shared_at(slots, slot, 4)))
    return turn, uint32(slot ^ uint32(1))  # other warps may still be reading this one


def build(config, constants):
    """The kernel for a :class:`Direct` and ``problem.Constants``.

    Its operands: addresses of value (B, S, H, C), levels (L, 4) int32, locations (B, Q, H, L, P, 2),
    weights (B, Q, H, L, P) and out (B, Q, H, C); rows = B*Q*H, rows of one batch, heads, S.
    """
    layout = lane_layout(config.lanes, constants)
    ROW_BYTES = constants.channels * ITEMSIZE[constants.dtype]
    ROWS_PER_BLOCK, WORDS = config.threads // layout.lanes, layout.run * layout.sides_per_lane
    parts, arithmetic = row_parts(config, constants), ARITHMETIC[constants.dtype, config.arithmetic]
    locate = LOCATE[constants.method]
    # Lanes of a row whose runs are of the finest level, where that is the same in each round, and where there
    # are registers for two loops.
    whole = config.fine and layout.parts == layout.rounds == 1 and constants.is_usual
    fits = config.arithmetic == "packed" or layout.run < 8
    FINE = constants.points // layout.run if whole and fits else 0
    place, new_sums, new_raw, unpack = parts.place, parts.new_sums, parts.new_raw, parts.unpack

    @cuda.jit(device=True, forceinline=True)
    def weights_inside(iy, w_up, w_down, height):
        """The weights of the two rows that are read; a row of the tile that is outside weighs nothing."""
        if iy < 0:
            w_up, w_down = w_down, float32(0)
        elif iy >= int32(height - 1):
            if height > 1:
                w_up, w_down = float32(0), w_up
            else:
                w_down = float32(0)
        return w_up, w_down

    def runs_adder(load):
        """The device function add_runs(..), which adds the runs of the lanes first .. last - 1 of a row and
        reads pixels by ``load``."""

        @cuda.jit(device=True, forceinline=True)
        def add_column(acc, address, pitch, me, up, down):
            """Add this lane's chunks of two pixels, ``pitch`` bytes apart."""
            for c in range(layout.chunks_per_lane):
                address_of_upper = global_at(address, chunk_of(me, c, layout), 16)
                upper, lower = load(address_of_upper), load(address_of_upper + uint64(pitch))
                arithmetic.add(acc.sums, acc.partial, c, upper, up, lower, down)

        @cuda.jit(device=True, forceinline=True)
        def add_runs(acc, me, plane, own_pitch, offset, word_a, word_b, first, last):
            i = int32(first)  # not by range, which would count in 64 bits in the gated form
            while i < int32(last):
                owner = uint32(me.first_lane + i)
                pitch = shfl_sync_idx_b32(uint32(ALL), own_pitch, owner)
                for m in range(WORDS):
                    tile = plane + uint64(shfl_sync_idx_b32(uint32(ALL), offset[m], owner))
                    up, down = arithmetic.fetch(word_a[m], word_b[m], owner)
                    add_column(acc, tile, pitch, me, up, down)
                if layout.run >= 4:
                    arithmetic.flush(acc.sums, acc.partial, layout.chunks_per_lane)
                i = int32(i + 1)

        return add_runs

    add_fine, add_others = runs_adder(ld_global_nc_v4), runs_adder(ld_global_nc_L1_evict_last_v4)

    @cuda.jit(device=True, forceinline=True)
    def add_rows(block, me, value, levels, locations, weights, out, rows, rows_per_batch, heads, spatial_size):
        """The rows of one block of the plain form, or of one turn of the gated one."""
        number = int32(int32(block) * int32(ROWS_PER_BLOCK) + me.row)  # in 32 bits, as all that follows
        valid = number < rows
        # The last block's spare lanes work along, and store nothing.
        number = min(number, int32(rows - 1))
        batch, head = int32(div_u32(number, rows_per_batch)), int32(rem_u32(number, heads))
        row = Row(batch, head, number, valid)
        pixel_bytes = int32(heads * ROW_BYTES)
        plane = global_at(value, global_at(0, row.batch, spatial_size), pixel_bytes)
        plane = global_at(plane, row.head, ROW_BYTES)

        acc, raw = new_sums(), new_raw()
        offset = cuda.local.array(WORDS, uint32)
        word_a, word_b = cuda.local.array(WORDS, uint32), cuda.local.array(WORDS, uint32)

        for r in range(layout.rounds):
            # Prepare this lane's run.
            level, mine = parts.read_run(locations, weights, row, r, me, raw)
            run = unpack(raw)
            height, width, start, row_stride = load_level(levels, level)
            own_pitch = uint32(row_stride * pixel_bytes) if height > 1 else uint32(0)
            for k in range(layout.run):
                # Whether a column is in the level is asked below: a line that is not weighs nothing.
                ix, fx, _ = locate(run.xy[2 * k], width)
                iy, fy, inside = locate(run.xy[2 * k + 1], height)
                attention = run.attention[k] if mine and inside else float32(0)
                top = clamp(iy, 0, max(int32(height - 2), int32(0)))
                for s in range(layout.sides_per_lane):
                    column = int32(ix + me.side + int32(s))
                    weight = attention if uint32(column) < uint32(width) else float32(0)  # nor is -1
                    w_up, w_down = corner_weights(weight, fx, fy, me.side + int32(s))
                    w_up, w_down = weights_inside(iy, w_up, w_down, height)
                    m = k * layout.sides_per_lane + s
                    pixel = start + top * row_stride + clamp(column, 0, width - 1)
                    offset[m] = uint32(pixel) * uint32(pixel_bytes)
                    word_a[m], word_b[m] = arithmetic.pack(w_up, w_down)

            # Go through the runs of all lanes.
            if FINE:
                add_fine(acc, me, plane, own_pitch, offset, word_a, word_b, 0, FINE)
            add_others(acc, me, plane, own_pitch, offset, word_a, word_b, FINE, layout.chunk_lanes)
            if layout.run < 4:
                arithmetic.flush(acc.sums, acc.partial, layout.chunks_per_lane)
        parts.write_row(out, row, me, acc)

    @kernel(threads=config.threads, min_blocks=config.min_blocks)
    def direct(
        value: u64, levels: u64, locations: u64, weights: u64, out: u64, rows: i32,
        rows_per_batch: i32, heads: i32, spatial_size: i32,
    ):  # fmt: skip
        add_rows(
            cuda.blockIdx.x, place(cuda.threadIdx.x), value, levels, locations, weights, out, rows,
            rows_per_batch, heads, spatial_size,
        )  # fmt: skip

    @kernel(threads=config.threads, min_blocks=config.min_blocks)
    def direct_gated(
        gate: u64, value: u64, levels: u64, locations: u64, weights: u64, out: u64, rows: i32,
        rows_per_batch: i32, heads: i32, spatial_size: i32,
    ):  # fmt: skip
        if ld_global_b32(gate) & uint32(FAR):
            slots = shared_address(cuda.shared.array(2, types.uint32))
            me, block, slot = place(cuda.threadIdx.x), uint32(cuda.blockIdx.x), uint32(0)
            while uint32(block * uint32(ROWS_PER_BLOCK)) < uint32(rows):
                taken = ask(gate)
                add_rows(
                    block, me, value, levels, locations, weights, out, rows, rows_per_batch, heads, spatial_size
                )
                block, slot = following(slots, slot, taken)

    return direct_gated if config.is_gated else direct


def blocks(problem, config, resident):
    """Grid size: every row has its ``lanes`` lanes; of the gated form, at most what is resident at once."""
    needed = -(-problem.rows // (config.threads // config.lanes))
    return min(needed, resident()) if config.is_gated else needed

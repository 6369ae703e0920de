# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 8 · Your own variant
#
# *About 75 minutes. You have met barriers, stages, parity and roles. You need no GPU.*
#
# Everything so far was a pipeline that somebody else had written. Today you write one, and take it all the
# way: from an idea with a prediction, through a kernel and the proof that it is right, to a row in the table
# beside all the others. The order matters. A kernel that is fast and wrong is easy to write.
#
# 1. an **idea**, and what it should cost, written down *before* anything is measured
# 2. the **pipeline**, in one cell
# 3. **registered**, so that the whole package knows it by name
# 4. **checked**, over many schedules, and the check itself checked
# 5. **drawn**: its timeline
# 6. **refused** where it cannot work
# 7. **changed**: one idea more, in two lines
# 8. **timed**, in the table

# %%
import dataclasses
import inspect
import linecache
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
from numba import cuda, float32, int32, types, uint32, uint64

from numba_deform import SimFault, Workload, ms_deform_attn, preset
from numba_deform.compiler import i32, kernel, u64
from numba_deform.course import lessons
from numba_deform.course.lessons import lesson8 as check
from numba_deform.course.lessons import pictures
from numba_deform.device.half2 import cvt_f32_f16_hi, cvt_f32_f16_lo, cvt_rn_f16x2_f32
from numba_deform.device.limits import SHARED_LIMIT
from numba_deform.device.memory import align_up, ld_shared_b32, shared_address, st_global_b32, static_bytes
from numba_deform.device.pipeline import (
    Ring,
    commit,
    first_state,
    full_barrier,
    init_barriers,
    make_advance,
    wait,
)
from numba_deform.device.sync import fence_mbarrier_init, shfl_sync_bfly_f32, shfl_sync_idx_f32
from numba_deform.device.tma import cp_async_bulk_tensor_3d, fence_proxy_tensormap_acquire_sys
from numba_deform.engines.gpu.device import find_gpu
from numba_deform.kernels.problem import ConfigError, Constants
from numba_deform.kernels.registry import Functions, Variant, register
from numba_deform.kernels.shared.config import SharedBytes
from numba_deform.kernels.shared.row import item_count, item_row, items, run_parts
from numba_deform.kernels.shared.sampling import corner_weights, load_level, locate
from numba_deform.measure import report, timeline
from numba_deform.measure.bench import bench, parse_entries
from numba_deform.measure.systems import plan_operator, run_plan

engine = lessons.engine()
print(f"kernels run on: {engine}")

# %% [markdown]
# ## 1 · The idea
#
# In the package's `tma` a row (one query and head) has 8 lanes, a stage holds two samples of each of four
# rows, and a run of samples belongs to a lane. That is tuned, and takes some reading. Our idea is a simpler
# split:
#
# - **A warp has one row.** With 4 levels of 8 points it has 32 samples, and a warp has 32 lanes.
# - **Lane k owns sample k.** It computes where the sample lies and what it weighs, and asks for its tile
#   itself.
# - **A stage holds a level.** All tiles of a level come under one barrier, so a row goes through as many
#   stages as there are levels.
# - **All lanes add up.** A tile of 2 × 2 pixels with 32 channels of `float16` is two rows of 128 bytes: 4
#   bytes for each lane, 16 lanes on the left pixel and 16 on the right.
#
# The prediction. There is still one TMA instruction for each tile, and whatever is done with the tiles, that
# alone takes 0.966 ms for the preset `seeds`, 8.0 cycles a tile (lesson 7). `tma-fastest` took 0.990 ms
# there. So level-ring cannot win by much: *between 0.97 and 1.2 ms*, and far behind `direct`'s 0.491. What we
# hope for is a kernel of half the length. Write yours down too, before you scroll.
#
# ## 2 · The pipeline
#
# First its parameters. A configuration is a frozen dataclass: kernels are built once for each, and kept by
# it. It says how many threads a block has, and how much shared memory it needs.

# %%
TILE, TILE_ROW = 256, 128  # bytes: 2 x 2 pixels of 32 channels of float16


@dataclass(frozen=True)
class LevelRing:
    """Parameters of ``level-ring``.

    stages  depth of the ring (>= 1): levels that are under way at once
    warps   of a block; each has a row, and a ring of its own
    debug   on a GPU waits are bounded: a hang ends in a report
    trace   the kernel writes down what its warps do when, for ``timeline``
    """

    stages: int = 2
    warps: int = 8
    debug: bool = False
    trace: bool = False

    maps = "batch"  # a tensor map for each batch item and level
    l2_promotion = "128B"

    @property
    def threads(self):
        return 32 * self.warps

    def map_box(self, constants):
        return (2, 2)  # pixels, height and width of what one load brings

    def resolve(self, constants):
        return self  # refuses nothing yet

    def shared_bytes(self, constants):
        stages = self.warps * self.stages
        return SharedBytes(tiles=stages * constants.points * TILE, barriers=stages * 8)


# %% [markdown]
# Now what the pipeline is made of: six device functions. Read their first lines now and their bodies later;
# you have seen all of it in lessons 3 and 4. `run_parts`, `locate`, `corner_weights` and `load_level` are the
# package's own: read numbers of any type, find the tile, weigh its corners, look up a level's size. `issue`
# and `release` have the names by which `trace=True` knows the steps of a pipeline.

# %%
Me = namedtuple("Me", ["lane", "ring", "tiles"])  # tiles: shared address of stage 0
Sample = namedtuple("Sample", ["map", "channel", "x", "y", "fx", "fy", "weight"])  # a lane's own
WHOLE_WARP = 0xFFFFFFFF


def pieces(config, constants):
    """Device functions (start, take, issue, add_level, release, write) of level-ring."""
    LEVELS, POINTS, CHANNELS = constants.levels, constants.points, constants.channels
    SAMPLES, STAGES, STAGE_BYTES = LEVELS * POINTS, config.stages, POINTS * TILE
    RING_BYTES, THREADS = STAGES * STAGE_BYTES, config.threads
    TILES_BYTES, BARRIER_BYTES, _ = config.shared_bytes(constants)
    STATIC_BYTES = static_bytes(TILES_BYTES + BARRIER_BYTES)
    LOCATION_BYTES = 4 if constants.location_dtype == "float16" else 8
    WEIGHT_BYTES = 2 if constants.weight_dtype == "float16" else 4
    new_raw, load_run, unpack = run_parts(1, constants.location_dtype, constants.weight_dtype)

    @cuda.jit(device=True, inline="always")
    def start(maps, count):
        """This thread's Me: barriers are initialised, and ``count`` tensor maps acquired."""
        thread = int32(cuda.threadIdx.x)
        warp, lane = thread >> int32(5), thread & int32(31)
        shared = cuda.shared.array(STATIC_BYTES, types.uint8, alignment=128)
        first = align_up(shared_address(shared), uint32(128))
        full = uint32(first + uint32(TILES_BYTES) + uint32(warp * int32(8 * STAGES)))
        if lane == 0:
            init_barriers(full, STAGES, 1)
            fence_mbarrier_init()
        for i in range(thread, count, THREADS):
            fence_proxy_tensormap_acquire_sys(maps + uint64(128) * uint64(i))
        cuda.syncthreads()
        tiles = uint32(first + uint32(warp * int32(RING_BYTES)))
        return Me(lane, Ring(full, uint32(0)), tiles)

    @cuda.jit(device=True, forceinline=True)
    def take(maps, levels, locations, weights, row, lane):
        """The Sample of this lane: where it lies, and what it weighs."""
        k = min(lane, int32(SAMPLES - 1))  # lanes without a sample take the last one, and never ask
        number = uint64(row.number) * uint64(SAMPLES) + uint64(k)
        raw = new_raw()
        load_run(
            locations + number * uint64(LOCATION_BYTES),
            weights + number * uint64(WEIGHT_BYTES),
            raw,
        )
        run = unpack(raw)
        level = k // int32(POINTS)
        height, width, _, _ = load_level(levels, level)
        x, fx, inside_x = locate(run.xy[0], width)
        y, fy, inside_y = locate(run.xy[1], height)
        weight = run.attention[0] if inside_x and inside_y else float32(0)
        map = maps + uint64(128) * uint64(row.batch * int32(LEVELS) + level)
        return Sample(map, row.head * int32(CHANNELS), x, y, fx, fy, weight)

    @cuda.jit(device=True, forceinline=True)
    def issue(me, state, level, sample):
        """Ask for all tiles of a level, into the state's stage."""
        if me.lane == 0:
            commit(me.ring, state, uint32(STAGE_BYTES))
        j = me.lane - int32(level * POINTS)
        if j >= 0 and j < POINTS:
            tile = me.tiles + uint32(state.stage) * uint32(STAGE_BYTES) + uint32(j) * uint32(TILE)
            bar = full_barrier(me.ring, state)
            cp_async_bulk_tensor_3d(tile, sample.map, sample.channel, sample.x, sample.y, bar)

    @cuda.jit(device=True, forceinline=True)
    def add_level(me, state, level, sample, low, high):
        """The sums of this lane's two channels, with the level's tiles added."""
        side = me.lane >> int32(4)
        stage = me.tiles + uint32(state.stage) * uint32(STAGE_BYTES) + uint32(4 * me.lane)
        for j in range(POINTS):
            owner = uint32(level * POINTS + j)
            weight = shfl_sync_idx_f32(uint32(WHOLE_WARP), sample.weight, owner)
            fx = shfl_sync_idx_f32(uint32(WHOLE_WARP), sample.fx, owner)
            fy = shfl_sync_idx_f32(uint32(WHOLE_WARP), sample.fy, owner)
            up, down = corner_weights(weight, fx, fy, side)
            upper = ld_shared_b32(uint32(stage + uint32(j * TILE)))
            lower = ld_shared_b32(uint32(stage + uint32(j * TILE + TILE_ROW)))
            low += up * cvt_f32_f16_lo(upper) + down * cvt_f32_f16_lo(lower)
            high += up * cvt_f32_f16_hi(upper) + down * cvt_f32_f16_hi(lower)
        return low, high

    @cuda.jit(device=True, forceinline=True)
    def release(me, state):
        """All lanes have read the stage: it may be refilled."""
        cuda.syncwarp()

    @cuda.jit(device=True, forceinline=True)
    def write(out, row, lane, low, high):
        """Left and right pixels are added, and lanes 0 to 15 write two channels each."""
        low += shfl_sync_bfly_f32(uint32(WHOLE_WARP), low, uint32(16))
        high += shfl_sync_bfly_f32(uint32(WHOLE_WARP), high, uint32(16))
        if row.valid and lane < 16:
            address = out + uint64(row.number) * uint64(2 * CHANNELS) + uint64(4 * lane)
            st_global_b32(address, cvt_rn_f16x2_f32(low, high))

    return start, take, issue, add_level, release, write


# %% [markdown]
# And the pipeline. This is the part that you would change, so it has a cell of its own. Two states walk
# around the ring: `ahead` is where the next level is asked for, `now` is the level that is added up.

# %%
def build(config, constants):
    LEVELS, STAGES, AHEAD, WARPS = constants.levels, config.stages, config.stages - 1, config.warps
    start, take, issue, add_level, release, write = pieces(config, constants)
    advance = make_advance(STAGES)

    @kernel(threads=config.threads)
    def level_ring(
        maps: u64, levels: u64, locations: u64, weights: u64, out: u64,
        batches: i32, rows_per_batch: i32, heads: i32,
    ):  # fmt: skip
        warp = int32(cuda.threadIdx.x) >> int32(5)
        row = item_row(cuda.blockIdx.x, warp, batches, rows_per_batch, heads, WARPS, 12)
        of_batch = maps + uint64(128 * LEVELS) * uint64(row.batch)
        me = start(of_batch, LEVELS)
        sample = take(maps, levels, locations, weights, row, me.lane)
        low = high = float32(0)
        ahead = now = first_state()

        for level in range(min(AHEAD, LEVELS)):  # prologue
            issue(me, ahead, level, sample)
            ahead = advance(ahead)
        for level in range(LEVELS):
            if level + AHEAD < LEVELS:
                issue(me, ahead, level + AHEAD, sample)
                ahead = advance(ahead)
            wait(me.ring, now)
            low, high = add_level(me, now, level, sample, low, high)
            release(me, now)
            now = advance(now)
        write(out, row, me.lane, low, high)

    return level_ring


# %% [markdown]
# The kernel's arguments are bound by their names: `locations`, `weights` and `out` are addresses of the
# call's arrays, `levels` of a table of the levels' sizes, and `maps` of tensor maps as the configuration
# wants them. So one function is left, for the host, the number of blocks: one for every `warps` rows. An
# *item* is what a block works on, and all its rows are of one batch item.


# %%
def a_block_for_each_item(problem, config, resident):
    return items(problem, config.warps)


# %% [markdown]
# ## 3 · Registered
#
# A `Variant` is an entry of the registry: a name, the configuration, the two functions, the oldest GPU that
# can run it, and how a tile reaches the registers, so that `bench` knows which ceiling to hold it against.
# `register` refuses names that exist; with `replace=True` a cell may run twice.

# %%
entry = Variant(
    "level-ring",
    systems="",
    summary="a warp has a row, a lane a sample, a stage a level",
    config=LevelRing,
    module=Functions(build, a_block_for_each_item),
    capability=(9, 0),
    fetch="tma",
)
register(entry, replace=True)

# %% [markdown]
# From here on `level-ring` is a variant like any other: for `ms_deform_attn`, `prepare`, the planning below,
# `bench` and its table, in this process. Here it is on a small problem, beside `direct`.

# %%
small = Workload(
    "small", batch=2, levels=((9, 7), (5, 3), (3, 1)), num_query=3, num_heads=1, num_points=2,
    pattern="uniform", outside=0.15,
)  # fmt: skip
inputs = small.generate(seed=1)
call = (
    inputs.value, inputs.spatial_shapes, inputs.level_start_index, inputs.sampling_locations,
    inputs.attention_weights,
)  # fmt: skip
ours = ms_deform_attn(*call, variant="level-ring", engine=engine, stages=3, warps=2)
direct = ms_deform_attn(*call, variant="direct", engine=engine)
print("largest difference to direct:", float(abs(ours - direct).max()))

# %% [markdown]
# Look at what is in that small problem: 15 % of its samples lie outside their level, one level is a single
# pixel wide, there are two batch items, whose maps differ, and three rows of each, which two warps a block do
# not divide. Round numbers hide mistakes.
#
# ## 4 · Checked
#
# One run is one schedule: one order in which warps take turns, and one moment at which each copy lands. On
# the CPU engine we can have any. `landing` says when copies arrive: as `late` as the barriers allow, at
# `random`, or the `earliest`, at once. `plan_operator` checks the call, `run_plan` runs it into an output
# full of NaN and compares it with a reference in float64.


# %%
def check_all(name, schedules=2, **parameters):
    """The largest error over all landing modes; raises the fault of the engine, if there is one."""
    plan = plan_operator(inputs, name, "cpu", **parameters)
    errors = []
    for landing in ("late", "random", "earliest"):
        options = {"landing": landing, "schedules": schedules}
        result = run_plan(plan, simulate_options=options)
        assert result.passed, f"{result.unwritten} numbers not written, error {result.error:.1e}"
        errors.append(result.error)
    return max(errors)


lessons.cpu_only("Many schedules")
for stages in (1, 2, 4):
    error = check_all("level-ring", stages=stages, warps=2)
    print(f"stages={stages}: right in 6 schedules, error {error:.1e}")

# %% [markdown]
# Four stages are more than there are levels. Somebody will ask for them, so it has to work.
#
# Now the question that people forget: **would this check have noticed?** A check that cannot fail checks
# nothing. So we break the pipeline on purpose, a line at a time, and look whether it is caught.


# %%
def without(line):
    """level-ring with that line of the pipeline left out, registered as ``broken``."""
    source = inspect.getsource(build)
    assert line in source, line
    source, file = source.replace(line, "pass  # left out"), f"<without {line}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    scope = dict(globals())
    exec(compile(source, file, "exec"), scope)
    module = Functions(scope["build"], a_block_for_each_item)
    return register(dataclasses.replace(entry, name="broken", module=module))


for line in ("wait(me.ring, now)", "release(me, now)", "now = advance(now)"):
    with without(line):
        try:
            check_all("broken", 1, stages=2, warps=2)
            print(f"without {line}: nothing noticed!")
        except SimFault as fault:
            print(f"without {line}: {type(fault).__name__}\n    {fault.rule}")

# %% [markdown]
# All three are caught, each for its own reason. The second is the interesting one. The planted fault
# `no_warp_sync` is the same mistake, and on an H200 its numbers are all right (`bench/results/bugs.json`),
# since the lanes of a warp mostly go in step. The engine does not judge by the numbers: nothing *orders* a
# lane's last read of a stage before the next copy into it.
#
# `register` can be used in a `with`, as here: at its end the name is gone.
#
# ## 5 · Drawn
#
# One block of two warps, with one, two and three stages. Below each warp is what it has in flight, a thin
# line for each stage.

# %%
drawn = []
for stages in (1, 2, 3):
    plan = plan_operator(inputs, "level-ring", "cpu", stages=stages, warps=2, trace=True)
    drawn.append(timeline.record(plan, title=f"stages={stages}"))
    waiting = timeline.shares(drawn[-1])[0].get("wait", 0)
    last = max(span.end for span in drawn[-1].spans)
    print(f"stages={stages}: {last} virtual cycles, of which warp 0 waits {waiting:.0%}")
pictures.timelines(*drawn)

# %% [markdown]
# With one stage a level is asked for when the last one has been added up. With two the flights overlap, with
# three all of this row's levels are in the air at once. Nearly all is grey, since two warps are alone here;
# on an SM dozens of others compute in that time. And look at the very end: whatever `stages` is, the ring
# runs empty with each row, and the next row starts from nothing. That is what we change in a moment.
#
# ## 6 · Refused
#
# What if somebody calls our kernel with five levels of eight points? A warp has 32 lanes, and there are 40
# samples.

# %%
many = Workload("many", 1, ((4, 4),) * 5, 2, num_heads=1, num_points=8, pattern="uniform")
lessons.show_fault(lambda: run_plan(plan_operator(many.generate(1), "level-ring", "cpu", warps=1)))

# %% [markdown]
# The engine names the barrier and what is missing, which is the tiles of the fifth level: no lane owns them.
# On a GPU it would hang. That is no answer for somebody who only wanted attention. **A variant says no before
# the launch**, with the field, its value and the rule: `ConfigError(field, value, rule)`.
#
# ## Exercise 1: refuse
#
# Finish `refuse`. It raises a `ConfigError` for everything that `level-ring` cannot do:
#
# - a row of more than 32 samples: field `points`
# - values that are not `float16`: field `dtype`; other than 32 channels: field `channels`
# - `warps` outside 1 .. 32; `stages` below 1
# - more shared memory than a block can have (`SHARED_LIMIT`): field `stages`
#
# `constants` has `levels`, `points`, `channels` and `dtype`.


# %% exercise="refuse"
def refuse(config, constants):
    """Raises ConfigError(field, value, rule) for what level-ring cannot run."""
    if config.stages < 1:
        raise ConfigError("stages", config.stages, "must be at least 1")
    ...


# %%
check.refuse(refuse, LevelRing)

# %% [markdown]
# ## 7 · One idea more
#
# The ring runs empty with each row: the last level is added up while nothing is under way, the row is
# written, and only then the next row's first tiles are asked for. Let a warp keep its ring and walk from row
# to row instead. While it adds up the last levels of a row, **the first levels of the next row are already on
# their way.**
#
# So barriers are initialised once, and live through many rows. Which use of which barrier is level 1 of the
# third row?
#
# ## Exercise 2: whose turn is it?
#
# A warp's rows are numbered 0, 1, 2, ... and each has `levels` levels. Give the stage into which level
# `level` of row `n` goes, and the parity to wait for. The ring has `stages` stages and a barrier for each.


# %% exercise="turn"
def turn(n, level, levels, stages):
    """(stage, parity) of one level of the n-th row of a warp."""
    stage = ...
    parity = ...
    return stage, parity


# %%
check.turn(turn)

# %% [markdown]
# `advance` does the same without a division, as long as nobody resets it. So in the kernel below `ahead` and
# `now` are made once, before the loop over rows.
#
# What has to be known early: the next row's samples. While a row is added up, `sample` still holds its
# weights, so the next row's go to `following`. The pipeline looks no further ahead than the next row, hence
# one rule more.


# %%
@dataclass(frozen=True)
class RunningOn(LevelRing):
    """Parameters of ``level-ring-on``: those of ``level-ring``."""

    def resolve(self, constants):
        if self.stages - 1 > constants.levels:
            raise ConfigError(
                "stages",
                self.stages,
                f"looks further ahead than a row of {constants.levels} levels",
            )
        return self


# %% [markdown]
# ## Exercise 3: the end of the line
#
# A block walks through items `blockIdx.x`, `blockIdx.x + gridDim.x`, and so on, below `count`. Only one
# condition is missing. When `later` is past this row's levels, which row does it belong to, and is there such
# a row? Think of the block's last item.


# %% exercise="runs_on"
def build_running_on(config, constants):
    LEVELS, STAGES, AHEAD, WARPS = constants.levels, config.stages, config.stages - 1, config.warps
    start, take, issue, add_level, release, write = pieces(config, constants)
    advance = make_advance(STAGES)

    @kernel(threads=config.threads)
    def level_ring_on(
        maps: u64, levels: u64, locations: u64, weights: u64, out: u64,
        batches: i32, rows_per_batch: i32, heads: i32,
    ):  # fmt: skip
        warp = int32(cuda.threadIdx.x) >> int32(5)
        count = item_count(batches, rows_per_batch, WARPS)
        item, stride = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)
        me = start(maps, batches * int32(LEVELS))
        row = item_row(item, warp, batches, rows_per_batch, heads, WARPS, 12)
        sample = take(maps, levels, locations, weights, row, me.lane)
        ahead = now = first_state()
        for level in range(AHEAD):  # prologue, once
            issue(me, ahead, level, sample)
            ahead = advance(ahead)

        while item < count:
            next_item = int32(item + stride)
            next_row = item_row(
                min(next_item, int32(count - 1)), warp, batches, rows_per_batch, heads, WARPS, 12
            )
            following = take(maps, levels, locations, weights, next_row, me.lane)
            low = high = float32(0)
            for level in range(LEVELS):
                later = level + AHEAD
                if later < LEVELS:
                    issue(me, ahead, later, sample)
                    ahead = advance(ahead)
                elif ...:
                    issue(me, ahead, later - LEVELS, following)
                    ahead = advance(ahead)
                wait(me.ring, now)
                low, high = add_level(me, now, level, sample, low, high)
                release(me, now)
                now = advance(now)
            write(out, row, me.lane, low, high)
            item, row, sample = next_item, next_row, following

    return level_ring_on


# %%
running_on = check.runs_on(build_running_on, RunningOn, engine=engine)
running_on

# %% [markdown]
# ## Exercise 4: the entry
#
# `level-ring` has a block for each item. With that many blocks nothing would run on: each block would end
# after its first item. A persistent kernel has as many blocks as the GPU can hold at once (`resident()`
# computes it), but never more than there are items: the prologue has no `if`.
#
# Write the number of blocks, and the two entries of the `Variant` that say what the kernel needs:
# `capability`, the oldest GPU that can run it, and `fetch`: `"l1"` if tiles come by plain loads, `"tma"` for
# an instruction a tile, or `"shared"` for many tiles of one box.


# %% exercise="entry"
def as_many_as_fit(problem, config, resident):
    """The number of blocks of a persistent kernel."""
    return ...


capability = ...
fetch = ...

# %%
registrable = check.entry(as_many_as_fit, capability=capability, fetch=fetch)
registrable

# %% [markdown]
# If exercises 3 and 4 are solved, here is your variant, registered and drawn: one block of one warp, which
# walks through three rows.

# %%
shape = "stages=3,warps=8" if engine == "gpu" else "stages=3,warps=1"
entries = f"direct,tma-fastest,level-ring:{shape}"
view = None
if running_on.passed and registrable.passed:
    module = Functions(build_running_on, as_many_as_fit)
    summary = "as level-ring; the ring runs on from row to row"
    running = dataclasses.replace(
        entry, name="level-ring-on", summary=summary, config=RunningOn, module=module,
        capability=capability, fetch=fetch,
    )  # fmt: skip
    register(running, replace=True)
    entries += f",level-ring-on:{shape}"
    plan = plan_operator(inputs, "level-ring-on", "cpu", stages=3, warps=1, trace=True)
    view = pictures.timelines(timeline.record(plan))
view

# %% [markdown]
# Follow the green lines of the flights: they no longer stop where a row ends.
#
# ## 8 · Timed
#
# First a look at the machine code, which needs no GPU. Two things ruin a time before it is taken: registers
# that spill to memory, and arrays that live there (`stack`).

# %%
seeds = Constants(levels=4, points=8, channels=32)
level_ring = entry.kernel(LevelRing(stages=3), seeds)
machine = [level_ring]
if running_on.passed and registrable.passed:
    level_ring_on = running.kernel(RunningOn(stages=3), seeds)
    machine.append(level_ring_on)
for made in machine:
    code = lessons.machine_code(made)
    if not code:
        break
    spilled = code.spill_loads + code.spill_stores
    print(
        f"{made.name:14} {code.registers} registers, {spilled} spills, stack of {code.stack} bytes; "
        f"{code.instructions['UTMALDG']} TMA instructions in the text"
    )

# %% [markdown]
# `bench` runs all entries on a poisoned output, compares each with float64, and then times them in turn,
# round after round, so that a clock that drifts hits all alike. `isolated=False` keeps everything in this
# process, the only one that knows your variant. (`with_ceilings=True` measures what bounds each as well, and
# takes a minute.)
#
# On the CPU engine there is nothing to time. It gives **virtual cycles**: what its table of costs adds up to,
# for the block that takes longest. Here a block of `level-ring` has one row and one of `level-ring-on` three,
# so divide before you compare. Virtual cycles show how a pipeline overlaps. They are no measurement, and the
# table says so. In particular they say nothing about `direct`, which lives on caches that the engine does not
# model.

# %%
gpu = find_gpu() if engine == "gpu" else None
workload = preset("detr-encoder", pattern="local(2)") if gpu else small
listed = parse_entries(entries)
document = bench(gpu, [workload], listed, isolated=False, with_ceilings=False)
print(report.markdown(document))

# %% [markdown]
# A row of [`bench/TABLE.md`](../bench/TABLE.md) has one thing more: *what costs it time*. Compare with your
# prediction. If it was wrong, you have learnt something that you did not know about the machine, and that is
# worth more than the milliseconds. `bench/NOTES.md` is a list of such predictions, with what came of each.
#
# ## To keep it
#
# What you have registered ends with this process. To make it part of the package, move the dataclass,
# `pieces`, `build` and the number of blocks to a file of `numba_deform/kernels/`, and add a line to
# `VARIANTS` in `kernels/registry.py`; then `numba-deform run variant=level-ring`, `timeline`, `inspect`,
# `sweep` and the tests know it too, in every process. [`CONTRIBUTING.md`](../CONTRIBUTING.md) has the recipe.
#
# Some ideas that nobody has tried here:
#
# - Two samples' weights by one shuffle, packed as `tma` does it. Is level-ring bound by that at all?
# - Half of the levels by TMA, the other half by plain loads: two units working side by side.
# - The coarsest level whole in shared memory: it is 12 × 20 pixels in the preset `seeds`, 15 KB a head. Then
#   a quarter of the samples needs no copy at all.
#
# ## What you know now
#
# - A variant is a configuration that refuses, a kernel, its arguments, and a number of blocks.
# - Right comes before fast: many schedules, odd sizes, a poisoned output, float64; and break it on purpose.
# - The ring of a persistent kernel is never reset; what is asked for must be waited for, also at the end.
# - Prediction, change, outcome: in this order.
#
# That was the last lesson. The [overview](README.md) lists them all; now write a pipeline that is in none.

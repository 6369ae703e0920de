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
# # 9 · Your own variant
#
# *About 75 minutes. You have met barriers, stages, parity and roles, and have written half a pipeline in
# [lesson 8](08_half_a_variant.py). You need no GPU.*
#
# Now you write a whole one: a variant of the operator. You take it from an idea with a prediction to a row in
# the table beside all the others. The order matters. A kernel that is fast and wrong is easy to write.

# %%
from numba import cuda

import numba_deform as nd
from numba_deform.course import lessons
from numba_deform.course.lessons import lesson9 as check
from numba_deform.course.lessons import pictures
from numba_deform.course.lessons.results import results

engine = lessons.engine()
print(f"kernels run on: {engine}")

# %% [markdown]
# ## 1 · The idea
#
# In the package's `tma`, a row (one query and head) has 8 lanes, and a stage holds two samples of each of
# four rows. That is tuned, and takes some reading. Our idea is a simpler split:
#
# - **A warp has one row.** With 4 levels of 8 points it has 32 samples, and a warp has 32 lanes.
# - **Lane k owns sample k.** It computes where the sample lies, and asks for its tile itself.
# - **A stage holds a level.** All tiles of a level come under one barrier.
# - **All lanes add up.** A tile of 2 × 2 pixels with 32 channels of `float16` is two rows of 32 words: one
#   word for each lane. Lanes 0 to 15 have the left pixel, and lanes 16 to 31 the right one.
#
# The prediction. There is still one TMA instruction for each tile. That alone takes 0.966 ms for the preset
# `seeds`, 8.0 cycles a tile (lesson 7), and `tma-fastest` took 0.988 ms there. So level-ring cannot win by
# much: *between 0.97 and 1.2 ms*, far behind `direct` with 0.492. What we hope for is a kernel of half the
# length. Write your own prediction down before you scroll.
#
# ## 2 · The pipeline
#
# First its parts. The shared memory and the ring are those of lesson 8: an `nd.WarpRing`, whose stages a warp
# fills and reads alone, so no empty barriers are needed. `issue` asks for a level, and `add_level` adds one up,
# by the four weights of lesson 3.

# %%
ALL = 0xFFFFFFFF  # all lanes of a warp


def parts(constants, stages, warps):
    """(shared memory, device functions issue, add_level and write) of level-ring."""
    LEVELS, POINTS, CHANNELS = constants.levels, constants.points, constants.channels
    shared = nd.Shared(
        tiles=nd.Array((warps * stages, POINTS, 2, 32), nd.uint32, alignment=128),
        ring=nd.WarpRing(stages, warps),
    )
    ring = shared.ring

    @nd.function
    def issue(sample, state, level, maps, row):
        """Ask for all tiles of a level: lane 0 says how many bytes, and each owner asks for its tile."""
        if nd.lane() == 0:
            ring.expect(state, shared.tiles.stride)
        j = nd.lane() - level * POINTS
        if j >= 0 and j < POINTS:
            tile = shared.tiles.at(ring.slot(state)) + 256 * j
            map = nd.global_at(maps, row.batch * LEVELS + sample.level, 128)
            nd.cp_async_bulk_tensor_3d(tile, map, row.head * CHANNELS, sample.x, sample.y, ring.full(state))

    @nd.function
    def add_level(sample, state, level, low, high):
        """The sums of this lane's two channels, with the level's tiles added."""
        tiles, slot, lane = shared.tiles.view(), ring.slot(state), nd.lane()
        for j in nd.static_range(POINTS):
            owner = level * POINTS + j
            weight = nd.shfl_sync_idx_f32(ALL, sample.weight, owner)
            fx, fy = nd.shfl_sync_idx_f32(ALL, sample.fx, owner), nd.shfl_sync_idx_f32(ALL, sample.fy, owner)
            up, down = nd.corner_weights(weight, fx, fy, lane // 16)
            upper, lower = tiles[slot, j, 0, lane], tiles[slot, j, 1, lane]
            low += up * nd.cvt_f32_f16_lo(upper) + down * nd.cvt_f32_f16_lo(lower)
            high += up * nd.cvt_f32_f16_hi(upper) + down * nd.cvt_f32_f16_hi(lower)
        return low, high

    @nd.function
    def write(out, row, low, high):
        """Left and right pixels are added, and lanes 0 to 15 write two channels each."""
        low += nd.shfl_sync_bfly_f32(ALL, low, 16)
        high += nd.shfl_sync_bfly_f32(ALL, high, 16)
        if row.valid and nd.lane() < 16:
            nd.st_global_b32(nd.global_at(out, 16 * row.number + nd.lane(), 4), nd.cvt_rn_f16x2_f32(low, high))

    return shared, issue, add_level, write


# %% [markdown]
# And the variant: a function with the decorator `@nd.variant`. Its first parameter is what a kernel is
# compiled for: `levels`, `points`, `channels` and types. The others are parameters of its own. It returns the
# kernel, and a function that says how many blocks the grid has.
#
# `nd.Rows` deals the rows out to blocks, `warps` of them to each *item*, and reads samples. The kernel's
# operands are found by the names of its parameters. The loop, with `ahead` and `now`, is the one that you wrote
# in lesson 8; a level takes the place of a step.


# %%
@nd.variant("level-ring", fetch="tma", capability=(9, 0))
def level_ring(constants, stages=2, warps=8):
    """a warp has a row, a lane a sample, a stage a level"""
    LEVELS, AHEAD = constants.levels, stages - 1
    shared, issue, add_level, write = parts(constants, stages, warps)
    rows, ring = nd.Rows(constants, per_item=warps), shared.ring

    @nd.kernel(threads=32 * warps, shared=shared)
    def level_ring(
        maps: nd.u64, levels: nd.u64, locations: nd.u64, weights: nd.u64, out: nd.u64,
        batches: nd.i32, rows_per_batch: nd.i32, heads: nd.i32,
    ):  # fmt: skip
        row = rows.row(cuda.blockIdx.x, nd.warp(), batches, rows_per_batch, heads)
        if cuda.threadIdx.x < LEVELS:
            map = nd.global_at(maps, row.batch * LEVELS + cuda.threadIdx.x, 128)
            nd.fence_proxy_tensormap_acquire_sys(map)
        shared.init()
        sample = rows.sample(levels, locations, weights, row, nd.lane())
        low = high = nd.float32(0)
        ahead = now = ring.start()
        for level in range(min(AHEAD, LEVELS)):  # prologue
            issue(sample, ahead, level, maps, row)
            ahead = ring.advance(ahead)
        for level in range(LEVELS):
            if level + AHEAD < LEVELS:
                issue(sample, ahead, level + AHEAD, maps, row)
                ahead = ring.advance(ahead)
            ring.wait(now)
            low, high = add_level(sample, now, level, low, high)
            ring.release(now)
            now = ring.advance(now)
        write(out, row, low, high)

    return level_ring, lambda problem, resident: rows.items(problem)


# %% [markdown]
# The decorator *registers* it. From here on `level-ring` is a variant like any other in this process. `fetch`
# says how tiles come, so that `bench` knows which ceiling to hold it against, and `capability` is the oldest
# GPU that can run it. In a file `my.py`, every command finds it by `load=my.py`. Here it is beside `direct`:

# %%
ours = nd.ms_deform_attn(*check.call, variant="level-ring", engine=engine, stages=3, warps=2)
direct = nd.ms_deform_attn(*check.call, variant="direct", engine=engine)
print("largest difference to direct:", float(abs(ours - direct).max()))

# %% [markdown]
# That small problem has samples outside their level, a level a single pixel wide, two batches with maps of
# their own, and three rows of each, which two warps a block do not divide. Round numbers hide mistakes.
#
# ## 3 · Checked
#
# One run is one schedule: one order in which warps take turns, and one moment at which each copy lands. The
# CPU engine can have any. `check.error` runs a variant with copies that land late, at random and at once,
# into an output full of NaN, and compares it with float64.

# %%
lessons.cpu_only("Many schedules")
for stages in (1, 2, 4):
    print(f"stages={stages}: error {check.error('level-ring', stages=stages, warps=2):.1e}")

# %% [markdown]
# Four stages are more than there are levels: somebody will ask for them. Now the question that people forget:
# **would this check have noticed?** A check that cannot fail checks nothing. So we leave out one line at a
# time, and look whether it is caught.

# %%
for line in ("ring.wait(now)", "ring.release(now)", "now = ring.advance(now)"):
    with check.without(line, level_ring, globals()) as broken:
        try:
            check.error(broken, stages=2, warps=2)
            print(f"without {line}: nothing noticed!")
        except nd.SimFault as fault:
            print(f"without {line}: {type(fault).__name__}\n    {fault.rule}")

# %% [markdown]
# All three are caught, each for its own reason. The second is the interesting one. The planted fault
# `no_warp_sync` is the same mistake, and on an H200 its numbers are all right (`bench/results/bugs.json`),
# since the lanes of a warp mostly go in step. The engine does not judge by the numbers: nothing *orders* a
# lane's last read of a stage before the next copy into it.
#
# ## 4 · Drawn
#
# One block of two warps, with one, two and three stages. Below each warp is what it has in flight.

# %%
drawn = [check.trace("level-ring", stages=stages, warps=2) for stages in (1, 2, 3)]
pictures.timelines(*drawn)

# %% [markdown]
# With one stage a level is asked for when the last one has been added up. With three, all levels of this row
# are in the air at once. Nearly all is grey, since two warps are alone here; on an SM dozens of others
# compute in that time. And look at the very end: whatever `stages` is, the ring runs empty with each row.
#
# ## 5 · Refused
#
# What if somebody calls our kernel with five levels of eight points? A warp has 32 lanes, and there are 40
# samples.

# %%
lessons.show_fault(lambda: check.error("level-ring", check.MANY, warps=1))

# %% [markdown]
# The tiles of the fifth level are missing: no lane owns them. On a GPU it would hang. **A variant says no
# before the launch**, with the field, its value and the rule: `nd.ConfigError(field, value, rule)`. Some
# rules look after themselves: `nd.Shared` refuses more shared memory than a block has, and `nd.WarpRing` a
# ring without stages.
#
# ## Exercise 1: refuse
#
# Finish `refuse`. It raises a `ConfigError` for what level-ring cannot do. The rule about channels is a
# pattern. Two are missing: a row of more than 32 samples (field `points`), and values that are not
# `"float16"` (field `dtype`). `constants` has `levels`, `points`, `channels` and `dtype`.


# %% exercise="refuse"
def refuse(constants):
    """Raises ConfigError(field, value, rule) for what level-ring cannot run."""
    if constants.channels != 32:
        raise nd.ConfigError("channels", constants.channels, "must be 32: two for each of 16 lanes")
    ...


# %%
check.refuse(refuse)

# %% [markdown]
# ## 6 · One idea more
#
# The last level is added up while nothing is under way, and only then the next row's first tiles are asked
# for. Let a warp keep its ring and walk from row to row instead. While it adds up the last levels of a row,
# **the first levels of the next row are already on their way.** So barriers are initialised once, and live
# through many rows. Which use of which barrier is level 1 of the third row?
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
# `ring.advance` does the same without a division, as long as nobody resets it. So below `ahead` and `now` are
# made once, before the loop over rows. The next row's samples have to be known early: they go to `following`.
#
# ## Exercise 3: the end of the line
#
# A block walks through items `blockIdx.x`, `blockIdx.x + gridDim.x`, and so on, below `count`. Only one
# condition is missing. When `later` is past this row's levels, which row does it belong to, and is there such
# a row? Think of the block's last item.


# %% exercise="runs_on"
def level_ring_on(constants, stages=2, warps=8):
    """as level-ring; the ring runs on from row to row"""
    refuse(constants)
    LEVELS, AHEAD, THREADS = constants.levels, stages - 1, 32 * warps
    if AHEAD > LEVELS:
        raise nd.ConfigError("stages", stages, f"looks further ahead than a row of {LEVELS} levels")
    shared, issue, add_level, write = parts(constants, stages, warps)
    rows, ring = nd.Rows(constants, per_item=warps), shared.ring

    @nd.kernel(threads=THREADS, shared=shared)
    def level_ring_on(
        maps: nd.u64, levels: nd.u64, locations: nd.u64, weights: nd.u64, out: nd.u64,
        batches: nd.i32, rows_per_batch: nd.i32, heads: nd.i32,
    ):  # fmt: skip
        for i in range(cuda.threadIdx.x, batches * LEVELS, THREADS):
            nd.fence_proxy_tensormap_acquire_sys(nd.global_at(maps, i, 128))
        shared.init()
        count = rows.count(batches, rows_per_batch)
        item = nd.int32(cuda.blockIdx.x)  # 32 bits: sums of Numba's integers have 64
        row = rows.row(item, nd.warp(), batches, rows_per_batch, heads)
        sample = rows.sample(levels, locations, weights, row, nd.lane())
        ahead = now = ring.start()
        for level in range(AHEAD):  # prologue, once
            issue(sample, ahead, level, maps, row)
            ahead = ring.advance(ahead)
        while item < count:
            next_item = nd.int32(item + cuda.gridDim.x)
            next_row = rows.row(min(next_item, count - 1), nd.warp(), batches, rows_per_batch, heads)
            following = rows.sample(levels, locations, weights, next_row, nd.lane())
            low = high = nd.float32(0)
            for level in range(LEVELS):
                later = level + AHEAD
                if later < LEVELS:
                    issue(sample, ahead, later, maps, row)
                    ahead = ring.advance(ahead)
                elif ...:
                    issue(following, ahead, later - LEVELS, maps, next_row)
                    ahead = ring.advance(ahead)
                ring.wait(now)
                low, high = add_level(sample, now, level, low, high)
                ring.release(now)
                now = ring.advance(now)
            write(out, row, low, high)
            item, row, sample = next_item, next_row, following

    return level_ring_on, lambda problem, resident: blocks(rows.items(problem), resident())


# %%
running_on = check.runs_on(level_ring_on, engine=engine)
running_on

# %% [markdown]
# ## Exercise 4: the entry
#
# With a block for each item nothing would run on: each block would end after its first. A persistent kernel
# has as many blocks as the GPU holds at once (`resident`), but never more than there are items: the prologue
# has no `if`. Write the number of blocks, and what its entry in the registry says: `capability`, and `fetch`:
# `"l1"` for plain loads, `"tma"` for an instruction a tile, `"shared"` for many tiles of one box.


# %% exercise="entry"
def blocks(items, resident):
    """The number of blocks of a persistent kernel."""
    return ...


capability = ...
fetch = ...

# %%
registrable = check.entry(blocks, capability=capability, fetch=fetch)
registrable

# %% [markdown]
# If exercises 3 and 4 are solved, here is your variant, registered and drawn: one block of one warp, which
# walks through three rows. The green lines of the flights no longer stop where a row ends.

# %%
view, names = None, ["level-ring"]
if running_on.passed and registrable.passed:
    nd.variant("level-ring-on", fetch=fetch, capability=capability)(level_ring_on)
    names.append("level-ring-on")
    view = pictures.timelines(check.trace("level-ring-on", stages=3, warps=1))
view

# %% [markdown]
# ## 7 · Timed
#
# First a look at the machine code, which needs no GPU: registers that spill to memory and arrays that live
# there (`stack`) ruin a time before it is taken. Then `bench` compares each entry with float64, and times them
# in turn, round after round, so that a clock that drifts hits all alike. On the CPU engine there is nothing to
# time. It gives **virtual cycles** of the block that takes longest. Here a block of `level-ring` has one row,
# and one of `level-ring-on` three, so divide before you compare. Blocks of the other two hold other numbers of
# rows, and plain loads have no latency here, so do not compare with those. Virtual cycles show how a pipeline
# overlaps; they are no measurement.

# %%
for name in names:
    if code := check.machine_code(name, stages=3):
        spilled = code.spill_loads + code.spill_stores
        print(f"{name:14} {code.registers} registers, {spilled} spills, stack of {code.stack} bytes")
print(check.table(["direct", "tma-fastest", *names], engine))

# %% [markdown]
# ## 8 · Prediction beside measurement
#
# What did you write down? Our own prediction was *between 0.97 and 1.2 ms*. There is a second opinion, which
# needs no GPU. With your variant in a file `my.py`, this asks for it:
#
#     numba-deform profile load=my.py variant=level-ring stages=3 time=1 workload=seeds pattern='local(2)'
#
# It runs the machine code of one SM's blocks, and plays it again on a model of an SM. It was asked before any
# GPU had run `level-ring`. Then an H200 timed that and two others:

# %%
rows = {row["variant"].split()[0]: row for row in results("level_ring")["rows"]}
for name, row in rows.items():
    low, high = (us / 1e3 for us in row["interval_us"])
    busy = f"busiest: {row['binds']}, {100 * row['busy'][row['binds']]:.0f} %"
    print(f"{name:12} predicted {row['predicted_us'] / 1e3:.3f} ms ({low:.2f} to {high:.2f}), "
          f"recorded: {row['measured_us'] / 1e3:.3f} ms  {busy}")  # fmt: skip
pictures.times(
    {f"{name}, recorded": row["measured_us"] / 1e3 for name, row in rows.items()},
    {f"{name}, predicted": row["predicted_us"] / 1e3 for name, row in rows.items()}, "seeds, local(2)",
)  # fmt: skip

# %% [markdown]
# Nine of ten recorded times lay in such an interval around their prediction. For `direct` and
# `tma-fastest` the model is off by 5 and 12 %, and it names what holds them back: the data path, and the
# copy engine. For `level-ring` it says 1.57 ms, and names something that we had not thought of: **issue**.
# In 86 of 100 cycles a scheduler issues an instruction, and the copy engine has time to spare. We have
# counted tiles, and forgotten the arithmetic around them. In `tma`, a warp adds up four tiles at once, one
# for each of its rows. In ours it adds up a single one, and half of its lanes compute the same weights.
#
# The two opinions differed, and the GPU decided: 1.84 ms. We were wrong, by half. The model said too little as
# well, by 15 %, but its interval holds, and so does its reason. (It has been mended since, by measurements of
# its parts. Today it says 1.61 ms.) If you have a GPU, ask it yourself:
# `numba-deform bench load=my.py variants=level-ring:stages=3,tma-fastest,direct workload=seeds`. What would
# you change first, now that you know it is the arithmetic?
#
# If your own prediction was wrong, you have learnt something about the machine, and that is worth more than
# the milliseconds. [`bench/NOTES.md`](../bench/NOTES.md) is a list of such predictions, with what came of
# each. An idea that nobody has tried here: the coarsest level whole in shared memory. In the preset `seeds`
# it is 12 × 20 pixels, 15 KB a head, and a quarter of the samples would need no copy at all.
#
# To keep your variant, put its cells into that file `my.py`, without the lines of the lesson. Then `run`,
# `timeline`, `budget`, `inspect`, `bench` and `sweep` know it by `load=my.py`, too.
#
# ## What you know now
#
# - A variant is a function: it refuses, lays out shared memory, and returns a kernel and the number of
#   blocks.
# - Right comes before fast: many schedules, odd sizes, a poisoned output, float64; and break it on purpose.
# - The ring of a persistent kernel is never reset; what is asked for must be waited for, also at the end.
# - Prediction, change, outcome: in this order.
#
# The copy engine can do more than copy: in [lesson 10](10_adding.py) it adds.

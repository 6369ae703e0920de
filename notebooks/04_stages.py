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
# # 4 · Stages
#
# *About 60 minutes. You know barriers ([lesson 2](02_barrier.py)) and one tile ([lesson 3](03_tile.py)).*
#
# Lesson 3 brought one tile: ask, wait, compute. Most of the time the warp did nothing. A copy takes
# hundreds of cycles from the request to the last byte, however small it is: that is its *latency*. The
# arithmetic of a tile takes far fewer.
#
# The cure is old and simple: **ask earlier**. While the warp reads one tile, the next ones are already on
# their way. They need somewhere to land, so shared memory becomes a ring of buffers, the **stages**. This
# lesson builds the ring, draws what it does, and finds out when more stages stop helping. It also tells the
# true story of a two-stage ring that read garbage, and of a barrier that got the blame.

# %%
import numpy as np
from numba import cuda, uint32

import numba_deform as nd
from numba_deform.course import bugs, lessons
from numba_deform.course.lessons import lesson4 as check
from numba_deform.course.lessons import pictures
from numba_deform.device.limits import limits_of
from numba_deform.kernels.budget import Budget
from numba_deform.kernels.problem import Constants
from numba_deform.kernels.registry import variant
from numba_deform.measure import timeline
from numba_deform.measure.systems import plan_operator

engine = lessons.engine()
print(f"kernels run on: {engine}")

# %% [markdown]
# ## One stage
#
# To see only the ring, we take the simplest job: twelve tiles of 1 KB, one after another in memory, and one
# warp that reads them. For a straight run of bytes there is an instruction without a tensor map:
# `cp_async_bulk_load(to, from, bytes, barrier)`. In everything else it is what you know. It returns at
# once, and the barrier counts the bytes.
#
# `work` stands for the interpolation: 192 steps over the words of a tile, each depending on the one before.
#
# A ring needs a barrier for each stage, and their bookkeeping is always the same. In `nd.Shared`, `nd.Barrier`
# is a single barrier, and `nd.Ring` the barriers of all stages. Each stage has a *full* one, which counts
# `full` arrivals, here that of lane 0. The second kind, *empty*, comes later in this lesson, and until then
# there is none: `empty=0`. A *state* is a stage and a parity:
#
# | | |
# |---|---|
# | `state = ring.start()` | the first stage, and the parity of its first use |
# | `ring.expect(state, n)` | on the full barrier of the state's stage: one arrival, and `n` bytes to come |
# | `ring.full(state)` | the address of that barrier, for a copy |
# | `ring.wait(state)` | wait until the stage is full |
# | `ring.release(state)` | the stage has been read, and may be overwritten |
# | `state = ring.advance(state)` | the next use |
#
# `expect` and `wait` do what those of an `nd.Barrier` do. The state says which barrier is meant, and with
# which parity. With one stage, `advance` returns the same stage with the other parity. `release` without
# empty barriers is for one warp alone: its lanes wait for each other by a `syncwarp`. (Before it stands a
# fence for the copy engine, so that loads which are under way do not return what it writes. Lesson 6 has its
# rule.)
#
# `shared.tiles.at(stage)` is the address of a stage's tile, and `nd.global_at(data, i, TILE_BYTES)` that of
# tile `i` in global memory.

# %%
LANES, TILES, WORDS, WORK = 32, 12, 8, 192
TILE_BYTES = 4 * WORDS * LANES


def layout(stages):
    """A block's shared memory: a tile for each stage, and the barriers of the ring."""
    return nd.Shared(
        tiles=nd.Array((stages, WORDS, LANES), nd.uint32, alignment=128),
        ring=nd.Ring(stages, full=1, empty=0),
    )


@nd.function
def work(tiles, stage, first, total):
    """The lane's words in a stage's rows from ``first`` on, over and over."""
    for k in range(WORK):
        total = total * 5 + tiles[stage, first + k % WORDS, nd.lane()]
    return total


def make_issue(shared):
    ring = shared.ring

    @nd.function
    def issue(data, state, i):
        """By one thread: ask for tile i, into the state's stage."""
        ring.expect(state, TILE_BYTES)
        tile = nd.global_at(data, i, TILE_BYTES)
        nd.cp_async_bulk_load(shared.tiles.at(state.stage), tile, TILE_BYTES, ring.full(state))

    return issue


single = layout(stages=1)
ring, issue = single.ring, make_issue(single)


@nd.kernel(threads=LANES, shared=single)
def one_stage(data: nd.u64, out: nd.uint32[:]):
    single.init()
    tiles, lane, total = single.tiles.view(), nd.lane(), uint32(0)
    state = ring.start()
    for i in range(TILES):
        if lane == 0:
            issue(data, state, i)
        ring.wait(state)
        total = work(tiles, state.stage, 0, total)
        ring.release(state)
        state = ring.advance(state)
    out[lane] = total


# %% [markdown]
# `check.trace` runs the kernel, compares its sums, and records what the warp did when. For this it uses the
# kernel's *traced form*, which the package makes from the source: before and after `issue`, `wait` and
# `release`, lane 0 writes the clock to global memory. (The package finds the three by these names.) On a GPU
# it is the clock of the SM. The CPU engine counts virtual cycles: each operation costs what a table says, for
# instance 600 cycles for a copy's latency, and one for reading an element of a tile (`cycle_costs.py`). They
# predict what overlaps with what. They do not predict milliseconds.

# %%
alone = check.trace(one_stage, "one stage", engine)
share = timeline.shares(alone)[0]
print(f"{check.cycles(alone)} cycles: waits {share['wait']:.0%}, computes {share['compute']:.0%}")
pictures.timelines(alone)

# %% [markdown]
# Grey is waiting, blue is work, and green below is the copy in flight. They never overlap. While the copy
# is in flight there is nothing to read. While the warp reads, nothing is in flight, because the only buffer
# is in use.
#
# ## A ring
#
# With `S` stages, tile `i` lies in stage `i % S`, and each stage has a full barrier of its own. The warp
# makes three kinds of steps:
#
# | | |
# |---|---|
# | **prologue** | ask for the first `S - 1` tiles |
# | **prefetch** | in step `i`, ask for tile `i + S - 1` |
# | **wait, compute** | wait for tile `i`, and use it |
#
# Why `S - 1` and not `S`? Tile `i + S - 1` goes into the stage of tile `i - 1`, which was used in the step
# before. That stage has just become free. The stage of tile `i` itself is full, and about to be read.
#
# There are two states now: `ahead` for the tile that is asked for next, and `now` for the tile that is read
# next. Both start as `ring.start()`, and `ring.advance` moves each of them on.


# %%
def build_ring(stages):
    LEAD, shared = stages - 1, layout(stages)
    ring, issue = shared.ring, make_issue(shared)

    @nd.kernel(threads=LANES, shared=shared)
    def stages_of_a_warp(data: nd.u64, out: nd.uint32[:]):
        shared.init()
        tiles, lane, total = shared.tiles.view(), nd.lane(), uint32(0)
        ahead = now = ring.start()
        for i in range(LEAD):  # prologue
            if lane == 0:
                issue(data, ahead, i)
            ahead = ring.advance(ahead)
        for i in range(TILES):
            if i + LEAD < TILES:  # prefetch
                if lane == 0:
                    issue(data, ahead, i + LEAD)
                ahead = ring.advance(ahead)
            ring.wait(now)
            total = work(tiles, now.stage, 0, total)
            ring.release(now)  # the next step may refill the stage
            now = ring.advance(now)
        out[lane] = total

    return stages_of_a_warp


rings = {stages: build_ring(stages) for stages in (1, 2, 3, 4, 5)}

# %% [markdown]
# The number of stages is a constant of the kernel, so `build_ring` makes one kernel for each number. With
# one stage there is no prologue, and the prefetch of step `i` asks for tile `i` itself. No special case is
# needed.

# %%
recorded = {s: check.trace(rings[s], f"{s} stage{'s' * (s > 1)}", engine) for s in rings}
end = check.cycles(recorded[1])
pictures.timelines(*(recorded[s] for s in (1, 2, 3, 4)), end=end)

# %% [markdown]
# All four have the same scale. Look at the green bars. Each stage has its own row, so you can count how
# many copies are in flight at once. Then look at the grey gaps. On the CPU engine they shrink from picture
# to picture. With four stages only the first gap is left: for the first tile everybody has to wait.
#
# Follow one stage with your finger: a copy, the work on its tile, the next copy. **A stage goes round in
# `latency + work` cycles**, and each round brings one tile. Two stages bring two tiles in that time, three
# bring three, until the warp works without a pause.

# %%
for stages, drawn in recorded.items():
    share = timeline.shares(drawn)[0]
    print(f"stages={stages}: {check.cycles(drawn):6} cycles, waits {share['wait']:4.0%} of them")


# %%
def zoom(stages, until):
    return pictures.timelines(recorded[stages], end=until)


lessons.slider(
    zoom,
    start={"stages": 3, "until": end // 2},
    stages=list(recorded),
    until=[end // 4, end // 2, end],
)

# %% [markdown]
# Now the ring itself, moment by moment, from the same runs. Go step by step (click on the slider, then use
# the arrow keys) and watch one stage: asked for, being read, free, and asked for again with the other
# parity. With more stages, more tiles are asked for at once.


# %%
def turn(stages, step):
    return pictures.ring(recorded[stages], step)


most = max(len(pictures.ring_moments(drawn)) for drawn in recorded.values())
page = {"stages": [1, 2, 3, 5], "step": range(16)}
lessons.slider(turn, start={"stages": 3, "step": 4}, page=page, stages=list(recorded), step=range(most))

# %% [markdown]
# ## Exercise 1: how many stages?
#
# A copy takes `latency` cycles, and the work on a tile takes `work` cycles. How many stages does the ring
# need, so that the running warp never waits? Both numbers are whole. Assume that the request itself takes
# no time.


# %% exercise="stages_needed"
def stages_needed(latency, work):
    """The smallest number of stages that hides the latency."""
    return ...


# %%
check.stages_needed(stages_needed)

# %% [markdown]
# ## One bit
#
# In lesson 2 a wait named a phase by its parity. In a ring that is `state.parity`. Each stage's barrier
# completes one phase a lap. So the parity is the same for all tiles of one lap, and it flips in the next. Here
# is a ring of three. The numbers are the parities, and the odd laps are hatched:

# %%
laps = ["0  1  0  1  ", " 0  1  0  1 ", "  0  1  0  1"]  # of the three stages: a column is a tile
table = np.array([list(stage) for stage in laps], object)
pictures.numbers(table, "the parity with which each tile is awaited", table == "1", "stage", "tile")

# %% [markdown]
# One bit is enough because no waiter is more than one phase behind. A stage's barrier cannot complete the
# next lap before this lap's tile has been read. Here are two laps of one stage's barrier:

# %%
pictures.barrier_states(
    [
        ("init(1)", 0, 1, 1, 0),
        ("expect tile 0: one arrival, 1024 B to come", 0, 0, 1, 1024),
        ("tile 0 has landed: wait(0) passes", 1, 1, 1, 0),
        ("expect tile 3", 1, 0, 1, 1024),
        ("tile 3 has landed: wait(1) passes", 2, 1, 1, 0),
    ],
    "the full barrier of stage 0 in a ring of three",
)

# %% [markdown]
# ## Exercise 2: stage and parity
#
# `ring.advance` counts both. Write them as formulas.


# %% exercise="use"
def use(i, stages):
    """(stage, parity) with which tile i is awaited."""
    stage = ...
    parity = ...
    return stage, parity


# %%
check.use(use)

# %% [markdown]
# What if the bit never flips? The first lap is right. In the second, a wait for parity 0 finds that phase 0
# was over long ago. It passes at once, while the tile is still in flight. This is one of the package's
# planted faults:

# %%
lessons.cpu_only("The report of a stale wait")
stuck = bugs.BUGS["parity_never_flips"]
launch = stuck.arguments()
lessons.show_fault(lambda: lessons.run(stuck.kernel(), launch.grid, launch.args, engine="cpu"))

# %% [markdown]
# ## When several warps share the ring
#
# In our kernel a stage is free when all lanes of one warp have read it, and the `syncwarp` in `release` makes
# sure of that. (The fence before it is for the copy engine, which does not wait behind a barrier of threads.
# Lesson 11 tells what an H100 did without it.) Now let two warps share a tile, half of it each, while thread
# 0 asks for the whole tile. It cannot know how far the other warp is. So each stage gets a second barrier,
# **empty**, which counts `empty` arrivals. Every reader arrives on it, and whoever refills the stage waits
# for it first:
#
# | thread 0 | every thread |
# |---|---|
# | `ring.acquire(ahead)`: wait until the stage is empty | `ring.wait(now)`: wait until it is full |
# | `ring.expect(ahead, n)`, and the copy | work |
# | `ahead = ring.advance(ahead)` | `ring.release(now)`: the fence, and one arrival on empty |
# | | `now = ring.advance(now)` |
#
# In the first lap nobody has released anything, and nobody needs to: there `acquire` passes at once. Lesson 5
# asks with which parity it waits.
#
# ## Exercise 3: write the ring
#
# Three calls are missing. The ring has empty barriers now, so it has `acquire`, and `release` arrives on them.


# %% exercise="shared_ring"
def build_shared(stages):
    LEAD, THREADS, BYTES = stages - 1, 2 * LANES, 2 * TILE_BYTES
    shared = nd.Shared(
        tiles=nd.Array((stages, 2 * WORDS, LANES), nd.uint32, alignment=128),
        ring=nd.Ring(stages, full=1, empty=THREADS),
    )
    ring = shared.ring

    @nd.kernel(threads=THREADS, shared=shared)
    def stages_of_a_block(data: nd.u64, out: nd.uint32[:]):
        shared.init()
        tiles, tid, total = shared.tiles.view(), cuda.threadIdx.x, uint32(0)
        ahead = now = ring.start()
        for i in range(-LEAD, TILES):  # negative steps are the prologue
            if tid == 0 and i + LEAD < TILES:
                ...  # the stage may still be in use
                ring.expect(ahead, BYTES)
                slot, tile = shared.tiles.at(ahead.stage), nd.global_at(data, i + LEAD, BYTES)
                nd.cp_async_bulk_load(slot, tile, BYTES, ring.full(ahead))
                ahead = ring.advance(ahead)
            if i >= 0:
                ...  # the tile may still be on its way
                total = work(tiles, now.stage, WORDS * nd.warp(), total)
                ...  # this thread has read the stage
                now = ring.advance(now)
        out[tid] = total

    return stages_of_a_block


# %%
check.shared_ring(build_shared, engine=engine)

# %% [markdown]
# ## The two-stage ring that read garbage
#
# This package began with a series of experiments in CUDA C++ on the same operator (`bench/ORIGINS.md`). One
# of their kernels worked with `STAGES = 1`. With `STAGES = 2` the first line shows what it read, and the
# second what was expected:
#
#     [0.0001, 0.0000, 37184.0000, ...]
#     [0.0000, 0.0100, 0.0200, 0.0300, ...]
#
# The new element was a barrier that is used more than once. So the notes blamed the barrier: *"barrier
# phase mismatch in reuse pattern"*. Two cures were tried. With a second `init` the kernel hung, and with
# `arrive_and_drop` the launch failed. Then two stages were given up, until "the barrier bug" would be
# resolved.
#
# But the barriers were right. The fault was elsewhere: one character was missing.
#
#     auto meta = point_meta[s];    // a copy of the entry; it is filled in, and thrown away
#     auto& meta = point_meta[s];   // the entry itself
#
# The code that issued a load wrote the point's coordinates into a *copy* of the entry. The code that
# computed read the entry itself, into which nobody had ever written. Here is the same mistake in Python. A
# weight for each tile takes the place of the coordinates:

# %%
STEPS, ROW_BYTES = 6, 4 * LANES
pair = nd.Shared(
    tile=nd.Array((2, LANES), nd.uint32, alignment=128), ring=nd.Ring(2, full=1, empty=0)
)  # fmt: skip
ring = pair.ring


@nd.kernel(threads=LANES, shared=pair)
def two_stages(data: nd.u64, weights: nd.uint32[:], out: nd.uint32[:]):
    pair.init()
    tile, lane, total = pair.tile.view(), nd.lane(), uint32(0)
    now = ring.start()
    if lane == 0:
        ring.expect(now, ROW_BYTES)
        nd.cp_async_bulk_load(pair.tile.at(0), data, ROW_BYTES, ring.full(now))
    meta = cuda.local.array(2, uint32)  # an entry for each stage
    meta[0] = weights[0]
    for i in range(STEPS):
        ahead = ring.advance(now)
        if i + 1 < STEPS:
            if lane == 0:
                slot, row = pair.tile.at(ahead.stage), nd.global_at(data, i + 1, ROW_BYTES)
                ring.expect(ahead, ROW_BYTES)
                nd.cp_async_bulk_load(slot, row, ROW_BYTES, ring.full(ahead))
            copied = cuda.local.array(1, uint32)
            copied[0] = weights[i + 1]  # auto meta = point_meta[s];
        ring.wait(now)
        total += meta[now.stage] * tile[now.stage, lane]
        nd.fence_proxy_async()  # as in `ring.release`
        now = ahead
    out[lane] = total


rows = check.tiles_of_data(STEPS, LANES)
weights = np.arange(1, STEPS + 1, dtype=np.uint32)
lessons.cpu_only("The report of a read of what nobody wrote")
sums = np.zeros(LANES, np.uint32)
by_seed_5 = {"seed": 5, "landing": "random", "engine": "cpu"}
lessons.show_fault(lambda: lessons.run(two_stages, 1, (rows, weights, sums), **by_seed_5))

# %% [markdown]
# The report does not mention barriers at all. It names the line that reads, and what nobody wrote. That is
# the whole diagnosis. And what happens if we initialise the barrier again for each use, as the notes tried?

# %%
again = bugs.BUGS["init_again"]
launch = again.arguments()
lessons.cpu_only("The report of a second init")
lessons.show_fault(lambda: lessons.run(again.kernel(), launch.grid, launch.args, engine="cpu"))

# %% [markdown]
# This does not prove that barriers are always innocent. But *the last thing you changed* is a suspect, not
# a culprit. Every phase, every byte and every coordinate can be checked on its own.
#
# `two_stages` has a second fault. The original had it too, hidden behind the first one. The engine stops at
# the first broken rule that it meets, and that depends on the order in which the lanes run. Above, `seed=5`
# chose an order. Here the lanes run one after another:

# %%
lessons.cpu_only("Another order of the lanes")
lessons.show_fault(lambda: lessons.run(two_stages, 1, (rows, weights, sums), engine="cpu"))

# %% [markdown]
# ## Exercise 4: mend it
#
# Mend both faults. The barriers are fine.


# %% exercise="mend"
@nd.kernel(threads=LANES, shared=pair)
def mended(data: nd.u64, weights: nd.uint32[:], out: nd.uint32[:]):
    pair.init()
    tile, lane, total = pair.tile.view(), nd.lane(), uint32(0)
    now = ring.start()
    if lane == 0:
        ring.expect(now, ROW_BYTES)
        nd.cp_async_bulk_load(pair.tile.at(0), data, ROW_BYTES, ring.full(now))
    meta = cuda.local.array(2, uint32)  # an entry for each stage
    meta[0] = weights[0]
    for i in range(STEPS):
        ahead = ring.advance(now)
        if i + 1 < STEPS:
            if lane == 0:
                slot, row = pair.tile.at(ahead.stage), nd.global_at(data, i + 1, ROW_BYTES)
                ring.expect(ahead, ROW_BYTES)
                nd.cp_async_bulk_load(slot, row, ROW_BYTES, ring.full(ahead))
            ...  # weights[i + 1]: where does it belong?
        ring.wait(now)
        total += meta[now.stage] * tile[now.stage, lane]
        nd.fence_proxy_async()  # as in `ring.release`
        ...  # what has to be true before the next step refills this stage?
        now = ahead
    out[lane] = total


# %%
check.mend(mended, engine=engine)

# %% [markdown]
# ## The real kernel
#
# `kernels/tma.py` is this loop, with tensor loads and interpolation in it. It is one of the package's
# *variants*: kernels for the whole operator, which go by name. Built with `trace=True` it writes the same
# marks. Here is a small problem, with one warp to a block:

# %%
small = nd.Workload(
    "small", batch=1, levels=((12, 16), (6, 8)), num_query=8, num_heads=1, num_points=8
)
inputs = small.generate(seed=1)


def attention(stages):
    """The timeline of block 0 of the variant tma."""
    plan = plan_operator(
        inputs,
        "tma",
        engine,
        threads=32,
        stages=stages,
        min_blocks=0,
        points_per_stage=2,
        trace=True,
    )
    return timeline.record(plan, title=f"tma, {stages} stage{'s' * (stages > 1)}")


real = {stages: attention(stages) for stages in (1, 2, 3, 4)}
pictures.timelines(*real.values(), end=check.cycles(real[1]))


# %% [markdown]
# Here the work on a tile is short, so a single warp waits even with four stages. By the formula of exercise
# 1 it would need many more. So should we add many more?
#
# ## What a stage costs
#
# Every stage takes shared memory, and shared memory limits how many blocks an SM can hold. The experiments
# first met this as a wall: 512 threads with two stages need 65,792 bytes, and without a special request a
# block gets 48 KB. With 256 threads two stages fit. `Budget` does this arithmetic, and needs no GPU:

# %%
constants, limits = Constants(levels=4, points=8, channels=32), limits_of("sm_90a")
for threads, stages in ((512, 2), (256, 2), (256, 3), (256, 4)):
    config = variant("tma").unresolved(
        threads=threads, stages=stages, lanes=4, points_per_stage=1, min_blocks=0
    )
    budget = Budget.of(config.complete(constants), constants, limits)
    left = budget.left["48 KB static"]
    print(
        f"{threads} threads, {stages} stages: {budget.total:6} bytes,",
        "fits 48 KB" if left >= 0 else f"{-left} too many",
    )

# %% [markdown]
# A Hopper block can ask for 227 KB, so the wall is gone. The cost is not. Here are measurements on an H200,
# of `tma` with 256 threads on 31.5 million tiles (`bench/results/sweep_stages.json`), beside the number of
# blocks for which an SM has shared memory:

# %%
for stages, ms, budget in check.measured_stages("tma"):
    blocks = budget.occupancy.blocks
    size, bar = f"{budget.total / 1024:6.1f} KB a block", "#" * round(ms * 15)
    print(f"stages={stages}: {size}, blocks that fit: {blocks}, {ms:.2f} ms {bar}")

# %% [markdown]
# The registers leave room for three blocks. So up to four stages cost nothing here, and they gain almost
# nothing: 1.19, 1.15, 1.15, 1.14 ms. The fifth stage leaves room for two blocks and costs 15 %. The eighth
# leaves room for one, and the time nearly doubles.
#
# Why does the second stage gain only 3 %, when our single warp became nearly twice as fast? **Because a
# warp on an SM is not alone.** There are 24 warps, each with its own ring. When one waits, another one
# works: the other warps *act as* stages. And they all share one TMA unit, which accepts a tile every 8 to 9
# cycles, however many warps are waiting for it (lesson 7 measures 8.0). A pipeline hides latency. It does
# not add throughput.
#
# So more stages stop helping for three reasons:
#
# 1. The latency is hidden. The warp never waits, and nothing is left to gain (exercise 1).
# 2. Something else is at its limit: a unit, or the memory's bandwidth.
# 3. Stages take shared memory. That leaves fewer blocks, so fewer warps, and those hid latency for free.
#
# ## Exercise 5: the largest ring
#
# An SM has 228 KB of shared memory. A block takes `stages * (stage_bytes + 64)` bytes (64 for the barriers
# of eight warps), 128 more to align the tiles, and the system keeps 1024 bytes for each block. How many
# stages may a ring have, if `blocks` blocks must fit on an SM?


# %% exercise="most_stages"
def most_stages(stage_bytes, blocks):
    """The largest number of stages with which ``blocks`` blocks fit on an SM."""
    return ...


# %%
check.most_stages(most_stages)

# %% [markdown]
# ## What you know now
#
# - Ask `S - 1` tiles ahead: first the prologue, then in each step prefetch, wait, compute.
# - Tile `i` lies in stage `i % S`, and its parity is that of its lap, `i // S % 2`.
# - A stage may be refilled when everybody has read it. Within a warp `syncwarp` ensures this, between warps
#   an empty barrier does.
# - A result that is wrong with two stages proves nothing against the barrier. Check each part on its own.
# - `ceil(latency / work) + 1` stages hide a latency. Other warps hide it too, and both need shared memory.
#
# Our thread 0 had two jobs: it asked for tiles, and it computed. In [lesson 5](05_roles.py) different warps
# do these jobs. You can now read [`kernels/tma.py`](../numba_deform/kernels/tma.py) and
# [`device/pipeline.py`](../numba_deform/device/pipeline.py), of which `nd.Ring` is made, from top to bottom.

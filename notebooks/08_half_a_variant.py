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
# # 8 · Half a variant
#
# *About 40 minutes. You have met stages, parity and timelines ([lesson 4](04_stages.py)). You need no GPU.*
#
# In [lesson 9](09_your_variant.py) you write a variant of the operator. It has two halves. One is attention:
# rows, samples, weights. The other is a **pipeline**: shared memory, a ring, tiles that are asked for ahead
# of time. Today you write the pipeline half alone, for a job that is so simple that nothing else is in the
# way: the sum of each column of a matrix.
#
# You are given a kernel that works, with one stage. You make the shared memory, the copy, and the loop that
# looks ahead. All names come from one place, `import numba_deform as nd`.

# %%
from numba import cuda

import numba_deform as nd
from numba_deform.course import lessons
from numba_deform.course.lessons import lesson8 as check
from numba_deform.course.lessons import pictures

engine = lessons.engine()
print(f"kernels run on: {engine}")

# %% [markdown]
# ## The kernel that works
#
# The matrix is cut into tiles of 32 rows and 32 columns. A block has two warps, and each has 32 columns, one
# for each lane. A warp asks for a tile, waits for it, adds up its rows, and goes on to the next tile below.
#
# | | |
# |---|---|
# | `nd.Shared(name=part, ...)` | the block's shared memory; `shared.init()` makes its barriers |
# | `nd.Array(shape, type)` | an array in it: `.view()`; part `i` has the address `.at(i)` and `.stride` bytes |
# | `nd.WarpRing(stages, warps)` | a ring for each warp, which fills its stages and reads them alone |
# | `ring.start()`, `ring.advance(state)` | the first state, and the next one |
# | `ring.expect(state, bytes)` | announce bytes on the full barrier, `ring.full(state)` |
# | `ring.wait(state)`, `ring.release(state)` | wait until the tile is there; all lanes have read it |
# | `ring.slot(state)` | the stage's number among those of all warps |
#
# Read the kernel slowly. The number of the warp is `nd.warp()`, and that of the lane is `nd.lane()`.

# %%
ROWS, COLUMNS, WARPS = 32, 32, 2
shared = nd.Shared(
    tiles=nd.Array((WARPS, ROWS, COLUMNS), nd.float32, alignment=128),
    ring=nd.WarpRing(1, WARPS),
)


@nd.function
def issue(map, state, step):
    if nd.lane() == 0:
        shared.ring.expect(state, 4096)
        tile, full = shared.tiles.at(nd.warp()), shared.ring.full(state)
        nd.cp_async_bulk_tensor_2d(tile, map, COLUMNS * nd.warp(), ROWS * step, full)


@nd.kernel(threads=32 * WARPS, shared=shared)
def one_stage(map: nd.u64, out: nd.float32[:], steps: nd.i32):
    nd.fence_proxy_tensormap_acquire_sys(map)
    shared.init()
    ring, tiles, total = shared.ring, shared.tiles.view(), nd.float32(0)
    state = ring.start()
    for step in range(steps):
        issue(map, state, step)
        ring.wait(state)
        for row in range(ROWS):
            total += tiles[nd.warp(), row, nd.lane()]
        ring.release(state)
        state = ring.advance(state)
    out[cuda.threadIdx.x] = total


# %% [markdown]
# `check.trace` runs it on a random matrix of twelve tiles a warp, compares the sums, and draws what the warps
# did.

# %%
alone = check.trace(one_stage, "one stage", engine)
print(f"{check.cycles(alone)} cycles")
pictures.timelines(alone)

# %% [markdown]
# Right, and slow: nearly everything is pale, which is waiting. A copy takes some 700 cycles, and adding up a
# tile a small part of that. So other copies should be under way meanwhile. For that a warp needs more stages.
#
# ## Exercise 1: the shared memory
#
# Write the layout for any number of stages and warps. What shape does `tiles` have? A tile must be *one* part
# of it, so that `tiles.at(ring.slot(state))` is where it goes.


# %% exercise="layout"
def layout(stages, warps):
    """Shared memory of a block: a ring for each warp, and a tile for each of its stages."""
    return nd.Shared(
        tiles=nd.Array(..., nd.float32, alignment=128),
        ring=nd.WarpRing(..., ...),
    )


# %%
check.layout(layout)

# %% [markdown]
# ## Exercise 2: the copy
#
# Now `issue` for a ring. In the kernel above the bytes were a number and the stage was the warp's only one.
# Here both have to fit any layout. Coordinates are given in elements, and the column comes first.


# %% exercise="issue"
def make_issue(shared):
    ring = shared.ring

    @nd.function
    def issue(map, state, step):
        """Lane 0 asks for tile ``step`` of this warp's columns, into the state's stage."""
        if nd.lane() == 0:
            ring.expect(state, ...)
            tile = shared.tiles.at(...)
            nd.cp_async_bulk_tensor_2d(tile, map, ..., ..., ring.full(state))

    return issue


# %%
check.issue(make_issue, engine=engine)

# %% [markdown]
# ## Where we want to go
#
# This is a ring of the same kind at work. First its timeline, with two to four stages. Orange is where a warp
# asks for a tile: copies take turns, so with many under way it also waits there. Adding up is quick, and
# hardly to be seen. Then move the slider, step by step, and watch one stage: a tile is asked for, it is read,
# the stage is free, and the next tile is asked for with the other parity. How many tiles are under way while
# one is read?

# %%
recorded = {stages: check.trace(check.pipeline(stages), f"{stages} stages", engine) for stages in (2, 3, 4)}
pictures.timelines(*recorded.values())


# %%
def turn(stages, step):
    return pictures.ring(recorded[stages], step)


most = max(len(pictures.ring_moments(drawn)) for drawn in recorded.values())
page = {"step": range(16)}
lessons.slider(turn, start={"stages": 3, "step": 5}, page=page, stages=list(recorded), step=range(most))

# %% [markdown]
# With `stages` stages, `stages - 1` tiles are under way while one is read. So there are two states: `ahead`
# is where the next tile is asked for, and `now` is the tile that is read. Before the loop, a *prologue* asks
# for the first tiles. Each step then asks for one more, as long as there is one.
#
# ## Exercise 3: the loop that looks ahead
#
# Fill the four holes. How many tiles does the prologue ask for? Mind that there may be fewer steps than
# stages. In which step does the loop ask for a tile, for which one, and into which state's stage?


# %% exercise="prefetch"
def build(shared, issue, stages, warps):
    ring, AHEAD = shared.ring, stages - 1

    @nd.kernel(threads=32 * warps, shared=shared)
    def column_sums(map: nd.u64, out: nd.float32[:], steps: nd.i32):
        nd.fence_proxy_tensormap_acquire_sys(map)
        shared.init()
        tiles, total = shared.tiles.view(), nd.float32(0)
        ahead = now = ring.start()
        for step in range(...):  # prologue
            issue(map, ahead, step)
            ahead = ring.advance(ahead)
        for step in range(steps):
            if ...:  # prefetch
                issue(map, ..., ...)
                ahead = ring.advance(ahead)
            ring.wait(now)
            for row in range(ROWS):
                total += tiles[ring.slot(now), row, nd.lane()]
            ring.release(now)
            now = ring.advance(now)
        out[cuda.threadIdx.x] = total

    return column_sums


# %%
solved = check.prefetch(build, engine=engine)
solved

# %% [markdown]
# If that is right, here is your own pipeline, with three stages, below the one that you were given:

# %%
drawn = [alone]
if solved.passed:
    mine = layout(3, WARPS)
    drawn.append(check.trace(build(mine, make_issue(mine), 3, WARPS), "yours, with three stages", engine))
pictures.timelines(*drawn)

# %% [markdown]
# ## Exercise 4: how deep?
#
# Each stage costs 4 KB for each warp. What is the least number of stages that brings all there is to gain, to
# two per cent, for these twelve tiles on the CPU engine? Try some: `check.cycles(check.trace(check.pipeline(2),
# ""))`.

# %% exercise="depth"
stages = ...

# %%
check.depth(stages)

# %% [markdown]
# ## What is missing
#
# Your pipeline could be in an attention kernel. Here is what the other half adds to it:
#
# | today | lesson 9 |
# |---|---|
# | a warp has 32 columns | a warp has a row: one query and head |
# | a stage holds a tile | a stage holds all tiles of a level |
# | lane 0 asks for the tile of a step | each lane asks for the tile of its own sample |
# | rows are added up | tiles are weighed, and added up |
# | a kernel, and `check` to run it | `@nd.variant`: known by name, checked, drawn, timed |
#
# The loop with `ahead` and `now` stays as it is, line by line. The same sums with a warp that does nothing
# but ask for tiles, and empty barriers, are in `numba_deform/course/pipelines/reduction.py`.
#
# ## What you know now
#
# - Shared memory is laid out by name: an array with a tile for each stage of each warp, and a ring.
# - A copy needs four things: bytes announced, a stage, coordinates, and the barrier it completes on.
# - Two states walk around the ring, `stages - 1` apart. What is asked for is waited for.
#
# [Lesson 9](09_your_variant.py) adds the other half.

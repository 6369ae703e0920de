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
# # 14 · Profiling without a GPU
#
# *About 30 minutes. You know banks and wavefronts ([lesson 7](07_how_fast.py)) and shared memory by name
# ([lesson 8](08_half_a_variant.py)). You need no GPU, but NVIDIA's packages, which macOS does not have.*
#
# Your kernel is right, and it is slow. Which line is it? A profiler answers that, and most people believe
# that it takes a GPU. But much of what Nsight Compute counts does not depend on time. How many instructions
# does a line execute? How often do its lanes fight for a bank? How many *sectors* of memory does it touch?
# All that follows from the machine code and from the addresses. So it can be counted anywhere.
#
# `nd.profile` compiles a kernel for Hopper, and runs its machine code on the CPU. Then it gives you a
# table, line by line.

# %%
import numpy as np
from numba import cuda

import numba_deform as nd
from numba_deform.course import lessons
from numba_deform.course.lessons import lesson14 as check
from numba_deform.course.lessons import pictures

# %% [markdown]
# ## A transposition
#
# The kernel turns rows into columns. A block of eight warps takes a tile of 32 x 32 floats: each warp reads
# rows of the tile from memory, and writes columns of it as rows of the result. The tile in between lies in
# shared memory.

# %%
SIDE = 32


def build_transpose(columns):
    shared = nd.Shared(tile=nd.Array((SIDE, columns), nd.float32))

    @nd.kernel(threads=8 * SIDE, shared=shared)
    def transpose(data: nd.float32[:, :], out: nd.float32[:, :]):
        shared.init()
        tile, lane, warp = shared.tile.view(), nd.lane(), nd.warp()
        x, y = SIDE * cuda.blockIdx.x, SIDE * cuda.blockIdx.y
        for i in range(warp, SIDE, 8):
            tile[i, lane] = data[y + i, x + lane]
        cuda.syncthreads()
        for i in range(warp, SIDE, 8):
            out[x + i, y + lane] = tile[lane, i]

    return transpose


data = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
check.show(build_transpose(SIDE), data)

# %% [markdown]
# Read the table from the top. `executed` counts instructions of warps, and the percentage says how large a
# line's share of them is. `LSU`, `FMA` and `ALU` are the units that they went to: for loads and stores, for
# products, and for other arithmetic. `sectors` are pieces of 32 bytes of global memory. `conflicts` are
# turns of the banks beyond what the words alone would take.
#
# Two lines look alike: one read and one write each, of 32 floats. They touch as many sectors. But one of
# them has all the conflicts. Here are the addresses of its first warp in shared memory: a *column* of the
# tile.

# %%
pictures.banks([4 * SIDE * lane for lane in range(SIDE)], title="a column of 32 x 32 floats")

# %% [markdown]
# The same name stands in the table as in Nsight Compute. `bank_conflicts` is
# `l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum`, so you can compare when you have a GPU.
#
# ## Exercise 1: predict it
#
# For a matrix of 96 x 96 floats: how many bank conflicts will the profile show? Think of one read of a
# column first, then of a block, then of all blocks.

# %% exercise="conflicts"
predicted = ...

# %%
check.conflicts(predicted, build_transpose)

# %% [markdown]
# ## Exercise 2: remove them
#
# The cure does not take a new kernel. Only the shape of the tile changes: it may have columns that nobody
# uses. How many columns does it need, so that a column's 32 floats lie in 32 banks? Take as few as you can.

# %% exercise="padding"
columns = ...

# %%
check.padding(columns, build_transpose)

# %% [markdown]
# Run the profile again with your number (`check.show(build_transpose(columns), data)`), and look at the same
# line: as many sectors, and no conflicts. In the head, look at the line *each unit alone*: `lsu`, the time that
# this unit alone would take, shrinks.
#
# ## Sectors
#
# Why the tile at all? Here is the transposition without it:

# %%
@nd.kernel(threads=8 * SIDE)
def direct(data: nd.float32[:, :], out: nd.float32[:, :]):
    lane, warp = nd.lane(), nd.warp()
    x, y = SIDE * cuda.blockIdx.x, SIDE * cuda.blockIdx.y
    for i in range(warp, SIDE, 8):
        value = data[y + i, x + lane]
        out[x + lane, y + i] = value


# %% [markdown]
# It is shorter, and it has no conflicts, for it has no shared memory. Memory comes in sectors of 32 bytes,
# though. A warp that touches one float of a sector moves all of it.
#
# ## Exercise 3: count the sectors
#
# How many sectors does *one* warp's read of `data` touch, and how many its write to `out`?

# %% exercise="sectors"
read = ...
write = ...

# %%
check.sectors(direct, read=read, write=write)

# %% [markdown]
# ## Time
#
# Counts say what a kernel costs each unit, not how long it takes: units work at the same time, and warps wait.
# "Each unit alone" in the head of a profile is a lower bound. With `time=True` the profile goes on. A *model*
# of an SM plays what the warps did once more in time: four schedulers, units that are busy, one path to shared
# memory and L1, memory's share of an SM. Here are the three transpositions:

# %%
three = {"tile of 32 columns": build_transpose(SIDE), "tile of 33 columns": build_transpose(SIDE + 1)}
larger = np.arange(256 * 256, dtype=np.float32).reshape(256, 256)
check.show_times({**three, "without a tile": direct}, larger)

# %% [markdown]
# The conflicts cost 0.4 us, and without them another unit is the busiest. But of these four microseconds an
# empty kernel alone takes 2.8. And the transposition without a tile is no slower than the best one, for this
# matrix is small: it lies in L2, where eight times the sectors cost little. So count first, and then ask
# whether it matters.
#
# Above all, the intervals overlap. Nine of ten recorded times lie in such an interval, of this package's own
# kernels; of yours nobody knows ([how far off](../bench/PREDICTED.md)). The model does not know what other
# kernels have left in the caches, nor what else runs beside your blocks.
#
# The time also tells *who waits for what*: `numba-deform profile` with `time=1` has a column for it, in Nsight
# Compute's names.
#
# ## In the shell
#
# `numba-deform profile` prints the same table for a variant or for a file of your own, and `--help` says
# how. For a large grid, `only=` names the blocks that run, and the rest is counted by them.
#
# What it counts is exact, and the time is not. So use the profile to find the line, and measure on a GPU before
# you say *faster*.
#
# ## What you know now
#
# - Instructions, wavefronts, conflicts and sectors follow from code and addresses. No GPU is needed for them.
# - A model turns them into microseconds with an interval. Where two intervals overlap, only a GPU decides.
# - Look for the line that has most of a column, not for the function that looks slow.
# - A column of a tile whose rows are 32 words lies in one bank. One word more in each row, and it lies in all.
# - A warp that writes a column of a matrix moves eight times what it writes.
#
# All kernels so far were Python. In [lesson 15](15_cuda.py) the engine judges one in CUDA C++.

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
# # 7 · How fast can it be
#
# *About 60 minutes. You have pipelines that are right, from lessons 4 to 6.*
#
# "Is it fast?" has no answer. "How far is it from what this machine allows, and what holds it?" has one. It
# takes three kinds of numbers: what the job needs **at least**, worked out with pencil and paper; what the
# machine does **at best**, measured by kernels that do nothing else (*ceilings*); and what your kernel
# **does**. A kernel at its ceiling is finished, however slow it is: only another way through the machine is
# faster.
#
# All measured numbers below come from files in `bench/results`. They were measured on one H200, and each file
# says how.

# %%

import math
import re
import textwrap

import numpy as np
from numba import cuda, int32, uint32, uint64
from numba.cuda import types

from numba_deform import preset
from numba_deform.attention.checks import check_problem
from numba_deform.compiler import i32, kernel, u64
from numba_deform.compiler.sass import inspect_kernel
from numba_deform.course import lessons
from numba_deform.course.bugs.base import poison, random_words
from numba_deform.course.lessons import lesson7 as check
from numba_deform.course.lessons import pictures
from numba_deform.course.lessons.results import results
from numba_deform.device.limits import limits_of
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import ld_global_v4, ld_shared_b32, shared_address, st_global_b32
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init
from numba_deform.device.tma import cp_async_bulk_tensor_3d, fence_proxy_tensormap_acquire_sys
from numba_deform.engines.tensormap import TensorMap, TensorMapArray
from numba_deform.kernels.budget import Budget, occupancy
from numba_deform.kernels.problem import Constants
from numba_deform.kernels.registry import variant
from numba_deform.measure.ceilings import PASSES

engine = lessons.engine()
print(f"kernels run on: {engine}")

measured = results("pipelines_seeds")
GHZ, SMS = measured["clock"]["ghz"], 132
print(measured["machine"]["gpu"], "at", GHZ, "GHz,", measured["date"][:10])

# %% [markdown]
# ## With pencil and paper
#
# The job is that of the preset `seeds`, the shape on which the experiments before this package were run: 48
# batches, 20522 queries, one head, 4 levels, 8 points, 32 channels of fp16. First the bytes that have to come
# from memory once, and go there once:

# %%
B, S, H, C, Q, L, P = 48, 19560, 1, 32, 20522, 4, 8
HALF = 2  # bytes of an fp16
samples = B * Q * H * L * P
value, out = B * S * H * C * HALF, B * Q * H * C * HALF
locations, weights = samples * 2 * HALF, samples * HALF
print(f"{samples:,} samples")
print(f"value {value / 1e6:.0f} + locations {locations / 1e6:.0f} + weights {weights / 1e6:.0f}")
print(f"+ output {out / 1e6:.0f} = {(value + locations + weights + out) / 1e6:.0f} MB")

# %% [markdown]
# 312 MB. A copy kernel moves that in 0.081 ms on the H200 (the ceiling `copy`). If that were all, the job
# would take a twelfth of a millisecond.
#
# It is not all. `value` is read from memory once, and then again and again from the caches: each sample wants
# the 2 × 2 pixels around it, 4 × 64 = **256 bytes**. Between the caches and the registers of an SM lies one
# *data path*, for L1, for shared memory and for shuffles together. It delivers **128 bytes a cycle**. What it
# does in one cycle is called a **wavefront**. So a sample costs two wavefronts, at the very best.

# %% [markdown]
# ## Exercise 1: the least time
#
# How many ms do `samples` samples of `bytes_per_sample` bytes keep the data paths busy, on a GPU of `sms` SMs
# at `ghz` GHz?


# %% exercise="data_path"
def data_path_ms(samples, bytes_per_sample, sms, ghz):
    return ...


# %%
check.data_path(data_path_ms)

# %% [markdown]
# ## Ceilings
#
# Paper is patient. Does the machine do it? `measure/ceilings.py` has kernels that fetch tiles and do nothing
# with them, times them in many configurations and keeps the fastest. Scaled to the tiles of our job:

# %%
LOCAL = "local(2)"  # the pattern: samples around their query, sigma 2 pixels
ceilings = {
    row["ceiling"]: row["median_ms"]
    for row in measured["ceilings"]
    if row["pattern"] == LOCAL and row["best"]
}
for name, ms in ceilings.items():
    cycles = ms * 1e-3 * GHZ * 1e9 * SMS / samples
    print(
        f"{name:7} {ms:.3f} ms" + (f" = {cycles:.2f} cycles of an SM for each sample" * (ms > 0.1))
    )

# %% [markdown]
# - `l1` and `shared`: 2.1 cycles a sample where paper says 2. The path is real, and it can be filled.
# - `copy`: 0.081 ms. Memory is not what holds this job: it could be three times as slow and nobody would
#   notice.
# - `tma`: **8 cycles a tile**. So long does an SM's TMA unit take to accept one instruction for a tile of 2 ×
#   2 pixels and bring it, whatever is done with it afterwards.
#
# And now some pipelines beside them:

# %%
rows = {row["variant"]: row for row in measured["rows"] if row["pattern"] == LOCAL}
NAMES = ("direct", "tile", "phase2", "tma", "tma-fastest", "window")
times = {name: rows[name]["median_ms"] for name in NAMES}
pictures.times(
    times,
    {f"ceiling: {name}": ms for name, ms in ceilings.items() if name != "launch"},
    title="seeds, local(2), NVIDIA H200",
)

# %% [markdown]
# ## Exercise 2: what holds it?
#
# A kernel *passes* several of these: a pipeline with a TMA instruction for each tile passes the TMA unit,
# then reads the tile from shared memory, and all of them read their locations from memory. Given its time,
# the names of what it passes and all ceilings in ms, return the name of the ceiling that binds it, and the
# share of its time that this ceiling explains: 1 is at the ceiling.


# %% exercise="bound"
def bound(milliseconds, passes, ceilings):
    name = ...
    share = ...
    return name, share


# %%
check.bound(bound)

# %% [markdown]
# The same from the package, for the kernels of the picture (`PASSES` says what the ways of fetching pass):

# %%
print(PASSES)
for name in NAMES:
    row = rows[name]
    print(
        f"{name:12} {row['median_ms']:.3f} ms, {row['bounded_by']:6} explains {row['closeness']:.0%}"
    )

# %% [markdown]
# Read this table before you tune anything.
#
# - `tma-fastest`: 98 %. It is at its ceiling. More stages, more warps, better arithmetic: nothing can make it
#   faster than 0.966 ms, and `direct`, with plain loads, takes half of that. **A TMA instruction for each
#   tile loses here, and no tuning helps.** It has to bring more with each instruction.
# - `phase2`, the pipeline of lesson 5 that is called `roles-shared` now: 55 %. Something else than the unit
#   holds it. Its timeline said what (`bench/NOTES.md`): two warps issue, at some 80 cycles a tile each, and
#   the consumers wait for 72 % of their time.
# - `window`: 80 % of the ceiling of shared memory, `direct`: 51 % of that of L1. Here there is still room,
#   and the rest of this lesson is about where it goes.

# %% [markdown]
# ## Why a window does not lose
#
# The unit needs 8 cycles for an instruction that brings a 2 × 2 tile. So bring a box from which *many*
# samples read. `window` groups the queries by cells of the picture and brings one box for each level around a
# cell. How many samples share one instruction? That is arithmetic on the locations, and the package does it
# for one batch of our job:

# %%
inputs = preset("seeds", batch=1, pattern=LOCAL).generate(seed=1)
problem = check_problem(
    inputs.value, inputs.spatial_shapes, inputs.level_start_index,
    inputs.sampling_locations, inputs.attention_weights,
)  # fmt: skip
chosen = variant("window")
fit = chosen.fit(problem, chosen.configure(problem.constants), inputs.sampling_locations)
pixels = sum(height * width for height, width in fit.config.boxes)
print("cells, height x width in pixels of the finest level:", fit.config.cell)
print("boxes of the four levels:", fit.config.boxes)
instructions = fit.items * L
print(f"{problem.samples / instructions:.0f} samples share one instruction")
brought = fit.items * pixels * C * HALF
print(f"{brought / problem.samples:.1f} bytes are brought for each sample, instead of 256,")
print(f"which are {brought / problem.samples / 128:.2f} wavefronts; {fit.outside:.2%} are outside")

# %% [markdown]
# Eight cycles divided by hundreds is nothing. And fewer bytes come: neighbours share their pixels. The
# price is paid elsewhere. Somebody has to group the queries; what lies outside its window takes a slow path
# of its own; and where samples are not near their query, windows lose by far (local(8): 2.21 ms against 0.53,
# `bench/NOTES.md`). The idea is not "TMA is fast". It is **one instruction, many samples**.
#
# What is left is the way from shared memory to the registers: the two wavefronts. They are two only if no
# bank is asked twice.

# %% [markdown]
# ## Banks
#
# Shared memory has 32 banks, each 4 bytes wide. Word `n` lies in bank `n % 32`. A wavefront takes one word
# out of each bank. If two lanes want two different words of one bank, they need two wavefronts: a **bank
# conflict**. If they want the *same* word, one will do.
#
# Here 32 lanes read down a column of an array whose rows have `pitch` words. Move the pitch:


# %%
def column(pitch):
    return pictures.banks([4 * pitch * lane for lane in range(32)], title=f"pitch {pitch}")


lessons.slider(column, start={"pitch": 4}, pitch=range(0, 34))

# %% [markdown]
# ## Exercise 3: predict the wavefronts
#
# Without moving the slider there: how many wavefronts does the load take for these pitches?

# %% exercise="strides"
predicted = {1: ..., 8: ..., 12: ..., 33: ...}

# %%
check.strides(predicted)

# %% [markdown]
# ## Lanes: four or eight to a row
#
# Wide loads are cheaper in instructions: 16 bytes a lane. Then a wavefront serves 8 lanes, and a warp's load
# takes four of them at best.
#
# A pixel of 32 channels in fp16 has 64 bytes, four lanes of 16. The left and the right pixel of a tile lie
# next to each other, 128 bytes. So with **eight lanes a row** one load takes both, and fills all banks
# exactly once, wherever the tile begins:

# %%
PITCH = check.PITCH  # pixels of a line of the window
tiles = check.random_tiles(rows=4, seed=3)
addresses = [64 * (y * PITCH + x) + 16 * lane for x, y in tiles for lane in range(8)]
pictures.banks(addresses, 16, title="8 lanes a row: left and right pixel at once")

# %% [markdown]
# Four rows, four wavefronts, and a second load for the lower line: two a sample.
#
# But eight lanes want to know where the sample lies and what it weighs, and somebody has to tell each of
# them: by a shuffle, or by a read of shared memory, and both go through the *same* data path. With **four
# lanes a row** there are twice as many samples for each such wavefront. A lane then takes the left pixel with
# one load and the right one with another. This is how it goes:

# %%
tiles = check.random_tiles(seed=1)
print("x of the tiles' left pixels:", [x for x, _ in tiles])


def left_first(x, row):
    return 0


addresses = check.column_addresses(tiles, left_first, step=0, line=0)
pictures.banks(addresses, 16, title="4 lanes a row, all read the left pixel first")

# %% [markdown]
# A pixel is half of the banks: one at an even place lies in banks 0 to 15, one at an odd place in 16 to 31.
# Two neighbouring rows share a wavefront if one of them is even and the other odd. If not, they take two.
# Tiles lie anywhere, so it happens half of the time:

# %%
print(f"{check.wavefronts_per_sample(left_first):.2f} wavefronts a sample, and 2 would do")

# %% [markdown]
# For `direct`, which loads from L1, it was measured: four lanes a row took 0.515 to 0.537 ms, eight 0.463
# (`bench/NOTES.md`). The fewer shuffles did not make up for the conflicts.
#
# ## Exercise 4: even and odd
#
# A tile has an even column and an odd one, always. And in which order a row reads its two columns is its own
# affair: both get read, and the sum is the same. `x` is the place of the tile's left column, `row` the number
# of the row in its warp. Which column does it read first, the left (0) or the right (1)?


# %% exercise="column_order"
def first_column(x, row):
    return ...


# %%
check.column_order(first_column)

# %% [markdown]
# This one line is in `kernels/window_rows.py` too (`columns`). It needs windows of an even width, so that a
# pixel and the one below it have the same parity; `kernels/window_fit.py` rounds the width up. What the kernel
# has in all was counted: 2.37 wavefronts a sample, at 93 % of the path's peak (`bench/NOTES.md`). Is that its
# time?

# %%
paper = 2.366 * samples / SMS / (GHZ * 1e6)
print(f"2.37 wavefronts: {paper:.3f} ms; at 92.6 %: {paper / 0.926:.3f} ms")
print(f"measured: {times['window']:.3f} ms")

# %% [markdown]
# That is its time, within 3 %. To make it faster, save wavefronts, or have one start in more of the cycles.
#
# ## Exercise 5: rows and columns
#
# Sometimes a tile is read by rows *and* by columns. Take 8 rows of 128 bytes, each of 8 chunks of 16. Packed,
# a row takes one wavefront and a column eight: its chunks all lie in the same four banks. Give each chunk a
# place, a byte from 0 on, so that both take one, and so that **TMA can write it**.


# %% exercise="swizzle"
def place(row, chunk):
    return ...


# %%
check.swizzle(place)

# %% [markdown]
# ## Budget: who is resident
#
# A wavefront starts only if some warp is ready to ask for it. So an SM wants many warps, and each block takes
# its part of four supplies: registers, shared memory, warps, and places for blocks. `occupancy` does the
# arithmetic, and `numba-deform budget` does it for all variants. Here is `tma` with more and more stages, in
# blocks of 256 threads and 80 registers, beside the measured time:

# %%
constants, limits = Constants(L, P, C), limits_of("sm_90a")
for stages in range(2, 9):
    config = variant("tma").configure(constants, stages=stages)
    budget = Budget.of(config, constants, limits, registers=80)
    held = budget.occupancy
    row = rows["tma" if stages == 2 else f"tma stages={stages}"]
    print(
        f"{stages} stages {budget.total:7,} bytes: {held.blocks} blocks, {held.warps:2} warps, limited by "
        f"{' and '.join(held.limiters):27} {row['median_ms']:.2f} ms"
    )

# %% [markdown]
# The steps in time are the steps in blocks. From 4 to 5 stages the third block goes, and the time grows by 17
# %; at 8 the second one goes. More stages than the latency needs are not "a bit of reserve": they are warps
# that cannot come in.
#
# ## Exercise 6: how many blocks fit?
#
# An SM of `sm_90` has four quarters of 16384 registers, 228 KB of shared memory, room for 64 warps and 32
# blocks. A warp takes its registers from one quarter, in units of 8 for each thread. A block takes 1 KB of
# shared memory more than it asks for. Your block has 256 threads with 81 registers each, and 34,000 bytes.

# %% exercise="blocks"
blocks = ...

# %%
check.blocks(blocks)

# %% [markdown]
# ## Reading what the compiler made
#
# Registers are the compiler's choice, and no GPU is needed to see it. Take a kernel that brings one tile:

# %%
TILE = 2 * 2 * 32 * 2
WORDS = TILE // 4


@kernel(threads=32)
def one_tile(map: u64, out: u64, x: i32, y: i32):
    tile = cuda.shared.array(TILE, types.uint8, alignment=128)
    barrier = cuda.shared.array(1, types.uint64)
    tile_at, full = shared_address(tile), shared_address(barrier)
    lane = int32(cuda.threadIdx.x)
    if lane == 0:
        mbarrier_init(full, uint32(1))
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(map)
        mbarrier_arrive_expect_tx(full, uint32(TILE))
        cp_async_bulk_tensor_3d(tile_at, map, int32(0), x, y, full)
    cuda.syncwarp()
    mbarrier_wait(full, int32(0))
    for i in range(lane, WORDS, 32):
        st_global_b32(out + uint64(4 * i), ld_shared_b32(tile_at + uint32(4 * i)))


features = lessons.feature_map(height=20, width=24, channels=32)
maps = TensorMapArray([TensorMap.of(features, box=(32, 2, 2))])
out = np.zeros((2, 2, 32), np.float16)
print(lessons.run(one_tile, 1, (maps, out, 5, 7), engine=engine))
print("right:", np.array_equal(out, features[7:9, 5:7]))

# %% [markdown]
# **PTX** is what we wrote, nearly: each intrinsic is the text of one instruction. Here are the lines that you
# know:

# %%
one = inspect_kernel(one_tile)
for instruction in re.findall(r"((?:mbarrier|cp\.async|fence)\.[^;]*);", one.ptx):
    print(textwrap.fill(instruction, 100, subsequent_indent="    "))

# %% [markdown]
# **SASS** is what the GPU runs. `instructions` counts it by opcode:

# %%
print(f"{one.registers} registers, {one.shared} bytes of shared memory")
counts = ", ".join(f"{count} {name}" for name, count in one.instructions.items())
print(textwrap.fill(counts, 100))

# %% [markdown]
# A few to know by sight:
#
# | opcode | what it is |
# |---|---|
# | `UTMALDG` | a TMA load; `U`: its operands are in *uniform* registers, one for the whole warp |
# | `SYNCS` | everything on an mbarrier: init, arrive, the try that a wait is made of |
# | `LDS`, `STS` | load and store of shared memory: these are your wavefronts |
# | `LDG`, `STG` | the same of global memory |
# | `SHFL` | a shuffle, and a wavefront too |
# | `LDL`, `STL` | *local* memory: registers that did not fit (a **spill**), or an array with a variable index |
# | `ELECT`, `R2UR`, `BRA` around a `UTMALDG` | a loop over the lanes, because each may have its own operands |
#
# The last one is in our kernel too. The compiler does not know that only one lane comes here, so it lets the
# lanes take turns until none is left:

# %%
lines = [line.split("/")[-1].strip(" *") for line in one.sass.splitlines()]
at = next(i for i, line in enumerate(lines) if "UTMALDG" in line)
print("\n".join(lines[at - 4 : at + 4]))

# %% [markdown]
# For one lane it costs little. Where every lane asks for a tile of its own the loop really runs, and that is
# why few producer warps are slow: 81 cycles a tile in one warp (`bench/results/timeline_phase2.json`).
#
# And the spill: a register that did not fit goes through memory, each time. Here is one kernel twice, once
# with as many registers as it likes, and once where `min_blocks=8` asks for eight resident blocks, which
# leaves 32 registers to a thread:


# %%
def sums(min_blocks):
    @kernel(threads=256, min_blocks=min_blocks)
    def sum_of_loads(data: u64, out: u64):
        tid = int32(cuda.threadIdx.x)
        parts = cuda.local.array((12, 4), types.uint32)
        for i in range(12):
            words = ld_global_v4(data + uint64(16 * (tid + 256 * i)))
            for k in range(4):
                parts[i, k] = words[k]
        cuda.syncthreads()  # keeps the loads above it
        total = uint32(0)
        for i in range(12):
            for k in range(4):
                total = uint32(total * uint32(3) + parts[i, k])
        st_global_b32(out + uint64(4 * tid), total)

    return sum_of_loads


for wish in (1, 8):
    form = inspect_kernel(sums(wish))
    held = occupancy(256, form.registers, form.shared, limits)
    print(
        f"min_blocks={wish}: {form.registers} registers, {form.spill_stores} spill stores, "
        f"{form.spill_loads} spill loads; {held.blocks} blocks on an SM"
    )

# %% [markdown]
# More blocks, and each of them goes through memory for numbers that it had in its hands. Which is better only
# a measurement says. Look for `LDL` and `STL` before you believe that a change of registers changed registers
# only.
#
# ## What you know now
#
# - First the paper: bytes from memory, wavefronts of the data path, instructions of the TMA unit. The slowest
#   one is the bound.
# - Then the ceiling: what a kernel that does only this reaches. Near it, change the way and not the code.
# - One TMA instruction a tile costs 8 cycles, where the tile's bytes cost 2. Windows share the instruction.
# - A wavefront takes one word of each bank. Order, padding and swizzle are free, conflicts are not.
# - Blocks leave in steps: one register or one stage too many, and a block is gone.
# - SASS tells what was really made: `LDL`, `STL`, loops around `UTMALDG`.
#
# The whole story, with what did not help, is in [`bench/NOTES.md`](../bench/NOTES.md). Now you have all of
# it: boxes, barriers, stages, roles, how to find faults, and what to expect. [Lesson 8](08_half_a_variant.py)
# and [lesson 9](09_your_variant.py) are yours: a pipeline of your own, checked, drawn and timed.

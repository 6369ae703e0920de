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
# *About 55 minutes. You have correct pipelines, from lessons 4 to 6.*
#
# "Is it fast?" has no answer. "How far is it from what this machine allows, and what limits it?" has one.
# You need three kinds of numbers. What the job needs **at least** is worked out on paper. What the machine
# can do **at best** is measured by kernels that do nothing else (*ceilings*). And you have to know what
# your kernel **does**. A kernel at its ceiling is finished, however slow it is. Only another way through
# the machine can be faster.
#
# All times below were measured on one H200. They come from files in `bench/results`, and each file says how
# it was made.

# %%

import math
import re
import textwrap

import numpy as np
from numba import cuda, uint32

import numba_deform as nd
from numba_deform.attention.checks import check_problem
from numba_deform.compiler.sass import inspect_kernel
from numba_deform.course import lessons
from numba_deform.course.lessons import lesson7 as check
from numba_deform.course.lessons import pictures
from numba_deform.course.lessons.results import results
from numba_deform.device.limits import limits_of
from numba_deform.kernels.budget import Budget, occupancy
from numba_deform.kernels.problem import Constants
from numba_deform.kernels.registry import current_name, variant
from numba_deform.measure.ceilings import PASSES

engine = lessons.engine()
print(f"kernels run on: {engine}")

measured = results("pipelines_seeds")
GHZ, SMS = measured["clock"]["ghz"], 132
print(measured["machine"]["gpu"], "at", GHZ, "GHz,", measured["date"][:10])

# %% [markdown]
# ## On paper
#
# The job is the preset `seeds`: 48 batches, 20522 queries, one head, 4 levels, 8 points, and 32 channels of
# fp16. First count the bytes that must be read from memory once, or written to it once:

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
# 312 MB. A copy kernel moves that many bytes in 0.081 ms on the H200 (the ceiling `copy`). If that were
# all, the job would take a twelfth of a millisecond.
#
# It is not all. `value` is read from memory once, and then many times from the caches. Each sample needs
# the 2 × 2 pixels around it: 4 × 64 = **256 bytes**. Between the caches and the registers of an SM lies one
# *data path*, which serves L1, shared memory and shuffles. It delivers **128 bytes a cycle**. What it does
# in one cycle is called a **wavefront**. So a sample costs at least two wavefronts.

# %% [markdown]
# ## Exercise 1: the least time
#
# For how many ms do `samples` samples of `bytes_per_sample` bytes keep the data paths busy, on a GPU with
# `sms` SMs at `ghz` GHz?


# %% exercise="data_path"
def data_path_ms(samples, bytes_per_sample, sms, ghz):
    return ...


# %%
check.data_path(data_path_ms)

# %% [markdown]
# ## Ceilings
#
# Does the machine agree with the paper? `measure/ceilings.py` has kernels that fetch tiles and do nothing
# with them. It times them in many configurations and keeps the fastest. Here are its results, scaled to the
# tiles of our job:

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
# - `l1` and `shared`: 2.1 cycles a sample, where the paper says 2. The data path can really be filled.
# - `copy`: 0.081 ms. Memory does not limit this job. It could be three times as slow without a difference.
# - `tma`: **8 cycles a tile**. The TMA unit of an SM needs them for each instruction that brings a 2 × 2
#   tile, whatever happens to the tile afterwards.
#
# Now compare some pipelines:

# %%
rows = {current_name(row["variant"]): row for row in measured["rows"] if row["pattern"] == LOCAL}
NAMES = ("direct", "tile", "roles-shared", "tma", "tma-fastest", "window")
times = {name: rows[name]["median_ms"] for name in NAMES}
pictures.times(
    times,
    {f"ceiling: {name}": ms for name, ms in ceilings.items() if name != "launch"},
    title="seeds, local(2), NVIDIA H200",
)

# %% [markdown]
# ## Exercise 2: what limits it?
#
# A kernel *passes* several ceilings. A pipeline with a TMA instruction for each tile passes the TMA unit
# and then reads the tile from shared memory, and every kernel reads its locations from memory. You get a
# kernel's time, the names of what it passes, and all ceilings in ms. Return the name of the ceiling that
# limits it, and the share of its time that this ceiling explains. At the ceiling the share is 1.


# %% exercise="bound"
def bound(milliseconds, passes, ceilings):
    name = ...
    share = ...
    return name, share


# %%
check.bound(bound)

# %% [markdown]
# The package answers the same question for the kernels of the picture. (`PASSES` says what each way of
# fetching passes.)

# %%
for fetch, passed in PASSES.items():
    print(f"fetch={fetch}: passes {' and '.join(passed)}")
for name in NAMES:
    row = rows[name]
    print(
        f"{name:12} {row['median_ms']:.3f} ms, {row['bounded_by']:6} explains {row['closeness']:.0%}"
    )

# %% [markdown]
# Read this table before you tune anything.
#
# - `tma-fastest`: 98 %. It is at its ceiling. More stages, more warps, better arithmetic: nothing can push
#   it below 0.966 ms, and `direct`, with plain loads, takes half of that. **One TMA instruction for each
#   tile loses here, and no tuning helps.** Each instruction has to bring more.
# - `roles-shared`, from lesson 5: 55 %. Something other than the unit limits it. Lesson 5 found out what:
#   two warps issue, at some 80 cycles a tile each.
# - `window`: 80 % of the ceiling of shared memory. `direct`: 51 % of that of L1. Both could become faster.
#   The rest of this lesson asks where their time goes.

# %% [markdown]
# ## Why a window wins
#
# The unit needs 8 cycles for an instruction that brings a 2 × 2 tile. So bring a box from which *many*
# samples read. `window` groups the queries by cells of the picture. Around each cell it brings one box for
# each level. How many samples share one instruction? Here is the count for one batch of our job:

# %%
inputs = nd.preset("seeds", batch=1, pattern=LOCAL).generate(seed=1)
problem = check_problem(
    inputs.value, inputs.spatial_shapes, inputs.level_start_index,
    inputs.sampling_locations, inputs.attention_weights,
)  # fmt: skip
chosen = variant("window")
fit = chosen.fit(problem, chosen.configure(problem.constants))
pixels = sum(height * width for height, width in fit.config.boxes)
print("cells, height x width in pixels of the finest level:", fit.config.cell)
print("boxes of the four levels:", fit.config.boxes)
instructions = fit.items * L
print(f"{problem.samples / instructions:.0f} samples share one instruction")
brought = fit.items * pixels * C * HALF
print(f"{brought / problem.samples:.1f} bytes are brought for each sample, instead of 256,")
print(f"which are {brought / problem.samples / 128:.2f} wavefronts; {fit.outside:.2%} are outside")

# %% [markdown]
# Eight cycles divided by hundreds is nothing. Fewer bytes come, too, because neighbours share their pixels.
# The price is paid elsewhere. Somebody has to group the queries. A sample outside its window takes a slow
# path of its own. And if samples are not near their query, windows lose by far: with local(8), 2.21 ms
# against 0.53 (`bench/NOTES.md`). The lesson is not "TMA is fast". It is **one instruction, many samples**.
#
# What is left is the way from shared memory to the registers: the two wavefronts. They are only two if no
# bank is needed twice.

# %% [markdown]
# ## Banks
#
# Shared memory has 32 banks, each 4 bytes wide. Word `n` lies in bank `n % 32`. A wavefront takes one word
# from each bank. If two lanes need two different words of one bank, it takes two wavefronts: a **bank
# conflict**. If they need the *same* word, one is enough.
#
# Here 32 lanes read down a column of an array whose rows have `pitch` words. Change the pitch:


# %%
def column(pitch):
    return pictures.banks([4 * pitch * lane for lane in range(32)], title=f"pitch {pitch}")


few = [0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 31, 32, 33]
lessons.slider(column, start={"pitch": 4}, pitch=range(0, 34), page={"pitch": few})

# %% [markdown]
# ## Exercise 3: predict the wavefronts
#
# How many wavefronts does this load take for the following pitches? Predict before you move the slider
# there.

# %% exercise="strides"
predicted = {1: ..., 8: ..., 12: ..., 33: ...}

# %%
check.strides(predicted)

# %% [markdown]
# ## Lanes: four or eight to a row
#
# A *row* is one query's result, and several lanes compute it together. Wide loads of 16 bytes a lane need
# fewer instructions. One wavefront then serves 8 lanes, so a warp's load takes at least four.
#
# A pixel of 32 channels in fp16 has 64 bytes: four lanes of 16. The left and the right pixel of a tile are
# neighbours in memory, 128 bytes together. With **eight lanes a row** one load takes both of them. It uses
# every bank exactly once, wherever the tile begins:

# %%
PITCH = check.PITCH  # pixels of a line of the window
tiles = check.random_tiles(rows=4, seed=3)
addresses = [64 * (y * PITCH + x) + 16 * lane for x, y in tiles for lane in range(8)]
pictures.banks(addresses, 16, title="8 lanes a row: left and right pixel at once")

# %% [markdown]
# Four rows take four wavefronts, and the lower line takes a second load. That makes two wavefronts a
# sample.
#
# But all eight lanes need to know where the sample lies and what it weighs. They learn it by a shuffle or
# from shared memory, and both use the *same* data path. With **four lanes a row**, each such wavefront
# serves twice as many samples. A lane then reads the left pixel with one load and the right pixel with
# another:

# %%
tiles = check.random_tiles(seed=1)
print("x of the tiles' left pixels:", [x for x, _ in tiles])


def left_first(x, row):
    return 0


addresses = check.column_addresses(tiles, left_first, step=0, line=0)
pictures.banks(addresses, 16, title="4 lanes a row, all read the left pixel first")

# %% [markdown]
# A pixel fills half of the banks. With an even number it lies in banks 0 to 15, with an odd number in banks
# 16 to 31. Two neighbouring rows share a wavefront if one reads an even pixel and the other an odd one.
# Otherwise they take two. Tiles lie anywhere, so this happens half of the time:

# %%
print(f"{check.wavefronts_per_sample(left_first):.2f} wavefronts a sample, and 2 would do")

# %% [markdown]
# Measurements of `direct`, which loads from L1, agree: 0.515 to 0.537 ms with four lanes a row, and 0.463
# with eight (`bench/NOTES.md`). Four lanes need fewer shuffles, but the conflicts cost more.
#
# ## Exercise 4: even and odd
#
# Every tile has an even column and an odd one. Each row is free to choose which one it reads first: it
# reads both, and the sum is the same. `x` is the tile's left column, and `row` is the number of the row in
# its warp. Which column does the row read first, the left (0) or the right (1)?


# %% exercise="column_order"
def first_column(x, row):
    return ...


# %%
check.column_order(first_column)

# %% [markdown]
# `kernels/window_rows.py` contains this one line, too (`columns`). It needs windows of an even width, so
# that a pixel and the one below it have the same parity. The kernel's wavefronts were counted: 2.37 a
# sample, at 93 % of the data path's peak (`bench/NOTES.md`). Does that explain its time?

# %%
paper = 2.366 * samples / SMS / (GHZ * 1e6)
print(f"2.37 wavefronts: {paper:.3f} ms; at 92.6 %: {paper / 0.926:.3f} ms")
print(f"measured: {times['window']:.3f} ms")

# %% [markdown]
# Within 3 %, it does. To make the kernel faster, save wavefronts, or start one in more of the cycles.
#
# ## Exercise 5: rows and columns
#
# Sometimes a tile is read by rows *and* by columns. Take 8 rows of 128 bytes, each of 8 chunks of 16. If
# they are packed, a row takes one wavefront and a column takes eight, because all its chunks lie in the
# same four banks. Give each chunk a place, a byte from 0 on. Rows and columns should both take one
# wavefront, and **TMA must be able to write it**.


# %% exercise="swizzle"
def place(row, chunk):
    return ...


# %%
check.swizzle(place)

# %% [markdown]
# ## Budget: how many blocks fit
#
# A wavefront starts only if some warp is ready to ask for it. So an SM needs many warps. Each block takes
# its part of four supplies: registers, shared memory, warps, and places for blocks. `occupancy` does this
# arithmetic, and `numba-deform budget` does it for all variants. Here is `tma` with more and more stages,
# in blocks of 256 threads with 80 registers, beside the measured time:

# %%
constants, limits = Constants(L, P, C), limits_of("sm_90a")
for stages in range(2, 9):
    config = variant("tma").configure(constants, stages=stages)
    budget = Budget.of(config, constants, limits, registers=80)
    held = budget.occupancy
    row = rows["tma" if stages == 2 else f"tma stages={stages}"]
    print(
        f"{stages} stages {budget.total:7,} bytes: {held.blocks} blocks, {held.warps:2} warps, limit: "
        f"{' and '.join(held.limiters):27} {row['median_ms']:.2f} ms"
    )

# %% [markdown]
# The time jumps when a block no longer fits. From 4 to 5 stages the third block goes, and the time grows by
# 17 %. With 8 stages the second one goes. Extra stages are not "a bit of reserve". They cost warps.
#
# ## Exercise 6: how many blocks fit?
#
# An SM of `sm_90` has four quarters with 16384 registers each, 228 KB of shared memory, and room for 64
# warps and 32 blocks. A warp takes its registers from one quarter, in units of 8 for each thread. A block
# takes 1 KB of shared memory more than it asks for. Your block has 256 threads with 81 registers each, and
# 34,000 bytes.

# %% exercise="blocks"
blocks = ...

# %%
check.blocks(blocks)

# %% [markdown]
# ## Reading what the compiler made
#
# The compiler chooses the registers, and you need no GPU to see its choice. Take a kernel that brings one
# tile:

# %%
TILE_BYTES = 4 * 2 * 32  # two rows of 32 words: the 64 float16 of two pixels
shared = nd.Shared(tile=nd.Array((2, 32), nd.uint32, alignment=128), full=nd.Barrier(1))


@nd.kernel(threads=32, shared=shared)
def one_tile(map: nd.u64, out: nd.uint32[:, :], x: nd.i32, y: nd.i32):
    shared.init()
    tile, lane = shared.tile.view(), nd.lane()
    if lane == 0:
        nd.fence_proxy_tensormap_acquire_sys(map)
        shared.full.expect(TILE_BYTES)
        nd.cp_async_bulk_tensor_3d(shared.tile.at(0), map, 0, x, y, shared.full.at())
    cuda.syncwarp()
    shared.full.wait(0)
    for row in range(2):
        out[row, lane] = tile[row, lane]


features = lessons.feature_map(height=20, width=24, channels=32)
maps = nd.TensorMapArray([nd.TensorMap.of(features, box=(32, 2, 2))])
out = np.zeros((2, 32), np.uint32)
print(lessons.run(one_tile, 1, (maps, out, 5, 7), engine=engine))
print("right:", np.array_equal(out.view(np.float16), features[7:9, 5:7].reshape(2, 64)))

# %% [markdown]
# **PTX** is nearly what we wrote: each intrinsic is the text of one instruction. Here are the lines that
# you know:

# %%
one = inspect_kernel(one_tile)
for instruction in re.findall(r"((?:mbarrier|cp\.async|fence)\.[^;]*);", one.ptx):
    print(textwrap.fill(instruction, 100, subsequent_indent="    "))

# %% [markdown]
# **SASS** is what the GPU runs. `instructions` counts it by opcode:

# %%
print(f"{one.registers} registers, {shared.bytes} bytes of shared memory")
counts = ", ".join(f"{count} {name}" for name, count in one.instructions.items())
print(textwrap.fill(counts, 100))

# %% [markdown]
# A few opcodes are worth knowing:
#
# | opcode | what it is |
# |---|---|
# | `UTMALDG` | a TMA load; `U`: its operands are in *uniform* registers, one for the whole warp |
# | `SYNCS` | everything on an mbarrier: init, arrive, and the test inside a wait |
# | `LDS`, `STS` | load and store of shared memory: these are your wavefronts |
# | `LDG`, `STG` | the same for global memory; `LD`, `ST` where it does not know the memory, as of `out` |
# | `SHFL` | a shuffle, which is a wavefront too |
# | `LDL`, `STL` | *local* memory: registers that did not fit (a **spill**), or an array with a variable index |
# | `ELECT`, `R2UR`, `BRA` around a `UTMALDG` | a loop over the lanes, because each may have its own operands |
#
# Our kernel has this loop, too. The compiler does not know that only one lane comes here, so it lets the
# lanes take turns until none is left:

# %%
lines = [line.split("/")[-1].strip(" *") for line in one.sass.splitlines()]
at = next(i for i, line in enumerate(lines) if "UTMALDG" in line)
print("\n".join(lines[at - 4 : at + 4]))

# %% [markdown]
# For one lane this costs little. Where every lane asks for its own tile, the loop really runs, and few
# producer warps are slow: 81 cycles a tile in one warp (`bench/results/timeline_phase2.json`).
#
# Now the spill. A register that does not fit goes through memory, every time. Here is one kernel twice:
# once with as many registers as it likes, and once with `min_blocks=8`. That asks for eight blocks on an
# SM, and leaves 32 registers for each thread:


# %%
def sums(min_blocks):
    @nd.kernel(threads=256, min_blocks=min_blocks)
    def sum_of_loads(data: nd.u64, out: nd.uint32[:]):
        tid, parts = cuda.threadIdx.x, cuda.local.array((12, 4), uint32)
        for i in range(12):
            words = nd.ld_global_v4(nd.global_at(data, tid + 256 * i, 16))  # four words at once
            for k in range(4):
                parts[i, k] = words[k]
        cuda.syncthreads()  # keeps the loads above it
        total = uint32(0)
        for i in range(12):
            for k in range(4):
                total = total * 3 + parts[i, k]
        out[tid] = total

    return sum_of_loads


for wish in (1, 8):
    form = inspect_kernel(sums(wish))
    held = occupancy(256, form.registers, form.shared, limits)
    print(
        f"min_blocks={wish}: {form.registers} registers, {form.spill_stores} spill stores, "
        f"{form.spill_loads} spill loads; {held.blocks} blocks on an SM"
    )

# %% [markdown]
# The second kernel has more blocks, and each of them goes through memory for numbers that it had in
# registers. Only a measurement tells which is better. So look for `LDL` and `STL` whenever you change the
# number of registers.
#
# ## What you know now
#
# - First the paper: bytes from memory, wavefronts of the data path, instructions of the TMA unit. The
#   slowest of them is the bound.
# - Then the ceiling: what a kernel reaches that does only this. Near it, choose another way. Better code
#   does not help.
# - One TMA instruction a tile costs 8 cycles, and the tile's bytes cost 2. A window shares the instruction.
# - A wavefront takes one word of each bank. Order, padding and swizzle are free. Conflicts are not.
# - Blocks go in steps: one register or one stage too many, and a block no longer fits.
# - SASS tells what was really made: `LDL`, `STL`, loops around `UTMALDG`.
#
# [`bench/NOTES.md`](../bench/NOTES.md) tells the whole story, with everything that did not help. Now you
# know boxes, barriers, stages and roles, how to find faults, and what to expect. [Lesson
# 8](08_half_a_variant.py) and [lesson 9](09_your_variant.py) are yours: a pipeline of your own, checked, drawn
# and timed.

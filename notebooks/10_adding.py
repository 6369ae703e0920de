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
# # 10 · Adding by TMA
#
# *About 55 minutes. You know barriers ([lesson 2](02_barrier.py)), stages ([lesson 4](04_stages.py)) and
# shared memory by name ([lesson 8](08_half_a_variant.py)). You need no GPU.*
#
# So far the copy engine has copied. It can also **add**: it takes a tile from shared memory and adds it to
# what is in global memory, number by number. The threads go on with something else.
#
# Deformable attention needs this when it is trained. Forward, a sample *reads* four pixels. Backward, the
# gradient of each sample has to be *added* to these four pixels. That is called a **scatter**, and it is
# slow. You will see why, in numbers that you count yourself, and what helps: add up on the chip first, and
# then send one large tile.

# %%
import math

import numpy as np
from numba import cuda

import numba_deform as nd
from numba_deform.course import lessons
from numba_deform.course.lessons import lesson10 as check
from numba_deform.course.lessons import pictures

engine = lessons.engine()
print(f"kernels run on: {engine}")

# %% [markdown]
# ## A sum without an addition
#
# Eight warps add eight rows of numbers to one row of sums. No thread ever sees a number. One lane of each warp
# asks for a row; when all rows are there, it asks the copy engine to add its row to `out`. An `nd.Ring` is one
# ring for the whole block. `full=ROWS`: its full barrier expects eight arrivals, the `expect` of each warp.

# %%
ROWS, COLUMNS = 8, 32
rows_layout = nd.Shared(
    rows=nd.Array((ROWS, COLUMNS), nd.float32, alignment=128),
    ring=nd.Ring(1, full=ROWS),
)


@nd.kernel(threads=32 * ROWS, shared=rows_layout)
def add_rows(data: nd.u64, out: nd.u64):
    rows_layout.init()
    ring, bytes = rows_layout.ring, rows_layout.rows.stride
    state, row = ring.start(), rows_layout.rows.at(nd.warp())
    if nd.lane() == 0:
        ring.expect(state, bytes)
        nd.cp_async_bulk_load(row, nd.global_at(data, nd.warp(), bytes), bytes, ring.full(state))
        ring.wait(state)
        nd.cp_reduce_async_bulk_add_f32(out, row, bytes)
        nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group_read(0)


rows = np.random.default_rng(1).integers(1, 9, (ROWS, COLUMNS)).astype(np.float32)
sums = np.zeros(COLUMNS, np.float32)
print(lessons.run(add_rows, 1, (rows, sums), engine=engine))
print("the sums of the columns:", np.array_equal(sums, rows.sum(axis=0)))

# %% [markdown]
# `cp_reduce_async_bulk_add_f32(to, from, bytes)` is called a **reduction**. Its name says what it does
# (`add`) and to what (`f32`). There are others: integers, fp16, minimum, maximum. Addresses and bytes are
# multiples of 16, as for any bulk copy.
#
# A load ends at a barrier. A reduction has none: nobody in this block waits for its numbers. It ends in a
# **bulk group** of the thread that issued it.
#
# | call | what it says |
# |---|---|
# | `commit_group()` | what I have issued so far is one group |
# | `wait_group_read(n)` | return when at most `n` of my groups are still *reading* shared memory |
# | `wait_group(n)` | return when at most `n` of my groups are still at work: the others have also *written* |
#
# (`cp_async_bulk_` stands before each.) Without the wait, the block could end, and its shared memory could go
# to another block, while the copy engine still reads it.
#
# Nothing orders the eight reductions. It need not: each number is added in one step, which nobody can get
# between. `watch` runs a kernel on the CPU engine and keeps the sums after each reduction. Step through it,
# in two schedules. The rows land in different orders, and the end is the same.

# %%
lessons.cpu_only("Watching sums")
watched = {}
for schedule, landing in ((0, "late"), (2, "random")):
    sums = np.zeros(COLUMNS, np.float32)
    watched[schedule] = check.watch(add_rows, 1, (rows, sums), sums, seed=schedule, landing=landing)


def look(schedule, step):
    return check.landed(watched[schedule], step, f"schedule {schedule}")


lessons.slider(look, start={"step": 3}, schedule=list(watched), step=range(ROWS + 1))

# %% [markdown]
# ## Threads write, the copy engine reads
#
# In most kernels threads make the tile. Take a **histogram**: how often does each grey value come? A block
# counts its own part of the picture in shared memory, in 64 bins. Then the bins go out, as one reduction of
# 256 bytes.
#
# Now there are two ways into shared memory, as at the end of lesson 6. Threads go one way, the copy engine
# goes another (PTX calls them *proxies*). What a thread has written on the first way need not be visible on
# the second. So there is an order to keep:
#
# 1. every thread writes its numbers;
# 2. every thread calls `fence_proxy_async()`: *my writes come before what the copy engine does next*;
# 3. all threads meet: `cuda.syncthreads()`;
# 4. one thread issues, commits and waits.
#
# The fence may also stand behind step 3, in the one thread that issues: there it lies on the same path. In
# `add_rows` there was no fence, as no thread had written.


# %%
BINS, EACH = 64, 16
bins_layout = nd.Shared(bins=nd.Array(BINS, nd.uint32))


def build_histogram(leave):
    @nd.kernel(threads=BINS, shared=bins_layout)
    def histogram(data: nd.uint8[:, :], out: nd.u64):
        bins_layout.init()
        bins, i = bins_layout.bins.view(), cuda.threadIdx.x
        bins[i] = 0
        cuda.syncthreads()
        for k in range(EACH):
            cuda.atomic.add(bins, data[cuda.blockIdx.x, EACH * i + k] // 4, 1)
        leave(out, bins_layout.bins.at(0), bins_layout.bins.nbytes)

    return histogram


# %% [markdown]
# ## Exercise 1: leave
#
# Write how the histogram leaves the block. All 64 threads call `leave` after their last count. When the
# thread that issued returns, the tile has been read. The instruction is `nd.cp_reduce_async_bulk_add_u32`.


# %% exercise="leave"
@nd.function
def leave(out, tile, bytes):
    """Add ``bytes`` bytes at shared address ``tile`` to ``out``; called by all threads."""
    ...


# %%
check.leave(build_histogram, leave, engine=engine)

# %% [markdown]
# ## Two waits
#
# A block that goes on needs its tile again. It may write there as soon as the tile has been *read*. Where the
# sums are by then does not matter to it. With two tiles it need not even wait for the last reduction, only
# for the one before.
#
# This kernel adds up the squares of columns, five rows a block, in two tiles that take turns. At the end one
# thread of each block counts its block as done. The block that comes last knows that all others are done,
# reads the sums and writes the means. So there are two places where thread 0 has to wait, for different
# things.

# %%
STEPS = 5
tiles_layout = nd.Shared(tiles=nd.Array((2, BINS), nd.uint32), place=nd.Array(1, nd.uint32))


def build_means(before_reuse, before_count):
    @nd.kernel(threads=BINS, shared=tiles_layout)
    def means_of_squares(data: nd.uint32[:, :], sums: nd.uint32[:], count: nd.u64, means: nd.uint32[:]):
        tiles, place, i = tiles_layout.tiles.view(), tiles_layout.place.view(), cuda.threadIdx.x
        for step in range(STEPS):
            if i == 0:
                before_reuse()
            cuda.syncthreads()
            x = data[STEPS * cuda.blockIdx.x + step, i]
            tiles[step % 2, i] = x * x
            nd.fence_proxy_async()
            cuda.syncthreads()
            if i == 0:
                tile, bytes = tiles_layout.tiles.at(step % 2), tiles_layout.tiles.stride
                nd.cp_reduce_async_bulk_add_u32(nd.global_address(sums), tile, bytes)
                nd.cp_async_bulk_commit_group()
        if i == 0:
            before_count()
            place[0] = nd.atom_add_acq_rel_gpu_global_u32(count, 1)  # what was counted before
        cuda.syncthreads()
        if place[0] == cuda.gridDim.x - 1:  # this is the last one
            means[i] = sums[i] // data.shape[0]

    return means_of_squares


# %% [markdown]
# ## Exercise 2: which wait?
#
# Write the two waits, one line each. Let as much overlap as may.


# %% exercise="waits"
@nd.function
def before_reuse():
    """By thread 0, before a tile is written that was sent two steps ago."""
    ...


@nd.function
def before_count():
    """By thread 0, before it tells the other blocks that its sums are there."""
    ...


# %%
check.waits(build_means, before_reuse, before_count, engine=engine)

# %% [markdown]
# ## Scatter
#
# Now the gradient of deformable attention. Each pixel of the map has 32 channels. A sample lies between four
# pixels; it adds its gradient `g`, times a weight, to each of them. Here is the plain way. A warp takes a
# sample, a lane a channel. `red` is an addition to global memory that returns nothing, so no thread waits for
# it:

# %%
SIDE, CHANNELS, WARPS = 16, 32, 4
Places = nd.int32[:, :]  # of a sample in a block
Numbers = nd.float32[:, :, :]  # four weights, or 32 channels, of each


@nd.kernel(threads=32 * WARPS)
def by_one(x: Places, y: Places, weights: Numbers, g: Numbers, grad: nd.u64):
    b, lane = cuda.blockIdx.x, nd.lane()
    for s in range(nd.warp(), x.shape[1], WARPS):
        pixel, value = y[b, s] * SIDE + x[b, s], g[b, s, lane]
        for corner in range(4):
            place = CHANNELS * (pixel + corner // 2 * SIDE + corner % 2) + lane
            nd.red_add_gpu_global_f32(nd.global_at(grad, place, 4), weights[b, s, corner] * value)


some = check.samples()
print(f"{len(some.x)} blocks of 8 x 8 queries, a sample each; all gradients are small whole numbers")

# %% [markdown]
# All additions of a GPU meet in one place, the L2 cache. It takes them in **sectors** of 32 bytes. So there
# are two numbers to count: the *instructions* of warps, and the *sectors* that they touch. `watch` counts
# both. And it knows how often each pixel was added to:

# %%
lessons.cpu_only("Counting additions")
grad = np.zeros((SIDE, SIDE, CHANNELS), np.float32)
counted = check.watch(by_one, 4, (*some.args, grad))
print("the right gradient:", np.array_equal(grad, some.expected))
each = counted.sectors / some.x.size
print(f"{counted.instructions} instructions, {counted.sectors} sectors, {each:.0f} a sample")
hits = counted.for_each_pixel(grad)
title = f"additions to each pixel, at most {hits.max()}"
pictures.numbers(hits, title, hits == hits.max(), "y", "x")

# %% [markdown]
# Neighbouring queries look at the same pixels, so the same sectors are sent again and again. At one address
# additions go one after the other, too: that is **contention**. This map has one sample a query. A real
# layer has 8 heads, 4 levels and 4 points, and some 20 000 queries.
#
# Can wider instructions help? `red_add_gpu_global_v4_f32` adds four floats, so that a pixel takes only eight
# lanes, and a warp adds to all four pixels at once. `red_add_gpu_global_v4_f16x2` adds eight fp16 numbers.
# Then a pixel takes four lanes, and a warp has two samples at once. The price is fp16 sums, which round at
# every step.


# %%
@nd.kernel(threads=32 * WARPS)
def by_four(x: Places, y: Places, weights: Numbers, g: Numbers, grad: nd.u64):
    b, corner, c = cuda.blockIdx.x, nd.lane() // 8, 4 * (nd.lane() % 8)
    for s in range(nd.warp(), x.shape[1], WARPS):
        pixel, w = (y[b, s] + corner // 2) * SIDE + x[b, s] + corner % 2, weights[b, s, corner]
        nd.red_add_gpu_global_v4_f32(
            nd.global_at(grad, CHANNELS * pixel + c, 4),
            w * g[b, s, c], w * g[b, s, c + 1], w * g[b, s, c + 2], w * g[b, s, c + 3],
        )


@nd.kernel(threads=32 * WARPS)
def by_eight(x: Places, y: Places, weights: Numbers, g: Numbers, grad: nd.u64):
    b, corner, c = cuda.blockIdx.x, nd.lane() // 4 % 4, 8 * (nd.lane() % 4)
    for first in range(2 * nd.warp(), x.shape[1], 2 * WARPS):
        s = first + nd.lane() // 16
        pixel, w = (y[b, s] + corner // 2) * SIDE + x[b, s] + corner % 2, weights[b, s, corner]
        nd.red_add_gpu_global_v4_f16x2(
            nd.global_at(grad, CHANNELS * pixel + c, 2),
            nd.cvt_rn_f16x2_f32(w * g[b, s, c], w * g[b, s, c + 1]),
            nd.cvt_rn_f16x2_f32(w * g[b, s, c + 2], w * g[b, s, c + 3]),
            nd.cvt_rn_f16x2_f32(w * g[b, s, c + 4], w * g[b, s, c + 5]),
            nd.cvt_rn_f16x2_f32(w * g[b, s, c + 6], w * g[b, s, c + 7]),
        )


# %% [markdown]
# ## Exercise 3: what does a vector save?
#
# Take **two samples**, eight pixels in all. `by_one` needs 8 instructions, which touch 32 sectors. What do
# the other two need? Write `(instructions, sectors)`. The check counts.

# %% exercise="sectors"
predicted = {
    "one float": (8, 32),
    "four floats": (..., ...),
    "eight halves": (..., ...),
}

# %%
check.sectors(predicted, by_one, by_four, by_eight, engine=engine)

# %% [markdown]
# A reduction by the copy engine, one for each pixel, touches the same sectors again. So **no instruction
# makes a scatter of single samples cheap**. What leaves the SM is too much. It has to become less before it
# leaves.
#
# ## A window that adds up on the chip
#
# The queries of a block are neighbours, and so are their samples. Give the block a **window** of the map in
# shared memory, all zeros at first. Add every sample to the window. Then send the window, by *one* reduction.
# Lesson 1's boxes come back here: a tensor map knows where the rows of the window go.
#
# 8 x 8 queries whose samples lie at most 2 pixels away need a window of 12 x 12 pixels. Its corner is given
# for each block. A reduction may hang over the map's end, and what is outside is left out. It may not *begin*
# at a negative coordinate (a load may), so the corners are cut off at 0.

# %%
WINDOW = 12
window_layout = nd.Shared(window=nd.Array((WINDOW, WINDOW, CHANNELS), nd.float32, alignment=128))


def build_window(add_part, send_window):
    @nd.kernel(threads=32 * WARPS, shared=window_layout)
    def by_window(
        map: nd.u64, x: Places, y: Places, weights: Numbers, g: Numbers, corners: nd.int32[:, :]
    ):
        window, b, lane = window_layout.window.view(), cuda.blockIdx.x, nd.lane()
        x0, y0 = corners[b, 0], corners[b, 1]
        for i in range(nd.warp(), WINDOW * WINDOW, WARPS):
            window[i // WINDOW, i % WINDOW, lane] = 0
        cuda.syncthreads()
        for s in range(nd.warp(), x.shape[1], WARPS):
            for corner in range(4):
                part = weights[b, s, corner] * g[b, s, lane]
                add_part(window, x[b, s] + corner % 2, y[b, s] + corner // 2, x0, y0, lane, part)
        nd.fence_proxy_async()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(map)
            send_window(map, x0, y0, window_layout.window.at(0))
            nd.cp_async_bulk_commit_group()
            nd.cp_async_bulk_wait_group_read(0)

    return by_window


# %% [markdown]
# ## Exercise 4: the window
#
# Write the two lines that are missing. Adding in shared memory is `cuda.atomic.add(array, index, part)`, as
# in the histogram; here the index is three numbers in brackets. The map has the dimensions (channel, x, y),
# innermost first, as all maps of this course. The reduction is
# `nd.cp_reduce_async_bulk_tensor_3d_add(map, c, x, y, tile)`.


# %% exercise="window"
@nd.function
def add_part(window, x, y, x0, y0, lane, part):
    """Add ``part`` to a channel of the map's pixel (x, y), in a window whose corner is (x0, y0)."""
    ...


@nd.function
def send_window(map, x0, y0, tile):
    """By one thread: add the window at shared address ``tile`` to the map."""
    ...


# %%
check.window(build_window, add_part, send_window, engine=engine)

# %% [markdown]
# ## How large a window?
#
# A window is sent whole, also where no sample was. So a small one is mostly border. A large one takes shared
# memory, and with it the room for other blocks. The slider changes how many queries a block has, with four
# points each. The bars are bytes that leave the SM for each sample. In the map, dark pixels are added to by
# many windows.


# %%
def choose(side):
    return check.windows(side)


lessons.slider(choose, start={"side": 4}, side=[1, 2, 4, 8, 16])

# %% [markdown]
# With one query a block, the window is *worse* than single samples: 25 pixels for one query. With 8 x 8
# queries it sends a seventh of what single floats are. Twice as many each way still sends less, but then the
# window takes 50 KB, and only four blocks fit on an SM.
#
# This course has not timed a scatter. It has timed the same idea the other way round, the *gather*: one TMA
# load for each sample, or one for a window of many samples. These are milliseconds on an H200:

# %%
pictures.times(check.measured(), {}, "forward, samples near their query")

# %% [markdown]
# What these figures do not show is the price on the chip. Adding floats in shared memory is no single
# instruction: the machine reads, adds, and tries to put the sum back, and begins again if another was
# quicker. And where samples lie *anywhere* on the map, no window holds them.
#
# ## The order of a sum
#
# Floats have one more trap. `a + b + c` is rounded twice, and where depends on the order. Nobody says in
# which order reductions arrive. Here are the same 256 numbers, added to one float in six schedules:


# %%
@nd.kernel(threads=64)
def one_sum(data: nd.float32[:, :], out: nd.u64):
    nd.red_add_gpu_global_f32(out, data[cuda.blockIdx.x, cuda.threadIdx.x])


values = np.random.default_rng(7).normal(0, 1, (4, 64)).astype(np.float32)
for schedule in range(6):
    total = np.zeros(4, np.float32)
    lessons.run(one_sum, 4, (values, total), engine=engine, seed=schedule)
    print(f"run {schedule}:      {total[0]:.9g}")
print(f"in float64: {values.sum(dtype=np.float64):.9g}")

# %% [markdown]
# All are right within rounding, and two runs need not agree. A race this is not, and the engine says nothing.
# But a training run cannot be repeated bit for bit, and a test that compares bits fails now and then. Three
# ways out:
#
# - **Live with it.** Compare with a tolerance. Most training does.
# - **Fix the order.** Each block writes its part to a place of its own, and a second kernel adds the parts in
#   turn. It costs memory and a second pass.
# - **Add integers.** Their sums do not depend on the order. Multiply each number by a `scale`, round it to a
#   whole number, and divide the sum at the end. This is called *fixed point*.

# %%
fixed_layout = nd.Shared(tile=nd.Array(BINS, nd.int32))


@nd.kernel(threads=BINS, shared=fixed_layout)
def fixed_sums(data: nd.float32[:, :], out: nd.u64, scale: nd.float32):
    tile, i = fixed_layout.tile.view(), cuda.threadIdx.x
    tile[i] = nd.int32(math.floor(data[cuda.blockIdx.x, i] * scale + nd.float32(0.5)))
    nd.fence_proxy_async()
    cuda.syncthreads()
    if i == 0:
        nd.cp_reduce_async_bulk_add_s32(out, fixed_layout.tile.at(0), fixed_layout.tile.nbytes)
        nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group_read(0)


for schedule in range(3):
    total = np.zeros(BINS, np.int32)
    lessons.run(fixed_sums, 4, (values, total, 2.0**20), engine=engine, seed=schedule, landing="random")
    print(f"run {schedule}: column 0 is {total[0]}, divided by the scale {total[0] / 2**20:.9g}")

# %% [markdown]
# ## Exercise 5: the scale
#
# The larger the scale, the smaller the error of rounding. But a sum of 32 bits ends at 2**31 - 1. You know
# that no number is above `bound`, and that `count` of them are added. What is the largest power of two for
# `scale`? (A power of two, so that multiplying by it rounds nothing.)


# %% exercise="scale"
def scale(bound, count):
    """The largest power of two with which no sum of ``count`` numbers up to ``bound`` overflows."""
    return ...


# %%
check.scale(scale, fixed_sums)

# %% [markdown]
# ## Assignment: by TMA both ways
#
# *Another 40 minutes.* A whole kernel, as at the end of [lesson 5](05_roles.py): `out` becomes twice `data`,
# both given by their addresses, for `tiles` tiles of 8 rows of 32 numbers (`uint32`). One warp asks for tiles.
# The other doubles them where they lie, in the stage, and lets the copy engine take them to `out`: one
# `cp_async_bulk_store` of 1024 bytes for each. When may the stage be filled again?
#
# The check tries numbers of stages and tiles, schedules and landings that are not told here.


# %% exercise="doubled"
def build_doubled(stages):
    """The kernel (data: nd.u64, out: nd.u64, tiles: nd.i32) of 64 threads."""
    return ...


# %%
check.doubled(build_doubled)

# %% [markdown]
# ## What you know now
#
# - The copy engine adds a tile of shared memory to global memory. Each number is one step, in no order.
# - Write, fence, meet, issue, commit, wait. `wait_group_read` frees the tile; `wait_group` is for the sums.
# - A scatter of samples is slow since its *bytes* meet in L2. Wider instructions leave the bytes as they are;
#   halves are half of them; a window adds up on the chip and sends one tile.
# - Float sums depend on the order. Integers do not.
#
# [Lesson 11](11_tensor_cores.py) multiplies: tensor cores, and how TMA feeds them.

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
# # 11 · Swizzles and tensor cores
#
# *About 60 minutes. You know the ring with two roles ([lesson 5](05_roles.py)), the banks of shared memory
# ([lesson 7](07_how_fast.py)) and shared memory by name ([lesson 8](08_half_a_variant.py)). You need no GPU.*
#
# A product of matrices is what Hopper was built for. Its *tensor cores* multiply small matrices in one
# instruction, and the whole art is to feed them. This lesson builds a product by tiles, up to a whole
# matrix of any size. You will see
#
# - why TMA mixes up the rows of a tile (*swizzle*), and how a reader finds its numbers again,
# - how the lanes of a warp hold a matrix together (*fragments*),
# - how a grid of blocks makes a whole matrix, and what happens at its borders,
# - how a pipeline without a missing barrier was wrong in every launch on an H100, and which fence it lacked.
#
# Everything here computes C = A Bᵀ. Row `i` of A and row `j` of B give one number of C, in row `i` and column
# `j`: they are multiplied place by place, and the products are summed. The place in a row is called `k`.
# Numbers are fp16, sums are fp32.

# %%
import numpy as np
from numba import cuda

import numba_deform as nd
from numba_deform.course import lessons
from numba_deform.course.bugs import BUGS
from numba_deform.course.lessons import lesson11 as check
from numba_deform.course.lessons import matrix_pictures, pictures

engine = lessons.engine()
print(f"kernels run on: {engine}")

# %% [markdown]
# ## Eight rows in the same banks
#
# A tile has 16 rows of 64 elements. That makes 128 bytes a row: exactly one turn through all 32 banks. So
# numbers that stand one below the other lie in the same bank.
#
# Tensor cores take their operands from registers. A warp fetches them with `ldmatrix`, which reads an 8x8
# matrix: eight rows of eight elements, 16 bytes each, which we call a *chunk*. The lanes 0 to 7 give the
# addresses of its rows. `ldmatrix_x4` reads four matrices; lanes `8m` to `8m + 7` point at the rows of matrix
# `m`.
#
# The kernel below has TMA bring a tile, and reads all of it in four steps of 16 elements. How it finds a
# chunk is a function, `at`.

# %%
SIDE, DEPTH = 16, 64  # rows of a tile, and its elements along k
TILE_BYTES = 2 * SIDE * DEPTH


def build_read(at):
    shared = nd.Shared(a=nd.Array((SIDE, DEPTH), nd.float16, alignment=1024), ring=nd.Ring(1))
    ring = shared.ring

    @nd.kernel(threads=32, shared=shared)
    def read(map: nd.u64, out: nd.uint32[:, :]):
        shared.init()
        state, tile, lane = ring.start(), shared.a.at(0), nd.lane()
        if lane == 0:
            nd.fence_proxy_tensormap_acquire_sys(map)
            ring.expect(state, TILE_BYTES)
            nd.cp_async_bulk_tensor_2d(tile, map, 0, 0, ring.full(state))
        ring.wait(state)
        for k in nd.static_range(4):
            words = nd.ldmatrix_x4(at(tile, lane & 15, 2 * k + (lane >> 4)))
            for w in nd.static_range(4):
                out[4 * k + w, lane] = words[w]

    return read


@nd.function
def plain(tile, row, chunk):
    """The address of a chunk, 0 to 7, of a row."""
    return tile + 128 * row + 16 * chunk


# %% [markdown]
# `check.read` runs it on the CPU engine and notes the addresses that the lanes give to `ldmatrix`. From
# them it counts the *wavefronts* of lesson 7: the turns of the banks, in each of which every bank hands out
# one word.

# %%
lessons.cpu_only("The count of wavefronts")
straight = check.read(build_read(plain), swizzle="none")
print(straight)

# %% [markdown]
# Right, but slow: eight wavefronts for each matrix, where one would do. Here is its first matrix. The eight
# rows all want banks 0 to 3, so they are served one after another.

# %%
pictures.banks(straight.rows[0][:8], 16, title="plain rows")

# %% [markdown]
# The cure is that of lesson 7: store each row a little differently, swizzle. TMA does it by itself. With
# `swizzle="128B"` in the tensor map it exchanges the chunks of a row, in each of eight rows in another way.
# Move the slider (click on it, then use the arrow keys) and follow a chunk through the rows. On the left it
# stays where it is. On the right it visits every group of four banks once.

# %%
lessons.slider(matrix_pictures.tile_in_banks, chunk=range(8))

# %% [markdown]
# Let us read the swizzled tile with the same kernel:

# %%
print(check.read(build_read(plain), swizzle="128B"))

# %% [markdown]
# As slow as before, and wrong: most chunks are not where `plain` looks for them. The reader has to undo the
# swizzle.
#
# ## Exercise 1: where is it?
#
# At which byte of a swizzled tile does a chunk of a row lie? You met the pattern at the end of lesson 1. Look
# at the right half of the picture: what does row 1 do with its chunks, what does row 2 do? The tile has 16
# rows, and row 8 is stored like row 0.


# %% exercise="place"
def place(row, chunk):
    """The byte, from the tile's first one on, where chunk 0 .. 7 of a row begins."""
    return ...


# %%
check.place(place, build_read)

# %% [markdown]
# This pattern is fixed by the hardware, and it depends on the *address*: bits 4 to 6 are XORed with bits 7 to
# 9. That is why the tile is aligned to 1024 bytes, eight rows. Only then are these bits the row's number.
#
# ## Fragments
#
# `mma.m16n8k16` is one instruction of a whole warp. It multiplies a 16x16 matrix A by a 16x8 matrix B, and
# adds a 16x8 matrix C. No lane holds a whole row. Each holds a few elements, its *fragments*: four words of
# A, two words of B (a word is two fp16 numbers, neighbours along k), and four sums of C.

# %%
few = [0, 1, 4, 5, 6, 8, 17, 31]
lessons.slider(matrix_pictures.fragments, start={"lane": 5}, lane=range(32), page={"lane": few})

# %% [markdown]
# It looks wild, but compare it with `ldmatrix`. The four 8x8 matrices of A are the words a0, a1, a2, a3.
# `ldmatrix_x4` brings them in this very order if lane `l` points at row `l & 15`, and lanes from 16 on at
# the next chunk. That is what `build_read` did. Nothing is left to do between the two instructions.
#
# ## Exercise 2: who has it?
#
# At the end each lane has to write its sums to C. Which row and column has sum `i` of a lane, for `i` = 0
# to 3?


# %% exercise="element"
def element(lane, i):
    """(row, column) of sum i of a lane, in a 16x8 product."""
    row = ...
    column = ...
    return row, column


# %%
check.element(element)

# %% [markdown]
# ## One warp's tile
#
# Our warp makes 16x16 elements of C. For each 16 of k that takes one matrix of A and *two* of B, side by side:
# columns 0 to 7 of C, and columns 8 to 15. In memory a row of our B is one column of C, and it runs along k,
# so `ldmatrix` gives the words of B too. One `ldmatrix_x4` brings both, if it brings them in this order:
#
# | matrix | rows of B | chunk | goes to |
# |---|---|---|---|
# | 0 | 0 to 7 | the first of this step | b0 of the left product |
# | 1 | 0 to 7 | the second | b1 of the left product |
# | 2 | 8 to 15 | the first | b0 of the right product |
# | 3 | 8 to 15 | the second | b1 of the right product |
#
# ## Exercise 3: point at B
#
# Which row and chunk does a lane point at, in step `k` = 0 to 3? Remember: lanes `8m` to `8m + 7` are for
# matrix `m`.


# %% exercise="b_place"
@nd.function
def b_place(lane, k):
    """(row, chunk) of B for lane 0 .. 31, at 16 k."""
    row = ...
    chunk = ...
    return row, chunk


# %%
check.b_place(b_place, engine)

# %% [markdown]
# Now a warp can multiply two tiles: four steps of 16 elements, each with two `ldmatrix_x4` and two `mma`. What
# you have written in the three exercises comes from the course here, as it should be; its
# [file](../numba_deform/course/lessons/cluster_kernels.py) is best read when yours are right.

# %%
from numba_deform.course.lessons.cluster_kernels import element_of_c, place_in_b, swizzled


@nd.function
def multiply(a, b, sums):
    """The warp's 16x16 sums += A Bᵀ, for tiles at the shared addresses a and b."""
    lane = nd.lane()
    for k in nd.static_range(4):
        row, chunk = place_in_b(lane, k)
        x = nd.ldmatrix_x4(swizzled(a, lane & 15, 2 * k + (lane >> 4)))
        y = nd.ldmatrix_x4(swizzled(b, row, chunk))
        for h in nd.static_range(2):  # left and right half of C
            d = nd.mma_m16n8k16_f16(
                x[0], x[1], x[2], x[3], y[2 * h], y[2 * h + 1],
                sums[4 * h], sums[4 * h + 1], sums[4 * h + 2], sums[4 * h + 3],
            )  # fmt: skip
            for i in nd.static_range(4):
                sums[4 * h + i] = d[i]


@nd.function
def store(out, column, sums):
    """The warp's sums to C, from that column on."""
    for i in nd.static_range(8):
        y, x = element_of_c(nd.lane(), i % 4)
        out[y, column + x + 8 * (i // 4)] = sums[i]


# %% [markdown]
# ## A ring that feeds it
#
# A product with a long k is a sequence of such tiles, and that is the ring of lesson 5: one warp produces,
# one consumes. `empty=32`: each lane of the consumer releases a stage. Two blocks share the work. Both need
# all of A; block 0 has the first 16 rows of B, block 1 the others. So block 0 makes the left half of C, and
# block 1 the right one. They know nothing of each other.


# %%
def build_alone(stages):
    shared = nd.Shared(
        a=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024),
        b=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024), ring=nd.Ring(stages, empty=32),
    )  # fmt: skip
    ring = shared.ring

    @nd.kernel(threads=64, shared=shared)
    def alone(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        state, column = ring.start(), SIDE * cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                ring.expect(state, shared.a.stride + shared.b.stride)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                nd.cp_async_bulk_tensor_2d(a, a_map, DEPTH * step, 0, ring.full(state))
                nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, ring.full(state))
                state = ring.advance(state)
        elif nd.warp() == 1:
            sums = cuda.local.array(8, nd.float32)
            for i in nd.static_range(8):
                sums[i] = nd.float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                ring.release(state)
                state = ring.advance(state)
            store(out, column, sums)

    return alone


alone = build_alone(2)
a, b = check.operands(4)  # 16 x 256 and 32 x 256, whole numbers: no sum of theirs is rounded
a_map, b_map = (nd.TensorMapArray([nd.TensorMap.of(m, (DEPTH, SIDE), swizzle="128B")]) for m in (a, b))
out = np.full((16, 32), np.nan, np.float32)
print(check.run(alone, 2, [a_map, b_map, out, 4], engine))
print("right:", np.array_equal(out, a.astype(np.float32) @ b.T.astype(np.float32)))

# %% [markdown]
# ## A whole matrix
#
# Two blocks made 16 x 32 elements of C. A larger C takes a grid of blocks, one for each 16 x 16 of it: they
# are numbered row by row, `across` in each row, as the boxes of lesson 1. Nothing else changes, as long as
# all sizes are multiples of the tile's.
#
# They seldom are. Remember lesson 1: what lies outside the tensor arrives as zeros, and is counted. So the
# last tile along k may reach beyond the end, for zeros add nothing. Rows of A below the last one are zeros,
# too. Only the *store* has to look where C ends.
#
# ## Exercise 4: any size
#
# Where does this block's tile of C begin? A row of A has `depth` elements: how many tiles along k hold them
# all? Ask for no more than those. And which sums may be stored? `out.shape` is the size of C.


# %% exercise="whole"
def build_whole(stages):
    shared = nd.Shared(
        a=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024),
        b=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024), ring=nd.Ring(stages, empty=32),
    )  # fmt: skip
    ring = shared.ring

    @nd.kernel(threads=64, shared=shared)
    def whole(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], depth: nd.i32, across: nd.i32):
        shared.init()
        row, column = ..., ...
        steps = ...
        state = ring.start()
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                ring.expect(state, shared.a.stride + shared.b.stride)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                nd.cp_async_bulk_tensor_2d(a, a_map, DEPTH * step, row, ring.full(state))
                nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, ring.full(state))
                state = ring.advance(state)
        elif nd.warp() == 1:
            sums = cuda.local.array(8, nd.float32)
            for i in nd.static_range(8):
                sums[i] = nd.float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                ring.release(state)
                state = ring.advance(state)
            for i in nd.static_range(8):
                y, x = element_of_c(nd.lane(), i % 4)
                y, x = row + y, column + x + 8 * (i // 4)
                if ...:
                    out[y, x] = sums[i]

    return whole


# %%
check.whole(build_whole, engine)

# %% [markdown]
# [`course/pipelines/product.py`](../numba_deform/course/pipelines/product.py) is the same with four consumer
# warps and larger tiles. What we did by hand is `nd.WarpProduct` there.
#
# ## The fence that nobody missed
#
# That pipeline was wrong, and nobody noticed. It was right in every schedule of the CPU engine of that time,
# and on an H200 with one tile. Then an H100 ran it with so many blocks that they filled the GPU: *each* launch
# gave wrong numbers, in other elements each time. No barrier was missing. What was?
#
# `ldmatrix` only *asks* for words. They come some dozens of cycles later, and until then the thread goes on.
# So a consumer may ask for the last words of a stage, and arrive on *empty* while they are on their way. For
# other threads that is fine: loads and stores of one SM stay in order, and the arrival puts the loads first.
# But the next to write into the stage is no thread. It is the copy engine, another *proxy* (lesson 6), which
# keeps no order with them:
#
#     consumer   ldmatrix asks ......................... words arrive: of the NEXT tile
#                      arrive on empty
#     producer               acquire, issue
#     copy engine                   writes the next tile
#
# `ring.release`, which you have called since lesson 5, is two instructions: `fence.proxy.async`, and the
# arrival. The fence waits until the words have come. Here is a ring that arrives without it, one of the planted
# faults:

# %%
bug = BUGS["no_refill_fence"]
launch = bug.arguments()
lessons.show_fault(lambda: nd.simulate(bug.kernel(), launch.grid, 64, launch.args))

# %% [markdown]
# The engine does not need luck to see it. It asks whether a fence stands on the way from the read to the copy
# (PTX ISA section 8.6, 9.7.13.4). An H100 needs a GPU full of blocks: with *one* block on each SM, all of 1,000
# launches were right, for then loads do not queue up long enough. That is why no test had found it.
#
# ## Exercise 5: what is enough?
#
# A product with one stage, on an H100 that it fills, in six forms. Each ran 1,000 times, and every element was
# compared. They differ in what stands between the last `ldmatrix` and the refill:
#
# | | each consumer thread, before it arrives | the producer, behind its wait on *empty* |
# |---|---|---|
# | a | nothing | nothing |
# | b | `syncwarp` | nothing |
# | c | a named barrier of all consumers | nothing |
# | d | `fence_proxy_async` | nothing |
# | e | `syncwarp`, then one lane's `fence_proxy_async` | nothing |
# | f | nothing | `fence_proxy_async` |
#
# Which of them were right in every launch? Write their letters, as in `"ab"`.

# %% exercise="enough"
enough = ...

# %%
check.enough(enough)

# %% [markdown]
# Two things make this fault hard to see. Values that are *used* before the arrival have come back, so most
# kernels are safe by accident, until a compiler moves the use. And a barrier does not help, not even
# `syncthreads`: it too orders threads, and no copy engine. Everything that was tried stands in
# [the notes](../bench/NOTES.md#a-stage-that-is-read-and-refilled). What the fence costs: between nothing and
# 2 % in eight of nine kernels there.
#
# ## What larger tiles bring
#
# A block that makes twice as many columns of C reads A half as often. What that is worth was measured on an
# H200, for 2048 x 2048 x 2048 in fp16, with kernels that use no clusters. *mma.sync* is the instruction of
# this lesson. *wgmma* is Hopper's own, and [lesson 13](13_flash_attention.py) is about it.

# %%
measured = check.measured()
kernels = {
    "cuBLAS": "cuBLAS",
    "wgmma, tiles of 128 x 256": "wgmma, 128x256",
    "wgmma, tiles of 128 x 128": "wgmma, 128x128",
    "mma.sync, tiles of 128 x 256": "128x256",
    "mma.sync, tiles of 128 x 128": "128x128",
}
for label, name in kernels.items():
    row = measured[name]
    print(f"{label:29} {row['tflops']:4.0f} TFLOP/s, {row['l2_bytes'] / 1e6:4.0f} MB through L2")
pictures.times({label: 1000 * measured[name]["median_ms"] for label, name in kernels.items()}, {}, "H200", "us")

# %% [markdown]
# Compare the tiles of 128 x 128 with those of 128 x 256: more bytes through L2, and slower. But bytes are
# not everything. With tiles of 128 x 256, mma.sync and wgmma move about as many of them, and mma.sync takes
# longer: there, the tensor cores are the limit.
#
# ## What you know now
#
# - Rows of 128 bytes lie in the same banks. TMA's swizzle puts chunk `c` of row `r` at `c ^ (r & 7)`, and the
#   reader does the same.
# - `ldmatrix` gives each lane the fragments that `mma` takes.
# - Zero fill takes care of the borders of a product, but for its stores.
# - Threads that have read a stage give it back past a `fence.proxy.async`: no barrier holds the copy engine.
#
# Our two blocks both fetched every tile of A. [Lesson 12](12_clusters.py) lets them share one load.

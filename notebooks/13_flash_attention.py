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
# # 13 · wgmma and FlashAttention
#
# *About 70 minutes. You know swizzles and fragments ([lesson 11](11_tensor_cores.py)). You need no GPU.*
#
# Attention is softmax(Q Kᵀ) V: two products of matrices with a softmax between them. Written to memory, the
# scores Q Kᵀ are far larger than everything else. *FlashAttention* never writes them: tile by tile they are
# made, used and forgotten, all in registers. With TMA, rings and tensor cores you have what it is made of.
# You will see
#
# - how four warps multiply together, and what they have to wait for (*wgmma*),
# - how a softmax is made while its numbers still come (*online*),
# - how both meet in one kernel.

# %%
import math

import numpy as np
from numba import cuda

import numba_deform as nd
from numba_deform.course import lessons
from numba_deform.course.lessons import lesson13 as check
from numba_deform.course.lessons import pictures

engine = lessons.engine()
print(f"kernels run on: {engine}")

# %% [markdown]
# ## Four warps, one instruction
#
# `mma` is for a warp, and it takes its operands from registers. `wgmma` is for a **warpgroup**: four warps,
# 128 threads. It multiplies 64 rows of A by up to 256 rows of B, and reads them *in shared memory*,
# swizzled as TMA has left them. There is no `ldmatrix`. The sums are fragments as before: each warp has 16
# of the 64 rows, and its lanes share them as in lesson 11. (A may also come as fragments. We shall need
# that.)
#
# A **descriptor** of 64 bits says where a matrix lies: its address, the bytes from eight rows to the next
# eight, and the swizzle. It counts in units of 16 bytes: to move a matrix on by 16 n bytes, add n to its
# descriptor.
#
# (`whole_program=True` says that no other code will be linked to the kernel. Kernels with `wgmma` are made so.
# `n64` in a name stands for 64 columns of C.)

# %%
SIDE = 64  # rows of a tile, and its elements along k
one_tile = nd.Array((1, SIDE, SIDE), nd.float16, swizzle="128B")
shared = nd.Shared(a=one_tile, b=one_tile, loaded=nd.Barrier())


@nd.function
def descriptor(tile):
    """Of a tile as TMA brings it: eight rows are 1024 bytes, and 1 stands for the swizzle of 128 bytes."""
    return nd.wgmma_descriptor(tile, 0, 1024, 0, 1)


def build_product(multiply):
    @nd.kernel(threads=128, shared=shared, whole_program=True)
    def product(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :]):
        shared.init()
        sums = cuda.local.array(32, nd.float32)  # 64 x 64 sums, in 128 threads
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            shared.loaded.expect(shared.a.nbytes + shared.b.nbytes)
            nd.cp_async_bulk_tensor_2d(shared.a.at(0), a_map, 0, 0, shared.loaded.at())
            nd.cp_async_bulk_tensor_2d(shared.b.at(0), b_map, 0, 0, shared.loaded.at())
        shared.loaded.wait(0)
        multiply(sums, descriptor(shared.a.at(0)), descriptor(shared.b.at(0)))
        row, column = 16 * nd.warp() + nd.lane() // 4, 2 * (nd.lane() % 4)
        for i in nd.static_range(32):
            out[row + i // 2 % 2 * 8, column + i // 4 * 8 + i % 2] = sums[i]

    return product


# %% [markdown]
# `wgmma` is **asynchronous**: it is issued like a copy, and goes on by itself. So it has an order to keep:
#
# 1. `nd.wgmma_fence()`: what was done to the registers of the sums comes before the products;
# 2. any number of products;
# 3. `nd.wgmma_commit_group()`: these products are a *group*;
# 4. `nd.wgmma_wait_group_n64(sums, 0)`: wait until at most 0 groups are open. Only then may anybody read the
#    sums, or refill the tiles.
#
# One instruction takes 16 elements of k: `nd.wgmma_m64n64k16_f16(sums, a, b, keep, 0, 0)`. If `keep` is 0 it
# forgets what the sums were, and else it adds to them. (The two zeros say that rows of A and B run along k.)
#
# ## Exercise 1: multiply
#
# Multiply all 64 of k. How far does a descriptor move from one 16 of k to the next, which are fp16? What is
# `keep` for the first product, whose sums nobody has set? And which three calls are missing?


# %% exercise="multiply"
@nd.function
def multiply(sums, a, b):
    """The sums of A Bᵀ, for the descriptors of two tiles of 64 x 64; they may be read when it returns."""
    ...
    for k in nd.static_range(4):
        step, keep = ..., ...
        nd.wgmma_m64n64k16_f16(sums, a + step, b + step, keep, 0, 0)
    ...


# %%
check.multiply(multiply, build_product, engine)

# %% [markdown]
# ## A softmax that does not wait
#
# For one query, attention gives each key a weight: a *power*, e to its score, divided by the sum of all these
# powers. No power may overflow, so the largest score is subtracted first:
#
#     w[j] = exp(s[j] - m) / sum(exp(s[i] - m) for all i)      where m = max(s)
#
# That seems to need all scores at once. It does not. Go through the keys tile by tile, and keep three
# things for each query: `largest`, the largest score so far; `total`, the sum of powers so far; and
# `output`, the sum of powers times values. When a tile brings a larger score, all older powers were made
# too large. They *shrink* by one factor, the same for all of them. At the end, divide `output` by `total`.
#
# ## Exercise 2: one tile more
#
# Write it with NumPy. `scores` is (queries, keys of this tile), `values` is (keys of this tile, channels),
# `largest` and `total` are (queries,), and `output` is (queries, channels). It starts with `largest = -inf`.


# %% exercise="absorb"
def absorb(largest, total, output, scores, values):
    """(largest, total, output) with one more tile of keys."""
    new = ...
    shrink = ...  # what the older powers are multiplied by
    powers = ...
    return new, ..., ...


# %%
check.absorb(absorb)

# %% [markdown]
# ## Both in one kernel
#
# In the kernel a warp asks for tiles of keys and of values, each through a ring of its own. A warpgroup has 64
# queries. For each tile of keys it
#
# 1. multiplies queries by keys: the scores are sums, in registers;
# 2. makes them powers, as you have just done, with `row_max` and `row_sum` over the four lanes that have a
#    row;
# 3. multiplies the powers by the values. **They are fragments already**, and `wgmma` takes A as fragments.
#
# `nd.WarpgroupProduct(64)` has these steps by name: `p.add(sums, a, b, keep)` is your exercise 1 without
# its wait, and `p.add_held(sums, held, b)` takes A from registers. `p.wait(sums, 0)` is the wait. Powers of
# 2 are one instruction, those of e are not. So scores are scaled by log₂ e, and by 1/8 = 1/√64 as in every
# attention.

# %%
product = nd.WarpgroupProduct(SIDE).functions()
SCALE = nd.float32(math.log2(math.e) / math.sqrt(SIDE))
LOWEST = nd.float32(-np.inf)


@nd.function
def to_powers(scores, largest, sums, total):
    """As ``absorb``: scores become powers; largest, sums and total follow, for the lane's two rows."""
    for h in nd.static_range(2):
        new = product.row_max(scores, h, largest[h])
        shrunk = nd.ex2_approx_ftz_f32(SCALE * (largest[h] - new))
        for j in nd.static_range(SIDE // 8):
            for i in nd.static_range(4 * j + 2 * h, 4 * j + 2 * h + 2):
                scores[i] = nd.ex2_approx_ftz_f32(SCALE * (scores[i] - new))
        sums[h] = sums[h] * shrunk + product.row_sum(scores, h)
        product.scale_row(total, h, shrunk)
        largest[h] = new


# %% [markdown]
# ## Exercise 3: who waits for what?
#
# Four lines are missing in the loop of the consumer. Before scores are read, and before a stage is given
# back, the product that uses it must be over. `product.wait(x, 0)` waits for the sums `x`. The compiler has to
# keep behind it whatever reads `x`; what reads other sums it may move. A ring has `wait` and `release`, with
# its state: `k` of the keys, `v` of the values.


# %% exercise="attend"
def build_attention(stages):
    tiles = nd.Array((stages, SIDE, SIDE), nd.float16, swizzle="128B")
    ring = nd.Ring(stages, empty=128)
    shared = nd.Shared(q=one_tile, k=tiles, v=tiles, queries=nd.Barrier(), keys=ring, values=ring)
    keys, values = shared.keys, shared.values

    @nd.function
    def ask(ring, state, tile, map, step):
        ring.acquire(state)
        ring.expect(state, shared.k.box_bytes)
        nd.cp_async_bulk_tensor_2d(tile, map, 0, SIDE * step, ring.full(state))

    @nd.kernel(threads=160, shared=shared, whole_program=True)
    def attention(q_map: nd.u64, k_map: nd.u64, v_map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        k, v = keys.start(), values.start()
        if nd.warp() < 4:
            total = product.zeros()
            largest, sums = cuda.local.array(2, nd.float32), cuda.local.array(2, nd.float32)
            for h in nd.static_range(2):
                largest[h], sums[h] = LOWEST, nd.float32(0)
            shared.queries.wait(0)
            for _ in range(steps):
                scores = product.zeros()
                keys.wait(k)
                product.add(scores, shared.q.at(0), shared.k.at(k.stage), 0)
                ...  # the scores are there
                ...  # this tile of keys is no longer needed
                k = keys.advance(k)
                to_powers(scores, largest, sums, total)
                values.wait(v)
                product.add_held(total, scores, shared.v.at(v.stage))
                ...  # total has this tile's part
                ...  # this tile of values is no longer needed
                v = values.advance(v)
            for h in nd.static_range(2):
                product.scale_row(total, h, nd.rcp_approx_ftz_f32(sums[h]))
            product.store(out, 16 * nd.warp(), 0, total)
        elif nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(q_map)
            nd.fence_proxy_tensormap_acquire_sys(k_map)
            nd.fence_proxy_tensormap_acquire_sys(v_map)
            shared.queries.expect(shared.q.nbytes)
            nd.cp_async_bulk_tensor_2d(shared.q.at(0), q_map, 0, 0, shared.queries.at())
            for step in range(steps):
                ask(keys, k, shared.k.at(k.stage), k_map, step)
                k = keys.advance(k)
                ask(values, v, shared.v.at(v.stage), v_map, step)
                v = values.advance(v)

    return attention


# %%
check.attend(build_attention, engine)

# %% [markdown]
# That is FlashAttention's forward pass. The package has it as
# [`course/pipelines/attention.py`](../numba_deform/course/pipelines/attention.py), for any number of heads,
# by `mma` or by `wgmma`. Here is one block of it, four tiles of keys in rings of two stages: below, the
# producer's copies, and how the consumers wait.

# %%
from numba_deform.course.pipelines.attention import attention

lessons.cpu_only("The timeline")
nd.timeline(attention(by="wgmma", steps=4), engine="cpu")

# %% [markdown]
# ## How fast is it?
#
# It was measured on an H100, for 32 heads of 4096 queries and keys, 64 channels, in fp16. *SDPA* is PyTorch's
# `scaled_dot_product_attention`, with the library that it calls.

# %%
measured = check.measured()  # groups: warpgroups of a block, or four warps each by mma
for row in measured.values():
    speed = f"{row['median_ms']:6.3f} ms, {row['tflops']:4.0f} TFLOP/s"
    print(f"{row['name']:28} {speed}, error {row['error']:.1e}")
pictures.times({name: row["median_ms"] for name, row in measured.items()}, {}, "H100", "ms")

# %% [markdown]
# Where is time left? While a warpgroup makes powers, it multiplies nothing. FlashAttention-3 lets two
# warpgroups take turns, so that one multiplies while the other makes powers. And it issues the next scores
# before it waits for this tile's values.
#
# ## What you know now
#
# - `wgmma`: four warps, operands in shared memory by descriptors, sums as fragments.
# - Fence, products, commit, wait. Until its group has been waited for, a product owns its sums and its tiles.
# - A softmax can be made tile by tile: older sums shrink when a larger score comes.
# - What one product leaves in registers, the next one takes from there.
#
# [`site/attention.md`](site/attention.md) reads the package's kernel line by line. [Lesson
# 14](14_profiling.py) asks which line of a kernel costs what.

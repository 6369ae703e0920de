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
# # 12 · Clusters
#
# *About 35 minutes. You know the product of [lesson 11](11_tensor_cores.py). You need no GPU.*
#
# Two blocks that make neighbouring tiles of a product both need the same rows of A. Each fetches them for
# itself, and the same bytes come from L2 twice. On Hopper, blocks can be launched in **clusters**. They run at
# the same time, on SMs close to each other, and reach each other's shared memory. And TMA has a **multicast**:
# one load puts its box into the shared memory of several blocks. You will see
#
# - how a cluster is launched, and who is who in it,
# - how one load serves several blocks, and what each of their barriers has to count,
# - how a block tells *another* block that a stage is empty (*remote arrivals*).

# %%
import numpy as np
from numba import cuda

import numba_deform as nd
from numba_deform.course import lessons
from numba_deform.course.lessons import lesson12 as check
from numba_deform.course.lessons import matrix_pictures
from numba_deform.course.lessons.cluster_kernels import alone, multiply, store

engine = lessons.engine()
print(f"kernels run on: {engine}")

# %% [markdown]
# `alone`, `multiply` and `store` are those of lesson 11: a product by two blocks that know nothing of each
# other. Block 0 makes the left half of C, block 1 the right half.

# %%
SIDE, DEPTH = 16, 64  # rows of a tile, and its elements along k
TILE_BYTES = 2 * SIDE * DEPTH
a, b = check.operands(4)  # 16 x 256 and 32 x 256, whole numbers: no sum of theirs is rounded
a_map, b_map = (nd.TensorMapArray([nd.TensorMap.of(m, (DEPTH, SIDE), swizzle="128B")]) for m in (a, b))
out = np.full((16, 32), np.nan, np.float32)
print(check.run(alone(2), 2, [a_map, b_map, out, 4], engine))
print("right:", np.array_equal(out, a.astype(np.float32) @ b.T.astype(np.float32)))

# %% [markdown]
# ## The launch
#
# A launch says how many blocks a cluster has: `cluster=2` here, `__cluster_dims__` or a launch attribute in
# CUDA C++. Any GPU with clusters takes up to 8 blocks. Hopper takes 16, if the kernel asks for it. The
# blocks of one cluster start together, or not at all, so **the grid is a multiple of the cluster** in each
# dimension:

# %%
lessons.cpu_only("The report of a launch")
lessons.show_fault(lambda: check.run(check.pair(), 3, check.arguments(a, b, 8), cluster=2))

# %% [markdown]
# Blocks past the end of the data are launched too, then. They may not leave at once. Their cluster counts on
# them, for its meetings and perhaps for their half of a load.
#
# ## Exercise 1: the grid
#
# A tile of C has 16 x 16 elements, and a cluster has `across` x `down` blocks. How many blocks does the grid
# have in x (along a row of C) and in y, for a C of any size?


# %% exercise="grid"
def grid(rows, columns, across, down):
    """(x, y): the blocks that cover C, rounded up to whole clusters."""
    return ...


# %%
check.grid(grid)

# %% [markdown]
# A block's number in its cluster is its **rank**. It counts along x first, then along y. In a cluster of 2 x 2
# blocks, ranks 0 and 1 lie above ranks 2 and 3. A multicast has a **mask** with one bit for each rank: bit r
# sends the box into the block of rank r as well.
#
# ## Exercise 2: who gets it?
#
# Blocks one beside the other make the same rows of C, so they need the same tile of A. Blocks one below the
# other need the same tile of B. To which ranks does the block of rank `rank` send what it fetches?


# %% exercise="masks"
def masks(rank, across, down):
    """(mask of its tile of A, mask of its tile of B), whole numbers."""
    return ...


# %%
check.masks(masks)

# %% [markdown]
# ## Two blocks, one load
#
# `cp_async_bulk_tensor_2d_multicast(dst, map, x, y, bar, mask)` takes a `mask` with one bit for each rank.
# `dst` and `bar` are this block's own addresses; in every other block the same places are meant. So the bytes
# that arrive in block 1 count on the barrier *of block 1*.
#
# To share the work fairly, each block fetches **half** of the tile of A, eight rows, for both: rank 0 the
# upper rows, rank 1 the lower ones. Its tile of B it fetches for itself alone.
#
# ## Exercise 3: fetch for both
#
# Each block announces the bytes on its own full barrier, `full`. It announces all that will come *into this
# block*, whoever sends them. How many are they? Where does this block's half of A go? And which mask?


# %% exercise="fetch"
@nd.function
def fetch(a_map, b_map, a, b, full, step, rank, column):
    """By one thread of each block: fill the tiles at the shared addresses a and b. Boxes of A have 8 rows."""
    announced = ...
    half = ...  # the shared address of this block's eight rows of A
    mask = ...
    nd.mbarrier_arrive_expect_tx(full, announced)
    nd.cp_async_bulk_tensor_2d_multicast(half, a_map, DEPTH * step, 8 * rank, full, mask)
    nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, full)


# %%
check.fetch(fetch, engine)

# %% [markdown]
# ## Three things that two blocks must agree on
#
# A copy that writes into somebody else's memory needs more care than one that stays at home.
#
# 1. **At the beginning.** A copy of block 0 signals a barrier of block 1. Has block 1 initialised it already?
#    Has it even started? `shared.init()` makes the threads of *one* block wait. So the cluster meets as well:
#    `nd.cluster_arrive()`, then `nd.cluster_wait()`, called by all threads of both blocks.
# 2. **Before a refill.** Block 0 may write into a stage of block 1 only when block 1 has read it. So a
#    consumer tells *both* producers that it has left the stage. `nd.mapa_shared_cluster(address, rank)`
#    turns a shared address into that of the same place in the block of that rank, and
#    `nd.mbarrier_arrive_cluster(there)` arrives on a barrier there. `ring.empty(state)` is the address of
#    our own empty barrier. An arrival in another block releases with cluster *scope*: for all threads of the
#    cluster, and not only for those of a block. By PTX's letter the wait for it should acquire with cluster
#    scope, too: `mbarrier_wait_cluster`. `ring.acquire` waits with the default scope, `.acquire.cta`, as
#    CUTLASS does. For *shared* memory that has proved enough. For what another block wrote to *global* memory
#    it is not, and the engine refuses it.
# 3. **At the end.** A block that is done might leave while the other one still arrives on its barriers. Shared
#    memory of a block that has ended is gone. So the cluster meets once more, and nobody leaves early.
#
# What happens without the first meeting? `check.pair` makes the kernel that you are about to write, and it can
# leave that out:

# %%
lessons.cpu_only("The report of a block that is not there yet")
lessons.show_fault(lambda: check.recorded(check.pair(meets=False), cluster=2))

# %% [markdown]
# ## Exercise 4: let them meet
#
# Write the four missing parts; the kernel calls your `fetch` of exercise 3, so solve that first. One lane
# of the consumer warp is enough for each arrival, after a `syncwarp`. Lane 0 arrives for the block of rank
# 0, and lane 1 for that of rank 1, with the same line of code. How many arrivals does an empty barrier then
# get in one lap?


# %% exercise="meet"
def build_pair(stages):
    shared = nd.Shared(
        a=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024),
        b=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024), ring=nd.Ring(stages, empty=...),
    )  # fmt: skip
    ring = shared.ring

    @nd.kernel(threads=64, shared=shared)
    def pair(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        ...  # both blocks are here, and their barriers are initialised
        rank = nd.cluster_ctarank()
        state, column = ring.start(), SIDE * cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                fetch(a_map, b_map, a, b, ring.full(state), step, rank, column)
                state = ring.advance(state)
        elif nd.warp() == 1:
            sums = cuda.local.array(8, nd.float32)
            for i in nd.static_range(8):
                sums[i] = nd.float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                nd.fence_proxy_async()  # what this lane has read may be overwritten, by copies of both blocks
                cuda.syncwarp()
                ...  # the stage may be refilled, by either block
                state = ring.advance(state)
            store(out, column, sums)
        ...  # nobody leaves yet

    return pair


# %%
check.meet(build_pair, fetch, engine)

# %% [markdown]
# ## Two blocks at once
#
# Here is such a cluster on the CPU engine, six tiles in a ring of two stages. A stage is filled by three
# loads: the upper half of A, the lower half, and B. The loads of A in both panels are the same ones. A
# producer waits for an empty stage where it is hatched; a consumer waits for a full one where it is pale,
# and multiplies where it is blue. With the slider, make block 1 the slower one: it multiplies each tile 1,
# 3 or 5 times.

# %%
lessons.cpu_only("The timeline of a cluster")
runs = {work: check.recorded(check.pair(extra=work - 1), steps=6, cluster=2) for work in (1, 3, 5)}


def two_blocks(work):
    title = f"work of block 1 on each tile: {work}"
    return matrix_pictures.two_blocks(runs[work].events, title, end=runs[5].cycles)


lessons.slider(two_blocks, work=list(runs))

# %% [markdown]
# Block 0 gets slower too, although nothing of it has changed. Its producer waits (hatched) until the dotted
# line, where block 1 releases the stage. **Blocks that share loads go at one pace.** That is the price of a
# cluster, and more stages make it smaller.
#
# ## What it brings
#
# The engine notes every load. Let us count the bytes that TMA has fetched from global memory (or L2), and the
# bytes that it has written into shared memory:

# %%
for name, kernel, cluster in (("alone", alone(2), None), ("cluster", check.pair(), 2)):
    fetched, written = check.traffic(check.recorded(kernel, steps=4, cluster=cluster))
    print(f"{name:8} fetched {fetched:6} bytes, wrote {written:6} bytes")

# %% [markdown]
# Both write the same into shared memory. But alone, 16 KB are fetched of A and 16 KB of B; in the cluster 8
# KB of A and 16 KB of B. **The bytes of A are halved**, those of B are not, since no two blocks share a
# tile of B. In a cluster of 2 x 2 blocks each tile of A and each tile of B has two readers, and both are
# halved.
#
# A cluster that shares tiles saves such bytes where registers or shared memory have no room for a larger tile.
# But it waits for its slowest block, and it meets twice. Measure before you pay for that.
#
# ## What you know now
#
# - The grid is a multiple of the cluster, and all blocks of a cluster take part in what it does together.
# - Multicast: one load, several blocks. Each announces what comes into it, on its own barrier.
# - A stage is empty when the readers of **all** blocks that are written into have left it.
# - A cluster meets before the first copy, and before anybody leaves.
#
# Four warps can multiply together, and need no `ldmatrix` for it: [lesson 13](13_flash_attention.py).

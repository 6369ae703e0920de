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
# # 16 · Blackwell
#
# *About 45 minutes. You know rings with two roles ([lesson 5](05_roles.py)), swizzles
# ([lesson 11](11_tensor_cores.py)) and `wgmma` ([lesson 13](13_flash_attention.py)). You need no GPU.*
#
# **By PTX's text; never run on hardware.** No Blackwell GPU was there when this was written. The CPU engine
# judges these kernels by what PTX's document says, the assembler accepts them for `sm_100a`, and that is all
# that is known. So everything here runs on the CPU engine, also where there is a GPU.
#
# The sums of `wgmma` stay in registers, 128 of each thread for a large tile, and four warps have to come
# together for every product. On Blackwell (B200, `sm_100a`) both are gone:
#
# | | Hopper: `wgmma` | Blackwell: `tcgen05` |
# |---|---|---|
# | who issues a product | 128 threads together | **one thread** |
# | where the sums are | registers of these threads | **tensor memory**, 256 KB of each SM |
# | of what size | 64 rows, up to 256 columns | 128 rows (of two blocks together 256), up to 256 columns |
# | who is told that it is over | who called `wait_group` | who waits on an **mbarrier**, by `tcgen05.commit` |
# | how one gets the sums | they are there | `tcgen05.ld`, and `tcgen05.wait::ld` |
#
# You will see
#
# - whom tensor memory belongs to, and who reaches which part of it,
# - what has to stand between a product and the first look at its sums,
# - how a ring is given back by products, and how two sets of sums let a block read one and make the other.

# %%
import numpy as np
from numba import cuda

import numba_deform as nd
from numba_deform.course import lessons
from numba_deform.course.lessons import lesson16 as check
from numba_deform.course.lessons import pictures
from numba_deform.course.pipelines import blackwell

ROWS, COLUMNS, DEPTH = 128, 64, 64  # of a tile of C, and of k in a stage
STAGE = 2 * DEPTH * (ROWS + COLUMNS)  # its bytes

# %% [markdown]
# ## Tensor memory
#
# It has 128 **lanes** (rows) of 512 **columns**, each a word of 32 bits. A product of 128 rows takes all
# lanes: row `i` of C is in lane `i`. Columns have to be allocated, by powers of two from 32 on, and given
# back before the block ends. An SM has no more than 512, for all its blocks.
#
# An *address* of tensor memory is a number of 32 bits: the lane in its upper half, the column in its lower
# half. Products write all lanes. But of the *threads*, each warp reaches a quarter only, by its number:

# %%
quarters = [f"lanes {32 * n} to {32 * n + 31}" for n in range(4)]
pictures.grid(
    [[warp % 4 == quarter for quarter in range(4)] for warp in range(6)],
    [f"warp {n}" for n in range(6)], quarters, title="Which lanes a warp reaches",
)  # fmt: skip

# %% [markdown]
# So it takes four warps to read a tile, each its 32 rows, a lane of the warp for a lane of tensor memory.
#
# ## Exercise 1: your part
#
# `base` is the address that the allocation gave. What address does a warp give to read from a column on, in
# the lanes that it reaches?


# %% exercise="address"
def address(base, warp, column):
    """The address of a column of those from base on, in the lanes of a warp 0 .. 7."""
    return ...


# %%
check.address(address)

# %% [markdown]
# In a layout, `nd.TensorMemory(sums=64)` names 64 columns. `shared.init()` has the first warp allocate them.
# Then `memory.sums.at()` is their address for a product, and `memory.sums.warp_at()` what you have just
# written. `memory.free()` gives them back.
#
# ## One tile
#
# A product takes A and B from shared memory by descriptors, as `wgmma` does, with one bit more:
# `nd.tcgen05_descriptor`. An **instruction descriptor** says types and size. It is a constant, and made before
# the kernel: `nd.tcgen05_instruction_descriptor("f16", 128, 64)`.
#
# One thread issues the products. They run on their own, and nobody is told when they are over, unless that
# thread *commits* them: `nd.tcgen05_commit(bar)` makes an arrival on an mbarrier, once all products that this
# thread has issued so far are over. Whoever waits on it may read the sums:
#
#     nd.tcgen05_ld_32x32b_x16(address)    16 columns of the warp's lanes, on their way to registers
#     nd.tcgen05_wait_ld()                 they are there
#
# Two fences stand around the wait, or barrier, between the two sides, for tensor memory is none of the
# memories that barriers know: `nd.tcgen05_fence_before_thread_sync()` before it, and
# `nd.tcgen05_fence_after_thread_sync()` behind it. (The CPU engine takes a barrier that acquires to be enough.
# PTX's examples have the fences, and so do we.)
#
# ## Exercise 2: hand over the sums
#
# Three holes. `adds` is 0 where the product is to write its sums, and 1 where it adds to what is there: what
# is it for the four products of `k`, of one tile? How does thread 0 say that they are over? What do all
# threads wait for?


# %% exercise="tile"
def build_tile():
    types = nd.tcgen05_instruction_descriptor("f16", ROWS, COLUMNS)
    shared = nd.Shared(
        a=nd.Array((1, ROWS, DEPTH), nd.float16, swizzle="128B"), full=nd.Barrier(), done=nd.Barrier(),
        b=nd.Array((1, COLUMNS, DEPTH), nd.float16, swizzle="128B"), memory=nd.TensorMemory(sums=COLUMNS),
    )  # fmt: skip

    @nd.kernel(threads=128, shared=shared)
    def tile(a_map: nd.u64, b_map: nd.u64, out: nd.u64, pitch: nd.i32, steps: nd.i32):
        shared.init()
        full, done, sums = shared.full, shared.done, shared.memory.sums
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            full.expect(STAGE)
            blackwell.load(shared.a.at(0), shared.b.at(0), a_map, b_map, 0, 0, 0, full.at())
            full.wait(0)
            for k in nd.static_range(4):  # 16 of k are 32 bytes
                a = nd.tcgen05_descriptor(shared.a.at(0) + 32 * k, 0, 1024, 0, 1)
                b = nd.tcgen05_descriptor(shared.b.at(0) + 32 * k, 0, 1024, 0, 1)
                adds = ...
                nd.tcgen05_mma_f16(sums.at(), a, b, types, adds)
            ...
        cuda.syncwarp()
        ...
        nd.tcgen05_fence_after_thread_sync()
        blackwell.store(sums.warp_at(), out, cuda.threadIdx.x, 0, pitch)  # each warp its 32 rows
        nd.tcgen05_fence_before_thread_sync()
        cuda.syncthreads()
        if nd.warp() == 0:
            shared.memory.free()

    return tile


# %%
check.tile(build_tile)

# %% [markdown]
# What if the last lines were missing? Tensor memory outlives the block, and the next one would wait for
# columns that nobody gives back.

# %%
leaky = nd.Shared(memory=nd.TensorMemory(sums=64))


@nd.kernel(threads=32, shared=leaky)
def forgetful(out: nd.uint32[:]):
    leaky.init()
    out[nd.lane()] = leaky.memory.sums.at()


lessons.show_fault(lambda: nd.simulate(forgetful, 1, args=[np.zeros(32, np.uint32)]))

# %% [markdown]
# ## A ring that products give back
#
# With a long k, a ring brings the tiles, as always. Now three roles share the block, and the middle one is a
# single thread: a warp loads, a thread multiplies, and four warps read the sums at the end.
#
# On Hopper a consumer waits for its products (`wait_group`), and then arrives on *empty*. Here the thread
# that multiplies need not wait for anything: it goes on to the next stage at once, and leaves the arrival to
# the products themselves.
#
# ## Exercise 3: give the stage back
#
# How many arrivals on *empty* give a stage back? And what line makes them?


# %% exercise="ring"
def build_ring(stages):
    shared = nd.Shared(
        a=nd.Array((stages, ROWS, DEPTH), nd.float16, swizzle="128B"), ring=nd.Ring(stages, empty=...),
        b=nd.Array((stages, COLUMNS, DEPTH), nd.float16, swizzle="128B"), ready=nd.Barrier(),
        memory=nd.TensorMemory(sums=COLUMNS),
    )  # fmt: skip

    @nd.kernel(threads=192, shared=shared)
    def ring_of_stages(a_map: nd.u64, b_map: nd.u64, out: nd.u64, pitch: nd.i32, steps: nd.i32):
        shared.init()
        ring, state, ready, sums = shared.ring, shared.ring.start(), shared.ready, shared.memory.sums
        if nd.warp() == 4 and nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                ring.expect(state, STAGE)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                blackwell.load(a, b, a_map, b_map, step, 0, 0, ring.full(state))
                state = ring.advance(state)
        elif nd.warp() == 5 and nd.lane() == 0:
            for step in range(steps):
                ring.wait(state)
                blackwell.multiply(sums.at(), shared.a.at(state.stage), shared.b.at(state.stage), step)
                ...
                state = ring.advance(state)
            nd.tcgen05_commit(ready.at())
        elif nd.warp() < 4:
            ready.wait(0)
            nd.tcgen05_fence_after_thread_sync()
            blackwell.store(sums.warp_at(), out, cuda.threadIdx.x, 0, pitch)
            nd.tcgen05_fence_before_thread_sync()
        cuda.syncthreads()
        if nd.warp() == 0:
            shared.memory.free()

    return ring_of_stages


# %%
check.ring(build_ring)

# %% [markdown]
# ## Read one, make the other
#
# A tile of C is read while nothing is multiplied: the tensor cores stand still. But there is room for more
# sums. With two sets of them, four warps read one while the products of the *next* tile go to the other. That
# is a ring again, of sums: who multiplies is its producer, and the four warps are its consumers. No wgmma
# could do that, for there the sums lie in the registers of those who read them.

# %%
drawn = [nd.timeline(blackwell.overlapped(sums=n, steps=3, down=2, across=2)) for n in (1, 2)]
pictures.timelines(*drawn)

# %% [markdown]
# In the upper picture warp 5, which multiplies, has to wait (hatched) after each tile until its sums have been
# read; in the lower one it goes on, and the bars of `turns` take turns. Time is virtual here, and of Blackwell
# nobody has measured any: look at the order, and not at the cycles.
#
# ## Exercise 4: how many?
#
# A tile of C has 128 x 256 numbers of fp32. How many sets of such sums does tensor memory hold?

# %% exercise="sets"
sets = ...

# %%
check.sets(sets)

# %% [markdown]
# ## Exercise 5: when is it free?
#
# Below is what the four warps do for each tile. They load 16 columns at a time, and store them. When may the
# thread that multiplies overwrite these sums, and how is it told? (`turns.arrive(turn)` is one arrival on
# *empty* of the ring of sums, which counts 128 of them.)


# %% exercise="read"
@nd.function
def read(turns, turn, sums, out, row, x, pitch):
    turns.wait(turn)
    nd.tcgen05_fence_after_thread_sync()
    line = nd.global_at(out, row, 4 * pitch)
    for column in range(0, COLUMNS, 16):
        w = nd.tcgen05_ld_32x32b_x16(sums + column)
        ...
        for i in nd.static_range(4):
            at = nd.global_at(line, x + column + 4 * i, 4)
            nd.st_global_v4(at, w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3])
    nd.tcgen05_fence_before_thread_sync()
    ...


# %%
check.read(read)

# %% [markdown]
# ## Two blocks, one product
#
# Two blocks of a cluster may multiply together (`cta_group::2`). Each has 128 rows of A and of C, and *half*
# of B: the tile of B is loaded once for both. One thread, in the block of even rank, issues the products of
# both. It has to know that all four halves are there. So the loads of either block signal the barrier of the
# even one, and its thread waits there alone. A commit, in turn, arrives in both blocks: for each has a stage
# to fill again, and sums to read. Allocation is by a warp of each.

# %%
report = nd.simulate(blackwell.paired(steps=4))
print(f"right: {report.copies} copies by TMA, two for each block and step")

# %% [markdown]
# ## Exercise 6: what is announced?
#
# A stage has 64 of k, as before, and C has 64 columns. How many bytes does block 0 announce on its *full*
# barrier, for one stage of both blocks?

# %% exercise="announced"
announced = ...

# %%
check.announced(announced)

# %% [markdown]
# ## What the compiler makes of it
#
# There is no GPU, but there is an assembler. In machine code a product is one instruction of one thread,
# `UTCHMMA`; a commit is `UTCBAR`, and a load of tensor memory `LDTM`.

# %%
found = lessons.machine_code(blackwell.overlapped().kernel, "sm_100a")
if found:
    print({name: found.instructions[name] for name in ("UTMALDG", "UTCHMMA", "UTCBAR", "LDTM")})
    print("registers of a thread:", found.registers)

# %% [markdown]
# For a Hopper GPU the same kernel is refused by name, before anything is launched.

# %%
try:
    blackwell.overlapped().kernel.compile("sm_90a")
except Exception as error:  # where there is no compiler, it says so
    print(error)

# %% [markdown]
# All rungs of this ladder stand in
# [`course/pipelines/blackwell.py`](../numba_deform/course/pipelines/blackwell.py), for matrices of many tiles.
# What is judged of `tcgen05`, and how PTX's text is read where it leaves something open, says
# [`ENGINE.md`](../bench/ENGINE.md). CUDA C++ with `tcgen05` is judged, too: `numba-deform check kernel.cu`,
# as in [lesson 15](15_cuda.py).

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
# # 5 · Roles
#
# *About 60 minutes. You have built the ring of [lesson 4](04_stages.py).*
#
# In lesson 4 every warp did everything: it asked for tiles, waited for them, and computed. This lesson gives
# the two jobs to different warps. **Producers** only load, **consumers** only compute. It is called *warp
# specialization*, and on Hopper it is how many of the fastest matrix kernels are made.
#
# We build it, see who has to tell whom what, and where its time goes. Then comes the honest part: for this
# operator, with a TMA instruction for each small tile, it *loses*, and you will be able to say why, from
# numbers.

# %%
import numpy as np
from numba import cuda, int32, uint32, uint64

from numba_deform import Workload
from numba_deform.compiler import i32, kernel, u64
from numba_deform.course import bugs, lessons
from numba_deform.course.lessons import lesson5 as check
from numba_deform.course.lessons import pictures
from numba_deform.device.limits import limits_of
from numba_deform.device.memory import ld_shared_b32, shared_address, st_global_b32
from numba_deform.device.pipeline import (
    Ring,
    acquire,
    commit,
    first_state,
    full_barrier,
    init_barriers,
    make_advance,
    release,
    wait,
)
from numba_deform.device.sync import fence_mbarrier_init
from numba_deform.device.tma import cp_async_bulk_load
from numba_deform.kernels.budget import Budget
from numba_deform.kernels.problem import Constants
from numba_deform.kernels.registry import variant
from numba_deform.measure import timeline
from numba_deform.measure.systems import plan_operator, run_plan

engine = lessons.engine()
print(f"kernels run on: {engine}")

# %% [markdown]
# ## Two roles, one kernel
#
# A block has one producer warp and three consumer warps. A tile has 3 KB, one for each consumer. All of them
# run the same kernel; `if warp == 0` sends them different ways, and they never meet again.

# %%
LANES, CONSUMERS, TILES, WORDS, WORK = 32, 3, 6, 8, 64
PART_BYTES = 4 * LANES * WORDS  # of a tile, for one consumer warp
TILE_BYTES, TILE_WORDS = CONSUMERS * PART_BYTES, CONSUMERS * LANES * WORDS
THREADS = LANES * (1 + CONSUMERS)


@cuda.jit(device=True, inline="always")
def work(tile, lane, total):
    for k in range(WORK):
        word = ld_shared_b32(uint32(tile + uint32(4 * (lane + k % WORDS * LANES))))
        total = uint32(total * uint32(5) + word)
    return total


@cuda.jit(device=True, inline="always")
def issue(ring, state, data, tiles, i):
    """By one thread: tile i, into the state's stage."""
    commit(ring, state, TILE_BYTES)
    to = uint32(tiles + uint32(TILE_BYTES) * uint32(state.stage))
    start = data + uint64(TILE_BYTES) * uint64(i)
    cp_async_bulk_load(to, start, uint32(TILE_BYTES), full_barrier(ring, state))


def build_roles(stages):
    STAGES, READERS = stages, CONSUMERS * LANES
    advance = make_advance(stages)

    @kernel(threads=THREADS)
    def roles(data: u64, out: u64, items: i32):
        tile = cuda.shared.array((STAGES, TILE_WORDS), uint32, alignment=128)
        full = cuda.shared.array(STAGES, uint64)
        empty = cuda.shared.array(STAGES, uint64)
        tiles, ring = shared_address(tile), Ring(shared_address(full), shared_address(empty))
        tid = int32(cuda.threadIdx.x)
        warp, lane = int32(tid // LANES), int32(tid % LANES)
        if tid == 0:
            init_barriers(ring.full, STAGES, 1)  # the producer's lane 0
            init_barriers(ring.empty, STAGES, READERS)  # every consumer thread
            fence_mbarrier_init()
        cuda.syncthreads()
        state = first_state()
        if warp == 0:
            if lane == 0:
                for i in range(TILES):
                    acquire(ring, state)
                    issue(ring, state, data, tiles, i)
                    state = advance(state)
        else:
            consumer, total = int32(warp - 1), uint32(0)
            for _ in range(TILES):
                wait(ring, state)
                part = uint32(tiles + TILE_BYTES * state.stage + PART_BYTES * consumer)
                total = work(part, lane, total)
                release(ring, state)
                state = advance(state)
            st_global_b32(out + uint64(4 * (tid - LANES)), total)

    return roles


recorded = {s: check.trace(build_roles(s), f"{s} stage{'s' * (s > 1)}", engine) for s in (1, 2, 4)}
pictures.timelines(recorded[2])

# %% [markdown]
# Hatched is a producer in `acquire`, pale grey a consumer in `wait`. Compare the two halves with the loop
# of lesson 4. **The prologue is gone**, and so is the `S - 1`. The producer simply runs ahead, as far as the
# ring lets it, and `acquire` stops it where the ring is full. No line says how far ahead it is, so none can
# say it wrongly. Each role has one loop, one state, and one thing to wait for.

# %%
last = max(span.end for drawn in recorded.values() for span in drawn.spans)


def with_stages(stages):
    return pictures.timelines(recorded[stages], end=last)


lessons.slider(with_stages, start={"stages": 4}, stages=list(recorded))

# %% [markdown]
# ## Two barriers for each stage
#
# What the roles say to each other goes over two barriers, and each of them is spoken by one side and heard by
# the other:
#
# | barrier | arrives | waits | says |
# |---|---|---|---|
# | **full** | the producers (`commit`), and the bytes | the consumers (`wait`) | *it is there* |
# | **empty** | the consumers (`release`) | the producers (`acquire`) | *it may be overwritten* |
#
# Here is a life of both, for one stage with one producer and three consumer warps, where one lane arrives for
# each warp:

# %%
pictures.barrier_states(
    [
        ("init(3)", 0, 3, 3, 0),
        ("acquire, lap 0: parity 1 passes at once", 0, 3, 3, 0),
        ("warp 1 releases", 0, 2, 3, 0),
        ("warp 3 releases", 0, 1, 3, 0),
        ("warp 2 releases: the phase is complete", 1, 3, 3, 0),
        ("acquire, lap 1: parity 0 passes now", 1, 3, 3, 0),
    ],
    "empty",
)

# %%
pictures.barrier_states(
    [
        ("init(1)", 0, 1, 1, 0),
        ("commit: one arrival, 3072 B to come", 0, 0, 1, 3072),
        ("a part has landed", 0, 0, 1, 1024),
        ("all has landed: wait, lap 0, parity 0 passes", 1, 1, 1, 0),
    ],
    "full",
)

# %% [markdown]
# The count of a barrier is the number of *arrivals in one phase*: of calls, not of threads that exist. A
# thread that will never arrive must not be counted: we shall meet a kernel that died of it.
#
# Who arrives is a choice. In the package's `warp-specialized` it is the parameter `arrivals`:
#
# - `arrivals="lane"`: every lane arrives for itself, as in our kernel. Nothing else is needed.
# - `arrivals="warp"`: one lane arrives for its warp, after `syncwarp`. A 32nd of the arrivals.
#
# `lane` is the default: compute-sanitizer's racecheck can follow it, which does not see what `syncwarp` adds
# to another lane's arrival, and it was measured to be no slower (`bench/NOTES.md`). With `warp`, each warp of
# either role arrives once for each use of a stage.
#
# ## Exercise 1: the counts
#
# With how many arrivals are the two barriers of a stage initialised?


# %% exercise="counts"
def counts(producers, consumers, arrivals):
    """(count of full, count of empty) for so many warps of each role; arrivals is "warp" or "lane"."""
    full = ...
    empty = ...
    return full, empty


# %%
check.counts(counts)

# %% [markdown]
# What happens with one too many? Nothing is wrong in the first lap, since the producer need not wait there.
# In the second, everybody waits for everybody else. On the GPU such a kernel hangs without a word. The CPU
# engine counts:

# %%
lessons.cpu_only("The report of a missing arrival")
high = bugs.BUGS["count_too_high"]
launch = high.arguments()
lessons.show_fault(lambda: lessons.run(high.kernel(), launch.grid, launch.args, engine="cpu"))

# %% [markdown]
# ## Exercise 2: the producer's parity
#
# Our kernel leaves parities to `acquire`. Without it the producer would call `mbarrier_wait(empty + 8 *
# stage, parity)`. Write the parity, for each lap around the ring: 0, 1, 2, ... The consumer's is `lap & 1`,
# as in lesson 4.


# %% exercise="producer_parity"
def producer_parity(lap):
    """The parity with which the producer waits for an empty stage."""
    return ...


# %%
check.producer_parity(producer_parity)

# %% [markdown]
# ## Persistent blocks
#
# A block that ends after its tiles leaves the pipeline empty, and the next block starts with an empty one:
# barriers set up again, and again a first tile that everybody waits for. A **persistent** kernel has just as
# many blocks as fit on the GPU at once. Each of them takes an item of work, and the next, until none is left,
# and the producer goes on to the tiles of the next item while the consumers are still in the last one.
#
# All that changes is a loop around both roles. Two things must *not* change from item to item:
#
# - the barriers are initialised once, before the loop;
# - the state goes on. Stage and parity are those of the ring, and it knows nothing of items.
#
# The CUDA C++ experiments that this package began with had a persistent kernel too, and set up its barriers
# at the top of the loop. Here is that fault:

# %%
loop = bugs.BUGS["init_in_loop"]
launch = loop.arguments()
lessons.cpu_only("The report of an init in a loop")
lessons.show_fault(lambda: lessons.run(loop.kernel(), launch.grid, launch.args, engine="cpu"))

# %% [markdown]
# ## Exercise 3: the consumer's release
#
# The persistent kernel, with one difference more: *one* lane arrives for its warp, so empty counts three.
# Write the consumer's release.


# %% exercise="consumer"
def build_persistent(stages):
    STAGES = stages
    advance = make_advance(stages)

    @kernel(threads=THREADS)
    def persistent(data: u64, out: u64, items: i32):
        tile = cuda.shared.array((STAGES, TILE_WORDS), uint32, alignment=128)
        full = cuda.shared.array(STAGES, uint64)
        empty = cuda.shared.array(STAGES, uint64)
        tiles, ring = shared_address(tile), Ring(shared_address(full), shared_address(empty))
        tid = int32(cuda.threadIdx.x)
        warp, lane = int32(tid // LANES), int32(tid % LANES)
        if tid == 0:
            init_barriers(ring.full, STAGES, 1)
            init_barriers(ring.empty, STAGES, CONSUMERS)  # one lane of each consumer warp
            fence_mbarrier_init()
        cuda.syncthreads()
        state = first_state()
        item, stride = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)
        if warp == 0:
            while item < items and lane == 0:
                for i in range(TILES):
                    acquire(ring, state)
                    issue(ring, state, data, tiles, item * TILES + i)
                    state = advance(state)
                item = int32(item + stride)
        else:
            while item < items:
                consumer, total = int32(warp - 1), uint32(0)
                for _ in range(TILES):
                    wait(ring, state)
                    part = uint32(tiles + TILE_BYTES * state.stage + PART_BYTES * consumer)
                    total = work(part, lane, total)
                    ...  # give the stage back
                    state = advance(state)
                place = item * (CONSUMERS * LANES) + tid - LANES
                st_global_b32(out + uint64(4) * uint64(place), total)
                item = int32(item + stride)

    return persistent


# %%
(verdict := check.consumer(build_persistent, engine=engine))

# %% [markdown]
# When it is solved, the next cell draws it: one block, three items of six tiles, four stages. Try to find the
# seams. An item ends after six tiles, in the middle of a lap, and the producer has asked for the next one's
# tiles long before.


# %%
def seams():
    if not verdict.passed:
        return "first exercise 3, then this cell"
    return pictures.timelines(check.trace(build_persistent(4), "three items", engine, items=3))


seams()

# %% [markdown]
# There is a third trap in such loops: the tail. If the number of queries does not fill the last block, some
# threads have nothing to do, and a barrier that counts them waits for them. One of those experiments never
# returned for this reason. Its barrier counted all 256 threads of a block; 48 x 20522 queries are 15391.5
# blocks, and half of the last block's threads never came. In the package's kernels every thread of a role
# makes every step, and only the loads and stores ask whether there is something to load.
#
# ## Ratios
#
# How many warps for each role? The experiments were to try 1:7, 2:6, 3:5 and 4:4, and never came to it. All
# of them run here, as `roles-1-7` and so on. (The experiments counted their steps, and what was measured is
# recorded under these names: `phase5-1-7` is the old name of `roles-1-7`, and both work.) A small problem,
# and the timeline of block 0 for each:

# %%
small = Workload(
    "small", batch=1, levels=((8, 10), (4, 5)), num_query=28, num_heads=1, num_points=4
)
inputs = small.generate(seed=1)


def ratio(producers):
    plan = plan_operator(
        inputs, f"phase5-{producers}-{8 - producers}", engine, min_blocks=0, trace=True
    )
    return timeline.record(plan)


ratios = {f"{p}:{8 - p}": ratio(p) for p in (1, 2, 3, 4)}


def show_ratio(ratio):
    return pictures.timelines(ratios[ratio])


lessons.slider(show_ratio, start={"ratio": "2:6"}, ratio=list(ratios))

# %%
for name, drawn in ratios.items():
    shares = timeline.shares(drawn)
    for warp, role in ((0, "first producer"), (7, "last consumer ")):
        print(name, role, {what: f"{share:.0%}" for what, share in shares[warp].items()})

# %% [markdown]
# With one producer the picture is plain: it issues nearly all the time, and seven warps wait for it. With
# more of them, each has less to issue. Measured on an H200 (`bench/TABLE.md`, 31.5 million tiles):

# %%
times = check.measured("phase5-1-7", "phase5-2-6", "phase5-3-5", "phase5-4-4")
for name, ms in times.items():
    print(f"{name}  {ms:.2f} ms  {'#' * round(20 * ms)}")

# %% [markdown]
# One producer is too few. The best is at 2:6 or 3:5. With 4:4 it goes up again: only four of eight warps are
# left to hold rows, and that is what a block is there for.
#
# ## Exercise 4: who is the bottleneck?
#
# From the shares of a producer's and of a consumer's time, as `timeline.shares` gives them: which of the two
# limits the kernel? A producer has `acquire`, `issue`, `prepare`; a consumer `wait`, `compute`, `other`.
# There is a third possibility: neither of them, but the `"copies"` on their way.


# %% exercise="bottleneck"
def bottleneck(producer, consumer):
    """ "producers", "consumers" or "copies"."""
    return ...


# %%
check.bottleneck(bottleneck)

# %% [markdown]
# ## How does a consumer know what a sample weighs?
#
# To load a tile, the producer computes where it lies. To interpolate, the consumer needs the fractions and
# the attention weight. There are three ways, and they are the parameter `metadata`:
#
# | `metadata` | | variant |
# |---|---|---|
# | `recompute` | every consumer lane reads locations and weights again | `roles-recompute` (`phase1`) |
# | `shared` | the producers write the weights beside the tile, in shared memory | `roles-shared` (`phase2`) |
# | `shuffle` | a lane prepares some samples, the others fetch them by shuffle | `roles-shuffle` (`phase6`) |

# %%
constants, limits = Constants(levels=4, points=8, channels=32), limits_of("sm_90a")
for name, ms in check.measured("phase1", "phase2", "phase6").items():
    config = variant(name).configure(constants)
    taken = Budget.of(config, constants, limits).shared
    print(f"{name}  {config.metadata:9}  {taken.metadata:4} B of metadata a block  {ms:.2f} ms")

# %% [markdown]
# `shared` wins, for 1.5 KB. Who orders those writes before the consumers' reads? The full barrier, once more:
# `commit` is an arrival with *release*, and `wait` *acquires*. What a producer lane wrote before its arrival
# is there after the wait. With one arrival for a warp, a `syncwarp` has to collect the lanes' writes first.
#
# Both forms are right, and the numbers agree:

# %%
for arrivals in ("warp", "lane"):
    plan = plan_operator(inputs, "phase2", engine, min_blocks=0, arrivals=arrivals)
    print(f"arrivals={arrivals}: error {run_plan(plan, repeats=1).error:.1e}")

# %% [markdown]
# NVIDIA's racecheck does not follow the `syncwarp` there, and reports hazards in `arrivals="warp"` that are
# none (`bench/NOTES.md`). With `arrivals="lane"` every lane's writes are handed over by its own arrival,
# without a `syncwarp`. The CPU engine follows both.
#
# ## Does it pay?
#
# Now all of them in one table (local(2), H200, `bench/TABLE.md`), from plain loads to roles:

# %%
names = "direct", "tma-fastest", "tma", "tma-fp32", "warp-specialized", "phase2"
for name, ms in check.measured(*names).items():
    print(f"{name:17} {ms:.2f} ms  {'#' * round(25 * ms)}")

# %% [markdown]
# Roles lose. `roles-shared` (`phase2`) takes 1.43 times as long as `tma-fp32`, which has the same arithmetic,
# and in which every warp does everything. Even the best of the family, `warp-specialized` with 4 + 8 warps,
# larger stages and packed arithmetic, is behind `tma`. Look at the timeline that was recorded of
# `roles-shared` on the H200:

# %%
for row in check.measured_timeline()[:4]:
    extra = (
        f"{row['issue_cycles_per_tile']} cycles a tile" if "issue_cycles_per_tile" in row else ""
    )
    print(row["warp"], f"{row['role']:9}", {k: f"{v:.0%}" for k, v in row["share"].items()}, extra)

# %% [markdown]
# By exercise 4 you know who it is. The producers issue 72 % of their time, and the consumers wait as long. A
# tile costs a producer 81 cycles of issuing.
#
# Why so many, for one instruction? **A TMA load is an instruction of the warp, not of the lane.** Its
# operands, the address, the coordinates, the barrier, have to be the same for the whole warp. Here each lane
# has a tile of its own, so the compiler makes a loop of it: pick a lane, broadcast its operands, issue, next
# lane. A producer's 24 tiles of a step are 24 rounds. `tma` and `tma-fastest` have the same loop, but there
# all eight warps of a block issue. In `roles-shared` two of them do.
#
# ## Exercise 5: predict the time
#
# A producer takes `issue` cycles to issue a tile, and issues for a `share` of its time; the rest goes into
# getting ready and acquiring. Each block has `producers` such warps, and an SM holds `blocks` blocks. How
# many cycles go by on an SM for each tile?


# %% exercise="forecast"
def forecast(issue, share, producers, blocks):
    """Cycles of an SM for each tile."""
    return ...


# %%
check.forecast(forecast)

# %% [markdown]
# With 81.5 cycles, 72.5 %, two producers and the four blocks for which an SM has registers (55 a thread, says
# `numba-deform inspect variant=phase2`), it is 14 cycles. Times 31.5 million tiles, over 132 SMs at 1.98 GHz:

# %%
tiles = 48 * 20522 * 4 * 8
registers = 55
config = variant("phase2").configure(constants)
blocks = Budget.of(config, constants, limits, registers).occupancy.blocks
cycles = 81.5 / 0.725 / (2 * blocks)
print(
    f"{blocks} blocks, {cycles:.1f} cycles a tile: {cycles * tiles / 132 / 1.98e9 * 1e3:.2f} ms predicted,",
    f"{check.measured('phase2')['phase2']:.2f} measured",
)

# %% [markdown]
# So what two warps of a block do explains nearly the whole time, and nothing that the consumers do better
# will change it. More producers? They take warps from the consumers. And the TMA unit, which would take a
# tile every 8 cycles, is idle for nearly half the time.
#
# What else was tried is in `bench/NOTES.md`, for instance registers moved from producers to consumers by
# `setmaxnreg` (1.36 to 1.50 ms: they did not need them), or flags in place of the empty barrier (1.80 to 2.13
# ms: polling takes issue slots, and a barrier suspends the warp).
#
# ## When roles do pay
#
# When one instruction is worth much. The producers' price is *per instruction*; so let an instruction bring a
# large box that hundreds of samples read, and a single producer warp feeds fifteen consumer warps. That is
# how `window` works, the fastest kernel of this package where samples lie near their queries: 0.315 ms
# against 0.491 for plain loads (`bench/TABLE.md`). The same holds for matrix products, whose tiles are large.
#
# Warp specialization is not fast or slow. It moves the loading to few warps, and that is a gift if loading is
# few instructions, and a burden if it is many.
#
# ## What you know now
#
# - Producers acquire, commit, issue; consumers wait, compute, release. Each has one loop and one state.
# - Full counts the producers' arrivals and the bytes; empty counts the consumers'. One lane may speak for its
#   warp, after `syncwarp`.
# - The producer starts with the opposite parity.
# - Persistent blocks initialise once, and carry the state on.
# - The bottleneck is the role that never waits. Count what it does for each tile.
#
# You have now seen a good part of what can go wrong. [Lesson 6](06_debugging.py) is nothing but that: five
# broken pipelines, and you predict what the engine will say. The kernel of this lesson is
# [`kernels/warp_specialized.py`](../numba_deform/kernels/warp_specialized.py).

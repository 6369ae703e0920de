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
# *About 55 minutes. You have built the ring of [lesson 4](04_stages.py).*
#
# In lesson 4 every warp did everything: it asked for tiles, waited for them, and computed. This lesson
# gives the two jobs to different warps. **Producers** only load, and **consumers** only compute. This is
# called *warp specialization*. Many of the fastest matrix kernels on Hopper work this way.
#
# We build such a kernel, see who has to tell whom what, and measure where its time goes. Then comes the
# honest part. For this operator, with one TMA instruction for each small tile, warp specialization *loses*.
# You will be able to say why, with numbers.

# %%
import numpy as np
from numba import cuda, uint32

import numba_deform as nd
from numba_deform.course import bugs, lessons
from numba_deform.course.lessons import lesson5 as check
from numba_deform.course.lessons import pictures
from numba_deform.device.limits import limits_of
from numba_deform.kernels.budget import Budget
from numba_deform.kernels.problem import Constants
from numba_deform.kernels.registry import variant
from numba_deform.measure import timeline
from numba_deform.measure.systems import plan_operator

engine = lessons.engine()
print(f"kernels run on: {engine}")

# %% [markdown]
# ## Two roles, one kernel
#
# A block has one producer warp and three consumer warps. A tile has 3 KB, one for each consumer. All warps
# run the same kernel. `if warp == 0` sends them different ways, and they never meet again.
#
# The ring is that of lesson 4, with empty barriers: `nd.Ring` in `nd.Shared`. Its full barrier counts one
# arrival, that of the producer's `expect`, and its empty barrier those of the consumers' `release`.

# %%
LANES, CONSUMERS, TILES, WORDS, WORK = 32, 3, 6, 8, 64
TILE_BYTES = 4 * CONSUMERS * WORDS * LANES
THREADS = LANES * (1 + CONSUMERS)


def layout(stages, empty):
    """A block's shared memory: a tile for each stage, and a ring, where ``empty`` arrivals free a stage."""
    return nd.Shared(
        tiles=nd.Array((stages, CONSUMERS, WORDS, LANES), nd.uint32, alignment=128),
        ring=nd.Ring(stages, full=1, empty=empty),  # full: the producer's lane 0
    )


@nd.function
def work(tiles, stage, consumer, total):
    for k in range(WORK):
        total = total * 5 + tiles[stage, consumer, k % WORDS, nd.lane()]
    return total


def make_issue(shared):
    ring = shared.ring

    @nd.function
    def issue(data, state, i):
        """By one thread: tile i, into the state's stage."""
        ring.expect(state, TILE_BYTES)
        tile = nd.global_at(data, i, TILE_BYTES)
        nd.cp_async_bulk_load(shared.tiles.at(state.stage), tile, TILE_BYTES, ring.full(state))

    return issue


def build_roles(stages, empty=CONSUMERS * LANES):  # every consumer thread
    shared = layout(stages, empty)
    ring, issue = shared.ring, make_issue(shared)

    @nd.kernel(threads=THREADS, shared=shared)
    def roles(data: nd.u64, out: nd.uint32[:, :], items: nd.i32):
        shared.init()
        tiles, tid, warp, lane = shared.tiles.view(), cuda.threadIdx.x, nd.warp(), nd.lane()
        state = ring.start()
        if warp == 0:
            if lane == 0:
                for i in range(TILES):
                    ring.acquire(state)
                    issue(data, state, i)
                    state = ring.advance(state)
        else:
            consumer, total = warp - 1, uint32(0)
            for _ in range(TILES):
                ring.wait(state)
                total = work(tiles, state.stage, consumer, total)
                ring.release(state)
                state = ring.advance(state)
            out[0, tid - LANES] = total

    return roles


recorded = {s: check.trace(build_roles(s), f"{s} stage{'s' * (s > 1)}", engine) for s in (1, 2, 4)}
pictures.timelines(recorded[2])

# %% [markdown]
# Hatched is the producer in `acquire`, and light grey is a consumer in `wait`. Compare the two halves with
# the loop of lesson 4. **The prologue is gone**, and so is `S - 1`. The producer runs ahead as far as the
# ring allows, and `acquire` stops it when the ring is full. No line says how far ahead it is, so no line
# can get it wrong. Each role has one loop, one state, and one thing to wait for.

# %%
last = max(span.end for drawn in recorded.values() for span in drawn.spans)


def with_stages(stages):
    return pictures.timelines(recorded[stages], end=last)


lessons.slider(with_stages, start={"stages": 4}, stages=list(recorded))

# %% [markdown]
# ## Two barriers for each stage
#
# The roles talk to each other through two barriers. One side arrives, and the other side waits:
#
# | barrier | arrives | waits | means |
# |---|---|---|---|
# | **full** | the producers (`expect`), and the bytes | the consumers (`wait`) | *the tile is there* |
# | **empty** | the consumers (`release`) | the producers (`acquire`) | *the stage may be overwritten* |
#
# Here is what happens to both, for one stage, one producer and three consumer warps. One lane arrives for
# each warp:

# %%
pictures.barrier_states(
    [
        ("init(3)", 0, 3, 3, 0),
        ("acquire, lap 0: passes at once", 0, 3, 3, 0),
        ("warp 1 releases", 0, 2, 3, 0),
        ("warp 3 releases", 0, 1, 3, 0),
        ("warp 2 releases: the phase is complete", 1, 3, 3, 0),
        ("acquire, lap 1: passes now", 1, 3, 3, 0),
    ],
    "the empty barrier of a stage",
)

# %%
pictures.barrier_states(
    [
        ("init(1)", 0, 1, 1, 0),
        ("expect: one arrival, 3072 B to come", 0, 0, 1, 3072),
        ("a part has landed", 0, 0, 1, 1024),
        ("all has landed: wait, lap 0, parity 0 passes", 1, 1, 1, 0),
    ],
    "the full barrier of a stage",
)

# %% [markdown]
# A barrier's count is the number of *arrivals in one phase*. It counts calls, not threads that exist. Do
# not count a thread that will never arrive: later in this lesson a kernel hangs because of that.
#
# You can choose who arrives. In the package's `warp-specialized` the parameter `arrivals` decides:
#
# - `arrivals="lane"`: every lane arrives for itself, as in our kernel. Nothing else is needed.
# - `arrivals="warp"`: one lane arrives for its warp, after `syncwarp`. That makes 1 arrival instead of 32.
#
# `lane` is the default. NVIDIA's race detector (compute-sanitizer's racecheck) can follow it, and
# measurements show that it is no slower (`bench/NOTES.md`). With `warp`, each warp of either role arrives
# once for each use of a stage.
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
# What if empty counts one arrival too many? The first lap is fine, because the producer need not wait
# there. In the second lap everybody waits for everybody else. On a GPU such a kernel hangs without a word.
# The CPU engine counts:

# %%
lessons.cpu_only("The report of a missing arrival")
high = build_roles(2, empty=CONSUMERS * LANES + 1)
lessons.show_fault(lambda: check.trace(high, "one arrival too many", "cpu"))

# %% [markdown]
# ## Exercise 2: the producer's parity
#
# Our kernel leaves parities to `acquire`. Without it the producer would call
# `nd.mbarrier_wait(ring.empty(state), parity)`. Return that parity for each lap around the ring: 0, 1, 2,
# and so on.


# %% exercise="producer_parity"
def producer_parity(lap):
    """The parity with which the producer waits for an empty stage."""
    return ...


# %%
check.producer_parity(producer_parity)

# %% [markdown]
# ## Persistent blocks
#
# A block that ends after its tiles leaves an empty pipeline behind. The next block starts from nothing: it
# initialises its barriers, and everybody waits for its first tile. A **persistent** kernel has only as many
# blocks as fit on the GPU at once. Each block takes one work item after another, until none is left. The
# producer already loads the tiles of the next item while the consumers still compute the last one.
#
# The only change is a loop around both roles. Two things must *not* change from item to item:
#
# - The barriers are initialised once, before the loop.
# - The state goes on. Stage and parity belong to the ring, which knows nothing of items.
#
# The CUDA C++ experiments at the beginning of this package had a persistent kernel, too. It initialised its
# barriers inside the loop. Here is that fault:

# %%
loop = bugs.BUGS["init_in_loop"]
launch = loop.arguments()
lessons.cpu_only("The report of an init in a loop")
lessons.show_fault(lambda: lessons.run(loop.kernel(), launch.grid, launch.args, engine="cpu"))

# %% [markdown]
# ## Exercise 3: the consumer's release
#
# This is the persistent kernel, with one more difference: *one* lane arrives for its warp, so empty counts
# three. Write the consumer's release.


# %% exercise="consumer"
def build_persistent(stages):
    shared = layout(stages, empty=CONSUMERS)  # one lane of each consumer warp
    ring, issue = shared.ring, make_issue(shared)

    @nd.kernel(threads=THREADS, shared=shared)
    def persistent(data: nd.u64, out: nd.uint32[:, :], items: nd.i32):
        shared.init()
        tiles, tid, warp, lane = shared.tiles.view(), cuda.threadIdx.x, nd.warp(), nd.lane()
        state = ring.start()
        item, stride = cuda.blockIdx.x, cuda.gridDim.x
        if warp == 0:
            while item < items and lane == 0:
                for i in range(TILES):
                    ring.acquire(state)
                    issue(data, state, item * TILES + i)
                    state = ring.advance(state)
                item += stride
        else:
            while item < items:
                consumer, total = warp - 1, uint32(0)
                for _ in range(TILES):
                    ring.wait(state)
                    total = work(tiles, state.stage, consumer, total)
                    ...  # give the stage back
                    state = ring.advance(state)
                out[item, tid - LANES] = total
                item += stride

    return persistent


# %%
(verdict := check.consumer(build_persistent, engine=engine))

# %% [markdown]
# Once you have solved it, the next cell draws it: one block, three items of six tiles, four stages. Try to
# find where one item ends and the next begins. An item ends after six tiles, in the middle of a lap. By
# then the producer has long since asked for tiles of the next one.


# %%
def seams():
    if not verdict.passed:
        print("Solve exercise 3 first, then run this cell.")
        return None
    return pictures.timelines(check.trace(build_persistent(4), "three items", engine, items=3))


seams()

# %% [markdown]
# Such loops have a third trap: the tail. If the queries do not fill the last block, some of its threads
# have nothing to do. A barrier that counts them waits for them. One of the experiments never returned for
# this reason: its barrier counted all 256 threads of a block, but half of the last block's threads never
# came. In the package's kernels every thread of a role makes every step. Only the loads and stores ask
# whether there is something to load.
#
# ## Ratios
#
# How many warps should each role have? The experiments planned to try 1:7, 2:6, 3:5 and 4:4, but never did.
# Here they are, as `roles-1-7` and so on. First a small problem, and the timeline of block 0:

# %%
small = nd.Workload(
    "small", batch=1, levels=((8, 10), (4, 5)), num_query=28, num_heads=1, num_points=4
)
inputs = small.generate(seed=1)


def ratio(producers):
    name = f"roles-{producers}-{8 - producers}"
    return timeline.record(plan_operator(inputs, name, engine, min_blocks=0, trace=True))


ratios = {f"{p}:{8 - p}": ratio(p) for p in (1, 2, 3, 4)}


def show_ratio(ratio):
    return pictures.timelines(ratios[ratio])


lessons.slider(show_ratio, start={"ratio": "2:6"}, ratio=list(ratios))

# %%
for name, drawn in ratios.items():
    shares = timeline.shares(drawn)
    for warp, role in ((0, "first producer"), (7, "last consumer")):
        print(f"{name} {role:14}", *(f"{what} {share:4.0%} " for what, share in shares[warp].items()))

# %% [markdown]
# Read the shares. With more producers, each of them issues for a smaller part of its time. On the CPU
# engine both roles mostly wait, whatever the ratio. The problem is so small that the copies' latency
# decides. A full GPU is another matter. These are measurements on an H200 with 31.5 million tiles
# (`bench/TABLE.md`):

# %%
times = check.measured("roles-1-7", "roles-2-6", "roles-3-5", "roles-4-4")
for name, ms in times.items():
    print(f"{name}  {ms:.2f} ms  {'#' * round(20 * ms)}")

# %% [markdown]
# One producer is too few. The best ratios are 2:6 and 3:5. With 4:4 the time goes up again, because only
# four of eight warps are left to compute.
#
# ## Exercise 4: who is the bottleneck?
#
# You get the shares of a producer's and of a consumer's time, as `timeline.shares` returns them. Which of
# the two limits the kernel? A producer has `acquire`, `issue` and `prepare`: between two issues it computes
# where the next tiles lie. A consumer has `wait`, `compute` and `other`. There is a third possibility:
# neither of them, but the `"copies"` in flight.


# %% exercise="bottleneck"
def bottleneck(producer, consumer):
    """ "producers", "consumers" or "copies"."""
    return ...


# %%
check.bottleneck(bottleneck)

# %% [markdown]
# ## How does a consumer know a sample's weight?
#
# To load a tile, the producer computes where it lies. To interpolate, the consumer needs the fractions and
# the attention weight. There are three ways to get them. The parameter `metadata` chooses one:
#
# | `metadata` | | variant |
# |---|---|---|
# | `recompute` | every consumer lane reads locations and weights again | `roles-recompute` |
# | `shared` | the producers write the weights beside the tile, in shared memory | `roles-shared` |
# | `shuffle` | each lane prepares some samples, and the others fetch them by shuffle | `roles-shuffle` |
#
# (A *shuffle* hands a number from the register of one lane to the other lanes of its warp.)

# %%
constants, limits = Constants(levels=4, points=8, channels=32), limits_of("sm_90a")
for name, ms in check.measured("roles-recompute", "roles-shared", "roles-shuffle").items():
    config = variant(name).configure(constants)
    taken = Budget.of(config, constants, limits).shared
    print(f"{name:15}  {taken.metadata:4} B of metadata a block  {ms:.2f} ms")

# %% [markdown]
# `shuffle` wins by 1 %, and needs no memory for it. `shared` takes 1.5 KB, and its reads must come after its
# writes. What orders the producers' writes before the consumers' reads? The full barrier does. `expect` is an
# arrival, so it *releases*, and `wait` *acquires*. Whatever a producer lane wrote before its arrival is
# visible after the wait. If one lane arrives for its warp, a `syncwarp` has to collect the other lanes'
# writes first.
#
# ## Does it pay?
#
# Now all of them in one table, from plain loads to roles. The samples lie near their queries (`local(2)`),
# the GPU is an H200:

# %%
names = "direct", "tma-fastest", "tma", "tma-fp32", "warp-specialized", "roles-shared"
for name, ms in check.measured(*names).items():
    print(f"{name:17} {ms:.2f} ms  {'#' * round(25 * ms)}")

# %% [markdown]
# Roles lose. `roles-shared` takes 1.34 times as long as `tma-fp32`, which does the same arithmetic with
# warps that do everything. Even the best of the family, `warp-specialized` with 4 + 8 warps, larger stages
# and packed arithmetic (two fp16 numbers in one instruction), is slower than `tma`. Here is the timeline of
# `roles-shared`, recorded on the H200:

# %%
for row in check.measured_timeline()[:4]:
    extra = (
        f"{row['issue_cycles_per_tile']} cycles a tile" if "issue_cycles_per_tile" in row else ""
    )
    shares = (f"{what} {share:4.0%} " for what, share in row["share"].items())
    print(f"warp {row['warp']} {row['role']:9}", *shares, extra)

# %% [markdown]
# By exercise 4 you know who is the bottleneck. The producers issue for 72 % of their time, and the
# consumers wait for just as long. A producer spends 81 cycles to issue one tile.
#
# Why so many, for one instruction? **A TMA load is an instruction of the warp, not of the lane.** Its
# operands (address, coordinates, barrier) must be the same for the whole warp. Here each lane has its own
# tile. So the compiler makes a loop: pick a lane, broadcast its operands, issue, next lane. The 24 tiles of
# a producer's step take 24 rounds. `tma` has the same loop, but there all eight warps of a block issue. In
# `roles-shared` only two do.
#
# ## Exercise 5: predict the time
#
# A producer takes `issue` cycles to issue a tile, and issues for a `share` of its time. The rest goes into
# preparing and acquiring. Each block has `producers` such warps, and an SM holds `blocks` blocks. How many
# cycles does an SM take for each tile?


# %% exercise="forecast"
def forecast(issue, share, producers, blocks):
    """Cycles of an SM for each tile."""
    return ...


# %%
check.forecast(forecast)

# %% [markdown]
# We have 81.5 cycles, 72.5 %, two producers, and four blocks: with 55 registers a thread, an SM holds no
# more. That makes 14 cycles. Times 31.5 million tiles, divided among 132 SMs at 1.98 GHz:

# %%
tiles = 48 * 20522 * 4 * 8
registers = 55
config = variant("roles-shared").configure(constants)
blocks = Budget.of(config, constants, limits, registers).occupancy.blocks
cycles = 81.5 / 0.725 / (2 * blocks)
milliseconds = cycles * tiles / 132 / 1.98e9 * 1e3
print(
    f"{blocks} blocks, {cycles:.1f} cycles a tile: {milliseconds:.2f} ms predicted,",
    f"{check.measured('roles-shared')['roles-shared']:.2f} ms measured",
)

# %% [markdown]
# So two warps of each block explain nearly the whole time. Nothing that the consumers do better will change
# it. More producers would take warps from the consumers. Meanwhile the TMA unit, which could accept a tile
# every 8 cycles, is idle for nearly half the time. `bench/NOTES.md` tells what else was tried.
#
# ## When roles do pay
#
# Roles pay when one instruction brings much. A producer's cost is *per instruction*. So let one instruction
# bring a large box from which hundreds of samples read. Then a single producer warp feeds fifteen consumer
# warps. `window` works this way. It is this package's fastest kernel where samples lie near their queries:
# 0.319 ms, against 0.492 for plain loads (`bench/TABLE.md`). The same holds for matrix products, whose
# tiles are large.
#
# Warp specialization is neither fast nor slow in itself. It moves the loading to a few warps. This helps if
# loading takes few instructions, and hurts if it takes many.
#
# ## Assignment: a whole kernel
#
# *Another 40 minutes.* So far you filled holes. Now write a kernel of two roles from its first line to its
# last: the largest number of each of 32 columns. `data` is the address of `tiles` tiles of 8 rows of 32 numbers
# (`uint32`), 1024 bytes each, one behind the other. Lane `l` stores the largest number of column `l` in
# `out[l]`. One warp asks for tiles by `nd.cp_async_bulk_load`, the other reads them, and a ring of `stages`
# stages lies between them.
#
# The check runs it with numbers of stages and tiles, schedules and landings that are not told here. It counts
# the copies, and looks whether three stages make it faster than one.


# %% exercise="largest"
def build_largest(stages):
    """The kernel (data: nd.u64, out: nd.uint32[:], tiles: nd.i32) of 64 threads."""
    return ...


# %%
check.largest(build_largest)

# %% [markdown]
# ## What you know now
#
# - Producers acquire, expect and issue. Consumers wait, compute and release. Each role has one loop and one
#   state.
# - Full counts the producers' arrivals and the bytes. Empty counts the consumers' arrivals. One lane may
#   arrive for its warp, after `syncwarp`.
# - The producer starts with the opposite parity.
# - Persistent blocks initialise once, and keep their state.
# - The bottleneck is the role that never waits. Count what it does for each tile.
#
# You have now seen much of what can go wrong. [Lesson 6](06_debugging.py) is about nothing else. The kernel
# of this lesson is [`kernels/warp_specialized.py`](../numba_deform/kernels/warp_specialized.py).

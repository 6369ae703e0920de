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
# # 6 · Debugging
#
# *About 90 minutes. Lessons 2, 4 and 5 come before it: barriers, stages, roles.*
#
# A wrong pipeline has four ways to show it. It hangs and says nothing. It ends in an error that names
# nothing. It gives wrong numbers. Or it gives *right* numbers, today, on this GPU. Of the 30 faults that are
# planted in this package, an H200 treats them so:

# %%

from collections import Counter

import numpy as np
from numba import cuda, int32, uint32, uint64

from numba_deform import SimFault, simulate
from numba_deform.compiler import i32, kernel, u64
from numba_deform.course import lessons
from numba_deform.course.bugs import BUGS
from numba_deform.course.bugs.base import poison, random_words
from numba_deform.course.lessons import lesson6 as check
from numba_deform.course.lessons import pictures
from numba_deform.course.lessons.results import results
from numba_deform.device.mbarrier import mbarrier_arrive, mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import (
    ld_acquire_cta_shared_b32,
    ld_global_b32,
    shared_address,
    st_global_b32,
    st_release_cta_shared_b32,
)
from numba_deform.device.pipeline import init_barriers, mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_load,
    cp_async_bulk_store,
    cp_async_bulk_wait_group,
)
from numba_deform.engines.cpu import explore

engine = lessons.engine()
print(f"kernels run on: {engine}")
on_the_h200 = {row["bug"]: row for row in results("bugs")["rows"]}
print("30 planted faults on an H200:", Counter(row["gpu"] for row in on_the_h200.values()))

# %% [markdown]
# A third of them are right, by luck. So neither "it runs" nor "the numbers agree" says that a pipeline is
# right. What can be relied on is a *reason*: which rule makes this read come after that write?
#
# You will meet five broken pipelines, each broken in one line. Do the same three things with each:
#
# 1. **Predict.** Read the kernel, and say what happens. This is the part that trains you, so do it before you
#    run the next cell.
# 2. **Let the engine explain.** Compare its report with what you said.
# 3. **Mend.** The kernel stands there once more with a hole in the line that was at fault. The check runs it
#    in several schedules, and with copies that land early, late and at random.
#
# Lines that we talk about are marked with letters.

# %% [markdown]
# ## First pipeline: silence
#
# Thread 0 is the producer, as in lesson 5. Two warps, 64 threads, add up the tiles, each thread its own
# number of each tile. One lane of each warp gives the stage back, after a `syncwarp`.

# %%
STAGES, ITEMS, READERS = 2, 6, 64
TILE_BYTES = 4 * READERS


@kernel(threads=32 + READERS)
def roles(data: u64, out: u64):
    tile = cuda.shared.array((STAGES, READERS), uint32, alignment=128)
    full_bars = cuda.shared.array(STAGES, uint64)
    empty_bars = cuda.shared.array(STAGES, uint64)
    tiles, full, empty = shared_address(tile), shared_address(full_bars), shared_address(empty_bars)
    tid = int32(cuda.threadIdx.x)
    if tid == 0:
        init_barriers(full, STAGES, 1)  # A
        init_barriers(empty, STAGES, READERS)  # B
        fence_mbarrier_init()
    cuda.syncthreads()
    if tid == 0:  # the producer
        for i in range(ITEMS):
            stage, parity = i % STAGES, (i // STAGES) & 1
            slot, bar = tiles + TILE_BYTES * stage, full + 8 * stage
            mbarrier_wait(empty + 8 * stage, parity ^ 1)  # C
            mbarrier_arrive_expect_tx(bar, TILE_BYTES)
            cp_async_bulk_load(slot, data + uint64(TILE_BYTES * i), TILE_BYTES, bar)
    elif tid >= 32:  # the consumers
        reader, total = int32(tid - 32), uint32(0)
        for i in range(ITEMS):
            stage, parity = i % STAGES, (i // STAGES) & 1
            mbarrier_wait(full + 8 * stage, parity)  # D
            total += tile[stage, reader]
            cuda.syncwarp()
            if reader % 32 == 0:
                mbarrier_arrive(empty + 8 * stage)  # E
        st_global_b32(out + uint64(4 * reader), uint32(total))


# %% [markdown]
# ### Predict: where do they stand?
#
# This kernel never ends. On which kind of barrier, `"full"` or `"empty"`, does the producer wait in the end,
# on which do the consumers, and how many tiles has each reader added by then?

# %% exercise="standstill"
producer = ...
consumers = ...
tiles = ...

# %%
check.standstill(producer=producer, consumers=consumers, tiles=tiles)

# %% [markdown]
# ### Let the engine explain
#
# When nobody can go on and no copy is in flight, the CPU engine draws who waits for whom: each group of
# threads, the line and the barrier where it waits, the barrier's state, what is missing, and who could bring
# it.

# %%
data, out = random_words(ITEMS, READERS, seed=1), poison(READERS)
lessons.cpu_only("The drawing of who waits for whom")
lessons.show_fault(lambda: lessons.run(roles, 1, (data, out), engine="cpu"))

# %% [markdown]
# Read it from the top. Group A, the producer, waits on `empty_bars[0]`: **pending 62 of 64**. Two have
# arrived, 62 are missing. Group B waits on full, for one arrival that only A can make. `circle: A -> B -> A`
# is the deadlock, and one of its two arrows is wrong.
#
# B to A is all right: the tile is not there, and it cannot be. A to B is not. Those who could end A's wait
# are threads 33-63 and 65-95, and the kernel never lets them: only lanes 0 arrive. A pending count that stops
# at "all but two of 64" is nearly always this: **the barrier counts threads where the code arrives by
# warps**, or the other way round.
#
# ### Mend

# %% exercise="arrivals"


@kernel(threads=32 + READERS)
def roles(data: u64, out: u64):
    tile = cuda.shared.array((STAGES, READERS), uint32, alignment=128)
    full_bars = cuda.shared.array(STAGES, uint64)
    empty_bars = cuda.shared.array(STAGES, uint64)
    tiles, full, empty = shared_address(tile), shared_address(full_bars), shared_address(empty_bars)
    tid = int32(cuda.threadIdx.x)
    if tid == 0:
        init_barriers(full, STAGES, 1)  # A
        init_barriers(empty, STAGES, ...)  # B
        fence_mbarrier_init()
    cuda.syncthreads()
    if tid == 0:  # the producer
        for i in range(ITEMS):
            stage, parity = i % STAGES, (i // STAGES) & 1
            slot, bar = tiles + TILE_BYTES * stage, full + 8 * stage
            mbarrier_wait(empty + 8 * stage, parity ^ 1)  # C
            mbarrier_arrive_expect_tx(bar, TILE_BYTES)
            cp_async_bulk_load(slot, data + uint64(TILE_BYTES * i), TILE_BYTES, bar)
    elif tid >= 32:  # the consumers
        reader, total = int32(tid - 32), uint32(0)
        for i in range(ITEMS):
            stage, parity = i % STAGES, (i // STAGES) & 1
            mbarrier_wait(full + 8 * stage, parity)  # D
            total += tile[stage, reader]
            cuda.syncwarp()
            if reader % 32 == 0:
                mbarrier_arrive(empty + 8 * stage)  # E
        st_global_b32(out + uint64(4 * reader), uint32(total))


# %%
check.arrivals(roles, engine=engine)

# %% [markdown]
# ## Second pipeline: the numbers are right
#
# One warp that loads for itself. Lane 0 asks for the next tile, all lanes wait for this one and add it. There
# is no empty barrier, since those who read and the one who loads are the same warp.

# %%
LANES = 32
ROW_BYTES = 4 * LANES


@kernel(threads=LANES)
def pipeline(data: u64, out: u64):
    tile = cuda.shared.array((STAGES, LANES), uint32, alignment=128)
    full_bars = cuda.shared.array(STAGES, uint64)
    tiles, full = shared_address(tile), shared_address(full_bars)
    lane = int32(cuda.threadIdx.x)
    if lane == 0:
        init_barriers(full, STAGES, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, ROW_BYTES)  # prologue: tile 0
        cp_async_bulk_load(tiles, data, ROW_BYTES, full)
    cuda.syncwarp()
    total = uint32(0)
    for i in range(ITEMS):
        ahead = i + 1
        if lane == 0 and ahead < ITEMS:
            slot, bar = tiles + ROW_BYTES * (ahead % STAGES), full + 8 * (ahead % STAGES)
            mbarrier_arrive_expect_tx(bar, ROW_BYTES)  # A
            cp_async_bulk_load(slot, data + uint64(ROW_BYTES * ahead), ROW_BYTES, bar)  # B
        stage, parity = i % STAGES, (i // STAGES) & 1
        mbarrier_wait(full + 8 * stage, parity)  # C
        total += tile[stage, lane]  # D
    st_global_b32(out + uint64(4 * lane), uint32(total))


# %% [markdown]
# It is the planted fault `no_warp_sync`, and this is what the GPU makes of it:

# %%
data, out = random_words(ITEMS, LANES, seed=2), poison(LANES)
if engine == "gpu":
    lessons.run(pipeline, 1, (data, out), engine=engine)
    print("wrong numbers:", np.count_nonzero(out != data.sum(axis=0)))
else:
    print("an H200, from bench/results/bugs.json:", on_the_h200["no_warp_sync"]["text"])

# %% [markdown]
# ### Predict: which two lines race?
#
# Two lines touch the same bytes of a tile, one of them writing, and nothing orders them. Give their letters,
# in any order. The one reads in iteration `i`. How many iterations later does the other come?

# %% exercise="race"
lines = (..., ...)
later = ...

# %%
check.race(lines=lines, later=later)

# %% [markdown]
# ### Let the engine explain

# %%
lessons.cpu_only("Judging a race by its reason")
lessons.show_fault(lambda: lessons.run(pipeline, 1, (data, out), engine="cpu"))

# %% [markdown]
# No number was lost in this run either, and still it is reported. The engine does not watch for damage. It
# keeps for every byte who touched it last, and for every thread what it *knows* of the others (a vector
# clock, handed on by barriers). Thread 31 has read, and thread 0 has no way to know. That is all that a race
# is, and the verdict is the same in every schedule.
#
# When would it do damage? Since Volta the lanes of a warp may drift apart. If one of them is late, by a
# compiler's different mood or a cache miss, lane 0's next tile arrives under its hands.
#
# ### Mend

# %% exercise="warp_sync"


@kernel(threads=LANES)
def pipeline(data: u64, out: u64):
    tile = cuda.shared.array((STAGES, LANES), uint32, alignment=128)
    full_bars = cuda.shared.array(STAGES, uint64)
    tiles, full = shared_address(tile), shared_address(full_bars)
    lane = int32(cuda.threadIdx.x)
    if lane == 0:
        init_barriers(full, STAGES, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, ROW_BYTES)  # prologue: tile 0
        cp_async_bulk_load(tiles, data, ROW_BYTES, full)
    cuda.syncwarp()
    total = uint32(0)
    for i in range(ITEMS):
        ahead = i + 1
        if lane == 0 and ahead < ITEMS:
            slot, bar = tiles + ROW_BYTES * (ahead % STAGES), full + 8 * (ahead % STAGES)
            mbarrier_arrive_expect_tx(bar, ROW_BYTES)  # A
            cp_async_bulk_load(slot, data + uint64(ROW_BYTES * ahead), ROW_BYTES, bar)  # B
        stage, parity = i % STAGES, (i // STAGES) & 1
        mbarrier_wait(full + 8 * stage, parity)  # C
        total += tile[stage, lane]  # D
        ...
    st_global_b32(out + uint64(4 * lane), uint32(total))


# %%
check.warp_sync(pipeline, engine=engine)

# %% [markdown]
# ## Third pipeline: it depends on the size
#
# A thread for each query. Thread 0 publishes the weight of each point, a barrier of the whole block hands it
# on, and all use it. The launch is rounded up to whole blocks, and threads without a query leave at once, as
# in every first CUDA kernel.

# %%
POINTS, THREADS = 4, 64


@kernel(threads=THREADS)
def weighted(weights: u64, data: u64, out: u64, queries: i32):
    metadata = cuda.shared.array(POINTS, uint32)
    bars = cuda.shared.array(1, uint64)
    bar, tid = shared_address(bars), int32(cuda.threadIdx.x)
    query = int32(cuda.blockIdx.x * THREADS + tid)
    if tid == 0:
        mbarrier_init(bar, THREADS)
    cuda.syncthreads()
    if query >= queries:
        return
    number, total = ld_global_b32(data + uint64(4 * query)), uint32(0)
    for point in range(POINTS):
        if tid == 0:
            metadata[point] = ld_global_b32(weights + uint64(4 * point))
        mbarrier_arrive(bar)
        mbarrier_wait(bar, point & 1)
        total += metadata[point] * number
    st_global_b32(out + uint64(4 * query), uint32(total))


# %% [markdown]
# ### Predict: for which numbers of queries does it hang?
#
# Choose from 64, 96, 128 and 200.

# %% exercise="tail"
hangs = [...]

# %%
check.tail(hangs=hangs)

# %% [markdown]
# ### Let the engine explain, and the GPU
#
# This cell runs on your engine. On a GPU, `lessons.run` launches the **guarded form** of a kernel: its source
# is rewritten so that every wait looks at the clock, and after a second the whole grid ends, with a report
# instead of a hang. (In your own programs: `numba_deform.engines.gpu.guard.launch_guarded`, or `debug=1` on
# the command line.)


# %%
def attend(queries, where=engine):
    weights, data = random_words(POINTS, seed=3), random_words(queries, seed=4)
    out, blocks = poison(queries), -(-queries // THREADS)
    return lessons.run(weighted, blocks, (weights, data, out, queries), engine=where)


lessons.show_fault(lambda: attend(96))

# %% [markdown]
# And this is what the guarded form said on an H200, of the planted fault `tail_skips_barrier`:

# %%
print(on_the_h200["tail_skips_barrier"]["debug_text"])

# %% [markdown]
# A GPU knows where its threads wait, and for which parity. It does not know who has arrived: a barrier
# counts, and nobody keeps a list. The CPU engine does, and names the threads that have left. So the guarded
# form tells you *where*, and you go to the CPU engine for *why*.
#
# This fault comes from the CUDA C++ experiments that this package began with: 48 × 20522 queries fill 15391
# blocks of 64, and half of one more. A test whose queries fill their blocks sees nothing of it. Test with a
# size that does not.
#
# Why is the same early `return` harmless with `syncthreads`? Because the hardware counts exited threads as
# arrived there. An mbarrier is only a number in memory, and no exit changes it.
#
# ### Mend

# %% exercise="rounds"


@kernel(threads=THREADS)
def weighted(weights: u64, data: u64, out: u64, queries: i32):
    metadata = cuda.shared.array(POINTS, uint32)
    bars = cuda.shared.array(1, uint64)
    bar, tid = shared_address(bars), int32(cuda.threadIdx.x)
    query = int32(cuda.blockIdx.x * THREADS + tid)
    if tid == 0:
        mbarrier_init(bar, THREADS)
    cuda.syncthreads()
    number, total = uint32(0), uint32(0)
    if query < queries:
        number = ld_global_b32(data + uint64(4 * query))
    my_rounds = ...
    for point in range(my_rounds):
        if tid == 0:
            metadata[point] = ld_global_b32(weights + uint64(4 * point))
        mbarrier_arrive(bar)
        mbarrier_wait(bar, point & 1)
        total += metadata[point] * number
    if query < queries:
        st_global_b32(out + uint64(4 * query), uint32(total))


# %%
check.rounds(weighted, engine=engine)

# %% [markdown]
# ## Fourth pipeline: one order of many
#
# A producer puts a number into a box and says by a flag how far it is. The consumer does not wait. It looks
# at the flag *once*: if there is something in the box it takes it, if not it fetches the number itself. Looks
# of this kind belong to kernels that share out their work as they go.

# %%
EMPTY, WRITING, READY = 0, 1, 2


@kernel(threads=64)
def mailbox(data: u64, out: u64):
    box = cuda.shared.array(1, uint32)
    flags = cuda.shared.array(1, uint32)
    flag, tid = shared_address(flags), int32(cuda.threadIdx.x)
    if tid == 0:
        flags[0] = EMPTY
    cuda.syncthreads()
    if tid == 0:  # the producer
        st_release_cta_shared_b32(flag, uint32(WRITING))  # A
        box[0] = ld_global_b32(data)  # B
        st_release_cta_shared_b32(flag, uint32(READY))  # C
    elif tid == 32:  # the consumer
        seen = ld_acquire_cta_shared_b32(flag)  # D
        taken = seen != EMPTY
        number = uint32(0)
        if taken:
            number = uint32(box[0])  # E
        else:
            number = ld_global_b32(data)
        st_global_b32(out, number)
        st_global_b32(out + uint64(4), uint32(taken))


# %% [markdown]
# ### Predict: where does the look have to fall?
#
# The flag changes twice, so there are three places for line D: `"before A"`, `"between A and C"`, `"after
# C"`. In which of them is the kernel wrong?

# %% exercise="order"
place = ...

# %%
check.order(place=place)

# %% [markdown]
# ### Let the engine explain
#
# Let us try a hundred random schedules, with each way of landing:

# %%
lessons.cpu_only("Random schedules, and all schedules")
data, out = random_words(1, seed=5), poison(2)
for landing in ("late", "random", "earliest"):
    report = simulate(mailbox, 1, 64, (data, out), schedules=100, landing=landing)
    print(f"{report.schedules} schedules, landing {landing}: nothing was reported")

# %% [markdown]
# 300 runs, and nothing. The engine's random schedules change threads where they wait, and nobody waits here:
# a thread that is started runs to its end. A GPU would not meet it often either: the look has to fall into
# the few hundred cycles between A and C.
#
# For a small kernel there is something better than chance. `explore` tries **every order** of its barrier,
# flag and copy events, where the order of two events can matter:

# %%
try:
    explore(mailbox, 1, 64, (data, out))
except SimFault as fault:
    seed = fault.seed
print(f"the seed: {seed!r}")
lessons.show_fault(lambda: simulate(mailbox, 1, 64, (data, out), seed=seed))

# %% [markdown]
# The seed is not a number, it is the schedule itself: which of the threads that could go on did, step by
# step. `simulate(..., seed=...)` runs exactly this one again, as often as you like, with a `print` in the
# kernel if you want. Go through it, and then through the schedule in which the threads run in turn. Only what
# the other thread can see is a step; lines B and E are not, they hang on the step before them:


# %%
schedules = {
    name: check.steps_of(mailbox, (data, out), text)
    for name, text in {"found": seed, "in turn": "x:0:"}.items()
}


def go(order, step):
    return pictures.schedule(schedules[order], step, f"{order}: step {step}")


most = max(map(len, schedules.values()))
lessons.slider(go, start={"step": 2}, order=list(schedules), step=range(1, most + 1))

# %% [markdown]
# In the order that was found, warp 1 looks at the flag between A and C: it is no longer empty, so the
# number is taken, and nothing says that it has been written.
#
# ### Mend

# %% exercise="ready"


@kernel(threads=64)
def mailbox(data: u64, out: u64):
    box = cuda.shared.array(1, uint32)
    flags = cuda.shared.array(1, uint32)
    flag, tid = shared_address(flags), int32(cuda.threadIdx.x)
    if tid == 0:
        flags[0] = EMPTY
    cuda.syncthreads()
    if tid == 0:  # the producer
        st_release_cta_shared_b32(flag, uint32(WRITING))  # A
        box[0] = ld_global_b32(data)  # B
        st_release_cta_shared_b32(flag, uint32(READY))  # C
    elif tid == 32:  # the consumer
        seen = ld_acquire_cta_shared_b32(flag)  # D
        taken = ...
        number = uint32(0)
        if taken:
            number = uint32(box[0])  # E
        else:
            number = ld_global_b32(data)
        st_global_b32(out, number)
        st_global_b32(out + uint64(4), uint32(taken))


# %%
check.ready(mailbox)

# %% [markdown]
# What `explore` says when it finds nothing is a statement of what was covered. Here is one, for the right
# twin of a planted fault:

# %%
bug = BUGS["release_too_early"]
launch = bug.arguments()
print(explore(bug.kernel(False), launch.grid, bug.kernel(False).threads, launch.args))

# %% [markdown]
# ## Fifth pipeline: nobody notices
#
# The last one writes a tile to shared memory, and lets the copy engine store it to global memory.

# %%


@kernel(threads=LANES)
def add_one(data: u64, out: u64):
    tile = cuda.shared.array(LANES, uint32, alignment=128)
    lane = int32(cuda.threadIdx.x)
    tile[lane] = uint32(ld_global_b32(data + uint64(4 * lane)) + uint32(1))
    cuda.syncwarp()
    if lane == 0:
        cp_async_bulk_store(out, shared_address(tile), ROW_BYTES)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(uint32(0))


# %% [markdown]
# ### Predict: who will tell you?
#
# NVIDIA's compute-sanitizer has four tools: `memcheck` looks at addresses, `racecheck` at shared memory
# touched by two threads, `synccheck` at barriers, `initcheck` at memory that nothing has written. Which of
# these notice that something is missing here: `"numbers"` (they were wrong on the H200), the four tools by
# name, `"CPU engine"`? Give all that do.

# %% exercise="notice"
who = [...]

# %%
check.notice(who=who)

# %% [markdown]
# ### Let the engine explain

# %%
data, out = random_words(LANES, seed=6), poison(LANES)
lessons.cpu_only("The rules of proxies")
lessons.show_fault(lambda: lessons.run(add_one, 1, (data, out), engine="cpu"))

# %% [markdown]
# The copy engine looks at shared memory through another *proxy*, another path with its own order. `syncwarp`
# brings the lanes together, and says nothing about the two paths: the engine may find what was there before.
# `fence.proxy.async` closes the gap. In a kernel of sgl-project/sglang 86 of 100 results changed when it was
# missing (their pull request 39124); on our H200, with this kernel, none did.
#
# ### Mend

# %% exercise="proxy_fence"


@kernel(threads=LANES)
def add_one(data: u64, out: u64):
    tile = cuda.shared.array(LANES, uint32, alignment=128)
    lane = int32(cuda.threadIdx.x)
    tile[lane] = uint32(ld_global_b32(data + uint64(4 * lane)) + uint32(1))
    ...
    cuda.syncwarp()
    if lane == 0:
        cp_async_bulk_store(out, shared_address(tile), ROW_BYTES)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(uint32(0))


# %%
check.proxy_fence(add_one, engine=engine)

# %% [markdown]
# ## Who sees what
#
# The same question for the planted faults that are nearest to what you saw, and two others. From
# `bench/results`; all 30 are in [`bench/FAULTS.md`](../bench/FAULTS.md). A full square: it says something of
# this fault. That need not be the fault's name: racecheck speaks of a race also where there is none.

# %%
FAULTS = (
    "count_too_high", "no_warp_sync", "tail_skips_barrier", "flag_without_release",
    "no_proxy_fence", "parity_two_behind", "expect_too_many",
)  # fmt: skip
COLUMNS = ("H200 alone", "H200, guarded", *check.TOOLS, "CPU engine")
under_tools = {row["bug"]: row for row in results("sanitizer_bugs")["rows"]}
sees = []
for name in FAULTS:
    gpu, tools = on_the_h200[name], under_tools[name]
    sees.append(
        [gpu["gpu"] != "right", gpu["debug"] == "report"]
        + [tools[tool] != "nothing" for tool in check.TOOLS]
        + [bool(gpu["cpu_engine"])]
    )
pictures.grid(sees, FAULTS, COLUMNS, title="who says something of which fault")

# %% [markdown]
# Use them all, they look at different things. memcheck is the one for a kernel's global addresses, which the
# CPU engine sees only at the sizes that you can afford to simulate. And a guarded launch is the first thing
# to try when something hangs that you can only run at full size.
#
# ## What the engine cannot tell you
#
# - **Legal and wrong.** A tensor map with two dimensions exchanged breaks no rule. Only a comparison with
#   something independent finds it:

# %%
bug = BUGS["map_dims_order"]
launch = bug.arguments()
lessons.show_fault(lambda: lessons.run(bug.kernel(), launch.grid, launch.args, engine="cpu"))

# %%
print(f"{launch.wrong()} of {launch.out.size} numbers are wrong")

# %% [markdown]
# - **Blocks take turns** on it: one runs until it ends or waits for others, then the next. In what order they
#   come is no matter of the seed. Textures and matrix instructions are not modelled.
# - **It sees what you run.** A path that this input does not take is not judged: hence odd sizes, several
#   levels, samples outside the border.
# - **`explore` keeps the lanes of a warp in step.** It is for kernels with a few dozen events. Of several
#   faults it may meet one only: mend it, and run again.
# - **The rule it names may be the second one broken.** A missing wait often shows at the arrival that
#   follows. The cure is the same.
# - **The guarded form** bounds waits on mbarriers, on barriers of threads, and loops that poll. Lanes that
#   wait for each other in two different shuffles still hang.
#
# All of them are in [`bench/FAULTS.md`](../bench/FAULTS.md).
#
# ## What you know now
#
# - Read a deadlock's drawing for the arrow that is wrong. "pending 62 of 64" is a count of threads where
#   warps arrive.
# - Right numbers prove nothing about a race. Ask how the one who writes *knows* that the others have read.
# - Every thread that a barrier counts has to come, in every phase, also those without work. Test with a size
#   that does not fit.
# - Chance does not find what needs one order; `explore` does, and gives you a seed.
# - Between your writes and the copy engine stands a fence, in every thread that wrote.
#
# All 30 faults, with their stories: `numba-deform bugs`. A pipeline that is right may still be slow, and
# [lesson 7](07_how_fast.py) asks how fast it could be at all.

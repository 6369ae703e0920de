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
# *About 75 minutes. There is a good place to rest after the third pipeline, at 45. You know barriers,
# stages and roles (lessons 2, 4 and 5).*
#
# A wrong pipeline can fail in four ways. It hangs and says nothing. It ends in an error that names nothing.
# It gives wrong numbers. Or it gives *right* numbers, today, on this GPU. This package contains 31 planted
# faults. Here is what 30 of them do on an H200 (the last is that of [lesson 11](11_tensor_cores.py)):

# %%

import textwrap
from collections import Counter

import numpy as np
from numba import cuda, uint32

import numba_deform as nd
from numba_deform.course import lessons
from numba_deform.course.bugs import BUGS
from numba_deform.course.bugs.base import poison, random_words
from numba_deform.course.lessons import lesson6 as check
from numba_deform.course.lessons import pictures
from numba_deform.course.lessons.results import results

engine = lessons.engine()
print(f"kernels run on: {engine}")
on_the_h200 = {row["bug"]: row for row in results("bugs")["rows"]}
OUTCOMES = {
    "hang": "hang", "error": "end in an error",
    "wrong": "give wrong numbers", "right": "give right numbers",
}  # fmt: skip
counted = Counter(row["gpu"] for row in on_the_h200.values())
for outcome, words in OUTCOMES.items():
    print(f"{counted[outcome]:2} of {len(on_the_h200)} planted faults {words}")

# %% [markdown]
# A third of them give right numbers, by luck. So neither "it runs" nor "the numbers agree" proves that a
# pipeline is right. What you need is a *reason*: which rule makes this read come after that write?
#
# You will meet five broken pipelines. In each of them one line is wrong. Always take the same three steps:
#
# 1. **Predict.** Read the kernel and say what happens. This step trains you most, so take it before you run
#    the next cell.
# 2. **Let the engine explain.** Compare its report with your prediction.
# 3. **Mend.** You write the faulty line anew. The check runs the kernel in several schedules, with copies
#    that land early, late and at random.
#
# A *schedule* is an order in which the threads take their turns. Letters mark the lines that we discuss.

# %% [markdown]
# ## First pipeline: silence
#
# Thread 0 is the producer, as in lesson 5. Two warps, 64 threads, add up the tiles, and each thread adds
# its own number of each tile. In each warp one lane gives the stage back, after a `syncwarp`. `build_roles`
# builds this kernel for a ring whose empty barriers count `empty` arrivals.

# %%
STAGES, ITEMS, READERS = 2, 6, 64
TILE_BYTES = 4 * READERS


def build_roles(empty):
    shared = nd.Shared(
        tile=nd.Array((STAGES, READERS), nd.uint32, alignment=128),
        ring=nd.Ring(STAGES, full=1, empty=empty),  # A
    )
    ring = shared.ring

    @nd.kernel(threads=32 + READERS, shared=shared)
    def roles(data: nd.u64, out: nd.uint32[:]):
        shared.init()
        tile, tid, total = shared.tile.view(), cuda.threadIdx.x, uint32(0)
        state = ring.start()
        if tid == 0:  # the producer
            for i in range(ITEMS):
                slot, row = shared.tile.at(state.stage), nd.global_at(data, i, TILE_BYTES)
                ring.acquire(state)  # B
                ring.expect(state, TILE_BYTES)
                nd.cp_async_bulk_load(slot, row, TILE_BYTES, ring.full(state))
                state = ring.advance(state)
        elif tid >= 32:  # the consumers
            reader = tid - 32
            for _ in range(ITEMS):
                ring.wait(state)  # C
                total += tile[state.stage, reader]
                cuda.syncwarp()
                if nd.lane() == 0:
                    ring.release(state)  # D
                state = ring.advance(state)
            out[reader] = total

    return roles


roles = build_roles(empty=READERS)


# %% [markdown]
# ### Predict: where do they stand?
#
# This kernel never ends. On which kind of barrier does the producer wait in the end, `"full"` or `"empty"`?
# On which do the consumers wait? How many tiles has each reader added by then?

# %% exercise="standstill"
producer = ...
consumers = ...
tiles = ...

# %%
check.standstill(producer=producer, consumers=consumers, tiles=tiles)

# %% [markdown]
# ### Let the engine explain
#
# When nobody can go on and no copy is in flight, the CPU engine reports who waits for whom. For each group
# of threads it names the line and the barrier where they wait, the barrier's state, what is missing, and
# who could bring it. (`poison` makes an output in which no number is a likely result.)

# %%
data, out = random_words(ITEMS, READERS, seed=1), poison(READERS)
lessons.cpu_only("The drawing of who waits for whom")
lessons.show_fault(lambda: lessons.run(roles, 1, (data, out), engine="cpu"))

# %% [markdown]
# Read it from the top. (Its A and B are groups of threads, and not our lines.) Group A, the producer, waits
# on `ring.empty[0]`: **pending 62 of 64**. Two arrivals have come, 62 are missing. Group B waits on full, for
# an arrival that only A can make. The deadlock is `circle: A -> B -> A`, and one of its two arrows is wrong.
#
# The arrow from B to A is right: the tile is not there. The arrow from A to B is wrong. Threads 33-63 and
# 65-95 could end A's wait, but the kernel never lets them, because only lane 0 of each warp arrives. A
# count that stops at "pending 62 of 64" nearly always means: **the barrier counts threads, and the code
# arrives by warps**, or the other way round.
#
# ### Mend
#
# How many arrivals must the empty barriers count?

# %% exercise="arrivals"
empty = ...

# %%
check.arrivals(empty, build_roles, engine=engine)

# %% [markdown]
# ## Second pipeline: the numbers are right
#
# Here one warp loads for itself. Lane 0 asks for the next tile, and all lanes wait for this one and add it.
# There is no empty barrier, because the same warp loads and reads.

# %%
LANES = 32
ROW_BYTES = 4 * LANES
rows = nd.Shared(
    tile=nd.Array((STAGES, LANES), nd.uint32, alignment=128),
    ring=nd.Ring(STAGES, full=1, empty=0),  # no empty barriers
)
ring = rows.ring


@nd.kernel(threads=LANES, shared=rows)
def pipeline(data: nd.u64, out: nd.uint32[:]):
    rows.init()
    tile, lane, total = rows.tile.view(), nd.lane(), uint32(0)
    state = ring.start()
    if lane == 0:  # prologue: tile 0
        ring.expect(state, ROW_BYTES)
        nd.cp_async_bulk_load(rows.tile.at(0), data, ROW_BYTES, ring.full(state))
    for i in range(ITEMS):
        ahead = ring.advance(state)
        if lane == 0 and i + 1 < ITEMS:
            slot, row = rows.tile.at(ahead.stage), nd.global_at(data, i + 1, ROW_BYTES)
            ring.expect(ahead, ROW_BYTES)  # A
            nd.cp_async_bulk_load(slot, row, ROW_BYTES, ring.full(ahead))  # B
        ring.wait(state)  # C
        total += tile[state.stage, lane]  # D
        nd.fence_proxy_async()  # what this lane has read may be overwritten: see the fifth pipeline
        state = ahead
    out[lane] = total


# %% [markdown]
# This is the planted fault `no_warp_sync`. Here is what a GPU makes of it:

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
# Two lines touch the same bytes of a tile, one of them writes, and nothing orders them. Give their letters,
# in any order. One of them reads in iteration `i`. How many iterations later does the other one write?

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
# In this run nothing was damaged yet, and still the engine reports a race. It does not look for damage.
# For every byte it remembers who touched it last, and for every thread what this thread *knows* about the
# others. (Such a record is called a vector clock, and barriers pass it on.) Thread 31 has read the byte,
# and thread 0 has no way to know it. That is a race, and the verdict is the same in every schedule.
#
# When does it do damage? Since Volta, the GPUs of 2017, the lanes of a warp may drift apart. If one lane is
# late, because of a cache miss for instance, the next tile overwrites what it still has to read.
#
# ### Mend

# %% exercise="warp_sync"


@nd.kernel(threads=LANES, shared=rows)
def pipeline(data: nd.u64, out: nd.uint32[:]):
    rows.init()
    tile, lane, total = rows.tile.view(), nd.lane(), uint32(0)
    state = ring.start()
    if lane == 0:  # prologue: tile 0
        ring.expect(state, ROW_BYTES)
        nd.cp_async_bulk_load(rows.tile.at(0), data, ROW_BYTES, ring.full(state))
    for i in range(ITEMS):
        ahead = ring.advance(state)
        if lane == 0 and i + 1 < ITEMS:
            slot, row = rows.tile.at(ahead.stage), nd.global_at(data, i + 1, ROW_BYTES)
            ring.expect(ahead, ROW_BYTES)  # A
            nd.cp_async_bulk_load(slot, row, ROW_BYTES, ring.full(ahead))  # B
        ring.wait(state)  # C
        total += tile[state.stage, lane]  # D
        nd.fence_proxy_async()  # what this lane has read may be overwritten: see the fifth pipeline
        ...
        state = ahead
    out[lane] = total


# %%
check.warp_sync(pipeline, engine=engine)

# %% [markdown]
# ## Third pipeline: it depends on the size
#
# Here each query has a thread. Thread 0 publishes the weight of each point, a barrier of the whole block
# passes it on, and all threads use it. The launch is rounded up to whole blocks. Threads without a query
# leave at once, as in every first CUDA kernel.

# %%
POINTS, THREADS = 4, 64
points = nd.Shared(weight=nd.Array((POINTS,), nd.uint32), ready=nd.Barrier(THREADS))


@nd.kernel(threads=THREADS, shared=points)
def weighted(weights: nd.uint32[:], data: nd.uint32[:], out: nd.uint32[:], queries: nd.i32):
    points.init()
    weight, tid, total = points.weight.view(), cuda.threadIdx.x, uint32(0)
    query = cuda.blockIdx.x * THREADS + tid
    if query >= queries:
        return
    number = data[query]
    for point in range(POINTS):
        if tid == 0:
            weight[point] = weights[point]
        points.ready.arrive()
        points.ready.wait(point & 1)
        total += weight[point] * number
    out[query] = total


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
# This cell runs on your engine. On a GPU, `lessons.run` launches the **guarded form** of a kernel. Its
# source is rewritten, and every wait looks at the clock. After a second the whole grid ends, with a report
# instead of a hang. (In your own programs use `numba_deform.engines.gpu.guard.launch_guarded`, or `debug=1`
# on the command line.)


# %%
def attend(queries, where=engine):
    weights, data = random_words(POINTS, seed=3), random_words(queries, seed=4)
    out, blocks = poison(queries), -(-queries // THREADS)
    return lessons.run(weighted, blocks, (weights, data, out, queries), engine=where)


lessons.show_fault(lambda: attend(96))

# %% [markdown]
# And this is what the guarded form said on an H200, about the planted fault `tail_skips_barrier`:

# %%
print(on_the_h200["tail_skips_barrier"]["debug_text"])

# %% [markdown]
# A GPU knows where its threads wait, and for which parity. It does not know who has arrived, because a
# barrier only counts. The CPU engine keeps a list, and names the threads that have left. So the guarded
# form tells you *where*, and the CPU engine tells you *why*.
#
# This fault comes from the CUDA C++ experiments with which this package began. There, 48 × 20522 queries
# filled 15391 blocks of 64, and half of one more. A test whose queries fill their blocks does not find it.
# Test with a size that does not.
#
# Why is the same early `return` harmless with `syncthreads`? There the hardware counts exited threads as
# arrived. An mbarrier is only a number in memory, and no exit changes it.
#
# ### Mend

# %% exercise="rounds"


@nd.kernel(threads=THREADS, shared=points)
def weighted(weights: nd.uint32[:], data: nd.uint32[:], out: nd.uint32[:], queries: nd.i32):
    points.init()
    weight, tid, total = points.weight.view(), cuda.threadIdx.x, uint32(0)
    query = cuda.blockIdx.x * THREADS + tid
    number = uint32(0)
    if query < queries:
        number = data[query]
    my_rounds = ...
    for point in range(my_rounds):
        if tid == 0:
            weight[point] = weights[point]
        points.ready.arrive()
        points.ready.wait(point & 1)
        total += weight[point] * number
    if query < queries:
        out[query] = total


# %%
check.rounds(weighted, engine=engine)

# %% [markdown]
# *A good place to rest.*
#
# ## Fourth pipeline: one order of many
#
# A producer puts a number into a box, and a flag says how far it is. The consumer does not wait. It looks
# at the flag *once*. If there is something in the box, it takes the number. If not, it fetches the number
# itself. Kernels that distribute their work while they run look at flags like this. The flag is written
# with *release* and read with *acquire*, which mean here what they meant at a barrier in lesson 2. The two
# instructions take the flag's address.

# %%
EMPTY, WRITING, READY = 0, 1, 2
mail = nd.Shared(box=nd.Array((1,), nd.uint32), flag=nd.Array((1,), nd.uint32))


@nd.kernel(threads=64, shared=mail)
def mailbox(data: nd.uint32[:], out: nd.uint32[:]):
    box, flags, flag, tid = mail.box.view(), mail.flag.view(), mail.flag.at(0), cuda.threadIdx.x
    if tid == 0:
        flags[0] = EMPTY
    cuda.syncthreads()
    if tid == 0:  # the producer
        nd.st_release_cta_shared_b32(flag, WRITING)  # A
        box[0] = data[0]  # B
        nd.st_release_cta_shared_b32(flag, READY)  # C
    elif tid == 32:  # the consumer
        seen = nd.ld_acquire_cta_shared_b32(flag)  # D
        taken = seen != EMPTY
        if taken:
            out[0] = box[0]  # E
        else:
            out[0] = data[0]
        out[1] = taken


# %% [markdown]
# ### Predict: when must the consumer look?
#
# The flag changes twice, so line D can run at three times: `"before A"`, `"between A and C"`, `"after C"`.
# In which case is the kernel wrong?

# %% exercise="order"
place = ...

# %%
check.order(place=place)

# %% [markdown]
# ### Let the engine explain
#
# First a hundred random schedules, with each way of landing:

# %%
lessons.cpu_only("Random schedules, and all schedules")
data, out = random_words(1, seed=5), poison(2)
for landing in ("late", "random", "earliest"):
    report = nd.simulate(mailbox, 1, 64, (data, out), schedules=100, landing=landing)
    print(f"{report.schedules} schedules, landing {landing}: nothing was reported")

# %% [markdown]
# 300 runs, and no report. The engine's random schedules switch threads where they wait, and after the
# `syncthreads` nobody waits. The thread that goes on first runs to its end. A GPU would rarely meet the fault
# either: the consumer has to look in the few hundred cycles between A and C.
#
# For a small kernel there is something better than chance. `explore` tries **every order** of its barrier,
# flag and copy events, as far as their order can matter:

# %%
try:
    nd.explore(mailbox, 1, 64, (data, out))
except nd.SimFault as fault:
    seed = fault.seed
print(f"the seed: {seed!r}")
lessons.show_fault(lambda: nd.simulate(mailbox, 1, 64, (data, out), seed=seed))

# %% [markdown]
# This seed is not a number. It is the schedule itself, step by step: which of the threads that could go on
# did so. `simulate(..., seed=...)` runs exactly this schedule again, as often as you like, with a `print`
# in the kernel if you want. Go through its steps, and then through the schedule in which the threads run in
# turn. A step is what the other thread can see. Lines B and E are not steps of their own. They belong to
# the step before them.


# %%
schedules = {
    name: check.steps_of(mailbox, (data, out), text)
    for name, text in {"found": seed, "in turn": "x:0:"}.items()
}


def go(order, step):
    return pictures.schedule(schedules[order], step, f"{order}: step {step}")


most = max(map(len, schedules.values()))
lessons.slider(go, start={"step": most}, order=list(schedules), step=range(1, most + 1))

# %% [markdown]
# In the schedule that was found, warp 1 looks at the flag between A and C. The flag is no longer empty, so
# it takes the number, and nothing says that the number has been written.
#
# ### Mend

# %% exercise="ready"


@nd.kernel(threads=64, shared=mail)
def mailbox(data: nd.uint32[:], out: nd.uint32[:]):
    box, flags, flag, tid = mail.box.view(), mail.flag.view(), mail.flag.at(0), cuda.threadIdx.x
    if tid == 0:
        flags[0] = EMPTY
    cuda.syncthreads()
    if tid == 0:  # the producer
        nd.st_release_cta_shared_b32(flag, WRITING)  # A
        box[0] = data[0]  # B
        nd.st_release_cta_shared_b32(flag, READY)  # C
    elif tid == 32:  # the consumer
        seen = nd.ld_acquire_cta_shared_b32(flag)  # D
        taken = ...
        if taken:
            out[0] = box[0]  # E
        else:
            out[0] = data[0]
        out[1] = taken


# %%
check.ready(mailbox)

# %% [markdown]
# When `explore` finds nothing, it says what it has covered. Here is its answer for the right twin of a
# planted fault:

# %%
bug = BUGS["release_too_early"]
launch = bug.arguments()
covered = nd.explore(bug.kernel(False), launch.grid, bug.kernel(False).threads, launch.args)
print(textwrap.fill(str(covered), 90))

# %% [markdown]
# ## Fifth pipeline: nobody notices
#
# The last one writes a tile to shared memory, and the copy engine stores it to global memory.

# %%
one_row = nd.Shared(tile=nd.Array((LANES,), nd.uint32, alignment=128))


@nd.kernel(threads=LANES, shared=one_row)
def add_one(data: nd.uint32[:], out: nd.u64):
    tile, lane = one_row.tile.view(), nd.lane()
    tile[lane] = data[lane] + 1
    cuda.syncwarp()
    if lane == 0:
        nd.cp_async_bulk_store(out, one_row.tile.at(0), ROW_BYTES)
        nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group(0)


# %% [markdown]
# ### Predict: who will tell you?
#
# NVIDIA's compute-sanitizer has four tools. `memcheck` looks at addresses, `racecheck` at shared memory
# that two threads touch, `synccheck` at barriers, and `initcheck` at memory that nobody has written.
# Something is missing here. Which of these notice it: `"numbers"` (they were wrong on the H200), the four
# tools by name, `"CPU engine"`? Name all that do.

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
# The copy engine sees shared memory through another *proxy*: another path, with its own
# order. `syncwarp` brings the lanes together, but it does not order the two paths. The copy engine may
# still find the old contents. `fence.proxy.async` closes this gap. It does so in the other direction, too:
# in the second pipeline it stands behind the reads, so that a load which is under way does not return the
# next tile (lesson 11). In a kernel of sgl-project/sglang 86 of 100 results changed when it was missing
# (their pull request 39124). On our H200, with this kernel, none did.
#
# ### Mend

# %% exercise="proxy_fence"


@nd.kernel(threads=LANES, shared=one_row)
def add_one(data: nd.uint32[:], out: nd.u64):
    tile, lane = one_row.tile.view(), nd.lane()
    tile[lane] = data[lane] + 1
    ...
    cuda.syncwarp()
    if lane == 0:
        nd.cp_async_bulk_store(out, one_row.tile.at(0), ROW_BYTES)
        nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group(0)


# %%
check.proxy_fence(add_one, engine=engine)

# %% [markdown]
# ## Who sees what
#
# Here is the same question for the planted faults closest to those that you saw, and for two others. A full
# square means that the tool says something. It need not be the fault's name: racecheck sometimes speaks of
# a race where there is none. All 31 are in [`bench/FAULTS.md`](../bench/FAULTS.md).

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
pictures.grid(sees, FAULTS, COLUMNS, title="who says something about which fault")

# %% [markdown]
# Use them all, because they look at different things. memcheck checks a kernel's global addresses at full
# size, where the CPU engine would take too long. And when something hangs that you can only run at full
# size, try a guarded launch first.
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
# - **Blocks take turns.** One runs until it ends or waits for others, then the next. The seed does not
#   change their order. Textures are not modelled.
# - **It sees what you run.** It does not judge a path that this input does not take. So use odd sizes,
#   several levels, and samples outside the border.
# - **`explore` keeps the lanes of a warp in step.** It is made for kernels with a few dozen events. If
#   there are several faults, it may find only one. Mend that one and run it again.
# - **It may name the second broken rule.** A missing wait often shows at the arrival that follows. The cure
#   is the same.
# - **The guarded form** limits waits on mbarriers, on barriers of threads, and in loops that poll. Lanes
#   that wait for each other in two different shuffles still hang.
#
# ## What you know now
#
# - In a report of a deadlock, look for the wrong arrow. "pending 62 of 64" is a count of threads where
#   warps arrive.
# - Right numbers prove nothing about a race. Ask how the writer *knows* that the others have read.
# - Every thread that a barrier counts must come, in every phase, even without work. Test with a size that
#   does not fit.
# - Chance rarely finds a fault that needs one special order. `explore` does, and gives you a seed.
# - Between your writes and the copy engine there must be a fence: in every thread that wrote, before they
#   meet, or behind the meeting in the thread that issues the copy.
#
# `numba-deform bugs` tells the stories of all 31 faults. A correct pipeline may still be slow. [Lesson
# 7](07_how_fast.py) asks how fast it could be at all.

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
# # 2 · One barrier
#
# *About 50 minutes. You have read [lesson 1](01_boxes.py) and seen a box arrive.*
#
# No thread can say "this TMA copy is done". The thread that asked for it went on long ago. So how does
# anybody know when the bytes are there?
#
# `syncthreads` cannot help. It counts threads, and the copy engine is not a thread. Hopper has the
# **mbarrier** instead: a small object in shared memory that counts *two* things, arrivals and bytes. A
# thread can arrive at one time and wait at another. Everything that this course builds later is made of
# this one object: rings, pipelines, producers and consumers.
#
# After this lesson you can tell a barrier's state after each operation, and why one bit is enough to wait
# for it. You know what a wait promises about memory, and what is wrong when a wait never returns.

# %%

import numpy as np
from numba import cuda

import numba_deform as nd
from numba_deform.course import lessons
from numba_deform.course.bugs import BUGS
from numba_deform.course.lessons import lesson2 as check
from numba_deform.course.lessons import pictures
from numba_deform.course.lessons.lesson2 import Barrier, watch

engine = lessons.engine()
print(f"kernels run on: {engine}")

# %% [markdown]
# ## Four numbers in eight bytes
#
# An mbarrier is 8 bytes of shared memory. It holds four numbers:
#
# - **phase**: how many phases it has completed. A wait sees only the last bit of it, the *parity*.
# - **expected**: how many arrivals each phase needs. `init` sets it.
# - **pending**: how many of these arrivals are still missing in this phase.
# - **tx-count**: how many *bytes* are still missing in this phase. (PTX calls their arrival a *transaction*.)
#
# To a kernel the eight bytes are *opaque*: only barrier operations may touch them. A kernel can ask whether
# the phase of a parity is over. It can also read the pending count: an arrival returns a token, and
# `mbarrier.pending_count` takes that number out of it. Nothing returns the other numbers.
#
# So here is a model in Python, `Barrier`, which counts by the same rules and remembers every step. It has the
# names that the barrier of lesson 1 has. (The tests of this package compare it with the CPU engine's barrier.)
# Its phase is a counter that only grows. PTX promises no such counter, only the parity.
#
# The counts have limits. Arrivals are counted from 1 to 2²⁰ - 1, and the tx-count stays within ±(2²⁰ - 1). So
# one phase cannot await a whole megabyte.
#
# Let us replay the load of lesson 1. The barrier expects one arrival. Thread 0 announces 6144 bytes and
# arrives, both in one instruction. Later the copy engine delivers the bytes.

# %%
full = Barrier(1)
full.expect(6144)
full.land(6144)
full.picture("one load")

# %% [markdown]
# Read the picture column by column. `init` makes the barrier: phase 0, one arrival pending, no bytes
# missing. `expect` does two things: it adds 6144 to the tx-count, and then it makes the pending arrival. Now
# nothing is pending, but bytes are missing, so the phase goes on. When the bytes land, both counts are zero,
# and **the phase completes by itself**. The next one begins at once: phase 1, and pending is back at what is
# expected. Nobody resets anything.
#
# That is the whole rule:
#
# > A phase is over when pending is 0 **and** the tx-count is 0. Then phase + 1, and pending = expected.
#
# Bytes may land in several pieces. They may even land *before* they are announced, and for this reason the
# tx-count is signed. Here somebody issues the copy first and announces it afterwards:

# %%
early = Barrier(1)
early.land(64)
early.expect(64)
early.picture("bytes that land before they are expected")

# %% [markdown]
# This works because the arrival was still pending, and a phase cannot end while an arrival is pending. So a
# thread has to announce its bytes *before or with* its arrival. Then the phase waits for them, however fast
# the copies are. `expect` does both in one instruction, in this order. (PTX's name says so:
# `mbarrier.arrive.expect_tx`.)

# %% [markdown]
# ## Exercise 1: predict the states
#
# A barrier is initialised with 2. Then this happens, in this order:
#
# 1. thread 0: `expect(512)`
# 2. thread 1: `arrive()`
# 3. 256 bytes land
# 4. the other 256 bytes land
# 5. thread 1: `arrive()`
#
# Write `(phase, pending, tx-count)` after each step. Do it in your head first. Afterwards `Barrier(2)` can
# tell you.

# %% exercise="predict"
after = [
    (..., ..., ...),
    (..., ..., ...),
    (..., ..., ...),
    (..., ..., ...),
    (..., ..., ...),
]

# %%
check.predict(after)

# %% [markdown]
# ## A barrier in a kernel
#
# Now a kernel. It loads a box, as in lesson 1. Later we will misuse it, so everything about its barrier is
# a parameter. `count` is how many arrivals it expects, and `arrive` how many threads arrive. Thread 0
# announces `expect` bytes, and initialises the barrier a second time if `again` says so. All threads wait
# for `parity`.

# %%
CHANNELS, BOX_W, BOX_H = 32, 4, 4
BOX_NUMBERS = CHANNELS * BOX_W * BOX_H
BOX_BYTES = 2 * BOX_NUMBERS
THREADS = 32


def build_load(count):
    shared = nd.Shared(
        tile=nd.Array((BOX_NUMBERS,), nd.float16, alignment=128), full=nd.Barrier(count)
    )  # fmt: skip

    @nd.kernel(threads=THREADS, shared=shared)
    def load_box(
        map: nd.u64, out: nd.float16[:], arrive: nd.i32, expect: nd.i32, parity: nd.i32, again: nd.i32,
    ):  # fmt: skip
        nd.fence_proxy_tensormap_acquire_sys(map)
        shared.init()
        tile, full, tid = shared.tile.view(), shared.full, cuda.threadIdx.x
        if tid == 0:
            full.expect(expect)
            nd.cp_async_bulk_tensor_3d(shared.tile.at(0), map, 0, 8, 4, full.at())
            if again != 0:
                full.init()
        elif tid < arrive:
            full.arrive()
        full.wait(parity)
        for i in range(tid, BOX_NUMBERS, THREADS):
            out[i] = tile[i]

    return load_box


# %% [markdown]
# `full` is an `nd.Barrier`, and this is all that a kernel does with one. Each name stands for an instruction of
# the GPU, which takes the barrier's address. The last column is the function that is this instruction alone:
#
# | | PTX | |
# |---|---|---|
# | `full.expect(n)` | `mbarrier.arrive.expect_tx` | `nd.mbarrier_arrive_expect_tx(full.at(), n)` |
# | `full.arrive()` | `mbarrier.arrive` | `nd.mbarrier_arrive(full.at())` |
# | `full.wait(p)` | `mbarrier.try_wait.parity` | `nd.mbarrier_try_wait_parity(full.at(), p)`, see exercise 3 |
# | `full.at()` | the address of its 8 bytes | |
#
# You will meet the names of the second column in reports, in CUDA C++ and in machine code. We write the first.
#
# `shared.init` takes three steps. One thread initialises the barriers, by `mbarrier.init`. `syncthreads` lets
# the *threads* see the new barrier. The *copy engine* is not a thread and takes no part in `syncthreads`. For
# the copy engine there is `fence_mbarrier_init`, the light fence that CUTLASS writes here. The examples in
# NVIDIA's Programming Guide write the heavier `fence.proxy.async` (here `fence_proxy_async`). Either will do.
#
# This time there are three arrivals: thread 0 with the bytes, and threads 1 and 2 without.

# %%
features = lessons.feature_map(height=16, width=20, channels=CHANNELS)
maps = nd.TensorMapArray([nd.TensorMap.of(features, box=(CHANNELS, BOX_W, BOX_H))])
out = np.full(BOX_NUMBERS, np.nan, np.float16)
print(lessons.run(build_load(3), 1, (maps, out, 3, BOX_BYTES, 0, 0), engine=engine))
print("the right box:", np.array_equal(out.reshape(BOX_H, BOX_W, CHANNELS), features[4:8, 8:12]))

# %% [markdown]
# `watch` runs a kernel on the CPU engine and records what its barrier does. So nobody drew these states by
# hand. They are the states of this run. `landing` says when the engine lets copies land: as late as it can,
# or as early as it can.

# %%
lessons.cpu_only("Watching a barrier")
landings = ["late", "earliest"]
right = (maps, out, 3, BOX_BYTES, 0, 0)
seen = {landing: watch(build_load(3), 1, right, landing=landing) for landing in landings}


def look(landing, step):
    return pictures.barrier_states(seen[landing], f"copies land {landing}: step {step}", step + 1)


lessons.slider(look, start={"step": 5}, landing=landings, step=range(6))

# %% [markdown]
# Step through both landings. `expect` appears as the two steps that it is. The bytes may land before the last
# arrival or after it. Both runs end in phase 1. That is the purpose of a barrier.

# %% [markdown]
# ## Waiting for one bit
#
# A wait does not name "phase 5". It names a **parity**, the last bit of a phase's number, and asks: *is the
# phase with this parity over?* The barrier compares the bit with its current phase. If the parities are the
# same, you mean the current phase, and it is not over. If they differ, you mean the phase before, and it is
# over.
#
# The instruction `mbarrier_test_wait_parity` asks without waiting. It is seldom needed, so it has no short
# name. Here one thread asks both questions in each of four phases, and ends each phase by its arrival:


# %%
alone = nd.Shared(bar=nd.Barrier(1))


@nd.kernel(threads=1, shared=alone)
def ask(answers: nd.uint32[:, :]):
    alone.init()
    bar = alone.bar
    for phase in range(4):
        for parity in range(2):
            answers[phase, parity] = nd.mbarrier_test_wait_parity(bar.at(), parity)
        bar.arrive()


answers = np.zeros((4, 2), np.uint32)
lessons.run(ask, 1, (answers,), engine=engine)
pictures.numbers(
    np.where(answers, "yes", "no"), "does wait(P) pass?", answers == 1, "phase", "P"
)

# %% [markdown]
# Look at the first row. A *fresh* barrier is in phase 0, and `wait(1)` passes at once: the phase before
# phase 0, which never existed, counts as over. Every pipeline uses this. In lesson 4 somebody waits
# until a buffer is empty. At the start all are empty, and this wait must pass at once.

# %% [markdown]
# ## Exercise 2: the parity of a use
#
# Write down what you have just seen, without an `if`. Then suppose that a barrier is used again and again,
# and that each use completes one phase. For which parity does use number 0, 1, 2, … wait?


# %% exercise="parity"
def passes(phase, parity):
    """Whether wait(parity) passes on a barrier in this phase."""
    return ...


def use_parity(use):
    """What to wait for in use number ``use``."""
    return ...


# %%
check.parity(passes, use_parity)

# %% [markdown]
# ## When one bit is not enough
#
# One bit distinguishes two phases: the current one and the one before. Suppose a thread wants to know
# whether phase 0 is over, and asks with parity 0. The upper row of the picture shows the truth, and the
# lower row the answer of `wait(0)`. They depend on how late the thread asks. Where they differ, the cells
# are hatched.

# %%
barrier, rows = Barrier(1), []
for _ in range(6):
    rows.append((barrier.phase > 0, barrier.passes(0)))
    barrier.arrive()
heard = np.array(rows).T
pictures.numbers(
    np.where(heard, "yes", "no"),
    "is phase 0 over?",
    heard[0] != heard[1],
    rows=["in truth", "by wait(0)"],
    columns="the barrier's phase when the thread asks",
)

# %% [markdown]
# In phase 2 the answer is wrong. The bit is the same as in phase 0, so the thread waits for the end of
# phase 2, which it does not mean. This is called **aliasing**. If phase 2 ends, the thread passes for the
# wrong reason and reads the wrong data. If it does not, the thread waits for ever.
#
# So one bit is enough on one condition: **no waiter may be two phases behind**. Usually this costs nothing.
# If everybody who waits for a phase must also *arrive* in the next one, the barrier cannot run ahead of
# them. The bug appears where one thread arrives on behalf of others, and the others only wait:

# %%
print(BUGS["parity_two_behind"].story)

# %%
lessons.cpu_only("The report of a missed phase")
bug = BUGS["parity_two_behind"]
launch = bug.arguments()
lessons.show_fault(lambda: lessons.run(bug.kernel(), 1, launch.args, engine="cpu"))

# %% [markdown]
# On an H200 this kernel hangs, and says nothing (`bench/FAULTS.md`).

# %% [markdown]
# ## `try_wait` may give up
#
# There are two ways to ask. `test_wait` answers at once. `try_wait` *may* put the thread to sleep, so that
# it takes no turns from other warps while it waits. The hardware then wakes it when the phase is over *or
# when some time has passed*. How long depends on the system. So `try_wait` may return "no" although nothing
# is wrong. A kernel that ignores the answer reads a tile that is still in flight.
#
# Here is one. `cp_async_bulk_load` brings a straight run of bytes, and needs no map. The engine tries 20
# *schedules*, that is, orders in which the threads take their turns.

# %%
TILE_WORDS = 32
TILE_BYTES = 4 * TILE_WORDS
words = nd.Shared(tile=nd.Array((TILE_WORDS,), nd.uint32, alignment=128), full=nd.Barrier(1))


@nd.kernel(threads=TILE_WORDS, shared=words)
def hasty(data: nd.u64, out: nd.uint32[:]):
    words.init()
    tile, full, tid = words.tile.view(), words.full, cuda.threadIdx.x
    if tid == 0:
        full.expect(TILE_BYTES)
        nd.cp_async_bulk_load(words.tile.at(0), data, TILE_BYTES, full.at())
    nd.mbarrier_try_wait_parity(full.at(), 0)
    out[tid] = tile[tid]


data, copied = np.arange(TILE_WORDS, dtype=np.uint32), np.zeros(TILE_WORDS, np.uint32)
lessons.cpu_only("Trying many schedules")
lessons.show_fault(
    lambda: lessons.run(hasty, 1, (data, copied), engine="cpu", seed=1, schedules=20)
)

# %% [markdown]
# Such a fault shows rarely. If the copy lands before `try_wait` gives up, the kernel is right, and it may
# pass every test. The CPU engine sometimes gives up early on purpose.

# %% [markdown]
# ## Exercise 3: a patient wait
#
# Write the wait that stands behind `full.wait`. It returns when the phase of `parity` is over, and not before,
# however often it has to ask. `bar` is an address, what `full.at()` was above. `nd.function` makes a function
# that kernels can call.


# %% exercise="patient_wait"
@nd.function
def patient_wait(bar, parity):
    """Return when the phase of ``parity`` is over."""
    ...


# %%
check.patient_wait(patient_wait)

# %% [markdown]
# ## What arrivals and waits order
#
# A barrier does more than count. Threads of a GPU may see each other's writes late, and in another order,
# unless something orders them. Here this takes two halves:
#
# - **An arrival releases.** Everything that the thread did *before* its arrival belongs to the phase.
# - **A successful wait acquires.** Everything that belongs to the phase is visible *after* the wait. This
#   includes the bytes that copies delivered in that phase.
#
# Nothing else is promised. What a thread writes *after* its arrival is not covered, even on the very next
# line. The following kernel reverses an array by way of shared memory. Each thread writes its number before
# it arrives, or, if `late` is not 0, after.

# %%
COUNT = 64
turned = nd.Shared(numbers=nd.Array((COUNT,), nd.uint32), bar=nd.Barrier(COUNT))


@nd.kernel(threads=COUNT, shared=turned)
def reverse(out: nd.uint32[:], late: nd.i32):
    turned.init()
    numbers, bar, tid = turned.numbers.view(), turned.bar, cuda.threadIdx.x
    if late == 0:
        numbers[tid] = tid
    bar.arrive()
    if late != 0:
        numbers[tid] = tid
    bar.wait(0)
    out[tid] = numbers[COUNT - 1 - tid]


reversed_numbers = np.zeros(COUNT, np.uint32)
lessons.run(reverse, 1, (reversed_numbers, 0), engine=engine)
print("written before the arrival:", reversed_numbers[:6], "...")
lessons.cpu_only("The report of a race")
lessons.show_fault(lambda: lessons.run(reverse, 1, (reversed_numbers, 1), engine="cpu"))

# %% [markdown]
# Everybody has arrived and everybody has waited. Still it is a race, because the write comes after the
# release.
#
# The same holds for the wait. It orders only for the thread *that waits*. If one lane waits for its whole
# warp, the others need a `syncwarp` after it, or they wait themselves. A wait for a phase that is over
# costs little, so in our kernels everybody who reads also waits.
#
# One instruction orders nothing: PTX's `expect_tx` alone only counts. Our `expect` releases, because it
# arrives.

# %% [markdown]
# ## Exercise 4: count the arrivals
#
# Not every thread has to arrive. Here four warps write one number for each thread. In each warp the lanes
# meet in `syncwarp`, which orders their writes, and then lane 0 arrives for all 32. One thread of a fifth
# warp loads 32 more numbers from memory. Then the writers wait. Each of them reads what a thread of another
# warp has written, and adds everything that was loaded.


# %%
def build_team(count):
    shared = nd.Shared(
        numbers=nd.Array((128,), nd.uint32), tile=nd.Array((TILE_WORDS,), nd.uint32, alignment=128),
        full=nd.Barrier(count),
    )  # fmt: skip

    @nd.kernel(threads=160, shared=shared)
    def team(data: nd.u64, out: nd.uint32[:]):
        shared.init()
        numbers, tile, full = shared.numbers.view(), shared.tile.view(), shared.full
        tid = cuda.threadIdx.x
        if tid == 128:
            full.expect(TILE_BYTES)
            nd.cp_async_bulk_load(shared.tile.at(0), data, TILE_BYTES, full.at())
            full.wait(0)  # a block must not end before its copies
        if tid < 128:
            numbers[tid] = tid
            cuda.syncwarp()
            if tid % 32 == 0:
                full.arrive()
            full.wait(0)
            total = numbers[127 - tid]
            for i in range(TILE_WORDS):
                total += tile[i]
            out[tid] = total

    return team


# %% [markdown]
# What must `count` be?

# %% exercise="arrivals"
count = ...

# %%
check.arrivals(count, build_team)

# %% [markdown]
# ## How to misuse it
#
# Here is a collection of mistakes. The kernel is always `load_box`, and one number changes each time. The
# slider shows how the barrier got there. The reports below say what is missing. The same six mistakes are
# planted in `numba_deform/course/bugs`, and were tried on an H200: four hang, one ends in an error that
# names nothing, and one gives the right result, by luck (`bench/FAULTS.md`).

# %%
lessons.cpu_only("The reports of a misused barrier")
MISUSE = {  # count, arrive, expect, parity, again
    "right": (1, 1, BOX_BYTES, 0, 0),
    "too few arrivals": (2, 1, BOX_BYTES, 0, 0),
    "too many bytes": (1, 1, BOX_BYTES + 512, 0, 0),
    "too many arrivals": (1, 2, BOX_BYTES, 0, 0),
    "too few bytes": (1, 1, BOX_BYTES - 512, 0, 0),
    "the other parity": (1, 1, BOX_BYTES, 1, 0),
    "init again": (1, 1, BOX_BYTES, 0, 1),
}


story = {
    how: watch(build_load(count), 1, (maps, out, *numbers)) for how, (count, *numbers) in MISUSE.items()
}


def misuse(how, step):
    return pictures.barrier_states(story[how], how, step + 1)


def report(how):
    count, *numbers = MISUSE[how]
    arguments = (maps, out, *numbers)
    return lessons.show_fault(lambda: lessons.run(build_load(count), 1, arguments, engine="cpu"))


last = max(map(len, story.values())) - 1
start = {"how": "too few arrivals", "step": last}
lessons.slider(misuse, start=start, how=list(MISUSE), step=range(last + 1))

# %% [markdown]
# **Too few arrivals.** The barrier expects two arrivals, and one comes. All bytes have landed, the copy is
# fine, and everybody waits for ever. This happens when the count says "all threads" and a branch keeps some
# of them away.

# %%
report("too few arrivals")

# %% [markdown]
# **Too many arrivals.** The barrier expects one, and two come. Nobody refuses the second one. If the next
# phase has begun, it counts *there*. From then on everything is one arrival ahead, and a later phase ends
# before its data are there.

# %%
report("too many arrivals")

# %% [markdown]
# **Too many bytes expected.** More are announced than ever land, and the phase never ends:

# %%
report("too many bytes")

# %% [markdown]
# **Too few bytes expected.** The tx-count falls below zero while no arrival is pending. That is undefined.
# People get here when they count only the part of a box that lies inside the tensor (lesson 1).

# %%
report("too few bytes")

# %% [markdown]
# **The other parity.** `wait(1)` passes a fresh barrier, and the threads read a tile that has not arrived.
# On a GPU they find whatever was in shared memory before:

# %%
report("the other parity")

# %% [markdown]
# **`init` again.** It is tempting to "reset" a barrier between two uses. A barrier needs no reset. To
# initialise one that is in use is undefined: the copy in flight will signal an object that has forgotten
# it.

# %%
report("init again")

# %% [markdown]
# ## Exercise 5: read the state
#
# Three kernels hang. You know the state of the barrier, which the CPU engine prints in each report, the
# number of the use that the thread has reached, and the parity for which it waits. What is wrong with each:
# `"arrivals"` (one is missing), `"bytes"` (some are missing) or `"parity"` (it waits for a phase that it
# does not mean)?

# %%
check.stuck()

# %% exercise="diagnose"
A = ...
B = ...
C = ...

# %%
check.diagnose(A=A, B=B, C=C)

# %% [markdown]
# ## What you know now
#
# - A phase is over when no arrival is pending and no byte is missing. The next one begins by itself.
# - `expect` announces bytes, then arrives.
# - A wait names the parity of a phase: use n waits for n & 1. A fresh barrier passes `wait(1)`.
# - One bit distinguishes two phases, so nobody may be two phases behind.
# - `try_wait` may give up. Ask again.
# - An arrival releases what came before it. A wait acquires it, for the thread that waits.
#
# You have a box and a barrier. That is all you need to compute something. [Lesson 3](03_tile.py) loads the
# pixels around a sampling location and interpolates: deformable attention, for one query.

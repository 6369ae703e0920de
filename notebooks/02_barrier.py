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
# *About 60 minutes. You have read [lesson 1](01_boxes.py) and seen a box arrive.*
#
# A copy by TMA has no thread that could say "I am done". The thread that asked for it went on long ago. So
# how does anybody know when the bytes are there?
#
# `syncthreads` cannot help: it counts threads, and the copy engine is none. What Hopper has instead is the
# **mbarrier**, a small object in shared memory that counts *two* things, arrivals and bytes, and that lets a
# thread arrive at one time and wait at another. Everything that this course builds later, rings and pipelines
# and producers and consumers, is made of this one object.
#
# After this lesson you can say what state a barrier is in after each operation, why one bit is enough to wait
# for it, what a wait promises about memory, and what is wrong when one never returns.

# %%

import numpy as np
from numba import cuda, int32, types, uint32, uint64

from numba_deform.compiler import i32, kernel, u64
from numba_deform.course import lessons
from numba_deform.course.bugs import BUGS
from numba_deform.course.lessons import lesson2 as check
from numba_deform.course.lessons import pictures
from numba_deform.course.lessons.lesson2 import Barrier, watch
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    mbarrier_test_wait_parity,
    mbarrier_try_wait_parity,
)
from numba_deform.device.memory import ld_shared_b32, shared_address, st_global_b32, st_shared_b32
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init
from numba_deform.device.tma import (
    cp_async_bulk_load,
    cp_async_bulk_tensor_3d,
    fence_proxy_tensormap_acquire_sys,
)
from numba_deform.engines.tensormap import TensorMap, TensorMapArray

engine = lessons.engine()
print(f"kernels run on: {engine}")

# %% [markdown]
# ## Four numbers in eight bytes
#
# An mbarrier is 8 bytes of shared memory, and holds four numbers:
#
# - **phase**: how often it has been completed. It only grows.
# - **expected**: how many arrivals a phase needs. `init` sets it.
# - **pending**: how many of them are still missing in this phase.
# - **tx-count**: how many *bytes* are still to come in this phase.
#
# A kernel cannot look inside: these bytes are for barrier operations only. So here is a model in Python,
# `Barrier`, which counts exactly as the hardware does and remembers every step. It is a toy for one lesson;
# the tests of this package hold it to the CPU engine's barrier, step by step.
#
# Let us play the load of lesson 1 with it. One arrival is expected. Thread 0 announces 6144 bytes and
# arrives, both in one instruction, and later the copy engine brings them.

# %%
full = Barrier(1)
full.arrive_expect_tx(6144)
full.land(6144)
full.picture("one load")

# %% [markdown]
# Read it column by column. `init` makes the barrier: phase 0, one arrival pending, no bytes to come.
# `arrive.expect_tx` does its two things: the tx-count grows by 6144, and the pending arrival is made. Now
# nothing is pending any more, and yet the phase goes on, as bytes are still to come. When they land, both
# counts are zero, and **the phase completes by itself**. The next one begins at once: phase 1, pending again
# what is expected. Nobody resets anything.
#
# That is the whole rule:
#
# > A phase is over when pending is 0 **and** the tx-count is 0. Then phase + 1, and pending = expected.
#
# Bytes may come in several pieces, and even *before* they are expected. The tx-count is signed for that
# reason. Here somebody issues the copy first and announces it after:

# %%
early = Barrier(1)
early.land(64)
early.arrive_expect_tx(64)
early.picture("bytes that land before they are expected")

# %% [markdown]
# It works, since the arrival was still pending: a phase cannot end while one is. So as long as a thread
# announces its bytes *before or with* its arrival, the phase waits for them, however the copies hurry.
# `arrive.expect_tx` does both in one instruction, in this order.

# %% [markdown]
# ## Exercise 1: predict the states
#
# A barrier is initialised with 2. Then, in this order:
#
# 1. thread 0: `arrive_expect_tx(512)`
# 2. thread 1: `arrive()`
# 3. 256 bytes land
# 4. the other 256 bytes land
# 5. thread 1: `arrive()`
#
# Write `(phase, pending, tx-count)` after each of them. Do it in your head first; afterwards `Barrier(2)` can
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
# ## The real thing
#
# Now a kernel. It loads a box as in lesson 1, and so that we can do it wrong later, everything about its
# barrier is a parameter: how many arrivals the barrier is initialised with, how many threads arrive, how many
# bytes thread 0 announces, which parity all wait for, and whether thread 0 initialises the barrier `again`.

# %%
CHANNELS, BOX_W, BOX_H = 32, 4, 4
BOX_BYTES = CHANNELS * BOX_W * BOX_H * 2
BOX_WORDS = BOX_BYTES // 4
THREADS = 32


@kernel(threads=THREADS)
def load_box(map: u64, out: u64, count: i32, arrive: i32, expect: i32, parity: i32, again: i32):
    tile = cuda.shared.array(BOX_BYTES, types.uint8, alignment=128)
    barrier = cuda.shared.array(1, types.uint64)
    tile_at, full = shared_address(tile), shared_address(barrier)
    tid = int32(cuda.threadIdx.x)
    if tid == 0:
        mbarrier_init(full, uint32(count))
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(map)
    cuda.syncthreads()
    if tid == 0:
        mbarrier_arrive_expect_tx(full, uint32(expect))
        cp_async_bulk_tensor_3d(tile_at, map, int32(0), int32(8), int32(4), full)
        if again != 0:
            mbarrier_init(full, uint32(count))
    elif tid < arrive:
        mbarrier_arrive(full)
    mbarrier_wait(full, parity)
    for i in range(tid, BOX_WORDS, THREADS):
        st_global_b32(out + uint64(4 * i), ld_shared_b32(tile_at + uint32(4 * i)))


# %% [markdown]
# `init` is followed by two different orders to keep. `syncthreads` lets the *threads* see the new barrier.
# The *copy engine* is not a thread and does not take part in it; for it there is `fence_mbarrier_init`.
#
# Three arrivals now: thread 0 with the bytes, threads 1 and 2 just so.

# %%
features = lessons.feature_map(height=16, width=20, channels=CHANNELS)
maps = TensorMapArray([TensorMap.of(features, box=(CHANNELS, BOX_W, BOX_H))])
out = np.full((BOX_H, BOX_W, CHANNELS), np.nan, np.float16)
print(lessons.run(load_box, 1, (maps, out, 3, 3, BOX_BYTES, 0, 0), engine=engine))
print("the right box:", np.array_equal(out, features[4:8, 8:12]))

# %% [markdown]
# `watch` runs a kernel on the CPU engine and notes what its barrier does. These are not drawn by hand, they
# are the states of that run. `landing` says when the engine lets copies land: as late as it can, or at once.

# %%
lessons.cpu_only("Watching a barrier")
landings = ["late", "earliest"]
right = (maps, out, 3, 3, BOX_BYTES, 0, 0)
seen = {landing: watch(load_box, 1, right, landing=landing) for landing in landings}


def look(landing, step):
    return pictures.barrier_states(seen[landing], f"copies land {landing}: step {step}", step + 1)


lessons.slider(look, start={"step": 5}, landing=landings, step=range(6))

# %% [markdown]
# Step through it, once for each landing. `arrive_expect_tx` is seen as the two steps that it is. Whether the
# bytes come before the last arrival or after it makes no difference to the end: phase 1. That is what a
# barrier is for.

# %% [markdown]
# ## Waiting, by one bit
#
# A wait does not say "phase 5". It names a **parity**, the last bit of a phase's number, and asks: *is the
# phase of this parity over?* The barrier knows its current phase, so the answer is simple. If the current
# phase has the same parity, it is the one that you mean, and it is not over. If not, you mean the one before,
# and it is.
#
# `mbarrier_test_wait_parity` asks without waiting. One thread asks both questions in each of four phases, and
# ends the phase by its arrival:


# %%
@kernel(threads=1)
def ask(answers: u64):
    barrier = cuda.shared.array(1, types.uint64)
    bar = shared_address(barrier)
    mbarrier_init(bar, uint32(1))
    for phase in range(4):
        for parity in range(2):
            answer = mbarrier_test_wait_parity(bar, uint32(parity))
            st_global_b32(answers + uint64(4 * (2 * phase + parity)), answer)
        mbarrier_arrive(bar)


answers = np.zeros((4, 2), np.uint32)
lessons.run(ask, 1, (answers,), engine=engine)
pictures.numbers(answers, "does wait(P) pass?", answers == 1, "phase", "P")

# %% [markdown]
# Look at the first row. A *fresh* barrier is in phase 0, and `wait(1)` passes at once: the phase before 0,
# which never was, counts as over. It looks like an accident, and is the idiom of every pipeline. In lesson 5
# a producer waits until a stage is empty, and at the start all stages are. It asks with parity 1.

# %% [markdown]
# ## Exercise 2: the parity of a use
#
# Write down what you have just seen, without an `if`. Then: a barrier is used again and again, and completes
# one phase at each use. For which parity does use number 0, 1, 2, … wait?


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
# ## Why one bit is enough, and when it is not
#
# One bit tells two phases apart: the current one and the one before. Suppose a thread wants to know whether
# phase 0 is over, and asks with parity 0. The upper row of the picture is the truth, the lower one what
# `wait(0)` says, depending on how late it asks. Where they differ it is hatched.

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
# At phase 2 the answer is wrong. The bit is the same as in phase 0, so the thread waits, for the end of phase
# 2, which it does not mean. This is called **aliasing**. If a third phase comes, it passes for the wrong
# reason and reads the wrong data. If none comes, it sleeps for ever.
#
# So one bit is enough under one condition: **no waiter may be two phases behind**. Usually that costs
# nothing. If everybody who waits for a phase must also *arrive* for the next one, the barrier cannot run away
# from them. The bug appears where one thread does the arriving for others that only look on:

# %%
print(BUGS["parity_two_behind"].story)

# %%
lessons.cpu_only("The report of a missed phase")
bug = BUGS["parity_two_behind"]
launch = bug.arguments()
lessons.show_fault(lambda: lessons.run(bug.kernel(), 1, launch.args, engine="cpu"))

# %% [markdown]
# On an H200 this kernel hangs (`bench/FAULTS.md`), and says nothing.

# %% [markdown]
# ## `try_wait` may give up
#
# There are two questions. `test_wait` answers at once. `try_wait` puts the thread to sleep, so that it does
# not burn issue slots while it waits, and wakes it when the phase is over *or when some time has passed*. How
# long is not specified. So `try_wait` may come back with "no" although nothing is wrong, and who takes its
# return for the end of the phase reads a tile that is still in flight.

# %%
TILE_WORDS = 32
TILE_BYTES = 4 * TILE_WORDS


@kernel(threads=TILE_WORDS)
def hasty(data: u64, out: u64):
    tile = cuda.shared.array(TILE_BYTES, types.uint8, alignment=128)
    barrier = cuda.shared.array(1, types.uint64)
    tile_at, full = shared_address(tile), shared_address(barrier)
    tid = int32(cuda.threadIdx.x)
    if tid == 0:
        mbarrier_init(full, uint32(1))
        fence_mbarrier_init()
    cuda.syncthreads()
    if tid == 0:
        mbarrier_arrive_expect_tx(full, uint32(TILE_BYTES))
        cp_async_bulk_load(tile_at, data, uint32(TILE_BYTES), full)
    mbarrier_try_wait_parity(full, uint32(0))
    st_global_b32(out + uint64(4 * tid), ld_shared_b32(tile_at + uint32(4 * tid)))


data, copied = np.arange(TILE_WORDS, dtype=np.uint32), np.zeros(TILE_WORDS, np.uint32)
lessons.cpu_only("Trying many schedules")
lessons.show_fault(
    lambda: lessons.run(hasty, 1, (data, copied), engine="cpu", seed=1, schedules=20)
)

# %% [markdown]
# The nasty part is how rarely it may show. If the copy is there before `try_wait` loses its patience, this
# kernel is right, and so it may pass every test. The CPU engine gives up early on purpose now and then.

# %% [markdown]
# ## Exercise 3: a patient wait
#
# Write the function that all kernels of this package use. It returns when the phase of `parity` is over, and
# not before.


# %% exercise="patient_wait"
@cuda.jit(device=True)
def patient_wait(bar, parity):
    """Return when the phase of ``parity`` is over."""
    ...


# %%
check.patient_wait(patient_wait)

# %% [markdown]
# ## What an arrival and a wait order
#
# A barrier is more than a counter. Threads of a GPU may see each other's writes late and in another order,
# unless something orders them. Here the two halves are:
#
# - **an arrival releases**: all that this thread has done *before* it belongs to the phase;
# - **a wait that succeeds acquires**: all that belongs to the phase is visible *after* it. So are the bytes
#   that copies have brought in that phase.
#
# Nothing else is promised. What a thread writes *after* its arrival is not covered, even if it is only the
# next line. This kernel reverses an array by way of shared memory. It writes its number before it arrives,
# or, if `late` is not 0, after:

# %%
COUNT = 64


@kernel(threads=COUNT)
def reverse(out: u64, late: i32):
    numbers = cuda.shared.array(COUNT, types.uint32)
    barrier = cuda.shared.array(1, types.uint64)
    at, bar = shared_address(numbers), shared_address(barrier)
    tid = int32(cuda.threadIdx.x)
    if tid == 0:
        mbarrier_init(bar, uint32(COUNT))
    cuda.syncthreads()
    if late == 0:
        st_shared_b32(at + uint32(4 * tid), uint32(tid))
    mbarrier_arrive(bar)
    if late != 0:
        st_shared_b32(at + uint32(4 * tid), uint32(tid))
    mbarrier_wait(bar, int32(0))
    other = COUNT - 1 - tid
    st_global_b32(out + uint64(4 * tid), ld_shared_b32(at + uint32(4 * other)))


reversed_numbers = np.zeros(COUNT, np.uint32)
lessons.run(reverse, 1, (reversed_numbers, 0), engine=engine)
print("written before the arrival:", reversed_numbers[:6], "...")
lessons.cpu_only("The report of a race")
lessons.show_fault(lambda: lessons.run(reverse, 1, (reversed_numbers, 1), engine="cpu"))

# %% [markdown]
# Everybody has arrived and everybody has waited, and still it is a race: the write comes after the release.
#
# The same holds for the wait. It orders for the thread *that waits*. If one lane waits and the others only
# hear of it, they need a `syncwarp` after it, or have to wait themselves. A wait on a phase that is over
# costs little, so in our kernels everybody who reads also waits.
#
# One operation orders nothing: `expect_tx` alone only counts. `arrive_expect_tx` releases, as it arrives.

# %% [markdown]
# ## Exercise 4: count the arrivals
#
# Not every thread needs to arrive. Here four warps write a number for each thread; in each warp the lanes
# meet in `syncwarp`, which orders what they wrote, and then lane 0 arrives for all 32. One thread of a fifth
# warp loads 32 more numbers from memory. Then the writers wait; each reads what a thread of another warp has
# written, and adds all that was loaded.


# %%
@kernel(threads=160)
def team(data: u64, out: u64, count: i32):
    numbers = cuda.shared.array(128, types.uint32)
    tile = cuda.shared.array(TILE_BYTES, types.uint8, alignment=128)
    barrier = cuda.shared.array(1, types.uint64)
    at, tile_at, full = shared_address(numbers), shared_address(tile), shared_address(barrier)
    tid = int32(cuda.threadIdx.x)
    if tid == 0:
        mbarrier_init(full, uint32(count))
        fence_mbarrier_init()
    cuda.syncthreads()
    if tid == 128:
        mbarrier_arrive_expect_tx(full, uint32(TILE_BYTES))
        cp_async_bulk_load(tile_at, data, uint32(TILE_BYTES), full)
        mbarrier_wait(full, int32(0))  # a block must not end before its copies
    if tid < 128:
        st_shared_b32(at + uint32(4 * tid), uint32(tid))
        cuda.syncwarp()
        if tid % 32 == 0:
            mbarrier_arrive(full)
        mbarrier_wait(full, int32(0))
        total = uint32(ld_shared_b32(at + uint32(4 * (127 - tid))))
        for i in range(TILE_WORDS):
            total = uint32(total + ld_shared_b32(tile_at + uint32(4 * i)))
        st_global_b32(out + uint64(4 * tid), total)


# %% [markdown]
# What must `count` be?

# %% exercise="arrivals"
count = ...

# %%
check.arrivals(count, team)

# %% [markdown]
# ## How to misuse it
#
# Now the collection of what goes wrong, with one kernel, `load_box`, and one number changed each time.
# `watch` shows how the barrier got there, and the report says what is missing. The same six mistakes are
# planted in `numba_deform/course/bugs`, where they were tried on an H200: four hang, one ends in an error
# that names nothing, and one gives the right result, by luck (`bench/FAULTS.md`).

# %%
lessons.cpu_only("The reports of a misused barrier")
MISUSE = {  # count, arrive, expect, parity, again
    "as it should be": (1, 1, BOX_BYTES, 0, 0),
    "too few arrivals": (2, 1, BOX_BYTES, 0, 0),
    "too many arrivals": (1, 2, BOX_BYTES, 0, 0),
    "too many bytes expected": (1, 1, BOX_BYTES + 512, 0, 0),
    "too few bytes expected": (1, 1, BOX_BYTES - 512, 0, 0),
    "the other parity": (1, 1, BOX_BYTES, 1, 0),
    "init of a live barrier": (1, 1, BOX_BYTES, 0, 1),
}


story = {how: watch(load_box, 1, (maps, out, *numbers)) for how, numbers in MISUSE.items()}


def misuse(how, step):
    return pictures.barrier_states(story[how], how, step + 1)


def report(how):
    arguments = (maps, out, *MISUSE[how])
    return lessons.show_fault(lambda: lessons.run(load_box, 1, arguments, engine="cpu"))


last = max(map(len, story.values())) - 1
lessons.slider(misuse, start={"how": "too few arrivals", "step": last}, how=list(MISUSE), step=range(last + 1))

# %% [markdown]
# **Too few arrivals.** The barrier expects two, and one comes. All bytes have landed, nothing is wrong with
# the copy, and everybody waits for ever. It happens when the count says "all threads" and a tail or a branch
# keeps some of them away.

# %%
report("too few arrivals")

# %% [markdown]
# **Too many arrivals.** One is expected and two come. The second one is not refused. It counts in the *next*
# phase, if that has begun, and then everything is one arrival ahead: a later phase ends before its data are
# there.

# %%
report("too many arrivals")

# %% [markdown]
# **Wrong bytes.** Expect more than comes, and the phase never ends:

# %%
report("too many bytes expected")

# %% [markdown]
# Expect less, and the tx-count goes below zero with no arrival pending, which is not defined. People get here
# when they count only the part of a box that lies inside the tensor; lesson 1 told why that is wrong.

# %%
report("too few bytes expected")

# %% [markdown]
# **Wrong parity.** `wait(1)` passes the fresh barrier, and the threads read what has not arrived. On the GPU
# they find whatever was in shared memory before:

# %%
report("the other parity")

# %% [markdown]
# **`init` again.** It is tempting to "reset" a barrier between two uses. But a barrier needs no reset, and to
# initialise a live one is undefined: the copy in flight will signal an object that has forgotten it.

# %%
report("init of a live barrier")

# %% [markdown]
# ## Exercise 5: read the state
#
# Three kernels hang. All you have is the state of the barrier, which the CPU engine prints in each report,
# the number of the use that the thread is at, and the parity that it waits for. What is wrong with each:
# `"arrivals"` (one is missing), `"bytes"` (some are missing) or `"parity"` (it waits for a phase that it does
# not mean)?

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
# - A phase is over when no arrival is pending and no byte is to come. Then the next begins, by itself.
# - `arrive_expect_tx` announces bytes and arrives; its arrival keeps the phase open until they are announced.
# - A wait names the parity of the phase: use n waits for n & 1. A fresh barrier passes `wait(1)`.
# - One bit tells two phases apart, so nobody may be two behind.
# - `try_wait` may give up. Ask again.
# - An arrival releases what came before it, a wait acquires it, for those who wait.
#
# A box, a barrier: that is all one needs to compute something with it. [Lesson 3](03_tile.py) loads the
# pixels around a sampling location and interpolates: deformable attention, for one query.

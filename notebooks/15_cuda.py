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
# # 15 · Debugging CUDA C++
#
# *About 30 minutes. You know rings of stages ([lesson 4](04_stages.py)), producers and consumers ([lesson
# 5](05_roles.py)), and have mended pipelines in Python ([lesson 6](06_debugging.py)). You need no GPU.*
#
# Most pipelines in the world are written in CUDA C++ or in Triton. When one of them hangs, no engine of
# Python seems to help. But all these compilers make the same thing before they make machine code: **PTX**.
# It is text, and its instructions are those that you know from this course. So the CPU engine can read it,
# run it thread by thread, and judge it by the same rules.
#
# In this lesson you debug a ring in CUDA C++. The compiler has noted for each instruction which line it is
# from. So a report names the line of the `.cu` file.

# %%
import numpy as np

import numba_deform as nd
from numba_deform.course import lessons
from numba_deform.course.lessons import lesson15 as check
from numba_deform.course.lessons import pictures

# %% [markdown]
# ## A ring in CUDA C++
#
# The kernel doubles numbers. Thread 32 is the producer, and brings tiles of 8 x 32 floats into three
# stages. Threads 0 to 31 are the consumers. They double each tile, write it out, and give its stage back.
# At least they should: this ring has faults. Do you see one?

# %%
print(check.listing("bytes"))

# %% [markdown]
# You can read it: `full`, `empty`, `expect`, `wait` by parity. Each of the small functions, such as
# `arrive`, is one PTX instruction in an `asm` statement. They stand above the kernel, in lines 1 to 38, and
# they are right. The map comes as a parameter, `const __grid_constant__`. `#pragma unroll 1` keeps a loop a
# loop, so that the PTX stays short.
#
# `-lineinfo` makes nvcc note the lines (for NVRTC it is `--generate-line-info`). We have stored the PTX, so
# you need no compiler yet. `nd.from_ptx` makes kernels of it, by their names. It takes the names of their
# parameters, which PTX does not know. You hand over what the host would.


# %%
def run(ptx):
    kernel = nd.from_ptx(ptx, ["map", "out", "tiles"])["ring"]
    data, out, args = check.arguments()
    nd.simulate(kernel, 1, 64, args)
    print("doubled:", np.array_equal(out, 2 * data))


# %% [markdown]
# ## What the compiler has kept
#
# Here is how the consumers wait, in PTX. A `.loc` says where the instructions below it are from: the number
# of the file (`ring.cu` is 1), the line and the column. After `inlined_at` comes where the function was
# called. No call is left, for the compiler has put the function's body in its place. If that call
# was inlined too, then another `.loc` says where: the one with this line and column. So there is a chain.

# %%
print(check.loop_around(check.ptx("bytes"), "try_wait"))

# %% [markdown]
# ## Exercise 1: where does it come from?
#
# Look at the instruction `mbarrier.try_wait`. In which line of `ring.cu` does it stand? And which line of
# the *kernel*, at the end of the chain, led to it?

# %% exercise="came_from"
line = ...
called = ...

# %%
check.came_from(line=line, called=called)

# %% [markdown]
# A report does the same for you. It names the instruction's line, and the calls in brackets.
#
# ## First fault: it hangs
#
# The kernel never ends. On a GPU you would see nothing at all. Here you see this:

# %%
lessons.show_fault(lambda: run(check.ptx("bytes")))

# %% [markdown]
# Two groups wait for each other. Group A waits on full, and its barrier tells most. **Pending 0**: every
# arrival is in. **tx-count 2048**: so many bytes are still expected, and nothing is on its way. Here is
# that barrier:

# %%
pictures.barrier_states([
    ("expect 3072 bytes", 0, 0, 1, 3072), ("the copy lands", 0, 0, 1, 2048),
], title="full[0]")  # fmt: skip

# %% [markdown]
# The `cure` names the line that has announced the bytes. It is in the function `expect`, which is right. Who
# calls it?
#
# ## Exercise 2: mend it
#
# What belongs in the place of `sizeof tile`? Write it in C++, as a text in quotes. The check puts it into
# the source, compiles it with NVRTC, which comes with Numba-CUDA, and lets the engine judge the PTX.

# %% exercise="announced"
size = ...

# %%
check.announced(size)

# %% [markdown]
# ## Second fault: the wrong line is blamed
#
# With that line mended, the ring runs on, until here:

# %%
lessons.show_fault(lambda: run(check.ptx("count")))

# %% [markdown]
# The report names line 16, and in brackets line 67. Is one of them wrong? Line 67 made the arrival that was
# one too many. But an engine can only say where two facts collide: here an arrival and a count. It cannot
# know which of them you meant. So **read the state and the cure before you touch the line.** Look for what
# the barrier expects, and where that was said.
#
# ## Exercise 3: the line to change
#
# Give the number of the line that you change, and what it says then. Leave the consumers as they are.

# %% exercise="counted"
line = ...
text = ...

# %%
check.counted(line, text)

# %% [markdown]
# ## Third fault: the numbers are right
#
# A colleague mends it in another way. She leaves the count at 1, and lets one lane arrive for its whole
# warp, which is cheaper than 32 arrivals. That is a good idea. So line 67 becomes:
#
#     if (threadIdx.x == 0) arrive(&empty[stage]);
#
# And she has tested it: the numbers are right. Predict what the engine says. Then let it explain:

# %%
lessons.show_fault(lambda: run(check.ptx("elected")))

# %% [markdown]
# The planted fault `release_too_early` breaks the same rule in Python, and on an H200 all its numbers were
# right (`bench/results/bugs.json`). So right numbers prove little, in C++ too. The engine speaks Python,
# though: its `cuda.syncwarp()` is `__syncwarp()` in C++.
#
# ## Exercise 4: mend the colleague's ring
#
# Keep her idea: a count of 1, and one lane that arrives. One line changes. A line of C++ may hold two
# statements.

# %% exercise="elected"
line = ...
text = ...

# %%
check.elected(line, text)

# %% [markdown]
# And this is the ring as you have mended it first:

# %%
run(check.ptx("right"))

# %% [markdown]
# ## Your own files
#
# In the shell, `numba-deform check` compiles and judges a file of yours. `arguments.py` makes what the host
# would hand over, and says which output is right:
#
#     numba-deform check ring.cu entry=ring block=64 args=arguments.py
#
# A Triton program needs nothing of that. `numba-deform check matmul.py` runs it as it is, and a stand-in
# for the driver takes its launches. [`site/ptx.md`](site/ptx.md) has both step by step. It also lists the
# rules that some compilers break on purpose, and how to waive them.
#
# Keep in mind what the verdict is about: the **PTX**. What the compiler has removed is not judged, and what
# it has added is. So compile as you compile for the GPU, with the same flags.
#
# ## What you know now
#
# - CUDA C++ and Triton become PTX, and PTX can be run and judged without a GPU.
# - With line information, a report names the line, and the calls that led there.
# - The line that is blamed is where two facts collide. The line to change may be the other one.
# - One lane may speak for its warp when the warp has met.

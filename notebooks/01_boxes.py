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
# # 1 · A box of numbers
#
# *About 60 minutes. You know Python and have seen a CUDA kernel. You need no GPU.*
#
# A CUDA kernel usually brings data into shared memory like a row of people with buckets: every thread
# computes an address, loads a few bytes into its registers, and stores them. The **Tensor Memory
# Accelerator** (TMA) of NVIDIA's Hopper GPUs turns that round. *One* thread gives *one* instruction, "bring
# me the box at (c, x, y)", and a unit beside the cores computes the addresses, fetches the bytes and puts
# them into shared memory, while all threads do something else.
#
# For that the unit has to know beforehand what "(c, x, y)" means: where the tensor lies, how it is laid out,
# how large a box is. This knowledge is a **tensor map**: 128 bytes that the driver writes once, before the
# launch. After this lesson you can write one, say which numbers a box holds, also where it leaves the tensor,
# and understand why a map is refused.
#
# The first cell chooses the *engine*. On a Hopper GPU kernels are compiled and run there. Anywhere else they
# run on the **CPU engine**, which executes the same Python function thread by thread and knows the rules of
# the hardware.

# %%

import math

import numpy as np
from numba import cuda, int32, types, uint32, uint64

from numba_deform.compiler import i32, kernel, u32, u64
from numba_deform.course import lessons
from numba_deform.course.lessons import lesson1 as check
from numba_deform.course.lessons import pictures
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import ld_shared_b32, shared_address, st_global_b32
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init
from numba_deform.device.tma import cp_async_bulk_tensor_3d, fence_proxy_tensormap_acquire_sys
from numba_deform.engines.tensormap import RULES, TensorMap, TensorMapArray, swizzle_offsets

engine = lessons.engine()
print(f"kernels run on: {engine}")

# %% [markdown]
# ## A feature map in memory
#
# Our data is a real picture made into a *feature map*, as the layers of a network make them: 40 rows of 48
# pixels, and for each pixel 32 numbers, its *channels*. The first three are red, green and blue, so that we
# can look at it.

# %%
features = lessons.feature_map(height=40, width=48, channels=32)
print("shape  ", features.shape, features.dtype)
print("strides", features.strides, "bytes")
pictures.box_on_picture(
    features, [(18, 10, 12, 8)], names=["A"], title="40 x 48 pixels, 32 channels"
)

# %% [markdown]
# Read the strides from the right, that is how memory is laid out. The next channel is 2 bytes on (a
# `float16`). The next pixel to the right is 64 bytes on, 32 channels later. The pixel below is 3072 bytes on,
# a whole row of 48 pixels later.
#
# Box A, 12 pixels wide and 8 high, is therefore not one piece of memory. It is 8 pieces, one for each of its
# rows, each 12 × 64 = 768 bytes long, and the next begins 3072 bytes after the last one. A thread that
# gathers them by hand does that arithmetic for every load. TMA does it for you, from the map.

# %% [markdown]
# ## The tensor map
#
# `TensorMap.of` takes the sizes and strides from a NumPy array. What it cannot know is the size of the box.

# %%
box_map = TensorMap.of(features, box=(32, 12, 8))
print(box_map)

# %% [markdown]
# Two things are the other way round than in NumPy, and both come from the hardware:
#
# - **Dimensions are listed innermost first.** The array's shape is (H, W, C), the map's `dims` are (C, W, H).
#   Dimension 0 is the one whose elements lie next to each other. The box and every coordinate use the same
#   order: `(c, x, y)`.
# - **Sizes count elements, strides count bytes.** Dimension 0 has no stride of its own, since its elements
#   must be dense.
#
# `dims` and `strides` say where the tensor lies. `box` says how much one instruction brings: 32 channels of
# 12 × 8 pixels, 6144 bytes. The size is in the map and not in the instruction, so a kernel that needs boxes
# of two sizes needs two maps.

# %% [markdown]
# ## One load
#
# Here is the smallest kernel that brings a box. Thread 0 asks for it, everybody waits, and then all 128
# threads write what arrived to global memory, so that we can look at it.

# %%
CHANNELS, BOX_W, BOX_H = 32, 12, 8
BOX_BYTES = CHANNELS * BOX_W * BOX_H * 2
BOX_WORDS = BOX_BYTES // 4
THREADS = 128


@kernel(threads=THREADS)
def load_box(map: u64, out: u64, x: i32, y: i32):
    tile = cuda.shared.array(BOX_BYTES, types.uint8, alignment=128)
    barrier = cuda.shared.array(1, types.uint64)
    tile_at, full = shared_address(tile), shared_address(barrier)
    tid = int32(cuda.threadIdx.x)
    if tid == 0:
        mbarrier_init(full, uint32(1))
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(map)
    cuda.syncthreads()
    if tid == 0:
        mbarrier_arrive_expect_tx(full, uint32(BOX_BYTES))
        cp_async_bulk_tensor_3d(tile_at, map, int32(0), x, y, full)
    mbarrier_wait(full, int32(0))
    for i in range(tid, BOX_WORDS, THREADS):
        st_global_b32(out + uint64(4 * i), ld_shared_b32(tile_at + uint32(4 * i)))


# %% [markdown]
# `cp_async_bulk_tensor_3d` is the one that matters today: *into `tile_at`, by this map, the box at `(0, x,
# y)`, and tell `full`*. It returns at once, long before the bytes are there. That is why there is a
# **barrier** called `full`: it is told how many bytes will come, and `mbarrier_wait` lets the threads pass
# when they have. Lesson 2 takes it apart. For now, four lines to believe: `mbarrier_init` makes the barrier,
# the two fences let the copy engine see the new barrier and the new map, and `mbarrier_arrive_expect_tx`
# announces the bytes.
#
# The annotations are the types of the kernel's parameters. `u64` is an *address*: the kernel gets those of
# the map and of `out`. `i32` is a number. `TensorMapArray` holds one or more maps, aligned as the hardware
# wants them.

# %%
maps = TensorMapArray([box_map])
out = np.full((BOX_H, BOX_W, CHANNELS), np.nan, np.float16)
ran = lessons.run(load_box, 1, (maps, out, 18, 10), engine=engine)
print(ran)
print("the same as features[10:18, 18:30]:", np.array_equal(out, features[10:18, 18:30]))

# %% [markdown]
# So that is the meaning of a box inside the tensor: `features[y : y + 8, x : x + 12]`, packed without gaps.
# In shared memory the 12 pixels of the box's second row follow directly on those of the first. The 3072 bytes
# from row to row are gone.
#
# `box_map.load_box((c, x, y))` computes the same bytes on the host, without a kernel. The pictures below use
# it. Move the box about:

# %%
SHAPE = (BOX_H, BOX_W, CHANNELS)


def look(x, y):
    loaded = box_map.load_box((0, x, y)).view(np.float16).reshape(SHAPE)
    return pictures.box_on_picture(
        features, [(x, y, BOX_W, BOX_H)], loaded=[loaded], title=f"x={x}, y={y}"
    )


lessons.slider(look, start={"x": 18, "y": 10}, x=range(-12, 49, 3), y=range(-8, 41, 2))

# %% [markdown]
# ## Exercise 1: where does the tile begin?
#
# In deformable attention a query reads its feature map at a *sampling location* `(u, v)`, both from 0 to 1
# across the picture. The value there is interpolated from the 2 × 2 pixels around it. This *tile* is a small
# box: 2 pixels wide and 2 high.
#
# Pixel number `x` covers `x .. x + 1`, so its centre lies at `x + 0.5`. Several *heads* share the map's
# dimension 0: head 0 has the channels `0 .. channels - 1`, head 1 the next ones, and so on.
#
# Write the coordinates of the tile's corner, as `cp_async_bulk_tensor_3d` takes them. Replace the `...`.


# %% exercise="tile_corner"
def tile_corner(u, v, head, width, height, channels):
    """(c, x, y): the corner of the 2 x 2 tile around (u, v) for one head's channels."""
    return ...


# %%
check.tile_corner(tile_corner)

# %% [markdown]
# ## Outside: zeros, for nothing
#
# You may have moved the box over the border. Nothing bad happened, and no `if` was needed. The corner of a
# box is a *signed* number, it may be negative or past the end, and **every element outside the tensor arrives
# as zero**:

# %%
corners = [(-5, 14), (41, -3), (52, 30)]
loaded = []
for x, y in corners:
    out = np.full(SHAPE, np.nan, np.float16)
    lessons.run(load_box, 1, (maps, out, x, y), engine=engine)
    loaded.append(out)
boxes = [(x, y, BOX_W, BOX_H) for x, y in corners]
pictures.box_on_picture(features, boxes, names="ABC", loaded=loaded, title="hatched: zero fill")

# %% [markdown]
# This is what deformable attention wants. Its definition says that a neighbour outside the level counts as
# zero. A kernel with plain loads has to test four neighbours for each sample. With TMA the test is part of
# the copy.
#
# It has a consequence that people get wrong: **the whole box arrives and is counted**, the zeros included.
# Shared memory receives 6144 bytes wherever the box lies, and the barrier hears of 6144 bytes. Box C is
# entirely outside. It brings nothing from memory, and 6144 bytes of zeros.
#
# Zero fill is a property of *loads*. A box that is stored may overhang the end, and what overhangs is not
# written. It must not start at a negative coordinate. And in dimension 0 a corner is less free, of loads too:
# see *What is refused* below.

# %% [markdown]
# ## Exercise 2: predict the zeros
#
# The box of 12 × 8 pixels is loaded at `x = -5`, `y = 36` of our picture of 48 × 40 pixels with 32 channels
# of `float16`. How many *elements* of it are zero fill? And how many bytes must the barrier be told to
# expect?

# %% exercise="zero_fill"
filled = ...
expect = ...

# %%
check.zero_fill(filled=filled, expect=expect)

# %% [markdown]
# ## The order of the dimensions
#
# What if the map lists height before width? It is a small mistake: `(C, H, W)` instead of `(C, W, H)`, with
# strides to match. Let us make a map that brings the whole picture as one box, once right and once with this
# mistake.

# %%
H, W, C = features.shape
PIXEL = C * features.itemsize  # bytes
right = TensorMap(features, "float16", dims=(C, W, H), strides=(PIXEL, W * PIXEL), box=(C, W, H))
swapped = TensorMap(features, "float16", dims=(C, H, W), strides=(PIXEL, H * PIXEL), box=(C, H, W))
as_right = right.load_box((0, 0, 0)).view(np.float16).reshape(H, W, C)
as_swapped = swapped.load_box((0, 0, 0)).view(np.float16).reshape(W, H, C)
pictures.feature_maps([as_right, as_swapped], ["dims (C, W, H): right", "dims (C, H, W): swapped"])

# %% [markdown]
# The swapped map is *legal*. Its sizes, its strides and its box satisfy every rule; the driver takes it, and
# each copy succeeds. It only believes that a row is 40 pixels long, where a row is 48. So every row starts 8
# pixels too early, and the picture is sheared. No engine can report that, since no rule is broken. Two habits
# find it:
#
# - test on data that is neither constant nor square (on a square picture this mistake changes nothing here);
# - let `TensorMap.of(array, box)` read sizes and strides from the array, instead of typing them.

# %% [markdown]
# ## Exercise 3: one box for each block
#
# Twenty blocks are to bring the whole picture, a box each: four boxes in a row (`across`), five rows of
# boxes, numbered row by row. Block `b` writes its box to `out[b]`. Only the coordinates are missing. Note
# where they go: `x` comes before `y`.


# %% exercise="block_corner"
@kernel(threads=THREADS)
def all_boxes(map: u64, out: u64, across: i32):
    tile = cuda.shared.array(BOX_BYTES, types.uint8, alignment=128)
    barrier = cuda.shared.array(1, types.uint64)
    tile_at, full = shared_address(tile), shared_address(barrier)
    tid, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    x = ...
    y = ...
    if tid == 0:
        mbarrier_init(full, uint32(1))
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(map)
    cuda.syncthreads()
    if tid == 0:
        mbarrier_arrive_expect_tx(full, uint32(BOX_BYTES))
        cp_async_bulk_tensor_3d(tile_at, map, int32(0), int32(x), int32(y), full)
    mbarrier_wait(full, int32(0))
    place = out + uint64(block) * uint64(BOX_BYTES)
    for i in range(tid, BOX_WORDS, THREADS):
        st_global_b32(place + uint64(4 * i), ld_shared_b32(tile_at + uint32(4 * i)))


# %%
check.block_corner(all_boxes, engine=engine)

# %% [markdown]
# ## Strides: a level inside a larger tensor
#
# A map need not describe a whole array. Strides say how far it is to the next pixel, and between two pixels
# there may be anything. This is how deformable attention's `value` works. Its shape is (B, S, H, C): for each
# batch item all `S` pixels of all pyramid levels, level after level, row by row, and for each pixel `H` heads
# of `C` channels.
#
# A level of `height` × `width` pixels that starts at pixel `start` becomes a rank-3 map:
#
# - dimension 0 is all heads' channels of one pixel, `H * C` elements, so that head `h` is found at coordinate
#   `h * C`;
# - the base is not the start of `value` but of this level in this batch item;
# - the box is `(C, 2, 2)`: one head's channels. That it is smaller than dimension 0 is no problem.
#
# The map ends where the level ends, so boxes over its border get zeros, and not the first pixels of the next
# level, which lie right behind it in memory. One map for each level and batch item: that is the price.

# %% [markdown]
# ## Exercise 4: the map of a level
#
# Return the offset of the level from the start of `value` in bytes, and `dims` and `strides` of its map.


# %% exercise="level_map"
def level_map(batch, start, width, height, S, H, C, itemsize):
    """(offset, dims, strides) of one level of one batch item of value (B, S, H, C)."""
    offset = ...
    dims = ...
    strides = ...
    return offset, dims, strides


# %%
check.level_map(level_map)

# %% [markdown]
# ## What is refused, and why
#
# The driver checks a map when it encodes it, with `cuTensorMapEncodeTiled`. To every mistake it has the same
# answer: `CUDA_ERROR_INVALID_VALUE`. This package checks the same rules first, one by one, and says which one
# is broken. These are all of them:

# %%
for rule in RULES:
    print(f"{rule.name:32} {rule.text}")

# %% [markdown]
# Most follow from two facts:
#
# - **The copy engine's unit is 16 bytes.** So the base, every stride and a row of the box are multiples of 16
#   bytes. It is also why dimension 0 has no stride: neighbours in it must be neighbours in memory.
# - **The fields of a map have fixed widths.** A rank up to 5, dimensions up to 2³², strides below 2⁴⁰, boxes
#   up to 256 in each dimension.
#
# We asked the driver of an H200 about both sides of every limit (`bench/tensormap_rules.py`). Of 58 cases
# that the documentation decides, it agrees in 54; the other four it accepts although the documentation
# forbids them. The package refuses them all the same: what is undefined today may fail tomorrow.
#
# Here are the three refusals that you will meet first. A pixel of 3 channels:

# %%
rgb = np.ascontiguousarray(features[:, :, :3])
lessons.show_fault(lambda: TensorMap.of(rgb, box=(3, 4, 4)))

# %% [markdown]
# A box that is too large. 256 holds for each dimension of the box; all of it also has to fit into shared
# memory:

# %%
line = np.zeros(4096, np.float32)
lessons.show_fault(lambda: TensorMap.of(line, box=(1024,)))

# %% [markdown]
# And an array whose innermost elements are not next to each other. Here somebody has put the channels first
# by `transpose`, which moves no data and only changes strides:

# %%
channels_first = features.transpose(2, 0, 1)
print("shape", channels_first.shape, "strides", channels_first.strides)
lessons.show_fault(lambda: TensorMap.of(channels_first, box=(12, 8, 32)))

# %% [markdown]
# Two more rules are not the map's but the instruction's, so no driver checks them. The *destination* in shared
# memory must be aligned to 128 bytes, hence `alignment=128` in the kernels above. Without it the CPU engine
# stops the kernel, and says why:


# %%
ROOM = BOX_BYTES + 16  # a name, since the size of a shared array cannot be an expression


@kernel(threads=32)
def one_load(map: u64, offset: u32, c0: i32):
    tile = cuda.shared.array(ROOM, types.uint8, alignment=128)
    barrier = cuda.shared.array(1, types.uint64)
    full = shared_address(barrier)
    if cuda.threadIdx.x == 0:
        mbarrier_init(full, uint32(1))
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(map)
        mbarrier_arrive_expect_tx(full, uint32(BOX_BYTES))
        cp_async_bulk_tensor_3d(shared_address(tile) + offset, map, c0, int32(0), int32(0), full)
        mbarrier_wait(full, int32(0))


lessons.cpu_only("The report of a misaligned destination")
lessons.show_fault(lambda: lessons.run(one_load, 1, (maps, 16, 0), engine="cpu"))

# %% [markdown]
# The other rule is the one that people meet first. Let the channels be put first by a *copy* of the data. The
# driver takes the map of these planes; `x` is its innermost coordinate now. The destination is aligned, and the
# box begins one pixel left of the picture, as the tile of exercise 1 may:

# %%
plane_map = TensorMap.of(np.ascontiguousarray(channels_first), box=(8, 12, 32))  # (x, y, c)
planes = TensorMapArray([plane_map])
lessons.cpu_only("The report of a misaligned corner")
lessons.show_fault(lambda: lessons.run(one_load, 1, (planes, 0, -1), engine="cpu"))

# %% [markdown]
# **The innermost coordinate, times the element's size, is a multiple of 16 bytes**: the copy engine's unit
# again. In these planes a box begins at every eighth pixel and nowhere else. We asked an H200 for ranks 1 to 5,
# four types and four swizzles (`bench/box_corners.py`): it is always so, left and right of 0. Anything else
# ends the kernel with an illegal instruction, an error that names neither the copy nor the rule and takes the
# process's CUDA context with it. So this kernel stays on the CPU engine.
#
# The *other* coordinates of a load are free. Hence the usual cure, the layout that we began with: **channels
# innermost**. A tile then begins at any pixel, and in dimension 0 we go from head to head, in whole rows of the
# box, which are multiples of 16 bytes anyway. This operator's maps are laid out like that.
#
# Stores obey the same rule. A negative coordinate of a store, in any dimension, ends in the same error.

# %% [markdown]
# ## Exercise 5: which boxes come?
#
# Five loads by our two maps, both of `float16`. Which of them does an H200 carry out? Write their letters in a
# string, like `"AB"`.
#
# | | map | corner |
# |---|---|---|
# | A | `box_map` | `(c, x, y) = (0, -1, 3)` |
# | B | `box_map` | `(c, x, y) = (4, 0, 0)` |
# | C | `plane_map` | `(x, y, c) = (3, 8, 0)` |
# | D | `plane_map` | `(x, y, c) = (-8, 39, 5)` |
# | E | `plane_map` | `(x, y, c) = (16, -1, 0)` |

# %% exercise="corners"
come = ...

# %%
check.corners(come)

# %% [markdown]
# ## Exercise 6: mend it
#
# A picture of shape (height, width, 3) in `float16` has 6 bytes a pixel, and TMA refuses it, as you saw.
# Return an array that holds the same pixels and can have a map, with each pixel's channels still together,
# and the box for 4 × 4 of its pixels. Spend as little memory as the rules allow.


# %% exercise="mend"
def mend(picture):
    """(array, box) for a picture (height, width, 3) of float16."""
    array = ...
    box = ...
    return array, box


# %%
check.mend(mend)

# %% [markdown]
# ## Two more fields
#
# **Element strides** take every n-th element of the span of a box: with `(1, 2, 2)` every other pixel in x
# and in y. Then a box is a picture reduced to half, without a filter.

# %%
half = TensorMap.of(features, box=(C, 48, 40), element_strides=(1, 2, 2))
reduced = half.load_box((0, 0, 0)).view(np.float16).reshape(half.box_shape[::-1])
print("box", half.box, "-> in shared memory", half.box_shape)
pictures.feature_maps([features, reduced], ["all pixels", "every other one of every other row"])

# %% [markdown]
# **Swizzle** permutes the box in shared memory, so that threads which read a *column* of it do not all meet
# in the same memory banks. The unit is again 16 bytes. With `128B`, chunk `i` of row `r` (rows of 128 bytes)
# lies at place `i XOR r`:

# %%
places = swizzle_offsets(1024, "128B")[::16].reshape(8, 8) // 16 % 8
pictures.numbers(
    places,
    "the place where each 16-byte chunk lies",
    np.arange(8) == 0,
    "row of 128 bytes",
    "chunk",
)

# %% [markdown]
# Read down the hatched column: chunk 0 of the eight rows lies at eight different places, while without
# swizzle it would be the first place each time. What banks are, and when swizzling pays, is in lesson 7.
#
# ## What you know now
#
# - A tensor map is made before the launch: base, dims (innermost first, elements), strides (bytes), box.
# - One thread gives one instruction with signed coordinates; the box arrives packed.
# - What lies outside is zero, and is counted.
# - A swapped order is legal and wrong: test on data that shows it.
# - 16 bytes is the unit of nearly everything, the innermost coordinate included, 128 that of the destination.
#
# We have said "the barrier hears of 6144 bytes" and believed the rest. [Lesson 2](02_barrier.py) opens it.

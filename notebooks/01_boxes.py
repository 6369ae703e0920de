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
# *About 55 minutes. You know Python and have seen a CUDA kernel. You need no GPU.*
#
# In an ordinary CUDA kernel every thread helps to fill shared memory. It computes an address, loads a few
# bytes into its registers, and stores them. The **Tensor Memory Accelerator** (TMA) of NVIDIA's Hopper GPUs
# works differently. *One* thread gives *one* instruction: "bring me the box at (c, x, y)". A separate unit,
# the *copy engine*, computes the addresses, fetches the bytes and puts them into shared memory. The threads
# are free to do something else.
#
# This unit has to know in advance what "(c, x, y)" means: where the tensor lies in memory, how it is laid
# out, and how large a box is. A **tensor map** tells it. It is 128 bytes long, and the driver writes it
# before the launch. After this lesson you can write a tensor map, say which numbers a box holds, even where
# it reaches beyond the tensor, and explain why a map is refused.
#
# The first cell chooses the *engine*. With a Hopper GPU, kernels are compiled and run there. Anywhere else
# they run on the **CPU engine**. It executes the same Python function thread by thread, and it knows the
# rules of the hardware.

# %%

import math
import textwrap

import numpy as np
from numba import cuda

import numba_deform as nd
from numba_deform.course import lessons
from numba_deform.course.lessons import lesson1 as check
from numba_deform.course.lessons import pictures
from numba_deform.engines.tensormap import RULES, swizzle_offsets

engine = lessons.engine()
print(f"kernels run on: {engine}")

# %% [markdown]
# ## A feature map in memory
#
# Our data is a photograph made into a *feature map*, the kind of array that the layers of a neural network
# produce. It has 40 rows of 48 pixels, and 32 numbers for each pixel: its *channels*. The first three are
# red, green and blue, so we can look at it.

# %%
features = lessons.feature_map(height=40, width=48, channels=32)
print("shape  ", features.shape, features.dtype)
print("strides", features.strides, "bytes")
pictures.box_on_picture(
    features, [(18, 10, 12, 8)], names=["A"], title="40 x 48 pixels, 32 channels"
)

# %% [markdown]
# Read the strides from right to left. The next channel is 2 bytes away (a `float16`). The next pixel to the
# right is 64 bytes away: 32 channels. The pixel below is 3072 bytes away: a whole row of 48 pixels.
#
# Box A is 12 pixels wide and 8 high. It is therefore not one piece of memory but eight, one for each row.
# Each piece is 12 × 64 = 768 bytes long, and each starts 3072 bytes after the one before. Threads that
# gather the box themselves do this arithmetic for every load. TMA does it for you, and takes the numbers
# from the map.

# %% [markdown]
# ## The tensor map
#
# `nd.TensorMap.of` takes sizes and strides from a NumPy array. You only add the size of the box.

# %%
box_map = nd.TensorMap.of(features, box=(32, 12, 8))
print(box_map)

# %% [markdown]
# Two things differ from NumPy. Both come from the hardware.
#
# - **The innermost dimension comes first.** The array's shape is (H, W, C), and the map's `dims` are (C, W,
#   H). Dimension 0 is the one whose elements lie next to each other. The box and every coordinate use the
#   same order: `(c, x, y)`.
# - **Sizes count elements, strides count bytes.** The map holds no stride for dimension 0, because its
#   elements must be adjacent. The 2 that is printed is the size of an element.
#
# (`every` is 1 in each dimension: the box takes every element. This course leaves it so.)
#
# `dims` and `strides` describe the tensor. `box` says how much one instruction brings: 32 channels of 12 ×
# 8 pixels, 6144 bytes. The box's size belongs to the map, not to the instruction. A kernel that needs boxes
# of two sizes needs two maps.

# %% [markdown]
# ## One load
#
# Here is the smallest kernel that brings a box. Thread 0 asks for it, and all threads wait. Then all 128
# threads copy what arrived to global memory, where we can look at it.

# %%
CHANNELS, BOX_W, BOX_H = 32, 12, 8
BOX_NUMBERS = CHANNELS * BOX_W * BOX_H
BOX_BYTES = 2 * BOX_NUMBERS
THREADS = 128
shared = nd.Shared(tile=nd.Array((BOX_NUMBERS,), nd.float16, alignment=128), full=nd.Barrier(1))


@nd.kernel(threads=THREADS, shared=shared)
def load_box(map: nd.u64, out: nd.float16[:], x: nd.i32, y: nd.i32):
    nd.fence_proxy_tensormap_acquire_sys(map)
    shared.init()
    tile, full = shared.tile.view(), shared.full
    if cuda.threadIdx.x == 0:
        full.expect(BOX_BYTES)
        nd.cp_async_bulk_tensor_3d(shared.tile.at(0), map, 0, x, y, full.at())
    full.wait(0)
    for i in range(cuda.threadIdx.x, BOX_NUMBERS, THREADS):
        out[i] = tile[i]


# %% [markdown]
# The important line is `cp_async_bulk_tensor_3d`. It says: *to the tile, by this map, the box at `(0, x,
# y)`, and tell `full`*. It returns at once, long before the bytes arrive. That is why there is a
# **barrier** called `full`. It knows how many bytes will come, and `full.wait` holds the threads back until
# they have come. Lesson 2 takes it apart.
#
# `nd.Shared` lays out the block's shared memory, and gives its parts names. For now, trust three lines.
# `shared.init` makes the barrier, and shows it to all threads and to the copy engine. `full.expect`
# announces the bytes. The fence lets the copy engine see the new map. (Most CUDA C++ passes the map itself
# as a kernel parameter, `const __grid_constant__ CUtensorMap`. Then there is no fence for the map. Here maps
# lie in global memory, so that there can be any number of them.)
#
# The copy engine takes *addresses*, not arrays: `shared.tile.at(0)` is the address of the tile, and
# `full.at()` that of the barrier. `shared.tile.view()` is the same tile as an array, for the threads. The
# annotations are the types of the kernel's parameters. `nd.u64` is an address, here that of the map.
# `nd.float16[:]` is an array, and `nd.i32` a whole number. `TensorMapArray` holds one or more maps, aligned
# as the hardware requires.

# %%
maps = nd.TensorMapArray([box_map])
out = np.full((BOX_H, BOX_W, CHANNELS), np.nan, np.float16)
ran = lessons.run(load_box, 1, (maps, out.ravel(), 18, 10), engine=engine)
print(ran)
print("the same as features[10:18, 18:30]:", np.array_equal(out, features[10:18, 18:30]))

# %% [markdown]
# So a box inside the tensor holds `features[y : y + 8, x : x + 12]`, packed without gaps. In shared memory
# the box's second row directly follows the first. The 3072 bytes from row to row are gone.
#
# `box_map.load_box((c, x, y))` computes the same bytes on the host, without a kernel. The next picture uses
# it. Move the box around, and over the border too:

# %%
SHAPE = (BOX_H, BOX_W, CHANNELS)


def look(x, y):
    loaded = box_map.load_box((0, x, y)).view(np.float16).reshape(SHAPE)
    return pictures.box_on_picture(
        features, [(x, y, BOX_W, BOX_H)], names=["A"], loaded=[loaded], title=f"x={x}, y={y}"
    )


lessons.slider(
    look, start={"x": 18, "y": 10}, x=range(-12, 49, 3), y=range(-8, 41, 2),
    page={"x": [-12, -6, 0, 9, 18, 30, 39, 48], "y": [-8, -4, 0, 10, 24, 34, 40]},
)  # fmt: skip

# %% [markdown]
# ## Exercise 1: where does the tile begin?
#
# Deformable attention, which lesson 3 computes, asks many questions about a picture. Each of them, a
# *query*, reads the feature map at *sampling locations* `(u, v)`. Both numbers go from 0 to 1 across the
# picture. The value there is interpolated from the 2 × 2 pixels around it. This *tile* is a small box: 2
# pixels wide and 2 high.
#
# Pixel `x` covers the range from `x` to `x + 1`, so its centre lies at `x + 0.5`. The work is done several
# times side by side, by *heads* that have channels of their own. They share dimension 0 of the map: head 0
# has the channels `0` to `channels - 1`, head 1 has the next ones, and so on.
#
# Return the coordinates of the tile's corner, as `cp_async_bulk_tensor_3d` takes them. Replace the `...`.


# %% exercise="tile_corner"
def tile_corner(u, v, head, width, height, channels):
    """(c, x, y): the corner of the 2 x 2 tile around (u, v) for one head's channels."""
    return ...


# %%
check.tile_corner(tile_corner)

# %% [markdown]
# ## Outside the tensor: zeros
#
# Perhaps you moved the box over the border. Nothing bad happened, and the kernel needs no `if`. The corner
# of a box is a *signed* number. It may be negative, or lie past the end. **Every element outside the tensor
# arrives as zero**:

# %%
corners = [(-5, 14), (41, -3), (52, 30)]
loaded = []
for x, y in corners:
    out = np.full(SHAPE, np.nan, np.float16)
    lessons.run(load_box, 1, (maps, out.ravel(), x, y), engine=engine)
    loaded.append(out)
boxes = [(x, y, BOX_W, BOX_H) for x, y in corners]
pictures.box_on_picture(features, boxes, names="ABC", loaded=loaded, title="hatched: zero fill")

# %% [markdown]
# This is just what deformable attention wants: by definition, a neighbour outside the picture counts as
# zero. A kernel with plain loads has to test four neighbours for each sample. With TMA the copy does the
# test.
#
# One consequence is easy to get wrong. **The whole box arrives, and the whole box is counted**, zeros
# included. Shared memory receives 6144 bytes wherever the box lies, and the barrier counts 6144 bytes. Box
# C lies entirely outside. It reads nothing from memory, and 6144 bytes of zeros arrive.
#
# Zero fill is a property of *loads*. When a box is stored, the part past the end is not written, and a
# corner must not be negative. Dimension 0 has a stricter rule, for loads too: see *What is refused* below.

# %% [markdown]
# ## Exercise 2: predict the zeros
#
# The box of 12 × 8 pixels is loaded at `x = -5`, `y = 36`. Our picture has 48 × 40 pixels with 32 channels
# of `float16`. How many *elements* of the box are zero fill? How many bytes must the barrier expect?

# %% exercise="zero_fill"
filled = ...
expect = ...

# %%
check.zero_fill(filled=filled, expect=expect)

# %% [markdown]
# ## The order of the dimensions
#
# What if the map lists height before width? It is a small mistake: `(C, H, W)` instead of `(C, W, H)`, with
# strides to match. Here are two maps that bring the whole picture as one box. The second one has this
# mistake.

# %%
H, W, C = features.shape
PIXEL = C * features.itemsize  # bytes
right = nd.TensorMap(features, "float16", dims=(C, W, H), strides=(PIXEL, W * PIXEL), box=(C, W, H))
swapped = nd.TensorMap(features, "float16", dims=(C, H, W), strides=(PIXEL, H * PIXEL), box=(C, H, W))
as_right = right.load_box((0, 0, 0)).view(np.float16).reshape(H, W, C)
as_swapped = swapped.load_box((0, 0, 0)).view(np.float16).reshape(W, H, C)
pictures.feature_maps([as_right, as_swapped], ["dims (C, W, H): right", "dims (C, H, W): swapped"])

# %% [markdown]
# The swapped map is *legal*. Sizes, strides and box satisfy every rule. The driver accepts it, and each
# copy succeeds. But the map says that a row has 40 pixels, and in truth it has 48. So every row starts 8
# pixels too early, and the picture is sheared. No engine can report this, because no rule is broken. Two
# habits help:
#
# - Test on data that is neither constant nor square. On a square picture this mistake would change nothing.
# - Let `TensorMap.of(array, box)` read sizes and strides from the array. Do not type them.

# %% [markdown]
# ## Exercise 3: one box for each block
#
# Twenty blocks together bring the whole picture, one box each: four boxes in a row (`across`), and five
# rows of boxes, numbered row by row. Block `b` writes its box to `out[b]`. Only the coordinates are
# missing. Look where they go: `x` comes before `y`.


# %% exercise="block_corner"
@nd.kernel(threads=THREADS, shared=shared)
def all_boxes(map: nd.u64, out: nd.float16[:, :], across: nd.i32):
    nd.fence_proxy_tensormap_acquire_sys(map)
    shared.init()
    tile, full, block = shared.tile.view(), shared.full, cuda.blockIdx.x
    x = ...
    y = ...
    if cuda.threadIdx.x == 0:
        full.expect(BOX_BYTES)
        nd.cp_async_bulk_tensor_3d(shared.tile.at(0), map, 0, x, y, full.at())
    full.wait(0)
    for i in range(cuda.threadIdx.x, BOX_NUMBERS, THREADS):
        out[block, i] = tile[i]


# %%
check.block_corner(all_boxes, engine=engine)

# %% [markdown]
# ## Strides: a level inside a larger tensor
#
# A map need not describe a whole array. Strides only say how far it is to the next pixel. What lies between
# two pixels does not matter. Deformable attention's `value` needs this. It holds each picture in several
# sizes, the *levels* of a *pyramid*. Its shape is (B, S, H, C): for each of `B` pictures (*batch items*) the
# `S` pixels of all levels, level after level, row by row, and for each pixel `H` heads of `C` channels.
#
# A level of `height` × `width` pixels, whose first pixel is number `start`, becomes a map of rank 3, that
# is, with three dimensions:
#
# - Dimension 0 holds all heads' channels of one pixel: `H * C` elements. Head `h` begins at coordinate `h *
#   C`.
# - The map's base is the start of this level in this batch item, not the start of `value`.
# - The box is `(C, 2, 2)`: one head's channels. It may be smaller than dimension 0.
#
# The map ends where the level ends. Beyond that border come zeros, not the first pixels of the next level.
# The price is one map for each level and batch item.

# %% [markdown]
# ## Exercise 4: the map of a level
#
# Return the offset of the level from the start of `value`, in bytes, and `dims` and `strides` of its map.


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
# The driver checks a map when it encodes it, with `cuTensorMapEncodeTiled`. Its answer to every mistake is
# the same: `CUDA_ERROR_INVALID_VALUE`. This package checks the same rules first, one by one, and names the
# one that is broken. These are all of them. (We leave out two fields of a map: *interleave*, and *element
# strides*, which skip elements.)

# %%
for rule in RULES:
    print(textwrap.fill(f"{rule.name}: {rule.text}", 90, subsequent_indent="    "))

# %% [markdown]
# Most of them follow from two facts:
#
# - **The copy engine works in units of 16 bytes.** So the base, every stride and a row of the box are
#   multiples of 16 bytes.
# - **The fields of a map have fixed widths.** The rank is at most 5, dimensions go up to 2³², strides stay
#   below 2⁴⁰, and a box has at most 256 elements in each dimension.
#
# We asked the driver of an H200 about both sides of every limit (`bench/tensormap_rules.py`). The
# documentation decides 58 of these cases, and the driver agrees in 54. It accepts the other four, although
# they are forbidden. The package refuses them: what is undefined today may fail tomorrow.
#
# Here are the three refusals that you will probably meet first. A pixel of 3 channels:

# %%
rgb = np.ascontiguousarray(features[:, :, :3])
lessons.show_fault(lambda: nd.TensorMap.of(rgb, box=(3, 4, 4)))

# %% [markdown]
# A box that is too large. The limit of 256 holds for each dimension, and the whole box also has to fit into
# shared memory:

# %%
line = np.zeros(4096, np.float32)
lessons.show_fault(lambda: nd.TensorMap.of(line, box=(1024,)))

# %% [markdown]
# An array whose innermost elements are not adjacent. Here `transpose` has put the channels first. It moves
# no data, it only changes strides:

# %%
channels_first = features.transpose(2, 0, 1)
print("shape", channels_first.shape, "strides", channels_first.strides)
lessons.show_fault(lambda: nd.TensorMap.of(channels_first, box=(12, 8, 32)))

# %% [markdown]
# Two more rules concern the instruction and not the map, so no driver checks them. First, the *destination*
# in shared memory must be aligned to 128 bytes. Hence `alignment=128` in the kernels above. Without it the
# CPU engine stops the kernel and says why:


# %%
roomy = nd.Shared(tile=nd.Array((BOX_BYTES + 16,), nd.uint8, alignment=128), full=nd.Barrier(1))


@nd.kernel(threads=32, shared=roomy)
def one_load(map: nd.u64, offset: nd.u32, c0: nd.i32):
    nd.fence_proxy_tensormap_acquire_sys(map)
    roomy.init()
    if cuda.threadIdx.x == 0:
        roomy.full.expect(BOX_BYTES)
        nd.cp_async_bulk_tensor_3d(roomy.tile.at(offset), map, c0, 0, 0, roomy.full.at())
        roomy.full.wait(0)


lessons.cpu_only("The report of a misaligned destination")
lessons.show_fault(lambda: lessons.run(one_load, 1, (maps, 16, 0), engine="cpu"))

# %% [markdown]
# The second rule surprises nearly everybody. Suppose we put the channels first by a *copy* of the data. The
# driver accepts a map of these planes. Now `x` is the innermost coordinate. The destination is aligned, and
# the box begins one pixel left of the picture, as the tile of exercise 1 may:

# %%
plane_map = nd.TensorMap.of(np.ascontiguousarray(channels_first), box=(8, 12, 32))  # (x, y, c)
planes = nd.TensorMapArray([plane_map])
lessons.cpu_only("The report of a misaligned corner")
lessons.show_fault(lambda: lessons.run(one_load, 1, (planes, 0, -1), engine="cpu"))

# %% [markdown]
# **The innermost coordinate, times the element's size, must be a multiple of 16 bytes.** It is the copy
# engine's unit again. In these planes a box can begin at every eighth pixel and nowhere else. We asked an
# H200, for ranks 1 to 5, four types and four swizzles (the last section says what those are;
# `bench/box_corners.py`): it is always so, left and right of 0. Anything else ends the kernel with an
# illegal instruction. That error names neither the copy nor the rule, and the process loses its CUDA
# context. So this cell stays on the CPU engine.
#
# The *other* coordinates of a load are free. The usual cure is therefore the layout that we began with:
# **channels innermost**. Then a tile can begin at any pixel. In dimension 0 we only step from head to head,
# and a head's channels are a row of the box, so a multiple of 16 bytes anyway.
#
# Stores obey the same rule. In addition, a store with a negative coordinate, in any dimension, ends in the
# same error.

# %% [markdown]
# ## Exercise 5: which boxes arrive?
#
# Here are five loads by our two maps, both of `float16`. Which of them does an H200 carry out? Write their
# letters in a string, like `"AB"`.
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
# Return an array that holds the same pixels and can have a map. Keep each pixel's channels together, and
# use as little memory as the rules allow. Return the box for 4 × 4 of its pixels, too.


# %% exercise="mend"
def mend(picture):
    """(array, box) for a picture (height, width, 3) of float16."""
    array = ...
    box = ...
    return array, box


# %%
check.mend(mend)

# %% [markdown]
# ## One more field: swizzle
#
# A **swizzle** permutes the box in shared memory. Without it, threads that read a *column* of the box may
# all need the same memory bank, and have to take turns. The unit is 16 bytes once more. With `128B`, chunk
# `i` of row `r` (rows of 128 bytes) lies at place `i XOR r`:

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
# Read down the hatched column. Chunk 0 of the eight rows lies at eight different places. Without swizzle it
# would be the first place each time. [Lesson 7](07_how_fast.py) explains banks, and when a swizzle pays.
#
# ## What you know now
#
# - A tensor map is made before the launch: base, dims (innermost first, in elements), strides (in bytes),
#   box.
# - One thread gives one instruction with signed coordinates. The box arrives packed.
# - What lies outside arrives as zeros, and is counted.
# - A swapped order is legal and wrong. Test on data that shows it.
# - Nearly everything is a multiple of 16 bytes, the innermost coordinate included. The destination is a
#   multiple of 128.
#
# We have said that the barrier counts 6144 bytes, and trusted three lines. [Lesson 2](02_barrier.py) opens
# the barrier.

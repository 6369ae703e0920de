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
# # 3 · One tile
#
# *About 60 minutes. You know boxes ([lesson 1](01_boxes.py)) and barriers ([lesson 2](02_barrier.py)).*
#
# Now we compute something. **Deformable attention** looks at a feature map in a few places only. A *query*
# says where: it comes with sampling locations, and with a weight for each. Its result is
#
# > the sum over its samples of (attention weight) × (the feature map, interpolated at the location)
#
# That is all of the operator, for one query, one head and one level. The encoder of Deformable DETR, on an
# image of 800 × 1333 pixels, computes it for 22223 queries, 8 heads, 4 levels and 4 samples on each: 2.8
# million times somebody has to fetch 2 × 2 pixels from somewhere. That makes it a good teacher for
# asynchronous copies: many small loads, at addresses that nobody knows beforehand.
#
# We write it three times: by hand in NumPy, as a kernel that loads its tiles by TMA, and once more with a
# look at what the machine makes of it.

# %%

import math

import numpy as np
from numba import cuda, float32, int32, types, uint32, uint64

from numba_deform import reference, relative_error
from numba_deform.attention.reference import TOLERANCE
from numba_deform.compiler import i32, kernel, u64
from numba_deform.course import lessons
from numba_deform.course.lessons import lesson3 as check
from numba_deform.device.half2 import cvt_f32_f16_hi, cvt_f32_f16_lo, mov_b32_f32, mov_f32_b32
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    mbarrier_try_wait_parity,
)
from numba_deform.device.memory import ld_global_b32, ld_shared_b32, shared_address, st_global_b32
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.ptx import ptx_directory
from numba_deform.device.sync import fence_mbarrier_init
from numba_deform.device.tma import cp_async_bulk_tensor_3d, fence_proxy_tensormap_acquire_sys
from numba_deform.engines.tensormap import TensorMap, TensorMapArray

engine = lessons.engine()
print(f"kernels run on: {engine}")

# %% [markdown]
# ## A query
#
# One query with four samples. Locations are *normalised*: (0, 0) is the top left corner of the picture and
# (1, 1) the bottom right one. So the same location means the same place on every level of a pyramid. Samples
# 2 and 3 lie at the border on purpose. Weights come from a softmax and sum to 1.

# %%
W, H, CHANNELS, POINTS = 48, 40, 32, 4
features = lessons.feature_map(height=H, width=W, channels=CHANNELS)
locations = np.array([(0.30, 0.42), (0.56, 0.33), (-0.004, 0.62), (0.74, 0.994)], np.float32)
weights = np.array([0.4, 0.3, 0.2, 0.1], np.float32)

tile_map = TensorMap.of(features, box=(CHANNELS, 2, 2))
corners = [(math.floor(u * W - 0.5), math.floor(v * H - 0.5)) for u, v in locations]
tiles = [tile_map.load_box((0, x, y)).view(np.float16).reshape(2, 2, CHANNELS) for x, y in corners]
check.samples_on_picture(features, locations, tiles, "four samples and their tiles")

# %% [markdown]
# Each small picture is a *tile*: the 2 × 2 pixels around a sample, and where in it the sample lies. Hatched
# pixels are outside the level and count as zero.

# %% [markdown]
# ## From a location to four weights
#
# Take sample 0 and go step by step.

# %%
u, v = (float(number) for number in locations[0])
x, y = u * W - 0.5, v * H - 0.5
x0, y0 = math.floor(x), math.floor(y)
fx, fy = x - x0, y - y0
print(f"location   ({u:.3f}, {v:.3f})")
print(f"pixel      ({x:.3f}, {y:.3f})     times the size, less half a pixel")
print(f"tile       ({x0}, {y0})             floor: the pixel above and to the left")
print(f"fractions  ({fx:.3f}, {fy:.3f})       the rest: how far it is from there")

# %% [markdown]
# Why *less half a pixel*? The value of a pixel belongs to its centre. Pixel 0 covers 0 to 1, and its centre
# lies at 0.5. In the coordinate `x` centres are at whole numbers, and interpolating between centres is what
# we want to do.
#
# `floor` gives the tile, which the copy needs. The fractions give the weights, which the arithmetic needs. A
# picture says how. Draw the square between the four centres and cut it at the sample: **the weight of a
# corner is the area opposite to it**. The nearer the sample comes to a corner, the larger the area on the
# other side.


# %%
def areas(fx, fy):
    return check.weights_as_areas(fx, fy)


tenths = [i / 10 for i in range(11)]
lessons.slider(areas, start={"fx": 0.9, "fy": 0.3}, fx=tenths, fy=tenths)

# %% [markdown]
# ## Exercise 1: corner weights
#
# Write the four weights.


# %% exercise="corner_weights"
def corner_weights(fx, fy):
    """((top left, top right), (bottom left, bottom right))."""
    return ...


# %%
check.corner_weights(corner_weights)

# %% [markdown]
# ## Exercise 2: the query in NumPy
#
# Now the whole query. What is missing is what makes the border right, and what is added up. A neighbour
# outside the picture counts as zero, so it is left out. Mind that `image[-1]` is no error in Python.


# %% exercise="attend"
def attend(image, locations, weights):
    """The result of one query: one number for each channel."""
    height, width, channels = image.shape
    image = image.astype(np.float64)
    total = np.zeros(channels)
    for (u, v), weight in zip(
        locations.astype(np.float64), weights.astype(np.float64), strict=True
    ):
        x, y = u * width - 0.5, v * height - 0.5
        x0, y0 = math.floor(x), math.floor(y)
        shares = corner_weights(x - x0, y - y0)
        for dy in range(2):
            for dx in range(2):
                row, column = y0 + dy, x0 + dx
                inside = ...
                if inside:
                    total += ...
    return total


# %%
check.attend(attend, corner_weights)

# %% [markdown]
# `numba_deform.reference` is the same, for batches of queries, heads and levels. It is what every kernel of
# this package is checked against. Its arguments are those of the operator: `value` with all levels' pixels in
# a row, the levels' shapes and starts, and locations and weights of shape (batch, query, head, level, point).

# %%
exact = reference(
    features.reshape(1, H * W, 1, CHANNELS),
    [(H, W)],
    [0],
    locations.reshape(1, 1, 1, 1, POINTS, 2),
    weights.reshape(1, 1, 1, 1, POINTS),
).reshape(CHANNELS)
print("the first channels, in float64:", exact[:4].round(4))

# %% [markdown]
# ## The kernel: load, wait, interpolate
#
# The same with TMA. One warp, three steps:
#
# 1. **Load.** Lane `p` computes the corner of tile `p` and asks for it. Four lanes arrive, and each announces
#    the bytes of its own tile. So the barrier is initialised with 4.
# 2. **Wait.** For all four, with parity 0: it is the barrier's first use.
# 3. **Interpolate.** Lane `c` takes channels `2c` and `2c + 1`, which are one 32-bit word in each pixel, and
#    sums up all four tiles. That is work for 16 lanes.
#
# A tile has 4 pixels of 32 channels of 2 bytes: 256 bytes. It arrives packed as lesson 1 said: pixel by
# pixel, top left, top right, bottom left, bottom right, 64 bytes each.

# %%
PIXEL_BYTES = CHANNELS * 2
TILE_BYTES = 4 * PIXEL_BYTES
ROOM = POINTS * TILE_BYTES
PAIRS = CHANNELS // 2


@cuda.jit(device=True, forceinline=True)
def load_f32(address):
    return mov_f32_b32(ld_global_b32(address))


@cuda.jit(device=True, forceinline=True)
def lower_and_fraction(location, size):
    x = float32(location * float32(size) - float32(0.5))
    lower = cuda.libdevice.floorf(x)
    return int32(lower), float32(x - lower)


@kernel(threads=32)
def attend_query(map: u64, locations: u64, weights: u64, out: u64, width: i32, height: i32):
    tiles = cuda.shared.array(ROOM, types.uint8, alignment=128)
    barrier = cuda.shared.array(1, types.uint64)
    tiles_at, full = shared_address(tiles), shared_address(barrier)
    lane = int32(cuda.threadIdx.x)
    if lane == 0:
        mbarrier_init(full, uint32(POINTS))
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(map)
    cuda.syncthreads()

    if lane < POINTS:  # load
        x0, _ = lower_and_fraction(load_f32(locations + uint64(8 * lane)), width)
        y0, _ = lower_and_fraction(load_f32(locations + uint64(8 * lane + 4)), height)
        mbarrier_arrive_expect_tx(full, uint32(TILE_BYTES))
        cp_async_bulk_tensor_3d(tiles_at + uint32(TILE_BYTES * lane), map, int32(0), x0, y0, full)

    mbarrier_wait(full, int32(0))  # wait

    if lane < PAIRS:  # interpolate
        even = odd = float32(0)
        for p in range(POINTS):
            _, fx = lower_and_fraction(load_f32(locations + uint64(8 * p)), width)
            _, fy = lower_and_fraction(load_f32(locations + uint64(8 * p + 4)), height)
            weight = load_f32(weights + uint64(4 * p))
            for dy in range(2):
                for dx in range(2):
                    across = fx if dx == 1 else float32(1) - fx
                    down = fy if dy == 1 else float32(1) - fy
                    share = float32(weight * across * down)
                    pixel_at = tiles_at + uint32(TILE_BYTES * p + PIXEL_BYTES * (2 * dy + dx))
                    word = ld_shared_b32(pixel_at + uint32(4 * lane))
                    even += share * cvt_f32_f16_lo(word)
                    odd += share * cvt_f32_f16_hi(word)
        st_global_b32(out + uint64(8 * lane), mov_b32_f32(even))
        st_global_b32(out + uint64(8 * lane + 4), mov_b32_f32(odd))


# %%
maps = TensorMapArray([tile_map])
out = np.full(CHANNELS, np.nan, np.float32)
print(lessons.run(attend_query, 1, (maps, locations, weights, out, W, H), engine=engine))
print(f"error against the reference: {relative_error(out, exact):.1e}")
print(f"allowed for fp16 values:     {TOLERANCE['float16']:.0e}")

# %% [markdown]
# Compare it with your NumPy: **there is no test for the border**. Samples 2 and 3 lie half outside, and the
# copy has brought zeros there. Their weights are multiplied with zeros, which is what the definition asks
# for.
#
# The rest are the words that you know. Note what the kernel does *not* do: no thread computes the address of
# a pixel in memory, and no register holds a pixel on its way to shared memory.

# %% [markdown]
# ## Coordinates stay in fp32
#
# Values are often fp16, and so are locations. It is tempting to compute coordinates in fp16 too, since the
# hardware does two of them at once. What does it cost? An fp16 number has 11 significant bits. Between 128
# and 256 neighbours are 1/8 apart, and a level 160 pixels wide needs coordinates up there:

# %%
rng = np.random.default_rng(0)
u16 = rng.random(100_000).astype(np.float16)
print("width  spacing  largest error  samples in a wrong tile, fp16     fp32")
for width in (20, 48, 80, 160, 334):
    true = u16.astype(np.float64) * width - 0.5
    half = u16 * np.float16(width) - np.float16(0.5)
    single = u16.astype(np.float32) * np.float32(width) - np.float32(0.5)
    worst, spacing = np.abs(half - true).max(), np.spacing(np.float16(width - 1))
    missed = [np.mean(np.floor(x) != np.floor(true)) for x in (half, single)]
    print(f"{width:5} {spacing:8.4f} {worst:14.4f} {missed[0]:28.1%} {missed[1]:11.1%}")

# %% [markdown]
# The locations are the *same* fp16 numbers in both columns. Only the multiplication and the subtraction
# differ. And a wrong tile is not the worst of it: just beyond a border its fraction is nearly 0 where it
# should be nearly 1, which comes to nearly the same pixels. What hurts is that *every* fraction is off, by up
# to half a step. Here are all fp16 locations within four pixels; each should lie on the line.

# %%
check.coordinate_steps(160)

# %% [markdown]
# And in the result? We ask the reference itself for the samples at the fp16 coordinates, all else in float64.
# The values are random here; on a smooth picture neighbours are alike and the error hides.

# %%
height, width, samples = 92, 160, 2000
level = rng.standard_normal((1, height * width, 1, 8))
at16 = rng.random((samples, 2)).astype(np.float16)
size = np.array([width, height])
coordinates = at16 * size.astype(np.float16) - np.float16(0.5)
as_computed = (coordinates.astype(np.float64) + 0.5) / size


def at(where):
    shape = (1, samples, 1, 1, 1)
    return reference(level, [(height, width)], [0], where.reshape(*shape, 2), np.ones(shape))


error = relative_error(at(as_computed), at(at16))
print(f"coordinates in fp16: error {error:.1e}; fp16 values may cost {TOLERANCE['float16']:.0e}")

# %% [markdown]
# No rule is broken, so no engine can report it. It is one of two faults of the planted 30 that only a
# comparison with a float64 reference finds (`numba_deform/course/bugs/fp16_coordinates.py`).

# %% [markdown]
# ## Exercise 3: the location's type
#
# Locations are stored in fp16. Return the tile's index and the fraction along one axis, precise enough to be
# used. NumPy has a trap here, the same as a kernel.


# %% exercise="pixel"
def pixel(location, size):
    """(index of the lower neighbour, fraction) of an np.float16 ``location`` on ``size`` pixels."""
    x = ...
    return math.floor(x), x - math.floor(x)


# %%
check.pixel(pixel)

# %% [markdown]
# ## Exercise 4: leave out what lies outside
#
# A sample far outside has a tile of zeros only. Loading it is a TMA instruction for nothing, so let us not
# load it. That is a little exercise in *accounting*, with all of lesson 2 in it: who arrives, which bytes are
# expected, and which tiles may be read.
#
# `near` says whether any pixel of the tile is inside. Replace the two `...`: what a lane does that loads
# nothing, and when a tile is read.


# %% exercise="skip"
@cuda.jit(device=True, forceinline=True)
def near(x0, y0, width, height):
    return x0 >= -1 and x0 < width and y0 >= -1 and y0 < height


@kernel(threads=32)
def attend_near(map: u64, locations: u64, weights: u64, out: u64, width: i32, height: i32):
    tiles = cuda.shared.array(ROOM, types.uint8, alignment=128)
    barrier = cuda.shared.array(1, types.uint64)
    tiles_at, full = shared_address(tiles), shared_address(barrier)
    lane = int32(cuda.threadIdx.x)
    if lane == 0:
        mbarrier_init(full, uint32(POINTS))
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(map)
    cuda.syncthreads()

    if lane < POINTS:
        x0, _ = lower_and_fraction(load_f32(locations + uint64(8 * lane)), width)
        y0, _ = lower_and_fraction(load_f32(locations + uint64(8 * lane + 4)), height)
        tile = tiles_at + uint32(TILE_BYTES * lane)
        if near(x0, y0, width, height):
            mbarrier_arrive_expect_tx(full, uint32(TILE_BYTES))
            cp_async_bulk_tensor_3d(tile, map, int32(0), x0, y0, full)
        else:
            ...

    mbarrier_wait(full, int32(0))

    if lane < PAIRS:
        even = odd = float32(0)
        for p in range(POINTS):
            x0, fx = lower_and_fraction(load_f32(locations + uint64(8 * p)), width)
            y0, fy = lower_and_fraction(load_f32(locations + uint64(8 * p + 4)), height)
            weight = load_f32(weights + uint64(4 * p))
            if ...:
                for dy in range(2):
                    for dx in range(2):
                        across = fx if dx == 1 else float32(1) - fx
                        down = fy if dy == 1 else float32(1) - fy
                        share = float32(weight * across * down)
                        pixel_at = tiles_at + uint32(TILE_BYTES * p + PIXEL_BYTES * (2 * dy + dx))
                        word = ld_shared_b32(pixel_at + uint32(4 * lane))
                        even += share * cvt_f32_f16_lo(word)
                        odd += share * cvt_f32_f16_hi(word)
        st_global_b32(out + uint64(8 * lane), mov_b32_f32(even))
        st_global_b32(out + uint64(8 * lane + 4), mov_b32_f32(odd))


# %%
check.skip(attend_near, engine=engine)

# %% [markdown]
# ## Behind each line: PTX
#
# `cp_async_bulk_tensor_3d` and its like look like Python functions, but each is one instruction of **PTX**,
# NVIDIA's assembly language for a virtual GPU. The text is written by hand in the folder `ptx/`, one function
# for each:

# %%
text = (ptx_directory() / "tma.ptx").read_text()
start = text.index(".visible .func cp_async_bulk_tensor_3d(")
print(text[start : text.index("\n}", start) + 2])

# %% [markdown]
# Most of it fetches parameters. The one instruction that counts reads like a sentence: *copy asynchronously,
# in bulk, a tensor of 3 dimensions, into shared memory from global memory, tile mode, and when done tell the
# mbarrier the bytes*; `[tile]` from `[tensor, {x0, x1, x2}]`, `[barrier]`.
#
# When your kernel is compiled, this text goes *into* it, without a call. Parameters become registers of the
# kernel (`$0`, `$1`, …):

# %%
inlined = cp_async_bulk_tensor_3d.ptx.inline_text()
print(inlined.replace("; ", ";\n  ").replace(" [tile]", "\n      [tile]"))

# %% [markdown]
# And here is what the other lines of the kernel are, without the fetching of parameters:

# %%
for line in (
    mbarrier_init,
    fence_mbarrier_init,
    fence_proxy_tensormap_acquire_sys,
    mbarrier_arrive_expect_tx,
    mbarrier_try_wait_parity,
    ld_shared_b32,
    cvt_f32_f16_lo,
):
    moves = (".reg", "ld.param", "st.param", "ret")
    own = [each for each in line.ptx.statements if not each.startswith(moves)]
    print(f"{line.ptx.name}\n    " + ";\n    ".join(own))

# %% [markdown]
# Everything that lesson 2 told in words stands in these names: `release` with the arrival, `acquire` with the
# wait, `expect_tx` before it, `parity`.

# %% [markdown]
# ## Behind PTX: SASS
#
# PTX is not what runs. It is translated to **SASS**, the machine code of one GPU. `machine_code` compiles
# for Hopper and takes the result apart, which needs no GPU (but NVIDIA's packages, which macOS does not have):

# %%
taken_apart = lessons.machine_code(attend_query)
interesting = ("SYNCS", "UTMA", "FENCE", "BAR.SYNC", "LDS")
if taken_apart:
    print(f"{taken_apart.registers} registers a thread, {taken_apart.shared} bytes of shared memory")
    for line in taken_apart.sass.splitlines():
        if any(word in line for word in interesting):
            print(line)

# %% [markdown]
# It is the kernel again, from top to bottom: a barrier is made, fences, `syncthreads`, and then load, wait,
# and the reads of the tiles (`LDS`, 4 bytes for each lane, at distances of 0x40 = 64 bytes: a pixel).
#
# `SYNCS` is what operations on an mbarrier are called there, and `UTMA…` belongs to the TMA unit. The wait is
# there several times: the compiler has taken the first turn out of its loop, and put the rest elsewhere.

# %% [markdown]
# ## Exercise 5: find your lines
#
# Which instructions of the list are these three lines of the kernel? Write their names with what follows the
# first dot where needed, for instance `"BAR.SYNC"`.

# %% exercise="sass"
load = ...  # cp_async_bulk_tensor_3d(...)
announce = ...  # mbarrier_arrive_expect_tx(...)
wait = ...  # mbarrier_wait(...)

# %%
check.sass(load=load, announce=announce, wait=wait, taken_apart=taken_apart)

# %% [markdown]
# Four lanes load a tile each, and yet the load stands there once. The TMA unit takes its operands from
# *uniform* registers (`UR`), which a warp has once and not once a lane. So the compiler makes a small loop
# around it: elect a lane, take its numbers, issue, next lane.

# %%
if taken_apart:
    lines = taken_apart.sass.splitlines()
    here = next(number for number, line in enumerate(lines) if "UTMALDG" in line)
    print("\n".join(lines[here - 7 : here + 2]))

# %% [markdown]
# ## Inlined or linked
#
# The same `.ptx` files can also be handed to the linker, as a library. Then each instruction is a real
# function, and the kernel *calls* it. It is one method away:

# %%
linked = lessons.machine_code(attend_query.with_linked_ptx())
if linked:
    print("instructions of the kernel:")
    for name, form in (("inlined", taken_apart), ("linked", linked)):
        total = sum(form.instructions.values())
        print(f"  {name:8} {total:4}, of which {form.instructions.get('CALL', 0)} are calls")
    print("and what the linked functions are made of:")
    for name, made_of in linked.functions.items():
        kinds = [
            kind for kind in made_of if kind.startswith(("SYNCS", "UTMA", "FENCE", "LD", "ST", "HADD"))
        ]
        if name != "attend_query" and kinds:
            print(f"  {name:34}", *kinds)

# %% [markdown]
# A function for one instruction is a fine thing to look at: here you read which line becomes which SASS. But
# a call saves registers, jumps, and cannot be mixed with its neighbours. On an H200 the package's TMA
# pipeline takes 2.9 times as long when linked (`bench/NOTES.md`). So the kernels of this package are inlined,
# and the linked form is kept to look at, and as a proof that the files are valid PTX.

# %% [markdown]
# ## What you know now
#
# - Deformable attention for a query: locations to pixels, floor for the tile, fractions for the weights, a
#   sum.
# - Less half a pixel, since values belong to centres; a corner's weight is the area opposite.
# - Outside is zero: with TMA the copy does it.
# - Coordinates are computed in fp32, also where everything else is fp16.
# - Arrivals, bytes and reads have to tell the same story about which tiles exist.
# - Each intrinsic is one PTX instruction, inlined; SASS says what became of it.
#
# One thing is bad about this kernel: while the tiles are on their way the warp does nothing, and while it
# computes, nothing is on its way. [Lesson 4](04_stages.py) gives it a second set of tiles.

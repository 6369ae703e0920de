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
# *About 50 minutes. You know boxes ([lesson 1](01_boxes.py)) and barriers ([lesson 2](02_barrier.py)).*
#
# Now we compute something. **Deformable attention** looks at a feature map in a few places only. A *query*
# says where: it has sampling locations, and a weight for each of them. Its result is
#
# > the sum over its samples of (attention weight) × (the feature map, interpolated at the location)
#
# For one query, one head and one level that is the whole operator. The encoder of Deformable DETR, on an
# image of 800 × 1333 pixels, computes it for 22223 queries, 8 heads and 4 levels, with 4 samples each. It
# fetches 2.8 million groups of 2 × 2 pixels. So it is a good teacher for asynchronous copies: many small
# loads, at addresses that nobody knows in advance.
#
# We write it twice, by hand in NumPy and as a kernel that loads its tiles by TMA. Then we look at what the
# compiler makes of the kernel.

# %%

import math

import numpy as np
from numba import cuda, float32

import numba_deform as nd
from numba_deform.attention.reference import TOLERANCE
from numba_deform.course import lessons
from numba_deform.course.lessons import lesson3 as check
from numba_deform.device.ptx import ptx_directory

engine = lessons.engine()
print(f"kernels run on: {engine}")

# %% [markdown]
# ## A query
#
# Here is one query with four samples. Locations are *normalised*: (0, 0) is the top left corner of the
# picture and (1, 1) the bottom right one. So a location means the same place on every level of a pyramid.
# Samples 2 and 3 lie at the border on purpose. The weights come from a softmax and add up to 1.

# %%
W, H, CHANNELS, POINTS = 48, 40, 32, 4
features = lessons.feature_map(height=H, width=W, channels=CHANNELS)
locations = np.array([(0.30, 0.42), (0.56, 0.33), (-0.004, 0.62), (0.74, 0.994)], np.float32)
weights = np.array([0.4, 0.3, 0.2, 0.1], np.float32)

tile_map = nd.TensorMap.of(features, box=(CHANNELS, 2, 2))
corners = [(math.floor(u * W - 0.5), math.floor(v * H - 0.5)) for u, v in locations]
tiles = [tile_map.load_box((0, x, y)).view(np.float16).reshape(2, 2, CHANNELS) for x, y in corners]
check.samples_on_picture(features, locations, tiles, "four samples and their tiles")

# %% [markdown]
# Each small picture is a *tile*: the 2 × 2 pixels around a sample, and the sample's place among them.
# Hatched pixels lie outside the level and count as zero.

# %% [markdown]
# ## From a location to four weights
#
# Take sample 0, step by step.

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
# Why *less half a pixel*? A pixel's value belongs to its centre. Pixel 0 covers the range from 0 to 1, and
# its centre lies at 0.5. In the coordinate `x` the centres are whole numbers, and we interpolate between
# centres.
#
# `floor` gives the tile, which the copy needs. The fractions give the weights, which the arithmetic needs.
# Draw the square between the four centres and cut it at the sample: **the weight of a corner is the area of
# the opposite rectangle**. The nearer the sample comes to a corner, the larger that rectangle is.


# %%
def areas(fx, fy):
    return check.weights_as_areas(fx, fy)


tenths = [i / 10 for i in range(11)]
few = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]
lessons.slider(areas, start={"fx": 0.9, "fy": 0.3}, fx=tenths, fy=tenths, page={"fx": few, "fy": few})

# %% [markdown]
# ## Exercise 1: corner weights
#
# Return the four weights.


# %% exercise="corner_weights"
def corner_weights(fx, fy):
    """((top left, top right), (bottom left, bottom right))."""
    return ...


# %%
check.corner_weights(corner_weights)

# %% [markdown]
# ## Exercise 2: the query in NumPy
#
# Now the whole query. Two parts are missing: the test for the border, and the term of the sum. A neighbour
# outside the picture counts as zero, so we leave it out. Remember that `image[-1]` is no error in Python.


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
# `nd.reference` does the same for batches of queries, heads and levels. Every kernel of this package is
# checked against it. It takes the arguments of the operator: `value` with all levels' pixels in a row, the
# levels' shapes and starts, and locations and weights of shape (batch, query, head, level, point).

# %%
exact = nd.reference(
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
# Now with TMA. One warp takes three steps:
#
# 1. **Load.** Lane `p` computes the corner of tile `p` and asks for it. Four lanes arrive, and each
#    announces the bytes of its own tile. So the barrier is initialised with 4.
# 2. **Wait.** All lanes wait for parity 0, because it is the barrier's first use.
# 3. **Interpolate.** Lane `c` takes channels `2c` and `2c + 1`. In each pixel these two are one 32-bit
#    word. The lane adds up all four tiles. This is work for 16 lanes.
#
# `lower_and_fraction` is the arithmetic that you did by hand: the index of the lower neighbour, and the rest.
# It writes `float32(0.5)`, because a plain `0.5` is a float64, and would make all of it one.
# `nd.function` makes it a function that kernels can call. `nd.lane()` is a thread's number in its warp.
#
# A tile has 4 pixels of 32 channels of 2 bytes: 256 bytes. It arrives packed, pixel by pixel: top left, top
# right, bottom left, bottom right, 64 bytes each.

# %%
TILE_BYTES = 4 * CHANNELS * 2
PAIRS = CHANNELS // 2
shared = nd.Shared(
    tiles=nd.Array((POINTS, 2, 2, PAIRS), nd.uint32, alignment=128), full=nd.Barrier(POINTS)
)  # fmt: skip


@nd.function
def lower_and_fraction(location, size):
    x = location * float32(size) - float32(0.5)
    lower = cuda.libdevice.floorf(x)
    return int(lower), x - lower


@nd.kernel(threads=32, shared=shared)
def attend_query(
    map: nd.u64, locations: nd.float32[:, :], weights: nd.float32[:], out: nd.float32[:],
    width: nd.i32, height: nd.i32,
):  # fmt: skip
    nd.fence_proxy_tensormap_acquire_sys(map)
    shared.init()
    tiles, full, lane = shared.tiles.view(), shared.full, nd.lane()

    if lane < POINTS:  # load
        x0, _ = lower_and_fraction(locations[lane, 0], width)
        y0, _ = lower_and_fraction(locations[lane, 1], height)
        full.expect(TILE_BYTES)
        nd.cp_async_bulk_tensor_3d(shared.tiles.at(lane), map, 0, x0, y0, full.at())

    full.wait(0)  # wait

    if lane < PAIRS:  # interpolate
        even = odd = float32(0)
        for p in range(POINTS):
            _, fx = lower_and_fraction(locations[p, 0], width)
            _, fy = lower_and_fraction(locations[p, 1], height)
            weight = weights[p]
            for dy in range(2):
                for dx in range(2):
                    across = fx if dx == 1 else float32(1) - fx
                    down = fy if dy == 1 else float32(1) - fy
                    share = weight * across * down
                    word = tiles[p, dy, dx, lane]
                    even += share * nd.cvt_f32_f16_lo(word)
                    odd += share * nd.cvt_f32_f16_hi(word)
        out[2 * lane], out[2 * lane + 1] = even, odd


# %%
maps = nd.TensorMapArray([tile_map])
out = np.full(CHANNELS, np.nan, np.float32)
print(lessons.run(attend_query, 1, (maps, locations, weights, out, W, H), engine=engine))
print(f"error against the reference: {nd.relative_error(out, exact):.1e}")
print(f"allowed for fp16 values:     {TOLERANCE['float16']:.0e}")

# %% [markdown]
# Compare it with your NumPy: **there is no test for the border**. Samples 2 and 3 lie half outside, and the
# copy delivered zeros there. Their weights are multiplied by zero, as the definition asks.
#
# Note what the kernel does *not* do. No thread computes the address of a pixel in global memory, and no
# register holds a pixel on its way to shared memory.

# %% [markdown]
# ## Coordinates stay in fp32
#
# Values are often fp16, and so are locations. It is tempting to compute coordinates in fp16 too, because
# the hardware does two of them at once. What does it cost? An fp16 number has 11 significant bits. Between
# 128 and 256 neighbouring numbers are 1/8 apart, and a level 160 pixels wide needs coordinates in that
# range:

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
# Both columns start from the *same* fp16 locations. Only the multiplication and the subtraction differ. A
# wrong tile is not the worst of it: just past the border of a tile the fraction is nearly 0 where it should
# be nearly 1, and that gives nearly the same pixels. The real damage is that *every* fraction is off, by up
# to half a step. Here are all fp16 locations within four pixels. Each should lie on the line.

# %%
check.coordinate_steps(160)

# %% [markdown]
# How large is the error of the result? We ask the reference for the samples at the fp16 coordinates, with
# everything else in float64. The values are random here. On a smooth picture neighbours are alike and the
# error hides.

# %%
height, width, samples = 92, 160, 2000
level = rng.standard_normal((1, height * width, 1, 8))
at16 = rng.random((samples, 2)).astype(np.float16)
size = np.array([width, height])
coordinates = at16 * size.astype(np.float16) - np.float16(0.5)
as_computed = (coordinates.astype(np.float64) + 0.5) / size


def at(where):
    shape = (1, samples, 1, 1, 1)
    return nd.reference(level, [(height, width)], [0], where.reshape(*shape, 2), np.ones(shape))


error = nd.relative_error(at(as_computed), at(at16))
print(f"coordinates in fp16: error {error:.1e}; fp16 values may cost {TOLERANCE['float16']:.0e}")

# %% [markdown]
# No rule is broken, so no engine can report this. Of the package's 31 planted faults, two can only be found
# by a comparison with a float64 reference, and this is one
# (`numba_deform/course/bugs/fp16_coordinates.py`).

# %% [markdown]
# ## Exercise 3: the location's type
#
# Locations are stored in fp16. Return the tile's index and the fraction along one axis, precise enough for
# interpolation. NumPy has the same trap here as a kernel.


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
# A sample far outside has a tile of zeros. Loading it wastes a TMA instruction, so let us not load it. Then
# three things have to agree, as you know from lesson 2: who arrives, how many bytes are expected, and which
# tiles are read.
#
# `near` says whether any pixel of the tile is inside. Replace the two `...`: what a lane does that loads
# nothing, and when a tile is read.


# %% exercise="skip"
@nd.function
def near(x0, y0, width, height):
    return x0 >= -1 and x0 < width and y0 >= -1 and y0 < height


@nd.kernel(threads=32, shared=shared)
def attend_near(
    map: nd.u64, locations: nd.float32[:, :], weights: nd.float32[:], out: nd.float32[:],
    width: nd.i32, height: nd.i32,
):  # fmt: skip
    nd.fence_proxy_tensormap_acquire_sys(map)
    shared.init()
    tiles, full, lane = shared.tiles.view(), shared.full, nd.lane()

    if lane < POINTS:
        x0, _ = lower_and_fraction(locations[lane, 0], width)
        y0, _ = lower_and_fraction(locations[lane, 1], height)
        if near(x0, y0, width, height):
            full.expect(TILE_BYTES)
            nd.cp_async_bulk_tensor_3d(shared.tiles.at(lane), map, 0, x0, y0, full.at())
        else:
            ...

    full.wait(0)

    if lane < PAIRS:
        even = odd = float32(0)
        for p in range(POINTS):
            x0, fx = lower_and_fraction(locations[p, 0], width)
            y0, fy = lower_and_fraction(locations[p, 1], height)
            weight = weights[p]
            if ...:
                for dy in range(2):
                    for dx in range(2):
                        across = fx if dx == 1 else float32(1) - fx
                        down = fy if dy == 1 else float32(1) - fy
                        share = weight * across * down
                        word = tiles[p, dy, dx, lane]
                        even += share * nd.cvt_f32_f16_lo(word)
                        odd += share * nd.cvt_f32_f16_hi(word)
        out[2 * lane], out[2 * lane + 1] = even, odd


# %%
check.skip(attend_near, engine=engine)

# %% [markdown]
# ## Behind each line: PTX
#
# `cp_async_bulk_tensor_3d` looks like a Python function, but it is one instruction of **PTX**, NVIDIA's
# assembly language for a virtual GPU. Such a function is called an *intrinsic*. The texts of them all are
# written by hand in the folder `ptx/`, one function for each:

# %%
text = (ptx_directory() / "tma.ptx").read_text()
start = text.index(".visible .func cp_async_bulk_tensor_3d(")
print(text[start : text.index("\n}", start) + 2])

# %% [markdown]
# Most lines fetch parameters. The one instruction that matters reads like a sentence: *copy asynchronously,
# in bulk, a tensor of 3 dimensions, to shared memory from global memory, in tile mode, and tell the
# mbarrier the bytes when done*. Its operands are `[tile]`, `[tensor, {x0, x1, x2}]` and `[barrier]`.
#
# When your kernel is compiled, this text goes *into* it, without a call. The parameters become registers of
# the kernel (`$0`, `$1`, …):

# %%
inlined = nd.cp_async_bulk_tensor_3d.ptx.inline_text()
print(inlined.replace("; ", ";\n  ").replace(" [tile]", "\n      [tile]"))

# %% [markdown]
# `shared.init`, `full.expect` and `full.wait` are made of such instructions, too. Here they are, with those
# for the map and the fp16 numbers, without the parameters. (An index such as `tiles[p, dy, dx, lane]` needs
# none: Numba writes that load itself.)

# %%
for line in (
    nd.mbarrier_init,
    nd.fence_mbarrier_init,
    nd.fence_proxy_tensormap_acquire_sys,
    nd.mbarrier_arrive_expect_tx,
    nd.mbarrier_try_wait_parity,
    nd.cvt_f32_f16_lo,
):
    moves = (".reg", "ld.param", "st.param", "ret")
    own = [each for each in line.ptx.statements if not each.startswith(moves)]
    print(f"{line.ptx.name}\n    " + ";\n    ".join(own))

# %% [markdown]
# Lesson 2 stands in these names: `release` with the arrival, `acquire` with the wait, `expect_tx`,
# `parity`. (`cta` is PTX's word for a block.)

# %% [markdown]
# ## Behind PTX: SASS
#
# A GPU does not run PTX. PTX is translated to **SASS**, the machine code of one GPU model. `machine_code`
# compiles for Hopper and disassembles the result. It needs no GPU, only NVIDIA's packages (which macOS does
# not have):

# %%
taken_apart = lessons.machine_code(attend_query)
interesting = ("SYNCS", "UTMA", "FENCE", "BAR.SYNC", "LDS")
if taken_apart:
    print(f"{taken_apart.registers} registers a thread, {shared.bytes} bytes of shared memory")
    for line in taken_apart.sass.splitlines():
        if any(word in line for word in interesting):
            print(line)

# %% [markdown]
# It is the kernel again, from top to bottom. First comes the fence for the map. Then the barrier is made,
# and `syncthreads`, load and wait follow. At the end the tiles are read by `LDS`: 4 bytes for each lane, and
# 0x40 = 64 bytes from pixel to pixel.
#
# `SYNCS` is the name for operations on an mbarrier, and `UTMA…` belongs to the TMA unit. The wait appears
# several times, because the compiler moved the first round out of its loop.

# %% [markdown]
# ## Exercise 5: find your lines
#
# Which instructions of this list are the following three lines of the kernel? Write their names, with what
# follows the first dot where you need it, for instance `"BAR.SYNC"`.

# %% exercise="sass"
load = ...  # cp_async_bulk_tensor_3d(...)
announce = ...  # full.expect(...)
wait = ...  # full.wait(...)

# %%
check.sass(load=load, announce=announce, wait=wait, taken_apart=taken_apart)

# %% [markdown]
# Four lanes load a tile each, and yet the load appears once. The TMA unit takes its operands from *uniform*
# registers (`UR`). A warp has one set of them, not one for each lane. So the compiler makes a small loop:
# pick a lane, take its numbers, issue, next lane.

# %%
if taken_apart:
    lines = taken_apart.sass.splitlines()
    here = next(number for number, line in enumerate(lines) if "UTMALDG" in line)
    print("\n".join(lines[here - 7 : here + 2]))

# %% [markdown]
# The same `.ptx` files can also be linked as a library, by `attend_query.with_linked_ptx()`. Then each
# instruction is a function, and the kernel calls it. On an H200 the package's TMA pipeline takes 2.9 times
# as long that way (`bench/NOTES.md`), so kernels are inlined.
#
# ## What you know now
#
# - Deformable attention for a query: locations become pixels, floor gives the tile, fractions give the
#   weights, and the rest is a sum.
# - Less half a pixel, because values belong to centres. A corner's weight is the opposite area.
# - Outside is zero. With TMA the copy takes care of it.
# - Compute coordinates in fp32, even where everything else is fp16.
# - Arrivals, bytes and reads must agree about which tiles exist.
# - Each intrinsic is one PTX instruction, inlined. SASS shows what became of it.
#
# This kernel has one weakness. While the tiles are in flight, the warp does nothing, and while it computes,
# nothing is in flight. [Lesson 4](04_stages.py) gives it a second set of tiles.

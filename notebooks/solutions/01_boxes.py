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
# # Solutions of lesson 1, with the mistakes that are made most often
#
# Each cell stands in place of the exercise's cell in the notebook. After `wrong:` are words of the check's
# answer. The tests run them all.


# %% tile_corner
def tile_corner(u, v, head, width, height, channels):
    return head * channels, math.floor(u * width - 0.5), math.floor(v * height - 0.5)


# %% tile_corner wrong: innermost first
def tile_corner(u, v, head, width, height, channels):
    return math.floor(v * height - 0.5), math.floor(u * width - 0.5), head * channels


# %% tile_corner wrong: forgets the half pixel
def tile_corner(u, v, head, width, height, channels):
    return head * channels, math.floor(u * width), math.floor(v * height)


# %% tile_corner wrong: rounds towards zero
def tile_corner(u, v, head, width, height, channels):
    return head * channels, int(u * width - 0.5), int(v * height - 0.5)


# %% tile_corner wrong: one after another in dimension 0
def tile_corner(u, v, head, width, height, channels):
    return head, math.floor(u * width - 0.5), math.floor(v * height - 0.5)


# %% tile_corner wrong: on the centres of the outer pixels
def tile_corner(u, v, head, width, height, channels):
    return (head * channels, math.floor(u * (width - 1)), math.floor(v * (height - 1)))


# %% tile_corner wrong: is a whole number
def tile_corner(u, v, head, width, height, channels):
    return (head * channels, u * width - 0.5, v * height - 0.5)


# %% zero_fill
inside = (12 - 5) * (40 - 36)  # pixels
filled = (12 * 8 - inside) * 32
expect = 12 * 8 * 32 * 2

# %% zero_fill wrong: the number of pixels outside
filled = 12 * 8 - 7 * 4
expect = 12 * 8 * 32 * 2

# %% zero_fill wrong: elements lie inside
filled = 7 * 4 * 32
expect = 12 * 8 * 32 * 2

# %% zero_fill wrong: the zeros arrive too
filled = (12 * 8 - 7 * 4) * 32
expect = 7 * 4 * 32 * 2

# %% zero_fill wrong: in elements
filled = (12 * 8 - 7 * 4) * 32
expect = 12 * 8 * 32

# %% zero_fill wrong: counts a corner of the box twice
filled = (5 * 8 + 12 * 4) * 32
expect = 12 * 8 * 32 * 2

# %% zero_fill wrong: Those that come from the picture are counted too
filled = (12 * 8 - 28) * 32
expect = 68 * 32 * 2


# %% block_corner
@nd.kernel(threads=THREADS, shared=shared)
def all_boxes(map: nd.u64, out: nd.float16[:, :], across: nd.i32):
    nd.fence_proxy_tensormap_acquire_sys(map)
    shared.init()
    tile, full, block = shared.tile.view(), shared.full, cuda.blockIdx.x
    x = block % across * BOX_W
    y = block // across * BOX_H
    if cuda.threadIdx.x == 0:
        full.expect(BOX_BYTES)
        nd.cp_async_bulk_tensor_3d(shared.tile.at(0), map, 0, x, y, full.at())
    full.wait(0)
    for i in range(cuda.threadIdx.x, BOX_NUMBERS, THREADS):
        out[block, i] = tile[i]


# %% block_corner wrong: Coordinates count pixels
@nd.kernel(threads=THREADS, shared=shared)
def all_boxes(map: nd.u64, out: nd.float16[:, :], across: nd.i32):
    nd.fence_proxy_tensormap_acquire_sys(map)
    shared.init()
    tile, full, block = shared.tile.view(), shared.full, cuda.blockIdx.x
    x = block % across
    y = block // across
    if cuda.threadIdx.x == 0:
        full.expect(BOX_BYTES)
        nd.cp_async_bulk_tensor_3d(shared.tile.at(0), map, 0, x, y, full.at())
    full.wait(0)
    for i in range(cuda.threadIdx.x, BOX_NUMBERS, THREADS):
        out[block, i] = tile[i]


# %% block_corner wrong: x and y exchanged
@nd.kernel(threads=THREADS, shared=shared)
def all_boxes(map: nd.u64, out: nd.float16[:, :], across: nd.i32):
    nd.fence_proxy_tensormap_acquire_sys(map)
    shared.init()
    tile, full, block = shared.tile.view(), shared.full, cuda.blockIdx.x
    x = block // across * BOX_H
    y = block % across * BOX_W
    if cuda.threadIdx.x == 0:
        full.expect(BOX_BYTES)
        nd.cp_async_bulk_tensor_3d(shared.tile.at(0), map, 0, x, y, full.at())
    full.wait(0)
    for i in range(cuda.threadIdx.x, BOX_NUMBERS, THREADS):
        out[block, i] = tile[i]


# %% block_corner wrong: and brings that at x=12, y=8
@nd.kernel(threads=THREADS, shared=shared)
def all_boxes(map: nd.u64, out: nd.float16[:, :], across: nd.i32):
    nd.fence_proxy_tensormap_acquire_sys(map)
    shared.init()
    tile, full, block = shared.tile.view(), shared.full, cuda.blockIdx.x
    x = block * BOX_W
    y = block * BOX_H
    if cuda.threadIdx.x == 0:
        full.expect(BOX_BYTES)
        nd.cp_async_bulk_tensor_3d(shared.tile.at(0), map, 0, x, y, full.at())
    full.wait(0)
    for i in range(cuda.threadIdx.x, BOX_NUMBERS, THREADS):
        out[block, i] = tile[i]


# %% level_map
def level_map(batch, start, width, height, S, H, C, itemsize):
    pixel = H * C * itemsize
    return (batch * S + start) * pixel, (H * C, width, height), (pixel, width * pixel)


# %% level_map wrong: The innermost dimension comes first
def level_map(batch, start, width, height, S, H, C, itemsize):
    pixel = H * C * itemsize
    return (batch * S + start) * pixel, (height, width, H * C), (pixel, width * pixel)


# %% level_map wrong: Dimension 0 goes through all 3 heads
def level_map(batch, start, width, height, S, H, C, itemsize):
    pixel = H * C * itemsize
    return (batch * S + start) * pixel, (C, width, height), (pixel, width * pixel)


# %% level_map wrong: A tensor map wants bytes
def level_map(batch, start, width, height, S, H, C, itemsize):
    pixel = H * C
    return (batch * S + start) * pixel * itemsize, (H * C, width, height), (pixel, width * pixel)


# %% level_map wrong: all 3 heads
def level_map(batch, start, width, height, S, H, C, itemsize):
    pixel = C * itemsize
    return (batch * S + start) * H * pixel, (H * C, width, height), (pixel, width * pixel)


# %% level_map wrong: that is in batch 0
def level_map(batch, start, width, height, S, H, C, itemsize):
    pixel = H * C * itemsize
    return start * pixel, (H * C, width, height), (pixel, width * pixel)


# %% level_map wrong: has other pixels
def level_map(batch, start, width, height, S, H, C, itemsize):
    pixel = H * C * itemsize
    return (batch * S + start) * pixel, (H * C, width, height - 1), (pixel, width * pixel)


# %% level_map wrong: is not the level's size
def level_map(batch, start, width, height, S, H, C, itemsize):
    pixel = H * C * itemsize
    return (batch * S + start) * pixel, (H * C, width, height + 1), (pixel, width * pixel)


# %% level_map wrong: counts pixels, not rows
def level_map(batch, start, width, height, S, H, C, itemsize):
    offset = (batch * S + start * width) * H * C * itemsize
    dims = (H * C, width, height)
    strides = (H * C * itemsize, width * H * C * itemsize)
    return offset, dims, strides


# %% level_map wrong: A map of rank 3 has three dims
def level_map(batch, start, width, height, S, H, C, itemsize):
    offset = (batch * S + start) * H * C * itemsize
    dims = (H, C, width, height)
    strides = (C * itemsize, H * C * itemsize, width * H * C * itemsize)
    return offset, dims, strides


# %% corners
come = "ADE"

# %% corners wrong: A comes
come = "DE"

# %% corners wrong: B does not come
come = "ABDE"

# %% corners wrong: C does not come
come = "ACDE"

# %% corners wrong: D comes
come = "AE"


# %% mend
def mend(picture):
    height, width, _ = picture.shape
    array = np.zeros((height, width, 8), picture.dtype)
    array[:, :, :3] = picture
    return array, (8, 4, 4)


# %% mend wrong: still has 3 channels
def mend(picture):
    return picture, (8, 4, 4)


# %% mend wrong: stride multiple
def mend(picture):
    height, width, _ = picture.shape
    array = np.zeros((height, width, 4), picture.dtype)
    array[:, :, :3] = picture
    return array, (4, 4, 4)


# %% mend wrong: the smallest number of channels
def mend(picture):
    height, width, _ = picture.shape
    array = np.zeros((height, width, 16), picture.dtype)
    array[:, :, :3] = picture
    return array, (16, 4, 4)


# %% mend wrong: box row multiple
def mend(picture):
    height, width, _ = picture.shape
    array = np.zeros((height, width, 8), picture.dtype)
    array[:, :, :3] = picture
    return array, (3, 4, 4)


# %% mend wrong: a plane for each colour
def mend(picture):
    return np.ascontiguousarray(picture.transpose(2, 0, 1)), (8, 4, 3)


# %% mend wrong: it needs more channels
def mend(picture):
    height, width, _ = picture.shape
    array = np.zeros((height, 16, 3), picture.dtype)
    array[:, :width] = picture
    return array, (3, 4, 4)


# %% mend wrong: A box has it innermost first
def mend(picture):
    array = np.zeros((*picture.shape[:2], 8), picture.dtype)
    array[:, :, :3] = picture
    return array, (4, 4, 8)

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
# # Solutions of lesson 3, with the mistakes that are made most often
#
# Each cell stands in place of the exercise's cell in the notebook. After `wrong:` are words of the check's
# answer. The tests run them all.


# %% corner_weights
def corner_weights(fx, fy):
    return ((1 - fx) * (1 - fy), fx * (1 - fy)), ((1 - fx) * fy, fx * fy)


# %% corner_weights wrong: fx goes across
def corner_weights(fx, fy):
    return ((1 - fx) * (1 - fy), (1 - fx) * fy), (fx * (1 - fy), fx * fy)


# %% corner_weights wrong: gives the nearest pixel least
def corner_weights(fx, fy):
    return (fx * fy, (1 - fx) * fy), (fx * (1 - fy), (1 - fx) * (1 - fy))


# %% corner_weights wrong: sum has to be 1
def corner_weights(fx, fy):
    return (2 - fx - fy, 1 + fx - fy), (1 - fx + fy, fx + fy)


# %% attend
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
                inside = 0 <= row < height and 0 <= column < width
                if inside:
                    total += weight * shares[dy][dx] * image[row, column]
    return total


# %% attend wrong: image[row, -1] is the *last* pixel
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
                inside = row < height and column < width
                if inside:
                    total += weight * shares[dy][dx] * image[row, column]
    return total


# %% attend wrong: Row 0 and column 0 are left out
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
                inside = 0 < row < height and 0 < column < width
                if inside:
                    total += weight * shares[dy][dx] * image[row, column]
    return total


# %% attend wrong: past the right or the lower border
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
                inside = row >= 0 and column >= 0
                if inside:
                    total += weight * shares[dy][dx] * image[row, column]
    return total


# %% attend wrong: Every sample counts the same
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
                inside = 0 <= row < height and 0 <= column < width
                if inside:
                    total += shares[dy][dx] * image[row, column]
    return total


# %% attend wrong: Only a share of its pixel
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
                inside = 0 <= row < height and 0 <= column < width
                if inside:
                    total += weight * image[row, column]
    return total


# %% pixel
def pixel(location, size):
    x = np.float32(location) * np.float32(size) - np.float32(0.5)
    return math.floor(x), x - math.floor(x)


# %% pixel wrong: arithmetic is in fp16
def pixel(location, size):
    x = location * size - 0.5
    return math.floor(x), x - math.floor(x)


# %% pixel wrong: The half pixel is missing
def pixel(location, size):
    x = float(location) * size
    return math.floor(x), x - math.floor(x)


# %% skip
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
            full.arrive()

    full.wait(0)

    if lane < PAIRS:
        even = odd = float32(0)
        for p in range(POINTS):
            x0, fx = lower_and_fraction(locations[p, 0], width)
            y0, fy = lower_and_fraction(locations[p, 1], height)
            weight = weights[p]
            if near(x0, y0, width, height):
                for dy in range(2):
                    for dx in range(2):
                        across = fx if dx == 1 else float32(1) - fx
                        down = fy if dy == 1 else float32(1) - fy
                        share = weight * across * down
                        word = tiles[p, dy, dx, lane]
                        even += share * nd.cvt_f32_f16_lo(word)
                        odd += share * nd.cvt_f32_f16_hi(word)
        out[2 * lane], out[2 * lane + 1] = even, odd


# %% skip wrong: has to arrive all the same
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
            pass

    full.wait(0)

    if lane < PAIRS:
        even = odd = float32(0)
        for p in range(POINTS):
            x0, fx = lower_and_fraction(locations[p, 0], width)
            y0, fy = lower_and_fraction(locations[p, 1], height)
            weight = weights[p]
            if near(x0, y0, width, height):
                for dy in range(2):
                    for dx in range(2):
                        across = fx if dx == 1 else float32(1) - fx
                        down = fy if dy == 1 else float32(1) - fy
                        share = weight * across * down
                        word = tiles[p, dy, dx, lane]
                        even += share * nd.cvt_f32_f16_lo(word)
                        odd += share * nd.cvt_f32_f16_hi(word)
        out[2 * lane], out[2 * lane + 1] = even, odd


# %% skip wrong: a tile that is not loaded is not expected
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
            full.expect(TILE_BYTES)

    full.wait(0)

    if lane < PAIRS:
        even = odd = float32(0)
        for p in range(POINTS):
            x0, fx = lower_and_fraction(locations[p, 0], width)
            y0, fy = lower_and_fraction(locations[p, 1], height)
            weight = weights[p]
            if near(x0, y0, width, height):
                for dy in range(2):
                    for dx in range(2):
                        across = fx if dx == 1 else float32(1) - fx
                        down = fy if dy == 1 else float32(1) - fy
                        share = weight * across * down
                        word = tiles[p, dy, dx, lane]
                        even += share * nd.cvt_f32_f16_lo(word)
                        odd += share * nd.cvt_f32_f16_hi(word)
        out[2 * lane], out[2 * lane + 1] = even, odd


# %% skip wrong: This tile was not loaded
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
            full.arrive()

    full.wait(0)

    if lane < PAIRS:
        even = odd = float32(0)
        for p in range(POINTS):
            x0, fx = lower_and_fraction(locations[p, 0], width)
            y0, fy = lower_and_fraction(locations[p, 1], height)
            weight = weights[p]
            if weight > float32(0):
                for dy in range(2):
                    for dx in range(2):
                        across = fx if dx == 1 else float32(1) - fx
                        down = fy if dy == 1 else float32(1) - fy
                        share = weight * across * down
                        word = tiles[p, dy, dx, lane]
                        even += share * nd.cvt_f32_f16_lo(word)
                        odd += share * nd.cvt_f32_f16_hi(word)
        out[2 * lane], out[2 * lane + 1] = even, odd


# %% skip wrong: where 2 would do
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
        if x0 >= -100:
            full.expect(TILE_BYTES)
            nd.cp_async_bulk_tensor_3d(shared.tiles.at(lane), map, 0, x0, y0, full.at())
        else:
            full.arrive()

    full.wait(0)

    if lane < PAIRS:
        even = odd = float32(0)
        for p in range(POINTS):
            x0, fx = lower_and_fraction(locations[p, 0], width)
            y0, fy = lower_and_fraction(locations[p, 1], height)
            weight = weights[p]
            if near(x0, y0, width, height):
                for dy in range(2):
                    for dx in range(2):
                        across = fx if dx == 1 else float32(1) - fx
                        down = fy if dy == 1 else float32(1) - fy
                        share = weight * across * down
                        word = tiles[p, dy, dx, lane]
                        even += share * nd.cvt_f32_f16_lo(word)
                        odd += share * nd.cvt_f32_f16_hi(word)
        out[2 * lane], out[2 * lane + 1] = even, odd


# %% skip wrong: is left out
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
            full.arrive()

    full.wait(0)

    if lane < PAIRS:
        even = odd = float32(0)
        for p in range(POINTS):
            x0, fx = lower_and_fraction(locations[p, 0], width)
            y0, fy = lower_and_fraction(locations[p, 1], height)
            weight = weights[p]
            if x0 >= 0 and near(x0, y0, width, height):
                for dy in range(2):
                    for dx in range(2):
                        across = fx if dx == 1 else float32(1) - fx
                        down = fy if dy == 1 else float32(1) - fy
                        share = weight * across * down
                        word = tiles[p, dy, dx, lane]
                        even += share * nd.cvt_f32_f16_lo(word)
                        odd += share * nd.cvt_f32_f16_hi(word)
        out[2 * lane], out[2 * lane + 1] = even, odd


# %% sass
load = "UTMALDG"
announce = "SYNCS.ARRIVE"
wait = "SYNCS.PHASECHK"

# %% sass wrong: drops what the cache knows of the map
load = "UTMACCTL"
announce = "SYNCS.ARRIVE"
wait = "SYNCS.PHASECHK"

# %% sass wrong: that is mbarrier_init
load = "UTMALDG"
announce = "SYNCS.EXCH"
wait = "SYNCS.PHASECHK"

# %% sass wrong: knows nothing of copies
load = "UTMALDG"
announce = "SYNCS.ARRIVE"
wait = "BAR.SYNC"

# %% sass wrong: names all operations on mbarriers
load = "UTMALDG"
announce = "SYNCS"
wait = "SYNCS"

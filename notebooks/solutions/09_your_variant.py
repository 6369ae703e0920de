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
# # Solutions of lesson 9, with the mistakes that are made most often
#
# Each cell stands in place of the exercise's cell in the notebook. After `wrong:` are words of the check's
# answer. The tests run them all.


# %% refuse
def refuse(constants):
    if constants.channels != 32:
        raise nd.ConfigError("channels", constants.channels, "must be 32: two for each of 16 lanes")
    samples = constants.levels * constants.points
    if samples > 32:
        rule = f"make {samples} samples with {constants.levels} levels; at most 32, a lane each"
        raise nd.ConfigError("points", constants.points, rule)
    if constants.dtype != "float16":
        raise nd.ConfigError("dtype", constants.dtype, "must be float16: the lanes convert halves")


# %% refuse wrong: just right
def refuse(constants):
    if constants.channels != 32:
        raise nd.ConfigError("channels", constants.channels, "must be 32: two for each of 16 lanes")
    samples = constants.levels * constants.points
    if samples >= 32:
        rule = f"make {samples} samples with {constants.levels} levels; at most 32, a lane each"
        raise nd.ConfigError("points", constants.points, rule)
    if constants.dtype != "float16":
        raise nd.ConfigError("dtype", constants.dtype, "must be float16: the lanes convert halves")


# %% refuse wrong: bfloat16 read as float16
def refuse(constants):
    if constants.channels != 32:
        raise nd.ConfigError("channels", constants.channels, "must be 32: two for each of 16 lanes")
    samples = constants.levels * constants.points
    if samples > 32:
        rule = f"make {samples} samples with {constants.levels} levels; at most 32, a lane each"
        raise nd.ConfigError("points", constants.points, rule)
    if constants.dtype == "float32":
        raise nd.ConfigError("dtype", constants.dtype, "must be float16: the lanes convert halves")


# %% refuse wrong: tells field, value and rule apart
def refuse(constants):
    if constants.channels != 32:
        raise nd.ConfigError("channels", constants.channels, "must be 32: two for each of 16 lanes")
    samples = constants.levels * constants.points
    assert samples <= 32, f"{samples} samples are too many"
    if constants.dtype != "float16":
        raise nd.ConfigError("dtype", constants.dtype, "must be float16: the lanes convert halves")


# %% refuse wrong: stops by a mistake of its own
def refuse(constants):
    if constants.channels != 32:
        raise nd.ConfigError("channels", constants.channels, "must be 32: two for each of 16 lanes")
    samples = constants.levels * constants.points
    if samples > 32:
        rule = f"make {samples} samples with {constants.levels} levels; at most 32, a lane each"
        raise nd.ConfigError("points", constants.points, rule)
    if constants.type != "float16":
        raise nd.ConfigError("dtype", constants.dtype, "must be float16: the lanes convert halves")


# %% refuse wrong: neither refuses nor allows
def refuse(constants):
    if constants.channels != 32:
        raise nd.ConfigError("channels", constants.channels, "must be 32: two for each of 16 lanes")
    samples = constants.levels * constants.points
    if samples > 32:
        rule = f"make {samples} samples with {constants.levels} levels; at most 32, a lane each"
        raise nd.ConfigError("points", constants.point, rule)
    if constants.dtype != "float16":
        raise nd.ConfigError("dtype", constants.dtype, "must be float16: the lanes convert halves")


# %% refuse wrong: what the caller has to change is
def refuse(constants):
    if constants.channels != 32:
        raise nd.ConfigError("channels", constants.channels, "must be 32: two for each of 16 lanes")
    samples = constants.levels * constants.points
    if samples > 32:
        rule = f"make {samples} samples with {constants.levels} levels; at most 32, a lane each"
        raise nd.ConfigError("levels", constants.levels, rule)
    if constants.dtype != "float16":
        raise nd.ConfigError("dtype", constants.dtype, "must be float16: the lanes convert halves")


# %% turn
def turn(n, level, levels, stages):
    use = n * levels + level
    return use % stages, use // stages % 2


# %% turn wrong: starts from the beginning with every row
def turn(n, level, levels, stages):
    return level % stages, level // stages % 2


# %% turn wrong: flips when the ring wraps
def turn(n, level, levels, stages):
    use = n * levels + level
    return use % stages, use % 2


# %% turn wrong: flips with every row
def turn(n, level, levels, stages):
    use = n * levels + level
    return use % stages, n % 2


# %% turn wrong: so it is the turn of stage
def turn(n, level, levels, stages):
    return level, n % 2


# %% runs_on
def level_ring_on(constants, stages=2, warps=8):
    """as level-ring; the ring runs on from row to row"""
    refuse(constants)
    LEVELS, AHEAD, THREADS = constants.levels, stages - 1, 32 * warps
    if AHEAD > LEVELS:
        raise nd.ConfigError("stages", stages, f"looks further ahead than a row of {LEVELS} levels")
    shared, issue, add_level, write = parts(constants, stages, warps)
    rows, ring = nd.Rows(constants, per_item=warps), shared.ring

    @nd.kernel(threads=THREADS, shared=shared)
    def level_ring_on(
        maps: nd.u64, levels: nd.u64, locations: nd.u64, weights: nd.u64, out: nd.u64,
        batches: nd.i32, rows_per_batch: nd.i32, heads: nd.i32,
    ):  # fmt: skip
        for i in range(cuda.threadIdx.x, batches * LEVELS, THREADS):
            nd.fence_proxy_tensormap_acquire_sys(nd.global_at(maps, i, 128))
        shared.init()
        count = rows.count(batches, rows_per_batch)
        item = nd.int32(cuda.blockIdx.x)  # 32 bits: sums of Numba's integers have 64
        row = rows.row(item, nd.warp(), batches, rows_per_batch, heads)
        sample = rows.sample(levels, locations, weights, row, nd.lane())
        ahead = now = ring.start()
        for level in range(AHEAD):  # prologue, once
            issue(sample, ahead, level, maps, row)
            ahead = ring.advance(ahead)
        while item < count:
            next_item = nd.int32(item + cuda.gridDim.x)
            next_row = rows.row(min(next_item, count - 1), nd.warp(), batches, rows_per_batch, heads)
            following = rows.sample(levels, locations, weights, next_row, nd.lane())
            low = high = nd.float32(0)
            for level in range(LEVELS):
                later = level + AHEAD
                if later < LEVELS:
                    issue(sample, ahead, later, maps, row)
                    ahead = ring.advance(ahead)
                elif next_item < count:
                    issue(following, ahead, later - LEVELS, maps, next_row)
                    ahead = ring.advance(ahead)
                ring.wait(now)
                low, high = add_level(sample, now, level, low, high)
                ring.release(now)
                now = ring.advance(now)
            write(out, row, low, high)
            item, row, sample = next_item, next_row, following

    return level_ring_on, lambda problem, resident: blocks(rows.items(problem), resident())


# %% runs_on wrong: The block ends while tiles are on their way
def level_ring_on(constants, stages=2, warps=8):
    """as level-ring; the ring runs on from row to row"""
    refuse(constants)
    LEVELS, AHEAD, THREADS = constants.levels, stages - 1, 32 * warps
    if AHEAD > LEVELS:
        raise nd.ConfigError("stages", stages, f"looks further ahead than a row of {LEVELS} levels")
    shared, issue, add_level, write = parts(constants, stages, warps)
    rows, ring = nd.Rows(constants, per_item=warps), shared.ring

    @nd.kernel(threads=THREADS, shared=shared)
    def level_ring_on(
        maps: nd.u64, levels: nd.u64, locations: nd.u64, weights: nd.u64, out: nd.u64,
        batches: nd.i32, rows_per_batch: nd.i32, heads: nd.i32,
    ):  # fmt: skip
        for i in range(cuda.threadIdx.x, batches * LEVELS, THREADS):
            nd.fence_proxy_tensormap_acquire_sys(nd.global_at(maps, i, 128))
        shared.init()
        count = rows.count(batches, rows_per_batch)
        item = nd.int32(cuda.blockIdx.x)  # 32 bits: sums of Numba's integers have 64
        row = rows.row(item, nd.warp(), batches, rows_per_batch, heads)
        sample = rows.sample(levels, locations, weights, row, nd.lane())
        ahead = now = ring.start()
        for level in range(AHEAD):  # prologue, once
            issue(sample, ahead, level, maps, row)
            ahead = ring.advance(ahead)
        while item < count:
            next_item = nd.int32(item + cuda.gridDim.x)
            next_row = rows.row(min(next_item, count - 1), nd.warp(), batches, rows_per_batch, heads)
            following = rows.sample(levels, locations, weights, next_row, nd.lane())
            low = high = nd.float32(0)
            for level in range(LEVELS):
                later = level + AHEAD
                if later < LEVELS:
                    issue(sample, ahead, later, maps, row)
                    ahead = ring.advance(ahead)
                elif item < count:
                    issue(following, ahead, later - LEVELS, maps, next_row)
                    ahead = ring.advance(ahead)
                ring.wait(now)
                low, high = add_level(sample, now, level, low, high)
                ring.release(now)
                now = ring.advance(now)
            write(out, row, low, high)
            item, row, sample = next_item, next_row, following

    return level_ring_on, lambda problem, resident: blocks(rows.items(problem), resident())


# %% runs_on wrong: the condition leaves out an item
def level_ring_on(constants, stages=2, warps=8):
    """as level-ring; the ring runs on from row to row"""
    refuse(constants)
    LEVELS, AHEAD, THREADS = constants.levels, stages - 1, 32 * warps
    if AHEAD > LEVELS:
        raise nd.ConfigError("stages", stages, f"looks further ahead than a row of {LEVELS} levels")
    shared, issue, add_level, write = parts(constants, stages, warps)
    rows, ring = nd.Rows(constants, per_item=warps), shared.ring

    @nd.kernel(threads=THREADS, shared=shared)
    def level_ring_on(
        maps: nd.u64, levels: nd.u64, locations: nd.u64, weights: nd.u64, out: nd.u64,
        batches: nd.i32, rows_per_batch: nd.i32, heads: nd.i32,
    ):  # fmt: skip
        for i in range(cuda.threadIdx.x, batches * LEVELS, THREADS):
            nd.fence_proxy_tensormap_acquire_sys(nd.global_at(maps, i, 128))
        shared.init()
        count = rows.count(batches, rows_per_batch)
        item = nd.int32(cuda.blockIdx.x)  # 32 bits: sums of Numba's integers have 64
        row = rows.row(item, nd.warp(), batches, rows_per_batch, heads)
        sample = rows.sample(levels, locations, weights, row, nd.lane())
        ahead = now = ring.start()
        for level in range(AHEAD):  # prologue, once
            issue(sample, ahead, level, maps, row)
            ahead = ring.advance(ahead)
        while item < count:
            next_item = nd.int32(item + cuda.gridDim.x)
            next_row = rows.row(min(next_item, count - 1), nd.warp(), batches, rows_per_batch, heads)
            following = rows.sample(levels, locations, weights, next_row, nd.lane())
            low = high = nd.float32(0)
            for level in range(LEVELS):
                later = level + AHEAD
                if later < LEVELS:
                    issue(sample, ahead, later, maps, row)
                    ahead = ring.advance(ahead)
                elif next_item < count - 1:
                    issue(following, ahead, later - LEVELS, maps, next_row)
                    ahead = ring.advance(ahead)
                ring.wait(now)
                low, high = add_level(sample, now, level, low, high)
                ring.release(now)
                now = ring.advance(now)
            write(out, row, low, high)
            item, row, sample = next_item, next_row, following

    return level_ring_on, lambda problem, resident: blocks(rows.items(problem), resident())


# %% entry
def blocks(items, resident):
    return min(resident, items)


capability = (9, 0)
fetch = "tma"


# %% entry wrong: no ring ever runs on
def blocks(items, resident):
    return items


capability = (9, 0)
fetch = "tma"


# %% entry wrong: Some find no item
def blocks(items, resident):
    return resident


capability = (9, 0)
fetch = "tma"


# %% entry wrong: have no TMA
def blocks(items, resident):
    return min(resident, items)


capability = (8, 0)
fetch = "tma"


# %% entry wrong: must be two numbers
def blocks(items, resident):
    return min(resident, items)


capability = 9.0
fetch = "tma"


# %% entry wrong: an instruction of its own
def blocks(items, resident):
    return min(resident, items)


capability = (9, 0)
fetch = "shared"


# %% entry wrong: is none of
def blocks(items, resident):
    """The number of blocks of a persistent kernel."""
    return min(items, resident)


capability = (9, 0)
fetch = "TMA"

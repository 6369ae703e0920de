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
# # Solutions of lesson 8, with the mistakes that are made most often
#
# Each cell stands in place of the exercise's cell in the notebook. After `wrong:` are words of the check's
# answer. The tests run them all.


# %% refuse
def refuse(config, constants):
    if config.stages < 1:
        raise ConfigError("stages", config.stages, "must be at least 1")
    if not 1 <= config.warps <= 32:
        raise ConfigError("warps", config.warps, "must be from 1 to 32: a block has 1024 threads")
    samples = constants.levels * constants.points
    if samples > 32:
        rule = f"make {samples} samples with {constants.levels} levels; at most 32, a lane each"
        raise ConfigError("points", constants.points, rule)
    if constants.dtype != "float16":
        raise ConfigError("dtype", constants.dtype, "must be float16: the lanes convert halves")
    if constants.channels != 32:
        raise ConfigError("channels", constants.channels, "must be 32: two for each of 16 lanes")
    needed = sum(config.shared_bytes(constants))
    if needed > SHARED_LIMIT:
        rule = f"need {needed} bytes of shared memory; a block has at most {SHARED_LIMIT}"
        raise ConfigError("stages", config.stages, rule)


# %% refuse wrong: just right
def refuse(config, constants):
    if config.stages < 1:
        raise ConfigError("stages", config.stages, "must be at least 1")
    if not 1 <= config.warps <= 32:
        raise ConfigError("warps", config.warps, "must be from 1 to 32: a block has 1024 threads")
    samples = constants.levels * constants.points
    if samples >= 32:
        rule = f"make {samples} samples with {constants.levels} levels; at most 32, a lane each"
        raise ConfigError("points", constants.points, rule)
    if constants.dtype != "float16":
        raise ConfigError("dtype", constants.dtype, "must be float16: the lanes convert halves")
    if constants.channels != 32:
        raise ConfigError("channels", constants.channels, "must be 32: two for each of 16 lanes")
    needed = sum(config.shared_bytes(constants))
    if needed > SHARED_LIMIT:
        rule = f"need {needed} bytes of shared memory; a block has at most {SHARED_LIMIT}"
        raise ConfigError("stages", config.stages, rule)


# %% refuse wrong: bfloat16 read as float16
def refuse(config, constants):
    if config.stages < 1:
        raise ConfigError("stages", config.stages, "must be at least 1")
    if not 1 <= config.warps <= 32:
        raise ConfigError("warps", config.warps, "must be from 1 to 32: a block has 1024 threads")
    samples = constants.levels * constants.points
    if samples > 32:
        rule = f"make {samples} samples with {constants.levels} levels; at most 32, a lane each"
        raise ConfigError("points", constants.points, rule)
    if constants.dtype == "float32":
        raise ConfigError("dtype", constants.dtype, "must be float16: the lanes convert halves")
    if constants.channels != 32:
        raise ConfigError("channels", constants.channels, "must be 32: two for each of 16 lanes")
    needed = sum(config.shared_bytes(constants))
    if needed > SHARED_LIMIT:
        rule = f"need {needed} bytes of shared memory; a block has at most {SHARED_LIMIT}"
        raise ConfigError("stages", config.stages, rule)


# %% refuse wrong: tells field, value and rule apart
def refuse(config, constants):
    if config.stages < 1:
        raise ConfigError("stages", config.stages, "must be at least 1")
    if not 1 <= config.warps <= 32:
        raise ConfigError("warps", config.warps, "must be from 1 to 32: a block has 1024 threads")
    samples = constants.levels * constants.points
    assert samples <= 32, f"{samples} samples are too many"
    if constants.dtype != "float16":
        raise ConfigError("dtype", constants.dtype, "must be float16: the lanes convert halves")
    if constants.channels != 32:
        raise ConfigError("channels", constants.channels, "must be 32: two for each of 16 lanes")
    needed = sum(config.shared_bytes(constants))
    if needed > SHARED_LIMIT:
        rule = f"need {needed} bytes of shared memory; a block has at most {SHARED_LIMIT}"
        raise ConfigError("stages", config.stages, rule)


# %% refuse wrong: every warp has a ring
def refuse(config, constants):
    if config.stages < 1:
        raise ConfigError("stages", config.stages, "must be at least 1")
    if not 1 <= config.warps <= 32:
        raise ConfigError("warps", config.warps, "must be from 1 to 32: a block has 1024 threads")
    samples = constants.levels * constants.points
    if samples > 32:
        rule = f"make {samples} samples with {constants.levels} levels; at most 32, a lane each"
        raise ConfigError("points", constants.points, rule)
    if constants.dtype != "float16":
        raise ConfigError("dtype", constants.dtype, "must be float16: the lanes convert halves")
    if constants.channels != 32:
        raise ConfigError("channels", constants.channels, "must be 32: two for each of 16 lanes")
    needed = config.stages * constants.points * TILE
    if needed > SHARED_LIMIT:
        rule = f"need {needed} bytes of shared memory; a block has at most {SHARED_LIMIT}"
        raise ConfigError("stages", config.stages, rule)


# %% refuse wrong: stops by a mistake of its own
def refuse(config, constants):
    if config.stages < 1:
        raise ConfigError("stages", config.stages, "must be at least 1")
    if not 1 <= config.warps <= 32:
        raise ConfigError("warps", config.warps, "must be from 1 to 32: a block has 1024 threads")
    samples = constants.levels * constants.points
    if samples > 32:
        rule = f"make {samples} samples with {constants.levels} levels; at most 32, a lane each"
        raise ConfigError("points", constants.points, rule)
    if constants.dtype != "float16":
        raise ConfigError("dtype", constants.dtype, "must be float16: the lanes convert halves")
    if constants.channel != 32:
        raise ConfigError("channels", constants.channels, "must be 32: two for each of 16 lanes")
    needed = sum(config.shared_bytes(constants))
    if needed > SHARED_LIMIT:
        rule = f"need {needed} bytes of shared memory; a block has at most {SHARED_LIMIT}"
        raise ConfigError("stages", config.stages, rule)


# %% refuse wrong: neither refuses nor allows
def refuse(config, constants):
    if config.stages < 1:
        raise ConfigError("stages", config.stages, "must be at least 1")
    if not 1 <= config.warps <= 32:
        raise ConfigError("warps", config.warps, "must be from 1 to 32: a block has 1024 threads")
    samples = constants.levels * constants.points
    if samples > 32:
        rule = f"make {samples} samples with {constants.levels} levels; at most 32, a lane each"
        raise ConfigError("points", constants.point, rule)
    if constants.dtype != "float16":
        raise ConfigError("dtype", constants.dtype, "must be float16: the lanes convert halves")
    if constants.channels != 32:
        raise ConfigError("channels", constants.channels, "must be 32: two for each of 16 lanes")
    needed = sum(config.shared_bytes(constants))
    if needed > SHARED_LIMIT:
        rule = f"need {needed} bytes of shared memory; a block has at most {SHARED_LIMIT}"
        raise ConfigError("stages", config.stages, rule)


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
def build_running_on(config, constants):
    LEVELS, STAGES, AHEAD, WARPS = constants.levels, config.stages, config.stages - 1, config.warps
    start, take, issue, add_level, release, write = pieces(config, constants)
    advance = make_advance(STAGES)

    @kernel(threads=config.threads)
    def level_ring_on(
        maps: u64, levels: u64, locations: u64, weights: u64, out: u64,
        batches: i32, rows_per_batch: i32, heads: i32,
    ):  # fmt: skip
        warp = int32(cuda.threadIdx.x) >> int32(5)
        count = item_count(batches, rows_per_batch, WARPS)
        item, stride = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)
        me = start(maps, batches * int32(LEVELS))
        row = item_row(item, warp, batches, rows_per_batch, heads, WARPS, 12)
        sample = take(maps, levels, locations, weights, row, me.lane)
        ahead = now = first_state()
        for level in range(AHEAD):  # prologue, once
            issue(me, ahead, level, sample)
            ahead = advance(ahead)

        while item < count:
            next_item = int32(item + stride)
            next_row = item_row(
                min(next_item, int32(count - 1)), warp, batches, rows_per_batch, heads, WARPS, 12
            )
            following = take(maps, levels, locations, weights, next_row, me.lane)
            low = high = float32(0)
            for level in range(LEVELS):
                later = level + AHEAD
                if later < LEVELS:
                    issue(me, ahead, later, sample)
                    ahead = advance(ahead)
                elif next_item < count:
                    issue(me, ahead, later - LEVELS, following)
                    ahead = advance(ahead)
                wait(me.ring, now)
                low, high = add_level(me, now, level, sample, low, high)
                release(me, now)
                now = advance(now)
            write(out, row, me.lane, low, high)
            item, row, sample = next_item, next_row, following

    return level_ring_on


# %% runs_on wrong: The block ends while tiles are on their way
def build_running_on(config, constants):
    LEVELS, STAGES, AHEAD, WARPS = constants.levels, config.stages, config.stages - 1, config.warps
    start, take, issue, add_level, release, write = pieces(config, constants)
    advance = make_advance(STAGES)

    @kernel(threads=config.threads)
    def level_ring_on(
        maps: u64, levels: u64, locations: u64, weights: u64, out: u64,
        batches: i32, rows_per_batch: i32, heads: i32,
    ):  # fmt: skip
        warp = int32(cuda.threadIdx.x) >> int32(5)
        count = item_count(batches, rows_per_batch, WARPS)
        item, stride = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)
        me = start(maps, batches * int32(LEVELS))
        row = item_row(item, warp, batches, rows_per_batch, heads, WARPS, 12)
        sample = take(maps, levels, locations, weights, row, me.lane)
        ahead = now = first_state()
        for level in range(AHEAD):  # prologue, once
            issue(me, ahead, level, sample)
            ahead = advance(ahead)

        while item < count:
            next_item = int32(item + stride)
            next_row = item_row(
                min(next_item, int32(count - 1)), warp, batches, rows_per_batch, heads, WARPS, 12
            )
            following = take(maps, levels, locations, weights, next_row, me.lane)
            low = high = float32(0)
            for level in range(LEVELS):
                later = level + AHEAD
                if later < LEVELS:
                    issue(me, ahead, later, sample)
                    ahead = advance(ahead)
                elif item < count:
                    issue(me, ahead, later - LEVELS, following)
                    ahead = advance(ahead)
                wait(me.ring, now)
                low, high = add_level(me, now, level, sample, low, high)
                release(me, now)
                now = advance(now)
            write(out, row, me.lane, low, high)
            item, row, sample = next_item, next_row, following

    return level_ring_on


# %% runs_on wrong: the condition leaves out an item
def build_running_on(config, constants):
    LEVELS, STAGES, AHEAD, WARPS = constants.levels, config.stages, config.stages - 1, config.warps
    start, take, issue, add_level, release, write = pieces(config, constants)
    advance = make_advance(STAGES)

    @kernel(threads=config.threads)
    def level_ring_on(
        maps: u64, levels: u64, locations: u64, weights: u64, out: u64,
        batches: i32, rows_per_batch: i32, heads: i32,
    ):  # fmt: skip
        warp = int32(cuda.threadIdx.x) >> int32(5)
        count = item_count(batches, rows_per_batch, WARPS)
        item, stride = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)
        me = start(maps, batches * int32(LEVELS))
        row = item_row(item, warp, batches, rows_per_batch, heads, WARPS, 12)
        sample = take(maps, levels, locations, weights, row, me.lane)
        ahead = now = first_state()
        for level in range(AHEAD):  # prologue, once
            issue(me, ahead, level, sample)
            ahead = advance(ahead)

        while item < count:
            next_item = int32(item + stride)
            next_row = item_row(
                min(next_item, int32(count - 1)), warp, batches, rows_per_batch, heads, WARPS, 12
            )
            following = take(maps, levels, locations, weights, next_row, me.lane)
            low = high = float32(0)
            for level in range(LEVELS):
                later = level + AHEAD
                if later < LEVELS:
                    issue(me, ahead, later, sample)
                    ahead = advance(ahead)
                elif next_item < count - 1:
                    issue(me, ahead, later - LEVELS, following)
                    ahead = advance(ahead)
                wait(me.ring, now)
                low, high = add_level(me, now, level, sample, low, high)
                release(me, now)
                now = advance(now)
            write(out, row, me.lane, low, high)
            item, row, sample = next_item, next_row, following

    return level_ring_on


# %% entry
def as_many_as_fit(problem, config, resident):
    return min(resident(), items(problem, config.warps))


capability = (9, 0)
fetch = "tma"


# %% entry wrong: no ring ever runs on
def as_many_as_fit(problem, config, resident):
    return items(problem, config.warps)


capability = (9, 0)
fetch = "tma"


# %% entry wrong: Some find no item
def as_many_as_fit(problem, config, resident):
    return resident()


capability = (9, 0)
fetch = "tma"


# %% entry wrong: have no TMA
def as_many_as_fit(problem, config, resident):
    return min(resident(), items(problem, config.warps))


capability = (8, 0)
fetch = "tma"


# %% entry wrong: an instruction of its own
def as_many_as_fit(problem, config, resident):
    return min(resident(), items(problem, config.warps))


capability = (9, 0)
fetch = "shared"

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


# %% layout
def layout(stages, warps):
    """Shared memory of a block: a ring for each warp, and a tile for each of its stages."""
    return nd.Shared(
        tiles=nd.Array((warps * stages, ROWS, COLUMNS), nd.float32, alignment=128),
        ring=nd.WarpRing(stages, warps),
    )


# %% layout wrong: the stages come first
def layout(stages, warps):
    """Shared memory of a block: a ring for each warp, and a tile for each of its stages."""
    return nd.Shared(
        tiles=nd.Array((warps * stages, ROWS, COLUMNS), nd.float32, alignment=128),
        ring=nd.WarpRing(warps, stages),
    )


# %% layout wrong: All warps would share them
def layout(stages, warps):
    """Shared memory of a block: a ring for each warp, and a tile for each of its stages."""
    return nd.Shared(
        tiles=nd.Array((stages, ROWS, COLUMNS), nd.float32, alignment=128),
        ring=nd.WarpRing(stages, warps),
    )


# %% layout wrong: the ring could never turn
def layout(stages, warps):
    """Shared memory of a block: a ring for each warp, and a tile for each of its stages."""
    return nd.Shared(
        tiles=nd.Array((warps, ROWS, COLUMNS), nd.float32, alignment=128),
        ring=nd.WarpRing(stages, warps),
    )


# %% layout wrong: It must be one tile further
def layout(stages, warps):
    """Shared memory of a block: a ring for each warp, and a tile for each of its stages."""
    return nd.Shared(
        tiles=nd.Array((warps, stages, ROWS, COLUMNS), nd.float32, alignment=128),
        ring=nd.WarpRing(stages, warps),
    )


# %% issue
def make_issue(shared):
    ring = shared.ring

    @nd.function
    def issue(map, state, step):
        """Lane 0 asks for tile ``step`` of this warp's columns, into the state's stage."""
        if nd.lane() == 0:
            ring.expect(state, shared.tiles.stride)
            tile = shared.tiles.at(ring.slot(state))
            nd.cp_async_bulk_tensor_2d(tile, map, COLUMNS * nd.warp(), ROWS * step, ring.full(state))

    return issue


# %% issue wrong: more bytes than the copy brings
def make_issue(shared):
    ring = shared.ring

    @nd.function
    def issue(map, state, step):
        """Lane 0 asks for tile ``step`` of this warp's columns, into the state's stage."""
        if nd.lane() == 0:
            ring.expect(state, shared.tiles.nbytes)
            tile = shared.tiles.at(ring.slot(state))
            nd.cp_async_bulk_tensor_2d(tile, map, COLUMNS * nd.warp(), ROWS * step, ring.full(state))

    return issue


# %% issue wrong: Both warps send their tiles to one place
def make_issue(shared):
    ring = shared.ring

    @nd.function
    def issue(map, state, step):
        """Lane 0 asks for tile ``step`` of this warp's columns, into the state's stage."""
        if nd.lane() == 0:
            ring.expect(state, shared.tiles.stride)
            tile = shared.tiles.at(state.stage)
            nd.cp_async_bulk_tensor_2d(tile, map, COLUMNS * nd.warp(), ROWS * step, ring.full(state))

    return issue


# %% issue wrong: is the column first
def make_issue(shared):
    ring = shared.ring

    @nd.function
    def issue(map, state, step):
        """Lane 0 asks for tile ``step`` of this warp's columns, into the state's stage."""
        if nd.lane() == 0:
            ring.expect(state, shared.tiles.stride)
            tile = shared.tiles.at(ring.slot(state))
            nd.cp_async_bulk_tensor_2d(tile, map, ROWS * step, COLUMNS * nd.warp(), ring.full(state))

    return issue


# %% issue wrong: A coordinate counts elements
def make_issue(shared):
    ring = shared.ring

    @nd.function
    def issue(map, state, step):
        """Lane 0 asks for tile ``step`` of this warp's columns, into the state's stage."""
        if nd.lane() == 0:
            ring.expect(state, shared.tiles.stride)
            tile = shared.tiles.at(ring.slot(state))
            nd.cp_async_bulk_tensor_2d(tile, map, nd.warp(), step, ring.full(state))

    return issue


# %% issue wrong: i counts tiles, not bytes
def make_issue(shared):
    ring = shared.ring

    @nd.function
    def issue(map, state, step):
        """Lane 0 asks for tile ``step`` of this warp's columns, into the state's stage."""
        if nd.lane() == 0:
            ring.expect(state, shared.tiles.stride)
            tile = shared.tiles.at(4096 * ring.slot(state))
            nd.cp_async_bulk_tensor_2d(tile, map, COLUMNS * nd.warp(), ROWS * step, ring.full(state))

    return issue


# %% prefetch
def build(shared, issue, stages, warps):
    ring, AHEAD = shared.ring, stages - 1

    @nd.kernel(threads=32 * warps, shared=shared)
    def column_sums(map: nd.u64, out: nd.float32[:], steps: nd.i32):
        nd.fence_proxy_tensormap_acquire_sys(map)
        shared.init()
        tiles, total = shared.tiles.view(), nd.float32(0)
        ahead = now = ring.start()
        for step in range(min(AHEAD, steps)):  # prologue
            issue(map, ahead, step)
            ahead = ring.advance(ahead)
        for step in range(steps):
            if step + AHEAD < steps:  # prefetch
                issue(map, ahead, step + AHEAD)
                ahead = ring.advance(ahead)
            ring.wait(now)
            for row in range(ROWS):
                total += tiles[ring.slot(now), row, nd.lane()]
            ring.release(now)
            now = ring.advance(now)
        out[cuda.threadIdx.x] = total

    return column_sums


# %% prefetch wrong: there may be fewer steps than stages
def build(shared, issue, stages, warps):
    ring, AHEAD = shared.ring, stages - 1

    @nd.kernel(threads=32 * warps, shared=shared)
    def column_sums(map: nd.u64, out: nd.float32[:], steps: nd.i32):
        nd.fence_proxy_tensormap_acquire_sys(map)
        shared.init()
        tiles, total = shared.tiles.view(), nd.float32(0)
        ahead = now = ring.start()
        for step in range(AHEAD):  # prologue
            issue(map, ahead, step)
            ahead = ring.advance(ahead)
        for step in range(steps):
            if step + AHEAD < steps:  # prefetch
                issue(map, ahead, step + AHEAD)
                ahead = ring.advance(ahead)
            ring.wait(now)
            for row in range(ROWS):
                total += tiles[ring.slot(now), row, nd.lane()]
            ring.release(now)
            now = ring.advance(now)
        out[cuda.threadIdx.x] = total

    return column_sums


# %% prefetch wrong: A stage is asked for once more
def build(shared, issue, stages, warps):
    ring, AHEAD = shared.ring, stages - 1

    @nd.kernel(threads=32 * warps, shared=shared)
    def column_sums(map: nd.u64, out: nd.float32[:], steps: nd.i32):
        nd.fence_proxy_tensormap_acquire_sys(map)
        shared.init()
        tiles, total = shared.tiles.view(), nd.float32(0)
        ahead = now = ring.start()
        for step in range(min(stages, steps)):  # prologue
            issue(map, ahead, step)
            ahead = ring.advance(ahead)
        for step in range(steps):
            if step + stages < steps:  # prefetch
                issue(map, ahead, step + stages)
                ahead = ring.advance(ahead)
            ring.wait(now)
            for row in range(ROWS):
                total += tiles[ring.slot(now), row, nd.lane()]
            ring.release(now)
            now = ring.advance(now)
        out[cuda.threadIdx.x] = total

    return column_sums


# %% prefetch wrong: the last steps ask for nothing more
def build(shared, issue, stages, warps):
    ring, AHEAD = shared.ring, stages - 1

    @nd.kernel(threads=32 * warps, shared=shared)
    def column_sums(map: nd.u64, out: nd.float32[:], steps: nd.i32):
        nd.fence_proxy_tensormap_acquire_sys(map)
        shared.init()
        tiles, total = shared.tiles.view(), nd.float32(0)
        ahead = now = ring.start()
        for step in range(min(AHEAD, steps)):  # prologue
            issue(map, ahead, step)
            ahead = ring.advance(ahead)
        for step in range(steps):
            if True:  # prefetch
                issue(map, ahead, step + AHEAD)
                ahead = ring.advance(ahead)
            ring.wait(now)
            for row in range(ROWS):
                total += tiles[ring.slot(now), row, nd.lane()]
            ring.release(now)
            now = ring.advance(now)
        out[cuda.threadIdx.x] = total

    return column_sums


# %% prefetch wrong: which one is asked for in which step
def build(shared, issue, stages, warps):
    ring, AHEAD = shared.ring, stages - 1

    @nd.kernel(threads=32 * warps, shared=shared)
    def column_sums(map: nd.u64, out: nd.float32[:], steps: nd.i32):
        nd.fence_proxy_tensormap_acquire_sys(map)
        shared.init()
        tiles, total = shared.tiles.view(), nd.float32(0)
        ahead = now = ring.start()
        for step in range(min(AHEAD, steps)):  # prologue
            issue(map, ahead, step)
            ahead = ring.advance(ahead)
        for step in range(steps):
            if step + AHEAD < steps:  # prefetch
                issue(map, ahead, step)
                ahead = ring.advance(ahead)
            ring.wait(now)
            for row in range(ROWS):
                total += tiles[ring.slot(now), row, nd.lane()]
            ring.release(now)
            now = ring.advance(now)
        out[cuda.threadIdx.x] = total

    return column_sums


# %% prefetch wrong: the last tile is number
def build(shared, issue, stages, warps):
    ring, AHEAD = shared.ring, stages - 1

    @nd.kernel(threads=32 * warps, shared=shared)
    def column_sums(map: nd.u64, out: nd.float32[:], steps: nd.i32):
        nd.fence_proxy_tensormap_acquire_sys(map)
        shared.init()
        tiles, total = shared.tiles.view(), nd.float32(0)
        ahead = now = ring.start()
        for step in range(min(AHEAD, steps)):  # prologue
            issue(map, ahead, step)
            ahead = ring.advance(ahead)
        for step in range(steps):
            if step + stages < steps:  # prefetch
                issue(map, ahead, step + AHEAD)
                ahead = ring.advance(ahead)
            ring.wait(now)
            for row in range(ROWS):
                total += tiles[ring.slot(now), row, nd.lane()]
            ring.release(now)
            now = ring.advance(now)
        out[cuda.threadIdx.x] = total

    return column_sums


# %% depth
stages = 4


# %% depth wrong: there is more to gain
stages = 3


# %% depth wrong: memory for nothing
stages = 5

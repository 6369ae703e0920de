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
# # Solutions of lesson 10, with the mistakes that are made most often
#
# Each cell stands in place of the exercise's cell in the notebook. After `wrong:` are words of the check's
# answer. The tests run them all.


# %% leave
@nd.function
def leave(out, tile, bytes):
    nd.fence_proxy_async()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        nd.cp_reduce_async_bulk_add_u32(out, tile, bytes)
        nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group_read(0)


# %% leave wrong: calls fence_proxy_async(), and then all meet
@nd.function
def leave(out, tile, bytes):
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        nd.cp_reduce_async_bulk_add_u32(out, tile, bytes)
        nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group_read(0)


# %% leave wrong: all threads meet after their last write
@nd.function
def leave(out, tile, bytes):
    nd.fence_proxy_async()
    if cuda.threadIdx.x == 0:
        nd.cp_reduce_async_bulk_add_u32(out, tile, bytes)
        nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group_read(0)


# %% leave wrong: so that every bin counts 64 times
@nd.function
def leave(out, tile, bytes):
    nd.fence_proxy_async()
    cuda.syncthreads()
    nd.cp_reduce_async_bulk_add_u32(out, tile, bytes)
    nd.cp_async_bulk_commit_group()
    nd.cp_async_bulk_wait_group_read(0)


# %% leave wrong: Close a group by commit_group
@nd.function
def leave(out, tile, bytes):
    nd.fence_proxy_async()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        nd.cp_reduce_async_bulk_add_u32(out, tile, bytes)
        nd.cp_async_bulk_wait_group_read(0)


# %% leave wrong: it needs its tile to be read, no more
@nd.function
def leave(out, tile, bytes):
    nd.fence_proxy_async()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        nd.cp_reduce_async_bulk_add_u32(out, tile, bytes)
        nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group(0)


# %% leave wrong: and none was added
@nd.function
def leave(out, tile, bytes):
    nd.fence_proxy_async()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        nd.cp_async_bulk_store(out, tile, bytes)
        nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group_read(0)


# %% leave wrong: takes their bits for something else
@nd.function
def leave(out, tile, bytes):
    nd.fence_proxy_async()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        nd.cp_reduce_async_bulk_add_f32(out, tile, bytes)
        nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group_read(0)


# %% waits
@nd.function
def before_reuse():
    nd.cp_async_bulk_wait_group_read(1)


@nd.function
def before_count():
    nd.cp_async_bulk_wait_group(0)


# %% waits wrong: at most one stays open
@nd.function
def before_reuse():
    nd.cp_async_bulk_wait_group_read(2)


@nd.function
def before_count():
    nd.cp_async_bulk_wait_group(0)


# %% waits wrong: no two reductions were ever in flight at once
@nd.function
def before_reuse():
    nd.cp_async_bulk_wait_group_read(0)


@nd.function
def before_count():
    nd.cp_async_bulk_wait_group(0)


# %% waits wrong: it is enough that it has been read
@nd.function
def before_reuse():
    nd.cp_async_bulk_wait_group(1)


@nd.function
def before_count():
    nd.cp_async_bulk_wait_group(0)


# %% waits wrong: says nothing of the sums
@nd.function
def before_reuse():
    nd.cp_async_bulk_wait_group_read(1)


@nd.function
def before_count():
    nd.cp_async_bulk_wait_group_read(0)


# %% waits wrong: still open at the end
@nd.function
def before_reuse():
    nd.cp_async_bulk_wait_group_read(1)


@nd.function
def before_count():
    nd.cp_async_bulk_wait_group(1)


# %% waits wrong: nobody meets it there
@nd.function
def before_reuse():
    cuda.syncthreads()


@nd.function
def before_count():
    nd.cp_async_bulk_wait_group(0)


# %% sectors
predicted = {
    "one float": (8, 32),
    "four floats": (2, 32),
    "eight halves": (1, 16),
}

# %% sectors wrong: A wider instruction does not make them fewer
predicted = {
    "one float": (8, 32),
    "four floats": (2, 8),
    "eight halves": (1, 4),
}

# %% sectors wrong: how many pixels do 32 lanes have
predicted = {
    "one float": (8, 32),
    "four floats": (8, 32),
    "eight halves": (8, 16),
}

# %% sectors wrong: too many sectors
predicted = {
    "one float": (8, 32),
    "four floats": (2, 32),
    "eight halves": (1, 32),
}


# %% window
@nd.function
def add_part(window, x, y, x0, y0, lane, part):
    cuda.atomic.add(window, (y - y0, x - x0, lane), part)


@nd.function
def send_window(map, x0, y0, tile):
    nd.cp_reduce_async_bulk_tensor_3d_add(map, 0, x0, y0, tile)


# %% window wrong: Load, add and store are three steps
@nd.function
def add_part(window, x, y, x0, y0, lane, part):
    window[y - y0, x - x0, lane] += part


@nd.function
def send_window(map, x0, y0, tile):
    nd.cp_reduce_async_bulk_tensor_3d_add(map, 0, x0, y0, tile)


# %% window wrong: a reduction adds to what
@nd.function
def add_part(window, x, y, x0, y0, lane, part):
    cuda.atomic.add(window, (y - y0, x - x0, lane), part)


@nd.function
def send_window(map, x0, y0, tile):
    nd.cp_async_bulk_tensor_3d_store(map, 0, x0, y0, tile)


# %% window wrong: An array counts rows first
@nd.function
def add_part(window, x, y, x0, y0, lane, part):
    cuda.atomic.add(window, (x - x0, y - y0, lane), part)


@nd.function
def send_window(map, x0, y0, tile):
    nd.cp_reduce_async_bulk_tensor_3d_add(map, 0, x0, y0, tile)


# %% window wrong: other windows lie at wrong places
@nd.function
def add_part(window, x, y, x0, y0, lane, part):
    cuda.atomic.add(window, (y - y0, x - x0, lane), part)


@nd.function
def send_window(map, x0, y0, tile):
    nd.cp_reduce_async_bulk_tensor_3d_add(map, 0, y0, x0, tile)


# %% window wrong: those of the map less those of its corner
@nd.function
def add_part(window, x, y, x0, y0, lane, part):
    cuda.atomic.add(window, (y, x, lane), part)


@nd.function
def send_window(map, x0, y0, tile):
    nd.cp_reduce_async_bulk_tensor_3d_add(map, 0, x0, y0, tile)


# %% window wrong: not to its own place
@nd.function
def add_part(window, x, y, x0, y0, lane, part):
    cuda.atomic.add(window, (y - y0, x - x0, lane), part)


@nd.function
def send_window(map, x0, y0, tile):
    nd.cp_reduce_async_bulk_tensor_3d_add(map, 0, 0, 0, tile)


# %% window wrong: The channel comes first
@nd.function
def add_part(window, x, y, x0, y0, lane, part):
    cuda.atomic.add(window, (y - y0, x - x0, lane), part)


@nd.function
def send_window(map, x0, y0, tile):
    nd.cp_reduce_async_bulk_tensor_3d_add(map, x0, y0, 0, tile)


# %% scale
def scale(bound, count):
    return 2.0 ** math.floor(math.log2((2**31 - 1) / (bound * count)))


# %% scale wrong: begun again from the lowest
def scale(bound, count):
    return 2.0 ** math.floor(math.log2(2**31 / (bound * count)))


# %% scale wrong: no power of two
def scale(bound, count):
    return (2**31 - 1) / (bound * count)


# %% scale wrong: each bit that is not used
def scale(bound, count):
    return 2.0 ** (math.floor(math.log2((2**31 - 1) / (bound * count))) - 1)


# %% scale wrong: it has no room in 32 bits
def scale(bound, count):
    return 2.0**31


# %% doubled
def build_doubled(stages):
    tiles = nd.Array((stages, 8, 32), nd.uint32, alignment=128)
    shared = nd.Shared(tiles=tiles, ring=nd.Ring(stages, empty=1))

    @nd.kernel(threads=64, shared=shared)
    def doubled(data: nd.u64, out: nd.u64, tiles: nd.i32):
        shared.init()
        ring, view, state = shared.ring, shared.tiles.view(), shared.ring.start()
        if nd.warp() == 1:
            for i in range(tiles):
                ring.wait(state)
                for row in range(8):
                    view[state.stage, row, nd.lane()] += view[state.stage, row, nd.lane()]
                nd.fence_proxy_async()
                cuda.syncwarp()
                if nd.lane() == 0:
                    nd.cp_async_bulk_store(nd.global_at(out, i, 1024), shared.tiles.at(state.stage), 1024)
                    nd.cp_async_bulk_commit_group()
                    nd.cp_async_bulk_wait_group_read(0)
                    ring.release(state)
                state = ring.advance(state)
            if nd.lane() == 0:
                nd.cp_async_bulk_wait_group(0)
        elif nd.lane() == 0:
            for i in range(tiles):
                ring.acquire(state)
                ring.expect(state, 1024)
                tile, start = shared.tiles.at(state.stage), nd.global_at(data, i, 1024)
                nd.cp_async_bulk_load(tile, start, 1024, ring.full(state))
                state = ring.advance(state)

    return doubled


# %% doubled wrong: reads what threads wrote only past
def build_doubled(stages):
    tiles = nd.Array((stages, 8, 32), nd.uint32, alignment=128)
    shared = nd.Shared(tiles=tiles, ring=nd.Ring(stages, empty=1))

    @nd.kernel(threads=64, shared=shared)
    def doubled(data: nd.u64, out: nd.u64, tiles: nd.i32):
        shared.init()
        ring, view, state = shared.ring, shared.tiles.view(), shared.ring.start()
        if nd.warp() == 1:
            for i in range(tiles):
                ring.wait(state)
                for row in range(8):
                    view[state.stage, row, nd.lane()] += view[state.stage, row, nd.lane()]
                cuda.syncwarp()
                if nd.lane() == 0:
                    nd.cp_async_bulk_store(nd.global_at(out, i, 1024), shared.tiles.at(state.stage), 1024)
                    nd.cp_async_bulk_commit_group()
                    nd.cp_async_bulk_wait_group_read(0)
                    ring.release(state)
                state = ring.advance(state)
            if nd.lane() == 0:
                nd.cp_async_bulk_wait_group(0)
        elif nd.lane() == 0:
            for i in range(tiles):
                ring.acquire(state)
                ring.expect(state, 1024)
                tile, start = shared.tiles.at(state.stage), nd.global_at(data, i, 1024)
                nd.cp_async_bulk_load(tile, start, 1024, ring.full(state))
                state = ring.advance(state)

    return doubled


# %% doubled wrong: RefillRace
def build_doubled(stages):
    tiles = nd.Array((stages, 8, 32), nd.uint32, alignment=128)
    shared = nd.Shared(tiles=tiles, ring=nd.Ring(stages, empty=1))

    @nd.kernel(threads=64, shared=shared)
    def doubled(data: nd.u64, out: nd.u64, tiles: nd.i32):
        shared.init()
        ring, view, state = shared.ring, shared.tiles.view(), shared.ring.start()
        if nd.warp() == 1:
            for i in range(tiles):
                ring.wait(state)
                for row in range(8):
                    view[state.stage, row, nd.lane()] += view[state.stage, row, nd.lane()]
                nd.fence_proxy_async()
                cuda.syncwarp()
                if nd.lane() == 0:
                    nd.cp_async_bulk_store(nd.global_at(out, i, 1024), shared.tiles.at(state.stage), 1024)
                    nd.cp_async_bulk_commit_group()
                    ring.release(state)
                state = ring.advance(state)
            if nd.lane() == 0:
                nd.cp_async_bulk_wait_group(0)
        elif nd.lane() == 0:
            for i in range(tiles):
                ring.acquire(state)
                ring.expect(state, 1024)
                tile, start = shared.tiles.at(state.stage), nd.global_at(data, i, 1024)
                nd.cp_async_bulk_load(tile, start, 1024, ring.full(state))
                state = ring.advance(state)

    return doubled


# %% doubled wrong: copies by TMA leave
def build_doubled(stages):
    tiles = nd.Array((stages, 8, 32), nd.uint32, alignment=128)
    shared = nd.Shared(tiles=tiles, ring=nd.Ring(stages, empty=1))

    @nd.kernel(threads=64, shared=shared)
    def doubled(data: nd.u64, out: nd.u64, tiles: nd.i32):
        shared.init()
        ring, view, state = shared.ring, shared.tiles.view(), shared.ring.start()
        if nd.warp() == 1:
            for i in range(tiles):
                ring.wait(state)
                for row in range(8):
                    view[state.stage, row, nd.lane()] += view[state.stage, row, nd.lane()]
                nd.fence_proxy_async()
                cuda.syncwarp()
                if nd.lane() == 0:
                    for half in range(2):
                        tile = shared.tiles.at(state.stage) + 512 * half
                        nd.cp_async_bulk_store(nd.global_at(out, 2 * i + half, 512), tile, 512)
                    nd.cp_async_bulk_commit_group()
                    nd.cp_async_bulk_wait_group_read(0)
                    ring.release(state)
                state = ring.advance(state)
            if nd.lane() == 0:
                nd.cp_async_bulk_wait_group(0)
        elif nd.lane() == 0:
            for i in range(tiles):
                ring.acquire(state)
                ring.expect(state, 1024)
                tile, start = shared.tiles.at(state.stage), nd.global_at(data, i, 1024)
                nd.cp_async_bulk_load(tile, start, 1024, ring.full(state))
                state = ring.advance(state)

    return doubled

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
# # Solutions of lesson 5, with the mistakes that are made most often
#
# Each cell stands in place of the exercise's cell in the notebook. After `wrong:` are words of the check's
# answer. The tests run them all.


# %% counts
def counts(producers, consumers, arrivals):
    each = 32 if arrivals == "lane" else 1
    full = producers * each
    empty = consumers * each
    return full, empty


# %% counts wrong: all threads of the block
def counts(producers, consumers, arrivals):
    full = (producers + consumers) * 32
    empty = (producers + consumers) * 32
    return full, empty


# %% counts wrong: They are exchanged
def counts(producers, consumers, arrivals):
    each = 32 if arrivals == "lane" else 1
    full = consumers * each
    empty = producers * each
    return full, empty


# %% counts wrong: right for the other value of arrivals
def counts(producers, consumers, arrivals):
    full = producers * 32
    empty = consumers * 32
    return full, empty


# %% counts wrong: Count again for full
def counts(producers, consumers, arrivals):
    each = 32 if arrivals == "lane" else 1
    full = 1
    empty = consumers * each
    return full, empty


# %% producer_parity
def producer_parity(lap):
    return (lap & 1) ^ 1


# %% producer_parity wrong: in lap 0 it has to pass at once
def producer_parity(lap):
    return lap & 1


# %% producer_parity wrong: a phase that was over long ago
def producer_parity(lap):
    return 1


# %% producer_parity wrong: A parity is one bit
def producer_parity(lap):
    return lap + 1


# %% consumer
def build_persistent(stages):
    shared = layout(stages, empty=CONSUMERS)  # one lane of each consumer warp
    ring, issue = shared.ring, make_issue(shared)

    @nd.kernel(threads=THREADS, shared=shared)
    def persistent(data: nd.u64, out: nd.uint32[:, :], items: nd.i32):
        shared.init()
        tiles, tid, warp, lane = shared.tiles.view(), cuda.threadIdx.x, nd.warp(), nd.lane()
        state = ring.start()
        item, stride = cuda.blockIdx.x, cuda.gridDim.x
        if warp == 0:
            while item < items and lane == 0:
                for i in range(TILES):
                    ring.acquire(state)
                    issue(data, state, item * TILES + i)
                    state = ring.advance(state)
                item += stride
        else:
            while item < items:
                consumer, total = warp - 1, uint32(0)
                for _ in range(TILES):
                    ring.wait(state)
                    total = work(tiles, state.stage, consumer, total)
                    cuda.syncwarp()
                    if lane == 0:
                        ring.release(state)
                    state = ring.advance(state)
                out[item, tid - LANES] = total
                item += stride

    return persistent


# %% consumer wrong: before it does, all of them must have read
def build_persistent(stages):
    shared = layout(stages, empty=CONSUMERS)  # one lane of each consumer warp
    ring, issue = shared.ring, make_issue(shared)

    @nd.kernel(threads=THREADS, shared=shared)
    def persistent(data: nd.u64, out: nd.uint32[:, :], items: nd.i32):
        shared.init()
        tiles, tid, warp, lane = shared.tiles.view(), cuda.threadIdx.x, nd.warp(), nd.lane()
        state = ring.start()
        item, stride = cuda.blockIdx.x, cuda.gridDim.x
        if warp == 0:
            while item < items and lane == 0:
                for i in range(TILES):
                    ring.acquire(state)
                    issue(data, state, item * TILES + i)
                    state = ring.advance(state)
                item += stride
        else:
            while item < items:
                consumer, total = warp - 1, uint32(0)
                for _ in range(TILES):
                    ring.wait(state)
                    total = work(tiles, state.stage, consumer, total)
                    if lane == 0:
                        ring.release(state)
                    state = ring.advance(state)
                out[item, tid - LANES] = total
                item += stride

    return persistent


# %% consumer wrong: Here every lane arrives
def build_persistent(stages):
    shared = layout(stages, empty=CONSUMERS)  # one lane of each consumer warp
    ring, issue = shared.ring, make_issue(shared)

    @nd.kernel(threads=THREADS, shared=shared)
    def persistent(data: nd.u64, out: nd.uint32[:, :], items: nd.i32):
        shared.init()
        tiles, tid, warp, lane = shared.tiles.view(), cuda.threadIdx.x, nd.warp(), nd.lane()
        state = ring.start()
        item, stride = cuda.blockIdx.x, cuda.gridDim.x
        if warp == 0:
            while item < items and lane == 0:
                for i in range(TILES):
                    ring.acquire(state)
                    issue(data, state, item * TILES + i)
                    state = ring.advance(state)
                item += stride
        else:
            while item < items:
                consumer, total = warp - 1, uint32(0)
                for _ in range(TILES):
                    ring.wait(state)
                    total = work(tiles, state.stage, consumer, total)
                    ring.release(state)
                    state = ring.advance(state)
                out[item, tid - LANES] = total
                item += stride

    return persistent


# %% consumer wrong: Nobody gives the stage back
def build_persistent(stages):
    shared = layout(stages, empty=CONSUMERS)  # one lane of each consumer warp
    ring, issue = shared.ring, make_issue(shared)

    @nd.kernel(threads=THREADS, shared=shared)
    def persistent(data: nd.u64, out: nd.uint32[:, :], items: nd.i32):
        shared.init()
        tiles, tid, warp, lane = shared.tiles.view(), cuda.threadIdx.x, nd.warp(), nd.lane()
        state = ring.start()
        item, stride = cuda.blockIdx.x, cuda.gridDim.x
        if warp == 0:
            while item < items and lane == 0:
                for i in range(TILES):
                    ring.acquire(state)
                    issue(data, state, item * TILES + i)
                    state = ring.advance(state)
                item += stride
        else:
            while item < items:
                consumer, total = warp - 1, uint32(0)
                for _ in range(TILES):
                    ring.wait(state)
                    total = work(tiles, state.stage, consumer, total)
                    cuda.syncwarp()
                    state = ring.advance(state)
                out[item, tid - LANES] = total
                item += stride

    return persistent


# %% consumer wrong: the producer never comes
def build_persistent(stages):
    shared = layout(stages, empty=CONSUMERS)  # one lane of each consumer warp
    ring, issue = shared.ring, make_issue(shared)

    @nd.kernel(threads=THREADS, shared=shared)
    def persistent(data: nd.u64, out: nd.uint32[:, :], items: nd.i32):
        shared.init()
        tiles, tid, warp, lane = shared.tiles.view(), cuda.threadIdx.x, nd.warp(), nd.lane()
        state = ring.start()
        item, stride = cuda.blockIdx.x, cuda.gridDim.x
        if warp == 0:
            while item < items and lane == 0:
                for i in range(TILES):
                    ring.acquire(state)
                    issue(data, state, item * TILES + i)
                    state = ring.advance(state)
                item += stride
        else:
            while item < items:
                consumer, total = warp - 1, uint32(0)
                for _ in range(TILES):
                    ring.wait(state)
                    total = work(tiles, state.stage, consumer, total)
                    cuda.syncthreads()
                    if lane == 0:
                        ring.release(state)
                    state = ring.advance(state)
                out[item, tid - LANES] = total
                item += stride

    return persistent


# %% consumer wrong: Release after the work
def build_persistent(stages):
    shared = layout(stages, empty=CONSUMERS)  # one lane of each consumer warp
    ring, issue = shared.ring, make_issue(shared)

    @nd.kernel(threads=THREADS, shared=shared)
    def persistent(data: nd.u64, out: nd.uint32[:, :], items: nd.i32):
        shared.init()
        tiles, tid, warp, lane = shared.tiles.view(), cuda.threadIdx.x, nd.warp(), nd.lane()
        state = ring.start()
        item, stride = cuda.blockIdx.x, cuda.gridDim.x
        if warp == 0:
            while item < items and lane == 0:
                for i in range(TILES):
                    ring.acquire(state)
                    issue(data, state, item * TILES + i)
                    state = ring.advance(state)
                item += stride
        else:
            while item < items:
                consumer, total = warp - 1, uint32(0)
                for _ in range(TILES):
                    ring.wait(state)
                    cuda.syncwarp()
                    if lane == 0:
                        ring.release(state)
                    total = work(tiles, state.stage, consumer, total)
                    state = ring.advance(state)
                out[item, tid - LANES] = total
                item += stride

    return persistent


# %% bottleneck
def bottleneck(producer, consumer):
    if consumer["wait"] < 0.5:
        return "consumers"
    return "copies" if producer["acquire"] > 0.5 else "producers"


# %% bottleneck wrong: The one that waits is idle
def bottleneck(producer, consumer):
    return "consumers" if consumer["wait"] > 0.5 else "producers"


# %% bottleneck wrong: So neither of them is slow
def bottleneck(producer, consumer):
    return "producers" if consumer["wait"] > 0.5 else "consumers"


# %% bottleneck wrong: to blame only where both
def bottleneck(producer, consumer):
    return "copies"


# %% forecast
def forecast(issue, share, producers, blocks):
    return issue / share / (producers * blocks)


# %% forecast wrong: As if a producer did nothing but issue
def forecast(issue, share, producers, blocks):
    return issue / (producers * blocks)


# %% forecast wrong: That is one block
def forecast(issue, share, producers, blocks):
    return issue / share / producers


# %% forecast wrong: Multiplied by the share
def forecast(issue, share, producers, blocks):
    return issue * share / (producers * blocks)


# %% forecast wrong: warps issue at once, each a tile
def forecast(issue, share, producers, blocks):
    return issue / share * producers * blocks


# %% largest
def build_largest(stages):
    tiles = nd.Array((stages, 8, 32), nd.uint32, alignment=128)
    shared = nd.Shared(tiles=tiles, ring=nd.Ring(stages, empty=32))

    @nd.kernel(threads=64, shared=shared)
    def largest(data: nd.u64, out: nd.uint32[:], tiles: nd.i32):
        shared.init()
        ring, view, state = shared.ring, shared.tiles.view(), shared.ring.start()
        if nd.warp() == 1:
            best = nd.uint32(0)
            for _ in range(tiles):
                ring.wait(state)
                for row in range(8):
                    best = max(best, view[state.stage, row, nd.lane()])
                ring.release(state)
                state = ring.advance(state)
            out[nd.lane()] = best
        elif nd.lane() == 0:
            for i in range(tiles):
                ring.acquire(state)
                ring.expect(state, 1024)
                tile, start = shared.tiles.at(state.stage), nd.global_at(data, i, 1024)
                nd.cp_async_bulk_load(tile, start, 1024, ring.full(state))
                state = ring.advance(state)

    return largest


# %% largest wrong: nothing overlaps
def build_largest(stages):
    tiles = nd.Array((stages, 8, 32), nd.uint32, alignment=128)
    shared = nd.Shared(tiles=tiles, ring=nd.Ring(stages, empty=32))

    @nd.kernel(threads=64, shared=shared)
    def largest(data: nd.u64, out: nd.uint32[:], tiles: nd.i32):
        shared.init()
        ring, view, state = shared.ring, shared.tiles.view(), shared.ring.start()
        if nd.warp() == 1:
            best = nd.uint32(0)
            for i in range(tiles):
                if nd.lane() == 0:
                    ring.acquire(state)
                    ring.expect(state, 1024)
                    tile, start = shared.tiles.at(state.stage), nd.global_at(data, i, 1024)
                    nd.cp_async_bulk_load(tile, start, 1024, ring.full(state))
                ring.wait(state)
                for row in range(8):
                    best = max(best, view[state.stage, row, nd.lane()])
                ring.release(state)
                state = ring.advance(state)
            out[nd.lane()] = best

    return largest


# %% largest wrong: InFlightRead
def build_largest(stages):
    tiles = nd.Array((stages, 8, 32), nd.uint32, alignment=128)
    shared = nd.Shared(tiles=tiles, ring=nd.Ring(stages, empty=32))

    @nd.kernel(threads=64, shared=shared)
    def largest(data: nd.u64, out: nd.uint32[:], tiles: nd.i32):
        shared.init()
        ring, view, state = shared.ring, shared.tiles.view(), shared.ring.start()
        if nd.warp() == 1:
            best = nd.uint32(0)
            for _ in range(tiles):
                for row in range(8):
                    best = max(best, view[state.stage, row, nd.lane()])
                ring.release(state)
                state = ring.advance(state)
            out[nd.lane()] = best
        elif nd.lane() == 0:
            for i in range(tiles):
                ring.acquire(state)
                ring.expect(state, 1024)
                tile, start = shared.tiles.at(state.stage), nd.global_at(data, i, 1024)
                nd.cp_async_bulk_load(tile, start, 1024, ring.full(state))
                state = ring.advance(state)

    return largest


# %% largest wrong: gives it back past fence_proxy_async
def build_largest(stages):
    tiles = nd.Array((stages, 8, 32), nd.uint32, alignment=128)
    shared = nd.Shared(tiles=tiles, ring=nd.Ring(stages, empty=32))

    @nd.kernel(threads=64, shared=shared)
    def largest(data: nd.u64, out: nd.uint32[:], tiles: nd.i32):
        shared.init()
        ring, view, state = shared.ring, shared.tiles.view(), shared.ring.start()
        if nd.warp() == 1:
            best = nd.uint32(0)
            for _ in range(tiles):
                ring.wait(state)
                for row in range(8):
                    best = max(best, view[state.stage, row, nd.lane()])
                ring.arrive(state)
                state = ring.advance(state)
            out[nd.lane()] = best
        elif nd.lane() == 0:
            for i in range(tiles):
                ring.acquire(state)
                ring.expect(state, 1024)
                tile, start = shared.tiles.at(state.stage), nd.global_at(data, i, 1024)
                nd.cp_async_bulk_load(tile, start, 1024, ring.full(state))
                state = ring.advance(state)

    return largest


# %% largest wrong: results are wrong
def build_largest(stages):
    tiles = nd.Array((stages, 8, 32), nd.uint32, alignment=128)
    shared = nd.Shared(tiles=tiles, ring=nd.Ring(stages, empty=32))

    @nd.kernel(threads=64, shared=shared)
    def largest(data: nd.u64, out: nd.uint32[:], tiles: nd.i32):
        shared.init()
        ring, view, state = shared.ring, shared.tiles.view(), shared.ring.start()
        if nd.warp() == 1:
            best = nd.uint32(0)
            for _ in range(tiles):
                ring.wait(state)
                for row in range(8):
                    best = view[state.stage, row, nd.lane()]
                ring.release(state)
                state = ring.advance(state)
            out[nd.lane()] = best
        elif nd.lane() == 0:
            for i in range(tiles):
                ring.acquire(state)
                ring.expect(state, 1024)
                tile, start = shared.tiles.at(state.stage), nd.global_at(data, i, 1024)
                nd.cp_async_bulk_load(tile, start, 1024, ring.full(state))
                state = ring.advance(state)

    return largest


# %% largest wrong: take 64, two warps
def build_largest(stages):
    tiles = nd.Array((stages, 8, 32), nd.uint32, alignment=128)
    shared = nd.Shared(tiles=tiles, ring=nd.Ring(stages, empty=32))

    @nd.kernel(threads=96, shared=shared)
    def largest(data: nd.u64, out: nd.uint32[:], tiles: nd.i32):
        shared.init()
        ring, view, state = shared.ring, shared.tiles.view(), shared.ring.start()
        if nd.warp() == 1:
            best = nd.uint32(0)
            for _ in range(tiles):
                ring.wait(state)
                for row in range(8):
                    best = max(best, view[state.stage, row, nd.lane()])
                ring.release(state)
                state = ring.advance(state)
            out[nd.lane()] = best
        elif nd.lane() == 0:
            for i in range(tiles):
                ring.acquire(state)
                ring.expect(state, 1024)
                tile, start = shared.tiles.at(state.stage), nd.global_at(data, i, 1024)
                nd.cp_async_bulk_load(tile, start, 1024, ring.full(state))
                state = ring.advance(state)

    return largest


# %% largest wrong: and no kernel
def build_largest(stages):
    tiles = nd.Array((stages, 8, 32), nd.uint32, alignment=128)
    shared = nd.Shared(tiles=tiles, ring=nd.Ring(stages, empty=32))

    @nd.kernel(threads=64, shared=shared)
    def largest(data: nd.u64, out: nd.uint32[:], tiles: nd.i32):
        shared.init()
        ring, view, state = shared.ring, shared.tiles.view(), shared.ring.start()
        if nd.warp() == 1:
            best = nd.uint32(0)
            for _ in range(tiles):
                ring.wait(state)
                for row in range(8):
                    best = max(best, view[state.stage, row, nd.lane()])
                ring.release(state)
                state = ring.advance(state)
            out[nd.lane()] = best
        elif nd.lane() == 0:
            for i in range(tiles):
                ring.acquire(state)
                ring.expect(state, 1024)
                tile, start = shared.tiles.at(state.stage), nd.global_at(data, i, 1024)
                nd.cp_async_bulk_load(tile, start, 1024, ring.full(state))
                state = ring.advance(state)


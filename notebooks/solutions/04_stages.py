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
# # Solutions of lesson 4, with the mistakes that are made most often
#
# Each cell stands in place of the exercise's cell in the notebook. After `wrong:` are words of the check's
# answer. The tests run them all.


# %% stages_needed
def stages_needed(latency, work):
    return -(-latency // work) + 1


# %% stages_needed wrong: one more is being read
def stages_needed(latency, work):
    return -(-latency // work)


# %% stages_needed wrong: Round up
def stages_needed(latency, work):
    return latency // work + 1


# %% stages_needed wrong: must be in flight
def stages_needed(latency, work):
    return latency


# %% use
def use(i, stages):
    stage = i % stages
    parity = i // stages % 2
    return stage, parity


# %% use wrong: flips with every tile
def use(i, stages):
    stage = i % stages
    parity = i % 2
    return stage, parity


# %% use wrong: by its lowest bit only
def use(i, stages):
    stage = i % stages
    parity = i // stages
    return stage, parity


# %% use wrong: That is the other one
def use(i, stages):
    stage = i % stages
    parity = (i // stages + 1) % 2
    return stage, parity


# %% use wrong: used in turn
def use(i, stages):
    stage = i // stages
    parity = i // stages % 2
    return stage, parity


# %% use wrong: Called with i=0, stages=1
def use(i, stages):
    """(stage, parity) with which tile i is awaited."""
    stage = i % stages
    parity = i // (stages - 1) % 2
    return stage, parity


# %% use wrong: That lap is number 1
def use(i, stages):
    """(stage, parity) with which tile i is awaited."""
    stage = i % stages
    parity = (i % stages) % 2
    return stage, parity


# %% shared_ring
def build_shared(stages):
    LEAD, THREADS, BYTES = stages - 1, 2 * LANES, 2 * TILE_BYTES
    shared = nd.Shared(
        tiles=nd.Array((stages, 2 * WORDS, LANES), nd.uint32, alignment=128),
        ring=nd.Ring(stages, full=1, empty=THREADS),
    )
    ring = shared.ring

    @nd.kernel(threads=THREADS, shared=shared)
    def stages_of_a_block(data: nd.u64, out: nd.uint32[:]):
        shared.init()
        tiles, tid, total = shared.tiles.view(), cuda.threadIdx.x, uint32(0)
        ahead = now = ring.start()
        for i in range(-LEAD, TILES):  # negative steps are the prologue
            if tid == 0 and i + LEAD < TILES:
                ring.acquire(ahead)
                ring.expect(ahead, BYTES)
                slot, tile = shared.tiles.at(ahead.stage), nd.global_at(data, i + LEAD, BYTES)
                nd.cp_async_bulk_load(slot, tile, BYTES, ring.full(ahead))
                ahead = ring.advance(ahead)
            if i >= 0:
                ring.wait(now)
                total = work(tiles, now.stage, WORDS * nd.warp(), total)
                ring.release(now)
                now = ring.advance(now)
        out[tid] = total

    return stages_of_a_block


# %% shared_ring wrong: it has to acquire it first
def build_shared(stages):
    LEAD, THREADS, BYTES = stages - 1, 2 * LANES, 2 * TILE_BYTES
    shared = nd.Shared(
        tiles=nd.Array((stages, 2 * WORDS, LANES), nd.uint32, alignment=128),
        ring=nd.Ring(stages, full=1, empty=THREADS),
    )
    ring = shared.ring

    @nd.kernel(threads=THREADS, shared=shared)
    def stages_of_a_block(data: nd.u64, out: nd.uint32[:]):
        shared.init()
        tiles, tid, total = shared.tiles.view(), cuda.threadIdx.x, uint32(0)
        ahead = now = ring.start()
        for i in range(-LEAD, TILES):  # negative steps are the prologue
            if tid == 0 and i + LEAD < TILES:
                pass
                ring.expect(ahead, BYTES)
                slot, tile = shared.tiles.at(ahead.stage), nd.global_at(data, i + LEAD, BYTES)
                nd.cp_async_bulk_load(slot, tile, BYTES, ring.full(ahead))
                ahead = ring.advance(ahead)
            if i >= 0:
                ring.wait(now)
                total = work(tiles, now.stage, WORDS * nd.warp(), total)
                ring.release(now)
                now = ring.advance(now)
        out[tid] = total

    return stages_of_a_block


# %% shared_ring wrong: after its last read
def build_shared(stages):
    LEAD, THREADS, BYTES = stages - 1, 2 * LANES, 2 * TILE_BYTES
    shared = nd.Shared(
        tiles=nd.Array((stages, 2 * WORDS, LANES), nd.uint32, alignment=128),
        ring=nd.Ring(stages, full=1, empty=THREADS),
    )
    ring = shared.ring

    @nd.kernel(threads=THREADS, shared=shared)
    def stages_of_a_block(data: nd.u64, out: nd.uint32[:]):
        shared.init()
        tiles, tid, total = shared.tiles.view(), cuda.threadIdx.x, uint32(0)
        ahead = now = ring.start()
        for i in range(-LEAD, TILES):  # negative steps are the prologue
            if tid == 0 and i + LEAD < TILES:
                ring.acquire(ahead)
                ring.expect(ahead, BYTES)
                slot, tile = shared.tiles.at(ahead.stage), nd.global_at(data, i + LEAD, BYTES)
                nd.cp_async_bulk_load(slot, tile, BYTES, ring.full(ahead))
                ahead = ring.advance(ahead)
            if i >= 0:
                ring.wait(now)
                ring.release(now)
                total = work(tiles, now.stage, WORDS * nd.warp(), total)
                pass
                now = ring.advance(now)
        out[tid] = total

    return stages_of_a_block


# %% shared_ring wrong: expects an arrival of each of the 64
def build_shared(stages):
    LEAD, THREADS, BYTES = stages - 1, 2 * LANES, 2 * TILE_BYTES
    shared = nd.Shared(
        tiles=nd.Array((stages, 2 * WORDS, LANES), nd.uint32, alignment=128),
        ring=nd.Ring(stages, full=1, empty=THREADS),
    )
    ring = shared.ring

    @nd.kernel(threads=THREADS, shared=shared)
    def stages_of_a_block(data: nd.u64, out: nd.uint32[:]):
        shared.init()
        tiles, tid, total = shared.tiles.view(), cuda.threadIdx.x, uint32(0)
        ahead = now = ring.start()
        for i in range(-LEAD, TILES):  # negative steps are the prologue
            if tid == 0 and i + LEAD < TILES:
                ring.acquire(ahead)
                ring.expect(ahead, BYTES)
                slot, tile = shared.tiles.at(ahead.stage), nd.global_at(data, i + LEAD, BYTES)
                nd.cp_async_bulk_load(slot, tile, BYTES, ring.full(ahead))
                ahead = ring.advance(ahead)
            if i >= 0:
                ring.wait(now)
                total = work(tiles, now.stage, WORDS * nd.warp(), total)
                if nd.lane() == 0:
                    ring.release(now)
                now = ring.advance(now)
        out[tid] = total

    return stages_of_a_block


# %% shared_ring wrong: Nobody may read a tile before
def build_shared(stages):
    LEAD, THREADS, BYTES = stages - 1, 2 * LANES, 2 * TILE_BYTES
    shared = nd.Shared(
        tiles=nd.Array((stages, 2 * WORDS, LANES), nd.uint32, alignment=128),
        ring=nd.Ring(stages, full=1, empty=THREADS),
    )
    ring = shared.ring

    @nd.kernel(threads=THREADS, shared=shared)
    def stages_of_a_block(data: nd.u64, out: nd.uint32[:]):
        shared.init()
        tiles, tid, total = shared.tiles.view(), cuda.threadIdx.x, uint32(0)
        ahead = now = ring.start()
        for i in range(-LEAD, TILES):  # negative steps are the prologue
            if tid == 0 and i + LEAD < TILES:
                ring.acquire(ahead)
                ring.expect(ahead, BYTES)
                slot, tile = shared.tiles.at(ahead.stage), nd.global_at(data, i + LEAD, BYTES)
                nd.cp_async_bulk_load(slot, tile, BYTES, ring.full(ahead))
                ahead = ring.advance(ahead)
            if i >= 0:
                pass
                total = work(tiles, now.stage, WORDS * nd.warp(), total)
                ring.release(now)
                now = ring.advance(now)
        out[tid] = total

    return stages_of_a_block


# %% shared_ring wrong: for an *empty* stage only
def build_shared(stages):
    LEAD, THREADS, BYTES = stages - 1, 2 * LANES, 2 * TILE_BYTES
    shared = nd.Shared(
        tiles=nd.Array((stages, 2 * WORDS, LANES), nd.uint32, alignment=128),
        ring=nd.Ring(stages, full=1, empty=THREADS),
    )
    ring = shared.ring

    @nd.kernel(threads=THREADS, shared=shared)
    def stages_of_a_block(data: nd.u64, out: nd.uint32[:]):
        shared.init()
        tiles, tid, total = shared.tiles.view(), cuda.threadIdx.x, uint32(0)
        ahead = now = ring.start()
        for i in range(-LEAD, TILES):  # negative steps are the prologue
            if tid == 0 and i + LEAD < TILES:
                ring.wait(ahead)
                ring.expect(ahead, BYTES)
                slot, tile = shared.tiles.at(ahead.stage), nd.global_at(data, i + LEAD, BYTES)
                nd.cp_async_bulk_load(slot, tile, BYTES, ring.full(ahead))
                ahead = ring.advance(ahead)
            if i >= 0:
                ring.wait(now)
                total = work(tiles, now.stage, WORDS * nd.warp(), total)
                ring.release(now)
                now = ring.advance(now)
        out[tid] = total

    return stages_of_a_block


# %% shared_ring wrong: in the state `ahead`
def build_shared(stages):
    LEAD, THREADS, BYTES = stages - 1, 2 * LANES, 2 * TILE_BYTES
    shared = nd.Shared(
        tiles=nd.Array((stages, 2 * WORDS, LANES), nd.uint32, alignment=128),
        ring=nd.Ring(stages, full=1, empty=THREADS),
    )
    ring = shared.ring

    @nd.kernel(threads=THREADS, shared=shared)
    def stages_of_a_block(data: nd.u64, out: nd.uint32[:]):
        shared.init()
        tiles, tid, total = shared.tiles.view(), cuda.threadIdx.x, uint32(0)
        ahead = now = ring.start()
        for i in range(-LEAD, TILES):  # negative steps are the prologue
            if tid == 0 and i + LEAD < TILES:
                ring.acquire(now)
                ring.expect(ahead, BYTES)
                slot, tile = shared.tiles.at(ahead.stage), nd.global_at(data, i + LEAD, BYTES)
                nd.cp_async_bulk_load(slot, tile, BYTES, ring.full(ahead))
                ahead = ring.advance(ahead)
            if i >= 0:
                ring.wait(now)
                total = work(tiles, now.stage, WORDS * nd.warp(), total)
                ring.release(now)
                now = ring.advance(now)
        out[tid] = total

    return stages_of_a_block


# %% shared_ring wrong: Release the stage that was read
def build_shared(stages):
    LEAD, THREADS, BYTES = stages - 1, 2 * LANES, 2 * TILE_BYTES
    shared = nd.Shared(
        tiles=nd.Array((stages, 2 * WORDS, LANES), nd.uint32, alignment=128),
        ring=nd.Ring(stages, full=1, empty=THREADS),
    )
    ring = shared.ring

    @nd.kernel(threads=THREADS, shared=shared)
    def stages_of_a_block(data: nd.u64, out: nd.uint32[:]):
        shared.init()
        tiles, tid, total = shared.tiles.view(), cuda.threadIdx.x, uint32(0)
        ahead = now = ring.start()
        for i in range(-LEAD, TILES):  # negative steps are the prologue
            if tid == 0 and i + LEAD < TILES:
                ring.acquire(ahead)
                ring.expect(ahead, BYTES)
                slot, tile = shared.tiles.at(ahead.stage), nd.global_at(data, i + LEAD, BYTES)
                nd.cp_async_bulk_load(slot, tile, BYTES, ring.full(ahead))
                ahead = ring.advance(ahead)
            if i >= 0:
                ring.wait(now)
                total = work(tiles, now.stage, WORDS * nd.warp(), total)
                ring.release(ahead)
                now = ring.advance(now)
        out[tid] = total

    return stages_of_a_block


# %% shared_ring wrong: nobody arrives on the empty barriers
def build_shared(stages):
    LEAD, THREADS, BYTES = stages - 1, 2 * LANES, 2 * TILE_BYTES
    shared = nd.Shared(
        tiles=nd.Array((stages, 2 * WORDS, LANES), nd.uint32, alignment=128),
        ring=nd.Ring(stages, full=1, empty=THREADS),
    )
    ring = shared.ring

    @nd.kernel(threads=THREADS, shared=shared)
    def stages_of_a_block(data: nd.u64, out: nd.uint32[:]):
        shared.init()
        tiles, tid, total = shared.tiles.view(), cuda.threadIdx.x, uint32(0)
        ahead = now = ring.start()
        for i in range(-LEAD, TILES):  # negative steps are the prologue
            if tid == 0 and i + LEAD < TILES:
                pass
                ring.expect(ahead, BYTES)
                slot, tile = shared.tiles.at(ahead.stage), nd.global_at(data, i + LEAD, BYTES)
                nd.cp_async_bulk_load(slot, tile, BYTES, ring.full(ahead))
                ahead = ring.advance(ahead)
            if i >= 0:
                ring.wait(now)
                total = work(tiles, now.stage, WORDS * nd.warp(), total)
                cuda.syncthreads()
                now = ring.advance(now)
        out[tid] = total

    return stages_of_a_block


# %% mend
@nd.kernel(threads=LANES, shared=pair)
def mended(data: nd.u64, weights: nd.uint32[:], out: nd.uint32[:]):
    pair.init()
    tile, lane, total = pair.tile.view(), nd.lane(), uint32(0)
    now = ring.start()
    if lane == 0:
        ring.expect(now, ROW_BYTES)
        nd.cp_async_bulk_load(pair.tile.at(0), data, ROW_BYTES, ring.full(now))
    meta = cuda.local.array(2, uint32)  # an entry for each stage
    meta[0] = weights[0]
    for i in range(STEPS):
        ahead = ring.advance(now)
        if i + 1 < STEPS:
            if lane == 0:
                slot, row = pair.tile.at(ahead.stage), nd.global_at(data, i + 1, ROW_BYTES)
                ring.expect(ahead, ROW_BYTES)
                nd.cp_async_bulk_load(slot, row, ROW_BYTES, ring.full(ahead))
            meta[ahead.stage] = weights[i + 1]
        ring.wait(now)
        total += meta[now.stage] * tile[now.stage, lane]
        nd.fence_proxy_async()  # as in `ring.release`
        cuda.syncwarp()
        now = ahead
    out[lane] = total


# %% mend wrong: the other shows
@nd.kernel(threads=LANES, shared=pair)
def mended(data: nd.u64, weights: nd.uint32[:], out: nd.uint32[:]):
    pair.init()
    tile, lane, total = pair.tile.view(), nd.lane(), uint32(0)
    now = ring.start()
    if lane == 0:
        ring.expect(now, ROW_BYTES)
        nd.cp_async_bulk_load(pair.tile.at(0), data, ROW_BYTES, ring.full(now))
    meta = cuda.local.array(2, uint32)  # an entry for each stage
    meta[0] = weights[0]
    for i in range(STEPS):
        ahead = ring.advance(now)
        if i + 1 < STEPS:
            if lane == 0:
                slot, row = pair.tile.at(ahead.stage), nd.global_at(data, i + 1, ROW_BYTES)
                ring.expect(ahead, ROW_BYTES)
                nd.cp_async_bulk_load(slot, row, ROW_BYTES, ring.full(ahead))
            meta[ahead.stage] = weights[i + 1]
        ring.wait(now)
        total += meta[now.stage] * tile[now.stage, lane]
        nd.fence_proxy_async()  # as in `ring.release`
        now = ahead
    out[lane] = total


# %% mend wrong: not in the entry that is read here
@nd.kernel(threads=LANES, shared=pair)
def mended(data: nd.u64, weights: nd.uint32[:], out: nd.uint32[:]):
    pair.init()
    tile, lane, total = pair.tile.view(), nd.lane(), uint32(0)
    now = ring.start()
    if lane == 0:
        ring.expect(now, ROW_BYTES)
        nd.cp_async_bulk_load(pair.tile.at(0), data, ROW_BYTES, ring.full(now))
    meta = cuda.local.array(2, uint32)  # an entry for each stage
    meta[0] = weights[0]
    for i in range(STEPS):
        ahead = ring.advance(now)
        if i + 1 < STEPS:
            if lane == 0:
                slot, row = pair.tile.at(ahead.stage), nd.global_at(data, i + 1, ROW_BYTES)
                ring.expect(ahead, ROW_BYTES)
                nd.cp_async_bulk_load(slot, row, ROW_BYTES, ring.full(ahead))
            entry = cuda.local.array(1, uint32)
            entry[0] = weights[i + 1]
        ring.wait(now)
        total += meta[now.stage] * tile[now.stage, lane]
        nd.fence_proxy_async()  # as in `ring.release`
        cuda.syncwarp()
        now = ahead
    out[lane] = total


# %% mend wrong: overwritten
@nd.kernel(threads=LANES, shared=pair)
def mended(data: nd.u64, weights: nd.uint32[:], out: nd.uint32[:]):
    pair.init()
    tile, lane, total = pair.tile.view(), nd.lane(), uint32(0)
    now = ring.start()
    if lane == 0:
        ring.expect(now, ROW_BYTES)
        nd.cp_async_bulk_load(pair.tile.at(0), data, ROW_BYTES, ring.full(now))
    meta = cuda.local.array(2, uint32)  # an entry for each stage
    meta[0] = weights[0]
    for i in range(STEPS):
        ahead = ring.advance(now)
        if i + 1 < STEPS:
            if lane == 0:
                slot, row = pair.tile.at(ahead.stage), nd.global_at(data, i + 1, ROW_BYTES)
                ring.expect(ahead, ROW_BYTES)
                nd.cp_async_bulk_load(slot, row, ROW_BYTES, ring.full(ahead))
            meta[now.stage] = weights[i + 1]
        ring.wait(now)
        total += meta[now.stage] * tile[now.stage, lane]
        nd.fence_proxy_async()  # as in `ring.release`
        cuda.syncwarp()
        now = ahead
    out[lane] = total


# %% mend wrong: what the kernel's authors tried
@nd.kernel(threads=LANES, shared=pair)
def mended(data: nd.u64, weights: nd.uint32[:], out: nd.uint32[:]):
    pair.init()
    tile, lane, total = pair.tile.view(), nd.lane(), uint32(0)
    now = ring.start()
    if lane == 0:
        ring.expect(now, ROW_BYTES)
        nd.cp_async_bulk_load(pair.tile.at(0), data, ROW_BYTES, ring.full(now))
    meta = cuda.local.array(2, uint32)  # an entry for each stage
    meta[0] = weights[0]
    for i in range(STEPS):
        ahead = ring.advance(now)
        if i + 1 < STEPS:
            if lane == 0:
                slot, row = pair.tile.at(ahead.stage), nd.global_at(data, i + 1, ROW_BYTES)
                ring.expect(ahead, ROW_BYTES)
                nd.cp_async_bulk_load(slot, row, ROW_BYTES, ring.full(ahead))
            meta[ahead.stage] = weights[i + 1]
        ring.wait(now)
        total += meta[now.stage] * tile[now.stage, lane]
        nd.fence_proxy_async()  # as in `ring.release`
        cuda.syncwarp()
        if lane == 0:
            ring.init()
        now = ahead
    out[lane] = total


# %% mend wrong: Which stage has the tile
@nd.kernel(threads=LANES, shared=pair)
def mended(data: nd.u64, weights: nd.uint32[:], out: nd.uint32[:]):
    pair.init()
    tile, lane, total = pair.tile.view(), nd.lane(), uint32(0)
    now = ring.start()
    if lane == 0:
        ring.expect(now, ROW_BYTES)
        nd.cp_async_bulk_load(pair.tile.at(0), data, ROW_BYTES, ring.full(now))
    meta = cuda.local.array(2, uint32)  # an entry for each stage
    meta[0] = weights[0]
    for i in range(STEPS):
        ahead = ring.advance(now)
        if i + 1 < STEPS:
            if lane == 0:
                slot, row = pair.tile.at(ahead.stage), nd.global_at(data, i + 1, ROW_BYTES)
                ring.expect(ahead, ROW_BYTES)
                nd.cp_async_bulk_load(slot, row, ROW_BYTES, ring.full(ahead))
            meta[i + 1] = weights[i + 1]
        ring.wait(now)
        total += meta[now.stage] * tile[now.stage, lane]
        nd.fence_proxy_async()  # as in `ring.release`
        cuda.syncwarp()
        now = ahead
    out[lane] = total


# %% most_stages
def most_stages(stage_bytes, blocks):
    return (228 * 1024 // blocks - 1024 - 128) // (stage_bytes + 64)


# %% most_stages wrong: That is for one block alone
def most_stages(stage_bytes, blocks):
    return (228 * 1024 - 1024 - 128) // (stage_bytes + 64)


# %% most_stages wrong: one block less would fit
def most_stages(stage_bytes, blocks):
    return round(228 * 1024 / blocks / (stage_bytes + 64))


# %% most_stages wrong: There is room for
def most_stages(stage_bytes, blocks):
    return 48 * 1024 // (stage_bytes + 64) // blocks


# %% most_stages wrong: are more than 233472
def most_stages(stage_bytes, blocks):
    return (228 * 1024 // blocks - 1024) // (stage_bytes + 64)  # without the 128 that align the tiles


# %% most_stages wrong: those of an SM, for all its blocks
def most_stages(stage_bytes, blocks):
    return (227 * 1024 // blocks - 1024 - 128) // (stage_bytes + 64)


# %% most_stages wrong: a whole number of stages
def most_stages(stage_bytes, blocks):
    return (228 * 1024 / blocks - 1024 - 128) / (stage_bytes + 64)

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
    STAGES, LEAD, THREADS = stages, stages - 1, 2 * LANES
    BYTES, COLUMNS = 2 * TILE_BYTES, 2 * TILE_WORDS
    advance = make_advance(stages)

    @nd.kernel(threads=THREADS)
    def stages_of_a_block(data: nd.u64, out: nd.uint32[:]):
        tile = cuda.shared.array((STAGES, COLUMNS), uint32, alignment=128)
        full = cuda.shared.array(STAGES, uint64)
        empty = cuda.shared.array(STAGES, uint64)
        tiles, ring = nd.shared_address(tile), Ring(nd.shared_address(full), nd.shared_address(empty))
        tid, total = cuda.threadIdx.x, uint32(0)
        warp, lane = tid // LANES, tid % LANES
        if tid == 0:
            init_barriers(ring.full, STAGES, 1)
            init_barriers(ring.empty, STAGES, THREADS)
            nd.fence_mbarrier_init()
        cuda.syncthreads()
        ahead = now = first_state()
        for i in range(-LEAD, TILES):  # negative steps are the prologue
            if tid == 0 and i + LEAD < TILES:
                acquire(ring, ahead)
                commit(ring, ahead, BYTES)
                to = tiles + BYTES * ahead.stage
                start = nd.global_at(data, i + LEAD, BYTES)
                nd.cp_async_bulk_load(to, start, BYTES, full_barrier(ring, ahead))
                ahead = advance(ahead)
            if i >= 0:
                wait(ring, now)
                half = tiles + BYTES * now.stage + TILE_BYTES * warp
                total = work(half, lane, total)
                release(ring, now)
                now = advance(now)
        out[tid] = total

    return stages_of_a_block


# %% shared_ring wrong: it has to acquire it first
def build_shared(stages):
    STAGES, LEAD, THREADS = stages, stages - 1, 2 * LANES
    BYTES, COLUMNS = 2 * TILE_BYTES, 2 * TILE_WORDS
    advance = make_advance(stages)

    @nd.kernel(threads=THREADS)
    def stages_of_a_block(data: nd.u64, out: nd.uint32[:]):
        tile = cuda.shared.array((STAGES, COLUMNS), uint32, alignment=128)
        full = cuda.shared.array(STAGES, uint64)
        empty = cuda.shared.array(STAGES, uint64)
        tiles, ring = nd.shared_address(tile), Ring(nd.shared_address(full), nd.shared_address(empty))
        tid, total = cuda.threadIdx.x, uint32(0)
        warp, lane = tid // LANES, tid % LANES
        if tid == 0:
            init_barriers(ring.full, STAGES, 1)
            init_barriers(ring.empty, STAGES, THREADS)
            nd.fence_mbarrier_init()
        cuda.syncthreads()
        ahead = now = first_state()
        for i in range(-LEAD, TILES):  # negative steps are the prologue
            if tid == 0 and i + LEAD < TILES:
                pass
                commit(ring, ahead, BYTES)
                to = tiles + BYTES * ahead.stage
                start = nd.global_at(data, i + LEAD, BYTES)
                nd.cp_async_bulk_load(to, start, BYTES, full_barrier(ring, ahead))
                ahead = advance(ahead)
            if i >= 0:
                wait(ring, now)
                half = tiles + BYTES * now.stage + TILE_BYTES * warp
                total = work(half, lane, total)
                release(ring, now)
                now = advance(now)
        out[tid] = total

    return stages_of_a_block


# %% shared_ring wrong: after its last read
def build_shared(stages):
    STAGES, LEAD, THREADS = stages, stages - 1, 2 * LANES
    BYTES, COLUMNS = 2 * TILE_BYTES, 2 * TILE_WORDS
    advance = make_advance(stages)

    @nd.kernel(threads=THREADS)
    def stages_of_a_block(data: nd.u64, out: nd.uint32[:]):
        tile = cuda.shared.array((STAGES, COLUMNS), uint32, alignment=128)
        full = cuda.shared.array(STAGES, uint64)
        empty = cuda.shared.array(STAGES, uint64)
        tiles, ring = nd.shared_address(tile), Ring(nd.shared_address(full), nd.shared_address(empty))
        tid, total = cuda.threadIdx.x, uint32(0)
        warp, lane = tid // LANES, tid % LANES
        if tid == 0:
            init_barriers(ring.full, STAGES, 1)
            init_barriers(ring.empty, STAGES, THREADS)
            nd.fence_mbarrier_init()
        cuda.syncthreads()
        ahead = now = first_state()
        for i in range(-LEAD, TILES):  # negative steps are the prologue
            if tid == 0 and i + LEAD < TILES:
                acquire(ring, ahead)
                commit(ring, ahead, BYTES)
                to = tiles + BYTES * ahead.stage
                start = nd.global_at(data, i + LEAD, BYTES)
                nd.cp_async_bulk_load(to, start, BYTES, full_barrier(ring, ahead))
                ahead = advance(ahead)
            if i >= 0:
                wait(ring, now)
                release(ring, now)
                half = tiles + BYTES * now.stage + TILE_BYTES * warp
                total = work(half, lane, total)
                now = advance(now)
        out[tid] = total

    return stages_of_a_block


# %% shared_ring wrong: expects an arrival of each of the 64
def build_shared(stages):
    STAGES, LEAD, THREADS = stages, stages - 1, 2 * LANES
    BYTES, COLUMNS = 2 * TILE_BYTES, 2 * TILE_WORDS
    advance = make_advance(stages)

    @nd.kernel(threads=THREADS)
    def stages_of_a_block(data: nd.u64, out: nd.uint32[:]):
        tile = cuda.shared.array((STAGES, COLUMNS), uint32, alignment=128)
        full = cuda.shared.array(STAGES, uint64)
        empty = cuda.shared.array(STAGES, uint64)
        tiles, ring = nd.shared_address(tile), Ring(nd.shared_address(full), nd.shared_address(empty))
        tid, total = cuda.threadIdx.x, uint32(0)
        warp, lane = tid // LANES, tid % LANES
        if tid == 0:
            init_barriers(ring.full, STAGES, 1)
            init_barriers(ring.empty, STAGES, THREADS)
            nd.fence_mbarrier_init()
        cuda.syncthreads()
        ahead = now = first_state()
        for i in range(-LEAD, TILES):  # negative steps are the prologue
            if tid == 0 and i + LEAD < TILES:
                acquire(ring, ahead)
                commit(ring, ahead, BYTES)
                to = tiles + BYTES * ahead.stage
                start = nd.global_at(data, i + LEAD, BYTES)
                nd.cp_async_bulk_load(to, start, BYTES, full_barrier(ring, ahead))
                ahead = advance(ahead)
            if i >= 0:
                wait(ring, now)
                half = tiles + BYTES * now.stage + TILE_BYTES * warp
                total = work(half, lane, total)
                if lane == 0:
                    release(ring, now)
                now = advance(now)
        out[tid] = total

    return stages_of_a_block


# %% shared_ring wrong: Nobody may read a tile before
def build_shared(stages):
    STAGES, LEAD, THREADS = stages, stages - 1, 2 * LANES
    BYTES, COLUMNS = 2 * TILE_BYTES, 2 * TILE_WORDS
    advance = make_advance(stages)

    @nd.kernel(threads=THREADS)
    def stages_of_a_block(data: nd.u64, out: nd.uint32[:]):
        tile = cuda.shared.array((STAGES, COLUMNS), uint32, alignment=128)
        full = cuda.shared.array(STAGES, uint64)
        empty = cuda.shared.array(STAGES, uint64)
        tiles, ring = nd.shared_address(tile), Ring(nd.shared_address(full), nd.shared_address(empty))
        tid, total = cuda.threadIdx.x, uint32(0)
        warp, lane = tid // LANES, tid % LANES
        if tid == 0:
            init_barriers(ring.full, STAGES, 1)
            init_barriers(ring.empty, STAGES, THREADS)
            nd.fence_mbarrier_init()
        cuda.syncthreads()
        ahead = now = first_state()
        for i in range(-LEAD, TILES):  # negative steps are the prologue
            if tid == 0 and i + LEAD < TILES:
                acquire(ring, ahead)
                commit(ring, ahead, BYTES)
                to = tiles + BYTES * ahead.stage
                start = nd.global_at(data, i + LEAD, BYTES)
                nd.cp_async_bulk_load(to, start, BYTES, full_barrier(ring, ahead))
                ahead = advance(ahead)
            if i >= 0:
                pass
                half = tiles + BYTES * now.stage + TILE_BYTES * warp
                total = work(half, lane, total)
                release(ring, now)
                now = advance(now)
        out[tid] = total

    return stages_of_a_block


# %% shared_ring wrong: for an *empty* stage only
def build_shared(stages):
    STAGES, LEAD, THREADS = stages, stages - 1, 2 * LANES
    BYTES, COLUMNS = 2 * TILE_BYTES, 2 * TILE_WORDS
    advance = make_advance(stages)

    @nd.kernel(threads=THREADS)
    def stages_of_a_block(data: nd.u64, out: nd.uint32[:]):
        tile = cuda.shared.array((STAGES, COLUMNS), uint32, alignment=128)
        full = cuda.shared.array(STAGES, uint64)
        empty = cuda.shared.array(STAGES, uint64)
        tiles, ring = nd.shared_address(tile), Ring(nd.shared_address(full), nd.shared_address(empty))
        tid, total = cuda.threadIdx.x, uint32(0)
        warp, lane = tid // LANES, tid % LANES
        if tid == 0:
            init_barriers(ring.full, STAGES, 1)
            init_barriers(ring.empty, STAGES, THREADS)
            nd.fence_mbarrier_init()
        cuda.syncthreads()
        ahead = now = first_state()
        for i in range(-LEAD, TILES):  # negative steps are the prologue
            if tid == 0 and i + LEAD < TILES:
                wait(ring, ahead)
                commit(ring, ahead, BYTES)
                to = tiles + BYTES * ahead.stage
                start = nd.global_at(data, i + LEAD, BYTES)
                nd.cp_async_bulk_load(to, start, BYTES, full_barrier(ring, ahead))
                ahead = advance(ahead)
            if i >= 0:
                wait(ring, now)
                half = tiles + BYTES * now.stage + TILE_BYTES * warp
                total = work(half, lane, total)
                release(ring, now)
                now = advance(now)
        out[tid] = total

    return stages_of_a_block


# %% shared_ring wrong: in the state `ahead`
def build_shared(stages):
    STAGES, LEAD, THREADS = stages, stages - 1, 2 * LANES
    BYTES, COLUMNS = 2 * TILE_BYTES, 2 * TILE_WORDS
    advance = make_advance(stages)

    @nd.kernel(threads=THREADS)
    def stages_of_a_block(data: nd.u64, out: nd.uint32[:]):
        tile = cuda.shared.array((STAGES, COLUMNS), uint32, alignment=128)
        full = cuda.shared.array(STAGES, uint64)
        empty = cuda.shared.array(STAGES, uint64)
        tiles, ring = nd.shared_address(tile), Ring(nd.shared_address(full), nd.shared_address(empty))
        tid, total = cuda.threadIdx.x, uint32(0)
        warp, lane = tid // LANES, tid % LANES
        if tid == 0:
            init_barriers(ring.full, STAGES, 1)
            init_barriers(ring.empty, STAGES, THREADS)
            nd.fence_mbarrier_init()
        cuda.syncthreads()
        ahead = now = first_state()
        for i in range(-LEAD, TILES):  # negative steps are the prologue
            if tid == 0 and i + LEAD < TILES:
                acquire(ring, now)
                commit(ring, ahead, BYTES)
                to = tiles + BYTES * ahead.stage
                start = nd.global_at(data, i + LEAD, BYTES)
                nd.cp_async_bulk_load(to, start, BYTES, full_barrier(ring, ahead))
                ahead = advance(ahead)
            if i >= 0:
                wait(ring, now)
                half = tiles + BYTES * now.stage + TILE_BYTES * warp
                total = work(half, lane, total)
                release(ring, now)
                now = advance(now)
        out[tid] = total

    return stages_of_a_block


# %% shared_ring wrong: Release the stage that was read
def build_shared(stages):
    STAGES, LEAD, THREADS = stages, stages - 1, 2 * LANES
    BYTES, COLUMNS = 2 * TILE_BYTES, 2 * TILE_WORDS
    advance = make_advance(stages)

    @nd.kernel(threads=THREADS)
    def stages_of_a_block(data: nd.u64, out: nd.uint32[:]):
        tile = cuda.shared.array((STAGES, COLUMNS), uint32, alignment=128)
        full = cuda.shared.array(STAGES, uint64)
        empty = cuda.shared.array(STAGES, uint64)
        tiles, ring = nd.shared_address(tile), Ring(nd.shared_address(full), nd.shared_address(empty))
        tid, total = cuda.threadIdx.x, uint32(0)
        warp, lane = tid // LANES, tid % LANES
        if tid == 0:
            init_barriers(ring.full, STAGES, 1)
            init_barriers(ring.empty, STAGES, THREADS)
            nd.fence_mbarrier_init()
        cuda.syncthreads()
        ahead = now = first_state()
        for i in range(-LEAD, TILES):  # negative steps are the prologue
            if tid == 0 and i + LEAD < TILES:
                acquire(ring, ahead)
                commit(ring, ahead, BYTES)
                to = tiles + BYTES * ahead.stage
                start = nd.global_at(data, i + LEAD, BYTES)
                nd.cp_async_bulk_load(to, start, BYTES, full_barrier(ring, ahead))
                ahead = advance(ahead)
            if i >= 0:
                wait(ring, now)
                half = tiles + BYTES * now.stage + TILE_BYTES * warp
                total = work(half, lane, total)
                release(ring, ahead)
                now = advance(now)
        out[tid] = total

    return stages_of_a_block


# %% shared_ring wrong: nobody arrives on the empty barriers
def build_shared(stages):
    STAGES, LEAD, THREADS = stages, stages - 1, 2 * LANES
    BYTES, COLUMNS = 2 * TILE_BYTES, 2 * TILE_WORDS
    advance = make_advance(stages)

    @nd.kernel(threads=THREADS)
    def stages_of_a_block(data: nd.u64, out: nd.uint32[:]):
        tile = cuda.shared.array((STAGES, COLUMNS), uint32, alignment=128)
        full = cuda.shared.array(STAGES, uint64)
        empty = cuda.shared.array(STAGES, uint64)
        tiles, ring = nd.shared_address(tile), Ring(nd.shared_address(full), nd.shared_address(empty))
        tid, total = cuda.threadIdx.x, uint32(0)
        warp, lane = tid // LANES, tid % LANES
        if tid == 0:
            init_barriers(ring.full, STAGES, 1)
            init_barriers(ring.empty, STAGES, THREADS)
            nd.fence_mbarrier_init()
        cuda.syncthreads()
        ahead = now = first_state()
        for i in range(-LEAD, TILES):  # negative steps are the prologue
            if tid == 0 and i + LEAD < TILES:
                commit(ring, ahead, BYTES)
                to = tiles + BYTES * ahead.stage
                start = nd.global_at(data, i + LEAD, BYTES)
                nd.cp_async_bulk_load(to, start, BYTES, full_barrier(ring, ahead))
                ahead = advance(ahead)
            if i >= 0:
                wait(ring, now)
                half = tiles + BYTES * now.stage + TILE_BYTES * warp
                total = work(half, lane, total)
                cuda.syncthreads()
                now = advance(now)
        out[tid] = total

    return stages_of_a_block


# %% mend
@nd.kernel(threads=LANES)
def mended(data: nd.u64, weights: nd.uint32[:], out: nd.uint32[:]):
    tile = cuda.shared.array((2, LANES), uint32, alignment=128)
    bars = cuda.shared.array(2, uint64)
    tiles, full, lane = nd.shared_address(tile), nd.shared_address(bars), cuda.threadIdx.x
    if lane == 0:
        init_barriers(full, 2, 1)
        nd.fence_mbarrier_init()
        nd.mbarrier_arrive_expect_tx(full, ROW_BYTES)
        nd.cp_async_bulk_load(tiles, data, ROW_BYTES, full)
    cuda.syncwarp()
    meta = cuda.local.array(2, uint32)  # an entry for each stage
    meta[0] = weights[0]
    total = uint32(0)
    for i in range(STEPS):
        ahead, stage = i + 1, i % 2
        if ahead < STEPS:
            if lane == 0:
                slot, bar = tiles + ROW_BYTES * (ahead % 2), full + 8 * (ahead % 2)
                nd.mbarrier_arrive_expect_tx(bar, ROW_BYTES)
                nd.cp_async_bulk_load(slot, nd.global_at(data, ahead, ROW_BYTES), ROW_BYTES, bar)
            meta[ahead % 2] = weights[ahead]
        nd.mbarrier_wait(full + 8 * stage, i // 2 & 1)
        total = total + meta[stage] * tile[stage, lane]
        nd.fence_proxy_async()  # as in our `release`
        cuda.syncwarp()
    out[lane] = total


# %% mend wrong: the other shows
@nd.kernel(threads=LANES)
def mended(data: nd.u64, weights: nd.uint32[:], out: nd.uint32[:]):
    tile = cuda.shared.array((2, LANES), uint32, alignment=128)
    bars = cuda.shared.array(2, uint64)
    tiles, full, lane = nd.shared_address(tile), nd.shared_address(bars), cuda.threadIdx.x
    if lane == 0:
        init_barriers(full, 2, 1)
        nd.fence_mbarrier_init()
        nd.mbarrier_arrive_expect_tx(full, ROW_BYTES)
        nd.cp_async_bulk_load(tiles, data, ROW_BYTES, full)
    cuda.syncwarp()
    meta = cuda.local.array(2, uint32)  # an entry for each stage
    meta[0] = weights[0]
    total = uint32(0)
    for i in range(STEPS):
        ahead, stage = i + 1, i % 2
        if ahead < STEPS:
            if lane == 0:
                slot, bar = tiles + ROW_BYTES * (ahead % 2), full + 8 * (ahead % 2)
                nd.mbarrier_arrive_expect_tx(bar, ROW_BYTES)
                nd.cp_async_bulk_load(slot, nd.global_at(data, ahead, ROW_BYTES), ROW_BYTES, bar)
            meta[ahead % 2] = weights[ahead]
        nd.mbarrier_wait(full + 8 * stage, i // 2 & 1)
        total = total + meta[stage] * tile[stage, lane]
        nd.fence_proxy_async()  # as in our `release`
        pass
    out[lane] = total


# %% mend wrong: not in the entry that is read here
@nd.kernel(threads=LANES)
def mended(data: nd.u64, weights: nd.uint32[:], out: nd.uint32[:]):
    tile = cuda.shared.array((2, LANES), uint32, alignment=128)
    bars = cuda.shared.array(2, uint64)
    tiles, full, lane = nd.shared_address(tile), nd.shared_address(bars), cuda.threadIdx.x
    if lane == 0:
        init_barriers(full, 2, 1)
        nd.fence_mbarrier_init()
        nd.mbarrier_arrive_expect_tx(full, ROW_BYTES)
        nd.cp_async_bulk_load(tiles, data, ROW_BYTES, full)
    cuda.syncwarp()
    meta = cuda.local.array(2, uint32)  # an entry for each stage
    meta[0] = weights[0]
    total = uint32(0)
    for i in range(STEPS):
        ahead, stage = i + 1, i % 2
        if ahead < STEPS:
            if lane == 0:
                slot, bar = tiles + ROW_BYTES * (ahead % 2), full + 8 * (ahead % 2)
                nd.mbarrier_arrive_expect_tx(bar, ROW_BYTES)
                nd.cp_async_bulk_load(slot, nd.global_at(data, ahead, ROW_BYTES), ROW_BYTES, bar)
            entry = cuda.local.array(1, uint32)
            entry[0] = weights[ahead]
        nd.mbarrier_wait(full + 8 * stage, i // 2 & 1)
        total = total + meta[stage] * tile[stage, lane]
        nd.fence_proxy_async()  # as in our `release`
        cuda.syncwarp()
    out[lane] = total


# %% mend wrong: overwritten
@nd.kernel(threads=LANES)
def mended(data: nd.u64, weights: nd.uint32[:], out: nd.uint32[:]):
    tile = cuda.shared.array((2, LANES), uint32, alignment=128)
    bars = cuda.shared.array(2, uint64)
    tiles, full, lane = nd.shared_address(tile), nd.shared_address(bars), cuda.threadIdx.x
    if lane == 0:
        init_barriers(full, 2, 1)
        nd.fence_mbarrier_init()
        nd.mbarrier_arrive_expect_tx(full, ROW_BYTES)
        nd.cp_async_bulk_load(tiles, data, ROW_BYTES, full)
    cuda.syncwarp()
    meta = cuda.local.array(2, uint32)  # an entry for each stage
    meta[0] = weights[0]
    total = uint32(0)
    for i in range(STEPS):
        ahead, stage = i + 1, i % 2
        if ahead < STEPS:
            if lane == 0:
                slot, bar = tiles + ROW_BYTES * (ahead % 2), full + 8 * (ahead % 2)
                nd.mbarrier_arrive_expect_tx(bar, ROW_BYTES)
                nd.cp_async_bulk_load(slot, nd.global_at(data, ahead, ROW_BYTES), ROW_BYTES, bar)
            meta[stage] = weights[ahead]
        nd.mbarrier_wait(full + 8 * stage, i // 2 & 1)
        total = total + meta[stage] * tile[stage, lane]
        nd.fence_proxy_async()  # as in our `release`
        cuda.syncwarp()
    out[lane] = total


# %% mend wrong: what the kernel's authors tried
@nd.kernel(threads=LANES)
def mended(data: nd.u64, weights: nd.uint32[:], out: nd.uint32[:]):
    tile = cuda.shared.array((2, LANES), uint32, alignment=128)
    bars = cuda.shared.array(2, uint64)
    tiles, full, lane = nd.shared_address(tile), nd.shared_address(bars), cuda.threadIdx.x
    if lane == 0:
        init_barriers(full, 2, 1)
        nd.fence_mbarrier_init()
        nd.mbarrier_arrive_expect_tx(full, ROW_BYTES)
        nd.cp_async_bulk_load(tiles, data, ROW_BYTES, full)
    cuda.syncwarp()
    meta = cuda.local.array(2, uint32)  # an entry for each stage
    meta[0] = weights[0]
    total = uint32(0)
    for i in range(STEPS):
        ahead, stage = i + 1, i % 2
        if ahead < STEPS:
            if lane == 0:
                slot, bar = tiles + ROW_BYTES * (ahead % 2), full + 8 * (ahead % 2)
                nd.mbarrier_arrive_expect_tx(bar, ROW_BYTES)
                nd.cp_async_bulk_load(slot, nd.global_at(data, ahead, ROW_BYTES), ROW_BYTES, bar)
            meta[ahead % 2] = weights[ahead]
        nd.mbarrier_wait(full + 8 * stage, i // 2 & 1)
        total = total + meta[stage] * tile[stage, lane]
        nd.fence_proxy_async()  # as in our `release`
        cuda.syncwarp()
        if lane == 0:
            init_barriers(full + 8 * stage, 1, 1)
    out[lane] = total


# %% mend wrong: Which stage has the tile
@nd.kernel(threads=LANES)
def mended(data: nd.u64, weights: nd.uint32[:], out: nd.uint32[:]):
    tile = cuda.shared.array((2, LANES), uint32, alignment=128)
    bars = cuda.shared.array(2, uint64)
    tiles, full, lane = nd.shared_address(tile), nd.shared_address(bars), cuda.threadIdx.x
    if lane == 0:
        init_barriers(full, 2, 1)
        nd.fence_mbarrier_init()
        nd.mbarrier_arrive_expect_tx(full, ROW_BYTES)
        nd.cp_async_bulk_load(tiles, data, ROW_BYTES, full)
    cuda.syncwarp()
    meta = cuda.local.array(2, uint32)  # an entry for each stage
    meta[0] = weights[0]
    total = uint32(0)
    for i in range(STEPS):
        ahead, stage = i + 1, i % 2
        if ahead < STEPS:
            if lane == 0:
                slot, bar = tiles + ROW_BYTES * (ahead % 2), full + 8 * (ahead % 2)
                nd.mbarrier_arrive_expect_tx(bar, ROW_BYTES)
                nd.cp_async_bulk_load(slot, nd.global_at(data, ahead, ROW_BYTES), ROW_BYTES, bar)
            meta[ahead] = weights[ahead]
        nd.mbarrier_wait(full + 8 * stage, i // 2 & 1)
        total = total + meta[stage] * tile[stage, lane]
        nd.fence_proxy_async()  # as in our `release`
        cuda.syncwarp()
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

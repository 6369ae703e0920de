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
# # Solutions of lesson 6, with the mistakes that are made most often
#
# Each cell stands in place of the exercise's cell in the notebook. After `wrong:` are words of the check's
# answer. The tests run them all.

# %% standstill
producer = "empty"
consumers = "full"
tiles = 2

# %% standstill wrong: The producer never waits on full
producer = "full"
consumers = "full"
tiles = 2

# %% standstill wrong: The consumers never wait on empty
producer = "empty"
consumers = "empty"
tiles = 2

# %% standstill wrong: Some tiles do get through
producer = "empty"
consumers = "full"
tiles = 0

# %% standstill wrong: the kernel would have ended
producer = "empty"
consumers = "full"
tiles = 6


# %% arrivals
@nd.kernel(threads=32 + READERS)
def roles(data: nd.u64, out: nd.u64):
    tile = cuda.shared.array((STAGES, READERS), uint32, alignment=128)
    full_bars = cuda.shared.array(STAGES, uint64)
    empty_bars = cuda.shared.array(STAGES, uint64)
    tiles = nd.shared_address(tile)
    full, empty = nd.shared_address(full_bars), nd.shared_address(empty_bars)
    tid = int32(cuda.threadIdx.x)
    if tid == 0:
        init_barriers(full, STAGES, 1)  # A
        init_barriers(empty, STAGES, 2)  # B
        nd.fence_mbarrier_init()
    cuda.syncthreads()
    if tid == 0:  # the producer
        for i in range(ITEMS):
            stage, parity = i % STAGES, (i // STAGES) & 1
            slot, bar = tiles + TILE_BYTES * stage, full + 8 * stage
            nd.mbarrier_wait(empty + 8 * stage, parity ^ 1)  # C
            nd.mbarrier_arrive_expect_tx(bar, TILE_BYTES)
            nd.cp_async_bulk_load(slot, data + uint64(TILE_BYTES * i), TILE_BYTES, bar)
    elif tid >= 32:  # the consumers
        reader, total = int32(tid - 32), uint32(0)
        for i in range(ITEMS):
            stage, parity = i % STAGES, (i // STAGES) & 1
            nd.mbarrier_wait(full + 8 * stage, parity)  # D
            total += tile[stage, reader]
            cuda.syncwarp()
            if reader % 32 == 0:
                nd.mbarrier_arrive(empty + 8 * stage)  # E
        nd.st_global_b32(out + uint64(4 * reader), uint32(total))


# %% arrivals wrong: That is too few
@nd.kernel(threads=32 + READERS)
def roles(data: nd.u64, out: nd.u64):
    tile = cuda.shared.array((STAGES, READERS), uint32, alignment=128)
    full_bars = cuda.shared.array(STAGES, uint64)
    empty_bars = cuda.shared.array(STAGES, uint64)
    tiles = nd.shared_address(tile)
    full, empty = nd.shared_address(full_bars), nd.shared_address(empty_bars)
    tid = int32(cuda.threadIdx.x)
    if tid == 0:
        init_barriers(full, STAGES, 1)  # A
        init_barriers(empty, STAGES, 1)  # B
        nd.fence_mbarrier_init()
    cuda.syncthreads()
    if tid == 0:  # the producer
        for i in range(ITEMS):
            stage, parity = i % STAGES, (i // STAGES) & 1
            slot, bar = tiles + TILE_BYTES * stage, full + 8 * stage
            nd.mbarrier_wait(empty + 8 * stage, parity ^ 1)  # C
            nd.mbarrier_arrive_expect_tx(bar, TILE_BYTES)
            nd.cp_async_bulk_load(slot, data + uint64(TILE_BYTES * i), TILE_BYTES, bar)
    elif tid >= 32:  # the consumers
        reader, total = int32(tid - 32), uint32(0)
        for i in range(ITEMS):
            stage, parity = i % STAGES, (i // STAGES) & 1
            nd.mbarrier_wait(full + 8 * stage, parity)  # D
            total += tile[stage, reader]
            cuda.syncwarp()
            if reader % 32 == 0:
                nd.mbarrier_arrive(empty + 8 * stage)  # E
        nd.st_global_b32(out + uint64(4 * reader), uint32(total))


# %% arrivals wrong: pending 62 of 64
@nd.kernel(threads=32 + READERS)
def roles(data: nd.u64, out: nd.u64):
    tile = cuda.shared.array((STAGES, READERS), uint32, alignment=128)
    full_bars = cuda.shared.array(STAGES, uint64)
    empty_bars = cuda.shared.array(STAGES, uint64)
    tiles = nd.shared_address(tile)
    full, empty = nd.shared_address(full_bars), nd.shared_address(empty_bars)
    tid = int32(cuda.threadIdx.x)
    if tid == 0:
        init_barriers(full, STAGES, 1)  # A
        init_barriers(empty, STAGES, READERS)  # B
        nd.fence_mbarrier_init()
    cuda.syncthreads()
    if tid == 0:  # the producer
        for i in range(ITEMS):
            stage, parity = i % STAGES, (i // STAGES) & 1
            slot, bar = tiles + TILE_BYTES * stage, full + 8 * stage
            nd.mbarrier_wait(empty + 8 * stage, parity ^ 1)  # C
            nd.mbarrier_arrive_expect_tx(bar, TILE_BYTES)
            nd.cp_async_bulk_load(slot, data + uint64(TILE_BYTES * i), TILE_BYTES, bar)
    elif tid >= 32:  # the consumers
        reader, total = int32(tid - 32), uint32(0)
        for i in range(ITEMS):
            stage, parity = i % STAGES, (i // STAGES) & 1
            nd.mbarrier_wait(full + 8 * stage, parity)  # D
            total += tile[stage, reader]
            cuda.syncwarp()
            if reader % 32 == 0:
                nd.mbarrier_arrive(empty + 8 * stage)  # E
        nd.st_global_b32(out + uint64(4 * reader), uint32(total))


# %% arrivals wrong: the producer does not arrive on empty
@nd.kernel(threads=32 + READERS)
def roles(data: nd.u64, out: nd.u64):
    tile = cuda.shared.array((STAGES, READERS), uint32, alignment=128)
    full_bars = cuda.shared.array(STAGES, uint64)
    empty_bars = cuda.shared.array(STAGES, uint64)
    tiles = nd.shared_address(tile)
    full, empty = nd.shared_address(full_bars), nd.shared_address(empty_bars)
    tid = int32(cuda.threadIdx.x)
    if tid == 0:
        init_barriers(full, STAGES, 1)  # A
        init_barriers(empty, STAGES, 3)  # B
        nd.fence_mbarrier_init()
    cuda.syncthreads()
    if tid == 0:  # the producer
        for i in range(ITEMS):
            stage, parity = i % STAGES, (i // STAGES) & 1
            slot, bar = tiles + TILE_BYTES * stage, full + 8 * stage
            nd.mbarrier_wait(empty + 8 * stage, parity ^ 1)  # C
            nd.mbarrier_arrive_expect_tx(bar, TILE_BYTES)
            nd.cp_async_bulk_load(slot, data + uint64(TILE_BYTES * i), TILE_BYTES, bar)
    elif tid >= 32:  # the consumers
        reader, total = int32(tid - 32), uint32(0)
        for i in range(ITEMS):
            stage, parity = i % STAGES, (i // STAGES) & 1
            nd.mbarrier_wait(full + 8 * stage, parity)  # D
            total += tile[stage, reader]
            cuda.syncwarp()
            if reader % 32 == 0:
                nd.mbarrier_arrive(empty + 8 * stage)  # E
        nd.st_global_b32(out + uint64(4 * reader), uint32(total))


# %% race
lines = ("B", "D")
later = 1

# %% race wrong: Who reads the bytes
lines = ("B", "C")
later = 1

# %% race wrong: A touches only the barrier
lines = ("A", "D")
later = 1

# %% race wrong: puts these two in order
lines = ("C", "D")
later = 0

# %% race wrong: it is asked for one ahead
lines = ("D", "B")
later = 2

# %% race wrong: the *other* stage
lines = ("D", "B")
later = 0


# %% warp_sync
@nd.kernel(threads=LANES)
def pipeline(data: nd.u64, out: nd.u64):
    tile = cuda.shared.array((STAGES, LANES), uint32, alignment=128)
    full_bars = cuda.shared.array(STAGES, uint64)
    tiles, full = nd.shared_address(tile), nd.shared_address(full_bars)
    lane = int32(cuda.threadIdx.x)
    if lane == 0:
        init_barriers(full, STAGES, 1)
        nd.fence_mbarrier_init()
        nd.mbarrier_arrive_expect_tx(full, ROW_BYTES)  # prologue: tile 0
        nd.cp_async_bulk_load(tiles, data, ROW_BYTES, full)
    cuda.syncwarp()
    total = uint32(0)
    for i in range(ITEMS):
        ahead = i + 1
        if lane == 0 and ahead < ITEMS:
            slot, bar = tiles + ROW_BYTES * (ahead % STAGES), full + 8 * (ahead % STAGES)
            nd.mbarrier_arrive_expect_tx(bar, ROW_BYTES)  # A
            nd.cp_async_bulk_load(slot, data + uint64(ROW_BYTES * ahead), ROW_BYTES, bar)  # B
        stage, parity = i % STAGES, (i // STAGES) & 1
        nd.mbarrier_wait(full + 8 * stage, parity)  # C
        total += tile[stage, lane]  # D
        cuda.syncwarp()
    nd.st_global_b32(out + uint64(4 * lane), uint32(total))


# %% warp_sync wrong: A fence orders what *one* thread does
@nd.kernel(threads=LANES)
def pipeline(data: nd.u64, out: nd.u64):
    tile = cuda.shared.array((STAGES, LANES), uint32, alignment=128)
    full_bars = cuda.shared.array(STAGES, uint64)
    tiles, full = nd.shared_address(tile), nd.shared_address(full_bars)
    lane = int32(cuda.threadIdx.x)
    if lane == 0:
        init_barriers(full, STAGES, 1)
        nd.fence_mbarrier_init()
        nd.mbarrier_arrive_expect_tx(full, ROW_BYTES)  # prologue: tile 0
        nd.cp_async_bulk_load(tiles, data, ROW_BYTES, full)
    cuda.syncwarp()
    total = uint32(0)
    for i in range(ITEMS):
        ahead = i + 1
        if lane == 0 and ahead < ITEMS:
            slot, bar = tiles + ROW_BYTES * (ahead % STAGES), full + 8 * (ahead % STAGES)
            nd.mbarrier_arrive_expect_tx(bar, ROW_BYTES)  # A
            nd.cp_async_bulk_load(slot, data + uint64(ROW_BYTES * ahead), ROW_BYTES, bar)  # B
        stage, parity = i % STAGES, (i // STAGES) & 1
        nd.mbarrier_wait(full + 8 * stage, parity)  # C
        total += tile[stage, lane]  # D
        nd.fence_proxy_async()
    nd.st_global_b32(out + uint64(4 * lane), uint32(total))


# %% warp_sync wrong: Waiting for full once more
@nd.kernel(threads=LANES)
def pipeline(data: nd.u64, out: nd.u64):
    tile = cuda.shared.array((STAGES, LANES), uint32, alignment=128)
    full_bars = cuda.shared.array(STAGES, uint64)
    tiles, full = nd.shared_address(tile), nd.shared_address(full_bars)
    lane = int32(cuda.threadIdx.x)
    if lane == 0:
        init_barriers(full, STAGES, 1)
        nd.fence_mbarrier_init()
        nd.mbarrier_arrive_expect_tx(full, ROW_BYTES)  # prologue: tile 0
        nd.cp_async_bulk_load(tiles, data, ROW_BYTES, full)
    cuda.syncwarp()
    total = uint32(0)
    for i in range(ITEMS):
        ahead = i + 1
        if lane == 0 and ahead < ITEMS:
            slot, bar = tiles + ROW_BYTES * (ahead % STAGES), full + 8 * (ahead % STAGES)
            nd.mbarrier_arrive_expect_tx(bar, ROW_BYTES)  # A
            nd.cp_async_bulk_load(slot, data + uint64(ROW_BYTES * ahead), ROW_BYTES, bar)  # B
        stage, parity = i % STAGES, (i // STAGES) & 1
        nd.mbarrier_wait(full + 8 * stage, parity)  # C
        total += tile[stage, lane]  # D
        nd.mbarrier_wait(full + 8 * stage, parity)
    nd.st_global_b32(out + uint64(4 * lane), uint32(total))


# %% warp_sync wrong: One lane alone cannot meet the others
@nd.kernel(threads=LANES)
def pipeline(data: nd.u64, out: nd.u64):
    tile = cuda.shared.array((STAGES, LANES), uint32, alignment=128)
    full_bars = cuda.shared.array(STAGES, uint64)
    tiles, full = nd.shared_address(tile), nd.shared_address(full_bars)
    lane = int32(cuda.threadIdx.x)
    if lane == 0:
        init_barriers(full, STAGES, 1)
        nd.fence_mbarrier_init()
        nd.mbarrier_arrive_expect_tx(full, ROW_BYTES)  # prologue: tile 0
        nd.cp_async_bulk_load(tiles, data, ROW_BYTES, full)
    cuda.syncwarp()
    total = uint32(0)
    for i in range(ITEMS):
        ahead = i + 1
        if lane == 0 and ahead < ITEMS:
            slot, bar = tiles + ROW_BYTES * (ahead % STAGES), full + 8 * (ahead % STAGES)
            nd.mbarrier_arrive_expect_tx(bar, ROW_BYTES)  # A
            nd.cp_async_bulk_load(slot, data + uint64(ROW_BYTES * ahead), ROW_BYTES, bar)  # B
        stage, parity = i % STAGES, (i // STAGES) & 1
        nd.mbarrier_wait(full + 8 * stage, parity)  # C
        total += tile[stage, lane]  # D
        if lane == 0:
            cuda.syncwarp()
    nd.st_global_b32(out + uint64(4 * lane), uint32(total))


# %% tail
hangs = [96, 200]

# %% tail wrong: one warp of its second block leaves as a whole
hangs = [200]

# %% tail wrong: its fourth block has 8 queries
hangs = [96]

# %% tail wrong: fill their blocks to the last thread
hangs = [64, 96, 128, 200]


# %% rounds
@nd.kernel(threads=THREADS)
def weighted(weights: nd.u64, data: nd.u64, out: nd.u64, queries: nd.i32):
    metadata = cuda.shared.array(POINTS, uint32)
    bars = cuda.shared.array(1, uint64)
    bar, tid = nd.shared_address(bars), int32(cuda.threadIdx.x)
    query = int32(cuda.blockIdx.x * THREADS + tid)
    if tid == 0:
        nd.mbarrier_init(bar, THREADS)
    cuda.syncthreads()
    number, total = uint32(0), uint32(0)
    if query < queries:
        number = nd.ld_global_b32(data + uint64(4 * query))
    my_rounds = POINTS
    for point in range(my_rounds):
        if tid == 0:
            metadata[point] = nd.ld_global_b32(weights + uint64(4 * point))
        nd.mbarrier_arrive(bar)
        nd.mbarrier_wait(bar, point & 1)
        total += metadata[point] * number
    if query < queries:
        nd.st_global_b32(out + uint64(4 * query), uint32(total))


# %% rounds wrong: the same fault in other words
@nd.kernel(threads=THREADS)
def weighted(weights: nd.u64, data: nd.u64, out: nd.u64, queries: nd.i32):
    metadata = cuda.shared.array(POINTS, uint32)
    bars = cuda.shared.array(1, uint64)
    bar, tid = nd.shared_address(bars), int32(cuda.threadIdx.x)
    query = int32(cuda.blockIdx.x * THREADS + tid)
    if tid == 0:
        nd.mbarrier_init(bar, THREADS)
    cuda.syncthreads()
    number, total = uint32(0), uint32(0)
    if query < queries:
        number = nd.ld_global_b32(data + uint64(4 * query))
    my_rounds = POINTS if query < queries else 0
    for point in range(my_rounds):
        if tid == 0:
            metadata[point] = nd.ld_global_b32(weights + uint64(4 * point))
        nd.mbarrier_arrive(bar)
        nd.mbarrier_wait(bar, point & 1)
        total += metadata[point] * number
    if query < queries:
        nd.st_global_b32(out + uint64(4 * query), uint32(total))


# %% rounds wrong: stay away from a later one
@nd.kernel(threads=THREADS)
def weighted(weights: nd.u64, data: nd.u64, out: nd.u64, queries: nd.i32):
    metadata = cuda.shared.array(POINTS, uint32)
    bars = cuda.shared.array(1, uint64)
    bar, tid = nd.shared_address(bars), int32(cuda.threadIdx.x)
    query = int32(cuda.blockIdx.x * THREADS + tid)
    if tid == 0:
        nd.mbarrier_init(bar, THREADS)
    cuda.syncthreads()
    number, total = uint32(0), uint32(0)
    if query < queries:
        number = nd.ld_global_b32(data + uint64(4 * query))
    my_rounds = POINTS if query < queries else 1
    for point in range(my_rounds):
        if tid == 0:
            metadata[point] = nd.ld_global_b32(weights + uint64(4 * point))
        nd.mbarrier_arrive(bar)
        nd.mbarrier_wait(bar, point & 1)
        total += metadata[point] * number
    if query < queries:
        nd.st_global_b32(out + uint64(4 * query), uint32(total))


# %% rounds wrong: Each of the four points has to be added
@nd.kernel(threads=THREADS)
def weighted(weights: nd.u64, data: nd.u64, out: nd.u64, queries: nd.i32):
    metadata = cuda.shared.array(POINTS, uint32)
    bars = cuda.shared.array(1, uint64)
    bar, tid = nd.shared_address(bars), int32(cuda.threadIdx.x)
    query = int32(cuda.blockIdx.x * THREADS + tid)
    if tid == 0:
        nd.mbarrier_init(bar, THREADS)
    cuda.syncthreads()
    number, total = uint32(0), uint32(0)
    if query < queries:
        number = nd.ld_global_b32(data + uint64(4 * query))
    my_rounds = POINTS - 1
    for point in range(my_rounds):
        if tid == 0:
            metadata[point] = nd.ld_global_b32(weights + uint64(4 * point))
        nd.mbarrier_arrive(bar)
        nd.mbarrier_wait(bar, point & 1)
        total += metadata[point] * number
    if query < queries:
        nd.st_global_b32(out + uint64(4 * query), uint32(total))


# %% order
place = "between A and C"

# %% order wrong: Before A the flag is EMPTY
place = "before A"

# %% order wrong: It was set with release
place = "after C"


# %% ready
@nd.kernel(threads=64)
def mailbox(data: nd.u64, out: nd.u64):
    box = cuda.shared.array(1, uint32)
    flags = cuda.shared.array(1, uint32)
    flag, tid = nd.shared_address(flags), int32(cuda.threadIdx.x)
    if tid == 0:
        flags[0] = EMPTY
    cuda.syncthreads()
    if tid == 0:  # the producer
        nd.st_release_cta_shared_b32(flag, uint32(WRITING))  # A
        box[0] = nd.ld_global_b32(data)  # B
        nd.st_release_cta_shared_b32(flag, uint32(READY))  # C
    elif tid == 32:  # the consumer
        seen = nd.ld_acquire_cta_shared_b32(flag)  # D
        taken = seen == READY
        number = uint32(0)
        if taken:
            number = uint32(box[0])  # E
        else:
            number = nd.ld_global_b32(data)
        nd.st_global_b32(out, number)
        nd.st_global_b32(out + uint64(4), uint32(taken))


# %% ready wrong: as soon as the producer has begun
@nd.kernel(threads=64)
def mailbox(data: nd.u64, out: nd.u64):
    box = cuda.shared.array(1, uint32)
    flags = cuda.shared.array(1, uint32)
    flag, tid = nd.shared_address(flags), int32(cuda.threadIdx.x)
    if tid == 0:
        flags[0] = EMPTY
    cuda.syncthreads()
    if tid == 0:  # the producer
        nd.st_release_cta_shared_b32(flag, uint32(WRITING))  # A
        box[0] = nd.ld_global_b32(data)  # B
        nd.st_release_cta_shared_b32(flag, uint32(READY))  # C
    elif tid == 32:  # the consumer
        seen = nd.ld_acquire_cta_shared_b32(flag)  # D
        taken = seen > EMPTY
        number = uint32(0)
        if taken:
            number = uint32(box[0])  # E
        else:
            number = nd.ld_global_b32(data)
        nd.st_global_b32(out, number)
        nd.st_global_b32(out + uint64(4), uint32(taken))


# %% ready wrong: just when it must not be
@nd.kernel(threads=64)
def mailbox(data: nd.u64, out: nd.u64):
    box = cuda.shared.array(1, uint32)
    flags = cuda.shared.array(1, uint32)
    flag, tid = nd.shared_address(flags), int32(cuda.threadIdx.x)
    if tid == 0:
        flags[0] = EMPTY
    cuda.syncthreads()
    if tid == 0:  # the producer
        nd.st_release_cta_shared_b32(flag, uint32(WRITING))  # A
        box[0] = nd.ld_global_b32(data)  # B
        nd.st_release_cta_shared_b32(flag, uint32(READY))  # C
    elif tid == 32:  # the consumer
        seen = nd.ld_acquire_cta_shared_b32(flag)  # D
        taken = seen == WRITING
        number = uint32(0)
        if taken:
            number = uint32(box[0])  # E
        else:
            number = nd.ld_global_b32(data)
        nd.st_global_b32(out, number)
        nd.st_global_b32(out + uint64(4), uint32(taken))


# %% ready wrong: So it is of no use
@nd.kernel(threads=64)
def mailbox(data: nd.u64, out: nd.u64):
    box = cuda.shared.array(1, uint32)
    flags = cuda.shared.array(1, uint32)
    flag, tid = nd.shared_address(flags), int32(cuda.threadIdx.x)
    if tid == 0:
        flags[0] = EMPTY
    cuda.syncthreads()
    if tid == 0:  # the producer
        nd.st_release_cta_shared_b32(flag, uint32(WRITING))  # A
        box[0] = nd.ld_global_b32(data)  # B
        nd.st_release_cta_shared_b32(flag, uint32(READY))  # C
    elif tid == 32:  # the consumer
        seen = nd.ld_acquire_cta_shared_b32(flag)  # D
        taken = seen > READY
        number = uint32(0)
        if taken:
            number = uint32(box[0])  # E
        else:
            number = nd.ld_global_b32(data)
        nd.st_global_b32(out, number)
        nd.st_global_b32(out + uint64(4), uint32(taken))


# %% notice
who = ["CPU engine"]

# %% notice wrong: racecheck says nothing
who = ["racecheck", "CPU engine"]

# %% notice wrong: all numbers were right, by luck
who = ["numbers"]

# %% notice wrong: have nothing to say
who = ["initcheck"]

# %% notice wrong: Somebody does notice
who = []


# %% proxy_fence
@nd.kernel(threads=LANES)
def add_one(data: nd.u64, out: nd.u64):
    tile = cuda.shared.array(LANES, uint32, alignment=128)
    lane = int32(cuda.threadIdx.x)
    tile[lane] = uint32(nd.ld_global_b32(data + uint64(4 * lane)) + uint32(1))
    nd.fence_proxy_async()
    cuda.syncwarp()
    if lane == 0:
        nd.cp_async_bulk_store(out, nd.shared_address(tile), ROW_BYTES)
        nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group(uint32(0))


# %% proxy_fence wrong: in one lane only
@nd.kernel(threads=LANES)
def add_one(data: nd.u64, out: nd.u64):
    tile = cuda.shared.array(LANES, uint32, alignment=128)
    lane = int32(cuda.threadIdx.x)
    tile[lane] = uint32(nd.ld_global_b32(data + uint64(4 * lane)) + uint32(1))
    if lane == 0:
        nd.fence_proxy_async()
    cuda.syncwarp()
    if lane == 0:
        nd.cp_async_bulk_store(out, nd.shared_address(tile), ROW_BYTES)
        nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group(uint32(0))


# %% proxy_fence wrong: new barriers, and nothing else
@nd.kernel(threads=LANES)
def add_one(data: nd.u64, out: nd.u64):
    tile = cuda.shared.array(LANES, uint32, alignment=128)
    lane = int32(cuda.threadIdx.x)
    tile[lane] = uint32(nd.ld_global_b32(data + uint64(4 * lane)) + uint32(1))
    nd.fence_mbarrier_init()
    cuda.syncwarp()
    if lane == 0:
        nd.cp_async_bulk_store(out, nd.shared_address(tile), ROW_BYTES)
        nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group(uint32(0))


# %% proxy_fence wrong: orders ordinary accesses among themselves
@nd.kernel(threads=LANES)
def add_one(data: nd.u64, out: nd.u64):
    tile = cuda.shared.array(LANES, uint32, alignment=128)
    lane = int32(cuda.threadIdx.x)
    tile[lane] = uint32(nd.ld_global_b32(data + uint64(4 * lane)) + uint32(1))
    cuda.threadfence()
    cuda.syncwarp()
    if lane == 0:
        nd.cp_async_bulk_store(out, nd.shared_address(tile), ROW_BYTES)
        nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group(uint32(0))

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
empty = 2

# %% arrivals wrong: That is too few
empty = 1

# %% arrivals wrong: pending 62 of 64
empty = READERS

# %% arrivals wrong: the producer does not arrive on empty
empty = 3


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
@nd.kernel(threads=LANES, shared=rows)
def pipeline(data: nd.u64, out: nd.uint32[:]):
    rows.init()
    tile, lane, total = rows.tile.view(), nd.lane(), uint32(0)
    state = ring.start()
    if lane == 0:  # prologue: tile 0
        ring.expect(state, ROW_BYTES)
        nd.cp_async_bulk_load(rows.tile.at(0), data, ROW_BYTES, ring.full(state))
    for i in range(ITEMS):
        ahead = ring.advance(state)
        if lane == 0 and i + 1 < ITEMS:
            slot, row = rows.tile.at(ahead.stage), nd.global_at(data, i + 1, ROW_BYTES)
            ring.expect(ahead, ROW_BYTES)  # A
            nd.cp_async_bulk_load(slot, row, ROW_BYTES, ring.full(ahead))  # B
        ring.wait(state)  # C
        total += tile[state.stage, lane]  # D
        nd.fence_proxy_async()  # what this lane has read may be overwritten: see the fifth pipeline
        cuda.syncwarp()
        state = ahead
    out[lane] = total


# %% warp_sync wrong: A fence orders what *one* thread does
@nd.kernel(threads=LANES, shared=rows)
def pipeline(data: nd.u64, out: nd.uint32[:]):
    rows.init()
    tile, lane, total = rows.tile.view(), nd.lane(), uint32(0)
    state = ring.start()
    if lane == 0:  # prologue: tile 0
        ring.expect(state, ROW_BYTES)
        nd.cp_async_bulk_load(rows.tile.at(0), data, ROW_BYTES, ring.full(state))
    for i in range(ITEMS):
        ahead = ring.advance(state)
        if lane == 0 and i + 1 < ITEMS:
            slot, row = rows.tile.at(ahead.stage), nd.global_at(data, i + 1, ROW_BYTES)
            ring.expect(ahead, ROW_BYTES)  # A
            nd.cp_async_bulk_load(slot, row, ROW_BYTES, ring.full(ahead))  # B
        ring.wait(state)  # C
        total += tile[state.stage, lane]  # D
        nd.fence_proxy_async()  # what this lane has read may be overwritten: see the fifth pipeline
        nd.fence_proxy_async()
        state = ahead
    out[lane] = total


# %% warp_sync wrong: A wait for full says that a tile has come
@nd.kernel(threads=LANES, shared=rows)
def pipeline(data: nd.u64, out: nd.uint32[:]):
    rows.init()
    tile, lane, total = rows.tile.view(), nd.lane(), uint32(0)
    state = ring.start()
    if lane == 0:  # prologue: tile 0
        ring.expect(state, ROW_BYTES)
        nd.cp_async_bulk_load(rows.tile.at(0), data, ROW_BYTES, ring.full(state))
    for i in range(ITEMS):
        ahead = ring.advance(state)
        if lane == 0 and i + 1 < ITEMS:
            slot, row = rows.tile.at(ahead.stage), nd.global_at(data, i + 1, ROW_BYTES)
            ring.expect(ahead, ROW_BYTES)  # A
            nd.cp_async_bulk_load(slot, row, ROW_BYTES, ring.full(ahead))  # B
        ring.wait(state)  # C
        total += tile[state.stage, lane]  # D
        nd.fence_proxy_async()  # what this lane has read may be overwritten: see the fifth pipeline
        ring.wait(state)
        state = ahead
    out[lane] = total


# %% warp_sync wrong: One lane alone cannot meet the others
@nd.kernel(threads=LANES, shared=rows)
def pipeline(data: nd.u64, out: nd.uint32[:]):
    rows.init()
    tile, lane, total = rows.tile.view(), nd.lane(), uint32(0)
    state = ring.start()
    if lane == 0:  # prologue: tile 0
        ring.expect(state, ROW_BYTES)
        nd.cp_async_bulk_load(rows.tile.at(0), data, ROW_BYTES, ring.full(state))
    for i in range(ITEMS):
        ahead = ring.advance(state)
        if lane == 0 and i + 1 < ITEMS:
            slot, row = rows.tile.at(ahead.stage), nd.global_at(data, i + 1, ROW_BYTES)
            ring.expect(ahead, ROW_BYTES)  # A
            nd.cp_async_bulk_load(slot, row, ROW_BYTES, ring.full(ahead))  # B
        ring.wait(state)  # C
        total += tile[state.stage, lane]  # D
        nd.fence_proxy_async()  # what this lane has read may be overwritten: see the fifth pipeline
        if lane == 0:
            cuda.syncwarp()
        state = ahead
    out[lane] = total


# %% tail
hangs = [96, 200]

# %% tail wrong: one warp of its second block leaves as a whole
hangs = [200]

# %% tail wrong: its fourth block has 8 queries
hangs = [96]

# %% tail wrong: fill their blocks to the last thread
hangs = [64, 96, 128, 200]


# %% rounds
@nd.kernel(threads=THREADS, shared=points)
def weighted(weights: nd.uint32[:], data: nd.uint32[:], out: nd.uint32[:], queries: nd.i32):
    points.init()
    weight, tid, total = points.weight.view(), cuda.threadIdx.x, uint32(0)
    query = cuda.blockIdx.x * THREADS + tid
    number = uint32(0)
    if query < queries:
        number = data[query]
    my_rounds = POINTS
    for point in range(my_rounds):
        if tid == 0:
            weight[point] = weights[point]
        points.ready.arrive()
        points.ready.wait(point & 1)
        total += weight[point] * number
    if query < queries:
        out[query] = total


# %% rounds wrong: the same fault in other words
@nd.kernel(threads=THREADS, shared=points)
def weighted(weights: nd.uint32[:], data: nd.uint32[:], out: nd.uint32[:], queries: nd.i32):
    points.init()
    weight, tid, total = points.weight.view(), cuda.threadIdx.x, uint32(0)
    query = cuda.blockIdx.x * THREADS + tid
    number = uint32(0)
    if query < queries:
        number = data[query]
    my_rounds = POINTS if query < queries else 0
    for point in range(my_rounds):
        if tid == 0:
            weight[point] = weights[point]
        points.ready.arrive()
        points.ready.wait(point & 1)
        total += weight[point] * number
    if query < queries:
        out[query] = total


# %% rounds wrong: stay away from a later one
@nd.kernel(threads=THREADS, shared=points)
def weighted(weights: nd.uint32[:], data: nd.uint32[:], out: nd.uint32[:], queries: nd.i32):
    points.init()
    weight, tid, total = points.weight.view(), cuda.threadIdx.x, uint32(0)
    query = cuda.blockIdx.x * THREADS + tid
    number = uint32(0)
    if query < queries:
        number = data[query]
    my_rounds = POINTS if query < queries else 1
    for point in range(my_rounds):
        if tid == 0:
            weight[point] = weights[point]
        points.ready.arrive()
        points.ready.wait(point & 1)
        total += weight[point] * number
    if query < queries:
        out[query] = total


# %% rounds wrong: Each of the four points has to be added
@nd.kernel(threads=THREADS, shared=points)
def weighted(weights: nd.uint32[:], data: nd.uint32[:], out: nd.uint32[:], queries: nd.i32):
    points.init()
    weight, tid, total = points.weight.view(), cuda.threadIdx.x, uint32(0)
    query = cuda.blockIdx.x * THREADS + tid
    number = uint32(0)
    if query < queries:
        number = data[query]
    my_rounds = POINTS - 1
    for point in range(my_rounds):
        if tid == 0:
            weight[point] = weights[point]
        points.ready.arrive()
        points.ready.wait(point & 1)
        total += weight[point] * number
    if query < queries:
        out[query] = total


# %% order
place = "between A and C"

# %% order wrong: Before A the flag is EMPTY
place = "before A"

# %% order wrong: It was set with release
place = "after C"


# %% ready
@nd.kernel(threads=64, shared=mail)
def mailbox(data: nd.uint32[:], out: nd.uint32[:]):
    box, flags, flag, tid = mail.box.view(), mail.flag.view(), mail.flag.at(0), cuda.threadIdx.x
    if tid == 0:
        flags[0] = EMPTY
    cuda.syncthreads()
    if tid == 0:  # the producer
        nd.st_release_cta_shared_b32(flag, WRITING)  # A
        box[0] = data[0]  # B
        nd.st_release_cta_shared_b32(flag, READY)  # C
    elif tid == 32:  # the consumer
        seen = nd.ld_acquire_cta_shared_b32(flag)  # D
        taken = seen == READY
        if taken:
            out[0] = box[0]  # E
        else:
            out[0] = data[0]
        out[1] = taken


# %% ready wrong: The box is taken also before
@nd.kernel(threads=64, shared=mail)
def mailbox(data: nd.uint32[:], out: nd.uint32[:]):
    box, flags, flag, tid = mail.box.view(), mail.flag.view(), mail.flag.at(0), cuda.threadIdx.x
    if tid == 0:
        flags[0] = EMPTY
    cuda.syncthreads()
    if tid == 0:  # the producer
        nd.st_release_cta_shared_b32(flag, WRITING)  # A
        box[0] = data[0]  # B
        nd.st_release_cta_shared_b32(flag, READY)  # C
    elif tid == 32:  # the consumer
        seen = nd.ld_acquire_cta_shared_b32(flag)  # D
        taken = seen > EMPTY
        if taken:
            out[0] = box[0]  # E
        else:
            out[0] = data[0]
        out[1] = taken


# %% ready wrong: just when it must not be
@nd.kernel(threads=64, shared=mail)
def mailbox(data: nd.uint32[:], out: nd.uint32[:]):
    box, flags, flag, tid = mail.box.view(), mail.flag.view(), mail.flag.at(0), cuda.threadIdx.x
    if tid == 0:
        flags[0] = EMPTY
    cuda.syncthreads()
    if tid == 0:  # the producer
        nd.st_release_cta_shared_b32(flag, WRITING)  # A
        box[0] = data[0]  # B
        nd.st_release_cta_shared_b32(flag, READY)  # C
    elif tid == 32:  # the consumer
        seen = nd.ld_acquire_cta_shared_b32(flag)  # D
        taken = seen == WRITING
        if taken:
            out[0] = box[0]  # E
        else:
            out[0] = data[0]
        out[1] = taken


# %% ready wrong: So it is of no use
@nd.kernel(threads=64, shared=mail)
def mailbox(data: nd.uint32[:], out: nd.uint32[:]):
    box, flags, flag, tid = mail.box.view(), mail.flag.view(), mail.flag.at(0), cuda.threadIdx.x
    if tid == 0:
        flags[0] = EMPTY
    cuda.syncthreads()
    if tid == 0:  # the producer
        nd.st_release_cta_shared_b32(flag, WRITING)  # A
        box[0] = data[0]  # B
        nd.st_release_cta_shared_b32(flag, READY)  # C
    elif tid == 32:  # the consumer
        seen = nd.ld_acquire_cta_shared_b32(flag)  # D
        taken = seen > READY
        if taken:
            out[0] = box[0]  # E
        else:
            out[0] = data[0]
        out[1] = taken


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
@nd.kernel(threads=LANES, shared=one_row)
def add_one(data: nd.uint32[:], out: nd.u64):
    tile, lane = one_row.tile.view(), nd.lane()
    tile[lane] = data[lane] + 1
    nd.fence_proxy_async()
    cuda.syncwarp()
    if lane == 0:
        nd.cp_async_bulk_store(out, one_row.tile.at(0), ROW_BYTES)
        nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group(0)


# %% proxy_fence wrong: in one lane only
@nd.kernel(threads=LANES, shared=one_row)
def add_one(data: nd.uint32[:], out: nd.u64):
    tile, lane = one_row.tile.view(), nd.lane()
    tile[lane] = data[lane] + 1
    if lane == 0:
        nd.fence_proxy_async()
    cuda.syncwarp()
    if lane == 0:
        nd.cp_async_bulk_store(out, one_row.tile.at(0), ROW_BYTES)
        nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group(0)


# %% proxy_fence wrong: new barriers, and nothing else
@nd.kernel(threads=LANES, shared=one_row)
def add_one(data: nd.uint32[:], out: nd.u64):
    tile, lane = one_row.tile.view(), nd.lane()
    tile[lane] = data[lane] + 1
    nd.fence_mbarrier_init()
    cuda.syncwarp()
    if lane == 0:
        nd.cp_async_bulk_store(out, one_row.tile.at(0), ROW_BYTES)
        nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group(0)


# %% proxy_fence wrong: orders ordinary accesses among themselves
@nd.kernel(threads=LANES, shared=one_row)
def add_one(data: nd.uint32[:], out: nd.u64):
    tile, lane = one_row.tile.view(), nd.lane()
    tile[lane] = data[lane] + 1
    cuda.threadfence()
    cuda.syncwarp()
    if lane == 0:
        nd.cp_async_bulk_store(out, one_row.tile.at(0), ROW_BYTES)
        nd.cp_async_bulk_commit_group()
        nd.cp_async_bulk_wait_group(0)

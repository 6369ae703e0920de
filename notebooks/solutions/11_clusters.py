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
# # Solutions of lesson 11, with the mistakes that are made most often
#
# Each cell stands in place of the exercise's cell in the notebook. After `wrong:` are words of the check's
# answer. The tests run them all.


# %% place
def place(row, chunk):
    return 128 * row + 16 * (chunk ^ (row & 7))


# %% place wrong: without a swizzle the chunk would lie there
def place(row, chunk):
    return 128 * row + 16 * chunk


# %% place wrong: leaves each chunk in its row
def place(row, chunk):
    return 128 * row + 16 * (chunk ^ row)


# %% place wrong: not the one that TMA has done
def place(row, chunk):
    return 128 * row + 16 * ((chunk + row) % 8)


# %% place wrong: a multiple of 16 bytes
def place(row, chunk):
    return 8 * row + (chunk ^ (row & 7))


# %% element
def element(lane, i):
    row = lane // 4 + 8 * (i // 2)
    column = 2 * (lane % 4) + i % 2
    return row, column


# %% element wrong: c2 and c3 are eight rows below
def element(lane, i):
    row = lane // 4
    column = 2 * (lane % 4) + i % 2
    return row, column


# %% element wrong: two columns next to each other
def element(lane, i):
    row = lane // 4 + 8 * (i // 2)
    column = lane % 4 + i % 2
    return row, column


# %% element wrong: the row comes first
def element(lane, i):
    row = 2 * (lane % 4) + i % 2
    column = lane // 4 + 8 * (i // 2)
    return row, column


# %% element wrong: Four neighbouring lanes share a row
def element(lane, i):
    row = lane % 8 + 8 * (i // 2)
    column = 2 * (lane % 4) + i % 2
    return row, column


# %% element wrong: c1 is right of c0
def element(lane, i):
    """(row, column) of sum i of a lane, in a 16x8 product."""
    row = lane // 4 + 8 * (i % 2)
    column = 2 * (lane % 4) + i // 2
    return row, column


# %% b_place
@nd.function
def b_place(lane, k):
    row = (lane >> 4) * 8 + (lane & 7)
    chunk = 2 * k + (lane >> 3 & 1)
    return row, chunk


# %% b_place wrong: That is the order of A
@nd.function
def b_place(lane, k):
    row = lane & 15
    chunk = 2 * k + (lane >> 4)
    return row, chunk


# %% b_place wrong: repeat columns 0 to 7
@nd.function
def b_place(lane, k):
    row = lane & 7
    chunk = 2 * k + (lane >> 3 & 1)
    return row, chunk


# %% b_place wrong: have the same chunk
@nd.function
def b_place(lane, k):
    row = (lane >> 4) * 8 + (lane & 7)
    chunk = 2 * k
    return row, chunk


# %% b_place wrong: two chunks further on
@nd.function
def b_place(lane, k):
    row = (lane >> 4) * 8 + (lane & 7)
    chunk = k + (lane >> 3 & 1)
    return row, chunk


# %% b_place wrong: write brackets
@nd.function
def b_place(lane, k):
    """(row, chunk) of B for lane 0 .. 31, at 16 k."""
    row = lane & 7 + 8 * (lane >> 4)
    chunk = 2 * k + (lane >> 3 & 1)
    return row, chunk


# %% fetch
@nd.function
def fetch(a_map, b_map, a, b, full, step, rank, column):
    announced = 2 * TILE_BYTES
    half = a + 8 * 128 * rank
    mask = 3
    nd.mbarrier_arrive_expect_tx(full, announced)
    nd.cp_async_bulk_tensor_2d_multicast(nd.uint32(half), a_map, DEPTH * step, 8 * rank, full, mask)
    nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, full)


# %% fetch wrong: The consumer has been let in too early
@nd.function
def fetch(a_map, b_map, a, b, full, step, rank, column):
    announced = TILE_BYTES + TILE_BYTES // 2
    half = a + 8 * 128 * rank
    mask = 3
    nd.mbarrier_arrive_expect_tx(full, announced)
    nd.cp_async_bulk_tensor_2d_multicast(nd.uint32(half), a_map, DEPTH * step, 8 * rank, full, mask)
    nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, full)


# %% fetch wrong: bytes that nobody sends
@nd.function
def fetch(a_map, b_map, a, b, full, step, rank, column):
    announced = 2 * TILE_BYTES
    half = a + 8 * 128 * rank
    mask = 1 << rank
    nd.mbarrier_arrive_expect_tx(full, announced)
    nd.cp_async_bulk_tensor_2d_multicast(nd.uint32(half), a_map, DEPTH * step, 8 * rank, full, mask)
    nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, full)


# %% fetch wrong: bytes that nobody sends
@nd.function
def fetch(a_map, b_map, a, b, full, step, rank, column):
    announced = 3 * TILE_BYTES
    half = a + 8 * 128 * rank
    mask = 3
    nd.mbarrier_arrive_expect_tx(full, announced)
    nd.cp_async_bulk_tensor_2d_multicast(nd.uint32(half), a_map, DEPTH * step, 8 * rank, full, mask)
    nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, full)


# %% fetch wrong: Both halves of A go to one place
@nd.function
def fetch(a_map, b_map, a, b, full, step, rank, column):
    announced = 2 * TILE_BYTES
    half = a
    mask = 3
    nd.mbarrier_arrive_expect_tx(full, announced)
    nd.cp_async_bulk_tensor_2d_multicast(nd.uint32(half), a_map, DEPTH * step, 8 * rank, full, mask)
    nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, full)


# %% fetch wrong: not behind it
@nd.function
def fetch(a_map, b_map, a, b, full, step, rank, column):
    """By one thread of each block: fill the tiles at the shared addresses a and b. Boxes of A have 8 rows."""
    announced = 2 * TILE_BYTES
    half = a + TILE_BYTES * rank
    mask = 3
    nd.mbarrier_arrive_expect_tx(full, announced)
    nd.cp_async_bulk_tensor_2d_multicast(nd.uint32(half), a_map, DEPTH * step, 8 * rank, full, mask)
    nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, full)


# %% fetch wrong: An address counts bytes
@nd.function
def fetch(a_map, b_map, a, b, full, step, rank, column):
    """By one thread of each block: fill the tiles at the shared addresses a and b. Boxes of A have 8 rows."""
    announced = 2 * TILE_BYTES
    half = a + 8 * rank
    mask = 3
    nd.mbarrier_arrive_expect_tx(full, announced)
    nd.cp_async_bulk_tensor_2d_multicast(nd.uint32(half), a_map, DEPTH * step, 8 * rank, full, mask)
    nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, full)


# %% fetch wrong: More comes into a block than it has announced
@nd.function
def fetch(a_map, b_map, a, b, full, step, rank, column):
    """By one thread of each block: fill the tiles at the shared addresses a and b. Boxes of A have 8 rows."""
    announced = TILE_BYTES
    half = a + TILE_BYTES // 2 * rank
    mask = 3
    nd.mbarrier_arrive_expect_tx(full, announced)
    nd.cp_async_bulk_tensor_2d_multicast(nd.uint32(half), a_map, DEPTH * step, 8 * rank, full, mask)
    nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, full)


# %% meet
def build_pair(stages):
    shared = nd.Shared(
        a=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024),
        b=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024), ring=nd.Ring(stages, empty=2),
    )  # fmt: skip
    ring = shared.ring

    @nd.kernel(threads=64, shared=shared)
    def pair(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        nd.cluster_arrive()
        nd.cluster_wait()
        rank = nd.int32(nd.cluster_ctarank())
        state, column = ring.start(), SIDE * cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                fetch(a_map, b_map, a, b, ring.full(state), step, rank, column)
                state = ring.advance(state)
        elif nd.warp() == 1:
            sums = cuda.local.array(8, nd.float32)
            for i in nd.static_range(8):
                sums[i] = nd.float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                cuda.syncwarp()
                if nd.lane() < 2:
                    nd.mbarrier_arrive_cluster(nd.mapa_shared_cluster(ring.empty(state), nd.lane()))
                state = ring.advance(state)
            store(out, column, sums)
        nd.cluster_arrive()
        nd.cluster_wait()

    return pair


# %% meet wrong: when the consumers of *both* blocks have left it
def build_pair(stages):
    shared = nd.Shared(
        a=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024),
        b=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024), ring=nd.Ring(stages, empty=1),
    )  # fmt: skip
    ring = shared.ring

    @nd.kernel(threads=64, shared=shared)
    def pair(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        nd.cluster_arrive()
        nd.cluster_wait()
        rank = nd.int32(nd.cluster_ctarank())
        state, column = ring.start(), SIDE * cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                fetch(a_map, b_map, a, b, ring.full(state), step, rank, column)
                state = ring.advance(state)
        elif nd.warp() == 1:
            sums = cuda.local.array(8, nd.float32)
            for i in nd.static_range(8):
                sums[i] = nd.float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                cuda.syncwarp()
                if nd.lane() == 0:
                    ring.release(state)
                state = ring.advance(state)
            store(out, column, sums)
        nd.cluster_arrive()
        nd.cluster_wait()

    return pair


# %% meet wrong: An empty barrier expects more arrivals than come
def build_pair(stages):
    shared = nd.Shared(
        a=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024),
        b=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024), ring=nd.Ring(stages, empty=64),
    )  # fmt: skip
    ring = shared.ring

    @nd.kernel(threads=64, shared=shared)
    def pair(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        nd.cluster_arrive()
        nd.cluster_wait()
        rank = nd.int32(nd.cluster_ctarank())
        state, column = ring.start(), SIDE * cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                fetch(a_map, b_map, a, b, ring.full(state), step, rank, column)
                state = ring.advance(state)
        elif nd.warp() == 1:
            sums = cuda.local.array(8, nd.float32)
            for i in nd.static_range(8):
                sums[i] = nd.float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                cuda.syncwarp()
                if nd.lane() < 2:
                    nd.mbarrier_arrive_cluster(nd.mapa_shared_cluster(ring.empty(state), nd.lane()))
                state = ring.advance(state)
            store(out, column, sums)
        nd.cluster_arrive()
        nd.cluster_wait()

    return pair


# %% meet wrong: An empty barrier expects more arrivals than come
def build_pair(stages):
    shared = nd.Shared(
        a=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024),
        b=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024), ring=nd.Ring(stages, empty=2),
    )  # fmt: skip
    ring = shared.ring

    @nd.kernel(threads=64, shared=shared)
    def pair(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        nd.cluster_arrive()
        nd.cluster_wait()
        rank = nd.int32(nd.cluster_ctarank())
        state, column = ring.start(), SIDE * cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                fetch(a_map, b_map, a, b, ring.full(state), step, rank, column)
                state = ring.advance(state)
        elif nd.warp() == 1:
            sums = cuda.local.array(8, nd.float32)
            for i in nd.static_range(8):
                sums[i] = nd.float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                cuda.syncwarp()
                if nd.lane() == 0:
                    ring.release(state)
                state = ring.advance(state)
            store(out, column, sums)
        nd.cluster_arrive()
        nd.cluster_wait()

    return pair


# %% meet wrong: before anybody fetches
def build_pair(stages):
    shared = nd.Shared(
        a=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024),
        b=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024), ring=nd.Ring(stages, empty=2),
    )  # fmt: skip
    ring = shared.ring

    @nd.kernel(threads=64, shared=shared)
    def pair(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        cuda.syncthreads()
        rank = nd.int32(nd.cluster_ctarank())
        state, column = ring.start(), SIDE * cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                fetch(a_map, b_map, a, b, ring.full(state), step, rank, column)
                state = ring.advance(state)
        elif nd.warp() == 1:
            sums = cuda.local.array(8, nd.float32)
            for i in nd.static_range(8):
                sums[i] = nd.float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                cuda.syncwarp()
                if nd.lane() < 2:
                    nd.mbarrier_arrive_cluster(nd.mapa_shared_cluster(ring.empty(state), nd.lane()))
                state = ring.advance(state)
            store(out, column, sums)
        nd.cluster_arrive()
        nd.cluster_wait()

    return pair


# %% meet wrong: Nobody leaves before all are done
def build_pair(stages):
    shared = nd.Shared(
        a=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024),
        b=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024), ring=nd.Ring(stages, empty=2),
    )  # fmt: skip
    ring = shared.ring

    @nd.kernel(threads=64, shared=shared)
    def pair(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        nd.cluster_arrive()
        nd.cluster_wait()
        rank = nd.int32(nd.cluster_ctarank())
        state, column = ring.start(), SIDE * cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                fetch(a_map, b_map, a, b, ring.full(state), step, rank, column)
                state = ring.advance(state)
        elif nd.warp() == 1:
            sums = cuda.local.array(8, nd.float32)
            for i in nd.static_range(8):
                sums[i] = nd.float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                cuda.syncwarp()
                if nd.lane() < 2:
                    nd.mbarrier_arrive_cluster(nd.mapa_shared_cluster(ring.empty(state), nd.lane()))
                state = ring.advance(state)
            store(out, column, sums)
        cuda.syncthreads()

    return pair


# %% meet wrong: All threads of both blocks come to each meeting
def build_pair(stages):
    shared = nd.Shared(
        a=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024),
        b=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024), ring=nd.Ring(stages, empty=2),
    )  # fmt: skip
    ring = shared.ring

    @nd.kernel(threads=64, shared=shared)
    def pair(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        if cuda.threadIdx.x == 0:
            nd.cluster_arrive()
            nd.cluster_wait()
        rank = nd.int32(nd.cluster_ctarank())
        state, column = ring.start(), SIDE * cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                fetch(a_map, b_map, a, b, ring.full(state), step, rank, column)
                state = ring.advance(state)
        elif nd.warp() == 1:
            sums = cuda.local.array(8, nd.float32)
            for i in nd.static_range(8):
                sums[i] = nd.float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                cuda.syncwarp()
                if nd.lane() < 2:
                    nd.mbarrier_arrive_cluster(nd.mapa_shared_cluster(ring.empty(state), nd.lane()))
                state = ring.advance(state)
            store(out, column, sums)
        nd.cluster_arrive()
        nd.cluster_wait()

    return pair


# %% meet wrong: on a *full* barrier
def build_pair(stages):
    shared = nd.Shared(
        a=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024),
        b=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024), ring=nd.Ring(stages, empty=2),
    )  # fmt: skip
    ring = shared.ring

    @nd.kernel(threads=64, shared=shared)
    def pair(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        nd.cluster_arrive()
        nd.cluster_wait()
        rank = nd.int32(nd.cluster_ctarank())
        state, column = ring.start(), SIDE * cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                fetch(a_map, b_map, a, b, ring.full(state), step, rank, column)
                state = ring.advance(state)
        elif nd.warp() == 1:
            sums = cuda.local.array(8, nd.float32)
            for i in nd.static_range(8):
                sums[i] = nd.float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                cuda.syncwarp()
                if nd.lane() < 2:
                    nd.mbarrier_arrive_cluster(nd.mapa_shared_cluster(ring.full(state), nd.lane()))
                state = ring.advance(state)
            store(out, column, sums)
        nd.cluster_arrive()
        nd.cluster_wait()

    return pair

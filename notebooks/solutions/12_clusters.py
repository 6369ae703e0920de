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
# # Solutions of lesson 12, with the mistakes that are made most often
#
# Each cell stands in place of the exercise's cell in the notebook. After `wrong:` are words of the check's
# answer. The tests run them all.


# %% grid
def grid(rows, columns, across, down):
    """(x, y): the blocks that cover C, rounded up to whole clusters."""
    x, y = -(-columns // 16), -(-rows // 16)
    return -(-x // across) * across, -(-y // down) * down


# %% grid wrong: no multiple of the cluster
def grid(rows, columns, across, down):
    """(x, y): the blocks that cover C, rounded up to whole clusters."""
    return -(-columns // 16), -(-rows // 16)


# %% grid wrong: x counts along a row of C
def grid(rows, columns, across, down):
    """(x, y): the blocks that cover C, rounded up to whole clusters."""
    x, y = -(-columns // 16), -(-rows // 16)
    return -(-y // down) * down, -(-x // across) * across


# %% grid wrong: do not cover C
def grid(rows, columns, across, down):
    """(x, y): the blocks that cover C, rounded up to whole clusters."""
    return columns // 16 // across * across, rows // 16 // down * down


# %% grid wrong: blocks, not clusters
def grid(rows, columns, across, down):
    """(x, y): the blocks that cover C, rounded up to whole clusters."""
    return -(-columns // (16 * across)), -(-rows // (16 * down))


# %% grid wrong: more than it takes
def grid(rows, columns, across, down):
    """(x, y): the blocks that cover C, rounded up to whole clusters."""
    x, y = columns // 16 + 1, rows // 16 + 1
    return (x // across + 1) * across, (y // down + 1) * down


# %% grid wrong: 16 elements
def grid(rows, columns, across, down):
    """(x, y): the blocks that cover C, rounded up to whole clusters."""
    return -(-columns // across) * across, -(-rows // down) * down


# %% masks
def masks(rank, across, down):
    """(mask of its tile of A, mask of its tile of B), whole numbers."""
    row = ((1 << across) - 1) << (rank // across * across)
    column = sum(1 << (rank % across + across * y) for y in range(down))
    return row, column


# %% masks wrong: exchanged
def masks(rank, across, down):
    """(mask of its tile of A, mask of its tile of B), whole numbers."""
    row = ((1 << across) - 1) << (rank // across * across)
    column = sum(1 << (rank % across + across * y) for y in range(down))
    return column, row


# %% masks wrong: of the first row of the cluster
def masks(rank, across, down):
    """(mask of its tile of A, mask of its tile of B), whole numbers."""
    return (1 << across) - 1, sum(1 << (rank % across + across * y) for y in range(down))


# %% masks wrong: only its own bit
def masks(rank, across, down):
    """(mask of its tile of A, mask of its tile of B), whole numbers."""
    return 1 << rank, 1 << rank


# %% masks wrong: A mask is a number with a bit
def masks(rank, across, down):
    """(mask of its tile of A, mask of its tile of B), whole numbers."""
    row = rank // across * across
    return list(range(row, row + across)), [rank % across + across * y for y in range(down)]


# %% masks wrong: Its own block
def masks(rank, across, down):
    """(mask of its tile of A, mask of its tile of B), whole numbers."""
    row = ((1 << across) - 1) << (rank // across * across)
    column = sum(1 << (rank % across + across * y) for y in range(down))
    return row & ~(1 << rank), column & ~(1 << rank)


# %% masks wrong: whole cluster
def masks(rank, across, down):
    """(mask of its tile of A, mask of its tile of B), whole numbers."""
    every = (1 << across * down) - 1
    return every, every


# %% masks wrong: bit 0
def masks(rank, across, down):
    """(mask of its tile of A, mask of its tile of B), whole numbers."""
    row = sum(1 << (rank // across * across + x + 1) for x in range(across))
    return row, sum(1 << (rank % across + across * y + 1) for y in range(down))


# %% fetch
@nd.function
def fetch(a_map, b_map, a, b, full, step, rank, column):
    announced = 2 * TILE_BYTES
    half = a + 8 * 128 * rank
    mask = 3
    nd.mbarrier_arrive_expect_tx(full, announced)
    nd.cp_async_bulk_tensor_2d_multicast(half, a_map, DEPTH * step, 8 * rank, full, mask)
    nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, full)


# %% fetch wrong: The consumer has been let in too early
@nd.function
def fetch(a_map, b_map, a, b, full, step, rank, column):
    announced = TILE_BYTES + TILE_BYTES // 2
    half = a + 8 * 128 * rank
    mask = 3
    nd.mbarrier_arrive_expect_tx(full, announced)
    nd.cp_async_bulk_tensor_2d_multicast(half, a_map, DEPTH * step, 8 * rank, full, mask)
    nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, full)


# %% fetch wrong: bytes that nobody sends
@nd.function
def fetch(a_map, b_map, a, b, full, step, rank, column):
    announced = 2 * TILE_BYTES
    half = a + 8 * 128 * rank
    mask = 1 << rank
    nd.mbarrier_arrive_expect_tx(full, announced)
    nd.cp_async_bulk_tensor_2d_multicast(half, a_map, DEPTH * step, 8 * rank, full, mask)
    nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, full)


# %% fetch wrong: bytes that nobody sends
@nd.function
def fetch(a_map, b_map, a, b, full, step, rank, column):
    announced = 3 * TILE_BYTES
    half = a + 8 * 128 * rank
    mask = 3
    nd.mbarrier_arrive_expect_tx(full, announced)
    nd.cp_async_bulk_tensor_2d_multicast(half, a_map, DEPTH * step, 8 * rank, full, mask)
    nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, full)


# %% fetch wrong: Both halves of A go to one place
@nd.function
def fetch(a_map, b_map, a, b, full, step, rank, column):
    announced = 2 * TILE_BYTES
    half = a
    mask = 3
    nd.mbarrier_arrive_expect_tx(full, announced)
    nd.cp_async_bulk_tensor_2d_multicast(half, a_map, DEPTH * step, 8 * rank, full, mask)
    nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, full)


# %% fetch wrong: not behind it
@nd.function
def fetch(a_map, b_map, a, b, full, step, rank, column):
    """By one thread of each block: fill the tiles at the shared addresses a and b. Boxes of A have 8 rows."""
    announced = 2 * TILE_BYTES
    half = a + TILE_BYTES * rank
    mask = 3
    nd.mbarrier_arrive_expect_tx(full, announced)
    nd.cp_async_bulk_tensor_2d_multicast(half, a_map, DEPTH * step, 8 * rank, full, mask)
    nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, full)


# %% fetch wrong: An address counts bytes
@nd.function
def fetch(a_map, b_map, a, b, full, step, rank, column):
    """By one thread of each block: fill the tiles at the shared addresses a and b. Boxes of A have 8 rows."""
    announced = 2 * TILE_BYTES
    half = a + 8 * rank
    mask = 3
    nd.mbarrier_arrive_expect_tx(full, announced)
    nd.cp_async_bulk_tensor_2d_multicast(half, a_map, DEPTH * step, 8 * rank, full, mask)
    nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, full)


# %% fetch wrong: More comes into a block than it has announced
@nd.function
def fetch(a_map, b_map, a, b, full, step, rank, column):
    """By one thread of each block: fill the tiles at the shared addresses a and b. Boxes of A have 8 rows."""
    announced = TILE_BYTES
    half = a + TILE_BYTES // 2 * rank
    mask = 3
    nd.mbarrier_arrive_expect_tx(full, announced)
    nd.cp_async_bulk_tensor_2d_multicast(half, a_map, DEPTH * step, 8 * rank, full, mask)
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
        rank = nd.cluster_ctarank()
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
                nd.fence_proxy_async()  # what this lane has read may be overwritten, by copies of both blocks
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
        rank = nd.cluster_ctarank()
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
                nd.fence_proxy_async()  # what this lane has read may be overwritten, by copies of both blocks
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
        rank = nd.cluster_ctarank()
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
                nd.fence_proxy_async()  # what this lane has read may be overwritten, by copies of both blocks
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
        rank = nd.cluster_ctarank()
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
                nd.fence_proxy_async()  # what this lane has read may be overwritten, by copies of both blocks
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
        rank = nd.cluster_ctarank()
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
                nd.fence_proxy_async()  # what this lane has read may be overwritten, by copies of both blocks
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
        rank = nd.cluster_ctarank()
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
                nd.fence_proxy_async()  # what this lane has read may be overwritten, by copies of both blocks
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
        rank = nd.cluster_ctarank()
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
                nd.fence_proxy_async()  # what this lane has read may be overwritten, by copies of both blocks
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
        rank = nd.cluster_ctarank()
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
                nd.fence_proxy_async()  # what this lane has read may be overwritten, by copies of both blocks
                cuda.syncwarp()
                if nd.lane() < 2:
                    nd.mbarrier_arrive_cluster(nd.mapa_shared_cluster(ring.full(state), nd.lane()))
                state = ring.advance(state)
            store(out, column, sums)
        nd.cluster_arrive()
        nd.cluster_wait()

    return pair

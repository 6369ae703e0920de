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


# %% whole
def build_whole(stages):
    shared = nd.Shared(
        a=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024),
        b=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024), ring=nd.Ring(stages, empty=32),
    )  # fmt: skip
    ring = shared.ring

    @nd.kernel(threads=64, shared=shared)
    def whole(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], depth: nd.i32, across: nd.i32):
        shared.init()
        row, column = SIDE * (cuda.blockIdx.x // across), SIDE * (cuda.blockIdx.x % across)
        steps = (depth + DEPTH - 1) // DEPTH
        state = ring.start()
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                ring.expect(state, shared.a.stride + shared.b.stride)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                nd.cp_async_bulk_tensor_2d(a, a_map, DEPTH * step, row, ring.full(state))
                nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, ring.full(state))
                state = ring.advance(state)
        elif nd.warp() == 1:
            sums = cuda.local.array(8, nd.float32)
            for i in nd.static_range(8):
                sums[i] = nd.float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                ring.release(state)
                state = ring.advance(state)
            for i in nd.static_range(8):
                y, x = element_of_c(nd.lane(), i % 4)
                y, x = row + y, column + x + 8 * (i // 4)
                if y < out.shape[0] and x < out.shape[1]:
                    out[y, x] = sums[i]

    return whole


# %% whole wrong: Round up
def build_whole(stages):
    shared = nd.Shared(
        a=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024),
        b=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024), ring=nd.Ring(stages, empty=32),
    )  # fmt: skip
    ring = shared.ring

    @nd.kernel(threads=64, shared=shared)
    def whole(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], depth: nd.i32, across: nd.i32):
        shared.init()
        row, column = SIDE * (cuda.blockIdx.x // across), SIDE * (cuda.blockIdx.x % across)
        steps = depth // DEPTH
        state = ring.start()
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                ring.expect(state, shared.a.stride + shared.b.stride)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                nd.cp_async_bulk_tensor_2d(a, a_map, DEPTH * step, row, ring.full(state))
                nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, ring.full(state))
                state = ring.advance(state)
        elif nd.warp() == 1:
            sums = cuda.local.array(8, nd.float32)
            for i in nd.static_range(8):
                sums[i] = nd.float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                ring.release(state)
                state = ring.advance(state)
            for i in nd.static_range(8):
                y, x = element_of_c(nd.lane(), i % 4)
                y, x = row + y, column + x + 8 * (i // 4)
                if y < out.shape[0] and x < out.shape[1]:
                    out[y, x] = sums[i]

    return whole


# %% whole wrong: Those are exchanged
def build_whole(stages):
    shared = nd.Shared(
        a=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024),
        b=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024), ring=nd.Ring(stages, empty=32),
    )  # fmt: skip
    ring = shared.ring

    @nd.kernel(threads=64, shared=shared)
    def whole(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], depth: nd.i32, across: nd.i32):
        shared.init()
        row, column = SIDE * (cuda.blockIdx.x % across), SIDE * (cuda.blockIdx.x // across)
        steps = (depth + DEPTH - 1) // DEPTH
        state = ring.start()
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                ring.expect(state, shared.a.stride + shared.b.stride)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                nd.cp_async_bulk_tensor_2d(a, a_map, DEPTH * step, row, ring.full(state))
                nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, ring.full(state))
                state = ring.advance(state)
        elif nd.warp() == 1:
            sums = cuda.local.array(8, nd.float32)
            for i in nd.static_range(8):
                sums[i] = nd.float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                ring.release(state)
                state = ring.advance(state)
            for i in nd.static_range(8):
                y, x = element_of_c(nd.lane(), i % 4)
                y, x = row + y, column + x + 8 * (i // 4)
                if y < out.shape[0] and x < out.shape[1]:
                    out[y, x] = sums[i]

    return whole


# %% whole wrong: 16 rows further down
def build_whole(stages):
    shared = nd.Shared(
        a=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024),
        b=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024), ring=nd.Ring(stages, empty=32),
    )  # fmt: skip
    ring = shared.ring

    @nd.kernel(threads=64, shared=shared)
    def whole(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], depth: nd.i32, across: nd.i32):
        shared.init()
        row, column = cuda.blockIdx.x // across, cuda.blockIdx.x % across
        steps = (depth + DEPTH - 1) // DEPTH
        state = ring.start()
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                ring.expect(state, shared.a.stride + shared.b.stride)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                nd.cp_async_bulk_tensor_2d(a, a_map, DEPTH * step, row, ring.full(state))
                nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, ring.full(state))
                state = ring.advance(state)
        elif nd.warp() == 1:
            sums = cuda.local.array(8, nd.float32)
            for i in nd.static_range(8):
                sums[i] = nd.float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                ring.release(state)
                state = ring.advance(state)
            for i in nd.static_range(8):
                y, x = element_of_c(nd.lane(), i % 4)
                y, x = row + y, column + x + 8 * (i // 4)
                if y < out.shape[0] and x < out.shape[1]:
                    out[y, x] = sums[i]

    return whole


# %% whole wrong: belong to no element of C
def build_whole(stages):
    shared = nd.Shared(
        a=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024),
        b=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024), ring=nd.Ring(stages, empty=32),
    )  # fmt: skip
    ring = shared.ring

    @nd.kernel(threads=64, shared=shared)
    def whole(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], depth: nd.i32, across: nd.i32):
        shared.init()
        row, column = SIDE * (cuda.blockIdx.x // across), SIDE * (cuda.blockIdx.x % across)
        steps = (depth + DEPTH - 1) // DEPTH
        state = ring.start()
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                ring.expect(state, shared.a.stride + shared.b.stride)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                nd.cp_async_bulk_tensor_2d(a, a_map, DEPTH * step, row, ring.full(state))
                nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, ring.full(state))
                state = ring.advance(state)
        elif nd.warp() == 1:
            sums = cuda.local.array(8, nd.float32)
            for i in nd.static_range(8):
                sums[i] = nd.float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                ring.release(state)
                state = ring.advance(state)
            for i in nd.static_range(8):
                y, x = element_of_c(nd.lane(), i % 4)
                y, x = row + y, column + x + 8 * (i // 4)
                if y < out.shape[0]:
                    out[y, x] = sums[i]

    return whole


# %% whole wrong: are never written
def build_whole(stages):
    shared = nd.Shared(
        a=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024),
        b=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024), ring=nd.Ring(stages, empty=32),
    )  # fmt: skip
    ring = shared.ring

    @nd.kernel(threads=64, shared=shared)
    def whole(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], depth: nd.i32, across: nd.i32):
        shared.init()
        row, column = SIDE * (cuda.blockIdx.x // across), SIDE * (cuda.blockIdx.x % across)
        steps = (depth + DEPTH - 1) // DEPTH
        state = ring.start()
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                ring.expect(state, shared.a.stride + shared.b.stride)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                nd.cp_async_bulk_tensor_2d(a, a_map, DEPTH * step, row, ring.full(state))
                nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, ring.full(state))
                state = ring.advance(state)
        elif nd.warp() == 1:
            sums = cuda.local.array(8, nd.float32)
            for i in nd.static_range(8):
                sums[i] = nd.float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                ring.release(state)
                state = ring.advance(state)
            for i in nd.static_range(8):
                y, x = element_of_c(nd.lane(), i % 4)
                y, x = row + y, column + x + 8 * (i // 4)
                if y < SIDE and x < SIDE:
                    out[y, x] = sums[i]

    return whole


# %% whole wrong: counts elements
def build_whole(stages):
    shared = nd.Shared(
        a=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024),
        b=nd.Array((stages, SIDE, DEPTH), nd.float16, alignment=1024), ring=nd.Ring(stages, empty=32),
    )  # fmt: skip
    ring = shared.ring

    @nd.kernel(threads=64, shared=shared)
    def whole(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], depth: nd.i32, across: nd.i32):
        shared.init()
        row, column = SIDE * (cuda.blockIdx.x // across), SIDE * (cuda.blockIdx.x % across)
        steps = depth
        state = ring.start()
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                ring.expect(state, shared.a.stride + shared.b.stride)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                nd.cp_async_bulk_tensor_2d(a, a_map, DEPTH * step, row, ring.full(state))
                nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, column, ring.full(state))
                state = ring.advance(state)
        elif nd.warp() == 1:
            sums = cuda.local.array(8, nd.float32)
            for i in nd.static_range(8):
                sums[i] = nd.float32(0)
            for _ in range(steps):
                ring.wait(state)
                multiply(shared.a.at(state.stage), shared.b.at(state.stage), sums)
                ring.release(state)
                state = ring.advance(state)
            for i in nd.static_range(8):
                y, x = element_of_c(nd.lane(), i % 4)
                y, x = row + y, column + x + 8 * (i // 4)
                if y < out.shape[0] and x < out.shape[1]:
                    out[y, x] = sums[i]

    return whole


# %% enough
enough = "def"

# %% enough wrong: c: 0 of 1,000 launches were right. A barrier orders threads
enough = "cdef"

# %% enough wrong: f: 1,000 of 1,000 launches were right. It stands on the way
enough = ["d", "e"]

# %% enough wrong: such as 'ab'
enough = "xyz"

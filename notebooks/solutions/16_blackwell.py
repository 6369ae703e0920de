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
# # Solutions of lesson 16, with the mistakes that are made most often
#
# Each cell stands in place of the exercise's cell in the notebook. After `wrong:` are words of the check's
# answer. The tests run them all.


# %% address
def address(base, warp, column):
    """The address of a column of those from base on, in the lanes of a warp 0 .. 7."""
    return base + (warp % 4 << 21) + column


# %% address wrong: shift it left by 16
def address(base, warp, column):
    """The address of a column of those from base on, in the lanes of a warp 0 .. 7."""
    return base + 32 * (warp % 4) + column


# %% address wrong: Lane 128 there is not
def address(base, warp, column):
    """The address of a column of those from base on, in the lanes of a warp 0 .. 7."""
    return base + (32 * warp << 16) + column


# %% address wrong: each of the four warps has 32 lanes
def address(base, warp, column):
    """The address of a column of those from base on, in the lanes of a warp 0 .. 7."""
    return base + (warp % 4 << 16) + column


# %% tile
def build_tile():
    types = nd.tcgen05_instruction_descriptor("f16", ROWS, COLUMNS)
    shared = nd.Shared(
        a=nd.Array((1, ROWS, DEPTH), nd.float16, swizzle="128B"), full=nd.Barrier(), done=nd.Barrier(),
        b=nd.Array((1, COLUMNS, DEPTH), nd.float16, swizzle="128B"), memory=nd.TensorMemory(sums=COLUMNS),
    )  # fmt: skip

    @nd.kernel(threads=128, shared=shared)
    def tile(a_map: nd.u64, b_map: nd.u64, out: nd.u64, pitch: nd.i32, steps: nd.i32):
        shared.init()
        full, done, sums = shared.full, shared.done, shared.memory.sums
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            full.expect(STAGE)
            blackwell.load(shared.a.at(0), shared.b.at(0), a_map, b_map, 0, 0, 0, full.at())
            full.wait(0)
            for k in nd.static_range(4):  # 16 of k are 32 bytes
                a = nd.tcgen05_descriptor(shared.a.at(0) + 32 * k, 0, 1024, 0, 1)
                b = nd.tcgen05_descriptor(shared.b.at(0) + 32 * k, 0, 1024, 0, 1)
                adds = min(k, 1)
                nd.tcgen05_mma_f16(sums.at(), a, b, types, adds)
            nd.tcgen05_commit(done.at())
        cuda.syncwarp()
        done.wait(0)
        nd.tcgen05_fence_after_thread_sync()
        blackwell.store(sums.warp_at(), out, cuda.threadIdx.x, 0, pitch)  # each warp its 32 rows
        nd.tcgen05_fence_before_thread_sync()
        cuda.syncthreads()
        if nd.warp() == 0:
            shared.memory.free()

    return tile


# %% tile wrong: The first product of a tile adds
def build_tile():
    types = nd.tcgen05_instruction_descriptor("f16", ROWS, COLUMNS)
    shared = nd.Shared(
        a=nd.Array((1, ROWS, DEPTH), nd.float16, swizzle="128B"), full=nd.Barrier(), done=nd.Barrier(),
        b=nd.Array((1, COLUMNS, DEPTH), nd.float16, swizzle="128B"), memory=nd.TensorMemory(sums=COLUMNS),
    )  # fmt: skip

    @nd.kernel(threads=128, shared=shared)
    def tile(a_map: nd.u64, b_map: nd.u64, out: nd.u64, pitch: nd.i32, steps: nd.i32):
        shared.init()
        full, done, sums = shared.full, shared.done, shared.memory.sums
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            full.expect(STAGE)
            blackwell.load(shared.a.at(0), shared.b.at(0), a_map, b_map, 0, 0, 0, full.at())
            full.wait(0)
            for k in nd.static_range(4):  # 16 of k are 32 bytes
                a = nd.tcgen05_descriptor(shared.a.at(0) + 32 * k, 0, 1024, 0, 1)
                b = nd.tcgen05_descriptor(shared.b.at(0) + 32 * k, 0, 1024, 0, 1)
                adds = 1
                nd.tcgen05_mma_f16(sums.at(), a, b, types, adds)
            nd.tcgen05_commit(done.at())
        cuda.syncwarp()
        done.wait(0)
        nd.tcgen05_fence_after_thread_sync()
        blackwell.store(sums.warp_at(), out, cuda.threadIdx.x, 0, pitch)  # each warp its 32 rows
        nd.tcgen05_fence_before_thread_sync()
        cuda.syncthreads()
        if nd.warp() == 0:
            shared.memory.free()

    return tile


# %% tile wrong: Only a part of k
def build_tile():
    types = nd.tcgen05_instruction_descriptor("f16", ROWS, COLUMNS)
    shared = nd.Shared(
        a=nd.Array((1, ROWS, DEPTH), nd.float16, swizzle="128B"), full=nd.Barrier(), done=nd.Barrier(),
        b=nd.Array((1, COLUMNS, DEPTH), nd.float16, swizzle="128B"), memory=nd.TensorMemory(sums=COLUMNS),
    )  # fmt: skip

    @nd.kernel(threads=128, shared=shared)
    def tile(a_map: nd.u64, b_map: nd.u64, out: nd.u64, pitch: nd.i32, steps: nd.i32):
        shared.init()
        full, done, sums = shared.full, shared.done, shared.memory.sums
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            full.expect(STAGE)
            blackwell.load(shared.a.at(0), shared.b.at(0), a_map, b_map, 0, 0, 0, full.at())
            full.wait(0)
            for k in nd.static_range(4):  # 16 of k are 32 bytes
                a = nd.tcgen05_descriptor(shared.a.at(0) + 32 * k, 0, 1024, 0, 1)
                b = nd.tcgen05_descriptor(shared.b.at(0) + 32 * k, 0, 1024, 0, 1)
                adds = 0
                nd.tcgen05_mma_f16(sums.at(), a, b, types, adds)
            nd.tcgen05_commit(done.at())
        cuda.syncwarp()
        done.wait(0)
        nd.tcgen05_fence_after_thread_sync()
        blackwell.store(sums.warp_at(), out, cuda.threadIdx.x, 0, pitch)  # each warp its 32 rows
        nd.tcgen05_fence_before_thread_sync()
        cuda.syncthreads()
        if nd.warp() == 0:
            shared.memory.free()

    return tile


# %% tile wrong: the products have to arrive
def build_tile():
    types = nd.tcgen05_instruction_descriptor("f16", ROWS, COLUMNS)
    shared = nd.Shared(
        a=nd.Array((1, ROWS, DEPTH), nd.float16, swizzle="128B"), full=nd.Barrier(), done=nd.Barrier(),
        b=nd.Array((1, COLUMNS, DEPTH), nd.float16, swizzle="128B"), memory=nd.TensorMemory(sums=COLUMNS),
    )  # fmt: skip

    @nd.kernel(threads=128, shared=shared)
    def tile(a_map: nd.u64, b_map: nd.u64, out: nd.u64, pitch: nd.i32, steps: nd.i32):
        shared.init()
        full, done, sums = shared.full, shared.done, shared.memory.sums
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            full.expect(STAGE)
            blackwell.load(shared.a.at(0), shared.b.at(0), a_map, b_map, 0, 0, 0, full.at())
            full.wait(0)
            for k in nd.static_range(4):  # 16 of k are 32 bytes
                a = nd.tcgen05_descriptor(shared.a.at(0) + 32 * k, 0, 1024, 0, 1)
                b = nd.tcgen05_descriptor(shared.b.at(0) + 32 * k, 0, 1024, 0, 1)
                adds = min(k, 1)
                nd.tcgen05_mma_f16(sums.at(), a, b, types, adds)
            done.arrive()
        cuda.syncwarp()
        done.wait(0)
        nd.tcgen05_fence_after_thread_sync()
        blackwell.store(sums.warp_at(), out, cuda.threadIdx.x, 0, pitch)  # each warp its 32 rows
        nd.tcgen05_fence_before_thread_sync()
        cuda.syncthreads()
        if nd.warp() == 0:
            shared.memory.free()

    return tile


# %% tile wrong: All wait for ever
def build_tile():
    types = nd.tcgen05_instruction_descriptor("f16", ROWS, COLUMNS)
    shared = nd.Shared(
        a=nd.Array((1, ROWS, DEPTH), nd.float16, swizzle="128B"), full=nd.Barrier(), done=nd.Barrier(),
        b=nd.Array((1, COLUMNS, DEPTH), nd.float16, swizzle="128B"), memory=nd.TensorMemory(sums=COLUMNS),
    )  # fmt: skip

    @nd.kernel(threads=128, shared=shared)
    def tile(a_map: nd.u64, b_map: nd.u64, out: nd.u64, pitch: nd.i32, steps: nd.i32):
        shared.init()
        full, done, sums = shared.full, shared.done, shared.memory.sums
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            full.expect(STAGE)
            blackwell.load(shared.a.at(0), shared.b.at(0), a_map, b_map, 0, 0, 0, full.at())
            full.wait(0)
            for k in nd.static_range(4):  # 16 of k are 32 bytes
                a = nd.tcgen05_descriptor(shared.a.at(0) + 32 * k, 0, 1024, 0, 1)
                b = nd.tcgen05_descriptor(shared.b.at(0) + 32 * k, 0, 1024, 0, 1)
                adds = min(k, 1)
                nd.tcgen05_mma_f16(sums.at(), a, b, types, adds)
            nd.tcgen05_commit(full.at())
        cuda.syncwarp()
        done.wait(0)
        nd.tcgen05_fence_after_thread_sync()
        blackwell.store(sums.warp_at(), out, cuda.threadIdx.x, 0, pitch)  # each warp its 32 rows
        nd.tcgen05_fence_before_thread_sync()
        cuda.syncthreads()
        if nd.warp() == 0:
            shared.memory.free()

    return tile


# %% ring
def build_ring(stages):
    shared = nd.Shared(
        a=nd.Array((stages, ROWS, DEPTH), nd.float16, swizzle="128B"), ring=nd.Ring(stages, empty=1),
        b=nd.Array((stages, COLUMNS, DEPTH), nd.float16, swizzle="128B"), ready=nd.Barrier(),
        memory=nd.TensorMemory(sums=COLUMNS),
    )  # fmt: skip

    @nd.kernel(threads=192, shared=shared)
    def ring_of_stages(a_map: nd.u64, b_map: nd.u64, out: nd.u64, pitch: nd.i32, steps: nd.i32):
        shared.init()
        ring, state, ready, sums = shared.ring, shared.ring.start(), shared.ready, shared.memory.sums
        if nd.warp() == 4 and nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                ring.expect(state, STAGE)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                blackwell.load(a, b, a_map, b_map, step, 0, 0, ring.full(state))
                state = ring.advance(state)
        elif nd.warp() == 5 and nd.lane() == 0:
            for step in range(steps):
                ring.wait(state)
                blackwell.multiply(sums.at(), shared.a.at(state.stage), shared.b.at(state.stage), step)
                nd.tcgen05_commit(ring.empty(state))
                state = ring.advance(state)
            nd.tcgen05_commit(ready.at())
        elif nd.warp() < 4:
            ready.wait(0)
            nd.tcgen05_fence_after_thread_sync()
            blackwell.store(sums.warp_at(), out, cuda.threadIdx.x, 0, pitch)
            nd.tcgen05_fence_before_thread_sync()
        cuda.syncthreads()
        if nd.warp() == 0:
            shared.memory.free()

    return ring_of_stages


# %% ring wrong: Who arrives when it is over
def build_ring(stages):
    shared = nd.Shared(
        a=nd.Array((stages, ROWS, DEPTH), nd.float16, swizzle="128B"), ring=nd.Ring(stages, empty=1),
        b=nd.Array((stages, COLUMNS, DEPTH), nd.float16, swizzle="128B"), ready=nd.Barrier(),
        memory=nd.TensorMemory(sums=COLUMNS),
    )  # fmt: skip

    @nd.kernel(threads=192, shared=shared)
    def ring_of_stages(a_map: nd.u64, b_map: nd.u64, out: nd.u64, pitch: nd.i32, steps: nd.i32):
        shared.init()
        ring, state, ready, sums = shared.ring, shared.ring.start(), shared.ready, shared.memory.sums
        if nd.warp() == 4 and nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                ring.expect(state, STAGE)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                blackwell.load(a, b, a_map, b_map, step, 0, 0, ring.full(state))
                state = ring.advance(state)
        elif nd.warp() == 5 and nd.lane() == 0:
            for step in range(steps):
                ring.wait(state)
                blackwell.multiply(sums.at(), shared.a.at(state.stage), shared.b.at(state.stage), step)
                ring.arrive(state)
                state = ring.advance(state)
            nd.tcgen05_commit(ready.at())
        elif nd.warp() < 4:
            ready.wait(0)
            nd.tcgen05_fence_after_thread_sync()
            blackwell.store(sums.warp_at(), out, cuda.threadIdx.x, 0, pitch)
            nd.tcgen05_fence_before_thread_sync()
        cuda.syncthreads()
        if nd.warp() == 0:
            shared.memory.free()

    return ring_of_stages


# %% ring wrong: One commit is one arrival
def build_ring(stages):
    shared = nd.Shared(
        a=nd.Array((stages, ROWS, DEPTH), nd.float16, swizzle="128B"), ring=nd.Ring(stages, empty=128),
        b=nd.Array((stages, COLUMNS, DEPTH), nd.float16, swizzle="128B"), ready=nd.Barrier(),
        memory=nd.TensorMemory(sums=COLUMNS),
    )  # fmt: skip

    @nd.kernel(threads=192, shared=shared)
    def ring_of_stages(a_map: nd.u64, b_map: nd.u64, out: nd.u64, pitch: nd.i32, steps: nd.i32):
        shared.init()
        ring, state, ready, sums = shared.ring, shared.ring.start(), shared.ready, shared.memory.sums
        if nd.warp() == 4 and nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                ring.expect(state, STAGE)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                blackwell.load(a, b, a_map, b_map, step, 0, 0, ring.full(state))
                state = ring.advance(state)
        elif nd.warp() == 5 and nd.lane() == 0:
            for step in range(steps):
                ring.wait(state)
                blackwell.multiply(sums.at(), shared.a.at(state.stage), shared.b.at(state.stage), step)
                nd.tcgen05_commit(ring.empty(state))
                state = ring.advance(state)
            nd.tcgen05_commit(ready.at())
        elif nd.warp() < 4:
            ready.wait(0)
            nd.tcgen05_fence_after_thread_sync()
            blackwell.store(sums.warp_at(), out, cuda.threadIdx.x, 0, pitch)
            nd.tcgen05_fence_before_thread_sync()
        cuda.syncthreads()
        if nd.warp() == 0:
            shared.memory.free()

    return ring_of_stages

# %% sets
sets = 2

# %% sets wrong: Lanes do not count
sets = 4


# %% read
@nd.function
def read(turns, turn, sums, out, row, x, pitch):
    turns.wait(turn)
    nd.tcgen05_fence_after_thread_sync()
    line = nd.global_at(out, row, 4 * pitch)
    for column in range(0, COLUMNS, 16):
        w = nd.tcgen05_ld_32x32b_x16(sums + column)
        nd.tcgen05_wait_ld()
        for i in nd.static_range(4):
            at = nd.global_at(line, x + column + 4 * i, 4)
            nd.st_global_v4(at, w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3])
    nd.tcgen05_fence_before_thread_sync()
    turns.arrive(turn)


# %% read wrong: What says that a load has come
@nd.function
def read(turns, turn, sums, out, row, x, pitch):
    turns.wait(turn)
    nd.tcgen05_fence_after_thread_sync()
    line = nd.global_at(out, row, 4 * pitch)
    for column in range(0, COLUMNS, 16):
        w = nd.tcgen05_ld_32x32b_x16(sums + column)
        pass
        for i in nd.static_range(4):
            at = nd.global_at(line, x + column + 4 * i, 4)
            nd.st_global_v4(at, w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3])
    nd.tcgen05_fence_before_thread_sync()
    turns.arrive(turn)


# %% read wrong: Wait between the load and the first use
@nd.function
def read(turns, turn, sums, out, row, x, pitch):
    turns.wait(turn)
    nd.tcgen05_fence_after_thread_sync()
    line = nd.global_at(out, row, 4 * pitch)
    for column in range(0, COLUMNS, 16):
        w = nd.tcgen05_ld_32x32b_x16(sums + column)
        for i in nd.static_range(4):
            at = nd.global_at(line, x + column + 4 * i, 4)
            nd.st_global_v4(at, w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3])
    nd.tcgen05_wait_ld()
    nd.tcgen05_fence_before_thread_sync()
    turns.arrive(turn)


# %% read wrong: once for a tile
@nd.function
def read(turns, turn, sums, out, row, x, pitch):
    turns.wait(turn)
    nd.tcgen05_fence_after_thread_sync()
    line = nd.global_at(out, row, 4 * pitch)
    for column in range(0, COLUMNS, 16):
        w = nd.tcgen05_ld_32x32b_x16(sums + column)
        nd.tcgen05_wait_ld()
        turns.arrive(turn)
        for i in nd.static_range(4):
            at = nd.global_at(line, x + column + 4 * i, 4)
            nd.st_global_v4(at, w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3])
    nd.tcgen05_fence_before_thread_sync()
    pass


# %% read wrong: Nobody gives the sums back
@nd.function
def read(turns, turn, sums, out, row, x, pitch):
    turns.wait(turn)
    nd.tcgen05_fence_after_thread_sync()
    line = nd.global_at(out, row, 4 * pitch)
    for column in range(0, COLUMNS, 16):
        w = nd.tcgen05_ld_32x32b_x16(sums + column)
        nd.tcgen05_wait_ld()
        for i in nd.static_range(4):
            at = nd.global_at(line, x + column + 4 * i, 4)
            nd.st_global_v4(at, w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3])
    nd.tcgen05_fence_before_thread_sync()
    pass

# %% announced
announced = 40960

# %% announced wrong: what one block loads
announced = 20480

# %% announced wrong: a whole tile of B
announced = 24576

# %% announced wrong: counts the tile of B twice
announced = 49152

"""C = A B^T on Blackwell's tensor cores, in rungs: one tile, a ring, two accumulators, a pair of blocks.

By PTX's text; never run on hardware. Products take A and B from shared memory, and leave their sums in tensor
memory: no warp holds a part of C before the end, and ONE thread issues them all.
"""

import numpy as np
from numba import cuda

import numba_deform as nd

ROWS, COLUMNS, DEPTH = 128, 64, 64  # of a tile of C, and of k in a stage: 128 bytes, of 4 products of 16
SWIZZLE_128B = 1  # of a descriptor
EIGHT_ROWS = 8 * 2 * DEPTH  # bytes from 8 rows of a box to the next 8
STAGE = 2 * DEPTH * (ROWS + COLUMNS)  # bytes of a stage
READERS, LOADER, MULTIPLIER = 4, 4, 5  # warps 0 to 3 read the sums: all lanes of tensor memory


@nd.function
def load(a, b, a_map, b_map, step, y, x, full):
    """The boxes of one stage, which complete on the barrier ``full``."""
    nd.cp_async_bulk_tensor_2d(a, a_map, DEPTH * step, y, full)
    nd.cp_async_bulk_tensor_2d(b, b_map, DEPTH * step, x, full)


def products(mma, rows, **options):
    """A device function: the products of a stage, each by the intrinsic ``mma``."""
    TYPES = nd.tcgen05_instruction_descriptor("f16", rows, COLUMNS, **options)  # fp16, with sums of float32

    @nd.function
    def multiply(sums, a, b, step):
        left = nd.tcgen05_descriptor(a, 0, EIGHT_ROWS, 0, SWIZZLE_128B)
        right = nd.tcgen05_descriptor(b, 0, EIGHT_ROWS, 0, SWIZZLE_128B)
        for k in nd.static_range(4):  # 16 of k are 32 bytes; the very first product needs no zeros
            mma(sums, left + nd.uint64(2 * k), right + nd.uint64(2 * k), TYPES, step + k)

    return multiply


multiply = products(nd.tcgen05_mma_f16, ROWS)
multiply_for_both = products(nd.tcgen05_mma_f16_pair, 2 * ROWS, pair=True)


@nd.function
def store(sums, out, row, x, pitch):
    """A warp's 32 rows of the sums, one for each lane."""
    line = nd.global_at(out, row, 4 * pitch)
    for column in range(0, COLUMNS, 16):
        w = nd.tcgen05_ld_32x32b_x16(sums + column)
        nd.tcgen05_wait_ld()
        for i in nd.static_range(4):
            at = nd.global_at(line, x + column + 4 * i, 4)
            nd.st_global_v4(at, w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3])


def launch(kernel, grid, down, across, steps, *more, columns=COLUMNS, cluster=None):
    """A Launch of one of the kernels, for whole numbers, whose sums are not rounded."""
    random = np.random.default_rng(1)
    sizes = [(ROWS * down, DEPTH * steps), (COLUMNS * across, DEPTH * steps)]
    a, b = (random.integers(-4, 5, size).astype(np.float16) for size in sizes)
    boxes = (a, (DEPTH, ROWS)), (b, (DEPTH, columns))
    maps = [nd.TensorMapArray([nd.TensorMap.of(m, box, swizzle="128B")]) for m, box in boxes]
    c = (a.astype(np.float64) @ b.T.astype(np.float64)).astype(np.float32)
    args, bytes = [*maps, np.empty_like(c), c.shape[1], steps, *more], a.nbytes + b.nbytes + c.nbytes
    flops = 2 * c.size * DEPTH * steps
    return nd.Launch(kernel, grid, args, {"out": c}, cluster=cluster, bytes=bytes, flops=flops)


@nd.pipeline
def one_tile(steps=2, down=1, across=1):
    """C = A B^T by tcgen05, a tile for each block: load, multiply, wait, and again; then all read the sums."""
    shared = nd.Shared(
        a=nd.Array((1, ROWS, DEPTH), nd.float16, swizzle="128B"), full=nd.Barrier(), empty=nd.Barrier(),
        b=nd.Array((1, COLUMNS, DEPTH), nd.float16, swizzle="128B"), ready=nd.Barrier(),
        memory=nd.TensorMemory(sums=COLUMNS),
    )  # fmt: skip

    @nd.kernel(threads=32 * READERS, shared=shared)
    def one_tile(a_map: nd.u64, b_map: nd.u64, out: nd.u64, pitch: nd.i32, steps: nd.i32):
        shared.init()
        y, x, sums = ROWS * cuda.blockIdx.y, COLUMNS * cuda.blockIdx.x, shared.memory.sums
        a, b, full, empty, ready = shared.a.at(0), shared.b.at(0), shared.full, shared.empty, shared.ready
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                full.expect(STAGE)
                load(a, b, a_map, b_map, step, y, x, full.at())
                full.wait(step & 1)
                multiply(sums.at(), a, b, step)
                nd.tcgen05_commit(empty.at())
                empty.wait(step & 1)  # the products have read a and b
            nd.tcgen05_commit(ready.at())
        cuda.syncwarp()
        ready.wait(0)
        nd.tcgen05_fence_after_thread_sync()
        store(sums.warp_at(), out, y + cuda.threadIdx.x, x, pitch)
        nd.tcgen05_fence_before_thread_sync()
        cuda.syncthreads()
        if nd.warp() == 0:
            shared.memory.free()

    return launch(one_tile, (across, down), down, across, steps)


@nd.pipeline
def staged(stages=3, steps=4, down=1, across=1):
    """The same through a ring of stages: a warp asks for boxes, one multiplies, and four read the sums."""
    shared = nd.Shared(
        a=nd.Array((stages, ROWS, DEPTH), nd.float16, swizzle="128B"), ring=nd.Ring(stages),
        b=nd.Array((stages, COLUMNS, DEPTH), nd.float16, swizzle="128B"), ready=nd.Barrier(),
        memory=nd.TensorMemory(sums=COLUMNS),
    )  # fmt: skip

    @nd.kernel(threads=32 * (READERS + 2), shared=shared)
    def staged(a_map: nd.u64, b_map: nd.u64, out: nd.u64, pitch: nd.i32, steps: nd.i32):
        shared.init()
        ring, state, ready, sums = shared.ring, shared.ring.start(), shared.ready, shared.memory.sums
        y, x = ROWS * cuda.blockIdx.y, COLUMNS * cuda.blockIdx.x
        if nd.warp() == LOADER and nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                ring.expect(state, STAGE)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                load(a, b, a_map, b_map, step, y, x, ring.full(state))
                state = ring.advance(state)
        elif nd.warp() == MULTIPLIER and nd.lane() == 0:
            for step in range(steps):
                ring.wait(state)
                multiply(sums.at(), shared.a.at(state.stage), shared.b.at(state.stage), step)
                nd.tcgen05_commit(ring.empty(state))  # gives the stage back, when it has been read
                state = ring.advance(state)
            nd.tcgen05_commit(ready.at())
        elif nd.warp() < READERS:
            ready.wait(0)
            nd.tcgen05_fence_after_thread_sync()
            store(sums.warp_at(), out, y + cuda.threadIdx.x, x, pitch)
            nd.tcgen05_fence_before_thread_sync()
        cuda.syncthreads()
        if nd.warp() == 0:
            shared.memory.free()

    return launch(staged, (across, down), down, across, steps)


@nd.pipeline
def overlapped(stages=3, sums=2, steps=2, down=2, across=2, blocks=1):
    """The same by few blocks, which take tiles in turn: while the sums of one are read, another is made."""
    shared = nd.Shared(
        a=nd.Array((stages, ROWS, DEPTH), nd.float16, swizzle="128B"), ring=nd.Ring(stages),
        b=nd.Array((stages, COLUMNS, DEPTH), nd.float16, swizzle="128B"),
        memory=nd.TensorMemory(sums=(sums, COLUMNS)), turns=nd.Ring(sums, empty=32 * READERS),
    )  # fmt: skip

    @nd.kernel(threads=32 * (READERS + 2), shared=shared)
    def overlapped(
        a_map: nd.u64, b_map: nd.u64, out: nd.u64, pitch: nd.i32, steps: nd.i32, across: nd.i32, tiles: nd.i32,
    ):  # fmt: skip
        shared.init()
        ring, turns, sums = shared.ring, shared.turns, shared.memory.sums
        state, turn = ring.start(), turns.start()
        if nd.warp() == LOADER and nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for tile in range(cuda.blockIdx.x, tiles, cuda.gridDim.x):
                y, x = ROWS * (tile // across), COLUMNS * (tile % across)
                for step in range(steps):
                    ring.acquire(state)
                    ring.expect(state, STAGE)
                    a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                    load(a, b, a_map, b_map, step, y, x, ring.full(state))
                    state = ring.advance(state)
        elif nd.warp() == MULTIPLIER and nd.lane() == 0:
            for _ in range(cuda.blockIdx.x, tiles, cuda.gridDim.x):
                turns.acquire(turn)  # its sums have been read
                nd.tcgen05_fence_after_thread_sync()
                for step in range(steps):
                    ring.wait(state)
                    a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                    multiply(sums.at(turn.stage), a, b, step)
                    nd.tcgen05_commit(ring.empty(state))
                    state = ring.advance(state)
                nd.tcgen05_commit(turns.full(turn))
                turn = turns.advance(turn)
        elif nd.warp() < READERS:
            for tile in range(cuda.blockIdx.x, tiles, cuda.gridDim.x):
                y, x = ROWS * (tile // across), COLUMNS * (tile % across)
                turns.wait(turn)
                nd.tcgen05_fence_after_thread_sync()
                store(sums.warp_at(turn.stage), out, y + cuda.threadIdx.x, x, pitch)
                nd.tcgen05_fence_before_thread_sync()
                turns.arrive(turn)
                turn = turns.advance(turn)
        cuda.syncthreads()
        if nd.warp() == 0:
            shared.memory.free()

    return launch(overlapped, blocks, down, across, steps, across, down * across)


@nd.pipeline
def paired(stages=3, steps=4, pairs=1, across=1):
    """The same by pairs of blocks: each loads its half of A and of B, and one thread multiplies for both."""
    shared = nd.Shared(
        a=nd.Array((stages, ROWS, DEPTH), nd.float16, swizzle="128B"), ring=nd.Ring(stages),
        b=nd.Array((stages, COLUMNS // 2, DEPTH), nd.float16, swizzle="128B"), ready=nd.Barrier(),
        memory=nd.TensorMemory(pair=True, sums=COLUMNS),
    )  # fmt: skip
    BOTH, HALF = 0b11, COLUMNS // 2

    @nd.kernel(threads=32 * (READERS + 2), shared=shared)
    def paired(a_map: nd.u64, b_map: nd.u64, out: nd.u64, pitch: nd.i32, steps: nd.i32):
        shared.init()
        nd.cluster_sync()  # the barriers of both blocks are there
        ring, state, ready, sums = shared.ring, shared.ring.start(), shared.ready, shared.memory.sums
        rank, y, x = nd.cluster_ctarank(), ROWS * cuda.blockIdx.x, COLUMNS * cuda.blockIdx.y
        if nd.warp() == LOADER and nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                if rank == 0:
                    ring.expect(state, 2 * (shared.a.stride + shared.b.stride))
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                full = nd.mapa_shared_cluster(ring.full(state), 0)  # who multiplies waits for both halves
                nd.cp_async_bulk_tensor_2d_pair(a, a_map, DEPTH * step, y, full)
                nd.cp_async_bulk_tensor_2d_pair(b, b_map, DEPTH * step, x + HALF * rank, full)
                state = ring.advance(state)
        elif nd.warp() == MULTIPLIER and nd.lane() == 0 and rank == 0:
            for step in range(steps):
                ring.wait(state)
                multiply_for_both(sums.at(), shared.a.at(state.stage), shared.b.at(state.stage), step)
                nd.tcgen05_commit_multicast_pair(ring.empty(state), BOTH)
                state = ring.advance(state)
            nd.tcgen05_commit_multicast_pair(ready.at(), BOTH)
        elif nd.warp() < READERS:
            ready.wait(0)
            nd.tcgen05_fence_after_thread_sync()
            store(sums.warp_at(), out, y + cuda.threadIdx.x, x, pitch)
            nd.tcgen05_fence_before_thread_sync()
        nd.cluster_sync()
        if nd.warp() == 0:
            shared.memory.free()

    grid = 2 * pairs, across
    return launch(paired, grid, 2 * pairs, across, steps, columns=COLUMNS // 2, cluster=(2, 1))

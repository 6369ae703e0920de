"""A persistent GEMM for Hopper: C = A B^T in bfloat16, by clusters that load what they share once.

Blocks take tiles of C in turn, the blocks of a cluster tiles below each other, so that B's part is the same for
all of them: each asks for some of its rows, and TMA brings them to all. One warp asks; warpgroups of four warps
multiply by wgmma, each 64 rows, and leave a step's products running while they wait for the next step's stage.
Sums go through swizzled tiles to a TMA store, which runs while the next tile of C begins.
"""

from typing import no_type_check

import ml_dtypes
import numpy as np
from numba import cuda

import numba_deform as nd

DEPTH = SIDE = 64  # elements of k in a stage; rows of a warpgroup, and columns of a tile that is stored


@nd.pipeline
def gemm(
    stages: int = 3, columns: int = 128, groups: int = 1, cluster: int = 2, clusters: int = 1,
    down: int = 1, across: int = 2, steps: int = 3,
) -> nd.Launch:  # fmt: skip
    """C = A B^T in bfloat16, down x across tiles of cluster x groups x 64 rows, which clusters take in turn."""
    dtype, rows, boxes = ml_dtypes.bfloat16, SIDE * groups, columns // SIDE
    empty = 4 * groups if cluster > 1 else 128 * groups  # warps of a cluster's blocks, or threads
    shared = nd.Shared(
        a=nd.Array((stages, rows, DEPTH), dtype, swizzle="128B"),
        b=nd.Array((stages, columns, DEPTH), dtype, swizzle="128B", cluster=cluster),
        c=nd.Array((groups * boxes, SIDE, SIDE), dtype, swizzle="128B"),
        ring=nd.Ring(stages, full=2, empty=empty, cluster=cluster),  # full: a load of A and one of B
        group=nd.NamedBarrier(128, count=groups),
    )
    ahead = min(stages - 1, 1)  # steps whose products still run when the next step's are issued
    ring, product = shared.ring, nd.WarpgroupProduct(columns, dtype).functions()

    @nd.function
    @no_type_check
    def produce(a_map, b_map, tile, state, steps):
        """One thread asks for what a tile of C needs; the state of the next use."""
        for step in range(steps):
            ring.acquire(state)
            shared.a.load(state.stage, a_map, (DEPTH * step, rows * tile[0]), ring.full(state))
            shared.b.load(state.stage, b_map, (DEPTH * step, columns * tile[1]), ring.full(state))
            state = ring.advance(state)
        return state

    @nd.function
    @no_type_check
    def store(c_map, tile, group, sums):
        """A warpgroup's sums to its tiles, which the last store has read by then, and from there to C."""
        leader, first = cuda.threadIdx.x == 128 * group, boxes * group
        if leader:
            nd.cp_async_bulk_wait_group_read(0)
        shared.group.sync(group)
        product.store_tile(shared.c.at(first), 16 * (nd.warp() % 4), sums)
        nd.fence_proxy_async()
        shared.group.sync(group)
        if leader:
            for box in range(boxes):
                x, y = columns * tile[1] + SIDE * box, rows * tile[0] + SIDE * group
                nd.cp_async_bulk_tensor_2d_store(c_map, x, y, shared.c.at(first + box))
            nd.cp_async_bulk_commit_group()

    @nd.kernel(threads=128 * groups + 32, whole_program=True, shared=shared)
    @no_type_check
    def gemm(a_map: nd.u64, b_map: nd.u64, c_map: nd.u64, down: nd.i32, across: nd.i32, steps: nd.i32):
        shared.init()
        state, group, rank = ring.start(), nd.warp() // 4, nd.int32(nd.cluster_ctarank())
        if nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            nd.fence_proxy_tensormap_acquire_sys(c_map)
        first, others = nd.int32(cuda.blockIdx.x // cluster), nd.int32(cuda.gridDim.x // cluster)
        for number in range(first, nd.int32(down * across), others):
            y, x = nd.tile_at(number, down, across)
            tile = cluster * y + rank, x
            if group < groups:
                sums, before = product.zeros(), state
                for step in range(steps):
                    ring.wait(state)
                    product.add(sums, shared.a.at(state.stage, SIDE * group), shared.b.at(state.stage), step)
                    product.wait(sums, ahead)
                    if step >= ahead:
                        ring.arrive(before if ahead else state)
                    before, state = state, ring.advance(state)
                product.wait(sums, 0)
                if ahead:
                    ring.arrive(before)
                store(c_map, tile, group, sums)
            elif nd.lane() == 0:
                state = produce(a_map, b_map, tile, state, steps)
        nd.cp_async_bulk_wait_group(0)
        nd.cluster_sync()  # other blocks arrive on barriers of this one until they are done

    random, depth = np.random.default_rng(1), DEPTH * steps
    a, b = (random.standard_normal((n, depth)).astype(dtype) for n in (cluster * rows * down, columns * across))
    c = a.astype(np.float64) @ b.astype(np.float64).T
    maps = [nd.TensorMapArray([nd.TensorMap.of(m, tile)]) for m, tile in
            ((a, shared.a), (b, shared.b), (np.empty(c.shape, dtype), shared.c))]  # fmt: skip
    moved, flops = a.nbytes + b.nbytes + 2 * c.size, 2 * c.size * depth
    return nd.Launch(gemm, cluster * clusters, [*maps, down, across, steps], {"c_map": c}, cluster=cluster,
                     bytes=moved, flops=flops)  # fmt: skip

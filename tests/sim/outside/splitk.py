"""C = A B^T, k split over the two blocks of a cluster; rank 1 sends its sums to rank 0."""
import numpy as np
from numba import cuda

import numba_deform as nd


@nd.pipeline
def splitk(stages=2, steps=4, tiles=1):
    """steps: 64-deep tiles of k in all; each rank takes every second."""
    part = nd.Array((stages, 64, 64), nd.float16, swizzle="128B")
    shared = nd.Shared(
        a=part, b=part,
        other=nd.Array((64, 64), nd.float32),
        ring=nd.Ring(stages, empty=128),
        sent=nd.Barrier(128),
    )
    ring = shared.ring
    p = nd.WarpgroupProduct(64).functions()

    @nd.kernel(threads=160, shared=shared, whole_program=True)
    def kernel(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        nd.cluster_arrive()
        nd.cluster_wait()
        rank = nd.int32(nd.cluster_ctarank())
        tile = nd.int32(cuda.blockIdx.x) // 2
        if nd.warp() == 4:
            if nd.lane() == 0:
                nd.fence_proxy_tensormap_acquire_sys(a_map)
                nd.fence_proxy_tensormap_acquire_sys(b_map)
                state = ring.start()
                for step in range(rank, steps, 2):
                    ring.acquire(state)
                    ring.expect(state, shared.a.box_bytes + shared.b.box_bytes)
                    full, a, b = ring.full(state), shared.a.at(state.stage), shared.b.at(state.stage)
                    nd.cp_async_bulk_tensor_2d(a, a_map, 64 * step, 0, full)
                    nd.cp_async_bulk_tensor_2d(b, b_map, 64 * step, 64 * tile, full)
                    state = ring.advance(state)
        else:
            sums = p.zeros()
            state = ring.start()
            for _ in range(rank, steps, 2):
                ring.wait(state)
                p.add(sums, shared.a.at(state.stage), shared.b.at(state.stage), 1)
                p.wait(sums, 0)
                ring.release(state)
                state = ring.advance(state)
            me = nd.uint32(4 * cuda.threadIdx.x)
            if rank == 1:
                there = nd.mapa_shared_cluster(shared.other.at(0), 0)
                for i in nd.static_range(32):
                    nd.st_shared_cluster_b32(there + me + nd.uint32(512 * i), nd.mov_b32_f32(sums[i]))
                nd.mbarrier_arrive_cluster(nd.mapa_shared_cluster(shared.sent.at(), 0))
            else:
                shared.sent.wait(0)
                other = shared.other.view()
                t = nd.int32(cuda.threadIdx.x)
                for i in nd.static_range(32):
                    sums[i] += other[2 * i + t // 64, t % 64]
                p.store(out, 16 * nd.warp(), 64 * tile, sums)
        nd.cluster_arrive()
        nd.cluster_wait()

    rng = np.random.default_rng(5)
    a = rng.integers(-4, 5, (64, 64 * steps)).astype(np.float16)
    b = rng.integers(-4, 5, (64 * tiles, 64 * steps)).astype(np.float16)
    right = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float32)
    maps = [nd.TensorMapArray([nd.TensorMap.of(x, part)]) for x in (a, b)]
    return nd.Launch(kernel, 2 * tiles, [*maps, np.zeros_like(right), steps], {"out": right}, cluster=2)

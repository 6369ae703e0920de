"""C = A B^T, k split over the two blocks of a cluster; rank 1 sends its sums to rank 0 by one bulk copy."""
import numpy as np
from numba import cuda

import numba_deform as nd


@nd.pipeline
def splitk_copied(stages=2, steps=6):
    """steps: 64-deep tiles of k in all; each rank takes every second."""
    part, sums_of = nd.Array((stages, 64, 64), nd.float16, swizzle="128B"), nd.Array((64, 64), nd.float32)
    shared = nd.Shared(a=part, b=part, mine=sums_of, other=sums_of, ring=nd.Ring(stages, empty=128),
                       sent=nd.Barrier(), group=nd.NamedBarrier(128))  # fmt: skip
    ring = shared.ring
    p = nd.WarpgroupProduct(64).functions()

    @nd.kernel(threads=160, shared=shared, whole_program=True)
    def kernel(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        nd.cluster_sync()
        rank, state = nd.int32(nd.cluster_ctarank()), ring.start()
        if nd.warp() == 4:
            if nd.lane() == 0:
                nd.fence_proxy_tensormap_acquire_sys(a_map)
                nd.fence_proxy_tensormap_acquire_sys(b_map)
                for step in range(rank, steps, 2):
                    ring.acquire(state)
                    ring.expect(state, shared.a.box_bytes + shared.b.box_bytes)
                    nd.cp_async_bulk_tensor_2d(shared.a.at(state.stage), a_map, 64 * step, 0, ring.full(state))
                    nd.cp_async_bulk_tensor_2d(shared.b.at(state.stage), b_map, 64 * step, 0, ring.full(state))
                    state = ring.advance(state)
        else:
            sums, t = p.zeros(), nd.int32(cuda.threadIdx.x)
            for _ in range(rank, steps, 2):
                ring.wait(state)
                p.add(sums, shared.a.at(state.stage), shared.b.at(state.stage), 1)
                p.wait(sums, 0)
                ring.arrive(state)
                state = ring.advance(state)
            if rank == 1:
                mine = shared.mine.view()
                for i in nd.static_range(32):
                    mine[2 * i + t // 64, t % 64] = sums[i]
                nd.fence_proxy_async()
                shared.group.sync()
                if t == 0:
                    there = nd.mapa_shared_cluster(shared.other.at(0), 0)
                    full = nd.mapa_shared_cluster(shared.sent.at(), 0)
                    nd.cp_async_bulk_shared_cluster(there, shared.mine.at(0), 16384, full)
            else:
                if t == 0:
                    shared.sent.expect(16384)
                shared.sent.wait(0)
                other = shared.other.view()
                for i in nd.static_range(32):
                    sums[i] += other[2 * i + t // 64, t % 64]
                p.store(out, 16 * nd.warp(), 0, sums)
        nd.cluster_sync()

    rng = np.random.default_rng(5)
    a, b = rng.integers(-4, 5, (2, 64, 64 * steps)).astype(np.float16)
    right = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float32)
    maps = [nd.TensorMapArray([nd.TensorMap.of(x, part)]) for x in (a, b)]
    return nd.Launch(kernel, 2, [*maps, np.zeros_like(right), steps], {"out": right}, cluster=2)

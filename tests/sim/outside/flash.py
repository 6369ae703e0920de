"""FlashAttention's forward: one warp loads, four multiply."""
import numpy as np
from numba import cuda

import numba_deform as nd


@nd.pipeline
def flash(stages=2, steps=3, blocks=1):
    tile = nd.Array((stages, 64, 64), nd.float16, swizzle="128B")
    shared = nd.Shared(
        q=nd.Array((1, 64, 64), nd.float16, swizzle="128B"), k=tile, v=tile, q_full=nd.Barrier(1),
        keys=nd.Ring(stages, empty=128), values=nd.Ring(stages, empty=128),
    )
    keys, values = shared.keys, shared.values
    p = nd.WarpgroupProduct(64).functions()
    scale = nd.float32(np.log2(np.e) / 8)

    @nd.kernel(threads=160, shared=shared, whole_program=True)
    def kernel(q_map: nd.u64, k_map: nd.u64, v_map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        block = nd.int32(cuda.blockIdx.x)
        if nd.warp() == 4:
            if nd.lane() == 0:
                nd.fence_proxy_tensormap_acquire_sys(q_map)
                nd.fence_proxy_tensormap_acquire_sys(k_map)
                nd.fence_proxy_tensormap_acquire_sys(v_map)
                shared.q_full.expect(shared.q.box_bytes)
                nd.cp_async_bulk_tensor_2d(shared.q.at(0), q_map, 0, 64 * block, shared.q_full.at())
                ks, vs = keys.start(), values.start()
                for step in range(steps):
                    keys.acquire(ks)
                    keys.expect(ks, shared.k.box_bytes)
                    nd.cp_async_bulk_tensor_2d(shared.k.at(ks.stage), k_map, 0, 64 * step, keys.full(ks))
                    ks = keys.advance(ks)
                    values.acquire(vs)
                    values.expect(vs, shared.v.box_bytes)
                    nd.cp_async_bulk_tensor_2d(shared.v.at(vs.stage), v_map, 0, 64 * step, values.full(vs))
                    vs = values.advance(vs)
        else:
            sums = p.zeros()
            scores = p.zeros()
            most = cuda.local.array(2, nd.float32)
            total = cuda.local.array(2, nd.float32)
            for h in nd.static_range(2):
                most[h] = nd.float32(-np.inf)
                total[h] = nd.float32(0)
            ks, vs = keys.start(), values.start()
            shared.q_full.wait(0)
            for _ in range(steps):
                keys.wait(ks)
                p.add(scores, shared.q.at(0), shared.k.at(ks.stage), 0)
                p.wait(scores, 0)
                keys.release(ks)
                ks = keys.advance(ks)
                for h in nd.static_range(2):
                    now = p.row_max(scores, h, most[h])
                    shrink = nd.ex2_approx_f32(scale * (most[h] - now))
                    most[h] = now
                    p.scale_row(sums, h, shrink)
                    total[h] = total[h] * shrink
                for j in nd.static_range(8):
                    for h in nd.static_range(2):
                        for e in nd.static_range(2):
                            i = 4 * j + 2 * h + e
                            scores[i] = nd.ex2_approx_f32(scale * (scores[i] - most[h]))
                for h in nd.static_range(2):
                    total[h] = total[h] + p.row_sum(scores, h)
                values.wait(vs)
                p.add_held(sums, scores, shared.v.at(vs.stage))
                p.wait(sums, 0)
                values.release(vs)
                vs = values.advance(vs)
            for h in nd.static_range(2):
                p.scale_row(sums, h, nd.float32(1) / total[h])
            p.store(out, 64 * block + 16 * nd.warp(), 0, sums)

    rng = np.random.default_rng(3)
    q = rng.standard_normal((64 * blocks, 64)).astype(np.float16)
    k, v = (rng.standard_normal((64 * steps, 64)).astype(np.float16) for _ in range(2))
    s = q.astype(np.float64) @ k.astype(np.float64).T / 8
    w = np.exp(s - s.max(1, keepdims=True))
    right = (w / w.sum(1, keepdims=True)) @ v.astype(np.float64)
    pairs = (q, shared.q), (k, shared.k), (v, shared.v)
    maps = [nd.TensorMapArray([nd.TensorMap.of(x, part)]) for x, part in pairs]
    out = np.zeros((64 * blocks, 64), np.float32)
    return nd.Launch(kernel, blocks, [*maps, out, steps], {"out": right.astype(np.float32)}, tolerance=2e-3)

"""FlashAttention's forward: softmax(Q K^T / 8) V for heads of 64 channels, by roles, on tensor cores.

One warp asks for tiles of 64 keys and of their values, each through a ring of its own. Four warps for each 64
queries multiply them, by ``mma.sync`` or, as one warpgroup, by ``wgmma``. No score leaves the registers: each
row keeps its largest one so far, the sum of its powers, and its output, which shrink when a larger one comes.
"""

import math
from typing import no_type_check

import numpy as np
from numba import cuda

import numba_deform as nd

SIDE = 64  # queries of four warps, keys of a tile, and channels of a head
SCALE = nd.float32(math.log2(math.e) / math.sqrt(SIDE))  # powers of 2 are an instruction, those of e are not
LOWEST = nd.float32(-np.inf)


@nd.pipeline
def attention(
    by: str = "mma", stages: int = 2, groups: int = 1, blocks: int = 1, heads: int = 1, steps: int = 4,
) -> nd.Launch:
    """FlashAttention's forward by="mma" or "wgmma": 64 x steps keys, 64 x groups x blocks queries a head."""
    if by not in ("mma", "wgmma"):
        raise nd.ConfigError("by", by, "must be mma or wgmma")
    WGMMA, CONSUMERS = by == "wgmma", 4 * groups
    product = (nd.WarpgroupProduct if WGMMA else nd.WarpProduct)(SIDE).functions()
    tiles = nd.Array((stages, SIDE, SIDE), nd.float16, swizzle="128B")
    queries = nd.Array((groups, SIDE, SIDE), nd.float16, swizzle="128B")
    ring = nd.Ring(stages, empty=32 * CONSUMERS)
    shared = nd.Shared(q=queries, k=tiles, v=tiles, queries=nd.Barrier(), keys=ring, values=ring)

    @nd.function
    @no_type_check
    def fetch(q_map, k_map, v_map, first, first_key, steps):
        """The producer: all queries of the block, then keys and values in turn."""
        nd.fence_proxy_tensormap_acquire_sys(q_map)
        nd.fence_proxy_tensormap_acquire_sys(k_map)
        nd.fence_proxy_tensormap_acquire_sys(v_map)
        keys, values = shared.keys, shared.values
        shared.queries.expect(shared.q.nbytes)
        for group in range(groups):
            nd.cp_async_bulk_tensor_2d(shared.q.at(group), q_map, 0, first + SIDE * group, shared.queries.at())
        k, v = keys.start(), values.start()
        for step in range(steps):
            keys.acquire(k)
            keys.expect(k, shared.k.box_bytes)
            nd.cp_async_bulk_tensor_2d(shared.k.at(k.stage), k_map, 0, first_key + SIDE * step, keys.full(k))
            k = keys.advance(k)
            values.acquire(v)
            values.expect(v, shared.v.box_bytes)
            nd.cp_async_bulk_tensor_2d(shared.v.at(v.stage), v_map, 0, first_key + SIDE * step, values.full(v))
            v = values.advance(v)

    @nd.function
    @no_type_check
    def attend(out, first, steps):
        """A consumer warp: 16 rows of queries against all keys."""
        keys, values, group, row = shared.keys, shared.values, nd.warp() // 4, 16 * (nd.warp() % 4)
        k, v, total = keys.start(), values.start(), product.zeros()
        largest, sums = cuda.local.array(2, nd.float32), cuda.local.array(2, nd.float32)
        for h in nd.static_range(2):  # of a lane's two rows
            largest[h], sums[h] = LOWEST, nd.float32(0)
        shared.queries.wait(0)
        for _ in range(steps):
            scores = product.zeros()
            keys.wait(k)
            if WGMMA:
                product.add(scores, shared.q.at(group), shared.k.at(k.stage), 0)
                product.wait(scores, 0)
            else:
                product.add(scores, shared.q.at(group), row, shared.k.at(k.stage))
            keys.release(k)
            k = keys.advance(k)
            for h in nd.static_range(2):
                new = product.row_max(scores, h, largest[h])
                shrink = nd.ex2_approx_ftz_f32(SCALE * (largest[h] - new))
                for j in nd.static_range(SIDE // 8):
                    for i in nd.static_range(4 * j + 2 * h, 4 * j + 2 * h + 2):
                        scores[i] = nd.ex2_approx_ftz_f32(SCALE * (scores[i] - new))
                sums[h] = sums[h] * shrink + product.row_sum(scores, h)
                product.scale_row(total, h, shrink)
                largest[h] = new
            values.wait(v)
            product.add_held(total, scores, shared.v.at(v.stage))
            if WGMMA:
                product.wait(total, 0)
            values.release(v)
            v = values.advance(v)
        for h in nd.static_range(2):
            product.scale_row(total, h, nd.rcp_approx_ftz_f32(sums[h]))
        product.store(out, first + SIDE * group + row, 0, total)

    @nd.kernel(threads=32 * CONSUMERS + 32, whole_program=WGMMA, shared=shared)
    @no_type_check
    def attention(q_map: nd.u64, k_map: nd.u64, v_map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        first = nd.int32((cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x) * groups * SIDE)
        if nd.warp() < CONSUMERS:
            attend(out, first, steps)
        elif nd.lane() == 0:
            fetch(q_map, k_map, v_map, first, nd.int32(cuda.blockIdx.y) * steps * SIDE, steps)

    count = {"q": groups * blocks, "k": steps, "v": steps}  # tiles of a head
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal((heads, SIDE * n, SIDE)).astype(np.float16) for n in count.values())
    scores = np.exp(q.astype(np.float64) @ k.astype(np.float64).swapaxes(1, 2) / math.sqrt(SIDE))
    right = (scores / scores.sum(2, keepdims=True) @ v.astype(np.float64)).reshape(-1, SIDE)
    maps = [nd.TensorMapArray([nd.TensorMap.of(x.reshape(-1, SIDE), tiles)]) for x in (q, k, v)]
    args = [*maps, np.empty(right.shape, np.float32), steps]
    moved, flops = q.nbytes + k.nbytes + v.nbytes + 4 * right.size, 4 * scores.size * SIDE
    # Powers are rounded to fp16 before they meet the values.
    return nd.Launch(attention, (blocks, heads), args, {"out": right}, tolerance=2e-3, bytes=moved, flops=flops)

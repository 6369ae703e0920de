"""Rows chosen by an index, gathered by bulk copies through stages; one arrival per warp; bulk stores out."""
import numpy as np
from numba import cuda

import numba_deform as nd

ROWS, COLS = 4, 64  # of a stage: four rows that the indices name


@nd.pipeline
def gather(stages=3, steps=5):
    """out[i] = 3 * data[index[i]]: warp 0 asks, warps 1 and 2 compute halves, and store them by bulk copies."""
    shared = nd.Shared(
        tile=nd.Array((stages, ROWS, COLS), nd.float32, alignment=128),
        result=nd.Array((2, ROWS // 2, COLS), nd.float32, alignment=128),
        ring=nd.Ring(stages, empty=2),
    )
    ring, ROW = shared.ring, 4 * COLS

    @nd.kernel(threads=96, shared=shared)
    def kernel(data: nd.float32[:, :], index: nd.int32[:], out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        state = ring.start()
        if nd.warp() == 0:
            lane = nd.lane()
            for step in range(steps):
                ring.acquire(state)
                cuda.syncwarp()
                if lane == 0:
                    ring.expect(state, ROWS * ROW)
                cuda.syncwarp()
                if lane < ROWS:
                    row = index[ROWS * step + lane]
                    place = shared.tile.at(state.stage) + nd.uint32(ROW * lane)
                    source = nd.global_at(nd.global_address(data), COLS * row, 4)
                    nd.cp_async_bulk_load(place, source, ROW, ring.full(state))
                state = ring.advance(state)
        else:
            half = nd.warp() - 1
            tile, result = shared.tile.view(), shared.result.view()
            for step in range(steps):
                ring.wait(state)
                if nd.lane() == 0:
                    nd.cp_async_bulk_wait_group_read(0)
                cuda.syncwarp()
                for r in range(ROWS // 2):
                    for c in range(nd.lane(), COLS, 32):
                        result[half, r, c] = 3 * tile[state.stage, 2 * half + r, c]
                nd.fence_proxy_async()
                cuda.syncwarp()
                if nd.lane() == 0:
                    nd.mbarrier_arrive(ring.empty(state))
                    place = nd.global_at(nd.global_address(out), COLS * (ROWS * step + 2 * half), 4)
                    nd.cp_async_bulk_store(place, shared.result.at(half), 2 * ROW)
                    nd.cp_async_bulk_commit_group()
                state = ring.advance(state)
            if nd.lane() == 0:
                nd.cp_async_bulk_wait_group(0)

    rng = np.random.default_rng(9)
    data = rng.standard_normal((16, COLS)).astype(np.float32)
    index = rng.integers(0, 16, ROWS * steps).astype(np.int32)
    args = [data, index, np.zeros((ROWS * steps, COLS), np.float32), steps]
    return nd.Launch(kernel, 1, args, {"out": 3 * data[index]})

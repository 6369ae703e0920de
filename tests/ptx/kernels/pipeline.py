"""A pipeline in Numba whose PTX is stored beside it, with the lines of this file (``stored``)."""

from numba import cuda, int32, uint32, uint64

import numba_deform as nd
from numba_deform import (  # fmt: skip
    cp_async_bulk_load,
    fence_mbarrier_init,
    fence_proxy_async,
    i32,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    mbarrier_try_wait_parity,
    shared_address,
    st_global_b32,
    u64,
)

STAGES, LANES, WORDS = 2, 32, 64


@nd.kernel(threads=2 * LANES)
def pipeline(data: u64, out: u64, rows: i32):
    """Each row of ``out`` is that of ``data``, doubled."""
    tiles = cuda.shared.array(WORDS, uint32, alignment=128)
    full = shared_address(cuda.shared.array(STAGES, uint64))
    empty = shared_address(cuda.shared.array(STAGES, uint64))
    thread = int32(cuda.threadIdx.x)
    if thread == 0:
        for s in range(STAGES):
            mbarrier_init(full + uint32(8 * s), 1)
            mbarrier_init(empty + uint32(8 * s), LANES)
        fence_mbarrier_init()
    cuda.syncthreads()
    if thread == LANES:
        for i in range(rows):
            stage, parity = i % STAGES, uint32((i // STAGES + 1) % 2)
            while mbarrier_try_wait_parity(empty + uint32(8 * stage), parity) == 0:
                pass
            mbarrier_arrive_expect_tx(full + uint32(8 * stage), 128)
            tile = shared_address(tiles) + uint32(128 * stage)
            cp_async_bulk_load(tile, data + uint64(128 * i), 128, full + uint32(8 * stage))
    elif thread < LANES:
        for i in range(rows):
            stage, parity = i % STAGES, uint32((i // STAGES) % 2)
            while mbarrier_try_wait_parity(full + uint32(8 * stage), parity) == 0:
                pass
            doubled = tiles[LANES * stage + thread] * uint32(2)
            st_global_b32(out + uint64(4 * (LANES * i + thread)), doubled)
            fence_proxy_async()
            mbarrier_arrive(empty + uint32(8 * stage))

"""The sums of a matrix's columns by two roles: one warp asks for tiles, four add up what has come."""

import numpy as np

import numba_deform as nd

STAGES, ROWS, COLUMNS, WARPS = 4, 16, 32, 4
shared = nd.Shared(
    tiles=nd.Array((STAGES, ROWS, COLUMNS), nd.float32, alignment=128),
    ring=nd.Ring(STAGES, empty=32 * WARPS),
    sums=nd.Array((WARPS, COLUMNS), nd.float32),
    consumers=nd.NamedBarrier(32 * WARPS),
)


@nd.function
def produce(map, steps):
    ring, state = shared.ring, shared.ring.start()
    nd.fence_proxy_tensormap_acquire_sys(map)
    for step in range(steps):
        ring.acquire(state)
        ring.expect(state, shared.tiles.stride)
        nd.cp_async_bulk_tensor_2d(shared.tiles.at(state.stage), map, 0, ROWS * step, ring.full(state))
        state = ring.advance(state)


@nd.function
def consume(number, out, steps):
    ring, state, tiles, sums = shared.ring, shared.ring.start(), shared.tiles.view(), shared.sums.view()
    total = nd.float32(0)
    for _ in range(steps):
        ring.wait(state)
        for row in range(number, ROWS, WARPS):
            total += tiles[state.stage, row, nd.lane()]
        ring.release(state)
        state = ring.advance(state)
    sums[number, nd.lane()] = total
    shared.consumers.sync()
    if number == 0:
        for other in range(1, WARPS):
            total += sums[other, nd.lane()]
        out[nd.lane()] = total


@nd.kernel(threads=32 + 32 * WARPS, shared=shared)
def column_sums(map: nd.u64, out: nd.float32[:], steps: nd.i32):
    shared.init()
    if nd.warp() > 0:
        consume(nd.warp() - 1, out, steps)
    elif nd.lane() == 0:
        produce(map, steps)


def arguments(steps=9):
    """The matrix, and the kernel's arguments."""
    data = np.random.default_rng(1).integers(-9, 9, (ROWS * steps, COLUMNS)).astype(np.float32)
    maps = nd.TensorMapArray([nd.TensorMap.of(data, (COLUMNS, ROWS))])
    return data, [maps, np.full(COLUMNS, np.nan, np.float32), steps]

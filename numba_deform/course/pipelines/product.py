"""C = A B^T in fp16 with float32 sums: one warp asks for tiles of A and B, four multiply them on tensor cores.

TMA swizzles the tiles by 128 bytes, so that the eight rows of a matrix that ``ldmatrix`` reads lie in different
banks.
"""

import numpy as np
from numba import cuda

import numba_deform as nd

SIDE, WARPS = 64, 4  # tiles of 64 x 64; each warp has 16 rows of C


@nd.function
def swizzled(tile, row, chunk):
    """The address of eight elements of a row."""
    return nd.uint32(tile + nd.uint32(128 * row + 16 * (chunk ^ (row & 7))))


@nd.pipeline
def product(stages=3, steps=4, tiles=1):
    """C = A B^T on tensor cores, with tiles x tiles blocks of 64 x 64, through a ring of stages."""
    shared = nd.Shared(
        a=nd.Array((stages, SIDE, SIDE), nd.float16, alignment=1024),
        b=nd.Array((stages, SIDE, SIDE), nd.float16, alignment=1024),
        ring=nd.Ring(stages, empty=32 * WARPS),
    )

    @nd.function
    def produce(a_map, b_map, row, column, steps):
        ring, state = shared.ring, shared.ring.start()
        nd.fence_proxy_tensormap_acquire_sys(a_map)
        nd.fence_proxy_tensormap_acquire_sys(b_map)
        for step in range(steps):
            ring.acquire(state)
            ring.expect(state, shared.a.stride + shared.b.stride)
            nd.cp_async_bulk_tensor_2d(shared.a.at(state.stage), a_map, SIDE * step, row, ring.full(state))
            nd.cp_async_bulk_tensor_2d(shared.b.at(state.stage), b_map, SIDE * step, column, ring.full(state))
            state = ring.advance(state)

    @nd.function
    def consume(number, sums, steps):
        ring, state, lane = shared.ring, shared.ring.start(), nd.lane()
        for _ in range(steps):
            ring.wait(state)
            a, b = shared.a.at(state.stage), shared.b.at(state.stage)
            for k in nd.static_range(4):
                x = nd.ldmatrix_x4(swizzled(a, 16 * number + (lane & 15), 2 * k + (lane >> 4)))
                for j in nd.static_range(4):
                    line, chunk = 16 * j + (lane >> 4) * 8 + (lane & 7), 2 * k + (lane >> 3 & 1)
                    y = nd.ldmatrix_x4(swizzled(b, line, chunk))
                    for h in nd.static_range(2):
                        s = 8 * j + 4 * h
                        d = nd.mma_m16n8k16_f16(
                            x[0], x[1], x[2], x[3], y[2 * h], y[2 * h + 1],
                            sums[s], sums[s + 1], sums[s + 2], sums[s + 3],
                        )  # fmt: skip
                        for i in nd.static_range(4):
                            sums[s + i] = d[i]
            ring.release(state)
            state = ring.advance(state)

    @nd.kernel(threads=32 + 32 * WARPS, shared=shared)
    def product(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        row, column = cuda.blockIdx.y * SIDE, cuda.blockIdx.x * SIDE
        if nd.warp() > 0:
            sums = cuda.local.array(32, nd.float32)
            for i in nd.static_range(32):
                sums[i] = nd.float32(0)
            consume(nd.warp() - 1, sums, steps)
            y, x = row + 16 * (nd.warp() - 1) + nd.lane() // 4, column + 2 * (nd.lane() % 4)
            for i in nd.static_range(32):
                out[y + i // 2 % 2 * 8, x + i // 4 * 8 + i % 2] = sums[i]
        elif nd.lane() == 0:
            produce(a_map, b_map, row, column, steps)

    a, b = np.random.default_rng(1).integers(-4, 4, (2, SIDE * tiles, SIDE * steps)).astype(np.float16)
    maps = [nd.TensorMapArray([nd.TensorMap.of(m, (SIDE, SIDE), swizzle="128B")]) for m in (a, b)]
    c = a.astype(np.float32) @ b.T.astype(np.float32)
    return nd.Launch(
        product, (tiles, tiles), [*maps, np.empty_like(c), steps], {"out": c},
        bytes=a.nbytes + b.nbytes + c.nbytes, flops=2 * c.size * SIDE * steps,
    )  # fmt: skip

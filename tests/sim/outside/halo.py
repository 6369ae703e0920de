"""A five-point stencil by persistent blocks, which draw tiles by a ticket."""
import numpy as np
from numba import cuda

import numba_deform as nd

H, W = 8, 32  # of a tile


@nd.pipeline
def halo(blocks=2, down=3, across=2):
    part = nd.Array((2, H + 2, W + 8), nd.float32, alignment=128, padding=64)
    shared = nd.Shared(
        box=part,
        ticket=nd.Array((2,), nd.int32),
        ring=nd.Ring(2, empty=4),
    )
    ring = shared.ring

    @nd.kernel(threads=160, shared=shared)
    def kernel(x_map: nd.u64, counter: nd.u64, out: nd.float32[:, :], down: nd.i32, across: nd.i32):
        shared.init()
        ticket = shared.ticket.view()
        state = ring.start()
        n = down * across
        if nd.warp() == 4:
            if nd.lane() == 0:
                nd.fence_proxy_tensormap_acquire_sys(x_map)
                going = True
                while going:
                    tile = nd.int32(nd.atom_add_gpu_global_u32(counter, 1))
                    ring.acquire(state)
                    ticket[state.stage] = tile
                    if tile < n:
                        ring.expect(state, shared.box.box_bytes)
                        y, x = H * (tile // across) - 1, W * (tile % across) - 4
                        nd.cp_async_bulk_tensor_2d(shared.box.at(state.stage), x_map, x, y, ring.full(state))
                    else:
                        nd.mbarrier_arrive(ring.full(state))
                        going = False
                    state = ring.advance(state)
        else:
            going = True
            while going:
                ring.wait(state)
                tile = ticket[state.stage]
                if tile < n:
                    box = shared.box.box_view(state.stage)
                    y, x = H * (tile // across), W * (tile % across)
                    for r in range(nd.warp(), H, 4):
                        c = nd.lane() + 4
                        around = box[r, c] + box[r + 2, c] + box[r + 1, c - 1] + box[r + 1, c + 1]
                        out[y + r, x + nd.lane()] = around - nd.float32(4) * box[r + 1, c]
                else:
                    going = False
                cuda.syncwarp()
                if nd.lane() == 0:
                    ring.release(state)
                state = ring.advance(state)

    x = np.random.default_rng(7).integers(-50, 50, (H * down, W * across)).astype(np.float32)
    z = np.pad(x.astype(np.float64), 1)
    right = z[:-2, 1:-1] + z[2:, 1:-1] + z[1:-1, :-2] + z[1:-1, 2:] - 4 * x
    maps = nd.TensorMapArray([nd.TensorMap.of(x, part)])
    counter = np.zeros(1, np.uint32)
    args = [maps, counter, np.zeros_like(x), down, across]
    return nd.Launch(kernel, blocks, args, {"out": right.astype(np.float32)})

"""C = A B^T by two warpgroups in turn: each multiplies a tile of C while the other stores its own."""

import numpy as np

import numba_deform as nd


@nd.pipeline
def pingpong(stages=3, steps=4, tiles=4, by_hand=0, registers=0):
    """steps: 64-deep tiles of k; tiles: of 64 columns of C, an even number. A stage is given back when the next
    product is under way, with ``by_hand`` at its empty barrier. With ``registers`` the producer, then a
    warpgroup, gives its own up, and the consumers have so many."""
    part = nd.Array((stages, 64, 64), nd.float16, swizzle="128B")
    turn = nd.NamedBarrier(256)  # of a group that waits for its turn, and the one that gives it
    shared = nd.Shared(a=part, b=part, ring=nd.Ring(stages, empty=128), first=turn, second=turn)
    ring = shared.ring
    p = nd.WarpgroupProduct(64).functions()

    @nd.kernel(threads=384 if registers else 288, min_blocks=1, shared=shared, whole_program=True)
    def kernel(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], steps: nd.i32, tiles: nd.i32):
        shared.init()
        group = nd.warp() // 4
        if group == 2:
            if registers:
                nd.setmaxnreg_dec(24)
            if nd.warp() == 8 and nd.lane() == 0:
                nd.fence_proxy_tensormap_acquire_sys(a_map)
                nd.fence_proxy_tensormap_acquire_sys(b_map)
                state = ring.start()
                for use in range(steps * tiles):
                    ring.acquire(state)
                    ring.expect(state, shared.a.box_bytes + shared.b.box_bytes)
                    full, k, column = ring.full(state), 64 * (use % steps), 64 * (use // steps)
                    nd.cp_async_bulk_tensor_2d(shared.a.at(state.stage), a_map, k, 0, full)
                    nd.cp_async_bulk_tensor_2d(shared.b.at(state.stage), b_map, k, column, full)
                    state = ring.advance(state)
        else:
            if registers:
                nd.setmaxnreg_inc(registers)
            state = ring.start(steps * group)
            for tile in range(group, tiles, 2):
                sums, before = p.zeros(), state
                if group == 1:
                    shared.second.sync()
                elif tile > 0:
                    shared.first.sync()
                for step in range(steps):
                    ring.wait(state)
                    p.add(sums, shared.a.at(state.stage), shared.b.at(state.stage), 1)
                    p.wait(sums, 1)
                    if step > 0:
                        if by_hand:
                            nd.fence_proxy_async()
                            nd.mbarrier_arrive(ring.empty(before))
                        else:
                            ring.release(before)
                    before = state
                    state = ring.advance(state)
                if group == 0:
                    shared.second.arrive()
                elif tile + 1 < tiles:
                    shared.first.arrive()
                p.wait(sums, 0)
                ring.release(before)
                p.store(out, 16 * (nd.warp() % 4), 64 * tile, sums)
                state = ring.advance(state, steps)

    rng = np.random.default_rng(5)
    a = rng.integers(-4, 5, (64, 64 * steps)).astype(np.float16)
    b = rng.integers(-4, 5, (64 * tiles, 64 * steps)).astype(np.float16)
    right = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float32)
    maps = [nd.TensorMapArray([nd.TensorMap.of(x, part)]) for x in (a, b)]
    return nd.Launch(kernel, 1, [*maps, np.zeros_like(right), steps, tiles], {"out": right})

"""tile_copy: copy a tensor tile by tile, TMA load then TMA store, with nothing in between.

Each warp has a ring of stages and one lane that works: it loads a tile, waits for it, stores it from
the same bytes, and before a stage is filled again waits until the store has read it
(``wait_group.read``). No thread ever touches the bytes, so no proxy fence is needed.
"""

from numba import cuda, int32, types, uint32

from ..compiler import i32, kernel, u64
from ..device.integer import div_u32
from ..device.memory import shared_address, shared_at
from ..device.pipeline import Ring, commit, first_state, full_barrier, init_barriers, make_advance, wait
from ..device.sync import fence_mbarrier_init, lane, warp
from ..device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_tensor_3d,
    cp_async_bulk_tensor_3d_store,
    cp_async_bulk_wait_group,
    cp_async_bulk_wait_group_read,
    fence_proxy_tensormap_acquire_sys,
)


def build(box, itemsize, stages=4, warps=4):
    """The kernel for boxes of ``box`` = (height, width, channels) elements of ``itemsize`` bytes."""
    HEIGHT, WIDTH, CHANNELS = box
    BYTES = HEIGHT * WIDTH * CHANNELS * itemsize
    SLOT = -(-BYTES // 128) * 128
    STAGES, WARPS, TILES_BYTES, BARRIERS = stages, warps, warps * stages * SLOT, warps * stages
    advance = make_advance(stages)

    @cuda.jit(device=True, inline="always")
    def corner(tile, tiles_across):
        """(x, y) of tile number ``tile``."""
        row = int32(div_u32(tile, tiles_across))
        return int32((tile - row * tiles_across) * WIDTH), int32(row * HEIGHT)

    @cuda.jit(device=True, forceinline=True)
    def issue(ring, state, load, slots, source, tiles_across):
        """Ask for tile number ``load``."""
        x, y = corner(load, tiles_across)
        commit(ring, state, BYTES)
        slot = shared_at(slots, state.stage, SLOT)
        cp_async_bulk_tensor_3d(slot, source, int32(0), x, y, full_barrier(ring, state))

    @kernel(threads=32 * warps)
    def tile_copy(source: u64, target: u64, tiles_across: i32, tiles: i32):
        """Addresses of the two rank-3 maps (c, w, h), tiles in a row of tiles, tiles in all."""
        buffers = cuda.shared.array(TILES_BYTES, types.uint8, alignment=128)
        barriers = cuda.shared.array(BARRIERS, types.uint64)
        if lane() != 0:
            return
        full = shared_at(shared_address(barriers), warp(), 8 * STAGES)
        ring = Ring(full, uint32(0))
        slots = shared_at(shared_address(buffers), warp(), STAGES * SLOT)
        init_barriers(full, STAGES, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(source)
        fence_proxy_tensormap_acquire_sys(target)

        stride = int32(cuda.gridDim.x) * int32(WARPS)
        load = tile = int32(cuda.blockIdx.x) * int32(WARPS) + warp()
        # The loads run STAGES - 1 tiles ahead of the stores.
        ahead = now = first_state()
        for _ in range(STAGES - 1):
            if load < tiles:
                issue(ring, ahead, load, slots, source, tiles_across)
                ahead = advance(ahead)
                load = int32(load + stride)
        while tile < tiles:
            if load < tiles:
                # The stage ahead was stored from in the last round: that store must have read it.
                cp_async_bulk_wait_group_read(uint32(0))
                issue(ring, ahead, load, slots, source, tiles_across)
                ahead = advance(ahead)
                load = int32(load + stride)
            wait(ring, now)
            x, y = corner(tile, tiles_across)
            slot = shared_at(slots, now.stage, SLOT)
            cp_async_bulk_tensor_3d_store(target, int32(0), x, y, slot)
            cp_async_bulk_commit_group()
            now = advance(now)
            tile = int32(tile + stride)
        cp_async_bulk_wait_group(uint32(0))  # shared memory goes away when the block ends

    return tile_copy

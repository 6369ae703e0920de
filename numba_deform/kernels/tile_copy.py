"""tile_copy: copy a tensor tile by tile, TMA load then TMA store, with nothing in between.

Each warp has a ring of stages and one lane that works: it loads a tile, waits for it, stores it from
the same bytes, and before a stage is filled again waits until the store has read it
(``wait_group.read``). No thread ever touches the bytes, so no proxy fence is needed.
"""

from numba import cuda, int32, uint8, uint32

from ..compiler import i32, kernel, u64
from ..device.integer import div_u32
from ..device.layout import Array, Shared
from ..device.memory import shared_at
from ..device.rings import WarpRing
from ..device.sync import lane, warp
from ..device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_tensor_3d,
    cp_async_bulk_tensor_3d_store,
    cp_async_bulk_wait_group,
    cp_async_bulk_wait_group_read,
    fence_proxy_tensormap_acquire_sys,
)


def layout(box, itemsize, stages, warps):
    """Shared memory of a block, each tile on 128 bytes."""
    height, width, channels = box
    slot = -(-height * width * channels * itemsize // 128) * 128
    return Shared(tiles=Array((warps, stages, slot), uint8, alignment=128), ring=WarpRing(stages, warps))


def build(box, itemsize, stages=4, warps=4):
    """The kernel for boxes of ``box`` = (height, width, channels) elements of ``itemsize`` bytes."""
    HEIGHT, WIDTH, CHANNELS = box
    BYTES = HEIGHT * WIDTH * CHANNELS * itemsize
    STAGES, WARPS, shared = stages, warps, layout(box, itemsize, stages, warps)
    ring, SLOT = shared.ring, shared.tiles.stride // stages

    @cuda.jit(device=True, inline="always")
    def corner(tile, tiles_across):
        """(x, y) of tile number ``tile``."""
        row = int32(div_u32(tile, tiles_across))
        return int32((tile - row * tiles_across) * WIDTH), int32(row * HEIGHT)

    @cuda.jit(device=True, forceinline=True)
    def issue(load, state, slots, source, tiles_across):
        """Ask for tile number ``load``."""
        x, y = corner(load, tiles_across)
        ring.expect(state, BYTES)
        slot = shared_at(slots, state.stage, SLOT)
        cp_async_bulk_tensor_3d(slot, source, int32(0), x, y, ring.full(state))

    @kernel(threads=32 * warps, shared=shared)
    def tile_copy(source: u64, target: u64, tiles_across: i32, tiles: i32):
        """Addresses of the two rank-3 maps (c, w, h), tiles in a row of tiles, tiles in all."""
        if lane() != 0:
            return
        slots = shared.tiles.at(warp())
        ring.init()  # the warp's own, so no other has to wait
        fence_proxy_tensormap_acquire_sys(source)
        fence_proxy_tensormap_acquire_sys(target)

        stride = int32(cuda.gridDim.x) * int32(WARPS)
        load = tile = int32(cuda.blockIdx.x) * int32(WARPS) + warp()
        # The loads run STAGES - 1 tiles ahead of the stores.
        ahead = now = ring.start()
        for _ in range(STAGES - 1):
            if load < tiles:
                issue(load, ahead, slots, source, tiles_across)
                ahead = ring.advance(ahead)
                load = int32(load + stride)
        while tile < tiles:
            if load < tiles:
                # The stage ahead was stored from in the last round: that store must have read it.
                cp_async_bulk_wait_group_read(uint32(0))
                issue(load, ahead, slots, source, tiles_across)
                ahead = ring.advance(ahead)
                load = int32(load + stride)
            ring.wait(now)
            x, y = corner(tile, tiles_across)
            slot = shared_at(slots, now.stage, SLOT)
            cp_async_bulk_tensor_3d_store(target, int32(0), x, y, slot)
            cp_async_bulk_commit_group()
            now = ring.advance(now)
            tile = int32(tile + stride)
        cp_async_bulk_wait_group(uint32(0))  # shared memory goes away when the block ends

    return tile_copy

"""cp.async and its groups: what is waited for, by whom, and how many may stay open."""

import numpy as np
from base import right
from numba import cuda, float32, int32, uint32, uint64

from numba_deform.device.half2 import mov_f32_b32
from numba_deform.device.memory import (
    cp_async_cg_16,
    cp_async_commit_group,
    cp_async_wait_group,
    global_address,
    ld_shared_v4,
    shared_address,
)
from numba_deform.device.sync import bar_sync, fence_proxy_async
from numba_deform.device.tma import cp_async_bulk_commit_group, cp_async_bulk_store, cp_async_bulk_wait_group

WARP, TILES = 32, 6
TILE = 4 * WARP  # floats: 16 bytes for each lane
TWO_TILES, FOUR_TILES = 2 * TILE, 4 * TILE


def floats(count, *out):
    return lambda: [np.arange(count, dtype=np.float32), np.zeros(out, np.float32)]


@cuda.jit(device=True)
def fetch(tiles, place, data, tile):
    """Each lane copies its 16 bytes of a tile."""
    bytes = uint32(16 * cuda.threadIdx.x)
    cp_async_cg_16(tiles + uint32(512 * place) + bytes, data + uint64(512 * tile) + uint64(bytes), 16)


@right(
    source="CUDA C++ Programming Guide, Asynchronous Data Copies: a pipeline of two stages by cp.async",
    args=floats(TILES * TILE, WARP),
    expect=lambda data, out: [(out, data.reshape(TILES, WARP, 4)[:, ::-1].sum((0, 2)))],
)  # fmt: skip
def double_buffering(data, out):
    """The next tile is under way while this one is read: one group stays open. Lanes read what others have
    copied, so there is a syncwarp after the wait, and one before the buffer is filled again."""
    tiles = cuda.shared.array(TWO_TILES, float32, alignment=16)
    lane, total = int32(cuda.threadIdx.x), float32(0)
    fetch(shared_address(tiles), 0, global_address(data), 0)
    cp_async_commit_group()
    for t in range(TILES):
        if t + 1 < TILES:
            fetch(shared_address(tiles), (t + 1) % 2, global_address(data), t + 1)
            cp_async_commit_group()
            cp_async_wait_group(1)
        else:
            cp_async_wait_group(0)
        cuda.syncwarp()
        for i in range(4):
            total += tiles[TILE * (t % 2) + 4 * (31 - lane) + i]
        cuda.syncwarp()
    out[lane] = total


@right(
    source="CUTLASS include/cutlass/gemm/threadblock/mma_multistage.h: groups are committed when there is "
           "nothing to load",
    args=floats(TILES * TILE, WARP),
    expect=lambda data, out: [(out, data.reshape(TILES, WARP, 4)[:, ::-1].sum((0, 2)))],
)  # fmt: skip
def empty_groups_keep_the_count(data, out):
    """A ring of four. Every step commits a group, past the last tile an empty one, so that the same wait for
    "at most two open" is right in every step."""
    tiles = cuda.shared.array(FOUR_TILES, float32, alignment=16)
    lane, total = int32(cuda.threadIdx.x), float32(0)
    for t in range(3):
        fetch(shared_address(tiles), t, global_address(data), t)
        cp_async_commit_group()
    for t in range(TILES):
        cp_async_wait_group(2)
        cuda.syncwarp()
        for i in range(4):
            total += tiles[TILE * (t % 4) + 4 * (31 - lane) + i]
        if t + 3 < TILES:
            fetch(shared_address(tiles), (t + 3) % 4, global_address(data), t + 3)
        cp_async_commit_group()
    out[lane] = total


@right(
    source="PTX ISA, cp.async: src-size smaller than cp-size fills with zeros; CUTLASS zfill for rows past "
           "the end",
    block=64, args=floats(TILE + 50, 4 * 64),
    expect=lambda data, out: [(out, np.r_[data, np.zeros(4 * 64 - len(data))])],
)  # fmt: skip
def zeros_past_the_end(data, out):
    """The last copies have fewer source bytes than 16, down to none; the rest of the 16 is zero. Where there
    are none the source address lies past the end of the array, and is not read."""
    tile = cuda.shared.array(TWO_TILES, float32, alignment=16)
    thread = int32(cuda.threadIdx.x)
    left = int32(4 * (data.size - 4 * thread))
    bytes = uint32(16 if left >= 16 else left if left > 0 else 0)
    place = shared_address(tile) + uint32(16 * thread)
    cp_async_cg_16(place, global_address(data) + uint64(16 * thread), bytes)
    cp_async_commit_group()
    cp_async_wait_group(0)
    x, y, z, w = ld_shared_v4(place)
    out[4 * thread] = mov_f32_b32(x)
    out[4 * thread + 1] = mov_f32_b32(y)
    out[4 * thread + 2] = mov_f32_b32(z)
    out[4 * thread + 3] = mov_f32_b32(w)


@right(
    source="PTX ISA, cp.async.wait_group: N of the most recent groups may be open",
    args=floats(3 * TILE, 3, WARP),
    expect=lambda data, out: [(out, data.reshape(3, WARP, 4).sum(2))],
)  # fmt: skip
def groups_are_used_as_they_come(data, out):
    """Three groups, used one after the other while the later ones are open. Every lane reads only what it has
    copied itself, and there is no barrier anywhere."""
    tiles = cuda.shared.array(FOUR_TILES, float32, alignment=16)
    lane = int32(cuda.threadIdx.x)
    for t in range(3):
        fetch(shared_address(tiles), t, global_address(data), t)
        cp_async_commit_group()
    cp_async_wait_group(2)
    for t in range(3):
        total = float32(0)
        for i in range(4):
            total += tiles[TILE * t + 4 * lane + i]
        out[t, lane] = total
        if t == 0:
            cp_async_wait_group(1)
        else:
            cp_async_wait_group(0)


@right(
    source="PTX ISA, cp.async is a non-bulk copy of the generic proxy; CUTLASS epilogues that store by TMA",
    block=WARP, args=floats(TILE, TILE), expect=lambda data, out: [(out, data)],
)  # fmt: skip
def fetched_one_way_and_stored_the_other(data, out):
    """Tiles come by cp.async and go by a bulk store. The lanes wait for their groups, then fence, then
    synchronise; the bulk group is counted apart from theirs."""
    tile = cuda.shared.array(TILE, float32, alignment=128)
    fetch(shared_address(tile), 0, global_address(data), 0)
    cp_async_commit_group()
    cp_async_wait_group(0)
    fence_proxy_async()
    cuda.syncwarp()
    if cuda.threadIdx.x == 0:
        cp_async_bulk_store(global_address(out), shared_address(tile), 512)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


@right(
    source="HazyResearch/ThunderKittens include/ops/group/memory: load_async_wait with a barrier of the group",
    block=64, args=floats(TILE, 64),
    expect=lambda data, out: [(out, data.reshape(32, 4)[::-1].repeat(2, 0).sum(1))],
)  # fmt: skip
def one_warp_copies_for_both(data, out):
    """The first warp copies and waits; the named barrier after its wait hands the tile to the second warp,
    which has issued nothing and waits for no group."""
    tile = cuda.shared.array(TILE, float32, alignment=16)
    thread = int32(cuda.threadIdx.x)
    if thread < 32:
        fetch(shared_address(tile), 0, global_address(data), 0)
        cp_async_commit_group()
        cp_async_wait_group(0)
    bar_sync(2, 64)
    total = float32(0)
    for i in range(4):
        total += tile[4 * (31 - thread // 2) + i]
    out[thread] = total

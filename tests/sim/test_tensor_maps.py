"""Tensor maps that a kernel makes, on the CPU engine: what is refused, and what orders their use."""

import numpy as np
import pytest
from helpers import always, clean, expect, run
from numba import cuda, int32, uint32, uint64

from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import global_address, global_at, ld_global_b32, shared_address
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tensormap import (
    tensormap_cp_fenceproxy,
    tensormap_replace_box_dim,
    tensormap_replace_elemtype,
    tensormap_replace_global_address,
    tensormap_replace_global_dim,
    tensormap_replace_global_stride,
    tensormap_replace_rank,
)
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_tensor_2d,
    cp_async_bulk_tensor_2d_store,
    cp_async_bulk_wait_group_read,
    fence_proxy_tensormap_acquire_gpu,
    fence_proxy_tensormap_acquire_sys,
)
from numba_deform.engines import faults
from numba_deform.engines.cpu import simulate
from numba_deform.engines.tensormap import Im2colMap, TensorMap, TensorMapArray

WARP, TILE = 32, 32


def template(**options):
    """(one map of a matrix of 8 x 16 words, the matrix, room for another)"""
    data = np.arange(128, dtype=np.uint32).reshape(8, 16)
    return TensorMapArray([TensorMap.of(data, (8, 4), **options)]), data, np.zeros(96, np.uint32)


def using(change, lane=0):
    """A kernel that copies the template, has lane 0 ``change`` it, publishes it and has ``lane`` load a box by
    it."""
    change = cuda.jit(device=True)(change)

    def kernel(maps, data, room, out):
        map = cuda.shared.array(64, uint32, alignment=128)
        tile = cuda.shared.array(TILE, uint32, alignment=128)
        bar = shared_address(cuda.shared.array(1, uint64))
        i = int32(cuda.threadIdx.x)
        if i == 0:
            mbarrier_init(bar, 1)
            fence_mbarrier_init()
        map[i] = ld_global_b32(global_at(maps, i, 4))
        cuda.syncwarp()
        if i == 0:
            change(shared_address(map), data)
        cuda.syncwarp()
        own = uint64((global_address(room) + uint64(127)) & ~uint64(127))
        tensormap_cp_fenceproxy(own, shared_address(map))
        if i == lane:
            fence_proxy_tensormap_acquire_gpu(own)
            mbarrier_arrive_expect_tx(bar, 4 * TILE)
            cp_async_bulk_tensor_2d(shared_address(tile), own, 4, 3, bar)
        mbarrier_wait(bar, 0)
        out[i] = tile[i]

    return kernel


def second_half(map, data):
    tensormap_replace_global_address(map, global_at(global_address(data), 64, 4))
    tensormap_replace_global_dim(map, uint32(1), uint32(4))


def test_a_changed_map():
    maps, data, room = template()
    expected = np.zeros((4, 8), np.uint32)
    expected[:1] = data[7:, 4:12]
    for lane in (0, 9):
        out = np.zeros(TILE, np.uint32)
        clean(using(second_half, lane), maps, data, room, out)
        np.testing.assert_array_equal(out.reshape(4, 8), expected)


@pytest.mark.parametrize("change, kind, words", [
    (lambda map, data: tensormap_replace_box_dim(map, uint32(1), uint32(300)), faults.BadTensorMap,
     "box[1] is 300, but must be 1 to 256"),
    (lambda map, data: tensormap_replace_global_stride(map, uint32(0), uint64(8)), faults.BadTensorMap,
     "strides[0] (of dimension 1) is 8 bytes"),
    (lambda map, data: tensormap_replace_rank(map, uint32(2)), faults.BadTensorMap, "dims[2] is 0"),
    (lambda map, data: tensormap_replace_rank(map, uint32(5)), faults.BadTensorMap,
     "rank of a tensor map by 6"),
    (lambda map, data: tensormap_replace_elemtype(map, uint32(13)), faults.BadTensorMap,
     "dtype of a tensor map by 13: there is no such value"),
    (lambda map, data: tensormap_replace_global_stride(map, uint32(4), uint64(64)), faults.BadTensorMap,
     "strides[4] of a tensor map by 64: there is no such dimension"),
    (lambda map, data: tensormap_replace_global_dim(map, uint32(1), uint32(9)), faults.OutOfRange,
     "maps 576 bytes at byte 0 of data, which has 512"),
    (lambda map, data: tensormap_replace_global_address(map, uint64(4096)), faults.OutOfRange,
     "no array of this launch is there"),
    (lambda map, data: tensormap_replace_box_dim(map + uint32(32), uint32(0), uint32(8)), faults.Misaligned,
     "is not a multiple of 64"),
    (lambda map, data: tensormap_replace_box_dim(map + uint32(128), uint32(0), uint32(8)),
     faults.UninitialisedRead, "map[32]"),
])  # fmt: skip
def test_maps_that_are_none(change, kind, words):
    always(kind, using(change), *template(), np.zeros(TILE, np.uint32), words=words, seeds=2)


def test_bytes_that_are_no_map():
    def kernel(room):
        map = cuda.shared.array(32, uint32, alignment=128)
        map[cuda.threadIdx.x] = uint32(7)
        cuda.syncwarp()
        if cuda.threadIdx.x == 0:
            tensormap_replace_rank(shared_address(map), uint32(0))

    expect(faults.BadTensorMap, kernel, np.zeros(1, np.uint32), words="which holds no tensor map")


def test_maps_in_im2col_mode_have_no_fields_to_replace():
    data = np.zeros((1, 8, 8, 16), np.uint32)
    maps = TensorMapArray([Im2colMap.of(data, (8, 4), lower=(0, 0), upper=(0, 0))])
    kernel = using(second_half)
    expect(faults.BadTensorMap, kernel, maps, data, np.zeros(96, np.uint32), np.zeros(TILE, np.uint32),
           words="address of map[byte 0], a map for im2col mode")  # fmt: skip


def test_the_whole_warp_publishes_one_map():
    def kernel(apart, maps, room):
        map = cuda.shared.array(64, uint32, alignment=128)
        i = int32(cuda.threadIdx.x)
        map[i] = ld_global_b32(global_at(maps, i, 4))
        cuda.syncwarp()
        own = uint64((global_address(room) + uint64(127)) & ~uint64(127))
        if apart == 0 or i < 16:
            tensormap_cp_fenceproxy(own, shared_address(map) + uint32(apart == 2 and i == 9) * uint32(128))
        elif apart == 2:
            tensormap_cp_fenceproxy(own, shared_address(map))
        cuda.syncthreads()

    maps, _, room = template()
    clean(kernel, 0, maps, room)
    expect(faults.WarpDivergence, kernel, 1, maps, room, words="lanes 16-31 never come")
    expect(faults.WarpDivergence, kernel, 2, maps, room, words="other addresses than other lanes")


def test_in_place_and_run_after_run():
    """The map of an argument is replaced where it lies, once: a run leaves it, and schedules start anew."""

    def kernel(maps, data, out):
        map = cuda.shared.array(32, uint32, alignment=128)
        tile = cuda.shared.array(TILE, uint32, alignment=128)
        bar = shared_address(cuda.shared.array(1, uint64))
        i = int32(cuda.threadIdx.x)
        if i == 0:
            mbarrier_init(bar, 1)
            fence_mbarrier_init()
            fence_proxy_tensormap_acquire_sys(maps)
        map[i] = ld_global_b32(global_at(maps, i, 4))
        cuda.syncwarp()
        for turn in range(2):
            if i == 0:
                mbarrier_arrive_expect_tx(bar, 4 * TILE)
                cp_async_bulk_tensor_2d(shared_address(tile), maps, 0, 0, bar)
            mbarrier_wait(bar, turn)
            out[turn, i] = tile[i]
            fence_proxy_async()
            if i == 0:
                tensormap_replace_global_dim(shared_address(map), uint32(0), uint32(4))
            cuda.syncwarp()
            tensormap_cp_fenceproxy(maps, shared_address(map))
            if i == 0:
                fence_proxy_tensormap_acquire_gpu(maps)

    maps, data, _ = template()
    out = np.zeros((2, 4, 8), np.uint32)
    simulate(kernel, 1, WARP, [maps, data, out.reshape(2, 32)], schedules=3)
    np.testing.assert_array_equal(out[0], data[:4, :8])
    np.testing.assert_array_equal(out[1, :, :4], data[:4, :4])
    assert not out[1, :, 4:].any()
    run(kernel, maps, data, out.reshape(2, 32))
    assert not out[0, :, 4:].any()


def test_a_map_of_an_earlier_launch():
    """It needs an acquire in each block, as one of the host's."""

    def make(maps, data, room):
        map = cuda.shared.array(32, uint32, alignment=128)
        map[cuda.threadIdx.x] = ld_global_b32(global_at(maps, cuda.threadIdx.x, 4))
        cuda.syncwarp()
        own = uint64((global_address(room) + uint64(127)) & ~uint64(127))
        tensormap_cp_fenceproxy(own, shared_address(map))

    def use(fence, data, room, out):
        tile = cuda.shared.array(TILE, uint32, alignment=128)
        bar = shared_address(cuda.shared.array(1, uint64))
        own = uint64((global_address(room) + uint64(127)) & ~uint64(127))
        if cuda.threadIdx.x == 0:
            mbarrier_init(bar, 1)
            fence_mbarrier_init()
            if fence:
                fence_proxy_tensormap_acquire_gpu(own)
            mbarrier_arrive_expect_tx(bar, 4 * TILE)
            cp_async_bulk_tensor_2d(shared_address(tile), own, 0, 0, bar)
            mbarrier_wait(bar, 0)
            out[0] = tile[8]

    (maps, data, room), out = template(), np.zeros(1, np.uint32)
    run(make, maps, data, room)
    clean(use, 1, data, room, out)
    assert out[0] == 16
    always(faults.MissingTensormapFence, use, 0, data, room, out, words="has not fenced before")


def stores_by(wait):
    """A kernel that stores by a map that it has made, and changes the map; ``wait``: for the reads before."""

    def kernel(maps, data, room):
        map = cuda.shared.array(32, uint32, alignment=128)
        tile = cuda.shared.array(TILE, uint32, alignment=128)
        i = int32(cuda.threadIdx.x)
        map[i] = ld_global_b32(global_at(maps, i, 4))
        tile[i] = uint32(1000 + i)
        fence_proxy_async()
        cuda.syncwarp()
        own = uint64((global_address(room) + uint64(127)) & ~uint64(127))
        for turn in range(2):
            if i == 0:
                start = global_at(global_address(data), 64 * turn, 4)
                tensormap_replace_global_address(shared_address(map), start)
                tensormap_replace_global_dim(shared_address(map), uint32(1), uint32(4))
                if wait and turn:
                    cp_async_bulk_wait_group_read(0)
            cuda.syncwarp()
            tensormap_cp_fenceproxy(own, shared_address(map))
            if i == 0:
                fence_proxy_tensormap_acquire_gpu(own)
                cp_async_bulk_tensor_2d_store(own, 4, 2, shared_address(tile))
                cp_async_bulk_commit_group()
            cuda.syncwarp()
        if i == 0:
            cp_async_bulk_wait_group_read(0)

    return kernel


def test_stores_by_a_map_of_ones_own():
    maps, data, room = template()
    before = data.copy()
    run(stores_by(True), maps, data, room)
    tile = 1000 + np.arange(TILE).reshape(4, 8)
    for first in (0, 4):
        before[first + 2 : first + 4, 4:12] = tile[:2]
    np.testing.assert_array_equal(data, before)
    always(faults.DataRace, stores_by(False), *template(), words="may still be reading",
           source="tensormap_cp_fenceproxy")  # fmt: skip


def test_an_acquire_by_a_thread_that_has_not_seen_the_map():
    """Another warp acquires the map before it knows of the publication: that acquires the old one."""

    def kernel(late, maps, data, room, out):
        map = cuda.shared.array(32, uint32, alignment=128)
        tile = cuda.shared.array(TILE, uint32, alignment=128)
        bar = shared_address(cuda.shared.array(1, uint64))
        i = int32(cuda.threadIdx.x)
        own = uint64((global_address(room) + uint64(127)) & ~uint64(127))
        if i == 0:
            mbarrier_init(bar, 1)
            fence_mbarrier_init()
        if i < WARP:
            map[i] = ld_global_b32(global_at(maps, i, 4))
            cuda.syncwarp()
            tensormap_cp_fenceproxy(own, shared_address(map))
        elif i == WARP and not late:
            fence_proxy_tensormap_acquire_gpu(own)
        cuda.syncthreads()
        if i == WARP:
            if late:
                fence_proxy_tensormap_acquire_gpu(own)
            mbarrier_arrive_expect_tx(bar, 4 * TILE)
            cp_async_bulk_tensor_2d(shared_address(tile), own, 0, 0, bar)
            mbarrier_wait(bar, 0)
            out[0] = tile[1]

    out = np.zeros(1, np.uint32)
    clean(kernel, 1, *template(), out, block=64)
    assert out[0] == 1
    for seed in range(4):
        with pytest.raises((faults.MissingTensormapFence, faults.BadTensorMap)):
            run(kernel, 0, *template(), out, block=64, seed=seed)

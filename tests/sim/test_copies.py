"""Copies: what TMA, bulk copies and cp.async deliver, when, and what may be done meanwhile."""

import numpy as np
import pytest
from helpers import (
    LANDINGS,
    aligned,
    always,
    clean,
    device,
    expect,
    fault_of,
    floats,
    maps_of,
    nans,
    run,
    syncthreads,
    syncwarp,
)
from numba import cuda, float32, int32, types, uint8, uint32, uint64

from numba_deform.compiler import kernel as typed
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_expect_tx,
    mbarrier_init,
    mbarrier_test_wait_parity,
)
from numba_deform.device.memory import (
    cp_async_cg_16,
    cp_async_commit_group,
    cp_async_wait_group,
    global_address,
    ld_global_b32,
    shared_address,
    st_global_b32,
    st_shared_b32,
)
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async, fence_proxy_async_global
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_load,
    cp_async_bulk_store,
    cp_async_bulk_tensor_1d,
    cp_async_bulk_tensor_1d_store,
    cp_async_bulk_tensor_2d,
    cp_async_bulk_tensor_2d_store,
    cp_async_bulk_tensor_3d,
    cp_async_bulk_tensor_3d_store,
    cp_async_bulk_tensor_4d,
    cp_async_bulk_tensor_4d_store,
    cp_async_bulk_tensor_5d,
    cp_async_bulk_tensor_5d_store,
    cp_async_bulk_wait_group,
    cp_async_bulk_wait_group_read,
    fence_proxy_tensormap_acquire_gpu,
    fence_proxy_tensormap_acquire_sys,
    prefetch_tensormap,
)
from numba_deform.engines import faults
from numba_deform.engines.tensormap import TensorMap, TensorMapArray, swizzle_offsets

LOADS = {
    1: lambda dst, m, c, bar: cp_async_bulk_tensor_1d(dst, m, c[0], bar),
    2: lambda dst, m, c, bar: cp_async_bulk_tensor_2d(dst, m, c[0], c[1], bar),
    3: lambda dst, m, c, bar: cp_async_bulk_tensor_3d(dst, m, c[0], c[1], c[2], bar),
    4: lambda dst, m, c, bar: cp_async_bulk_tensor_4d(dst, m, c[0], c[1], c[2], c[3], bar),
    5: lambda dst, m, c, bar: cp_async_bulk_tensor_5d(dst, m, c[0], c[1], c[2], c[3], c[4], bar),
}
STORES = {
    1: lambda m, c, src: cp_async_bulk_tensor_1d_store(m, c[0], src),
    2: lambda m, c, src: cp_async_bulk_tensor_2d_store(m, c[0], c[1], src),
    3: lambda m, c, src: cp_async_bulk_tensor_3d_store(m, c[0], c[1], c[2], src),
    4: lambda m, c, src: cp_async_bulk_tensor_4d_store(m, c[0], c[1], c[2], c[3], src),
    5: lambda m, c, src: cp_async_bulk_tensor_5d_store(m, c[0], c[1], c[2], c[3], c[4], src),
}


@cuda.jit(device=True)
def full_barrier():
    """A barrier for one arrival that the copy engine may signal and all threads use."""
    bars = cuda.shared.array(1, uint64)
    bar = shared_address(bars)
    if cuda.threadIdx.x == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    return bar


# --- tensor loads ---------------------------------------------------------------------------------
def load_kernel(rank, bytes, alignment=128):
    """Loads one box and hands its bytes out."""
    load = device(LOADS[rank])

    def kernel(maps, corner, out):
        tile = cuda.shared.array(bytes, uint8, alignment=alignment)
        bar = full_barrier()
        tid = cuda.threadIdx.x
        if tid == 0:
            fence_proxy_tensormap_acquire_sys(maps)
            mbarrier_arrive_expect_tx(bar, bytes)
            load(shared_address(tile), maps, corner, bar)
        mbarrier_wait(bar, 0)
        for i in range(tid, bytes, cuda.blockDim.x):
            out[i] = tile[i]

    return kernel


def box_of(array, corner, box):
    """What a box of an array holds, zeros outside; corner and box innermost first."""
    result = np.zeros(box[::-1], array.dtype)
    for index in np.ndindex(*result.shape):
        place = tuple(c + i for c, i in zip(corner[::-1], index, strict=True))
        if all(0 <= p < n for p, n in zip(place, array.shape, strict=True)):
            result[index] = array[place]
    return result


SHAPES = {  # rank -> (shape outermost first, box innermost first, corners)
    1: ((40,), (8,), [(0,), (-4,), (36,), (40,), (-8,), (-2_000_000_000,), (2_000_000_000,)]),
    2: ((6, 16), (4, 3), [(0, 0), (-4, -2), (12, 4), (-4, 0), (0, 6), (16, -3)]),
    3: ((5, 6, 8), (8, 2, 2), [(0, 0, 0), (0, -1, 4), (4, 5, -1), (0, 0, 5), (-8, 2, 2)]),
    4: ((3, 4, 5, 8), (4, 2, 2, 2), [(0, 0, 0, 0), (-4, -1, -1, -1), (4, 4, 3, 2)]),
    5: ((2, 3, 3, 2, 8), (4, 2, 1, 2, 2), [(0, 0, 0, 0, 0), (-4, 1, -1, 2, 1), (4, -1, 2, -1, -1)]),
}


@pytest.mark.parametrize("rank", SHAPES)
def test_tensor_loads_at_and_beyond_the_border(rank):
    shape, box, corners = SHAPES[rank]
    array = floats(int(np.prod(shape))).reshape(shape)
    maps, bytes = maps_of(array, box=box), 4 * int(np.prod(box))
    kernel = load_kernel(rank, bytes)
    for corner in corners:
        for landing in LANDINGS:
            out = np.full(bytes, 99, np.uint8)
            report = run(kernel, maps, np.array(corner, np.int32), out, landing=landing, seed=1)
            expected = box_of(array, corner, box)
            np.testing.assert_array_equal(out.view(np.float32), expected.ravel())
            assert report.copies == 1


def test_the_corner_is_a_32_bit_integer():
    array = floats(40)
    maps, out = maps_of(array, box=(8,)), np.zeros(32, np.uint8)
    run(load_kernel(1, 32), maps, np.array([(1 << 32) + 4]), out)
    np.testing.assert_array_equal(out.view(np.float32), array[4:12])


def test_fill_with_nan_and_every_second_element():
    array = floats(64).reshape(8, 8)
    maps = maps_of(array, box=(8, 4), fill="nan", element_strides=(1, 2))
    out = np.zeros(64, np.uint8)
    run(load_kernel(2, 64), maps, np.array([4, 0], np.int32), out)
    got = out.view(np.float32).reshape(2, 8)
    np.testing.assert_array_equal(got[:, :4], array[0:4:2, 4:8])
    assert np.isnan(got[:, 4:]).all()


@pytest.mark.parametrize("rank", SHAPES)
@pytest.mark.parametrize("dtype, good, bad", [
    (np.uint8, (0, 16, -16), (1, 8, 15, -1)), (np.float16, (8, -8), (1, 4, -3)),
    (np.float32, (4, -4), (1, 2, 3, 35, -1)), (np.float64, (2, -2), (1, -1)),
])  # fmt: skip
def test_the_innermost_coordinate_is_a_multiple_of_16_bytes(rank, dtype, good, bad):
    array = np.zeros((2,) * (rank - 1) + (64,), dtype)
    box = (64 // array.itemsize,) + (1,) * (rank - 1)
    maps, out = maps_of(array, box=box), np.zeros(64, np.uint8)
    load, store = load_kernel(rank, 64), store_kernel(rank, 64)
    for x in good:
        corner = np.array([x] + [-1] * (rank - 1), np.int32)
        run(load, maps, corner, out)
    for x in bad:
        corner = np.array([x] + [0] * (rank - 1), np.int32)
        words = [f"({x},", f"{x} x {array.itemsize} bytes = {x * array.itemsize} bytes", "H200"]
        expect(faults.MisalignedBox, load, maps, corner, out, words=words, source="cp_async_bulk_tensor_")
        if x > 0:
            expect(faults.MisalignedBox, store, maps, corner, out, words=words, source="_store(")


@pytest.mark.parametrize(
    "mode, width, repeat", [("32B", 32, 256), ("64B", 64, 512), ("128B", 128, 1024)]
)
def test_swizzled_loads(mode, width, repeat):
    rows = 16
    array = np.arange(rows * width, dtype=np.uint16).astype(np.uint8).reshape(rows, width)
    array += np.arange(rows, dtype=np.uint8)[:, None] * 7
    maps = maps_of(array, box=(width, rows), swizzle=mode)
    out = np.zeros(rows * width, np.uint8)
    kernel = load_kernel(2, rows * width, alignment=repeat)
    clean(kernel, maps, np.array([0, 0], np.int32), out)
    np.testing.assert_array_equal(out[swizzle_offsets(out.size, mode)], array.ravel())
    # By hand: the 16-byte chunk of a row is exchanged by some bits of its 128-byte line.
    bits = {"32B": 1, "64B": 3, "128B": 7}[mode]
    for at in range(0, out.size, 16):
        moved = at ^ ((at >> 7 & bits) << 4)
        np.testing.assert_array_equal(out[moved : moved + 16], array.ravel()[at : at + 16])
    # A destination that is aligned less holds the pattern from another line on.
    clean(load_kernel(2, rows * width), maps, np.array([0, 0], np.int32), out)
    orders = [swizzle_offsets(out.size, mode, start) for start in range(0, repeat, 128)]
    right = [(out[order] == array.ravel()).all() for order in orders]
    assert right.count(True) == 1 and not right[0]
    expect(faults.Misaligned, load_kernel(2, rows * width, alignment=64), maps,
           np.array([0, 0], np.int32), out, words="multiple of 128")  # fmt: skip


def test_swizzled_rows_that_are_shorter_than_the_pattern():
    """Three rows of 64 bytes: the third goes to the other half of its line of 128 bytes."""
    array = np.arange(192, dtype=np.uint8).reshape(3, 64)
    out = np.zeros(256, np.uint8)

    def kernel(maps, out):
        tile = cuda.shared.array(256, uint8, alignment=1024)
        bar, tid = full_barrier(), cuda.threadIdx.x
        if tid == 0:
            fence_proxy_tensormap_acquire_sys(maps)
            mbarrier_arrive_expect_tx(bar, 192)
            cp_async_bulk_tensor_2d(shared_address(tile), maps, 0, 0, bar)
        mbarrier_wait(bar, 0)
        for i in range(tid, 256, 32):
            out[i] = tile[i]

    clean(kernel, maps_of(array, box=(64, 3), swizzle="128B"), out)
    np.testing.assert_array_equal(out[swizzle_offsets(192, "128B")], array.ravel())
    assert swizzle_offsets(192, "128B").max() < 256


@pytest.mark.parametrize("alignment", [16, 32, 64])
def test_a_misaligned_destination(alignment):
    array = floats(40)
    expect(faults.Misaligned, load_kernel(1, 32, alignment), maps_of(array, box=(8,)),
           np.zeros(1, np.int32), np.zeros(32, np.uint8), source="cp_async_bulk_tensor_",
           words=["TMA destination tile[byte 0]", "not a multiple of 128"])  # fmt: skip


@pytest.mark.parametrize("behind", ["barrier", "array", "nothing"])
def test_a_destination_that_is_too_small(behind):
    def kernel(maps):
        if behind == "nothing":
            bar = full_barrier()
        tile = cuda.shared.array(16, uint8, alignment=128)
        if behind == "array":
            cuda.shared.array(256, uint8, alignment=128)
        if behind != "nothing":
            bar = full_barrier()
        if cuda.threadIdx.x == 0:
            fence_proxy_tensormap_acquire_sys(maps)
            mbarrier_arrive_expect_tx(bar, 64)
            cp_async_bulk_tensor_1d(shared_address(tile), maps, 0, bar)

    expect(faults.OutOfRange, kernel, maps_of(floats(40), box=(16,)), source="cp_async_bulk_tensor_1d(",
           words=["TMA load at (0,) into 64 bytes at tile[byte 0]: the array ends 16 bytes on",
                  "cure   Make the array as large as what is copied"])  # fmt: skip


@pytest.mark.parametrize("store", [False, True])
def test_a_copy_that_runs_out_of_its_array(store):
    def kernel(data):
        tile = cuda.shared.array(16, uint32, alignment=128)
        bar, at = full_barrier(), shared_address(tile)
        if cuda.threadIdx.x == 0:
            for i in range(16):
                tile[i] = 1
            fence_proxy_async()
            if store:
                cp_async_bulk_store(global_address(data), at + 32, 64)
            else:
                mbarrier_arrive_expect_tx(bar, 64)
                cp_async_bulk_load(at + 32, global_address(data), 64, bar)

    words = ["64 bytes at tile[byte 32]: the array ends 32 bytes on"]
    expect(faults.OutOfRange, kernel, aligned(floats(40)), words=words, source="cp_async_bulk_")


def test_two_loads_on_one_barrier_and_a_barrier_for_each():
    def kernel(maps, out):
        tile = cuda.shared.array((3, 32), float32, alignment=128)
        bars = cuda.shared.array(2, uint64)
        bar, at, tid = shared_address(bars), shared_address(tile), cuda.threadIdx.x
        if tid == 0:
            mbarrier_init(bar, 1)
            mbarrier_init(bar + 8, 1)
            fence_mbarrier_init()
            fence_proxy_tensormap_acquire_sys(maps)
            mbarrier_arrive_expect_tx(bar, 256)
            cp_async_bulk_tensor_1d(at, maps, 0, bar)
            cp_async_bulk_tensor_1d(at + 128, maps, 32, bar)
            mbarrier_arrive_expect_tx(bar + 8, 128)
            cp_async_bulk_tensor_1d(at + 256, maps, 64, bar + 8)
        cuda.syncthreads()
        mbarrier_wait(bar, 0)
        out[tid] = tile[0, tid] + tile[1, tid]
        mbarrier_wait(bar + 8, 0)
        out[tid] += tile[2, tid]

    array, out = floats(96), nans(32)
    clean(kernel, maps_of(array, box=(32,)), out)
    np.testing.assert_allclose(out, array.reshape(3, 32).sum(axis=0), rtol=1e-5)


# --- who may read what has landed -----------------------------------------------------------------
def test_who_polls_sees_a_copy_land_while_another_is_in_flight():
    """A thread that spins looks again after each landing, not only when nothing is left to land."""

    def kernel(source, other_is_there):
        tile = cuda.shared.array(64, float32, alignment=16)
        bars = cuda.shared.array(2, uint64)
        bar, at = shared_address(bars), shared_address(tile)
        for i in range(2):
            mbarrier_init(bar + 8 * i, 1)
        fence_mbarrier_init()
        for i in range(2):
            mbarrier_arrive_expect_tx(bar + 8 * i, 128)
            cp_async_bulk_load(at + 128 * i, global_address(source) + 128 * i, 128, bar + 8 * i)
        while mbarrier_test_wait_parity(bar, 0) == 0:
            pass
        other_is_there[0] = mbarrier_test_wait_parity(bar + 8, 0)
        mbarrier_wait(bar + 8, 0)

    seen = set()
    for seed in range(8):
        out = np.full(1, 7, np.uint32)
        run(kernel, aligned(floats(64)), out, block=1, seed=seed)
        seen.add(int(out[0]))
    assert 0 in seen


def visibility_kernel(waiters, barrier):
    """Threads below ``waiters`` wait for the copy; all read it after ``barrier()``."""
    at_once = barrier is None

    def kernel(maps, out):
        tile = cuda.shared.array(32, float32, alignment=128)
        bar, tid = full_barrier(), cuda.threadIdx.x
        if tid == 0:
            fence_proxy_tensormap_acquire_sys(maps)
            mbarrier_arrive_expect_tx(bar, 128)
            cp_async_bulk_tensor_1d(shared_address(tile), maps, 0, bar)
        if tid < waiters:
            mbarrier_wait(bar, 0)
        if not at_once:
            barrier()
        out[tid] = tile[tid % 32]

    return kernel


def test_visibility_is_transitive():
    """One thread waits; what it knows goes to the others through any barrier."""
    array = floats(32)
    out = nans(64)
    clean(visibility_kernel(1, syncthreads), maps_of(array, box=(32,)), out, block=64)
    np.testing.assert_array_equal(out, np.tile(array, 2))
    clean(visibility_kernel(1, syncwarp), maps_of(array, box=(32,)), nans(32))


def test_a_read_without_a_wait_is_found_even_after_landing():
    """Not luck but order: the bytes may long be there."""
    maps = maps_of(floats(32), box=(32,))
    for landing in LANDINGS:
        state = "has landed" if landing == "earliest" else ""
        expect(faults.InFlightRead, visibility_kernel(0, None), maps, nans(32), landing=landing,
               words=["the TMA load at (0,) issued by", "has not waited for it", state],
               source="out[tid] = tile[tid % 32]")  # fmt: skip
    always(faults.InFlightRead, visibility_kernel(5, None), maps, nans(32))
    # The barrier is too narrow: the second warp hears nothing of it.
    always(faults.InFlightRead, visibility_kernel(1, syncwarp), maps, nans(64), block=64)


def test_an_ordinary_write_under_a_copy():
    def kernel(maps):
        tile = cuda.shared.array(32, float32, alignment=128)
        bar, tid = full_barrier(), cuda.threadIdx.x
        if tid == 0:
            fence_proxy_tensormap_acquire_sys(maps)
            mbarrier_arrive_expect_tx(bar, 128)
            cp_async_bulk_tensor_1d(shared_address(tile), maps, 0, bar)
            tile[3] = float32(0)

    always(faults.DataRace, kernel, maps_of(floats(32), box=(32,)),
           words=["writes tile[3]", "TMA load at (0,) issued by this thread"])  # fmt: skip


def test_copies_that_collide():
    def kernel(maps, step):
        tile = cuda.shared.array(64, float32, alignment=128)
        bar, at = full_barrier(), shared_address(tile)
        if cuda.threadIdx.x == 0:
            fence_proxy_tensormap_acquire_sys(maps)
            mbarrier_arrive_expect_tx(bar, 256)
            cp_async_bulk_tensor_1d(at, maps, 0, bar)
            cp_async_bulk_load(at + step, maps, 128, bar)
        mbarrier_wait(bar, 0)

    maps = maps_of(floats(32), box=(32,))
    always(
        faults.CopyCollision, kernel, maps, 0, words="issues a bulk load into tile[byte 0], where"
    )
    always(
        faults.CopyCollision, kernel, maps, 112, words=["tile[byte 112]", "the TMA load at (0,)"]
    )
    clean(kernel, maps, 128)


def test_nobody_waits_for_a_copy():
    def kernel(maps, wait):
        tile = cuda.shared.array(32, float32, alignment=128)
        bar = full_barrier()
        if cuda.threadIdx.x == 0:
            fence_proxy_tensormap_acquire_sys(maps)
            mbarrier_arrive_expect_tx(bar, 128)
            cp_async_bulk_tensor_1d(shared_address(tile), maps, 0, bar)
            if wait:
                mbarrier_wait(bar, 0)

    maps = maps_of(floats(32), box=(32,))
    clean(kernel, maps, True)
    always(faults.CopyOutlivesBlock, kernel, maps, False, source="cp_async_bulk_tensor_1d(",
           words=["TMA load at (0,) to tile[byte 0]", "all threads have exited"])  # fmt: skip


# --- fences ---------------------------------------------------------------------------------------
def test_the_init_must_be_fenced():
    def make(fence, issuer):
        def kernel(maps):
            tile = cuda.shared.array(32, float32, alignment=128)
            bars = cuda.shared.array(1, uint64)
            bar, tid = shared_address(bars), cuda.threadIdx.x
            if tid == 0:
                fence_proxy_tensormap_acquire_sys(maps)
                if fence == "too early":
                    fence_mbarrier_init()
                mbarrier_init(bar, 1)
                if fence == "init":
                    fence_mbarrier_init()
                elif fence == "proxy":
                    fence_proxy_async()
            if fence == "by another" and tid == 1:
                fence_mbarrier_init()
            cuda.syncthreads()
            if tid == issuer:
                mbarrier_arrive_expect_tx(bar, 128)
                cp_async_bulk_tensor_1d(shared_address(tile), maps, 0, bar)
            mbarrier_wait(bar, 0)

        return kernel

    maps = maps_of(floats(32), box=(32,))
    for issuer in (0, 9):
        for fence in ("init", "proxy"):
            clean(make(fence, issuer), maps, seeds=2)
        for fence in ("none", "too early", "by another"):
            always(faults.MissingInitFence, make(fence, issuer), maps, seeds=2,
                   words="signals bars[0], initialised at", source="cp_async_bulk_tensor_1d(")  # fmt: skip


def test_the_fence_of_the_init_is_not_one_for_the_data():
    """fence.mbarrier_init is weaker than fence.proxy.async: data written before it need that one."""

    def kernel(maps, proxy):
        tile = cuda.shared.array(32, float32, alignment=128)
        if cuda.threadIdx.x == 0:
            bars = cuda.shared.array(1, uint64)
            fence_proxy_tensormap_acquire_sys(maps)
            for i in range(32):
                tile[i] = float32(i)
            mbarrier_init(shared_address(bars), 1)
            fence_mbarrier_init()
            if proxy:
                fence_proxy_async()
            cp_async_bulk_tensor_1d_store(maps, 0, shared_address(tile))
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group(0)

    array = nans(32)
    clean(kernel, maps_of(array, box=(32,)), True)
    np.testing.assert_array_equal(array, np.arange(32))
    always(faults.MissingProxyFence, kernel, maps_of(nans(32), box=(32,)), False)


def test_ordinary_writes_need_a_proxy_fence_before_a_store():
    def make(where, write):
        def kernel(maps):
            tile = cuda.shared.array(32, uint32, alignment=128)
            tid = cuda.threadIdx.x
            if write == "plain":
                tile[tid] = tid
            elif write == "atomic":
                cuda.atomic.exch(tile, tid, tid)
            else:
                st_shared_b32(shared_address(tile) + 4 * tid, tid)
            if where == "writers":
                fence_proxy_async()
            elif where == "some writers" and tid != 7:
                fence_proxy_async()
            cuda.syncthreads()
            if tid == 0:
                if where == "issuer":
                    fence_proxy_async()
                fence_proxy_tensormap_acquire_sys(maps)
                cp_async_bulk_tensor_1d_store(maps, 0, shared_address(tile))
                cp_async_bulk_commit_group()
                cp_async_bulk_wait_group(0)

        return kernel

    for write in ("plain", "atomic", "intrinsic"):
        array = np.zeros(32, np.uint32)
        clean(make("writers", write), maps_of(array, box=(32,)), seeds=2)
        np.testing.assert_array_equal(array, np.arange(32))
        # The fence may stand anywhere on the way from the writer to the copy (PTX memory model).
        clean(make("issuer", write), maps_of(array, box=(32,)), seeds=2)
        always(faults.MissingProxyFence, make("nobody", write), maps_of(array, box=(32,)), seeds=2,
               words=["issues a TMA store at (0,) on tile[byte", "no fence.proxy.async since"],
               source="cp_async_bulk_tensor_1d_store(")  # fmt: skip
        always(faults.MissingProxyFence, make("some writers", write), maps_of(array, box=(32,)),
               words="thread 7 wrote", seeds=2)  # fmt: skip


def test_a_store_before_its_writers_are_done_is_a_race_first():
    def kernel(maps):
        tile = cuda.shared.array(32, uint32, alignment=128)
        tid = cuda.threadIdx.x
        if tid == 0:
            fence_proxy_tensormap_acquire_sys(maps)
        tile[tid] = tid
        fence_proxy_async()
        if tid == 0:
            cp_async_bulk_tensor_1d_store(maps, 0, shared_address(tile))
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group(0)

    for landing in LANDINGS:
        for seed in range(4):
            fault = fault_of(kernel, maps_of(np.zeros(32, np.uint32), box=(32,)), seed=seed)
            assert type(fault) in (faults.DataRace, faults.UninitialisedRead), (landing, fault)


def test_tensor_maps_are_fenced_in_each_block():
    def make(fence):
        def kernel(maps):
            tile = cuda.shared.array(32, float32, alignment=128)
            bar, tid = full_barrier(), cuda.threadIdx.x
            if fence == "first block" and cuda.blockIdx.x == 0 and tid == 0:
                fence_proxy_tensormap_acquire_sys(maps)
            elif fence == "gpu" and tid == 0:
                fence_proxy_tensormap_acquire_gpu(maps)
            elif fence == "another thread" and tid == 3:
                fence_proxy_tensormap_acquire_sys(maps)
            elif fence == "another map" and tid == 0:
                fence_proxy_tensormap_acquire_sys(maps + 128)
            if fence == "another thread":
                cuda.syncthreads()
            if fence == "unordered" and tid == 3:
                fence_proxy_tensormap_acquire_sys(maps)
            prefetch_tensormap(maps)
            if tid == 0:
                mbarrier_arrive_expect_tx(bar, 128)
                cp_async_bulk_tensor_1d(shared_address(tile), maps, 0, bar)
            mbarrier_wait(bar, 0)

        return kernel

    maps = maps_of(floats(32), floats(32, 1), box=(32,))
    for fence in ("gpu", "another thread"):
        clean(make(fence), maps, grid=2)
    for fence in ("none", "first block", "another map", "unordered"):
        always(faults.MissingTensormapFence, make(fence), maps, grid=2, seeds=2,
               words="this block has not fenced", source="cp_async_bulk_tensor_1d(")  # fmt: skip


def test_what_is_no_tensor_map():
    def make(call):
        call = device(call)

        def kernel(maps):
            tile = cuda.shared.array(64, float32, alignment=128)
            bar = full_barrier()
            fence_proxy_tensormap_acquire_sys(maps)
            call(maps, shared_address(tile), bar)

        return kernel

    maps = maps_of(floats(32), box=(32,))
    kind = faults.BadTensorMap
    for offset in (-128, 1, 64, 128):
        word = f"{maps.address + offset:#x} is not the address of a tensor map"
        expect(kind, make(lambda m, at, bar: prefetch_tensormap(m + offset)), maps, words=word)  # noqa: B023
        expect(kind, make(lambda m, at, bar: fence_proxy_tensormap_acquire_gpu(m + offset)),  # noqa: B023
               maps, words=word)  # fmt: skip
        expect(kind, make(lambda m, at, bar: cp_async_bulk_tensor_1d(at, m + offset, 0, bar)),  # noqa: B023
               maps, words=word)  # fmt: skip
    expect(kind, make(lambda m, at, bar: cp_async_bulk_tensor_2d(at, m, 0, 0, bar)), maps,
           words="a 2d copy with a map of rank 1")  # fmt: skip
    expect(kind, make(lambda m, at, bar: cp_async_bulk_tensor_3d_store(m, 0, 0, 0, at)), maps,
           words="a 3d copy with a map of rank 1")  # fmt: skip


def test_maps_that_the_engine_cannot_copy():
    interleaved = TensorMap(floats(1024), "float32", [8, 2, 4], [32, 64], [8, 2, 2],
                            interleave="16B")  # fmt: skip
    on_a_device = TensorMap(1 << 40, "float32", [32], [], [32])
    converting = TensorMap(floats(32), "tfloat32", [32], [], [32])

    def make(rank, store):
        load, put = device(LOADS[rank]), device(STORES[rank])

        def kernel(maps):
            tile = cuda.shared.array(128, float32, alignment=128)
            bar, tid = full_barrier(), cuda.threadIdx.x
            if tid == 0:
                fence_proxy_tensormap_acquire_sys(maps)
                for i in range(128):
                    tile[i] = float32(0)
                fence_proxy_async()
                if store:
                    put(maps, (0, 0, 0), shared_address(tile))
                    cp_async_bulk_commit_group()
                    cp_async_bulk_wait_group(0)
                else:
                    mbarrier_arrive_expect_tx(bar, 128)
                    load(shared_address(tile), maps, (0, 0, 0), bar)
            mbarrier_wait(bar, 0)

        return kernel

    for tensor, words in ((interleaved, "interleave"), (on_a_device, "device address"),
                          (converting, "changes bits")):  # fmt: skip
        for store in (False, True):
            for landing in LANDINGS:
                expect(faults.BadTensorMap, make(tensor.rank, store), TensorMapArray([tensor]),
                       words=words, landing=landing,
                       source="_store(" if store else "cp_async_bulk_tensor_")  # fmt: skip


# --- tensor stores --------------------------------------------------------------------------------
def store_kernel(rank, bytes, alignment=128):
    store = device(STORES[rank])

    def kernel(maps, corner, data):
        tile = cuda.shared.array(bytes, uint8, alignment=alignment)
        tid = cuda.threadIdx.x
        for i in range(tid, bytes, cuda.blockDim.x):
            tile[i] = data[i]
        fence_proxy_async()
        cuda.syncthreads()
        if tid == 0:
            fence_proxy_tensormap_acquire_sys(maps)
            store(maps, corner, shared_address(tile))
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group(0)

    return kernel


@pytest.mark.parametrize("rank", SHAPES)
def test_tensor_stores(rank):
    shape, box, corners = SHAPES[rank]
    bytes = 4 * int(np.prod(box))
    data = floats(bytes // 4, seed=5)
    kernel = store_kernel(rank, bytes)
    for corner in corners:
        array = floats(int(np.prod(shape))).reshape(shape)
        expected = array.copy()
        args = maps_of(array, box=box), np.array(corner, np.int32), data.view(np.uint8)
        if min(corner) < 0:
            expect(faults.OutOfRange, kernel, *args, words=["a corner is negative", "H200"],
                   source="_store(")  # fmt: skip
            continue
        for index in np.ndindex(*box[::-1]):
            place = tuple(c + i for c, i in zip(corner[::-1], index, strict=True))
            if all(p < n for p, n in zip(place, shape, strict=True)):
                expected[place] = data.reshape(box[::-1])[index]
        for landing in LANDINGS:
            run(kernel, *args, landing=landing, seed=2)
            np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    "mode, width, repeat", [("32B", 32, 256), ("64B", 64, 512), ("128B", 128, 1024)]
)
def test_swizzled_stores_undo_swizzled_loads(mode, width, repeat):
    array = np.zeros((16, width), np.uint8)
    data = np.random.default_rng(1).integers(0, 256, array.size, dtype=np.uint8)
    in_shared = np.empty_like(data)
    in_shared[swizzle_offsets(data.size, mode)] = data
    maps = maps_of(array, box=(width, 16), swizzle=mode)
    run(store_kernel(2, data.size, alignment=repeat), maps, np.zeros(2, np.int32), in_shared)
    np.testing.assert_array_equal(array.ravel(), data)
    right = []
    for start in range(0, repeat, 128):
        in_shared[swizzle_offsets(data.size, mode, start)] = data
        run(store_kernel(2, data.size, alignment=128), maps, np.zeros(2, np.int32), in_shared)
        right.append((array.ravel() == data).all())
    assert right.count(True) == 1 and not right[0]


def test_a_misaligned_source():
    expect(faults.Misaligned, store_kernel(1, 32, 64), maps_of(floats(8), box=(8,)),
           np.zeros(1, np.int32), np.zeros(32, np.uint8), words="TMA source tile[byte 0]")  # fmt: skip


def test_a_store_to_a_read_only_tensor():
    array = floats(8)
    array.flags.writeable = False
    args = maps_of(array, box=(8,)), np.zeros(1, np.int32), np.zeros(32, np.uint8)
    for landing in LANDINGS:
        expect(faults.ReadOnlyWrite, store_kernel(1, 32), *args, words="read-only", landing=landing,
               source="_store(")  # fmt: skip


# --- plain bulk copies ----------------------------------------------------------------------------
def test_bulk_load_and_store():
    def kernel(source, target):
        tile = cuda.shared.array(64, float32, alignment=16)
        bar, tid, at = full_barrier(), cuda.threadIdx.x, shared_address(tile)
        if tid == 0:
            mbarrier_arrive_expect_tx(bar, 192)
            cp_async_bulk_load(at, global_address(source), 64, bar)
            cp_async_bulk_load(at + 64, global_address(source) + 64, 128, bar)
        mbarrier_wait(bar, 0)
        for i in range(tid, 48, 32):
            tile[i] = tile[i] + float32(1)
        fence_proxy_async()
        cuda.syncthreads()
        if tid == 0:
            cp_async_bulk_store(global_address(target), at, 192)
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group(0)

    for size in (48, 5000):
        source, target = aligned(floats(size)), aligned(nans(size))
        clean(kernel, source, target)
        np.testing.assert_array_equal(target[:48], source[:48] + np.float32(1))
        assert np.isnan(target[48:]).all()


def test_operands_of_bulk_copies():
    def make(dst=0, src=0, size=64, store=False):
        def kernel(array):
            tile = cuda.shared.array(64, uint32, alignment=16)
            bar, at = full_barrier(), shared_address(tile)
            if cuda.threadIdx.x == 0:
                for i in range(64):
                    tile[i] = 0
                fence_proxy_async()
                if store:
                    cp_async_bulk_store(global_address(array) + dst, at + src, size)
                else:
                    mbarrier_arrive_expect_tx(bar, size & 0xFFFFF)
                    cp_async_bulk_load(at + dst, global_address(array) + src, size, bar)
            cuda.syncthreads()

        return kernel

    array = aligned(floats(32))
    rows = aligned(floats(60)).reshape(6, 10)  # 40 bytes each
    for store, at in ((False, "src"), (True, "dst")):
        for offset, word in ((200, "array[5, 0]"), (40, "A row of array has 40 bytes: pad it to 48.")):
            expect(faults.Misaligned, make(**{at: offset}, store=store), rows, words=word)
        expect(faults.Misaligned, make(**{at: 44}, store=store), rows, words="Start it at a multiple of 16")
    for store in (False, True):
        for offset in (1, 4, 8):
            expect(faults.Misaligned, make(dst=offset, store=store), array, words="multiple of 16")
            expect(faults.Misaligned, make(src=offset, store=store), array, words="multiple of 16")
        for size in (0, 8, 100, -8):
            expect(faults.BadSize, make(size=size, store=store), array, words="a bulk copy of")
        beyond = {"dst": 128} if store else {"src": 128}
        expect(
            faults.OutOfRange, make(**beyond, store=store), array, words="of array, which has 128"
        )
    expect(faults.OutOfRange, make(dst=224), array, words="the array ends")
    expect(faults.OutOfRange, make(src=256, store=True), array, words="no array is there")


def test_the_source_of_a_bulk_load_may_not_change_under_it():
    def kernel(array, wait):
        tile = cuda.shared.array(64, float32, alignment=16)
        bar = full_barrier()
        if cuda.threadIdx.x == 0:
            mbarrier_arrive_expect_tx(bar, 64)
            cp_async_bulk_load(shared_address(tile), global_address(array), 64, bar)
            if wait:
                mbarrier_wait(bar, 0)
            array[3] = float32(1)
        mbarrier_wait(bar, 0)

    for size in (32, 5000):
        clean(kernel, aligned(floats(size)), True)
        always(faults.DataRace, kernel, aligned(floats(size)), False, seeds=2,
               words=["writes array[3]", "may still be reading"])  # fmt: skip


def test_a_tensor_that_is_an_argument_too():
    """The copy's reads and writes of global memory count like anybody's."""

    def loads(maps, array, order):
        tile = cuda.shared.array(8, float32, alignment=128)
        bar, tid = full_barrier(), cuda.threadIdx.x
        if tid == 1:
            array[4] = float32(1)
            fence_proxy_async_global()
        if order:
            cuda.syncthreads()
        if tid == 0:
            fence_proxy_tensormap_acquire_sys(maps)
            mbarrier_arrive_expect_tx(bar, 32)
            cp_async_bulk_tensor_1d(shared_address(tile), maps, 0, bar)
        mbarrier_wait(bar, 0)

    NOT, READ, ALL = 0, 1, 2

    def stores(maps, array, wait):
        tile = cuda.shared.array(8, float32, alignment=128)
        if cuda.threadIdx.x == 0:
            for i in range(8):
                tile[i] = float32(i)
            fence_proxy_async()
            fence_proxy_tensormap_acquire_sys(maps)
            cp_async_bulk_tensor_1d_store(maps, 8, shared_address(tile))
            cp_async_bulk_commit_group()
            if wait == ALL:
                cp_async_bulk_wait_group(0)
            elif wait == READ:
                cp_async_bulk_wait_group_read(0)
            st_global_b32(global_address(array), ld_global_b32(global_address(array) + 40))
            cp_async_bulk_wait_group(0)

    array = floats(32)
    clean(loads, maps_of(array, box=(8,)), array, True)
    always(faults.DataRace, loads, maps_of(array, box=(8,)), array, False, words="array[byte")
    clean(stores, maps_of(array, box=(8,)), array, ALL)
    assert array[0] == 2
    for wait in (READ, NOT):
        always(faults.DataRace, stores, maps_of(array, box=(8,)), array, wait,
               words="reads array[byte 40]")  # fmt: skip


# --- bulk groups ----------------------------------------------------------------------------------
STORE, COMMIT, WAIT, READ, WRITE = range(5)


def groups(maps, script):
    """One thread runs a script over a tile of eight rows of 32 floats and a target to match. The script, rows
    of a step and its number, is an argument: so all of them are one kernel to the compiler."""
    tile = cuda.shared.array((8, 32), float32, alignment=128)
    at = shared_address(tile)
    if cuda.threadIdx.x == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        for i in range(8):
            for j in range(32):
                tile[i, j] = float32(i)
        fence_proxy_async()
        for i in range(script.shape[0]):
            step, number = script[i, 0], script[i, 1]
            if step == STORE:
                cp_async_bulk_tensor_2d_store(maps, 0, number, at + 128 * number)
            elif step == COMMIT:
                cp_async_bulk_commit_group()
            elif step == WAIT:
                cp_async_bulk_wait_group(number)
            elif step == READ:
                cp_async_bulk_wait_group_read(number)
            elif step == WRITE:
                tile[number, 5] = float32(-1)


def stores_of(*rows):
    return [step for row in rows for step in ((STORE, row), (COMMIT, 0))]


def test_wait_group_leaves_the_newest_groups_open():
    target = np.zeros((8, 32), np.float32)
    maps = maps_of(target, box=(32, 1))
    for kind in (WAIT, READ):
        for count in range(1, 6):
            for pending in range(4):
                script = stores_of(*range(count)) + [(kind, pending)]
                for row in range(count):
                    done = row < count - pending
                    steps = np.array([*script, (WRITE, row), (WAIT, 0)])
                    if done:
                        run(groups, maps, steps)
                    else:
                        expect(faults.DataRace, groups, maps, steps, landing="earliest",
                               words=[f"tile[{row}, 5]", "may still be reading"])  # fmt: skip


def test_more_than_three_open_groups_count_as_three():
    maps = maps_of(np.zeros((8, 32), np.float32), box=(32, 1))
    always(faults.DataRace, groups, maps, np.array([*stores_of(0, 1), (WAIT, 9), (WRITE, 0)]))
    clean(groups, maps, np.array([*stores_of(0, 1, 2, 3), (WAIT, 9), (WRITE, 0), (WAIT, 0)]))
    always(
        faults.DataRace, groups, maps, np.array([*stores_of(0, 1, 2, 3), (WAIT, 9), (WRITE, 1)])
    )


def test_a_later_wait_does_not_take_back_an_earlier_one():
    maps = maps_of(np.zeros((8, 32), np.float32), box=(32, 1))
    script = [*stores_of(0, 1, 2), (READ, 0), (READ, 2), (WRITE, 2), (WAIT, 0)]
    clean(groups, maps, np.array(script))


def test_the_data_of_groups():
    target = np.full((8, 32), np.nan, np.float32)
    script = [(STORE, 1), (STORE, 2), (COMMIT, 0), *stores_of(5), (WAIT, 0)]
    clean(groups, maps_of(target, box=(32, 1)), np.array(script))
    for row in range(8):
        expected = row if row in (1, 2, 5) else np.nan
        np.testing.assert_array_equal(target[row], np.float32(expected))


def test_leaving_with_open_stores():
    maps = maps_of(np.zeros((8, 32), np.float32), box=(32, 1))
    for script in ([(STORE, 0)], stores_of(0), [*stores_of(0, 1), (WAIT, 1)],
                   [(STORE, 0), (WAIT, 0)], [*stores_of(0), (READ, 1)]):  # fmt: skip
        always(faults.CopyOutlivesBlock, groups, maps, np.array(script), seeds=2,
               words="nobody has waited for the TMA store", source="_store(")  # fmt: skip
    # The shared memory has been read, and that is all that goes away with the block.
    clean(groups, maps, np.array([*stores_of(0), (READ, 0)]))


def test_empty_groups():
    """A group of no copies may be committed, and need not be waited for; those before it have to be."""
    maps, empty = maps_of(np.zeros((8, 32), np.float32), box=(32, 1)), (COMMIT, 0)
    for script in ([empty], [empty, (WAIT, 0)], [*stores_of(0), (WAIT, 0), empty],
                   [*stores_of(0), empty, (READ, 1)], [empty, *stores_of(0), (WAIT, 0), empty, empty]):
        clean(groups, maps, np.array(script), seeds=2)
    for script in ([*stores_of(0), empty], [*stores_of(0), empty, (WAIT, 2)]):
        always(faults.CopyOutlivesBlock, groups, maps, np.array(script), seeds=2, source="_store(",
               words="nobody has waited for the TMA store")  # fmt: skip


def test_readers_of_a_tile_are_not_forgotten_over_a_store():
    """Thread 1 reads the tile, unordered; the store by thread 0 must not hide that."""

    def kernel(maps, out):
        tile = cuda.shared.array(32, float32, alignment=128)
        tid = cuda.threadIdx.x
        tile[tid] = float32(tid)
        fence_proxy_async()
        cuda.syncthreads()
        if tid == 1:
            out[0] = tile[0]
        if tid == 0:
            fence_proxy_tensormap_acquire_sys(maps)
            cp_async_bulk_tensor_1d_store(maps, 0, shared_address(tile))
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group(0)
            tile[0] = float32(9)

    always(faults.DataRace, kernel, maps_of(nans(32), box=(32,)), nans(1), words="tile[0]")


# --- cp.async -------------------------------------------------------------------------------------
def test_cp_async_with_zero_fill():
    def kernel(source, out):
        tile = cuda.shared.array((32, 4), float32, alignment=16)
        tid = cuda.threadIdx.x
        dst = shared_address(tile) + 16 * tid
        cp_async_cg_16(dst, global_address(source) + 16 * tid, tid % 17)
        cp_async_commit_group()
        cp_async_wait_group(0)
        for k in range(4):
            out[4 * tid + k] = tile[tid, k]

    source, out = aligned(floats(128)), nans(128)
    clean(kernel, source, out)
    expected = source.view(np.uint8).reshape(32, 16).copy()
    for tid in range(32):
        expected[tid, tid % 17 :] = 0
    np.testing.assert_array_equal(out.view(np.uint8).reshape(32, 16), expected)


def test_cp_async_of_nothing_reads_nothing():
    def kernel(source, size):
        tile = cuda.shared.array(4, float32, alignment=16)
        cp_async_cg_16(shared_address(tile), global_address(source) + (1 << 30), size)
        cp_async_commit_group()
        cp_async_wait_group(0)

    clean(kernel, aligned(floats(4)), 0, block=1)
    expect(faults.OutOfRange, kernel, aligned(floats(4)), 1, block=1)
    for size in (17, -1):
        expect(faults.BadSize, kernel, aligned(floats(4)), size, block=1, words="not 0..16")


@pytest.mark.parametrize("dst, src", [(4, 0), (0, 4), (8, 8)])
def test_misaligned_cp_async(dst, src):
    def kernel(source):
        tile = cuda.shared.array(16, float32, alignment=16)
        cp_async_cg_16(shared_address(tile) + dst, global_address(source) + src, 16)

    expect(faults.Misaligned, kernel, aligned(floats(16)), block=1, words="multiple of 16")


def test_cp_async_groups():
    def make(pending, row, other=False, sync=False):
        def kernel(source, out):
            tile = cuda.shared.array((4, 4), float32, alignment=16)
            tid = cuda.threadIdx.x
            if tid == 0:
                for i in range(4):
                    cp_async_cg_16(shared_address(tile) + 16 * i, global_address(source), 16)
                    cp_async_commit_group()
                cp_async_wait_group(pending)
            if sync:
                cuda.syncthreads()
            if tid == (1 if other else 0):
                out[0] = tile[row, 0]
            if tid == 0:
                cp_async_wait_group(0)

        return kernel

    args = aligned(floats(4)), nans(1)
    for pending in range(5):
        for row in range(4):
            if row < 4 - pending:
                clean(make(pending, row), *args, seeds=1)
                clean(make(pending, row, other=True, sync=True), *args, seeds=1)
            else:
                always(faults.InFlightRead, make(pending, row), *args, seeds=1,
                       words="cp.async issued by this thread")  # fmt: skip


def test_cp_async_is_no_work_of_the_async_proxy():
    """Its bytes are like ordinary writes: a TMA store from them needs a proxy fence."""

    def kernel(source, maps, fence):
        tile = cuda.shared.array(4, float32, alignment=128)
        cp_async_cg_16(shared_address(tile), global_address(source), 16)
        cp_async_commit_group()
        cp_async_wait_group(0)
        if fence:
            fence_proxy_async()
        fence_proxy_tensormap_acquire_sys(maps)
        cp_async_bulk_tensor_1d_store(maps, 0, shared_address(tile))
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)

    source, target = aligned(floats(4)), nans(4)
    clean(kernel, source, maps_of(target, box=(4,)), True, block=1)
    np.testing.assert_array_equal(source, target)
    always(faults.MissingProxyFence, kernel, source, maps_of(target, box=(4,)), False, block=1,
           words="on tile[byte 0]")  # fmt: skip


# --- a whole kernel -------------------------------------------------------------------------------
def test_warp_specialisation_with_full_and_empty_barriers():
    """One producer warp, two consumer warps, three stages: the shape of a real kernel."""
    STAGES, ROWS = 3, 20
    BARRIERS = 2 * STAGES

    @typed(types.void(types.uint64, types.Array(float32, 2, "C")), threads=96)
    def kernel(maps, out):
        tile = cuda.shared.array((STAGES, 64), float32, alignment=128)
        bars = cuda.shared.array(BARRIERS, uint64)
        full, at, tid = shared_address(bars), shared_address(tile), int32(cuda.threadIdx.x)
        empty = full + 8 * STAGES
        if tid == 0:
            for s in range(STAGES):
                mbarrier_init(full + 8 * s, 1)
                mbarrier_init(empty + 8 * s, 64)
            fence_mbarrier_init()
        cuda.syncthreads()
        stage, parity = 0, 0
        if tid < 32:
            if tid == 0:
                fence_proxy_tensormap_acquire_sys(maps)
                for row in range(ROWS):
                    mbarrier_wait(empty + 8 * stage, parity ^ 1)
                    mbarrier_expect_tx(full + 8 * stage, 256)
                    cp_async_bulk_tensor_2d(at + 256 * stage, maps, 0, row, full + 8 * stage)
                    mbarrier_arrive(full + 8 * stage)
                    stage += 1
                    if stage == STAGES:
                        stage, parity = 0, parity ^ 1
        else:
            for row in range(ROWS):
                mbarrier_wait(full + 8 * stage, parity)
                out[row, tid - 32] = tile[stage, tid - 32] * float32(2)
                fence_proxy_async()
                mbarrier_arrive(empty + 8 * stage)
                stage += 1
                if stage == STAGES:
                    stage, parity = 0, parity ^ 1

    array = floats(ROWS * 64).reshape(ROWS, 64)
    for landing in LANDINGS:
        out = np.full_like(array, np.nan)
        run(kernel, maps_of(array, box=(64, 1)), out, block=96, schedules=5, landing=landing)
        np.testing.assert_array_equal(out, array * np.float32(2))

"""Global memory: what tensor maps reach, races between blocks, scopes, proxies, and blocks that wait."""

import numpy as np
import pytest
from helpers import aligned, always, clean, expect, fault_of, maps_of, nans, run
from numba import cuda, float32, int32

from numba_deform.device import memory as m
from numba_deform.device.limits import KB, SMS, resident_blocks
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import shared_address
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import (
    fence_acq_rel_cta,
    fence_acq_rel_gpu,
    fence_mbarrier_init,
    fence_proxy_async,
    fence_proxy_async_full,
    fence_proxy_async_global,
)
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_load,
    cp_async_bulk_store,
    cp_async_bulk_tensor_1d,
    cp_async_bulk_tensor_1d_store,
    cp_async_bulk_tensor_2d_store,
    cp_async_bulk_wait_group,
    cp_async_bulk_wait_group_read,
    fence_proxy_tensormap_acquire_sys,
)
from numba_deform.engines import faults

device = cuda.jit(device=True)


@device
def store_box(maps, at, coordinate, wait):
    """One thread stores 32 floats that it has written; ``wait``: 2 all, 1 reads only, 0 nothing."""
    fence_proxy_tensormap_acquire_sys(maps)
    fence_proxy_async()
    cp_async_bulk_tensor_1d_store(maps, coordinate, at)
    cp_async_bulk_commit_group()
    if wait == 2:
        cp_async_bulk_wait_group(0)
    elif wait == 1:
        cp_async_bulk_wait_group_read(0)


@device
def load_box(maps, at, coordinate):
    """One thread loads 32 floats and waits for them."""
    bars = cuda.shared.array(1, np.uint64)
    bar = shared_address(bars)
    mbarrier_init(bar, 1)
    fence_mbarrier_init()
    fence_proxy_tensormap_acquire_sys(maps)
    mbarrier_arrive_expect_tx(bar, 128)
    cp_async_bulk_tensor_1d(at, maps, coordinate, bar)
    mbarrier_wait(bar, 0)


# --- what tensor maps reach -----------------------------------------------------------------------
@pytest.mark.parametrize("size", [64, 8192])  # with and without records from the start
def test_stores_of_two_blocks_that_overlap(size):
    def kernel(maps, step):
        tile = cuda.shared.array(32, float32, alignment=128)
        tile[cuda.threadIdx.x] = float32(cuda.blockIdx.x)
        fence_proxy_async()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            store_box(maps, shared_address(tile), step * cuda.blockIdx.x, 2)

    array = nans(size)
    clean(kernel, maps_of(array, box=(32,)), 32, grid=2)
    assert (array[:64] == np.repeat([0, 1], 32)).all()
    fault = expect(faults.DataRace, kernel, maps_of(array, box=(32,)), 16, grid=2,
                   words=["maps[0].tensor[byte 64]", "of block 0 issued a copy"])  # fmt: skip
    assert fault.block == 1


@pytest.mark.parametrize("wait, right", [(2, True), (1, False), (0, False)])
def test_a_thread_that_stores_and_loads_the_same_box(wait, right):
    def kernel(maps, out):
        tile = cuda.shared.array((2, 32), float32, alignment=128)
        at = shared_address(tile)
        if cuda.threadIdx.x == 0:
            for i in range(32):
                tile[0, i] = float32(i)
            store_box(maps, at, 0, wait)
            load_box(maps, at + 128, 0)
            out[0] = tile[1, 7]
            cp_async_bulk_wait_group(0)

    out = nans(1)
    for size in (32, 8192):
        args = maps_of(nans(size), box=(32,)), out
        if right:
            clean(kernel, *args)
            assert out[0] == 7
        else:
            fault = expect(faults.DataRace, kernel, *args, words=["reads maps[0]", "this thread issued a copy"])
            assert "wait_group(0)" in fault.cure


def test_a_block_that_loads_what_another_stores():
    def kernel(maps, out):
        tile = cuda.shared.array(32, float32, alignment=128)
        if cuda.threadIdx.x == 0:
            if cuda.blockIdx.x == 0:
                for i in range(32):
                    tile[i] = float32(i)
                store_box(maps, shared_address(tile), 0, 2)
            else:
                load_box(maps, shared_address(tile), 0)
                out[0] = tile[0]

    for size in (32, 8192):
        always(faults.DataRace, kernel, maps_of(nans(size), box=(32,)), nans(1), grid=2, words="block 0")


def test_an_array_behind_a_map_and_the_array_itself():
    def kernel(maps, data):
        tile = cuda.shared.array(32, float32, alignment=128)
        if cuda.threadIdx.x == 0:
            for i in range(32):
                tile[i] = float32(i)
            store_box(maps, shared_address(tile), 0, 1)
            data[3] = float32(0)

    array = nans(64)
    always(faults.DataRace, kernel, maps_of(array, box=(32,)), array, words="writes data[byte 12], into which")


@pytest.mark.parametrize("swizzle", ["none", "128B"])
def test_a_store_clips(swizzle):
    """Rows of the box that lie outside the tensor need not be written."""

    def kernel(maps, rows, columns):
        tile = cuda.shared.array((8, 32), float32, alignment=1024)
        tid = cuda.threadIdx.x
        for row in range(rows):
            if tid < columns:
                chunk = tid // 4 ^ row if swizzle == "128B" else tid // 4
                tile[row, 4 * chunk + tid % 4] = float32(row)
        fence_proxy_async()
        cuda.syncthreads()
        if tid == 0:
            fence_proxy_tensormap_acquire_sys(maps)
            cp_async_bulk_tensor_2d_store(maps, 32, 8, shared_address(tile))
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group(0)

    array = nans(11 * 44).reshape(11, 44)
    maps = maps_of(array, box=(32, 8), swizzle=swizzle)
    clean(kernel, maps, 3, 12)
    assert (array[8:, 32:] == np.arange(3)[:, None]).all()
    assert np.isnan(array[:8]).all()
    for rows, columns in ((2, 12), (3, 11)):
        always(faults.UninitialisedRead, kernel, maps, rows, columns, words="tile[", source="2d_store(")


# --- races between blocks -------------------------------------------------------------------------
READ, WRITE, ATOMIC, NC = "read", "write", "atomic", "read-only"


@device
def touch(data, how):
    if how == READ:
        data[1] + 1
    elif how == WRITE:
        data[1] = 7
    elif how == ATOMIC:
        cuda.atomic.add(data, 1, 1)
    elif how == NC:
        m.ld_global_nc_b32(m.global_address(data) + 4)


@pytest.mark.parametrize("size", [32, 5000])  # with and without records from the start
@pytest.mark.parametrize("first, second, right", [
    (READ, READ, True), (READ, WRITE, False), (WRITE, READ, False), (WRITE, WRITE, False),
    (ATOMIC, ATOMIC, True), (ATOMIC, READ, False), (READ, ATOMIC, False), (ATOMIC, WRITE, False),
    (WRITE, ATOMIC, False), (READ, NC, True),
])  # fmt: skip
def test_two_blocks_touch_one_element(size, first, second, right):
    def kernel(data):
        if cuda.threadIdx.x == 3 + cuda.blockIdx.x:
            touch(data, first if cuda.blockIdx.x == 0 else second)

    data = np.zeros(size, np.int32)
    if right:
        clean(kernel, data, grid=2, seeds=2)
        return
    always(faults.DataRace, kernel, data, grid=2, seeds=2, words=["data[1]", "thread "])
    fault = fault_of(kernel, data, grid=2)
    assert fault.block == 1 and "thread 3 of block 0" in fault.what
    both_write = first == second == WRITE
    assert "gpu scope" in fault.rule
    assert ("an element of its own" if both_write else "st_release_gpu") in fault.cure


@pytest.mark.parametrize("size", [32, 5000])
@pytest.mark.parametrize("first, second, right", [(NC, WRITE, False), (WRITE, NC, False), (NC, ATOMIC, False)])
def test_the_read_only_path_whichever_comes_first(size, first, second, right):
    """Even where a barrier orders the two."""

    def kernel(data):
        if cuda.threadIdx.x == 0:
            touch(data, first)
        cuda.syncthreads()
        if cuda.threadIdx.x == 1:
            touch(data, second)

    always(faults.NotReadOnly, kernel, np.zeros(size, np.int32), seeds=2, words=["data[1]", "thread 0"])


# --- scopes ---------------------------------------------------------------------------------------
def hand_over(release, acquire, blocks=2):
    """Block 0 writes data and says so, the last block waits for that and reads them."""

    def kernel(data, flags, out):
        at = m.global_address(flags)
        if cuda.threadIdx.x == 0 and cuda.blockIdx.x == 0:
            data[0] = 7
            release(flags, at)
        elif cuda.threadIdx.x == 1 and cuda.blockIdx.x == blocks - 1:
            acquire(flags, at)
            out[0] = data[0]

    return kernel


def spin(load):
    @device
    def wait(flags, at):
        while load(at) == 0:
            pass

    return wait


def spin_and_fence(load, fence):
    @device
    def wait(flags, at):
        while load(at) == 0:
            pass
        fence()

    return wait


@device
def add_one(flags, at):
    cuda.atomic.add(flags, 0, 1)


def fence_and_add(fence, add=add_one):
    @device
    def release(flags, at):
        fence()
        add(flags, at)

    return release


@device
def threadfence():
    cuda.threadfence()


@device
def threadfence_block():
    cuda.threadfence_block()


@device
def threadfence_system():
    cuda.threadfence_system()


@device
def nothing():
    pass


@device
def relaxed(at):
    return m.ld_relaxed_gpu_global_b32(at)


RELEASES = {
    "st.release.gpu": (device(lambda flags, at: m.st_release_gpu_global_b32(at, 1)), True),
    "red.release.gpu": (device(lambda flags, at: m.red_add_release_gpu_global_u32(at, 1)), True),
    "atom.acq_rel.gpu": (device(lambda flags, at: m.atom_add_acq_rel_gpu_global_u32(at, 1)), True),
    "threadfence": (fence_and_add(threadfence), True),
    "threadfence_system": (fence_and_add(threadfence_system), True),
    "fence.gpu": (fence_and_add(fence_acq_rel_gpu), True),
    "fence.gpu red": (
        fence_and_add(fence_acq_rel_gpu, device(lambda f, at: m.red_add_gpu_global_u32(at, 1))), True
    ),
    "st.release.cta": (device(lambda flags, at: m.st_release_cta_global_b32(at, 1)), False),
    "threadfence_block": (fence_and_add(threadfence_block), False),
    "fence.cta": (fence_and_add(fence_acq_rel_cta), False),
    "fence.gpu atom.cta": (
        fence_and_add(fence_acq_rel_gpu, device(lambda f, at: m.atom_add_cta_global_u32(at, 1))), False
    ),
    "atom": (add_one, None),
    "st": (device(lambda flags, at: m.st_global_b32(at, 1)), None),
}  # fmt: skip
ACQUIRES = {
    "ld.acquire.gpu": (spin(m.ld_acquire_gpu_global_b32), True),
    "atom.acq_rel.gpu": (spin(device(lambda at: m.atom_add_acq_rel_gpu_global_u32(at, 0))), True),
    "ld.relaxed.gpu threadfence": (spin_and_fence(relaxed, threadfence), True),
    "ld.relaxed.gpu fence.gpu": (spin_and_fence(relaxed, fence_acq_rel_gpu), True),
    "ld.acquire.cta": (spin(m.ld_acquire_cta_global_b32), False),
    "ld.relaxed.gpu fence.cta": (spin_and_fence(relaxed, fence_acq_rel_cta), False),
    "ld.relaxed.gpu": (spin(relaxed), None),
    "ld": (spin(m.ld_global_b32), None),
}


def kind_of(*sides):
    """What a hand-over between blocks ends in: None if both sides are right."""
    return faults.DataRace if None in sides else faults.ScopeRace if False in sides else None


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("acquire", ACQUIRES)
def test_scopes_between_blocks(release, acquire):
    (set_flag, right), (wait, also) = RELEASES[release], ACQUIRES[acquire]
    args = np.zeros(1, np.int32), np.zeros(1, np.uint32), np.zeros(1, np.int32)
    kernel, kind = hand_over(set_flag, wait), kind_of(right, also)
    if kind is None:
        clean(kernel, *args, grid=2, seeds=2)
        assert args[2][0] == 7
    else:
        fault = fault_of(kernel, *args, grid=2)
        assert isinstance(fault, faults.DataRace) and f"block {1 - fault.block}" in fault.what
        assert "barrier" not in fault.cure and "gpu" in fault.cure
        if None not in (right, also):
            assert type(fault) is kind, fault


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("acquire", ACQUIRES)
def test_scopes_inside_a_block(release, acquire):
    """There cta is wide enough."""
    (set_flag, right), (wait, also) = RELEASES[release], ACQUIRES[acquire]
    args = np.zeros(1, np.int32), np.zeros(1, np.uint32), np.zeros(1, np.int32)
    kernel = hand_over(set_flag, wait, blocks=1)
    if None in (right, also):
        always(faults.DataRace, kernel, *args, seeds=2)
    else:
        clean(kernel, *args, seeds=2)
        assert args[2][0] == 7


@pytest.mark.parametrize("first", [True, False])
def test_atomics_of_scope_cta_in_two_blocks(first):
    def kernel(count):
        if (cuda.blockIdx.x == 0) == first:
            m.atom_add_cta_global_u32(m.global_address(count), 1)
        else:
            cuda.atomic.add(count, 0, 1)

    clean(kernel, np.zeros(1, np.uint32), grid=1)
    always(faults.ScopeRace, kernel, np.zeros(1, np.uint32), grid=2, words=["count[0]", "of block "])


def test_fences_of_all_threads_before_a_barrier():
    """Each fences its own writes, then one thread of the block takes the ticket: fence.sc on both sides."""

    def make(fence):
        def kernel(partial, ticket, out):
            last = cuda.shared.array(1, int32)
            tid, n = cuda.threadIdx.x, cuda.gridDim.x
            partial[cuda.grid(1)] = tid
            fence()
            cuda.syncthreads()
            if tid == 0:
                last[0] = cuda.atomic.add(ticket, 0, 1) % n == n - 1
            cuda.syncthreads()
            if last[0]:
                fence()
                total = 0
                for i in range(n):
                    total += partial[32 * i + tid]
                out[tid] = total

        return kernel

    out = np.zeros(32, np.int32)
    args = np.zeros(96, np.int32), np.zeros(1, np.int32), out
    clean(make(threadfence), *args, grid=3, seeds=2)
    assert (out == 3 * np.arange(32)).all()
    # The PTX model has an order of all fences that are sc, and none of the others.
    for fence in (nothing, fence_acq_rel_gpu):
        always(faults.DataRace, make(fence), *args, grid=3, seeds=2, words="partial[")


# --- what was observed ----------------------------------------------------------------------------
def test_another_thread_resets_after_a_barrier():
    def kernel(count, barrier):
        last = cuda.shared.array(1, int32)
        tid = cuda.threadIdx.x
        if tid == 0:
            last[0] = cuda.atomic.add(count, 0, 1) == cuda.gridDim.x - 1
        if barrier:
            cuda.syncthreads()
        if tid == 40 and (last[0] if barrier else cuda.blockIdx.x == 3):
            count[0] = 0

    count = np.zeros(1, np.int32)
    clean(kernel, count, True, grid=4, block=64)
    assert count[0] == 0
    always(faults.DataRace, kernel, count, False, grid=4, block=64, words="count[0]")


def test_a_reset_after_a_spin():
    """The value read orders the reset; a store by another thread in between would not have."""

    def kernel(flag):
        tid, at = cuda.threadIdx.x, m.global_address(flag)
        if tid < 3:
            cuda.atomic.add(flag, 0, 1)
        elif tid == 40:
            while m.ld_relaxed_gpu_global_b32(at) != 3:
                pass
            flag[0] = 0

    flag = np.zeros(1, np.uint32)
    clean(kernel, flag, block=64)
    assert flag[0] == 0

    def over_a_store(flag):
        tid, at = cuda.threadIdx.x, m.global_address(flag)
        if tid == 0:
            m.st_release_gpu_global_b32(at, 5)
        elif tid == 40:
            while m.ld_relaxed_gpu_global_b32(at) != 5:
                pass
            m.st_release_gpu_global_b32(at, 6)
        elif tid == 41:
            while m.ld_relaxed_gpu_global_b32(at) != 6:
                pass
            flag[0] = 0

    always(faults.DataRace, over_a_store, flag, block=64, words="flag[0]")


# --- proxies --------------------------------------------------------------------------------------
FENCES = {"shared": fence_proxy_async, "global": fence_proxy_async_global, "full": fence_proxy_async_full}


@pytest.mark.parametrize("fence", [None, *FENCES])
@pytest.mark.parametrize("where", ["writer", "reader"])
@pytest.mark.parametrize("between", ["threads", "blocks"])
@pytest.mark.parametrize("load", [cp_async_bulk_load, cp_async_bulk_tensor_1d])
def test_ordinary_writes_that_a_load_reads(fence, where, between, load):
    call = FENCES[fence] if fence else nothing

    def kernel(maps, data, flags, out):
        tile = cuda.shared.array(32, float32, alignment=128)
        tid, at = cuda.threadIdx.x, m.global_address(flags)
        if tid == 0 and cuda.blockIdx.x == 0:
            data[0] = float32(7)
            if where == "writer":
                call()
            m.st_release_gpu_global_b32(at, 1)
        cuda.syncthreads()
        if tid == 1 and cuda.blockIdx.x == cuda.gridDim.x - 1:
            if between == "blocks":
                while m.ld_acquire_gpu_global_b32(at) == 0:
                    pass
            if where == "reader":
                call()
            bars = cuda.shared.array(1, np.uint64)
            bar = m.shared_address(bars)
            mbarrier_init(bar, 1)
            fence_mbarrier_init()
            fence_proxy_tensormap_acquire_sys(maps)
            mbarrier_arrive_expect_tx(bar, 128)
            if load is cp_async_bulk_load:
                load(m.shared_address(tile), m.global_address(data), 128, bar)
            else:
                load(m.shared_address(tile), maps, 0, bar)
            mbarrier_wait(bar, 0)
            out[0] = tile[0]

    data, out = aligned(nans(32)), nans(1)
    args = maps_of(data, box=(32,)), data, np.zeros(1, np.uint32), out
    options = {"grid": 2 if between == "blocks" else 1, "seeds": 2}
    if fence in ("global", "full"):
        clean(kernel, *args, **options)
        assert out[0] == 7
    else:
        always(faults.MissingProxyFence, kernel, *args, **options, words=["data[byte 0]", "proxy.async.global"])


def test_an_ordinary_write_under_a_store():
    def kernel(maps, data, fence):
        tile = cuda.shared.array(32, float32, alignment=128)
        if cuda.threadIdx.x == 0:
            for i in range(32):
                tile[i] = float32(i)
            data[5] = float32(9)
            if fence:
                fence_proxy_async_global()
            store_box(maps, m.shared_address(tile), 0, 2)
            data[6] = data[5]  # a store that is complete needs none

    data = nans(32)
    clean(kernel, maps_of(data, box=(32,)), data, True)
    assert data[6] == 5
    always(faults.MissingProxyFence, kernel, maps_of(data, box=(32,)), data, False, words="data[byte 20]")


def test_the_host_and_other_kernels_need_no_fence():
    def kernel(maps, data, out):
        tile = cuda.shared.array(32, float32, alignment=128)
        if cuda.threadIdx.x == 0:
            load_box(maps, m.shared_address(tile), 0)
            out[0] = tile[3]
        cuda.syncthreads()
        data[cuda.threadIdx.x] = float32(1)

    data, out = np.arange(32, dtype=np.float32), nans(1)
    for expected in (3, 1):
        run(kernel, maps_of(data, box=(32,)), data, out)
        assert out[0] == expected


# --- from one array into the next -----------------------------------------------------------------
@pytest.mark.parametrize("how", ["read", "write", "load", "store"])
def test_from_one_shared_array_into_the_next(how):
    def kernel(data, offset):
        first = cuda.shared.array(64, int32, alignment=128)
        second = cuda.shared.array(64, int32, alignment=128)
        bars = cuda.shared.array(1, np.uint64)
        at, bar = m.shared_address(first) + offset, m.shared_address(bars)
        if cuda.threadIdx.x == 0:
            for i in range(64):
                first[i] = second[i] = i
            fence_proxy_async()
            mbarrier_init(bar, 1)
            fence_mbarrier_init()
            if how == "read":
                m.ld_shared_b32(at + 124)
            elif how == "write":
                m.st_shared_b32(at + 124, 1)
            elif how == "load":
                mbarrier_arrive_expect_tx(bar, 128)
                cp_async_bulk_load(at, m.global_address(data), 128, bar)
                mbarrier_wait(bar, 0)
            elif how == "store":
                cp_async_bulk_store(m.global_address(data), at, 128)
                cp_async_bulk_commit_group()
                cp_async_bulk_wait_group(0)

    data = aligned(np.zeros(64, np.int32))
    for offset in (0, 16, 128):
        clean(kernel, data, offset, seeds=1)
    for offset in (144, 256 - 16):
        words = "first[byte" if how in ("load", "store") else "no array is there"
        expect(faults.OutOfRange, kernel, data, offset, words=words)


def test_from_one_global_array_into_the_next():
    def kernel(whole, first, second, at):
        m.ld_global_v4(m.global_address(first) + at)

    data = aligned(np.zeros(12, np.int32))
    neighbours, overlapping = (data[:6], data[6:]), (data[:8], data[4:])
    run(kernel, data, *neighbours, 16, block=1)
    other = np.zeros(1, np.int32)
    for args in (neighbours, (data[:6], data[5:])):
        run(kernel, other, *args, 0, block=1)
        expect(faults.OutOfRange, kernel, other, *args, 16, block=1, words="at byte 16 of")
    run(kernel, other, *overlapping, 16, block=1)


# --- blocks that wait for each other --------------------------------------------------------------
@device
def grid_barrier(arrived, goal):
    """All threads of all blocks meet."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        at = m.global_address(arrived)
        m.red_add_release_gpu_global_u32(at, 1)
        while m.ld_acquire_gpu_global_b32(at) < goal:
            pass
    cuda.syncthreads()


def test_a_barrier_of_the_whole_grid():
    def kernel(data, arrived, out, rounds):
        n, tid = cuda.gridDim.x, cuda.threadIdx.x
        for i in range(rounds):
            data[cuda.grid(1)] += 1
            grid_barrier(arrived, (2 * i + 1) * n)
            if tid == 0:
                out[cuda.blockIdx.x] += data[(cuda.grid(1) + 64) % (64 * n)]
            grid_barrier(arrived, (2 * i + 2) * n)

    out = np.zeros(5, np.int32)
    args = np.zeros(5 * 64, np.int32), np.zeros(1, np.uint32), out
    run(kernel, *args, 4, grid=5, block=64)
    assert (out == 1 + 2 + 3 + 4).all()
    for seed in (1, 2):
        fresh = np.zeros(5 * 64, np.int32), np.zeros(1, np.uint32), np.zeros(5, np.int32)
        run(kernel, *fresh, 2, grid=5, block=64, seed=seed, landing="random")


def test_a_chain_of_blocks_backwards():
    """Each waits for the one after it: all are there at once."""

    def kernel(flags, out, loads):
        i, tid = cuda.blockIdx.x, cuda.threadIdx.x
        if tid == 0:
            at, tries = m.global_address(flags) + 4 * i, 0
            if i < cuda.gridDim.x - 1:
                while m.ld_acquire_gpu_global_b32(at + 4) == 0:
                    tries += 1
                out[i] = out[i + 1] + 1
            loads[i] = tries
            m.st_release_gpu_global_b32(at, 1)

    out = np.zeros(40, np.int32)
    run(kernel, np.zeros(40, np.uint32), out, np.zeros(40, np.int32), grid=40)
    assert out[0] == 39


def test_polls_that_change_something_themselves():
    """A block that counts its looks in memory makes way as well."""

    def kernel(flag, looks):
        if cuda.threadIdx.x == 0:
            if cuda.blockIdx.x == 0:
                while m.ld_acquire_gpu_global_b32(m.global_address(flag)) == 0:
                    looks[0] += 1
            else:
                m.st_release_gpu_global_b32(m.global_address(flag), 1)

    clean(kernel, np.zeros(1, np.uint32), np.zeros(1, np.int32), grid=2, seeds=2)


def test_a_wait_that_gives_up():
    """Nobody sets the flag, and the block that looks for it stops after some tries."""

    def kernel(flag, out):
        tries = 0
        if cuda.threadIdx.x == 0:
            while tries < 500 and m.ld_acquire_gpu_global_b32(m.global_address(flag)) == 0:
                tries += 1
            out[cuda.blockIdx.x] = tries

    out = np.zeros(2, np.int32)
    run(kernel, np.zeros(1, np.uint32), out, grid=2)
    assert (out == 500).all()


@pytest.mark.parametrize("missing", ["a block", "a thread"])
def test_blocks_that_wait_in_vain(missing):
    def kernel(arrived):
        own = cuda.shared.array(1, np.uint32)
        at, tid = m.shared_address(own), cuda.threadIdx.x
        if tid == 0:
            own[0] = 0
        cuda.syncthreads()
        if cuda.blockIdx.x == 1 and missing == "a thread":
            while m.ld_acquire_cta_shared_b32(at) == 0:
                pass
        grid_barrier(arrived, cuda.gridDim.x + (1 if missing == "a block" else 0))

    words = ["arrived[0]", "holds 3"] if missing == "a block" else ["own[0]"]
    words += ["blocks 0-2 all poll"]
    fault = expect(faults.Livelock, kernel, np.zeros(1, np.uint32), grid=3, words=words)
    assert fault.block == (0 if missing == "a block" else 1)  # the one that holds up the others


def test_more_blocks_than_have_room():
    def kernel(arrived):
        grid_barrier(arrived, cuda.gridDim.x)

    room = resident_blocks(1, 200 * KB)
    assert room == SMS
    run(kernel, np.zeros(1, np.uint32), grid=room, block=1, shared_bytes=200 * KB)
    fault = expect(
        faults.NotResident, kernel, np.zeros(1, np.uint32), grid=room + 2, block=1, shared_bytes=200 * KB,
        words=["blocks 0-131 all poll", "these 132 have room", "2 have yet to start"],
    )  # fmt: skip
    assert fault.block == 0
    assert resident_blocks(32, 0) == 32 * SMS and resident_blocks(1024, 10 * KB) == 2 * SMS


# --- what an atomic hides -------------------------------------------------------------------------
@pytest.mark.parametrize("how", [READ, WRITE])
def test_an_atomic_behind_an_ordinary_access_does_not_hide_it(how):
    """Block 1 is ordered after neither, whichever of the two it meets."""

    def kernel(data):
        if cuda.threadIdx.x == 0:
            if cuda.blockIdx.x == 0:
                touch(data, how)
            cuda.atomic.add(data, 1, 1)

    always(faults.DataRace, kernel, np.zeros(32, np.int32), grid=2, seeds=2, words="data[1]")


def test_a_poll_is_not_hidden_by_an_atomic():
    """Thread 1 polls, thread 0 adds and then clears the flag plainly: the poll may see either."""

    def kernel(flag):
        tid, at = cuda.threadIdx.x, m.global_address(flag)
        if tid == 1:
            m.ld_acquire_gpu_global_b32(at)
        elif tid == 0:
            if cuda.atomic.add(flag, 0, 1) == 0:
                flag[0] = 0

    always(faults.DataRace, kernel, np.zeros(1, np.uint32), words="flag[0]")

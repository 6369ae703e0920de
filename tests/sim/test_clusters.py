"""Several blocks at once: the barrier of a grid, clusters, and the shared memory of other blocks."""

import numpy as np
import pytest
from helpers import always, clean, device, expect, fault_of, run
from numba import cuda, int32, types, uint32, uint64

from numba_deform.compiler import Kernel, u64
from numba_deform.device import cluster as c
from numba_deform.device.cluster import (
    cluster_arrive,
    cluster_arrive_relaxed,
    cluster_ctarank,
    cluster_sync,
    cluster_wait,
    cp_async_bulk_shared_cluster,
    cp_async_bulk_tensor_2d_multicast,
    ld_shared_cluster_b32,
    mapa_shared_cluster,
    mbarrier_arrive_cluster,
    mbarrier_arrive_expect_tx_cluster,
    mbarrier_wait_cluster,
    st_shared_cluster_b32,
    st_shared_cluster_v4,
)
from numba_deform.device.cluster_async import red_async_add_u32, st_async_b32, st_async_v2
from numba_deform.device.cluster_flags import (
    ld_acquire_cluster_shared_cluster_b32,
    st_relaxed_cluster_shared_cluster_b32,
)
from numba_deform.device.mbarrier import (
    mbarrier_arrive_expect_tx,
    mbarrier_expect_tx,
    mbarrier_init,
    mbarrier_test_wait_parity,
)
from numba_deform.device.memory import (
    atom_add_gpu_global_u32,
    global_address,
    ld_acquire_gpu_global_b32,
    ld_relaxed_gpu_global_b32,
    ld_shared_b32,
    shared_address,
    st_release_gpu_global_b32,
    st_shared_b32,
)
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import (
    fence_acq_rel_cluster,
    fence_acq_rel_cta,
    fence_mbarrier_init,
    fence_proxy_async,
    fence_proxy_async_cluster,
    fence_proxy_async_global,
)
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_load,
    cp_async_bulk_store,
    cp_async_bulk_wait_group,
    fence_proxy_tensormap_acquire_sys,
)
from numba_deform.engines import faults
from numba_deform.engines.cpu import explore, simulate
from numba_deform.engines.tensormap import TensorMap, TensorMapArray

WARP = 32
BYTES = 4 * WARP


def words(n):
    return np.zeros(n, np.uint32)


# --- the grid's barrier ---------------------------------------------------------------------------
def grid_steps(a, out):
    """Each element moves one block on, twice."""
    i = cuda.grid(1)
    n = cuda.gridsize(1)
    a[i] = uint32(i)
    cuda.cg.this_grid().sync()
    value = a[(i + 32) % n]
    cuda.cg.this_grid().sync()
    a[i] = value
    cuda.cg.this_grid().sync()
    out[i] = a[(i + 32) % n]


def test_the_grids_barrier_orders_all_blocks():
    a, out = words(96), words(96)
    clean(grid_steps, a, out, grid=3)
    np.testing.assert_array_equal(out, (np.arange(96) + 64) % 96)
    assert explore(grid_steps, 2, 1, (words(2), words(2))).complete


def test_without_the_grids_barrier_it_is_a_race():
    def kernel(a, out):
        a[cuda.grid(1)] = uint32(1)
        cuda.syncthreads()
        out[cuda.grid(1)] = a[63 - cuda.grid(1)]

    always(faults.DataRace, kernel, words(64), words(64), grid=2, words="of block")


def test_a_grid_with_a_barrier_is_resident_at_once():
    run(grid_steps, words(96), words(96), grid=3, resident=3)
    told = ["3 blocks, of which 2 have room at once", "cooperative"]
    fault = expect(faults.NotResident, grid_steps, words(96), words(96), grid=3, resident=2, words=told)
    assert fault.block == 0 and "this_grid().sync()" in fault.source
    # 200 KB of shared memory: one on each of 132 multiprocessors.
    expect(faults.NotResident, grid_steps, words(133), words(133), grid=133, block=1, shared_bytes=200 << 10)


@pytest.mark.parametrize("who", ["a block", "a thread"])
def test_who_does_not_come_to_the_grids_barrier(who):
    def kernel(out):
        if cuda.blockIdx.x == 1 and (who == "a block" or cuda.threadIdx.x == 5):
            return
        cuda.cg.this_grid().sync()
        out[0] = 1

    missing = 32 if who == "a block" else 1
    told = [f"{missing} of 64 threads have not come", "this_grid().sync()"]
    expect(faults.Deadlock, kernel, words(1), grid=2, words=told, source="sync()")


def test_resident_blocks_as_the_launch_says():
    """Two blocks wait for the third: it starts only where it has room."""

    def kernel(flag):
        if cuda.blockIdx.x == 2:
            cuda.atomic.add(flag, 0, uint32(1))
        else:
            while cuda.atomic.add(flag, 0, uint32(0)) == 0:
                pass

    run(kernel, words(1), grid=3, block=1, resident=3)
    told = ["no more than these 2 have room", "1 have yet to start"]
    expect(faults.NotResident, kernel, words(1), grid=3, block=1, resident=2, words=told)
    with pytest.raises(ValueError, match="resident=1 must be at least the 2 blocks"):
        simulate(kernel, 4, 1, (words(1),), resident=1, cluster=2)


def test_a_cluster_starts_as_a_whole():
    """The blocks of the first cluster wait for the second, which has room for one of its two blocks."""

    def kernel(flag):
        if cuda.blockIdx.x >= 2:
            cuda.atomic.add(flag, 0, uint32(1))
        else:
            while cuda.atomic.add(flag, 0, uint32(0)) < 2:
                pass

    run(kernel, words(1), grid=4, block=1, resident=4, cluster=2)
    told = ["no more than these 2 have room", "2 have yet to start"]
    expect(faults.NotResident, kernel, words(1), grid=4, block=1, resident=3, cluster=2, words=told)


# --- the launch, and who one is -------------------------------------------------------------------
def places(out):
    if cuda.threadIdx.x + cuda.threadIdx.y == 0:
        block = cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)
        out[block, 0] = cluster_ctarank()
        out[block, 1] = c.cluster_ctaid_x()
        out[block, 2] = c.cluster_ctaid_y()
        out[block, 3] = c.cluster_ctaid_z()
        out[block, 4] = c.cluster_nctarank()


def test_ranks_and_places():
    grid, cluster = (4, 3, 2), (2, 1, 2)
    out = words((24, 5))
    run(places, out, grid=grid, block=(2, 2), cluster=cluster)
    for z, y, x in np.ndindex(grid[::-1]):
        place = x % 2, 0, z % 2
        np.testing.assert_array_equal(out[x + 4 * (y + 3 * z)], [place[0] + 2 * place[2], *place, 4])
    out = words((2, 5))
    run(places, out, grid=2)
    np.testing.assert_array_equal(out, [[0, 0, 0, 0, 1]] * 2)


@pytest.mark.parametrize("grid, cluster, words", [
    (34, 17, "has 17 blocks"), (5, 2, "grid=(5, 1, 1) is no multiple"), ((4, 3), (1, 2), "is no multiple"),
    (4, 0, "has 0 blocks"),
])  # fmt: skip
def test_clusters_that_cannot_be_launched(grid, cluster, words):
    out = np.zeros((34, 5), np.uint32)
    fault = expect(faults.BadLaunch, places, out, grid=grid, cluster=cluster, words=words)
    assert "1 to 16 blocks" in fault.rule and "smaller cluster" in fault.cure


# --- distributed shared memory --------------------------------------------------------------------
def exchange(before, after):
    """A kernel in which each block reads what the other has in its shared memory; its two barriers."""

    def kernel(out):
        tile = cuda.shared.array(WARP, uint32)
        i = int32(cuda.threadIdx.x)
        tile[i] = uint32(cuda.blockIdx.x * WARP + i)
        before()
        there = mapa_shared_cluster(shared_address(tile), cluster_ctarank() ^ uint32(1))
        out[cuda.grid(1)] = ld_shared_cluster_b32(uint32(there + uint32(4 * (31 - i))))
        after()

    return kernel


@device
def sync():
    cluster_sync()


@device
def relaxed():
    cluster_arrive_relaxed()
    cluster_wait()


@device
def block_only():
    cuda.syncthreads()


def test_reading_from_another_block():
    out = words(128)
    clean(exchange(sync, sync), out, grid=4, cluster=2)
    np.testing.assert_array_equal(out.reshape(4, WARP), np.arange(128).reshape(4, WARP)[[1, 0, 3, 2], ::-1])


@pytest.mark.parametrize("start, end, fault", [
    (block_only, sync, faults.BlockNotStarted), (relaxed, sync, faults.DataRace),
    (sync, block_only, faults.BlockEnded), (sync, relaxed, faults.BlockEnded),
])  # fmt: skip
def test_reading_too_early_or_too_late(start, end, fault):
    always(fault, exchange(start, end), words(64), grid=2, cluster=2, source="ld_shared_cluster_b32")


def test_an_own_address_is_a_cluster_address():
    def kernel(out):
        tile = cuda.shared.array(WARP, uint32)
        i = int32(cuda.threadIdx.x)
        place = uint32(shared_address(tile) + uint32(4 * i))
        st_shared_cluster_b32(place, uint32(i))
        out[i] = ld_shared_cluster_b32(mapa_shared_cluster(place, cluster_ctarank()))

    out = words(WARP)
    clean(kernel, out)
    np.testing.assert_array_equal(out, np.arange(WARP))


def push(between):
    """A kernel in which each block writes into the other, with a barrier before it reads."""

    def kernel(out):
        tile = cuda.shared.array(WARP, uint32)
        i = int32(cuda.threadIdx.x)
        cluster_sync()
        there = mapa_shared_cluster(shared_address(tile), cluster_ctarank() ^ uint32(1))
        st_shared_cluster_b32(uint32(there + uint32(4 * i)), uint32(cuda.blockIdx.x))
        between()
        out[cuda.grid(1)] = tile[31 - i]
        cluster_sync()

    return kernel


def test_writing_into_another_block():
    out = words(64)
    clean(push(sync), out, grid=2, cluster=2)
    np.testing.assert_array_equal(out, np.repeat([1, 0], WARP))
    always(faults.DataRace, push(block_only), words(64), grid=2, cluster=2, words="cluster scope")


def test_flags_in_global_memory_say_that_a_block_has_started():
    """A release and an acquire of gpu scope do what the cluster's barrier does."""

    def kernel(flag: u64, out):
        tile = cuda.shared.array(1, uint32)
        if cuda.blockIdx.x == 1:
            tile[0] = uint32(7)
            st_release_gpu_global_b32(flag, uint32(1))
            while ld_acquire_gpu_global_b32(flag) != 2:
                pass
        else:
            while ld_acquire_gpu_global_b32(flag) != 1:
                pass
            out[0] = ld_shared_cluster_b32(mapa_shared_cluster(shared_address(tile), uint32(1)))
            st_release_gpu_global_b32(flag, uint32(2))

    out = words(1)
    typed = Kernel(kernel, types.void(types.uint64, types.uint32[::1]), 1)
    clean(typed, words(1), out, grid=2, block=1, cluster=2)
    assert out[0] == 7


@pytest.mark.parametrize("rank, address", [(2, 0), (0, 2), (0, 1 << 20)])
def test_addresses_that_are_none(rank, address):
    def kernel(out):
        tile = cuda.shared.array(WARP, uint32)
        tile[cuda.threadIdx.x] = uint32(0)
        cluster_sync()
        there = mapa_shared_cluster(shared_address(tile), uint32(rank))
        out[0] = ld_shared_cluster_b32(uint32(there + uint32(address)))
        cluster_sync()

    kind = faults.NotInCluster if rank else faults.Misaligned if address == 2 else faults.OutOfRange
    expect(kind, kernel, words(1), grid=2, cluster=2)


def test_arrays_lie_at_the_same_place_of_every_block():
    def kernel(out):
        if cuda.blockIdx.x == 0:
            other = cuda.shared.array(7, uint32)
            other[cuda.threadIdx.x] = uint32(5)
        tile = cuda.shared.array(1, uint32)
        if cuda.threadIdx.x == 0:
            tile[0] = uint32(7)
        cluster_sync()
        if cuda.blockIdx.x == 1:
            out[cuda.threadIdx.x] = ld_shared_cluster_b32(mapa_shared_cluster(shared_address(tile), uint32(0)))
        cluster_sync()

    out = words(4)
    clean(kernel, out, grid=2, block=4, cluster=2)
    assert (out == 7).all()


def test_a_block_that_has_ended_already():
    def kernel(out):
        tile = cuda.shared.array(1, uint32)
        if cuda.threadIdx.x == 0:
            tile[0] = uint32(1)
        cluster_sync()
        if cuda.blockIdx.x == 0:
            cluster_sync()  # which the other block's threads let go when they exit
            out[0] = ld_shared_cluster_b32(mapa_shared_cluster(shared_address(tile), uint32(1)))

    always(faults.BlockEnded, kernel, words(1), grid=2, block=1, cluster=2, source="ld_shared_cluster_b32")


@device
def fenced():
    cuda.threadfence()
    relaxed()


@pytest.mark.parametrize("meet", [sync, relaxed, fenced])
def test_the_clusters_barrier_hands_on_what_others_have_said(meet):
    """Block 2 acquires what block 0, of another cluster, has released; block 3 knows of it by the barrier."""

    def kernel(flag: u64, data, out):
        if cuda.blockIdx.x == 0:
            data[0] = uint32(7)
            st_release_gpu_global_b32(flag, uint32(1))
        if cuda.blockIdx.x == 2:
            while ld_acquire_gpu_global_b32(flag) == 0:
                pass
        if cuda.blockIdx.x >= 2:
            meet()
        if cuda.blockIdx.x == 3:
            out[0] = data[0]

    array = types.uint32[::1]
    args = Kernel(kernel, types.void(types.uint64, array, array), 1), words(1), words(1), words(1)
    if meet is relaxed:
        always(faults.DataRace, *args, grid=4, block=1, cluster=2, source="out[0] = data[0]")
    else:
        clean(*args, grid=4, block=1, cluster=2)


# --- the cluster's barrier ------------------------------------------------------------------------
def test_arrive_and_wait_in_pairs():
    def twice(out):
        cluster_arrive()
        cluster_arrive()
        cluster_wait()

    def never(out):
        cluster_wait()

    for kernel in (twice, never):
        expect(faults.ClusterBarrierMisuse, kernel, words(1), grid=2, cluster=2, words="PTX 9.7.13.3")


def test_threads_that_have_exited_are_not_waited_for():
    def kernel(out):
        if cuda.threadIdx.x >= 3 + cuda.blockIdx.x:
            return
        cluster_sync()
        cluster_sync()
        out[cuda.grid(1)] = 1

    out = words(64)
    clean(kernel, out, grid=2, cluster=2)
    assert out.nonzero()[0].tolist() == [0, 1, 2, 32, 33, 34, 35]


def test_a_thread_that_stays_away_from_the_clusters_barrier():
    def kernel(out):
        if cuda.blockIdx.x == 0 or cuda.threadIdx.x != 9:
            cluster_sync()
        cuda.syncthreads()

    told = ["1 of 64 threads have not come", "9"]
    expect(faults.Deadlock, kernel, words(1), grid=2, cluster=2, words=told)


def test_a_block_that_waits_for_its_own_is_blamed():
    """Block 0 stands at the cluster's barrier, where block 1 does not come: its barrier lacks an arrival."""

    def kernel(out):
        bar = shared_address(cuda.shared.array(1, uint64))
        if cuda.threadIdx.x == 0:
            mbarrier_init(bar, 1 + cuda.blockIdx.x)
            mbarrier_arrive_cluster(bar)
        cuda.syncthreads()
        mbarrier_wait(bar, 0)
        cluster_sync()

    fault = expect(faults.MissingArrivals, kernel, words(1), grid=2, cluster=2, source="mbarrier_wait(bar, 0)")
    assert fault.block == 1


# --- arrivals from other blocks -------------------------------------------------------------------
def mailbox(wait, meet):
    """A kernel in which each block writes into the other and arrives on its barrier."""

    def kernel(out):
        tile = cuda.shared.array(WARP, uint32)
        bar = shared_address(cuda.shared.array(1, uint64))
        i = int32(cuda.threadIdx.x)
        if i == 0:
            mbarrier_init(bar, WARP)
        meet()
        other = cluster_ctarank() ^ uint32(1)
        there = mapa_shared_cluster(shared_address(tile), other)
        st_shared_cluster_b32(uint32(there + uint32(4 * i)), uint32(cuda.blockIdx.x))
        mbarrier_arrive_cluster(mapa_shared_cluster(bar, other))
        wait(bar)
        out[cuda.grid(1)] = tile[31 - i]

    return kernel


@device
def wide_wait(bar):
    mbarrier_wait_cluster(bar, uint32(0))


@device
def narrow_wait(bar):
    mbarrier_wait(bar, 0)


@device
def fence_and_meet():
    fence_mbarrier_init()
    relaxed()


def test_an_arrival_from_another_block():
    out = words(64)
    clean(mailbox(wide_wait, fence_and_meet), out, grid=2, cluster=2)
    np.testing.assert_array_equal(out, np.repeat([1, 0], WARP))
    clean(mailbox(wide_wait, sync), out, grid=2, cluster=2)


def handed_over(wait):
    """A kernel in which each block reads what the other wrote to global memory before it arrived."""

    def kernel(data, out):
        bar = shared_address(cuda.shared.array(1, uint64))
        i = int32(cuda.threadIdx.x)
        if i == 0:
            mbarrier_init(bar, WARP)
        cluster_sync()
        other = cluster_ctarank() ^ uint32(1)
        data[cuda.blockIdx.x, i] = uint32(cuda.grid(1))
        mbarrier_arrive_cluster(mapa_shared_cluster(bar, other))
        if i == 0:
            wait(bar)
        cuda.syncthreads()
        out[cuda.grid(1)] = data[other, 31 - i]
        cluster_sync()

    return kernel


def test_a_wait_of_scope_cta_does_not_hand_on_global_memory():
    """Not to the thread that waits, nor to those that meet it later."""
    data, out = np.zeros((2, WARP), np.uint32), words(64)
    told = "has scope cta, which leaves out what other blocks did to global memory"
    always(faults.ScopeRace, handed_over(narrow_wait), data, out, grid=2, cluster=2, words=told)
    clean(handed_over(wide_wait), data, out, grid=2, cluster=2)
    np.testing.assert_array_equal(out, np.concatenate([np.arange(63, 31, -1), np.arange(31, -1, -1)]))


def test_what_came_round_by_a_wait_of_scope_cta_is_known():
    """A thread's write to shared memory comes back to its block by way of the other one."""

    def kernel(out):
        word = cuda.shared.array(1, uint32)
        bar = shared_address(cuda.shared.array(1, uint64))
        if cuda.threadIdx.x == 0:
            mbarrier_init(bar, 1)
        cluster_sync()
        there = mapa_shared_cluster(bar, cluster_ctarank() ^ uint32(1))
        if cuda.blockIdx.x == 0 and cuda.threadIdx.x == 0:
            word[0] = uint32(7)
            mbarrier_arrive_cluster(there)
        elif cuda.blockIdx.x == 1 and cuda.threadIdx.x == 0:
            mbarrier_wait(bar, 0)
            mbarrier_arrive_cluster(there)
        elif cuda.blockIdx.x == 0 and cuda.threadIdx.x == 32:
            mbarrier_wait(bar, 0)
            out[0] = word[0]
        cluster_sync()

    out = words(1)
    clean(kernel, out, grid=2, block=64, cluster=2)
    assert out[0] == 7


def test_a_barrier_of_another_block_is_initialised_before():
    always(faults.InitNotOrdered, mailbox(wide_wait, relaxed), words(64), grid=2, cluster=2)

    def none(out):
        bar = shared_address(cuda.shared.array(1, uint64))
        cluster_sync()
        mbarrier_arrive_cluster(mapa_shared_cluster(bar, cluster_ctarank() ^ uint32(1)))
        cluster_sync()

    always(faults.NotABarrier, none, words(1), grid=2, cluster=2, source="mbarrier_arrive_cluster")
    always(faults.BlockNotStarted, mailbox(wide_wait, block_only), words(64), grid=2, cluster=2)


def test_bytes_expected_by_another_block():
    def kernel(out):
        bar = shared_address(cuda.shared.array(1, uint64))
        if cuda.threadIdx.x == 0:
            mbarrier_init(bar, 1)
        cluster_sync()
        if cuda.threadIdx.x == 0:
            there = mapa_shared_cluster(bar, cluster_ctarank() ^ uint32(1))
            mbarrier_arrive_expect_tx_cluster(there, uint32(16))
            mbarrier_wait_cluster(bar, uint32(0))

    expect(faults.MissingBytes, kernel, words(1), grid=2, cluster=2, words="16 bytes expected")


def test_arrivals_from_another_block_keep_to_the_phase():
    def kernel(count, threads, rounds):
        bar = shared_address(cuda.shared.array(1, uint64))
        if cuda.threadIdx.x == 0:
            mbarrier_init(bar, count)
        cluster_sync()
        if cuda.blockIdx.x == 1 and cuda.threadIdx.x < threads:
            there = mapa_shared_cluster(bar, uint32(0))
            for _ in range(rounds):
                mbarrier_arrive_cluster(there)
        cluster_sync()

    def report(kind, *args, **more):
        return expect(kind, kernel, *args, grid=2, cluster=2, source="mbarrier_arrive_cluster", **more)

    one = report(faults.UnobservedPhase, 2, 1, 3, words="without having waited for phase 0, directly or")
    assert "; its arrival in that was at test_clusters.py:" in one.what
    assert one.cure.startswith("Its own threads alone can wait on ")
    assert "arrive on an mbarrier of this block (mbarrier_arrive_cluster)" in one.cure
    many = report(faults.TooManyArrivals, 1, 2, 1)
    assert " of block 0, whose phase 0 is over without it: the 1 expected arrival was made by" in many.what
    assert many.cure.startswith("Initialise ") and "for all who arrive in a phase, of all blocks" in many.cure


def test_a_lane_that_arrives_in_another_block_for_its_warp():
    def kernel(out, meet, late):
        bar, sums = shared_address(cuda.shared.array(1, uint64)), cuda.shared.array(32, int32)
        tid = cuda.threadIdx.x
        if tid == 0:
            mbarrier_init(bar, 1)
        cluster_sync()
        if cuda.blockIdx.x == 1:
            there = mapa_shared_cluster(shared_address(sums), uint32(0))
            if not late:
                st_shared_cluster_b32(there + 4 * tid, tid)
            if meet:
                cuda.syncwarp()
            if tid == 0:
                mbarrier_arrive_cluster(mapa_shared_cluster(bar, uint32(0)))
            if late:
                st_shared_cluster_b32(there + 4 * tid, tid)
        else:
            mbarrier_wait_cluster(bar, uint32(0))
            out[tid] = sums[tid]
        cluster_sync()

    out = words(32)
    clean(kernel, out, True, False, grid=2, cluster=2)
    said = ["Put cuda.syncwarp() before the arrival of thread 0 at ", "thread 0 of block 1 arrived on "]
    always(faults.DataRace, kernel, out, False, False, grid=2, cluster=2, seeds=2, words=said)
    for seed in range(3):
        fault = fault_of(kernel, out, False, True, grid=2, cluster=2, seed=seed, landing="random")
        assert "Put cuda.syncwarp()" not in fault.cure


def to_and_fro(late, wait=mbarrier_wait_cluster):
    """A kernel in which two blocks answer each other three times, and a thread waits for the first phase, at
    once or ``late``."""

    def kernel(flag: u64, out):
        bar = shared_address(cuda.shared.array(1, uint64))
        if cuda.threadIdx.x == 0:
            mbarrier_init(bar, 1)
        cluster_sync()
        there = mapa_shared_cluster(bar, cluster_ctarank() ^ uint32(1))
        if cuda.threadIdx.x == 0:
            for n in range(3):
                if cluster_ctarank() == 0:
                    mbarrier_arrive_cluster(there)
                wait(bar, uint32(n & 1))
                if cluster_ctarank() == 1:
                    mbarrier_arrive_cluster(there)
            atom_add_gpu_global_u32(flag, uint32(1))
        elif cuda.threadIdx.x == 32 and cluster_ctarank() == 0:
            while late and ld_relaxed_gpu_global_b32(flag) < 2:
                pass
            mbarrier_wait(bar, 0)
        cluster_sync()
        out[cuda.blockIdx.x] = uint32(1)

    return Kernel(kernel, types.void(types.uint64, types.uint32[::1]), 64)


def test_two_blocks_answer_each_other():
    for wait in (mbarrier_wait_cluster, mbarrier_wait):
        for landing in ("late", "earliest"):
            at_once = to_and_fro(False, wait)
            run(at_once, words(1), words(128), grid=2, block=1, cluster=2, landing=landing)
    told = "waits on bar[0] for phase 0"
    expect(faults.MissedPhase, to_and_fro(True), words(1), words(2), grid=2, block=64, cluster=2, words=told)


def test_nobody_waits_on_another_blocks_barrier():
    def kernel(out):
        bar = shared_address(cuda.shared.array(1, uint64))
        if cuda.threadIdx.x == 0:
            mbarrier_init(bar, 1)
        cluster_sync()
        mbarrier_wait_cluster(mapa_shared_cluster(bar, cluster_ctarank() ^ uint32(1)), uint32(0))

    expect(faults.NotABarrier, kernel, words(1), grid=2, cluster=2, words="its own block only")


# --- multicast ------------------------------------------------------------------------------------
def multicast(mask, expected=BYTES, fence=True, soiled=False):
    """A kernel in which block 0 loads a tile into the blocks of ``mask``, and all read theirs."""

    def kernel(map, out):
        tile = cuda.shared.array(WARP, uint32, alignment=128)
        bar = shared_address(cuda.shared.array(1, uint64))
        i = int32(cuda.threadIdx.x)
        if i == 0:
            mbarrier_init(bar, 1)
            if fence:
                fence_mbarrier_init()
            fence_proxy_tensormap_acquire_sys(map)
            if soiled:
                tile[0] = uint32(1)
        cluster_sync()
        if i == 0:
            mbarrier_arrive_expect_tx(bar, uint32(expected))
            if cluster_ctarank() == 0:
                here, row = shared_address(tile), int32(cuda.blockIdx.x)
                cp_async_bulk_tensor_2d_multicast(here, map, int32(0), row, bar, uint32(mask))
        mbarrier_wait(bar, 0)
        out[cuda.grid(1)] = tile[i]

    return Kernel(kernel, types.void(types.uint64, types.uint32[::1]), WARP)


def tiles():
    data = np.arange(4 * WARP, dtype=np.uint32).reshape(4, WARP)
    return TensorMapArray([TensorMap.of(data, (WARP, 1))])


def test_multicast_brings_the_box_to_each():
    out = words(128)
    clean(multicast(0b11), tiles(), out, grid=4, cluster=2)
    np.testing.assert_array_equal(out.reshape(4, WARP), tiles()[0].array[[0, 0, 2, 2]])


def test_each_block_counts_its_own_bytes():
    expect(faults.MissingBytes, multicast(0b01), tiles(), words(64), grid=2, cluster=2)
    always(faults.MoreBytesThanExpected, multicast(0b11, 64), tiles(), words(64), grid=2, cluster=2)


@pytest.mark.parametrize("mask", [0, 0b100, 0b111, 0b10000000000000001])
def test_masks_name_blocks_of_the_cluster(mask):
    expect(faults.NotInCluster, multicast(mask), tiles(), words(64), grid=2, cluster=2, words=f"mask {mask:#x}")


def test_the_copy_engine_sees_the_init_past_a_fence():
    expect(faults.MissingInitFence, multicast(0b10, fence=False), tiles(), words(64), grid=2, cluster=2)
    expect(faults.MissingInitFence, multicast(0b11, fence=False), tiles(), words(64), grid=2, cluster=2)
    for mask in (0b01, 0b10):
        expect(faults.MissingProxyFence, multicast(mask, soiled=True), tiles(), words(64), grid=2, cluster=2)


def around(before, after):
    """A kernel in which block 0 loads a tile into block 1, and thread 0 of each block does something before and
    after it has come: functions of (rank, tile, bar, data, out)."""

    def kernel(map: u64, data, out):
        tile = shared_address(cuda.shared.array(WARP, uint32, alignment=128))
        bar = shared_address(cuda.shared.array(1, uint64))
        rank = cluster_ctarank()
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(map)
        cluster_sync()
        before(rank, tile, bar, data, out)
        cluster_sync()
        if rank == 1:
            mbarrier_arrive_expect_tx(bar, uint32(BYTES))
        if rank == 0:
            cp_async_bulk_tensor_2d_multicast(tile, map, int32(0), int32(0), bar, uint32(0b10))
        else:
            mbarrier_wait(bar, 0)
        after(rank, tile, bar, data, out)
        cluster_sync()

    array = types.uint32[::1]
    return Kernel(kernel, types.void(types.uint64, array, array), 1)


@device
def nothing(rank, tile, bar, data, out):
    pass


@device
def writes_the_source(rank, tile, bar, data, out):
    if rank == 0:
        data[0] = uint32(7)


@device
def writes_the_source_for_it(rank, tile, bar, data, out):
    if rank == 0:
        data[0] = uint32(7)
        fence_proxy_async_global()


@device
def writes_what_has_come(rank, tile, bar, data, out):
    if rank == 1:
        data[0] = uint32(7)


@device
def writes_the_tile(rank, tile, bar, data, out):
    if rank == 1:
        st_shared_b32(tile, uint32(7))


@device
def writes_the_tile_for_it(rank, tile, bar, data, out):
    if rank == 1:
        st_shared_b32(tile, uint32(7))
        fence_proxy_async()


@pytest.mark.parametrize("before, after, fault", [
    (nothing, nothing, None), (nothing, writes_the_source, faults.DataRace),
    (nothing, writes_what_has_come, None),
    (writes_the_source, nothing, faults.MissingProxyFence), (writes_the_source_for_it, nothing, None),
    (writes_the_tile, nothing, faults.MissingProxyFence), (writes_the_tile_for_it, nothing, None),
])  # fmt: skip
def test_what_a_multicast_reads_and_writes(before, after, fault):
    data = np.arange(4 * WARP, dtype=np.uint32)
    maps = TensorMapArray([TensorMap.of(data.reshape(4, WARP), (WARP, 1))])
    args = around(before, after), maps, data, words(2)
    options = {"grid": 2, "block": 1, "cluster": 2}
    if fault is None:
        clean(*args, **options)
    else:
        always(fault, *args, **options)


def test_a_multicast_orders_nothing_else():
    """What its issuer wrote before is not ordered before what the other block does behind its wait."""

    def kernel(map: u64, out):
        tile = shared_address(cuda.shared.array(WARP, uint32, alignment=128))
        bar = shared_address(cuda.shared.array(1, uint64))
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(map)
        cluster_sync()
        if cluster_ctarank() == 0:
            out[0] = uint32(7)
            cp_async_bulk_tensor_2d_multicast(tile, map, int32(0), int32(0), bar, uint32(0b10))
        else:
            mbarrier_arrive_expect_tx(bar, uint32(BYTES))
            mbarrier_wait(bar, 0)
            out[1] = out[0]
        cluster_sync()

    typed = Kernel(kernel, types.void(types.uint64, types.uint32[::1]), 1)
    always(faults.DataRace, typed, tiles(), words(2), grid=2, block=1, cluster=2)


def test_a_tile_that_is_read_after_its_release():
    """Block 1 gives the tile back and reads it again, while the next one is under way: that is blamed."""

    def kernel(map: u64, out):
        tile = shared_address(cuda.shared.array(WARP, uint32, alignment=128))
        bars = shared_address(cuda.shared.array(2, uint64))
        empty = uint32(bars + uint32(8))
        mbarrier_init(bars, 1)
        mbarrier_init(empty, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(map)
        cluster_sync()
        if cluster_ctarank() == 0:
            cp_async_bulk_tensor_2d_multicast(tile, map, int32(0), int32(0), bars, uint32(0b10))
            mbarrier_wait_cluster(empty, uint32(0))
            cp_async_bulk_tensor_2d_multicast(tile, map, int32(0), int32(1), bars, uint32(0b10))
        else:
            mbarrier_arrive_expect_tx(bars, uint32(BYTES))
            mbarrier_wait(bars, 0)
            mbarrier_arrive_expect_tx(bars, uint32(BYTES))
            mbarrier_arrive_cluster(mapa_shared_cluster(empty, uint32(0)))
            cluster_arrive()
            cluster_wait()
            out[0] = ld_shared_b32(tile)
        if cluster_ctarank() == 0:
            cluster_sync()
        cluster_sync()

    typed = Kernel(kernel, types.void(types.uint64, types.uint32[::1]), 1)
    expect(faults.StaleWait, typed, tiles(), words(1), grid=2, block=1, cluster=2, source="ld_shared_b32")


# --- bulk copies between blocks -------------------------------------------------------------------
def sent_when_free(fence):
    """A kernel in which block 1 says by an arrival that its tile may be written, and block 0, which waits for
    that with scope cta, sends it one. ``fence``: for the ordinary write to that tile."""

    def kernel(out):
        tile = shared_address(cuda.shared.array(4, uint32, alignment=16))
        bars = shared_address(cuda.shared.array(2, uint64))
        free = uint32(bars + uint32(8))
        mbarrier_init(bars, 1)
        mbarrier_init(free, 1)
        fence_mbarrier_init()
        st_shared_b32(tile, uint32(cluster_ctarank() + uint32(7)))
        for k in range(1, 4):
            st_shared_b32(tile + uint32(4 * k), uint32(0))
        if fence or cluster_ctarank() == 0:
            fence_proxy_async()
        cluster_arrive_relaxed()
        cluster_wait()
        if cluster_ctarank() == 0:
            mbarrier_wait(free, 0)
            there = mapa_shared_cluster(tile, uint32(1))
            full = mapa_shared_cluster(bars, uint32(1))
            cp_async_bulk_shared_cluster(there, tile, uint32(16), full)
        else:
            mbarrier_arrive_expect_tx(bars, uint32(16))
            mbarrier_arrive_cluster(mapa_shared_cluster(free, uint32(0)))
            mbarrier_wait(bars, 0)
            out[0] = ld_shared_b32(tile)
        cluster_sync()

    return kernel


def test_who_sent_may_end_behind_a_wait_of_scope_cta():
    """The arrival that it waits for says that the copy out of its memory is complete."""

    def make(wait):
        def kernel(out):
            tile = shared_address(cuda.shared.array(4, uint32, alignment=16))
            bar = shared_address(cuda.shared.array(1, uint64))
            mbarrier_init(bar, 1)
            fence_mbarrier_init()
            for k in range(4):
                st_shared_b32(tile + uint32(4 * k), uint32(7 + k))
            fence_proxy_async()
            cluster_sync()
            if cluster_ctarank() == 0:
                there = mapa_shared_cluster(tile, uint32(1))
                cp_async_bulk_shared_cluster(there, tile, uint32(16), mapa_shared_cluster(bar, uint32(1)))
                if wait:
                    mbarrier_wait(bar, 0)
            else:
                mbarrier_arrive_expect_tx(bar, uint32(16))
                mbarrier_wait(bar, 0)
                if wait:
                    mbarrier_arrive_cluster(mapa_shared_cluster(bar, uint32(0)))
                out[0] = ld_shared_b32(tile + uint32(8))

        return kernel

    out = words(1)
    clean(make(True), out, grid=2, block=1, cluster=2)
    assert out[0] == 9
    always(faults.CopyOutlivesBlock, make(False), out, grid=2, block=1, cluster=2)


def test_a_copy_behind_a_wait_of_scope_cta():
    out = words(1)
    clean(sent_when_free(True), out, grid=2, block=1, cluster=2)
    assert out[0] == 7
    said = ["of block 1", "or call fence_proxy_async_cluster() behind the barrier"]
    always(faults.MissingProxyFence, sent_when_free(False), out, grid=2, block=1, cluster=2, words=said)


def send(fence=True, after="meet", bar_rank=1, size=BYTES, offset=0):
    """A kernel in which block 0 sends a tile to block 1. Behind that block 0 does as ``after`` says."""

    def kernel(out):
        tile = cuda.shared.array(WARP, uint32, alignment=16)
        inbox = cuda.shared.array(WARP, uint32, alignment=16)
        bar = shared_address(cuda.shared.array(1, uint64))
        i = int32(cuda.threadIdx.x)
        tile[i] = uint32(100 * cuda.blockIdx.x + i)
        if fence:
            fence_proxy_async()
        if i == 0:
            mbarrier_init(bar, 1)
            fence_mbarrier_init()
        cluster_sync()
        if cluster_ctarank() == 0:
            if i == 0:
                there = uint32(mapa_shared_cluster(shared_address(inbox), uint32(1)) + uint32(offset))
                far = mapa_shared_cluster(bar, uint32(bar_rank))
                cp_async_bulk_shared_cluster(there, shared_address(tile), uint32(size), far)
                if after == "write":
                    tile[0] = uint32(1)
        else:
            if i == 0:
                mbarrier_arrive_expect_tx(bar, uint32(BYTES))
            mbarrier_wait(bar, 0)
            out[i] = inbox[i]
        if after != "leave":
            cluster_sync()
            tile[i] = uint32(1)

    return kernel


def test_a_copy_from_block_to_block():
    out = words(WARP)
    clean(send(), out, grid=2, cluster=2)
    np.testing.assert_array_equal(out, np.arange(WARP))


@pytest.mark.parametrize("options, fault", [
    ({"fence": False}, faults.MissingProxyFence), ({"after": "write"}, faults.DataRace),
    ({"after": "leave"}, (faults.CopyOutlivesBlock, "cluster_sync() in all threads of the cluster at the end")),
    ({"bar_rank": 0}, (faults.NotABarrier, "mapa_shared_cluster(dst, 1) and mapa_shared_cluster(bar, 1)")),
    ({"size": 24}, faults.BadSize), ({"offset": 8}, faults.Misaligned), ({"offset": 16}, faults.OutOfRange),
    ({"size": 64}, faults.MissingBytes),
])  # fmt: skip
def test_copies_from_block_to_block_that_are_wrong(options, fault):
    fault, told = fault if isinstance(fault, tuple) else (fault, "")
    always(fault, send(**options), words(WARP), grid=2, cluster=2, words=told)


# --- what a barrier counts, from registers and by reductions ----------------------------------------
@pytest.mark.parametrize("then, fault", [
    ("wait", None), ("read", faults.InFlightRead), ("write", faults.DataRace),
])  # fmt: skip
@pytest.mark.parametrize("reduces", [False, True])
def test_what_the_issuer_does_to_the_same_bytes(reduces, then, fault):
    """Until it knows that the phase is complete, they are the operation's."""
    REDUCES, THEN = reduces, then

    def kernel(out):
        word = shared_address(cuda.shared.array(1, uint32))
        bars = shared_address(cuda.shared.array(2, uint64))
        told = uint32(bars + uint32(8))
        st_shared_b32(word, uint32(5))
        mbarrier_init(bars, 1)
        mbarrier_init(told, 1)
        fence_mbarrier_init()
        cluster_sync()
        if cluster_ctarank() == 0:
            there, bar = mapa_shared_cluster(word, uint32(1)), mapa_shared_cluster(bars, uint32(1))
            if REDUCES:
                red_async_add_u32(there, uint32(7), bar)
            else:
                st_async_b32(there, uint32(12), bar)
            if THEN == "write":
                st_shared_cluster_b32(there, uint32(1))
            if THEN == "wait":
                mbarrier_wait(told, 0)
            out[0] = ld_shared_cluster_b32(there)
        else:
            mbarrier_arrive_expect_tx(bars, uint32(4))
            mbarrier_wait(bars, 0)
            mbarrier_arrive_cluster(mapa_shared_cluster(told, uint32(0)))
        cluster_sync()

    out, options = words(1), {"grid": 2, "block": 1, "cluster": 2}
    if fault:
        always(fault, kernel, out, **options)
    else:
        clean(kernel, out, **options)
        assert out[0] == 12


@pytest.mark.parametrize("released", [True, False])
def test_rounds_of_reductions(released):
    """The owner reads the sum and sets it back; the others wait for that before they add again."""
    RELEASED, ROUNDS, BLOCKS = released, 3, 4

    def kernel(data, out):
        total = shared_address(cuda.shared.array(1, uint32))
        bars = shared_address(cuda.shared.array(2, uint64))
        free, rank = uint32(bars + uint32(8)), cluster_ctarank()
        st_shared_b32(total, uint32(0))
        mbarrier_init(bars, 1)
        mbarrier_init(free, 1)
        cluster_sync()
        for k in range(ROUNDS):
            if rank == 0:
                mbarrier_arrive_expect_tx(bars, uint32(4 * (BLOCKS - 1)))
                mbarrier_wait(bars, k & 1)
                out[k] = ld_shared_b32(total)
                st_shared_b32(total, uint32(0))
                for other in range(1, BLOCKS):
                    mbarrier_arrive_cluster(mapa_shared_cluster(free, uint32(other)))
            else:
                first, full = mapa_shared_cluster(total, uint32(0)), mapa_shared_cluster(bars, uint32(0))
                red_async_add_u32(first, data[k, rank], full)
                if RELEASED or k == 0:
                    mbarrier_wait(free, k & 1)
        cluster_sync()

    data, out = np.random.default_rng(4).integers(0, 1 << 32, (3, 4), np.uint32), words(3)
    options = {"grid": 4, "block": 1, "cluster": 4}
    if released:
        clean(kernel, data, out, **options)
        np.testing.assert_array_equal(out, data[:, 1:].sum(1, dtype=np.uint32))
    else:
        kinds = (faults.DataRace, faults.RefillRace, faults.MoreBytesThanExpected, faults.UnobservedPhase)
        for seed in range(6):
            with pytest.raises(kinds):
                run(kernel, data, words(3), seed=seed, **options)


def test_st_async_needs_a_cluster():
    def kernel(out):
        word = shared_address(cuda.shared.array(1, uint32))
        bar = shared_address(cuda.shared.array(1, uint64))
        mbarrier_init(bar, 1)
        mbarrier_arrive_expect_tx(bar, uint32(4))
        st_async_b32(word, uint32(1), bar)
        mbarrier_wait(bar, 0)
        out[0] = ld_shared_b32(word)

    expect(faults.NotInCluster, kernel, words(1), block=1, words="cluster of one block", source="st_async_b32")


@pytest.mark.parametrize("offset, bar_rank, fault", [
    (4, 1, faults.Misaligned), (0, 0, faults.NotABarrier), (64, 1, faults.OutOfRange),
])  # fmt: skip
def test_where_st_async_goes(offset, bar_rank, fault):
    def kernel(out):
        tile = shared_address(cuda.shared.array(4, uint32, alignment=16))
        bar = shared_address(cuda.shared.array(1, uint64))
        mbarrier_init(bar, 1)
        cluster_sync()
        if cluster_ctarank() == 0:
            there = uint32(mapa_shared_cluster(tile, uint32(1)) + uint32(offset))
            st_async_v2(there, uint32(1), uint32(2), mapa_shared_cluster(bar, uint32(bar_rank)))
        else:
            mbarrier_arrive_expect_tx(bar, uint32(8))
            mbarrier_wait(bar, 0)
        cluster_sync()

    expect(fault, kernel, words(1), grid=2, block=1, cluster=2, source="st_async_v2")


@pytest.mark.parametrize("by_arrival", [False, True])
@pytest.mark.parametrize("who", ["nobody", "writer", "writer for all", "owner"])
def test_whose_fence_lets_a_copy_see_what_another_block_wrote(who, by_arrival):
    """Its state space is the cluster's shared memory, or that of the fence's own block. The owner hears of the
    write at the cluster's barrier, or by an arrival and a wait of scope cta."""
    WHO, BY_ARRIVAL = who, by_arrival

    def kernel(out: u64):
        tile = shared_address(cuda.shared.array(4, uint32, alignment=16))
        bar = shared_address(cuda.shared.array(1, uint64))
        mbarrier_init(bar, 1)
        cluster_sync()
        if cluster_ctarank() == 0:
            there = mapa_shared_cluster(tile, uint32(1))
            st_shared_cluster_v4(there, uint32(1), uint32(2), uint32(3), uint32(4))
            if WHO == "writer":
                fence_proxy_async()
            if WHO == "writer for all":
                fence_proxy_async_cluster()
            if BY_ARRIVAL:
                mbarrier_arrive_cluster(mapa_shared_cluster(bar, uint32(1)))
        if not BY_ARRIVAL:
            cluster_sync()
        if cluster_ctarank() == 1:
            if BY_ARRIVAL:
                mbarrier_wait(bar, 0)
            if WHO == "owner":
                fence_proxy_async()
            cp_async_bulk_store(out, tile, uint32(16))
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group(uint32(0))

    out, options = words(4), {"grid": 2, "block": 1, "cluster": 2}
    typed = Kernel(kernel, types.void(types.uint64), 1)
    if who in ("writer for all", "owner"):
        clean(typed, out, **options)
        np.testing.assert_array_equal(out, [1, 2, 3, 4])
    else:
        fault = expect(faults.MissingProxyFence, typed, words(4), **options)
        assert "fence_proxy_async_cluster()" in fault.cure


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("met", [False, True])
def test_a_wait_on_ones_own_barrier_says_nothing_of_anothers(bulk, met):
    """Each block sends to the other, and waits for what it gets; what it has sent may not be there."""
    BULK, MET = bulk, met

    def kernel(out):
        source = shared_address(cuda.shared.array(4, uint32, alignment=16))
        inbox = shared_address(cuda.shared.array(4, uint32, alignment=16))
        bar = shared_address(cuda.shared.array(1, uint64))
        for k in range(4):
            st_shared_b32(source + uint32(4 * k), uint32(k))
        fence_proxy_async()
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
        cluster_sync()
        other = uint32(cluster_ctarank() ^ uint32(1))
        there, far = mapa_shared_cluster(inbox, other), mapa_shared_cluster(bar, other)
        mbarrier_arrive_expect_tx(bar, uint32(16 if BULK else 4))
        if BULK:
            cp_async_bulk_shared_cluster(there, source, uint32(16), far)
        else:
            st_async_b32(there, uint32(0), far)
        mbarrier_wait(bar, 0)
        if MET:
            cluster_sync()
        out[other] = ld_shared_cluster_b32(there)
        cluster_sync()

    options = {"grid": 2, "block": 1, "cluster": 2}
    if met:
        clean(kernel, words(2), **options)
    else:
        always(faults.InFlightRead, kernel, words(2), source="ld_shared_cluster_b32", **options)


@pytest.mark.parametrize("fence", [fence_acq_rel_cluster, fence_acq_rel_cta])
def test_a_fence_before_a_relaxed_flag(fence):
    def kernel(out):
        inbox, flag = shared_address(cuda.shared.array(1, uint32)), shared_address(cuda.shared.array(1, uint32))
        st_shared_b32(flag, uint32(0))
        cluster_sync()
        if cluster_ctarank() == 0:
            st_shared_cluster_b32(mapa_shared_cluster(inbox, uint32(1)), uint32(7))
            fence()
            st_relaxed_cluster_shared_cluster_b32(mapa_shared_cluster(flag, uint32(1)), uint32(1))
        else:
            while ld_acquire_cluster_shared_cluster_b32(flag) == 0:
                pass
            out[0] = ld_shared_b32(inbox)
        cluster_sync()

    out, options = words(1), {"grid": 2, "block": 1, "cluster": 2}
    if fence is fence_acq_rel_cluster:
        clean(kernel, out, **options)
        assert out[0] == 7
    else:
        always(faults.DataRace, kernel, out, source="ld_shared_b32(inbox)", **options)


@pytest.mark.parametrize("waits, bytes, fault", [
    (True, 12, None), (True, 8, faults.MoreBytesThanExpected), (False, 12, faults.CopyOutlivesBlock),
])  # fmt: skip
def test_the_bytes_of_reductions_into_one_word(waits, bytes, fault):
    """Three of them; the report says how many bytes there are, though all go to one place."""
    WAITS, BYTES_ = waits, bytes

    def kernel(out):
        total = shared_address(cuda.shared.array(1, uint32))
        bar = shared_address(cuda.shared.array(1, uint64))
        st_shared_b32(total, uint32(0))
        mbarrier_init(bar, 1)
        cluster_sync()
        if cluster_ctarank() == 1:
            mbarrier_arrive_expect_tx(bar, uint32(BYTES_))
        cluster_sync()
        if cluster_ctarank() == 0:
            there, far = mapa_shared_cluster(total, uint32(1)), mapa_shared_cluster(bar, uint32(1))
            for k in range(3):
                red_async_add_u32(there, uint32(k), far)
        elif WAITS:
            mbarrier_wait(bar, 0)
            out[0] = ld_shared_b32(total)
        cluster_sync()

    out, options = words(1), {"grid": 2, "block": 1, "cluster": 2}
    if fault is None:
        clean(kernel, out, **options)
        assert out[0] == 3
    else:
        found = [expect(fault, kernel, words(1), landing=each, **options) for each in ("late", "earliest")]
        assert waits is False or "Announce 12 bytes" in found[0].cure


@pytest.mark.parametrize("copies", (False, True))
def test_another_block_goes_on_between_two_arrivals(copies):
    """Whoever has seen the first may look before the second comes: some seeds show it, others do not."""

    def kernel(out):
        box, rank = cuda.shared.array(4, uint32), cluster_ctarank()
        bars = shared_address(cuda.shared.array(2, uint64))
        if rank == 1:
            mbarrier_init(bars, 1)
            mbarrier_init(bars + uint32(8), 1)
            if copies:
                mbarrier_arrive_expect_tx(bars + uint32(8), 4)
        cluster_sync()
        there = mapa_shared_cluster(bars, uint32(1))
        if rank == 0:
            mbarrier_arrive_cluster(there)
            if copies:
                st_async_b32(mapa_shared_cluster(shared_address(box), uint32(1)), uint32(7), there + uint32(8))
            else:
                mbarrier_arrive_cluster(there + uint32(8))
        else:
            mbarrier_wait_cluster(bars, uint32(0))
            out[0] = mbarrier_test_wait_parity(bars + uint32(8), uint32(0))
            mbarrier_wait_cluster(bars + uint32(8), uint32(0))
        cluster_sync()

    seen = set()
    for seed in range(12):
        out = words(1)
        run(kernel, out, grid=2, block=1, cluster=2, seed=seed, landing="earliest")
        seen.add(int(out[0]))
    assert seen == {0, 1}


@pytest.mark.parametrize("meets", (True, False))
def test_bytes_announced_before_another_block_arrives(meets):
    """The only arrival comes from the other block, behind the announcement or beside it."""

    def kernel(data, out):
        tile = cuda.shared.array(32, uint32, alignment=128)
        bar = shared_address(cuda.shared.array(1, uint64))
        i, rank = int32(cuda.threadIdx.x), int32(c.cluster_ctarank())
        if i == 0:
            mbarrier_init(bar, 1)
            fence_mbarrier_init()
        c.cluster_sync()
        if rank == 0 and i == 0:
            mbarrier_expect_tx(bar, 128)
            cp_async_bulk_load(shared_address(tile), global_address(data), 128, bar)
        if meets:
            c.cluster_sync()
        if rank == 1 and i == 0:
            c.mbarrier_arrive_cluster(c.mapa_shared_cluster(bar, uint32(0)))
        if rank == 0:
            c.mbarrier_wait_cluster(bar, 0)
            out[i] = tile[i]
        c.cluster_sync()

    args, options = (np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)), {"grid": 2, "cluster": 2}
    if not meets:
        always(faults.UnobservedPhase, kernel, *args, source="mbarrier_expect_tx(bar, 128)", **options)
    else:
        clean(kernel, *args, **options)
        np.testing.assert_array_equal(*args)

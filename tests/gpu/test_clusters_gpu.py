"""Clusters, grids of several dimensions and the grid's barrier on a real GPU, beside the CPU engine."""

import numpy as np
import pytest
from numba import cuda, int32, types, uint32, uint64
from numba.cuda import cg

from numba_deform.compiler import Kernel, kernel, u64
from numba_deform.device import cluster as c
from numba_deform.device.mbarrier import mbarrier_init
from numba_deform.device.memory import global_at, shared_address, shared_at, st_global_b32
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import fence_proxy_tensormap_acquire_sys
from numba_deform.engines import faults
from numba_deform.engines.cpu import simulate
from numba_deform.engines.gpu.in_place import launch_in_place
from numba_deform.engines.gpu.launch import launch
from numba_deform.engines.tensormap import TensorMap, TensorMapArray

WARP = 32


@kernel(threads=(4, 2, 4))
def places(out: u64):
    """Rank and place of each block, and its number, as its last thread sees them."""
    block = int32(cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z))
    if cuda.threadIdx.x == 3 and cuda.threadIdx.y == 1 and cuda.threadIdx.z == 3:
        st_global_b32(global_at(out, 6 * block, 4), c.cluster_ctarank())
        st_global_b32(global_at(out, 6 * block + 1, 4), c.cluster_ctaid_x())
        st_global_b32(global_at(out, 6 * block + 2, 4), c.cluster_ctaid_y())
        st_global_b32(global_at(out, 6 * block + 3, 4), c.cluster_ctaid_z())
        st_global_b32(global_at(out, 6 * block + 4, 4), c.cluster_nctarank())
        st_global_b32(global_at(out, 6 * block + 5, 4), uint32(block))


@kernel(threads=WARP)
def exchange(out: u64):
    """Each block reads from the next one, and writes into the one before, with arrivals and bytes."""
    tile = cuda.shared.array(WARP, uint32)
    inbox = cuda.shared.array(WARP, uint32)
    bar = shared_address(cuda.shared.array(1, uint64))
    i, n = int32(cuda.threadIdx.x), c.cluster_nctarank()
    tile[i] = uint32(cuda.blockIdx.x * WARP + i)
    if i == 0:
        mbarrier_init(bar, WARP)
        fence_mbarrier_init()
    c.cluster_sync()
    after, before = (c.cluster_ctarank() + uint32(1)) % n, (c.cluster_ctarank() + n - uint32(1)) % n
    there = c.mapa_shared_cluster(shared_address(tile), uint32(after))
    value = c.ld_shared_cluster_b32(shared_at(there, 31 - i, 4))
    there = c.mapa_shared_cluster(shared_address(inbox), uint32(before))
    c.st_shared_cluster_b32(shared_at(there, i, 4), value)
    if i == 0:
        c.mbarrier_arrive_expect_tx_cluster(c.mapa_shared_cluster(bar, uint32(before)), uint32(0))
    else:
        c.mbarrier_arrive_cluster(c.mapa_shared_cluster(bar, uint32(before)))
    c.mbarrier_wait_cluster(bar, uint32(0))
    st_global_b32(global_at(out, cuda.blockIdx.x * WARP + i, 4), uint32(inbox[i]))
    c.cluster_sync()


def multicast(rank):
    """A kernel in which the first block of a cluster loads a box of that rank into all of it."""
    load = getattr(c, f"cp_async_bulk_tensor_{rank}d_multicast")
    zeros = ", ".join(["int32(0)"] * rank)
    scope = {"load": load, "int32": int32}
    exec(f"def issue(dst, map, bar, mask):\n    load(dst, map, {zeros}, bar, mask)\n", scope)
    issue = cuda.jit(device=True)(scope["issue"])

    @kernel(threads=WARP)
    def body(map: u64, out: u64):
        tile = cuda.shared.array(WARP, uint32, alignment=128)
        bar = shared_address(cuda.shared.array(1, uint64))
        i = int32(cuda.threadIdx.x)
        if i == 0:
            mbarrier_init(bar, 1)
            fence_mbarrier_init()
            fence_proxy_tensormap_acquire_sys(map)
        c.cluster_arrive()
        c.cluster_wait()
        if i == 0:
            c.mbarrier_arrive_expect_tx_cluster(bar, uint32(4 * WARP))
            if c.cluster_ctarank() == 0:
                mask = uint32((uint32(1) << c.cluster_nctarank()) - uint32(1))
                issue(shared_address(tile), map, bar, mask)
        mbarrier_wait(bar, 0)
        st_global_b32(global_at(out, cuda.blockIdx.x * WARP + i, 4), uint32(tile[i]))

    return body


@kernel(threads=WARP)
def send(out: u64):
    """Each block sends its tile to the next one."""
    tile = cuda.shared.array(WARP, uint32, alignment=16)
    inbox = cuda.shared.array(WARP, uint32, alignment=16)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    tile[i] = uint32(cuda.blockIdx.x * WARP + i)
    fence_proxy_async()
    if i == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
    c.cluster_sync()
    if i == 0:
        after = (c.cluster_ctarank() + uint32(1)) % c.cluster_nctarank()
        c.mbarrier_arrive_expect_tx_cluster(bar, uint32(4 * WARP))
        there = c.mapa_shared_cluster(shared_address(inbox), uint32(after))
        far = c.mapa_shared_cluster(bar, uint32(after))
        c.cp_async_bulk_shared_cluster(there, shared_address(tile), uint32(4 * WARP), far)
    mbarrier_wait(bar, 0)
    st_global_b32(global_at(out, cuda.blockIdx.x * WARP + i, 4), uint32(inbox[i]))
    c.cluster_sync()


def both(gpu, one, grid, block, args, **options):
    """The kernel leaves the same on both engines."""
    expected = [np.array(a) if isinstance(a, np.ndarray) else a for a in args]
    simulate(one, grid, block, expected, **options)
    launch_in_place(gpu, one, grid, args, 0, launch, **options)
    for arg, right in zip(args, expected, strict=True):
        if isinstance(arg, np.ndarray):
            np.testing.assert_array_equal(arg, right)


@pytest.mark.parametrize("grid, cluster", [((4, 3, 2), (2, 1, 2)), ((8, 1, 1), 8), ((3, 2, 1), None)])
def test_places(hopper, grid, cluster):
    out = np.full((*grid, 6), 99, np.uint32)
    both(hopper, places, grid, (4, 2, 4), [out], cluster=cluster)


@pytest.mark.parametrize("cluster", [2, 4, 8])
def test_shared_memory_of_others(hopper, cluster):
    for one in (exchange, send):
        both(hopper, one, 8, WARP, [np.zeros(8 * WARP, np.uint32)], cluster=cluster)


@pytest.mark.parametrize("rank", range(1, 6))
def test_multicast(hopper, rank):
    data = np.arange(WARP, dtype=np.uint32).reshape((1,) * (rank - 1) + (WARP,))
    maps = TensorMapArray([TensorMap.of(data, (WARP,) + (1,) * (rank - 1))])
    both(hopper, multicast(rank), 4, WARP, [maps, np.zeros(4 * WARP, np.uint32)], cluster=4)


def reverse(a, out):
    i = cuda.grid(1)
    a[i] = uint32(i)
    cg.this_grid().sync()
    out[i] = a[cuda.gridsize(1) - 1 - i]


def test_the_grids_barrier(hopper):
    one = Kernel(reverse, types.void(types.uint32[::1], types.uint32[::1]), WARP)
    both(hopper, one, 64, WARP, [np.zeros(64 * WARP, np.uint32), np.zeros(64 * WARP, np.uint32)])


def test_a_cluster_that_does_not_divide_the_grid(hopper):
    with pytest.raises(faults.BadLaunch, match="is no multiple"):
        launch(hopper, exchange, 6, [0], cluster=4)

"""Hints for L2: policies, bulk copies that name one, prefetches. Nothing but time depends on them."""

import numpy as np
from base import right, wrong
from numba import cuda, float32, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device import cache
from numba_deform.device.cache import (
    cp_async_bulk_load_hint,
    cp_async_bulk_prefetch,
    cp_async_bulk_prefetch_tensor_1d,
    cp_async_bulk_prefetch_tensor_2d,
    cp_async_bulk_store_hint,
    createpolicy_fractional_evict_first,
    createpolicy_fractional_evict_last,
    createpolicy_fractional_evict_normal,
    createpolicy_fractional_evict_unchanged,
)
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import global_at, shared_address, st_global_b32
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_wait_group_read,
    fence_proxy_tensormap_acquire_sys,
)
from numba_deform.engines import faults
from numba_deform.engines.tensormap import TensorMap, TensorMapArray

WARP, WORDS, BYTES = 32, 64, 256
POLICY, BULK, TENSOR = "PTX ISA 9.7.9.18", "PTX ISA 9.7.9.25.4", "PTX ISA 9.7.9.25.5"


def words(*out, seed=14):
    """Arguments: a row of random words, and room for the result."""
    random = np.random.default_rng(seed)
    return lambda: [random.integers(0, 1 << 32, WORDS, np.uint32), *(np.zeros(n, np.uint32) for n in out)]


@cuda.jit(device=True)
def full_barrier(bars):
    bar = shared_address(bars)
    if cuda.threadIdx.x == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    return bar


@right(
    source="CUTLASS CacheHintSm90, policies as numbers", args=lambda: [np.zeros(3, np.uint64)],
    expect=lambda out: [(out, np.array([0x12F0 << 48, 0x14F0 << 48, 0x1470 << 48], np.uint64))],
)  # fmt: skip
def policies_as_others_write_them(out: u64):
    """Some write a policy down as a number that createpolicy has once returned."""
    first = createpolicy_fractional_evict_first(float32(1))
    last = createpolicy_fractional_evict_last(float32(1))
    half = createpolicy_fractional_evict_last(float32(0.5))
    if int32(cuda.threadIdx.x) == 0:
        for k in range(2):
            st_global_b32(out + uint64(4 * k), uint32(first >> uint64(32 * k)))
            st_global_b32(out + uint64(8 + 4 * k), uint32(last >> uint64(32 * k)))
            st_global_b32(out + uint64(16 + 4 * k), uint32(half >> uint64(32 * k)))


@right(source=BULK, args=words(WORDS), expect=lambda data, out: [(out, data)])
def a_row_there_and_back(data: u64, out: u64):
    """Prefetched, loaded as what is used once, stored as what is used again. The copy engine wrote what it
    reads, so nothing is fenced."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    bar = full_barrier(cuda.shared.array(1, uint64))
    if int32(cuda.threadIdx.x) == 0:
        cp_async_bulk_prefetch(data, BYTES)
        mbarrier_arrive_expect_tx(bar, BYTES)
        policy = createpolicy_fractional_evict_first(float32(1))
        cp_async_bulk_load_hint(shared_address(tile), data, BYTES, bar, policy)
        mbarrier_wait(bar, 0)
        policy = createpolicy_fractional_evict_last(float32(0.25))
        cp_async_bulk_store_hint(out, shared_address(tile), BYTES, policy)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group_read(0)


@right(source=BULK, args=words(WORDS), expect=lambda data, out: [(out, 0 * data)])
def a_prefetch_of_what_is_written(data: u64, out: u64):
    """A prefetch reads nothing that the program could see, so the store beside it races with nothing."""
    i = int32(cuda.threadIdx.x)
    if i == 0:
        cp_async_bulk_prefetch(out, BYTES)
    for k in range(i, WORDS, WARP):
        st_global_b32(global_at(out, k, 4), uint32(0))


BOXES = {1: (64,), 2: (16, 4), 3: (16, 2, 2), 4: (8, 2, 2, 2), 5: (4, 2, 2, 2, 2)}
LOADS = {
    1: lambda f: lambda dst, map, bar, policy: f(dst, map, 4, bar, policy),
    2: lambda f: lambda dst, map, bar, policy: f(dst, map, 4, -1, bar, policy),
    3: lambda f: lambda dst, map, bar, policy: f(dst, map, 4, -1, 1, bar, policy),
    4: lambda f: lambda dst, map, bar, policy: f(dst, map, 4, -1, 1, 0, bar, policy),
    5: lambda f: lambda dst, map, bar, policy: f(dst, map, 0, -1, 1, 0, 1, bar, policy),
}
STORES = {
    1: lambda f: lambda map, src, policy: f(map, 0, src, policy),
    2: lambda f: lambda map, src, policy: f(map, 0, 0, src, policy),
    3: lambda f: lambda map, src, policy: f(map, 0, 0, 0, src, policy),
    4: lambda f: lambda map, src, policy: f(map, 0, 0, 0, 0, src, policy),
    5: lambda f: lambda map, src, policy: f(map, 0, 0, 0, 0, 0, src, policy),
}
PREFETCHES = {
    1: lambda f: lambda map: f(map, 4), 2: lambda f: lambda map: f(map, 4, -1),
    3: lambda f: lambda map: f(map, 4, -1, 1), 4: lambda f: lambda map: f(map, 4, -1, 1, 0),
    5: lambda f: lambda map: f(map, 0, -1, 1, 0, 1),
}  # fmt: skip


def of_rank(rank):
    """A program that moves a box over the border of a tensor into another one."""
    box, corner = BOXES[rank], (4 if rank < 5 else 0, -1, 1, 0, 1)[:rank]
    load = cuda.jit(device=True)(LOADS[rank](getattr(cache, f"cp_async_bulk_tensor_{rank}d_hint")))
    store = cuda.jit(device=True)(STORES[rank](getattr(cache, f"cp_async_bulk_tensor_{rank}d_store_hint")))
    fetch = cuda.jit(device=True)(PREFETCHES[rank](getattr(cache, f"cp_async_bulk_prefetch_tensor_{rank}d")))

    def kernel(maps: u64):
        """Prefetched, loaded and stored, each with the form of this rank."""
        tile = cuda.shared.array(WORDS, uint32, alignment=128)
        bar = full_barrier(cuda.shared.array(1, uint64))
        if int32(cuda.threadIdx.x) == 0:
            fence_proxy_tensormap_acquire_sys(maps)
            fence_proxy_tensormap_acquire_sys(maps + uint64(128))
            fetch(maps)
            mbarrier_arrive_expect_tx(bar, BYTES)
            load(shared_address(tile), maps, bar, createpolicy_fractional_evict_normal(float32(1)))
            mbarrier_wait(bar, 0)
            policy = createpolicy_fractional_evict_unchanged(float32(1))
            store(maps + uint64(128), shared_address(tile), policy)
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group_read(0)

    def args():
        random = np.random.default_rng(rank)
        data = random.standard_normal(box[::-1]).astype(np.float32)
        return [TensorMapArray([TensorMap.of(data, box), TensorMap.of(np.full_like(data, -1), box)])]

    def expect(maps):
        data, out = maps[0].array, maps[1].array
        result = np.zeros_like(data)
        for index in np.ndindex(*result.shape):
            place = tuple(i + c for i, c in zip(index, corner[::-1], strict=True))
            if all(0 <= p < n for p, n in zip(place, data.shape, strict=True)):
                result[index] = data[place]
        return [(out, result)]

    kernel.__name__ = f"hinted_copies_of_rank_{rank}"
    right(source=TENSOR, args=args, expect=expect)(kernel)


for _rank in BOXES:
    of_rank(_rank)


# --- broken twins ---------------------------------------------------------------------------------
@wrong(faults.BadCachePolicy, source="CUTLASS CacheHintSm90, as if it counted", args=words(), hardware="no")
def a_priority_in_place_of_a_policy(data: u64):
    """1 is no policy: what its bits mean nobody says."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    bar = full_barrier(cuda.shared.array(1, uint64))
    if int32(cuda.threadIdx.x) == 0:
        mbarrier_arrive_expect_tx(bar, BYTES)
        cp_async_bulk_load_hint(shared_address(tile), data, BYTES, bar, uint64(1))  # <- fault
        mbarrier_wait(bar, 0)


@wrong(faults.BadCachePolicy, source=POLICY, args=words(), hardware="no")
def a_policy_for_nothing(data: u64):
    """The fraction is above 0."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    bar = full_barrier(cuda.shared.array(1, uint64))
    if int32(cuda.threadIdx.x) == 0:
        policy = createpolicy_fractional_evict_last(float32(0))  # <- fault
        mbarrier_arrive_expect_tx(bar, BYTES)
        cp_async_bulk_load_hint(shared_address(tile), data, BYTES, bar, policy)
        mbarrier_wait(bar, 0)


@wrong(faults.InFlightRead, source=BULK, args=words(WARP))
def a_hint_is_no_wait(data: u64, out: u64):
    """Prefetched data are no sooner in shared memory."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    bar = full_barrier(cuda.shared.array(1, uint64))
    if int32(cuda.threadIdx.x) == 0:
        cp_async_bulk_prefetch(data, BYTES)
        mbarrier_arrive_expect_tx(bar, BYTES)
        policy = createpolicy_fractional_evict_first(float32(1))
        cp_async_bulk_load_hint(shared_address(tile), data, BYTES, bar, policy)
        st_global_b32(out, tile[0])  # <- fault
    mbarrier_wait(bar, 0)


@wrong(faults.BadSize, source=BULK, args=words())
def a_prefetch_of_eight_bytes(data: u64):
    """16 bytes are the least."""
    cp_async_bulk_prefetch(data, 8)  # <- fault


@wrong(faults.Misaligned, source=BULK, args=words())
def a_prefetch_between_sixteens(data: u64):
    """The address is a multiple of 16."""
    cp_async_bulk_prefetch(data + uint64(8), 16)  # <- fault


@wrong(faults.OutOfRange, source=BULK, args=words(), hardware="no")
def a_prefetch_past_the_end(data: u64):
    """One row more than there is."""
    cp_async_bulk_prefetch(data + uint64(BYTES), BYTES)  # <- fault


def one_map():
    return [TensorMapArray([TensorMap.of(np.zeros((4, 16), np.float32), (16, 4))])]


@wrong(faults.MissingTensormapFence, source="PTX ISA 9.7.13.4", args=one_map)
def a_prefetch_by_a_map_that_is_not_fenced(maps: u64):
    """A prefetch reads the map as a load does."""
    if int32(cuda.threadIdx.x) == 0:
        cp_async_bulk_prefetch_tensor_2d(maps, 0, 0)  # <- fault


@wrong(faults.BadTensorMap, source=TENSOR, args=one_map, hardware="no")
def a_prefetch_of_another_rank(maps: u64):
    """The map has two dimensions."""
    if int32(cuda.threadIdx.x) == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        cp_async_bulk_prefetch_tensor_1d(maps, 0)  # <- fault

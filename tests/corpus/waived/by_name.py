"""Programs that break a rule by the letter and work, each with the waiver that lets it pass; and wrong
neighbours, which no waiver lets pass."""

import numpy as np
from base import wrong
from numba import cuda, float32, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.cluster import (
    cluster_arrive,
    cluster_ctarank,
    cluster_wait,
    cp_async_bulk_tensor_2d_multicast,
    mapa_shared_cluster,
    st_shared_cluster_b32,
)
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    mbarrier_inval,
)
from numba_deform.device.memory import (
    global_address,
    ld_global_b32,
    shared_address,
    st_global_b16,
    st_global_b32,
    st_global_v4,
)
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import (
    bar_arrive,
    bar_sync,
    fence_mbarrier_init,  # noqa: F401  of a mend
    fence_proxy_async,
)
from numba_deform.device.tensormap import tensormap_cp_fenceproxy, tensormap_replace_element_stride
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_load,
    cp_async_bulk_store,
    cp_async_bulk_tensor_2d,
    cp_async_bulk_wait_group,  # noqa: F401  of a mend
    cp_async_bulk_wait_group_read,
    fence_proxy_tensormap_acquire_gpu,
    fence_proxy_tensormap_acquire_sys,
)
from numba_deform.device.wgmma import (
    wgmma_commit_group,
    wgmma_descriptor,
    wgmma_fence,
    wgmma_m64n64k16_f16,
    wgmma_wait_group_n64,
)
from numba_deform.engines import faults
from numba_deform.engines.cpu.async_units.wgmma_matrices import sum_places
from numba_deform.engines.tensormap import TensorMap, TensorMapArray
from numba_deform.engines.waivers import WAIVERS

WARP, BLOCKS, BYTES = 32, 4, 128
ALL = {"waive": tuple(WAIVERS)}


def words(*counts):
    """Arguments: numbers counted up, then arrays of zeros."""
    return lambda: [np.arange(counts[0], dtype=np.int32), *(np.zeros(n, np.int32) for n in counts[1:])]


# --- same-value -----------------------------------------------------------------------------------------
@wrong(
    faults.DataRace, waiver="same-value", source="Rodinia, bfs: the flag `over`", grid=2, block=64,
    args=words(128, 1), expect=lambda data, found: [(found, [1])],
)  # fmt: skip
def everybody_who_finds_one_sets_the_flag(data, found):
    """A flag for the host: whether any element is odd. Half of the threads of both blocks set it."""
    if data[cuda.grid(1)] % 2 == 1:
        found[0] = 1  # <- fault


@wrong(
    faults.DataRace, waiver="same-value", source="the same in shared memory", block=64,
    args=words(1, 64), expect=lambda data, out: [(out, np.full(64, 7))], names=("if cuda.threadIdx.x == 0",),
)  # fmt: skip
def all_threads_fill_one_cell(data, out):
    """All threads store a constant in shared memory, more than once, and read it behind a barrier."""
    cell = cuda.shared.array(1, int32)
    for _ in range(3):
        cell[0] = 7  # cure: if cuda.threadIdx.x == 0: cell[0] = 7  # <- fault
    cuda.syncthreads()
    out[cuda.grid(1)] = cell[0]


@wrong(
    faults.DataRace, waiver="same-value", source="the same in words of several sizes", args=words(1, 4),
    expect=lambda data, out: [(out, np.full(4, 0x70007))],
)  # fmt: skip
def vectors_words_and_halves(data: u64, out: u64):
    """Vectors, words and half words of one value meet, whichever comes first."""
    i, word = int32(cuda.threadIdx.x), uint32(0x70007)
    if i < 8:
        st_global_v4(out, word, word, word, word)  # <- fault
    elif i < 24:
        st_global_b32(out + uint64(4 * (i % 4)), word)  # <- fault
    else:
        st_global_b16(out + uint64(2 * (i % 8)), word)  # <- fault


@wrong(
    faults.DataRace, waiver="same-value", source="the same in distributed shared memory", grid=2, cluster=2,
    args=words(1, WARP), expect=lambda data, out: [(out, np.full(WARP, 5))],
)  # fmt: skip
def both_blocks_fill_a_cell_of_the_first(data: u64, out: u64):
    """All threads of both blocks store to block 0, which reads behind the cluster's barrier."""
    cell = cuda.shared.array(1, uint32)
    there = mapa_shared_cluster(shared_address(cell), uint32(0))
    cluster_arrive()
    cluster_wait()
    st_shared_cluster_b32(there, uint32(5))  # <- fault
    cluster_arrive()
    cluster_wait()
    if cluster_ctarank() == 0:
        st_global_b32(out + uint64(4 * cuda.threadIdx.x), cell[0])


@wrong(
    faults.DataRace, source="as everybody_who_finds_one_sets_the_flag", block=64, args=words(64, 1), options=ALL
)  # fmt: skip
def who_finds_one_leaves_its_number(data, found):
    """The values differ: whose number stays, nobody knows."""
    i = cuda.grid(1)
    if data[i] % 2 == 1:
        found[0] = i  # <- fault


@wrong(faults.DataRace, source="as all_threads_fill_one_cell", block=64, args=words(1, 1), options=ALL)
def one_thread_stores_something_else_before(data, out):
    """Thread 0 stores another value first: it may come after the 7 of others."""
    if cuda.grid(1) == 0:
        out[0] = 5  # <- fault
    out[0] = 7  # <- fault


@wrong(faults.DataRace, source="as all_threads_fill_one_cell", block=64, args=words(1, 64), options=ALL)
def the_cell_is_read_at_once(data, out):
    """The barrier between the stores and the reads is missing: a read may come before all stores."""
    cell = cuda.shared.array(1, int32)
    if cuda.threadIdx.x >= WARP:
        cell[0] = 7  # <- fault
    out[cuda.grid(1)] = cell[0]  # <- fault


# --- refill-fence ---------------------------------------------------------------------------------------
def two_tiles():
    return [np.arange(2 * WARP, dtype=np.uint32), np.zeros(WARP, np.uint32)]


@wrong(
    faults.MissingRefillFence, waiver="refill-fence", args=two_tiles,
    source="NVIDIA's Programming Guide, TMA: reads, then a barrier",
    expect=lambda data, out: [(out, data[:WARP] + data[WARP:])], names=("fence_proxy_async()",),
)  # fmt: skip
def a_barrier_of_threads_before_the_refill(data: u64, out: u64):
    """All threads have read the tile and meet, and the next one comes to the same place."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    bar, i, total = shared_address(cuda.shared.array(1, uint64)), int32(cuda.threadIdx.x), uint32(0)
    if i == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    for t in range(2):
        if i == 0:
            mbarrier_arrive_expect_tx(bar, BYTES)
            cp_async_bulk_load(shared_address(tile), data + uint64(BYTES * t), BYTES, bar)  # <- fault
        mbarrier_wait(bar, t)
        total += tile[i]
        # cure: fence_proxy_async()
        cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), total)


@wrong(
    faults.RefillRace, source="as a_barrier_of_threads_before_the_refill", args=two_tiles, options=ALL,
)  # fmt: skip
def no_barrier_before_the_refill(data: u64, out: u64):
    """The first thread fences and asks for the next tile when it has read its own number."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    bar, i, total = shared_address(cuda.shared.array(1, uint64)), int32(cuda.threadIdx.x), uint32(0)
    if i == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    for t in range(2):
        if i == 0:
            mbarrier_arrive_expect_tx(bar, BYTES)
            cp_async_bulk_load(shared_address(tile), data + uint64(BYTES * t), BYTES, bar)  # <- fault
        mbarrier_wait(bar, t)
        total += tile[i]
        fence_proxy_async()
    st_global_b32(out + uint64(4 * i), total)


# --- init-fence -----------------------------------------------------------------------------------------
@wrong(
    faults.MissingInitFence, waiver="init-fence", source="triton-lang/triton, TMA loads of one block",
    args=words(WARP, WARP), expect=lambda data, out: [(out, data)], names=("fence_mbarrier_init()",),
)  # fmt: skip
def a_barrier_of_threads_behind_the_init(data: u64, out: u64):
    """syncthreads stands between the init and the first copy, and no fence for the copy engine."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    bar, i = shared_address(cuda.shared.array(1, uint64)), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, 1)
        # cure: fence_mbarrier_init()
    cuda.syncthreads()
    if i == 0:
        mbarrier_arrive_expect_tx(bar, BYTES)
        cp_async_bulk_load(shared_address(tile), data, BYTES, bar)  # <- fault
    mbarrier_wait(bar, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


def rows():
    data = np.arange(2 * WARP, dtype=np.uint32).reshape(2, WARP)
    return [TensorMapArray([TensorMap.of(data, (WARP, 1))]), np.zeros(2 * WARP, np.uint32)]


@wrong(
    faults.MissingInitFence, waiver="init-fence", source="NVIDIA/cutlass, a tutorial", grid=2, cluster=2,
    args=rows, expect=lambda maps, out: [(out, np.tile(maps[0].array[0], 2))],
)  # fmt: skip
def the_clusters_barrier_behind_the_init(map: u64, out: u64):
    """A copy of block 0 completes on barriers of both, and only the cluster's barrier stands before it."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    bar, i = shared_address(cuda.shared.array(1, uint64)), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, 1)
        fence_proxy_tensormap_acquire_sys(map)
    cluster_arrive()
    cluster_wait()
    if i == 0:
        mbarrier_arrive_expect_tx(bar, BYTES)
        if cluster_ctarank() == 0:
            cp_async_bulk_tensor_2d_multicast(  # <- fault
                shared_address(tile), map, int32(0), int32(0), bar, uint32(3)
            )
    mbarrier_wait(bar, 0)
    st_global_b32(out + uint64(4 * cuda.grid(1)), tile[i])


@wrong(
    faults.InitNotOrdered, faults.NotABarrier, source="as a_barrier_of_threads_behind_the_init", block=64,
    args=words(WARP, WARP), options=ALL, hardware="guarded",
)  # fmt: skip
def no_barrier_of_threads_behind_the_init(data: u64, out: u64):
    """The copy is another warp's, which may be there before the init."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    bar, i = shared_address(cuda.shared.array(1, uint64)), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, 1)
    if i == WARP:
        mbarrier_arrive_expect_tx(bar, BYTES)  # <- fault
        cp_async_bulk_load(shared_address(tile), data, BYTES, bar)
        mbarrier_wait(bar, 0)
        st_global_b32(out, tile[0])


# --- grid-exited ----------------------------------------------------------------------------------------
def rod(size):
    """Arguments: two buffers of that many cells, warm at one end."""
    def make():
        cells = np.zeros(size, np.float64)
        cells[0] = 64
        return [cells, cells.copy(), 3]

    return make


def diffused(cells, other, steps):
    was, now = rod(len(cells))()[:2]
    for _ in range(steps):
        now = was.copy()
        now[1:-1] += (was[:-2] - 2 * was[1:-1] + was[2:]) / 4
        was = now
    return [(other if steps % 2 else cells, now)]


@wrong(
    faults.Deadlock, waiver="grid-exited", source="NVIDIA/numba-cuda, examples: solve_heat_equation",
    grid=3, args=rod(80), expect=diffused, explorable=False,
    names=("16 threads have returned", "under an `if`", "this_grid().sync()"),
)  # fmt: skip
def those_outside_the_rod_have_returned(cells, other, steps):
    """Threads without a cell return at once, and the others meet the whole grid after every step."""
    i = cuda.grid(1)
    if i >= len(cells):  # cure: inside = i < len(cells)
        return  # cure:
    grid = cuda.cg.this_grid()
    for step in range(steps):
        was, now = (cells, other) if step % 2 == 0 else (other, cells)
        now[i] = was[i]  # cure: if inside: now[i] = was[i]
        if i > 0 and i < len(cells) - 1:
            now[i] += (was[i - 1] - 2 * was[i] + was[i + 1]) / 4
        grid.sync()  # <- fault


@wrong(
    faults.Deadlock, source="as those_outside_the_rod_have_returned", grid=4, args=rod(80), options=ALL,
    hardware="guarded", explorable=False,
)  # fmt: skip
def a_block_too_many(cells, other, steps):
    """A whole block has returned, beside half of another: nobody of it tells the others that it is there."""
    if cuda.grid(1) >= len(cells):
        return
    cuda.cg.this_grid().sync()  # <- fault


@wrong(
    faults.Deadlock, source="as those_outside_the_rod_have_returned", grid=2, args=rod(80), options=ALL,
    hardware="guarded", explorable=False,
)  # fmt: skip
def the_first_thread_has_returned(cells, other, steps):
    """It is the one who waits for the other blocks."""
    if cuda.grid(1) == 0:
        return
    cuda.cg.this_grid().sync()  # <- fault


# --- thread-fence-reduction -----------------------------------------------------------------------------
def total(data, parts, tickets, out):
    return [(out, [data.sum()])]


SUM = {"grid": BLOCKS, "args": words(BLOCKS * WARP, BLOCKS, 1, 1)}


@wrong(
    faults.DataRace, waiver="thread-fence-reduction", source="NVIDIA/cuda-samples, threadFenceReduction",
    expect=total, names=("Call cuda.threadfence() right behind the atomic at by_name.py:",), **SUM,
)  # fmt: skip
def the_last_block_adds_up_without_a_fence(data, parts, tickets, out):
    """Each block leaves a part, a fence and a ticket; the last reads all parts, no fence behind its ticket."""
    tile, last = cuda.shared.array(WARP, int32), cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    tile[i] = data[cuda.grid(1)]
    cuda.syncthreads()
    if i == 0:
        part = 0
        for k in range(WARP):
            part += tile[k]
        parts[cuda.blockIdx.x] = part
        cuda.threadfence()
        last[0] = cuda.atomic.add(tickets, 0, 1) == BLOCKS - 1
        # cure: cuda.threadfence()
    cuda.syncthreads()
    if last[0]:
        if i < BLOCKS:
            tile[i] = parts[i]  # <- fault
        cuda.syncthreads()
        if i == 0:
            out[0] = tile[0] + tile[1] + tile[2] + tile[3]


@wrong(faults.DataRace, source="as the_last_block_adds_up_without_a_fence", options=ALL, **SUM)
def the_last_block_goes_by_its_number(data, parts, tickets, out):
    """Nobody looks at the tickets: the block with the highest number need not be the last."""
    if cuda.threadIdx.x == 0:
        parts[cuda.blockIdx.x] = data[cuda.grid(1)]  # <- fault
        cuda.threadfence()
        cuda.atomic.add(tickets, 0, 1)
        if cuda.blockIdx.x == BLOCKS - 1:
            for k in range(BLOCKS):
                out[0] += parts[k]  # <- fault


@wrong(faults.DataRace, source="as the_last_block_adds_up_without_a_fence", options=ALL, **SUM)
def no_fence_before_the_ticket(data, parts, tickets, out):
    """The parts may come after the tickets that tell of them."""
    if cuda.threadIdx.x == 0:
        parts[cuda.blockIdx.x] = data[cuda.grid(1)]
        if cuda.atomic.add(tickets, 0, 1) == BLOCKS - 1:
            for k in range(BLOCKS):
                out[0] += parts[k]  # <- fault


@wrong(faults.DataRace, source="as the_last_block_adds_up_without_a_fence", options=ALL, **SUM)
def the_last_block_clears_the_parts(data, parts, tickets, out):
    """It writes what others wrote, and not only reads it."""
    if cuda.threadIdx.x == 0:
        parts[cuda.blockIdx.x] = data[cuda.grid(1)]
        cuda.threadfence()
        if cuda.atomic.add(tickets, 0, 1) == BLOCKS - 1:
            for k in range(BLOCKS):
                parts[k] = -1  # <- fault


# --- map-fence ------------------------------------------------------------------------------------------
@wrong(
    faults.MissingTensormapFence, waiver="map-fence", source="DrXuQian/ai-benchmark, deform_attn_tma.cu",
    args=rows, expect=lambda maps, out: [(out[:WARP], maps[0].array[0])],
    names=("fence_proxy_tensormap_acquire_sys(map)",),
)  # fmt: skip
def maps_of_the_host_in_global_memory(map: u64, out: u64):
    """The host has made the map before the launch, and no block acquires it."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    bar, i = shared_address(cuda.shared.array(1, uint64)), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
        # cure: fence_proxy_tensormap_acquire_sys(map)
        mbarrier_arrive_expect_tx(bar, BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), map, int32(0), int32(0), bar)  # <- fault
    cuda.syncthreads()
    mbarrier_wait(bar, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


# --- map-without-a-meeting ------------------------------------------------------------------------------
@wrong(
    faults.DataRace, waiver="map-without-a-meeting", source="Triton, make_tensor_descriptor", block=WARP,
    args=lambda: [*rows(), np.zeros(2 * WARP, np.uint32)], names=("syncwarp",),
    expect=lambda maps, out, room: [(out[:WARP], maps[0].array[0])],
)  # fmt: skip
def a_map_is_published_as_soon_as_it_is_made(map: u64, out: u64, room: u64):
    """The lanes copy a map of the host's, one of them changes it, and all publish it."""
    made, tile = cuda.shared.array(WARP, uint32, alignment=128), cuda.shared.array(WARP, uint32, alignment=128)
    bar, i = shared_address(cuda.shared.array(1, uint64)), int32(cuda.threadIdx.x)
    own = uint64((room + uint64(127)) & ~uint64(127))
    made[i] = ld_global_b32(map + uint64(4 * i))
    cuda.syncwarp()
    if i == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
        tensormap_replace_element_stride(shared_address(made), uint32(0), uint32(1))
    # cure: cuda.syncwarp()
    tensormap_cp_fenceproxy(own, shared_address(made))  # <- fault
    if i == 0:
        fence_proxy_tensormap_acquire_gpu(own)
        mbarrier_arrive_expect_tx(bar, BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), own, int32(0), int32(0), bar)
    cuda.syncwarp()
    mbarrier_wait(bar, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


# --- same-init ------------------------------------------------------------------------------------------
@wrong(
    faults.LiveBarrierInit, waiver="same-init", source="HazyResearch/ThunderKittens, lcf.cuh", block=2 * WARP,
    args=words(1, 2 * WARP), expect=lambda data, out: [(out, np.full(2 * WARP, 1))],
)  # fmt: skip
def a_whole_warp_initialises(data, out):
    """All lanes of the first warp initialise the barrier, for one count, and a barrier of the block follows."""
    bar = shared_address(cuda.shared.array(1, uint64))
    if cuda.threadIdx.x < WARP:
        mbarrier_init(bar, 2 * WARP)  # <- fault
    cuda.syncthreads()
    mbarrier_arrive(bar)
    mbarrier_wait(bar, 0)
    out[cuda.threadIdx.x] = 1


@wrong(
    faults.LiveBarrierInit, source="the same for other counts", block=WARP, args=words(1, WARP), options=ALL,
)  # fmt: skip
def each_lane_initialises_for_its_own_count(data, out):
    """Which count holds is left to chance."""
    bar = shared_address(cuda.shared.array(1, uint64))
    mbarrier_init(bar, 1 + cuda.threadIdx.x)  # <- fault
    cuda.syncwarp()
    out[cuda.threadIdx.x] = 1


# --- one-per-warp ---------------------------------------------------------------------------------------
@wrong(
    faults.DataRace, waiver="one-per-warp", source="NVIDIA/cutlass, sm90_epilogue_tma_warpspecialized.hpp",
    block=WARP, args=words(2 * WARP, 2 * WARP), expect=lambda data, out: [(out, data)],
)  # fmt: skip
def a_whole_warp_issues_each_store(data, out):
    """Two tiles; all lanes issue, commit and wait, as if each had a store of its own."""
    tiles = cuda.shared.array((2, WARP), int32, alignment=128)
    for t in range(2):
        tiles[t, cuda.threadIdx.x] = data[WARP * t + cuda.threadIdx.x]
        fence_proxy_async()
        cuda.syncwarp()
        there = global_address(out) + uint64(BYTES * t)
        cp_async_bulk_store(there, shared_address(tiles) + uint32(BYTES * t), BYTES)  # <- fault
        cp_async_bulk_commit_group()
    cp_async_bulk_wait_group_read(0)


@wrong(
    faults.DataRace, source="the same from two places", block=WARP, args=words(WARP, WARP), options=ALL,
)  # fmt: skip
def the_lanes_of_a_warp_store_from_two_tiles(data, out):
    """The bytes are equal, and yet these are two stores."""
    tiles, lane = cuda.shared.array((2, WARP), int32, alignment=128), int32(cuda.threadIdx.x)
    tiles[0, lane] = tiles[1, lane] = data[lane]
    fence_proxy_async()
    cuda.syncwarp()
    tile = shared_address(tiles) + uint32(BYTES * (lane & 1))
    cp_async_bulk_store(global_address(out), tile, BYTES)  # <- fault
    cp_async_bulk_commit_group()
    cp_async_bulk_wait_group_read(0)


# --- store-at-exit --------------------------------------------------------------------------------------
@cuda.jit(device=True)
def fill_for_a_store(tile, data):
    """Lane by lane, twice the data; then any lane may store the tile."""
    tile[cuda.threadIdx.x] = 2 * data[cuda.threadIdx.x]
    fence_proxy_async()
    cuda.syncwarp()


@wrong(
    faults.CopyOutlivesBlock, waiver="store-at-exit", source="deepseek-ai/DeepGEMM", block=WARP,
    args=words(WARP, WARP), expect=lambda data, out: [(out, 2 * data)],
    names=("cp_async_bulk_wait_group(0)",),
)  # fmt: skip
def the_last_tile_is_left_to_its_store(data, out):
    """The block ends as soon as it has committed the store of its last tile."""
    tile = cuda.shared.array(WARP, int32, alignment=128)
    fill_for_a_store(tile, data)
    if cuda.threadIdx.x == 0:
        cp_async_bulk_store(global_address(out), shared_address(tile), 4 * WARP)  # <- fault
        cp_async_bulk_commit_group()
        # cure: cp_async_bulk_wait_group(0)


@wrong(
    faults.CopyOutlivesBlock, source="the same, not committed", block=WARP, args=words(WARP, WARP), options=ALL,
)  # fmt: skip
def the_last_tile_is_in_no_group(data, out):
    """Nobody can ever wait for a store that is in no group."""
    tile = cuda.shared.array(WARP, int32, alignment=128)
    fill_for_a_store(tile, data)
    if cuda.threadIdx.x == 0:
        cp_async_bulk_store(global_address(out), shared_address(tile), 4 * WARP)  # <- fault


# --- own-arrival ----------------------------------------------------------------------------------------
@wrong(
    faults.NamedBarrierMisuse, waiver="own-arrival", source="Dao-AILab/flash-attention, hopper: mma_init",
    block=96, args=lambda: [np.full((3, 3), -1, np.int32)],
    expect=lambda out: [(out, np.arange(9).reshape(3, 3))],
)  # fmt: skip
def three_roles_in_turn(out):
    """Each role waits for an arrival of the one before; the first begins with an arrival of its own."""
    turns = cuda.shared.array(1, int32)
    role = int32(cuda.threadIdx.x) // WARP
    if cuda.threadIdx.x == 0:
        turns[0] = 0
    if role == 0:
        bar_arrive(1, 64)
    for i in range(3):
        bar_sync(1 + role, 64)  # <- fault
        if cuda.threadIdx.x % WARP == 0:
            out[i, role] = turns[0]
            turns[0] += 1
        if i < 2 or role < 2:
            bar_arrive(1 + (role + 1) % 3, 64)


@wrong(
    faults.NamedBarrierMisuse, source="the same, twice without a wait", block=96,
    args=lambda: [np.zeros(96, np.int32)], options=ALL,
)  # fmt: skip
def a_role_arrives_twice(out):
    """A role that does not wait takes the arrival of another one's place."""
    i = int32(cuda.threadIdx.x)
    if i < WARP:
        bar_arrive(1, 96)
        bar_arrive(1, 96)  # <- fault
    else:
        bar_sync(1, 96)
    out[i] = 1


# --- own-rows -------------------------------------------------------------------------------------------
ROWS, K = 64, 16  # of A and B, fp16 in cores of 8 rows and 16 bytes: two cores side by side, then the next rows
CORE, CORES, WORDS, SUMS = 128, 256, 64 * 16 // 2, 32


def factors():
    """A and B as words of two halves, and room for the sums."""
    random = np.random.default_rng(0)
    a, b = (random.integers(-3, 4, (ROWS, K)).astype(np.float16) for _ in range(2))
    return [a.view(np.uint32), b.view(np.uint32), np.full((4 * WARP, SUMS), np.nan, np.float32)]


def sums(a, b, out):
    total = a.view(np.float16).astype(np.float32) @ b.view(np.float16).astype(np.float32).T
    return [(out, total[sum_places(ROWS)])]


@cuda.jit(device=True)
def put_rows(tile, matrix, shift):
    """Each thread half a row, 16 bytes, so that each warp has 16 rows: its own, or those ``shift``
    further down; then a fence."""
    half, row = int32(cuda.threadIdx.x) % 2, (int32(cuda.threadIdx.x) // 2 + shift) % ROWS
    for i in range(4):
        tile[row // 8 * (CORES // 4) + half * (CORE // 4) + row % 8 * 4 + i] = matrix[row, 4 * half + i]
    fence_proxy_async()


@cuda.jit(device=True)
def described(tile):
    return wgmma_descriptor(shared_address(tile), uint32(CORE), uint32(CORES), uint32(0), uint32(0))


@cuda.jit(device=True)
def finish(held, out):
    """The sums to the threads' rows of ``out``."""
    wgmma_commit_group()
    wgmma_wait_group_n64(held, 0)
    for i in range(SUMS):
        out[cuda.threadIdx.x, i] = held[i]


@wrong(
    faults.DataRace, waiver="own-rows", source="Dao-AILab/flash-attention, hopper: syncwarp behind P",
    block=4 * WARP, args=factors, expect=sums, names=("syncthreads",),
)  # fmt: skip
def warps_that_know_their_rows_of_a(a, b, out):
    """Each warp writes its 16 rows of A, and meets with its own lanes alone before the product."""
    left = cuda.shared.array(WORDS, uint32, alignment=128)
    right = cuda.shared.array(WORDS, uint32, alignment=128)
    put_rows(right, b, 0)
    cuda.syncthreads()
    put_rows(left, a, 0)
    cuda.syncwarp()
    # cure: cuda.syncthreads()
    held = cuda.local.array(SUMS, float32)
    wgmma_fence()
    wgmma_m64n64k16_f16(held, described(left), described(right), uint32(0), uint32(0), uint32(0))  # <- fault
    finish(held, out)


@wrong(
    faults.DataRace, source="the same, rows of the next warp", block=4 * WARP, args=factors, options=ALL,
)  # fmt: skip
def warps_that_know_rows_of_the_next_one(a, b, out):
    """Each warp writes 16 rows of A that another one reads."""
    left = cuda.shared.array(WORDS, uint32, alignment=128)
    right = cuda.shared.array(WORDS, uint32, alignment=128)
    put_rows(right, b, 0)
    cuda.syncthreads()
    put_rows(left, a, 16)
    cuda.syncwarp()
    held = cuda.local.array(SUMS, float32)
    wgmma_fence()
    wgmma_m64n64k16_f16(held, described(left), described(right), uint32(0), uint32(0), uint32(0))  # <- fault
    finish(held, out)


@wrong(
    faults.DataRace, source="the same, of B", block=4 * WARP, args=factors, options=ALL,
)  # fmt: skip
def warps_that_know_their_rows_of_b(a, b, out):
    """Each warp writes 16 rows of B, which all of them read."""
    left = cuda.shared.array(WORDS, uint32, alignment=128)
    right = cuda.shared.array(WORDS, uint32, alignment=128)
    put_rows(left, a, 0)
    cuda.syncthreads()
    put_rows(right, b, 0)
    cuda.syncwarp()
    held = cuda.local.array(SUMS, float32)
    wgmma_fence()
    wgmma_m64n64k16_f16(held, described(left), described(right), uint32(0), uint32(0), uint32(0))  # <- fault
    finish(held, out)


# --- pipeline-end ---------------------------------------------------------------------------------------
@wrong(
    faults.InvalNotOrdered, waiver="pipeline-end", source="libcu++, the destructor of cuda::pipeline", block=64,
    args=words(64, 64), expect=lambda data, out: [(out, data[::-1])], names=("cuda.syncthreads()",),
)  # fmt: skip
def the_last_warp_invalidates(data, out):
    """All wait on a barrier; a lane of each warp counts its lanes off, and the last one ends the barrier."""
    kept, users = cuda.shared.array(64, int32), cuda.shared.array(1, int32)
    bar, i = shared_address(cuda.shared.array(1, uint64)), cuda.threadIdx.x
    if i == 0:
        users[0] = 64
        mbarrier_init(bar, 64)
    cuda.syncthreads()
    kept[i] = data[i]
    mbarrier_arrive(bar)
    mbarrier_wait(bar, 0)
    out[i] = kept[63 - i]
    # cure: cuda.syncthreads()
    cuda.match_any_sync(uint32(0xFFFFFFFF), 1)  # <- fault
    if i % 32 == 0:
        cuda.threadfence_block()
        left = cuda.atomic.sub(users, 0, 32)
        cuda.threadfence_block()
        if left == 32:
            mbarrier_inval(bar)  # <- fault


@wrong(faults.InvalNotOrdered, source="as the_last_warp_invalidates", block=64, args=words(64, 64), options=ALL)
def a_lane_counts_off_others_that_it_has_not_met(data, out):
    """A lane counts its warp off, and nothing says that the others are past their wait."""
    kept, users = cuda.shared.array(64, int32), cuda.shared.array(1, int32)
    bar, i = shared_address(cuda.shared.array(1, uint64)), cuda.threadIdx.x
    if i == 0:
        users[0] = 64
        mbarrier_init(bar, 64)
    cuda.syncthreads()
    kept[i] = data[i]
    mbarrier_arrive(bar)
    mbarrier_wait(bar, 0)
    out[i] = kept[63 - i]
    if i % 32 == 0:
        cuda.threadfence_block()
        left = cuda.atomic.sub(users, 0, 32)
        cuda.threadfence_block()
        if left == 32:
            mbarrier_inval(bar)  # <- fault

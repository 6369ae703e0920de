"""Mistakes in shared and local memory: barriers that are missing, and memory that nobody has written."""

import numpy as np
from base import wrong
from numba import cuda, float32, from_dtype, int32, uint32

from numba_deform.compiler import u64
from numba_deform.device.memory import (
    global_address,
    ld_shared_b32,
    ld_shared_v4,
    shared_address,
    st_global_b32,
    st_shared_b32,
)
from numba_deform.engines import faults

TWO_WARPS, STEPS, BINS, TILE = 64, 4, 32, 33
PAIR = from_dtype(np.dtype([("count", np.int32), ("total", np.int32)]))


def floats(count, out=1):
    """Arguments: ``count`` numbers, and room for ``out``."""
    return lambda: [np.arange(count, dtype=np.float32), np.zeros(out, np.float32)]


@wrong(faults.DataRace, source="arrayfire issue 625 and pull request 633", block=64, args=floats(64))
def reduction_without_barrier(data, out):
    """The tree adds its halves without a barrier between the steps, so a warp may add what the other has not
    written yet: sums that differ from run to run."""
    sums = cuda.shared.array(TWO_WARPS, float32)
    i = int32(cuda.threadIdx.x)
    sums[i] = data[i]
    half = 32
    while half > 0:
        if i < half:
            sums[i] += sums[i + half]  # <- fault
        half //= 2
    if i == 0:
        out[0] = sums[0]


@wrong(faults.DataRace, source="Mantevo/miniFE issue 13, OP2-Common issue 185", block=64, args=floats(64))
def last_warp_in_step(data, out):
    """The last 32 numbers are added without syncwarp, as if a warp ran in step. Since Volta its lanes are
    scheduled one by one, and the compiler may move the accesses: the sum is wrong now and then."""
    sums = cuda.shared.array(TWO_WARPS, float32)
    i = int32(cuda.threadIdx.x)
    sums[i] = data[i]
    cuda.syncthreads()
    if i < 32:
        sums[i] += sums[i + 32]  # <- fault
        sums[i] += sums[i + 16]  # <- fault
        sums[i] += sums[i + 8]  # <- fault
        sums[i] += sums[i + 4]  # <- fault
        sums[i] += sums[i + 2]  # <- fault
        sums[i] += sums[i + 1]  # <- fault
        if i == 0:
            out[0] = sums[0]


@wrong(faults.DataRace, source="NVIDIA/cuml pull request 6578", block=64, args=floats(256, STEPS))
def next_round_overwrites(data, out):
    """Thread 0 adds up what all have written; the others go on to the next round and overwrite it."""
    partial = cuda.shared.array(TWO_WARPS, float32)
    i = int32(cuda.threadIdx.x)
    for step in range(STEPS):
        partial[i] = data[64 * step + i]  # <- fault
        cuda.syncthreads()
        if i == 0:
            total = float32(0)
            for j in range(TWO_WARPS):
                total += partial[j]  # <- fault
            out[step] = total


@wrong(faults.DataRace, source="ORNL/HeCBench issue 254", block=64, args=floats(64, 64))
def total_read_at_once(data, out):
    """One thread leaves the total in shared memory, and all read it with no barrier in between."""
    total = cuda.shared.array(1, float32)
    i = int32(cuda.threadIdx.x)
    if i == 63:
        total[0] = data[i]
    out[i] = data[i] / total[0]  # <- fault


@wrong(faults.DataRace, source="ORNL/HeCBench issue 253", block=64, args=floats(256, 64))
def tile_refilled_too_soon(data, out):
    """There is a barrier after the tile is written and none after it is read: a fast warp writes the next tile
    into the one that the slow warp still reads."""
    tile = cuda.shared.array(TWO_WARPS, float32)
    i = int32(cuda.threadIdx.x)
    nearest = float32(1e9)
    for step in range(STEPS):
        tile[i] = data[64 * step + i]  # <- fault
        cuda.syncthreads()
        for j in range(TWO_WARPS):
            nearest = min(nearest, tile[j])  # <- fault
    out[i] = nearest


@wrong(
    faults.DataRace, source="hidet-org/hidet pull request 325; alicevision/popsift pull request 82", block=64,
    args=lambda: [np.arange(64, dtype=np.int32) % 8, np.zeros(32, np.int32)],
)  # fmt: skip
def bins_cleared_late(data, out):
    """The first warp clears the bins, and the second may have counted in them before that."""
    bins = cuda.shared.array(BINS, int32)
    i = int32(cuda.threadIdx.x)
    if i < BINS:
        bins[i] = 0  # <- fault
    cuda.atomic.add(bins, data[i], 1)  # <- fault
    cuda.syncthreads()
    if i < BINS:
        out[i] = bins[i]


@wrong(faults.DataRace, source="numba/numba issue 4907", block=32, args=lambda: [np.zeros(1, np.int32)])
def everybody_adds_one(out):
    """All threads add to one number by a plain load and store, so most of the additions are lost."""
    number = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        number[0] = 0
    cuda.syncthreads()
    number[0] += 1  # <- fault
    cuda.syncthreads()
    out[0] = number[0]


@wrong(faults.DataRace, source="Dao-AILab/flash-attention pull request 2033", block=64, args=floats(64, 64))
def syncwarp_for_two_warps(data, out):
    """syncwarp orders the lanes of one warp. What is read here was written by the other one."""
    tile = cuda.shared.array(TWO_WARPS, float32)
    i = int32(cuda.threadIdx.x)
    tile[i] = data[i]
    cuda.syncwarp()
    out[i] = tile[63 - i]  # <- fault


@wrong(faults.DataRace, source="NVIDIA/Fuser issue 678", block=64, args=floats(64, 2))
def idle_threads_clear_the_result(data, out):
    """The idle warp resets the result for the next row while the working one has yet to store it."""
    result = cuda.shared.array(1, float32)
    i = int32(cuda.threadIdx.x)
    if i == 0:
        result[0] = data[0]
    cuda.syncthreads()
    if i == 1:
        out[0] = result[0]  # <- fault
    if i == 40:
        result[0] = float32(0)  # <- fault


@wrong(
    faults.DataRace, source="Numba documentation, dynamic shared memory; thundersvm issue 99",
    block=32, shared_bytes=256, args=floats(32, 32),
)  # fmt: skip
def two_dynamic_arrays_are_one(data, out):
    """Both dynamic arrays begin at the same byte: the indices lie on top of the values."""
    values = cuda.shared.array(0, float32)
    index = cuda.shared.array(0, int32)
    i = int32(cuda.threadIdx.x)
    values[i] = data[i]  # <- fault
    index[31 - i] = i  # <- fault
    cuda.syncthreads()
    out[i] = values[index[i] & 31]


@wrong(faults.DataRace, source="GPUVerify (OOPSLA 2012), prefix sums", block=64, args=floats(64, 64))
def scan_in_place(data, out):
    """A prefix sum in one buffer: a thread overwrites the number that its neighbour is about to add."""
    sums = cuda.shared.array(TWO_WARPS, float32)
    i = int32(cuda.threadIdx.x)
    sums[i] = data[i]
    cuda.syncthreads()
    distance = 1
    while distance < TWO_WARPS:
        if i >= distance:
            sums[i] += sums[i - distance]  # <- fault
        cuda.syncthreads()
        distance *= 2
    out[i] = sums[i]


@wrong(faults.DataRace, source="tile-ai/tilelang issue 2556", block=64, args=floats(64, 64))
def stencil_of_48_threads(data, out):
    """Only 48 threads work, and the barrier between them was left out: a warp reads what the other writes."""
    tile = cuda.shared.array(TWO_WARPS, float32)
    i = int32(cuda.threadIdx.x)
    if i < 48:
        tile[i] = data[i]
        out[i] = tile[(i + 17) % 48]  # <- fault


@wrong(
    faults.OutOfRange, source="ORNL/HeCBench issue 83", block=32, hardware="no",
    args=lambda: [np.arange(32, dtype=np.int32) * 2, np.zeros(32, np.int32)],
)  # fmt: skip
def more_values_than_bins(data, out):
    """Values reach 62, and there are 32 bins: the counts go into whatever lies behind."""
    bins = cuda.shared.array(BINS, int32)
    i = int32(cuda.threadIdx.x)
    bins[i] = 0
    cuda.syncthreads()
    cuda.atomic.add(bins, data[i] & 63, 1)  # <- fault
    cuda.syncthreads()
    out[i] = bins[i]


@wrong(
    faults.OutOfRange, source="openmm/openmm issue 2825: the last warp reads behind its buffer", block=32,
    hardware="no", args=floats(32, 32),
)  # fmt: skip
def window_leaves_the_tile(data, out):
    """Each thread looks one further than the last element of its window: the last one leaves the array."""
    tile = cuda.shared.array(TILE, float32)
    i = int32(cuda.threadIdx.x)
    tile[i] = data[i]
    if i == 0:
        tile[32] = float32(0)
    cuda.syncthreads()
    total = float32(0)
    for j in range(3):
        total += tile[i + j]  # <- fault
    out[i] = total


@wrong(
    faults.OutOfRange, source="CUDA guide, shared memory: static arrays lie one behind the other",
    block=32, args=floats(32, 32),
)  # fmt: skip
def store_runs_into_the_next_array(data, out):
    """The offset counts 33 words of an array of 32, and the next array begins where it ends: the last store
    changes a number of that one, and no tool of the hardware sees it."""
    first = cuda.shared.array(BINS, float32)
    second = cuda.shared.array(BINS, float32)
    i = int32(cuda.threadIdx.x)
    first[i] = data[i]
    second[i] = data[i]
    cuda.syncthreads()
    if i == 0:
        st_shared_b32(uint32(shared_address(first) + uint32(4 * BINS)), uint32(0))  # <- fault
    cuda.syncthreads()
    out[i] = first[i] + second[i]


@wrong(faults.UninitialisedRead, source="numba/numba issue 6076", block=32, args=floats(32, 32))
def shared_memory_is_not_zero(data, out):
    """Shared memory holds what the last block left there, not zeros."""
    sums = cuda.shared.array(BINS, float32)
    i = int32(cuda.threadIdx.x)
    sums[i] += data[i]  # <- fault
    out[i] = sums[i]


@wrong(faults.UninitialisedRead, source="lattice/quda pull request 276", block=64, args=floats(48))
def idle_threads_leave_garbage(data, out):
    """Threads without an element leave their place in shared memory as it was, and the sum takes it in."""
    sums = cuda.shared.array(TWO_WARPS, float32)
    i = int32(cuda.threadIdx.x)
    if i < data.size:
        sums[i] = data[i]
    cuda.syncthreads()
    half = 32
    while half > 0:
        if i < half:
            sums[i] += sums[i + half]  # <- fault
        cuda.syncthreads()
        half //= 2
    if i == 0:
        out[0] = sums[0]


@wrong(faults.UninitialisedRead, source="NVIDIA/cuda-quantum pull request 2475", block=32, args=floats(128, 32))
def accumulator_never_set(data, out):
    """The local accumulators are added to, and were never set to zero."""
    sums = cuda.local.array(STEPS, float32)
    i = int32(cuda.threadIdx.x)
    for j in range(STEPS):
        sums[j] += data[32 * j + i]  # <- fault
    out[i] = sums[0] + sums[1] + sums[2] + sums[3]


@wrong(
    faults.UninitialisedRead, source="Numba, numba/cpython/iterators.py: zip ends with its shortest part",
    block=32, args=floats(32, 32),
)  # fmt: skip
def zip_comes_to_what_is_not_set(data, out):
    """The tuple has three elements, and two of the array are set."""
    factors, i = cuda.local.array(4, float32), int32(cuda.threadIdx.x)
    factors[0], factors[1] = float32(1), float32(2)
    total = float32(0)
    for factor, more in zip(factors, (2, 3, 4)):  # noqa: B905  # <- fault
        total += data[i] * factor + more
    out[i] = total


@wrong(
    faults.DataRace, source="NVIDIA/cub issue 98: {status, value} pairs read while they are written", block=64,
    args=lambda: [np.zeros(64, np.int32)],
)  # fmt: skip
def fields_of_a_record(out):
    """One thread fills in a record field by field while the other warp reads it: a field is memory too."""
    pair = cuda.shared.array(1, PAIR)
    i = int32(cuda.threadIdx.x)
    if i == 0:
        pair[0].count = 1
        pair[0].total = 10  # <- fault
    if i == 40:
        out[i] = pair[0].total  # <- fault


@wrong(
    faults.Misaligned, source="apache/tvm issue 8540; PaddlePaddle/Paddle pull request 23090", block=32,
    args=lambda: [np.zeros(32, np.uint32)],
)  # fmt: skip
def vector_load_from_odd_words(out: u64):
    """Sixteen bytes are loaded from every fourth byte: a misaligned address ends the kernel."""
    words = cuda.shared.array(TWO_WARPS, uint32, alignment=16)
    i = int32(cuda.threadIdx.x)
    words[i] = i
    words[i + 32] = i
    cuda.syncthreads()
    x, y, z, w = ld_shared_v4(uint32(shared_address(words) + uint32(4 * i)))  # <- fault
    st_global_b32(out + 4 * i, uint32(x + y + z + w))


@wrong(
    faults.OutOfRange, source="CUDA guide, vectors of four words: the array's length is a multiple of four",
    block=32, hardware="no", args=lambda: [np.zeros(32, np.uint32)],
)  # fmt: skip
def vector_load_leaves_the_array(out):
    """The last thread loads four words where one is left of the array, and gets three of another one."""
    words = cuda.shared.array(TILE, uint32, alignment=16)
    other = cuda.shared.array(TILE, uint32)
    i = int32(cuda.threadIdx.x)
    words[i] = other[i] = i
    if i == 0:
        words[32] = 0
    cuda.syncthreads()
    if i < 9:
        x, y, z, w = ld_shared_v4(uint32(shared_address(words) + uint32(16 * i)))  # <- fault
        out[i] = uint32(x + y + z + w)


@wrong(
    faults.DataRace, source="NVIDIA/cccl pull request 4556", block=64,
    args=lambda: [np.arange(64, dtype=np.int32), np.zeros(64, np.int32)],
)  # fmt: skip
def prefix_replaces_the_aggregate(data, out):
    """Thread 0 replaces the tile's sum by its prefix while the later warp has yet to read the sum."""
    tile = cuda.shared.array(1, int32)
    i = int32(cuda.threadIdx.x)
    if i == 0:
        tile[0] = data[63]
    cuda.syncthreads()
    mine = tile[0]  # <- fault
    if i == 0:
        tile[0] = mine + data[0]  # <- fault
    out[i] = mine


@wrong(
    faults.OutOfRange, source="CUDA guide, address space conversion: an address of one space used in another",
    block=32, hardware="no", args=lambda: [np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)],
)  # fmt: skip
def global_address_as_shared(data, out):
    """The low half of a global address goes to a load from shared memory."""
    i = int32(cuda.threadIdx.x)
    out[i] = ld_shared_b32(uint32(global_address(data) + uint32(4 * i)))  # <- fault


@wrong(
    faults.UninitialisedRead, source="Numba reference, NUMBA_ALWAYS_WARN_UNINIT_VAR",
    args=lambda: [np.arange(32, dtype=np.int32), np.zeros(32, np.int32)],
)  # fmt: skip
def set_in_one_branch_only(data, out):
    """The upper half of the warp passes the only line that sets the factor by."""
    i = cuda.grid(1)
    if data[i] < 16:
        factor = data[i] + 1
    out[i] = data[i] * factor  # <- fault


@wrong(
    faults.UninitialisedRead, source="Numba reference, NUMBA_ALWAYS_WARN_UNINIT_VAR",
    args=lambda: [np.arange(32, dtype=np.int32) * 3 % 8, np.zeros(32, np.int32)],
)  # fmt: skip
def nothing_was_found(data, out):
    """A lane looks for its own number among the first eight; those who find none read the place of the last."""
    i = cuda.grid(1)
    found = 0
    for k in range(8):
        if data[k] == i:
            place, found = k, found + 1
    cuda.syncwarp()
    out[i] = place + found  # <- fault

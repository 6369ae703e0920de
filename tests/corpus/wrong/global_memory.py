"""Mistakes in global memory."""

import numpy as np
from base import wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.memory import (
    global_address,
    ld_acquire_gpu_global_b32,
    ld_global_b32,
    ld_global_nc_b32,
    ld_global_nc_v4,
    ld_global_v4,
    red_add_gpu_global_u32,
    st_global_b32,
    st_global_v4,
)
from numba_deform.device.sync import fence_acq_rel_gpu
from numba_deform.engines import faults

PARTICLE = np.dtype([("energy", np.int32), ("hits", np.int32)])


def ints(*counts):
    """Arguments: arrays of that many numbers, the first 0, 1, 2, .., the others zeros."""
    return lambda: [np.arange(counts[0], dtype=np.int32), *(np.zeros(n, np.int32) for n in counts[1:])]


def words(*counts):
    """The same of unsigned words."""
    return lambda: [np.arange(counts[0], dtype=np.uint32), *(np.zeros(n, np.uint32) for n in counts[1:])]


@wrong(
    faults.DataRace, source="CUDA guide, memory consistency: blocks do not wait for each other",
    grid=2, args=ints(64, 64),
)  # fmt: skip
def neighbour_block_without_order(data, out):
    """Each block writes its part and reads the other's, with nothing that orders the two blocks."""
    i = int32(cuda.threadIdx.x)
    block = int32(cuda.blockIdx.x)
    data[32 * block + i] = i  # <- fault
    cuda.syncthreads()
    out[32 * block + i] = data[32 * (1 - block) + i]  # <- fault


@wrong(faults.DataRace, source="tile-ai/TileOPs issue 1729", grid=3, args=ints(128))
def convolution_in_place(rows):
    """Each block adds the next row, another block's, to its own in place: it reads that row while its owner
    replaces it, so gradients differ from run to run."""
    i = int32(cuda.threadIdx.x)
    row = int32(cuda.blockIdx.x)
    rows[32 * row + i] += rows[32 * (row + 1) + i]  # <- fault


@wrong(faults.DataRace, source="halide/Halide issue 5430", grid=2, args=ints(48, 48))
def last_tile_shifted_inwards(data, out):
    """The last tile is moved back so that it ends with the array, and two blocks write the middle. That both
    write the same numbers does not make it defined."""
    first = min(32 * int32(cuda.blockIdx.x), out.size - 32)
    i = first + int32(cuda.threadIdx.x)
    out[i] = data[i] + 1  # <- fault


@wrong(
    faults.DataRace, source="picongpu pull request 2231: histograms of blocks added without atomics", grid=2,
    args=ints(32, 32),
)  # fmt: skip
def histograms_added_plainly(data, out):
    """Every block adds its own counts to the common histogram by a plain load and store."""
    i = int32(cuda.threadIdx.x)
    out[i] += data[i]  # <- fault


@wrong(
    faults.DataRace, source="CUDA best practices, grid-stride loops", grid=2, args=ints(128, 128),
)  # fmt: skip
def stride_of_one_block(data, out):
    """The loop's stride is the block and not the grid, so all blocks write everything from their start on."""
    i = cuda.grid(1)
    while i < data.size:
        out[i] = data[i] + 1  # <- fault
        i += cuda.blockDim.x


@wrong(
    faults.OutOfRange, source="apt-sim/AdePT pull request 37", grid=2, hardware="no", args=ints(63, 63),
)  # fmt: skip
def guard_lets_one_through(data, out):
    """The guard says `>` where `>=` is meant: one thread works behind the end."""
    i = cuda.grid(1)
    if i > data.size:
        return
    out[i] = data[i]  # <- fault


@wrong(
    faults.OutOfRange, source="myurtoglu/cudaforengineers issue 5", block=32, hardware="no", args=ints(32, 32),
)  # fmt: skip
def second_difference_at_the_border(data, out):
    """The difference of neighbours is taken at the last element as well, whose right neighbour is not there."""
    i = int32(cuda.threadIdx.x)
    if 1 <= i:
        out[i] = data[i - 1] + data[i + 1] - 2 * data[i]  # <- fault


@wrong(
    faults.OutOfRange, source="NVIDIA forums 293471: a read behind the end gives no error", hardware="no",
    args=words(30, 32),
)  # fmt: skip
def vector_load_over_the_end(data: u64, out: u64):
    """Eight threads load four words each from an array of 30: the last two lie behind it, in another
    allocation or in none."""
    i = uint64(cuda.threadIdx.x)
    if i < 8:
        x, y, z, w = ld_global_v4(data + 16 * i)  # <- fault
        st_global_v4(out + 16 * i, x, y, z, w)


@wrong(faults.OutOfRange, source="CUDA guide, pointers passed to kernels", hardware="no", args=words(32, 32))
def bytes_and_elements(data, out):
    """The offset of a word is multiplied by its size twice."""
    i = uint64(cuda.threadIdx.x)
    x = ld_global_b32(global_address(data) + 4 * i)
    st_global_b32(global_address(out) + 16 * i, x)  # <- fault


@wrong(
    faults.Misaligned, source="ggml-org/llama.cpp pull request 18799; openucx/ucc pull request 1312",
    args=words(36, 32),
)  # fmt: skip
def vector_load_of_a_view(data: u64, out: u64):
    """The row begins 8 bytes after a multiple of 16, and is loaded 16 bytes at a time: a misaligned address."""
    i = uint64(cuda.threadIdx.x)
    if i < 8:
        row = data + uint64(8)
        x, y, z, w = ld_global_v4(row + 16 * i)  # <- fault
        st_global_v4(out + 16 * i, x, y, z, w)


def frozen(count):
    array = np.zeros(count, np.uint32)
    array.flags.writeable = False
    return array


@wrong(faults.ReadOnlyWrite, source="NumPy documentation, ndarray.flags: writeable", args=lambda: [frozen(32)])
def writes_its_input(data: u64):
    """The kernel normalises its input in place, and the caller has said that nobody may write it."""
    i = uint64(cuda.threadIdx.x)
    st_global_b32(data + 4 * i, uint32(ld_global_b32(data + 4 * i) + 1))  # <- fault


@wrong(
    faults.NotReadOnly, source="PTX ISA 9.7.9.9, ld.global.nc; CUDA guide, __ldg", block=64, args=words(64, 64),
)  # fmt: skip
def read_only_load_after_store(data: u64, out: u64):
    """Written by this kernel, passed by a barrier, and loaded through the read-only path: it need not see what
    was written, since nobody keeps that cache coherent."""
    i = uint64(cuda.threadIdx.x)
    st_global_b32(data + 4 * i, uint32(3 * i))
    cuda.syncthreads()
    st_global_b32(out + 4 * i, ld_global_nc_b32(data + 4 * (63 - i)))  # <- fault


@wrong(
    faults.NotReadOnly, source="PTX ISA 9.7.9.9, ld.global.nc; CUDA guide, __ldg", args=words(32),
)  # fmt: skip
def store_after_read_only_load(data: u64):
    """The other order is no better: memory that is loaded through the read-only path may not be written while
    the kernel runs, and the load may be moved past the store."""
    i = uint64(cuda.threadIdx.x)
    x = ld_global_nc_b32(data + 4 * i)  # <- fault
    cuda.syncthreads()
    st_global_b32(data + 4 * i, uint32(x + 1))  # <- fault


@wrong(
    faults.NotReadOnly, source="PTX ISA 9.7.9.9, ld.global.nc, between blocks", grid=2, args=words(8, 1, 8),
    hardware="guarded",
)  # fmt: skip
def read_only_load_of_another_block(data: u64, flag: u64, out: u64):
    """Block 0 writes and raises a flag with all fences that it takes; block 1 reads through the read-only path,
    which no fence orders."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            for i in range(8):
                st_global_b32(data + uint64(4 * i), uint32(7))  # <- fault
            fence_acq_rel_gpu()
            red_add_gpu_global_u32(flag, uint32(1))
        else:
            while ld_acquire_gpu_global_b32(flag) == 0:
                pass
            x, y, z, w = ld_global_nc_v4(data)  # <- fault
            st_global_v4(out, x, y, z, w)


@wrong(
    faults.DataRace, source="NVIDIA/cub issue 98: {status, value} pairs in one record", grid=2,
    args=lambda: [np.zeros(4, PARTICLE), np.zeros(32, np.int32)],
)  # fmt: skip
def record_shared_by_blocks(particles, out):
    """One block updates a field of a record that the other block reads."""
    i = int32(cuda.threadIdx.x)
    if cuda.blockIdx.x == 0:
        if i < 4:
            particles[i].hits = 1  # <- fault
    elif i < 4:
        out[i] = particles[i].hits  # <- fault

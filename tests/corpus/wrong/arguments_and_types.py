"""Kernels that Numba does not compile for their arguments."""

import numpy as np
from base import wrong
from numba import cuda, float32, int32

from numba_deform.engines import faults

COUNT = 8


def ints(*counts):
    """Arguments: arrays of that many numbers, the first 0, 1, 2, .., the others zeros."""
    return lambda: [np.arange(counts[0], dtype=np.int32), *(np.zeros(n, np.int32) for n in counts[1:])]


def frozen(count):
    """An array that may not be written."""
    array = np.zeros(count, np.float32)
    array.flags.writeable = False
    return array


@wrong(
    faults.NotCompiled, source="srush/GPU-Puzzles issue 6; numba/numba issue 4709",
    args=lambda: [np.zeros(32, np.float32), 32],
)  # fmt: skip
def shared_size_from_an_argument(out, size):
    """The size of a shared array comes from an argument. It has to be known when the kernel is compiled."""
    tile = cuda.shared.array(size, float32)  # <- fault
    i = int32(cuda.threadIdx.x)
    tile[i] = out[i]
    out[i] = tile[i]


@wrong(faults.NotCompiled, source="numba/numba issue 6549", args=ints(32, 32))
def local_size_from_an_array(data, out):
    """The same with a local array, whose size is that of an argument."""
    mine = cuda.local.array(data.size, int32)  # <- fault
    i = int32(cuda.threadIdx.x)
    mine[0] = data[i]
    out[i] = mine[0]


@wrong(faults.NotCompiled, source="numba/numba issue 792", args=ints(32, 32))
def quotient_as_an_index(data, out):
    """`/` makes a float of two integers, and no array is indexed by floats; `//` is meant."""
    i = int32(cuda.threadIdx.x)
    out[i] = data[i / 2]  # <- fault


@wrong(faults.NotCompiled, source="Numba documentation, type unification problems", args=ints(32, 32))
def number_or_array(data, out):
    """A name stands for an array in one branch and for a number in the other."""
    i = int32(cuda.threadIdx.x)
    if i < 16:
        x = data
    else:
        x = 0
    out[i] = x  # <- fault


@wrong(faults.NotCompiled, source="Numba documentation, Python features in CUDA", args=ints(32, 32))
def list_in_a_kernel(data, out):
    """A kernel collects numbers in a list, which needs memory that a kernel cannot get."""
    i = int32(cuda.threadIdx.x)
    found = []
    for j in range(COUNT):
        if data[j] > i:
            found.append(data[j])  # <- fault
    out[i] = len(found)


@wrong(
    faults.NotCompiled, faults.ReadOnlyWrite, source="Numba documentation, deviations: read-only arrays",
    args=lambda: [frozen(32)],
)  # fmt: skip
def read_only_argument(data):
    """The caller's array is read-only, and the kernel writes to it: Numba refuses the assignment."""
    data[cuda.threadIdx.x] = float32(1)  # <- fault


@wrong(faults.NotCompiled, source="numba/numba issue 6549: memory that a kernel allocates", args=ints(32, 32))
def array_made_in_a_kernel(data, out):
    """np.zeros needs memory that a kernel cannot allocate; cuda.local.array is meant."""
    i = int32(cuda.threadIdx.x)
    mine = np.zeros(COUNT, np.int32)  # <- fault
    mine[0] = data[i]
    out[i] = mine[0]


@wrong(faults.NotCompiled, source="numba/numba issue 2655: syncthreads and its spelling", args=ints(32, 32))
def misspelled_barrier(data, out):
    """`cuda.syncthread`: there is no such name, and Numba says so when it compiles the line."""
    tile = cuda.shared.array(32, int32)
    i = int32(cuda.threadIdx.x)
    tile[i] = data[i]
    cuda.syncthread()  # <- fault
    out[i] = tile[31 - i]

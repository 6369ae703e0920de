"""Blocks and grids of two dimensions."""

import numpy as np
from base import wrong
from numba import cuda, float32, int32

from numba_deform.engines import faults

SIDE, SIZE = 8, 10  # of a tile, and of a matrix that is no multiple of it
TILE, PADDED = (SIDE, SIDE), (SIDE, SIDE + 1)


def floats(*shapes):
    """Arguments: matrices of these shapes."""
    return lambda: [np.ones(shape, np.float32) for shape in shapes]


@wrong(
    faults.OutOfRange, faults.UninitialisedRead, source="numba/numba issue 7324: fast_matmul",
    grid=(2, 2), block=(SIDE, SIDE), args=floats((SIZE, SIZE), (SIZE, SIZE), (SIZE, SIZE)), hardware="no",
)  # fmt: skip
def product_of_tiles_over_the_border(a, b, c):
    """The threads of the last tiles load what lies outside the matrices: it is the next row, or nobody's. The
    guard sends only those home that are outside in both directions."""
    left = cuda.shared.array(TILE, float32)
    right = cuda.shared.array(TILE, float32)
    x, y = cuda.grid(2)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    if x >= c.shape[0] and y >= c.shape[1]:
        return
    total = float32(0)
    for t in range(cuda.gridDim.x):
        left[i, j] = a[x, j + t * SIDE]  # <- fault
        right[i, j] = b[i + t * SIDE, y]  # <- fault
        cuda.syncthreads()
        for k in range(SIDE):
            total += left[i, k] * right[k, j]  # <- fault
        cuda.syncthreads()
    c[x, y] = total  # <- fault


@wrong(
    faults.DataRace, source="CUDA guide, shared memory: the second barrier of a tiled product", grid=(2, 1),
    block=(SIDE, SIDE), args=floats((SIDE, 16), (16, SIDE), (16, SIDE)),
)  # fmt: skip
def product_with_one_barrier(a, b, c):
    """The barrier behind the products is missing, and the next tile is loaded over the one in use."""
    left = cuda.shared.array(TILE, float32)
    right = cuda.shared.array(TILE, float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for t in range(2):
        left[i, j] = a[i, j + t * SIDE]  # <- fault
        right[i, j] = b[i + t * SIDE, j]  # <- fault
        cuda.syncthreads()
        for k in range(SIDE):
            total += left[i, k] * right[k, j]  # <- fault
    c[cuda.blockIdx.x * SIDE + i, j] = total


@wrong(
    faults.DataRace, source="NVIDIA/Fuser pull request 1769: a transposition through shared memory",
    block=(SIDE, SIDE), args=floats((SIDE, SIDE), (SIDE, SIDE)),
)  # fmt: skip
def transposition_without_barrier(a, b):
    """A tile is written by rows and read by columns, which other warps have written."""
    tile = cuda.shared.array(PADDED, float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    tile[j, i] = a[j, i]  # <- fault
    b[j, i] = tile[i, j]  # <- fault


@wrong(
    faults.DataRace, source="ORNL/HeCBench issue 261", block=(SIDE, SIDE), args=floats((SIDE, SIDE)),
)  # fmt: skip
def shortest_paths_in_one_tile(paths):
    """Shortest paths in place: a round reads the row and the column that others shorten in the same round."""
    tile = cuda.shared.array(TILE, float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    tile[i, j] = paths[i, j]
    cuda.syncthreads()
    for k in range(SIDE):
        tile[i, j] = min(tile[i, j], tile[i, k] + tile[k, j])  # <- fault
    paths[i, j] = tile[i, j]


@wrong(
    faults.DataRace, source="numba/numba issue 8249", grid=2,
    args=lambda: [np.arange(64, dtype=np.int32), np.zeros(32, np.int32), np.zeros(64, np.int32)],
)  # fmt: skip
def scratch_indexed_by_the_thread_alone(data, scratch, out):
    """Scratch space in global memory has a place for each thread of a block, and there are several blocks."""
    i, x = int32(cuda.threadIdx.x), cuda.grid(1)
    scratch[i] = data[x]  # <- fault
    out[x] = scratch[i]  # <- fault


@wrong(
    faults.DivergentBarrier, source="numba/numba issue 2655; picongpu pull request 359", grid=(1, 2),
    block=(SIDE, SIDE), args=floats((SIDE, 12), (SIDE, 12)), hardware="guarded",
)  # fmt: skip
def columns_without_work_skip_a_barrier(a, b):
    """In the last block half of the columns have no work, and skip the first of two barriers."""
    tile = cuda.shared.array(TILE, float32)
    x, y = cuda.grid(2)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    tile[i, j] = float32(0)
    if y < a.shape[1]:
        tile[i, j] = a[x, y]
        cuda.syncthreads()  # <- fault
        b[x, y] = tile[SIDE - 1 - i, j]
    cuda.syncthreads()  # <- fault

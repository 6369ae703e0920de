"""The nearest copy in the style of GPU-Puzzles: all threads fill a tile in shared memory, meet, store it, meet.

Each stores what another has loaded, as otherwise nobody would have to wait for anybody.

After puzzles 8 (Shared) and 14 (Matrix Multiply) of srush/GPU-Puzzles, which know ``cuda.shared.array`` and
``cuda.syncthreads``, and neither TMA nor mbarrier: nothing is under way while anybody computes.
"""

import numba
import numpy as np
from numba import cuda

ROWS, COLUMNS = 2, 4


def copy_test(cuda):
    def call(out, a, steps):
        tile = cuda.shared.array((ROWS, COLUMNS), numba.float32)
        row, column = cuda.threadIdx.y, cuda.threadIdx.x
        other_row, other_column = ROWS - 1 - row, COLUMNS - 1 - column
        for step in range(steps):
            tile[row, column] = a[ROWS * step + row, column]
            cuda.syncthreads()
            out[ROWS * step + other_row, other_column] = tile[other_row, other_column]
            cuda.syncthreads()

    return call


def run(data):
    out = np.zeros_like(data)
    cuda.jit(copy_test(cuda))[1, (COLUMNS, ROWS)](out, data, len(data) // ROWS)
    return out

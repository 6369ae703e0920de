"""A stencil over a picture: blocks and grid have two dimensions, a block's tile a halo."""

import numpy as np
from base import right, wrong
from numba import cuda, float32, int32

from numba_deform.engines import faults

WIDTH, HEIGHT = 21, 13  # no multiple of the tile
ACROSS, DOWN = 8, 4  # threads of a block, a tile's pixels
TILE = (DOWN + 2, ACROSS + 2)  # with the halo
GRID = (-(-WIDTH // ACROSS), -(-HEIGHT // DOWN))


def arguments():
    """The picture, and what the stencil makes of it."""
    picture = np.random.default_rng(4).integers(0, 100, (HEIGHT, WIDTH)).astype(np.float32)
    return [picture, np.full_like(picture, np.nan)]


def expect(picture, out):
    wide = np.pad(picture, 1)
    around = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]
    return [(out, np.float32(4) * picture - around)]


@cuda.jit(device=True, inline="always")
def load_tile(tile, picture):
    """All threads load the tile with its halo; what lies outside the picture is 0."""
    x0, y0 = int32(cuda.blockIdx.x * ACROSS - 1), int32(cuda.blockIdx.y * DOWN - 1)
    row = int32(cuda.threadIdx.y)
    while row < DOWN + 2:
        column = int32(cuda.threadIdx.x)
        while column < ACROSS + 2:
            x, y, value = int32(x0 + column), int32(y0 + row), float32(0)
            if x >= 0 and x < WIDTH and y >= 0 and y < HEIGHT:
                value = picture[y, x]
            tile[row, column] = value
            column = int32(column + ACROSS)
        row = int32(row + DOWN)


@right(
    source="CUDA samples and courses: a 2D stencil with halo in shared memory", grid=GRID, block=(ACROSS, DOWN),
    args=arguments, expect=expect,
)  # fmt: skip
def stencil_with_halo(picture, out):
    """A thread loads up to four pixels and computes one; a barrier stands between. Threads outside the picture
    load halo for others, so they do not leave before the barrier."""
    tile = cuda.shared.array(TILE, float32)
    load_tile(tile, picture)
    cuda.syncthreads()
    x, y = cuda.grid(2)
    c, r = int32(cuda.threadIdx.x + 1), int32(cuda.threadIdx.y + 1)
    if x < WIDTH and y < HEIGHT:
        around = tile[r - 1, c] + tile[r + 1, c] + tile[r, c - 1] + tile[r, c + 1]
        out[y, x] = float32(4) * tile[r, c] - around


@wrong(
    faults.DataRace, source="CUDA courses: the stencil without its barrier", grid=GRID, block=(ACROSS, DOWN),
    args=arguments, expect=expect,
)  # fmt: skip
def stencil_without_barrier(picture, out):
    """The twin that computes as soon as a thread has loaded its own pixels: a warp has four rows of the tile
    here, all of it, and yet its lanes need not go in step."""
    tile = cuda.shared.array(TILE, float32)
    load_tile(tile, picture)
    x, y = cuda.grid(2)
    c, r = int32(cuda.threadIdx.x + 1), int32(cuda.threadIdx.y + 1)
    if x < WIDTH and y < HEIGHT:
        around = tile[r - 1, c] + tile[r + 1, c] + tile[r, c - 1] + tile[r, c + 1]  # <- fault
        out[y, x] = float32(4) * tile[r, c] - around

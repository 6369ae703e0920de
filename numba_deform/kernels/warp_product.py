"""A product of tiles in shared memory, by one warp on tensor cores; ``device/matrix.py`` has the fragments."""

from dataclasses import dataclass

from numba import cuda, float32, uint32

from ..compiler import static_range
from ..device.matrix import ldmatrix_x4, mma_m16n8k16_f16
from ..device.namespace import Namespace
from ..device.sync import lane

ROW_BYTES, DEPTH, FRAGMENT = 128, 64, 16  # of a tile: bytes of a row, its elements; k of one instruction


@dataclass(frozen=True)
class WarpProduct:
    """C (16, ``columns``) += A (16, 64) B^T for a warp, in fp16 with float32 sums.

    A and B lie in shared memory in tiles whose rows are 64 elements along k, as TMA with ``swizzle="128B"``
    writes them, on a multiple of 1024 bytes; B's rows are C's columns, a multiple of 16 of them. All 32 lanes
    call these, with ``p = nd.WarpProduct(64).functions()`` outside the kernel:

    p.zeros()                   float32 sums, (columns / 2,) in each lane's registers
    p.add(sums, a, row, b)      add the product of 16 rows of the tile at the shared address ``a``, from ``row``
                                on (a multiple of 16), and of the tile at ``b``
    p.store(out, y, x, sums)    write C to the float32 array ``out``, from out[y, x] on

    Raises ValueError for another number of columns."""

    columns: int

    def __post_init__(self):
        if not isinstance(self.columns, int) or self.columns % 16 or not 16 <= self.columns <= 256:
            raise ValueError(f"columns={self.columns} of a WarpProduct must be a multiple of 16 from 16 to 256")

    def functions(self):
        """The Namespace for kernels."""
        SUMS, PAIRS = self.columns // 2, self.columns // 16

        @cuda.jit(device=True, inline="always")
        def zeros():
            sums = cuda.local.array(SUMS, float32)
            for i in static_range(SUMS):
                sums[i] = float32(0)
            return sums

        @cuda.jit(device=True, forceinline=True)
        def add(sums, a, row, b):
            for k in static_range(DEPTH // FRAGMENT):
                x = ldmatrix_x4(_chunk_at(a, row + (lane() & 15), 2 * k + (lane() >> 4)))
                for j in static_range(PAIRS):  # of two fragments of B, eight columns each
                    line, chunk = 16 * j + (lane() >> 4) * 8 + (lane() & 7), 2 * k + (lane() >> 3 & 1)
                    y = ldmatrix_x4(_chunk_at(b, line, chunk))
                    for h in static_range(2):
                        s = 8 * j + 4 * h
                        d = mma_m16n8k16_f16(
                            x[0], x[1], x[2], x[3], y[2 * h], y[2 * h + 1],
                            sums[s], sums[s + 1], sums[s + 2], sums[s + 3],
                        )  # fmt: skip
                        for i in static_range(4):
                            sums[s + i] = d[i]

        @cuda.jit(device=True, forceinline=True)
        def store(out, y, x, sums):
            row, column = y + lane() // 4, x + 2 * (lane() % 4)
            for i in static_range(SUMS):
                out[row + i // 2 % 2 * 8, column + i // 4 * 8 + i % 2] = sums[i]

        return Namespace("product", zeros=zeros, add=add, store=store)


@cuda.jit(device=True, forceinline=True)
def _chunk_at(tile, row, chunk):
    """The shared address of 16 bytes of a row, where the 128-byte swizzle has put them."""
    return uint32(tile + uint32(ROW_BYTES * row + 16 * (chunk ^ (row & 7))))

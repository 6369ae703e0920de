"""Products of tiles by one warp, or by a warpgroup, on tensor cores, with sums that a kernel may look at.

The sums of a product C (rows, columns) lie in the registers of the lanes, and so does an A that comes from
them. With ``g = lane // 4``, ``t = lane % 4`` and 16 rows for each warp, from its first row on,

    sums[4j + 2h + e]    is C[g + 8h, 8j + 2t + e]      (h, e = 0, 1; j = 0 .. columns / 8 - 1)

so each lane has parts of two rows, h = 0 and 1, and four neighbouring lanes have the whole of a row.
``device/matrix.py`` and ``device/wgmma.py`` have the fragments.
"""

from dataclasses import dataclass

from numba import cuda, float32, uint32, uint64

from ..compiler import static_range
from ..device import wgmma
from ..device.float32 import max_f32
from ..device.half2 import cvt_rn_bf16x2_f32, cvt_rn_f16x2_f32
from ..device.matrix import ldmatrix_x4, ldmatrix_x4_trans, mma_m16n8k16_bf16, mma_m16n8k16_f16, stmatrix_x4
from ..device.namespace import Namespace
from ..device.sync import lane, shfl_sync_bfly_f32
from ..device.wgmma import SWIZZLE_128B, wgmma_commit_group, wgmma_descriptor, wgmma_fence
from ..engines.tensormap.rules import element_type

ROW_BYTES, DEPTH, FRAGMENT = 128, 64, 16  # of a tile: bytes of a row, its elements; k of one instruction
EIGHT_ROWS = 8 * ROW_BYTES  # after which the pattern of the 128-byte swizzle comes again
ALL = 0xFFFFFFFF
# dtype -> (its name in an instruction, what packs two floats, the product of a warp)
KINDS = {"float16": ("f16", cvt_rn_f16x2_f32, mma_m16n8k16_f16),
         "bfloat16": ("bf16", cvt_rn_bf16x2_f32, mma_m16n8k16_bf16)}  # fmt: skip


@dataclass(frozen=True)
class WarpProduct:
    """C (16, ``columns``) += A B for a warp, of ``dtype`` "float16" or "bfloat16" with float32 sums.

    Tiles in shared memory have rows of 64 elements, as TMA with ``swizzle="128B"`` writes them, on a multiple
    of 1024 bytes. All 32 lanes call these, with ``p = nd.WarpProduct(64).functions()`` outside the kernel:

    p.zeros()                   float32 sums, (columns / 2,) in each lane's registers
    p.add(sums, a, row, b)      C += A B^T: A is 16 rows of the tile at the shared address ``a``, from ``row``
                                on (a multiple of 16), B the tile at ``b``, whose rows are along k
    p.add_held(sums, held, b)   C += A B: A is ``held``, the sums (16, 64) of another product, rounded to
                                ``dtype``; B's tile at ``b`` has rows along C's columns, 64 of them
    p.row(i), p.column(i)       which element of C ``sums[i]`` is, in this lane
    p.row_max(sums, h, start)   the largest number of row ``g + 8h``, and ``start``; the same in all its lanes
    p.row_sum(sums, h)          the sum of that row, likewise
    p.scale_row(sums, h, x)     multiply that row by ``x``
    p.store(out, y, x, sums)    write C to the float32 array ``out``, from out[y, x] on
    p.store_tile(c, row, sums)  write C, rounded to ``dtype``, to tiles of 64 x 64 from shared address ``c`` on,
                                64 columns to each, from their ``row`` on. Before a TMA store of them come
                                ``nd.fence_proxy_async()`` by all lanes and a barrier

    Raises ValueError for another number of columns than a multiple of 16, and for another ``dtype``."""

    columns: int
    dtype: object = "float16"

    def __post_init__(self):
        _kind(self)
        if not isinstance(self.columns, int) or self.columns % 16 or not 16 <= self.columns <= 256:
            raise ValueError(f"columns={self.columns} of a WarpProduct must be a multiple of 16 from 16 to 256")

    def functions(self) -> Namespace:
        """The Namespace for kernels."""
        PAIRS, HELD = self.columns // 16, DEPTH // FRAGMENT
        _, pack, multiply = _kind(self)
        fragment, members = _rows(self.columns // 2, pack)

        @cuda.jit(device=True, forceinline=True)
        def add_pair(sums, first, x, y):
            """Two fragments of eight columns, with their sums from ``first`` on."""
            for h in static_range(2):
                s, i = first + 4 * h, 2 * h
                c = sums[s], sums[s + 1], sums[s + 2], sums[s + 3]
                d = multiply(x[0], x[1], x[2], x[3], y[i], y[i + 1], c[0], c[1], c[2], c[3])
                for i in static_range(4):
                    sums[s + i] = d[i]

        @cuda.jit(device=True, forceinline=True)
        def add(sums, a, row, b):
            for k in static_range(DEPTH // FRAGMENT):
                x = ldmatrix_x4(_chunk_at(a, row + (lane() & 15), 2 * k + (lane() >> 4)))
                for j in static_range(PAIRS):  # of two fragments of B, eight columns each
                    line, chunk = 16 * j + (lane() >> 4) * 8 + (lane() & 7), 2 * k + (lane() >> 3 & 1)
                    y = ldmatrix_x4(_chunk_at(b, line, chunk))
                    add_pair(sums, 8 * j, x, y)

        @cuda.jit(device=True, forceinline=True)
        def add_held(sums, held, b):
            for k in static_range(HELD):
                x = fragment(held, k)
                for j in static_range(PAIRS):
                    y = ldmatrix_x4_trans(_chunk_at(b, 16 * k + (lane() & 15), 2 * j + (lane() >> 4)))
                    add_pair(sums, 8 * j, x, y)

        if self.columns <= DEPTH:
            members["add_held"] = add_held
        return Namespace("product", add=add, **members)


@dataclass(frozen=True)
class WarpgroupProduct:
    """C (64, ``columns``) += A B for a warpgroup of four warps, by wgmma; types as those of a WarpProduct.

    So are tiles; A's has 64 rows. The number of the group's first warp is a multiple of 4,
    and each warp has 16 rows of C. All 128 threads call these, with ``p = nd.WarpgroupProduct(64).functions()``
    outside the kernel, which is made with ``whole_program=True``; ``sums`` is indexed by constants alone:

    p.zeros()                   float32 sums, (columns / 2,) in each lane's registers
    p.add(sums, a, b, keep)     C = A B^T + C, or without C where ``keep`` is 0: A and B are the tiles at shared
                                addresses, whose rows are along k. A group of its own, which is not waited for
    p.add_held(sums, held, b)   C += A B, as that of a WarpProduct: A is ``held``, the sums of another product;
                                not with 256 columns, which leave no registers for A
    p.wait(sums, pending)       until at most ``pending`` groups are open: before sums are read or written, and
                                before tiles are given back
    p.row(i), p.column(i), p.row_max, p.row_sum, p.scale_row, p.store, p.store_tile
                                as those of a WarpProduct; rows of the warp's own 16

    Raises ValueError for other numbers of columns than 64, 128 and 256, and for another ``dtype``."""

    columns: int
    dtype: object = "float16"

    def __post_init__(self):
        _kind(self)
        if self.columns not in (64, 128, 256):
            raise ValueError(f"columns={self.columns} of a WarpgroupProduct must be 64, 128 or 256")

    def functions(self) -> Namespace:
        """The Namespace for kernels."""
        STEPS = DEPTH // FRAGMENT
        LEADING = DEPTH * ROW_BYTES  # of a tile with rows along C's columns: where the next 64 of them begin
        kind, pack, _ = _kind(self)
        multiply = getattr(wgmma, f"wgmma_m64n{self.columns}k16_{kind}")
        multiply_held = getattr(wgmma, f"wgmma_m64n{self.columns}k16_{kind}_ra", None)
        wait_for = getattr(wgmma, f"wgmma_wait_group_n{self.columns}")
        fragment, members = _rows(self.columns // 2, pack)

        @cuda.jit(device=True, forceinline=True)
        def add(sums, a, b, keep):
            x, y = _descriptor(a, 0), _descriptor(b, 0)
            wgmma_fence()
            for k in static_range(STEPS):  # 16 of k are 32 bytes
                multiply(sums, x + uint64(2 * k), y + uint64(2 * k), uint32(keep + k), uint32(0), uint32(0))
            wgmma_commit_group()

        @cuda.jit(device=True, forceinline=True)
        def add_held(sums, held, b):
            y = _descriptor(b, LEADING)
            x = fragment(held, 0) + fragment(held, 1) + fragment(held, 2) + fragment(held, 3)
            wgmma_fence()
            for k in static_range(STEPS):  # 16 of k are 16 rows, 2048 bytes
                i, part = 4 * k, y + uint64(128 * k)
                multiply_held(sums, x[i], x[i + 1], x[i + 2], x[i + 3], part, uint32(1), uint32(1))
            wgmma_commit_group()

        @cuda.jit(device=True, forceinline=True)
        def wait(sums, pending):
            wait_for(sums, uint32(pending))

        if multiply_held:
            members["add_held"] = add_held
        return Namespace("product", add=add, wait=wait, **members)


def _kind(product):
    """That of KINDS; ValueError for a product of another type."""
    if (name := element_type(product.dtype).name) not in KINDS:
        raise ValueError(f"dtype={name} of a {type(product).__name__} must be {' or '.join(KINDS)}")
    return KINDS[name]


def _rows(count, pack):
    """(a device function: words of A from columns 16k .. 16k + 15 of sums, which lie where those have to; the
    functions of ``count`` sums that a product by warps and by warpgroups shares)"""
    SUMS, BOX = count, DEPTH * ROW_BYTES

    @cuda.jit(device=True, forceinline=True)
    def fragment(sums, k):
        s = 8 * k
        return (pack(sums[s], sums[s + 1]), pack(sums[s + 2], sums[s + 3]),
                pack(sums[s + 4], sums[s + 5]), pack(sums[s + 6], sums[s + 7]))  # fmt: skip

    @cuda.jit(device=True, inline="always")
    def zeros():
        sums = cuda.local.array(SUMS, float32)
        for i in static_range(SUMS):
            sums[i] = float32(0)
        return sums

    @cuda.jit(device=True, forceinline=True)
    def row(i):
        return lane() // 4 + i // 2 % 2 * 8

    @cuda.jit(device=True, forceinline=True)
    def column(i):
        return 2 * (lane() % 4) + i // 4 * 8 + i % 2

    @cuda.jit(device=True, forceinline=True)
    def row_max(sums, h, start):
        largest = start
        for j in static_range(SUMS // 4):
            largest = max_f32(largest, max_f32(sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]))
        largest = max_f32(largest, shfl_sync_bfly_f32(uint32(ALL), largest, uint32(1)))
        return max_f32(largest, shfl_sync_bfly_f32(uint32(ALL), largest, uint32(2)))

    @cuda.jit(device=True, forceinline=True)
    def row_sum(sums, h):
        total = float32(0)
        for j in static_range(SUMS // 4):
            total = total + sums[4 * j + 2 * h] + sums[4 * j + 2 * h + 1]
        total = total + shfl_sync_bfly_f32(uint32(ALL), total, uint32(1))
        return total + shfl_sync_bfly_f32(uint32(ALL), total, uint32(2))

    @cuda.jit(device=True, forceinline=True)
    def scale_row(sums, h, x):
        for j in static_range(SUMS // 4):
            sums[4 * j + 2 * h] = sums[4 * j + 2 * h] * x
            sums[4 * j + 2 * h + 1] = sums[4 * j + 2 * h + 1] * x

    @cuda.jit(device=True, forceinline=True)
    def store(out, y, x, sums):
        for i in static_range(SUMS):
            out[y + row(i), x + column(i)] = sums[i]

    @cuda.jit(device=True, forceinline=True)
    def store_tile(tile, row, sums):
        for k in static_range(SUMS // 8):
            x, box = fragment(sums, k), uint32(tile + uint32(BOX * (k // 4)))
            place = _chunk_at(box, row + (lane() & 15), 2 * (k % 4) + (lane() >> 4))
            stmatrix_x4(place, x[0], x[1], x[2], x[3])

    members = zeros, row, column, row_max, row_sum, scale_row, store, store_tile
    return fragment, {member.py_func.__name__: member for member in members}


@cuda.jit(device=True, forceinline=True)
def _descriptor(tile, leading):
    return wgmma_descriptor(tile, uint32(leading), uint32(EIGHT_ROWS), uint32(0), uint32(SWIZZLE_128B))


@cuda.jit(device=True, forceinline=True)
def _chunk_at(tile, row, chunk):
    """The shared address of 16 bytes of a row, where the 128-byte swizzle has put them."""
    return uint32(tile + uint32(ROW_BYTES * row + 16 * (chunk ^ (row & 7))))

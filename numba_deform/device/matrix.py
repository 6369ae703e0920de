"""Tensor cores by warps: matrices between shared memory and registers, and their products (PTX ISA 9.7.14).

All 32 lanes of a warp execute each of these together; one that comes elsewhere, or has exited, makes the
result undefined. A matrix that a warp holds is spread over its lanes as *fragments*. With ``g = lane // 4``
and ``t = lane % 4``, a lane holds

    8x8, 16 bits      one word: row g, columns 2t and 2t + 1 (the lower half first). Transposed: column g,
                      rows 2t and 2t + 1
    A, 16x16, 16 bits a0: row g, columns 2t, 2t + 1      a1: row g + 8, the same columns
                      a2: row g, columns 2t + 8, 2t + 9  a3: row g + 8, the same columns
    B, 16x8, 16 bits  b0: rows 2t, 2t + 1 of column g    b1: rows 2t + 8, 2t + 9 of column g
    A, 16x8, tf32     a0: row g, column t      a1: row g + 8, column t
                      a2: row g, column t + 4  a3: row g + 8, column t + 4
    B, 8x8, tf32      b0: row t of column g    b1: row t + 4 of column g
    A, 16x32, 8 bits  a0: row g, columns 4t .. 4t + 3   a1: row g + 8, the same columns
                      a2: row g, columns 4t + 16 .. 4t + 19   a3: row g + 8, the same columns
    B, 32x8, 8 bits   b0: rows 4t .. 4t + 3 of column g   b1: rows 4t + 16 .. 4t + 19 of column g
    C, D, 16x8        c0, c1: row g, columns 2t and 2t + 1   c2, c3: row g + 8, the same columns

So one ``ldmatrix_x4`` gives the A of an m16n8k16 product from a tile whose rows are along k: lane ``l``
gives the address of row ``l % 16``, at k + 8 where ``l >= 16``. B has two words a lane: from a tile whose rows
are the columns of B, along k, it comes by ``ldmatrix`` as well; from one whose rows are along n by
``ldmatrix.trans``. ``ldmatrix`` fetches one 8x8 matrix at a time: without bank conflicts where its eight rows
lie in different groups of four banks, as in rows of 128 bytes under a 128B swizzle; in plain rows of 128 bytes
all eight lie in one.

None of these orders memory. In shared memory a lane reads, or with ``stmatrix`` writes, what its own registers
hold, not the row whose address it gives: between other accesses to a row and these, there has to be a barrier
of the lanes, ``syncwarp`` at least.
"""

from collections.abc import Callable
from typing import Any

from numba.core.types import UniTuple

from .ptx import cpu, f32, i32, intrinsic, tabled, u32, u32x2, u32x4, void

# None is pure: to the compiler that means free to be moved into a branch, where not all lanes come.


@intrinsic(u32(u32))
def ldmatrix_x1(row):
    """``ldmatrix.sync.aligned.m8n8.x1.shared.b16``: an 8x8 matrix of 16-bit elements, one word a lane.
    Lanes 0 .. 7 give the shared addresses of its rows, 16 bytes each on a multiple of 16; what others
    give is ignored. Undefined unless all lanes of the warp come. PTX ISA 9.7.14.5.15."""
    return cpu().load_matrices(row, 1)[0]


@intrinsic(u32x2(u32))
def ldmatrix_x2(row):
    """``ldmatrix.sync.aligned.m8n8.x2.shared.b16``: two matrices, a word of each; lanes 8 .. 15 give the
    rows of the second. As ``ldmatrix_x1``. PTX ISA 9.7.14.5.15."""
    return cpu().load_matrices(row, 2)


@intrinsic(u32x4(u32))
def ldmatrix_x4(row):
    """``ldmatrix.sync.aligned.m8n8.x4.shared.b16``: four matrices, a word of each; lanes 8i .. 8i + 7 give
    the rows of matrix i. As ``ldmatrix_x1``. PTX ISA 9.7.14.5.15."""
    return cpu().load_matrices(row, 4)


@intrinsic(u32(u32))
def ldmatrix_x1_trans(row):
    """``ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16``: as ``ldmatrix_x1``, and the matrix arrives
    transposed: a lane's word is two elements of one column. PTX ISA 9.7.14.5.15."""
    return cpu().load_matrices(row, 1, transposed=True)[0]


@intrinsic(u32x2(u32))
def ldmatrix_x2_trans(row):
    """``ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16``: as ``ldmatrix_x2``, each matrix transposed.
    PTX ISA 9.7.14.5.15."""
    return cpu().load_matrices(row, 2, transposed=True)


@intrinsic(u32x4(u32))
def ldmatrix_x4_trans(row):
    """``ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16``: as ``ldmatrix_x4``, each matrix transposed.
    PTX ISA 9.7.14.5.15."""
    return cpu().load_matrices(row, 4, transposed=True)


@intrinsic(void(u32, u32))
def stmatrix_x1(row, r0):
    """``stmatrix.sync.aligned.m8n8.x1.shared.b16``: writes what ``ldmatrix_x1`` reads, from the same
    fragments to rows given by the same lanes. An ordinary write: before a bulk store of it, each lane calls
    ``fence_proxy_async``, then the warp meets. PTX ISA 9.7.14.5.16."""
    cpu().store_matrices(row, (r0,))


@intrinsic(void(u32, u32, u32))
def stmatrix_x2(row, r0, r1):
    """``stmatrix.sync.aligned.m8n8.x2.shared.b16``: two matrices, as ``ldmatrix_x2`` reads them; else as
    ``stmatrix_x1``. PTX ISA 9.7.14.5.16."""
    cpu().store_matrices(row, (r0, r1))


@intrinsic(void(u32, u32, u32, u32, u32))
def stmatrix_x4(row, r0, r1, r2, r3):
    """``stmatrix.sync.aligned.m8n8.x4.shared.b16``: four matrices, as ``ldmatrix_x4`` reads them; else as
    ``stmatrix_x1``. PTX ISA 9.7.14.5.16."""
    cpu().store_matrices(row, (r0, r1, r2, r3))


@intrinsic(void(u32, u32))
def stmatrix_x1_trans(row, r0):
    """``stmatrix.sync.aligned.m8n8.x1.trans.shared.b16``: as ``stmatrix_x1``, and the matrix is written
    transposed. PTX ISA 9.7.14.5.16."""
    cpu().store_matrices(row, (r0,), transposed=True)


@intrinsic(void(u32, u32, u32))
def stmatrix_x2_trans(row, r0, r1):
    """``stmatrix.sync.aligned.m8n8.x2.trans.shared.b16``: as ``stmatrix_x2``, each matrix transposed.
    PTX ISA 9.7.14.5.16."""
    cpu().store_matrices(row, (r0, r1), transposed=True)


@intrinsic(void(u32, u32, u32, u32, u32))
def stmatrix_x4_trans(row, r0, r1, r2, r3):
    """``stmatrix.sync.aligned.m8n8.x4.trans.shared.b16``: as ``stmatrix_x4``, each matrix transposed.
    PTX ISA 9.7.14.5.16."""
    cpu().store_matrices(row, (r0, r1, r2, r3), transposed=True)


_10 = Callable[[Any, Any, Any, Any, Any, Any, Any, Any, Any, Any], Any]
_OPERANDS = "a0", "a1", "a2", "a3", "b0", "b1", "c0", "c1", "c2", "c3"


def _mma(depth, kind, text, fragments) -> _10:
    """``mma_m16n8k{depth}_{kind}``: the documentation behind its instruction, and where its fragments stand."""
    left, right = kind.split("_") if "_" in kind else (kind, kind)
    sums, name = ("s32", i32) if left in ("s8", "u8") else ("f32", f32), f"mma_m16n8k{depth}_{kind}"

    def act(thread, *words):
        return thread.multiply_matrices(kind, words[:4], words[4:6], words[6:])

    text = f"``mma.sync.aligned.m16n8k{depth}.row.col.{sums[0]}.{left}.{right}.{sums[0]}``: {text}"
    text += f" PTX ISA 9.7.14.5.14; the fragments 9.7.14.5.{fragments}."
    return tabled(__name__, name, _OPERANDS, [u32] * 6 + [sums[1]] * 4, text, act, UniTuple(sums[1], 4))


mma_m16n8k16_f16 = _mma(16, "f16", """D = A B + C, the four floats of D.
    Products of fp16 are exact; in which order they are summed up in float32, and how that is rounded, is
    unspecified. The CPU engine adds them one by one with k going up, C last, and rounds each sum to nearest:
    the last bits may differ from a GPU's, and small addends that meet a large one.""", 8)  # fmt: skip
mma_m16n8k16_bf16 = _mma(16, "bf16", "as ``mma_m16n8k16_f16``, for bf16.", 8)
mma_m16n8k8_tf32 = _mma(8, "tf32", """as ``mma_m16n8k16_f16``, for A and B of the
    bits of floats, of whose fraction only the upper 10 bits count. The others should be zero: what becomes of
    them is not specified, and the CPU engine cuts them off.""", 7)  # fmt: skip
mma_m16n8k32_s8 = _mma(32, "s8", """D = A B + C, the four integers of D, for signed
    bytes. A word has four of them, the lowest byte first. Sums are exact modulo 2^32: one that does not fit
    wraps.""", 10)  # fmt: skip
mma_m16n8k32_u8 = _mma(32, "u8", "as ``mma_m16n8k32_s8``, for unsigned bytes; C and D are signed.", 10)
_AS = "as ``mma_m16n8k32_s8``, for"
mma_m16n8k32_s8_u8 = _mma(32, "s8_u8", f"{_AS} signed bytes in A and unsigned ones in B.", 10)
mma_m16n8k32_u8_s8 = _mma(32, "u8_s8", f"{_AS} unsigned bytes in A and signed ones in B.", 10)
mma_m16n8k32_e4m3 = _mma(32, "e4m3", """as ``mma_m16n8k16_f16``, for fp8 with 4 bits of
    exponent, of which a word has four, the lowest byte first. It has no infinities, and its largest number is
    448. On sm_90 the compiler makes fp16 of them, which is exact, and two
    products of these.""", 10)  # fmt: skip
mma_m16n8k32_e5m2 = _mma(32, "e5m2", """as ``mma_m16n8k32_e4m3``, for fp8 with 5 bits of
    exponent, which are the upper bytes of fp16 numbers.""", 10)  # fmt: skip
_AS = "as ``mma_m16n8k32_e4m3``, for"
mma_m16n8k32_e4m3_e5m2 = _mma(32, "e4m3_e5m2", f"{_AS} e4m3 in A and e5m2 in B.", 10)
mma_m16n8k32_e5m2_e4m3 = _mma(32, "e5m2_e4m3", f"{_AS} e5m2 in A and e4m3 in B.", 10)

"""A kernel of Triton's: the sums of a matrix' rows, which comes by a tensor descriptor, so by TMA.

FAULT plants one: 1 the mask of the store lets one row too many pass."""

import triton
import triton.language as tl

TYPES = "tensordesc<fp32[8, 32]>", "*fp32", "i32", "fp32", "constexpr"
SIGNATURE = dict(zip(("rows", "sums", "count", "scale", "FAULT"), TYPES, strict=True))


@triton.jit
def triton_rows(rows, sums, count, scale, FAULT: tl.constexpr):
    first = tl.program_id(0) * 8
    tile = rows.load([first, 0])
    row = first + tl.arange(0, 8)
    tl.store(sums + row, scale * tl.sum(tile, axis=1), mask=row < count + FAULT)

"""A kernel of Triton's: the sums of a matrix' rows, which comes by a tensor descriptor, so by TMA.

FAULT plants one: 1 the mask of the store lets one row too many pass."""

import triton
import triton.language as tl

SIGNATURE = {"rows": "tensordesc<fp32[8, 32]>", "sums": "*fp32", "count": "i32", "scale": "fp32", "FAULT": "constexpr"}


@triton.jit
def triton_rows(rows, sums, count, scale, FAULT: tl.constexpr):
    first = tl.program_id(0) * 8
    tile = rows.load([first, 0])
    row = first + tl.arange(0, 8)
    tl.store(sums + row, scale * tl.sum(tile, axis=1), mask=row < count + FAULT)

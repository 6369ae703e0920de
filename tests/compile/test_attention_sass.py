"""FlashAttention's forward as machine code: tensor cores, no spills, and each pipe by its instruction."""

import pytest

from numba_deform.compiler.sass import inspect_kernel
from numba_deform.course.pipelines.attention import attention


@pytest.mark.full
@pytest.mark.parametrize("by, products", [("mma", ("HMMA", 64)), ("wgmma", ("HGMMA", 8))])
def test_attention_compiles(by, products):
    """64 keys of a step: 32 products of Q K^T and as many with V by a warp, 4 and 4 by a warpgroup."""
    made = inspect_kernel(attention(by=by).kernel)
    counts = made.instructions
    assert counts.get(products[0], 0) == products[1], counts
    assert (made.stack, made.spill_loads, made.spill_stores) == (0, 0, 0)
    assert counts["MUFU"] == 36  # powers of 32 scores, two shrinks and two reciprocals of a lane
    assert counts["UTMALDG"] == 3 and made.registers <= 168

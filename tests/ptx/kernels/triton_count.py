"""A kernel of Triton's that counts how often it ran: all its threads load the number, and one stores the next.

FAULT plants one: 1 all elements of a block take the number that is stored over meanwhile."""

import triton
import triton.language as tl

TYPES = "*i32", "*i32", "*i32", "constexpr"
SIGNATURE = dict(zip(("count", "out", "total", "FAULT"), TYPES, strict=True))


@triton.jit
def triton_count(count, out, total, FAULT: tl.constexpr):
    before = tl.load(count)
    tl.store(count, before + 1)
    tl.store(out, 2 * before)
    tl.atomic_add(total, 1)
    if FAULT:
        i = tl.arange(0, 128)
        tl.store(out + i, before + i)

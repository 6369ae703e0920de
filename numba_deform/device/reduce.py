"""Reductions by the copy engine, of shared memory into global memory (PTX ISA 9.7.9.25.4.2, 9.7.9.25.5.3).

They are issued, fenced and waited for as the stores of ``tma``: ``fence_proxy_async`` after ordinary writes to
the source, a commit into a bulk group, a wait for the group. Each element is one atomic operation, relaxed and
of gpu scope, so reductions of several threads and blocks into the same bytes need no order among themselves.
Against everything else they are writes: who reads the result, or has set it to zero, has to be ordered, and
ordinary writes before them need ``fence_proxy_async_global`` by their writer.

``add`` rounds to nearest even and keeps subnormals (asked of an H200; ``red`` and ``atom`` make zeros of those
of f32). ``min`` and ``max`` of a number and a NaN are the number. ``inc`` goes up by one, and to 0 from the
operand on; ``dec`` goes down by one, and to the operand from 0 or from above it. A tensor's elements are those
of its map.
"""

from collections.abc import Callable

from .ptx import From3, five, i32, tabled, u32, u64

_AS = "As ``cp_reduce_async_bulk_add_u32``."


def _bulk(ending, does, elements, more=_AS) -> Callable[[int, int, int], None]:
    """``cp_reduce_async_bulk_{ending}``: what it does, and with what elements."""
    operation, kind = ending.split("_")
    exact = ".noftz" * (operation == "add" and kind in ("f16", "bf16"))
    does = does.format(f"``bytes`` bytes of {elements}")
    text = f"``cp.reduce.async.bulk.{operation}{exact}.{kind}``: {does}. "
    return tabled(
        __name__, f"cp_reduce_async_bulk_{ending}", ("dst", "src", "bytes"), (u64, u32, u32),
        f"{text}{more} PTX ISA 9.7.9.25.4.2.",
        lambda thread, dst, src, bytes: thread.bulk_store(dst, src, bytes, operation, kind),
    )  # fmt: skip


_ADDS = "adds {} from shared ``src`` to ``dst``"
_SMALLER, _LARGER = (f"of {{}}, the {word} ones stay in ``dst``" for word in ("smaller", "larger"))
_INTO = "{} from shared ``src`` into ``dst``"
_UP = "{} in ``dst`` count up, from the one in ``src`` on to 0"
_DOWN = "{} in ``dst`` count down, from 0 to the one in ``src``"
_FIRST = "Addresses and size are multiples of 16. Completes in a bulk group, as ``cp_async_bulk_store``."
cp_reduce_async_bulk_add_u32 = _bulk("add_u32", _ADDS, "32-bit unsigned integers", _FIRST)
cp_reduce_async_bulk_add_s32 = _bulk("add_s32", _ADDS, "32-bit signed integers")
cp_reduce_async_bulk_add_u64 = _bulk("add_u64", _ADDS, "64-bit integers")
cp_reduce_async_bulk_add_f16 = _bulk("add_f16", _ADDS, "fp16 numbers")
cp_reduce_async_bulk_add_bf16 = _bulk("add_bf16", _ADDS, "bf16 numbers")
cp_reduce_async_bulk_add_f32 = _bulk("add_f32", _ADDS, "floats")
cp_reduce_async_bulk_add_f64 = _bulk("add_f64", _ADDS, "doubles")
cp_reduce_async_bulk_min_u32 = _bulk("min_u32", _SMALLER, "32-bit unsigned integers")
cp_reduce_async_bulk_min_s32 = _bulk("min_s32", _SMALLER, "32-bit signed integers")
cp_reduce_async_bulk_min_u64 = _bulk("min_u64", _SMALLER, "64-bit unsigned integers")
cp_reduce_async_bulk_min_s64 = _bulk("min_s64", _SMALLER, "64-bit signed integers")
cp_reduce_async_bulk_min_f16 = _bulk("min_f16", _SMALLER, "fp16 numbers")
cp_reduce_async_bulk_min_bf16 = _bulk("min_bf16", _SMALLER, "bf16 numbers")
cp_reduce_async_bulk_max_u32 = _bulk("max_u32", _LARGER, "32-bit unsigned integers")
cp_reduce_async_bulk_max_s32 = _bulk("max_s32", _LARGER, "32-bit signed integers")
cp_reduce_async_bulk_max_u64 = _bulk("max_u64", _LARGER, "64-bit unsigned integers")
cp_reduce_async_bulk_max_s64 = _bulk("max_s64", _LARGER, "64-bit signed integers")
cp_reduce_async_bulk_max_f16 = _bulk("max_f16", _LARGER, "fp16 numbers")
cp_reduce_async_bulk_max_bf16 = _bulk("max_bf16", _LARGER, "bf16 numbers")
cp_reduce_async_bulk_inc_u32 = _bulk("inc_u32", _UP, "32-bit unsigned integers")
cp_reduce_async_bulk_dec_u32 = _bulk("dec_u32", _DOWN, "32-bit unsigned integers")
cp_reduce_async_bulk_and_b32 = _bulk("and_b32", "ANDs " + _INTO, "32-bit words")
cp_reduce_async_bulk_and_b64 = _bulk("and_b64", "ANDs " + _INTO, "64-bit words")
cp_reduce_async_bulk_or_b32 = _bulk("or_b32", "ORs " + _INTO, "32-bit words")
cp_reduce_async_bulk_or_b64 = _bulk("or_b64", "ORs " + _INTO, "64-bit words")
cp_reduce_async_bulk_xor_b32 = _bulk("xor_b32", "XORs " + _INTO, "32-bit words")
cp_reduce_async_bulk_xor_b64 = _bulk("xor_b64", "XORs " + _INTO, "64-bit words")


# The same of tensors: those of rank 2 to 5 differ from rank 1 in the number of coordinates alone.
def _tensor(operation, does, elements) -> From3:
    """``cp_reduce_async_bulk_tensor_{rank}d_{operation}`` of rank 1 to 5. ``does``: what it does with the
    box and the tensor; ``elements``: the tensor's, in words."""
    name = f"cp_reduce_async_bulk_tensor_{{}}d_{operation}"
    first = f"Its elements are {elements}. Corner, overhang and completion are those of "
    first += "``cp_async_bulk_tensor_1d_store``."

    def store(thread, map, *corner_and_src):
        *corner, src = corner_and_src
        thread.tensor_store(map, tuple(corner), src, operation)

    def of_rank(rank):
        what = does.format("the box at ``src``", f"a rank-{rank} tensor")
        text = f"``cp.reduce.async.bulk.tensor.{rank}d.{operation}``: {what}. "
        text += first if rank == 1 else f"As ``{name.format(1)}``."
        names = ("map", *(f"c{i}" for i in range(rank)), "src")
        kinds = u64, *[i32] * rank, u32
        return tabled(__name__, name.format(rank), names, kinds, f"{text} PTX ISA 9.7.9.25.5.3.", store)

    return five(of_rank)


_ORDERED = "uint32, int32, uint64, int64, float16 or bfloat16"
_WORDS = "integers of 32 or 64 bits"
(
    cp_reduce_async_bulk_tensor_1d_add, cp_reduce_async_bulk_tensor_2d_add,
    cp_reduce_async_bulk_tensor_3d_add, cp_reduce_async_bulk_tensor_4d_add, cp_reduce_async_bulk_tensor_5d_add,
) = _tensor("add", "adds {} to {}", "uint32, int32, uint64, float16, bfloat16, float32 or float64")  # fmt: skip
(
    cp_reduce_async_bulk_tensor_1d_min, cp_reduce_async_bulk_tensor_2d_min,
    cp_reduce_async_bulk_tensor_3d_min, cp_reduce_async_bulk_tensor_4d_min, cp_reduce_async_bulk_tensor_5d_min,
) = _tensor("min", "the smaller of {} and {} stays", _ORDERED)  # fmt: skip
(
    cp_reduce_async_bulk_tensor_1d_max, cp_reduce_async_bulk_tensor_2d_max,
    cp_reduce_async_bulk_tensor_3d_max, cp_reduce_async_bulk_tensor_4d_max, cp_reduce_async_bulk_tensor_5d_max,
) = _tensor("max", "the larger of {} and {} stays", _ORDERED)  # fmt: skip
(
    cp_reduce_async_bulk_tensor_1d_and, cp_reduce_async_bulk_tensor_2d_and,
    cp_reduce_async_bulk_tensor_3d_and, cp_reduce_async_bulk_tensor_4d_and, cp_reduce_async_bulk_tensor_5d_and,
) = _tensor("and", "ANDs {} into {}", _WORDS)  # fmt: skip
(
    cp_reduce_async_bulk_tensor_1d_or, cp_reduce_async_bulk_tensor_2d_or,
    cp_reduce_async_bulk_tensor_3d_or, cp_reduce_async_bulk_tensor_4d_or, cp_reduce_async_bulk_tensor_5d_or,
) = _tensor("or", "ORs {} into {}", _WORDS)  # fmt: skip
(
    cp_reduce_async_bulk_tensor_1d_xor, cp_reduce_async_bulk_tensor_2d_xor,
    cp_reduce_async_bulk_tensor_3d_xor, cp_reduce_async_bulk_tensor_4d_xor, cp_reduce_async_bulk_tensor_5d_xor,
) = _tensor("xor", "XORs {} into {}", _WORDS)  # fmt: skip

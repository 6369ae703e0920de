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

from .ptx import cpu, i32, intrinsic, u32, u64, void


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_add_u32(dst, src, bytes):
    """``cp.reduce.async.bulk.add.u32``: adds ``bytes`` bytes of 32-bit unsigned integers from shared ``src``
    to ``dst``. Addresses and size are multiples of 16. Completes in a bulk group, as
    ``cp_async_bulk_store``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "add", "u32")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_add_s32(dst, src, bytes):
    """``cp.reduce.async.bulk.add.s32``: adds ``bytes`` bytes of 32-bit signed integers from shared ``src`` to
    ``dst``. As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "add", "s32")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_add_u64(dst, src, bytes):
    """``cp.reduce.async.bulk.add.u64``: adds ``bytes`` bytes of 64-bit integers from shared ``src`` to
    ``dst``. As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "add", "u64")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_add_f16(dst, src, bytes):
    """``cp.reduce.async.bulk.add.noftz.f16``: adds ``bytes`` bytes of fp16 numbers from shared ``src`` to
    ``dst``. As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "add", "f16")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_add_bf16(dst, src, bytes):
    """``cp.reduce.async.bulk.add.noftz.bf16``: adds ``bytes`` bytes of bf16 numbers from shared ``src`` to
    ``dst``. As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "add", "bf16")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_add_f32(dst, src, bytes):
    """``cp.reduce.async.bulk.add.f32``: adds ``bytes`` bytes of floats from shared ``src`` to ``dst``. As
    ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "add", "f32")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_add_f64(dst, src, bytes):
    """``cp.reduce.async.bulk.add.f64``: adds ``bytes`` bytes of doubles from shared ``src`` to ``dst``. As
    ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "add", "f64")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_min_u32(dst, src, bytes):
    """``cp.reduce.async.bulk.min.u32``: of ``bytes`` bytes of 32-bit unsigned integers, the smaller ones stay
    in ``dst``. As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "min", "u32")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_min_s32(dst, src, bytes):
    """``cp.reduce.async.bulk.min.s32``: of ``bytes`` bytes of 32-bit signed integers, the smaller ones stay
    in ``dst``. As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "min", "s32")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_min_u64(dst, src, bytes):
    """``cp.reduce.async.bulk.min.u64``: of ``bytes`` bytes of 64-bit unsigned integers, the smaller ones stay
    in ``dst``. As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "min", "u64")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_min_s64(dst, src, bytes):
    """``cp.reduce.async.bulk.min.s64``: of ``bytes`` bytes of 64-bit signed integers, the smaller ones stay
    in ``dst``. As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "min", "s64")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_min_f16(dst, src, bytes):
    """``cp.reduce.async.bulk.min.f16``: of ``bytes`` bytes of fp16 numbers, the smaller ones stay in ``dst``.
    As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "min", "f16")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_min_bf16(dst, src, bytes):
    """``cp.reduce.async.bulk.min.bf16``: of ``bytes`` bytes of bf16 numbers, the smaller ones stay in
    ``dst``. As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "min", "bf16")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_max_u32(dst, src, bytes):
    """``cp.reduce.async.bulk.max.u32``: of ``bytes`` bytes of 32-bit unsigned integers, the larger ones stay
    in ``dst``. As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "max", "u32")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_max_s32(dst, src, bytes):
    """``cp.reduce.async.bulk.max.s32``: of ``bytes`` bytes of 32-bit signed integers, the larger ones stay in
    ``dst``. As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "max", "s32")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_max_u64(dst, src, bytes):
    """``cp.reduce.async.bulk.max.u64``: of ``bytes`` bytes of 64-bit unsigned integers, the larger ones stay
    in ``dst``. As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "max", "u64")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_max_s64(dst, src, bytes):
    """``cp.reduce.async.bulk.max.s64``: of ``bytes`` bytes of 64-bit signed integers, the larger ones stay in
    ``dst``. As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "max", "s64")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_max_f16(dst, src, bytes):
    """``cp.reduce.async.bulk.max.f16``: of ``bytes`` bytes of fp16 numbers, the larger ones stay in ``dst``.
    As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "max", "f16")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_max_bf16(dst, src, bytes):
    """``cp.reduce.async.bulk.max.bf16``: of ``bytes`` bytes of bf16 numbers, the larger ones stay in ``dst``.
    As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "max", "bf16")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_inc_u32(dst, src, bytes):
    """``cp.reduce.async.bulk.inc.u32``: ``bytes`` bytes of 32-bit unsigned integers in ``dst`` count up, from
    the one in ``src`` on to 0. As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "inc", "u32")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_dec_u32(dst, src, bytes):
    """``cp.reduce.async.bulk.dec.u32``: ``bytes`` bytes of 32-bit unsigned integers in ``dst`` count down,
    from 0 to the one in ``src``. As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "dec", "u32")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_and_b32(dst, src, bytes):
    """``cp.reduce.async.bulk.and.b32``: ANDs ``bytes`` bytes of 32-bit words from shared ``src`` into
    ``dst``. As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "and", "b32")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_and_b64(dst, src, bytes):
    """``cp.reduce.async.bulk.and.b64``: ANDs ``bytes`` bytes of 64-bit words from shared ``src`` into
    ``dst``. As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "and", "b64")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_or_b32(dst, src, bytes):
    """``cp.reduce.async.bulk.or.b32``: ORs ``bytes`` bytes of 32-bit words from shared ``src`` into ``dst``.
    As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "or", "b32")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_or_b64(dst, src, bytes):
    """``cp.reduce.async.bulk.or.b64``: ORs ``bytes`` bytes of 64-bit words from shared ``src`` into ``dst``.
    As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "or", "b64")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_xor_b32(dst, src, bytes):
    """``cp.reduce.async.bulk.xor.b32``: XORs ``bytes`` bytes of 32-bit words from shared ``src`` into
    ``dst``. As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "xor", "b32")


@intrinsic(void(u64, u32, u32))
def cp_reduce_async_bulk_xor_b64(dst, src, bytes):
    """``cp.reduce.async.bulk.xor.b64``: XORs ``bytes`` bytes of 64-bit words from shared ``src`` into
    ``dst``. As ``cp_reduce_async_bulk_add_u32``. PTX ISA 9.7.9.25.4.2."""
    cpu().bulk_store(dst, src, bytes, "xor", "b64")


@intrinsic(void(u64, i32, u32))
def cp_reduce_async_bulk_tensor_1d_add(map, c0, src):
    """``cp.reduce.async.bulk.tensor.1d.add``: adds the box at ``src`` to a rank-1 tensor. Its elements are
    uint32, int32, uint64, float16, bfloat16, float32 or float64. Corner, overhang and completion are
    those of ``cp_async_bulk_tensor_1d_store``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0,), src, "add")


@intrinsic(void(u64, i32, i32, u32))
def cp_reduce_async_bulk_tensor_2d_add(map, c0, c1, src):
    """``cp.reduce.async.bulk.tensor.2d.add``: adds the box at ``src`` to a rank-2 tensor. As
    ``cp_reduce_async_bulk_tensor_1d_add``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1), src, "add")


@intrinsic(void(u64, i32, i32, i32, u32))
def cp_reduce_async_bulk_tensor_3d_add(map, c0, c1, c2, src):
    """``cp.reduce.async.bulk.tensor.3d.add``: adds the box at ``src`` to a rank-3 tensor. As
    ``cp_reduce_async_bulk_tensor_1d_add``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1, c2), src, "add")


@intrinsic(void(u64, i32, i32, i32, i32, u32))
def cp_reduce_async_bulk_tensor_4d_add(map, c0, c1, c2, c3, src):
    """``cp.reduce.async.bulk.tensor.4d.add``: adds the box at ``src`` to a rank-4 tensor. As
    ``cp_reduce_async_bulk_tensor_1d_add``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1, c2, c3), src, "add")


@intrinsic(void(u64, i32, i32, i32, i32, i32, u32))
def cp_reduce_async_bulk_tensor_5d_add(map, c0, c1, c2, c3, c4, src):
    """``cp.reduce.async.bulk.tensor.5d.add``: adds the box at ``src`` to a rank-5 tensor. As
    ``cp_reduce_async_bulk_tensor_1d_add``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1, c2, c3, c4), src, "add")


@intrinsic(void(u64, i32, u32))
def cp_reduce_async_bulk_tensor_1d_min(map, c0, src):
    """``cp.reduce.async.bulk.tensor.1d.min``: the smaller of the box at ``src`` and a rank-1 tensor stays.
    Its elements are uint32, int32, uint64, int64, float16 or bfloat16. Corner, overhang and completion
    are those of ``cp_async_bulk_tensor_1d_store``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0,), src, "min")


@intrinsic(void(u64, i32, i32, u32))
def cp_reduce_async_bulk_tensor_2d_min(map, c0, c1, src):
    """``cp.reduce.async.bulk.tensor.2d.min``: the smaller of the box at ``src`` and a rank-2 tensor stays. As
    ``cp_reduce_async_bulk_tensor_1d_min``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1), src, "min")


@intrinsic(void(u64, i32, i32, i32, u32))
def cp_reduce_async_bulk_tensor_3d_min(map, c0, c1, c2, src):
    """``cp.reduce.async.bulk.tensor.3d.min``: the smaller of the box at ``src`` and a rank-3 tensor stays. As
    ``cp_reduce_async_bulk_tensor_1d_min``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1, c2), src, "min")


@intrinsic(void(u64, i32, i32, i32, i32, u32))
def cp_reduce_async_bulk_tensor_4d_min(map, c0, c1, c2, c3, src):
    """``cp.reduce.async.bulk.tensor.4d.min``: the smaller of the box at ``src`` and a rank-4 tensor stays. As
    ``cp_reduce_async_bulk_tensor_1d_min``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1, c2, c3), src, "min")


@intrinsic(void(u64, i32, i32, i32, i32, i32, u32))
def cp_reduce_async_bulk_tensor_5d_min(map, c0, c1, c2, c3, c4, src):
    """``cp.reduce.async.bulk.tensor.5d.min``: the smaller of the box at ``src`` and a rank-5 tensor stays. As
    ``cp_reduce_async_bulk_tensor_1d_min``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1, c2, c3, c4), src, "min")


@intrinsic(void(u64, i32, u32))
def cp_reduce_async_bulk_tensor_1d_max(map, c0, src):
    """``cp.reduce.async.bulk.tensor.1d.max``: the larger of the box at ``src`` and a rank-1 tensor stays. Its
    elements are uint32, int32, uint64, int64, float16 or bfloat16. Corner, overhang and completion are
    those of ``cp_async_bulk_tensor_1d_store``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0,), src, "max")


@intrinsic(void(u64, i32, i32, u32))
def cp_reduce_async_bulk_tensor_2d_max(map, c0, c1, src):
    """``cp.reduce.async.bulk.tensor.2d.max``: the larger of the box at ``src`` and a rank-2 tensor stays. As
    ``cp_reduce_async_bulk_tensor_1d_max``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1), src, "max")


@intrinsic(void(u64, i32, i32, i32, u32))
def cp_reduce_async_bulk_tensor_3d_max(map, c0, c1, c2, src):
    """``cp.reduce.async.bulk.tensor.3d.max``: the larger of the box at ``src`` and a rank-3 tensor stays. As
    ``cp_reduce_async_bulk_tensor_1d_max``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1, c2), src, "max")


@intrinsic(void(u64, i32, i32, i32, i32, u32))
def cp_reduce_async_bulk_tensor_4d_max(map, c0, c1, c2, c3, src):
    """``cp.reduce.async.bulk.tensor.4d.max``: the larger of the box at ``src`` and a rank-4 tensor stays. As
    ``cp_reduce_async_bulk_tensor_1d_max``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1, c2, c3), src, "max")


@intrinsic(void(u64, i32, i32, i32, i32, i32, u32))
def cp_reduce_async_bulk_tensor_5d_max(map, c0, c1, c2, c3, c4, src):
    """``cp.reduce.async.bulk.tensor.5d.max``: the larger of the box at ``src`` and a rank-5 tensor stays. As
    ``cp_reduce_async_bulk_tensor_1d_max``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1, c2, c3, c4), src, "max")


@intrinsic(void(u64, i32, u32))
def cp_reduce_async_bulk_tensor_1d_and(map, c0, src):
    """``cp.reduce.async.bulk.tensor.1d.and``: ANDs the box at ``src`` into a rank-1 tensor. Its elements are
    integers of 32 or 64 bits. Corner, overhang and completion are those of
    ``cp_async_bulk_tensor_1d_store``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0,), src, "and")


@intrinsic(void(u64, i32, i32, u32))
def cp_reduce_async_bulk_tensor_2d_and(map, c0, c1, src):
    """``cp.reduce.async.bulk.tensor.2d.and``: ANDs the box at ``src`` into a rank-2 tensor. As
    ``cp_reduce_async_bulk_tensor_1d_and``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1), src, "and")


@intrinsic(void(u64, i32, i32, i32, u32))
def cp_reduce_async_bulk_tensor_3d_and(map, c0, c1, c2, src):
    """``cp.reduce.async.bulk.tensor.3d.and``: ANDs the box at ``src`` into a rank-3 tensor. As
    ``cp_reduce_async_bulk_tensor_1d_and``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1, c2), src, "and")


@intrinsic(void(u64, i32, i32, i32, i32, u32))
def cp_reduce_async_bulk_tensor_4d_and(map, c0, c1, c2, c3, src):
    """``cp.reduce.async.bulk.tensor.4d.and``: ANDs the box at ``src`` into a rank-4 tensor. As
    ``cp_reduce_async_bulk_tensor_1d_and``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1, c2, c3), src, "and")


@intrinsic(void(u64, i32, i32, i32, i32, i32, u32))
def cp_reduce_async_bulk_tensor_5d_and(map, c0, c1, c2, c3, c4, src):
    """``cp.reduce.async.bulk.tensor.5d.and``: ANDs the box at ``src`` into a rank-5 tensor. As
    ``cp_reduce_async_bulk_tensor_1d_and``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1, c2, c3, c4), src, "and")


@intrinsic(void(u64, i32, u32))
def cp_reduce_async_bulk_tensor_1d_or(map, c0, src):
    """``cp.reduce.async.bulk.tensor.1d.or``: ORs the box at ``src`` into a rank-1 tensor. Its elements are
    integers of 32 or 64 bits. Corner, overhang and completion are those of
    ``cp_async_bulk_tensor_1d_store``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0,), src, "or")


@intrinsic(void(u64, i32, i32, u32))
def cp_reduce_async_bulk_tensor_2d_or(map, c0, c1, src):
    """``cp.reduce.async.bulk.tensor.2d.or``: ORs the box at ``src`` into a rank-2 tensor. As
    ``cp_reduce_async_bulk_tensor_1d_or``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1), src, "or")


@intrinsic(void(u64, i32, i32, i32, u32))
def cp_reduce_async_bulk_tensor_3d_or(map, c0, c1, c2, src):
    """``cp.reduce.async.bulk.tensor.3d.or``: ORs the box at ``src`` into a rank-3 tensor. As
    ``cp_reduce_async_bulk_tensor_1d_or``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1, c2), src, "or")


@intrinsic(void(u64, i32, i32, i32, i32, u32))
def cp_reduce_async_bulk_tensor_4d_or(map, c0, c1, c2, c3, src):
    """``cp.reduce.async.bulk.tensor.4d.or``: ORs the box at ``src`` into a rank-4 tensor. As
    ``cp_reduce_async_bulk_tensor_1d_or``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1, c2, c3), src, "or")


@intrinsic(void(u64, i32, i32, i32, i32, i32, u32))
def cp_reduce_async_bulk_tensor_5d_or(map, c0, c1, c2, c3, c4, src):
    """``cp.reduce.async.bulk.tensor.5d.or``: ORs the box at ``src`` into a rank-5 tensor. As
    ``cp_reduce_async_bulk_tensor_1d_or``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1, c2, c3, c4), src, "or")


@intrinsic(void(u64, i32, u32))
def cp_reduce_async_bulk_tensor_1d_xor(map, c0, src):
    """``cp.reduce.async.bulk.tensor.1d.xor``: XORs the box at ``src`` into a rank-1 tensor. Its elements are
    integers of 32 or 64 bits. Corner, overhang and completion are those of
    ``cp_async_bulk_tensor_1d_store``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0,), src, "xor")


@intrinsic(void(u64, i32, i32, u32))
def cp_reduce_async_bulk_tensor_2d_xor(map, c0, c1, src):
    """``cp.reduce.async.bulk.tensor.2d.xor``: XORs the box at ``src`` into a rank-2 tensor. As
    ``cp_reduce_async_bulk_tensor_1d_xor``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1), src, "xor")


@intrinsic(void(u64, i32, i32, i32, u32))
def cp_reduce_async_bulk_tensor_3d_xor(map, c0, c1, c2, src):
    """``cp.reduce.async.bulk.tensor.3d.xor``: XORs the box at ``src`` into a rank-3 tensor. As
    ``cp_reduce_async_bulk_tensor_1d_xor``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1, c2), src, "xor")


@intrinsic(void(u64, i32, i32, i32, i32, u32))
def cp_reduce_async_bulk_tensor_4d_xor(map, c0, c1, c2, c3, src):
    """``cp.reduce.async.bulk.tensor.4d.xor``: XORs the box at ``src`` into a rank-4 tensor. As
    ``cp_reduce_async_bulk_tensor_1d_xor``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1, c2, c3), src, "xor")


@intrinsic(void(u64, i32, i32, i32, i32, i32, u32))
def cp_reduce_async_bulk_tensor_5d_xor(map, c0, c1, c2, c3, c4, src):
    """``cp.reduce.async.bulk.tensor.5d.xor``: XORs the box at ``src`` into a rank-5 tensor. As
    ``cp_reduce_async_bulk_tensor_1d_xor``. PTX ISA 9.7.9.25.5.3."""
    cpu().tensor_store(map, (c0, c1, c2, c3, c4), src, "xor")

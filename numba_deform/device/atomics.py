"""Atomic additions to global memory: of floats, one word or several, and of a 64-bit integer; additions and
extremes in shared memory (PTX ISA 9.7.13.5, 9.7.13.6). Those of 32-bit integers in global memory, which also
order memory, stand in ``memory.py``.

All are relaxed, of gpu scope, those in shared memory of scope cta: they order nothing by themselves, as
``memory.atom_add_gpu_global_u32``. ``red`` returns nothing, so nothing waits for it. Addresses in shared memory
have 32 bits, and are multiples of 4. The vector forms need an address that is a multiple of all they touch, 8
or 16 bytes, and are atomic for each number by itself, not as a whole. ``f16x2`` and ``bf16x2`` are two numbers
in a word, the first in memory in the lower half; each is added and rounded to nearest even, subnormals stay.
``f32`` takes subnormals, and leaves them, as zeros; in shared memory they stay.
"""

from .ptx import cpu, f32, f32x2, f32x4, i32, intrinsic, u32, u32x2, u32x4, u64, void


@intrinsic(void(u64, u64))
def red_add_gpu_global_u64(address, x):
    """``red.relaxed.gpu.global.add.u64``: adds a 64-bit integer, modulo 2^64: signed ones too. In
    whatever order integers are added, the sum is the same. PTX ISA 9.7.13.6."""
    cpu().atomic_add_u64(address, x)


@intrinsic(void(u64, f32))
def red_add_gpu_global_f32(address, x):
    """``red.relaxed.gpu.global.add.f32``: adds a float. PTX ISA 9.7.13.6."""
    cpu().atomic_add(address, "f32", (x,))


@intrinsic(void(u64, f32, f32))
def red_add_gpu_global_v2_f32(address, x, y):
    """``red.relaxed.gpu.global.add.v2.f32``: adds two floats, 8 bytes. PTX ISA 9.7.13.6."""
    cpu().atomic_add(address, "f32", (x, y))


@intrinsic(void(u64, f32, f32, f32, f32))
def red_add_gpu_global_v4_f32(address, x, y, z, w):
    """``red.relaxed.gpu.global.add.v4.f32``: adds four floats, 16 bytes. PTX ISA 9.7.13.6."""
    cpu().atomic_add(address, "f32", (x, y, z, w))


@intrinsic(void(u64, u32))
def red_add_gpu_global_f16x2(address, x):
    """``red.relaxed.gpu.global.add.noftz.f16x2``: adds two fp16. PTX ISA 9.7.13.6."""
    cpu().atomic_add(address, "f16", (x,))


@intrinsic(void(u64, u32, u32))
def red_add_gpu_global_v2_f16x2(address, x, y):
    """``red.relaxed.gpu.global.add.noftz.v2.f16x2``: adds four fp16, 8 bytes. PTX ISA 9.7.13.6."""
    cpu().atomic_add(address, "f16", (x, y))


@intrinsic(void(u64, u32, u32, u32, u32))
def red_add_gpu_global_v4_f16x2(address, x, y, z, w):
    """``red.relaxed.gpu.global.add.noftz.v4.f16x2``: adds eight fp16, 16 bytes. PTX ISA 9.7.13.6."""
    cpu().atomic_add(address, "f16", (x, y, z, w))


@intrinsic(void(u64, u32))
def red_add_gpu_global_bf16x2(address, x):
    """``red.relaxed.gpu.global.add.noftz.bf16x2``: adds two bf16. PTX ISA 9.7.13.6."""
    cpu().atomic_add(address, "bf16", (x,))


@intrinsic(void(u64, u32, u32))
def red_add_gpu_global_v2_bf16x2(address, x, y):
    """``red.relaxed.gpu.global.add.noftz.v2.bf16x2``: adds four bf16, 8 bytes. PTX ISA 9.7.13.6."""
    cpu().atomic_add(address, "bf16", (x, y))


@intrinsic(void(u64, u32, u32, u32, u32))
def red_add_gpu_global_v4_bf16x2(address, x, y, z, w):
    """``red.relaxed.gpu.global.add.noftz.v4.bf16x2``: adds eight bf16, 16 bytes. PTX ISA 9.7.13.6."""
    cpu().atomic_add(address, "bf16", (x, y, z, w))


@intrinsic(f32(u64, f32))
def atom_add_gpu_global_f32(address, x):
    """``atom.relaxed.gpu.global.add.f32``: adds a float; returns what was there. PTX ISA 9.7.13.5."""
    return cpu().atomic_add(address, "f32", (x,))[0]


@intrinsic(f32x2(u64, f32, f32))
def atom_add_gpu_global_v2_f32(address, x, y):
    """``atom.relaxed.gpu.global.add.v2.f32``: adds two floats, 8 bytes; returns what was there.
    PTX ISA 9.7.13.5."""
    return cpu().atomic_add(address, "f32", (x, y))


@intrinsic(f32x4(u64, f32, f32, f32, f32))
def atom_add_gpu_global_v4_f32(address, x, y, z, w):
    """``atom.relaxed.gpu.global.add.v4.f32``: adds four floats, 16 bytes; returns what was there.
    PTX ISA 9.7.13.5."""
    return cpu().atomic_add(address, "f32", (x, y, z, w))


@intrinsic(u32(u64, u32))
def atom_add_gpu_global_f16x2(address, x):
    """``atom.relaxed.gpu.global.add.noftz.f16x2``: adds two fp16; returns what was there.
    PTX ISA 9.7.13.5."""
    return cpu().atomic_add(address, "f16", (x,))[0]


@intrinsic(u32x2(u64, u32, u32))
def atom_add_gpu_global_v2_f16x2(address, x, y):
    """``atom.relaxed.gpu.global.add.noftz.v2.f16x2``: adds four fp16, 8 bytes; returns what was there.
    PTX ISA 9.7.13.5."""
    return cpu().atomic_add(address, "f16", (x, y))


@intrinsic(u32x4(u64, u32, u32, u32, u32))
def atom_add_gpu_global_v4_f16x2(address, x, y, z, w):
    """``atom.relaxed.gpu.global.add.noftz.v4.f16x2``: adds eight fp16, 16 bytes; returns what was there.
    PTX ISA 9.7.13.5."""
    return cpu().atomic_add(address, "f16", (x, y, z, w))


@intrinsic(u32(u64, u32))
def atom_add_gpu_global_bf16x2(address, x):
    """``atom.relaxed.gpu.global.add.noftz.bf16x2``: adds two bf16; returns what was there.
    PTX ISA 9.7.13.5."""
    return cpu().atomic_add(address, "bf16", (x,))[0]


@intrinsic(u32x2(u64, u32, u32))
def atom_add_gpu_global_v2_bf16x2(address, x, y):
    """``atom.relaxed.gpu.global.add.noftz.v2.bf16x2``: adds four bf16, 8 bytes; returns what was there.
    PTX ISA 9.7.13.5."""
    return cpu().atomic_add(address, "bf16", (x, y))


@intrinsic(u32x4(u64, u32, u32, u32, u32))
def atom_add_gpu_global_v4_bf16x2(address, x, y, z, w):
    """``atom.relaxed.gpu.global.add.noftz.v4.bf16x2``: adds eight bf16, 16 bytes; returns what was there.
    PTX ISA 9.7.13.5."""
    return cpu().atomic_add(address, "bf16", (x, y, z, w))


@intrinsic(void(u32, u32))
def red_add_cta_shared_u32(address, x):
    """``red.relaxed.cta.shared::cta.add.u32``: adds an integer, modulo 2^32: signed ones too.
    PTX ISA 9.7.13.6."""
    cpu().atomic_word("shared", address, lambda old: old + int(x), wide=False)


@intrinsic(void(u32, u32))
def red_max_cta_shared_u32(address, x):
    """``red.relaxed.cta.shared::cta.max.u32``: keeps the larger of two integers without sign.
    PTX ISA 9.7.13.6."""
    cpu().atomic_word("shared", address, lambda old: max(old, int(x)), wide=False)


@intrinsic(void(u32, u32))
def red_min_cta_shared_u32(address, x):
    """``red.relaxed.cta.shared::cta.min.u32``: keeps the smaller of two integers without sign.
    PTX ISA 9.7.13.6."""
    cpu().atomic_word("shared", address, lambda old: min(old, int(x)), wide=False)


@intrinsic(void(u32, i32))
def red_max_cta_shared_s32(address, x):
    """``red.relaxed.cta.shared::cta.max.s32``: keeps the larger of two signed integers. Floats
    from 0 on are ordered as their bits are. PTX ISA 9.7.13.6."""
    cpu().atomic_word("shared", address, lambda old: max(_signed(old), int(x)), wide=False)


@intrinsic(void(u32, i32))
def red_min_cta_shared_s32(address, x):
    """``red.relaxed.cta.shared::cta.min.s32``: keeps the smaller of two signed integers.
    PTX ISA 9.7.13.6."""
    cpu().atomic_word("shared", address, lambda old: min(_signed(old), int(x)), wide=False)


@intrinsic(void(u32, f32))
def red_add_cta_shared_f32(address, x):
    """``red.relaxed.cta.shared::cta.add.f32``: adds a float; subnormals stay. In which order floats are
    added, and so the last bits, is open. PTX ISA 9.7.13.6."""
    cpu().atomic_add(address, "f32", (x,), space="shared")


def _signed(word):
    return word - (word >> 31 << 32)

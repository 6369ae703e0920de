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

from collections.abc import Callable
from typing import Any

from numba.core.types import UniTuple

from .ptx import cpu, f32, i32, intrinsic, tabled, u32, u64, void


@intrinsic(void(u64, u64))
def red_add_gpu_global_u64(address, x):
    """``red.relaxed.gpu.global.add.u64``: adds a 64-bit integer, modulo 2^64: signed ones too. In
    whatever order integers are added, the sum is the same. PTX ISA 9.7.13.6."""
    cpu().atomic_add_u64(address, x)


_COUNTS, _KINDS = {2: "two", 4: "four", 8: "eight"}, {"f32": "floats", "f16x2": "fp16", "bf16x2": "bf16"}
_1, _2, _4 = Callable[[Any, Any], Any], Callable[[Any, Any, Any], Any], Callable[[Any, Any, Any, Any, Any], Any]


def _adds(operation, kind) -> tuple[_1, _2, _4]:
    """``{operation}_add_gpu_global_{kind}``, and its forms for two and for four words."""
    each, packed, returns = kind.removesuffix("x2"), kind.endswith("x2"), operation == "atom"
    word = u32 if packed else f32

    def act(thread, address, *words):
        before = thread.atomic_add(address, each, words)
        return before[0] if returns and len(words) == 1 else before

    def of(count):
        vector, numbers = f"v{count}" * (count > 1), count * (2 if packed else 1)
        name = "_".join(filter(None, (operation, "add_gpu_global", vector, kind)))
        dots = ".".join(filter(None, (operation, "relaxed.gpu.global.add", "noftz" * packed, vector, kind)))
        text = f"``{dots}``: adds {f'{_COUNTS[numbers]} {_KINDS[kind]}' if numbers > 1 else 'a float'}"
        text += f", {4 * count} bytes" * (count > 1) + "; returns what was there" * returns
        result = void if not returns else UniTuple(word, count) if count > 1 else word
        return tabled(__name__, name, ("address", "x", "y", "z", "w")[: count + 1], (u64, *[word] * count),
                      f"{text}. PTX ISA 9.7.13.{5 if returns else 6}.", act, result)  # fmt: skip

    return of(1), of(2), of(4)


red_add_gpu_global_f32, red_add_gpu_global_v2_f32, red_add_gpu_global_v4_f32 = _adds("red", "f32")
red_add_gpu_global_f16x2, red_add_gpu_global_v2_f16x2, red_add_gpu_global_v4_f16x2 = _adds("red", "f16x2")
red_add_gpu_global_bf16x2, red_add_gpu_global_v2_bf16x2, red_add_gpu_global_v4_bf16x2 = _adds("red", "bf16x2")
atom_add_gpu_global_f32, atom_add_gpu_global_v2_f32, atom_add_gpu_global_v4_f32 = _adds("atom", "f32")
atom_add_gpu_global_f16x2, atom_add_gpu_global_v2_f16x2, atom_add_gpu_global_v4_f16x2 = _adds("atom", "f16x2")
(
    atom_add_gpu_global_bf16x2, atom_add_gpu_global_v2_bf16x2, atom_add_gpu_global_v4_bf16x2,
) = _adds("atom", "bf16x2")  # fmt: skip


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

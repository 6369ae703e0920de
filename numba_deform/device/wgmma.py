"""Tensor cores by warpgroups: products of matrices in shared memory, asynchronous (PTX ISA 9.7.15).

A *warpgroup* is four warps, the first of which has a number that is a multiple of 4. All its 128 threads
execute each of these instructions together. A product adds A (64 x 16) times B (16 x N) to D (64 x N). D
stays in registers: ``sums`` is a whole local array of N / 2 float32 (``cuda.local.array``), which the kernel
indexes by constants, so that the compiler keeps it there. With ``w = warp % 4``, ``g = lane // 4`` and ``t =
lane % 4``, a thread holds

    D, 64xN, f32       sums[4j + 2h + e]: row 16w + g + 8h, column 8j + 2t + e     (h, e = 0, 1)
    A, 64x16, 16 bits  rows 16w to 16w + 15, as the A of mma_m16n8k16 (``matrix.py``), if not in memory

The order of a pipeline's step, by all threads of the warpgroup:

    wait for what the products read       TMA's bytes by their mbarrier; ordinary writes by fence_proxy_async
                                          in their threads, and a barrier
    wgmma_fence()                         before the first product, and again where other instructions have
                                          read or written sums since (or written A, where it is in registers)
    wgmma_m64n128k16_f16(sums, a, b, ..)  any number of them; those with the same sums follow each other
    wgmma_commit_group()                  the products since the last one form one group
    wgmma_wait_group_n128(sums, pending)  until at most so many groups are open

Until its group has been waited for, a product owns its sums: reading or writing them is undefined. Writing to
the memory that it reads is a race until then; afterwards a TMA load into it needs no fence.

A *descriptor* says how A, or B, lies in shared memory: 64 or N *rows* of 16 elements along k. Memory holds
lines of 16 bytes, eight elements, which are neighbours along k in a *K-major* matrix, and along the rows in
an *MN-major* one (``trans_a``, ``trans_b`` = 1). Under a swizzle of S = 128, 64 or 32 bytes, S / 16 lines
stand side by side, and bits of their addresses are changed as TMA changes them with the same swizzle: 128B:
bits 4 to 6 ^= bits 7 to 9; 64B: 4 and 5 ^= 7 and 8; 32B: 4 ^= 7. Before that, element k of row r lies at
``address`` plus

    K-major, swizzled    r // 8 * stride + r % 8 * S + 2k                    leading is not used
    K-major, none        r // 8 * stride + k // 8 * leading + r % 8 * 16 + k % 8 * 2
    MN-major, swizzled   k // 8 * stride + r // (S / 2) * leading + k % 8 * S + r % (S / 2) * 2
    MN-major, none       r // 8 * stride + k // 8 * leading + k % 8 * 16 + r % 8 * 2

A box of 64 fp16 along k that TMA brought in with 128B swizzle is K-major with stride 1024; the next 16 of k
are 32 bytes on, ``descriptor + 2``. A box of 64 along the rows is MN-major: stride 1024 as well, ``leading``
is the size of a box, where the next 64 rows begin, and the next 16 of k are 2048 bytes on.
"""

from collections.abc import Callable
from typing import Any

from .ptx import cpu, f32_registers, intrinsic, tabled, u32, u64, void

SWIZZLE_NONE, SWIZZLE_128B, SWIZZLE_64B, SWIZZLE_32B = range(4)  # of a descriptor

# ``pure`` would mean free to be moved into a branch, where not all lanes come: only the descriptor is.


@intrinsic(void())
def wgmma_fence():
    """``wgmma.fence.sync.aligned``: what this thread's other instructions have done with accumulators, and
    with A in registers, comes before the products after it. Needed before the first product. It orders
    registers only; memory takes ``fence_proxy_async``. PTX ISA 9.7.15.7.1."""
    cpu().warpgroup_fence()


@intrinsic(void())
def wgmma_commit_group():
    """``wgmma.commit_group.sync.aligned``: the products since the last one form a group, which may be empty.
    PTX ISA 9.7.15.7.2."""
    cpu().commit_products()


@intrinsic(void(u32))
def wgmma_wait_group(pending):
    """``wgmma.wait_group.sync.aligned``: wait until at most ``pending`` groups are open. Then the older
    ones have read shared memory and written their sums. Above 3 acts as 3. To the compiler it has nothing
    to do with sums: arithmetic on them may be moved before it, and ptxas then waits after every product. So
    before sums are read take ``wgmma_wait_group_n64`` and its like. PTX ISA 9.7.15.7.3."""
    cpu().wait_products(pending)


@intrinsic(void(f32_registers, u32))
def wgmma_wait_group_n64(sums, pending):
    """``wgmma.wait_group.sync.aligned``: as ``wgmma_wait_group``, and whatever reads ``sums``, the 32
    accumulators of an m64n64 product, stays behind it. PTX ISA 9.7.15.7.3."""
    cpu().wait_products(pending, sums, 64)


@intrinsic(void(f32_registers, u32))
def wgmma_wait_group_n128(sums, pending):
    """``wgmma.wait_group.sync.aligned``: as ``wgmma_wait_group_n64``, for the 64 accumulators of an m64n128
    product. PTX ISA 9.7.15.7.3."""
    cpu().wait_products(pending, sums, 128)


@intrinsic(void(f32_registers, u32))
def wgmma_wait_group_n256(sums, pending):
    """``wgmma.wait_group.sync.aligned``: as ``wgmma_wait_group_n64``, for the 128 accumulators of an
    m64n256 product. PTX ISA 9.7.15.7.3."""
    cpu().wait_products(pending, sums, 256)


@intrinsic(u64(u32, u32, u32, u32, u32), pure=True)
def wgmma_descriptor(address, leading, stride, base, swizzle):
    """The 64-bit descriptor of a matrix in shared memory that begins at ``address``; ``leading`` and
    ``stride`` are the bytes between its parts (see the head of this page for the layouts), all three
    multiples of 16 below 2^18. ``swizzle`` is SWIZZLE_NONE, _128B, _64B or _32B (0 to 3). ``base`` (0 to 7)
    is 0 where the swizzle's pattern begins on its own multiple (1024, 512 or 256 bytes), as TMA's always
    does; else ``pattern >> 7 & 7`` of the address where it begins. Adding n to a descriptor moves its
    matrix by 16 n bytes. PTX ISA 9.7.15.5.1.2.2."""
    return cpu().matrix_descriptor(address, leading, stride, base, swizzle)


_6 = Callable[[Any, Any, Any, Any, Any, Any], None]
_8 = Callable[[Any, Any, Any, Any, Any, Any, Any, Any], None]
_FIRST = """sums = A B + sums, or A B where ``scale_d``
    is 0, which needs no zeros in ``sums``. ``a``, ``b``: descriptors of 64 x 16 and N x 16 fp16 in shared
    memory, the same in all threads of the warpgroup. ``trans_a``, ``trans_b``: 1 for an MN-major matrix,
    else 0; constants, or the product is four instructions. Asynchronous: see the head of this page for
    fences and waits. In which order the products of fp16 are summed up, and how that is rounded, is
    unspecified; the CPU engine rounds their sum once."""
_FIRST_RA = """as ``wgmma_m64n64k16_f16``, with A in
    registers, four words a thread. They belong to the product as sums do. That a wgmma_fence stands between
    the instructions that make them and the product, the CPU engine cannot see."""


def _product(columns, kind, held=False) -> Any:
    """``wgmma_m64n{columns}k16_{kind}``, and with ``held`` that with A in registers."""
    ending, a = "_ra" * held, ("a0", "a1", "a2", "a3") if held else ("a",)

    def act(thread, sums, *operands):
        a, (b, scale_d, *trans) = (operands[:4], operands[4:]) if held else (operands[0], operands[1:])
        thread.multiply_in_warpgroup(kind, columns, sums, a, b, scale_d, *[0] * held, *trans)

    like, what = f"as ``wgmma_m64n{columns if kind == 'bf16' else 64}k16_f16{ending}``", f", for {columns}"
    what = ", for bf16" if kind == "bf16" else f"{what} columns and {columns // 2} accumulators"
    text = f"{like}{what}." if kind == "bf16" or columns > 64 else _FIRST_RA if held else _FIRST
    section = "9.7.15.5.2; the fragment 9.7.15.5.1.1" if held else "9.7.15.5.2"
    names = "sums", *a, "b", "scale_d", *["trans_a"] * (not held), "trans_b"
    kinds = f32_registers, *[u32 if held else u64] * len(a), u64, *[u32] * (len(names) - len(a) - 2)
    name, sizes = f"wgmma_m64n{columns}k16_{kind}{ending}", f"m64n{columns}k16.f32.{kind}.{kind}"
    text = f"``wgmma.mma_async.sync.aligned.{sizes}``: {text} PTX ISA {section}."
    return tabled(__name__, name, names, kinds, text, act)


wgmma_m64n64k16_f16: _6 = _product(64, "f16")
wgmma_m64n64k16_bf16: _6 = _product(64, "bf16")
wgmma_m64n128k16_f16: _6 = _product(128, "f16")
wgmma_m64n128k16_bf16: _6 = _product(128, "bf16")
wgmma_m64n256k16_f16: _6 = _product(256, "f16")
wgmma_m64n256k16_bf16: _6 = _product(256, "bf16")
wgmma_m64n64k16_f16_ra: _8 = _product(64, "f16", held=True)
wgmma_m64n64k16_bf16_ra: _8 = _product(64, "bf16", held=True)
wgmma_m64n128k16_f16_ra: _8 = _product(128, "f16", held=True)
wgmma_m64n128k16_bf16_ra: _8 = _product(128, "bf16", held=True)

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

from .ptx import cpu, f32_registers, intrinsic, u32, u64, void

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


@intrinsic(void(f32_registers, u64, u64, u32, u32, u32))
def wgmma_m64n64k16_f16(sums, a, b, scale_d, trans_a, trans_b):
    """``wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16``: sums = A B + sums, or A B where ``scale_d``
    is 0, which needs no zeros in ``sums``. ``a``, ``b``: descriptors of 64 x 16 and N x 16 fp16 in shared
    memory, the same in all threads of the warpgroup. ``trans_a``, ``trans_b``: 1 for an MN-major matrix,
    else 0; constants, or the product is four instructions. Asynchronous: see the head of this page for
    fences and waits. In which order the products of fp16 are summed up, and how that is rounded, is
    unspecified; the CPU engine rounds their sum once. PTX ISA 9.7.15.5.2."""
    cpu().multiply_in_warpgroup("f16", 64, sums, a, b, scale_d, trans_a, trans_b)


@intrinsic(void(f32_registers, u64, u64, u32, u32, u32))
def wgmma_m64n64k16_bf16(sums, a, b, scale_d, trans_a, trans_b):
    """``wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16``: as ``wgmma_m64n64k16_f16``, for bf16.
    PTX ISA 9.7.15.5.2."""
    cpu().multiply_in_warpgroup("bf16", 64, sums, a, b, scale_d, trans_a, trans_b)


@intrinsic(void(f32_registers, u64, u64, u32, u32, u32))
def wgmma_m64n128k16_f16(sums, a, b, scale_d, trans_a, trans_b):
    """``wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16``: as ``wgmma_m64n64k16_f16``, for 128 columns
    and 64 accumulators. PTX ISA 9.7.15.5.2."""
    cpu().multiply_in_warpgroup("f16", 128, sums, a, b, scale_d, trans_a, trans_b)


@intrinsic(void(f32_registers, u64, u64, u32, u32, u32))
def wgmma_m64n128k16_bf16(sums, a, b, scale_d, trans_a, trans_b):
    """``wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16``: as ``wgmma_m64n128k16_f16``, for bf16.
    PTX ISA 9.7.15.5.2."""
    cpu().multiply_in_warpgroup("bf16", 128, sums, a, b, scale_d, trans_a, trans_b)


@intrinsic(void(f32_registers, u64, u64, u32, u32, u32))
def wgmma_m64n256k16_f16(sums, a, b, scale_d, trans_a, trans_b):
    """``wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16``: as ``wgmma_m64n64k16_f16``, for 256 columns
    and 128 accumulators. PTX ISA 9.7.15.5.2."""
    cpu().multiply_in_warpgroup("f16", 256, sums, a, b, scale_d, trans_a, trans_b)


@intrinsic(void(f32_registers, u64, u64, u32, u32, u32))
def wgmma_m64n256k16_bf16(sums, a, b, scale_d, trans_a, trans_b):
    """``wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16``: as ``wgmma_m64n256k16_f16``, for bf16.
    PTX ISA 9.7.15.5.2."""
    cpu().multiply_in_warpgroup("bf16", 256, sums, a, b, scale_d, trans_a, trans_b)


@intrinsic(void(f32_registers, u32, u32, u32, u32, u64, u32, u32))
def wgmma_m64n64k16_f16_ra(sums, a0, a1, a2, a3, b, scale_d, trans_b):
    """``wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16``: as ``wgmma_m64n64k16_f16``, with A in
    registers, four words a thread. They belong to the product as sums do. That a wgmma_fence stands between
    the instructions that make them and the product, the CPU engine cannot see. PTX ISA 9.7.15.5.2; the
    fragment 9.7.15.5.1.1."""
    cpu().multiply_in_warpgroup("f16", 64, sums, (a0, a1, a2, a3), b, scale_d, 0, trans_b)


@intrinsic(void(f32_registers, u32, u32, u32, u32, u64, u32, u32))
def wgmma_m64n64k16_bf16_ra(sums, a0, a1, a2, a3, b, scale_d, trans_b):
    """``wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16``: as ``wgmma_m64n64k16_f16_ra``, for bf16.
    PTX ISA 9.7.15.5.2; the fragment 9.7.15.5.1.1."""
    cpu().multiply_in_warpgroup("bf16", 64, sums, (a0, a1, a2, a3), b, scale_d, 0, trans_b)


@intrinsic(void(f32_registers, u32, u32, u32, u32, u64, u32, u32))
def wgmma_m64n128k16_f16_ra(sums, a0, a1, a2, a3, b, scale_d, trans_b):
    """``wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16``: as ``wgmma_m64n64k16_f16_ra``, for 128
    columns and 64 accumulators. PTX ISA 9.7.15.5.2; the fragment 9.7.15.5.1.1."""
    cpu().multiply_in_warpgroup("f16", 128, sums, (a0, a1, a2, a3), b, scale_d, 0, trans_b)


@intrinsic(void(f32_registers, u32, u32, u32, u32, u64, u32, u32))
def wgmma_m64n128k16_bf16_ra(sums, a0, a1, a2, a3, b, scale_d, trans_b):
    """``wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16``: as ``wgmma_m64n128k16_f16_ra``, for bf16.
    PTX ISA 9.7.15.5.2; the fragment 9.7.15.5.1.1."""
    cpu().multiply_in_warpgroup("bf16", 128, sums, (a0, a1, a2, a3), b, scale_d, 0, trans_b)

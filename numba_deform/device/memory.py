"""Loads, stores and cp.async (PTX ISA 9.7.9, 9.7.9.25.3). Addresses are 64-bit global or 32-bit shared.

Vector accesses move 8 or 16 bytes as 32-bit words and need an address aligned to their size.
"""

from numba import cuda, uint32, uint64

from .limits import STATIC_LIMIT
from .ptx import (
    address_intrinsic,
    array_intrinsic,
    cpu,
    dynamic_intrinsic,
    intrinsic,
    u32,
    u32x2,
    u32x4,
    u64,
    void,
)


@address_intrinsic("shared", u32)
def shared_address(array):
    """``cvta.to.shared``: the 32-bit shared address of a shared array's first element. PTX ISA 9.7.9.20."""
    return cpu().address_of("shared", array)


@address_intrinsic("global", u64)
def global_address(array):
    """``cvta.to.global``: the 64-bit global address of a global array's first element. PTX ISA 9.7.9.20."""
    return cpu().address_of("global", array)


@dynamic_intrinsic
def dynamic_start(alignment):
    """The first 32-bit address in dynamic shared memory that is a multiple of ``alignment``, a power of two."""
    return cpu().dynamic_start(alignment)


@array_intrinsic
def shared_array(address, shape, dtype):
    """The array of that shape, a tuple or one number, and type whose first element lies at a 32-bit shared
    address."""
    return cpu().shared_array(address, shape, dtype)


DYNAMIC_SLACK = 128  # bytes that align_up may skip at the start of dynamic shared memory


def static_bytes(needed):
    """The size to give ``cuda.shared.array`` for ``needed`` bytes: 0, the dynamic part, past 48 KB."""
    return needed if needed <= STATIC_LIMIT else 0


def dynamic_bytes(needed):
    """The dynamic shared memory to launch with for ``needed`` bytes, room to align included."""
    return 0 if needed <= STATIC_LIMIT else needed + DYNAMIC_SLACK


@cuda.jit(device=True, inline="always")
def align_up(address, alignment):
    """The next multiple of ``alignment`` (a power of two). Dynamic shared memory starts behind the
    static arrays, on whatever 16-byte boundary that is, also when ``alignment=128`` is asked for."""
    return uint32(uint32(address + alignment - uint32(1)) & ~uint32(alignment - uint32(1)))


@cuda.jit(device=True, inline="always")
def shared_at(base, index, bytes):
    """The shared address of element ``index`` of an array at ``base`` whose elements have ``bytes`` bytes."""
    return uint32(uint32(base) + uint32(index) * uint32(bytes))


@cuda.jit(device=True, inline="always")
def global_at(base, index, bytes):
    """The global address of element ``index`` of an array at ``base`` whose elements have ``bytes`` bytes."""
    return uint64(uint64(base) + uint64(index) * uint64(bytes))


@intrinsic(u32(u64))
def ld_global_b32(address):
    """``ld.global.b32``: 4 bytes. PTX ISA 9.7.9.8."""
    return cpu().load("global", address, 4, 1)


@intrinsic(u32x4(u64))
def ld_global_v4(address):
    """``ld.global.v4.b32``: 16 bytes. PTX ISA 9.7.9.8."""
    return cpu().load("global", address, 16, 4)


@intrinsic(u32(u64), pure=True)
def ld_global_nc_b32(address):
    """``ld.global.nc.b32``: 4 bytes through the read-only path: nobody may write it
    while the kernel runs. PTX ISA 9.7.9.9."""
    return cpu().load("global", address, 4, 1, read_only=True)


@intrinsic(u32(u64), pure=True)
def ld_global_nc_u16(address):
    """``ld.global.nc.b16``: 2 bytes, zero-extended, through the read-only path. PTX ISA 9.7.9.9."""
    return cpu().load("global", address, 2, 1, read_only=True)


@intrinsic(u32x2(u64), pure=True)
def ld_global_nc_v2(address):
    """``ld.global.nc.v2.b32``: 8 bytes through the read-only path: nobody may write it
    while the kernel runs. PTX ISA 9.7.9.9."""
    return cpu().load("global", address, 8, 2, read_only=True)


@intrinsic(u32x4(u64), pure=True)
def ld_global_nc_v4(address):
    """``ld.global.nc.v4.b32``: 16 bytes through the read-only path: nobody may write it
    while the kernel runs. PTX ISA 9.7.9.9."""
    return cpu().load("global", address, 16, 4, read_only=True)


@intrinsic(u32x4(u64), pure=True)
def ld_global_nc_L1_evict_last_v4(address):
    """``ld.global.nc.L1::evict_last.v4.b32``: 16 bytes, kept in L1 as long as
    possible: for values that neighbours read again. PTX ISA 9.7.9.9."""
    return cpu().load("global", address, 16, 4, read_only=True)


@intrinsic(u32x4(u64), pure=True)
def ld_global_nc_L1_no_allocate_v4(address):
    """``ld.global.nc.L1::no_allocate.v4.b32``: 16 bytes that are read once and
    should not push others out of L1. PTX ISA 9.7.9.9."""
    return cpu().load("global", address, 16, 4, read_only=True)


@intrinsic(void(u64, u32))
def st_global_b32(address, x):
    """``st.global.b32``: 4 bytes. PTX ISA 9.7.9.11."""
    cpu().store("global", address, (x,))


@intrinsic(void(u64, u32))
def st_global_b16(address, x):
    """``st.global.b16``: 2 bytes, the lower half of ``x``. PTX ISA 9.7.9.11."""
    cpu().store("global", address, (x,), narrow=2)


@intrinsic(void(u64, u32, u32))
def st_global_v2(address, x, y):
    """``st.global.v2.b32``: 8 bytes. PTX ISA 9.7.9.11."""
    cpu().store("global", address, (x, y))


@intrinsic(void(u64, u32, u32, u32, u32))
def st_global_v4(address, x, y, z, w):
    """``st.global.v4.b32``: 16 bytes. PTX ISA 9.7.9.11."""
    cpu().store("global", address, (x, y, z, w))


@intrinsic(void(u64, u32, u32, u32, u32))
def st_global_L1_no_allocate_v4(address, x, y, z, w):
    """``st.global.L1::no_allocate.v4.b32``: 16 bytes past L1. PTX ISA 9.7.9.11."""
    cpu().store("global", address, (x, y, z, w))


@intrinsic(u32(u32))
def ld_shared_b32(address):
    """``ld.shared.b32``: 4 bytes. PTX ISA 9.7.9.8."""
    return cpu().load("shared", address, 4, 1)


@intrinsic(u32x2(u32))
def ld_shared_v2(address):
    """``ld.shared.v2.b32``: 8 bytes. PTX ISA 9.7.9.8."""
    return cpu().load("shared", address, 8, 2)


@intrinsic(u32x4(u32))
def ld_shared_v4(address):
    """``ld.shared.v4.b32``: 16 bytes. PTX ISA 9.7.9.8."""
    return cpu().load("shared", address, 16, 4)


@intrinsic(void(u32, u32))
def st_shared_b32(address, x):
    """``st.shared.b32``: 4 bytes. PTX ISA 9.7.9.11."""
    cpu().store("shared", address, (x,))


@intrinsic(void(u32, u32, u32))
def st_shared_v2(address, x, y):
    """``st.shared.v2.b32``: 8 bytes. PTX ISA 9.7.9.11."""
    cpu().store("shared", address, (x, y))


@intrinsic(void(u32, u32, u32, u32, u32))
def st_shared_v4(address, x, y, z, w):
    """``st.shared.v4.b32``: 16 bytes. PTX ISA 9.7.9.11."""
    cpu().store("shared", address, (x, y, z, w))


@intrinsic(u32(u32), polls="flag")
def ld_acquire_cta_shared_b32(address):
    """``ld.acquire.cta.shared.b32``: read a flag; if it holds what ``st_release_cta_shared_b32`` wrote,
    everything its writer did before is visible. PTX ISA 9.7.9.8."""
    return cpu().load_acquire("shared", address, wide=False)


@intrinsic(void(u32, u32))
def st_release_cta_shared_b32(address, x):
    """``st.release.cta.shared.b32``: set a flag after everything this thread did. PTX ISA 9.7.9.11."""
    cpu().store_release("shared", address, x, wide=False)


@intrinsic(u32(u32, u32))
def atom_exch_release_cta_shared_b32(address, x):
    """``atom.release.cta.shared.exch.b32``: as ``st_release_cta_shared_b32``, but an atomic: returns what
    was there. PTX ISA 9.7.13.5."""
    return cpu().atomic_word("shared", address, lambda old: int(x), reads=False, release=True, wide=False)


@intrinsic(u32(u64))
def ld_acquire_gpu_global_b32(address):
    """``ld.acquire.gpu.global.b32``: as the shared form, among all blocks. PTX ISA 9.7.9.8."""
    return cpu().load_acquire("global", address)


@intrinsic(void(u64, u32))
def st_release_gpu_global_b32(address, x):
    """``st.release.gpu.global.b32``: as the shared form, among all blocks. PTX ISA 9.7.9.11."""
    cpu().store_release("global", address, x)


@intrinsic(void(u64, u32))
def st_relaxed_gpu_global_b32(address, x):
    """``st.relaxed.gpu.global.b32``: set a flag that others read meanwhile. Hands on nothing by itself; with a
    fence before it, it does. PTX ISA 9.7.9.11."""
    cpu().store_release("global", address, x, relaxed=True)


@intrinsic(u32(u64))
def ld_relaxed_gpu_global_b32(address):
    """``ld.relaxed.gpu.global.b32``: read a flag that others write meanwhile. Orders nothing by itself;
    with a fence behind it, it does. PTX ISA 9.7.9.8."""
    return cpu().load_acquire("global", address, relaxed=True)


@intrinsic(u32(u64))
def ld_acquire_cta_global_b32(address):
    """``ld.acquire.cta.global.b32``: as the shared form, among the threads of one block only.
    PTX ISA 9.7.9.8."""
    return cpu().load_acquire("global", address, wide=False)


@intrinsic(void(u64, u32))
def st_release_cta_global_b32(address, x):
    """``st.release.cta.global.b32``: as the shared form, among the threads of one block only.
    PTX ISA 9.7.9.11."""
    cpu().store_release("global", address, x, wide=False)


@intrinsic(u32(u64, u32))
def atom_add_gpu_global_u32(address, x):
    """``atom.relaxed.gpu.global.add.u32``: adds ``x`` (modulo 2^32) and returns what was there.
    Orders nothing by itself; with a fence before and after it, it does. PTX ISA 9.7.13.5."""
    return cpu().atomic_word("global", address, lambda old: old + int(x))


@intrinsic(void(u64, u32))
def red_add_gpu_global_u32(address, x):
    """``red.relaxed.gpu.global.add.u32``: as ``atom_add_gpu_global_u32`` without the old value, so that
    nothing waits for it. PTX ISA 9.7.13.6."""
    cpu().atomic_word("global", address, lambda old: old + int(x))


@intrinsic(u32(u64, u32))
def atom_add_acq_rel_gpu_global_u32(address, x):
    """``atom.acq_rel.gpu.global.add.u32``: as ``atom_add_gpu_global_u32``, with both fences in it.
    PTX ISA 9.7.13.5."""
    return cpu().atomic_word("global", address, lambda old: old + int(x), acquire=True, release=True)


@intrinsic(void(u64, u32))
def red_add_release_gpu_global_u32(address, x):
    """``red.release.gpu.global.add.u32``: as ``red_add_gpu_global_u32``, with a fence before it.
    PTX ISA 9.7.13.6."""
    cpu().atomic_word("global", address, lambda old: old + int(x), release=True)


@intrinsic(u32(u64, u32))
def atom_add_cta_global_u32(address, x):
    """``atom.relaxed.cta.global.add.u32``: as ``atom_add_gpu_global_u32``, among the threads of one block
    only. PTX ISA 9.7.13.5."""
    return cpu().atomic_word("global", address, lambda old: old + int(x), wide=False)


@intrinsic(u32(u64, u32, u32))
def atom_cas_gpu_global_b32(address, compare, x):
    """``atom.relaxed.gpu.global.cas.b32``: writes ``x`` where ``compare`` stands; returns what was there.
    PTX ISA 9.7.13.5."""
    return cpu().atomic_word("global", address, lambda old: int(x) if old == int(compare) else None)


@intrinsic(u32(u64, u32, u32))
def atom_cas_acquire_gpu_global_b32(address, compare, x):
    """``atom.acquire.gpu.global.cas.b32``: as ``atom_cas_gpu_global_b32``, and takes over what the writer of
    the value that it reads handed on. PTX ISA 9.7.13.5."""
    return cpu().atomic_word(
        "global", address, lambda old: int(x) if old == int(compare) else None, acquire=True
    )  # fmt: skip


@intrinsic(u32(u64, u32, u32))
def atom_cas_release_gpu_global_b32(address, compare, x):
    """``atom.release.gpu.global.cas.b32``: as ``atom_cas_gpu_global_b32``, and hands on what this thread did
    before. PTX ISA 9.7.13.5."""
    return cpu().atomic_word(
        "global", address, lambda old: int(x) if old == int(compare) else None, release=True
    )  # fmt: skip


@intrinsic(u32(u64, u32, u32))
def atom_cas_acq_rel_gpu_global_b32(address, compare, x):
    """``atom.acq_rel.gpu.global.cas.b32``: as ``atom_cas_gpu_global_b32``, with both: it takes over and hands
    on. PTX ISA 9.7.13.5."""
    return cpu().atomic_word(
        "global", address, lambda old: int(x) if old == int(compare) else None, acquire=True, release=True
    )  # fmt: skip


@intrinsic(u32(u64, u32))
def atom_exch_gpu_global_b32(address, x):
    """``atom.relaxed.gpu.global.exch.b32``: writes ``x``; returns what was there. Orders nothing by itself.
    PTX ISA 9.7.13.5."""
    return cpu().atomic_word("global", address, lambda old: int(x))


@intrinsic(u32(u64, u32))
def atom_exch_acquire_gpu_global_b32(address, x):
    """``atom.acquire.gpu.global.exch.b32``: as ``atom_exch_gpu_global_b32``, and takes over what the writer of
    the value that it reads handed on. PTX ISA 9.7.13.5."""
    return cpu().atomic_word("global", address, lambda old: int(x), acquire=True)


@intrinsic(u32(u64, u32))
def atom_exch_release_gpu_global_b32(address, x):
    """``atom.release.gpu.global.exch.b32``: as ``atom_exch_gpu_global_b32``, and hands on what this thread did
    before. PTX ISA 9.7.13.5."""
    return cpu().atomic_word("global", address, lambda old: int(x), release=True)


@intrinsic(u32(u64, u32))
def atom_exch_acq_rel_gpu_global_b32(address, x):
    """``atom.acq_rel.gpu.global.exch.b32``: as ``atom_exch_gpu_global_b32``, with both: it takes over and hands
    on. PTX ISA 9.7.13.5."""
    return cpu().atomic_word("global", address, lambda old: int(x), acquire=True, release=True)


@intrinsic(void(u32, u64, u32))
def cp_async_cg_16(dst, src, bytes):
    """``cp.async.cg.shared.global``: 16 bytes to ``dst``; ``bytes`` (0 .. 16) come from ``src``, the
    rest are zeros, so 0 fills without reading. Both addresses are 16-byte aligned. Complete after
    ``cp_async_wait_group``, for this thread only. PTX ISA 9.7.9.25.3.1."""
    cpu().cp_async(dst, src, bytes)


@intrinsic(void())
def cp_async_commit_group():
    """``cp.async.commit_group``: this thread's copies so far form one group. PTX ISA 9.7.9.25.3.2."""
    cpu().commit_group("cp.async")


@intrinsic(void(u32))
def cp_async_wait_group(pending):
    """``cp.async.wait_group``: wait until at most ``pending`` groups of this thread are open.
    What they copied is then visible to this thread; others need a barrier. Above 7 acts as 7.
    PTX ISA 9.7.9.25.3.3."""
    cpu().wait_group("cp.async", pending)

"""Tensor maps that a kernel makes (PTX ISA 9.7.9.26, 9.7.13.16). Needs the target sm_90a.

The way of grouped products: a warp copies 128 bytes of a map that the host has encoded into shared memory, one
thread replaces fields there, the warp meets (``cuda.syncwarp``) and publishes the map in global memory by
``tensormap_cp_fenceproxy``. Who uses it there acquires it first, by ``fence_proxy_tensormap_acquire_gpu`` in
each block and after each change; other warps and blocks need to know of the publication besides, by a barrier
or a flag. Nobody changes the map while copies that use it are under way.

``map`` is the 32-bit shared address of 128 bytes, a multiple of 64; the map is one for tiles. A replacement
reads and writes all of them as ordinary accesses do. ``ord`` is the dimension, innermost first. What the driver
asks of a map (``engines.tensormap.RULES``) holds for the fields when it is used, and nobody checks it on a GPU.
"""

from .ptx import cpu, intrinsic, u32, u64, void


@intrinsic(void(u32, u64))
def tensormap_replace_global_address(map, x):
    """``tensormap.replace.tile.global_address``: the tensor begins at the global address ``x``, a multiple
    of 16. PTX ISA 9.7.9.26."""
    cpu().replace_map(map, "address", x)


@intrinsic(void(u32, u32))
def tensormap_replace_rank(map, x):
    """``tensormap.replace.tile.rank``: the tensor has ``x + 1`` dimensions. PTX ISA 9.7.9.26."""
    cpu().replace_map(map, "rank", x + 1)


@intrinsic(void(u32, u32, u32))
def tensormap_replace_box_dim(map, ord, x):
    """``tensormap.replace.tile.box_dim``: the box has ``x`` elements, 1 to 256, along dimension ``ord``.
    PTX ISA 9.7.9.26."""
    cpu().replace_map(map, "box", x, ord)


@intrinsic(void(u32, u32, u32))
def tensormap_replace_global_dim(map, ord, x):
    """``tensormap.replace.tile.global_dim``: the tensor has ``x`` elements along dimension ``ord``.
    PTX ISA 9.7.9.26."""
    cpu().replace_map(map, "dims", x, ord)


@intrinsic(void(u32, u32, u64))
def tensormap_replace_global_stride(map, ord, x):
    """``tensormap.replace.tile.global_stride``: neighbours along dimension ``ord + 1`` lie ``x`` bytes apart, a
    multiple of 16. ``ord`` is 0 to 3. PTX ISA 9.7.9.26."""
    cpu().replace_map(map, "strides", x, ord)


@intrinsic(void(u32, u32, u32))
def tensormap_replace_element_stride(map, ord, x):
    """``tensormap.replace.tile.element_stride``: of the box every ``x``-th element is copied, 1 to 8, along
    dimension ``ord``. PTX ISA 9.7.9.26."""
    cpu().replace_map(map, "element_strides", x, ord)


@intrinsic(void(u32, u32))
def tensormap_replace_elemtype(map, x):
    """``tensormap.replace.tile.elemtype``: the elements are 0 u8, 1 u16, 2 u32, 3 s32, 4 u64, 5 s64, 6 f16,
    7 f32, 8 f32.ftz, 9 f64, 10 bf16, 11 tf32, 12 tf32.ftz. PTX ISA 9.7.9.26."""
    cpu().replace_map(map, "dtype", x)


@intrinsic(void(u32, u32))
def tensormap_replace_interleave_layout(map, x):
    """``tensormap.replace.tile.interleave_layout``: 0 none, 1 16 bytes, 2 32 bytes. PTX ISA 9.7.9.26."""
    cpu().replace_map(map, "interleave", x)


@intrinsic(void(u32, u32))
def tensormap_replace_swizzle_mode(map, x):
    """``tensormap.replace.tile.swizzle_mode``: 0 none, 1 32 bytes, 2 64 bytes, 3 128 bytes.
    PTX ISA 9.7.9.26."""
    cpu().replace_map(map, "swizzle", x)


@intrinsic(void(u32, u32))
def tensormap_replace_fill_mode(map, x):
    """``tensormap.replace.tile.fill_mode``: what lies outside the tensor reads as 0 zeros, 1 NaN.
    PTX ISA 9.7.9.26."""
    cpu().replace_map(map, "fill", x)


@intrinsic(void(u64, u32))
def tensormap_cp_fenceproxy(dst, src):
    """``tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu``: copies the map at the
    shared address ``src`` to the global address ``dst``, and releases it to the copy engine.
    All lanes of the warp call it together with the same addresses, multiples of 64, and each lane has to know
    of the map's last replacement (``cuda.syncwarp``). It takes ``fence_proxy_tensormap_acquire_gpu`` to use the
    map. PTX ISA 9.7.13.16."""
    cpu().publish_map(dst, src)

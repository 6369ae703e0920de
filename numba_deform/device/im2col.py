"""Loads in im2col mode: what a convolution reads of an image, as rows of a matrix (PTX ISA 5.5.4, 9.7.9.25.5).

``map`` is the global address of a map in im2col mode (``engines.tensormap.Im2colMap``), which says how many
rows a load has, how many channels a row, and in what bounding box the corner of the filter moves.
"""

from .ptx import cpu, i32, intrinsic, u32, u64, void


@intrinsic(void(u32, u64, i32, i32, i32, i32, u32, u32, u32))
def cp_async_bulk_tensor_4d_im2col(dst, map, c0, c1, c2, c3, o0, o1, bar):
    """``cp.async.bulk.tensor.4d.shared::cluster.global.im2col``: rows of an NHWC tensor into ``dst``.
    ``c0`` is the first channel of each row, ``c1`` and ``c2`` the place (w, h) of the filter's corner for the
    first row, inside the bounding box, ``c3`` the first image. The corner moves through the box from row to
    row, w first, and on to the next image. ``o0`` and ``o1``, 0 to 255, are the element (w, h) of the filter:
    they are added to every corner. What lies outside the tensor arrives as the map's fill. ``c0`` times the
    element's size is a multiple of 16 bytes. All bytes, those outside included, are subtracted from ``bar``'s
    tx-count. Issue it from one thread; ``dst`` is 128-byte aligned, and read after a successful wait on
    ``bar``. PTX ISA 9.7.9.25.5.2."""
    cpu().tensor_load(dst, map, (c0, c1, c2, c3), bar, (o0, o1))


@intrinsic(void(u32, u64, i32, i32, i32, u32, u32))
def cp_async_bulk_tensor_3d_im2col(dst, map, c0, c1, c2, o0, bar):
    """``cp.async.bulk.tensor.3d.shared::cluster.global.im2col``: rows of an NWC tensor into ``dst``.
    As ``cp_async_bulk_tensor_4d_im2col``, with one offset, of 16 bits. PTX ISA 9.7.9.25.5.2."""
    cpu().tensor_load(dst, map, (c0, c1, c2), bar, (o0,))


@intrinsic(void(u32, u64, i32, i32, i32, i32, i32, u32, u32, u32, u32))
def cp_async_bulk_tensor_5d_im2col(dst, map, c0, c1, c2, c3, c4, o0, o1, o2, bar):
    """``cp.async.bulk.tensor.5d.shared::cluster.global.im2col``: rows of an NDHWC tensor into ``dst``.
    As ``cp_async_bulk_tensor_4d_im2col``, with three offsets, 0 to 31. PTX ISA 9.7.9.25.5.2."""
    cpu().tensor_load(dst, map, (c0, c1, c2, c3, c4), bar, (o0, o1, o2))

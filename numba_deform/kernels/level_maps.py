"""Tensor maps of a value's levels: one for each batch and level, or one for each level."""

from collections.abc import Sequence

import numpy as np

from ..engines.tensormap import TensorMap, TensorMapArray, TensorMapError, address_of, broken_rule, element_type


def level_maps(value, batch, heads, channels, dtype, levels, spatial_size, box_hw=(2, 2), **options):
    """One rank-3 map for each batch b and level l, at index b*L + l of a TensorMapArray.

    value         (B, S, H, C): device address, device array or contiguous NumPy array
    dtype         element type of value
    levels        from make_levels
    spatial_size  S, pixels of one batch (with borders, if the layout has them)
    box_hw        height and width of the box in pixels, or one such pair for each level
    options       swizzle, fill, l2_promotion, ... as for TensorMap

    Each map has dims (H*C, w, h) and box (C, box_w, box_h); a load at (head * C, x, y) fetches one
    head's channels of a box of pixels. Raises TensorMapError that names the batch and the level.
    """
    memory = _Value(value, batch, spatial_size, heads, channels, dtype)
    return TensorMapArray(
        memory.map(
            f"level {number} of batch {b}", level, b,
            dims=(heads * channels, level.width, level.height),
            strides=(memory.pixel, level.row_stride * memory.pixel),
            box=(channels, box_w, box_h), names=("H*C", "W", "H"), **options,
        )
        for b in range(batch)
        for number, level, (box_h, box_w) in _with_boxes(levels, box_hw)
    )  # fmt: skip


def level_maps_rank5(value, batch, heads, channels, dtype, levels, spatial_size, box_hw=(2, 2), **options):
    """One rank-5 map for each level, shared by all heads and batches, in a TensorMapArray.

    Arguments as for level_maps. Each map has dims (C, H, w, h, B) and box (C, 1, box_w, box_h, 1);
    a load at (0, head, x, y, b) fetches what level_maps' map b*L + l fetches at (head * C, x, y).
    Raises TensorMapError that names the level.
    """
    memory = _Value(value, batch, spatial_size, heads, channels, dtype)
    row = channels * memory.dtype.itemsize
    return TensorMapArray(
        memory.map(
            f"level {number}", level, 0,
            dims=(channels, heads, level.width, level.height, batch),
            strides=(row, memory.pixel, level.row_stride * memory.pixel, memory.batch_stride),
            box=(channels, 1, box_w, box_h, 1), names=("C", "head", "W", "H", "B"), **options,
        )
        for number, level, (box_h, box_w) in _with_boxes(levels, box_hw)
    )  # fmt: skip


def _with_boxes(levels, box_hw):
    """(number, level, its box) of each level; ``box_hw`` is one box for all, or a list of them."""
    boxes = box_hw if isinstance(box_hw[0], Sequence) else [box_hw] * len(levels)
    return zip(range(len(levels)), levels, boxes, strict=True)


class _Value:
    """The value tensor (B, S, H, C) as raw memory that maps can start inside of."""

    def __init__(self, value, batch, spatial_size, heads, channels, dtype):
        self.dtype = element_type(dtype)
        self.pixel = heads * channels * self.dtype.itemsize  # bytes
        self.batch_stride, self.spatial_size = spatial_size * self.pixel, spatial_size
        self.address, array = address_of(value)
        self.raw = None
        if array is not None:
            if array.nbytes != batch * self.batch_stride:
                shape = f"(B={batch}, S={spatial_size}, H={heads}, C={channels})"
                required = f"{batch * self.batch_stride} bytes for {shape} of {self.dtype.name}"
                raise broken_rule("value size", "value", f"{array.nbytes} bytes", required)
            if not array.flags.c_contiguous:
                hint = "use numpy.ascontiguousarray"
                raise broken_rule("value contiguous", "value", "not contiguous", "C-contiguous", hint)
            self.raw = array.reshape(-1).view(np.uint8)

    def map(self, place, level, batch, **arguments):
        """The TensorMap that starts at ``level`` of ``batch``; its error names ``place``."""
        try:
            end = level.start + (level.height - 1) * level.row_stride + level.width
            if level.start < 0 or end > self.spatial_size:
                raise broken_rule(
                    "level inside value", "the level's pixels", f"{level.start}..{end}",
                    f"within 0..{self.spatial_size} (spatial_size)",
                    "padded layouts need make_levels(..., padded=True) and the padded spatial_size",
                )  # fmt: skip
            offset = batch * self.batch_stride + level.start * self.pixel
            start = self.address + offset if self.raw is None else self.raw[offset:]
            return TensorMap(start, self.dtype, **arguments)
        except TensorMapError as error:
            text = f"{place}: {error}"
            raise TensorMapError(text, error.rule, error.given, error.required) from error

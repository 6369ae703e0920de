"""How models call this operator: a function here takes what a library's own takes, and returns the same.

B batch, S positions of all levels, H heads, C channels of a head, Q queries, L levels, P points of a level, N
points of all levels. Levels follow one another unless their starts are given. ``im2col_step`` is ignored. Where
a library gives the sizes of levels as a tensor and as a list, the list is taken: no tensor on a GPU is read.
"""

import torch

from .functional import ms_deform_attn
from .operator import BACKWARD


class MultiScaleDeformableAttention(torch.nn.Module):
    """transformers' layer of this name, without parameters; also a layer for the package ``kernels``."""

    has_backward = True
    can_torch_compile = True

    def forward(
        self, value, value_spatial_shapes, value_spatial_shapes_list, level_start_index, sampling_locations,
        attention_weights, im2col_step,
    ):  # fmt: skip
        """(B, Q, H*C); arguments as :func:`numba_deform.torch.ms_deform_attn`'s, the shapes also as a list."""
        return ms_deform_attn(value, value_spatial_shapes_list, None, sampling_locations, attention_weights)


def without_starts(value, value_spatial_shapes, sampling_locations, attention_weights):
    """(B, Q, H*C) as mmcv's, detrex's, Mask2Former's and OneFormer's plain functions give it."""
    return ms_deform_attn(value, value_spatial_shapes, None, sampling_locations, attention_weights)


def with_starts(
    value, value_spatial_shapes, value_level_start_index, sampling_locations, attention_weights, im2col_step=64
):
    """(B, Q, H*C) as ``ms_deform_attn_forward`` of compiled extensions gives it."""
    levels = value_spatial_shapes, value_level_start_index
    return ms_deform_attn(value, *levels, sampling_locations, attention_weights)


def deformable_core(
    value, value_spatial_shapes, sampling_locations, attention_weights, value_spatial_shapes_hw=None
):
    """(B, Q, H*C) as ``ms_deform_attn_core_pytorch`` gives it: Deformable-DETR's, or RF-DETR's, where value is
    (B, H, C, S), weights are (B, Q, H, N), and locations (B, Q, H, L, P, 2) or (B, Q, H, N, 2)."""
    shapes = value_spatial_shapes if value_spatial_shapes_hw is None else value_spatial_shapes_hw
    if attention_weights.ndim == 4:
        value = value.permute(0, 3, 1, 2)
        by_level = (*attention_weights.shape[:3], len(shapes), -1)
        attention_weights = attention_weights.reshape(by_level)
        sampling_locations = sampling_locations.reshape(*by_level, 2)
    return without_starts(value, shapes, sampling_locations, attention_weights)


def with_points(
    value, value_spatial_shapes, sampling_locations, attention_weights, num_points_list, method="default",
    value_shape="default",
):  # fmt: skip
    """(B, Q, H*C) where levels have different points, as RT-DETR v2, D-FINE and DEIM have it: value is
    (B, S, H, C), or a sequence of (B, H, C, height*width); locations are (B, Q, H, N, 2)."""
    if isinstance(value, (list, tuple)):
        value = torch.cat(value, -1).permute(0, 3, 1, 2)
    given = value, value_spatial_shapes, None, sampling_locations, attention_weights
    return ms_deform_attn(*given, num_points=list(num_points_list), method=method)


def backward(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_output, im2col_step=64
):
    """The gradients of value, locations and weights, as extensions' ``ms_deform_attn_backward`` gives them."""
    levels = spatial_shapes, level_start_index
    with torch.no_grad():  # an extension's gradients have none
        return BACKWARD(grad_output, value, *levels, sampling_locations, attention_weights)


def backward_into(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_output, grad_value,
    grad_sampling_loc, grad_attn_weight, im2col_step=64,
):  # fmt: skip
    """Nothing: the gradients go into the last three tensors, as mmcv's extension has it."""
    levels = spatial_shapes, level_start_index
    found = backward(value, *levels, sampling_locations, attention_weights, grad_output)
    for into, gradient in zip((grad_value, grad_sampling_loc, grad_attn_weight), found, strict=True):
        into.copy_(gradient)


class Function:
    """``forward`` and ``backward`` of an autograd function, such as Deformable-DETR's MSDeformAttnFunction."""

    @staticmethod
    def forward(ctx, *given):
        ctx.save_for_backward(*given[:5])
        return with_starts(*given)

    @staticmethod
    def backward(ctx, grad_output):
        needs = [ctx.needs_input_grad[i] for i in (0, 3, 4)]
        found = BACKWARD(grad_output, *ctx.saved_tensors, None, "default", *needs)
        found = [g if yes else None for g, yes in zip(found, needs, strict=True)]
        return found[0], None, None, *found[1:], None


class FunctionInFloat32(Function):
    """The same in float32 also under autocast, as BEVFormer's ``MultiScaleDeformableAttnFunction_fp32``."""

    @staticmethod
    def forward(ctx, value, *rest):
        kind = value.device.type
        if not torch.is_autocast_enabled(kind):
            return Function.forward(ctx, value, *rest)
        with torch.autocast(kind, enabled=False):
            return Function.forward(ctx, value.float(), *rest)

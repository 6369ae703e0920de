"""``ms_deform_attn`` and ``prepare`` for PyTorch's tensors."""

import torch

from ..attention import call, prepared
from ..attention.checks import OperatorError, check_im2col_step
from .operator import (
    FORWARD,
    Differentiable,
    forward_on_gpu,
    index_tensor,
    is_plain,
    numbers_from,
    numbers_of,
    starts_of,
)


def ms_deform_attn(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, *, num_points=None,
    method="default", im2col_step=None):  # fmt: skip
    """A tensor (B, Q, H*C) in the type of value, through which gradients flow (once).

    value               (B, S, H, C): float16, bfloat16 or float32; on the CPU float64 too
    spatial_shapes      (L, 2) integers, height and width of each level: a tensor, or a list
    level_start_index   (L,) integers, where each level starts in S: a tensor, a list, or None for levels that
                        follow one another
    sampling_locations  (B, Q, H, L, P, 2) as (x, y), normalised; of any of these types
    attention_weights   (B, Q, H, L, P), after the softmax; of any of these types
    num_points          points of each level, if they differ: locations are (B, Q, H, N, 2) then, and weights
                        (B, Q, H, N), with N their sum; such calls may always be flat
    method              "default": bilinear; "discrete": the nearest pixel, at the border where it is outside
    im2col_step         accepted for compatibility, checked, ignored

    Tensors may have any strides. Shapes and starts that lie on a GPU are copied once for each version of the
    tensor, which waits for the GPU; lists never wait. The gradient of value is added up in an order that
    changes from run to run, except with ``torch.use_deterministic_algorithms(True)``.

    Raises OperatorError or ConfigError for arguments that do not fit, GpuMissing for a GPU that is too old."""
    given = (value, sampling_locations, attention_weights)
    _check(*given)
    check_im2col_step(im2col_step, value.shape[0])
    if torch.compiler.is_compiling():
        shapes = _tensor(spatial_shapes)
        sizes = shapes.prod(1)
        starts = sizes.cumsum(0) - sizes if level_start_index is None else _tensor(level_start_index)
        return FORWARD(value, shapes, starts, *given[1:], num_points, method)
    levels = _numbers("spatial_shapes", spatial_shapes)
    starts = level_start_index
    starts = starts_of(levels) if starts is None else _numbers("level_start_index", starts)
    if value.is_cuda and is_plain(*given):
        needs = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
        return (Differentiable.apply if needs else forward_on_gpu)(
            value, levels, starts, *given[1:], num_points, method
        )
    return FORWARD(value, index_tensor(levels), index_tensor(starts), *given[1:], num_points, method)


def _tensor(numbers):
    return numbers if isinstance(numbers, torch.Tensor) else torch.tensor(numbers, dtype=torch.int64)


def _numbers(name, numbers):
    if isinstance(numbers, torch.Tensor):
        return numbers_of(name, numbers)
    return numbers_from(numbers.tolist() if hasattr(numbers, "tolist") else numbers)


def prepare(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, variant="auto", *,
    padded=False, **parameters):  # fmt: skip
    """A :class:`numba_deform.Prepared` for tensors like these; see :func:`numba_deform.prepare`."""
    _check(value, sampling_locations, attention_weights)
    return prepared.prepare(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, variant,
        padded=padded, **parameters)  # fmt: skip


def _check(*arrays):
    for name, array in zip(call.INPUTS, arrays, strict=True):
        if not isinstance(array, torch.Tensor):
            raise OperatorError(
                f"{name} is a {type(array).__name__}; numba_deform.torch takes PyTorch's tensors, and "
                "numba_deform.ms_deform_attn arrays of any library"
            )

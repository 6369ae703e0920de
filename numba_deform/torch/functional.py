"""``ms_deform_attn`` and ``prepare`` for PyTorch's tensors."""

import torch

from ..attention import call, prepared
from ..attention.checks import OperatorError, check_im2col_step
from .operator import (
    FORWARD,
    FORWARD_LISTS,
    Differentiable,
    forward_on_gpu,
    is_plain,
    is_readable,
    numbers_from,
    numbers_of,
    requires_grad,
    starts_of,
)
from .sharding import register_for


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
    given = value, sampling_locations, attention_weights
    is_compiling = torch.compiler.is_compiling()
    direct = not is_compiling and is_plain(*given) and value.is_cuda
    if not direct:
        _check(*given)
        if not is_compiling:
            register_for(*given)
    if im2col_step is not None:
        check_im2col_step(im2col_step, value.shape[0])
    shapes, starts = spatial_shapes, level_start_index
    if isinstance(shapes, torch.Tensor) or isinstance(starts, torch.Tensor):
        if is_compiling or not (is_readable(shapes) and is_readable(starts)):
            return FORWARD(value, *_tensors(shapes, starts), *given[1:], num_points, method)
    shapes = _numbers("spatial_shapes", shapes)
    starts = starts_of(shapes) if starts is None else _numbers("level_start_index", starts)
    if not direct:
        return FORWARD_LISTS(value, shapes, starts, *given[1:], num_points, method)
    arguments = value, shapes, starts, *given[1:], num_points, method
    if torch.is_grad_enabled() and requires_grad(*given):
        return Differentiable.apply(forward_on_gpu, *arguments)
    return forward_on_gpu(*arguments)


def _numbers(name, numbers):
    """A flat tuple of what is in an index tensor, or in a list."""
    return (numbers_of if isinstance(numbers, torch.Tensor) else numbers_from)(name, numbers)


def _tensors(shapes, starts):
    """Both as tensors, where one is."""
    shapes = shapes if isinstance(shapes, torch.Tensor) else torch.tensor(shapes)
    if starts is None:
        sizes = shapes.prod(1)
        return shapes, sizes.cumsum(0) - sizes
    return shapes, starts if isinstance(starts, torch.Tensor) else torch.tensor(starts)


def prepare(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, variant="auto", *,
    padded=False, **parameters):  # fmt: skip
    """A :class:`numba_deform.Prepared` for tensors like these; see :func:`numba_deform.prepare`."""
    _check(value, sampling_locations, attention_weights)
    with torch.cuda.device_of(value):  # and the caller's current one again afterwards
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

"""``ms_deform_attn`` and ``prepare`` for PyTorch's tensors."""

import operator

import torch

from ..attention import prepared
from ..attention.checks import LIMIT, OperatorError, check_im2col_step
from ..attention.request import INPUTS
from ..kernels.problem import METHODS, ConfigError
from .formula import check_numbers, decomposed
from .operator import (
    FORWARD,
    FORWARD_LISTS,
    Differentiable,
    check_places,
    forward_on_gpu,
    is_plain,
    known_starts,
    numbers_from,
    numbers_of,
    requires_grad,
    starts_of,
)
from .sharding import register_for


def ms_deform_attn(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, *, num_points=None,
    method="default", im2col_step=None):  # fmt: skip
    """A tensor (B, Q, H*C) in the type of value, through which gradients flow.

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

    Tensors may have any strides. Give shapes and starts as lists where you can: a call by lists waits for
    nothing, and may be captured, exported, and compiled in any mode. Tensors of them on a GPU are read once for
    each version, which waits for the GPU: a capture needs them read before, and mode "reduce-overhead" of
    ``torch.compile`` leaves the operator out of its graphs. The gradient of value is added up in an order that
    changes from run to run on a GPU, except with ``torch.use_deterministic_algorithms(True)``. Gradients of
    gradients, forward mode and torch.func are exact, by PyTorch's own operations, which take more time and
    memory than the kernels; vmap makes one call with a larger batch. torch.onnx.export with dynamo=True gets
    ``grid_sample``; see :func:`decompositions` for other runtimes.

    A location that is NaN or infinite makes its row NaN on a CPU, and on a GPU under :func:`propagate_nan`.

    Raises OperatorError or ConfigError for arguments that do not fit, GpuMissing for a GPU that is too old."""
    given = value, spatial_shapes, level_start_index, sampling_locations, attention_weights
    if num_points is not None and not torch.compiler.is_compiling():
        num_points = _points(num_points)
    is_seen = torch.compiler.is_compiling() or not is_plain(value, sampling_locations, attention_weights)
    if is_seen or not value.is_cuda:
        return _dispatched(*given, num_points, method, im2col_step)
    if im2col_step is not None:
        check_im2col_step(im2col_step, value.shape[0])
    shapes = _numbers("spatial_shapes", spatial_shapes)
    if level_start_index is None:
        starts = known_starts(shapes)
    else:
        starts = _numbers("level_start_index", level_start_index)
    needs = torch.is_grad_enabled() and requires_grad(value, sampling_locations, attention_weights)
    given = value, shapes, starts, sampling_locations, attention_weights, num_points, method
    return Differentiable.apply(forward_on_gpu, *given) if needs else forward_on_gpu(*given)


def _dispatched(value, shapes, starts, locations, weights, num_points, method, im2col_step):
    """The same by PyTorch's dispatcher: on the CPU, and where somebody wants to see the call."""
    _check(value, locations, weights)
    check_places(value, locations, weights)
    check_im2col_step(im2col_step, value.shape[0])
    if _is_in_onnx_export():
        return _exported(value, shapes, starts, locations, weights, num_points, method)
    if method not in METHODS:
        raise ConfigError("method", method, f"must be one of {', '.join(METHODS)}")
    is_compiling = torch.compiler.is_compiling()
    if not is_compiling:
        register_for(value, locations, weights)
    index = [i for i in (shapes, starts) if isinstance(i, torch.Tensor)]
    if index and (is_compiling or any(type(i) is not torch.Tensor for i in index)):  # they cannot be read
        return FORWARD(value, *_tensors(shapes, starts), locations, weights, num_points, method)
    shapes = _numbers("spatial_shapes", shapes)
    starts = starts_of(shapes) if starts is None else _numbers("level_start_index", starts)
    if not is_compiling:  # PyTorch refuses them in other words
        check_numbers("spatial_shapes", shapes)
        check_numbers("level_start_index", starts)
    return FORWARD_LISTS(value, shapes, starts, locations, weights, num_points, method)


@torch.compiler.assume_constant_result  # or Dynamo, by which exporters trace some models, takes it for False
def _is_in_onnx_export():
    return torch.onnx.is_in_onnx_export()


def _exported(value, shapes, starts, locations, weights, num_points, method):
    """The call in operations that ONNX has."""
    if torch.jit.is_tracing():
        raise OperatorError(
            "torch.onnx.export by TorchScript makes constants of sizes: export with dynamo=True, or under "
            "torch.jit.trace without ONNX"
        )
    if any(isinstance(i, torch.Tensor) for i in (shapes, starts)):
        shapes, starts = _tensors(shapes, starts)
    else:
        shapes = _numbers("spatial_shapes", shapes)
        starts = starts_of(shapes) if starts is None else _numbers("level_start_index", starts)
    return decomposed(value, shapes, starts, locations, weights, num_points, method)


def _numbers(name, numbers):
    """A flat tuple of what is in an index tensor, or in a list."""
    return numbers_of(name, numbers) if isinstance(numbers, torch.Tensor) else numbers_from(name, numbers)


def _points(num_points):
    """A tuple: the points of each level."""
    try:
        points = tuple(map(operator.index, num_points))
    except TypeError:
        raise OperatorError(f"num_points={num_points!r}: it is an integer for each level") from None
    if not all(1 <= count < LIMIT for count in points):
        raise OperatorError(f"num_points={list(points)}: they are at least 1, and less than 2^31")
    return points


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


def decompositions():
    """A table for ``torch.export.ExportedProgram.run_decompositions``: the operator as operations that every
    runtime has, for programs that go where nobody knows it. ``torch.onnx.export`` of a model needs none, of a
    program that ``torch.export`` made before it does."""
    return {FORWARD: decomposed, FORWARD_LISTS: decomposed}


def refuse_script(*_):
    """OperatorError: what ``torch.jit.script`` comes upon."""
    raise OperatorError(
        "torch.jit.script cannot compile ms_deform_attn, nor layers with it: use torch.compile or torch.export"
    )


ms_deform_attn.__prepare_scriptable__ = refuse_script  # the word by which torch.jit.script asks


def _check(*arrays):
    for name, array in zip(INPUTS, arrays, strict=True):
        if not isinstance(array, torch.Tensor):
            raise OperatorError(
                f"{name} is a {type(array).__name__}; numba_deform.torch takes PyTorch's tensors, and "
                "numba_deform.ms_deform_attn arrays of any library"
            )

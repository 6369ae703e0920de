"""``ms_deform_attn`` and ``prepare`` for PyTorch's tensors."""

import torch

from ..attention import prepared
from ..attention.checks import OperatorError, check_im2col_step
from .arguments import check_tensors, checked, is_plain, known_starts, level_numbers, points_of
from .formula import decomposed
from .operator import FORWARD, FORWARD_LISTS, call_of, planned
from .plans import forward_plan
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
    ``grid_sample``, or under :func:`tensorrt_plugin` TensorRT's own operator; see :func:`decompositions` for
    other runtimes.

    A location that is NaN or infinite makes its row NaN on a CPU, and on a GPU under :func:`propagate_nan` and
    where PyTorch's operations compute it.

    Raises OperatorError or ConfigError for arguments that do not fit, GpuMissing for a GPU that is too old."""
    given = value, spatial_shapes, level_start_index, sampling_locations, attention_weights
    is_compiling = torch.compiler.is_compiling()
    if num_points is not None and not is_compiling:
        num_points = points_of(num_points)
    if is_compiling or not is_plain(value, sampling_locations, attention_weights) or not value.is_cuda:
        return _dispatched(*given, num_points, method, im2col_step)
    if im2col_step is not None:
        check_im2col_step(im2col_step, value.shape[0])
    shapes, starts = level_numbers(spatial_shapes, level_start_index, known_starts)
    call = call_of(value, shapes, starts, sampling_locations, attention_weights, num_points, method)
    if not (value.numel() and sampling_locations.numel()):
        return _dispatched(*given, num_points, method, None)
    return planned(forward_plan(value.get_device(), *call), value, sampling_locations, attention_weights)


def _dispatched(*given):
    """The same by PyTorch's dispatcher: on the CPU, and where somebody wants to see the call."""
    is_exported = _is_in_onnx_export()
    if is_exported and torch.jit.is_tracing():
        raise OperatorError("torch.onnx.export by TorchScript makes constants of sizes: export with "
                            "dynamo=True, or under torch.jit.trace without ONNX")  # fmt: skip
    is_compiling = torch.compiler.is_compiling()
    given = checked(*given, is_exported or is_compiling or torch.jit.is_tracing())
    if is_exported:
        return decomposed(*given)
    if not is_compiling:
        register_for(given[0], *given[3:5])
    return (FORWARD if isinstance(given[1], torch.Tensor) else FORWARD_LISTS)(*given)


@torch.compiler.assume_constant_result  # or Dynamo, by which exporters trace some models, takes it for False
def _is_in_onnx_export():
    return torch.onnx.is_in_onnx_export()


def prepare(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, variant="auto", *,
    padded=False, **parameters):  # fmt: skip
    """A :class:`numba_deform.Prepared` for tensors like these; see :func:`numba_deform.prepare`."""
    check_tensors(value, sampling_locations, attention_weights)
    with torch.cuda.device_of(value):  # and the caller's current one again afterwards
        return prepared.prepare(
            value, spatial_shapes, level_start_index, sampling_locations, attention_weights, variant,
            padded=padded, **parameters)  # fmt: skip


def decompositions():
    """A table for ``torch.export.ExportedProgram.run_decompositions``: the operator as operations that every
    runtime has, for programs that go where nobody knows it. ``torch.onnx.export`` of a model needs none, of a
    program that ``torch.export`` made before it does.

    ExecuTorch (1.5) makes no program of one with the operator in it, "Missing out variants", and runs one with
    this table. Torch-TensorRT (2.14) was not run."""
    return {FORWARD: decomposed, FORWARD_LISTS: decomposed}


def refuse_script(*_):
    """OperatorError: what ``torch.jit.script`` comes upon."""
    raise OperatorError(
        "torch.jit.script cannot compile ms_deform_attn, nor layers with it: use torch.compile or torch.export"
    )


ms_deform_attn.__prepare_scriptable__ = refuse_script  # the word by which torch.jit.script asks

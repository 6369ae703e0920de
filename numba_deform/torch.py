"""PyTorch's view of the operator: for CUDA tensors, on PyTorch's current stream; needs the extra ``torch``."""

try:
    import torch
except ImportError as error:
    raise ImportError(
        "numba_deform.torch needs PyTorch, which is not installed: pip install 'numba-deform[torch]'"
    ) from error

from .attention import call, prepared
from .attention.checks import OperatorError

__all__ = ["ms_deform_attn", "prepare"]


def ms_deform_attn(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, variant="auto", *,
    padded=False, out=None, im2col_step=None, **parameters):  # fmt: skip
    """A tensor (B, Q, H*C); arguments and errors are those of :func:`numba_deform.ms_deform_attn`.

    ``value``, ``sampling_locations``, ``attention_weights`` and ``out`` must be tensors; any other array raises
    OperatorError, and so does a tensor that requires a gradient, unless none is recorded (``torch.no_grad()``).
    The shapes and starts of levels may also be NumPy arrays or lists; from a GPU they have to be copied, which
    waits for it."""
    _check(value, sampling_locations, attention_weights, *([] if out is None else [out]))
    return call.ms_deform_attn(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, variant,
        padded=padded, out=out, im2col_step=im2col_step, **parameters)  # fmt: skip


def prepare(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, variant="auto", *,
    padded=False, **parameters):  # fmt: skip
    """A :class:`numba_deform.Prepared` for tensors like these; see :func:`numba_deform.prepare`."""
    _check(value, sampling_locations, attention_weights)
    return prepared.prepare(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, variant,
        padded=padded, **parameters)  # fmt: skip


def _check(*arrays):
    for name, array in zip((*call.INPUTS, "out"), arrays, strict=False):
        if not isinstance(array, torch.Tensor):
            raise OperatorError(
                f"{name} is a {type(array).__name__}; numba_deform.torch takes PyTorch's tensors, and "
                "numba_deform.ms_deform_attn arrays of any library"
            )

"""PyTorch's view of the operator, with gradients, for tensors on a GPU or the CPU; needs the extra ``torch``.

Importing this registers ``torch.ops.numba_deform.ms_deform_attn``, which :func:`ms_deform_attn` calls.
:class:`MSDeformAttn` is Deformable-DETR's layer around it. Both take DTensors, split by batch or heads.
"""

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "numba_deform.torch needs PyTorch, which is not installed: pip install torch"
    ) from error

from .formula import tensorrt_plugin
from .functional import decompositions, ms_deform_attn, prepare
from .module import MSDeformAttn
from .operator import propagate_nan
from .patches import LIBRARIES, Patch, kernel_mapping, patch

__all__ = [
    "LIBRARIES", "MSDeformAttn", "Patch", "decompositions", "kernel_mapping", "ms_deform_attn", "patch",
    "prepare", "propagate_nan", "tensorrt_plugin",
]  # fmt: skip

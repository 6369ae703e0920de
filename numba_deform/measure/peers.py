"""Other implementations of the operator, timed on the same device memory if they are installed.

The common contract is that of Deformable DETR's extension: ``f(value (B, S, H, C), spatial_shapes (L,
2), level_start_index (L,), sampling_locations (B, Q, H, L, P, 2), attention_weights (B, Q, H, L, P),
im2col_step) -> (B, Q, H*C)``, all PyTorch tensors on the GPU."""

import math
from types import SimpleNamespace

import numpy as np

from .worker import find_function


class NotInstalled(Exception):
    """A peer cannot be imported; the text says what is missing."""


def tensor_of(array):
    """A PyTorch tensor over a DeviceArray's own memory."""
    import torch

    # The interface has no bfloat16: hand over the bits, then name them.
    halves = array.dtype.name == "bfloat16"
    interface = {"shape": array.shape, "typestr": "<i2" if halves else array.dtype.str,
                 "data": (array.address, False), "strides": None, "version": 3}  # fmt: skip
    # The tensor keeps this object, and with it the array.
    owner = SimpleNamespace(__cuda_array_interface__=interface, array=array)
    tensor = torch.as_tensor(owner, device="cuda")
    return tensor.view(torch.bfloat16) if halves else tensor


def sample_levels(value, spatial_shapes, locations, weights):
    """The operator by ``grid_sample``, as published with Deformable DETR; any dtype, (B, Q, H*C)."""
    import torch

    batch, _, heads, channels = value.shape
    queries, levels, points = locations.shape[1], locations.shape[3], locations.shape[4]
    planes = value.split([h * w for h, w in spatial_shapes], dim=1)
    grids = 2 * locations - 1
    sampled, sample = [], torch.nn.functional.grid_sample
    for level, (height, width) in enumerate(spatial_shapes):
        plane = planes[level].flatten(2).transpose(1, 2)
        plane = plane.reshape(batch * heads, channels, height, width)
        grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
        sampled.append(sample(plane, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
    weights = weights.transpose(1, 2).reshape(batch * heads, 1, queries, levels * points)
    out = (torch.stack(sampled, dim=-2).flatten(-2) * weights).sum(-1)
    return out.view(batch, heads * channels, queries).transpose(1, 2).contiguous()


def float64_output(inputs):
    """The operator in float64, one level at a time; (B, Q, H*C) on the GPU."""
    import torch

    def tensor(array):
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
        return torch.from_numpy(array).cuda()

    border, total = int(inputs.padded), 0
    value, weights = tensor(inputs.value), tensor(inputs.attention_weights)
    locations = tensor(inputs.sampling_locations)
    for level, (height, width) in enumerate(inputs.spatial_shapes.tolist()):
        start = int(inputs.level_start_index[level])
        rows, columns = height + 2 * border, width + 2 * border
        plane = value[:, start : start + rows * columns].unflatten(1, (rows, columns))
        plane = plane[:, border : border + height, border : border + width].flatten(1, 2).double()
        where, share = (t[:, :, :, level : level + 1].double() for t in (locations, weights))
        total = total + sample_levels(plane, [(height, width)], where, share)
    return total


# --- the peers: each takes the operands and returns a function without arguments -------------------
def _eager(o):
    return lambda: sample_levels(o.value, o.shapes_list, o.locations, o.weights)


def _compiled(o):
    import torch

    run = torch.compile(sample_levels)
    return lambda: run(o.value, o.shapes_list, o.locations, o.weights)


def _contract(path):
    """A peer with the common contract: the function at ``path``, as for ``find_function``."""

    def make(o):
        call = find_function(path)
        return lambda: call(o.value, o.shapes, o.starts, o.locations, o.weights, o.step)

    return make


def _transformers(o):
    from transformers.models.deformable_detr import modeling_deformable_detr as module

    if hasattr(module, "multi_scale_deformable_attention"):  # before 4.50
        call = module.multi_scale_deformable_attention
        return lambda: call(o.value, o.shapes, o.locations, o.weights)
    attention = module.MultiScaleDeformableAttention()
    return lambda: attention(o.value, o.shapes, o.shapes_list, o.starts, o.locations, o.weights,
                             o.step)  # fmt: skip


PEERS = {
    "torch grid_sample": _eager, "torch grid_sample compiled": _compiled,
    "mmcv": _contract("mmcv.ops.multi_scale_deform_attn:MultiScaleDeformableAttnFunction.apply"),
    "transformers": _transformers,
    "Deformable-DETR extension": _contract("MultiScaleDeformableAttention:ms_deform_attn_forward"),
}  # fmt: skip


def operands_of(inputs, arrays):
    """What the makers take: tensors over the DeviceArrays of value, locations and weights.

    Locations get value's dtype, as those implementations ask; that happens once, outside the clock."""
    import torch

    value, locations, weights = map(tensor_of, arrays)
    batch = value.shape[0]
    return SimpleNamespace(value=value, locations=locations.to(value.dtype), weights=weights,
                           shapes=torch.as_tensor(inputs.spatial_shapes, device="cuda"),
                           shapes_list=[tuple(shape) for shape in inputs.spatial_shapes.tolist()],
                           starts=torch.as_tensor(inputs.level_start_index, device="cuda"),
                           step=batch if batch <= 64 else math.gcd(batch, 64))  # fmt: skip


def prepare(name, inputs, arrays):
    """A function without arguments that runs the peer, one of PEERS or the user's ``module:function``, and
    returns its output tensor.

    Raises NotInstalled where the peer, or PyTorch, cannot be imported."""
    if inputs.padded:
        raise ValueError("other implementations have no padded layout")
    try:
        run = PEERS.get(name, _contract(name))(operands_of(inputs, arrays))
    except (ImportError, AttributeError) as error:
        raise NotInstalled(f"not installed: {error}") from None
    import torch

    def without_gradient():
        with torch.inference_mode():
            return run()

    return without_gradient

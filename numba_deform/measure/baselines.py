"""Other implementations of the operator, timed on the same device memory if they are installed.

The common contract is that of Deformable DETR's extension: ``f(value (B, S, H, C), spatial_shapes (L,
2), level_start_index (L,), sampling_locations (B, Q, H, L, P, 2), attention_weights (B, Q, H, L, P),
im2col_step) -> (B, Q, H*C)``, all PyTorch tensors on the GPU."""

import contextlib
import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from .worker import explain, find_function


class NotInstalled(Exception):
    """A peer cannot be imported; the text says what is missing."""


@contextlib.contextmanager
def failing_into(row):
    """What is raised within goes into the row as its ``error_text``; of an absent peer, ``absent``."""
    try:
        yield
    except NotInstalled as error:
        row |= {"absent": True, "error_text": str(error)}
    except Exception as error:
        row["error_text"] = explain(error)


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
    return sum(out for out, *_ in _float64_levels(inputs))


def float64_gradients(inputs, given):
    """[gradient of value, of locations, of weights] in float64, on the GPU, one level at a time; ``given``
    (B, Q, H*C) is that of the output."""
    import torch

    found = []
    for out, *learning in _float64_levels(inputs, learning=True):
        found.append(torch.autograd.grad(out, learning, given.double()))
    of_plane, of_locations, of_weights = zip(*found, strict=True)
    return [torch.cat(of_plane, 1), torch.cat(of_locations, 3), torch.cat(of_weights, 3)]


def _float64_levels(inputs, learning=False):
    """(share of the output, pixels without border, locations, weights) of each level."""
    border = int(inputs.padded)
    value, locations, weights = map(
        on_gpu, (inputs.value, inputs.sampling_locations, inputs.attention_weights))  # fmt: skip
    for level, (height, width) in enumerate(inputs.spatial_shapes.tolist()):
        start = int(inputs.level_start_index[level])
        rows, columns = height + 2 * border, width + 2 * border
        plane = value[:, start : start + rows * columns].unflatten(1, (rows, columns))
        plane = plane[:, border : border + height, border : border + width].flatten(1, 2)
        where, share = (t[:, :, :, level : level + 1] for t in (locations, weights))
        plane, where, share = (t.double().requires_grad_(learning) for t in (plane, where, share))
        yield sample_levels(plane, [(height, width)], where, share), plane, where, share


def on_gpu(array):
    """A tensor on the GPU with a NumPy array's numbers."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
    return torch.from_numpy(array).cuda()


# --- the peers ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Peer:
    """Another implementation.

    make        takes a :func:`geometry` and returns a function (value, locations, weights) -> (B, Q, H*C);
                ImportError or AttributeError where it is not installed
    in_float32  it computes in float32 alone, so what it is given is converted, outside the clock"""

    make: object
    in_float32: bool = False

    def label(self, name, dtype):
        """Its name, with the type that it computes in if that is not ``dtype``."""
        return f"{name} in float32" if self.in_float32 and dtype != "float32" else name


def _eager(g):
    return lambda value, locations, weights: sample_levels(value, g.shapes_list, locations, weights)


def _compiled(g):
    import torch

    run = torch.compile(sample_levels, dynamic=False)
    return lambda value, locations, weights: run(value, g.shapes_list, locations, weights)


def _contract(path):
    """A peer with the common contract: the function at ``path``, as for ``find_function``."""

    def make(g):
        call = find_function(path)
        return lambda value, locations, weights: call(value, g.shapes, g.starts, locations, weights, g.step)

    return make


def _extension(g):
    """Deformable DETR's own, whose forward and backward are two functions of C++."""
    forward = find_function("MultiScaleDeformableAttention:ms_deform_attn_forward")
    backward = find_function("MultiScaleDeformableAttention:ms_deform_attn_backward")
    import torch

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            ctx.save_for_backward(*tensors)
            value, locations, weights = tensors
            return forward(value, g.shapes, g.starts, locations, weights, g.step)

        @staticmethod
        def backward(ctx, given):
            value, locations, weights = ctx.saved_tensors
            return tuple(backward(value, g.shapes, g.starts, locations, weights, given.contiguous(), g.step))

    return Function.apply


def _msda_triton(g):
    call = find_function("msda_triton.frontend:triton_multiscale_deformable_attention")
    return lambda value, locations, weights: call(
        value, g.shapes, locations, weights, "zeros", False).flatten(2)  # fmt: skip


def _transformers(g):
    from transformers.models.deformable_detr import modeling_deformable_detr as module

    if hasattr(module, "multi_scale_deformable_attention"):  # before 4.50
        call = module.multi_scale_deformable_attention
        return lambda value, locations, weights: call(value, g.shapes, locations, weights)
    attention = module.MultiScaleDeformableAttention()
    return lambda value, locations, weights: attention(
        value, g.shapes, g.shapes_list, g.starts, locations, weights, g.step)  # fmt: skip


PEERS = {
    "torch grid_sample": Peer(_eager), "torch grid_sample compiled": Peer(_compiled),
    "mmcv": Peer(_contract("mmcv.ops.multi_scale_deform_attn:MultiScaleDeformableAttnFunction.apply")),
    "transformers": Peer(_transformers),
    "Deformable-DETR extension": Peer(_extension, in_float32=True),
    "msda-triton": Peer(_msda_triton, in_float32=True),
    "deformops": Peer(_contract("deformops.library.deform2d_multiscale:forward")),
}  # fmt: skip


def peer_of(name):
    """The :class:`Peer`: one of PEERS, or the user's ``module:function`` with the common contract."""
    return PEERS.get(name) or Peer(_contract(name))


def geometry(spatial_shapes, level_start_index, batch, device="cuda"):
    """What the makers take: the levels as index tensors and as lists, and an im2col_step for the batch."""
    import torch

    shapes = torch.as_tensor(spatial_shapes, device=device)
    starts = torch.as_tensor(level_start_index, device=device)
    return SimpleNamespace(
        shapes=shapes, shapes_list=[tuple(shape) for shape in shapes.tolist()], starts=starts,
        starts_list=starts.tolist(), step=batch if batch <= 64 else math.gcd(batch, 64))  # fmt: skip


def made(name, peer, levels):
    """The function of a peer for a :func:`geometry`; raises NotInstalled where it cannot be imported."""
    try:
        return peer.make(levels)
    except (ImportError, AttributeError) as error:
        raise NotInstalled(f"{name} is not installed: {error}") from None


def tensors_for(peer, arrays):
    """Tensors of the DeviceArrays of value, locations and weights in the type that the peer computes in: most
    ask for one type of all, value's."""
    import torch

    value, locations, weights = map(tensor_of, arrays)
    dtype = torch.float32 if peer.in_float32 else value.dtype
    return [tensor.to(dtype) for tensor in (value, locations, weights)]


def prepare(name, inputs, arrays):
    """A function without arguments that runs the peer, one of PEERS or the user's ``module:function``, and
    returns its output tensor.

    Raises NotInstalled where the peer, or PyTorch, cannot be imported."""
    if inputs.padded:
        raise ValueError("other implementations have no padded layout")
    peer = peer_of(name)
    try:
        import torch
    except ImportError as error:
        raise NotInstalled(f"{name} is not installed: {error}") from None
    run = made(name, peer, geometry(inputs.spatial_shapes, inputs.level_start_index, len(inputs.value)))
    tensors = tensors_for(peer, arrays)

    def without_gradient():
        with torch.inference_mode():
            return run(*tensors)

    return without_gradient

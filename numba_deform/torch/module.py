"""``MSDeformAttn``: the attention layer of Deformable-DETR, with its parameters, around the operator."""

import functools
import math

import torch
from torch import nn

from ..attention.checks import OperatorError
from ..kernels.problem import ITEMSIZE, ConfigError, Constants
from .arguments import numbers
from .functional import ms_deform_attn, refuse_script
from .sharding import placed_like, replicated_for


class MSDeformAttn(nn.Module):
    """Multi-scale deformable attention with its projections (Zhu et al., Deformable DETR, 2021).

    d_model          channels of queries and inputs: a multiple of n_heads
    n_levels         levels of the feature pyramid
    n_heads          heads; each has d_model / n_heads channels
    n_points         samples of a head in each level: a number, or a list with one for each level
    device, dtype    of the parameters, as in layers of torch.nn

    Parameters are named and laid out as in Deformable-DETR, so its state dicts fit, and those of models that
    took over its layer. Split over processes by heads (``ColwiseParallel`` for the first three projections,
    ``RowwiseParallel`` for ``output_proj``) it computes with the heads it has.

    Raises ConfigError for arguments that no kernel can run."""

    def __init__(self, d_model=256, n_levels=4, n_heads=8, n_points=4, *, device=None, dtype=None):
        super().__init__()
        for name, size in (("d_model", d_model), ("n_levels", n_levels), ("n_heads", n_heads)):
            if not isinstance(size, int) or size < 1:
                raise ConfigError(name, size, "must be an integer of at least 1")
        self.d_model, self.n_levels, self.n_heads, self.n_points = d_model, n_levels, n_heads, n_points
        self.points = _points(n_points, n_levels)
        self.channels = _channels(d_model, n_heads, n_levels)
        samples = n_heads * sum(self.points)
        linear = functools.partial(nn.Linear, d_model, device=device, dtype=dtype)
        self.sampling_offsets, self.attention_weights = linear(samples * 2), linear(samples)
        self.value_proj, self.output_proj = linear(d_model), linear(d_model)
        self.reset_parameters()

    def reset_parameters(self):
        """Start as the paper does: whatever the query, each head looks in a direction of its own, point after
        point one pixel further, and all samples weigh the same."""
        for layer in (self.sampling_offsets, self.attention_weights):
            nn.init.zeros_(layer.weight)
        for layer in (self.value_proj, self.output_proj):
            nn.init.xavier_uniform_(layer.weight)
        for layer in (self.attention_weights, self.value_proj, self.output_proj):
            nn.init.zeros_(layer.bias)
        bias = self.sampling_offsets.bias
        angles = torch.arange(self.n_heads, device=bias.device) * (2 * math.pi / self.n_heads)
        directions = torch.stack([angles.cos(), angles.sin()], -1)
        directions = directions / directions.abs().amax(-1, keepdim=True)
        steps = torch.cat([torch.arange(1, count + 1, device=bias.device) for count in self.points])
        offsets = directions.unsqueeze(1) * steps.unsqueeze(1)  # (H, N, 2)
        with torch.no_grad():
            bias.copy_(placed_like(bias, offsets.flatten()))

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors):
        """Also of layers by RT-DETR v2 and D-FINE, which keep 1 / points of each sample as a buffer."""
        scale = state_dict.pop(f"{prefix}num_points_scale", None)
        if scale is not None:
            own = [1 / count for count in self.points for _ in range(count)]
            if scale.shape != (len(own),) or not torch.allclose(scale.float().cpu(), torch.tensor(own)):
                found = f"{prefix}num_points_scale={scale.tolist()}"
                errors.append(f"{found}: it must be {own}, by n_points={self.n_points}")
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)

    def __prepare_scriptable__(self):
        refuse_script()

    def extra_repr(self):
        return ", ".join(f"{k}={getattr(self, k)}" for k in ("d_model", "n_levels", "n_heads", "n_points"))

    def forward(
        self, query, reference_points, input_flatten, input_spatial_shapes, input_level_start_index=None,
        input_padding_mask=None):  # fmt: skip
        """A tensor (B, Q, d_model).

        query                    (B, Q, d_model)
        reference_points         (B, Q, L, 2), points (x, y), from which offsets count in pixels of the level,
                                 or (B, Q, L, 4), boxes (x, y, width, height), from whose centres they count in
                                 half sizes divided by the level's points; all from 0 to 1 over the image
        input_flatten            (B, S, d_model), the pixels of all levels, one level after another
        input_spatial_shapes     (L, 2), height and width of each level, and
        input_level_start_index  (L,), where it starts in S, or None: as for :func:`ms_deform_attn`
        input_padding_mask       (B, S), true where a pixel is padding, whose value is then zero

        Locations are float32 in any case (float64 in a layer of that type). Raises OperatorError for arguments
        that do not fit."""
        self._check(query, reference_points, input_flatten, input_spatial_shapes, input_padding_mask)
        value = self.value_proj(input_flatten)
        if input_padding_mask is not None:
            value = value.masked_fill(input_padding_mask.unsqueeze(-1), 0)
        value = value.unflatten(-1, (-1, self.channels))
        samples = sum(self.points)
        offsets = self.sampling_offsets(query).unflatten(-1, (-1, samples, 2))
        weights = self.attention_weights(query).unflatten(-1, (-1, samples)).softmax(-1)
        locations = self._locations(reference_points, offsets, input_spatial_shapes)
        num_points = self.points
        if len(set(num_points)) == 1:  # the usual form, which all kernels take
            shape, num_points = (self.n_levels, num_points[0]), None
            locations, weights = locations.unflatten(3, shape), weights.unflatten(3, shape)
        levels = input_spatial_shapes, input_level_start_index
        return self.output_proj(ms_deform_attn(value, *levels, locations, weights, num_points=num_points))

    def _locations(self, reference_points, offsets, shapes):
        """(B, Q, H, N, 2), N samples of all levels."""
        offsets = offsets.to(torch.promote_types(offsets.dtype, torch.float32))
        reference_points = reference_points.to(offsets.dtype).unsqueeze(2)
        centres = self._each_sample(reference_points[..., :2])
        if reference_points.shape[-1] == 2:
            sizes = self._each_sample(_sizes(shapes, offsets))
            return centres + offsets / replicated_for(offsets, sizes)
        shares = [0.5 / count for count in self.points]  # the last point reaches the border of its box
        return centres + offsets * self._each_sample(reference_points[..., 2:], shares)

    def _each_sample(self, levels, factors=None):
        """(.., N, 2) of (.., L, 2), what a sample's level has, times the level's factor."""
        parts = [levels.narrow(-2, i, 1) for i in range(self.n_levels)]
        parts = [part * factor for part, factor in zip(parts, factors, strict=True)] if factors else parts
        shape = levels.shape[:-2]
        return torch.cat([p.expand(*shape, n, 2) for p, n in zip(parts, self.points, strict=True)], -2)

    def _check(self, query, reference_points, input_flatten, shapes, mask):
        d_model, levels = self.d_model, self.n_levels
        for name, tensor, letters in (("query", query, "B, Q"), ("input_flatten", input_flatten, "B, S")):
            if tensor.ndim != 3 or tensor.shape[2] != d_model:
                found = f"{name} has shape {tuple(tensor.shape)}"
                raise OperatorError(f"{found}; it must be ({letters}, d_model) with d_model={d_model}")
        batch, queries, _ = query.shape
        if input_flatten.shape[0] != batch:
            raise OperatorError(f"query has B={batch} but input_flatten has B={input_flatten.shape[0]}")
        points = tuple(reference_points.shape)
        if len(points) != 4 or points[:3] != (batch, queries, levels) or points[3] not in (2, 4):
            rule = f"(B, Q, L, 2), points, or (B, Q, L, 4), boxes, with B={batch} Q={queries} L={levels}"
            raise OperatorError(f"reference_points has shape {points}; it must be {rule}")
        if len(shapes) != levels:
            raise OperatorError(f"input_spatial_shapes has {len(shapes)} levels, the layer n_levels={levels}")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != input_flatten.shape[:2]):
            found = f"input_padding_mask is {tuple(mask.shape)} of {str(mask.dtype)[6:]}"
            rule = f"{tuple(input_flatten.shape[:2])} of bool, true where a pixel is padding"
            raise OperatorError(f"{found}; it must be {rule}")


def _sizes(shapes, like):
    """(L, 2), width and height of each level, of the type and on the device of ``like``."""
    is_compiling = torch.compiler.is_compiling()
    if is_compiling or torch._C._len_torch_dispatch_stack() or torch.jit.is_tracing():  # it cannot be kept
        if isinstance(shapes, torch.Tensor):
            return shapes.flip(1).to(like.device, like.dtype)
        # Numbers that are written on the GPU: a tensor of them would be copied there by every call.
        sizes = [like.new_full((), size) for height, width in shapes for size in (width, height)]
        return torch.stack(sizes).reshape(-1, 2)
    return _kept_sizes(numbers("spatial_shapes", shapes), like.device, like.dtype)


@functools.lru_cache(maxsize=256)
def _kept_sizes(numbers, device, dtype):
    with torch.inference_mode(False):  # a later call may save it for a gradient
        return torch.tensor(numbers, dtype=dtype, device=device).reshape(-1, 2).flip(1)


def _points(n_points, n_levels):
    """A tuple: the points of each level."""
    points = tuple(n_points) if isinstance(n_points, (list, tuple)) else (n_points,) * n_levels
    if len(points) != n_levels or not all(isinstance(count, int) and count >= 1 for count in points):
        rule = f"must be an integer of at least 1, or a list of {n_levels} (n_levels) of them"
        raise ConfigError("n_points", n_points, rule)
    return points


def _channels(d_model, n_heads, n_levels):
    """Channels of a head."""
    if d_model % n_heads:
        raise ConfigError("d_model", d_model, f"must be a multiple of n_heads={n_heads}")
    channels, refused = d_model // n_heads, []
    for dtype in ITEMSIZE:
        try:
            Constants(n_levels, 1, channels, dtype)
        except ConfigError as error:
            refused.append(error.rule)
    if len(refused) == len(ITEMSIZE):
        rule = f"with n_heads={n_heads}, a head has {channels} channels, which {refused[-1]}"
        raise ConfigError("d_model", d_model, rule)
    return channels

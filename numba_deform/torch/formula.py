"""The operator and its gradients as a formula of PyTorch's operations, for any device and transformation.

It takes much more memory and time than the kernels. But PyTorch can differentiate it as often as one likes, in
both modes, and map it, so it stands in where a gradient has to have gradients; and it can be exported where
nobody knows this operator. ``shapes`` and ``starts`` may be numbers that a graph does not know yet.
"""

import contextlib
import contextvars

import torch
from torch.nn import functional

from ..attention.checks import OperatorError, check_arguments, check_grad_out
from ..kernels.problem import ITEMSIZE, METHODS, ConfigError
from .arguments import as_index

CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))  # dy, dx


def checked(value, shapes, starts, locations, weights, num_points, method):
    """(heights and widths, starts) of the levels as nested lists, of arguments that fit together."""
    shapes, starts = as_index("spatial_shapes", shapes), as_index("level_start_index", starts)
    check_arguments(value, shapes, starts, locations, weights, False, num_points, (*ITEMSIZE, "float64"))
    if method not in METHODS:
        raise ConfigError("method", method, f"must be one of {', '.join(METHODS)}")
    return shapes.tolist(), starts.tolist()


def forward_of(value, shapes, starts, locations, weights, num_points=None, method="default"):
    """(B, Q, H*C) in the type of value."""
    call = _Samples(value, shapes, starts, locations, weights, num_points, method)
    out = 0
    for level in range(len(call.levels)):
        for position, share, _ in call.neighbours(level):
            shares = (call.weights[level] * share).unsqueeze(-1)
            out = out + (call.table[position] * shares).sum(3)
    return out.flatten(2).to(value.dtype)


def backward_of(
    grad_out, value, shapes, starts, locations, weights, num_points=None, method="default", of_value=True,
    of_locations=True, of_weights=True, deterministic=None,
):  # fmt: skip
    """The gradients of value, locations and weights, in their types; an empty tensor for what is not wanted."""
    call = _Samples(value, shapes, starts, locations, weights, num_points, method)
    batch, size, heads, channels = value.shape
    check_grad_out(grad_out.shape, (batch, locations.shape[1], heads * channels))
    given = grad_out.to(call.dtype).unflatten(2, (heads, 1, channels))
    of_table, by_weight, by_location = torch.zeros_like(call.table), [], []
    for level, (height, width) in enumerate(call.levels):
        weight, of_weight, slopes = call.weights[level], 0, 0
        for position, share, slope in call.neighbours(level):
            if of_value:
                added = ((weight * share).unsqueeze(-1) * given).reshape(-1, channels)
                of_table = of_table.index_add(0, position.reshape(-1), added)
            dot = (call.table[position] * given).sum(-1)
            of_weight, slopes = of_weight + share * dot, slopes + slope * dot.unsqueeze(-1)
        by_weight.append(of_weight)
        across, down = (slopes * weight.unsqueeze(-1)).unbind(-1)
        by_location.append(torch.stack([across * width, down * height], -1))
    of_plane = of_table[:-1].reshape(batch, heads, size, channels).transpose(1, 2)
    found = of_plane, torch.cat(by_location, 3).reshape(locations.shape), torch.cat(by_weight, 3)
    each = zip(found, (value, locations, weights), (of_value, of_locations, of_weights), strict=True)
    return tuple(g.reshape(t.shape).to(t.dtype).contiguous() if yes else t.new_empty(0) for g, t, yes in each)


class _Samples:
    """The samples of one call.

    table    (B*H*S + 1, C): the pixels of each batch item and head, and a row of zeros for those outside
    levels   (height, width) of each: numbers, or tensors of one
    weights  of each level, (B, Q, H, P)"""

    def __init__(self, value, shapes, starts, locations, weights, num_points, method):
        batch, size, heads, channels = value.shape
        self.method, device = method, value.device
        if isinstance(shapes, torch.Tensor):
            pairs = shapes.to(device).unbind(0)
            self.levels, self.starts = [pair.unbind(0) for pair in pairs], starts.to(device).unbind(0)
        else:
            self.levels, self.starts = list(zip(shapes[::2], shapes[1::2], strict=True)), starts
        counts = num_points or [locations.shape[4]] * len(self.levels)
        kinds = [tensor.dtype for tensor in (value, locations, weights)]
        self.dtype = torch.float64 if torch.float64 in kinds else torch.float32
        plane = value.to(self.dtype).transpose(1, 2).reshape(batch * heads * size, channels)
        self.table = torch.cat([plane, plane.new_zeros(1, channels)])
        rows = torch.arange(batch * heads, device=device).reshape(batch, 1, heads, 1)
        self._first, self._nowhere = rows * size, batch * heads * size
        samples = (*locations.shape[:3], sum(counts))
        self._locations = locations.to(self.dtype).reshape(*samples, 2).split(list(counts), 3)
        self.weights = weights.to(self.dtype).reshape(samples).split(list(counts), 3)

    def neighbours(self, level):
        """For each neighbour of a level's samples: (row in ``table``, share, how it grows with x and y in
        pixels), (B, Q, H, P), and the last (B, Q, H, P, 2)."""
        height, width = self.levels[level]
        x, y = self._locations[level].unbind(-1)
        x, y, first = x * width, y * height, self._first + self.starts[level]
        if self.method == "discrete":
            column, row = _pixel(x, width), _pixel(y, height)
            yield first + row * width + column, torch.ones_like(x), torch.zeros_like(self._locations[level])
            return
        x, y = x - 0.5, y - 0.5
        near = (x > -1) & (x < width) & (y > -1) & (y < height)
        strange = ~(x.isfinite() & y.isfinite())  # such a location makes its row no number, and its gradient
        nothing = (x + y) * torch.zeros_like(x).masked_fill(strange, torch.nan)
        x, y = x.where(near, 0), y.where(near, 0)
        left, top = x.detach().floor(), y.detach().floor()
        right, bottom = x - left, y - top  # how near they are
        left, top = left.long(), top.long()
        for dy, dx in CORNERS:
            row, column = top + dy, left + dx
            real = near & (row >= 0) & (row < height) & (column >= 0) & (column < width)
            across, down = right if dx else 1 - right, bottom if dy else 1 - bottom
            position = (first + row * width + column).where(real, self._nowhere)
            slope = torch.stack([down if dx else -down, across if dy else -across], -1)
            yield (position, (across * down).where(real, nothing),
                   slope.where(real.unsqueeze(-1), nothing.unsqueeze(-1)))  # fmt: skip


def _pixel(place, size):
    """The pixel next to a coordinate that starts at the level's edge, inside the level."""
    number = (place + 0.5).nan_to_num(0)
    return torch.minimum(number.clamp(min=0), torch.zeros_like(number) + (size - 1)).floor().long()


# --- for exporters ---------------------------------------------------------------------------------
_plugin = contextvars.ContextVar("the version of TensorRT's plugin that is asked for", default=None)


@contextlib.contextmanager
def tensorrt_plugin(version="1"):
    """Inside, torch.onnx.export(dynamo=True) and :func:`decompositions` make of each call of the operator one
    node, TensorRT's plugin MultiscaleDeformableAttnPlugin_TRT, in the domain trt.plugins; it needs PyTorch 2.8.

    version  the node's ``plugin_version``: "1", or "2", which TensorRT 10.11 began and asks for instead

    It takes int32 levels, and all else in value's type: float32, or float16, where locations name wrong pixels.
    The export raises OperatorError for other types, levels with different points, and ``method="discrete"``."""
    if version not in ("1", "2") or not hasattr(torch.onnx, "ops"):
        given = f"version={version!r} with PyTorch {torch.__version__}"
        raise OperatorError(f"{given}: TensorRT's plugin has the versions '1' and '2', and needs PyTorch 2.8")
    token = _plugin.set(version)
    try:
        yield
    finally:
        _plugin.reset(token)


def _plugin_node(value, shapes, starts, locations, weights, num_points, method):
    kind, dtype = str(value.dtype)[6:], value.dtype
    if kind not in ("float32", "float16"):
        raise OperatorError(f"value has dtype {kind}; TensorRT's plugin takes float32 and float16")
    if method != "default" or len(set(num_points or [1])) > 1:
        given = f"num_points={list(num_points)}" if method == "default" else f"method={method!r}"
        raise OperatorError(f"{given}: TensorRT's plugin is bilinear, with one number of points for all levels")
    if not isinstance(shapes, torch.Tensor):  # numbers, which a graph may not know
        index = torch.stack([value.new_full((), n, dtype=torch.int32) for n in (*shapes, *starts)])
        shapes, starts = index[: len(shapes)].unflatten(0, (-1, 2)), index[len(shapes) :]
    samples = *weights.shape[:3], shapes.shape[0], -1
    locations, weights = locations.reshape(*samples, 2).to(dtype), weights.reshape(samples).to(dtype)
    inputs = value, shapes.int(), starts.int(), locations, weights
    return torch.onnx.ops.symbolic(
        "trt.plugins::MultiscaleDeformableAttnPlugin_TRT", inputs,
        {"plugin_version": _plugin.get(), "plugin_namespace": ""}, dtype=dtype, version=1,
        shape=(value.shape[0], locations.shape[1], *value.shape[2:])).flatten(2)  # fmt: skip


def decomposed(value, shapes, starts, locations, weights, num_points=None, method="default"):
    """The operator as what every exporter has: ``grid_sample`` for each level, where its size is a number; else
    :func:`forward_of`. Or what :func:`tensorrt_plugin` asks for."""
    if _plugin.get():
        return _plugin_node(value, shapes, starts, locations, weights, num_points, method)
    if method != "default" or isinstance(shapes, torch.Tensor):
        return forward_of(value, shapes, starts, locations, weights, num_points, method)
    batch, _, heads, channels = value.shape
    levels = list(zip(shapes[::2], shapes[1::2], strict=True))
    counts = list(num_points or [locations.shape[4]] * len(levels))
    queries, dtype = locations.shape[1], torch.promote_types(value.dtype, locations.dtype)
    grids = (2 * locations.to(dtype) - 1).reshape(batch, queries, heads, sum(counts), 2)
    grids = grids.transpose(1, 2).reshape(batch * heads, queries, sum(counts), 2).split(counts, 2)
    found = []
    for (height, width), start, grid in zip(levels, starts, grids, strict=True):
        plane = value.narrow(1, start, height * width).permute(0, 2, 3, 1).to(dtype)
        plane = plane.reshape(batch * heads, channels, height, width)
        found.append(functional.grid_sample(plane, grid, "bilinear", "zeros", align_corners=False))
    shares = weights.to(dtype).reshape(batch, queries, heads, sum(counts)).transpose(1, 2)
    shares = shares.reshape(batch * heads, 1, queries, sum(counts))
    out = (torch.cat(found, -1) * shares).sum(-1).reshape(batch, heads * channels, queries)
    return out.transpose(1, 2).to(value.dtype)

"""The operator and its gradients in PyTorch's own operations, for tensors on the CPU.

Sums are float32, or float64 if an argument is. Levels and neighbours are loops; the rest is vectorised.
"""

import numpy as np
import torch

from ..attention.checks import OperatorError, check_arguments, check_grad_out
from ..kernels.problem import ITEMSIZE, METHODS, ConfigError

CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))  # dy, dx


def as_index(name, numbers):
    """An index tensor as it is, or a flat list of its numbers as the NumPy array that ``check_arguments``
    takes; ``name`` is that of the argument."""
    if isinstance(numbers, torch.Tensor):
        return numbers
    check_numbers(name, numbers)
    array = np.array(numbers, np.int64)
    return array if name == "level_start_index" else array.reshape(-1, 2)


def check_numbers(name, numbers):
    """OperatorError for a flat list that no index tensor could be made of."""
    if not all(isinstance(number, (int, np.integer, torch.SymInt)) for number in numbers):
        raise OperatorError(f"{name}={list(numbers)}: they are integers")
    if name == "spatial_shapes" and len(numbers) % 2:
        raise OperatorError(f"{name}={list(numbers)}: it is a height and a width for each level")


def forward_of(value, shapes, starts, locations, weights, num_points=None, method="default"):
    """(B, Q, H*C) in the type of value; arguments as ``torch.ops.numba_deform.ms_deform_attn`` has them,
    index tensors or flat lists."""
    call = _Call(value, shapes, starts, locations, weights, num_points, method)
    out = value.new_zeros((call.batch, call.queries, call.heads, call.channels), dtype=call.dtype)
    for level in range(len(call.levels)):
        weight = call.weights(level)
        for position, share, _ in call.neighbours(level):
            out += torch.einsum("bqhpc,bqhp->bqhc", call.table[position], weight * share)
    return out.flatten(2).to(value.dtype)


def backward_of(
    grad_out, value, shapes, starts, locations, weights, num_points=None, method="default", of_value=True,
    of_locations=True, of_weights=True, deterministic=None,
):  # fmt: skip
    """The gradients of value, locations and weights, in their types; an empty tensor for what is not wanted."""
    call = _Call(value, shapes, starts, locations, weights, num_points, method)
    check_grad_out(grad_out.shape, (call.batch, call.queries, call.heads * call.channels))
    given = grad_out.to(call.dtype).reshape(call.batch, call.queries, call.heads, 1, call.channels)
    of_table = torch.zeros_like(call.table)
    by_weight, by_location = [], []
    for level, (height, width) in enumerate(call.levels):
        weight = call.weights(level)
        of_weight, slopes = torch.zeros_like(weight), torch.zeros(*weight.shape, 2, dtype=call.dtype)
        for position, share, slope in call.neighbours(level):
            if of_value:
                added = (weight * share).unsqueeze(-1) * given
                of_table.index_add_(0, position.reshape(-1), added.reshape(-1, call.channels))
            if of_locations or of_weights:
                dot = (call.table[position] * given).sum(-1)
                of_weight += share * dot
                slopes += slope * dot.unsqueeze(-1)
        size = torch.tensor([width, height], dtype=call.dtype)
        by_weight.append(of_weight)
        by_location.append(torch.where(slopes == 0, 0, slopes * weight.unsqueeze(-1) * size))
    of_plane = of_table[:-1].reshape(call.batch, call.heads, -1, call.channels).transpose(1, 2)
    nothing = value.new_empty(0)
    return (
        of_plane.to(value.dtype).contiguous() if of_value else nothing,
        torch.cat(by_location, 3).reshape(locations.shape).to(locations.dtype) if of_locations else nothing,
        torch.cat(by_weight, 3).reshape(weights.shape).to(weights.dtype) if of_weights else nothing,
    )


class _Call:
    """The arguments of one call, checked.

    table   (B*H*S + 1, C): the pixels of each batch item and head, and a row of zeros for those outside
    levels  (height, width) of each"""

    def __init__(self, value, shapes, starts, locations, weights, num_points, method):
        shapes, starts = as_index("spatial_shapes", shapes), as_index("level_start_index", starts)
        check_arguments(value, shapes, starts, locations, weights, False, num_points, (*ITEMSIZE, "float64"))
        if method not in METHODS:
            raise ConfigError("method", method, f"must be one of {', '.join(METHODS)}")
        self.batch, size, self.heads, self.channels = value.shape
        self.queries, self.method = locations.shape[1], method
        self.levels, self.starts = shapes.tolist(), starts.tolist()
        counts = num_points or [locations.shape[4]] * len(self.levels)
        kinds = [tensor.dtype for tensor in (value, locations, weights)]
        self.dtype = torch.float64 if torch.float64 in kinds else torch.float32
        plane = value.to(self.dtype).transpose(1, 2).reshape(-1, self.channels)
        self.table = torch.cat([plane, plane.new_zeros(1, self.channels)])
        rows = torch.arange(self.batch * self.heads).reshape(self.batch, 1, self.heads, 1)
        self._first, self._nowhere = rows * size, len(plane)
        samples = (self.batch, self.queries, self.heads, -1)
        self._locations = locations.to(self.dtype).reshape(*samples, 2).split(counts, 3)
        self._weights = weights.to(self.dtype).reshape(samples).split(counts, 3)

    def weights(self, level):
        """(B, Q, H, P)."""
        return self._weights[level]

    def neighbours(self, level):
        """For each neighbour of a level's samples: (row in ``table``, share, how it grows with x and y in
        pixels), (B, Q, H, P), and the last (B, Q, H, P, 2)."""
        height, width = self.levels[level]
        x, y = (self._locations[level] * torch.tensor([width, height], dtype=self.dtype)).unbind(-1)
        first = self._first + self.starts[level]
        if self.method == "discrete":
            column = (x + 0.5).nan_to_num(0).clamp(0, width - 1).floor().long()
            row = (y + 0.5).nan_to_num(0).clamp(0, height - 1).floor().long()
            flat = torch.zeros(*x.shape, 2, dtype=self.dtype)
            yield first + row * width + column, torch.ones_like(x), flat
            return
        x, y = x - 0.5, y - 0.5
        near = (x > -1) & (x < width) & (y > -1) & (y < height)
        x, y = x.where(near, 0), y.where(near, 0)
        left, top = x.floor(), y.floor()
        right, bottom = x - left, y - top  # how near they are
        left, top = left.long(), top.long()
        for dy, dx in CORNERS:
            row, column = top + dy, left + dx
            real = near & (row >= 0) & (row < height) & (column >= 0) & (column < width)
            across, down = right if dx else 1 - right, bottom if dy else 1 - bottom
            position = (first + row * width + column).where(real, self._nowhere)
            slope = torch.stack([down if dx else -down, across if dy else -across], -1)
            yield position, (across * down).where(real, 0), slope.where(real.unsqueeze(-1), 0)

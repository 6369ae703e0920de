"""The operator and its gradients on a CPU: compiled by Numba, in as many threads as PyTorch has.

A thread has rows of the output, or for gradients planes, all that one head has of a batch item: each number is
added up by one thread in one order, so results are the same in every run and for every number of threads.
Sums are in float32, or in float64 where an argument is; 16-bit values are converted as a whole before. A
location that is no number makes its row NaN, as it does in grid_sample.

Numba keeps the machine code on disk, where it can (its variable NUMBA_CACHE_DIR says where).
"""

import functools
import math
import os
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numba import njit

from ..attention.checks import check_grad_out
from .formula import checked

GRAIN = 1 << 18  # multiplications that are worth a thread


def compiled(function):
    """The function, compiled when it is first called."""
    found = njit(nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})(function)
    try:
        found.enable_caching()
    except RuntimeError as error:  # neither the package's directory nor the user's can be written
        warnings.warn(f"compiled anew by each process without NUMBA_CACHE_DIR: {error}", stacklevel=3)
    return found


def forward_of(value, shapes, starts, locations, weights, num_points=None, method="default"):
    """(B, Q, H*C) in the type of value; arguments as ``torch.ops.numba_deform.ms_deform_attn`` has them."""
    call = _Call(value, shapes, starts, locations, weights, num_points, method)
    out = torch.empty(call.rows, call.channels, dtype=call.dtype)
    _in_parts(_forward, call, call.rows, (*call.arguments, out.numpy()))
    return out.reshape(call.out_shape).to(value.dtype)


def backward_of(
    grad_out, value, shapes, starts, locations, weights, num_points=None, method="default", of_value=True,
    of_locations=True, of_weights=True, deterministic=None,
):  # fmt: skip
    """The gradients of value, locations and weights, in their types; an empty tensor for what is not wanted."""
    call = _Call(value, shapes, starts, locations, weights, num_points, method)
    check_grad_out(grad_out.shape, call.out_shape)
    wanted, own = (of_value, of_locations, of_weights), (call.value, call.locations, call.weights)
    found = [torch.zeros(tensor.shape if yes else (0,) * tensor.ndim, dtype=call.dtype)
             for tensor, yes in zip(own, wanted, strict=True)]  # fmt: skip
    given = _contiguous(grad_out, call.dtype).reshape(call.rows, call.channels).numpy()
    # Shares of rows meet in the gradient of value: then a thread has whole planes.
    pieces, rows = (call.planes, call.queries) if of_value else (call.rows, 1)
    arguments = *call.arguments, given, *(tensor.numpy() for tensor in found), rows
    _in_parts(_backward, call, pieces, arguments)
    each = zip(found, (value, locations, weights), wanted, strict=True)
    return tuple(g.reshape(t.shape).to(t.dtype) if yes else t.new_empty(0) for g, t, yes in each)


class _Call:
    """The arguments of one call, checked, as arrays: ``value`` (B*S*H, C), ``locations`` (B*Q*H, N, 2) and
    ``weights`` (B*Q*H, N); ``arguments`` are what both kernels take first."""

    def __init__(self, value, shapes, starts, locations, weights, num_points, method):
        shapes, starts = checked(value, shapes, starts, locations, weights, num_points, method)
        batch, size, heads, self.channels = value.shape
        self.queries = locations.shape[1]
        self.planes, self.rows = batch * heads, batch * heads * self.queries
        self.out_shape = batch, self.queries, heads * self.channels
        kinds = [tensor.dtype for tensor in (value, locations, weights)]
        self.dtype = torch.float64 if torch.float64 in kinds else torch.float32
        counts = np.array(num_points or [locations.shape[4]] * len(shapes), np.int64)
        levels = np.column_stack([shapes, starts, counts]).astype(np.int64)
        self.samples = int(counts.sum())
        self.value = _contiguous(value, self.dtype).view(-1, self.channels)
        self.locations = _contiguous(locations, self.dtype).view(self.rows, self.samples, 2)
        self.weights = _contiguous(weights, self.dtype).view(self.rows, self.samples)
        sizes = size, heads, self.queries
        arrays = (tensor.numpy() for tensor in (self.value, self.locations, self.weights))
        self.arguments = *arrays, levels, sizes, method == "discrete"


def _contiguous(tensor, dtype):
    return tensor.detach().resolve_neg().to(dtype).contiguous()


# --- threads ---------------------------------------------------------------------------------------
def _in_parts(kernel, call, pieces, arguments):
    """Call the kernel for ranges of ``pieces``, each in a thread, where there is enough to do for several."""
    work = call.rows * call.samples * call.channels
    parts = max(1, min(torch.get_num_threads(), pieces, math.ceil(work / GRAIN)))
    ends = [pieces * i // parts for i in range(parts + 1)]
    others = [_threads(os.getpid()).submit(kernel, *arguments, *ends[i : i + 2]) for i in range(1, parts)]
    try:
        kernel(*arguments, *ends[:2])
    finally:
        for other in others:
            other.result()


@functools.cache
def _threads(process):
    """Threads of that process: one made by a fork has none of those of its parent."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="numba_deform")


# --- kernels ---------------------------------------------------------------------------------------
@compiled
def _locate(location, height, width, discrete):
    """(row and column of the upper left neighbour, weights of the lower and the right ones, whether any
    neighbour is inside, whether both coordinates are numbers)."""
    number = location.dtype.type
    x, y, zero = location[0] * width, location[1] * height, number(0)
    if discrete:
        x, y = x + number(0.5), y + number(0.5)
        x = min(max(x, zero), width - number(1)) if x == x else zero
        y = min(max(y, zero), height - number(1)) if y == y else zero
        return int(y), int(x), zero, zero, True, True
    x, y = x - number(0.5), y - number(0.5)
    if not (np.isfinite(x) and np.isfinite(y)):
        return 0, 0, zero, zero, False, False
    if not (x > -1 and x < width and y > -1 and y < height):
        return 0, 0, zero, zero, False, True
    left, top = np.floor(x), np.floor(y)
    return int(top), int(left), y - top, x - left, True, True


@compiled
def _forward(value, locations, weights, levels, sizes, discrete, out, first, last):
    """Rows ``first`` to ``last`` of out (B*Q*H, C), counted with all queries of a head in turn."""
    size, heads, queries = sizes
    one, channels = out.dtype.type(1), value.shape[1]
    total = np.empty(channels, out.dtype)
    for number in range(first, last):
        plane, query = divmod(number, queries)
        item, head = divmod(plane, heads)
        row = (item * queries + query) * heads + head
        total[:] = 0
        sample = 0
        for level in range(len(levels)):
            height, width, start, count = levels[level]
            high, wide = out.dtype.type(height), out.dtype.type(width)
            for sample in range(sample, sample + count):  # noqa: B020
                top, left, down, right, near, real = _locate(locations[row, sample], high, wide, discrete)
                if not real:
                    total[:] = np.nan
                if not near:
                    continue
                for dy in range(2):
                    for dx in range(2):
                        y, x = top + dy, left + dx
                        share = (down if dy else one - down) * (right if dx else one - right)
                        if y >= 0 and y < height and x >= 0 and x < width and not (discrete and share == 0):
                            share *= weights[row, sample]
                            pixel = value[(item * size + start + y * width + x) * heads + head]
                            for c in range(channels):
                                total[c] += share * pixel[c]
            sample += 1
        for c in range(channels):
            out[row, c] = total[c]


@compiled
def _backward(
    value, locations, weights, levels, sizes, discrete, given, of_value, of_locations, of_weights, rows, first,
    last,
):  # fmt: skip
    """Gradients of rows ``first * rows`` to ``last * rows``, counted likewise, where they have room."""
    size, heads, queries = sizes
    one, zero, channels = given.dtype.type(1), given.dtype.type(0), value.shape[1]
    for number in range(first * rows, last * rows):
        plane, query = divmod(number, queries)
        item, head = divmod(plane, heads)
        row = (item * queries + query) * heads + head
        asked = given[row]
        sample = 0
        for level in range(len(levels)):
            height, width, start, count = levels[level]
            high, wide = given.dtype.type(height), given.dtype.type(width)
            for sample in range(sample, sample + count):  # noqa: B020
                top, left, down, right, near, real = _locate(locations[row, sample], high, wide, discrete)
                weight = weights[row, sample]
                by_weight, by_x, by_y = zero, zero, zero
                if near:
                    for dy in range(2):
                        for dx in range(2):
                            y, x = top + dy, left + dx
                            across, along = right if dx else one - right, down if dy else one - down
                            share = across * along
                            if y < 0 or y >= height or x < 0 or x >= width or (discrete and share == 0):
                                continue
                            place = (item * size + start + y * width + x) * heads + head
                            if len(of_value):
                                pixel = of_value[place]
                                for c in range(channels):
                                    pixel[c] += weight * share * asked[c]
                            if len(of_locations) or len(of_weights):
                                dot, pixel = zero, value[place]
                                for c in range(channels):
                                    dot += pixel[c] * asked[c]
                                by_weight += share * dot
                                by_x += along * dot if dx else -along * dot
                                by_y += across * dot if dy else -across * dot
                if not real:
                    by_weight = by_x = by_y = given.dtype.type(np.nan)
                if len(of_weights):
                    of_weights[row, sample] = by_weight
                if len(of_locations):
                    of_locations[row, sample, 0] = zero if discrete else by_x * weight * wide
                    of_locations[row, sample, 1] = zero if discrete else by_y * weight * high
            sample += 1

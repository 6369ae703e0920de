"""Kernels bound to the shapes of a call: made once, then launched with addresses alone."""

import ctypes
import functools
import threading

import torch

from ..attention import gradients
from ..attention.auto import LEAST_ROWS
from ..attention.bind import Bound
from ..attention.checks import check_problem
from ..device.limits import HOPPER
from ..engines.gpu.device import find_gpu, require
from ..engines.gpu.launch import ArgumentBlock, ready_launch
from ..kernels.registry import runnable, variant
from .reference import as_index


class Plan:
    """A kernel bound to one problem on one GPU: called with a stream and the addresses of its operands."""

    def __init__(self, bound, *names):
        operands = {name: ctypes.c_uint64() for name in names}
        four = [operands.get(name, 0) for name in ("value", "locations", "weights", "out")]
        block = ArgumentBlock(bound.kernel, bound.arguments(four, extra=operands))
        self.problem, self._operands, self._lock = bound.problem, tuple(operands.values()), threading.Lock()
        self._launch = ready_launch(bound.gpu, bound.kernel, bound.blocks, bound.shared_bytes, block)

    def __call__(self, stream, *addresses):
        with self._lock:
            for operand, address in zip(self._operands, addresses, strict=True):
                operand.value = address
            self._launch(stream)


class _Array:
    """What ``check_problem`` looks at."""

    def __init__(self, shape, dtype):
        self.shape, self.dtype = tuple(shape), dtype


def problem_for(value, locations, weights, shapes, starts, num_points, method):
    """The ``Problem`` of (shape, type) of value, locations and weights, and the numbers of the levels."""
    arrays = [_Array(*facts) for facts in (value, locations, weights)]
    index = as_index("spatial_shapes", shapes), as_index("level_start_index", starts)
    return check_problem(arrays[0], *index, *arrays[1:], num_points=num_points, method=method)


@functools.lru_cache(maxsize=256)
def forward_plan(device, *call):
    """The :class:`Plan` of ``direct`` for what :func:`problem_for` takes: operands value, locations, weights,
    out. None where windows may be faster, which ``auto`` has to find out."""
    problem = problem_for(*call)
    if problem.rows >= LEAST_ROWS and problem.constants.is_usual and call[5] is None:
        return None
    direct = variant("direct")
    bound = Bound(problem, direct, direct.configure(problem.constants), find_gpu(device))
    return Plan(bound, "value", "locations", "weights", "out")


@functools.lru_cache(maxsize=256)
def backward_plan(device, of_value, of_samples, sums, *call):
    """The :class:`Plan` of the backward kernel, likewise: operands value, locations, weights and
    ``gradients.operands``."""
    gpu = find_gpu(device)
    require(gpu, HOPPER, "the backward kernel", runnable(gpu.capability))
    bound = gradients.bound(problem_for(*call), gpu, of_value=of_value, of_samples=of_samples, sums=sums)
    return Plan(bound, "value", "locations", "weights", *gradients.operands(0, 0, 0, 0))


def current_stream(device):
    """The handle of PyTorch's current stream on the GPU of that number."""
    return torch._C._cuda_getCurrentRawStream(device)

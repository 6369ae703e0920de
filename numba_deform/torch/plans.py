"""Kernels bound to the shapes of a call: made once, then launched with addresses alone."""

import contextlib
import ctypes
import functools
import math
import struct
import threading
from collections import namedtuple

import numpy as np
import torch

from ..attention import gradients
from ..attention.auto import launches
from ..attention.bind import encoded_maps
from ..attention.checks import check_problem
from ..attention.launch import GATE_BYTES
from ..attention.memo import made_once
from ..device.limits import HOPPER
from ..engines.gpu.device import beside_captures, find_gpu, is_capturing, require
from ..engines.gpu.launch import ArgumentBlock, clear_step, in_context, launch_step
from ..kernels import backward_sums
from ..kernels.registry import runnable
from ..kernels.set_maps import MAP_BYTES, MOST, WORDS, build
from .arguments import as_index

KEPT_PLANS = 256
KEPT_VALUES = 256  # how many values' encoded maps are kept, 512 bytes each where there are four levels
_captured = set()  # plans of captured calls, kept for good: a graph reads their tables as long as it lives


class Plan:
    """The launches of a call, for one problem on one GPU, in the order in which they are added; called with
    PyTorch's current stream there and the addresses of the operands, in the order of their ``names``.

    What they need beside the operands is memory of each call: tensor maps of value, the words at ``gate`` by
    which one launch tells the next what to do, and what :meth:`keep` asks for. So a call depends on no other,
    and may be captured."""

    def __init__(self, problem, gpu, *names):
        self.problem, self._gpu, self.out_shape = problem, gpu, problem.out_shape
        self._device = torch.device("cuda", gpu.device.device_id)
        self._addresses, place = (ctypes.c_uint64 * len(names))(), ctypes.c_uint64.from_buffer
        self._write = struct.Struct(f"{len(names)}Q").pack_into
        self._known = {name: place(self._addresses, 8 * i) for i, name in enumerate(names)}
        self._steps, self._maps = [], {}  # (kind, box, l2_promotion) -> where a launch finds those maps
        self._scratch, self._pieces = 0, []  # bytes of a call's memory; (where a launch finds it, offset)
        self._lock, self._run = threading.Lock(), in_context(gpu, self._steps)

    def keep(self, size):
        """Where a launch finds ``size`` bytes of each call's memory, a multiple of 128 of PyTorch's 512."""
        self._pieces.append((ctypes.c_uint64(), self._scratch))
        self._scratch += -(-size // MAP_BYTES) * MAP_BYTES
        return self._pieces[-1][0]

    def name(self, name, size):
        """Let launches find ``size`` bytes of each call's memory by a parameter's name: 0 if there are none."""
        self._known[name] = self.keep(size) if size else 0

    def clear(self, name, size):
        """Add: the first bytes at what has this name become 0."""
        self._steps.append(clear_step(self._known[name], size))

    def launch(self, kernel, blocks, *arguments):
        """Add: a launch of a kernel, whose arguments are numbers, or names."""
        block = ArgumentBlock(kernel, [self._known.get(argument, argument) for argument in arguments])
        self._steps.append(launch_step(self._gpu, kernel, blocks, kernel.shared_bytes, block))

    def run(self, bounds):
        """Add: the launches of Bounds."""
        if any("gate" in bound.kernel.parameters for bound in bounds):
            self.name("gate", GATE_BYTES)
        launches = [self._ready(bound) for bound in bounds]
        for options, place in self._maps.items():
            self._steps.append(SetMaps(self._gpu, self.problem, place, self._known["value"], *options))
        self._steps += launches
        return self

    def _ready(self, bound):
        four = [self._known.get(name, 0) for name in ("value", "locations", "weights", "out")]
        block = ArgumentBlock(bound.kernel, bound.arguments(four, self._map_argument, self._known))
        return launch_step(bound.gpu, bound.kernel, bound.blocks, bound.shared_bytes, block)

    def _map_argument(self, *options):
        if options not in self._maps:
            self._maps[options] = self.keep(SetMaps.count(self.problem, *options) * MAP_BYTES)
        return self._maps[options]

    def __call__(self, stream, *addresses):
        with self._lock:
            if stream and is_capturing(stream):  # the default stream, 0, never is
                _captured.add(self)
            self._write(self._addresses, 0, *addresses)
            if self._scratch:
                # Let go after the launches: PyTorch's next owner comes after them on the stream.
                scratch = torch.empty(self._scratch, dtype=torch.uint8, device=self._device)
                start = scratch.data_ptr()
                for argument, offset in self._pieces:
                    argument.value = start + offset
            self._run(stream)


class SetMaps:
    """A step that puts the tensor maps of one kind, of the value at ``value``, to ``place``."""

    def __init__(self, gpu, problem, place, value, *options):
        count, self._number, self._encoded = self.count(problem, *options), gpu.device.device_id, {}
        self._encode = functools.partial(encoded_maps, problem)
        self._options, self._place, self._value, self._parts = options, place, value, []
        for first in range(0, count, MOST):
            kernel = build(min(MOST, count - first))
            target = ctypes.c_uint64()
            words = (ctypes.c_uint64 * (min(MOST, count - first) * WORDS))()
            step = launch_step(gpu, kernel, 1, kernel.shared_bytes, ArgumentBlock(kernel, (target, words)))
            self._parts.append((first * MAP_BYTES, target, words, step))

    @staticmethod
    def count(problem, kind, *_):
        return len(problem.levels) * (problem.batch if kind == "batch" else 1)

    def __call__(self, stream):
        value = self._value.value
        encoded = self._encoded.get(value)
        if encoded is None:
            if len(self._encoded) >= KEPT_VALUES:
                self._encoded.pop(next(iter(self._encoded)))
            with torch.cuda.device(self._number):
                encoded = self._encoded[value] = self._encode(value, *self._options).tobytes()
        for start, target, words, step in self._parts:
            target.value = self._place.value + start
            ctypes.memmove(words, encoded[start : start + ctypes.sizeof(words)], ctypes.sizeof(words))
            if (status := step(stream))[0]:
                break
        return status


_Array = namedtuple("_Array", "shape dtype")  # what ``check_problem`` looks at


def problem_for(*call):
    """The ``Problem`` of a call: shape and type of value, of locations and of weights, numbers of the levels'
    shapes and of their starts, num_points, method."""
    *facts, shapes, starts, num_points, method = call
    arrays = [_Array(tuple(shape), dtype) for shape, dtype in zip(facts[::2], facts[1::2], strict=True)]
    index = as_index("spatial_shapes", shapes), as_index("level_start_index", starts)
    return check_problem(arrays[0], *index, *arrays[1:], num_points=num_points, method=method)


@contextlib.contextmanager
def _on(device):
    """Inside, kernels may be loaded for the GPU of that number, also while a graph is captured; the current GPU
    is current again afterwards."""
    with torch.cuda.device(device), beside_captures():
        yield


@made_once(KEPT_PLANS)
def forward_plan(device, *call):
    """The :class:`Plan` of the fastest kernels for what :func:`problem_for` takes: operands value, locations,
    weights, out. ``call`` are its arguments; ``gradients(of_value, of_samples, sums)`` is the plan of those."""
    problem = problem_for(*call)
    with _on(device):
        gpu = find_gpu(device)
        plan = Plan(problem, gpu, "value", "locations", "weights", "out").run(launches(gpu, problem))
    plan.call = call
    # A backward pass makes no key of shapes and types again: that takes microseconds of each step.
    plan.gradients = functools.cache(lambda *wanted: backward_plan(device, *wanted, *call))
    return plan


@made_once(KEPT_PLANS)
def backward_plan(device, of_value, of_samples, sums, *call):
    """The :class:`Plan` of the gradients, likewise: operands value, locations, weights, the output's gradient,
    and those of value, locations and weights, all in their own types."""
    problem = problem_for(*call)
    in_place = sums == "fp32" and problem.constants.dtype == "float32"
    names = "grad_out", "grad_value" if in_place else "rounded", "grad_locations", "grad_weights"
    shape, dtype = gradients.sums_shape(problem, sums)
    with _on(device):
        gpu = find_gpu(device)
        require(gpu, HOPPER, "the backward kernel", runnable(gpu.capability))
        plan = Plan(problem, gpu, "value", "locations", "weights", *names)
        plan.name("scale", 8 * (sums == "fixed"))
        if of_value:
            size = math.prod(shape) * np.dtype(dtype).itemsize
            if not in_place:
                plan.name("grad_value", size)
            plan.clear("grad_value", size)
        if of_value and sums == "fixed":
            plan.name("largest", 8 * backward_sums.largest_blocks(problem))
            plan.launch(*backward_sums.largest(problem))
            plan.launch(*backward_sums.scale(problem, gradients.fixed_exponent(problem, 0)))
        plan.run(gradients.launches(problem, gpu, of_value, of_samples, sums))
        if of_value and not in_place:
            plan.launch(*backward_sums.rounded(problem, sums))
        return plan


def current_stream(device):
    """The handle of PyTorch's current stream on the GPU of that number."""
    # Not public, but what compiled code calls too; torch.cuda.current_stream makes an object of every handle.
    return torch._C._cuda_getCurrentRawStream(device)

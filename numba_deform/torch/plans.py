"""Kernels bound to the shapes of a call: made once, then launched with addresses alone."""

import contextlib
import ctypes
import functools
import struct
import threading
from collections import namedtuple

import torch

from ..attention import gradients
from ..attention.auto import launches
from ..attention.bind import encoded_maps
from ..attention.checks import check_problem
from ..attention.launch import GATE_BYTES
from ..attention.memo import made_once
from ..device.limits import HOPPER
from ..engines.gpu.device import beside_captures, find_gpu, is_capturing, require
from ..engines.gpu.launch import ArgumentBlock, ready_launch
from ..kernels.registry import runnable
from ..kernels.set_maps import MAP_BYTES, MOST, WORDS, build
from .arguments import as_index

KEPT_PLANS = 256
KEPT_VALUES = 256  # how many values' encoded maps are kept, 512 bytes each where there are four levels
_captured = set()  # plans of captured calls, kept for good: a graph reads their tables as long as it lives


class Plan:
    """The launches of a call, for one problem on one GPU: made of their Bounds, called with PyTorch's current
    stream there and the addresses of the operands, in the order of their ``names``.

    What a launch needs beside the operands is made for each call: tensor maps of value, and the words at
    ``gate`` by which one launch tells the next what to do. So a call depends on no other, and may be
    captured."""

    def __init__(self, bounds, *names):
        self.problem, gpu = bounds[0].problem, bounds[0].gpu
        self.out_shape = self.problem.out_shape
        self._device = torch.device("cuda", gpu.device.device_id)
        self._addresses, place = (ctypes.c_uint64 * len(names))(), ctypes.c_uint64.from_buffer
        self._write = struct.Struct(f"{len(names)}Q").pack_into
        self._operands = {name: place(self._addresses, 8 * i) for i, name in enumerate(names)}
        self._gate, self._maps = ctypes.c_uint64(), {}  # (kind, box, l2_promotion) -> ctypes.c_uint64
        self._launches = [self._ready(bound) for bound in bounds]
        self._setters = [SetMaps(gpu, self.problem, *options) for options in self._maps]
        needs_gate = any("gate" in bound.kernel.parameters for bound in bounds)
        # Maps need an address that is a multiple of 64; PyTorch's are of 512.
        self._scratch = sum(setter.bytes for setter in self._setters) + GATE_BYTES * needs_gate
        self._lock = threading.Lock()

    def _ready(self, bound):
        four = [self._operands.get(name, 0) for name in ("value", "locations", "weights", "out")]
        arguments = bound.arguments(four, self._map_argument, {**self._operands, "gate": self._gate})
        block = ArgumentBlock(bound.kernel, arguments)
        return ready_launch(bound.gpu, bound.kernel, bound.blocks, bound.shared_bytes, block)

    def _map_argument(self, *options):
        return self._maps.setdefault(options, ctypes.c_uint64())

    def __call__(self, stream, *addresses):
        with self._lock:
            if stream and is_capturing(stream):  # the default stream, 0, never is
                _captured.add(self)
            self._write(self._addresses, 0, *addresses)
            if self._scratch:
                # Let go after the launches: PyTorch's next owner comes after them on the stream.
                scratch = torch.empty(self._scratch, dtype=torch.uint8, device=self._device)
                self._fill(scratch.data_ptr(), stream)
            for launch in self._launches:
                launch(stream)

    def _fill(self, place, stream):
        """Put the maps at ``place``, and the gate behind them."""
        for argument, setter in zip(self._maps.values(), self._setters, strict=True):
            argument.value = place
            setter(stream, place, self._operands["value"].value)
            place += setter.bytes
        self._gate.value = place


class SetMaps:
    """Launches that put the tensor maps of one kind into a call's memory; ``bytes`` is how much they take."""

    def __init__(self, gpu, problem, *options):
        count = len(problem.levels) * (problem.batch if options[0] == "batch" else 1)
        self.bytes, self._number, self._encoded = count * MAP_BYTES, gpu.device.device_id, {}
        self._encode = functools.partial(encoded_maps, problem)
        self._options, self._parts = options, []
        for first in range(0, count, MOST):
            kernel = build(min(MOST, count - first))
            target = ctypes.c_uint64()
            words = (ctypes.c_uint64 * (min(MOST, count - first) * WORDS))()
            run = ready_launch(gpu, kernel, 1, kernel.shared_bytes, ArgumentBlock(kernel, (target, words)))
            self._parts.append((first * MAP_BYTES, target, words, run))

    def __call__(self, stream, place, value):
        encoded = self._encoded.get(value)
        if encoded is None:
            if len(self._encoded) >= KEPT_VALUES:
                self._encoded.pop(next(iter(self._encoded)))
            with torch.cuda.device(self._number):
                encoded = self._encoded[value] = self._encode(value, *self._options).tobytes()
        for start, target, words, run in self._parts:
            target.value = place + start
            ctypes.memmove(words, encoded[start : start + ctypes.sizeof(words)], ctypes.sizeof(words))
            run(stream)


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
    weights, out."""
    problem = problem_for(*call)
    with _on(device):
        return Plan(launches(find_gpu(device), problem), "value", "locations", "weights", "out")


@made_once(KEPT_PLANS)
def backward_plan(device, of_value, of_samples, sums, *call):
    """The :class:`Plan` of the backward kernels, likewise: operands value, locations, weights and
    ``gradients.operands``."""
    problem = problem_for(*call)
    with _on(device):
        gpu = find_gpu(device)
        require(gpu, HOPPER, "the backward kernel", runnable(gpu.capability))
        bounds = gradients.launches(problem, gpu, of_value, of_samples, sums)
        return Plan(bounds, "value", "locations", "weights", *gradients.operands(0, 0, 0, 0))


def current_stream(device):
    """The handle of PyTorch's current stream on the GPU of that number."""
    # Not public, but what compiled code calls too; torch.cuda.current_stream makes an object of every handle.
    return torch._C._cuda_getCurrentRawStream(device)

"""Gradients of the operator, on either engine: ``backward`` and ``backward-window`` bound to a call.

Which of them computes a call follows from its arguments alone, as in auto.py: windows are tried where there are
enough rows and both kinds of gradients are wanted, and where too many of the samples looked at lie outside of
them, the second launch does the work.
"""

import math

import numpy as np

from ..device.limits import HOPPER
from ..engines.gpu.device import DeviceArray
from ..kernels import backward, backward_window
from ..kernels.backward import CHANNELS, Backward
from ..kernels.backward_window import BackwardWindow
from ..kernels.direct import GATE_WORDS
from ..kernels.problem import ConfigError
from ..kernels.registry import Variant
from ..kernels.window_fit import probed_samples
from . import auto
from .bind import Bound, OnGpu
from .checks import OperatorError, check_problem
from .request import engine_for

BACKWARD = Variant(
    "backward", systems="", summary="gradients of value, locations and weights", config=Backward,
    module=backward, capability=HOPPER, fetch="l1",
)  # fmt: skip
WINDOW = Variant(
    "backward-window", systems="", summary="the same for samples near their queries, with sums on chip",
    config=BackwardWindow, module=backward_window, capability=HOPPER, fetch="tma",
)  # fmt: skip
KERNELS = {variant.name: variant for variant in (BACKWARD, WINDOW)}
# Cycles of an SM for a sample, of backward and backward-window, and for one outside (bench/NOTES.md).
CYCLES, WINDOW_CYCLES, OUTSIDE_CYCLES = 31.0, 17.0, 200.0
BITS = 62  # of a fixed-point sum, with its sign


def bound(problem, gpu=None, kernel="backward", **parameters):
    """The :class:`Bound` of one of KERNELS, with these parameters; ConfigError for another name."""
    if kernel not in KERNELS:
        raise ConfigError("kernel", kernel, f"must be one of {', '.join(KERNELS)}")
    variant = KERNELS[kernel]
    return Bound(problem, variant, variant.configure(problem.constants, **parameters), gpu)


def launches(problem, gpu, of_value=True, of_samples=True, sums="fp32"):
    """The :class:`Bound` s of the fastest kernels on a GPU, in order; the second one reads words that the first
    one writes at ``gate``."""
    pixels = sum(level.height * level.width for level in problem.levels)
    few = problem.queries < pixels or problem.rows < auto.LEAST_ROWS
    if not (of_value and of_samples and problem.constants.is_usual) or few:
        return (bound(problem, gpu, of_value=of_value, of_samples=of_samples, sums=sums),)
    try:
        limit = int((CYCLES - WINDOW_CYCLES) / OUTSIDE_CYCLES * probed_samples(problem))
        near = bound(problem, gpu, WINDOW.name, sums=sums, limit=limit)
    except ConfigError:  # no windows of these channels, points or numbers
        return (bound(problem, gpu, sums=sums),)
    return near, bound(problem, gpu, sums=sums, is_gated=True)


def operands(grad_out, grad_value, grad_locations, grad_weights, scale=0):
    """What a launch takes beside value, locations and weights: arrays, or addresses."""
    return {
        "grad_out": grad_out, "grad_value": grad_value, "grad_locations": grad_locations,
        "grad_weights": grad_weights, "scale": scale}  # fmt: skip


def sums_shape(problem, sums):
    """Shape and NumPy type of what the gradient of value is added up in; see ``kernels.backward.build``."""
    shape = (problem.batch, problem.spatial_size, problem.heads)
    channels = problem.constants.channels
    if sums == "fixed":
        return (*shape, CHANNELS, channels // CHANNELS), np.int64
    return (*shape, channels), np.float32


def fixed_exponent(problem, exponent):
    """The power of two by which shares are multiplied so that no sum of them leaves 64 bits, where no product
    of a weight and an element of the output's gradient reaches 2^exponent: every sample of a level adds at most
    one such product to one pixel."""
    count = problem.queries * max(problem.constants.point_counts)
    return min(max(BITS - exponent - math.ceil(math.log2(count)), -126), 126)


def gradients(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_out, *,
    engine="auto", kernel="auto", parameters=None, deterministic=False, of_value=True, of_samples=True,
    num_points=None, method="default", **options):  # fmt: skip
    """(gradient of value, of the locations, of the weights) for NumPy arrays, in the types of these.

    Arguments are those of ``check_problem`` and grad_out (B, Q, H*C), the gradient of its result, in the type
    of value. ``kernel`` is one of KERNELS, or "auto": on a GPU the fastest ones, and ``backward`` on the CPU
    engine; ``parameters`` are those of the one that is named. ``deterministic``: the gradient of value is the
    same in every run, to the last bit. What is not asked for (``of_value``, ``of_samples``) is None.
    ``options`` go to the CPU engine."""
    shapes, starts = np.asarray(spatial_shapes), np.asarray(level_start_index)
    problem = check_problem(
        value, shapes, starts, sampling_locations, attention_weights, num_points=num_points, method=method
    )
    if grad_out.shape != problem.out_shape or grad_out.dtype != value.dtype:
        raise OperatorError(
            f"grad_out is {grad_out.shape} {grad_out.dtype}; it must be {problem.out_shape} {value.dtype}"
        )
    if parameters and kernel == "auto":
        raise OperatorError(f"parameters={parameters}: say whose they are by kernel=, {' or '.join(KERNELS)}")
    _, gpu = engine_for(engine, HOPPER, "the backward kernel")
    sums = "fixed" if deterministic else "fp32"
    # Windows find both; what is not wanted is left out below.
    wanted = {} if kernel == WINDOW.name else {"of_value": of_value, "of_samples": of_samples}
    if gpu and kernel == "auto":
        calls = launches(problem, gpu, sums=sums, **wanted)
    else:
        name = BACKWARD.name if kernel == "auto" else kernel
        calls = (bound(problem, gpu, name, sums=sums, **wanted, **(parameters or {})),)
    inputs = [np.ascontiguousarray(a) for a in (value, sampling_locations, attention_weights)]
    shape, dtype = sums_shape(problem, sums)
    total = np.zeros(shape if of_value else (1,), dtype)
    of_locations, of_weights = (np.full_like(a, np.nan) for a in inputs[1:])
    exponent = fixed_exponent(problem, _exponent(grad_out, attention_weights))
    scale = np.array([2.0**exponent], np.float32)
    extra = operands(np.ascontiguousarray(grad_out), total, of_locations, of_weights, scale)
    if gpu:
        extra |= {"gate": np.zeros(GATE_WORDS, np.uint32)}
        copies = {name: DeviceArray.of(gpu, array) for name, array in extra.items()}
        on_gpu = OnGpu(gpu, problem, inputs)
        for call in calls:
            call.launch(on_gpu.addresses, extra=copies)
        gpu.device.sync()
        total, of_locations, of_weights = (copies[name].to_numpy() for name in list(extra)[1:4])
    else:
        calls[0].simulate(inputs, np.empty(0, value.dtype), extra=extra, **options)
    if deterministic:
        total = np.ldexp(np.swapaxes(total, -1, -2).astype(np.float64), -exponent).reshape(value.shape)
    return (
        total.astype(value.dtype) if of_value else None,
        *((of_locations, of_weights) if of_samples else (None, None)),
    )


def _exponent(*arrays):
    """The e for which no product of elements of the arrays reaches 2^e."""
    return sum(math.frexp(float(np.abs(a.astype(np.float64)).max()))[1] for a in arrays)

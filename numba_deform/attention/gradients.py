"""Gradients of the operator, on either engine: the kernel ``backward`` bound to a call."""

import math

import numpy as np

from ..device.limits import HOPPER
from ..engines.gpu.device import DeviceArray
from ..kernels import backward
from ..kernels.backward import CHANNELS, Backward
from ..kernels.registry import Variant
from .bind import Bound, OnGpu
from .checks import OperatorError, check_problem
from .request import engine_for

BACKWARD = Variant(
    "backward", systems="", summary="gradients of value, locations and weights", config=Backward,
    module=backward, capability=HOPPER, fetch="l1",
)  # fmt: skip
BITS = 62  # of a fixed-point sum, with its sign


def bound(problem, gpu=None, **parameters):
    """The :class:`Bound` of the backward kernel; ``parameters`` are those of ``kernels.backward.Backward``."""
    return Bound(problem, BACKWARD, BACKWARD.configure(problem.constants, **parameters), gpu)


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
    engine="auto", deterministic=False, of_value=True, of_samples=True, num_points=None, method="default",
    **options):  # fmt: skip
    """(gradient of value, of the locations, of the weights) for NumPy arrays, in the types of these.

    Arguments are those of ``check_problem`` and grad_out (B, Q, H*C), the gradient of its result, in the type
    of value. ``deterministic``: the gradient of value is the same in every run, to the last bit. What is not
    asked for (``of_value``, ``of_samples``) is None. ``options`` go to the CPU engine."""
    shapes, starts = np.asarray(spatial_shapes), np.asarray(level_start_index)
    problem = check_problem(
        value, shapes, starts, sampling_locations, attention_weights, num_points=num_points, method=method
    )
    if grad_out.shape != problem.out_shape or grad_out.dtype != value.dtype:
        raise OperatorError(
            f"grad_out is {grad_out.shape} {grad_out.dtype}; it must be {problem.out_shape} {value.dtype}"
        )
    _, gpu = engine_for(engine, HOPPER, "the backward kernel")
    sums = "fixed" if deterministic else "fp32"
    call = bound(problem, gpu, of_value=of_value, of_samples=of_samples, sums=sums)
    inputs = [np.ascontiguousarray(a) for a in (value, sampling_locations, attention_weights)]
    shape, dtype = sums_shape(problem, sums)
    total = np.zeros(shape if of_value else (1,), dtype)
    of_locations, of_weights = (np.full_like(a, np.nan) for a in inputs[1:])
    exponent = fixed_exponent(problem, _exponent(grad_out, attention_weights))
    scale = np.array([2.0**exponent], np.float32)
    extra = operands(np.ascontiguousarray(grad_out), total, of_locations, of_weights, scale)
    if gpu:
        copies = {name: DeviceArray.of(gpu, array) for name, array in extra.items()}
        call.launch(OnGpu(gpu, problem, inputs).addresses, extra=copies)
        gpu.device.sync()
        total, of_locations, of_weights = (copies[name].to_numpy() for name in list(extra)[1:4])
    else:
        call.simulate(inputs, np.empty(0, value.dtype), extra=extra, **options)
    if deterministic:
        total = np.ldexp(np.swapaxes(total, -1, -2).astype(np.float64), -exponent).reshape(value.shape)
    return (
        total.astype(value.dtype) if of_value else None,
        *((of_locations, of_weights) if of_samples else (None, None)),
    )


def _exponent(*arrays):
    """The e for which no product of elements of the arrays reaches 2^e."""
    return sum(math.frexp(float(np.abs(a.astype(np.float64)).max()))[1] for a in arrays)

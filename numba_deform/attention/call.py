"""``ms_deform_attn``: check the arguments, pick the variant, run it on the GPU or the CPU engine."""

import contextlib

import numpy as np

from ..engines.gpu.device import (
    DeviceArray,
    beside_captures,
    find_gpu,
    gpu_or_none,
    is_capturing,
    require,
    stream_from,
    stream_handle,
)
from ..engines.waivers import told
from ..kernels.registry import runnable, variant
from .arrays import current_stream, empty_like, library_of, on_host, view_of
from .auto import choose, gates, launches
from .bind import Bound, OnGpu
from .checks import OperatorError, check_gradient, check_im2col_step, check_out, check_problem

ENGINES = ("auto", "gpu", "cpu")
INPUTS = ("value", "sampling_locations", "attention_weights")


def ms_deform_attn(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, variant="auto", *,
    engine="auto", padded=False, out=None, stream=None, im2col_step=None, **parameters):  # fmt: skip
    """Multi-scale deformable attention (Zhu et al., Deformable DETR, 2021, eq. 2-3).

    value               (B, S, H, C) float16, bfloat16 or float32; C * itemsize a multiple of 16, <= 256
    spatial_shapes      (L, 2) integers: height and width of each level
    level_start_index   (L,) integers: where each level starts in S
    sampling_locations  (B, Q, H, L, P, 2) (x, y) normalised to [0, 1], not clamped
    attention_weights   (B, Q, H, L, P), after the softmax
    variant             a name of ``numba-deform variants``, or "auto": the fastest expected (auto.py), by the
                        shapes and the locations of this call
    engine              "gpu", "cpu" (the CPU engine; NumPy arrays only) or "auto": GPU if there is one
    padded              value has a border of one zero pixel around every level
    out                 where to put the result; else it is allocated
    stream              CUDA stream; default the caller's current one (PyTorch, CuPy) or the default
    im2col_step         accepted for compatibility, checked, ignored
    parameters          of the variant's configuration: lanes=, stages=, ...

    Returns (B, Q, H*C) in the type and library of ``value``. NumPy arrays are copied to the GPU and
    back; arrays on the GPU (DLPack or CUDA array interface: PyTorch, CuPy, JAX) are used where they
    are, and the call does not wait for the GPU. Values must be finite: a neighbour outside its level
    has weight 0, which does not undo infinities. Gradients do not flow through this call
    (``numba_deform.torch.ms_deform_attn`` has them): tensors that require one, and arrays that JAX traces, are
    refused.

    Raises OperatorError or ConfigError for arguments that do not fit, GpuMissing when the engine or the
    variant needs a GPU that is not there, SimFault from the CPU engine.
    """
    if all_numpy((value, sampling_locations, attention_weights), engine):
        return run_numpy(
            value, np.asarray(spatial_shapes), np.asarray(level_start_index), sampling_locations,
            attention_weights, variant, engine, padded, out, im2col_step, **parameters)[0]  # fmt: skip
    return _run_device(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, variant,
        padded, out, stream, im2col_step, parameters)  # fmt: skip


def _check_engine(engine):
    if engine not in ENGINES:
        raise OperatorError(f"engine={engine!r} must be auto, gpu or cpu")


def all_numpy(arrays, engine):
    """Whether all arrays are NumPy's; raises OperatorError for an engine that cannot take them."""
    _check_engine(engine)
    if all(isinstance(a, np.ndarray) for a in arrays):
        return True
    if engine == "cpu":
        raise OperatorError("engine=cpu takes NumPy arrays; copy the arrays to the host first")
    return False


def pick_engine(engine, chosen):
    """The engine for a variant; see ``engine_for``."""
    return engine_for(engine, chosen.capability, f"variant {chosen.name}")


def engine_for(engine, capability, what):
    """("gpu", Gpu) or ("cpu", None) for engine = auto, gpu, cpu; says why a GPU cannot be used."""
    _check_engine(engine)
    gpu = find_gpu() if engine == "gpu" else gpu_or_none() if engine == "auto" else None
    if gpu is None:
        return "cpu", None
    require(gpu, capability, what, runnable(gpu.capability))
    return "gpu", gpu


def pick_variant(name):
    """The variant of that name; "auto" stands for ``direct`` until there is a GPU to choose for."""
    return variant("direct" if name == "auto" else name)


def settle_variant(name, gpu, problem, parameters):
    """(variant, its configuration, why it was chosen or ""). Nothing is chosen for the CPU engine, with ``gpu``
    None."""
    if gpu and is_open(name, parameters):
        choice = choose(gpu, problem)
        return choice.variant, choice.config, choice.why
    chosen = pick_variant(name)
    return chosen, chosen.configure(problem.constants, **parameters), ""


def is_open(name, parameters):
    """Whether the variant is to be chosen; the parameters of "auto" are those of ``direct``."""
    return name == "auto" and not parameters


def bounds_of(gpu, problem, name, parameters):
    """The :class:`Bound` of each launch of a call on a GPU, as ``auto.launches``."""
    with beside_captures():  # kernels may have to be loaded, and tables copied
        if is_open(name, parameters):
            return launches(gpu, problem)
        chosen, config, _ = settle_variant(name, gpu, problem, parameters)
        return (Bound(problem, chosen, config, gpu),)


_OF_GRAPHS = {}  # id of a DeviceArray -> it: what launches read that were captured


def launch_all(gpu, bounds, addresses, stream):
    """Launch the :class:`Bound` s of a call; ``addresses`` of value, locations, weights and out, ``stream`` of
    cuda.core. What a captured launch reads stays for good."""
    handle = stream_handle(stream)
    capturing = is_capturing(handle)
    needs_gate = len(bounds) > 1
    with gates(gpu).gate(handle, capturing) if needs_gate else contextlib.nullcontext() as gate:
        for bound in bounds:
            extra = {"gate": gate} if needs_gate else {}
            if capturing:
                arguments = bound.arguments(addresses, extra=extra)
                _OF_GRAPHS.update((id(a), a) for a in arguments if isinstance(a, DeviceArray))
            bound.launch(addresses, stream, extra)


def run_numpy(
    value, spatial_shapes, level_start_index, locations, weights, variant_name="auto", engine="auto",
    padded=False, out=None, im2col_step=None, simulate_options=None, **parameters):  # fmt: skip
    """As ``ms_deform_attn`` for NumPy arrays; returns (out, the :class:`Bound` that ran first)."""
    problem = check_problem(value, spatial_shapes, level_start_index, locations, weights, padded)
    check_im2col_step(im2col_step, problem.batch)
    chosen = pick_variant(variant_name)
    config = chosen.configure(problem.constants, **parameters)
    _, gpu = pick_engine(engine, chosen)
    if out is None:
        out = np.empty(problem.out_shape, value.dtype)
    else:
        check_out(out, problem.out_shape, value.dtype)
    arrays = [np.ascontiguousarray(a) for a in (value, locations, weights)]
    if gpu is None:
        bound = Bound(problem, chosen, config)
        told(bound.simulate(arrays, out, **(simulate_options or {})))
        return out, bound
    on_gpu, stream = OnGpu(gpu, problem, arrays), gpu.device.default_stream
    bounds = bounds_of(gpu, problem, variant_name, parameters)
    launch_all(gpu, bounds, on_gpu.addresses, stream)
    out[...] = on_gpu.out.to_numpy()
    return out, bounds[0]


def check_on_device(value, spatial_shapes, level_start_index, locations, weights, padded):
    """(Gpu, :class:`Problem`, views of value, locations and weights) of arrays that are on one GPU."""
    arrays = dict(zip(INPUTS, (value, locations, weights), strict=True))
    for name, array in arrays.items():
        check_gradient(name, array)
    views = {name: view_of(name, array) for name, array in arrays.items()}
    device = views["value"].device
    for key, view in views.items():
        if view.device != device:
            raise OperatorError(f"value is on GPU {device} but {key} on GPU {view.device}")
    gpu = find_gpu(device)
    problem = check_problem(
        views["value"], on_host("spatial_shapes", spatial_shapes),
        on_host("level_start_index", level_start_index), views["sampling_locations"],
        views["attention_weights"], padded)  # fmt: skip
    return gpu, problem, tuple(views.values())


def _run_device(
    value, spatial_shapes, level_start_index, locations, weights, name, padded, out, stream,
    im2col_step, parameters):  # fmt: skip
    pick_variant(name).unresolved(**parameters)  # what is wrong there comes before all else
    gpu, problem, views = check_on_device(value, spatial_shapes, level_start_index, locations, weights, padded)
    check_im2col_step(im2col_step, problem.batch)
    if out is None:
        out = empty_like(value, problem.out_shape)
    check_gradient("out", out)
    target = view_of("out", out)
    if target.shape != problem.out_shape or target.dtype != views[0].dtype:
        raise OperatorError(
            f"out is {target.shape} {target.dtype}; it must be {problem.out_shape} {views[0].dtype}"
        )
    stream = stream_from(gpu, stream if stream is not None else current_stream(value))
    addresses = [view.address for view in (*views, target)]
    launch_all(gpu, bounds_of(gpu, problem, name, parameters), addresses, stream)
    if library_of(value) == "jax":
        stream.sync()  # JAX has no stream to be ordered on
    return out

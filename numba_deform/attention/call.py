"""``ms_deform_attn``: one call in four steps, each entered once: checked (request.py), its kernels chosen
(auto.py) and bound (bind.py), launched (launch.py) or run by the CPU engine."""

import numpy as np

from ..engines.gpu.device import stream_from
from ..engines.waivers import told
from .arrays import current_stream, library_of
from .auto import bounds_of
from .bind import OnGpu
from .launch import launch_all
from .request import ask


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

    Returns (B, Q, H*C) in the type and library of ``value``, empty where B, Q or H is 0. NumPy arrays are
    copied to the GPU and back; arrays on the GPU (DLPack or CUDA array interface: PyTorch, CuPy, JAX) are used
    where they are, and the call does not wait for the GPU. Values must be finite: a neighbour outside its level
    has weight 0, which does not undo infinities. Gradients do not flow through this call
    (``numba_deform.torch.ms_deform_attn`` has them): tensors that require one, and arrays that JAX traces, are
    refused.

    Raises OperatorError or ConfigError for arguments that do not fit, GpuMissing when the engine or the
    variant needs a GPU that is not there, SimFault from the CPU engine.
    """
    request = ask(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, variant, engine,
        padded, im2col_step, parameters)  # fmt: skip
    out = request.output(value, out)
    if request.on_host:
        run_on_host(request, out)
        return out
    address = request.address_of(out)
    if request.problem.rows:
        stream = stream_from(request.gpu, stream if stream is not None else current_stream(value))
        addresses = [*(view.address for view in request.inputs), address]
        launch_all(bounds_of(request), addresses, stream)
        if library_of(value) == "jax":
            stream.sync()  # JAX has no stream to be ordered on
    return out


def run_on_host(request, out, **simulate_options):
    """The :class:`Bound` that ran first, of a request of NumPy arrays, into ``out``; None where there is
    nothing to compute. ``simulate_options`` go to the CPU engine."""
    if not request.problem.rows:
        return None
    bounds = bounds_of(request)
    arrays = [np.ascontiguousarray(array) for array in request.inputs]
    if request.gpu is None:
        told(bounds[0].simulate(arrays, out, **simulate_options))
        return bounds[0]
    on_gpu = OnGpu(request.gpu, request.problem, arrays)
    launch_all(bounds, on_gpu.addresses, request.gpu.device.default_stream)
    out[...] = on_gpu.out.to_numpy()
    return bounds[0]

"""``ms_deform_attn``: check the arguments, pick the variant, run it on the GPU or the CPU engine."""

import functools
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from ..device.packages import require_cuda
from ..engines.gpu.device import (
    DeviceArray,
    copy_to_host,
    find_gpu,
    gpu_or_none,
    is_capturing,
    launch,
    require,
    resident_blocks,
    stream_from,
    stream_handle,
)
from ..engines.gpu.guard import guarded_launcher
from ..engines.tensormap import level_maps, level_maps_rank5, make_levels
from ..kernels.registry import Constants, Variant, variant
from ..workloads.workload import NUMPY_DTYPES
from .auto import FITS, KEPT_PROBLEMS, choose, watch

ENGINES = ("auto", "gpu", "cpu")


class OperatorError(ValueError):
    """An argument of the operator is unusable; the text names it, its value and the rule."""


@dataclass(frozen=True)
class Problem:
    """The checked shape of one call: everything that does not depend on where the data are."""

    batch: int
    spatial_size: int
    heads: int
    queries: int
    levels: tuple  # of host.tensormap.Level
    constants: Constants

    @property
    def rows(self):
        return self.batch * self.queries * self.heads

    @property
    def out_shape(self):
        return (self.batch, self.queries, self.heads * self.constants.channels)

    @property
    def samples(self):
        return self.rows * self.constants.levels * self.constants.points

    @property
    def level_table(self):
        """(L, 4) int32: height, width, start, row stride, as the kernels read them."""
        return np.array(self.levels, np.int32).reshape(-1, 4)


@dataclass(frozen=True)
class Result:
    """What ``run`` did, beside the output: for the command line and the benchmarks."""

    engine: str  # "gpu" or "cpu"
    variant: Variant
    config: object
    problem: Problem
    kernel: object
    report: object = None  # sim.Report on the CPU engine
    outside: int | None = (
        None  # samples that no window held, as the kernel counted on the CPU engine
    )
    why: str = ""  # what "auto" says of its choice


# --- checks ---------------------------------------------------------------------------------------
def _dtype_name(name, dtype, allowed):
    text = str(dtype).rpartition(".")[2]
    if text not in allowed:
        raise OperatorError(f"{name} has dtype {text}; it must be one of {', '.join(allowed)}")
    return text


def check_problem(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, padded=False
):
    """A :class:`Problem` from objects with ``shape`` and ``dtype``; the index arrays are NumPy.

    Raises OperatorError for ranks, types or shapes that do not fit together, and ConfigError for a
    number of channels that no kernel supports.
    """
    arrays = {
        "value": (value, 4, "(B, S, H, C)"),
        "sampling_locations": (sampling_locations, 6, "(B, Q, H, L, P, 2)"),
        "attention_weights": (attention_weights, 5, "(B, Q, H, L, P)"),
        "spatial_shapes": (spatial_shapes, 2, "(L, 2)"),
        "level_start_index": (level_start_index, 1, "(L,)"),
    }
    for name, (array, rank, letters) in arrays.items():
        if len(array.shape) != rank:
            raise OperatorError(
                f"{name} has shape {tuple(array.shape)}; it must have rank {rank}: {letters}"
            )
        if 0 in array.shape:
            raise OperatorError(f"{name} has shape {tuple(array.shape)}: no dimension may be 0")
    floats = tuple(NUMPY_DTYPES)
    dtype = _dtype_name("value", value.dtype, floats)
    location_dtype = _dtype_name("sampling_locations", sampling_locations.dtype, floats)
    weight_dtype = _dtype_name("attention_weights", attention_weights.dtype, floats)
    for name in ("spatial_shapes", "level_start_index"):
        _dtype_name(name, arrays[name][0].dtype, ("int64", "int32"))

    batch, spatial_size, heads, channels = value.shape
    _, queries, _, levels, points, two = sampling_locations.shape
    if two != 2:
        raise OperatorError(
            f"sampling_locations ends in {two}; its last dimension is (x, y), size 2"
        )
    if tuple(attention_weights.shape) != tuple(sampling_locations.shape[:5]):
        raise OperatorError(
            f"attention_weights has shape {tuple(attention_weights.shape)}, but sampling_locations asks "
            f"for {tuple(sampling_locations.shape[:5])}"
        )
    for letter, axis, mine, theirs in (("B", 0, batch, 0), ("H", 2, heads, 2)):
        other = sampling_locations.shape[theirs]
        if other != mine:
            raise OperatorError(
                f"value has {letter}={mine} (dimension {axis}) but sampling_locations has "
                f"{letter}={other}"
            )
    for name, array in (
        ("spatial_shapes", spatial_shapes),
        ("level_start_index", level_start_index),
    ):
        if array.shape[0] != levels:
            raise OperatorError(
                f"{name} describes {array.shape[0]} levels, sampling_locations has L={levels}"
            )
    if spatial_shapes.shape[1] != 2:
        raise OperatorError(f"spatial_shapes has shape {tuple(spatial_shapes.shape)}; it is (L, 2)")

    border = 2 if padded else 0
    sizes = [(int(h) + border) * (int(w) + border) for h, w in spatial_shapes]
    if min(int(n) for n in np.asarray(spatial_shapes).flat) < 1:
        raise OperatorError(f"spatial_shapes={np.asarray(spatial_shapes).tolist()}: sizes are >= 1")
    other = sum((int(h) + 2) * (int(w) + 2) for h, w in spatial_shapes)
    if sum(sizes) != spatial_size:
        hint = ""
        if not padded and other == spatial_size:
            hint = "; a data directory with one pixel of padding needs padded=True"
        elif padded and sum(int(h) * int(w) for h, w in spatial_shapes) == spatial_size:
            hint = "; it has no padding, so padded must be False"
        raise OperatorError(
            f"spatial_shapes says {sum(sizes)} positions but value has S={spatial_size}{hint}"
        )
    starts = [int(s) for s in level_start_index]
    for i, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if start < 0 or start + size > spatial_size:
            raise OperatorError(
                f"level_start_index[{i}]={start} with {size} positions does not lie inside "
                f"S={spatial_size}"
            )
    constants = Constants(levels, points, channels, dtype, location_dtype, weight_dtype)
    problem = Problem(
        batch, spatial_size, heads, queries,
        make_levels(spatial_shapes, starts, padded), constants,
    )  # fmt: skip
    item = np.dtype(NUMPY_DTYPES[dtype]).itemsize
    plane = spatial_size * heads * channels * item
    if problem.rows >= 2**31:
        raise OperatorError(f"B*Q*H={problem.rows} must stay below 2^31; split the batch")
    if plane >= 2**31:
        raise OperatorError(
            f"one batch of value takes S*H*C*itemsize={plane} bytes; it must stay below 2^31, since "
            "kernels use 32-bit offsets inside a batch; split the heads"
        )
    return problem


def check_im2col_step(step, batch):
    """Other implementations split the batch by it; here it is only checked, then ignored."""
    if step is None:
        return
    if not isinstance(step, int) or step < 1 or batch % min(step, batch):
        raise OperatorError(f"im2col_step={step}: it must be >= 1 and divide the batch {batch}")


# --- the two engines ------------------------------------------------------------------------------
@dataclass
class Operands:
    """One call's operands, as addresses (GPU) or NumPy arrays (CPU engine); kernels pick theirs."""

    problem: Problem
    value: object
    locations: object
    weights: object
    out: object
    levels: object
    make_maps: object
    tables: object = None  # of a kernel that is fitted to its problem
    debug: object = 0  # where the kernel copies the tiles of row ``debug_row``, for ``run debug=1``
    debug_row: int = -1

    def maps(self, kind, box, l2_promotion):
        """Tensor maps with boxes of (height, width): kind ``batch``, a rank-3 one (H*C, w, h) for each
        (batch, level); ``level``, a rank-5 one for each level."""
        return self.make_maps(kind, box, l2_promotion)

    rows = property(lambda self: self.problem.rows)
    rows_per_batch = property(lambda self: self.problem.queries * self.problem.heads)
    heads = property(lambda self: self.problem.heads)
    spatial_size = property(lambda self: self.problem.spatial_size)


def _maps(problem, value, kind, box, l2_promotion):
    c = problem.constants
    make = level_maps if kind == "batch" else level_maps_rank5
    return make(
        value, problem.batch, problem.heads, c.channels, c.dtype, problem.levels,
        problem.spatial_size, box_hw=box, l2_promotion=l2_promotion,
    )  # fmt: skip


CPU_RESIDENT = (
    2  # blocks of a persistent kernel on the CPU engine: few, so that each goes round often
)


def run_cpu(problem, chosen, config, arrays, out, debug=(0, -1), **options):
    """Run on the CPU engine into the NumPy array ``out``; ``options`` go to ``sim.simulate``.

    ``debug`` is (array for the tiles, row), for a configuration with debug.
    """
    from ..engines.cpu import simulate

    value, locations, weights = arrays
    fitted = chosen.fit(problem, config, locations)
    config, make_tables = fitted.config, fitted.tables
    blocks = chosen.module.blocks(problem, config, lambda: CPU_RESIDENT)
    operands = Operands(
        problem, value, locations, weights, out, problem.level_table,
        lambda *options: _maps(problem, value, *options), make_tables and make_tables(blocks), *debug,
    )  # fmt: skip
    kernel = chosen.kernel(config, problem.constants)
    report = simulate(
        kernel,
        blocks,
        config.threads,
        chosen.module.arguments(operands, config),
        shared_bytes=chosen.dynamic_shared_bytes(config, problem.constants),
        **options,
    )
    outside = None
    if operands.tables:
        lost, launches = map(int, operands.tables.counts)  # one launch for each schedule
        outside = lost // launches
    return Result("cpu", chosen, config, problem, kernel, report, outside)


@functools.lru_cache(maxsize=64)
def _level_table(gpu, problem_levels):
    table = np.array(problem_levels, np.int32).reshape(-1, 4)
    return DeviceArray.of(gpu, table)


def device_maps(gpu, problem, address, kind, box, l2_promotion):
    """A DeviceArray of the encoded tensor maps of a value at ``address``; see :meth:`Operands.maps`."""
    return DeviceArray.of(gpu, _maps(problem, address, kind, box, l2_promotion).encode_into_host())


# Kept for as long as callers come back with the same value.
_kept_maps = functools.lru_cache(maxsize=64)(device_maps)


def gpu_operands(problem, ready, value, locations, weights, out, make_maps, debug=(0, -1)):
    """:class:`Operands` of a launch; tables are DeviceArrays, which live as long as the arguments do."""
    return Operands(
        problem, value, locations, weights, out, _level_table(ready.gpu, problem.levels), make_maps,
        ready.tables, *debug,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Ready:
    """All about a launch that does not depend on where the operands are; ``shared`` is in bytes."""

    gpu: object
    config: object  # as fitted
    kernel: object
    blocks: int
    shared: int
    tables: object  # DeviceArrays, or None


def make_ready(gpu, problem, chosen, config, locations, linked=False, fits=FITS):
    """The :class:`Ready` of a variant; GpuMissing if the GPU is too old.

    A kernel that is fitted to locations is fitted to those at the address ``locations`` unless ``fits`` has
    the problem already.
    """
    require(gpu, chosen.capability, f"variant {chosen.name}")
    fitted = fits.of(gpu, problem, chosen, config, locations)
    config, make_tables = fitted.config, fitted.tables
    kernel = chosen.kernel(config, problem.constants)
    if linked:
        kernel = kernel.with_linked_ptx()
    shared = chosen.dynamic_shared_bytes(config, problem.constants)
    blocks = chosen.module.blocks(problem, config, lambda: resident_blocks(gpu, kernel, shared))
    tables = make_tables and _tables_on_gpu(gpu, make_tables, blocks)
    return Ready(gpu, config, kernel, blocks, shared, tables)


@functools.lru_cache(maxsize=KEPT_PROBLEMS)
def _tables_on_gpu(gpu, make_tables, blocks):
    tables = make_tables(blocks)
    return type(tables)(*(DeviceArray.of(gpu, table) for table in tables))


def gpu_launcher(
    gpu, problem, chosen, config, value, locations, weights, out, stream=None, linked=False,
    debug=(0, -1), guarded=False, fits=FITS,
):  # fmt: skip
    """A function of no arguments that launches the kernel; all operands are device addresses.

    ``fits`` are those of :func:`make_ready`. ``linked`` calls the PTX functions instead of inlining them; see
    ``Kernel.with_linked_ptx``. ``debug`` is (address for the tiles, row), for a configuration with debug. A
    launch of such a one, or with ``guarded``, waits for its end, and instead of a hang the function raises
    what ``host.guard.launch_guarded`` does.
    """
    ready = make_ready(gpu, problem, chosen, config, locations, linked, fits)
    addresses = (value, locations, weights, out)
    return _launcher(ready, problem, chosen, addresses, stream, debug, guarded)


def _launcher(ready, problem, chosen, addresses, stream=None, debug=(0, -1), guarded=False):
    gpu, value = ready.gpu, addresses[0]
    operands = gpu_operands(
        problem,
        ready,
        *addresses,
        lambda *options: _kept_maps(gpu, problem, value, *options),
        debug,
    )
    arguments = chosen.module.arguments(operands, ready.config)
    what = (gpu, ready.kernel, ready.blocks, arguments, ready.shared, stream)
    if guarded or getattr(ready.config, "debug", False):
        return guarded_launcher(*what)
    return functools.partial(launch, *what)


# --- the public call ------------------------------------------------------------------------------
def ms_deform_attn(
    value,
    spatial_shapes,
    level_start_index,
    sampling_locations,
    attention_weights,
    variant="auto",
    *,
    engine="auto",
    padded=False,
    out=None,
    stream=None,
    im2col_step=None,
    **parameters,
):
    """Multi-scale deformable attention (Zhu et al., Deformable DETR, 2021, eq. 2-3).

    value               (B, S, H, C) float16, bfloat16 or float32; C * itemsize a multiple of 16, <= 256
    spatial_shapes      (L, 2) integers: height and width of each level
    level_start_index   (L,) integers: where each level starts in S
    sampling_locations  (B, Q, H, L, P, 2) (x, y) normalised to [0, 1], not clamped
    attention_weights   (B, Q, H, L, P), after the softmax
    variant             a name of ``numba-deform variants``, or "auto": the fastest expected (auto.py), chosen
                        again when the locations of later calls call for it, never while a stream is captured
    engine              "gpu", "cpu" (the CPU engine; NumPy arrays only) or "auto": GPU if there is one
    padded              value has a border of one zero pixel around every level
    out                 where to put the result; else it is allocated
    stream              CUDA stream; default the caller's current one (PyTorch, CuPy) or the default
    im2col_step         accepted for compatibility, checked, ignored
    parameters          of the variant's configuration: lanes=, stages=, ...

    Returns (B, Q, H*C) in the type and library of ``value``. NumPy arrays are copied to the GPU and
    back; arrays on the GPU (DLPack or CUDA array interface: PyTorch, CuPy, JAX) are used where they
    are, and the call does not wait for the GPU. Values must be finite: a neighbour outside its level
    has weight 0, which does not undo infinities.

    Raises OperatorError or ConfigError for arguments that do not fit, GpuMissing when the engine or the
    variant needs a GPU that is not there, SimFault from the CPU engine.
    """
    if all_numpy((value, sampling_locations, attention_weights), engine):
        result = run_numpy(
            value, np.asarray(spatial_shapes), np.asarray(level_start_index), sampling_locations,
            attention_weights, variant, engine, padded, out, im2col_step, **parameters,
        )  # fmt: skip
        return result[0]
    return _run_device(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, variant,
        padded, out, stream, im2col_step, parameters,
    )  # fmt: skip


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
    if engine == "cpu":
        return "cpu", None
    gpu = find_gpu() if engine == "gpu" else gpu_or_none()
    if gpu is None:
        return "cpu", None
    require(gpu, capability, what)
    return "gpu", gpu


def pick_variant(name):
    """The variant of that name; "auto" stands for ``direct`` until there is a GPU to choose for."""
    return variant("direct" if name == "auto" else name)


def settle_variant(name, gpu, problem, locations, parameters, fits=FITS):
    """(variant, its configuration, why it was chosen or ""); ``locations`` and ``fits`` as for
    ``auto.choose``."""
    if _is_open(name, parameters):
        choice = choose(gpu, problem, locations, fits)
        return choice.variant, choice.config, choice.why
    chosen = pick_variant(name)
    return chosen, chosen.configure(problem.constants, **parameters), ""


def _is_open(name, parameters):
    """Whether the variant is to be chosen; the parameters of "auto" are those of ``direct``."""
    return name == "auto" and not parameters


def _launch(gpu, problem, name, parameters, locations, addresses, stream):
    """Launch once; (variant, configuration, why it was chosen or ""). ``locations`` as for ``auto.choose``,
    ``addresses`` of value, locations, weights and out; ``stream`` of cuda.core."""
    if not _is_open(name, parameters):
        chosen = pick_variant(name)
        config = chosen.configure(problem.constants, **parameters)
        gpu_launcher(gpu, problem, chosen, config, *addresses, stream)()
        return chosen, config, ""
    watched, handle = watch(gpu, problem), stream_handle(stream)
    capturing = is_capturing(handle)
    choice = watched.choose(locations, capturing)
    chosen, config = choice.variant, choice.config
    ready = make_ready(gpu, problem, chosen, config, locations, fits=watched.fits)
    _launcher(ready, problem, chosen, addresses, stream)()
    if chosen.is_fitted and not capturing:
        watched.launched(ready.tables.counts, handle)
    return chosen, config, choice.why


def check_out(out, shape, dtype):
    required = f"it must be a writable C-contiguous NumPy array {shape} of {dtype}"
    if not isinstance(out, np.ndarray):
        raise OperatorError(f"out is a {type(out).__name__}; {required}")
    flags = out.flags
    if out.shape != shape or out.dtype != dtype or not (flags.c_contiguous and flags.writeable):
        kind = "" if flags.writeable else "read-only "
        kind += "" if flags.c_contiguous else "non-contiguous "
        raise OperatorError(f"out is {kind}{out.shape} of {out.dtype}; {required}")


def run_numpy(
    value, spatial_shapes, level_start_index, locations, weights, variant_name="auto", engine="auto",
    padded=False, out=None, im2col_step=None, simulate_options=None, **parameters,
):  # fmt: skip
    """As ``ms_deform_attn`` for NumPy arrays; returns (out, :class:`Result`)."""
    problem = check_problem(value, spatial_shapes, level_start_index, locations, weights, padded)
    check_im2col_step(im2col_step, problem.batch)
    chosen = pick_variant(variant_name)
    config = chosen.configure(problem.constants, **parameters)
    kind, gpu = pick_engine(engine, chosen)
    if out is None:
        out = np.empty(problem.out_shape, value.dtype)
    else:
        check_out(out, problem.out_shape, value.dtype)
    arrays = [np.ascontiguousarray(a) for a in (value, locations, weights)]
    if kind == "cpu":
        result = run_cpu(problem, chosen, config, arrays, out, **(simulate_options or {}))
        return out, result
    on_gpu = [DeviceArray.of(gpu, a) for a in arrays]
    target = DeviceArray(gpu, out.shape, out.dtype)
    target.fill(0xFF)
    addresses = [a.address for a in (*on_gpu, target)]
    stream = gpu.device.default_stream
    chosen, config, why = _launch(
        gpu, problem, variant_name, parameters, arrays[1], addresses, stream
    )
    out[...] = target.to_numpy()
    kernel = chosen.kernel(config, problem.constants)
    return out, Result("gpu", chosen, config, problem, kernel, why=why)


def check_on_device(value, spatial_shapes, level_start_index, locations, weights, padded):
    """(Gpu, :class:`Problem`, views of value, locations and weights) of arrays that are on one GPU."""
    views = {
        key: view_of(key, array)
        for key, array in (
            ("value", value), ("sampling_locations", locations), ("attention_weights", weights),
        )
    }  # fmt: skip
    device = views["value"].device
    for key, view in views.items():
        if view.device != device:
            raise OperatorError(f"value is on GPU {device} but {key} on GPU {view.device}")
    gpu = find_gpu(device)
    problem = check_problem(
        views["value"], _on_host("spatial_shapes", spatial_shapes),
        _on_host("level_start_index", level_start_index), views["sampling_locations"],
        views["attention_weights"], padded,
    )  # fmt: skip
    return gpu, problem, tuple(views.values())


def _run_device(
    value, spatial_shapes, level_start_index, locations, weights, name, padded, out, stream,
    im2col_step, parameters,
):  # fmt: skip
    pick_variant(name).unresolved(
        **parameters
    )  # says what is wrong before anything else is looked at
    gpu, problem, views = check_on_device(
        value, spatial_shapes, level_start_index, locations, weights, padded
    )
    check_im2col_step(im2col_step, problem.batch)
    if out is None:
        out = empty_like(value, problem.out_shape)
    target = view_of("out", out)
    if target.shape != problem.out_shape or target.dtype != views[0].dtype:
        raise OperatorError(
            f"out is {target.shape} {target.dtype}; it must be {problem.out_shape} {views[0].dtype}"
        )
    stream = stream_from(gpu, stream if stream is not None else current_stream(value))
    addresses = [view.address for view in (*views, target)]
    _launch(gpu, problem, name, parameters, views[1].address, addresses, stream)
    if library_of(value) == "jax":
        stream.sync()  # JAX has no stream to be ordered on
    return out


# --- arrays of other libraries --------------------------------------------------------------------
def library_of(array):
    """The name of the library an array comes from: torch, cupy, jax, numpy, ..."""
    return type(array).__module__.partition(".")[0].removesuffix("lib")


def view_of(name, array):
    """Address, shape, dtype and device of an array that is on a GPU and dense."""
    if isinstance(array, DeviceArray):
        return SimpleNamespace(
            address=array.address, shape=array.shape, dtype=str(array.dtype),
            device=array.gpu.device.device_id,
        )  # fmt: skip
    if isinstance(array, np.ndarray):
        raise OperatorError(
            f"{name} is a NumPy array and others are not; pass all as NumPy arrays, or all on a GPU"
        )
    require_cuda(f"{name}, which is not a NumPy array,")
    from cuda.core.utils import StridedMemoryView

    stream = -1  # the launch goes to the caller's own stream: nothing to synchronise
    if library_of(array) == "jax":
        array.block_until_ready()
        stream = 1  # JAX insists on a stream; the legacy default one
    try:
        view = StridedMemoryView.from_any_interface(array, stream_ptr=stream)
    except Exception as error:
        raise OperatorError(
            f"{name} ({type(array).__name__}) offers neither DLPack nor the CUDA array interface: {error}"
        ) from None
    if not view.is_device_accessible:
        raise OperatorError(
            f"{name} is not on a GPU; move it there, or pass NumPy arrays throughout"
        )
    dense, strides = 1, view.strides
    for size, stride in zip(reversed(view.shape), reversed(strides or ()), strict=bool(strides)):
        if size != 1 and stride != dense:
            raise OperatorError(f"{name} is not contiguous (strides {strides}); make it contiguous")
        dense *= size
    dtype = str(array.dtype).rpartition(".")[2]
    return SimpleNamespace(
        address=int(view.ptr), shape=tuple(view.shape), dtype=dtype, device=view.device_id
    )


def _on_host(name, array):
    """A small index array as NumPy, wherever it is."""
    if isinstance(array, (np.ndarray, list, tuple)):
        return np.asarray(array)
    if library_of(array) == "torch":
        return array.cpu().numpy()
    if hasattr(array, "__cuda_array_interface__"):
        view = view_of(name, array)
        return copy_to_host(view.address, view.shape, np.dtype(view.dtype))
    return np.asarray(array)


def empty_like(value, shape):
    """A new array of the library and on the device of ``value``."""
    import array_api_compat

    try:
        library = array_api_compat.array_namespace(value)
    except TypeError:
        raise OperatorError(
            f"cannot allocate the output for a {type(value).__name__}: pass out="
        ) from None
    return library.empty(shape, dtype=value.dtype, device=array_api_compat.device(value))


def current_stream(array):
    """The stream that the caller's library is working on."""
    library = library_of(array)
    if library == "torch":
        import torch

        return torch.cuda.current_stream(array.device).cuda_stream
    if library == "cupy":
        import cupy

        return cupy.cuda.get_current_stream().ptr
    return None

"""The programs behind the command line, as plain functions that return what happened.

``run_probe`` sends one box through TMA. ``run_tile_copy`` copies a tensor tile by tile.
``plan_operator`` and ``run_plan`` run a variant of the operator and compare it with the float64
reference. All of them run on either engine, poison their output first, and print nothing."""

import statistics
from dataclasses import dataclass

import numpy as np

from ..attention.bind import Bound
from ..attention.checks import check_im2col_step
from ..attention.reference import TOLERANCE
from ..attention.request import engine_for, pick_engine, pick_variant
from ..compiler import built
from ..device.limits import HOPPER, RESERVED_SHARED, SM
from ..engines.cpu import Report, SimFault, simulate
from ..engines.gpu.device import DeviceArray, GpuMissing, find_gpu, is_cuda_error
from ..engines.gpu.launch import launch, time_launches
from ..engines.tensormap import DriverMissing, TensorMap, TensorMapArray, TensorMapError
from ..kernels import tile_copy
from ..kernels.probe import THREADS, probe
from ..kernels.problem import NUMPY_DTYPES
from .case import Case

WARM_UP = 3


def describe(gpu, engine):
    """The device in words. For the CPU engine (None) with engine=auto: why it is no GPU."""
    if gpu:
        return gpu.describe()
    if engine == "auto":
        try:
            find_gpu()
        except GpuMissing as error:
            return f"CPU engine ({error})"
    return "CPU engine"


PROBE_TENSOR, PROBE_BOX = (100, 100, 32), (2, 2, 32)  # (height, width, channels)


@dataclass(frozen=True)
class ProbeResult:
    """``first`` and ``expected``: the first 8 of 128 values; ``first`` is None if nothing ran."""

    engine: str
    device: str
    passed: bool
    first: np.ndarray | None
    expected: np.ndarray
    reason: str = ""


def run_probe(engine="auto", corner=(0, 0)):
    """Load the 2x2x32 box at ``corner`` = (x, y) of a 100x100x32 float32 tensor by one TMA load.

    Element i of the tensor holds i / 100; outside it, zeros are expected. Whatever goes wrong, a
    missing driver or GPU included, is in ``reason``; only an unknown engine or a corner that is no
    int32 raises ValueError."""
    x, y = corner
    if not all(-(2**31) <= c < 2**31 for c in (x, y)):
        raise ValueError(f"corner={corner}: a box starts at two int32 numbers (x, y)")
    tensor = (np.arange(np.prod(PROBE_TENSOR), dtype=np.float32) / 100).reshape(PROBE_TENSOR)
    expected = _box_at(tensor, x, y).reshape(-1)
    out = np.full(expected.shape, np.nan, np.float32)
    ran, kind, gpu, reason = False, engine, None, ""
    try:
        kind, gpu = engine_for(engine, HOPPER, "TMA")
        ran = True
        if gpu:
            out = _probe_on_gpu(gpu, tensor, out, x, y)
        else:
            maps = TensorMapArray([TensorMap.of(tensor, PROBE_BOX[::-1])])
            simulate(probe, 1, THREADS, (maps, out, x, y))
    except (GpuMissing, DriverMissing, TensorMapError) as error:
        ran, reason = False, str(error)
    except Exception as error:
        if not (isinstance(error, (RuntimeError, SimFault)) or is_cuda_error(error)):
            raise
        reason = f"the kernel failed: {error}"
    wrong = np.flatnonzero(~(out == expected))
    if ran and not reason and len(wrong):
        i = wrong[0]
        reason = (f"{len(wrong)} of {out.size} values are wrong; the first is element {i}: "
                  f"{out[i]:g} instead of {expected[i]:g}")
        if np.isnan(out).all():
            reason = "the kernel ended without writing anything"
    device = describe(gpu, engine) if ran else "none that can run this"
    first = out[:8] if ran else None
    return ProbeResult(kind, device, ran and not reason, first, expected[:8], reason)


def _box_at(tensor, x, y):
    """What a load at (x, y) must deliver, from the rule alone: elements outside are zero."""
    box = np.zeros(PROBE_BOX, tensor.dtype)
    for i in range(PROBE_BOX[0]):
        for j in range(PROBE_BOX[1]):
            if 0 <= y + i < tensor.shape[0] and 0 <= x + j < tensor.shape[1]:
                box[i, j] = tensor[y + i, x + j]
    return box


def _probe_on_gpu(gpu, tensor, out, x, y):
    source, target = DeviceArray.of(gpu, tensor), DeviceArray.of(gpu, out)
    launch(gpu, probe, 1, (_map_on_gpu(source, PROBE_BOX), target, x, y), probe.shared_bytes)
    return target.to_numpy()


def _map_on_gpu(array, box):
    """A DeviceArray with the tensor map of all of ``array`` (H, W, C); ``box`` is in the same order."""
    height, width, channels = array.shape
    pixel = channels * array.dtype.itemsize
    dims, strides = (channels, width, height), (pixel, width * pixel)
    whole = TensorMap(array.address, array.dtype, dims, strides, box[::-1])
    return DeviceArray.of(array.gpu, TensorMapArray([whole]).encode_into_host())


@dataclass(frozen=True)
class TileCopyResult:
    """``milliseconds`` is a median; None on the CPU engine, which has virtual ``cycles`` only.

    ``bytes_moved`` counts every element once read and once written."""

    engine: str
    device: str
    passed: bool
    shape: tuple[int, int, int]
    box: tuple[int, int, int]
    dtype: str
    stages: int
    warps: int
    blocks: int
    tiles: int
    bytes_moved: int
    milliseconds: float | None = None
    cycles: float | None = None
    reason: str = ""

    @property
    def gigabytes_per_second(self):
        return self.bytes_moved / self.milliseconds / 1e6 if self.milliseconds else None

    @property
    def million_tiles_per_second(self):
        return self.tiles / self.milliseconds / 1e3 if self.milliseconds else None


def run_tile_copy(engine="auto", shape=(100, 100, 32), box=(2, 2, 32), dtype="float16", stages=4,
                  warps=4, repeats=10):  # fmt: skip
    """Copy a tensor of ``shape`` (H, W, C) in boxes (height, width, C), and compare every bit.

    A block has ``warps`` warps, each with a ring of ``stages`` tiles. Raises ValueError
    (TensorMapError for a box that TMA cannot move), GpuMissing, or a SimFault from the CPU engine."""
    _check_tile_copy(shape, box, dtype, stages, warps, repeats)
    kind, gpu = engine_for(engine, HOPPER, "tile-copy")
    numpy_dtype = np.dtype(NUMPY_DTYPES[dtype])
    tensor = np.random.default_rng(0).standard_normal(shape, np.float32).astype(numpy_dtype)
    # A bad box: the map's rules say more about it than its size in shared memory does.
    TensorMap.of(tensor, box[::-1])
    try:
        kernel = built(tile_copy.build, tuple(box), numpy_dtype.itemsize, stages, warps)
    except ValueError as error:
        what = f"box={box} of {numpy_dtype} with stages={stages} and warps={warps}"
        raise ValueError(f"{what} takes {error}; use fewer stages or warps") from error
    down, across = (-(-size // step) for size, step in zip(shape[:2], box[:2], strict=True))
    tiles = down * across
    blocks = min(-(-tiles // warps), _blocks_that_fit(gpu, kernel.shared_bytes, warps))
    milliseconds = cycles = None
    if gpu:
        out, times = _copy_on_gpu(gpu, tensor, box, kernel, blocks, (across, tiles), repeats)
        milliseconds = statistics.median(times)
    else:
        out = np.empty_like(tensor)
        out.view(np.uint8).fill(0xFF)
        maps = [TensorMapArray([TensorMap.of(a, box[::-1])]) for a in (tensor, out)]
        cycles = simulate(kernel, blocks, kernel.threads, (*maps, across, tiles)).cycles
    reason = _compare_bits(tensor, out)
    return TileCopyResult(kind, describe(gpu, engine), not reason, tuple(shape), tuple(box), dtype,
                          stages, warps, blocks, tiles, 2 * tensor.nbytes, milliseconds, cycles,
                          reason)  # fmt: skip


def _check_tile_copy(shape, box, dtype, stages, warps, repeats):
    for name, sizes in (("shape", shape), ("box", box)):
        if len(sizes) != 3 or min(sizes) < 1:
            raise ValueError(f"{name}={sizes}: it must be three sizes (height, width, channels)")
    if box[2] != shape[2]:
        raise ValueError(f"box={box}: its channels must be those of the tensor, {shape[2]}")
    if dtype not in NUMPY_DTYPES:
        raise ValueError(f"dtype={dtype}: it must be one of {', '.join(NUMPY_DTYPES)}")
    for name, value, high in (("stages", stages, 256), ("warps", warps, 32),
                              ("repeats", repeats, 10**6)):  # fmt: skip
        if not 1 <= value <= high:
            raise ValueError(f"{name}={value}: it must be from 1 to {high}")


def _blocks_that_fit(gpu, needed, warps):
    """Blocks that are resident at once: shared memory, threads and block slots of every SM."""
    if gpu is None:
        return 4  # enough for blocks to differ; more would only take longer
    return gpu.sms * min(SM.shared // (needed + RESERVED_SHARED), SM.warps // warps, SM.blocks)


def _copy_on_gpu(gpu, tensor, box, kernel, blocks, counts, repeats):
    source = DeviceArray.of(gpu, tensor)
    target = DeviceArray(gpu, tensor.shape, tensor.dtype)
    target.fill(0xFF)
    maps = _map_on_gpu(source, box), _map_on_gpu(target, box)

    def run():
        launch(gpu, kernel, blocks, (*maps, *counts), kernel.shared_bytes)

    run()
    out = target.to_numpy()
    return out, time_launches(gpu, run, repeats, WARM_UP)


def _compare_bits(tensor, out):
    """Why ``out`` is not ``tensor``, or "": bits are compared, so that NaN is no exception."""
    bits = f"u{tensor.dtype.itemsize}"
    wrong = np.argwhere(tensor.view(bits) != out.view(bits))
    if not len(wrong):
        return ""
    y, x, c = (int(i) for i in wrong[0])
    return (f"{len(wrong)} of {tensor.size} elements are wrong; the first is (y={y}, x={x}, c={c}): "
            f"{out[y, x, c]} instead of {tensor[y, x, c]}")


@dataclass(frozen=True, eq=False)
class Plan:
    """A checked run of the operator: a variant bound to a case, and what "auto" says of its choice."""

    case: Case
    bound: Bound
    why: str = ""


@dataclass(frozen=True, eq=False)
class OperatorResult:
    """What a run gave, and how far it is from the reference.

    ``unwritten`` counts elements of the whole output that are NaN, as it was before the run.
    ``bytes_moved``: the compulsory ones, value, locations and weights read and out written once."""

    out: np.ndarray
    error: float
    tolerance: float
    rows_checked: int
    rows: int
    unwritten: int
    bytes_moved: int
    milliseconds: float | None = None
    report: Report | None = None

    @property
    def passed(self):
        return self.unwritten == 0 and self.error < self.tolerance


def plan_operator(inputs, variant_name, engine="auto", linked=False, im2col_step=None, **parameters):
    """A :class:`Plan`, after all that can be checked before a run; raises what ``ms_deform_attn`` raises."""
    case, chosen = Case(inputs), pick_variant(variant_name)
    check_im2col_step(im2col_step, case.problem.batch)
    chosen.configure(case.problem.constants, **parameters)
    _, case.gpu = pick_engine(engine, chosen)
    return Plan(case, *case.bind(variant_name, parameters, "linked" if linked else "plain"))


def run_plan(plan, repeats=10, simulate_options=None):
    """Run into a poisoned output, compare with the reference; on a GPU also take the time."""
    case, milliseconds = plan.case, None
    out, report = case.run(plan.bound, **(simulate_options or {}))
    if case.gpu:
        times = time_launches(case.gpu, case.launcher(plan.bound), repeats, WARM_UP)
        milliseconds = statistics.median(times)
    return OperatorResult(out, case.error(out), TOLERANCE[case.problem.constants.dtype],
                          len(case.exact.rows), out.shape[0] * out.shape[1],
                          int(np.isnan(out).sum()), case.bytes_moved, milliseconds, report)  # fmt: skip

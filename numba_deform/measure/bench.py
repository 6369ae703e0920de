"""``numba-deform bench``: variants, peers and ceilings, checked and timed in one run.

For every workload each entry first runs in a child process (measure/worker.py) on a poisoned output, and its
whole output is compared with float64. What crashes, hangs or is wrong becomes a row that says so.
What is right is then timed here, in turn, round after round, so that a drift hits all alike.
"""

import dataclasses
import functools
import itertools
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np

from ..attention.auto import Fits
from ..attention.call import check_problem, gpu_launcher, pick_variant, run_cpu, settle_variant
from ..attention.reference import TOLERANCE, reference, relative_error
from ..compiler.cache import shared_directory
from ..engines.gpu.device import DeviceArray, find_gpu
from ..engines.gpu.launch import launch, time_launches
from ..kernels.problem import ITEMSIZE, ConfigError, Constants
from ..kernels.registry import VARIANTS, is_registered
from ..workloads.presets import PRESETS, preset
from . import ceilings, peers, record
from . import counters as profile
from .ceiling_kernels import build_delay
from .worker import Worker, explain

CHECKED_ROWS = 2048  # of the output, where there is no PyTorch to check all of them
DELAY_CYCLES = 600_000  # 0.3 ms: longer than Python takes to queue a launch
PEER_TOLERANCE = 0.05  # fp16 coordinates and sums, as most peers have them, are this far off


# --- entries --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Entry:
    """A variant with parameters, as ``tma:stages=3,lanes=4``; ``linked`` calls the PTX functions."""

    variant: str
    parameters: tuple[tuple[str, object], ...] = ()
    linked: bool = False

    @property
    def label(self):
        words = [self.variant, *(f"{k}={show(v)}" for k, v in self.parameters)]
        return " ".join(words + ["linked"] * self.linked)


def show(value):
    """A parameter's value as it is written in an entry."""
    if isinstance(value, bool):
        return str(int(value))
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def parse_entries(text):
    """Entries of ``direct,tma:stages=3,lanes=4,persistent``; ``all`` is every variant.

    Commas separate entries, and ``key=value`` after a comma belongs to the entry before it. Raises
    ConfigError for unknown names and for values of the wrong kind.
    """
    groups = []
    for piece in filter(None, (part.strip() for part in text.split(","))):
        name, colon, first = piece.partition(":")
        if "=" in name:
            if not groups:
                raise ConfigError("variants", text, f"there is no variant before {piece}")
            groups[-1].append(piece)
        else:
            groups.append([name, *([first] if colon else [])])
    names = [[n, *g[1:]] for g in groups for n in (VARIANTS if g[0] == "all" else [g[0]])]
    if not names:
        raise ConfigError("variants", text, "name at least one variant, or all")
    return [_entry(name, words) for name, *words in names]


def _entry(name, words):
    defaults = {f.name: f.default for f in dataclasses.fields(pick_variant(name).config)}
    parameters, linked = {}, False
    for word in words:
        key, _, text = word.partition("=")
        if key == "linked":
            linked = parse_value(key, False, text)
        elif key not in defaults:
            raise ConfigError(key, text, f"{name} has the parameters {', '.join(defaults)}")
        else:
            parameters[key] = parse_value(key, defaults[key], text)
    return Entry(name, tuple(parameters.items()), linked)


def parse_value(key, default, text):
    """A parameter from its text, of the kind that its default has; raises ConfigError."""
    flags = {"1": True, "true": True, "0": False, "false": False}
    try:
        if isinstance(default, bool):
            return flags[text.lower()]
        if isinstance(default, int):
            return int(text)
        if isinstance(default, tuple):
            return tuple(int(part) for part in text.split("x"))
    except (KeyError, ValueError):
        raise ConfigError(key, text, f"must be written like {show(default)}") from None
    return text


# --- one workload ---------------------------------------------------------------------------------
class Case:
    """A workload's inputs, and with a GPU its operands there. ``target`` is the output."""

    def __init__(self, gpu, workload, seed):
        self.gpu, self.workload = gpu, workload
        self.fits = Fits()  # to these locations: another case may have the same shape
        self.inputs = inputs = workload.generate(seed)
        self.problem = check_problem(
            inputs.value, inputs.spatial_shapes, inputs.level_start_index,
            inputs.sampling_locations, inputs.attention_weights, inputs.padded,
        )  # fmt: skip
        self.arrays = (inputs.value, inputs.sampling_locations, inputs.attention_weights)
        self.bytes_moved = bytes_of(workload)
        if gpu:
            self.operands = [DeviceArray.of(gpu, a) for a in self.arrays]
            self.target = DeviceArray(gpu, self.problem.out_shape, inputs.value.dtype)

    def settle(self, entry):
        """(variant, configuration, why) of an entry; see ``op.settle_variant``."""
        locations = self.operands[1].address
        return settle_variant(
            entry.variant, self.gpu, self.problem, locations, dict(entry.parameters), self.fits
        )

    def launcher(self, entry, guarded=False):
        """(function that launches the entry's kernel, its configuration); raises ConfigError."""
        chosen, config, _ = self.settle(entry)
        addresses = (a.address for a in (*self.operands, self.target))
        run = gpu_launcher(
            self.gpu,
            self.problem,
            chosen,
            config,
            *addresses,
            linked=entry.linked,
            fits=self.fits,
            guarded=guarded,
        )
        return run, config

    @functools.cached_property
    def _exact(self):
        """Float64 output: all of it on the GPU with PyTorch, else (rows, their values) in NumPy."""
        torch = torch_or_none() if self.gpu else None
        if torch:
            return float64_output(torch, self.inputs)
        count = self.problem.batch * self.problem.queries
        rows = np.arange(count)
        if count > CHECKED_ROWS:
            rows = np.sort(np.random.default_rng(0).choice(count, CHECKED_ROWS, replace=False))
        i = self.inputs
        want = reference(
            i.value, i.spatial_shapes, i.level_start_index, i.sampling_locations,
            i.attention_weights, padded=i.padded, rows=rows,
        )  # fmt: skip
        return rows, want

    def error(self, out):
        """||out - exact|| / ||exact|| of a NumPy output; NaN if an element was not written."""
        if isinstance(self._exact, tuple):
            rows, want = self._exact
            if np.isnan(out).any():
                return float("nan")
            return float(relative_error(out.reshape(-1, out.shape[-1])[rows], want))
        return self.tensor_error(peers.tensor_of(DeviceArray.of(self.gpu, out)))

    def tensor_error(self, out):
        """The same of a PyTorch tensor on the GPU."""
        if isinstance(self._exact, tuple):
            return self.error(out.float().cpu().numpy())
        return float((out.double() - self._exact).norm() / self._exact.norm())


def torch_or_none():
    """PyTorch, if it is installed and sees the GPU."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def float64_output(torch, inputs):
    """The operator by grid_sample in float64, one level at a time; (B, Q, H*C) on the GPU."""
    border = 1 if inputs.padded else 0
    batch, _, heads, channels = inputs.value.shape
    queries = inputs.sampling_locations.shape[1]

    def tensor(array):
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
        return torch.from_numpy(array).cuda()

    value, weights = tensor(inputs.value), tensor(inputs.attention_weights)
    locations = tensor(inputs.sampling_locations)
    total = torch.zeros(batch * heads, channels, queries, dtype=torch.float64, device="cuda")
    for level, (height, width) in enumerate(inputs.spatial_shapes.tolist()):
        start = int(inputs.level_start_index[level])
        rows, columns = height + 2 * border, width + 2 * border
        plane = value[:, start : start + rows * columns].permute(0, 2, 3, 1)
        plane = plane.reshape(batch * heads, channels, rows, columns)
        plane = plane[:, :, border : border + height, border : border + width].double()
        grid = 2 * locations[:, :, :, level].double() - 1
        grid = grid.permute(0, 2, 1, 3, 4).reshape(batch * heads, queries, -1, 2)
        sampled = torch.nn.functional.grid_sample(
            plane, grid, mode="bilinear", padding_mode="zeros", align_corners=False
        )
        weight = weights[:, :, :, level].double().permute(0, 2, 1, 3)
        total += (sampled * weight.reshape(batch * heads, 1, queries, -1)).sum(-1)
        del sampled
    return total.reshape(batch, heads * channels, queries).transpose(1, 2)


# --- what runs in the child -----------------------------------------------------------------------
@functools.lru_cache(maxsize=1)
def case_of(engine, workload, seed):
    """The case that the tasks of one workload share."""
    return Case(find_gpu() if engine == "gpu" else None, workload, seed)


def task_of(entry, workload, seed, engine="gpu", repeats=0):
    """What a child process needs for one entry; picklable, and JSON apart from its objects."""
    return {
        "entry": entry,
        "workload": workload,
        "seed": seed,
        "engine": engine,
        "repeats": repeats,
    }


def measure(task):
    """Run one entry on a poisoned output, check it, and time it if the task has repeats.

    Returns the resolved ``config`` and ``error``; of a kernel that is fitted to the locations the fitted one,
    and the share of the samples ``outside`` its windows; and on a GPU with ``repeats`` the figures of
    ``record.spread``; on the CPU engine ``virtual_cycles``, which are no measurement. A wrong result has
    ``error_text`` instead of figures.
    """
    case = case_of(task["engine"], task["workload"], task["seed"])
    if task["engine"] == "cpu":
        return _measure_cpu(case, task["entry"])
    run, config = case.launcher(task["entry"])
    case.target.fill(0xFF)
    run()
    result = checked(case, case.error(case.target.to_numpy()), config)
    chosen, config, why = case.settle(task["entry"])
    if task["entry"].variant == "auto":
        result |= {"chosen": chosen.name, "why": why}
    if chosen.is_fitted:
        fitted = case.fits.of(case.gpu, case.problem, chosen, config, None)
        result |= {"config": dataclasses.asdict(fitted.config), "outside": fitted.outside}
    if task["repeats"] and "error_text" not in result:
        result |= record.spread(time_round_by_round(case.gpu, [run], task["repeats"])[0])
    return result


def measure_here(task):
    """``measure`` in this process; what it raises is in ``error_text``. On a GPU the guarded form of what
    no child knows runs first: a kernel that waits for ever ends in a report."""
    entry = task["entry"]
    try:
        if task["engine"] == "gpu" and is_registered(entry.variant):
            case = case_of("gpu", task["workload"], task["seed"])
            case.launcher(entry, guarded=True)[0]()
        return measure(task)
    except Exception as error:
        return {"error_text": explain(error)}


def _measure_cpu(case, entry):
    chosen = pick_variant(entry.variant)
    config = chosen.configure(case.problem.constants, **dict(entry.parameters))
    if entry.linked:
        raise ConfigError("linked", 1, "the CPU engine runs neither form of the GPU's code")
    out = np.full(case.problem.out_shape, np.nan, case.inputs.value.dtype)
    ran = run_cpu(case.problem, chosen, config, case.arrays, out, timeout=600.0)
    result = checked(case, case.error(out), config)
    return result | {"measured": False, "virtual_cycles": ran.report.cycles}


def checked(case, error, config):
    """``{config, error}``, with ``error_text`` if the error is too large."""
    tolerance = TOLERANCE[case.problem.constants.dtype]
    result = {"config": dataclasses.asdict(config), "error": error}
    if not error < tolerance:
        result["error_text"] = f"wrong result: error {error:.2g}, allowed {tolerance:.2g}"
    return result


# --- timing ---------------------------------------------------------------------------------------
_delay = functools.cache(build_delay)


def time_round_by_round(gpu, runs, repeats, warm_up=1):
    """Milliseconds, a list for each of ``runs``: every round times all of them once, in turn.

    Before each, a kernel that spins lets the host queue the launch ahead of the GPU, so that a short
    kernel is not charged for Python.
    """

    def hold():
        launch(gpu, _delay(), 1, (DELAY_CYCLES,))

    times = [[] for _ in runs]
    for _ in range(repeats):
        for run, own in zip(runs, times, strict=True):
            own += time_launches(gpu, run, repeats=1, warm_up=warm_up, between=hold)
    return times


def clock(gpu):
    """The clock that cycles are counted by, and where it comes from."""
    return {
        "ghz": gpu.device.properties.clock_rate / 1e6,
        "source": "device property clock_rate, the SM's highest clock",
    }


def rates(milliseconds, samples, bytes_moved, sms, ghz):
    """Compulsory bytes; tiles and bytes per second; cycles of an SM per tile, at the clock ``ghz``."""
    seconds = milliseconds / 1e3
    return {
        "compulsory_bytes": bytes_moved,
        "gigatiles_per_second": samples / seconds / 1e9,
        "gigabytes_per_second": bytes_moved / seconds / 1e9,
        "cycles_per_tile": seconds * ghz * 1e9 * sms / samples,
    }


# --- compiling ahead ------------------------------------------------------------------------------
def compile_ahead(tasks, architecture, jobs=None):
    """Compile the tasks' kernels in parallel processes, into the cache on disk.

    What does not compile is left alone: it says why when its turn comes.
    """
    jobs = jobs or min(16, os.cpu_count() or 1)
    different = {(task["entry"], constants_of(task["workload"])): task for task in tasks}
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(jobs, mp_context=context) as pool:
            list(pool.map(_compile, different.values(), [architecture] * len(different)))
    except BrokenProcessPool:
        pass  # a compiler that crashes: the same, when its turn comes


def _compile(task, architecture):
    entry = task["entry"]
    try:
        chosen, constants = pick_variant(entry.variant), constants_of(task["workload"])
        kernel = chosen.kernel(chosen.configure(constants, **dict(entry.parameters)), constants)
        (kernel.with_linked_ptx() if entry.linked else kernel).compile(architecture)
    except Exception:
        return


def constants_of(workload):
    """What kernels for this workload are compiled for."""
    return Constants(
        workload.num_levels, workload.num_points, workload.channels, workload.dtype,
        workload.location_dtype, workload.dtype,
    )  # fmt: skip


# --- the whole ------------------------------------------------------------------------------------
def bench(
    gpu, workloads, entries, repeats=10, peer_names=(), seed=1, limit=300.0, warm_up=1,
    progress=lambda text: None, counters=False, isolated=True, with_ceilings=True,
):  # fmt: skip
    """A JSON document: rows of all entries, peers and ceilings, for each of ``workloads``.

    ``limit`` is how many seconds the check of one entry may take, its compilation included;
    ``progress(text)`` is told what goes on. With ``gpu`` None the CPU engine runs the entries and its
    virtual time stands in the rows, marked as not measured.

    Without ``isolated`` no child process is started: entries are checked in this process, as those always
    are that only it knows (``variants.register``). Without ``with_ceilings`` none is measured.

    With ``counters``, what :func:`profile.count` says of an entry stands in its row as ``profile``. Raises
    ToolMissing at once where there is no Nsight Compute.
    """
    if counters:
        profile.find_ncu()
    rows, ceiling_rows, engine = [], [], "gpu" if gpu else "cpu"
    with shared_directory():
        if gpu:
            progress("compiling")
            elsewhere = [e for e in entries if isolated and not is_registered(e.variant)]
            tasks = [
                task_of(entry, workload, seed) for workload in workloads for entry in elsewhere
            ]
            compile_ahead(tasks, gpu.architecture)
        for workload in workloads:
            entry_rows = _check_all(workload, entries, seed, engine, limit, progress, isolated)
            rows += [row for _, row in entry_rows]
            if gpu:
                more, found = _timed(
                    gpu, workload, entry_rows, peer_names, repeats, seed, warm_up, progress,
                    with_ceilings,
                )  # fmt: skip
                rows += more
                ceiling_rows += found
                if counters:
                    _count_all(workload, entry_rows, seed, limit, progress)
    settings = {"repeats": repeats, "warm_up": warm_up, "seed": seed}
    return record.document(
        gpu, rows, kind="bench", clock=clock(gpu) if gpu else None, settings=settings,
        workloads=[describe(w) for w in workloads], ceilings=ceiling_rows,
    )  # fmt: skip


def bytes_of(workload):
    """The compulsory bytes: value, locations and weights read once, the output written once."""
    item, location = ITEMSIZE[workload.dtype], ITEMSIZE[workload.location_dtype]
    pixel = workload.num_heads * workload.channels * item
    pixels = workload.batch * (workload.spatial_size + workload.num_query)
    return pixels * pixel + workload.samples * (2 * location + item)


def describe(workload):
    """A workload in the document: the columns that its rows share, its text, samples and bytes."""
    return {
        **columns(workload),
        "text": workload.describe(),
        "samples": workload.samples,
        "compulsory_bytes": bytes_of(workload),
    }


def columns(workload):
    """What every row says of its workload."""
    local = workload.pattern == "local"
    return {
        "workload": workload.name,
        "pattern": f"local({workload.sigma:g})" if local else workload.pattern,
        "dtype": workload.dtype,
        "num_query": workload.num_query,
    }


def _check_all(workload, entries, seed, engine, limit, progress, isolated):
    """[(entry, row)] after every entry has run once, in a child process if one knows it."""
    found = []
    with Worker("numba_deform.measure.bench:measure", limit) as worker:
        for entry in entries:
            progress(f"{workload.name}: {entry.label}")
            row = {**columns(workload), "kind": "variant", "variant": entry.label}
            row["fetch"] = pick_variant(entry.variant).fetch
            here = not isolated or is_registered(entry.variant)
            call = measure_here if here else worker.call
            found.append((entry, row | call(task_of(entry, workload, seed, engine))))
    return found


def _timed(gpu, workload, entry_rows, peer_names, repeats, seed, warm_up, progress, with_ceilings):
    """As :func:`_time_all`; when that fails, every row without a time says why."""
    try:
        case = Case(gpu, workload, seed)
        return _time_all(case, entry_rows, peer_names, repeats, warm_up, progress, with_ceilings)
    except Exception as error:
        for _, row in entry_rows:
            row.setdefault("error_text", f"while timing: {explain(error)}")
        return [], []


def _time_all(case, entry_rows, peer_names, repeats, warm_up, progress, with_ceilings):
    """Times a workload round by round in this process, into the rows; returns (peers' rows, ceilings')."""
    gpu, workload = case.gpu, case.workload
    jobs = []  # (row, run)
    for entry, row in entry_rows:
        if "error_text" not in row:
            jobs.append((row, case.launcher(entry)[0]))
    peer_rows = []
    for name in peer_names:
        progress(f"{workload.name}: {name}")
        row, run = _prepare_peer(case, name)
        peer_rows.append(row)
        if run:
            jobs.append((row, run))
    operands = [a.address for a in (*case.operands, case.target)]
    tried = ceilings.trials(gpu, case.problem, operands) if with_ceilings else []
    progress(f"{workload.name}: timing {len(jobs)} kernels and {len(tried)} ceilings")
    runs = [run for _, run in jobs] + [trial.run for trial in tried]
    times = time_round_by_round(gpu, runs, repeats, warm_up)

    samples, ghz = case.problem.samples, clock(gpu)["ghz"]
    found = [
        {**columns(workload), **ceilings.figures(trial, own, samples, case.bytes_moved)}
        for trial, own in zip(tried, times[len(jobs) :], strict=True)
    ]
    for row in found:
        if row["unit"] == "tiles":
            row |= rates(row["median_ms"], samples, case.bytes_moved, gpu.sms, ghz)
    best = ceilings.best(found)
    for (row, _), own in zip(jobs, times[: len(jobs)], strict=True):
        row |= record.spread(own)
        row |= rates(row["median_ms"], samples, case.bytes_moved, gpu.sms, ghz)
        row |= ceilings.attribute(row["median_ms"], row.get("fetch"), best)
    return peer_rows, found


def _count_all(workload, entry_rows, seed, limit, progress):
    """``profile`` into the rows that have a time."""
    denied = {}  # without permission no other entry has any either
    for entry, row in entry_rows:
        if "error_text" not in row:
            progress(f"{workload.name}: counters of {entry.label}")
            row["profile"] = denied or profile.count(task_of(entry, workload, seed), limit)
            if row["profile"].get("error_text") == profile.DENIED:
                denied = row["profile"]


def _prepare_peer(case, name):
    """(row, function or None): absent peers and failing ones get ``error_text``."""
    row = {**columns(case.workload), "kind": "peer", "variant": name}
    try:
        run = peers.prepare(name, case.inputs, case.operands)
        row["error"] = case.tensor_error(run())
    except peers.NotInstalled as error:
        return row | {"absent": True, "error_text": str(error)}, None
    except Exception as error:
        return row | {"error_text": explain(error)}, None
    if not row["error"] < PEER_TOLERANCE:
        return row | {"error_text": f"wrong result: error {row['error']:.2g}"}, None
    return row, run


def workloads_of(names, patterns=(), dtypes=()):
    """Presets (``["all"]``: every one) in all of ``dtypes`` and ``patterns``; raises WorkloadError.

    Where one of these is empty, the preset's own counts.
    """
    names = list(PRESETS) if names == ["all"] else names
    found = []
    for name, dtype, pattern in itertools.product(names, dtypes or ("",), patterns or ("",)):
        changes = {"dtype": dtype, "pattern": pattern}
        found.append(preset(name, **{k: text for k, text in changes.items() if text}))
    return found

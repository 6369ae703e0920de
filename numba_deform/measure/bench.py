"""``numba-deform bench``: variants, peers and ceilings, checked and timed in one run.

For every workload each entry first runs in a child process (measure/worker.py) on a poisoned output, and its
whole output is compared with float64. What crashes, hangs or is wrong becomes a row that says so.
What is right is then timed here, in turn, round after round, so that a drift hits all alike."""

import contextlib
import dataclasses
import functools
import itertools
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from ..attention.gradients import KERNELS
from ..attention.reference import TOLERANCE
from ..attention.request import pick_variant
from ..compiler import built
from ..compiler.cache import shared_directory
from ..engines.gpu.launch import launch, time_launches
from ..engines.sass.units import GPUS
from ..engines.suggestions import closest
from ..kernels.pipelines import PIPELINES
from ..kernels.problem import ITEMSIZE, ConfigError, Constants
from ..kernels.registry import VARIANTS, is_of_this_process, is_registered, load, loaded_files
from ..kernels.window_fit import look, probed_samples
from ..workloads.presets import PRESETS, preset
from . import baselines, ceilings, counters, record
from .case import case_of, case_on
from .parameters import parse_like, show
from .predict import emulate_bound, predict, resident_blocks
from .worker import Worker, explain

DELAY_CYCLES = 600_000  # 0.3 ms: longer than Python takes to queue a launch
PEER_TOLERANCE = 0.05  # fp16 coordinates and sums, as most peers have them, are this far off


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

    def bind(self, case, form="plain"):
        """(``Bound``, why "auto" chose it or "") on a case; raises ConfigError."""
        return case.bind(self.variant, dict(self.parameters), "linked" if self.linked else form)


def parse_entries(text):
    """Entries of ``direct,tma:stages=3,lanes=4,persistent``; ``all`` is every variant.

    Commas separate entries, and ``key=value`` after a comma belongs to the entry before it. Raises
    ConfigError for unknown names and for values of the wrong kind."""
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
    return [entry_of(n, dict(word.partition("=")[::2] for word in words)) for n, *words in names]


def entry_of(name, texts):
    """The :class:`Entry` of a variant with ``{parameter or linked: text}``; raises ConfigError."""
    defaults, values = defaults_of(name), {}
    for key, text in texts.items():
        if key != "linked" and key not in defaults:
            rule = f"{name} has the parameters {', '.join(defaults)}{closest(key, defaults)}"
            raise ConfigError(key, text, rule)
        values[key] = parse_like(key, defaults.get(key, False), text)
    linked = values.pop("linked", False)
    return Entry(name, tuple(values.items()), linked)


def defaults_of(name):
    """``{parameter: default}`` of a variant, of a pipeline, or of a backward kernel."""
    if name in PIPELINES:
        return PIPELINES[name].defaults
    return {field.name: field.default for field in dataclasses.fields(kernel_named(name).config)}


def kernel_named(name):
    """The variant of that name, or the backward kernel, which computes gradients."""
    return KERNELS.get(name) or pick_variant(name)


def constants_of(workload):
    """What kernels for this workload are compiled for."""
    return Constants(workload.num_levels, workload.num_points, workload.channels, workload.dtype,
                     workload.location_dtype, workload.dtype)  # fmt: skip


def bytes_of(workload):
    """The compulsory bytes: value, locations and weights read once, the output written once."""
    item, location = ITEMSIZE[workload.dtype], ITEMSIZE[workload.location_dtype]
    pixel = workload.num_heads * workload.channels * item
    pixels = workload.batch * (workload.spatial_size + workload.num_query)
    return pixels * pixel + workload.samples * (2 * location + item)


def workloads_of(names, patterns=(), dtypes=()):
    """Presets (``["all"]``: every one) in all of ``dtypes`` and ``patterns``; raises WorkloadError.

    Where one of these is empty, the preset's own counts."""
    names = list(PRESETS) if names == ["all"] else names
    changes = {"dtype": dtypes, "pattern": patterns}
    keys = [key for key, texts in changes.items() if texts]
    chosen = itertools.product(names, *(changes[key] for key in keys))
    return [preset(name, **dict(zip(keys, texts, strict=True))) for name, *texts in chosen]


def columns(workload):
    """What every row says of its workload."""
    pattern = workload.pattern + (f"({workload.sigma:g})" if workload.pattern == "local" else "")
    return {"workload": workload.name, "pattern": pattern, "dtype": workload.dtype,
            "num_query": workload.num_query}  # fmt: skip


def task_of(entry, workload, seed, engine="gpu", repeats=0):
    """What a child process needs for one entry; picklable, and JSON apart from its objects."""
    return dict(entry=entry, workload=workload, seed=seed, engine=engine, repeats=repeats,
                load=loaded_files())  # fmt: skip


def measure(task):
    """``measure_entry``, wherever this process is: files with variants are loaded. On a GPU the guarded form of
    what is not the package's own runs first: a kernel that waits for ever ends in a report."""
    entry = task["entry"]
    for path in task["load"]:
        load(path)
    if task["engine"] == "gpu" and is_registered(entry.variant):
        case = case_of("gpu", task["workload"], task["seed"])
        case.launcher(entry.bind(case, "guarded")[0])()
    return measure_entry(task)


def measure_entry(task):
    """Run one entry on a poisoned output, check it, and time it if the task has repeats.

    Returns ``error``; the ``config`` as it ran, and of the samples that a fitted kernel looks at the share
    ``outside`` its windows; on a GPU with ``repeats`` the figures of ``record.spread``; on the CPU engine
    ``virtual_cycles``, which are no measurement. A wrong result has ``error_text`` instead of times."""
    case, entry = case_of(task["engine"], task["workload"], task["seed"]), task["entry"]
    if task["engine"] in GPUS:
        return predict_entry(case, entry, task["engine"])
    if entry.linked and not case.gpu:
        raise ConfigError("linked", 1, "the CPU engine runs neither form of the GPU's code")
    bound, why = entry.bind(case)
    out, report = case.run(bound, **({} if case.gpu else {"timeout": 600.0}))
    tolerance = TOLERANCE[case.problem.constants.dtype]
    result = {"config": dataclasses.asdict(bound.config), "error": case.error(out)}
    if entry.variant == "auto" and case.gpu:
        result |= {"chosen": bound.variant.name, "why": why}
    if bound.variant.is_fitted:
        _, outside = look(case.problem, bound.fit, case.arrays[1])
        result["outside"] = outside / probed_samples(case.problem)
    if not case.gpu:
        result |= {"measured": False, "virtual_cycles": report.cycles}
    if not result["error"] < tolerance:
        result["error_text"] = f"wrong result: error {result['error']:.2g}, allowed {tolerance:.2g}"
    elif task["repeats"] and case.gpu:
        (times,) = time_round_by_round(case.gpu, [case.launcher(bound)], task["repeats"])
        result |= record.spread(times)
    return result


def predict_entry(case, entry, gpu="h200"):
    """The ``columns`` of the Prediction for one entry. Nothing is compared: only the blocks of one SM run."""
    if entry.linked:
        raise ConfigError("linked", 1, "predicted are the kernels as they are launched, with all PTX in them")
    bound, _ = case.bind(entry.variant, dict(entry.parameters), resident=resident_blocks)
    found = predict(emulate_bound(case, bound, timed=True)[0], GPUS[gpu], own=True)
    return {"config": dataclasses.asdict(bound.config), **found.columns()}


def measure_here(task, measure=measure):
    """``measure`` in this process; what it raises is in ``error_text``."""
    try:
        return measure(task)
    except Exception as error:
        return {"error_text": explain(error)}


def time_round_by_round(gpu, runs, repeats, warm_up=1, batches=None):
    """Milliseconds, a list for each of ``runs``: every round times all of them once, in turn.

    Before each, a kernel that spins lets the host queue the launch ahead of the GPU, so that a short
    kernel is not charged for Python. ``batches``: how many launches of each are timed as one, whose time is
    divided by their number."""

    def together(run, batch):
        for _ in range(batch):
            run()

    times = [[] for _ in runs]
    for _ in range(repeats):
        for run, own, batch in zip(runs, times, batches or [1] * len(runs), strict=True):
            hold = functools.partial(launch, gpu, built(ceilings.build_delay), 1, (DELAY_CYCLES * batch,))
            group = functools.partial(together, run, batch)
            own += [ms / batch for ms in time_launches(gpu, group, repeats=1, warm_up=warm_up, between=hold)]
    return times


@contextlib.contextmanager
def timing(rows):
    """What is raised within is the ``error_text`` of those of the rows that have none."""
    try:
        yield
    except Exception as error:
        for row in rows:
            row.setdefault("error_text", f"while timing: {explain(error)}")


def clock(gpu):
    """The clock that cycles are counted by, and where it comes from."""
    return {"ghz": gpu.device.properties.clock_rate / 1e6,
            "source": "device property clock_rate, the SM's highest clock"}  # fmt: skip


def rates(milliseconds, samples, bytes_moved, sms, ghz):
    """Compulsory bytes; tiles and bytes per second; cycles of an SM per tile, at the clock ``ghz``."""
    seconds = milliseconds / 1e3
    return {"compulsory_bytes": bytes_moved, "gigatiles_per_second": samples / seconds / 1e9,
            "gigabytes_per_second": bytes_moved / seconds / 1e9,
            "cycles_per_tile": seconds * ghz * 1e9 * sms / samples}  # fmt: skip


def compile_ahead(tasks, architecture):
    """Compile the tasks' kernels in parallel processes, into the cache on disk.

    What does not compile is left alone: it says why when its turn comes."""
    different = {(task["entry"], constants_of(task["workload"])): task for task in tasks}
    context = multiprocessing.get_context("spawn")
    with contextlib.suppress(BrokenProcessPool):  # of a compiler that crashes: the same, when its turn comes
        with ProcessPoolExecutor(min(16, os.cpu_count() or 1), mp_context=context) as pool:
            list(pool.map(_compile, different.values(), [architecture] * len(different)))


def _compile(task, architecture):
    entry = task["entry"]
    with contextlib.suppress(Exception):
        for path in task["load"]:
            load(path)
        chosen, constants = kernel_named(entry.variant), constants_of(task["workload"])
        kernel = chosen.kernel(chosen.configure(constants, **dict(entry.parameters)), constants)
        (kernel.with_linked_ptx() if entry.linked else kernel).compile(architecture)


def bench(gpu, workloads, entries, repeats=10, peer_names=(), seed=1, limit=300.0, warm_up=1, model=None,
          progress=lambda text: None, profile=False, isolated=True, with_ceilings=True):  # fmt: skip
    """A JSON document: rows of all entries, peers and ceilings, for each of ``workloads``.

    limit          seconds that the check of one entry may take, its compilation included
    progress       ``progress(text)`` is told what goes on
    gpu            None: the CPU engine's virtual time stands in the rows, marked as not measured; or, with
                   ``model``, "h200" or "h100", the time that a model of it predicts
    isolated       False: entries are checked in this process, as those always are that only it knows
                   (``registry.register``, but not those of a file: ``registry.load``)
    with_ceilings  False: none is measured
    profile        what :func:`counters.count` says of an entry stands in its row as ``profile``;
                   raises ToolMissing at once where there is no Nsight Compute"""
    if profile:
        counters.find_ncu()
    rows, ceiling_rows, engine = [], [], "gpu" if gpu else model or "cpu"
    with shared_directory():
        if gpu:
            progress("compiling")
            elsewhere = [e for e in entries if isolated and not is_of_this_process(e.variant)]
            tasks = [task_of(entry, workload, seed) for workload in workloads for entry in elsewhere]
            compile_ahead(tasks, gpu.architecture)
        for workload in workloads:
            entry_rows = _check_all(workload, entries, seed, engine, limit, progress, isolated)
            rows += [row for _, row in entry_rows]
            if gpu:
                with timing([row for _, row in entry_rows]):
                    case = case_on(gpu, workload, seed)
                    more, measured = _time_all(case, workload, entry_rows, peer_names, repeats,
                                               warm_up, progress, with_ceilings)  # fmt: skip
                    rows += more
                    ceiling_rows += measured
                if profile:
                    _count_all(workload, entry_rows, seed, limit, progress)
    settings = {"repeats": repeats, "warm_up": warm_up, "seed": seed}
    described = [{**columns(w), "text": w.describe(), "samples": w.samples,
                  "compulsory_bytes": bytes_of(w)} for w in workloads]  # fmt: skip
    return record.document(gpu, rows, kind="bench", clock=clock(gpu) if gpu else None,
                           settings=settings, workloads=described, ceilings=ceiling_rows)  # fmt: skip


def _check_all(workload, entries, seed, engine, limit, progress, isolated):
    """[(entry, row)] after every entry has run once, in a child process if one knows it."""
    entry_rows = []
    with Worker("numba_deform.measure.bench:measure", limit) as worker:
        for entry in entries:
            progress(f"{workload.name}: {entry.label}")
            row = {**columns(workload), "kind": "variant", "variant": entry.label}
            row["fetch"] = pick_variant(entry.variant).fetch
            here = not isolated or is_of_this_process(entry.variant)
            call = measure_here if here else worker.call
            entry_rows.append((entry, row | call(task_of(entry, workload, seed, engine))))
    return entry_rows


def _time_all(case, workload, entry_rows, peer_names, repeats, warm_up, progress, with_ceilings):
    """Times a workload round by round in this process, into the rows; returns (peers' rows, ceilings')."""
    gpu, jobs = case.gpu, []  # (row, run)
    for entry, row in entry_rows:
        if "error_text" not in row:
            jobs.append((row, case.launcher(entry.bind(case)[0])))
    peer_rows = []
    for name in peer_names:
        progress(f"{workload.name}: {name}")
        row, run = _prepare_peer(case, name)
        peer_rows.append(columns(workload) | row)
        if run:
            jobs.append((peer_rows[-1], run))
    tried = ceilings.trials(case) if with_ceilings else []
    progress(f"{workload.name}: timing {len(jobs)} kernels and {len(tried)} ceilings")
    runs = [run for _, run in jobs] + [trial.run for trial in tried]
    times = time_round_by_round(gpu, runs, repeats, warm_up)

    samples, ghz = case.problem.samples, clock(gpu)["ghz"]
    ceiling_rows = [{**columns(workload), **ceilings.figures(trial, own, samples, case.bytes_moved)}
                    for trial, own in zip(tried, times[len(jobs) :], strict=True)]  # fmt: skip
    best = ceilings.best(ceiling_rows)
    for (row, _), own in zip(jobs, times[: len(jobs)], strict=True):
        row |= record.spread(own)
        row |= ceilings.attribute(row["median_ms"], row.get("fetch"), best)
    for row in [row for row, _ in jobs] + [row for row in ceiling_rows if row["unit"] == "tiles"]:
        row |= rates(row["median_ms"], samples, case.bytes_moved, gpu.sms, ghz)
    return peer_rows, ceiling_rows


def _count_all(workload, entry_rows, seed, limit, progress):
    """``profile`` into the rows that have a time."""
    denied = {}  # without permission no other entry has any either
    for entry, row in entry_rows:
        if "error_text" not in row:
            progress(f"{workload.name}: counters of {entry.label}")
            row["profile"] = denied or counters.count(task_of(entry, workload, seed), limit)
            if row["profile"].get("error_text") == counters.DENIED:
                denied = row["profile"]


def _prepare_peer(case, name):
    """(row, function or None): absent peers and failing ones get ``error_text``."""
    row = {"kind": "peer", "variant": baselines.peer_of(name).label(name, case.problem.constants.dtype)}
    with baselines.failing_into(row):
        run = baselines.prepare(name, case.inputs, case.on_gpu.inputs)
        row["error"] = case.error(run())
        if not row["error"] < PEER_TOLERANCE:
            row["error_text"] = f"wrong result: error {row['error']:.2g}"
    return row, None if "error_text" in row else run

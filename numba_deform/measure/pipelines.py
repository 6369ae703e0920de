"""Pipelines of one's own: their timelines, what is counted of a launch, and how long it takes.

``timeline`` and ``profile`` take what ``simulate`` takes: a Launch such as ``copy(stages=4)``, or a kernel with
its grid and arguments. ``measure`` is one row of ``bench`` and ``sweep``."""

import dataclasses
import functools
import inspect
import math
from numbers import Integral
from pathlib import Path

import numpy as np

from ..attention.request import engine_for
from ..compiler import Kernel
from ..device.marks import CAPACITY, MARK_BYTES
from ..engines.cpu import simulate
from ..engines.gpu.device import DeviceArray, find_gpu, require
from ..engines.gpu.in_place import OnGpu, has_guarded_form, run_launch
from ..engines.gpu.launch import launch as launch_kernel
from ..engines.gpu.launch import time_launches
from ..engines.launches import Launch
from ..engines.sass import ONE_SM, emulate
from ..engines.sass.units import GPUS
from ..engines.waivers import told
from ..kernels.pipelines import PIPELINES
from ..kernels.problem import ConfigError
from ..kernels.registry import load, loaded_files
from . import ceilings, counters, record
from .bench import clock, is_of_this_process, measure_here, time_round_by_round, timing
from .predict import MOST, predict, predict_launch, write_clocks
from .profile import Profile
from .timeline import MODEL, TimelineError, Timelines, decode, with_copies
from .worker import Worker

BATCH_MS, BATCH = 0.2, 16  # a launch shorter than this is timed in a batch of at most so many
PATIENCE = 600.0  # seconds that the CPU engine may take


def launch_of(kernel, grid=None, args=(), cluster=None):
    """The Launch: given, or of a kernel with its grid and arguments."""
    if not isinstance(kernel, Launch):
        return Launch(kernel, grid, args, cluster=cluster)
    if (grid, cluster) != (None, None) or len(args):
        raise ValueError("a Launch has its own grid, args and cluster")
    return kernel


def timeline(kernel, grid=None, args=(), *, block=0, engine="auto", cluster=None, **options):
    """The :class:`~.timeline.Timeline` of one block: what each of its warps does when, and which copies fly.

    ``timeline(copy(stages=4))``, or a kernel with ``grid`` and ``args`` as for ``simulate``. The steps of the
    kernel's rings are shown. *acquire* and *wait* are the times inside ``ring.acquire`` and ``ring.wait``.
    *issue* lasts from ``acquire`` to the ``ring.advance`` after it, and *prepare* from there to the next step;
    *compute* lasts from ``wait`` to ``ring.release``, ``ring.arrive`` or an arrival on ``ring.empty(state)``,
    and *other* from there to the next step. *flight* goes from the end of an issue until a warp first sees that
    use of the stage. ``.notes()`` says what the picture leaves out.

    On the CPU engine *group* lasts from the issue of what signals no mbarrier to the end of the first wait for
    its group, waits at barriers among threads and blocks are shown, what another block of a cluster copies here
    flies under that block's number, and ``.copies`` are all copies of the last schedule, one by one. ``block``
    is the number of the block; of several, such as ``[0, 1]`` of a cluster, the result is a list that draws
    itself, from a run for each, in cycles from the first mark of all.

    ``engine`` is "cpu", "gpu", or "auto": the GPU if there is one; or "model": the machine code on the model of
    an SM that ``profile(time=True)`` predicts with, in cycles of its clock. ``options`` are those of
    ``simulate``, such as ``landing=``. In a notebook the result draws itself, as SVG that Ctrl and the wheel
    zoom into; ``.save("x.png")`` writes .png, .svg or .json.

    Raises TimelineError for a kernel without such steps and for a block that is not there, and what the
    engines raise. Outputs are not compared."""
    launch = launch_of(kernel, grid, args, cluster)
    gpu = None if engine == "model" else engine_for(engine, launch.capability, launch.title)[1]
    if not isinstance(block, Integral):
        return Timelines.of([record_launch(launch, gpu, n, options, engine == "model") for n in block])
    return record_launch(launch, gpu, block, options, engine == "model")


def record_launch(launch, gpu=None, block=0, options=None, model=False):
    """The Timeline of one block of a Launch: of the GPU, of the model of an SM, or else of the CPU engine."""
    traced, shape = launch.kernel.with_marks(), (launch.kernel.threads // 32, CAPACITY, MARK_BYTES // 4)
    if "__open_marks" not in traced.plain.__code__.co_names:
        raise TimelineError(f"{launch.title} takes no steps of a ring: ring.acquire, ring.wait or ring.release")
    marks, events = np.zeros(shape, np.uint32), []
    launch.prepare()
    if gpu:
        there = OnGpu(gpu, launch.kernel, launch.args)
        buffer = DeviceArray.of(gpu, marks)
        run = _launcher(gpu, traced, launch, [*there.args, buffer, block])
        run()  # the second run finds the kernel loaded and the caches warm
        buffer.copy_from(marks)
        run()
        marks = buffer.to_numpy()
    elif model:
        if options:
            raise TypeError(f"{', '.join(options)} are options of the CPU engine, and engine is model")
        args, shared_bytes = [*launch.args, marks, block], traced.shared_bytes
        write_clocks(traced, launch.grid, args, shared_bytes, marks, block, launch.cluster)
    else:
        args, options = [*launch.args, marks, block], options or {}
        options = {**options, "trace": True}
        events = told(simulate(traced, launch.grid, args=args, cluster=launch.cluster, **options)).events
    if not marks.any():
        raise TimelineError(f"block {block} has written nothing: is there such a block?")
    engine = gpu.name if gpu else MODEL if model else "CPU engine, virtual cycles"
    recorded = decode(marks, f"{launch.title}, block {block}", engine, launch.kernel.shared)
    return with_copies(recorded, [event for event in events if event.block == block])


def profile(kernel, grid=None, args=(), *, block=None, shared_bytes=None, engine="cpu", cluster=None,
            only=ONE_SM, items=None, time=False, limit=MOST, gpu="h200"):  # fmt: skip
    """What a launch does line by line: a :class:`~.profile.Profile`, which draws itself in a notebook.

    ``profile(copy(stages=4))``, or a kernel with ``grid`` and ``args`` as for ``simulate``; one of ``from_ptx``
    or ``from_cuda`` with ``block`` and ``shared_bytes``, which others have themselves. Without a GPU its
    machine code for Hopper runs (``engines.sass``), outputs are written and, of a Launch, compared; nothing is
    judged, which is for ``simulate``. ``only``: numbers of the blocks that run, or None for all; as it is, one
    SM's of a grid that is larger than what all SMs hold at once, or with ``time`` than one block for each: the
    figures are scaled up then, and nothing is compared. At most ``limit`` instructions of warps run.
    ``items``: {name: how many} of what the totals are divided by. ``time``: also what a model of an SM of a
    ``gpu``, "h200" or "h100", predicts for it (``measure.predict``), by the first block's SM.

    ``engine="gpu"``: instead {name: number}, the counters of Nsight Compute (``measure.counters.METRICS``),
    which watches another process, that makes the pipeline anew from its file. Raises ValueError for one that is
    in no file, ToolMissing without the tools, and what ``engines.sass.emulate`` raises."""
    if engine not in ("cpu", "gpu"):
        raise ValueError(f"engine={engine!r} must be cpu or gpu")
    if gpu not in GPUS:
        raise ValueError(f"gpu={gpu!r} must be {' or '.join(GPUS)}")
    if not isinstance(kernel, (Launch, Kernel)) and hasattr(kernel, "text"):
        if engine == "gpu":
            raise ValueError(f"{kernel.name} is of PTX: engine='gpu' counts kernels and pipelines of Python")
        run = emulate(kernel, grid, args, shared_bytes, cluster, only, limit, block=block, traced=time)
        return Profile(kernel.name, run, items or {}, predict(run, GPUS[gpu]) if time else None)
    if (block, shared_bytes) != (None, None):
        raise ValueError("block= and shared_bytes= are for kernels of PTX and CUDA C++: others have their own")
    launch = launch_of(kernel, grid, args, cluster)
    if engine == "gpu":
        engine_for(engine, launch.capability, launch.title)
        return counters.count(counters_task(launch))
    items = items or ({"byte": launch.bytes} if launch.bytes else {})
    run = emulate(launch, only=only, limit=limit, traced=time)
    return Profile(launch.title, run, items, predict(run, GPUS[gpu]) if time else None)


def counters_task(launch):
    """What the process that Nsight Compute watches needs to make a Launch again."""
    pipeline, parameters = launch.origin or (None, {})
    try:
        file = Path(inspect.getsourcefile(pipeline.function)) if pipeline else None
    except TypeError:
        file = None
    if file is None or not file.is_file():
        raise ValueError(f"{launch.title}: Nsight Compute watches another process, which has to load the "
                         "pipeline from a file; write it into one, and import it")  # fmt: skip
    return {"pipeline": pipeline.name, "parameters": parameters, "load": [str(file)]}


def _launcher(gpu, kernel, launch, args):
    """A function of no arguments that launches a form of the kernel on arguments that are on the GPU."""
    return functools.partial(
        launch_kernel, gpu, kernel, launch.grid, args, launch.shared_bytes, cluster=launch.cluster
    )


# --- bench and sweep ------------------------------------------------------------------------------
def launch_for(entry):
    """The Launch of a ``bench.Entry`` that names a pipeline; ConfigError and what the pipeline raises."""
    launch = PIPELINES[entry.variant](**dict(entry.parameters))
    return dataclasses.replace(launch, kernel=launch.kernel.with_linked_ptx()) if entry.linked else launch


def task_of(entry, engine="gpu", repeats=0):
    """What a child process needs for one entry."""
    return dict(entry=entry, workload=None, engine=engine, repeats=repeats, load=loaded_files())


def columns(entry):
    """What every row says of its pipeline."""
    return {"workload": entry.variant, "pattern": "", "dtype": "", "kind": "pipeline"}


def measure(task):
    """Run one entry, compare, and time it if the task has repeats: a row of a result. Where ``engine`` is a GPU
    of the model, "h200" or "h100", what is predicted for it, and nothing is compared.

    ``error`` is the largest of its outputs, ``config`` its parameters. On the CPU engine ``virtual_cycles``,
    which are no measurement; on a GPU, where the guarded form runs first if there is one, the figures of
    ``record.spread``. Raises WrongResult and what the engines raise."""
    for path in task["load"]:
        load(path)
    entry = task["entry"]
    launch = launch_for(entry)
    config = PIPELINES[entry.variant].checked(dict(entry.parameters))
    if task["engine"] in GPUS:
        return {"config": config, **predict_launch(launch, task["engine"]).columns()}
    if task["engine"] == "cpu":
        if entry.linked:
            raise ConfigError("linked", 1, "the CPU engine runs neither form of the GPU's code")
        report = simulate(launch, timeout=PATIENCE)
        return {"config": config, "error": _error(launch), "measured": False, "virtual_cycles": report.cycles}
    gpu = find_gpu()
    require(gpu, launch.capability, launch.title)
    check(gpu, launch)
    result = {"config": config, "error": _error(launch)}
    return result | (time_one(gpu, launch, task["repeats"]) if task["repeats"] else {})


def check(gpu, launch):
    """Run a Launch on the GPU, first in its guarded form, if it has one. Raises what it waited for in vain, and
    WrongResult."""
    if has_guarded_form(launch):
        run_launch(gpu, launch, guarded=True)
    run_launch(gpu, launch, guarded=False)


def time_one(gpu, launch, repeats):
    """Its figures of ``record.spread``, and rates; leaves the outputs poisoned."""
    (times,) = _timed(gpu, [prepared(gpu, launch)], repeats)
    times = record.spread(times)
    return times | rates(launch, times["median_ms"])


def _error(launch):
    return max(launch.errors().values(), default=0.0)


def prepared(gpu, launch):
    """A function that launches it on the GPU, on arguments that are there."""
    launch.prepare()
    there = OnGpu(gpu, launch.kernel, launch.args)
    run = _launcher(gpu, launch.kernel, launch, there.args)
    run.memory = there  # lives as long as the function
    return run


def _timed(gpu, runs, repeats, warm_up=1):
    """Milliseconds of single launches, a list for each of ``runs``; short ones are timed in batches."""
    once = [min(time_launches(gpu, run, repeats=2, warm_up=1)) for run in runs]
    batches = [min(BATCH, math.ceil(BATCH_MS / max(ms, 1e-4))) for ms in once]
    return time_round_by_round(gpu, runs, repeats, warm_up, batches)


def rates(launch, milliseconds):
    """What was moved and computed in a second, as far as the Launch tells."""
    figures = {}
    if launch.bytes:
        figures |= {"bytes": launch.bytes, "gigabytes_per_second": launch.bytes / milliseconds / 1e6}
    if launch.flops:
        figures |= {"flops": launch.flops, "teraflops_per_second": launch.flops / milliseconds / 1e9}
    return figures


def bench_rows(gpu, entries, repeats=10, limit=120.0, warm_up=1, profile=False, model=None,
               progress=lambda text: None):  # fmt: skip
    """The rows of pipelines for a document of ``bench``: each is checked in a child process, then all are timed
    here in turn, and beside them a plain copy of memory, which says how close one comes to it. ``model``: the
    GPU for which times are predicted instead."""
    rows, engine = [], "gpu" if gpu else model or "cpu"
    with Worker(f"{__name__}:measure", limit) as worker:
        for entry in entries:
            progress(entry.label)
            task = task_of(entry, engine)
            here = is_of_this_process(entry.variant)
            result = measure_here(task, measure) if here else worker.call(task)
            row = {**columns(entry), "variant": entry.label, "parameters": dict(entry.parameters)}
            rows.append(row | result)
    if not gpu:
        return rows
    right = [(entry, row) for entry, row in zip(entries, rows, strict=True) if "error_text" not in row]
    progress(f"timing {len(right)} pipelines")
    with timing([row for _, row in right]):
        _time_all(gpu, right, repeats, warm_up)
    for entry, row in right if profile else ():
        progress(f"counters of {entry.label}")
        row["profile"] = counters.count(counters_task(launch_for(entry)), limit)
    return rows


def _time_all(gpu, entry_rows, repeats, warm_up):
    """Times into the rows."""
    tried = list(ceilings.copy_trials(gpu)) if any(launch_for(entry).bytes for entry, _ in entry_rows) else []
    runs = [prepared(gpu, launch_for(entry)) for entry, _ in entry_rows] + [trial.run for trial in tried]
    times = _timed(gpu, runs, repeats, warm_up)
    for (entry, row), own in zip(entry_rows, times, strict=False):
        launch = launch_for(entry)
        row |= record.spread(own) | rates(launch, record.spread(own)["median_ms"])
        if launch.bytes:
            copies = [ceilings.figures(trial, of, 0, launch.bytes)
                      for trial, of in zip(tried, times[len(entry_rows) :], strict=True)]  # fmt: skip
            row |= ceilings.attribute(row["median_ms"], None, ceilings.best(copies))


def document(gpu, rows, **settings):
    """A document of ``bench`` that has pipelines alone."""
    return record.document(gpu, rows, kind="bench", clock=clock(gpu) if gpu else None, settings=settings,
                           workloads=[], ceilings=[])  # fmt: skip

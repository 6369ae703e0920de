"""``bench``, ``sweep``, ``tune``, ``table`` and ``plot``."""

import contextlib
import functools
import itertools
import sys
from pathlib import Path

from ..attention import gradients, tuned
from ..engines.gpu.device import GpuMissing, find_gpu
from ..kernels.pipelines import PIPELINES
from ..measure import report
from ..measure.baselines import PEERS
from ..measure.bench import Entry, bench, parse_entries, workloads_of
from ..measure.gradients import ENTRIES, bench_gradients
from ..measure.parameters import parse_like
from ..measure.pipelines import bench_rows
from ..measure.pipelines import document as pipelines_document
from ..measure.record import save
from ..measure.sweep import expand, sweep
from ..measure.tune import CANDIDATES, PATTERNS, problem_of, tune
from ..measure.tune_pipeline import tune as tune_pipeline
from ..measure.worker import gpu_workers
from .commands import COMMANDS, RIGHT, WRONG
from .inputs import SECONDS_PER_SAMPLE
from .keys import GRID, TEXT, Key, UsageError, parse_pairs, refuse_keys
from .output import console, counting, say

CPU_SAMPLES = 50_000  # of one workload on the CPU engine: about a minute for each variant
GPU_SECONDS = 3  # the sweeps of bench/results took 1 to 2.5 a row on an H200, and compiling
MODEL_SECONDS = 30  # of the blocks of one SM
CHILD_SECONDS = 1  # to start one, for a few entries
SETTINGS = ("repeats", "seed", "limit", "warm_up", "retry")


def run_bench(options):
    """Exit status 1 when a variant failed."""
    if options.get("what", "forward") != "forward":
        return (_bench_gradients if options["what"] == "gradients" else _bench_training)(options)
    entries = parse_entries(options.get("variants", "direct,tma"))
    for name in (entry.variant for entry in entries if entry.variant in gradients.KERNELS):
        raise UsageError(f"variants={options['variants']}: {name} computes gradients: give what=gradients")
    own = [entry for entry in entries if entry.variant in PIPELINES]
    if own:
        return _bench_own(own, [entry for entry in entries if entry not in own], options)
    workloads, peers = _workloads(options), _peers(options)
    gpu, model, counters = _engine(options, workloads)
    # What bench tells of: compiling, every check, every peer and the timing, and counters.
    of_each = len(entries) * (2 if counters else 1) + (len(peers) + 1 if gpu else 0)
    total, steps = bool(gpu) + len(workloads) * of_each, itertools.count()
    with counting(MODEL_SECONDS if model else _seconds(gpu, workloads)) as advance:
        document = bench(gpu, workloads, entries, peer_names=peers, profile=counters, model=model,
            progress=lambda text: advance(next(steps), total, text), **_settings(options))  # fmt: skip
    _show(document, options)
    return _status(document, ("variant",))


def _bench_gradients(options):
    """Exit status 1 when a configuration of the backward kernel, or the operator, failed."""
    entries = parse_entries(options["variants"]) if "variants" in options else ENTRIES
    for entry in entries:
        if entry.variant not in gradients.KERNELS:
            raise UsageError(
                f"variants={options['variants']}: {entry.variant} computes no gradients; with what=gradients "
                f"they are {' and '.join(gradients.KERNELS)}, with parameters such as backward:sums=fixed"
            )
        if entry.linked:
            raise UsageError("linked=1 is for variants of the forward pass")
    refuse_keys(options, ("profile", "limit"), "is not for what=gradients")
    workloads, peers = _workloads(options), _peers(options)
    gpu = _gpu(options, workloads)
    # What is told of: compiling, float64, every kernel and peer, and the timing.
    of_each = 1 + len(entries) + (2 + len(peers) + 1 if gpu else 0)
    total, steps = bool(gpu) + len(workloads) * of_each, itertools.count()
    with counting(_seconds(gpu, workloads)) as advance:
        document = bench_gradients(gpu, workloads, entries, peer_names=peers, keep=_keep(options),
            progress=lambda text: _tell(text, advance, next(steps), total), **_settings(options))  # fmt: skip
    _show(document, options)
    return _status(document, ("kernel", "operator"))


def _bench_training(options):
    """Exit status 1 when the operator of this package failed."""
    unused = "variants", "workload", "patterns", "profile", "limit"
    refuse_keys(options, unused, "is not for what=training")
    if options.get("engine") == "cpu":
        raise UsageError("what=training needs a GPU: the CPU engine has no training step")
    gpu, peers = _gpu(options, ()), _peers(options)
    try:
        from ..measure.training import DTYPES, bench_training
    except ImportError as error:
        raise UsageError(f"what=training: {error}") from None
    dtypes = _listed(options.get("dtype", "")) or DTYPES
    total, steps = len(dtypes) * (3 + len(peers)), itertools.count()
    with counting(GPU_SECONDS) as advance:
        document = bench_training(gpu, dtypes, peers, keep=_keep(options),
            progress=lambda text: _tell(text, advance, next(steps), total), **_settings(options))  # fmt: skip
    _show(document, options)
    return _status(document, ("operator",))


def _tell(text, advance, done, total):
    """Move the bar; where there is no terminal, a line for each step: these runs are long."""
    advance(done, total, text)
    if not sys.stderr.isatty():
        print(f"{done}/{total} {text}", file=sys.stderr, flush=True)


def _keep(options):
    """Writes what there is to out=, so that a run that is cut off leaves something."""
    return functools.partial(save, options["out"]) if "out" in options else lambda document: None


def _status(document, kinds):
    """WRONG if a row of these kinds failed; PyTorch's absence is none of ours."""
    failed = [row for row in document["rows"] if "error_text" in row and not row.get("absent")]
    return WRONG if any(row["kind"] in kinds for row in failed) else RIGHT


def _peers(options):
    """The names of those that peers= asks for. All of them are, for gradients, all but the compiled one, which
    takes a minute to compile: it has to be named."""
    is_slow = options.get("what", "forward") != "forward"
    everyone = {"0": (), "1": tuple(name for name in PEERS if not (is_slow and name.endswith("compiled")))}
    text = options.get("peers", "0")
    return everyone[text] if text in everyone else _listed(text)


def _bench_own(own, others, options):
    """Pipelines of one's own; exit status 1 when one failed."""
    if others:
        both = f"{own[0].variant} is a pipeline and {others[0].variant} computes the operator"
        raise UsageError(f"{both}: time them in two commands, each with its variants=")
    refuse_keys(options, ("workload", "patterns", "dtype", "peers", "seed"),
                f"is for variants of the operator, and {own[0].variant} is a pipeline")  # fmt: skip
    gpu, model, counters = _engine(options, ())
    settings = {name: options[name] for name in ("repeats", "limit", "warm_up") if name in options}
    total, steps = len(own) * (2 if counters else 1) + bool(gpu), itertools.count()
    with counting(GPU_SECONDS if gpu else MODEL_SECONDS if model else CHILD_SECONDS) as advance:
        rows = bench_rows(gpu, own, profile=counters, model=model,
                          progress=lambda text: advance(next(steps), total, text), **settings)  # fmt: skip
    _show(pipelines_document(gpu, rows, repeats=options.get("repeats", 10)), options)
    return WRONG if any("error_text" in row for row in rows) else RIGHT


def _seconds(gpu, workloads):
    """Roughly how long one entry takes, on average over the workloads."""
    if gpu:
        return GPU_SECONDS
    if not workloads:
        return CHILD_SECONDS
    return CHILD_SECONDS + SECONDS_PER_SAMPLE * sum(w.samples for w in workloads) / len(workloads)


def _settings(options):
    """What was asked of a measurement; the rest has the defaults of ``bench``, ``sweep`` and ``tune``."""
    return {name: options[name] for name in SETTINGS if name in options}


def _listed(text):
    return [part for part in text.split(",") if part]


def _workloads(options, patterns=()):
    """Those of workload=, patterns= and dtype=; ``patterns`` where none are asked for."""
    names = _listed(options.get("workload", "seeds"))
    asked = _listed(options.get("patterns", ""))
    return workloads_of(names, asked or patterns, _listed(options.get("dtype", "")))


def _engine(options, workloads):
    """(the GPU or None, that of a model or None, whether counters are asked for)"""
    model, counters = _model(options), options.get("profile", False)
    gpu = None if model else _gpu(options, workloads)
    if counters and not gpu:
        raise UsageError("profile=1 needs a GPU: the CPU engine has no hardware counters")
    return gpu, model, counters


def _model(options):
    """The GPU for which engine=model predicts, or None."""
    if options.get("engine") != "model":
        refuse_keys(options, ["gpu"], "is for what a model predicts; add engine=model")
        return None
    return options.get("gpu", "h200")


def _gpu(options, workloads):
    """The GPU, or None with engine=cpu; says what to do where there is none."""
    if options.get("engine") == "model":
        raise UsageError("engine=model predicts variants of the forward pass and pipelines of your own")
    if options.get("engine") != "cpu":
        try:
            return find_gpu()
        except GpuMissing as error:
            raise UsageError(
                f"times need a GPU: {str(error).rstrip('.')}; engine=cpu{' workload=tiny' * bool(workloads)} "
                "gives the CPU engine's virtual cycles instead, which are not measured, and engine=model "
                "times that a model of an H200 predicts"
            ) from None
    for workload in workloads:
        if workload.samples > CPU_SAMPLES:
            raise UsageError(f"{workload.name} has {workload.samples:,} samples, too many for the CPU engine "
                             f"(at most {CPU_SAMPLES:,}): choose workload=tiny or workload=quick")
    return None


def _show(document, options, parts=None):
    """Print the document, or other ``parts`` of it; with out= write it too."""
    if options.get("markdown"):
        print(report.markdown(document, parts), end="")
    else:
        for table in report.tables(document, parts):
            console().print(table, crop=False)
    if "out" in options:
        say("written", save(options["out"], document))


def run_sweep(pairs):
    """Every key that is not the command's own is a list of the grid."""
    known = COMMANDS["sweep"].keys
    own = {key.name for key in known if key not in GRID}
    options = parse_pairs({name: text for name, text in pairs.items() if name in own}, known, "sweep")
    if "out" not in options:
        raise UsageError("out=FILE.json is needed: the sweep is written there, and resumed from it")
    grid = {name: text.split(",") for name, text in pairs.items() if name not in own}
    if "patterns" in grid:
        if "pattern" in grid:
            raise UsageError("pattern and patterns are the same: give one of them")
        grid["pattern"] = grid.pop("patterns")
    points = expand(grid)
    workloads = [point.workload for point in points if point.workload]
    gpu, model, _ = _engine(options, workloads)
    out = options.pop("out")
    numbers = options.pop("gpus", None)
    if numbers and not gpu:
        raise UsageError(f"gpus={','.join(map(str, numbers))} needs engine=gpu")
    workers = gpu_workers(numbers) if numbers else contextlib.nullcontext()
    with workers as executor, counting(MODEL_SECONDS if model else _seconds(gpu, workloads)) as advance:
        document = sweep(points, out, gpu, progress=advance, executor=executor, model=model,
                         **_settings(options))  # fmt: skip
    _show(document, options)
    say("written", out)
    return RIGHT


def tune_own(pairs):
    """Of a pipeline that load= has brought; exit status 1 when no combination of its parameters is right."""
    pipeline = PIPELINES[pairs.pop("variant")]
    values = {name: [parse_like(name, example, text) for text in pairs.pop(name).split(",")]
              for name, example in pipeline.defaults.items() if name in pairs}  # fmt: skip
    own = [key for key in COMMANDS["tune"].keys if key.name in ("engine", "gpu", "repeats")]
    options = parse_pairs(pairs, [*own, *(Key(name, TEXT, "") for name in pipeline.defaults)], "tune")
    if not values:
        raise UsageError(f"tune: name what to try, such as {next(iter(pipeline.defaults), 'stages')}=2,3,4")
    found = tune_pipeline(pipeline, engine=_model(options) or options.get("engine", "auto"),
                          repeats=options.get("repeats", 20), **values)  # fmt: skip
    print(found)
    return RIGHT if found.rows else WRONG


def run_tune(pairs):
    """Exit status 1 when a candidate was wrong or failed."""
    options = parse_pairs(pairs, COMMANDS["tune"].keys, "tune")
    refuse_keys(options, ["engine", "gpu"], "is for pipelines that load= brings")
    workloads = _workloads(options, PATTERNS)
    if options.get("forget"):
        which = map(problem_of, workloads) if "workload" in options else None
        say("forgotten", f"{tuned.forget(which)} answers of {tuned.path()}")
        return RIGHT
    entries = parse_entries(options.get("variants", CANDIDATES))
    gpu = _gpu(options, workloads)
    with counting(_seconds(gpu, workloads)) as advance:
        document, kept = tune(gpu, workloads, entries, progress=advance, **_settings(options))
    _show(document, options)
    for workload, answer in kept:
        say("keeps", f"for problems like {workload.name}: {_in_words(answer)}")
    say("written", tuned.path())
    bad = [row for row in document["rows"] if "error_text" in row and not row.get("refused")]
    return WRONG if bad else RIGHT


def _in_words(answer):
    words = []
    for candidate in filter(None, (answer.steady, answer.fitted)):
        label = Entry(candidate.variant, candidate.parameters).label
        words.append(f"{label}, {candidate.cycles:.2f} cycles a tile")
    if answer.fitted:
        words[-1] += f" with {answer.fitted.outside:.2%} of the samples outside its windows"
    return "; ".join(words)


def run_table(options):
    """The table of a file; a summary of several."""
    if "file" not in options:
        raise UsageError("file=RESULT.json is needed; with summary=1 several, by commas")
    documents = [report.load(name) for name in options["file"].split(",")]
    if options.get("summary"):
        rows = report.summary(documents, _listed(options.get("variants", "")))
        _show(documents[0], options, [rows])
    elif "variants" in options:
        raise UsageError("variants= chooses rows of a summary: give summary=1 too")
    else:
        for document in documents:
            _show(document, options)
    return RIGHT


def run_plot(options):
    """The path of the picture."""
    if "file" not in options:
        raise UsageError("file=RESULT.json is needed")
    document = report.load(options["file"])
    out = options.get("out", str(Path(options["file"]).with_suffix(".png")))
    say("written", report.plot(document, out, options.get("x")))
    return RIGHT

"""``bench``, ``sweep``, ``tune``, ``table`` and ``plot``."""

from contextlib import contextmanager
from pathlib import Path

from rich import progress
from rich.markup import escape

from ..attention import tuned
from ..engines.gpu.device import GpuMissing, find_gpu
from ..kernels.problem import NUMPY_DTYPES
from ..measure import report
from ..measure.bench import Entry, bench, parse_entries, workloads_of
from ..measure.parameters import COUNT, FLAG, TEXT, WHOLE
from ..measure.peers import PEERS
from ..measure.record import save
from ..measure.sweep import WORKLOAD_FIELDS, expand, sweep
from ..measure.tune import CANDIDATES, PATTERNS, problem_of, tune
from ..workloads.presets import PRESETS
from . import keys
from .keys import RIGHT, WRONG, Key, UsageError, command, console, parse_pairs, say, split_pairs

CPU_SAMPLES = 50_000  # of one workload on the CPU engine: about a minute for each variant

OUT = Key("out", TEXT, "the JSON file to write")
REPEATS = Key("repeats", COUNT, "timed rounds, default 10")
LIMIT = Key("limit", COUNT, "seconds that one configuration may take before it is stopped")
SEED = Key("seed", WHOLE, "of the random inputs, default 1")
SETTINGS = ("repeats", "seed", "limit", "warm_up", "retry")
FILE = Key("file", TEXT, "a JSON file of bench or sweep")
MARKDOWN = Key("markdown", FLAG, "print Markdown instead")
DTYPES = Key("dtype", TEXT, f"one or more of {','.join(NUMPY_DTYPES)}; default: the workload's own")
GRID = (  # these, and the variants' parameters, take lists by commas
    Key("variant", TEXT, "kernels, or all; default direct"),
    Key("workload", TEXT, "presets, default seeds"),
    keys.LINKED,
    *(Key(name, TEXT, "of the workload") for name in WORKLOAD_FIELDS),
    Key("patterns", TEXT, "another name of pattern"),
)


@command(
    "bench",
    Key("variants", TEXT, "direct,tma:stages=3,lanes=4,... or all; linked=1 is a parameter too"),
    Key("workload", TEXT, f"all, or some by commas of {', '.join(PRESETS)}; default seeds"),
    Key("patterns", TEXT, "seed,uniform,local(2),...; default: the workload's own"), DTYPES,
    REPEATS, Key("warm_up", COUNT, "runs before each timed one, default 1"),
    Key("profile", FLAG, "counters by Nsight Compute, if it is installed; also --profile"),
    Key("peers", TEXT, f"1 for all ({', '.join(PEERS)}), 0, or names and module:function"), SEED,
    LIMIT, keys.ENGINE_KEY, OUT, MARKDOWN, raw=True,
)  # fmt: skip
def run_bench(words):
    """Exit status 1 when a variant failed."""
    words = ["profile=1" if word == "--profile" else word for word in words]
    options = parse_pairs(split_pairs(words), keys.KEYS["bench"], "bench")
    entries = parse_entries(options.get("variants", "direct,tma"))
    workloads = _workloads(options)
    peers = {"0": (), "1": tuple(PEERS)}.get(options.get("peers", "0"))
    gpu = _gpu(options, workloads)
    counters = options.get("profile", False)
    if counters and not gpu:
        raise UsageError("profile=1 needs a GPU: the CPU engine has no hardware counters")
    with console().status("") as status:
        document = bench(
            gpu, workloads, entries, peer_names=_listed(options["peers"]) if peers is None else peers,
            progress=lambda text: status.update(escape(text)), profile=counters, **_settings(options),
        )  # fmt: skip
    _show(document, options)
    failed = [r for r in document["rows"] if r["kind"] == "variant" and "error_text" in r]
    return WRONG if failed else RIGHT


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


def _gpu(options, workloads):
    """The GPU, or None with engine=cpu; says what to do where there is none."""
    if options.get("engine") != "cpu":
        try:
            return find_gpu()
        except GpuMissing as error:
            raise UsageError(
                f"times need a GPU: {str(error).rstrip('.')}; engine=cpu workload=tiny gives the CPU "
                "engine's virtual cycles instead, which are not measured"
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


@command("sweep", OUT, REPEATS, SEED, LIMIT, keys.ENGINE_KEY,
         Key("retry", FLAG, "again what failed before"), *GRID,
         Key("...", TEXT, "parameters of the variants: lists too, such as stages=1,2,3"), raw=True)  # fmt: skip
def run_sweep(words):
    """Every key that is not the command's own is a list of the grid."""
    pairs = split_pairs(words)
    own = {key.name for key in keys.KEYS["sweep"] if key not in GRID}
    given = {name: text for name, text in pairs.items() if name in own}
    options = parse_pairs(given, keys.KEYS["sweep"], "sweep")
    if "out" not in options:
        raise UsageError("out=FILE.json is needed: the sweep is written there, and resumed from it")
    grid = {name: text.split(",") for name, text in pairs.items() if name not in own}
    if "patterns" in grid:
        if "pattern" in grid:
            raise UsageError("pattern and patterns are the same: give one of them")
        grid["pattern"] = grid.pop("patterns")
    points = expand(grid)
    gpu = _gpu(options, [point.workload for point in points])
    out = options.pop("out")
    with _bar() as advance:
        document = sweep(points, out, gpu, progress=advance, **_settings(options))
    _show(document, options)
    say("written", out)
    return RIGHT


@command("tune", Key("workload", TEXT, "presets by commas, default seeds"),
         Key("patterns", TEXT, f"where samples fall, by commas, default {','.join(PATTERNS)}"),
         DTYPES, Key("variants", TEXT, f"what to try, default {CANDIDATES}"),
         Key("repeats", COUNT, "timed rounds, default 30"), SEED, LIMIT,
         Key("out", TEXT, "a JSON file for the measurements; the answer is kept without it"),
         Key("forget", FLAG, "drop what was kept for these workloads, without workload= all of it"))
def run_tune(options):
    """Exit status 1 when a candidate was wrong or failed."""
    workloads = _workloads(options, PATTERNS)
    if options.get("forget"):
        which = map(problem_of, workloads) if "workload" in options else None
        say("forgotten", f"{tuned.forget(which)} answers of {tuned.path()}")
        return RIGHT
    entries = parse_entries(options.get("variants", CANDIDATES))
    gpu = _gpu(options, workloads)
    with _bar() as advance:
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


@contextmanager
def _bar():
    columns = (progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeElapsedColumn(),
               progress.TimeRemainingColumn(), progress.TextColumn("{task.description}"))  # fmt: skip
    with progress.Progress(*columns, console=console()) as bar:
        task = bar.add_task("")
        yield lambda done, total, label: bar.update(
            task, completed=done, total=total, description=escape(label)
        )


@command("table", FILE, MARKDOWN,
         Key("summary", FLAG, "variants against workloads, and what costs each of them time"),
         Key("variants", TEXT, "of a summary only these, by commas and as they stand in it"))  # fmt: skip
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


@command(
    "plot", FILE, Key("out", TEXT, "the picture to write, .png or .svg"),
    Key("x", TEXT, "time against sigma of local(...), queries, or a parameter; a sweep's: stages"),
)  # fmt: skip
def run_plot(options):
    """The path of the picture."""
    if "file" not in options:
        raise UsageError("file=RESULT.json is needed")
    document = report.load(options["file"])
    out = options.get("out", str(Path(options["file"]).with_suffix(".png")))
    say("written", report.plot(document, out, options.get("x")))
    return RIGHT

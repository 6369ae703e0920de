"""``bench``, ``sweep``, ``tune``, ``table`` and ``plot``."""

from contextlib import contextmanager
from pathlib import Path

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ..attention import tuned
from ..engines.gpu.device import GpuMissing, find_gpu, gpu_or_none
from ..kernels.problem import NUMPY_DTYPES
from ..measure import report
from ..measure.bench import Entry, bench, parse_entries, workloads_of
from ..measure.peers import PEERS
from ..measure.record import save
from ..measure.sweep import WORKLOAD_FIELDS, expand, sweep
from ..measure.tune import CANDIDATES, PATTERNS, problem_of, tune
from ..workloads.presets import PRESETS
from .keys import (
    COUNT,
    ENGINE_KEY,
    FLAG,
    LINKED,
    RIGHT,
    TEXT,
    WHOLE,
    WRONG,
    Key,
    UsageError,
    console,
    parse_pairs,
    say,
    split_pairs,
)

CPU_SAMPLES = 50_000  # of one workload on the CPU engine: about a minute for each variant

OUT = Key("out", TEXT, "the JSON file to write")
REPEATS = Key("repeats", COUNT, "timed rounds, default 10")
LIMIT = Key("limit", COUNT, "seconds that one configuration may take before it is stopped")
SEED = Key("seed", WHOLE, "of the random inputs, default 1")
FILE = Key("file", TEXT, "a JSON file of bench or sweep")
GRID = (  # these, and the variants' parameters, take lists by commas
    Key("variant", TEXT, "kernels, or all; default direct"),
    Key("workload", TEXT, "presets, default seeds"),
    LINKED,
    *(Key(name, TEXT, "of the workload") for name in WORKLOAD_FIELDS),
    Key("patterns", TEXT, "another name of pattern"),
)

KEYS = {
    "bench": (
        Key("variants", TEXT, "direct,tma:stages=3,lanes=4,... or all; linked=1 is a parameter too"),
        Key("workload", TEXT, f"all, or some by commas of {', '.join(PRESETS)}; default seeds"),
        Key("patterns", TEXT, "seed,uniform,local(2),...; default: the workload's own"),
        Key("dtype", TEXT, f"of value, weights and output: one or more of {','.join(NUMPY_DTYPES)}"),
        REPEATS,
        Key("warm_up", COUNT, "runs before each timed one, default 1"),
        Key("profile", FLAG, "counters by Nsight Compute, if it is installed; also --profile"),
        Key("peers", TEXT, f"1 for all ({', '.join(PEERS)}), 0, or names and module:function"),
        SEED, LIMIT, ENGINE_KEY, OUT,
        Key("markdown", FLAG, "print Markdown instead"),
    ),
    "sweep": (
        OUT, REPEATS, SEED, LIMIT, ENGINE_KEY, Key("retry", FLAG, "again what failed before"),
        *GRID, Key("...", TEXT, "parameters of the variants: lists too, such as stages=1,2,3"),
    ),
    "tune": (
        Key("workload", TEXT, "presets by commas, default seeds"),
        Key("patterns", TEXT, f"where samples fall, by commas, default {','.join(PATTERNS)}"),
        Key("dtype", TEXT, f"one or more of {','.join(NUMPY_DTYPES)}; default: the workload's own"),
        Key("variants", TEXT, f"what to try, default {CANDIDATES}"),
        Key("repeats", COUNT, "timed rounds, default 30"), SEED, LIMIT,
        Key("out", TEXT, "a JSON file for the measurements; the answer is kept without it"),
        Key("forget", FLAG, "drop what was kept for these workloads, without workload= all of it"),
    ),
    "table": (
        FILE, Key("markdown", FLAG, "print Markdown instead"),
        Key("summary", FLAG, "variants against workloads, and what costs each of them time"),
        Key("variants", TEXT, "of a summary only these, by commas and as they stand in it"),
    ),
    "plot": (
        FILE,
        Key("out", TEXT, "the picture to write, .png or .svg"),
        Key("x", TEXT, "time against sigma of local(...), queries, or a parameter; a sweep's: stages"),
    ),
}  # fmt: skip


def run_bench(words):
    """``numba-deform bench``: exit status 1 when a variant failed."""
    words = ["profile=1" if word == "--profile" else word for word in words]
    options = parse_pairs(split_pairs(words), KEYS["bench"], "bench")
    entries = parse_entries(options.get("variants", "direct,tma"))
    workloads = _workloads(options)
    peers = _peers(options.get("peers", "0"))
    gpu = _gpu(options, workloads)
    counters = options.get("profile", False)
    if counters and not gpu:
        raise UsageError("profile=1 needs a GPU: the CPU engine has no hardware counters")
    with _spinner() as progress:
        document = bench(
            gpu, workloads, entries, options.get("repeats", 10), peers, options.get("seed", 1),
            options.get("limit", 300), options.get("warm_up", 1), progress, counters,
        )  # fmt: skip
    if "out" in options:
        save(options["out"], document)
    _print(document, options.get("markdown"))
    if "out" in options:
        say("written", options["out"])
    failed = [r for r in document["rows"] if r["kind"] == "variant" and "error_text" in r]
    return WRONG if failed else RIGHT


def _workloads(options, patterns=()):
    """Those of workload=, patterns= and dtype=; ``patterns`` where none are asked for."""
    names, asked, dtypes = (
        [text for text in options.get(key, default).split(",") if text]
        for key, default in (("workload", "seeds"), ("patterns", ""), ("dtype", ""))
    )
    return workloads_of(names, asked or patterns, dtypes)


def _peers(text):
    if text == "0":
        return ()
    return tuple(PEERS) if text == "1" else tuple(filter(None, text.split(",")))


def _gpu(options, workloads):
    """The GPU, or None with engine=cpu; says what to do where there is none."""
    if options.get("engine") == "cpu":
        for workload in workloads:
            if workload.samples > CPU_SAMPLES:
                raise UsageError(
                    f"{workload.name} has {workload.samples:,} samples, too many for the CPU engine "
                    f"(at most {CPU_SAMPLES:,}): choose workload=tiny or workload=quick"
                )
        return None
    if gpu_or_none() is None:
        try:
            find_gpu()
        except GpuMissing as error:
            raise UsageError(
                f"times need a GPU: {str(error).rstrip('.')}; engine=cpu workload=tiny gives the CPU "
                "engine's virtual cycles instead, which are not measured"
            ) from None
    return find_gpu()


@contextmanager
def _spinner():
    with console().status("") as status:
        yield lambda text: status.update(escape(text))


def _print(document, as_markdown, parts=None):
    if as_markdown:
        print(report.markdown(document, parts), end="")
        return
    for table in report.tables(document, parts):
        console().print(table)


def run_sweep(words):
    """``numba-deform sweep``: every key that is not its own is a list of the grid."""
    pairs = split_pairs(words)
    own = {key.name for key in KEYS["sweep"] if key not in GRID}
    options = parse_pairs({k: v for k, v in pairs.items() if k in own}, KEYS["sweep"], "sweep")
    if "out" not in options:
        raise UsageError("out=FILE.json is needed: the sweep is written there, and resumed from it")
    grid = {key: text.split(",") for key, text in pairs.items() if key not in own}
    if "patterns" in grid:
        if "pattern" in grid:
            raise UsageError("pattern and patterns are the same: give one of them")
        grid["pattern"] = grid.pop("patterns")
    points = expand(grid)
    gpu = _gpu(options, [point.workload for point in points])
    with _bar() as progress:
        document = sweep(
            points, options["out"], gpu, options.get("repeats", 10), options.get("seed", 1),
            options.get("limit", 120), options.get("retry", False), progress=progress,
        )  # fmt: skip
    _print(document, False)
    say("written", options["out"])
    return RIGHT


def run_tune(words):
    """``numba-deform tune``: exit status 1 when a candidate was wrong or failed."""
    options = parse_pairs(split_pairs(words), KEYS["tune"], "tune")
    workloads = _workloads(options, PATTERNS)
    if options.get("forget"):
        which = map(problem_of, workloads) if "workload" in options else None
        say("forgotten", f"{tuned.forget(which)} answers of {tuned.path()}")
        return RIGHT
    entries = parse_entries(options.get("variants", CANDIDATES))
    gpu = _gpu(options, workloads)
    with _bar() as progress:
        document, kept = tune(
            gpu, workloads, entries, options.get("repeats", 30), options.get("seed", 1),
            options.get("limit", 300), progress=progress,
        )  # fmt: skip
    if "out" in options:
        save(options["out"], document)
    _print(document, False)
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
    columns = (
        BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )  # fmt: skip
    with Progress(*columns, console=console()) as bar:
        task = bar.add_task("")

        def progress(done, total, label):
            bar.update(task, completed=done, total=total, description=escape(label))

        yield progress


def run_table(words):
    """``numba-deform table``."""
    options = parse_pairs(split_pairs(words), KEYS["table"], "table")
    if "file" not in options:
        raise UsageError("file=RESULT.json is needed; with summary=1 several, by commas")
    documents = [report.load(name) for name in options["file"].split(",")]
    if options.get("summary"):
        chosen = [text for text in options.get("variants", "").split(",") if text]
        _print(documents[0], options.get("markdown"), [report.summary(documents, chosen)])
    elif "variants" in options:
        raise UsageError("variants= chooses rows of a summary: give summary=1 too")
    else:
        for document in documents:
            _print(document, options.get("markdown"))
    return RIGHT


def run_plot(words):
    """``numba-deform plot``."""
    options = parse_pairs(split_pairs(words), KEYS["plot"], "plot")
    if "file" not in options:
        raise UsageError("file=RESULT.json is needed")
    document = report.load(options["file"])
    out = options.get("out", str(Path(options["file"]).with_suffix(".png")))
    say("written", report.plot(document, out, options.get("x")))
    return RIGHT


COMMANDS = {
    "bench": run_bench,
    "sweep": run_sweep,
    "tune": run_tune,
    "table": run_table,
    "plot": run_plot,
}

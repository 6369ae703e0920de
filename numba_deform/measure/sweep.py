"""``numba-deform sweep``: a grid of configurations, each checked and timed in a child process.

The result file is rewritten after every configuration, so a sweep that is stopped goes on where it
was. What a variant refuses is recorded with the rule; what crashes or hangs, with how it ended."""

import dataclasses
import itertools
import json
from pathlib import Path

from ..attention.request import pick_variant
from ..compiler.cache import shared_directory
from ..engines.suggestions import closest
from ..kernels.pipelines import PIPELINES
from ..kernels.problem import ConfigError
from ..kernels.registry import VARIANTS, is_of_this_process, source_of
from ..workloads.presets import preset
from . import bench, pipelines, record
from .parameters import parse_like
from .worker import Worker, answer, call_here, find_function

MEASURE = f"{__name__}:measure"
WORKLOAD_FIELDS = ("batch", "num_query", "num_heads", "channels", "num_points", "dtype",
                   "location_dtype", "pattern", "padded")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Point:
    """One configuration of the grid. ``refused`` says why it cannot run, else "". ``source`` is the digest of
    the file that has the variant (``registry.load``), or "". A pipeline of one's own has no ``workload``."""

    entry: bench.Entry
    workload: object
    key: str
    refused: str = ""
    source: str = ""


def expand(grid):
    """Points of ``{key: [texts]}``, without duplicates, by workload and then in the order of the keys.

    Keys are ``variant`` (``all`` takes every one; ``auto`` has the parameters of ``direct``), ``workload``,
    ``linked``, fields of a workload, and parameters of variants. A variant that has no such parameter is run
    without it, as long as another one of the grid has it. Raises ConfigError for a key that belongs to nothing.
    """
    grid = dict(grid)
    names = grid.pop("variant", ["direct"])
    names = list(VARIANTS) if names == ["all"] else names
    known = {name: bench.defaults_of(name) for name in names}
    own = [name for name in names if name in PIPELINES]
    if own and len(own) < len(names):
        raise ConfigError("variant", ",".join(names), f"sweep pipelines ({', '.join(own)}) by themselves")
    fields = () if own else ("workload", *WORKLOAD_FIELDS)
    usable = {"linked", *fields}.union(*known.values())
    for key in grid:
        if key not in usable:
            rule = f"is a parameter of none of {', '.join(names)}{closest(key, usable)}"
            raise ConfigError(key, ",".join(grid[key]), rule)
    points = {}
    for name in names:
        for combination in itertools.product(*grid.values()):
            texts = dict(zip(grid, combination, strict=True))
            given = {key: text for key, text in texts.items() if key in known[name] or key == "linked"}
            point = (_own_point if own else _point)(name, given, texts)
            points.setdefault(point.key, point)
    # One workload after the other: its inputs are made once.
    order = {}
    return sorted(points.values(), key=lambda point: order.setdefault(point.workload, len(order)))


def _point(name, given, texts):
    workload = preset(texts.get("workload", "seeds"))
    fields = [key for key in WORKLOAD_FIELDS if key in texts]
    changes = {key: parse_like(key, getattr(workload, key), texts[key]) for key in fields}
    return point_of(bench.entry_of(name, given), workload.replace(**changes))


def _own_point(name, given, texts):
    """Of a pipeline: what makes two the same are all of its parameters."""
    entry = bench.entry_of(name, given)
    values = json.dumps({**bench.defaults_of(name), **dict(entry.parameters)}, sort_keys=True)
    key = " ".join([name, "linked" if entry.linked else "inline", values])
    return Point(entry, None, key, source=source_of(name))


def measure(task):
    """``bench.measure`` or ``pipelines.measure``, as the task says."""
    return (bench if task["workload"] else pipelines).measure(task)


def point_of(entry, workload):
    """The :class:`Point` of a ``bench.Entry`` and a workload."""
    config, refused = dict(entry.parameters), ""
    try:
        chosen = pick_variant(entry.variant).configure(bench.constants_of(workload), **config)
        config = dataclasses.asdict(chosen)
    except ConfigError as error:
        refused = str(error)
    # Variant, resolved parameters and workload: what makes two configurations the same.
    parts = [json.dumps(part, sort_keys=True) for part in (config, dataclasses.asdict(workload))]
    key = " ".join([entry.variant, "linked" if entry.linked else "inline", *parts])
    return Point(entry, workload, key, refused, source_of(entry.variant))


def sweep(points, path, gpu=None, repeats=10, seed=1, limit=120.0, retry=False, measure=MEASURE,
          progress=lambda done, total, label: None, executor=None, model=None):  # fmt: skip
    """Measure ``points`` into the JSON file ``path``; returns the document.

    Rows that ``path`` has already are kept and not measured again, but for variants whose file has changed;
    ``retry`` repeats those that failed. ``limit`` is in seconds, for one point. ``measure`` is the path of a
    function as ``bench.measure``. With ``gpu`` None the CPU engine gives virtual cycles,
    or the model of a GPU of the name ``model`` predicts. ``progress(done,
    total, label)`` is called before every point and at the end. Points are measured in the workers of
    ``executor``, a ``concurrent.futures.Executor``, if there is one: a worker for each GPU, all of them like
    ``gpu``, such as ``worker.gpu_workers`` has. What ends a worker is its executor's to say, ``limit`` is not
    kept there. Raises ValueError for a file of another GPU."""
    document = _open(path, gpu, repeats, seed, model)
    rows = {row["key"]: row for row in document["rows"]}
    left = [p for p in points if p.key not in rows or (retry and "error_text" in rows[p.key])
            or rows[p.key].get("source", "") != p.source]  # fmt: skip
    engine = "gpu" if gpu else model or "cpu"

    def task(point):
        if not point.workload:
            return pipelines.task_of(point.entry, engine, repeats)
        return bench.task_of(point.entry, point.workload, seed, engine, repeats)

    done = len(points) - len(left)
    with shared_directory(), Worker(measure, limit) as worker:
        if gpu:
            progress(done, len(points), "compiling")
            bench.compile_ahead([task(p) for p in left if p.workload and not p.refused], gpu.architecture)
        sent = {}
        for point in left if executor else ():
            if not point.refused and not is_of_this_process(point.entry.variant):
                sent[point.key] = executor.submit(call_here, measure, task(point))
        for point in left:
            progress(done, len(points), point.entry.label)
            if point.refused:
                result = {"refused": True, "error_text": point.refused}
            elif is_of_this_process(point.entry.variant):
                result = bench.measure_here(task(point), measure=find_function(measure))
            else:
                result = answer(sent[point.key]) if executor else worker.call(task(point))
            rows[point.key] = _row(point, result, gpu)
            document["rows"] = list(rows.values())
            record.save(path, document)
            done += 1
    progress(done, len(points), "done")
    return document


def _open(path, gpu, repeats, seed, model):
    """The document in ``path``, or a new one."""
    settings = {"repeats": repeats, "seed": seed} | ({"model": model} if model else {})
    new = record.document(gpu, [], kind="sweep", clock=bench.clock(gpu) if gpu else None, settings=settings)
    if not Path(path).exists():
        return new
    old = json.loads(Path(path).read_text())

    def engine(one):
        return one["machine"]["gpu"] or one["settings"].get("model") or "the CPU engine"

    if old.get("kind") != "sweep" or engine(old) != engine(new):
        held = f"a {old.get('kind')} of {engine(old)}" if "settings" in old else "something else"
        raise ValueError(f"out={path} holds {held}, not a sweep of {engine(new)}: choose another file")
    return old


def _row(point, result, gpu):
    workload = point.workload
    what = pipelines.columns(point.entry)
    if workload:
        what = {**bench.columns(workload), "kind": "variant", "fetch": pick_variant(point.entry.variant).fetch}
    row = {"key": point.key, **what, "variant": point.entry.label, "name": point.entry.variant,
           "parameters": dict(point.entry.parameters), "commit": record.commit(), "date": record.now(),
           **result}  # fmt: skip
    if point.source:
        row["source"] = point.source
    if gpu and workload and "median_ms" in result:
        ghz = bench.clock(gpu)["ghz"]
        row |= bench.rates(result["median_ms"], workload.samples, bench.bytes_of(workload), gpu.sms, ghz)
    return row

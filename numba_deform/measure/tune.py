"""``numba-deform tune``: measure a few kernels on this GPU, and keep the fastest for ``auto``."""

import math
import tempfile
from pathlib import Path

from ..attention import tuned
from ..attention.tuned import Answer, Candidate
from ..kernels.problem import ConfigError, Problem, make_levels
from ..kernels.registry import variant
from . import record
from .bench import constants_of, parse_entries
from .sweep import MEASURE, point_of, sweep

CANDIDATES = (
    "direct,direct:lanes=4,tma-fastest,window,window:cell=12x12,window:cell=12x16,window:cell=16x12,"
    "window:cell=16x16,window:consumers=15,window:consumers=19"
)
PATTERNS = ("local(2)",)


def tune(gpu, workloads, entries=None, repeats=30, seed=1, limit=300.0, measure=MEASURE,
         progress=lambda done, total, label: None):  # fmt: skip
    """Measure ``entries`` (default CANDIDATES) for ``workloads``; returns (document, kept).

    The document is that of :func:`sweep.sweep`, whose arguments ``repeats`` to ``progress`` are. ``kept`` has a
    (workload, :class:`tuned.Answer`) for each kind of problems among the workloads, the answers stored; several
    patterns of one shape are one kind. Raises ConfigError for ``entries`` without ``window`` or with it alone,
    and ValueError when for one kind nothing but fitted kernels ran and was right; nothing is stored then."""
    entries = entries or parse_entries(CANDIDATES)
    for entry in entries:
        if entry.linked:
            raise ConfigError("linked", 1, "is there to be compared; auto never runs that form")
    if {variant(entry.variant).is_fitted for entry in entries} != {False, True}:
        shown = ",".join(entry.label for entry in entries)
        raise ConfigError("variants", shown,
                          "must name window and another: auto chooses between them")  # fmt: skip
    points = [point_of(entry, workload) for workload in workloads for entry in entries]
    with tempfile.TemporaryDirectory() as folder:
        document = sweep(points, Path(folder) / "tune.json", gpu, repeats, seed, limit,
                         measure=measure, progress=progress)  # fmt: skip
    rows = {row["key"]: row for row in document["rows"]}
    kinds = {}  # as text -> (its first workload, rows by workload)
    for point in points:
        problem = problem_of(point.workload)
        _, found = kinds.setdefault(str(tuned.kind_of(problem)), (point.workload, {}))
        found.setdefault(point.workload, []).append(rows[point.key])
    kept = [(workload, decide(list(found.values()))) for workload, found in kinds.values()]
    for workload, answer in kept:
        tuned.keep(gpu, problem_of(workload), answer)
    return document, kept


def problem_of(workload):
    """The ``problem.Problem`` of a workload, without its numbers."""
    return Problem(workload.batch, workload.spatial_size, workload.num_heads, workload.num_query,
                   make_levels(workload.levels, None, workload.padded), constants_of(workload))  # fmt: skip


def decide(patterns):
    """The :class:`tuned.Answer` of rows of a sweep, a list for each pattern of samples.

    Fitted kernels are compared where the fewest samples lie outside their windows; the steady ones by the
    geometric mean over all patterns. Rows without a time, failed or wrong, do not count; raises ValueError
    when there is none of a steady kernel."""
    timed = [[row for row in rows if "median_ms" in row] for rows in patterns]
    near = min(timed, key=lambda rows: min((r["outside"] for r in _fitted(rows)), default=2.0))
    fitted = min(_fitted(near), key=lambda row: row["median_ms"], default=None)
    times = {}  # variant with parameters -> ms in every pattern
    for row in (row for rows in timed for row in _fitted(rows, False)):
        times.setdefault(row["variant"], []).append(row["median_ms"])
    whole = {name: math.prod(ms) for name, ms in times.items() if len(ms) == len(timed)}
    if not whole:
        texts = {row["error_text"] for rows in patterns for row in rows if "error_text" in row}
        raise ValueError(
            "nothing to keep: no kernel that works with all patterns ran and was right; include direct"
            + "".join(f"; {text}" for text in sorted(texts))
        )
    best = min(whole, key=whole.get)
    (steady,) = (row for row in near if row["variant"] == best)
    return Answer(_candidate(steady), fitted and _candidate(fitted), record.now())


def _fitted(rows, fitted=True):
    """The rows of fitted kernels, or the others."""
    return [row for row in rows if variant(row["name"]).is_fitted == fitted]


def _candidate(row):
    parameters = tuple(row["parameters"].items())
    return Candidate(row["name"], parameters, row["cycles_per_tile"], row.get("outside", 0.0))

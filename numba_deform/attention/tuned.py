"""What ``numba-deform tune`` has measured on this machine, kept in a JSON file for ``auto``.

The file is named by the environment variable ``NUMBA_DEFORM_TUNED``; without it it is ``tuned.json`` in
``numba-deform`` of the user's cache directory. An answer holds for one GPU name, the sources that kernels
are made from, and a *kind* of problems: the constants that kernels are compiled for, the heads, whether
every pixel is a query, and the number of rows to a factor of about 1.4.
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

from ..compiler.cache import OWN, save, sources, user_directory

FIELDS = {"gpu", "sources", "kind", "steady", "fitted", "date"}
VARIABLE = f"{OWN}TUNED"


@dataclass(frozen=True)
class Candidate:
    """A variant with ``parameters`` ((name, value), ..), what it takes on one SM, in cycles a sample, and
    the share of the samples that lay outside its windows then."""

    variant: str
    parameters: tuple = ()
    cycles: float = 0.0
    outside: float = 0.0


@dataclass(frozen=True)
class Answer:
    """The fastest of the kernels that no pattern slows down much (``steady``), and of those fitted to the
    locations (None if none ran); ``date`` of the measurement."""

    steady: Candidate
    fitted: Candidate | None
    date: str = ""


def path():
    """The file's Path, whether it is there or not."""
    return Path(os.environ.get(VARIABLE) or user_directory() / "tuned.json")


def kind_of(problem):
    """What problems with one answer have in common, as JSON has it."""
    pixels = sum(level.height * level.width for level in problem.levels)
    return {
        "constants": dataclasses.asdict(problem.constants),
        "heads": problem.heads,
        "pixels_are_queries": problem.queries == pixels,
        "rows_log2": round(math.log2(problem.rows)),
    }


def find(gpu, problem):
    """The :class:`Answer` for a problem on ``gpu``, or None; a file that cannot be read has none."""
    kind = kind_of(problem)
    for entry in _entries():
        if _is_of(entry, gpu, kind):
            return Answer(_candidate(entry["steady"]), _candidate(entry["fitted"]), entry["date"])
    return None


def keep(gpu, problem, answer):
    """Write the answer, in place of an older one; returns the file's Path."""
    kind = kind_of(problem)
    others = [entry for entry in _entries() if not _is_of(entry, gpu, kind)]
    entry = {"gpu": gpu.name, "sources": _sources(), "kind": kind, **dataclasses.asdict(answer)}
    return save(path(), {"answers": [*others, entry]})


def forget(problems=None):
    """Drop the answers for these problems, or all, of every GPU; returns how many there were."""
    entries = _entries()
    kinds = None if problems is None else [kind_of(problem) for problem in problems]
    left = [entry for entry in entries if kinds is not None and entry["kind"] not in kinds]
    if len(left) < len(entries):
        save(path(), {"answers": left})
    return len(entries) - len(left)


def _entries():
    try:
        answers = json.loads(path().read_text())["answers"]
        return [entry for entry in answers if FIELDS <= set(entry)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _is_of(entry, gpu, kind):
    return (entry["gpu"], entry["sources"], entry["kind"]) == (gpu.name, _sources(), kind)


@functools.cache
def _sources():
    return hashlib.sha256("\n".join(sources()).encode()).hexdigest()


def _candidate(stored):
    if stored is None:
        return None
    pairs = ((k, tuple(v) if isinstance(v, list) else v) for k, v in stored["parameters"])
    return Candidate(**{**stored, "parameters": tuple(pairs)})

"""What a process takes that runs what another has run before, with two checkouts of this package in turn.

    python bench/at_once.py --before ../before --out bench/results/at_once.json

``command`` is the wall clock of ``numba-deform run variant=window engine=cpu workload=quick num_query=64``,
with Python's start and all imports. ``first`` is the first ``simulate`` of the pipeline copy of
``course/pipelines`` in a process, after the imports, and ``machine_code`` the same as machine code. Each runs
once before anything is timed, which is ``empty``, with nothing on disk. In seconds: the median, the smallest
and the largest of the rounds, and the processor's time, which other programs disturb less. What is kept goes to
a temporary directory in place of the user's.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = "run variant=window engine=cpu workload=quick num_query=64".split()
FIRST = """
import time
import numba_deform as nd
from numba_deform.course.pipelines.copy import copy
launch = copy()
nd.simulate
clocks = time.perf_counter, time.process_time
started = [clock() for clock in clocks]
nd.simulate(launch, compiled={compiled})
print(*(clock() - start for clock, start in zip(clocks, started)))
"""


def command(where):
    """(seconds, the processor's seconds) of the whole process."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, "-m", "numba_deform", *WORDS]
    subprocess.run(words, **where, check=True, stdout=subprocess.DEVNULL)
    seconds, used = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime


def first(where, compiled=None):
    """Likewise, of the first ``simulate`` alone."""
    program = [sys.executable, "-c", FIRST.format(compiled=compiled)]
    told = subprocess.run(program, **where, check=True, capture_output=True, text=True).stdout
    return tuple(map(float, told.split()))


def machine_code(where):
    """Likewise, as machine code."""
    return first(where, True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", required=True, help="the other checkout's folder")
    parser.add_argument("--what", default="command,first,machine_code", help="rows; others in the file stay")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    after, names, out = Path(__file__).resolve().parents[1], given.what.split(","), Path(given.out)
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    rows = [row for row in rows if row["what"] not in names]
    sys.path.insert(0, str(after))
    from numba_deform.measure import record

    for measure in map(globals().get, names):
        with tempfile.TemporaryDirectory() as folder:
            usual = {name: value for name, value in os.environ.items() if name != "NUMBA_DEFORM_CACHE"}
            roots, sides = (Path(given.before).resolve(), after), []
            for i, root in enumerate(roots):
                environment = {**usual, "PYTHONPATH": str(root), "XDG_CACHE_HOME": f"{folder}/{i}"}
                sides.append({"env": environment, "cwd": folder})
            empty = [measure(where) for where in sides]
            times = [[measure(where) for where in sides] for _ in range(given.rounds)]
        for side, empty_one, own in zip(("before", "after"), empty, zip(*times, strict=True), strict=True):
            seconds, processor = zip(*own, strict=True)
            row = {"what": measure.__name__, "checkout": side, "empty": empty_one[0]}
            row |= {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}
            row |= {"processor": statistics.median(processor), "rounds": given.rounds}
            rows.append(row)
            print(*(f"{v:.3f}" if isinstance(v, float) else v for v in row.values()), flush=True)
    record.write(given.out, None, rows, cores=os.cpu_count())


if __name__ == "__main__":
    main()

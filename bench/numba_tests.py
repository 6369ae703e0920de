"""numba-cuda's own tests, those in its wheel, under ``nd.check`` and on Numba's simulator: which of them pass,
and how long they take.

    python bench/numba_tests.py --out bench/results/numba_tests.json
    python bench/numba_tests.py test_idiv test_math     those with one of these words in their names

Nothing in a test changes but who runs its kernels: one process has ``nd.check``, the other
NUMBA_ENABLE_CUDASIM=1, and each runs one test after the other. They take turns, a module at a time, so that
what else a machine does is shared out evenly. A process that is killed, since a test took too long, starts
anew. No machine code is kept from an earlier run.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import TimeoutError
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path

from pebble import ProcessExpired, ProcessPool

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "numba_tests"))
import harness  # noqa: E402

LIMIT = 30  # seconds for a test
RUNS = {"check": harness.run_one, "simulator": harness.outcome_of}
START = 120  # seconds for a process to start


def timed(side, name):
    """In a process of a side: a row of a test's results. Without a name: what is needed to begin."""
    started, used = time.perf_counter(), time.process_time()
    outcome, words = RUNS[side](name) if name else ("ready", "")
    words = " ".join((words.strip().splitlines() or [""])[-1].split())[:300]
    return {"outcome": outcome, "words": words, "seconds": time.perf_counter() - started,
            "cpu_seconds": time.process_time() - used}  # fmt: skip


class Side:
    """One who runs the tests, with the process in which that is done."""

    def __init__(self, name):
        self.name = name
        started = time.perf_counter()
        self.pool = ProcessPool(1, context=get_context("spawn"), initializer=harness.prepare,
                                initargs=(name == "simulator",), max_tasks=0)  # fmt: skip
        self.result(None)
        self.start = time.perf_counter() - started

    def result(self, test):
        future = self.pool.schedule(timed, (self.name, test), timeout=LIMIT if test else START)
        try:
            return future.result()
        except TimeoutError:
            return {"outcome": "too slow", "words": f"more than {LIMIT} s", "seconds": LIMIT}
        except ProcessExpired as error:
            return {"outcome": "died", "words": f"exit status {error.exitcode}"}

    def close(self):
        self.pool.stop()
        self.pool.join()


def rows_of(tests, sides):
    """A row for each test, with the results of each side by its name."""
    rows = {test: {"test": test} for test in tests}
    modules = [list(group) for _, group in groupby(tests, key=lambda test: test.split(".Test")[0])]
    for number, module in enumerate(modules):
        for side in sides if number % 2 else sides[::-1]:
            for test in module:
                rows[test][side.name] = side.result(test)
        print(f"{number + 1} of {len(modules)} modules", end="\r", file=sys.stderr, flush=True)
    return list(rows.values())


def summary(rows, sides):
    """How many tests pass with each side, and the seconds of those that pass with both."""
    both = [row for row in rows if all(row[side.name]["outcome"] == harness.PASSED for side in sides)]
    found = {"tests": len(rows), "pass_with_both": len(both)}
    for side in sides:
        results = [row[side.name] for row in both]
        found[side.name] = {
            "outcomes": dict(Counter(row[side.name]["outcome"] for row in rows)),
            "start_seconds": round(side.start, 2),
            **{key: round(sum(r[key] for r in results), 2) for key in ("seconds", "cpu_seconds")},
        }
    wall = [found[side.name]["start_seconds"] + found[side.name]["seconds"] for side in sides]
    return found | {"ratio_with_start": round(wall[0] / wall[1], 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as kept:
        os.environ["NUMBA_DEFORM_CACHE"] = kept
        listed = harness.Listed()
        found = [n for n in harness.all_names() if not options.words or any(w in n for w in options.words)]
        tests = [name for name in found if not listed.reason(name)]
        sides = [Side(name) for name in RUNS]
        rows = rows_of(tests, sides)
        for side in sides:
            side.close()
    totals = summary(rows, sides)
    print(f"{len(found)} tests, {totals}")
    if options.out:
        from numba_deform.measure.record import write  # not above: the simulator's process reads this file

        write(options.out, None, rows, kind="numba_tests", found=len(found), totals=totals)


if __name__ == "__main__":
    main()

"""Runs numba-cuda's own tests, those in its wheel, under ``nd.check``: each in a child process that is killed
when it takes too long. One in which a fault is met has failed.

    python tests/numba_tests/harness.py                       all that apply; how many pass, and what does not
    python tests/numba_tests/harness.py test_idiv test_math   those with one of these words in their names
    python tests/numba_tests/harness.py --out FILE            also writes {test: [outcome, words]} as JSON
"""

import argparse
import importlib
import io
import json
import multiprocessing
import os
import pkgutil
import sys
import traceback
import unittest
import warnings
from collections import Counter
from concurrent.futures import TimeoutError
from contextlib import redirect_stdout
from fnmatch import fnmatch
from pathlib import Path

from pebble import ProcessExpired, ProcessPool

ROOT = "numba.cuda.tests"
FOLDER = Path(__file__).resolve().parent
LIST = FOLDER / "tests.json"
LIMIT, STARTS = 120, 300  # seconds for a test; for all tests to be found
PASSED = "passed"


def prepare(simulator=False):
    """In a process that runs tests, before anything of Numba is imported: what runs their kernels."""
    warnings.simplefilter("ignore")
    if simulator:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    else:
        importlib.import_module("checked")
    from numba.cuda.testing import CUDATestCase

    CUDATestCase._dump_failed_filechecks = False


def names():
    """All tests, as ``cudapy.test_idiv.TestCudaIDiv.test_inplace_div``, and modules that cannot be imported."""
    found = []
    for module in pkgutil.walk_packages(importlib.import_module(ROOT).__path__, f"{ROOT}."):
        if not module.name.rpartition(".")[2].startswith("test_"):
            continue
        try:
            loaded = importlib.import_module(module.name)
        except BaseException:  # pytest's skip of a whole module is one
            found.append(module.name)
            continue
        suite = unittest.defaultTestLoader.loadTestsFromModule(loaded)
        found += [test.id() for group in suite for test in group]
        own = [f for name, f in vars(loaded).items() if name.startswith("test_") and callable(f)]
        found += [f"{module.name}.{f.__name__}" for f in own if f.__module__ == module.name]
    return sorted({name.removeprefix(f"{ROOT}.") for name in found})


def run_one(name):
    """(outcome, the last words of what went wrong) of a test under ``nd.check``: passed, skipped or failed."""
    import checked  # not above: in a process with Numba's simulator it cannot be imported

    return checked.run(name, Listed().waivers(name))


def outcome_of(name):
    """The same, as the test itself has it, whoever runs its kernels."""
    result, heard = unittest.TestResult(), io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(heard):
        warnings.simplefilter("ignore")
        try:
            suite = unittest.defaultTestLoader.loadTestsFromName(f"{ROOT}.{name}")
            suite.run(result)
        except TypeError as error:
            if "don't know how to make test from" not in str(error) and "calling <function" not in str(error):
                raise
            return _function(name)
        except BaseException:
            return "failed", traceback.format_exc()
    if result.skipped:
        return "skipped", result.skipped[0][1]
    wrong = result.errors + result.failures
    if any("_pytest.outcomes.Skipped" in text for _, text in wrong):
        return "skipped", wrong[0][1].strip().splitlines()[-1]
    return ("failed", wrong[0][1]) if wrong else (PASSED, "")


def _function(name):
    """A test that is a plain function."""
    module, _, function = name.rpartition(".")
    try:
        getattr(importlib.import_module(f"{ROOT}.{module}"), function)()
    except BaseException:
        return "failed", traceback.format_exc()
    return PASSED, ""


def run(tests, limit=LIMIT, workers=2):
    """{test: (outcome, words)} of some tests."""
    context, results = multiprocessing.get_context("spawn"), {}
    with ProcessPool(workers, context=context, initializer=prepare, max_tasks=0) as pool:
        futures = {name: pool.schedule(run_one, (name,), timeout=limit) for name in tests}
        for name, future in futures.items():
            try:
                results[name] = future.result()
            except TimeoutError:
                results[name] = "too slow", f"more than {limit} s"
            except ProcessExpired as error:
                results[name] = "died", f"exit status {error.exitcode}"
    return results


def all_names():
    """The names, found in a child process: the stand-in stays out of this one."""
    with ProcessPool(1, context=multiprocessing.get_context("spawn"), initializer=prepare) as pool:
        return pool.schedule(names, timeout=STARTS).result()


class Listed:
    """What ``tests.json`` says: groups of tests that do not apply, tests that break a rule of the letter and
    work, and tests that do not pass, with reasons."""

    def __init__(self):
        listed = json.loads(LIST.read_text())
        self.out = [(pattern, why) for why, group in listed["not for an engine"].items() for pattern in group]
        self.waived = [(pattern, name) for name, group in listed["waived"].items() for pattern in group]
        self.open = {name: why for why, group in listed["not passed"].items() for name in group}

    def reason(self, name):
        """Why a test does not apply; None if it does."""
        return next((reason for pattern, reason in self.out if fnmatch(name, pattern)), None)

    def waivers(self, name):
        """The rules that are waived for a test."""
        return [waiver for pattern, waiver in self.waived if fnmatch(name, pattern)]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=float, default=LIMIT)
    parser.add_argument("--everything", action="store_true", help="also those that do not apply")
    options = parser.parse_args(argv)
    listed = Listed()
    found = [n for n in all_names() if not options.words or any(word in n for word in options.words)]
    tests = [n for n in found if options.everything or not listed.reason(n)]
    results = run(tests, options.limit)
    for name, (outcome, words) in results.items():
        if outcome != PASSED:
            print(f"{outcome:8} {name}: {' '.join((words.strip().splitlines() or [''])[-1].split())[:300]}")
    print(f"{len(found)} tests, {len(tests)} apply:", dict(Counter(r[0] for r in results.values())))
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    sys.exit(main())

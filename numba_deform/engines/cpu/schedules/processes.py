"""Several schedules of one launch, on all cores where that pays: each in a process that is forked for it.

What comes of it is what comes of running them one after the other. The results are taken in order; where
another process met anything but a clean end (a fault, a time limit, something to print), the schedule is run
once more here, which then does what it does; and the last one is always run here, for its arrays and events.
"""

import contextlib
import multiprocessing
import os
import sys
import threading
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from ..frontends import arguments
from ..memory.scalars import bounds_of
from . import executors

PAYS = 2.0  # seconds that the schedules take one after the other: far more than processes take to start
_mine = None  # in another process: (grid, landing, the class of reports)


def to_run(launch, numbers, report, landing, executor=None):
    """The schedules of ``numbers`` that the caller has to run itself, in order: all but those that have ended
    without a fault in another process. What these did is in ``report`` when the next one is asked for.
    They go to ``executor`` if there is one."""
    if executor is not None:
        yield from executors.to_run(executor, launch, numbers, report, landing)
        return
    started = time.perf_counter()
    yield numbers[0]
    seconds = time.perf_counter() - started
    rest = numbers[1:]
    processes = min(_idle_cores(), len(rest) - 1)
    if processes < 2 or seconds * len(rest) < PAYS or not _may_fork(launch):
        yield from rest
        return
    sys.stdout.flush()
    pool = ProcessPoolExecutor(processes, get_context("fork"), _begin, (launch, landing, type(report)))
    try:
        futures = {}
        with warnings.catch_warnings(), contextlib.suppress(BrokenProcessPool):  # if one dies early
            # Of threads below Python, such as NumPy's, which are idle.
            warnings.simplefilter("ignore", DeprecationWarning)
            futures.update((number, pool.submit(_one, number)) for number in rest[:-1])
        for number in rest[:-1]:
            try:
                totals = futures[number].result()
            except (KeyError, BrokenProcessPool):
                totals = None
            if totals is None:
                yield number
            else:
                report.add(totals)
        yield rest[-1]
    finally:  # also when nobody wants the results any more
        pool.shutdown(cancel_futures=True)


def _begin(launch, *more):
    global _mine
    _mine, launch.progress = (launch, *more), None


def _one(number):
    """What schedule ``number`` adds to the report; None if it is to be run where others can see it."""
    return executors.clean(executors.totals_of, number, *_mine)


def _idle_cores():
    """The cores of this process that nobody else is using."""
    try:
        return len(os.sched_getaffinity(0)) - round(max(0, os.getloadavg()[0] - 1))
    except (AttributeError, OSError):  # not Linux
        return 1


def _may_fork(launch):
    """Whether a copy of this process can run a schedule as this one would, and nobody notices."""
    alone = threading.active_count() == 1 and not multiprocessing.current_process().daemon
    return alone and launch.program.is_confined and not _are_shared(arguments.writeable(launch.arrays))


def _are_shared(arrays):
    """Whether a forked process would write into the same memory: that of files, and of shared memory."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return True
    shared = [line.split()[0].split("-") for line in lines if line.split()[1][3] == "s"]
    ranges = [(int(start, 16), int(stop, 16)) for start, stop in shared]
    return any(
        start < last and first < stop for first, last in map(bounds_of, arrays) for start, stop in ranges
    )

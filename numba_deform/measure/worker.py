"""A child process that runs one task after another, and may crash or hang without harm.

A kernel that reads a wrong address leaves its whole process without a GPU, and one that deadlocks
never returns. Both happen while tuning, so tasks that may do it run here."""

import importlib
import multiprocessing
import operator
import os
import signal
import subprocess
from concurrent.futures import ProcessPoolExecutor, TimeoutError

from pebble import ProcessExpired, ProcessPool

START_LIMIT = 120  # seconds for the child to start


def find_function(path):
    """The function of ``package.module:function``; raises ImportError or AttributeError."""
    module, _, name = path.partition(":")
    return operator.attrgetter(name)(importlib.import_module(module))


class Worker:
    """Calls ``function(task)``, a path as for :func:`find_function`, in a child process.

    Tasks and results are picklable. The child starts with the first task, lives on, and is started
    again after it died, was killed after ``limit`` seconds of a task, or raised anything but ValueError:
    a CUDA error spoils the context that the next task would use."""

    def __init__(self, function, limit=120.0):
        self.function, self.limit, self.pool = function, limit, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def call(self, task):
        """The task's result, a dict; on failure ``{"error_text": why}``."""
        if self.pool is None:  # CUDA does not survive a fork
            self.pool = ProcessPool(1, context=multiprocessing.get_context("spawn"))
        try:
            future = self.pool.schedule(_call, (self.function, task), timeout=self.limit)
            result, usable = future.result(self.limit + START_LIMIT)
        except Exception as error:  # of the process: what the task raised has come back as its result
            text = explain(error)
            if isinstance(error, TimeoutError):
                text = f"no answer within {self.limit:g} s: stopped"
            elif isinstance(error, ProcessExpired):
                text = f"the process died with exit status {error.exitcode}"
            result, usable = {"error_text": text}, False
        if not usable:
            self.stop()
        return result

    def stop(self):
        """End the child, whatever it does."""
        if self.pool is not None:
            self.pool.stop()
            self.pool.join()
        self.pool = None


def gpu_workers(numbers):
    """An executor with a process for each GPU of these numbers, which sees that GPU alone."""
    context = multiprocessing.get_context("spawn")
    left = context.SimpleQueue()
    for number in numbers:
        left.put(number)
    return ProcessPoolExecutor(len(numbers), context, _take_gpu, (left,))


def _take_gpu(left):
    os.environ["CUDA_VISIBLE_DEVICES"] = str(left.get())


def call_here(path, task):
    """As ``Worker.call``, in a worker of an executor."""
    return _call(path, task)[0]


def answer(future):
    """The result of ``call_here``; an ``error_text`` where the executor has none."""
    try:
        return future.result()
    except Exception as error:
        return {"error_text": explain(error)}


def _call(path, task):
    """The child's side: (the result, whether the process can be used again)."""
    try:
        return find_function(path)(task), True
    except Exception as error:
        return {"error_text": explain(error)}, isinstance(error, ValueError)


def run_program(command, limit, **options):
    """The CompletedProcess of a program with at most ``limit`` seconds.

    It has a process group of its own, and all of that is killed before TimeoutExpired, or anything
    else, is raised. ``options`` are those of subprocess.Popen."""
    with subprocess.Popen(command, start_new_session=True, **options) as child:
        try:
            out, err = child.communicate(timeout=limit)
        finally:
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def explain(error):
    """An exception in one line."""
    name, words = type(error).__name__, " ".join(str(error).split())
    return (words if words.startswith(f"{name}: ") else f"{name}: {words}")[:500]  # a fault's text has it

"""A child process that runs one task after another, and may crash or hang without harm.

A kernel that reads a wrong address leaves its whole process without a GPU, and one that deadlocks
never returns. Both happen while tuning, so tasks that may do it run here.
"""

import importlib
import multiprocessing
import os
import signal
import subprocess


def find_function(path):
    """The function of ``package.module:function``; raises ImportError or AttributeError."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


class Worker:
    """Calls ``function(task)``, a path as for :func:`find_function`, in a child process.

    Tasks and results are picklable. The child starts with the first task, lives on, and is started
    again after it died, hung for ``limit`` seconds, or raised anything but ValueError: a CUDA error
    spoils the context that the next task would use.
    """

    def __init__(self, function, limit=120.0):
        self.function, self.limit = function, limit
        self.process = self.pipe = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def call(self, task):
        """The task's result, a dict; on failure ``{"error_text": why}``."""
        if self.process is None or not self.process.is_alive():
            self._start()
        try:
            self.pipe.send(task)
            if not self.pipe.poll(self.limit):
                self.stop()
                return {"error_text": f"no answer within {self.limit:g} s: stopped"}
            result, usable = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(10)
            code = self.process.exitcode
            self.stop()
            return {"error_text": f"the process died with exit status {code}"}
        if not usable:
            self.stop()
        return result

    def _start(self):
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.function), daemon=True)
        self.process.start()
        theirs.close()

    def stop(self):
        """End the child, whatever it does."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
        self.process = self.pipe = None


def _serve(pipe, path):
    function = find_function(path)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            answer = function(task), True
        except Exception as error:
            answer = {"error_text": explain(error)}, isinstance(error, ValueError)
        pipe.send(answer)


def run_program(command, limit, **options):
    """The CompletedProcess of a program with at most ``limit`` seconds.

    It has a process group of its own, and all of that is killed before TimeoutExpired, or anything
    else, is raised. ``options`` are those of subprocess.Popen.
    """
    with subprocess.Popen(command, start_new_session=True, **options) as child:
        try:
            out, err = child.communicate(timeout=limit)
        finally:
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def explain(error):
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]

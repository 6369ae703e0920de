"""The watchdog that ends a run which takes too long; ``PreparedLaunch`` has one."""

import ctypes
import threading
import time

from ... import faults
from ..reports.call_sites import raised_at


class Watchdog:
    """Ends a run that takes too long, also inside a loop that never calls the engine. It watches one run after
    another: to start a thread takes as long as a small run."""

    def __init__(self, timeout):
        self.timeout, self.execution, self.until = timeout, None, 0.0  # the run that it watches, and until when
        self.caller, self.over = ctypes.c_ulong(threading.get_ident()), threading.Event()
        self.lock = threading.Lock()
        self.watch = threading.Thread(target=self._watch, daemon=True)

    def start(self, execution):
        """A run begins."""
        self.execution, self.until = execution, time.monotonic() + self.timeout
        if not self.watch.ident:
            self.watch.start()

    def _watch(self):
        pause = self.timeout
        while not self.over.wait(max(pause, 0)):
            with self.lock:
                watched = self.execution and not self.execution.unhurried
                pause = self.until - time.monotonic() if watched else max(self.timeout, 0.1)
                if pause <= 0:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(self.caller, ctypes.py_object(OutOfTime))
                    pause = 1.0  # once more, in case that something swallowed it

    def rest(self):
        """The run has ended."""
        while True:
            try:
                with self.lock:
                    self.execution = None
                for _ in range(100):
                    pass  # one that is still on its way arrives here
                return
            except OutOfTime:
                pass  # too late: the run has ended

    def stop(self):
        """No other run is to come."""
        self.over.set()
        if self.watch.ident:
            self.watch.join()

    def fault(self, execution, error):
        """What to say of the place where the run was stopped."""
        what, thread = f"still running after {self.timeout:g} s", execution.running
        if thread is None:
            return faults.Unfinished(what)
        return thread.fault_at(faults.Unfinished, what, raised_at(error))


class OutOfTime(BaseException):
    """Thrown into the engine by the watchdog."""

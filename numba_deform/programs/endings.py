"""How a program may end before its end: by SIGTERM, as CI stops what takes too long, and by ``os._exit``."""

import contextlib
import os
import signal
import threading
import traceback
from unittest import mock


class Terminated(KeyboardInterrupt):
    """SIGTERM, which unwinds the program as Ctrl-C does."""


INTERRUPTIONS = 128 + signal.SIGINT, 128 + signal.SIGTERM  # exit statuses


def status_of(interrupt):
    """The exit status of a program that a KeyboardInterrupt has ended."""
    return INTERRUPTIONS[isinstance(interrupt, Terminated)]


@contextlib.contextmanager
def heeded(tell):
    """Inside, ``os._exit(status)`` ends this process with the status that ``tell(status)`` returns, and SIGTERM
    raises :class:`Terminated` in the main thread, unless the program does something else at it. Processes that
    are forked inside end as ever."""
    owner, leave = os.getpid(), os._exit

    def leave_told(status):
        if os.getpid() == owner:
            try:
                status = tell(status)
            except BaseException:  # there is nobody else who could say it
                traceback.print_exc()
        leave(status)

    def terminated(number, frame):
        if os.getpid() == owner:
            raise Terminated
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, terminated)
    try:
        with mock.patch.object(os, "_exit", leave_told):
            yield
    finally:
        if ours and signal.getsignal(signal.SIGTERM) is terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

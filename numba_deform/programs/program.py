"""Runs a program as Python would, with its launches judged: for ``numba-deform check``."""

import importlib.util
import runpy
import sys
import traceback
from pathlib import Path

from ..engines.cpu import SimFault
from .callers import is_ours
from .endings import status_of
from .session import check


def run(words, options):
    """(the Session, the program's exit status) of ``program.py ..`` or ``-m module ..``, judged with the
    ``options`` of ``check``. What the program raises is printed as Python prints it. OSError where there is no
    such file, ModuleNotFoundError where there is no such module."""
    return ran(words, check(**options))


def ran(words, around):
    """(what the context manager ``around`` gives, the program's exit status): the program runs inside. As
    ``run``."""
    as_module = words[0] == "-m"
    arguments = words[as_module:]
    if not as_module:
        open(words[0]).close()
    elif not importlib.util.find_spec(arguments[0]):
        raise ModuleNotFoundError(f"there is no module {arguments[0]}", name=arguments[0])
    before = sys.argv, sys.path[:]
    sys.argv, sys.path[0] = arguments, "" if as_module else str(Path(words[0]).resolve().parent)
    try:
        with around as session:
            status = _status(arguments[0], as_module)
    finally:
        sys.argv, sys.path[:] = before
    return session, status


def _status(name, as_module):
    try:
        if as_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        return status_of(interrupt)
    except SimFault:  # after ``stop``; it is told with the rest
        return 1
    except Exception as error:
        _print(error)
        return 1
    return 0


def _print(error):
    """The traceback without this package's lines around the program."""
    trace = error.__traceback__
    while trace.tb_next and (is_ours(trace.tb_frame) or "runpy" in trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)

"""The command line: ``numba-deform COMMAND key=value ...``, with the keys of the original programs.

Every command is a function that returns an exit status: 0 right, 1 a wrong result, 2 bad input. What is
computed lives in ``measure/``; here are parsing and printing. ``commands`` is the table of commands, ``keys``
has what they know; both, and this module, import nothing heavy: help and completion come at once."""

import os
import subprocess
import sys

from . import keys
from .commands import COMMANDS, INTERRUPTED, RIGHT, USAGE, find, refuse
from .keys import REAL, Key, UsageError, parse_pairs, split_pairs

__all__ = ["COMMANDS", "USAGE", "keys", "main"]
TIME_LIMIT = Key("time_limit", REAL, "seconds")


def main(argv=None):
    """Run one command; returns the exit status."""
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except UsageError as error:
        return refuse(error)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return RIGHT
    except KeyboardInterrupt:
        print("numba-deform: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        from .failures import report  # not above: it brings Numba

        status = report(error)
        if status is None:
            raise
        return status


def _run(words):
    limit, rest = _time_limit(words)
    if rest and rest[0] in COMMANDS:  # what comes behind is a program's
        words = words[: len(words) - len(rest) + 1 + COMMANDS[rest[0]].own_words(rest[1:])]
    if "--version" in words:
        package, _, _ = __package__.partition(".")  # loaded before this, which is a part of it
        print(f"numba-deform {sys.modules[package].__version__}")
        return RIGHT
    if not words or {"-h", "--help"} & set(words):
        return COMMANDS["help"]([word for word in rest[:1] if word not in ("-h", "--help")])
    command = find(rest[0]) if rest else None
    return command(rest[1:]) if limit is None else _limited(limit, rest)


def _time_limit(words):
    """(the pair of a time_limit that comes first, or None; the words after it)."""
    name, equals, _ = words[0].removeprefix("--").partition("=") if words else ("",) * 3
    if name.replace("-", "_") != TIME_LIMIT.name or not (equals or words[0].startswith("--")):
        return None, words
    taken = 1 if equals else 2
    return split_pairs(words[:taken], [TIME_LIMIT]), words[taken:]


def _limited(limit, words):
    """Run ``words`` in a process group of its own, and end all of it after the time."""
    from ..measure.worker import run_program

    (seconds,) = parse_pairs(limit, [TIME_LIMIT], "numba-deform").values()
    if seconds <= 0 or not words:
        raise UsageError(f"time_limit={limit[TIME_LIMIT.name]}: more than 0 seconds, and then a command")
    try:
        return run_program([sys.executable, "-m", "numba_deform", *words], seconds).returncode
    except subprocess.TimeoutExpired:
        from .output import verdict

        print(f"numba-deform: still running after {seconds:g} s: stopped", file=sys.stderr)
        return verdict(False)

"""Fewer collections of garbage: while a kernel runs, in ``simulate`` and ``PreparedLaunch``, and while large
packages are imported, in the command line and for Triton's programs."""

import contextlib
import gc
import sys

SELDOM = 10_000  # new objects between two collections of the young
BY_PYTHON = 1_000 if sys.version_info[:2] == (3, 12) else 0  # frozen objects that Python begins with, at most
_is_frozen = False  # by this file: asking the collector takes it as long as there are frozen objects


@contextlib.contextmanager
def short_collections():
    """Inside, the garbage collector looks at what is made there, and not at all that was there before."""
    global _is_frozen
    freezes = not _is_frozen and gc.get_freeze_count() <= BY_PYTHON  # others' stay
    if freezes:
        gc.freeze()
        _is_frozen = True
    before = gc.get_threshold()
    gc.set_threshold(max(SELDOM, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if freezes:
            _is_frozen = False
            gc.unfreeze()


@contextlib.contextmanager
def no_collections():
    """Inside, nothing is collected: an import makes many objects and little garbage."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextlib.contextmanager
def kept():
    """What is there at the end of it stays until Python ends: no collection looks at it, while it is made or
    later, and Python ends without one of it."""
    global _is_frozen
    with no_collections():
        try:
            yield
        finally:
            gc.freeze()
            _is_frozen = True

"""Fewer collections of garbage while a kernel runs. ``simulate`` and ``PreparedLaunch`` run kernels inside
it."""

import contextlib
import gc

SELDOM = 10_000  # new objects between two collections of the young
_is_frozen = False  # by short_collections: asking the collector takes it as long as there are frozen objects


@contextlib.contextmanager
def short_collections():
    """Inside, the garbage collector looks at what is made there, and not at all that was there before."""
    global _is_frozen
    if _is_frozen or gc.get_freeze_count():  # somebody else's, which must not be thawed
        yield
        return
    gc.freeze()
    _is_frozen, before = True, gc.get_threshold()
    gc.set_threshold(max(SELDOM, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        _is_frozen = False
        gc.set_threshold(*before)
        gc.unfreeze()

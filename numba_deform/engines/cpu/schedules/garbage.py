"""Fewer collections of garbage while a kernel runs. ``simulate`` and ``PreparedLaunch`` run kernels inside
it."""

import contextlib
import gc

_is_frozen = False  # by short_collections: asking the collector takes it as long as there are frozen objects


@contextlib.contextmanager
def short_collections():
    """Inside, the garbage collector looks at what is made there, and not at all that was there before."""
    global _is_frozen
    if _is_frozen or gc.get_freeze_count():  # somebody else's, which must not be thawed
        yield
        return
    gc.freeze()
    _is_frozen = True
    try:
        yield
    finally:
        _is_frozen = False
        gc.unfreeze()

"""Results that are kept and made once, whichever threads ask for them first."""

import functools
import threading


def made_once(kept):
    """A decorator: the last ``kept`` results of a function stay. Threads that ask for the same one get the same
    one: of two, the one that is not kept would give back its tables while its launch reads them."""

    def decorate(make):
        known, making = functools.lru_cache(maxsize=kept)(make), threading.Lock()

        @functools.lru_cache(maxsize=kept)  # so that what is there waits for no lock
        @functools.wraps(make)
        def get(*call):
            with making:
                return known(*call)

        def forget():
            get.cache_clear()
            known.cache_clear()

        get.forget = forget
        return get

    return decorate

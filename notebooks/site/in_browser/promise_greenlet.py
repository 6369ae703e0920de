"""What the CPU engine asks of the package ``greenlet``, in a browser: it has no build for WebAssembly.

A greenlet has a WebAssembly stack of its own, by JavaScript Promise Integration: who switches away waits for a
promise (``run_sync``), and who switches to it keeps that promise."""

import sys

from pyodide.code import run_js
from pyodide.ffi import create_proxy, run_sync

_promise = run_js("() => { const it = {}; it.kept = new Promise(keep => { it.keep = keep; }); return it; }")
_begin = run_js("body => { Promise.resolve().then(() => body.callPromising()).finally(() => body.destroy()); }")


class GreenletExit(BaseException):
    """Ends a greenlet, and is what its parent gets of it."""


class greenlet:  # noqa: N801  the package's name
    def __init__(self, run=None, parent=None):
        self._run, self.parent = run, parent or getcurrent()
        self.dead = self._begun = False
        self._promise = self._gift = self.gr_frame = self.gr_context = None

    def __bool__(self):
        return self._begun and not self.dead

    def switch(self, *args):
        """Let it go on; what comes back when somebody switches here."""
        return self._hand_over((args[0] if len(args) == 1 else args, None))

    def throw(self, error=GreenletExit):
        """Let it go on with an exception; what comes back is as for ``switch``."""
        return self._hand_over((None, error() if isinstance(error, type) else error))

    def _hand_over(self, gift):
        global _current
        here, target = _current, self
        if not target._begun and gift[1] is not None:
            target._begun = target.dead = True
        target = target._alive()
        if target is here:
            return gift[1] if isinstance(gift[1], GreenletExit) else _opened(gift)
        here._promise, here.gr_frame = _promise(), sys._getframe(2)
        target._wake(gift)
        run_sync(here._promise.kept)
        _current, here.gr_frame = here, None
        gift, here._gift = here._gift, None
        return _opened(gift)

    def _alive(self):
        """This one, or if it is dead the next of its parents that is not."""
        return self.parent._alive() if self.dead else self

    def _wake(self, gift):
        self._gift = gift
        if self._begun:
            self._promise.keep()
        else:
            self._begun = True
            _begin(create_proxy(self._body))

    def _body(self):
        global _current
        _current = self
        (first, _), self._gift = self._gift, None
        try:
            gift = (self._run() if first == () else self._run(first)), None
        except GreenletExit as left:
            gift = left, None
        except BaseException as raised:
            gift = None, raised
        self.dead, self._run = True, None
        self.parent._alive()._wake(gift)


def _opened(gift):
    """What was handed over: a value, or an exception to raise."""
    value, error = gift
    if error is not None:
        raise error
    return value


_current = greenlet.__new__(greenlet)
vars(_current).update(parent=None, dead=False, _begun=True, gr_frame=None, gr_context=None, _gift=None)


def getcurrent():
    return _current

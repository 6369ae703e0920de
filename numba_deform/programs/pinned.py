"""Pinned memory that a copy still uses: the host is met where it touches it.

A copy between pinned memory and the device returns at once. Until the host has waited for it, the pages that
it fills are closed to the host, and those that it reads may only be read. The access is told, and goes on: the
stand-in has copied long ago. On Linux alone, where a process may close its pages and be told who comes.
"""

import contextlib
import ctypes
import mmap
import signal
import sys
from typing import NamedTuple

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
CLOSED, READABLE, OPEN = 0, 1, 3  # PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE
WITH_ADDRESS, ADDRESS = 4, 16  # SA_SIGINFO; where a siginfo_t has it, in bytes
HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class Action(ctypes.Structure):
    """The C library's ``struct sigaction``."""

    _fields_ = (("handler", ctypes.c_void_p), ("mask", ctypes.c_ubyte * 128), ("flags", ctypes.c_int),
                ("restorer", ctypes.c_void_p))  # fmt: skip


class InUse(NamedTuple):
    """Pages and what is in use of them: ``copy`` tells which copy, as it was given."""

    first: int  # where the pages start, and stop
    end: int
    protection: int
    start: int  # the bytes
    stop: int
    copy: object


class PinnedPages:
    """The pages in use. ``touched(use, address)`` is called where the host comes too early."""

    def __init__(self, touched):
        self.touched, self.uses, self.before, self.handler = touched, {}, None, HANDLER(self._met)
        self.calls = 0  # in which the stand-in is at work, one inside the other

    def use(self, start, stop, written, copy, own):
        """A copy uses these bytes, and writes them or only reads. ``own``: nothing but pinned memory is on
        their pages; else those count that they fill."""
        first, end = start // PAGE * PAGE, -(-stop // PAGE) * PAGE
        if not own:
            first, end = first + PAGE * (first < start), end - PAGE * (end > stop)
        if LIBC is None or first >= end:
            return
        if self.before is None:
            self.before = Action()
            handler = ctypes.cast(self.handler, ctypes.c_void_p)
            self._act_by(Action(handler, flags=WITH_ADDRESS), self.before)
        # the first and the last may have other bytes, too
        middle, last = min(first + PAGE, end), max(end - PAGE, first + PAGE)
        for page in ((first, middle), (middle, last), (last, end)):
            if page[0] < page[1]:
                use = InUse(*page, READABLE - written, start, stop, copy)
                self.uses[use[:-1], copy.stream] = use  # of these bytes the later one is over last
        self._close()

    def over(self, is_over):
        """The copies that this is true of are over."""
        if self.uses:
            self._open()
            self.uses = {key: use for key, use in self.uses.items() if not is_over(use.copy)}
            self._close()

    @contextlib.contextmanager
    def open(self):
        """Inside, all pages are open: what the stand-in does is none of the host's."""
        self._open()
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1
            self._close()

    def end(self):
        """Open all pages, and leave the signal to whoever had it."""
        self.over(lambda copy: True)
        if self.before is not None:
            self._act_by(self.before, None)
            self.before = None

    def _open(self):
        if not self.calls:
            for use in self.uses.values():
                self._protect(use, OPEN)

    def _close(self):
        if not self.calls:
            for use in sorted(self.uses.values(), key=lambda use: -use.protection):  # the strictest last
                self._protect(use, use.protection)

    @staticmethod
    def _protect(use, protection):
        LIBC.mprotect(ctypes.c_void_p(use.first), ctypes.c_size_t(use.end - use.first), protection)

    @staticmethod
    def _act_by(action, before):
        LIBC.sigaction(signal.SIGSEGV, ctypes.byref(action), before and ctypes.byref(before))

    def _met(self, number, info, context):
        """The handler of SIGSEGV. Behind it the access is tried again: its page is open until the next call."""
        address = ctypes.c_void_p.from_address(info + ADDRESS).value or 0
        met = [use for use in self.uses.values() if use.first <= address < use.end]
        if not met:  # none of ours: whoever had the signal gets it
            self._act_by(self.before, None)
            return
        for use in met:
            self._protect(use, OPEN)
        met = [use for use in met if use.start <= address < use.stop]
        if met:
            early = min(met, key=lambda use: use.protection)  # one that both a read and a write breaks
            with self.open():
                self.over(lambda copy: copy is early.copy)  # one report for each
                self.touched(early, address)

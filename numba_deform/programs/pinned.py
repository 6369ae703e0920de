"""Pinned memory that a copy still uses: the host is met where it touches it.

A copy between pinned memory and the device returns at once. Until the host has waited for it, the pages that
it fills are closed to the host, and those that it reads may only be read. The access is told, and goes on: the
stand-in has copied long ago. On Linux alone, where a process may close its pages and be told who comes.
"""

import contextlib
import ctypes
import mmap
import platform
import signal
import sys
from typing import NamedTuple

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
CLOSED, READABLE, OPEN = 0, 1, 3  # PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE
WITH_ADDRESS, ADDRESS = 4, 16  # SA_SIGINFO; where a siginfo_t has it, in bytes
FLAGS, ONE_STEP = 176, 0x100  # where an x86's ucontext_t has its flags, and the one that stops behind an access
# Accesses beside what is in use, between two calls; then their pages are open until the next.
STEPS = 10_000 if platform.machine() == "x86_64" else 0
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
        self.touched, self.uses, self.before = touched, {}, {}
        self.handlers = {signal.SIGSEGV: HANDLER(self._met), signal.SIGTRAP: HANDLER(self._behind_it)}
        self.calls = 0  # in which the stand-in is at work, one inside the other
        self.steps = STEPS

    def use(self, start, stop, written, copy, room):
        """A copy uses these bytes, and writes them or only reads. ``room``: (start, stop) of the pages there on
        which nothing but pinned memory is."""
        first, end = max(start // PAGE * PAGE, room[0]), min(-(-stop // PAGE) * PAGE, room[1])
        if LIBC is None or first >= end:
            return
        if not self.before:
            for number, handler in self.handlers.items():
                action = Action(ctypes.cast(handler, ctypes.c_void_p), flags=WITH_ADDRESS)
                before = self.before.setdefault(number, Action())
                LIBC.sigaction(number, ctypes.byref(action), ctypes.byref(before))
        use = InUse(first, end, READABLE - written, start, stop, copy)
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
            self.calls, self.steps = self.calls - 1, STEPS
            self._close()

    def end(self):
        """Open all pages, and leave the signals to whoever had them."""
        self.over(lambda copy: True)
        for number in tuple(self.before):
            self._leave(number)

    def _leave(self, number):
        LIBC.sigaction(number, ctypes.byref(self.before.pop(number)), None)

    def _open(self):
        if not self.calls:
            for use in self.uses.values():
                self._protect(use.first, use.end, OPEN)

    def _close(self):
        if not self.calls:
            for use in sorted(self.uses.values(), key=lambda use: -use.protection):  # the strictest last
                self._protect(use.first, use.end, use.protection)

    @staticmethod
    def _protect(first, end, protection):
        LIBC.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(end - first), protection)

    def _met(self, number, info, context):
        """The handler of SIGSEGV. Behind it the access is tried again."""
        address = ctypes.c_void_p.from_address(info + ADDRESS).value or 0
        met = [use for use in self.uses.values() if use.first <= address < use.end]
        if not met:  # none of ours: whoever had the signal gets it
            self._leave(number)
            return
        if early := [use for use in met if use.start <= address < use.stop]:
            use = min(early, key=lambda use: use.protection)  # one that both a read and a write breaks
            with self.open():
                self.over(lambda copy: copy is use.copy)  # one report for each
                self.touched(use, address)
            return
        page = address // PAGE * PAGE
        self._protect(page, page + PAGE, OPEN)
        if self.steps:
            self.steps -= 1
            ctypes.c_uint64.from_address(context + FLAGS).value |= ONE_STEP

    def _behind_it(self, number, info, context):
        """The handler of SIGTRAP, behind an access beside what is in use."""
        if not ctypes.c_uint64.from_address(context + FLAGS).value & ONE_STEP:  # none of ours
            self._leave(number)
            LIBC.kill(LIBC.getpid(), number)
            return
        ctypes.c_uint64.from_address(context + FLAGS).value &= ~ONE_STEP
        self._close()

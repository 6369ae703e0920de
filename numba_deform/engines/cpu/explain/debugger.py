"""``breakpoint()`` in a kernel: pdb stops in that thread, and shows the others. ``frontends`` gives kernels the
name.

Each thread has a stack of its own, on which only the kernel and its device functions stand, and the engine goes
on only when the thread does: what is there can be looked at for as long as one likes.
"""

import builtins
import os
import pdb
import sys
from itertools import groupby

import numpy as np
from greenlet import getcurrent

from ....compiler import inference
from ...waiting import ranges
from ..memory.access_records import UNWRITTEN
from ..reports.call_sites import place


@inference.overload(breakpoint, target="cuda")
def _nothing():
    """What a breakpoint is in machine code: Numba would not know the name."""
    return lambda: None


def stop():
    """``breakpoint()`` of the thread that runs: where nobody else has asked for it, a pdb for kernels."""
    thread = getcurrent()
    thread.block.execution.unhurried = True  # a timeout is not meant for who looks around
    Debugger(thread).set_trace(sys._getframe(1))


def breakpoint_function():
    """What the name stands for in a kernel: debugpy and others have set a hook of their own, which has to be
    called from the kernel itself."""
    own = sys.breakpointhook is sys.__breakpointhook__ and "PYTHONBREAKPOINT" not in os.environ
    return stop if own else builtins.breakpoint


class Debugger(pdb.Pdb):
    """pdb for one thread of a kernel; the commands ``threads``, ``barriers`` and ``shared`` show what is around
    it. ``q`` ends the run with ``bdb.BdbQuit``, which is no fault of the kernel's."""

    def __init__(self, thread):
        super().__init__(skip=["numba_deform.engines.*", "numba_deform.device.*"], nosigint=True)
        self.thread, self.block = thread, thread.block
        self.prompt = f"(block {self.block.index}, warp {thread.warp}, lane {thread.lane}) "

    def do_where(self, arg):
        """w(here): the thread, and its stack."""
        self.message(f"thread {self.thread.tid} of block {self.block.index}: warp {self.thread.warp}, "
                     f"lane {self.thread.lane}")  # fmt: skip
        self.print_stack_trace()

    do_w = do_bt = do_where

    def do_threads(self, arg):
        """threads: where the threads of the block stand, and what they wait for."""
        for stands, some in groupby(self.block.threads, self._stands):
            self.message(f"   {ranges([thread.tid for thread in some])}: {stands}")

    def _stands(self, other):
        if other is self.thread or other.dead:
            return "here" if other is self.thread else "has ended"
        where, source = place(other.site())
        if where is None:
            return "has not begun"
        _, what, _ = other.waiting
        why = f"waits for {what.name}" if hasattr(what, "name") else "polls"
        return f"{where}  {source}  ({'may go on' if other in self.block.ready else why})"

    def do_barriers(self, arg):
        """barriers: the state of every mbarrier and named barrier of the block."""
        for barrier in (*self.block.barriers.live.values(), *self.block.named.values()):
            self.message(f"   {barrier.name}: {barrier.state()}")

    def do_shared(self, arg):
        """shared [name]: the shared arrays of the block, or one with its elements; ``?`` stands for those that
        nothing has written."""
        memory = self.block.shared
        for array in memory.views.values():
            if arg in ("", array.name):
                self.message(f"   {array.name}: {array.dtype}{list(array.shape)}")
            if arg == array.name:
                places = range(array.address, array.address + array.nbytes, array.itemsize)
                there = [UNWRITTEN not in memory.written[at : at + array.itemsize] for at in places]
                texts = [str(x) if known else "?" for x, known in zip(array.data.flat, there, strict=True)]
                whole = np.array(texts, object).reshape(array.shape)
                self.message(np.array2string(whole, formatter={"all": str}, threshold=4096))

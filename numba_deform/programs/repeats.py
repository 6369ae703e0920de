"""Launches that are equal to one before: programs launch the same kernel hundreds of times to take its time.

What comes of a launch follows from the kernel, its arguments, the content of memory and the session's options.
Where these were the same before, the verdict is the same, and so is what the launch leaves."""

import hashlib

import numpy as np

from ..engines.cpu.frontends.ptx.kernels import PtxKernel

MOST = 1 << 28  # bytes of all memory: to look at more of it before each launch takes too long
PATIENCE = 3  # launches of one kind in a row that are not equal, after which nobody looks any more


class Kind:
    """Launches of the same kernel, with the same arguments and memory at the same places. Of the last that was
    run: what memory held ``before``, its ``report``, and what it has ``changed``, {array's number: content}."""

    def __init__(self):
        self.before, self.report, self.changed, self.vain = None, None, {}, -1

    @property
    def bytes(self):
        return sum(array.nbytes for array in self.changed.values())

    def report_on(self, arrays):
        """The report on the last launch, if this one is equal, and leaves what that has left; else None."""
        self.vain += 1
        if not 0 < self.vain <= PATIENCE:  # of the first of its kind nobody knows whether there are more
            return None
        before = list(map(_digest, arrays))
        if before != self.before or self.report is None:
            self.before, self.report = before, None
            return None
        self.vain = 0
        for number, content in self.changed.items():
            arrays[number][...] = content
        return self.report

    def keep(self, report, arrays):
        """The launch has been run."""
        if 0 < self.vain <= PATIENCE:
            self.report = report
            pairs = enumerate(zip(arrays, self.before, strict=True))
            self.changed = {number: a.copy() for number, (a, before) in pairs if _digest(a) != before}


class Kinds(dict):
    """{what launches have in common: their :class:`Kind`}, those asked for last at the end."""

    def of(self, common):
        """The Kind. Those that were not asked for longest go, where all keep more than MOST bytes."""
        self[common] = found = self.pop(common, None) or Kind()
        while len(self) > 1 and sum(kind.bytes for kind in self.values()) > MOST:
            self.pop(next(iter(self)))
        return found


def memory_and_kind(launched):
    """(the arrays that a launch may look at, what it has in common with others of its kind). (None, None) of
    one that is not compared: it is Numba's or Triton's, or the kernel prints."""
    kernel = launched.kernel
    if not all(isinstance(arg, (np.generic, np.ndarray)) for arg in launched.args):
        return None, None
    if not isinstance(kernel, PtxKernel) or hasattr(launched, "checked") or "vprintf" in kernel.text:
        return None, None
    structs = [parameter.array for parameter in kernel.entry.params]
    given = [arg.tobytes() if is_struct or not isinstance(arg, np.ndarray) else arg
             for is_struct, arg in zip(structs, launched.args, strict=True)]  # fmt: skip
    arrays = [*(arg for arg in given if not isinstance(arg, bytes)), *(array for *_, array in kernel.held)]
    if sum(array.nbytes for array in arrays) > MOST:
        return None, None
    numbers = (arg if isinstance(arg, bytes) else None for arg in given)
    places = ((array.ctypes.data, array.nbytes) for array in arrays)
    return arrays, (kernel.text, kernel.entry.name, launched.grid, launched.block, launched.shared_bytes,
                    launched.cluster, *numbers, *places, kernel.unset, kernel.by_bytes)  # fmt: skip


def _digest(array):
    return hashlib.sha256(np.ascontiguousarray(array)).digest()

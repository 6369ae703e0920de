"""CUDA C++ programs with their own host code in this process, over the package's stand-in for the CUDA runtime
(``numba_deform/programs/cuda_program.py``); launches go to a function.

A program that calls ``exit`` ends the process: give each a process of its own.
"""

import ctypes
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from numba_deform.engines.cpu.frontends.ptx.compilers import cuda_kernels
from numba_deform.programs import cuda_program
from numba_deform.programs.driver import at

BYTE = np.dtype(np.uint8)


@dataclass
class Launched:
    """One launch of the program's: what ``nd.simulate`` takes, by its names; ``name``: as in the PTX."""

    name: str
    kernel: object
    options: dict
    memory: dict = field(repr=False, default_factory=dict)  # start of each allocation -> its bytes


def compiled(folder, name, source, options):
    """(library, PTX texts) of a program, as the package compiles it; kept in a folder of its own in ``folder``
    for the next time."""
    own = Path(folder) / name
    if (own / "program.so").exists():
        return own / "program.so", [path.read_text() for path in sorted(own.glob("*.ptx"))]
    own.mkdir(parents=True, exist_ok=True)
    library, texts = cuda_program.compiled(source, ["-w", *options], cuda_kernels.nvcc(), own)
    for file in own.iterdir():
        if file.suffix not in (".ptx", ".so"):
            file.unlink()
    return library, texts


class Listener:
    """In place of a Session. ``maps_refused``: how often a tensor map broke which rule."""

    folder, finished = None, ()

    def __init__(self, judge):
        self.judge, self.maps_refused, self.faults = judge, Counter(), []

    def note(self, text):
        if rule := text.partition("CUDA_ERROR_INVALID_VALUE: ")[2]:
            self.maps_refused[rule] += 1

    def found(self, fault, name, where=None):
        self.faults.append(fault)


class Program(cuda_program.Host):
    """A program that has been compiled. ``judge`` is called with each Launched."""

    def __init__(self, library, texts, source, judge):
        self.error = None
        super().__init__(Listener(lambda launched: judge(self.as_words(launched))), library, texts, source)

    @property
    def content(self):
        """{start of each allocation: its bytes}"""
        return {start: at(start, (size,), None, BYTE) for start, (_, size, _) in self.memory.items()}

    def as_words(self, launched):
        options = dict(grid=launched.grid, block=launched.block, args=launched.args,
                       shared_bytes=launched.shared_bytes)  # fmt: skip
        options |= {"cluster": launched.cluster} if launched.cluster else {}
        return Launched(launched.kernel.name, launched.kernel, options, self.content)

    def call(self, name, words):
        try:
            return self.called(name, words)
        except Exception as error:
            self.error = self.error or error
            return cuda_program.LAUNCH_FAILURE

    def main(self, *words, cwd=None):
        """Call ``main``; returns what it returns. Raises what went wrong in Python while it ran."""
        before = Path.cwd()
        try:
            os.chdir(cwd or before)
            argv = (ctypes.c_char_p * (len(words) + 2))(b"program", *(w.encode() for w in words), None)
            status = self.library.main(len(words) + 1, argv)
        finally:
            os.chdir(before)
            self.runtime.stand_in(None, 0, None)  # what is called when the process ends goes nowhere
        if self.error:
            raise self.error
        return status

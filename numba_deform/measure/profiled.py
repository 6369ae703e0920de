"""Launches of a program, or one of PTX or CUDA C++, emulated and counted: ``numba-deform profile PROGRAM``."""

import contextlib
from collections import Counter

from ..compiler import Kernel
from ..compiler.sass import tool
from ..engines.cpu.frontends.ptx.kernels import PtxKernel
from ..engines.sass import ONE_SM, emulate
from ..programs import program, ptx_program
from ..programs.session import stand_ins
from .predict import MOST
from .profile import Profile


class NotProfiled(ValueError):
    """A launch that the emulator cannot have; the text says why."""


class Profiles:
    """What a program's launches did: one Profile for each kernel and size of block, in the order in which they
    came. ``judge`` is given each launch, as the Session of ``check`` is, and runs it."""

    arch = "sm_90a"  # whose machine code is run

    def __init__(self, only=ONE_SM, limit=MOST):
        self.part = {"only": only, "limit": limit}
        self.runs, self.launches, self.notes, self.kernels = {}, Counter(), [], {}  # kernels: by functions

    def judge(self, launched):
        """Run it, of a large one the part that ``only`` says: the program goes on with what was written.
        NotProfiled, and what ``emulate`` raises."""
        kernel = self._kernel(launched.kernel)
        if getattr(launched, "checked", None):  # it has all that is launched, and looks at the results
            run = emulate(launched.checked, **self.part)
        else:
            run = emulate(kernel, launched.grid, launched.args, launched.shared_bytes,
                          getattr(launched, "cluster", None), block=launched.block, **self.part)  # fmt: skip
        key = kernel, tuple(launched.block), launched.grid if run.ran < run.blocks else None
        if key[-1] is not None and not self.launches[key]:
            self.note(f"{kernel.name}: it goes on with what {run.ran:,} of {run.blocks:,} blocks wrote")
        self.launches[key] += 1
        self.runs[key] = self.runs[key].with_more(run) if key in self.runs else run

    def _kernel(self, typed):
        """What ``emulate`` takes: of a function of Numba's it is compiled, as there, for blocks of any size."""
        if isinstance(typed, PtxKernel):
            return typed
        if typed.held:
            names = ", ".join(name for name, *_ in typed.held)
            raise NotProfiled(f"{typed.py_func.__qualname__} takes {names} from outside: arrays of the device "
                              "that are no arguments are at no address here; hand them over")  # fmt: skip
        key = typed.py_func, typed.signature.args
        return self.kernels.setdefault(key, Kernel(typed.py_func, typed.signature, 0))

    def note(self, text):
        """Something that belongs under the tables."""
        self.notes.append(text)

    def found(self, fault, name):
        """Likewise, a fault of the program's that is none of one launch."""
        self.note(f"{name}: {fault}")

    @property
    def profiles(self):
        """[Profile]"""
        found = self.runs.items()
        return [Profile(self._title(*key), run, {"launch": self.launches[key]}) for key, run in found]

    def _title(self, kernel, block, grid):
        count = self.launches[kernel, block, grid]
        shape = "x".join(map(str, block)).removesuffix("x1").removesuffix("x1")
        return f"{kernel.name}, {count:,} launch{'es' * (count > 1)} of blocks of {shape} threads"


def profile_program(words, **part):
    """(the Profiles, the program's exit status) of ``program.py ..``, of ``-m module ..`` or, in the words of
    ``check``, of one launch of a ``.ptx`` or ``.cu`` file; ``part``: of Profiles. Raises ToolMissing, and what
    ``check`` raises."""
    tool("nvdisasm"), tool("cuobjdump")  # before the program begins
    if words[0].endswith(ptx_program.SUFFIXES):
        profiles = Profiles(**part)
        profiles.judge(ptx_program.launch_of(words))
        return profiles, 0
    return program.ran(words, _profiled(part))


@contextlib.contextmanager
def _profiled(part):
    profiles = Profiles(**part)
    with stand_ins(profiles):
        yield profiles

"""One launch of a kernel in a PTX file, judged as a program's launches are: for ``numba-deform check``."""

import re
import runpy
from dataclasses import dataclass
from pathlib import Path

from ..engines.cpu import SimFault
from ..engines.cpu.frontends.ptx.kernels import PtxKernel, from_ptx
from .program import INTERRUPTED
from .session import Session

KEYS = ("entry", "grid", "block", "shared", "args")


@dataclass
class PtxLaunch:
    """As ``driver.Launched``."""

    kernel: PtxKernel
    grid: tuple
    block: tuple
    args: list
    shared_bytes: int
    where: str

    def raised(self, fault):
        """No exception of Python's is behind a fault."""
        return None


def run(words, options):
    """(the Session, the exit status) of ``FILE.ptx entry=NAME grid=2,1 block=64 shared=BYTES args=FILE.py``.

    The file of ``args`` is Python, and defines ``args``: the list of the kernel's arguments, or a function that
    makes it. ``entry`` may be left out where there is one, ``grid`` is 1, ``block`` what .reqntid or .maxntid
    say. Raises ValueError for a word that is none of these, and for an entry that is not there."""
    given = {}
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key not in KEYS or not value:
            raise ValueError(f"check {words[0]}: {word!r} is none of {', '.join(f'{k}=..' for k in KEYS)}")
        given[key] = value
    module = from_ptx(Path(words[0]))
    if "entry" not in given and len(module) != 1:
        raise ValueError(f"check {words[0]}: entry=NAME is missing: one of {', '.join(module) or 'none'}")
    try:
        kernel = module[given.get("entry", next(iter(module)))]
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    block = _shape(given, "block", getattr(kernel, "threads", None))
    launch = PtxLaunch(kernel, _shape(given, "grid", 1), block, _arguments(kernel, given.get("args")),
                       *_shape(given, "shared", 0), Path(words[0]).name)  # fmt: skip
    session = Session(**options | {"all": True})
    try:
        session.judge(launch)
    except SimFault:  # after ``stop``; it is told with the rest
        return session, 1
    except KeyboardInterrupt:
        return session, INTERRUPTED
    return session, 0


def _shape(given, key, default):
    text = given.get(key, default)
    if text is None:
        raise ValueError(f"{key}=THREADS is missing: the kernel does not say how many it is for")
    if not re.fullmatch(r"\d+(,\d+){0,2}", str(text)):
        raise ValueError(f"{key}={text} must be a number, or up to three with commas")
    return tuple(map(int, str(text).split(",")))


def _arguments(kernel, file):
    if file is None:
        if kernel.parameters:
            raise ValueError(f"args=FILE.py is missing: the kernel takes {', '.join(kernel.parameters)}")
        return []
    scope = runpy.run_path(file)
    if "args" not in scope:
        raise ValueError(f"{file} defines no args: the arguments in a list, or a function that makes it")
    return list(scope["args"]() if callable(scope["args"]) else scope["args"])

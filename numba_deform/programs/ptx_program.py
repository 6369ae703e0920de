"""One launch of a kernel in a PTX or CUDA C++ file, judged as a program's are: for ``numba-deform check``."""

import re
import runpy
import shlex
from dataclasses import dataclass
from pathlib import Path

from ..engines.cpu import SimFault
from ..engines.cpu.frontends.ptx.compilers.cuda_kernels import from_cuda
from ..engines.cpu.frontends.ptx.kernels import from_ptx
from ..engines.faults import WrongResult
from ..engines.launches import Launch
from .endings import status_of
from .session import Session
from .triton_driver import Launched

KEYS = ("entry", "grid", "block", "shared", "cluster", "args", "aligned")
OF_CUDA = ("options", "compiler")
SUFFIXES = (".ptx", ".cu")


@dataclass
class PtxLaunch(Launched):
    """``checked`` is a Launch in place of kernel and arguments, where it says what has to come of them."""

    checked: Launch | None = None


class Checked(Launch):
    """A Launch whose outputs a function of the arguments looks at, too."""

    look = None

    def check(self, writer_of=None):
        super().check(writer_of)
        if self.look is None:
            return
        try:
            answer = self.look(self.args)
        except AssertionError as error:
            raise WrongResult(f"check(args) says {error or 'that an assertion does not hold'}") from None
        if answer is not None and not answer:
            raise WrongResult(f"check(args) says {answer!r}")


def run(words, options):
    """(the Session, the exit status) of a program of CUDA C++ with a ``main``, or of a launch, in the words of
    ``launch_of``. Behind ``FILE.cu`` of a program come ``options=`` and ``compiler=``, and then its own words,
    from the first that is no key of these on, or behind ``--``. It says what is raised."""
    from . import cuda_program  # which needs CUDA's packages

    if words[0].endswith(".cu") and cuda_program.has_main(words[0]):
        count = next((n for n, word in enumerate(words) if n and not _is_pair(word)), len(words))
        given = _pairs(words[0], words[1:count])
        if given.keys() <= set(OF_CUDA):
            own = words[count + (words[count : count + 1] == ["--"]) :]
            flags = shlex.split(given.get("options", ""))
            return cuda_program.run(words[0], flags, given.get("compiler"), own, Session(**options), options)
    launch, session = launch_of(words), Session(**options | {"all": True})
    try:
        session.judge(launch)
    except SimFault:  # after ``stop``; it is told with the rest
        return session, 1
    except KeyboardInterrupt as interrupt:
        return session, status_of(interrupt)
    return session, 0


def _is_pair(word):
    key, equals, _ = word.partition("=")
    return bool(equals) and key in KEYS + OF_CUDA


def _pairs(file, words):
    """{key: text} of the words behind a file; ``options`` that are given twice are all taken."""
    keys, given = KEYS + (OF_CUDA if file.endswith(".cu") else ()), {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in keys or not value:
            raise ValueError(f"check {file}: {word!r} is none of {', '.join(f'{k}=..' for k in keys)}")
        if key in given and key != "options":
            raise ValueError(f"check {file}: {key} is given twice: {key}={given[key]} and {key}={value}")
        given[key] = f"{given[key]} {value}" if key in given else value
    return given


def launch_of(words):
    """The PtxLaunch of ``FILE.ptx entry=NAME grid=2,1 block=64 shared=BYTES cluster=2
    args=FILE.py``, or of ``FILE.cu`` with also ``options='-std=c++17 -DN=3'`` and ``compiler=nvrtc`` or a path.

    The file of ``args`` is Python, and defines ``args``: the list of the kernel's arguments, or a function
    that makes it; and, if it likes, ``memory``, {name: array} that structures point to, ``expected``,
    {parameter: array}, or a function ``check(args)`` that asserts or returns whether the results are right.
    ``entry`` may be left out where there is one, ``grid`` is 1, ``block`` what .reqntid or .maxntid say.
    ``aligned=declared``: dynamic shared memory is aligned as the text declares it; else as a GPU places it.
    Raises ValueError for a word that is none of these, for an entry that is not there, and as ``from_ptx`` and
    ``from_cuda``."""
    file, given = Path(words[0]), _pairs(words[0], words[1:])
    kernel = _kernel(file, given)
    if (aligned := given.get("aligned", "gpu")) not in ("gpu", "declared"):
        raise ValueError(f"aligned={aligned} is none of gpu, declared")
    kernel = kernel.strict() if aligned == "declared" else kernel
    cluster = _shape(given, "cluster", None) if "cluster" in given else None
    scope = _spec(kernel, given.get("args"))
    kernel = kernel.reaching(scope.get("memory", {}))
    launch = PtxLaunch(
        kernel, _shape(given, "grid", 1), _shape(given, "block", kernel.threads or None),
        scope["args"], *_shape(given, "shared", 0), cluster, file.name,
    )  # fmt: skip
    launch.checked = _checked(launch, scope)
    return launch


def _kernel(file, given):
    if file.suffix == ".cu":
        module = from_cuda(file, shlex.split(given.get("options", "")), given.get("compiler"))
    else:
        module = from_ptx(file)
    if "entry" not in given and len(module) != 1:
        raise ValueError(f"check {file}: entry=NAME is missing: one of {', '.join(module) or 'none'}")
    try:
        return module[given.get("entry", next(iter(module)))]
    except KeyError as error:
        raise ValueError(error.args[0]) from None


def _shape(given, key, default):
    text = given.get(key, default)
    if text is None:
        raise ValueError(f"{key}=THREADS is missing: the kernel does not say how many it is for")
    if not re.fullmatch(r"\d+(,\d+){0,2}", str(text)):
        raise ValueError(f"{key}={text} must be a number, or up to three with commas")
    return tuple(map(int, str(text).split(",")))


def _spec(kernel, file):
    """What the file of the arguments defines."""
    if file is None:
        if kernel.parameters:
            raise ValueError(f"args=FILE.py is missing: the kernel takes {', '.join(kernel.parameters)}")
        return {"args": []}
    scope = runpy.run_path(file)
    if "args" not in scope:
        raise ValueError(f"{file} defines no args: the arguments in a list, or a function that makes it")
    return scope | {"args": list(scope["args"]() if callable(scope["args"]) else scope["args"])}


def _checked(launch, scope):
    """The launch with what has to come of it; None where the file of the arguments says nothing."""
    expected, look = scope.get("expected", {}), scope.get("check")
    if not expected and look is None:
        return None
    kernel = launch.kernel
    kernel.block, kernel.shared_bytes = launch.block, launch.shared_bytes
    expected = expected() if callable(expected) else expected
    checked = Checked(kernel, launch.grid, launch.args, expected, cluster=launch.cluster)
    checked.look = look
    return checked

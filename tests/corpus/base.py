"""What a program of the corpus consists of, and the lists of all of them.

A file of ``right/`` or ``wrong/`` holds small kernels, each under a decorator that says where it was met:

    @right(source="CUDA guide, ..", block=64, args=.., expect=..)
    def kernel_name(data, out): ..

    @wrong(faults.DataRace, source="owner/project issue 12", block=64, args=.., hardware="wrong")
    def kernel_name(data, out): ..

Each stands by itself, as it was met: what several share, such as how a tile is fetched, is written out in each,
so that a reader sees a whole program, and a change to one asks nothing of the others.

The docstring of the kernel tells in a sentence or two what it does that a checker may get wrong. A line that a
wrong one has to be blamed for ends with the comment ``# <- fault``; there may be several.

A wrong program may carry its *mend*, as comments: a line that holds nothing but ``# cure: CODE`` is CODE in the
mended program, and of a line that ends with ``# cure: CODE`` nothing but CODE is left.

``cures/`` holds wrong programs with a mend each: a report of theirs has to lead the reader there.
``whole/`` holds whole pipelines, each right and with a broken twin. They are longer, use what Hopper has, and
are no part of the corpus and its counts. Nor are ``cures/``, nor ``instructions/``: the instructions that
pipelines are made of, one family a file, on random data; nor ``waived/``: programs that break a rule which can
be waived.
"""

import dis
import functools
import importlib
import inspect
import linecache
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType

import numpy as np
from numba import typeof, types

from numba_deform.compiler import Kernel
from numba_deform.compiler import kernel as make_kernel
from numba_deform.engines.cpu import SimFault, explore, simulate
from numba_deform.engines.cpu.frontends.arguments import writeable
from numba_deform.engines.tensormap import TensorMapArray

FOLDER = Path(__file__).parent
MARK, LANDINGS = "# <- fault", ("late", "random", "earliest")
CURE = re.compile(r"^( *).*# cure: ?(.*?) *$")
# What the hardware is asked to do with a wrong program: run it plainly in a child process; in the guarded form,
# since it may hang; or nothing, since it could harm the process's neighbours.
HARDWARE = ("plain", "guarded", "no")


@dataclass(frozen=True, eq=False)
class Program:
    """One program.

    function   the kernel, a plain Python function; one with annotated parameters becomes a ``compiler.Kernel``
    source     where its like was met in public: a document and section, or a project and its issue or file
    args       called without arguments, makes fresh ones: NumPy arrays, TensorMapArray, numbers
    expect     called with these arguments after the run, returns pairs (array, what it must hold); a right
               program has it, a wrong one need not
    faults     the fault classes, one of which the engine has to report; empty for a right program
    hardware   what a GPU is asked to do with a wrong one: see HARDWARE
    cluster    the blocks of a cluster, a number or a tuple as ``grid``, if it has any
    explorable whether it is small enough for ``explore(limit=400)``
    waiver     the name by which the rule that it breaks can be waived: then it does what ``expect`` says
    options    more arguments for ``simulate``
    names      words that the report of a wrong one has to hold: what the mend is about
    mend       fields that a mended one has in place of these: a launch may be what is wrong
    """

    function: object
    source: str
    args: object
    grid: object = 1
    block: object = 32
    cluster: object = None
    shared_bytes: int = 0
    expect: object = None
    faults: tuple = ()
    hardware: str = "plain"
    explorable: bool = True
    waiver: str = ""
    options: dict = field(default_factory=dict)
    names: tuple = ()
    mend: dict = field(default_factory=dict)

    @property
    def name(self):
        return self.function.__name__

    @property
    def folder(self):
        return Path(self.function.__code__.co_filename).parent.name

    @property
    def topic(self):
        """The file that it stands in, without its ending."""
        return Path(self.function.__code__.co_filename).stem

    @property
    def says(self):
        return " ".join(inspect.getdoc(self.function).split())

    @property
    def kernel(self):
        """What an engine is given."""
        parameters = inspect.signature(self.function).parameters.values()
        if parameters and all(p.annotation is not p.empty for p in parameters):
            return make_kernel(threads=self.block)(self.function)
        return self.function

    def typed(self):
        """The ``compiler.Kernel`` with the types of its arguments, as Numba-CUDA finds them at a launch."""
        kernel = self.kernel
        if isinstance(kernel, Kernel):
            return kernel
        kinds = [types.uint64 if isinstance(a, TensorMapArray) else typeof(a) for a in self.args()]
        return make_kernel(types.void(*kinds), threads=self.block)(kernel)

    @property
    def not_compiled(self):
        """In words why Numba-CUDA does not compile it for this Python; empty where it does."""
        asserts = "AssertionError" in dis.Bytecode(self.function).dis() and sys.version_info >= (3, 14)
        return "numba-cuda 0.30 does not compile an assertion for Python 3.14" if asserts else ""

    @functools.cached_property
    def lines(self):
        """The numbers of the lines that a fault may name."""
        code = self.function.__code__
        lines = linecache.getlines(code.co_filename, self.function.__globals__)[: _last_line(code)]
        return [i for i in range(code.co_firstlineno, len(lines) + 1) if lines[i - 1].rstrip().endswith(MARK)]

    def run(self, **options):
        """The arguments after a run on the CPU engine; raises what it finds."""
        args = self.args()
        options = {"cluster": self.cluster, **self.options, **options}
        simulate(self.kernel, self.grid, self.block, args, self.shared_bytes, **options)
        return args

    def explore(self, limit=400):
        limit = limit // 4 if self.cluster else limit  # each of its orders takes longer
        timeout = self.options.get("timeout", 60.0)
        explore(
            self.kernel, self.grid, self.block, self.args(), self.shared_bytes, limit, timeout=timeout,
            cluster=self.cluster,
        )

    def search(self, seeds=10, limit=400):
        """Runs in several orders, for a fault that most of them do not meet; raises what it finds."""
        for seed in range(seeds):
            self.run(landing=LANDINGS[seed % 3], seed=seed)
        self.explore(limit)

    def wrong(self, args):
        """How many elements of ``args`` are not as expected after a run."""
        pairs = self.expect(*args) if self.expect else ()
        return sum(int(np.count_nonzero(np.asarray(a) != np.asarray(b))) for a, b in pairs)

    def mended(self):
        """The program as its comments ``# cure:`` and its ``mend`` make it."""
        lines, _ = inspect.getsourcelines(self.function)
        start = next(i for i, line in enumerate(lines) if line.startswith("def "))
        file, scope = f"mended/{self.name}.py", dict(self.function.__globals__)
        text = "".join(CURE.sub(r"\1\2", line.replace(MARK, "")) for line in lines[start:])
        linecache.cache[file] = len(text), None, text.splitlines(True), file
        exec(compile(text, file, "exec"), scope)
        return replace(self, function=scope[self.name], faults=(), **self.mend)

    def blames(self, fault):
        """Whether ``fault`` is of a right kind and names a right line."""
        file, _, line = (fault.where or "::0").rpartition(":")
        here = file == self.function.__code__.co_filename and int(line) in self.lines
        return type(fault) in self.faults and here


def _last_line(code):
    """The last line of a function that has code, those inside it included."""
    inside = (_last_line(c) for c in code.co_consts if isinstance(c, CodeType))
    return max([line for _, _, line in code.co_lines() if line] + [*inside])


PROGRAMS = {}  # name -> Program


def right(*, source, args, expect, **more):
    """Decorator: a right program, silent in every schedule, that leaves what ``expect`` says."""
    return _register(source=source, args=args, expect=expect, **more)


def wrong(*faults, source, args, **more):
    """Decorator: a wrong program, to be named by one of ``faults`` at a line marked ``# <- fault``."""
    assert faults and all(issubclass(kind, SimFault) for kind in faults)
    return _register(source=source, args=args, faults=faults, **more)


def _register(**fields):
    def note(function):
        program = Program(function, **fields)
        assert program.name not in PROGRAMS, f"two programs are called {program.name}"
        assert program.hardware in HARDWARE and inspect.getdoc(function)
        assert bool(program.lines) == bool(program.faults), f"{program.name}: marked lines"
        PROGRAMS[program.name] = program
        return function

    return note


def outcome(args, run):
    """(what ``run()`` comes to with these arguments, whether it ended as machine code). Their arrays are as
    before afterwards: another run finds them at the same addresses, so a report of an access outside of all
    names the same array."""
    before = [(array, array.copy()) for array in writeable(args)]
    try:
        report = run()
        left = [array.tobytes() for array, _ in before]
        return (report.switches, report.cycles, report.copies, left), report.compiled
    except SimFault as fault:
        return (type(fault), fault.where, re.sub("0x[0-9a-f]{6,}", "0x", str(fault))), False
    finally:
        for array, content in before:
            array[...] = content


def load(*folders):
    """The programs of these folders by name: of the corpus, the right ones first, if none are given."""
    folders = folders or ("right", "wrong")
    for folder in folders:
        for path in sorted((FOLDER / folder).glob("[a-z]*.py")):
            linecache.checkcache(str(path))
            importlib.import_module(f"{folder}.{path.stem}")
    return {name: p for folder in folders for name, p in PROGRAMS.items() if p.folder == folder}

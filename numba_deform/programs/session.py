"""A program's launches, judged one by one: ``check``, and the :class:`Session` with what was found."""

import contextlib
import functools
import gc
import math
import os
import threading
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from ..device.limits import capability_of, limits_of
from ..device.packages import require_cuda
from ..engines.cpu import SimFault, explore, simulate
from ..engines.cpu.frontends.arguments import writeable
from ..engines.cpu.schedules.executors import ONE_AT_A_TIME, NotSent, check_executor
from ..engines.cpu.schedules.prepared_launch import PreparedLaunch
from ..engines.cpu.schedules.simulate import Report
from ..engines.faults import Deadlock, EngineError, Livelock, Unfinished
from ..engines.shapes import shape_of
from ..engines.waivers import WAIVERS, added
from ..engines.waivers import names as waivers
from .callers import program_place
from .children import keep, watched
from .endings import INTERRUPTIONS
from .progress import Progress
from .repeats import Kinds, memory_and_kind
from .sampling import LARGE, NotRunnable, UnjudgedBlocks, sample
from .summary import short, text

TURN = threading.RLock()  # a launch at a time; ONE_AT_A_TIME goes to its workers while it waits
SMALL = 1 << 12  # threads; what a run of more leaves when it stops, up to hundreds of MB, is collected at once
TIMEOUT = 3600.0  # seconds for one schedule of a launch
NOTHING_JUDGED = 6  # an exit status: pytest has 0 to 5


@dataclass
class Finding:
    """A fault, the launch in which it was met first, and in how many launches it was met."""

    fault: SimFault
    kernel: str
    launch: str  # file:line of the program, with the path that Python has
    grid: tuple  # empty, as block, where it is none of one launch
    block: tuple
    count: int = 1
    suppressed: bool = False
    told: bool = False  # whether a test has failed for it

    @property
    def key(self):
        return type(self.fault).__name__, self.fault.where or self.launch


@dataclass
class Session:
    """What ``check`` was asked for, and what it has seen so far.

    ``schedules``, ``seed``, ``landing`` and ``waive`` are those of ``simulate``; with ``explored`` every order
    of a launch's events is tried first. ``stop`` ends the program at the first fault. ``suppressions``: pairs
    of patterns for a rule's name and for the line, such as ``("DataRace", "histogram.py:*")``, whose file may
    be told by any last part of its path, however it was imported. Schedules and orders of a launch run in the
    workers of ``executor``, as those of ``simulate``; a launch that cannot be sent there, and those of child
    processes, run where they are. ``arch``: the GPU that the program finds and Triton compiles for.

    Of a launch of more than ``large`` threads some whole blocks are judged (``sampling.sample``), and the rest
    runs without checks; ``all`` judges every block of every launch.

    What Triton's compiler emits and a program cannot mend is waived (``waivers.OF_TRITON``), and counted in the
    summary; with ``strict`` it is a fault.
    """

    schedules: int = 1
    seed: int = 0
    landing: str = "late"
    waive: tuple = ()
    explored: bool = False
    stop: bool = False
    timeout: float = TIMEOUT
    all: bool = False
    strict: bool = False
    large: int = LARGE
    suppressions: tuple = ()
    arch: str = "sm_90a"
    executor: object = None
    folder: Path | None = None  # of a child: where the check that it belongs to finds what it has seen

    def __post_init__(self):
        self.waive, self.began_in = waivers(self.waive), Path.cwd().resolve()  # where relative paths begin
        check_executor(self.executor)
        limits_of(self.arch)
        self.forget()

    def __getstate__(self):
        return vars(self) | {"kinds": Kinds()}  # a process keeps its own

    def forget(self):
        """Nothing has been seen yet."""
        self.launches = self.blocks = self.threads = 0  # blocks and threads judged to their end
        self.unjudged = 0  # blocks of large launches
        self.repeated = 0  # launches that were equal to the one before of their kind
        self.kinds = Kinds()
        self.compiled = 0  # launches that ran as machine code
        self.kernels = set()  # (file, line, name)
        self.whole = {}  # large kernels that were judged whole: why
        self.stayed = {}  # kernels that could not be sent to the executor: why
        self.waived, self.findings, self.notes = {}, {}, {}  # notes: what was left out, as the keys
        # (launch number, kernel, line, why not or "") of those with a fault that were run to their end unjudged
        self.finished = []
        self.sites = {}  # (program's line, kernel): launches
        self.used = set()  # of ``suppressions``

    def add(self, other):
        """What a child has seen."""
        for name in ("launches", "blocks", "threads", "unjudged", "repeated", "compiled"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("kernels", "whole", "notes", "stayed", "used"):
            getattr(self, name).update(getattr(other, name))
        self.finished += other.finished
        self.waived = added(self.waived, other.waived)
        for site, launches in other.sites.items():
            self.sites[site] = self.sites.get(site, 0) + launches
        for key, finding in other.findings.items():
            known = self.findings.setdefault(key, finding)
            known.count += 0 if known is finding else finding.count
            known.told |= finding.told

    def __str__(self):
        return text(self)

    @property
    def faults(self):
        """The findings that are not suppressed, as they were met."""
        return [finding for finding in self.findings.values() if not finding.suppressed]

    @property
    def unused(self):
        """The suppressions that have suppressed nothing."""
        return [pair for pair in self.suppressions if pair not in self.used]

    def status(self, ended):
        """The exit status of a program that has ``ended`` with one of its own: 1 where there are faults and it
        was not interrupted, NOTHING_JUDGED where it would be 0 and nothing was launched."""
        if self.faults and ended not in INTERRUPTIONS:
            return 1
        return ended or (0 if self.launches else NOTHING_JUDGED)

    def note(self, text):
        """Something that the summary has to say."""
        self.notes[text] = None

    def judge(self, launched):
        """Run a launch of the program's on the engine, and go on whatever is found. Those of several threads of
        the host run one after the other."""
        with TURN, ONE_AT_A_TIME:
            try:
                self._judge(launched)
            finally:
                keep(self)

    def found(self, fault, name, where=None):
        """Note a fault of the program's that is none of one launch, met at its line ``where``."""
        with TURN, ONE_AT_A_TIME:
            try:
                self._note(Finding(fault, name, where or program_place(), (), ()))
            finally:
                keep(self)

    def _judge(self, launched):
        name, where = launched.kernel.py_func.__qualname__, launched.where or program_place()
        self.launches += 1
        if self.strict:
            launched.kernel.emitted = frozenset()
        code = launched.kernel.py_func.__code__
        self.kernels.add((code.co_filename, code.co_firstlineno, code.co_name))
        self.sites[where, name] = self.sites.get((where, name), 0) + 1
        call = (launched.kernel, launched.grid, launched.block, launched.args, launched.shared_bytes)
        blocks, threads = math.prod(launched.grid), math.prod(launched.block)
        self.cluster = getattr(launched, "cluster", None)
        if checked := getattr(launched, "checked", None):  # it has all of these, and looks at the results
            call, self.cluster = (checked,), None
        self.progress = Progress(f"launch {self.launches} ({name})", blocks * self.schedules, threads)
        memory, kind = (None, None) if self.explored else memory_and_kind(launched)
        alike = self.kinds.of(kind) if kind else None
        put_back = _as_now(launched)
        try:
            if self.explored:
                options = {"timeout": self.timeout, "waive": self.waive, "cluster": self.cluster}
                if not (tried := self._sent(explore, name, *call, **options)).complete:
                    self.note(f"{name}: {tried}")
                put_back()
            rest = None if blocks * threads <= self.large else self._rest(launched, name)
            sampled = rest and self._sampled(name, launched, call, rest, put_back)
            known = alike and alike.report_on(memory)
            self.repeated += known is not None
            report = sampled or known or self._simulated(name, call)
            if alike and not known:
                alike.keep(report, memory)
        except SimFault as fault:
            if error := launched.raised(fault):
                raise error from None
            self._note(Finding(fault, name, where, launched.grid, launched.block))
            if not fault.nothing_left and not hasattr(launched, "checked"):  # behind which nothing comes
                put_back()
                why = self._finish(launched, fault, put_back)
                self.finished.append((self.launches, name, short(where), why))
            del fault
            if blocks * threads > SMALL:
                gc.collect()
            return
        finally:
            self.progress.close()
            self.progress = None
        self.blocks, self.threads = self.blocks + report.blocks, self.threads + report.blocks * report.threads
        self.compiled += report.compiled
        launched.touched, launched.unset = report.touched, () if sampled else report.unset
        self.waived = added(self.waived, report.waived)
        self.notes |= report.notes
        if report.untried:
            self.note(f"{name} has not tried {report.untried}")

    def _finish(self, launched, fault, put_back):
        """Run a launch that has stopped at a fault to its end without a verdict: as machine code or, where that
        cannot be, on the engine, which looks at no access then. Returns "", or why it is as it was before."""
        if isinstance(fault, (Deadlock, Livelock, Unfinished)):
            return "it cannot end"
        with contextlib.suppress(NotRunnable):
            UnjudgedBlocks(launched)((), lambda blocks: None, cores=1)
            return ""
        try:
            grid = PreparedLaunch(
                launched.kernel, launched.grid, launched.block, launched.args, launched.shared_bytes,
                self.timeout, self.cluster, compiled=False, waive=set(WAIVERS) - {"same-value"},
            )  # fmt: skip
            grid.unjudged = True
            grid.run(0, "late", False, Report())
        except (SimFault, EngineError) as stopped:
            put_back()
            error = isinstance(stopped, EngineError)
            return "the engine cannot run it on" if error else f"its {type(stopped).__name__} stops every run"
        return ""

    def _simulated(self, name, call, only=None):
        return self._sent(
            simulate, name, *call, seed=self.seed, schedules=self.schedules, landing=self.landing,
            timeout=self.timeout, waive=self.waive, only=only, progress=self.progress, cluster=self.cluster,
        )  # fmt: skip

    def _sent(self, run, name, *args, **options):
        """What ``run`` returns with the executor; without it where it cannot have the launch."""
        if self.executor is not None:
            try:
                return run(*args, **options, executor=self.executor)
            except NotSent as error:
                self.stayed[name] = str(error)
        return run(*args, **options)

    def _rest(self, launched, name):
        """What runs the blocks that are not judged; None where all are."""
        if self.all or self.explored:
            return None
        try:
            return UnjudgedBlocks(launched)
        except NotRunnable as error:
            self.whole[name] = str(error)
            return None

    def _sampled(self, name, launched, call, rest, put_back):
        """Judge some blocks and run the others. A block that fails unjudged is judged from the start, and where
        no rule is broken so, all are."""
        grid = shape_of("grid", launched.grid)
        judged = sample(grid)
        report = self._simulated(name, call, judged)
        failed = rest(judged, self.progress)
        if failed is None:
            self.unjudged += math.prod(grid) - len(judged)
            return report
        for only in ([*judged, failed], None):
            put_back()
            report = self._simulated(name, call, only)
        return report

    def _note(self, finding):
        known = self.findings.setdefault(finding.key, finding)
        if known is not finding:
            known.count += 1
        matching = {pair for pair in self.suppressions if _matches(*known.key, *pair, self.began_in)}
        known.suppressed, self.used = bool(matching), self.used | matching
        if self.stop and not known.suppressed:
            raise finding.fault


def _matches(kind, place, rule, line, root):
    """Whether a fault of this kind at this place, relative to ``root``, is one of a suppression's: its ``line``
    is a pattern for the path, absolute, through links or not, or for the last parts of it."""
    file, colon, number = place.rpartition(":")
    paths = [f"/{path(root / file)}{colon}{number}" for path in (os.path.abspath, os.path.realpath)]
    return fnmatch(kind, rule) and any(fnmatch(path, f"*/{line.lstrip('/')}") for path in paths)


def _as_now(launched):
    """A function that puts back what the arrays that a launch can write hold now."""
    held = (array for _, _, array in launched.kernel.held)
    saved = [(array, array.copy()) for array in writeable((*launched.args, *held))]

    def put_back():
        for array, before in saved:
            array[...] = before

    return put_back


def suppressions(file):
    """The pairs of a file of lines ``RULE  FILE:LINE``, both patterns; after ``#`` stands a comment. ValueError
    for a line that is none."""
    pairs = []
    for number, line in enumerate(Path(file).read_text().splitlines(), 1):
        words = line.partition("#")[0].rstrip().split(None, 1)  # a path may have blanks
        if words and len(words) != 2:
            raise ValueError(f"{file}:{number}: {line.strip()!r} is not a rule's name and file:line")
        pairs += [tuple(words)] if words else []
    return tuple(pairs)


@contextlib.contextmanager
def check(**options):
    """Inside, every launch of a Numba CUDA kernel goes to the CPU engine; yields the :class:`Session`::

        with nd.check(schedules=5) as session:
            kernel[grid, block](array)
        print(session)

    ``options`` are those of :class:`Session`. Nothing in the program changes: device arrays, streams, events,
    ``cuda.reduce`` and ufuncs work, with or without a GPU. A fault is noted, its launch is run to the end
    without checks, and the program goes on; with ``stop=True`` it is raised. Kernels must be compiled, and
    device arrays made, inside. Processes that are started inside are judged likewise, and counted at the end.
    """
    session = Session(**options)
    with stand_ins(session), watched(session, {name: options[name] for name in options.keys() - {"executor"}}):
        yield session


@contextlib.contextmanager
def stand_ins(session):
    """Inside, this process's launches go to ``session``."""
    require_cuda("judging a program")
    # not above: on a machine without numba-cuda the words are still there
    from . import cupy_module, driver, torch_extension, triton_driver

    capability = capability_of(session.arch)
    numba = driver.stand_in(session.judge, session.found, capability)
    extensions = functools.partial(torch_extension.stand_in, session)
    triton = triton_driver.stand_in(session.judge, session.note, capability, extensions)
    with numba, cupy_module.stand_in(session), triton:
        yield

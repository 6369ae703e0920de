"""``simulate``: run a kernel on the CPU engine under schedules by chance, and say what it did."""

import gc
import time
from dataclasses import dataclass, field

import numpy as np

from ...gc_pauses import short_collections
from ...waivers import added, in_words
from .choices import Schedule
from .coverage import untried
from .executors import check_executor
from .prepared_launch import PreparedLaunch, check_integers
from .processes import to_run

LANDINGS = ("late", "random", "earliest")


@dataclass(repr=False)
class Report:
    """What a clean run did: totals over all blocks of all schedules, and the last one's events."""

    blocks: int = 0
    threads: int = 0
    schedules: int = 0
    switches: int = 0
    copies: int = 0
    cycles: float = 0.0  # virtual time of the longest thread
    shared_bytes: int = 0
    uses: int = 0  # the most phases of a barrier that copies complete on
    untried: str = ""  # what a larger run would try, see ``coverage``
    seconds: float = 0.0
    waived: dict = field(default_factory=dict)  # rules broken and waived: {name: (how often, lines)}
    notes: dict = field(default_factory=dict)  # what breaks no rule and is odd, as the keys
    compiled: bool = False  # whether the last schedule ran as machine code
    why_interpreted: str = ""  # why the kernel has no machine code, where it was wanted
    events: list = field(default_factory=list)
    touched: list = field(default_factory=list)  # (start, stop, whether written) of bytes in global memory
    unset: list = field(default_factory=list)  # (start, stop) of those that still hold garbage

    def __repr__(self):
        told = f"clean: {self.schedules:,} schedule{'s' * (self.schedules != 1)}, {self.copies:,} cop"
        told += "y" if self.copies == 1 else "ies"
        waived = (f"waived {text}" for text in in_words(self.waived))
        untried = [f"not tried: {self.untried}"] if self.untried else []
        return "; ".join([told, *waived, *self.notes, *untried])

    def add(self, other):
        """What other schedules of the same launch did."""
        self.switches, self.copies = self.switches + other.switches, self.copies + other.copies
        self.cycles = max(self.cycles, other.cycles)
        self.shared_bytes = max(self.shared_bytes, other.shared_bytes)
        self.uses = max(self.uses, other.uses)
        self.waived = added(self.waived, other.waived)
        self.notes |= other.notes


def simulate(
    kernel, grid=None, block=None, args=(), shared_bytes=None, seed=0, schedules=1, landing="late", trace=False,
    timeout=60.0, cluster=None, resident=None, compiled=None, waive=(), only=None, progress=None, executor=None
):
    """Run ``kernel`` on the CPU engine and return a :class:`Report`.

    ``kernel`` is a ``compiler.Kernel``, a ``@cuda.jit`` function or a plain function; ``grid`` blocks of
    ``block`` threads, each a number or a tuple of up to three, x first. ``args`` are numbers, NumPy
    arrays and records, tuples of these, and ``TensorMapArray``. An array goes in as an address where
    the kernel's signature says ``uint64``, else as an array. ``shared_bytes`` is the dynamic shared
    memory. ``block`` and ``shared_bytes`` of a Kernel are its own where they are not given. In place of all of
    these stands a :class:`launches.Launch`, such as a pipeline returns: ``simulate(copy(stages=4))``. Its
    outputs are poisoned before a schedule and compared after it.

    Seed 0 runs the threads in turn; every other seed is another random schedule. ``schedules=N`` runs seeds
    ``seed .. seed+N-1``, each on the arguments as they were, on all cores where that pays (``processes``). A
    seed may also be the text of one schedule of ``explore``, such as ``"x:0:0210"``, which says itself when
    copies land. ``landing`` says when copies arrive: ``late`` (when nothing else can run), ``earliest`` (at
    issue), or ``random``: of the copies of one run some do this, some that, and others land in between,
    sooner or later. ``trace`` records events. ``timeout`` is in seconds, for one schedule. ``cluster``
    blocks, a number or a tuple as ``grid``, share their shared memory. ``resident`` blocks are there at once,
    if not as many as an H200 has room for; the rest start when others have ended.

    ``compiled`` says whether the kernel may run as machine code (``native/``): True, False, or None. None is
    yes once interpreting has taken two seconds and more is to come, and from then on whenever this kernel is
    run, also in other processes (``compiler/cache.py``). What is said of a kernel is the same: where machine
    code comes to anything but a clean end, the schedule is interpreted from its start. So is a kernel of which
    there is no machine code, and a schedule with ``trace`` or of ``explore``. ``waive`` names rules that may be
    broken, of ``engines.waivers.WAIVERS``; ``Report.waived`` says which were. ``only`` are the numbers of the
    blocks that run, x first: the others do nothing; not with clusters. ``progress`` is called with 1 each time
    that a block has ended.

    ``executor`` is a ``concurrent.futures.Executor`` in whose workers all schedules but the last one run: one
    of Python's, Dask's (``Client.get_executor()``), mpi4py's or another, on this machine or others with the
    package and the kernel's file where they are here. What is not a clean end there is run once more here, so
    that outcome, ``seed`` and arrays are as without it. What the executor raises is raised.

    Raises a :class:`SimFault` for a broken rule, with ``seed`` and ``landing`` to replay it; WrongResult, which
    is one too, where a Launch has not left what it expects; and ``ValueError`` for arguments that cannot be
    launched, and for a schedule of some other kernel.
    """
    schedule = _schedule(seed, schedules, landing)
    call = kernel, grid, block, args, shared_bytes, timeout, cluster, resident, compiled, waive
    launch = PreparedLaunch(*call)
    check_executor(executor)
    launch.only, launch.progress = only and _blocks(launch, only), progress
    report = Report(blocks=len(only or range(launch.blocks)), threads=launch.threads, schedules=schedules)
    started = time.perf_counter()
    numbers = [schedule] if schedule else range(seed, seed + schedules)
    with short_collections():
        for number in to_run(launch, numbers, report, landing, executor):
            execution = launch.run(number, landing, trace, report)
        report.events, report.compiled = execution.events or [], execution.machine is not None
        report.why_interpreted, report.untried = launch.why_interpreted, untried(launch, report.uses)
        # Its parts refer to each other, and hold more memory than their number lets the collector think.
        del execution
        gc.collect()
    report.seconds = time.perf_counter() - started
    return report


def _schedule(seed, schedules, landing):
    """The schedule of explore's that a seed is, else None; ValueError for what is neither."""
    if landing not in LANDINGS:
        raise ValueError(f"landing={landing!r} is not one of {', '.join(LANDINGS)}")
    check_integers(schedules=schedules)
    if schedules < 1:
        raise ValueError(f"schedules={schedules!r} must be at least 1")
    schedule = Schedule.parse(seed) if isinstance(seed, str) else None
    if schedule is None:
        check_integers(seed=seed)
    elif schedules > 1:
        raise ValueError(f"seed={seed!r} is one schedule, and schedules={schedules} asks for more")
    return schedule


def _blocks(launch, only):
    """The numbers in ascending order, checked."""
    if launch.shapes[2] != (1, 1, 1):
        raise ValueError(f"only={only!r}: blocks of a cluster run together")
    if not all(isinstance(number, (int, np.integer)) and 0 <= number < launch.blocks for number in only):
        raise ValueError(f"only={only!r} must be numbers of blocks, from 0 to {launch.blocks - 1}")
    return sorted(set(only))

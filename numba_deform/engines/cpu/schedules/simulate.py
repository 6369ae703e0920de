"""``simulate``: prepare a kernel for the CPU engine, run its blocks, watch that it ends."""

import contextlib
import ctypes
import gc
import inspect
import linecache
import math
import threading
import time
from dataclasses import dataclass, field

import numpy as np
from numba import typeof, types

from ....compiler.inference import NotInferred, Refused, identity, infer
from ....compiler.rewrite import rebind
from ....device.limits import MAX_THREADS, SHARED_LIMIT, resident_blocks
from ... import faults, launches
from ...shapes import cluster_of, shape_of
from ...tensormap import TensorMapArray
from ..frontends.numba_python import arguments
from ..frontends.numba_python.cuda_module import FakeCuda, printed
from ..frontends.numba_python.name_binding import Names, refused
from ..frontends.numba_python.typed_code import typed
from ..machine.block import Block
from ..machine.cross_block_barrier import CrossBlockBarrier
from ..machine.registers import most_registers
from ..memory.memory import GlobalMemory, Rerun
from ..native.codegen.coroutine import CODES, compiled
from ..native.forms.block import Interpret, Machine, NativeBlock
from ..reports.call_sites import KERNEL, raised_at
from .choices import BadSchedule, Schedule
from .processes import to_run
from .resident_blocks import Residents
from .stepped_block import SteppedBlock

GRID_LIMITS, BLOCK_LIMITS = (2**31 - 1, 65535, 65535), (1024, 1024, 64)  # in x, y and z
PATIENCE = 2.0  # seconds of interpretation after which machine code is made of a kernel
LANDINGS = ("late", "random", "earliest")


@dataclass
class Report:
    """What a clean run did: totals over all blocks of all schedules, and the last one's events."""

    blocks: int = 0
    threads: int = 0
    schedules: int = 0
    switches: int = 0
    copies: int = 0
    cycles: float = 0.0  # virtual time of the longest thread
    shared_bytes: int = 0
    seconds: float = 0.0
    compiled: bool = False  # whether the last schedule ran as machine code
    events: list = field(default_factory=list)

    def add(self, other):
        """What other schedules of the same launch did."""
        self.switches, self.copies = self.switches + other.switches, self.copies + other.copies
        self.cycles = max(self.cycles, other.cycles)
        self.shared_bytes = max(self.shared_bytes, other.shared_bytes)


class Launch:
    """State of one run of a grid."""

    def __init__(self, grid, seed, landing, trace):
        self.blocks, self.threads, self.seed, self.landing = grid.blocks, grid.threads, seed, landing
        self.grid_shape, self.block_shape, self.cluster_shape = grid.shapes
        self.cluster_size, self.resident = math.prod(self.cluster_shape), grid.resident
        self.shared_bytes, self.layout, self.grid_barrier = grid.shared_bytes, grid.layout, None
        self.block_type = SteppedBlock if isinstance(seed, Schedule) else Block
        extents = arguments.extents(grid.args, grid.names)
        any_code = not isinstance(seed, Schedule) and not trace and self.cluster_size == 1
        code = grid.code() if any_code else None
        self.machine = code and Machine(code, self)
        self.globals = GlobalMemory(extents, grid.traces, code and self.machine.region)
        if code:
            self.block_type = NativeBlock
        self.is_slow = grid.is_slow if any_code else lambda blocks: False
        maps = arguments.maps_of(grid.args)
        self.tensor_maps = {address: tensor for a in maps for address, tensor in a.intact().items()}
        self.looks, self.places = grid.looks, grid.places
        self.events = [] if trace else None
        self.registers, self.copies_issued = grid.registers, 0
        self.running = None

    def room(self, block):
        """How many blocks such as ``block`` are there at once."""
        return self.resident or resident_blocks(self.threads, block.shared.static_bytes + self.shared_bytes)

    def sync_grid(self, thread):
        """``this_grid().sync()``: a barrier of all threads of the grid, all of which have to be there at
        once."""
        room = self.room(thread.block)
        if self.blocks > room:
            what = f"this_grid().sync() of {self.blocks} blocks, of which {room} have room at once"
            fault = thread.fault(faults.NotResident, what)
            fault.rule = "All blocks of a grid with a barrier of its own are there at once: a cooperative "
            fault.rule += "launch of more is refused (CUDA guide, cooperative groups, grid synchronization)."
            raise fault
        if self.grid_barrier is None:
            count = self.blocks * self.threads
            self.grid_barrier = CrossBlockBarrier("this_grid().sync()", count, False, faults.Deadlock)
        if self.grid_barrier not in thread.block.cross_block:
            self.grid_barrier.join(thread.block)
        self.grid_barrier.arrive(thread)
        self.grid_barrier.wait(thread)


def simulate(
    kernel, grid=None, block=None, args=(), shared_bytes=None, seed=0, schedules=1, landing="late", trace=False,
    timeout=60.0, cluster=None, resident=None, compiled=None
):
    """Run ``kernel`` on the CPU engine and return a :class:`Report`.

    ``kernel`` is a ``compiler.Kernel``, a ``@cuda.jit`` function or a plain function; ``grid`` blocks of
    ``block`` threads, each a number or a tuple of up to three, x first. ``args`` are numbers, NumPy
    arrays and records, tuples of these, and ``TensorMapArray``. An array goes in as an address where
    the kernel's signature says ``uint64``, else as an array. ``shared_bytes`` is the dynamic shared
    memory. ``block`` and ``shared_bytes`` of a Kernel are its own where they are not given. In place of all of
    these stands a :class:`launches.Launch`, such as a pipeline returns: ``simulate(copy(stages=4))``. Its
    outputs are poisoned before a schedule and compared after it.

    Seed 0 runs the threads in turn; every other seed is another random schedule. ``schedules=N`` runs
    seeds ``seed .. seed+N-1``, each on the arguments as they were, on all cores where that pays
    (``schedules.py``). A seed may also be the text of one schedule of ``explore``, such as ``"x:0:0210"``,
    which says itself when copies land. ``landing`` says when copies arrive: ``late`` (when nothing else can
    run), ``earliest`` (at issue), or ``random``: of the copies of one run some do this, some that, and others
    land in between, sooner or later.
    ``trace`` records events. ``timeout`` is in seconds, for one schedule. ``cluster`` blocks, a number or a
    tuple as ``grid``, share their shared memory. ``resident`` blocks are there at once, if not as many as an
    H200 has room for; the rest start when others have ended.

    ``compiled`` says whether the kernel may run as machine code (``native/``): True, False, or None. None is
    yes once interpreting has taken two seconds and more is to come, and from then on whenever this kernel is
    run. What is said of a kernel is the same: where machine code comes to anything but a clean end, the
    schedule is interpreted from its start. So is a kernel of which there is no machine code, and a schedule
    with ``trace`` or of ``explore``.

    Raises a :class:`SimFault` for a broken rule, with ``seed`` and ``landing`` to replay it; WrongResult, which
    is one too, where a Launch has not left what it expects; and ``ValueError`` for arguments that cannot be
    launched, and for a schedule of some other kernel.
    """
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
    grid = Grid(kernel, grid, block, args, shared_bytes, timeout, cluster, resident, compiled)
    if schedule and grid.shapes[2] != (1, 1, 1):
        raise ValueError(f"seed={seed!r} is a schedule of explore, which knows no clusters")
    report = Report(blocks=grid.blocks, threads=grid.threads, schedules=schedules)
    started = time.perf_counter()
    numbers = [schedule] if schedule else range(seed, seed + schedules)
    with _short_collections():
        for number in to_run(grid, numbers, report, landing):
            launch = grid.run(number, landing, trace, report)
        report.events, report.compiled = launch.events or [], launch.machine is not None
        # Its parts refer to each other, and hold more memory than their number lets the collector think.
        del launch
        gc.collect()
    report.seconds = time.perf_counter() - started
    return report


def check_integers(**numbers):
    """Refuse what is not a whole number."""
    for name, number in numbers.items():
        if not isinstance(number, (int, np.integer)):
            raise ValueError(f"{name}={number!r} must be an integer")


class Grid:
    """A kernel with all that it is launched on, checked: the same again for every schedule."""

    def __init__(self, kernel, grid, block, args, shared_bytes, timeout, cluster=None, resident=None,
                 compiled=False):  # fmt: skip
        self.request = kernel if isinstance(kernel, launches.Launch) else None
        if self.request:
            if (grid, block, shared_bytes, cluster) != (None,) * 4 or len(args):
                raise ValueError("a Launch has its own grid, block, args, shared_bytes and cluster")
            self.request.prepare()
            kernel, grid, args, cluster = kernel.kernel, kernel.grid, kernel.args, kernel.cluster
        # A Kernel has a plain form, a dispatcher of Numba's its function.
        function = getattr(kernel, "plain", getattr(kernel, "py_func", kernel))
        if not inspect.isfunction(function) or inspect.isgeneratorfunction(function):
            raise ValueError(f"kernel={kernel!r} is no function that a GPU could run")
        if block is None:
            block = getattr(kernel, "block", ()) or getattr(kernel, "threads", None)
        if shared_bytes is None:
            shared_bytes = getattr(kernel, "shared_bytes", 0)
        self.layout = getattr(kernel, "shared", None)
        check_integers(shared_bytes=shared_bytes, resident=resident or 0)
        shapes = shape_of("grid", grid), shape_of("block", block)
        self.blocks, self.threads = map(math.prod, shapes)
        sizes = zip((*shapes[0], *shapes[1]), (*GRID_LIMITS, *BLOCK_LIMITS), strict=True)
        if not all(1 <= n <= limit for n, limit in sizes) or self.threads > MAX_THREADS:
            raise faults.BadLaunch(f"grid={grid}, block={block}")
        self.shapes, self.resident = (*shapes, cluster_of(shapes[0], cluster)), resident
        if resident is not None and resident < math.prod(self.shapes[2]):
            least = math.prod(self.shapes[2])
            raise ValueError(f"resident={resident} must be at least the {least} blocks that start together")
        if self.threads > getattr(kernel, "threads", self.threads):
            raise faults.BadLaunch(f"block={block}, and the kernel is compiled for {kernel.threads}")
        if not 0 <= shared_bytes <= SHARED_LIMIT:
            raise faults.BadLaunch(f"{shared_bytes} bytes of dynamic shared memory")
        self.function, self.args = function, args
        self.names, self.kinds = arguments.check(function, getattr(kernel, "signature", None), args)
        self.shared_bytes, self.timeout = int(shared_bytes), timeout
        self.types = [kind or _type_of(arg) for kind, arg in zip(self.kinds, args, strict=True)]
        self.typed, self.key = _typed(function, self.types), (identity(function), tuple(self.types))
        self.registers = most_registers(kernel, self.threads)
        self.saved = [(array, array.copy()) for array in arguments.writeable(args)]
        self.traces, self.again = set(), False
        self.compiled = compiled  # whether machine code may run; None: if it pays
        self.started, self.watchdog = time.perf_counter(), None
        self.looks = {}  # (state of a thread at a poll, what it would see) -> whether that is in vain
        self.places = {}  # by places in the code: what loops.py says of them

    def code(self):
        """The kernel's machine code; None where it is to be interpreted."""
        known = self.compiled or self.key in CODES
        if self.compiled is False or not known and not self.is_slow():
            return None
        return compiled(self.function, self.types, self.key)

    def is_slow(self, blocks=0):
        """Whether machine code would pay, so many blocks into a schedule: then that starts over."""
        tried = self.compiled is not None or self.key in CODES
        return not tried and 2 * blocks <= self.blocks and time.perf_counter() - self.started > PATIENCE

    @contextlib.contextmanager
    def watched(self):
        """Inside, one watchdog does for all runs."""
        if self.watchdog:
            yield self.watchdog
            return
        self.watchdog = _Watchdog(self.timeout)
        try:
            yield self.watchdog
        finally:
            self.watchdog.stop()
            self.watchdog = None

    def contents(self):
        """A digest of what the kernel's writeable arrays hold."""
        return hash(tuple(array.tobytes() for array, _ in self.saved))

    def run(self, seed, landing, trace, report):
        """One schedule, on the arguments as they were; adds to ``report``, returns the Launch."""
        if isinstance(seed, Schedule) and seed.block >= self.blocks:
            raise ValueError(f"seed={str(seed)!r} is of block {seed.block}, and grid={self.blocks}")
        while True:
            if self.again:
                for array, before in self.saved:
                    array[...] = before
            self.again = True
            launch = Launch(self, seed, landing, trace)
            try:
                self._run(launch, report)
                if self.request:
                    self.request.check()
            except Interpret:
                self.compiled = False
                continue
            except Rerun:
                continue
            except BadSchedule as error:
                raise ValueError(str(error)) from None
            except Exception as error:
                if launch.machine:  # what to say of it, and whether it is a fault, is for the interpreter
                    self.compiled = False
                    continue
                if isinstance(error, faults.SimFault):
                    error.seed = str(seed) if isinstance(seed, Schedule) else seed
                    error.landing = landing
                raise
            finally:
                if launch.machine:
                    launch.machine.close()
            return launch

    def _run(self, launch, report):
        triples = zip(self.args, self.names, self.kinds, strict=True)
        prepared = [arguments.prepared(launch, *triple) for triple in triples]
        code = _prepare(self.function, self.typed, FakeCuda(launch))
        with self.watched() as watchdog:
            try:
                try:
                    watchdog.start(launch)
                    with np.errstate(all="ignore"), _short_collections():  # a GPU does not warn either
                        blocks = Residents(launch, code, prepared, self.shared_bytes).run()
                finally:
                    watchdog.rest()
            except _OutOfTime as error:
                raise watchdog.fault(launch, error) from None
        report.copies += launch.copies_issued
        for switches, cycles, static_bytes in blocks:
            report.switches += switches
            report.cycles = max(report.cycles, cycles)
            report.shared_bytes = max(report.shared_bytes, static_bytes + self.shared_bytes)


_is_frozen = False  # by _short_collections: asking the collector takes it as long as there are frozen objects


@contextlib.contextmanager
def _short_collections():
    """Inside, the garbage collector looks at what is made there, and not at all that was there before."""
    global _is_frozen
    if _is_frozen or gc.get_freeze_count():  # somebody else's, which must not be thawed
        yield
        return
    gc.freeze()
    _is_frozen = True
    try:
        yield
    finally:
        _is_frozen = False
        gc.unfreeze()


def _typed(function, given):
    """The kernel with the types that Numba infers (typed.py); None where its source is not to be had."""
    try:
        with _short_collections():
            return typed(infer(function, given))
    except NotInferred:
        return None
    except Refused as refused:
        code = refused.function.__code__
        line = refused.line or code.co_firstlineno
        source = linecache.getline(code.co_filename, line).strip()
        raise faults.NotCompiled(refused.words, where=f"{code.co_filename}:{line}", source=source) from None


def _type_of(arg):
    """Numba's type of an argument."""
    if isinstance(arg, TensorMapArray):
        return types.uint64
    if isinstance(arg, tuple):
        parts = tuple(map(_type_of, arg))
        return types.BaseTuple.from_types(parts, type(arg) if hasattr(arg, "_fields") else None)
    kind = typeof(arg)
    return kind.copy(readonly=False) if isinstance(kind, types.Array) else kind


def _prepare(function, form, fake):
    """The kernel with modules, number types, intrinsics and the like replaced by the engine's; ``form`` is its
    typed form, if it has one."""
    names, made = Names(fake), {}

    def extra(rebuilt):
        # Helpers of the package are transparent: a fault names the kernel's own line.
        library = (rebuilt.__module__ or "").startswith(("numba_deform.device.", "numba.cuda."))
        return {"print": printed, "breakpoint": refused("breakpoint")} | ({} if library else {KERNEL: True})

    def device_function(dispatcher, rebuilt):
        return rebuilt

    def build(form):
        if form not in made:
            new = {**form.names, **{name: build(called) for name, called in form.calls.items()}}
            made[form] = rebind(
                form.function, names.replace, device_function, lambda f: {**extra(f), **new},
                lambda f: form.code if f is form.function else f.__code__, names.module,
            )  # fmt: skip
        return made[form]

    if form:
        return build(form)
    return rebind(function, names.replace, device_function, extra, module=names.module)


class _Watchdog:
    """Ends a run that takes too long, also inside a loop that never calls the engine. It watches one run after
    another: to start a thread takes as long as a small run."""

    def __init__(self, timeout):
        self.timeout, self.launch, self.until = timeout, None, 0.0  # the run that it watches, and until when
        self.caller, self.over = ctypes.c_ulong(threading.get_ident()), threading.Event()
        self.lock = threading.Lock()
        self.watch = threading.Thread(target=self._watch, daemon=True)

    def start(self, launch):
        """A run begins."""
        self.launch, self.until = launch, time.monotonic() + self.timeout
        if not self.watch.ident:
            self.watch.start()

    def _watch(self):
        pause = self.timeout
        while not self.over.wait(max(pause, 0)):
            with self.lock:
                pause = self.until - time.monotonic() if self.launch else max(self.timeout, 0.1)
                if pause <= 0:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(self.caller, ctypes.py_object(_OutOfTime))
                    pause = 1.0  # once more, in case that something swallowed it

    def rest(self):
        """The run has ended."""
        while True:
            try:
                with self.lock:
                    self.launch = None
                for _ in range(100):
                    pass  # one that is still on its way arrives here
                return
            except _OutOfTime:
                pass  # too late: the run has ended

    def stop(self):
        """No other run is to come."""
        self.over.set()
        if self.watch.ident:
            self.watch.join()

    def fault(self, launch, error):
        """What to say of the place where the run was stopped."""
        what, thread = f"still running after {self.timeout:g} s", launch.running
        if thread is None:
            return faults.Unfinished(what)
        return thread.fault_at(faults.Unfinished, what, raised_at(error))


class _OutOfTime(BaseException):
    """Thrown into the engine by the watchdog."""

"""``simulate``: prepare a kernel for the CPU engine, run its blocks, watch that it ends."""

import ctypes
import inspect
import threading
import time
from dataclasses import dataclass, field

import numpy as np
from numba import cuda, types
from numba.cuda.dispatcher import CUDADispatcher

from ...compiler.rewrite import rebind
from ...device.limits import MAX_THREADS, SHARED_LIMIT
from ...device.ptx import Intrinsic
from .. import faults
from ..tensormap import TensorMapArray
from .arrays import ArrayView
from .block import Block
from .fake_cuda import FakeCuda, cast
from .interleave import BadSchedule, Schedule, SteppedBlock
from .memory import GlobalMemory, Rerun
from .thread import KERNEL, raised_at
from .values import start_of

NAMES = {id(value): name for name, value in vars(cuda).items() if callable(value)}
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
    events: list = field(default_factory=list)


class Launch:
    """State of one run of a grid."""

    def __init__(self, grid, seed, landing, trace):
        self.blocks, self.threads, self.seed, self.landing = grid.blocks, grid.threads, seed, landing
        self.block_type = SteppedBlock if isinstance(seed, Schedule) else Block
        arrays = [arg.host if isinstance(arg, TensorMapArray) else arg for arg in grid.args]
        named = [pair for pair in zip(arrays, grid.names, strict=True) if isinstance(pair[0], np.ndarray)]
        self.globals = GlobalMemory(named, grid.traces)
        maps = [arg for arg in grid.args if isinstance(arg, TensorMapArray)]
        self.tensor_maps = {a.slot_address(i): tensor for a in maps for i, tensor in enumerate(a)}
        self.events = [] if trace else None
        self.copies_issued = 0
        self.running = None


def simulate(
    kernel, grid, block, args, shared_bytes=0, seed=0, schedules=1, landing="late", trace=False,
    timeout=60.0
):
    """Run ``kernel`` on the CPU engine and return a :class:`Report`.

    ``kernel`` is a ``compiler.Kernel``, a ``@cuda.jit`` function or a plain function; ``grid`` blocks of
    ``block`` threads (one dimension, at most 1024 threads). ``args`` are scalars, C-contiguous NumPy
    arrays and ``TensorMapArray``. An array goes in as an address where the kernel's signature says
    ``uint64``, else as an array. ``shared_bytes`` is the dynamic shared memory.

    Seed 0 runs the threads in turn; every other seed is another random schedule. ``schedules=N`` runs
    seeds ``seed .. seed+N-1``, each on the arguments as they were. A seed may also be the text of one
    schedule of ``explore``, such as ``"x:0:0210"``, which says itself when copies land. ``landing`` says
    when copies arrive: ``late`` (when nothing else can run), ``random`` or ``earliest`` (at issue).
    ``trace`` records events. ``timeout`` is in seconds, for one schedule.

    Raises a :class:`SimFault` for a broken rule, with ``seed`` and ``landing`` to replay it, and
    ``ValueError`` for arguments that cannot be launched, and for a schedule of some other kernel.
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
    grid = Grid(kernel, grid, block, args, shared_bytes, timeout)
    report = Report(blocks=grid.blocks, threads=grid.threads, schedules=schedules)
    started = time.perf_counter()
    for number in [schedule] if schedule else range(seed, seed + schedules):
        launch = grid.run(number, landing, trace, report)
    report.seconds = time.perf_counter() - started
    report.events = launch.events or []
    return report


def check_integers(**numbers):
    """Refuse what is not a whole number."""
    for name, number in numbers.items():
        if not isinstance(number, (int, np.integer)):
            raise ValueError(f"{name}={number!r} must be an integer; the CPU engine has one dimension")


class Grid:
    """A kernel with all that it is launched on, checked: the same again for every schedule."""

    def __init__(self, kernel, grid, block, args, shared_bytes, timeout):
        check_integers(grid=grid, block=block, shared_bytes=shared_bytes)
        if grid < 1 or not 1 <= block <= MAX_THREADS:
            raise faults.BadLaunch(f"grid={grid}, block={block}")
        if block > getattr(kernel, "threads", block):
            raise faults.BadLaunch(f"block={block}, and the kernel is compiled for {kernel.threads}")
        if not 0 <= shared_bytes <= SHARED_LIMIT:
            raise faults.BadLaunch(f"{shared_bytes} bytes of dynamic shared memory")
        # A Kernel has a plain form, a dispatcher of Numba's its function.
        function = getattr(kernel, "plain", getattr(kernel, "py_func", kernel))
        if not inspect.isfunction(function) or inspect.isgeneratorfunction(function):
            raise ValueError(f"kernel={kernel!r} is no function that a GPU could run")
        self.blocks, self.threads = int(grid), int(block)
        self.function, self.args = function, args
        self.names, self.kinds = _check_arguments(function, getattr(kernel, "signature", None), args)
        self.shared_bytes, self.timeout = int(shared_bytes), timeout
        self.saved = [(array, array.copy()) for array in _writeable(args)]
        self.traces, self.again = set(), False

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
            except Rerun:
                continue
            except BadSchedule as error:
                raise ValueError(str(error)) from None
            except faults.SimFault as fault:
                fault.seed = str(seed) if isinstance(seed, Schedule) else seed
                fault.landing = landing
                raise
            return launch

    def _run(self, launch, report):
        triples = zip(self.args, self.names, self.kinds, strict=True)
        prepared = [_argument(launch, *triple) for triple in triples]
        code = _prepare(self.function, FakeCuda(launch))
        watchdog, blocks = _Watchdog(launch, self.timeout), []
        try:
            try:
                watchdog.watch.start()
                with np.errstate(all="ignore"):  # a GPU does not warn either
                    for index in range(launch.blocks):
                        block = launch.block_type(launch, index, launch.threads, self.shared_bytes)
                        block.run(code, prepared)
                        blocks.append(block.summary())
            finally:
                watchdog.stop()
        except _OutOfTime as error:
            raise watchdog.fault(error) from None
        report.copies += launch.copies_issued
        for switches, cycles, static_bytes in blocks:
            report.switches += switches
            report.cycles = max(report.cycles, cycles)
            report.shared_bytes = max(report.shared_bytes, static_bytes + self.shared_bytes)


def _writeable(args):
    """The arrays that a kernel can change, those behind tensor maps included."""
    arrays = []
    for arg in args:
        behind = [m.array for m in arg.maps] if isinstance(arg, TensorMapArray) else [arg]
        arrays += [a for a in behind if isinstance(a, np.ndarray) and a.flags.writeable]
    return list({id(a): a for a in arrays}.values())


def _check_arguments(function, signature, args):
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) != len(args):
        wanted = f"{len(parameters)} arguments ({', '.join(parameters)})"
        raise ValueError(f"{function.__name__} takes {wanted}, {len(args)} were given")
    kinds = signature.args if signature else [None] * len(args)
    if len(kinds) != len(args):
        raise ValueError(f"{function.__name__} has {len(args)} parameters, its signature {signature}")
    for name, arg, kind in zip(parameters, args, kinds, strict=True):
        if isinstance(arg, np.ndarray):
            if not arg.flags.c_contiguous:
                raise ValueError(f"argument {name} must be C-contiguous; pass np.ascontiguousarray(...)")
            if arg.dtype.hasobject or not arg.dtype.isnative:
                raise ValueError(f"argument {name} has dtype {arg.dtype}, which no GPU can read")
        elif not isinstance(arg, (int, float, np.number, np.bool_, TensorMapArray)):
            takes = "the CPU engine takes numbers, NumPy arrays and TensorMapArray"
            raise ValueError(f"argument {name} is a {type(arg).__name__}; {takes}")
        array = isinstance(arg, (np.ndarray, TensorMapArray))
        if array and isinstance(kind, types.Number) and kind != types.uint64:
            raise ValueError(f"argument {name} is an array, but the kernel's signature says {kind}")
        if not array and isinstance(kind, types.Array):
            raise ValueError(f"argument {name} is a number, but the kernel's signature says {kind}")
    return parameters, kinds


def _argument(launch, arg, name, kind):
    """One argument as the kernel's Python code is going to see it."""
    if isinstance(arg, TensorMapArray):
        return arg.address
    if isinstance(arg, np.ndarray):
        base = start_of(arg)
        if kind == types.uint64:
            return base
        region = launch.globals.find(None, base, arg.nbytes, "") if arg.nbytes else None
        return ArrayView(region, base, arg, name)
    if isinstance(kind, types.Number):
        return cast(kind)(arg)
    return arg.item() if isinstance(arg, (np.integer, np.bool_)) else arg


def _prepare(function, fake):
    """The kernel with ``cuda``, number types and intrinsics replaced by the engine's."""
    casts = {}

    def replace(value):
        if value is cuda:
            return fake
        if isinstance(value, Intrinsic):
            return value.model
        if isinstance(value, types.Number):
            return casts.setdefault(value, cast(value))
        if isinstance(value, np.integer):
            return int(value)
        return getattr(fake, NAMES.get(id(value), ""), value)  # from numba.cuda import syncthreads

    def extra(rebuilt):
        # Helpers of the package are transparent: a fault names the kernel's own line.
        library = (rebuilt.__module__ or "").startswith("numba_deform.device.")
        return {} if library else {KERNEL: True}

    def device_function(dispatcher: CUDADispatcher, rebuilt):
        return rebuilt

    return rebind(function, replace, device_function, extra)


class _Watchdog:
    """Ends a run that takes too long, also inside a loop that never calls the engine."""

    def __init__(self, launch, timeout):
        self.launch, self.timeout = launch, timeout
        self.caller, self.over = ctypes.c_ulong(threading.get_ident()), threading.Event()
        self.watch = threading.Thread(target=self._watch, daemon=True)

    def _watch(self):
        pause = max(0, self.timeout)
        while not self.over.wait(pause):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(self.caller, ctypes.py_object(_OutOfTime))
            pause = 1.0  # once more, in case that something swallowed it

    def stop(self):
        while True:
            try:
                self.over.set()
                self.watch.join()
                for _ in range(100):
                    pass  # one that is still on its way arrives here
                return
            except _OutOfTime:
                pass  # too late: the run has ended

    def fault(self, error):
        """What to say of the place where the run was stopped."""
        what, thread = f"still running after {self.timeout:g} s", self.launch.running
        if thread is None:
            return faults.Unfinished(what)
        return thread.fault_at(faults.Unfinished, what, raised_at(error))


class _OutOfTime(BaseException):
    """Thrown into the engine by the watchdog."""

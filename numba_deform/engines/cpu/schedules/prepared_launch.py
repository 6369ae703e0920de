"""A checked launch, which runs under one schedule after another: ``simulate`` and ``explore`` make it."""

import contextlib
import hashlib
import math
import time
import traceback

import numpy as np
from numba import types

from ....device.limits import MAX_THREADS, SHARED_LIMIT
from ... import faults, launches, waivers
from ...gc_pauses import short_collections
from ...shapes import cluster_of, shape_of
from ..frontends import arguments
from ..frontends.program import launchable, program_of
from ..frontends.ptx.languages import translate
from ..machine.registers import most_registers
from ..memory.restart import Bailout, Restart
from ..native.codegen.code_cache import CODES, FAILURES, compiled, is_known
from .choices import BadSchedule, Schedule
from .execution import Execution
from .resident_blocks import ResidentBlocks
from .watchdog import OutOfTime, Watchdog

GRID_LIMITS, BLOCK_LIMITS = (2**31 - 1, 65535, 65535), (1024, 1024, 64)  # in x, y and z
GAVE_UP = "its machine code has met what only the interpreter can judge"
MOST_BLOCKS = 100_000  # a second, as machine code
PATIENCE = 2.0  # seconds of interpretation after which machine code is made of a kernel


class PreparedLaunch:
    """A kernel with all that it is launched on, checked: the same again for every schedule."""

    unjudged = False  # whether no access to memory is looked at

    def __init__(self, kernel, grid, block, args, shared_bytes, timeout, cluster=None, resident=None,
                 compiled=False, waive=()):  # fmt: skip
        self.call = kernel, grid, block, args, shared_bytes, timeout, cluster, resident, compiled, waive
        self.waive = waivers.names(waive)
        self.request = kernel if isinstance(kernel, launches.Launch) else None
        if self.request:
            if (grid, block, shared_bytes, cluster) != (None,) * 4 or len(args):
                raise ValueError("a Launch has its own grid, block, args, shared_bytes and cluster")
            self.request.prepare()
            kernel, grid, args, cluster = kernel.kernel, kernel.grid, kernel.args, kernel.cluster
        self.kernel = kernel = launchable(kernel)
        if block is None:
            block = kernel.block or kernel.threads or None
        if shared_bytes is None:
            shared_bytes = kernel.shared_bytes
        check_integers(shared_bytes=shared_bytes, resident=resident or 0)
        shapes = shape_of("grid", grid), shape_of("block", block)
        self.blocks, self.threads = map(math.prod, shapes)
        sizes = zip((*shapes[0], *shapes[1]), (*GRID_LIMITS, *BLOCK_LIMITS), strict=True)
        if not all(1 <= n <= limit for n, limit in sizes) or self.threads > MAX_THREADS:
            raise faults.BadLaunch(f"grid={grid}, block={block}")
        self.shapes, self.resident = (*shapes, cluster_of(shapes[0], cluster, kernel.cluster)), resident
        self.clusters = self.blocks // math.prod(self.shapes[2])
        if resident is not None and resident < math.prod(self.shapes[2]):
            least = math.prod(self.shapes[2])
            raise ValueError(f"resident={resident} must be at least the {least} blocks that start together")
        if 0 < kernel.threads < self.threads:
            raise faults.BadLaunch(f"block={block}, and the kernel is compiled for {kernel.threads}")
        if not 0 <= shared_bytes <= SHARED_LIMIT:
            raise faults.BadLaunch(f"{shared_bytes} bytes of dynamic shared memory")
        if kernel.is_empty:
            raise faults.NothingRan(f"{kernel.name} has no instruction but ret")
        self.args = args
        self.names, self.kinds = arguments.check(kernel.plain, kernel.signature, args)
        self.shared_bytes, self.timeout = int(shared_bytes), timeout
        self.types = [kind or arguments.type_of(arg) for kind, arg in zip(self.kinds, args, strict=True)]
        self.program = program_of(kernel, self.types)
        self.registers = most_registers(kernel, self.threads)
        self.by_address = [n for n, kind in zip(self.names, self.kinds, strict=True) if kind == types.uint64]
        self.arrays = *args, *(array for _, _, array in kernel.held)
        self.saved = [(array, array.copy()) for array in arguments.writeable(self.arrays)]
        self.traces, self.again = set(), False
        self.why_interpreted = self.program.lacking()  # or why there is no machine code, where some was wanted
        self.only, self.progress = None, None  # the blocks that run, if not all; called at each one's end
        # Whether machine code may run; None: if it pays.
        self.compiled = False if self.program.has_breakpoints else compiled
        self.started, self.watchdog = time.perf_counter(), None
        self.looks = {}  # (state of a thread at a poll, what it would see) -> whether that is in vain
        self.places = {}  # by places in the code: what source_loops says of them

    def code(self):
        """The kernel's machine code; None where it is to be interpreted."""
        wanted = self.compiled is None and is_known(self.program) or self.compiled
        if self.compiled is False or not wanted and not self.is_slow():
            return None
        return self._made()

    def _made(self):
        """The machine code, made while the watchdog rests; None where there can be none."""
        execution = self.watchdog and self.watchdog.execution
        if execution:
            self.watchdog.rest()
        made = compiled(self.program)
        if execution:
            self.watchdog.start(execution)
        if isinstance(made, str):
            self.why_interpreted = self.why_interpreted or made
            return None
        return made

    def is_slow(self, blocks=0):
        """Whether there is machine code that pays, so many blocks into a schedule: then that starts over."""
        tried = self.compiled is not None or self.program.key in CODES
        count = len(self.only) if self.only else self.blocks
        if tried or 2 * blocks > count or time.perf_counter() - self.started <= PATIENCE:
            return False
        return self._made() is not None

    @contextlib.contextmanager
    def watched(self):
        """Inside, one watchdog does for all runs."""
        if self.watchdog:
            yield self.watchdog
            return
        self.watchdog = Watchdog(self.timeout)
        try:
            yield self.watchdog
        finally:
            self.watchdog.stop()
            self.watchdog = None

    def contents(self):
        """A digest of what the kernel's writeable arrays hold."""
        digests = (hashlib.sha256(array.tobytes()).digest() for array, _ in self.saved)
        return hashlib.sha256(b"".join(digests)).digest()  # the same in every process

    def run(self, seed, landing, trace, report):
        """One schedule, on the arguments as they were; adds to ``report``, returns the Execution."""
        if self.only is None and self.blocks > MOST_BLOCKS * self.timeout:
            what = f"{self.blocks:,} blocks, of which the engine runs fewer than {MOST_BLOCKS:,} a second, and "
            fault = faults.Unfinished(f"{what}timeout is {self.timeout:g} s")
            fault.cure = "Launch fewer blocks, name some by only=, or raise `timeout`."
            raise fault
        if isinstance(seed, Schedule) and seed.block >= self.clusters:
            what = "block" if self.clusters == self.blocks else "cluster"
            raise ValueError(f"seed={str(seed)!r} is of {what} {seed.block}, and there are {self.clusters}")
        raised = None
        while True:
            if self.again:
                for array, before in self.saved:
                    array[...] = before
            self.again = True
            execution = Execution(self, seed, landing, trace)
            try:
                self._run(execution, report)
                if self.request:
                    self.request.check(execution.globals.writer_of)
            except Bailout:
                self.compiled, self.why_interpreted = False, GAVE_UP
                continue
            except Restart:
                continue
            except BadSchedule as error:
                raise ValueError(str(error)) from None
            except Exception as error:
                if execution.machine:  # what to say of it, and whether it is a fault, is for the interpreter
                    self.compiled, is_fault = False, isinstance(error, faults.SimFault)
                    raised = None if is_fault else traceback.format_exc()
                    continue
                if isinstance(error, faults.WrongResult):
                    error.remarks = execution.load_checks.remarks()
                if isinstance(error, faults.SimFault):
                    error.seed = str(seed) if isinstance(seed, Schedule) else seed
                    error.landing, error.basis = landing, execution.basis
                    translate(error, self.kernel.language)
                raise
            finally:
                if execution.machine:
                    execution.machine.close()
            FAILURES.extend([raised] if raised else ())
            return execution

    def _run(self, execution, report):
        triples = zip(self.args, self.names, self.kinds, strict=True)
        prepared = [arguments.prepared(execution, *triple) for triple in triples]
        held = {id(v): arguments.prepared(execution, array, name, None) for name, v, array in self.kernel.held}
        code = self.program.entry(execution, held)
        with self.watched() as watchdog:
            try:
                try:
                    watchdog.start(execution)
                    with np.errstate(all="ignore"), short_collections():  # a GPU does not warn either
                        blocks = ResidentBlocks(execution, code, prepared, self.shared_bytes).run()
                finally:
                    watchdog.rest()
            except OutOfTime as error:
                raise watchdog.fault(execution, error) from None
        if execution.told_at_the_end:
            raise execution.told_at_the_end
        report.touched = execution.globals.touched() if self.kernel.by_bytes else []
        report.unset = execution.globals.unset() if self.kernel.unset else []
        report.copies += execution.copies_issued
        report.notes |= dict.fromkeys([*execution.load_checks.swizzled(), *filter(None, [execution.basis])])
        report.waived = waivers.added(report.waived, execution.waived.totals())
        for switches, cycles, static_bytes, uses in blocks:
            report.uses = max(report.uses, uses)
            report.switches += switches
            report.cycles = max(report.cycles, cycles)
            report.shared_bytes = max(report.shared_bytes, static_bytes + self.shared_bytes)


def check_integers(**numbers):
    """Refuse what is not a whole number."""
    for name, number in numbers.items():
        if not isinstance(number, (int, np.integer)):
            raise ValueError(f"{name}={number!r} must be an integer")

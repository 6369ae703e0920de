"""Machine code without a GPU: a kernel's SASS is listed, run, and every instruction and address counted.

    from numba_deform.engines.sass import emulate
    run = emulate(copy(stages=4))       # a Launch; its outputs are written and compared
    run.counts.total("executed")

``listing`` reads what the assembler made; ``operands`` and ``table`` make functions of instructions, by the
rows of ``integers``, ``floats``, ``lanes``, ``accesses``, ``barriers``, ``matrix``; ``flow`` moves lanes;
``machine`` runs blocks; ``counters`` has the models of wavefronts, sectors and L1. It judges nothing: for that
there is ``engines.cpu``, whose results it has to have."""

from dataclasses import dataclass, replace

from ...compiler.build import ARCHITECTURE
from ..launches import Launch
from .counters import Counts
from .listing import Listing, listing
from .machine import LIMIT, Failed, Machine, Stuck
from .operands import Unknown

__all__ = ["Counts", "Failed", "Listing", "Machine", "Run", "Stuck", "Unknown", "emulate", "listing"]


@dataclass(frozen=True, eq=False)
class Run:
    """What was run: the kernel, its listing, the counts of each instruction, and of ``blocks`` how many ran."""

    kernel: object
    listing: Listing
    counts: Counts
    blocks: int
    ran: int
    resident: int

    def with_more(self, other):
        """Both runs of one kernel together."""
        counts = self.counts + other.counts
        return replace(self, counts=counts, blocks=self.blocks + other.blocks, ran=self.ran + other.ran)


def emulate(kernel, grid=None, args=(), shared_bytes=None, cluster=None, only=None, limit=LIMIT, block=None):
    """Run the machine code for Hopper of a ``compiler.Kernel``, or of one from ``from_ptx`` and ``from_cuda``,
    and return a :class:`Run`.

    ``grid``, ``block``, ``args``, ``shared_bytes`` and ``cluster`` as for ``engines.cpu.simulate``; in place of
    all of these stands a Launch, whose outputs are poisoned before and compared after. ``only``: numbers of the
    clusters that run (of blocks, where there are none), to count a part of a large grid; then nothing is
    compared.

    Raises Failed for what the emulator does not know, by the instruction and its line, Stuck where no warp can
    go on, or ``limit`` instructions have run, WrongResult, CudaMissing and ToolMissing."""
    launch = kernel if isinstance(kernel, Launch) else None
    if launch:
        launch.prepare()
        kernel, grid, args, cluster = launch.kernel, launch.grid, launch.args, launch.cluster
    shared = kernel.shared_bytes if shared_bytes is None else shared_bytes
    block = block or kernel.block or getattr(kernel, "threads", 0)
    if not block:
        raise ValueError(f"block= is missing: {kernel.name} does not say for how many threads it is")
    code = listing(kernel, ARCHITECTURE)
    machine = Machine(code, kernel, list(args), grid, block, shared, cluster)
    counts = machine.run(only and frozenset(only), limit)
    if launch and only is None:
        launch.check()
    ran = machine.blocks if only is None else len(only)
    return Run(kernel, code, counts, machine.blocks, ran, machine.resident)

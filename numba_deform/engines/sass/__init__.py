"""Machine code without a GPU: a kernel's SASS is listed, run, and every instruction and address counted.

    from numba_deform.engines.sass import emulate
    run = emulate(copy(stages=4))       # a Launch; its outputs are written and compared
    run.counts.total("executed")

``listing`` reads what the assembler made; ``operands`` and ``table`` make functions of instructions, by the
rows of ``integers``, ``floats``, ``lanes``, ``accesses``, ``barriers``, ``matrix``; ``flow`` moves lanes;
``warps`` has registers; ``machine`` runs blocks; ``counters`` has the models of wavefronts, sectors and L1.
``traces`` keeps what each warp did, ``sm`` plays it again in time, by the numbers of ``units``. It judges
nothing: for that there is ``engines.cpu``, whose results it has to have."""

from dataclasses import dataclass, replace

from ...compiler.build import ARCHITECTURE, Kernel
from ...device.limits import HOPPER
from ..launches import Launch, oldest_gpu
from .counters import Counts
from .listing import Listing, listing
from .machine import LIMIT, ONE_SM, Failed, Machine, Stuck
from .operands import Unknown
from .traces import traces_of

__all__ = ["ONE_SM", "Counts", "Failed", "Listing", "Machine", "Run", "Stuck", "Unknown", "emulate", "listing"]


@dataclass(frozen=True, eq=False)
class Run:
    """What was run: the kernel, its listing, the counts of each instruction, and of ``blocks`` how many ran;
    ``traces``: what the warps of one SM did, if it was asked for."""

    kernel: object
    listing: Listing
    counts: Counts
    blocks: int
    ran: int
    resident: int
    traces: object = None

    def with_more(self, other):
        """Both runs of one kernel together."""
        counts = self.counts + other.counts
        return replace(self, counts=counts, blocks=self.blocks + other.blocks, ran=self.ran + other.ran)


def emulate(kernel, grid=None, args=(), shared_bytes=None, cluster=None, only=None, limit=LIMIT, block=None,
            traced=False, enough=None):  # fmt: skip
    """Run the machine code for Hopper of a ``compiler.Kernel``, or of one from ``from_ptx`` and ``from_cuda``,
    and return a :class:`Run`.

    ``grid``, ``block``, ``args``, ``shared_bytes`` and ``cluster`` as for ``engines.cpu.simulate``; in place of
    all of these stands a Launch, whose outputs are poisoned before and compared after, if all blocks run.
    ``only``: numbers of the clusters that run (of blocks, where there are none), to count a part of a large
    grid, or ONE_SM: those that ``Machine.part`` says. ``traced``: keep what the model of time needs, of the
    first block's SM, or its cluster's SMs. After ``enough`` instructions no further block begins, but as many
    as an SM holds do.

    Raises Failed for what the emulator does not know, by the instruction and its line, Stuck where no warp can
    go on, or ``limit`` instructions have run, WrongResult, CudaMissing and ToolMissing."""
    launch = kernel if isinstance(kernel, Launch) else None
    if launch:
        launch.prepare()
        kernel, grid, args, cluster = launch.kernel, launch.grid, launch.args, launch.cluster
    shared = kernel.shared_bytes if shared_bytes is None else shared_bytes
    block = block or kernel.block or kernel.threads
    if not block:
        raise ValueError(f"block= is missing: {kernel.name} does not say for how many threads it is")
    if isinstance(kernel, Kernel) and oldest_gpu(kernel) > HOPPER:
        why = f"the emulator knows machine code of {ARCHITECTURE}"
        raise ValueError(f"{kernel.name} has tcgen05, which is neither profiled nor predicted: {why}")
    code = listing(kernel, ARCHITECTURE)
    machine = Machine(code, kernel, list(args), grid, block, shared, cluster, traced)
    if only == ONE_SM:
        only, enough = machine.part()
    counts = machine.run(only and frozenset(only), limit, enough)
    if launch and machine.ran == machine.blocks:
        launch.check()
    traces = traces_of(machine) if traced else None
    return Run(kernel, code, counts, machine.blocks, machine.ran, machine.resident, traces)

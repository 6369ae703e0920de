"""One run of a grid, by one schedule: ``PreparedLaunch`` makes it, blocks refer to it."""

import math

from ....device.limits import resident_blocks
from ... import faults
from ...launches import History
from ...waivers import Waived
from .. import explain
from ..frontends import arguments
from ..machine.block import Block
from ..machine.cluster import Cluster
from ..machine.cross_block_barrier import GridBarrier
from ..memory.global_memory import GlobalMemory
from ..memory.same_value import SameValue
from ..memory.shadow_memory import unjudged
from ..native.state.block import NativeBlock
from ..native.state.requests import RequestHandler
from .choices import Schedule
from .controlled_block import ControlledBlock
from .controlled_cluster import ControlledCluster


class Execution:
    """State of one run of a grid."""

    explain = explain  # which words faults, for those who find them in the rooms below it

    def __init__(self, launch, seed, landing, trace):
        self.blocks, self.threads, self.seed, self.landing = launch.blocks, launch.threads, seed, landing
        self.function, self.only = launch.kernel.plain, launch.only
        self.language = launch.kernel.language
        self.history = getattr(launch.kernel, "history", History())
        self.ended = launch.progress or (lambda blocks: None)
        self.grid_shape, self.block_shape, self.cluster_shape = launch.shapes
        self.cluster_size, self.resident = math.prod(self.cluster_shape), launch.resident
        self.shared_bytes, self.layout, self.grid_barrier = launch.shared_bytes, launch.kernel.shared, None
        self.shared_alignment = launch.kernel.shared_alignment
        self.load_checks = explain.LoadChecks(self)
        self.basis = None  # what a verdict stands on, where that is less than a GPU
        self.by_choice = by_choice = isinstance(seed, Schedule)
        self.block_type = ControlledBlock if by_choice else Block
        self.cluster_type = ControlledCluster if by_choice else Cluster
        names = *launch.names, *(name for name, _, _ in launch.kernel.held)
        extents = arguments.extents(launch.arrays, names, launch.by_address)
        launch.traces.update(extent.start for extent in extents if launch.kernel.by_bytes)
        reasons = {"a schedule of explore": by_choice, "trace": trace, "a cluster": self.cluster_size > 1}
        reason = next((reason for reason, holds in reasons.items() if holds), "")
        code = None if reason else launch.code()
        if reason and launch.compiled:
            launch.why_interpreted = f"{reason} is the interpreter's"
        self.machine = code and RequestHandler(code, self, launch.program.models(self))
        self.globals = GlobalMemory(extents, launch.traces, code and self.machine.region)
        if code:
            self.block_type = NativeBlock
        # What machine code stores is not looked at: a race in it is for the interpreter.
        apart = {"same-value"} if code else set()
        emitted = frozenset() if launch.unjudged else getattr(launch.kernel, "emitted", frozenset())
        self.waived = Waived(launch.waive - apart, emitted - apart)
        self.watch = watch = unjudged if launch.unjudged else lambda memory: memory
        if "same-value" in self.waived.names:
            self.watch = SameValue().watch
        for region in self.globals.regions:
            (self.watch if "same-value" in self.waived.asked else watch)(region)
            region.forget(launch.kernel.unset)
        self.is_slow = (lambda blocks: False) if reason else launch.is_slow
        maps = arguments.maps_of(launch.args)
        self.tensor_maps = {address: tensor for a in maps for address, tensor in a.intact().items()}
        self.looks, self.places = launch.looks, launch.places
        self.tireless = set()  # places at which threads look on and on, and do not give up
        self.events = [] if trace else None
        self.registers, self.copies_issued = launch.registers, 0
        self.running = None
        self.told_at_the_end = None  # a fault that leaves the run as it is, and others the first word
        self.unhurried = False  # whether somebody looks at it in a debugger
        self.is_telling = False  # whether a fault has been met, and is told once others have come

    def room(self, block):
        """How many blocks such as ``block`` are there at once."""
        return self.resident or resident_blocks(self.threads, block.shared.static_bytes + self.shared_bytes)

    def sync_grid(self, thread):
        """``this_grid().sync()``: a barrier of all threads of the grid, which have to be there at once."""
        room = self.room(thread.block)
        if self.blocks > room:
            what = f"this_grid().sync() of {self.blocks} blocks, of which {room} have room at once"
            rule = "All blocks of a grid with a barrier of its own are there at once: a cooperative "
            rule += "launch of more is refused (CUDA guide, cooperative groups, grid synchronization)."
            raise thread.fault(faults.NotResident, what, rule=rule)
        if self.grid_barrier is None:
            count = self.blocks * self.threads
            self.grid_barrier = GridBarrier(count, self.waived)
        self.grid_barrier.arrive(thread)
        self.grid_barrier.wait(thread)

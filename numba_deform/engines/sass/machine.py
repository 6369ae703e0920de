"""Blocks of a launch on the emulator: memory at once; counters of every instruction.

The warps of a block, or of a cluster, are a squad. Each step runs the lanes with the lowest program counter, of
all its warps at once: that costs little more than one warp alone, and brings warps together again after a
branch. What uses memory or moves lanes each warp does by itself. All go on until they wait, at
most TURN instructions, so that those that poll memory do not run for ever. A squad that takes long shares the
machine with the next one, as on a GPU. Nothing is judged: the CPU engine does that."""

import math
from collections import defaultdict

import numpy as np

from ...device.limits import HOPPER, LIMITS, QUARTER_REGISTERS, QUARTERS
from ..shapes import clusters, shape_of
from ..tensormap.boxes import swizzle_offsets
from . import barriers, floats, lanes, matrix  # noqa: F401  their rows are in the table
from .accesses import mask_of
from .counters import L1, Counts
from .flow import AGAIN, STOP, Meeting, flow_of, go_apart
from .memory import OWN_WINDOW, RESERVED, WINDOW, Global, OutsideMemory, Space, parameters
from .operands import U32, U64, Unknown
from .table import is_shared, step_of
from .traces import Traced
from .units import SMS
from .warps import Squad

TURN, PATIENCE, LIMIT = 500, 64, 100_000_000
ONE_SM, ENOUGH = "one SM", 1_000_000  # which blocks run; instructions of warps that stand for a large grid
IN_CLUSTERS = 0x140  # where constant bank 0 says whether a launch has clusters


class Stuck(ValueError):
    """No warp can go on."""


class Failed(ValueError):
    """An instruction cannot be run; the text names it and its line."""


class Shared(Space):
    """A block's shared memory; ``kind`` is what its accesses count as."""

    kind = "shared"

    def get(self, offset, size, swizzle="none"):
        """So many bytes as the copy engine reads them."""
        return self.bytes[self._at(offset, size, swizzle)].copy()

    def put(self, offset, data, swizzle="none", change=None):
        """Write bytes as the copy engine does; ``change`` makes what is written of what is there and them."""
        places = self._at(offset, len(data), swizzle)
        if change is not None:
            data = np.frombuffer(change(self.bytes[places], data), np.uint8)
        self.bytes[places] = data

    def _at(self, offset, size, swizzle):
        """Where these bytes are, as an index."""
        if not 0 <= offset <= self.size - size:
            raise OutsideMemory(f"{size} bytes at {offset:#x}")
        return slice(offset, offset + size) if swizzle == "none" else \
            offset + swizzle_offsets(size, swizzle, offset)  # fmt: skip


class Heap(Shared, Global):
    """Global memory."""

    kind = "global"


class Block:
    def __init__(self, machine, number, rank, cluster, meeting, l1):
        self.machine, self.number, self.rank, self.cluster = machine, number, rank, cluster
        self.cluster_meeting, self.l1, self.warps = meeting, l1, []
        self.entry, self.steps = machine.listing.entry, machine.steps
        self.counts, self.memory = machine.counts, machine.memory
        x, y, _ = machine.grid
        self.place = number % x, number // x % y, number // (x * y)
        self.shared = Shared(machine.shared_bytes)
        self.mbarriers, self.meetings, self.thread_places = {}, {}, machine.thread_places
        self.registers = 0  # of each lane of a warp, that setmaxnreg has given up and nobody has taken

    def threads_alive(self):
        return sum(w.alive for w in self.warps)

    def meeting(self, number):
        if number not in self.meetings:
            self.meetings[number] = Meeting(self.threads_alive)
        return self.meetings[number]

    # --- memory ---------------------------------------------------------------------------------------
    def space_of(self, address, rank=None):
        """The shared memory of the block whose rank is in the address, or is given."""
        rank = address >> 24 if rank is None else rank
        if rank >= len(self.cluster):
            raise OutsideMemory(f"shared memory of block {rank} of a cluster of {len(self.cluster)}")
        return self.cluster[rank].shared

    def barriers(self, address):
        self.space_of(address)
        return self.cluster[address >> 24].mbarriers

    def barrier(self, one, address):
        found = self.barriers(address).get(address & 0xFFFFFF)
        if found is None:
            raise OutsideMemory(f"an mbarrier at {address:#x}: none is initialised there")
        return found

    def resolved(self, w, space, addresses, numbers):
        """[(memory, addresses there, which of the lanes with these ``numbers``)]: addresses say in which
        memory."""
        if space == "local":
            starts = (numbers * self.machine.listing.local).astype(U64)
            return [(w.local, addresses + starts, numbers)]
        if space == "generic":
            high = addresses >> U64(32)
            inside, own = high == WINDOW, high == OWN_WINDOW
            places = np.where(own, addresses & U64(0xFFFFFFFF), addresses)
            kinds = (inside, "shared"), (own, "local"), (~inside & ~own, "global")
            groups = [(name, places[on], numbers[on]) for on, name in kinds if on.any()]
            return [part for group in groups for part in self.resolved(w, *group)]
        if space == "global":
            return [(self.memory, addresses, numbers)]
        ranks, offsets = addresses >> U64(24) & U64(0xFF), addresses & U64(0xFFFFFF)
        first = int(ranks[0])
        if (ranks == first).all():
            return [(self.space_of(0, first), offsets, numbers)]
        return [(self.space_of(0, int(r)), offsets[ranks == r], numbers[ranks == r]) for r in np.unique(ranks)]

    def access(self, one, w, space, addresses, mask, size, kind, values=None):
        """Read or write ``size`` bytes of each of these lanes, and count it. What was read: (lanes, words)."""
        addresses = np.broadcast_to(addresses, (32,))
        numbers, words = np.flatnonzero(mask), np.zeros((32, max(size // 4, 1)), U32)
        if values is not None:
            words[numbers] = values
        for memory, places, chosen in self.resolved(w, space, addresses[numbers], numbers):
            counted = w.interleaved(places, chosen, size) if memory.kind == "local" else places
            self.counts.access(one, kind, memory.kind, counted, mask_of(chosen), size)
            if values is None:
                words[chosen] = memory.read(places, size)
            else:
                memory.write(places, size, words[chosen])
        return words[numbers]


class Machine:
    """A launch ready to run: its kernel and :class:`listing.Listing`, what it is launched on, and what is
    counted.

    ``resident``: blocks that an SM holds at once; ``traced``: those of one SM, whose warps' ``trace`` is kept
    if it is asked for, else None."""

    def __init__(self, listing, kernel, args, grid, block, shared_bytes=0, cluster=None, traced=False):
        self.listing, self.grid, shape = listing, shape_of("grid", grid), shape_of("block", block)
        self.cluster = shape_of("cluster", 1 if cluster is None else cluster)
        self.threads, self.blocks = math.prod(shape), math.prod(self.grid)
        self.memory = Heap(args, listing.variables[0])
        self.shared_bytes = max(listing.shared, RESERVED) + shared_bytes
        self.resident = resident(listing.registers, self.threads, self.shared_bytes)
        self.traced, self.ran, self.first = [] if traced else None, 0, None
        self.counts, self.l1 = Counts(len(listing)), {}
        if traced:
            starts = sorted(self.memory.base + offset for offset, *_ in self.memory.parts.values())
            self.counts = Traced(len(listing), starts)
        self.executed, self.lanes, self.divergent = ([0] * len(listing) for _ in range(3))
        self.thread_places = [np.asarray(part, U32) for part in _places(shape)]
        bank = parameters(kernel, args, self.memory)
        bank = _with_sizes(bank, shape, self.grid, listing.local, shared_bytes)
        bank[IN_CLUSTERS] = math.prod(self.cluster) > 1
        self.bank = self.memory.hold(bank)
        self.steps = [_lazily(one, self.constant) for one in listing]
        self.flows = [flow_of(one) for one in listing]
        self.shared_ends = _shared_ends([flow_of(one) is None and is_shared(one) for one in listing])

    def constant(self, bank, offset, size):
        """The bytes of a constant as an int; ``bank`` is a number, or a module's variable: its address."""
        if isinstance(bank, str):
            section, at = self.listing.variables[1].get(bank, ("", 0))
            if section not in self.memory.starts:
                raise Unknown(f"variable {bank}")
            return self.memory.starts[section] + at + offset
        names = [name for name in self.listing.constants if name.startswith(f".nv.constant{bank}")]
        data = self.bank if bank == 0 else self.listing.constants[names[0]] if names else b""
        if offset + size > len(data) + 3:  # the low part of a word may be all that is asked for
            raise Unknown(f"constant c[{bank:#x}][{offset:#x}]")
        return int.from_bytes(data[offset : offset + size], "little")

    def clock(self):
        return sum(self.executed) & 0xFFFFFFFF

    def run(self, only=None, limit=LIMIT, enough=None):
        """Run all blocks, or those clusters (by number) alone; writes the arrays. After ``enough`` instructions
        no further block begins; ``ran``: how many have. Raises Failed, Stuck, also after ``limit``
        instructions."""
        waiting = enumerate(clusters(self.grid, self.cluster))
        waiting = (pair for pair in waiting if only is None or pair[0] in only)
        running, rounds = [], 0
        with np.errstate(all="ignore"):
            while True:
                moved = any([self._turn(squad) for squad in running])
                moved = moved or any([go_apart(w) for squad in running for w in squad.warps])
                running = [squad for squad in running if any(w.groups for w in squad.warps)]
                rounds += 1
                if rounds % PATIENCE == 0 and sum(self.executed) > limit:
                    raise Stuck(f"after {limit:,} instructions of warps, which is the limit, {self.ran:,} of "
                                f"{self.blocks:,} blocks have begun: give the kernel less work, fewer blocks "
                                f"(only=0) or a higher limit=; or it waits for what never comes, at "
                                f"{self._told(running)}")  # fmt: skip
                if not running or not moved or rounds % PATIENCE == 0:
                    more = enough is None or self.ran < self.resident or sum(self.executed) < enough
                    squad = self._started(waiting) if more else None
                    running += [squad] if squad else []
                    if not running:
                        break
                    if not moved and not squad:
                        raise Stuck(f"no warp can go on: {self._told(running)}")
        counted = {"executed": self.executed, "threads": self.lanes, "divergent": self.divergent}
        for name, values in counted.items():
            setattr(self.counts, name, np.array(values, np.int64))
        self.memory.copy_back()
        return self.counts

    def part(self):
        """(the numbers of the clusters that stand for a large grid, ENOUGH), (None, None) where all run: of a
        grid that all SMs do not hold at once the first SM's. Where time is asked for, which is that SM's, a
        grid with a block for each SM is large."""
        size = math.prod(self.cluster)
        held = SMS // size * size * self.resident
        if self.blocks < SMS if self.traced is not None else self.blocks <= held:
            return None, None
        return range(0, self.blocks // size, SMS // size), ENOUGH if self.blocks > held else None

    def _started(self, waiting):
        """The squad of the next cluster, or None."""
        number, numbers = next(waiting, (0, ()))
        if not numbers:
            return None
        if number % SMS not in self.l1:
            self.l1[number % SMS] = L1(self.resident * self.shared_bytes)
        blocks, self.ran = [], self.ran + len(numbers)
        meeting = Meeting(lambda: sum(block.threads_alive() for block in blocks))
        l1 = self.l1[number % SMS]
        blocks += [Block(self, number, rank, blocks, meeting, l1) for rank, number in enumerate(numbers)]
        self.first = number if self.first is None else self.first
        if self.traced is not None and (number - self.first) % (SMS // len(numbers)) == 0:
            self.traced += blocks
        return Squad(blocks, self.threads)

    def _turn(self, squad):
        """Let the lanes of a squad go on; whether any can."""
        ready = defaultdict(list)
        for w in squad.warps:
            for group in w.groups:
                if group.wait is None or group.wait():
                    group.wait, group.left, group.queued = None, TURN, True
                    if group.owed:
                        self.counts.resumed(w.trace, *group.owed)
                        group.owed = None
                    ready[group.pc].append((w, group))
        moved = bool(ready)
        while ready:
            pc = min(ready)
            members = ready.pop(pc)
            if self.shared_ends[pc] > pc:
                end = min(ready, default=len(self.steps))
                if len({w.row for w, _ in members}) < len(members):  # lanes of one warp that have not met
                    members, ready[pc] = members[:1], members[1:]
                self._together(squad, pc, members, end)
            else:
                members = [(w, one) for w, group in members for one in self._alone(w, group)]
            for w, group in members:
                group.queued = group.left > 0
                if group.queued:
                    ready[group.pc].append((w, group))
        return moved

    def _together(self, squad, pc, members, end):
        """Lanes of different warps, from one place to where some warp is, or has to go on by itself."""
        end = min(end, self.shared_ends[pc], pc + min(group.left for _, group in members))
        if len(members) == 1:
            target = members[0][0]
            target.mask = members[0][1].mask
        else:
            target, squad.mask = squad, np.zeros_like(squad.mask)
            for w, group in members:
                squad.mask[w.row] = group.mask
        count, threads = len(members), sum(group.count for _, group in members)
        partly = sum(group.count < w.alive for w, group in members)
        for at in range(pc, end):
            try:
                self.steps[at](target)
            except (Unknown, OutsideMemory, IndexError, KeyError) as error:
                raise Failed(f"{self.listing.code[at].told()}: {error}") from error
            self.executed[at] += count
            self.lanes[at] += threads
            self.divergent[at] += partly
        for w, group in members:
            group.pc, group.left = end, group.left - (end - pc)
            if self.traced is not None:
                w.trace.extend(range(pc, end))

    def _alone(self, w, group):
        """One instruction of a warp; returns which of its lanes can go on."""
        pc, w.mask, flow, count, alive = group.pc, group.mask, self.flows[group.pc], group.count, w.alive
        self.counts.l1 = w.block.l1
        try:
            if flow is None:
                self.steps[pc](w)
                group.pc, stop = pc + 1, None
            else:
                stop = flow(w, group)
        except (Unknown, OutsideMemory, IndexError, KeyError) as error:
            raise Failed(f"{self.listing.code[pc].told()}: {error}") from error
        group.left -= 1
        if stop is not AGAIN:
            self.executed[pc] += 1
            self.lanes[pc] += count
            self.divergent[pc] += count < alive
            if self.traced is not None:
                self.counts.noted(w.trace, pc)
        group.queued = False
        if flow is None:
            return [group]
        found = [one for one in w.groups if one.wait is None and not one.queued]
        for one in found:
            one.left = group.left if one.left is None else one.left
            if one is group and stop is STOP:  # it has let others go on, who are to go with it
                one.left = 0
        return found

    def _told(self, running):
        code = self.listing.code
        warps = [w for squad in running for w in squad.warps]
        groups = [(w.block.number, w.number, group) for w in warps for group in w.groups]
        at = [f"block {b} warp {w} at {code[group.pc].told()}" for b, w, group in groups]
        return "; ".join(at[:8])


def _lazily(one, constants):
    """The step of an instruction, made when it first runs: what never runs need not be known."""
    made = []

    def step(w):
        if not made:
            made.append(step_of(one, constants))
        made[0](w)

    return step


def _shared_ends(shared):
    """Of each instruction, where the shared ones from it on end; its own number, if it is none."""
    ends = list(range(len(shared)))
    for at in reversed(ends):
        if shared[at]:
            ends[at] = ends[at + 1] if at + 1 < len(shared) and shared[at + 1] else at + 1
    return ends


def _places(shape):
    """(x, y, z) of every thread of a block, and of some more."""
    number = np.arange(-(-math.prod(shape) // 32) * 32)
    return number % shape[0], number // shape[0] % shape[1], number // (shape[0] * shape[1])


def _with_sizes(bank, shape, grid, local, dynamic):
    """Bank 0 begins with the sizes of block and grid; the stack ends where local memory does."""
    bank[:24] = np.array([*shape, *grid], U32).tobytes()
    bank[0x20:0x28] = (OWN_WINDOW << 32).to_bytes(8, "little")
    bank[0x28:0x30] = np.array([local, dynamic], U32).tobytes()
    return bank


def resident(registers, threads, shared):
    """Blocks that an SM of Hopper holds at once; registers go to warps in steps of 256, a quarter of an SM at a
    time. ``shared``: bytes of a block, with the system's."""
    limits, warps = LIMITS[HOPPER], -(-threads // 32)
    per_warp = -(-max(registers, 1) * 32 // 256) * 256
    by_registers = QUARTER_REGISTERS // per_warp * QUARTERS // warps
    return max(1, min(by_registers, limits.shared // shared, limits.warps // warps, limits.blocks))

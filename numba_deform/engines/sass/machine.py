"""Blocks of a launch on the emulator: warps in turn, memory at once; counters of every instruction.

A warp runs until it waits, at most TURN instructions, so that one that polls memory does not run for ever. A
block that takes long shares the machine with those after it, as on a GPU. Nothing is judged: the CPU engine
does that."""

import itertools
import math

import numpy as np

from ...device.limits import HOPPER, LIMITS, QUARTER_REGISTERS, QUARTERS
from ..shapes import clusters, shape_of
from ..tensormap.boxes import swizzle_offsets
from . import barriers, floats, lanes, matrix  # noqa: F401  their rows are in the table
from .accesses import mask_of
from .counters import L1, Counts
from .flow import AGAIN, Group, Meeting, flow_of, go_apart
from .memory import OWN_WINDOW, RESERVED, WINDOW, Global, OutsideMemory, Space, parameters
from .operands import U32, U64, Unknown
from .table import step_of
from .traces import Traced
from .units import SMS

TURN, PATIENCE, LIMIT = 500, 64, 100_000_000
LANES = np.arange(32)
IN_CLUSTERS = 0x140  # where constant bank 0 says whether a launch has clusters
MASKS = {"SR_LTMASK": lambda i: (1 << i) - 1, "SR_LEMASK": lambda i: (2 << i) - 1,
         "SR_EQMASK": lambda i: 1 << i, "SR_GTMASK": lambda i: 0xFFFFFFFF & -(2 << i),
         "SR_GEMASK": lambda i: 0xFFFFFFFF & -(1 << i)}  # fmt: skip
AXES = "XYZ"


class Stuck(ValueError):
    """No warp can go on."""


class Failed(ValueError):
    """An instruction cannot be run; the text names it and its line."""


class Warp:
    """Registers of a warp, and where its lanes are."""

    def __init__(self, number, block, threads):
        self.number, self.block = number, block
        self.r, self.p = np.zeros((260, 32), U32), np.zeros((8, 32), bool)
        self.u, self.up = np.zeros((66, 1), U32), np.zeros((8, 1), bool)
        self.p[7], self.up[7] = True, True
        alive = 32 * number + LANES < threads
        self.groups, self.exited, self.alive = [Group(alive, block.entry)], ~alive, int(alive.sum())
        self.joins, self.reduced, self.ticket = {}, None, 0
        self.mask = self.active = alive
        self.local = Space(32 * block.machine.listing.local + 16)
        self.trace = []

    def special(self, name):
        """A special register."""
        block, kind = self.block, name.rpartition(".")
        if kind[0] == "SR_TID":
            return block.thread_places[AXES.index(kind[2])][32 * self.number + LANES]
        if kind[0] == "SR_CTAID":
            return np.array([block.place[AXES.index(kind[2])]], U32)
        if name in MASKS:
            return np.array([MASKS[name](i) for i in range(32)], U32)
        single = {"SRZ": 0, "SR_CgaCtaId": block.rank, "SR_SWINHI": WINDOW, "SR_CLOCKHI": 0,
                  "SR_GLOBALTIMERHI": 0}  # fmt: skip
        if name in ("SR_CLOCKLO", "SR_GLOBALTIMERLO"):
            return np.array([block.machine.clock()], U32)
        if name == "SR_LANEID":
            return LANES.astype(U32)
        if name not in single:
            raise Unknown(f"special register {name}")
        return np.array([single[name]], U32)


class Shared(Space):
    """A block's shared memory; ``kind`` is what its accesses count as."""

    kind = "shared"

    def get(self, offset, size, swizzle="none"):
        """So many bytes as the copy engine reads them."""
        self._check(offset, size)
        return self.bytes[offset + swizzle_offsets(size, swizzle, offset)] if swizzle != "none" else \
            self.bytes[offset : offset + size].copy()  # fmt: skip

    def put(self, offset, data, swizzle="none", change=None):
        """Write bytes as the copy engine does; ``change`` makes of what is there and of them what is
        written."""
        self._check(offset, len(data))
        places = offset + swizzle_offsets(len(data), swizzle, offset) if swizzle != "none" else \
            slice(offset, offset + len(data))  # fmt: skip
        self.bytes[places] = (
            data if change is None else change(self.bytes[places].copy(), np.ascontiguousarray(data))
        )

    def _check(self, offset, size):
        if not 0 <= offset <= self.size - size:
            raise OutsideMemory(f"{size} bytes at {offset:#x}")


class Heap(Shared, Global):
    """Global memory."""

    kind = "global"


class Block:
    def __init__(self, machine, number, rank, cluster, meeting):
        self.machine, self.number, self.rank, self.cluster, self.cluster_meeting = (
            machine,
            number,
            rank,
            cluster,
            meeting,
        )
        self.entry, self.steps, self.counts, self.memory = (
            machine.listing.entry,
            machine.steps,
            machine.counts,
            machine.memory,
        )
        x, y, _ = machine.grid
        self.place = number % x, number // x % y, number // (x * y)
        self.shared = Shared(machine.shared_bytes)
        self.mbarriers, self.meetings, self.thread_places = {}, {}, machine.thread_places
        self.warps = [Warp(k, self, machine.threads) for k in range(-(-machine.threads // 32))]

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
            if memory.kind != "local":
                self.counts.access(one, kind, memory.kind, places, mask_of(chosen), size)
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
        self.traced, self.ran = [] if traced else None, 0
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

    def constant(self, bank, offset, size):
        """The bytes of a constant as an int; ``bank`` is a number, or a module's variable: its address."""
        if isinstance(bank, str):
            section, at = self.listing.variables[1].get(bank, ("", 0))
            if section not in self.memory.starts:
                raise Unknown(f"variable {bank}")
            return self.memory.starts[section] + at + offset
        names = [name for name in self.listing.constants if name.startswith(f".nv.constant{bank}")]
        data = self.bank if bank == 0 else self.listing.constants[names[0]] if names else b""
        if offset + size > len(data):
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
                moved = any([self._turn(number, blocks) for number, blocks in running])
                moved = moved or any([go_apart(w) for _, blocks in running for b in blocks for w in b.warps])
                running = [pair for pair in running if any(w.groups for b in pair[1] for w in b.warps)]
                rounds += 1
                if rounds % PATIENCE == 0 and sum(self.executed) > limit:
                    raise Stuck(f"after {limit:,} instructions of warps: {self._told(running)}")
                if not running or not moved or rounds % PATIENCE == 0:
                    more = enough is None or self.ran < self.resident or sum(self.executed) < enough
                    started = [(n, self._started(numbers)) for n, numbers in itertools.islice(waiting, more)]
                    running += started
                    if not running:
                        break
                    if not moved and not started:
                        raise Stuck(f"no warp can go on: {self._told(running)}")
        for name, values in (
            ("executed", self.executed),
            ("threads", self.lanes),
            ("divergent", self.divergent),
        ):
            setattr(self.counts, name, np.array(values, np.int64))
        self.memory.copy_back()
        return self.counts

    def _started(self, numbers):
        blocks, self.ran = [], self.ran + len(numbers)
        meeting = Meeting(lambda: sum(block.threads_alive() for block in blocks))
        blocks += [Block(self, number, rank, blocks, meeting) for rank, number in enumerate(numbers)]
        if self.traced is not None and (not self.traced or (self.traced[0].number - numbers[0]) % SMS == 0):
            self.traced += blocks
        return blocks

    def _turn(self, number, blocks):
        """One turn of every warp; whether any has moved."""
        sm, moved = number % SMS, False
        if sm not in self.l1:
            self.l1[sm] = L1(self.resident * self.shared_bytes)
        self.counts.l1 = self.l1[sm]
        for w in [w for block in blocks for w in block.warps]:
            for group in list(w.groups):
                if group in w.groups and (group.wait is None or group.wait()):
                    group.wait, moved = None, True
                    if group.owed:
                        self.counts.resumed(w.trace, *group.owed)
                        group.owed = None
                    self._execute(w, group)
        return moved

    def _execute(self, w, group):
        """One group of a warp, until it waits, ends or parts, or its turn is over."""
        steps, flows, executed, threads = self.steps, self.flows, self.executed, self.lanes
        noted = self.counts.noted if self.traced is not None else None
        for _ in range(TURN):
            pc, w.mask, flow, count = group.pc, group.mask, flows[group.pc], group.count
            try:
                if flow is None:
                    steps[pc](w)
                    group.pc, stop = pc + 1, False
                else:
                    stop = flow(w, group)
            except (Unknown, OutsideMemory, IndexError, KeyError) as error:
                raise Failed(f"{self.listing.code[pc].told()}: {error}") from error
            if stop is AGAIN:
                return
            executed[pc] += 1
            threads[pc] += count
            if count < w.alive:
                self.divergent[pc] += 1
            if noted:
                noted(w.trace, pc)
            if stop:
                return

    def _told(self, running):
        code = self.listing.code
        warps = [w for _, blocks in running for block in blocks for w in block.warps]
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

"""Tensor memory of a Blackwell SM (PTX ISA 9.7.16): 128 lanes of 512 columns of 32 bits. Who has allocated
which columns, what the cells hold, who reads and writes them. ``tcgen05`` has the products. All of it stands on
PTX's text: it has never run beside hardware.

Loads, stores, copies and products are asynchronous. Each is number n of its ``Pipe``, which has an entry in the
block's vector clocks: who reads n there knows that it is over. Loads and stores are over for who has executed
``tcgen05.wait``; copies and products for who has waited on the mbarrier of a ``tcgen05.commit``. That all lanes
have used what they loaded is enough to free its columns, and not to write them (register dependency,
9.7.16.6.4.5). Two blocks of a pair (``cta_group::2``) have tensor memory each, and operations on both.
"""

import functools
from typing import NamedTuple

import numpy as np

from ... import faults
from ..memory.cycle_costs import COST
from ..memory.scalars import WORD, Undefined
from .warp_mma import converged

LANES, COLUMNS = 128, 512
BASIS = "tensor memory is judged by PTX's text alone: no GPU that has it has run this engine's tests"
PATIENCE = 16  # turns that others get
PEER = "the other block of the pair"  # a kind of wait
MANY = 4096  # accesses on record, after which those that no cell remembers are dropped
WAITS = {"ld": "tcgen05.wait::ld", "st": "tcgen05.wait::st"}


def split_address(address):
    """(lane, column) of an address of tensor memory."""
    return int(address) >> 16 & 0xFFFF, int(address) & 0xFFFF


class Pipe:
    """Asynchronous operations of one kind, by one warp or thread. ``commits``: (the last number that one is
    for, its barrier, its site). ``used``: {number of a load: {thread that has used its part: clock}}."""

    def __init__(self, block):
        self.component, self.number = block.new_component(), 1
        self.commits, self.copies, self.used = [], [], {}

    def finish(self, threads, number=None):
        """All that was issued so far, or up to a number, is over for these threads."""
        number = self.number - 1 if number is None else number
        for thread in threads:
            thread.seen[self.component] = max(thread.seen[self.component], number)

    def is_used(self, thread, number):
        """Whether all lanes have used what load ``number`` brought, as far as a thread knows."""
        used = self.used.get(number, ())
        return len(used) == 32 and all(thread.seen[tid] >= used[tid] for tid in used)


class Access(NamedTuple):
    """One operation's access to a rectangle of cells. ``kind``: ld, st, cp or mma."""

    kind: str
    what: str
    thread: object
    site: object
    pipe: Pipe
    number: int
    lanes: tuple
    columns: slice

    def overlaps(self, other):
        columns = self.columns.start < other.columns.stop and other.columns.start < self.columns.stop
        return columns and not {*self.lanes}.isdisjoint(other.lanes)

    def covers(self, other):
        return (self.columns.start <= other.columns.start and other.columns.stop <= self.columns.stop
                and {*self.lanes} >= {*other.lanes})  # fmt: skip

    @property
    def threads(self):
        """Those that execute it: a product's one, or a warp, of which each lane has to know what was before."""
        first = self.thread.tid // 32 * 32
        return [self.thread] if self.kind in ("mma", "cp") else self.thread.block.threads[first : first + 32]

    def is_over(self, thread):
        return thread.knows_shared(self.thread.block, self.pipe.component, self.number)

    def goes_before(self, later):
        """Whether nothing of ``later`` happens before this is over. Of one thread, products of one kind and
        shape into one accumulator follow each other as they are issued, and a product a copy (PTX 9.7.16.6.2).
        A copy follows a product as well: PTX does not list that, and public kernels with scales live by it."""
        kinds = (self.kind, later.kind) if self.thread is later.thread else ()
        pipelined = kinds == ("mma", "mma") and (self.what, self.columns) == (later.what, later.columns)
        pipelined |= "cp" in kinds and {*kinds} <= {"cp", "mma"}
        used = later.kind == "dealloc" and all(self.pipe.is_used(t, self.number) for t in later.threads)
        return pipelined or used or all(map(self.is_over, later.threads))


class Allocation(NamedTuple):
    columns: int
    thread: object
    site: object


class TensorMemory:
    """One block's: it has its SM for itself."""

    def __init__(self, block):
        self.block = block
        block.execution.basis = BASIS
        self.allocations, self.relinquished, self.waiters = {}, None, []  # first column -> Allocation
        self.group, self.calls = None, []  # (cta_group, site) of the first instruction; what takes both blocks
        self.last = COLUMNS  # how many the last allocation was of
        self.cells = np.zeros((LANES, COLUMNS), np.uint32)
        self.writer = np.zeros((LANES, COLUMNS), np.int64)  # number of the Access that wrote a cell last
        self.writes, self.reads, self.count = {}, [], 0
        self.replaced = {}  # number of an Access that wrote -> (those it replaced, Pipes that read these, when)
        self.pipes, self.told = {}, set()  # told: where the address of columns has been stored

    def pipe(self, kind, owner):
        """The Pipe of a warp's loads or stores, or of a thread's products."""
        if (kind, owner) not in self.pipes:
            self.pipes[kind, owner] = Pipe(self.block)
        return self.pipes[kind, owner]

    # --- allocation -------------------------------------------------------------------------------------
    def allocate(self, thread, place, columns, group=1):
        """``tcgen05.alloc`` of a warp, which waits until so many columns are free: their address goes to the
        shared address ``place``."""
        what, columns = f"tcgen05.alloc of {int(columns)} columns", int(columns)
        self.check_group(thread, group)
        converged(thread, what, None, list)
        if thread.lane == 0:
            if columns not in (32, 64, 128, 256, 512):
                cure = "Ask for 32, 64, 128, 256 or 512 columns: the power of two that holds what you need."
                raise thread.fault(faults.TensorMemoryMisuse, what, cure=cure)
            if self.relinquished:
                what += f" after tcgen05.relinquish_alloc_permit at {thread.at(self.relinquished)}"
                cure = "Allocate all columns before the block gives the permit up."
                raise thread.fault(faults.TensorMemoryMisuse, what, cure=cure)
            if columns > self.last:
                cure = f"Allocate the larger number first, or {columns} columns at once."
                what += f" after one of {self.last}: the columns of a block's allocations do not grow"
                raise thread.fault(faults.TensorMemoryMisuse, what, cure=cure)
            self.last = columns
            while (first := self._room(columns)) is None:
                self.waiters.append(thread)
                thread.park("tcgen05.alloc", self, columns)
            if group == 2:
                self._meet_peer(thread, what)
            self.allocations[first] = Allocation(columns, thread, thread.site())
            self.writer[:, first : first + columns] = 0
            thread.store("shared", place, (first,))
            self.told.add(thread.site())
        converged(thread, f"{what}, done", None, lambda brought: self._tell(thread) or [()])

    def _meet_peer(self, thread, what):
        """Wait until the other block of the pair has come to the same instruction."""
        peer = next(b for b in self.block.cluster.pair_of(thread, what, there=False) if b is not self.block)
        other, n = tensor_memory_of(peer), len(self.calls)
        self.calls.append(what)
        other._wake()
        while len(other.calls) <= n:
            self.waiters.append(thread)
            thread.park(PEER, self, peer)
        if other.calls[n] != what:
            cure = "Have a warp of each block of a pair execute the same tcgen05.alloc and dealloc, in order."
            what += f"; block {peer.index}, the other of its pair, executes {other.calls[n]}"
            raise thread.fault(faults.TensorMemoryMisuse, what, cure=cure)

    def _wake(self):
        """Those who wait may go on."""
        self.block.ready.extend(self.waiters)
        self.block.progress += 1
        self.waiters = []

    def check_group(self, thread, group):
        """All instructions of a kernel are for one block, or all for a pair."""
        if self.group is None:
            self.group = group, thread.site()
        if self.group[0] == group:
            return
        what = f"an instruction of cta_group::{group}, and one of cta_group::{self.group[0]} at "
        fault = thread.fault(faults.BadTensorOperand, what + thread.at(self.group[1]))
        fault.rule = "All tcgen05 instructions of a kernel have the same cta_group (PTX 9.7.16)."
        fault.cure = f"Use cta_group::{self.group[0]} here as well, or the other everywhere."
        raise fault

    def _tell(self, thread):
        """What the first lane of a warp has stored for all of them, the others may read."""
        first, *others = self.block.threads[32 * thread.warp : 32 * thread.warp + 32]
        for each in others:
            each.seen[first.tid] = first.clock
        first.tick()

    def _room(self, columns):
        """The first of so many columns that are free, a multiple of their number; None if there are none."""
        taken = np.zeros(COLUMNS, bool)
        for first, each in self.allocations.items():
            taken[first : first + each.columns] = True
        return next((n for n in range(0, COLUMNS, columns) if not taken[n : n + columns].any()), None)

    def free(self, thread, address, columns, group=1):
        """``tcgen05.dealloc`` of a warp."""
        (lane, first), columns = split_address(address), int(columns)
        self.check_group(thread, group)
        what = f"tcgen05.dealloc of {columns} columns at {int(address):#x}"
        converged(thread, what, None, list)
        if thread.lane:
            return
        made = self.allocations.get(first)
        if lane or made is None or made.columns != columns:
            there = [f"{n:#x} ({each.columns} columns)" for n, each in sorted(self.allocations.items())]
            cure = f"Allocated are {', '.join(there) or 'no columns'}: free the address and the number of "
            cure += "columns that tcgen05.alloc was called for, once."
            raise thread.fault(faults.TensorMemoryMisuse, what, cure=cure)
        if group == 2:
            self._meet_peer(thread, what)
        all_of_it = Access("dealloc", what, thread, thread.site(), None, 0, tuple(range(LANES)),
                           slice(first, first + columns))  # fmt: skip
        self._check(all_of_it, writes=True)
        del self.allocations[first]
        self.reads = [read for read in self.reads if not read.overlaps(all_of_it)]
        self._wake()

    def relinquish(self, thread, group=1):
        self.check_group(thread, group)
        converged(thread, "tcgen05.relinquish_alloc_permit", None, list)
        self.relinquished = self.relinquished or thread.site()

    def check_freed(self):
        """At the end of the block: nothing is left."""
        for first, made in self.allocations.items():
            what = f"the block has exited with {made.columns} columns of tensor memory at {first:#x} that were "
            what += "allocated here"
            cure = "Call tcgen05.dealloc in a warp that stays, behind a barrier of all that use it."
            raise made.thread.fault_at(faults.TensorMemoryMisuse, what, made.site, cure=cure)

    def waited(self, kind, columns):
        """What those who wait for columns, or for the other block, wait for: fields of a ``Wait``."""
        if kind == PEER:
            return {
                "on": self.calls[-1], "state": "", "by": (), "missing": f"block {columns.index}, its peer",
                "why": "tcgen05.alloc and dealloc of cta_group::2 take a warp of each",
            }  # fmt: skip
        late = sorted({each.thread.tid for each in self.allocations.values()})
        taken = sum(each.columns for each in self.allocations.values())
        return {
            "on": f"{columns} columns of tensor memory", "state": f"{taken} of {COLUMNS} are allocated",
            "missing": "columns that nobody frees", "by": tuple(late), "why": "by tcgen05.dealloc",
        }  # fmt: skip

    def deadlock(self, kind):
        return faults.TensorMemoryMisuse

    # --- accesses ---------------------------------------------------------------------------------------
    def access(self, access, reads=False, writes=False):
        """Have an access judged, and noted."""
        self._check_inside(access)
        earlier = self._check(access, reads, writes)
        if writes:
            readers = {read.pipe for read in self.reads if read.overlaps(access)}
            was = self.replaced.get(earlier[0] if earlier else 0) if reads else None  # a sum is what it was
            made = [self.writes[n] for n in earlier], readers, access.thread.clock
            self.replaced[self.count + 1] = was or made
            self.reads = [read for read in self.reads if not access.covers(read)]
            self.count += 1
            self.writes[self.count] = access
            self.writer[access.lanes, access.columns] = self.count
            if len(self.writes) > MANY:
                self.writes = {n: self.writes[n] for n in np.unique(self.writer).tolist() if n}
                self.replaced = {n: self.replaced[n] for n in self.writes}
        else:
            again = access.pipe, access.lanes, access.columns
            self.reads = [r for r in self.reads if (r.pipe, r.lanes, r.columns) != again] + [access]

    def _check_inside(self, access):
        first, stop = access.columns.start, access.columns.stop
        if any(n <= first and stop <= n + each.columns for n, each in self.allocations.items()):
            return
        there = [f"{n} to {n + each.columns - 1}" for n, each in sorted(self.allocations.items())]
        what = f"{access.what} of columns {first} to {stop - 1}; allocated are {' and '.join(there) or 'none'}"
        cure = "Take the address that tcgen05.alloc has stored, and stay inside its columns while they last."
        raise access.thread.fault_at(faults.TensorMemoryMisuse, what, access.site, cure=cure)

    def _check(self, access, reads=False, writes=False):
        """The numbers of those that wrote these cells."""
        numbers = np.unique(self.writer[access.lanes, access.columns]).tolist()
        for number in numbers:
            before = self.writes.get(number)
            if before is None and reads:
                raise self.block.explain.unwritten_cell(self, access)
            if before and not before.goes_before(access):
                replaced = self.replaced[number] if reads else None
                raise self.block.explain.cells_in_flight(access, before, "writes", replaced)
        for read in self.reads if writes else ():
            if read.overlaps(access) and not read.goes_before(access):
                raise self.block.explain.cells_in_flight(access, read, "reads")
        return [n for n in numbers if n]

    # --- loads and stores -------------------------------------------------------------------------------
    def load(self, thread, address, shape, count, packed, split, may_go_unused=False):
        """``tcgen05.ld`` of a warp: the words of this lane's registers. Of cells that nothing has written they
        are undefined where they ``may_go_unused``, else that is a fault."""
        lane, first = split_address(address)
        where = places(shape, count, split, packed)
        cells = (lane + where[0][thread.lane]) % LANES, (first + where[1][thread.lane]) % COLUMNS
        for turn in range(PATIENCE):  # let the late writer come, so that the fault can name it
            if self.writer[cells].all():
                break
            self.block.gives_way = len(self.block.cluster.blocks) > 1 and turn % 2 == 0  # to another block
            thread.spin()

        def move(brought):
            lanes, columns = self._cells("ld", thread, shape, where, brought, may_go_unused)
            words, holes = self.cells[lanes, columns], self.writer[lanes, columns] == 0
            if packed:
                low, high = np.split(words & 0xFFFF, 2, axis=1)
                words, holes = low | high << np.uint32(16), np.logical_or(*np.split(holes, 2, axis=1))
            if holes.any():
                words = words.astype(object)
                words[holes] = Undefined(f"tcgen05.ld.{shape} at {thread.at(thread.site())} reads it", "cell")
            return [tuple(each) for each in words.tolist()]

        return converged(thread, f"tcgen05.ld.{shape}", (int(address),), move)[thread.lane]

    def store(self, thread, address, shape, count, packed, split, words):
        """``tcgen05.st`` of a warp, of which this lane has ``words``."""

        def move(brought):
            lanes, columns = self._cells("st", thread, shape, places(shape, count, split, packed), brought)
            words = np.array([[int(w) & WORD for w in brought[n][1]] for n in range(32)], np.uint32)
            if packed:
                words = np.concatenate([words & 0xFFFF, words >> np.uint32(16)], 1)
            self.cells[lanes, columns] = words
            return [()]

        converged(thread, f"tcgen05.st.{shape}", (int(address), words), move)

    def _cells(self, kind, thread, shape, where, brought, may_go_unused=False):
        """(lanes, columns) of what the warp moves, arrays (lane of the warp, register), when that has been
        judged and noted."""
        site, thread = thread.site(), self.block.threads[32 * thread.warp]  # its first lane speaks for the warp
        lane, first = self._corner(thread, site, f"tcgen05.{kind}.{shape}", shape, brought)
        lanes, columns = lane + where[0], first + where[1]
        pipe = self.pipe(kind, thread.warp)
        halves = (slice(0, 16), slice(16, 32)) if shape == "16x32bx2" else (slice(0, 32),)
        for half in halves:
            own = columns[half]
            rectangle = tuple(np.unique(lanes[half]).tolist()), slice(int(own.min()), int(own.max()) + 1)
            what = f"tcgen05.{kind}.{shape}"
            access = Access(kind, what, thread, site, pipe, pipe.number, *rectangle)
            self.access(access, reads=kind == "ld" and not may_go_unused, writes=kind == "st")
        pipe.number += 1
        thread.time += COST.shared_access
        return lanes, columns

    def _corner(self, thread, site, what, shape, brought):
        """(lane, column) where the warp's access begins."""
        addresses = {each[0] for each in brought.values()}
        lane, column = split_address(next(iter(addresses)))
        own = 32 * (thread.warp % 4)
        starts = (own, own + 16) if shape.startswith("16") else (own,)
        if len(addresses) > 1 or lane not in starts:
            said = f"{len(addresses)} addresses" if len(addresses) > 1 else f"lane {lane}"
            what = f"{what} by warp {thread.warp} of {said}"
            fault = thread.fault_at(faults.BadTensorOperand, what, site)
            fault.rule = "Warp w of a block reaches lanes 32 (w % 4) to 32 (w % 4) + 31 of tensor memory, and "
            fault.rule += "all its threads give one address (PTX 9.7.16)."
            fault.cure = f"Here the address begins at lane {own}: add {own} << 16 to that of the columns."
            raise fault
        return lane, column

    def wait(self, thread, kind):
        """``tcgen05.wait::ld`` or ``::st`` of a warp."""
        lanes = self.block.threads[32 * thread.warp : 32 * thread.warp + 32]
        pipe = self.pipe(kind, thread.warp)
        converged(thread, WAITS[kind], None, lambda brought: pipe.finish(lanes) or [()])


@functools.cache
def places(shape, count, split=0, packed=False):
    """(rows, columns) of what the lanes' registers hold, arrays (lane, register) as PTX 9.7.16.2.3.1 has them.
    ``packed``: a register has the lower halves of two neighbouring cells, first all the left ones."""
    lane, register = np.ogrid[:32, : count * {"16x128b": 2, "16x256b": 4}.get(shape, 1)]
    rows, columns = {
        "32x32b": (lane, register),
        "16x32bx2": (lane % 16, register + split * (lane // 16)),
        "16x64b": (lane // 4 + 8 * (lane % 2), 2 * register + lane // 2 % 2),
        "16x128b": (lane // 4 + 8 * (register % 2), 4 * (register // 2) + lane % 4),
        "16x256b": (lane // 4 + 8 * (register // 2 % 2), 8 * (register // 4) + 2 * (lane % 4) + register % 2),
    }[shape]
    rows, columns = np.broadcast_arrays(rows + 0 * register, columns + 0 * lane)
    if packed:
        return np.tile(rows, 2), np.concatenate([2 * columns, 2 * columns + 1], 1)
    return rows, columns


def tensor_memory_of(block):
    """The TensorMemory of a block."""
    if block.tensor_memory is None:
        block.tensor_memory = TensorMemory(block)
    return block.tensor_memory

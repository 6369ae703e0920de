"""The copy engine: TMA tensor copies, plain bulk copies, and cp.async.

A copy is asynchronous: at issue its destination is poisoned, and it lands when the schedule says so
(``late``: when nothing else can run; ``earliest``: at once; ``random``: either, or in between).
Landing writes the bytes and settles the barrier or the group.
"""

import functools
from collections import Counter
from typing import NamedTuple

import numpy as np

from ... import faults
from ...tensormap import SWIZZLE_SPANS, FourRows, Rows, TensorMapError, swizzle_offsets
from ..memory.access_records import ZEROS, Copy, Write, copy_of, is_generic, stretches, writers
from ..memory.cycle_costs import COST
from ..memory.scalars import WORD
from ..memory.vector_clocks import ASYNC
from .reductions import combine, kind_of, types_of
from .tensor_maps import TensorMaps

ORDERS = {"TMA source": "(map, coordinates, src)", "TMA destination": "(dst, map, coordinates, bar)",
          **dict.fromkeys(("bulk copy source", "bulk copy destination"), "(dst, src, bytes) and perhaps bar"),
          "cp.async destination": "(dst, src, bytes)", "response": "(response, bar)"}  # fmt: skip
ONE_PER_WARP = "one-per-warp"  # the waiver


class Box(NamedTuple):
    """What a load brings: ``size`` bytes count on its barrier; ``fetch()`` is what the ``room`` bytes at its
    destination will hold; ``sources``: (region, address, bytes) of what it reads; ``map``: the address of the
    tensor map, if it has one."""

    what: str
    size: int
    room: int
    sources: list
    fetch: object
    map: int | None = None


class Groups:
    """One thread's commit groups of one kind; group n is complete when its clock entry reads n. ``component``:
    the entry for reads and writes, if they do not have one each."""

    def __init__(self, block, component=None):
        self.open, self.committed = [], []
        self.done_component = block.new_component() if component is None else component
        self.read_component = block.new_component() if component is None else component
        self.number = 1
        self.waited = 0, None, 0  # of its last wait: how many may stay open, the site, the last group before it
        self.arrivals = []  # (number, barrier): the copies up to that number arrive there when they have landed


class CopyEngine:
    """What moves data behind the threads' backs, for one block."""

    def __init__(self, block):
        self.block = block
        self.maps = TensorMaps(block)
        self.free_at = 0.0
        # Bulk stores: how often a thread came to a place, and by (warp, place, how often) the first lane's.
        self.visits, self.issued = Counter(), {}

    def _usable_map(self, thread, address, coords, mode="tile"):
        """(the map at ``address``, the coordinates as the instruction takes them)"""
        rows = isinstance(coords, Rows)
        tensor = self.maps.usable(thread, address, coords[:2] if rows else coords, mode)
        try:
            tensor = FourRows(tensor) if rows else tensor
        except TensorMapError as error:
            raise thread.fault(faults.BadTensorMap, str(error)) from error
        return tensor, tuple([(int(c) + (1 << 31)) % (1 << 32) - (1 << 31) for c in coords])

    def _corner(self, thread, tensor, coords, what, offsets=()):
        """Refuse a corner that the hardware does not take."""
        if offsets:
            try:
                tensor.check_corner(coords, offsets)
            except TensorMapError as error:
                fault = thread.fault(faults.OutOfRange, f"TMA load at {coords}, offsets {offsets}: {error}")
                fault.rule = "In im2col mode the filter's corner is inside the map's bounding box, and offsets "
                fault.rule += "are as small as the instruction encodes them (PTX 5.5.4.1)."
                fault.cure = "Begin at a place of the filter's corner; which of its elements is meant is what "
                fault.cure += "the offsets say."
                raise fault from error
        if what == "store" and min(coords[:1] if isinstance(tensor, FourRows) else coords) < 0:
            fault = thread.fault(faults.OutOfRange, f"TMA store at {coords}: a corner is negative")
            fault.rule = "A tensor store may overhang the tensor's end, and starts at no negative coordinate: "
            fault.rule += "an H200 ends the kernel with an illegal instruction."
            fault.cure = "Start the box at 0 and store less of the tile, or pad the tensor."
            raise fault
        start = coords[0] * tensor.itemsize
        if start % 16 and tensor.interleave == "none":
            what = f"TMA {what} at {coords}: {coords[0]} x {tensor.itemsize} bytes = {start} bytes"
            raise thread.fault(faults.MisalignedBox, what)

    def _layout(self, thread, tensor, address, what):
        """(bytes from the shared address of a box that it takes, where its own bytes lie there)."""
        self.check_aligned(thread, address, 128, what)
        size = tensor.box_bytes
        if tensor.swizzle == "none":
            return size, slice(None)
        span = SWIZZLE_SPANS[tensor.swizzle]
        return -(-size // span) * span, swizzle_offsets(size, tensor.swizzle, address)

    def box(self, thread, dst, address, coords, offsets=()):
        """The Box at ``coords`` of the tensor map at ``address``, for the shared address ``dst``. ``offsets``:
        of a load in im2col mode."""
        tensor, coords = self._usable_map(thread, address, coords, "im2col" if offsets else "tile")
        offsets = tuple(int(offset) & WORD for offset in offsets)
        place = (coords, offsets) if offsets else (coords,)
        self._corner(thread, tensor, coords, "load", offsets)
        room, lie = self._layout(thread, tensor, dst, "TMA destination")

        def fetch():
            if tensor.swizzle == "none":
                return tensor.load_box(*place)
            swizzled = np.full(room, 0xFF, np.uint8)
            swizzled[lie] = tensor.load_box(*place)
            return swizzled

        if not offsets:
            self.block.execution.load_checks.add(thread, tensor, int(address), coords, dst, room)
        sources = self._global_runs(thread, tensor, *place, reads=True)
        return Box(f"TMA load at {coords}", tensor.box_bytes, room, sources, fetch, int(address))

    def tensor_load(self, thread, dst, address, coords, bar, offsets=()):
        dst &= WORD
        self.load_box(thread, dst, bar, self.box(thread, dst, address, coords, offsets))

    def bulk_load(self, thread, dst, src, size, bar):
        dst &= WORD
        self.load_box(thread, dst, bar, self.bulk_box(thread, dst, src, size))

    def bulk_box(self, thread, dst, src, size):
        """The Box of ``size`` bytes of global memory at ``src``, for the shared address ``dst``."""
        src = int(src)
        self.check_aligned(thread, dst, 16, "bulk copy destination")
        self._check_bulk(thread, src, size)
        region = thread.block.globals.find(thread, src, size, "copies")
        data = region.bytes[src - region.base :][:size]
        return Box("bulk load", size, size, [(region, src, size)], lambda: data)

    def _global_runs(self, thread, tensor, *place, reads=False):
        """(region, address, bytes) of each dense part of a box that lies inside the tensor."""
        if tensor.array is None:
            return []
        [region] = self.block.globals.overlapping(tensor.address, tensor.address + tensor.extent)
        if reads and not region.traced:
            return [(region, tensor.address, tensor.extent)]  # one mark for all of it
        try:
            return [(region, address, size) for address, size in tensor.runs(*place)]
        except (ValueError, NotImplementedError) as error:
            raise thread.fault(faults.BadTensorMap, str(error)) from error

    def load_box(self, thread, dst, bar, box):
        block, (what, size, room, sources, fetch, map) = self.block, box
        barrier = block.barriers.for_copy(thread, bar)
        if map is not None:
            self.maps.on_copy(thread, map, barrier.component, barrier.phase + 1)
        elif sources:
            block.execution.load_checks.add_bulk(thread, barrier, sources[0][1])
        for region, src, count in sources:
            region.on_copy_read(thread, src, count, barrier.component, barrier.phase + 1)
            if region.traced:
                self.check_global_proxy(thread, region, src, count, what)
        copy = Copy(thread, what, dst, size, barrier.phase, barrier)
        self.check_proxy(thread, dst, room, what)
        block.shared.on_write(thread, dst, room, copy)
        block.shared.poison(dst, room)
        start, landing = self.take_turn(thread, size)
        block.record("issue", thread, start, start, barrier, size=size, dst=dst)

        def deliver():
            block.shared.data[dst : dst + room] = bytes(fetch())
            when = start, landing
            block.record("flight", thread, *when, barrier, size=size, dst=dst, site=copy.site)
            barrier.deliver(copy, landing)

        block.launch_copy(copy, deliver)

    def take_turn(self, thread, size):
        """(start, landing) of a copy of ``size`` bytes: the unit takes one copy after the other, and whoever
        issues waits for his turn."""
        start = max(thread.time, self.free_at)
        thread.time = start + 1
        self.free_at = start + max(COST.tma_issue, size / COST.tma_bytes_per_cycle)
        return start, start + COST.tma_latency + size / COST.tma_bytes_per_cycle

    def bulk_prefetch(self, thread, src, size):
        """A hint: the bytes have to be there, and nothing comes of it."""
        self._check_bulk(thread, int(src), size)
        self.block.globals.find(thread, int(src), size, "prefetches")

    def tensor_prefetch(self, thread, address, coords):
        self._usable_map(thread, address, coords)

    def cp_async(self, thread, dst, src, size, width=16):
        dst, src = dst & WORD, int(src)
        self.check_aligned(thread, dst, width, "cp.async destination")
        self.check_aligned(thread, src, width, "cp.async source", self.block.globals)
        if not 0 <= size <= width:
            raise thread.fault(faults.BadSize, f"cp.async of {size} bytes, not 0..{width}")
        block, region, groups = self.block, None, self._groups(thread, "cp.async")
        if size:
            region = block.globals.find(thread, src, size, "copies")
            region.on_copy_read(thread, src, size, groups.done_component, groups.number)
        copy = Copy(thread, "cp.async" if size else ZEROS, dst, width, phase=groups.number, generic=True)
        block.shared.on_write(thread, dst, width, copy)
        block.shared.poison(dst, width)
        groups.open.append(copy)
        number = copy.phase

        def deliver():
            data = bytes(region.bytes[src - region.base :][:size]) if size else b""
            block.shared.data[dst : dst + width] = data + bytes(width - size)
            copy.landed = True
            copy.owner, copy.clock = groups.done_component, number

        block.launch_copy(copy, deliver)

    def cp_async_arrive(self, thread, bar, more):
        """An arrival on ``bar`` when all cp.async of ``thread`` so far have landed. ``more``: the phase waits
        for it beside the arrivals that it expects."""
        block, groups = self.block, self._groups(thread, "cp.async")
        barrier = block.barriers.find(thread, bar)
        phase, copied = barrier.promise(thread, more)
        clock, copied[0, groups.done_component] = thread.clock, groups.number
        groups.number += 1  # copies from here on are none of this arrival's
        groups.arrivals.append((groups.number - 1, barrier))
        copies = [copy for _, group in groups.committed for copy in group] + groups.open
        arrival = Copy(thread, "cp.async copies", bar & WORD, 0, phase, barrier)
        landing = thread.time + COST.cp_async_latency

        def deliver():
            for copy in copies:
                if not copy.landed:
                    block.land(copy)
            barrier.keep(thread, arrival, clock, copied, landing)

        block.launch_copy(arrival, deliver)

    def tensor_store(self, thread, address, coords, src, op=None):
        """``op``: of a reduction; what lies in the tensor is combined with the box."""
        src &= WORD
        tensor, coords = self._usable_map(thread, address, coords)
        kind = kind_of(op, tensor.dtype)
        if op and kind is None:
            what = f"a reduction by {op} into elements of type {tensor.dtype}: {tensor!r}"
            rule = "A reduction is one that PTX has for elements of that type (PTX 9.7.9.25.4.2)."
            cure = f"{op} takes " + ", ".join(types_of(op)) + "."
            raise thread.fault(faults.BadTensorMap, what, rule=rule, cure=cure)
        self._corner(thread, tensor, coords, "store")
        groups = self._groups(thread, "bulk")
        self.maps.on_copy(thread, address, groups.read_component, groups.number)
        room, offsets = self._layout(thread, tensor, src, "TMA source")

        def write(data):
            change = functools.partial(combine, op, kind) if op else None
            tensor.store_box(coords, np.frombuffer(data, np.uint8)[offsets], change)

        targets = self._global_runs(thread, tensor, coords)
        used = np.zeros(room, bool)  # what lies outside the tensor is not written
        used[offsets] = tensor.inside(coords) if targets else False
        used = None if used.all() else used
        what = f"TMA {'reduction' if op else 'store'} at {coords}"
        self._store(thread, what, src, room, targets, write, used, op)

    def bulk_store(self, thread, dst, src, size, op=None, kind=None):
        dst, src = int(dst), src & WORD
        self.check_aligned(thread, src, 16, "bulk copy source")
        self._check_bulk(thread, dst, size)
        region = self.block.globals.find(thread, dst, size, "copies to")

        def write(data):
            offset = dst - region.base
            place = region.bytes[offset : offset + size]
            place[:] = combine(op, kind, place, data) if op else data

        what = "bulk reduction" if op else "bulk store"
        self._store(thread, what, src, size, [(region, dst, size)], write, op=op)

    def _store(self, thread, what, src, size, targets, write, used=None, op=None):
        """``used``: which of the bytes at ``src`` are read, if not all."""
        block, shared = self.block, self.block.shared
        again = not op and self._is_its_warps(thread, src, size, targets)
        if again and block.execution.waived.allows(ONE_PER_WARP, thread):
            return
        groups = self._groups(thread, "bulk")
        copy = Copy(thread, what, src, size, phase=groups.number)
        # The engine reads the bytes at any moment until the group is waited for.
        parts = [(0, size, True)] if used is None else stretches(used.tolist())
        for lo, hi, read in parts:
            if read:
                shared.on_copy_read(thread, src + lo, hi - lo, groups.read_component, groups.number)
                self.check_proxy(thread, src + lo, hi - lo, what)
        done = groups.done_component, groups.number, thread.tid, copy.site, block
        for region, dst, count in targets:
            self.check_global_proxy(thread, region, dst, count, what)
            if op:
                region.on_reduction(thread, dst, count, done)
                continue
            try:
                region.on_write(thread, dst, count, Write(*done))
            except faults.DataRace as race:
                race.waiver = ONE_PER_WARP if again else race.waiver
                raise
        groups.open.append(copy)
        _, complete = self.take_turn(thread, size)
        copy.ends = complete - COST.tma_latency, complete

        def deliver():
            write(bytes(shared.data[src : src + size]))
            copy.landed = True

        block.launch_copy(copy, deliver)

    def _is_its_warps(self, thread, src, size, targets):
        """Whether another lane has issued this very store, when it had come here as often as ``thread``."""
        place = thread.tid, thread.site()
        self.visits[place] += 1
        issued = thread.warp, place[1], self.visits[place]
        store = src, size, [(dst, count) for _, dst, count in targets]
        first = self.issued.setdefault(issued, (thread.tid, store))
        return first != (thread.tid, store) and first[1] == store

    def _groups(self, thread, kind):
        if kind not in thread.groups:
            thread.groups[kind] = Groups(self.block)
        return thread.groups[kind]

    def commit_group(self, thread, kind):
        groups = self._groups(thread, kind)
        groups.committed.append((groups.number, groups.open))
        groups.open = []
        groups.number += 1

    def wait_group(self, thread, kind, pending, read_only=False):
        """Returns the (number, copies) of the groups that it waits for."""
        groups, pending = self._groups(thread, kind), min(pending & WORD, 7 if kind == "cp.async" else 3)
        groups.waited = pending, thread.site(), groups.number - 1
        done = groups.committed[: max(0, len(groups.committed) - pending)]
        for number, copies in done:
            for copy in copies:
                while not copy.landed:
                    self.block.land(copy)
            both = groups.read_component, groups.done_component
            for component in both[:1] if read_only else both:
                thread.seen[component] = max(thread.seen[component], number)
            if not read_only and kind == "bulk":
                # cp.async is no work of the async proxy, so that proxy does not see it unfenced.
                thread.clocks[1, groups.done_component] = number
        if not read_only:
            groups.committed = groups.committed[len(done) :]
        if done and kind == "cp.async":
            thread.time += COST.cp_async_latency
        elif kind == "bulk":
            ends = [copy.ends[not read_only] for _, copies in done for copy in copies]
            thread.time = max([thread.time, *ends])
        for _, copies in done if self.block.events is not None else ():
            self.block.waited_for(thread, copies)
        return done

    def check_aligned(self, thread, address, size, what, space=None):
        if address % size:
            name = space.name_of(address, True) if space else self.block.shared.name_of(address)
            told = f"{what} {name}: {address:#x} is not a multiple of {size}"
            fault = thread.fault(faults.Misaligned, told, name)
            if name.startswith("shared address"):
                fault.cure = f"It lies in no array of this block: are the arguments in order, {ORDERS[what]}?"
            elif space:
                other = f"Start it at a multiple of {size} bytes before that, and leave out what comes first."
                fault.cure = space.padded(address, size) or other
            raise fault

    def check_bulk_shared(self, thread, dst, src, size):
        """Alignment and size of a bulk copy from shared memory to shared memory."""
        self.check_aligned(thread, dst, 16, "bulk copy destination")
        self.check_aligned(thread, src, 16, "bulk copy source")
        self._check_size(thread, size)

    def _check_bulk(self, thread, address, size):
        self.check_aligned(thread, address, 16, "bulk copy global address", self.block.globals)
        self._check_size(thread, size)

    def _check_size(self, thread, size):
        if size <= 0 or size % 16:
            raise thread.fault(faults.BadSize, f"a bulk copy of {size} bytes, not a multiple of 16")

    def check_proxy(self, thread, address, size, what, home=None):
        """Ordinary writes to bytes of the shared memory of ``home``, if not this block, that a copy touches
        must have passed fence.proxy.async."""
        home = home or self.block
        shared = home.shared
        for w in [w for record in shared.writes(address, address + size) for w in writers(record)]:
            if is_generic(w) and shared.sees(thread, w) and not thread.sees_fence(home, w):
                name = shared.name_of(address)
                where = f"{name} of block {home.index}" if home is not self.block else name
                what = f"issues a {what} on {where}, which {thread.describe(w)} wrote at "
                what += f"{thread.at(w.site)} with no fence.proxy.async since"
                fault = thread.fault(faults.MissingProxyFence, what, name)
                if w.block is not home and not copy_of(w):
                    fault.rule = "fence.proxy.async.shared::cta is for shared memory of the fence's block. "
                    fault.rule += "A write to another's takes the form for shared::cluster (PTX 9.7.13.4)."
                    fault.cure = "Call fence_proxy_async_cluster() or fence_proxy_async_full() in the writing "
                    fault.cure += "thread, then a barrier of the cluster, then issue the copy."
                elif copy_of(w):
                    fault.cure = "Call fence_proxy_async() in a thread that has waited for it, then a barrier, "
                    fault.cure += "then issue the copy."
                elif home is not self.block:
                    fault.cure = fault.cure.replace("it behind", "fence_proxy_async_cluster() behind")
                if home.tells_of_tensor_memory(w):
                    fault.waiver = "alloc-fence"
                if not home.execution.waived.excuses(fault, thread, w.site):
                    raise fault

    def check_global_proxy(self, thread, region, address, size, what):
        """The same for global memory, which needs a fence of its own."""
        a = address - region.base
        for at, _, record in stretches(region.written[a : a + size]):
            for w in writers(record):
                ordinary = w.tid is not None and w.owner == w.tid and region.sees(thread, w)
                if ordinary and not thread.knows((ASYNC, w.block), w.owner, w.clock):
                    name = region.name_of(address + at)
                    what = f"issues a {what} on {name}, which {thread.describe(w)} wrote at "
                    what += f"{thread.at(w.site)} with no fence.proxy.async.global since"
                    cure = "Call fence_proxy_async_global() (or fence_proxy_async_full()) in each "
                    cure += "writing thread, then a barrier, then issue the copy; or behind the barrier, "
                    cure += "in the issuing thread."
                    raise thread.fault(faults.MissingProxyFence, what, name, cure=cure)

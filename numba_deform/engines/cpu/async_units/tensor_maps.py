"""Tensor maps in memory: those that the host has put there, and those that a kernel makes.

A map is 128 bytes, decoded when a copy uses it (``engines.tensormap.packed``). What a kernel has written is
seen by the copy engine only if it was published by ``tensormap.cp_fenceproxy``, and acquired in the block
since. The copy reads the map until it is complete.
"""

import numpy as np

from ... import faults
from ...tensormap import TensorMapError, packed
from ...tensormap.encoding import MAP_BYTES
from ..memory.access_records import INITIAL, Write, different, writers
from ..memory.scalars import WORD

PUBLISH, FULL_WARP = "tensormap.cp_fenceproxy", WORD
# Elements as tensormap.replace numbers them (PTX ISA 9.7.9.26); other lists are in the driver's order.
ELEMENTS = (
    "uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float32_ftz", "float64",
    "bfloat16", "tfloat32", "tfloat32_ftz",
)  # fmt: skip


class Published(Write):
    """The write of a map by ``tensormap.cp_fenceproxy``."""

    __slots__ = ()


class TensorMaps:
    """The maps that one block's copies name by address."""

    def __init__(self, block):
        self.block = block
        self.host = block.execution.tensor_maps  # {address: TensorMap} of the launch's arguments
        self.fenced = {}  # address -> {thread number: (its clock, the records of the map's bytes) at its fence}
        self.made = {}  # 128 bytes -> the map that they are
        self.is_bytes = {}  # address -> whether 128 bytes there are a map, which the host has not named
        self.places = {}  # address -> (region, offset) of 128 bytes in one array, or None

    # --- use ------------------------------------------------------------------------------------------
    def find(self, thread, address):
        """(the map at ``address``, the records of who has written it there)"""
        address = int(address)
        records = self._records(address)
        if records == [INITIAL] and address in self.host:
            return self.host[address], records
        fields = packed.unpack(self._bytes(thread, address)) if records else None
        if fields is None or address % 64:
            what = f"{address:#x} is not the address of a tensor map of this launch"
            fault = thread.fault(faults.BadTensorMap, what, f"{address:#x}")
            place = thread.block.shared.name_of(address)
            for region in self.block.globals.overlapping(address, address + 1):
                if address == region.base:
                    fault.add(f"{region.name}, an array, begins there")
                    fault.cure = f"Give a map of it, nd.TensorMapArray([nd.TensorMap.of({region.name}, box)]), "
                    fault.cure += "or have the kernel publish one there before this."
            if not place.startswith("shared"):
                fault.add(f"it is the shared address of {place}")
                fault.cure = "Are the arguments in order? A load takes (dst, map, coordinates, bar), a store "
                fault.cure += "(map, coordinates, src)."
            raise fault
        return self._map(thread, address, fields), records

    def is_map(self, thread, address):
        """Whether a map lies there, that nobody has to have fenced."""
        if address not in self.host and address not in self.is_bytes:
            self.is_bytes[address] = packed.unpack(self._bytes(thread, address)) is not None
        return address in self.host or self.is_bytes[address]

    def _records(self, address):
        """Those of the map's bytes; none if they are not in one array."""
        if address not in self.places:
            self.places[address] = None
            for region in self.block.globals.overlapping(address, address + 1):
                if address + MAP_BYTES <= region.stop and region.holds(address, MAP_BYTES):
                    self.places[address] = region, address - region.base
        if self.places[address] is None:
            return []
        region, a = self.places[address]
        return list(different(region.written[a : a + MAP_BYTES])) if region.traced else [INITIAL]

    def _bytes(self, thread, address):
        region = self.block.globals.find(thread, address, MAP_BYTES, "reads")
        return bytes(region.bytes[address - region.base :][:MAP_BYTES])

    def _map(self, thread, address, fields):
        """The map of these fields, whose tensor lies in an array of the launch."""
        key = packed.pack(fields)
        if key not in self.made:
            try:
                made = packed.map_of(fields)
            except TensorMapError as error:
                what = f"uses the tensor map at {self.block.globals.name_of(address)}: {error}"
                raise thread.fault(faults.BadTensorMap, what) from error
            region = self.block.globals.find(thread, made.address, made.extent, "maps")
            self.made[key] = packed.map_of(fields, np.frombuffer(region.bytes, np.uint8))
        return self.made[key]

    def fence(self, thread, address):
        """``fence.proxy.tensormap``: this block sees the map as the thread does."""
        address = int(address)
        if self._records(address) == [INITIAL] and address not in self.host:
            thread.spin()  # let a late writer come, so that the fault can name it
        _, records = self.find(thread, address)
        region, _ = self.places[address]
        fences = self.fenced.setdefault(address, {})
        known = thread.tid in fences and fences[thread.tid][1] == records
        if not known and all(region.sees(thread, w) for w in records):
            fences[thread.tid] = thread.clock, records

    def usable(self, thread, address, coords, mode):
        """The map at ``address``, which has to be of that mode and as many dimensions, and visible."""
        tensor, records = self.find(thread, address)
        if tensor.mode != mode:
            what = f"a copy in {mode} mode with a map for {tensor.mode} mode: {tensor!r}"
            raise thread.fault(faults.BadTensorMap, what)
        if tensor.rank != len(coords):
            what = f"a {len(coords)}d copy with a map of rank {tensor.rank}: {tensor!r}"
            raise thread.fault(faults.BadTensorMap, what)
        if records != [INITIAL]:
            self._check_published(thread, int(address), records)
        fences = self.fenced.get(int(address), {})
        if not any(thread.seen[t] >= clock and seen == records for t, (clock, seen) in fences.items()):
            what = "uses a tensor map in global memory that this block has not fenced before"
            if records == [INITIAL]:
                fault = thread.fault(faults.MissingTensormapFence, what)
                fault.waiver = "map-fence"
                if self.block.execution.waived.excuses(fault, thread):
                    return tensor
                raise fault
            what = f"uses a tensor map that {thread.describe(records[0])} published at "
            what += f"{thread.at(records[0].site)}, and that this block has not fenced since"
            cure = "Call fence_proxy_tensormap_acquire_gpu(map) after each publication, in a thread that "
            cure += "knows of it, before the first copy that uses the map."
            raise thread.fault(faults.MissingTensormapFence, what, cure=cure)
        return tensor

    def _check_published(self, thread, address, records):
        region = self.block.globals.find(thread, address, MAP_BYTES, "reads")
        region.on_read(thread, address, MAP_BYTES)
        for w in records:
            if type(w) is not Published:
                what = f"uses a tensor map that {thread.describe(w)} wrote at {thread.at(w.site)} by ordinary "
                fault = thread.fault(faults.MissingTensormapFence, what + "accesses, which nothing releases")
                fault.cure = "Make the map in shared memory, and let the whole warp publish it by "
                fault.cure += "tensormap_cp_fenceproxy."
                raise fault

    def on_copy(self, thread, address, *epoch):
        """A copy reads the map until the ``epoch`` (owner, clock)."""
        address = int(address)
        if self._records(address) != [INITIAL]:
            region = self.block.globals.find(thread, address, MAP_BYTES, "reads")
            region.on_copy_read(thread, address, MAP_BYTES, *epoch)

    # --- making ---------------------------------------------------------------------------------------
    @staticmethod
    def _check_aligned(thread, space, address):
        if address % 64:
            name = space.name_of(address)
            what = f"tensor map at {name}: {address:#x} is not a multiple of 64"
            raise thread.fault(faults.Misaligned, what, name)

    def replace(self, thread, address, field, value, ordinal=None):
        """``tensormap.replace``: one field of the map at a shared address, or an entry of a list."""
        shared, value, address = self.block.shared, int(value), address & WORD
        self._check_aligned(thread, shared, address)
        shared.on_read(thread, address, MAP_BYTES)
        content = bytes(shared.data[address : address + MAP_BYTES])
        fields = packed.unpack(content) if any(content) else packed.blank()
        if fields is None or fields["mode"] != "tile":
            what = f"replaces {field} of {shared.name_of(address)}, "
            what += "which holds no tensor map" if fields is None else "a map for im2col mode"
            raise thread.fault(faults.BadTensorMap, what)
        names = ELEMENTS if field == "dtype" else packed.NAMES.get(field)
        names = names[:4] if field == "swizzle" else names  # an atom has a field of its own
        limit = len(names) if names else 6 if field == "rank" else None
        bad = ordinal is not None and not 0 <= ordinal < len(fields[field])
        if bad or limit is not None and value >= limit:
            what = f"replaces {field}{f'[{ordinal}]' * (ordinal is not None)} of a tensor map by {value}: "
            what += f"there is no such {'dimension' if bad else 'value'}"
            raise thread.fault(faults.BadTensorMap, what)
        if ordinal is None:
            fields[field] = names[value] if names else value
        else:
            fields[field][ordinal] = value
        shared.on_write(thread, address, MAP_BYTES, thread.write_record())
        shared.data[address : address + MAP_BYTES] = packed.pack(fields)
        self.block.progress += 1

    def publish(self, thread, dst, src):
        """``tensormap.cp_fenceproxy`` by a whole warp. All lanes have to know of the map in shared memory, if
        that is not waived. Its first lane copies, and all know of that when they go on."""
        dst, src, shared = int(dst), src & WORD, self.block.shared
        asked = thread.collective(PUBLISH, FULL_WARP, (dst, src))
        if len(set(asked.values())) > 1:
            raise thread.fault(faults.WarpDivergence, f"{PUBLISH} with other addresses than other lanes")
        self._check_aligned(thread, shared, src)
        self._check_aligned(thread, self.block.globals, dst)
        try:
            shared.check_read(thread, src, MAP_BYTES)
        except faults.DataRace as race:
            self._excuse(race, thread, src)
        if thread.lane == min(asked):
            shared.on_read(thread, src, MAP_BYTES)
            region = self.block.globals.find(thread, dst, MAP_BYTES, "copies to")
            record = Published(thread.tid, thread.clock, thread.tid, thread.site(), self.block)
            region.on_write(thread, dst, MAP_BYTES, record)
            at = dst - region.base
            region.bytes[at : at + MAP_BYTES] = shared.data[src : src + MAP_BYTES]
            self.block.progress += 1
        first, clock = thread.collective(f"{PUBLISH}'s end", FULL_WARP, (thread.tid, thread.clock))[min(asked)]
        thread.seen[first] = max(thread.seen[first], clock)
        thread.tick()

    def _excuse(self, race, thread, src):
        """Raise ``race``, unless lanes of the same warp alone have written the map, and it is waived that they
        meet before it is copied: then ``thread`` knows what they did."""
        records = self.block.shared.writes(src, src + MAP_BYTES)
        late = [w for record in records for w in writers(record) if not self.block.shared.sees(thread, w)]
        if all(w.block is self.block and w.owner == w.tid and w.tid >> 5 == thread.warp for w in late):
            race.waiver = "map-without-a-meeting"
            if self.block.execution.waived.excuses(race, thread):
                for tid in {w.tid for w in late}:
                    np.maximum(thread.clocks, self.block.threads[tid].clocks, out=thread.clocks)
                return
        raise race

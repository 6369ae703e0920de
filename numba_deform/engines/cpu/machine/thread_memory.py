"""A thread's loads, stores, flags and atomics: called by the intrinsics of ``device/memory.py`` and
``atomics.py`` and by arrays."""

import numpy as np

from ... import faults
from ..memory.access_records import UNWRITTEN
from ..memory.cycle_costs import COST
from ..memory.same_value import decide
from ..memory.scalars import WORD, Undefined, UndefinedUse, dtype_of, put, put_narrow, unpack
from ..memory.shadow_memory import MANY_READS, MANY_VAIN
from ..memory.vector_clocks import SyncVariable
from ..reports.call_sites import result_used
from .thread_life import NOWHERE
from .thread_ordering import ThreadOrdering

UINT32 = np.dtype(np.uint32)
FLAG = "touches the flag of"  # in reports


class ThreadMemory(ThreadOrdering):
    """Finds the memory behind an address, has the access judged, and makes it."""

    def address_of(self, space, array):
        is_shared = getattr(array, "space", None) is self.block.shared
        if is_shared != (space == "shared") or not hasattr(array, "address"):
            raise self.fault(faults.OutOfRange, f"{space}_address of something that is no {space} array")
        return array.address

    def dynamic_start(self, alignment):
        array = self.block.shared.array(self, "dynamic", "shared", (0,), np.dtype(np.uint8), None)
        return -(-array.address // alignment) * alignment

    def shared_array(self, address, shape, dtype):
        shape = shape if isinstance(shape, tuple) else (int(shape),)
        return self.block.shared.view(self, address & WORD, shape, dtype_of(dtype))

    def _locate(self, space, address, size, verb):
        """(memory, address) of ``size`` bytes that are accessed, which lie on a multiple of ``size``."""
        if space == "shared":
            memory, address = self.shared, address & WORD
        else:
            address = int(address)
            memory = self.block.globals.find(self, address, size, verb)
        # NumPy's arrays begin on 16 bytes, a GPU's on 256: of wider accesses the place in an array counts.
        if (address - memory.base if size > 16 else address) % size:
            name, verb = memory.name_of(address), verb.partition(" ")[0]
            what = f"{verb} {size} bytes at {name}, not a multiple of {size}"
            fault = self.fault(faults.Misaligned, what, name)
            if not memory.is_shared:
                fault.cure = self.block.globals.padded(address, size) or (
                    f"Keep offsets into the array multiples of {size} bytes; or access fewer bytes at a time.")
            raise fault
        return memory, address

    def load(self, space, address, size, words, read_only=False):
        if space == "shared":
            region, address = self.shared, address & WORD
            if address % size:
                self._locate(space, address, size, "reads")
        else:
            region = self.source
            if address < region.base or address + size > region.stop or address % size:
                region, address = self._locate(space, address, size, "reads")
                self.source = region if len(region.arrays) == 1 else NOWHERE
            if read_only and region.traced:
                region.on_read_only(self, address, size)
        self.time += region.cost
        try:
            region.on_read(self, address, size)
        except faults.UninitialisedRead:
            if region.undefined_at(address, size) is not None:
                return self._load_undefined(region, address, size, words)
            raise
        if size == 4 and region.words:
            return region.words[address - region.base >> 2]
        return unpack(region.bytes, address - region.base, size, words)

    def _load_undefined(self, region, address, size, words):
        """The word, or the words, some of which have been stored as undefined ones."""
        width, values = size // words, []
        for place in range(address, address + size, width):
            try:
                region.on_read(self, place, width)
                values.append(unpack(region.bytes, place - region.base, width, 1))
            except faults.UninitialisedRead:
                values.append(region.undefined_at(place, width))
        return values[0] if words == 1 else tuple(values)

    def store(self, space, address, words, narrow=0):
        """``narrow``: only so many bytes, 1 or 2, of one word."""
        size = narrow or 4 * len(words)
        if space == "shared":
            region, address = self.shared, address & WORD
            if address % size:
                self._locate(space, address, size, "writes")
        else:
            region = self.target
            if address < region.base or address + size > region.stop or address % size:
                region, address = self._locate(space, address, size, "writes")
                self.target = region if len(region.arrays) == 1 else NOWHERE
        self.time += region.cost
        record = self.write_record()
        try:
            region.on_write(self, address, size, record)
        except faults.DataRace as race:
            content = bytearray(size)
            put_narrow(content, 0, narrow, *words) if narrow else put(content, 0, words)
            decide(race, region, self, address, content, record)
        self.block.progress += 1
        try:
            if narrow:
                put_narrow(region.bytes, address - region.base, narrow, *words)
            else:
                put(region.bytes, address - region.base, words)
        except UndefinedUse:
            for place, word in enumerate(words):
                if type(word) is Undefined:
                    self.put_undefined(region, address + 4 * place, narrow or 4, word)
                else:
                    put(region.bytes, address + 4 * place - region.base, (word,))

    # ``wide``: of gpu scope or a wider one, else of scope cta, which orders nothing between blocks.
    # A flag has 4 bytes if ``size`` says no other.
    def load_acquire(self, space, address, wide=True, relaxed=False, size=4):
        region, address = self._locate(space, address, size, FLAG)
        return self.load_flag(region, address, wide, relaxed, size)

    def pause(self, took=False):
        """Let other blocks of the cluster go on first, by chance: else nothing comes between two operations; of
        the grid, where the thread ``took`` what may be a lock."""
        block = self.block
        if (block.pauses or took and not block.alone) and block.progress != block.paused and block.chance(0.5):
            block.gives_way, block.paused = True, block.progress
            self.spin()

    def load_flag(self, region, address, wide=True, relaxed=False, size=4):
        self.pause()
        offset = address - region.base
        too_soon = UNWRITTEN in region.written[offset : offset + size]
        self.poll("flag", region, address)
        region.on_acquire(self, address, size, wide, result_used(self.here()))
        if too_soon:  # whoever has written it since then might as well have been later
            raise self.explain.bad_access(region, self, UNWRITTEN, address, size)
        self._acquire_from(region.flags.get(address), wide, not relaxed)
        self.time += COST.shared_access
        return int.from_bytes(region.bytes[offset : offset + size], "little")

    def store_release(self, space, address, value, wide=True, relaxed=False, size=4):
        region, address = self._locate(space, address, size, FLAG)
        self.store_flag(region, address, value, wide, relaxed, size)

    def store_flag(self, region, address, value, wide=True, relaxed=False, size=4):
        self.pause()
        region.on_write(self, address, size, self.atomic_record((address, size), wide))
        region.flags[address] = SyncVariable()  # what others released there is not handed on
        self._release_to(region, address, wide, not relaxed)
        self.block.progress += 1
        put_narrow(region.bytes, address - region.base, size, value)

    def atomic(self, view, index, change, reads=True):
        """Read-modify-write of one element; returns the old value."""
        place, address = view._locate(self, index)
        if place is None:
            raise self.fault(faults.KernelError, f"atomic on a slice of {view.name}")
        self._order_atomic(view.space, address, view.itemsize, reads)
        old = self._change(view.space, address, view.data, place, change)
        return old.item() if view.integer else old

    def atomic_word(self, space, address, change, reads=True, dtype=UINT32, **order):
        """Read-modify-write of a word, of 32 bits if ``dtype`` says no other; returns the old value."""
        region, address = self._locate(space, address, dtype.itemsize, FLAG)
        return self.atomic_flag(region, address, change, reads, dtype, **order)

    def atomic_flag(self, region, address, change, reads=True, dtype=UINT32, **order):
        self._order_atomic(region, address, dtype.itemsize, reads, **order)
        word = np.frombuffer(region.bytes, dtype, 1, address - region.base)

        def changed(old):
            new = change(int(old))
            return None if new is None else dtype.type(new & (1 << 8 * dtype.itemsize) - 1)

        return int(self._change(region, address, word, 0, changed))

    def _order_atomic(self, space, address, size, reads, acquire=False, release=False, wide=True):
        """Check an atomic's place and order, and what it takes and hands on."""
        self.pause()
        used = result_used(self.here())
        if reads:
            # The value read must be there; an atomic one races with ordinary writes only.
            space.on_acquire(self, address, size, wide, used, False)
        record = self.atomic_record((address, size), wide, True)
        space.on_write(self, address, size, record)
        if used:
            record.observe(self)
        # Atomics continue a release sequence: who acquires later gets what all of them published.
        flag = space.flags.setdefault(address, SyncVariable())
        self._acquire_from(flag, wide, acquire)
        if used and self.block.tickets:
            self.take_ticket(flag, wide)
        self._release_to(space, address, wide, release)

    def _change(self, space, address, data, place, change):
        old = data[place]
        new = change(old)
        if new is not None and new != old:
            data[place] = new
            self.block.progress += 1
            self.vain = 0
        else:  # more likely than a read to be a poll, and if others are waited for in between
            self.vain += 1
            self.reads += 10
            if self.reads > MANY_READS or self.vain > MANY_VAIN:
                self.poll("atomic", space, address)
        self.time += COST.atomic
        return old

    def put_undefined(self, region, address, size, value):
        """Shared memory may hold an undefined value; in global memory somebody would find it."""
        if region.undefined is None:
            self.check_defined(value, lambda: region.name_of(address, element=True))
        region.store_undefined(address, size, value)

    def check_defined(self, value, name):
        """Refuse to store a value that a shuffle from nowhere has made; ``name()`` is where."""
        if type(value) is Undefined:
            what, name = f"stores an undefined value in {name()}", name()
            raise self.explain.undefined_use(value, self, self.site(), what, name)

"""A block's shared memory: where static and dynamic arrays lie, and what its bytes are called. ``Block`` has
one."""

import math

import numpy as np

from ....device.limits import KB, SHARED_LIMIT, STATIC_LIMIT
from ... import faults
from .access_records import OUTSIDE, UNWRITTEN
from .arrays import ArrayView
from .cycle_costs import COST
from .scalars import Layout
from .shadow_memory import ShadowMemory


class SharedMemory(ShadowMemory):
    """One block's shared memory. Static arrays lie low, the dynamic part at its own base.

    An array's address is a multiple of its alignment and of nothing larger: code that needs more than
    it asked for fails here. Between two lie bytes of no array, so that whoever runs from one into the
    next fails as well. All dynamic arrays are the same bytes; they start behind the static ones on a
    16-byte boundary, whatever ``alignment`` says (``device.memory.align_up``); those of PTX on that which a GPU
    places them at (``Execution.shared_alignment``).
    """

    FIRST, GUARD, is_shared, cost = 1024, 64, True, COST.shared_access
    # For what alignment and guards leave free. All lies below 256 KB: a matrix descriptor has 14 bits for an
    # address, in units of 16 bytes.
    ROOM = 24 * KB

    def __init__(self, block, dynamic_bytes):
        super().__init__(0)
        self.block, self.dynamic_bytes, self.undefined = block, dynamic_bytes, {}
        static = min(STATIC_LIMIT, max(0, SHARED_LIMIT - dynamic_bytes))
        self.dynamic_start = _place(self.FIRST + static + self.ROOM, block.execution.shared_alignment)
        self.end, self.static_bytes = self.FIRST, 0
        self.arrays = {}  # (call site, its function) -> (start, count, shape, dtype, name), in a cluster
        self.views, self.boxes = {}, {}  # the same, or (address, shape, dtype) -> the array as a kernel sees it
        self.ranges = []  # (start, stop, name, its Layout)
        # Poison: NaN as a float of any kind. The size is fixed, since views of it are handed out.
        self.data = bytearray(b"\xff" * (self.dynamic_start + dynamic_bytes))
        self.words_of(self.data)

    def array(self, thread, site, *kind):
        """The array that one ``cuda.shared.array`` call makes: the same one for the whole block."""
        if site not in self.views:
            start, count, shape, dtype, name = self.arrays.get(site) or self._make(thread, *kind)
            view = np.frombuffer(self.data, dtype, count, start).reshape(shape)
            self.views[site] = ArrayView(self, start, view, name)
        return self.views[site]

    def _make(self, thread, name, shape, dtype, alignment):
        if alignment and alignment & (alignment - 1):
            raise thread.fault(faults.KernelError, f"alignment={alignment} is not a power of two")
        count = int(np.prod(shape))
        if count:
            alignment = max(alignment or 1, dtype.alignment)
            start, size = _place(self.end, alignment), count * dtype.itemsize
            self.end = start + size + self.GUARD
            self.static_bytes += size
            what = f"static shared arrays take {self.static_bytes} bytes with `{name}`, "
            if self.static_bytes > STATIC_LIMIT:
                raise thread.fault(faults.BadLaunch, f"{what}at most {STATIC_LIMIT} are there")
            if self.static_bytes + self.dynamic_bytes > SHARED_LIMIT:
                what += f"and the launch asks for {self.dynamic_bytes} dynamic ones: at most "
                raise thread.fault(faults.BadLaunch, f"{what}{SHARED_LIMIT} are there")
            if self.end > self.dynamic_start:
                what = "the CPU engine has no room for so many aligned shared arrays"
                raise thread.fault(faults.BadLaunch, what)
        else:
            start, size = self.dynamic_start, self.dynamic_bytes
            count = size // dtype.itemsize
            shape = (count,)
        if size and (start >= len(self.written) or self.written[start] is OUTSIDE):
            more = max(0, start + size - len(self.written))
            self.written += [OUTSIDE] * more
            self.read_by += [None] * more
            self.written[start : start + size] = [UNWRITTEN] * size
        view = Layout.of(np.ndarray(shape, dtype, self.data, start))
        self.ranges.append((start, start + size, name, view))
        return start, count, shape, dtype, name

    def view(self, thread, address, shape, dtype):
        """The array of that shape and type at an address."""
        if (made := self.boxes.get((address, shape, dtype))) is not None:
            return made
        count = math.prod(shape)
        stop, end = address + count * dtype.itemsize, self.dynamic_start + self.dynamic_bytes
        if not self.FIRST <= address <= stop <= end:
            what = f"an array of {stop - address} bytes at shared address {address:#x}"
            raise thread.fault(faults.OutOfRange, f"{what}, where shared memory ends at {end:#x}")
        if address % dtype.alignment:
            raise thread.fault(faults.Misaligned, f"an array of {dtype} at shared address {address:#x}")
        name = self.name_of(address).removesuffix(f"[{', '.join('0' * len(shape))}]")
        box = np.frombuffer(self.data, dtype, count, address).reshape(shape)
        return self.boxes.setdefault((address, shape, dtype), ArrayView(self, address, box, name))

    def part_of(self, address):
        """What the kernel's layout of shared memory calls this place; None without one."""
        layout = self.block.execution.layout
        return layout.name_of(address, self.dynamic_start) if layout else None

    def name_of(self, address, element=False):
        if name := self.part_of(address):
            return name
        for start, stop, name, view in self.ranges:
            if start <= address < stop:
                place = element and view.place(address - start)
                return f"{name}[{place or f'byte {address - start}'}]"
        return f"shared address {address:#x}"

    @property
    def dynamic_names(self):
        """Those of the arrays that make up the dynamic part, all of which begin at its start."""
        return {name for start, _, name, _ in self.ranges if start == self.dynamic_start}

    def tell_size(self, fault):
        """How large the dynamic part is, of an access behind it."""
        fault.add(f"the launch gives {self.dynamic_bytes} bytes of dynamic shared memory")
        if not self.dynamic_bytes:
            fault.rule = "A dynamic shared array, cuda.shared.array(0, ..), has the bytes that the launch "
            fault.rule += "gives."
            fault.cure = "Give them at the launch: shared_bytes= here, kernel[grid, block, stream, bytes] "
            fault.cure += "in Numba."

    def poison(self, address, size):
        self.data[address : address + size] = b"\xff" * size


def _place(after, alignment):
    """The first address from ``after`` on that is a multiple of ``alignment`` and of nothing larger."""
    start = -(-after // alignment) * alignment
    return start if start // alignment % 2 else start + alignment

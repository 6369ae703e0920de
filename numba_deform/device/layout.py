"""A block's shared memory by name: arrays, rings of stages with their barriers, named barriers.

    shared = Shared(
        tiles=Array((3, 32, 32), float32, alignment=128),
        ring=Ring(3, empty=32),
    )

    @kernel(threads=64, shared=shared)
    def copy(map: u64, ..):
        shared.init()
        state = shared.ring.start()
        ..

The parts lie behind one another in dynamic shared memory, in the order in which they are named, each on a
multiple of its alignment. Reports of the CPU engine call them by these names: ``tiles[2, 0, 7]``,
``ring.full[1]``.

``shared``, and each of its parts, is a :class:`Namespace`: what a kernel calls of it are plain device functions
that know their addresses, and nothing is left of it at run time.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda, int32, types, uint32
from numba.np.numpy_support import as_dtype, from_dtype

from . import cluster, tma
from .limits import NAMED_BARRIERS, SHARED_LIMIT
from .mbarrier import mbarrier_arrive_expect_tx
from .memory import dynamic_start, shared_array
from .namespace import Namespace
from .rings import BARRIERS, RINGS, NamedBarrier, WarpRing
from .sync import fence_mbarrier_init, lane, warp
from .tensor_memory import TensorMemory

DYNAMIC_ALIGNMENT = 16  # bytes; dynamic shared memory starts on a multiple of nothing larger
SWIZZLES = {"none": 0, "32B": 1, "64B": 3, "128B": 7}  # the last number of a 16-byte chunk of its rows
TAKEN = "init", "bytes", "barrier_bytes", "map", "name_of", "part_at", "parts"  # of a Shared itself


class Shared(Namespace):
    """The layout of a block's shared memory: ``Shared(name=part, ...)`` with parts Array, Ring, WarpRing,
    Barrier, NamedBarrier, TensorMemory.

    For kernels: ``init()``, by all threads of the block before anything else, and each part by its name.
    For the host: ``bytes`` of dynamic shared memory, which a kernel with ``shared=`` is launched with."""

    def __init__(self, **parts: Any) -> None:
        super().__init__("shared")
        self._parts = parts
        alignment = max([DYNAMIC_ALIGNMENT, *(part.alignment for part in parts.values())])
        start, offset, named, inits, of_warps, allocations = _start(alignment), 0, 0, [], [], []
        self._places = []  # (first byte, its part, name)
        for name, part in parts.items():
            if name.startswith("_") or name in TAKEN:
                raise ValueError(f"{name}= cannot be a part of shared memory: that name is taken")
            if isinstance(part, NamedBarrier):
                setattr(self, name, part.functions(name, named + 1))
                named += part.count
                continue
            offset = -(-offset // part.alignment) * part.alignment
            self._places.append((offset, part, name))
            setattr(self, name, part.functions(name, start, offset))
            if isinstance(part, BARRIERS):
                (of_warps if isinstance(part, WarpRing) else inits).append(part.init(offset))
            if isinstance(part, TensorMemory):
                allocations.append(part.init(offset))
            if isinstance(part, RINGS):
                getattr(self, name).number = len(self._places)  # by which marks tell rings apart
            offset += part.bytes
        if named > NAMED_BARRIERS:
            raise ValueError(f"{named} named barriers: a block has {NAMED_BARRIERS} beside that of syncthreads")
        self._alignment, self.bytes = alignment, offset + alignment - DYNAMIC_ALIGNMENT
        if self.bytes > SHARED_LIMIT:
            sizes = ", ".join(f"{name} {part.bytes}" for _, part, name in self._places)
            raise ValueError(f"{self.bytes} bytes of shared memory ({sizes}): a block has {SHARED_LIMIT}")
        if len(allocations) > 1:
            raise ValueError(f"{len(allocations)} parts of tensor memory: name all columns in one TensorMemory")
        in_cluster = any(getattr(part, "cluster", 1) > 1 for part in parts.values())
        self.init = _init(start, inits, of_warps, allocations, in_cluster)

    def __reduce__(self):
        """It is made again from its parts in another process."""
        return _made, (self._parts,)

    @property
    def barrier_bytes(self):
        """Those of ``bytes`` that are barriers."""
        return sum(part.bytes for part in self.parts() if isinstance(part, BARRIERS))

    @property
    def rings(self):
        """``{number: name}`` of the rings; the number is that of their marks."""
        return {number: name for number, (_, part, name) in enumerate(self._places, 1)
                if isinstance(part, RINGS)}  # fmt: skip

    def parts(self):
        """The arrays and rings, in order."""
        return [part for _, part, _ in self._places]

    def name_of(self, address, start):
        """What lies at a shared address, where dynamic shared memory begins at ``start``: ``tiles[1, 4]``; None
        between the parts."""
        place = self.part_at(address, start)
        return place and place[1].name_of(place[2], place[0])

    def part_at(self, address, start):
        """(bytes from its beginning, part, name) of the part at a shared address, as ``name_of``; None between
        the parts."""
        offset = address - -(-start // self._alignment) * self._alignment
        for first, part, name in self._places:
            if first <= offset < first + part.bytes:
                return offset - first, part, name
        return None


def _made(parts):
    return Shared(**parts)


@dataclass(frozen=True)
class Array:
    """An array in shared memory: ``shape``, and ``dtype``, one of Numba's number types or NumPy's, or
    ml_dtypes.bfloat16, of which views show the bits.

    ``alignment`` in bytes: 128 for what TMA writes; left out, 16, or what the swizzle needs.
    ``swizzle``, "32B", "64B" or "128B": each index of the first dimension is a box that TMA permutes so.
    ``padding`` in bytes behind each index of the first dimension. ``cluster``: so many blocks of a cluster ask
    for a part of each box, whose rows they share out, and get all of it. In a kernel, called ``tiles``:

    tiles.view()                 all of it as an array, with its shape; with padding there is none
    tiles.box_view(index)        ``tiles[index]`` as an array
    tiles.at(index)              the shared address of ``tiles[index]``
    tiles.at(index, row, chunk)  that of the chunk-th 16 bytes of one of its rows, the last dimension, where the
                                 swizzle has put them
    tiles.load(index, map, corner, bar)
                                 arrive on the barrier at ``bar``, announce a box there, and load it to
                                 ``tiles[index]``; ``corner`` is the tuple of its coordinates, x first. By one
                                 thread; with ``cluster``, by one in each block, with the corner of all parts
    tiles.box_bytes              the bytes of ``tiles[index]``: what a load of a box brings
    tiles.stride                 those from one index to the next: as many, and the padding
    tiles.nbytes                 the bytes of all

    For the host: ``nd.TensorMap.of(data, tiles)``, with the Array or with ``shared.tiles``, is the map that
    fills such boxes, with the swizzle. Raises ValueError where boxes with a swizzle or padding would not begin
    on multiples of ``alignment``, and for rows that are wider than the swizzle.
    """

    shape: tuple
    dtype: object
    alignment: int = 0
    swizzle: str = "none"
    padding: int = 0
    cluster: int = 1

    def __post_init__(self):
        shape = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
        object.__setattr__(self, "shape", shape)
        if not shape or not all(isinstance(n, int) and n > 0 for n in shape):
            raise ValueError(f"shape={self.shape} must be whole numbers above 0")
        if self.swizzle not in SWIZZLES:
            raise ValueError(f"swizzle={self.swizzle!r} must be one of {', '.join(SWIZZLES)}")
        if not isinstance(self.padding, int) or self.padding < 0:
            raise ValueError(f"padding={self.padding!r} must be a whole number of bytes, 0 or more")
        span = 16 * (SWIZZLES[self.swizzle] + 1)
        least = 8 * span if self.swizzle != "none" else 16  # where its pattern begins
        if not self.alignment:
            object.__setattr__(self, "alignment", least)
        if self.alignment < 1 or self.alignment & (self.alignment - 1):
            raise ValueError(f"alignment={self.alignment} must be a power of two")
        if self.swizzle != "none" and (self.alignment < least or len(shape) < 2 or self._row > span):
            given = f"swizzle={self.swizzle!r} of rows of {self._row} bytes, alignment={self.alignment}"
            raise ValueError(f"{given}: it needs two dimensions, rows of at most {span} bytes, and {least}")
        if (self.padding or self.swizzle != "none") and shape[0] > 1 and self.stride % self.alignment:
            more = -self.box_bytes % self.alignment
            raise ValueError(f"index 1 begins {self.stride} bytes behind index 0, which is no multiple of "
                             f"alignment={self.alignment}; padding={more} makes it one")  # fmt: skip
        if self.cluster != 1 and (self.cluster not in (2, 4, 8) or len(shape) < 2 or shape[1] % self.cluster
                                  or self.box_bytes // self.cluster % self.alignment):  # fmt: skip
            raise ValueError(f"cluster={self.cluster} must be 1, 2, 4 or 8, and part shape[1] of {shape} into "
                             f"boxes that begin on multiples of alignment={self.alignment}")  # fmt: skip

    @functools.cached_property
    def box_bytes(self):
        """Of one index of the first dimension."""
        return math.prod(self.shape[1:]) * self._numpy.itemsize

    @property
    def stride(self):
        """Bytes from one index of the first dimension to the next."""
        return self.box_bytes + self.padding

    @property
    def bytes(self):
        return self.shape[0] * self.stride

    @property
    def box(self):
        """What one copy brings of an index of the first dimension, innermost first, for a TensorMap."""
        rows = [self.shape[1] // self.cluster] if self.shape[1:] else []
        return (*self.shape[:1:-1], *rows)

    @property
    def _row(self):
        return self.shape[-1] * self._numpy.itemsize

    @functools.cached_property
    def _numpy(self):
        return as_dtype(self.dtype) if isinstance(self.dtype, types.Type) else np.dtype(self.dtype)

    @property
    def _element(self):
        """Of its views: of a type that Numba has not, such as bfloat16, the bits as whole numbers."""
        return from_dtype(np.dtype(f"u{self._numpy.itemsize}") if self._numpy.kind == "V" else self._numpy)

    def functions(self, name, start, offset):
        """The Namespace for kernels; the array lies ``offset`` bytes behind the address ``start()``."""
        SHAPE, BOX, DTYPE, OFFSET = self.shape, self.shape[1:] or (1,), self._element, offset
        STRIDE, ROW, TURN = self.stride, self._row, SWIZZLES[self.swizzle]

        @cuda.jit(device=True, forceinline=True)
        def box_at(index):
            return uint32(start() + uint32(OFFSET) + uint32(index) * uint32(STRIDE))

        @cuda.jit(device=True, forceinline=True)
        def chunk_at(index, row, chunk):
            byte = uint32(uint32(row) * uint32(ROW) + uint32(chunk) * uint32(16))
            return uint32(box_at(index) + (byte ^ (byte >> uint32(7) & uint32(TURN)) << uint32(4)))

        @cuda.jit(device=True, inline="always")
        def at(index, row=None, chunk=0):
            if row is None:
                return box_at(index)
            return chunk_at(index, row, chunk)

        @cuda.jit(device=True, inline="always")
        def view():
            return shared_array(uint32(start() + uint32(OFFSET)), SHAPE, DTYPE)

        @cuda.jit(device=True, inline="always")
        def box_view(index):
            return shared_array(box_at(index), BOX, DTYPE)

        sizes = {"stride": STRIDE, "box_bytes": self.box_bytes, "nbytes": self.bytes}
        whole = {} if self.padding else {"view": view}
        if 1 <= len(self.box) <= 5:
            whole["load"] = _load(self, box_at)
        return Namespace(name, **whole, box_view=box_view, at=at, **sizes, _array=self)

    def name_of(self, name, offset):
        """The element at a byte of it."""
        box, byte = divmod(offset, self.stride)
        if byte >= self.box_bytes:
            return f"{name}[{box}], {byte - self.box_bytes} bytes into its padding"
        index = np.unravel_index(byte // self._numpy.itemsize, self.shape[1:]) if self.shape[1:] else ()
        return f"{name}[{', '.join(map(str, (box, *index)))}]"


def _load(array, box_at):
    """The device function ``load`` of an Array."""
    BYTES, ROWS, PART = array.box_bytes, array.box[-1], array.box_bytes // array.cluster
    name, EVERYBODY = f"cp_async_bulk_tensor_{len(array.box)}d", 2**array.cluster - 1
    copy = getattr(tma, name) if array.cluster == 1 else getattr(cluster, f"{name}_multicast")

    @cuda.jit(device=True, forceinline=True)
    def load(index, map, corner, bar):
        mbarrier_arrive_expect_tx(bar, uint32(BYTES))
        copy(box_at(index), map, *corner, bar)

    @cuda.jit(device=True, forceinline=True)
    def load_part(index, map, corner, bar):
        mbarrier_arrive_expect_tx(bar, uint32(BYTES))  # those of all parts
        rank = int32(cluster.cluster_ctarank())
        part, row = uint32(box_at(index) + uint32(rank) * uint32(PART)), int32(corner[-1] + rank * ROWS)
        copy(part, map, *corner[:-1], row, bar, uint32(EVERYBODY))

    return load if array.cluster == 1 else load_part


def _start(alignment):
    """A device function: the shared address of the first part."""
    ALIGNMENT = alignment

    @cuda.jit(device=True, forceinline=True)
    def start():
        return dynamic_start(uint32(ALIGNMENT))

    return start


def _init(start, inits, of_warps, allocations, in_cluster):
    """A device function: ``allocations`` by the block's first warp, ``inits`` by its first thread and
    ``of_warps`` by the first of each warp, before anybody, of the cluster where it is for one, goes on."""
    BLOCK, WARPS, TENSORS, CLUSTER = bool(inits), bool(of_warps), bool(allocations), in_cluster
    allocate = functools.reduce(_both, allocations or [_nothing])
    of_block = functools.reduce(_both, inits or [_nothing])
    of_warp = functools.reduce(_both, of_warps or [_nothing])

    @cuda.jit(device=True, forceinline=True)
    def init():
        first = start()  # here, so that all later uses have it from here
        if TENSORS:
            if warp() == 0:
                allocate(first)
        if BLOCK:
            if cuda.threadIdx.x == 0:
                of_block(first)
                fence_mbarrier_init()
        if WARPS:
            if lane() == 0:
                of_warp(first)
                fence_mbarrier_init()
        if CLUSTER:
            cluster.cluster_sync()
        else:
            cuda.syncthreads()

    @cuda.jit(device=True, forceinline=True)
    def nothing():
        pass

    return init if inits or of_warps or allocations else nothing


@cuda.jit(device=True, forceinline=True)
def _nothing(start):
    pass


def _both(one, other):
    """A device function: one after the other."""

    @cuda.jit(device=True, forceinline=True)
    def both(start):
        one(start)
        other(start)

    return both

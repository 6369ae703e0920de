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

import numpy as np
from numba import cuda, int32, types, uint32
from numba.np.numpy_support import as_dtype, from_dtype

from . import pipeline
from .limits import MAX_THREADS, NAMED_BARRIERS, SHARED_LIMIT
from .memory import dynamic_start, shared_array, shared_at
from .namespace import Namespace
from .sync import bar_arrive, bar_sync, fence_mbarrier_init, lane, warp

DYNAMIC_ALIGNMENT = 16  # bytes; dynamic shared memory starts on a multiple of nothing larger
BARRIER = 8  # bytes of an mbarrier
TAKEN = "init", "bytes", "barrier_bytes", "map", "name_of", "parts"  # of a Shared itself


class Shared(Namespace):
    """The layout of a block's shared memory: ``Shared(name=part, ...)`` with parts Array, Ring, WarpRing,
    NamedBarrier.

    For kernels: ``init()``, by all threads of the block before anything else, and each part by its name.
    For the host: ``bytes`` of dynamic shared memory, which a kernel with ``shared=`` is launched with."""

    def __init__(self, **parts):
        super().__init__("shared")
        self._parts = parts
        alignment = max([DYNAMIC_ALIGNMENT, *(part.alignment for part in parts.values())])
        start, offset, named, inits, of_warps = _start(alignment), 0, 0, [], []
        self._places = []  # (first byte, its part, name)
        for name, part in parts.items():
            if name.startswith("_") or name in TAKEN:
                raise ValueError(f"{name}= cannot be a part of shared memory: that name is taken")
            if isinstance(part, NamedBarrier):
                named += 1
                setattr(self, name, part.functions(name, named))
                continue
            offset = -(-offset // part.alignment) * part.alignment
            self._places.append((offset, part, name))
            setattr(self, name, part.functions(name, start, offset))
            if isinstance(part, (Ring, WarpRing)):
                (inits if isinstance(part, Ring) else of_warps).append(part.init(offset))
                getattr(self, name).number = len(self._places)  # by which marks tell rings apart
            offset += part.bytes
        if named > NAMED_BARRIERS:
            raise ValueError(f"{named} named barriers: a block has {NAMED_BARRIERS} beside that of syncthreads")
        self._alignment, self.bytes = alignment, offset + alignment - DYNAMIC_ALIGNMENT
        if self.bytes > SHARED_LIMIT:
            sizes = ", ".join(f"{name} {part.bytes}" for _, part, name in self._places)
            raise ValueError(f"{self.bytes} bytes of shared memory ({sizes}): a block has {SHARED_LIMIT}")
        self.init = _init(start, inits, of_warps)

    def __reduce__(self):
        """It is made again from its parts in another process."""
        return _made, (self._parts,)

    @property
    def barrier_bytes(self):
        """Those of ``bytes`` that are barriers."""
        return sum(part.bytes for part in self.parts() if isinstance(part, (Ring, WarpRing)))

    @property
    def rings(self):
        """``{number: name}`` of the rings; the number is that of their marks."""
        return {number: name for number, (_, part, name) in enumerate(self._places, 1)
                if isinstance(part, (Ring, WarpRing))}  # fmt: skip

    def parts(self):
        """The arrays and rings, in order."""
        return [part for _, part, _ in self._places]

    def name_of(self, address, start):
        """What lies at a shared address, where dynamic shared memory begins at ``start``: ``tiles[1, 4]``; None
        between the parts."""
        offset = address - -(-start // self._alignment) * self._alignment
        for first, part, name in self._places:
            if first <= offset < first + part.bytes:
                return part.name_of(name, offset - first)
        return None


def _made(parts):
    return Shared(**parts)


@dataclass(frozen=True)
class Array:
    """An array in shared memory: ``shape``, and ``dtype``, one of Numba's number types or NumPy's.

    ``alignment`` in bytes: 128 for what TMA writes, 1024 where a swizzle of 128 bytes is to begin at row 0.
    In a kernel, called ``tiles``:

    tiles.view()     all of it as an array, with its shape
    tiles.at(index)  the shared address of ``tiles[index]``
    tiles.stride     the bytes of that
    tiles.nbytes     the bytes of all
    """

    shape: tuple
    dtype: object
    alignment: int = 16

    def __post_init__(self):
        shape = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
        object.__setattr__(self, "shape", shape)
        if not shape or not all(isinstance(n, int) and n > 0 for n in shape):
            raise ValueError(f"shape={self.shape} must be whole numbers above 0")
        if self.alignment < 1 or self.alignment & (self.alignment - 1):
            raise ValueError(f"alignment={self.alignment} must be a power of two")

    @property
    def bytes(self):
        return math.prod(self.shape) * self._numpy.itemsize

    @property
    def _numpy(self):
        return as_dtype(self.dtype) if isinstance(self.dtype, types.Type) else np.dtype(self.dtype)

    def functions(self, name, start, offset):
        """The Namespace for kernels; the array lies ``offset`` bytes behind the address ``start()``."""
        SHAPE, DTYPE, OFFSET = self.shape, from_dtype(self._numpy), offset
        STRIDE = self.bytes // self.shape[0]

        @cuda.jit(device=True, inline="always")
        def view():
            return shared_array(uint32(start() + uint32(OFFSET)), SHAPE, DTYPE)

        @cuda.jit(device=True, forceinline=True)
        def at(index):
            return uint32(start() + uint32(OFFSET) + uint32(index) * uint32(STRIDE))

        return Namespace(name, view=view, at=at, stride=STRIDE, nbytes=self.bytes)

    def name_of(self, name, offset):
        """The element at a byte of it."""
        index = np.unravel_index(offset // self._numpy.itemsize, self.shape)
        return f"{name}[{', '.join(map(str, index))}]"


@dataclass(frozen=True)
class Ring:
    """The barriers of a ring of ``stages``, a *full* and an *empty* one for each.

    They complete after ``full`` and ``empty`` arrivals. Every producer and every consumer keeps a state of its
    own. For each use a producer calls acquire and expect, issues copies that complete on full, and advances; a
    consumer calls wait, reads the stage, calls release, and advances. In a kernel, called ``ring``:

    ring.start()             the state at first, of a producer or a consumer
    ring.start(n)            the state of use n, from 0 on: where the n-th of several producers in turn begins
    ring.advance(state)      the state of the next use
    ring.advance(state, n)   the state n uses on: of n producers in turn each takes every n-th. There are no
                             more of them than stages: with more, one may be two laps ahead, which a
                             parity cannot tell from none
    state.stage              which stage that is, from 0 on
    ring.acquire(state)      producer: wait until the stage is empty
    ring.expect(state, n)    producer: arrive on full, and so many bytes are to come
    ring.full(state)         the shared address of the barrier that copies complete on
    ring.wait(state)         consumer: wait until the stage is full
    ring.release(state)      consumer: arrive on empty
    ring.empty(state)        the shared address of the barrier that is released
    ring.init()              initialise the barriers, by one thread, where ``shared.init()`` does not
    ring.stages

    ``empty=0`` is for warps that fill again what they alone have read: there are no empty barriers and no
    ``acquire``, and ``release`` waits until all lanes of the warp have read the stage. ``barriers`` is the
    number of full ones, where it is not that of the stages (``pipeline.barrier_count``).
    """

    stages: int
    full: int = 1
    empty: int = 1
    barriers: int = 0

    alignment = BARRIER

    def __post_init__(self):
        for name, least in (("stages", 1), ("full", 1), ("empty", 0)):
            count = getattr(self, name)
            if not isinstance(count, int) or not least <= count < 1 << 20:
                raise ValueError(f"{name}={count} of a ring must be a whole number from {least} on")
        _check_barriers(self)

    @property
    def bytes(self):
        return BARRIER * (_full_barriers(self) + (self.stages if self.empty else 0))

    def init(self, offset):
        """A device function of an address: one thread initialises the barriers ``offset`` bytes behind it."""
        FIRST, BARRIERS, STAGES, FULL, EMPTY = offset, _full_barriers(self), self.stages, self.full, self.empty

        @cuda.jit(device=True, forceinline=True)
        def init(start):
            pipeline.init_barriers(uint32(start + uint32(FIRST)), BARRIERS, FULL)
            if EMPTY:
                pipeline.init_barriers(uint32(start + uint32(FIRST + BARRIER * BARRIERS)), STAGES, EMPTY)

        return init

    def functions(self, name, start, offset):
        """The Namespace for kernels; the barriers lie ``offset`` bytes behind the address ``start()``."""
        FIRST, SECOND = offset, offset + BARRIER * _full_barriers(self)

        @cuda.jit(device=True, forceinline=True)
        def barriers():
            return pipeline.Ring(uint32(start() + uint32(FIRST)), uint32(start() + uint32(SECOND)))

        return _ring_functions(self, name, barriers, _alone(start, self.init(offset)), bool(self.empty))

    def name_of(self, name, offset):
        number, full = offset // BARRIER, _full_barriers(self)
        return f"{name}.full[{number}]" if number < full else f"{name}.empty[{number - full}]"


@dataclass(frozen=True)
class WarpRing:
    """A ring of ``stages`` for each of the block's ``warps``, which fills its stages and reads them alone.

    A stage may be filled again when all lanes of its warp have read it, so there are full barriers only, each
    for one arrival and the bytes that it expects. Each warp has its own states. In a kernel, called ``ring``:

    ring.start(), ring.advance(state), ring.expect(state, n), ring.full(state), ring.wait(state), ring.stages
                             as those of a Ring
    ring.release(state)      all lanes have read the stage: they wait for each other
    ring.slot(state)         the stage's number among those of all warps, whose stages lie behind one another
    ring.init()              as that of a Ring, by one lane of each warp

    ``barriers`` of a warp are as those of a Ring.
    """

    stages: int
    warps: int
    barriers: int = 0

    alignment = BARRIER

    def __post_init__(self):
        for name, limit in (("stages", 1 << 20), ("warps", MAX_THREADS // 32 + 1)):
            count = getattr(self, name)
            if not isinstance(count, int) or not 1 <= count < limit:
                raise ValueError(f"{name}={count} of a ring for each warp must be from 1 to {limit - 1}")
        _check_barriers(self)

    @property
    def bytes(self):
        return BARRIER * _full_barriers(self) * self.warps

    def init(self, offset):
        """A device function of an address: a lane of each warp initialises its barriers, of those ``offset``
        bytes behind it."""
        FIRST, BARRIERS, STRIDE = offset, _full_barriers(self), BARRIER * _full_barriers(self)

        @cuda.jit(device=True, forceinline=True)
        def init(start):
            pipeline.init_barriers(shared_at(uint32(start + uint32(FIRST)), warp(), STRIDE), BARRIERS, 1)

        return init

    def functions(self, name, start, offset):
        """The Namespace for kernels; the barriers lie ``offset`` bytes behind the address ``start()``."""
        FIRST, STAGES, STRIDE = offset, self.stages, BARRIER * _full_barriers(self)

        @cuda.jit(device=True, forceinline=True)
        def barriers():
            return pipeline.Ring(shared_at(uint32(start() + uint32(FIRST)), warp(), STRIDE), uint32(0))

        @cuda.jit(device=True, forceinline=True)
        def slot(state):
            return int32(warp() * int32(STAGES) + state.stage)

        ring = _ring_functions(self, name, barriers, _alone(start, self.init(offset)), False)
        ring.slot = slot
        return ring

    def name_of(self, name, offset):
        warp, barrier = divmod(offset // BARRIER, _full_barriers(self))
        return f"{name}.full[{warp}, {barrier}]"


def _full_barriers(ring):
    """Full barriers of a Ring, or of a warp's in a WarpRing."""
    return ring.barriers or ring.stages


def _check_barriers(ring):
    if not isinstance(ring.barriers, int) or ring.barriers and not ring.stages <= ring.barriers < 1 << 20:
        rule = f"must be at least its stages={ring.stages}, or 0 for as many"
        raise ValueError(f"barriers={ring.barriers} of a ring {rule}")


def _ring_functions(part, name, barriers, init, has_empty):
    """The Namespace for kernels of a ring whose addresses, a ``pipeline.Ring``, are ``barriers()``."""

    @cuda.jit(device=True, forceinline=True)
    def acquire(state):
        pipeline.acquire(barriers(), state)

    @cuda.jit(device=True, forceinline=True)
    def expect(state, bytes):
        pipeline.commit(barriers(), state, bytes)

    @cuda.jit(device=True, forceinline=True)
    def full(state):
        return pipeline.full_barrier(barriers(), state)

    @cuda.jit(device=True, forceinline=True)
    def wait(state):
        pipeline.wait(barriers(), state)

    @cuda.jit(device=True, forceinline=True)
    def release(state):
        pipeline.release(barriers(), state)

    @cuda.jit(device=True, forceinline=True)
    def release_in_warp(state):
        pipeline.release_in_warp(barriers(), state)

    @cuda.jit(device=True, forceinline=True)
    def empty(state):
        return shared_at(barriers().empty, state.stage, BARRIER)

    @cuda.jit(device=True, inline="always")
    def first_use(use=0):
        return skip(pipeline.first_state(), use)

    @cuda.jit(device=True, inline="always")
    def advance(state, uses=1):
        if uses == 1:
            return next_use(state)
        return skip(state, uses)

    both = part.stages, _full_barriers(part)
    next_use, skip = pipeline.make_advance(*both), _skip(*both)
    ring = Namespace(
        name, start=first_use, advance=advance, expect=expect, full=full, wait=wait,
        release=release if has_empty else release_in_warp, init=init, stages=part.stages,
    )  # fmt: skip
    if has_empty:
        ring.acquire, ring.empty = acquire, empty
    return ring


def _skip(stages, barriers):
    """A device function: the state so many uses on, in a ring with that many stages and full barriers."""
    STAGES, BARRIERS = stages, barriers

    @cuda.jit(device=True, inline="always")
    def skip(state, uses):
        laps = int32(int32(state.barrier + uses) // BARRIERS)
        barrier = int32(state.barrier + uses - laps * BARRIERS)
        return pipeline.PipelineState(
            int32(int32(state.stage + uses) % STAGES), barrier, int32(state.parity ^ (laps & 1))
        )

    return skip


def _alone(start, init):
    """A device function: one thread initialises the barriers of a ring, for the copy engine too."""

    @cuda.jit(device=True, forceinline=True)
    def init_alone():
        init(start())
        fence_mbarrier_init()

    return init_alone


@dataclass(frozen=True)
class NamedBarrier:
    """A hardware barrier of ``threads`` of the block, whole warps; its number is the layout's business.

    In a kernel, called ``meeting``: ``meeting.sync()`` waits for all of them, ``meeting.arrive()`` does not."""

    threads: int

    alignment = bytes = 1

    def __post_init__(self):
        if not isinstance(self.threads, int) or self.threads % 32 or not 32 <= self.threads <= MAX_THREADS:
            rule = f"must be a multiple of 32, at most {MAX_THREADS}"
            raise ValueError(f"threads={self.threads} of a named barrier {rule}")

    def functions(self, name, number):
        """The Namespace for kernels, of the barrier of that number."""
        NUMBER, THREADS = number, self.threads

        @cuda.jit(device=True, forceinline=True)
        def sync():
            bar_sync(uint32(NUMBER), uint32(THREADS))

        @cuda.jit(device=True, forceinline=True)
        def arrive():
            bar_arrive(uint32(NUMBER), uint32(THREADS))

        return Namespace(name, sync=sync, arrive=arrive, threads=self.threads)


def _start(alignment):
    """A device function: the shared address of the first part."""
    ALIGNMENT = alignment

    @cuda.jit(device=True, forceinline=True)
    def start():
        return dynamic_start(uint32(ALIGNMENT))

    return start


def _init(start, inits, of_warps):
    """A device function: ``inits`` by the block's first thread and ``of_warps`` by the first of each warp,
    before anybody goes on."""
    BLOCK, WARPS = bool(inits), bool(of_warps)
    of_block = functools.reduce(_both, inits or [_nothing])
    of_warp = functools.reduce(_both, of_warps or [_nothing])

    @cuda.jit(device=True, forceinline=True)
    def init():
        first = start()  # here, so that all later uses have it from here
        if BLOCK:
            if cuda.threadIdx.x == 0:
                of_block(first)
                fence_mbarrier_init()
        if WARPS:
            if lane() == 0:
                of_warp(first)
                fence_mbarrier_init()
        cuda.syncthreads()

    @cuda.jit(device=True, forceinline=True)
    def nothing():
        pass

    return init if inits or of_warps else nothing


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

"""Barriers as parts of a block's shared memory (``layout.py``): rings of stages, single ones, named ones."""

from dataclasses import dataclass

from numba import cuda, int32, uint32

from . import pipeline
from .cluster import mapa_shared_cluster, mbarrier_arrive_cluster
from .limits import MAX_COUNT, MAX_THREADS, NAMED_BARRIERS, PORTABLE_CLUSTER
from .mbarrier import mbarrier_arrive, mbarrier_arrive_expect_tx, mbarrier_init
from .memory import shared_at
from .namespace import Namespace
from .sync import bar_arrive, bar_sync, fence_mbarrier_init, fence_proxy_async, lane, warp

BARRIER = 8  # bytes of an mbarrier


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
    ring.expect(state, n)    producer: arrive on full, and so many bytes are to come. What ``tiles.load`` of an
                             Array brings it announces itself, with an arrival of its own
    ring.full(state)         the shared address of the barrier that copies complete on
    ring.wait(state)         consumer: wait until the stage is full
    ring.release(state)      consumer: arrive on empty, past the fence that lets a copy overwrite what was read
    ring.arrive(state)       consumer: arrive on empty alone, where only ``wgmma`` has read the stage
    ring.empty(state)        the shared address of the barrier that is released
    ring.init()              initialise the barriers, by one thread, where ``shared.init()`` does not
    ring.stages

    ``cluster=n`` is for stages that n blocks fill for each other, as an Array with ``cluster`` does: ``empty``
    warps of each block say to all of them that they have read one, so all lanes of a warp call ``release``, or
    ``arrive``, which wait for each other. ``shared.init()`` then waits for the whole cluster, and at the end of
    the kernel ``nd.cluster_sync()`` has to, since other blocks arrive on barriers of this one until then.

    ``empty=0`` is for warps that fill again what they alone have read: there are no empty barriers and no
    ``acquire``, and ``release`` fences and waits until all lanes of the warp have read the stage. ``barriers``
    is the number of full ones, where it is not that of the stages (``pipeline.barrier_count``).
    """

    stages: int
    full: int = 1
    empty: int = 1
    barriers: int = 0
    cluster: int = 1

    alignment = BARRIER

    def __post_init__(self):
        for name, least in (("stages", 1), ("full", 1), ("empty", 0), ("cluster", 1)):
            count, most = getattr(self, name), PORTABLE_CLUSTER if name == "cluster" else MAX_COUNT
            if not isinstance(count, int) or not least <= count <= most:
                raise ValueError(f"{name}={count} of a ring must be a whole number from {least} to {most}")
        _check_barriers(self)

    @property
    def bytes(self):
        return BARRIER * (_full_barriers(self) + (self.stages if self.empty else 0))

    def init(self, offset):
        """A device function of an address: one thread initialises the barriers ``offset`` bytes behind it."""
        FIRST, BARRIERS, STAGES, FULL = offset, _full_barriers(self), self.stages, self.full
        EMPTY = self.empty * self.cluster

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
    ring.release(state)      all lanes have read the stage: they fence, and wait for each other
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


@dataclass(frozen=True)
class Barrier:
    """One mbarrier without a ring, whose phases complete after ``count`` arrivals: for what is loaded once, or
    for an order of one's own. In a kernel, called ``loaded``:

    loaded.expect(n)       arrive, and n bytes are to come
    loaded.arrive()        arrive
    loaded.wait(parity)    wait until the phase of that parity is complete: 0 for the first one, then 1, 0, ..
    loaded.at()            its shared address, which copies complete on
    loaded.init()          initialise it, by one thread, where ``shared.init()`` does not
    """

    count: int = 1

    alignment = bytes = BARRIER

    def __post_init__(self):
        if not isinstance(self.count, int) or not 1 <= self.count <= MAX_COUNT:
            raise ValueError(f"count={self.count} of a barrier must be a whole number from 1 to {MAX_COUNT}")

    def init(self, offset):
        """A device function of an address: one thread initialises the barrier ``offset`` bytes behind it."""
        FIRST, COUNT = offset, self.count

        @cuda.jit(device=True, forceinline=True)
        def init(start):
            mbarrier_init(uint32(start + uint32(FIRST)), uint32(COUNT))

        return init

    def functions(self, name, start, offset):
        """The Namespace for kernels; the barrier lies ``offset`` bytes behind the address ``start()``."""
        FIRST = offset

        @cuda.jit(device=True, forceinline=True)
        def at():
            return uint32(start() + uint32(FIRST))

        @cuda.jit(device=True, forceinline=True)
        def expect(bytes):
            mbarrier_arrive_expect_tx(at(), bytes)

        @cuda.jit(device=True, forceinline=True)
        def arrive():
            mbarrier_arrive(at())

        @cuda.jit(device=True, forceinline=True)
        def wait(parity):
            pipeline.mbarrier_wait(at(), parity)

        init = _alone(start, self.init(offset))
        return Namespace(name, at=at, expect=expect, arrive=arrive, wait=wait, init=init)

    def name_of(self, name, offset):
        return name


RINGS = Ring, WarpRing
BARRIERS = *RINGS, Barrier


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
    def arrive(state):
        pipeline.arrive(barriers(), state)

    @cuda.jit(device=True, forceinline=True)
    def release_in_warp(state):
        pipeline.release_in_warp(barriers(), state)

    @cuda.jit(device=True, forceinline=True)
    def empty(state):
        return shared_at(barriers().empty, state.stage, BARRIER)

    @cuda.jit(device=True, forceinline=True)
    def arrive_in_cluster(state):
        cuda.syncwarp()  # all lanes have read the stage
        if lane() < BLOCKS:
            mbarrier_arrive_cluster(mapa_shared_cluster(empty(state), uint32(lane())))

    @cuda.jit(device=True, forceinline=True)
    def release_in_cluster(state):
        fence_proxy_async()
        arrive_in_cluster(state)

    @cuda.jit(device=True, inline="always")
    def first_use(use=0):
        return skip(pipeline.first_state(), use)

    @cuda.jit(device=True, inline="always")
    def advance(state, uses=1):
        if uses == 1:
            return next_use(state)
        return skip(state, uses)

    BLOCKS, both = getattr(part, "cluster", 1), (part.stages, _full_barriers(part))
    if BLOCKS > 1:
        release, arrive = release_in_cluster, arrive_in_cluster
    next_use, skip = pipeline.make_advance(*both), _skip(*both)
    ring = Namespace(
        name, start=first_use, advance=advance, expect=expect, full=full, wait=wait,
        release=release if has_empty else release_in_warp, init=init, stages=part.stages,
    )  # fmt: skip
    if has_empty:
        ring.acquire, ring.empty, ring.arrive = acquire, empty, arrive
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

    In a kernel, called ``meeting``: ``meeting.sync()`` waits for all of them, ``meeting.arrive()`` does not.
    With ``count`` there are so many of them, ``meeting.sync(i)`` and ``meeting.arrive(i)``, from 0 on."""

    threads: int
    count: int = 1

    alignment = bytes = 1

    def __post_init__(self):
        if not isinstance(self.threads, int) or self.threads % 32 or not 32 <= self.threads <= MAX_THREADS:
            rule = f"must be a multiple of 32, at most {MAX_THREADS}"
            raise ValueError(f"threads={self.threads} of a named barrier {rule}")
        if not isinstance(self.count, int) or not 1 <= self.count <= NAMED_BARRIERS:
            raise ValueError(f"count={self.count} of a named barrier must be from 1 to {NAMED_BARRIERS}")

    def functions(self, name, number):
        """The Namespace for kernels, of the barriers from that number on."""
        NUMBER, THREADS = number, self.threads

        @cuda.jit(device=True, forceinline=True)
        def sync(index=0):
            bar_sync(uint32(NUMBER + index), uint32(THREADS))

        @cuda.jit(device=True, forceinline=True)
        def arrive(index=0):
            bar_arrive(uint32(NUMBER + index), uint32(THREADS))

        return Namespace(name, sync=sync, arrive=arrive, threads=self.threads)

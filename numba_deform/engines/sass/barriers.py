"""mbarriers, the copy engine, and what else works behind the threads' backs; here it is done at once.

[UR8] of a tensor load      where in shared memory, the barrier, the corner: UR8, UR9, UR10 ..
[UR8] of a tensor store     where in shared memory, the corner: UR8, UR9 ..
third operand               units of 16 bytes, of a multicast the blocks' mask in the upper half
"""

from dataclasses import dataclass, field

import numpy as np

from ..cpu.async_units.reductions import KINDS
from .accesses import CHANGE_WORDS, HINTS, change_of, register, width, words_of
from .operands import REGISTER, U32, U64, Unknown
from .table import plain, row

COUNT = (1 << 20) - 1
UNIT = 16
# How many offsets and of how many bits the operand of an im2col load holds, by the map's rank.
OFFSETS = {3: (1, 16), 4: (2, 8), 5: (3, 5)}


class Token:
    """A phase of a barrier, which is over when all has been done that it needs: ``left`` things.
    ``waiting``: who waits for it, in ``sm``."""

    __slots__ = ("left", "waiting")

    def __init__(self):
        self.left, self.waiting = 0, []


@dataclass
class MBarrier:
    """``count`` arrivals end a phase, when no bytes are expected; ``phases`` have ended. ``token`` is of the
    phase that goes on, ``last`` of the one that is over."""

    count: int
    pending: int
    bytes: int = 0
    phases: int = 0
    token: Token = field(default_factory=Token)
    last: Token | None = None

    def settle(self):
        if self.pending <= 0 and not self.bytes:
            self.pending, self.phases = self.count, self.phases + 1
            self.last, self.token = self.token, Token()

    def passed(self, parity):
        """Whether the phase of that parity is over."""
        return (self.phases - 1) & 1 == parity


def initialise(w, address, value):
    """The word holds (2^20 - count) << 1 in its lower half."""
    if w.active.any():
        count = (1 << 20) - (int(value[0]) >> 1 & COUNT)
        w.block.barriers(int(address[0]))[int(address[0]) & 0xFFFFFF] = MBarrier(count, count)


def invalidate(w, address):
    if w.active.any():
        w.block.barriers(int(address[0])).pop(int(address[0]) & 0xFFFFFF, None)


ARRIVALS = {"A1T0": (1, 0), "ART0": ("register", 0), "A0TR": (0, "register"), "A0T1": (0, 1),
            "": (1, "register")}  # fmt: skip
"""{modifier: (arrivals, bytes that are expected from now on)}"""


def arrive(one):
    """Its result: the phase in bit 63, below it 2^20 less the arrivals that were pending before, and which
    lanes came with it where TMASK is named."""
    arrivals, expects = ARRIVALS[next((name for name in ARRIVALS if name in one.words), "")]

    def run(w, _, address, value):
        lanes = np.flatnonzero(w.active)
        address, value = np.broadcast_to(address, (32,)), np.broadcast_to(value, (32,))
        state, mask = np.zeros(32, U64), sum(1 << int(lane) for lane in lanes) if "TMASK" in one.words else 0
        for lane in lanes:
            barrier = w.block.barrier(one, int(address[lane]))
            pending = (1 << 20) - barrier.pending & COUNT
            state[lane] = (barrier.phases & 1) << 63 | pending << 43 | mask
            if mask:  # the others count from what the first has found
                state[lane] = state[lanes[0]]
            barrier.bytes += int(value[lane]) if expects == "register" else expects
            barrier.pending -= int(value[lane]) if arrivals == "register" else arrivals
            barrier.count -= "OPTOUT" in one.words
            w.block.counts.gives(barrier.token)
            barrier.settle()
        k = register(one.operands[0])
        if k is not None:
            w.r[k, lanes], w.r[k + 1, lanes] = state[lanes].astype(U32), (state[lanes] >> U64(32)).astype(U32)

    return run


def needs(w, address, value):
    """{(address, parity)} of the phases that the lanes ask for."""
    address, value = np.broadcast_to(address, (32,)), np.broadcast_to(value, (32,))
    return {(int(a), int(v) >> 31) for a, v in zip(address[w.active], value[w.active], strict=True)}


def check_phase(one):
    def run(w, address, value):
        barriers = {need: w.block.barrier(one, need[0]) for need in needs(w, address, value)}
        passed = {need: barrier.passed(need[1]) for need, barrier in barriers.items()}
        for need, barrier in barriers.items():
            if passed[need] and barrier.last:
                w.block.counts.waits(barrier.last)
        asked = zip(np.broadcast_to(address, (32,)), np.broadcast_to(value, (32,)), strict=True)
        return np.array([passed.get((int(a), int(v) >> 31), False) for a, v in asked])

    return run


def arrive_after_copies(one):
    """ARVCNT: one arrival less is awaited; TRANSCNT: one of the bytes, which A0T1 has added."""
    name = "pending" if "ARVCNT" in one.words else "bytes"

    def run(w, address):
        for lane in np.flatnonzero(w.active):
            barrier = w.block.barrier(one, int(np.broadcast_to(address, (32,))[lane]))
            setattr(barrier, name, getattr(barrier, name) - 1)
            w.block.counts.gives(barrier.token, "copies")
            barrier.settle()

    return run


def complete(block, one, address, size):
    """So many bytes of those that a barrier expects have come."""
    barrier = block.barrier(one, address)
    block.counts.gives(barrier.token, "engine")
    barrier.bytes -= size
    barrier.settle()


# --- the copy engine ---------------------------------------------------------------------------------
def uniform(text):
    """The number k of [URk]."""
    m = REGISTER.fullmatch(text.strip("[]"))
    if m is None or m[1] != "UR":
        raise Unknown(f"operand {text}")
    return int(m[2])


def once(function):
    """What the copy engine is asked for once for the warp, if any lane takes part."""
    return lambda w, *given: function(w) if w.active.any() else None


def pair(w, k):
    return int(w.u[k][0]) | int(w.u[k + 1][0]) << 32


def ranks(mask):
    return [rank for rank in range(16) if mask >> rank & 1]


def signed(number):
    return int(number) - (int(number) >> 31 << 32)


def tensor_load(one):
    k, m, rank = uniform(one.operands[0]), uniform(one.operands[1]), _rank(one)
    more = uniform(one.operands[2]) if len(one.operands) > 2 and one.words & {"IM2COL", "MULTICAST"} else None

    def run(w):
        block, map = w.block, pair(w, m)
        chosen = block.memory.map_at(map)
        corner = [signed(w.u[k + 2 + i][0]) for i in range(rank)]
        given = 0 if more is None else int(w.u[more][0])
        count, bits = OFFSETS[rank] if "IM2COL" in one.words else (0, 0)
        offsets = tuple(given >> bits * i & (1 << bits) - 1 for i in range(count))
        place = (corner, offsets) if offsets else (corner,)
        data = chosen.load_box(*place)
        block.counts.bulk(one, len(data), chosen.runs(*place), map)
        deliver(w, one, k, given >> 16, data, swizzle=chosen.swizzle)

    return once(run)


def deliver(w, one, k, mask, data, **how):
    """Put bytes at the place in URk of the own block, or of those of a multicast's ``mask``, and tell the
    barrier in URk + 1, or those at its place there."""
    block, where, barrier = w.block, int(w.u[k][0]), int(w.u[k + 1][0])
    for rank in ranks(mask) if "MULTICAST" in one.words else [None]:
        block.space_of(where, rank).put(where & 0xFFFFFF, data, **how)
        own = barrier if rank is None else barrier & 0xFFFFFF | rank << 24
        complete(block if rank is None else block.cluster[rank], one, own, len(data))


def _rank(one):
    return next(int(word[0]) for word in one.words if word in ("1D", "2D", "3D", "4D", "5D"))


def acquire_map(one):
    """The fence after which the copy engine fetches maps again."""
    m = uniform(one.operands[0])
    return once(lambda w: w.block.counts.acquired(pair(w, m)))


def tensor_store(one):
    """And tensor reductions, which change what is there."""
    k, m, rank = uniform(one.operands[0]), uniform(one.operands[1]), _rank(one)

    def run(w):
        map = pair(w, m)
        chosen = w.block.memory.map_at(map)
        corner, where = [signed(w.u[k + 1 + i][0]) for i in range(rank)], int(w.u[k][0])
        data = w.block.space_of(where).get(where & 0xFFFFFF, chosen.box_bytes, chosen.swizzle)
        w.block.counts.bulk(one, len(data), chosen.runs(corner), map)
        chosen.store_box(corner, data, None if one.stem == "UTMASTG" else _change_as(one, chosen.dtype))

    return once(run)


def _change_as(one, dtype):
    """The change of a tensor reduction, whose type is its map's."""
    if dtype not in KINDS:
        raise Unknown(f"{one.opcode} of {dtype}")
    return change_of(one, KINDS[dtype])


def bulk_copy(one):
    """Copies and reductions of bytes: S.G, G.S and S.S name where to and from."""
    k, source, n = (uniform(text) for text in one.operands[:3])
    to, of = [word for word in one.opcode.split(".")[1:] if word in "SG"]
    change = change_of(one) if one.stem == "UBLKRED" else None

    def run(w):
        block, word = w.block, int(w.u[n][0])
        size = (word & 0xFFFF if "MULTICAST" in one.words else word) * UNIT
        data, runs = _fetched(block, of, w, source, size)
        if to == "G":
            runs = [(pair(w, k), size)]
            block.memory.put(pair(w, k) - block.memory.base, data, change=change)
        else:
            deliver(w, one, k, word >> 16, data, change=change)
        block.counts.bulk(one, size, runs)

    return once(run)


def _fetched(block, of, w, k, size):
    if of == "G":
        return block.memory.get(pair(w, k) - block.memory.base, size), [(pair(w, k), size)]
    where = int(w.u[k][0])
    return block.space_of(where).get(where & 0xFFFFFF, size), []


def prefetch(one):
    k, n = uniform(one.operands[0]), uniform(one.operands[1])
    if one.stem == "UTMAPF":
        return once(lambda w: w.block.counts.bulk(one, 0))
    return once(lambda w: w.block.counts.bulk(one, 0, [(pair(w, k), int(w.u[n][0]) * UNIT)]))


# --- stores to another block -------------------------------------------------------------------------
def remote_store(one):
    """st.async and red.async: [R2.64] is where to, and the barrier that gets the bytes."""
    size, k = width(one), register(one.operands[1])
    change = change_of(one) if one.stem == "REDAS" else None

    def run(w, addresses, _):
        for lane, words in zip(np.flatnonzero(w.active), words_of(w, k, size // 4, w.active), strict=True):
            where, barrier = int(addresses[lane]) & 0xFFFFFFFF, int(addresses[lane]) >> 32
            data = np.ascontiguousarray(words).view(np.uint8)
            w.block.space_of(where).put(where & 0xFFFFFF, data, change=change)
            complete(w.block, one, barrier, size)
        w.block.counts.requests[one.number] += bool(w.active.any())

    return run


BULK = f"{CHANGE_WORDS} S G MULTICAST IM2COL 1D 2D 3D 4D 5D 2CTA"
row("SYNCS.EXCH.64", "", "*t@q", lambda one: lambda w, _, address, value: initialise(w, address, value))
row("SYNCS.CCTL.IV", "", "*@", plain(invalidate))
row("SYNCS.ARRIVE.TRANS64", "", "*t@u", arrive, "A1T0 ART0 A0TR A0T1 RED OPTOUT TMASK")
row("SYNCS.PHASECHK.TRANS64", "p", "*@u", check_phase, "TRYWAIT")
row("ARRIVES.LDGSTSBAR.64.ARVCNT|ARRIVES.LDGSTSBAR.64.TRANSCNT", "", "*@", arrive_after_copies)
row("UTMACCTL.IV", "", "*t", acquire_map)
row("UTMACCTL.PF", "", "t", plain(lambda *_: None))
row("UTMALDG", "", "*ttt?t?", tensor_load, BULK)
row("UTMASTG|UTMAREDG", "", "*ttt?", tensor_store, BULK)
row("UBLKCP|UBLKRED", "", "*tttt?", bulk_copy, BULK)
row("UBLKPF|UTMAPF", "", "*ttt?", prefetch, f"L2 {BULK}")
row("STAS", "", "*@t", remote_store, "64 128")
row("REDAS", "", "*@t", remote_store, f"{HINTS} {CHANGE_WORDS}")

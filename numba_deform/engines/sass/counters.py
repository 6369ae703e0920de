"""What is counted of every instruction, and the models behind it.

*Wavefronts*: the data path of shared memory and L1 serves a warp's access in passes of at most 128 bytes, whole
warps where a lane takes up to 4 bytes, halves of 8, quarters of 16; of shared memory two of these become one
where all lanes i and i ^ 1 (or i ^ 2) have the same address. In one pass each of 32 banks gives one word, so
that a pass takes as many wavefronts as there are different words in a bank. A global access takes at least one
wavefront for each pass as well, and one more for a pass of which L1 has a part: what is there does not wait for
the rest. An access whose lanes are all switched off takes one, and so does ``cp.async`` past L1 with all that
it brings. The last three are what a GPU showed (bench/PROFILE.md).

*L1*: for each SM 128-byte lines of four sectors, least recently used first out, as many as shared memory leaves
of 256 KB; loads fill it, but for those with NA; stores and atomics write through without filling, but for
those of a thread's own memory (STL: what it spills), of which the words of a warp's lanes at one offset are a
line; its sectors count as global ones. *L2 bytes*: the 32-byte sectors that L1 does not have, of stores,
atomics and the copy engine, which goes past L1.
"""

import functools
from collections import OrderedDict

import numpy as np

from .operands import I64, U64

LANES = np.arange(32)
L1_BYTES, LINE, SECTOR, BANKS = 256 * 1024, 128, 32, 32
NAMES = (
    "executed",  # by warps
    "threads",  # lanes that took part
    "divergent",  # executions by a part of the lanes that are alive
    "requests",  # of memory, by warps, or of the copy engine
    "wavefronts",  # of the data path of L1 and shared memory
    "conflicts",  # wavefronts of shared memory that other banks would save
    "sectors",  # of global memory, 32 bytes each, without the copy engine's
    "lines",  # of global memory, 128 bytes each, likewise
    "hits",  # of these sectors: found in L1 by a load
    "l2_bytes",
    "tma_bytes",
)


class Counts:
    """Arrays over a listing's instructions, one for each of NAMES; ``l1`` is the cache of the SM that runs."""

    def __init__(self, length):
        self.length, self.l1 = length, None
        for name in NAMES:
            setattr(self, name, np.zeros(length, I64))

    def __add__(self, other):
        total = Counts(self.length)
        for name in NAMES:
            setattr(total, name, getattr(self, name) + getattr(other, name))
        return total

    def access(self, one, kind, space, addresses, lanes, size):
        """One access of ``space`` by these lanes, whose addresses are given; ``kind``: load, store, atomic,
        copy. Returns {line: [sector in it]} of global memory."""
        n, base = one.number, int(addresses.min()) & ~(LINE - 1)
        own, space = space == "local", "global" if space == "local" else space
        offsets = (addresses - U64(base) if space == "global" else addresses).astype(np.uint32)
        waves, ideal, sectors, parts = pattern(offsets.tobytes(), lanes.tobytes(), size, space)
        self.requests[n] += 1
        self.passes(one, space, waves)
        if space == "shared":
            self.conflicts[n] += waves - ideal
        if space != "global":
            return {}
        self.sectors[n] += len(sectors)
        lines = {}
        for sector in sectors:
            lines.setdefault(base + (sector // 4) * LINE, []).append(sector % 4)
        self.lines[n] += len(lines)
        missed = len(sectors)
        if kind == "store" and own:
            self.kept(lines)
        elif kind in ("load", "copy") and not past_l1(one):
            found = self.l1.look(lines, fill="NA" not in one.words)
            self.hits[n] += len(found)
            missed -= len(found)
            if found and missed:
                there = [[base + (s // 4) * LINE + s % 4 in found for s in part] for part in parts]
                self.passes(one, space, sum(any(part) and not all(part) for part in there))
        self.l2_bytes[n] += SECTOR * missed
        return lines

    def kept(self, lines):
        """A store of lanes' own memory leaves ``lines`` in L1."""
        self.l1.look(lines)

    def passes(self, one, space, waves):
        """An access takes so many wavefronts."""
        if one.stem == "LDGSTS" and "BYPASS" in one.words:
            waves = int(space == "global")
        self.wavefronts[one.number] += waves

    def bulk(self, one, size, runs=(), map=None):
        """One request of the copy engine of so many bytes; ``runs``: (address, bytes) in global memory; for
        ``traces`` the address of its ``map``."""
        n = one.number
        self.requests[n] += 1
        self.tma_bytes[n] += size
        ends = [(start // SECTOR, (start + length - 1) // SECTOR) for start, length in runs]
        sectors = {sector for first, last in ends for sector in range(first, last + 1)}
        self.l2_bytes[n] += SECTOR * len(sectors)

    def acquired(self, map):
        """A fence of the tensor map at that address. For ``traces``; here nothing."""

    def gives(self, token, how=None):
        """Record that an arrival or a copy contributes to a barrier's phase: ``how`` is "engine" for the copy
        engine, "copies" for the warp's own. For ``traces``; here nothing."""

    def waits(self, token):
        """A warp has seen that a phase is over, as ``gives``."""

    def resumed(self, trace, number, token):
        """A warp goes on that has waited at a barrier, as ``gives``."""

    def nothing(self, one):
        """An access whose lanes are all switched off, which goes through the data path nevertheless."""
        self.wavefronts[one.number] += 1

    def total(self, name):
        """Of all instructions."""
        return int(getattr(self, name).sum())


def past_l1(one):
    """Whether a load does not look into L1."""
    return bool(one.words & {"STRONG", "BYPASS"})


@functools.lru_cache(maxsize=1 << 16)
def pattern(offsets, lanes, size, space):
    """(wavefronts, those without conflicts, sectors, those of each pass of one wavefront) of an access; the
    sectors' numbers are counted from the base of the offsets, of global memory alone."""
    lanes = np.frombuffer(lanes, bool)
    places = np.zeros(32, I64)
    places[lanes] = np.frombuffer(offsets, np.uint32)
    total, ideal, parts = 0, 0, []
    for group in passes(places, lanes, size, space):
        if group.any():
            words = np.unique((places[group] >> 2)[:, None] + np.arange(max(size // 4, 1)))
            waves = int(np.bincount(words % BANKS).max())
            total += waves
            if waves == 1:
                parts.append(tuple(np.unique(words * 4 // SECTOR).tolist()))
            ideal += -(-len(words) // BANKS)
    if space != "global":
        return total, ideal, (), ()
    ends = places[lanes] + size - 1
    sectors = np.unique(np.concatenate([places[lanes] // SECTOR, ends // SECTOR]))
    return total, ideal, tuple(sectors.tolist()), parts


def passes(places, lanes, size, space):
    """The lanes that are served together, arrays of bools."""
    if size <= 4:
        return [lanes]
    count = size // 4
    groups = [lanes & (LANES * count // 32 == k) for k in range(count)]
    for k in (1, 2) if space != "global" else ():
        if (~lanes | ~lanes[LANES ^ k] | (places == places[LANES ^ k])).all():
            return [a | b for a, b in zip(groups[::2], groups[1::2], strict=True)]
    return groups


class L1:
    """The sectors that one SM's cache holds."""

    def __init__(self, shared_bytes):
        self.room, self.lines = max(L1_BYTES - shared_bytes, LINE) // LINE, OrderedDict()

    def look(self, lines, fill=True):
        """Those of the sectors ``{line: [number in the line]}`` that are there, {line + number}; with ``fill``
        all are, then."""
        found = set()
        for line, sectors in lines.items():
            held = self.lines.pop(line, 0)
            found.update(line + sector for sector in sectors if held >> sector & 1)
            if fill:
                for sector in sectors:
                    held |= 1 << sector
            if held:
                self.lines[line] = held
        while len(self.lines) > self.room:
            self.lines.popitem(last=False)
        return found

"""What each warp did, one instruction after the other, for the model of time in ``sm``.

A trace is a list. An instruction that only computes is its number; one that uses memory, the copy engine or
a barrier is ``(number, Work)``; a wait that is over is ``(number, Token)``. The tokens of barriers.py say who
waits for whom, so that the waits can be played again in another order of time."""

from bisect import bisect_right
from dataclasses import dataclass
from math import prod

from .counters import SECTOR, Counts, past_l1


class Work:
    """What one instruction asked for. ``waves``: wavefronts of the data path; ``read``: {line: [sector in it]}
    of global memory that goes through L1, ``kept``: that a store leaves there; ``past``: sectors that go to L2
    whatever L1 has, ``stored`` or read; ``returns``: whether a result comes of these; ``copied``: sectors of a
    request of the copy engine, else None, ``size`` its bytes; ``place``: where one of these two begins;
    ``map``: where the request's is, or what a fence is of; ``gives``: [(Token, how)]; ``waits``: [Token]."""

    __slots__ = ("waves", "read", "kept", "fills", "past", "stored", "returns", "copied", "size", "place",
                 "map", "gives", "waits")  # fmt: skip

    def __init__(self):
        self.waves, self.read, self.kept, self.fills, self.past = 0, None, {}, True, 0
        self.stored, self.returns = False, False
        self.copied, self.size, self.place, self.map, self.gives, self.waits = None, 0, None, None, (), ()


class Traced(Counts):
    """Counts that keep beside what they count what ``noted`` writes into traces, and ``fetched`` and
    ``written``, {number of an array: bytes that were asked of L2, and given to it}; ``starts``: the addresses
    at which arrays begin, in order."""

    def __init__(self, length, starts):
        super().__init__(length)
        self.work, self.starts = None, starts
        self.fetched, self.written = ([0] * (len(starts) + 1) for _ in range(2))

    def _work(self):
        self.work = self.work or Work()
        return self.work

    def access(self, one, kind, space, addresses, lanes, size):
        n, work = one.number, self._work()
        before = self.l2_bytes[n]
        lines = super().access(one, kind, space, addresses, lanes, size)
        if not lines:
            return
        first, stored = next(iter(lines)), kind not in ("load", "copy")
        self._asked(self.written if stored else self.fetched, first, self.l2_bytes[n] - before)
        if kind in ("load", "copy") and not past_l1(one):
            work.read, work.fills = {**(work.read or {}), **lines}, "NA" not in one.words
        else:
            work.past += int(self.l2_bytes[n] - before) // SECTOR
            work.place, work.stored = first, stored
            work.returns |= kind != "store" and not one.stem.startswith("RED")

    def kept(self, lines):
        super().kept(lines)
        self._work().kept = lines

    def passes(self, one, space, waves):
        super().passes(one, space, waves)
        self._work().waves += int(waves)

    def acquired(self, map):
        self._work().map = map

    def bulk(self, one, size, runs=(), map=None):
        before, runs = self.l2_bytes[one.number], list(runs)
        super().bulk(one, size, runs)
        sectors = int(self.l2_bytes[one.number] - before) // SECTOR
        work = self._work()
        work.copied, work.size = (work.copied or 0) + sectors, work.size + size
        work.map = map
        if sectors:
            work.place = runs[0][0]
            self._asked(self.fetched, work.place, SECTOR * sectors)

    def _asked(self, of, address, size):
        of[bisect_right(self.starts, address)] += int(size)

    def nothing(self, one):
        super().nothing(one)
        self._work().waves += 1

    def gives(self, token, how=None):
        token.left += 1
        work = self._work()
        work.gives = (*work.gives, (token, how))

    def waits(self, token):
        work = self._work()
        work.waits = (*work.waits, token)

    def noted(self, trace, number):
        """Append an executed instruction to the trace, with the memory work recorded since the one before."""
        trace.append(number if self.work is None else (number, self.work))
        self.work = None

    def resumed(self, trace, number, token):
        """A warp goes on that has waited at this instruction."""
        trace.append((number, token))


@dataclass(frozen=True, eq=False)
class Traces:
    """Of the blocks of one SM, in order: ``blocks``, lists of their warps' traces. ``starts``, ``sizes``,
    ``fetched`` and ``written`` of the launch's arrays: where each begins, its bytes, and what was asked of L2
    there and given to it. ``l1_bytes``: of shared memory that L1 cannot have; ``cluster``: how many SMs' the
    blocks are, in turn."""

    blocks: list
    starts: list
    sizes: list
    fetched: list
    written: list
    l1_bytes: int
    cluster: int = 1


def traces_of(machine):
    """The :class:`Traces` of a ``machine.Machine`` that has run with ``traced``."""
    parts = sorted((offset, host.nbytes) for offset, host, _ in machine.memory.parts.values())
    blocks = [[warp.trace for warp in block.warps] for block in machine.traced]
    starts, sizes = [machine.memory.base + offset for offset, _ in parts], [size for _, size in parts]
    asked = machine.counts.fetched[1:], machine.counts.written[1:]
    return Traces(blocks, starts, sizes, *asked, machine.resident * machine.shared_bytes,
                  prod(machine.cluster))  # fmt: skip

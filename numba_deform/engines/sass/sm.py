"""How long one SM of Hopper takes for its blocks: what their warps did, played again on a model of the SM.

Each of four schedulers issues an instruction a cycle, of the warp that it issued last or else of the last one
that can go (Huerta et al., "Analyzing Modern NVIDIA GPU Cores", 2025; a block takes the place of one that is
over). When a warp can go, the assembler has said: so many cycles after the one before, and when the scoreboards
are free. Instructions keep a unit of their quarter; those of memory pass one data path, a wavefront a cycle,
and so does what arrives from L2. What L1 lacks, and what the copy engine fetches, passes the SM's port to L2,
and memory's share for this SM. The copy engine takes one request after the other. A phase of a barrier is over
when all is done that it was given in the trace. Numbers: ``units.CONSTANTS``."""

import heapq
import re
from collections import defaultdict

from .barriers import Token
from .counters import SECTOR
from .operands import is_number
from .units import HOPPER, QUARTERS, busy, pipe_of

NEVER = 1 << 60
# Nsight Compute's names of what a warp waits for, and two that it has not: phases of mbarriers, and the copy
# engine's queue.
REASONS = ("selected", "wait", "short_scoreboard", "long_scoreboard", "barrier", "mbarrier", "copy_engine",
           "math_pipe_throttle", "mio_throttle", "not_selected")  # fmt: skip


class Deadlock(ValueError):
    """No warp can go on: the trace is not of a whole run."""


class Running:
    """A warp of the replay: its place on the SM, its trace, how far it is, and the ``number``, the ``work`` and
    the ``pipe`` of what it issues next; when it may and why not before, and when its scoreboards are free:
    (cycle, reason). ``name``: (which block it is of, its number); ``sm``: whose it is."""

    __slots__ = ("trace", "at", "number", "work", "pipe", "ready", "since", "boards", "place", "why", "busy",
                 "copies", "groups", "tensor", "name", "sm")  # fmt: skip

    def __init__(self, trace, place, time, name, sm):
        self.trace, self.place, self.at, self.name, self.sm = trace, place, 0, name, sm
        self.ready, self.since = time, time - 1
        self.boards = [(0, "wait")] * 6
        self.why, self.busy, self.copies, self.groups, self.tensor = "wait", "not_selected", 0, [], 0


class Sm:
    """One SM. ``cache``: its ``counters.L1``; ``far``: a function of an address and whether it is written, the
    share of what is asked of L2 there that comes from memory, or goes there; ``fetch``: of a tensor map's, the
    cycles in which the engine fetches it. After ``play``: ``ends``, the cycle at which each block was over,
    ``busy`` {unit: cycles}, ``stalls`` {(reason, instruction's number): cycles of warps}, and ``clocks``
    {warp's name: the cycles at which it read the SM's clock}."""

    def __init__(self, listing, cache, far=None, constants=HOPPER, fetch=None):
        self.cache, self.far, self.c = cache, far or (lambda address, stored: 0.0), constants
        self.fetch = fetch or (lambda map: constants.tma_map)
        self.code = [(max(1, one.stall), busy(one)) for one in listing]
        self.pipes, self.waits = [pipe_of(one) for one in listing], [_waits(one) for one in listing]
        self.asks = [_asks(one) for one in listing]
        self.lsu = self.l2 = self.hbm = self.tma = self.arrived = self.owed = 0.0
        self.events, self.asked, self.begun, self.maps = [], 0, 0, set()
        self.reads_clock = {n for n, one in enumerate(listing) if "SR_CLOCKLO" in one.operands}
        self.clocks, self.issued = defaultdict(list), [0] * len(self.code)
        self.busy, self.stalls, self.ends = defaultdict(float), defaultdict(int), []
        self.pools = [[] for _ in range(QUARTERS)]

    # --- the schedulers -------------------------------------------------------------------------------
    def begin(self, blocks, resident):
        """The first of the blocks, lists of warps' traces, are there, ``resident`` at a time."""
        self.queue, self.live, self.free = blocks, {}, [defaultdict(int) for _ in self.pools]
        self.last, self.idle = [None] * QUARTERS, [0] * QUARTERS  # idle: until when none can issue
        for slot in range(min(resident, len(blocks))):
            self._start(slot, 0)

    def come(self, time):
        """What was due by now has happened."""
        while self.events and self.events[0][0] <= time:
            at, _, act = heapq.heappop(self.events)
            act(at)
            self.idle = [0] * QUARTERS

    def issue(self, time):
        """Each quarter issues what it can; whether any has."""
        issued = False
        for quarter, pool in enumerate(self.pools):
            if self.idle[quarter] <= time:
                chosen, self.idle[quarter] = self._choose(pool, self.last[quarter], self.free[quarter], time)
                if chosen:
                    issued, self.last[quarter] = True, chosen
                    self._issue(chosen, self.free[quarter], time)
                    if chosen.at >= len(chosen.trace):
                        pool.remove(chosen)
                        self._over(chosen.place[0], time)
        return issued

    def _add_up(self):
        for number, times in enumerate(self.issued):
            if times:
                self.stalls["selected", number] = times
                self.busy["issue"] += times
                self.busy[self.pipes[number]] += times * self.code[number][1]

    def _start(self, slot, time):
        traces = self.queue.pop(0)
        self.live[slot] = sum(bool(trace) for trace in traces)
        whole = len(traces) % QUARTERS == 0  # else one warp after the other goes where there are fewest
        for number, trace in enumerate(traces):
            if trace:
                warp = Running(trace, (slot, number), time + self.c.start, (self.begun, number), self)
                self._due(warp)
                pool = self.pools[number % QUARTERS] if whole else min(self.pools, key=len)
                pool.append(warp)
                pool.sort(key=lambda warp: warp.place, reverse=True)
        self.begun, self.idle = self.begun + 1, [0] * QUARTERS

    def _over(self, slot, time):
        self.live[slot] -= 1
        if not self.live[slot]:
            self.ends.append(time)
            if self.queue:
                self._start(slot, time)

    def _choose(self, pool, last, free, time):
        """(the warp that issues now or None, when there may be one)"""
        later = NEVER
        for warp in (last, *pool) if last in pool else pool:
            if warp.ready > time:
                if warp.ready < later:
                    later = warp.ready
                continue
            pipe = warp.pipe
            if free[pipe] > time:
                warp.busy, later = "math_pipe_throttle", min(later, free[pipe])
            elif pipe == "lsu" and self.lsu - time > self.c.queue:
                warp.busy, later = "mio_throttle", min(later, self.lsu - self.c.queue)
            elif pipe == "tma" and self.tma - time > self.c.queue:
                warp.busy, later = "copy_engine", min(later, self.tma - self.c.queue)
            else:
                return warp, time
        return None, later

    def _issue(self, warp, free, time):
        """One instruction of a warp."""
        number, pipe = warp.number, warp.pipe
        stall, cycles = self.code[number]
        free[pipe] = time + cycles
        self.issued[number] += 1
        if time - warp.since > 1:
            self._tell(warp, number, time)
        warp.at, warp.since, warp.ready, warp.why = warp.at + 1, time, time + stall, "wait"
        if self.asks[number]:
            self._ask(warp, number, pipe, time)
        if warp.at < len(warp.trace):
            self._due(warp)

    def _tell(self, warp, number, time):
        """Add up what the warp has waited for since it last issued."""
        idle = time - warp.since - 1
        named = min(max(warp.ready - warp.since - 1, 0), idle)
        self.stalls[warp.why, number] += named
        self.stalls[warp.busy, number] += idle - named
        warp.busy = "not_selected"

    def _ask(self, warp, number, pipe, time):
        """What an instruction does beside computing: scoreboards, memory, groups, phases, jumps."""
        (result, reads), stem, depth = self.asks[number]
        work = warp.work
        if number in self.reads_clock:
            self.clocks[warp.name].append(time)
        done, read, why = self._work(warp, work, stem, pipe, time)
        for board, cycle in ((result, done), (reads, read)):
            if board < 6 and cycle > warp.boards[board][0]:
                warp.boards[board] = cycle, why
        if pipe == "tensor":
            warp.tensor = time + self.code[number][1]
        elif stem == "UTMACCTL" and work is not None and work.map in self.maps:
            self.maps.clear()
        elif stem in ("LDGDEPBAR", "UTMACMDFLUSH"):
            warp.groups.append(warp.copies)
        elif depth is not None:
            over = [warp.tensor] if stem == "WARPGROUP" else warp.groups[: len(warp.groups) - depth]
            self._until(warp, max(over, default=0), "long_scoreboard")
        if work:
            for token, how in work.gives:
                self._give(token, how, warp, time)
        if pipe == "cbu" and warp.at < len(warp.trace):
            after = warp.trace[warp.at]
            if (after if type(after) is int else after[0]) != number + 1:
                warp.ready += self.c.branch  # it has jumped

    def _until(self, warp, cycle, why):
        if cycle > warp.ready:
            warp.ready, warp.why = cycle, why

    def _due(self, warp):
        """What the warp issues next, and when it may: by scoreboards, and phases that it waits for."""
        entry = warp.trace[warp.at]
        number, work = (entry, None) if type(entry) is int else entry
        warp.number, warp.work, warp.pipe = number, work, self.pipes[number]
        for board in self.waits[number]:
            cycle, why = warp.boards[board]
            if cycle > warp.ready:
                warp.ready, warp.why = cycle, why
        if work is None:
            return
        if type(work) is Token:  # the warp has waited at this instruction, which it has issued before
            warp.at += 1
            if work.left:
                work.waiting.append((warp, "barrier", warp.ready))
                warp.ready = NEVER
            elif warp.at < len(warp.trace):
                self._due(warp)
        elif work.waits and any(token.left for token in work.waits):
            token = next(token for token in work.waits if token.left)
            token.waiting.append((warp, "mbarrier", warp.ready))
            warp.ready = NEVER

    # --- barriers -------------------------------------------------------------------------------------
    def _give(self, token, how, warp, time):
        """Something that a phase needs, now or when what it stands for has come."""
        at = self.arrived if how == "engine" else warp.copies if how == "copies" else time
        if at > time:
            self._later(at, lambda now: self._given(token, now, how))
        else:
            self._given(token, time)

    def _given(self, token, time, how=None):
        token.left -= 1
        if token.left:
            return
        if how == "engine":
            self.tma = max(self.tma, time) + self.c.tma_end
        for warp, why, ready in token.waiting:  # perhaps on another SM of a cluster
            warp.sm.idle = [0] * QUARTERS
            warp.ready, warp.why = ready, warp.why
            self._until(warp, time + self.c.wake, why)
            if warp.at < len(warp.trace):
                warp.sm._due(warp)
            else:
                warp.ready = max(warp.ready, time)
        token.waiting = []

    def _later(self, time, act):
        self.asked += 1
        heapq.heappush(self.events, (time, self.asked, act))

    # --- memory ---------------------------------------------------------------------------------------
    def _work(self, warp, work, stem, pipe, time):
        """What an instruction asks of memory: (when its result is there, when its operands are read, what one
        waits for who needs it)."""
        c = self.c
        if work is not None and work.copied is not None:
            return self._copy(warp, work, time)
        if pipe != "lsu":
            return time + c.short, time + c.reach + 2, "short_scoreboard"
        waves = 1 if work is None or stem == "SYNCS" else max(work.waves, 1)
        self.lsu = max(time + c.reach, self.lsu) + waves
        self.busy["data path"] += waves
        done, why = self.lsu + (c.shuffle if stem == "SHFL" else c.shared) - c.reach - 1, "short_scoreboard"
        if work is not None and (work.read or work.past):
            done, why = self._through_l1(work), "long_scoreboard"
        if stem == "LDGSTS":
            warp.copies = max(warp.copies, done)
        return done, self.lsu + c.reach, why

    def _through_l1(self, work):
        l1, near, distant = (cycles - self.c.reach - 1 for cycles in (self.c.l1, self.c.l2, self.c.hbm))
        done = self.lsu + l1
        self.cache.look(work.kept)
        for line, sectors in (work.read or {}).items():
            lacks = len(sectors) - len(self.cache.look({line: sectors}, work.fills))
            if lacks:
                done = max(done, self._from_l2(lacks, line, self.lsu, near, distant))
        if work.past:
            come = self._from_l2(work.past, work.place, self.lsu, near, distant, stored=work.stored)
            done = max(done, come) if work.returns else done
        return done

    def _from_l2(self, sectors, address, time, near, distant, after=0, stored=None):
        """When so many sectors have come that were asked for at a time; after ``near`` cycles, or those of
        memory; they are written ``after`` that. Nothing comes of what is ``stored``, nor of loads past L1."""
        c, share = self.c, 0.0 if address is None else self.far(address, bool(stored))
        self.l2 = max(time, self.l2) + sectors * SECTOR / c.l2_bytes
        self.busy["l2"] += sectors * SECTOR / c.l2_bytes
        self.owed += share
        come = self.l2 + near
        if self.owed >= 1:
            self.owed -= 1
            self.hbm = max(time, self.hbm) + sectors * SECTOR / c.hbm_bytes
            self.busy["memory"] += sectors * SECTOR / c.hbm_bytes
            come = max(self.l2, self.hbm) + distant
        if stored:  # nobody waits for it, but no more is taken than goes away meanwhile
            self.lsu = max(self.lsu, max(self.l2, self.hbm) - c.hbm)
        if stored is None and address is not None:
            self._later(come + after, lambda now: self._fill(now, sectors * c.fill))
        return come

    def _fill(self, time, cycles):
        """What arrives takes the data path too."""
        self.lsu = max(time, self.lsu) + cycles
        self.busy["data path"] += cycles

    def _copy(self, warp, work, time):
        """A request of the copy engine, which takes it when it has done the ones before."""
        c = self.c
        begin = max(time + c.reach, self.tma)
        if work.map is not None and work.map not in self.maps:
            self.maps.add(work.map)
            begin += self.fetch(work.map)
        cost = max(c.tma_least, work.size / c.tma_bytes)
        self.tma = begin + cost
        self.busy["copy engine"] += cost
        arrives = self._from_l2(work.copied, work.place, begin, 0, c.hbm - c.l2, c.tma_latency)
        self.arrived = max(self.tma, arrives) + c.tma_latency
        warp.copies = max(warp.copies, self.arrived)
        return begin, begin, "copy_engine"


def play(sms, queues, resident):
    """Play a queue of blocks on each of the SMs, which run side by side, as those of a cluster's blocks do;
    returns the last block's end."""
    time = 0
    for sm, blocks in zip(sms, queues, strict=True):
        sm.begin(blocks, resident)
    while any(any(sm.pools) for sm in sms):
        for sm in sms:
            sm.come(time)
        issued = any([sm.issue(time) for sm in sms])
        later = min(min(*sm.idle, sm.events[0][0] if sm.events else NEVER) for sm in sms)
        if not issued and later >= NEVER:
            raise Deadlock(f"no warp can go on after {time:,} cycles")
        time = time + 1 if issued else max(time + 1, int(later))
    for sm in sms:
        sm._add_up()
    return max(sm.ends[-1] if sm.ends else 0 for sm in sms)


def _asks(one):
    """(scoreboards that it sets, stem, ``_depth``) of an instruction that does more than compute, else None."""
    depth = _depth(one)
    plain = pipe_of(one) not in ("lsu", "tma", "tensor", "cbu") and min(one.sets) > 5 and depth is None
    special = one.stem in ("UTMACCTL", "LDGDEPBAR", "UTMACMDFLUSH") or "SR_CLOCKLO" in one.operands
    return None if plain and not special else (one.sets, one.stem, depth)


def _depth(one):
    """Of what waits for groups of copies or of products: how many may still be under way; None for others."""
    if one.stem == "DEPBAR" or (one.stem == "WARPGROUP" and "DEPBAR" in one.words):
        return next((int(text, 0) for text in one.operands if is_number(text)), None)
    return None


def _waits(one):
    """The scoreboards that an instruction waits for: the assembler's, and those that DEPBAR names."""
    named = [text for text in one.operands if text.startswith("{")] if one.stem == "DEPBAR" else []
    return tuple(sorted({*one.waits, *(int(digit) for text in named for digit in re.findall(r"\d+", text))}))

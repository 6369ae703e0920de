"""Arrivals on an mbarrier that are missing, and what would mend it. ``async_units.mbarrier`` asks."""

from ...waiting import have, ranges
from .source_order import has_left, passed_by
from .tensor_cells import issues_products, not_committed
from .waits import RING, States


class MissingArrivalsReport:
    """A barrier on which threads wait, and nobody gets on. Each of ``CURES`` has a cure in words, or none."""

    def __init__(self, barrier):
        self.barrier, self.threads, self.phase = barrier, barrier.block.threads, barrier.phase
        self.came = barrier.expected - barrier.pending
        self.arrived, self.done = sorted(barrier.arrived), barrier.arrived.keys() | barrier.dropped.keys()
        self.late = sorted(barrier.arrivers - self.done)  # who has arrived in phases before
        self.here = [t.tid for t in self.threads if not t.dead and t.waiting[1] is barrier]
        self.others = [block for block in barrier.block.cluster.blocks if block is not barrier.block]

    def of(self, tids):
        return [self.threads[tid] for tid in tids]

    def places(self, tids):
        """Where threads stand, in words."""
        sites = {"exited since" if t.dead else f"at {t.at(t.site())} by now" for t in self.of(tids)}
        return " or ".join(sorted(sites))

    def fields(self, parity):
        """Those of the ``Wait`` of who waits for the current phase."""
        barrier, by, why = self.barrier, self.late, "arrived here before"
        missing, pending, tx = [], barrier.pending, barrier.tx
        anywhere = ", of this block or others of its cluster" * bool(self.others)
        missing += [f"{pending} arrival{'s' * (pending > 1)} missing{anywhere}"] * (pending > 0)
        missing += [f"{tx} bytes expected that no copy brings"] * (tx > 0)
        missing += [f"{-tx} bytes have landed that nobody has expected"] * (tx < 0)
        root = any(t.dead for t in self.of(by))
        if not barrier.pending:
            by, root = barrier.issuers, True
            why = "no thread has issued a copy here" if not barrier.last_copy else (
                "issued copies here before" if by else "all bytes so far came from other blocks")
        elif not by and (barrier.far or barrier.last_far) and not self.done:
            why = "all arrivals so far came from other blocks"
        elif not by:  # whose arrival is missing is not known
            late = {t.tid for t in self.threads} - self.done
            by = late.difference(self.here) or late
            why = "not arrived in this phase" if by else ""
        cure = next((cure for find in self.CURES if (cure := find(self, barrier))), "")
        certain = barrier.is_left_out()
        return {"on": f"{barrier.name}, parity {parity}", "state": barrier.state(), "why": why,
                "missing": " and ".join(missing), "by": tuple(sorted(by)), "root": root, "certain": certain,
                "cure": cure}  # fmt: skip

    def never_came(self, barrier):
        """The announcements in this phase were of more bytes than have come, from whatever block."""
        last = barrier.announced
        if barrier.pending or not last or last.phase != self.phase:
            return None
        came, at = last.bytes - barrier.tx, last.thread.at(last.site)
        said = f"{last.bytes} bytes are announced in this phase, "
        said += f"{last.times} times, the last " * (last.times > 1) + f"at {at}, and "
        if not came:
            said += "nothing has brought any. Issue the copies of each phase that announces bytes, or arrive "
            return f"{said}without announcing any: mbarrier_arrive(bar).{self._last_source(barrier)}"
        for twin in barrier.twins():
            if twin.tx < 0:
                said += f"its copies have brought {came}; {-twin.tx} more, not announced, have come to that of "
                return (f"{said}block {twin.block.index}. Give those copies this block's barrier (its address "
                        "without bit 24, in cta_group::2), or announce there what comes there.")  # fmt: skip
        said = f"{barrier.block.execution.load_checks.exchanged()}{said}its copies have brought {came}. "
        said += f"Announce {came}{' in all' * (last.times > 1)}, or issue the copies of the other "
        said += f"{barrier.tx}: a copy by a tensor map brings the box of that map."
        return said + self._last_source(barrier) * bool(self.others)

    def _last_source(self, barrier):
        """Where bytes came from last, in words: here, or on the same barrier of another block."""
        for each in (barrier, *barrier.twins()):
            if copy := each.last_copy:
                of, place = " of block {}" * bool(self.others), self.threads[0].at(copy.site)
                who = f"the {copy.what} of thread {copy.tid}{of.format(copy.block.index)}, at {place}"
                if each is barrier:
                    return f" The last that has come here is {who}."
                return (f" The last that has come to {each.name}{of.format(each.block.index)} is {who}; a "
                        "multicast goes to the blocks that its mask names.")  # fmt: skip
        return ""

    def not_committed(self, barrier):
        """Nobody has ever arrived, and the block issues products of tcgen05."""
        never = barrier.pending and not (barrier.arrivers or self.arrived or barrier.last_far)
        return not_committed(barrier) if never else None

    def committed_elsewhere(self, barrier):
        """Products have been committed to the same barrier of another block, and not to this one."""
        for twin in barrier.twins():
            if twin.committed and twin.phase > self.phase:
                return (f"The tcgen05.commit at {self.threads[0].at(twin.committed)} arrives on that of block "
                        f"{twin.block.index}: have it name block {barrier.block.index} as well, by "
                        ".multicast::cluster and a mask.")  # fmt: skip
        return None

    def not_announced(self, barrier):
        """Bytes have come, and nobody has announced them."""
        more = -barrier.tx if barrier.pending else 0
        return more > 0 and (
            f"Announce the {more} bytes that come in this phase, and arrive: mbarrier_arrive_expect_tx(bar, "
            f"{more}), or expect of a Ring or Barrier."
        )

    def other_parity(self, barrier):
        """All who wait here have yet to wait for the phase before."""
        over = self.phase - 1
        if not self.here or any(barrier.phases_over(t.seen) > over for t in self.of(self.here)):
            return None
        if states := States.that_decide(barrier.block, barrier.name, [t.site() for t in self.of(self.here)]):
            return states.cure(f"; {ranges(self.here)} never waited for use {states.use(barrier.name, over)}")
        return (f"Phase {over} of {barrier.name} is over, and {ranges(self.here)} never waited for it; this "
                f"wait, with parity {self.phase & 1}, is for phase {self.phase}: wait with parity {over & 1}?")

    def nobody_left(self, barrier):
        """Who made its arrivals has ended, or has left the loop in which it did."""
        by = self.of(self.late)
        loop = ", behind the loop" * any(not t.dead for t in by)
        return by and all(t.dead or has_left(t.arrivals.get(barrier), t.calls()) for t in by) and (
            f"The arrivals of {self.phase} phase{'s' * (self.phase > 1)} so far were made by "
            f"{ranges(self.late)}, {self.places(self.late)}{loop}, and this is a wait for one more: let both "
            "sides take as many steps, each with its state advanced once a step; or arrive once more, to tell "
            "who waits that there is no more. Who ends before others drops out (mbarrier_arrive_drop)."
            + (f" {skipped}" if (skipped := self.skipped(barrier)) else "")
        )  # fmt: skip

    def skipped(self, barrier):
        """Who made its arrivals does so in a branch that a round may pass by."""
        known = self.phase and not self.came and not any(t.waiting[0] == "mbarrier" and not t.waiting[1].phase
                                                         for t in self.of(self.late) if not t.dead)  # fmt: skip
        sites = {t.arrivals.get(barrier) for t in self.of(self.late) if known}
        lines = ((self.threads[0].at(site), passed_by(site)) for site in sites if site)
        place, line = next((pair for pair in lines if pair[1]), ("", None))
        return line and (
            f"The arrival on {barrier.name} at {place} depends on the if of line {line}, by which a round may "
            "pass it by: arrive in that round too, without bytes (mbarrier_arrive) where there is nothing to "
            "bring; or have the other side skip it as well."
        )  # fmt: skip

    def raised(self, barrier):
        """Arrivals of cp.async have raised the count before they lowered it."""
        phase, times, site = barrier.raised
        return phase == self.phase and times == barrier.pending and (
            f"The arrivals of cp.async at {self.threads[0].at(site)} raise the pending count before they lower "
            f"it, so that the {barrier.pending} still missing are others. To be among those, call "
            "cp_async_mbarrier_arrive_noinc there."
        )

    def beside(self, barrier):
        """The threads whose arrivals are missing stand where others do that have arrived, or have ended."""
        warps = {tid >> 5 for tid in self.arrived}
        late = self.late or [t.tid for t in self.threads if t.warp in warps and t.tid not in self.done]
        places = {(t.waiting[1], t.site()) for t in self.of(self.arrived) if not t.dead}
        beside = all(t.dead or (t.waiting[1], t.site()) in places for t in self.of(late))
        few = self.late or len(late) < len(self.arrived)  # else it is the count that is wrong
        return few and warps and beside and len(late) == barrier.pending and (
            f"{barrier.name} has {self.came} of the {barrier.expected} arrivals of phase {self.phase}: "
            f"{ranges(self.arrived)} {have(self.arrived)} arrived, and {ranges(late)}, {self.places(late)}, "
            f"{have(late)} not. Each arrives in every phase, also one that has nothing to load or to read."
        )  # fmt: skip

    def never_released(self, barrier):
        """Nobody has ever arrived on a barrier that a producer waits for, though stages have been read."""
        ring = RING.fullmatch(barrier.name)
        last = [t.waits[t.waiting[1]] for t in self.threads if not t.dead and t.waiting[1] in t.waits]
        read = any(wait.phase >= 0 for wait in last)
        used = read and any(barrier in t.waits for t in self.of(self.here))
        missing = f"{ring[1]}.release(state)" if ring else f"an arrival on {barrier.name}"
        full = ring and f"{ring[1]}.full[{ring[3]}]"
        readers = ring and [t for t in self.threads if full in (b.name for b in t.waits)]
        if readers and all(map(issues_products, readers)):
            missing = f"tcgen05_commit({ring[1]}.empty(state)) behind its products"
        if used and ring and not readers:
            return States(barrier.block, ring[1]).cure(f"; nobody reads use {ring[3]}")
        return used and not self.phase and not self.came and (
            f"Nobody arrives on {barrier.name} after reading a stage: {missing} is missing."
        )  # fmt: skip

    def in_another_block(self, barrier):
        """The same barrier of another block has arrivals that nobody waits for."""
        for other in self.others:
            twin = other.barriers.live.get(barrier.address)
            used = twin and (twin.phase or twin.pending < twin.expected)
            if used and not any(twin in t.waits or t.waiting[1] is twin for t in other.threads):
                who = ranges(sorted(twin.arrived or twin.last_arrivers))
                return (
                    f"{twin.name} of block {other.index}, the same barrier there, has arrivals that nobody "
                    f"waits for: {who} of that block made them. Arrive on the barrier of the block that waits: "
                    "mbarrier_arrive_cluster(mapa_shared_cluster(bar, rank))."
                )
        return None

    def never_complete(self, barrier):
        """All who ever arrive have arrived in it."""
        far, count = barrier.far, len(self.arrived) + len(barrier.far)
        groups = [(sorted(t.tid for t in far if t.block is b), f" of block {b.index}") for b in self.others]
        who = ", ".join(ranges(tids) + of for tids, of in [(self.arrived, ""), *groups] if tids)
        times = f"{self.came} times" if self.came > 1 else "once"
        away = [t for t in self.threads if not t.dead and t.tid not in (*self.here, *self.arrived)]
        names = sorted({t.waiting[1].name for t in away if t.waiting and t.waiting[0] == "mbarrier"})
        others = names and (
            f"{ranges([t.tid for t in away])} {have(away)} not: where they would, behind their wait on "
            f"{' or '.join(names)}, have them arrive once before it. Else i"
        )
        return self.came and not self.late and not barrier.last_far.keys() - far.keys() and (
            f"{barrier.name} can never complete: it expects {barrier.expected} arrivals in each phase, and "
            f"{count} thread{'s' * (count > 1)} ({who}) can arrive, {times} in all, and {have(range(count))} "
            f"done so. {others or 'I'}nitialise it for {self.came}, or have who is missing arrive."
        )  # fmt: skip

    def nobody_began(self, barrier):
        """All who are left wait for barriers on which nobody has ever arrived, and none of them ended early."""
        live = [t for t in self.threads if not t.dead]
        on = {t.waiting[1] for t in live if t.waiting[1] in barrier.block.barriers.live.values()}
        stuck, warps = {t.warp for t in live if t.waiting[1] in on}, {t.warp for t in self.threads}
        fresh = len(on) > 1 and all(not b.phase and b.pending == b.expected for b in on)
        waits = [t.site() for t in live if t.waiting[1] in on]
        if fresh and (states := States.that_decide(barrier.block, barrier.name, waits)):
            return states.cure()
        return fresh and stuck == warps and not self.others and (
            f"Nobody has arrived on {' or '.join(sorted(b.name for b in on))} yet. A wait for a stage to be "
            "empty takes parity 1 in the first round, which a fresh barrier lets pass, and then 0 and 1 in "
            "turn; acquire of a Ring does so."
        )  # fmt: skip

    CURES = (never_came, committed_elsewhere, not_committed, not_announced, raised, other_parity, nobody_left,
             beside, never_released, in_another_block, never_complete, skipped, nobody_began)  # fmt: skip

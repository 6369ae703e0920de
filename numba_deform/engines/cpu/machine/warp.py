"""A warp: its lanes, and the operations that wait for all of them. A block makes its warps; threads call
``collective``."""

from ... import faults
from ...waiting import have, ranges


class Warp:
    """32 lanes and the warp-wide operations that wait for all of them."""

    def __init__(self, block, number, lanes):
        self.block, self.number = block, number
        self.whole = self.alive = (1 << lanes) - 1
        self.pending = {}  # mask -> [kind, site, values by lane, parked threads]
        self.matched = False  # whether its lanes have met in a match, which orders no memory
        self.active = {}  # (site of an activemask, group) -> the lanes that stand there

    def collective(self, thread, kind, mask, value):
        if not mask >> thread.lane & 1:
            what = f"{kind} with mask {mask:#x}, which leaves out the caller"
            raise thread.fault(faults.WarpDivergence, what)
        if kind != "syncwarp":
            thread.told = thread.clock
        entry = self.pending.get(mask)
        if entry is None:
            entry = self.pending[mask] = [kind, thread.site(), {}, []]
        other, _, values, parked = entry
        if other != kind:  # they may call the same one at different places
            raise thread.explain.lanes_apart(thread, kind, mask, entry)
        values[thread.lane] = value
        if len(values) == (mask & self.alive).bit_count():
            self._finish(mask, entry)
        else:
            parked.append(thread)
            thread.park(kind, self, mask)
        return values

    def _finish(self, mask, entry):
        kind, _, values, parked = entry
        del self.pending[mask]
        lanes = [self.block.threads[self.number * 32 + lane] for lane in values]
        self.matched |= (is_match := kind.startswith("match"))
        in_step = is_match and self.block.execution.waived.allows("pipeline-end", lanes[0], entry[1])
        if kind == "syncwarp" or in_step:
            self.block.join([lane.tid for lane in lanes])
        self.block.ready.extend(parked)

    def waited(self, kind, mask):
        """What those who wait for the lanes of ``mask`` wait for: fields of a ``Wait``."""
        here, lanes = self.pending[mask][2], range(min(32, self.block.size - 32 * self.number))
        late = [i for i in lanes if (mask & self.alive) >> i & 1 and i not in here]
        gone = [i for i in lanes if (mask & ~self.alive) >> i & 1]
        state = f"{ranges(sorted(here), 'lane')} of warp {self.number} {have(here)} come"
        if gone:
            state += f", {ranges(gone, 'lane')} {have(gone)} exited"
        return {
            "on": f"{kind} with mask {mask:#x}", "state": state,
            "missing": f"{ranges(late, 'lane')} never {'comes' if len(late) == 1 else 'come'}",
            "by": tuple(32 * self.number + i for i in late), "why": "not at this place",
        }

    def deadlock(self, kind):
        return faults.WarpDivergence

    def lane_exits(self, lane):
        self.alive &= ~(1 << lane)
        for mask, entry in list(self.pending.items()):
            if mask >> lane & 1 and len(entry[2]) == (mask & self.alive).bit_count():
                self._finish(mask, entry)

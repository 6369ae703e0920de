"""Rings: at which use of its Ring each thread is, as the names of its barriers and the waits on them say."""

import re

from ...waiting import ranges

RING = re.compile(r"(.+)\.(full|empty)\[(\d+)\]")  # the name of a barrier of a Ring


class States:
    """The states of a Ring: at which use of it its threads are, by their last waits."""

    def __init__(self, block, ring):
        self.block, self.ring = block, ring
        self.stages = sum(b.name.startswith(f"{ring}.full[") for b in block.barriers.live.values())
        self.uses = {"full": {}, "empty": {}}  # {use: the threads that have waited, or wait, for it to be so}
        for thread in block.threads:
            for role, use in self._last(thread):
                self.uses[role].setdefault(use, []).append(thread.tid)

    @classmethod
    def that_decide(cls, block, name, sites):
        """Those of the Ring with a barrier of that name, if all these waits are calls of a Ring's functions;
        else None."""
        ring, line = RING.fullmatch(name), block.threads[0].line
        decide = ring and all(re.search(r"\.(wait|acquire)\(", line(site)) for site in sites)
        return cls(block, ring[1]) if decide else None

    def use(self, name, phase):
        """The number of the use in which the barrier of that name has that phase."""
        return phase * self.stages + int(RING.fullmatch(name)[3])

    def _last(self, thread):
        """(role of the barrier that ``thread`` waited for last, use), if it has waited for one."""
        waits = [(wait.last, wait.barrier, wait.phase) for wait in thread.waits.values()]
        if not thread.dead and thread.waiting and thread.waiting[0] == "mbarrier":
            waits.append((thread.clock + 1, thread.waiting[1], thread.waiting[1].phase))
        found = [(clock, RING.fullmatch(b.name), phase) for clock, b, phase in waits]
        found = [(clock, match.groups(), phase) for clock, match, phase in found if match]
        for _, (ring, role, index), phase in sorted(w for w in found if w[1][0] == self.ring)[-1:]:
            # Who waits for the first use to be empty passes at once; a consumer that does is a lap ahead.
            phase += role == "empty" or 2 * (phase < 0)
            yield role, self.use(f"{ring}.{role}[{index}]", phase)

    def cure(self, why=""):
        """What the states are, ``why`` that is wrong, and how they go."""
        ring, verbs = self.ring, {"full": "read", "empty": "filled"}
        said = [f"use {use} is to be {verbs[role]} by {ranges(tids)}"
                for role, uses in self.uses.items() for use, tids in sorted(uses.items())]  # fmt: skip
        return (f"In {ring} {', '.join(said)}{why}. Each state starts at use 0, {ring}.start(), and advances "
                f"by one each time, in whatever branch: state = {ring}.advance(state); of n that take turns "
                f"the k-th starts at use k, from 0 on, {ring}.start(k), and advances by n.")  # fmt: skip

"""setmaxnreg: the registers of a block, and which warp has how many of them (PTX ISA 9.7.19.5). A block has one
pool; ``setmaxnreg`` asks it."""

from ....device.limits import MOST_ALLOTTED, REGISTERS
from ... import faults


def most_registers(kernel, threads):
    """(registers that each of so many threads of a block has at launch, at most; whether it has that many).
    A compiler may give it fewer, but not where it heeds setmaxnreg and knows how many blocks there will be."""
    blocks, cap = kernel.min_blocks, kernel.max_registers or MOST_ALLOTTED
    each = min(REGISTERS // (-(-threads // 32) * 32 * (blocks or 1)), cap + -cap % 8) // 8 * 8
    return each, bool(blocks and kernel.whole_program)


class RegisterPool:
    """What setmaxnreg moves registers to and from. ``each``: what a thread starts with, at most; ``exact``: it
    is just that."""

    def __init__(self, block, each, exact):
        self.block, self.each, self.exact = block, each, exact
        self.held = {}  # warp -> registers of its threads, since its first setmaxnreg
        self.executed = {}  # warp -> [(setmaxnreg, site), ..]
        self.waiters = []

    def move(self, thread, direction, count):
        """setmaxnreg of one lane, when its warp has come together."""
        what, warp = f"setmaxnreg.{direction} {count}", thread.warp
        has = self.held.get(warp, self.each if direction == "dec" or self.exact else 0)
        if thread.lane == 0:
            self.executed.setdefault(warp, []).append((what, thread.site()))
        if count > has if direction == "dec" else count < has:
            what += f", where a thread has {has}" + " at most" * (warp not in self.held and not self.exact)
            raise thread.fault(faults.RegisterMisuse, what)
        while self._missing(warp, count) > 0:
            self.waiters.append(thread)
            thread.park("setmaxnreg", self, (warp, count))
        self.held[warp] = count
        self.block.ready.extend(self.waiters)  # there may be more for them now
        self.waiters = []

    def _missing(self, warp, count):
        """How many registers ``warp`` lacks to have ``count`` for each thread."""
        others = [w.number for w in self.block.warps if w.number != warp]  # an exit gives nothing back
        taken = 32 * (count + sum(self.held.get(other, self.each) for other in others))
        return taken - 32 * self.each * len(self.block.warps)

    def waited(self, kind, detail):
        """What those who wait for registers wait for: fields of a ``Wait``."""
        warp, count = detail
        late = [t.tid for t in self.block.threads if not t.dead and t.warp != warp]
        return {
            "on": f"{count} registers a thread", "state": f"the block began with at most {self.each}",
            "missing": f"{self._missing(warp, count)} registers that nobody gives back",
            "by": tuple(late), "why": "by setmaxnreg.dec",
            "root": True,  # warps give registers up before they begin, so that none waits for this one first
        }

    def deadlock(self, kind):
        return faults.RegisterMisuse

    def check(self):
        """A warpgroup is four neighbouring warps, and setmaxnreg is an instruction of all four."""
        for warp, executed in self.executed.items():
            counts = [what for what, _ in executed]
            for other in range(warp & ~3, (warp & ~3) + 4):
                theirs = [what for what, _ in self.executed.get(other, [])]
                if theirs != counts:
                    what = f"warp {warp} executed {', '.join(counts)}, and warp {other} of its warpgroup "
                    what += ", ".join(theirs) or "nothing of the kind"
                    thread, (_, site) = self.block.threads[32 * warp], executed[-1]
                    cure = f"Call it in all of warps {warp & ~3} to {warp & ~3 | 3}, a warpgroup: out of "
                    cure += "any branch that some of them do not take."
                    raise thread.fault_at(faults.RegisterMisuse, what, site, cure=cure)

"""A race: two accesses that nothing orders, and what a report says of where it comes from. ``race_causes`` and
``source_causes`` look for that."""

import ast
import re
from typing import NamedTuple

from ... import faults
from ..memory.access_records import Access, writers
from ..memory.vector_clocks import covers
from .source_order import order_of

BETWEEN = {
    "cta": "a barrier (syncthreads, syncwarp, an mbarrier: arrive after the one, wait before the other)",
    "cluster": "a release and an acquire (st_release_cluster_.., ld_acquire_cluster_.., or cluster_arrive() "
    "and cluster_wait())",
    "gpu": "a release and an acquire (st_release_gpu_.., ld_acquire_gpu_.., or cuda.threadfence() and atomics)",
}  # by the scope that both accesses are in


class Race(NamedTuple):
    """An access of kind ``kind`` by ``thread``, now, and ``other``, which nothing orders before it."""

    space: object
    thread: object
    kind: str
    other: Access
    name: str  # of the place

    @property
    def array(self):
        """The name of the array that the place is in."""
        return self.name.partition("[")[0]

    @property
    def near(self):
        """Whether both are of one block."""
        return self.other.block is self.thread.block

    @property
    def one_warp(self):
        """Whether both are of one warp."""
        return self.near and self.other.tid >> 5 == self.thread.warp

    @property
    def is_of_one_warp(self):
        """Whether both are, and all who have written the array."""
        ranges = [(a, b) for a, b, name, _ in getattr(self.space, "ranges", ()) if name == self.array]
        records = {id(record): record for a, b in ranges for record in self.space.written[a:b]}
        by = (w.tid for record in records.values() for w in writers(record))
        return self.one_warp and all(tid is None or tid >> 5 == self.thread.warp for tid in by)

    @property
    def scope(self):
        """The smallest that both are in."""
        clustered = self.other.block in self.thread.block.cluster.blocks
        return "cta" if self.near else "cluster" if clustered else "gpu"

    @property
    def between(self):
        """What would order them, in words."""
        return BETWEEN[self.scope]

    @property
    def one_line(self):
        return self.thread.at(self.thread.site()) == self.thread.at(self.other.site)

    @property
    def kinds(self):
        return {self.kind, self.other.kind}

    @property
    def lines(self):
        return self.thread.line(self.thread.site()), self.thread.line(self.other.site)

    @property
    def in_cpp(self):
        return self.thread.block.execution.language not in ("", "triton", "gluon", "ptx")

    @property
    def is_volatile(self):
        """Whether one of the two is a volatile access, as the words beside its line say."""
        return any(re.search(r"[( ]volatile\)|\.volatile\b", line) for line in self.lines)

    @property
    def order(self):
        """What stands between the two in their source, see ``source_order``."""
        tids, calls = self.thread.block.met if self.near else ((), ())
        met = calls if {self.thread.tid, self.other.tid} <= {*tids} else ()
        return order_of(self.thread.site(), self.other.site, self.near, met)

    @property
    def in_global(self):
        return self.space in self.thread.block.globals.regions

    @property
    def wide(self):
        """Whether there are other blocks that may touch the place as well."""
        return self.in_global and self.thread.block.execution.blocks > 1

    def at_line(self, number):
        """``file:line`` of a line of the function that both are in."""
        return f"{self.thread.at(self.other.site).rpartition(':')[0]}:{number}"

    @property
    def barrier(self):
        """The barrier for all who may touch the place, in words."""
        if self.in_global and (order := self.order) and order.grid:
            return "cuda.cg.this_grid().sync()"
        if self.near:
            return "cuda.syncthreads()"
        return "a barrier of the grid (cuda.cg.this_grid().sync(), or a new launch)"

    @property
    def culprit(self):
        """The thread of the other access."""
        return self.other.block.threads[self.other.tid]

    def covered(self, knowledge):
        return covers(knowledge, self.other.block, self.other.owner, self.other.clock)

    def known_to(self, w):
        """Whether the other access was known to its thread, or to another of its block, at the write ``w``."""
        of = self.other
        return (w.clock if w.tid == of.tid else of.block.threads[w.tid].seen[of.owner]) >= of.clock

    def who(self, tid, block=None):
        return self.thread.describe_tid(block or self.other.block, tid)


class Cause(NamedTuple):
    """What a race comes from. ``more``: what the report says of it; ``at``: (thread, site) to blame in place of
    the access, which does ``what``, if that is not the same; ``waiver``: its name where it can be waived."""

    cure: str
    rule: str | None = None
    more: str = ""
    kind: type = faults.DataRace
    at: tuple | None = None
    what: str | None = None
    waiver: str | None = None


def elements(line, array):
    """The indices by which a line of source names elements of ``array``, as text. Where the engine uses a name
    itself, it calls an array of that name by it and a _. A string in the line may have the kernel's text."""
    line, names = line.removeprefix("el"), (array, array.removesuffix("_"))
    for text in (line, line + "\n    pass"):
        try:
            nodes = list(ast.walk(ast.parse(text)))
        except SyntaxError:
            continue
        named = (n for n in nodes if isinstance(n, ast.Subscript) and getattr(n.value, "id", None) in names)
        texts = (n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str))
        return {ast.unparse(node.slice) for node in named}.union(*(elements(text, array) for text in texts))
    return set()


def changes_one(line, array):
    """Whether a line of C++ assigns to an element of ``array``, or to a variable of that name, and names no
    other element of it."""
    line = re.sub(r"//.*|/\*.*?\*/", "", line)
    text = rf"(?<![\w.>]){re.escape(array)}(?:\[(?:[^][]|\[[^][]*\])*\]|(?:->|\.)\w+)*"
    named = {re.sub(r"\s", "", each) for each in re.findall(text, line)}
    changed = rf"{text}\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))|(?:\+\+|--)\s*\(?\*?{text}"
    return len(named) == 1 and bool(re.search(changed, line))

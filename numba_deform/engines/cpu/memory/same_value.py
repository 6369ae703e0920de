"""The waiver "same-value": stores of one and the same value, which nothing orders, where a run may have them.
``Execution`` has its memory watched; the stores of threads and of arrays ask ``decide``.

Whether two stores may go unordered is a matter of the two alone, whichever ran first. So bytes have, beside the
stores of their present value (``Stores.parts``), those of the value before (``under``), and the reads that one
of these came after (``reads``): whoever stores that value, too, must still be ordered after all of them.
"""

from functools import partial

from ...faults import SimFault
from .access_records import ATOMIC, BLOCK, INITIAL, NEVER, OWNER, Write, different, readers, stretches, writers


class Stores(Write):
    """Stores of one value by threads, unordered among themselves. No clock has seen this record: the slow path
    of each check looks at all ``parts``."""

    __slots__ = ("parts", "under", "reads")

    def __init__(self, parts, under, reads):
        last = parts[-1]
        super().__init__(-1, NEVER, last.tid, last.site, last.block)
        self.parts, self.under, self.reads = parts, under, reads


class SameValue:
    """What the stores of one execution have changed. A store is made after its check: whether it has changed
    anything is known when the next one comes."""

    def __init__(self):
        self.last = None  # (memory, first byte, record; records, readers and bytes before it)

    def watch(self, memory):
        """Start to record the stores to this memory."""
        memory.on_write = partial(self.on_write, memory, memory.on_write)
        return memory

    def on_write(self, memory, check, thread, address, size, record):
        self.settle()
        a = address - memory.base
        b = a + size
        before = memory.written[a:b], memory.read_by[a:b], bytes(memory.bytes[a:b])
        try:
            check(thread, address, size, record)
        except SimFault:
            self.settle()  # before a race is told, other threads go on, and may store as well
            raise
        if type(record) is Write:
            self.last = memory, a, record, *before

    def settle(self):
        """Let the bytes of the last store say what is under it."""
        if self.last is None:
            return
        memory, a, record, earlier, read_by, content = self.last
        self.last = None
        for lo, hi, w in list(stretches(earlier)):
            under = _under(w, read_by[lo:hi], memory.bytes[a + lo : a + hi] == content[lo:hi])
            # Where the record has gone, an mbarrier's life has ended.
            if any(under) and all(now is record for now in memory.written[a + lo : a + hi]):
                memory.written[a + lo : a + hi] = [Stores((record,), *under)] * (hi - lo)


def _under(w, read_by, same):
    """(the stores of another value, the reads) that a store over ``w`` stands on, which ``read_by`` have read
    since; ``same``: it has not changed the bytes."""
    if not same:  # all stores of that value come after the reads before it
        stores = tuple(part for part in writers(w) if part.clock != NEVER and part is not INITIAL)
        earlier = ()
    else:
        stores, earlier = (w.under, w.reads) if type(w) is Stores else ((), ())
    latest = {(r[BLOCK], r[OWNER], r[ATOMIC]): r for r in earlier}
    for entry in different(read_by):
        latest.update({(r[BLOCK], r[OWNER], r[ATOMIC]): r for r in readers(entry)})
    return stores, tuple(latest.values())


def decide(race, memory, thread, address, content, record):
    """``race`` is what the check of a store of the bytes ``content`` has raised. If the stores that it races
    with are of the same value, and that is waived, in shared memory also as the compiler's, this leaves
    ``record`` and returns; else it raises."""
    a, size = address - memory.base, len(content)
    made, late_ones = [], 0
    for lo, hi, w in stretches(memory.written[a : a + size]):
        late = [part for part in writers(w) if not memory.sees(thread, part)]
        same = memory.bytes[a + lo : a + hi] == content[lo:hi]
        under = _under(w, memory.read_by[a + lo : a + hi], same)
        plain = all(type(part) is Write and part.owner == part.tid for part in late)
        if late and not (same and plain and all(memory.sees(thread, part) for part in under[0])):
            raise race
        made += [Stores((*late, record), *under)] * (hi - lo)
        late_ones += len(late)
    if not late_ones:
        raise race  # it is about a read
    for stores in different(made):
        for reader in stores.reads:
            memory._check_overwrite(thread, reader, address, record)
    race.waiver = "same-value"
    waived = thread.block.execution.waived
    if not ((memory.is_shared or race.waiver in waived.asked) and waived.excuses(race, thread)):
        raise race
    memory.read_by[a : a + size] = [None] * size
    memory.written[a : a + size] = made

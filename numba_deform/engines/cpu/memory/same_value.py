"""The waiver "same-value": stores of one and the same value, which nothing orders, where a run may have them.
``Execution`` has its memory watched; the stores of threads and of arrays ask ``decide``.

Whether two stores may go unordered is a matter of the two alone, whichever ran first. So bytes whose value has
changed have, beside the stores of their present value (``Stores.parts``), those of the value before
(``Stores.under``): whoever stores the same value must still be ordered after these.
"""

from functools import partial

from ... import faults
from .access_records import INITIAL, NEVER, Write, different, stretches, writers


class Stores(Write):
    """Stores of one value by threads, unordered among themselves. No clock has seen this record: the slow path
    of each check looks at all ``parts``."""

    __slots__ = ("parts", "under")

    def __init__(self, parts, under):
        last = parts[-1]
        super().__init__(-1, NEVER, last.tid, last.site, last.block)
        self.parts, self.under = parts, under


class SameValue:
    """What the stores of one execution have changed. A store is made after its check: whether it has changed
    anything is known when the next one comes."""

    def __init__(self):
        self.last = None  # (memory, first byte, record, records before it, bytes before it)

    def watch(self, memory):
        """From now on its stores are noted."""
        memory.on_write = partial(self.on_write, memory, memory.on_write)
        return memory

    def on_write(self, memory, check, thread, address, size, record):
        self.settle()
        a = address - memory.base
        before = memory.written[a : a + size], bytes(memory.bytes[a : a + size])
        check(thread, address, size, record)
        if type(record) is Write:
            self.last = memory, a, record, *before

    def settle(self):
        """Let the bytes of the last store say which stores are under it."""
        if self.last is None:
            return
        memory, a, record, earlier, content = self.last
        self.last = None
        for lo, hi, w in list(stretches(earlier)):
            under = _under(w, memory.bytes[a + lo : a + hi] == content[lo:hi])
            # Where the record has gone, an mbarrier's life has ended.
            if under and all(now is record for now in memory.written[a + lo : a + hi]):
                memory.written[a + lo : a + hi] = [Stores((record,), under)] * (hi - lo)


def _under(w, same):
    """The stores of another value that a store over ``w`` stands on; ``same``: it has not changed the bytes."""
    if same:
        return w.under if type(w) is Stores else ()
    return tuple(part for part in writers(w) if part.clock != NEVER and part is not INITIAL)


def decide(race, memory, thread, address, content, record):
    """``race`` is what the check of a store of the bytes ``content`` has raised. If the stores that it races
    with are of the same value, and that is waived, this leaves ``record`` and returns; else it raises."""
    a, size = address - memory.base, len(content)
    earlier, made = memory.written[a : a + size], []
    if type(race) not in (faults.DataRace, faults.ScopeRace):
        raise race
    for lo, hi, w in stretches(earlier):
        late = [part for part in writers(w) if not memory.sees(thread, part)]
        same = memory.bytes[a + lo : a + hi] == content[lo:hi]
        under = _under(w, same)
        plain = all(type(part) is Write and part.owner == part.tid for part in late)
        if late and not (same and plain and all(memory.sees(thread, part) for part in under)):
            raise race
        made += [Stores((*late, record), under)] * (hi - lo)
    if all(len(stores.parts) == 1 for stores in made):
        raise race  # it is about a read
    for entry in different(memory.read_by[a : a + size]):
        memory._check_overwrite(thread, entry, address, record)
    race.waiver = "same-value"
    if not thread.block.execution.waived.excuses(race, thread):
        raise race
    memory.read_by[a : a + size] = [None] * size
    memory.written[a : a + size] = made

"""A thread that gives way before each operation that another thread could notice, for ``controlled_cluster``.
What these operations are, and what each touches, stands in ``VISIBLE`` and ``ON_CLUSTER``."""

from ....compiler.rewrite import REBUILT
from ..machine.thread import ADDS, Thread
from ..machine.thread_memory import FLAG
from ..memory.access_records import UNWRITTEN
from ..memory.scalars import WORD, unpack
from ..reports.source_loops import Loops
from .choices import Operation, Touch


def visible(plain, describe, who=0):
    """The method ``plain``, whose thread, argument number ``who``, gives way first; ``describe`` makes its
    Operation."""

    def method(*args, **options):
        thread = args[who]
        if thread.inside:  # a part of a visible operation
            return plain(*args, **options)
        operation = describe(*args, **options)
        thread.give_way(operation)
        if thread.only_sees:
            thread.only_sees = False
            return operation.sees()
        thread.inside = True
        try:
            return plain(*args, **options)
        finally:
            thread.inside, thread.reads = False, 0

    return method


def _busy(name):
    """The method ``name`` of Thread, which does more than reckoning."""
    plain = getattr(Thread, name)

    def method(self, *args, **options):
        self.busy = True
        return plain(self, *args, **options)

    return method


def _effect(block, address, kind):
    """On the mbarrier at an address of ``block``."""
    return Touch(("mbarrier", address, block.rank), kind, block.phase(address))


def _on_barrier(kind):
    def describe(thread, address, *_, **__):
        address = int(address) & WORD
        return Operation(lambda: [_effect(thread.block, address, kind)])

    return describe


def _on_tensor_memory(thread, *_, **__):
    return Operation(lambda: [Touch(("tensor memory", thread.block.rank // 2), "write")])


def _wait(thread, address, parity, suspend, token=None):
    barrier = thread.block.barriers.find(thread, address)  # no order of steps matters to its faults
    return Operation(lambda: [_effect(thread.block, address, "read")], True, ("mbarrier", barrier, parity),
                     address=address, parity=parity, token=token, suspends=suspend)  # fmt: skip


def _copy(thread, dst, src, what, bar, *_):
    return Operation(lambda: [Touch(("mbarrier", int(bar) & WORD, thread.block.rank), "read")])


def _words(thread, kind, space, address, size, waiting=None, sees=None, changes=lambda: False):
    words = range(address // 4, address // 4 + max(1, size // 4))
    home = getattr(space, "block", None)  # of shared memory
    rank = home and home.rank

    def touches():
        result = [Touch(("word", word, rank), kind, space.word(4 * word)) for word in words]
        return result if home else [*result, Touch(("grid",), "read")]

    if not waiting:
        return Operation(touches)
    at = slice(address - space.base, address - space.base + size)
    return Operation(touches, True, waiting, held=lambda: space.word(4 * words[0]), sees=sees, changes=changes,
                     is_fault=lambda: UNWRITTEN in space.written[at])  # fmt: skip


def _sees(space, address):
    return lambda: unpack(space.bytes, address - space.base, 4, 1)


def _load(thread, space, address, *_, size=4, **__):
    space, address = thread._locate(space, address, size, FLAG)
    return _words(thread, "read", space, address, size, ("flag", space, address), _sees(space, address))


def _store(thread, space, address, *_, size=4, **__):
    return _words(thread, "write", *thread._locate(space, address, size, FLAG), size)


def _atomic_word(thread, space, address, change, *_, **__):
    return _atomic_at(thread, *thread._locate(space, address, 4, FLAG), change)


def _atomic_at(thread, space, address, change):
    sees = _sees(space, address)
    waiting = ("atomic", space, address)
    return _words(thread, "write", *waiting[1:], 4, waiting, sees, lambda: change(sees()) not in (None, sees()))


def _atomic_add(thread, address, kind, values):
    size = 4 * len(values)
    space, address = thread._locate("global", address, size, ADDS)
    return _words(thread, "write", space, address, size, ("atomic", space, address), None, lambda: True)


def _atomic(thread, view, index, change, *_, **__):
    place, address = view._locate(thread, index)

    def sees():
        return view.data[place].item() if view.integer else view.data[place]

    def changes():
        return place is None or change(view.data[place]) not in (None, view.data[place])

    at, waiting = address or view.space.base, ("atomic", view.space, address)
    return _words(thread, "write", view.space, at, view.itemsize, waiting, sees, changes)


def named_operation(thread, number, *_, **__):
    """An arrival at named barrier ``number``. Exits count as arrivals, and some are faults."""
    block = thread.block
    thing, exits = ("named", number, block.rank), Touch(("exits", block.rank), "read")
    return Operation(lambda: [Touch(thing, "arrive", block.uses.get(number, 0)), exits])


# --- of a cluster -------------------------------------------------------------------------------------
def _home(cluster, thread, address, size=4):
    """(shared memory, address in it) that a shared::cluster address means."""
    block, place = cluster._home(thread, address)
    return block.shared, place // size * size


def _flag(cluster, thread, address, *_, **__):
    memory, place = _home(cluster, thread, address)
    return _words(thread, "read", memory, place, 4, ("flag", memory, place), _sees(memory, place))


def _set_flag(cluster, thread, address, *_, **__):
    return _words(thread, "write", *_home(cluster, thread, address), 4)


def _change_word(cluster, thread, address, change, *_, **__):
    return _atomic_at(thread, *_home(cluster, thread, address), change)


def _arrival(cluster, thread, address, count, expected=None, drop=False):
    memory, place = _home(cluster, thread, address, 1)
    return Operation(lambda: [_effect(memory.block, place, "write" if drop else "arrive")])


def _multicast(cluster, thread, *args, **_):
    *_, bar, mask = args  # whose last two these are
    place = _home(cluster, thread, bar, 1)[1]
    ranks = [rank for rank in range(len(cluster.blocks)) if mask >> rank & 1]
    return Operation(lambda: [Touch(("mbarrier", place, rank), "read") for rank in ranks])


def _sending(bar):
    """Of the method whose argument number ``bar`` is the barrier's address."""

    def describe(cluster, thread, *args):
        memory, place = _home(cluster, thread, args[bar], 1)
        return Operation(lambda: [Touch(("mbarrier", place, memory.block.rank), "read")])

    return describe


class ControlledThread(Thread):
    """A thread that gives way before each visible operation."""

    operation, inside = None, False
    only_sees = False  # whether the look at which it stands comes back with what is there, and that is all
    # Whether more has happened since the last operation than reckoning with variables; of the one before that.
    busy = was_busy = False
    wrote = False  # whether anything has changed in its last step
    # (state, progress) at one of the times of many reads; how many more it is kept, and in all
    last_look, left, stride = None, 1, 1
    completed = 0  # named barriers of the block when it last looked

    def __init__(self, run, block, tid):
        super().__init__(run, block, tid)
        self.looks = {}  # state at a poll -> what the warp's polls could see at that time
        self.last_view, self.same = None, 0  # what the last poll could see; polls that saw the same

    def give_way(self, operation):
        self.operation = operation
        self.was_busy, self.busy, self.reads = self.busy or self.reads > 0, False, 0
        if operation.poll:
            self.waiting = operation.waiting
            self.block.cluster.looking.append((self, operation))
        self.block.switches += 1
        self.block.hub.switch()
        self.operation = None

    def loops(self):
        """What ``reports.source_loops`` says of the place of the look at which the thread stands."""
        frame, known, sites = self.gr_frame, self.block.execution.places, []
        while frame is not None:
            if REBUILT in frame.f_globals:
                sites.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        place = self.waiting[0] == "atomic", *((id(code), offset) for code, offset in sites)
        if place not in known:
            known[place] = Loops.around(sites, place[0])
        return known[place]

    def poll(self, *_):
        self.reads = 0  # it has given way before it looked

    def looked(self, state, view):
        self.same = self.same + 1 if view == self.last_view else 1
        self.looks[state] = self.last_view = view

    def may_look(self, state, view, attempts):
        """Whether a poll could come to something new. One that counts its attempts, be it in a variable, in
        memory or by a loop that does not show it, gets so many of them."""
        new = self.looks.get(state) != view or self.wrote or self.loops().hidden
        return new and (view != self.last_view or self.same < attempts)

    def many_reads(self, *waiting):
        """Give way only if this is a poll, which comes back to where it was: whoever works through much data
        goes on. What is remembered is 1, 2, 4, .. times old (R. P. Brent), so that no circle is too long."""
        self.reads = 0
        look, last = (self.state(), self.block.progress), self.last_look
        if look == last:
            self.spin(*waiting)
        elif last is None or last[1] != look[1]:
            self.last_look, self.left, self.stride = look, 1, 1
        elif self.left == 1:
            self.stride *= 2
            self.last_look, self.left = look, self.stride
        else:
            self.left -= 1


VISIBLE = {
    "mbarrier_init": _on_barrier("write"), "mbarrier_inval": _on_barrier("write"),
    "mbarrier_arrive": _on_barrier("arrive"), "mbarrier_arrive_drop": _on_barrier("write"),
    "mbarrier_arrive_state": _on_barrier("write"),
    "mbarrier_arrive_expect_tx": _on_barrier("arrive"), "mbarrier_expect_tx": _on_barrier("expect"),
    "cp_async_arrive": _on_barrier("write"), "mbarrier_wait": _wait,
    "tensor_load": _copy, "bulk_load": _copy,
    "tcgen05_alloc": _on_tensor_memory, "tcgen05_dealloc": _on_tensor_memory,
    "tcgen05_commit": _on_barrier("write"),
    "named_barrier": named_operation, "load_acquire": _load, "store_release": _store,
    "atomic": _atomic, "atomic_word": _atomic_word,
    "atomic_add": _atomic_add,
}
# The same of Cluster; the waits of cluster scope are those of the thread.
ON_CLUSTER = {
    "load_flag": _flag, "store_flag": _set_flag, "atomic": _change_word, "mbarrier_arrive": _arrival,
    "tensor_load": _multicast, "bulk_load": _multicast, "bulk_copy": _sending(3), "bulk_reduce": _sending(3),
    "store_async": _sending(2), "commit_products": _multicast, "reduce_async": _sending(2),
}  # fmt: skip
# What neither shows in a thread's variables nor counts as a read or as progress.
UNSEEN = (
    "shuffle", "collective", "active_mask", "clock_cycles", "tensor_store", "bulk_store", "cp_async",
    "commit_group", "wait_group", "find_map", "fence_map", "bulk_prefetch", "tensor_prefetch",
    "multiply_matrices", "multiply_fragments", "set_max_registers", "tcgen05_relinquish", "tcgen05_wait",
    "tcgen05_ld", "tcgen05_st", "tcgen05_mma", "tcgen05_cp",
)  # fmt: skip


for _name, _describe in VISIBLE.items():
    setattr(ControlledThread, _name, visible(getattr(Thread, _name), _describe))
for _name in UNSEEN:
    setattr(ControlledThread, _name, _busy(_name))

"""Causes of races that who reads a flag, or takes a lock or a ticket, leaves open. ``race_causes`` has those of
who sets it."""

from ..memory.access_records import ATOMIC, BLOCK, CHANGE, CLOCK, READ, SITE, TID, readers, writers
from ..memory.vector_clocks import CLUSTER, CTA, FENCED, GPU, MET, covers
from ..reports.call_sites import result_used
from .races import Cause

SCOPES = {"cta": CTA, "cluster": CLUSTER, "gpu": GPU}


def unacquired(pair):
    """A thread of this block has read a flag that hands the other access on, and has acquired nothing by it; or
    one of a block that has then set a flag for this one."""
    setters = {} if pair.near else {w.block: 0 for *_, record, _ in _words(pair) for w in writers(record)}
    for block in (pair.thread.block, *setters):
        if pair.near or block is not pair.other.block:
            yield from _unacquired(pair, block)


def _unacquired(pair, block):
    other, scope = pair.other, SCOPES[pair.scope]

    def has(knowledge, fact=None):
        return covers(knowledge, (fact, other.block) if fact else other.block, other.owner, other.clock)

    late = [t for t in block.threads if not (has({block: t.clocks}) or has(t.foreign))]
    late = [t for t in late if has(t.acquired[scope]) or has(t.foreign, MET)]
    for space, address, _, flag in _flags(block) if late else ():
        handed = flag.seen_by(block)[scope]
        found = (has(handed) or has(handed, FENCED)) and _read(space, address, late)
        seen = pair.thread.seen  # a mate that no barrier has followed has come on a way of its own
        if found and (block is not pair.thread.block or seen[found[0].tid] >= found[1]):
            mate, _, site, changes = found
            how = "an atomic" if changes else "a relaxed load"
            yield Cause(
                acquire(pair, space, *found, _is_released(handed, other.block)),
                f"Who reads a flag by {how} acquires nothing by that alone: a fence has to come behind it.",
                f"; {pair.who(mate.tid, block)} has read {space.name_of(address, True)}, which hands this on, "
                f"by {how} at {mate.at(site)}, and acquires nothing",
            )  # fmt: skip


def acquire(pair, space, mate, clock, site, changes, released=True):
    """What ``mate`` has to do at ``site``, where it reads a flag of ``space``, in words. ``released``: an
    acquire without a fence is enough."""
    shared, place = hasattr(space, "dynamic_names"), mate.at(site)
    cure = f"Call {'cuda.threadfence_block()' if pair.near else 'cuda.threadfence()'} behind the "
    cure += f"{'atomic' if changes else 'load'} at {place}, or the loop that it is in"
    if released and not changes:
        far = "cluster_shared_cluster" if shared else "gpu_global"
        form = far if not pair.near else "cta_shared" if shared else "cta_global"
        cure += f", or make it ld_acquire_{form}_b32"
    if mate is not pair.thread:
        cure += f"; what thread {mate.tid} acquires, the others know past a barrier (cuda.syncthreads())"
    return cure + "."


def also_acquire(pair, space, address, flag):
    """The same for a flag that hands nothing on yet; "" where it is acquired."""
    late = [t for t in pair.thread.block.threads if t.met and t.met[0] is flag and not t.met[3]]
    found = _read(space, address, late)
    return f" {acquire(pair, space, *found)}" if found and found[0].last_fence[1] <= found[1] else ""


def is_acquired(block, space, address, flag):
    """Whether a thread of the block that has read the flag last acquires what it hands on."""
    met = [t for t in block.threads if t.met and t.met[0] is flag]
    found = _read(space, address, met)
    return any(t.met[3] for t in met) or found and found[0].last_fence[1] >= found[1]


def _is_released(handed, block):
    """Whether ``handed`` has by releases all that it has by fences of threads which met at a barrier after."""
    released, fenced = handed.get(block), handed.get((FENCED, block))
    if released is None or fenced is None or released.shape[1] < fenced.shape[1]:
        return released is not None and fenced is None
    return not (fenced > released[:, : fenced.shape[1]]).any()


def _flags(block):
    """(memory, address, record, flag) of all flags that threads of ``block`` may have read."""
    for space in (*block.globals.regions, *(b.shared for b in block.cluster.blocks)):
        for address, flag in space.flags.items() if space.traced else ():
            yield space, address, space.written[address - space.base], flag


def _read(space, address, threads):
    """(thread, its clock, site, whether by an atomic that changes it) of the last atomic read of a word by one
    of ``threads``; None if there is none."""
    record, entry = (each[address - space.base] for each in (space.written, space.read_by))
    found = [(r[CLOCK], r[SITE], False, r[TID], r[BLOCK]) for r in readers(entry) if r[ATOMIC]]
    if record.atomic:
        found += [(w.clock, w.site, True, w.tid, w.block) for w in writers(record) if w.reads]
    reads = ((t, *read) for t in threads for *read, tid, block in found if tid == t.tid and block is t.block)
    return next(reads, None)


def flags_of(pair, by_any=False):
    """(memory, address, record, flag) of each flag that the other block has set and this block has read;
    ``by_any``: or any other block, where who made the other access does not know of that."""
    for space, address, record, flag in _words(pair):
        read = {of for of, _ in record.seen}
        for w in writers(record):
            relayed = by_any and read - {w.block} and pair.culprit.seen[w.owner] < w.clock
            if w.block is pair.other.block and (pair.thread.block in read or relayed):
                yield space, address, w, flag


def _words(pair):
    """The same of each word whose last write was an atomic."""
    return (word for word in _flags(pair.thread.block) if word[2].atomic)


def lock_without_fence(pair):
    """Each of the two changes a word by an atomic, the other after its access and this one before, where what
    the atomic gives is used: a lock or a turn, which hands nothing on without fences. A thread may do so for
    those that it meets at a barrier."""
    thread, other = pair.thread, pair.other
    for space, address, record, flag in _words(pair) if CHANGE not in pair.kinds else ():
        changes = [w for w in writers(record) if w.reads]
        left = [w for w in changes if w.block is other.block and pair.known_to(w)]
        taken = [w for w in changes if w.block is thread.block and thread.seen[w.owner] >= w.clock]
        taken = [w for w in taken if result_used(w.site)]
        if not left or not taken or taken[-1].number < left[-1].number:
            continue
        given, got = thread.at(left[-1].site), thread.at(taken[-1].site)
        last = pair.kind is READ and taken[-1].number == max(w.number for w in changes)  # who adds up for all
        if given == got and not (last and left[-1].tid == other.tid):  # a ticket that each takes again
            continue
        released = pair.covered(flag.own.get(other.block) or {} if pair.near else flag.wide)
        fence = "cuda.threadfence_block()" if pair.near else "cuda.threadfence(), of gpu scope,"
        taker = thread.block.threads[taken[-1].tid]
        acquired = taker.met and taker.met[0] is flag and taker.met[3]
        places = [f"right before the atomic at {given}"] * (not released)
        places += [f"right behind the atomic at {got}, or its loop"] * (
            not acquired and taker.last_fence[1] < taken[-1].clock
        )  # fmt: skip
        if not places:
            return
        yield Cause(
            f"Call {fence} {', and '.join(places)}.",
            "An atomic by itself hands nothing on: what comes before it in its thread needs a fence before it, "
            "and who reads its value a fence behind that (PTX section 8.8).",
            f"; {pair.who(left[-1].tid)} changed {space.name_of(address, True)} by an atomic after that, at "
            f"{given}, and {pair.who(taker.tid, thread.block)} before this, at {got}",
        )  # fmt: skip


def ticket_without_fence(pair):
    """An atomic whose value is used met a release that covers the other access, and nothing acquires that."""
    if pair.kind is not READ or pair.thread.block.tickets:
        return
    block, seen = pair.thread.block, pair.thread.seen
    for space, address, w, flag in flags_of(pair):
        record = space.written[address - space.base]
        for own in writers(record) if pair.covered(flag.wide) else ():
            taken = own.reads and own.block is block and seen[own.owner] >= own.clock
            if taken and own.number > w.number:
                place = pair.thread.at(own.site)
                yield Cause(
                    f"Call cuda.threadfence() right behind the atomic at {place}, in its thread.",
                    more=f"; the atomic at {place} met what {pair.who(w.tid)} released after that, and no "
                    "fence behind it acquires it: the form of NVIDIA's sample threadFenceReduction",
                    waiver="thread-fence-reduction" if pair.space in block.globals.regions else None,
                )  # fmt: skip

"""Causes of races that who reads a flag leaves open. ``race_causes`` has those of who sets it."""

from .access_records import ATOMIC, BLOCK, CLOCK, SITE, TID, readers, writers
from .races import Cause
from .vector_clocks import CLUSTER, CTA, FENCED, GPU, MET, covers

SCOPES = {"cta": CTA, "cluster": CLUSTER, "gpu": GPU}


def unacquired(pair):
    """A thread of this block has read a flag that hands the other access on, and has acquired nothing by it."""
    other, scope, block = pair.other, SCOPES[pair.scope], pair.thread.block

    def has(knowledge, fact=None):
        return covers(knowledge, (fact, other.block) if fact else other.block, other.owner, other.clock)

    late = [t for t in block.threads if not (has({block: t.clocks}) or has(t.foreign))]
    late = [t for t in late if has(t.acquired[scope]) or has(t.foreign, MET)]
    for space, address, flag in _flags(block) if late else ():
        handed = flag.seen_by(block)[scope]
        found = (has(handed) or has(handed, FENCED)) and _read(space, address, late)
        if found:
            mate, _, site, changes = found
            how = "an atomic" if changes else "a relaxed load"
            return Cause(
                acquire(pair, space, *found, _is_released(handed, other.block)),
                f"Who reads a flag by {how} acquires nothing by that alone: a fence has to come behind it.",
                f"; {pair.who(mate.tid, block)} has read {space.name_of(address, True)}, which hands this on, "
                f"by {how} at {mate.at(site)}, and acquires nothing",
            )  # fmt: skip
    return None


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


def _is_released(handed, block):
    """Whether ``handed`` has by releases all that it has by fences of threads which met at a barrier after."""
    released, fenced = handed.get(block), handed.get((FENCED, block))
    if released is None or fenced is None or released.shape[1] < fenced.shape[1]:
        return released is not None and fenced is None
    return not (fenced > released[:, : fenced.shape[1]]).any()


def _flags(block):
    """(memory, address, flag) of all flags that threads of ``block`` may have read."""
    for space in (*block.globals.regions, *(b.shared for b in block.cluster.blocks)):
        yield from ((space, address, flag) for address, flag in space.flags.items() if space.traced)


def _read(space, address, threads):
    """(thread, its clock, site, whether by an atomic that changes it) of the last atomic read of a word by one
    of ``threads``; None if there is none."""
    record, entry = (each[address - space.base] for each in (space.written, space.read_by))
    found = [(r[CLOCK], r[SITE], False, r[TID], r[BLOCK]) for r in readers(entry) if r[ATOMIC]]
    if record.atomic:
        found += [(w.clock, w.site, True, w.tid, w.block) for w in writers(record) if w.reads]
    reads = ((t, *read) for t in threads for *read, tid, block in found if tid == t.tid and block is t.block)
    return next(reads, None)

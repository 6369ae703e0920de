"""Why two accesses race, and what would mend it: by their kinds, and by what their threads did meanwhile.

``accesses`` has found two accesses that nothing orders, and asks :func:`race` for the fault. Each generator of
``CAUSES`` looks for one cause, where the two are near enough for it; the first that finds its own has the say.
"""

from ... import faults
from ..memory.access_records import CHANGE, READ, WRITE
from ..memory.vector_clocks import CLUSTER, CTA, GPU, SCOPES_IN_WORDS, SHARED, covers
from . import source_causes as source
from .flag_causes import (
    also_acquire,
    flags_of,
    is_acquired,
    lock_without_fence,
    ticket_without_fence,
    unacquired,
)
from .meetings import count_too_small, two_counts
from .races import Cause, Race, changes_one, elements
from .refills import FOR_ITS_WARP

RULES = {
    "cta": faults.DataRace.rule,
    "cluster": "Blocks of a cluster run in any order; a release and an acquire of cluster scope order them.",
    "gpu": "Blocks run in any order or at once; a release and an acquire of gpu scope order them.",
}  # by the scope that both are in
PARITY = "the parity changes from one use of a barrier to the next, and begins with 0 for who waits for others"
BEYOND = " syncthreads stops at its block: what orders blocks is another launch, cuda.cg.this_grid().sync() or "
BEYOND += "atomics that release and acquire."
VOLATILE = "; a volatile access is a relaxed one (PTX 9.7.9.8): it orders nothing between threads"
ANY = "cta cluster gpu"  # scope
LATE = 5  # turns that others get to hand something on


def race(space, thread, kind, other, what, name):
    """The fault of ``thread``, whose access, of that kind, ``other`` is not ordered before."""
    pair = Race(space, thread, kind, other, name)
    for _ in range(LATE):
        if pair.near or next(_causes(pair, HANDED_ON), None):
            break
        thread.let_others_come()  # an acquire or a release may be late
    unordered = UNORDERED[pair.scope]
    if not pair.is_of_one_warp:
        unordered = unordered.replace("syncwarp, ", "")
    cause = next(_causes(pair), None) or Cause(unordered)
    who, site = cause.at or (thread, thread.site())
    what = (cause.what or what) + cause.more + VOLATILE * pair.is_volatile
    plain = RULES[pair.scope] + BEYOND * pair.wide
    rule = cause.rule or (plain if cause.kind is faults.DataRace else cause.kind.rule)
    return who.fault_at(cause.kind, what, site, name, rule=rule, cure=cause.cure, waiver=cause.waiver)


def _causes(pair, among=None):
    """All that there are, the most telling first; ``among``: some of the functions of CAUSES."""
    for where, find in CAUSES:
        if pair.scope in where and (among is None or find in among):
            yield from find(pair)


# --- waits that waited for something else -------------------------------------------------------------
def _old_token(pair):
    """One of the two has waited on an mbarrier with a token of a phase before its own last arrival."""
    for thread, clock in ((pair.thread, pair.thread.clock), (pair.culprit, pair.other.clock)):
        if thread.old_token and thread.old_token.clock <= clock:
            barrier, phase, last, site, _ = thread.old_token
            yield Cause(
                "Wait with the token that the last arrival on the barrier has returned: "
                "token = mbarrier_arrive_state(..) before each wait, not before the first alone.",
                "A wait by token returns for the phase of the token, whatever has come since "
                "(PTX 9.7.13.15.16).",
                f"; the wait of thread {thread.tid} on {barrier.name}, at {thread.at(site)}, is by a token of "
                f"phase {phase}, and its last arrival counts in phase {last}",
                faults.StaleWait, (thread, site),
            )  # fmt: skip


def _count_too_small(pair):
    """Both threads have called one named barrier, which completed for some of those who call it."""
    both = {pair.thread.tid, pair.other.tid}
    for (number, count, site), tids in pair.thread.block.named_barrier_calls.items():
        if len(tids) > count and both <= tids:
            pair.thread.let_others_come()  # all who call it
            what, cure = count_too_small(tids, number, count, pair.thread.at(site))
            kind, more = faults.NamedBarrierMisuse, f"; {what}: it completes without the others"
            yield Cause(cure, kind.rule, more, kind, (pair.thread, site))


def _two_counts(pair):
    """Warps of both call one named barrier, and name two numbers of threads for it."""
    for warps, what, cure, site, tid in two_counts(pair.thread.block):
        if {pair.thread.warp, pair.other.tid >> 5} <= warps:
            kind, who = faults.NamedBarrierMisuse, pair.thread.block.threads[tid]
            yield Cause(cure, kind.rule, f"; {what}", kind, (who, site))


def _old_phase(pair):
    """The thread has waited on an mbarrier for an older phase than that which hands the other access on."""
    thread = pair.thread
    for barrier, phase, site, *_ in thread.waits.values():
        # It has gone on since, to come back for the same phase; or it reads what no phase has brought.
        again = _gone_on(thread, barrier)
        if not again and (phase >= 0 or pair.kind is not READ):
            continue
        for _ in range(LATE):
            if (brings := _bringing(pair, barrier)) is not None:
                break
            thread.let_others_come()
        if brings is not None and brings > phase:
            when = f"for phase {phase}{' again' * again}" if phase >= 0 else "before any phase was over"
            kind = faults.StaleWait if again else faults.FreshBarrierPassed
            yield Cause(
                f"Wait there for phase {brings}, with parity {brings & 1}: {PARITY}.", kind.rule,
                f"; the wait of thread {thread.tid} on {barrier.name}, at {thread.at(site)}, returned {when}, "
                f"and what hands this on is phase {brings}", kind,
            )  # fmt: skip


def _early_reader(pair):
    """The other thread has read what this one is to write for the next phase of a barrier, or for the first."""
    reader, thread = pair.culprit, pair.thread
    if pair.kind is READ or pair.other.kind is not READ:
        return
    before = [wait for wait in reader.waits.values() if wait.last <= pair.other.clock]
    # Who has waited for the reader comes after it: what that passes may tell it of free stages.
    behind = any(wait.phase >= 0 and wait.barrier in reader.arrivals for wait in thread.waits.values())
    for barrier, phase, site, _, last in before:
        if phase < 0 and not barrier.phase and not behind and last == max(wait.last for wait in before):
            yield Cause(
                f"Wait there for phase 0, with parity 0: {PARITY}.", faults.FreshBarrierPassed.rule,
                f"; its wait on {barrier.name}, at {thread.at(site)}, returned before any phase was over",
                faults.FreshBarrierPassed, (reader, pair.other.site),
                f"reads {pair.name}, which {reader.describe_tid(thread.block, thread.tid)} writes later, at "
                f"{thread.at(thread.site())}",
            )  # fmt: skip
        writes = thread.tid in barrier.arrived or thread.tid in barrier.last_arrivers
        if writes and phase >= 0 and _gone_on(reader, barrier):
            yield Cause(
                f"Wait there for phase {phase + 1}, with parity {phase + 1 & 1}: {PARITY}.",
                faults.StaleWait.rule, f"; the wait of {pair.who(reader.tid)} on {barrier.name}, at "
                f"{thread.at(site)}, had returned for phase {phase} again before that",
            )  # fmt: skip


def _gone_on(thread, barrier):
    """Whether the thread, or a lane for its warp, has given something back between two of its waits for one
    phase of ``barrier``."""
    *_, first, last = thread.waits[barrier]
    others = [b for b in thread.block.barriers.live.values() if b is not barrier and first < last]
    for tid, clock in (pair for b in others for pair in (*b.arrived.items(), *b.last_arrivers.items())):
        mate = thread.block.threads[tid]
        began = mate.waits[barrier].first if barrier in mate.waits else clock + 1
        if first <= clock < last if mate is thread else mate.warp == thread.warp and began <= clock:
            return True
    return False


def _bringing(pair, barrier):
    """The phase of ``barrier`` that comes after the other access, if that is this one or the one before."""
    other = pair.other
    if not pair.near:
        knows = [pair.covered(clocks) for clocks in (barrier.released_far, barrier.gathered_far)]
    else:
        knows = [clocks[0, other.owner] >= other.clock for clocks in (barrier.released, barrier.gathered)]
    return barrier.phase - 1 if knows[0] else barrier.phase if knows[1] else None


def _arrived_for_its_warp(pair):
    """The thread has waited for an arrival that another lane of the other's warp has made for all of it."""
    thread, other = pair.thread, pair.other
    for barrier, phase, *_ in thread.waits.values():
        here = {thread.block.threads[tid] for tid in barrier.last_arrivers}
        came = (t for t in (here if pair.near else barrier.last_far) if t.block is other.block)
        mates = [t for t in came if t.warp == other.tid >> 5]
        if phase == barrier.phase - 1 and mates and pair.culprit not in mates:
            mate = min(mates, key=lambda t: t.tid)
            site, place = mate.arrivals[barrier], thread.at(mate.arrivals[barrier])
            if site[0] is other.site[0] and site[1] < other.site[1]:
                return  # what comes behind the arrival is another matter
            yield Cause(
                f"Put cuda.syncwarp() before the arrival of thread {mate.tid} at {place}, {FOR_ITS_WARP}",
                more=f"; {pair.who(mate.tid)} arrived on {barrier.name} at {place}, and no barrier before that "
                "told it of this",
            )  # fmt: skip


def _behind_its_arrival(pair):
    """The thread has waited for an arrival that the other one made before its access."""
    thread, other = pair.thread, pair.other
    latest = max((wait.last for wait in thread.waits.values()), default=0)
    for barrier, phase, site, _, last in thread.waits.values():
        clock = barrier.last_arrivers.get(other.tid, other.clock)
        if last == latest and phase == barrier.phase - 1 and clock < other.clock:
            yield from _of_another_stage(pair, barrier, site)
            place = thread.at(pair.culprit.arrivals[barrier])
            more = f"; thread {thread.tid} has waited on {barrier.name} at {thread.at(site)}, and "
            more += f"thread {other.tid} has {'read' if other.kind is READ else 'written'} this after its "
            more += "arrival in that phase"
            if other.kind is READ:
                cure = f"Let thread {other.tid} arrive behind its last read: that at {place} comes first."
                yield Cause(cure, faults.ReadAfterRelease.rule, more)
            yield Cause(
                f"If the write is what the wait is for, let it come before the arrival at {place}. If it is "
                "for the next use of the stage, let it come after a wait until that is empty (acquire of a "
                f"Ring). Else put {pair.between} between the two.", more=more,
            )  # fmt: skip


def _of_another_stage(pair, waited, site):
    """The other thread's first arrival after its access, further on in a round, is on another barrier than the
    one ``waited`` for at ``site``."""
    culprit, other, at = pair.culprit, pair.other, pair.thread.at
    for _ in range(LATE):
        clocks = [(of.get(other.tid, -1), b) for b in culprit.arrivals for of in (b.last_arrivers, b.arrived)]
        if after := [each for each in clocks if each[0] >= other.clock]:
            break
        pair.thread.let_others_come()
    _, barrier = min(after, key=lambda each: each[0], default=(0, waited))
    code, offset = culprit.arrivals[barrier]
    if barrier is waited or code is not other.site[0] or offset < other.site[1]:
        return
    yield Cause(
        "Take place and barriers by one stage index, in both threads: the arrival that comes after this, at "
        f"{at((code, offset))}, is on {barrier.name}, and the wait at {at(site)} is for {waited.name}.",
        more=f"; {pair.who(other.tid)} arrived on {barrier.name} after that",
    )


def _narrow_wait(pair):
    """A wait of this block on an mbarrier would have ordered it, had its scope been the cluster."""
    other, thread = pair.other, pair.thread
    if not covers(thread.foreign, (SHARED, other.block), other.owner, other.clock):
        return
    who = "the wait on an mbarrier that came between them has scope cta"
    for mate in thread.block.threads:
        for barrier, phase, site, *_ in mate.waits.values():
            if phase == barrier.phase - 1 and pair.covered(barrier.released_far):
                if not mate.knows(other.block, other.owner, other.clock):
                    who = f"the wait of {thread.describe_tid(thread.block, mate.tid)} on {barrier.name}, at "
                    who += f"{thread.at(site)}, has scope cta"
    yield Cause(
        "Wait with cluster scope where other blocks hand on global memory: mbarrier_wait_cluster, "
        "mbarrier_try_wait_parity_cluster.",
        "A wait of scope cta for another block's arrivals orders accesses to shared memory; the L1 "
        "cache may keep global memory as it was before.",
        f"; {who}, which leaves out what other blocks did to global memory", faults.ScopeRace,
    )  # fmt: skip


def _narrow_scope(pair):
    """A release or an acquire with scope cta or cluster would have ordered it, had its scope been wider."""
    block, more = pair.other.block, ""
    for region in pair.thread.block.globals.regions:
        for flag in region.flags.values():
            if pair.covered(flag.own.get(block) or {}) and not pair.covered(flag.wide):
                near = pair.covered(flag.near.get(block.cluster) or {})
                scope = SCOPES_IN_WORDS[CLUSTER if near else CTA]
                more = f"; block {block.index} released it with scope {scope}"
    for mate in pair.thread.block.threads:
        if mate.narrow_fence and pair.covered(mate.acquired[GPU]):
            more = f"; thread {mate.tid} acquired it with scope {mate.narrow_fence}"
    if more:
        yield Cause(faults.ScopeRace.cure, more=more, kind=faults.ScopeRace)


# --- what the two accesses are ------------------------------------------------------------------------
def _one_byte_by_two_names(pair):
    """Two arrays of the dynamic part of shared memory, which all begin at its start."""
    names = getattr(pair.space, "dynamic_names", ())
    here, there = ({n for n in names if elements(line, n)} for line in pair.lines)
    if not here or not there or here & there:
        return
    a, b = sorted((min(here), min(there)))
    yield Cause(
        "Make one dynamic array and carve the others out of it, each behind the one before: "
        f"{b} = {a}[n:], with n the elements of {a}; of another type, shared_array(address, shape, dtype) "
        "at dynamic_start(alignment) and the bytes before it.",
        "All dynamic shared arrays, cuda.shared.array(0, ..), begin at the same byte.",
        f"; `{a}` and `{b}` begin at the same byte",
    )  # fmt: skip


def _plain_beside_atomic(pair):
    if CHANGE not in pair.kinds or len(pair.kinds) == 1 or pair.is_volatile:
        return
    which = "this access" if pair.kind is not CHANGE else f"the access at {pair.thread.at(pair.other.site)}"
    yield Cause(
        f"If both may come at any time, make {which} an atomic, too: cuda.atomic.add(a, i, 0) or "
        f"ld_acquire_{pair.scope}_.. reads, cuda.atomic.exch or st_release_{pair.scope}_.. writes. If one is "
        f"to come before the other, put {pair.between} between them.",
        more=source.beyond_its_block(pair),
    )


def _change_by_hand(pair):
    """A read and a write that belong together: each thread changes the element from what it has read."""
    first, second = (elements(line, pair.array) for line in pair.lines)
    named = first and second and len(first | second) == 1
    named = named or pair.in_cpp and pair.one_line and changes_one(pair.lines[0], pair.array)
    if pair.kinds != {READ, WRITE} or not named:
        return
    cure = "Use one atomic in place of the read and the write: cuda.atomic.add, cuda.atomic.max or their like"
    if pair.one_line:
        later = "after a barrier" if pair.near else "in a launch of its own"
        yield Cause(f"{cure}; or give each thread an element of its own, and add these up {later}.")
    yield Cause(
        f"If each thread is to change what it reads: {cure[0].lower()}{cure[1:]}. If one thread writes for "
        f"others: put {pair.between} between the two accesses."
    )


def _one_element(pair):
    """Threads that write the same element at the same line."""
    if pair.kinds != {WRITE} or not pair.one_line:
        return
    whose = "thread" if pair.near else "block"
    how = "cuda.grid(1), or cuda.blockIdx.x," if pair.wide else "cuda.threadIdx.x"
    one = "cuda.threadIdx.x == 0" if pair.near else "cuda.blockIdx.x == 0"
    rounds = " Where they are of two rounds of a loop, put a barrier between the rounds." if pair.near else ""
    yield Cause(
        f"Give each {whose} an element of its own, by an index with {how} in it; or let one {whose} write "
        f"(if {one}); to add up, use an atomic: cuda.atomic.add, atom_add_gpu_...{rounds}"
    )


def _one_statement(pair):
    """A line reads what another lane of the warp writes by it."""
    if pair.one_line and pair.one_warp and pair.kinds != {WRITE}:
        yield Cause(
            "The line reads and writes, and no barrier fits between: read into a variable, meet at "
            "cuda.syncwarp(), write, and meet again; or exchange the numbers by shuffles."
        )


# --- what the blocks have handed on -------------------------------------------------------------------
def _known_to_a_neighbour(pair):
    """Another thread of this block has acquired it, and no barrier has passed that on."""
    other, thread = pair.other, pair.thread
    for mate in (t for t in thread.block.threads if t.knows(other.block, other.owner, other.clock)):
        yield Cause(
            f"Put cuda.syncthreads() after the acquire of thread {mate.tid}, before the other threads go on: "
            "an acquire is for its own thread, and a barrier of the block passes it on.",
            "What a thread has acquired the others of its block know past a barrier only.",
            f"; thread {mate.tid} of this block has acquired it, and no barrier after that orders this thread",
        )  # fmt: skip


def _set_by_another(pair):
    """A thread of the other block has released after the access, and did not know of it; or the thread itself
    has set a flag after it, which hands nothing on."""
    other = pair.other
    for space, address, w, flag in [*flags_of(pair)] or flags_of(pair, by_any=True):
        name, place = space.name_of(address, True), pair.thread.at(w.site)
        own = covers(flag.wide, w.block, w.owner, w.clock - 1)  # a fence before it counts on
        if own and w.tid != other.tid:
            yield Cause(
                f"Put cuda.syncthreads() before the release of thread {w.tid}, at {place}: a release hands on "
                "what its own thread did, and what a barrier of the block has told it of the others.",
                "A release covers what comes before it in its thread, or before a barrier that its thread has "
                "passed.",
                f"; {pair.who(w.tid)} released {name} at {place}, and no barrier before that told it of this",
            )  # fmt: skip
        setter = other.block.threads[w.tid]
        taken = w.reads and pair.kind is READ and is_acquired(pair.thread.block, space, address, flag)
        if not own and taken and pair.known_to(w) and not setter.last_fence[0]:
            yield Cause(
                f"Call cuda.threadfence(), of gpu scope, {'behind the barrier, ' * (w.tid != other.tid)}right "
                f"before the atomic at {place}.",
                "An atomic by itself hands nothing on; a fence before it covers what its thread has done and "
                "knows by then.",
                f"; {pair.who(w.tid)} changed {name} at {place} after that{_lacking(setter, other)}",
            )  # fmt: skip
        if not own and not w.reads and pair.known_to(w):
            scope = "cluster_shared_cluster" if hasattr(space, "dynamic_names") else "gpu_global"
            yield Cause(
                f"Set the flag by st_release_{scope}_b32, or with a fence of gpu scope (fence_acq_rel_gpu) "
                f"right before it.{also_acquire(pair, space, address, flag)}",
                "A relaxed store hands on nothing of what its thread did before.",
                f"; {pair.who(w.tid)} set {name} at {place} after that, by a relaxed store"
                f"{_lacking(setter, other)}",
            )  # fmt: skip


RELAXED = (
    "Meet by cluster_arrive(), which releases, and cluster_wait(); or put fence_acq_rel_gpu() before "
    "cluster_arrive_relaxed().",
    "barrier.cluster.arrive.relaxed hands on only what a fence of cluster scope or a wider one covers "
    "(PTX 9.7.13.3).",
)  # fmt: skip


def relaxed_arrival(block, tid, clock, at):
    """That a thread has come to the cluster's barrier since its ``clock``, by a relaxed arrival; else ""."""
    since, site = block.cluster.barrier.relaxed.get((block, tid), (-1, None))
    if since < clock:
        return ""
    return f"came to the cluster's barrier after that by cluster_arrive_relaxed(), at {at(site)}"


def _met_relaxed(pair):
    """The other thread came to the cluster's barrier after its access, by a relaxed arrival."""
    other = pair.other
    if how := relaxed_arrival(other.block, other.tid, other.clock, pair.thread.at):
        yield Cause(*RELAXED, f"; {pair.who(other.tid)} {how}{_lacking(pair.culprit, other)}")


def _lacking(thread, other):
    """Why what ``thread`` has done without a release, after the access ``other``, hands nothing on."""
    fence, when = thread.last_fence
    return f", and {fence}" if fence and when >= other.clock else ", which hands nothing on"


# --- all others ---------------------------------------------------------------------------------------
UNORDERED = {
    "cta": faults.DataRace.cure,
    "cluster": "Put the cluster's barrier between the two: cluster_arrive() after the one access and "
    "cluster_wait() before the other, in all threads; or arrive after the one on an mbarrier of the "
    "other's block (mbarrier_arrive_cluster), and wait for it there before the other.",
    "gpu": "Release at gpu scope after the one access (cuda.threadfence() and an atomic, or "
    "st_release_gpu_global_b32), acquire before the other (ld_acquire_gpu_global_b32 in a loop, or "
    "an atomic and cuda.threadfence()), or make two launches of it.",
}


HANDED_ON = (  # what others may still do
    _narrow_wait, _narrow_scope, _known_to_a_neighbour, ticket_without_fence, unacquired, _set_by_another,
    _met_relaxed,
)  # fmt: skip
CAUSES = (  # (the scopes that the two may share, what looks for a cause)
    ("cta", _old_token), ("cta", _count_too_small), ("cta", _two_counts), ("cta", _early_reader),
    ("cta cluster", _old_phase), ("cta cluster", _arrived_for_its_warp), ("cta", _behind_its_arrival),
    ("cluster gpu", _narrow_wait), ("cluster gpu", _narrow_scope), (ANY, _one_byte_by_two_names),
    (ANY, lambda pair: source.overlaps(pair.space)),
    (ANY, _plain_beside_atomic), ("cta", source.passed_by), ("cta", source.barrier_in_a_branch),
    (ANY, source.of_two_rounds), ("cluster gpu", source.same_in_each_block),
    ("cluster gpu", ticket_without_fence), (ANY, lock_without_fence), ("cluster gpu", _known_to_a_neighbour),
    (ANY, unacquired), ("cluster gpu", _set_by_another), ("cluster", _met_relaxed), (ANY, _change_by_hand),
    (ANY, _one_element), ("cluster gpu", source.of_one_block_alone), (ANY, source.in_place),
    (ANY, source.phase_of_the_grid), ("cta", _one_statement),
)  # fmt: skip

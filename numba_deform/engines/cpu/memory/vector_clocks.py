"""What threads hand on to others: *knowledge*, {block: clocks}, and flags that carry it.

Inside a block, knowledge is a row of the block's clock table. Between blocks it is a dict from a block
to its clocks as they were when somebody released them. More facts travel in the same dicts, under keys of
their own: (FENCED, block), (MET, block), (ASYNC, block), (STARTED, block), (SHARED, block),
((FENCED_AT, home), block) and, where the waiver "thread-fence-reduction" is on, (TICKET, block).
"""

import numpy as np

# What came before a fence.sc of gpu scope. Whoever meets a later write of the fence's thread, or of one
# that a barrier put behind it, and then makes a fence.sc, sees all that (PTX ISA 8.9.3, fence-SC order).
FENCED, MET = "fenced", "met"
ASYNC = "async"  # what the copy engine sees of ordinary writes to global memory
FENCED_AT = "fenced at"  # with a block, or None for all: what copies see of writes to its shared memory
STARTED = "started"  # how far a block's threads were when they came to a barrier of their cluster
# What a wait of scope cta says of another block of the cluster: its accesses to shared memory are over. What it
# wrote to global memory may be in the cache as that was before.
SHARED = "shared"
# What somebody had released to an atomic whose value a thread has used, without a fence behind it.
TICKET = "ticket"


def raise_to(clocks, others):
    """Every clock becomes at least the other one; ``others`` may be narrower, from an earlier time."""
    part = clocks[:, : others.shape[1]]
    np.maximum(part, others, out=part)


def merged(a, b):
    """The union of two knowledges; ``a`` itself if ``b`` has nothing to add."""
    if not a or a is b:
        return b
    if not b or all(a.get(block) is clocks for block, clocks in b.items()):
        return a
    result = dict(a)
    for block, clocks in b.items():
        known = result.get(block, clocks)
        if known is not clocks:
            narrow, wide = sorted((known, clocks), key=lambda c: c.shape[1])
            clocks = wide.copy()
            raise_to(clocks, narrow)
        result[block] = clocks
    return result


def renamed(knowledge, old, new):
    """Its facts (``old``, block) as facts (``new``, block); ``old`` None stands for the block itself."""
    if old is None:
        return {(new, block): clocks for block, clocks in knowledge.items() if type(block) is not tuple}
    facts = {key[1]: clocks for key, clocks in knowledge.items() if type(key) is tuple and key[0] == old}
    return facts if new is None else {(new, block): clocks for block, clocks in facts.items()}


def for_shared_memory(knowledge):
    """What a wait of scope cta takes over of what threads of other blocks released: facts (SHARED, block)."""
    facts = {
        key: clocks for key, clocks in knowledge.items()
        if type(key) is tuple and (key[0] in (STARTED, SHARED) or type(key[0]) is tuple)
    }  # fmt: skip
    return merged(facts, renamed(knowledge, None, SHARED))


def shared_clocks(knowledge, block):
    """The clocks that ``knowledge`` has of a block's accesses to shared memory; None if it has none."""
    wide, near = ({block: knowledge[key]} if key in knowledge else {} for key in (block, (SHARED, block)))
    return merged(wide, near).get(block)


def covers(knowledge, block, owner, clock, row=0):
    """Whether that moment of a block is known; in ``row`` 1, to the copy engine as well."""
    clocks = knowledge.get(block)
    return clocks is not None and owner < clocks.shape[1] and clocks[row, owner] >= clock


def covers_shared(knowledge, block, owner, clock, row=0):
    """The same of accesses to shared memory, for which waits of scope cta count as well."""
    return covers(knowledge, block, owner, clock, row) or covers(knowledge, (SHARED, block), owner, clock, row)


# Scopes, as places in a tuple: of the block, of the GPU (or wider), of the cluster. Accesses of the first two
# say ``wide`` for their scope.
CTA, GPU, CLUSTER = False, True, 2
SCOPES_IN_WORDS = {CTA: "cta, which is for one block", CLUSTER: "cluster, which is for one cluster"}


class SyncVariable:
    """What atomics and release stores have handed on at one address.

    ``wide`` is for all blocks; ``own[block]`` is what threads of that block released, with whatever
    scope, for each other; ``near[cluster]`` the same of blocks of a cluster, with its scope or a wider one.
    """

    def __init__(self):
        self.wide, self.own, self.near, self.changes = {}, {}, {}, 0

    def add(self, block, own, wide, near):
        """What a thread of ``block`` hands on with scope cta, gpu and cluster."""
        self.changes += 1
        self.own[block] = merged(self.own.get(block), own)
        self.wide = merged(self.wide, wide)
        if len(block.cluster.blocks) > 1:  # else it is its own
            self.near[block.cluster] = merged(self.near.get(block.cluster), near)

    def seen_by(self, block):
        """What a thread of ``block`` takes with each scope."""
        own = self.own.get(block) or {}
        near = merged(self.near.get(block.cluster), own) if self.near else own
        return own, merged(self.wide, near), near

"""Causes of races that the kernel's source shows: where its barriers stand, and what its indices are made of.
``race_causes`` has the others."""

import re

from .races import CHANGE, READ, WRITE, Cause, elements


def same_in_each_block(pair):
    """Threads of two blocks with one number take one index for one of the whole grid."""
    other, thread, array = pair.other, pair.thread, pair.name.partition("[")[0]
    if pair.near or pair.other.tid != thread.tid or not pair.in_global or CHANGE in pair.kinds:
        return None
    made = [thread.index_without_block(site, index)
            for site, line in zip((thread.site(), other.site), pair.lines, strict=True)
            for index in elements(line, array)]  # fmt: skip
    if not made or None in made or not pair.space.has_more_than(thread.block.size):
        return None
    line, text = made[0]
    return Cause(
        f"Take the number in the whole grid at {pair.at_line(line)}, cuda.grid(..), in place of "
        f"{text}, which is the same in each block.",
        more=f"; its index comes from `{text}` at {pair.at_line(line)}, so that each block touches the same "
        "elements",
    )  # fmt: skip


def barrier_in_a_branch(pair):
    """The barrier between the two is not for all threads."""
    order = pair.near and pair.order
    if not order or order.whole or not order.branch:
        return None
    place = pair.at_line(order.branch)
    return Cause(
        f"Move the barrier at {place} out of its branch, to where all threads of the block come to it.",
        more=f"; the barrier between them, at {place}, stands in a branch: who does not take it passes by",
    )


def of_two_rounds(pair):
    """The two are of different rounds of a loop, and a barrier stands between them in each round alone."""
    order = pair.order
    if not order or not order.whole or not order.loop or order.rounds:
        return None
    return Cause(
        f"Put {pair.barrier} at the end of each round of the loop at {pair.at_line(order.loop)}, too: without "
        "it a thread may be a round ahead of another.",
        more=f"; the barrier at {pair.at_line(order.whole)} orders the two in one round, and these are of "
        f"two rounds of the loop at {pair.at_line(order.loop)}",
    )


def in_place(pair):
    """Each thread reads what others write, and then writes its own."""
    order, array = pair.order, pair.name.partition("[")[0]
    if pair.kinds != {READ, WRITE} or not order or order.whole or order.unclear:
        return None
    here, there = (elements(line, array) for line in pair.lines)
    read = pair.thread.site() if pair.kind is READ else pair.other.site
    if not here or not there or pair.thread.order_of(read, read, True).first != order.first:
        return None
    if order.loop and not order.rounds and all(_has(index, order.names) for index in here | there):
        cure = f"Put {pair.barrier} at the end of each round of the loop at {pair.at_line(order.loop)}, for "
        cure += "all threads: a round reads what other threads wrote in the one before."
        return Cause(cure)
    more = f"; threads read elements of `{array}` that others write, with no barrier between read and write"
    if pair.in_global:
        then = "in a loop swap the two after each round" if order.loop else "swap the two for the next launch"
        return Cause(f"Write to a second array, so that all read `{array}` as it was; {then}.", more=more)
    return Cause(
        f"Have all threads read `{array}` before any writes: keep what is read in a variable, call "
        "cuda.syncthreads() outside of any branch, then write; or write to a second array.",
        more=more,
    )


def _has(index, names):
    return any(re.search(rf"\b{name}\b", index) for name in names)


def phase_of_the_grid(pair):
    """A kernel that has a barrier of the grid lacks it here."""
    order = pair.in_global and pair.order
    if not order or not order.grid or order.whole or order.unclear:
        return None
    between = " and ".join(dict.fromkeys(map(pair.at_line, (order.first, order.second))))
    return Cause(f"Put cuda.cg.this_grid().sync() between {between}, for all threads of the grid.")

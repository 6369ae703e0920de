"""Causes of races that the kernel's source shows: where its barriers stand, and what its indices are made of.
``race_causes`` has the others."""

import itertools
import math

from .races import CHANGE, READ, WRITE, Cause, elements


def carved_twice(pair):
    """Two arrays that the kernel has carved out of shared memory by their addresses share some bytes."""
    views = getattr(pair.space, "boxes", ())
    views = sorted({(address, math.prod(shape) * kind.itemsize) for address, shape, kind in views})
    for (a, size), (b, more) in itertools.pairwise(views):
        if a < b < a + size < b + more:
            return Cause(
                f"Begin the array at {b:#x} at {a + size:#x} or later, {a + size - b} bytes on: an array takes "
                "the product of its shape times the size of an element, in bytes.",
                "Arrays that are used at one time lie behind one another.",
                f"; the array of {size} bytes at shared address {a:#x} reaches {a + size - b} bytes into the "
                f"one at {b:#x}",
            )  # fmt: skip
    return None


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
    if not _is_an_exchange(pair) or order.whole or order.unclear:
        return None
    read = pair.thread.site() if pair.kind is READ else pair.other.site
    if pair.thread.order_of(read, read, True).first != order.first:
        return None
    if pair.in_global:
        apart = f"write to a second array, so that all read `{array}` as it was"
        apart += "; in a loop swap the two after each round" * bool(order.loop)
    else:
        apart = f"have all threads read `{array}` before any writes: keep what is read in a variable, call "
        apart += "cuda.syncthreads() outside of any branch, then write; or write to a second array"
    more = f"; threads read elements of `{array}` that others write, with no barrier between read and write"
    if not order.loop or order.rounds:
        return Cause(f"{apart[0].upper()}{apart[1:]}.", more=more)
    return Cause(
        f"Put {pair.barrier} at the end of each round of the loop at {pair.at_line(order.loop)}, for all "
        "threads, so that a round reads what others wrote in the one before. Where it reads what others write "
        f"in the same round, also {apart}.",
        more=more,
    )


def of_one_block_alone(pair):
    """The barrier between the two is for the threads of one block, and they are of two."""
    order = not pair.near and pair.order
    if not order or not order.narrow or not pair.in_global or not _is_an_exchange(pair):
        return None
    place = pair.at_line(order.narrow)
    return Cause(
        f"At {place} all blocks have to meet: call cuda.cg.this_grid().sync() in place of the barrier; or end "
        "the launch there, and make what comes after it, or each round, a launch of its own.",
        more=f"; the barrier at {place} is for the threads of one block, and these are of two",
    )


def _is_an_exchange(pair):
    """Whether one reads and one writes an element of an array, in one function."""
    array = pair.name.partition("[")[0]
    return pair.kinds == {READ, WRITE} and pair.order and all(elements(line, array) for line in pair.lines)


def phase_of_the_grid(pair):
    """A kernel that has a barrier of the grid lacks it here."""
    order = pair.in_global and pair.order
    if not order or not order.grid or order.whole or order.unclear:
        return None
    between = " and ".join(dict.fromkeys(map(pair.at_line, (order.first, order.second))))
    return Cause(f"Put cuda.cg.this_grid().sync() between {between}, for all threads of the grid.")

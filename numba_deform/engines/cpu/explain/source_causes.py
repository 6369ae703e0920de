"""Causes of races that the kernel's source shows: where its barriers stand, and what its indices are made of.
``race_causes`` has the others."""

import itertools
import math

from ..memory.access_records import CHANGE, READ, WRITE
from .races import Cause, elements
from .source_order import has_left, index_without_block, order_of


def overlaps(space, address=0, size=1 << 32, within=False):
    """Two arrays that the kernel has carved out of shared memory by their addresses share some of these bytes.
    ``within``: also where one lies in the other, which may be meant."""
    views = getattr(space, "boxes", ())
    views = sorted({(address, math.prod(shape) * kind.itemsize) for address, shape, kind in views})
    for (a, room), (b, more) in itertools.combinations(views, 2):
        end = min(a + room, b + more)
        if a < b and max(b, address) < min(end, address + size) and (within or end < b + more):
            yield Cause(
                f"Begin the array at {b:#x} at {a + room:#x} or later, {a + room - b} bytes on: an array takes "
                "the product of its shape times the size of an element, in bytes.",
                "Arrays that are used at one time lie behind one another.",
                f"; the array of {room} bytes at shared address {a:#x} reaches {a + room - b} bytes into the "
                f"one at {b:#x}",
            )  # fmt: skip


def carved(fault, *bytes_):
    """``fault``, which says where two arrays share these bytes."""
    for found in itertools.islice(overlaps(*bytes_), 1):
        fault.add(found.more[2:])
        fault.cure = f"{found.cure} If they are to share bytes: {fault.cure}"
    return fault


def same_in_each_block(pair):
    """Threads of two blocks with one number take one index for one of the whole grid."""
    other, thread = pair.other, pair.thread
    if pair.other.tid != thread.tid or not pair.in_global or CHANGE in pair.kinds:
        return
    made = [index_without_block(site, index)
            for site, line in zip((thread.site(), other.site), pair.lines, strict=True)
            for index in elements(line, pair.array)]  # fmt: skip
    if not made or None in made or not pair.space.has_more_than(thread.block.size):
        return
    line, text = made[0]
    yield Cause(
        f"Take the number in the whole grid at {pair.at_line(line)}, cuda.grid(..), in place of "
        f"{text}, which is the same in each block.",
        more=f"; its index comes from `{text}` at {pair.at_line(line)}, so that each block touches the same "
        "elements",
    )  # fmt: skip


def passed_by(pair):
    """One of the two has come to a barrier of the block, and the other is past it or has ended."""
    block = pair.thread.block
    waiting = [t for barrier in block.named.values() if barrier.whole for t in barrier.parked]
    some = [({t.tid for t in waiting}, waiting[0].calls())] if waiting else []
    for tids, calls in (*some, block.met):
        absent = [t for t in (pair.thread, pair.culprit) if t.tid not in tids]
        # By lines: of a loop that nvcc has unrolled, one line has several places.
        fresh = [*map(pair.thread.at, calls[:1])] != [*map(pair.thread.at, block.met[1][:1])]
        if len(absent) == 1 and (absent[0].dead or has_left(calls[-1], absent[0].calls(), fresh)):
            place, outer = map(pair.thread.at, (calls[0], calls[-1]))
            called = f", called at {outer}" * (outer != place)
            more = f"; thread {absent[0].tid} has gone past the barrier between them, at {place}{called}"
            yield Cause(_for_all(place), more=more)


def _for_all(place):
    return (f"Have all threads of the block come to the barrier at {place}, and as often: move it out of its "
            "branch or loop, and let no return, break or continue lead some past it.")  # fmt: skip


def barrier_in_a_branch(pair):
    """The barrier between the two, or around them in their loop, may not be for all threads or rounds."""
    order = pair.order
    line = order and not order.whole and (order.branch or not order.rounds and order.aside)
    if not line or not order.branch and _reads_first(pair):
        return
    place = pair.at_line(line)
    cure, more = _for_all(place), f"; the barrier at {place} stands in a branch or loop: who does not take it "
    if order.branch and order.loop and not order.rounds:
        cure += f" {_keep_rounds_apart(pair)}, too."
    elif not order.branch and order.first < order.second:
        cure = f"Put {pair.barrier} between {pair.at_line(order.first)} and {pair.at_line(order.second)}, for "
        cure += f"all threads. Where rounds have no barrier: {_for_all(place)}"
    yield Cause(cure, more=f"{more}passes by")


def _keep_rounds_apart(pair):
    """What would order two rounds of the loop around the two, in words."""
    order = pair.order
    if order.aside:
        return f"Move the barrier at {pair.at_line(order.aside)} out of its branch, so that each round has it"
    return f"Put {pair.barrier} at the end of each round of {_loop(pair)}"


def of_two_rounds(pair):
    """The two are of different rounds of a loop, and a barrier stands between them in each round alone."""
    order = pair.order
    if not order or not order.whole or order.loop is None or order.rounds:
        return
    place = pair.at_line(order.whole)
    also = f" If a round passes by the barrier at {place}, move that out of its branch."
    yield Cause(
        f"{_keep_rounds_apart(pair)}: without it a thread may be a round ahead of another."
        + also * bool(order.branch),
        more=f"; the barrier at {place} orders the two in one round, and these are of two rounds of "
        f"{_loop(pair)}",
    )


def _loop(pair):
    return f"the loop at {pair.at_line(pair.order.loop)}" if pair.order.loop else "the loop around them"


def in_place(pair):
    """Each thread reads what others write, and then writes its own."""
    order, array = pair.order, pair.array
    if not _reads_first(pair) or order.whole or order.unclear:
        return None
    if pair.in_global:
        apart = f"write to a second array, so that all read `{array}` as it was, in whatever block"
        apart += "; in a loop swap the two after each round" * bool(order.loop)
    else:
        apart = f"have all threads read `{array}` before any writes: keep what is read in a variable, call "
        apart += "cuda.syncthreads() outside of any branch, then write; or write to a second array"
    more = f"; threads read elements of `{array}` that others write, with no barrier between read and write"
    if not order.loop or order.rounds and not order.aside:
        cure = f"{apart[0].upper()}{apart[1:]}."
    else:
        cure = f"{_keep_rounds_apart(pair)}, for all threads, so that a round reads what others wrote in the "
        cure += f"one before. Where it reads what others write in the same round, also {apart}."
    yield Cause(cure, more=more)


def of_one_block_alone(pair):
    """The barrier between the two is for the threads of one block, and they are of two."""
    if more := beyond_its_block(pair):
        yield Cause(
            f"At {pair.at_line(pair.order.narrow)} all blocks have to meet: call cuda.cg.this_grid().sync() in "
            "its place; or end the launch there, and make what follows, or each round, a launch of its own.",
            more=more)  # fmt: skip


def beyond_its_block(pair):
    """In words, that the two are of two blocks, and the barrier there for the threads of one; else ""."""
    order = not pair.near and pair.in_global and pair.order
    if not order or not order.narrow:
        return ""
    place = pair.at_line(order.narrow)
    return f"; the barrier at {place} is for the threads of one block, and these are of two"


def _reads_first(pair):
    """Whether one reads and one writes an element of an array, in one function, the reading line first."""
    read = pair.thread.site() if pair.kind is READ else pair.other.site
    both = pair.kinds == {READ, WRITE} and pair.order and all(elements(line, pair.array) for line in pair.lines)
    return both and order_of(read, read, True).first == pair.order.first


def phase_of_the_grid(pair):
    """A kernel that has a barrier of the grid lacks it here."""
    order = pair.in_global and pair.order
    if not order or not order.grid or order.whole or order.unclear:
        return
    between = " and ".join(dict.fromkeys(map(pair.at_line, (order.first, order.second))))
    cure = f"Put cuda.cg.this_grid().sync() between {between}, for all threads of the grid."
    if order.branch and order.loop and not order.rounds:
        place = pair.at_line(order.branch)
        cure = f"{_keep_rounds_apart(pair)}. Where some pass by the one at {place}, move it out of its branch."
    yield Cause(cure)

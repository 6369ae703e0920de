"""What a warp or a warpgroup asks of Python together: ``mma`` and ``wgmma``. The last thread that has come asks
for all. ``RequestHandler`` takes the answers from here."""

import ctypes

import numpy as np

from ...async_units import wgmma
from ...async_units.warp_mma import multiply_words
from ...async_units.wgmma_matrices import FORMS
from ...memory.cycle_costs import COST
from ...memory.restart import Bailout
from ..runtime import layout


def _come(thread, request, count):
    """(the ``count`` threads that have come, their rows of words); each stands at the request's place."""
    first = thread.tid // count * count
    threads = thread.block.threads[first : first + count]
    for each in threads:
        each.place, each.told = request.site, each.clock
    return threads, thread.block.thread_rows[first : first + count]


def multiply(request):
    """``mma``, whose first operands are its form and the lanes' mask."""
    (_, form), _, *words = request.given
    first, stop = 2 * (layout.WORDS + 1), 2 * (layout.WORDS + 1 + len(words))

    def reply(thread):
        _, rows = _come(thread, request, 32)
        halves = rows.view(np.uint32)
        made = multiply_words(form, halves[:, first:stop:2])
        halves[:, 2 * layout.WORDS :: 2][:, : made.shape[1]] = made
        rows.view(np.float64)[:, layout.TIME] += COST.mma

    return reply


def answer(reply):
    """Decorator: the answer to a request whose operands are all in the threads' words."""
    return lambda request: lambda thread: reply(thread, request)


@answer
def fence(thread, request):
    """``wgmma.fence``"""
    threads, rows = _come(thread, request, 32)
    wgmma.warpgroup_of(thread).executed(threads[0], "wgmma.fence")
    for each in threads:
        each.fenced = True
    rows[:, layout.FENCES] += 1


@answer
def commit(thread, request):
    """``wgmma.commit_group``"""
    threads, _ = _come(thread, request, 32)
    wgmma.warpgroup_of(thread).executed(threads[0], "wgmma.commit_group")
    for each in threads:
        wgmma.commit(each)


@answer
def wait(thread, request):
    """``wgmma.wait_group``"""
    threads, rows = _come(thread, request, 32)
    pending = rows[:, layout.WORDS + 1].tolist()
    if len(set(pending)) > 1:
        raise Bailout
    wgmma.warpgroup_of(thread).executed(threads[0], f"wgmma.wait_group {pending[0]}")
    for each in threads:
        wgmma.wait(each, pending[0])


def issue(request):
    """``wgmma.mma_async``: the first word is the address of the sums in a thread's memory; then come the words
    of A, where it is in registers, its descriptor where it is not, that of B, whether it adds to the sums, and
    whether A and B are MN-major. Each thread is told its warpgroup's entry in the clocks and the product's
    group."""
    (_, (what, types, columns, in_registers, negated, limit, at_once)), *_ = request.given
    form, stop = FORMS[types], layout.WORDS + 1 + 4 * in_registers
    count = columns // (4 if form.sums == "f16" else 2)
    kind = (ctypes.c_float if form.sums == "f32" else ctypes.c_uint32) * count

    def reply(thread):
        block, group = thread.block, wgmma.warpgroup_of(thread)
        threads, rows = _come(thread, request, 128)
        factors = rows[:, stop : stop + 5 - in_registers].view(np.uint64)
        if (factors != factors[0]).any():
            raise Bailout
        *a, b, adds, trans_a, trans_b = factors[0].tolist()
        transposed = bool(trans_a), bool(trans_b)
        same = wgmma.Factors(a[0] if a else None, b, bool(adds), negated, transposed, limit)
        sums = [kind.from_address(address) for address in rows[:, layout.WORDS].tolist()]
        words = (rows[:, layout.WORDS + 1 : stop] & 0xFFFFFFFF).tolist()
        given = zip(sums, words, strict=True)
        group.check_alike()
        brought = {each.tid: (*pair, same) for each, pair in zip(threads, given, strict=True)}
        wgmma.issue(thread, group, form, columns, what, brought)
        issued = group.last
        if at_once and not issued.landed:
            block.land(issued)
        for each in threads:
            wgmma.open_group(each).append(issued)
        rows.view(np.float64)[:, layout.TIME] += COST.barrier
        rows[:, layout.WORDS] = issued.component << 32 | issued.phase
        block.release_warpgroup(group.number)

    return reply


ANSWERS = {"multiply": multiply, "fence": fence, "commit": commit, "wait": wait, "issue": issue}

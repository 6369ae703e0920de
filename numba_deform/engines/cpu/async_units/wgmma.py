"""Products of matrices by a warpgroup on the CPU engine: what ``device/wgmma.py`` asks of a thread.

A product is asynchronous: it reads shared memory, and writes the accumulators of its threads, at any moment
until its group has been waited for. Four warps call it together; when the last one has come, it is issued, and
is in flight from then on like the copies of ``copy_engine``. Those of one warpgroup land in the order of issue.

Registers are local arrays here. From the first ``wgmma.fence`` on their elements are held by
:class:`Accumulators`, which know who has touched them, and when.
"""

import contextlib
import functools
import itertools
import sys
from typing import NamedTuple

import numpy as np
from greenlet import getcurrent

from ... import faults
from ...waiting import ranges
from ..memory.access_records import OUTSIDE, UNWRITTEN, Copy, different
from ..memory.arrays import LocalArray
from ..memory.cluster_memory import let_come
from ..memory.cycle_costs import COST
from ..memory.scalars import WORD
from ..reports.call_sites import KERNEL
from .copy_engine import Groups
from .warp_mma import converged
from .wgmma_matrices import FORMS, ROWS, addresses, described, from_memory, from_registers, mend, product

KIND = "wgmma"  # of its groups
SIZES = (32, 64, 128)  # accumulators of a thread


class Accumulators(list):
    """The elements of a local array that are the accumulators of products, or may become it.

    ``product`` is the last one that was issued; ``touched``: whether the thread's other instructions have read
    or written an element since its last wgmma.fence."""

    product, touched = None, True

    def touch(self):
        if self.product is not None:
            check_over(getcurrent(), self.product, "an accumulator")
        self.touched = True

    def __getitem__(self, index):
        self.touch()
        return list.__getitem__(self, index)

    def __setitem__(self, index, value):
        self.touch()
        list.__setitem__(self, index, value)

    def __iter__(self):
        self.touch()
        return list.__iter__(self)


def check_over(thread, product, register):
    """Refuse to touch what belongs to a product until its group has been waited for."""
    if thread.seen[product.component] >= product.phase:
        return
    what = f"touches {register} of the {product.what} that was issued at {thread.at(product.site)}"
    fault = thread.fault(faults.AccumulatorInFlight, what)
    if thread.groups[KIND].number == product.phase:
        fault.add("it has not been committed to a group")
    elif "." in (call := thread.explain.wait_for_product(thread, product.site)):
        fault.cure = f"Call {call}, in all threads of the warpgroup, before reading or writing them."
    raise fault


class Product(Copy):
    """One product in flight. ``before``: the one that its warpgroup issued before it; ``component``: the
    warpgroup's entry in the clocks; ``done``: when it is over, in virtual time."""

    __slots__ = ("before", "component", "done")


class Warpgroup:
    """Four warps in a row, the first of which is a multiple of 4."""

    def __init__(self, block, number):
        self.block, self.number = block, number
        self.component = block.new_component()
        self.what, self.site, self.brought, self.parked = None, None, {}, []
        self.last, self.free_at = None, 0.0
        # What its warps have executed one by one since they met: [(what, a thread, its site)] of each.
        self.alone = [[], [], [], []]

    @property
    def tids(self):
        return range(128 * self.number, 128 * self.number + 128)

    def meet(self, thread, what, operands, act):
        """``act({thread's number: what it has brought})`` once, when all 128 threads have come."""
        thread.told = thread.clock
        if not self.brought:
            self.what, self.site = what, thread.here()
        elif (what, thread.here()) != (self.what, self.site):
            text = f"{what} here, while warp {min(self.brought) // 32} of its warpgroup calls {self.what} at "
            raise _divergence(thread, text + thread.at(self.site))
        self._check_there(thread, what)
        self.brought[thread.tid] = operands
        if len(self.brought) < 128:
            self.parked.append(thread)
            thread.park(KIND, self)
            return
        brought, parked, self.brought, self.parked = self.brought, self.parked, {}, []
        self.check_alike()
        act(brought)
        self.block.ready.extend(parked)

    def execute(self, thread, what):
        """``thread`` executes what takes all four warps, and does not wait for the others."""
        converged(thread, what, None, list)
        if not thread.lane:
            self.executed(thread, what)

    def executed(self, thread, what):
        """Note that the warp of ``thread`` has executed the instruction ``what``."""
        self.alone[thread.warp % 4].append((what, thread, thread.here()))

    def check_alike(self):
        """All four warps have executed the same ones, at the same places."""
        steps, self.alone = self.alone, [[], [], [], []]
        for calls in itertools.zip_longest(*steps):
            what, thread, site = next(call for call in calls if call)
            for warp, call in enumerate(calls):
                if call is None or (call[0], call[2]) != (what, site):
                    text = f"{what}, which warp {4 * self.number + warp} of its warpgroup does not execute here"
                    raise _divergence(thread, text, site)

    def _check_there(self, thread, what):
        """All four warps have to be there still."""
        warps = self.block.warps[4 * self.number : 4 * self.number + 4]
        if len(warps) == 4 and all(w.alive == WORD for w in warps):
            return
        come = {tid // 32 for tid in self.brought}
        late = [w.number for w in warps if w.alive != WORD and w.number not in come]
        if self.tids.stop > self.block.size or late:
            gone = f"warp {late[0]} has exited" if late else f"the block has {self.block.size} threads"
            raise _divergence(thread, f"{what} by warpgroup {self.number}, which is not whole: {gone}")

    def waited(self, kind, detail):
        """What those who wait for the other warps wait for: fields of a ``Wait``."""
        late = [t for t in self.tids if t not in self.brought]
        return {
            "on": f"{self.what} of warpgroup {self.number}",
            "state": f"{len(self.brought)} of 128 threads have come",
            "missing": f"{ranges(sorted({t // 32 for t in late}), 'warp')} missing", "by": tuple(late),
            "why": "not at this place",
        }  # fmt: skip

    def deadlock(self, kind):
        return faults.WarpDivergence


def _divergence(thread, what, site=None):
    rule = "All four warps of a warpgroup, 4i to 4i + 3, execute the same wgmma together (PTX 9.7.15)."
    cure = "Give each role whole warpgroups, and have all of its threads come to every wgmma."
    return thread.fault_at(faults.WarpDivergence, what, site or thread.site(), rule=rule, cure=cure)


# --- descriptors ------------------------------------------------------------------------------------
def matrix_descriptor(thread, address, leading, stride, base, swizzle):
    """The 64 bits that describe a matrix in shared memory."""
    address, leading, stride, base, swizzle = (int(x) & WORD for x in (address, leading, stride, base, swizzle))
    places = (("address", address), ("leading", leading), ("stride", stride))
    bad = [f"{name} {value:#x}" for name, value in places if value % 16 or value >= 1 << 18]
    bad += [f"base {base} and swizzle {swizzle}"] * (base > 7 or swizzle > 3)
    if bad:
        what = f"a matrix descriptor with {bad[0]}"
        raise thread.fault(faults.BadMatrixDescriptor, what, thread.shared.name_of(address))
    return address >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | base << 49 | swizzle << 62


# --- methods of Thread ------------------------------------------------------------------------------
def warpgroup_of(thread):
    """Return the Warpgroup of ``thread``."""
    groups, number = thread.block.warpgroups, thread.tid // 128
    if number not in groups:
        groups[number] = Warpgroup(thread.block, number)
    return groups[number]


def _groups(thread):
    """The thread's groups of products; their entry in the clocks is that of its warpgroup."""
    if KIND not in thread.groups:
        thread.groups[KIND] = Groups(thread.block, warpgroup_of(thread).component)
    return thread.groups[KIND]


def fence_registers(thread):
    """wgmma.fence, of whoever keeps track of registers himself."""
    warpgroup_of(thread).execute(thread, "wgmma.fence")
    thread.fenced = True


def warpgroup_fence(thread):
    """What the thread has done with its registers so far comes before the products to come."""
    fence_registers(thread)
    frame = sys._getframe(1)
    while frame is not None:
        if KERNEL in frame.f_globals:
            for value in tuple(frame.f_locals.values()):
                _fence_registers(value)
        frame = frame.f_back


def _fence_registers(value):
    if isinstance(value, tuple):
        for part in value:
            _fence_registers(part)
    elif isinstance(value, LocalArray) and value.kind is np.float32 and value.row in SIZES:
        if type(value.values) is list:
            value.values = Accumulators(value.values)
        value.values.touched = False


def commit_products(thread):
    warpgroup_of(thread).execute(thread, "wgmma.commit_group")
    commit(thread)


def commit(thread):
    """What one thread does of it."""
    _groups(thread)
    thread.block.copy_engine.commit_group(thread, KIND)


def wait_products(thread, pending, sums=None, columns=0):
    """``sums``, if given, are accumulators that must not be read before."""
    warpgroup_of(thread).execute(thread, f"wgmma.wait_group {int(pending)}")
    if sums is not None:
        _check_size(thread, sums, columns, "wgmma.wait_group")
    wait(thread, pending)


def wait(thread, pending):
    """What one thread does of it."""
    _groups(thread)
    over = thread.block.copy_engine.wait_group(thread, KIND, pending)
    thread.time = max([thread.time, *(product.done for _, products in over for product in products)])


class Factors(NamedTuple):
    """The operands of a product that are the same in all threads of a warpgroup: two descriptors (``a`` is None
    where it is in registers), whether the sums are added to, whether A and B are negated and MN-major, and
    whether sums of integers are limited."""

    a: int | None
    b: int
    adds: bool
    negated: tuple = (False, False)
    transposed: tuple = (False, False)
    limit: bool = False


def multiply(thread, kind, columns, sums, a, b, scale_d, trans_a, trans_b):
    """Issues sums = A B^T, plus sums unless ``scale_d`` is 0. ``a``: a descriptor, or a tuple of four words."""
    what = f"wgmma.m64n{columns}k16.{kind}"
    accumulators = _take(thread, sums, columns, scale_d, what)
    in_registers = isinstance(a, tuple)
    factors = Factors(None if in_registers else int(a), int(b), bool(scale_d),
                      transposed=(bool(trans_a), bool(trans_b)))  # fmt: skip
    _multiply(thread, what, FORMS["f32", kind, kind], columns, accumulators, a if in_registers else (), factors)


def multiply_registers(thread, types, columns, sums, a, factors):
    """The same of registers by value: returns what they hold when the product is over, float32 or words.
    ``types``: PTX types of the sums, of A and of B; ``a``: its words, () where it is in shared memory. Nobody
    may look at the result until the product has been waited for: that is for ``wgmma_registers`` to say."""
    form = FORMS[types]
    what = f"wgmma.m64n{columns}k{form.depth}.{'.'.join(types)}"
    if not thread.fenced:
        raise no_fence(thread, what, "has executed no wgmma.fence")
    held = list(sums)
    issued = _multiply(thread, what, form, columns, held, a, factors)
    if not issued.landed:
        thread.block.land(issued)
    return held


def no_fence(thread, what, why):
    return thread.fault(faults.MissingWarpgroupFence, f"{what} by a thread that {why}")


def _multiply(thread, what, form, columns, sums, words, factors):
    """The Product that the warpgroup has issued, when all have come."""
    converged(thread, what, None, list)
    group = warpgroup_of(thread)
    issued = functools.partial(issue, thread, group, form, columns, what)
    group.meet(thread, what, (sums, words, factors), issued)
    open_group(thread).append(group.last)
    thread.time += COST.barrier
    return group.last


def _check_size(thread, sums, columns, what):
    plain = isinstance(sums, LocalArray) and sums.bytes is None and sums.kind is np.float32
    if not plain or sums.row != columns // 2:
        text = f"{what} takes a local array of {columns // 2} float32 as its accumulators, not {sums!r:.40}"
        raise thread.fault(faults.OutOfRange, text)


def _take(thread, sums, columns, scale_d, what):
    """The Accumulators of a thread, which may be an operand now."""
    _check_size(thread, sums, columns, what)
    values = sums.values
    if type(values) is list:  # not there when the last fence was
        sums.values = fresh = Accumulators(values)
        fresh.touched = any(value is not None for value in values)
        values = fresh
    if not thread.fenced or values.touched:
        why = "has executed no wgmma.fence"
        if thread.fenced:
            why = "has read or written its accumulators since its last wgmma.fence"
        raise no_fence(thread, what, why)
    if scale_d and values.product is None and None in list.copy(values):
        what = f"{what} adds to accumulators that nothing has written"
        raise thread.fault(faults.UninitialisedRead, what)
    return values


def open_group(thread):
    """The products of a thread that it has not committed."""
    return _groups(thread).open


def issue(thread, group, form, columns, what, brought):
    """A product of the warpgroup ``group``, which ``thread`` issues for all, becomes its ``last``. ``brought``:
    {thread's number: (its sums, a list or an array of C, words of A, Factors)}"""
    block, factors = thread.block, brought[thread.tid][2]
    _check_operands(thread, what, {tid: each[2] for tid, each in sorted(brought.items())})
    b_places = addresses(factors.b, columns, factors.transposed[1], form.size)
    a_places = None if factors.a is None else addresses(factors.a, ROWS, factors.transposed[0], form.size)
    phase = _groups(thread).number
    if a_places is not None:
        with astray(thread.shared, "A", factors.a, a_places, factors.transposed[0], form.size):
            _read_rows(thread, group, a_places, what, phase)
    with astray(thread.shared, "B", factors.b, b_places, factors.transposed[1], form.size):
        read_matrix(thread, group.component, b_places, what, phase, group.tids)
    issued = Product(thread, what, int(b_places.min()), 0, phase)  # no bytes: nothing is copied
    issued.component, issued.before, group.last = group.component, group.last, issued
    group.free_at = max(group.free_at, *(block.threads[t].time for t in group.tids)) + columns / 8 * COST.wgmma
    issued.done = group.free_at
    members, words, _ = zip(*(each for _, each in sorted(brought.items())), strict=True)
    for sums in members:
        if isinstance(sums, Accumulators):
            sums.product = issued

    def deliver():
        if issued.before is not None and not issued.before.landed:
            block.land(issued.before)
        shared = np.frombuffer(block.shared.data, np.uint8)
        if a_places is None:
            left = from_registers(form, words)
        else:
            left = from_memory(form, form.a, shared, a_places)
        right = from_memory(form, form.b, shared, b_places)
        left, right = (-m if negated else m for m, negated in zip((left, right), factors.negated, strict=True))
        held = None
        if factors.adds:
            held = [list.copy(m) if isinstance(m, list) else np.frombuffer(m, m._type_) for m in members]
        total = product(form, left, right, columns, held, factors.limit)
        for each, row in zip(members, list(total) if form.sums == "f32" else total.tolist(), strict=True):
            if isinstance(each, list):
                list.__setitem__(each, slice(None), list(row))
            else:
                np.frombuffer(each, each._type_)[:] = row
        issued.landed, issued.before = True, None

    block.launch_copy(issued, deliver)


def _check_operands(thread, what, given):
    """All threads of the warpgroup give the same Factors: ``given`` {thread's number: its own}."""
    tids = {}
    for tid, factors in given.items():
        tids.setdefault(factors, []).append(tid)
    if len(tids) == 1:
        return
    (one, first), (other, second) = list(tids.items())[:2]
    name = next(name for name in Factors._fields if getattr(one, name) != getattr(other, name))
    said = [described(value) if name in ("a", "b") and value is not None else value
            for value in (getattr(one, name), getattr(other, name))]  # fmt: skip
    text = f"{what}, for which the threads of the warpgroup do not give the same operands: of {name} "
    text += f"{ranges(first)} say {said[0]}, {ranges(second)} {said[1]}"
    cure = "Make them of what is the same in all four warps, and not of a thread's or warp's number: a "
    cure += "product takes one A of 64 rows, of which each warp gets its own 16 by itself."
    raise thread.fault(faults.BadMatrixDescriptor, text, cure=cure)


@contextlib.contextmanager
def astray(space, name, descriptor, places, *form):
    """A fault of where a matrix lies in shared memory says what its descriptor says."""

    def holds(places):
        found = np.unique(places) - space.base
        inside = found[-1] < len(space.written) and len(found) == places.size  # no two lie at one place
        return inside and not any(space.written[b] in (UNWRITTEN, OUTSIDE) for b in found.tolist())

    try:
        yield
    except (faults.OutOfRange, faults.UninitialisedRead) as fault:
        row, k = next((r, k) for (r, k), at in np.ndenumerate(places) if not holds(at))
        fault.add(f"the descriptor of {name} says {described(descriptor)}: element {k} along k of its row "
                  f"{row} would lie at {places[row, k]:#x}")  # fmt: skip
        fault.cure = mend(descriptor, lambda d: holds(addresses(d, len(places), *form))) or (
            "Compare leading and stride with the layout of the matrix (numba_deform.device.wgmma): without a "
            "swizzle the bytes from one core matrix, of 8 rows of 16 bytes, to the next along k and the rows.")
        raise


def _read_rows(thread, group, places, what, phase):
    """``read_matrix`` of A, by all threads; with the waiver own-rows each warp has to know its own 16 rows."""
    try:
        read_matrix(thread, group.component, places, what, phase, group.tids)
        return
    except faults.DataRace as race:
        fault = race
    for warp, rows in enumerate(np.split(places, 4)):
        tids = group.tids[32 * warp : 32 * warp + 32]
        read_matrix(thread, group.component, rows, what, phase, tids)
    fault.waiver = "own-rows"
    if not thread.block.execution.waived.excuses(fault, thread):
        raise fault


def read_matrix(thread, component, places, what, phase, tids, home=None):
    """Check and note that a product reads the elements at these addresses until its group ``phase`` is over.
    The threads ``tids`` have to know what is there. ``home``: the block in whose memory they lie."""
    block = thread.block
    home = home or block
    space = home.shared
    lines = np.unique(places >> 4) << 4
    ends = np.flatnonzero(np.diff(lines) != 16)
    starts = lines[np.r_[0, ends + 1]].tolist()
    stops = (lines[np.r_[ends, len(lines) - 1]] + 16).tolist()
    known = block.clock_table[list(tids)].min(axis=0)
    reader = component, phase, thread.tid, thread.here(), block, False
    for start, stop in zip(starts, stops, strict=True):
        records = space.written[start - space.base : stop - space.base]
        if UNWRITTEN in records:  # let the late writer come, so that the fault can name it
            if len(block.cluster.blocks) == 1:
                thread.spin()
            else:
                let_come(thread, space, start, lambda a=start, b=stop: UNWRITTEN in space.written[a:b])
            records = space.written[start - space.base : stop - space.base]
        if len(records) < stop - start:
            records = [*records, OUTSIDE]
        for w in different(records):
            if w.block is block is home and not w.atomic and known[1, w.owner] >= w.clock:
                continue  # the common case
            for tid in tids:
                if unseen := space._unseen(block.threads[tid], w):
                    at = start + records.index(w)
                    raise thread.explain.bad_access(space, block.threads[tid], unseen, at, 16)
            for tid in tids:
                block.copy_engine.check_proxy(block.threads[tid], start, stop - start, what, home)
        a, b = start - space.base, stop - space.base
        space._add_to_all(thread, a, space.read_by[a:b], reader)

"""Products of matrices by a warpgroup on the CPU engine: what ``device/wgmma.py`` asks of a thread.

A product is asynchronous: it reads shared memory, and writes the accumulators of its threads, at any moment
until its group has been waited for. Four warps call it together; when the last one has come, it is issued, and
is in flight from then on like the copies of ``copy_engine``. Those of one warpgroup land in the order of issue.

Registers are local arrays here. From the first ``wgmma.fence`` on their elements are held by
:class:`Accumulators`, which know who has touched them, and when.
"""

import functools
import itertools
import sys

import numpy as np
from greenlet import getcurrent

from ... import faults
from ...waiting import ranges
from ..memory.access_faults import bad_read
from ..memory.access_records import OUTSIDE, UNWRITTEN, Copy, different
from ..memory.arrays import LocalArray
from ..memory.scalars import WORD
from ..reports.call_sites import KERNEL
from .copy_engine import Groups
from .cycle_costs import COST
from .warp_mma import converged, numbers_bf16, numbers_f16

KIND = "wgmma"  # of its groups
ROWS, DEPTH = 64, 16
SIZES = (32, 64, 128)  # accumulators of a thread
NUMBERS = {"f16": numbers_f16, "bf16": numbers_bf16}
SPANS = (0, 128, 64, 32)  # bytes of a row, by the descriptor's swizzle mode

# What a thread's registers hold: rows and columns, by the number of the thread in its warpgroup.
_THREAD = np.arange(128)
_G, _T = _THREAD % 32 // 4, _THREAD % 4
_ROW = 16 * (_THREAD // 32) + _G


def accumulator_places(columns):
    """(rows, columns) of the accumulators, arrays (thread, register)."""
    register = np.arange(columns // 2)
    rows = _ROW[:, None] + 8 * (register // 2 % 2)
    return rows, 8 * (register // 4) + 2 * _T[:, None] + register % 2


def _a_places():
    """(rows, columns) of A in registers, arrays (thread, register, half)."""
    register, half = np.ogrid[:4, :2]
    rows = _ROW[:, None, None] + 8 * (register % 2) + 0 * half
    return rows, 2 * _T[:, None, None] + 8 * (register // 2) + half


A_PLACES = _a_places()


class Accumulators(list):
    """The elements of a local array that are the accumulators of products, or may become it.

    ``product`` is the last one that was issued; ``touched``: whether the thread's other instructions have read
    or written an element since its last wgmma.fence."""

    product, touched = None, True

    def touch(self):
        thread, product = getcurrent(), self.product
        if product is not None and thread.seen[product.component] < product.phase:
            what = f"touches an accumulator of the {product.what} that was issued at {thread.at(product.site)}"
            fault = thread.fault(faults.AccumulatorInFlight, what)
            if thread.groups[KIND].number == product.phase:
                fault.add("it has not been committed to a group")
            raise fault
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
        come = {tid // 32 for tid in self.brought}
        warps = self.block.warps[4 * self.number : 4 * self.number + 4]
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
    fault = thread.fault_at(faults.WarpDivergence, what, site or thread.site())
    fault.rule = "All four warps of a warpgroup, 4i to 4i + 3, execute the same wgmma together (PTX 9.7.15)."
    fault.cure = "Give each role whole warpgroups, and have all of its threads come to every wgmma."
    return fault


# --- descriptors ------------------------------------------------------------------------------------
def matrix_descriptor(thread, address, leading, stride, base, swizzle):
    """The 64 bits that describe a matrix in shared memory."""
    address, leading, stride, base, swizzle = (int(x) & WORD for x in (address, leading, stride, base, swizzle))
    for name, value in (("address", address), ("leading", leading), ("stride", stride)):
        if value % 16 or value >= 1 << 18:
            what = f"a matrix descriptor with {name} {value:#x}"
            raise thread.fault(faults.BadMatrixDescriptor, what, thread.shared.name_of(address))
    if base > 7 or swizzle > 3:
        what = f"a matrix descriptor with base {base} and swizzle {swizzle}"
        raise thread.fault(faults.BadMatrixDescriptor, what, thread.shared.name_of(address))
    return address >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | base << 49 | swizzle << 62


def addresses(descriptor, count, transposed):
    """Where in shared memory the elements of a matrix lie, ``count`` rows of 16 along k: an array (count, 16).
    ``transposed``: MN-major. The formulas stand in ``device/wgmma.py``."""
    field = [(int(descriptor) >> shift & 0x3FFF) << 4 for shift in (0, 16, 32)]
    (start, leading, stride), span = field, SPANS[int(descriptor) >> 62]
    row, k = np.ogrid[:count, :DEPTH]
    if transposed:
        chunk, rest = row // 8, 2 * (row % 8)
        if span:
            wide = span // 16
            place = chunk % wide * 16 + chunk // wide * leading + k % 8 * span + k // 8 * stride
        else:
            place = chunk * stride + k % 8 * 16 + k // 8 * leading
        place = place + rest
    elif span:
        place = row // 8 * stride + row % 8 * span + 2 * k
    else:
        place = row // 8 * stride + row % 8 * 16 + k // 8 * leading + 2 * (k % 8)
    place = start + place
    if span:
        line = (place >> 7) - (int(descriptor) >> 49 & 7)
        place = place ^ (line & span // 16 - 1) << 4
    return place


# --- methods of Thread ------------------------------------------------------------------------------
def _warpgroup(thread):
    groups, number = thread.block.warpgroups, thread.tid // 128
    if number not in groups:
        groups[number] = Warpgroup(thread.block, number)
    return groups[number]


def _groups(thread):
    """The thread's groups of products; their entry in the clocks is that of its warpgroup."""
    if KIND not in thread.groups:
        thread.groups[KIND] = Groups(thread.block, _warpgroup(thread).component)
    return thread.groups[KIND]


def warpgroup_fence(thread):
    """What the thread has done with its registers so far comes before the products to come."""
    _warpgroup(thread).execute(thread, "wgmma.fence")
    thread.fenced = True
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
    _warpgroup(thread).execute(thread, "wgmma.commit_group")
    _groups(thread)
    thread.block.copy_engine.commit_group(thread, KIND)


def wait_products(thread, pending, sums=None, columns=0):
    """``sums``, if given, are accumulators that must not be read before."""
    _warpgroup(thread).execute(thread, f"wgmma.wait_group {int(pending)}")
    if sums is not None:
        _check_size(thread, sums, columns, "wgmma.wait_group")
    _groups(thread)
    over = thread.block.copy_engine.wait_group(thread, KIND, pending)
    thread.time = max([thread.time, *(product.done for _, products in over for product in products)])


def multiply(thread, kind, columns, sums, a, b, scale_d, trans_a, trans_b):
    """Issues sums = A B^T, plus sums unless ``scale_d`` is 0. ``a``: a descriptor, or a tuple of four words."""
    what = f"wgmma.m64n{columns}k16.{kind}"
    accumulators = _take(thread, sums, columns, scale_d, what)
    operands = a if isinstance(a, tuple) else int(a), int(b), bool(scale_d), bool(trans_a), bool(trans_b)
    converged(thread, what, None, list)
    group = _warpgroup(thread)
    issue = functools.partial(_issue, thread, group, kind, columns, what)
    group.meet(thread, what, (accumulators, operands), issue)
    _groups(thread).open.append(group.last)
    thread.time += COST.barrier


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
        raise thread.fault(faults.MissingWarpgroupFence, f"{what} by a thread that {why}")
    if scale_d and values.product is None and None in list.copy(values):
        what = f"{what} adds to accumulators that nothing has written"
        raise thread.fault(faults.UninitialisedRead, what)
    return values


def _issue(thread, group, kind, columns, what, brought):
    block, operands = thread.block, brought[thread.tid][1]
    a, b, adds, trans_a, trans_b = operands
    uniform = [each[1:] if isinstance(a, tuple) else each for _, each in brought.values()]
    if any(each != uniform[0] for each in uniform):
        text = f"{what}, for which the threads of the warpgroup do not give the same operands"
        raise thread.fault(faults.BadMatrixDescriptor, text)
    b_places = addresses(b, columns, trans_b)
    a_places = None if isinstance(a, tuple) else addresses(a, ROWS, trans_a)
    phase = _groups(thread).number
    for places in (a_places, b_places):
        if places is not None:
            _read(thread, group, places, what, phase)
    product = Product(thread, what, int(b_places.min()), 0, phase)  # no bytes: nothing is copied
    product.component, product.before, group.last = group.component, group.last, product
    group.free_at = max(group.free_at, *(block.threads[t].time for t in group.tids)) + columns / 8 * COST.wgmma
    product.done = group.free_at
    members = [accumulators for _, (accumulators, _) in sorted(brought.items())]
    for accumulators in members:
        accumulators.product = product
    words = [each[0] for _, (_, each) in sorted(brought.items())]

    def deliver():
        if product.before is not None and not product.before.landed:
            block.land(product.before)
        numbers, shared = NUMBERS[kind], np.frombuffer(block.shared.data, np.uint8)
        if a_places is None:
            left = np.zeros((ROWS, DEPTH), np.float32)
            halves = np.array([[int(w) & WORD for w in lane] for lane in words], np.uint32)
            left[A_PLACES] = numbers(halves).reshape(128, 4, 2)
        else:
            left = _elements(shared, a_places, numbers)
        right = _elements(shared, b_places, numbers)
        with np.errstate(all="ignore"):
            total = left.astype(np.float64) @ right.astype(np.float64).T
            places = accumulator_places(columns)
            if adds:
                total[places] += np.array([list.copy(each) for each in members], np.float64)
            for each, row in zip(members, total.astype(np.float32)[places], strict=True):
                list.__setitem__(each, slice(None), list(row))
        product.landed, product.before = True, None

    block.launch_copy(product, deliver)


def _elements(shared, places, numbers):
    """The matrix of 16-bit elements at these addresses, as float32."""
    words = shared[places].astype(np.uint16) | shared[places + 1].astype(np.uint16) << np.uint16(8)
    return numbers(words).astype(np.float32)


def _read(thread, group, places, what, phase):
    """Check and note that a product reads the elements at these addresses until its group ``phase`` is over.
    All threads of the warpgroup have to know what is there."""
    block, space = thread.block, thread.shared
    lines = np.unique(places >> 4) << 4
    ends = np.flatnonzero(np.diff(lines) != 16)
    starts = lines[np.r_[0, ends + 1]].tolist()
    stops = (lines[np.r_[ends, len(lines) - 1]] + 16).tolist()
    known = block.clock_table[list(group.tids)].min(axis=0)
    reader = group.component, phase, thread.tid, thread.here(), block, False
    for start, stop in zip(starts, stops, strict=True):
        records = space.written[start - space.base : stop - space.base]
        if UNWRITTEN in records:
            thread.spin()  # let the late writer come, so that the fault can name it
            records = space.written[start - space.base : stop - space.base]
        if len(records) < stop - start:
            records = [*records, OUTSIDE]
        for w in different(records):
            if w.block is block and not w.atomic and known[1, w.owner] >= w.clock:
                continue  # the common case
            for tid in group.tids:
                if unseen := space._unseen(block.threads[tid], w):
                    raise bad_read(space, block.threads[tid], unseen, start, 16)
            for tid in group.tids:
                block.copy_engine.check_proxy(block.threads[tid], start, stop - start, what)
        a, b = start - space.base, stop - space.base
        space._add_to_all(thread, a, space.read_by[a:b], reader)

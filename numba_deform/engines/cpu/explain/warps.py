"""What is wrong where the lanes of a warp come apart."""

from ... import faults
from ...waiting import ranges
from .source_order import depth_of


def apart(thread, kind, mask, entry):
    """The lanes of ``entry`` wait in one operation, and ``thread`` calls another.
    Blamed is the one that stands deeper in branches and loops: the other lanes have passed it by."""
    other, first, values, parked = entry
    lanes = ranges(sorted(values), "lane")
    if depth_of(parked[0].calls()) <= depth_of(thread.calls()):
        what = f"{kind} with mask {mask:#x}, while {lanes} {'wait' if len(values) > 1 else 'waits'} in "
        return thread.fault(faults.WarpDivergence, f"{what}{other} at {thread.at(first)}")
    what = f"{other} with mask {mask:#x} by {lanes}, while lane {thread.lane} calls {kind} at "
    what += thread.at(thread.site())
    return parked[0].fault_at(faults.WarpDivergence, what, first, threads=[t.tid for t in parked])

"""Launch a kernel so that it never hangs, and say what it waited for when it was stopped. Only a barrier of the
whole grid may hang."""

import numpy as np

from ...device import guard as layout
from .. import faults
from ..waiting import Wait, draw
from .device import DeviceArray, copy_to_host
from .launch import launch, set_variable

NAMES = {
    layout.MBARRIER: "mbarrier", layout.FLAG: "flag", layout.SPIN: "spin",
    layout.BARRIER: "barrier", layout.DIVERGENT: "barrier",
}  # fmt: skip
WHY = "a GPU does not tell who has arrived"
LIMIT = 1.0  # seconds that one wait may take
CYCLES_PER_SECOND = 1.98e9  # of an H200 at its highest clock; lower ones only make the limit longer
RECORD = np.dtype([
    ("kind", "u4"), ("site", "u4"), ("address", "u4"), ("detail", "u4"), ("value", "u4"),
    ("unused", "u4"),
    ("since", "u8"), ("now", "u8"), ("unused_too", "u4"), ("written", "u4"),
])  # fmt: skip
assert RECORD.itemsize == layout.RECORD_BYTES


def launch_guarded(gpu, kernel, grid, args, shared_bytes=0, stream=None, limit=LIMIT):
    """Launch the guarded form of ``kernel`` and wait for its end; arguments as ``launch.launch``.

    A wait of more than ``limit`` seconds ends the whole grid; outputs are then as the kernel left them, and the
    GPU goes on working. A wait for all blocks, ``cuda.cg.this_grid().sync()``, has no limit. Raises the
    SimFault that tells of it: IncompletePhase, DivergentBarrier, Deadlock or Livelock, with ``waits`` of the
    block that stopped first.
    """
    guarded_launcher(gpu, kernel, grid, args, shared_bytes, stream, limit)()


def guarded_launcher(gpu, kernel, grid, args, shared_bytes=0, stream=None, limit=LIMIT):
    """A function of no arguments that does what :func:`launch_guarded` does, any number of times."""
    if not isinstance(grid, int) or kernel.block:
        what = f"the guarded form is for a grid and blocks of one dimension, grid={grid}"
        raise ValueError(f"{kernel.name}: {what}")
    bounded = kernel.with_bounded_waits()
    record = DeviceArray(gpu, (layout.BLOCKS_OFFSET + grid * layout.BARRIERS * layout.COUNTER_BYTES,), np.uint8)
    header = np.zeros(layout.HEADER_BYTES // 4, np.uint32)
    header[2] = max(1, round(limit * CYCLES_PER_SECOND / 2**layout.TICK))

    def run():
        gpu.device.sync()  # the record is one for all of this function's launches
        record.fill(0)
        record.copy_from(header)
        set_variable(gpu, bounded, shared_bytes, "guard_record", record.address)
        launch(gpu, bounded, grid, args, shared_bytes, stream)
        gpu.device.sync()
        if copy_to_host(record.address, (1,), np.uint32)[0]:
            raise read_record(kernel, record.to_numpy()[: layout.BLOCKS_OFFSET], limit)

    return run


def read_record(kernel, record, limit=LIMIT):
    """The fault that the record of a guarded launch that was stopped tells of; an array of bytes."""
    header = record[: layout.HEADER_BYTES].view(np.uint32)
    stop = int(header[3]) | int(header[4]) << 32
    rows = record[layout.HEADER_BYTES :].view(RECORD)
    sites = kernel.sites
    groups = {}
    for thread in np.flatnonzero(rows["written"]):
        row = rows[thread]
        # Who began to wait after the stop came there only because others had been ended.
        if row["since"] <= stop:
            alike = tuple(int(row[name]) for name in ("kind", "site", "address", "detail", "value"))
            groups.setdefault(alike, []).append(int(thread))
    waits = [_wait(alike, tuple(threads), sites) for alike, threads in groups.items()]
    longest = min(groups, key=lambda g: (g[0] != layout.DIVERGENT, int(rows["since"][groups[g]].min())))
    kind, site = _kind(longest), sites[longest[1]]
    others = f", and {header[1]} threads of other blocks" if header[1] else ""
    ended = f"a wait took more than {limit:g} s"
    if kind is faults.DivergentBarrier and longest[0] == layout.DIVERGENT:
        ended = "a thread came to another barrier than the rest of its block"
    what = f"{ended}; the grid was stopped. Waiting in block {header[0] - 1}{others}:\n{draw(waits)}"
    return kind(
        what, threads=groups[longest], block=int(header[0]) - 1, where=site.where,
        source=site.source, barrier=site.call, waits=waits,
    )  # fmt: skip


def _kind(group):
    kind, _, _, detail, _ = group
    if kind == layout.MBARRIER:
        return faults.IncompletePhase
    if kind == layout.DIVERGENT or kind == layout.BARRIER and not detail:
        return faults.DivergentBarrier
    return faults.Deadlock if kind == layout.BARRIER else faults.Livelock


def _wait(group, threads, sites):
    kind, site, address, detail, value = group
    site = sites[site]
    on, state, missing = site.call, "", ""
    if kind == layout.MBARRIER:
        phase = "phase of its token" if detail == layout.BY_TOKEN else f"phase of parity {detail}"
        on = f"the {phase} of the barrier at {address:#x}"
        state, missing = f"it is in a phase of parity {value}", "arrivals, or bytes of copies"
    elif kind == layout.FLAG:
        on, state = f"the flag at {address:#x}", f"it holds {value}"
        missing = f"nobody writes {detail}"
    elif kind == layout.DIVERGENT:
        missing = f"other threads are in {sites[detail].where.rpartition('/')[2]}"
    elif kind == layout.BARRIER:
        missing = f"not all of {detail} threads have come" if detail else "not all threads have come"
    return Wait(threads, site.where, site.source, NAMES[kind], on, state, missing, why=WHY)

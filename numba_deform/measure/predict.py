"""How long a launch would take on an H200 or H100: what one SM does for its blocks, or those of a cluster
side by side, played on ``engines.sass.sm``.

The blocks that ran are taken for those of each SM. Of a large grid some blocks stand for all: after the first
round the rest goes on at the rate of those that ran."""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from ..engines.sass import ONE_SM, emulate
from ..engines.sass.counters import L1
from ..engines.sass.listing import listing
from ..engines.sass.machine import RESERVED, resident
from ..engines.sass.memory import MAP_BYTES
from ..engines.sass.sm import REASONS, Sm, play
from ..engines.sass.traces import Work
from ..engines.sass.units import GPUS, HOPPER, QUARTERS, SMS

# Of measured by predicted times of the rows that were held back: where nine of ten lie (bench/PREDICTED.md).
LOW, HIGH, HELD_BACK = 0.89, 1.18, 228
# Likewise of OTHERS times of kernels of other kinds, on an H100 and an H200: where INSIDE lie (the same page).
OTHERS_LOW, OTHERS_HIGH, INSIDE, OTHERS = 0.89, 1.58, 147, 164
MOST = 20_000_000  # instructions of warps that run for a profile
TIE = 0.1  # predicted times that lie further apart are in the order that was measured, nearly always


@dataclass(frozen=True, eq=False)
class Prediction:
    """``cycles`` of an SM for all its blocks; ``busy``: {unit: its share of that time}; ``stalls``: {(reason,
    number of the instruction): cycles of warps}, of the blocks that were played; ``clocks``: {(which of them,
    warp): the cycles at which it read the clock}; ``own``: whether it is a kernel of the package."""

    cycles: float
    busy: dict
    stalls: dict
    constants: tuple = HOPPER
    clocks: dict = field(default_factory=dict)
    own: bool = False

    @property
    def microseconds(self):
        """Of the whole launch, with what an empty kernel takes."""
        return self.constants.launch_us + self.cycles / self.constants.ghz / 1e3

    @property
    def interval(self):
        """(least, most) microseconds: so far around their predictions lay recorded times, nine of ten of those
        of the package's ``own`` kernels that were held back, or INSIDE of OTHERS of other kernels."""
        low, high = (LOW, HIGH) if self.own else (OTHERS_LOW, OTHERS_HIGH)
        return low * self.microseconds, high * self.microseconds

    @property
    def claim(self):
        """What the interval says."""
        if self.own:
            return f"so far off were nine of ten of {HELD_BACK} recorded times of this package's kernels"
        return f"so far off were {INSIDE} of {OTHERS} times of other kernels, on an H100 and an H200"

    def told(self):
        """The time in a sentence."""
        least, most = self.interval
        return (f"predicted: {self.microseconds:,.1f} us, {least:,.1f} to {most:,.1f}, on an {self.gpu} at "
                f"{self.constants.ghz} GHz; {self.claim} (bench/PREDICTED.md)")  # fmt: skip

    @property
    def gpu(self):
        """The name of the GPU that it is for."""
        return next((name.upper() for name, known in GPUS.items() if known == self.constants), "Hopper GPU")

    def columns(self):
        """Of a row of ``bench``, ``sweep`` and ``tune``."""
        return {"measured": False, "predicted_ms": self.microseconds / 1e3, "model": self.gpu,
                "interval_ms": [time / 1e3 for time in self.interval], "binds": self.binds}  # fmt: skip

    def document(self):
        """What it says, as JSON's types."""
        return {"gpu": self.gpu, "microseconds": self.microseconds, "interval": self.interval,
                "cycles": self.cycles, "binds": self.binds, "busy": self.busy,
                "reasons": self.reasons}  # fmt: skip

    @property
    def binds(self):
        """The unit that is busy most of the time."""
        return max(self.busy, key=self.busy.get)

    @cached_property
    def reasons(self):
        """{reason: share of all warps' time}, the largest first."""
        found = defaultdict(float)
        for (reason, _), cycles in self.stalls.items():
            found[reason] += cycles
        whole = sum(found.values()) or 1
        return {r: found[r] / whole for r in sorted(REASONS, key=lambda r: -found[r]) if found[r]}

    def waits(self, numbers):
        """{reason: share of all warps' time} at these instructions, without the cycles in which they issue."""
        whole, numbers = sum(self.stalls.values()) or 1, set(numbers)
        found = defaultdict(float)
        for (reason, number), cycles in self.stalls.items():
            if number in numbers and reason != "selected":
                found[reason] += cycles / whole
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def resident_blocks(kernel, shared_bytes):
    """How many blocks of a kernel all SMs hold at once; ``shared_bytes``: dynamic ones of a block."""
    code = listing(kernel)
    return SMS * resident(code.registers, kernel.threads, max(code.shared, RESERVED) + shared_bytes)


def emulate_bound(case, bound, timed=False, **options):
    """(the Run, the output) of a Bound on the arrays of its ``Case``; ``options`` are those of ``emulate``.
    ``timed``: traced for ``predict``, and if no others are asked for, of the blocks of one SM."""
    out = np.full(case.problem.out_shape, np.nan, case.arrays[0].dtype)
    args, options = bound.arguments((*case.arrays, out)), {"only": ONE_SM, **options}
    return emulate(bound.kernel, bound.blocks, args, bound.shared_bytes, traced=timed, **options), out


def predict_launch(launch, gpu="h200"):
    """The Prediction for a Launch, on a GPU of GPUS. Of a large grid one SM's blocks run, not compared."""
    return predict(emulate(launch, only=ONE_SM, limit=MOST, traced=True), GPUS[gpu])


def predict(run, constants=HOPPER, repeats=1, own=False):
    """The :class:`Prediction` for an ``engines.sass.Run`` that was traced; playing it uses its traces up.
    ``repeats``: how many such launches one after the other make the whole, with other arrays each; ``own``:
    whether its kernel is the package's."""
    traces, size = run.traces, run.traces.cluster
    done = len(traces.blocks) // size
    mine = run.blocks / SMS if run.blocks > run.resident * SMS else done
    far = _memory_share(traces, run.blocks / run.ran, repeats, constants)
    fetch = _map_fetch_cycles(traces, constants)
    sm, *_ = sms = [Sm(run.listing, L1(traces.l1_bytes), far, constants, fetch) for _ in range(size)]
    total = play(sms, [traces.blocks[rank::size] for rank in range(size)], run.resident)
    cycles = total if mine <= done else _extrapolate(sm.ends, run.resident, mine)
    handed = run.blocks * constants.handed
    total, cycles = total * max(1, handed / cycles), max(cycles, handed)
    issue, quarters = sm.busy.pop("issue"), ("alu", "fma", "fp64", "xu", "tensor", "uniform", "cbu")
    busy = {unit: cycle / total / (QUARTERS if unit in quarters else 1) for unit, cycle in sm.busy.items()}
    for unit in ("lsu", "tma"):  # instructions alone; the work is the data path's, the copy engine's
        busy.pop(unit, None)
    busy = {"issue": issue / total / QUARTERS, **busy, "blocks": handed / cycles}
    return Prediction(cycles * repeats, busy, dict(sm.stalls), constants, dict(sm.clocks), own)


def write_clocks(kernel, grid, args, shared_bytes, marks, block, cluster=None):
    """Have the model's clock in the ``marks`` that a block of a kernel with marks writes, whose last arguments
    they are: the machine code runs for the blocks of its SM up to those that are there with it."""
    if cluster not in (None, 1):
        raise ValueError(f"{kernel.name} has clusters, of which the model draws no timeline: engine=cpu does")
    blocks = prod(grid) if isinstance(grid, tuple) else grid
    place, held = block // SMS, resident_blocks(kernel, shared_bytes) // SMS
    only = list(range(block % SMS, blocks, SMS))[: place + held]
    found = predict(emulate(kernel, grid, args, shared_bytes, only=only, traced=True)).clocks
    for (which, warp), cycles in found.items():
        if which == place:
            written = marks[warp, : len(cycles)]  # as two words each
            times = np.array(cycles[: len(written)], np.int64)
            written[:, 0], written[:, 1] = times & 0xFFFFFFFF, times >> 32


def _extrapolate(ends, resident, blocks):
    """Cycles of so many blocks, by when those that were played have ended: between the first round and the last
    one, which has no blocks behind it, at their rate."""
    begin, end = resident - 1, len(ends) - resident - 1
    if end <= begin:
        return ends[-1] * blocks / len(ends)
    rate = (ends[end] - ends[begin]) / (end - begin)
    return ends[begin] + rate * (blocks - 2 * resident) + ends[-1] - ends[end]


def _memory_share(traces, scale, repeats, constants):
    """A function of an address, and whether it is written: what share of what is asked of L2 there comes from
    memory, or goes there. Nothing, if L2 holds all arrays and the launch comes again and again; else each byte
    is read once, and written once."""
    if sum(traces.sizes) * repeats <= constants.l2_size:
        return None
    shares = [[0.0, *(min(1.0, size / (asked * scale)) if asked else 1.0  # 0: threads' own memory
                      for size, asked in zip(traces.sizes, of, strict=True))]
              for of in (traces.fetched, traces.written)]  # fmt: skip
    return lambda address, stored=False: shares[stored][bisect_right(traces.starts, address)]


def _map_fetch_cycles(traces, constants):
    """A function of a tensor map's address: the cycles in which the copy engine fetches it. Of an array of maps
    the blocks of this SM use a part; such a part of the SMs then fetches one of them at a time."""
    entries = (entry for block in traces.blocks for trace in block for entry in trace if type(entry) is tuple)
    used = {work.map for _, work in entries if isinstance(work, Work) and work.copied is not None} - {None}
    arrays = [(start, start + size) for start, size in zip(traces.starts, traces.sizes, strict=True)]

    def share(map):
        around = next((array for array in arrays if array[0] <= map < array[1]), (map, map + MAP_BYTES))
        return sum(around[0] <= one < around[1] for one in used) * MAP_BYTES / (around[1] - around[0])

    costs = {map: constants.tma_map * share(map) for map in used}
    return costs.__getitem__

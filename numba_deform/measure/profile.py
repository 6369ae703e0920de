"""What a launch's machine code does, line by line, without a GPU: ``nd.profile`` and ``numba-deform profile``.

The counts are those of ``engines.sass``: exact for executions and addresses, by stated models for wavefronts
and L1. A *roofline* says how many cycles each unit of an SM would take for its part alone, when the work is
spread evenly; the largest binds. It is no time: latencies, barriers and queues are in none of them. These are
in ``predict``, which tells a time and how far it may be off."""

import html
import json
import linecache
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..engines.sass import Run
from ..engines.sass.units import PIPES, RATES, SMS, pipe_of, products
from .predict import Prediction

SURE = 0.5
TOTALS = {
    "instructions": "executed", "threads": "threads", "divergent": "divergent", "lsu_wavefronts": "wavefronts",
    "bank_conflicts": "conflicts", "global_sectors": "sectors", "global_lines": "lines", "l2_bytes": "l2_bytes",
    "atomics": "atomics", "spills": "spills",
    "tma_requests": "tma_requests", "tma_bytes": "tma_bytes", "barriers": "barriers",
}  # fmt: skip
"""{name of a total: of what is counted by line}"""
NSIGHT = {
    "instructions": "smsp__inst_executed.sum", "threads": "smsp__thread_inst_executed.sum",
    "lsu_wavefronts": "l1tex__data_pipe_lsu_wavefronts.sum",
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "global_sectors": "l1tex__t_sectors_pipe_lsu.sum", "l1_hit_percent": "l1tex__t_sector_hit_rate.pct",
    "l2_bytes": "lts__t_bytes.sum",
}  # fmt: skip
"""Nsight Compute's names of what is counted here."""
COLUMNS = ("executed", "lsu", "fma", "alu", "wavefronts", "conflicts", "sectors", "l2_bytes", "tma_bytes")
WIDTHS = (10, 8, 8, 8, 12, 11, 9, 11, 11)
HEADS = "%  executed     LSU     FMA     ALU  wavefronts  conflicts  sectors   L2 bytes  TMA bytes  line"


@dataclass(frozen=True)
class Line:
    """A line of source: what its instructions did, by name, and their numbers in the listing."""

    file: str
    line: int
    counts: dict
    numbers: tuple

    @property
    def text(self):
        return linecache.getline(self.file, self.line).strip()

    @property
    def place(self):
        return f"{Path(self.file).name}:{self.line}"


@dataclass(frozen=True, eq=False)
class Profile:
    """The counts of one launch. ``items``: {name: how many} of what the totals are divided by, such as
    samples. ``time``: the ``predict.Prediction`` for it, if it was asked for."""

    title: str
    run: Run
    items: dict
    time: Prediction | None = None

    @cached_property
    def scale(self):
        """How many blocks each that ran stands for."""
        return self.run.blocks / self.run.ran

    def counted(self, numbers):
        """{name: number} of these instructions."""
        counts, code = self.run.counts, self.run.listing.code
        found = defaultdict(float)
        for n in numbers:
            executed = int(counts.executed[n])
            found["executed"] += executed
            found[pipe_of(code[n])] += executed
            found["wavefronts"] += executed if code[n].stem == "SHFL" else int(counts.wavefronts[n])
            for name in ("threads", "divergent", "sectors", "lines", "hits", "l2_bytes", "tma_bytes",
                         "conflicts", "requests"):  # fmt: skip
                found[name] += int(getattr(counts, name)[n])
            found["atomics"] += executed * code[n].stem.startswith(("ATOM", "RED"))
            found["spills"] += executed * (code[n].stem in ("LDL", "STL"))
            found["barriers"] += executed * (code[n].stem in ("BAR", "SYNCS"))
            found["tma_requests"] += int(counts.requests[n]) * (pipe_of(code[n]) == "tma")
            found["flop_cycles"] += executed * products(code[n]) / RATES["tensor"]
        return {name: value * self.scale for name, value in found.items()}

    @cached_property
    def totals(self):
        """{name: number} of the launch; NSIGHT has Nsight Compute's names of some of them."""
        whole = self.whole
        hit = 100 * whole["hits"] / whole["sectors"] if whole["sectors"] else None
        return {name: whole[key] for name, key in TOTALS.items()} | {"l1_hit_percent": hit}

    @cached_property
    def whole(self):
        """``counted`` of all instructions."""
        return self.counted(range(len(self.run.listing)))

    @property
    def pipes(self):
        """{unit: instructions of warps} of those that had any."""
        return {pipe: self.whole[pipe] for pipe in (*PIPES, "alu", "uniform") if self.whole.get(pipe)}

    @cached_property
    def lines(self):
        """The :class:`Line` of each line that ran, those with the most instructions first."""
        numbers = defaultdict(list)
        for one in self.run.listing:
            numbers[one.line].append(one.number)
        found = [Line(*place, self.counted(which), tuple(which)) for place, which in numbers.items()]
        return sorted((line for line in found if line.counts["executed"]), key=lambda x: -x.counts["executed"])

    @cached_property
    def roofline(self):
        """{unit: cycles of each SM for its part alone}."""
        totals, whole = self.totals, self.whole
        work = {"issue": totals["instructions"], "lsu": totals["lsu_wavefronts"], "l2": totals["l2_bytes"],
                **{unit: whole.get(unit, 0) for unit in ("fma", "alu", "xu", "fp64")}}  # fmt: skip
        cycles = {unit: amount / RATES[unit] / SMS for unit, amount in work.items()}
        return cycles | {"tensor": whole["flop_cycles"] / SMS}

    @property
    def binds(self):
        """The unit whose part takes longest."""
        return max(self.roofline, key=self.roofline.get)

    @property
    def advice(self):
        """A sentence where one line is most of what binds, or of the bank conflicts; else ""."""
        totals = self.totals
        share = totals["bank_conflicts"] / totals["lsu_wavefronts"] if totals["lsu_wavefronts"] else 0
        if self.binds == "lsu" and share > 0.2:
            worst = max(self.lines, key=lambda line: line.counts["conflicts"])
            return (f"{share:.0%} of the LSU's wavefronts are bank conflicts, most of them at {worst.place}: "
                    f"{worst.text}")  # fmt: skip
        name = {"lsu": "wavefronts", "issue": "executed", "l2": "l2_bytes"}.get(self.binds, self.binds)
        worst = max(self.lines, key=lambda line: line.counts.get(name, 0), default=None)
        whole = sum(line.counts.get(name, 0) for line in self.lines)
        if worst is None or not whole or worst.counts.get(name, 0) < SURE * whole:
            return ""
        return f"{worst.counts[name] / whole:.0%} of what binds, {self.binds}, is {worst.place}: {worst.text}"

    # --- to be read -----------------------------------------------------------------------------------
    def text(self, lines=25, sass=False):
        """The totals, the roofline and the table by line; with ``sass`` the instructions under each line."""
        told = [f"{self.title}: {self.run.ran:,} of {self.run.blocks:,} blocks ran, {self.run.resident} an SM"]
        part = self.run.ran < self.run.blocks
        told += ["these stand for all: figures are scaled up, no output is compared (only=all runs all)"] * part
        has = {one.stem for one in self.run.listing}
        told += ["its setmaxnreg has no effect here: no ptxas on PATH takes this PTX"] * (
            "setmaxnreg" in getattr(self.run.kernel, "text", "") and "USETMAXREG" not in has)  # fmt: skip
        told += [self._total(name, value) for name, value in self.totals.items() if value]
        told.append("instructions by unit: " + ", ".join(f"{u} {_short(n)}" for u, n in self.pipes.items()))
        bounds = sorted(self.roofline.items(), key=lambda pair: -pair[1])
        told.append("cycles of an SM, each unit alone: " + ", ".join(f"{u} {c:,.0f}" for u, c in bounds if c))
        told += [f"advice: {self.advice}"] * bool(self.advice)
        told += self._times(lines) if self.time else []
        told += ["", HEADS]
        for line in self.lines[:lines]:
            told.append(self._row(line))
            told += [self._instruction(n) for n in line.numbers if sass]
        left = len(self.lines) - lines
        return "\n".join(told + [f"and {left} lines more"] * (left > 0))

    def _total(self, name, value):
        items = {} if name.endswith("percent") else self.items
        each = "".join(f"{value / count:>12.3f} a {item}" for item, count in items.items())
        return f"  {name:<16}{_short(value):>10}{each}  {NSIGHT.get(name, '')}".rstrip()

    def _times(self, lines):
        """The predicted time, and where warps wait for what."""
        found = self.time
        told = [found.told(), f"busiest: {found.binds}, {found.busy[found.binds]:.0%} of the time",
                "warps' time: " + ", ".join(f"{r} {s:.0%}" for r, s in found.reasons.items() if s >= 0.005),
                "", " %  reasons, and the line that waits"]  # fmt: skip
        rows = [(found.waits(line.numbers), line) for line in self.lines]
        rows.sort(key=lambda row: -sum(row[0].values()))
        for waits, line in rows[:lines]:
            if (share := sum(waits.values())) >= 0.01:
                why = ", ".join(f"{reason} {part:.0%}" for reason, part in list(waits.items())[:2])
                told.append(f"{100 * share:2.0f}  {why:<44}  {line.place}  {line.text[:50]}")
        return told

    def _row(self, line):
        numbers = [_short(line.counts.get(name, 0)) for name in COLUMNS]
        share = 100 * line.counts["executed"] / self.totals["instructions"]
        cells = (f"{text:>{width}}" for text, width in zip(numbers, WIDTHS, strict=True))
        return f"{share:2.0f}{''.join(cells)}  {line.place}  {line.text[:70]}"

    def _instruction(self, n):
        counts, one = self.run.counts, self.run.listing.code[n]
        return f"      {_short(counts.executed[n] * self.scale):>8}  {one}"[:112]

    def __str__(self):
        return self.text()

    def _repr_html_(self):
        style = "white-space:pre;overflow-x:auto;font-size:0.8em;line-height:1.35"  # a row stays a row
        return f'<pre style="{style}">{html.escape(self.text())}</pre>'

    def document(self):
        """Totals, roofline and lines, as JSON's types."""
        return {
            "title": self.title, "blocks": self.run.blocks, "ran": self.run.ran, "items": self.items,
            "totals": self.totals, "pipes": self.pipes, "nsight": NSIGHT, "roofline_cycles": self.roofline,
            "binds": self.binds, "advice": self.advice,
            **({"time": self.time.document()} if self.time else {}),
            "lines": [{"file": Path(line.file).name, "line": line.line, "text": line.text, **line.counts}
                     | ({"waits": self.time.waits(line.numbers)} if self.time else {}) for line in self.lines],
        }  # fmt: skip

    def save(self, path):
        """Write ``document()`` to a JSON file."""
        Path(path).write_text(json.dumps(self.document(), indent=1) + "\n")


def _short(number):
    """A number in at most seven characters."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if number >= size:
            return f"{number / (1e3 if unit == 'k' else size):.4g}{unit}"
    return f"{number:.4g}"

"""Counters of the emulated machine code beside Nsight Compute's, as they were recorded on an H200.

    python bench/profile_rows.py out.json [FILE ...]

The rows are those of the files in bench/results that have a profile. Each is counted again without a GPU:
today's kernel in the row's configuration, today's assembler, of the grid the first blocks of one SM, so that L1
sees what an SM's does. A row of an older commit therefore has another kernel; its figures say by how much."""

import json
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np

from numba_deform.attention import bind
from numba_deform.engines.sass import emulate
from numba_deform.engines.sass.listing import listing
from numba_deform.engines.sass.machine import RESERVED, SMS, resident
from numba_deform.measure import record
from numba_deform.measure.case import Case
from numba_deform.measure.profile import Profile
from numba_deform.workloads.presets import preset

RESULTS = Path(__file__).parent / "results"
FILES = ("windows_profile", "windows_profile_before", "windows_profile_rounds", "windows_instructions_profile",
         "windows_b4_cells")  # fmt: skip
KEPT = ("lanes", "min_blocks", "arithmetic", "threads", "cell", "consumers", "stages")
BLOCKS = 24  # of one SM, of a kernel that has a block for each few rows; of a persistent one all its blocks
NAMES = {"instructions": "instructions", "lsu_wavefronts": "wavefronts", "bank_conflicts": "bank_conflicts",
         "l1_hit_percent": "l1_hit_percent", "l2_bytes": "l2_bytes"}  # fmt: skip


def bound_as_on_a_gpu(case, name, parameters):
    """The Bound, with as many blocks as an H200 holds."""
    bound, _ = case.bind(name, parameters)
    code = listing(bound.kernel)
    held = resident(code.registers, bound.kernel.threads, max(code.shared, RESERVED) + bound.shared_bytes)
    with mock.patch.object(bind, "CPU_RESIDENT", held * SMS):
        return case.bind(name, parameters)[0], held


def counted(case, name, parameters):
    bound, held = bound_as_on_a_gpu(case, name, parameters)
    of_one_sm = list(range(0, bound.blocks, SMS))
    only = of_one_sm if bound.blocks <= held * SMS else of_one_sm[:BLOCKS]
    out = np.full(case.problem.out_shape, np.nan, case.arrays[0].dtype)
    started = time.perf_counter()
    args = bound.arguments((*case.arrays, out))
    run = emulate(bound.kernel, bound.blocks, args, bound.shared_bytes, only=only)
    return Profile(name, run, {}).totals, len(only), bound.blocks, time.perf_counter() - started


def main(path, *files):
    rows, kept = [], {}
    for file in files or FILES:
        document = json.loads((RESULTS / f"{file}.json").read_text())
        for row in (row for row in document["rows"] if row.get("profile")):
            name = row["variant"].split()[0]
            given = {k: tuple(v) if isinstance(v, list) else v for k, v in row["config"].items()}
            fields = {k: v for k, v in given.items() if k in KEPT}
            key = row["workload"], row["pattern"]
            if key not in kept:
                kept.clear()
                kept[key] = Case(preset(row["workload"], pattern=row["pattern"]).generate(1))
            totals, ran, blocks, seconds = counted(kept[key], name, fields)
            measured = row["profile"]
            rows.append({
                "file": file, "commit": document["commit"], "workload": row["workload"],
                "variant": row["variant"], "blocks": blocks, "ran": ran,
                "seconds": seconds,
                "counted": {ours: totals[ours] for ours in NAMES},
                "measured": {ours: measured.get(theirs) for ours, theirs in NAMES.items()},
            })  # fmt: skip
            rows[-1]["off_percent"] = {
                ours: 100 * (totals[ours] / measured[theirs] - 1)
                for ours, theirs in NAMES.items() if measured.get(theirs) and totals[ours]}  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
            record.write(path, None, rows)


if __name__ == "__main__":
    main(*sys.argv[1:])

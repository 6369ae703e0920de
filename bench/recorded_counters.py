"""The profiler's counts beside fifteen profiles of an H200, which are older than the profiler.

    python bench/recorded_counters.py count --python PATH [--rows 0,6]   # bind, compile and emulate
    python bench/recorded_counters.py --table                            # the tables of bench/PROFILE.md

Each row with a ``profile`` in FILES was measured with the code of the commit beside its file. That commit is
unpacked into a temporary folder, and PATH, the Python of an environment with the recorded releases of Numba and
nvJitLink, binds and compiles its kernel (recorded_launch.py). Its machine code then runs in ``engines.sass`` of
today: of ``direct`` the blocks of one SM at three places of the grid, of ``window``, which is persistent, all
blocks of SMS_RUN. Counts are divided by the share of the output that these wrote. ``off``: percent of what is
recorded, and points of L1's hits; ``error``: of what was written, against float64; ``l2_parts``: whose
``l2_bytes`` are.

L2 of these GPUs has two halves, and an SM asks the nearer one. ``l2_other_half`` is no count of what runs, but
what follows for the arrays if each half takes what the other has, once: all of value, half of what only one SM
uses. ``l2_twice``: of ``l2_bytes`` those of loads past L1 of sectors that a load just before has asked for.
Without these and with the other half L2's bytes are off by ``l2_with_halves``. The second table has the other
half's bytes beside those that counted.json has of the kernels of today.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import tarfile
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
from counted import some_of

from numba_deform import from_ptx
from numba_deform.attention.reference import reference, relative_error
from numba_deform.compiler.cache import save
from numba_deform.engines.sass import Machine, Run
from numba_deform.engines.sass.listing import OPTIONS, disassembled, read
from numba_deform.engines.sass.units import SMS
from numba_deform.engines.tensormap import TensorMapArray
from numba_deform.engines.tensormap.packed import map_of
from numba_deform.measure import record
from numba_deform.measure.bench import bytes_of
from numba_deform.measure.profile import Profile
from numba_deform.workloads.presets import preset

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "recorded_counters.json"
# The commits that have what was measured; the files name one before, "-dirty". One lacks two new files, which
# came with the commit after it.
FILES = {"windows_b4_cells": "692dcb9", "windows_profile_before": "692dcb9",
         "windows_instructions_profile": "3cdbff2", "windows_profile_rounds": "91ed560",
         "windows_profile": "d59dff1"}  # fmt: skip
LATER = {"3cdbff2": ["cff69f6", "numba_deform/device/float32.py", "ptx/float32.ptx"]}
SMS_RUN = (0, SMS // 3, 2 * SMS // 3)
INPUTS = "value", "spatial_shapes", "level_start_index", "sampling_locations", "attention_weights"
NAMES = {"instructions": "instructions", "wavefronts": "lsu_wavefronts", "bank_conflicts": "bank_conflicts",
         "l1_hit_percent": "l1_hit_percent", "l2_bytes": "l2_bytes"}  # fmt: skip
PARTS = {"LDG": "loads", "STG": "stores", "UTMALDG": "copy engine"}
LIMIT, SECTOR = 1_000_000_000, 32
AT_ONCE = 32  # instructions, which are issued before data have come


def recorded():
    """The rows to count, each with its file, commit, and what it was made with: versions and seed."""
    rows = []
    for file, commit in FILES.items():
        document = json.loads((RESULT.parent / f"{file}.json").read_text())
        more = {"file": file, "commit": commit, "versions": document["versions"]}
        more["seed"] = document["settings"]["seed"]
        rows += [row | more for row in document["rows"] if "profile" in row]
    return rows


def check_out(commit, folder):
    """Have the files of a commit in a folder."""
    for words in filter(None, ([commit], LATER.get(commit))):
        command = ["git", "-C", HERE.parent, "archive", *words]
        packed = subprocess.run(command, check=True, capture_output=True).stdout
        tarfile.open(fileobj=io.BytesIO(packed)).extractall(folder)


def bind(row, tree, python, folder):
    """Have the row's launch written into the folder by its commit's package; what ``launch.json`` says."""
    config = {name: value for name, value in row["config"].items() if name != "boxes"}  # follow from locations
    environment = {**os.environ, "PYTHONPATH": str(tree), "NUMBA_DEFORM_CACHE": ""}
    words = [row["workload"], row["pattern"], str(row["seed"]), row["variant"].split()[0], json.dumps(config)]
    subprocess.run([python, HERE / "recorded_launch.py", *words, folder], env=environment, check=True)
    launch = json.loads((folder / "launch.json").read_text())
    there, here = row["versions"], launch["versions"]
    names = there.keys() & here.keys() - {"python"}
    if wrong := {name: here[name] for name in names if there[name] != here[name]}:
        raise SystemExit(f"{row['file']} was recorded with {there}; this environment has {wrong}")
    return launch


def count(row, launch, folder):
    """The row's counts: its machine code on the emulator."""
    started, arrays = time.perf_counter(), {file.stem: np.load(file) for file in folder.glob("*.npy")}
    first = arrays["value"].__array_interface__["data"][0]

    def of(told):
        if isinstance(told, list):
            tiled = ({**one, "mode": "tile", "address": first + one["address"]} for one in told)
            return TensorMapArray([map_of(one, arrays["value"]) for one in tiled])
        return arrays[told] if isinstance(told, str) else told

    code = read(*disassembled((folder / "kernel.cubin").read_bytes(), *OPTIONS), launch["entry"])
    kernel, blocks = from_ptx(folder / "kernel.ptx")[launch["entry"]], launch["blocks"]
    args = [of(told) for told in launch["arguments"]]
    machine = Machine(code, kernel, args, blocks, launch["threads"], launch["shared"])
    persistent = blocks <= SMS * machine.resident
    assert not persistent or machine.resident == 1, "recorded_launch.py takes one block for each SM"
    counts = machine.run(frozenset(SMS_RUN if persistent else some_of(list(range(0, blocks, SMS)))), LIMIT)
    written, error = judged(arrays)
    run = Run(kernel, code, counts, written.size, int(written.sum()), machine.resident)  # not of blocks
    profile = Profile(row["variant"], run, {})
    numbers = {part: [one.number for one in code if one.stem == stem] for stem, part in PARTS.items()}
    return {"blocks": blocks, "ran": machine.ran, "share": written.mean(), "error": error,
            "counted": {name: profile.totals[ours] for name, ours in NAMES.items()},
            "l2_parts": {part: profile.counted(which)["l2_bytes"] for part, which in numbers.items() if which},
            "l2_other_half": other_half(arrays["value"].nbytes, row["compulsory_bytes"]),
            "l2_twice": profile.counted(twice(code)).get("l2_bytes", 0),
            "tma_bytes": profile.totals["tma_bytes"], "seconds": time.perf_counter() - started}  # fmt: skip


def other_half(value, compulsory):
    """Bytes that each half of L2 asks of the other, once: value's, and those that one SM uses; of all these."""
    return value + (compulsory - value) / 2


def twice(code):
    """The numbers of loads of 16 bytes with NA that have the other half of a sector than one shortly before."""
    seen, found = {}, []
    for one in code:
        if one.stem == "LDG" and {"NA", "128"} <= one.words:
            place = one.operands[1].replace("+0x10]", "]")
            if one.number - seen.get(place, -AT_ONCE) < AT_ONCE:
                found.append(one.number)
            seen[place] = one.number
    return found


def judged(arrays):
    """(which pixels of the output (B * Q, H) have been written, how far these are from float64)."""
    heads, channels = arrays["value"].shape[2:]
    out = arrays["out"].reshape(-1, heads, channels)
    written = ~np.isnan(out).all(-1)
    rows = np.flatnonzero(written.any(-1))
    exact = reference(*(arrays[name] for name in INPUTS), rows=rows).reshape(-1, heads, channels)
    chosen = written[rows]
    return written, float(relative_error(out[rows][chosen], exact[chosen]))


def one(number, row, tree, python):
    """(a row of RESULT, the versions that its kernel was compiled with)."""
    with tempfile.TemporaryDirectory() as folder:
        launch = bind(row, tree, python, Path(folder))
        found = count(row, launch, Path(folder))
    there, here = row["profile"], found["counted"]
    off = {name: 100 * (here[name] / there[name] - 1) for name in ("instructions", "wavefronts", "l2_bytes")}
    more = found["l2_other_half"] - found["l2_twice"]
    off["l2_with_halves"] = 100 * ((here["l2_bytes"] + more) / there["l2_bytes"] - 1)
    off["l1_hit_points"] = here["l1_hit_percent"] - there["l1_hit_percent"]
    told = {name: row[name] for name in ("file", "commit", "workload", "pattern", "variant", "config")}
    recorded = {name: there[name] for name in (*NAMES, "dram_bytes")}
    return {"number": number, **told, "recorded": recorded, **found, "off": off}, launch["versions"]


def measured(python, wanted):
    """Count the rows with these numbers, or all, two at a time, and put them into RESULT."""
    rows = {row["number"]: row for row in json.loads(RESULT.read_text())["rows"]} if RESULT.exists() else {}
    todo = [pair for pair in enumerate(recorded()) if not wanted or pair[0] in wanted]
    with tempfile.TemporaryDirectory() as place, ProcessPoolExecutor(2) as pool:
        trees = {commit: Path(place) / commit for commit in {row["commit"] for _, row in todo}}
        for commit, tree in trees.items():
            check_out(commit, tree)
        jobs = [pool.submit(one, number, row, trees[row["commit"]], python) for number, row in todo]
        for job in as_completed(jobs):
            found, versions = job.result()
            print(json.dumps(found), flush=True)
            rows[found["number"]] = found
            ordered = [rows[number] for number in sorted(rows)]
            save(RESULT, record.document(None, ordered, compiled_with=versions))


def markdown(heads, rows):
    return [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]


def asked_of(row):
    """A row of the second table for one of counted.json: megabytes."""
    w, found = preset(row["workload"]), row["measured"]
    value = 2 * w.batch * w.spatial_size * w.num_heads * w.channels
    numbers = (SECTOR * found["global_sectors"] * (1 - found["l1_hit_percent"] / 100),
               SECTOR * row["l2_sectors"]["l1"], SECTOR * row["l2_sectors"]["fabric"],
               other_half(value, bytes_of(w)))  # fmt: skip
    return [row["workload"], row["variant"], *(f"{number / 1e6:,.1f}" for number in numbers)]


def table():
    """Markdown: how far each count is off, and the median and largest of each column; who asks L2."""
    rows, lines = json.loads(RESULT.read_text())["rows"], []
    columns = "instructions", "wavefronts", "l1_hit_points", "l2_bytes", "l2_with_halves"
    for row in rows:
        conflicts = [f"{row[which]['bank_conflicts']:,.0f}" for which in ("counted", "recorded")]
        off = [f"{row['off'][name]:+.2f}" for name in columns]
        lines.append([row["workload"], row["variant"], row["commit"], *off, " / ".join(conflicts),
                      f"{row['error']:.1e}"])  # fmt: skip
    for what, of in (("median", statistics.median), ("worst", max)):
        found = [f"{of(abs(row['off'][name]) for row in rows):.2f}" for name in columns]
        lines.append([what, "", "", *found, "", ""])
    heads = ("workload", "variant", "commit", "instructions, %", "LSU wavefronts, %", "L1 hits, points",
             "L2 bytes, %", "with L2's halves, %", "bank conflicts: counted / recorded", "error")  # fmt: skip
    asked_by = ("workload", "variant", "MB that L1 lacked", "asked of L2 by SMs", "by its other half",
                "that half, computed")  # fmt: skip
    today = json.loads((RESULT.parent / "counted.json").read_text())["rows"]
    asked = [asked_of(row) for row in today if row["pattern"] == "local(2)"]
    return "\n".join([*markdown(heads, lines), "", *markdown(asked_by, asked)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", nargs="?", choices=("count",))
    parser.add_argument("--python", help="of the environment that compiles")
    parser.add_argument("--rows", default="", help="numbers between commas; all, if there are none")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.step == "count":
        measured(given.python, [int(number) for number in given.rows.split(",") if number])
    if given.table:
        print(table())


if __name__ == "__main__":
    main()

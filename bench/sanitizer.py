"""compute-sanitizer over every variant: memcheck, racecheck, synccheck.

    python bench/sanitizer.py --out bench/results/sanitizer.json

Each tool runs one child process that computes all variants on a small problem and compares them with
the reference. What the tool says in all goes into the file, with its summary line.
"""

import argparse
import re
import subprocess
import sys

import numpy as np

from numba_deform import record, reference, relative_error
from numba_deform.host.gpu import find_gpu
from numba_deform.op import run_numpy
from numba_deform.reference import TOLERANCE
from numba_deform.variants import VARIANTS
from numba_deform.workload import Workload

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
PROBLEM = Workload("sanitizer", batch=2, levels=((20, 31), (10, 16), (5, 8)), num_query=301, num_heads=1,
                   channels=32, num_points=4, pattern="uniform", outside=0.1)  # fmt: skip


def compute_all():
    """What runs under the tool: every variant once, each on a poisoned output."""
    inputs = PROBLEM.generate(seed=1)
    arrays = (
        inputs.value, inputs.spatial_shapes, inputs.level_start_index, inputs.sampling_locations,
        inputs.attention_weights,
    )  # fmt: skip
    want = reference(*arrays)
    for name in VARIANTS:
        out = np.full(want.shape, np.nan, inputs.value.dtype)
        run_numpy(*arrays, name, "gpu", out=out)
        right = relative_error(out, want) < TOLERANCE["float16"]
        print(f"variant {name}: {'right' if right else 'WRONG'}", flush=True)


def check(tool, limit):
    """A row of the result file."""
    command = ["compute-sanitizer", "--tool", tool, sys.executable, __file__, "--compute"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"tool": tool, "error_text": f"stopped after {limit} s"}
    text = done.stdout + done.stderr
    said = re.findall(r"=========\s+(.*SUMMARY.*)", text)
    return {
        "tool": tool,
        "status": done.returncode,
        "right": len(re.findall(r"^variant .*: right", text, re.M)),
        "wrong": len(re.findall(r"^variant .*: WRONG", text, re.M)),
        "summary": said[-1].strip() if said else text[-400:],
        "first": "\n".join(re.findall(r"=========.*", text)[:12]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out")
    parser.add_argument("--limit", type=int, default=150, help="seconds for each tool")
    parser.add_argument("--tools", nargs="*", default=TOOLS)
    parser.add_argument("--compute", action="store_true", help="what runs under the tool")
    options = parser.parse_args()
    if options.compute:
        return compute_all()
    rows = [check(tool, options.limit) for tool in options.tools]
    for row in rows:
        print(row)
    if options.out:
        record.write(options.out, find_gpu(), rows, workload=PROBLEM.describe())


if __name__ == "__main__":
    main()

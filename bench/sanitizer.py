"""compute-sanitizer over every variant, and over every planted fault.

    python bench/sanitizer.py --out bench/results/sanitizer.json
    python bench/sanitizer.py --bugs --out bench/results/sanitizer_bugs.json
    python bench/sanitizer.py --table            # bench/FAULTS.md from the results

Each tool runs one child process that computes all variants on a small problem and compares them with
the reference, or launches one fault; those that hang run in their guarded form, which ends. What the tool says
in all goes into the file, with its summary line, beside what the CPU engine says of a fault.
"""

import argparse
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from bugs import on_cpu

from numba_deform import ms_deform_attn, reference, relative_error
from numba_deform.attention.reference import TOLERANCE
from numba_deform.course.bugs import BUGS
from numba_deform.course.bugs.gpu import serve
from numba_deform.engines.gpu.device import find_gpu
from numba_deform.kernels.registry import VARIANTS
from numba_deform.measure import record
from numba_deform.workloads.workload import Workload

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
PROBLEM = Workload("sanitizer", batch=2, levels=((20, 31), (10, 16), (5, 8)), num_query=301, num_heads=1,
                   channels=32, num_points=4, pattern="uniform", outside=0.1)  # fmt: skip


def compute_all():
    """Compute every variant once, each on a poisoned output: what runs under the tool."""
    inputs = PROBLEM.generate(seed=1)
    arrays = (
        inputs.value, inputs.spatial_shapes, inputs.level_start_index, inputs.sampling_locations,
        inputs.attention_weights,
    )  # fmt: skip
    want = reference(*arrays)
    for name in VARIANTS:
        out = np.full(want.shape, np.nan, inputs.value.dtype)
        ms_deform_attn(*arrays, name, engine="gpu", out=out)
        right = relative_error(out, want) < TOLERANCE["float16"]
        print(f"variant {name}: {'right' if right else 'WRONG'}", flush=True)


def under(tool, arguments, limit):
    """(exit status, what a run of this file under the tool printed); raises subprocess.TimeoutExpired."""
    command = ["compute-sanitizer", "--tool", tool, sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    return done.returncode, done.stdout + done.stderr


def check(tool, limit):
    """A row of the result file: all variants."""
    try:
        status, text = under(tool, ["--compute"], limit)
    except subprocess.TimeoutExpired:
        return {"tool": tool, "error_text": f"stopped after {limit} s"}
    said = re.findall(r"=========\s+(.*SUMMARY.*)", text)
    return {
        "tool": tool,
        "status": status,
        "right": len(re.findall(r"^variant .*: right", text, re.M)),
        "wrong": len(re.findall(r"^variant .*: WRONG", text, re.M)),
        "summary": said[-1].strip() if said else text[-400:],
        "first": "\n".join(re.findall(r"=========.*", text)[:12]),
    }


def check_bug(name, tools, limit):
    """A row of the result file: one planted fault under every tool."""
    row = {"bug": name, "cpu_engine": on_cpu(BUGS[name])}
    for tool in tools:
        try:
            _, text = under(tool, ["--launch", name], limit)
        except subprocess.TimeoutExpired:
            row[tool] = f"no end within {limit} s"
            continue
        said = [line.strip() for line in re.findall(r"=========\s(.*)", text)]
        told = [
            line for line in said if line and not re.match(r"COMPUTE-SANITIZER|.*SUMMARY", line)
        ]
        row[tool] = told[0] if told else "nothing"
    return row


def table():
    """Markdown: for each planted fault what the CPU engine, the GPU and compute-sanitizer say."""
    results = Path(__file__).parent / "results"
    on_gpu, under_tools = (
        {row["bug"]: row for row in json.loads((results / name).read_text())["rows"]}
        for name in ("bugs.json", "sanitizer_bugs.json")
    )
    heads = ("fault", "CPU engine", "H200", "H200, waits bounded", *TOOLS)
    lines = [heads, ["---"] * len(heads)]
    for bug, seen in on_gpu.items():
        bounded = seen["debug"]
        if "report" in seen:
            bounded = f"{seen['report']} at `{seen['source'].partition('#')[0].strip()}`"
        # Of a tool's first line its first sentence: the rest names the kernel.
        said = [re.split(" between | at ", under_tools[bug][tool])[0] for tool in TOOLS]
        said = ["-" if text == "nothing" else text for text in said]
        lines.append((bug, seen["cpu_engine"], seen["gpu"], bounded, *said))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out")
    parser.add_argument("--limit", type=int, default=300, help="seconds for each tool")
    parser.add_argument("--tools", nargs="*", default=TOOLS)
    parser.add_argument("--bugs", action="store_true", help="the planted faults, not the variants")
    parser.add_argument("--compute", action="store_true", help="what runs under the tool")
    parser.add_argument("--table", action="store_true", help="print the table of the results")
    parser.add_argument("--launch", help="what runs under the tool: this planted fault")
    options = parser.parse_args()
    if options.compute:
        return compute_all()
    if options.table:
        return print(table())
    if options.launch:
        bug = BUGS[options.launch]
        print(serve({"name": bug.name, "fixed": False, "step": "launch", "debug": bug.hangs}))
        return
    if options.bugs:
        with ThreadPoolExecutor(12) as pool:
            rows = list(pool.map(lambda name: check_bug(name, options.tools, options.limit), BUGS))
    else:
        with ThreadPoolExecutor(len(options.tools)) as pool:
            rows = list(pool.map(lambda tool: check(tool, options.limit), options.tools))
    for row in rows:
        print(row)
    if options.out:
        more = {} if options.bugs else {"workload": PROBLEM.describe()}
        record.write(options.out, find_gpu(), rows, **more)


if __name__ == "__main__":
    main()

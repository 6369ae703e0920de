"""What a GPU does with every planted fault, beside what the CPU engine says of it.

    python bench/bugs.py --out bench/results/bugs.json

Each is launched twice in a child process of its own: as it is, stopped after 5 s, and in its guarded form,
whose waits are bounded, so that a hang ends in a report.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from numba_deform import SimFault, simulate
from numba_deform.course.bugs import BUGS
from numba_deform.course.bugs.gpu import run_on_gpu
from numba_deform.engines.gpu.device import find_gpu
from numba_deform.measure import record


def on_cpu(bug):
    """The fault's class, or what became of the numbers."""
    launch, kernel = bug.arguments(), bug.kernel(True)
    try:
        simulate(kernel, launch.grid, kernel.threads, launch.args, launch.shared_bytes)
    except SimFault as fault:
        return type(fault).__name__
    return f"{launch.wrong()} of {launch.out.size} elements are wrong"


def on_gpu(bug):
    """The fault's row of the result file."""
    seen = run_on_gpu(bug)
    row = {"bug": bug.name, "gpu": seen.kind, "text": seen.text, "cpu_engine": on_cpu(bug)}
    started = time.perf_counter()
    guarded = run_on_gpu(bug, debug=True)
    row |= {"debug": guarded.kind, "debug_s": round(time.perf_counter() - started, 2)}
    if guarded.fault:
        row |= {
            "report": type(guarded.fault).__name__,
            "line": guarded.fault.where.rpartition("/")[2],
            "source": guarded.fault.source,
            "usable_afterwards": guarded.usable,
        }
    here = f"{Path(__file__).resolve().parents[1]}/"
    return row | {"debug_text": guarded.text.replace(here, "")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    with ThreadPoolExecutor(6) as pool:
        rows = list(pool.map(on_gpu, BUGS.values()))
    for row in rows:
        print(row, flush=True)
    record.write(options.out, find_gpu(), rows)


if __name__ == "__main__":
    main()

"""Launches of many threads as machine code: seconds and memory, with two checkouts of this package in turn.

    python bench/many_threads.py --before ../before --out bench/results/many_threads.json

``plain``: a thread reads a number and writes one. ``block``: the threads of a block hand numbers on through
shared memory, by ``syncthreads`` and a shuffle. Of each number of threads the processor's seconds of the second
launch in a process, and the largest size of that process so far.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from numba_deform.measure import record

THREADS = 1 << 14, 1 << 17, 1 << 19
RUN = """
import json, resource, sys, time
import numpy as np
from numba import cuda, float32
import numba_deform as nd

def plain(x, y):
    i = cuda.grid(1)
    y[i] = 2 * x[i]

def block(x, y):
    tile, i, t = cuda.shared.array(256, float32), cuda.grid(1), cuda.threadIdx.x
    tile[t] = x[i]
    cuda.syncthreads()
    y[i] = nd.shfl_sync_bfly_f32(0xffffffff, tile[(t + 1) % 256], 1)

rows = []
for kernel in plain, block:
    for threads in json.loads(sys.argv[1]):
        x = np.arange(threads, dtype=np.float32)
        for launch in range(2):
            y, began = np.full_like(x, np.nan), time.process_time()
            report = nd.simulate(kernel, threads // 256, 256, (x, y), compiled=True)
            spent = time.process_time() - began
        t = np.arange(threads) % 256
        wanted = 2 * x if kernel is plain else x - t + ((t ^ 1) + 1) % 256
        assert report.compiled and np.array_equal(y, wanted)
        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        rows.append({"kernel": kernel.__name__, "threads": threads, "s": round(spent, 3), "mb": size})
print(json.dumps(rows))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="a checkout of this repository")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    places = {"before": asked.before.resolve(), "after": Path(__file__).resolve().parents[1]}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernels.py")  # the engine asks for the kernels' source
        file.write_text(RUN)
        for form, place in asked.rounds * list(places.items()):
            command = [sys.executable, str(file), json.dumps(THREADS)]
            options = dict(env=os.environ | {"PYTHONPATH": str(place)}, cwd=place, text=True)
            ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, **options)
            for row in json.loads(ended.stdout):
                found.setdefault((row["kernel"], row["threads"]), {}).setdefault(form, []).append(row)
    rows = []
    for (kernel, threads), runs in found.items():
        each = {form: {what: statistics.median(run[what] for run in some) for what in ("s", "mb")}
                for form, some in runs.items()}  # fmt: skip
        rows.append({"kernel": kernel, "threads": threads, **each})
        print(rows[-1], flush=True)
    record.write(asked.out, None, rows, load_average=os.getloadavg(), rounds=asked.rounds)


if __name__ == "__main__":
    main()

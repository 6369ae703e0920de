"""What counting costs: 2048 samples of the seeds' shape on the emulator, and interpreted by the CPU engine.

    python bench/profile_cost.py out.json [VARIANT ...]

Seconds are the least of three runs in turn, without what compiling takes; ``equal``: whether both outputs are
the same bits."""

import sys
import time

import numpy as np

from numba_deform.engines.sass import emulate
from numba_deform.measure import record
from numba_deform.measure.bench import parse_entries
from numba_deform.measure.case import Case
from numba_deform.workloads.presets import preset

VARIANTS = ("direct", "tile", "tma", "persistent", "roles-4-4", "window", "warp-specialized")
ROUNDS = 3


def timed(run):
    started = time.process_time()
    result = run()
    return time.process_time() - started, result


def row(case, name):
    bound, _ = parse_entries(name)[0].bind(case)
    out = np.full(case.problem.out_shape, np.nan, case.arrays[0].dtype)
    args = bound.arguments((*case.arrays, out))
    emulate(bound.kernel, bound.blocks, args, bound.shared_bytes)  # compiles
    ours, engines = [], []
    for _ in range(ROUNDS):
        ours.append(timed(lambda: emulate(bound.kernel, bound.blocks, args, bound.shared_bytes)))
        engines.append(timed(lambda: bound.run(case.arrays, compiled=False)))
    seconds, engine_seconds = (min(time for time, _ in pairs) for pairs in (ours, engines))
    return {"variant": name, "seconds": seconds, "engine_seconds": engine_seconds,
            "instructions": ours[-1][1].counts.total("executed"), "error": float(case.error(out)),
            "equal": bool(out.tobytes() == engines[-1][1][0].tobytes())}  # fmt: skip


def main(path, *names):
    case = Case(preset("seeds", batch=1, num_query=64, pattern="local(2)").generate(1))
    rows = []
    for name in names or VARIANTS:
        rows.append(row(case, name))
        print(rows[-1], flush=True)
        record.write(path, None, rows, samples=2048, clock="process time")


if __name__ == "__main__":
    main(*sys.argv[1:])

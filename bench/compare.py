"""Two checkouts of this package side by side: the same kernels on the same arrays, timed in turn, in one run.

    python bench/compare.py --before ../before --out bench/results/compare.json

Each checkout has a process of its own, which prepares a call of each variant, captures 10 of them into a CUDA
graph, and times a replay when it is told to. The driver asks them in turn, so that a drift of the clocks meets
both. Times are milliseconds a call, medians; ``ratio`` is after / before, the median over the rounds. Needs
PyTorch and a GPU.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

VARIANTS = "direct,tile-cp-async,tma,tma-fastest,persistent-prefetch,phase2,warp-specialized,window"
CALLS, WARM_UP = 10, 3
NAMES = (
    "value", "spatial_shapes", "level_start_index", "sampling_locations", "attention_weights"
)  # fmt: skip


def serve(folder, variants):
    """A checkout's process: a line from stdin names a variant, or says what to save; JSON goes to stdout."""
    import torch

    from numba_deform import prepare

    arrays = {name: np.load(folder / f"{name}.npy") for name in NAMES}
    index = arrays["spatial_shapes"], arrays["level_start_index"]
    value, locations, weights = (torch.from_numpy(arrays[n]).cuda() for n in (NAMES[0], *NAMES[3:]))
    graphs, outs, plans = {}, {}, []
    for name in variants:
        plan = prepare(value, *index, locations, weights, name)
        out = torch.full(plan.problem.out_shape, float("nan"), dtype=value.dtype, device="cuda")
        for _ in range(WARM_UP):
            plan(value, locations, weights, out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(CALLS):
                plan(value, locations, weights, out)
        graph.replay()
        torch.cuda.synchronize()
        graphs[name], outs[name] = graph, out
        plans.append(plan)
    print(json.dumps("ready"), flush=True)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for line in sys.stdin:
        name = line.strip()
        if name.startswith("save "):
            for variant, out in outs.items():
                np.save(Path(name[5:]) / f"{variant}.npy", out.float().cpu().numpy())
            print(json.dumps("saved"), flush=True)
            continue
        start.record()
        graphs[name].replay()
        end.record()
        end.synchronize()
        print(json.dumps(start.elapsed_time(end) / CALLS), flush=True)


class Checkout:
    """The process of one checkout."""

    def __init__(self, root, folder, variants):
        script, options = Path(__file__).resolve(), ("--serve", str(folder), "--variants", variants)
        paths = [str(Path(root).resolve()), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
        self.process = subprocess.Popen(
            [sys.executable, str(script), *options], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, cwd=folder,
        )  # fmt: skip

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of a checkout ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return self.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def compare(before, after, workload, variants, rounds):
    """Rows of one workload: (variant, ms before, ms after, ratio, largest difference of the outputs)."""
    from numba_deform import preset

    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        name, _, pattern = workload.partition(":")
        inputs = preset(name, **({"pattern": pattern} if pattern else {})).generate(seed=1)
        for name in NAMES:
            np.save(folder / f"{name}.npy", getattr(inputs, name))
        sides = [Checkout(root, folder, ",".join(variants)) for root in (before, after)]
        for side in sides:
            side.read()
        times = {name: ([], []) for name in variants}
        for turn in range(rounds):
            for name in variants:
                order = (0, 1) if turn % 2 == 0 else (1, 0)
                for i in order:
                    times[name][i].append(sides[i].ask(name))
        outs = []
        for i, side in enumerate(sides):
            (folder / str(i)).mkdir()
            side.ask(f"save {folder / str(i)}")
            side.close()
            outs.append({name: np.load(folder / str(i) / f"{name}.npy") for name in variants})
    rows = []
    for name in variants:
        ratio = statistics.median(b / a for a, b in zip(*times[name], strict=True))
        difference = float(np.abs(outs[0][name] - outs[1][name]).max())
        rows.append(
            {
                "workload": workload, "variant": name, "before": statistics.median(times[name][0]),
                "after": statistics.median(times[name][1]), "ratio": ratio,
                "difference": difference, "rounds": rounds,
            }
        )  # fmt: skip
        print(
            f"{workload:18}{name:24}{rows[-1]['before']:9.4f}{rows[-1]['after']:9.4f}{ratio:8.4f}"
            f"  outputs differ by {difference:.1e}",
            flush=True,
        )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", help="the other checkout's folder")
    parser.add_argument("--workloads", default="seeds:local(2),detr-encoder-b4", help="presets[:pattern]")
    parser.add_argument("--variants", default=VARIANTS)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    variants = given.variants.split(",")
    if given.serve:
        return serve(Path(given.serve), variants)
    from numba_deform.engines.gpu.device import find_gpu
    from numba_deform.measure import record

    after, rows = Path(__file__).resolve().parents[1], []
    for workload in given.workloads.split(","):
        rows += compare(given.before, after, workload, variants, given.rounds)
    if given.out:
        record.write(given.out, find_gpu(), rows)


if __name__ == "__main__":
    main()

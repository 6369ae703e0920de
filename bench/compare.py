"""Two checkouts of this package side by side: the same kernels on the same arrays, timed in turn, in one run.

    python bench/compare.py --before ../before --out bench/results/compare.json
    python bench/compare.py --before ../before --engine cpu --variants direct,tma,copy-words --rounds 5 --out ..

Each checkout has a process of its own, which prepares a call of each variant, captures 10 of them into a CUDA
graph, and times a replay when it is told to. The driver asks them in turn, so that a drift of the clocks meets
both, and does so twice, with the other process started first: what starts second lies elsewhere in memory,
which alone is worth a percent. Times are milliseconds a call, medians; ``ratio`` is after / before, the median
over the rounds, and the geometric mean of both orders. Needs PyTorch and a GPU; with ``--engine cpu`` neither:
a call is then a whole run on the CPU engine, timed by the process's clock, of the preset quick with 64 queries,
and ``first_before`` and ``first_after`` are what the first one of a process took, which has to infer the
kernel's types. On a GPU a variant may also be ``auto``, or ``gradients``: a step of PyTorch's operator with its
gradients, not captured.
On the CPU it may be one of the small programs of ``engine_programs.py``. With ``--patience 0`` the newer
checkout makes machine code of a kernel at once, in the first run.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

VARIANTS = "direct,tile-cp-async,tma,tma-fastest,persistent-prefetch,phase2,warp-specialized,window"
CALLS, WARM_UP = 10, 3
GRADIENTS = "gradients"
NAMES = (
    "value", "spatial_shapes", "level_start_index", "sampling_locations", "attention_weights"
)  # fmt: skip


def serve(folder, variants, engine, patience):
    """A checkout's process: a line from stdin names a variant, or says what to save; JSON goes to stdout."""
    if patience is not None:
        from numba_deform.engines.cpu.schedules import prepared_launch as cpu_engine

        cpu_engine.PATIENCE = patience
    timer, outs, first = (on_cpu if engine == "cpu" else on_gpu)(folder, variants)
    print(json.dumps(first), flush=True)
    for line in sys.stdin:
        name = line.strip()
        if name.startswith("save "):
            for variant, out in outs.items():
                np.save(Path(name[5:]) / f"{variant}.npy", np.asarray(out, np.float32))
            print(json.dumps("saved"), flush=True)
        else:
            print(json.dumps(timer(name)), flush=True)


def on_cpu(folder, variants):
    """(a function that runs a variant on the CPU engine and returns milliseconds, its outputs by variant, the
    milliseconds of each first run)."""
    from engine_programs import PROGRAMS

    from numba_deform import ms_deform_attn

    arrays, outs = [np.load(folder / f"{name}.npy") for name in NAMES], {}

    def run(name):
        start = time.process_time()  # one thread; other programs may run beside it
        outs[name] = PROGRAMS[name]() if name in PROGRAMS else ms_deform_attn(*arrays, name, engine="cpu")
        return 1e3 * (time.process_time() - start)

    return run, outs, {name: run(name) for name in variants}


def on_gpu(folder, variants):
    """(a function that replays a variant's graph and returns milliseconds a call, its outputs by variant, and
    nothing of first runs)."""
    import torch

    from numba_deform import prepare

    arrays = {name: np.load(folder / f"{name}.npy") for name in NAMES}
    index = arrays["spatial_shapes"], arrays["level_start_index"]
    value, locations, weights = (torch.from_numpy(arrays[n]).cuda() for n in (NAMES[0], *NAMES[3:]))
    graphs, outs, used = {}, {}, {}
    for name in variants:
        if name == GRADIENTS:
            graphs[name] = training_step(value, index, locations, weights)
            outs[name], used[name] = graphs[name].run().float().cpu(), True
            continue
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
        graphs[name], outs[name] = graph, out.float().cpu()
        used[name] = plan, value, locations, weights, out
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def replay(name):
        assert used[name]  # what a graph reads and writes lives as long as it may be replayed
        start.record()
        graphs[name].replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / CALLS

    return replay, outs, {}


def training_step(value, index, locations, weights):
    """PyTorch's operator with its gradients: ``replay()`` makes CALLS steps, ``run()`` one, and returns the
    gradient of the value."""
    from types import SimpleNamespace

    import torch

    from numba_deform.torch import ms_deform_attn

    shapes, starts = (array.tolist() for array in index)
    needed = [array.detach().requires_grad_() for array in (value, locations, weights)]
    slope = None

    def run():
        nonlocal slope
        out = ms_deform_attn(needed[0], shapes, starts, *needed[1:])
        if slope is None:
            slope = torch.randn(out.shape, generator=torch.Generator("cuda").manual_seed(1), device="cuda")
            slope = slope.to(out.dtype)
        return torch.autograd.grad(out, needed, slope)[0]

    for _ in range(WARM_UP):
        run()
    torch.cuda.synchronize()
    return SimpleNamespace(run=run, replay=lambda: [run() for _ in range(CALLS)] and None)


class Checkout:
    """The process of one checkout."""

    def __init__(self, root, folder, variants, engine, patience):
        script = Path(__file__).resolve()
        options = ["--serve", str(folder), "--variants", variants, "--engine", engine]
        options += [] if patience is None else ["--patience", str(patience)]
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


def timed(folder, roots, first, variants, rounds, engine, outs, patience):
    """(ms before, ms after) of each round by variant, with ``roots[first]``'s process started first; and the ms
    of first runs by variant, before and after."""
    sides, firsts = [None, None], [None, None]
    for i in (first, 1 - first):
        sides[i] = Checkout(roots[i], folder, ",".join(variants), engine, patience if i else None)
        firsts[i] = sides[i].read()
    times = {name: [] for name in variants}
    for turn in range(rounds):
        for name in variants:
            pair = [0.0, 0.0]
            for i in (0, 1) if turn % 2 == 0 else (1, 0):
                pair[i] = sides[i].ask(name)
            times[name].append(tuple(pair))
    for i, side in enumerate(sides):
        (folder / str(i)).mkdir(exist_ok=True)
        side.ask(f"save {folder / str(i)}")
        side.close()
        outs[i].update({name: np.load(folder / str(i) / f"{name}.npy") for name in variants})
    return times, firsts


def compare(before, after, workload, variants, rounds, engine, patience=None):
    """Rows of one workload, one a variant: ms before and after, their ratio, how far the outputs differ."""
    from numba_deform import preset

    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        name, _, pattern = workload.partition(":")
        more = ({"pattern": pattern} if pattern else {}) | ({"num_query": 64} if engine == "cpu" else {})
        inputs = preset(name, **more).generate(seed=1)
        for name in NAMES:
            np.save(folder / f"{name}.npy", getattr(inputs, name))
        times, outs = {name: ([], []) for name in variants}, [{}, {}]
        for first in (0, 1):
            pairs_of, firsts = timed(folder, (before, after), first, variants, rounds, engine, outs, patience)
            for name, pairs in pairs_of.items():
                times[name][first].extend(pairs)
    rows = []
    for name in variants:
        # a process that starts second has other addresses: each order gives a ratio, and neither counts more
        ratios = [statistics.median(b / a for a, b in pairs) for pairs in times[name]]
        pairs = [*times[name][0], *times[name][1]]
        difference = float(np.abs(outs[0][name] - outs[1][name]).max())
        rows.append(
            {
                "workload": workload, "variant": name, "before": statistics.median(a for a, _ in pairs),
                "after": statistics.median(b for _, b in pairs), "ratio": statistics.geometric_mean(ratios),
                "ratio_before_first": ratios[0], "ratio_after_first": ratios[1],
                "difference": difference, "rounds": rounds,
            } | {f"first_{side}": f[name] for side, f in zip(("before", "after"), firsts, strict=True) if f}
        )  # fmt: skip
        print(
            f"{workload:18}{name:24}{rows[-1]['before']:9.4f}{rows[-1]['after']:9.4f}{rows[-1]['ratio']:8.4f}"
            f" ({ratios[0]:.4f}, {ratios[1]:.4f})  outputs differ by {difference:.1e}",
            flush=True,
        )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", help="the other checkout's folder")
    parser.add_argument("--workloads", help="presets[:pattern]; default: quick on the CPU engine, else two")
    parser.add_argument("--engine", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--variants", default=VARIANTS)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--patience", type=float, help="seconds before the CPU engine makes machine code")
    parser.add_argument("--out")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    variants = given.variants.split(",")
    if given.serve:
        return serve(Path(given.serve), variants, given.engine, given.patience)
    after, rows = Path(__file__).resolve().parents[1], []
    sys.path.insert(0, str(after))
    from numba_deform.engines.gpu.device import gpu_or_none
    from numba_deform.measure import record

    workloads = given.workloads or ("quick" if given.engine == "cpu" else "seeds:local(2),detr-encoder-b4")
    for workload in workloads.split(","):
        rows += compare(given.before, after, workload, variants, given.rounds, given.engine, given.patience)
    if given.out:
        record.write(given.out, gpu_or_none(), rows)


if __name__ == "__main__":
    main()

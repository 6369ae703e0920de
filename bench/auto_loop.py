"""A loop of random calls of ``auto``, each beside ``direct``: how much slower it ever is, and whether equal
arguments give equal bits, whatever was called before.

    python bench/auto_loop.py --out bench/results/auto_loop.json

Shapes, types and patterns of samples are mixed, and half of the calls are captured into a CUDA graph, some of
them before anything was called with their arguments. Then both are timed in graphs of their own, whose replays
take turns: microseconds of the GPU a call, medians, and the median of the ratios. Needs PyTorch and a GPU.
"""

import argparse
import statistics
from pathlib import Path

import numpy as np
import torch

from numba_deform import ms_deform_attn, preset
from numba_deform.engines.gpu.device import find_gpu
from numba_deform.measure import record

SHAPES = ("detr-encoder", "detr-encoder-b4", "mask2former", "bevformer-temporal", "rtdetr-decoder", "seeds")
PATTERNS = ("seed", "uniform", "local(0.5)", "local(2)", "local(8)")
DTYPES = ("float16", "float16", "bfloat16", "float32")
KINDS, CALLED = 30, 5  # kinds of calls that the loop draws from; calls of a graph that is timed


class Kind:
    """The arguments of a call, on the GPU."""

    FEWER = {"seeds": {"batch": 12}}  # so that it is generated in seconds

    def __init__(self, name, dtype, pattern, seed):
        self.names = {"workload": name, "dtype": dtype, "pattern": pattern}
        inputs = preset(name, dtype=dtype, pattern=pattern, **self.FEWER.get(name, {})).generate(seed)
        self.index = inputs.spatial_shapes, inputs.level_start_index
        arrays = inputs.value, inputs.sampling_locations, inputs.attention_weights
        self.value, self.locations, self.weights = (_tensor(array) for array in arrays)
        batch, queries, heads = self.locations.shape[:3]
        shape = (batch, queries, heads * self.value.shape[-1])
        self.out = torch.empty(shape, dtype=self.value.dtype, device="cuda")
        self.bits, self.graphs = None, {}

    def call(self, variant):
        ms_deform_attn(self.value, *self.index, self.locations, self.weights, variant, out=self.out)

    def graph(self, variant, calls=CALLED):
        """A graph of so many calls; the same one each time."""
        if (variant, calls) not in self.graphs:
            graph = self.graphs[variant, calls] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(calls):
                    self.call(variant)
        return self.graphs[variant, calls]

    def run(self, captured):
        """Whether a call of ``auto`` gives the bits that the first one gave."""
        self.out.fill_(float("nan"))
        if captured:
            self.graph("auto", 1).replay()
        else:
            self.call("auto")
        torch.cuda.synchronize()
        bits = self.out.view(torch.uint8).clone()
        if self.bits is None:
            self.bits = bits
        return torch.equal(bits, self.bits)

    def error(self):
        """How far the last output is from that of ``direct``, relative to its size."""
        got = self.out.double()
        self.call("direct")
        want = self.out.double()
        return float((got - want).norm() / want.norm())

    def time(self, rounds):
        """(microseconds of auto, of direct, median of their ratios)."""
        pairs = []
        for turn in range(rounds):
            order = ("auto", "direct") if turn % 2 else ("direct", "auto")
            times = {variant: replayed(self.graph(variant)) for variant in order}
            pairs.append((times["auto"], times["direct"]))
        auto, direct = (statistics.median(column) for column in zip(*pairs, strict=True))
        return auto, direct, statistics.median(a / b for a, b in pairs)


def _tensor(array):
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).cuda().bfloat16()
    return torch.from_numpy(array).cuda()


def replayed(graph, calls=CALLED):
    """Microseconds a call of a replay of a graph of so many."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return 1e3 * start.elapsed_time(end) / calls


def loop(calls, rounds, seed):
    """A row for each call."""
    rng, kinds, rows = np.random.default_rng(seed), {}, []
    chosen = [tuple(rng.choice(options) for options in (SHAPES, DTYPES, PATTERNS)) for _ in range(KINDS)]
    for number in range(calls):
        key, captured = chosen[rng.integers(KINDS)], bool(rng.integers(2))
        known = key in kinds
        kind = kinds[key] = kinds.get(key) or Kind(*map(str, key), seed)
        same, error = kind.run(captured), kind.error()
        auto, direct, ratio = kind.time(rounds)
        row = {"call": number, **kind.names, "captured": captured, "seen_before": known, "same_bits": same,
               "error": error, "auto_us": auto, "direct_us": direct, "ratio": ratio}  # fmt: skip
        rows.append(row)
        print(*(f"{value:.4g}" if isinstance(value, float) else value for value in row.values()), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    gpu = find_gpu()
    rows = loop(options.calls, options.rounds, options.seed)
    worst = max(rows, key=lambda row: row["ratio"])
    summary = {"worst": worst["ratio"], "same_bits": all(row["same_bits"] for row in rows),
               "right": all(row["error"] < 0.02 for row in rows)}  # fmt: skip
    record.write(options.out, gpu, rows, **summary, unit="us")
    print(summary)


if __name__ == "__main__":
    main()

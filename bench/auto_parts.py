"""What the two launches of ``auto`` take, each by itself: microseconds of the GPU.

    python bench/auto_parts.py --out bench/results/auto_parts.json

A row is a workload with near samples, local(2), or far ones, uniform:

    direct        by itself
    window        near: by itself, without a limit, so that it counts nothing
    first         the launch of window with its limit; far, it leaves the work
    second_idle   near: the launch of the gated direct by itself, with nothing to do
    auto          both launches, one after the other

Times are medians of graphs of 20 such launches, replayed in turn. Needs PyTorch and a GPU.
"""

import argparse
import functools
import statistics
from pathlib import Path

import numpy as np
import torch
from auto_loop import replayed
from cuda.core import Stream

from numba_deform import preset
from numba_deform.attention import auto
from numba_deform.attention.bind import Bound, OnGpu
from numba_deform.attention.checks import problem_of
from numba_deform.engines.gpu.device import DeviceArray, find_gpu
from numba_deform.engines.gpu.launch import launch
from numba_deform.kernels.direct import GATE_WORDS
from numba_deform.kernels.registry import variant
from numba_deform.measure import record

CALLS = [("detr-encoder", "float16"), ("detr-encoder-b4", "float16"), ("mask2former", "float16"),
         ("detr-encoder", "bfloat16"), ("mask2former", "bfloat16"), ("detr-encoder", "float32")]  # fmt: skip
IN_A_GRAPH, ROUNDS = 20, 11


def launcher(gpu, bound, on_gpu, gate):
    """A function of a stream that launches a Bound."""
    extra = {"gate": gate} if getattr(bound.config, "is_gated", False) else {}
    arguments = bound.arguments(on_gpu.addresses, extra=extra)
    return functools.partial(launch, gpu, bound.kernel, bound.blocks, arguments, bound.shared_bytes)


def graph_of(launches):
    """A graph of these launches, IN_A_GRAPH times."""
    stream = torch.cuda.Stream()
    own = Stream.from_handle(stream.cuda_stream)
    for run in launches:
        run(own)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(IN_A_GRAPH):
            for run in launches:
                run(own)
    return graph


def row_of(gpu, name, dtype, pattern):
    inputs = preset(name, dtype=dtype, pattern=pattern).generate(seed=1)
    problem, near = problem_of(inputs), pattern != "uniform"
    arrays = inputs.value, inputs.sampling_locations, inputs.attention_weights
    on_gpu = OnGpu(gpu, problem, [np.ascontiguousarray(array) for array in arrays])
    idle, gate = (DeviceArray.of(gpu, np.zeros(GATE_WORDS, np.uint32)) for _ in range(2))
    first, second = auto.launches(gpu, problem)
    alone = {chosen: variant(chosen) for chosen in ("direct", "window")}
    alone = {c: Bound(problem, v, v.configure(problem.constants), gpu) for c, v in alone.items()}
    run = functools.partial(launcher, gpu, on_gpu=on_gpu, gate=gate)
    parts = {"direct": [run(alone["direct"])], "first": [run(first)], "auto": [run(first), run(second)]}
    if near:
        parts |= {"window": [run(alone["window"])], "second_idle": [run(second, gate=idle)]}
    graphs, times = {part: graph_of(launches) for part, launches in parts.items()}, {part: [] for part in parts}
    for turn in range(ROUNDS):
        for part in graphs if turn % 2 else reversed(graphs):
            times[part].append(replayed(graphs[part], IN_A_GRAPH))
    medians = {f"{part}_us": statistics.median(found) for part, found in times.items()}
    return {"workload": name, "dtype": dtype, "pattern": pattern, **medians}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    gpu, rows = find_gpu(), []
    for name, dtype in CALLS:
        for pattern in ("local(2)", "uniform"):
            rows.append(row_of(gpu, name, dtype, pattern))
            print(rows[-1], flush=True)
    record.write(options.out, gpu, rows, unit="us")


if __name__ == "__main__":
    main()

"""What a sample costs that no window holds: cycles of an SM, for ``OUTSIDE_CYCLES`` of attention/auto.py.

    python bench/outside.py --out bench/results/outside.json

``window`` without a limit is timed on samples that spread more and more, beside ``direct``. A row's ``cycles``
are what it takes longer than on the samples that spread least, over how many more samples lie outside by its
own probes. Needs PyTorch and a GPU.
"""

import argparse
from pathlib import Path
from statistics import median

from auto_loop import Kind, replayed

from numba_deform import preset
from numba_deform.attention.checks import problem_of
from numba_deform.engines.gpu.device import find_gpu
from numba_deform.kernels.registry import variant
from numba_deform.kernels.window_fit import look, probed_samples
from numba_deform.measure import record
from numba_deform.measure.bench import clock

CALLS = [("detr-encoder", "float16"), ("detr-encoder", "bfloat16"), ("detr-encoder", "float32"),
         ("mask2former", "float16"), ("detr-encoder-b4", "float16"), ("seeds", "float16")]  # fmt: skip
SPREADS = ("local(1)", "local(2)", "local(3)", "local(4)", "local(5)")


def share_outside(name, dtype, pattern, seed):
    """The share of the samples that ``window`` looks at which its windows do not hold."""
    inputs = preset(name, dtype=dtype, pattern=pattern, **Kind.FEWER.get(name, {})).generate(seed)
    problem, window = problem_of(inputs), variant("window")
    fitted = window.fit(problem, window.configure(problem.constants))
    return look(problem, fitted, inputs.sampling_locations)[1] / probed_samples(problem)


def rows_of(gpu, name, dtype, rounds, seed):
    """A row for each spread."""
    first = None
    for pattern in SPREADS:
        kind = Kind(name, dtype, pattern, seed)
        samples = kind.weights.numel() / gpu.sms
        times = {v: median(replayed(kind.graph(v)) for _ in range(rounds)) for v in ("direct", "window")}
        row = {**kind.names, "outside": share_outside(name, dtype, pattern, seed), "samples_of_an_sm": samples,
               **{f"{v}_us": time for v, time in times.items()}}  # fmt: skip
        first = first or row
        more = (row["outside"] - first["outside"]) * samples
        if more > 0:
            row["cycles"] = 1e3 * clock(gpu)["ghz"] * (row["window_us"] - first["window_us"]) / more
        print(*(f"{value:.4g}" if isinstance(value, float) else value for value in row.values()), flush=True)
        yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    gpu, rows = find_gpu(), []
    for name, dtype in CALLS:
        for row in rows_of(gpu, name, dtype, options.rounds, options.seed):
            rows.append(row)
            record.write(options.out, gpu, rows, unit="us", clock_ghz=clock(gpu)["ghz"])


if __name__ == "__main__":
    main()

"""Times of configurations of the backward kernels on a GPU, in turn in one run, without clearing or rounding.

    python bench/gradient_configs.py --out bench/results/gradient_configs.json [CASE ..]

Medians of batches of LAUNCHES. ``apart`` are the largest differences to what ``backward`` gives for value,
locations and weights, over their largest element. Needs PyTorch.
"""

import argparse
import statistics
from pathlib import Path

import torch

from numba_deform import preset
from numba_deform.attention import gradients
from numba_deform.attention.checks import check_problem
from numba_deform.engines.gpu.device import find_gpu
from numba_deform.measure import record

LAUNCHES, ROUNDS, EXPONENT = 8, 5, 6
CASES = {"detr4": "detr-encoder-b4", "seeds": "seeds", "detr1": "detr-encoder"}
NEAR = "backward-window"
CONFIGS = [
    ("backward", {}), (NEAR, {}), (NEAR, {"blocks": 3}), (NEAR, {"warps": 12}), (NEAR, {"warps": 16}),
    (NEAR, {"cell": (12, 16)}), ("backward", {"sums": "fixed"}), (NEAR, {"sums": "fixed"}),
]  # fmt: skip


def rows_of(gpu, case, pattern):
    """A row for each of CONFIGS."""
    inputs = preset(CASES[case], dtype="float16", pattern=pattern).generate(seed=1)
    arrays = inputs.value, inputs.sampling_locations, inputs.attention_weights
    problem = check_problem(arrays[0], inputs.spatial_shapes, inputs.level_start_index, *arrays[1:])
    value, locations, weights = (torch.from_numpy(array).cuda() for array in arrays)
    given = torch.randn(problem.out_shape, device="cuda").half()
    exponent = gradients.fixed_exponent(problem, EXPONENT)
    scale, rows, runs, first = torch.full((1,), 2.0**exponent, device="cuda"), [], [], None
    for kernel, parameters in CONFIGS:
        sums = parameters.get("sums", "fp32")
        shape, _ = gradients.sums_shape(problem, sums)
        total = torch.zeros(shape, dtype=torch.int64 if sums == "fixed" else torch.float32, device="cuda")
        found = [total, *(torch.full_like(tensor, float("nan")) for tensor in (locations, weights))]
        bound = gradients.bound(problem, gpu, kernel, **parameters)
        extra = gradients.operands(*(tensor.data_ptr() for tensor in (given, *found, scale)))
        run = bound.launcher((*(tensor.data_ptr() for tensor in (value, locations, weights)), 0), extra=extra)
        run()
        torch.cuda.synchronize()
        if sums == "fixed":
            found[0] = (total.transpose(-1, -2).double() / 2.0**exponent).reshape(value.shape)
        numbers = [tensor.float().clone() for tensor in found]
        first = first or numbers
        apart = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(numbers, first, strict=True)]
        row = {"case": case, "pattern": pattern, "kernel": kernel, "parameters": parameters}
        rows.append({**row, "apart": apart})
        runs.append((run, extra, found))  # which keeps the tensors
    times = [[] for _ in runs]
    for _ in range(ROUNDS):
        for (run, *_), own in zip(runs, times, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(LAUNCHES):
                run()
            end.record()
            torch.cuda.synchronize()
            own.append(start.elapsed_time(end) / LAUNCHES)
    for row, own in zip(rows, times, strict=True):
        row["ms"] = statistics.median(own)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--patterns", default="local(2)")
    parser.add_argument("cases", nargs="*", default=[*CASES])
    given = parser.parse_args()
    gpu = find_gpu(0)
    pairs = [(case, pattern) for case in given.cases for pattern in given.patterns.split(",")]
    rows = [row for pair in pairs for row in rows_of(gpu, *pair)]
    record.write(given.out, gpu, rows, launches=LAUNCHES, rounds=ROUNDS)


if __name__ == "__main__":
    main()

"""direct and tma at a workload's full size: error of every output, times interleaved in one run.

    python bench/first_kernels.py --out bench/results/first_kernels.json

Each variant runs once on a poisoned output and is compared, whole, with float64 grid_sample (PyTorch on
the GPU); then all variants are timed in turn, round after round, so that a drift hits all alike. The
inputs and the output together are several times the L2, so nothing stays cached between rounds.
"""

import argparse

import record
from rich.console import Console
from rich.table import Table

from numba_deform import preset
from numba_deform.host.gpu import DeviceArray, find_gpu, launch, time_launches
from numba_deform.op import check_problem, gpu_launcher
from numba_deform.variants import variant

VARIANTS = [
    ("direct", {}, False),
    ("direct", {"arithmetic": "fp32"}, False),
    ("tma", {"stages": 1}, False),
    ("tma", {"stages": 2}, False),
    ("tma", {"stages": 3}, False),
    ("tma", {"stages": 4}, False),
    ("tma", {"stages": 2, "tensormap_fence": False}, False),
    ("tma", {"stages": 2}, True),
]


def parse(text):
    """``tma:stages=2,lanes=8`` with ``linked`` among the parameters for linked PTX."""
    name, _, rest = text.partition(":")
    parameters, linked = {}, False
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key == "linked":
            linked = True
        else:
            parameters[key] = int(value) if value.lstrip("-").isdigit() else value
    return name, parameters, linked


def float64_reference(inputs):
    """grid_sample in float64, one level at a time; (B, Q, H*C) on the GPU."""
    import torch

    def tensor(array):
        return torch.from_numpy(array).cuda()

    batch, _, heads, channels = inputs.value.shape
    _, queries, _, levels, _, _ = inputs.sampling_locations.shape
    value = tensor(inputs.value)
    locations, weights = tensor(inputs.sampling_locations), tensor(inputs.attention_weights)
    total = torch.zeros(batch * heads, channels, queries, dtype=torch.float64, device="cuda")
    for level, (height, width) in enumerate(inputs.spatial_shapes.tolist()):
        start = int(inputs.level_start_index[level])
        plane = value[:, start : start + height * width].permute(0, 2, 3, 1)
        plane = plane.reshape(batch * heads, channels, height, width).double()
        grid = 2 * locations[:, :, :, level].double() - 1
        grid = grid.permute(0, 2, 1, 3, 4).reshape(batch * heads, queries, -1, 2)
        sampled = torch.nn.functional.grid_sample(
            plane, grid, mode="bilinear", padding_mode="zeros", align_corners=False
        )
        w = (
            weights[:, :, :, level]
            .double()
            .permute(0, 2, 1, 3)
            .reshape(batch * heads, 1, queries, -1)
        )
        total += (sampled * w).sum(-1)
        del sampled
    return total.reshape(batch, heads * channels, queries).transpose(1, 2)


def whole_error(target, reference):
    """||out - ref|| / ||ref|| over every element; NaN if one was not written."""
    import torch

    out = torch.from_numpy(target.to_numpy()).cuda().double()
    return float((out - reference).norm() / reference.norm())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--workload", default="seeds")
    parser.add_argument("--patterns", nargs="*", default=["seed", "uniform", "local(2)"])
    parser.add_argument(
        "--variants", nargs="*", help="such as direct:lanes=4 tma:stages=2,linked=1"
    )
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    chosen_variants = [parse(v) for v in options.variants] if options.variants else VARIANTS
    gpu, rows = find_gpu(), []
    for pattern in options.patterns:
        workload = preset(options.workload, pattern=pattern)
        inputs = workload.generate(seed=1)
        problem = check_problem(
            inputs.value, inputs.spatial_shapes, inputs.level_start_index,
            inputs.sampling_locations, inputs.attention_weights, inputs.padded,
        )  # fmt: skip
        reference = float64_reference(inputs)
        operands = [
            DeviceArray.of(gpu, a)
            for a in (inputs.value, inputs.sampling_locations, inputs.attention_weights)
        ]
        target = DeviceArray(gpu, problem.out_shape, inputs.value.dtype)
        runs = []
        for name, parameters, linked in chosen_variants:
            chosen = variant(name)
            config = chosen.configure(problem.constants, **parameters)
            run = gpu_launcher(
                gpu, problem, chosen, config, *(a.address for a in operands), target.address
            )
            if linked:
                kernel = chosen.kernel(config, problem.constants).with_linked_ptx()
                _, _, grid, args, shared, stream = (*run.args[:1], *run.args[1:])

                def run(kernel=kernel, grid=grid, args=args, shared=shared, stream=stream):
                    launch(gpu, kernel, grid, args, shared, stream)

            target.fill(0xFF)
            run()
            error = whole_error(target, reference)
            label = " ".join([name, *(f"{k}={v}" for k, v in parameters.items())])
            runs.append((label + " linked" * linked, run, error))
        times = {label: [] for label, _, _ in runs}
        for _ in range(options.repeats):
            for label, run, _ in runs:
                times[label] += time_launches(gpu, run, repeats=1, warm_up=1)
        bytes_moved = sum(a.nbytes for a in operands) + target.nbytes
        for label, _, error in runs:
            figures = record.spread(times[label])
            seconds = figures["median_ms"] / 1e3
            rows.append(
                {
                    "pattern": pattern,
                    "variant": label,
                    "error": error,
                    **figures,
                    "gigabytes_per_second": bytes_moved / seconds / 1e9,
                    "gigatiles_per_second": problem.samples / seconds / 1e9,
                }
            )
        del reference
    record.write(options.out, gpu, rows, workload=workload.describe())
    show(rows)


def show(rows):
    table = Table("pattern", "variant", "ms", "min", "error", "Gtiles/s")
    for row in rows:
        table.add_row(
            row["pattern"],
            row["variant"],
            f"{row['median_ms']:.3f}",
            f"{row['min_ms']:.3f}",
            f"{row['error']:.1e}",
            f"{row['gigatiles_per_second']:.1f}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()

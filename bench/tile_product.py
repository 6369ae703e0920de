"""The tile products of the course on a GPU's tensor cores, by mma.sync and by wgmma, beside cuBLAS.

    python bench/tile_product.py --out bench/results/tile_product.json
    python bench/tile_product.py --size 4096,4096,4096 --out ..
    python bench/tile_product.py --counters --out ..     # and what Nsight Compute counts in a launch of each

C = A B^T: A (m, k), B (n, k) and C (m, n) in fp16, sums in float32. Each configuration of the kernels, and
``torch.mm``, is captured ten times into a CUDA graph, each time on matrices of its own, so that none is found
in L2. The graphs are replayed in turn, in another order each round, so that a drift of the clocks meets all.
Times are milliseconds a product, medians; ``ratio`` is the share of cuBLAS's rate, the median over the rounds.
Errors are against float64. ``tensor_percent`` is the share of the cycles, of SMs that have work, in which their
tensor cores are busy. Needs a Hopper GPU and PyTorch.
"""

import argparse
import dataclasses
import os
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from numba_deform.compiler import built
from numba_deform.course import tile_product, warpgroup_product
from numba_deform.course.tile_product import TileProduct
from numba_deform.course.warpgroup_product import WarpgroupProduct
from numba_deform.device.limits import HOPPER
from numba_deform.engines.gpu.device import DeviceArray, GpuMissing, find_gpu, require
from numba_deform.engines.gpu.launch import ArgumentBlock, profile_launch, ready_launch
from numba_deform.measure import counters, record

ROOT = Path(__file__).resolve().parents[1]
CUBLAS = "cuBLAS"
CONFIGURATIONS = {
    "128x256": TileProduct(),
    "128x256, three stages": TileProduct(stages=3),
    "128x128": TileProduct(128, 128, 32, 64, 4, 0),
    "128x128, four large warps": TileProduct(128, 128, 64, 64, 3, 0),
    "wgmma, 128x256": WarpgroupProduct(),
    "wgmma, 128x256, three stages": WarpgroupProduct(stages=3),
    "wgmma, 128x128": WarpgroupProduct(128, 128),
    "wgmma, 128x128, six stages": WarpgroupProduct(128, 128, stages=6),
    "wgmma, 192x128": WarpgroupProduct(192, 128, stages=5, consumer_registers=152),
}
BUILD = {TileProduct: tile_product.build, WarpgroupProduct: warpgroup_product.build}
SETS, WARM_UP, ROUNDS = 10, 10, 60
METRICS = {
    "cycles": "sm__cycles_elapsed.max",
    "tensor_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "tensor_percent_elapsed": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "tensor_instructions": "sm__inst_executed_pipe_tensor.sum",
    "issue_percent": "sm__inst_issued.avg.pct_of_peak_sustained_active",
    "wavefronts_percent": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "l2_bytes": "lts__t_bytes.sum",
    "dram_bytes": "dram__bytes.sum",
}
"""What is counted: name in the result -> Nsight Compute's metric."""
TOLERANCE = 1e-3  # relative, of fp16 results with float32 sums


def matrices(m, n, k):
    """Matrices of their own for each product of a graph: A and B random, C of NaN."""
    import torch

    torch.manual_seed(1)
    random = {"dtype": torch.float16, "device": "cuda"}
    return [
        SimpleNamespace(
            a=torch.randn(m, k, **random), b=torch.randn(n, k, **random),
            c=torch.full((m, n), torch.nan, **random),
        )  # fmt: skip
        for _ in range(SETS)
    ]


def launches(gpu, config, sets, size):
    """A function ``run(stream)`` for each of the ``sets``, which launches the kernel on it."""
    kernel, (grid, dynamic, behind) = built(BUILD[type(config)], config), config.launch(*size)
    runs = []
    for one in sets:
        maps = DeviceArray.of(gpu, config.maps(one.a, one.b, one.c).encode_into_host())
        runs.append(ready_launch(gpu, kernel, grid, dynamic, ArgumentBlock(kernel, (maps, *behind))))
    return runs


def products_of(gpu, size, sets):
    """{name: the functions of a stream that make the products of ``sets``}"""
    import torch

    products = {CUBLAS: [lambda _, s=s: torch.mm(s.a, s.b.T, out=s.c) for s in sets]}
    return products | {name: launches(gpu, config, sets, size) for name, config in CONFIGURATIONS.items()}


def captured(products):
    """A graph of these functions of a stream's handle, which have run before."""
    import torch

    for product in products:
        product(torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for product in products:
            product(torch.cuda.current_stream().cuda_stream)
    return graph


def error_of(one):
    """The relative error of C, in the norm; NaN where something has not been written."""
    exact = one.a.double() @ one.b.double().T
    return ((one.c.double() - exact).norm() / exact.norm()).item()


def timed(graphs):
    """{name: milliseconds a product in each round}"""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times, names = {name: [] for name in graphs}, list(graphs)
    for turn in range(WARM_UP + ROUNDS):
        for i in range(len(names)):
            name = names[(turn + i) % len(names)]
            start.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            if turn >= WARM_UP:
                times[name].append(start.elapsed_time(end) / SETS)
    return times


def measure(gpu, size):
    """The rows of the result: cuBLAS's first."""
    import torch

    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    sets = matrices(*size)
    products = products_of(gpu, size, sets)  # they keep the tensor maps, which the graphs read
    graphs, errors = {name: captured(each) for name, each in products.items()}, {}
    for name, graph in graphs.items():
        for one in sets:
            one.c.fill_(torch.nan)
        graph.replay()
        errors[name] = max(map(error_of, sets))
    times = timed(graphs)
    m, n, k = size
    rows = []
    for name, each in times.items():
        shares = [theirs / ours for theirs, ours in zip(times[CUBLAS], each, strict=True)]
        row = {"name": name, **record.spread(each), "error": errors[name], "ratio": statistics.median(shares)}
        row["tflops"] = 2e-9 * m * n * k / row["median_ms"]
        if name in CONFIGURATIONS:
            row["configuration"] = dataclasses.asdict(CONFIGURATIONS[name])
        rows.append(row)
    return rows


def count_all(size):
    """{name: {counter: number}} of one launch of each product, by Nsight Compute in a child process."""
    metrics = ",".join(METRICS.values())
    command = [counters.find_ncu(), *counters.OPTIONS, "--metrics", metrics, sys.executable, __file__]
    command += ["--serve", "--size", ",".join(map(str, size)), "--out", os.devnull]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    kernels = counters.parse(done.stdout)
    numbers = [{k: float(row[m].replace(",", "")) for k, m in METRICS.items()} for row in kernels]
    return dict(zip((CUBLAS, *CONFIGURATIONS), numbers, strict=True))


def serve(gpu, size):
    """What runs under Nsight Compute: each product twice, of which it counts the second."""
    import torch

    stream = torch.cuda.current_stream().cuda_stream
    for first, second in products_of(gpu, size, matrices(*size)[:2]).values():
        first(stream)
        profile_launch(gpu, lambda run=second: run(stream))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--size", default="2048,2048,2048", help="m,n,k; n and k multiples of 8")
    parser.add_argument("--counters", action="store_true", help="count by Nsight Compute, too")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    size = tuple(map(int, options.size.split(",")))
    try:
        gpu = find_gpu()
        require(gpu, HOPPER, "the tile product")
        import torch  # noqa: F401
    except (GpuMissing, ImportError) as error:
        sys.exit(f"nothing was measured: {error}")
    if options.serve:
        return serve(gpu, size)
    rows = measure(gpu, size)
    counts = count_all(size) if options.counters else {}
    for row in rows:
        row |= counts.get(row["name"], {})
    record.write(options.out, gpu, rows, size=size, sets=SETS, unit="ms")
    for row in rows:
        print(f"{row['name']:28} {1e3 * row['median_ms']:8.1f} us {row['tflops']:7.1f} TFLOP/s "
              f"{row['ratio']:6.3f} of cuBLAS   error {row['error']:.1e}   "
              f"tensor cores busy {row.get('tensor_percent', float('nan')):.0f} %")  # fmt: skip
    return 0 if all(row["error"] < TOLERANCE for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""The course's FlashAttention on a GPU beside PyTorch's, by its three ways, and Triton's.

    python bench/attention.py --out bench/results/attention.json

softmax(Q K^T / 8) V of heads of 64 channels, fp16, no mask: configurations of ``course.pipelines.attention``
(by, stages, groups of 64 queries a block), PyTorch's scaled_dot_product_attention by FlashAttention and by
cuDNN, and flex_attention, which is a kernel of Triton's. All compute from the same Q, K and V and are timed in
turn, in another order each round, several launches between two events. Times are milliseconds a launch,
medians, and ``ratio`` is the time divided by that of the fastest of the others in the same round. Errors are
against float64 on a head. Needs a Hopper GPU and PyTorch.
"""

import argparse
import statistics
import sys

from numba_deform.course.pipelines.attention import SIDE, attention
from numba_deform.engines.gpu.device import DeviceArray, find_gpu
from numba_deform.engines.gpu.launch import ArrayArgument, launch
from numba_deform.engines.tensormap import TensorMap, TensorMapArray
from numba_deform.measure import record

CONFIGURATIONS = [
    dict(by=by, stages=stages, groups=groups)
    for by in ("mma", "wgmma") for stages, groups in ((2, 1), (2, 2), (3, 2), (2, 4))
]  # fmt: skip
LAUNCHES, WARM_UP, ROUNDS = 5, 3, 30


def of_torch(q, k, v):
    """{name: a function that returns the output}"""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def by(backend):
        def run():
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v)

        return run

    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention)
    return {
        "SDPA, FlashAttention": by(SDPBackend.FLASH_ATTENTION),
        "SDPA, cuDNN": by(SDPBackend.CUDNN_ATTENTION),
        "flex_attention, Triton": lambda: compiled(q, k, v),
    }


def ours(gpu, config, q, k, v):
    """A function that launches the course's kernel on these tensors and returns its output."""
    import torch

    kernel, groups, (heads, length, _) = attention(**config), config["groups"], q.shape[1:]
    if length % (SIDE * groups):
        raise ValueError(f"{length} queries are not blocks of {groups} x {SIDE}")
    out = torch.full((heads * length, SIDE), torch.nan, device="cuda")
    box = (SIDE, SIDE)
    maps = [DeviceArray.of(gpu, TensorMapArray([TensorMap.of(x.reshape(-1, SIDE), box, swizzle="128B")])
                           .encode_into_host()) for x in (q, k, v)]  # fmt: skip
    there = ArrayArgument(out.data_ptr(), tuple(out.shape), (4 * SIDE, 4), 4)
    args, grid = [*maps, there, length // SIDE], (length // (SIDE * groups), heads)

    def run():
        launch(gpu, kernel.kernel, grid, args, kernel.shared_bytes)
        return out

    return run


def error_of(out, q, k, v):
    """Of the first head, in the norm, against float64; NaN where something has not been written."""
    q, k, v = (x[0, 0].double() for x in (q, k, v))
    exact = (q @ k.T / SIDE**0.5).softmax(-1) @ v
    return ((out.reshape(-1, SIDE)[: len(q)].double() - exact).norm() / exact.norm()).item()


def measure(gpu, heads, length):
    """The rows of the result, those of others first."""
    import torch

    torch.manual_seed(1)
    q, k, v = (torch.randn(1, heads, length, SIDE, dtype=torch.float16, device="cuda") for _ in range(3))
    runs, rows = of_torch(q, k, v), {}
    others = list(runs)
    for config in CONFIGURATIONS:
        name = f"{config['by']}, {config['groups']} groups, {config['stages']} stages"
        runs[name] = ours(gpu, config, q, k, v)
    for name, run in list(runs.items()):
        rows[name] = {"name": name}
        try:
            rows[name]["error"] = error_of(run(), q, k, v)
        except Exception as error:
            rows[name]["error_text"] = f"{type(error).__name__}: {error}"[:400]
            del runs[name]
        torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times, names = {name: [] for name in runs}, list(runs)
    for turn in range(WARM_UP + ROUNDS):
        for i in range(len(names)):
            name = names[(turn + i) % len(names)]
            runs[name]()
            start.record()
            for _ in range(LAUNCHES):
                runs[name]()
            end.record()
            end.synchronize()
            if turn >= WARM_UP:
                times[name].append(start.elapsed_time(end) / LAUNCHES)
    best = min((n for n in others if n in times), key=lambda n: statistics.median(times[n]))
    for name, each in times.items():
        rows[name] |= record.spread(each) | {"beside": best}
        rows[name]["ratio"] = statistics.median(a / b for a, b in zip(each, times[best], strict=True))
        rows[name]["tflops"] = 4e-9 * heads * length**2 * SIDE / rows[name]["median_ms"]
    return list(rows.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--length", type=int, default=4096, help="queries and keys of a head")
    options = parser.parse_args()
    gpu = find_gpu()
    rows = measure(gpu, options.heads, options.length)
    record.write(options.out, gpu, rows, heads=options.heads, length=options.length, channels=SIDE)
    for row in rows:
        if "error_text" in row:
            print(row["name"], row["error_text"])
            continue
        print(f"{row['name']:28} {1e3 * row['median_ms']:8.1f} us {row['tflops']:7.1f} TFLOP/s, "
              f"{row['ratio']:6.3f} of the time of {row['beside']}   error {row['error']:.1e}")  # fmt: skip
    return 0 if all(row.get("error", 1) < 2e-3 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

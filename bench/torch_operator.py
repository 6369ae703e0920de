"""PyTorch's view of the operator on a GPU: milliseconds of forward and backward, and a call's time on the host.

    python bench/torch_operator.py --out bench/results/torch_operator.json
    python bench/torch_operator.py --host --out bench/results/torch_host.json

GPU times are those of CUDA graphs of 5 calls, medians of 15 replays, with all that a call does: clearing the
sums, and rounding them to the type of value. ``errors`` are those of the first batch item's gradients of value,
locations and weights against float64. With ``--host``: wall clock over 200 calls for a decoder of 300 queries,
the median of 7 such rounds, beside a C++ extension with these arguments and a kernel which does nothing.
"""

import argparse
import time
from pathlib import Path
from statistics import median

import torch
from torch.utils.cpp_extension import load_inline

from numba_deform import preset
from numba_deform.engines.gpu.device import find_gpu
from numba_deform.measure import record
from numba_deform.torch import ms_deform_attn

CASES = [(name, pattern) for name in ("detr-encoder-b4", "seeds") for pattern in ("local(2)", "uniform")]
CALLS, REPLAYS, HOST_CALLS, HOST_ROUNDS = 5, 15, 200, 7
CPP = """
#include <torch/extension.h>
void launch();
torch::Tensor nothing(torch::Tensor value, torch::Tensor shapes, torch::Tensor starts, torch::Tensor locations,
                      torch::Tensor weights, int64_t step) {
  launch();
  return torch::empty({value.size(0), locations.size(1), value.size(2) * value.size(3)}, value.options());
}
"""
CUDA = """
#include <ATen/cuda/CUDAContext.h>
__global__ void nothing_kernel() {}
void launch() { nothing_kernel<<<1, 32, 0, at::cuda::getCurrentCUDAStream()>>>(); }
"""


def arguments(workload, learning):
    """The call's tensors on the GPU: (value, shapes as a list, starts as a list, locations, weights)."""
    inputs = workload.generate(seed=1)
    value, locations, weights = (
        torch.from_numpy(a).cuda().requires_grad_(learning)
        for a in (inputs.value, inputs.sampling_locations, inputs.attention_weights)
    )
    return value, inputs.spatial_shapes.tolist(), inputs.level_start_index.tolist(), locations, weights


def sampled(value, shapes, locations, weights):
    """The operator by ``grid_sample``, as models have it for machines without an extension."""
    batch, _, heads, channels = value.shape
    queries, points = locations.shape[1], locations.shape[4]
    planes = value.split([h * w for h, w in shapes], 1)
    out = 0
    for level, (height, width) in enumerate(shapes):
        plane = planes[level].permute(0, 2, 3, 1).reshape(batch * heads, channels, height, width)
        grid = 2 * locations[:, :, :, level].transpose(1, 2).reshape(batch * heads, queries, points, 2) - 1
        samples = torch.nn.functional.grid_sample(plane, grid.to(plane.dtype), align_corners=False)
        weight = weights[:, :, :, level].transpose(1, 2).reshape(batch * heads, 1, queries, points)
        out = out + (samples * weight).sum(-1)
    return out.reshape(batch, heads * channels, queries).transpose(1, 2)


def milliseconds(call):
    """Median of a call's time on the GPU."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / CALLS)
    return median(times)


def errors(inputs, given, found):
    """Relative errors of the gradients of the first batch item against ``grid_sample`` in float64."""
    value, shapes, _, locations, weights = inputs
    some = [t.detach()[:1].double().requires_grad_() for t in (value, locations, weights)]
    exact = torch.autograd.grad(sampled(some[0], shapes, *some[1:]), some, given[:1].double())
    return [float((f[:1].double() - e).norm() / e.norm()) for f, e in zip(found, exact, strict=True)]


def on_gpu(name, pattern):
    """One row: forward and backward, with sums in any order and deterministic ones."""
    inputs = arguments(preset(name, pattern=pattern, dtype="float16"), learning=True)
    learning = (inputs[0], *inputs[3:])
    out = ms_deform_attn(*inputs)
    given = torch.randn_like(out)
    row = {"workload": name, "pattern": pattern, "dtype": "float16"}

    index = torch.tensor(inputs[1]), torch.tensor(inputs[2])
    values = [tensor.detach() for tensor in learning]

    def backward():  # as autograd calls it, which would take another stream
        return torch.ops.numba_deform.ms_deform_attn_backward.default(given, values[0], *index, *values[1:])

    with torch.no_grad():
        row["forward_ms"] = milliseconds(lambda: ms_deform_attn(*inputs))
    for key, deterministic in (("backward", False), ("deterministic", True)):
        torch.use_deterministic_algorithms(deterministic)
        found = backward()
        row[f"{key}_ms"] = milliseconds(backward)
        again = [backward() for _ in range(2)]
        row[f"{key}_equal"] = all(torch.equal(a, b) for a, b in zip(*again, strict=True))
        torch.use_deterministic_algorithms(False)  # grid_sample has no such gradient
        row[f"{key}_errors"] = errors(inputs, given, found)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    backward()
    row["backward_peak_mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
    if name == "detr-encoder-b4":
        def both():
            return torch.autograd.grad(sampled(inputs[0], inputs[1], *inputs[3:]), learning, given)

        row["grid_sample_both_ms"] = milliseconds(both)
    return row


def microseconds(call):
    """Median of a call's time on the host: wall clock over many, while the GPU keeps up."""
    for _ in range(20):
        call()
    times = []
    for _ in range(HOST_ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(HOST_CALLS):
            call()
        times.append(time.perf_counter() - start)
        torch.cuda.synchronize()
    return 1e6 * median(times) / HOST_CALLS


def on_host():
    """One row: microseconds of a decoder's call, by lists and by index tensors on the GPU."""
    extension = load_inline("nothing", [CPP], [CUDA], functions=["nothing"])
    workload = preset("detr-decoder", dtype="float16")
    value, shapes, starts, locations, weights = arguments(workload, learning=False)
    index = torch.tensor(shapes, device="cuda"), torch.tensor(starts, device="cuda")
    learning = [t.clone().requires_grad_() for t in (value, locations, weights)]
    out = ms_deform_attn(learning[0], shapes, starts, *learning[1:])
    given = torch.randn_like(out)
    operator = torch.ops.numba_deform.ms_deform_attn.default
    return {
        "workload": "detr-decoder", "dtype": "float16",
        "extension_us": microseconds(lambda: extension.nothing(value, *index, locations, weights, 64)),
        "forward_us": microseconds(lambda: ms_deform_attn(value, shapes, starts, locations, weights)),
        "forward_tensors_us": microseconds(lambda: ms_deform_attn(value, *index, locations, weights)),
        "operator_us": microseconds(lambda: operator(value, *index, locations, weights)),
        "forward_with_gradients_us": microseconds(
            lambda: ms_deform_attn(learning[0], shapes, starts, *learning[1:])
        ),
        "backward_us": microseconds(lambda: torch.autograd.grad(out, learning, given, retain_graph=True)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for case in [()] if options.host else CASES:
        rows.append(on_host() if options.host else on_gpu(*case))
        print(rows[-1], flush=True)
        torch.cuda.empty_cache()
        if options.out:
            record.write(options.out, find_gpu(), rows)


if __name__ == "__main__":
    main()

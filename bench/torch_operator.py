"""The host's time for a call of the operator in PyTorch, in microseconds.

    python bench/torch_operator.py --out bench/results/torch_host.json

Wall clock over 200 calls for a decoder of 300 queries, beside a C++ extension with these arguments and a kernel
which does nothing: the median of 15 rounds, in which all take turns, since a processor's clock moves. The GPU's
time: ``numba-deform bench what=gradients``.
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

HOST_CALLS, HOST_ROUNDS = 200, 15
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


def arguments(workload):
    """The call's tensors on the GPU: (value, shapes as a list, starts as a list, locations, weights)."""
    inputs = workload.generate(seed=1)
    value, locations, weights = (
        torch.from_numpy(a).cuda()
        for a in (inputs.value, inputs.sampling_locations, inputs.attention_weights)
    )
    return value, inputs.spatial_shapes.tolist(), inputs.level_start_index.tolist(), locations, weights


def microseconds(calls):
    """{name: median of a call's time on the host} for {name: function}: wall clock over many calls, while the
    GPU keeps up."""
    times = {name: [] for name in calls}
    for _ in range(1 + HOST_ROUNDS):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(HOST_CALLS):
                call()
            times[name].append(time.perf_counter() - start)
            torch.cuda.synchronize()
    return {name: 1e6 * median(found[1:]) / HOST_CALLS for name, found in times.items()}  # the first warms up


def on_host():
    """One row: microseconds of a decoder's call, by lists and by index tensors on the GPU."""
    extension = load_inline("nothing", [CPP], [CUDA], functions=["nothing"])
    workload = preset("detr-decoder", dtype="float16")
    value, shapes, starts, locations, weights = arguments(workload)
    index = torch.tensor(shapes, device="cuda"), torch.tensor(starts, device="cuda")
    learning = [t.clone().requires_grad_() for t in (value, locations, weights)]
    out = ms_deform_attn(learning[0], shapes, starts, *learning[1:])
    given = torch.randn_like(out)
    operator = torch.ops.numba_deform.ms_deform_attn.default
    calls = {
        "extension_us": lambda: extension.nothing(value, *index, locations, weights, 64),
        "forward_us": lambda: ms_deform_attn(value, shapes, starts, locations, weights),
        "forward_tensors_us": lambda: ms_deform_attn(value, *index, locations, weights),
        "operator_us": lambda: operator(value, *index, locations, weights),
        "forward_with_gradients_us": lambda: ms_deform_attn(learning[0], shapes, starts, *learning[1:]),
        "backward_us": lambda: torch.autograd.grad(out, learning, given, retain_graph=True),
    }
    return {"workload": "detr-decoder", "dtype": "float16", **microseconds(calls)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    row = on_host()
    print(row)
    if options.out:
        record.write(options.out, find_gpu(), [row])


if __name__ == "__main__":
    main()

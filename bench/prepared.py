"""What a call costs the host for a decoder: the operator, a prepared call, and a captured one.

    python bench/prepared.py --out bench/results/prepared.json

PyTorch tensors, 300 queries of the Deformable-DETR decoder. All times are microseconds: ``host_*`` is a
call until it returns (median of 1000, the queue kept short), ``wall_*`` one of 1000 calls in a row until
the GPU is done, ``gpu`` the kernel by events, launched behind a delay, ``graph`` and ``host_graph`` one of
100 calls of a replay.
"""

import argparse
import statistics
import time

import torch

from numba_deform import ms_deform_attn, prepare, preset, reference, relative_error
from numba_deform.attention.prepared import host_microseconds
from numba_deform.attention.reference import TOLERANCE
from numba_deform.engines.gpu.device import find_gpu
from numba_deform.engines.gpu.launch import time_launches
from numba_deform.measure import record

VARIANTS = ("direct", "tma-fastest")
CALLS, CAPTURED, REPLAYS = 1000, 100, 20
DELAY = 400_000  # cycles in which the host enqueues what is timed


def tensors(workload, seed):
    """(inputs, [value, locations, weights] on the GPU)."""
    inputs = workload.generate(seed=seed)
    arrays = inputs.value, inputs.sampling_locations, inputs.attention_weights
    return inputs, [torch.from_numpy(array).cuda() for array in arrays]


def wall(call, calls):
    """Microseconds a call takes, of ``calls`` calls in a row, until the GPU is done."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - start) / calls


def error_of(out, inputs):
    want = reference(
        inputs.value, inputs.spatial_shapes, inputs.level_start_index, inputs.sampling_locations,
        inputs.attention_weights,
    )  # fmt: skip
    return float(relative_error(out.double().cpu().numpy(), want))


def measure(gpu, workload, name):
    inputs, (value, locations, weights) = tensors(workload, seed=1)
    index = inputs.spatial_shapes, inputs.level_start_index
    plan = prepare(value, *index, locations, weights, name)
    out = torch.empty(plan.problem.out_shape, dtype=value.dtype, device="cuda")

    def operator():
        ms_deform_attn(value, *index, locations, weights, name, out=out)

    def call():
        plan(value, locations, weights, out)

    operator()
    row = {"variant": name, "plan": plan.describe(), "calls": CALLS}
    row["host_operator"] = host_microseconds(gpu, operator, CALLS)
    row["host_prepared"] = plan.host_overhead(value, locations, weights, out, CALLS)
    row["host_allocating"] = host_microseconds(gpu, lambda: plan(value, locations, weights), CALLS)
    row["gpu"] = 1e3 * statistics.median(
        time_launches(gpu, call, 50, between=lambda: torch.cuda._sleep(DELAY))
    )
    row["wall_operator"], row["wall_prepared"] = wall(operator, CALLS), wall(call, CALLS)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CAPTURED):
            call()
    graph.replay()
    times = [wall(graph.replay, 1) / CAPTURED for _ in range(REPLAYS)]
    row |= {"captured": CAPTURED, "graph": statistics.median(times)}
    row["host_graph"] = host_microseconds(gpu, graph.replay, 100, 1) / CAPTURED

    # The graph reads what its arrays hold when it is replayed.
    inputs, others = tensors(workload, seed=2)
    for captured, other in zip((value, locations, weights), others, strict=True):
        captured.copy_(other)
    out.fill_(torch.nan)
    graph.replay()
    row["error"] = error_of(out, inputs)
    assert row["error"] < TOLERANCE[workload.dtype], row
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    gpu, workload = find_gpu(), preset("detr-decoder")
    rows = []
    for name in VARIANTS:
        rows.append(measure(gpu, workload, name))
        print(rows[-1], flush=True)
    record.write(options.out, gpu, rows, workload=workload.describe(), unit="us")


if __name__ == "__main__":
    main()

"""The operator on a CPU beside transformers' own function and PyTorch's grid_sample: time and memory.

    python bench/cpu_operator.py --out bench/results/cpu_operator.json

``own`` is ``numba_deform.torch.ms_deform_attn``, ``eager`` the function that transformers' models call
without a patch, ``grid_sample`` PyTorch's kernel alone, for each level laid out as it wants it and without
weights. With two threads, in turn, for several rounds, since others use the machine: medians, and the median of
each round's ratio to eager. ``both`` is forward and backward with all three gradients. Memory is what a call
adds to the process at most; ``--before FILE`` is ``torch/reference.py`` of an older commit, whose memory stands
beside.

Sizes are those of the presets; what would take more memory or time than a CPU is asked for has fewer batch
items or queries, which its row says.
"""

import argparse
import ctypes
import functools
import importlib.util
import os
import statistics
import time
from pathlib import Path

import torch
from torch.nn import functional
from transformers.models.d_fine.modeling_d_fine import multi_scale_deformable_attention_v2
from transformers.models.mask2former.modeling_mask2former import multi_scale_deformable_attention

from numba_deform import preset
from numba_deform.measure import record
from numba_deform.torch import ms_deform_attn

THREADS, MOST_ROUNDS, LEAST_ROUNDS = 2, 9, 3
CASES = [
    ("rtdetr-decoder", {}), ("dfine-decoder", {}), ("detr-decoder", {}), ("dino-decoder", {}),
    *(("detr-decoder", {"dtype": dtype}) for dtype in ("float64", "bfloat16", "float16")),
    ("mask2former", {}), ("detr-encoder", {}), ("detr-encoder", {"pattern": "uniform"}),
    ("detr-encoder", {"dtype": "bfloat16"}), ("bevformer-temporal", {}),
    ("bevformer-spatial", {"batch": 1}), ("dino-5scale", {"num_query": 22223}), ("seeds", {"batch": 2}),
]  # fmt: skip


class Case:
    """The tensors of one workload, and a call for each implementation."""

    def __init__(self, name, changes):
        dtype = getattr(torch, changes.get("dtype", "float32"))
        workload = preset(name, **{"dtype": "float32", **{k: v for k, v in changes.items() if k != "dtype"}})
        inputs = workload.generate(seed=1)
        arrays = inputs.value, inputs.sampling_locations, inputs.attention_weights
        value, locations, weights = (torch.from_numpy(array).float() for array in arrays)
        self.shapes = [tuple(map(int, shape)) for shape in inputs.spatial_shapes]
        self.points = workload.points_per_level
        if self.points:
            real = torch.arange(workload.num_points) < torch.tensor(self.points).unsqueeze(1)
            locations, weights = locations[:, :, :, real], weights[:, :, :, real]
        self.given = [tensor.to(dtype).contiguous().requires_grad_() for tensor in (value, locations, weights)]
        self.grad = torch.randn(*locations.shape[:2], value.shape[2] * value.shape[3]).to(dtype)
        planes = value.to(dtype).split([h * w for h, w in self.shapes], 1)
        self.planes = [
            plane.permute(0, 2, 3, 1).reshape(-1, value.shape[3], *shape).contiguous().requires_grad_()
            for plane, shape in zip(planes, self.shapes, strict=True)
        ]
        counts = self.points or [workload.num_points] * len(self.shapes)
        flat = locations.reshape(*locations.shape[:3], -1, 2).transpose(1, 2).flatten(0, 1)
        self.grids = [(2 * g - 1).to(dtype).contiguous().requires_grad_() for g in flat.split(list(counts), 2)]

    def own(self):
        value, locations, weights = self.given
        return ms_deform_attn(value, self.shapes, None, locations, weights, num_points=self.points)

    def eager(self):
        value, locations, weights = self.given
        if self.points:
            call = value, self.shapes, locations, weights, list(self.points)
            return multi_scale_deformable_attention_v2(*call)
        return multi_scale_deformable_attention(value, self.shapes, locations, weights)

    def grid_sample(self):
        pairs = zip(self.planes, self.grids, strict=True)
        return [functional.grid_sample(plane, grid, align_corners=False) for plane, grid in pairs]

    def run(self, name, both):
        """The output of one pass, or what is left of both."""
        if not both:
            with torch.no_grad():
                return getattr(self, name)()
        out = getattr(self, name)()
        if name == "grid_sample":
            return torch.autograd.grad(out, [*self.planes, *self.grids], [torch.ones_like(o) for o in out])
        return torch.autograd.grad(out, self.given, self.grad)


def seconds(call):
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def peak_mib(call):
    """What a call adds to this process at most, in MiB."""
    def status(field):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024

    ctypes.CDLL(None).malloc_trim(0)  # what is free goes back, or a call would take it and add nothing
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = status("VmRSS")
    call()
    return status("VmHWM") - before


def before_of(file):
    """(forward, backward) of an older commit, in that file."""
    spec = importlib.util.spec_from_file_location("numba_deform.torch.before", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(case, both):
        value, locations, weights = (tensor.detach() for tensor in case.given)
        shapes = [size for shape in case.shapes for size in shape]
        sizes = [h * w for h, w in case.shapes]
        call = value, shapes, [sum(sizes[:i]) for i in range(len(sizes))], locations, weights, case.points
        module.forward_of(*call)
        if both:
            module.backward_of(case.grad, *call)

    return run


def measure(case, both, limit, before):
    """What a row says of one pass, or of both."""
    found, wanted = case.run("own", both), case.run("eager", both)
    pairs = zip(found, wanted, strict=True) if both else [(found, wanted)]
    errors, strange = [], 0  # grid_sample in float16 gives NaN for some samples outside
    for one, other in pairs:
        real = other.isfinite()
        strange += int((~real).sum())
        errors.append(float((one[real].double() - other[real].double()).norm() / other[real].double().norm()))
    del found, wanted, pairs, one, other, real
    calls = {which: functools.partial(case.run, which, both) for which in ("own", "eager", "grid_sample")}
    times, started = [], time.perf_counter()
    while len(times) < MOST_ROUNDS and (len(times) < LEAST_ROUNDS or time.perf_counter() - started < limit):
        times.append({which: 1e3 * seconds(call) for which, call in calls.items()})
    row = {"passes": "both" if both else "forward", "rounds": len(times)}
    row |= {f"{which}_ms": statistics.median(t[which] for t in times) for which in calls}
    row["own_to_eager"] = statistics.median(t["own"] / t["eager"] for t in times)
    row |= {f"{which}_mib": peak_mib(calls[which]) for which in ("own", "eager")}
    if before:
        row["before_mib"] = peak_mib(functools.partial(before, case, both))
    return {**row, "difference": max(errors), "eager_nan": strange, "load": os.getloadavg()[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--before", type=before_of, help="torch/reference.py of an older commit")
    parser.add_argument("--queries", type=int, default=0, help="at most so many, on a machine that is busy")
    parser.add_argument("--seconds", type=float, default=20, help="for the rounds of each row, at most about")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    rows = []
    for name, changes in CASES:
        if 0 < options.queries < preset(name).num_query:
            changes = {**changes, "num_query": options.queries}
        case = Case(name, changes)
        for both in (False, True):
            found = measure(case, both, options.seconds, options.before)
            rows.append({"workload": name, **changes, **found})
            print(rows[-1], flush=True)
            if options.out:  # also when it is ended early
                record.write(options.out, None, rows, threads=THREADS)


if __name__ == "__main__":
    main()

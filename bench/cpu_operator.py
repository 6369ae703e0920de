"""The operator on a CPU beside transformers' own function and PyTorch's grid_sample: time and memory.

    python bench/cpu_operator.py --out bench/results/cpu_operator.json

``own`` is ``numba_deform.torch.ms_deform_attn``, ``eager`` the function that transformers' models call
without a patch, ``grid_sample`` PyTorch's kernel alone, for each level laid out as it wants it and without
weights. They take turns for several rounds, since others use the machine: medians, and the median of each
round's ratio to eager. ``both`` is forward and backward with all three gradients.

Two times. ``_ms`` is the clock's, with two threads: on a machine that others use, PyTorch's threads wait for
one another (asleep; awake they take ten times as long there), which flatters ``own``, whose threads do not.
``_cpu_ms`` is the processor's, with one thread: what others do is not in it, but for what they leave of the
caches.

``difference`` is that to eager of the same numbers in float32, in 16 bits too: there eager itself, on a CPU,
reads pixels of 16-bit positions, some from outside of its tensors (``eager_difference``, ``eager_nan``).

Memory is what a call adds to the process at most; ``--before FILE`` is ``torch/reference.py`` of an older
commit, whose memory stands beside. Sizes are those of the presets, whole.
"""

import argparse
import copy
import ctypes
import functools
import importlib.util
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when PyTorch is imported

import torch
from torch.nn import functional
from transformers.models.d_fine.modeling_d_fine import multi_scale_deformable_attention_v2
from transformers.models.mask2former.modeling_mask2former import multi_scale_deformable_attention

from numba_deform import preset
from numba_deform.measure import record
from numba_deform.torch import ms_deform_attn

THREADS, MOST_ROUNDS = 2, 9
CASES = [
    ("rtdetr-decoder", {}), ("dfine-decoder", {}), ("detr-decoder", {}), ("dino-decoder", {}),
    *(("detr-decoder", {"dtype": dtype}) for dtype in ("float64", "bfloat16", "float16")),
    ("mask2former", {}), ("detr-encoder", {}), ("detr-encoder", {"pattern": "uniform"}),
    ("detr-encoder", {"dtype": "bfloat16"}), ("bevformer-temporal", {}),
    ("dino-5scale", {}), ("bevformer-spatial", {}), ("seeds", {}),
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

    @property
    def is_narrow(self):
        return self.grad.dtype.itemsize == 2

    def in_float32(self):
        """The same with the same numbers in float32, if they are of 16 bits."""
        if not self.is_narrow:
            return self
        wide = copy.copy(self)
        wide.given = [tensor.detach().float().requires_grad_() for tensor in self.given]
        wide.grad = self.grad.float()
        return wide

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


def seconds(call, clock):
    started = clock()
    call()
    return clock() - started


def first_call(call):
    """(what it gives, milliseconds of the processor, what it added to this process at most, in MiB)."""
    def status(field):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024

    ctypes.CDLL(None).malloc_trim(0)  # what is free goes back, or a call would take it and add nothing
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before, started = status("VmRSS"), time.process_time()
    found = call()
    taken = time.process_time() - started
    return found, 1e3 * taken, status("VmHWM") - before


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


def results(case, name, both):
    """What one pass gives, or both do, as a list of tensors."""
    found = case.run(name, both)
    return list(found) if both else [found]


def difference(found, wanted):
    """The greatest relative error of the tensors, of their numbers that are numbers."""
    errors = []
    for one, other in zip(found, wanted, strict=True):
        one, other = one.double(), other.double()
        real = one.isfinite()
        errors.append(float((one[real] - other[real]).norm() / other[real].norm()))
    return max(errors)


def in_turn(calls, clock, limit, times):
    """``times``, [{name: milliseconds by that clock}], with more rounds, for about so many seconds."""
    started = time.perf_counter()
    while len(times) < MOST_ROUNDS and (not times or time.perf_counter() - started < limit):
        times.append({name: 1e3 * seconds(call, clock) for name, call in calls.items()})
    return times


def measure(case, both, limit, before):
    """What a row says of one pass, or of both."""
    row, calls, given, times = {"passes": "both" if both else "forward"}, {}, {}, {}
    torch.set_num_threads(1)
    for which in ("own", "eager"):
        calls[which] = functools.partial(results, case, which, both)
        given[which], times[which], row[f"{which}_mib"] = first_call(calls[which])
    if before:
        row["before_mib"] = first_call(functools.partial(before, case, both))[2]
    if case.is_narrow:
        wanted = results(case.in_float32(), "eager", both)
        row["eager_difference"] = difference(given["eager"], wanted)
        row["eager_nan"] = sum(int(tensor.isnan().sum()) for tensor in given["eager"])
    row["difference"] = difference(given["own"], wanted if case.is_narrow else given["eager"])
    given = wanted = None
    row |= spread(calls, in_turn(calls, time.process_time, limit, [times]), "_cpu")
    torch.set_num_threads(THREADS)
    calls["grid_sample"] = functools.partial(case.run, "grid_sample", both)
    row["load"] = os.getloadavg()[0]
    return row | spread(calls, in_turn(calls, time.perf_counter, limit, []), "")


def spread(names, times, kind):
    """What a row says of such rounds."""
    row = {f"{name}{kind}_ms": statistics.median(t[name] for t in times) for name in names}
    ratio = statistics.median(t["own"] / t["eager"] for t in times)
    return {f"rounds{kind}": len(times), **row, f"own_to_eager{kind}": ratio}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--before", type=before_of, help="torch/reference.py of an older commit")
    parser.add_argument("--queries", type=int, default=0, help="at most so many, on a machine that is busy")
    parser.add_argument("--only", nargs="*", help="these workloads, to repeat rows that look off")
    parser.add_argument("--seconds", type=float, default=20, help="for the rounds of each row, at most about")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    rows = []
    for changes in ({}, {"dtype": "float64"}):  # what is compiled, and how large that is, is no row's
        warm = Case("rtdetr-decoder", changes)
        for which in ("own", "eager"):
            warm.run(which, False), warm.run(which, True)
    for name, changes in CASES:
        if options.only and name not in options.only:
            continue
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

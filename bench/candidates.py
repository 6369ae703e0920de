"""Candidates beside what is there and the C++ program that this project began with, in one run: microseconds.

    python bench/candidates.py .peers/ai-benchmark --out bench/results/candidates.json [GROUP ..]

A group is a workload, a pattern and types, with configurations: the first is what is there. Medians of
graphs of 5 launches, which take turns; ``to_first`` is the median of a round's ratios to the first. Errors are
relative to float64, of some rows. The folder has ``deform_attn.cu`` of github.com/DrXuQian/ai-benchmark, which
nvcc compiles as it is: fp16 throughout, 8 points, one head, levels with a border. Needs PyTorch and a GPU.
"""

import argparse
import ctypes
import statistics
import subprocess
import tempfile
from pathlib import Path

import torch
from auto_loop import replayed
from bf16 import IN_A_GRAPH, inputs_of

from numba_deform import ms_deform_attn
from numba_deform.engines.gpu.device import find_gpu
from numba_deform.measure import record
from numba_deform.measure.baselines import sample_levels

ROWS, SAME = 256, ("workload", "pattern", "dtype", "location_dtype")
WRAPPER = """
#define main main_of_deform_attn
#include "deform_attn.cu"
extern "C" void run(void *stream, void *value, void *shapes, void *starts, void *locations, void *weights,
                    int batch, int positions, int queries, void *out) {
  ms_deformable_im2col_cuda<__half>((cudaStream_t)stream, (__half *)value, (int64_t *)shapes, (int64_t *)starts,
      (__half *)locations, (__half *)weights, batch, positions, 1, 32, 4, queries, 8, (__half *)out);
}
"""
SWEEP = [
    {"threads": t, "min_blocks": m} for t, m in ((128, 5), (128, 6), (128, 8), (256, 3), (256, 4), (64, 14))
]
FINE = [{"fine": n, "fine_load": load} for n in (1, 2) for load in ("normal", "none")]
FOUR = [{"lanes": 4}, {"lanes": 4, "min_blocks": 6}, {"lanes": 4, "fine": 1, "fine_load": "none"},
        {"lanes": 4, "fine": 1}, {"min_blocks": 6, "fine": 1}]  # fmt: skip
NEAR = [{"consumers": n} for n in (14, 16, 17, 19)] + [
    {"cell": c} for c in ((12, 14), (14, 14), (10, 16), (12, 16))
]
PAIRS = {"arithmetic": "pairs"}
# {group: (workload, pattern, type, type of locations, [(variant, parameters)])}
GROUPS = {
    "uniform": ("seeds", "uniform", "float16", "float16", [("direct", {}), ("cpp", {}), ("auto", {})]
                + [("direct", p) for p in SWEEP + FINE + FOUR]),
    "encoder-uniform": ("detr-encoder-b4", "uniform", "float16", "float16", [("direct", {}), ("auto", {})]
                        + [("direct", p) for p in FINE + FOUR]),
    "far": ("seeds", "local(8)", "float16", "float16", [("direct", {}), ("cpp", {})]
            + [("direct", p) for p in FINE + FOUR]),
    "seed": ("seeds", "seed", "float16", "float16", [("direct", {}), ("cpp", {})]
             + [("direct", p) for p in FINE + FOUR]),
    "fp16": ("seeds", "local(2)", "float16", "float16", [("window", {}), ("cpp", {}), ("auto", {})]
             + [("window", p) for p in NEAR]),
    "bf16": ("seeds", "local(2)", "bfloat16", "float32", [("window", {})]
             + [("window", {**PAIRS, **c}) for c in ({}, {"consumers": 11}, {"consumers": 14})]
             + [("window", {"consumers": 11})]),
    "bf16-b4": ("detr-encoder-b4", "local(2)", "bfloat16", "float32", [("window", {})]
                + [("window", {**PAIRS, **c}) for c in ({}, {"consumers": 15}, {"consumers": 16})]
                + [("window", {"consumers": 15})]),
}  # fmt: skip


def compiled(folder):
    """The C++ program's launch, as a function of C."""
    work = Path(tempfile.mkdtemp(prefix="deform-attn-"))
    (work / "run.cu").write_text(WRAPPER)
    command = [
        "nvcc",
        "-O3",
        "-std=c++17",
        "-arch=sm_90",
        "-shared",
        "-Xcompiler",
        "-fPIC",
        "run.cu",
        "-o",
        "run.so",
    ]
    subprocess.run([*command, "-I", str(folder.resolve())], cwd=work, check=True)
    run = ctypes.CDLL(str(work / "run.so")).run
    run.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int] * 3 + [ctypes.c_void_p]
    return run


def bordered(value, shapes):
    """(B, S', H, C) with a border of one zero pixel around each level, and where each starts."""
    batch, _, heads, channels = value.shape
    levels, starts, start = [], [], 0
    for level, (height, width) in zip(value.split([h * w for h, w in shapes], 1), shapes, strict=True):
        plane = level.reshape(batch, height, width, heads * channels)
        plane = torch.nn.functional.pad(plane, (0, 0, 1, 1, 1, 1))
        levels.append(plane.flatten(1, 2).unflatten(-1, (heads, channels)))
        starts.append(start)
        start += levels[-1].shape[1]
    return torch.cat(levels, 1).contiguous(), starts


class Call:
    """One configuration, captured."""

    def __init__(self, inputs, variant, parameters, dtype, location_dtype, cpp):
        self.index, value, locations, weights = inputs
        dtype = getattr(torch, dtype)
        self.given = value.to(dtype), locations.to(getattr(torch, location_dtype)), weights.to(dtype)
        batch, queries = locations.shape[:2]
        self.out = self.given[0].new_empty(batch, queries, value.shape[2] * value.shape[3])
        if variant == "cpp":
            shapes = self.index[0].tolist()
            padded, starts = bordered(self.given[0], shapes)
            index = torch.tensor(shapes, device="cuda"), torch.tensor(starts, device="cuda")
            tensors = padded, *index, *self.given[1:]

            def call():
                stream = torch.cuda.current_stream().cuda_stream
                cpp(
                    stream,
                    *[t.data_ptr() for t in tensors],
                    batch,
                    padded.shape[1],
                    queries,
                    self.out.data_ptr(),
                )

        else:

            def call():
                value, *samples = self.given
                ms_deform_attn(value, *self.index, *samples, variant, out=self.out, **parameters)

        self.call = call
        call()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(IN_A_GRAPH):
                call()

    def error(self):
        """Of some rows of the first batch item, beside PyTorch's grid_sample in float64."""
        rows = slice(0, None, max(1, self.out.shape[1] // ROWS))
        value, locations, weights = (t[:1].double() for t in self.given)
        right = sample_levels(value, self.index[0].tolist(), locations[:, rows], weights[:, rows])
        return float((self.out[:1, rows].double() - right).norm() / right.norm())


def rows_of(group, cpp, rounds):
    """One row for each configuration of a group."""
    workload, pattern, dtype, location_dtype, variants = GROUPS[group]
    inputs, calls, rows = inputs_of(workload, pattern, 1), [], []
    for variant, parameters in variants:
        row = {"group": group, "workload": workload, "pattern": pattern, "dtype": dtype,
               "location_dtype": location_dtype, "variant": variant, "parameters": parameters}  # fmt: skip
        rows.append(row)
        try:
            call = Call(inputs, variant, parameters, dtype, location_dtype, cpp)
            calls.append((row, call))
            row["error"] = call.error()
        except Exception as error:  # one that does not fit on this GPU
            row["error_text"] = f"{type(error).__name__}: {error}"[:300]
    times = [[] for _ in calls]
    for turn in range(2 + rounds):
        for found, (_, call) in zip(times, calls, strict=True):
            time = replayed(call.graph, IN_A_GRAPH)
            if turn > 1:
                found.append(time)
    for (row, _), found in zip(calls, times, strict=True):
        row |= {"us": statistics.median(found),
                "to_first": statistics.median(a / b for a, b in zip(found, times[0], strict=True))}  # fmt: skip
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cpp", type=Path, metavar="FOLDER")
    parser.add_argument("groups", nargs="*", metavar="GROUP", default=list(GROUPS))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    cpp, rows = compiled(options.cpp), []
    for group in options.groups:
        found = rows_of(group, cpp, options.rounds)
        for row in found:
            shown = {k: round(v, 5) if isinstance(v, float) else v for k, v in row.items() if k not in SAME}
            print(shown, flush=True)
        rows += found
        inputs_of.cache_clear()
        torch.cuda.empty_cache()
        record.write(options.out, find_gpu(), rows, rounds=options.rounds)
    return 0


if __name__ == "__main__":
    main()

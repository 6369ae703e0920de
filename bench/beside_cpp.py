"""The operator beside the C++ program that this project began with, in one run: microseconds.

    python bench/beside_cpp.py .peers/ai-benchmark --out bench/results/beside_cpp.json [GROUP ..]

A group is a workload, a pattern and types, with configurations; ``to_first`` is the median of a round's ratios
to the first. Medians of graphs of 5 launches, which take turns. Errors are relative to float64, of some rows.
The folder has ``deform_attn.cu`` of github.com/DrXuQian/ai-benchmark (tma_experiments), which nvcc compiles as
it is: fp16 throughout, 8 points, one head, levels with a border, so it is in the groups of the seeds' shape
and of that type alone. Needs PyTorch and a GPU.
"""

import argparse
import ctypes
import gc
import statistics
import subprocess
import tempfile
from pathlib import Path

import torch
from auto_loop import replayed
from bf16 import IN_A_GRAPH, Call, by_variant, inputs_of

from numba_deform.engines.gpu.device import find_gpu
from numba_deform.measure import record

SAME = ("workload", "pattern", "dtype", "location_dtype")
WRAPPER = """
#define main main_of_deform_attn
#include "deform_attn.cu"
extern "C" void run(void *stream, void *value, void *shapes, void *starts, void *locations, void *weights,
                    int batch, int positions, int queries, void *out) {
  ms_deformable_im2col_cuda<__half>((cudaStream_t)stream, (__half *)value, (int64_t *)shapes, (int64_t *)starts,
      (__half *)locations, (__half *)weights, batch, positions, 1, 32, 4, queries, 8, (__half *)out);
}
"""
NEAR, ALL = [("window", {}), ("auto", {})], [("direct", {}), ("auto", {}), ("cpp", {})]
HALF, BRAIN = ("float16", "float16"), ("bfloat16", "float32")  # of value, of locations
ENCODERS = "detr-encoder-b4", "detr-encoder", "mask2former", "bevformer-temporal"
# {group: (workload, pattern, type, type of locations, [(variant, parameters)])}
GROUPS = {
    "seeds": ("seeds", "local(2)", *HALF, [*NEAR, ("cpp", {})]),
    "seeds-bf16": ("seeds", "local(2)", *BRAIN, NEAR),
    **{f"seeds-{pattern}": ("seeds", pattern, *HALF, ALL) for pattern in ("uniform", "seed", "local(8)")},
    **{name: (name, "local(2)", *HALF, NEAR) for name in ENCODERS},
    **{f"{name}-bf16": (name, "local(2)", *BRAIN, [*NEAR, ("direct", {})]) for name in ENCODERS},
}


def compiled(folder):
    """The C++ program's launch, as a function of C."""
    work = Path(tempfile.mkdtemp(prefix="deform-attn-"))
    (work / "run.cu").write_text(WRAPPER)
    options = "-O3 -std=c++17 -arch=sm_90 -shared -Xcompiler -fPIC run.cu -o run.so -I"
    subprocess.run(["nvcc", *options.split(), str(folder.resolve())], cwd=work, check=True)
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


def by_cpp(run):
    """A ``launch_of`` of Call: the C++ program, by its compiled launch."""

    def launch_of(call):
        shapes, (batch, queries) = call.index[0].tolist(), call.given[1].shape[:2]
        padded, starts = bordered(call.given[0], shapes)
        index = torch.tensor(shapes, device="cuda"), torch.tensor(starts, device="cuda")
        tensors = padded, *index, *call.given[1:]

        def launch():
            stream, places = torch.cuda.current_stream().cuda_stream, [t.data_ptr() for t in tensors]
            run(stream, *places, batch, padded.shape[1], queries, call.out.data_ptr())

        return launch

    return launch_of


def rows_of(group, cpp, rounds):
    """One row for each configuration of a group."""
    workload, pattern, dtype, location_dtype, variants = GROUPS[group]
    gc.collect()  # graphs of the last group: a capture is spoilt by the end of one
    inputs, calls, rows = inputs_of(workload, pattern, 1), [], []
    for variant, parameters in variants:
        row = {"group": group, "workload": workload, "pattern": pattern, "dtype": dtype,
               "location_dtype": location_dtype, "variant": variant, "parameters": parameters}  # fmt: skip
        rows.append(row)
        try:
            launch_of = by_cpp(cpp) if variant == "cpp" else by_variant(variant, **parameters)
            call = Call(inputs, dtype, location_dtype, launch_of)
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

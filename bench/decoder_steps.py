"""The host's time for a decoder's training step, beside Deformable-DETR's function around its own extension.

    python bench/decoder_steps.py .peers/Deformable-DETR --out bench/results/decoder_steps.json

The folder is a checkout of the peer (github.com/fundamentalvision/Deformable-DETR). Its sources are changed in
a copy, only where today's PyTorch has other names, and built with nvcc; its autograd function is its own file.

A step is a forward pass and ``torch.autograd.grad`` in eager mode. A batch of calls starts with an idle GPU and
is over when the last call comes back, before the GPU is waited for: 50 steps are fewer launches than its queue
takes. All calls take turns, batch by batch, in an order drawn anew each time; medians, and medians of a turn's
ratios. ``floor`` is an autograd function that launches nothing: what is PyTorch's own part of any step. The
peer computes in float32 alone: ``peer_of_float16`` casts what it is given, and its answer. It takes one number
of points for all levels: 4 in the place of D-FINE's 3, 6 and 3, the same samples.
``apart`` is the largest difference to the peer's answer and gradients in float32, over their largest element.
"""

import argparse
import cProfile
import io
import pstats
import random
import re
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch.utils.cpp_extension import load

from numba_deform import preset
from numba_deform.engines.gpu.device import find_gpu
from numba_deform.measure import record
from numba_deform.torch import ms_deform_attn

DECODERS = "detr-decoder", "dino-decoder", "rtdetr-decoder", "dfine-decoder"
STEPS = 50
PEERS = "peer", "peer_of_float16", "floor"
PEER = "MultiScaleDeformableAttention"
# What PyTorch has other names for since.
TODAY = (
    (r"\.type\(\)\.is_cuda\(\)", ".is_cuda()"),
    (r"FLOATING_TYPES\((\w+)\.type\(\)", r"FLOATING_TYPES(\1.scalar_type()"),
    (r"\.data<(\w+)>\(\)", r".data_ptr<\1>()"),
    ("THC/THCAtomics.cuh", "ATen/cuda/Atomic.cuh"),
    ("AT_ASSERTM", "TORCH_CHECK"),
    (r"AT_ERROR\(", "TORCH_CHECK(false, "),
)


def built(checkout):
    """The peer's autograd function, built for this PyTorch in a folder of its own."""
    operator, folder = checkout / "models" / "ops", Path(tempfile.mkdtemp(prefix="deformable-detr-"))
    for path in (operator / "src").rglob("*"):
        if path.is_file():
            text = path.read_text()
            for old, new in TODAY:
                text = re.sub(old, new, text)
            copy = folder / path.relative_to(operator / "src")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text)
    sources = [str(path) for kind in ("*.cpp", "cpu/*.cpp", "cuda/*.cu") for path in sorted(folder.glob(kind))]
    (folder / "build").mkdir()
    flags = ["-O3", "-DWITH_CUDA"]
    sys.modules[PEER] = load(PEER, sources, extra_include_paths=[str(folder)], extra_cflags=flags,
                             extra_cuda_cflags=flags, build_directory=str(folder / "build"))  # fmt: skip
    names = {"__name__": "ms_deform_attn_func"}
    path = operator / "functions" / "ms_deform_attn_func.py"
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names["MSDeformAttnFunction"].apply


class Floor(torch.autograd.Function):
    """An output and gradients that are there already."""

    @staticmethod
    def forward(ctx, out, *learning):
        ctx.save_for_backward(*learning)
        return out.view_as(out)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        return None, *ctx.saved_tensors


def tensors(workload):
    """(index tensors, value, locations, weights) on the GPU, which learn."""
    inputs = workload.generate(seed=1)
    samples = inputs.sampling_locations, inputs.attention_weights
    if points := workload.points_per_level:  # what the workload fills up, nobody wants
        wanted = np.arange(max(points)) < np.array(points)[:, None]
        # NumPy lays them out otherwise, and a tensor keeps that: each call would have to copy it.
        samples = [np.ascontiguousarray(array[:, :, :, wanted]) for array in samples]
    arrays = inputs.value, *samples
    index = tuple(torch.from_numpy(a).cuda() for a in (inputs.spatial_shapes, inputs.level_start_index))
    return index, [torch.from_numpy(a).cuda().requires_grad_() for a in arrays]


def called(learning, index, options):
    """(forward, what it learns)."""
    value, *samples = learning
    return lambda: ms_deform_attn(value, *index, *samples, **options), learning


def cast(peer, learning, index):
    """The peer's answer to float16, as training in mixed precision asks it: all it is given is cast."""
    value, *samples = (tensor.float() for tensor in learning)
    return peer(value, *index, *samples, 64).half()


def calls_of(name, peer):
    """{what it is: (forward, what it learns)} of a decoder, without arguments."""
    calls, workload = {}, preset(name)
    points = workload.points_per_level
    options = {"num_points": list(points)} if points else {}
    for dtype in ("float16", "float32"):
        index, learning = tensors(workload.replace(dtype=dtype))
        lists = [tensor.tolist() for tensor in index]
        calls[dtype] = called(learning, lists, options)
        calls[f"{dtype}_by_tensors"] = called(learning, index, options)
    if points:
        even = sum(points) // len(points)
        index, learning = tensors(workload.replace(dtype="float32", points_per_level=None, num_points=even))
    calls["peer"] = lambda: peer(learning[0], *index, *learning[1:], 64), learning
    types = [tensor.dtype for tensor in calls["float16"][1]]
    half = [tensor.detach().to(dtype).requires_grad_() for tensor, dtype in zip(learning, types, strict=True)]
    calls["peer_of_float16"] = lambda: cast(peer, half, index), half
    out = calls["peer"][0]().detach()
    calls["floor"] = lambda: Floor.apply(out, *learning), learning
    return calls


def steps_of(calls):
    """{what it is: its training step}, and {what it is: its forward pass}."""

    def step(forward, learning):
        given = torch.randn_like(forward().detach())
        return lambda: torch.autograd.grad(forward(), learning, given)

    steps = {name: step(*call) for name, call in calls.items()}
    return steps, {f"{name}_forward": forward for name, (forward, _) in calls.items()}


def apart(calls, points):
    """{what: largest difference to the peer}, nothing where they do not compute the same."""
    if points:
        return {}
    found = []
    for name in ("float32", "peer"):
        forward, learning = calls[name]
        out = forward()
        given = torch.ones_like(out)
        found.append([out.detach(), *torch.autograd.grad(out, learning, given)])
    names = "output", "of_value", "of_locations", "of_weights"
    return {n: float((a - b).abs().max() / b.abs().max()) for n, a, b in zip(names, *found, strict=True)}


def turns(calls, rounds):
    """{name: microseconds of a call in each turn}."""
    times, order = {name: [] for name in calls}, random.Random(1)
    for turn in range(3 + rounds):
        for name, call in order.sample([*calls.items()], len(calls)):  # who comes after whom, chance decides
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(STEPS):
                call()
            if turn > 2:  # the first ones warm up
                times[name].append(1e6 * (time.perf_counter() - start) / STEPS)
    torch.cuda.synchronize()
    return times


def row_of(name, peer, rounds):
    """A decoder's row."""
    calls = calls_of(name, peer)
    steps, forwards = steps_of(calls)
    times = turns({**steps, **forwards}, rounds)
    row = {"workload": name, "apart": apart(calls, preset(name).points_per_level),
           **{f"{key}_us": median(found) for key, found in times.items()}}  # fmt: skip
    ratios = [(key, "peer") for key in steps if key not in PEERS]
    for key, other in (*ratios, ("float16", PEERS[1]), ("float16_by_tensors", PEERS[1])):
        pairs = zip(times[key], times[other], strict=True)
        row[f"{key}_to_{other}"] = median(own / others for own, others in pairs)
    return row


def profile(name, peer, path):
    """Where Python's time goes in a step of float16, written to ``path``: both passes in this thread."""
    steps, _ = steps_of(calls_of(name, peer))
    lines = io.StringIO()
    with torch.autograd.set_multithreading_enabled(False):
        for key in ("float16", "peer"):
            profiler = cProfile.Profile()
            steps[key]()
            profiler.enable()
            for _ in range(STEPS):
                steps[key]()
            profiler.disable()
            torch.cuda.synchronize()
            print(f"--- {key}, {STEPS} steps", file=lines)
            pstats.Stats(profiler, stream=lines).sort_stats("tottime").print_stats(40)
    path.write_text(lines.getvalue())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=Path, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", type=Path, help="write where Python's time goes to this file")
    options = parser.parse_args()
    peer, rows = built(options.peer), []
    for name in DECODERS:
        rows.append(row_of(name, peer, options.rounds))
        print({key: round(v, 3) if isinstance(v, float) else v for key, v in rows[-1].items()}, flush=True)
    if options.out:
        settings = {"steps": STEPS, "rounds": options.rounds, "peer": "fundamentalvision/Deformable-DETR"}
        record.write(options.out, find_gpu(), rows, **settings)
    if options.profile:
        profile(DECODERS[0], peer, options.profile)


if __name__ == "__main__":
    main()

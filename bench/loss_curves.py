"""Training of two models with this operator beside their own code: the loss and the time of each step.

    python bench/loss_curves.py --out bench/results/loss_curves.json      # needs a GPU, transformers and scipy
    python bench/loss_curves.py --device cpu --tiny --steps 8

The models are transformers' Deformable DETR and D-FINE with random weights (see ``fresh``): nothing is
downloaded. They learn a few drawn pictures by their own losses, with AdamW. Every run starts from the same
weights and sees the same pictures in the same order. What a step draws depends on the seed: dropout in
Deformable DETR, the noise of the denoising queries in D-FINE. There are five runs:

    original, original-2           the model's own code with seeds 1 and 2
    original-moved                 seed 1, and each number of a picture moved by about 1e-6: bit noise
    numba_deform, numba_deform-2   ``patch("transformers")`` with seeds 1 and 2

The distance of two curves is the mean over all steps of the difference of their losses, each smoothed over one
pass through the pictures. A row says:

    gradients     the largest relative error of a gradient of ours against the original's in the first step, of
                  the attention's own projections; at most 1e-2 for float32
    first         the largest relative difference of the losses of ours and the original, of equal seeds, in the
                  first step: at most 1e-4 for float32. In the second one D-FINE may choose other queries for a
                  difference in the last bit of a weight, and its loss differs by a thousandth
    distance      between ours and the original of the same seed, mean of the two seeds
    noise         between ``original`` and ``original-2``
    bit_noise     between ``original`` and ``original-moved``
    within_noise  gradients and first are small enough, and distance is at most noise
    step_ms       median wall time of a step, without the first ones, which compile kernels
    grid_samples  calls of ``grid_sample`` a step, with which the models' own code samples: none in ours
    peak_mib      the largest amount of GPU memory that tensors took
"""

import argparse
import contextlib
import gc
import itertools
import time
from pathlib import Path
from statistics import fmean, median
from unittest import mock

import torch
import transformers

from numba_deform.engines.gpu.device import find_gpu
from numba_deform.measure import record
from numba_deform.torch import patch

RUNS = {"original": 1, "original-2": 2, "original-moved": 1, "numba_deform": 1, "numba_deform-2": 2}
PICTURES, BATCH, CLASSES = 8, 2, 5
EPOCH = PICTURES // BATCH
NOISE, MOVED = 0.02, 1e-6
PROJECTIONS = ("sampling_offsets", "attention_weights", "value_proj")
CLOSE = {  # limits of what a row says
    "none": {"gradients": 1e-2, "first": 1e-4}, "bfloat16": {"gradients": 0.3, "first": 3e-2}
}  # fmt: skip


def deformable_detr(tiny):
    """Deformable DETR with a ResNet-50; tiny: two layers each, 4 heads of 8 channels."""
    smaller, backbone = {}, {}
    if tiny:
        backbone = dict(embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1] * 4, layer_type="basic")
        smaller = dict(
            d_model=32, num_queries=20, encoder_layers=2, encoder_ffn_dim=64, encoder_attention_heads=4,
            decoder_layers=2, decoder_ffn_dim=64, decoder_attention_heads=4)  # fmt: skip
    backbone = transformers.ResNetConfig(out_features=["stage2", "stage3", "stage4"], **backbone)
    config = transformers.DeformableDetrConfig(
        use_timm_backbone=False, backbone_config=backbone, num_labels=CLASSES, auxiliary_loss=True, **smaller
    )
    return transformers.DeformableDetrForObjectDetection(config)


def d_fine(tiny):
    """D-FINE with an HGNet-V2, and 3, 6 and 3 points for the three levels; tiny: two layers, 4 heads of 8."""
    smaller, backbone = {}, {}
    if tiny:
        widths = [8, 16, 24, 32]
        backbone = dict(
            stem_channels=[3, 8, 8], stage_in_channels=[8, *widths[:3]], stage_mid_channels=[8] * 4,
            stage_out_channels=widths, stage_num_blocks=[1] * 4, stage_numb_of_layers=[1] * 4,
            embedding_size=8, hidden_sizes=widths, depths=[1] * 4)  # fmt: skip
        smaller = dict(
            encoder_in_channels=widths[1:], encoder_hidden_dim=32, encoder_ffn_dim=64,
            encoder_attention_heads=4, d_model=32, decoder_in_channels=[32] * 3, decoder_layers=2,
            decoder_ffn_dim=64, decoder_attention_heads=4, num_queries=20, num_denoising=10,
            depth_mult=0.34, hidden_expansion=0.5)  # fmt: skip
    config = transformers.DFineConfig(
        backbone_config=transformers.HGNetV2Config(out_indices=[2, 3, 4], **backbone),
        decoder_n_points=[3, 6, 3], num_labels=CLASSES, **smaller,
    )  # fmt: skip
    return transformers.DFineForObjectDetection(config)


MODELS = {"deformable-detr": deformable_detr, "d-fine": d_fine}


def fresh(name, tiny):
    """A model with random weights, always the same.

    Weights that start as constants get noise, too: else samples lie exactly on pixels, where the gradient of a
    location jumps, and rounding alone decides on which side. Convolutions keep the scale of what goes through
    them: from D-FINE's own start nothing of the picture would leave the backbone."""
    torch.manual_seed(0)
    model = MODELS[name](tiny).train()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Conv2d):
                torch.nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        for parameter in model.parameters():
            parameter += NOISE * torch.randn_like(parameter)
    return model


def pictures(side, device):
    """[(pixels (BATCH, 3, side, side), labels as models take them)]: rectangles on noise, coloured by class."""
    random = torch.Generator().manual_seed(7)
    colours = torch.rand(CLASSES, 3, generator=random) * 2 - 1
    pixels = torch.randn(PICTURES, 3, side, side, generator=random) / 4
    labels = []
    for picture in pixels:
        count = int(torch.randint(1, 5, (), generator=random))
        classes = torch.randint(0, CLASSES, (count,), generator=random)
        sizes = 0.15 + 0.35 * torch.rand(count, 2, generator=random)
        centres = sizes / 2 + (1 - sizes) * torch.rand(count, 2, generator=random)
        for kind, low, high in zip(classes, centres - sizes / 2, centres + sizes / 2, strict=True):
            (left, top), (right, bottom) = (low * side).int().tolist(), (high * side).int().tolist()
            picture[:, top:bottom, left:right] += 2 * colours[kind][:, None, None]
        labels.append({"class_labels": classes.to(device), "boxes": torch.cat([centres, sizes], 1).to(device)})
    batches = zip(pixels.to(device).split(BATCH), range(0, PICTURES, BATCH), strict=True)
    return [(some, labels[first : first + BATCH]) for some, first in batches]


def train(model, batches, seed, steps, autocast):
    """(losses, milliseconds, {name: gradient in the first step}) of a model that is changed."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=20)
    torch.manual_seed(seed)
    device = batches[0][0].device.type
    kind = {} if autocast == "none" else {"dtype": getattr(torch, autocast)}
    losses, times, gradients = [], [], {}
    for step in range(steps):
        pixels, labels = batches[step % len(batches)]
        start = time.perf_counter()
        with torch.autocast(device, enabled=bool(kind), **kind):
            loss = model(pixel_values=pixels, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        if not step:
            own = (pair for pair in model.named_parameters() if any(name in pair[0] for name in PROJECTIONS))
            gradients = {name: parameter.grad.double().cpu() for name, parameter in own}
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return losses, times, gradients


def smoothed(losses):
    return [fmean(losses[max(0, end - EPOCH) : end]) for end in range(1, len(losses) + 1)]


def distance(one, other):
    """Mean difference of two smoothed curves."""
    return fmean(abs(a - b) for a, b in zip(smoothed(one), smoothed(other), strict=True))


def compare(losses, gradients, limits):
    """What a row says of the curves and gradients of :data:`RUNS`, see above."""
    both = [(f"numba_deform{end}", f"original{end}") for end in ("", "-2")]
    pairs = [(losses[ours], losses[own]) for ours, own in both]
    errors = (
        (gradients[ours][name] - exact).norm() / exact.norm()
        for ours, own in both for name, exact in gradients[own].items()
    )  # fmt: skip
    found = {
        "gradients": float(max(errors)),
        "first": max(abs(ours[0] / own[0] - 1) for ours, own in pairs),
        "distance": fmean(distance(*pair) for pair in pairs),
        "noise": distance(losses["original"], losses["original-2"]),
        "bit_noise": distance(losses["original"], losses["original-moved"]),
    }
    near = all(found[key] <= limit for key, limit in limits.items())
    return {**found, "within_noise": near and found["distance"] <= found["noise"]}


def run_of(name, run, *, device, tiny, side, steps, autocast):
    """{key: what a row says of it} for one of :data:`RUNS`, and the gradients of its first step."""
    batches = pictures(side, device)
    if run.endswith("moved"):
        random = torch.Generator().manual_seed(8)
        batches = [(p + MOVED * torch.randn(p.shape, generator=random).to(device), own) for p, own in batches]
    if device == "cuda":
        gc.collect()  # what the run before has left
        torch.cuda.reset_peak_memory_stats()
    ours = patch("transformers") if run.startswith("numba_deform") else contextlib.nullcontext()
    calls, sample = itertools.count(), torch.nn.functional.grid_sample

    def counted(*args, **options):
        next(calls)
        return sample(*args, **options)

    with ours, mock.patch.object(torch.nn.functional, "grid_sample", counted):
        losses, times, gradients = train(fresh(name, tiny).to(device), batches, RUNS[run], steps, autocast)
    found = {"losses": losses, "gradients": gradients}
    found["step_ms"] = median(times[min(2 * EPOCH, steps // 2) :])
    found["grid_samples"] = next(calls) / steps
    if device == "cuda":
        found["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
    print(f"{name} {run}: {losses[0]:.3f} -> {losses[-1]:.3f}, {found['step_ms']:.1f} ms a step", flush=True)
    return found


def rows_of(name, **options):
    """The row of a model after each run; how the curves lie to each other stands in the last one."""
    runs = {}
    for run in RUNS:
        runs[run] = run_of(name, run, **options)
        each = {key: {done: found[key] for done, found in runs.items()} for key in runs[run]}
        losses, gradients = each.pop("losses"), each.pop("gradients")
        found = compare(losses, gradients, CLOSE[options["autocast"]]) if len(runs) == len(RUNS) else {}
        yield {"model": name, "batch": BATCH, **options, **found, **each, "losses": losses}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, action="append", help="one of them; all, if not given")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models, for the CPU")
    parser.add_argument("--side", type=int, help="pixels of a picture's side, a multiple of 32: 640, tiny 64")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--autocast", choices=CLOSE, default="none")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    gpu, rows = find_gpu() if options.device == "cuda" else None, []
    for name in options.model or MODELS:
        asked = {key: getattr(options, key) for key in ("device", "tiny", "steps", "autocast")}
        for row in rows_of(name, side=options.side or (64 if options.tiny else 640), **asked):
            if options.out:
                record.write(options.out, gpu, [*rows, row], transformers=transformers.__version__)
        rows.append(row)
        print({key: value for key, value in row.items() if key != "losses"}, flush=True)


if __name__ == "__main__":
    main()

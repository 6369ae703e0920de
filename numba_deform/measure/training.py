"""``numba-deform bench what=training``: a training step of Deformable DETR's encoder, with the operator of this
package and with each peer; needs PyTorch.

A step is forward, loss, backward and optimiser. The encoder is the published one (Zhu et al., 2021): six
layers, 256 channels, 8 heads, 4 levels of an image of 800 x 1333, 4 points, a feed-forward part of 1024; here
without dropout, with random weights and a batch of 2. ``float16`` is automatic mixed precision with scaled
gradients, ``float32`` computes all in it. A step is timed as it runs, with what its launches cost the host."""

import functools
import gc
import math

import torch
from torch import nn

from ..kernels.problem import level_starts, pixel_centres
from ..workloads.presets import preset
from . import baselines, bench, record
from .gradients import OWN, judge_errors, peak_bytes, relative_error

DTYPES = ("float16", "float32")
WORKLOAD = preset("detr-encoder").replace(name="detr-encoder-b2", batch=2)
LAYERS, HIDDEN = 6, 1024
# Of the loss and of the worst parameter's gradient, which in fp16 has come through six layers.
TOLERANCES = {"float16": {"loss": 2e-2, "gradients": 0.5}, "float32": {"loss": 1e-4, "gradients": 3e-2}}


class Attention(nn.Module):
    """Multi-scale deformable attention with its projections; ``sample`` (value, locations, weights) -> (B, Q,
    H*C) is the operator."""

    def __init__(self, workload, sample):
        super().__init__()
        self.heads, self.levels, self.points = workload.num_heads, workload.num_levels, workload.num_points
        self.sample = sample
        width, samples = self.heads * workload.channels, self.heads * self.levels * self.points
        self.offsets, self.weights = nn.Linear(width, 2 * samples), nn.Linear(width, samples)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        angles = torch.arange(self.heads) * (2 * math.pi / self.heads)
        steps = torch.stack([angles.cos(), angles.sin()], -1)[:, None, None]
        steps = steps * torch.arange(1, self.points + 1)[:, None]
        with torch.no_grad():
            nn.init.normal_(self.offsets.weight, std=0.05)
            self.offsets.bias.copy_(steps.expand(-1, self.levels, -1, -1).flatten())

    def forward(self, tokens, places, centres, sizes):
        """(B, S, H*C) of tokens and their places' embeddings, which are added for the query alone; centres
        (S, 2) and sizes (L, 2) as (x, y)."""
        batch, count, _ = tokens.shape
        query, shape = tokens + places, (batch, count, self.heads, self.levels, self.points)
        value = self.value(tokens).view(batch, count, self.heads, -1)
        offsets = self.offsets(query).view(*shape, 2)
        weights = self.weights(query).view(*shape[:3], -1).softmax(-1).view(shape)
        locations = centres[:, None, None, None] + offsets / sizes[:, None]
        return self.out(self.sample(value, locations, weights))


class Layer(nn.Module):
    """Attention and a feed-forward part, each with its sum and norm."""

    def __init__(self, workload, sample):
        super().__init__()
        width = workload.num_heads * workload.channels
        self.attention, self.first, self.second = Attention(workload, sample), *map(nn.LayerNorm, [width] * 2)
        self.forward_part = nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, width))

    def forward(self, tokens, *where):
        tokens = self.first(tokens + self.attention(tokens, *where))
        return self.second(tokens + self.forward_part(tokens))


class Training:
    """An encoder with its data and optimiser; the same ``seed`` gives the same.

    step()    one training step
    peek()    the loss, and a list of the parameters' gradients, as the next step would have them"""

    def __init__(self, workload, dtype, sample, seed=1, device="cuda", layers=LAYERS):
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(Layer(workload, sample) for _ in range(layers)).to(device)
        shape = (workload.batch, workload.num_positions, workload.num_heads * workload.channels)
        self.tokens, self.places, self.target = (torch.randn(shape).to(device) for _ in range(3))
        centres = torch.as_tensor(pixel_centres(workload.levels), dtype=torch.float32, device=device)
        sizes = torch.tensor(workload.levels, dtype=torch.float32, device=device).flip(1)
        self._where, self._is_mixed, self._device = (centres, sizes), dtype == "float16", device
        self._optimiser = torch.optim.AdamW(self.layers.parameters(), lr=1e-4, fused=True)
        self._scaler = torch.amp.GradScaler(device, enabled=self._is_mixed)

    def _loss(self):
        tokens = self.tokens
        with torch.autocast(self._device, torch.float16, enabled=self._is_mixed):
            for layer in self.layers:
                tokens = layer(tokens, self.places, *self._where)
        return nn.functional.mse_loss(tokens.float(), self.target)

    def step(self):
        self._optimiser.zero_grad()
        self._scaler.scale(self._loss()).backward()
        self._scaler.step(self._optimiser)
        self._scaler.update()

    def peek(self):
        loss, scale = self._loss(), 2.0**14 if self._is_mixed else 1.0  # of gradients in fp16, which has few
        found = torch.autograd.grad(loss * scale, list(self.layers.parameters()))
        return loss.detach(), [gradient / scale for gradient in found]


def bench_training(gpu, dtypes=DTYPES, peer_names=(), repeats=10, seed=1, warm_up=1,
                   progress=lambda text: None, keep=lambda document: None):  # fmt: skip
    """A JSON document like that of :func:`bench.bench`: its times are those of a step. ``errors`` of the loss
    and of the worst parameter's gradient are those against ``grid_sample`` in float32, and ``peak_bytes`` is
    what a step takes at most beside parameters, optimiser and data. ``keep`` is given what there is after each
    type. Raises ValueError for another type than DTYPES."""
    rows = []
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise ValueError(f"dtype={dtype}: a training step is timed in {' and '.join(DTYPES)}")
    workloads = [WORKLOAD.replace(dtype=dtype) for dtype in dtypes]
    described = [{**_columns(workload), "text": workload.describe()} for workload in workloads]
    about = dict(kind="bench", what="training", clock=bench.clock(gpu), workloads=described, ceilings=[],
                 settings={"repeats": repeats, "warm_up": warm_up, "seed": seed})  # fmt: skip
    for workload in workloads:
        rows += _rows(gpu, workload, (OWN, *peer_names), repeats, seed, warm_up, progress)
        gc.collect()
        torch.cuda.empty_cache()
        document = record.document(gpu, rows, **about)
        keep(document)
    return document


def _columns(workload):
    return {**bench.columns(workload), "pattern": "learnt offsets"}


def _rows(gpu, workload, names, repeats, seed, warm_up, progress):
    make = functools.partial(training_with, workload, seed=seed)
    progress("what grid_sample gives in float32")
    exact = make("torch grid_sample", dtype="float32").peek()
    rows, jobs = [], []
    for name in names:
        progress(f"{workload.dtype}: {name}")
        row = {**_columns(workload), "kind": "operator" if name == OWN else "peer", "variant": name}
        rows.append(row)
        with baselines.failing_into(row):
            training = make(name, dtype=workload.dtype)
            judge(row, training.peek(), exact, workload.dtype)
            row["peak_bytes"] = peak_bytes(torch, training.step)
            if "error_text" not in row:
                jobs.append((row, training.step))
        gc.collect()
        torch.cuda.empty_cache()
    progress(f"{workload.dtype}: timing {len(jobs)} steps")
    with bench.timing([row for row, _ in jobs]):
        times = bench.time_round_by_round(gpu, [step for _, step in jobs], repeats, warm_up)
        for (row, _), own in zip(jobs, times, strict=True):
            row |= record.spread(own)
    return rows


def training_with(workload, name, dtype, seed=1, device="cuda", layers=LAYERS):
    """The :class:`Training` with a peer's operator, or this package's (OWN); raises baselines.NotInstalled."""
    levels = baselines.geometry(workload.levels, level_starts(workload.levels), workload.batch, device)
    if name == OWN:
        from ..torch import ms_deform_attn

        def sample(value, locations, weights):
            return ms_deform_attn(value, levels.shapes_list, levels.starts_list, locations, weights)
    else:
        peer = baselines.peer_of(name)
        call = baselines.made(name, peer, levels)

        def sample(value, locations, weights):
            if not peer.in_float32:
                return call(value, locations, weights)
            with torch.autocast(device, enabled=False):
                return call(value.float(), locations.float(), weights.float()).to(value.dtype)

    return Training(workload, dtype, sample, seed, device, layers)


def judge(row, found, exact, dtype):
    """The errors of the loss and of the worst parameter's gradient into the row, and what is wrong."""
    (loss, gradients), (exact_loss, exact_gradients) = found, exact
    each = [relative_error(g, e.double()) for g, e in zip(gradients, exact_gradients, strict=True)]
    row["errors"] = {"loss": relative_error(loss, exact_loss.double()),
                     "gradients": math.nan if any(map(math.isnan, each)) else max(each)}  # fmt: skip
    row["error"] = max(row["errors"].values())
    judge_errors(row, TOLERANCES[dtype])

# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A model with this operator
#
# *About 15 minutes, without exercises. You know PyTorch. You need transformers, and no GPU:*
# `pip install -e '.[models]'`.
#
# You have a model from transformers that samples by deformable attention. Here you find out where its time
# goes, put this operator in the place of its own with one line, and look again: at the outputs, at the profile
# and at the gradients. The model is a Deformable DETR with random weights, so nothing is downloaded.

# %%
try:
    import torch
    import transformers
except ImportError as missing:
    raise SystemExit(f"{missing}: this page needs PyTorch and transformers") from None

from torch.profiler import ProfilerActivity, profile, record_function

from numba_deform.torch import patch

device = "cuda" if torch.cuda.is_available() else "cpu"
print(f"torch {torch.__version__}, transformers {transformers.__version__}, on: {device}")

# %% [markdown]
# A large model where there is a GPU, else a small one. It has four feature maps of the picture, and its
# attention takes four samples from each of them, for each query and head.

# %%
WIDTH, SIDE, LAYERS = (256, 800, 6) if device == "cuda" else (64, 128, 2)
torch.manual_seed(0)
backbone = transformers.ResNetConfig(
    embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[1] * 4, layer_type="basic",
    out_features=["stage2", "stage3", "stage4"])  # fmt: skip
config = transformers.DeformableDetrConfig(
    use_timm_backbone=False, backbone_config=backbone, d_model=WIDTH, num_queries=100,
    encoder_layers=LAYERS, encoder_ffn_dim=4 * WIDTH,
    decoder_layers=LAYERS, decoder_ffn_dim=4 * WIDTH)  # fmt: skip
model = transformers.DeformableDetrForObjectDetection(config).eval().to(device)
pixels = torch.randn(1, 3, SIDE, SIDE, device=device)

with torch.no_grad():
    before = model(pixel_values=pixels)
print("boxes:", tuple(before.pred_boxes.shape), " scores:", tuple(before.logits.shape))

# %% [markdown]
# ## Where does the time go?
#
# PyTorch's profiler lists every operation. Its names say what was computed, but not for what: an addition of
# the attention looks like any other. So we give the part that we ask about a name. Hooks open a range before
# the attention's sampling, and close it after.

# %%
RANGE = "deformable attention"
opened = []


def enter(module, inputs):
    opened.append(record_function(RANGE))
    opened[-1].__enter__()


def leave(module, inputs, output):
    opened.pop().__exit__(None, None, None)


attentions = [m for m in model.modules() if type(m).__name__ == "MultiScaleDeformableAttention"]
for module in attentions:
    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave)
print(f"{len(attentions)} layers sample: {LAYERS} of the encoder and {LAYERS} of the decoder")

# %% [markdown]
# The first run is not looked at: it allocates memory, and on a GPU it compiles kernels. On a GPU the times are
# those of kernels, else those of PyTorch's operations on the CPU. *Self* time is without the operations
# that an operation calls.

# %%
ACTIVITIES = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
SELF, TOTAL = ("self_device_time_total", "device_time_total") if device == "cuda" else (
    "self_cpu_time_total", "cpu_time_total")  # fmt: skip


def look(run, rows=8):
    """Print the operations that take longest, and what lies in the range; {name: calls} of all."""
    run()
    with profile(activities=ACTIVITIES) as profiler:
        run()
    found = profiler.key_averages()
    timed = [row for row in found if row.device_type.name == device.upper() and not row.is_user_annotation]
    whole = sum(getattr(row, SELF) for row in timed)
    print(f"{'operation':44} {'calls':>6} {'self time':>10}")
    for row in sorted(timed, key=lambda row: -getattr(row, SELF))[:rows]:
        print(f"{row.key[:44]:44} {row.count:6} {getattr(row, SELF) / whole:10.0%}")
    (inside,) = (row for row in found if row.key == RANGE and row.device_type.name == "CPU")
    print(f"{RANGE}: {getattr(inside, TOTAL) / whole:.0%} of {whole / 1e3:.1f} ms")
    return {row.key: row.count for row in found}


# %% [markdown]
# **Predict**: transformers samples with PyTorch's `grid_sample`, which knows one feature map. How often does a
# run call `grid_sampler_2d`? And what else has the attention to do with the samples?


# %%
def infer():
    with torch.no_grad():
        return model(pixel_values=pixels)


calls_before = look(infer)
print("grid_sampler_2d:", calls_before["aten::grid_sampler_2d"], "calls")

# %% [markdown]
# Every layer calls it once for each of the four maps. It writes all samples to memory. Others then copy
# them together (`stack`), multiply them by their weights and add them up (`mul`, `sum`). That is how one
# operator becomes a list of operations: each one reads from memory what the one before it has written.
#
# ## One line
#
# `patch` puts this operator in the place of transformers' own: in every model of that library, in those that
# exist already too, until the end of the `with`.
#
# **Predict**: which rows of the profile disappear? Which outputs change?

# %%
with patch("transformers") as patched:
    after = infer()
    calls_after = look(infer)
    print("replaced:", *(place.rpartition(".models.")[2] for place in patched.places), sep="\n    ")
print("grid_sampler_2d:", calls_after.get("aten::grid_sampler_2d", 0), "calls")

# %%
for name in ("logits", "pred_boxes"):
    one, other = getattr(before, name), getattr(after, name)
    print(f"{name}: the largest difference is {float((one - other).abs().max()):.1e}")

# %% [markdown]
# The outputs are the same but for rounding, and `grid_sampler_2d` is gone. How to read the times:
#
# - **On the CPU** the operator is one row, `numba_deform::ms_deform_attn`: a function that Numba has compiled,
#   in as many threads as PyTorch has. It takes a tenth to two thirds of the time of transformers' code, with
#   gradients too: the larger the call, the less (`bench/results/cpu_operator.json`). This model is small, and
#   your machine may be busy: read which operations are left.
# - **On a GPU** the rows are kernels. One kernel samples, weights and adds up, and keeps the samples in
#   registers, so what was written between operations is gone. Compare the share of the attention
#   before and after. What is left is the model's own: products, convolutions, norms.

# %% [markdown]
# ## Gradients
#
# A model that learns needs them, for values, locations and weights. We compare them for every
# parameter of the model: the error of one, relative to its size. (A loss of our own, since the model's own one
# needs boxes to match.)


# %%
def gradients():
    model.zero_grad()
    out = model(pixel_values=pixels)
    (out.logits.square().mean() + out.pred_boxes.square().mean()).backward()
    named = model.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None and p.grad.norm() > 1e-6}


def compare():
    own = gradients()
    with patch("transformers"):
        ours = gradients()
    errors = {name: float((ours[name] - g).norm() / g.norm()) for name, g in own.items() if name in ours}
    for name in sorted(errors, key=errors.get, reverse=True)[:4]:
        print(f"{errors[name]:.0e}  {name}")
    return errors


# %% [markdown]
# **Predict** the largest error. Sums in fp32 of a few thousand numbers are good for about 1e-6.

# %%
errors_at_start = compare()

# %% [markdown]
# One kind of parameter is far off: the offsets of the samples. Is this operator wrong? Ask where the samples of
# a fresh model lie. A query of the encoder is a pixel, its reference point is the middle of the pixel, and the
# first offsets are whole pixels. So the samples of its own map lie *exactly* on pixels. The value there is
# plain: that of the pixel. But its slope has a kink: on the left it leads to one neighbour, on the right to
# the other. Both are right answers, and the last bit of the location decides between them. The two codes
# round that bit differently.
#
# If this is so, it must be gone once the samples lie elsewhere. So move all weights a little.

# %%
with torch.no_grad():
    for parameter in model.parameters():
        parameter += 0.02 * torch.randn_like(parameter)
errors_elsewhere = compare()

# %% [markdown]
# Now all agree. Remember this when you compare two implementations of anything with kinks: test at
# points in general position. (Training does not mind. After the first step the samples lie elsewhere.)
#
# ## More
#
# - `p = patch("transformers")` without `with` lasts until `p.undo()`. Names for other libraries stand in
#   `patch`'s help: mmcv, detrex, the authors' own code of several models.
# - `numba_deform.torch.ms_deform_attn` is the operator itself, for a model of your own.
# - [`bench/loss_curves.py`](../bench/loss_curves.py) trains Deformable DETR and D-FINE with the patch and
#   without, and compares the losses with the noise of training.

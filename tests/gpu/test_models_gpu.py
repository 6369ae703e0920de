"""transformers' models on a GPU with this operator in the place of their own, in float32 and under autocast."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
sys.path.append(str(Path(__file__).resolve().parents[1] / "pytorch"))

from tiny_models import attentions, drawn  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from numba_deform.torch import patch  # noqa: E402

LIMITS = {torch.float32: (1e-4, 1e-3), torch.float16: (5e-3, 5e-2), torch.bfloat16: (4e-2, 2e-1)}


@pytest.fixture(autouse=True)
def on_gpu(hopper):
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def run(model, inputs, output, dtype):
    """(the output, the gradients of the weights of offsets, calls of grid_sample)."""
    model.zero_grad()
    with profile(activities=[ProfilerActivity.CPU]) as record:
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            out = model(**inputs)[output]
        given = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(out)
        (out * given).sum().backward()
    gradients = [p.grad.flatten() for name, p in model.named_parameters() if "sampling_offsets.weight" in name]
    theirs = sum(event.count for event in record.key_averages() if event.key == "aten::grid_sampler_2d")
    return out.detach().float(), torch.cat(gradients), theirs


def error(found, wanted):
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("name", ["deformable_detr", "d_fine"])
def test_models(name, dtype):
    """Near the model's own output in float32: under autocast not much farther than the model's own is."""
    model, inputs, output = drawn(name)
    model, inputs = model.cuda(), {key: tensor.cuda() for key, tensor in inputs.items()}
    exact = run(model, inputs, output, torch.float32)
    original = run(model, inputs, output, dtype)
    with patch("transformers"):
        found = run(model, inputs, output, dtype)
    levels = original[2] // attentions(model)
    assert levels == {"deformable_detr": 4, "d_fine": 3}[name] and found[2] == 0
    for i, limit in enumerate(LIMITS[dtype]):
        assert error(found[i], exact[i]) < limit + 2 * error(original[i], exact[i])

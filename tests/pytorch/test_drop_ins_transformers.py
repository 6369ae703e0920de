"""transformers' models with this operator in the place of their own, on the CPU.

transformers' own tests are not in its wheel: here each model is compared with itself."""


import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tiny_models import MODELS, attentions, drawn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from numba_deform.torch import patch  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # these tensors are too small for two
    yield
    torch.set_num_threads(before)


class Counter(TorchDispatchMode):
    """Counts calls of this operator, and of the one with which models sample by themselves."""

    def __init__(self):
        super().__init__()
        self.ours = self.theirs = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.ours += function.name().startswith("numba_deform::ms_deform_attn.") or (
            function.name() == "numba_deform::ms_deform_attn"
        )
        self.theirs += function.name().startswith("aten::grid_sampler_2d")
        return function(*args, **(kwargs or {}))


def run(model, inputs, output):
    """(the output, gradient of each parameter, the Counter)."""
    model.zero_grad()
    with Counter() as counter:
        out = model(**inputs)[output]
    given = torch.randn(out.shape, generator=torch.Generator().manual_seed(5))
    (out * given).sum().backward()
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()
    }
    return out.detach(), gradients, counter


def error(found, wanted, least=0.0):
    """The relative error of all numbers together; of what is next to nothing, relative to ``least``."""
    return float((found - wanted).norm() / max(float(wanted.norm()), least))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_models(name, dtype):
    """Outputs and the gradients of all parameters are the model's own, and no other operator samples."""
    limit = {torch.float32: 1e-4, torch.float64: 1e-11}[dtype]
    model, *rest = drawn(name, dtype)
    wanted, gradients, counter = run(model, *rest)
    assert attentions(model) >= 2 and counter.ours == 0
    with patch("transformers"):
        found, others, counter = run(model, *rest)
    assert (counter.ours, counter.theirs) == (attentions(model), 0)
    assert error(found, wanted) < limit
    least = max(float(gradient.norm()) for gradient in gradients.values()) / 100
    assert {k: e for k in gradients if (e := error(others[k], gradients[k], least)) > limit} == {}
    moved = [k for k in gradients if "sampling_offsets" in k and gradients[k].any()]
    assert bool(moved) == ("discrete" not in name)
    again, _, counter = run(model, *rest)
    assert counter.ours == 0 and torch.equal(again, wanted)

"""transformers' models with this operator in the place of their own, on the CPU.

transformers' own tests are not in its wheel: here each model is compared with itself."""


import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tiny_models import MODELS, attentions, drawn, transformers  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from numba_deform.torch import contracts, kernel_mapping, patch  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


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
    return float((found - wanted).detach().norm() / max(float(wanted.detach().norm()), least))


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


# --- the functions alone, of whatever model has them ------------------------------------------------
NAMES = {
    "MultiScaleDeformableAttention": contracts.MultiScaleDeformableAttention.forward,
    "multi_scale_deformable_attention": contracts.without_starts,
    "multi_scale_deformable_attention_v2": contracts.with_points,
}
DEFINITION = re.compile(rf"^(?:class|def) ({'|'.join(NAMES)})\(", re.M)
FILES = sorted(Path(transformers.__file__).parent.glob("models/*/modeling_*.py"))
FOUND = [
    (f"transformers.models.{file.parent.name}.{file.stem}", match[1])
    for file in FILES
    for match in DEFINITION.finditer(file.read_text(encoding="utf-8"))
]


def test_what_is_looked_for_is_there():
    assert {name for _, name in FOUND} == set(NAMES) and len(FOUND) >= 10


def test_every_model_that_defines_one_is_compared():
    """One that is new with transformers' next release has to be added to tiny_models.py."""
    defined = {path.split(".")[2] for path, _ in FOUND}
    assert defined - {name.partition(" ")[0] for name in MODELS} == set()


@pytest.mark.parametrize("name", NAMES)
def test_all_models_that_define_it(name):
    """Each is replaced, takes the same arguments, and gives the same for samples inside and outside."""
    random = torch.Generator().manual_seed(1)
    shapes, samples = [(4, 6), (3, 2)], (2, 3) if not name.endswith("v2") else (8,)
    value = torch.randn(2, 30, 2, 4, generator=random)
    locations = torch.rand(2, 5, 2, *samples, 2, generator=random) * 1.4 - 0.2
    weights = torch.rand(2, 5, 2, *samples, generator=random)
    arguments = {
        "value": value, "value_spatial_shapes": shapes, "value_spatial_shapes_list": shapes,
        "level_start_index": torch.tensor([0, 24]), "sampling_locations": locations,
        "attention_weights": weights, "im2col_step": 64, "num_points_list": [3, 5],
    }  # fmt: skip
    for module in (importlib.import_module(path) for path, defined in FOUND if defined == name):
        call = getattr(module, name)
        call = call() if isinstance(call, type) else call
        names = list(inspect.signature(getattr(call, "forward", call)).parameters)
        assert names == [n for n in inspect.signature(NAMES[name]).parameters if n != "self"][: len(names)]
        given = {key: arguments[key] for key in names if key in arguments}
        wanted = call(**given)
        with patch("transformers") as p, Counter() as counter:
            assert f"{module.__name__}.{name}" in p.places
            assert torch.allclose(call(**given), wanted, atol=1e-5) and counter.ours == 1
            if "method" in names:
                found = call(**given, method="discrete")
        if "method" in names:
            assert torch.allclose(found, call(**given, method="discrete"), atol=1e-5)


# --- the next release ------------------------------------------------------------------------------
def deformable(source):
    """{a function or class that is a deformable attention by itself: the definitions that it calls}: it samples
    with ``grid_sample`` and weighs by attention weights, or is a layer that computes where to sample."""
    tree, found = ast.parse(source), {}
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        words = {n.id if isinstance(n, ast.Name) else n.attr if isinstance(n, ast.Attribute) else n.arg
                 for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute, ast.arg))}  # fmt: skip
        samples = "grid_sample" in words and any("attention_weight" in word for word in words)
        attributes = (n for n in ast.walk(node) if isinstance(n, ast.Attribute))
        stored = {n.attr for n in attributes if isinstance(n.ctx, ast.Store)}
        if samples or "sampling_offsets" in stored:
            found[node.name] = words
    return found


def unknown(source):
    """The deformable attentions in a file that the patch neither replaces nor reaches."""
    return [name for name, words in deformable(source).items() if name not in NAMES and not words & set(NAMES)]


def test_the_patch_knows_every_deformable_attention():
    sources = {file.stem: file.read_text(encoding="utf-8") for file in FILES}
    kept = {name: text for name, text in sources.items() if "grid_sample" in text or "sampling_offsets" in text}
    assert len(kept) >= 15
    assert {name: found for name, text in kept.items() if (found := unknown(text))} == {}


def test_one_that_the_patch_does_not_know_is_found():
    """By the names that transformers might give its next one; other uses of grid_sample are none."""
    source = """
def attention_v3(value, attention_weights):
    return nn.functional.grid_sample(value) * attention_weights
class Layer:
    def __init__(self):
        self.sampling_offsets = nn.Linear(1, 1)
    def forward(self):
        attend()
class Known:
    def __init__(self):
        self.sampling_offsets = nn.Linear(1, 1)
        self.attn = MultiScaleDeformableAttention()
def sample_point(features):
    return grid_sample(features)
"""
    assert unknown(source) == ["attention_v3", "Layer"]


# --- models made while the patch is on, compiled models ---------------------------------------------
@pytest.mark.parametrize("name", ["deformable_detr", "d_fine"])
def test_models_made_under_a_patch_are_ordinary_afterwards(name):
    with patch("transformers"):
        model, *rest = drawn(name)
        found, _, counter = run(model, *rest)
        assert counter.ours == attentions(model)
    wanted, _, counter = run(model, *rest)
    assert counter.ours == 0 and error(found, wanted) < 1e-4


def parts():
    """An encoder's layer of Deformable DETR and an attention of D-FINE, each with its arguments."""
    shapes = [(8, 12), (4, 6), (2, 3), (1, 2)]
    pixels = torch.randn(2, 128, 32)
    layer = drawn("deformable_detr")[0].encoder.layers[0]
    yield layer, {
        "hidden_states": pixels, "attention_mask": None, "reference_points": torch.rand(2, 128, 4, 2),
        "spatial_position_embeddings": torch.randn(2, 128, 32), "spatial_shapes": torch.tensor(shapes),
        "spatial_shapes_list": shapes, "level_start_index": torch.tensor([0, 96, 120, 126]),
    }  # fmt: skip
    model = drawn("d_fine")[0]
    attention = next(module for module in model.modules() if hasattr(module, "sampling_offsets"))
    yield attention, {
        "hidden_states": torch.randn(2, 5, 32), "reference_points": torch.rand(2, 5, 1, 4),
        "encoder_hidden_states": pixels[:, :126], "spatial_shapes": torch.tensor(shapes[:3]),
        "spatial_shapes_list": shapes[:3],
    }  # fmt: skip


class Graphs(list):
    """A backend of torch.compile that notes which operators a graph has."""

    def __call__(self, graph, inputs):
        self.append({str(node.target) for node in graph.graph.nodes if node.op == "call_function"})
        return graph

    def is_ours(self):
        last = " ".join(self[-1])
        assert ("grid_sample" in last) != ("numba_deform" in last)
        return "numba_deform" in last


@pytest.mark.parametrize("which", [0, 1])
def test_compiled(which):
    """One graph; what was compiled before a patch or under it is compiled again when that changes."""
    part, arguments = list(parts())[which]
    graphs = Graphs()
    compiled = torch.compile(part, fullgraph=True, backend=graphs)

    def out():
        found = compiled(**arguments)
        return found[0] if isinstance(found, tuple) else found

    wanted = out()
    assert not graphs.is_ours()
    with patch("transformers"):
        found = out()
        assert graphs.is_ours() and error(found, wanted) < 1e-5
        found.sum().backward()
        assert part.get_parameter(next(n for n, _ in part.named_parameters() if "offsets.w" in n)).grad.any()
    assert torch.equal(out(), wanted) and not graphs.is_ours()


# --- transformers' use_kernels ----------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["TRAINING", "INFERENCE"])
@pytest.mark.parametrize("compiled", [False, True])
def test_kernelize(mode, compiled, monkeypatch):
    """The package ``kernels`` takes the layer for each mode. Here it is asked without transformers, which wants
    certain versions of it, and marks its layers with the name only if it finds one."""
    kernels = pytest.importorskip("kernels", reason="the package kernels is not installed")
    model, *rest = drawn("deformable_detr")
    wanted = run(model, *rest)
    layer = type(next(m for m in model.modules() if type(m).__name__ == "MultiScaleDeformableAttention"))
    monkeypatch.setattr(layer, "kernel_layer_name", layer.__name__, raising=False)
    mode = kernels.Mode[mode] | kernels.Mode.TORCH_COMPILE if compiled else kernels.Mode[mode]
    with kernels.use_kernel_mapping(kernel_mapping(), inherit_mapping=False):
        kernels.kernelize(model, mode=mode, device="cpu", use_fallback=False)
    found, gradients, counter = run(model, *rest)
    assert counter.ours == attentions(model)
    assert error(found, wanted[0]) < 1e-4
    if compiled:
        graphs, (inputs, output) = Graphs(), rest
        attention = next(module for module in model.modules() if hasattr(module, "sampling_offsets"))
        attention.compile(fullgraph=True, backend=graphs)
        assert error(model(**inputs)[output], wanted[0]) < 1e-4 and graphs.is_ours()
    name = "decoder.layers.1.encoder_attn.sampling_offsets.weight"
    assert error(gradients[name], wanted[1][name]) < 1e-3


# --- transformers' own tests, where they are --------------------------------------------------------
@pytest.mark.full
def test_the_command_that_runs_transformers_own_tests(tmp_path):
    """On a checkout that is made up: one test passes in both runs, and one fails under the patch alone."""
    place = tmp_path / "tests" / "models" / "rt_detr" / "test_modeling_rt_detr.py"
    place.parent.mkdir(parents=True)
    place.write_text(
        "import transformers.models.rt_detr.modeling_rt_detr as rt_detr\n\n\n"
        "def test_it_is_there():\n    assert rt_detr.MultiScaleDeformableAttention\n\n\n"
        "def test_it_is_their_own():\n"
        "    assert 'transformers' in rt_detr.MultiScaleDeformableAttention.forward.__module__\n"
    )
    command = [sys.executable, str(Path(__file__).with_name("transformers_own.py")), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "test_it_is_their_own: passed, under the patch failure" in done.stdout
    assert done.stdout.endswith("1 files, 2 tests, 2 pass, 1 end otherwise under the patch\n")
    place.write_text("import test_module.of_theirs\n")  # neither is there, nor a test_module of ours
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "No module named 'test_module'" in done.stdout and "pytest ended with 2" in done.stderr

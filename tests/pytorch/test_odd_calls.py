"""Calls that people do not think of: nothing to compute, odd tensors, TorchScript, state dicts of forks."""

import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from numba_deform import ConfigError, OperatorError  # noqa: E402
from numba_deform.torch import MSDeformAttn, cpu, decompositions, ms_deform_attn, operator  # noqa: E402

SHAPES, STARTS = [[5, 4], [2, 3]], [0, 20]
LISTS = [5, 4, 2, 3], STARTS
OPERATOR = torch.ops.numba_deform.ms_deform_attn


def drawn(batch=2, queries=3, heads=2, dtype=torch.float32):
    """value, locations and weights."""
    rows = batch, queries, heads, 2, 3
    return torch.randn(batch, 26, heads, 4, dtype=dtype), torch.rand(*rows, 2), torch.rand(*rows)


class Model(torch.nn.Module):
    def forward(self, value, locations, weights):
        return ms_deform_attn(value, SHAPES, None, locations, weights)


# --- nothing to compute ----------------------------------------------------------------------------
@pytest.mark.parametrize("empty", ["batch", "queries", "heads"])
def test_empty(empty):
    """An empty output, and gradients that are empty or zero; compiled and exported as well."""
    inputs = [t.requires_grad_() for t in drawn(**{empty: 0})]
    shape = {"batch": (0, 3, 8), "queries": (2, 0, 8), "heads": (2, 3, 0)}[empty]
    out = Model()(*inputs)
    assert out.shape == shape
    for gradient, tensor in zip(torch.autograd.grad(out.sum(), inputs), inputs, strict=True):
        assert gradient.shape == tensor.shape and not gradient.any()
    compiled = torch.compile(Model(), fullgraph=True, backend="aot_eager")
    assert compiled(*inputs).shape == shape
    compiled(*inputs).sum().backward()
    assert not any(t.grad.any() for t in inputs)
    plain = tuple(t.detach() for t in inputs)
    assert torch.export.export(Model(), plain).module()(*plain).shape == shape


def call(*tensors):
    return Model()(*tensors)


def loss(*tensors):
    return call(*tensors).sin().sum()


def penalty(*tensors):
    """Gradients of the squares of gradients."""
    learning = [t.clone().requires_grad_() for t in tensors]
    first = torch.autograd.grad(loss(*learning), learning, create_graph=True)
    return torch.autograd.grad(sum(g.pow(2).sum() for g in first), learning)


def twice(*tensors):
    return [torch.stack([t, t]) for t in tensors]


def exported(*tensors):
    program = torch.export.export(Model(), tensors).run_decompositions(decompositions())
    return program.module()(*tensors)


WITHOUT_ANYTHING = {
    "func.grad": (torch.func.grad(loss, argnums=(0, 1, 2)), "gradients"),
    "func.jvp": (lambda *t: torch.func.jvp(call, t, t), "outputs"),
    "second gradients": (penalty, "gradients"),
    "vmap": (lambda *t: torch.func.vmap(call)(*twice(*t)).unbind(), "outputs"),
    "gradients of each": (lambda *t: [g.sum(0) for g in torch.func.vmap(
        torch.func.grad(loss, argnums=(0, 1, 2)))(*twice(*t))], "gradients"),
    "compiled for any size": (torch.compile(call, dynamic=True, backend="aot_eager"), "outputs"),
    "traced": (lambda *t: torch.jit.trace(Model(), t)(*t), "outputs"),
    "decomposed": (exported, "outputs"),
    "autocast": (torch.autocast("cpu", torch.bfloat16)(call), "outputs"),
    "in float64": (lambda *t: call(*(each.double() for each in t)), "outputs"),
}  # fmt: skip


@pytest.mark.parametrize("empty", ["batch", "queries", "heads"])
@pytest.mark.parametrize("way", WITHOUT_ANYTHING)
def test_empty_every_way(way, empty):
    inputs = drawn(**{empty: 0})
    run, what = WITHOUT_ANYTHING[way]
    found = run(*inputs)
    if what == "outputs":
        outs = found if isinstance(found, tuple) else (found,)
        assert all(out.shape == call(*inputs).shape for out in outs)
    else:
        for gradient, tensor in zip(found, inputs, strict=True):
            assert gradient.shape == tensor.shape and not gradient.any()


def test_vmap_of_nothing():
    inputs = [t[:0] for t in twice(*drawn())]
    assert torch.func.vmap(call)(*inputs).shape == (0, 2, 3, 8)
    found = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*inputs)
    assert [t.shape for t in found] == [t.shape for t in inputs]


@pytest.mark.parametrize("empty", ["batch", "queries"])
def test_an_empty_layer(empty):
    layer = MSDeformAttn(16, 2, 2, 3)
    batch, queries = {"batch": (0, 3), "queries": (2, 0)}[empty]
    out = layer(torch.randn(batch, queries, 16), torch.rand(batch, queries, 2, 2),
                torch.randn(batch, 26, 16), SHAPES)  # fmt: skip
    assert out.shape == (batch, queries, 16)
    out.sum().backward()
    assert not any(p.grad.any() for name, p in layer.named_parameters() if "offsets" in name)


# --- what is refused -------------------------------------------------------------------------------
def on_meta(i):
    return [t.to("meta") if k == i else t for k, t in enumerate(drawn())]


META = torch.tensor(SHAPES, device="meta"), torch.tensor(STARTS)
REFUSED = {
    "locations on meta": (
        lambda: Model()(*on_meta(1)), "^value is on cpu but sampling_locations on meta$"),
    "weights on meta": (
        lambda: Model()(*on_meta(2)), "^value is on cpu but attention_weights on meta$"),
    "value on meta": (
        lambda: Model()(*on_meta(0)), "^value is on meta but sampling_locations on cpu$"),
    "the operator": (
        lambda: OPERATOR.lists(on_meta(1)[0], *LISTS, *on_meta(1)[1:]),
        "^value is on cpu but sampling_locations on meta$"),
    "the operator's index": (
        lambda: OPERATOR(drawn()[0], *META, *drawn()[1:]), "^value is on cpu but spatial_shapes on meta$"),
    "an index on meta": (
        lambda: ms_deform_attn(drawn()[0], *META, *drawn()[1:]),
        "^spatial_shapes is on the device meta, where it has no numbers"),
    "its gradients": (
        lambda: torch.ops.numba_deform.ms_deform_attn_backward.lists(
            torch.ones(2, 3, 8), on_meta(2)[0], *LISTS, *on_meta(2)[1:]),
        "^value is on cpu but attention_weights on meta$"),
    "sparse": (
        lambda: Model()(drawn()[0].to_sparse(), *drawn()[1:]), "^value is sparse_coo; it must be strided"),
    "sparse weights": (
        lambda: Model()(*drawn()[:2], drawn()[2].to_sparse()), "^attention_weights is sparse_coo; it must"),
    "a sparse index": (
        lambda: ms_deform_attn(drawn()[0], torch.tensor(SHAPES).to_sparse(), None, *drawn()[1:]),
        "^spatial_shapes is sparse_coo; it must be strided"),
    "nested": (
        lambda: Model()(torch.nested.nested_tensor(list(drawn()[0])), *drawn()[1:]),
        "^value is nested; it must be strided"),
    "sizes of more than 64 bits": (
        lambda: ms_deform_attn(drawn()[0], [[2**70, 4], [2, 3]], None, *drawn()[1:]),
        r"^spatial_shapes=\[1180591620717411303424, .* they must fit into 64 bits"),
    "their products": (
        lambda: ms_deform_attn(drawn()[0], [[2**62, 4], [2, 3]], None, *drawn()[1:]),
        r"^level_start_index=\[0, 18446744073709551616\]: they must fit into 64 bits"),
    "large sizes": (
        lambda: ms_deform_attn(drawn()[0], [[2**40, 4], [2, 3]], STARTS, *drawn()[1:]),
        "^spatial_shapes says 4398046511110 positions but value has S=26"),
    "points in quotes": (
        lambda: ms_deform_attn(drawn()[0], SHAPES, None, *drawn()[1:], num_points="24"),
        "^num_points='24': it is an integer for each level"),
    "many points": (
        lambda: ms_deform_attn(drawn()[0], SHAPES, None, *drawn()[1:], num_points=[2**70, 3]),
        "^num_points=.1180591620717411303424, 3.: they are at least 1, and less than 2.31"),
    "flat without points": (
        lambda: Model()(drawn()[0], drawn()[1].flatten(3, 4), drawn()[2].flatten(3)),
        r"^sampling_locations .* flat ones, \(B, Q, H, N, 2\), need num_points"),
    "no shapes": (
        lambda: ms_deform_attn(drawn()[0], None, None, *drawn()[1:]),
        "^spatial_shapes=None: it is a height and a width"),
    "no pairs": (
        lambda: ms_deform_attn(drawn()[0], "ab", None, *drawn()[1:]),
        "^spatial_shapes='ab': it is a height and a width"),
    "an empty level": (
        lambda: ms_deform_attn(drawn()[0], [[5, 4], [0, 3]], None, *drawn()[1:]),
        r"^spatial_shapes=\[\[5, 4\], \[0, 3\]\]: sizes are >= 1"),
    "a start before value": (
        lambda: ms_deform_attn(drawn()[0], SHAPES, [0, -6], *drawn()[1:]),
        r"^level_start_index\[1\]=-6 with 6 positions does not lie inside S=26"),
    "one number of points": (
        lambda: ms_deform_attn(drawn()[0], SHAPES, None, *drawn()[1:], num_points=torch.tensor(3)),
        r"^num_points=tensor\(3\): it is an integer for each level"),
    "quantized": (
        lambda: Model()(torch.quantize_per_tensor(drawn()[0], 0.1, 0, torch.qint8), *drawn()[1:]),
        "^value is quantized; it must be strided"),
    "float8": (
        lambda: Model()(drawn()[0].to(torch.float8_e4m3fn), *drawn()[1:]), "^value has dtype float8_e4m3fn"),
    "weights that are true or false": (
        lambda: Model()(*drawn()[:2], drawn()[2] > 0.5), "^attention_weights has dtype bool"),
    "complex": (
        lambda: Model()(drawn(dtype=torch.complex64)[0], *drawn()[1:]), "^value has dtype complex64"),
    "scripted": (lambda: torch.jit.script(ms_deform_attn), "^torch.jit.script cannot compile ms_deform_attn"),
    "a scripted layer": (
        lambda: torch.jit.script(MSDeformAttn(32, 2, 2, 3)), "^torch.jit.script cannot compile ms_deform_attn"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, message = REFUSED[name]
    with pytest.raises(OperatorError, match=message):
        call()


def test_no_method():
    with pytest.raises(ConfigError, match="^method=None: must be one of default, discrete"):
        ms_deform_attn(drawn()[0], SHAPES, None, *drawn()[1:], method=None)


def test_all_on_meta():
    """For those who want to know shapes."""
    out = Model()(*(t.to("meta") for t in drawn()))
    assert out.is_meta and out.shape == (2, 3, 8)


# --- TorchScript's other way, and exporters --------------------------------------------------------
def test_a_trace_has_the_operator():
    inputs = drawn()
    traced, others = torch.jit.trace(Model(), inputs), drawn()
    assert "numba_deform::ms_deform_attn" in str(traced.graph)
    assert torch.equal(traced(*others), Model()(*others))


@pytest.mark.parametrize("starts", [True, False], ids=["starts", "none"])
def test_a_trace_follows_the_shapes_that_it_is_given(starts):
    """Other levels of as many pixels in all, which nothing else would notice."""
    value, locations, weights = drawn()
    layer, query = MSDeformAttn(8, 2, 2, 3).requires_grad_(False), torch.randn(2, 3, 8)
    pixels, points = value.flatten(2), torch.rand(2, 3, 2, 2)

    def call(shapes):
        first = torch.cat([shapes.new_zeros(1), shapes.prod(1)[:-1]]) if starts else None
        return (ms_deform_attn(value, shapes, first, locations, weights),
                layer(query, points, pixels, shapes, first))  # fmt: skip

    shapes = torch.tensor(SHAPES)
    with torch.no_grad():
        traced = torch.jit.trace(call, (shapes,))
        for given in (shapes, shapes.flip(1), shapes.flip(0)):
            for found, wanted in zip(traced(given), call(given), strict=True):
                assert torch.allclose(found, wanted, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_onnx_by_torchscript_is_refused():
    pytest.importorskip("onnx", reason="onnx is not installed")
    with pytest.raises(OperatorError, match="^torch.onnx.export by TorchScript .* export with dynamo=True"):
        torch.onnx.export(Model(), drawn(), "never.onnx", dynamo=False)


def test_a_program_for_runtimes_that_do_not_know_the_operator():
    """As TensorRT and ExecuTorch want it: operations of PyTorch alone."""
    inputs = drawn()
    program = torch.export.export(Model(), inputs).run_decompositions(decompositions())
    named = " ".join(str(node.target) for node in program.graph.nodes)
    assert "aten.grid_sampler" in named and "numba_deform" not in named
    assert torch.allclose(program.module()(*inputs), Model()(*inputs), atol=1e-6)


def test_such_a_program_by_index_tensors():
    class ByTensors(torch.nn.Module):
        def forward(self, shapes, starts, *inputs):
            return ms_deform_attn(inputs[0], shapes, starts, *inputs[1:])

    inputs = torch.tensor(SHAPES), torch.tensor(STARTS), *drawn()
    program = torch.export.export(ByTensors(), inputs).run_decompositions(decompositions())
    assert not any("numba_deform" in str(node.target) for node in program.graph.nodes)
    others = torch.tensor([[4, 5], [3, 2]]), torch.tensor(STARTS), *drawn()
    assert torch.allclose(program.module()(*others), ByTensors()(*others), atol=1e-6)


def test_executorch_runs_such_a_program():
    exir = pytest.importorskip("executorch.exir", reason="executorch is not installed")
    runtime = pytest.importorskip("executorch.runtime")
    inputs = drawn()
    program = torch.export.export(Model(), inputs)
    with pytest.raises(RuntimeError, match="Missing out variants: .*ms_deform_attn"):
        exir.to_edge(program).to_executorch()
    program = exir.to_edge(program.run_decompositions(decompositions())).to_executorch()
    method = runtime.Runtime.get().load_program(program.buffer).load_method("forward")
    assert torch.allclose(method.execute(inputs)[0], Model()(*inputs), atol=1e-6)


# --- the way of a call -----------------------------------------------------------------------------
def way(call):
    """Where a call enters another module of numba_deform.torch, in order: module.function."""
    entered = []

    def module(frame):
        package, _, name = frame.f_globals.get("__name__", "").rpartition(".")
        return name if package == "numba_deform.torch" else None

    def note(frame, event, _):
        caller = frame.f_back
        while caller and caller.f_globals.get("__name__") == "torch.autograd.function":  # apply: C++ since 2.14
            caller = caller.f_back
        if event == "call" and module(frame) and module(frame) != module(caller):
            entered.append(f"{module(frame)}.{frame.f_code.co_name}")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


INDEX = torch.tensor(SHAPES), torch.tensor(STARTS)
DOOR = ["functional.ms_deform_attn", "arguments.is_plain", "arguments.checked", "sharding.register_for"]
ON_CPU = ["formula.checked", "arguments.as_index", "arguments.as_index"]


@pytest.mark.parametrize("index", [(SHAPES, None), (SHAPES, STARTS), INDEX], ids=["plain", "lists", "tensors"])
@pytest.mark.parametrize("learning", [False, True])
def test_a_call_goes_one_way(index, learning):
    """The door asks once what it was given, and goes once to the operator; nobody comes back to it."""
    value, locations, weights = (t.requires_grad_(learning) for t in drawn())
    outs = []
    entered = way(lambda: outs.append(ms_deform_attn(value, *index, locations, weights)))
    assert entered == [*DOOR, "operator.call", "cpu.forward_of", *ON_CPU]
    if learning:
        entered = way(lambda: outs[0].sum().backward())
        assert entered == ["operator.backward", "arguments.is_plain", "cpu.backward_of", *ON_CPU]


def test_a_plain_call_of_what_torch_func_has_left(monkeypatch):
    """A tensor that leaves torch.func is still wrapped, and looks like any other; it has no address so."""
    left, (value, locations, weights) = [], drawn()
    torch.func.grad(lambda tensor: (left.append(tensor), tensor.sum())[1])(value)
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    assert type(left[0]) is torch.Tensor and is_wrapped(left[0])
    levels = tuple(INDEX[0].flatten().tolist()), tuple(STARTS)

    def forward_by(plan, value, *samples):
        assert not any(map(is_wrapped, (value, *samples)))
        return cpu.forward_of(value, *levels, *samples, None, "default")

    monkeypatch.setattr(operator, "forward_by", forward_by)
    monkeypatch.setattr(operator, "_is_left_alone", lambda *_: False)  # or the gradients come from a GPU
    learning = locations.requires_grad_()
    plan = SimpleNamespace(call=(*levels, None, "default"))
    out = operator.planned(plan, left[0], learning, weights)
    wanted = ms_deform_attn(value, *INDEX, learning, weights)
    found = [torch.autograd.grad(one.sum(), learning)[0] for one in (out, wanted)]
    assert torch.equal(out, wanted) and torch.equal(*found) and found[0].abs().sum() > 0


# --- state dicts of forks --------------------------------------------------------------------------
def test_state_dicts_with_the_scale_of_points():
    """RT-DETR v2 and D-FINE keep it; it says what n_points says."""
    layer = MSDeformAttn(32, 2, 2, [3, 2])
    state = {**layer.state_dict(), "num_points_scale": torch.tensor([1 / 3] * 3 + [1 / 2] * 2)}
    layer.load_state_dict(state)
    assert "num_points_scale" in state
    state["num_points_scale"] = torch.full((5,), 0.25)
    with pytest.raises(RuntimeError, match=r"num_points_scale=\[0.25, .* by n_points=\[3, 2\]"):
        layer.load_state_dict(state)

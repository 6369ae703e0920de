"""The operator exported to ONNX, static and dynamic, and run by onnxruntime beside PyTorch."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
op_run = pytest.importorskip("onnx.reference.op_run", reason="onnx is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from onnx.reference import ReferenceEvaluator  # noqa: E402

from numba_deform import OperatorError  # noqa: E402
from numba_deform.torch import MSDeformAttn, decompositions, ms_deform_attn, patch, tensorrt_plugin  # noqa: E402

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]
LIMIT = 1e-4
SHAPES = [[5, 4], [2, 3]]
MODELS = ("rt_detr", "deformable_detr", "mask2former")


def exported(model, inputs, path, dynamic=None):
    """(how the model computes under onnxruntime, the names of the graph's operators)."""
    program = torch.onnx.export(model.eval(), inputs, dynamo=True, dynamic_shapes=dynamic, verbose=False)
    program.save(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]

    def run(*tensors):
        arrays = (tensor.numpy() for tensor in tensors)
        return torch.from_numpy(session.run(None, dict(zip(names, arrays, strict=True)))[0])

    return run, [node.op_type for node in program.model_proto.graph.node]


def check(model, inputs, path, dynamic=None, others=()):
    """The greatest difference to PyTorch is small, with these inputs and with others; the graph's operators."""
    run, operators = exported(model, inputs, path, dynamic)
    for given in (inputs, *others):
        with torch.no_grad():
            assert float((run(*given) - model(*given)).abs().max()) < LIMIT
    return operators


class OfLayer(torch.nn.Module):
    """The layer, with levels whose number of points differs if asked for."""

    def __init__(self, points):
        super().__init__()
        self.layer = MSDeformAttn(16, 2, 2, points)

    def forward(self, query, points, pixels):
        return self.layer(query, points, pixels, SHAPES)


def of_layer(batch=2, queries=3):
    return torch.randn(batch, queries, 16), torch.rand(batch, queries, 2, 2), torch.randn(batch, 26, 16)


@pytest.mark.full
@pytest.mark.parametrize("points", [4, [3, 2]])
def test_the_layer(tmp_path, points):
    """By its own exporter ``grid_sample`` becomes GridSample, once for each level."""
    assert check(OfLayer(points), of_layer(), tmp_path / "layer.onnx").count("GridSample") == 2


@pytest.mark.full
def test_the_layer_with_any_batch_and_number_of_queries(tmp_path):
    any_size = torch.export.Dim.DYNAMIC
    dynamic = {0: any_size, 1: any_size}, {0: any_size, 1: any_size}, {0: any_size}
    check(OfLayer(4), of_layer(), tmp_path / "layer.onnx", dynamic, [of_layer(5, 7), of_layer(1, 2)])


class OfImage(torch.nn.Module):
    """Heights and widths are numbers of the graph."""

    def forward(self, image, locations, weights):
        shapes = [[image.shape[2], image.shape[3]], [1, 1]]
        value = torch.cat([image.flatten(2).transpose(1, 2), torch.ones_like(image[:, :, 0, :1].mT)], 1)
        return ms_deform_attn(value.unflatten(2, (2, 4)), shapes, None, locations, weights)


def of_image(height, width):
    return torch.randn(2, 8, height, width), torch.rand(2, 3, 2, 2, 3, 2) * 1.4 - 0.2, torch.rand(2, 3, 2, 2, 3)


def test_any_size_of_an_image(tmp_path):
    dynamic = {2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}, None, None
    others = [of_image(7, 3), of_image(9, 12)]
    operators = check(OfImage(), of_image(5, 4), tmp_path / "image.onnx", dynamic, others)
    assert operators.count("GridSample") == 2


class OnlyByDynamo(OfImage):
    """A model that only the second way of PyTorch's exporter takes."""

    def forward(self, image, locations, weights):
        if torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling():
            raise ValueError("not this way")
        return super().forward(image, locations, weights)


@pytest.mark.full
def test_a_model_that_dynamo_traces(tmp_path):
    """There ``torch.onnx.is_in_onnx_export`` is a constant, False."""
    operators = check(OnlyByDynamo(), of_image(5, 4), tmp_path / "image.onnx", None, [of_image(5, 4)])
    assert operators.count("GridSample") == 2


@pytest.mark.full
def test_a_program_of_torch_export(tmp_path):
    """It has the operator, which PyTorch's exporter does not know, until it is decomposed."""
    inputs = of_image(5, 4)
    program = torch.export.export(OfImage(), inputs)
    with pytest.raises(Exception, match="No ONNX function found for .*ms_deform_attn"):
        torch.onnx.export(program, dynamo=True, verbose=False)
    program = program.run_decompositions(decompositions())
    path = str(tmp_path / "image.onnx")
    torch.onnx.export(program, dynamo=True, verbose=False).save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    (out,) = session.run(None, dict(zip(names, (t.numpy() for t in inputs), strict=True)))
    assert float((torch.from_numpy(out) - OfImage()(*inputs)).abs().max()) < LIMIT


class ByTensors(torch.nn.Module):
    """Sizes of levels are inputs, and samples the nearest pixels where that is asked for."""

    def __init__(self, method):
        super().__init__()
        self.method = method

    def forward(self, shapes, starts, value, locations, weights):
        return ms_deform_attn(value, shapes, starts, locations, weights, method=self.method)


@pytest.mark.full
@pytest.mark.parametrize("method", ["default", "discrete"])
def test_index_tensors(tmp_path, method):
    sampled = torch.randn(2, 26, 2, 4), torch.rand(2, 3, 2, 2, 3, 2) * 1.4 - 0.2, torch.rand(2, 3, 2, 2, 3)
    starts = torch.tensor([0, 20])
    inputs = torch.tensor(SHAPES), starts, *sampled
    others = [(torch.tensor([[4, 5], [3, 2]]), starts, *sampled)]
    check(ByTensors(method), inputs, tmp_path / "index.onnx", None, others)


# --- TensorRT's plugin -----------------------------------------------------------------------------
named_nodes = pytest.mark.skipif(not hasattr(torch.onnx, "ops"), reason="PyTorch before 2.8 has none")


class MultiscaleDeformableAttnPlugin_TRT(op_run.OpRun):  # noqa: N801
    """What TensorRT's documentation says of its plugin: five inputs, levels in int32, (N, Lq, M, D)."""

    op_domain = "trt.plugins"

    def _run(self, value, shapes, starts, locations, weights, plugin_version=None, plugin_namespace=None):
        assert shapes.dtype == starts.dtype == "int32" and locations.dtype == weights.dtype == value.dtype
        assert shapes.ndim == 2 and (locations.ndim, weights.ndim) == (6, 5) and plugin_namespace == ""
        out = ms_deform_attn(*map(torch.from_numpy, (value, shapes, starts, locations, weights)))
        return (out.unflatten(2, value.shape[2:]).numpy(),)


def check_plugin(program, version, model, others):
    """The graph has one such node, and computes what the model does."""
    graph = program.model_proto.graph
    (node,) = (node for node in graph.node if node.domain == "trt.plugins")
    assert {one.name: one.s for one in node.attribute} == {
        "plugin_version": version, "plugin_namespace": b""}  # fmt: skip
    session = ReferenceEvaluator(program.model_proto, new_ops=[MultiscaleDeformableAttnPlugin_TRT])
    for given in others:
        named = {one.name: tensor.numpy() for one, tensor in zip(graph.input, given, strict=True)}
        found = torch.from_numpy(session.run(None, named)[0])
        assert float((found - model(*given)).abs().max()) < LIMIT


@named_nodes
def test_a_plugin_for_any_size_of_an_image():
    """By the exporter, and by a program's decompositions, which follow the same word."""
    dynamic = {2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}, None, None
    model, others = OfImage(), [of_image(5, 4), of_image(9, 12)]
    options = {"dynamo": True, "verbose": False}
    with tensorrt_plugin("2"):
        program = torch.onnx.export(model, of_image(5, 4), dynamic_shapes=dynamic, **options)
    check_plugin(program, b"2", model, others)
    traced = torch.export.export(model, of_image(5, 4), dynamic_shapes=dynamic)
    with tensorrt_plugin():
        traced = traced.run_decompositions(decompositions())
    check_plugin(torch.onnx.export(traced, **options), b"1", model, others)


@named_nodes
def test_a_plugin_for_levels_by_tensors():
    """In other places than one after the other; the points of levels are all the same, and flat."""

    class Flat(torch.nn.Module):
        def forward(self, shapes, starts, value, locations, weights):
            return ms_deform_attn(value, shapes, starts, locations, weights, num_points=[3, 3])

    sampled = torch.randn(2, 26, 2, 4), torch.rand(2, 5, 2, 6, 2) * 1.4 - 0.2, torch.rand(2, 5, 2, 6)
    given = torch.tensor(SHAPES), torch.tensor([6, 0]), *sampled
    with tensorrt_plugin():
        program = torch.onnx.export(Flat(), given, dynamo=True, verbose=False)
    check_plugin(program, b"1", Flat(), [given])


@named_nodes
@pytest.mark.parametrize("options, dtype, text", [
    ({"method": "discrete"}, torch.float32, "method='discrete': TensorRT's plugin is bilinear"),
    ({"num_points": [3, 2]}, torch.float32, r"num_points=\[3, 2\]: .* one number of points for all levels"),
    ({}, torch.bfloat16, "value has dtype bfloat16; TensorRT's plugin takes float32 and float16")])  # fmt: skip
def test_what_the_plugin_does_not_take(options, dtype, text):
    points = sum(options["num_points"]) if "num_points" in options else 4
    shape = (2, 3, 2, points) if "num_points" in options else (2, 3, 2, 2, points)
    value, levels = torch.randn(2, 26, 2, 4, dtype=dtype), ([5, 4, 2, 3], [0, 20])
    operator = decompositions()[torch.ops.numba_deform.ms_deform_attn.lists]
    with tensorrt_plugin(), pytest.raises(OperatorError, match=f"^{text}"):
        operator(value, *levels, torch.rand(*shape, 2), torch.rand(shape), **options)


@named_nodes
def test_versions_of_the_plugin(monkeypatch):
    """TensorRT's, and PyTorch's, which has had a word for such nodes since 2.8."""
    text = "^version={} with PyTorch .*: TensorRT's plugin has the versions '1' and '2', and needs PyTorch 2.8"
    with pytest.raises(OperatorError, match=text.format("3")), tensorrt_plugin(3):
        pass
    monkeypatch.delattr(torch.onnx, "ops")
    with pytest.raises(OperatorError, match=text.format("'1'")), tensorrt_plugin():
        pass


class Output(torch.nn.Module):
    """One output of a model of transformers."""

    def __init__(self, model, output):
        super().__init__()
        self.model, self.output = model, output

    def forward(self, pixel_values):
        return self.model(pixel_values)[self.output]


@pytest.mark.full
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_models(tmp_path, name, dynamic):
    """With any batch too. Of RT-DETR PyTorch makes such a program by Dynamo, its second way."""
    from tiny_models import attentions, drawn

    model, inputs, output = drawn(name)
    shapes = {"pixel_values": {0: torch.export.Dim.DYNAMIC}} if dynamic else None
    others = [(torch.randn(batch, 3, 64, 96),) for batch in (1, 3)] if dynamic else []
    with patch("transformers"):
        given = (inputs["pixel_values"],)
        operators = check(Output(model, output), given, tmp_path / "model.onnx", shapes, others)
    levels = {"rt_detr": 3, "deformable_detr": 4, "mask2former": 3}[name]
    assert operators.count("GridSample") == levels * attentions(model)

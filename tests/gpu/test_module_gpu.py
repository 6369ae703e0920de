"""The layer MSDeformAttn on a GPU: as on the CPU, in half types, captured, and compiled."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from numba_deform.torch import MSDeformAttn  # noqa: E402

SHAPES = [[25, 42], [13, 21], [7, 11], [1, 1]]
SIZE = 25 * 42 + 13 * 21 + 7 * 11 + 1
close = torch.testing.assert_close


@pytest.fixture(autouse=True)
def on_gpu(hopper):
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(False)


def layer(n_points=4):
    made = MSDeformAttn(256, 4, 8, n_points, device="cuda")
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return made


def inputs(coordinates=2, queries=100):
    shapes = (2, queries, 256), (2, queries, 4, coordinates), (2, SIZE, 256)
    make = torch.randn, torch.rand, torch.randn
    return [draw(shape, device="cuda") for draw, shape in zip(make, shapes, strict=True)]


def step(made, tensors, padding=None):
    """The output, and the gradients of the parameters."""
    out = made(*tensors, SHAPES, None, padding)
    return [out.detach(), *torch.autograd.grad(out.float().square().mean(), list(made.parameters()))]


def error(found, wanted):
    return float((found.cpu().double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("coordinates", [2, 4])
@pytest.mark.parametrize("n_points", [4, [3, 6, 3, 1]])
def test_as_on_the_cpu(n_points, coordinates):
    made, tensors = layer(n_points), inputs(coordinates)
    padding = torch.rand(2, SIZE, device="cuda") < 0.1
    exact = copy.deepcopy(made).cpu().double()
    wanted = step(exact, [tensor.cpu().double() for tensor in tensors], padding.cpu())
    for one, reference in zip(step(made, tensors, padding), wanted, strict=True):
        assert error(one, reference) < 1e-3  # a sample beside a pixel's centre line may fall on its other side


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types(dtype):
    made, tensors = layer(), inputs()
    wanted = [tensor.double().cpu() for tensor in step(made, tensors)]
    with torch.autocast("cuda", dtype):
        mixed = step(made, tensors)
    assert mixed[0].dtype == dtype and {gradient.dtype for gradient in mixed[1:]} == {torch.float32}
    query, points, flat = tensors
    half = step(copy.deepcopy(made).to(dtype), [query.to(dtype), points, flat.to(dtype)])
    assert {tensor.dtype for tensor in half} == {dtype}
    for found in (mixed, half):
        assert error(found[0], wanted[0]) < 0.03


def test_a_captured_training_step():
    made, tensors = layer(), inputs()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(made, tensors)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(made, tensors)
    for tensor in tensors:
        tensor.copy_(torch.rand_like(tensor))
    graph.replay()
    close(captured, step(made, tensors), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compile(mode):
    made, tensors = layer([3, 6, 3, 1]), inputs()
    compiled = torch.compile(made, fullgraph=True, mode=mode)
    wanted = step(made, tensors)
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        for one, other in zip(step(compiled, tensors), wanted, strict=True):
            assert error(one, other.cpu().double()) < 1e-3

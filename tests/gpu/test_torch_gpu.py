"""The operator in PyTorch on a GPU: gradients against float64, compiled, captured, in threads."""

import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from numba_deform import OperatorError  # noqa: E402
from numba_deform.torch import ms_deform_attn  # noqa: E402

LIMITS = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 1e-5}
SHAPES = [[25, 42], [13, 21], [7, 11], [1, 1]]
SIZE = 25 * 42 + 13 * 21 + 7 * 11 + 1


@pytest.fixture(autouse=True)
def on_gpu(hopper):
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(False)


def drawn(dtype=torch.float16, points=(4, 4, 4, 4), batch=2, queries=100, heads=8, channels=32, flat=False,
          location_dtype=torch.float32):  # fmt: skip
    """value, locations, weights; some samples outside, none near a pixel's centre line, where they jump."""
    samples = (sum(points),) if flat else (len(points), points[0])
    value = torch.randn(batch, SIZE, heads, channels, device="cuda").to(dtype)
    size = torch.tensor(SHAPES, device="cuda").flip(1).repeat_interleave(torch.tensor(points, device="cuda"), 0)
    pixel = (torch.rand(batch, queries, heads, len(size), 2, device="cuda") * 1.4 - 0.2) * size
    pixel = pixel.floor() + (pixel % 1) * 0.98 + 0.01
    locations = ((pixel + 0.5) / size).to(location_dtype).reshape(batch, queries, heads, *samples, 2)
    weights = torch.randn(batch, queries, heads, sum(points), device="cuda").softmax(-1)
    weights = weights.reshape(batch, queries, heads, *samples).to(dtype)
    return [t.requires_grad_() for t in (value, locations, weights)]


def gradients(inputs, given, **options):
    """(out, gradients of value, locations and weights)."""
    value, locations, weights = inputs
    out = ms_deform_attn(value, SHAPES, None, locations, weights, **options)
    return (out, *torch.autograd.grad(out, inputs, given))


def exact(inputs, given, **options):
    """The same in float64 on the CPU, where gradcheck holds it."""
    inputs = [t.detach().cpu().double().requires_grad_() for t in inputs]
    return gradients(inputs, given.cpu().double(), **options)


def error(found, wanted):
    return float((found.cpu().double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"channels": 64}, {"channels": 8}, {"queries": 1}, {"batch": 70, "queries": 3},
     {"points": (3, 6, 3, 1), "flat": True}, {"points": (1,) * 4}, {"points": (5,) * 4, "channels": 24}],
    ids=str,
)  # fmt: skip
def test_gradients(dtype, options, deterministic):
    inputs = drawn(dtype, **options)
    shape = (len(inputs[0]), inputs[1].shape[1], inputs[0][0, 0].numel())
    given = torch.randn(shape, device="cuda").to(dtype)
    call = {"num_points": options["points"]} if "flat" in options else {}
    torch.use_deterministic_algorithms(deterministic)
    found = gradients(inputs, given, **call)
    for one, wanted in zip(found, exact(inputs, given, **call), strict=True):
        assert error(one, wanted) < LIMITS[dtype]
    if deterministic:
        again = gradients(inputs, given, **call)
        assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize("points", [(4, 4, 4, 4), (3, 6, 3, 1)])
def test_discrete(points):
    inputs = drawn(torch.float32, points, flat=True)
    given = torch.randn(2, 100, 256, device="cuda")
    options = {"num_points": points, "method": "discrete"}
    found, wanted = gradients(inputs, given, **options), exact(inputs, given, **options)
    assert not found[2].any()
    for which in (0, 1, 3):
        assert error(found[which], wanted[which]) < 1e-5


def test_float16_locations():
    inputs = drawn(location_dtype=torch.float16, queries=20)
    given = torch.randn(2, 20, 256, device="cuda").half()
    for one, wanted in zip(gradients(inputs, given), exact(inputs, given), strict=True):
        assert error(one, wanted) < 5e-3


def test_any_strides_and_other_streams():
    inputs = drawn(torch.float32)
    given = torch.randn(2, 100, 256, device="cuda")
    wanted = gradients(inputs, given)
    moved = [t.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for t in inputs]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        found = gradients([t * 1 for t in moved], given)
    stream.synchronize()
    for a, b in zip(found, wanted, strict=True):
        assert error(a, b.cpu().double()) < 1e-6


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(mode, dynamic):
    def loss(value, locations, weights):
        return (ms_deform_attn(value, SHAPES, None, locations, weights).float() ** 2).sum()

    torch.use_deterministic_algorithms(True)
    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, mode=mode)
    for queries in (100, 100, 60):
        inputs = drawn(torch.float32, queries=queries)
        eager = torch.autograd.grad(loss(*inputs), inputs)
        torch.compiler.cudagraph_mark_step_begin()
        for a, b in zip(torch.autograd.grad(compiled(*inputs), inputs), eager, strict=True):
            assert error(a, b.cpu().double()) < 1e-6


def test_a_captured_training_step():
    inputs = drawn(torch.float32)
    given = torch.randn(2, 100, 256, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        gradients(inputs, given)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients(inputs, given)
    with torch.no_grad():
        for tensor in inputs:
            tensor.copy_(torch.rand_like(tensor))
    graph.replay()
    for a, b in zip(captured, gradients(inputs, given), strict=True):
        assert error(a, b.cpu().double()) < 1e-6


def test_index_tensors_on_the_gpu_cannot_be_read_in_a_capture():
    value, locations, weights = (t.detach() for t in drawn())
    shapes = torch.tensor(SHAPES, device="cuda")
    starts = torch.tensor([0, 1050, 1323, 1400], device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(OperatorError, match="^spatial_shapes is on a GPU, and cannot be read while"):
        with torch.cuda.graph(graph):
            ms_deform_attn(value, shapes, starts, locations, weights)
    out = ms_deform_attn(value, shapes, starts, locations, weights)  # reads them
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        ms_deform_attn(value, shapes, starts, locations, weights)
    assert torch.equal(out, ms_deform_attn(value, SHAPES, None, locations, weights))


def test_autocast():
    value, locations, weights = drawn(torch.float32)
    with torch.autocast("cuda", torch.float16):
        out = ms_deform_attn(value, SHAPES, None, locations, weights)
    assert out.dtype == torch.float16
    out.float().sum().backward()
    assert {value.grad.dtype, locations.grad.dtype, weights.grad.dtype} == {torch.float32}


def test_threads_on_their_own_streams():
    inputs = [drawn(torch.float32, queries=30 + i) for i in range(12)]
    torch.use_deterministic_algorithms(True)
    wanted = [gradients(i, torch.ones(2, i[1].shape[1], 256, device="cuda")) for i in inputs]
    torch.cuda.synchronize()
    found = [None] * 12

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5):
                found[i] = gradients(inputs[i], torch.ones(2, 30 + i, 256, device="cuda"))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    for one, other in zip(found, wanted, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))

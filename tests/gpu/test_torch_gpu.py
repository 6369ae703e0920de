"""The operator in PyTorch on a GPU: gradients against float64, compiled, captured, in threads."""

import functools
import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from numba_deform import OperatorError, preset  # noqa: E402
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


def test_a_first_call_may_be_captured():
    inputs = drawn(torch.float32, queries=37)  # which no other test has
    given, graph = torch.ones(2, 37, 256, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients(inputs, given)
    graph.replay()
    for one, wanted in zip(captured, exact(inputs, given), strict=True):
        assert error(one, wanted) < 1e-5


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


# --- workloads, and sizes that need 64 bits ----------------------------------------------------------
def sampled(value, shapes, locations, weights, counts):
    """The operator by ``grid_sample``, of flat locations (B, Q, H, N, 2) and weights; ``counts`` says how many
    points each level has."""
    batch, _, heads, channels = value.shape
    queries, out = locations.shape[1], 0
    planes = value.split([height * width for height, width in shapes], 1)
    parts = zip(planes, shapes, locations.split(counts, 3), weights.split(counts, 3), counts, strict=True)
    for plane, (height, width), place, weight, points in parts:
        plane = plane.permute(0, 2, 3, 1).reshape(batch * heads, channels, height, width)
        grid = 2 * place.transpose(1, 2).reshape(batch * heads, queries, points, 2) - 1
        samples = torch.nn.functional.grid_sample(plane, grid, align_corners=False)
        weight = weight.transpose(1, 2).reshape(batch * heads, 1, queries, points)
        out = out + (samples * weight).sum(-1)
    return out.reshape(batch, heads * channels, queries).transpose(1, 2)


def errors_of_one(item, inputs, shapes, given, found, counts):
    """Relative errors of the output and the gradients of one batch item, against float64 on the GPU."""
    exact = [t.detach()[item : item + 1].double().requires_grad_() for t in inputs]
    out = sampled(exact[0], shapes, exact[1].flatten(3, -2), exact[2].flatten(3), counts)
    wanted = out, *torch.autograd.grad(out, exact, given[item : item + 1].double())
    return [
        float((one[item].double() - other[0]).norm() / other.norm())
        for one, other in zip(found, wanted, strict=True)
    ]


def off_the_lines(locations, sizes):
    """Locations moved by less than a hundredth of a pixel, to where no rounding moves them over a line between
    two pixels: there the gradient jumps. ``sizes``: (width, height) of each sample."""
    pixel = locations * sizes - 0.5
    return ((pixel.floor() + (pixel % 1) * 0.98 + 0.01) + 0.5) / sizes


@functools.lru_cache(maxsize=1)
def tensors_of(name, pattern):
    """value, locations and weights of a preset, float32 and flat, its shapes, and the points of each level."""
    workload = preset(name, pattern=pattern, dtype="float32")
    made = workload.generate(seed=3)
    value, locations, weights = (
        torch.from_numpy(array).cuda()
        for array in (made.value, made.sampling_locations, made.attention_weights)
    )
    counts = list(workload.points_per_level or [workload.num_points] * len(workload.levels))
    locations = torch.cat([locations[..., level, :n, :] for level, n in enumerate(counts)], 3)
    weights = torch.cat([weights[..., level, :n] for level, n in enumerate(counts)], 3)
    shapes = made.spatial_shapes.tolist()
    sizes = torch.tensor(shapes).flip(1).repeat_interleave(torch.tensor(counts), 0).cuda()
    return value, off_the_lines(locations, sizes), weights, shapes, counts


WORKLOADS = [
    "detr-encoder-b4", "detr-decoder", "dino-decoder", "dino-5scale", "rtdetr-decoder", "dfine-decoder",
    "mask2former", "bevformer-temporal", "bevformer-spatial", "seeds"]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "pattern", "dtype"),
    [(name, pattern, dtype) for name in WORKLOADS for pattern in ("local(2)", "uniform") for dtype in LIMITS],
    ids=str,
)
def test_workloads(name, pattern, dtype):
    value, locations, weights, shapes, counts = tensors_of(name, pattern)
    inputs = [value.to(dtype), locations.clone(), weights.to(dtype)]
    if len(set(counts)) == 1:  # the usual call
        samples = len(counts), counts[0]
        inputs[1:] = inputs[1].unflatten(3, samples), inputs[2].unflatten(3, samples)
    inputs = [t.requires_grad_() for t in inputs]
    given = torch.randn(*locations.shape[:2], value[0, 0].numel(), device="cuda").to(dtype)
    out = ms_deform_attn(
        inputs[0], shapes, None, *inputs[1:], num_points=counts if len(set(counts)) > 1 else None
    )
    found = out, *torch.autograd.grad(out, inputs, given)
    errors = errors_of_one(len(value) - 1, inputs, shapes, given, found, counts)
    assert max(errors) < LIMITS[dtype], errors


@pytest.mark.parametrize(
    ("batch", "shapes", "queries"),
    [(72, [[300, 398]], 50), (64, SHAPES, 135_000)],
    ids=["of value", "of locations and the output"],
)
def test_more_than_two_to_the_31_elements(batch, shapes, queries):
    """Some 60 GB of memory."""
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < 70e9:
        pytest.skip("needs 70 GB of free memory on the GPU")
    size, counts = sum(height * width for height, width in shapes), [4] * len(shapes)
    half = {"device": "cuda", "dtype": torch.float16}
    value = torch.randn(batch, size, 8, 32, **half).requires_grad_()
    rows = batch, queries, 8, len(shapes), 4
    locations = torch.rand(*rows, 2, **half).requires_grad_()
    weights = torch.rand(*rows, **half).requires_grad_()
    assert max(value.numel(), locations.numel()) > 2**31
    inputs = [value, locations, weights]
    out = ms_deform_attn(value, shapes, None, locations, weights)
    given = torch.randn_like(out)
    found = out, *torch.autograd.grad(out, inputs, given)
    for item in (0, batch - 1):
        assert max(errors_of_one(item, inputs, shapes, given, found, counts)) < LIMITS[torch.float16]


# --- calls that do not depend on others --------------------------------------------------------------
def test_large_calls_do_not_depend_on_those_before():
    """The same results to the last bit whatever came between, in a graph too, on other streams, elsewhere in
    memory."""
    calls = [tensors_of("detr-encoder-b4", pattern)[:4] for pattern in ("local(2)", "uniform")]
    calls = [(value.half(), shapes, None, *(t.half().unflatten(3, (4, 4)) for t in (locations, weights)))
             for value, locations, weights, shapes in calls]  # fmt: skip
    first = [ms_deform_attn(*call) for call in calls]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    elsewhere = [t.clone() for t in (calls[0][0], *calls[0][3:])]
    with torch.cuda.graph(graph):
        captured = [ms_deform_attn(*call) for call in calls]
        moved = ms_deform_attn(elsewhere[0], *calls[0][1:3], *elsewhere[1:])  # a value that no call has had
    stream.wait_stream(torch.cuda.current_stream())
    for which in (1, 0, 0, 1, 1, 0):
        graph.replay()
        with torch.cuda.stream(stream):
            aside = ms_deform_attn(*calls[which])
        assert torch.equal(ms_deform_attn(*calls[which]), first[which])
        torch.cuda.synchronize()
        assert torch.equal(aside, first[which]) and torch.equal(moved, first[0])
        assert all(torch.equal(one, other) for one, other in zip(captured, first, strict=True))


def test_locations_that_are_no_numbers():
    """They take nothing and change nothing, and the gradients of the others are right."""
    inputs = drawn(torch.float32)
    with torch.no_grad():
        flat = inputs[1].reshape(-1, 2)
        for i, bad in enumerate((float("nan"), float("inf"), -float("inf"))):
            flat[i::50, i % 2] = bad
        away = [t.clone() for t in inputs]  # on a CPU such rows are no numbers: there these lie far off
        away[1][~away[1].isfinite().all(-1)] = 9.0
    given = torch.randn(2, 100, 256, device="cuda")
    for one, wanted in zip(gradients(inputs, given), exact(away, given), strict=True):
        assert one.isfinite().all() and error(one, wanted) < 1e-5


def test_uneven_points_with_any_strides():
    inputs = drawn(torch.float32, points=(3, 6, 3, 1), flat=True)
    given = torch.randn(2, 256, 100, device="cuda").transpose(1, 2)
    moved = [t.detach().transpose(0, 2).contiguous().transpose(0, 2).requires_grad_() for t in inputs]
    assert not any(t.is_contiguous() for t in (*moved, given))
    options = {"num_points": (3, 6, 3, 1)}
    for one, wanted in zip(gradients(moved, given, **options), exact(inputs, given, **options), strict=True):
        assert error(one, wanted) < 1e-5


def test_checkpointing_and_inference_mode():
    from torch.utils.checkpoint import checkpoint

    def call(value, *rest):
        return ms_deform_attn(value, SHAPES, None, *rest)

    torch.use_deterministic_algorithms(True)
    inputs = drawn(torch.float32)
    given = torch.randn(2, 100, 256, device="cuda")
    kept = checkpoint(call, *inputs, use_reentrant=False)
    for one, other in zip(torch.autograd.grad(kept, inputs, given), gradients(inputs, given)[1:], strict=True):
        assert torch.equal(one, other)
    with torch.inference_mode():
        assert torch.equal(call(*inputs), kept)


def test_reduce_overhead_with_index_tensors_leaves_the_operator_out_of_the_graphs():
    if not hasattr(torch.Tag, "cudagraph_unsafe"):
        pytest.skip("this PyTorch has no word for it")

    @torch.compile(fullgraph=True, mode="reduce-overhead")
    def compiled(shapes, starts, value, locations, weights):
        return ms_deform_attn(value * 2, shapes, starts, locations, weights) + 1

    shapes = torch.tensor(SHAPES, device="cuda")
    starts = torch.tensor([0, 1050, 1323, 1400], device="cuda")
    for _ in range(3):
        value, locations, weights = (t.detach() for t in drawn(torch.float32))
        out = compiled(shapes, starts, value, locations, weights)
        wanted = ms_deform_attn(value * 2, SHAPES, None, locations, weights) + 1
        assert error(out, wanted.cpu().double()) < 1e-6

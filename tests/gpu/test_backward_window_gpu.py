"""On a GPU, at sizes that fill it: gradients by windows beside those of ``backward``, near and far samples, in
graphs, with numbers that are not finite."""

import pytest

from numba_deform import preset
from numba_deform.attention import gradients

torch = pytest.importorskip("torch")
plans = pytest.importorskip("numba_deform.torch.plans")


@pytest.fixture(scope="module")
def tensors(hopper):
    """{pattern: value, locations, weights, gradient of the output; shapes, starts} of DETR's encoder."""
    found = {}
    for pattern in ("local(2)", "uniform"):
        inputs = preset("detr-encoder", dtype="float16", pattern=pattern).generate(seed=1)
        arrays = inputs.value, inputs.sampling_locations, inputs.attention_weights
        value, locations, weights = (torch.from_numpy(array).cuda() for array in arrays)
        torch.manual_seed(1)
        given = torch.randn(len(value), locations.shape[1], value[0, 0].numel(), device="cuda")
        index = tuple(inputs.spatial_shapes.ravel().tolist()), tuple(inputs.level_start_index.tolist())
        found[pattern] = (value, locations, weights, given.half()), index
    return found


def found_by(tensors, index, launches=None, sums="fp32"):
    """(gradients of value (fp32 or int64), locations, weights), by the launches of a call or by others."""
    value, locations, weights, given = tensors
    call = (value.shape, value.dtype, locations.shape, locations.dtype, weights.shape, weights.dtype, *index,
            None, "default")  # fmt: skip
    problem = plans.problem_for(*call)
    gpu = plans.find_gpu(value.get_device())
    bounds = launches(problem, gpu) if launches else gradients.launches(problem, gpu, sums=sums)
    names = "value", "locations", "weights", *gradients.operands(0, 0, 0, 0)
    plan = plans.Plan(problem, gpu, *names).run(bounds)
    shape, _ = gradients.sums_shape(problem, sums)
    total = torch.zeros(shape, dtype=torch.int64 if sums == "fixed" else torch.float32, device="cuda")
    others = [torch.full_like(tensor, float("nan")) for tensor in (locations, weights)]
    scale = torch.full((1,), 2.0**40, device="cuda")
    operands = value, locations, weights, given, total, *others, scale
    plan(plans.current_stream(value.get_device()), *(tensor.data_ptr() for tensor in operands))
    torch.cuda.synchronize()
    return [total, *others], bounds


def plain(problem, gpu):
    return (gradients.bound(problem, gpu),)


def apart(found, want):
    found, want = found.double(), want.double()
    return float((found - want).norm() / want.norm())


@pytest.mark.parametrize("pattern", ["local(2)", "uniform"])
def test_beside_backward(tensors, pattern):
    inputs, index = tensors[pattern]
    found, bounds = found_by(inputs, index)
    assert [bound.variant.name for bound in bounds] == ["backward-window", "backward"]
    want, _ = found_by(inputs, index, plain)
    assert all(apart(a, b) < 1e-3 for a, b in zip(found, want, strict=True))


@pytest.mark.parametrize("pattern", ["local(2)", "uniform"])
def test_fixed_sums_are_equal_each_time(tensors, pattern):
    inputs, index = tensors[pattern]
    first, again = (found_by(inputs, index, sums="fixed")[0] for _ in range(2))
    assert all(a.any() and torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("which", range(4), ids=["value", "locations", "weights", "gradient"])
def test_what_is_not_finite(tensors, which):
    inputs, index = tensors["local(2)"]
    inputs = [tensor.clone() for tensor in inputs]
    flat = inputs[which].view(-1)
    flat[5], flat[flat.numel() // 2] = float("nan"), float("inf")
    found, _ = found_by(inputs, index)
    want, _ = found_by(inputs, index, plain)
    for a, b in zip(found, want, strict=True):
        assert torch.equal(a.isfinite(), b.isfinite())
        assert apart(torch.where(a.isfinite(), a, 0), torch.where(b.isfinite(), b, 0)) < 1e-3


def test_many_calls_and_a_graph(tensors):
    """A ring of one stage wraps for each level of each cell; what one launch leaves does not reach the next."""
    from numba_deform.torch import ms_deform_attn

    inputs, index = tensors["local(2)"]
    learning = [tensor.clone().requires_grad_() for tensor in inputs[:3]]
    given, shapes = inputs[3], list(zip(index[0][::2], index[0][1::2], strict=True))

    def step():
        out = ms_deform_attn(learning[0], shapes, list(index[1]), *learning[1:])
        return torch.autograd.grad(out, learning, given)

    want = step()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found = step()
    for _ in range(50):
        graph.replay()
    torch.cuda.synchronize()
    assert all(tensor.any() for tensor in want)
    assert all(apart(a, b) < 1e-3 for a, b in zip(found, want, strict=True))

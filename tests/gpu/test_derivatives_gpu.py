"""On a GPU: gradients of gradients, torch.func, vmap, nothing to compute, locations that are no numbers."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import numba_deform  # noqa: E402
from numba_deform import OperatorError  # noqa: E402
from numba_deform.torch import ms_deform_attn, propagate_nan  # noqa: E402

SHAPES = [[6, 5], [3, 4]]
LISTS = [6, 5, 3, 4], [0, 30]
SIZES = {"batch": 2, "queries": 5, "heads": 2}


@pytest.fixture(autouse=True)
def on_gpu(hopper):
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(False)


def drawn(dtype=torch.float32, batch=2, queries=5, heads=2):
    """value, locations, weights; no sample near a pixel's centre line, where gradients jump."""
    rows, size = (batch, queries, heads, 2, 3), torch.tensor(SHAPES, device="cuda").flip(1)[:, None]
    pixel = (torch.rand(*rows, 2, device="cuda") * 1.4 - 0.2) * size
    locations = (pixel.floor() + (pixel % 1) * 0.9 + 0.05 + 0.5) / size
    value = torch.randn(batch, 42, heads, 8, device="cuda").to(dtype)
    return [value, locations, torch.rand(*rows, device="cuda").to(dtype)]


def call(*tensors):
    return ms_deform_attn(tensors[0], SHAPES, None, *tensors[1:])


def loss(*tensors):
    return call(*tensors).sin().sum()


def exact(function, *tensors):
    """The same in float64 on the CPU, where gradcheck holds it."""
    return function(*(t.detach().cpu().double() for t in tensors))


def close(found, wanted, limit=1e-4):
    error = (found.detach().cpu().double() - wanted).norm() / wanted.norm()
    assert float(error) < limit, float(error)


def penalty(*tensors):
    """Gradients of the squared norms of gradients."""
    learning = [t.detach().requires_grad_() for t in tensors]
    first = torch.autograd.grad(loss(*learning), learning, create_graph=True)
    return torch.autograd.grad(sum(g.pow(2).sum() for g in first), learning)


def test_second_gradients():
    tensors = drawn()
    for found, wanted in zip(penalty(*tensors), exact(penalty, *tensors), strict=True):
        close(found, wanted)


@pytest.mark.parametrize("transform", ["grad", "vjp", "jvp", "hessian"])
def test_func(transform):
    tensors = drawn()

    def transformed(*given):
        ones = torch.ones((), dtype=given[0].dtype, device=given[0].device)
        return {
            "grad": lambda: torch.func.grad(loss, argnums=(0, 1, 2))(*given),
            "vjp": lambda: torch.func.vjp(loss, *given)[1](ones),
            "jvp": lambda: torch.func.jvp(call, given, given),
            "hessian": lambda: (torch.func.hessian(loss, argnums=2)(*given),),
        }[transform]()

    for found, wanted in zip(transformed(*tensors), exact(transformed, *tensors), strict=True):
        close(found, wanted)


def test_vmap_is_one_launch_of_a_larger_batch():
    several = [drawn(torch.float16) for _ in range(3)]
    inputs = [torch.stack(same) for same in zip(*several, strict=True)]
    for found, alone in zip(torch.func.vmap(call)(*inputs), several, strict=True):
        assert torch.equal(found, call(*alone))
    each = torch.func.vmap(torch.func.grad(loss))(*inputs)
    close(each[1].float(), exact(torch.func.grad(loss), *several[1]), 2e-3)


@pytest.mark.parametrize("empty", SIZES)
@pytest.mark.parametrize("learning", [False, True])
def test_empty(empty, learning):
    inputs = [t.requires_grad_(learning) for t in drawn(**{empty: 0})]
    sizes = {**SIZES, empty: 0}
    shape = sizes["batch"], sizes["queries"], 8 * sizes["heads"]
    out = call(*inputs)
    assert out.shape == shape and out.is_cuda
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert compiled(*inputs).shape == shape
    if learning:
        gradients = torch.autograd.grad(out.sum(), inputs)
        assert all(g.shape == t.shape and not g.any() for g, t in zip(gradients, inputs, strict=True))
        return
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call(*inputs)
    graph.replay()
    assert out.shape == shape
    index = torch.tensor(SHAPES), torch.tensor([0, 30])
    assert numba_deform.ms_deform_attn(inputs[0], *index, *inputs[1:]).shape == shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_locations_that_are_no_numbers(dtype):
    """By default they contribute nothing; under ``propagate_nan`` their rows are no numbers, in a graph too."""
    value, locations, weights = drawn(dtype)
    strange = torch.zeros(2, 5, 2, dtype=torch.bool, device="cuda")
    for i, bad in enumerate((float("nan"), float("inf"), -float("inf"))):
        locations[0, i, 1, 0, i, i % 2] = bad
        strange[0, i, 1] = True
    rows = strange.repeat_interleave(8, 2)
    plain = call(value, locations, weights)
    assert plain.isfinite().all()
    with propagate_nan():
        found = call(value, locations, weights)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = call(value, locations, weights)
        learning = value.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(call(learning, locations, weights).float().pow(2).sum(), learning)
    graph.replay()
    torch.cuda.synchronize()
    for out in (found, captured):
        assert torch.equal(out.isnan(), rows) and torch.equal(out[~rows], plain[~rows])
    assert gradient.isnan().any()
    assert torch.equal(call(value, locations, weights), plain)
    on_cpu = call(*(t.cpu() for t in (value, locations, weights)))
    assert torch.equal(on_cpu.isnan(), rows.cpu())


def test_other_devices_are_refused_by_name():
    value, locations, weights = drawn()
    for tensors, name in (
        ((value, locations.cpu(), weights), "sampling_locations on cpu"),
        ((value, locations, weights.to("meta")), "attention_weights on meta"),
        ((value.cpu(), locations, weights.cpu()), "sampling_locations on cuda:0"),
    ):
        with pytest.raises(OperatorError, match=name):
            call(*tensors)
        with pytest.raises(OperatorError, match=name):
            torch.ops.numba_deform.ms_deform_attn.lists(tensors[0], *LISTS, *tensors[1:])


def test_a_trace_has_the_operator():
    """Not what a launch left in memory that PyTorch does not see written."""
    traced = torch.jit.trace(lambda *t: call(*t), tuple(drawn()))
    others = drawn()
    assert torch.equal(traced(*others), call(*others))


def test_no_two_unwanted_gradients_are_one_tensor():
    tensors = drawn()
    backward = torch.ops.numba_deform.ms_deform_attn_backward.lists
    arguments = torch.randn(2, 5, 16, device="cuda"), tensors[0], *LISTS, *tensors[1:], None, "default"
    torch.library.opcheck(backward, (*arguments, False, False, True))

"""torch.ops.numba_deform on the CPU: values, gradients, and what PyTorch's own checks say."""

import itertools
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from numba_deform import ConfigError, OperatorError, reference, relative_error  # noqa: E402
from numba_deform.attention.reference import reference_gradients  # noqa: E402
from numba_deform.torch import cpu, formula, ms_deform_attn, prepare  # noqa: E402

SHAPES = [[5, 4], [2, 3], [1, 1]]
STARTS = [0, 20, 26]


def drawn(dtype=torch.float32, points=(3, 3, 3), flat=False, learning=True, seed=0):
    """value, locations (some outside) and weights of a small call."""
    random = torch.Generator().manual_seed(seed)
    batch, queries, heads, channels = 2, 3, 2, 4
    samples = (sum(points),) if flat else (len(points), points[0])
    rows = (batch, queries, heads, *samples)
    value = torch.randn(batch, 27, heads, channels, generator=random, dtype=torch.float64)
    locations = torch.rand(*rows, 2, generator=random, dtype=torch.float64) * 1.6 - 0.3
    weights = torch.rand(*rows, generator=random, dtype=torch.float64)
    return [t.to(dtype).requires_grad_(learning) for t in (value, locations, weights)]


def exact(value, locations, weights):
    return reference(*arrays(value), SHAPES, STARTS, *arrays(locations, weights))


def arrays(*tensors):
    return [tensor.detach().double().numpy() for tensor in tensors]


@pytest.mark.parametrize("method", ["default", "discrete"])
@pytest.mark.parametrize("points", [None, (3, 6, 3)])
def test_gradients(points, method):
    inputs = drawn(torch.float64, points or (3, 3, 3), flat=points is not None)

    def call(*tensors):
        value, locations, weights = tensors
        return ms_deform_attn(value, SHAPES, None, locations, weights, num_points=points, method=method)

    assert torch.autograd.gradcheck(call, inputs)


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float16, 1e-3), (torch.bfloat16, 8e-3), (torch.float32, 1e-6)]
)
def test_values_and_gradients_of_each_type(dtype, limit):
    value, locations, weights = drawn(dtype)
    out = ms_deform_attn(value, SHAPES, STARTS, locations, weights)
    assert out.dtype == dtype
    assert relative_error(*arrays(out), exact(value, locations, weights)) < limit
    given = torch.randn(out.shape).to(dtype)
    out.backward(given)
    wanted = reference_gradients(*arrays(value), SHAPES, STARTS, *arrays(locations, weights, given))
    for tensor, gradient in zip((value, locations, weights), wanted, strict=True):
        assert tensor.grad.dtype == dtype
        assert relative_error(*arrays(tensor.grad), gradient) < limit


def test_each_argument_keeps_its_type():
    value, locations, weights = drawn()
    value, weights = (t.detach().bfloat16().requires_grad_() for t in (value, weights))
    out = ms_deform_attn(value, SHAPES, STARTS, locations, weights)
    out.sum().backward()
    assert [t.dtype for t in (out, value.grad, locations.grad, weights.grad)] == [
        torch.bfloat16, torch.bfloat16, torch.float32, torch.bfloat16]  # fmt: skip


def test_flat_calls_are_the_same_where_levels_have_as_many_points():
    value, locations, weights = drawn()
    flat = locations.flatten(3, 4), weights.flatten(3)
    flat = ms_deform_attn(value, SHAPES, STARTS, *flat, num_points=[3, 3, 3])
    assert torch.equal(flat, ms_deform_attn(value, SHAPES, STARTS, locations, weights))


def test_discrete_samples_are_pixels():
    value, _, weights = drawn(torch.float64, (1, 1, 1))
    centres = torch.zeros(2, 3, 2, 3, 1, 2, dtype=torch.float64)
    centres[..., 0, 0, :] = torch.tensor([2.6 / 4, 9.0])  # column 3 of 4; below the last of 5 rows
    out = ms_deform_attn(value, SHAPES, STARTS, centres, weights, method="discrete").unflatten(2, (2, 4))
    pixels = value[:, [4 * 4 + 3, 20, 26]].permute(0, 2, 1, 3)  # (B, H, L, C)
    wanted = torch.einsum("bhlc,bqhl->bqhc", pixels, weights.squeeze(-1))
    assert torch.allclose(out, wanted)


backward = torch.ops.numba_deform.ms_deform_attn_backward.lists
LISTS = [n for pair in SHAPES for n in pair], STARTS
TENSORS = torch.tensor(SHAPES), torch.tensor(STARTS)


def permuted(tensor):
    """The same numbers in another order of memory."""
    moved = tensor.detach().transpose(0, 1).contiguous().transpose(0, 1)
    assert not moved.is_contiguous()
    return moved.requires_grad_(tensor.requires_grad)


@pytest.mark.parametrize("overload", ["default", "lists"])
@pytest.mark.parametrize("change", [lambda tensor: tensor, permuted], ids=["contiguous", "permuted"])
def test_opcheck(overload, change):
    index = LISTS if overload == "lists" else TENSORS
    value, locations, weights = map(change, drawn())
    forward = getattr(torch.ops.numba_deform.ms_deform_attn, overload)
    torch.library.opcheck(forward, (value, *index, locations, weights))
    backward = getattr(torch.ops.numba_deform.ms_deform_attn_backward, overload)
    inputs = [t.detach() for t in (value, locations, weights)]
    for wanted in itertools.product([True, False], repeat=3):  # no two of what is returned are one tensor
        call = torch.randn(2, 3, 8), inputs[0], *index, *inputs[1:], None, "default", *wanted
        torch.library.opcheck(backward, call)


OTHER_CALLS = {
    "flat": (torch.float32, (3, 6, 3), "default"), "discrete": (torch.float32, None, "discrete"),
    "flat and discrete": (torch.float64, (1, 2, 4), "discrete"), "float64": (torch.float64, None, "default"),
    "bfloat16": (torch.bfloat16, None, "default"), "float16": (torch.float16, (3, 6, 3), "default"),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHER_CALLS)
def test_opcheck_of_other_calls(kind):
    dtype, points, method = OTHER_CALLS[kind]
    value, locations, weights = drawn(dtype, points or (3, 3, 3), flat=points is not None)
    call = value, *LISTS, locations, weights, points, method
    torch.library.opcheck(torch.ops.numba_deform.ms_deform_attn.lists, call)
    call = torch.randn(2, 3, 8).to(dtype), *(t.detach() if isinstance(t, torch.Tensor) else t for t in call)
    torch.library.opcheck(backward, (*call, False, True, False))


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_results_are_the_same_in_any_number_of_threads(dtype, threads, monkeypatch):
    """Also the gradient of value, in which many samples meet. Each call has several parts."""
    monkeypatch.setattr(cpu, "GRAIN", 64)
    inputs, given = drawn(dtype, (7, 7, 7)), torch.randn(2, 3, 8).to(dtype)
    results = []
    for number in (1, 2, 3, 4):
        threads(number)
        for _ in range(2):
            out = ms_deform_attn(inputs[0], SHAPES, STARTS, *inputs[1:])
            results.append((out, *torch.autograd.grad(out, inputs, given)))
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


def test_any_strides():
    value, locations, weights = drawn(learning=False)
    moved = [permuted(t) for t in (value, locations, weights)]
    plain = ms_deform_attn(value, SHAPES, STARTS, locations, weights)
    assert torch.equal(plain, ms_deform_attn(moved[0], SHAPES, STARTS, *moved[1:]))


def test_uneven_points_with_any_strides():
    inputs = drawn(torch.float64, (3, 6, 3), flat=True)
    moved = [permuted(t) for t in inputs]
    options = {"num_points": (3, 6, 3)}
    given = torch.randn(3, 2, 8, dtype=torch.float64).transpose(0, 1)
    found, wanted = (
        torch.autograd.grad(ms_deform_attn(t[0], SHAPES, STARTS, *t[1:], **options), t, given)
        for t in (moved, inputs)
    )
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_one_pixel_and_one_query():
    random = torch.Generator().manual_seed(0)
    value, locations, weights = (
        torch.rand(70, *shape, generator=random, dtype=torch.float64)
        for shape in ((1, 2, 4), (1, 2, 1, 3, 2), (1, 2, 1, 3))
    )
    out = ms_deform_attn(value, [[1, 1]], None, locations, weights)
    nearness = (1 - (locations - 0.5).abs()).prod(-1)  # the pixel's centre is 0.5
    wanted = torch.einsum("bhc,bqhlp->bqhc", value[:, 0], weights * nearness).flatten(2)
    assert torch.allclose(out, wanted)
    inputs = [t[:2].requires_grad_() for t in (value, locations, weights)]
    assert torch.autograd.gradcheck(lambda v, *rest: ms_deform_attn(v, [[1, 1]], None, *rest), inputs)


STRANGE = torch.tensor([float("nan"), float("inf"), -float("inf")], dtype=torch.float64)


def test_locations_that_are_no_numbers():
    """Their rows are no numbers, as they are in grid_sample, and so are their gradients; the others are as they
    were. The gradient of value has what is sampled somewhere."""
    inputs, given = drawn(torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    with torch.no_grad():
        inputs[1][:, 1, 0, 1, :, 0] = STRANGE
    out = ms_deform_attn(inputs[0], SHAPES, STARTS, *inputs[1:])
    by_formula = formula.forward_of(inputs[0], *LISTS, *inputs[1:])
    gradients = [torch.autograd.grad(o, inputs, given, retain_graph=True) for o in (out, by_formula)]
    assert torch.allclose(out, by_formula, equal_nan=True)
    rows = torch.zeros(2, 3, 2, 4, dtype=torch.bool)
    rows[:, 1, 0] = True
    assert torch.equal(out.isnan(), rows.flatten(2))
    of_value, of_locations, of_weights = gradients[0]
    strange = torch.zeros(2, 3, 2, 3, 3, dtype=torch.bool)
    strange[:, 1, 0, 1] = True
    assert of_value.isfinite().all() and torch.equal(of_weights.isnan(), strange)
    assert torch.equal(of_locations.isnan().all(-1), strange)
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, equal_nan=True)
    plain = [t.detach() for t in inputs]
    for one, other in zip(*(b(given, plain[0], *LISTS, *plain[1:]) for b in (backward, formula.backward_of)),
                          strict=True):  # fmt: skip
        assert torch.allclose(one, other, equal_nan=True)


def test_discrete_locations_that_are_no_numbers():
    """They lie on an edge."""
    inputs, given = drawn(torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    results = []
    for strange in (STRANGE, torch.tensor([0.0, 9.0, -9.0], dtype=torch.float64)):
        with torch.no_grad():
            inputs[1][:, :, :, 1, :, 0] = strange
        out = ms_deform_attn(inputs[0], SHAPES, STARTS, *inputs[1:], method="discrete")
        results.append((out, *torch.autograd.grad(out, inputs, given)))
        assert torch.allclose(out, formula.forward_of(inputs[0], *LISTS, *inputs[1:], None, "discrete"))
    for one, other in zip(*results, strict=True):
        assert one.isfinite().all() and torch.equal(one, other)


@pytest.mark.parametrize("learning", [0, 1, 2])
def test_gradients_of_what_needs_them_alone(learning):
    tensors = drawn(learning=False)
    tensors[learning].requires_grad_()
    out = ms_deform_attn(tensors[0], SHAPES, STARTS, *tensors[1:])
    wanted = torch.autograd.grad(out.sum(), tensors[learning])
    everything = drawn()
    ms_deform_attn(everything[0], SHAPES, STARTS, *everything[1:]).sum().backward()
    assert torch.equal(wanted[0], everything[learning].grad)
    assert [t.grad for t in tensors] == [None] * 3


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    """One graph, forward and backward, also when sizes change."""
    def loss(value, locations, weights):
        return (ms_deform_attn(value, SHAPES, STARTS, locations, weights) ** 2).sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for repeat in (1, 2):
        eager, traced = ([t.detach().repeat(repeat, *[1] * (t.ndim - 1)).requires_grad_() for t in drawn()]
                         for _ in range(2))  # fmt: skip
        loss(*eager).backward()
        compiled(*traced).backward()
        for a, b in zip(eager, traced, strict=True):
            assert torch.equal(a.grad, b.grad)


def test_a_compiled_call_by_lists_has_no_tensor_of_them():
    """CUDA graphs, mode reduce-overhead, take no tensor of the CPU among what a graph leaves."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    left = []

    def compiler(graph, inputs):
        nodes = next(node for node in graph.graph.nodes if node.op == "output").args[0]
        left.extend(node.meta["val"].dtype for node in nodes if isinstance(node, torch.fx.Node))
        return make_boxed_func(graph.forward)

    @torch.compile(fullgraph=True, backend=aot_autograd(fw_compiler=compiler))
    def compiled(value, locations, weights):
        return ms_deform_attn(value, SHAPES, None, locations, weights)

    compiled(*drawn()).sum().backward()
    assert len(left) > 4 and set(left) == {torch.float32}


def test_compiled_index_tensors():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(shapes, starts, value, locations, weights):
        return ms_deform_attn(value, shapes, starts, locations, weights)

    inputs, shapes = drawn(), torch.tensor(SHAPES)
    wanted = ms_deform_attn(inputs[0], SHAPES, STARTS, *inputs[1:])
    for index in ((shapes, torch.tensor(STARTS)), (shapes, None), (SHAPES, torch.tensor(STARTS))):
        out = compiled(*index, *inputs)
        assert torch.equal(out, wanted)
        for one, other in zip(*(torch.autograd.grad(o.sum(), inputs, retain_graph=True) for o in (out, wanted)),
                              strict=True):  # fmt: skip
            assert torch.equal(one, other)


def test_export_with_any_size_of_an_image():
    """Heights and widths are numbers of the graph, not constants."""
    class Model(torch.nn.Module):
        def forward(self, image, locations, weights):
            shapes = [[image.shape[2], image.shape[3]], [1, 1]]
            value = torch.cat([image.flatten(2).transpose(1, 2), torch.ones_like(image[:, :, 0, :1].mT)], 1)
            return ms_deform_attn(value.unflatten(2, (2, 4)), shapes, None, locations, weights)

    def inputs(height, width):
        return torch.randn(2, 8, height, width), torch.rand(2, 3, 2, 2, 3, 2), torch.rand(2, 3, 2, 2, 3)

    size = {2: torch.export.Dim("height", min=2, max=99), 3: torch.export.Dim("width", min=2, max=99)}
    program = torch.export.export(Model(), inputs(5, 4), dynamic_shapes=(size, None, None))
    other = inputs(7, 3)
    assert torch.equal(program.module()(*other), Model()(*other))


def test_export():
    class Model(torch.nn.Module):
        def forward(self, value, locations, weights):
            return ms_deform_attn(value, SHAPES, None, locations, weights) + 1

    inputs = tuple(drawn(learning=False))
    program = torch.export.export(Model(), inputs)
    assert torch.equal(program.module()(*inputs), Model()(*inputs))


def test_autocast_changes_the_type_of_value_alone():
    value, locations, weights = drawn()
    with torch.autocast("cpu", torch.bfloat16):
        out = ms_deform_attn(value, SHAPES, STARTS, locations, weights)
    wanted = ms_deform_attn(value.bfloat16(), SHAPES, STARTS, locations, weights)
    assert out.dtype == torch.bfloat16 and torch.equal(out, wanted)
    out.float().sum().backward()
    assert value.grad.dtype == locations.grad.dtype == torch.float32


def test_checkpointing():
    from torch.utils.checkpoint import checkpoint

    def call(value, *rest):
        return ms_deform_attn(value, SHAPES, STARTS, *rest).sum()

    plain, kept = drawn(), drawn()
    call(*plain).backward()
    checkpoint(call, *kept, use_reentrant=False).backward()
    for a, b in zip(plain, kept, strict=True):
        assert torch.equal(a.grad, b.grad)


def test_index_tensors_are_read_again_after_a_change():
    value, locations, weights = drawn(learning=False)
    shapes, starts = torch.tensor(SHAPES), torch.tensor(STARTS)
    first = ms_deform_attn(value, shapes, starts, locations, weights)
    shapes[0] = torch.tensor([4, 5])
    again = ms_deform_attn(value, shapes, starts, locations, weights)
    assert not torch.equal(first, again)
    assert torch.equal(again, ms_deform_attn(value, [[4, 5], *SHAPES[1:]], starts, locations, weights))


def test_index_tensors_may_share_memory_with_numpy():
    """Then PyTorch does not see that they change."""
    value, locations, weights = drawn()
    shapes = np.array(SHAPES)
    index = torch.from_numpy(shapes), torch.tensor(STARTS)
    before = ms_deform_attn(value, *index, locations, weights)
    shapes[0] = 4, 5
    after = ms_deform_attn(value, *index, locations, weights)
    assert torch.equal(after, ms_deform_attn(value, shapes.tolist(), STARTS, locations, weights))
    assert not torch.equal(after, before)


def test_lists_in_inference_mode_and_after_it():
    value, locations, weights = drawn(seed=3)
    shapes = [[4, 5], [3, 2], [1, 1]]  # which no other test has made a tensor of
    with torch.inference_mode():
        out = ms_deform_attn(value, shapes, STARTS, locations, weights)
    again = ms_deform_attn(value, shapes, STARTS, locations, weights)
    again.sum().backward()
    assert torch.equal(out, again) and value.grad.any()


def test_threads():
    inputs = [drawn(seed=seed) for seed in range(12)]
    results = [None] * len(inputs)

    def work(i):
        value, locations, weights = inputs[i]
        ms_deform_attn(value, SHAPES, STARTS, locations, weights).sum().backward()
        results[i] = [t.grad for t in inputs[i]]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, gradients in enumerate(results):
        alone = drawn(seed=seed)
        ms_deform_attn(alone[0], SHAPES, STARTS, *alone[1:]).sum().backward()
        assert all(torch.equal(a.grad, b) for a, b in zip(alone, gradients, strict=True))


def test_what_is_refused():
    value, locations, weights = drawn(learning=False)

    def refused(text, *changes, kind=OperatorError, **options):
        given = {
            "value": value, "spatial_shapes": SHAPES, "level_start_index": STARTS,
            "sampling_locations": locations, "attention_weights": weights, **dict(changes)}  # fmt: skip
        with pytest.raises(kind, match=text):
            ms_deform_attn(**given, **options)

    refused("^value is a ndarray; numba_deform.torch takes", ("value", np.zeros(3)))
    refused("^spatial_shapes says 22 positions but value has S=27", ("spatial_shapes", [[5, 3], *SHAPES[1:]]))
    refused(r"^spatial_shapes=\[5, 4\]: it is a height and a width", ("spatial_shapes", [5, 4]),
            ("level_start_index", None))  # fmt: skip
    refused(r"^spatial_shapes=\[\[5, 4, 1\]\]: it is a height and a width", ("spatial_shapes", [[5, 4, 1]]))
    refused(r"^spatial_shapes=\[5.5, 4, .* they are integers", ("spatial_shapes", [[5.5, 4], *SHAPES[1:]]))
    refused("^level_start_index=7: it is a number for each level", ("level_start_index", 7))
    refused("^spatial_shapes has shape .6,.; it is", ("spatial_shapes", torch.tensor(SHAPES).flatten()))
    refused("^spatial_shapes has dtype float32", ("spatial_shapes", torch.tensor(SHAPES).float()))
    refused("^attention_weights has shape", ("attention_weights", weights[:, :1]))
    refused("^value has dtype int32", ("value", value.int()))
    refused("^sampling_locations has shape .* it must have rank 5", num_points=[3, 6, 3])
    refused("^im2col_step=0", im2col_step=0)
    refused("^method=nearest: must be one of default, discrete", method="nearest", kind=ConfigError)
    refused(r"^num_points=\[3, 5\]: .* has 9 samples a row", ("sampling_locations", locations.flatten(3, 4)),
            ("attention_weights", weights.flatten(3)), num_points=[3, 5])  # fmt: skip
    for points in (3, [3.0, 3.0, 3.0]):
        refused("^num_points=.*: it is an integer for each level", num_points=points)
    for index, text in ((([5, 4, 2], STARTS), "height and a width"), ((LISTS[0], [0]), "describes 1 levels")):
        with pytest.raises(OperatorError, match=text):
            torch.ops.numba_deform.ms_deform_attn.lists(value, *index, locations, weights)
    with pytest.raises(OperatorError, match="^value is a ndarray; numba_deform.torch takes"):
        prepare(np.zeros(3), SHAPES, STARTS, locations, weights)


def test_a_gradient_of_another_shape_is_refused():
    """Also one with as many numbers, in another order."""
    inputs = drawn(learning=False)
    for shape in ((2, 3, 7), (3, 2, 8), (2, 3, 2, 4), (1,)):
        with pytest.raises(OperatorError, match=r"^grad_out has shape .* the output's, \(2, 3, 8\)"):
            backward(torch.ones(shape), inputs[0], *LISTS, *inputs[1:])


def test_where_no_directory_can_be_written():
    """Neither the package's nor the user's: machine code is not kept, which is said."""
    program = """
        import warnings
        import torch
        from numba.core.caching import CacheImpl
        CacheImpl._locator_classes = []
        with warnings.catch_warnings(record=True) as caught:
            from numba_deform.torch import ms_deform_attn
        assert "compiled anew by each process without NUMBA_CACHE_DIR: cannot" in str(caught[0].message)
        value, weights = torch.ones(1, 4, 1, 4), torch.ones(1, 1, 1, 1, 1)
        out = ms_deform_attn(value, [[2, 2]], None, torch.full((1, 1, 1, 1, 1, 2), 0.5), weights)
        assert out.tolist() == [[[1.0] * 4]]
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=300)

"""Gradients of gradients, forward mode, torch.func and vmap: exact, on the CPU, by the formula."""

import itertools
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.autograd import forward_ad  # noqa: E402

import numba_deform.torch  # noqa: E402
from numba_deform import OperatorError  # noqa: E402
from numba_deform.torch import ms_deform_attn  # noqa: E402

SHAPES = [[3, 2], [1, 2]]
LISTS = [3, 2, 1, 2], [0, 6]
NAMES = ("value", "locations", "weights")


def drawn(seed=0, points=None, batch=1):
    """value, locations (some outside) and weights of a very small call; flat where ``points`` are given."""
    random = torch.Generator().manual_seed(seed)
    samples = (2, 2) if points is None else (sum(points),)
    return [
        torch.randn(batch, 8, 2, 2, generator=random, dtype=torch.float64),
        torch.rand(batch, 2, 2, *samples, 2, generator=random, dtype=torch.float64) * 1.4 - 0.2,
        torch.rand(batch, 2, 2, *samples, generator=random, dtype=torch.float64),
    ]


def call(value, locations, weights, **options):
    return ms_deform_attn(value, SHAPES, None, locations, weights, **options)


def loss(*tensors):
    """A number that is no linear function of the output."""
    return call(*tensors).sin().sum()


@pytest.mark.parametrize("learning", [c for n in (1, 2, 3) for c in itertools.combinations(range(3), n)])
def test_first_and_second_gradients_of_each_subset(learning):
    tensors = drawn()
    for i in learning:
        tensors[i].requires_grad_()
    assert torch.autograd.gradcheck(call, tensors)
    assert torch.autograd.gradgradcheck(call, tensors)


@pytest.mark.parametrize("method", ["default", "discrete"])
def test_second_gradients_of_flat_calls(method):
    tensors = [t.requires_grad_() for t in drawn(points=(1, 3))]
    assert torch.autograd.gradgradcheck(lambda *t: call(*t, num_points=(1, 3), method=method), tensors)


def test_third_gradients():
    """Of weights, in which second gradients are linear: what stands behind them is their own gradient."""
    value, locations, weights = (t.requires_grad_() for t in drawn())
    found = torch.autograd.grad(loss(value, locations, weights), locations, create_graph=True)[0].pow(2).sum()
    found = torch.autograd.grad(found, weights, create_graph=True)[0].pow(2).sum()
    (third,) = torch.autograd.grad(found, value)
    step = torch.randn(value.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 1e-5

    def second(moved):
        first = torch.autograd.grad(loss(moved, locations, weights), locations, create_graph=True)[0]
        return torch.autograd.grad(first.pow(2).sum(), weights)[0].pow(2).sum()

    numeric = second(value.detach() + step) - second(value.detach() - step)
    assert torch.allclose((third * step).sum() * 2, numeric, rtol=1e-6)


def test_a_gradient_penalty():
    """What the norm of a gradient is wanted for: a step of training that has it in its loss."""
    value, locations, weights = (t.requires_grad_() for t in drawn())
    (gradient,) = torch.autograd.grad(loss(value, locations, weights), value, create_graph=True)
    (gradient.norm() - 1).square().backward()
    assert all(t.grad.isfinite().all() and t.grad.any() for t in (value, locations, weights))


def operator(*tensors):
    """The same by PyTorch's own operator, as compiled code calls it."""
    return torch.ops.numba_deform.ms_deform_attn.lists(tensors[0], *LISTS, *tensors[1:])


@pytest.mark.parametrize("called", [call, operator])
def test_func(called):
    """grad, vjp, jvp, jacrev, jacfwd and hessian are what torch.autograd finds."""
    tensors = drawn()

    def number(*given):
        return called(*given).sin().sum()

    learning = [t.clone().requires_grad_() for t in tensors]
    wanted = torch.autograd.grad(number(*learning), learning)
    found = torch.func.grad(number, argnums=(0, 1, 2))(*tensors)
    out, pull = torch.func.vjp(number, *tensors)
    assert torch.allclose(out, number(*tensors))
    for one, other, right in zip(found, pull(torch.ones_like(out)), wanted, strict=True):
        assert torch.allclose(one, right) and torch.allclose(other, right)
    tangents = drawn(seed=5)
    _, tangent = torch.func.jvp(number, tuple(tensors), tuple(tangents))
    assert torch.allclose(tangent, sum((a * b).sum() for a, b in zip(wanted, tangents, strict=True)))
    for i in range(3):
        by_rows = torch.func.jacrev(called, argnums=i)(*tensors)
        assert torch.allclose(by_rows, torch.func.jacfwd(called, argnums=i)(*tensors))
    hessian = torch.func.hessian(number, argnums=1)(*tensors)
    exact = torch.autograd.functional.hessian(lambda t: number(tensors[0], t, tensors[2]), tensors[1])
    assert torch.allclose(hessian, exact)


def test_locations_that_are_no_numbers():
    """Their gradients are none, as torch.autograd has it; what has nothing to do with them is as it was."""
    tensors = drawn()
    plain = torch.func.grad(loss, argnums=(0, 1, 2))(*tensors)
    strange = torch.zeros(1, 2, 2, 2, 2, dtype=torch.bool)
    for i, bad in enumerate((float("nan"), float("inf"))):
        tensors[1][0, 1, 0, i, 1, i] = bad
        strange[0, 1, 0, i, 1] = True
    learning = [t.clone().requires_grad_() for t in tensors]
    wanted = torch.autograd.grad(call(*learning).sum(), learning)
    for found, exact in zip(torch.func.grad(lambda *t: call(*t).sum(), argnums=(0, 1, 2))(*tensors), wanted,
                            strict=True):  # fmt: skip
        assert torch.allclose(found, exact, equal_nan=True)
    assert torch.equal(wanted[1].isnan().all(-1), strange) and torch.equal(wanted[2].isnan(), strange)
    found = torch.func.grad(loss, argnums=(0, 1, 2))(*tensors)
    for one, other in zip(found[1:], plain[1:], strict=True):
        assert torch.equal(one[:, 0], other[:, 0]) and one[:, 1, 0].isnan().any()
    tangent = torch.func.jvp(call, tuple(tensors), tuple(drawn(seed=5)))[1].unflatten(2, (2, 2))
    assert torch.equal(tangent.isnan().all(-1), strange.any(-1).any(-1))


def test_forward_mode():
    tensors, tangents = drawn(), drawn(seed=5)
    with forward_ad.dual_level():
        out = call(*map(forward_ad.make_dual, tensors, tangents))
        tangent = forward_ad.unpack_dual(out).tangent
    assert torch.allclose(tangent, torch.func.jvp(call, tuple(tensors), tuple(tangents))[1])
    assert torch.autograd.gradcheck(call, [t.requires_grad_() for t in tensors], check_forward_ad=True)


@pytest.mark.parametrize("called", [call, operator])
@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, None), (None, 2, 1), (1, 0, None)], ids=str)
def test_vmap(called, in_dims):
    """One call with a larger batch, not a loop: PyTorch would say that it is one."""
    several = [drawn(seed=seed, batch=2) for seed in range(3)]
    inputs = [
        several[0][i] if dim is None else torch.stack([s[i] for s in several], dim)
        for i, dim in enumerate(in_dims)
    ]
    with warnings.catch_warnings(action="error"):
        out = torch.func.vmap(called, in_dims)(*inputs)
    for i, found in enumerate(out):
        alone = [several[0 if dim is None else i][k] for k, dim in enumerate(in_dims)]
        assert torch.allclose(found, call(*alone))


def test_gradients_of_each_example():
    inputs = drawn(batch=3)
    one = [t.unsqueeze(1) for t in inputs]
    found = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*one)
    learning = [t.clone().requires_grad_() for t in inputs]
    wanted = torch.autograd.grad(loss(*learning), learning)
    for each, right in zip(found, wanted, strict=True):
        assert torch.allclose(each.squeeze(1), right)


def test_levels_cannot_be_mapped():
    value, locations, weights = drawn()
    shapes = torch.tensor([SHAPES, SHAPES])
    with pytest.raises(OperatorError, match="level_start_index cannot be mapped by vmap"):
        torch.func.vmap(
            lambda s: torch.ops.numba_deform.ms_deform_attn(value, s, torch.tensor([0, 6]), locations, weights)
        )(shapes)


class Other(torch.Tensor):
    """A tensor of somebody who wants to see what is done with it."""


GIVEN = {
    "plain": lambda given: (given, {}),
    "for gradients of gradients": lambda given: (given, {"create_graph": True}),
    "several": lambda given: (torch.stack([given, given]), {"is_grads_batched": True}),
    "negative": lambda given: (torch._neg_view(-given), {}),
    "of a subclass": lambda given: (given.as_subclass(Other), {}),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_a_plain_backward_pass_alone_leaves_out_the_dispatcher(kind, monkeypatch):
    dispatched, operator = [], numba_deform.torch.operator
    backward = operator.BACKWARD_LISTS
    monkeypatch.setattr(operator, "BACKWARD_LISTS", lambda *given: dispatched.append(0) or backward(*given))
    learning = [tensor.requires_grad_() for tensor in drawn()]
    out = call(*learning)
    wanted = torch.autograd.grad(out, learning, torch.ones_like(out), retain_graph=True)
    assert not dispatched
    given, options = GIVEN[kind](torch.ones_like(out))
    found = torch.autograd.grad(out, learning, given, **options)
    assert len(dispatched) == (kind != "plain")
    for one, right in zip(found, wanted, strict=True):
        assert torch.allclose(one[-1] if kind == "several" else one, right)


def test_negative_views_of_inputs():
    """They lie in memory with the other sign."""
    value, locations, weights = drawn()
    assert torch.equal(call(torch._neg_view(-value), locations, torch._neg_view(-weights)), call(*drawn()))

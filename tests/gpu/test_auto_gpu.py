"""``auto`` on a real GPU: near and far samples, in whatever order, captured or not."""

import numpy as np
import pytest

from numba_deform import ms_deform_attn, prepare
from numba_deform.attention import auto
from numba_deform.attention.bind import Bound
from numba_deform.engines.gpu.device import DeviceArray
from numba_deform.kernels import window_fit
from numba_deform.kernels.direct import FAR, GATE_WORDS
from numba_deform.measure.case import Case
from numba_deform.workloads.presets import preset

NEAR = preset("mask2former", pattern="local(1)")
CASES = {"near": NEAR, "far": NEAR.replace(sigma=16.0)}


@pytest.fixture(scope="module")
def cases():
    from numba_deform.engines.gpu.device import find_gpu

    return {name: Case(w.generate(1), find_gpu()) for name, w in CASES.items()}


def call(case, variant="auto"):
    value, locations, weights = case.on_gpu.inputs
    shapes = case.inputs.spatial_shapes, case.inputs.level_start_index
    case.on_gpu.poison()
    return ms_deform_attn(value, *shapes, locations, weights, variant, out=case.on_gpu.out).to_numpy()


@pytest.mark.parametrize("kind", CASES)
def test_the_gate_says_what_was_counted(hopper, cases, kind):
    """As NumPy counts it; what is left to the second launch the first one does not write."""
    case = cases[kind]
    window, direct = auto.launches(hopper, case.problem)
    _, outside = window_fit.look(case.problem, window.fit, case.inputs.sampling_locations)
    gate = DeviceArray.of(hopper, np.zeros(GATE_WORDS, np.uint32))
    case.on_gpu.poison()
    for bound in (window, direct):
        bound.launch(case.on_gpu.addresses, extra={"gate": gate})
        word, _ = gate.to_numpy()
        out = case.on_gpu.out.to_numpy()
        assert abs(int(word & ~np.uint32(FAR)) - outside) <= 2 and bool(word & FAR) == (kind == "far")
        assert np.isnan(out.astype(np.float32)).all() == (kind == "far" and bound is window)
    assert case.error(out) < 1e-3


def test_equal_calls_give_equal_bits_whatever_was_called_before(hopper, cases):
    first = {kind: call(case) for kind, case in cases.items()}
    for kind in ("far", "near", "near", "far", "far", "near") * 3:
        assert np.array_equal(call(cases[kind]), first[kind])
    for kind, case in cases.items():
        assert case.error(first[kind]) < 1e-3


def test_a_plan_serves_near_and_far_samples(hopper, cases):
    near = cases["near"]
    value, locations, weights = near.on_gpu.inputs
    shapes = near.inputs.spatial_shapes, near.inputs.level_start_index
    plan = prepare(value, *shapes, locations, weights)
    for case in (*cases.values(), near):
        case.on_gpu.poison()
        assert case.error(plan(*case.on_gpu.inputs, case.on_gpu.out).to_numpy()) < 1e-3


def test_windows_with_a_limit_need_no_gate_by_name(hopper, cases):
    chosen = auto.choose(hopper, cases["near"].problem)
    bound = Bound(cases["near"].problem, chosen.variant, chosen.config.fitted(limit=-1), hopper)
    cases["near"].on_gpu.poison()
    bound.launch(cases["near"].on_gpu.addresses)
    assert cases["near"].error(cases["near"].on_gpu.out.to_numpy()) < 1e-3


@pytest.mark.parametrize("kind", CASES)
def test_auto_in_a_captured_graph(hopper, cases, kind):
    """Captured before anything was called with these arguments; replayed with others' locations too."""
    torch = pytest.importorskip("torch", reason="a graph is captured by PyTorch")
    case, other = cases[kind], cases["far" if kind == "near" else "near"]
    names = ("value", "sampling_locations", "attention_weights")
    value, locations, weights = (torch.from_numpy(getattr(case.inputs, n)).cuda() for n in names)
    shapes = case.inputs.spatial_shapes, case.inputs.level_start_index
    out = torch.empty(case.problem.out_shape, dtype=value.dtype, device="cuda")
    auto.launches.cache_clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            ms_deform_attn(value, *shapes, locations, weights, out=out)
    for seen in (case, other, case):
        locations.copy_(torch.from_numpy(seen.inputs.sampling_locations))
        weights.copy_(torch.from_numpy(seen.inputs.attention_weights))
        value.copy_(torch.from_numpy(seen.inputs.value))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert seen.error(out.cpu().numpy()) < 1e-3

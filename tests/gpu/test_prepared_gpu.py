"""Prepared calls on a real GPU: against the operator and the reference, at new addresses, captured."""

import numpy as np
import pytest

from numba_deform import OperatorError, ms_deform_attn, prepare, reference, relative_error
from numba_deform.attention import prepared
from numba_deform.attention.reference import TOLERANCE
from numba_deform.engines.gpu.device import DeviceArray
from numba_deform.workloads.workload import Workload

WORKLOAD = Workload(
    "decoder", batch=2, levels=((37, 50), (19, 25), (10, 13), (1, 1)), num_query=75, num_heads=3,
    num_points=4, outside=0.1,
)  # fmt: skip
VARIANTS = ["direct", "tma", "tma-rank5", "persistent"]


@pytest.fixture
def torch(hopper):
    return pytest.importorskip("torch")


def tensors(torch, seed=1):
    """(the inputs, ``prepare``'s arrays as tensors)."""
    inputs = WORKLOAD.generate(seed=seed)
    arrays = (
        inputs.value, inputs.spatial_shapes, inputs.level_start_index, inputs.sampling_locations,
        inputs.attention_weights,
    )  # fmt: skip
    return inputs, [torch.from_numpy(a).cuda() for a in arrays]


def operands(arrays):
    return [arrays[i] for i in (0, 3, 4)]


def error(out, inputs):
    out = out.double().cpu().numpy() if hasattr(out, "cpu") else out
    return relative_error(
        out, reference(
            inputs.value, inputs.spatial_shapes, inputs.level_start_index,
            inputs.sampling_locations, inputs.attention_weights,
        ),
    )  # fmt: skip


def empty_out(torch, arrays):
    b, q, h = arrays[3].shape[:3]
    return torch.full((b, q, h * 32), torch.nan, dtype=torch.float16, device="cuda")


@pytest.mark.parametrize("name", VARIANTS)
def test_same_as_the_operator(torch, name):
    inputs, arrays = tensors(torch)
    plan = prepare(*arrays, name)
    out = empty_out(torch, arrays)
    assert plan(*operands(arrays), out=out) is out
    assert torch.equal(out, ms_deform_attn(*arrays, name))
    assert error(out, inputs) < TOLERANCE["float16"]
    allocated = plan(*operands(arrays))
    assert isinstance(allocated, torch.Tensor) and torch.equal(allocated, out)
    assert "H200" in plan.describe() or "SM 9" in plan.describe()


@pytest.mark.parametrize("name", VARIANTS)
def test_new_addresses(torch, name, monkeypatch):
    """More values than a plan keeps maps for, twice round."""
    monkeypatch.setattr(prepared, "KEPT_VALUES", 2)
    made = [tensors(torch, seed) for seed in range(4)]
    plan = prepare(*made[0][1], name)
    for inputs, arrays in made + made:
        assert error(plan(*operands(arrays)), inputs) < TOLERANCE["float16"]


def test_numpy_arrays_and_device_arrays(hopper):
    inputs = WORKLOAD.generate(seed=2)
    arrays = [inputs.value, inputs.sampling_locations, inputs.attention_weights]
    index = (inputs.spatial_shapes, inputs.level_start_index)
    plan = prepare(arrays[0], *index, *arrays[1:], "tma", engine="gpu")
    assert error(plan(*arrays), inputs) < TOLERANCE["float16"]
    there = [DeviceArray.of(hopper, a) for a in arrays]
    out = DeviceArray(hopper, plan.problem.out_shape, np.float16)
    plan = prepare(there[0], *index, *there[1:], "tma")
    assert error(plan(*there, out=out).to_numpy(), inputs) < TOLERANCE["float16"]


def test_cupy(hopper):
    cupy = pytest.importorskip("cupy")
    inputs = WORKLOAD.generate(seed=3)
    arrays = [
        cupy.asarray(a) for a in (inputs.value, inputs.sampling_locations, inputs.attention_weights)
    ]
    plan = prepare(
        arrays[0], inputs.spatial_shapes, inputs.level_start_index, *arrays[1:], "tma"
    )  # fmt: skip
    assert error(plan(*arrays).get(), inputs) < TOLERANCE["float16"]


def test_on_the_callers_stream(torch):
    inputs, arrays = tensors(torch)
    plan = prepare(*arrays, "tma")
    mine = operands(arrays)
    right = [a.clone() for a in mine]
    for a in mine:
        a.zero_()
    out = empty_out(torch, arrays)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # a launch on another stream would read zeros
        for a, b in zip(mine, right, strict=True):
            a.copy_(b)
        plan(*mine, out=out)
    stream.synchronize()
    assert error(out, inputs) < TOLERANCE["float16"]


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("name", VARIANTS)
def test_capture_and_replay(torch, name, warm):
    inputs, arrays = tensors(torch)
    mine, out = operands(arrays), empty_out(torch, arrays)
    plan = prepare(*arrays, name)
    if warm:
        plan(*mine, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            plan(*mine, out=out)
    for seed in (1, 5):
        inputs, others = tensors(torch, seed)
        for a, b in zip(mine, operands(others), strict=True):
            a.copy_(b)
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert error(out, inputs) < TOLERANCE["float16"]


def test_maps_of_a_graph_outlive_many_values(torch, monkeypatch):
    monkeypatch.setattr(prepared, "KEPT_VALUES", 1)
    inputs, arrays = tensors(torch)
    mine, out = operands(arrays), empty_out(torch, arrays)
    plan = prepare(*arrays, "tma")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(*mine, out=out)
    others = [tensors(torch, seed)[1] for seed in range(2, 6)]
    for other in others:
        plan(*operands(other))
    out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert error(out, inputs) < TOLERANCE["float16"]


def test_an_unknown_value_cannot_be_captured(torch):
    _, arrays = tensors(torch)
    out, (value, *rest) = empty_out(torch, arrays), operands(arrays)
    plan = prepare(*arrays, "tma")
    fresh = value.clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(
            OperatorError, match="cannot be made while the stream is captured; call"
        ):
            plan(fresh, *rest, out=out)
        plan(value, *rest, out=out)  # the capture goes on
    plan(fresh, *rest, out=out)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        plan(fresh, *rest, out=out)


def test_what_a_call_refuses(torch):
    inputs, arrays = tensors(torch)
    plan = prepare(*arrays, "direct")
    value, locations, weights = operands(arrays)
    out = empty_out(torch, arrays)
    for changed, start in (
        ((value[:1], locations, weights), "value is contiguous \\(1, "),
        ((value.float(), locations, weights), "value is contiguous .* float32"),
        ((value.cpu(), locations, weights), "value is contiguous .* in host memory"),
        ((value, locations[:, :9], weights), "sampling_locations is non-contiguous"),
        ((value, locations, weights.repeat(1, 2, 1, 1, 1)), "attention_weights is contiguous"),
        ((value, locations, inputs.attention_weights), "attention_weights is .* of NumPy"),
        ((value, locations, weights.clone().requires_grad_()), "attention_weights requires a gr"),
    ):
        with pytest.raises(OperatorError, match=start):
            plan(*changed, out=out)
    with pytest.raises(OperatorError, match="out is contiguous .* float32 on GPU 0; "):
        plan(value, locations, weights, out=out.float())
    torch.cuda.synchronize()
    assert out.isnan().all()


def test_host_overhead(torch):
    _, arrays = tensors(torch)
    out = empty_out(torch, arrays)
    for name in ("direct", "tma-fastest"):
        taken = prepare(*arrays, name).host_overhead(*operands(arrays), out)
        assert 0 < taken < 100, f"{name}: {taken} us"  # bench/prepared.py has the real figure

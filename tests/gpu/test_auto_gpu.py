"""``auto`` on a real GPU: what the kernel counts, and that calls that go wrong are few."""

import numpy as np
import pytest

from numba_deform import ms_deform_attn, prepare
from numba_deform.attention import auto
from numba_deform.engines.gpu.device import DeviceArray, copy_to_host
from numba_deform.kernels import window_fit
from numba_deform.measure.case import Case
from numba_deform.workloads.presets import preset

NEAR = preset("mask2former", pattern="local(1)")
FAR = NEAR.replace(sigma=16.0)


@pytest.fixture(scope="module")
def cases():
    from numba_deform.engines.gpu.device import find_gpu

    return {name: Case(w.generate(1), find_gpu()) for name, w in (("near", NEAR), ("far", FAR))}


def call(case, variant="auto"):
    value, locations, weights = case.on_gpu.inputs
    shapes = case.inputs.spatial_shapes, case.inputs.level_start_index
    case.on_gpu.poison()
    return ms_deform_attn(value, *shapes, locations, weights, variant, out=case.on_gpu.out)


def share_outside(case, fitted):
    """Of all samples, the share that touch their level and whose window does not hold them."""
    problem, tables = case.problem, fitted.tables(1)
    corners = np.empty((problem.queries, problem.heads, problem.constants.levels, 2))
    for (_, head, cell, _), starts in zip(tables.schedule, tables.corners, strict=True):
        corners[tables.order[cell], head] = starts[:, :2]
    locations = np.asarray(case.inputs.sampling_locations, np.float64)
    samples = window_fit.level_samples(problem, locations)
    levels = window_fit.level_windows(problem, fitted.config.boxes, corners, samples)
    return sum(level.lost for level in levels) / locations[..., 0].size


def test_counts(hopper, cases):
    """Windows fitted to near samples: the kernel counts near and far ones as NumPy does."""
    near = cases["near"]
    value, locations, weights = near.on_gpu.inputs
    shapes = near.inputs.spatial_shapes, near.inputs.level_start_index
    plan = prepare(value, *shapes, locations, weights, "window")
    config = plan.variant.configure(near.problem.constants)
    fitted = plan.variant.fit(near.problem, config, near.inputs.sampling_locations)
    assert plan.outside() is None
    for case in cases.values():
        for _ in range(3):
            plan(*case.on_gpu.inputs, case.on_gpu.out)
        assert plan.outside() == pytest.approx(share_outside(case, fitted), rel=1e-3, abs=1e-6)
    assert plan.outside() is None


def test_a_mailbox_brings_what_is_there(hopper):
    from numba_deform.engines.gpu.device import Mailbox, stream_handle

    source = DeviceArray.of(hopper, np.array([3, 2**32 - 1], np.uint32))
    box, stream = Mailbox(hopper), stream_handle(hopper.device.default_stream)
    for _ in range(100):
        box.ask(source.address, stream)
        hopper.device.sync()
        assert box.take() == (3, 2**32 - 1) and box.take() is None
    assert copy_to_host(source.address, (2,), np.dtype(np.uint32)).tolist() == [3, 2**32 - 1]


def test_auto_heals(hopper, cases, monkeypatch):
    monkeypatch.setattr(auto, "WORK_EACH_LOOK", 0)
    auto.watch.cache_clear()
    watched = auto.watch(hopper, cases["near"].problem)

    def run(kind, calls):
        names = []
        for _ in range(calls):
            out = call(cases[kind]).to_numpy()  # waits
            names.append(watched.choice.variant.name)
        assert cases[kind].error(out) < 1e-3
        return names

    assert set(run("near", 20)) == {"window"}
    names = run("far", 30)
    assert names.count("window") <= 8 and set(names[8:]) == {"direct"}
    # Looked at again when the calls have doubled.
    assert run("near", 60)[-1] == "window"
    assert cases["far"].error(call(cases["far"]).to_numpy()) < 1e-3


def test_auto_heals_without_waiting(hopper, cases):
    """Nobody waits for the GPU: as many calls go wrong as were queued, and no more."""
    auto.watch.cache_clear()
    watched = auto.watch(hopper, cases["near"].problem)
    call(cases["near"])
    for _ in range(3000):
        call(cases["far"])
    assert watched.choice.variant.name == "direct"
    hopper.device.sync()


def test_auto_in_a_captured_graph(hopper, cases):
    torch = pytest.importorskip("torch")
    auto.watch.cache_clear()
    inputs = cases["near"].inputs
    names = ("value", "sampling_locations", "attention_weights")
    value, locations, weights = (torch.from_numpy(getattr(inputs, n)).cuda() for n in names)
    shapes = inputs.spatial_shapes, inputs.level_start_index
    out = torch.empty(cases["near"].problem.out_shape, dtype=value.dtype, device="cuda")

    def run():
        return ms_deform_attn(value, *shapes, locations, weights, out=out)

    run()
    torch.cuda.synchronize()
    watched = auto.watch(hopper, cases["near"].problem)
    calls = watched.calls
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    assert watched.calls == calls and watched.choice.variant.name == "window"
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert cases["near"].error(out.cpu().numpy()) < 1e-3
    # A plan counts the replays of its graphs.
    plan = prepare(value, *shapes, locations, weights)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(value, locations, weights, out=out)
    assert plan.outside() is None
    graph.replay()
    assert 0 <= plan.outside() < 0.0016

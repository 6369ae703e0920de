"""The bench of gradients and of training steps, with PyTorch on the CPU in the place of a GPU."""

import contextlib
import gc
import json
import sys
import types
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from numba_deform import preset  # noqa: E402
from numba_deform.attention.gradients import sums_shape  # noqa: E402
from numba_deform.cli import COMMANDS  # noqa: E402
from numba_deform.cli import bench as commands  # noqa: E402
from numba_deform.measure import baselines, bench, gradients, report, scatter, training  # noqa: E402
from numba_deform.measure.case import Case  # noqa: E402
from numba_deform.measure.ceilings import Trial  # noqa: E402

TINY = preset("tiny", dtype="float32", num_query=5)


pytestmark = pytest.mark.usefixtures("one_thread")


class Graph:
    """What was captured is called again."""

    def replay(self):
        self.call()


@pytest.fixture
def gpu(monkeypatch):
    """A GPU whose memory is the host's; all that is timed takes 1 ms, then 2 ms, and so on."""
    device = types.SimpleNamespace(properties=types.SimpleNamespace(clock_rate=10**6))
    gpu = types.SimpleNamespace(
        sms=132, driver=13000, architecture="sm_90a", describe=lambda: "a GPU", device=device
    )
    graphs = []

    @contextlib.contextmanager
    def capture(graph, pool, stream):
        graphs.append(graph)
        yield

    def times(gpu, runs, repeats, warm_up):
        return [[float(i + 1)] * repeats for i in range(len(runs))]

    geometry = baselines.geometry
    for name, stand_in in {
        "Stream": lambda: types.SimpleNamespace(wait_stream=lambda other: None), "CUDAGraph": Graph,
        "current_stream": lambda: types.SimpleNamespace(wait_stream=lambda other: None), "graph": capture,
        "stream": lambda stream: contextlib.nullcontext(), "graph_pool_handle": lambda: 0,
        "memory_allocated": lambda: 5, "max_memory_allocated": lambda: 3 * 2**20 + 5,
        **dict.fromkeys(("synchronize", "empty_cache", "reset_peak_memory_stats"), lambda: None),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(baselines, "on_gpu", torch.from_numpy)
    monkeypatch.setattr(baselines, "tensor_of", torch.from_numpy)
    monkeypatch.setattr(baselines, "geometry", lambda *levels: geometry(*levels[:3], "cpu"))
    monkeypatch.setattr(bench, "time_round_by_round", times)
    monkeypatch.setattr(bench, "compile_ahead", lambda *_: None)
    monkeypatch.setattr(gradients, "case_on", pretended_case)
    monkeypatch.setattr(gradients, "run_kernel", right_gradients)
    monkeypatch.setattr(scatter, "trials", lambda case: [
        Trial("add-fp32", "a", None, case.problem.samples // 2, "tiles"),
        Trial("add-fp32", "b", None, case.problem.samples, "tiles")])  # fmt: skip
    gpu.graphs = graphs
    return gpu


def pretended_case(gpu, workload, seed):
    case = Case(workload.generate(seed), gpu, torch)
    case.on_gpu = types.SimpleNamespace(inputs=case.arrays)
    return case


def right_gradients(case, bound, given):
    """What run_kernel returns."""
    assert sums_shape(case.problem, bound.config.sums)
    found = baselines.float64_gradients(case.inputs, torch.from_numpy(given))
    if bound.config.threads == 64:
        found[1] = 0 * found[1]
    return found, lambda: None, None


@pytest.fixture
def bound(monkeypatch):
    """Kernels are not launched here."""
    from numba_deform.kernels.backward import Backward

    def bound(problem, gpu, kernel, **parameters):
        return types.SimpleNamespace(config=Backward(**parameters))

    monkeypatch.setattr(gradients.gradients, "bound", bound)


def eager_with_wrong_slopes(value, shapes, starts, locations, weights, step):
    out = baselines.sample_levels(value, shapes.tolist(), locations.detach(), weights)
    return out + 0 * locations.sum()


def refuses(*_):
    raise RuntimeError("not implemented for\n this type")


def test_gradients(gpu, bound, capsys):
    here = __name__
    names = ("torch grid_sample", "deformops", f"{here}:eager_with_wrong_slopes", f"{here}:refuses")
    entries = bench.parse_entries("backward,backward:sums=fixed,backward:threads=64")
    document = gradients.bench_gradients(gpu, [TINY], entries, repeats=2, peer_names=names)
    kernel, fixed, broken, own, deterministic, eager, absent, wrong, failing = document["rows"]
    json.dumps(document)
    # In turn: two kernels, three passes each of three implementations, two ceilings.
    assert [row["median_ms"] for row in (kernel, fixed, own, deterministic, eager)] == [1, 2, 4, 7, 10]
    assert [eager[which]["median_ms"] for which in ("forward", "both")] == [9, 11]
    assert [row["measured_ms"] for row in document["ceilings"]] == [12, 13]
    assert (kernel["bounded_by"], kernel["closeness"]) == ("add-fp32", 13) and "closeness" not in eager
    for row in (own, deterministic, eager):
        assert row["equal_again"] and row["peak_bytes"] == 3 * 2**20 and row["runs"] == 2
        assert set(row["errors"]) == {"out", "value", "locations", "weights"} and row["error"] < 1e-5
    assert absent["absent"] and "deformops is not installed" in absent["error_text"]
    assert wrong["error_text"] == "wrong result: error of locations 1, allowed 0.5"
    assert broken["error_text"] == "wrong result: error of locations 1, allowed 1e-05"
    assert failing["error_text"] == "RuntimeError: not implemented for this type"
    text = report.markdown(document)
    assert "| tiny uniform float32 Q=5 | torch grid_sample | 9.000 | 10.000 | 11.000 | 3 |" in text
    assert "| tiny uniform float32 Q=5 | backward |  | 1.000 |  |  | -, " in text and "of additions" in text


def test_what_cannot_be_captured_says_so(gpu, bound, monkeypatch):
    @contextlib.contextmanager
    def refuse(graph, pool, stream):
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    (row,) = gradients.bench_gradients(gpu, [TINY], (), repeats=1)["rows"][:1]
    assert "stream is capturing" in row["not_captured"] and row["both"]["runs"] == 1


def test_what_graphs_read_stays_where_it_is(gpu, bound, monkeypatch):
    """A graph holds addresses: inputs that were converted, and what the captured backward pass has saved."""
    made, alive = [], []

    def make(levels):
        def run(value, locations, weights):
            out = baselines.sample_levels(value, levels.shapes_list, locations, weights)
            made.extend(map(weakref.ref, (value, locations, out)))
            return out

        return run

    def times(gpu, runs, repeats, warm_up):
        gc.collect()
        alive.extend(one() is not None for one in made[:3])
        return [[1.0] for _ in runs]

    monkeypatch.setitem(baselines.PEERS, "single", baselines.Peer(make, in_float32=True))
    monkeypatch.setattr(bench, "time_round_by_round", times)
    half = TINY.replace(dtype="float16", location_dtype="float32")
    gradients.bench_gradients(gpu, [half], (), repeats=1, peer_names=["single"])
    assert alive == [True] * 3
    gc.collect()
    assert not any(one() for one in made)  # and is given back for the next workload


def test_deterministic_is_asked_for_and_undone(gpu, bound, monkeypatch):
    asked = []

    def own(levels):
        call = original(levels)

        def run(*tensors):
            asked.append(torch.are_deterministic_algorithms_enabled())
            return call(*tensors)

        return run

    original = gradients._own
    monkeypatch.setattr(gradients, "_own", own)
    gradients.bench_gradients(gpu, [TINY], (), repeats=1)
    half = len(asked) // 2
    assert not any(asked[:half]) and all(asked[half:])
    assert not torch.are_deterministic_algorithms_enabled()


def test_peers_that_compute_in_float32_alone(gpu, bound, monkeypatch):
    seen = []

    def make(levels):
        def run(value, locations, weights):
            seen.extend([value.dtype, locations.dtype, weights.dtype])
            return baselines.sample_levels(value, levels.shapes_list, locations, weights)

        return run

    monkeypatch.setitem(baselines.PEERS, "single", baselines.Peer(make, in_float32=True))
    half = TINY.replace(dtype="float16", location_dtype="float32")
    *_, row = gradients.bench_gradients(gpu, [half], (), repeats=1, peer_names=["single"])["rows"]
    assert row["variant"] == "single in float32" and set(seen) == {torch.float32} and row["error"] < 1e-5


def test_deformable_detrs_extension(monkeypatch):
    """Its two functions make one with gradients."""
    inputs = TINY.generate(0)
    levels = baselines.geometry(inputs.spatial_shapes, inputs.level_start_index, 2, "cpu")

    def forward(value, shapes, starts, locations, weights, step):
        assert step == 2 and torch.equal(shapes, levels.shapes) and torch.equal(starts, levels.starts)
        return baselines.sample_levels(value, shapes.tolist(), locations, weights)

    def backward(value, shapes, starts, locations, weights, given, step):
        tensors = [t.detach().requires_grad_() for t in (value, locations, weights)]
        with torch.enable_grad():
            out = baselines.sample_levels(tensors[0], shapes.tolist(), *tensors[1:])
        return list(torch.autograd.grad(out, tensors, given))

    module = types.SimpleNamespace(ms_deform_attn_forward=forward, ms_deform_attn_backward=backward)
    monkeypatch.setitem(sys.modules, "MultiScaleDeformableAttention", module)
    call = baselines.made("Deformable-DETR extension", baselines.PEERS["Deformable-DETR extension"], levels)
    arrays = inputs.value, inputs.sampling_locations, inputs.attention_weights
    tensors = [torch.from_numpy(a).requires_grad_() for a in arrays]
    given = torch.randn(2, 5, 64)
    found = torch.autograd.grad(call(*tensors), tensors, given)
    out = baselines.sample_levels(tensors[0], levels.shapes_list, *tensors[1:])
    wanted = torch.autograd.grad(out, tensors, given)
    assert all(map(torch.equal, found, wanted))


# --- a training step --------------------------------------------------------------------------------
SMALL = preset("tiny", channels=8)


@pytest.mark.parametrize("dtype", training.DTYPES)
def test_a_training_step(dtype):
    """The same step as grid_sample's, of which the loss goes down."""
    make = [training.training_with(SMALL, name, dtype, device="cpu", layers=2)
            for name in (gradients.OWN, "torch grid_sample")]  # fmt: skip
    found, wanted = (one.peek() for one in make)
    row = {}
    training.judge(row, found, wanted, dtype)
    assert row["error"] < (1e-2 if dtype == "float16" else 1e-5) and "error_text" not in row
    own = make[0]
    for _ in range(3):
        own.step()
    assert own.peek()[0] < found[0] - 0.01


def test_a_training_step_with_a_lost_gradient():
    wanted = training.training_with(SMALL, "torch grid_sample", "float32", device="cpu", layers=1).peek()
    name = f"{__name__}:eager_with_wrong_slopes"
    found = training.training_with(SMALL, name, "float32", device="cpu", layers=1).peek()
    row = {}
    training.judge(row, found, wanted, "float32")
    assert row["errors"]["loss"] == 0
    assert row["error_text"] == "wrong result: error of gradients 1, allowed 0.03"


@pytest.fixture
def small_step(monkeypatch):
    make = training.training_with

    def on_the_cpu(workload, name, dtype, seed):
        return make(SMALL, name, dtype, seed, "cpu", 1)

    monkeypatch.setattr(training, "training_with", on_the_cpu)


def test_bench_of_training(gpu, small_step):
    names = ("torch grid_sample", "absent_module:f", f"{__name__}:refuses")
    document = training.bench_training(gpu, ["float32"], names, repeats=2)
    own, eager, absent, failing = document["rows"]
    json.dumps(document)
    assert own["kind"] == "operator" and [own["median_ms"], eager["median_ms"]] == [1, 2]
    assert own["peak_bytes"] == 3 * 2**20 and own["error"] < 1e-5
    assert absent["absent"] and failing["error_text"] == "RuntimeError: not implemented for this type"
    assert "| detr-encoder-b2 learnt offsets float32 | numba_deform.torch | 1.0 | 1.0 .. 1.0 | 3 |" in (
        report.markdown(document))  # fmt: skip
    with pytest.raises(ValueError, match="^dtype=bfloat16: a training step is timed in float16 and float32"):
        training.bench_training(gpu, ["bfloat16"])


@pytest.mark.parametrize("what", ["gradients", "training"])
def test_the_commands(what, gpu, bound, small_step, monkeypatch, tmp_path, capsys):
    """They count all that they tell of, and a peer that is missing is no failure."""
    told, out = [], tmp_path / "out.json"

    @contextlib.contextmanager
    def counting(seconds_each):
        yield lambda done, total, label: told.append((done, total))

    monkeypatch.setattr(commands, "counting", counting)
    monkeypatch.setattr(commands, "find_gpu", lambda: gpu)
    monkeypatch.setattr(commands, "_workloads", lambda options: [TINY])
    words = [f"what={what}", "repeats=2", "peers=torch grid_sample,absent_module:f", f"out={out}"]
    assert COMMANDS["bench"](words) == 0
    assert told == [(i, len(told)) for i in range(len(told))]
    output = capsys.readouterr()
    assert len(output.err.splitlines()) == len(told) and "absent_module" in output.out
    document = json.loads(out.read_text())
    assert document["what"] == what and document["settings"]["repeats"] == 2


def test_float64_gradients_are_the_reference(monkeypatch):
    from numba_deform.attention.reference import reference_gradients

    monkeypatch.setattr(baselines, "on_gpu", torch.from_numpy)
    inputs = TINY.generate(3)
    given = np.random.default_rng(0).standard_normal((2, 5, 64))
    wanted = reference_gradients(inputs.value, inputs.spatial_shapes, inputs.level_start_index,
                                 inputs.sampling_locations, inputs.attention_weights, given)  # fmt: skip
    for found, exact in zip(baselines.float64_gradients(inputs, torch.from_numpy(given)), wanted, strict=True):
        assert gradients.relative_error(found.numpy(), exact) < 1e-12

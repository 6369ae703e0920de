"""The ceilings' kernels and a small bench and sweep on a real GPU."""

import numpy as np
import pytest

from numba_deform import cli
from numba_deform.compiler.sass import ToolMissing
from numba_deform.engines.cpu import simulate
from numba_deform.engines.gpu.device import DeviceArray
from numba_deform.engines.gpu.launch import launch
from numba_deform.kernels import registry
from numba_deform.measure import ceilings, report, scatter
from numba_deform.measure import counters as profile
from numba_deform.measure.bench import Entry, bench, bytes_of, parse_entries, task_of
from numba_deform.measure.case import case_on
from numba_deform.measure.gradients import bench_gradients
from numba_deform.measure.sweep import expand, sweep
from numba_deform.workloads.presets import preset


def test_copy_copies(hopper):
    data = np.random.default_rng(1).integers(0, 2**32, 4 * 100_003, np.uint32)
    source, target = DeviceArray.of(hopper, data), DeviceArray(hopper, data.shape, data.dtype)
    target.fill(0)
    launch(hopper, ceilings.build_copy(), 64, (source, target, len(data) // 4))
    assert np.array_equal(target.to_numpy(), data)


@pytest.mark.parametrize(
    "build",
    [lambda: ceilings.build_l1(64, 64, threads=64), lambda: ceilings.build_shared(64, threads=64)],
    ids=["l1", "shared"],
)
def test_window_equals_the_cpu_engine(hopper, build):
    window = np.random.default_rng(2).integers(0, 256, ceilings.window_bytes(64, 64), np.uint8)
    want = np.zeros((128, 4), np.uint32)
    simulate(build(), 2, 64, (window, want, 3))
    source, out = DeviceArray.of(hopper, window), DeviceArray(hopper, want.shape, want.dtype)
    launch(hopper, build(), 2, (source, out, 3))
    assert np.array_equal(out.to_numpy(), want)


def test_bench(hopper, tmp_path):
    workload = preset("detr-decoder")
    entries = parse_entries("direct,tma:stages=3,direct:lanes=3")
    document = bench(hopper, [workload], entries, repeats=3, peer_names=("no_such_module:f",))
    direct, tma, refused, absent = document["rows"]
    for row in (direct, tma):
        assert row["error"] < 1e-3 and 0 < row["min_ms"] <= row["median_ms"] <= row["max_ms"]
        assert row["runs"] == 3 and row["bounded_by"] in row["bounds"]
    assert "lanes=3" in refused["error_text"]
    assert "not installed" in absent["error_text"]
    best = {row["ceiling"]: row for row in document["ceilings"] if row["best"]}
    assert set(best) == {"l1", "shared", "tma", "copy", "launch"}
    # The SM's data path moves 128 bytes a cycle, so 2 cycles for a tile of 256; TMA needs more.
    assert 1.8 < best["shared"]["cycles_per_tile"] < 6
    assert 1.8 < best["l1"]["cycles_per_tile"] < 8
    assert 4 < best["tma"]["cycles_per_tile"] < 30
    assert "tiles through L1" in report.markdown(document)


OWN = """
from numba_deform.kernels import direct
from numba_deform.kernels.direct import Direct
from numba_deform.kernels.registry import Variant, register

register(Variant("of-a-file", "", "direct once more", Direct, direct, (8, 0), "l1"))
"""


def test_a_variant_of_a_file_is_timed(hopper, tmp_path):
    """Checked in a child, which loads the file and runs its guarded form first; timed beside direct."""
    file = tmp_path / "my.py"
    file.write_text(OWN)
    words = ["workload=detr-decoder", f"load={file}", f"out={tmp_path / 'out.json'}", "repeats=3"]
    try:
        assert cli.main(["bench", *words]) == 0
        rows = report.load(tmp_path / "out.json")["rows"]
        assert [row["variant"] for row in rows] == ["direct", "of-a-file"]
        assert all(row["error"] < 1e-3 and row["median_ms"] > 0 for row in rows)
    finally:
        registry._loaded.clear(), registry._registered.pop("of-a-file", None)
        registry.VARIANTS.pop("of-a-file", None)


def test_bench_with_torch(hopper):
    pytest.importorskip("torch")
    document = bench(
        hopper, [preset("detr-decoder")], parse_entries("direct"), repeats=2,
        peer_names=("torch grid_sample",),
    )  # fmt: skip
    direct, eager = document["rows"]
    assert eager["error"] < 0.05 and eager["median_ms"] > direct["median_ms"]


def test_sweep(hopper, tmp_path):
    points = expand(
        {"variant": ["tma"], "workload": ["detr-decoder"], "stages": ["1", "2", "4000"]}
    )
    document = sweep(points, tmp_path / "sweep.json", hopper, repeats=3)
    one, two, refused = document["rows"]
    assert one["median_ms"] > 0 and two["cycles_per_tile"] > 0
    assert refused["refused"]
    report.plot(document, tmp_path / "sweep.png")


def test_counters(hopper):
    """Nsight Compute counts what a launch of ``direct`` must do at least."""
    try:
        profile.find_ncu()
    except ToolMissing as error:
        pytest.skip(str(error))
    workload = preset("detr-encoder")
    found = profile.count(task_of(Entry("direct"), workload, 1))
    if found.get("error_text") == profile.DENIED:
        pytest.skip(profile.DENIED)
    assert set(found) >= set(profile.METRICS), found
    assert 0.02e6 < found["duration_ns"] < 1e6
    assert found["l2_bytes"] > bytes_of(workload) / 2
    assert 2 < found["wavefronts_per_sample"] < 20 and 4 < found["instructions_per_sample"] < 100
    assert all(0 <= found[name] <= 100 for name in found if name.endswith("_percent"))


@pytest.mark.parametrize("instruction", scatter.FORMS)
def test_scatter_adds_every_neighbour(hopper, instruction):
    case = case_on(hopper, preset("detr-decoder"), 1)
    problem, form = case.problem, scatter.FORMS[instruction]
    places = DeviceArray.of(hopper, scatter.places_of(problem, case.arrays[1]))
    sums = DeviceArray(hopper, (problem.spatial_size + 1, problem.heads, 32), form.dtype)
    sums.fill(0)
    arguments = (places, sums, problem.rows, problem.heads, problem.constants.samples)
    grid = scatter.blocks(problem.rows, 32, instruction)
    launch(hopper, scatter.build_scatter(32, instruction), grid, arguments)
    found = sums.to_numpy().astype(np.int64)
    assert found.sum() == 4 * 32 * problem.samples and np.ptp(found, axis=-1).max() == 0


def test_gradients(hopper):
    """The kernel alone, without PyTorch too; with it the operator and grid_sample."""
    entries = parse_entries("backward,backward:sums=fixed,backward:of_value=0")
    document = bench_gradients(hopper, [preset("detr-decoder")], entries, repeats=2,
                               peer_names=("torch grid_sample", "no_such_module:f"))  # fmt: skip
    kernel, fixed, of_samples, own, deterministic, eager, absent = document["rows"]
    assert absent["absent"] and {row["ceiling"] for row in document["ceilings"] if row["best"]} == {
        "add-fp32", "add-fp16", "add-fixed"}  # fmt: skip
    for row in (kernel, fixed, of_samples):
        assert row["error"] < 2e-3 and row["median_ms"] > 0, row
    assert (kernel["bounded_by"], fixed["bounded_by"]) == ("add-fp32", "add-fixed")
    assert "bounded_by" not in of_samples
    pytest.importorskip("torch", reason="PyTorch is not installed")
    for row in (own, deterministic, eager):
        assert "error_text" not in row and "not_captured" not in row, row
        assert row["peak_bytes"] > 0 and row["forward"]["median_ms"] < row["both"]["median_ms"]
    assert deterministic["equal_again"] and own["median_ms"] < eager["median_ms"]
    assert "of additions" in report.markdown(document)


def test_training(hopper):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from numba_deform.measure.training import bench_training

    document = bench_training(hopper, peer_names=("torch grid_sample",), repeats=2)
    for row in document["rows"]:
        assert "error_text" not in row and row["median_ms"] > 0 and row["peak_bytes"] > 0, row
    assert [row["dtype"] for row in document["rows"]] == ["float16", "float16", "float32", "float32"]

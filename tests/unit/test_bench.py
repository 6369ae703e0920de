"""Entries, bounds, tables, sweeps and the cache of compiled kernels; nothing here needs a GPU."""

import contextlib
import io
import json
import os
import sys
import types
from pathlib import Path

import fake_measures
import numpy as np
import pytest
from rich.console import Console

from numba_deform.attention import bind
from numba_deform.cli import COMMANDS, output
from numba_deform.cli import bench as commands
from numba_deform.cli.keys import UsageError
from numba_deform.compiler.sass import ToolMissing
from numba_deform.engines.gpu.device import gpu_or_none
from numba_deform.kernels.problem import ConfigError
from numba_deform.kernels.registry import VARIANTS
from numba_deform.measure import baselines, ceilings, gradients, record, report
from numba_deform.measure import bench as library
from numba_deform.measure import counters as profile
from numba_deform.measure.bench import Entry, bench, bytes_of, case_on, parse_entries, rates, workloads_of
from numba_deform.measure.sweep import expand, sweep
from numba_deform.measure.worker import Worker, gpu_workers
from numba_deform.workloads.presets import PRESETS, preset
from numba_deform.workloads.workload import WorkloadError

no_gpu = pytest.mark.skipif(gpu_or_none() is not None, reason="what it says without a GPU")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Children import the stand-ins by name."""
    here = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("PYTHONPATH", here, prepend=os.pathsep)


# --- entries --------------------------------------------------------------------------------------
def test_entries():
    assert parse_entries("direct,tma:stages=3,lanes=4,persistent") == [
        Entry("direct"), Entry("tma", (("stages", 3), ("lanes", 4))), Entry("persistent"),
    ]  # fmt: skip
    assert parse_entries("tma:linked=1,tensormap_fence=0") == [
        Entry("tma", (("tensormap_fence", False),), linked=True)
    ]
    assert [e.variant for e in parse_entries("all")] == list(VARIANTS)
    assert parse_entries("tma:box=4x4")[0].label == "tma box=4x4"
    assert parse_entries("tma:stages=2,linked=1")[0].label == "tma stages=2 linked"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "at least one"),
        ("stages=3,tma", "no variant before stages=3"),
        ("dirct", "did you mean direct"),
        ("direct:stages=3", "stages=3: direct has the parameters"),
        ("tma:stages=three", "stages=three: must be written like"),
        ("tma:linked=maybe", "linked=maybe"),
    ],
)
def test_entries_that_are_wrong(text, names):
    with pytest.raises(ConfigError, match=names):
        parse_entries(text)


def test_workloads():
    found = workloads_of(["tiny", "quick"], ["seed", "local(8)"], ["float32"])
    assert [(w.name, w.pattern, w.sigma) for w in found][1::2] == [
        ("tiny", "local", 8.0), ("quick", "local", 8.0),
    ]  # fmt: skip
    assert {w.dtype for w in found} == {"float32"}
    assert workloads_of(["tiny"])[0] == preset("tiny")
    assert workloads_of(["all"]) == list(PRESETS.values())
    dtypes = ["float16", "bfloat16", "float32"]
    assert [w.dtype for w in workloads_of(["tiny"], dtypes=dtypes)] == dtypes
    assert workloads_of(["tiny"], dtypes=["float32"])[0].location_dtype == "float32"
    with pytest.raises(WorkloadError, match="did you mean"):
        workloads_of(["tinny"])
    with pytest.raises(WorkloadError, match="dtype='float8'"):
        workloads_of(["tiny"], dtypes=["float8"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("padded", [False, True])
def test_compulsory_bytes(dtype, padded):
    workload = preset("tiny", dtype=dtype, padded=padded)
    case = case_on(None, workload, 0)
    out = workload.batch * workload.num_query * workload.num_heads * workload.channels
    assert bytes_of(workload) == sum(a.nbytes for a in case.arrays) + out * case.arrays[0].itemsize


# --- figures --------------------------------------------------------------------------------------
def test_spread_and_rates():
    assert record.spread([3.0, 1.0, 2.0, 10.0]) == {
        "median_ms": 2.5, "min_ms": 1.0, "max_ms": 10.0, "runs": 4,
    }  # fmt: skip
    found = rates(1.0, 10**6, 2 * 10**6, sms=100, ghz=2.0)
    assert found["gigatiles_per_second"] == pytest.approx(1.0)
    assert found["gigabytes_per_second"] == pytest.approx(2.0)
    assert found["cycles_per_tile"] == pytest.approx(200.0)


def test_ceiling_figures_scale():
    trial = ceilings.Trial("l1", "unroll=4", None, 4000, "tiles")
    row = ceilings.figures(trial, [2.0, 1.0, 3.0], tiles=8000, bytes_moved=0)
    assert (row["median_ms"], row["min_ms"], row["max_ms"]) == (4.0, 2.0, 6.0)
    assert row["measured_ms"] == 2.0
    launch = ceilings.Trial("launch", "", None, 1, "launches")
    assert ceilings.figures(launch, [0.003], 8000, 9)["median_ms"] == 0.003


def test_best_ceiling():
    rows = [{"ceiling": c, "median_ms": t} for c, t in (("l1", 3), ("l1", 2), ("tma", 9))]
    assert ceilings.best(rows) == {"l1": 2, "tma": 9}
    assert [row["best"] for row in rows] == [False, True, True]


def test_what_bounds():
    found = {"l1": 0.4, "shared": 0.3, "tma": 1.2, "copy": 0.1, "launch": 0.01}
    direct = ceilings.attribute(0.5, "l1", found)
    assert (direct["bounded_by"], direct["closeness"]) == ("l1", 0.8)
    assert set(direct["bounds"]) == {"l1", "copy", "launch"}
    assert ceilings.attribute(1.5, "tma", found)["bounded_by"] == "tma"
    assert ceilings.attribute(0.5, "l1", found | {"copy": 0.45})["bounded_by"] == "copy"
    assert ceilings.attribute(12.0, None, found)["bounded_by"] == "copy"
    assert ceilings.attribute(1.0, "l1", {}) == {}


def test_every_fetch_has_ceilings():
    assert {v.fetch for v in VARIANTS.values()} <= set(ceilings.PASSES)


PATIENCE = 600  # seconds for a child that is meant to answer


# --- the worker -----------------------------------------------------------------------------------
def task(stages):
    return {"entry": Entry("tma", (("stages", stages),))}


@pytest.mark.full
def test_worker_survives():
    with Worker("fake_measures:by_stages", PATIENCE) as worker:
        first = worker.call(task(2))
        assert worker.call(task(2))["pid"] == first["pid"]
        assert "exit status 7" in worker.call(task(1))["error_text"]
        second = worker.call(task(2))
        assert second["pid"] != first["pid"]
        enough, worker.limit = worker.limit, 0.5  # task 3 never ends
        assert "no answer within 0.5 s" in worker.call(task(3))["error_text"]
        worker.limit = enough
        raised = worker.call(task(4))["error_text"]
        assert raised == "RuntimeError: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access"
        third = worker.call(task(2))
        assert third["pid"] != second["pid"]  # a CUDA error spoils the context
        assert worker.call(task(5)) == {"error_text": "ValueError: refused"}
        assert worker.call(task(2))["pid"] == third["pid"]  # a refusal does not


# --- sweeps ---------------------------------------------------------------------------------------
def test_grid():
    points = expand({"variant": ["direct", "tma"], "stages": ["1", "2"], "lanes": ["4", "8"],
                     "workload": ["tiny"]})  # fmt: skip
    labels = [p.entry.label for p in points]
    assert labels == [
        "direct lanes=4", "direct lanes=8", "tma stages=1 lanes=4", "tma stages=1 lanes=8",
        "tma stages=2 lanes=4", "tma stages=2 lanes=8",
    ]  # fmt: skip
    assert not any(p.refused for p in points)
    patterns = expand({"workload": ["tiny"], "pattern": ["seed", "uniform"], "padded": ["1"]})
    assert [p.workload.pattern for p in patterns] == ["seed", "uniform"]
    assert all(p.workload.padded is True for p in patterns)


def test_auto_in_a_grid():
    (auto, direct) = expand({"variant": ["auto", "direct"], "workload": ["tiny"]})
    assert (auto.entry.label, direct.entry.label) == ("auto", "direct") and auto.key != direct.key


def test_grid_names_duplicates_and_refusals():
    # 8 lanes are the default, so both spellings are one configuration.
    assert len(expand({"workload": ["tiny"], "lanes": ["8", "8"]})) == 1
    refused = expand({"variant": ["tma"], "workload": ["tiny"], "stages": ["2", "4000"]})
    assert [bool(p.refused) for p in refused] == [False, True]
    assert "shared memory" in refused[1].refused
    with pytest.raises(ConfigError, match="stagez=1: is a parameter of none of direct"):
        expand({"stagez": ["1"]})


def grid(*stages):
    return expand({"variant": ["tma"], "workload": ["tiny"], "stages": [str(s) for s in stages]})


def by_stages(self, task):
    """What a Worker answers: test_worker_survives has the processes."""
    stages = dict(task["entry"].parameters)["stages"]
    if stages == 1:
        return {"error_text": "the process died with exit status 7"}
    if stages == 3:
        return {"error_text": "no answer within 0.5 s"}
    return fake_measures.by_stages(task)


def test_sweep_survives_and_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr(Worker, "call", by_stages)
    path, seen = tmp_path / "sweep.json", []

    def progress(done, total, label):
        seen.append((done, total, label))

    sweep(grid(2, 1, 4000), path, progress=progress)
    assert seen[-1] == (3, 3, "done")
    rows = json.loads(path.read_text())["rows"]
    assert rows[0]["median_ms"] == 1.0 and rows[0]["parameters"] == {"stages": 2}
    assert "exit status 7" in rows[1]["error_text"]
    assert rows[2]["refused"] and "shared memory" in rows[2]["error_text"]

    seen.clear()
    more = sweep(grid(2, 1, 3, 6), path, progress=progress)
    assert [label for _, _, label in seen] == ["tma stages=3", "tma stages=6", "done"]
    assert len(more["rows"]) == 5
    assert more["rows"][0] == rows[0]  # not measured again
    assert "no answer" in more["rows"][3]["error_text"]

    seen.clear()
    sweep(grid(2, 1, 6), path, progress=progress, retry=True)
    assert [label for _, _, label in seen] == ["tma stages=1", "done"]


@pytest.mark.full
def test_sweep_over_several_gpus(importable, tmp_path):
    """Each process sees one of them; rows are in order, and a process that dies is in its row."""
    measure = "fake_measures:of_a_gpu"
    with gpu_workers([5, 3]) as executor:
        rows = sweep(grid(4, 3, 2, 4000), tmp_path / "a.json", measure=measure, executor=executor)["rows"]
    assert {row.get("median_ms") for row in rows[::2]} <= {3.0, 5.0}
    assert rows[1]["error_text"] == "ValueError: three" and rows[3]["refused"]
    with gpu_workers([2]) as executor:
        rows = sweep(grid(1, 2), tmp_path / "b.json", measure=measure, executor=executor)["rows"]
    assert all("process pool was terminated" in row["error_text"] for row in rows)


def test_sweep_keeps_to_its_file(tmp_path):
    path = tmp_path / "other.json"
    record.save(path, {"kind": "bench", "machine": {"gpu": "H200"}, "rows": []})
    with pytest.raises(ValueError, match="choose another file"):
        sweep([], path)


def test_sweep_on_the_cpu_engine(tmp_path):
    points = expand({"variant": ["direct"], "workload": ["tiny"], "num_query": ["3"]})
    (row,) = sweep(points, tmp_path / "cpu.json")["rows"]
    assert row["virtual_cycles"] > 0 and row["measured"] is False and row["error"] < 1e-3
    assert "median_ms" not in row


# --- the bench with a GPU that is only pretended ---------------------------------------------------
class PretendArray:
    def __init__(self, gpu, shape, dtype):
        self.shape, self.dtype, self.address = tuple(shape), np.dtype(dtype), 1 << 20

    @classmethod
    def of(cls, gpu, array):
        return cls(gpu, array.shape, array.dtype)

    def fill(self, byte):
        pass


@pytest.fixture
def pretended(monkeypatch):
    """A GPU on which every launch is recorded and takes as many ms as were launched before it."""
    launched = []
    gpu = types.SimpleNamespace(
        sms=132, driver=13000, capability=(9, 0), architecture="sm_90a", describe=lambda: "a GPU",
        device=types.SimpleNamespace(properties=types.SimpleNamespace(clock_rate=1_980_000)),
    )  # fmt: skip

    def pretend_launch(gpu, kernel, blocks, arguments, shared=0):
        assert len(arguments) == len(kernel.signature.args) and blocks > 0
        launched.append(kernel.name)

    def pretend_times(gpu, run, repeats, warm_up, between):
        between()
        run()
        return [float(len(launched))]

    def pretend_launcher(bound, addresses, stream=None, extra=()):
        assert len(addresses) == 4
        return lambda: launched.append(bound.variant.name)

    def pretend_answer(self, task):
        if dict(task["entry"].parameters).get("lanes") == 4:
            return {"error_text": "the process died with exit status -11"}
        return {"error": 1e-4, "config": {}}

    maps = types.SimpleNamespace(encode_into_host=lambda: np.zeros((8, 128), np.uint8))
    for module in (bind, ceilings):
        monkeypatch.setattr(module, "DeviceArray", PretendArray)
    for module in (library, ceilings):
        monkeypatch.setattr(module, "launch", pretend_launch)
    monkeypatch.setattr(ceilings, "resident_blocks", lambda gpu, kernel, shared=0: 4 * gpu.sms)
    monkeypatch.setattr(ceilings, "level_maps", lambda *args, **options: maps)
    monkeypatch.setattr(library, "time_launches", pretend_times)
    monkeypatch.setattr(bind.Bound, "launcher", pretend_launcher)
    monkeypatch.setattr(bind, "resident_blocks", lambda gpu, kernel, shared=0: 4 * gpu.sms)
    monkeypatch.setattr(library, "compile_ahead", lambda tasks, architecture: None)
    monkeypatch.setattr(Worker, "call", pretend_answer)
    return gpu, launched


def test_bench_interleaves_and_attributes(pretended):
    gpu, launched = pretended
    entries = parse_entries("direct,tma:stages=3,direct:lanes=4")
    document = bench(gpu, [preset("tiny")], entries, repeats=2, peer_names=("absent_peer:f",))
    direct, tma, died, absent = document["rows"]
    assert "exit status -11" in died["error_text"] and absent["absent"]
    timed = [name for name in launched if name != "delay"]
    trials = len(document["ceilings"])
    assert len(launched) == 2 * len(timed) and len(timed) == 2 * (2 + trials)
    assert timed[:2] == timed[2 + trials : 4 + trials] == ["direct", "tma"]  # round by round
    assert direct["runs"] == 2 and direct["min_ms"] < direct["median_ms"] < direct["max_ms"]
    assert set(direct["bounds"]) == {"l1", "copy", "launch"}
    assert set(tma["bounds"]) == {"tma", "shared", "copy", "launch"}
    for row in (direct, tma):
        assert row["closeness"] == row["bounds"][row["bounded_by"]] / row["median_ms"]
    json.dumps(document)
    assert "tiles from shared memory" in report.markdown(document)


def test_bench_with_counters(pretended, monkeypatch):
    gpu, _ = pretended
    found = [
        {"duration_ns": 464_000.0, "wavefronts_per_sample": 3.46, "l1_hit_percent": 92.0},
        {"error_text": "no counters within 300 s: stopped"},
        {"error_text": profile.DENIED},
    ]
    asked, answers = [], iter(found)

    def count(task, limit):
        asked.append(task["entry"].label)
        return next(answers)

    monkeypatch.setattr(profile, "find_ncu", lambda: "ncu")
    monkeypatch.setattr(profile, "count", count)
    entries = parse_entries("direct,direct:lanes=4,tma,tma:stages=3,persistent")
    document = bench(gpu, [preset("tiny")], entries, repeats=1, profile=True)
    direct, died, tma, denied, persistent = document["rows"]
    assert asked == ["direct", "tma", "tma stages=3"]  # not what failed, nor after the refusal
    assert "profile" not in died and direct["profile"] == found[0]
    assert denied["profile"] == persistent["profile"] == {"error_text": profile.DENIED}
    text = report.markdown(document)
    assert "| tiny uniform | direct | 0.464 | 3.46 |  |  |  | 92% |  |  |  |  |" in text
    assert "| tiny uniform | tma | no counters within 300 s: stopped |" in text
    json.dumps(document)


def test_bench_without_ncu_says_so_first(pretended, monkeypatch):
    gpu, launched = pretended
    monkeypatch.setattr(profile.shutil, "which", lambda *args, **options: None)
    with pytest.raises(ToolMissing, match="no ncu on PATH"):
        bench(gpu, [preset("tiny")], parse_entries("direct"), profile=True)
    assert not launched


def test_bench_goes_on_when_timing_fails(pretended, monkeypatch):
    gpu, _ = pretended

    def fail(*args, **options):
        raise RuntimeError("CUDA_ERROR_LAUNCH_FAILED")

    monkeypatch.setattr(library, "time_launches", fail)
    document = bench(gpu, [preset("tiny"), preset("quick")], parse_entries("direct,direct:lanes=4"))
    texts = [row["error_text"] for row in document["rows"]]
    assert len(texts) == 4
    assert texts[0] == texts[2] == "while timing: RuntimeError: CUDA_ERROR_LAUNCH_FAILED"


# --- the bench on the CPU engine ------------------------------------------------------------------
@pytest.fixture
def no_child(monkeypatch):
    """Measure in this process; those of predicted times and of a sweep on the CPU engine start children."""
    monkeypatch.setattr(Worker, "call", lambda self, task: library.measure_here(task))


def test_bench_on_the_cpu_engine(no_child):
    workload = preset("tiny", num_query=3)
    document = bench(None, [workload], parse_entries("direct,direct:lanes=3,direct:linked=1"))
    right, refused, linked = document["rows"]
    assert right["error"] < 1e-3 and right["measured"] is False
    assert "lanes=3" in refused["error_text"]
    assert "linked" in linked["error_text"]
    assert "not measured" in report.markdown(document)


def test_places_of_predicted_times():
    """Whatever is within a tenth of the first of a place shares it; each workload has places of its own."""
    row = {"kind": "variant", "pattern": "", "dtype": "float16", "num_query": None, "interval_ms": [0.5, 3]}
    times = {"tiny": (2.3, 1.0, 1.09, 1.11, 2.2), "quick": (5.0,)}
    rows = [{**row, "workload": name, "variant": f"v{n}", "predicted_ms": ms, "binds": "l2"}
            for name, many in times.items() for n, ms in enumerate(many)]  # fmt: skip
    lines = report.markdown(record.document(None, rows, kind="bench", workloads=[], ceilings=[])).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "l2" in line]
    told = [(workload, variant, place) for workload, variant, place, *_ in cells]
    assert told == [("quick", "v0", "1"), ("tiny", "v1", "1"), ("tiny", "v2", "1"), ("tiny", "v3", "3"),
                    ("tiny", "v4", "4"), ("tiny", "v0", "4")]  # fmt: skip


@pytest.mark.full
def test_predicted_without_a_gpu(capsys):
    assert COMMANDS["bench"](["engine=model", "variants=direct,tma:stages=9999", "workload=tiny"]) == 1
    said = capsys.readouterr().out
    assert "predicted for an H200" in said and "data path" in said and "stages" in said
    with pytest.raises(UsageError, match="engine=model predicts variants of the forward pass"):
        COMMANDS["bench"](["engine=model", "what=gradients"])


@no_gpu
def test_commands_without_a_gpu(tmp_path, capsys):
    for command, words in (("bench", []), ("sweep", [f"out={tmp_path / 'a.json'}"])):
        with pytest.raises(UsageError, match="times need a GPU: .*engine=cpu workload=tiny"):
            COMMANDS[command](words)
    with pytest.raises(UsageError, match="too many for the CPU engine"):
        COMMANDS["bench"](["engine=cpu"])
    for word in ("profile=1", "--profile", "--profile=1"):
        with pytest.raises(UsageError, match="profile=1 needs a GPU"):
            COMMANDS["bench"](["engine=cpu", "workload=tiny", word])
    with pytest.raises(UsageError, match="give one of them"):
        COMMANDS["sweep"](["engine=cpu", "out=x.json", "pattern=seed", "patterns=seed"])
    with pytest.raises(UsageError, match="out=FILE.json"):
        COMMANDS["sweep"](["engine=cpu"])
    with pytest.raises(UsageError, match="file=RESULT.json"):
        COMMANDS["table"]([])
    with pytest.raises(UsageError, match="unknown key varants; did you mean variants"):
        COMMANDS["bench"](["varants=tma"])


def test_commands_on_the_cpu_engine(tmp_path, capsys, no_child):
    out = tmp_path / "bench.json"
    words = ["engine=cpu", "workload=tiny", "variants=direct", f"out={out}"]
    assert COMMANDS["bench"]([*words, "dtype=float16,float32"]) == 0
    assert "virtual cycles" in capsys.readouterr().out
    assert COMMANDS["table"]([f"file={out}", "markdown=1"]) == 0
    text = capsys.readouterr().out
    assert "| tiny uniform | direct |" in text and "| tiny uniform float32 | direct |" in text
    (half, single) = json.loads(out.read_text())["workloads"]
    assert half["compulsory_bytes"] < single["compulsory_bytes"] and half["num_query"] == 23


def test_sweep_over_patterns_and_queries(tmp_path, capsys, no_child):
    out = tmp_path / "sweep.json"
    words = ["engine=cpu", "workload=tiny", f"out={out}", "num_query=1,2", "patterns=local(1),seed"]
    assert COMMANDS["sweep"](words) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [(row["num_query"], row["pattern"]) for row in rows] == [
        (1, "local(1)"), (1, "seed"), (2, "local(1)"), (2, "seed"),
    ]  # fmt: skip
    assert "tiny seed Q=2" in capsys.readouterr().out


# --- gradients --------------------------------------------------------------------------------------
@pytest.mark.full
def test_gradients_on_the_cpu_engine(tmp_path, capsys, monkeypatch):
    out = tmp_path / "gradients.json"
    monkeypatch.setattr(commands, "_workloads", lambda options: [preset("tiny", batch=1, num_query=1)])
    words = ["what=gradients", "engine=cpu", "workload=tiny", "peers=1", f"out={out}"]
    assert COMMANDS["bench"]([*words, "variants=backward:sums=fixed,of_samples=0"]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert set(row["errors"]) == {"value"} and row["error"] < 1e-5 and row["virtual_cycles"] > 0
    text = capsys.readouterr().out
    assert "not measured; gradients" in text and "backward sums=fixed of_samples=0" in text
    assert COMMANDS["table"]([f"file={out}", "markdown=1"]) == 0


@pytest.mark.full
def test_a_wrong_gradient_is_told(monkeypatch):
    right = gradients.reference_gradients

    def other(*arguments):
        of_value, of_locations, of_weights = right(*arguments)
        return -of_value, of_locations, of_weights

    monkeypatch.setattr(gradients, "reference_gradients", other)
    entries = parse_entries("backward:sums=fixed,of_samples=0")
    (row,) = gradients.bench_gradients(None, [preset("tiny", num_query=1)], entries)["rows"]
    assert row["error_text"] == "wrong result: error of value 2, allowed 0.002"
    assert commands._status({"rows": [row]}, ("kernel",)) == 1 != commands._status({"rows": [row]}, ())
    assert commands._status({"rows": [{**row, "absent": True}]}, ("kernel",)) == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("variants=direct", "variants=direct: direct computes no gradients; .* backward:sums=fixed"),
        ("variants=backward:sum=fixed", "sum=fixed: backward has the parameters .* did you mean sums?"),
        ("variants=backward:linked=1", "linked=1 is for variants of the forward pass"),
        ("profile=1", "profile is not for what=gradients"),
        ("workload=seeds-padded num_query=1", "unknown key num_query"),
        ("workload=seeds", "too many for the CPU engine"),
        ("what=training", "what is given twice"),
    ],
)
def test_gradients_that_cannot_be_benched(words, text):
    with pytest.raises(ValueError, match=text):
        COMMANDS["bench"](["what=gradients", "engine=cpu", *words.split()])


def test_padded_values_have_no_gradients():
    with pytest.raises(ValueError, match="^workload=tiny: value has a border"):
        gradients.bench_gradients(None, [preset("tiny", padded=True)])


def test_what_bench_can_do():
    with pytest.raises(UsageError, match="variants=backward: backward computes gradients: give what=gradients"):
        COMMANDS["bench"](["engine=cpu", "workload=tiny", "variants=backward"])
    with pytest.raises(UsageError, match="what=gradient: it must be one of .* did you mean gradients?"):
        COMMANDS["bench"](["what=gradient"])
    with pytest.raises(UsageError, match="workload is not for what=training"):
        COMMANDS["bench"](["what=training", "workload=tiny"])
    with pytest.raises(UsageError, match="what=training needs a GPU"):
        COMMANDS["bench"](["what=training", "engine=cpu"])


# --- tables and plots -----------------------------------------------------------------------------
def document(kind="bench"):
    def row(variant, time, **more):
        return {
            "workload": "seeds", "pattern": "seed", "dtype": "float16", "kind": "variant",
            "variant": variant, "name": "tma", "error": 6e-4, "median_ms": time,
            "min_ms": 0.9 * time, "max_ms": 1.1 * time, "runs": 10, "gigatiles_per_second": 31.5 / time,
            "gigabytes_per_second": 200 / time, "cycles_per_tile": 8 * time, "bounded_by": "tma",
            "closeness": 0.8, **more,
        }  # fmt: skip

    def ceiling(name, time, best=True):
        return {
            "workload": "seeds", "pattern": "seed", "dtype": "float16", "ceiling": name,
            "config": "unroll=4", "median_ms": time, "best": best,
        }  # fmt: skip

    return {
        "kind": kind,
        "machine": {"gpu": "NVIDIA H200", "driver": 13000},
        "clock": {"ghz": 1.98, "source": "a test"},
        "settings": {"repeats": 10},
        "rows": [
            row("tma stages=3", 1.2, parameters={"stages": 3, "lanes": 8}),
            row("tma stages=2", 1.1, parameters={"stages": 2, "lanes": 8}),
            row("a | peer", 12.0, kind="peer"),
            {**row("broken", 1.0), "error_text": "wrong result"},
        ],
        "ceilings": [ceiling("l1", 0.4), ceiling("l1", 0.5, best=False), ceiling("tma", 0.9)],
    }


def test_markdown():
    lines = report.markdown(document()).splitlines()
    assert lines[0] == "NVIDIA H200, driver 13000, medians of 10, cycles at 1.98 GHz"
    assert lines[4] == (
        "| seeds seed | tma stages=2 | 1.100 | 0.990 .. 1.210 | 6.0e-04 | 28.6 | 8.8 | 200 | 182 | "
        "80% of TMA |"
    )
    assert "a \\| peer" in lines[6]
    assert sum("tiles through L1" in line for line in lines) == 1  # the best only
    assert lines[-1] == "| seeds seed | broken | wrong result |"


def test_summary_of_several_files():
    """A column for each workload, what direct takes as the measure, and what costs a variant time."""
    one, other = document(), document()
    for number, doc in enumerate((one, other)):
        for row in doc["rows"]:
            row["pattern"] = ("seed", "uniform")[number]
    one["rows"].append({**one["rows"][0], "variant": "direct", "median_ms": 0.55, "error": 1e-4})
    title, headings, rows = report.summary([one, other])
    assert title.startswith("NVIDIA H200") and headings[2:4] == ("seeds seed", "seeds uniform")
    cells = {row[0]: row for row in rows}
    assert cells["direct"][2:4] == ("0.550 (1.00)", "")
    assert cells["tma stages=2"][1:4] == ("S5 S6", "1.100 (2.00)", "1.100")
    assert cells["tma stages=2"][-1] == VARIANTS["tma"].why != ""
    assert "broken" not in cells


def test_rich_tables(capsys):
    from rich.console import Console

    for table in report.tables(document()):
        Console(width=160).print(table)
    text = capsys.readouterr().out
    assert "tma stages=2" in text and "wrong result" in text and "tiles through L1" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_table_splits_a_word(capsys, width):
    from rich.console import Console

    long = "warp-specialized metadata=shared arithmetic=fp32"
    made = document()
    made["rows"][0] |= {"variant": long, "workload": "detr-encoder-b4", "pattern": "local(0.5)"}
    for table in report.tables(made):
        Console(width=width).print(table, crop=False)
    printed = set(capsys.readouterr().out.split())
    words = f"{long} detr-encoder-b4 local(0.5) cycles/tile Gtiles/s 6.0e-04"
    assert printed >= set(words.split())


def test_virtual_cycles_stand_beside_their_like():
    """Plain loads have no latency in virtual time: ``direct`` is not fast, and no rival of ``tma``."""
    names = "tma stages=3", "direct", "window", "tile", "of a notebook"
    rows = [{"workload": "tiny", "pattern": "seed", "dtype": "float16", "kind": "variant", "variant": name,
             "name": name.split(" ")[0], "error": 6e-4, "virtual_cycles": 9.0} for name in names]  # fmt: skip
    made = {"kind": "bench", "machine": {"gpu": ""}, "rows": rows}
    tables = {title: [row[1] for row in of] for title, _, of in report._parts(made)}
    assert sorted(tables.values()) == [["direct", "tile"], ["tma stages=3", "window", "of a notebook"]]
    (plain,) = (title for title, of in tables.items() if "direct" in of)
    assert "plain loads have no latency" in plain and "not measured" in plain


@pytest.mark.parametrize("kind", ["bench", "sweep"])
def test_plot(kind, tmp_path):
    pytest.importorskip("matplotlib")
    path = report.plot(document(kind), tmp_path / "plot.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_plot_of_nothing(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="nothing to plot"):
        report.plot({**document(), "rows": []}, tmp_path / "plot.png")
    with pytest.raises(ValueError, match="x=warps"):
        report.plot(document("sweep"), tmp_path / "plot.png", x="warps")
    with pytest.raises(ValueError, match="x=sigma: no two rows"):
        report.plot(document(), tmp_path / "plot.png", x="sigma")


def lines_of(rows, x, monkeypatch, tmp_path):
    """({label: points}, axes) of the plot that rows make; looks at the bars from fastest to slowest."""
    figure = pytest.importorskip("matplotlib.figure")
    drawn = []
    save = figure.Figure.savefig
    monkeypatch.setattr(
        figure.Figure, "savefig", lambda self, *a, **k: (drawn.append(self), save(self, *a, **k))
    )
    report.plot({**document(), "rows": rows}, tmp_path / "plot.png", x)
    (axes,) = drawn[0].axes
    named = [line for line in axes.lines if not line.get_label().startswith("_")]
    points = {line.get_label(): line.get_xydata().tolist() for line in named}
    bars = [
        [segment.tolist() for segment in container.lines[2][0].get_segments()]
        for container in axes.containers
    ]
    times = {row["median_ms"]: (row["min_ms"], row["max_ms"]) for row in rows}
    assert bars == [
        [pytest.approx(np.array([(x, time) for time in times[ms]])) for x, ms in line]
        for line in points.values()
    ]
    assert named and len({line.get_color() for line in named}) == len(
        {label.split(",")[0] for label in points}
    )
    return points, axes


def taking(row, time, **changes):
    """The row with another time."""
    return {**row, "median_ms": time, "min_ms": 0.8 * time, "max_ms": 1.5 * time, **changes}


def test_plot_against_the_spread(monkeypatch, tmp_path):
    tma = document()["rows"][1]
    rows = [
        taking(tma, time, pattern=pattern, variant=variant)
        for variant, base in (("direct", 0.5), ("tma stages=2", 1.0))
        for pattern, time in (("local(8)", base + 0.1), ("local(0.5)", base), ("seed", 9.0))
    ]
    found, axes = lines_of(rows, "sigma", monkeypatch, tmp_path)
    assert found == {
        "direct": [[0.5, 0.5], [8.0, 0.6]], "tma stages=2": [[0.5, 1.0], [8.0, 1.1]],
    }  # fmt: skip
    assert axes.get_title() == "seeds local" and axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.5", "8"]
    assert axes.get_ylim() == pytest.approx((0, 1.05 * 1.1 * 1.5))  # the longest bar is inside


def test_plot_against_queries_and_stages(monkeypatch, tmp_path):
    tma = document()["rows"][1]
    rows = [
        taking(tma, queries / 1e3, pattern=pattern, num_query=queries)
        for pattern in ("seed", "uniform")
        for queries in (300, 900, 20522)
    ]
    found, axes = lines_of(rows, "queries", monkeypatch, tmp_path)
    assert list(found) == ["tma stages=2, seeds seed", "tma stages=2, seeds uniform"]
    assert found["tma stages=2, seeds seed"][0] == [300, 0.3] and axes.get_yscale() == "log"
    # In a bench the configuration says how many stages an entry has that does not name them.
    rows = [
        {**tma, "parameters": {}, "config": {"stages": stages}, "variant": variant}
        for variant, stages in (("tma", 2), ("tma stages=3", 3), ("phase2", 2), ("direct", None))
    ]
    found, _ = lines_of(rows, "stages", monkeypatch, tmp_path)
    assert found == {"tma": [[2, 1.1], [3, 1.1]]}


@pytest.mark.full
@pytest.mark.parametrize(
    ("x", "grid", "scales"),
    [
        ("sigma", {"pattern": ["local(0.5)", "local(2)", "local(8)"]}, ("log", "log")),
        ("queries", {"num_query": ["300", "900", "22223"]}, ("log", "log")),
        ("stages", {"stages": ["1", "2", "3"]}, ("linear", "linear")),
    ],
)
def test_plot_of_what_sweep_has_written(x, grid, scales, pretended, monkeypatch, tmp_path):
    gpu, path = pretended[0], tmp_path / "sweep.json"
    monkeypatch.setattr("numba_deform.measure.bench.compile_ahead", lambda tasks, architecture: None)
    monkeypatch.setattr(Worker, "call", lambda self, task: fake_measures.by_shape(task))
    names = ["tma", "tma-fastest", "window"]
    points = expand({"variant": names, "workload": ["detr-encoder"], **grid})
    rows = sweep(points, path, gpu)["rows"]
    found, axes = lines_of(report.load(path)["rows"], x, monkeypatch, tmp_path)
    assert sorted(found) == names and (axes.get_xscale(), axes.get_yscale()) == scales
    drawn = sorted(time for line in found.values() for _, time in line)
    assert drawn == sorted(row["median_ms"] for row in rows) and len(drawn) == 9
    assert {line.get_color() for line in axes.lines} <= set(report.SERIES)


def test_plot_of_what_the_cpu_engine_gave(monkeypatch, tmp_path, no_child):
    """Virtual cycles in place of milliseconds, and the axis says so; bars of a bench too."""
    figure = pytest.importorskip("matplotlib.figure")
    points = expand({"variant": ["direct"], "workload": ["tiny"], "num_query": ["1", "9"]})
    document = sweep(points, tmp_path / "sweep.json")
    drawn = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *_, **__: drawn.extend(self.axes))
    report.plot(document, tmp_path / "plot.png", "queries")
    report.plot(document | {"kind": "bench", "ceilings": []}, tmp_path / "plot.png")
    lines, *bars = drawn
    cycles = [row["virtual_cycles"] for row in document["rows"]]
    (line,) = [line for line in lines.lines if line.get_label() == "direct"]
    assert line.get_xydata().tolist() == [[1, cycles[0]], [9, cycles[1]]]
    assert sorted(bar.get_width() for axes in bars for bar in axes.patches) == sorted(cycles)
    label = "virtual cycles of the CPU engine, not measured"
    assert lines.get_ylabel() == label == bars[0].get_xlabel()


def test_a_misspelt_x_or_row_is_asked_about():
    with pytest.raises(ValueError, match="x=stage: .* did you mean stages?"):
        report.plot(document("sweep"), "plot.png", "stage")
    with pytest.raises(ValueError, match="no row 'tma stages=22'; .* did you mean tma stages=2?"):
        report.summary([document()], ["tma stages=22"])


# --- on a terminal ----------------------------------------------------------------------------------
@pytest.fixture
def terminal(monkeypatch):
    """The screen of a terminal, as (what was written, a function that ends it)."""
    screen = io.StringIO()
    made = Console(file=screen, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr(output, "console", lambda width=None: made)
    return screen


def test_long_runs_say_how_long_and_show_a_bar(terminal):
    with output.counting(30) as advance:
        advance(2, 6, "a [b]")
        advance(6, 6, "done")
    text = terminal.getvalue()
    assert text.count("4 to do, about 2 min") == 1 and "2/6" in text and "a [b]" in text and "6/6" in text
    with output.lasting(90):
        pass
    assert "of about 90 s" in terminal.getvalue()


def test_elsewhere_nothing_is_written(capsys):
    with output.counting(30) as advance:
        advance(2, 6, "label")
    with output.lasting(90):
        pass
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("elapsed, total", [(3, 10), (11, None)])
def test_a_bar_that_is_full_swings(elapsed, total):
    task = types.SimpleNamespace(elapsed=elapsed, total=10, completed=0, started=True, finished=False,
                                 get_time=lambda: 0.0)  # fmt: skip
    bar = output._Elapsed().render(task)
    assert (task.completed, task.total, bar.pulse) == (elapsed, total, False)


@pytest.mark.full
def test_commands_count_what_they_tell_of(monkeypatch, tmp_path, capsys):
    """The last call of each is complete."""
    told = []

    @contextlib.contextmanager
    def counting(seconds_each):
        yield lambda done, total, label: told.append((done, total, label, seconds_each))

    monkeypatch.setattr(commands, "counting", counting)
    words = ["engine=cpu", "workload=tiny"]
    assert COMMANDS["bench"]([*words, "variants=direct,direct:lanes=4", "dtype=float16,float32"]) == 0
    assert [call[:2] for call in told] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert told[0][2] == "tiny: direct" and told[0][3] > 1
    told.clear()
    assert COMMANDS["sweep"]([*words, f"out={tmp_path / 's.json'}", "lanes=4,8", "num_query=1"]) == 0
    assert [call[:3] for call in told] == [(0, 2, "direct lanes=4"), (1, 2, "direct lanes=8"), (2, 2, "done")]


def test_plot_of_many_panels(tmp_path):
    pytest.importorskip("matplotlib")
    bench_document = document()
    row = bench_document["rows"][0]
    bench_document["rows"] = [{**row, "pattern": f"local({n})"} for n in range(1, 5)]
    assert report.plot(bench_document, tmp_path / "plot.png").stat().st_size > 0


def test_load_refuses_other_files(tmp_path):
    path = record.save(tmp_path / "other.json", {"rows": []})
    with pytest.raises(ValueError, match="no result of bench or sweep"):
        report.load(path)


# --- peers ----------------------------------------------------------------------------------------
def test_absent_peers_say_so():
    inputs = types.SimpleNamespace(padded=False)
    if "torch" in sys.modules:
        pytest.skip("PyTorch is installed")
    for name in baselines.PEERS:
        with pytest.raises(baselines.NotInstalled, match="not installed"):
            baselines.prepare(name, inputs, ())
    with pytest.raises(ValueError, match="padded"):
        baselines.prepare("mmcv", types.SimpleNamespace(padded=True), ())

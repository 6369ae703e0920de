"""What ``tune`` makes of measurements, with stand-ins for them: no GPU."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_measures import CANDIDATES

from numba_deform.attention import tuned
from numba_deform.attention.auto import choose, untuned
from numba_deform.attention.tuned import Answer, Candidate
from numba_deform.cli import bench as commands
from numba_deform.cli import main
from numba_deform.kernels.problem import ConfigError
from numba_deform.measure import sweep, tune
from numba_deform.measure.bench import parse_entries
from numba_deform.workloads.presets import preset

ENTRIES = (
    "direct,direct:lanes=4,tma-fastest,window,window:cell=12x16,window:cell=16x12,direct:lanes=3"
)
FAKE = "fake_measures:by_candidates"
GPU = SimpleNamespace(
    name="H200", sms=100, driver=13000, capability=(9, 0), architecture="sm_90a",
    describe=lambda: "H200 (SM 9.0, 100 SMs)",
    device=SimpleNamespace(properties=SimpleNamespace(clock_rate=2_000_000)),
)  # fmt: skip
NEAR = preset("mask2former", pattern="local(1)")
FAR = preset("mask2former", pattern="uniform")


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    """Children import them by name; nothing is compiled."""
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", here, prepend=os.pathsep)
    monkeypatch.setattr(sweep.bench, "compile_ahead", lambda tasks, architecture: None)


def cycles(ms):
    return pytest.approx(ms * 1e-3 * 2e9 * 100 / NEAR.samples)


def test_the_fastest_that_are_right_are_kept():
    document, ((workload, answer),) = tune.tune(
        GPU, [NEAR, FAR], parse_entries(ENTRIES), measure=FAKE
    )
    assert workload == NEAR
    # lanes=4 is the fastest where samples are near, but not over both patterns.
    assert answer.steady == Candidate("direct", (), cycles(0.235))
    assert answer.fitted == Candidate("window", (("cell", (12, 16)),), cycles(0.155), 0.0003)
    assert answer.date == tuned.find(GPU, tune.problem_of(NEAR)).date
    labels = [(row["variant"], row["pattern"]) for row in document["rows"]]
    assert len(labels) == len(set(labels)) == 2 * 7
    refused, wrong = (document["rows"][i] for i in (6, 5))
    assert refused["refused"] and "wrong result" in wrong["error_text"]


def test_windows_that_are_wrong():
    entries = parse_entries("direct,direct:lanes=4,window:cell=16x12")
    _, ((_, answer),) = tune.tune(GPU, [NEAR], entries, measure=FAKE)
    assert answer.steady.parameters == (("lanes", 4),) and answer.fitted is None


def test_nothing_is_kept_without_a_kernel_for_all_patterns():
    with pytest.raises(ValueError, match="nothing to keep: .* include direct; lanes=3: must be"):
        tune.tune(GPU, [NEAR], parse_entries("window,direct:lanes=3"), measure=FAKE)
    assert not tuned.path().exists()
    for text in ("window,window:cell=12x16", "direct,tma-fastest"):
        with pytest.raises(
            ConfigError, match=f"variants={text.replace(':', ' ')}: must name window"
        ):
            tune.tune(GPU, [NEAR], parse_entries(text), measure=FAKE)
    with pytest.raises(ConfigError, match="linked=1: is there to be compared"):
        tune.tune(GPU, [NEAR], parse_entries("direct:linked=1"), measure=FAKE)


def test_each_kind_of_problems_has_its_answer():
    other = NEAR.replace(num_heads=4)
    _, kept = tune.tune(GPU, [NEAR, other, FAR], parse_entries("direct,window"), measure=FAKE)
    assert [workload for workload, _ in kept] == [NEAR, other]
    assert all(tuned.find(GPU, tune.problem_of(w)) for w in (NEAR, other, FAR))


def test_the_problem_of_a_workload_is_that_of_its_arrays():
    from numba_deform.measure.case import Case

    for workload in (preset("tiny"), preset("tiny", padded=True, dtype="float32")):
        assert tune.problem_of(workload) == Case(workload.generate(0)).problem


def test_default_candidates_exist():
    entries = parse_entries(tune.CANDIDATES)
    assert not any(sweep.point_of(entry, NEAR).refused for entry in entries)
    answer = untuned(tune.problem_of(NEAR).constants)
    assert {(e.variant, e.parameters) for e in entries} >= {
        (c.variant, c.parameters) for c in (answer.steady, answer.fitted)
    }
    assert set(CANDIDATES) <= {entry.label for entry in entries}


# --- the command ----------------------------------------------------------------------------------
@pytest.fixture
def on_gpu(monkeypatch):
    monkeypatch.setattr(commands, "_gpu", lambda options, workloads: GPU)
    measured = tune.tune
    monkeypatch.setattr(commands, "tune", lambda *a, **k: measured(*a, **k, measure=FAKE))


@pytest.mark.full
def test_command(on_gpu, tmp_path, capsys):
    out = tmp_path / "measured.json"
    words = ["tune", "workload=mask2former", "patterns=local(1),uniform", f"out={out}"]
    assert main([*words, "variants=direct,tma-fastest,window,window:cell=12x16"]) == 0
    text = capsys.readouterr().out
    assert "window cell=12x16" in text and "0.155" in text  # measured
    assert "for problems like mask2former: direct, " in text
    assert "with 0.03% of the samples outside its windows" in text and str(tuned.path()) in text
    assert json.loads(out.read_text())["kind"] == "sweep"
    assert tuned.find(GPU, tune.problem_of(NEAR))
    assert main([*words, "variants=direct,window:cell=16x12"]) == 1  # one is wrong
    capsys.readouterr()

    assert main(["tune", "forget=1", "workload=tiny"]) == 0
    assert "0 answers" in capsys.readouterr().out
    assert main(["tune", "forget=1", "workload=mask2former"]) == 0
    assert "1 answers" in capsys.readouterr().out
    assert tuned.find(GPU, tune.problem_of(NEAR)) is None


def test_forget_without_a_workload_is_all(capsys):
    for workload in (NEAR, preset("tiny")):
        problem = tune.problem_of(workload)
        tuned.keep(GPU, problem, untuned(problem.constants))
    assert main(["tune", "forget=1"]) == 0
    assert "2 answers" in capsys.readouterr().out
    assert tuned.forget() == 0


def test_auto_says_that_it_was_tuned():
    tune.tune(GPU, [FAR], parse_entries("direct,window:cell=16x12"), measure=FAKE)
    gpu = SimpleNamespace(name="H200", capability=(9, 0), sms=100)
    chosen = choose(gpu, tune.problem_of(FAR))
    assert chosen.variant.name in ("direct", "window") and "tuned 2" in chosen.why
    assert isinstance(tuned.find(gpu, tune.problem_of(FAR)), Answer)

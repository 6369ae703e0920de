"""Counters of Nsight Compute, which a script stands in for; nothing here needs a GPU."""

import os
import pickle
import subprocess
import time
import types
from pathlib import Path

import pytest

from numba_deform.compiler.sass import ToolMissing
from numba_deform.engines.gpu.device import gpu_or_none
from numba_deform.measure import counters as profile
from numba_deform.measure.bench import Entry, task_of
from numba_deform.workloads.presets import preset

COLUMNS = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
    "Grid Size", "Device", "CC",
)  # fmt: skip
VALUES = {
    "duration_ns": ("ns", "464,032"),
    "wavefronts": ("", "1,104.00"),
    "wavefronts_percent": ("%", "83.25"),
    "issue_percent": ("%", "61.5"),
    "warps_percent": ("%", "70.1"),
    "l1_hit_percent": ("%", "92.4"),
    "l2_bytes": ("byte", "1,234,567,890"),
    "dram_bytes": ("byte", "345678"),
    "instructions": ("inst", "5,520"),
    "bank_conflicts": ("", "n/a"),
}
TASK = task_of(Entry("direct"), preset("tiny"), 1)  # 1104 samples


def printed():
    """What ncu prints for one kernel, between its own lines and those of the program."""
    kernel = (
        "3", "4711", "python3.12", "127.0.0.1", 'kernel(Array<""half"">, 2), x', "1", "7",
        "(128, 1, 1)", "(924, 1, 1)", "0", "9.0",
    )  # fmt: skip
    metrics = [profile.METRICS[name] for name in VALUES]
    rows = (
        (*COLUMNS, *metrics),
        (*[""] * len(COLUMNS), *(unit for unit, _ in VALUES.values())),
        (*kernel, *(value for _, value in VALUES.values())),
    )
    table = [",".join(f'"{cell}"' for cell in row) for row in rows]
    before = ["==PROF== Connected to process 4711", "==PROF== Profiling: 0%....100% - 4 passes"]
    return "\n".join([*before, "said by the program", *table, "goodbye", ""])


@pytest.fixture
def fake_ncu(tmp_path, monkeypatch):
    """A function that puts a shell script named ncu first on PATH; it may read ``$HERE``."""

    def install(script):
        file = tmp_path / "ncu"
        file.write_text("#!/bin/sh\n" + script)
        file.chmod(0o755)
        monkeypatch.setenv("HERE", str(tmp_path))
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        return tmp_path

    return install


def test_every_metric_is_in_the_example():
    assert set(VALUES) == set(profile.METRICS)


def test_parse():
    (kernel,) = profile.parse(printed())
    assert kernel["Kernel Name"] == 'kernel(Array<"half">, 2), x'
    assert kernel["gpu__time_duration.sum"] == "464,032"
    assert profile.parse("==PROF== Connected\n==WARNING== No kernels were profiled.\n") == []


def test_figures():
    (kernel,) = profile.parse(printed())
    found = profile.figures(kernel, 1104)
    assert found["duration_ns"] == 464_032 and found["l1_hit_percent"] == 92.4
    assert found["wavefronts_per_sample"] == 1.0 and found["instructions_per_sample"] == 5.0
    assert "bank_conflicts" not in found and "bank_conflicts_per_sample" not in found


def test_count(fake_ncu):
    here = fake_ncu('printf "%s\\n" "$@" > $HERE/words; cat $HERE/printed')
    (here / "printed").write_text(printed())
    assert profile.count(TASK) == profile.figures(profile.parse(printed())[0], 1104)
    words = (here / "words").read_text().splitlines()
    assert words[words.index("--clock-control") + 1] == "none"
    assert words[words.index("--metrics") + 1].split(",") == list(profile.METRICS.values())
    assert words[-3:-1] == ["-m", "numba_deform.measure.counters"]


DENIAL = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance "
    "Counters on the target device 0."
)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (f"echo '{DENIAL}'", profile.DENIED),
        (f"echo '{DENIAL}' >&2; exit 1", profile.DENIED),
        (
            "echo Traceback >&2; echo 'ValueError: no' >&2; echo '==ERROR== The application "
            "returned an error code (1).'; exit 1",
            "ncu, exit status 1: ValueError: no The application returned an error code (1).",
        ),
        ("echo '==PROF== Connected'", "ncu, exit status 0: no kernel was profiled"),
    ],
)
def test_count_says_why_there_are_none(fake_ncu, script, text):
    fake_ncu(script)
    assert profile.count(TASK) == {"error_text": text}


def test_count_ends_what_hangs_with_its_children(fake_ncu, monkeypatch):
    here = fake_ncu("sh -c 'echo $$ > $HERE/told; mv $HERE/told $HERE/child; sleep 9999' & sleep 9999")
    communicate = subprocess.Popen.communicate

    def when_both_run(process, timeout):
        while not (here / "child").exists():
            time.sleep(0.01)
        return communicate(process, timeout=0.01)

    monkeypatch.setattr(subprocess.Popen, "communicate", when_both_run)
    assert profile.count(TASK, limit=2) == {"error_text": "no counters within 2 s: stopped"}
    child = int((here / "child").read_text())
    while runs(child):  # a killed process ends when the system comes to it
        time.sleep(0.01)


def runs(process):
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_ncu_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(profile, "USUAL_PLACE", str(tmp_path))
    with pytest.raises(ToolMissing, match="no ncu on PATH .*nsight-compute"):
        profile.count(TASK)


@pytest.mark.skipif(gpu_or_none() is not None, reason="what the child says without a GPU")
def test_the_child_starts(fake_ncu):
    """The command line after ncu's own options is one that runs."""
    fake_ncu('while [ "$1" != "--metrics" ]; do shift; done; shift 2; exec "$@"')
    found = profile.count(TASK)
    assert "GpuMissing: no CUDA GPU can be used" in found["error_text"]


def test_the_child_launches_twice(monkeypatch, tmp_path):
    """A warm-up, then the one that the profiler counts."""
    launched = []

    def case_of(engine, workload, seed):
        assert (engine, workload, seed) == ("gpu", preset("tiny"), 1)
        return types.SimpleNamespace(
            gpu="a GPU", bind=lambda name, *_: (name, ""),
            launcher=lambda bound: lambda: launched.append(bound),
        )

    monkeypatch.setattr(profile, "case_of", case_of)
    monkeypatch.setattr(
        profile, "profile_launch", lambda gpu, run: (launched.append("counted:"), run())
    )
    file = tmp_path / "task.pickle"
    file.write_bytes(pickle.dumps(TASK))
    profile.launch_twice(file)
    assert launched == ["direct", "counted:", "direct"]

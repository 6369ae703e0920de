"""``pytest --numba-deform``: which tests fail, what stands beside them, and what is told however it ends."""

import json
import subprocess
import sys
from importlib.metadata import entry_points
from xml.etree import ElementTree

import pytest

pytest.importorskip("numba_cuda", reason="programs are numba-cuda's")
pytestmark = pytest.mark.skipif(
    not entry_points(group="pytest11", name="numba_deform"), reason="only if it is installed"
)
HEAD = """
import os, signal
import numpy as np
import pytest
from numba import cuda

@cuda.jit
def kernel(out):
    out[0] = cuda.threadIdx.x

def right():
    kernel[1, 1](np.zeros(1))

def wrong():
    kernel[1, 32](np.zeros(1))
"""


@pytest.fixture
def run(tmp_path):
    """run(text, *options): (the process of pytest on a file of that text, what it wrote as JSON)."""

    def run(text, *options):
        file = tmp_path / "test_kernels.py"
        file.write_text(HEAD + text)
        words = "-q", "-p", "no:cacheprovider", "--numba-deform", f"--numba-deform-json={tmp_path}/o.json"
        plain = () if "-n" in options else ("-p", "no:xdist")
        command = [sys.executable, "-m", "pytest", *words, *plain, *options, file.name]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        written = tmp_path / "o.json"
        return done, json.loads(written.read_text()) if written.exists() else None

    return run


def test_a_fault_fails_its_test_wherever_it_is_met(run, tmp_path):
    """In a fixture as well; beside a failed assertion it is told."""
    done, seen = run(
        """
@pytest.fixture
def before():
    wrong()

@pytest.fixture
def after():
    yield
    wrong()

def test_right():
    right()

def test_in_a_fixture(before):
    pass

def test_behind_it(after):
    pass

def test_in_a_test():
    wrong()

def test_asserts():
    wrong()
    assert 1 == 2
""",
        f"--junitxml={tmp_path}/o.xml",
    )
    cases = {case.get("name"): case for case in ElementTree.parse(tmp_path / "o.xml").iter("testcase")}
    ended = {name: [(e.tag, "DataRace" in e.get("message")) for e in case] for name, case in cases.items()}
    assert ended == {
        "test_right": [], "test_in_a_fixture": [("error", True)], "test_behind_it": [("error", True)],
        "test_in_a_test": [("failure", True)], "test_asserts": [("failure", False)],
    }, done.stdout  # fmt: skip
    _, _, text = done.stdout.partition("_ test_asserts _")
    _, _, beside = text.partition("Captured numba-deform call")
    assert "assert 1 == 2" in text and beside.lstrip("- \n").startswith("DataRace: writes out[0]")
    assert done.returncode == 1 and seen["launches"] == 5 and seen["faults"][0]["count"] == 4


def test_a_fault_that_no_test_can_tell_of_fails_the_run(run):
    """That of an import, and of a child process."""
    for text in ("wrong()\ndef test_right():\n    right()\n",
                 "def test_child():\n    if not os.fork():\n        wrong()\n        os._exit(0)\n"
                 "    os.wait()\n    right()\n"):  # fmt: skip
        done, seen = run(text)
        assert done.returncode == seen["status"] == 1 and "1 passed" in done.stdout, done.stdout
        assert "\nDataRace: writes out[0]" in done.stdout and seen["launches"] == 2


def test_options(run, tmp_path):
    """The session has them; ``stop`` ends a test where its fault is."""
    (tmp_path / "known").write_text("DataRace nowhere.py:*\nOutOfRange test_kernels.py:*\n")
    done, seen = run(
        """
@cuda.jit
def outside(out):
    out[cuda.threadIdx.x + 1] = 1

def test_stopped(request):
    session = request.config.pluginmanager.getplugin("numba_deform_session").session
    assert (session.schedules, session.explored, session.stop, session.all) == (3, True, True, True)
    assert session.waive == {"init-fence"}
    outside[1, 4](np.zeros(4))  # it is known
    with pytest.raises(Exception, match="DataRace"):
        wrong()
    assert 3 == 4
""",
        "--numba-deform-schedules=3", "--numba-deform-explore", "--numba-deform-stop", "--numba-deform-all",
        "--numba-deform-suppress=known", "--numba-deform-waive=init-fence", "--numba-deform-sarif=o.sarif",
    )  # fmt: skip
    assert done.returncode == 1 and "assert 3 == 4" in done.stdout, done.stdout
    assert {f["fault"]: f["suppressed"] for f in seen["faults"]} == {"OutOfRange": True, "DataRace": False}
    assert "\nthe suppression DataRace nowhere.py:* was of no use" in done.stdout
    assert seen["unused_suppressions"] == [["DataRace", "nowhere.py:*"]]
    log = json.loads((tmp_path / "o.sarif").read_text())
    assert [result["ruleId"] for result in log["runs"][0]["results"]] == ["OutOfRange", "DataRace"]
    for option, said in (
        ("schedules=0", "a whole number from 1 on"), ("suppress=none", "No such file"),
        ("waive=x", "waive='x' is none of the rules"),
    ):  # fmt: skip
        done, _ = run("", f"--numba-deform-{option}")
        assert done.returncode == 4 and said in done.stderr


def test_the_controller_of_xdist_sums_up(run):
    """Also what a worker had seen that is gone."""
    pytest.importorskip("xdist")
    text = "def test_{}():\n    right()\n" * 3 + "def test_gone():\n    wrong()\n    os._exit(3)\n"
    done, seen = run(text.format(*"abc"), "-n", "2")
    assert "numba-deform: 4 launches of 1 kernel" in done.stdout, done.stdout
    assert done.returncode == 1 and seen["launches"] == 4 and [f["count"] for f in seen["faults"]] == [1]
    assert "3 passed" in done.stdout and "1 failed" in done.stdout


@pytest.mark.parametrize("end, status", [("os._exit(7)", 1), ("os.kill(os.getpid(), signal.SIGTERM)", 2)])
def test_an_end_before_the_end(run, end, status):
    done, seen = run(f"def test_gone():\n    try:\n        wrong()\n    finally:\n        {end}\n")
    assert done.returncode == seen["status"] == status, done.stdout + done.stderr
    assert seen["launches"] == 1 and [f["fault"] for f in seen["faults"]] == ["DataRace"]
    said = done.stdout + done.stderr
    assert "numba-deform: 1 launch of 1 kernel, 1 fault" in said and "DataRace: writes out[0]" in said


def test_nothing_was_launched(run):
    done, seen = run("def test_nothing():\n    pass\n")
    assert done.returncode == seen["status"] == 6 and "no kernel was launched" in done.stdout
    done, _ = run("def test_nothing():\n    pass\n", "--collect-only")
    assert done.returncode == 0

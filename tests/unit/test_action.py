"""The GitHub action, workflows, and those that the documentation shows: by GitHub's schemas where these are
installed, and by what must hold; and what the action runs, run."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from numba_deform.programs.pytest_plugin import OPTIONS

ROOT = Path(__file__).resolve().parents[2]
ACTION = ROOT / "action.yml"
PAGE = ROOT / "notebooks" / "site" / "ci.md"
WORKFLOWS = [*sorted((ROOT / ".github" / "workflows").glob("*.yml")), PAGE]
INPUT = re.compile(r"inputs\.([\w-]+)")


def text_of(file):
    """The YAML of a file; of a page, of its block."""
    text = file.read_text()
    if file.suffix == ".md":
        (text,) = re.findall(r"```yaml\n(.*?)```", text, re.S)
    return text


@pytest.mark.skipif(not importlib.util.find_spec("check_jsonschema"), reason="check-jsonschema is missing")
@pytest.mark.parametrize("file", [ACTION, *WORKFLOWS], ids=lambda file: file.name)
def test_githubs_schema(file, tmp_path):
    (tmp_path / "it.yml").write_text(text_of(file))
    schema = "vendor.github-actions" if file == ACTION else "vendor.github-workflows"
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, "it.yml"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def steps_obey(steps):
    for step in steps:
        assert ("run" in step) != ("uses" in step)
        assert "with" not in step or "uses" in step
        assert step.get("uses", "./").startswith("./") or "@" in step["uses"]


def test_the_action():
    """Each input is used and described, no other is, and each step of a shell names it."""
    action = yaml.safe_load(text_of(ACTION))
    assert {"name", "description", "inputs", "outputs", "runs"} == set(action)
    assert action["runs"]["using"] == "composite"
    steps_obey(action["runs"]["steps"])
    assert all("shell" in step for step in action["runs"]["steps"] if "run" in step)
    used = set(INPUT.findall(json.dumps([action["runs"], action["outputs"]])))
    assert used == set(action["inputs"]) and all(each["description"] for each in action["inputs"].values())
    inside = [step["run"] for step in action["runs"]["steps"] if "run" in step]
    assert not any("${{" in script for script in inside), "what an input says is no part of a script"
    rows = re.findall(r"^\| `([a-z][\w-]*)` \|", PAGE.read_text(), re.M)
    assert sorted(rows) == sorted(action["inputs"]), "the page has a row for each"


def test_the_page_has_the_options_of_the_plugin():
    table = [row for row in PAGE.read_text().splitlines() if row.startswith("| `--")]
    assert {name for row in table for name in re.findall(r"--numba-deform-?(\w*)", row)} == set(OPTIONS)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow(file):
    """Steps are steps, and the action gets inputs that it has."""
    workflow = yaml.safe_load(text_of(file))
    assert {"name", True, "permissions", "jobs"} <= set(workflow)  # YAML's true is what `on` is read as
    inputs = set(yaml.safe_load(text_of(ACTION))["inputs"])
    for job in workflow["jobs"].values():
        assert job["runs-on"] and job["timeout-minutes"]
        steps_obey(job["steps"])
        ours = [s for s in job["steps"] if re.match(r"\./|OWNER/numba_deform@", s.get("uses", ""))]
        assert all(set(step["with"]) <= inputs for step in ours)
        uploads = any(step["with"].get("upload") != "false" for step in ours)
        assert not uploads or workflow["permissions"]["security-events"] == "write"


PROGRAM = """
import numpy as np
from numba import cuda

@cuda.jit
def kernel(out):
    out[0] = cuda.threadIdx.x

def test_it():
    kernel[1, 32](np.zeros(1))

if __name__ == "__main__":
    import sys
    assert sys.argv[1:] == ["a", "b=c"]
    test_it()
"""


@pytest.mark.parametrize("program, tests, options, status", [
    ("test_it.py a b=c", "", "schedules=2 suppress=known", 0), ("", "test_it.py -q -p no:xdist", "", 1),
    ("", "", "", 2), ("test_it.py", "test_it.py", "", 2),
])  # fmt: skip
def test_what_the_action_runs(tmp_path, program, tests, options, status):
    pytest.importorskip("numba_cuda", reason="programs are numba-cuda's")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "test_it.py").write_text(PROGRAM)
    (tmp_path / "work" / "known").write_text("DataRace test_it.py:*\n")
    steps = yaml.safe_load(text_of(ACTION))["runs"]["steps"]
    (script,) = [step["run"] for step in steps if "TESTS" in step.get("env", ())]
    environment = os.environ | {
        "PROGRAM": program, "TESTS": tests, "OPTIONS": options, "SARIF": "o.sarif",
        "GITHUB_WORKSPACE": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=tmp_path / "work", env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    if status == 2:
        assert "exactly one of the inputs" in done.stdout and not (tmp_path / "o.sarif").exists()
    else:
        (result,) = json.loads((tmp_path / "o.sarif").read_text())["runs"][0]["results"]
        assert result["ruleId"] == "DataRace" and ("suppressions" in result) == (status == 0)

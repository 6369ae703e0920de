"""Every notebook as it stands with its kernels on the GPU, and with its exercises solved.

In child processes, stopped after five minutes: a lesson may hold kernels that are wrong.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9]*.py"))
LIMIT = 300  # seconds, on a busy machine too


def run(*command):
    tests = str(ROOT / "tests" / "notebooks")
    paths = os.pathsep.join([str(ROOT), tests, os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"NUMBA_DEFORM_ENGINE": "gpu", "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, *command], env=environment, cwd=ROOT, timeout=LIMIT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_as_it_stands(hopper, name):
    page = ROOT / "notebooks" / f"{name}.py"
    said = run(page)
    assert ("kernels run on: gpu" in said) is ("lessons.engine()" in page.read_text())  # some run none
    assert "Still open" in said and "Not yet" not in said


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_solved(hopper, name):
    said = run("-c", f"import lessons; lessons.play_on_gpu({name!r})")
    assert "Right (" in said and "Still open" not in said

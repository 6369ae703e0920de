"""The recipes of CONTRIBUTING.md, followed to the letter in a copy of the repository."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
COPIED = (
    "numba_deform", "ptx", "tests", "notebooks", "bench", "pyproject.toml", "README.md",
    "CONTRIBUTING.md",
)  # fmt: skip
LIMIT = 800  # seconds for one command, which is meant to take a few
PROGRAMS = {
    "numba-deform": ("-m", "numba_deform"),
    "pytest": ("-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-o", "addopts=-q -m 'not full'"),
    "python": (),
}


ACTIONS = r"^(Create|Append to|Change|Run)(?: `(\S+)`)?:\n\n```\w+\n(.*?)^```$"


class Step(NamedTuple):
    action: str  # a word of ACTIONS
    path: str
    text: str


def steps(recipe, text=TEXT):
    """The code blocks under the heading ``recipe``, in order, each with the line before it."""
    section = re.search(rf"^## {recipe}\n(.*?)(?=^## |\Z)", text, re.S | re.M)[1]
    found = [Step(*match) for match in re.findall(ACTIONS, section, re.S | re.M)]
    assert len(found) == section.count("\n```") // 2, "a block without an action"
    return found


def take(step, root):
    """Do what a step says, in the copy at ``root``."""
    path = root / step.path
    if step.action == "Create":
        assert not path.exists(), f"{step.path} exists already"
        path.write_text(step.text)
    elif step.action == "Append to":
        path.write_text(path.read_text() + step.text)
    elif step.action == "Change":
        lines = step.text.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] != "+")
        new = "".join(line[1:] for line in lines if line[0] != "-")
        before = path.read_text()
        assert before.count(old) == 1, f"{step.path} has {before.count(old)} times:\n{old}"
        path.write_text(before.replace(old, new))
    else:
        assert step.action == "Run", step
        for line in step.text.splitlines():
            run(shlex.split(line), root)


def run(words, root):
    program, *words = words
    paths = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "NUMBA_DEFORM_ENGINE": "cpu"}
    for name in [n for n in environment if n.startswith(("PYTEST_", "COV_"))]:
        del environment[name]
    done = subprocess.run(
        [sys.executable, *PROGRAMS[program], *words], cwd=root, env=environment, timeout=LIMIT,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, f"{program} {' '.join(words)}\n{done.stdout}"
    return done.stdout


@pytest.fixture
def copy(tmp_path):
    unwanted = shutil.ignore_patterns("__pycache__", ".*")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=unwanted)
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.full
@pytest.mark.parametrize("recipe", ["An intrinsic", "A variant", "A fault", "A lesson"])
def test_recipe(recipe, copy):
    found = steps(recipe)
    assert found[-1].action == "Run" and len(found) >= 3
    for step in found:
        take(step, copy)
    ruff = [sys.executable, "-m", "ruff", "check", "--no-cache", "."]
    done = subprocess.run(ruff, cwd=copy, text=True, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stdout


@pytest.mark.full
def test_a_recipe_that_no_longer_works_fails(copy):
    for step, words in (
        (Step("Change", "README.md", "-a line that is not there\n+x\n"), "README.md has 0 times"),
        (Step("Create", "README.md", ""), "exists already"),
        (Step("Run", "", "numba-deform run variant=none\n"), "variant=none: must be one of"),
        (Step("Run", "", "pytest tests/unit/test_configs.py -k no_such_test\n"), "deselected"),
        (Step("Think", "README.md", ""), "Think"),
    ):
        with pytest.raises(AssertionError, match=words):
            take(step, copy)


def test_blocks_without_an_action_are_found():
    with pytest.raises(AssertionError, match="without an action"):
        steps("X", "## X\n\n```python\nprint()\n```\n")
    assert steps("X", "## X\n\nRun:\n\n```sh\nls\n```\n## Y\n") == [Step("Run", "", "ls\n")]


def test_the_other_commands_exist():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    said = (ROOT / ".ci" / "run").read_text()
    for command in ("ruff check .", "numba-deform run", "pytest", "pip install -q -e '.[test,site]'"):
        assert command in said

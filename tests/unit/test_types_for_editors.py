"""What a type checker, and so an editor, sees of the public names: mistakes before anything runs."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import numba_deform as nd
from numba_deform.cli import main
from numba_deform.cli.new import TEMPLATES
from numba_deform.course.pipelines.copy import copy

MISTAKES = """\
import numba_deform as nd
nd.mbarrier_init(0)
nd.mbarrier_init(0, 1, 2)
nd.mbarrier_init(bar=0, cuont=1)
nd.cp_async_bulk_load(0, 0, 128)
nd.cp_async_bulk_tensor_2d(0, 0, 0, 0)
nd.fence_proxy_async(1)
nd.mbarrier_arive(0)
nd.Ring(2, emtpy=32)
nd.Ring()
nd.Array((2, 3))
nd.Array((2, 3), nd.float32, align=128)
nd.WarpRing(2)
nd.NamedBarrier()
nd.WarpProduct()
nd.Launch()
nd.Launch(launch.kernel, 1, [], expcted={})
nd.simulate(launch, schedule=3)
nd.kernel(thread=64)
copy(stagse=4)
nd.timeline(launch, blok=1)
"""
# Its last line is not seen: timeline hands the options that it does not know on to simulate.
FOUND = range(2, 21)
RIGHT = """\
import numba_deform as nd
from numba_deform.course.pipelines.copy import copy
launch = copy(stages=4)
nd.mbarrier_init(0, 1)
nd.cp_async_bulk_load(0, 0, 128, 0)
nd.Ring(2, empty=32)
nd.Array((2, 3), nd.float32, alignment=128)
nd.simulate(launch, schedules=3)
nd.timeline(launch, block=1, landing="late")
"""


def files_in(folder):
    """(the file of mistakes, the file without)."""
    wrong, right = folder / "wrong.py", folder / "right.py"
    first, rest = MISTAKES.split("\n", 1)
    named = "from numba_deform.course.pipelines.copy import copy; launch = copy()"
    wrong.write_text(f"{first}; {named}\n{rest}")
    right.write_text(RIGHT)
    return wrong, right


@pytest.mark.full
def test_pyright_finds_mistakes(tmp_path):
    """As mypy. npm's package, on PATH, needs no network once it is there; PyPI's fetches that one."""
    if not (pyright := shutil.which("pyright")):
        pytest.skip("no pyright on PATH: npm install pyright")
    wrong, right = files_in(tmp_path)
    root = str(Path(nd.__file__).parents[1])
    config = {"extraPaths": [root], "include": [wrong.name, right.name]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [pyright, "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    errors = [error for error in found["generalDiagnostics"] if error["severity"] == "error"]
    assert {Path(error["file"]).name for error in errors} == {"wrong.py"}
    assert {error["range"]["start"]["line"] + 1 for error in errors} == set(FOUND)


@pytest.mark.full
def test_a_type_checker_finds_mistakes(tmp_path):
    """Nineteen of twenty, each at its line; and nothing in what is right."""
    api = pytest.importorskip("mypy.api")
    wrong, right = files_in(tmp_path)
    # untyped imports, which the package itself has, are no matter here
    options = ["--follow-imports=silent", "--ignore-missing-imports", "--cache-dir", str(tmp_path / "cache")]
    said, errors, _ = api.run([*options, str(wrong), str(right)])
    assert not errors
    lines = {int(n) for n in re.findall(r"wrong\.py:(\d+): error", said)}
    assert lines == set(FOUND), said
    assert "right.py" not in said


@pytest.mark.full
def test_templates_are_strictly_typed(tmp_path):
    """What `numba-deform new` writes, under mypy --strict. Of a kernel's body it sees nothing, since Numba's
    ``float32[:, :]`` is no type to it; a mistake in the layout beside it is found."""
    api = pytest.importorskip("mypy.api")
    paths = [tmp_path / f"my_{template}.py" for template in TEMPLATES]
    options = ["--strict", "--cache-dir", str(tmp_path / "cache"), *map(str, paths)]
    for path, template in zip(paths, TEMPLATES, strict=True):
        assert main(["new", str(path), f"template={template}"]) == 0
    said, errors, status = api.run(options)
    assert (errors, status) == ("", 0), said
    for path in paths:
        path.write_text(path.read_text().replace("nd.Ring(stages,", "nd.Ring(str(stages),"))
    said, errors, status = api.run(options)
    assert (errors, status) == ("", 1) and set(re.findall(r"my_(\w+)\.py:\d+: error", said)) == set(TEMPLATES)


def test_only_public_names_are_listed():
    assert nd.Ring(1).stages == 1  # the name's module is imported: it is not listed either
    assert {name for name in dir(nd) if not name.startswith("__")} == set(nd.__all__)


def test_a_pipeline_takes_its_parameters_by_name():
    with pytest.raises(TypeError, match="copy: 3 has no name; a pipeline's parameters are given by name"):
        copy(3)

"""What an installation gives, and what works without the CUDA packages, as on macOS."""

import json
import os
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import numba_deform
from numba_deform import cli

if sys.version_info >= (3, 11):
    import tomllib

ROOT = Path(__file__).resolve().parents[2]

# Python imports it at its start: from then on numba.cuda is Numba's own, and no CUDA package is there.
NO_CUDA = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba_cuda", "cuda", "nvidia"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path[:] = [f for f in sys.meta_path if type(f).__module__ != "_numba_cuda_redirector"]
sys.meta_path.insert(0, Refuse())
"""


def python(*words, cwd=ROOT, path=(ROOT,), **variables):
    """Run Python in a process of its own, with ``path`` before what is installed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHONPATH", "NUMBA"))}
    env |= {"PYTHONPATH": os.pathsep.join(map(str, path)), "MPLBACKEND": "agg", **variables}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env)


# --- installed ------------------------------------------------------------------------------------
def build(target, hook):
    """Unpack what pip makes of this checkout; returns ``target``."""
    pytest.importorskip("hatchling", reason="pip install -e '.[test]' brings hatchling")
    code = f"from hatchling.build import {hook}; print({hook}({str(target)!r}))"
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    wheel = target / done.stdout.split()[-1]
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    wheel.unlink()
    return target


def test_a_wheel_is_complete(tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_REPOSITORY", "some/name")
    monkeypatch.setenv("GITHUB_SHA", "c0ffee")
    package = build(tmp_path, "build_wheel") / "numba_deform"
    shipped = sorted(path.name for path in (package / "ptx").iterdir())
    assert shipped == sorted(path.name for path in (ROOT / "ptx").glob("*.ptx"))
    modules = {path.relative_to(package) for path in package.rglob("*.py")}
    own = ROOT / "numba_deform"
    for name in ("cudart.c", "torch_cuda.h", "torch_memory.cpp"):
        assert (package / "programs" / name).read_text() == (own / "programs" / name).read_text()
    lessons = {path.relative_to(ROOT) for path in (ROOT / "notebooks").rglob("[0-9]*.py")}
    assert modules == {path.relative_to(own) for path in own.rglob("*.py")} | lessons
    (described,) = tmp_path.glob("*.dist-info")
    text = (described / "METADATA").read_text()
    assert f"Version: {numba_deform.__version__}\n" in text
    assert "Project-URL: Changelog, https://github.com/some/name/blob/c0ffee/CHANGELOG.md\n" in text
    links = set(re.findall(r"\]\(([^)\s]+)\)", text))  # of the README, which a package index shows alone
    assert "https://github.com/some/name/raw/c0ffee/notebooks/timeline.png" in links
    assert "https://github.com/some/name/blob/c0ffee/bench/TABLE.md#windows" in links
    assert [link for link in links if not link.startswith("https://")] == []
    assert "numba-deform = numba_deform.cli:main" in (described / "entry_points.txt").read_text()
    for name in ("numba-cuda", "cuda-python", "cuda-core", "cuda-toolkit", "nvidia-cuda-nvdisasm"):
        lines = re.findall(rf"Requires-Dist: {name}\b.*", text)
        assert lines
        assert all("sys_platform == 'linux' or sys_platform == 'win32'" in line for line in lines)

    # lessons are copied from the wheel, and what they quote is in it
    copies, elsewhere = tmp_path / "copies", dict(cwd=tmp_path.parent, path=[tmp_path])
    commands = ["probe", f"lessons {copies}"]
    probe, lessons = command_line(lambda *words: python(*words, **elsewhere), commands)
    assert probe[1] == 0 and "PASS" in probe[2], probe
    assert lessons[1] == 0 and str(package / "notebooks") in lessons[2], lessons
    assert len(list(copies.glob("*.ipynb"))) == len(list((ROOT / "notebooks").glob("[0-9]*.py")))
    texts = [file.read_text() for file in (*own.rglob("lesson*.py"), *(ROOT / "notebooks").glob("[0-9]*.py"))]
    quoted = set(re.findall(r'results\("(\w+)"\)', "".join(texts)))
    assert {path.stem for path in (package / "bench" / "results").iterdir()} == quoted


def test_urls_of_a_repository_that_nobody_has_named(tmp_path, monkeypatch):
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    (described,) = build(tmp_path, "build_wheel").glob("*.dist-info")
    text = (described / "METADATA").read_text()
    assert "Project-URL" not in text and "](notebooks/timeline.png)" in text


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 reads no TOML")
def test_the_group_without_cuda_is_what_all_platforms_need():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["dependency-groups"]["cpu"] == [
        line for line in project["project"]["dependencies"] if "sys_platform" not in line
    ]


def test_numpy_without_row_stack(tmp_path):
    """As 2.5 is: numba-cuda compiles, also where a program has imported it before this package."""
    pytest.importorskip("numba_cuda")
    code = """if True:
        import numpy
        vars(numpy).pop("row_stack", None)
        from numba import cuda
        import numba_deform
        assert "row_stack" not in vars(numpy)
        print(cuda.compile(lambda out: None, "void(float32[:])", cc=(9, 0))[1])
    """
    # Of NumPy's other words on what will change, numba-cuda's 0.30 meets one more with 2.5.
    others = "-W", "ignore:The 'generic' unit:DeprecationWarning"
    done = python("-W", "error::DeprecationWarning", *others, "-c", code)
    assert done.stdout == "none\n", done.stderr


def import_beside(clone_parent, path):
    """Where the package comes from when Python starts in the folder that contains the clone."""
    (clone_parent / "numba_deform").symlink_to(ROOT, target_is_directory=True)
    assert not (ROOT / "__init__.py").exists()
    code = "import numba_deform; print(numba_deform.__file__, len(numba_deform.VARIANTS))"
    done = python("-c", code, cwd=clone_parent, path=path)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.split()[0]).resolve()


def test_an_editable_install_is_a_path(tmp_path):
    """So the package is found behind a folder of its name without __init__.py, the clone itself."""
    (line,) = [p.read_text().strip() for p in build(tmp_path, "build_editable").glob("*.pth")]
    assert Path(line) == ROOT
    parent = tmp_path / "parent"
    parent.mkdir()
    assert import_beside(parent, path=[line]) == ROOT / "numba_deform" / "__init__.py"


def test_what_is_installed_is_found_beside_the_clone(tmp_path):
    """With this environment's own installation, whatever it is."""
    try:
        installed = metadata.distribution("numba_deform")
    except metadata.PackageNotFoundError:
        pytest.skip("numba_deform is not installed, only on the path")
    paths = [f for f in installed.files or () if f.suffix == ".pth"]
    found = import_beside(tmp_path, path=[])
    assert found.name == "__init__.py"
    for line in (file.locate().read_text().strip() for file in paths):
        assert Path(line) == found.parents[1]


# --- the command line -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "word, says",
    [
        ("--help", "numba-deform COMMAND key=value"),
        ("--version", f"numba-deform {numba_deform.__version__}\n"),
    ],
)
def test_python_dash_m(word, says, tmp_path, capsys):
    done = python("-m", "numba_deform", word, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert says in done.stdout
    assert cli.main([word]) == 0 and capsys.readouterr().out == done.stdout


# --- without the CUDA packages --------------------------------------------------------------------
@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Runs Python where nothing of CUDA can be imported."""
    place = tmp_path_factory.mktemp("bare")
    (place / "sitecustomize.py").write_text(NO_CUDA)
    return lambda *words, **more: python(*words, path=[place, ROOT], **more)


def test_nothing_of_cuda_is_there(bare):
    code = """if True:
        import importlib
        from numba import cuda
        for name in ("numba_cuda", "cuda", "cuda.core", "cuda.bindings.driver", "numba.cuda.cgutils"):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError:
                continue
            print(name)
        print(cuda.__file__)
    """
    (line,) = bare("-c", code).stdout.splitlines()
    assert Path(line).parts[-3:] == ("numba", "cuda", "__init__.py")


def command_line(python, commands):
    """What the commands print in one process that ``python`` starts: (command, exit status, output) of each."""
    code = """if True:
        import contextlib, io, json, sys
        from numba_deform import cli
        for words in sys.argv[1:]:
            text = io.StringIO()
            with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
                status = cli.main(words.split())
            print(json.dumps([words, status, text.getvalue()]))
    """
    done = python("-c", code, *commands)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [words for words, _, _ in results] == commands
    return results


def test_the_cpu_engine_needs_none_of_them(bare, tmp_path):
    commands = [
        "run workload=tiny num_query=2",
        "run engine=cpu variant=direct workload=tiny num_query=2 dtype=bfloat16",
        "probe",
        "budget variant=tma stages=1,2",
        "bugs parity_inverted",
        "bugs parity_inverted fixed=1 schedules=all",
        f"timeline variant=tma workload=tiny num_query=2 engine=cpu end=900 out={tmp_path}/t.json",
    ]
    for words, status, text in command_line(bare, commands):
        assert status == 0, f"{words}: {text}"
    assert (tmp_path / "t.json").stat().st_size


def test_what_needs_them_says_so(bare):
    commands = [
        "run engine=gpu", "inspect", "bugs parity_inverted engine=gpu", "bench variants=direct",
        f"check {__file__}",
    ]  # fmt: skip
    for words, status, text in command_line(bare, commands):
        assert status == 2, f"{words}: {text}"
        assert "needs the packages numba-cuda, cuda-core, cuda-python" in text, words
        assert "on Linux and Windows, and there are none for macOS" in text, words


@pytest.mark.full
def test_a_lesson_runs(bare):
    """Lesson 3 has simulated kernels, pictures and machine code; the last is said to be missing."""
    done = bare(ROOT / "notebooks" / "03_tile.py", NUMBA_DEFORM_STATIC="1")
    assert done.returncode == 0, done.stderr
    assert "kernels run on: cpu" in done.stdout
    assert "No machine code to look at here" in done.stdout and "cuda-core" in done.stdout

"""``check`` for machines: SARIF, exit statuses, suppressions, and programs that end before their end."""

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from numba_deform.cli import main
from numba_deform.programs import sarif

pytest.importorskip("numba_cuda", reason="programs are numba-cuda's")
pytestmark = pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")
HEAD = "import os, signal, sys\nimport numpy as np\nfrom numba import cuda\n"
KERNEL = "@cuda.jit\ndef everybody(out):\n    out[0] = cuda.threadIdx.x\n"
LAUNCH = "everybody[1, 32](np.zeros(1))\n"
LEVELS, KINDS = {"none", "note", "warning", "error"}, {"inSource", "external"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A repository, in a folder of which we are."""
    (tmp_path / "a repository" / ".git").mkdir(parents=True)
    (tmp_path / "a repository" / "work").mkdir()
    monkeypatch.chdir(tmp_path / "a repository" / "work")
    return tmp_path / "a repository"


def check(text, *options):
    """(status of ``check`` of a program of that text, its SARIF log)."""
    here = Path.cwd()
    Path("program.py").write_text(HEAD + text)
    status = main(["check", "sarif=o.sarif", *options, "program.py"])
    os.chdir(here)
    return status, json.loads(Path("o.sarif").read_text())


def obeys(log):
    """Of SARIF 2.1.0 what such a log has: what must be there, of which type, and what points where. Returns the
    results."""
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    assert set(run) == {"tool", "originalUriBaseIds", "invocations", "results"}
    rules = run["tool"]["driver"]["rules"]
    assert run["tool"]["driver"]["name"] and len({rule["id"] for rule in rules}) == len(rules)
    for rule in rules:
        assert all(rule[name]["text"] for name in ("shortDescription", "fullDescription", "help"))
        assert rule["defaultConfiguration"]["level"] in LEVELS
    bases = run["originalUriBaseIds"]
    assert all(base["uri"].startswith("file:///") and base["uri"].endswith("/") for base in bases.values())
    (invocation,) = run["invocations"]
    assert type(invocation["executionSuccessful"]) is bool and type(invocation["exitCode"]) is int
    assert all(n["message"]["text"] and n["level"] in LEVELS for n in invocation["toolExecutionNotifications"])
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["message"]["text"] and result["level"] in LEVELS and result["occurrenceCount"] > 0
        assert len(result["locations"]) == 1
        assert all(s["kind"] in KINDS for s in result.get("suppressions", ()))
        for location in result["locations"] + result["relatedLocations"]:
            artifact = location["physicalLocation"]["artifactLocation"]
            absolute = artifact["uri"].startswith("file:///")
            assert absolute or artifact["uriBaseId"] in bases and not artifact["uri"].startswith("/")
            assert " " not in artifact["uri"] and location["physicalLocation"]["region"]["startLine"] > 0
    return run["results"]


def place(location):
    """(file, line) of a location."""
    physical = location["physicalLocation"]
    return unquote(physical["artifactLocation"]["uri"]), physical["region"]["startLine"]


def test_sarif(folder, capsys):
    """Files are told from the repository on, wherever in it we are, and the program goes."""
    status, log = check(KERNEL + f"os.chdir('/')\n{LAUNCH}" + "everybody[1, 32](np.zeros(1))\n")
    (found,) = obeys(log)
    assert status == log["runs"][0]["invocations"][0]["exitCode"] == 1
    assert found["ruleId"] == "DataRace" and found["occurrenceCount"] == 2
    assert place(found["locations"][0]) == ("work/program.py", 6) and "suppressions" not in found
    assert place(found["relatedLocations"][0]) == ("work/program.py", 8)
    assert found["message"]["text"].startswith("DataRace: writes out[0]")
    status, log = check("")
    assert obeys(log) == [] and not log["runs"][0]["invocations"][0]["executionSuccessful"]


def test_sarif_of_a_kernel_of_a_library(folder, tmp_path, capsys):
    """What is outside the repository no change shows: the launch comes first."""
    (tmp_path / "library.py").write_text(HEAD + KERNEL)
    text = f"sys.path.append({str(tmp_path)!r})\nfrom library import everybody\n{LAUNCH}"
    Path("known").write_text("DataRace library.py:6\n")
    status, log = check(text, "suppress=known")
    (found,) = obeys(log)
    assert status == 0 and found["suppressions"] == [{"kind": "external"}]
    assert place(found["locations"][0]) == ("work/program.py", 6)
    assert place(found["relatedLocations"][0]) == ((tmp_path / "library.py").as_uri(), 6)
    assert sarif.repository(tmp_path) == tmp_path, "without one, the folder itself"


@pytest.mark.parametrize("way", ["import", "a relative path", "a link", "a link to its folder"])
def test_suppressions_match_a_module_however_it_was_imported(folder, tmp_path, capsys, way):
    """And those that match nothing are told."""
    module = folder / "work" / "kernels.py"
    module.write_text(HEAD + KERNEL)
    text, name, own = f"import kernels\nkernels.{LAUNCH}", "kernels", "kernels.py"
    if way == "a relative path":
        text = "import runpy\nscope = runpy.run_path('kernels.py')\nscope['everybody'][1, 32](np.zeros(1))\n"
    elif way != "import":
        name = "other" if way == "a link" else "kernels"
        if way == "a link":
            place, own = tmp_path, "other.py"
            (place / own).symlink_to(module)
        else:
            place, own = tmp_path / "elsewhere", "elsewhere/kernels.py"
            place.symlink_to(folder / "work", target_is_directory=True)
        text = f"sys.path.insert(0, {str(place)!r})\nimport {name}\n{name}.{LAUNCH}"
    try:
        for line in ("kernels.py:6", "work/kernels.py:*", f"{module}:*", "*/kernels.py:?", f"{own}:6"):
            Path("known").write_text(f"DataRace {line}\nDataRace ernels.py:*\nOutOfRange kernels.py:*\n")
            status, log = check(text, "suppress=known", "json=o.json")
            assert status == 0 and len(obeys(log)) == 1
            unused = ["DataRace", "ernels.py:*"], ["OutOfRange", "kernels.py:*"]
            assert json.loads(Path("o.json").read_text())["unused_suppressions"] == list(unused)
            said = capsys.readouterr().err
            assert all(f"the suppression {' '.join(pair)} was of no use" in said for pair in unused)
            sys.modules.pop(name, None)
            importlib.invalidate_caches()
    finally:
        sys.modules.pop(name, None)


def test_exit_statuses(folder, capsys):
    """6 where all went well and nothing was launched."""
    for text, status in ("", 6), ("sys.exit(5)\n", 5), (KERNEL + LAUNCH.replace("32", "1"), 0):
        assert check(text)[0] == status
    assert "no kernel was launched" in capsys.readouterr().err


class Left(BaseException):
    """``os._exit`` was called."""


def test_os_exit_loses_nothing(folder, capsys, monkeypatch):
    """Nor what a child has seen; a child's own leaves as ever."""

    def leave(status):
        raise Left(status)

    real = os._exit
    monkeypatch.setattr(os, "_exit", leave)
    child = f"if not os.fork():\n    {LAUNCH}    os.kill(os.getpid(), signal.SIGKILL)\nos.wait()\n"
    with pytest.raises(Left, match="1"):
        check(f"{KERNEL}{LAUNCH}{child}os._exit(0)\n", "json=o.json")
    assert json.loads(Path("o.json").read_text())["launches"] == 2
    (found,) = obeys(json.loads(Path("o.sarif").read_text()))
    assert found["occurrenceCount"] == 2 and "2 launches of 1 kernel, 1 fault" in capsys.readouterr().err
    monkeypatch.setattr(os, "_exit", real)


def test_sigterm_loses_nothing(folder):
    """``finally`` of the program runs, and a child that ends by the signal has ended so."""
    file = Path("program.py")
    file.write_text(f"""{HEAD}{KERNEL}{LAUNCH}
if not os.fork():
    os.kill(os.getpid(), signal.SIGTERM)
assert os.wait()[1] == signal.SIGTERM
try:
    os.kill(os.getpid(), signal.SIGTERM)
    print("never")
finally:
    print("cleaned up")
""")  # fmt: skip
    command = [sys.executable, "-m", "numba_deform", "check", "json=o.json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGTERM and done.stdout == "cleaned up\n", done.stderr
    assert "1 launch of 1 kernel, 1 fault, interrupted" in done.stderr
    seen = json.loads(Path("o.json").read_text())
    assert seen["launches"] == 1 and seen["status"] == 128 + signal.SIGTERM

"""``numba-deform check FILE.ptx``: one launch, judged and told as a program's launches are."""

import json

import pytest
from stored import KERNELS

from numba_deform.cli import main

ARGUMENTS = "import numpy as np\nargs = [np.arange(128, dtype=np.float32), np.zeros(128, np.float32)]\n"


@pytest.fixture
def files(tmp_path):
    text = (KERNELS / "ring_by_hand.ptx").read_text()
    (tmp_path / "ring.ptx").write_text(text)
    (tmp_path / "wrong.ptx").write_text(text.replace("    fence.mbarrier_init.release.cluster;\n", ""))
    (tmp_path / "arguments.py").write_text(ARGUMENTS)
    return tmp_path


def test_a_right_and_a_wrong_one(files, capsys):
    words = ["entry=ring", "grid=1", "block=64", f"args={files}/arguments.py"]
    assert main(["check", "schedules=2", f"{files}/ring.ptx", *words]) == 0
    assert "1 launch of 1 kernel" in capsys.readouterr().err
    assert main(["check", f"json={files}/o.json", f"{files}/wrong.ptx", *words]) == 1
    said = capsys.readouterr().err
    assert "MissingInitFence" in said and "wrong.ptx:52" in said
    (fault,) = json.loads((files / "o.json").read_text())["faults"]
    assert fault["launch"] == "wrong.ptx" and fault["kernel"] == "ring"


@pytest.mark.parametrize("words, told", [
    (["block=64", "args={}/arguments.py", "grids=1"], "'grids=1' is none of entry=.."),
    (["block=64", "args={}/arguments.py", "aligned=yes"], "aligned=yes is none of gpu, declared"),
    (["args={}/arguments.py"], "block=THREADS is missing"),
    (["block=64"], "args=FILE.py is missing: the kernel takes data, out"),
    (["block=6x4", "args={}/arguments.py"], "block=6x4 must be a number"),
    (["block=64", "entry=rings", "args={}/arguments.py"], "no entry 'rings'; it has ring"),
])  # fmt: skip
def test_words_are_refused(files, capsys, words, told):
    assert main(["check", f"{files}/ring.ptx", *(word.format(files) for word in words)]) == 2
    assert told in capsys.readouterr().err

"""notebooks/site/ptx.md shows what the engine says."""

import re
import shutil
from pathlib import Path

import pytest
from stored import KERNELS

import numba_deform as nd
from numba_deform.cli import main
from numba_deform.engines import faults
from numba_deform.engines.cpu.frontends.ptx.compilers.cuda_kernels import nvcc

PAGE = (Path(nd.__file__).parents[1] / "notebooks/site/ptx.md").read_text()


@pytest.mark.skipif(not nvcc(), reason="nvcc compiles CUDA C++, and is not there")
def test_the_first_fault_in_a_cu_file(tmp_path, capsys):
    shutil.copy(KERNELS / "ring.cu", tmp_path)
    (tmp_path / "arguments.py").write_text(re.search(r"```python\n(import numpy.*?)```", PAGE, re.S)[1])
    words = [f"{tmp_path}/ring.cu", "entry=ring", "block=64", f"args={tmp_path}/arguments.py"]
    assert main(["check", *words, "options=-DFAULT=1"]) == 1
    told = capsys.readouterr().err.replace(f"{tmp_path}/", "")
    # an inline asm of several lines has its first or its last line's number, by the compiler's version
    told = re.sub(r"thread 32 at ring.cu:(39|41) ", "thread 32 at ring.cu:39 ", told).splitlines()
    shown = [line[4:] for line in PAGE.splitlines() if line[4:] in told and line.startswith("    ")]
    assert len(shown) == 6 and shown[0].startswith("InFlightRead") and "at     ring.cu:67" in shown[2]
    assert main(["check", *words]) == 0
    others = faults.TooManyArrivals, faults.FreshBarrierPassed, faults.MissingInitFence
    for number, fault in enumerate(others, 2):
        assert main(["check", *words, f"options=-DFAULT={number}"]) == 1
        assert fault.__name__ in capsys.readouterr().err


def test_results_are_looked_at(tmp_path, capsys):
    """``expected`` and ``check`` of the file of the arguments, of a kernel without a fault."""
    arguments = "import numpy as np\nargs = [np.arange(128, dtype=np.float32), np.zeros(128, np.float32)]\n"
    words = [str(KERNELS / "ring_by_hand.ptx"), "block=64", f"args={tmp_path}/arguments.py"]
    for text, status, told in (
        ("expected = {'out': 2 * args[0]}", 0, "no fault"),
        ("expected = {'out': 3 * args[0]}", 1, "127 of 128 elements of out are wrong"),
        ("def check(args):\n    assert args[1][3] == 7, 'seven'", 1, "check(args) says seven"),
        ("def check(args):\n    return args[1][3] == 6", 0, "no fault"),
        ("expected = {'outs': args[1]}", 2, "expected names outs, and ring has the parameters data, out"),
    ):
        (tmp_path / "arguments.py").write_text(arguments + text)
        assert main(["check", *words]) == status
        assert told in capsys.readouterr().err

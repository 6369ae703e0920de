"""notebooks/a_model.py, cell by cell: it shows what its text says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
jupytext = pytest.importorskip("jupytext", reason="jupytext is not installed")

from tiny_models import transformers  # noqa: E402, F401

PAGE = Path(__file__).parents[2] / "notebooks" / "a_model.py"
LONGEST = 104  # characters of a line of output in JupyterLab, as for the lessons


def test_the_page(one_thread, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    scope, said = {"__name__": "__main__"}, []
    for cell in jupytext.read(PAGE, fmt="py:percent").cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, str(PAGE), "exec"), scope)
            said.append(capsys.readouterr().out)
    said = "".join(said)
    for words in ("4 layers sample", "sampler_2d: 16 calls", "sampler_2d: 0 calls", "MultiScaleDeformable"):
        assert words in said
    assert scope["calls_before"]["deformable attention"] == scope["calls_after"]["deformable attention"] == 4
    assert scope["calls_after"]["numba_deform::ms_deform_attn"] == 4
    assert max(map(float, re.findall(r"largest difference is (\S+)", said))) < 1e-5
    far = {name for name, error in scope["errors_at_start"].items() if error > 1e-5}
    assert far and all(".encoder." in name and "sampling_offsets" in name for name in far)
    assert len(scope["errors_elsewhere"]) > 60 and max(scope["errors_elsewhere"].values()) < 1e-5
    assert max(map(len, said.splitlines())) <= LONGEST


def test_without_transformers_it_says_so():
    code = f"import runpy, sys; sys.modules['transformers'] = None; runpy.run_path({str(PAGE)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.strip().endswith("this page needs PyTorch and transformers")
    assert "Traceback" not in done.stderr

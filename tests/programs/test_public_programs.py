"""Public Numba CUDA programs, unchanged: right ones are silent and compute what they should, and what is found
in the others is what the page says. NUMBA_DEFORM_PUBLIC names where their repositories are, OWNER/NAME: a
folder, or https://github.com."""

import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import public_programs  # noqa: E402

BASE = os.environ.get("NUMBA_DEFORM_PUBLIC")
QUICK = (
    "sum", "zero_suppression", "blackscholes", "quaternion", "debug_1", "debug_3", "laplace2d", "histogram",
)  # fmt: skip


@pytest.mark.full
@pytest.mark.skipif(not BASE, reason="NUMBA_DEFORM_PUBLIC does not say where the programs are")
@pytest.mark.parametrize("name", QUICK)
def test_what_is_found(name, tmp_path):
    program = public_programs.BY_NAME[name]
    row = public_programs.checked(program, tmp_path, BASE)
    assert {(f["fault"], f["source"]) for f in row["faults"]} == ({program.fault} if program.fault else set())
    assert row["status"] == bool(program.fault) and (row["results_right"] or program.fault)


@pytest.mark.skipif(not public_programs.TABLE.exists(), reason="bench/public_programs.py has not been run")
def test_the_table_of_the_page():
    """It is that of the results, and they are what the programs are said to be."""
    rows = json.loads(public_programs.TABLE.read_text())["rows"]
    assert public_programs.table(rows) in (ROOT / "notebooks/site/programs.md").read_text()
    assert [row["program"] for row in rows] == list(public_programs.BY_NAME)
    for row in rows:
        fault = public_programs.BY_NAME[row["program"]].fault
        assert [(f["fault"], f["source"]) for f in row["faults"]] == ([fault] if fault else []), row["program"]
        assert row["results_right"] or fault

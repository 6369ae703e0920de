"""bench/NAMES.md: each name of ours is one of nd's, and the PTX beside it is what that intrinsic is."""

import importlib
import re
import sys
from pathlib import Path

import numba_deform as nd
from numba_deform.device.ptx import Intrinsic

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))
intrinsics = importlib.import_module("intrinsics")  # bench/intrinsics.py
RING = nd.Shared(ring=nd.Ring(2, empty=1)).ring  # what a kernel calls ring
EDITION = re.compile(r"\d\.\d(, \d\.\d)?")


def rows():
    """The cells of each row, by the heads of its table."""
    found, heads = [], None
    for line in (ROOT / "bench" / "NAMES.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            heads = None
        elif heads is None:
            heads = cells
        elif not set(line) <= set("|-:"):
            assert len(cells) == len(heads), line
            found.append(dict(zip(heads, cells, strict=True)))
    return found


def test_every_name_is_ours():
    assert len(rows()) > 40
    for row in rows():
        names = re.findall(r"`([\w.]+)`", row["here"])
        assert names or row["here"] == "see below", row
        for name in names:
            first, _, method = name.partition(".")
            if first == "ring":
                assert callable(getattr(RING, method)), name
            else:
                assert not method and name in nd.__all__ and hasattr(nd, name), name


def test_its_ptx_is_that_beside_it():
    """The words between the dots, in that order: the page leaves out those that are not needed to find it."""
    seen = 0
    for row in rows():
        ours = getattr(nd, row["here"].strip("`"), None)
        if isinstance(ours, Intrinsic):
            (shown,) = re.findall(r"`([^`]+)`", row["PTX"])
            words = iter(intrinsics.instruction(ours).split()[0].split("."))
            assert all(word in words for word in shown.split(".")), (shown, intrinsics.instruction(ours))
            assert EDITION.fullmatch(row["since"]), row
            seen += 1
    assert seen > 35


def test_the_page_of_intrinsics_begins_with_what_a_pipeline_needs():
    page = (ROOT / "bench" / "INTRINSICS.md").read_text()
    heads = re.findall(r"^## (\w+)$", page, re.M)
    assert heads[:2] == ["tma", "mbarrier"]
    assert heads == [module.__name__.rpartition(".")[2] for module in intrinsics.families()]

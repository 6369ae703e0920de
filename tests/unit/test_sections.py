"""The sections of the PTX ISA that are cited anywhere: all are of one edition, and readers are shown titles."""

import re
from pathlib import Path

import pytest

from numba_deform.device import sections
from numba_deform.engines import faults

ROOT = Path(__file__).parents[2]
# Not what others wrote and was fetched: folders that begin with a dot.
TEXTS = [path for suffix in ("py", "md", "ptx") for path in ROOT.rglob(f"*.{suffix}")
         if not path.relative_to(ROOT).parts[0].startswith(".")]  # fmt: skip


def test_every_citation_is_in_the_table():
    """It is added to device/sections.py, with the title that the edition there gives it."""
    unknown = {
        f"{path.relative_to(ROOT)}: {number}"
        for path in TEXTS
        for number in sections.cited(path.read_text())
        if number not in sections.TITLES and path.name != Path(__file__).name
    }
    assert not unknown, sections.EDITION


def test_no_number_reads_as_a_version():
    """PTX ISA 8.5 is a version; the section is written with that word."""
    short = re.compile(r"PTX (?:ISA )?(?!section)(?!10\.)\d+(?:\.\d+)?(?![.\d])")
    found = {
        f"{path.relative_to(ROOT)}: {citation}"
        for path in TEXTS
        for citation in short.findall(path.read_text().replace(sections.EDITION, ""))
        if path.name != Path(__file__).name
    }
    assert not found


@pytest.mark.parametrize(
    "text, numbers",
    [
        ("(PTX ISA 9.7.13.3, 9.7.9.23,\n// 9.7.13.15)", ["9.7.13.3", "9.7.9.23", "9.7.13.15"]),
        ("PTX 9.7.13.1, 32 threads; PTX ISA section 8.", ["9.7.13.1", "8"]),
        ("PTX ISA 9.2, 9.7.9.8: ld", []),
    ],
)
def test_what_is_a_citation(text, numbers):
    assert sections.cited(text) == numbers


def test_a_report_shows_title_and_edition():
    text = str(faults.BadToken("x"))
    assert "  rule   A wait by token takes the state that an arrival on the same barrier returned" in text
    assert text.count("  see    ") == 1
    assert "\n  see    PTX ISA 9.2, 9.7.13.15.16: Parallel Synchronization" in text
    assert "see" not in str(faults.OutOfRange("x"))


def test_titles_in_a_table():
    text = "PTX ISA 9.7.13.15, 9.7.13.15.9"
    assert sections.with_titles(text) == "PTX ISA 9.7.13.15 (mbarrier), 9.7.13.15.9 (mbarrier.init)"

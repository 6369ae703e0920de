"""The reports of wrong programs are those that are kept beside them (``reports.py``)."""

import pytest
from reports import file_of, kept, programs, report_of, written

PROGRAMS = programs()
FILES = {file_of(program) for program in PROGRAMS.values()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_report_is_the_one_that_is_kept(name):
    """Where it is meant to change, ``python tests/corpus/reports.py`` keeps the new one."""
    if PROGRAMS[name].not_compiled:
        pytest.skip(PROGRAMS[name].not_compiled)
    assert report_of(PROGRAMS[name]) == kept(file_of(PROGRAMS[name])).get(name)


def test_no_other_is_kept():
    assert {name for file in FILES for name in kept(file)} == PROGRAMS.keys()
    assert all(written(kept(file)) == file.read_text() for file in FILES)

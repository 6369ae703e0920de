"""bench/SIDE_BY_SIDE.md: its counts, its programs, and what it quotes."""

import importlib
import json
import re
import sys

import numpy as np
import pytest
from numba import cuda

import numba_deform as nd


@pytest.fixture(scope="module")
def side(root):
    """The modules of bench/side_by_side, by name."""
    folder = str(root / "bench" / "side_by_side")
    sys.path.insert(0, folder)
    yield lambda name: importlib.import_module(name)
    sys.path.remove(folder)


@pytest.fixture(scope="module")
def page(root):
    return (root / "bench" / "SIDE_BY_SIDE.md").read_text()


# --- the tables -----------------------------------------------------------------------------------
def test_the_counts_are_those_of_the_programs(side, page):
    assert side("tables").sizes() in page


def test_the_outcomes_are_those_of_the_results(side, page):
    assert side("tables").outcomes() in page


def test_what_is_counted(side):
    counts = side("counts")
    text = '"""Two\nlines."""\n\nimport lib\nimport numpy as np\nfrom lib.part import Box  # a remark\n\n\n'
    text += "def f(a):\n    '''Why.'''\n    # nothing\n"
    text += "    b = Box(\n        lib.thing.size(a, deep=np.pi),\n    )\n"
    text += "    return b.shape, b.ring.wait(), b.wait(), lib.thing.size\n"
    assert counts.lines(text) == 8
    assert counts.names(text) == ({"Box", "lib.thing.size", ".wait"}, {"deep"})


def test_every_mistake_is_one_statement_of_the_program(side):
    mistakes = side("mistakes")
    for program, edits in mistakes.MISTAKES.items():
        assert set(edits) == set(mistakes.KINDS)
        for kind, edit in edits.items():
            if isinstance(edit, str):
                with pytest.raises(ValueError, match=re.escape(edit)):
                    mistakes.text_of(program, kind)
            else:
                text = mistakes.text_of(program, kind)
                assert text != mistakes.text_of(program)
                compile(text, program, "exec")


def test_a_change_that_fits_no_line_or_many_is_refused(side, monkeypatch):
    mistakes = side("mistakes")
    for old, times in (("ring.", 8), ("rings", 0)):
        monkeypatch.setitem(mistakes.MISTAKES["here_copy"], "full", (old, ""))
        with pytest.raises(ValueError, match=f"'{old}' stands {times} times in here_copy.py"):
            mistakes.text_of("here_copy", "full")


# --- ours -----------------------------------------------------------------------------------------
def test_our_copy_is_right(side, tmp_path):
    module = side("mistakes").module_of("here_copy", tmp_path)
    data = side("run").data_of(module)
    assert np.array_equal(module.run(data), data)


FAULTS = {
    "full": "InFlightRead",
    "empty": "TooManyArrivals",
    "phase": "TooManyArrivals",
    "bytes": "MoreBytesThanExpected",
    "box": "MissingBytes",
}


@pytest.mark.parametrize("kind", FAULTS)
def test_our_report_is_the_quoted_one(side, page, tmp_path, kind):
    module = side("mistakes").module_of("here_copy", tmp_path, kind)
    with pytest.raises(nd.SimFault) as caught:
        module.run(side("run").data_of(module))
    assert type(caught.value).__name__ == FAULTS[kind]
    said = {line.replace(f"{tmp_path}/", "").strip() for line in str(caught.value).splitlines()}
    quoted = re.findall(rf"```text\n({FAULTS[kind]}:.*?)```", page, re.S)
    assert [text for text in quoted if {line.strip() for line in text.splitlines()} <= said]


def test_the_page_shows_our_program(side, page):
    body = side("mistakes").text_of("here_copy").split("import numba_deform as nd\n")[1]
    assert body.strip() in page


# --- the others -----------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [None, "full", "empty", "box"])
def test_the_engine_judges_the_puzzle(side, tmp_path, kind):
    module = side("mistakes").module_of("puzzle_copy", tmp_path, kind)
    data = side("run").data_of(module)
    out = np.zeros_like(data)
    args = out, data, len(data) // module.ROWS

    def run():
        nd.simulate(module.copy_test(cuda), grid=1, block=(module.COLUMNS, module.ROWS), args=args)

    if kind is None:
        run()
        assert np.array_equal(out, data)
    else:
        with pytest.raises(nd.SimFault, match="OutOfRange" if kind == "box" else "DataRace"):
            run()


@pytest.mark.full
@pytest.mark.parametrize("name", ["gluon_copy:compile", "cute_copy:compile", "pallas_copy:interpret"])
def test_the_others_where_they_are_installed(side, name):
    run = side("run")
    program, way = name.split(":")
    for library in run.NEEDS[program]:
        pytest.importorskip(library)
    row = run.case(program, way, "right", 120, "")
    assert row["outcome"] == ("right" if way == "interpret" else "compiled"), row


@pytest.mark.parametrize("kind", ["right", "bytes"])
def test_a_child_says_what_became_of_its_case(side, capsys, monkeypatch, kind):
    monkeypatch.setattr(sys, "path", list(sys.path))
    run = side("run")
    run.child("here_copy", "engine", kind)
    answer = json.loads(capsys.readouterr().out.removeprefix(run.MARK))
    if kind == "right":
        assert answer == {"outcome": "right"}
    else:
        assert (answer["outcome"], answer["error"]) == ("reported", "MoreBytesThanExpected")
        says = "MoreBytesThanExpected: the copies that signal ring.full[0] bring 4096 bytes"
        assert answer["says"].startswith(says)


def test_a_case_is_stopped_or_not_begun(side):
    run = side("run")
    assert run.case("here_copy", "engine", "right", 0.01, "")["outcome"] == "hangs"
    assert run.case("cute_copy", "compile", "full", 1, "")["outcome"] == "cannot be made"


def test_what_is_told(side):
    told = side("run").told
    race = "RACE DETECTED\n  write of x from /a/b/copy.py:3:1\n  clock: [1]\n"
    race += "  read of x from /a/copy.py:4:1\n  clock: [2]\n"
    assert told("", race + "Traceback\nValueError: no\n").splitlines() == [
        "RACE DETECTED", "write of x from copy.py:3:1", "read of x from copy.py:4:1", "ValueError: no"
    ]  # fmt: skip
    said = "x\nTraceback (most recent call last):\n  File\nKeyError: 'k'"
    assert told(said, "/t/c.py:2:3: error: bad\nmore") == "c.py:2:3: error: bad\nKeyError: 'k'"

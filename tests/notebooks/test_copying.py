"""Copies of the lessons outside the repository: they are whole, keep answers, and tell what is solved."""

import json

import lessons
import nbformat
import pytest

from numba_deform.cli import main
from numba_deform.course.lessons import copying


def test_copies_hold_every_cell(tmp_path):
    written, kept = copying.copy_lessons(tmp_path / "new" / "place")
    assert [path.stem for path in written] == list(lessons.NOTEBOOKS) and not kept
    for path in written:
        copy = nbformat.read(path, as_version=4)
        nbformat.validate(copy)
        assert [c.source for c in copy.cells if c.cell_type == "code"] == [
            cell.source for cell in lessons.cells(path.stem)
        ]
        for cell in copy.cells:
            for _, place in copying.LINK.findall(cell.source) if cell.cell_type == "markdown" else ():
                assert "://" in place or (path.parent / place).is_file(), f"{path.name} links to {place}"


def test_a_solution_opens_after_its_check(tmp_path):
    """Closed at first; it is that of the file of solutions, and stands nowhere before."""
    copying.copy_lessons(tmp_path)
    for name in lessons.NOTEBOOKS:
        cells = nbformat.read(tmp_path / f"{name}.ipynb", as_version=4).cells
        right = {exercise: answer.cell.source for exercise, (answer, _) in lessons.answers(name).items()}
        places = {cell.metadata["exercise"]: i for i, cell in enumerate(cells) if "exercise" in cell.metadata}
        assert places and set(places) == set(right)
        for exercise, i in places.items():
            check, solution = cells[i + 1 : i + 3]
            assert f"check.{exercise}(" in check.source and solution.cell_type == "markdown"
            assert solution.source.startswith("<details class=") and "<details open" not in solution.source
            assert right[exercise] in solution.source
        folded = [cell for cell in cells if "<details" in cell.source]
        assert len(folded) == len(places), "one for each exercise, and no other"


def test_answers_are_never_overwritten(tmp_path):
    copying.copy_lessons(tmp_path)
    answered, missing = tmp_path / "02_barrier.ipynb", tmp_path / "05_roles.ipynb"
    answered.write_text("an answer")
    missing.unlink()
    written, kept = copying.copy_lessons(tmp_path)
    assert written == [missing] and answered in kept and len(kept) == len(lessons.NOTEBOOKS) - 1
    assert answered.read_text() == "an answer"


def said(kind, name):
    """An output of a check, as a notebook is saved with it."""
    data = {"text/plain": [f"{kind} ({name})\n", "  Because."], "text/html": "<div>"}
    return {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": 1}


def test_progress_is_what_the_checks_said(tmp_path):
    copying.copy_lessons(tmp_path)
    fresh = copying.progress(tmp_path)
    assert set(fresh) == set(lessons.NOTEBOOKS)
    for name in lessons.NOTEBOOKS:
        assert fresh[name] == dict.fromkeys((c.exercise for c in lessons.cells(name) if c.exercise), "open")
    path = tmp_path / "05_roles.ipynb"
    notebook = json.loads(path.read_text())
    checks = {c.partition("check.")[2].partition("(")[0]: i
              for i, c in enumerate("".join(cell["source"]) for cell in notebook["cells"])}  # fmt: skip
    for name, kind in (("counts", "Right"), ("bottleneck", "Not yet"), ("forecast", "Still open")):
        notebook["cells"][checks[name]]["outputs"] = [said(kind, name)]
    path.write_text(json.dumps(notebook))
    assert copying.progress(tmp_path)["05_roles"] == {
        "counts": "solved", "largest": "open", "producer_parity": "open", "consumer": "open",
        "bottleneck": "not yet", "forecast": "open",
    }  # fmt: skip


def test_progress_as_json(tmp_path, capsys):
    copying.copy_lessons(tmp_path)
    assert main(["progress", str(tmp_path), "json=1"]) == 0
    assert json.loads(capsys.readouterr().out) == copying.progress(tmp_path)


def test_what_a_check_says_is_what_progress_reads():
    """The words of a real verdict, as IPython writes them for text/plain."""
    for name, answer, verdict in lessons.play("05_roles"):
        match = copying.VERDICT.match(repr(verdict))
        assert match and match[2] == name
        assert match[1] == ("Still open" if answer is None else "Not yet" if answer.words else "Right")
        if name == "producer_parity" and not answer:
            return


def test_progress_refuses(tmp_path):
    with pytest.raises(FileNotFoundError, match="no lessons in"):
        copying.progress(tmp_path)
    (tmp_path / "01_boxes.ipynb").write_text("[]")
    with pytest.raises(ValueError, match="01_boxes.ipynb is no Jupyter notebook"):
        copying.progress(tmp_path)


def test_commands(tmp_path, capsys):
    place = str(tmp_path / "mine")
    assert main(["lessons", place]) == 0
    first = capsys.readouterr().out
    assert "written       01_boxes.ipynb, " in first and f"jupyter lab {place}" in first and "kept" not in first
    assert main(["lessons", place]) == 0
    assert "they may hold answers" in capsys.readouterr().out
    assert main(["progress", place]) == 0
    out = capsys.readouterr().out
    exercises = [cell for name in lessons.NOTEBOOKS for cell in lessons.cells(name) if cell.exercise]
    assert "tile_corner" in out and f"0 of {len(exercises)} exercises" in out
    for words in (["lessons"], ["progress"]):
        assert main(words) == 2
        assert f"numba-deform {words[0]} DIR" in capsys.readouterr().err
    assert main(["progress", str(tmp_path / "nothing")]) == 2
    assert "copies them" in capsys.readouterr().err

"""Copies of the lessons outside the repository: they are whole, keep answers, and tell what is solved."""

import json

import lessons
import nbformat
import pytest

from numba_deform.cli import main
from numba_deform.course.lessons import copying, lesson1


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


def test_solutions_are_left_out(tmp_path):
    """Neither copies without solutions nor those for nbgrader hold one of more than a line."""
    copying.copy_lessons(tmp_path, with_solutions=False)
    copying.copy_lessons(tmp_path, nbgrader=True)
    for name in lessons.NOTEBOOKS:
        texts = [path.read_text() for path in tmp_path.rglob(f"{name}.ipynb")]
        assert len(texts) == 2
        for right, _ in lessons.answers(name).values():
            longest = max(right.cell.source.splitlines(), key=len)
            given = any(longest in cell.source for cell in lessons.cells(name))
            assert given or not any(json.dumps(longest)[1:-1] in text for text in texts), (name, longest)
        assert not any("<details" in text for text in texts)


def graded(path):
    """{grade_id: cell} of a notebook for nbgrader."""
    cells = nbformat.read(path, as_version=4).cells
    found = [(c.metadata.nbgrader.grade_id, c) for c in cells if "nbgrader" in c.metadata]
    assert len(found) == len(dict(found)), "ids are unique"
    return dict(found)


def test_nbgrader_finds_answers_and_locked_tests(tmp_path):
    written, _ = copying.copy_lessons(tmp_path, nbgrader=True)
    assert written[0] == tmp_path / "source" / "01_boxes" / "01_boxes.ipynb"
    for path in written:
        nbformat.validate(nbformat.read(path, as_version=4))
        cells = graded(path)
        exercises = [cell.exercise for cell in lessons.cells(path.stem) if cell.exercise]
        assert set(cells) == {"imports", *(f"{k}_{name}" for k in ("answer", "test") for name in exercises)}
        assert cells["imports"].metadata.nbgrader.locked and " as check\n" in cells["imports"].source
        for name in exercises:
            answer, test = cells[f"answer_{name}"], cells[f"test_{name}"]
            assert answer.metadata.exercise == name and answer.metadata.nbgrader.solution
            assert not answer.metadata.nbgrader.locked and not answer.metadata.nbgrader.grade
            assert test.metadata.nbgrader.grade and test.metadata.nbgrader.locked
            assert f"check.{name}(" in test.source and test.metadata.nbgrader.points in (1, 5)
    found = [item for path in written for item in graded(path).items()]
    whole = [name for name, cell in found if cell.metadata.nbgrader.get("points") == 5]
    assert whole == ["test_largest", "test_doubled"], "the two assignments"


def test_a_hidden_test_fails_for_all_but_a_right_answer(tmp_path):
    (path, *_), _ = copying.copy_lessons(tmp_path, nbgrader=True)
    cells, (right, wrong) = graded(path), lessons.answers("01_boxes")["corners"]
    shown, hidden = cells["test_corners"].source.split("### BEGIN HIDDEN TESTS")
    assert shown == "check.corners(come)\n" and hidden.endswith("### END HIDDEN TESTS")
    for source, passes in ((cells["answer_corners"].source, False), (wrong[0].cell.source, False),
                           (right.cell.source, True)):  # fmt: skip
        scope = {"check": lesson1}
        exec(f"{source}\n{shown}", scope)
        if passes:
            exec(hidden, scope)
        else:
            with pytest.raises(AssertionError, match=r"Not yet|Still open"):
                exec(hidden, scope)


def test_settings_of_nbgrader_are_kept(tmp_path):
    copying.copy_lessons(tmp_path, nbgrader=True)
    settings = tmp_path / "nbgrader_config.py"
    compile(settings.read_text(), str(settings), "exec")
    assert "ClearSolutions\"" not in settings.read_text()
    settings.write_text("the teacher's")
    copying.copy_lessons(tmp_path, nbgrader=True)
    assert settings.read_text() == "the teacher's"


def test_answers_are_checked_again(tmp_path, monkeypatch, capsys):
    """A saved verdict, a changed check, and a verdict that an answer prints, count for nothing."""
    lesson, copies = tmp_path / "lessons" / "01_boxes.py", tmp_path / "copies"
    text = "# %%\nfrom numba_deform.course.lessons import lesson1 as check\n\n"
    for name, answer in (("zero_fill", "filled"), ("corners", "come"), ("tile_corner", "corner")):
        text += f'# %% exercise="{name}"\n{answer} = ...\n\n# %%\ncheck.{name}({answer})\n\n'
    lesson.parent.mkdir()
    lesson.write_text(text)
    monkeypatch.setattr(copying, "lessons_folder", lambda: lesson.parent)
    (path,), _ = copying.copy_lessons(copies)
    notebook = nbformat.read(path, as_version=4)
    right = lessons.answers("01_boxes")["corners"][0].cell.source
    forged = "type('Forged', (), {'__repr__': lambda self: 'Right (zero_fill)'})()"
    answers = {"zero_fill": "filled = ...", "corners": right, "tile_corner": f"corner = None\n{forged}"}
    for cell in notebook.cells:
        if name := cell.metadata.get("exercise"):
            cell.source = answers[name]
        elif "check.tile_corner" in cell.source:
            cell.source = "print('Right (tile_corner)')"
            cell.outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "Right (tile_corner)"})]
    nbformat.write(notebook, path)
    saved = {"zero_fill": "open", "corners": "open", "tile_corner": "solved"}
    assert copying.progress(copies)["01_boxes"] == saved
    assert main(["progress", str(copies), "again=1", "json=1"]) == 0
    seen = {"zero_fill": "open", "corners": "solved", "tile_corner": "not yet"}
    assert json.loads(capsys.readouterr().out) == {"01_boxes": seen}


def test_slides_begin_at_headings(tmp_path):
    (path, *_), _ = copying.copy_lessons(tmp_path)
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    for cell in cells:
        kind = "slide" if cell.source.startswith("#") else "skip" if "<details" in cell.source else "subslide"
        assert cell.metadata.slideshow.slide_type == kind and "\n## " not in cell.source

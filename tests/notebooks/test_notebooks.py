"""Every notebook runs as it stands; every exercise tells a hole, typical mistakes and the solution apart."""

import lessons
import nbclient
import pytest

from numba_deform.compiler import Kernel

each_notebook = pytest.mark.parametrize("name", lessons.NOTEBOOKS)


@pytest.mark.full
@each_notebook
def test_runs_top_to_bottom(name):
    """In a real Jupyter kernel; each check shows that its hole is still there."""
    notebook = lessons.notebook(name)
    place = {"metadata": {"path": str(lessons.FOLDER)}}
    nbclient.NotebookClient(notebook, timeout=800, kernel_name="python3", resources=place).execute()
    shown = [html for cell in notebook.cells for html in _html(cell)]
    exercises = [cell for cell in lessons.cells(name) if cell.exercise]
    assert sum('data-kind="hole"' in html for html in shown) == len(exercises)
    assert not any('data-kind="wrong"' in html for html in shown)
    assert any("<img alt=" in html for html in shown), "a lesson has pictures"


def _html(cell):
    outputs = cell.get("outputs", ())
    return [o["data"]["text/html"] for o in outputs if "text/html" in o.get("data", {})]


@each_notebook
def test_no_cell_twice(name):
    """Long ones: a short one may do the same again to other things."""
    sources = [cell.source for cell in lessons.cells(name) if cell.source.count("\n") > 3]
    assert len(sources) == len(set(sources))


@each_notebook
def test_solved(name):
    """From top to bottom with its solutions, each of which its check takes."""
    verdicts = [verdict for _, _, verdict in lessons.play(name, variations=False)]
    assert verdicts and all(verdict.passed for verdict in verdicts), verdicts


@pytest.mark.full
@each_notebook
def test_exercises(name):
    """Hole, typical mistakes and solution: three kinds of verdict, and no message twice."""
    messages, scope = {}, {}
    for exercise, answer, verdict in lessons.play(name, scope=scope):
        kind = "hole" if answer is None else "wrong" if answer.words else "right"
        assert verdict.kind == kind, (exercise, verdict)
        assert len(verdict.message.split()) >= 8, f"{exercise}: a sentence, not {verdict.message!r}"
        if kind == "wrong":
            assert answer.words in verdict.message, (exercise, verdict)
        messages.setdefault(exercise, []).append(verdict.message)
    for exercise, said in messages.items():
        assert len(said) >= 3, f"{exercise}: a hole, a typical mistake, a solution"
        assert len(set(said)) == len(said), f"{exercise} says the same to different answers"
    own = {value for value in scope.values() if isinstance(value, Kernel) and _is_of_a_cell(value)}
    for kernel in own:  # as ``lessons.run`` launches them on a GPU; here, whether they compile
        assert kernel.with_bounded_waits().compile().cubin


def _is_of_a_cell(kernel):
    return kernel.py_func.__code__.co_filename.startswith("<")


@each_notebook
def test_solutions_are_of_this_notebook(name):
    exercises = [cell.exercise for cell in lessons.cells(name) if cell.exercise]
    assert len(exercises) >= 3 and len(set(exercises)) == len(exercises)
    assert sorted(exercises) == sorted(lessons.answers(name))


def test_there_is_a_file_of_solutions_for_each_notebook():
    assert lessons.NOTEBOOKS
    found = {path.stem for path in (lessons.FOLDER / "solutions").glob("*.py")}
    assert found == set(lessons.NOTEBOOKS)

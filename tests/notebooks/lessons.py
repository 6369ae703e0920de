"""The notebooks as the tests see them: cells, exercises, solutions and typical wrong answers."""

import ast
import linecache
from dataclasses import dataclass
from pathlib import Path

import jupytext

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = tuple(sorted(path.stem for path in FOLDER.glob("[0-9]*.py")))


@dataclass(frozen=True)
class Cell:
    """One code cell. ``exercise`` is its name, or None; ``number`` counts all cells of its notebook."""

    notebook: str
    number: int
    source: str
    exercise: str | None = None


@dataclass(frozen=True)
class Answer:
    """What stands in for an exercise's cell; ``words`` are of the verdict on a wrong one, else ""."""

    exercise: str
    words: str
    cell: Cell


def notebook(name):
    """The notebook as nbformat has it."""
    return jupytext.read(FOLDER / f"{name}.py", fmt="py:percent")


def cells(name):
    """The code cells of a notebook, in order."""
    return [
        Cell(name, number, cell.source, cell.metadata.get("exercise"))
        for number, cell in enumerate(notebook(name).cells)
        if cell.cell_type == "code"
    ]


def answers(name):
    """``{exercise: (solution, [wrong answers])}`` from the file of solutions."""
    found = {}
    for number, cell in enumerate(notebook(f"solutions/{name}").cells):
        if cell.cell_type != "code":
            continue
        exercise, _, words = cell.metadata["title"].partition(" wrong: ")
        answer = Answer(exercise, words, Cell(f"solutions/{name}", number, cell.source))
        right, wrong = found.setdefault(exercise, ([], []))
        (wrong if words else right).append(answer)
    for exercise, (right, _) in found.items():
        assert len(right) == 1, f"{exercise} has {len(right)} solutions"
    return {exercise: (right[0], wrong) for exercise, (right, wrong) in found.items()}


def execute(cell, scope):
    """Run a cell in ``scope``; the value of its last line, if that is an expression, else None."""
    file = f"<{cell.notebook}, cell {cell.number}, {hash(cell.source):x}>"
    linecache.cache[file] = (len(cell.source), None, cell.source.splitlines(True), file)
    tree = ast.parse(cell.source, file)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, file, "exec"), scope)
    if last is not None:
        return eval(compile(ast.Expression(last.value), file, "eval"), scope)


def play(name, variations=True, scope=None):
    """Run a solved notebook from top to bottom in this process, in ``scope``.

    Yields (exercise, Answer or None, Verdict) for the hole and the wrong answers of each exercise, if
    ``variations``, and for its solution, which the cells after it then see.
    """
    scope = {} if scope is None else scope
    scope["__name__"] = "__main__"
    solutions, ahead = answers(name), iter(cells(name))
    for cell in ahead:
        if not cell.exercise:
            execute(cell, scope)
            continue
        check = next(ahead)
        assert f"check.{cell.exercise}(" in check.source, "a check follows its exercise"
        right, wrong = solutions[cell.exercise]
        if variations:
            for answer in (None, *wrong):
                aside = dict(scope)
                execute(answer.cell if answer else cell, aside)
                yield cell.exercise, answer, execute(check, aside)
        execute(right.cell, scope)
        yield cell.exercise, right, execute(check, scope)


def play_on_gpu(name):
    """For a child process: the solved notebook, every verdict right."""
    verdicts = [verdict for _, _, verdict in play(name, variations=False)]
    assert verdicts and all(verdict.passed for verdict in verdicts), verdicts

"""The notebooks as the tests see them: cells, exercises, solutions and typical wrong answers."""

import ast
import functools
import linecache
import sys
from dataclasses import dataclass
from pathlib import Path

# The JSON schemas behind jupytext compile a grammar of web addresses, in 1.5 s; notebooks hold none.
sys.modules.setdefault("rfc3987_syntax", None)
import jupytext  # noqa: E402

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


@functools.cache
def cells(name):
    """The code cells of a notebook, in order."""
    return tuple(
        Cell(name, number, cell.source, cell.metadata.get("exercise"))
        for number, cell in enumerate(notebook(name).cells)
        if cell.cell_type == "code"
    )


@functools.cache
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


@dataclass(frozen=True)
class Size:
    """How long a lesson is: words of prose, lines of code that have not stood there before, exercises."""

    words: int
    code: int
    exercises: int

    @property
    def minutes(self):
        """150 words or 12 lines a minute, and 5 minutes for an exercise."""
        return self.words / 150 + self.code / 12 + 5 * self.exercises


def size(name):
    found = notebook(name).cells
    lines = {line.strip() and line for c in found if c.cell_type == "code" for line in c.source.splitlines()}
    words = sum(len(cell.source.split()) for cell in found if cell.cell_type == "markdown")
    return Size(words, len(lines - {""}), sum("exercise" in cell.metadata for cell in found))


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


if __name__ == "__main__":
    print(f"{'lesson':20}  words  code  exercises  minutes")
    for name in NOTEBOOKS:
        own = size(name)
        print(f"{name:20} {own.words:6} {own.code:5} {own.exercises:10} {own.minutes:8.0f}")

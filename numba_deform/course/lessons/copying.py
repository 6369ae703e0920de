"""Lessons to work in: copies outside the repository, and which of their exercises are solved."""

import json
import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
SOLUTION = re.compile(r"^# %% (\w+)\n(.*?)(?=^# %% |\Z)", re.M | re.S)
VERDICT = re.compile(r"(Still open|Not yet|Right) \((\w+)\)")
SOLVED, UNSOLVED, UNTRIED = "solved", "not yet", "open"


def lessons_folder():
    """The folder of the lessons' texts: in an installed package, or beside it in its repository.

    FileNotFoundError where there is neither."""
    for folder in (PACKAGE / "notebooks", PACKAGE.parent / "notebooks"):
        if any(folder.glob("[0-9]*.py")):
            return folder
    raise FileNotFoundError(f"the lessons are neither in {PACKAGE} nor beside it")


def solutions(lesson):
    """``{exercise: text}`` of a lesson: Markdown that shows one line, and its solution once that is clicked."""
    text = (lessons_folder() / "solutions" / f"{lesson}.py").read_text(encoding="utf-8")
    return {name: f"<details class=\"solution\"><summary>A solution of {name}</summary>\n\n"
                  f"```python\n{code.strip()}\n```\n\n</details>"
            for name, code in SOLUTION.findall(text)}  # fmt: skip


def copy_lessons(directory):
    """Write every lesson as a Jupyter notebook into ``directory``; two lists of paths.

    The first are the files that were written, the second those that were there already: they may hold
    answers, and are left as they are. Links between lessons lead to the copies, and what links to another
    file of the repository becomes its name. After each check stands its solution, folded. Needs jupytext
    (ImportError says how to get it).
    """
    try:
        import jupytext
    except ImportError:
        raise ImportError("copies of lessons need jupytext: pip install jupytext") from None
    source, target = lessons_folder(), Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    written, kept = [], []
    for lesson in sorted(source.glob("[0-9]*.py")):
        copy = target / f"{lesson.stem}.ipynb"
        if copy.exists():
            kept.append(copy)
            continue
        notebook = jupytext.read(lesson, fmt="py:percent")
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = _links_of_copy(cell.source)
        _add_solutions(notebook, solutions(lesson.stem))
        jupytext.write(notebook, copy, fmt="ipynb")
        written.append(copy)
    return written, kept


def _add_solutions(notebook, texts):
    """A cell for each exercise, after the check that follows it."""
    from nbformat import v4

    for number, cell in reversed(list(enumerate(notebook.cells))):
        if name := cell.metadata.get("exercise"):
            notebook.cells.insert(number + 2, v4.new_markdown_cell(texts[name]))


def _links_of_copy(text):
    def link(match):
        words, place = match.groups()
        name, _, suffix = place.rpartition(".")
        if suffix == "py" and "/" not in name:
            return f"[{words}]({name}.ipynb)"
        return match[0] if "://" in place else words

    return LINK.sub(link, text)


def progress(directory):
    """``{lesson: {exercise: "solved", "not yet" or "open"}}`` of the lessons in ``directory``, as last saved.

    An exercise is what its check said when it was run last: nothing is run here. A lesson that is not there
    is left out; ValueError for a file that is no notebook, FileNotFoundError where there is no lesson at all.
    """
    states = {}
    for lesson in sorted(lessons_folder().glob("[0-9]*.py")):
        copy = Path(directory) / f"{lesson.stem}.ipynb"
        if copy.exists():
            exercises = re.findall(r'^# %% exercise="(\w+)"', lesson.read_text(), re.M)
            verdicts = _verdicts(copy)
            states[lesson.stem] = {name: verdicts.get(name, UNTRIED) for name in exercises}
    if not states:
        raise FileNotFoundError(f"no lessons in {directory}; numba-deform lessons {directory} copies them")
    return states


def _verdicts(file):
    """{exercise: state} from the outputs that a notebook was saved with."""
    states = {"Right": SOLVED, "Not yet": UNSOLVED, "Still open": UNTRIED}
    try:
        outputs = [o for cell in json.loads(file.read_text())["cells"] for o in cell.get("outputs", ())]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{file} is no Jupyter notebook") from None
    shown = ("".join(output.get("data", {}).get("text/plain", "")) for output in outputs)
    found = filter(None, map(VERDICT.match, shown))
    return {match[2]: states[match[1]] for match in found}

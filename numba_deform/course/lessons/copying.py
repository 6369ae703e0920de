"""Lessons to work in: copies outside the repository, and which of their exercises are solved."""

import hashlib
import itertools
import json
import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
SOLUTION = re.compile(r"^# %% (\w+)\n(.*?)(?=^# %% |\Z)", re.M | re.S)
VERDICT = re.compile(r"(Still open|Not yet|Right) \((\w+)\)")
KEY = re.compile(r"^<!-- (\w+) -->\n", re.M)  # of the English text whose translation follows
SETTINGS = "nbgrader_config.py"
SOLVED, UNSOLVED, UNTRIED = "solved", "not yet", "open"


def lessons_folder():
    """The folder of the lessons' texts: in an installed package, or beside it in its repository.

    FileNotFoundError where there is neither."""
    for folder in (PACKAGE / "notebooks", PACKAGE.parent / "notebooks"):
        if any(folder.glob("[0-9]*.py")):
            return folder
    raise FileNotFoundError(f"the lessons are neither in {PACKAGE} nor beside it")


def key(text):
    """What names an English text to its translation, whatever its line breaks and where its links lead."""
    return hashlib.sha256(" ".join(LINK.sub(r"\1", text).split()).encode()).hexdigest()[:8]


def translations(page, language="zh"):
    """``{key: text}`` of a lesson or another page: its texts in that language."""
    _, *parts = KEY.split((lessons_folder() / language / f"{page}.md").read_text(encoding="utf-8"))
    return {one: text.strip("\n") for one, text in zip(parts[::2], parts[1::2], strict=True)}


def solutions(lesson):
    """``{exercise: text}`` of a lesson: Markdown that shows one line, and its solution once that is clicked.

    Empty where the solutions were taken out of the package."""
    file = lessons_folder() / "solutions" / f"{lesson}.py"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return {name: f"<details class=\"solution\"><summary>A solution of {name}</summary>\n\n"
                  f"```python\n{code.strip()}\n```\n\n</details>"
            for name, code in SOLUTION.findall(text)}  # fmt: skip


def copy_lessons(directory, with_solutions=True, nbgrader=False, language=None):
    """Write every lesson as a Jupyter notebook into ``directory``; two lists of paths.

    The first are the files that were written, the second those that were there already: they may hold
    answers, and are left as they are. Links between lessons lead to the copies, and what links to another
    file of the repository becomes its name. After each check stands its solution, folded, unless they are left
    out. Cells say where a slide begins. ``nbgrader``: without solutions and with nbgrader's metadata, each as
    an assignment ``source/LESSON``, beside settings of nbgrader. ``language``: the lessons that are there in it
    ("zh"), with their texts in it; ValueError if there are none.

    Needs jupytext (ImportError says how to get it).
    """
    try:
        import jupytext
    except ImportError:
        raise ImportError("copies of lessons need jupytext: pip install jupytext") from None
    source, target = lessons_folder(), Path(directory)
    lessons = sorted((source / language).glob("[0-9]*.md") if language else source.glob("[0-9]*.py"))
    if not lessons:
        raise ValueError(f"there are no lessons in language={language}")
    target.mkdir(parents=True, exist_ok=True)
    written, kept = [], []
    if nbgrader and not (target / SETTINGS).exists():
        (target / SETTINGS).write_text((source / SETTINGS).read_text())
    for lesson in lessons:
        copy = target / (f"source/{lesson.stem}" if nbgrader else "") / f"{lesson.stem}.ipynb"
        if copy.exists():
            kept.append(copy)
            continue
        notebook = jupytext.read(source / f"{lesson.stem}.py", fmt="py:percent")
        texts = translations(lesson.stem, language) if language else {}
        notebook.cells = [part for cell in notebook.cells for part in _slides_of(cell, texts)]
        if nbgrader:
            _add_grades(notebook)
        elif with_solutions:
            _add_solutions(notebook, solutions(lesson.stem))
        copy.parent.mkdir(parents=True, exist_ok=True)
        jupytext.write(notebook, copy, fmt="ipynb")
        written.append(copy)
    return written, kept


HIDDEN = "\n### BEGIN HIDDEN TESTS\nassert {0}.passed, {0}\n### END HIDDEN TESTS"
POINTS = {"largest": 5, "doubled": 5}  # of the assignments; any other exercise has one


def _add_grades(notebook):
    """nbgrader's metadata, schema 3: an exercise is an answer, its check a test whose hidden part asks for the
    verdict; imports are locked."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    _grade(code[0], "imports", locked=True)
    for answer, test in itertools.pairwise(code):
        if name := answer.metadata.get("exercise"):
            _grade(answer, f"answer_{name}", solution=True)
            _grade(test, f"test_{name}", grade=True, locked=True, points=POINTS.get(name, 1))
            test.source += HIDDEN.format(f"check.{name}.verdict")


def _grade(cell, name, **kinds):
    cell.metadata["nbgrader"] = {"grade": False, "solution": False, "locked": False, "task": False, **kinds,
                                 "grade_id": name, "cell_type": "code", "schema_version": 3}  # fmt: skip


def _add_solutions(notebook, texts):
    """A cell for each exercise, after the check that follows it."""
    from nbformat import v4

    for number, cell in reversed(list(enumerate(notebook.cells))):
        if text := texts.get(cell.metadata.get("exercise")):
            skipped = {"slideshow": {"slide_type": "skip"}}
            notebook.cells.insert(number + 2, v4.new_markdown_cell(text, metadata=skipped))


def _slides_of(cell, texts):
    """The parts of a cell from heading to heading, each of which is a slide; code stands below the text."""
    from nbformat import v4

    if cell.cell_type == "code":
        return [cell]
    parts = re.split(r"\n(?=#+ )", _links_of_copy(texts.get(key(cell.source), cell.source)))
    kinds = ({"slide_type": "slide" if part.startswith("#") else "subslide"} for part in parts)
    pairs = zip(parts, kinds, strict=True)
    return [v4.new_markdown_cell(part, metadata={"slideshow": kind}) for part, kind in pairs]


def _links_of_copy(text):
    def link(match):
        words, place = match.groups()
        name, _, suffix = place.rpartition(".")
        if suffix in ("py", "md") and name[0].isdigit():
            return f"[{words}]({name}.ipynb)"
        return match[0] if "://" in place else words

    return LINK.sub(link, text)


def progress(directory, again=False):
    """``{lesson: {exercise: "solved", "not yet" or "open"}}`` of the lessons in ``directory``, as last saved.

    An exercise is what its check said when it was run last: nothing is run here. ``again``: the answers, and
    nothing else of a file, are run in a fresh copy of the lesson, which needs nbclient. A lesson that is not
    there is left out; ValueError for a file that is no notebook, FileNotFoundError where there is no lesson at
    all.
    """
    states = {}
    for lesson in sorted(lessons_folder().glob("[0-9]*.py")):
        copy = Path(directory) / f"{lesson.stem}.ipynb"
        if copy.exists():
            exercises = re.findall(r'^# %% exercise="(\w+)"', lesson.read_text(), re.M)
            verdicts = _verdicts_of(_run_again(lesson, copy) if again else _read(copy))
            states[lesson.stem] = {name: verdicts.get(name, UNTRIED) for name in exercises}
    if not states:
        raise FileNotFoundError(f"no lessons in {directory}; numba-deform lessons {directory} copies them")
    return states


def _read(file):
    """The cells of a notebook."""
    try:
        return [dict(cell) for cell in json.loads(file.read_text())["cells"]]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{file} is no Jupyter notebook") from None


def _run_again(lesson, file):
    """The cells of a lesson that has run with the answers in a notebook."""
    try:
        import jupytext
        from nbclient import NotebookClient
    except ImportError:
        raise ImportError("checking again needs jupytext and nbclient: pip install jupytext nbclient") from None
    named = ((cell.get("metadata", {}).get("exercise"), "".join(cell["source"])) for cell in _read(file))
    answers, notebook = dict(named), jupytext.read(lesson, fmt="py:percent")
    for cell in notebook.cells:
        cell.source = answers.get(cell.metadata.get("exercise", ""), cell.source)
    return NotebookClient(notebook, timeout=600, allow_errors=True).execute().cells


def _verdicts_of(cells):
    """{exercise: state} from the outputs of cells."""
    states = {"Right": SOLVED, "Not yet": UNSOLVED, "Still open": UNTRIED}
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    shown = ("".join(output.get("data", {}).get("text/plain", "")) for output in outputs)
    found = filter(None, map(VERDICT.match, shown))
    return {match[2]: states[match[1]] for match in found}

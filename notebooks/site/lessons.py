"""A Sphinx extension: the lessons as .ipynb beside their pages, the buttons that open them, and at each
exercise its question, to answer in the page, and its solution, folded.

Colab, Binder and Codespaces need the repository's name on its host; without it there is the download alone, and
where the lesson can run in the page that."""

import re
from pathlib import Path

import jupytext
import nbformat
import quiz
import run_here
from docutils import nodes
from repository import COMMIT, NAME, ROOT, SOLUTIONS

from numba_deform.course.lessons.copying import copy_lessons, solutions

BRANCH = "gh-pages"  # where the workflow publishes the site, the .ipynb too
COLAB = f"https://colab.research.google.com/github/{NAME}/blob/{BRANCH}"
BINDER = f"https://mybinder.org/v2/gh/{NAME}/{COMMIT}?urlpath=lab/tree/lessons"  # .binder makes them there
CODESPACES = f"https://codespaces.new/{NAME}?quickstart=1"


def buttons(name, text):
    """A line of HTML: links that open the lesson elsewhere, its download, and whether its ``text`` asks for
    fewer values on the page."""
    links = [*run_here.button(name), f'<a href="{name}.ipynb" download>Download the notebook</a>']
    if NAME:
        links[-1:-1] = [f'<a href="{COLAB}/notebooks/{name}.ipynb">Open in Colab</a>',
                        f'<a href="{BINDER}/{name}.ipynb">Open in Binder</a>',
                        f'<a href="{CODESPACES}">Open in Codespaces</a>']  # fmt: skip
    if "page=" in text:  # of lessons.slider
        links.append("<span>Some sliders have fewer values here than in the notebook.</span>")
    return f'<div class="open-lesson">{" ".join(links)}</div>'


EXERCISE = re.compile(r'^# %% exercise="(\w+)"\n(.*?)^# %%\n(.*?)(?=^# %%|\Z)', re.M | re.S)
BEFORE = "What the check says before you begin"
IMPORTS = 'tags=["hide-input"] mystnb={"code_prompt_show": "Show the imports"}'  # folded away


def add_answers(lesson, text):
    """The lesson's text. Exercises are marked, and what a check says to a hole is folded. Below come its
    question, where it is a short one, and its solution."""
    right, checks = solutions(lesson), re.search(r"import (\w+) as check", text)[1]
    asked = quiz.QUESTIONS if SOLUTIONS else ()  # a question's answers are in its page

    def more(match):
        name, hole, check = match.groups()
        below = [quiz.form(lesson, checks, name)] if name in asked and "def " not in hole else []
        below = "\n\n".join([*below, *[right[name]] * SOLUTIONS]).splitlines()
        below = "\n".join(["# %% [markdown]" * SOLUTIONS, *(f"# {line}".rstrip() for line in below), "", ""])
        folded = f'tags=["hide-output"] mystnb={{"code_prompt_show": "{BEFORE}"}}'
        return f'# %% exercise="{name}" tags=["exercise"]\n{hole}# %% {folded}\n{check}{below}'

    return EXERCISE.sub(more, text)


# What the first screen of a lesson asks, beside its first picture. The lesson answers it.
OPENINGS = {
    "boxes": "One instruction brings box A. Which numbers are in it, and in which order do they arrive?",
    "barrier": "A thread asks for bytes and goes on. How does anybody know when they are there?",
    "tile": "A sample lies between four pixels. How much of each does it take?",
    "stages": "Copies take long, sums are quick. How many tiles must be under way so that nobody waits?",
    "roles": "One warp asks, the others add up. Who tells the first that a place is free again?",
    "debugging": "This pipeline never ends. Who waits for whom?",
    "how_fast": "How fast can a kernel be at best, and what holds this one back?",
    "half_a_variant": "How far ahead must a ring look before copies stop costing time?",
    "your_variant": "You have an idea for a faster kernel. How do you find out before you believe it?",
    "adding": "Many blocks add to the same numbers. Who keeps the sums right?",
    "tensor_cores": "Eight rows lie in the same banks. How can a warp read them in one go?",
    "clusters": "Two blocks need the same tile. Who loads it, and how does the other know that it is there?",
    "flash_attention": "A score is needed once. How does it never leave the registers?",
    "profiling": "Two kernels move the same bytes. Why does one of them take longer?",
    "cuda": "This kernel is C++, and it hangs. Which bytes does it wait for, and who has promised them?",
    "blackwell": "One thread multiplies for a whole block. Where are the sums, and who may read which of them?",
}
FIRST_PICTURE = re.compile(r'<div class="frames-picture".*?</svg>\s*</div>', re.S)


def add_opening(app, doctree):
    """Sphinx's event doctree-read: below a lesson's buttons its first picture once more, and a question."""
    folder, _, name = app.env.docname.rpartition("/")
    question = OPENINGS.get(name.partition("_")[2]) if folder in ("notebooks", "notebooks/zh") else None
    drawn = (FIRST_PICTURE.search(node.astext()) for node in doctree.findall(nodes.raw))
    picture = next(filter(None, drawn), None)
    button = next((node for node in doctree.findall(nodes.raw) if "open-lesson" in node.astext()), None)
    if question and picture and button:
        text = f'<figure class="opening"><figcaption>{question}</figcaption>{picture[0]}</figure>'
        button.parent.insert(button.parent.index(button) + 1, nodes.raw("", text, format="html"))


def add_buttons(app, docname, source):
    """After the title of a lesson, which is the first line of a cell. Its first code, imports, is folded."""
    folder, _, name = docname.rpartition("/")
    if folder == "notebooks" and name[0].isdigit():
        title = next(line for line in source[0].splitlines() if line.startswith("# # "))
        text = source[0].replace(title, f"{title}\n#\n# {buttons(name, source[0])}", 1)
        text = text.replace("\n# %%\n", f"\n# %% {IMPORTS}\n", 1)
        source[0] = add_answers(name, text)


def read(text):
    """The notebook that a lesson's text is. Blank lines around its cells leave no trace in it."""
    notebook = jupytext.reads(text, fmt="py:percent")
    for cell in notebook.cells:
        cell.source = cell.source.strip("\n")
        cell.metadata.pop("lines_to_next_cell", None)
    return notebook


def install_cell():
    """The first cell of a published notebook: a fresh machine has nothing of the package."""
    place = f"git+https://github.com/{NAME}@{COMMIT}" if NAME else ROOT.as_uri()
    return nbformat.v4.new_code_cell(f'%pip install -q ipywidgets "numba_deform[inspect,plot] @ {place}"')


def write(app, error):
    """Sphinx's event build-finished: the copies, which ``numba-deform lessons`` makes, with that cell."""
    if error or app.builder.name != "html":
        return
    for place, language in ("notebooks", None), ("notebooks/zh", "zh"):
        folder = Path(app.outdir) / place
        for old in folder.glob("*.ipynb"):
            old.unlink()
        for path in copy_lessons(folder, SOLUTIONS, language=language)[0]:
            notebook = nbformat.read(path, as_version=4)
            notebook.cells.insert(0, install_cell())
            nbformat.write(notebook, path)


def setup(app):
    app.add_config_value("with_solutions", SOLUTIONS, "env")  # after a change of it all pages are read again
    app.connect("source-read", add_buttons)
    app.connect("doctree-read", add_opening)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
